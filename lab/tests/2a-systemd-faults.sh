# guest: debian bookworm trixie
# seconds: 2700
# budget: 2000
# memory: 3072
# needs: commonhold.deb spin work
# only: with --all
# Faults while the packaged daemon runs, under either backend: managers restart, the daemon and its caretaker are killed together,
# the machine stalls, CPUs go offline and come back, /run is full, a contract is invalid.

. /job/systemd.sh

# --- Managers.
PROPERTIES="MemoryMax=314572800 AllowedCPUs=0-3 CPUWeight=50"
are_set() {
	detail=$(systemctl show user-1001.slice -p MemoryMax -p AllowedCPUs -p CPUWeight | sort | tr '\n' ' ')
	[ "$detail" = "$(echo $PROPERTIES | tr ' ' '\n' | sort | tr '\n' ' ')" ]
}
in_force() {
	detail="$(cat "$slice/memory.max") $(cat "$slice/cpuset.cpus") $(cat "$slice/cpu.weight")"
	[ "$detail" = "314572800 0-3 50" ]
}
stays() {
	ok "$1: processes are where they were $how" soon 10 same_places
	ok "$1: the properties are there $how" soon 20 are_set
	ok "$1: and in force $how" soon 20 in_force
	holds_service "$1: the contract is held"
}
same_places() {
	places > places-now.txt
	same places.txt places-now.txt
}
# agrees: systemd's properties match the kernel's files. systemd need not show a MemoryHigh that the kernel has.
shown() {
	systemctl show "$1" -p "$2" --value
}
agrees() {
	for one in user-1001.slice user-1003.slice; do
		group=$CGROUPS/user.slice/$one
		detail="$one: AllowedCPUs=$(shown $one AllowedCPUs), $(cat "$group/cpuset.cpus")"
		[ "$(shown $one AllowedCPUs | tr ' ' ',')" = "$(cat "$group/cpuset.cpus")" ] || return 1
		weight=$(shown $one CPUWeight)
		detail="$one: CPUWeight=$weight, $(cat "$group/cpu.weight")"
		[ "$weight" = "[not set]" ] || [ "$weight" = "$(cat "$group/cpu.weight")" ] || return 1
		for entry in MemoryHigh:high MemoryMin:min MemoryLow:low; do
			value=$(shown $one "${entry%:*}") kernels=$(cat "$group/memory.${entry#*:}")
			detail="$one: ${entry%:*}=$value, $kernels"
			case $value in infinity) [ "${entry%:*}" = MemoryHigh ] || [ "$kernels" = max ] || return 1 ;;
				*) [ "$value" = "$kernels" ] || return 1 ;; esac
		done
	done
	detail=
}
other_pid() {
	detail=$(main_pid)
	[ "$detail" != "$1" ] && [ "$detail" != 0 ]
}
logs_in() {
	rm -f ssh-bob
	on bob true
}
managers() {
	ok "the package is installed $how" installs || return
	users_work
	ok "the packaged daemon starts $how" starts_service
	holds_service "the packaged daemon holds the contract"
	# This time without --runtime, so that they persist over a reboot.
	systemctl set-property user-1001.slice MemoryMax=300M AllowedCPUs=0-3 CPUWeight=50
	stays "set-property"
	service_pid=$(main_pid)
	systemctl daemon-reexec
	stays "daemon-reexec"
	ok "daemon-reexec: the daemon is the same $how" is "$(main_pid)" "$service_pid"
	ok "ssh, cron and the daemon restart together $how" systemctl restart ssh cron commonhold
	ok "restarts: it is another daemon $how" other_pid "$service_pid"
	stays "restarts"
	ok "restarts: users log in $how" wait_for 60 logs_in
	ok "restarts: cron runs $how" is_active cron

	ok "logind and the bus restart $how" restart_bus
	stays "logind and bus"
	ok "logind and bus: users log in $how" wait_for 60 logs_in
	ok "logind and bus: sessions are known $how" wait_for 20 sessions_known
	systemctl revert user-1001.slice > /dev/null 2>&1
	on ana "systemd-run --user --unit lab-spin /job/spin 900 4" > /dev/null 2>&1
	on carol "systemd-run --user --unit lab-spin /job/spin 900 4" > /dev/null 2>&1
	sleep 5
	[ $way = kernel ] || ok "what systemd shows is what the kernel's files have $how" soon 60 agrees

	ok "systemd answers $how" soon 120 no_silence
	mark
	silent_for 20
	ok "a silence of systemd's ends $how" soon 120 is_over
	sleep 20
	ok "it is reported once $how" is "$(lines_since_mark "problem: .*$SILENCE")" 1
	ok "and so is its end $how" is "$(lines_since_mark "problem ended: .*$SILENCE")" 1
	[ $way = kernel ] || ok "afterwards, systemd shows what the kernel's files have $how" soon 60 agrees
	holds_service "silence: the contract is held"
	on ana "systemctl --user stop lab-spin"
	on carol "systemctl --user stop lab-spin"

	if [ $way = kernel ]; then
		systemctl set-property --runtime user-1001.slice CPUQuota=150%
		ok "a CPUQuota= of an administrator's sends the scheduler away $how" soon 60 not_held
		systemctl set-property --runtime user-1001.slice CPUQuota=
		from=$(uptime_cs)
		ok "once it is removed, the scheduler comes back $how" soon 120 sees
		note "after $((($(uptime_cs) - from) / 100)) s"
		systemctl revert user-1001.slice > /dev/null 2>&1
	fi
	ok "the daemon ends $how" systemctl stop commonhold
	undone "afterwards"
}
# Debian's bus may refuse a manual restart; it is activated again when it is next called.
restart_bus() {
	systemctl restart systemd-logind dbus 2> bus.log || {
		kill "$(systemctl show dbus -p MainPID --value)"
		systemctl restart systemd-logind
	}
	wait_for 60 busctl --no-pager status > bus.log 2>&1
}
sessions_known() {
	detail=$(loginctl list-sessions --no-legend | grep -c bob)
	[ "$detail" -gt 0 ]
}
SILENCE="systemd did not answer"
# silent_for SECONDS: systemd itself is stopped. Commands here must not call it meanwhile.
silent_for() {
	echo 1 > $CGROUPS/init.scope/cgroup.freeze
	pause "$1"
	echo 0 > $CGROUPS/init.scope/cgroup.freeze
}
no_silence() {
	detail=$(commonhold status 2>&1 | grep -m 1 "$SILENCE")
	[ -z "$detail" ]
}
is_over() {
	[ "$(lines_since_mark "problem ended: .*$SILENCE")" -gt 0 ]
}

