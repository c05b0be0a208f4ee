# budget: 105
# seconds: 420
# needs: commonhold dispatch spin
# The kernel backend, which `auto` selects here:
# - processes are in their units, idle CPUs are lent, and no CPU set interferes;
# - control groups hold the contract while the scheduler is ejected or has failed, and the scheduler comes back;
# - CPUs may go offline and come back;
# - nothing is left when the daemon is killed;
# - a process that executes a program is in its unit before its first instruction.

ops=/sys/kernel/sched_ext/root/ops
cpu=/sys/devices/system/cpu/cpu7/online

# doctor_says NAME STATE: the state in one row.
commonhold doctor --json | tr -d ' \n' > doctor
doctor_says() {
	grep -q "\"name\":\"$(echo "$1" | tr -d ' ')\",\"state\":\"$2\"" doctor
}
doctor_says 'our scheduler' yes || skip "commonhold was built without the scheduler: see scripts/features"

said() {
	grep -q -- "$1" "$daemon_log"
}
# status_says TEXT
status_says() {
	commonhold status > status.txt
	grep -q -- "$1" status.txt
}
# sets UNIT...: the CPU sets of those units, in order; `-` for an empty one.
sets() {
	for unit in "$@"; do
		found=$(cat "$HELD/$unit/cpuset.cpus")
		printf '%s ' "${found:--}"
	done
}
# Kernels such as 6.12 refuse an empty set for a group with processes: there it has all CPUs.
no_sets() {
	case $(sets a b c d) in "- - - - " | "0-7 0-7 0-7 0-7 ") ;; *) return 1 ;; esac
}
all_sets() {
	case " $(sets a b c d)" in *" - "*) return 1 ;; esac
}
# sleeper UNIT: a sleeping process that needs no CPU time, so that the unit is active and holds its share.
sleeper() {
	commonhold exec "$1" -- sleep 600 > /dev/null 2>&1 &
}
sleepers_are_in() {
	for unit in "$@"; do
		[ -n "$(cat "$HELD/$unit/cgroup.procs")" ] || return 1
	done
}

ok "the doctor sees nothing missing" doctor_says 'kernel backend' yes || commonhold doctor
ok "the daemon holds the contract" start_daemon /job/contracts/four-units.toml || exit 1
ok "by the kernel backend, unasked" said 'held by the kernel backend (the best'
ok "it schedules" scheduling enabled
ok "under its name" is "$(cat $ops)" commonhold
ok "status tells" status_says 'held by the kernel backend'

for unit in b c d; do sleeper $unit; done
ok "b, c and d hold their shares" wait_for 20 sleepers_are_in b c d
ok "a is at work" enter_spinners a 8
spinner=$(spinners_of a | head -n 1)
ok "a's processes are in its control group" is "$(cgroup_of "$spinner")" /commonhold/a
commonhold exec d -- sh -c 'spin 600 > /dev/null & wait' > /dev/null 2>&1 &
ok "a member's child is a member" wait_for 20 has_spinners d 1
kill -KILL $(spinners_of d)
ok "no CPU set restricts a process" no_sets
ok "nor does an affinity" is "$(cpus_of "$spinner")" 0-7
# 1 of 8 tickets.
ok "the weights are there for when the scheduler goes" is "$(cat "$HELD/a/cpu.weight")" 1250
cap_cpus

lends() {
	sleep 1
	measure 5 commonhold/a commonhold/b
	ok "a, which holds one CPU, has those that the others leave idle" at_least $((used_a + daemon_used)) 7000
}
measured lends
ok "b comes" enter_spinners b 8
isolates() {
	sleep 1
	measure 5 commonhold/a commonhold/b
	ok "b has its two at once, and its part of the idle CPUs" at_least "$used_b" 1900
	ok "a has no less than its own" at_least "$used_a" 900
	ok "the machine is in use" at_least $((total + daemon_used)) 7000
}
measured isolates
uncap_cpus

