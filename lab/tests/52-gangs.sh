# budget: 400
# only: with --all
# seconds: 900
# needs: commonhold gang
# Gangs take turns on eight CPUs: in a quantum either all threads of a gang run, or no thread does. A trace of the kernel's
# switches shows how many threads ran together, how long the change between quanta takes, and whether a thread of a stopped gang
# runs. The scheduler stops gangs, or signals do. A killed daemon leaves no gang stopped. A gang that forks all the time is
# stopped like any other. A process killed while stopped ends. Quanta last a second here, because virtual CPUs stall for
# milliseconds at a time.

T=/sys/kernel/tracing
[ -e $T/trace ] || mount -t tracefs tracefs $T

# contract JOB [QUANTUM]: JOB defines a job. With `unit`, each sub-unit is one.
contract() {
	cat > contract.toml <<-END
		version = 1
		[machine]
		cpu = "proportional"
		pools = "machine"
		gangs = "latest-quantum"
		quantum = "${2:-1s}"
		[unit.jobs]
		members = ["command:gang*"]
	END
	if [ "$1" = unit ]; then
		for number in 1 2 3 4 5 6; do
			printf '[unit.jobs.unit.g%d]\nmembers = ["command:gang%d"]\njob = "unit"\n' $number $number
		done
	else
		echo "job = \"$1\""
	fi >> contract.toml
}
# gang_of NAME THREADS [FORKERS]: not a child of this shell, whose pauses restart whenever a child stops or continues.
gang_of() {
	(./gang"${1#g}" run "$1" "$2" 300 ${3:-} > "gang.$1" &)
}
# gangs: starts five gangs of three threads each. Two gangs run at once, which leaves two CPUs to the daemon and the kernel.
gangs() {
	for number in 1 2 3 4 5; do gang_of g$number 3; done
}
all_gangs() {
	pidof gang1 gang2 gang3 gang4 gang5 gang6
}
no_gangs() {
	! all_gangs
}
end_gangs() {
	kill -9 $(all_gangs)
	wait_for 3 no_gangs
}
# traced SECONDS: sets the figures of the gangs' run.
traced() {
	echo 0 > $T/tracing_on
	echo mono > $T/trace_clock
	echo 16384 > $T/buffer_size_kb
	echo > $T/trace
	for event in sched/sched_switch signal/signal_generate cgroup/cgroup_freeze cgroup/cgroup_unfreeze syscalls/sys_enter_bpf; do
		[ ! -e $T/events/$event/enable ] || echo 1 > $T/events/$event/enable
	done
	echo 1 > $T/tracing_on
	pause "$1"
	echo 0 > $T/tracing_on
	cat $T/trace > trace
	echo 0 > $T/events/enable
	echo > $T/trace
	gang trace trace > figures
}
# figure NAME: from the last trace.
figure() {
	awk -v name="$1" '{ for (i = 1; i < NF; i++) if ($i == name) print $(i + 1) }' figures
}
# had: the run time of each gang's process and threads, in ns, one per line.
had() {
	for pid in $(all_gangs); do
		awk -v pid="$pid" '{ sum += $1 } END { printf "%d %.0f\n", pid, sum }' /proc/"$pid"/task/*/schedstat
	done | sort
}
# all_ran: whether each gang has run within half a second.
all_ran() {
	had > before
	pause 0.5
	had > after
	detail="$(awk 'NR == FNR { was[$1] = $2; next } $2 > was[$1] { ran++ } END { print ran + 0 }' before after) of $(wc -l < after)"
	[ "${detail%% *}" = "${detail##* }" ]
}
stop_daemon() {
	kill -TERM "$daemon"
	wait "$daemon"
	daemon=
}
# take_turns NAME OVERLAP LATE: checks the figures of a trace: `overlap` is at least OVERLAP, and `late` at most LATE.
take_turns() {
	traced 12
	note "$1: $(cat figures)"
	note "$1: an edge took $(figure stop) us until all threads of a gang had stopped, $(figure all) us until all of another ran, at worst $(figure stop-worst) and $(figure all-worst)"
	ok "$1: turns were seen" at_least "$(figure turns)" 8
	ok "$1: the threads of a gang run together, in 1/100 %" at_least "$(figure overlap)" "$2"
	ok "$1: no thread runs of a gang that is stopped, but in $3 millionths of the time" at_most "$(figure late)" "$3"
}
killed() {
	kill -9 "$daemon"
	wait "$daemon" 2> /dev/null
	daemon=
	pause 1
	ok "$1: all gangs go on within a second of the daemon's end" all_ran
}

# held NAME JOB BACKEND OVERLAP LATE
held() {
	contract "$2"
	ok "$1: the daemon holds it" uncapped start_daemon contract.toml --backend "$3" || return
	gangs
	pause 3
	measured take_turns "$1" "$4" "$5"
	killed "$1"
	ok "$1: the next daemon holds it" uncapped start_daemon contract.toml --backend "$3"
	gang_of g6 3 1
	pause 2
	traced 8
	note "$1, one forks: $(cat figures)"
	ok "$1: a gang that forks is stopped as the others" at_most "$(figure late)" "$5"
	pause 1
	ok "$1: a process killed while stopped ends" end_gangs
	stop_daemon
}

for number in 1 2 3 4 5 6; do cp "$(command -v gang)" gang$number; done
cap_cpus
held kernel process kernel 8500 5000
# The kernel ends a scheduler under which a task waits for half a minute. These gangs are stopped for longer, and each runs
# briefly in between.
contract process 50s
ok "kernel, long quanta: the daemon holds it" uncapped start_daemon contract.toml --backend kernel
gangs
pause 45
ok "kernel, long quanta: the scheduler has not been ended" is "$(cat /sys/kernel/sched_ext/state)" enabled
ok "kernel, long quanta: the kernel does not complain" is "$(grep -c 'kernel ended' "$daemon_log")" 0
ok "kernel, long quanta: all end" end_gangs
stop_daemon
held freezer unit cgroup 5000 50000
held signals process user 5000 50000
