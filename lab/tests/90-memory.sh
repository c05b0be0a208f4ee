# budget: 80
# seconds: 200
# memory: 1024
# needs: commonhold work
# disks: 6144
# Memory (seed 000, section 3.2; seed 004, section 5.3). Units are held to their entitlements. A unit's unneeded memory is lent,
# and returns when the unit wants it. Reserved memory is kept from other units, whatever they do. A killed daemon leaves nothing.

mib=1048576
drive=$(disk 6144)

# total: the machine's memory, by the last account.
total() {
	sed -n 's/.*"memory":{"total":\([0-9]*\).*/\1/p' status.json
}
pid_of() {
	for folder in /proc/[0-9]*; do
		read -r name < "$folder/comm" && [ "$name" = "$1" ] && echo "${folder#/proc/}"
	done 2> /dev/null
}
killed() {
	sed -n 's/^oom_kill //p' "$HELD/memory.events"
}

mount -t debugfs none /sys/kernel/debug 2> /dev/null
cp /job/contracts/memory.toml contract.toml
ok "the daemon holds the contract" start_daemon contract.toml --verbose || exit 1
ok "memory is held" grep -q '^memory  held by control groups$' "$daemon_log" || { cat "$daemon_log"; exit 1; }
ok "there is a drive" test -b "$drive"

# An owner that needs little of its memory, and a borrower that needs more than it owns: the loan is limited to the memory that
# would return in a second.
touch_in owner small 16 1
ok "the owner is there" wait_for 10 passes small 1
touch_in borrower scan 900 0 "$drive"
borrows() {
	account borrower borrowed
	[ "$found" -ge $((16 * mib)) ]
}
ok "a short unit borrows" wait_for 30 borrows
ok "how fast it gives up memory is measured" wait_for 10 grep -q "how fast it gives up memory" "$daemon_log"
# A few samples, until the loan reflects that.
pause 2
# rate: sets the memory reclaimed from the borrower so far, and the speed of reclaim.
rate() {
	account borrower taken; taken=$found
	account borrower taking_ns
	echo "$((taken / mib)) MiB were taken in $((found / 1000000)) ms"
}
account borrower borrowed
note "MiB: $((found / mib)) are lent, since so much would be back within a second; $(rate)"

# The owner wants 220 MiB at once, and gets them.
touch_in owner wants 220 2
ok "the owner has the memory that it wants" wait_for 20 passes wants 1
note "$(head -n 1 wants.log)"
called_back() {
	account owner called_back
	[ "$found" -ge 1 ]
}
ok "it called a loan back" wait_for 10 called_back
account owner call_back_p50_ns
note "half of the call-backs within $((found / 1000000)) ms"
account owner call_back_max_ns
# The contract allows a second. An emulated machine stalls while its host does other work.
ok "the longest is bounded, in ms" at_most $((found / 1000000)) 5000
note "$(rate)"
account owner used
ok "it uses that memory" at_least $((found / mib)) 230
kill -KILL $(pid_of wants)

# With a longer call-back time, all idle memory is lent.
cp /job/contracts/memory-patient.toml contract.toml
kill -HUP "$daemon"
lent_out() {
	statement
	field owner entitled; entitled=$found
	field owner used; used=$found
	field borrower borrowed; borrowed=$found
	field borrower used; in_use=$found
	field borrower allowed; allowed=$found
	whole=$(total)
	could=$((entitled - used - whole * 8 / 100))
	[ $((borrowed * 100)) -ge $((could * 95)) ] && [ $((in_use * 100)) -ge $((allowed * 95)) ]
}
ok "the borrower has the owner's idle memory, less the reserve" wait_for 40 lent_out
note "MiB: the owner holds $((entitled / mib)) and uses $((used / mib)); lent $((borrowed / mib)) of $((could / mib)), the borrower uses $((in_use / mib)) of $((allowed / mib))"
is_bound() {
	account borrower allowed
	[ "$(value borrower memory.high)" = "$found" ]
}
ok "that is its bound" wait_for 10 is_bound
ok "what is entitled to is protected" at_least "$(value owner memory.low)" $((entitled - 16 * mib))
commonhold status > status.txt
sed -n '/^memory  /,/^memory .* =/p' status.txt | sed 's/^/# /'
ok "status says from whom it was back, and how soon" grep -q "what it lent to borrower (.*) was back within" status.txt

# A process in no unit takes 100 MiB and exits: the memory to divide shrinks meanwhile, and no unit's bound interferes.
account owner entitled; entitled_before=$found
work touch outside 100 2 > outside.log 2>&1 &
ok "a process in no unit has the memory that it wants" wait_for 20 passes outside 1
entitled_is_less() {
	account owner entitled
	[ "$found" -le $((entitled_before - 40 * mib)) ]
}
ok "units are entitled to less" wait_for 10 entitled_is_less
note "MiB: to $((found / mib)) instead of $((entitled_before / mib))"
kill -KILL $(pid_of outside)
entitled_is_back() {
	account owner entitled
	[ "$found" -ge $((entitled_before - 8 * mib)) ]
}
ok "and to as much as before when it is gone" wait_for 10 entitled_is_back
note "MiB: to $((found / mib)) again, $((entitled_before / mib)) before"
ok "no process was killed" is "$(killed)" 0
kill -KILL "$daemon"
gone() { ! [ -d "$HELD" ]; }
ok "a killed daemon leaves no control group" wait_for 10 gone
ok "its processes live on" kill -0 "$(pid_of small)"