# switched UNIT FIELD...: the sum of these counters of the scheduler for a unit.
switched() {
	unit=$1
	shift
	sum=0
	for field; do
		sum=$((sum + $(switch_count status.json "$unit" "$field")))
	done
}
# Both count from the unit's beginning, the scheduler up to each CPU's last switch: so they are compared while none of the unit's
# tasks runs. (A busy host delays ticks, and thereby switches: the counts differed by up to 1.6 s of CPU time.)
counts_agree() {
	cpu_usec "commonhold/$1"; before=$usec
	commonhold status --json | tr -d ' \n' > status.json
	cpu_usec "commonhold/$1"; after=$usec
	switched "$1" home_ns borrowed_ns visiting_ns shared_ns
	sum=$((sum / 1000))
	detail="$sum us by the scheduler's count, $before to $after by the kernel's"
	[ $sum -ge $((before - before / 100)) ] && [ $sum -le $((after + after / 100)) ]
}
kill -STOP $(spinners_of a) $(spinners_of b)
sleep 1
for unit in a b; do
	ok "the CPU time of $unit, the scheduler and the kernel count alike, within 1 %" counts_agree $unit
done
kill -CONT $(spinners_of a) $(spinners_of b)
switched b borrowed_ns; borrowed=$sum
switched a lent_ns; lent=$sum
ok "b's borrowed time is reported" at_least "$borrowed" 1000000
# Kernel threads are in the unit `kernel`, which never has strays; and no task here is pinned to another unit's CPUs.
switched kernel switches
ok "the kernel's threads are counted as the kernel's" no_fewer "$sum" 1
for unit in kernel shared a b c d; do
	of=$unit
	switched "$of" strays
	ok "there is no stray of $of" is "$sum" 0
done
switched b called_back
ok "b called CPUs back" at_least "$sum" 1
ok "status shows it all" status_says 'at home'
sed -n '/at home/,/^$/p; /waited/,/^$/p; /moved in/,/^$/p' status.txt | sed 's/^/# /'

# Ejected: control groups hold at once, and the scheduler comes back after a second.
echo S > /proc/sysrq-trigger
ok "thrown out, it no longer schedules" wait_for 10 scheduling disabled
ok "status reports it, with the kernel's reason" wait_for 20 said 'problem: the kernel ended the scheduler: .*sysrq.*loaded again in 1 s'
ok "CPU sets are in force" wait_for 20 said 'held by the cgroup backend (not by kernel'
ok "it comes back" wait_for 60 scheduling enabled
ok "that is said" wait_for 20 said 'held by the kernel backend (again)'
ok "CPU sets are gone" wait_for 20 no_sets
# An error in it ends it the same way. (The process that triggers the error continues, like all others.)
ok "its tables are spoilt" dispatch --break "$HELD/c"
sleeper c
ok "an error ends it, and is reported" wait_for 20 said 'problem: the kernel ended the scheduler: runtime error: non-existent DSQ'
ok "the second time, it is given longer" said 'loaded again in 4 s'
ok "every unit has its CPU set" wait_for 20 all_sets
ok "status tells since when, and why" wait_for 5 status_says 'The kernel backend has not held it for .*the kernel ended the scheduler'
grep 'backend' status.txt | sed 's/^/# /'
ok "it comes back again" wait_for 60 status_says 'held by the kernel backend'

echo 0 > $cpu
ok "a CPU goes" wait_for 20 said 'CPUs changed: now 0-6'
ok "the scheduler is there without it" wait_for 60 status_says 'held by the kernel backend'
ok "and schedules" wait_for 20 scheduling enabled
echo 1 > $cpu
ok "the CPU comes back" wait_for 20 said 'CPUs changed: now 0-7'
ok "the scheduler is there with it" wait_for 60 status_says 'held by the kernel backend'
ok "and schedules, on all CPUs" wait_for 20 scheduling enabled
ok "none of that was a failure" is "$(grep -c '^problem: the kernel ended the scheduler' "$daemon_log")" 2
ok "processes are where they were" is "$(spinners_of a | wc -l) $(spinners_of b | wc -l)" "8 8"

kill -KILL "$daemon"
ok "with the daemon, the scheduler goes" wait_for 10 scheduling disabled
gone() { ! [ -d "$HELD" ]; }
ok "and the control groups" wait_for 10 gone
ok "its processes live on" kill -0 "$spinner"
ok "anywhere" is "$(cpus_of "$spinner")" 0-7
kill -KILL $(pidof spin)

