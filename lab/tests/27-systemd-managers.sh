# guest: debian
# seconds: 900
# budget: 400
# memory: 3072
# needs: commonhold spin work
# only: with --all
# Other cgroup managers, without the daemon and with it. Slurm's jobs, and podman's containers (rootful and rootless), stay under
# the limits of the manager that started them, which also ends and accounts them; they count for their users' units.

. /job/systemd.sh

# --- Slurm: a controller and a node, on cgroup v2.
is_idle() {
	sinfo -h -N -o %t | grep -qx idle
}
slurm_starts() {
	systemctl start munge slurmctld slurmd
	wait_for 90 is_idle || detail=$(sinfo -N -l 2>&1 | tail -n 1)
}
# number_of NAME: the number of a running job.
number_of() {
	squeue -h -n "$1" -t running -o %i
}
job_runs() {
	[ -n "$(number_of "$1")" ]
}
stat_of() {
	sstat -n -a -P -j "$1.0" -o "$2" 2> /dev/null | head -n 1
}
has_cpu_time() {
	detail=$(stat_of "$1" AveCPU)
	case $detail in 00:00:0[4-9]*) ;; *) return 1 ;; esac
}
ended_as() {
	detail=$(grep "^JobId=$1 " /var/log/slurm/jobcomp.log | sed 's/.*JobState=\([A-Z_]*\).*/\1/')
	[ "$detail" = "$2" ]
}
group_gone() {
	detail=$(find $CGROUPS -type d -name "job_$1")
	[ -z "$detail" ]
}
scope=system.slice/lab_slurmstepd.scope
slurm() {
	ok "Slurm is ready $how" slurm_starts || return
	# One job begins before the daemon, one after.
	on ana "setsid srun -J lab-early -n1 -c2 --mem=100 sh -c '/job/spin 5 > ~/lab-spun; setsid sleep 971 & exec sleep 972' > ~/lab-srun 2>&1 < /dev/null &"
	wait_for 30 job_runs lab-early
	hold || return
	[ $way = alone ] || used_ms carol
	used_before=${used:-0}
	on carol "setsid srun -J lab-late -n1 -c2 --mem=100 sh -c '/job/spin 5 > ~/lab-spun; setsid sleep 973 & exec sleep 974' > ~/lab-srun 2>&1 < /dev/null &"
	ok "a job that was there runs $how" wait_for 60 runs sleep 972
	ok "a job that comes runs $how" wait_for 60 runs sleep 974
	early=$(number_of lab-early) late_job=$(number_of lab-late)
	sleep 2
	for entry in 971:$early 972:$early 973:$late_job 974:$late_job; do
		ok "a process of job ${entry#*:} is where Slurm put it, ${entry%:*} $how" \
			is_in "$(pid_of "sleep ${entry%:*}")" "$scope/job_${entry#*:}/step_0/user/task_0"
	done
	ok "the jobs have CPUs of their own $how" test "$(cpus_of "$(pid_of sleep 972)")" != "$(cpus_of "$(pid_of sleep 974)")"
	counted "a process of a job that was there" "$(pid_of sleep 971)" ana
	counted "a process of a job that came" "$(pid_of sleep 973)" carol
	if [ $way != alone ]; then
		used_ms carol
		ok "the 5 s that it computed are counted, in ms $how" at_least $((used - used_before)) 4700
	fi
	ok "Slurm accounts the CPU time of the one $how" soon 20 has_cpu_time "$early"
	ok "and of the other $how" soon 20 has_cpu_time "$late_job"
	scancel "$early" "$late_job"
	for number in 971 972 973 974; do
		ok "scancel ends all of a job, $number $how" soon 20 gone sleep $number
	done
	ok "which is in Slurm's record $how" soon 40 ended_as "$early" CANCELLED
	ok "for the other, too $how" soon 40 ended_as "$late_job" CANCELLED
	ok "its groups are gone $how" soon 20 group_gone "$early"
	ok "also the other's $how" soon 20 group_gone "$late_job"
	on dave "srun -J lab-much -n1 --mem=60 /job/work touch much 400 1 > ~/lab-much 2>&1 & sleep 20; kill \$!" > /dev/null 2>&1
	ok "a job has no more memory than it asked for $how" test "$(grep -c '^pass 1' /home/dave/lab-much)" = 0
	much=$(sed -n 's/^JobId=\([0-9]*\) .* Name=lab-much .*/\1/p' /var/log/slurm/jobcomp.log | tail -n 1)
	ok "and is ended for that $how" soon 20 ended_as "$much" OUT_OF_MEMORY
	release
	systemctl stop slurmd slurmctld munge
	systemctl stop lab_slurmstepd.scope 2> /dev/null
}

