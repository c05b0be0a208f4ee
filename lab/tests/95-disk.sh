# budget: 180
# only: with --all
# seconds: 330
# needs: commonhold work mke2fs
# disks: 512:8000000 64:8000000 64:8000000:5000 32 33 34
# Disk bandwidth:
# - a unit has its share against others with deeper queues;
# - idle bandwidth is used, and limits hold;
# - a compiler's disk accesses are isolated from a large reader, also on a disk with high latency;
# - a second disk is independent of the first;
# - an array with parity is held instead of its drives, as it appears and goes;
# - a killed daemon leaves nothing.

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
# reader UNIT DEPTH: a process of the unit that keeps DEPTH requests in flight until it is killed.
reader() {
	commonhold exec "$1" -- work read "$1" "$device" 64 "$2" > "reader-$1" 2>&1 &
}
# job NAME COMMAND...: sets `job_ms` to its duration.
job() {
	begun=$(uptime_cs)
	"$@" > job.log 2>&1 || note "failed: $* ($(tail -n 1 job.log))"
	job_ms=$((($(uptime_cs) - begun) * 10))
}
drop() {
	sync
	echo 3 > /proc/sys/vm/drop_caches
}

# build NAME COUNT COMMAND...: a compiler's disk accesses: sets `build_us` to the time per file, `first_ms` to that of the first,
# and `rest_us` to the mean of the others; prints the latency of its reads.
build() {
	name=$1 count=$2
	shift 2
	"$@" work build build /mnt/disk/small "$count" 32 30 > "built-$name" 2>&1 || note "failed: $(tail -n 1 "built-$name")"
	read -r words ms rest < "built-$name"
	first_ms=${rest##* }
	build_us=$((ms * 1000 / count))
	rest_us=$(((ms - first_ms) * 1000 / (count - 1)))
	note "$name: $(cat "built-$name")"
}

# First without the daemon: the job alone, and beside a large reader.
mkdir -p /mnt/disk/small
work files files /mnt/disk/small 100 32 > /dev/null
drop
build alone 100 env
alone=$rest_us
work read large "$device" 256 32 > /dev/null 2>&1 &
pause 2
build beside 2 env
beside=$build_us
kill -KILL $(pidof large)
drop

controllers=$(cat $CGROUPS/cgroup.subtree_control)
ok "the daemon holds the contract" start_daemon /job/contracts/disk.toml --verbose || exit 1
ok "the io controller is on" grep -qw io "$HELD/cgroup.subtree_control"
commonhold exec b -- work read large "$device" 256 32 > /dev/null 2>&1 &
pause 2
ok "a unit alone is not limited" is "$(cat $HELD/b/io.max)" ""
isolated() {
	bytes a; from_a=$bytes; bytes b; from_b=$bytes
	begun=$(uptime_cs)
	build held 100 commonhold exec a --
	elapsed=$(($(uptime_cs) - begun))
	bytes a; a=$(((bytes - from_a) / 10 / elapsed)); bytes b; b=$(((bytes - from_b) / 10 / elapsed))
	note "a file took $alone us alone, $beside us beside a large reader, $rest_us us held and the first $first_ms ms; the reader had $b kB/s beside $a"
	ok "a compiler's way is hardly slowed by a large reader" at_most $((rest_us * 100 / alone)) 125
	ok "which uses the idle bandwidth" at_least $b $(((8000 - a) * 50 / 100))
	# A unit that had the drive to itself has requests for up to a second in flight.
	ok "once its requests in flight are done, in ms" at_most $first_ms 2000
}
measured isolated
ok "the reader is held" is "$(grep -c "^$number " $HELD/b/io.max)" 1
note "who is within its part: $(cat $HELD/a/io.max)"
sed -n '/disk/p' "$daemon_log" | head -n 12 | sed 's/^/# /'

# Another disk of the same speed: load on the first does not affect it.
second=$(disk 64:8000000)
commonhold exec c -- work read c "$second" 64 8 > /dev/null 2>&1 &
pause 1
bytes_of() {
	sed -n "s/^$(cat "/sys/block/${2#/dev/}/dev") .*rbytes=\([0-9]*\).*/\1/p" "$HELD/$1/io.stat"
}
apart() {
	from=$(bytes_of c "$second")
	begun=$(uptime_cs)
	pause 2
	c=$((($(bytes_of c "$second") - from) / 10 / ($(uptime_cs) - begun)))
	ok "a unit alone on a second disk has all of it" at_least $c 7200
}
measured apart
ok "no unit is limited there" is "$(cat $HELD/[abcd]/io.max | grep -vc "^$number ")" 0
kill -KILL $(pidof large c)

# A disk with a latency of 5 ms at any queue depth: a unit with one request in flight uses less than its half, and keeps that
# beside 32 requests of another unit.
slow=$(disk 64:8000000:5000)
serial() {
	from=$(bytes_of a "$slow")
	begun=$(uptime_cs)
	pause 2
	rate=$((($(bytes_of a "$slow") - from) / 10 / ($(uptime_cs) - begun)))
}
commonhold exec a -- work read one "$slow" 16 1 > /dev/null 2>&1 &
pause 1
serial
alone=$rate
commonhold exec b -- work read large "$slow" 64 32 > /dev/null 2>&1 &
pause 3
late() {
	serial
	note "one request of 16 KiB at a time: $alone kB/s alone, $rate beside 32 of 64 KiB"
	ok "one request at a time is hardly slowed by 32" at_least $((rate * 100 / alone)) 70
}
measured late
ok "the 32 are held" is "$(grep -c bps $HELD/b/io.max)" 1
kill -KILL $(pidof one large)
pause 1

# Seed 004, section 5.4.
reader half 2
for unit in a b c d; do reader $unit 4; done
pause 3
shares() {
	measure 6 half a b c d
	four=$(((rate_a + rate_b + rate_c + rate_d) / 4))
	ok "a unit with half reserved makes four times the progress of each of the four" within "$(ratio $rate_half $four)" 4 8
	ok "the disk is in use" at_least $rates 6800
}
measured shares
sed -n '/disk/p' "$daemon_log" | tail -n 5 | sed 's/^/# /'
kill -KILL $(pidof half)
pause 2
idle() {
	measure 3 a b c d
	ok "the others use its idle bandwidth" at_least $rates 7000
	ok "in equal parts" within "$(ratio $rate_a $rate_b)" 1 15
}
measured idle
for unit in a b c d; do kill -KILL $(pidof $unit); done
pause 1
reader slow 4
pause 1
limited() {
	measure 3 slow
	ok "a limit holds on an idle disk" within $rate_slow 1000 8
}
measured limited
kill -KILL $(pidof slow)

# Buffered writes are written back later, by kernel threads: they are charged to the unit, and count against its limit.
written() {
	while read -r device_number rest; do
		[ "$device_number" = "$number" ] && wbytes=${rest#*wbytes=} && wbytes=${wbytes%% *} && return
	done < "$1"
	wbytes=0
}
later() {
	written "$HELD/slow/io.stat"; from=$wbytes
	written "$CGROUPS/io.stat"; all_from=$wbytes
	job commonhold exec slow -- dd if=/dev/zero of=/mnt/disk/later bs=64k count=48 conv=notrunc
	wrote=$job_ms
	job sync
	written "$HELD/slow/io.stat"; own=$((wbytes - from))
	written "$CGROUPS/io.stat"; all=$((wbytes - all_from))
	note "3072 KiB were written to a file in $wrote ms, and by sync to the disk in $job_ms ms: $((own / 1024)) KiB of $((all / 1024)) by its own account"
	ok "write-back is charged to the unit" at_least $((own / 1024)) 3000
	ok "nearly all of it" at_least $((own * 100 / all)) 90
	ok "and its limit holds for it: 3 MiB at 1 MB/s, in ms" at_least $((wrote + job_ms)) 2000
}
later

# An array with parity writes to its drives on behalf of no unit: the daemon holds the array instead, as soon as it is assembled.
array=/sys/block/md42
assemble() {
	echo md42 > /sys/module/md_mod/parameters/new_array
	echo raid5 > $array/md/level
	echo none > $array/md/metadata_version
	echo 3 > $array/md/raid_disks
	echo 65536 > $array/md/chunk_size
	slot=0
	for drive in $drives; do
		cat "/sys/block/$drive/dev" > $array/md/new_dev
		echo 0 > "$array/md/dev-$drive/offset"
		echo 24576 > "$array/md/dev-$drive/size"
		echo $slot > "$array/md/dev-$drive/slot"
		slot=$((slot + 1))
	done
	echo 24576 > $array/md/component_size
	echo none > $array/md/resync_start     # all zeros are their own parity
	echo active > $array/md/array_state
	[ "$(cat $array/size)" -gt 0 ]
}
# limits NAME...: the number of these devices with a limit for the unit.
limits() {
	for limited; do
		grep -c "^$(cat "/sys/block/$limited/dev") .*bps=[0-9]" "$HELD/slow/io.max"
	done | grep -c 1
}
limits_are() {
	is "$(limits "$@")" "$expected"
}
# accounted: the unit's written bytes, by its account.
accounted() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' |
		sed -n 's/^{"unit":"slow",.*"disk":{[^}]*"written_bytes":\([0-9]*\).*/\1/p'
}
drives=$(for serial in 32 33 34; do drive=$(disk $serial); echo "${drive#/dev/}"; done)
for module in md-mod xor async_tx async_memcpy async_xor raid6_pq async_pq async_raid6_recov raid456; do
	[ ! -e /lib/modules/$module.ko ] || insmod /lib/modules/$module.ko
done
if [ -d /sys/module/raid456 ] && [ -d /sys/module/md_mod ]; then
	ok "a limit holds for every drive" is "$(limits $drives)" 3
	ok "an array of them is assembled" assemble
	expected=1
	ok "its limit is on the array then" wait_for 10 limits_are md42
	ok "and on no drive of it" is "$(limits $drives)" 0
	commonhold doctor --json | tr -d '\n' > doctor.txt
	ok "doctor says so" grep -q '"disk md42", *"state": "yes", *"reason": "raid5 on nvme' doctor.txt ||
		note "$(grep -o '"disk md42".\{200\}' doctor.txt)"
	from=$(accounted)
	job commonhold exec slow -- dd if=/dev/zero of=/dev/md42 bs=64k count=48 oflag=direct
	is_accounted() {
		is $((($(accounted) - from) / 1024)) 3072
	}
	ok "writes to the array are charged to the unit, in KiB" wait_for 3 is_accounted
	ok "and its limit holds for it: 3 MiB at 1 MB/s, in ms" no_fewer $job_ms 2000
	echo clear > $array/md/array_state
	expected=3
	ok "when the array is stopped, the limit is on its drives again" wait_for 10 limits_are $drives
	ok "nothing is wrong with that" is "$(grep -c 'problem.*9:42' "$daemon_log")" 0
	ok "it is assembled again" assemble
	expected=1
	ok "and its limit is on the array again" wait_for 10 limits_are md42
else
	note "no md for this kernel: not tested"
fi
commonhold status | sed 's/^/# /'

kill -KILL "$daemon"
gone() { ! [ -d "$HELD" ]; }
ok "with the daemon, the control groups go" wait_for 10 gone
ok "and the limits" is "$(find $CGROUPS -name io.max -exec cat {} + | grep -c bps)" 0
ok "and the controllers" is "$(cat $CGROUPS/cgroup.subtree_control)" "$controllers"
[ ! -d $array ] || echo clear > $array/md/array_state
umount /mnt/disk
