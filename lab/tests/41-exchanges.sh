# budget: 90
# only: with --all
# seconds: 240
# needs: commonhold spin
# Two of three units exchange CPU tickets for disk tickets (seed 004, section 5.5). Their shares of the CPUs follow at once, the
# third unit keeps its share, and the end of the exchange restores all. Under the kernel backend and under control groups.

printf 'version = 1\n[machine]\ncpu = "proportional"\n[unit.gives]\n[unit.gets]\n[unit.third]\n' > exchange.toml

# shares GIVES GETS THIRD: each unit's part of the CPU time of all three, in thousandths. Under control groups the kernel divides
# the time: see 40-currencies.
shares() {
	sleep 1
	measure 5 commonhold/gives commonhold/gets commonhold/third
	ok "the one that gives has $1 of 1000" within "$(share_of gives)" "$1" $allowed
	ok "the one that gets has $2 of 1000" within "$(share_of gets)" "$2" $allowed
	ok "the third has $3 of 1000" within "$(share_of third)" "$3" $allowed
}
share_of() {
	eval "echo \$((used_$1 * 1000 / (used_gives + used_gets + used_third)))"
}
before() { shares 333 333 333; }
during() { shares 167 500 333; }

under() {
	ok "the daemon holds three units" start_daemon exchange.toml --backend "$1" || exit 1
	for unit in gives gets third; do
		ok "$unit is at work" enter_spinners $unit 8
	done
	cap_cpus
	measured before
	ok "one offers disk tickets" commonhold offer --unit gets --give disk:50 --want cpu:50
	ok "another takes the offer" commonhold offer --unit gives --give cpu:50 --want disk:50
	ok "both gain" is "$(commonhold tickets | tr -s ' ' | grep -c '50 (100)')" 2
	measured during
	ok "the exchange is ended" commonhold cancel 3
	ok "all tickets are the contract's" said 'All are those of the contract'
	measured before
	kill -KILL $(pidof spin)
	kill -TERM "$daemon"
	ended() { ! kill -0 "$daemon" 2> /dev/null; }
	ok "the daemon ends" wait_for 10 ended
}
said() {
	commonhold tickets | grep -q "$1"
}

allowed=20
under cgroup
allowed=6
commonhold doctor --json | tr -d ' \n' > doctor
if grep -q '"name":"ourscheduler","state":"yes"' doctor; then
	under kernel
else
	skip "commonhold was built without the scheduler: see scripts/features"
fi
