//! Locks: tasks that wait for them block or spin, and their holders may run on the CPUs of units that wait.
//!
//! Problem: a task that waits for a lock waits until the lock's holder has a CPU, and the holder's unit may have no CPU
//! for it. So a lock would undo isolation. A spin lock also gets slower the more CPUs spin, since its cache line goes to
//! each of them.
//!
//! Terms: a task *runs for* a unit if it waits in that unit's queue for CPUs and is charged to it; usually that is its own
//! unit. A lock that *inherits* lends its holders the CPUs of the tasks that wait for it. A lock that *spins* leaves
//! the tasks that wait for it on their CPUs, busy. Its *line* is the cache line that it lies in. The line is with the
//! task that took the lock last, and goes to one CPU at a time; each transfer takes the lock's line time.
//!
//! Algorithm, spinning: a task that takes a free lock waits until the line has arrived, unless it had the line last. When a
//! lock is released, the line goes to each CPU that spins, since all of them read it. Then the lock is granted to the
//! first task of the queue that has a CPU. If no such task has a CPU, the lock stays free for the first that gets one, or
//! for a new task that takes it. Readers that are admitted together get the line one after the other. A task that holds
//! the lock keeps its CPU until it releases the lock, as long as it computes.
//!
//! Algorithm, inheriting: consider the tasks that wait for a holder's locks and do not run for the holder's own unit. The locks
//! are taken in the order in which the holder took them, each lock's queue from the front. The holder runs for the
//! unit that the first such task runs for. Without one, it runs for its own unit. When that changes for a task that
//! itself waits for such a lock, the same is done for the holders of that lock, and so on.
//!
//! Properties: along a chain (A waits for B's lock, B for C's) all tasks run for A's unit. A release ends only
//! the inheritance by that lock. A task that still holds a lock for which another task waits continues to run on the
//! other's CPUs. The algorithm also ends where tasks wait for each other in a cycle: each is visited once per change.
//!
//! Limits: if several units wait, one of them lends; they do not take turns. Locks are granted first come, first served;
//! adjacent readers in the queue get them together. A task that spins may lose its CPU at the end of a slice, where a
//! kernel would let it spin on. Releasing a lock takes no time.
//!
//! Source: seed 000, section 3.4 (the holder of a kernel lock inherits an SPU's resources); for chains Sha,
//! Rajkumar, Lehoczky 1990 (priority inheritance); for the line Anderson 1990 (the performance of spin lock
//! alternatives) and Boyd-Wickizer, Kaashoek, Morris, Zeldovich 2012 (non-scalable locks are dangerous), where handing
//! over takes time in proportion to the CPUs that wait.

use std::collections::VecDeque;

use commonhold_dispatch::TaskId;

use super::Engine;
use super::program::{BEGUN, Done};
use super::task::TaskState;
use crate::Time;
use crate::scenario::Op;

/// The current state of a lock.
#[derive(Debug, Default)]
pub(super) struct Lock {
    holders: Vec<Hold>,
    reading: bool,
    queue: VecDeque<Waiter>,
    /// When the line arrives or arrived, and the task that it goes to or is with.
    line_until: Time,
    line_with: Option<TaskId>,
    figures: Figures,
}

/// A task that has a lock.
#[derive(Debug)]
struct Hold {
    task: TaskId,
    /// When it got the lock, and when it had begun to wait for it, if it had to.
    since: Time,
    came: Option<Time>,
}

/// A task that waits for a lock.
#[derive(Debug)]
struct Waiter {
    task: TaskId,
    /// It only reads.
    shared: bool,
    came: Time,
}

/// The figures that lock metering reports of a lock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    /// How often the lock was taken, and how many of these acquisitions had to wait.
    pub(super) taken: u64,
    pub(super) waits: u64,
    pub(super) waited_ns: Time,
    pub(super) waited_max_ns: Time,
    /// Summed over all holders: readers that hold the lock together count separately.
    pub(super) held_ns: Time,
    pub(super) held_max_ns: Time,
}

impl Figures {
    /// Counts a hold up to now. A holder whose line has not arrived yet has only waited.
    fn count(&mut self, hold: &Hold, now: Time) {
        let waited = hold.came.map_or(0, |came| hold.since.min(now) - came);
        self.count_wait(waited);
        let held = now.saturating_sub(hold.since);
        self.held_ns += held;
        self.held_max_ns = self.held_max_ns.max(held);
    }

    fn count_wait(&mut self, waited: Time) {
        self.waited_ns += waited;
        self.waited_max_ns = self.waited_max_ns.max(waited);
    }
}

impl Lock {
    /// Whether the lock can be granted: nobody holds it, or only readers do and the task `reads`. The caller checks the queue.
    fn is_free(&self, reads: bool) -> bool {
        self.holders.is_empty() || (self.reading && reads)
    }