# --- podman: a rootful container whose processes run as a user, and a rootless one.
image=/usr/local/share/lab-image.tar
# group_of_container PID: the group that podman made, without the sub-group that crun adds.
in_container() {
	detail=$(cgroup_of "$1")
	case $detail in /$2/libpod-*.scope | /$2/libpod-*.scope/container) ;; *) return 1 ;; esac
}
# told_by_stats: `podman stats` reads the container's group: the memory of the container that computes.
accounted() {
	detail=$($1 podman stats --no-stream --format '{{.PIDs}}:{{.MemUsage}}' lab-box 2>&1 | tail -n 1)
	case $detail in 1:[1-9]*MB*) ;; *) return 1 ;; esac
}
status_of() {
	detail=$($1 podman inspect --format '{{.State.Status}}:{{.State.ExitCode}}' lab-box 2>&1 | tail -n 1)
	[ "$detail" = exited:137 ]
}
as_bob() {
	on bob "$*"
}
containers() {
	podman image exists lab || podman import $image lab > podman.log 2>&1
	as_bob "podman image exists lab || podman import $image lab" > podman.log 2>&1
	hold || return
	podman run -d --name lab-box --memory 100m --user 1003:2002 -v /job:/job:ro lab /job/work touch box 20 0 > podman.log 2>&1
	as_bob podman run -d --name lab-box --memory 100m -v /job:/job:ro lab /job/work touch bobs 20 0 > podman-bob.log 2>&1
	ok "a container of root's runs $how" wait_for 30 pgrep -x box || cat podman.log
	ok "a container of a user's runs $how" wait_for 30 pgrep -x bobs || cat podman-bob.log
	sleep 2
	ok "the one is where podman put it $how" in_container "$(pgrep -x box)" machine.slice
	ok "the other is $how" in_container "$(pgrep -x bobs)" user.slice/user-1002.slice/user@1002.service/user.slice
	counted "the process of root's container" "$(pgrep -x box)" carol
	counted "the user's container" "$(pgrep -x bobs)" bob
	ok "podman accounts the one $how" accounted ""
	ok "podman accounts the other $how" accounted as_bob
	podman stop -t 1 lab-box > /dev/null 2>&1
	as_bob podman stop -t 1 lab-box > /dev/null 2>&1
	ok "stop ends the one $how" test -z "$(pgrep -x box)"
	ok "and the other $how" test -z "$(pgrep -x bobs)"
	ok "podman knows how the one ended $how" soon 10 status_of ""
	ok "and the other $how" soon 10 status_of as_bob
	podman rm -f lab-box > /dev/null 2>&1
	as_bob podman rm -f lab-box > /dev/null 2>&1
	ok "no group is left $how" test -z "$(find $CGROUPS -type d -name 'libpod-*')"
}

