# guest: debian
# budget: 420
# only: with --all
# seconds: 600
# memory: 3072
# cpus: 2
# needs: commonhold commonhold-record
# after: compare-rt-app
# Examples of rt-app, as its Debian package has them, run live under the kernel backend and are recorded. After the test, the host
# imports the same files as workloads, simulates them, and compares the tasks side by side (lab/compare-rt-app).

. /job/systemd.sh
kept=/out/rt-app
# rt-app measures the CPU's speed until two measurements agree, which takes the emulator up to half a minute.
longest_s=60
mkdir -p $kept

recorder=
# starts NAME: starts to record.
starts() {
	rm -f "$kept/$1.rec"
	commonhold record "$kept/$1.rec" --for 120s --every 250ms --method events > recorded 2>&1 &
	recorder=$!
	wait_for 30 grep -q recording recorded
}
ends_recording() {
	kill -TERM $recorder
	wait $recorder
	detail=$(tail -n 1 recorded)
}
runs() {
	cp "/usr/share/rt-app/$1.json" "$kept/$(basename "$1").json"
	timeout $longest_s commonhold exec light -- rt-app "/usr/share/rt-app/$1.json" > ran 2>&1
	status=$?
	detail="$(tail -n 1 ran | cut -c 1-60)"
	# 124: it runs for longer than this test.
	[ $status -eq 0 ] || [ $status -eq 124 ]
}

# Some examples write into the kernel's trace.
mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
ok "the daemon holds the contract" start_daemon /job/contracts/replays.toml --backend kernel || exit 1
for example in tutorial/example1 tutorial/example2 tutorial/example4 tutorial/example7 mp3-short browser-short; do
	file=${example#*/}
	ok "$file: the recorder runs" starts "$file" || continue
	pause 2
	ok "$file: rt-app runs" runs $example
	pkill -KILL '^rt-app'
	ok "$file is recorded" ends_recording
done
