# Measures, in the guest with systemd, a light user's third-party programs beside a heavy user's, under each way of control.
#
# Variables: mode (mixed, reverse, returns), ways, programs and heavies, runs or returns, and the seconds of each program. Prints
# a line per reading: @WAY RUN WHAT VALUE. Longer output goes into /out.
#
# ana is the light user, carol the heavy one. Under every way, their programs are services of systemd's in their users' slices.
# The names of the services begin with lab-light and lab-heavy.
PATH=/job:/usr/lib/postgresql/15/bin:$PATH
. /job/lib.sh
trap - EXIT
LIGHT=user.slice/user-1001.slice HEAVY=user.slice/user-1003.slice
mib=1048576
place=/mnt/disk
control=                # the way in force

tell() {
	echo "@$way $run $*"
}
# service OPTIONS... -- COMMAND...: starts a user's service in the background. Its output goes to a file in $place.
service() {
	systemd-run --quiet --collect "$@" > /dev/null
}
light() {
	name=$1
	shift
	service --uid=ana --slice=user-1001.slice --unit="lab-light-$name" -p WorkingDirectory=$place/light -p OOMPolicy=continue \
		-p StandardOutput="truncate:$place/light/$name.log" -p StandardError=inherit "$@"
}
heavy() {
	name=$1
	shift
	service --uid=carol --slice=user-1003.slice --unit="lab-heavy-$name" -p WorkingDirectory=$place/heavy -p OOMPolicy=continue \
		-p StandardOutput="truncate:$place/heavy/$name.log" -p StandardError=inherit "$@"
}
# light_waits SECONDS NAME COMMAND...: starts a service of the light user, and waits until it has ended, at most SECONDS.
light_waits() {
	until_s=$1 called=$2
	shift 2
	light "$called" -p RuntimeMaxSec="$until_s" --wait -- "$@"
}
# stat_of GROUP FILE KEY: a number in a file of a control group; empty if there is no such file.
stat_of() {
	sed -n "s/^$3 //p" "$CGROUPS/$1/$2" 2> /dev/null
}
meminfo() {
	echo $(($(sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo) / 1024))
}
# disk_kb: sets `disk_kb` to the drive's transfers so far.
disk_kb() {
	read -r r rm sectors_read rt w wm sectors_written rest < "/sys/block/${drive#/dev/}/stat"
	disk_kb=$(((sectors_read + sectors_written) / 2))
}

# --- the machine ---------------------------------------------------------------------------------------------------

prepare() {
	drive=$(disk "$disk") || exit 1
	mkdir -p $place
	# Without a journal, because all users would share it: a user who waits for a commit would also wait for other users' data, and
	# no control can prevent that.
	/sbin/mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$drive" || exit 1
	mount -t ext4 -o noatime "$drive" $place || exit 1
	mount -t debugfs none /sys/kernel/debug 2> /dev/null
	install -d -m 755 -o ana -g physics $place/light
	install -d -m 755 -o carol -g maths $place/heavy
	case $swap in
	zram)
		for module in lz4hc_compress zram; do [ ! -e /lib/modules/$module.ko ] || insmod /lib/modules/$module.ko; done
		echo 3072M > /sys/block/zram0/disksize
		swap_drive=/dev/zram0
		;;
	*) swap_drive=$(disk "$swap") || exit 1 ;;
	esac
	mkswap "$swap_drive" > /dev/null && swapon "$swap_drive" || exit 1
	insmod /lib/modules/bfq.ko 2> /dev/null
	bfq_was=$(sed 's/.*\[\(.*\)\].*/\1/' "/sys/block/${drive#/dev/}/queue/scheduler")
	# As the documentation says, a measured disk is held by weights, and an unmeasured disk by rates.
	if [ "$calibrate" = yes ]; then
		commonhold calibrate --seconds 2 $place > calibrated 2>&1 || echo "# not calibrated: $(tail -n 1 calibrated)"
	fi
	# The host allocates a page of the guest at its first touch, which takes many times as long as later ones: do it before
	# measuring.
	dd if=/dev/zero of=/dev/null bs="$(($(meminfo MemAvailable) - 100))M" count=1 2> /dev/null
	part=$(($(meminfo MemAvailable) / 2))
	echo "# memory $(meminfo MemTotal) MiB, $(meminfo MemAvailable) available; swap $(meminfo SwapTotal) MiB; CPUs $(nproc)"
}

