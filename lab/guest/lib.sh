# The vocabulary of the lab's tests. lab/guest/run-tests sources this file before each test.
#
# A test is a script. It calls `ok NAME COMMAND...` once per property that it checks, or `skip REASON` if it cannot run. It passes
# if every `ok` held and there was at least one. Afterwards run-tests removes all processes and files of the test.
#
# Some checks also depend on the host: a `measured` value, a comparison of quantities, a deadline (`wait_for`). If the first check
# that failed is one of these, the test ends with the status BY_THE_CLOCK, and lab/test counts the test as skipped if the host was
# too busy meanwhile.

CGROUPS=/sys/fs/cgroup
HELD=$CGROUPS/commonhold            # the subtree that the daemon makes
SKIPPED=77
BY_THE_CLOCK=78

checks=0
failures=0
late=0                              # failures that the host may have caused
by_host=                            # not empty: the last check failed by a comparison of quantities, or a deadline
detail=                             # the details of the last check, to be printed
daemon_log=/tmp/daemon.log
daemon=                             # the daemon's process, see `start_daemon`
scheduler_log=loaded                # what the scheduler's loader prints, see `load`

# Whether the machine has rebooted in this test, see `reboot_machine`. The counts continue.
rebooted=$REBOOTED
[ -z "$rebooted" ] || { read -r name && read -r checks failures late; } < /var/lib/lab/rebooted

begins="lab: a test begins"
echo "$begins" > /dev/kmsg          # see `kernel_complaints`
capped=                             # see `cap_cpus`
measuring=                          # see `measured`
rounds_left=0
missed=0

# ok NAME COMMAND...: one check; holds if COMMAND succeeds. COMMAND may leave details in $detail, to be printed.
ok() {
	name=$1
	shift
	detail=
	by_host=
	checks=$((checks + 1))
	if "$@"; then
		echo "ok $checks - $name${detail:+ ($detail)}"
	elif [ $rounds_left -gt 0 ]; then
		missed=1
		checks=$((checks - 1))
		note "missed, measured again: $name (${detail:-failed: $*})"
		return 1
	else
		if [ -n "$measuring$by_host" ] || [ $late -ne 0 ]; then
			late=$((late + 1))
		else
			failures=$((failures + 1))
		fi
		echo "not ok $checks - $name (${detail:-failed: $*})"
		return 1
	fi
}

# measured FUNCTION [ARGUMENT...]: FUNCTION measures something and checks it with `ok`. Other load on the host can only worsen a
# measurement. So a measurement that misses a bound is repeated, up to three times in total, and each miss is printed.
measured() {
	measuring=yes
	rounds_left=2
	while
		missed=0
		"$@"
		[ $missed -ne 0 ]
	do
		rounds_left=$((rounds_left - 1))
	done
	rounds_left=0
	measuring=
}

# note TEXT: a remark to be read beside the checks.
note() {
	echo "# $*"
}

# skip REASON: ends the test, which then counts as not run, unless a check has failed before.
skip() {
	[ $((failures + late)) -eq 0 ] || exit 1
	echo "skip $*"
	trap - EXIT
	exit $SKIPPED
}

# reboot_machine: reboots the machine. The test then restarts from its beginning, with `rebooted=yes`, in an empty folder. Only
# /var/lib/lab persists.
reboot_machine() {
	vmctl reboots yes > /dev/null || skip "the emulator lets no machine start anew"
	mkdir -p /var/lib/lab
	printf '%s\n' "$0" "$checks $failures $late" > /var/lib/lab/rebooted
	trap - EXIT
	systemctl reboot
	pause 600
	exit 1
}

# finish: the test's end, whatever ended it: sets the exit status by the failures so far.
finish() {
	status=$?
	trap - EXIT
	if [ $failures -ne 0 ]; then
		status=1
	elif [ $late -ne 0 ]; then
		status=$BY_THE_CLOCK
	elif [ $status -ne 0 ]; then
		echo "not ok - the test ended early with status $status"
		status=1                    # no other status, such as that of a skip
	elif [ $checks -eq 0 ]; then
		echo "not ok - the test checked nothing"
		status=1
	fi
	if [ $status -ne 0 ] && [ -s "$daemon_log" ]; then
		tail -n 20 "$daemon_log" | sed 's/^/# daemon: /'
	fi
	exit $status
}

