# budget: 240
# only: with --all
# seconds: 500
# needs: commonhold commonhold-scale cache
# Seed 002: a page cache under one spinlock, on which twelve threads do less than eight. `commonhold scale` names the lock and
# says that fixing it helps; with a reader-writer lock, the cache scales better.

# study LOCK BETWEEN FLAG...: writes the report of a study of the cache with that lock, at 2, 8 and 12 threads, each computing
# BETWEEN loops between two lookups.
study() {
	lock=$1 between=$2
	shift 2
	commonhold scale "$@" --sizes 2,8,12 --repeat 2 --rate 'looks/s: ([0-9.]+)' -- cache "$lock" '{n}' 240000 "$between" > "$lock.text"
}
# throughput LOCK SIZE: from its table, in lookups per second.
throughput() {
	awk -v size="$2" '$1 == size && $2 ~ /^[0-9]+$/ && NF >= 7 { print int($2); exit }' "$1.text"
}
# says LOCK WORDS: its report contains WORDS, across line breaks.
says() {
	tr -s '\n ' '  ' < "$1.text" | grep -qF "$2"
}
more() {
	detail="$1 and $2 looks a second"
	by_host=yes
	[ "$1" -gt "$2" ]
}
with_spinlock() {
	study spin 200 --locks
	ok "with a spinlock, eight threads do more than twelve" more "$(throughput spin 8)" "$(throughput spin 12)"
	ok "its lock is named, with the place" says spin "spinlock tree_spinlock, taken in"
	ok "the report says that fixing it helps" says spin 'If what is done under `tree_spinlock`'
}
with_readers() {
	for lock in spin mutex rw; do
		study $lock 10
	done
	ok "with a lock that readers share, eight threads do more than with a mutex" \
		more "$(throughput rw 8)" "$(throughput mutex 8)"
	ok "and more than with a spinlock" more "$(throughput rw 8)" "$(throughput spin 8)"
	ok "twelve do more than with a spinlock" more "$(throughput rw 12)" "$(throughput spin 12)"
}

cap_cpus
measured with_spinlock
measured with_readers
