# guest: debian
# budget: 900
# only: with --all
# seconds: 1800
# memory: 3072
# cpus: 2
# needs: commonhold commonhold-record spin work
# disks: 2048:50000000 1024
# after: compare-replays
# Six loads, most of them of third-party programs, each run and recorded under two contracts. After the test, the host replays the recordings
# (lab/compare-replays, docs/conformance.md): the present contract, the changed one as a prediction, and wrong ones, which must be
# refuted. With more virtual CPUs than the host has, each would stand still for tens of milliseconds at a time, which no replay can
# know.

. /job/systemd.sh
loop_ns=
recorded_s=15
settled_s=5
kept=/out/replays
place=/mnt/drive
loads=${REPLAYS:-rtapp compile database media memory disk}
mkdir -p $kept $place

# member UNIT COMMAND...
member() {
	commonhold exec "$@" > /dev/null 2>&1 < /dev/null &
}
record_to() {
	cap_cpus
	commonhold record "$kept/$1.rec" --for ${recorded_s}s --method events > recorded 2>&1
	status=$?
	uncap_cpus
	detail=$(tail -n 1 recorded)
	[ $status -eq 0 ]
}
changes() {
	commonhold tickets set light cpu "$1" > changed 2>&1 || {
		detail=$(cat changed)
		return 1
	}
}
# ends: kills the programs of a load. systemd's control groups also have the test.
programs="rt-app spin builder make gcc cc1 as pgbench postgres media light heavy reader copier"
ends() {
	[ "$1" != database ] || runuser -u ana -- /usr/lib/postgresql/15/bin/pg_ctl -D /var/lib/lab-database stop -m immediate > /dev/null 2>&1
	for program in $programs; do pkill -KILL "^$program\$"; done
	wait_for 30 nobody_left
}
nobody_left() {
	for program in $programs; do ! pgrep "^$program\$" > /dev/null || return 1; done
}
is_loaded() {
	read -r state < /sys/kernel/sched_ext/state
	[ "$state" = enabled ]
}
is_still_loaded() {
	read -r now_loaded < /sys/kernel/sched_ext/enable_seq
	detail="loaded $loaded times before, $now_loaded times after"
	is_loaded && [ "$now_loaded" = "$loaded" ]
}
# While a load keeps systemd from answering, processes that entered a unit wait outside of it, for some seconds.
are_in_place() {
	own=$(cat /proc/self/cgroup)
	for program in $programs; do
		for pid in $(pgrep "^$program\$"); do
			[ "$(cat "/proc/$pid/cgroup" 2> /dev/null)" != "$own" ] || return 1
		done
	done
}
spinners_of_heavy() {
	for i in $(seq "$1"); do member heavy -- spin 600; done
}

# The loads: each starts processes in both units, and returns.
# rt-app measures the CPU's speed before it begins, and finds another one each time: measured once, the work is always the same.
load_rtapp() {
	if [ -z "$loop_ns" ]; then
		timeout 60 rt-app /usr/share/rt-app/mp3-short.json > calibrated 2>&1
		loop_ns=$(sed -n 's/.*pLoad = \([0-9]*\)ns.*/\1/p' calibrated | head -n 1)
		ok "rt-app measures the CPU: ${loop_ns}ns" [ "${loop_ns:-0}" -gt 0 ]
		for example in mp3-long browser-long; do
			sed "s/\"calibration\" *: *\"CPU[0-9]*\"/\"calibration\" : $loop_ns/" /usr/share/rt-app/$example.json > $example.json
		done
	fi
	member light -- rt-app "$PWD/mp3-long.json"
	member light -- rt-app "$PWD/browser-long.json"
	pause 10
	spinners_of_heavy 4
}
load_compile() {
	mkdir -p sources
	for number in 1 2 3 4 5 6; do
		{
			for at in $(seq 10); do
				echo "static long f$at(const long *a, long n) { long s = $number; for (long i = 0; i < n; i++) s += a[i] % ($at + i + 1) * s; return s ${at:+^ n}; }"
			done
			echo "long unit$number(const long *a, long n) { return $(for at in $(seq 10); do printf 'f%s(a, n) + ' "$at"; done)0; }"
		} > sources/$number.c
	done
	printf 'all: 1.o 2.o 3.o 4.o 5.o 6.o\n%%.o: %%.c\n\tgcc -O2 -c -o $@ $<\n' > sources/Makefile
	printf '#!/bin/sh\ncd sources\nwhile :; do\n\trm -f *.o\n\tmake -s -j 3\ndone\n' > builder
	chmod +x builder
	member light -- ./builder
	spinners_of_heavy 4
}
load_database() {
	member light -- runuser -u ana -- /usr/lib/postgresql/15/bin/postgres -D /var/lib/lab-database -k /tmp
	wait_for 60 runuser -u ana -- psql -h /tmp -U postgres -c 'select 1' > /dev/null 2>&1
	runuser -u ana -- pgbench -q -i -s 2 -h /tmp -U postgres postgres > /dev/null 2>&1
	member light -- runuser -u ana -- pgbench -c 3 -T 600 -h /tmp -U postgres postgres
	spinners_of_heavy 4
}
load_media() {
	member light -- work play media 3 0 1 1000 0 cpu:8~ sleep:32
	spinners_of_heavy 4
}
load_memory() {
	member light -- work play light 2 0 200 2000 0 cpu:300~ sleep:300~
	member heavy -- work play heavy 8 0 150 2000 0 cpu:200~ sleep:40~
}
load_disk() {
	member light -- work play reader 3 0 1 1000 0 read:$place/data:0:512:64 cpu:5~
	member heavy -- work play copier 6 0 1 1000 0 read:$place/data:512:512:512 cpu:10~
	spinners_of_heavy 4
}

drive=$(disk 2048:50000000) || exit 1
/sbin/mke2fs -q -F -t ext4 -O ^has_journal "$drive" && mount -t ext4 -o noatime "$drive" $place
ok "there is a file" dd if=/dev/zero of=$place/data bs=1M count=1024
sync
swap=$(disk 1024) && mkswap "$swap" > /dev/null && swapon "$swap" || exit 1
ok "the daemon holds the contract" start_daemon /job/contracts/replays.toml --backend kernel || exit 1
for load in $loads; do
	for contract in "$load 100" "$load.other 300"; do
		recording=${contract% *}
		ok "light has its tickets" changes "${contract#* }"
		# The kernel ends a scheduler under which a thread waits for long, as on a host that stands still. The daemon loads it
		# again later.
		for attempt in 1 2 3; do
			load_$load
			pause $settled_s
			soon 90 is_loaded
			soon 90 are_in_place
			read -r loaded < /sys/kernel/sched_ext/enable_seq
			ok "$recording is recorded" record_to "$recording"
			ends "$load"
			! is_still_loaded || break
		done
		ok "the scheduler was there all the time" is_still_loaded
		commonhold status --json > "$kept/$recording.status.json" 2>&1
	done
done
