//! Work that a Linux kernel does by itself: reclaiming memory in the background and by order, and measuring
//! how long units are stalled on memory and disks (pressure stall information).

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::Engine;
use super::task::TaskState;
use crate::memory::Reclaimed;

impl Engine<'_> {
    /// Reclaims in the background, as `kswapd` does, if few frames are free.
    pub(super) fn reclaim_in_background(&mut self) {
        let reclaimed = self.memory.reclaim_in_background();
        self.finish_reclaim(reclaimed);
    }

    /// Continues the reclaims that plans ordered, after earlier pages were written.
    pub(super) fn continue_ordered_reclaims(&mut self) {
        for id in self.scenario.contract.held() {
            if self.memory.has_reclaim_order(id) {
                let reclaimed = self.memory.continue_reclaim(id);
                self.finish_reclaim(reclaimed);
            }
        }
    }

    /// Starts the writes of reclaimed dirty pages, and wakes the tasks that wait for frames if some are free
    /// already.
    pub(super) fn finish_reclaim(&mut self, reclaimed: Reclaimed) {
        let freed = reclaimed.freed > 0;
        for out in reclaimed.writes {
            self.write_out(out, false);
        }
        if freed {
            self.feed_starved();
        }
    }

    /// A task begins to wait: for memory, for a disk, or for both. A task that reads back pages that were
    /// swapped out waits for both.
    pub(super) fn stall_begins(&mut self, id: TaskId) {
        let (memory, disk, unit) = self.stalls_on(id);
        if memory {
            self.memory.wait_begins(unit, self.now);
        }
        if disk {
            self.stalls.wait_begins(self.now, unit);
        }
    }

    /// A task's wait has ended; its state still says what for.
    pub(super) fn stall_ends(&mut self, id: TaskId) {
        let (memory, disk, unit) = self.stalls_on(id);
        if memory {
            self.memory.wait_ends(unit, self.now);
        }
        if disk {
            self.stalls.wait_ends(self.now, unit);
        }
    }

    /// Whether a task's wait counts as a stall on memory, and as one on disks; and the task's unit.
    fn stalls_on(&self, id: TaskId) -> (bool, bool, UnitId) {
        let task = &self.tasks[id as usize];
        let disk = matches!(task.state, TaskState::Transfer | TaskState::File | TaskState::Throttled);
        let memory = task.state == TaskState::Frame || disk && self.reads_back(id);
        (memory, disk, UnitId(task.unit))
    }
}
