# budget: 40
# seconds: 120
# needs: dispatch work
# A forking task is called back like any other.
#
# A task on a borrowed CPU may be called back at a moment at which it may not leave that CPU (migration disabled). A forking task
# is in that state every few microseconds. If the scheduler chose the task again at once, the task would be preempted again, make
# no progress, and block all others.

echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/owner" "$CGROUPS/guest" "$CGROUPS/others"
# The owner's is the only CPU that the guests can use: the other unit lends nothing.
ok "the kernel takes it" load --unit "owner=$CGROUPS/owner:100:lend" --unit "guest=$CGROUPS/guest:100:borrow" \
	--unit "others=$CGROUPS/others:100" --own 0=owner --own 1-7=others || exit 1
sh -c "echo \$\$ > $CGROUPS/guest/cgroup.procs && exec work heavy 0 4" > /dev/null 9>&- &
# value_of NAME: from the line that the owner's process prints at its end.
value_of() {
	sed -n "s/.* $1 \([0-9]*\).*/\1/p" late
}
sh -c "echo \$\$ > $CGROUPS/owner/cgroup.procs && exec work latency 20 1000" > late 9>&-
cat late
ok "the owner's process came to its end" grep -q '^latency samples' late
ok "it was not kept waiting, in ms" at_most $(($(value_of late_max_ns) / 1000000)) 5000
ok "it slept and woke all the time" at_least "$(value_of samples)" 500
kill -KILL $(members guest)
ok "the kernel keeps the scheduler" scheduling enabled
ok "it ends in order" unload
ok "CPUs were called back" at_least "$(counter owner recalls)" 500

# On time-shared CPUs, each wake-up and fork is placed by the load of the other tasks. That load does not include tasks that run
# out of turn, such as kernel threads.
ok "it loads again, time-shared" load --unit "owner=$CGROUPS/owner:5000" --unit "guest=$CGROUPS/guest:5000"
sh -c "echo \$\$ > $CGROUPS/owner/cgroup.procs && exec work heavy 8 0" > /dev/null 9>&- &
sh -c "echo \$\$ > $CGROUPS/guest/cgroup.procs && exec work heavy 16 2" > /dev/null 9>&- &
cap_cpus
halves() {
	sleep 1
	measure 5 owner guest
	ok "the forking unit has its half" within "$(share_of guest)" 500 5
}
measured halves
uncap_cpus
for unit in owner guest; do echo 1 > "$CGROUPS/$unit/cgroup.kill"; done
ok "it ends in order, time-shared" unload
ok "the kernel has nothing to say about it" is "$(kernel_complaints)" ""
