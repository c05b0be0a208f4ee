# budget: 65
# only: with --all
# seconds: 150
# needs: commonhold work mke2fs
# disks: 512:8000000
# Disks that honour weights. Measuring a disk makes the daemon switch the kernel's cost model on, and off again at its end. Units
# get their shares by weights, which feedback corrects. BFQ does the same.

device=$(disk 512:8000000)
name=${device#/dev/}
number=$(cat "/sys/block/$name/dev")
queue=/sys/block/$name/queue
mkdir -p /mnt/disk
/job/mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$device" > mke2fs.log 2>&1 || note "$(cat mke2fs.log)"
mount -t ext4 "$device" /mnt/disk
ok "the drive has a queue that can be scheduled" test -d "/sys/block/$name/mq"
[ -e $CGROUPS/io.cost.qos ] || skip "this kernel has no io.cost"

# line FILE: the disk's line in the kernel's file.
line() {
	sed -n "s/^$number //p" "$1"
}
start_readers() {
	commonhold exec one -- work read one "$device" 64 8 > /dev/null 2>&1 &
	commonhold exec three -- work read three "$device" 64 8 > /dev/null 2>&1 &
}
stop_readers() {
	kill -KILL $(pidof one three)
}
# shares WEIGHER PERCENT: three to one, off by at most PERCENT.
shares() {
	bytes one; one=$bytes
	bytes three; three=$bytes
	begun=$(uptime_cs)
	pause 6
	bytes one; one=$((bytes - one))
	bytes three; three=$((bytes - three))
	elapsed=$(($(uptime_cs) - begun))
	note "thousands of bytes per second: one $((one / 10 / elapsed)), three $((three / 10 / elapsed))"
	ok "$1: three to one" within "$(ratio $three $one)" 3 $2
	ok "$1: the disk is in use" at_least $(((one + three) / 10 / elapsed)) 6800
}

# Measured.
work read busy "$device" 64 4 > /dev/null 2>&1 &
pause 1
ok "a disk that is in use is not measured" sh -c '! commonhold calibrate --seconds 1 /mnt/disk > busy.log 2>&1'
ok "and the reason is reported" grep -q "is busy" busy.log
kill -KILL $(pidof busy)
pause 1
ok "a disk is measured" commonhold calibrate --seconds 1 /mnt/disk > measured.log 2>&1
sed 's/^/# /' measured.log
ok "nothing is left of it" is "$(ls -A /mnt/disk)" "lost+found"
found() {
	sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" /var/lib/commonhold/disks/*.json | head -n 1
}
ok "it carries what it carries" within "$(found bytes_per_s)" 8000000 20
ok "in small requests too" within "$(found random_per_s)" 1953 20

# By the kernel's cost model.
was=$(line $CGROUPS/io.cost.qos)
commonhold run /job/contracts/weights.toml --dry-run > dry.log 2>&1
ok "a dry run says which disk it would be on for" grep -q "^io.cost would be on for ${device#/dev/}, until the end$" dry.log
ok "and does not switch it on" is "$(line $CGROUPS/io.cost.qos)" "$was"
ok "the daemon holds the contract" start_daemon /job/contracts/weights.toml --verbose || exit 1
ok "io.cost is on" is "$(line $CGROUPS/io.cost.qos | grep -c '^enable=1 ctrl=user')" 1
note "$(line $CGROUPS/io.cost.model)"
note "$(line $CGROUPS/io.cost.qos)"
start_readers
pause 5
measured shares io.cost 12
grep disk "$daemon_log" | tail -n 3 | sed 's/^/# /'
ok "by weights and no rates" is "$(cat $HELD/one/io.max $HELD/three/io.max)" ""
stop_readers
kill -KILL "$daemon"
gone() { ! [ -d "$HELD" ] && ! [ -e /run/commonhold/journal ]; }
ok "with the daemon, the control groups go" wait_for 10 gone
ok "io.cost is off again" is "$(line $CGROUPS/io.cost.qos | cut -d ' ' -f 1,2)" "enable=0 ctrl=auto"
ok "and its model the kernel's" is "$(line $CGROUPS/io.cost.model | cut -d ' ' -f 1)" ctrl=auto
note "before: '$was'"

# By BFQ.
scheduled() {
	grep -q "\[$1\]" "$queue/scheduler"
}
if [ -e /lib/modules/bfq.ko ] && insmod /lib/modules/bfq.ko; then
	echo bfq > "$queue/scheduler"
	ok "BFQ schedules the disk" scheduled bfq
	ok "the daemon holds the contract again" start_daemon /job/contracts/weights.toml --verbose || exit 1
	start_readers
	# Two more corrections, since BFQ has its own scale of weights.
	pause 9
	measured shares BFQ 25
	grep disk "$daemon_log" | tail -n 3 | sed 's/^/# /'
	ok "by weights and no rates" is "$(cat $HELD/one/io.max $HELD/three/io.max)" ""
	stop_readers
	kill -KILL "$daemon"
	ok "with the daemon, the control groups go" wait_for 10 gone
	echo none > "$queue/scheduler"
else
	note "no BFQ for this kernel: not tested"
fi
rm -rf /var/lib/commonhold
umount /mnt/disk
