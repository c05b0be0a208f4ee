//! The simulated machine: a deterministic discrete-event simulator in which the project's own policies and its own
//! switch-time scheduler run.

mod chance;
pub mod contention;
pub mod disk;
mod engine;
pub mod memory;
pub mod outcome;
pub mod scenario;
mod timers;

use outcome::Outcome;
use scenario::Scenario;

pub use memory::TooSmall;

/// Nanoseconds of virtual time.
pub type Time = u64;

/// Runs a scenario. The same scenario and seed give the same outcome, to the byte, on any machine.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, TooSmall> {
    Ok(engine::Engine::new(scenario, seed)?.run())
}
