# seconds: 240
# needs: commonhold spin work
# The same scheduler, twice: what three units do under the kernel backend is recorded, and replayed in the simulator with
# the same contract. Who has how much of the machine, what is lent, and how often a CPU is called back, agree within the
# bounds below; docs/conformance.md says why not exactly. The recording is kept in /out/conformance.

tracefs=/sys/kernel/tracing
kept=/out/conformance
recorded_s=6

mkdir -p $kept
# member UNIT COMMAND...
member() {
	commonhold exec "$@" > /dev/null 2>&1 &
}
# pids UNIT [FILE]: sets `pids` to the processes of a unit, or to what else FILE lists; starts no process.
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
# counts WHEN: what kernel and scheduler have counted of each unit so far: sets u_UNIT_WHEN, and keeps the status.
counts() {
	commonhold status --json | tr -d ' \n' > "status-$1.json"
	for unit in light heavy brief; do
		cpu_usec "commonhold/$unit"
		eval "u_${unit}_$1=$usec"
	done
}
# switched UNIT FIELD: what the scheduler counted between both.
switched() {
	for when in after before; do
		sed "s/.*\"switches\":\[.*{\"unit\":\"$1\",[^}]*\"$2\":\([0-9]*\).*/\1/" status-$when.json
	done | { read -r after; read -r before; echo $((after - before)); }
}
# simulated UNIT FIELD: the same in the simulation.
simulated() {
	sed "s/.*\"units\":\[.*{\"name\":\"$1\",[^}]*\"$2\":\([0-9]*\).*/\1/" sim.json
}

ok "the daemon holds the contract" start_daemon /job/conformance/contract.toml --backend kernel || exit 1
for i in 1 2 3 4; do member light -- work cycle light 20 40 $i; done
for i in 1 2 3; do member brief -- work fork brief 30 30 1$i; done
for i in 1 2 3 4 5 6 7 8; do member heavy -- spin 600; done
ok "all are at work" wait_for 30 members_are || exit 1
ok "events can be recorded" start_recording || exit 1
cap_cpus
sleep 2

# All stop, so that before and after what is recorded nothing is counted.
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
vmctl uncap > /dev/null
sleep 1
signal_all STOP
counts after
signal_all KILL

# Cut to what is read: names, priorities and flags are most of it.
sed 's/^ *[^#].*-\([0-9]*\) *\(\[[0-9]*\]\) [^ ]* */ t-\1 \2 /
	s/ prev_comm=.* prev_pid=/ prev_pid=/; s/ prev_prio=[0-9]*//; s/ next_comm=.* next_pid=/ next_pid=/; s/ next_prio=.*//
	s/ child_comm=.* child_pid=/ child_pid=/; s/ comm=.* pid=/ pid=/; s/ prio=.*//' $tracefs/trace >> recording
cp -r /job/conformance replayed
cp recording replayed/trace.txt
cp status-*.json $kept/
convert() {
	commonhold generate workload recording > replayed/workload.toml 2> refused || {
		detail=$(cat refused)
		return 1
	}
}
ok "the recording is a workload" convert || exit 1
commonhold sim replayed --json > sim.txt
tr -d ' \n' < sim.txt > sim.json
cp recording sim.json replayed/workload.toml $kept/
head -n 5 replayed/workload.toml | sed 's/^/# /'

# part A B ...: the first as a part of the sum of all, in thousandths.
part() {
	echo "$@" | awk '{ for (i = 1; i <= NF; i++) sum += $i; printf "%d", sum ? $1 * 1000 / sum : 0 }'
}
total=$((u_light_after + u_heavy_after + u_brief_after - u_light_before - u_heavy_before - u_brief_before))
sim_total=$(($(simulated light used_ns) + $(simulated heavy used_ns) + $(simulated brief used_ns)))
# thousandths AMOUNT WHOLE
thousandths() {
	awk -v a="$1" -v b="$2" 'BEGIN { printf "%d", a * 1000 / b }'
}
# near VALUE TARGET BOUND: differs by no more than that.
near() {
	detail="$1 against $2, $3 allowed"
	[ $(($1 - $2)) -le "$3" ] && [ $(($2 - $1)) -le "$3" ]
}
note "used in all: $total us, $((sim_total / 1000)) us in the simulation"
for unit in light heavy brief; do
	eval "used=\$((u_${unit}_after - u_${unit}_before))"
	for field in lent_ns borrowed_ns called_back; do
		note "$unit $field: $(switched $unit $field), $(simulated $unit $field) in the simulation"
	done
	ok "$unit: its share of what is used, in thousandths" near \
		"$(thousandths $used $total)" "$(thousandths "$(simulated $unit used_ns)" $sim_total)" 30
done
