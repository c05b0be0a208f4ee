# budget: 500
# only: with --all
# seconds: 1200
# memory: 3072
# needs: commonhold spin work
# disks: 256:8000000 1024:100000000
# Forty planted causes of waiting, each beside a unit whose waits `commonhold why` explains: it must name the culprit in 38.
# - under the kernel backend: another unit's spinning processes (12), those of no unit (6), the unit's own threads (5), two other
#   units at once (4), another unit's requests to the disk (4), memory that another unit borrowed (4);
# - under the cgroup backend, which the kernel backend leaves contracts with CPU limits to: the unit's own limit (5);
# - under the kernel backend 95 % of the waits for CPUs have a known cause.

disk=$(disk 256:8000000)
swap=$(disk 1024:100000000)
mkswap "$swap" > /dev/null && swapon "$swap"
ok "the daemon holds the contract" start_daemon /job/contracts/why.toml || exit 1
doctor=$(commonhold doctor --json | tr -d ' \n')
case $doctor in
*'"name":"ourscheduler","state":"yes"'*) ;;
*) skip "commonhold was built without the scheduler: see scripts/features" ;;
esac

# The tree of processes that a case started is killed at its end.
clear_away() {
	kill -KILL $(pidof spin work victim culprit) 2> /dev/null
	wait_for 20 none_left
}
none_left() {
	[ -z "$(pidof spin work victim culprit)" ]
}
# busy UNIT COUNT: COUNT spinning processes of a unit; of no unit if it is `-`.
busy() {
	for i in $(seq "$2"); do
		if [ "$1" = - ]; then
			spin 600 > /dev/null 2>&1 &
		else
			commonhold exec "$1" -- spin 600 > /dev/null 2>&1 &
		fi
	done
}
# asks UNIT RESOURCE SECONDS: writes the causes of a unit's waits for a resource in the last seconds to `causes`, the largest
# first, one per line; own threads and switches are left out.
asks() {
	commonhold why "$1" --last "$3s" --json | tr -d ' \n' | tr '{' '\n' | grep "\"resource\":\"$2\"" > all-causes
	grep -v -e '"cause":"own"' -e '"cause":"switch"' all-causes > causes
}
# names PATTERN...: whether the largest causes match the patterns, one each, in any order.
names() {
	head -n $# causes > largest
	for pattern; do
		grep -q -- "$pattern" largest || return 1
	done
}

cases=0
named=0
# planted TEXT UNIT RESOURCE PATTERN...: the end of a case, which asks about its last five seconds, or the last `seconds`.
planted() {
	what=$1 unit=$2 resource=$3
	shift 3
	pause 7
	asks "$unit" "$resource" "${seconds:-5}"
	cases=$((cases + 1))
	if names "$@"; then
		named=$((named + 1))
	else
		note "not named: $what: $(head -n 3 causes | tr '\n' ' ')"
	fi
	clear_away
}

for victims in 4 8 16; do
	for culprits in 4 8 16 32; do
		busy victim $victims
		busy noisy $culprits
		planted "noisy CPU, $victims beside $culprits" victim cpu '"cause":"unit","unit":"noisy"'
	done
done
for culprits in 8 16 32; do
	for victims in 8 16; do
		busy victim $victims
		busy - $culprits
		planted "processes in no unit, $victims beside $culprits" victim cpu '"cause":"common"'
	done
done
for victims in 10 12 16 24 32; do
	busy victim $victims
	pause 7
	commonhold why victim --last 5s --json | tr -d ' \n' | tr '{' '\n' | grep '"resource":"cpu"' > all-causes
	cases=$((cases + 1))
	case $(head -n 1 all-causes) in
	*'"cause":"own"'*) named=$((named + 1)) ;;
	*) note "not named: own threads, $victims: $(head -n 2 all-causes | tr '\n' ' ')" ;;
	esac
	clear_away
done
for culprits in 4 8 12 16; do
	busy victim 8
	busy noisy $culprits
	busy loud $culprits
	planted "two at once, $culprits each" victim cpu '"unit":"noisy"' '"unit":"loud"'
done
for depth in 4 8 16 32; do
	commonhold exec victim -- work read victim "$disk" 64 1 > /dev/null 2>&1 &
	commonhold exec noisy -- work read culprit "$disk" 64 $depth > /dev/null 2>&1 &
	planted "disk flood, depth $depth" victim disk '"unit":"noisy"'
done
# The borrower takes what the owner leaves idle; then the owner touches all of its own, once. That may take less than two seconds.
seconds=10
for mib in 700 800 900 1000; do
	touch_in noisy culprit 2200 0
	pause 6
	touch_in victim victim $mib 0
	planted "memory hog beside $mib MiB" victim memory '"cause":"call-back","unit":"noisy"\|"cause":"unit","unit":"noisy"'
done

unset seconds

# Own limits.
kill "$daemon"
wait "$daemon"
ok "the daemon holds a contract with a limit" start_daemon /job/contracts/why-limit.toml || exit 1
for victims in 2 3 4 6 8; do
	busy capped $victims
	planted "own limit, $victims" capped cpu '"cause":"limit"'
done
kill "$daemon"
wait "$daemon"
note "planted $cases, named $named"
ok "the culprit is named" no_fewer $named $((cases * 95 / 100))

ok "the daemon holds the contract again" start_daemon /job/contracts/why.toml || exit 1
# sum PATTERN FILE: the sum of the nanoseconds, in ms, of the causes that match.
sum() {
	grep -- "$1" "$2" | sed 's/.*"ns":\([0-9]*\).*/\1/' | awk '{ sum += $1 / 1000000 } END { printf "%d\n", sum }'
}
busy victim 16
busy noisy 16
pause 12
commonhold status --json | tr -d ' \n' | tr '{' '\n' > status-lines
commonhold why victim --last 10s --json | tr -d ' \n' | tr '{' '\n' | grep '"resource":"cpu"' > all-causes
whole=$(sum '"resource":"cpu"' all-causes)
unknown=$(sum '"cause":"unknown"' all-causes)
note "ms waited for CPUs in ten seconds: $whole, $unknown of them of unknown cause"
ok "the unit waited" no_fewer "$whole" 1000
ok "95 % of its waits have a cause" at_most $((unknown * 100)) $((whole * 5))
clear_away
ok "the daemon ends" kill "$daemon"
