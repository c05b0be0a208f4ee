//! The engine's counts by unit: for the snapshot, and to check the policies' figures.

use super::Engine;
use crate::Time;
use crate::scenario::Scenario;

/// Counts by unit.
#[derive(Debug)]
pub(crate) struct Units {
    /// How long tasks waited for CPUs in total, without waits in progress.
    pub(super) waited_ns: Vec<u64>,
    /// Processes by unit, and runnable threads by the unit that they run for.
    pub(super) present: Vec<u32>,
    pub(super) runnable: Vec<u32>,
    /// Threads that are stopped with their job, and would be runnable otherwise.
    pub(super) stopped: Vec<u32>,
    /// The number of plans so far, and the time of the latest.
    pub(super) plans: u64,
    planned_at: Time,
    /// The entitlement by the latest plan, in millionths of a CPU.
    pub(super) entitled: Vec<u64>,
    /// The integral of the entitlement up to the latest plan, in millionths of a CPU times ns.
    entitled_so_far: Vec<u128>,
}

impl Units {
    pub(super) fn new(scenario: &Scenario) -> Units {
        let units = scenario.contract.units.len();
        Units {
            waited_ns: vec![0; units],
            present: vec![0; units],
            runnable: vec![0; units],
            stopped: vec![0; units],
            plans: 0,
            planned_at: 0,
            entitled: vec![0; units],
            entitled_so_far: vec![0; units],
        }
    }

    /// Adds a task's wait for a CPU.
    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        self.waited_ns[unit as usize] += span;
    }

    /// A unit's mean entitlement so far, in millionths of a CPU.
    pub(super) fn entitled_mean(&self, unit: usize, now: Time) -> u64 {
        let mean = self.entitled_sum(unit, now).checked_div(u128::from(now)).unwrap_or(0);
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// The integral of a unit's entitlement up to now, in millionths of a CPU times ns.
    pub(super) fn entitled_sum(&self, unit: usize, now: Time) -> u128 {
        self.entitled_so_far[unit] + u128::from(self.entitled[unit]) * u128::from(now - self.planned_at)
    }

    /// Sets the entitlements of a new plan, after adding the old ones to their integrals.
    fn set_entitled(&mut self, entitled: &[u64], now: Time) {
        let elapsed = u128::from(now - self.planned_at);
        for (sum, latest) in self.entitled_so_far.iter_mut().zip(&self.entitled) {
            *sum += u128::from(*latest) * elapsed;
        }
        self.entitled.copy_from_slice(entitled);
        self.planned_at = now;
        self.plans += 1;
    }

    /// Counts a new process. Returns whether the unit had no process before.
    pub(super) fn add_process(&mut self, unit: u32) -> bool {
        self.present[unit as usize] += 1;
        self.runnable[unit as usize] += 1;
        self.present[unit as usize] == 1
    }

    pub(super) fn remove_process(&mut self, unit: u32) {
        self.present[unit as usize] -= 1;
    }

    pub(super) fn became_runnable(&mut self, unit: u32) {
        self.runnable[unit as usize] += 1;
    }

    /// Counts a runnable task as stopped.
    pub(super) fn stopped(&mut self, unit: u32) {
        self.runnable[unit as usize] -= 1;
        self.stopped[unit as usize] += 1;
    }

    /// Counts a stopped task as runnable again.
    pub(super) fn continued(&mut self, unit: u32) {
        self.runnable[unit as usize] += 1;
        self.stopped[unit as usize] -= 1;
    }

    pub(super) fn blocked(&mut self, unit: u32) {
        self.runnable[unit as usize] -= 1;
    }
}

impl Engine<'_> {
    /// Records the entitlements of a new plan, in millionths of a CPU, and updates the bounds on waits for
    /// CPUs, which follow from a unit's entitlement without its sub-units'.
    pub(super) fn note_entitled(&mut self, entitled: &[u64]) {
        self.units.set_entitled(entitled, self.now);
        let contract = &self.scenario.contract;
        let planned_cpus = self.steward.as_ref().map(|steward| &steward.machine().cpus);
        let first_cpu = planned_cpus.and_then(|cpus| cpus.first()).map_or(0, |cpu| cpu.id);
        let is_time_shared = self.kernel.home(first_cpu) == commonhold_dispatch::NOBODY;
        self.patience.note_plan(self.now, is_time_shared);
        let mut own = self.units.entitled.clone();
        for id in contract.held() {
            if let Some(parent) = contract.unit(id).parent {
                own[parent.index()] -= self.units.entitled[id.index()];
            }
        }
        for id in contract.ids().filter(|id| self.units.present[id.index()] > 0) {
            self.patience.note_entitlement(id.0, own[id.index()], self.kernel.unit(id.0).weight);
        }
    }
}
