//! Epochs, as in Linux 2.4 (kernel/sched.c).
//!
//! Problem: seed 003 compares with "the standard Linux scheduler", 2.4.20, on four CPUs.
//!
//! Terms: a task's *counter* is the task's remaining CPU time in this *epoch*. A task's *goodness* for a CPU
//! is the score by which that CPU chooses its next task.
//!
//! Algorithm:
//! - An epoch ends when a CPU chooses a task, and the counters of all tasks that could run there are used up.
//!   Then every task's counter, sleepers included, becomes `counter / 2 + slice`.
//! - Goodness is 0 without a counter. Else it is the counter in ticks plus 20 (the priority of nice 0). It is
//!   15 more on the CPU that the task was on last (`PROC_CHANGE_PENALTY`), and 1 more where the task shares
//!   its address space with the task that ran there just now.
//! - There is one run queue. The task that became runnable last comes first. The task with the highest
//!   goodness is chosen; ties: the first in the queue.
//! - A task that wakes, or that was preempted, looks for a CPU (`reschedule_idle`): its last CPU if that
//!   idles, else the CPU that has been idle longest, else the CPU where its goodness exceeds that of the
//!   running task by the most, if any.
//! - A new child gets half of its parent's counter. When the child ends, the parent gets the rest of the
//!   child's counter.
//!
//! Properties: an epoch of n tasks that only compute takes n slices of CPU time. The counter of a sleeping
//! task grows to at most twice the slice (the limit of `c / 2 + slice`), so a task that slept goes first.
//! While counters stay below 15 ticks, a task stays on its CPU until its counter is used up.
//!
//! The machine sets the slice. Linux 2.4 gives nice 0 six ticks of 10 ms. Seed 003 implies 100 ms (section 5:
//! the quantum of 200 ms is twice that of Linux), and does not say which kernel it used.
//!
//! Assumptions of this project, without a source:
//! - Counters are exact and not rounded to ticks.
//! - A parent's counter is capped at twice the slice when a child ends. Linux caps it at 20 ticks, which is
//!   the same at 100 ms.
//! - A CPU that was kicked for a task counts as taken.
//! - Every simulated process has an address space of its own. So only the task that ran just now gets the
//!   bonus for a shared address space.
//!
//! Left out: nice values, real-time classes, yielding.
//!
//! Cost: as in Linux, each choice scans all runnable tasks.

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::CpuTable;
use crate::Time;

/// The clock tick in which goodness counts, in ns: HZ is 100 on the machines of the time.
const TICK_NS: Time = 10_000_000;
/// The goodness that nice 0 adds.
const NICE_0: u64 = 20;
/// The goodness that a task's last CPU adds (affinity).
const PROC_CHANGE_PENALTY: u64 = 15;

/// The rule of epochs.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    slice_ns: Time,
    /// Each task's remaining CPU time in this epoch, in ns.
    pub(super) counters: Vec<Time>,
    /// The runnable tasks, running or waiting, in the order in which they became runnable.
    queue: Vec<TaskId>,
    /// Epochs that have ended.
    #[cfg(test)]
    pub(super) ended: u64,
}

impl Epochs {
    /// A rule that gives each task `slice_ns` of CPU time in an epoch.
    pub(crate) fn new(slice_ns: Time) -> Epochs {
        Epochs {
            slice_ns,
            counters: Vec::new(),
            queue: Vec::new(),
            #[cfg(test)]
            ended: 0,
        }
    }

    /// The goodness of a task on a CPU; `ran` is the task that ran there just now.
    pub(super) fn goodness(&self, table: &CpuTable, id: TaskId, cpu: u32, ran: Option<TaskId>) -> u64 {
        let ticks = self.counters[id as usize].div_ceil(TICK_NS);
        if ticks == 0 {
            return 0;
        }
        let affinity = if table.last(id) == cpu { PROC_CHANGE_PENALTY } else { 0 };
        ticks + NICE_0 + affinity + u64::from(ran == Some(id))
    }