# An idle virtual CPU leaves its part of the host to the others, which become faster: leaving CPUs idle would seem to cost
# nothing, or to help. So a filler runs on otherwise idle CPUs. Our scheduler lends such CPUs to the heavy user, and needs no
# filler.
filler() {
	service --slice=filler.slice --unit=lab-filler -- /job/spin 100000 "$(nproc)"
	systemctl set-property --runtime filler.slice CPUWeight=idle
	[ "$(cat $CGROUPS/filler.slice/cpu.idle)" = 1 ] || echo "# the filler is not idle: readings are off"
}
end_filler() {
	systemctl stop lab-filler 2> /dev/null
}

status_to() {
	commonhold status --json > "/out/$1.json" 2>&1
}
# hold WAY: puts a way of control in force.
hold() {
	control=$1
	case $control in
	knobs)
		# Equal shares, as in the contract. memory.low is only effective if the parent groups have it, too.
		systemctl set-property --runtime user.slice MemoryLow="$((part * 2))M"
		systemctl set-property --runtime user-1001.slice CPUWeight=100 IOWeight=100 MemoryLow="${part}M"
		systemctl set-property --runtime user-1003.slice CPUWeight=100 IOWeight=100 MemoryLow="${part}M" MemoryHigh="$((part * 3 / 2))M"
		echo bfq > "/sys/block/${drive#/dev/}/queue/scheduler" || echo "# no BFQ here"
		;;
	cgroup | kernel)
		start_daemon /job/mixed.toml --backend "$control" $daemon_options || { cat "$daemon_log"; return 1; }
		;;
	esac
}
release() {
	case $control in
	knobs)
		systemctl revert user-1001.slice user-1003.slice user.slice > /dev/null 2>&1
		echo "$bfq_was" > "/sys/block/${drive#/dev/}/queue/scheduler"
		;;
	cgroup | kernel)
		kill -TERM "$daemon"
		wait "$daemon"
		cp "$daemon_log" "/out/daemon-$way-$run.log"
		;;
	esac
	control=
}
stop_heavy() {
	systemctl kill --signal=KILL 'lab-heavy-*' 2> /dev/null
	systemctl stop 'lab-heavy-*' 2> /dev/null
	systemctl reset-failed 'lab-*' 2> /dev/null
}
# settle: pages in, writes back and drops caches, so that a run does not burden the next one.
settle() {
	sync
	echo 3 > /proc/sys/vm/drop_caches
	swapoff "$swap_drive" && swapon "$swap_drive"
}

# --- the light user's programs --------------------------------------------------------------------------------------

rests() {
	# So that the user's slice persists, with its settings.
	light rest -- bash -c 'kept=$(head -c 15728640 /dev/zero | tr "\0" x); while :; do sleep 1000; done'
	service --uid=carol --slice=user-1003.slice --unit=lab-rest-carol -- sleep 100000
}
database_begins() {
	cp -a /var/lib/lab-database $place/light/database
	chown ana $place/light/database
	chmod 700 $place/light/database
	light server -- postgres -D $place/light/database -c listen_addresses= -c unix_socket_directories=$place/light \
		-c shared_buffers=64MB -c autovacuum=off -c max_wal_size=1GB -c checkpoint_timeout=1h
	wait_for 60 psql -h $place/light -U postgres -c 'select 1' || { echo "# no database: $(tail -n 3 $place/light/server.log)"; return 1; }
	light_waits 300 fill pgbench -h $place/light -U postgres -i -q -s "$scale" postgres
	psql -q -h $place/light -U postgres -c checkpoint
}
database() {
	light_waits $((seconds * 3 + 90)) database pgbench -n -h $place/light -U postgres -c 2 -j 1 -T "$seconds" postgres
	sed -n 's/^tps = \([0-9.]*\) .*/database_tps \1/p; s/^latency average = \([0-9.]*\) ms/database_ms \1/p' $place/light/database.log > found
	while read -r words; do tell "$words"; done < found
}
compiler() {
	rm -rf $place/light/objects
	light_waits $((seconds * 15)) compiler bash -c "mkdir objects; TIMEFORMAT='took %R'; time make -s -j$((($(nproc) + 1) / 2)) -C /job/sources O=$place/light/objects"
	sed -n 's/^took /compiler_s /p' $place/light/compiler.log > found
	while read -r words; do tell "$words"; done < found
}
reader_begins() {
	dd if=/dev/urandom of=$place/light/data bs=1M count=256 conv=fsync 2> /dev/null
	chown ana $place/light/data
}
reader() {
	rm -f $place/light/reader.out
	light_waits $((seconds * 3 + 90)) reader fio --name=reader --filename=$place/light/data --rw=randread --bs=4k --direct=1 --ioengine=psync \
		--time_based --runtime="$seconds" --group_reporting --randseed="$run" --output-format=terse,json+ --output=$place/light/reader.out
	[ -s $place/light/reader.out ] || { echo "# the reader did not come to its end"; return; }
	cp $place/light/reader.out "/out/fio-$way-$run.json"
	grep '^3;' $place/light/reader.out | awk -F';' '{
		print "reader_per_s", $8
		for (i = 18; i < 38; i++) { split($i, at, "%="); if (at[1] + 0 == 50) print "reader_p50_us", at[2]; if (at[1] + 0 == 99) print "reader_p99_us", at[2] }
	}' > found
	while read -r words; do tell "$words"; done < found
}
faults() {
	stat_of $LIGHT memory.stat pgmajfault
}
walker() {
	before=$(faults)
	light_waits $((seconds * 4 + 60)) walker stress-ng --vm 1 --vm-bytes "${walk}M" --vm-keep --vm-method write64 --timeout "$((seconds * 2))s" --metrics-brief --oomable
	after=$(faults)
	# A bogo operation is 4,096 times 32 stores of 8 bytes: 1 MiB.
	awk -v walk="$walk" '$4 == "vm" && $5 ~ /^[0-9]+$/ { printf "walker_passes_per_s %.4f\n", $5 / walk / $6 }' $place/light/walker.log > found
	while read -r words; do tell "$words"; done < found
	[ -z "$before" ] || tell "walker_faults $((after - before))"
}

