//! The simulated machine: a deterministic discrete-event simulator. The project's own policies and its own
//! switch-time scheduler run in it.

mod baseline;
pub mod chance;
pub mod contention;
pub mod disk;
pub mod disturbance;
mod engine;
pub mod memory;
pub mod outcome;
pub mod scenario;
pub mod timers;
pub mod trace;

pub use commonhold_ledger::latencies::Latencies;

use std::sync::atomic::AtomicU64;

use outcome::Outcome;
use scenario::{Scenario, Scheduler};

use commonhold_contract::Scheme;
use commonhold_dispatch::{CPUS_MAX, UNITS_MAX};
use memory::TooSmall;

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The machine's memory is too small for its kernel and one process.
    #[error(transparent)]
    TooSmall(#[from] TooSmall),
    /// More CPUs than the scheduler has room for.
    #[error(
        "the machine has {0} CPUs: the simulator has room for {CPUS_MAX}; give the machine's shape fewer"
    )]
    Cpus(usize),
    /// More units than the scheduler has room for.
    #[error(
        "the contract has {0} units, `kernel` and `shared` among them: the simulator has room for {UNITS_MAX}; \
         leave some out"
    )]
    Units(usize),
    /// A scheduler that knows no units, under a scheme that needs them.
    #[error(
        "the scheduler {0} knows no units, and cannot hold the scheme {1}: take the scheme {smp}, or the scheduler \
         {own}",
        smp = Scheme::Smp, own = Scheduler::Commonhold
    )]
    Unheld(Scheduler, Scheme),
}

/// Nanoseconds of virtual time.
pub type Time = u64;

/// Runs a scenario. The same scenario and seed give the same outcome, to the byte, on any machine.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, Unfit> {
    run_watched(scenario, seed, &AtomicU64::new(0))
}

/// Runs a scenario like [`run`], and reports progress to a watching thread: `clock` is set to the virtual
/// time in ns at each policy step, at least every 250 ms of virtual time.
pub fn run_watched(scenario: &Scenario, seed: u64, clock: &AtomicU64) -> Result<Outcome, Unfit> {
    let (cpus, units) = (scenario.hardware.machine.cpus.len(), scenario.contract.units.len());
    if cpus > CPUS_MAX as usize {
        return Err(Unfit::Cpus(cpus));
    }
    if units > UNITS_MAX as usize {
        return Err(Unfit::Units(units));
    }
    let (scheduler, scheme) = (scenario.hardware.kernel.scheduler, scenario.contract.machine.scheme);
    if !scheduler.holds(scheme) {
        return Err(Unfit::Unheld(scheduler, scheme));
    }
    let disturbed = disturbance::with_daemons(scenario);
    Ok(engine::Engine::new(&disturbed, seed, clock)?.run())
}
