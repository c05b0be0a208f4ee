//! Rates that are held by stopping: when a unit has used up what its rate earned, and until when it stands still.
//!
//! Problem: where nothing holds a process to a rate, what it transferred is only counted afterwards. But its unit can be
//! stopped.
//!
//! Algorithm: a token bucket for each way. A unit that is ordered a rate has credit for [`BURST_NS`] of it. What the unit
//! transfers, sub-units included, is taken off. Once the credit is used up, the unit is stopped until its rate has earned
//! what is missing.
//!
//! Properties (tested): over any time, a unit transfers no more than its rate times that time, a burst, and what it did
//! between two looks. A debt is at most [`DEBT_NS`] of a rate, and the rest is forgiven. So no unit stands still for longer.
//! Only a unit with a rate and with processes is stopped.
//!
//! Limits: a unit that is stopped does not compute either. So such rates are for limits alone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use super::in_force::{DiskCap, Order};
use crate::input::Input;
use crate::membership::is_within;
use crate::plan::{DiskOrder, Reason, Step};
use crate::snapshot::{DiskFacts, DiskUse};
use crate::time::{MS, Time};

/// How much of its rate a unit may be ahead, and behind.
const BURST_NS: Time = 100 * MS;
const DEBT_NS: Time = 2_000 * MS;
/// How often a unit with a rate is looked at while it is not stopped.
const WATCH_NS: Time = 50 * MS;

const SECOND: i128 = 1_000_000_000;

/// A rate one way, in bytes per second, and what is left of it; less than nothing is a debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    /// [`u64::MAX`] is no bound.
    rate: u64,
    /// Bytes.
    credit: i128,
}

impl Bucket {
    fn new(rate: u64) -> Bucket {
        let mut bucket = Bucket { rate, credit: 0 };
        bucket.pass(BURST_NS, 0);
        bucket
    }

    /// Time passes, and bytes.
    fn pass(&mut self, elapsed: Time, bytes: u64) {
        if self.rate == u64::MAX {
            return;
        }
        let of = |ns: Time| i128::from(self.rate) * i128::from(ns) / SECOND;
        let credit = self.credit + of(elapsed) - i128::from(bytes);
        self.credit = credit.clamp(-of(DEBT_NS), of(BURST_NS));
    }

    /// How long it takes until nothing is owed.
    fn debt_ns(self) -> Time {
        let rate = i128::from(self.rate).max(1);
        if self.credit >= 0 { 0 } else { Time::try_from(-self.credit * SECOND / rate).unwrap_or(0) }
    }
}

/// What is known of units with rates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Debts {
    buckets: BTreeMap<UnitId, [Bucket; 2]>,
    stopped: BTreeSet<UnitId>,
    /// What units had transferred at the last look, and when that was.
    seen: BTreeMap<UnitId, DiskUse>,
    at: Time,
}

impl Debts {
    /// Charges what was transferred since the last look, follows the rates in force, and stops or continues units. When to
    /// look again, if a unit has a rate.
    pub(super) fn settle(
        &mut self,
        now: Time,
        input: Input<'_>,
        facts: &DiskFacts,
        caps: &BTreeMap<UnitId, Order<DiskCap>>,
        steps: &mut Vec<Step<DiskOrder>>,
    ) -> Option<Time> {
        self.charge(input.contract, facts);
        self.follow(caps);
        let there = |unit: UnitId| {
            let within = input.contract.held().filter(|id| is_within(input.contract, *id, unit));
            within.into_iter().any(|id| input.snapshot.unit(id).processes > 0)
        };
        let owing = self.buckets.iter().filter(|(_, ways)| ways.iter().any(|way| way.credit < 0));
        let stopped: BTreeSet<UnitId> = owing.map(|(unit, _)| *unit).filter(|unit| there(*unit)).collect();
        let order = |unit: &UnitId, stopped, reason| Step {
            action: DiskOrder::Stop { unit: *unit, disk: String::from(facts.name.as_str()), stopped },
            reason,
        };
        let went_on = self.stopped.difference(&stopped).filter(|unit| input.contract.has(**unit));
        steps.extend(went_on.map(|unit| order(unit, false, Reason::DiskDebtPaid)));
        let began = stopped.difference(&self.stopped);
        steps.extend(began.map(|unit| order(unit, true, Reason::DiskDebt { bytes: self.owes(*unit) })));
        self.stopped = stopped;
        let wait = |ways: &[Bucket; 2]| {
            let debt = ways.iter().map(|way| way.debt_ns()).max().unwrap_or(0);
            if debt > 0 { debt.max(MS) } else { WATCH_NS }
        };
        self.buckets.values().map(wait).min().map(|wait| now + wait)
    }

