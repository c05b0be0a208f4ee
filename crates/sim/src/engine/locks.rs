//! Locks that block the tasks that wait for them, and the units on whose CPUs their holders run meanwhile.
//!
//! Problem: a task that waits for a lock waits for the lock's holder to have a CPU. The holder's unit may have none
//! for it. So a lock would undo isolation.
//!
//! Terms: a task *runs for* a unit if it stands in that unit's queue and is charged to it; usually that is its own
//! unit. A lock that *inherits* lends its holders the CPUs of the tasks that wait for it.
//!
//! Algorithm: consider the tasks that wait for a holder's locks and do not run for the holder's own unit. The locks
//! are taken in the order in which the holder took them, each lock's queue from the front. The holder runs for the
//! unit that the first such task runs for. Without one, it runs for its own unit. When that changes for a task that
//! itself waits for such a lock, the holders of that lock are looked at anew, and so on.
//!
//! Properties: along a chain (A waits for B's lock, B for C's) all tasks run for A's unit. A release gives back what
//! was lent for that lock alone. A task that still holds a lock for which another waits goes on on the other's CPUs.
//! The algorithm also ends where tasks wait for each other in a circle: each is looked at once per change.
//!
//! Limits: of several units that wait one lends, and not all in turns. Locks are given first come, first served;
//! readers that stand one behind the other get them together.
//!
//! Source: seed 000, section 3.4 (inheritance of an SPU's resources by who holds a kernel lock); for chains Sha,
//! Rajkumar, Lehoczky 1990 (priority inheritance).

use std::collections::VecDeque;

use commonhold_dispatch::TaskId;

use super::Engine;
use super::program::Done;
use super::task::State;
use crate::Time;
use crate::scenario::Op;

/// A lock that blocks the tasks that wait for it.
#[derive(Debug, Default)]
pub(super) struct Lock {
    holders: Vec<TaskId>,
    reading: bool,
    /// The tasks that wait for it, and whether to read.
    queue: VecDeque<(TaskId, bool)>,
    pub(super) waits: u64,
    pub(super) waited_ns: Time,
}

impl Lock {
    /// Whether it can be given to a task: to a reader while others read, if no task waits for its turn before.
    fn is_free(&self, reads: bool) -> bool {
        self.holders.is_empty() || (self.reading && reads)
    }

    pub(super) fn holders(&self) -> &[TaskId] {
        &self.holders
    }
}