# spinners_of UNIT: the spinning processes in a unit's control group or below.
spinners_of() {
	find "$HELD/$1" -name cgroup.procs -exec cat {} + | while read -r pid; do
		read -r name < "/proc/$pid/comm" && [ "$name" = spin ] && echo "$pid"
	done 2> /dev/null
}

# has_spinners UNIT COUNT: whether COUNT spinning processes are in a unit.
# enter_spinners UNIT COUNT: COUNT spinning processes enter a unit; fails if they are not in it in time.
has_spinners() {
	[ "$(spinners_of "$1" | wc -l)" -eq "$2" ]
}
enter_spinners() {
	for i in $(seq "$2"); do
		commonhold exec "$1" -- spin 1200 > /dev/null 2> "exec-$(echo "$1" | tr / -)-$i" &
	done
	wait_for 30 has_spinners "$1" "$2" || {
		detail="$(spinners_of "$1" | wc -l) are in it: $(cat exec-"$(echo "$1" | tr / -)"-* | tail -n 1)"
		return 1
	}
}

# pinned UNIT: eight spinning processes enter a unit, each pinned to a CPU of its own; fails if they are not in it in time.
pinned() {
	for cpu in 0 1 2 3 4 5 6 7; do
		commonhold exec "$1" -- taskset "$(printf %x $((1 << cpu)))" spin 900 > /dev/null 2>&1 &
	done
	wait_for 30 has_spinners "$1" 8
}

# pause SECONDS: like sleep, but without starting a process, which would take time from the measured ones.
pause() {
	[ -p never ] || mkfifo never
	read -r -t "$1" nothing <> never
}
trap finish EXIT

# is ACTUAL EXPECTED: the two texts are equal.
is() {
	detail="$1"
	[ "$1" = "$2" ] || {
		detail="got '$1', expected '$2'"
		return 1
	}
}

# at_least ACTUAL MINIMUM: compares integers. A failure may be the host's.
at_least() {
	detail="$1, at least $2"
	[ "$1" -ge "$2" ] || {
		by_host=yes
		return 1
	}
}

# no_fewer ACTUAL MINIMUM: compares integers that do not depend on the host: too few is always a failure.
no_fewer() {
	detail="$1, no fewer than $2"
	[ "$1" -ge "$2" ]
}

# at_most ACTUAL MAXIMUM: compares integers. A failure may be the host's.
at_most() {
	detail="$1, at most $2"
	[ "$1" -le "$2" ] || {
		by_host=yes
		return 1
	}
}

# ratio A B: A / B with three decimals.
ratio() {
	awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) print "nan"; else printf "%.3f", a / b }'
}

# within VALUE TARGET PERCENT: VALUE differs from TARGET by at most PERCENT of TARGET.
within() {
	detail=$(awk -v v="$1" -v t="$2" -v p="$3" 'BEGIN {
		if (t == 0) { printf "target is 0"; exit 1 }
		off = (v - t) / t * 100
		printf "%+.2f %%, %s %% allowed", off, p
		exit !(off <= p && off >= -p)
	}') || {
		by_host=yes
		return 1
	}
}

# wait_for SECONDS COMMAND...: retries until COMMAND succeeds; fails after SECONDS of the guest's time.
wait_for() {
	deadline=$(($(uptime_cs) + $1 * 100))
	shift
	until "$@" > /dev/null 2>&1; do
		if [ "$(uptime_cs)" -ge $deadline ]; then
			by_host=yes
			detail="not within its time: $*"
			return 1
		fi
		usleep 20000
	done
}

# uptime_cs: the guest's clock, in hundredths of a second.
uptime_cs() {
	read -r up idle < /proc/uptime
	echo "${up%.*}${up#*.}"
}

# cpu_usec CGROUP: sets `usec` to the CPU time of a control group and its descendants, in microseconds. Starts no process, which
# would take time from the measured ones.
cpu_usec() {
	while read -r key value; do
		[ "$key" = usage_usec ] && usec=$value && break
	done < "$CGROUPS/$1/cpu.stat"
}

