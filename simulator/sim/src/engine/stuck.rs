//! Tasks that wait for ever: processes that wait for each other when a run ends.
//!
//! Problem: a run whose processes wait for each other in a circle goes on to its horizon. It looks as if it had only
//! been too short.
//!
//! Algorithm: a task goes on
//! - if it computes, sleeps, or waits for a disk or for memory;
//! - if it waits for a lock, and all holders of that lock go on;
//! - if it waits for children, and one of them goes on;
//! - if it waits at a barrier, and a sibling that is not there yet goes on, or more siblings are to come.
//!
//! A task that no such chain reaches waits for ever.
//!
//! Properties: no task is called stuck that another could still wake. A task that waits at a barrier for a sibling
//! that runs for ever without coming is not called stuck. Cost: a pass over all tasks for each link of the longest
//! chain of waits.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_dispatch::TaskId;

use super::task::{Task, TaskState};
use super::{Engine, NONE};
use crate::outcome::Stuck;
use crate::scenario::Op;

impl Engine<'_> {
    /// By job, whose processes wait for ever.
    pub(super) fn stuck(&self) -> Vec<Stuck> {
        let goes_on = self.who_goes_on();
        let mut found: BTreeMap<u32, Stuck> = BTreeMap::new();
        let stuck = self.tasks.iter().zip(0..).zip(&goes_on).filter(|(_, goes_on)| !**goes_on);
        for ((task, id), _) in stuck.filter(|((task, _), _)| task.state != TaskState::Ended) {
            let (number, workload) = (self.job_of(task), &self.scenario.workload);
            let of_job = found.entry(number).or_insert_with(|| Stuck {
                job: workload.jobs[number as usize].name.clone(),
                since_ns: task.since,
                for_locks: 0,
                locks: Vec::new(),
                at_barriers: 0,
                for_children: 0,
            });
            of_job.since_ns = of_job.since_ns.min(task.since);
            match self.lock_waited_for(id).map(|lock| &workload.locks[lock as usize].name) {
                Some(lock) => {
                    of_job.for_locks += 1;
                    if !of_job.locks.contains(lock) {
                        of_job.locks.push(lock.clone());
                    }
                }
                None if self.wait_of(task) == TaskState::Barrier => of_job.at_barriers += 1,
                None => of_job.for_children += 1,
            }
        }
        found.into_values().collect()
    }

    fn who_goes_on(&self) -> Vec<bool> {
        let waits = |task: &Task| {
            matches!(
                self.wait_of(task),
                TaskState::Lock | TaskState::Barrier | TaskState::Children | TaskState::Ended
            )
        };
        let mut goes_on: Vec<bool> = self.tasks.iter().map(|task| !waits(task)).collect();
        loop {
            let families = Families::of(self, &goes_on);
            let woken = |task: &Task, id| match self.wait_of(task) {
                TaskState::Lock => {
                    let lock = self.lock_waited_for(id).map(|lock| &self.locks[lock as usize]);
                    // One that has it waits for its line at most.
                    lock.is_none_or(|lock| lock.holders().all(|holder| goes_on[holder as usize]))
                }
                TaskState::Children => families.parents.contains(&id),
                TaskState::Barrier if task.parent == NONE => families.jobs.contains(&self.job_of(task)),
                TaskState::Barrier => families.parents.contains(&task.parent),
                _ => false,
            };
            let all = self.tasks.iter().zip(0..).zip(&goes_on);
            let found: Vec<TaskId> = all
                .filter(|((task, id), goes_on)| !**goes_on && woken(task, *id))
                .map(|((_, id), _)| id)
                .collect();
            if found.is_empty() {
                return goes_on;
            }
            for id in found {
                goes_on[id as usize] = true;
            }
        }
    }

    /// What a task waits for; a task that spins waits as well.
    fn wait_of(&self, task: &Task) -> TaskState {
        if task.state != TaskState::Runnable || !task.spins {
            return task.state;
        }
        let ops = &self.scenario.workload.programs[task.program as usize].ops;
        let for_lock = matches!(ops.get(task.pc as usize), Some(Op::Acquire { .. }));
        if for_lock { TaskState::Lock } else { TaskState::Barrier }
    }

    fn job_of(&self, task: &Task) -> u32 {
        self.instances[task.instance as usize].job
    }
}

/// Where a task goes on, or is still to come: among the children of these, and the copies of these jobs.
struct Families {
    parents: BTreeSet<TaskId>,
    jobs: BTreeSet<u32>,
}

impl Families {
    fn of(engine: &Engine<'_>, goes_on: &[bool]) -> Families {
        let all_jobs = engine.scenario.workload.jobs.iter().zip(&engine.arrived).zip(0..);
        let to_come = all_jobs.filter(|((job, arrived), _)| **arrived < job.count).map(|(_, number)| number);
        let mut families = Families { parents: BTreeSet::new(), jobs: to_come.collect() };
        for ((task, id), _) in engine.tasks.iter().zip(0..).zip(goes_on).filter(|(_, goes_on)| **goes_on) {
            if task.parent == NONE {
                families.jobs.insert(engine.job_of(task));
            } else {
                families.parents.insert(task.parent);
            }
            if task.to_start > 0 {
                families.parents.insert(id);
            }
        }
        families
    }
}
