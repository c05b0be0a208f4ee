//! Jobs as groups of the kernel's `resctrl`, if gangs are chosen by their occupancy of the last-level caches.
//!
//! Algorithm: each job has a monitoring group, to which the threads of its processes are moved. The group is
//! inside the unit's control group if the unit has one, else inside the default group. At each scan, the
//! group's occupancy is integrated over the time since the last scan.
//!
//! Properties: a job's occupancy, in byte-seconds, never decreases. The memory traffic of the job still
//! counts for its unit: see [`super::Bus`]. A group is in the journal before it is made, and is removed with
//! its job. Each error is reported once.
//!
//! Limits: units and jobs share the processor's groups; jobs that start when no group is left are not
//! measured. A reused group may start with cache lines of the job that had the group before. Each read
//! interrupts a CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, GangsShare, UnitId};
use commonhold_policy::{JobFacts, JobId, SharedUse, Time};

use super::{Bus, CHECK_NS, OURS, make_group, move_threads, outermost};
use crate::LiveError;
use crate::host;
use crate::observe::bus::resctrl::{group_count, occupancy};
use crate::observe::jobs::has_gangs;
use crate::observe::process::ProcessKey;
use crate::observe::roster::Roster;
use crate::undo::journal::Journal;

/// The groups of jobs.
#[derive(Debug, Default)]
pub(super) struct JobGroups {
    groups: BTreeMap<JobId, JobGroup>,
    /// The processes that were moved to a job's group, and to our knowledge are still there.
    placed: BTreeMap<ProcessKey, JobId>,
    /// Processes that could not be moved to a group. Each failure was reported, and the move is not tried
    /// again.
    refused: BTreeSet<ProcessKey>,
    /// Whether all groups of the processor are in use.
    is_full: bool,
    /// When groups were last checked for missing processes.
    checked_at: Time,
}

/// The group of a job.
#[derive(Debug)]
struct JobGroup {
    /// The job's outermost unit.
    unit: UnitId,
    dir: PathBuf,
    /// When the occupancy was last read.
    read_at: Option<Time>,
    /// The occupancy integrated over time so far, in byte-nanoseconds.
    byte_ns: u128,
    last: Option<SharedUse>,
}

impl JobGroup {
    /// Reads the occupancy, and adds it times the time since the last reading: the occupancy is assumed not
    /// to have changed in that time.
    fn read(&mut self, now: Time) {
        let elapsed_ns = self.read_at.replace(now).map_or(0, |at| now.saturating_sub(at));
        if let Some(bytes) = occupancy(&self.dir) {
            self.byte_ns += u128::from(bytes) * u128::from(elapsed_ns);
            let amount = u64::try_from(self.byte_ns / 1_000_000_000).unwrap_or(u64::MAX);
            self.last = Some(SharedUse { at: now, amount });
        }
    }
}

impl JobGroups {
    /// The directories of the groups of a unit's jobs.
    pub(super) fn dirs(&self, unit: UnitId) -> impl Iterator<Item = &Path> {
        self.groups.values().filter(move |group| group.unit == unit).map(|group| group.dir.as_path())
    }

    /// Whether a process is in its job's group.
    pub(super) fn has(&self, key: ProcessKey) -> bool {
        self.placed.contains_key(&key)
    }

    /// Removes the groups for which `stays` returns false, and returns their directories. `stays` is called
    /// with each group's job, unit and directory.
    pub(super) fn remove_unless(&mut self, stays: impl Fn(JobId, UnitId, &Path) -> bool) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        self.groups.retain(|job, group| {
            let stays = stays(*job, group.unit, &group.dir);
            if !stays {
                // If this fails, the caretaker removes the directory at the end.
                let _ = host::remove_dir(&group.dir);
                removed.push(group.dir.clone());
            }
            stays
        });
        self.placed.retain(|_, job| self.groups.contains_key(job));
        // A removed group can be used again.
        self.is_full &= removed.is_empty();
        removed
    }

    /// Removes processes from `placed` that are not in their job's group any more.
    fn forget_missing(&mut self) {
        for (job, group) in &self.groups {
            let Ok(tasks) = host::read_to_string(&group.dir.join("tasks")) else { continue };
            let inside: BTreeSet<u32> = tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
            self.placed.retain(|key, placed| placed != job || inside.contains(&key.pid));
        }
    }
}

