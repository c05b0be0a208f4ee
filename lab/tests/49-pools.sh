# budget: 400
# only: with --all
# seconds: 900
# needs: commonhold team numad spin
# Seed 001 on four nodes of two CPUs: each job of two threads sits in a node of its own, with its pages, under `cgroup` and under
# `kernel`. For comparison, the same with the kernel's own placement and with numad. Each job's buffer is first touched in the
# last node, so pages must migrate to the threads. With five jobs on four nodes no CPU idles. Under `kernel` no thread's affinity
# changes, and a job continues elsewhere if other tasks occupy its node. A killed daemon leaves no affinity behind.

# contract PLACEMENT [REPARTITION]
contract() {
	cat > contract.toml <<-EOF
		version = 1
		[machine]
		cpu = "proportional"
		pools = "node"
		placement = "$1"
		repartition = ${2:-true}
		[unit.jobs]
		members = ["command:team*"]
		job = "process"
	EOF
}

# job NAME THREADS SECONDS: in the background, on a buffer of 16 MiB in the last node; its output goes to NAME.
job() {
	team "$2" 16 "$3" 7 > "$1" &
	pids="${pids:-} $!"
}
# jobs NAME COUNT SECONDS: jobs of two threads that begin two seconds apart and end together.
jobs() {
	for number in $(seq "$2"); do
		job "$1.$number" 2 $(($3 + 2 * ($2 - number)))
		sleep 2
	done
}
wait_for_jobs() {
	for pid in $pids; do wait "$pid"; done
	pids=
}
# least NAME FIELD: the jobs' smallest value of a figure, in whole percent. passes NAME: the sum of all jobs' passes.
least() {
	cat "$1".? | awk -v field="$2" '{ for (i = 1; i < NF; i++) if ($i == field && (min == "" || $(i + 1) < min)) min = $(i + 1) } END { print int(min) }'
}
passes() {
	cat "$1".? | awk '{ for (i = 1; i < NF; i++) if ($i == "passes") sum += $(i + 1) } END { print sum + 0 }'
}
table() {
	note "$1: in one node $(least "$1" ran) % of the time at least, pages there $(least "$1" pages) % at least, $(passes "$1") passes"
}
# affinities: the CPU lists of all of the jobs' threads.
affinities() {
	for pid in $(pidof team); do
		awk '/^Cpus_allowed_list/ { print $2 }' /proc/"$pid"/task/*/status
	done | sort -u | tr '\n' ' '
}
all_over_the_machine() {
	detail=$(affinities)
	[ "$detail" = "0-7 " ]
}
# rows: the jobs' rows of `status`. pools: the jobs' pools with their numbers of threads: `0: 2`.
rows() {
	commonhold status | awk '/^ *[0-9]+ +team/'
}
pools() {
	rows | sed -nE 's/^.* jobs +[0-9]+ +(([0-9]+: [0-9]+(, )?)+) .*$/\1/p'
}
# seated COUNT: whether COUNT jobs have all their threads in one pool.
seated() {
	detail=$(pools | tr '\n' ';')
	[ "$(pools | grep -cxE '[0-9]+: [0-9]+')" -eq "$1" ]
}
no_problem() {
	! commonhold status > status.now 2>&1 || ! grep -i problem status.now
}
stop() {
	kill -TERM "$daemon"
	wait "$daemon"
}
# idle: the idle part of the CPUs over four seconds, in tenths of a percent.
idle() {
	before=$(awk '/^cpu / { print $5 + $6 }' /proc/stat)
	pause 4
	after=$(awk '/^cpu / { print $5 + $6 }' /proc/stat)
	echo $(((after - before) * 1000 / (8 * 400)))
}

held() {
	contract worst-fit
	ok "$1: a daemon" start_daemon contract.toml --backend "$1"
	jobs "$1" 3 18
	ok "$1: each job has a pool" wait_for 10 seated 3
	[ "$1" = cgroup ] || ok "$1: and may run everywhere" all_over_the_machine
	ok "$1: status names no problem" no_problem
	wait_for_jobs
	table "$1"
	ok "$1: a job runs in one node for 95 % of its time" at_least "$(least "$1" ran)" 95
	ok "$1: 95 % of its pages are there in the end" at_least "$(least "$1" pages)" 95
	stop
}

# More jobs than pools: two threads have no seat.
uneven() {
	contract worst-fit
	ok "five jobs, $1: a daemon" start_daemon contract.toml --backend "$1"
	jobs "five-$1" 5 12
	ok "five jobs, $1: four of them have a pool" wait_for 10 seated 4
	idles=$(idle)
	wait_for_jobs
	note "five jobs, $1: idle $idles of 1000; $(cat "five-$1".? | awk '{ printf "%s ", $2 }')% in one node; $(passes "five-$1") passes"
	ok "five jobs, $1: no CPU idles while a thread waits" at_most "$idles" 20
	stop
}

# A killed daemon leaves no affinity behind.
killed() {
	contract worst-fit
	ok "$1: a daemon to be killed" start_daemon contract.toml --backend "$1"
	jobs "killed-$1" 3 120
	ok "$1: threads have seats" wait_for 10 seated 3
	[ "$1" = cgroup ] || thrown_out
	kill -9 "$daemon"
	ok "$1, killed: all threads may run anywhere" wait_for 10 all_over_the_machine
	kill $pids
	wait_for_jobs
}

# While no scheduler is loaded, seats are affinities, and the next scheduler is given all seats. The scheduler is loaded again one
# second after it was ejected for the first time, which is too short to observe seats, and four seconds after the second time.
thrown_out() {
	before=$(loads)
	echo S > /proc/sysrq-trigger
	ok "thrown out: a scheduler comes back" wait_for 60 loaded_since "$before"
	echo S > /proc/sysrq-trigger
	ok "thrown out again: threads are tied to their seats" wait_for 10 tied
	ok "when it is back, they may run anywhere" wait_for 60 all_over_the_machine
	ok "and have their seats" seated 3
}
loads() {
	dmesg | grep -c 'BPF scheduler "commonhold" enabled'
}
loaded_since() {
	[ "$(loads)" -gt "$1" ]
}
tied() {
	detail=$(affinities)
	# Three of the pools, in any combination; the first thread of each job only waits and has no seat.
	[ "$(printf '%s\n' $detail | grep -cE '^(0-1|2-3|4-5|6-7)$')" = 3 ] && [ "$(printf '%s\n' $detail | grep -c '^0-7$')" = 1 ]
}

# first-fit packs three jobs of one thread into two nodes; worst-fit gives each its own.
placed() {
	contract "$1"
	ok "$1: a daemon" start_daemon contract.toml --backend kernel
	for number in 1 2 3; do
		job "$1.$number" 1 9
		sleep 1
	done
	ok "$1: three jobs of a thread are in $2 nodes" wait_for 8 in_nodes 3 "$2"
	wait_for_jobs
	stop
}
in_nodes() {
	detail=$(pools | tr '\n' ';')
	[ "$(pools | wc -l)" -eq "$1" ] && [ "$(pools | sort -u | wc -l)" -eq "$2" ]
}

# Four jobs leave a free CPU in each node, so a fifth with two threads is split. When the first job ends, the fifth is reunited.
repartitioned() {
	contract worst-fit "$1"
	ok "repartition $1: a daemon" start_daemon contract.toml --backend kernel
	job "apart-$1.1" 1 8
	for number in 2 3 4; do job "apart-$1.$number" 1 16; done
	sleep 2
	job "apart-$1.5" 2 14
	ok "repartition $1: the fifth job lies in two nodes" wait_for 5 parted 1
	sleep 6
	ok "repartition $1: in $2 nodes when there is room" wait_for 6 parted "$(($2 - 1))"
	wait_for_jobs
	stop
}
# parted COUNT: whether COUNT jobs lie in two pools.
parted() {
	detail=$(pools | tr '\n' ';')
	[ "$(pools | grep -c ',')" -eq "$1" ]
}

# disturbed BACKEND: pinned tasks occupy a job's node; its progress is in taken-BACKEND.1.
disturbed() {
	contract worst-fit
	ok "a node taken, $1: a daemon" start_daemon contract.toml --backend "$1"
	job "taken-$1.1" 2 9
	ok "a node taken, $1: the job has a pool" wait_for 5 seated 1
	node=$(pools)
	node=${node%%:*}
	for cpu in $((2 * node)) $((2 * node + 1)); do
		taskset "$(printf %x $((1 << cpu)))" spin 8 > /dev/null &
		pids="$pids $!"
	done
	wait_for_jobs
	note "a node taken, $1: $(passes "taken-$1") passes, $(least "taken-$1" ran) % in one node"
	stop
}
# Where a seat is an affinity, the job shares its two CPUs. Where a seat is a preference, the job continues elsewhere.
taken() {
	disturbed cgroup
	disturbed kernel
	ok "a node taken: under kernel the job does half as much again as where it is tied" \
		at_least $(($(passes taken-kernel) * 100)) $(($(passes taken-cgroup) * 150))
}

beside_numad() {
	mkdir -p /var/run /var/log
	numad -S 0 -i 1:2 > numad.log 2>&1 || {
		note "numad does not run here: $(tail -n 1 numad.log)"
		return
	}
	for number in 1 2 3; do
		job "numad.$number" 2 $((18 + 2 * (3 - number)))
		sleep 1
		numad -p "${pids##* }" > /dev/null 2>&1
		sleep 1
	done
	wait_for_jobs
	table numad
	note "numad: $(tail -n 2 /var/log/numad.log | tr '\n' ';')"
	numad -i 0 > /dev/null 2>&1
}

cap_cpus
jobs alone 3 18
wait_for_jobs
table alone
beside_numad
measured held cgroup
measured held kernel
jobs five-alone 5 12
idles=$(idle)
wait_for_jobs
note "five jobs, alone: idle $idles of 1000; $(cat five-alone.? | awk '{ printf "%s ", $2 }')% in one node; $(passes five-alone) passes"
measured uneven cgroup
measured uneven kernel
measured taken
uncap_cpus               # nothing is measured from here on
killed cgroup
killed kernel
placed first-fit 2
placed worst-fit 3
repartitioned true 1
repartitioned false 2
