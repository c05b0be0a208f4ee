# The systems that bench/lab compares, and the contract for each. Sourced by bench/guest/measure.
#
# There are two contracts. `halves` has the units light and heavy, with four CPUs each. `tickets` has the units a, b, c and d with
# tickets 1:2:3:2; and the units p and q with 1:3, in p the sub-units x and y with 1:3, and in q the sub-units x and y with 1:1.
# `holds` says whether a system can express a contract.

CGROUPS=/sys/fs/cgroup
tree=$CGROUPS # the units' parent group; under the daemon, the daemon's group
UNITS="light heavy a b c d p p/x p/y q q/x q/y"

weight_of() {
	case $1 in
	b | d) echo 200 ;;
	c | q | p/y) echo 300 ;;
	*) echo 100 ;;
	esac
}

# place_of UNIT: the unit's control group, or that of the `filler`, which is no unit.
place_of() {
	case $1 in
	filler) echo "$CGROUPS/filler" ;;
	*) echo "$tree/$1" ;;
	esac
}

# cpus_of UNIT: the unit's share in whole CPUs, for systems that assign CPUs.
cpus_of() {
	case $1 in
	light) echo 0-3 ;;
	heavy) echo 4-7 ;;
	a) echo 0 ;;
	b) echo 1-2 ;;
	c) echo 3-5 ;;
	d) echo 6-7 ;;
	esac
}

units_of() {
	case $1 in
	halves) echo "light heavy" ;;
	tickets) echo "a b c d" ;;
	esac
}

# holds SYSTEM CONTRACT: whether the system can express a contract: halves, tickets, or nested.
holds() {
	case $1:$2 in
	plain:halves | plain:tickets) return 0 ;;
	simple:* | plain:nested | cpusets:nested | layered:nested | partition:nested) return 1 ;;
	esac
}

make_cgroups() {
	for unit in $UNITS; do
		mkdir -p "$CGROUPS/$unit"
	done
}

# control CONTROLLER: enables a controller for all units and their sub-units.
control() {
	for folder in "$CGROUPS" "$CGROUPS/p" "$CGROUPS/q"; do
		echo "+$1" > "$folder/cgroup.subtree_control"
	done
}

weigh() {
	for unit in $UNITS; do
		weight_of "$unit" > "$CGROUPS/$unit/cpu.weight"
	done
}

schedules() {
	[ "$(cat /sys/kernel/sched_ext/state)" = "$1" ]
}

# until_so SECONDS COMMAND...: retries until COMMAND succeeds.
until_so() {
	tries=$(($1 * 10))
	shift
	until "$@" 2> /dev/null; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		usleep 100000
	done
}

# load PROGRAM [OPTION...]: loads a sched_ext scheduler, which ends on SIGINT.
load() {
	"$@" > scheduler.log 2>&1 < /dev/null &
	scheduler=$!
	until_so 30 schedules enabled || {
		echo "@skip $system $1 was not loaded: $(tail -n 3 scheduler.log | tr '\n' ' ')"
		return 1
	}
}

layers() {
	echo '['
	for unit in $(units_of "$1"); do
		case $unit in a) cpus=1 ;; b | d) cpus=2 ;; c) cpus=3 ;; *) cpus=4 ;; esac
		echo '{"name":"'"$unit"'","matches":[[{"CgroupPrefix":"'"$unit"'"}]],"kind":{"Grouped":{"util_range":[0.5,0.6],'
		echo '"cpus_range":['$cpus,$cpus'],"slice_us":5000}}},'
	done
	echo '{"name":"rest","matches":[[]],"kind":{"Open":{"preempt":true}}}]'
}

# contract MODE CONTRACT: writes a contract file, with p and q if the system can express them.
contract() {
	printf 'version = 1\n[machine]\ncpu = "%s"\n' "$1"
	units=$(units_of "$2")
	[ "$2" = halves ] || ! holds "$1" nested || units="$units p p/x p/y q q/x q/y"
	for unit in $units; do
		printf '[unit.%s]\ntickets = %s\n' "$(echo "$unit" | sed 's,/,.unit.,')" "$(weight_of "$unit")"
	done
}

# Commonhold, as users run it.
run_ours() {
	contract "$@" > contract.toml
	commonhold run --backend kernel contract.toml > scheduler.log 2>&1 < /dev/null 9>&- &
	scheduler=$!
	until_so 60 commonhold status --json > /dev/null || {
		echo "@skip $system it does not hold the contract: $(tail -n 3 scheduler.log | tr '\n' ' ')"
		return 1
	}
	tree=$CGROUPS/commonhold
}

# The daemon's counters for the light unit, in the format that the loader prints at its end.
counters() {
	commonhold status --json | tr -d ' ",' | awk -F: '
		$1 == "unit" { unit = $2 }
		$1 == "switches" { counted = 1 }
		!counted || unit != "light" || $2 == "null" || told[$1]++ { next }
		sub("^called_back", "recalls", $1) || sub("^call_back_", "recall_", $1) { printf "%s %s ", $1, $2 }'
}

# load_ours: loads our scheduler without the daemon, to measure the cost of a switch. It ends when descriptor 9 is closed.
load_ours() {
	[ -p hold ] || mkfifo hold
	dispatch --at-once "$CGROUPS" "$@" < hold > scheduler.log 2>&1 9>&- &
	scheduler=$!
	exec 9> hold
	until_so 30 grep -qx ready scheduler.log || {
		echo "@skip $system it was not loaded: $(tail -n 3 scheduler.log | tr '\n' ' ')"
		return 1
	}
}

scheduler_alone() {
	options=
	for unit in $UNITS; do
		options="$options --unit $unit=$CGROUPS/$unit:$(weight_of "$unit"):lend,borrow"
	done
	[ "$1" != partition ] || options="$options --own 0=light"
	load_ours $options
}

# set_up SYSTEM CONTRACT: puts a contract in force under a system; fails, with the reason, if that is impossible.
set_up() {
	system=$1
	make_cgroups
	[ "$system" = plain ] || [ "$system" = simple ] || control cpu
	case $system in
	plain) ;;
	weights) weigh ;;
	cpusets)
		control cpuset
		for unit in $(units_of "$2"); do
			cpus_of "$unit" > "$CGROUPS/$unit/cpuset.cpus"
		done
		;;
	simple) load scx_simple ;;
	flatcg) weigh && load scx_flatcg ;;
	layered) layers "$2" > layers.json && load scx_layered f:layers.json ;;
	partition | proportional) if [ "$(nproc)" -gt 1 ]; then run_ours "$@"; else scheduler_alone "$@"; fi ;;
	esac
}

# tear_down: restores the kernel's own scheduler, without control groups.
tear_down() {
	for unit in $UNITS; do
		[ ! -d "$tree/$unit" ] || echo 1 > "$tree/$unit/cgroup.kill"
	done
	exec 9>&-
	if [ -n "${scheduler:-}" ]; then
		case $system:$tree in partition:$CGROUPS | proportional:$CGROUPS) ;; *) kill -INT $scheduler ;; esac
		until_so 30 schedules disabled || kill -KILL $scheduler
		wait $scheduler 2> /dev/null
		scheduler=
	fi
	tree=$CGROUPS
	for try in 1 2 3 4 5 6 7 8 9 10; do
		find "$CGROUPS" -mindepth 1 -depth -type d -exec rmdir {} + 2> /dev/null && break
		usleep 200000
	done
	for folder in "$CGROUPS"; do
		echo "-cpu -cpuset" > "$folder/cgroup.subtree_control" 2> /dev/null
	done
}