impl Bus {
    /// If gangs are chosen by cache occupancy, makes a group for each job, and moves the job's processes into
    /// that group. Otherwise, removes such groups. `unit_of` has the unit of each job, `members` the job of
    /// each process. Returns the errors.
    pub(crate) fn settle_jobs(
        &mut self,
        now: Time,
        contract: &Contract,
        unit_of: BTreeMap<JobId, UnitId>,
        members: &BTreeMap<ProcessKey, JobId>,
        (roster, journal): (&mut Roster, &mut Journal),
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let is_wanted = has_gangs(contract) && contract.machine.gangs.share == GangsShare::Cache;
        let usable = self.filesystem.clone().filter(|filesystem| is_wanted && filesystem.occupancy);
        let Some(filesystem) = usable else {
            self.remove_job_groups(|_, _, _| false);
            return problems;
        };
        let unit_of: BTreeMap<JobId, UnitId> =
            unit_of.into_iter().filter_map(|(job, unit)| Some((job, outermost(contract, unit)?))).collect();
        self.remove_job_groups(|job, unit, dir| unit_of.get(&job) == Some(&unit) && host::exists(dir));
        for (job, unit) in unit_of {
            if self.jobs.groups.contains_key(&job) || self.jobs.is_full {
                continue;
            }
            let control_group = self.groups.get(&unit).filter(|group| group.is_control_group);
            let parent = control_group.map_or(filesystem.mount.point.as_path(), |group| group.dir.as_path());
            let dir = parent.join("mon_groups").join(format!("{OURS}job-{}", job.0));
            match make_group(&dir, journal) {
                Ok(()) => {
                    let group = JobGroup { unit, dir, read_at: None, byte_ns: 0, last: None };
                    self.jobs.groups.insert(job, group);
                }
                Err(LiveError::File { path, source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY)) =>
                {
                    self.jobs.is_full = true;
                    let all = group_count(&filesystem.mount.point)
                        .map_or(String::new(), |all| format!(" of {all}"));
                    let what = format!("measure the cache occupancy of job {}", job.0);
                    let remedy = format!(
                        "; the processor has no group left{all}: for it and later jobs, `first-rate` is assumed"
                    );
                    if !std::mem::replace(&mut self.has_reported_full, true) {
                        problems.push(LiveError::File { path, what, source, remedy });
                    }
                }
                Err(error) => problems.push(error),
            }
        }
        if now >= self.jobs.checked_at.saturating_add(CHECK_NS) {
            self.jobs.checked_at = now;
            self.jobs.forget_missing();
        }
        self.place_in_jobs(members, roster, &mut problems);
        problems
    }

    /// Reads the cache occupancy of each job that has a group, and puts it into the job's facts.
    pub(crate) fn tell_jobs(&mut self, now: Time, jobs: &mut [JobFacts]) {
        for facts in jobs {
            if let Some(group) = self.jobs.groups.get_mut(&facts.job) {
                group.read(now);
                facts.shared = group.last;
            }
        }
    }

    /// Moves processes to their jobs' groups.
    fn place_in_jobs(
        &mut self,
        members: &BTreeMap<ProcessKey, JobId>,
        roster: &mut Roster,
        problems: &mut Vec<LiveError>,
    ) {
        self.jobs.placed.retain(|key, _| members.contains_key(key));
        self.jobs.refused.retain(|key| members.contains_key(key));
        for (key, job) in members {
            // The refused include processes in another program's group, which must stay there.
            let refused = self.refused.contains(key) || self.jobs.refused.contains(key);
            if refused || self.jobs.placed.get(key) == Some(job) {
                continue;
            }
            let Some(group) = self.jobs.groups.get(job) else { continue };
            match move_threads(*key, &group.dir, roster.procfs()) {
                Ok(()) => {
                    self.jobs.placed.insert(*key, *job);
                }
                Err(error) => {
                    self.jobs.refused.insert(*key);
                    problems.push(error);
                }
            }
        }
    }

    /// Removes the groups of jobs for which `stays` returns false, called with job, unit and directory. The
    /// tasks of a removed group fall back to the enclosing group. That may not be the unit's group, so the
    /// processes are then moved to their unit's group again.
    pub(super) fn remove_job_groups(&mut self, stays: impl Fn(JobId, UnitId, &Path) -> bool) {
        let placed_before: Vec<ProcessKey> = self.jobs.placed.keys().copied().collect();
        for dir in self.jobs.remove_unless(stays) {
            self.groups.values_mut().for_each(|group| group.meter.forget(&dir));
        }
        for key in placed_before.into_iter().filter(|key| !self.jobs.has(*key)) {
            self.placed.remove(&key);
            self.checked_at = 0;
        }
    }
}