# sample CGROUP: sets `usec` as `cpu_usec` does, and `at` to the clock in hundredths of a second.
sample() {
	cpu_usec "$1"
	read -r up idle < /proc/uptime
	at=${up%.*}${up#*.}
}

# daemon_time: sets `daemon_ms` to the daemon's CPU time in milliseconds; 0 without a daemon.
daemon_time() {
	ran=0
	[ -z "$daemon" ] || read -r ran rest < "/proc/$daemon/schedstat"
	daemon_ms=$((ran / 1000000))
}

# idle_time: sets `idle_cs` to the sum of all CPUs' idle time, in hundredths of a second.
idle_time() {
	read -r label user nice system idle iowait rest < /proc/stat
	idle_cs=$((idle + iowait))
}

# measure SECONDS CGROUP...: sets used_NAME to the thousandths of a CPU that each control group used over SECONDS, where NAME is
# the last part of its path; `total` to their sum, `daemon_used` to the daemon's, and `busy` to the busy part of the eight CPUs,
# in hundredths of a percent. It starts no process between its first and its last sample.
measure() {
	seconds=$1
	shift
	idle_time
	daemon_time
	idle_from=$idle_cs daemon_from=$daemon_ms
	for group; do
		sample "$group"
		eval "usec_${group##*/}=$usec at_${group##*/}=$at"
	done
	from=$at
	pause "$seconds"
	total=0
	for group; do
		sample "$group"
		eval "used_${group##*/}=\$(((usec - usec_${group##*/}) / 10 / (at - at_${group##*/})))"
		eval "total=\$((total + used_${group##*/}))"
	done
	idle_time
	daemon_time
	elapsed=$((at - from))
	daemon_used=$(((daemon_ms - daemon_from) * 100 / elapsed))
	busy=$((10000 - (idle_cs - idle_from) * 10000 / 8 / elapsed))
	shown=
	for group; do
		shown="$shown ${group##*/} $(used_of "$group"),"
	done
	note "thousandths of a CPU:$shown the daemon $daemon_used; machine used $busy / 10000"
}

# used_of CGROUP: the CPU use by the last `measure`, in thousandths of a CPU.
# share_of CGROUP: its part of the total, in thousandths.
used_of() {
	eval "echo \$used_${1##*/}"
}
share_of() {
	echo $(($(used_of "$1") * 1000 / total))
}

# cap_cpus: from now on the virtual CPUs get equal parts of the host. Measurements on uncapped CPUs are meaningless.
cap_cpus() {
	answer=$(vmctl cap) || skip "the virtual CPUs cannot be capped on this host: ${answer#error: }"
	note "virtual CPUs capped: ${answer#ok }"
	capped=yes
}
uncap_cpus() {
	vmctl uncap > /dev/null
	capped=
}

# uncapped COMMAND...: for unmeasured commands that would take long on capped CPUs.
uncapped() {
	[ -z "$capped" ] || vmctl uncap > /dev/null
	"$@"
	outcome=$?
	[ -z "$capped" ] || vmctl cap > /dev/null
	return $outcome
}

# cgroup_of PID, cpus_of PID, state_of PID: a process's control group, its allowed CPUs, and its state (R, S, T, ...).
cgroup_of() {
	sed -n 's/^0:://p' "/proc/$1/cgroup"
}
cpus_of() {
	sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"
}
state_of() {
	sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status"
}

# disk SPEC: the device of a drive of the test; SPEC is the drive's specification in the test's line `# disks:`.
disk() {
	for serial in /sys/block/nvme*/device/serial; do
		read -r found < "$serial"
		folder=${serial%/device/serial}
		# Under native multipath the kernel also has a device for each path to a drive. Such a device has no number.
		[ "$found" = "$1" ] && [ -e "$folder/dev" ] && echo "/dev/${folder##*/}" && return
	done
	return 1
}

# start_daemon CONTRACT [OPTION...]: starts the daemon in the background. $daemon is its process, and $daemon_log the file of its
# output. Fails if the daemon does not hold the contract in time.
start_daemon() {
	commonhold run "$@" > "$daemon_log" 2>&1 < /dev/null &
	daemon=$!
	wait_for 20 commonhold status --json || {
		detail="the daemon does not answer: $(tail -n 3 "$daemon_log" | tr '\n' ' ')"
		return 1
	}
}

# load OPTION...: loads the scheduler without the daemon, with the program `dispatch` (`loader`). Processes in no unit use little
# CPU time and must not wait.
# unload: unloads it. The loader ends when descriptor 9 is closed, so processes that a test starts must close their copy: `9>&-`.
load() {
	uncapped load_scheduler "$@"
}
load_scheduler() {
	[ -p hold ] || mkfifo hold
	dispatch --at-once "$CGROUPS" "$@" < hold > $scheduler_log 2>&1 9>&- &
	loader=$!
	exec 9> hold
	wait_for 60 grep -qx ready $scheduler_log || {
		detail="not ready: $(tail -n 5 $scheduler_log | tr '\n' ' ')"
		return 1
	}
}
unload() {
	exec 9>&-
	uncapped wait $loader
}

# scheduling STATE: whether sched_ext is in STATE, `enabled` or `disabled`.
scheduling() {
	is "$(cat /sys/kernel/sched_ext/state)" "$1"
}

# counter UNIT NAME: a unit's counter, from the lines that the loader prints at its end.
counter() {
	awk -v unit="$1" -v name="$2" \
		'$1 == "unit" && $2 == unit { for (i = 3; i < NF; i += 2) if ($i == name) print $(i + 1) }' $scheduler_log
}

# spinners CGROUP COUNT [NICE]: COUNT spinning processes enter a control group. A thread of each process spins, and inherits the
# process's nice value.
# members CGROUP: its processes. are_members CGROUP COUNT: whether it has COUNT processes.
spinners() {
	for i in $(seq "$2"); do
		sh -c "renice -n ${3:-0} \$\$ && echo \$\$ > $CGROUPS/$1/cgroup.procs && exec spin 600" > /dev/null 9>&- &
	done
}
members() {
	cat "$CGROUPS/$1/cgroup.procs"
}
are_members() {
	[ "$(members "$1" | wc -l)" -eq "$2" ]
}

# switch_count FILE UNIT FIELD: a counter of the daemon's scheduler for a unit. FILE has the output of `commonhold status --json`
# without blanks. (It comes from `switches`: the daemon's accounts, from plans and samples, have fields of the same names.)
switch_count() {
	# The file has no trailing newline, so neither has sed's output.
	echo "$(sed "s/\"accounts\":.*//; s/.*\"switches\":\[.*{\"unit\":\"$2\",[^][}]*\"$3\":\([0-9]*\).*/\1/" "$1")"
}

