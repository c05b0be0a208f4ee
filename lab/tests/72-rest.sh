# seconds: 240
# needs: commonhold strace
# budget: 80
# only: with --all
# The daemon's cost at rest, with control groups and with the scheduler: system calls per sample, counted by strace, with four
# units and fifty sleeping processes. The bounds are in bounds.toml.
# - Two thirds of the samples must be within the bound: the host decides how many include work due once a second or less often.
# - Only the daemon's first thread counts: the other threads' work is bounded by time.

processes=50
looks=15

# bound_of NAME: from bounds.toml.
bound_of() {
	awk -v name="[$1]" '$0 == name { here = 1 } here && $1 == "bound" { print $3; exit }' /job/bounds.toml
}
asleep() {
	found=$(cat "$HELD"/[a-d]/cgroup.procs "$HELD"/[a-d]/*/cgroup.procs 2> /dev/null | sort -u | wc -l)
	detail="$found of $processes are in their units"
	[ "$found" -eq $processes ]
}
# calls_of: from strace's output, the calls of each whole sample: it ends when the daemon waits.
calls_of() {
	awk '
		!/^[a-z0-9_]*\(/ { next }
		{ calls++ }
		# A sample begins with the check for new processes; other wake-ups also poll for memory events, without blocking.
		/^pread64\(.*\/.* [0-9]+\\n"/ { look = 1 }
		/^epoll_pwait\(.*, -1, NULL/ { if (begun && look) print calls - begun; begun = calls; look = 0 }
	' calls | sort -n
}
enough() {
	calls_of > looks.txt
	detail="$(wc -l < looks.txt) of $looks looks"
	[ "$(wc -l < looks.txt)" -ge $looks ]
}
# Counts do not depend on the host: exceeding a bound is a failure.
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
	# A new process is examined in every sample for a second.
	pause 5
	strace --quiet=all --output calls --attach "$daemon" 2> strace.log &
	tracer=$!
	# No progress checks meanwhile: they would start processes, which the daemon would examine.
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
