# budget: 90
# only: with --all
# seconds: 330
# memory: 1024
# cpus: 2
# needs: commonhold work
# disks: 2048:100000000
# The longer an owner leaves its memory idle, the more of it is lent for anonymous memory, and the longer its return may take, up
# to what was promised. Swap takes 100 MB/s.

mib=1048576
swap=$(disk 2048:100000000)
mkswap "$swap" > /dev/null && swapon "$swap"
ok "there is swap" at_least "$(sed -n 's/^SwapFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)" 2000000

printf 'version = 1\n[unit.owner]\n[unit.borrower]\n' > contract.toml
ok "the daemon holds the contract" start_daemon contract.toml --backend cgroup --verbose || exit 1
touch_in owner small 16 1
ok "the owner needs little" wait_for 10 passes small 1
slept_from=$(uptime_cs)
touch_in borrower big 1200 0

# lent: sets `lent`, `idle` (the owner's unused memory beyond the reserve of 8 %), in MiB, and `promise` in ms.
lent() {
	account owner lent; lent=$((found / mib))
	field owner entitled; idle=$((found / mib))
	field owner used; idle=$((idle - found / mib))
	total=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
	idle=$((idle - total * 8 / 100 / 1024))
	field owner within_ns; promise=$((found / 1000000))
	slept_ms=$((($(uptime_cs) - slept_from) * 10))
	detail="$lent of $idle MiB after $slept_ms ms, back within $promise ms"
}
few() {
	lent
	[ "$lent" -gt 0 ]
}
ok "a little is lent at first" wait_for 30 few
note "$detail"
# samples: every five seconds, the borrower's memory and the amount swapped.
samples() {
	while sleep 5; do
		commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' | sed -n '/^{"unit":"borrower"/ s/.*"memory":{\([^}]*\)}.*/\1/p'
		grep -E '^(pswpout|pswpin) ' /proc/vmstat | tr '\n' ' '
	done
}
samples > samples.txt &
sampling=$!
nearly_all() {
	lent
	[ "$lent" -ge $((idle * 9 / 10)) ]
}
ok "nine tenths of the idle memory are lent within two minutes" wait_for 120 nearly_all
kill $sampling
note "$detail"
nearly_all || sed 's/^/# /' samples.txt
pause 5
lent
ok "promised is no more than a tenth of the time for which it was idle" at_most "$promise" $((slept_ms / 10))
commonhold status > status.txt
ok "status says when it will have that back" grep -q "has all that it lends back within" status.txt


# back: sets the promised and the actual duration of the owner's last call-back, in ms.
back() {
	statement
	last=$(sed -n '/^{"unit":"owner"/ s/.*"last_call_backs":\[\([^]]*\)\].*/\1/p' status.json | sed 's/.*{//')
	promised=$(echo "$last" | sed 's/.*"promised_ns":\([0-9]*\).*/\1/')
	took=$(echo "$last" | sed 's/.*"took_ns":\([0-9]*\).*/\1/')
	promised=$((promised / 1000000)) took=$((took / 1000000))
}
field owner entitled; wants=$((found / mib))
# Its entitlement varies by some MiB, and any part that it does not touch would stay idle.
field owner used; wants=$((wants - found / mib + 40))
touch_in owner wants $wants 1
ok "the owner has all of it at once" wait_for 60 passes wants 1
note "$wants MiB: $(tail -n 1 wants.log)"
is_back() {
	account owner called_back
	[ "$found" -ge 1 ] && back && [ -n "$took" ]
}
ok "it called back its loan" wait_for 30 is_back
pause 2
account owner call_back_max_ns; longest=$((found / 1000000))
field owner call_backs_late; late=$found
field owner called_back
note "$found call-backs, $late late, the longest $longest ms; the last took $took of $promised ms"
account owner called_back
ok "of a hundred call-backs no more than five were late" at_most $((late * 100)) $((found * 5))

# An owner that was active a moment ago lends as little as ever.
kill -KILL $(pidof wants)
slept_from=$(uptime_cs)
ok "its idle memory is lent again" wait_for 30 few
ok "to be back within a second" is "$promise" 1000
note "$detail"
ok "no process was killed" is "$(sed -n 's/^oom_kill //p' "$HELD/memory.events")" 0
kill -TERM "$daemon"
wait "$daemon"
kill -KILL $(pidof small big)
swapoff "$swap"
ok "nothing went wrong" is "$(grep -c '^problem' "$daemon_log")" 0
