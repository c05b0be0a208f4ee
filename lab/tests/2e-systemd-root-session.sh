# guest: debian
# seconds: 1200
# budget: 600
# memory: 3072
# needs: commonhold spin
# only: with --all
# A busy process in root's own slice, which belongs to no unit, beside two users' units with eight busy processes each: its part
# of the CPU time of all 17. The reference is its part without the daemon; under either backend it must get no less. The daemon's
# own CPU time is printed.

. /job/systemd.sh

PROCESSES=8

# spent: sets `root_ms`, `all_ms` and `daemon_ms` to the CPU time of root's process, of all busy processes, and of the daemon.
spent() {
	ran_ns "$root_process"
	root_ms=$((ns / 1000000))
	ran_ns $(pgrep -x spin)
	all_ms=$((ns / 1000000))
	daemon_ms=0
	[ -z "$daemon" ] || { ran_ns "$daemon" && daemon_ms=$((ns / 1000000)); }
}
root_has() {
	spent
	before_root=$root_ms before_all=$all_ms before_daemon=$daemon_ms
	pause 20
	spent
	root_ms=$((root_ms - before_root)) all_ms=$((all_ms - before_all)) daemon_ms=$((daemon_ms - before_daemon))
	part=$((root_ms * 1000 / all_ms))
	note "$how: of $all_ms ms that all had, root's process had $root_ms ms; the daemon had $daemon_ms ms beside them"
	if [ $way = alone ]; then
		default=$part
		ok "without the daemon root's process has a part, in thousandths" no_fewer $default 20
	else
		ok "with the daemon it has no less than nine tenths of that $how" at_least $part $((default * 9 / 10))
	fi
}
beside_two_units() {
	spins ana user-1001.slice $PROCESSES
	spins carol user-1003.slice $PROCESSES
	for user in ana carol; do
		ok "$user's processes are there $how" wait_for 60 spins_run $user $PROCESSES
	done
	spins root user-0.slice 1
	ok "root's process is there $how" wait_for 30 spins_run root 1
	root_process=$(pgrep -x spin -U root)
	is_in "$root_process" user.slice/user-0.slice/lab-work-root-1.service || note "root's process is in $detail"
	hold || [ $way = alone ] || return
	pause 8
	measured root_has
	systemctl stop 'lab-work-*'
}

each_way beside_two_units
