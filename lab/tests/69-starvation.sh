# budget: 55
# seconds: 200
# needs: dispatch crowd
# No task waits so long that the kernel ends the scheduler (30 s). That holds for 64 tasks of a unit with a thousandth of the
# machine, and for 400 tasks on one CPU of their own.

# A thread preempted within an RCU read section holds it until its next turn: see 66-many-tasks.
echo 120 > /sys/module/rcupdate/parameters/rcu_cpu_stall_timeout
echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/small" "$CGROUPS/large" "$CGROUPS/many"
# start UNIT PROCESSES THREADS: all of them become busy on a signal.
start() {
	crowd "$CGROUPS/$1" $2 $3 $(($2 * $3)) > $1.crowd 9>&- &
	eval "crowd_$1=$!"
	wait_for 60 grep -q there $1.crowd
}
signal() {
	kill -$1 $crowd_large $crowd_small $crowd_many
}
# said UNIT NAME: a figure of the line that a crowd prints at its end.
said() {
	awk -v name="$2" '$1 == "crowd" { for (i = 2; i < NF; i += 2) if ($i == name) print $(i + 1) }' $1.crowd
}

ok "14 tasks of a large unit are there" start large 1 14
ok "64 of a small one" start small 1 64
ok "400 of a third" start many 4 100
ok "the kernel takes it" load --unit "small=$CGROUPS/small:10" --unit "large=$CGROUPS/large:10000" \
	--unit "many=$CGROUPS/many:100" --own 0=many || exit 1
signal USR1
sleep 40
ok "the kernel keeps the scheduler" wait_for 1 scheduling enabled
signal USR2
signal TERM
wait $crowd_large $crowd_small $crowd_many
ok "each of the large unit had its turns" [ "$(said large turns_min)" -gt 0 ]
ok "each of the small one" [ "$(said small turns_min)" -gt 0 ]
ok "each of the 400" [ "$(said many turns_min)" -gt 0 ]
ok "it ends in order" unload
ok "tasks that had waited too long were rescued" [ "$(counter small rescues)" -gt 0 ]
note "rescued: small $(counter small rescues), large $(counter large rescues), many $(counter many rescues)"
ok "and had little more than its part" at_most $(($(counter small used_ns) * 1000 / $(counter large used_ns))) 50
ok "the kernel has nothing to say about it" is "$(kernel_complaints)" ""
