# budget: 240
# only: with --all
# seconds: 500
# needs: commonhold spin
# Seed 002: three sub-units with tickets 1:2:3 and a process for each CPU, under each discipline that the scheduler in the
# kernel knows. A reload brings in the next one.

spinners=8

# under DISCIPLINE: the contract, with that discipline of the unit around them.
under() {
	cat > classes.toml <<-EOF
	version = 1
	[unit.class]
	discipline = "$1"
	[unit.class.unit.one]
	tickets = 100
	[unit.class.unit.two]
	tickets = 200
	[unit.class.unit.three]
	tickets = 300
	EOF
}
# reloads: how often the contract was read again; loads: how often the kernel took a scheduler.
reloads() {
	grep -c '^reloaded' "$daemon_log"
}
loads() {
	dmesg | grep -c 'BPF scheduler "commonhold" enabled'
}
# in_force RELOADS LOADS: both were as often.
in_force() {
	[ "$(reloads)" -eq "$1" ] && [ "$(loads)" -eq "$2" ]
}
# parts ONE TWO THREE PERCENT: what the three have, in thousandths.
parts() {
	pause 1
	measure 10 $groups
	ok "under $discipline, one has $1 thousandths" within "$(share_of one)" "$1" "$4"
	ok "under $discipline, two has $2" within "$(share_of two)" "$2" "$4"
	ok "under $discipline, three has $3" within "$(share_of three)" "$3" "$4"
}
# first PERCENT: the one that came first has nearly all; who waited for five seconds is rescued.
first() {
	pause 1
	measure 4 $groups
	most=$(printf '%s\n' "$(share_of one)" "$(share_of two)" "$(share_of three)" | sort -n | tail -n 1)
	ok "under fifo, one of the three has nearly all" at_least "$most" "$1"
}

groups="commonhold/class/one commonhold/class/two commonhold/class/three"
under stride
ok "the daemon holds the contract" start_daemon classes.toml --backend kernel || exit 1
for unit in one two three; do
	ok "$spinners processes entered class/$unit" enter_spinners "class/$unit" $spinners
done
cap_cpus
times=0
loaded=$(loads)
for discipline in stride lottery entitlement job-currency decay rr batch gang fifo; do
	under $discipline
	[ $discipline = stride ] || loaded=$((loaded + 1)) # the tasks are ordered anew
	times=$((times + 1))
	kill -HUP "$daemon"
	ok "a reload brings in $discipline, by a scheduler of its own" wait_for 20 in_force $times $loaded
	case $discipline in
	stride | entitlement | job-currency) measured parts 167 333 500 2 ;;
	lottery) measured parts 167 333 500 10 ;; # 4,000 turns of a sixth: three standard deviations are 10 %
	decay) measured parts 71 286 643 10 ;;
	rr) measured parts 333 333 333 2 ;;
	batch | gang) measured parts 333 333 333 10 ;;
	fifo) measured first 900 ;;
	esac
done
ok "the kernel ended no scheduler" is "$(grep -c "the kernel ended the scheduler" "$daemon_log")" 0
