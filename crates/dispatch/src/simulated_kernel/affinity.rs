//! Affinities: on which CPUs a task may run.
//!
//! What Linux does when one is set (`__set_cpus_allowed_ptr` in kernel/sched/core.c):
//! - a task that waits is taken out of its queue and queued anew, since it may have to wait in another one;
//! - a task on a CPU that it may not use any more is interrupted, and moves to one that it may use;
//! - a task that sleeps is woken on a CPU that it may use. Of one that may use a single CPU, the scheduler is not asked
//!   which it is to be.

use commonhold_machine::CpuSet;

use super::{Kernel, dispatch_enqueue, dispatch_stopping};
use crate::TaskId;

impl Kernel {
    /// Says on which of the machine's CPUs a task may run from now on; `None`: on any. Nothing changes where none of the CPUs
    /// is there.
    pub fn allow(&mut self, now: u64, id: TaskId, cpus: Option<&CpuSet>) {
        let all = self.world.rules.cpus;
        let mut mask = vec![0u64; self.world.words as usize];
        let mut count = 0;
        for cpu in cpus.into_iter().flat_map(CpuSet::iter).filter(|cpu| *cpu < all) {
            mask[cpu as usize / 64] |= 1 << (cpu % 64);
            count += 1;
        }
        if cpus.is_some() && count == 0 {
            return;
        }
        let mask = (cpus.is_some() && count < all).then(|| mask.into_boxed_slice());
        let task = &mut self.tasks[id as usize];
        task.allowed = mask.as_ref().map_or(core::ptr::null(), |mask| mask.as_ptr());
        task.nr_cpus_allowed = i32::try_from(if mask.is_some() { count } else { all }).unwrap_or(i32::MAX);
        let cpu = task.cpu;
        // The words of the mask lie where they are until the next one is in its place.
        self.affinities[id as usize] = mask;
        if self.runs[cpu as usize].current == Some(id) {
            if !self.allows(id, cpu) {
                self.kick(cpu, true);
            }
            return;
        }
        let local = &mut self.runs[cpu as usize].local;
        if let Some(at) = local.iter().position(|one| *one == id) {
            if self.allows(id, cpu) {
                return;
            }
            self.runs[cpu as usize].local.remove(at);
        } else if self.placed(id) {
            self.take_out(id);
        } else {
            return;
        }
        self.call(now, cpu, |kernel| {
            // SAFETY: as in `wake`.
            unsafe { Kernel::queue_elsewhere(kernel, id) };
        });
    }

    /// The CPU that a task runs on, or ran on last.
    pub fn cpu_of(&self, id: TaskId) -> u32 {
        self.tasks[id as usize].cpu
    }

    /// Whether a task may run on a CPU.
    pub(super) fn allows(&self, id: TaskId, cpu: u32) -> bool {
        self.affinities[id as usize]
            .as_ref()
            .is_none_or(|mask| mask[cpu as usize / 64] >> (cpu % 64) & 1 == 1)
    }

    /// A CPU that a task may use, in place of one that it may not: in the same node if there is one.
    pub(super) fn instead(&self, id: TaskId, cpu: u32) -> u32 {
        if self.allows(id, cpu) {
            return cpu;
        }
        let node = self.table[cpu as usize].node;
        let allowed = (0..self.world.rules.cpus).filter(|other| self.allows(id, *other));
        allowed.min_by_key(|other| (self.table[*other as usize].node != node, *other)).unwrap_or(cpu)
    }

    /// The only CPU that a task may use, if there is only one.
    pub(super) fn only(&self, id: TaskId) -> Option<u32> {
        (self.tasks[id as usize].nr_cpus_allowed == 1 && self.affinities[id as usize].is_some())
            .then(|| self.instead(id, self.tasks[id as usize].cpu))
    }

    /// A runnable task that is in no queue and on no CPU is queued where it may run.
    ///
    /// # Safety
    /// Within [`Kernel::call`], with its pointer.
    pub(super) unsafe fn queue_elsewhere(kernel: *mut Kernel, id: TaskId) {
        // SAFETY: the caller's promise; every reference made here ends before the scheduler is called.
        unsafe {
            let task = (*kernel).task(id);
            let cpu = (*kernel).instead(id, (*task).cpu);
            (*task).cpu = cpu;
            dispatch_enqueue(task, 0);
            (*kernel).settle_local(id, cpu);
        }
    }

    /// A task that could go on leaves a CPU that it may not use any more: as the kernel's stopper thread moves it.
    ///
    /// # Safety
    /// Within [`Kernel::call`], with its pointer.
    pub(super) unsafe fn move_away(kernel: *mut Kernel, id: TaskId) {
        // SAFETY: as in `queue_elsewhere`.
        unsafe {
            dispatch_stopping((*kernel).task(id), true);
            Kernel::queue_elsewhere(kernel, id);
        }
    }

    /// Whether a task waits for this CPU, since it must run there.
    pub fn stray_waits(&self, cpu: u32) -> bool {
        self.queued[(self.world.rules.units + cpu) as usize] > 0
    }

    /// Whether a task waits in a unit's queue that may run on this CPU. It looks at all that wait there.
    pub fn waits_for(&self, cpu: u32, unit: u32) -> bool {
        self.queued[unit as usize] > 0
            && self.queues[unit as usize].iter().any(|entry| {
                self.places[entry.id as usize].ticket == entry.ticket && self.allows(entry.id, cpu)
            })
    }
}