    /// The waiting task with the highest goodness on a CPU, with that goodness. Ties: the task that became
    /// runnable last.
    fn best(&self, table: &CpuTable, cpu: u32, ran: Option<TaskId>) -> Option<(TaskId, u64)> {
        let mut best: Option<(TaskId, u64)> = None;
        for id in self.queue.iter().rev().filter(|id| !table.is_on_cpu(**id)) {
            let goodness = self.goodness(table, *id, cpu, ran);
            if best.is_none_or(|(_, highest)| goodness > highest) {
                best = Some((*id, goodness));
            }
        }
        best
    }

    /// Ends the epoch: every task's counter becomes half of its old value plus a slice.
    fn end_epoch(&mut self, table: &mut CpuTable, now: Time) {
        self.charge_all(table, now);
        for counter in &mut self.counters {
            *counter = *counter / 2 + self.slice_ns;
        }
        #[cfg(test)]
        {
            self.ended += 1;
        }
    }

    /// Kicks the CPU that should run this waiting task, if there is one.
    fn reschedule_idle(&mut self, table: &mut CpuTable, now: Time, id: TaskId) {
        if let Some(cpu) = table.free_for(id) {
            table.kick(cpu);
            return;
        }
        self.charge_all(table, now);
        let gain = |(cpu, current): (u32, TaskId)| {
            let own = self.goodness(table, id, cpu, Some(current));
            let gain = own.checked_sub(self.goodness(table, current, cpu, Some(current)));
            gain.map(|gain| (gain, u32::MAX - cpu))
        };
        // The CPU with the largest gain; ties: the lowest CPU.
        let largest = table.busy().filter_map(gain).max();
        if let Some((_, cpu)) = largest.filter(|(gain, _)| *gain > 0) {
            table.kick(u32::MAX - cpu);
        }
    }
}

impl Rule for Epochs {
    fn start(&mut self, id: TaskId, parent: Option<TaskId>) {
        let counter = match parent {
            Some(parent) => {
                let counter = &mut self.counters[parent as usize];
                let before = core::mem::replace(counter, *counter / 2);
                before - *counter
            }
            None => self.slice_ns,
        };
        if id as usize == self.counters.len() {
            self.counters.push(counter);
        } else {
            self.counters[id as usize] = counter;
        }
    }

    fn end(&mut self, id: TaskId, parent: Option<TaskId>) {
        let remaining = core::mem::take(&mut self.counters[id as usize]);
        if let Some(parent) = parent {
            let counter = &mut self.counters[parent as usize];
            *counter = (*counter + remaining).min(2 * self.slice_ns);
        }
    }

    fn charge(&mut self, id: TaskId, from: Time, to: Time) {
        let counter = &mut self.counters[id as usize];
        *counter = counter.saturating_sub(to - from);
    }

    fn wake(&mut self, table: &mut CpuTable, now: Time, id: TaskId) {
        self.queue.push(id);
        self.reschedule_idle(table, now, id);
    }

    fn block(&mut self, id: TaskId) {
        self.queue.retain(|other| *other != id);
    }

    fn preempted(&mut self, table: &mut CpuTable, now: Time, id: TaskId) {
        self.reschedule_idle(table, now, id);
    }

    fn choose(
        &mut self,
        table: &mut CpuTable,
        now: Time,
        cpu: u32,
        previous: Option<TaskId>,
    ) -> Option<TaskId> {
        let mut best = self.best(table, cpu, previous)?;
        if best.1 == 0 {
            self.end_epoch(table, now);
            best = self.best(table, cpu, previous)?;
        }
        Some(best.0)
    }

    fn slice_left(&self, now: Time, _: u32, id: TaskId, charged: Time) -> Time {
        self.counters[id as usize].saturating_sub(now - charged)
    }

    /// A waiting task runs before the end of the next epoch; in each epoch, a task runs for at most two
    /// slices.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        super::round_ns_max(self.slice_ns + switch_ns, tasks)
    }
}
