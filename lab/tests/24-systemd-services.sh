# guest: debian
# seconds: 1200
# budget: 560
# memory: 3072
# needs: commonhold spin work
# only: with --all
# An administrator's work with systemd, without the daemon and with it: users' services end as a whole, properties are in force,
# and services survive reloads and restarts. Work started by cron, at and sudo is accounted from its first moment. A program that
# enters another user's unit is in a scope that systemd knows, and is back in its session afterwards.

. /job/systemd.sh

# unit_file NAME LINE...: writes a system service.
unit_file() {
	name=$1
	shift
	{
		echo "[Service]"
		printf '%s\n' "$@"
	} > "/run/systemd/system/$name.service"
}
make_units() {
	unit_file lab-simple User=bob "ExecStart=/bin/sh -c 'sleep 921 & sleep 922 & exec sleep 923'"
	unit_file lab-forking User=carol Type=forking RuntimeDirectory=lab PIDFile=/run/lab/pid \
		"ExecStart=/bin/sh -c 'sleep 924 & sleep 925 & echo \$\$! > /run/lab/pid'"
	unit_file lab-guessed User=dave Type=forking "ExecStart=/bin/sh -c 'sleep 926 &'"
	unit_file lab-busy User=dave "ExecStart=/job/spin 603 1"
	systemctl daemon-reload
}
are_units_active() {
	detail=$(systemctl is-active lab-simple lab-forking lab-guessed | tr '\n' ' ')
	[ "$detail" = "active active active " ]
}
# main_pid UNIT COMMAND: systemd's MainPID is the process that runs COMMAND.
main_pid() {
	is "$(systemctl show -p MainPID --value "$1")" "$(pid_of "$2")"
}
# counts_on: whether a busy process of dave's receives CPU time, by the daemon's accounts over 4 s, in ms.
counts_on() {
	used_ms dave
	ms_before=$used
	pause 4
	used_ms dave
	at_least $((used - ms_before)) 1000
}
services() {
	make_units
	systemctl start lab-simple lab-forking lab-busy
	hold || return
	sleep 2
	systemctl start lab-guessed
	systemctl restart lab-simple lab-busy
	sleep 3
	ok "services of users stay active, also those that fork $how" are_units_active
	ok "systemd knows the process of the one with a PID file $how" main_pid lab-forking "sleep 925"
	ok "and of the one without $how" main_pid lab-guessed "sleep 926"
	counted "a service's process" "$(pid_of sleep 923)" bob
	counted "a service's child" "$(pid_of sleep 921)" bob
	counted "a process of one that forks" "$(pid_of sleep 924)" carol
	[ $way = alone ] || ok "what a service uses is counted after its restart $how" counts_on
	systemctl stop lab-simple lab-forking lab-guessed lab-busy
	for number in 921 922 923 924 925 926; do
		ok "after the stop nothing is left, $number $how" gone sleep $number
	done
}

