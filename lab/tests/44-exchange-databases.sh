# budget: 170
# only: with --all
# seconds: 420
# memory: 1024
# needs: commonhold store work mke2fs
# disks: 256:4000000
# Seed 004, section 5.6, with a real key-value store (LMDB): two databases serve lookups beside four units that read. The small
# database nearly fits into its memory; the large database is much larger than its memory. They exchange memory for disk tickets.
# The small database then fits, and serves many times as many lookups; the large database and the readers have no less; the end of
# the exchange restores all rates.

mib=1048576
databases="small big"
readers="reads-1 reads-2 reads-3 reads-4"

device=$(disk 256:4000000)
name=${device#/dev/}
number=$(cat "/sys/block/$name/dev")
mkdir -p /mnt/store
/job/mke2fs -q -F -t ext4 -E lazy_itable_init=0 -O ^has_journal "$device" > mke2fs.log 2>&1 || note "$(cat mke2fs.log)"
ok "a file system is on the disk" mount -t ext4 "$device" /mnt/store || exit 1
ok "the small database is made" store fill /mnt/store/small 24000 1000
ok "the large one is made" store fill /mnt/store/big 96000 1000
note "MiB: small $(($(stat -c %s /mnt/store/small) / mib)), big $(($(stat -c %s /mnt/store/big) / mib))"
umount /mnt/store
ok "both are there to be read" mount -t ext4 -o ro "$device" /mnt/store || exit 1
echo 3 > /proc/sys/vm/drop_caches

# Memory is reserved: one ticket in four thousand is negligible, and no unit may borrow.
{
	printf 'version = 1\n[machine]\ncpu = "proportional"\n'
	for unit in $databases; do
		printf '[unit.%s]\ntickets = { cpu = 1000, disk = 1000, memory = 1 }\n' $unit
		printf 'hard = { memory = "18MiB" }\nborrow = { memory = false }\n'
	done
	for unit in $readers; do
		printf '[unit.%s]\ntickets = 1000\n' $unit
	done
} > databases.toml

# sum_of NAME FROM TO: sets `rate` to the transactions per second of all clients of a database, between two moments.
sum_of() {
	rate=$(awk -v from="$2" -v to="$3" '
		FNR == 1 { finish() }
		/^[0-9]/ && $1 >= from && !begun { begun = $1; first = $2 }
		/^[0-9]/ && $1 <= to && begun { ended = $1; last = $2 }
		function finish() { if (ended > begun) sum += (last - first) * 100 / (ended - begun); begun = ended = 0 }
		END { finish(); print int(sum + 0.5) }' "$1"-*.log)
}
# rates: sets rate_UNIT to the transactions per second of each database, and to the kB/s of each reader.
rates() {
	for unit in $readers; do
		bytes $unit
		eval "from_$(echo $unit | tr - _)=$bytes"
	done
	begun=$(uptime_cs)
	pause 15
	ended=$(uptime_cs)
	shown=
	for unit in $readers; do
		bytes $unit
		name=$(echo $unit | tr - _)
		eval "rate_$name=\$(((bytes - from_$name) / 10 / (ended - begun)))"
		eval "shown=\"\$shown \$rate_$name\""
	done
	for unit in $databases; do
		sum_of $unit "$begun" "$ended"
		eval "rate_$unit=$rate"
	done
	note "$1: transactions per second: small $rate_small, big $rate_big; kB/s of those that read:$shown"
	for unit in $databases; do
		note "$1: $unit: MiB: bound $(($(value $unit memory.high) / mib)), used $(($(value $unit memory.current) / mib)), of files $(($(sed -n 's/^file //p' "$HELD/$unit/memory.stat") / mib)); may transfer: $(value $unit io.max)"
	done
}
# bounded SMALL BIG: the memory bounds of the two databases, in MiB, within two.
bounded() {
	small=$(($(value small memory.high) / mib)) big=$(($(value big memory.high) / mib))
	detail="small $small, big $big"
	[ $small -ge $1 ] && [ $small -le $(($1 + 2)) ] && [ $big -ge $2 ] && [ $big -le $(($2 + 2)) ]
}
# filled UNIT: whether the unit uses all of the memory that it may use.
filled() {
	[ "$(value $1 memory.current)" -ge $(($(value $1 memory.high) / 100 * 92)) ]
}
# rests: whether the small database hardly reads from the disk: less than ten pages in a second.
rests() {
	bytes small; before=$bytes
	pause 1
	bytes small
	[ $((bytes - before)) -lt 40960 ]
}
before() {
	rates before
	ok "both are asked" at_least $((rate_small < rate_big ? rate_small : rate_big)) 20
	first_small=$rate_small first_big=$rate_big
	for unit in $readers; do
		name=$(echo $unit | tr - _)
		eval "first_$name=\$rate_$name"
	done
}
meanwhile() {
	rates meanwhile
	ok "the small database answers ten times as often, in hundredths of before" at_least $((rate_small * 100 / first_small)) 1000
	ok "the large one answers as often at least, in hundredths of before" at_least $((rate_big * 100 / first_big)) 95
	for unit in $readers; do
		name=$(echo $unit | tr - _)
		eval "now=\$rate_$name had=\$first_$name"
		ok "$unit has as much of the disk at least, in hundredths of before" at_least $((now * 100 / had)) 90
	done
}
afterwards() {
	rates afterwards
	ok "the small database answers as before" within $rate_small $first_small 20
	ok "the large one, too" within $rate_big $first_big 20
}

ok "the daemon holds the contract" start_daemon databases.toml --backend cgroup --verbose || exit 1
# A unit with a process is entitled to memory: this keeps the readers' part from the databases.
for unit in $readers; do
	commonhold exec $unit -- sleep 600 > /dev/null 2>&1 &
done
# The kernel charges memory in batches of 256 KiB on each CPU where a unit runs, used or not; on eight CPUs that is much of 18
# MiB. So each database is pinned to one CPU.
for unit in $databases; do
	mask=1
	[ $unit = small ] || mask=2
	for seed in 1 2 3 4; do
		commonhold exec $unit -- taskset $mask store read /mnt/store/$unit 600 $seed > $unit-$seed.log 2> $unit-$seed.err &
	done
done
ok "each may use its reservation" wait_for 20 bounded 18 18
for unit in $databases; do
	ok "$unit uses all of that" wait_for 60 filled $unit
done
for unit in $readers; do
	commonhold exec $unit -- work read $unit "$device" 16 2 > reader-$unit 2>&1 &
done
cap_cpus
pause 8
measured before

uncap_cpus
ok "the large database offers memory" commonhold offer --unit big --give memory:10MiB --want disk:400
ok "the small one takes it" commonhold offer --unit small --give disk:400 --want memory:10MiB
commonhold offers | sed 's/^/# /'
asked=$(uptime_cs)
cap_cpus
ok "their bounds follow" wait_for 10 bounded 28 8
bounded 28 8; note "MiB: $detail"
ok "all of the small database is in memory after a while" wait_for 90 rests
note "that took $((($(uptime_cs) - asked) / 100)) s"
measured meanwhile

uncap_cpus
in_force=$(commonhold offers --json | tr -d ' \n' | sed 's/.*"exchanges"://; s/{"number":/\n/g' | grep -v ended_ns |
	sed -n 's/^\([0-9]*\),.*/\1/p')
ok "the exchange is ended" commonhold cancel "$in_force"
cap_cpus
ok "their bounds are as before" wait_for 10 bounded 18 18
for unit in $databases; do
	ok "$unit uses all of that" wait_for 60 filled $unit
done
pause 8
measured afterwards
uncap_cpus
ok "no record was missing" is "$(cat small-*.err big-*.err | grep store:)" ""
ok "no process was killed" is "$(sed -n 's/^oom_kill //p' "$HELD/memory.events")" 0
kill -KILL $(pidof store sleep $readers)
kill -TERM "$daemon"
ended() { ! kill -0 "$daemon" 2> /dev/null; }
ok "the daemon ends" wait_for 10 ended
umount /mnt/store