# --- the heavy user's programs -------------------------------------------------------------------------------------

heavy_begins() {
	dd if=/dev/urandom of=$place/heavy/data bs=1M count=512 conv=fsync 2> /dev/null
	chown carol $place/heavy/data
}
heavy_cpu() {
	heavy cpu -- stress-ng --cpu "$hogs" --cpu-method int64 --quiet
}
heavy_memory() {
	heavy memory -- stress-ng --vm 2 --vm-bytes "${crowd}M" --vm-keep --vm-method write64 --quiet --oomable
}
heavy_writer() {
	heavy writer -- sh -c 'while :; do dd if=/dev/zero of=written bs=1M count=1024 conv=fdatasync 2> /dev/null; done'
}
heavy_reader() {
	heavy reader -- fio --name=heavy --filename=data --rw=randread --bs=64k --direct=1 --ioengine=libaio --iodepth=16 --time_based --runtime=100000
}
heavy_forks() {
	heavy forks -- stress-ng --fork 2 --quiet
}

# one WAY: runs all of the light user's programs once, beside the heavy user's.
one() {
	way=$1
	hold "$way" || return
	[ "$way" = kernel ] || filler
	if [ "$way" != alone ]; then
		for program in $heavies; do heavy_$program; done
		pause "$warm"
	fi
	cpu_usec $HEAVY
	usec_from=$usec from=$(uptime_cs)
	disk_kb
	kb_from=$disk_kb
	for program in $programs; do $program; done
	cpu_usec $HEAVY
	disk_kb
	took=$(($(uptime_cs) - from))
	tell "heavy_cpus $(awk -v us=$((usec - usec_from)) -v cs=$took 'BEGIN { printf "%.2f", us / cs / 10000 }')"
	tell "disk_mb_s $(awk -v kb=$((disk_kb - kb_from)) -v cs=$took 'BEGIN { printf "%.1f", kb * 1.024 / cs / 10 }')"
	tell "seconds $((took / 100))"
	case $way in cgroup | kernel) status_to "status-$way-$run" ;; esac
	stop_heavy
	end_filler
	release
	settle
}
mixed() {
	database_begins
	reader_begins
	heavy_begins
	settle
	set -- $ways
	for run in $(seq "$runs"); do
		for way; do one "$way"; done
		# The next run begins with the next way.
		first=$1
		shift
		set -- "$@" "$first"
	done
}

# --- the reverse ------------------------------------------------------------------------------------------------------