# kernel_complaints [PATTERN]: prints the kernel's messages about sched_ext, and its warnings, such as the deprecation of a kfunc.
# Left out are messages from before the test, since earlier tests in this boot provoke messages on purpose; the loading and
# unloading of our scheduler; lines that match PATTERN; and a remark of 6.12 that cpu.weight has no effect, which is correct: the
# daemon gives weights to the scheduler directly.
kernel_complaints() {
	dmesg | awk -v begins="$begins" 'index($0, begins) { n = 0 } { said[n++] = $0 } END { for (i = 0; i < n; i++) print said[i] }' |
		grep -e sched_ext -e 'WARNING:' |
		grep -v -x '.*sched_ext: BPF scheduler "commonhold" \(enabled\|disabled (unregistered from user space)\)' |
		grep -v -e "${1:-^$}" -e '"commonhold" does not implement cgroup cpu.weight'
}

# value UNIT FILE: the contents of a file of a unit's control group.
value() {
	cat "$HELD/$1/$2"
}

# statement: writes all accounts to status.json, a line for each unit.
# field UNIT FIELD: sets `found` to a figure of the unit's memory account in status.json, or to 0 if the unit has no account yet.
# account UNIT FIELD: `statement` and `field`.
statement() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' > status.json
}
field() {
	found=$(sed -n "/^{\"unit\":\"$1\"/ s/.*\"memory\":{\(\"entitled[^}]*\)}.*/,\1/p" status.json | sed -n "s/.*,\"$2\":\([0-9]*\).*/\1/p")
	found=${found:-0}
}
account() {
	statement
	field "$@"
}

# touch_in UNIT NAME MIB PASSES [FILE [SKIP]]: starts a process that touches memory; its passes go to NAME.log.
touch_in() {
	unit=$1 name=$2
	shift
	commonhold exec "$unit" -- work touch "$@" > "$name.log" 2>&1 &
}

# passes NAME COUNT: whether the process of `touch_in` has made at least COUNT passes.
passes() {
	[ "$(grep -c '^pass' "$1.log")" -ge "$2" ]
}

# bytes UNIT: sets `bytes` to a unit's transfers so far, on the disk whose number (MAJOR:MINOR) is in `number`.
bytes() {
	bytes=0
	while read -r device_number rest; do
		[ "$device_number" = "$number" ] || continue
		for word in $rest; do
			case $word in rbytes=* | wbytes=*) bytes=$((bytes + ${word#*=})) ;; esac
		done
	done < "$HELD/$1/io.stat"
}