    pub(super) fn is_held_by(&self, id: TaskId) -> bool {
        self.holders.iter().any(|hold| hold.task == id)
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = TaskId> {
        self.holders.iter().map(|hold| hold.task)
    }

    /// The lock's figures up to now, with holds and waits in progress.
    pub(super) fn figures(&self, now: Time) -> Figures {
        let mut figures = self.figures;
        self.holders.iter().for_each(|hold| figures.count(hold, now));
        self.queue.iter().for_each(|waiter| figures.count_wait(now - waiter.came));
        figures
    }

    /// Moves the cache line to a task by way of `stops - 1` other CPUs. Returns its arrival time.
    fn fetch_line(&mut self, now: Time, id: TaskId, stops: usize, line_ns: Time) -> Time {
        if self.line_with != Some(id) || stops > 1 {
            let span = line_ns.saturating_mul(stops as u64);
            self.line_until = self.line_until.max(now).saturating_add(span);
            self.line_with = Some(id);
        }
        self.line_until.max(now)
    }
}

impl Engine<'_> {
    pub(super) fn acquire(&mut self, id: TaskId, number: u16, read: bool) -> Done {
        if self.tasks[id as usize].stage == BEGUN {
            return Done::Next; // the lock was handed over
        }
        let what = &self.scenario.workload.locks[number as usize];
        let shared = read && what.readers;
        let lock = &self.locks[number as usize];
        // A waiter that spins and has lost its CPU could not take the lock now.
        let is_first = if what.spins { self.on_cpus(number) == 0 } else { lock.queue.is_empty() };
        if is_first && self.locks[number as usize].is_free(shared) {
            let since = self.give(id, number, shared, None, 1);
            if since <= self.now {
                return Done::Next;
            }
            return self.spin(id);
        }
        let lock = &mut self.locks[number as usize];
        lock.queue.push_back(Waiter { task: id, shared, came: self.now });
        lock.figures.waits += 1;
        if what.spins {
            return self.spin(id);
        }
        self.tasks[id as usize].stage = BEGUN;
        if self.inherits(number) {
            self.lend_to_holders(number);
        }
        Done::Wait(TaskState::Lock)
    }

    /// A task waits on its CPU, and comes back to this op.
    fn spin(&mut self, id: TaskId) -> Done {
        let task = &mut self.tasks[id as usize];
        task.stage = BEGUN;
        task.spins = true;
        task.kernel = 0;
        task.bus = 0;
        Done::Compute
    }

    pub(super) fn release(&mut self, id: TaskId, number: u16) {
        let now = self.now;
        self.tasks[id as usize].keeps -= u32::from(self.scenario.workload.locks[number as usize].spins);
        let lock = &mut self.locks[number as usize];
        if let Some(at) = lock.holders.iter().position(|hold| hold.task == id) {
            let hold = lock.holders.remove(at);
            lock.figures.count(&hold, now);
        }
        if self.inherits(number) {
            self.tasks[id as usize].held.retain(|held| *held != number);
        }
        self.hand_over(number);
        if self.inherits(number) {
            self.lend_to(vec![id]);
            self.lend_to_holders(number);
        }
    }

    /// Grants a lock to the next waiters, while it is free for them.
    fn hand_over(&mut self, number: u16) {
        let spins = self.scenario.workload.locks[number as usize].spins;
        // All CPUs that spin read the line once; further readers that are admitted take it one after the other.
        let mut stops = if spins { self.on_cpus(number) } else { 1 };
        while let Some(at) = self.next_of(number, spins) {
            let lock = &mut self.locks[number as usize];
            let Some(next) = lock.queue.remove(at) else { return };
            let since = self.give(next.task, number, next.shared, Some(next.came), stops.max(1));
            stops = 1;
            if !spins {
                self.wake(next.task);
            } else if since <= self.now {
                self.end_spin(next.task);
            }
        }
    }

    /// A task has a CPU again: the lock that it spins for may be free.
    pub(super) fn spins_again(&mut self, id: TaskId) {
        if self.tasks[id as usize].spins
            && let Some(number) = self.lock_waited_for(id)
        {
            self.hand_over(number);
        }
    }

    /// The place in the queue of the waiter that gets the lock now, if any does: of tasks that spin, the first with a CPU.
    fn next_of(&self, number: u16, spins: bool) -> Option<usize> {
        let lock = &self.locks[number as usize];
        let on_cpu = |waiter: &Waiter| self.tasks[waiter.task as usize].waits.is_none();
        let first = if spins { lock.queue.iter().position(on_cpu)? } else { 0 };
        lock.queue.get(first).filter(|waiter| lock.is_free(waiter.shared)).map(|_| first)
    }

    /// How many CPUs spin for a lock.
    fn on_cpus(&self, number: u16) -> usize {
        let queue = &self.locks[number as usize].queue;
        queue.iter().filter(|waiter| self.tasks[waiter.task as usize].waits.is_none()).count()
    }

