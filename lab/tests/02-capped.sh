# needs: spin
# The machine can be measured on: capped, a thread beside seven others does about the work that it does alone. Uncapped,
# it does a quarter of it on a host with two cores. The bound leaves room for a host that is busy with other things.

cap_cpus
alone=$(spin 3 1 | awk '{ print $6 }')
spin 3 8 | awk '{ print $6 }' | sort -n > eight
slowest=$(head -n 1 eight)
note "loops in 3 s: $alone alone, $slowest to $(tail -n 1 eight) beside seven others: $(ratio "$slowest" "$alone")"
ok "capped CPUs do not slow each other down" at_least "$slowest" $((alone * 6 / 10))
