//! Gates: a unit's processes are stopped and continued as a whole, and so are a gang's.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};

use super::super::confine::record;
use super::super::stops::{ROUNDS_MAX, Stopping, Stops, continue_released, stop_closed};
use super::UserBackend;
use crate::LiveError;
use crate::observe::process::ProcessKey;
use crate::observe::roster::Member;
use crate::undo::journal::{Entry, Journal};

/// Who is stopped, and what the stopped units wanted.
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

    /// The daemon turns: its caretaker learns that, and what it may have continued since the turn before is looked at again.
    pub(super) fn turn(&mut self, journal: &Journal) {
        if journal.beats().turn(!self.stops.is_empty()) {
            self.stops.doubt();
        }
    }

    /// Threads that were runnable when the unit was closed.
    pub(super) fn remembered(&self, unit: UnitId) -> u32 {
        self.runnable.get(&unit).copied().unwrap_or(0)
    }

    /// Follows another contract.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.runnable.retain(|unit, _| contract.has(*unit));
    }
}

impl UserBackend {
    /// Makes what is stopped agree with the gates: whoever is in a closed unit or a gang that is shut is stopped, those that
    /// were forked meanwhile and those that somebody continued included; whoever we stopped and is in none is continued.
    ///
    /// Those that go make room before the others come.
    pub(super) fn enforce_gates(&mut self) -> Result<(), LiveError> {
        let closed = self.contract.held().any(|unit| self.is_closed(unit)) || self.seats.any_shut();
        for _ in 0..if closed { ROUNDS_MAX } else { 0 } {
            let stopped = self.stopping(stop_closed)?;
            let came = self.look()?;
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

    /// Writes entries to the journal: what is not in it is not done.
    pub(super) fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(&mut self.journal, entries)
    }
}
