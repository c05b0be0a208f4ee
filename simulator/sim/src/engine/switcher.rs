//! The interface between the engine and the switch-time scheduler: the project's scheduler in its simulated
//! kernel, or one of the baselines. All have the same methods; [`Kernel`] documents the methods that have no
//! comment here.

use std::collections::BTreeMap;

use commonhold_contract::Contract;
use commonhold_dispatch::{
    Account, Kernel, Kick, NOBODY, Recall, Reload, Settings, TaskId, Unit, UnitRules, near,
};
use commonhold_machine::{CpuSet, Machine};
use commonhold_policy::pools;
use commonhold_steward::{disciplined, seated};

use super::number;
use crate::Time;
use crate::baseline::{Baseline, Decay, Epochs, Places};
use crate::scenario::{CallBack, Scenario, Scheduler};

/// The scheduler that decides which task a CPU runs next, and where a woken task goes.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per simulation, and a box would be an indirection at every call"
)]
pub(super) enum Switcher {
    /// The project's own.
    Commonhold(Kernel),
    /// IRIX 5.
    IrixDecay(Baseline<Decay>),
    /// Linux 2.4.
    Linux24(Baseline<Epochs>),
    /// Hurricane.
    Hurricane(Baseline<Places>),
}

/// Calls the same method of the scheduler in force.
macro_rules! delegate {
    ($switcher:expr, $scheduler:ident => $call:expr) => {
        match $switcher {
            Switcher::Commonhold($scheduler) => $call,
            Switcher::IrixDecay($scheduler) => $call,
            Switcher::Linux24($scheduler) => $call,
            Switcher::Hurricane($scheduler) => $call,
        }
    };
}

impl Switcher {
    /// The scheduler of the scenario's machine, with all CPUs idle.
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Switcher {
        let costs = &scenario.hardware.kernel;
        let (cpus, units) =
            (number(scenario.hardware.machine.cpus.len()), number(scenario.contract.units.len()));
        match costs.scheduler {
            Scheduler::Commonhold => {
                let mut kernel = Kernel::new(&Settings {
                    cpus,
                    units,
                    slice_ns: costs.slice_ns,
                    preempt_ns: Settings::preempt_ns(costs.slice_ns),
                    near: near(&scenario.hardware.machine, cpus),
                    recall: match costs.call_back {
                        CallBack::Now => Recall::Now,
                        CallBack::Tick | CallBack::Entry => Recall::Tick,
                    },
                    disciplined: disciplined(&scenario.contract),
                    seated: seated(&scenario.contract),
                    gated: false,
                    seed,
                });
                kernel.set_pools(&pools_by_cpu(&scenario.contract, &scenario.hardware.machine, cpus));
                Switcher::Commonhold(kernel)
            }
            Scheduler::IrixDecay => {
                Switcher::IrixDecay(Baseline::new(Decay::new(costs.slice_ns, cpus), cpus, units))
            }
            Scheduler::Linux24 => Switcher::Linux24(Baseline::new(Epochs::new(costs.slice_ns), cpus, units)),
            Scheduler::Hurricane => {
                Switcher::Hurricane(Baseline::new(Places::new(costs.slice_ns, cpus), cpus, units))
            }
        }
    }

    /// A new task, not yet awake. `parent` is the task that created it.
    pub(super) fn start(&mut self, now: Time, id: TaskId, unit: u32, parent: Option<TaskId>) {
        match self {
            Switcher::Commonhold(kernel) => kernel.start(now, id, unit),
            Switcher::IrixDecay(baseline) => baseline.start(now, id, unit, parent),
            Switcher::Linux24(baseline) => baseline.start(now, id, unit, parent),
            Switcher::Hurricane(baseline) => baseline.start(now, id, unit, parent),
        }
    }

    /// A task has done its last work, and leaves its CPU at the next [`Switcher::schedule`].
    pub(super) fn end(&mut self, now: Time, id: TaskId, parent: Option<TaskId>) {
        match self {
            Switcher::Commonhold(_) => {}
            Switcher::IrixDecay(baseline) => baseline.end(now, id, parent),
            Switcher::Linux24(baseline) => baseline.end(now, id, parent),
            Switcher::Hurricane(baseline) => baseline.end(now, id, parent),
        }
    }

