# seconds: 240
# needs: commonhold strace
# budget: 150
# What the daemon costs while everybody sleeps, with control groups and with the scheduler: system calls of a look, counted by
# strace, with four units and fifty processes that sleep. Of nine looks in ten, so with what is looked at once a second. They are
# held against bounds.toml, and are the same on a slow host.

processes=50
looks=40

# bound_of NAME: in bounds.toml.
bound_of() {
	awk -v name="[$1]" '$0 == name { here = 1 } here && $1 == "bound" { print $3; exit }' bounds.toml
}
asleep() {
	found=$(cat "$HELD"/[a-d]/cgroup.procs "$HELD"/[a-d]/*/cgroup.procs 2> /dev/null | sort -u | wc -l)
	detail="$found of $processes are in their units"
	[ "$found" -eq $processes ]
}
# calls_of: from what strace wrote, the calls of each whole look: it ends when the daemon's first thread waits.
calls_of() {
	awk -v daemon="$daemon" '
		/ resumed>/ || !/\(/ { next }
		{ calls++ }
		$1 == daemon && $2 ~ /^epoll_pwait\(/ { if (begun) print calls - begun; begun = calls }
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
	strace --follow-forks --quiet=all --output calls --attach "$daemon" 2> strace.log &
	tracer=$!
	ok "$1: looks are seen" wait_for 60 enough || { cat strace.log; exit 1; }
	kill -INT $tracer
	wait $tracer
	note "$1: calls of each look: $(tr '\n' ' ' < looks.txt)"
	count=$(sed -n "$(($(wc -l < looks.txt) * 9 / 10))p" looks.txt)
	ok "$1: system calls of a look at rest" no_more "$count" "$(bound_of "rest-$1-second")"
	kill -TERM "$daemon"
	wait "$daemon"
	pkill sleep
}

rest_of cgroup
if commonhold doctor --json | tr -d ' \n' | grep -q '"name":"ourscheduler","state":"yes"'; then
	rest_of kernel
else
	note "commonhold was built without the scheduler: the kernel backend is not counted (scripts/features)"
fi
