# guest: debian
# seconds: 900
# budget: 400
# memory: 3072
# needs: commonhold
# only: with --all
# Sixteen concurrent logins on a machine with systemd, without the daemon and with it: all sessions become active, and each
# process finds its own session, whether it began before the daemon or after.

. /job/systemd.sh

# log_in TAG: sixteen concurrent logins, four per user. Each waits, then asks for its own session, and stays.
log_in() {
	[ -p "$1.go" ] || mkfifo "$1.go"
	exec 7<> "$1.go"
	for user in $users; do
		for number in 1 2 3 4; do
			ssh "$user@localhost" "cat > /dev/null; loginctl --no-pager -l session-status > ~/lab-$1-$number 2>&1
				echo status \$? >> ~/lab-$1-$number; exec sleep 9$number" < "$1.go" > /dev/null 2>&1 7>&- &
		done
	done
}
sessions() {
	loginctl list-sessions --no-legend | awk '$3 ~ /^(ana|bob|carol|dave)$/ { print $1 }'
}
are_active() {
	detail="$(loginctl show-session -p State $(sessions) 2> /dev/null | grep -c State=active) of $1"
	[ "$detail" = "$1 of $1" ]
}
managers_up() {
	detail=$(systemctl is-active user@1001 user@1002 user@1003 user@1004 | grep -c '^active')
	[ "$detail" = 4 ]
}
# asked TAG: the number of the batch's logins that got an answer. knew TAG: the number that got the right answer, which is a
# session that lists the asking process.
asked() {
	[ "$(cat /home/*/lab-"$1"-? 2> /dev/null | grep -c '^status')" = 16 ]
}
knew() {
	detail="$(grep -l '^status 0' $(grep -l 'session-status' /home/*/lab-"$1"-?) | wc -l) of 16; $(cat /home/*/lab-"$1"-? | grep -m 1 Could)"
	[ "${detail%%;*}" = "16 of 16" ] && detail=
}
no_sessions() {
	[ -z "$(sessions)" ]
}

logins() {
	log_in before
	ok "sixteen logins are active before $how" wait_for 150 are_active 16
	ok "and every user's manager $how" wait_for 30 managers_up
	hold 7>&- || return
	sleep 3
	ok "they are active meanwhile $how" are_active 16
	exec 7>&-
	ok "each session answers $how" wait_for 100 asked before
	ok "each of those that were there knows itself $how" knew before
	pkill -x -f 'sleep 9[1-4]'
	ok "they log out $how" wait_for 60 no_sessions
	log_in after
	ok "sixteen logins are active that came meanwhile $how" wait_for 150 are_active 16
	ok "and every user's manager meanwhile $how" wait_for 30 managers_up
	sleep 3
	exec 7>&-
	ok "each session that came meanwhile answers $how" wait_for 100 asked after
	ok "each of those that came meanwhile knows itself $how" knew after
	release
	sleep 1
	ok "they are active afterwards $how" are_active 16
	pkill -x -f 'sleep 9[1-4]'
	ok "they log out afterwards $how" wait_for 60 no_sessions
}

each_way logins
