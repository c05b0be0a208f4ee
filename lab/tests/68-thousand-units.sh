# budget: 70
# seconds: 240
# needs: commonhold commonhold-top commonhold-serve spin
# A contract of a thousand units under the kernel backend, with the default limit on open files: it is held, its busy units get
# their shares, questions about all units and about one are answered, and the daemon's end undoes everything. What a subscriber
# costs the daemon is printed.

units=1000

said() {
	grep -q -- "$1" "$daemon_log"
}
commonhold doctor --json | tr -d ' \n' | grep -q '"name":"ourscheduler","state":"yes"' ||
	skip "commonhold was built without the scheduler: see scripts/features"

{
	printf 'version = 1\n[unit.one]\ntickets = 100\n[unit.three]\ntickets = 300\n'
	seq $((units - 2)) | sed 's/.*/[unit.m&]/'
} > thousand.toml

is "$(ulimit -S -n)" 1024 || note "the soft limit on open files is $(ulimit -S -n) here, not the usual 1024"
# Creating a thousand control groups takes ten seconds, and more on a busy host.
starts() {
	start_daemon "$@" || wait_for 40 commonhold status --json
}
ok "the daemon holds a contract of $units units" starts thousand.toml || exit 1
ok "by the kernel backend" said 'held by the kernel backend (the best'
ok "it schedules" scheduling enabled
ok "every unit has its control group" is "$(find "$HELD" -mindepth 1 -maxdepth 1 -type d | wc -l)" $units
open=$(ls "/proc/$daemon/fd" | wc -l)
ok "it keeps no more files open than it made room for" [ "$open" -le $((units * 6 + 256)) ]
note "$open files are open"
ok "nothing went wrong" is "$(grep -c '^problem' "$daemon_log")" 0

# One call each: the daemon samples all units before it answers, which is slow on an emulated machine.
at_work() {
	has_spinners one 8 && has_spinners three 8
}
for unit in one three; do
	commonhold exec $unit -- sh -c 'for i in $(seq 8); do spin 600 & done; wait' > /dev/null 2> exec-$unit &
done
ok "two units are at work" wait_for 60 at_work
cap_cpus
by_tickets() {
	sleep 1
	measure 5 commonhold/one commonhold/three
	ok "three times the tickets give three times the time" within "$(share_of three)" 750 15
}
measured by_tickets
uncap_cpus

# timed NAME COMMAND...: runs it with its output in `said`; prints how long it took, and leaves its exit status in `status`.
timed() {
	what=$1
	shift
	begun=$(uptime_cs)
	"$@" > said 2>&1
	status=$?
	note "$what took $((($(uptime_cs) - begun) * 10)) ms and said $(wc -c < said) bytes"
}
# has PATTERN COUNT: whether it succeeded, and said COUNT different words that match.
has() {
	detail=$(tr -d ' ' < said | grep -oE "$1" | sort -u | wc -l)
	[ $status -eq 0 ] && [ "$detail" -eq "$2" ]
}
timed status commonhold status
ok "status has each unit" is "$status-$(awk '$1 ~ /^m[0-9]+$/ { print $1 }' said | sort -u | wc -l)" 0-$((units - 2))
timed "status --json" commonhold status --json
ok "so has its JSON" has '"unit":"m[0-9]*"' $((units - 2))
timed "status --check" commonhold status --check
ok "the contract is judged" [ $status -ne 2 -a $status -le 3 ]
note "the verdict: status $status, $(head -n 1 said | cut -c 1-120)"
timed "top --once --json" commonhold top --once --json
ok "top has each unit" has '"unit":"m[0-9]*"' $((units - 2))
timed "why" commonhold why three --last 10s --json
ok "why answers for one of them" [ $status -eq 0 ] && ok "of its CPU time" grep -q '"used_ns": *[1-9]' said

# cost SECONDS: sets `cost` to the daemon's CPU time per second, in ms.
cost() {
	daemon_time
	before=$daemon_ms
	pause "$1"
	daemon_time
	cost=$(((daemon_ms - before) / $1))
}
cost 5
alone=$cost
commonhold serve --as-root --listen 127.0.0.1:9477 > serve.log 2>&1 &
server=$!
serves() {
	printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' | timeout 20 nc 127.0.0.1 9477 > said
	status=0
	has '^commonhold_unit_entitlement_cpus[{]unit="m[0-9]*"' $((units - 2))
}
ok "metrics have each unit" wait_for 60 serves
cost 5
note "the daemon's CPU time in a second: $alone ms, with a subscriber $cost ms; $(wc -l < said) lines of metrics"
kill -TERM $server
kill -KILL $(pidof spin)

kill -TERM "$daemon"
begun=$(uptime_cs)
wait "$daemon"
ok "it ends with status 0" is "$?" 0
note "the end took $((($(uptime_cs) - begun) * 10)) ms: $(grep '^undone' "$daemon_log")"
ok "with everything undone" [ ! -d "$HELD" ]
ok "the scheduler is gone" scheduling disabled
ok "and said so" said '^undone: .*control groups removed'
ok "the kernel has nothing else to say about it" is "$(kernel_complaints)" ""
