# Measures, in the guest, a disk of 6.7 MB/s under the kind of control that $system names. Prints a line per measurement:
# `result WHAT VALUE`.
#
# The disk is the kernel's null_blk, which keeps written data in memory and transfers a fixed amount each 20 ms of the guest's
# clock. So the disk can be measured on a guest whose clock counts instructions. QEMU's throttle would use the host's clock.
PATH=/job:$PATH
. /job/lib.sh
trap - EXIT
insmod /lib/modules/configfs.ko
mount -t configfs none /sys/kernel/config
insmod /lib/modules/null_blk.ko nr_devices=0 || exit 1
folder=/sys/kernel/config/nullb/nullb0
mkdir $folder
for setting in size=512 memory_backed=1 mbps=8 queue_mode=2 hw_queue_depth=64 power=1; do
	echo "${setting#*=}" > "$folder/${setting%=*}"
done
device=/dev/nullb0
echo none > /sys/block/nullb0/queue/scheduler
number=$(cat /sys/block/nullb0/dev)
# The disk's bandwidth, in thousands of bytes per second.
begun=$(uptime_cs)
dd if=$device of=/dev/null bs=256k count=128 iflag=direct 2> /dev/null
carries=$((128 * 262144 / 10 / ($(uptime_cs) - begun)))
echo "result carries $carries"
units="half a b c d"
half_of_memory=$(awk '$1 == "MemTotal:" { print int($2 * 1024 / 2) }' /proc/meminfo)
base=$CGROUPS/bench
mkdir -p /mnt/disk
mke2fs=/job/mke2fs
$mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$device" || exit 1
mount -t ext4 "$device" /mnt/disk || exit 1
mkdir -p /mnt/disk/small
# Limit dirty pages to two seconds of so slow a disk.
echo 16777216 > /proc/sys/vm/dirty_bytes
echo 8388608 > /proc/sys/vm/dirty_background_bytes

