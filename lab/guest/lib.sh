# What the lab's tests are written with. Sourced by lab/guest/run-tests before each of them.
#
# A test is a script: it calls `ok NAME COMMAND...` once per thing it promises, or `skip REASON` when it cannot run. It
# passes if every `ok` held and there was at least one. Whatever it starts or makes is removed after it by run-tests.

CGROUPS=/sys/fs/cgroup
HELD=$CGROUPS/commonhold            # the subtree that the daemon makes
SKIPPED=77

checks=0
failures=0
detail=
daemon_log=/tmp/daemon.log

rounds_left=0                       # see `measured`
missed=0

# ok NAME COMMAND...: one check, and succeeds if COMMAND does. COMMAND may leave in $detail what it saw, to be printed.
ok() {
	name=$1
	shift
	detail=
	checks=$((checks + 1))
	if "$@"; then
		echo "ok $checks - $name${detail:+ ($detail)}"
	elif [ $rounds_left -gt 0 ]; then
		missed=1
		checks=$((checks - 1))
		note "missed, measured again: $name (${detail:-failed: $*})"
		return 1
	else
		failures=$((failures + 1))
		echo "not ok $checks - $name (${detail:-failed: $*})"
		return 1
	fi
}

# measured FUNCTION [ARGUMENT...]: FUNCTION measures something and checks it with `ok`. What else runs on the host can spoil
# a measurement and cannot mend one, so what misses a bound is measured again, up to three times in all, and each miss shown.
measured() {
	rounds_left=2
	while
		missed=0
		"$@"
		[ $missed -ne 0 ]
	do
		rounds_left=$((rounds_left - 1))
	done
	rounds_left=0
}

# note TEXT: something worth reading beside the checks.
note() {
	echo "# $*"
}

# skip REASON: ends the test as not run; what failed before it still counts.
skip() {
	[ $failures -eq 0 ] || exit 1
	echo "skip $*"
	trap - EXIT
	exit $SKIPPED
}

finish() {
	status=$?
	trap - EXIT
	if [ $failures -ne 0 ]; then
		status=1
	elif [ $status -ne 0 ]; then
		echo "not ok - the test ended early with status $status"
		status=1                    # and no other: it could be that of a skip
	elif [ $checks -eq 0 ]; then
		echo "not ok - the test checked nothing"
		status=1
	fi
	if [ $status -ne 0 ] && [ -s "$daemon_log" ]; then
		tail -n 20 "$daemon_log" | sed 's/^/# daemon: /'
	fi
	exit $status
}

# spinners_of UNIT: the processes that spin in a unit's control group or below.
spinners_of() {
	find "$HELD/$1" -name cgroup.procs -exec cat {} + | while read -r pid; do
		read -r name < "/proc/$pid/comm" && [ "$name" = spin ] && echo "$pid"
	done 2> /dev/null
}

# enter_spinners UNIT COUNT: that many processes that spin enter a unit; fails if they are not there in time.
has_spinners() {
	[ "$(spinners_of "$1" | wc -l)" -eq "$2" ]
}
enter_spinners() {
	for i in $(seq "$2"); do
		commonhold exec "$1" -- spin 600 > /dev/null 2> "exec-$(echo "$1" | tr / -)-$i" &
	done
	wait_for 30 has_spinners "$1" "$2" || {
		detail="$(spinners_of "$1" | wc -l) are in it: $(cat exec-"$(echo "$1" | tr / -)"-* | tail -n 1)"
		return 1
	}
}

# pause SECONDS: as sleep, without starting a process, which would take time from those that are measured.
pause() {
	[ -p never ] || mkfifo never
	read -r -t "$1" nothing <> never
}
trap finish EXIT

# is ACTUAL EXPECTED
is() {
	detail="$1"
	[ "$1" = "$2" ] || {
		detail="got '$1', expected '$2'"
		return 1
	}
}

# at_least ACTUAL MINIMUM: integers.
at_least() {
	detail="$1, at least $2"
	[ "$1" -ge "$2" ]
}

# at_most ACTUAL MAXIMUM: integers.
at_most() {
	detail="$1, at most $2"
	[ "$1" -le "$2" ]
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
	}')
}

# wait_for SECONDS COMMAND...: tries until COMMAND succeeds; fails after SECONDS of the guest's time.
wait_for() {
	deadline=$(($(uptime_cs) + $1 * 100))
	shift
	until "$@" > /dev/null 2>&1; do
		if [ "$(uptime_cs)" -ge $deadline ]; then
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

# cpu_usec CGROUP: sets `usec` to the CPU time that a control group, with all below it, has had, in microseconds. Starts
# no process, so as to take no time from those that it measures.
cpu_usec() {
	while read -r key value; do
		[ "$key" = usage_usec ] && usec=$value && break
	done < "$CGROUPS/$1/cpu.stat"
}

# cap_cpus: the virtual CPUs get equal parts of the host from now on. Without it nothing measured here means anything.
cap_cpus() {
	answer=$(vmctl cap) || skip "the virtual CPUs cannot be capped on this host: ${answer#error: }"
	note "virtual CPUs capped: ${answer#ok }"
}

# cgroup_of PID, cpus_of PID, state_of PID: where a process is, the CPUs it may use, and its state (R, S, T, ...).
cgroup_of() {
	sed -n 's/^0:://p' "/proc/$1/cgroup"
}
cpus_of() {
	sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"
}
state_of() {
	sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status"
}

# disk SPEC: the device of the drive that the test's `# disks:` asks for in these words.
disk() {
	for serial in /sys/block/nvme*/device/serial; do
		read -r found < "$serial"
		found=${found%% *}
		folder=${serial%/device/serial}
		# Beside it stands each path to it, which has no device.
		[ "$found" = "$1" ] && [ -b "/dev/${folder##*/}" ] && echo "/dev/${folder##*/}" && return
	done
	return 1
}

# start_daemon CONTRACT [OPTION...]: the daemon in the background; its process is $daemon, its output $daemon_log. Fails
# if it does not hold the contract in time.
start_daemon() {
	commonhold run "$@" > "$daemon_log" 2>&1 < /dev/null &
	daemon=$!
	wait_for 20 commonhold status --json || {
		detail="the daemon does not answer: $(tail -n 3 "$daemon_log" | tr '\n' ' ')"
		return 1
	}
}
