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

# spins USER SLICE COUNT: busy processes of a user's, each as a service of the system's manager in that slice.
# spins_run USER COUNT: whether all of them are there.
spins() {
	for number in $(seq "$3"); do
		systemd-run --quiet --collect --uid="$1" --slice="$2" --unit="lab-work-$1-$number" /job/spin 900
	done
}
spins_run() {
	detail=$(pgrep -x spin -U "$1" | wc -l)
	[ "$detail" = "$2" ]
}

# slice: ana's. sees: whether somebody is held: by the CPUs of that slice, or by a scheduler in the kernel.
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

# places: the users' processes that stay, each with its group.
places() {
	for pid in $(pgrep -x sleep -U ana,bob,carol,dave); do
		echo "$pid $(cgroup_of "$pid")"
	done | sort
}
# all_groups: those of systemd's. settings: what those of groups.txt have, by the kernel's files. That a file is not there counts,
# too.
FILES="cgroup.subtree_control cpu.weight cpu.max cpuset.cpus memory.min memory.low memory.high memory.max io.weight io.max io.bfq.weight"
all_groups() {
	find $CGROUPS/user.slice $CGROUPS/system.slice $CGROUPS/init.scope -type d
	echo $CGROUPS
}
settings() {
	while read -r group; do
		for file in $FILES; do
			echo "$group/$file"
		done
	done < groups.txt | xargs grep -H '' 2> /dev/null
}
# told_properties: what systemd says, and the drop-ins that it keeps.
told_properties() {
	systemctl show user.slice system.slice user-1001.slice user-1002.slice user-1003.slice user-1004.slice user@1001.service \
		lab-system.service -p Id -p CPUWeight -p CPUQuotaPerSecUSec -p AllowedCPUs -p MemoryMin -p MemoryLow -p MemoryHigh \
		-p MemoryMax -p IOWeight -p DropInPaths -p CPUAccounting -p MemoryAccounting -p IOAccounting
	find /run/systemd/system.control /etc/systemd/system.control -type f 2> /dev/null
	find /run/systemd/transient -name '*.slice*' -o -name 'commonhold*'
}
# same FILE FILE: neither is empty, and they have the same lines; by whichever diff is there.
same() {
	detail=$(diff "$1" "$2" | grep '^[+<>-][^+-]' | head -n 3 | tr '\n' ';')
	[ -z "$detail" ] || return 1
	detail="nothing was there"
	[ -s "$1" ] && detail=
}

# --- The packaged service. What follows is run under each backend: `both_ways FUNCTION`.
both_ways() {
	for way in cgroup kernel; do
		how="($way)"
		daemon=
		"$@"
		stops_service
		leave
	done
}
# packages OPTION...: dpkg, by its path: this shell's busybox has one, too.
packages() {
	/usr/bin/dpkg "$@" > dpkg.log 2>&1 || {
		detail=$(tail -n 3 dpkg.log | tr '\n' ' ')
		return 1
	}
}
# installs [FILE]: the package, with the contract and the backend of this test. It starts nothing.
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
# main_pid, caretaker_pid: of the service.
main_pid() {
	systemctl show commonhold -p MainPID --value
}
caretaker_pid() {
	pgrep -o -f "^commonhold caretaker"
}
# kills_both: daemon and caretaker at once. Sets `service_pid` to what the daemon was.
kills_both() {
	service_pid=$(main_pid) caretaker=$(caretaker_pid)
	detail="daemon '$service_pid', caretaker '$caretaker'"
	[ -n "$caretaker" ] && kill -KILL "$caretaker" "$service_pid"
}
# users_work: processes of users that stay, in sessions and services. It and what else is there is what `undone` compares with.
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
# holds_service: a check that the service is there and holds.
holds_service() {
	ok "$1 $how" wait_for "${2:-60}" sees && ok "$1, and it answers $how" wait_for 60 answers
}
# undone NAME: checks that all is as `record` found it. A service of the system's may have come or gone meanwhile.
undone() {
	places > places-now.txt
	settings > settings-now.txt
	told_properties > told-now.txt
	ok "$1 all are where they were $how" same places.txt places-now.txt
	ok "$1 the kernel's files are as before $how" same settings.txt settings-now.txt
	ok "$1 systemd's properties are as before $how" same told.txt told-now.txt
	ok "$1 nobody is held $how" wait_for 10 not_held
	ok "$1 nobody is stopped $how" nobody_stopped
}
nobody_stopped() {
	detail=$(grep -l '^State:[[:space:]]*T' /proc/[0-9]*/status 2> /dev/null | head -n 3 | tr '\n' ' ')
	[ -z "$detail" ]
}
# since_mark PATTERN: lines of the service's since the last `mark`.
mark() {
	marked=$(($(date +%s)))
	sleep 1
}
lines_since_mark() {
	journalctl -q -u commonhold --no-pager -o cat --since "@$marked" | grep -c -e "$1"
}
