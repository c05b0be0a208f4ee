//! The speed of a running task: that of a CPU, less what contention (`crate::contention`) and distant memory cost.

use commonhold_policy::share::part_of;

use super::Engine;
use super::cpu::Cpu;
use super::task::{Spent, Task};
use crate::Time;
use crate::contention::{Holding, Remote, Sharer, Slowdown};
use crate::memory::{Memory, SpaceId};
use crate::scenario::{Interrupts, Op, Scenario};

/// In millionths: as fast as alone, with all memory local.
pub(super) const ALONE: u64 = 1_000_000;

/// In millionths: stalled all of the time, as a task that only loads.
const ALWAYS: u32 = 1_000_000;

/// Time per unit of a task's work, in millionths. Its excess over one is divided by cause: the kernel's lock, remote memory,
/// and, for the rest, stalls.
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

    /// The slowdown of its kernel work by contention in the kernel.
    pub(super) fn in_kernel(slow: Slowdown) -> Slow {
        Slow { total: slow.total, lock: slow.lock, remote: 0 }
    }

    /// Multiplies by another slowdown, such as the bus's or interrupts' (see `crate::contention`).
    pub(super) fn beside(self, slowdown: u64) -> Slow {
        if slowdown == ALONE {
            return self;
        }
        Slow { total: part_of(self.total, slowdown, ALONE), ..self }
    }

    /// Replaces the slowdown due to memory of other nodes.
    pub(super) fn afar(self, slowdown: u64) -> Slow {
        let near = self.total - self.remote;
        let total = if slowdown == ALONE { near } else { part_of(near, slowdown, ALONE) };
        Slow { total, remote: total - near, ..self }
    }

    /// Divides the time that some work took among its causes.
    pub(super) fn book(self, spent: &mut Spent, elapsed: Time, work: Time) {
        spent.work_ns += work;
        let extra = elapsed - work;
        if extra == 0 {
            return;
        }
        let part = |part| if part == 0 { 0 } else { part_of(extra, part, self.total - ALONE) };
        let (lock, remote) = (part(self.lock), part(self.remote));
        spent.lock_ns += lock;
        spent.remote_ns += remote;
        spent.stall_ns += extra - lock - remote;
    }
}

impl Engine<'_> {
    /// Updates the slowdown of the task on a CPU by distant memory. Called when it has just come, or may have got pages.
    #[inline]
    pub(super) fn look_at_memory(&mut self, at: usize) {
        if self.remote.is_some() {
            self.look_at_nodes(at);
        }
    }

    fn look_at_nodes(&mut self, at: usize) {
        let (Some(remote), Some(id)) = (&self.remote, self.cpus[at].task) else { return };
        let (task, node) = (&self.tasks[id as usize], remote.node(at));
        self.memory.runs_in(task.space, node);
        self.tasks[id as usize].data.get_or_insert(node);
        let task = &self.tasks[id as usize];
        let stalled = self.scenario.workload.programs[task.program as usize].stalled;
        let cpu = &mut self.cpus[at];
        cpu.far = remote.slowdown(stalled, node, self.memory.pages_by_node(task.space));
        cpu.slow = cpu.slow.afar(cpu.far + cpu.shared);
    }

    /// Updates the slowdown of each running task by the data that it shares.
    pub(super) fn look_at_shared(&mut self) {
        let Some(shared) = &self.shared else { return };
        let running: Vec<(usize, Sharer)> =
            (0..self.cpus.len()).filter_map(|at| Some((at, self.sharer(at)?))).collect();
        let (places, sharers): (Vec<usize>, Vec<Sharer>) = running.into_iter().unzip();
        for (at, slowdown) in places.into_iter().zip(shared.slowdowns(&sharers)) {
            self.cpus[at].shared = slowdown;
        }
    }
}

impl Engine<'_> {
    /// The running tasks, each with its CPU's place among the CPUs.
    fn running(&self) -> impl Iterator<Item = (usize, &Task)> {
        let on = |(at, cpu): (usize, &Cpu)| Some((at, &self.tasks[cpu.task? as usize]));
        self.cpus.iter().enumerate().filter_map(on)
    }

    /// What each running task holds of its last-level cache; empty if the machine has no shared ones. A task that spins does not
    /// reuse its working set.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let Some(caches) = &self.last_caches else { return Vec::new() };
        let set = |(at, task): (usize, &Task)| (at, if task.spins { 0 } else { task.working });
        caches.holdings(&self.running().map(set).collect::<Vec<_>>())
    }

    /// The slowdown of each running task by others on its core; empty if cores are not modelled. A task that spins leaves the
    /// core to others, as the processor's pause instruction does.
    pub(super) fn on_cores(&self) -> Vec<u64> {
        let Some(cores) = &self.cores else { return Vec::new() };
        let appetite = |(at, task): (usize, &Task)| (at, if task.spins { 0 } else { task.core });
        cores.slowdowns(&self.running().map(appetite).collect::<Vec<_>>())
    }
}

/// The time for a process to refill a CPU's cache, in ns, if it would take `local_ns` from local memory.
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

/// The slowdown of a CPU's tasks by interrupts, in millionths: the time that these take is lost to the task.
pub(super) fn beside_interrupts(interrupts: &Interrupts, cpu: u32, of: u32) -> u64 {
    let part = match interrupts.cpu {
        None => interrupts.part / u64::from(of),
        Some(one) if one == cpu => interrupts.part,
        Some(_) => 0,
    };
    part_of(ALONE, ALONE, ALONE - part)
}

/// Time that work takes at a speed, rounded up.
pub(super) fn stretched(work: Time, slow: u64) -> Time {
    if slow == ALONE {
        return work;
    }
    let whole = u128::from(work) * u128::from(slow);
    // Half of the range of 64 bits is beyond every horizon, and does not overflow when a time is added.
    Time::try_from(whole.div_ceil(u128::from(ALONE))).unwrap_or(Time::MAX).min(Time::MAX / 2)
}

/// Whether any program has a working set in the last-level cache; if none has, caches need no computation.
pub(super) fn any_works_in_cache(scenario: &Scenario) -> bool {
    any_op(scenario, |op| matches!(op, Op::Cpu { cache_bytes: 1.., .. }))
}

/// Whether any program has an appetite for a core; if none has, cores need no computation.
pub(super) fn any_has_appetite(scenario: &Scenario) -> bool {
    any_op(scenario, |op| matches!(op, Op::Cpu { core: 1.., .. }))
}

fn any_op(scenario: &Scenario, is: impl Fn(&Op) -> bool) -> bool {
    scenario.workload.programs.iter().flat_map(|program| &program.ops).any(is)
}
