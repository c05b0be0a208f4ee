# Measures, in a guest whose clock counts instructions, a light and a heavy unit with equal shares of the memory, under one kind
# of control, in phases. Prints a line per measurement: `result WHAT VALUE`. Variables: system, phases.
PATH=/job:$PATH
. /job/lib.sh
trap - EXIT
# Two drives that use the guest's clock: 200 us for a request of up to 64 KiB, one at a time. They hold no data.
insmod /lib/modules/configfs.ko
insmod /lib/modules/null_blk.ko nr_devices=2 gb=8 irqmode=2 completion_nsec=200000 hw_queue_depth=1 submit_queues=1
heavys=/dev/nullb0 own=/dev/nullb1
mib=1048576
set_mib=300                             # the light unit's set
want_mib=300 back_mib=256
job_mib=700                             # half of the memory holds one of these, but not two
make_mib=250
scan_mib=2600                           # more than the memory, so that it waits for the drive and not for the host's CPU
rounds=6                                # enough to include the daemon's periodic work in proportion
# Keep each drive open: closing a drive drops its cache.
exec 7< $heavys 8< $own
mount -t debugfs none /sys/kernel/debug 2> /dev/null

# meminfo KEY: a value of /proc/meminfo, in bytes.
meminfo() {
	echo $(($(sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo) * 1024))
}
# current UNIT: the memory charged to the unit's control group.
current() {
	cat "$base/$1/memory.current"
}
tell() {
	echo "result $1 $2"
}
within_group() {
	group=$1
	shift
	sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' - "$group" "$@"
}
# within_unit UNIT COMMAND...: runs COMMAND in a unit.
within_unit() {
	unit=$1
	shift
	if is_ours; then
		commonhold exec "$unit" -- "$@"
	else
		within_group "$base/$unit" "$@"
	fi
}
is_ours() {
	[ $system = ours ]
}
done_passes() {
	[ "$(grep -c '^pass' "$1.log")" -ge "$2" ]
}
# came_back UNIT: the unit's refaults so far.
came_back() {
	sed -n 's/^workingset_refault_[a-z]* //p' "$base/$1/memory.stat" | { sum=0; while read -r n; do sum=$((sum + n)); done; echo $sum; }
}
# daemon_us: sets `daemon_us` to the CPU time of all threads of the daemon so far.
daemon_us() {
	daemon_us=0
	for thread in /proc/${daemon:-none}/task/*/schedstat; do
		[ -r "$thread" ] && read -r ran rest < "$thread" && daemon_us=$((daemon_us + ran / 1000))
	done
}
# job NAME UNIT MIB: the unit reads a set once and then again each second: sets `mean` to the time of those passes, in us, `back`
# to the refaults, and `daemon_permille` to the daemon's CPU time, in thousandths of a CPU.
job() {
	within_unit "$2" work sum light "$3" 1 $own > "$1.log" 2>&1 &
	wait_for 60 done_passes "$1" 1 || cat "$1.log"
	before=$(came_back "$2")
	daemon_us
	began_us=$daemon_us from=$(uptime_cs)
	for round in $(seq $rounds); do
		pause 1
		kill -USR1 $(pidof light)
		wait_for 30 done_passes "$1" $((round + 1))
	done
	daemon_us
	daemon_permille=$(((daemon_us - began_us) / 10 / ($(uptime_cs) - from)))
	back=$(($(came_back "$2") - before))
	kill -KILL $(pidof light)
	mean=$(awk '$1 == "pass" && $2 != "1:" { sum += $3; n++ } END { printf "%d", n ? sum / n * 1000 : 0 }' "$1.log")
}
# pulsed UNIT MIB SKIP: the unit touches a set on the heavy units' drive each second from now on.
pulsed() {
	within_unit "$1" work touch pulse "$2" 1 $heavys "$3" > "pulse-$1-$3.log" 2>&1 &
	wait_for 60 done_passes "pulse-$1-$3" 1
}
pulses() {
	while pause 1; kill -USR1 $(pidof pulse) 2> /dev/null; do :; done
}
scan() {
	within_unit borrower work touch scan $scan_mib 0 $heavys > scan.log 2>&1 &
}
end_load() {
	pids=$(pidof pulse scan light small wants reads dd)
	[ -z "$pids" ] || kill -KILL $pids
	pause 1
	echo 3 > /proc/sys/vm/drop_caches
	pause 2
}
killed() {
	sum=0
	for unit in $units; do
		count=$(sed -n 's/^oom_kill //p' "$base/$unit/memory.events")
		sum=$((sum + count))
	done
	echo $sum
}
# account UNIT FIELD: a figure of the unit's memory account, by the daemon's status.
account() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' |
		sed -n "/^{\"unit\":\"$1\"/ s/.*\"memory\":{\(\"entitled[^}]*\)}.*/,\1/p" | sed "s/.*,\"$2\":\([0-9]*\).*/\1/"
}

# begin CONTRACT UNIT...: puts control in force, with equal shares of the memory.
begin() {
	contract=$1
	shift
	units=$*
	part=$(($(meminfo MemAvailable) / $#))
	if is_ours; then
		base=$HELD
		start_daemon /job/$contract.toml --backend cgroup --verbose || cat "$daemon_log"
		return
	fi
	base=$CGROUPS/bench
	echo "+memory +io" > $CGROUPS/cgroup.subtree_control
	mkdir -p $base
	echo "+memory +io" > $base/cgroup.subtree_control
	case $system in
	low | static) echo $((part * $#)) > $base/memory.low ;;
	esac
	for unit; do
		mkdir -p $base/$unit
		case $system in
		low | static) echo $part > $base/$unit/memory.low ;;
		esac
		case $system in
		high) echo $part > $base/$unit/memory.high ;;
		static)
			echo $((part * 3 / 2)) > $base/$unit/memory.high
			[ ! -e $base/$unit/io.weight ] || echo 100 > $base/$unit/io.weight
			;;
		esac
	done
}
end() {
	end_load
	tell killed-$phase "$(killed)"
	if is_ours; then
		kill -TERM "$daemon"
		wait "$daemon"
		cp "$daemon_log" /out/daemon-$phase.log
	else
		for unit in $units; do rmdir $base/$unit; done
		rmdir $base
	fi
}

