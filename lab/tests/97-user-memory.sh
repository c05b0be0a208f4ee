# seconds: 60
# needs: commonhold work
# disks: 768:100000000 512:8000000
# Without control groups: the `user` backend pages out what a unit has beyond its part, which comes back when it is touched and
# goes again; and gives priorities to who reads from a disk that BFQ schedules. Nobody is killed, and nothing is left.

swap=$(disk 768:100000000)
device=$(disk 512:8000000)
queue=/sys/block/${device#/dev/}/queue

# of PID KEY: a size of a process, in MiB.
of() {
	kib=$(sed -n "s/^$2:[ \t]*\([0-9]*\) kB/\1/p" "/proc/$1/status" 2> /dev/null)
	echo $((${kib:-0} / 1024))
}
mkswap "$swap" > /dev/null && swapon "$swap"
bfq=
if [ -e /lib/modules/bfq.ko ] && insmod /lib/modules/bfq.ko; then
	echo bfq > "$queue/scheduler" && bfq=1
fi
ok "the daemon holds the contract" start_daemon /job/contracts/user.toml --backend user --verbose || exit 1
ok "it says that memory is held weakly" grep -q '^memory  held weakly, though the contract asks for it: ' "$daemon_log"

touch_in bounded large 300 1
within_bound() {
	large=$(pidof large) || return 1
	detail="$(of "$large" VmRSS) MiB are there, $(of "$large" VmSwap) in swap"
	passes large "$1" && [ "$(of "$large" VmRSS)" -le 204 ] && [ "$(of "$large" VmSwap)" -ge 90 ]
}
ok "what a unit has beyond its part is paged out" wait_for 20 within_bound 1
ok "and not more" at_least "$(of "$large" VmRSS)" 190
kill -USR1 "$large"
ok "it has it again when it touches it, and keeps to its part" wait_for 20 within_bound 2
note "$(tail -n 1 large.log)"
account bounded used
ok "status tells what it uses" at_most $((found / 1048576)) 210

if [ "$bfq" ]; then
	commonhold exec one -- work read one "$device" 64 8 > /dev/null 2>&1 &
	commonhold exec three -- work read three "$device" 64 8 > /dev/null 2>&1 &
	# prior NAME PATTERN: the priority of one of its processes.
	prior() {
		detail="$(ionice -p "$(pidof "$1" | cut -d ' ' -f 1)")"
		echo "$detail" | grep -q "$2"
	}
	ok "who has most is served first" wait_for 10 prior three '^best-effort: prio 0'
	ok "who has a third of that comes after it" wait_for 10 prior one '^best-effort: prio [4-7]'
	read_by() {
		sum=0
		for pid in $(pidof "$1"); do
			sum=$((sum + $(sed -n 's/^read_bytes: //p' "/proc/$pid/io")))
		done
		echo $sum
	}
	shares() {
		one=$(read_by one) three=$(read_by three)
		pause 4
		one=$(($(read_by one) - one)) three=$(($(read_by three) - three))
		ok "the disk gives one to another about three to one" at_least "$(ratio $three $one | tr -d .)" 1800
	}
	pause 3
	measured shares
	grep 'on disk' "$daemon_log" | tail -n 2 | sed 's/^/# /'
	note "$(ratio $three $one) to one"
else
	note "no BFQ for this kernel: priorities are not tested"
fi
kill -KILL "$daemon"
untouched() {
	[ -z "$bfq" ] || prior one '^none'
}
ok "a killed daemon leaves no priorities" wait_for 10 untouched
ok "nobody was killed for memory" is "$(sed -n 's/^oom_kill //p' /proc/vmstat)" 0
kill -KILL $(pidof large one three)
swapoff "$swap"
[ -z "$bfq" ] || echo none > "$queue/scheduler"
