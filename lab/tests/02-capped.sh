# budget: 15
# needs: spin
# The machine is fit to measure on. With capped CPUs, a thread beside seven others does about the work that it does alone.
# Uncapped, it does a quarter of it on a host with two cores. A host core shared with another virtual machine may run at half
# speed for seconds. Therefore the reference is the slower of two measurements alone, one before and one after, and the bound
# is half of it.

cap_cpus
loops_alone() {
	spin 3 1 | awk '{ print $6 }'
}
capped() {
	before=$(loops_alone)
	spin 3 8 | awk '{ print $6 }' | sort -n > eight
	after=$(loops_alone)
	slowest=$(head -n 1 eight) alone=$((before < after ? before : after))
	note "loops in 3 s: $before and $after alone, $slowest to $(tail -n 1 eight) beside seven others: $(ratio "$slowest" "$alone")"
	ok "capped CPUs do not slow each other down" at_least "$slowest" $((alone / 2))
}
measured capped
