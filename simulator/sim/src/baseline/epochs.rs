//! Epochs, as in Linux 2.4 (kernel/sched.c).
//!
//! Problem: seed 003 compares with "the standard Linux scheduler", 2.4.20, on four CPUs.
//!
//! Terms: a task's *counter* is the CPU time that is left to it in this *epoch*. Its *goodness* for a CPU is its rank
//! when that CPU chooses.
//!
//! Algorithm:
//! - An epoch ends when a CPU looks for a task, and no task that could run there has a counter left. Then every task,
//!   sleepers too, gets `counter / 2 + slice`.
//! - Goodness is 0 without a counter. Else it is the counter in ticks plus 20 (the priority of nice 0). It is 15 more
//!   on the CPU that the task was on last (`PROC_CHANGE_PENALTY`), and 1 more where the task shares its address space
//!   with the task that ran there just now.
//! - There is one run queue. The task that became runnable last stands first. The first of those with the most
//!   goodness is chosen.
//! - A task that wakes looks for a CPU (`reschedule_idle`), and so does one that was put off a CPU and could go on. It
//!   takes its last CPU if that idles, else the one that idles longest, else the one where it gains most over the task
//!   there, if it gains anything.
//! - Half of a parent's counter goes to its child. What a child leaves comes back.
//!
//! Properties: an epoch of n tasks that only compute takes n slices of CPU time. A task that sleeps saves up to twice
//! a slice (the limit of `c / 2 + slice`), and so goes first. While a counter stays below the 15 ticks, a task stays
//! where it is until its counter is used up.
//!
//! The slice is the machine's. Linux 2.4 gives nice 0 six ticks of 10 ms. Seed 003 speaks of 100 ms (section 5: the
//! quantum of 200 ms is twice that of Linux), and the kernel that it ran on is not known.
//!
//! Ours, and not from a source:
//! - Counters are exact and not rounded to ticks.
//! - What comes back from a child is cut at twice the slice. Linux cuts at 20 ticks, which is the same at 100 ms.
//! - A CPU that was sent for a task counts as taken.
//! - Every simulated process has an address space of its own. So the bonus for it goes to the task that runs already.
//!
//! Left out: nice values, real-time classes, yielding.
//!
//! Cost: as in Linux, a look for a task goes through all that are runnable.

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::Floor;
use crate::Time;

/// The clock tick in which goodness counts, in ns: HZ is 100 on the machines of the time.
const TICK_NS: Time = 10_000_000;
/// What nice 0 is worth.
const NICE_0: u64 = 20;
/// What the CPU that a task was on last is worth.
const PROC_CHANGE_PENALTY: u64 = 15;

/// The rule.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    slice_ns: Time,
    /// What is left to each task in this epoch, in ns.
    pub(super) counters: Vec<Time>,
    /// The runnable tasks, on a CPU or not; the one that became so last stands last.
    queue: Vec<TaskId>,
    /// Epochs that have ended.
    #[cfg(test)]
    pub(super) ended: u64,
}

impl Epochs {
    /// With so much CPU time for each task in an epoch.
    pub(crate) fn new(slice_ns: Time) -> Epochs {
        Epochs {
            slice_ns,
            counters: Vec::new(),
            queue: Vec::new(),
            #[cfg(test)]
            ended: 0,
        }
    }

    /// What a task is worth on a CPU that ran another just now.
    pub(super) fn goodness(&self, floor: &Floor, id: TaskId, cpu: u32, ran: Option<TaskId>) -> u64 {
        let ticks = self.counters[id as usize].div_ceil(TICK_NS);
        if ticks == 0 {
            return 0;
        }
        let affinity = if floor.last(id) == cpu { PROC_CHANGE_PENALTY } else { 0 };
        ticks + NICE_0 + affinity + u64::from(ran == Some(id))
    }

    /// The first of the best that a CPU could run, with its goodness.
    fn best(&self, floor: &Floor, cpu: u32, ran: Option<TaskId>) -> Option<(TaskId, u64)> {
        let mut best: Option<(TaskId, u64)> = None;
        for id in self.queue.iter().rev().filter(|id| !floor.is_on_cpu(**id)) {
            let goodness = self.goodness(floor, *id, cpu, ran);
            if best.is_none_or(|(_, most)| goodness > most) {
                best = Some((*id, goodness));
            }
        }
        best
    }

    /// Every task gets a new counter, and keeps half of the old one.
    fn end_epoch(&mut self, floor: &mut Floor, now: Time) {
        self.charge_all(floor, now);
        for counter in &mut self.counters {
            *counter = *counter / 2 + self.slice_ns;
        }
        #[cfg(test)]
        {
            self.ended += 1;
        }
    }

    /// Looks for a CPU for a task that has none.
    fn reschedule_idle(&mut self, floor: &mut Floor, now: Time, id: TaskId) {
        if let Some(cpu) = floor.free_for(id) {
            floor.kick(cpu);
            return;
        }
        self.charge_all(floor, now);
        let gain = |(cpu, there): (u32, TaskId)| {
            let own = self.goodness(floor, id, cpu, Some(there));
            own.checked_sub(self.goodness(floor, there, cpu, Some(there))).map(|gain| (gain, u32::MAX - cpu))
        };
        // The first CPU of those where it gains most.
        let most = floor.busy().filter_map(gain).max();
        if let Some((_, cpu)) = most.filter(|(gain, _)| *gain > 0) {
            floor.kick(u32::MAX - cpu);
        }
    }
}

impl Rule for Epochs {
    fn start(&mut self, id: TaskId, parent: Option<TaskId>) {
        let counter = match parent {
            Some(parent) => {
                let counter = &mut self.counters[parent as usize];
                let whole = core::mem::replace(counter, *counter / 2);
                whole - *counter
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
        let left = core::mem::take(&mut self.counters[id as usize]);
        if let Some(parent) = parent {
            let counter = &mut self.counters[parent as usize];
            *counter = (*counter + left).min(2 * self.slice_ns);
        }
    }

    fn ran(&mut self, id: TaskId, from: Time, to: Time) {
        let counter = &mut self.counters[id as usize];
        *counter = counter.saturating_sub(to - from);
    }

    fn wake(&mut self, floor: &mut Floor, now: Time, id: TaskId) {
        self.queue.push(id);
        self.reschedule_idle(floor, now, id);
    }

    fn leave(&mut self, id: TaskId) {
        self.queue.retain(|other| *other != id);
    }

    fn put_off(&mut self, floor: &mut Floor, now: Time, id: TaskId) {
        self.reschedule_idle(floor, now, id);
    }

    fn choose(&mut self, floor: &mut Floor, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId> {
        let mut best = self.best(floor, cpu, previous)?;
        if best.1 == 0 {
            self.end_epoch(floor, now);
            best = self.best(floor, cpu, previous)?;
        }
        Some(best.0)
    }

    fn slice_left(&self, now: Time, _: u32, id: TaskId, charged: Time) -> Time {
        self.counters[id as usize].saturating_sub(now - charged)
    }

    /// To the end of this epoch, and through the next: in each, every task has two slices at most.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        super::turns(self.slice_ns + switch_ns, tasks)
    }
}
