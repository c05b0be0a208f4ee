# seconds: 150
# budget: 60
# needs: commonhold spin
# A cgroup tree with systemd's layout and a small service manager run by a user, but no systemd to call. The daemon moves no
# process: it holds units in the tree's own groups, by writing the kernel's files. The manager starts and stops services while
# the daemon runs and after it exits or is killed. A session can end. Settings that others change meanwhile stay; settings that
# the daemon made are undone.

contract=/job/contracts/beside-systemd.toml
slice=user.slice/user-1001.slice
session=$slice/session-3.scope
manager_group=$slice/user@1001.service
cron=system.slice/cron.service
grep -q '^ana:' /etc/passwd || echo "ana:x:1001:1001:ana:/tmp:/bin/sh" >> /etc/passwd
# Run process 1's executable under systemd's name, as on a machine with systemd.
first=$(readlink -f /proc/1/exe)
systemd=${first%/*}/systemd
ln -f "$first" "$systemd"
mkdir -p /tmp/ana
chown ana /tmp/ana

# as_ana GROUP COMMAND: runs a command as user ana in a control group.
as_ana() {
	sh -c 'echo $$ > "$0/cgroup.procs" && exec su -s /bin/sh ana -c "exec $1"' "$CGROUPS/$1" "$2" > /dev/null 2>&1 &
}

make_tree() {
	for group in $session $manager_group/init.scope $manager_group/app.slice $cron; do
		mkdir -p "$CGROUPS/$group"
	done
	# systemd's defaults, whatever the previous test left: `memory` enabled for services and sessions, `cpu` not yet enabled.
	for controller in cpu cpuset io; do
		echo "-$controller" > "$CGROUPS/cgroup.subtree_control" 2> /dev/null
	done
	for group in . system.slice user.slice $slice $manager_group; do
		echo "+memory +pids" > "$CGROUPS/$group/cgroup.subtree_control"
	done
	chown -R ana "$CGROUPS/$manager_group"
	[ -p /tmp/ana/fifo ] || mkfifo /tmp/ana/fifo
	chown ana /tmp/ana/fifo
	rm -f /tmp/ana/answer
	as_ana $session "sleep 1001"
	as_ana $cron "sleep 1002"
	# A manager started from a session is recognised by its executable.
	as_ana $session "-a sleep $systemd 1003"
	as_ana $manager_group/init.scope "sh -c 'cd /tmp/ana && exec sh /job/user-manager $CGROUPS/$manager_group /tmp/ana/fifo'"
	exec 8<> /tmp/ana/fifo      # read and write, so that opening it does not wait for a reader
	started sleep 1001 && started sleep 1002 && started sleep 1003
}

# pid_of WORDS...: the process with this command line.
pid_of() {
	for folder in /proc/[0-9]*; do
		[ "$(tr '\0' ' ' < "$folder/cmdline" 2> /dev/null)" = "$* " ] && echo "${folder#/proc/}"
	done
}
is_there() {
	[ -n "$(pid_of "$@")" ]
}
started() {
	wait_for 10 is_there "$@"
}
is_in() {
	detail=$(cgroup_of "$1")
	[ "$detail" = "/$2" ]
}

# ask WORDS ANSWER: the manager replies ANSWER.
answered() {
	[ "$(cat /tmp/ana/answer 2> /dev/null)" = "$1" ]
}
ask() {
	rm -f /tmp/ana/answer
	echo "$1" >&8
	wait_for 20 answered "$2" || {
		detail="$1: $(cat /tmp/ana/answer)"
		return 1
	}
}
manager_works() {
	ask "start $1 sleep 77" started && ask "stop $1" stopped
}

end_tree() {
	exec 8>&-
	for group in $session $cron $manager_group/init.scope $slice/session-4.scope; do
		kill -9 $(cat "$CGROUPS/$group/cgroup.procs" 2> /dev/null) 2> /dev/null
	done
	kill -9 $(pidof spin) $(pid_of sleep 88) 2> /dev/null
	wait 2> /dev/null
	usleep 200000
	find "$CGROUPS/user.slice" "$CGROUPS/system.slice" -depth -type d -exec rmdir {} + 2> /dev/null
	echo "-memory -pids -cpu -cpuset -io" > "$CGROUPS/cgroup.subtree_control" 2> /dev/null
	for controller in cpu cpuset io memory pids; do
		echo "-$controller" > "$CGROUPS/cgroup.subtree_control" 2> /dev/null
	done
	true
}

for round in cgroup:TERM kernel:KILL; do
	backend=${round%:*} signal=${round#*:} how="(${round})"
	ok "a user's manager, a session and a service are there $how" make_tree || exit 1
	ok "the manager starts and stops services before $how" manager_works before
	ask "start long sleep 88" started
	mkdir -p /run/systemd/system
	commonhold check $contract > check.txt 2>&1
	ok "check says where units are held $how" grep -q 'systemd runs here' check.txt
	commonhold run $contract --dry-run --backend $backend > dry.txt 2>&1
	ok "a dry run would move no process $how" grep -q 'all would be held where they are' dry.txt ||
		note "$(grep -A 4 'ana:' dry.txt)"
	commonhold doctor > doctor.txt 2>&1
	ok "doctor knows of systemd $how" grep -q 'no other manager of groups' doctor.txt
	ok "the daemon holds the contract $how" start_daemon $contract --backend $backend || exit 1
	kept() {
		[ "$(cat "$CGROUPS/$slice/memory.low")" -gt 0 ]
	}
	ok "memory is kept for the user's slice $how" wait_for 10 kept
	ok "the session's process stays $how" is_in "$(pid_of sleep 1001)" $session
	ok "and the service's $how" is_in "$(pid_of sleep 1002)" $cron
	ok "and the manager $how" is_in "$(pid_of sh /job/user-manager "$CGROUPS/$manager_group" /tmp/ana/fifo)" $manager_group/init.scope
	ok "and one that was started from a session $how" is_in "$(pid_of sleep 1003)" $session
	ok "and the manager's services $how" is_in "$(pid_of sleep 88)" $manager_group/app.slice/long.service
	ok "the manager starts and stops services meanwhile $how" manager_works meanwhile
	ask "start busy spin 600" started
	ok "a service that it starts meanwhile stays as well $how" is_in "$(pidof spin)" $manager_group/app.slice/busy.service
	listed() {
		commonhold status > status.txt && grep -q "^ana .* /$slice\$" status.txt && grep -q "^ana .* /$cron\$" status.txt
	}
	ok "status has the places $how" wait_for 10 listed || cat status.txt
	commonhold status --pid "$(pid_of sleep 1002)" > pid.txt
	ok "and says of one that it is held $how" is "$(grep -c 'in unit ana' pid.txt) $(grep -c 'not in the unit' pid.txt)" '1 0' || cat pid.txt
	used() {
		found=$(commonhold status --json | tr -d ' \n' | sed -n 's/.*"unit":"ana"[^}]*"used_ns":\([0-9]*\).*/\1/p')
		[ "${found:-0}" -ge 1000000000 ]
	}
	ok "their CPU time counts in the unit $how" wait_for 30 used || note "used_ns: $found"
	ask "stop busy" stopped

	# Other programs are unaffected: a weight is set, the session ends.
	echo 50 > "$CGROUPS/user.slice/cpu.weight"
	kill -9 "$(pid_of sleep 1001)" "$(pid_of sleep 1003)"
	usleep 200000
	ok "the session is over $how" rmdir "$CGROUPS/$session"
	kill -$signal "$daemon"
	wait "$daemon"
	status=$?
	[ $signal = KILL ] || ok "the daemon ended in order $how" is $status 0
	let_go() {
		[ "$(cat "$CGROUPS/$slice/memory.low" "$CGROUPS/user.slice/memory.low" | tr '\n' ' ')" = '0 0 ' ]
	}
	ok "no memory is kept for the user's slice $how" wait_for 10 let_go
	ok "the weight that was set meanwhile is there $how" is "$(cat "$CGROUPS/user.slice/cpu.weight")" 50
	ok "and so is what it needs $how" wait_for 10 grep -q 'cpu controller stays enabled' "$daemon_log"
	ok "no process was moved to the root group $how" is "$(cgroup_of "$(pid_of sleep 1002)")" /$cron
	ok "the manager starts and stops services afterwards $how" manager_works afterwards
	ok "the daemon's groups are gone $how" wait_for 10 test ! -e $HELD
	end_tree
done
