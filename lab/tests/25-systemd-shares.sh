# guest: debian
# seconds: 900
# budget: 400
# memory: 3072
# disks: 4096
# needs: commonhold spin work
# only: with --all
# Isolation of users whose work systemd starts. Two busy processes receive their user's entitlement of CPUs beside sixteen
# processes of another user. A working set within its user's entitlement stays in memory beside a working set that does not fit.
# The reference is the same work without competitors.

. /job/systemd.sh

# start_work USER NUMBER COMMAND: starts NUMBER processes, as services of the user's manager, or in a login.
start_work() {
	for number in $(seq "$2"); do
		if [ $place = service ]; then
			on "$1" "systemd-run --user --unit lab-work-$number sh -c 'exec $3'" > /dev/null 2>&1
		else
			on "$1" "setsid sh -c 'exec $3' < /dev/null > /dev/null 2>&1 &"
		fi
	done
}
# stop_work USER PROGRAM
stop_work() {
	on "$1" "systemctl --user stop 'lab-work-*'" 2> /dev/null
	pkill -9 -x "$2" -U "$1"
	while pgrep -x "$2" -U "$1" > /dev/null; do usleep 100000; done
}
run_so_many() {
	detail=$(pgrep -c -x "$2" -U "$1")
	[ "$detail" = "$3" ]
}
ms=
# spent: sets `ms` to the CPU time of the daemon, systemd and the bus.
spent() {
	ms=
	for pid in "$daemon" 1 $(pgrep -o -x dbus-daemon); do
		ran_ns "$pid"
		ms="$ms $((ns / 1000000))"
	done
}
two_have() {
	[ -z "$daemon" ] || spent
	before=$ms
	has_cpus $(pgrep -x spin -U ana)
	ok "two busy processes have two CPUs, in thousandths, $1 $how" within $cpus 2000 3
	[ -z "$daemon" ] || {
		took_ms=$(((${up%.*}${up#*.} - from) * 10))
		spent
		note "$how meanwhile the daemon, systemd and the bus had, in % of the machine: $(echo $before $ms $took_ms $(nproc) |
			awk '{ for (i = 1; i <= 3; i++) printf "%.1f ", ($(i + 3) - $i) * 100 / $7 / $8 }')"
	}
}
hogs() {
	for place in service login; do
		start_work ana 2 "/job/spin 900"
		ok "two are there, by $place $how" wait_for 30 run_so_many ana spin 2
		if [ $way = alone ]; then
			cap_cpus
			measured two_have "with nobody beside them, by $place"
		else
			start_work carol 16 "/job/spin 900"
			ok "and sixteen of another's, by $place $how" wait_for 60 run_so_many carol spin 16
			[ -n "$daemon" ] || hold || return
			cap_cpus
			pause 5
			measured two_have "beside sixteen of another's, by $place"
		fi
		uncap_cpus
		stop_work ana spin
		stop_work carol spin
	done
}

# The working set is a file in the page cache: each page that was reclaimed costs a major fault.
PASSES=8
drive=$(disk 4096)
chmod 666 "$drive"
# A small read-ahead makes each fault read few pages, so that there are enough faults to compare.
echo 64 > "/sys/block/${drive#/dev/}/queue/read_ahead_kb"
has_passes() {
	[ "$(grep -c '^pass' "/home/$1/lab-passes")" -ge "$2" ]
}
major_faults() {
	read -r line < "/proc/$1/stat"
	set -- ${line##*) }
	major=${10}
}
touches() {
	start_work "$1" 1 "/job/work touch $2 $3 $4 $drive $5 > ~/lab-passes"
	wait_for 20 pgrep -x "$2" -U "$1"
}
working_sets() {
	for place in service login; do
		echo 3 > /proc/sys/vm/drop_caches
		if [ $way != alone ]; then
			[ -n "$daemon" ] || hold || return
			touches carol large 2400 0 900
			ok "a working set that does not fit makes a pass, by $place $how" wait_for 120 has_passes carol 1
		fi
		touches ana small 900 $PASSES 0
		pid=$(pgrep -x small -U ana)
		ok "a working set is gone round $PASSES times, by $place $how" wait_for 240 has_passes ana $PASSES
		major_faults "$pid"
		note "major faults: $major, by $place $how; the last pass: $(tail -n 1 /home/ana/lab-passes)"
		if [ $way = alone ]; then
			eval "major_alone_$place=$major"
		else
			allowed=$(eval "echo \$((major_alone_$place * 105 / 100))")
			ok "with no more major faults than alone, by $place $how" at_most "$major" "$allowed"
		fi
		stop_work ana small
		stop_work carol large
	done
}

each_way hogs
each_way working_sets
