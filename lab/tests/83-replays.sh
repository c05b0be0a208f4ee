# guest: debian
# budget: 900
# only: with --all
# seconds: 1500
# memory: 3072
# needs: commonhold commonhold-record spin work
# disks: 2048:50000000
# after: compare-replays
# Six loads of third-party programs, each recorded under two contracts. After the test, the host replays the recordings
# (lab/compare-replays, docs/conformance.md): the present contract, the changed one as a prediction, and wrong ones, which must be
# refuted.

. /job/systemd.sh
recorded_s=10
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
# ends: kills the programs of the loads, and gives light its first tickets back. systemd's control groups also have the test.
programs="rt-app spin make cc1 pgbench postgres media light heavy reader copier"
ends() {
	for program in $programs; do pkill -KILL "^$program"; done
	wait_for 30 nobody_left
	changes 100
}
nobody_left() {
	for program in $programs; do ! pgrep "^$program" > /dev/null || return 1; done
}
spinners_of_heavy() {
	for i in $(seq "$1"); do member heavy -- spin 600; done
}

# The loads: each starts processes in both units, and returns.
# rt-app measures the CPU's speed before it begins, on one CPU.
load_rtapp() {
	member light -- rt-app /usr/share/rt-app/mp3-long.json
	member light -- rt-app /usr/share/rt-app/browser-long.json
	pause 20
	spinners_of_heavy 10
}
load_compile() {
	mkdir -p sources
	for number in 1 2 3 4 5 6; do
		{
			for at in $(seq 30); do
				echo "static long f$at(const long *a, long n) { long s = $number; for (long i = 0; i < n; i++) s += a[i] % ($at + i + 1) * s; return s ${at:+^ n}; }"
			done
			echo "long unit$number(const long *a, long n) { return $(for at in $(seq 30); do printf 'f%s(a, n) + ' "$at"; done)0; }"
		} > sources/$number.c
	done
	printf 'all: 1.o 2.o 3.o 4.o 5.o 6.o\n%%.o: %%.c\n\tgcc -O2 -c -o $@ $<\n' > sources/Makefile
	member light -- sh -c 'cd sources && while :; do rm -f *.o; make -s -j 3; done'
	spinners_of_heavy 10
}
load_database() {
	member light -- runuser -u ana -- /usr/lib/postgresql/15/bin/postgres -D /var/lib/lab-database -k /tmp
	wait_for 60 runuser -u ana -- psql -h /tmp -U postgres -c 'select 1' > /dev/null 2>&1
	runuser -u ana -- pgbench -q -i -s 2 -h /tmp -U postgres postgres > /dev/null 2>&1
	member light -- runuser -u ana -- pgbench -c 3 -T 600 -h /tmp -U postgres postgres
	spinners_of_heavy 10
}
load_media() {
	member light -- work play media 3 0 1 1000 0 cpu:8~ sleep:32
	spinners_of_heavy 10
}
load_memory() {
	member light -- work play light 2 0 300 2000 0 cpu:300~ sleep:300~
	member heavy -- work play heavy 10 0 150 2000 0 cpu:200~ sleep:40~
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
ok "the daemon holds the contract" start_daemon /job/contracts/replays.toml --backend kernel || exit 1
for load in $loads; do
	load_$load
	pause $settled_s
	ok "$load is recorded" record_to "$load"
	ok "light's tickets change" changes 300
	pause $settled_s
	ok "$load is recorded with other tickets" record_to "$load.other"
	[ "$load" != database ] || runuser -u ana -- /usr/lib/postgresql/15/bin/pg_ctl -D /var/lib/lab-database stop -m immediate > /dev/null 2>&1
	ends
done
