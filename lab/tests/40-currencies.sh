# budget: 35
# only: with --all
# seconds: 240
# needs: commonhold spin
# Seed 004, figures 5 and 6: changes inside one currency do not change the worth of another. Units within units, time-shared by
# weight. B3 sleeps through the first half.

leaves="a/a1 a/a2 b/b1 b/b2 b/b3"
groups=
for leaf in $leaves; do groups="$groups commonhold/$leaf"; done
spinners=8

# halves: checks that each currency has half of the machine, whatever happens inside a currency. The kernel divides the CPU time,
# by weights on each CPU and by load balancing: on this emulated machine the halves were up to 13 % off over ten seconds, and
# leaves up to 30 %.
halves() {
	ok "a is worth half of the machine" within $((used_a1 + used_a2)) $((total / 2)) 20
	ok "b is worth half of the machine" within $((used_b1 + used_b2 + used_b3)) $((total / 2)) 20
}

# more LEAF LEAF: whether the first has clearly more CPU time than the second.
more() {
	eval "ok '$1 has more than $2' at_least \$used_$1 \$((used_$2 * 12 / 10))"
}

ok "the daemon holds the contract" start_daemon /job/contracts/currencies.toml --backend cgroup || exit 1
for leaf in $leaves; do
	ok "$spinners processes entered $leaf" enter_spinners "$leaf" $spinners
done
ok "b3 weighs half of b" is "$(cat "$HELD/b/b3/cpu.weight")" 5000
ok "b2 weighs a third of b" is "$(cat "$HELD/b/b2/cpu.weight")" 3333
ok "a weighs half of all" is "$(cat "$HELD/a/cpu.weight")" 5000
cap_cpus
asleep=$(cat "$HELD/b/b3/cgroup.procs")
kill -STOP $asleep
b3_asleep() {
	sleep 2
	measure 5 $groups
	halves
	more a2 a1
	more b2 b1
}
measured b3_asleep

kill -CONT $asleep
b3_awake() {
	sleep 4
	measure 5 $groups
	halves
	more a2 a1
	more b2 b1
	more b3 b2
}
measured b3_awake