    fn owes(&self, unit: UnitId) -> u64 {
        let ways = self.buckets.get(&unit).into_iter().flatten();
        ways.map(|way| u64::try_from(-way.credit).unwrap_or(0)).max().unwrap_or(0)
    }

    fn charge(&mut self, contract: &Contract, facts: &DiskFacts) {
        let elapsed = facts.at.saturating_sub(self.at);
        if self.at != 0 && elapsed == 0 {
            return;
        }
        let used: BTreeMap<UnitId, DiskUse> = contract.held().map(|unit| (unit, facts.unit(unit))).collect();
        let new = |unit: UnitId| {
            self.seen.get(&unit).map(|before| facts.unit(unit).since(*before)).unwrap_or_default()
        };
        for (unit, ways) in &mut self.buckets {
            let within = contract.held().filter(|id| is_within(contract, *id, *unit)).map(&new);
            let bytes = within.fold([0, 0], |sum, new| [sum[0] + new.read_bytes, sum[1] + new.written_bytes]);
            for (way, bytes) in ways.iter_mut().zip(bytes) {
                way.pass(elapsed, bytes);
            }
        }
        (self.seen, self.at) = (used, facts.at);
    }

    /// What a unit has, or owes, stays its own under another rate.
    fn follow(&mut self, caps: &BTreeMap<UnitId, Order<DiskCap>>) {
        self.buckets.retain(|unit, _| caps.contains_key(unit));
        for (unit, cap) in caps {
            let rates = [cap.value.read, cap.value.write];
            let before = self.buckets.get(unit).copied();
            if before.is_some_and(|ways| ways.map(|way| way.rate) == rates) {
                continue;
            }
            let mut ways = rates.map(Bucket::new);
            for (way, before) in ways.iter_mut().zip(before.into_iter().flatten()) {
                way.credit = way.credit.min(before.credit);
            }
            self.buckets.insert(*unit, ways);
        }
    }

    /// Forgets the units that the contract has no more.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        self.buckets.retain(|unit, _| contract.has(*unit));
        self.stopped.retain(|unit| contract.has(*unit));
        self.seen.retain(|unit, _| contract.has(*unit));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::snapshot::{Means, Snapshot, UnitFacts};
    use commonhold_machine::Machine;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// 10 MiB/s: of 5 MiB at once, all but the first is owed, and stands against time; more than two seconds' are not.
    #[test]
    fn what_is_too_much_is_waited_for() {
        let mut bucket = Bucket::new(10 * MIB);
        bucket.pass(0, MIB);
        assert_eq!(bucket.debt_ns(), 0, "a burst is free");
        bucket.pass(0, 4 * MIB);
        assert_eq!(bucket.debt_ns(), 400 * MS);
        bucket.pass(300 * MS, 0);
        assert_eq!(bucket.debt_ns(), 100 * MS);
        bucket.pass(0, 1_000 * MIB);
        assert_eq!(bucket.debt_ns(), DEBT_NS);
        let mut free = Bucket::new(u64::MAX);
        free.pass(0, 1_000 * MIB);
        assert_eq!(free.debt_ns(), 0);
    }

