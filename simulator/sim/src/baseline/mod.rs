//! Schedulers of the published experiments, to compare with. They are in the simulator only.
//!
//! The problem: a paper reports its gain over the scheduler that it replaced, so that scheduler has to be simulated too. Each
//! baseline is a [`Rule`] on one [`Floor`]. The rule says which task runs next, and which task a woken one preempts.
//! The floor has the CPUs, the tasks on them, and the time that they use. Together they answer what the engine asks of
//! a scheduler.
//!
//! | rule | system | seed |
//! | --- | --- | --- |
//! | [`Decay`] | IRIX 5: priorities that degrade with use and recover | 000, the scheme `smp` |
//! | [`Epochs`] | Linux 2.4: time slices by epochs, one run queue | 003, the standard Linux scheduler |
//! | [`Places`] | Hurricane: a queue for each CPU, tasks stay where they are placed | 001 |
//!
//! Limits: baselines ignore units, so they only make sense under the scheme `smp`. Of a unit they record only the CPU
//! time that its tasks used. CPUs have no owners, there are no loans, and no unit's time is lent to the holder of a lock;
//! orders about these have no effect. CPU time is counted exactly, and not charged to the task that runs at a clock tick.

mod decay;
mod epochs;
mod floor;
mod places;
#[cfg(test)]
mod tests;

use commonhold_dispatch::{Account, Kick, NOBODY, TaskId, Unit};

use crate::Time;

pub(crate) use decay::Decay;
pub(crate) use epochs::Epochs;
use floor::Floor;
pub(crate) use places::Places;

/// Which task runs next, and where.
pub(crate) trait Rule {
    /// A new task, not yet runnable, of a parent that may be running.
    fn start(&mut self, id: TaskId, parent: Option<TaskId>);
    /// A task of that parent is about to end.
    fn end(&mut self, id: TaskId, parent: Option<TaskId>);
    /// Charges a task for its time on a CPU, from `from` to `to`.
    fn ran(&mut self, id: TaskId, from: Time, to: Time);
    /// A task becomes runnable: queues it, and kicks a CPU that should choose again.
    fn wake(&mut self, floor: &mut Floor, now: Time, id: TaskId);
    /// A task is no longer runnable.
    fn leave(&mut self, id: TaskId);
    /// A task that is still runnable was preempted.
    fn put_off(&mut self, floor: &mut Floor, now: Time, id: TaskId);
    /// Chooses the task for a free CPU; `previous` ran there and is still runnable. First charges the CPU time of every task
    /// on `floor` that matters for the choice.
    fn choose(&mut self, floor: &mut Floor, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId>;
    /// How long the task on a CPU may still run, in ns, if its time is charged up to `charged`.
    fn slice_left(&self, now: Time, cpu: u32, id: TaskId, charged: Time) -> Time;
    /// A task that waits longer for a CPU starves, in ns. `tasks` is the largest number of tasks that lived at once.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time;

    /// Charges every task on a CPU up to now.
    fn charge_all(&mut self, floor: &mut Floor, now: Time) {
        for cpu in 0..floor.len() {
            if let Some((id, from)) = floor.charge(now, cpu) {
                self.ran(id, from, now);
            }
        }
    }
}

/// An upper bound on the time until every task has had a turn: two turns of two slices for each task.
fn turns(slice_ns: Time, tasks: u64) -> Time {
    slice_ns.saturating_mul(4 * (tasks + 1))
}

/// A scheduler: a rule and the CPUs.
pub(crate) struct Baseline<R> {
    rule: R,
    floor: Floor,
}

impl<R: Rule> Baseline<R> {
    /// `cpus` idle CPUs, without tasks.
    pub(crate) fn new(rule: R, cpus: u32, units: u32) -> Self {
        Baseline { rule, floor: Floor::new(cpus, units) }
    }

    /// A new task of a unit, not yet runnable. Its parent is on a CPU, if it has one.
    pub(crate) fn start(&mut self, now: Time, id: TaskId, unit: u32, parent: Option<TaskId>) {
        if let Some(parent) = parent {
            self.charge(now, self.floor.last(parent));
        }
        self.floor.start(id, unit, parent);
        self.rule.start(id, parent);
    }

