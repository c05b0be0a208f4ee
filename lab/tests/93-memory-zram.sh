# budget: 60
# only: with --all
# seconds: 110
# memory: 1024
# needs: commonhold work
# disks: 3072
# Swap in compressed memory (zram). A unit's pages there count as used by it, and lower its bound by as much. Cold anonymous
# memory is lent, less the space that it takes there.

mib=1048576
drive=$(disk 3072)
[ -e /lib/modules/zram.ko ] || skip "no zram for this kernel"
for module in lz4hc_compress zram; do
	[ ! -e /lib/modules/$module.ko ] || insmod /lib/modules/$module.ko
done
mount -t debugfs none /sys/kernel/debug 2> /dev/null
echo 512M > /sys/block/zram0/disksize
mkswap /dev/zram0 > /dev/null
ok "swap is on zram" swapon /dev/zram0 || exit 1
commonhold doctor > doctor.txt
ok "doctor says that it is memory" grep -q "count as used by it" doctor.txt

ok "the daemon holds the contract" start_daemon /job/contracts/memory-patient.toml --verbose || exit 1
# A unit that touches nearly all of its entitlement once and never again, and one that is short. The pages' contents compress to
# about half.
commonhold exec owner -- work sum cold 300 1 > cold.log 2>&1 &
ok "the owner has its memory" wait_for 30 passes cold 1
touch_in borrower scan 600 0 "$drive"
# held: sets charged, high, packed, used and allowed of the owner, in MiB.
held() {
	statement
	field owner packed; packed=$((found / mib))
	field owner used; used=$((found / mib))
	field owner allowed; allowed=$((found / mib))
	charged=$(($(value owner memory.current) / mib))
	read -r high < "$HELD/owner/memory.high"
	high=$((high / mib))
	detail="$used of $allowed MiB: charged $charged, packed $packed, bound $high"
}
is_packed() {
	held
	[ "$packed" -ge 4 ] && [ "$(value owner memory.swap.current)" -ge $((8 * mib)) ]
}
ok "its cold pages go to zram, and count" wait_for 90 is_packed
agrees() {
	held
	# Small changes are not written: the bound may be off by 1/512 of the machine, and the rest by one sample.
	[ $((high + packed)) -le $((allowed + 6)) ] && [ $((high + packed)) -ge $((allowed - 6)) ] &&
		[ $((charged + packed)) -le $((used + 8)) ] && [ $((charged + packed)) -ge $((used - 8)) ]
}
ok "used is charged plus packed, and the bound is lower by packed" wait_for 20 agrees
note "MiB: $detail; in swap $(($(value owner memory.swap.current) / mib))"
takes() {
	statement
	field owner packed; all=$found
	field borrower packed; all=$(((all + found) / mib))
	read -r orig compressed taken rest < /sys/block/zram0/mm_stat
	detail="units $all, zram $((taken / mib)) MiB"
	[ $((taken / mib)) -le $((all + 8)) ] && [ $((taken / mib)) -ge $((all - 8)) ]
}
ok "together that is the memory that zram takes" wait_for 10 takes
note "zram holds $((orig / mib)) MiB in $((taken / mib))"
# The part that is lent follows the recent speed of reclaim, which varies with the host.
account borrower borrowed
note "lent: $((found / mib)) MiB"
commonhold status > status.txt
ok "status says so" grep -q "pages in compressed swap" status.txt
grep -e borrower -e owner -e compressed status.txt | sed 's/^/# /'
kill -KILL $(pidof scan)
kill -USR1 $(pidof cold)
ok "the owner has it back" wait_for 20 passes cold 2
note "$(tail -n 1 cold.log)"
ok "no process was killed" is "$(sed -n 's/^oom_kill //p' "$HELD/memory.events")" 0
ok "without a problem" is "$(grep -c '^problem' "$daemon_log")" 0
kill -TERM "$daemon"
wait "$daemon"
kill -KILL $(pidof cold)
swapoff /dev/zram0
