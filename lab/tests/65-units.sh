# budget: 95
# only: with --all
# seconds: 240
# needs: dispatch spin
# The switch-time scheduler in the kernel, with units within units, nice values, and a thousand units.

echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/p" "$CGROUPS/x" "$CGROUPS/y" "$CGROUPS/q"

# p and q have equal weights; within p, y has three times x's. (The nesting of control groups has no effect here.)
ok "the kernel takes units within units" load --unit "p=$CGROUPS/p:100" --unit "p/x=$CGROUPS/x:100" \
	--unit "p/y=$CGROUPS/y:300" --unit "q=$CGROUPS/q:100" || exit 1
for unit in x y q; do spinners $unit 8; done
cap_cpus
sleep 1
by_level() {
	sleep 1
	measure 6 x y q
	ok "q has the half that is its own" within "$(share_of q)" 500 6
	ok "x has a quarter of the other half" within "$(share_of x)" 125 10
	ok "y has three" within "$(share_of y)" 375 8
}
measured by_level
asleep=$(members y)
kill -STOP $asleep
siblings() {
	sleep 1
	measure 6 x q
	ok "x, not q, uses y's idle time" within "$(share_of x)" 500 6
}
measured siblings
kill -CONT $asleep

# Within a unit: nice 0 and nice 5 weigh 1024 and 335. (Control groups count time that cannot be read for processes alone.)
kill -KILL $(members x) $(members y) $(members q)
ok "it ends in order" unload
mkdir "$CGROUPS/n" "$CGROUPS/n/usual" "$CGROUPS/n/nice"
ok "it loads again, with one unit" load --unit "n=$CGROUPS/n:100"
spinners n/usual 8
spinners n/nice 8 5
sleep 1
by_nice() {
	sleep 1
	measure 6 n/usual n/nice
	ok "nice values divide a unit's time" within "$(share_of nice)" 246 15
}
measured by_nice
kill -KILL $(members n/usual) $(members n/nice)
ok "it ends in order again" unload

# Also where no more tasks wait than run: one beside one, with weights 1024 and 110, on their unit's only CPU. The task that had
# less for its weight continues, whether it ran or waits.
ok "it loads again, with one CPU" load --unit "n=$CGROUPS/n:100" --unit "q=$CGROUPS/q:100" --own 0=n --own 1-7=q
spinners n/usual 1
spinners n/nice 1 10
on_one_cpu() {
	sleep 1
	measure 6 n/usual n/nice
	ok "nice values divide a single CPU" within "$(share_of nice)" 97 35
}
measured on_one_cpu
kill -KILL $(members n/usual) $(members n/nice)
ok "it ends in order once more" unload

# Strays: three tasks of q's are pinned to p's only CPU. They get their turns there, and no more.
ok "it loads again, with a CPU for p" load --unit "p=$CGROUPS/p:100" --unit "q=$CGROUPS/q:100:lend,borrow" --own 0=p \
	--own 1-7=q
spinners p 1
for i in 1 2 3; do
	sh -c "echo \$\$ > $CGROUPS/q/cgroup.procs && exec taskset 1 spin 600" > /dev/null 9>&- &
done
by_turns() {
	sleep 1
	measure 5 p q
	ok "an owner has half of its CPU beside strays, however many" within "$(share_of p)" 500 10
}
measured by_turns
kill -KILL $(members p) $(members q)
ok "it ends in order, strays and all" unload
ok "they were counted as strays" no_fewer "$(counter q strays)" 1
ok "the tasks at home were not" is "$(counter p strays)" 0
uncap_cpus

# A thousand units, each with a process that has work to do: all finish.
units=
for i in $(seq 1000); do
	mkdir "$CGROUPS/m$i"
	units="$units --unit m$i=$CGROUPS/m$i:$((i % 10 * 10 + 10)):lend,borrow"
done
ok "the kernel takes a thousand units" load $units
for i in $(seq 1000); do
	sh -c "echo \$\$ > $CGROUPS/m$i/cgroup.procs && spin 0.02 > /dev/null && echo $i" >> ended 9>&- &
done
all_ended() { [ "$(wc -l < ended)" -eq 1000 ]; }
ok "every unit's process comes to its end" wait_for 120 all_ended
ok "it still schedules" scheduling enabled
ok "it ends in order, with a thousand units" unload
ran() { awk '$1 == "unit" && $2 ~ /^m/ { for (i = 3; i < NF; i += 2) if ($i == "used_ns" && $(i + 1) > 0) n++ } END { print n + 0 }' $scheduler_log; }
ok "and counted something of each" is "$(ran)" 1000
