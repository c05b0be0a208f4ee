//! What the scheduler is told of gangs: who is of which, and which of them are shut.
//!
//! Algorithm: each job has a number in the scheduler's table as long as it has processes. A process is told when it is first
//! seen in its job, when it has left, and again when its job is shut. The processes that it starts belong to its gang without
//! being told (`gates.h`), so none runs past a gate before the next look finds it.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_dispatch::GANGS_MAX;
use commonhold_policy::JobId;

use crate::observe::process::ProcessKey;

/// A process of a job, and whether the job is shut.
pub(crate) type Member = (ProcessKey, JobId, bool);

/// What the scheduler was told.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    numbers: BTreeMap<JobId, u32>,
    of: BTreeMap<ProcessKey, u32>,
    shut: BTreeSet<u32>,
}

/// What it is to be told: first who is of which gang, then which gangs are shut (true) or open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) joins: Vec<(u32, Option<u32>)>,
    pub(super) gates: Vec<(u32, bool)>,
}

impl Gangs {
    /// Follows who is in which job. Jobs beyond the scheduler's table are left out: [`fits`] says that before.
    pub(super) fn follow(&mut self, members: &[Member]) -> Told {
        let jobs: BTreeMap<JobId, bool> = members.iter().map(|(_, job, shut)| (*job, *shut)).collect();
        let mut told = Told::default();
        let gone: Vec<u32> = self
            .numbers
            .iter()
            .filter(|(job, _)| !jobs.contains_key(job))
            .map(|(_, number)| *number)
            .collect();
        self.numbers.retain(|job, _| jobs.contains_key(job));
        let used: BTreeSet<u32> = self.numbers.values().copied().collect();
        // A number that has just become free is used last: who left its gang has been told by then.
        let fresh = (0..GANGS_MAX).filter(|number| !used.contains(number) && !gone.contains(number));
        let mut free = fresh.chain(gone.iter().copied());
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
        let of: BTreeMap<ProcessKey, u32> =
            members.iter().filter_map(|(key, job, _)| Some((*key, *self.numbers.get(job)?))).collect();
        let left = self.of.keys().filter(|key| !of.contains_key(key)).map(|key| (key.pid, None));
        told.joins.extend(left);
        let is_new = |number: &u32| shut.contains(number) && !self.shut.contains(number);
        let told_now = of.iter().filter(|(key, number)| self.of.get(key) != Some(number) || is_new(number));
        told.joins.extend(told_now.map(|(key, number)| (key.pid, Some(*number))));
        let (closed, opened) = (shut.difference(&self.shut), self.shut.difference(&shut));
        told.gates.extend(closed.map(|number| (*number, true)));
        told.gates.extend(opened.map(|number| (*number, false)));
        (self.of, self.shut) = (of, shut);
        told
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
    fn processes_are_told_once_and_again_when_their_gate_is_shut() {
        let mut gangs = Gangs::default();
        let open = [(key(10), JobId(1), false), (key(11), JobId(1), false), (key(20), JobId(2), false)];
        let told = gangs.follow(&open);
        assert_eq!(told.joins, [(10, Some(0)), (11, Some(0)), (20, Some(1))]);
        assert_eq!(told.gates, []);
        assert_eq!(gangs.follow(&open), Told::default());
        let mut shut = open;
        shut[2].2 = true;
        let told = gangs.follow(&shut);
        assert_eq!((told.joins, told.gates), (vec![(20, Some(1))], vec![(1, true)]));
        assert!(gangs.any_shut());
        assert_eq!(gangs.follow(&shut), Told::default());
    }

    #[test]
    fn who_leaves_is_let_go_and_a_gang_that_ended_is_opened() {
        let mut gangs = Gangs::default();
        gangs.follow(&[(key(10), JobId(1), true), (key(20), JobId(2), false)]);
        let told = gangs.follow(&[(key(20), JobId(2), false), (key(30), JobId(3), false)]);
        // Number 0 has just become free: there are others.
        assert_eq!((told.joins, told.gates), (vec![(10, None), (30, Some(2))], vec![(0, false)]));
        assert!(!gangs.any_shut());
        let told = gangs.follow(&[]);
        assert_eq!(told.joins, [(20, None), (30, None)]);
    }

    #[test]
    fn more_jobs_than_the_table_has_do_not_fit() {
        let jobs = |count| -> Vec<Member> { (1..=count).map(|job| (key(job), JobId(job), false)).collect() };
        assert!(fits(&jobs(GANGS_MAX)) && !fits(&jobs(GANGS_MAX + 1)));
        let mut gangs = Gangs::default();
        let told = gangs.follow(&jobs(GANGS_MAX + 1));
        assert_eq!(told.joins.len(), GANGS_MAX as usize);
    }
}
