# budget: 150
# seconds: 400
# needs: commonhold spin
# only: with --all
# The daemon's history when things go wrong: its disk is full for a while, the clock is set forward by a day and back, the daemon is
# killed, a file of a later format is in its folder. The contract is held throughout, and no second is lost that need not be.

export COMMONHOLD_DIR=/tmp/daemon
folder=$COMMONHOLD_DIR/history
mkdir -p $folder
mount -t tmpfs -o size=1280k,mode=755 history $folder

# told PATTERN: whether `status` has such a line. check_is STATUS...: whether `status --check` exits with one of these.
told() {
	commonhold status | grep -q "$1"
}
not_told() {
	commonhold status > told-now && ! grep -q "$1" told-now
}
check_is() {
	commonhold status --check > check 2>&1
	status=$?
	detail="status $status: $(tail -n 3 check | tr '\n' ' ')"
	for allowed; do
		[ $status -ne "$allowed" ] || return 0
	done
	return 1
}
# seconds OPTION...: the records of seconds, a line each: start,end,covered seconds. covered STEP: what all records cover together,
# in whole seconds.
seconds() {
	commonhold history --step second --csv "$@" | sed 1d | cut -d , -f 1-3 | sort -u
}
covered() {
	commonhold history --step "$1" --since 1h --csv | sed 1d | cut -d , -f 1-3 | sort -u | awk -F , '{ sum += $3 } END { printf "%d\n", sum }'
}
# recorded: the number of records of seconds. more_than COUNT: whether there are more than that.
recorded() {
	commonhold history --step second --since 1h --csv | sed 1d | cut -d , -f 1 | sort -u | wc -l
}
more_than() {
	detail=$(recorded)
	[ "$detail" -gt "$1" ]
}
# why_s: the time that the waits of the last 10 s cover, in seconds.
why_s() {
	commonhold why a --last 10s --json | tr -d ' \n' | sed 's/.*"recorded_ns":\([0-9]*\).*/\1/; s/[0-9]\{9\}$//; s/^$/0/'
}
# unharmed NAME: a new process gets its place, and units that have what they want are said to have it.
unharmed() {
	for pid in $(spinners_of b); do kill -KILL "$pid"; done
	ok "$1: a process enters its unit" enter_spinners b 1
	pause 11
	ok "$1: the contract is kept" check_is 0
}

ok "the daemon holds the contract" start_daemon /job/contracts/four-units.toml --backend cgroup || exit 1
started=$(uptime_cs)
ok "a unit works" enter_spinners a 2
ok "it records each second" wait_for 20 more_than 5

# --- The disk is full.
dd if=/dev/zero of=$folder/filler bs=4k 2> /dev/null
ok "the disk is full" is "$(df $folder | awk 'END { print $4 }')" 0
ok "the full disk is a problem" wait_for 40 told '^problem: history is not written: .*No space left'
at=$(recorded)
pause 12
ok "which lasts" told '^problem: history is not written: .*No space left'
ok "and is told once" is "$(grep -c '^problem: history' $daemon_log)" 1
ok "nothing is recorded" is "$(recorded)" "$at"
unharmed "on a full disk"
rm $folder/filler
ok "with space it writes again" wait_for 40 more_than $((at + 2))
ok "the problem is gone" not_told '^problem: history'
ok "and said so" grep -q '^problem ended: history' $daemon_log
# The record after it has the time since.
ok "no second is lost" at_least "$(covered second)" $((($(uptime_cs) - started) / 100 - 4))
commonhold history --step second --since 1h > history.txt
ok "and no gap is shown" is "$(grep -c 'no daemon ran' history.txt)" 0

# --- The clock.
day=86400
before=$(recorded)
date -s "@$(($(date +%s) + day))" > /dev/null
pause 12
ok "it records on when the clock is set forward" no_fewer "$(commonhold history --step second --since 30s --csv | sed 1d | cut -d , -f 1 | sort -u | wc -l)" 5
commonhold history --step second --since 2d > history.txt
ok "a line has the clock that was set forward" grep -q 'the clock was set forward by 24.0 h' history.txt
unharmed "a day later"
ok "the waits of 10 s are those of 10 s, a day later" at_most "$(why_s)" 13
ok "and not of less" at_least "$(why_s)" 5
date -s "@$(($(date +%s) - day))" > /dev/null
pause 12
commonhold history --step second --since 1h --until "@$(($(date +%s) + 2 * day))" > history.txt
ok "a line has the clock that was set back" grep -q 'the clock was set back by 24.0 h' history.txt
commonhold history --step second --since 1h > history.txt
ok "no gap is shown, for the daemon ran" is "$(grep -c 'no daemon ran' history.txt)" 0
note "between the stretches: $(grep 'clock\|daemon' history.txt | head -n 2 | tr '\n' ';')"
unharmed "back in time"
ok "the waits of 10 s are those of 10 s, back in time" at_most "$(why_s)" 13
ok "and not of less" at_least "$(why_s)" 5
ok "nothing was a problem" is "$(grep -c '^problem:' $daemon_log)" 1

# --- The daemon is killed.
kill -KILL "$daemon"
killed=$(date +%s)
wait "$daemon" 2> /dev/null
last=$(seconds --since 1h | tail -n 1 | cut -d , -f 2)
ok "at most two seconds are lost" at_least "$(date -d "$(echo "$last" | sed 's/T/ /; s/[.+Z].*//')" +%s)" $((killed - 2))
wait_for 20 test ! -d "$HELD"

# --- A later format, as the daemon's last file.
later=$folder/second-9999999.history
printf 'CH-HIST\n\002\000\000\000\000\000\000\000of later times' > $later
sum=$(md5sum < $later)
ok "another daemon holds the contract" start_daemon /job/contracts/four-units.toml --backend cgroup || exit 1
ok "it names the file of a later format" grep -q 'note: history: second-9999999.history stays as it is: it has format 2' $daemon_log
at=$(recorded)
ok "it records beside it" wait_for 20 more_than $((at + 3))
ok "and leaves it alone" is "$(md5sum < $later)" "$sum"
commonhold history --step second --since 1h > history.txt 2> warnings
ok "a reader names it, too" grep -q 'second-9999999.history: skipped, since it has format 2' warnings
ok "minutes have the seconds that the killed daemon wrote" within "$(covered minute)" "$(covered second)" 5
kill -TERM "$daemon"
wait "$daemon"
ok "the daemon ends with status 0" is "$?" 0
umount $folder
