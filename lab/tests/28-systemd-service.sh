# guest: debian
# seconds: 600
# budget: 300
# memory: 3072
# needs: commonhold spin
# only: with --all
# The daemon as systemd's service, from the package's files: how long the contract is not enforced during a restart, such as an
# upgrade's; that a hung daemon is replaced; and a user's own daemon.

. /job/systemd.sh

# as_service FILE TO: installs one of the package's services with this test's program and contract.
as_service() {
	sed "s|/usr/bin/commonhold|/job/commonhold|; s|/etc/commonhold/contract.toml|$contract|; s/^WatchdogSec=.*/WatchdogSec=10/
		s|^\(ExecStart=.*\)|\1 $backend|; s/^TimeoutStartSec=.*/TimeoutStartSec=300/" "/job/packaging/$1" > "$2"
	systemctl daemon-reload
}
# watches: until the file `watching` is gone, measures the longest time without any process held, in hundredths of a second.
watches() {
	since= longest=0
	while [ -e watching ]; do
		if sees; then
			since=
		else
			now=$(uptime_cs)
			since=${since:-$now}
			[ $((now - since)) -le $longest ] || longest=$((now - since))
		fi
		usleep 10000
	done
	echo $longest > longest
}
restarted() {
	detail=$(systemctl show lab-commonhold -p NRestarts --value)
	[ "${detail:-0}" -ge 1 ] && is_active lab-commonhold
}
service() {
	[ $way = alone ] && return
	backend="--backend $way"
	as_service commonhold.service /etc/systemd/system/lab-commonhold.service
	on ana "setsid sleep 900 < /dev/null > /dev/null 2>&1 &"
	on carol "setsid sleep 901 < /dev/null > /dev/null 2>&1 &"
	# The allowed time is that of 200 runs of `commonhold check`. On hardware, where a run takes 10 ms, that is two seconds.
	from=$(uptime_cs)
	for number in 1 2 3 4 5; do commonhold check $contract > /dev/null; done
	allowed=$((($(uptime_cs) - from) * 40))
	ok "the service starts $how" systemctl start lab-commonhold
	ok "it holds once it is started $how" wait_for 5 sees
	touch watching
	watches &
	watcher=$!
	sleep 1
	ok "it restarts $how" systemctl restart lab-commonhold
	wait_for 10 sees
	sleep 1
	rm watching
	wait $watcher
	ok "the contract is not in force for at most two seconds on hardware, in hundredths of the guest's $how" at_most "$(cat longest)" $allowed
	ok "a contract that does not hold is refused at a reload $how" refuses_reload
	ok "and the daemon goes on $how" is_active lab-commonhold
	kill -STOP "$(systemctl show lab-commonhold -p MainPID --value)"
	ok "a hung daemon is restarted $how" soon 90 restarted
	ok "and holds $how" wait_for 20 sees
	ok "it stops $how" systemctl stop lab-commonhold
	ok "and no process is held any more $how" wait_for 10 not_held
	ok "its filter of system calls is in force $how" filtered
	rm /etc/systemd/system/lab-commonhold.service
	systemctl daemon-reload
}
# filtered: whether the service has the system call filter, and the daemon logged no refused call.
filtered() {
	detail=$(systemctl show lab-commonhold -p SystemCallFilter --value)
	case $detail in *process_madvise*) ;; *) return 1 ;; esac
	! journalctl -u lab-commonhold --no-pager | grep -q 'Operation not permitted'
}
refuses_reload() {
	cp $contract kept.toml
	echo 'version = "x"' >> $contract
	! systemctl reload lab-commonhold 2> /dev/null
	outcome=$?
	cp kept.toml $contract
	return $outcome
}

told() {
	detail=$(on ana "XDG_RUNTIME_DIR=/run/user/1001 /job/commonhold status --json" | tr -d ' \n' | grep -o '"unit":"spins","processes":[0-9]*' | head -n 1)
	[ "$detail" = '"unit":"spins","processes":1' ]
}
own() {
	[ $way = cgroup ] || return
	backend=
	mkdir -p /etc/systemd/user
	as_service user/commonhold.service /etc/systemd/user/lab-commonhold.service
	on ana "mkdir -p ~/.config/commonhold && printf 'version = 1\n[unit.spins]\nmembers = [\"command:spin\"]\n' > ~/.config/commonhold/contract.toml"
	on ana "setsid /job/spin 900 < /dev/null > /dev/null 2>&1 &"
	wait_for 20 runs spin 900
	before=$(cgroup_of "$(pid_of spin 900)")
	ok "a user's own daemon starts $how" on ana "systemctl --user daemon-reload; systemctl --user start lab-commonhold"
	ok "it has the user's programs $how" soon 20 told
	ok "it stops $how" on ana "systemctl --user stop lab-commonhold"
	ok "its members are where they were $how" is "$(cgroup_of "$(pid_of spin 900)")" "$before"
	rm /etc/systemd/user/lab-commonhold.service
}

# A reload is tested by replacing the contract.
cp $contract /run/contract.toml
contract=/run/contract.toml
each_way service
each_way own
