//! Schedulers of the published experiments, to compare with. They are in the simulator only.
//!
//! Problem: a paper reports its gain over the scheduler that it replaced, so that scheduler has to be
//! simulated too.
//!
//! Approach: each baseline is a [`Rule`] on a [`CpuTable`]. The rule decides which task runs next, and which
//! running task a woken task preempts. The table records the CPUs, the tasks on them, and the CPU time that
//! tasks use. Together they offer the engine the same operations as the project's own scheduler.
//!
//! | rule | system | seed |
//! | --- | --- | --- |
//! | [`Decay`] | IRIX 5: priorities that degrade with use and recover | 000, the scheme `smp` |
//! | [`Epochs`] | Linux 2.4: time slices by epochs, one run queue | 003, the standard Linux scheduler |
//! | [`Places`] | Hurricane: a queue for each CPU, tasks stay where they are placed | 001 |
//!
//! Limits: baselines ignore units, so they are only valid under the scheme `smp`. A unit's account records
//! only the CPU time that its tasks used. CPUs have no owners, there are no loans, and no inheritance at
//! locks; orders about these have no effect. CPU time is counted exactly, not charged to the task that runs
//! at a clock tick.

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
use floor::CpuTable;
pub(crate) use places::Places;

/// A scheduling algorithm: decides which task runs next on each CPU.
pub(crate) trait Rule {
    /// Adds a new task, which is not yet runnable. Its parent, if any, may be running.
    fn start(&mut self, id: TaskId, parent: Option<TaskId>);
    /// Handles a task that is about to end.
    fn end(&mut self, id: TaskId, parent: Option<TaskId>);
    /// Charges a task for its time on a CPU, from `from` to `to`.
    fn charge(&mut self, id: TaskId, from: Time, to: Time);
    /// Queues a task that became runnable, and kicks a CPU that should choose again.
    fn wake(&mut self, table: &mut CpuTable, now: Time, id: TaskId);
    /// Removes a task that is no longer runnable.
    fn block(&mut self, id: TaskId);
    /// Handles a task that was preempted and is still runnable.
    fn preempted(&mut self, table: &mut CpuTable, now: Time, id: TaskId);
    /// Chooses the task for a free CPU; `previous` ran there and is still runnable. First charges the CPU
    /// time of every running task that matters for the choice.
    fn choose(
        &mut self,
        table: &mut CpuTable,
        now: Time,
        cpu: u32,
        previous: Option<TaskId>,
    ) -> Option<TaskId>;
    /// The remaining slice of the task on a CPU, in ns. The task's CPU time is charged up to `charged`.
    fn slice_left(&self, now: Time, cpu: u32, id: TaskId, charged: Time) -> Time;
    /// The longest wait for a CPU without starvation, in ns. `tasks` is the largest number of tasks that
    /// lived at once.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time;

    /// Charges all running tasks up to now.
    fn charge_all(&mut self, table: &mut CpuTable, now: Time) {
        for cpu in 0..table.len() {
            if let Some((id, from)) = table.charge(now, cpu) {
                self.charge(id, from, now);
            }
        }
    }
}

/// An upper bound of the time until every task has run once, in ns: two turns of two slices for each task.
fn round_ns_max(slice_ns: Time, tasks: u64) -> Time {
    slice_ns.saturating_mul(4 * (tasks + 1))
}

/// A baseline scheduler: a rule, and the state of the CPUs.
pub(crate) struct Baseline<R> {
    rule: R,
    table: CpuTable,
}

impl<R: Rule> Baseline<R> {
    /// A scheduler of `cpus` idle CPUs, without tasks.
    pub(crate) fn new(rule: R, cpus: u32, units: u32) -> Self {
        Baseline { rule, table: CpuTable::new(cpus, units) }
    }

    /// Adds a new task of a unit, not yet runnable. If it has a parent, the parent is on a CPU.
    pub(crate) fn start(&mut self, now: Time, id: TaskId, unit: u32, parent: Option<TaskId>) {
        if let Some(parent) = parent {
            self.charge(now, self.table.last(parent));
        }
        self.table.start(id, unit, parent);
        self.rule.start(id, parent);
    }

