//! Gangs in the scheduler's tables: the processes of each gang, and which gangs are shut.
//!
//! Algorithm: each job has a number in the scheduler's table while the job has processes. A process is sent
//! to the scheduler when it is first seen in its job, when it has left the job, and again when the job is
//! shut. A process's children inherit its gang (`gates.h`), so a child of a shut gang does not run until the
//! daemon's next iteration finds the child.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_dispatch::GANGS_MAX;
use commonhold_policy::JobId;

use crate::observe::process::ProcessKey;

/// A process of a job, and whether the job is shut.
pub(crate) type Member = (ProcessKey, JobId, bool);

/// A copy of the scheduler's tables of gangs.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    /// The number of each job's gang.
    numbers: BTreeMap<JobId, u32>,
    gang_of: BTreeMap<ProcessKey, u32>,
    /// The gangs that are shut.
    shut: BTreeSet<u32>,
}

/// An update of the scheduler's tables. `joins` must be sent before `gates`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GangUpdate {
    /// Processes, each with its new gang; `None` if the process left its gang.
    pub(super) joins: Vec<(u32, Option<u32>)>,
    /// Gangs to shut (true) or to open.
    pub(super) gates: Vec<(u32, bool)>,
}

impl Gangs {
    /// Adopts the present processes of jobs, and returns the update for the scheduler. Call this only if
    /// [`fits`] is true: if the scheduler's table has no room for all jobs, some jobs are left out.
    pub(super) fn follow(&mut self, members: &[Member]) -> GangUpdate {
        let jobs: BTreeMap<JobId, bool> = members.iter().map(|(_, job, shut)| (*job, *shut)).collect();
        let mut update = GangUpdate::default();
        let ended: Vec<u32> = self
            .numbers
            .iter()
            .filter(|(job, _)| !jobs.contains_key(job))
            .map(|(_, number)| *number)
            .collect();
        self.numbers.retain(|job, _| jobs.contains_key(job));
        let used: BTreeSet<u32> = self.numbers.values().copied().collect();
        // A number that has just become free is used last, because the scheduler may still have its former
        // processes.
        let unused = (0..GANGS_MAX).filter(|number| !used.contains(number) && !ended.contains(number));
        let mut free = unused.chain(ended.iter().copied());
        for job in jobs.keys() {
            if !self.numbers.contains_key(job)
                && let Some(number) = free.next()
            {
                self.numbers.insert(*job, number);
            }
        }
        let shut: BTreeSet<u32> = jobs
            .iter()
            .filter(|(_, shut)| **shut)
            .filter_map(|(job, _)| self.numbers.get(job).copied())
            .collect();
        let gang_of: BTreeMap<ProcessKey, u32> =
            members.iter().filter_map(|(key, job, _)| Some((*key, *self.numbers.get(job)?))).collect();
        let left = self.gang_of.keys().filter(|key| !gang_of.contains_key(key)).map(|key| (key.pid, None));
        update.joins.extend(left);
        let is_newly_shut = |number: &u32| shut.contains(number) && !self.shut.contains(number);
        let to_send = gang_of
            .iter()
            .filter(|(key, number)| self.gang_of.get(key) != Some(number) || is_newly_shut(number));
        update.joins.extend(to_send.map(|(key, number)| (key.pid, Some(*number))));
        let (closed, opened) = (shut.difference(&self.shut), self.shut.difference(&shut));
        update.gates.extend(closed.map(|number| (*number, true)));
        update.gates.extend(opened.map(|number| (*number, false)));
        (self.gang_of, self.shut) = (gang_of, shut);
        update
    }

    /// Whether any gang is shut.
    pub(super) fn any_shut(&self) -> bool {
        !self.shut.is_empty()
    }
}

/// Whether the scheduler's table has room for all jobs.
pub(super) fn fits(members: &[Member]) -> bool {
    let jobs: BTreeSet<JobId> = members.iter().map(|(_, job, _)| *job).collect();
    jobs.len() <= GANGS_MAX as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: 1 }
    }

    #[test]
    fn processes_are_sent_once_and_again_when_their_gate_is_shut() {
        let mut gangs = Gangs::default();
        let open = [(key(10), JobId(1), false), (key(11), JobId(1), false), (key(20), JobId(2), false)];
        let update = gangs.follow(&open);
        assert_eq!(update.joins, [(10, Some(0)), (11, Some(0)), (20, Some(1))]);
        assert_eq!(update.gates, []);
        assert_eq!(gangs.follow(&open), GangUpdate::default());
        let mut shut = open;
        shut[2].2 = true;
        let update = gangs.follow(&shut);
        assert_eq!((update.joins, update.gates), (vec![(20, Some(1))], vec![(1, true)]));
        assert!(gangs.any_shut());
        assert_eq!(gangs.follow(&shut), GangUpdate::default());
    }

    #[test]
    fn a_process_that_leaves_is_released_and_a_gang_that_ended_is_opened() {
        let mut gangs = Gangs::default();
        gangs.follow(&[(key(10), JobId(1), true), (key(20), JobId(2), false)]);
        let update = gangs.follow(&[(key(20), JobId(2), false), (key(30), JobId(3), false)]);
        // Number 0 has just become free, so another one is used.
        assert_eq!((update.joins, update.gates), (vec![(10, None), (30, Some(2))], vec![(0, false)]));
        assert!(!gangs.any_shut());
        let update = gangs.follow(&[]);
        assert_eq!(update.joins, [(20, None), (30, None)]);
    }

    #[test]
    fn more_jobs_than_the_table_has_do_not_fit() {
        let jobs = |count| -> Vec<Member> { (1..=count).map(|job| (key(job), JobId(job), false)).collect() };
        assert!(fits(&jobs(GANGS_MAX)) && !fits(&jobs(GANGS_MAX + 1)));
        let mut gangs = Gangs::default();
        let update = gangs.follow(&jobs(GANGS_MAX + 1));
        assert_eq!(update.joins.len(), GANGS_MAX as usize);
    }
}
