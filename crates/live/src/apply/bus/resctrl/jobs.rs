//! Jobs as groups of the kernel's `resctrl`, if gangs are chosen by their occupancy of the last-level caches.
//!
//! Algorithm: each job has a monitoring group inside its unit's resource group: inside the default group if the unit has a
//! monitoring group itself, else inside the unit's own. The threads of its processes are moved there. At each scan, the group's
//! occupancy is integrated over the time since the last scan.
//!
//! Properties: a job's occupancy, in byte-seconds, never decreases. Its unit's memory traffic continues to be counted: see
//! [`super::Bus`]. A group is in the journal before it is made, and is removed with its job. Each error is reported once.
//!
//! Limits: units and jobs share the processor's groups; jobs that start when none is left are not measured. A reused group may
//! start with cache lines of its former owner. Each read interrupts a CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, GangsShare, UnitId};
use commonhold_policy::{JobFacts, JobId, SharedUse, Time};

use super::{Bus, OURS, STRAY_NS, bring, make, outermost};
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
    /// Each process's job by its group, to this program's knowledge.
    placed: BTreeMap<ProcessKey, JobId>,
    /// Processes that cannot be moved to a group: reported once.
    refused: BTreeSet<ProcessKey>,
    is_full: bool,
    placed_at: Time,
}

#[derive(Debug)]
struct JobGroup {
    /// The job's outermost unit.
    unit: UnitId,
    dir: PathBuf,
    /// When it was last read.
    at: Option<Time>,
    /// In byte-nanoseconds.
    held: u128,
    last: Option<SharedUse>,
}

impl JobGroup {
    fn read(&mut self, now: Time) {
        let since = self.at.replace(now).map_or(0, |at| now.saturating_sub(at));
        if let Some(bytes) = occupancy(&self.dir) {
            self.held += u128::from(bytes) * u128::from(since);
            let amount = u64::try_from(self.held / 1_000_000_000).unwrap_or(u64::MAX);
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

    /// Removes the groups for which `stays` is false; returns their directories.
    pub(super) fn keep(&mut self, stays: impl Fn(JobId, UnitId, &Path) -> bool) -> Vec<PathBuf> {
        let mut gone = Vec::new();
        self.groups.retain(|job, group| {
            let stays = stays(*job, group.unit, &group.dir);
            if !stays {
                // If this fails, the caretaker removes it at the end.
                let _ = host::remove_dir(&group.dir);
                gone.push(group.dir.clone());
            }
            stays
        });
        self.placed.retain(|_, job| self.groups.contains_key(job));
        // A removed group makes room for another.
        self.is_full &= gone.is_empty();
        gone
    }

    /// Forgets the processes that are not in the group where they should be.
    fn find_missing(&mut self) {
        for (job, group) in &self.groups {
            let Ok(tasks) = host::read_to_string(&group.dir.join("tasks")) else { continue };
            let inside: BTreeSet<u32> = tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
            self.placed.retain(|key, placed| placed != job || inside.contains(&key.pid));
        }
    }
}

impl Bus {
    /// Has jobs in groups of their own where gangs are chosen by what they hold of the caches. `unit_of` has the unit of each
    /// job, `members` the job of each process.
    pub(crate) fn settle_jobs(
        &mut self,
        now: Time,
        contract: &Contract,
        unit_of: BTreeMap<JobId, UnitId>,
        members: &BTreeMap<ProcessKey, JobId>,
        (roster, journal): (&mut Roster, &mut Journal),
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let asked = has_gangs(contract) && contract.machine.gangs.share == GangsShare::Cache;
        let Some(place) = self.place.clone().filter(|place| asked && place.occupancy) else {
            self.leave_jobs(|_, _, _| false);
            return problems;
        };
        let unit_of: BTreeMap<JobId, UnitId> =
            unit_of.into_iter().filter_map(|(job, unit)| Some((job, outermost(contract, unit)?))).collect();
        self.leave_jobs(|job, unit, dir| unit_of.get(&job) == Some(&unit) && host::exists(dir));
        for (job, unit) in unit_of {
            if self.jobs.groups.contains_key(&job) || self.jobs.is_full {
                continue;
            }
            let within = self.groups.get(&unit).filter(|group| group.controls);
            let within = within.map_or(place.mount.point.as_path(), |group| group.dir.as_path());
            let dir = within.join("mon_groups").join(format!("{OURS}job-{}", job.0));
            match make(&dir, journal) {
                Ok(()) => {
                    let group = JobGroup { unit, dir, at: None, held: 0, last: None };
                    self.jobs.groups.insert(job, group);
                }
                Err(LiveError::File { path, source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY)) =>
                {
                    self.jobs.is_full = true;
                    let all =
                        group_count(&place.mount.point).map_or(String::new(), |all| format!(" of {all}"));
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
        if now >= self.jobs.placed_at.saturating_add(STRAY_NS) {
            self.jobs.placed_at = now;
            self.jobs.find_missing();
        }
        self.place_in_jobs(members, roster, &mut problems);
        problems
    }

    /// Puts what jobs hold of the caches into their facts, where they have groups for it.
    pub(crate) fn tell_jobs(&mut self, now: Time, jobs: &mut [JobFacts]) {
        for facts in jobs {
            if let Some(group) = self.jobs.groups.get_mut(&facts.job) {
                group.read(now);
                facts.shared = group.last;
            }
        }
    }

    fn place_in_jobs(
        &mut self,
        members: &BTreeMap<ProcessKey, JobId>,
        roster: &mut Roster,
        problems: &mut Vec<LiveError>,
    ) {
        self.jobs.placed.retain(|key, _| members.contains_key(key));
        self.jobs.refused.retain(|key| members.contains_key(key));
        for (key, job) in members {
            // A process in another program's group stays there.
            let refused = self.refused.contains(key) || self.jobs.refused.contains(key);
            if refused || self.jobs.placed.get(key) == Some(job) {
                continue;
            }
            let Some(group) = self.jobs.groups.get(job) else { continue };
            match bring(*key, &group.dir, roster.procfs()) {
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

    /// Removes groups of jobs. Their tasks fall back to the enclosing group, which may not be the unit's, so the processes are
    /// moved again.
    pub(super) fn leave_jobs(&mut self, stays: impl Fn(JobId, UnitId, &Path) -> bool) {
        let before: Vec<ProcessKey> = self.jobs.placed.keys().copied().collect();
        for dir in self.jobs.keep(stays) {
            self.groups.values_mut().for_each(|group| group.meter.forget(&dir));
        }
        for key in before.into_iter().filter(|key| !self.jobs.has(*key)) {
            self.placed.remove(&key);
            self.placed_at = 0;
        }
    }
}
