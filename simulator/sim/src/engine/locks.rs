//! Locks: tasks that wait for them block or spin, and their holders may run on the CPUs of units that wait.
//!
//! Problem: a task that waits for a lock waits until the lock's holder has a CPU, and the holder's unit may
//! have no CPU for it. So a lock would undo isolation. A spin lock also gets slower the more CPUs spin, since
//! its cache line goes to each of them.
//!
//! Terms: a task *runs for* a unit if it waits in that unit's queue for CPUs and is charged to it; usually
//! that is its own unit. A lock that *inherits* lends its holders the CPUs of the tasks that wait for it. A
//! lock that *spins* leaves the tasks that wait for it on their CPUs, busy. Its *line* is the cache line that
//! it lies in. The line is with the task that took the lock last, and goes to one CPU at a time; each
//! transfer takes the lock's line time.
//!
//! Algorithm, spinning: a task that takes a free lock waits until the line has arrived, unless it had the
//! line last. When a lock is released, the line goes to each CPU that spins, since all of them read it. Then
//! the lock is granted to the first task of the queue that has a CPU. If no such task has a CPU, the lock
//! stays free for the first that gets one, or for a new task that takes it. Readers that are admitted
//! together get the line one after the other. If the lock is *unfair*, its last holder takes it back if it
//! comes back while the line is still on its way. A task that holds the lock keeps its CPU until it releases
//! the lock, as long as it computes.
//!
//! Algorithm, inheriting: consider the tasks that wait for a holder's locks and do not run for the holder's
//! own unit. The locks are considered in the order in which the holder took them, each lock's queue from the
//! front. The holder runs for the unit that the first such task runs for; without such a task, for its own
//! unit. When the unit changes for a task that itself waits for a lock with inheritance, the rule is applied
//! to the holders of that lock, and so on.
//!
//! Properties: along a chain (A waits for B's lock, B for C's) all tasks run for A's unit. A release ends
//! only the inheritance by that lock. A task that still holds a lock for which another task waits continues
//! to run on the other's CPUs. The algorithm also ends where tasks wait for each other in a cycle: each is
//! visited once per change.
//!
//! Limits: if several units wait, one of them lends; they do not take turns. Locks are granted first come,
//! first served; adjacent readers in the queue get them together. A task that spins may lose its CPU at the
//! end of a slice, where a kernel would let it spin on. Releasing a lock takes no time.
//!
//! Source: seed 000, section 3.4 (the holder of a kernel lock inherits an SPU's resources); for chains Sha,
//! Rajkumar, Lehoczky 1990 (priority inheritance); for the line Anderson 1990 (the performance of spin lock
//! alternatives) and Boyd-Wickizer, Kaashoek, Morris, Zeldovich 2012 (non-scalable locks are dangerous),
//! where handing over takes time in proportion to the CPUs that wait.

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
    /// Whether the holders are readers.
    reading: bool,
    queue: VecDeque<Waiter>,
    /// When the lock's cache line arrives or arrived, and the task that it goes to or is with.
    line_until: Time,
    line_with: Option<TaskId>,
    figures: Figures,
}

/// A task that has a lock.
#[derive(Debug)]
struct Hold {
    task: TaskId,
    /// When the task got the lock, and when it began to wait for the lock, if it had to.
    since: Time,
    queued_at: Option<Time>,
    /// The task that had the lock's line before it.
    before: Option<TaskId>,
}

/// A task that waits for a lock.
#[derive(Debug)]
struct Waiter {
    task: TaskId,
    /// Whether the task only reads.
    shared: bool,
    queued_at: Time,
}

/// The figures that lock metering reports about a lock.
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
        let waited = hold.queued_at.map_or(0, |queued_at| hold.since.min(now) - queued_at);
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
    /// Whether the lock can be granted: nobody holds it, or only readers do and the task `reads`. The caller
    /// checks the queue.
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
        self.queue.iter().for_each(|waiter| figures.count_wait(now - waiter.queued_at));
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
    /// A task takes a lock, or waits for it. `read`: the task only reads, and may share the lock if the lock
    /// admits readers.
    pub(super) fn acquire(&mut self, id: TaskId, number: u16, read: bool) -> Done {
        if self.tasks[id as usize].stage == BEGUN {
            // The lock was granted while the task waited.
            return Done::Next;
        }
        let definition = &self.scenario.workload.locks[number as usize];
        let shared = read && definition.readers;
        let lock = &self.locks[number as usize];
        // A waiter that spins but has lost its CPU could not take the lock now, so the task may overtake it.
        let is_first = if definition.spins { self.spinning_cpus(number) == 0 } else { lock.queue.is_empty() };
        if is_first && self.locks[number as usize].is_free(shared) {
            let since = self.give(id, number, shared, None, 1);
            if since <= self.now {
                return Done::Next;
            }
            return self.spin(id);
        }
        if definition.unfair && !shared && self.retake(id, number) {
            return Done::Next;
        }
        let lock = &mut self.locks[number as usize];
        lock.queue.push_back(Waiter { task: id, shared, queued_at: self.now });
        lock.figures.waits += 1;
        if definition.spins {
            return self.spin(id);
        }
        self.tasks[id as usize].stage = BEGUN;
        if self.inherits(number) {
            self.lend_to_holders(number);
        }
        Done::Wait(TaskState::Lock)
    }

    /// Lets the last holder of a lock take it again, if the lock's line is still on its way to the next: that
    /// task waits on, at the front of the queue. Returns whether the task got the lock.
    fn retake(&mut self, id: TaskId, number: u16) -> bool {
        let now = self.now;
        let lock = &mut self.locks[number as usize];
        let [next] = &lock.holders[..] else { return false };
        let Some(queued_at) = next.queued_at.filter(|_| next.since > now && next.before == Some(id)) else {
            return false;
        };
        let (waiting, shared) = (next.task, lock.reading);
        let timer = self.task_timer(waiting);
        self.timers.clear(timer);
        self.tasks[waiting as usize].spin_locks -= 1;
        self.tasks[id as usize].spin_locks += 1;
        let lock = &mut self.locks[number as usize];
        lock.holders = vec![Hold { task: id, since: now, queued_at: None, before: Some(id) }];
        lock.queue.push_front(Waiter { task: waiting, shared, queued_at });
        (lock.line_until, lock.line_with, lock.reading) = (now, Some(id), false);
        // Another task may take the CPU of the one that waits, now that this one holds no spin lock.
        if let Some(cpu) = (0..self.cpus.len()).find(|cpu| self.cpus[*cpu].task == Some(waiting)) {
            self.timers.set(super::number(cpu), now);
        }
        true
    }

    /// Lets a task spin on its CPU. It continues the present op when the spinning ends.
    fn spin(&mut self, id: TaskId) -> Done {
        let task = &mut self.tasks[id as usize];
        task.stage = BEGUN;
        task.spins = true;
        task.kernel = 0;
        task.bus = 0;
        Done::Compute
    }

    /// A task releases a lock, which is granted to the next waiters. Inheritance through the lock ends.
    pub(super) fn release(&mut self, id: TaskId, number: u16) {
        let now = self.now;
        self.tasks[id as usize].spin_locks -= u32::from(self.scenario.workload.locks[number as usize].spins);
        let lock = &mut self.locks[number as usize];
        if let Some(index) = lock.holders.iter().position(|hold| hold.task == id) {
            let hold = lock.holders.remove(index);
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

    /// Grants a lock to the next waiters, as long as the lock is free for them.
    fn hand_over(&mut self, number: u16) {
        let spins = self.scenario.workload.locks[number as usize].spins;
        // All CPUs that spin read the line once; further readers that are admitted take it one after the
        // other.
        let mut stops = if spins { self.spinning_cpus(number) } else { 1 };
        while let Some(index) = self.next_waiter(number, spins) {
            let lock = &mut self.locks[number as usize];
            let Some(next) = lock.queue.remove(index) else { return };
            let since = self.give(next.task, number, next.shared, Some(next.queued_at), stops.max(1));
            stops = 1;
            if !spins {
                self.wake(next.task);
            } else if since <= self.now {
                self.end_spin(next.task);
            }
        }
    }

    /// A task has just got a CPU. If it spins for a lock that is free, it gets the lock.
    pub(super) fn retry_spin_lock(&mut self, id: TaskId) {
        if self.tasks[id as usize].spins
            && let Some(number) = self.lock_waited_for(id)
        {
            self.hand_over(number);
        }
    }

    /// The waiter that gets the lock now, as an index into the queue: the first, or the first with a CPU if
    /// the lock spins. `None` if the lock is not free for that waiter.
    fn next_waiter(&self, number: u16, spins: bool) -> Option<usize> {
        let lock = &self.locks[number as usize];
        let on_cpu = |waiter: &Waiter| self.tasks[waiter.task as usize].waits.is_none();
        let first = if spins { lock.queue.iter().position(on_cpu)? } else { 0 };
        lock.queue.get(first).filter(|waiter| lock.is_free(waiter.shared)).map(|_| first)
    }

    /// How many CPUs spin for a lock.
    fn spinning_cpus(&self, number: u16) -> usize {
        let queue = &self.locks[number as usize].queue;
        queue.iter().filter(|waiter| self.tasks[waiter.task as usize].waits.is_none()).count()
    }

    fn inherits(&self, number: u16) -> bool {
        self.scenario.workload.locks[number as usize].inherit
    }

    /// Grants a lock to a task that waits since `queued_at`. The lock's cache line visits `stops` CPUs.
    /// Returns when the task can continue; if the line has to arrive first, a timer ends the task's spinning
    /// then.
    fn give(&mut self, id: TaskId, number: u16, reads: bool, queued_at: Option<Time>, stops: usize) -> Time {
        let definition = &self.scenario.workload.locks[number as usize];
        let lock = &mut self.locks[number as usize];
        let before = lock.line_with;
        let since = match definition.line_ns {
            0 => self.now,
            line_ns => lock.fetch_line(self.now, id, stops, line_ns),
        };
        lock.holders.push(Hold { task: id, since, queued_at, before });
        lock.reading = reads;
        lock.figures.taken += 1;
        self.tasks[id as usize].spin_locks += u32::from(definition.spins);
        if since > self.now {
            let timer = self.task_timer(id);
            self.timers.set(timer, since);
        }
        if self.inherits(number) {
            self.tasks[id as usize].held.push(number);
        }
        since
    }

    /// Updates the unit that each holder of a lock runs for.
    fn lend_to_holders(&mut self, number: u16) {
        self.lend_to(self.locks[number as usize].holders().collect());
    }

    /// Updates the unit that each of these tasks runs for, and then the units of the lock holders that they
    /// wait for, along the chains of waits.
    fn lend_to(&mut self, mut tasks: Vec<TaskId>) {
        let mut next = 0;
        while let Some(id) = tasks.get(next).copied() {
            next += 1;
            let unit = self.inherited_unit(id);
            if unit == self.tasks[id as usize].runs_for {
                continue;
            }
            self.run_for(id, unit);
            let holders = self
                .inheriting_lock_of(id)
                .into_iter()
                .flat_map(|number| self.locks[number as usize].holders());
            // A task may be visited again if it is further down the chain, but not if it is in a cycle.
            tasks.extend(holders.filter(|holder| !self.waits_on(*holder, id)));
        }
    }

    /// The lock with inheritance that a task waits for, if it waits for one.
    fn inheriting_lock_of(&self, id: TaskId) -> Option<u16> {
        self.lock_waited_for(id).filter(|lock| self.inherits(*lock))
    }

    /// The lock that a task waits for, blocked or spinning. `None` if the task only waits for the cache line
    /// of a lock that it holds.
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

    /// Whether a task waits for another, directly or through a chain of lock holders.
    fn waits_on(&self, id: TaskId, other: TaskId) -> bool {
        let mut seen = vec![id];
        let mut next = 0;
        while let Some(id) = seen.get(next).copied() {
            next += 1;
            let lock = self.inheriting_lock_of(id).map(|number| &self.locks[number as usize]);
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

    /// The unit that a task should run for: the unit of the first waiter that runs for another unit, else the
    /// task's own.
    fn inherited_unit(&self, id: TaskId) -> u32 {
        let task = &self.tasks[id as usize];
        let waiters = task.held.iter().flat_map(|number| &self.locks[*number as usize].queue);
        let mut lenders = waiters.map(|waiter| self.tasks[waiter.task as usize].runs_for);
        lenders.find(|unit| *unit != task.unit).unwrap_or(task.unit)
    }

    /// A task that runs for another unit than it should, for the audit; `None` if there is no such task.
    /// Tasks in a cycle of waits are left out, since no assignment satisfies the rule there.
    pub(super) fn find_wrong_unit(&self) -> Option<TaskId> {
        let is_wrong = |id: &TaskId| self.tasks[*id as usize].runs_for != self.inherited_unit(*id);
        let live =
            (0..).zip(&self.tasks).filter(|(_, task)| task.state != TaskState::Ended).map(|(id, _)| id);
        live.filter(is_wrong).find(|id| !self.waits_on(*id, *id))
    }

    /// Lets a task run on a unit's CPUs from now on, charged to that unit.
    fn run_for(&mut self, id: TaskId, unit: u32) {
        let task = &mut self.tasks[id as usize];
        let before = core::mem::replace(&mut task.runs_for, unit);
        if task.state == TaskState::Runnable {
            // The policy gives CPUs to units with runnable tasks: the unit that lends its CPUs must count as
            // one of them.
            self.units.blocked(before);
            self.units.became_runnable(unit);
        }
        self.patience.task_left(before);
        self.patience.task_entered(unit);
        // The task moved to another queue, so its wait starts afresh.
        if let Some(wait) = &mut self.tasks[id as usize].waits {
            *wait = self.patience.begin(self.now, unit);
        }
        self.kernel.move_to_unit(self.now, id, unit);
    }
}
