# guest: debian
# seconds: 300
# budget: 150
# memory: 3072
# needs: commonhold spin
# only: with --all
# The system's manager starts services in users' slices after the daemon has started, while no user is logged in. systemd then has
# no reason to keep the controller `cpu` enabled for these slices, and without it a sched_ext scheduler does not see the groups.

. /job/systemd.sh

two_have() {
	has_cpus $(pgrep -x spin -U ana)
	ok "two busy processes have two CPUs, in thousandths $how" within $cpus 2000 8
}
beside_sixteen() {
	hold || return
	spins ana user-1001.slice 2
	ok "two are there $how" wait_for 30 spins_run ana 2
	if [ $way != alone ]; then
		spins carol user-1003.slice 16
		ok "and sixteen of another's $how" wait_for 60 spins_run carol 16
	fi
	cap_cpus
	# The unit that a rule gives a process at its start holds for five seconds, whatever its control group.
	pause 8
	measured two_have
	uncap_cpus
	if [ $way != alone ]; then
		ok "systemd keeps the controller on $how" grep -qw cpu $CGROUPS/user.slice/cgroup.subtree_control
		ok "no weight is set when the daemon has ended $how" no_weight_is_left
	fi
	systemctl stop 'lab-work-*'
}
no_weight_is_left() {
	release
	detail=$(systemctl show --property=CPUWeight --value user-1001.slice)
	[ "$detail" = "[not set]" ]
}

each_way beside_sixteen
