//! A queue for each CPU, as in Hurricane on Hector.
//!
//! Problem: seed 001 places processes in pools of processors, and nothing else is to move them. Its kernel has a queue for
//! each processor. A server outside of it says on which processor a process begins.
//!
//! Terms: a task's *place* is the CPU where it runs. It begins as that of its parent, or else as the first CPU.
//!
//! Algorithm: a task waits in the queue of its place. A CPU takes the first task of its queue; a task whose slice has
//! expired goes to the end. A task that is given another place goes there when its CPU reschedules, which is at once.
//!
//! Properties: a task runs at its place and nowhere else. Of n tasks of a place, each has a slice in n.
//!
//! Limits: priorities are left out.
//!
//! Source: seed 001, section 3.

use std::collections::VecDeque;

use commonhold_dispatch::TaskId;

use super::Rule;
use super::floor::Floor;
use crate::Time;

/// The rule.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    slice_ns: Time,
    /// The place of each task.
    place: Vec<u32>,
    /// When the task on each CPU began its slice.
    began: Vec<Time>,
    queues: Vec<VecDeque<TaskId>>,
}

impl Places {
    /// `cpus` idle CPUs with slices of `slice_ns`.
    pub(crate) fn new(slice_ns: Time, cpus: u32) -> Places {
        let cpus = cpus as usize;
        Places { slice_ns, place: Vec::new(), began: vec![0; cpus], queues: vec![VecDeque::new(); cpus] }
    }

    /// A task has another place from now on.
    pub(super) fn seat(&mut self, floor: &mut Floor, id: TaskId, cpu: u32) {
        let before = core::mem::replace(&mut self.place[id as usize], cpu);
        if before == cpu {
            return;
        }
        let queue = &mut self.queues[before as usize];
        if let Some(at) = queue.iter().position(|other| *other == id) {
            queue.remove(at);
            self.queues[cpu as usize].push_back(id);
            kick_if_free(floor, cpu);
        } else if floor.is_on_cpu(id) {
            floor.kick(before);
        }
    }
}

fn kick_if_free(floor: &mut Floor, cpu: u32) {
    if floor.is_free(cpu) {
        floor.kick(cpu);
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

    fn ran(&mut self, _: TaskId, _: Time, _: Time) {}

    fn wake(&mut self, floor: &mut Floor, _: Time, id: TaskId) {
        let place = self.place[id as usize];
        self.queues[place as usize].push_back(id);
        kick_if_free(floor, place);
    }

    fn leave(&mut self, _: TaskId) {}

    fn put_off(&mut self, floor: &mut Floor, _: Time, id: TaskId) {
        kick_if_free(floor, self.place[id as usize]);
    }

    fn choose(&mut self, _: &mut Floor, now: Time, cpu: u32, previous: Option<TaskId>) -> Option<TaskId> {
        let at = cpu as usize;
        if let Some(id) = previous {
            let stays = self.place[id as usize] == cpu;
            if stays && now < self.began[at].saturating_add(self.slice_ns) {
                return previous;
            }
            self.queues[self.place[id as usize] as usize].push_back(id);
        }
        let next = self.queues[at].pop_front();
        self.began[at] = now;
        next
    }

    fn slice_left(&self, now: Time, cpu: u32, _: TaskId, _: Time) -> Time {
        self.began[cpu as usize].saturating_add(self.slice_ns).saturating_sub(now)
    }

    fn patience(&self, switch_ns: Time, tasks: u64) -> Time {
        super::turns(self.slice_ns + switch_ns, tasks)
    }
}
