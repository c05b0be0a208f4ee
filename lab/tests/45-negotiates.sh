# budget: 500
# only: with --all
# seconds: 900
# needs: commonhold spin work
# disks: 512:8000000
# The negotiator on this machine (seed 004, sections 5.5 to 7): of seven units two negotiate, a CPU-bound and a disk-bound one,
# without naming tickets. The daemon proposes an exchange, tries it in steps, and keeps it when both make faster progress. Trials
# cost no more than documented, and each trial is reported with the reason for its end. By control groups and by the scheduler.

device=$(disk 512:8000000)
name=${device#/dev/}
number=$(cat "/sys/block/$name/dev")
contract() {
	printf 'version = 1\n[machine]\ncpu = "proportional"\n'
	for unit in dhrystone iohog computes reads-1 reads-2 reads-3 reads-4; do
		printf '[unit.%s]\ntickets = 1000\n' $unit
		case $unit in dhrystone | iohog) printf 'negotiate = %s\n' "$1" ;; esac
	done
}
readers="iohog reads-1 reads-2 reads-3 reads-4"

# work_of SECONDS: measures for SECONDS. Sets used_UNIT to the thousandths of a CPU of the CPU-bound units and of iohog, rate_UNIT
# to the kB/s of each reader, `least` to the least of the other readers and `all` to the sum.
work_of() {
	for unit in $readers; do
		bytes $unit
		eval "from_$(echo $unit | tr - _)=$bytes"
	done
	begun=$(uptime_cs)
	measure $1 commonhold/dhrystone commonhold/computes commonhold/iohog
	all=0 least= shown=
	for unit in $readers; do
		bytes $unit
		from=$(eval "echo \$from_$(echo $unit | tr - _)")
		rate=$(((bytes - from) / 10 / ($(uptime_cs) - begun)))
		all=$((all + rate)) shown="$shown $rate"
		[ $unit != iohog ] || { rate_iohog=$rate && continue; }
		[ $rate -ge ${least:-$((rate + 1))} ] || least=$rate
	done
	note "kB/s: iohog and the four others$shown, together $all"
}
# stamps: sets `at` to the clock, and had_dhrystone and had_iohog to their CPU times.
stamps() {
	sample commonhold/iohog; had_iohog=$usec
	sample commonhold/dhrystone; had_dhrystone=$usec
}
# offers: all exchanges, one per line, ordered by number.
offers() {
	commonhold offers --json | tr -d ' \n' > offers.json
	sed 's/.*"exchanges":\[//; s/\],"negotiated".*//; s/{"number":\([0-9]*\),"lent"/\nexchange:\1,"lent"/g' offers.json |
		grep '^exchange:' | sort -t : -k 2 -n > exchanges
}
# is_kept: whether the negotiator has kept an exchange that is in force.
is_kept() {
	offers
	grep -v '"ended_ns"' exchanges | grep -q '"done":"kept"'
}
kept_in_time() {
	is_kept || { by_host=yes; return 1; }
}
# step_by_step: checks the steps of the trial, each of which is an exchange. The first step exchanges a tenth; the negotiator
# ended each step but the last with a finding; and a step that was left for a smaller step has a reason.
step_by_step() {
	detail=$(awk '
		{
			done = level = why = ended = ""
			if (match($0, /"done":"[a-z-]*"/)) done = substr($0, RSTART + 8, RLENGTH - 9)
			if (match($0, /"level":[0-9]*/)) level = substr($0, RSTART + 8, RLENGTH - 8)
			if (match($0, /"done":"[a-z-]*","why":"[a-z-]*"/)) { why = substr($0, RSTART, RLENGTH); sub(/.*:"/, "", why); sub(/"/, "", why) }
			if ($0 ~ /"ended_ns"/) ended = $0 ~ /"why":"negotiated"/ ? "negotiated" : "otherwise"
			said = said (NR > 1 ? ", " : "") level " " done (why != "" ? " (" why ")" : "")
			if (NR == 1 && level != 100) wrong = wrong " the first is not of a tenth;"
			if (ended == "otherwise") wrong = wrong " one ended otherwise;"
			if (ended == "" && done != "kept") wrong = wrong " one in force is not kept;"
			if (ended == "negotiated" && done != "good" && done != "left") wrong = wrong " one was ended and nothing is said;"
			if (done == "left" && why == "") wrong = wrong " one was left without a reason;"
			if (ended == "") { kept++ }
		}
		END { print said (wrong != "" ? ":" wrong : ""); exit wrong != "" || kept != 1 }' exchanges)
}
# side UNIT: sets `without`, `with` and `noise` to the kept exchange's measurements of UNIT.
side() {
	sides=$(grep -v '"ended_ns"' exchanges | sed "s/.*\"unit\":\"$1\",\"without\":\([0-9]*\),\"with\":\([0-9]*\),\"noise\":\([0-9]*\).*/\1 \2 \3/")
	without=${sides%% *} noise=${sides##* } with=${sides#* }
	with=${with%% *}
}
# risked UNIT: sets `risked` to the upper bound of UNIT's loss in trials, in ms of its CPU time.
risked() {
	risked=$(sed "s/.*\"negotiated\":\[.*\"unit\":\"$1\",\"risked_ns\":\([0-9]*\).*/\1/" offers.json)
	risked=$((risked / 1000000))
}
before() {
	work_of 15
	first_dhrystone=$used_dhrystone first_iohog=$used_iohog first_rate=$rate_iohog
	ok "both are at work" at_least $((first_dhrystone < first_rate ? first_dhrystone : first_rate)) 500
}
afterwards() {
	work_of 15
	ok "the CPU-bound unit has more of the CPUs than before, in thousandths" at_least $((used_dhrystone * 1000 / first_dhrystone)) 1020
	ok "the disk-bound unit transfers more than before, in thousandths" at_least $((rate_iohog * 1000 / first_rate)) 1050
	ok "the other that computes has at least its seventh of the CPUs, in thousandths of one" at_least $used_computes 1142
	ok "each other that reads has at least its seventh of the disk, in kB/s" at_least $((least * 7)) $((all * 97 / 100))
}
under() {
	contract false > seven.toml
	ok "the daemon holds seven units: $1" start_daemon seven.toml --backend "$1" --verbose || exit 1
	for unit in dhrystone computes; do
		ok "$unit is at work on every CPU" pinned $unit
	done
	# Progress is CPU time, and the emulator's charge for a read alone varies twofold: so each block takes 6 ms of work in total.
	for unit in $readers; do
		commonhold exec $unit -- work read $unit "$device" 64 4 6 > "reader-$unit" 2>&1 &
	done
	cap_cpus
	pause 5
	measured before
	offers
	ok "no unit has to ask for a trade" is "$(grep -c exchange exchanges)" 0
	contract true > seven.toml
	stamps; began=$at had_first_dhrystone=$had_dhrystone had_first_iohog=$had_iohog
	kill -HUP "$daemon"
	# 16 s without an exchange, and up to 36 s for each of up to eight steps.
	until is_kept || [ $(($(uptime_cs) - began)) -ge 32000 ]; do
		pause 5
	done
	note "$((($(uptime_cs) - began) / 100)) s after it was allowed:"
	commonhold offers | sed 's/^/# /'
	ok "an exchange is kept" kept_in_time || exit 1
	ok "it was found step by step, and each step is reported" step_by_step
	note "$detail"
	for unit in dhrystone iohog; do
		side $unit
		ok "by that exchange, $unit got on faster by more than noise, in millionths of a CPU" no_fewer $with $((without + noise + 1))
	done
	commonhold status > status.txt
	ok "status reports it, too" grep -q 'trial 1: kept' status.txt
	measured afterwards
	stamps; elapsed=$((at - began))
	offers
	for unit in dhrystone iohog; do
		risked $unit
		eval "had=\$(((had_$unit - had_first_$unit) / 1000)) first=\$first_$unit"
		note "$unit: $had ms of CPU time in $((elapsed / 100)) s; as before it would be $((first * elapsed / 100)); trials cost at most $risked ms"
		ok "with what trials may have cost at most, $unit had no less than it would have had, in ms" \
			at_least $((had + risked)) $((first * elapsed / 100 * 95 / 100))
		ok "trials may have cost $unit no more than the eight CPUs had beside it, in ms" no_fewer $((8 * elapsed * 10 - had)) $risked
	done
	uncap_cpus
	in_force=$(grep -v ended_ns exchanges | sed -n 's/^exchange:\([0-9]*\),.*/\1/p')
	ok "a unit ends it" commonhold cancel "$in_force"
	ok "all tickets are the contract's" said 'All are those of the contract'
	kill -KILL $(pidof spin $readers)
	kill -TERM "$daemon"
	ended() { ! kill -0 "$daemon" 2> /dev/null; }
	ok "the daemon ends" wait_for 10 ended
}
said() {
	commonhold tickets | grep -q "$1"
}

under cgroup
commonhold doctor --json | tr -d ' \n' > doctor
if grep -q '"name":"ourscheduler","state":"yes"' doctor; then
	under kernel
else
	skip "commonhold was built without the scheduler: see scripts/features"
fi
