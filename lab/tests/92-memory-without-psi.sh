# budget: 45
# only: with --all
# seconds: 80
# boot: psi=0
# needs: commonhold work
# disks: 3072
# Memory on a kernel with less information. Without PSI, it does not report which unit waits for memory: a short unit is
# recognised by refaults, and gets a loan. Without generations (MGLRU), it does not report the age of pages: inactive file pages
# count as cold.

mib=1048576
drive=$(disk 3072)
mount -t debugfs none /sys/kernel/debug 2> /dev/null
ok "the kernel reports no pressure" test ! -e /proc/pressure/memory
ok "the daemon holds the contract" start_daemon /job/contracts/memory-patient.toml --verbose || exit 1
commonhold exec owner -- work touch small 16 1 > small.log 2>&1 &
commonhold exec borrower -- work touch scan 1000 0 "$drive" > scan.log 2>&1 &
borrows() {
	read -r high < $HELD/borrower/memory.high
	read -r kept < $HELD/owner/memory.high
	[ "$high" != max ] && [ "$kept" != max ] && [ $((high - kept)) -gt $((96 * mib)) ]
}
ok "a short unit borrows" wait_for 60 borrows
note "MiB: the owner is allowed $((kept / mib)), the borrower $((high / mib))"

# Generations are switched off while the daemon runs; the kernel shows existing ones all the same.
enabled=/sys/kernel/mm/lru_gen/enabled
if [ -e $enabled ]; then
	echo n > $enabled
	commonhold doctor | tr -s ' \n' ' ' > doctor.txt
	ok "doctor says that no generations are made" grep -q "the kernel has generations of pages, but they are disabled" doctor.txt
	ok "they are still shown" grep -q '^memcg' /sys/kernel/debug/lru_gen
	touch_in owner read 120 1 "$drive" 1200
	ok "the owner reads a file once" wait_for 20 passes read 1
	is_cold() {
		account owner cold
		[ "$found" -ge $((60 * mib)) ]
	}
	ok "its inactive pages are cold" wait_for 30 is_cold
	note "MiB: $((found / mib)) are cold"
	echo y > $enabled
fi
ok "without a problem" is "$(grep -c '^problem' "$daemon_log")" 0
