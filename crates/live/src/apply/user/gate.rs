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

/// The processes that gates stopped, and how many threads of each closed unit were runnable when it was closed.
#[derive(Debug, Default)]
pub(super) struct Gates {
    stops: Stops,
    runnable: BTreeMap<UnitId, u32>,
}

impl Gates {
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.stops.forget(key);
    }

    pub(super) fn remember(&mut self, unit: UnitId, runnable: u32) {
        self.runnable.insert(unit, runnable);
    }

    /// Sends the caretaker a heartbeat. After a gap, also examines the processes that it may have continued meanwhile.
    pub(super) fn turn(&mut self, journal: &Journal) {
        if journal.beats().turn(!self.stops.is_empty()) {
            self.stops.doubt();
        }
    }

    /// How many threads of a unit were runnable when it was closed.
    pub(super) fn remembered(&self, unit: UnitId) -> u32 {
        self.runnable.get(&unit).copied().unwrap_or(0)
    }

    /// Follows another contract.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.runnable.retain(|unit, _| contract.has(*unit));
    }
}

impl UserBackend {
    /// Makes the set of stopped processes match the gates. Stops every process in a closed unit or a shut gang, including those
    /// forked meanwhile and those that another process continued. Continues those that we stopped
    /// and that no gate holds any more.
    ///
    /// Stops come first: they free CPUs for the processes that continue.
    pub(super) fn enforce_gates(&mut self) -> Result<(), LiveError> {
        let closed = self.contract.held().any(|unit| self.is_closed(unit)) || self.seats.any_shut();
        for _ in 0..if closed { ROUNDS_MAX } else { 0 } {
            let stopped = self.stopping(stop_closed)?;
            let came = self.scan()?;
            if !stopped && !came {
                break;
            }
            self.seats.catch_up(&self.contract, &mut self.roster)?;
        }
        if !self.gates.stops.is_idle() {
            self.stopping(continue_released);
        }
        Ok(())
    }

    fn stopping<T>(&mut self, act: impl FnOnce(&mut Stopping<'_>) -> T) -> T {
        let units: Vec<bool> = self.contract.ids().map(|unit| self.is_closed(unit)).collect();
        let seats = &self.seats;
        let closed = |member: &Member| {
            units.get(member.placement.unit.index()).copied().unwrap_or(false) || seats.is_shut(member.key)
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

    /// Records entries in the journal, before the change is made.
    pub(super) fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(&mut self.journal, entries)
    }
}
