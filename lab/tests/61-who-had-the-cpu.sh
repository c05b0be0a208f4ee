# budget: 120
# only: with --all
# seconds: 420
# needs: commonhold spin chrt
# The kernel backend counts what had the CPU while units' tasks waited for it. Two busy sub-units share a unit's CPUs: each waits for
# the other, and neither for another unit that has CPUs of its own. While that unit idles, it lends its CPUs to both, by name. A real-time task is named as a higher class. All waits of a unit
# are counted, and at least 95 % of them are attributed.

commonhold doctor --json | tr -d ' \n' > doctor
grep -q '"name":"ourscheduler","state":"yes"' doctor || skip "commonhold was built without the scheduler: see scripts/features"

cat > waits.toml <<'END'
version = 1
[unit.physics]
[unit.physics.unit.light]
tickets = 100
[unit.physics.unit.noisy]
tickets = 100
[unit.students]
END

# waits FILE: writes the accounts, and then a line `UNIT CAUSE CULPRIT NS` for each wait for CPUs, `-` without a culprit.
waits() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":"\([^"]*\)"/\n@\1 &/g' > accounts
	awk '/^@/ { unit = substr($1, 2) }
		/"waits":\[/ {
			text = $0
			sub(/.*"waits":\[/, "", text)
			sub(/\].*/, "", text)
			n = split(text, entries, /[}],?[{]?/)
			for (i = 1; i <= n; i++) {
				if (entries[i] !~ /"resource":"cpu"/) continue
				cause = entries[i]; sub(/.*"cause":"/, "", cause); sub(/".*/, "", cause)
				culprit = "-"
				if (entries[i] ~ /"unit":"/) { culprit = entries[i]; sub(/.*"unit":"/, "", culprit); sub(/".*/, "", culprit) }
				ns = entries[i]; sub(/.*"ns":/, "", ns); sub(/[^0-9].*/, "", ns)
				print unit, cause, culprit, ns
			}
		}' accounts > "$1"
}
# between UNIT PATTERN: sets `ms` to the growth of a unit's waits whose cause and culprit match, from the file `earlier` to `later`.
between() {
	ms=$(awk -v unit="$1" -v pattern="$2" '$1 == unit && ($2 " " $3) ~ pattern { sum += FILENAME == "later" ? $4 : -$4 }
		END { printf "%d", sum / 1000000 }' earlier later)
}
# part UNIT PATTERN: sets `part` to that growth in thousandths of the growth of all the unit's waits.
part() {
	between "$1" .
	all=$ms
	between "$1" "$2"
	part=$((all > 0 ? ms * 1000 / all : 0))
	note "$1 waited $all ms, $ms ms for $2"
}

ok "the daemon holds the contract" start_daemon waits.toml --backend kernel || exit 1
ok "the light sub-unit is at work" enter_spinners physics/light 8
ok "the noisy one, too" enter_spinners physics/noisy 8
lent() {
	commonhold status --json | tr -d ' \n' > accounts
	grep -q '"lender":"students","borrower":"physics/'$1'"' accounts
}
# A unit without processes is entitled to nothing, so that it lends nothing.
commonhold exec students -- sleep 600 > /dev/null 2>&1 &
ok "students lend to the light sub-unit" wait_for 20 lent light
ok "and to the noisy one" wait_for 20 lent noisy
ok "students are at work" enter_spinners students 8
cap_cpus
siblings() {
	sleep 3
	waits earlier
	pause 10
	waits later
	sed 's/^/# /' later
	for unit in physics/light physics/noisy students; do
		part $unit unknown
		ok "at least 95 % of the waits of $unit are attributed" at_most $part 50
	done
	part physics/light '^(unit|call-back) physics/noisy$'
	ok "the light sub-unit waits for the noisy one" at_least $part 400
	part physics/light '^(unit|call-back) students$'
	ok "and not for students, who have CPUs of their own" at_most $part 100
	part students '^own'
	ok "students wait for themselves" at_least $part 800
	between students .
	# 8 processes on 4 CPUs: 4 wait at any time, for 10 s.
	ok "all of their waits are counted, in ms" within "$ms" 40000 15
}
measured siblings

# A real-time task on one CPU: those that wait there wait for a higher class. The kernel leaves some time to other classes.
chrt -f 50 taskset 1 spin 600 > /dev/null 2>&1 &
realtime=$!
higher() {
	sleep 3
	waits earlier
	pause 10
	waits later
	found=0
	for unit in physics/light physics/noisy students; do
		between $unit '^higher-class'
		found=$((found + ms))
	done
	ok "a real-time task is named, in ms" at_least $found 100
	for unit in physics/light students; do
		part $unit unknown
		ok "at least 95 % of the waits of $unit are attributed beside it" at_most $part 50
	done
}
measured higher
kill -KILL $realtime
uncap_cpus

# A unit leaves the contract: what others waited for it stays counted.
waits earlier
sed -i '/students/d' waits.toml
kill -HUP "$daemon"
reloaded() {
	grep -q '^reloaded' "$daemon_log"
}
ok "a contract without students is taken" wait_for 20 reloaded
sleep 4
waits later
between physics/light .
ok "no wait is taken back" no_fewer "$ms" 0
kill -KILL $(pidof spin)

# The cost of counting is in instructions, which this machine's clock does not count: see `switch` of `bench/lab --boot switches`.
kill -TERM "$daemon"
wait "$daemon"
ok "the kernel has nothing to say about it" is "$(kernel_complaints)" ""
