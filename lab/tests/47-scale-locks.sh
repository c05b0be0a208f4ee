# budget: 120
# only: with --all
# seconds: 400
# needs: commonhold commonhold-scale queue
# Seed 002, lockmeter: `commonhold scale` names the lock that eight threads wait for, by its symbol or by its call site. In the
# first two cases, moving files in one folder and mapping memory, it is a kernel lock; in the third it is the program's own.

# told KIND TIMES: the report of `scale` on eight threads.
told() {
	commonhold scale --sizes 8 --repeat 1 --warm-up 1 --json -- queue '{n}' "$2" "$1" > "$1.json" 2> "$1.err"
}
# worst KIND: the kind, the name and the first call site of the top lock.
worst() {
	awk '
		/"culprits": \[/ { here = 1 }
		here && /"(kind|name|function|place)":/ { print $2, $3; if (++lines == 4) exit }
		here && /^    \]/ { exit }
	' "$1.json" | tr -d '",' | tr '\n' ' '
}
names() {
	detail=$(worst "$1")
	case $detail in
	$2) return 0 ;;
	*) return 1 ;;
	esac
}
# The report as printed to a terminal.
says() {
	commonhold scale --sizes 8 --repeat 1 --warm-up 0 -- queue '{n}' "$2" "$1" > "$1.txt" 2> "$1.err"
	detail=$(sed -n '/^blame/,/^[a-z]/p' "$1.txt" | tr -s ' \n' ' ')
	tr -s " \n" " " < "$1.txt" | grep -q "$3"
}
# ms KIND TIMES [FLAG]: the duration of a run, the median of three.
ms() {
	commonhold scale --sizes 8 --repeat 3 --warm-up 1 ${3-} --json -- queue '{n}' "$2" "$1" |
		awk '/"wall_ns":/ { gsub(",", ""); print int($2 / 1000000) }' | sort -n | sed -n 2p
}

mkdir -p files && cd files
ok "a study of files ends well" told files 2400
ok "the lock of the folder is named, by the calls that take it" names files "kernel-read-write*(2)*"
ok "the wake chain is reported" grep -q '"who": "thread"' files.json
ok "a study of memory ends well" told memory 2400
ok "the lock of the process's address space is named" names memory "kernel-read-write*map*"
ok "a study of a table ends well" told table 9600
ok "the program's own lock is named" names table "mutex*table_lock*"
in_words() {
	ok "the report names the lock of the folder" says files 4800 "one lock (kernel.s lock"
}
measured in_words

watched=$(ms files 2400)
alone=$(ms files 2400 --unwatched)
note "a run of files takes $watched ms where it is looked at, and $alone ms where it is not"
ok "the kernel complained of nothing" is "$(kernel_complaints | wc -l)" 0
