//! A queue for each CPU, as in Hurricane on Hector.
//!
//! Problem: seed 001 places processes in pools of processors, so the scheduler must not migrate processes by
//! itself. The kernel of seed 001 has a queue for each processor; a server outside the kernel chooses the
//! processor for a new process.
//!
//! Terms: a task's *place* is the CPU on which it runs. A new task has the place of its parent; without a
//! parent, CPU 0.
//!
//! Algorithm: a task waits in the queue of its place (round robin). A CPU takes the first task of its queue;
//! a task whose slice has expired goes to the end. A task that gets another place while it runs moves when
//! its CPU reschedules, which is at once.
//!
//! Properties: a task runs at its place and nowhere else. Each of n tasks at a place gets one of n slices.
//!
//! Limits: priorities are left out.
//!
//! Source: seed 001, section 3.

use std::collections::VecDeque;

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::CpuTable;
use crate::Time;

/// The rule of fixed places.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    slice_ns: Time,
    /// The place of each task.
    place: Vec<u32>,
    /// When the slice on each CPU began.
    slice_start: Vec<Time>,
    /// The waiting tasks of each CPU.
    queues: Vec<VecDeque<TaskId>>,
}

impl Places {
    /// `cpus` idle CPUs with slices of `slice_ns`.
    pub(crate) fn new(slice_ns: Time, cpus: u32) -> Places {
        let cpus = cpus as usize;
        Places {
            slice_ns,
            place: Vec::new(),
            slice_start: vec![0; cpus],
            queues: vec![VecDeque::new(); cpus],
        }
    }

    /// Gives a task another place. A waiting task moves to the new queue; a running one makes its CPU
    /// reschedule.
    pub(super) fn seat(&mut self, table: &mut CpuTable, id: TaskId, cpu: u32) {
        let previous_cpu = core::mem::replace(&mut self.place[id as usize], cpu);
        if previous_cpu == cpu {
            return;
        }
        let queue = &mut self.queues[previous_cpu as usize];
        if let Some(index) = queue.iter().position(|other| *other == id) {
            queue.remove(index);
            self.queues[cpu as usize].push_back(id);
            kick_if_free(table, cpu);
        } else if table.is_on_cpu(id) {
            table.kick(previous_cpu);
        }
    }
}

fn kick_if_free(table: &mut CpuTable, cpu: u32) {
    if table.is_free(cpu) {
        table.kick(cpu);
    }
}

impl Rule for Places {
    fn start(&mut self, id: TaskId, parent: Option<TaskId>) {
        let place = parent.map_or(0, |parent| self.place[parent as usize]);
        if id as usize == self.place.len() {
            self.place.push(place);
        } else {
            self.place[id as usize] = place;
        }
    }

    fn end(&mut self, _: TaskId, _: Option<TaskId>) {}

    fn charge(&mut self, _: TaskId, _: Time, _: Time) {}

    fn wake(&mut self, table: &mut CpuTable, _: Time, id: TaskId) {
        let place = self.place[id as usize];
        self.queues[place as usize].push_back(id);
        kick_if_free(table, place);
    }

    fn block(&mut self, _: TaskId) {}

    fn preempted(&mut self, table: &mut CpuTable, _: Time, id: TaskId) {
        kick_if_free(table, self.place[id as usize]);
    }

    fn choose(&mut self, _: &mut CpuTable, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId> {
        let index = cpu as usize;
        if let Some(id) = previous {
            let is_at_its_place = self.place[id as usize] == cpu;
            if is_at_its_place && now < self.slice_start[index].saturating_add(self.slice_ns) {
                return previous;
            }
            self.queues[self.place[id as usize] as usize].push_back(id);
        }
        let next = self.queues[index].pop_front();
        self.slice_start[index] = now;
        next
    }

    fn slice_left(&self, now: Time, cpu: u32, _: TaskId, _: Time) -> Time {
        self.slice_start[cpu as usize].saturating_add(self.slice_ns).saturating_sub(now)
    }

    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        super::round_ns_max(self.slice_ns + switch_ns, tasks)
    }
}