    /// 10 MiB/s, and a sub-unit transfers 5 MiB in 100 ms: 1 MiB was a burst and 1 MiB is earned, so 3 MiB are owed, for
    /// 300 ms. A unit whose last process has gone is not stopped, nor one without a rate.
    #[test]
    fn a_unit_stands_still_until_its_rate_has_earned_it() {
        let mut contract = Contract::default();
        let unit = contract.add(None, "a");
        let sub = contract.add(Some(unit), "b");
        let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
        let cap = DiskCap { read: u64::MAX, write: 10 * MIB };
        let caps = BTreeMap::from([(unit, Order { value: cap, because: Reason::DiskFree })]);
        let mut debts = Debts::default();
        let mut settle = |ms: u64, mib: u64, caps: &BTreeMap<UnitId, Order<DiskCap>>, there: u32| {
            let mut units = vec![DiskUse::default(); 4];
            units[sub.index()].written_bytes = mib * MIB;
            let now = 1_000 * MS + ms * MS;
            let facts = DiskFacts { name: "all".to_string(), at: now, units, ..DiskFacts::default() };
            let mut processes = vec![UnitFacts::default(); 4];
            processes[sub.index()].processes = there;
            let snapshot = Snapshot { units: processes, ..Snapshot::default() };
            let (contract, machine, snapshot) = (&contract, &machine, &snapshot);
            let input = Input { contract, machine, means: Means::NONE, snapshot, changes: &[] };
            let mut steps = Vec::new();
            let next = debts.settle(now, input, &facts, caps, &mut steps);
            let ordered: Vec<(UnitId, bool)> = steps
                .iter()
                .filter_map(|step| match step.action {
                    DiskOrder::Stop { unit, stopped, .. } => Some((unit, stopped)),
                    _ => None,
                })
                .collect();
            (ordered, next.map(|next| (next - now) / MS))
        };
        assert_eq!(settle(0, 7, &caps, 1), (vec![], Some(50)), "what was before is no debt");
        assert_eq!(settle(100, 12, &caps, 1), (vec![(unit, true)], Some(300)));
        assert_eq!(settle(200, 12, &caps, 1), (vec![], Some(200)));
        assert_eq!(settle(400, 12, &caps, 1), (vec![(unit, false)], Some(50)));
        assert_eq!(settle(500, 22, &caps, 1), (vec![(unit, true)], Some(900)));
        assert_eq!(settle(600, 22, &caps, 0), (vec![(unit, false)], Some(800)), "nobody is there");
        assert_eq!(settle(700, 22, &caps, 1).0, [(unit, true)]);
        assert_eq!(settle(800, 22, &BTreeMap::new(), 1), (vec![(unit, false)], None));
    }

    proptest! {
        /// Whatever a unit would transfer at each look, if it transfers nothing while it owes: no more than its rate times
        /// the time, a burst, and the last of its transfers.
        #[test]
        fn no_rate_is_exceeded_by_more_than_a_burst(
            rate in 1u64..1 << 30,
            looks in proptest::collection::vec((1u64..200, 0u64..1 << 26), 1..100),
        ) {
            let mut bucket = Bucket::new(rate);
            let (mut moved, mut passed) = (0u64, 0);
            for (ms, bytes) in looks {
                // What would be forgiven is left out: no unit gets so far that is looked at often.
                let bytes = if bucket.credit < 0 { 0 } else { bytes.min(rate) };
                bucket.pass(ms * MS, bytes);
                (moved, passed) = (moved + bytes, passed + ms * MS);
                let earned = u128::from(rate) * u128::from(passed + BURST_NS) / 1_000_000_000;
                prop_assert!(u128::from(moved) <= earned + u128::from(bytes) + u128::from(rate), "{moved} of {earned}");
                prop_assert!(bucket.debt_ns() <= DEBT_NS);
            }
        }
    }
}
