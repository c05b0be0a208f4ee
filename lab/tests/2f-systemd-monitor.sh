# guest: debian trixie
# seconds: 600
# budget: 200
# memory: 3072
# needs: commonhold.deb spin
# only: with --all
# The package's monitoring under systemd. systemd's own client of varlink understands the daemon's socket: what it describes, its
# replies, its stream, and its errors. `commonhold-serve` runs as a service under a user of its own and serves metrics on this
# machine only; it survives a restart of the daemon, and a port in use. Neither service calls anything that its filter refuses.

. /job/systemd.sh

way=cgroup how=
socket=/run/commonhold/socket

# calls METHOD [PARAMETERS]: calls it with systemd's client. The output is in `said`.
calls() {
	timeout 60 varlinkctl call --json=short $socket "$@" > said 2>&1
	status=$?
	detail="status $status: $(tail -n 1 said | cut -c 1-150)"
	return $status
}
# has PATTERN: whether the last output has it.
has() {
	detail=$(head -n 1 said | cut -c 1-150)
	grep -q -- "$1" said
}
fails_by() {
	error=$1
	shift
	! calls "$@" && grep -q -- "$error" said
}
# filters_kill UNIT: from now on a refused system call kills the unit's process, rather than failing.
filters_kill() {
	mkdir -p "/run/systemd/system/$1.service.d"
	printf '[Service]\nSystemCallErrorNumber=kill\n' > "/run/systemd/system/$1.service.d/lab-kill.conf"
	systemctl daemon-reload
}
restarts() {
	detail=$(systemctl show "$1" -p NRestarts --value)
	[ "$detail" = 0 ]
}
# get PATH [ADDRESS [NAME]]: asks `commonhold-serve` at an address under a host name, over bash, since busybox's wget cannot look
# names up on this guest. The reply is in `page`. metric PATTERN: whether a line of the metrics matches.
get() {
	bash -c 'exec 3<> "/dev/tcp/$2/9477" && printf "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" "$1" "$3" >&3 &&
		timeout 20 cat <&3' get "$1" "${2:-127.0.0.1}" "${3:-127.0.0.1:9477}" > page 2> refused
}
answers_with() {
	expected=$1
	shift
	get "$@" && detail=$(head -n 1 page | tr -d '\r')
	case $detail in "HTTP/1.1 $expected"*) ;; *) return 1 ;; esac
}
metric() {
	answers_with 200 /metrics && detail=$(grep -m 1 -e "$1" page)
}
refuses_connections() {
	! get /metrics "$1" && detail=$(tail -n 1 refused) && grep -q 'Connection refused' refused
}
serve_pid() {
	systemctl show commonhold-serve -p MainPID --value
}
log_has() {
	journalctl -q -u commonhold-serve --no-pager -o cat > serve-log
	detail=$(tail -n 1 serve-log)
	grep -q -- "$1" serve-log
}

installed() {
	for program in commonhold commonhold-top commonhold-serve commonhold-record commonhold-sim commonhold-scale commonhold-generate; do
		detail=$program
		[ -x "/usr/bin/$program" ] || return 1
	done
	detail=
}
ok "the package is installed" installs
ok "with all programs" installed
filters_kill commonhold
filters_kill commonhold-serve
spins ana user-1001.slice 2
ok "ana works" soon 20 spins_run ana 2
ok "the daemon starts" starts_service
holds_service "it holds"

# --- systemd's client.
ok "varlinkctl info" sh -c "varlinkctl info $socket > said 2>&1"
ok "names the interface" has 'io.commonhold'
ok "varlinkctl introspect" sh -c "varlinkctl introspect $socket io.commonhold > said 2>&1"
ok "describes each method" is "$(grep -c '^method' said)" 12
ok "and validates" sh -c "varlinkctl validate-idl said > valid 2>&1"
ok "a call of Status" calls io.commonhold.Status '{}'
ok "has the units" has '"unit":"physics/ana"'
ok "a call of Members" calls io.commonhold.Members '{"unit":"physics/ana"}'
ok "has processes" has '"count":[1-9]'
pid=$(pgrep -o -x spin)
ok "a call of Where" calls io.commonhold.Where "{\"pid\":$pid}"
ok "has the process's unit" has '"unit":"physics/ana"'
ok "a method that is not there" fails_by 'org.varlink.service.MethodNotFound' io.commonhold.Nothing '{}'
ok "an interface that is not there" fails_by 'org.varlink.service.InterfaceNotFound' io.nothing.Status '{}'
ok "a parameter that is wrong" fails_by 'org.varlink.service.InvalidParameter' io.commonhold.Where '{"pid":"one"}'
ok "a unit that is not there" fails_by 'io.commonhold.NoSuchUnit' io.commonhold.Members '{"unit":"nobody"}'
ok "an ordinary user asks as well" on ana "varlinkctl call $socket io.commonhold.Status '{}' > /dev/null"
ok "and may not change what others have" on ana "! varlinkctl call $socket io.commonhold.Change \
	'{\"kind\":\"set\",\"unit\":\"physics\",\"resource\":\"cpu\",\"tickets\":9}' > ~/lab-refused 2>&1; grep -q NotAllowed ~/lab-refused"
