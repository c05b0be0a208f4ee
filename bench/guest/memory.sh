# In the guest: a light and a heavy unit with equal parts of the memory, under several kinds of control, one after the other.
# Prints a line per measurement, which begins with `result`: SYSTEM WHAT VALUE.
PATH=/job:$PATH
. /job/lib.sh
trap - EXIT
slow=$(disk 4096:300000000)
own=$(disk 1024:100000000)
mib=1048576
set_mib=300                             # what the light unit works with, of a file on a drive of its own
want_mib=256
rounds=8
mount -t debugfs none /sys/kernel/debug 2> /dev/null

# meminfo KEY: in bytes.
meminfo() {
	echo $(($(sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo) * 1024))
}
# current UNIT: what its control group is charged.
current() {
	cat "$base/$1/memory.current"
}
# within_unit UNIT COMMAND...
within_unit() {
	unit=$1
	shift
	case $system in
	ours | patient) commonhold exec "$unit" -- "$@" ;;
	*) sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' - "$base/$unit" "$@" ;;
	esac
}
# started NAME LOG: its first pass is over.
started() {
	grep -q '^pass 1:' "$1.log"
}
# job NAME: the light unit's set, read once and then again each second: the middle of what those passes took, in ms.
job() {
	within_unit owner work sum light $set_mib 1 "$own" > "$1.log" 2>&1 &
	wait_for 60 started "$1" || cat "$1.log"
	for round in $(seq $rounds); do
		pause 1
		kill -USR1 $(pidof light)
	done
	wait_for 30 done_passes "$1" $((rounds + 1))
	kill -KILL $(pidof light)
	sed -n 's/^pass [0-9]*: \([0-9]*\)\..*/\1/p' "$1.log" | tail -n $rounds | sort -n | sed -n "$((rounds / 2))p"
}
done_passes() {
	[ "$(grep -c '^pass' "$1.log")" -ge "$2" ]
}
scan() {
	within_unit borrower work touch scan 1700 0 "$slow" > scan.log 2>&1 &
}
end_load() {
	pids=$(pidof scan light small wants reads filler spin)
	[ -z "$pids" ] || kill -KILL $pids
	pause 1
	echo 3 > /proc/sys/vm/drop_caches
	pause 1
}
killed() {
	sum=0
	for unit in owner borrower; do
		count=$(sed -n 's/^oom_kill //p' "$base/$unit/memory.events")
		sum=$((sum + count))
	done
	echo $sum
}
# account UNIT FIELD: of the memory that commonhold keeps accounts of.
account() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' |
		sed -n "/^{\"unit\":\"$1\"/ s/.*\"memory\":{\(\"entitled[^}]*\)}.*/,\1/p" | sed "s/.*,\"$2\":\([0-9]*\).*/\1/"
}

begin() {
	case $system in
	ours | patient)
		base=$HELD
		contract=/job/memory.toml
		[ $system = ours ] || contract=/job/memory-patient.toml
		start_daemon $contract --backend cgroup || cat "$daemon_log"
		;;
	*)
		base=$CGROUPS/bench
		echo "+memory" > $CGROUPS/cgroup.subtree_control
		mkdir -p $base
		echo "+memory" > $base/cgroup.subtree_control
		mkdir -p $base/owner $base/borrower
		;;
	esac
	case $system in
	low)
		echo $((half * 2)) > $base/memory.low
		for unit in owner borrower; do echo $half > $base/$unit/memory.low; done
		;;
	high)
		for unit in owner borrower; do echo $half > $base/$unit/memory.high; done
		;;
	esac
}
end() {
	end_load
	case $system in
	ours | patient)
		kill -TERM "$daemon"
		wait "$daemon"
		;;
	*)
		for unit in owner borrower; do rmdir "$base/$unit"; done
		rmdir $base
		echo "-memory" > $CGROUPS/cgroup.subtree_control
		;;
	esac
}
# use_of_idle: what the borrower uses beyond its half, in percent of what the owner does not use of its own, less the reserve.
use_of_idle() {
	idle=$((half - $(current owner) - total * 8 / 100))
	echo $((($(current borrower) - half) * 100 / idle))
}

echo 3 > /proc/sys/vm/drop_caches
total=$(meminfo MemTotal)
half=$(($(meminfo MemAvailable) / 2))
for system in ${SYSTEMS:-none low high ours patient}; do
	begin
	# Alone: the emulator's second core is kept as busy as it will be.
	spin 600 > /dev/null 2>&1 &
	echo "result $system alone $(job alone)"
	end_load

	# The owner needs little, and then 256 MiB at once.
	within_unit owner work touch small 16 1 > small.log 2>&1 &
	scan
	pause 25
	echo "result $system shared $(use_of_idle)"
	within_unit owner work touch wants $want_mib 1 > wants.log 2>&1 &
	wait_for 60 started wants
	echo "result $system had $(sed -n 's/^pass 1: \([0-9]*\)\..*/\1/p' wants.log)"
	pause 3
	[ $base != $HELD ] || echo "result $system called $(($(account owner call_back_max_ns) / 1000000))"
	kill -KILL $(pidof wants small)
	pause 2

	# Its own work beside the other's.
	echo "result $system beside $(job beside)"
	within_unit owner work cached reads "$own" $set_mib 6 > reads.log 2>&1
	for part in p50 p99 max; do
		echo "result $system read_$part $(($(sed -n "s/.*read_${part}_ns \([0-9]*\).*/\1/p" reads.log) / 1000))"
	done
	echo "result $system killed $(killed)"
	end
done
