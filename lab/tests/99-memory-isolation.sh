# budget: 75
# only: with --all
# seconds: 100
# memory: 1024
# needs: commonhold work
# disks: 6144
# Two units, memory for one job each. One unit runs two jobs: the other's job keeps its memory (seed 000, section 4.4). Then the
# borrower writes files: its loan returns within the contract's time, though the dirty pages must be written first.

mib=1048576
job_mib=330
drive=$(disk 6144)
# came_back UNIT: the unit's file refaults: pages that were reclaimed from the unit and that it read again.
came_back() {
	sed -n 's/^workingset_refault_file //p' "$HELD/$1/memory.stat"
}
killed() {
	sed -n 's/^oom_kill //p' "$HELD/memory.events"
}

mount -t debugfs none /sys/kernel/debug 2> /dev/null
printf 'version = 1\n[machine]\ncall-back-memory = "5s"\n[unit.owner]\n[unit.borrower]\n' > contract.toml
ok "the daemon holds the contract" start_daemon contract.toml --backend cgroup --verbose || exit 1
touch_in owner one $job_mib 0 "$drive"
ok "one unit's job has its memory" wait_for 40 passes one 2
touch_in borrower two $job_mib 0 "$drive" $job_mib
touch_in borrower three $job_mib 0 "$drive" $((2 * job_mib))
thrashes() {
	[ "$(came_back borrower)" -ge 10000 ]
}
ok "the other unit's two do not fit" wait_for 60 thrashes
before=$(came_back owner) others_before=$(came_back borrower)
least=1000000
for look in 1 2 3 4 5 6 7 8 9 10; do
	now=$(value owner memory.current)
	[ $((now / mib)) -lt $least ] && least=$((now / mib))
	pause 0.5
done
back=$(($(came_back owner) - before))
note "pages of $((job_mib * 256)) that came back: $back; to the other unit $(($(came_back borrower) - others_before)), which has $(($(value borrower memory.current) / mib)) MiB"
ok "of the one job's pages fewer than one in a hundred were taken" test $back -lt $((job_mib * 256 / 100))
ok "its unit keeps its memory, in MiB" no_fewer $least $((job_mib * 99 / 100))
kill -KILL $(pidof one two three)

# The unit that writes borrows.
touch_in owner small 16 1
ok "the owner needs little" wait_for 10 passes small 1
commonhold exec borrower -- dd if=/dev/zero of="$drive" bs=64k count=90000 2> dd.log &
borrows_dirty() {
	account borrower borrowed; lent=$((found / mib))
	dirty=$(($(sed -n 's/^file_dirty //p' "$HELD/borrower/memory.stat") / mib))
	[ $lent -ge 16 ] && [ $dirty -ge 16 ]
}
ok "a unit that writes borrows" wait_for 30 borrows_dirty
note "MiB: $lent are lent, $dirty of what the unit has are dirty"
account owner called_back; calls_before=$found
touch_in owner wants 180 1
called_back() {
	account owner called_back
	[ "$found" -gt "$calls_before" ]
}
ok "the owner has the memory that it wants" wait_for 30 passes wants 1
ok "it called a loan back" wait_for 15 called_back
account owner call_back_max_ns
ok "within the stated 5 s, in ms" at_most $((found / 1000000)) 5000
ok "no process was killed" is "$(killed)" 0
