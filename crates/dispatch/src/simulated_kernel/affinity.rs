//! Affinities: the CPUs on which a task may run.
//!
//! The simulated kernel does what Linux does when an affinity is set (`__set_cpus_allowed_ptr` in
//! kernel/sched/core.c):
//! - a waiting task is removed from its queue and enqueued again, since it may have to wait in another queue;
//! - a task on a CPU that it may no longer use is interrupted, and moves to a CPU that it may use;
//! - a sleeping task will wake on a CPU that it may use. If it may use only one CPU, that CPU is taken, and
//!   the scheduler's `select_cpu` is not called.

use commonhold_machine::CpuSet;

use super::{Kernel, dispatch_enqueue, dispatch_stopping};
use crate::TaskId;

impl Kernel {
    /// Sets a task's affinity; `None`: any CPU. Has no effect if the machine has no CPU of the affinity.
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
        // The mask that `task.allowed` points to is on the heap: it stays there until the next affinity
        // replaces it.
        self.affinities[id as usize] = mask;
        if self.runs[cpu as usize].current == Some(id) {
            if !self.allows(id, cpu) {
                self.kick(cpu, true);
            }
            return;
        }
        let local = &mut self.runs[cpu as usize].local;
        if let Some(position) = local.iter().position(|queued| *queued == id) {
            if self.allows(id, cpu) {
                return;
            }
            self.runs[cpu as usize].local.remove(position);
        } else if self.is_queued(id) {
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

    /// Whether a task may run on a CPU: the CPU is online, and the task's affinity includes it.
    pub(super) fn allows(&self, id: TaskId, cpu: u32) -> bool {
        let mask = self.affinities[id as usize].as_ref();
        self.is_online(cpu) && mask.is_none_or(|mask| mask[cpu as usize / 64] >> (cpu % 64) & 1 == 1)
    }

    /// The CPU `cpu` if the task may use it. Else the first CPU that the task may use, in the node of `cpu`
    /// if there is one there.
    pub(super) fn allowed_instead_of(&self, cpu: u32, id: TaskId) -> u32 {
        if self.allows(id, cpu) {
            return cpu;
        }
        let node = self.table[cpu as usize].node;
        let allowed = (0..self.world.rules.cpus).filter(|other| self.allows(id, *other));
        allowed.min_by_key(|other| (self.table[*other as usize].node != node, *other)).unwrap_or(cpu)
    }

    /// The CPU that a task's affinity pins it to; `None` if it may use more than one.
    pub(super) fn only_allowed_cpu(&self, id: TaskId) -> Option<u32> {
        (self.tasks[id as usize].nr_cpus_allowed == 1 && self.affinities[id as usize].is_some())
            .then(|| self.allowed_instead_of(self.tasks[id as usize].cpu, id))
    }

    /// Enqueues a runnable task that is in no queue and on no CPU, after moving it to a CPU that it may use.
    ///
    /// # Safety
    /// Within [`Kernel::call`], with its pointer.
    pub(super) unsafe fn queue_elsewhere(kernel: *mut Kernel, id: TaskId) {
        // SAFETY: the caller's promise; every reference made here ends before the scheduler is called.
        unsafe {
            let task = (*kernel).task(id);
            let cpu = (*kernel).allowed_instead_of((*task).cpu, id);
            (*task).cpu = cpu;
            dispatch_enqueue(task, 0);
            (*kernel).move_to_local_of(id, cpu);
        }
    }

    /// Moves a runnable task off a CPU that it may no longer use, as the kernel's stopper thread does.
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

    /// Whether a task that must run on this CPU waits in the CPU's own queue.
    pub fn stray_waits(&self, cpu: u32) -> bool {
        self.queued[(self.world.rules.units + cpu) as usize] > 0
    }

    /// Whether a task that may run on this CPU waits in a unit's queue. Examines the whole queue.
    pub fn waits_for(&self, cpu: u32, unit: u32) -> bool {
        self.queued[unit as usize] > 0
            && self.queues[unit as usize]
                .iter()
                .any(|entry| !self.is_stale(entry) && self.allows(entry.id, cpu))
    }
}
