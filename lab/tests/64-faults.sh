# budget: 80
# seconds: 180
# needs: dispatch spin chrt
# Faults that make the kernel end the scheduler, and faults that do not. A task that waits too long ends it, and so does an error
# in the BPF program. The kernel's own scheduler then takes over, the loader prints the reason, and all tasks continue. A
# real-time task that occupies a unit's only CPU for ten seconds does not end it. A task preempted by a real-time task runs on its
# unit's other CPU.

# unit NAME [FLAGS]: the loader's option.
unit() {
	echo "--unit $1=$CGROUPS/$1:100:${2:-}"
}
# runs UNIT: whether the unit's tasks receive CPU time.
runs() {
	cpu_usec "$1"; from=$usec
	usleep 50000
	cpu_usec "$1"
	[ "$usec" -gt "$from" ]
}
# over WHAT REASON: checks that the scheduler was ended for that reason, and that a's tasks continue.
over() {
	ok "$1: the kernel's own scheduler is back" wait_for 20 scheduling disabled
	ok "$1: the loader ends, too" wait_for 20 grep -q '^load: ' $scheduler_log
	grep '^load: ' $scheduler_log | sed 's/^/# /'
	ok "$1: it says why" grep -q "^load: the kernel ended the scheduler: $2" $scheduler_log
	exec 9>&-
	wait "$loader"
	ok "$1: and fails" is $? 1
	ok "$1: its tasks continue" wait_for 10 runs a
	kill -KILL $(members a)
	ok "$1: and ends" wait_for 10 are_members a 0
}

echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/a" "$CGROUPS/b" "$CGROUPS/fault"

# a has no CPU, and no unit lends it one.
ok "a wait: it loads, to be ended after two seconds" load $(unit a borrow) $(unit b) --own 0-7=b --timeout 2000 || exit 1
spinners a 1
over "a wait" 'runnable task stall: .* failed to run for [0-9.]*s (kind 1026)'

ok "an error: it loads" load $(unit a lend,borrow) $(unit b lend,borrow) --own 0-3=a --own 4-7=b
spinners a 8
ok "an error: a is at work" wait_for 10 are_members a 8
ok "an error: its tables are spoilt" dispatch --break "$CGROUPS/fault"
ok "an error: it schedules" scheduling enabled
spinners fault 1
over "an error" 'runtime error: non-existent DSQ 0x4 .*(kind 1024)'
kill -KILL $(members fault)

# Unit a has only CPU 7. A real-time task precedes all others: until it ends, a gets only the time that the kernel withholds from
# real-time tasks (0.05 s of each second).
ok "a hog: it loads" load $(unit a) $(unit b) --own 7=a --own 0-6=b
spinners a 1
ok "a hog: a is at work" wait_for 10 runs a
chrt -f 50 taskset 80 spin 10 > /dev/null 9>&- &
hog=$!
sleep 1
cpu_usec a; from=$usec
sleep 8
cpu_usec a
note "in 8 s beside a real-time hog, a had $((usec - from)) us"
wait $hog
ok "a hog: the scheduler is there after it" scheduling enabled
ok "a hog: a runs on" wait_for 10 runs a
kill -KILL $(members a)
ok "a hog: it ends in order" unload
# Of the 10 s, all except the time of a's tasks and of the kernel's threads on that CPU.
higher=$(sed -n 's/^unit a .*waited_higher_ns \([0-9]*\) .*/\1/p' $scheduler_log)
ok "a hog: a's wait for a higher class is reported" no_fewer $((${higher:-0} / 1000000)) 8500
note "a waited for a higher class for $((${higher:-0} / 1000000)) ms"
ok "a hog: the loader reports no error" is "$(grep '^load: ' $scheduler_log)" ""