    /// A task that is on a CPU has done its last work; it leaves the CPU at the next [`Baseline::schedule`].
    pub(crate) fn end(&mut self, now: Time, id: TaskId, parent: Option<TaskId>) {
        self.charge(now, self.floor.last(id));
        self.rule.end(id, parent);
    }

    /// A task becomes runnable.
    pub(crate) fn wake(&mut self, now: Time, id: TaskId) {
        self.floor.wait(id);
        self.rule.wake(&mut self.floor, now, id);
    }

    /// Chooses a CPU's next task; `None`: it idles. `runnable`: whether the task that it runs is still runnable.
    pub(crate) fn schedule(&mut self, now: Time, cpu: u32, runnable: bool) -> Option<TaskId> {
        self.charge(now, cpu);
        let mut previous = self.floor.take_off(now, cpu);
        if let Some(id) = previous.filter(|_| !runnable) {
            self.rule.leave(id);
            previous = None;
        }
        if let Some(id) = previous {
            self.floor.wait(id);
        }
        let next = self.rule.choose(&mut self.floor, now, cpu, previous);
        if let Some(id) = next {
            self.floor.put_on(now, cpu, id);
        }
        if let Some(id) = previous.filter(|id| next != Some(*id)) {
            self.rule.put_off(&mut self.floor, now, id);
        }
        next
    }

    /// The rest of the slice of the task on a CPU, in ns.
    pub(crate) fn slice_left(&self, now: Time, cpu: u32) -> Time {
        let (current, charged) = self.floor.current(cpu);
        current.map_or(0, |id| self.rule.slice_left(now, cpu, id, charged))
    }

    /// Takes the CPUs that have to choose a task again, since the last call.
    pub(crate) fn kicks(&mut self, take: &mut Vec<Kick>) {
        self.floor.kicks(take);
    }

    /// Whether there are CPUs that [`Baseline::kicks`] would take.
    pub(crate) fn has_kicks(&self) -> bool {
        self.floor.has_kicks()
    }

    /// Tasks that are on CPUs or wait for one.
    pub(crate) fn runnable(&self) -> u64 {
        self.waiting()
            + (0..self.floor.len()).filter(|cpu| self.floor.current(*cpu).0.is_some()).count() as u64
    }

    /// CPU time that running tasks' units have not been charged yet, in ns.
    pub(crate) fn uncharged(&self, now: Time) -> Time {
        let running = (0..self.floor.len()).map(|cpu| self.floor.current(cpu)).filter(|(id, _)| id.is_some());
        running.map(|(_, charged)| now - charged).sum()
    }

    /// Tasks that wait for a CPU.
    pub(crate) fn waiting(&self) -> u64 {
        self.floor.waiting().iter().map(|tasks| u64::from(*tasks)).sum()
    }

    /// A unit's tasks that wait for a CPU.
    pub(crate) fn waiting_in(&self, unit: u32) -> u32 {
        self.floor.waiting()[unit as usize]
    }

    /// The unit whose task a CPU runs, or [`NOBODY`].
    pub(crate) fn runs(&self, cpu: u32) -> u32 {
        self.floor.current(cpu).0.map_or(NOBODY, |id| self.floor.unit_of(id))
    }

    /// A unit's counters.
    pub(crate) fn unit(&self, unit: u32) -> &Unit {
        self.floor.unit(unit)
    }

    /// A unit's account.
    pub(crate) fn account(&self, unit: u32) -> &Account {
        self.floor.account(unit)
    }

    /// See [`Rule::patience`].
    pub(crate) fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        self.rule.patience(switch_ns, tasks)
    }

    fn charge(&mut self, now: Time, cpu: u32) {
        if let Some((id, from)) = self.floor.charge(now, cpu) {
            self.rule.ran(id, from, now);
        }
    }
}

impl Baseline<Places> {
    /// Restricts a task to a CPU, from now on.
    pub(crate) fn seat(&mut self, id: TaskId, cpu: u32) {
        self.rule.seat(&mut self.floor, id, cpu);
    }
}
