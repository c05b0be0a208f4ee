# guest: debian
# seconds: 900
# budget: 400
# memory: 3072
# needs: commonhold spin
# only: with --all
# systemd's services for users, without the daemon and with it: users' managers start services and scopes, and ending a session
# or a user ends all of its processes. The journal attributes each line to its unit, slice and session.

. /job/systemd.sh

app=user.slice/user-1001.slice/user@1001.service/app.slice
services() {
	on ana "mkdir -p ~/.config/systemd/user
		printf '[Service]\nExecStart=/bin/sleep 901\n' > ~/.config/systemd/user/lab-file.service
		systemctl --user daemon-reload"
	hold || return
	on ana "systemctl --user start lab-file" > user.log 2>&1
	ok "a user's service starts $how" is_active lab-file ana || cat user.log
	on ana "systemd-run --user --unit lab-run sleep 902" > user.log 2>&1
	ok "a service that was made for a command starts $how" is_active lab-run ana || cat user.log
	ssh -n ana@localhost "systemd-run --user --scope --unit lab-scope sleep 903" > user.log 2>&1 &
	ok "a scope starts $how" wait_for 20 runs sleep 903 || cat user.log
	ok "and is active $how" is_active lab-scope.scope ana
	sleep 2
	for entry in 901:lab-file.service 902:lab-run.service 903:lab-scope.scope; do
		pid=$(pid_of "sleep ${entry%:*}")
		ok "${entry#*:} has its process $how" is_in "$pid" "$app/${entry#*:}"
		counted "${entry#*:}" "$pid" ana
	done
	on ana "systemctl --user stop lab-file lab-run lab-scope.scope"
	for number in 901 902 903; do
		ok "nothing of it survives its stop, $number $how" gone sleep $number
	done
	[ $way = alone ] || {
		used_ms ana
		used_before=$used
		on ana "systemd-run --user --wait --unit lab-spin /job/spin 2" > /dev/null 2>&1
		spins_counted() {
			used_ms ana
			at_least $((used - used_before)) 1800
		}
		ok "the 2 s that a service computes are counted, in ms $how" wait_for 3 spins_counted || note "$((used - used_before)) ms"
	}
}

# in_session COMMAND: a login of ana's; sets `session` to its number.
in_session() {
	rm -f /home/ana/lab-id
	ssh ana@localhost "echo \$XDG_SESSION_ID > ~/lab-id; $1" < /dev/null > /dev/null 2>&1 &
	login=$!
	wait_for 40 test -s /home/ana/lab-id
	session=$(cat /home/ana/lab-id)
}
no_session() {
	! loginctl show-session "$session"
}
kill_at_logout() {
	mkdir -p /run/systemd/logind.conf.d
	printf "[Login]\nKillUserProcesses=$1\n" > /run/systemd/logind.conf.d/lab.conf
	systemctl restart systemd-logind
}
log_out() {
	in_session "nohup sleep $1 > /dev/null 2>&1 & exec sleep 1000"
	wait_for 10 runs sleep "$1"
	sleep 2
	kill "$login"
}
ends() {
	hold || return
	on ana true
	in_session "sleep 911 & exec sleep 912"
	ok "a session's processes run $how" wait_for 10 runs sleep 912
	sleep 2
	loginctl terminate-session "$session"
	ok "terminate-session ends the session $how" wait_for 20 no_session
	ok "and its shell's child $how" soon 5 gone sleep 911
	ok "and its own process $how" soon 5 gone sleep 912

	in_session "setsid sleep 913 & systemd-run --user --unit lab-left sleep 914; exec sleep 915"
	ok "a user's service runs $how" wait_for 20 runs sleep 914
	sleep 2
	loginctl terminate-user ana
	ok "terminate-user ends the session $how" wait_for 20 no_session
	for number in 913 914 915; do
		ok "and all of the user's, $number $how" soon 10 gone sleep $number
	done
	rm -f ssh-ana

	log_out 916
	sleep 3
	ok "what was to stay after a logout stays $how" runs sleep 916
	ok "where its session had it $how" is_in "$(pid_of sleep 916)" "user.slice/user-1001.slice/session-$session.scope"
	kill_at_logout yes
	log_out 917
	ok "KillUserProcesses=yes ends the session at logout $how" wait_for 20 no_session
	ok "and what was to stay $how" soon 5 gone sleep 917
	kill_at_logout no
}

# told TAG FIELD=VALUE...: each of the two journal lines has these fields.
told() {
	tag=$1
	shift
	for field; do
		detail="of 2 lines, $(journalctl -q -t "$tag" "$field" -o cat | wc -l) have $field"
		[ "$detail" = "of 2 lines, 2 have $field" ] || return 1
	done
}
journal() {
	hold || return
	journalctl -q --rotate --vacuum-time=1s > /dev/null 2>&1
	lines="sh -c 'echo one; sleep 3; echo two; sleep 2'"
	in_session "systemd-cat -t lab-session $lines"
	on ana "systemd-run --user --unit lab-lines -p SyslogIdentifier=lab-user $lines" > /dev/null 2>&1
	systemd-run -q --unit lab-lines -p SyslogIdentifier=lab-system -p User=carol sh -c 'echo one; sleep 3; echo two; sleep 2'
	sleep 8
	ok "the journal has unit, slice and session of a session's lines $how" told lab-session \
		_SYSTEMD_UNIT="session-$session.scope" _SYSTEMD_SLICE=user-1001.slice _SYSTEMD_SESSION="$session" _SYSTEMD_OWNER_UID=1001
	ok "and of a user's service's $how" told lab-user _SYSTEMD_UNIT=user@1001.service _SYSTEMD_USER_UNIT=lab-lines.service \
		_SYSTEMD_SLICE=user-1001.slice
	ok "and of a system service's $how" told lab-system _SYSTEMD_UNIT=lab-lines.service _SYSTEMD_SLICE=system.slice
}

each_way services
each_way ends
each_way journal
