# In the guest: one disk of 8 MB/s under several kinds of control, one after the other. Prints a line per measurement, which
# begins with `result`: SYSTEM WHAT VALUE.
PATH=/job:$PATH
. /job/lib.sh
trap - EXIT
device=$(disk 512:8000000)
number=$(cat "/sys/block/${device#/dev/}/dev")
units="half a b c d"
base=$CGROUPS/bench
mkdir -p /mnt/disk
mke2fs=/job/mke2fs
$mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$device" || exit 1
mount -t ext4 "$device" /mnt/disk || exit 1
mkdir -p /mnt/disk/small

# bytes UNIT: what a unit transferred so far.
bytes() {
	sed -n "s/^$number //p" "$base/$1/io.stat" | tr ' ' '\n' | awk -F= '/^[rw]bytes/ { sum += $2 } END { print sum + 0 }'
}
# within_unit UNIT COMMAND...
within_unit() {
	unit=$1
	shift
	case $system in
	ours) commonhold exec "$unit" -- "$@" ;;
	*) sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' - "$base/$unit" "$@" ;;
	esac > /dev/null 2>&1
}
end_load() {
	pids=$(pidof half a b c d large)
	[ -z "$pids" ] || kill -KILL $pids
	pause 2
	sync
	echo 3 > /proc/sys/vm/drop_caches
}
# job: how long a job with many small files takes in unit a, in milliseconds.
job() {
	begun=$(uptime_cs)
	within_unit a work files small /mnt/disk/small 20 32
	echo $((($(uptime_cs) - begun) * 10))
}
# kilobytes SECONDS UNIT...: thousands of bytes per second of each.
kilobytes() {
	seconds=$1
	shift
	for unit; do eval "from_$unit=$(bytes "$unit")"; done
	begun=$(uptime_cs)
	pause "$seconds"
	elapsed=$(($(uptime_cs) - begun))
	for unit; do eval "echo \$((($(bytes "$unit") - from_$unit) / 10 / elapsed))"; done
}

begin() {
	case $system in
	ours)
		base=$HELD
		start_daemon /job/disk.toml || cat "$daemon_log"
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
	weights)
		echo 400 > $base/half/io.weight
		;;
	rates)
		echo "$number rbps=4000000 wbps=4000000" > $base/half/io.max
		for unit in a b c d; do echo "$number rbps=1000000 wbps=1000000" > "$base/$unit/io.max"; done
		;;
	esac
}
end() {
	end_load
	case $system in
	ours)
		kill -TERM "$daemon"
		wait "$daemon"
		;;
	*)
		for unit in $units; do rmdir "$base/$unit"; done
		rmdir $base
		echo "-io -memory" > $CGROUPS/cgroup.subtree_control
		;;
	esac
}

for system in ${SYSTEMS:-none weights rates ours}; do
	begin
	echo "result $system alone $(job)"
	within_unit b work read large "$device" 256 32 &
	pause 5
	before=$(bytes b)
	took=$(job)
	echo "result $system beside $took"
	echo "result $system copy $((($(bytes b) - before) / took))"
	end_load
	within_unit half work read half "$device" 64 2 &
	for unit in a b c d; do within_unit $unit work read $unit "$device" 64 4 & done
	pause 6
	set -- $(kilobytes 10 $units)
	echo "result $system half $1"
	echo "result $system four $((($2 + $3 + $4 + $5) / 4))"
	echo "result $system together $(($1 + $2 + $3 + $4 + $5))"
	kill -KILL $(pidof half)
	pause 3
	set -- $(kilobytes 5 a b c d)
	echo "result $system idle $(($1 + $2 + $3 + $4))"
	end
done
