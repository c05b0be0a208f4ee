# The functions that tests on the guest with systemd are written with, besides those of lib.sh.
#
# Such a test is a function that is run three times, by `each_way`: alone, which proves that what it asks for is how such a
# machine behaves; and with the daemon, under either backend. Nothing in it depends on how a unit is held.

contract=/job/contracts/two-groups-of-users.toml
users="ana bob carol dave"
busybox=/usr/local/lib/busybox

# each_way FUNCTION: `way` is `alone`, `cgroup` or `kernel`; `how` stands behind the name of each check.
each_way() {
	for way in alone cgroup kernel; do
		how="($way)"
		daemon=
		"$@"
		[ -z "$daemon" ] || release
		leave
	done
}

# hold, release: the daemon comes and goes, unless there is to be none.
hold() {
	[ $way = alone ] && return
	ok "the daemon holds the contract $how" holds
}
# On a machine whose CPUs are all busy, a scheduler takes its time to come.
holds() {
	start_daemon $contract --backend $way || wait_for 100 answers
}
answers() {
	commonhold status --json > /dev/null
}
release() {
	[ -n "$daemon" ] || return 0
	kill -TERM "$daemon" 2> /dev/null
	wait "$daemon"
	daemon=
}

# leave: all users go, and what tests started of the system's. Tests name their units lab-*.
leave() {
	for user in $users; do
		[ ! -e "ssh-$user" ] || ssh -O exit -S "ssh-$user" "$user@localhost" 2> /dev/null
		loginctl terminate-user "$user" 2> /dev/null
	done
	systemctl stop 'lab-*' 2> /dev/null
	systemctl revert user-1001.slice user-1002.slice > /dev/null 2>&1
	pkill -9 -U ana,bob,carol,dave
	wait_for 60 nobody_there || note "still there: $(ps -o user=,pid=,args= -U ana,bob,carol,dave | head -n 5 | tr '\n' ';')"
	systemctl reset-failed
	rm -f /home/*/lab-*
}
nobody_there() {
	! pgrep -U ana,bob,carol,dave && ! ls -d /sys/fs/cgroup/user.slice/user-100[1-4].slice
}

# on USER COMMAND: in the user's login, which is made once and stays. It waits until nothing holds what the command prints to, so
# what is left in the background prints to nowhere.
on() {
	[ -S "ssh-$1" ] || ssh -f -N -M -S "ssh-$1" "$1@localhost" < /dev/null > /dev/null 2>&1
	ssh -n -S "ssh-$1" "$1@localhost" "$2"
}

# pid_of WORDS...: the process with this command line, by whatever path it was started.
pid_of() {
	pgrep -o -x -f "(/usr/bin/|/bin/|/job/)?$*"
}
runs() {
	pgrep -x -f "(/usr/bin/|/bin/|/job/)?$*" > /dev/null
}
gone() {
	detail=$(pgrep -x -f "(/usr/bin/|/bin/|/job/)?$*")
	[ -z "$detail" ] || {
		detail="'$*' lives, in $(cgroup_of "${detail%%
*}")"
		return 1
	}
}

# soon SECONDS COMMAND...: it succeeds within that time, as with `wait_for`; but that a host is slow is no excuse, and what
# COMMAND saw is told.
soon() {
	soon_s=$1
	shift
	wait_for "$soon_s" "$@" && return
	by_host=
	"$@"
}

# is_in PID GROUP: no daemon is to have moved it.
is_in() {
	detail=$(cgroup_of "$1")
	[ "$detail" = "/$2" ]
}

# unit_of USER: the unit that the contract has for a user. told_unit PID: the one that the daemon tells.
unit_of() {
	case $1 in ana | bob) echo "physics/$1" ;; *) echo "maths/$1" ;; esac
}
told_unit() {
	commonhold status --pid "$1" --json 2>&1 | sed 's/.*"unit":"\([^"]*\)".*/\1/'
}
# counted NAME PID USER: a check, where there is somebody who counts.
counted() {
	[ $way = alone ] || ok "$1 is counted for $(unit_of "$3") $how" is "$(told_unit "$2")" "$(unit_of "$3")"
}
# used_ms USER: sets `used` to the CPU time that the daemon has counted for a user's unit.
used_ms() {
	used=$(commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' | grep "^{\"unit\":\"$(unit_of "$1")\"" |
		sed -n 's/.*"used_ns":\([0-9]*\).*/\1/p' | head -n 1)
	used=$((${used:-0} / 1000000))
}

# is_active UNIT [USER]: of the system's manager, or of a user's.
is_active() {
	if [ $# -gt 1 ]; then
		detail=$(on "$2" "systemctl --user is-active $1")
	else
		detail=$(systemctl is-active "$1")
	fi
	[ "$detail" = active ]
}

# ran_ns PID...: sets `ns` to the CPU time that processes had, by their threads; starts no process.
ran_ns() {
	ns=0
	for pid; do
		for file in /proc/"$pid"/task/*/schedstat; do
			read -r ran rest < "$file" && ns=$((ns + ran))
		done
	done
}
# has_cpus PID...: sets `cpus` to the thousandths of a CPU that they have together.
has_cpus() {
	ran_ns "$@"
	ns_before=$ns from=$(uptime_cs)
	pause 10
	ran_ns "$@"
	read -r up idle < /proc/uptime
	cpus=$(((ns - ns_before) / 10000 / (${up%.*}${up#*.} - from)))
}
