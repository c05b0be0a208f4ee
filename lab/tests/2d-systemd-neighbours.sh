# guest: debian bookworm trixie
# seconds: 1500
# budget: 600
# memory: 3072
# needs: commonhold.deb spin work
# only: with --all
# Other programs that supervise the packaged daemon's control groups. systemd-oomd kills the service under pressure, and no other.
# podman's containers survive a restart and a kill of the daemon. What systemd shows lags the kernel's files only briefly.

. /job/systemd.sh

# --- systemd-oomd.
oomd_killed() {
	detail=$(journalctl -q -u systemd-oomd --no-pager -o cat | grep -i -m 1 '^killed')
	case $detail in *lab-hog*) ;; *) return 1 ;; esac
}
is_there() {
	pgrep -x "$1" > /dev/null
}
not_there() {
	detail=$(pgrep -x "$1")
	[ -z "$detail" ]
}
names_oomd() {
	detail=$(commonhold doctor 2>&1 | grep -m 1 oomd)
	[ -n "$detail" ]
}
pressure() {
	mkdir -p /run/systemd/oomd.conf.d
	printf '[OOM]\nDefaultMemoryPressureDurationSec=2s\n' > /run/systemd/oomd.conf.d/lab.conf
	ok "the package is installed $how" installs || return
	users_work
	systemctl set-property --runtime user@1003.service ManagedOOMMemoryPressure=kill ManagedOOMMemoryPressureLimit=5%
	ok "systemd-oomd starts $how" systemctl start systemd-oomd
	record
	ok "the packaged daemon starts $how" starts_service
	holds_service "it holds beside systemd-oomd"
	service_pid=$(main_pid)
	ok "doctor names systemd-oomd $how" names_oomd
	mark
	# File pages: systemd-oomd kills the group with the most page reclaim, and without swap only file pages are reclaimed.
	on carol "truncate -s 300M lab-file; systemd-run --user --unit lab-hog -p MemoryHigh=40M /job/work touch hog 300 0 ~/lab-file" \
		> /dev/null 2>&1
	ok "a service runs that has too little memory $how" wait_for 20 is_there hog
	ok "systemd-oomd ends it $how" soon 150 oomd_killed
	ok "all of it $how" soon 20 not_there hog
	places > places-now.txt
	ok "and no other process $how" same places.txt places-now.txt
	ok "the daemon is the same $how" is "$(main_pid)" "$service_pid"
	ok "and logs nothing about a removed group $how" is "$(lines_since_mark "the cgroup was removed")" 0
	holds_service "and holds"
	systemctl stop systemd-oomd
	ok "it ends $how" systemctl stop commonhold
	undone "afterwards"
	systemctl revert user@1003.service > /dev/null 2>&1
}

# --- podman.
image=/usr/local/share/lab-image.tar
as_bob() {
	on bob "$*"
}
container_runs() {
	detail=$(cgroup_of "$(pid_of "$1")")
	[ "$detail" = "$2" ] && runs "$1"
}
containers_stay() {
	ok "$1 root's container is where podman put it $how" container_runs "sleep 961" "$roots"
	ok "$1 a user's container is, too $how" container_runs "sleep 962" "$bobs"
	counted "$1 the process of root's container" "$(pid_of sleep 961)" carol
	counted "$1 a user's container" "$(pid_of sleep 962)" bob
}
no_containers() {
	detail=$(find $CGROUPS -type d -name 'libpod-*' | head -n 1)
	[ -z "$detail" ]
}
came_again() {
	[ "$(main_pid)" != "$service_pid" ] && [ "$(systemctl show commonhold -p ActiveState --value)" = active ] && sees
}
containers() {
	podman image exists lab || podman import $image lab > podman.log 2>&1
	as_bob "podman image exists lab || podman import $image lab" > podman.log 2>&1
	# The first container makes systemd enable further controllers, permanently.
	podman run --rm lab true > podman.log 2>&1
	as_bob podman run --rm lab true >> podman.log 2>&1
	ok "the package is installed $how" installs || return
	users_work
	ok "the packaged daemon starts $how" starts_service
	podman run -d --name lab-box --user 1003:2002 lab sleep 961 > podman.log 2>&1
	as_bob podman run -d --name lab-box lab sleep 962 > podman-bob.log 2>&1
	ok "a container of root's runs $how" wait_for 60 runs sleep 961 || cat podman.log
	ok "a container of a user's runs $how" wait_for 60 runs sleep 962 || cat podman-bob.log
	roots=$(cgroup_of "$(pid_of sleep 961)") bobs=$(cgroup_of "$(pid_of sleep 962)")
	holds_service "it holds beside containers"
	sleep 2
	containers_stay "at first"
	systemctl restart commonhold
	holds_service "started anew, it holds"
	sleep 2
	containers_stay "after a restart"
	ok "daemon and caretaker are killed $how" kills_both
	ok "killed with its caretaker, it comes again $how" soon 150 came_again
	sleep 2
	containers_stay "after a kill"
	podman stop -t 1 lab-box > /dev/null 2>&1
	as_bob podman stop -t 1 lab-box > /dev/null 2>&1
	podman rm -f lab-box > /dev/null 2>&1
	as_bob podman rm -f lab-box > /dev/null 2>&1
	ok "podman ends both $how" soon 30 no_containers
	ok "it ends $how" systemctl stop commonhold
	undone "afterwards"
}

