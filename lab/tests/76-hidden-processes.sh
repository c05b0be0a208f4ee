# budget: 60
# seconds: 200
# needs: commonhold commonhold-top spin
# only: with --all
# Where /proc hides users' processes from each other (hidepid), the daemon does so, too: a user learns nothing of another's process,
# its program or its past. This holds for a daemon that starts so, and after a reload. The process's own user and root see it, and
# the group that `gid=` exempts sees everything but the past.

for entry in ana:1001 bob:1002 carol:1003; do
	user=${entry%:*} number=${entry#*:}
	grep -q "^$user:" /etc/passwd || echo "$user:x:$number:$number:$user:/tmp:/bin/sh" >> /etc/passwd
done
grep -q '^seers:' /etc/group || echo 'seers:x:77:carol' >> /etc/group
cp /job/spin /tmp/secret
cat > contract.toml <<-EOF
	version = 1
	[machine]
	cpu = "proportional"
	pools = "node"
	[unit.ana]
	members = ["user:ana"]
	job = "process"
	[unit.others]
	members = ["user:bob", "user:carol"]
EOF
folder=/var/lib/commonhold/history
rm -rf $folder

# as USER COMMAND: runs COMMAND as that user. Its output is in `said`.
as() {
	su -s /bin/sh "$1" -c "$2" > said 2>&1
	status=$?
	detail="status $status: $(tail -n 1 said | cut -c 1-150)"
	return $status
}
# names USER COMMAND: whether COMMAND succeeds for the user and names ana's program. is_silent USER COMMAND: whether it succeeds and
# does not name it. fails_with STATUS USER COMMAND: whether it fails so.
names() {
	as "$@" && grep -q secret said
}
is_silent() {
	as "$@" && ! grep -q secret said
}
fails_with() {
	expected=$1
	shift
	as "$@"
	[ $status -eq "$expected" ] && ! grep -q secret said
}
hides() {
	mount -o "remount,hidepid=$1,gid=${2:-0}" /proc
}
reloads() {
	before=$(grep -c '^reloaded' $daemon_log)
	kill -HUP "$daemon"
	wait_for 20 has_reloaded
}
has_reloaded() {
	[ "$(grep -c '^reloaded' $daemon_log)" -gt "$before" ]
}
is_listed() {
	commonhold status --json | grep -q '"secret'
}
# open_to USER NAME, closed_to USER NAME: the checks of processes. past_of, no_past: those of the history.
open_to() {
	ok "$2: status names the program" names "$1" "commonhold status --json"
	ok "$2: so does top" names "$1" "commonhold top --once --json"
	ok "$2: the process has a unit" as "$1" "commonhold status --pid $secret"
	ok "$2: why answers about the process" as "$1" "commonhold why $secret"
}
closed_to() {
	ok "$2: status does not name the program" is_silent "$1" "commonhold status --json"
	ok "$2: nor does its text" is_silent "$1" "commonhold status"
	ok "$2: nor does top" is_silent "$1" "commonhold top --once --json"
	ok "$2: the process does not exist" fails_with 69 "$1" "commonhold status --pid $secret"
	ok "$2: nor for why" fails_with 69 "$1" "commonhold why $secret"
	ok "$2: and it says no more of it than of none" grep -q "process $secret does not exist" said
}
past_of() {
	ok "$2: the past can be read" as "$1" "commonhold history --step second && cat $folder/second-*.history > /dev/null"
}
no_past() {
	ok "$2: there is no past" fails_with 77 "$1" "commonhold history --step second"
	ok "$2: nor any file of it" fails_with 1 "$1" "ls $folder"
	ok "$2: nor can one be opened" fails_with 1 "$1" "cat $folder/second-0000001.history"
}

hides 0
start_secret() {
	su -s /bin/sh ana -c 'exec /tmp/secret 900' > /dev/null 2>&1 &
	wait_for 20 pidof secret
}
ok "ana's program runs" start_secret
secret=$(pidof secret)
ok "the daemon holds the contract" start_daemon contract.toml --backend cgroup || exit 1
ok "the program is a job" wait_for 20 is_listed
pause 2
open_to bob "nothing hidden"
past_of bob "nothing hidden"

hides 2
ok "the daemon reloads" reloads
pause 2
closed_to bob "hidden at a reload"
no_past bob "hidden at a reload"
ok "its own user sees it" as ana "commonhold status --pid $secret && commonhold why $secret"
ok "root sees all" names root "commonhold status --json && commonhold status --pid $secret && commonhold history --step second"

hides 2 77
ok "the daemon reloads again" reloads
open_to carol "the exempt group"
no_past carol "the exempt group"
closed_to bob "beside the exempt group"

hides 0
ok "the daemon reloads once more" reloads
pause 2
open_to bob "shown again"
past_of bob "shown again"
kill -TERM "$daemon"
wait "$daemon"

hides 2
ok "a daemon starts where processes are hidden" start_daemon contract.toml --backend cgroup
ok "the program is a job again" wait_for 20 is_listed
pause 2
closed_to bob "hidden from the start"
no_past bob "hidden from the start"
kill -TERM "$daemon"
wait "$daemon"
hides 0
