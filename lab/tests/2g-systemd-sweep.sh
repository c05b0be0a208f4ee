# guest: debian
# seconds: 600
# budget: 90
# memory: 3072
# needs: commonhold-sim
# only: with --all
# A sweep as a job array of Slurm, by the scripts of examples/sweep: a user submits it, each task runs a part, and a dependent job
# merges the parts. A part that was cut is completed by its task alone, and the result is that of the whole sweep.

. /job/systemd.sh

way=alone how=
sweep=/home/ana/sweep
is_idle() {
	sinfo -h -N -o %t | grep -qx idle
}
slurm_starts() {
	systemctl start munge slurmctld slurmd
	wait_for 90 is_idle || detail=$(sinfo -N -l 2>&1 | tail -n 1)
}
no_job_left() {
	detail=$(squeue -h | head -n 1)
	[ -z "$detail" ]
}
# as_ana COMMAND: runs it in the sweep's folder, which has the program `commonhold`.
as_ana() {
	on ana "cd sweep && PATH=\$PWD:\$PATH && export SEEDS=2 && $1"
}
parts_are_whole() {
	detail=$(cat $sweep/part-*.log | grep -c 'is complete: 1 run, 1 of them run now')
	[ "$detail" = 16 ]
}
merged() {
	detail=$(tail -n 1 $sweep/merge.log)
	grep -q '^16 runs, ' $sweep/merge.log && [ -s $sweep/sweep.html ]
}
lacks_a_run() {
	detail=$(grep '^shard' $sweep/merge.log)
	grep -q '^incomplete: 1 of 16 runs is missing' $sweep/merge.log && [ "$detail" = "shard 4/16 lacks 1 of its 1 run" ]
}

ok "Slurm is ready" slurm_starts
on ana "mkdir sweep && cp /job/examples/sweep/* sweep && ln -s /job/commonhold-sim sweep/commonhold"
as_ana "commonhold sim --new scenario" > /dev/null
ok "the array and the merge are submitted" as_ana "./submit > submitted 2>&1"
ok "all jobs end" soon 300 no_job_left
ok "each task has run its part" parts_are_whole || note "$(head -n 3 $sweep/part-1.log)"
ok "the parts are merged" merged
as_ana "commonhold merge part-*.jsonl --json > merged.json"
as_ana "commonhold sim scenario --sweep tickets.physics=50..400:50 --seeds 2 --json > whole.json"
ok "they are the whole sweep" cmp $sweep/merged.json $sweep/whole.json

# Part 4 loses its run, as if its task had been killed.
as_ana "head -n 1 part-4.jsonl > cut && mv cut part-4.jsonl && rm merge.log && sbatch merge.sbatch > submitted 2>&1"
ok "the merge ends" soon 200 no_job_left
ok "it names what is missing" lacks_a_run
as_ana "rm merge.log; sbatch --array=4 array.sbatch > submitted 2>&1"
ok "the task alone completes its part" soon 200 no_job_left
as_ana "commonhold merge part-*.jsonl --json > merged.json"
ok "the parts are the whole sweep again" cmp $sweep/merged.json $sweep/whole.json
systemctl stop slurmd slurmctld munge
rm -r $sweep
leave