# --- systemd's view.
# watches: until the file `watching` is gone, keeps a file in `seen` for each CPU list that ana's slice has had, with the time
# when it was last in force.
watches() {
	while [ -e watching ]; do
		read -r cpus < "$slice/cpuset.cpus" && uptime_cs > "seen/$cpus"
		usleep 50000
	done 2> /dev/null
}
# shows: sets `worst` to the age of systemd's value, in hundredths of a second since the kernel's file last had it.
shows() {
	rm -rf seen
	mkdir seen
	touch watching
	watches &
	watcher=$!
	sleep 2
	worst=0 values=0 missed_values=0 low=0
	until=$(($(uptime_cs) + 6000))
	while
		now=$(uptime_cs)
		[ "$now" -lt $until ]
	do
		high_before=$(cat "$slice/memory.high")
		shown=$(systemctl show user-1001.slice -p AllowedCPUs --value | tr ' ' ',')
		high=$(systemctl show user-1001.slice -p MemoryHigh --value)
		values=$((values + 1))
		if [ -s "seen/$shown" ]; then
			age=$((now - $(cat "seen/$shown")))
			[ $age -le $worst ] || worst=$age
		else
			missed_values=$((missed_values + 1))
		fi
		# systemd's stored bound must not be below the one in force, because systemd may write it at any time.
		[ "$high" = infinity ] || [ "$high_before" = max ] || [ "$high_before" != "$(cat "$slice/memory.high")" ] || [ "$high" -ge "$high_before" ] ||
			low=$((low + 1))
	done
	rm watching
	wait $watcher
	note "$values values of $(ls seen | wc -l) lists of CPUs, $missed_values not seen in the file; memory.high $(cat "$slice/memory.high"), shown as $high"
	ok "systemd's CPU lists are no older than allowed, in hundredths of a second $how" at_most $worst 650
	ok "several lists of CPUs were in force $how" no_fewer "$(ls seen | wc -l)" 2
	ok "a bound on memory that systemd shows is never below the one in force $how" is $low 0
}
lags() {
	[ $way = cgroup ] || return
	ok "the package is installed $how" installs || return
	users_work
	ok "the packaged daemon starts $how" starts_service
	holds_service "it holds"
	on ana "systemd-run --user --unit lab-spin /job/spin 900 8" > /dev/null 2>&1
	on ana "systemd-run --user --unit lab-touch sh -c 'while :; do /job/work touch grows 500 2; sleep 5; done'" > /dev/null 2>&1
	on carol "systemd-run --user --unit lab-touch /job/work touch wants 1000 1000" > /dev/null 2>&1
	on carol "systemd-run --user --unit lab-spin sh -c 'while :; do /job/spin 3 8; sleep 4; done'" > /dev/null 2>&1
	sleep 10
	measured shows
	on ana "systemctl --user stop lab-spin lab-touch"
	on carol "systemctl --user stop lab-spin lab-touch"
	ok "it ends $how" systemctl stop commonhold
	undone "afterwards"
}

both_ways pressure
both_ways containers
both_ways lags