# A login and a service of the user's manager, under an administrator's limits.
PROPERTIES="MemoryMax=314572800 CPUQuotaPerSecUSec=1.500000s AllowedCPUs=0-3 CPUWeight=50"
are_set() {
	detail=$(systemctl show user-1001.slice -p MemoryMax -p CPUQuotaPerSecUSec -p AllowedCPUs -p CPUWeight | sort | tr '\n' ' ')
	[ "$detail" = "$(echo $PROPERTIES | tr ' ' '\n' | sort | tr '\n' ' ')" ]
}
in_force() {
	detail="$(cat "$slice/memory.max") $(cat "$slice/cpu.max") $(cat "$slice/cpuset.cpus") $(cat "$slice/cpu.weight")"
	[ "$detail" = "314572800 150000 100000 0-3 50" ]
}
are_named() {
	detail=$(commonhold status | grep 'set by others: ' | head -n 1)
	case $detail in *"at most 300 MiB, CPUs 0-3, a cap on CPU time, a weight"*) ;; *) return 1 ;; esac
}
# runs_within PID: it may use only the four allowed CPUs.
runs_within() {
	detail=$(cpus_of "$1")
	case $detail in 0-3 | [0-3] | [0-3]-[0-3] | 0[-,]*[0-3]) ;; *) return 1 ;; esac
}
# cpu_ms PID: sets `ms` to the CPU time of a process, summed over its threads.
cpu_ms() {
	read -r line < "/proc/$1/stat"
	set -- ${line##*) }
	ms=$(((${12} + ${13}) * 10))
}
# quota_holds PID: the CPU time of its four threads in 5 s, in ms. The measured interval may cut the quota's periods at either
# end.
quota_holds() {
	cpu_ms "$1"
	ms_before=$ms from=$(uptime_cs)
	pause 5
	cpu_ms "$1"
	elapsed=$((($(uptime_cs) - from) * 10))
	at_most $(((ms - ms_before) * 1000 / elapsed)) 1650
}
# Only the kernel's own scheduler enforces a quota.
gives_way() {
	detail=$(commonhold status --json | grep -c 'user-1001.slice has a cap on CPU time')
	[ "$detail" -gt 0 ]
}
# is_killed NAME: the kernel killed a program of that name because it exceeded the memory limit.
kills_of_slice() {
	sed -n 's/^oom_kill //p' "$slice/memory.events"
}
is_killed() {
	detail="$(grep -c '^pass 1' "/home/ana/lab-$1") passes, $(($(kills_of_slice) - kills_before)) killed"
	[ "$detail" = "0 passes, 1 killed" ]
}
properties() {
	on ana "setsid /job/spin 600 4 < /dev/null > /dev/null 2>&1 &"
	on ana "systemd-run --user --unit lab-spin /job/spin 601 4" 2> /dev/null
	wait_for 20 runs spin 600 4
	wait_for 20 runs spin 601 4
	session_pid=$(pid_of spin 600 4) service_pid=$(pid_of spin 601 4)
	hold || return
	sleep 3
	systemctl set-property --runtime user-1001.slice MemoryMax=300M CPUQuota=150% AllowedCPUs=0-3 CPUWeight=50
	sleep 2
	ok "systemd has the properties $how" are_set
	ok "they are in the kernel's files $how" in_force
	[ $way = alone ] || ok "the daemon names them $how" soon 20 are_named
	ok "the CPUs are those of a session's process $how" runs_within "$session_pid"
	ok "and of a service's $how" runs_within "$service_pid"
	[ $way != kernel ] || ok "the scheduler gives way to the quota $how" soon 20 gives_way
	kill "$service_pid"
	ok "the quota is a session's, in thousandths of a CPU $how" quota_holds "$session_pid"
	kill "$session_pid"
	on ana "systemd-run --user --unit lab-spin2 /job/spin 602 4" 2> /dev/null
	wait_for 20 runs spin 602 4
	ok "and a service's, in thousandths of a CPU $how" quota_holds "$(pid_of spin 602 4)"
	on ana "systemctl --user stop lab-spin2"
	kills_before=$(kills_of_slice)
	on ana "setsid /job/work touch session 500 1 > ~/lab-session 2> /dev/null < /dev/null &"
	ok "a session has no more memory than its limit $how" soon 20 is_killed session
	pkill -9 -x session
	kills_before=$(kills_of_slice)
	on ana "systemd-run --user --unit lab-touch sh -c 'exec /job/work touch service 500 1 > ~/lab-service 2>&1'" > /dev/null 2>&1
	ok "nor has a service $how" soon 20 is_killed service
	on ana "systemctl --user stop lab-touch" 2> /dev/null

	# Each of these must leave everything as it was.
	rm -f ssh-*
	on ana "setsid sleep 931 < /dev/null > /dev/null 2>&1 & systemd-run --user --unit lab-keeps sleep 932" > /dev/null 2>&1
	make_units
	systemctl start lab-simple
	sleep 3
	places > before.txt
	for what in "daemon-reload" "daemon-reexec" "restart ssh" "restart cron"; do
		systemctl $what
		sleep 2
		places > now.txt
		ok "after $what all processes are where they were $how" same before.txt now.txt
		ok "and the properties are there $how" are_set
		ok "and in force $how" in_force
		[ $way = alone ] || ok "and the daemon holds the contract $how" answers
	done
	release
	sleep 1
	ok "afterwards the properties are there $how" are_set
	ok "and in force $how" in_force
}

# The CPU time that the work reports for itself, in ms.
took_ms() {
	sed -n 's/.*cpu_ms \([0-9]*\).*/\1/p' "$1"
}
# comes_by WAY USER OWNER COMMAND...: COMMAND has WAY (cron, at or sudo) run `sh lab-work` in the user's home. The work reports
# its unit at once, and then computes. Checks that the unit is OWNER's.
comes_by() {
	by=$1 user=$2 owner=$3
	shift 3
	rm -f "/home/$user"/lab-*
	echo '/job/commonhold status --pid $$ --json > lab-begin 2>&1
		/job/spin 2 > lab-spun' > "/home/$user/lab-work"
	[ $way = alone ] || used_ms "$owner"
	used_before=${used:-0}
	"$@" > comes.log 2>&1
	ok "work comes by $by $how" wait_for 90 grep -q cpu_ms "/home/$user/lab-spun" || {
		cat comes.log
		return
	}
	[ $way = alone ] && return
	ok "work started by $by is counted for $(unit_of "$owner") from its first moment $how" \
		is "$(sed 's/.*"unit":"\([^"]*\)".*/\1/' "/home/$user/lab-begin")" "$(unit_of "$owner")"
	wanted=$(($(took_ms "/home/$user/lab-spun") * 95 / 100))
	all_counted() {
		used_ms "$owner"
		at_least $((used - used_before)) $wanted
	}
	ok "and so is its CPU time, in ms $how" wait_for 3 all_counted || note "$((used - used_before)) of $(took_ms "/home/$user/lab-spun")"
}
work_that_comes() {
	hold || return
	comes_by at bob bob on bob 'echo "sh lab-work" | at -q a now'
	comes_by cron dave dave on dave 'echo "* * * * * crontab -r; sh lab-work" | crontab -'
	# sudo's process stays in the slice of the user who called it.
	comes_by "sudo -i" carol ana on ana 'sudo -i -u carol sh lab-work'
}

# Root, in ana's session, runs a program in carol's unit.
session_of_ana() {
	cgroup_of "$(pid_of sleep 942)"
}
has_begun_in_scope() {
	detail=$(cat /tmp/lab-entered)
	case $detail in */commonhold-maths-carol.slice/commonhold-*.scope) ;; *) return 1 ;; esac
}
is_told_in_scope() {
	detail=$(systemctl --no-pager status "$1" 2>&1 | head -n 1)
	case $detail in *commonhold-*.scope*) ;; *) return 1 ;; esac
}
session_answers() {
	on ana "loginctl --no-pager session-status > ~/lab-session-status 2>&1" || {
		detail=$(head -n 1 /home/ana/lab-session-status)
		return 1
	}
}
no_scopes() {
	detail=$(systemctl list-units --all --plain --no-legend 'commonhold-*.scope')
	[ -z "$detail" ]
}
enters() {
	[ $way = alone ] && return
	on carol "setsid sleep 940 < /dev/null > /dev/null 2>&1 &"
	on ana "setsid sleep 942 < /dev/null > /dev/null 2>&1 &"
	wait_for 20 runs sleep 940
	wait_for 20 runs sleep 942
	hold || return
	sleep 2
	rm -f /tmp/lab-entered
	on ana "sudo setsid /job/commonhold exec maths/carol -- sh -c 'cat /proc/self/cgroup > /tmp/lab-entered; exec sleep 941' < /dev/null > /dev/null 2>&1 &"
	ok "a program enters another user's unit $how" wait_for 20 runs sleep 941
	entered_pid=$(pid_of sleep 941)
	ok "it is in a scope of that unit's from its first moment $how" has_begun_in_scope
	ok "systemd names that scope $how" is_told_in_scope "$entered_pid"
	counted "what has entered" "$entered_pid" carol
	ok "the session that it came from answers $how" session_answers
	release
	sleep 1
	ok "afterwards it is in that session again $how" is "$(cgroup_of "$entered_pid")" "$(session_of_ana)"
	ok "and no scope is left $how" soon 10 no_scopes
	loginctl terminate-user ana
	ok "the end of the session ends it $how" soon 30 gone sleep 941
	rm -f /tmp/lab-entered
}

each_way services
each_way properties
each_way work_that_comes
each_way enters