# --- The daemon and its caretaker are killed together.
came_again() {
	other_pid "$service_pid" && [ "$(systemctl show commonhold -p ActiveState --value)" = active ] && sees
}
kills() {
	ok "the package is installed $how" installs || return
	users_work
	for round in 1 2 3 4 5; do
		ok "the daemon starts, round $round $how" starts_service
		ok "it holds, round $round $how" wait_for 60 sees || continue
		ok "daemon and caretaker are killed, round $round $how" kills_both
		ok "another daemon comes and holds, round $round $how" soon 150 came_again
		ok "it ends, round $round $how" systemctl stop commonhold
		undone "round $round:"
	done
}

# --- The machine.
# cpus_in_use: the CPUs of both users' slices.
cpus_in_use() {
	detail=$(cat $CGROUPS/user.slice/user-100[13].slice/cpuset.cpus | tr ',' '\n' | while IFS=- read -r first last; do
		[ -z "$first" ] || seq "$first" "${last:-$first}"
	done | sort -un | tr '\n' ' ')
	detail=${detail% }
}
uses() {
	cpus_in_use
	[ "$detail" = "$1" ]
}
progresses() {
	for user in ana carol; do
		worker=$(pgrep -o -x spin -U $user)
		ran_ns "$worker"
		ns_before=$ns
		pause 5
		ran_ns "$worker"
		detail="$user: $(((ns - ns_before) / 1000000)) ms"
		[ "$ns" -gt "$ns_before" ] || return 1
	done
}
turn() {
	for cpu in 5 6 7; do
		echo "$1" > /sys/devices/system/cpu/cpu$cpu/online || return 1
	done
}
leaps() {
	from=$(uptime_cs)
	vmctl pause 60 > /dev/null || return 1
	before=$from
	# A request may take long on a busy machine.
	while [ $(($(uptime_cs) - from)) -lt 30000 ]; do
		now=$(uptime_cs)
		detail="$((now - before)) hundredths of a second"
		[ $((now - before)) -lt 5500 ] || return 0
		before=$now
		usleep 100000
	done
	return 1
}
refused_reload() {
	! systemctl reload commonhold 2> reload.log
}
names_line() {
	journalctl -q -u commonhold --no-pager -o cat --since "@$marked" > said.log
	detail=$(grep -m 1 "contract.toml:[0-9]" said.log)
	[ -n "$detail" ]
}
lets_others_write() {
	[ "$(lines_since_mark 'the mode 0666 lets others write')" -gt 0 ]
}
# run_full: fills /run, so that no further byte can be written. run_free: frees it again.
run_full() {
	used_kib=$(df -k /run | awk 'NR == 2 { print $3 }')
	size_kib=$(df -k /run | awk 'NR == 2 { print $2 }')
	mount -o "remount,size=${used_kib}k" /run
	dd if=/dev/zero of=/run/lab-fill bs=4k count=1000 2> /dev/null
	! dd if=/dev/zero of=/run/lab-fill2 bs=4k count=1 2> /dev/null
}
run_free() {
	mount -o "remount,size=${size_kib}k" /run
	rm -f /run/lab-fill /run/lab-fill2
}
told_erin() {
	detail=$(told_unit "$1")
	[ "$detail" = physics/erin ]
}
machine() {
	ok "the package is installed $how" installs || return
	users_work
	ok "the packaged daemon starts $how" starts_service
	holds_service "the packaged daemon holds the contract"
	service_pid=$(main_pid)

	# A user who was created after the daemon started.
	useradd -m -g physics -s /bin/bash erin
	systemd-run -q --unit lab-erin -p User=erin -p Slice="user-$(id -u erin).slice" sleep 952
	ok "a user who was added meanwhile logs in $how" wait_for 40 runs sleep 952
	ok "and has a unit $how" soon 60 told_erin "$(pid_of sleep 952)"
	systemctl stop lab-erin
	pkill -9 -U erin
	sleep 1
	userdel -r -f erin 2> /dev/null

	on ana "systemd-run --user --unit lab-spin /job/spin 900 8" > /dev/null 2>&1
	on carol "systemd-run --user --unit lab-spin /job/spin 900 8" > /dev/null 2>&1
	wait_for 20 pgrep -x spin -U carol
	sleep 3

	# A contract that cannot be honoured.
	mark
	settings > force.txt
	echo 'version = "x"' >> /etc/commonhold/contract.toml
	ok "a bad contract is refused at a reload $how" refused_reload
	ok "the journal names its line $how" soon 10 names_line
	cp $contract /etc/commonhold/contract.toml
	chmod 666 /etc/commonhold/contract.toml
	systemctl reload commonhold
	ok "one that others may write is refused, and the journal says so $how" soon 10 lets_others_write
	chmod 644 /etc/commonhold/contract.toml
	ok "the daemon is the same $how" is "$(main_pid)" "$service_pid"
	ok "a good one is taken $how" systemctl reload commonhold
	holds_service "after reloads it holds"

	ok "CPUs go offline $how" turn 0
	[ $way = kernel ] || ok "nobody is held on them $how" soon 60 uses "0 1 2 3 4"
	ok "users' work goes on $how" progresses
	holds_service "with fewer CPUs it holds" 120
	ok "CPUs come online $how" turn 1
	[ $way = kernel ] || ok "and are given to users $how" soon 60 uses "0 1 2 3 4 5 6 7"
	holds_service "with all CPUs it holds" 120
	ok "the daemon is the same, with other CPUs $how" is "$(main_pid)" "$service_pid"

	ok "the machine stands still for 60 s $how" leaps
	ok "then users' work goes on $how" progresses
	ok "it is active after the standstill $how" soon 150 is_active commonhold
	holds_service "and holds" 150
	note "after the standstill, $([ "$(main_pid)" = "$service_pid" ] && echo "the same daemon" || echo "another daemon")"
	systemctl reset-failed commonhold 2> /dev/null
	service_pid=$(main_pid)

	mark
	ok "/run is full $how" run_full
	on ana "systemctl --user stop lab-spin"
	sleep 15
	ok "with a full /run the daemon is the same $how" is "$(main_pid)" "$service_pid"
	holds_service "and holds"
	kill -KILL "$service_pid"
	sleep 5
	ok "a killed daemon's processes run, with a full /run $how" nobody_stopped
	run_free
	ok "with room it comes again $how" soon 150 came_again
	on carol "systemctl --user stop lab-spin"
	ok "it ends $how" systemctl stop commonhold
	undone "after all of that"
}

both_ways managers
both_ways kills
both_ways machine