# The reference runs beside a filler that does the heavy unit's work in 64 MiB, because the clock advances with the instructions
# of all CPUs.
fill() {
	echo "+memory" > $CGROUPS/cgroup.subtree_control
	mkdir -p $CGROUPS/filler
	echo $((64 * mib)) > $CGROUPS/filler/memory.max
	within_group $CGROUPS/filler "$@" > filler.log 2>&1 &
}
end_filler() {
	kill -KILL $(cat $CGROUPS/filler/cgroup.procs)
	wait_for 20 rmdir $CGROUPS/filler
}
# isolation: measures the light unit's set beside a heavy unit.
isolation() {
	fill work touch scan $scan_mib 0 $heavys
	job alone owner $set_mib
	tell alone $mean
	within_unit owner work cached reads $own $set_mib 3 > reads.log 2>&1
	tell_reads alone
	end_filler
	end_load
	scan
	pause 4
	job beside owner $set_mib
	tell beside $mean
	tell beside_back $back
	tell beside_daemon $daemon_permille
	within_unit owner work cached reads $own $set_mib 6 > reads.log 2>&1
	tell_reads read
}
tell_reads() {
	for part in p50 p99 max; do
		tell "$1_$part" $(($(sed -n "s/.*read_${part}_ns \([0-9]*\).*/\1/p" reads.log) / 1000))
	done
}

# sharing: the owner needs little memory, and then much at once. Measures the part of the idle memory that the heavy unit borrows,
# and the time until the memory returns.
sharing() {
	within_unit owner work touch small 16 1 > small.log 2>&1 &
	scan
	# A unit that reads so much for the first time is not short yet: refaults begin in the second round.
	pause 15
	# The heavy unit's use beyond its half, in percent of the owner's unused memory less the reserve.
	idle=$((part - $(current owner) - $(meminfo MemTotal) * 8 / 100))
	tell sharing-shared $((($(current borrower) - part) * 100 / idle))
	wants
}
# wants: the owner wants $want_mib at once. Measures the time from the first growth of its use until the borrower has $back_mib
# less.
wants() {
	had=$(current borrower)
	from=$(($(current owner) + 4 * mib))
	begun=
	within_unit owner work touch wants $want_mib 1 > wants.log 2>&1 &
	deadline=$(($(uptime_cs) + 2000))
	# Builtins only: start no process.
	while read -r up idle < /proc/uptime && now=${up%.*}${up#*.} && [ "$now" -lt $deadline ]; do
		read -r owners < $base/owner/memory.current
		read -r borrowers < $base/borrower/memory.current
		[ -n "$begun" ] || [ "$owners" -lt $from ] || begun=$now
		[ $borrowers -gt $((had - back_mib * mib)) ] || { tell $phase-back $(((now - begun) * 10)); break; }
		pause 0.01
	done
	wait_for 60 done_passes wants 1
	tell $phase-had "$(sed -n 's/^pass 1: \([0-9]*\)\..*/\1/p' wants.log)"
	pause 3
	! is_ours || tell $phase-called $(($(account owner call_back_max_ns) / 1000000))
}
# dirty: like `sharing`, but the heavy unit writes, so that its dirty pages must be written before they can be reclaimed, and the
# owner wants enough memory to require that.
dirty() {
	within_unit owner work touch small 16 1 > small.log 2>&1 &
	within_unit borrower dd if=/dev/zero of=$heavys bs=64k count=100000 2> /dev/null &
	pause 10
	! is_ours || tell dirty-lent $(($(account borrower borrowed) / mib))
	tell dirty-dirty $(($(sed -n 's/^file_dirty //p' $base/borrower/memory.stat) / mib))
	want_mib=$job_mib
	wants
}

# pair: seed 000, section 4.4: each unit has memory for one job. First each unit runs one job, and then the other unit runs two.
pair() {
	pulsed borrower $job_mib 0
	fill sh -c "work touch pulse $job_mib 1 $heavys $((2 * job_mib)) & exec work touch pulse $job_mib 1 $heavys $((3 * job_mib))"
	pulses &
	job balanced owner $job_mib
	tell balanced $mean
	end_filler
	pulsed borrower $job_mib $job_mib
	pause 5
	job unbalanced owner $job_mib
	tell unbalanced $mean
	tell pair_back $back
	tell pair_daemon $daemon_permille
	tell pair_kept $(($(current owner) / mib))
}

# four: seed 000, section 1.1, MP4+D: four units with a make each, whose sources fit into the unit's share, and a dump by the
# fourth unit to the first unit's drive.
four() {
	skip=$make_mib
	for unit in b c d; do
		pulsed $unit $make_mib $skip
		skip=$((skip + make_mib))
	done
	pulses &
	fill dd if=/dev/zero of=$own bs=64k seek=20000 count=60000
	job four a $make_mib
	tell four-alone $mean
	end_filler
	within_unit d dd if=/dev/zero of=$own bs=64k seek=20000 count=60000 2> /dev/null &
	pause 5
	job dump a $make_mib
	tell dump $mean
	tell dump_back $back
}

# Wait for the kernel's own work after its start.
sleep 10
for phase in $phases; do
	case $phase in
	four) begin four a b c d ;;
	*) begin memory owner borrower ;;
	esac
	$phase
	end
done
