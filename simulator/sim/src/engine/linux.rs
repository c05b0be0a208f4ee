//! What a kernel that enforces as Linux does works at by itself: taking memory in the background and by order, and telling
//! how long units wait.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::Engine;
use super::task::TaskState;
use crate::memory::Reclaimed;

impl Engine<'_> {
    /// Few frames may be free.
    pub(super) fn take_in_background(&mut self) {
        let taken = self.memory.background();
        self.follow_reclaim(taken);
    }

    /// What was taken by order is written: on with the rest.
    pub(super) fn take_on(&mut self) {
        for id in self.scenario.contract.held() {
            if self.memory.takes(id) {
                let taken = self.memory.take_on(id);
                self.follow_reclaim(taken);
            }
        }
    }

    /// Writes what was taken and must be written, and lets those go on that waited for what is free.
    pub(super) fn follow_reclaim(&mut self, taken: Reclaimed) {
        let freed = taken.freed > 0;
        for out in taken.writes {
            self.write_out(out, false);
        }
        if freed {
            self.feed_starved();
        }
    }

    /// A task begins to wait: for memory, for a disk, or for both, as one does that reads pages back.
    pub(super) fn stall_begins(&mut self, id: TaskId) {
        let (memory, disk, unit) = self.stalls_on(id);
        if memory {
            self.memory.wait_begins(unit, self.now);
        }
        if disk {
            self.stalls.wait_begins(self.now, unit);
        }
    }

    /// Its wait has ended.
    pub(super) fn stall_ends(&mut self, id: TaskId) {
        let (memory, disk, unit) = self.stalls_on(id);
        if memory {
            self.memory.wait_ends(unit, self.now);
        }
        if disk {
            self.stalls.wait_ends(self.now, unit);
        }
    }

    fn stalls_on(&self, id: TaskId) -> (bool, bool, UnitId) {
        let task = &self.tasks[id as usize];
        let disk = matches!(task.state, TaskState::Transfer | TaskState::File | TaskState::Throttled);
        let memory = task.state == TaskState::Frame || disk && self.reads_back(id);
        (memory, disk, UnitId(task.unit))
    }
}
