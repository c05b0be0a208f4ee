# budget: 105
# only: with --all
# seconds: 300
# needs: dispatch spin
# The switch-time scheduler in the kernel, without the daemon. It isolates two units, lends the idle CPU time of one unit to the
# other, and calls it back. By weight it divides the CPUs that no unit owns and the CPUs that several units borrow. It places a
# waking task near the task's last CPU. When its loader exits or is killed, the kernel's own scheduler takes over.

ops=/sys/kernel/sched_ext/root/ops

# unit NAME WEIGHT [FLAGS]: the loader's option.
unit() {
	echo "--unit $1=$CGROUPS/$1:$2:${3:-}"
}

echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/a" "$CGROUPS/b" "$CGROUPS/c"

ok "the kernel takes it" load $(unit a 100 lend,borrow) $(unit b 100 lend,borrow) --own 0-3=a --own 4-7=b || exit 1
ok "it schedules" scheduling enabled
ok "under its name" is "$(cat $ops)" commonhold
spinners a 8
spinners b 8
ok "a is at work" wait_for 10 are_members a 8
ok "b is at work" wait_for 10 are_members b 8
cap_cpus

both_busy() {
	sleep 1
	measure 3 a b
	ok "both have the same" within $((used_a * 1000 / used_b)) 1000 3
	ok "the machine is in use" at_least "$total" 7600
}
measured both_busy
asleep=$(members b)
b_asleep() {
	kill -STOP $asleep
	sleep 1
	measure 3 a b
	ok "a has the machine while b sleeps" at_least "$used_a" 7600
}
measured b_asleep
kill -CONT $asleep
b_back() {
	sleep 1
	measure 3 a b
	ok "both have the same after b came back" within $((used_a * 1000 / used_b)) 1000 3
}
measured b_back

# end_all: ends all spinners and the scheduler.
end_all() {
	kill -KILL $(members a) $(members b)
	wait_for 10 are_members a 0 && wait_for 10 are_members b 0 && unload
}
ok "it ends in order" end_all
ok "the kernel's own scheduler is back" wait_for 5 scheduling disabled
sed 's/^unit/# unit/; /^ready/d' $scheduler_log
cpu_usec a
ok "it counted a's CPU time as the kernel did" within $(($(counter a used_ns) / 1000)) "$usec" 2
lent() {
	awk -v sum="$1" '$1 == "unit" { for (i = 3; i < NF; i += 2) if ($i == sum) total += $(i + 1) }
		END { printf "%d", total / 1000 }' $scheduler_log
}
ok "time lent equals time borrowed, in microseconds" is "$(lent lent_ns)" "$(lent borrowed_ns)"

# Slices are long here, so that waiting for the end of one would be visible: half a second on average.
called_back() {
	how=$1
	ok "it loads, calling back: $how" load $(unit a 100 borrow) $(unit b 100 lend) --own 0-3=a --own 4-7=b --slice 1000 \
		--recall "$how"
	spinners a 8
	spinners b 4
	ok "all are at work, calling back: $how" wait_for 10 are_members b 4
	sleep 1
	asleep=$(members b)
	for i in 1 2 3 4 5 6; do
		kill -STOP $asleep
		usleep 300000
		kill -CONT $asleep
		usleep 300000
	done
	ok "it ends, calling back: $how" end_all
	note "$how: $(grep '^unit b' $scheduler_log)"
	ok "b called CPUs back: $how" at_least "$(counter b recalls)" 10
	ok "and had them soon, in microseconds: $how" at_most $(($(counter b recall_mean_ns) / 1000)) 30000
}
measured called_back now
measured called_back tick

# Nothing is lent: CPU time that b leaves idle stays idle. Tasks in no unit do not wait, and need little.
ok "it loads again, as a quota" load $(unit a 100) $(unit b 100) --own 0-3=a --own 4-7=b
spinners a 8
wait_for 10 are_members a 8
quota() {
	sleep 1
	measure 3 a b
	ok "a keeps to its CPUs" at_most "$used_a" 4020
	ok "and has them" at_least "$used_a" 3800
}
measured quota

# The kernel unloads a scheduler whose loader is killed.
kill -KILL $loader
ok "killed, it no longer schedules" wait_for 5 scheduling disabled
exec 9>&-
killed() {
	sleep 1
	measure 3 a b
	ok "its tasks run on, wherever they like" at_least "$used_a" 7000
}
measured killed
kill -KILL $(members a)
wait_for 10 are_members a 0

ok "it loads again, with unowned CPUs" load $(unit a 100) $(unit b 300)
spinners a 8
spinners b 8
wait_for 10 are_members b 8
by_weight() {
	sleep 1
	measure 6 a b
	ok "time-shared CPUs are divided by weight" within $((used_b * 1000 / used_a)) 3000 5
	ok "the machine is in use, time-shared" at_least "$total" 7600
}
measured by_weight
ok "it ends in order, time-shared" end_all

ok "it loads again, with CPUs that c lends" load $(unit a 100 borrow) $(unit b 300 borrow) $(unit c 100 lend) --own 0-7=c
spinners a 8
spinners b 8
wait_for 10 are_members b 8
by_claim() {
	sleep 1
	measure 5 a b
	ok "borrowers divide lent CPUs by weight" within $((used_b * 1000 / used_a)) 3000 5
	ok "all of it" at_least "$total" 7600
}
measured by_claim
ok "it ends in order, lent" end_all
uncap_cpus

# A task whose waker's CPU is busy goes to the nearest idle CPU of its unit. Two CPUs form a node: from CPU 6 the task goes to CPU
# 7, although four more of a's CPUs with lower numbers are idle. The waking process records on which CPU it wakes.
ok "it loads again, with CPUs of three nodes for a" load $(unit a 100) $(unit b 100) --own 2-7=a --own 0-1=b
taskset -p 3 $$ > /dev/null     # keep this script on distant CPUs
taskset -p 3 "$loader" > /dev/null
mkfifo words
touch wakes
cat > waker << 'END'
while read -r word; do
	read -r stat < /proc/$$/stat
	set -- $stat
	shift 38
	echo "$1"
done
END
sh -c "echo \$\$ > $CGROUPS/a/cgroup.procs && exec sh waker" < words > wakes 9>&- &
waker=$!
exec 8> words
ok "the waker is there" wait_for 10 are_members a 1
sh -c "echo \$\$ > $CGROUPS/a/cgroup.procs && exec taskset 40 spin 600" > /dev/null 8>&- 9>&- &
hog=$!
ok "so is the task that takes its CPU" wait_for 10 are_members a 2
woken() { [ "$(wc -l < wakes)" -eq "$1" ]; }
wake() {
	echo wake >&8
	times=$((times + 1))
	wait_for 10 woken $times
}
times=0
for i in $(seq 16); do
	kill -STOP $hog
	taskset -p 40 $waker > /dev/null
	wake || break
	taskset -p ff $waker > /dev/null
	kill -CONT $hog
	usleep 50000
	wake || break
done
note "it woke on $(tr '\n' ' ' < wakes)"
# At least 10 of 16 wake-ups: a kernel thread may occupy CPU 7.
ok "a waking task stays on its node" at_least "$(grep -c '^7$' wakes)" 10
exec 8>&-
taskset -p ff $$ > /dev/null
ok "it ends in order, near and far" end_all
note "$(grep '^unit a' $scheduler_log | sed 's/used_ns.*moved/moved/')"

ok "the kernel has nothing to say about it" is "$(kernel_complaints)" ""