impl Engine<'_> {
    pub(super) fn acquire(&mut self, id: TaskId, number: u16, read: bool) -> Done {
        if self.tasks[id as usize].stage == 1 {
            return Done::Next; // it was handed over
        }
        let shared = read && self.scenario.workload.locks[number as usize].readers;
        let lock = &mut self.locks[number as usize];
        if lock.is_free(shared) && lock.queue.is_empty() {
            self.give(id, number, shared);
            return Done::Next;
        }
        self.tasks[id as usize].stage = 1;
        lock.queue.push_back((id, shared));
        lock.waits += 1;
        if self.inherits(number) {
            self.lend_to_holders(number);
        }
        Done::Wait(State::Lock)
    }

    pub(super) fn release(&mut self, id: TaskId, number: u16) {
        self.locks[number as usize].holders.retain(|holder| *holder != id);
        if self.inherits(number) {
            self.tasks[id as usize].held.retain(|held| *held != number);
        }
        while let Some((next, shared)) = self.locks[number as usize].queue.front().copied()
            && self.locks[number as usize].is_free(shared)
        {
            let lock = &mut self.locks[number as usize];
            lock.queue.pop_front();
            lock.waited_ns += self.now - self.tasks[next as usize].since;
            self.give(next, number, shared);
            self.wake(next);
        }
        if self.inherits(number) {
            self.lend_to(vec![id]);
            self.lend_to_holders(number);
        }
    }

    /// The run is over: a task that still waits has waited as long so far.
    pub(super) fn count_waits_for_locks_that_go_on(&mut self) {
        for lock in &mut self.locks {
            let waited = lock.queue.iter().map(|(id, _)| self.now - self.tasks[*id as usize].since);
            lock.waited_ns += waited.sum::<Time>();
        }
    }

    fn inherits(&self, number: u16) -> bool {
        self.scenario.workload.locks[number as usize].inherit
    }

    fn give(&mut self, id: TaskId, number: u16, reads: bool) {
        let lock = &mut self.locks[number as usize];
        lock.holders.push(id);
        lock.reading = reads;
        if self.inherits(number) {
            self.tasks[id as usize].held.push(number);
        }
    }

    fn lend_to_holders(&mut self, number: u16) {
        self.lend_to(self.locks[number as usize].holders.clone());
    }

    /// Looks at tasks anew, and at those that they wait for.
    fn lend_to(&mut self, mut tasks: Vec<TaskId>) {
        let mut at = 0;
        while let Some(id) = tasks.get(at).copied() {
            at += 1;
            let unit = self.inherited(id);
            if unit == self.tasks[id as usize].runs_for {
                continue;
            }
            self.run_for(id, unit);
            let holders = self.waits_for(id).map(|number| self.locks[number as usize].holders.clone());
            // A task that was looked at is so again if it stands further down the chain, but not in a circle.
            tasks.extend(holders.unwrap_or_default().iter().filter(|holder| !self.waits_on(**holder, id)));
        }
    }

    /// The lock that inherits for which a task waits.
    fn waits_for(&self, id: TaskId) -> Option<u16> {
        self.lock_waited_for(id).filter(|lock| self.inherits(*lock))
    }

    pub(super) fn lock_waited_for(&self, id: TaskId) -> Option<u16> {
        let task = &self.tasks[id as usize];
        let ops = &self.scenario.workload.programs[task.program as usize].ops;
        match (task.state, ops.get(task.pc as usize)) {
            (State::Lock, Some(Op::Acquire { lock, .. })) => Some(*lock),
            _ => None,
        }
    }

    /// Whether a task waits for another, directly or through others.
    fn waits_on(&self, id: TaskId, other: TaskId) -> bool {
        let mut seen = vec![id];
        let mut at = 0;
        while let Some(id) = seen.get(at).copied() {
            at += 1;
            let holders = self.waits_for(id).map_or(&[][..], |number| &self.locks[number as usize].holders);
            if holders.contains(&other) {
                return true;
            }
            for holder in holders {
                if !seen.contains(holder) {
                    seen.push(*holder);
                }
            }
        }
        false
    }

    /// The unit that a task is to run for.
    fn inherited(&self, id: TaskId) -> u32 {
        let task = &self.tasks[id as usize];
        let waiters = task.held.iter().flat_map(|number| &self.locks[*number as usize].queue);
        let mut lenders = waiters.map(|(waiter, _)| self.tasks[*waiter as usize].runs_for);
        lenders.find(|unit| *unit != task.unit).unwrap_or(task.unit)
    }

    /// A task that runs for another unit than it is to, if there is one outside of circles.
    pub(super) fn runs_for_the_wrong(&self) -> Option<TaskId> {
        let wrong = |id: &TaskId| self.tasks[*id as usize].runs_for != self.inherited(*id);
        let live = (0..).zip(&self.tasks).filter(|(_, task)| task.state != State::Ended).map(|(id, _)| id);
        live.filter(wrong).find(|id| !self.waits_on(*id, *id))
    }

    /// A task runs on a unit's CPUs from now on, and is charged to it.
    fn run_for(&mut self, id: TaskId, unit: u32) {
        let task = &mut self.tasks[id as usize];
        let before = core::mem::replace(&mut task.runs_for, unit);
        if task.state == State::Runnable {
            // The policy is to know which units want CPUs: a unit whose turn never comes has nothing to lend.
            self.units.blocked(before);
            self.units.became_runnable(unit);
        }
        self.patience.went(before);
        self.patience.came(unit);
        // It stands in another queue, and its wait begins anew.
        if let Some(wait) = &mut self.tasks[id as usize].waits {
            *wait = self.patience.begin(self.now, unit);
        }
        self.kernel.move_to_unit(self.now, id, unit);
    }
}
