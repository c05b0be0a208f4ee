# budget: 120
# only: with --all
# seconds: 400
# needs: commonhold team
# Seed 001 on four nodes of two CPUs: jobs of two threads each sit in a node of their own, and their pages lie there, under
# `cgroup` and under `kernel`; beside what the kernel does by itself. Each job's buffer is first touched in the last node, so
# that pages have to come after the threads. A daemon that is killed leaves nobody where it was put.

contract() {
	cat > contract.toml <<-EOF
		version = 1
		[machine]
		cpu = "proportional"
		pools = "node"
		placement = "$1"
		[unit.jobs]
		members = ["command:team*"]
		job = "process"
	EOF
}

# jobs NAME: three jobs that begin two seconds apart, on buffers of 16 MiB in the last node; what each says, in NAME.1 to NAME.3.
jobs() {
	for job in 1 2 3; do
		team 2 16 $((24 - 2 * job)) 7 > "$1.$job" &
		pids="${pids:-} $!"
		sleep 2
	done
}
# least NAME FIELD: the smallest of a figure, in whole percent; sum NAME: all passes.
least() {
	cat "$1".? | awk -v field="$2" '{ for (i = 1; i < NF; i++) if ($i == field && (min == "" || $(i + 1) < min)) min = $(i + 1) } END { print int(min) }'
}
passes() {
	cat "$1".? | awk '{ for (i = 1; i < NF; i++) if ($i == "passes") sum += $(i + 1) } END { print sum + 0 }'
}
table() {
	note "$1: in one node $(least "$1" ran) % of the time at least, pages there $(least "$1" pages) % at least, $(passes "$1") passes"
}
wait_for_jobs() {
	for pid in $pids; do wait "$pid"; done
	pids=
}
# affinities: of all threads of the jobs, as a list of masks.
affinities() {
	for pid in $(pidof team); do
		for task in /proc/"$pid"/task/*; do awk '/^Cpus_allowed_list/ { print $2 }' "$task/status"; done
	done | sort -u | tr '\n' ' '
}
all_over_the_machine() {
	detail=$(affinities)
	[ "$detail" = "0-7 " ]
}
seated() {
	detail=$(affinities)
	[ "$detail" != "0-7 " ] && [ -n "$detail" ]
}

held() {
	contract worst-fit
	ok "$1: a daemon" start_daemon contract.toml --backend "$1"
	jobs "$1"
	ok "$1: threads have seats" wait_for 10 seated
	sleep 2
	commonhold status > "$1.status"
	wait_for_jobs
	table "$1"
	ok "$1: a job runs in one node for 95 % of its time" at_least "$(least "$1" ran)" 95
	ok "$1: 95 % of its pages are there in the end" at_least "$(least "$1" pages)" 95
	ok "$1: status shows the jobs" grep -q "in pools" "$1.status"
	kill -TERM "$daemon"
	wait "$daemon"
}

cap_cpus
jobs alone
wait_for_jobs
table alone
note "numad is not in the lab: apt-get install numad where it is to be compared"
measured held cgroup
measured held kernel

# A daemon that is killed leaves nobody where it was put.
contract worst-fit
ok "a daemon to be killed" start_daemon contract.toml --backend kernel
jobs killed
ok "threads have seats" wait_for 10 seated
kill -9 "$daemon"
ok "killed: all threads may run anywhere again" wait_for 10 all_over_the_machine
wait_for_jobs
