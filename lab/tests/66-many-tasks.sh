# budget: 400
# only: with --all
# seconds: 400
# memory: 8192
# needs: dispatch crowd
# A hundred thousand threads under the switch-time scheduler, most of them asleep and two thousand busy, in four units of 1:2:3:2.
# They start under it, it is unloaded and reloaded meanwhile, the units have their shares, and all threads wake and end.

units="a b c d"
processes=25 threads=1000 busy=500              # per unit
all=100000
# A busy thread of a's is next after its unit's five hundred slices, 2 s where a CPU never stalls; 20 s without a turn would end
# the scheduler: the kernel's watchdog thus checks that no task starves.
slice_ms=4
# A thread preempted within an RCU read section holds it until its next turn, and under emulation a section may take several
# turns. The kernel ends a scheduler for a grace period of 21 s; its own scheduler has such periods, too.
grace_s=120

weight_of() {
	case $1 in a) echo 100 ;; b | d) echo 200 ;; c) echo 300 ;; esac
}
# seconds_since CS: in the guest's time, since a moment in hundredths of a second.
seconds_since() {
	ratio $(($(uptime_cs) - $1)) 100
}
# in_all PATTERN: whether every unit's crowd has printed a matching line.
in_all() {
	for unit in $units; do
		grep -q "$1" "$unit.crowd" || return 1
	done
}
threads_there() {
	cat "$CGROUPS"/[abcd]/cgroup.threads | wc -l
}
# said UNIT NAME: a figure of the line that a crowd prints at its end.
said() {
	awk -v name="$2" '$1 == "crowd" { for (i = 2; i < NF; i += 2) if ($i == name) print $(i + 1) }' "$1.crowd"
}
# signal UNIT SIGNAL
signal() {
	eval "kill -$2 \$crowd_$1"
}
attach() {
	begun=$(uptime_cs)
	load --slice $slice_ms $options
	taken=$(seconds_since "$begun")
}

echo 4194304 > /proc/sys/kernel/pid_max
echo 400000 > /proc/sys/kernel/threads-max
echo $grace_s > /sys/module/rcupdate/parameters/rcu_cpu_stall_timeout
echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
options=
for unit in $units; do
	mkdir "$CGROUPS/$unit"
	options="$options --unit $unit=$CGROUPS/$unit:$(weight_of $unit)"
done
ok "the kernel takes it" attach || exit 1
note "$taken s to load and attach it on an empty machine"

begun=$(uptime_cs)
for unit in $units; do
	crowd "$CGROUPS/$unit" $processes $threads $busy > $unit.crowd 2>&1 9>&- &
	eval "crowd_$unit=$!"
done
ok "a hundred thousand threads start under it" wait_for 200 in_all '^there$' || { cat ./*.crowd; exit 1; }
note "$(seconds_since "$begun") s to start them"
ok "all are there" at_least "$(threads_there)" $all
grep -E 'MemTotal|MemAvailable|KernelStack' /proc/meminfo | sed 's/^/# /'


reattach() {
	begun=$(uptime_cs)
	ok "it goes while they $1" unload
	note "$(seconds_since "$begun") s to detach it"
	ok "it comes back while they $1" attach
	note "$taken s to load and attach it"
}
reattach sleep

for unit in $units; do signal $unit USR1; done
shares() {
	sleep 4
	measure 20 $units
	for unit in $units; do
		ok "$unit has its share" within "$(share_of $unit)" $(($(weight_of $unit) * 1000 / 800)) 4
	done
	ok "the machine is in use" at_least "$total" 7600
}
measured shares
ok "it still schedules" scheduling enabled

# One unit after the other: a hundred thousand threads that wake at once take longer than 20 s under emulation.
for unit in $units; do signal $unit USR2; done
sleep 5
begun=$(uptime_cs)
for unit in $units; do
	signal $unit TERM
	ok "$unit's all wake and end" wait_for 60 grep -q '^crowd ended' $unit.crowd
done
note "$(seconds_since "$begun") s to end them"
for unit in $units; do
	ok "every thread of $unit's came to its end" is "$(said $unit ended)" $((processes * threads))
	ok "every busy one had turns" at_least "$(said $unit turns_min)" 1
done
ok "it still schedules after that" scheduling enabled
ok "it ends in order" unload
ok "the kernel has nothing to say about it" is "$(kernel_complaints)" ""
