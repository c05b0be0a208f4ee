# budget: 5
# needs: commonhold
# `commonhold` reports the machine's topology correctly and checks a contract against it.

contract=/job/contracts/four-units.toml

# numbers KEY: the values of KEY in the JSON that was read last, in order.
numbers() {
	sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}\$/\1/p" tree.json | tr '\n' ' '
}
# groups KEY: the lengths of the runs of equal values of KEY.
groups() {
	numbers "$1" | tr ' ' '\n' | uniq -c | awk 'NF == 2 { print $1 }' | tr '\n' ' '
}
# entitled UNIT: its entitlement in millionths of a CPU (a unit's first resource is cpu, and the first amount is entitled).
entitled() {
	awk -v unit="\"$1\"," '
		$1 == "\"unit\":" { here = $2 == unit }
		here && $1 == "\"absolute\":" { print $2; exit }' tree.json
}
enforcer_of_cpu() {
	awk '
		$1 == "\"resource\":" { here = $2 == "\"cpu\"," }
		here && $1 == "\"name\":" { gsub(/[",]/, "", $2); print $2; exit }' doctor.json
}

check() { commonhold check "$contract" --json > tree.json; }
ok "check accepts the contract" check
ok "each CPU is on its node" is "$(numbers node)" "0 0 1 1 2 2 3 3 "
ok "each pair of CPUs has a cache of its own" is "$(groups cache)" "2 2 2 2 "
for pair in a:1 b:2 c:3 d:2; do
	ok "unit ${pair%:*} is entitled to ${pair#*:} CPUs" is "$(entitled "${pair%:*}")" "${pair#*:}000000"
done

doctor() { commonhold doctor --json > doctor.json; }
ok "doctor answers" doctor
# The best backend that was built: scripts/features.
best=cgroup
grep -q 'built without the scheduler' doctor.json || best=kernel
ok "CPU would be held by the best backend" is "$(enforcer_of_cpu)" $best
