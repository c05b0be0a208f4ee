//! Gates: stops and continues the processes of a unit, or of a gang, as a whole.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};

use super::super::confine::record;
use super::super::stops::{ROUNDS_MAX, Stopping, Stops, continue_released, stop_closed};
use super::UserBackend;
use crate::LiveError;
use crate::observe::process::ProcessKey;
use crate::observe::roster::Member;
use crate::undo::journal::{Entry, Journal};

/// The processes that are stopped behind closed gates.
#[derive(Debug, Default)]
pub(super) struct Gates {
    stops: Stops,
    /// For each closed unit, the number of its threads that were runnable when its gate closed. That number
    /// counts as the unit's demand while the gate is closed.
    runnable: BTreeMap<UnitId, u32>,
}

impl Gates {
    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.stops.forget(key);
    }

    /// Records the number of a unit's threads that are runnable while its gate closes.
    pub(super) fn remember(&mut self, unit: UnitId, runnable: u32) {
        self.runnable.insert(unit, runnable);
    }

    /// Sends the caretaker a heartbeat. After a gap in the heartbeats, the next scan examines every stopped
    /// process, because the caretaker may have continued it.
    pub(super) fn beat(&mut self, journal: &Journal) {
        if journal.beats().beat(!self.stops.is_empty()) {
            self.stops.recheck_all();
        }
    }

    /// The number of a unit's threads that were runnable when its gate closed; 0 if unknown.
    pub(super) fn remembered(&self, unit: UnitId) -> u32 {
        self.runnable.get(&unit).copied().unwrap_or(0)
    }

    /// Adopts another contract: forgets the units that are not in it.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.runnable.retain(|unit, _| contract.has(*unit));
    }
}

impl UserBackend {
    /// Makes the set of stopped processes match the gates. Stops every process in a closed unit or a shut
    /// gang, including processes that are forked meanwhile, and processes that another process continued.
    /// Then continues the processes that we stopped and that are behind no closed gate any more.
    ///
    /// Stops come first, because they free CPUs for the processes that continue.
    pub(super) fn enforce_gates(&mut self) -> Result<(), LiveError> {
        let any_closed = self.contract.held().any(|unit| self.is_closed(unit)) || self.seats.any_shut();
        for _ in 0..if any_closed { ROUNDS_MAX } else { 0 } {
            let must_repeat = self.stopping(stop_closed)?;
            let has_new_processes = self.scan()?;
            if !must_repeat && !has_new_processes {
                break;
            }
            self.seats.catch_up(&self.contract, &mut self.roster)?;
        }
        if !self.gates.stops.is_idle() {
            self.stopping(continue_released);
        }
        Ok(())
    }

    /// Calls `act` with the parts of the backend that stopping and continuing need.
    fn stopping<T>(&mut self, act: impl FnOnce(&mut Stopping<'_>) -> T) -> T {
        let closed_units: Vec<bool> = self.contract.ids().map(|unit| self.is_closed(unit)).collect();
        let seats = &self.seats;
        let closed = |member: &Member| {
            let is_unit_closed = closed_units.get(member.placement.unit.index()).copied().unwrap_or(false);
            is_unit_closed || seats.is_shut(member.key)
        };
        act(&mut Stopping {
            stops: &mut self.gates.stops,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.problems,
            now: self.now,
            closed: &closed,
        })
    }

    /// Writes entries to the journal, before the changes that they undo are made.
    pub(super) fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(&mut self.journal, entries)
    }
}