    /// Ends a task that is on a CPU. The task leaves the CPU at the next [`Baseline::schedule`].
    pub(crate) fn end(&mut self, now: Time, id: TaskId, parent: Option<TaskId>) {
        self.charge(now, self.table.last(id));
        self.rule.end(id, parent);
    }

    /// Makes a task runnable.
    pub(crate) fn wake(&mut self, now: Time, id: TaskId) {
        self.table.wait(id);
        self.rule.wake(&mut self.table, now, id);
    }

    /// Chooses a CPU's next task; `None`: the CPU idles. `runnable` is whether the task on the CPU is still
    /// runnable.
    pub(crate) fn schedule(&mut self, now: Time, cpu: u32, runnable: bool) -> Option<TaskId> {
        self.charge(now, cpu);
        let mut previous = self.table.take_off(now, cpu);
        if let Some(id) = previous.filter(|_| !runnable) {
            self.rule.block(id);
            previous = None;
        }
        if let Some(id) = previous {
            self.table.wait(id);
        }
        let next = self.rule.choose(&mut self.table, now, cpu, previous);
        if let Some(id) = next {
            self.table.put_on(now, cpu, id);
        }
        if let Some(id) = previous.filter(|id| next != Some(*id)) {
            self.rule.preempted(&mut self.table, now, id);
        }
        next
    }

    /// The remaining slice of the task on a CPU, in ns; 0 if the CPU idles.
    pub(crate) fn slice_left(&self, now: Time, cpu: u32) -> Time {
        let (current, charged) = self.table.current(cpu);
        current.map_or(0, |id| self.rule.slice_left(now, cpu, id, charged))
    }

    /// Moves the kicks since the last call into `kicks`: CPUs that have to choose a task again.
    pub(crate) fn kicks(&mut self, kicks: &mut Vec<Kick>) {
        self.table.kicks(kicks);
    }

    /// Whether there are kicks for [`Baseline::kicks`] to take.
    pub(crate) fn has_kicks(&self) -> bool {
        self.table.has_kicks()
    }

    /// The number of tasks that are on CPUs or wait for one.
    pub(crate) fn runnable(&self) -> u64 {
        self.waiting()
            + (0..self.table.len()).filter(|cpu| self.table.current(*cpu).0.is_some()).count() as u64
    }

    /// CPU time of running tasks that their units have not been charged yet, in ns.
    pub(crate) fn uncharged(&self, now: Time) -> Time {
        let running = (0..self.table.len()).map(|cpu| self.table.current(cpu)).filter(|(id, _)| id.is_some());
        running.map(|(_, charged)| now - charged).sum()
    }

    /// The number of tasks that wait for a CPU.
    pub(crate) fn waiting(&self) -> u64 {
        self.table.waiting().iter().map(|tasks| u64::from(*tasks)).sum()
    }

    /// The number of a unit's tasks that wait for a CPU.
    pub(crate) fn waiting_in(&self, unit: u32) -> u32 {
        self.table.waiting()[unit as usize]
    }

    /// The unit whose task a CPU runs, or [`NOBODY`].
    pub(crate) fn runs(&self, cpu: u32) -> u32 {
        self.table.current(cpu).0.map_or(NOBODY, |id| self.table.unit_of(id))
    }

    /// A unit's counters.
    pub(crate) fn unit(&self, unit: u32) -> &Unit {
        self.table.unit(unit)
    }

    /// A unit's account.
    pub(crate) fn account(&self, unit: u32) -> &Account {
        self.table.account(unit)
    }

    /// See [`Rule::patience`].
    pub(crate) fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        self.rule.patience(switch_ns, tasks)
    }

    /// Charges the task on a CPU up to now.
    fn charge(&mut self, now: Time, cpu: u32) {
        if let Some((id, from)) = self.table.charge(now, cpu) {
            self.rule.charge(id, from, now);
        }
    }
}

impl Baseline<Places> {
    /// Assigns a task to a CPU; the task runs nowhere else.
    pub(crate) fn seat(&mut self, id: TaskId, cpu: u32) {
        self.rule.seat(&mut self.table, id, cpu);
    }
}
