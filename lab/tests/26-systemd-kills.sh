# guest: debian
# seconds: 1500
# budget: 400
# memory: 3072
# needs: commonhold
# only: with --all
# The daemon is killed repeatedly while users' managers start and end services. A second later, every process is in the group
# where it was or where its manager put it meanwhile, every property is as it was, and no process is in the root group. Without
# the daemon, the same is checked over a second in which nothing happens.

. /job/systemd.sh

# Groups that were created since belong to their managers.
none_in_root() {
	detail=$(for pid in $(cat $CGROUPS/cgroup.procs); do
		[ -z "$(readlink "/proc/$pid/exe")" ] || echo "$pid $(cat "/proc/$pid/comm")"
	done | head -n 3)
	[ -z "$detail" ]
}
app() {
	echo "user.slice/user-$1.slice/user@$1.service/app.slice"
}
# came_and_went ROUND: users' services and logins begin and end while the daemon runs.
came_and_went() {
	on ana "systemctl --user stop lab-goes; systemd-run --user --unit lab-came$1 sleep 95$1" > /dev/null 2>&1
	on bob "systemd-run --user --unit lab-goes sleep 949" > /dev/null 2>&1
	on bob "systemctl --user stop lab-goes"
	rm -f /home/carol/lab-id
	ssh -n carol@localhost "echo \$XDG_SESSION_ID > ~/lab-id; exec sleep 96$1" > /dev/null 2>&1 &
	wait_for 40 runs sleep "96$1"
	came_session=$(cat /home/carol/lab-id)
	sleep 1
}

kills() {
	for user in $users; do
		on $user "systemd-run --user --unit lab-stays sleep 941; setsid sleep 942 < /dev/null > /dev/null 2>&1 &" > /dev/null 2>&1
	done
	systemd-run -q --unit lab-system -p User=dave sleep 943
	systemctl set-property --runtime user-1002.slice CPUWeight=50 MemoryHigh=1G
	sleep 2
	for round in $(seq "$LAB_KILLS"); do
		rounds="$how, kill $round"
		on ana "systemd-run --user --unit lab-goes sleep 948" > /dev/null 2>&1
		sleep 1
		places | grep -v -x "$(pid_of sleep 948) .*" > places.txt
		all_groups | grep -v lab-goes > groups.txt
		settings > settings.txt
		told_properties > told.txt
		hold || return
		sleep 2
		came_and_went "$round"
		[ -z "$daemon" ] || kill -KILL "$daemon"
		sleep 1
		places > now.txt
		grep -x -F -f places.txt now.txt > still.txt
		settings > settings-now.txt
		told_properties > told-now.txt
		ok "a second later all are where they were $rounds" same places.txt still.txt
		ok "a service that came is where its manager put it $rounds" \
			is_in "$(pid_of sleep "95$round")" "$(app 1001)/lab-came$round.service"
		ok "and so is a login's process $rounds" is_in "$(pid_of sleep "96$round")" "user.slice/user-1003.slice/session-$came_session.scope"
		ok "no process is in the root group $rounds" none_in_root
		ok "the kernel's files are as before $rounds" same settings.txt settings-now.txt
		ok "systemd's properties are as before $rounds" same told.txt told-now.txt
		[ -z "$daemon" ] || wait "$daemon" 2> /dev/null
		daemon=
	done
}

each_way kills
