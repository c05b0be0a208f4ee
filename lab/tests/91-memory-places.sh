# budget: 65
# only: with --all
# seconds: 110
# needs: commonhold work
# disks: 3072 768:100000000
# Memory in three situations.
# - With swap, cold anonymous memory is lent, and comes back from swap.
# - If a file has two users, the memory that one unit is charged for another is detected.
# - A user's own daemon in a part of the machine divides what its control group may use, and reports what it cannot hold.

mib=1048576
drive=$(disk 3072)
swap=$(disk 768:100000000)

mount -t debugfs none /sys/kernel/debug 2> /dev/null
mkswap "$swap" > /dev/null && swapon "$swap"
ok "there is swap" at_least "$(sed -n 's/^SwapFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)" 700000
ok "the daemon holds the contract" start_daemon /job/contracts/memory-patient.toml --verbose || exit 1

# An owner that touches nearly all of its entitlement once (less after other tests in one boot) and never again, and a unit that
# is short.
touch_in owner cold 640 1
ok "the owner has its memory" wait_for 30 passes cold 1
touch_in borrower scan 1600 0 "$drive"
cold_is_lent() {
	account owner lent; lent=$found
	account owner entitled; entitled=$found
	account owner used; used=$found
	[ $((lent + used)) -gt $((entitled + 32 * mib)) ] ||
		{ [ "$used" -lt $((620 * mib)) ] && [ "$lent" -gt $((32 * mib)) ]; }
}
ok "its cold memory is lent, though it is anonymous" wait_for 40 cold_is_lent
in_swap() {
	[ "$(value owner memory.swap.current)" -ge $((16 * mib)) ]
}
ok "and goes to swap" wait_for 30 in_swap
note "MiB: the owner is entitled to $((entitled / mib)), uses $((used / mib)) and lends $((lent / mib)); in swap $(($(value owner memory.swap.current) / mib))"
kill -USR1 $(pidof cold)
ok "the owner has it back" wait_for 40 passes cold 2
note "$(tail -n 1 cold.log)"
not_believed() {
	account owner lent; lent=$found
	account owner entitled; entitled=$found
	account owner used; used=$found
	[ "$used" -ge $((620 * mib)) ] && [ $((lent + used)) -le $((entitled + 16 * mib)) ]
}
ok "and is not believed to be cold at once" wait_for 10 not_believed
kill -KILL $(pidof cold scan)

# A file that one unit touches first and another maps as well: half of the charge would belong to the other.
touch_in owner first 200 1 "$drive"
ok "a file is charged to the first" wait_for 20 passes first 1
touch_in borrower second 200 1 "$drive"
ok "and used by the second" wait_for 20 passes second 1
for_others() {
	account owner for_others
	detail="$((found / mib)) MiB"
	[ "$found" -ge $((70 * mib)) ] && [ "$found" -le $((130 * mib)) ]
}
ok "memory charged for others is detected" wait_for 30 for_others
note "$(commonhold status | grep 'other units' | sed 's/^ *//')"
ok "no process was killed" is "$(sed -n 's/^oom_kill //p' "$HELD/memory.events")" 0
kill -TERM "$daemon"
wait "$daemon"
kill -KILL $(pidof first second)
swapoff "$swap"

# A user's daemon, in a control group of its own with two controllers and 600 MiB.
box=$CGROUPS/box
user=lab
echo 'lab:x:1000:1000:lab:/tmp:/bin/sh' >> /etc/passwd
echo "+cpu +memory" > $CGROUPS/cgroup.subtree_control
mkdir -p $box/session
echo $((600 * mib)) > $box/memory.max
echo "+cpu +memory" > $box/cgroup.subtree_control
chown -R $user $box/session
mkdir -p /tmp/lab
chown $user /tmp/lab
export COMMONHOLD_DIR=/tmp/lab
# as_user CGROUP WORDS
as_user() {
	sh -c 'echo $$ > "$0/cgroup.procs" && exec su -s /bin/sh "$1" -c "$2"' "$1" $user "$2"
}
as_user $box/session "commonhold run /job/contracts/hard-memory.toml" > "$daemon_log" 2>&1 &
daemon=$!
ok "a user's daemon holds the contract" wait_for 20 commonhold status --json || cat "$daemon_log"
ok "it says that nothing is guaranteed" grep -q '^memory  held by control groups, without guarantees' "$daemon_log"
ok "and that disks are not held" grep -q '^disk    not held: no io controller here' "$daemon_log"
# In a group beside the daemon's: a user cannot move a process from elsewhere.
beside=$CGROUPS$(cgroup_of "$(pidof commonhold | cut -d ' ' -f 1)")
as_user "$beside" "commonhold exec third -- work touch third 64 1" > third.log 2>&1 &
ok "a process enters" wait_for 20 passes third 1 || cat third.log
held=$(find $box -type d -name third)
bounded() {
	read -r high < "$held/memory.high"
	[ "$high" != max ] && [ "$high" -le $((600 * mib)) ]
}
ok "its unit is bounded by a part of the control group's memory" wait_for 10 bounded
note "MiB: $((high / mib)) of 600"
commonhold status --json | tr -d ' \n' > status.json
ok "which is what is divided" is "$(sed -n 's/.*"memory":{"total":\([0-9]*\).*/\1/p' status.json)" $((600 * mib))
ok "status says what is not held" grep -q '"resource":"disk","held":"no"' status.json
