# budget: 15
# needs: spin
# The machine is fit to measure on. With capped CPUs, a thread beside seven others does about as much work as alone. Uncapped, on
# a host with two cores, it does a quarter of that. A host core shared with another virtual machine may run at half speed for
# seconds. So the thread's work alone is measured before and after, and the bound is half of the smaller result.

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
