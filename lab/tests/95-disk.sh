# seconds: 300
# needs: commonhold work mke2fs
# disks: 512:8000000
# Disk bandwidth: shares against those who have more requests under way, what is idle is used, limits, isolation of a job
# with many small files from a large copy, and nothing left when the daemon is killed.

device=$(disk 512:8000000)
name=${device#/dev/}
number=$(cat "/sys/block/$name/dev")
mkdir -p /mnt/disk
/job/mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$device" > mke2fs.log 2>&1 || note "$(cat mke2fs.log)"
ok "a file system is on the disk" mount -t ext4 "$device" /mnt/disk

said() {
	grep -q -- "$1" "$daemon_log"
}
# measure SECONDS UNIT...: sets rate_UNIT, in thousands of bytes per second, for each, and `rates` to their sum.
measure() {
	seconds=$1
	shift
	for unit; do bytes "$unit"; eval "from_$unit=$bytes"; done
	begun=$(uptime_cs)
	pause "$seconds"
	rates=0
	for unit; do bytes "$unit"; eval "rate_$unit=\$((bytes - from_$unit))"; done
	elapsed=$(($(uptime_cs) - begun))
	for unit; do
		eval "rate_$unit=\$((rate_$unit / 10 / elapsed)); rates=\$((rates + rate_$unit))"
	done
	note "thousands of bytes per second: $(for unit; do eval "printf '%s %s, ' $unit \$rate_$unit"; done)together $rates"
}
# reader UNIT DEPTH: a process of the unit that has DEPTH requests under way, for ever.
reader() {
	commonhold exec "$1" -- work read "$1" "$device" 64 "$2" > "reader-$1" 2>&1 &
}
# job NAME COMMAND...: sets `job_ms` to how long it took.
job() {
	begun=$(uptime_cs)
	"$@" > job.log 2>&1 || note "failed: $* ($(tail -n 1 job.log))"
	job_ms=$((($(uptime_cs) - begun) * 10))
}
drop() {
	sync
	echo 3 > /proc/sys/vm/drop_caches
}

# Without anybody's help first: the job alone, and beside a large copy.
mkdir -p /mnt/disk/small /mnt/disk/large
job work files small /mnt/disk/small 40 32
alone=$job_ms
work read large "$device" 256 32 > /dev/null 2>&1 &
pause 3
job work files small /mnt/disk/small 40 32
beside=$job_ms
kill -KILL $(pidof large)
drop

controllers=$(cat $CGROUPS/cgroup.subtree_control)
ok "the daemon holds the contract" start_daemon /job/contracts/disk.toml --verbose || exit 1
ok "the io controller is on" grep -qw io "$HELD/cgroup.subtree_control"
commonhold exec b -- work read large "$device" 256 32 > /dev/null 2>&1 &
pause 3
isolated() {
	bytes b; before=$bytes
	job commonhold exec a -- work files small /mnt/disk/small 40 32
	bytes b; large=$(((bytes - before) / job_ms))
	note "40 small files: alone $alone ms, beside a large copy $beside ms, held $job_ms ms, with $large kB/s for the copy"
	ok "a job of many small files suffers less than half as much from a large copy" at_most $((job_ms - alone)) $(((beside - alone) / 2))
}
measured isolated
sed -n '/disk/p' "$daemon_log" | head -n 12 | sed 's/^/# /'
kill -KILL $(pidof large)
drop

# Seed 004, section 5.4.
reader half 2
for unit in a b c d; do reader $unit 4; done
pause 3
shares() {
	measure 8 half a b c d
	four=$(((rate_a + rate_b + rate_c + rate_d) / 4))
	ok "who has reserved half makes four times the progress of each of the four" within "$(ratio $rate_half $four)" 4 20
	ok "the disk is in use" at_least $rates 7200
}
measured shares
sed -n '/disk/p' "$daemon_log" | tail -n 5 | sed 's/^/# /'
kill -KILL $(pidof half)
pause 2
idle() {
	measure 5 a b c d
	ok "what it leaves, the others use" at_least $rates 7200
	ok "in equal parts" within "$(ratio $rate_a $rate_b)" 1 15
}
measured idle
for unit in a b c d; do kill -KILL $(pidof $unit); done
pause 1
reader slow 4
pause 1
limited() {
	measure 4 slow
	ok "a limit holds on an idle disk" within $rate_slow 1000 8
}
measured limited
kill -KILL $(pidof slow)

# What is written to a file and not waited for is written later, by the kernel's own threads: for the unit, and by its limit.
written() {
	while read -r device_number rest; do
		[ "$device_number" = "$number" ] && wbytes=${rest#*wbytes=} && wbytes=${wbytes%% *} && return
	done < "$1"
	wbytes=0
}
later() {
	written "$HELD/slow/io.stat"; from=$wbytes
	written "$CGROUPS/io.stat"; all_from=$wbytes
	job commonhold exec slow -- dd if=/dev/zero of=/mnt/disk/later bs=64k count=64 conv=notrunc
	wrote=$job_ms
	job sync
	written "$HELD/slow/io.stat"; own=$((wbytes - from))
	written "$CGROUPS/io.stat"; all=$((wbytes - all_from))
	note "4096 KiB were written to a file in $wrote ms, and by sync to the disk in $job_ms ms: $((own / 1024)) KiB of $((all / 1024)) by its own account"
	ok "what is written back is the unit's" at_least $((own / 1024)) 4000
	ok "nearly all of it" at_least $((own * 100 / all)) 90
	ok "and its limit holds for it: 4 MiB at 1 MB/s, in ms" at_least $((wrote + job_ms)) 2500
}
later
commonhold status | sed 's/^/# /'

kill -KILL "$daemon"
gone() { ! [ -d "$HELD" ]; }
ok "with the daemon, the control groups go" wait_for 10 gone
ok "and the limits" is "$(find $CGROUPS -name io.max -exec cat {} + | grep -c bps)" 0
ok "and the controllers" is "$(cat $CGROUPS/cgroup.subtree_control)" "$controllers"
umount /mnt/disk