# A process that executes a program is in its unit from the start, however short-lived: the daemon's ten samples a second would
# miss most of these.
cat > rules.toml <<'EOF'
version = 1
[unit.u]
members = ["user:1234"]
[unit.g]
members = ["group:4321"]
[unit.e]
members = ["group:4322"]
each = "user"
[unit.c]
members = ["command:brief*", "command:maker"]
[unit.v]
EOF
for i in 4 5 6; do echo "user$i:x:123$i:123$i::/:/bin/sh"; done >> /etc/passwd
printf 'physics:x:4321:user5\nstudents:x:4322:user6\n' >> /etc/group
ok "a contract of rules is held, too" start_daemon rules.toml
# as USER PROGRAM ARGUMENT...
as() {
	user=$1 program=$2
	shift 2
	start-stop-daemon -S -c "$user" -n nobody-of-that-name -a "$program" -- "$@"
}
# executed NAME UNIT COMMAND...: 40 short-lived programs, all of which were in the unit.
executed() {
	name=$1 of=$2
	shift 2
	commonhold status --json | tr -d ' \n' > status.json
	switched "$of" switches; before=$sum
	for i in $(seq 40); do "$@" > /dev/null || break; done
	commonhold status --json | tr -d ' \n' > status.json
	switched "$of" switches
	ok "$name is in its unit before its first step" no_fewer $((sum - before)) 40
}
spin=$(command -v spin)
cp "$spin" brief-job
printf '#!/bin/sh\nfor i in $(seq 40); do spin 0.001 > /dev/null; done\n' > maker
chmod +x maker
maker() {
	[ "$i" -gt 1 ] || ./maker
}
executed "what a user executes" u as user4 "$spin" 0.001
executed "what a member of a group executes" g as user5 "$spin" 0.001
executed "a command" c ./brief-job 0.001
executed "what a command starts" c maker
# Where the daemon decides otherwise, as for a process that changes its name without exec, the daemon's decision prevails: it
# samples at most a quarter of a second later, and a decision made at exec holds for five seconds.
printf '#!/bin/sh\necho renamed > /proc/$$/comm\nwhile read -r -t 0.02 x <> never || :; do :; done\n' > brief-name
chmod +x brief-name
[ -p never ] || mkfifo never
./brief-name &
renamed=$!
quiet() {
	commonhold status --json | tr -d ' \n' > status.json
	switched c switches; before=$sum
	sleep 1
	commonhold status --json | tr -d ' \n' > status.json
	switched c switches
	[ "$sum" -eq "$before" ]
}
ok "a renamed process leaves that unit" wait_for 20 quiet
ok "though it goes on" kill -0 $renamed
kill -KILL $renamed
# A user's first process waits for the daemon, which makes the sub-unit.
as user6 "$(command -v sleep)" 600 > /dev/null &
ok "a user has a sub-unit" wait_for 20 test -d "$HELD/e/user6"
executed "what a user with a sub-unit executes" 'e\/user6' as user6 "$spin" 0.001
kill -TERM "$daemon"
wait "$daemon"
kill $(pidof sleep)

# A contract that needs a cap requires the cgroup backend, and the reason is reported.
printf 'version = 1\n[unit.a]\nlimit = { cpu = 2 }\n' > capped.toml
ok "a contract with a limit is held, too" start_daemon capped.toml
ok "by control groups, and the reason is reported" said 'held by the cgroup backend (not by the kernel backend: .*unit a .*cap'
kill -TERM "$daemon"
wait "$daemon"
commonhold run capped.toml --backend kernel --for 1s > refused 2>&1
ok "asked for, the kernel backend refuses it" is "$?" 69
ok "with a remedy" grep -q 'use `--backend cgroup`' refused || cat refused

ok "the kernel has nothing else to say about it" is "$(kernel_complaints 'sysrq\|BPF scheduler "commonhold" disabled (\|non-existent DSQ\|sched_ext_ops_')" ""
