# seconds: 240
# needs: dispatch spin
# The switch-time scheduler in the kernel, with units within units, nice values, and a thousand units.

state=/sys/kernel/sched_ext/state
log=loaded

# load OPTION...: the scheduler; all other processes are light, and must not wait. It ends when descriptor 9 is closed, so
# what is started here closes its copy.
load() {
	dispatch --at-once "$CGROUPS" "$@" < hold > $log 2>&1 9>&- &
	loader=$!
	exec 9> hold
	wait_for 60 grep -qx ready $log || {
		detail="not ready: $(tail -n 5 $log | tr '\n' ' ')"
		return 1
	}
}
unload() {
	exec 9>&-
	wait $loader
}
# spinners UNIT COUNT [NICE]: that many processes that spin enter a unit's control group. (It is a thread that spins, which
# has its nice value from who started it.)
spinners() {
	for i in $(seq "$2"); do
		sh -c "renice -n ${3:-0} \$\$ && echo \$\$ > $CGROUPS/$1/cgroup.procs && exec spin 600" > /dev/null 9>&- &
	done
}
# shares SECONDS UNIT...: sets `share` to what each unit got, in thousandths of all that they got together.
shares() {
	seconds=$1
	shift
	before=
	for unit; do
		cpu_usec "$unit"
		before="$before $usec"
	done
	pause "$seconds"
	after=
	for unit; do
		cpu_usec "$unit"
		after="$after $usec"
	done
	share=$(echo "$before;$after" | awk -F ';' '{
		n = split($1, was, " "); split($2, is, " ")
		for (i = 1; i <= n; i++) sum += is[i] - was[i]
		for (i = 1; i <= n; i++) printf "%d ", (is[i] - was[i]) * 1000 / sum
	}')
	note "of $*: $share"
}
# share N: the Nth of them.
share() {
	echo "$share" | cut -d ' ' -f "$1"
}

mkfifo hold
echo "+cpu" > "$CGROUPS/cgroup.subtree_control"
mkdir "$CGROUPS/p" "$CGROUPS/x" "$CGROUPS/y" "$CGROUPS/q"

# p and q have the same; within p, y has three times what x has. (Which control group lies in which says nothing here.)
ok "the kernel takes units within units" load --unit "p=$CGROUPS/p:100" --unit "p/x=$CGROUPS/x:100" \
	--unit "p/y=$CGROUPS/y:300" --unit "q=$CGROUPS/q:100" || exit 1
for unit in x y q; do spinners $unit 8; done
cap_cpus
sleep 1
by_level() {
	sleep 1
	shares 10 x y q
	ok "q has the half that is its own" within "$(share 3)" 500 6
	ok "x has a quarter of the other half" within "$(share 1)" 125 10
	ok "y has three" within "$(share 2)" 375 8
}
measured by_level
asleep=$(cat "$CGROUPS/y/cgroup.procs")
kill -STOP $asleep
siblings() {
	sleep 1
	shares 10 x q
	ok "what y leaves is x's, and not q's" within "$(share 1)" 500 6
}
measured siblings
kill -CONT $asleep

# Within a unit: nice 0 and nice 5 are 1024 and 335 parts. (Control groups count what processes cannot be asked for alone.)
kill -KILL $(cat "$CGROUPS"/[xyq]/cgroup.procs)
ok "it ends in order" unload
mkdir "$CGROUPS/n" "$CGROUPS/n/usual" "$CGROUPS/n/nice"
ok "it loads again, with one unit" load --unit "n=$CGROUPS/n:100"
spinners n/usual 8
spinners n/nice 8 5
sleep 1
by_nice() {
	sleep 1
	shares 10 n/usual n/nice
	ok "nice values divide a unit's time" within "$(share 2)" 246 15
}
measured by_nice
kill -KILL $(cat "$CGROUPS"/n/*/cgroup.procs)
ok "it ends in order again" unload

# Strays: three tasks of q's are pinned to the only CPU of p. They have their turns there, and no more than that.
ok "it loads again, with a CPU for p" load --unit "p=$CGROUPS/p:100" --unit "q=$CGROUPS/q:100:lend,borrow" --own 0=p \
	--own 1-7=q
spinners p 1
for i in 1 2 3; do
	sh -c "echo \$\$ > $CGROUPS/q/cgroup.procs && exec taskset 1 spin 600" > /dev/null 9>&- &
done
by_turns() {
	sleep 1
	shares 5 p q
	ok "an owner has half of its CPU beside strays, however many" within "$(share 1)" 500 10
}
measured by_turns
kill -KILL $(cat "$CGROUPS"/[pq]/cgroup.procs)
ok "it ends in order, strays and all" unload
vmctl uncap > /dev/null

# A thousand units, each with a process that has something to do: all come to their end.
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
ok "it still schedules" is "$(cat $state)" enabled
ok "it ends in order, with a thousand units" unload
ran() { awk '$1 == "unit" && $2 ~ /^m/ { for (i = 3; i < NF; i += 2) if ($i == "used_ns" && $(i + 1) > 0) n++ } END { print n + 0 }' $log; }
ok "and counted something of each" is "$(ran)" 1000