    /// Gives a task a seat at a CPU, or takes the seat away. Under Hurricane the task runs only at its seat;
    /// under the project's scheduler it prefers the seat. The other baselines ignore seats.
    pub(super) fn seat(&mut self, id: TaskId, cpu: Option<u32>) {
        match (self, cpu) {
            (Switcher::Commonhold(kernel), cpu) => kernel.seat(id, cpu.unwrap_or(NOBODY)),
            (Switcher::Hurricane(baseline), Some(cpu)) => baseline.seat(id, cpu),
            (Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_), _) => {}
        }
    }

    pub(super) fn wake(&mut self, now: Time, id: TaskId) {
        delegate!(self, scheduler => scheduler.wake(now, id));
    }

    pub(super) fn schedule(&mut self, now: Time, cpu: u32, runnable: bool) -> Option<TaskId> {
        delegate!(self, scheduler => scheduler.schedule(now, cpu, runnable))
    }

    /// A clock tick. Returns whether the CPU's task has to leave; never for baselines, which count time
    /// exactly.
    pub(super) fn tick(&mut self, now: Time, cpu: u32) -> bool {
        match self {
            Switcher::Commonhold(kernel) => kernel.tick(now, cpu),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => false,
        }
    }

    pub(super) fn slice_left(&self, now: Time, cpu: u32) -> Time {
        delegate!(self, scheduler => scheduler.slice_left(now, cpu))
    }

    pub(super) fn kicks(&mut self, take: &mut Vec<Kick>) {
        delegate!(self, scheduler => scheduler.kicks(take));
    }

    pub(super) fn has_kicks(&self) -> bool {
        delegate!(self, scheduler => scheduler.has_kicks())
    }

    /// Makes a unit the owner of a CPU. Baselines have no owners.
    pub(super) fn own(&mut self, now: Time, cpu: u32, unit: u32) {
        if let Switcher::Commonhold(kernel) = self {
            kernel.own(now, cpu, unit);
        }
    }

    /// Sets a unit's rules. Returns whether they were accepted. Baselines ignore them: they have neither
    /// weights nor loans.
    pub(super) fn set_unit(&mut self, now: Time, unit: u32, rules: UnitRules) -> bool {
        match self {
            Switcher::Commonhold(kernel) => kernel.set_unit(now, unit, rules),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => true,
        }
    }

    /// Makes exactly these CPUs online. Baselines do not do this, and scenarios that need it are refused.
    pub(super) fn set_online(&mut self, now: Time, online: &CpuSet, reload: Reload<'_>) {
        if let Switcher::Commonhold(kernel) = self {
            kernel.set_online(now, online, reload);
        }
    }

    /// Lets a task run for another unit: a lock's holder runs for the unit of the first waiter. Baselines do
    /// not do this.
    pub(super) fn move_to_unit(&mut self, now: Time, id: TaskId, unit: u32) {
        if let Switcher::Commonhold(kernel) = self {
            kernel.move_to_unit(now, id, unit);
        }
    }

    pub(super) fn runnable(&self) -> u64 {
        delegate!(self, scheduler => scheduler.runnable())
    }

    pub(super) fn waiting(&self) -> u64 {
        delegate!(self, scheduler => scheduler.waiting())
    }

    pub(super) fn waiting_in(&self, unit: u32) -> u32 {
        delegate!(self, scheduler => scheduler.waiting_in(unit))
    }

    pub(super) fn uncharged(&self, now: Time) -> Time {
        delegate!(self, scheduler => scheduler.uncharged(now))
    }

    pub(super) fn runs(&self, cpu: u32) -> u32 {
        delegate!(self, scheduler => scheduler.runs(cpu))
    }

    pub(super) fn unit(&self, unit: u32) -> &Unit {
        delegate!(self, scheduler => scheduler.unit(unit))
    }

    pub(super) fn account(&self, unit: u32) -> &Account {
        delegate!(self, scheduler => scheduler.account(unit))
    }

    /// How long tasks of one unit waited while tasks of another had the CPU that they got, in ns, by the two
    /// units. `None` under a baseline.
    pub(super) fn waits_for_others(&mut self) -> Option<&BTreeMap<(u32, u32), u64>> {
        match self {
            Switcher::Commonhold(kernel) => Some(kernel.waits_for_others()),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => None,
        }
    }

    /// The owner of a CPU; [`NOBODY`] under a baseline.
    pub(super) fn home(&self, cpu: u32) -> u32 {
        match self {
            Switcher::Commonhold(kernel) => kernel.home(cpu),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => NOBODY,
        }
    }

    /// Whether a CPU runs another unit's task and its owner can call it back, or has. Never under a baseline:
    /// it lends no CPUs.
    pub(super) fn can_come_back(&self, cpu: u32) -> bool {
        match self {
            Switcher::Commonhold(kernel) => kernel.can_come_back(cpu),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => false,
        }
    }

    /// Whether a CPU runs a task out of order to rescue it from starvation. Never under a baseline.
    pub(super) fn is_rescuing(&self, cpu: u32) -> bool {
        match self {
            Switcher::Commonhold(kernel) => kernel.is_rescuing(cpu),
            Switcher::IrixDecay(_) | Switcher::Linux24(_) | Switcher::Hurricane(_) => false,
        }
    }

    /// The longest wait for a CPU under a baseline, in ns, if at most `tasks` tasks lived at once. `None`
    /// under the project's own scheduler, whose bounds differ by unit.
    pub(super) fn patience(&self, switch_ns: Time, tasks: u64) -> Option<Time> {
        match self {
            Switcher::Commonhold(_) => None,
            Switcher::IrixDecay(baseline) => Some(baseline.patience(switch_ns, tasks)),
            Switcher::Linux24(baseline) => Some(baseline.patience(switch_ns, tasks)),
            Switcher::Hurricane(baseline) => Some(baseline.patience(switch_ns, tasks)),
        }
    }
}

/// The pool of each of `cpus` CPUs, by number: [`NOBODY`] for a CPU that the machine lacks. Empty if tasks
/// have no seats.
pub(super) fn pools_by_cpu(contract: &Contract, machine: &Machine, cpus: u32) -> Vec<u32> {
    if !seated(contract) {
        return Vec::new();
    }
    let pools = pools(machine, contract.machine.pools).by_cpu();
    (0..cpus).map(|cpu| pools.get(&cpu).map_or(NOBODY, |pool| number(*pool))).collect()
}