timeout 15 varlinkctl call --json=short --more $socket io.commonhold.Monitor '{"every_ms":1000}' > stream 2>&1
ok "a subscription ends by its time" is "$?" 143
ok "the first reply has everything" is "$(head -n 1 stream | grep -c '"whole":true')" 1
ok "others follow" at_least "$(grep -c '"whole":false' stream)" 3

# --- Metrics.
ok "commonhold-serve starts" systemctl start commonhold-serve
ok "it answers" wait_for 30 answers_with 200 /metrics
ok "with the daemon's state" soon 20 metric '^commonhold_up 1'
ok "and the units" soon 20 metric '^commonhold_unit_entitlement_cpus{unit="physics/ana"} [0-9]'
lines=$(grep -c '' page)
ok "and the page" answers_with 200 / && ok "which is one" grep -qi '<html' page
uid=$(awk '/^Uid:/ { print $2 }' "/proc/$(serve_pid)/status")
note "it runs as user $uid, and $lines lines of metrics are served"
ok "as a user of its own" [ "$uid" -ge 61184 ] && ok "which has no other process" is "$(pgrep -c -U "$uid")" 1
ok "without capabilities" is "$(awk '/^CapPrm:/ { print $2 }' "/proc/$(serve_pid)/status")" 0000000000000000
ok "with a filter of system calls" is "$(awk '/^Seccomp:/ { print $2 }' "/proc/$(serve_pid)/status")" 2
ok "only at the loopback address" refuses_connections 10.0.0.1
ok "under no other name" answers_with 403 /metrics 127.0.0.1 example.org
served=$(serve_pid)
ok "the daemon restarts" systemctl restart commonhold
holds_service "it holds again"
ok "the metrics go on" soon 30 metric '^commonhold_up 1'
ok "from the same process" is "$(serve_pid)" "$served"
ok "the daemon stops" systemctl stop commonhold
ok "the metrics tell" soon 30 metric '^commonhold_up 0'
ok "from the same process still" is "$(serve_pid)" "$served"
ok "the daemon starts again" starts_service
ok "the metrics tell that, too" soon 60 metric '^commonhold_up 1'
ok "no process was ended by the filter" restarts commonhold-serve && ok "nor the daemon" restarts commonhold
ok "commonhold-serve stops" systemctl stop commonhold-serve
ok "with success" is "$(systemctl show commonhold-serve -p Result --value)" success
ok "its user is gone" sh -c "! getent passwd $uid"

# --- What an administrator may do wrong.
$busybox/nc -l -p 9477 -e /bin/true &
listener=$!
systemctl start commonhold-serve
ok "a port in use is said, with a remedy" wait_for 30 log_has '127.0.0.1:9477: cannot listen there.*--listen'
kill "$listener" 2> /dev/null
ok "it starts once the port is free" wait_for 60 answers_with 200 /metrics
mkdir -p /run/systemd/system/commonhold-serve.service.d
printf '[Service]\nDynamicUser=no\n' > /run/systemd/system/commonhold-serve.service.d/lab-root.conf
systemctl daemon-reload
systemctl stop commonhold-serve
systemctl start commonhold-serve
ok "as root it refuses" wait_for 20 log_has 'run it as an ordinary user'
ok "with the remedy" log_has 'DynamicUser'
ok "and is not tried again" restarts commonhold-serve
rm -r /run/systemd/system/commonhold-serve.service.d /run/systemd/system/commonhold.service.d/lab-kill.conf
systemctl daemon-reload
stops_service
leave
