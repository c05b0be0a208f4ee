# budget: 20
# seconds: 120
# needs: commonhold spin
# After the daemon exits or is killed, no control group of its own is left and no process is stopped. Every surviving process
# is in its original control group with its original CPU affinity.

contract=/job/contracts/two-commands.toml
for name in heavy light light-halted; do cp "$(command -v spin)" "$name"; done
home=lab-home                      # a control group that the daemon did not make
narrow=0-5                         # an affinity narrower than the machine

# start_members: starts members of three kinds: with an affinity and a control group of its own, without, and stopped by its
# owner.
start_members() {
	mkdir -p "$CGROUPS/$home"
	taskset 3f ./heavy 600 &
	heavy=$!
	echo "$heavy" > "$CGROUPS/$home/cgroup.procs"
	./light 600 &
	light=$!
	./light-halted 600 &
	halted=$!
	wait_for 5 grep -qx light-halted /proc/$halted/comm       # not before its exec has replaced the forked shell
	kill -STOP $halted
}

# start_storm: starts a member that enters by `exec` and forks all the time, so that the daemon ends amid forks.
start_storm() {
	commonhold exec light -- sh -c 'while :; do spin 0.05 > /dev/null; done' &
	storm=$!
}

end_members() {
	kill -9 $heavy $light $halted $storm $(pidof spin) 2> /dev/null
	for pid in /proc/[0-9]*; do
		grep -q 'while :; do spin' "$pid/cmdline" 2> /dev/null && kill -9 "${pid#/proc/}"
	done
	wait 2> /dev/null
}

# strays: prints every thread whose state differs from what it would be without the daemon. The test measures how long it takes
# until `strays` prints nothing, so it must be fast: it skips kernel threads, which have no executable, and starts two processes
# only.
strays() {
	files=
	for process in /proc/[0-9]*; do
		[ -e "$process/exe" ] && files="$files $process/cgroup $process/task/*/status"
	done
	cat $files 2> /dev/null | awk -v home=/$home -v narrow=$narrow '
		/^0::/ { group = substr($0, 4) }
		$1 == "Name:" { name = $2 }
		$1 == "State:" { state = $2 }
		$1 == "Cpus_allowed_list:" && state != "Z" {
			wanted = name == "heavy" ? narrow : "0-7"
			if ($2 != wanted) printf "%s may use CPUs %s, not %s; ", name, $2, wanted
			if ((state == "T") != (name == "light-halted")) printf "%s is in state %s; ", name, state
			if (group != (name == "heavy" ? home : "/")) printf "%s is in %s; ", name, group
		}'
	[ ! -e $HELD ] || echo "$HELD is there"
}
undone() {
	looked=$(uptime_cs)
	[ -z "$(strays)" ]
}

# held_by BACKEND: the contract is in force for the members.
held_by() {
	[ "$(cpus_of $heavy)" != $narrow ] && [ "$(cpus_of $light)" != 0-7 ] || return 1
	[ "$1" = user ] || case $(cgroup_of $heavy) in /commonhold/heavy*) ;; *) return 1 ;; esac
}

none_left() {
	! pidof commonhold
}

for backend in cgroup user; do
	for signal in TERM KILL; do
		how="($backend, $signal)"
		start_members
		ok "nothing is amiss before $how" undone || note "$(strays)"
		ok "the daemon holds the contract $how" start_daemon $contract --backend $backend || exit 1
		ok "the members are held $how" wait_for 20 held_by $backend || note "$(cpus_of $heavy) $(cpus_of $light)"
		start_storm
		sleep 1
		ended=$(uptime_cs)
		kill -$signal $daemon
		ok "everything is undone $how" wait_for 10 undone || note "left: $(strays)"
		ok "within a second, in hundredths $how" at_most $((looked - ended)) 100
		wait $daemon
		status=$?
		[ $signal = KILL ] || ok "the daemon ended in order $how" is $status 0
		for survivor in heavy light halted storm; do
			eval "pid=\$$survivor"
			ok "$survivor lives on $how" kill -0 "$pid"
		done
		end_members
		ok "no process of the program's is left $how" wait_for 5 none_left
	done
done
