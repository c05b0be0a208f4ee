# seconds: 150
# needs: commonhold spin
# Four units with tickets 1:2:3:2 on eight CPUs, eight busy processes each: everyone gets its share; what one does not
# use goes to the others at once; and it comes back.

units="a b c d"
spinners=8
looks=40                           # at the daemon, four a second: 10 s are measured

# entitled UNIT: in thousandths of a CPU.
entitled() {
	case $1 in a) echo 1000 ;; b | d) echo 2000 ;; c) echo 3000 ;; esac
}

# spinners_of UNIT: the processes that spin in a unit's control group or below.
spinners_of() {
	find "$HELD/$1" -name cgroup.procs -exec cat {} + | while read -r pid; do
		read -r name < "/proc/$pid/comm" && [ "$name" = spin ] && echo "$pid"
	done 2> /dev/null
}
has_spinners() {
	[ "$(spinners_of "$1" | wc -l)" -eq $spinners ]
}
enter() {
	for i in $(seq $spinners); do
		commonhold exec "$1" -- spin 600 > /dev/null 2> "exec-$1-$i" &
	done
	wait_for 30 has_spinners "$1" || {
		detail="$(spinners_of "$1" | wc -l) spinners are in it: $(cat exec-"$1"-* | tail -n 1)"
		return 1
	}
}

# What measures must not itself take CPU time from the units: between its first and its last sample, `measure` starts no
# process.

# sample UNIT: sets `usec` to its CPU time in microseconds, and `at` to the clock in hundredths of a second.
sample() {
	cpu_usec "commonhold/$1"
	read -r up idle < /proc/uptime
	at=${up%.*}${up#*.}
}

# pause SECONDS
mkfifo never
pause() {
	read -r -t "$1" nothing <> never
}

# The daemon runs on some unit's CPU. Emulation makes it forty times as dear as on hardware, where its cost is a promise
# of its own: here, what it used counts as used by the unit that it took it from, and is shown and bounded beside.

# find_owners: sets owner_CPU to the unit that has that CPU now, or to none.
find_owners() {
	for cpu in 0 1 2 3 4 5 6 7; do eval "owner_$cpu=none"; done
	taken_none=0
	for unit in $units; do
		read -r list < "$HELD/$unit/cpuset.cpus.effective"
		for range in $(echo "$list" | tr , ' '); do
			for cpu in $(seq "${range%-*}" "${range#*-}"); do eval "owner_$cpu=$unit"; done
		done
	done
}

# daemon_time: sets `daemon_ms` to the CPU time that the daemon has used, in milliseconds.
daemon_time() {
	read -r ran rest < "/proc/$daemon/schedstat"
	daemon_ms=$((ran / 1000000))
}

# watch_daemon: takes its time, and sets taken_UNIT to how many of $looks looks saw the daemon on that unit's CPUs.
watch_daemon() {
	look=0
	while [ $look -lt $looks ]; do
		look=$((look + 1))
		pause 0.25
		read -r stat < "/proc/$daemon/stat"
		set -- $stat
		eval "owner=\$owner_${39}"
		eval "taken_$owner=\$((taken_$owner + 1))"
	done
}

# idle_time: sets `idle_cs` to the idle time of all CPUs together, in hundredths of a second.
idle_time() {
	read -r cpu user nice system idle iowait rest < /proc/stat
	idle_cs=$((idle + iowait))
}

# measure: sets used_UNIT to the thousandths of a CPU that each unit got, with what the daemon took from it, `total` to
# their sum, `daemon_used` to what the daemon took, and `busy` to the part of the machine that was used, in hundredths
# of a per cent.
measure() {
	find_owners
	idle_time
	daemon_time
	idle_from=$idle_cs daemon_from=$daemon_ms
	for unit in $units; do
		sample "$unit"
		eval "usec_$unit=$usec at_$unit=$at taken_$unit=0"
	done
	from=$at
	watch_daemon
	for unit in $units; do
		sample "$unit"
		eval "used_$unit=\$(((usec - usec_$unit) / 10 / (at - at_$unit)))"
	done
	idle_time
	daemon_time
	elapsed=$((at - from))
	daemon_used=$(((daemon_ms - daemon_from) * 100 / elapsed))
	busy=$((10000 - (idle_cs - idle_from) * 10000 / 8 / elapsed))
	note "thousandths of a CPU: a $used_a, b $used_b, c $used_c, d $used_d; the daemon $daemon_used, in 40 looks seen" \
		"on a's CPUs $taken_a, b's $taken_b, c's $taken_c, d's $taken_d; machine used $busy / 10000"
	total=0
	for unit in $units; do
		eval "used_$unit=\$((used_$unit + daemon_used * taken_$unit / looks))"
		eval "total=\$((total + used_$unit))"
	done
}

used_of() {
	eval "echo \$used_$1"
}

# shares_within PERCENT LABEL: each unit's part of what all of them got.
shares_within() {
	for unit in $units; do
		ok "unit $unit has its share $2" within "$(used_of "$unit")" $(($(entitled "$unit") * total / 8000)) "$1"
	done
}

ok "the daemon holds the contract" start_daemon /job/contracts/four-units.toml --backend cgroup || exit 1
for unit in $units; do
	ok "$spinners processes entered unit $unit" enter "$unit"
done
cap_cpus
sleep 2

measure
shares_within 2 "while all are busy"
ok "the machine is in use while all are busy" at_least "$busy" 9800
ok "the daemon takes little, even emulated" at_most "$daemon_used" 400

kill $(spinners_of c)
measure
ok "unit c is idle" is "$(spinners_of c | wc -l)" 0
ok "the others use what c leaves, from the first moment on" at_least "$busy" 9800
for unit in a b d; do
	ok "unit $unit has no less than its own" at_least "$(used_of $unit)" $(($(entitled $unit) * 97 / 100))
done

ok "$spinners processes entered unit c again" enter c
sleep 2
measure
# What this one is about is that the loans end; how exact the shares are was seen above.
shares_within 5 "after c came back"