# bytes UNIT: the bytes that the unit has transferred so far.
bytes() {
	sed -n "s/^$number //p" "$base/$1/io.stat" | tr ' ' '\n' | awk -F= '/^[rw]bytes/ { sum += $2 } END { print sum + 0 }'
}
# within_unit UNIT COMMAND...: runs COMMAND in a unit.
within_unit() {
	unit=$1
	shift
	case $system in
	ours | ours-rates) commonhold exec "$unit" -- "$@" ;;
	*) sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' - "$base/$unit" "$@" ;;
	esac
}
end_load() {
	[ ! -e copying ] || kill -KILL "$(cat copying)"
	rm -f copying
	pids=$(pidof half a b c d large dd)
	[ -z "$pids" ] || kill -KILL $pids
	pause 2
	sync
	echo 3 > /proc/sys/vm/drop_caches
}
# build WHAT TIMES: makes a compiler's disk accesses in unit a, TIMES times. Prints the mean time in ms, by the compiler's own
# clock; for the first time, the time of the first file, and the latency of reads in us; and unit b's rate meanwhile, in kB/s and
# in percent of the bandwidth that a left. A copy in unit b alternates between reading and writing, so successive builds meet
# both.
build() {
	from_a=$(bytes a) from_b=$(bytes b) begun=$(uptime_cs) sum=0
	for time in $(seq $2); do
		within_unit a work build build /mnt/disk/small 150 32 30 > built.$time 2> /dev/null
		read -r words took rest < built.$time
		sum=$((sum + took - ${rest##* }))
	done
	lasted=$((($(uptime_cs) - begun) * 10))
	a=$((($(bytes a) - from_a) / lasted)) b=$((($(bytes b) - from_b) / lasted))
	read -r words took rest < built.1
	echo "result $1 $((sum / $2))"
	echo "result $1-first ${rest##* }"
	awk -v what="$1" '{ print "result " what "-p50 " int($4 / 1000); print "result " what "-p99 " int($8 / 1000) }' built.1
	echo "result $1-light $a"
	echo "result $1-heavy $b"
	echo "result $1-used $((b * 100 / (carries - a)))"
}
# large_copy: copies a large file in unit b again and again, from the disk to the disk.
large_copy() {
	within_unit b sh -c 'echo $$ > copying
		while dd if=/mnt/disk/64m of=/mnt/disk/64m-copy bs=256k conv=fsync; do echo 1 > /proc/sys/vm/drop_caches; done' > /dev/null 2>&1 &
}
# copy UNIT SIZE: copies a file, and syncs it.
copy() {
	within_unit "$1" dd if="/mnt/disk/$2" of="/mnt/disk/$2-copy" bs=64k conv=fsync > /dev/null 2>&1
}
# small_copy: copies a small file in unit a, and prints the time in milliseconds.
small_copy() {
	begun=$(uptime_cs)
	copy a 2m
	echo $((($(uptime_cs) - begun) * 10))
}
# kilobytes SECONDS UNIT...: prints each unit's rate over SECONDS, in thousands of bytes per second.
kilobytes() {
	seconds=$1
	shift
	for unit; do eval "from_$unit=$(bytes "$unit")"; done
	begun=$(uptime_cs)
	pause "$seconds"
	elapsed=$(($(uptime_cs) - begun))
	for unit; do eval "echo \$((($(bytes "$unit") - from_$unit) / 10 / elapsed))"; done
}

# limit UNIT PERCENT: limits both directions to PERCENT of the disk's bandwidth, by a rate.
limit() {
	rate=$((carries * 10 * $2))
	echo "$number rbps=$rate wbps=$rate" > "$base/$1/io.max"
}
begin() {
	case $system in
	ours | ours-rates)
		base=$HELD
		more=
		[ $system = ours ] || more=--no-io-cost
		# Unquoted: an option or none.
		start_daemon /job/disk.toml --backend cgroup $more || cat "$daemon_log"
		;;
	*)
		base=$CGROUPS/bench
		echo "+io +memory" > $CGROUPS/cgroup.subtree_control
		mkdir -p $base
		echo "+io +memory" > $base/cgroup.subtree_control
		for unit in $units; do mkdir -p "$base/$unit"; done
		;;
	esac
	case $system in
	cost | cost-high)
		echo "$model" > $CGROUPS/io.cost.model
		echo "$quality" > $CGROUPS/io.cost.qos
		echo 400 > $base/half/io.weight
		[ $system = cost ] || for unit in a b; do echo $half_of_memory > $base/$unit/memory.high; done
		;;
	rates)
		limit half 50
		for unit in a b c d; do limit $unit 12; done
		;;
	static)
		echo 400 > $base/half/io.weight
		echo 67108864 > $base/a/memory.low
		limit half 50
		limit b 60
		limit c 12
		limit d 12
		;;
	esac
}
for size in 2 48 64; do dd if=/dev/zero of=/mnt/disk/${size}m bs=1M count=$size conv=fsync 2> /dev/null; done
work files files /mnt/disk/small 150 32 > /dev/null
# The disk's cost model, as the daemon gives it to the kernel.
commonhold calibrate --seconds 2 /mnt/disk || echo "not measured: no cost model"
line() {
	grep "^$number " "$CGROUPS/$1"
}
start_daemon /job/disk.toml --backend cgroup || exit 1
model=$(line io.cost.model) quality=$(line io.cost.qos)
kill -TERM "$daemon"
wait "$daemon"
echo 3 > /proc/sys/vm/drop_caches

begin
build build 1
end_load
large_copy
pause 5
build copied 5
end_load
within_unit b work read large "$device" 256 32 > /dev/null 2>&1 &
pause 5
build read 2
end_load
echo "result copy-alone $(small_copy)"
end_load
copy b 48m &
pause 2
echo "result copy-beside $(small_copy)"
end_load
within_unit half work read half "$device" 64 2 > /dev/null 2>&1 &
for unit in a b c d; do within_unit $unit work read $unit "$device" 64 4 > /dev/null 2>&1 & done
pause 6
set -- $(kilobytes 10 $units)
echo "result half $1"
echo "result four $((($2 + $3 + $4 + $5) / 4))"
echo "result together $(($1 + $2 + $3 + $4 + $5))"
kill -KILL $(pidof half)
pause 3
set -- $(kilobytes 5 a b c d)
echo "result idle $(($1 + $2 + $3 + $4))"
