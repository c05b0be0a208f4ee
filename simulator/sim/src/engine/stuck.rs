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
//!   started yet;
//! - if it waits for an event, or at an event's barrier, and a task that can continue, or has not been
//!   started yet, has a step ahead that signals the event or comes to the barrier.
//!
//! A step is ahead if the program may still come to it: it follows, or stands in a loop that encloses a step
//! that follows, or in a program that such a step runs.
//!
//! The set of these tasks is grown until it no longer changes. All other live tasks are stuck.
//!
//! Properties: a task that another task could still wake is not reported as stuck. Nor is a task that waits
//! at a barrier for a sibling that runs for ever without reaching the barrier, or for an event whose signal
//! stands after a loop that never ends. Cost: a pass over all tasks
//! for each link of the longest chain of waits.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use commonhold_dispatch::TaskId;

use super::task::{Task, TaskState};
use super::{Engine, NONE};
use crate::outcome::Stuck;
use crate::scenario::{Op, Program};

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
                for_events: 0,
                events: Vec::new(),
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
                None if task.state == TaskState::Event => of_job.for_events += 1,
                None => of_job.for_children += 1,
            }
            if let Some(awaited) = self.awaited(task) {
                let event = &workload.events[usize::from(awaited.event)].name;
                if !of_job.events.contains(event) {
                    of_job.events.push(event.clone());
                }
            }
        }
        by_job.into_values().collect()
    }

    /// By task: whether it can continue. Ended tasks count as not continuing.
    fn find_continuing(&self) -> Vec<bool> {
        let waits_for_tasks = |task: &Task| {
            matches!(
                self.wait_of(task),
                TaskState::Lock
                    | TaskState::Barrier
                    | TaskState::Event
                    | TaskState::Children
                    | TaskState::Ended
            )
        };
        let mut continues: Vec<bool> = self.tasks.iter().map(|task| !waits_for_tasks(task)).collect();
        let mut ahead = Ahead { programs: &self.scenario.workload.programs, known: BTreeMap::new() };
        loop {
            let to_come = self.events_ahead(&continues, &mut ahead);
            let families = Families::of(self, &continues);
            let by_signal = |task: &Task| self.awaited(task).map(|awaited| to_come.contains(&awaited));
            let can_be_woken = |task: &Task, id| match self.wait_of(task) {
                TaskState::Lock => {
                    let lock = self.lock_waited_for(id).map(|lock| &self.locks[lock as usize]);
                    // `None`: the task holds the lock already, and waits for the lock's cache line, which
                    // arrives by itself.
                    lock.is_none_or(|lock| lock.holders().all(|holder| continues[holder as usize]))
                }
                TaskState::Children => families.parents.contains(&id),
                TaskState::Event => by_signal(task) == Some(true),
                TaskState::Barrier if by_signal(task).is_some() => by_signal(task) == Some(true),
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

    /// The signals and barriers at events that stand ahead of tasks that can continue, and of jobs' copies
    /// that have not been started yet.
    fn events_ahead(&self, can_continue: &[bool], ahead: &mut Ahead<'_>) -> BTreeSet<Awaited> {
        let mut found = BTreeSet::new();
        if self.signals.is_empty() {
            return found;
        }
        for (task, _) in self.tasks.iter().zip(can_continue).filter(|(_, continues)| **continues) {
            found.extend(ahead.of(task.program, task.pc).iter());
        }
        for (job, arrived) in self.scenario.workload.jobs.iter().zip(&self.arrived) {
            if *arrived < job.count {
                found.extend(ahead.of(job.program, 0).iter());
            }
        }
        found
    }

    /// The event for which a task waits, or at whose barrier.
    fn awaited(&self, task: &Task) -> Option<Awaited> {
        let ops = &self.scenario.workload.programs[task.program as usize].ops;
        let op = ops.get(task.pc as usize)?;
        match (self.wait_of(task), *op) {
            (TaskState::Event, Op::Wait { event, .. }) => Some(Awaited { event, barrier: false }),
            (TaskState::Barrier, Op::Barrier { event: Some(event), .. }) => {
                Some(Awaited { event, barrier: true })
            }
            _ => None,
        }
    }

    /// A task's state, with spinning counted as the wait that it is: for a lock or at a barrier.
    fn wait_of(&self, task: &Task) -> TaskState {
        if task.state != TaskState::Runnable || !task.spins || task.busy_until.is_some() {
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

/// What a task waits for: a signal of an event, or others at the event's barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Awaited {
    event: u16,
    barrier: bool,
}

/// By program and step: what stands ahead of a task there.
struct Ahead<'a> {
    programs: &'a [Program],
    known: BTreeMap<(u32, u32), Rc<BTreeSet<Awaited>>>,
}

impl Ahead<'_> {
    /// The signals, and the barriers at events, to which a task at step `pc` may still come.
    fn of(&mut self, program: u32, pc: u32) -> Rc<BTreeSet<Awaited>> {
        if let Some(known) = self.known.get(&(program, pc)) {
            return Rc::clone(known);
        }
        let ops = &self.programs[program as usize].ops;
        // Later loops that jump back to before the step enclose it. The outermost of them is the last.
        let encloses = |op: &Op| match op {
            Op::Again { to, .. } if *to < pc => Some(*to),
            _ => None,
        };
        let from = ops.iter().skip(pc as usize).filter_map(encloses).min().unwrap_or(pc);
        let mut found = BTreeSet::new();
        for op in ops.iter().skip(from as usize) {
            let awaited = match *op {
                Op::Signal { event, .. } => Awaited { event, barrier: false },
                Op::Barrier { event: Some(event), .. } => Awaited { event, barrier: true },
                Op::Run { program, .. } => {
                    found.extend(self.of(program, 0).iter());
                    continue;
                }
                _ => continue,
            };
            found.insert(awaited);
        }
        let found = Rc::new(found);
        self.known.insert((program, pc), Rc::clone(&found));
        found
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