ok "a CPU taken: it loads" load $(unit a) $(unit b) --own 6-7=a --own 0-5=b
spinners a 1
ok "a CPU taken: a is at work" wait_for 10 runs a
# Newer kernels withhold some time from real-time tasks: a task that received it there may continue elsewhere.
mount -t debugfs debugfs /sys/kernel/debug 2> /dev/null
for server in /sys/kernel/debug/sched/ext_server/cpu*/runtime; do
	[ ! -e "$server" ] || echo 0 > "$server"
done
# Starts a real-time task on each CPU of a. Starting a task there already preempts a, which may move to the other CPU. So the
# tasks wait for a signal, which only the task on a's present CPU then gets.
for cpu in 6 7; do
	chrt -f 50 taskset -c $cpu sh -c 'kill -STOP $$; exec spin 3' > /dev/null 9>&- &
	eval "hog_$cpu=$!"
done
sleep 1
cpu=$(cat /proc/$(members a)/task/*/stat | sed -n 's/.*) R /R /p' | cut -d ' ' -f 37)
cpu_usec a; from=$usec
eval "kill -CONT \$hog_$cpu"
sleep 2
cpu_usec a
note "in 2 s in which CPU $cpu is taken, a had $((usec - from)) us"
ok "a CPU taken: a runs on its other one" no_fewer $((usec - from)) 1500000
kill -KILL $hog_6 $hog_7

# The same for tasks queued there when the CPU is taken that may run elsewhere. (A spinner's first thread sleeps.)
spinners_of_b() {
	for pid in $(members b); do
		ls "/proc/$pid/task" | grep -vx "$pid"
	done
}
are_spinners_of_b() {
	[ "$(spinners_of_b | wc -l)" -eq "$1" ]
}
ran_of_b() {
	for thread in $(spinners_of_b); do
		read -r ran _ < "/proc/$thread/schedstat"
		echo "$thread on CPU $(cut -d ' ' -f 39 "/proc/$thread/stat") ran $ran ns"
	done
}
spinners b 14
ok "a CPU taken: b is at work" wait_for 10 are_spinners_of_b 14
for thread in $(spinners_of_b | head -n 8); do
	taskset -p c0 "$thread" > /dev/null
done
sleep 1
chrt -f 50 taskset -c 7 spin 60 > /dev/null 9>&- &
hog=$!
# The time within which the scheduler finds all tasks that are queued behind the real-time task.
sleep 3
ran_of_b > before
sleep 2
ran_of_b > after
ok "a CPU taken: tasks that waited there and may run elsewhere do" is "$(sort before after | uniq -d)" ""
kill -KILL $hog $(members b)
wait $hog

# So do movable kernel threads such as RCU's, on which everything eventually depends; no CPU idles meanwhile.
spinners a 2
spinners b 14
ok "a CPU taken: b is at work again" wait_for 10 are_spinners_of_b 14
rcu=
for thread in /proc/[0-9]*; do
	read -r name < "$thread/comm" && [ "$name" = rcu_preempt ] && rcu=$thread
done 2> /dev/null
looks=0 waits=0
for try in 1 2 3; do
	taken=$(cut -d ' ' -f 39 "$rcu/stat")
	chrt -f 50 taskset -c "$taken" spin 3 > /dev/null 9>&- &
	hog=$!
	turns=
	for callback in $(seq 8); do
		mkdir "$CGROUPS/brief" && rmdir "$CGROUPS/brief"
		usleep 250000
		before=$turns
		read -r _ _ turns < "$rcu/schedstat"
		looks=$((looks + 1))
		if [ "$before" = "$turns" ] && grep -q ') R ' "$rcu/stat"; then waits=$((waits + 1)); fi
	done
	wait $hog
done
note "a CPU taken: RCU's thread waited from one look to the next $waits times of $looks"
ok "a CPU taken: RCU's thread runs on another one" no_fewer 2 $waits
kill -KILL $(members a) $(members b)
ok "a CPU taken: it ends in order" unload
ok "a CPU taken: the loader reports no error" is "$(grep '^load: ' $scheduler_log)" ""

# The kernel's messages up to here were provoked; later tests look for messages that were not.
dmesg -c > /dev/null
