//! Degrading priorities, as in IRIX 5.
//!
//! Problem: seed 000 compares with the scheduler of IRIX 5.3, "a priority-based scheduling scheme in which
//! the priority of a process drops as it uses CPU time" (section 3.1). There a CPU "normally picks the
//! runnable process with the highest priority". SGI's guides add two facts. A process's priority number grows
//! steadily while it runs, and a slice is HZ/30, where HZ is 100 ticks a second. The rates at which the
//! number grows and decays are not published.
//!
//! Terms: *usage* is a task's decayed CPU time in ticks of 10 ms. A smaller *priority* number goes first, as
//! in UNIX.
//!
//! Algorithm: that of System V, from which IRIX descends (M. Bach: The Design of the UNIX Operating System,
//! 1986, section 8.1).
//! - A task's usage counts the ticks that it ran. All usage is halved once a second, and `priority = usage /
//!   2 + 60`, at most 127.
//! - A CPU takes the task with the smallest number, and among equals the task that waited longest. The CPU
//!   chooses again at the end of a slice.
//! - A task that wakes takes an idle CPU, preferably its last one. Without an idle CPU, it preempts the task
//!   with the largest number, if its own number is smaller.
//!
//! Properties: tasks that only compute get equal CPU time. A task that slept has a small number and goes
//! first. No task starves, since the usage of a waiting task halves every second.
//!
//! Assumptions of this project, without a source:
//! - A running task's number follows its usage at once, as SGI's text suggests, and not only once a second.
//! - A new task begins without usage.
//! - Time is counted exactly.
//!
//! Left out: kernel priorities, which a task has between its wake-up and its return to user mode; nice
//! values, which are all 0; IRIX's affinity to caches.

use std::collections::BTreeSet;

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::CpuTable;
use crate::Time;

/// The clock tick in which usage is counted, in ns: HZ is 100 in IRIX.
const TICK_NS: Time = 10_000_000;
/// Usage is halved this often, in ns (Bach, section 8.1).
const HALVED_NS: Time = 1_000_000_000;
/// The smallest number that a task in user mode has (Bach, figure 8.4).
const USER: u64 = 60;
/// The largest number: IRIX keeps it in a signed byte.
const WORST: u64 = 127;
/// The number of halvings after which any usage is below two ticks, so that the task's number is [`USER`].
/// The largest usage, of a task that always runs, is 200 ticks: 200, 100, 50, 25, 12, 6, 3, 1.
pub(super) const HALVINGS: Time = 7;

/// A task's decayed CPU time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Decayed CPU time, in ns, as of `second`.
    pub(super) ns: Time,
    /// The second of the last halving.
    second: u64,
}

impl Usage {
    /// Halves the usage once for each second that began since the last halving.
    pub(super) fn halve(&mut self, now: Time) {
        let second = now / HALVED_NS;
        self.ns = self.ns.checked_shr(u32::try_from(second - self.second).unwrap_or(u32::MAX)).unwrap_or(0);
        self.second = second;
    }

    /// Adds CPU time from `from` to `to`, with a halving at each end of a second.
    pub(super) fn add(&mut self, mut from: Time, to: Time) {
        while from < to {
            self.halve(from);
            let until = to.min((self.second + 1) * HALVED_NS);
            self.ns += until - from;
            from = until;
        }
        self.halve(to);
    }

    pub(super) fn priority(&self) -> u64 {
        WORST.min(USER + self.ns / TICK_NS / 2)
    }
}

/// The rule of degrading priorities.
#[derive(Debug, Clone)]
pub(crate) struct Decay {
    slice_ns: Time,
    /// The usage of each task.
    pub(super) usage: Vec<Usage>,
    /// The run queue: waiting tasks by priority number, then by arrival.
    queue: BTreeSet<(u64, u64, TaskId)>,
    /// The number of arrivals in the queue so far.
    arrivals: u64,
    /// The second for which the numbers in the queue are valid.
    second: u64,
    /// When the slice on each CPU ends.
    slice_end: Vec<Time>,
}

