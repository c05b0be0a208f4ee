# The vocabulary of tests on the guest with systemd, in addition to lib.sh.
#
# `each_way` runs such a test's function three times: without the daemon, which proves that its checks describe the normal
# behaviour of such a machine; and with the daemon, under either backend. Its checks do not depend on how a unit is held.

contract=/job/contracts/two-groups-of-users.toml
users="ana bob carol dave"
busybox=/usr/local/lib/busybox

# each_way FUNCTION: sets `way` to `alone`, `cgroup` or `kernel`, and `how` to a suffix for the name of each check.
each_way() {
	for way in alone cgroup kernel; do
		how="($way)"
		daemon=
		"$@"
		[ -z "$daemon" ] || release
		leave
	done
}

# hold: starts the daemon, unless `way` is `alone`. release: ends the daemon.
hold() {
	[ $way = alone ] && return
	ok "the daemon holds the contract $how" holds
}
# holds: starts the daemon, and waits longer than `start_daemon` does: with all CPUs busy, loading a scheduler takes long.
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

# leave: ends all users' processes and the tests' system units, which are named lab-*.
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

# on USER COMMAND: runs COMMAND in a login of the user, which is made at the first call and reused. It returns when no process has
# COMMAND's output open, so background processes must redirect their output.
on() {
	[ -S "ssh-$1" ] || ssh -f -N -M -S "ssh-$1" "$1@localhost" < /dev/null > /dev/null 2>&1
	ssh -n -S "ssh-$1" "$1@localhost" "$2"
}

# pid_of WORDS...: the process with this command line, by any path of its program. runs WORDS...: whether there is such a process.
# gone WORDS...: whether there is no such process.
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

# soon SECONDS COMMAND...: like `wait_for`, but a failure is never attributed to the host, and the details that COMMAND leaves are
# printed.
soon() {
	soon_s=$1
	shift
	wait_for "$soon_s" "$@" && return
	by_host=
	"$@"
}

# is_in PID GROUP: whether the process is in its original control group GROUP, and so was not moved by the daemon.
is_in() {
	detail=$(cgroup_of "$1")
	[ "$detail" = "/$2" ]
}

# unit_of USER: the user's unit by the contract. told_unit PID: the process's unit, as the daemon reports it.
unit_of() {
	case $1 in ana | bob) echo "physics/$1" ;; *) echo "maths/$1" ;; esac
}
told_unit() {
	commonhold status --pid "$1" --json 2>&1 | sed 's/.*"unit":"\([^"]*\)".*/\1/'
}
# counted NAME PID USER: checks, if the daemon runs, that it counts the process for the user's unit.
counted() {
	[ $way = alone ] || ok "$1 is counted for $(unit_of "$3") $how" is "$(told_unit "$2")" "$(unit_of "$3")"
}
# used_ms USER: sets `used` to the CPU time in the daemon's account of the user's unit.
used_ms() {
	used=$(commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' | grep "^{\"unit\":\"$(unit_of "$1")\"" |
		sed -n 's/.*"used_ns":\([0-9]*\).*/\1/p' | head -n 1)
	used=$((${used:-0} / 1000000))
}

# is_active UNIT [USER]: whether a systemd unit is active, under the system's manager or the user's manager.
is_active() {
	if [ $# -gt 1 ]; then
		detail=$(on "$2" "systemctl --user is-active $1")
	else
		detail=$(systemctl is-active "$1")
	fi
	[ "$detail" = active ]
}

# ran_ns PID...: sets `ns` to the sum of the processes' CPU time, from their threads. Starts no process.
ran_ns() {
	ns=0
	for pid; do
		for file in /proc/"$pid"/task/*/schedstat; do
			read -r ran rest < "$file" && ns=$((ns + ran))
		done
	done
}
# has_cpus PID...: sets `cpus` to the CPU time per time that the processes receive together over 10 s, in thousandths of a CPU.
has_cpus() {
	ran_ns "$@"
	ns_before=$ns from=$(uptime_cs)
	pause 10
	ran_ns "$@"
	read -r up idle < /proc/uptime
	cpus=$(((ns - ns_before) / 10000 / (${up%.*}${up#*.} - from)))
}

# spins USER SLICE COUNT: starts COUNT busy processes of a user, each as a service of the system's manager in that slice.
# spins_run USER COUNT: whether COUNT busy processes of the user run.
spins() {
	for number in $(seq "$3"); do
		systemd-run --quiet --collect --uid="$1" --slice="$2" --unit="lab-work-$1-$number" /job/spin 900
	done
}
spins_run() {
	detail=$(pgrep -x spin -U "$1" | wc -l)
	[ "$detail" = "$2" ]
}

# slice: the control group of ana's slice.
# sees: whether the contract is in force, by that slice's CPU set or by a scheduler in the kernel. not_held: whether it is not.
slice=$CGROUPS/user.slice/user-1001.slice
sees() {
	if [ $way = kernel ]; then
		read -r value < /sys/kernel/sched_ext/state
		[ "$value" = enabled ]
	else
		value=
		[ ! -e "$slice/cpuset.cpus" ] || read -r value < "$slice/cpuset.cpus"
		[ -n "$value" ]
	fi
}
not_held() {
	! sees
}

# places: the users' long-lived processes, each with its group.
places() {
	for pid in $(pgrep -x sleep -U ana,bob,carol,dave); do
		echo "$pid $(cgroup_of "$pid")"
	done | sort
}
# all_groups: systemd's control groups, without that of a service of podman's, which ends by itself after half a minute.
# settings: the contents of the kernel's files of the groups in groups.txt. That a file is missing also makes a difference.
FILES="cgroup.subtree_control cpu.weight cpu.max cpuset.cpus memory.min memory.low memory.high memory.max io.weight io.max io.bfq.weight"
all_groups() {
	find $CGROUPS/user.slice $CGROUPS/system.slice $CGROUPS/init.scope -type d ! -name netavark-dhcp-proxy.service
	echo $CGROUPS
}
settings() {
	while read -r group; do
		for file in $FILES; do
			echo "$group/$file"
		done
	done < groups.txt | xargs grep -H '' 2> /dev/null
}
# told_properties: systemd's view of the properties, and its drop-ins.
told_properties() {
	systemctl show user.slice system.slice user-1001.slice user-1002.slice user-1003.slice user-1004.slice user@1001.service \
		lab-system.service -p Id -p CPUWeight -p CPUQuotaPerSecUSec -p AllowedCPUs -p MemoryMin -p MemoryLow -p MemoryHigh \
		-p MemoryMax -p IOWeight -p DropInPaths -p CPUAccounting -p MemoryAccounting -p IOAccounting
	find /run/systemd/system.control /etc/systemd/system.control -type f 2> /dev/null
	find /run/systemd/transient -name '*.slice*' -o -name 'commonhold*'
}
# same FILE FILE: neither is empty, and their lines are equal, by any available diff.
same() {
	detail=$(diff "$1" "$2" | grep '^[+<>-][^+-]' | head -n 3 | tr '\n' ';')
	[ -z "$detail" ] || return 1
	detail="nothing was there"
	[ -s "$1" ] && detail=
}

# --- The packaged service. `both_ways FUNCTION` runs the following under each backend.
both_ways() {
	for way in cgroup kernel; do
		how="($way)"
		daemon=
		"$@"
		stops_service
		leave
	done
}
# packages OPTION...: runs dpkg, by its path, because this shell's busybox has a dpkg of its own.
packages() {
	/usr/bin/dpkg "$@" > dpkg.log 2>&1 || {
		detail=$(tail -n 3 dpkg.log | tr '\n' ' ')
		return 1
	}
}
# installs [FILE]: installs the package, with this test's contract and backend, and does not start the service.
unit_folder=/run/systemd/system/commonhold.service.d
installs() {
	packages --force-confold --install "${1:-/job/commonhold.deb}" || return 1
	cp $contract /etc/commonhold/contract.toml
	mkdir -p $unit_folder
	printf '[Service]\nExecStart=\nExecStart=/usr/bin/commonhold run /etc/commonhold/contract.toml --backend %s\nTimeoutStartSec=300\n' \
		$way > $unit_folder/lab.conf
	systemctl daemon-reload
}
starts_service() {
	systemctl reset-failed commonhold 2> /dev/null
	systemctl start commonhold
}
stops_service() {
	systemctl stop commonhold 2> /dev/null
	rm -rf $unit_folder
}
# main_pid, caretaker_pid: the process numbers of the service's daemon and of its caretaker.
main_pid() {
	systemctl show commonhold -p MainPID --value
}
caretaker_pid() {
	pgrep -o -f "^commonhold caretaker"
}
# kills_both: kills daemon and caretaker together. Sets `service_pid` to the killed daemon's process number.
kills_both() {
	service_pid=$(main_pid) caretaker=$(caretaker_pid)
	detail="daemon '$service_pid', caretaker '$caretaker'"
	[ -n "$caretaker" ] && kill -KILL "$caretaker" "$service_pid"
}
# users_work: starts users' long-lived processes, in sessions and services, and records the state.
# record: writes the present groups, settings and properties into files, with which `undone` compares the later state.
users_work() {
	for user in ana carol; do
		on $user "systemd-run --user --unit lab-stays sleep 941; setsid sleep 942 < /dev/null > /dev/null 2>&1 &" > /dev/null 2>&1
	done
	on bob true
	systemd-run -q --unit lab-system -p User=dave sleep 943
	sleep 2
	record
}
record() {
	places > places.txt
	all_groups | grep -v commonhold > groups.txt
	settings > settings.txt
	told_properties > told.txt
}
# holds_service: checks that the service runs and holds the contract.
holds_service() {
	ok "$1 $how" wait_for "${2:-60}" sees && ok "$1, and it answers $how" wait_for 60 answers
}
# undone NAME: checks that groups, settings and properties are as `record` found them, and that no process is held or stopped.
# System services may have started or ended meanwhile.
undone() {
	places > places-now.txt
	settings > settings-now.txt
	told_properties > told-now.txt
	ok "$1 all are where they were $how" same places.txt places-now.txt
	ok "$1 the kernel's files are as before $how" same settings.txt settings-now.txt
	ok "$1 systemd's properties are as before $how" same told.txt told-now.txt
	ok "$1 no process is held $how" wait_for 10 not_held
	ok "$1 no process is stopped $how" nobody_stopped
}
nobody_stopped() {
	detail=$(grep -l '^State:[[:space:]]*T' /proc/[0-9]*/status 2> /dev/null | head -n 3 | tr '\n' ' ')
	[ -z "$detail" ]
}
# mark: begins a part of the service's log. lines_since_mark PATTERN: the number of matching lines since the last `mark`.
mark() {
	marked=$(($(date +%s)))
	sleep 1
}
lines_since_mark() {
	journalctl -q -u commonhold --no-pager -o cat --since "@$marked" | grep -c -e "$1"
}