    fn inherits(&self, number: u16) -> bool {
        self.scenario.workload.locks[number as usize].inherit
    }

    /// Grants a lock to a task. Returns when the task can continue; if the lock's line has to arrive first, a timer ends the
    /// task's spinning then.
    fn give(&mut self, id: TaskId, number: u16, reads: bool, came: Option<Time>, stops: usize) -> Time {
        let what = &self.scenario.workload.locks[number as usize];
        let lock = &mut self.locks[number as usize];
        let since =
            if what.line_ns == 0 { self.now } else { lock.fetch_line(self.now, id, stops, what.line_ns) };
        lock.holders.push(Hold { task: id, since, came });
        lock.reading = reads;
        lock.figures.taken += 1;
        self.tasks[id as usize].keeps += u32::from(what.spins);
        if since > self.now {
            let timer = self.task_timer(id);
            self.timers.set(timer, since);
        }
        if self.inherits(number) {
            self.tasks[id as usize].held.push(number);
        }
        since
    }

    fn lend_to_holders(&mut self, number: u16) {
        self.lend_to(self.locks[number as usize].holders().collect());
    }

    /// Updates the unit that each of these tasks runs for, and along the chains of tasks that they wait for.
    fn lend_to(&mut self, mut tasks: Vec<TaskId>) {
        let mut at = 0;
        while let Some(id) = tasks.get(at).copied() {
            at += 1;
            let unit = self.inherited(id);
            if unit == self.tasks[id as usize].runs_for {
                continue;
            }
            self.run_for(id, unit);
            let holders =
                self.waits_for(id).into_iter().flat_map(|number| self.locks[number as usize].holders());
            // A task may be visited again if it is further down the chain, but not if it is in a cycle.
            tasks.extend(holders.filter(|holder| !self.waits_on(*holder, id)));
        }
    }

    /// The lock with inheritance that a task waits for.
    fn waits_for(&self, id: TaskId) -> Option<u16> {
        self.lock_waited_for(id).filter(|lock| self.inherits(*lock))
    }

    pub(super) fn lock_waited_for(&self, id: TaskId) -> Option<u16> {
        let task = &self.tasks[id as usize];
        let ops = &self.scenario.workload.programs[task.program as usize].ops;
        match ops.get(task.pc as usize) {
            // A task that spins only until the lock's line arrives holds the lock already.
            Some(Op::Acquire { lock, .. }) if task.state == TaskState::Lock || task.spins => {
                Some(*lock).filter(|lock| !self.locks[*lock as usize].is_held_by(id))
            }
            _ => None,
        }
    }

    /// Whether a task waits for another, directly or through others.
    fn waits_on(&self, id: TaskId, other: TaskId) -> bool {
        let mut seen = vec![id];
        let mut at = 0;
        while let Some(id) = seen.get(at).copied() {
            at += 1;
            let lock = self.waits_for(id).map(|number| &self.locks[number as usize]);
            for holder in lock.into_iter().flat_map(Lock::holders) {
                if holder == other {
                    return true;
                }
                if !seen.contains(&holder) {
                    seen.push(holder);
                }
            }
        }
        false
    }

    /// The unit that a task is to run for.
    fn inherited(&self, id: TaskId) -> u32 {
        let task = &self.tasks[id as usize];
        let waiters = task.held.iter().flat_map(|number| &self.locks[*number as usize].queue);
        let mut lenders = waiters.map(|waiter| self.tasks[waiter.task as usize].runs_for);
        lenders.find(|unit| *unit != task.unit).unwrap_or(task.unit)
    }

    /// A task outside cycles of waiting that does not run for the unit that it should run for; `None` if all is well.
    pub(super) fn runs_for_the_wrong(&self) -> Option<TaskId> {
        let wrong = |id: &TaskId| self.tasks[*id as usize].runs_for != self.inherited(*id);
        let live =
            (0..).zip(&self.tasks).filter(|(_, task)| task.state != TaskState::Ended).map(|(id, _)| id);
        live.filter(wrong).find(|id| !self.waits_on(*id, *id))
    }

    /// A task runs on a unit's CPUs from now on, and is charged to it.
    fn run_for(&mut self, id: TaskId, unit: u32) {
        let task = &mut self.tasks[id as usize];
        let before = core::mem::replace(&mut task.runs_for, unit);
        if task.state == TaskState::Runnable {
            // The policy has to know which units want CPUs: a unit that never gets its turn has nothing to lend.
            self.units.blocked(before);
            self.units.became_runnable(unit);
        }
        self.patience.went(before);
        self.patience.came(unit);
        // The task moved to another queue, so its wait starts afresh.
        if let Some(wait) = &mut self.tasks[id as usize].waits {
            *wait = self.patience.begin(self.now, unit);
        }
        self.kernel.move_to_unit(self.now, id, unit);
    }
}
