# budget: 240
# only: with --all
# seconds: 500
# needs: commonhold cache
# Seed 002: a cache of pages under one spinlock, on which twelve threads do less than eight. `commonhold scale` names the lock,
# and says that mending it helps; with a lock that readers share, it scales better.

# study LOCK FLAG...: the text of a study of the cache with that lock, at 2, 8 and 12 threads.
study() {
	lock=$1
	shift
	commonhold scale "$@" --sizes 2,8,12 --repeat 3 --rate 'looks/s: ([0-9.]+)' -- cache "$lock" '{n}' 120000 > "$lock.text"
}
# throughput LOCK SIZE: of its table, in looks a second.
throughput() {
	awk -v size="$2" '$1 == size && NF >= 7 { print int($2); exit }' "$1.text"
}
# says LOCK WORDS: somewhere in its text, whatever the lines.
says() {
	tr -s '\n ' '  ' < "$1.text" | grep -qF "$2"
}
more() {
	detail="$1 and $2 looks a second"
	by_host=yes
	[ "$1" -gt "$2" ]
}
with_spinlock() {
	study spin --locks
	ok "with a spinlock, eight threads do more than twelve" more "$(throughput spin 8)" "$(throughput spin 12)"
	ok "its lock is named, with the place" says spin "spinlock tree_spinlock, taken in"
	ok "mending it is said to help" says spin 'If what is done under `tree_spinlock`'
}
with_readers() {
	study mutex
	study rw
	ok "with a lock that readers share, eight threads do more than with a mutex" \
		more "$(throughput rw 8)" "$(throughput mutex 8)"
	ok "and more than with a spinlock" more "$(throughput rw 8)" "$(throughput spin 8)"
	ok "twelve do more than with a spinlock" more "$(throughput rw 12)" "$(throughput spin 12)"
}

cap_cpus
measured with_spinlock
measured with_readers
