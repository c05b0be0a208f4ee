//! Deadlock detection at the end of a run: which tasks can never continue.
//!
//! Problem: a run whose processes wait for each other in a cycle lasts to its horizon, and looks as if it had
//! only been too short.
//!
//! Algorithm: a task *can continue*
//! - if it computes, sleeps, or waits for a disk or for memory;
//! - if it waits for a lock, and all holders of that lock can continue;
//! - if it waits for children, and one of them can continue;
//! - if it waits at a barrier, and a sibling that has not reached the barrier can continue, or has not been
//!   started yet.
//!
//! The set of these tasks is grown until it no longer changes. All other live tasks are stuck.
//!
//! Properties: a task that another task could still wake is not reported as stuck. Nor is a task that waits
//! at a barrier for a sibling that runs for ever without reaching the barrier. Cost: a pass over all tasks
//! for each link of the longest chain of waits.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_dispatch::TaskId;

use super::task::{Task, TaskState};
use super::{Engine, NONE};
use crate::outcome::Stuck;
use crate::scenario::Op;

impl Engine<'_> {
    /// The jobs with stuck tasks: how many, since when, and what they wait for.
    pub(super) fn stuck(&self) -> Vec<Stuck> {
        let can_continue = self.find_continuing();
        let mut by_job: BTreeMap<u32, Stuck> = BTreeMap::new();
        let stuck = self.tasks.iter().zip(0..).zip(&can_continue).filter(|(_, continues)| !**continues);
        for ((task, id), _) in stuck.filter(|((task, _), _)| task.state != TaskState::Ended) {
            let (number, workload) = (self.job_of(task), &self.scenario.workload);
            let of_job = by_job.entry(number).or_insert_with(|| Stuck {
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
        by_job.into_values().collect()
    }

    /// By task: whether it can continue. Ended tasks count as not continuing.
    fn find_continuing(&self) -> Vec<bool> {
        let waits_for_tasks = |task: &Task| {
            matches!(
                self.wait_of(task),
                TaskState::Lock | TaskState::Barrier | TaskState::Children | TaskState::Ended
            )
        };
        let mut continues: Vec<bool> = self.tasks.iter().map(|task| !waits_for_tasks(task)).collect();
        loop {
            let families = Families::of(self, &continues);
            let can_be_woken = |task: &Task, id| match self.wait_of(task) {
                TaskState::Lock => {
                    let lock = self.lock_waited_for(id).map(|lock| &self.locks[lock as usize]);
                    // `None`: the task holds the lock already, and waits for the lock's cache line, which
                    // arrives by itself.
                    lock.is_none_or(|lock| lock.holders().all(|holder| continues[holder as usize]))
                }
                TaskState::Children => families.parents.contains(&id),
                TaskState::Barrier if task.parent == NONE => families.jobs.contains(&self.job_of(task)),
                TaskState::Barrier => families.parents.contains(&task.parent),
                _ => false,
            };
            let all = self.tasks.iter().zip(0..).zip(&continues);
            let added: Vec<TaskId> = all
                .filter(|((task, id), continues)| !**continues && can_be_woken(task, *id))
                .map(|((_, id), _)| id)
                .collect();
            if added.is_empty() {
                return continues;
            }
            for id in added {
                continues[id as usize] = true;
            }
        }
    }

    /// A task's state, with spinning counted as the wait that it is: for a lock or at a barrier.
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

/// The groups of siblings in which some task can continue or has not been started yet.
struct Families {
    /// The groups of children, by their parent.
    parents: BTreeSet<TaskId>,
    /// The groups of copies of one job.
    jobs: BTreeSet<u32>,
}

impl Families {
    fn of(engine: &Engine<'_>, can_continue: &[bool]) -> Families {
        let all_jobs = engine.scenario.workload.jobs.iter().zip(&engine.arrived).zip(0..);
        let to_come = all_jobs.filter(|((job, arrived), _)| **arrived < job.count).map(|(_, number)| number);
        let mut families = Families { parents: BTreeSet::new(), jobs: to_come.collect() };
        let tasks = engine.tasks.iter().zip(0..).zip(can_continue);
        for ((task, id), _) in tasks.filter(|(_, continues)| **continues) {
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