# bogo NAME FIGURE: stress-ng's operations per second of real time.
bogo() {
	awk -v what="$2" '($4 == "cpu" || $4 == "vm") && $5 ~ /^[0-9]+$/ { printf "%s %.2f\n", what, $5 / $6 }' $place/heavy/$1.log > found
	while read -r words; do tell "$words"; done < found
}
# lent MOMENT: records the present loans while the heavy user works. MOMENT is the kind of work, with `-from` at its beginning.
lent() {
	case $way in cgroup | kernel) status_to "lent-$1-$way-$run" ;; esac
}
work_cpu() {
	heavy cpu -- stress-ng --cpu "$hogs" --cpu-method int64 --timeout "${seconds}s" --metrics-brief
	pause $((seconds / 4))
	lent cpu-from
	pause $((seconds / 2))
	lent cpu
	wait_for $((seconds * 3)) ended lab-heavy-cpu
	bogo cpu heavy_cpu_per_s
}
ended() {
	! systemctl is-active --quiet "$1"
}
# work_memory: the heavy user wants the memory while the light user sleeps. Only whole passes that began after $asleep seconds
# count. The pages of `work` compress to about half on zram. Those of stress-ng are uniform, and would take no space there.
work_memory() {
	heavy memory -- /job/work sum walks "$reach" 0
	pause "$asleep"
	lent memory
	pause "$seconds"
	awk -v after=$((asleep * 1000)) '/^pass/ { if (past >= after) { ms += $3; n++ } past += $3 }
		END { print "heavy_passes_per_s", n ? 1000 * n / ms : 0 }' $place/heavy/memory.log > found
	while read -r words; do tell "$words"; done < found
	stop_heavy
}
work_disk() {
	heavy disk -- fio --name=work --filename=data --rw=randrw --rwmixread=70 --bs=64k --direct=1 --ioengine=libaio --iodepth=16 --time_based \
		--runtime="$seconds" --group_reporting --output-format=terse --output=$place/heavy/disk.out
	pause $((seconds / 4))
	lent disk-from
	pause $((seconds / 2))
	lent disk
	wait_for $((seconds * 3)) ended lab-heavy-disk
	tell "heavy_mb_s $(grep '^3;' $place/heavy/disk.out | awk -F';' '{ printf "%.2f", ($7 + $48) * 1.024 / 1000 }')"
	stop_heavy
}
reverse() {
	heavy_begins
	set -- $ways
	for run in $(seq "$runs"); do
		for way; do
			settle
			hold "$way" || continue
			for work in memory cpu disk; do
				work_$work
				pause 3
			done
			stop_heavy
			release
		done
		first=$1
		shift
		set -- "$@" "$first"
	done
}

# --- returns ----------------------------------------------------------------------------------------------------------

# all_of_it NAME: the light user wakes up and touches its whole share: $touches MiB more than before.
all_of_it() {
	light_waits 300 "$1" dd if=/dev/zero of=/dev/null bs="${touches}M" count=1
	sed -n 's/.* copied, \([0-9.e+-]*\) s.*/\1/p' "$place/light/$1.log"
}
# memory_of UNIT FIELD: a figure of the unit's memory account, by the daemon's status.
memory_of() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' |
		sed -n "/^{\"unit\":\"$1\"/ s/.*\"memory\":{\(\"entitled[^}]*\)}.*/,\1/p" | sed "s/.*,\"$2\":\([0-9]*\).*/\1/" | head -n 1
}
returning() {
	run=0
	way=$(set -- $ways; echo "$1")
	hold "$way" || return
	pause 10
	entitled=$(memory_of light entitled) used=$(memory_of light used)
	release
	touches=$(((entitled - used) / mib - 32))
	tell "entitled_mib $((entitled / mib))"
	tell "touches_mib $touches"
	way=alone
	filler
	for run in 1 2 3; do tell "touch_s $(all_of_it touch)"; done
	end_filler
	for way in $ways; do
		settle
		run=0
		hold "$way" || continue
		heavy memory -- stress-ng --vm 1 --vm-bytes "${reach}M" --vm-keep --vm-method write64 --quiet --oomable
		[ "$way" = kernel ] || filler
		pause "$settles"
		for run in $(seq "$returns"); do
			set -- $sleeps
			shift $(((run - 1) % $#))
			tell "sleeps_s $1"
			pause "$1"
			status_to "before-$way-$run"
			tell "lent_mib $(($(memory_of light lent) / mib))"
			tell "touch_s $(all_of_it touch)"
			status_to "after-$way-$run"
		done
		stop_heavy
		end_filler
		release
	done
}

prepare
rests
case $mode in
mixed) mixed ;;
reverse) reverse ;;
returns) returning ;;
esac
[ "$mode" != mixed ] || systemctl stop lab-light-server
:
