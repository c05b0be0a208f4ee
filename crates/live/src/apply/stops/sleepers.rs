//! Sleepers: processes behind a closed gate that are left alone, because they sleep.
//!
//! Problem: units take turns ten times a second. To stop and continue a unit's thousand idle processes each
//! time costs more than half a CPU, and changes nothing: a sleeping process uses no CPU.
//!
//! Algorithm: when a gate closes for the first time, all processes behind it are stopped. When the gate
//! opens, each process's CPU clock is recorded. When the gate closes again, a process that has run for less
//! than [`IDLE_NS`] since then, and is asleep, is left alone. The clock of such a sleeper is watched: if it
//! moves, the sleeper has woken, and is stopped like all others.
//!
//! CPU time that sleepers use before they are noticed is taken from their unit's allowance
//! ([`allowance`](super::super::allowance)). While the allowance is overdrawn, all processes of the unit are
//! stopped.
//!
//! Properties: the cost is proportional to the number of running processes. A sleeper needs no signal, no
//! journal entry, and no system call.
//!
//! Limits: a sleeper that wakes runs until its clock is next read
//! ([`Roster::clock`](crate::observe::roster::Roster)).

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::Time;

use super::super::allowance::Allowance;
use crate::observe::process::ProcessKey;

/// The CPU time that a process uses just by being stopped and continued, with some margin. A process that
/// used less since its gate opened is considered idle.
const IDLE_NS: u64 = 500_000;

/// A process behind an open gate.
#[derive(Debug, Clone, Copy)]
struct Released {
    key: ProcessKey,
    /// Its CPU clock when the gate opened.
    clock: u64,
    /// Whether the process was left asleep behind the gate. If so, and its clock has not moved since, it
    /// still sleeps. If it was stopped instead, a clock that has not moved may also mean that it waits for a
    /// CPU.
    was_asleep: bool,
}

/// The processes that were left asleep behind closed gates, and the clocks of processes behind open gates.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Processes that were left asleep, by number, each with its CPU clock at that time.
    asleep: BTreeMap<u32, (ProcessKey, u64)>,
    released: BTreeMap<u32, Released>,
    allowance: Allowance,
}

/// What to do with a process behind a closed gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: the process still sleeps.
    Sleeps,
    /// Leave the process asleep if it is asleep at this moment; otherwise stop it.
    IfAsleep,
    /// Stop the process.
    Stop,
}

impl Sleepers {
    /// Judges a process behind a closed gate, which is not stopped, by its CPU clock.
    pub(super) fn judge(&mut self, key: ProcessKey, unit: UnitId, clock: Option<u64>, now: Time) -> Rest {
        let asleep_at = self.asleep.get(&key.pid).filter(|(known, _)| *known == key).map(|(_, clock)| *clock);
        // A sleeper that has run has woken: charge its unit.
        if let (Some(asleep_at), Some(clock)) = (asleep_at, clock)
            && clock > asleep_at
        {
            self.allowance.take(unit, clock - asleep_at, now);
            self.asleep.remove(&key.pid);
            return Rest::Stop;
        }
        if self.allowance.is_overdrawn(unit, now) {
            self.asleep.remove(&key.pid);
            return Rest::Stop;
        }
        if asleep_at.is_some() {
            return Rest::Sleeps;
        }
        let released = self.released.get(&key.pid).filter(|released| released.key == key);
        let (Some(released), Some(clock)) = (released, clock) else { return Rest::Stop };
        if released.was_asleep && released.clock == clock {
            self.leave(key, clock);
            Rest::Sleeps
        } else if clock.saturating_sub(released.clock) < IDLE_NS {
            Rest::IfAsleep
        } else {
            Rest::Stop
        }
    }

    /// Leaves a process asleep behind its closed gate. `clock` is its CPU clock now.
    pub(super) fn leave(&mut self, key: ProcessKey, clock: u64) {
        self.asleep.insert(key.pid, (key, clock));
    }

    /// The processes that were left asleep behind closed gates.
    pub(super) fn asleep(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.asleep.values().map(|(key, _)| *key)
    }

