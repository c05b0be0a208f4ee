# guest: debian
# seconds: 600
# budget: 250
# memory: 3072
# needs: commonhold spin
# only: with --all
# A busy process in root's own slice, which is in no unit, beside two users in units of their own with sixteen busy processes
# each. The reference is what the kernel gives it without the daemon: as much is to be left to it under either backend. What the
# daemon itself uses meanwhile is noted.

. /job/systemd.sh

PROCESSES=16

# start_work UID SLICE COUNT
start_work() {
	for number in $(seq "$3"); do
		systemd-run --quiet --collect --uid="$1" --slice="$2" --unit="lab-work-$1-$number" /job/spin 900
	done
}
run_so_many() {
	detail=$(pgrep -x spin -U "$1" | wc -l)
	[ "$detail" = "$2" ]
}
daemon_ms() {
	ms=0
	[ -n "$daemon" ] || return
	ran_ns "$daemon"
	ms=$((ns / 1000000))
}
root_has() {
	daemon_ms
	ms_before=$ms
	has_cpus "$root_process"
	took_cs=$((${up%.*}${up#*.} - from))
	daemon_ms
	if [ $way = alone ]; then
		default=$cpus
		ok "without the daemon root's process has CPU time, in thousandths of a CPU" no_fewer $default 100
	else
		ok "with the daemon it has no less than nine tenths of that $how" at_least $cpus $((default * 9 / 10))
		note "the daemon had $(((ms - ms_before) * 100 / took_cs)) thousandths of a CPU meanwhile $how"
	fi
}
beside_two_units() {
	start_work ana user-1001.slice $PROCESSES
	start_work carol user-1003.slice $PROCESSES
	for user in ana carol; do
		ok "$user's processes are there $how" wait_for 60 run_so_many $user $PROCESSES
	done
	start_work root user-0.slice 1
	ok "root's process is there $how" wait_for 30 run_so_many root 1
	root_process=$(pgrep -x spin -U root)
	is_in "$root_process" user.slice/user-0.slice/lab-work-root-1.service || note "root's process is in $detail"
	hold || [ $way = alone ] || return
	cap_cpus
	pause 8
	measured root_has
	uncap_cpus
	systemctl stop 'lab-work-*'
}

each_way beside_two_units
