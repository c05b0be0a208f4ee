# seconds: 150
# needs: commonhold spin
# Seed 004, figures 5 and 6: what happens in one currency does not change what another is worth. Units within units,
# time-shared by weight. B3 sleeps through the first half.

leaves="a/a1 a/a2 b/b1 b/b2 b/b3"
spinners=8

# measure SECONDS: sets used_LEAF, such as used_a1, to the microseconds of CPU time that each got, and `total` to their sum.
measure() {
	for leaf in $leaves; do
		cpu_usec "commonhold/$leaf"
		eval "used_${leaf#*/}=$usec"
	done
	pause "$1"
	total=0
	for leaf in $leaves; do
		cpu_usec "commonhold/$leaf"
		eval "used_${leaf#*/}=\$((usec - used_${leaf#*/}))"
		eval "total=\$((total + used_${leaf#*/}))"
	done
	note "milliseconds: a1 $((used_a1 / 1000)), a2 $((used_a2 / 1000)), b1 $((used_b1 / 1000))," \
		"b2 $((used_b2 / 1000)), b3 $((used_b3 / 1000))"
}

# part LEAF TWELFTHS: a leaf has so many twelfths of what all got. Between leaves it is the kernel that divides, by weight on
# each CPU and by balancing between them: up to 15 % off over ten seconds in this emulated machine.
part() {
	eval "used=\$used_$1"
	ok "$1 has $2 twelfths" within "$used" $((total / 12 * $2)) 20
}

# halves: each currency has half, whatever goes on inside them.
halves() {
	ok "a is worth half of the machine" within $((used_a1 + used_a2)) $((total / 2)) 3
	ok "b is worth half of the machine" within $((used_b1 + used_b2 + used_b3)) $((total / 2)) 3
}

ok "the daemon holds the contract" start_daemon /job/contracts/currencies.toml --backend cgroup || exit 1
for leaf in $leaves; do
	ok "$spinners processes entered $leaf" enter_spinners "$leaf" $spinners
done
ok "b3 weighs half of b" is "$(cat "$HELD/b/b3/cpu.weight")" 5000
ok "a weighs half of all" is "$(cat "$HELD/a/cpu.weight")" 5000
cap_cpus
asleep=$(cat "$HELD/b/b3/cgroup.procs")
kill -STOP $asleep
sleep 2
measure 10
halves
part a1 2
part a2 4
part b1 2
part b2 4

kill -CONT $asleep
sleep 4
measure 10
halves
part a1 2
part a2 4
part b1 1
part b2 2
part b3 3
