//! The speed of a running task: the CPU's full speed, divided by the slowdowns by contention
//! (`crate::contention`), by interrupts and by memory of other nodes.

use commonhold_policy::share::part_of;

use super::Engine;
use super::cpu::Cpu;
use super::task::{Spent, Task};
use crate::Time;
use crate::contention::{Holding, Remote, Sharer, Slowdown};
use crate::memory::{Memory, SpaceId};
use crate::scenario::{Interrupts, Op, Scenario};

/// The slowdown factor 1, in millionths: the speed of a task that is alone on the machine, with all memory
/// local.
pub(super) const ALONE: u64 = 1_000_000;

/// The fraction of time stalled on memory, in millionths, of work that only loads data.
const ALWAYS: u32 = 1_000_000;

/// A slowdown factor: time per unit of a task's work, in millionths. The excess over one is divided by cause:
/// the kernel's lock, remote memory, and, for the rest, stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slow {
    pub(super) total: u64,
    /// The part due to the kernel's lock.
    lock: u64,
    /// The part due to memory of other nodes.
    remote: u64,
}

impl Slow {
    /// Full speed.
    pub(super) const NOT: Slow = Slow { total: ALONE, lock: 0, remote: 0 };

    /// The slowdown of a task by contention in the kernel.
    pub(super) fn in_kernel(slow: Slowdown) -> Slow {
        Slow { total: slow.total, lock: slow.lock, remote: 0 }
    }

    /// Multiplies by another factor, in millionths, whose cost counts as stalls: by the bus, caches, cores or
    /// interrupts.
    pub(super) fn times(self, slowdown: u64) -> Slow {
        if slowdown == ALONE {
            return self;
        }
        Slow { total: part_of(self.total, slowdown, ALONE), ..self }
    }

    /// Replaces the factor due to memory of other nodes, in millionths.
    pub(super) fn with_remote(self, slowdown: u64) -> Slow {
        let near = self.total - self.remote;
        let total = if slowdown == ALONE { near } else { part_of(near, slowdown, ALONE) };
        Slow { total, remote: total - near, ..self }
    }

    /// Adds to `spent` the time `elapsed` that some work took: the work itself, and the excess by cause.
    pub(super) fn book(self, spent: &mut Spent, elapsed: Time, work: Time) {
        spent.work_ns += work;
        let extra = elapsed - work;
        if extra == 0 {
            return;
        }
        let due_to = |cause| if cause == 0 { 0 } else { part_of(extra, cause, self.total - ALONE) };
        let (lock, remote) = (due_to(self.lock), due_to(self.remote));
        spent.lock_ns += lock;
        spent.remote_ns += remote;
        spent.stall_ns += extra - lock - remote;
    }
}

impl Engine<'_> {
    /// Updates the slowdown of a CPU's task by memory of other nodes. Called when the task has just got the
    /// CPU, or may have got pages.
    #[inline]
    pub(super) fn update_remote_slowdown(&mut self, cpu: usize) {
        if self.remote.is_some() {
            self.compute_remote_slowdown(cpu);
        }
    }

    fn compute_remote_slowdown(&mut self, index: usize) {
        let (Some(remote), Some(id)) = (&self.remote, self.cpus[index].task) else { return };
        let (task, node) = (&self.tasks[id as usize], remote.node(index));
        self.memory.set_home(task.space, node);
        self.tasks[id as usize].data.get_or_insert(node);
        let task = &self.tasks[id as usize];
        let stalled = self.scenario.workload.programs[task.program as usize].stalled;
        let cpu = &mut self.cpus[index];
        cpu.far = remote.slowdown(stalled, node, self.memory.pages_by_node(task.space));
        cpu.slow = cpu.slow.with_remote(cpu.far + cpu.shared);
    }

    /// Updates the slowdown of each running task by accesses to data that the tasks of its job share.
    pub(super) fn update_sharing_slowdowns(&mut self) {
        let Some(shared) = &self.shared else { return };
        let running: Vec<(usize, Sharer)> =
            (0..self.cpus.len()).filter_map(|cpu| Some((cpu, self.sharer(cpu)?))).collect();
        let (cpus, sharers): (Vec<usize>, Vec<Sharer>) = running.into_iter().unzip();
        for (cpu, slowdown) in cpus.into_iter().zip(shared.slowdowns(&sharers)) {
            self.cpus[cpu].shared = slowdown;
        }
    }
}

