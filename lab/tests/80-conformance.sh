# budget: 30
# only: with --all
# seconds: 240
# needs: commonhold commonhold-generate commonhold-sim spin work
# The same scheduler, live and simulated. A run of three units under the kernel backend is recorded and replayed in the simulator
# with the same contract. Three results agree within the bounds below: each unit's share of the machine, what is lent, and the
# rate of call-backs. docs/conformance.md explains the remaining differences. /out/conformance has the recording and the counters
# of kernel and scheduler; `lab/test --out FOLDER 80` keeps them, and simulator/sim/tests/conformance/ can be updated with both.

tracefs=/sys/kernel/tracing
kept=/out/conformance
recorded_s=6

mkdir -p $kept
# member UNIT COMMAND...
member() {
	commonhold exec "$@" > /dev/null 2>&1 &
}
# pids UNIT [FILE]: sets `pids` to the unit's processes, or to those that FILE lists; starts no process.
pids() {
	pids=
	while read -r pid; do pids="$pids $pid"; done < "$HELD/$1/${2:-cgroup.procs}"
}
members_are() {
	set --
	pids light; set -- "$@" $pids; pids heavy; set -- "$@" $pids; pids brief
	set -- "$@" $pids
	[ $# -ge 15 ]
}
# signal_all SIGNAL
signal_all() {
	for unit in light heavy brief; do
		pids $unit
		kill -"$1" $pids 2> /dev/null
	done
}
start_recording() {
	mount -t tracefs none $tracefs 2> /dev/null
	echo 0 > $tracefs/tracing_on
	echo mono > $tracefs/trace_clock
	echo 16384 > $tracefs/buffer_size_kb
	for event in sched_switch sched_wakeup sched_wakeup_new sched_process_fork; do
		echo 1 > $tracefs/events/sched/$event/enable || return 1
	done
	echo > $tracefs/trace
}
# counts WHEN: the counters of kernel and scheduler for each unit so far: sets u_UNIT_WHEN, and keeps the status.
counts() {
	commonhold status --json | tr -d ' \n' > "status-$1.json"
	for unit in light heavy brief; do
		cpu_usec "commonhold/$unit"
		eval "u_${unit}_$1=$usec"
	done
}
# switched UNIT FIELD: the scheduler's count between the two calls of `counts`.
switched() {
	for when in after before; do
		switch_count "status-$when.json" "$1" "$2"
	done | { read -r after; read -r before; echo $((after - before)); }
}
# simulated UNIT FIELD: the count in the simulation.
simulated() {
	sed "s/.*\"units\":\[.*{\"name\":\"$1\",[^}]*\"$2\":\([0-9]*\).*/\1/" sim.json
}

ok "the daemon holds the contract" start_daemon /job/conformance/contract.toml --backend kernel || exit 1
for i in 1 2 3 4; do member light -- work cycle light 20 40 $i; done
for i in 1 2 3; do member brief -- work fork brief 30 30 1$i; done
for i in 1 2 3 4 5 6 7 8; do member heavy -- spin 600; done
ok "all are at work" wait_for 60 members_are || exit 1
ok "events can be recorded" start_recording || exit 1
cap_cpus
sleep 2

# All processes are stopped before and after the recording, so that nothing is counted then.
signal_all STOP
sleep 1
signal_all STOP
counts before
for unit in light heavy brief; do
	pids $unit cgroup.threads
	echo "# commonhold unit $unit:$pids"
done > recording
echo 1 > $tracefs/tracing_on
signal_all CONT
pause $recorded_s
echo 0 > $tracefs/tracing_on
signal_all STOP
uncap_cpus
sleep 1
signal_all STOP
counts after
signal_all KILL

# Only the fields that the replay reads: names, priorities and flags are most of the size.
sed 's/^ *[^#].*-\([0-9]*\) *\(\[[0-9]*\]\) [^ ]* */ t-\1 \2 /
	s/ prev_comm=.* prev_pid=/ prev_pid=/; s/ prev_prio=[0-9]*//; s/ next_comm=.* next_pid=/ next_pid=/; s/ next_prio=.*//
	s/ child_comm=.* child_pid=/ child_pid=/; s/ comm=.* pid=/ pid=/; s/ prio=.*//' $tracefs/trace >> recording
cp -r /job/conformance replayed
cp recording replayed/trace.txt
cp status-*.json $kept/
convert() {
	commonhold workload import recording --from trace > replayed/workload.toml 2> refused || {
		detail=$(cat refused)
		return 1
	}
}
ok "the recording is a workload" convert || exit 1
replay() {
	commonhold sim replayed --json > sim.txt 2> refused || {
		detail=$(cat refused)
		return 1
	}
}
ok "the simulator replays it" replay || exit 1
tr -d ' \n' < sim.txt > sim.json
cp recording $kept/recording.txt
cp sim.json replayed/workload.toml $kept/
head -n 5 replayed/workload.toml | sed 's/^/# /'

# The replay leaves out tasks in no unit, such as the daemon: their CPU time goes to heavy, which takes all that is left. A busy
# host distorts the guest, so the figures are printed and checked only loosely; the stored recording is held to the bounds of
# docs/conformance.md (cargo test -p commonhold-sim --test conformance).
others=$(sed -n 's/^# Not replayed: \([0-9]*\) us.*/\1/p' replayed/workload.toml)
lent=0 sim_lent=0 called=0 sim_called=0
echo "others used_ns=${others}000" > $kept/counted.txt
for unit in light heavy brief; do
	eval "used=\$((u_${unit}_after - u_${unit}_before))"
	echo "$unit used_ns=${used}000 lent_ns=$(switched $unit lent_ns) borrowed_ns=$(switched $unit borrowed_ns) called_back=$(switched $unit called_back)" >> $kept/counted.txt
	[ $unit = heavy ] && used=$((used + others))
	ok "$unit: CPU time" within $(($(simulated $unit used_ns) / 1000)) $used 30
	for field in lent_ns borrowed_ns called_back; do
		note "$unit $field: $(switched $unit $field), $(simulated $unit $field) in the simulation"
	done
	calls=$(switched $unit called_back) sim_calls=$(simulated $unit called_back)
	ok "$unit: CPUs called back, within a factor of three: not less" at_least $((sim_calls * 3 + 20)) "$calls"
	ok "$unit: nor more" at_most "$sim_calls" $((calls * 3 + 20))
	lent=$((lent + $(switched $unit lent_ns))) sim_lent=$((sim_lent + $(simulated $unit lent_ns)))
	called=$((called + calls)) sim_called=$((sim_called + sim_calls))
done
note "lent: $lent ns, $sim_lent ns in the simulation; CPUs called back: $called, $sim_called"
ok "something is lent in both, within a factor of two: not less" at_least $((sim_lent / 1000000 * 2)) $((lent / 1000000))
ok "nor more" at_most $((sim_lent / 1000000)) $((lent / 1000000 * 2))
ok "CPUs are called back in both, within a factor of two: not less" at_least $((sim_called * 2)) $called
ok "nor more often" at_most $sim_called $((called * 2))
