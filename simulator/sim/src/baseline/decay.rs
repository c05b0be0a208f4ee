//! Degrading priorities, as in IRIX 5.
//!
//! Problem: seed 000 compares with the scheduler of IRIX 5.3, "a priority-based scheduling scheme in which the
//! priority of a process drops as it uses CPU time" (section 3.1). There a CPU "normally picks the runnable process
//! with the highest priority". SGI's guides add two facts. A process' priority number grows steadily while it runs,
//! and a slice is HZ/30, of 100 ticks a second. How much the number grows, and how that is forgotten, is not
//! published.
//!
//! Terms: *usage* is a task's decayed CPU time in ticks of 10 ms. A smaller *priority* number goes first, as in UNIX.
//!
//! Algorithm: that of System V, from which IRIX descends (M. Bach: The Design of the UNIX Operating System, 1986,
//! section 8.1).
//! - A task's usage counts the ticks that it ran. All usage is halved once a second, and `priority = usage / 2 + 60`,
//!   at most 127.
//! - A CPU takes the task with the smallest number, and among equals the one that waited longest. It chooses again at
//!   the end of a slice.
//! - A task that wakes takes an idle CPU, its last one if that is idle. Else it takes the CPU of the task with the
//!   largest number, if its own is smaller.
//!
//! Properties: tasks that only compute get equal parts. A task that slept has a small number and goes first. No task
//! starves, since a wait halves the usage every second.
//!
//! Ours, and not from a source:
//! - A running task's number follows its usage at once, as SGI's text has it, and not only once a second.
//! - A new task begins without usage.
//! - Time is counted exactly.
//!
//! Left out: kernel priorities, which a task has between its wake-up and its return to user mode; nice values, which
//! are all 0; IRIX's affinity to caches.

use std::collections::BTreeSet;

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::Floor;
use crate::Time;

/// The clock tick in which usage is counted, in ns: HZ is 100 in IRIX.
const TICK_NS: Time = 10_000_000;
/// Usage is halved this often, in ns (Bach, section 8.1).
const HALVED_NS: Time = 1_000_000_000;
/// The smallest number that a task in user mode has (Bach, figure 8.4).
const USER: u64 = 60;
/// The largest number that there is: it is kept in a signed byte.
const WORST: u64 = 127;
/// Halvings after which the largest usage, of a task that ran all the time, is below two ticks and its number [`USER`]:
/// 200, 100, 50, 25, 12, 6, 3, 1.
pub(super) const HALVINGS: Time = 7;

/// What is kept of a task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Decayed CPU time, in ns, as it was halved last at `second`.
    pub(super) ns: Time,
    second: u64,
}

impl Usage {
    /// Halves it as often as a moment asks for.
    pub(super) fn halve(&mut self, now: Time) {
        let second = now / HALVED_NS;
        self.ns = self.ns.checked_shr(u32::try_from(second - self.second).unwrap_or(u32::MAX)).unwrap_or(0);
        self.second = second;
    }

    /// Adds time on a CPU, halving at each second's end.
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

/// The rule.
#[derive(Debug, Clone)]
pub(crate) struct Decay {
    slice_ns: Time,
    pub(super) usage: Vec<Usage>,
    /// The tasks that wait: by number, then by arrival.
    queue: BTreeSet<(u64, u64, TaskId)>,
    /// How many have come.
    came: u64,
    /// The second that the queue's numbers are of.
    second: u64,
    /// When each CPU's slice ends.
    ends: Vec<Time>,
}

impl Decay {
    /// `cpus` idle CPUs with slices of `slice_ns`.
    pub(crate) fn new(slice_ns: Time, cpus: u32) -> Decay {
        Decay {
            slice_ns,
            usage: Vec::new(),
            queue: BTreeSet::new(),
            came: 0,
            second: 0,
            ends: vec![0; cpus as usize],
        }
    }

    /// A task's number at this moment.
    fn priority(&mut self, now: Time, id: TaskId) -> u64 {
        let usage = &mut self.usage[id as usize];
        usage.halve(now);
        usage.priority()
    }

    /// A second has begun since the queue was put in order: every task's usage was halved.
    fn put_in_order(&mut self, now: Time) {
        if core::mem::replace(&mut self.second, now / HALVED_NS) == now / HALVED_NS {
            return;
        }
        let queue = core::mem::take(&mut self.queue);
        self.queue = queue.into_iter().map(|(_, came, id)| (self.priority(now, id), came, id)).collect();
    }

    fn enqueue(&mut self, now: Time, id: TaskId) {
        self.came += 1;
        let priority = self.priority(now, id);
        self.queue.insert((priority, self.came, id));
    }

    /// Whether the task that ran goes on: at a slice's end equals have their turn, before it only better ones.
    fn keeps(&mut self, now: Time, cpu: u32, id: TaskId) -> bool {
        let own = self.priority(now, id);
        let over = self.ends[cpu as usize] <= now;
        self.queue.first().is_none_or(|(best, ..)| if over { own < *best } else { own <= *best })
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

    fn ran(&mut self, id: TaskId, from: Time, to: Time) {
        self.usage[id as usize].add(from, to);
    }

    fn wake(&mut self, floor: &mut Floor, now: Time, id: TaskId) {
        self.put_in_order(now);
        self.enqueue(now, id);
        if let Some(cpu) = floor.free_for(id) {
            floor.kick(cpu);
            return;
        }
        self.charge_all(floor, now);
        let own = self.priority(now, id);
        // The first CPU of those with the largest number.
        let worst = floor.busy().map(|(cpu, id)| (self.usage[id as usize].priority(), u32::MAX - cpu)).max();
        if let Some((_, cpu)) = worst.filter(|(priority, _)| own < *priority) {
            floor.kick(u32::MAX - cpu);
        }
    }

    fn leave(&mut self, _: TaskId) {}

    fn put_off(&mut self, _: &mut Floor, _: Time, _: TaskId) {}

    fn choose(&mut self, _: &mut Floor, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId> {
        self.put_in_order(now);
        let next = match previous {
            Some(id) if self.keeps(now, cpu, id) => {
                if self.ends[cpu as usize] > now {
                    return previous; // its slice goes on
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
        self.ends[cpu as usize] = now + self.slice_ns;
        Some(next)
    }

    fn slice_left(&self, now: Time, cpu: u32, _: TaskId, _: Time) -> Time {
        self.ends[cpu as usize].saturating_sub(now)
    }

    /// Until its number is the smallest there is, and then behind all tasks that were there before.
    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        (HALVINGS + 1) * HALVED_NS + super::turns(self.slice_ns + switch_ns, tasks)
    }
}