# Four units thrash; two of them have reserved memory.
kill -KILL $(pid_of small) $(pid_of scan)
sed 's/400MiB/200MiB/; s/280MiB/140MiB/' /job/contracts/hard-memory.toml > contract.toml
ok "the daemon holds hard reservations" start_daemon contract.toml --verbose || exit 1
skip_mib=0
for unit in large small third fourth; do
	size=200
	case $unit in large) size=600 ;; small) size=400 ;; esac
	touch_in $unit $unit $size 0 "$drive" $skip_mib
	skip_mib=$((skip_mib + size))
done
# full: whether every unit is at its bound, and was throttled there.
full() {
	for unit in large small third fourth; do
		[ "$(value $unit memory.current)" -ge $(($(value $unit memory.high) / 100 * 95)) ] || return 1
		grep -q '^high 0$' "$HELD/$unit/memory.events" && return 1
	done
	:
}
ok "every unit is at its bound" wait_for 90 full
# After a second of pressure, the smallest memory of the two units over five seconds, in MiB.
sleep 1
large=1000000 small=1000000
for look in 1 2 3 4 5 6 7 8 9 10; do
	read -r now < "$HELD/large/memory.current"
	[ $((now / mib)) -lt $large ] && large=$((now / mib))
	read -r now < "$HELD/small/memory.current"
	[ $((now / mib)) -lt $small ] && small=$((now / mib))
	pause 0.5
done
ok "the large reservation of 200 MiB holds, to 1 %" no_fewer "$large" 198
ok "the small one of 140 MiB too" no_fewer "$small" 139
for unit in large small third fourth; do
	note "$unit: min $(($(value $unit memory.min) / mib)) low $(($(value $unit memory.low) / mib)) high $(($(value $unit memory.high) / mib)) now $(($(value $unit memory.current) / mib)) MiB"
done
ok "the kernel has the large reservation" is "$(value large memory.min)" $((200 * mib))
ok "and the small one" is "$(value small memory.min)" $((140 * mib))

# Reservations of 60 % and 35 %, whose units have no memory beyond them: the guarantee is the bound.
cp /job/contracts/hard-memory-most.toml contract.toml
kill -HUP "$daemon"
# divided: the memory divided among the units, by the last account.
divided() {
	sed -n 's/.*"divided":\([0-9]*\).*/\1/p' status.json
}
# part UNIT PERCENT: sets `part` to the unit's memory, in thousandths of PERCENT of the memory divided in the last account.
part() {
	read -r now < "$HELD/$1/memory.current"
	part=$((now / (whole / 1000 * $2 / 100)))
}
# Guarantee and bound are not written atomically: the guarantees read before and after the bound both count.
contradictions=0
consistent() {
	for unit in large small; do
		read -r before < "$HELD/$unit/memory.min"
		read -r high < "$HELD/$unit/memory.high"
		read -r after < "$HELD/$unit/memory.min"
		[ "$before" = "$after" ] && [ "$high" != max ] && [ "$high" -lt "$after" ] &&
			contradictions=$((contradictions + 1)) && note "$unit is guaranteed $after and may use $high"
	done
	:
}
has_its_own() {
	consistent
	statement
	whole=$(divided)
	part large 60
	[ $part -ge 990 ] || return 1
	part small 35
	[ $part -ge 990 ]
}
ok "reservations of 60 % and 35 % are filled" wait_for 90 has_its_own
pause 1
# The memory to divide may change meanwhile: the unit's memory is compared with its guarantee and bound both half a second ago and
# now, and the nearer one counts. In thousandths.
look_at() {
	read -r now < "$HELD/$1/memory.current"
	read -r min < "$HELD/$1/memory.min"
	read -r high < "$HELD/$1/memory.high"
	eval "min_before=\${min_of_$1:-$min} high_before=\${high_of_$1:-$high}"
	eval "min_of_$1=$min high_of_$1=$high"
	[ "$min_before" -lt "$min" ] && min=$min_before
	[ "$high_before" -gt "$high" ] && high=$high_before
	part=$((now / (min / 1000))) of_bound=$((now / (high / 1000)))
}
large=10000 small=10000 most=0
for look in 1 2 3 4 5 6; do
	look_at large
	[ $part -lt $large ] && large=$part
	[ $of_bound -gt $most ] && most=$of_bound
	look_at small
	[ $part -lt $small ] && small=$part
	consistent
	pause 0.5
done
note "MiB: large min $(($(value large memory.min) / mib)) high $(($(value large memory.high) / mib)), small min $(($(value small memory.min) / mib)) high $(($(value small memory.high) / mib))"
ok "the guarantee of 60 % holds to 1 %, in thousandths" no_fewer "$large" 990
ok "that of 35 % too" no_fewer "$small" 990
ok "and the unit with 60 % has no more, to 1 %" no_fewer 1010 $most
# guaranteed UNIT PERCENT: whether the unit is guaranteed PERCENT of the memory divided in the last account, within the hysteresis
# of the daemon's writes (1/256).
guaranteed() {
	part=$(($(value "$1" memory.min) / (whole / 1000 * $2 / 100)))
	[ $part -ge 996 ] && [ $part -le 1004 ]
}
guarantees_follow() {
	statement
	whole=$(divided)
	guaranteed large 60 && guaranteed small 35
}
ok "60 % and 35 % of the divided memory are guaranteed" wait_for 10 guarantees_follow
ok "no bound was below a guarantee" is "$contradictions" 0
ok "no process was killed" is "$(killed)" 0
