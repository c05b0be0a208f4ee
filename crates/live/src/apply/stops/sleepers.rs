//! Sleepers: processes behind a closed gate that are left alone, because they sleep.
//!
//! Problem: units take turns ten times a second. Stopping and continuing a unit's thousand idle processes each time costs more
//! than half a CPU, for no effect: a sleeping process uses no CPU.
//!
//! Algorithm: the first time that a gate closes, all processes behind it are stopped. When it opens, each one's CPU clock is
//! recorded. When it closes again, a process that hardly ran since then ([`IDLE_NS`]) and is asleep is left asleep. Its clock
//! is watched: when it moves, the process is stopped like all others.
//!
//! CPU time that sleepers use before they are noticed is taken from their unit's allowance
//! ([`allowance`](super::super::allowance)). While that is overdrawn, all processes of the unit are stopped.
//!
//! Properties: cost is proportional to running processes. A sleeper needs no signal, no journal entry, and no system call.
//!
//! Limits: a sleeper that wakes runs until its clock is read ([`Roster::clock`](crate::observe::roster::Roster)).

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::Time;

use super::super::allowance::Allowance;
use crate::observe::process::ProcessKey;

/// The CPU time of being stopped and continued, with some margin: a process that used no more between two closings slept.
const IDLE_NS: u64 = 500_000;

/// A process behind an open gate.
#[derive(Debug, Clone, Copy)]
struct Released {
    key: ProcessKey,
    /// Its CPU clock when the gate opened.
    clock: u64,
    /// It was left asleep, and not stopped: if its clock has not moved, it still sleeps. A process that was stopped may just
    /// not have had a CPU since.
    slept: bool,
}

/// Sleepers behind closed gates.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Left asleep, with their clocks at that time.
    asleep: BTreeMap<u32, (ProcessKey, u64)>,
    released: BTreeMap<u32, Released>,
    allowance: Allowance,
}

/// What to do with a process behind a closed gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: it still sleeps.
    Sleeps,
    /// Leave it, if it is asleep at this moment.
    IfAsleep,
    /// Stop it.
    Stop,
}

impl Sleepers {
    /// Judges a process behind a closed gate by its clock.
    pub(super) fn judge(&mut self, key: ProcessKey, unit: UnitId, clock: Option<u64>, now: Time) -> Rest {
        let before = self.asleep.get(&key.pid).filter(|(known, _)| *known == key).map(|(_, clock)| *clock);
        if let (Some(before), Some(clock)) = (before, clock)
            && clock > before
        {
            self.allowance.take(unit, clock - before, now);
            self.asleep.remove(&key.pid);
            return Rest::Stop;
        }
        if self.allowance.is_overdrawn(unit, now) {
            self.asleep.remove(&key.pid);
            return Rest::Stop;
        }
        if before.is_some() {
            return Rest::Sleeps;
        }
        let released = self.released.get(&key.pid).filter(|released| released.key == key);
        match (released, clock) {
            (Some(released), Some(now)) if released.slept && released.clock == now => self.leave(key, now),
            (Some(released), Some(now)) if now.saturating_sub(released.clock) < IDLE_NS => {
                return Rest::IfAsleep;
            }
            _ => return Rest::Stop,
        }
        Rest::Sleeps
    }

    /// Leaves a process asleep, with its clock at this value.
    pub(super) fn leave(&mut self, key: ProcessKey, clock: u64) {
        self.asleep.insert(key.pid, (key, clock));
    }

    /// The processes that are left asleep.
    pub(super) fn asleep(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.asleep.values().map(|(key, _)| *key)
    }

    /// The process must be stopped after all.
    pub(super) fn wake(&mut self, key: ProcessKey) {
        self.asleep.remove(&key.pid);
    }

    /// The gate of a process opens, with its clock at this value.
    pub(super) fn release(&mut self, key: ProcessKey, clock: Option<u64>) {
        let slept = self.asleep.remove(&key.pid).map(|(_, clock)| clock);
        if let Some(clock) = slept.or(clock) {
            self.released.insert(key.pid, Released { key, clock, slept: slept.is_some() });
        }
    }

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

    /// A user whose processes sleep by turns and run out of turn gains a hundredth of a CPU by that.
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
