# budget: 480
# only: with --all
# seconds: 800
# needs: commonhold spin work
# Seed 002: three sub-units with tickets 1:2:3 and a process for each CPU, under each discipline of the scheduler in the kernel,
# compared with the kernel's own scheduler and cgroup weights. A reload installs the next discipline. For each, the test prints,
# without checking them, the wake-up latency of a sleeping task in the first sub-unit, all shares, and the rate of CPU switches.

spinners=8

# under DISCIPLINE [ONE TWO THREE]: writes a contract whose parent unit has DISCIPLINE, and whose sub-units have these extra
# lines.
under() {
	cat > classes.toml <<-EOF
	version = 1
	[unit.class]
	discipline = "$1"
	[unit.class.unit.one]
	tickets = 100
	${2:-}
	[unit.class.unit.two]
	tickets = 200
	${3:-}
	[unit.class.unit.three]
	tickets = 300
	${4:-}
	EOF
}
# reloads: how often the daemon read the contract; loads: how often the kernel loaded a scheduler.
reloads() {
	grep -c '^reloaded' "$daemon_log"
}
loads() {
	dmesg | grep -c 'BPF scheduler "commonhold" enabled'
}
# in_force RELOADS LOADS: both counts match.
in_force() {
	[ "$(reloads)" -eq "$1" ] && [ "$(loads)" -eq "$2" ]
}
# next DISCIPLINE [LINES...]: a reload installs it.
times=0
next() {
	discipline=$1
	under "$@"
	times=$((times + 1))
	kill -HUP "$daemon"
	ok "a reload brings in $discipline, by a scheduler of its own" wait_for 20 in_force $times $loaded
	loaded=$((loaded + 1)) # the next discipline is a new scheduler
}
switched() {
	sed -n 's/^ctxt //p' /proc/stat
}
had() {
	pause 1
	switches=$(switched)
	measure "$1" $groups
	switches=$((($(switched) - switches) / $1))
}
# parts ONE TWO THREE PERCENT: the three sub-units' shares, in thousandths.
parts() {
	had 10
	ok "under $discipline, one has $1 thousandths" within "$(share_of one)" "$1" "$4"
	ok "under $discipline, two has $2" within "$(share_of two)" "$2" "$4"
	ok "under $discipline, three has $3" within "$(share_of three)" "$3" "$4"
}
# most UNIT PARTS: whether UNIT (or any unit) has nearly all CPU time; the rest is due to the rescue, which serves a task that has
# waited for five seconds.
most() {
	had 4
	case $1 in
	any) found=$(printf '%s\n' "$(share_of one)" "$(share_of two)" "$(share_of three)" | sort -n | tail -n 1) ;;
	*) found=$(share_of "$1") ;;
	esac
	ok "under $discipline, $1 of the three has nearly all" at_least "$found" "$2"
}
# sleeper: a task of the first sub-unit wakes every 10 ms beside the eight busy ones; its latency is printed with the rest.
sleeper() {
	commonhold exec class/one -- work latency 3 1000 > late 2>&1
	p50=$(sed -n 's/.* late_p50_ns \([0-9]*\).*/\1/p' late) p99=$(sed -n 's/.* late_p99_ns \([0-9]*\).*/\1/p' late)
	note "$discipline: parts $(share_of one) $(share_of two) $(share_of three), of 8 CPUs $((total / 80)) %, late by" \
		"$((${p50:-0} / 1000)) us (half), $((${p99:-0} / 1000)) us (99 %), $switches switches a second"
}
# deadlines: a sub-unit with a small demand per period receives it, whatever the others demand.
deadlines() {
	commonhold status --json | tr -d ' \n' > before.json
	had 10
	commonhold status --json | tr -d ' \n' > after.json
	for what in met missed violated; do
		eval "$what=\$((\$(switch_count after.json 'class\\/one' $what) - \$(switch_count before.json 'class\\/one' $what)))"
	done
	ok "under dwcs, one has its budget before at least 90 of 100 deadlines" at_least "$((met * 100 / (met + missed)))" 90
	ok "under dwcs, no window of one's is violated" at_most "$violated" 0
	ok "under dwcs, all three share what is left: two has at least 280 thousandths" at_least "$(share_of two)" 280
	ok "under dwcs, the two without deadlines have as much as each other" within "$(share_of two)" "$(share_of three)" 10
}

groups="commonhold/class/one commonhold/class/two commonhold/class/three"
under stride
ok "the daemon holds the contract by control groups" start_daemon classes.toml --backend cgroup || exit 1
for unit in one two three; do
	ok "$spinners processes entered class/$unit" enter_spinners "class/$unit" $spinners
done
cap_cpus
discipline="the kernel's own"
had 10
sleeper
for unit in one two three; do
	kill $(spinners_of "class/$unit")
done
kill -TERM "$daemon"
ended() { ! kill -0 "$daemon" 2> /dev/null; }
ok "the daemon ends" wait_for 30 ended
uncap_cpus
ok "the daemon holds the contract by the scheduler" start_daemon classes.toml --backend kernel || exit 1
for unit in one two three; do
	ok "$spinners processes entered class/$unit again" enter_spinners "class/$unit" $spinners
done
cap_cpus
loaded=$(loads)
for discipline in stride lottery entitlement job-currency decay rr batch gang smp fifo; do
	next $discipline
	case $discipline in
	stride | entitlement | job-currency) measured parts 167 333 500 2 ;;
	lottery) measured parts 167 333 500 10 ;; # 4,000 turns of a sixth: three standard deviations are 10 %
	decay) measured parts 71 286 643 10 ;;
	rr | smp) measured parts 333 333 333 2 ;;
	batch | gang) measured parts 333 333 333 10 ;;
	fifo) measured most any 900 ;;
	esac
	sleeper
done
next classes 'discipline = "batch"' '' 'discipline = "rr"'
measured most three 950
sleeper
next dwcs 'deadline = { period = "100ms", budget = "30ms", misses = 1, of = 10 }'
measured deadlines
sleeper
ok "the kernel ended no scheduler" is "$(grep -c "the kernel ended the scheduler" "$daemon_log")" 0
