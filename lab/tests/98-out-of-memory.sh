# budget: 50
# seconds: 120
# needs: commonhold work
# A machine without swap. Processes in no unit hold much of the memory, and one unit fills the rest with anonymous memory. The
# kernel kills only processes of that unit, and not the largest process, whose unit is within its entitlement. Every process gets
# its own oom_score_adj back when the shortage ends, and when the daemon is killed.

mib=1048576
killed() {
	sed -n 's/^oom_kill //p' "$1"
}
before=$(killed /proc/vmstat)
all_killed() {
	echo $(($(killed /proc/vmstat) - before))
}
# adjusted VALUE: the number of living memory hogs with this oom_score_adj.
adjusted() {
	count=0
	for pid in $(pidof hog); do
		[ -e "/proc/$pid/exe" ] && read -r adj < "/proc/$pid/oom_score_adj" && [ "$adj" = "$1" ] && count=$((count + 1))
	done 2> /dev/null
	echo "$count"
}
adj_of() {
	cat "/proc/$1/oom_score_adj"
}
problems() {
	commonhold status | grep -c "^problem: .*\`$1\`.* beyond its bound"
}

work touch outside 300 1 > outside.log 2>&1 &
ok "a process in no unit has its memory" wait_for 30 passes outside 1
cp /job/contracts/out-of-memory.toml contract.toml
ok "the daemon holds the contract" start_daemon contract.toml --backend cgroup || exit 1
touch_in owner big 960 1
ok "the owner has its memory" wait_for 60 passes big 1
commonhold exec hog -- sh -c 'echo 200 > /proc/self/oom_score_adj; exec work touch calm 4 1' > calm.log 2>&1 &
ok "one of the other unit needs little" wait_for 10 passes calm 1
calm=$(pidof calm) big=$(pidof big)
commonhold exec hog -- sh -c 'for i in $(seq 120); do work touch hog 64 1 & done; wait' > hogs.log 2>&1 &
maker=$!

# A unit beyond its bound is throttled (memory.high), yet gets there.
goes_first() {
	[ "$(adj_of "$calm")" = 1000 ] && [ "$(adjusted 0)" = 0 ]
}
ok "while memory is tight, the unit beyond its entitlement goes first" wait_for 60 goes_first
ok "before any process was killed" is "$(all_killed)" 0
are_killed() {
	[ "$(all_killed)" -ge 3 ]
}
ok "the kernel kills" wait_for 60 are_killed
kill -KILL $maker 2> /dev/null              # it may not have started all of them yet
kill -STOP $(pidof hog)
ok "the owner's process lives" kill -0 "$big"
ok "no process of the owner's was killed" is "$(killed "$HELD/owner/memory.events")" 0
ok "all that were killed are the other unit's" is "$(killed "$HELD/hog/memory.events")" "$(all_killed)"
ok "the owner keeps its memory" at_least $(($(value owner memory.current) / mib)) 960
ok "the owner's goes by its own" is "$(adj_of "$big")" 0
# The log has the problem from its beginning on; `status` shows the problem only while it lasts, and it may have ended by now.
ok "it is a problem" grep -q "^problem: .*\`hog\`.* beyond its bound" "$daemon_log"
account owner entitled; owner_entitled=$((found / mib))
account hog entitled
on_lists() {
	awk '/count:/ { sum += $2 } END { print int(sum / 256) }' /proc/zoneinfo
}
note "MiB: free $(($(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024)), on the lists of CPUs $(on_lists)"
note "MiB: the owner is entitled to $owner_entitled and uses $(($(value owner memory.current) / mib)), the other to $((found / mib)) and $(($(value hog memory.current) / mib)); killed $(all_killed)"
grep '^problem' "$daemon_log" | sed 's/^/# /'

# Ten memory hogs are left, and the unit is within its entitlement.
kill -KILL $(pidof hog | tr ' ' '\n' | tail -n +11)
own_again() {
	[ "$(adj_of "$calm")" = 200 ] && [ "$(adjusted 1000)" = 0 ]
}
ok "when the shortage has ended, every process has its own again" wait_for 20 own_again
ok "and there is no problem" is "$(problems hog)" 0

# The ten memory hogs again, now with a tiny entitlement on a machine whose memory is always tight.
cp /job/contracts/out-of-memory-less.toml contract.toml
kill -HUP "$daemon"
ok "with less, they go first again" wait_for 20 goes_first
kill -KILL "$daemon"
ok "after the daemon is killed, every process has its own" wait_for 30 own_again
ok "the owner lives on" kill -0 "$big"
ok "and so does the process in no unit" kill -0 "$(pidof outside)"
