# budget: 330
# only: with --all
# seconds: 900
# needs: commonhold team
# The cost of jobs in pools where they gain nothing: in the lab all memory is equally near. Four mixes of jobs run in turn under
# the kernel's own placement, under `cgroup` and under `kernel`, three times each. The test compares their CPU times, which here
# measure their work: the backends may cost at most 2 %. It also prints the daemon's CPU time; its samples cost forty times what
# they cost on hardware.

cat > contract.toml <<-EOF
	version = 1
	[machine]
	cpu = "proportional"
	pools = "node"
	[unit.jobs]
	members = ["command:team*"]
	job = "process"
EOF

# team_for THREADS SECONDS: a job in the background; its output is summed up.
team_for() {
	team "$1" 4 "$2" >> said &
	pids="$pids $!"
}
# Each mix lasts six seconds.
few() {
	for job in 1 2 3; do team_for 2 6; done
}
more() {
	for job in 1 2 3 4 5 6; do team_for 2 6; done
}
large() {
	team_for 6 6
	team_for 1 6
}
short() {
	for second in 1 2 3 4 5 6; do
		for job in 1 2 3 4; do team_for 2 1; done
		pause 1
	done
}
# work MIX: the CPU time of all its jobs, in ms, and the daemon's.
work() {
	: > said
	pids=
	daemon_time
	before=$daemon_ms
	"$1"
	for pid in $pids; do wait "$pid"; done
	daemon_time
	awk -v daemon=$((daemon_ms - before)) '{ for (i = 1; i < NF; i++) if ($i == "cpu") sum += $(i + 1) } END { print sum + 0, daemon }' said
}
# under NAME: runs the four mixes and appends a line for each to NAME.MIX.
under() {
	for mix in few more large short; do work $mix >> "$1.$mix"; done
}
# sum FILE [FIELD]
sum() {
	awk -v field="${2:-1}" '{ sum += $field } END { print sum + 0 }' "$1"
}
# held BACKEND
held() {
	start_daemon contract.toml --backend "$1" || return 1
	under "$1"
	kill -TERM "$daemon"
	wait "$daemon"
	daemon=
}

cap_cpus
for round in 1 2 3; do
	under default         # without a daemon
	ok "round $round: under cgroup" held cgroup
	ok "round $round: under kernel" held kernel
done
for mix in few more large short; do
	own=$(sum default.$mix)
	for backend in cgroup kernel; do
		note "$mix, $backend: $(sum $backend.$mix) ms, $(ratio "$(sum $backend.$mix)" "$own") of the kernel's own $own; the daemon $(sum $backend.$mix 2) ms"
	done
done
for mix in few more large short; do
	ok "$mix: under kernel no more than 2 % less is done" at_least $(($(sum kernel.$mix) * 100)) $(($(sum default.$mix) * 98))
done
