# budget: 90
# only: with --all
# seconds: 240
# memory: 512
# needs: commonhold commonhold-sim work mke2fs
# disks: 2048:10000000
# after: compare-machine
# The same load live and simulated (scenarios/lab-linux), with CPUs, memory and a disk at once: a unit that computes and reads
# beyond its entitlement, one that sleeps and then wants all of its own, and one with a steady load. The daemon's accounts at
# three moments are kept in /out/machine. lab/compare-machine compares them with the simulation's.

kept=/out/machine
drive=$(disk 2048:10000000)
mkdir -p $kept
mount -t debugfs none /sys/kernel/debug 2> /dev/null

# member UNIT NAME WORDS...: processes in the unit. Their steps are those of the scenario's programs.
member() {
	unit=$1 name=$2
	shift
	commonhold exec "$unit" -- work play "$@" > /dev/null 2> "play-$unit-$name" &
}
# statement NAME: all accounts, and the guest's clock before and after.
statement() {
	from=$(uptime_cs)
	commonhold status --json > "$kept/$1.json"
	echo "$1 $from $(uptime_cs)" >> $kept/times
}
# until_s SECONDS: waits until the guest's clock reaches SECONDS. A child's exit restarts a pause, so pauses are short.
until_s() {
	while read -r up idle < /proc/uptime && [ "${up%.*}" -lt "$1" ]; do
		pause 0.1
	done
}
there() {
	[ "$(cat "$HELD"/light/cgroup.procs "$HELD"/heavy/cgroup.procs "$HELD"/side/cgroup.procs | wc -l)" -ge 41 ]
}

/job/mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$drive" > mke2fs.log 2>&1
mkdir -p /mnt/disk
mount -t ext4 "$drive" /mnt/disk
ok "the disk is measured" commonhold calibrate --seconds 1 /mnt/disk > measured.log 2>&1
sed 's/^/# /' measured.log
umount /mnt/disk
echo 3 > /proc/sys/vm/drop_caches
ok "the daemon holds the contract" start_daemon /job/lab-linux/contract.toml --backend kernel --verbose || exit 1
begin=$(($(uptime_cs) / 100 + 16))
member heavy compute 6 $begin 0 0 0 cpu:100
member heavy hold 1 $begin 76 2500 0 cpu:100
member heavy scan 4 $begin 0 0 0 "read:$drive:0:400:128" cpu:12
member light burst 6 $begin 0 0 1 sleep:9000 cpu:3000
member light again 6 $begin 0 0 1 sleep:20000 cpu:3000
member light first 1 $begin 130 4000 1 sleep:9000 cpu:5000
member light second 1 $begin 130 4000 1 sleep:20000 cpu:5000
member light fetch 4 $((begin + 9)) 0 0 0 "read:$drive:400:300:128" cpu:12
member side turns 4 $begin 0 0 0 cpu:20~ sleep:40~
member side look 2 $begin 0 0 0 "read:$drive:700:64:128" cpu:12 sleep:40
ok "all are there" wait_for 12 there || exit 1
cap_cpus
until_s $((begin - 2))
statement base
ok "in time" no_fewer $((begin * 100)) "$(uptime_cs)"
echo "begin ${begin}00 ${begin}00" >> $kept/times
for at in 9 18 27; do
	until_s $((begin + at))
	statement at-$at
done
uncap_cpus
for unit in light heavy side; do
	note "$unit: $(grep -v '^$' play-$unit-* | head -n 3 | tr '\n' ' ')"
done
grep -c problem "$daemon_log" | sed 's/^/# problems: /'
cp "$daemon_log" $kept/daemon.log
cat /proc/meminfo > $kept/meminfo
commonhold status | sed 's/^/# /'
rm -rf /var/lib/commonhold
