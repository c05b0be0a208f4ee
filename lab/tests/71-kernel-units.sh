# budget: 60
# only: with --all
# seconds: 240
# needs: commonhold spin
# The kernel backend where CPUs do not divide evenly among the units, and where a reload adds units: the scheduler that was loaded
# first holds all of them.

attached() {
	dmesg | grep -c 'BPF scheduler "commonhold" enabled'
}
before=$(attached)
printf 'version = 1\n[unit.a]\n[unit.b]\n[unit.c]\n' > thirds.toml
commonhold doctor --json | tr -d ' \n' > doctor
grep -q '"name":"ourscheduler","state":"yes"' doctor || skip "commonhold was built without the scheduler: see scripts/features"
ok "the daemon holds 8 CPUs for three units" start_daemon thirds.toml --backend kernel || exit 1
for unit in a b c; do
	ok "$unit is at work" enter_spinners $unit 8
done
cap_cpus

# owners FILE: a line `unit:NAME,...` for each unit, followed by `cpu:NUMBER,"home_ns":NS,...` for each CPU.
owners() {
	commonhold status --json | tr -d ' \n' |
		sed 's/.*"switches":\[//; s/{"unit":"/\nunit:/g; s/{"cpu":/\ncpu:/g' > "$1"
}
# shared_by COUNT: the number of CPUs on which COUNT units were at home, each for at least a millisecond, between the two files.
shared_by() {
	awk -F '[:,"]+' -v count="$1" '$1 == "unit" { unit = $2 }
		$1 == "cpu" && FILENAME == "earlier" { was[unit, $2] = $4 }
		$1 == "cpu" && FILENAME == "later" && $4 - was[unit, $2] > 1000000 { units[$2]++ }
		END { for (cpu in units) if (units[cpu] >= count) found++; print found + 0 }' earlier later
}
thirds() {
	sleep 1
	owners earlier
	measure 10 commonhold/a commonhold/b commonhold/c
	owners later
	for unit in a b c; do
		ok "$unit has a third" within "$(share_of $unit)" 333 6
	done
	ok "the machine is all used" at_least $((total + daemon_used)) 7600
}
measured thirds
uncap_cpus
ok "CPUs go round among those that hold a part of one" no_fewer "$(shared_by 2)" 1
ok "and every CPU had an owner" is "$(shared_by 1)" 8

# A reload adds d with d/e in it, and a rule that assigns processes of this program to it.
cat >> thirds.toml <<'EOF'
[unit.d]
members = ["command:late*"]
[unit.d.unit.e]
members = ["command:late*"]
EOF
said() {
	grep -q -- "$1" "$daemon_log"
}
kill -HUP "$daemon"
ok "a contract with a unit more is taken" wait_for 20 said '^reloaded'
cp "$(command -v spin)" late-job
for i in $(seq 20); do ./late-job 0.001 > /dev/null; done
commonhold status --json | tr -d ' \n' > status.json
ok "a process that executes a program of the new unit's is in it at once" no_fewer "$(switch_count status.json 'd\/e' switches)" 20
ok "so is a process that enters it" enter_spinners d/e 8
cap_cpus
quarters() {
	sleep 1
	measure 10 commonhold/a commonhold/b commonhold/c commonhold/d
	for unit in a b c d; do
		ok "$unit has a quarter" within "$(share_of $unit)" 250 6
	done
}
measured quarters
uncap_cpus

ok "one scheduler held all of it" is "$(($(attached) - before))" 1
ok "and it holds still" scheduling enabled
ok "nothing stood in for it" is "$(grep -c 'held by the' "$daemon_log") $(grep -c '^problem' "$daemon_log")" "1 0"
kill -TERM "$daemon"
wait "$daemon"
ok "the kernel has nothing else to say about it" is "$(kernel_complaints 'sysrq\|BPF scheduler "commonhold" disabled (')" ""
