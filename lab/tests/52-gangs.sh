# budget: 200
# only: with --all
# seconds: 600
# needs: commonhold gang
# Gangs take turns on eight CPUs: in a quantum all threads of a gang run, or none. A trace of the kernel's switches tells how
# many ran together, how long an edge takes, and whether any thread of a gang runs that is stopped, by the scheduler and by
# signals. A killed daemon leaves nobody stopped. A gang that forks all the time is stopped as any other. Whoever is killed
# while it is stopped ends. Quanta last a second here, since a virtual CPU stands still for some milliseconds at a time.

T=/sys/kernel/tracing
[ -e $T/trace ] || mount -t tracefs tracefs $T

# contract JOB: what a job is.
contract() {
	cat > contract.toml <<-END
		version = 1
		[machine]
		cpu = "proportional"
		gangs = "latest-quantum"
		quantum = "1s"
		[unit.jobs]
		members = ["command:gang"]
		job = "$1"
	END
}
# gang_of NAME THREADS [FORKERS]: no child of this shell, whose pauses would begin anew whenever a child stops or continues.
gang_of() {
	(gang run "$1" "$2" 300 ${3:-} > "gang.$1" &)
}
# gangs: five of three threads each: two of them leave two CPUs to the daemon and to the kernel.
gangs() {
	for number in 1 2 3 4 5; do gang_of g$number 3; done
}
no_gangs() {
	! pidof gang
}
end_gangs() {
	kill -9 $(pidof gang)
	wait_for 3 no_gangs
}
# traced SECONDS: sets the figures of how gangs ran.
traced() {
	echo 0 > $T/tracing_on
	echo mono > $T/trace_clock
	echo 16384 > $T/buffer_size_kb
	echo > $T/trace
	for event in sched/sched_switch signal/signal_generate cgroup/cgroup_freeze syscalls/sys_enter_bpf; do
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
# figure NAME: of the last trace.
figure() {
	awk -v name="$1" '{ for (i = 1; i < NF; i++) if ($i == name) print $(i + 1) }' figures
}
# had: what each gang's process and threads have run, in ns, a line each.
had() {
	for pid in $(pidof gang); do
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
# take_turns NAME OVERLAP LATE
take_turns() {
	traced 12
	cp trace /out/trace.$1
	note "$1: $(cat figures)"
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
	uncapped start_daemon contract.toml --backend "$3"
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
	ok "$1: who is killed while it is stopped ends" end_gangs
	stop_daemon
}

cap_cpus
held kernel process kernel 9000 5000
held signals process user 5000 50000