impl Decay {
    /// `cpus` idle CPUs with slices of `slice_ns`.
    pub(crate) fn new(slice_ns: Time, cpus: u32) -> Decay {
        Decay {
            slice_ns,
            usage: Vec::new(),
            queue: BTreeSet::new(),
            arrivals: 0,
            second: 0,
            slice_end: vec![0; cpus as usize],
        }
    }

    /// A task's priority number now.
    fn priority(&mut self, now: Time, id: TaskId) -> u64 {
        let usage = &mut self.usage[id as usize];
        usage.halve(now);
        usage.priority()
    }

    /// Sorts the queue anew if a second has begun since the last sort, since the usage of every task is then
    /// halved.
    fn sort_queue(&mut self, now: Time) {
        if core::mem::replace(&mut self.second, now / HALVED_NS) == now / HALVED_NS {
            return;
        }
        let queue = core::mem::take(&mut self.queue);
        self.queue =
            queue.into_iter().map(|(_, arrival, id)| (self.priority(now, id), arrival, id)).collect();
    }

    fn enqueue(&mut self, now: Time, id: TaskId) {
        self.arrivals += 1;
        let priority = self.priority(now, id);
        self.queue.insert((priority, self.arrivals, id));
    }

    /// Whether the task that ran on a CPU goes on there. Before the end of its slice, it yields to a task
    /// with a smaller number; at the end also to a task with an equal number.
    fn goes_on(&mut self, now: Time, cpu: u32, id: TaskId) -> bool {
        let own = self.priority(now, id);
        let is_slice_done = self.slice_end[cpu as usize] <= now;
        self.queue.first().is_none_or(|(best, ..)| if is_slice_done { own < *best } else { own <= *best })
    }
}

impl Rule for Decay {
    fn start(&mut self, id: TaskId, _: Option<TaskId>) {
        if id as usize == self.usage.len() {
            self.usage.push(Usage::default());
        } else {
            self.usage[id as usize] = Usage::default();
        }
    }

    fn end(&mut self, _: TaskId, _: Option<TaskId>) {}

    fn charge(&mut self, id: TaskId, from: Time, to: Time) {
        self.usage[id as usize].add(from, to);
    }

    fn wake(&mut self, table: &mut CpuTable, now: Time, id: TaskId) {
        self.sort_queue(now);
        self.enqueue(now, id);
        if let Some(cpu) = table.free_for(id) {
            table.kick(cpu);
            return;
        }
        self.charge_all(table, now);
        let own = self.priority(now, id);
        // The CPU whose task has the largest number; ties: the lowest CPU.
        let worst = table.busy().map(|(cpu, id)| (self.usage[id as usize].priority(), u32::MAX - cpu)).max();
        if let Some((_, cpu)) = worst.filter(|(priority, _)| own < *priority) {
            table.kick(u32::MAX - cpu);
        }
    }

    fn block(&mut self, _: TaskId) {}

    fn preempted(&mut self, _: &mut CpuTable, _: Time, _: TaskId) {}

    fn choose(&mut self, _: &mut CpuTable, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId> {
        self.sort_queue(now);
        let next = match previous {
            Some(id) if self.goes_on(now, cpu, id) => {
                if self.slice_end[cpu as usize] > now {
                    return previous; // The task keeps the rest of its slice.
                }
                id
            }
            _ => {
                if let Some(id) = previous {
                    self.enqueue(now, id);
                }
                self.queue.pop_first()?.2
            }
        };
        self.slice_end[cpu as usize] = now + self.slice_ns;
        Some(next)
    }

    fn slice_left(&self, now: Time, cpu: u32, _: TaskId, _: Time) -> Time {
        self.slice_end[cpu as usize].saturating_sub(now)
    }

    /// A waiting task's number decays to the smallest value; then the task waits at most for one round of all
    /// tasks.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        (HALVINGS + 1) * HALVED_NS + super::round_ns_max(self.slice_ns + switch_ns, tasks)
    }
}
