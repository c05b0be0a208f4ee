//! CPUs that go offline and come online.
//!
//! The scheduler has no callbacks for hotplug. So Linux ends it whenever CPUs go offline or come online, and
//! the daemon loads it again with the same units and owners. The new scheduler knows all tasks, and has no
//! history: virtual times, passes, credits among borrowers and call-backs in flight begin anew. Tasks on
//! online CPUs keep running. All other runnable tasks are queued, longest wait first.
//!
//! Kept, as a live backend keeps them in its own books: accounts, counts of call-backs and of deadlines, and
//! what had each CPU while tasks waited for it.
//!
//! Limits: loading takes no time. On a live machine, the kernel's own scheduler runs the tasks meanwhile.

use std::collections::BinaryHeap;

use commonhold_machine::CpuSet;

use super::{Kernel, Position, QUEUED, TaskId, dispatch_init_task, dispatch_running, dispatch_stopping};
use crate::tables::{NOBODY, Rescues};
use crate::unit_rules::UnitRules;

/// The configuration of a scheduler that is loaded again.
#[derive(Debug, Clone, Copy)]
pub struct Reload<'a> {
    /// The rules of each unit, enclosers before their sub-units.
    pub units: &'a [(u32, UnitRules)],
    /// The owner of each owned CPU. A CPU that is offline may have one.
    pub owners: &'a [(u32, u32)],
    /// The pool of each CPU; empty if tasks have no seats.
    pub pools: &'a [u32],
}

impl Kernel {
    /// Makes exactly these CPUs online, and loads the scheduler again. Returns false, and changes nothing, if
    /// no CPU of the machine would be online. The affinity of a task that allows no online CPU is lifted, as
    /// in Linux.
    pub fn set_online(&mut self, now: u64, online: &CpuSet, reload: Reload<'_>) -> bool {
        let cpus = self.world.rules.cpus;
        let mut mask = vec![0; self.online.len()];
        for cpu in online.iter().filter(|cpu| *cpu < cpus) {
            mask[cpu as usize / 64] |= 1 << (cpu % 64);
        }
        if mask.iter().all(|word| *word == 0) {
            return false;
        }
        for cpu in 0..cpus {
            self.charge(now, cpu);
            if let Some(id) = self.runs[cpu as usize].current {
                self.call(now, cpu, |kernel| {
                    // SAFETY: as in `start`.
                    unsafe { dispatch_stopping((*kernel).task(id), true) };
                });
            }
        }
        self.online = mask;
        let waiting = self.waiting_in_order();
        self.forget();
        for (unit, rules) in reload.units {
            self.set_unit(now, *unit, *rules);
        }
        for (cpu, unit) in reload.owners {
            self.own(now, *cpu, *unit);
        }
        self.set_pools(reload.pools);
        // Owners were set before any task was there: no CPU has to choose again.
        self.kicks.clear();
        for run in &mut self.runs {
            run.preempted = false;
        }
        self.readmit(now);
        for (since, id) in waiting {
            self.call(now, self.tasks[id as usize].cpu, |kernel| {
                // SAFETY: as in `wake`.
                unsafe { Kernel::queue_elsewhere(kernel, id) };
            });
            // Its wait goes on.
            self.tasks[id as usize].own.since = since;
        }
        true
    }

    /// The runnable tasks that are not on an online CPU, each with the beginning of its wait, in that order.
    fn waiting_in_order(&self) -> Vec<(u64, TaskId)> {
        let waits = |id: TaskId| {
            let task = &self.tasks[id as usize];
            let runs = self.is_online(task.cpu) && self.runs[task.cpu as usize].current == Some(id);
            (task.scx.flags & QUEUED != 0 && !runs).then_some((task.own.since, id))
        };
        let mut waiting: Vec<(u64, TaskId)> = (0..).take(self.tasks.len()).filter_map(waits).collect();
        waiting.sort_unstable();
        waiting
    }

    /// Resets all that a scheduler forgets when it ends.
    fn forget(&mut self) {
        let words = self.world.words as usize;
        for unit in &mut self.units {
            *unit = unit.reloaded(self.world.rules.slice_ns);
        }
        for cpu in &mut self.table {
            *cpu = cpu.reloaded();
        }
        self.masks.fill(0);
        let time_shared = self.units.len() * 2 * words;
        for cpu in 0..self.world.rules.cpus {
            self.masks[time_shared + cpu as usize / 64] |= 1 << (cpu % 64);
        }
        self.queued.fill(0);
        self.waits.fill(0);
        self.queues.iter_mut().for_each(BinaryHeap::clear);
        self.positions.fill(Position { serial: 0, queue: 0 });
        (self.world.pass, self.world.loan_pass, self.world.away) = (0, 0, 0);
        self.world.rescues = Rescues::default();
        self.idle.fill(0);
        self.world.idling = 0;
        for cpu in 0..self.world.rules.cpus {
            let online = self.is_online(cpu);
            let run = &mut self.runs[cpu as usize];
            run.local.clear();
            run.current = run.current.filter(|_| online);
            let idles = online && run.current.is_none();
            self.set_idle(cpu, idles);
        }
    }

    /// Makes all tasks known to the new scheduler, and those on CPUs running.
    fn readmit(&mut self, now: u64) {
        for id in 0..self.tasks.len() {
            self.lift_impossible_affinity(id);
            let former = self.tasks[id].own;
            self.tasks[id].own = former.reloaded();
            self.call(now, 0, |kernel| {
                // SAFETY: as in `start`.
                unsafe { dispatch_init_task(&raw mut (&mut (*kernel).tasks)[id], core::ptr::null()) };
            });
            let seat = Some(former.seat).filter(|cpu| *cpu != NOBODY && self.is_online(*cpu));
            (self.tasks[id].own.seat, self.tasks[id].own.gang) = (seat.unwrap_or(NOBODY), former.gang);
        }
        for cpu in 0..self.world.rules.cpus {
            let Some(id) = self.runs[cpu as usize].current else { continue };
            self.tasks[id as usize].scx.slice = self.world.rules.slice_ns;
            self.call(now, cpu, |kernel| {
                // SAFETY: as in `start`.
                unsafe { dispatch_running((*kernel).task(id)) };
            });
        }
    }

    fn lift_impossible_affinity(&mut self, id: usize) {
        let Some(mask) = &self.affinities[id] else { return };
        if mask.iter().zip(&self.online).all(|(allowed, online)| allowed & online == 0) {
            self.affinities[id] = None;
            self.tasks[id].allowed = core::ptr::null();
            self.tasks[id].nr_cpus_allowed = i32::try_from(self.world.rules.cpus).unwrap_or(i32::MAX);
        }
    }
}
