# budget: 60
# only: with --all
# seconds: 300
# needs: commonhold commonhold-record spin work
# after: compare-replays
# A load under the kernel backend is recorded under two contracts. After the test, the host replays the first recording under its
# own contract, under the second one, which the second recording confirms or refutes, and under wrong ones, which must be refuted
# (lab/compare-replays, docs/conformance.md).
recorded_s=10
kept=/out/replays
mkdir -p $kept

# member UNIT COMMAND...
member() {
	commonhold exec "$@" > /dev/null 2>&1 &
}
# record NAME: records for a while, in $kept.
record() {
	cap_cpus
	commonhold record "$kept/$1.rec" --for ${recorded_s}s --method events > recorded 2>&1
	status=$?
	uncap_cpus
	detail=$(tail -n 1 recorded)
	[ $status -eq 0 ]
}
# changes TICKETS: gives light these tickets of CPU.
changes() {
	commonhold tickets set light cpu "$1" > changed 2>&1 || {
		detail=$(cat changed)
		return 1
	}
}

ok "the daemon holds the contract" start_daemon /job/conformance/contract.toml --backend kernel || exit 1
for i in 1 2 3 4; do member light -- work cycle light 20 40 $i; done
for i in 1 2 3; do member brief -- work fork brief 30 30 1$i; done
for i in 1 2 3 4 5 6 7 8; do member heavy -- spin 600; done
pause 4
ok "the mix is recorded" record mix || exit 1
commonhold-record recording $kept/mix.rec > shown 2>&1
ok "light's tickets change" changes 2 || exit 1
pause 4
ok "the mix is recorded with other tickets" record mix.other || exit 1