impl Engine<'_> {
    /// The running tasks, each with the index of its CPU.
    fn running(&self) -> impl Iterator<Item = (usize, &Task)> {
        let task_on = |(index, cpu): (usize, &Cpu)| Some((index, &self.tasks[cpu.task? as usize]));
        self.cpus.iter().enumerate().filter_map(task_on)
    }

    /// How much of its last-level cache each running task occupies; empty if the machine has no shared
    /// caches. A task that spins does not reuse its working set.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let Some(caches) = &self.last_caches else { return Vec::new() };
        let working_set = |(cpu, task): (usize, &Task)| (cpu, if task.spins { 0 } else { task.working });
        caches.holdings(&self.running().map(working_set).collect::<Vec<_>>())
    }

    /// The slowdown of each running task by others on its core; empty if cores are not modelled. A task that
    /// spins leaves the core to others, as the processor's pause instruction does.
    pub(super) fn core_slowdowns(&self) -> Vec<u64> {
        let Some(cores) = &self.cores else { return Vec::new() };
        let appetite = |(cpu, task): (usize, &Task)| (cpu, if task.spins { 0 } else { task.core });
        cores.slowdowns(&self.running().map(appetite).collect::<Vec<_>>())
    }
}

/// The time for a process to refill a CPU's cache from the nodes that have its pages, in ns. From local
/// memory the refill would take `local_ns`.
pub(super) fn refill_from(
    remote: Option<&Remote>,
    memory: &Memory,
    space: SpaceId,
    cpu: usize,
    local_ns: Time,
) -> Time {
    let Some(remote) = remote else { return local_ns };
    stretched(local_ns, remote.slowdown(ALWAYS, remote.node(cpu), memory.pages_by_node(space)))
}

/// The slowdown of a CPU's tasks by interrupts, in millionths: the fraction of the CPU that interrupts take
/// is lost to the tasks. Unless the scenario names one CPU for them, interrupts are spread over all `cpus`.
pub(super) fn slowdown_by_interrupts(interrupts: &Interrupts, cpu: u32, cpus: u32) -> u64 {
    let fraction = match interrupts.cpu {
        None => interrupts.part / u64::from(cpus),
        Some(only) if only == cpu => interrupts.part,
        Some(_) => 0,
    };
    part_of(ALONE, ALONE, ALONE - fraction)
}

/// The time that work takes at a slowdown factor in millionths, rounded up.
pub(super) fn stretched(work: Time, slow: u64) -> Time {
    if slow == ALONE {
        return work;
    }
    let product = u128::from(work) * u128::from(slow);
    // Half of the range of 64 bits is beyond every horizon, and does not overflow when a time is added.
    Time::try_from(product.div_ceil(u128::from(ALONE))).unwrap_or(Time::MAX).min(Time::MAX / 2)
}

/// Whether any program has a working set in the last-level cache; if none has, caches need no computation.
pub(super) fn any_works_in_cache(scenario: &Scenario) -> bool {
    any_op(scenario, |op| matches!(op, Op::Cpu { cache_bytes: 1.., .. }))
}

/// Whether any program has an appetite for a core; if none has, cores need no computation.
pub(super) fn any_has_appetite(scenario: &Scenario) -> bool {
    any_op(scenario, |op| matches!(op, Op::Cpu { core: 1.., .. }))
}

fn any_op(scenario: &Scenario, predicate: impl Fn(&Op) -> bool) -> bool {
    scenario.workload.programs.iter().flat_map(|program| &program.ops).any(predicate)
}
