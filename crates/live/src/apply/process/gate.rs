//! Gates: a unit's processes are stopped and continued as a whole.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use rustix::process::Signal;

use super::super::confine::record;
use super::UserBackend;
use crate::LiveError;
use crate::host::signal;
use crate::observe::process::{ProcessKey, Stat, State, is_now};
use crate::undo::journal::Entry;

/// More rounds than any storm of forks needs: a stopped process forks no more, so each round leaves fewer that can.
const ROUNDS_MAX: usize = 100;

/// Who is stopped, and what the stopped units wanted.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// Processes that we stopped, by number.
    stopped: BTreeMap<u32, ProcessKey>,
    runnable: BTreeMap<UnitId, u32>,
}

impl Gates {
    pub(super) fn forget(&mut self, key: ProcessKey) {
        if self.stopped.get(&key.pid) == Some(&key) {
            self.stopped.remove(&key.pid);
        }
    }

    pub(super) fn remember(&mut self, unit: UnitId, runnable: u32) {
        self.runnable.insert(unit, runnable);
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
    /// Makes what is stopped agree with the gates: whoever is in a closed unit is stopped, those that were forked
    /// meanwhile and those that somebody continued included; whoever we stopped and is in none is continued.
    pub(super) fn enforce_gates(&mut self) -> Result<(), LiveError> {
        if !self.gates.stopped.is_empty() {
            self.continue_released();
        }
        if !self.contract.held().any(|unit| self.is_closed(unit)) {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            let stopped = self.stop_closed()?;
            let came = self.look()?;
            if !stopped && !came {
                break;
            }
        }
        Ok(())
    }

    /// Stops who is in a closed unit and runs. Whether there was anybody new.
    fn stop_closed(&mut self) -> Result<bool, LiveError> {
        let closed: Vec<bool> = self.contract.ids().map(|unit| self.is_closed(unit)).collect();
        let members = self
            .roster
            .members()
            .filter(|member| closed.get(member.placement.unit.index()).copied().unwrap_or(false));
        let members: Vec<ProcessKey> = members.map(|member| member.key).collect();
        let (mut new, mut again) = (Vec::new(), Vec::new());
        for key in members {
            // Whoever its user or a debugger stopped already stays theirs.
            if !self.roster.procfs().stat(key.pid)?.is_some_and(|stat| stat.key == key && runs(&stat)) {
                continue;
            }
            if self.gates.stopped.get(&key.pid) == Some(&key) { again.push(key) } else { new.push(key) }
        }
        let entries: Vec<Entry> = new.iter().map(|key| Entry::Stopped { process: *key }).collect();
        self.record(&entries)?;
        for key in &new {
            self.gates.stopped.insert(key.pid, *key);
        }
        let mut missed = Vec::new();
        for key in &new {
            if self.signal(*key, Signal::STOP, "stop", runs) != Some(true) {
                // It ended, or somebody else stopped it in the meantime: not ours to continue.
                self.gates.forget(*key);
                missed.push(Entry::Continued { process: *key });
            }
        }
        for key in again {
            // Not sent if it is stopped by now: the first signal had not taken effect yet, and it stays ours.
            self.signal(key, Signal::STOP, "stop", runs);
        }
        self.record(&missed)?;
        Ok(!new.is_empty())
    }

    fn continue_released(&mut self) {
        let released: Vec<ProcessKey> = self
            .gates
            .stopped
            .values()
            .copied()
            .filter(|key| {
                self.roster.member(key.pid).is_none_or(|member| !self.is_closed(member.placement.unit))
            })
            .collect();
        let mut entries = Vec::new();
        for key in released {
            // A stop takes effect when the process next leaves the kernel: it is taken back even if it does not show yet.
            // One that could not be continued stays ours, and is tried again by the next look.
            if self.signal(key, Signal::CONT, "continue", |stat| stat.state != State::Ended).is_some() {
                self.gates.forget(key);
                entries.push(Entry::Continued { process: key });
            }
        }
        if let Err(err) = self.record(&entries) {
            self.problems.add(err);
        }
    }

    /// Whether the signal was sent; `None` if it was refused, which is reported once.
    fn signal(
        &mut self,
        key: ProcessKey,
        signal: Signal,
        what: &str,
        wanted: fn(&Stat) -> bool,
    ) -> Option<bool> {
        match signal::send(key.pid, signal, || is_now(self.roster.procfs(), key, wanted)) {
            Ok(sent) => Some(sent),
            Err(source) => {
                let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
                let remedy = super::super::confine::remedy(&source);
                self.problems.once(key, "signal", || LiveError::Process {
                    pid: key.pid,
                    name,
                    what: what.to_owned(),
                    source,
                    remedy,
                });
                None
            }
        }
    }

    /// Writes entries to the journal: what is not in it is not done.
    pub(super) fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(&mut self.journal, entries)
    }
}

/// Neither stopped, nor in a debugger's hands, nor ended.
fn runs(stat: &Stat) -> bool {
    matches!(stat.state, State::Runnable | State::Asleep)
}
