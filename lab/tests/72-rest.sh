# seconds: 240
# needs: commonhold strace
# budget: 80
# only: with --all
# What the daemon costs while everybody sleeps, with control groups and with the scheduler: system calls of a look, counted by
# strace, with four units and fifty processes that sleep. They are held against bounds.toml.
# - Two looks in three count: how many look at what is due once a second, or once in five, depends on the host.
# - The daemon's first thread counts: the work of the others is bounded by time.

processes=50
looks=15

# bound_of NAME: in bounds.toml.
bound_of() {
	awk -v name="[$1]" '$0 == name { here = 1 } here && $1 == "bound" { print $3; exit }' /job/bounds.toml
}
asleep() {
	found=$(cat "$HELD"/[a-d]/cgroup.procs "$HELD"/[a-d]/*/cgroup.procs 2> /dev/null | sort -u | wc -l)
	detail="$found of $processes are in their units"
	[ "$found" -eq $processes ]
}
# calls_of: of what strace wrote, the calls of each whole look: it ends when the daemon waits.
calls_of() {
	awk '
		!/^[a-z0-9_]*\(/ { next }
		{ calls++ }
		# It looks for births first; it wakes up for other reasons, too, and asks without waiting whether memory has alarms.
		/^pread64\(.*\/.* [0-9]+\\n"/ { look = 1 }
		/^epoll_pwait\(.*, -1, NULL/ { if (begun && look) print calls - begun; begun = calls; look = 0 }
	' calls | sort -n
}
enough() {
	calls_of > looks.txt
	detail="$(wc -l < looks.txt) of $looks looks"
	[ "$(wc -l < looks.txt)" -ge $looks ]
}
# No measurement of a host: what is too much is a failure.
no_more() {
	detail="$1, at most $2"
	[ "$1" -le "$2" ]
}

rest_of() {
	ok "$1: the daemon holds the contract" start_daemon /job/contracts/four-units.toml --backend "$1" || exit 1
	for n in $(seq $processes); do
		unit=$(echo a b c d | cut -d ' ' -f $((n % 4 + 1)))
		commonhold exec "$unit" -- sleep 600 > /dev/null 2>&1 &
	done
	ok "$1: all are in their units" wait_for 60 asleep || exit 1
	# Who is new is looked at at every look for a second.
	pause 5
	strace --quiet=all --output calls --attach "$daemon" 2> strace.log &
	tracer=$!
	# Without a look at how it gets on: who is born or runs meanwhile is looked at by the daemon.
	pause 20
	kill -INT $tracer
	wait $tracer
	ok "$1: looks are seen" enough || { cat strace.log; exit 1; }
	note "$1: calls of each look: $(tr '\n' ' ' < looks.txt)"
	count=$(sed -n "$(($(wc -l < looks.txt) * 2 / 3))p" looks.txt)
	ok "$1: system calls of a look at rest" no_more "$count" "$(bound_of "rest-$1-look")"
	kill -TERM "$daemon"
	wait "$daemon"
	kill -KILL $(pidof sleep)
	wait
}

rest_of cgroup
if commonhold doctor --json | tr -d ' \n' | grep -q '"name":"ourscheduler","state":"yes"'; then
	rest_of kernel
else
	note "commonhold was built without the scheduler: the kernel backend is not counted (scripts/features)"
fi
