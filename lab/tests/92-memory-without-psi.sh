# seconds: 80
# boot: psi=0
# needs: commonhold work
# disks: 3072
# Memory on a kernel that does not tell who waits for it: who is short is seen by what comes back, and is lent to.

mib=1048576
mount -t debugfs none /sys/kernel/debug 2> /dev/null
ok "the kernel tells no pressure" test ! -e /proc/pressure/memory
ok "the daemon holds the contract" start_daemon /job/contracts/memory-patient.toml --verbose || exit 1
commonhold exec owner -- work touch small 16 1 > small.log 2>&1 &
commonhold exec borrower -- work touch scan 1000 0 "$(disk 3072)" > scan.log 2>&1 &
borrows() {
	read -r high < $HELD/borrower/memory.high
	read -r kept < $HELD/owner/memory.high
	[ "$high" != max ] && [ "$kept" != max ] && [ $((high - kept)) -gt $((96 * mib)) ]
}
ok "who is short borrows" wait_for 60 borrows
note "MiB: the owner is allowed $((kept / mib)), the borrower $((high / mib))"
ok "without a problem" is "$(grep -c '^problem' "$daemon_log")" 0
