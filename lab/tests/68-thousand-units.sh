# budget: 35
# seconds: 150
# needs: commonhold spin
# A contract of a thousand units under the kernel backend, with the default limit on open files: it is held, its busy units get
# their shares, and the daemon's end undoes everything.

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
