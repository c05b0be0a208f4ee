# budget: 20
# seconds: 60
# needs: commonhold work unshare
# A container: a bounded control group that appears as the hierarchy's root. The daemon divides the memory that the container may
# use, also when that changes, and touches nothing outside. Where the control groups are read-only, the daemon reports it and
# holds nothing.

mib=1048576
box=$CGROUPS/box
echo "+cpu +cpuset +io +memory" > $CGROUPS/cgroup.subtree_control
mkdir -p $box/inside
echo $((600 * mib)) > $box/memory.max
echo 0 > $box/memory.swap.max 2> /dev/null
rmdir $box/inside
before=$(cat $CGROUPS/cgroup.subtree_control)
export COMMONHOLD_DIR=/run/box

# contained OPTIONS COMMAND...: runs COMMAND in the control group, which appears to it as the root; OPTIONS are those of the
# mount. It replaces the shell.
contained() {
	options=$1
	shift
	exec sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' $box /job/unshare -C -m sh -c \
		'umount /sys/fs/cgroup && mount -t cgroup2 -o "$0" none /sys/fs/cgroup && exec "$@"' "$options" "$@"
}
(contained rw commonhold doctor) > doctor.txt 2>&1
ok "doctor reports its bounds" sh -c 'tr -s " \n" " " < doctor.txt | grep -q "bounded to 600 MiB, which is the amount divided"' || cat doctor.txt
contained rw commonhold run /job/contracts/hard-memory.toml > "$daemon_log" 2>&1 &
daemon=$!
ok "the daemon holds the contract" wait_for 20 commonhold status --json || cat "$daemon_log"
ok "memory is held" grep -q '^memory  held by control groups' "$daemon_log"
total() {
	commonhold status --json | tr -d ' \n' | sed -n 's/.*"memory":{"total":\([0-9]*\).*/\1/p'
}
divides() {
	detail="$(($(total) / mib)) MiB"
	[ "$(total)" = $(($1 * mib)) ]
}
ok "the divided memory is the container's" wait_for 10 divides 600
# The daemon is now in a leaf: a new process must enter a sibling, not the inner control group.
beside=$CGROUPS$(cgroup_of "$(pidof commonhold | cut -d ' ' -f 1)")
note "the daemon stands in ${beside#$CGROUPS}"
sh -c 'echo $$ > "$0/cgroup.procs" && exec commonhold exec third -- work touch third 64 1' "$beside" > third.log 2>&1 &
ok "a process enters" wait_for 20 passes third 1 || cat third.log
bounded() {
	read -r high < $box/commonhold/third/memory.high
	detail="$((high / mib)) MiB"
	[ "$high" != max ] && [ "$high" -le $(($1 * mib)) ]
}
ok "its unit is bounded by a part of that" wait_for 10 bounded 600
echo $((400 * mib)) > $box/memory.max
ok "a bound that changes is followed" wait_for 10 divides 400
ok "by the unit's too" wait_for 10 bounded 400
ok "nothing is made outside" test ! -e $HELD
ok "and nothing changed there" is "$(cat $CGROUPS/cgroup.subtree_control)" "$before"
grep -e '^problem' "$daemon_log" | head -n 5 | sed 's/^/# /'
kill -KILL "$daemon"
gone() { ! [ -d $box/commonhold ]; }
ok "a killed daemon leaves no unit's control group" wait_for 10 gone
kill -KILL $(pidof third)

# Read-only, the default for containers.
mkdir -p $CGROUPS/plain
box=$CGROUPS/plain
(contained ro commonhold doctor) > doctor.txt 2>&1
ok "doctor says that control groups are read-only" grep -q "is mounted read-only" doctor.txt
contained ro commonhold run /job/contracts/hard-memory.toml > "$daemon_log" 2>&1 &
daemon=$!
ok "the daemon runs all the same" wait_for 20 commonhold status --json || cat "$daemon_log"
head -n 8 "$daemon_log" | sed 's/^/# /'
ok "and says that memory is not held by control groups" is "$(grep -c '^memory  held by control groups' "$daemon_log")" 0
kill -TERM "$daemon"
