# budget: 45
# only: with --all
# seconds: 75
# needs: commonhold work
# disks: 768:100000000 512:8000000
# Without control groups. The `user` backend pages out a unit's excess memory, again whenever the unit touches it. It sets I/O
# priorities for processes that read from a disk under BFQ. No process is killed, and nothing is left. An ordinary user's daemon
# holds that user's own unit to a limit on disks.

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
ok "a unit's excess memory is paged out" wait_for 20 within_bound 1
ok "and not more" at_least "$(of "$large" VmRSS)" 190
kill -USR1 "$large"
ok "it has it again when it touches it, and keeps to its part" wait_for 20 within_bound 2
note "$(tail -n 1 large.log)"
# By the last sample, when it may still have exceeded its bound.
tells() {
	account bounded used
	detail="$((found / 1048576)) MiB"
	[ "$found" -le $((210 * 1048576)) ] && [ "$found" -ge $((190 * 1048576)) ]
}
ok "status reports its use" wait_for 5 tells

if [ "$bfq" ]; then
	commonhold exec one -- work read one "$device" 64 8 > /dev/null 2>&1 &
	commonhold exec three -- work read three "$device" 64 8 > /dev/null 2>&1 &
	# prior NAME PATTERN: the I/O priority of one of its processes.
	prior() {
		detail="$(ionice -p "$(pidof "$1" | cut -d ' ' -f 1)")"
		echo "$detail" | grep -q "$2"
	}
	ok "the largest unit is served first" wait_for 10 prior three '^best-effort: prio 0'
	ok "a unit with a third of that comes after it" wait_for 10 prior one '^best-effort: prio [4-7]'
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
ok "no process was killed for memory" is "$(sed -n 's/^oom_kill //p' /proc/vmstat)" 0
kill -KILL $(pidof large one three)
swapoff "$swap"
[ -z "$bfq" ] || echo none > "$queue/scheduler"

# An ordinary user has no delegated control group. (Root's daemon has ended and undone its changes.)
user=lab
grep -q "^$user:" /etc/passwd || echo "$user:x:1000:1000:$user:/tmp:/bin/sh" >> /etc/passwd
export COMMONHOLD_DIR=/tmp/user
mkdir -p $COMMONHOLD_DIR
chown $user $COMMONHOLD_DIR
printf 'version = 1\n[unit.slow]\nlimit = { disk = "1MB/s" }\n' > slow.toml
cp slow.toml $COMMONHOLD_DIR/
chmod o+r "$device"
# as_user COMMAND: replaces the shell with COMMAND, as that user.
as_user() {
	exec su -s /bin/sh $user -c "exec $1"
}
as_user "commonhold run $COMMONHOLD_DIR/slow.toml --backend user --verbose" > "$daemon_log" 2>&1 &
daemon=$!
ok "an ordinary user's daemon holds a contract" wait_for 20 commonhold status --json || exit 1
ok "it says that disks are held weakly" grep -q '^disk    held weakly, though the contract asks for it: ' "$daemon_log"
read_by_user() {
	as_user "commonhold exec slow -- dd if=$device of=/dev/null bs=64k count=$1 iflag=direct"
}
begun=$(uptime_cs)
(read_by_user 48) > dd.log 2>&1
elapsed=$((($(uptime_cs) - begun) * 10))
# A burst of a tenth of a second, plus the requests in flight when it is stopped.
ok "its unit is held to the limit: 3 MiB at 1 MB/s, in ms" at_least $elapsed 2000 || cat dd.log
note "3 MiB took $elapsed ms"
read_bytes() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' |
		sed -n 's/^{"unit":"slow",.*"disk":{[^}]*"read_bytes":\([0-9]*\).*/\1/p'
}
# A process's I/O before the first sample and after the last one is not accounted to any unit.
from=$(read_bytes)
(read_by_user 160) > dd.log 2>&1 &
reader=$!
# Not `pause`: it restarts whenever a child of this shell is stopped.
sleep 3
ok "its reads count as its own, in KiB" at_least $((($(read_bytes) - from) / 1024)) 1500
kill -KILL "$daemon"
over() {
	! kill -0 $reader 2> /dev/null
}
ok "a killed daemon leaves no process stopped" wait_for 15 over
ok "the reader has read to the end" grep -q '^160+0 records in' dd.log || cat dd.log