# --- Slurm's jobs, each a unit of its own.
# figure_of UNIT FIGURE: a number from the unit's entry in the daemon's status.
figure_of() {
	commonhold status --json | tr -d ' \n' | sed 's/{"unit":/\n&/g' | grep "^{\"unit\":\"$1\"" |
		sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" | head -n 1
}
has_unit() {
	detail=$(figure_of "$1" processes)
	[ "${detail:-0}" -gt 0 ]
}
has_no_unit() {
	detail=$(figure_of "$1" processes)
	[ -z "$detail" ]
}
has_twice() {
	of_one=$(figure_of "$1" entitled_micro_cpus) of_other=$(figure_of "$2" entitled_micro_cpus)
	detail="$of_one and $of_other millionths of a CPU"
	[ "${of_one:-0}" -gt 0 ] && [ $((of_one * 2 - of_other)) -ge -20000 ] && [ $((of_one * 2 - of_other)) -le 20000 ]
}
is_held() {
	detail=$(commonhold status --json | tr -d ' \n' | grep -o "\"group\":\"/$1\"" | head -n 1)
	[ -n "$detail" ]
}
# files_of GROUP: the files that its manager may have written.
files_of() {
	(cd "$CGROUPS/$1" && head -n 5 cpuset.cpus cpu.weight cpu.max memory.min memory.low memory.high memory.max io.max 2> /dev/null)
}
jobs() {
	[ $way = alone ] && return
	contract=/job/contracts/jobs.toml
	ok "Slurm is ready for jobs $how" slurm_starts || return
	on ana "setsid srun -J lab-one -n1 -c1 --mem=100 sh -c 'exec /job/spin 971' > ~/lab-srun 2>&1 < /dev/null &"
	wait_for 30 job_runs lab-one
	wait_for 30 runs spin 971
	one=$scope/job_$(number_of lab-one)
	before=$(files_of "$one")
	hold || return
	on carol "setsid srun -J lab-two -n1 -c2 --mem=200 sh -c 'exec /job/spin 972' > ~/lab-srun 2>&1 < /dev/null &"
	ok "a second job runs $how" wait_for 60 runs spin 972
	two=$scope/job_$(number_of lab-two)
	ok "the job that was there is a unit $how" soon 20 has_unit "jobs/${one##*/}"
	ok "and the one that came is $how" soon 20 has_unit "jobs/${two##*/}"
	ok "its process counts for it $how" is "$(told_unit "$(pid_of spin 972)")" "jobs/${two##*/}"
	ok "the job with two CPUs is entitled to twice as much $how" soon 20 has_twice "jobs/${one##*/}" "jobs/${two##*/}"
	ok "a job is held in its group $how" soon 20 is_held "$one"
	ok "Slurm's bound is as it was $how" is "$(cat "$CGROUPS/$one/memory.max")" "$(echo "$before" | sed -n '/memory.max/{n;p}')"
	scancel -n lab-two
	ok "scancel ends a job's processes $how" soon 20 gone spin 972
	ok "its group is gone $how" soon 20 group_gone "${two##*job_}"
	ok "Slurm knows how it ended $how" soon 40 ended_as "${two##*job_}" CANCELLED
	ok "ten seconds later its unit is gone $how" soon 30 has_no_unit "jobs/${two##*/}"
	ok "its CPU time stays in the parent unit, in ns $how" at_least "$(figure_of jobs used_ns)" 1000000000
	podman image exists lab || podman import $image lab > podman.log 2>&1
	podman run -d --name lab-box --memory 100m -v /job:/job:ro lab /job/work touch box 20 0 > podman.log 2>&1
	ok "a container runs $how" wait_for 30 pgrep -x box || cat podman.log
	sleep 2
	case $(told_unit "$(pgrep -x box)") in containers/libpod-*) is_unit=yes ;; *) is_unit=$(told_unit "$(pgrep -x box)") ;; esac
	ok "it is a unit $how" is $is_unit yes
	podman rm -f -t 1 lab-box > /dev/null 2>&1
	release
	ok "afterwards all of the first job's group is as it was $how" is "$(files_of "$one")" "$before"
	ok "and the job runs $how" runs spin 971
	scancel -n lab-one
	ok "until it is ended $how" soon 20 gone spin 971
	systemctl stop slurmd slurmctld munge
	systemctl stop lab_slurmstepd.scope 2> /dev/null
	contract=/job/contracts/two-groups-of-users.toml
}

each_way slurm
each_way containers
each_way jobs