    /// Removes a process from the sleepers, because it must be stopped after all.
    pub(super) fn remove(&mut self, key: ProcessKey) {
        self.asleep.remove(&key.pid);
    }

    /// Records that the gate of a process opens. `clock` is its CPU clock now; for a sleeper, the clock at
    /// which it was left asleep is used instead.
    pub(super) fn release(&mut self, key: ProcessKey, clock: Option<u64>) {
        let asleep_at = self.asleep.remove(&key.pid).map(|(_, clock)| clock);
        if let Some(clock) = asleep_at.or(clock) {
            self.released.insert(key.pid, Released { key, clock, was_asleep: asleep_at.is_some() });
        }
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        if self.asleep.get(&key.pid).is_some_and(|(known, _)| *known == key) {
            self.asleep.remove(&key.pid);
        }
        if self.released.get(&key.pid).is_some_and(|released| released.key == key) {
            self.released.remove(&key.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use commonhold_policy::MS;

    use super::super::super::allowance::RATE;
    use super::*;

    const UNIT: UnitId = UnitId(2);
    const KEY: ProcessKey = ProcessKey { pid: 7, start: 1 };
    const S: Time = 1_000 * MS;

    /// Leaves a process asleep behind a gate, and opens that gate.
    fn rest(sleepers: &mut Sleepers, key: ProcessKey, clock: u64) {
        sleepers.leave(key, clock);
        sleepers.release(key, None);
    }

    #[test]
    fn only_a_process_that_slept_since_its_gate_opened_is_left_asleep() {
        let mut sleepers = Sleepers::default();
        assert_eq!(sleepers.judge(KEY, UNIT, Some(5), 0), Rest::Stop, "nothing is known of it");
        sleepers.release(KEY, Some(5));
        assert_eq!(sleepers.judge(KEY, UNIT, Some(6 + IDLE_NS), 0), Rest::Stop, "it ran");
        assert_eq!(sleepers.judge(KEY, UNIT, None, 0), Rest::Stop);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(4 + IDLE_NS), 0), Rest::IfAsleep);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(5), 0), Rest::IfAsleep, "it may have had no CPU");
        rest(&mut sleepers, KEY, 5);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(5), 0), Rest::Sleeps);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(5), S), Rest::Sleeps);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(6), S), Rest::Stop, "it woke");
        let other = ProcessKey { pid: 7, start: 2 };
        assert_eq!(sleepers.judge(other, UNIT, Some(5), S), Rest::Stop, "a reused number");
        sleepers.forget(KEY);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(5), S), Rest::Stop);
    }

    /// A user whose processes sleep and wake by turns to run out of turn gains no more than a hundredth of a
    /// CPU.
    #[test]
    fn waking_out_of_turn_gains_no_more_than_the_rate() {
        let mut sleepers = Sleepers::default();
        let (mut stolen, mut clock) = (0, 0);
        for turn in 0..6_000 {
            let now = turn * 100 * MS;
            rest(&mut sleepers, KEY, clock);
            if sleepers.judge(KEY, UNIT, Some(clock), now) == Rest::Sleeps {
                clock += 50 * MS;
                stolen += 50 * MS;
                assert_eq!(sleepers.judge(KEY, UNIT, Some(clock), now + 50 * MS), Rest::Stop);
            }
        }
        let time = 6_000 * 100 * MS;
        assert!(stolen > 0 && stolen <= time / RATE + 100 * MS, "{stolen} of {time}");
    }

    #[test]
    fn units_pay_for_themselves() {
        let mut sleepers = Sleepers::default();
        rest(&mut sleepers, KEY, 0);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(0), 0), Rest::Sleeps);
        assert_eq!(sleepers.judge(KEY, UNIT, Some(S), MS), Rest::Stop);
        let other = ProcessKey { pid: 8, start: 1 };
        rest(&mut sleepers, other, 0);
        assert_eq!(sleepers.judge(other, UNIT, Some(0), MS), Rest::Stop);
        assert_eq!(sleepers.judge(other, UnitId(3), Some(0), MS), Rest::Sleeps);
        rest(&mut sleepers, other, 0);
        assert_eq!(sleepers.judge(other, UNIT, Some(0), 60 * S), Rest::Sleeps, "it has slept since");
    }
}
