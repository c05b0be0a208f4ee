//! Rates that are held by stopping: when a unit has used up what its rate earned, and until when it stands still.
//!
//! Problem: where nothing holds a process to a rate, what it transferred is only counted afterwards. But its unit can be
//! stopped.
//!
//! Algorithm: a token bucket for each way, of each unit with a rate, at each disk. It has credit for [`BURST_NS`] of
//! the rate at most. What the unit transfers, sub-units included, is taken off. Once the credit at some disk is used
//! up, the unit is stopped. It goes on once it owes at no disk that is there. A disk that is there no more is owed
//! nothing.
//!
//! Time is that of the facts: a rate earns from one reading of the counts to the next.
//!
//! Properties (tested): over any time, a unit transfers no more than its rate times that time, a burst, and what it did
//! between two looks. A unit that takes what it may gets its rate, however low it is and however often it is looked at.
//! A debt is at most [`DEBT_NS`] of a rate, and the rest is forgiven. So no unit stands still for longer. Only a unit
//! with a rate and with processes is stopped. What was done before the first look is no debt, and the time before it
//! earns nothing.
//!
//! Limits: a unit that is stopped does not compute either. So such rates are for limits alone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use super::in_force::{DiskCap, Order};
use crate::input::Input;
use crate::plan::{DiskOrder, Reason, Step};
use crate::snapshot::{DiskFacts, DiskUse};
use crate::time::{MS, Time};
use crate::tree::lineage;

/// How much of its rate a unit may be ahead, and behind.
const BURST_NS: Time = 100 * MS;
const DEBT_NS: Time = 2_000 * MS;
/// How often a unit with a rate is looked at while it has processes and is not stopped.
const WATCH_NS: Time = 50 * MS;

/// What a rate of 1 byte per second earns of a byte in a nanosecond is the measure of credit: so none of it is lost.
const BYTE: i128 = 1_000_000_000;

/// A rate one way, in bytes per second, and what is left of it; less than nothing is a debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    /// [`u64::MAX`] is no bound.
    rate: u64,
    /// In [`BYTE`]ths.
    credit: i128,
}

impl Bucket {
    fn new(rate: u64) -> Bucket {
        let mut bucket = Bucket { rate, credit: 0 };
        bucket.credit = bucket.earned(BURST_NS);
        bucket
    }

    /// The same under another rate. What is left, or owed, stays as far as the new rate lets it; where one of the two is no
    /// bound, all begins anew.
    fn with_rate(self, rate: u64) -> Bucket {
        let mut new = Bucket::new(rate);
        if self.rate != u64::MAX && rate != u64::MAX {
            new.credit = self.credit.clamp(-new.earned(DEBT_NS), new.credit);
        }
        new
    }

    fn earned(self, elapsed: Time) -> i128 {
        i128::from(self.rate).saturating_mul(i128::from(elapsed))
    }

    /// Time passes, and bytes.
    fn pass(&mut self, elapsed: Time, bytes: u64) {
        if self.rate == u64::MAX {
            return;
        }
        let credit = self.credit.saturating_add(self.earned(elapsed)) - i128::from(bytes) * BYTE;
        self.credit = credit.clamp(-self.earned(DEBT_NS), self.earned(BURST_NS));
    }

    /// What is owed, in bytes, and how long it takes until nothing is; both are rounded up.
    fn owes(self) -> Option<(Time, u64)> {
        let up = |by: i128| u64::try_from((-self.credit + by - 1) / by).unwrap_or(u64::MAX);
        (self.credit < 0).then(|| (up(i128::from(self.rate).max(1)), up(BYTE)))
    }
}

/// What units with rates have at one disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Accounts {
    buckets: BTreeMap<UnitId, [Bucket; 2]>,
    /// What units had transferred at the last look, and when that was.
    seen: BTreeMap<UnitId, DiskUse>,
    at: Option<Time>,
}

impl Accounts {
    fn charge(&mut self, contract: &Contract, facts: &DiskFacts) {
        if self.at.is_some_and(|at| facts.at <= at) {
            return;
        }
        let elapsed = self.at.map_or(0, |at| facts.at - at);
        let mut moved: BTreeMap<UnitId, [u64; 2]> = BTreeMap::new();
        for unit in contract.held() {
            let used = facts.unit(unit);
            let Some(before) = self.seen.insert(unit, used) else { continue };
            let new = used.since(before);
            if new.bytes() == 0 {
                continue;
            }
            for unit in lineage(contract, unit).filter(|unit| self.buckets.contains_key(unit)) {
                let [read, written] = moved.entry(unit).or_default();
                *read = read.saturating_add(new.read_bytes);
                *written = written.saturating_add(new.written_bytes);
            }
        }
        for (unit, ways) in &mut self.buckets {
            let bytes = moved.get(unit).copied().unwrap_or_default();
            for (way, bytes) in ways.iter_mut().zip(bytes) {
                way.pass(elapsed, bytes);
            }
        }
        self.at = Some(facts.at);
    }

    fn follow(&mut self, caps: &BTreeMap<UnitId, Order<DiskCap>>) {
        self.buckets.retain(|unit, _| caps.contains_key(unit));
        for (unit, cap) in caps {
            let (read, write) = (cap.value.read, cap.value.write);
            let ways = self.buckets.entry(*unit).or_insert_with(|| [read, write].map(Bucket::new));
            for (way, rate) in ways.iter_mut().zip([read, write]).filter(|(way, rate)| way.rate != *rate) {
                *way = way.with_rate(rate);
            }
        }
    }

    fn forget_gone(&mut self, contract: &Contract) {
        self.buckets.retain(|unit, _| contract.has(*unit));
        self.seen.retain(|unit, _| contract.has(*unit));
    }
}

/// What a unit owes at the disk where that takes longest.
#[derive(Debug, Clone, Copy)]
struct Debt<'a> {
    disk: &'a str,
    bytes: u64,
    /// When its rate will have earned that, on the clock of the facts.
    until: Time,
    /// When those were read.
    at: Time,
}

/// What is known of units with rates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Debts {
    disks: BTreeMap<String, Accounts>,
    /// The units that stand still, each with the disk that it was stopped for.
    stopped: BTreeMap<UnitId, String>,
}

impl Debts {
    /// Charges what was transferred since the last look, follows the rates in force on each disk, and stops or continues
    /// units. When to look again, if a unit with a rate has processes.
    pub(super) fn settle<'a>(
        &mut self,
        now: Time,
        input: Input<'_>,
        caps: impl Fn(&DiskFacts) -> Option<&'a BTreeMap<UnitId, Order<DiskCap>>>,
        steps: &mut Vec<Step<DiskOrder>>,
    ) -> Option<Time> {
        let contract = input.contract;
        let there = if input.means.disk.limits_only { input.snapshot.disks.as_slice() } else { &[] };
        if there.is_empty() && self.stopped.is_empty() {
            self.disks.clear();
            return None;
        }
        self.disks.retain(|name, _| there.iter().any(|facts| facts.name == *name));
        if !contract.vacant.is_empty() {
            self.disks.values_mut().for_each(|accounts| accounts.forget_gone(contract));
            // What stopped a unit went with it.
            self.stopped.retain(|unit, _| contract.has(*unit));
        }
        for (facts, caps) in there.iter().filter_map(|facts| Some((facts, caps(facts)?))) {
            let accounts = self.disks.entry(facts.name.clone()).or_default();
            accounts.charge(contract, facts);
            accounts.follow(caps);
        }
        let debts = debts(&self.disks);
        let has_rates = self.disks.values().any(|accounts| !accounts.buckets.is_empty());
        let present = if has_rates { present(input) } else { BTreeSet::new() };
        let next = next(now, &self.disks, &debts, &present);
        let stands = |unit: &UnitId| debts.contains_key(unit) && present.contains(unit);
        let order = |unit, disk: String, stopped, reason| Step {
            action: DiskOrder::Stop { unit, disk, stopped },
            reason,
        };
        for (unit, disk) in core::mem::take(&mut self.stopped) {
            if stands(&unit) {
                self.stopped.insert(unit, disk);
            } else {
                steps.push(order(unit, disk, false, Reason::DiskDebtPaid));
            }
        }
        for (unit, debt) in debts.iter().filter(|(unit, _)| stands(unit)) {
            if !self.stopped.contains_key(unit) {
                self.stopped.insert(*unit, String::from(debt.disk));
                let reason = Reason::DiskDebt { bytes: debt.bytes };
                steps.push(order(*unit, String::from(debt.disk), true, reason));
            }
        }
        next
    }
}

/// What each unit owes that owes anything.
fn debts(disks: &BTreeMap<String, Accounts>) -> BTreeMap<UnitId, Debt<'_>> {
    let mut debts: BTreeMap<UnitId, Debt<'_>> = BTreeMap::new();
    for (disk, accounts) in disks {
        let at = accounts.at.unwrap_or(0);
        for (unit, ways) in &accounts.buckets {
            let Some((wait, bytes)) = ways.iter().filter_map(|way| way.owes()).max() else { continue };
            let debt = Debt { disk, bytes, until: at.saturating_add(wait), at };
            let longest = debts.entry(*unit).or_insert(debt);
            if longest.until < debt.until {
                *longest = debt;
            }
        }
    }
    debts
}

/// When to look again: at a unit that owes, once it will have paid.
fn next(
    now: Time,
    disks: &BTreeMap<String, Accounts>,
    debts: &BTreeMap<UnitId, Debt<'_>>,
    present: &BTreeSet<UnitId>,
) -> Option<Time> {
    let units = disks.values().flat_map(|accounts| accounts.buckets.keys());
    let units = units.filter(|unit| present.contains(unit));
    // The next facts may be as old as these: they are not asked for at every look.
    let paid = |debt: &Debt<'_>| debt.until.max(now + now.saturating_sub(debt.at).max(MS));
    units.map(|unit| debts.get(unit).map_or(now + WATCH_NS, paid)).min()
}

/// The units that have processes, their own or in a sub-unit.
fn present(input: Input<'_>) -> BTreeSet<UnitId> {
    let units = input.contract.held().filter(|unit| input.snapshot.unit(*unit).processes > 0);
    units.flat_map(|unit| lineage(input.contract, unit)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::snapshot::{DiskMeans, Means, Snapshot, UnitFacts};
    use commonhold_machine::Machine;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn debt_ns(bucket: Bucket) -> Time {
        bucket.owes().map_or(0, |(wait, _)| wait)
    }

    /// 10 MiB/s: of 5 MiB at once, all but the first is owed, and stands against time; more than two seconds' are not.
    #[test]
    fn what_is_too_much_is_waited_for() {
        let mut bucket = Bucket::new(10 * MIB);
        bucket.pass(0, MIB);
        assert_eq!(debt_ns(bucket), 0, "a burst is free");
        bucket.pass(0, 4 * MIB);
        assert_eq!(debt_ns(bucket), 400 * MS);
        bucket.pass(300 * MS, 0);
        assert_eq!(debt_ns(bucket), 100 * MS);
        bucket.pass(0, 1_000 * MIB);
        assert_eq!(debt_ns(bucket), DEBT_NS);
        let mut free = Bucket::new(u64::MAX);
        free.pass(0, 1_000 * MIB);
        assert_eq!(debt_ns(free), 0);
        let mut most = Bucket::new(u64::MAX - 1);
        most.pass(Time::MAX, 0);
        assert_eq!(debt_ns(most), 0);
        most.pass(0, u64::MAX);
        assert!((899 * MS..=901 * MS).contains(&debt_ns(most)), "a second's, less a burst");
    }

    /// 400 ms are owed at 10 MiB/s. A tenth of the rate would take 4 s, of which two are forgiven. No bound is owed
    /// nothing, and one that comes begins with a burst.
    #[test]
    fn another_rate_takes_over_what_it_can() {
        let mut bucket = Bucket::new(10 * MIB);
        bucket.pass(0, 5 * MIB);
        assert_eq!(debt_ns(bucket.with_rate(20 * MIB)), 200 * MS);
        assert_eq!(debt_ns(bucket.with_rate(MIB)), DEBT_NS);
        assert_eq!(debt_ns(bucket.with_rate(u64::MAX)), 0);
        assert_eq!(bucket.with_rate(u64::MAX).with_rate(MIB), Bucket::new(MIB));
        assert_eq!(Bucket::new(10 * MIB).with_rate(MIB), Bucket::new(MIB), "a burst is the new rate's");
        assert_eq!(Bucket::new(MIB).with_rate(10 * MIB).credit, Bucket::new(MIB).credit);
    }

    /// 999 bytes per second, of which a look each millisecond earns 0.999: a second of them earns 999.
    #[test]
    fn fractions_of_a_byte_are_kept() {
        let mut bucket = Bucket::new(999);
        bucket.pass(0, 99);
        bucket.pass(0, 999);
        for _ in 0..999 {
            bucket.pass(MS, 0);
            assert!(bucket.owes().is_some());
        }
        bucket.pass(MS, 0);
        assert_eq!(bucket.owes(), None);
    }

    /// Looks at some disks: when the facts were read, which disks, and what the sub-unit had written to each by then.
    struct Looks {
        contract: Contract,
        unit: UnitId,
        sub: UnitId,
        means: Means,
        caps: BTreeMap<UnitId, Order<DiskCap>>,
        processes: u32,
        debts: Debts,
    }

    impl Looks {
        /// A unit that may write 10 MiB/s to each disk, and its sub-unit with one process.
        fn new() -> Looks {
            let mut contract = Contract::default();
            let unit = contract.add(None, "a");
            let sub = contract.add(Some(unit), "b");
            let disk = DiskMeans { caps: true, limits_only: true, ..DiskMeans::NONE };
            let cap = DiskCap { read: u64::MAX, write: 10 * MIB };
            let caps = BTreeMap::from([(unit, Order { value: cap, because: Reason::DiskFree })]);
            let means = Means { disk, ..Means::NONE };
            Looks { contract, unit, sub, means, caps, processes: 1, debts: Debts::default() }
        }

        /// A look at so many milliseconds after facts were read first; when the next is due after that.
        fn at(&mut self, ms: u64, disks: &[(&str, u64)]) -> (Vec<(UnitId, bool)>, Option<u64>) {
            self.late(ms, ms, disks)
        }

        /// The same, with facts of another moment than now.
        fn late(&mut self, now: u64, at: u64, disks: &[(&str, u64)]) -> (Vec<(UnitId, bool)>, Option<u64>) {
            let ns = |ms: u64| (1_000 + ms) * MS;
            let facts = |(name, mib): &(&str, u64)| {
                let mut units = vec![DiskUse::default(); self.contract.units.len()];
                units[self.sub.index()].written_bytes = mib * MIB;
                DiskFacts { name: String::from(*name), at: ns(at), units, ..DiskFacts::default() }
            };
            let mut units = vec![UnitFacts::default(); self.contract.units.len()];
            units[self.sub.index()].processes = self.processes;
            let snapshot =
                Snapshot { units, disks: disks.iter().map(facts).collect(), ..Snapshot::default() };
            let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
            let (contract, machine, snapshot) = (&self.contract, &machine, &snapshot);
            let input = Input { contract, machine, means: self.means, snapshot, changes: &[] };
            let mut steps = Vec::new();
            let caps = &self.caps;
            let next = self.debts.settle(ns(now), input, |_| Some(caps), &mut steps);
            let ordered = steps.iter().filter_map(|step| match step.action {
                DiskOrder::Stop { unit, stopped, .. } => Some((unit, stopped)),
                _ => None,
            });
            (ordered.collect(), next.map(|next| (next - ns(now)) / MS))
        }
    }

    /// 10 MiB/s, and a sub-unit transfers 5 MiB in 100 ms: 1 MiB was a burst and 1 MiB is earned, so 3 MiB are owed, for
    /// 300 ms. A unit whose last process has gone is not stopped, nor one without a rate.
    #[test]
    fn a_unit_stands_still_until_its_rate_has_earned_it() {
        let mut looks = Looks::new();
        let unit = looks.unit;
        assert_eq!(looks.at(0, &[("all", 7)]), (vec![], Some(50)), "what was before is no debt");
        assert_eq!(looks.at(100, &[("all", 12)]), (vec![(unit, true)], Some(300)));
        assert_eq!(looks.at(200, &[("all", 12)]), (vec![], Some(200)));
        assert_eq!(looks.at(400, &[("all", 12)]), (vec![(unit, false)], Some(50)));
        assert_eq!(looks.at(500, &[("all", 22)]), (vec![(unit, true)], Some(900)));
        looks.processes = 0;
        assert_eq!(
            looks.at(600, &[("all", 22)]),
            (vec![(unit, false)], None),
            "nobody is there, nor looked at"
        );
        looks.processes = 1;
        assert_eq!(looks.at(700, &[("all", 22)]).0, [(unit, true)]);
        looks.caps.clear();
        assert_eq!(looks.at(800, &[("all", 22)]), (vec![(unit, false)], None));
    }

    /// Whatever a disk's facts do, nobody stands still for one that is not there.
    #[test]
    fn a_disk_that_goes_is_owed_nothing() {
        let stopped = || {
            let mut looks = Looks::new();
            looks.at(0, &[("sda", 0)]);
            assert_eq!(looks.at(100, &[("sda", 12)]).0, [(looks.unit, true)]);
            looks
        };
        let mut looks = stopped();
        assert_eq!(looks.at(200, &[]), (vec![(looks.unit, false)], None), "it is gone");
        assert_eq!(looks.at(300, &[]), (vec![], None), "once");
        assert_eq!(looks.at(400, &[("sda", 12)]), (vec![], Some(50)), "it is back, and begins anew");
        let mut looks = stopped();
        assert_eq!(
            looks.at(200, &[("all", 12)]),
            (vec![(looks.unit, false)], Some(50)),
            "its name is another"
        );
        let mut looks = stopped();
        looks.caps.clear();
        assert_eq!(looks.at(200, &[]), (vec![(looks.unit, false)], None), "and the rate goes with it");
        let mut looks = stopped();
        looks.means.disk.limits_only = false;
        assert_eq!(
            looks.at(200, &[("sda", 12)]),
            (vec![(looks.unit, false)], None),
            "it holds rates itself now"
        );
        // The unit goes: no order is about it, and another that has its place later owes nothing.
        let mut looks = stopped();
        looks.contract.vacant.extend([looks.unit, looks.sub]);
        looks.caps.clear();
        assert_eq!(looks.at(200, &[("sda", 12)]), (vec![], None));
        assert_eq!(looks.debts.stopped, BTreeMap::new());
    }

    /// 2 MiB more than a burst and what is earned are owed at one disk, and 5 at another: 200 ms and 500. The unit goes on
    /// when the last is paid; that the longer debt goes with its disk is not a reason to go on, while the other is owed.
    #[test]
    fn a_unit_goes_on_when_it_owes_at_no_disk() {
        let mut looks = Looks::new();
        let unit = looks.unit;
        looks.at(0, &[("sda", 0), ("sdb", 0)]);
        assert_eq!(looks.at(100, &[("sda", 4), ("sdb", 7)]), (vec![(unit, true)], Some(500)));
        assert_eq!(looks.at(350, &[("sda", 4), ("sdb", 7)]), (vec![], Some(250)), "sda is paid");
        assert_eq!(looks.at(600, &[("sda", 4), ("sdb", 7)]), (vec![(unit, false)], Some(50)));
        assert_eq!(looks.at(700, &[("sda", 8), ("sdb", 11)]).0, [(unit, true)]);
        assert_eq!(looks.at(800, &[("sda", 8)]), (vec![], Some(100)), "sdb is gone");
        assert_eq!(looks.at(900, &[("sda", 8)]).0, [(unit, false)]);
    }

    /// 3 MiB are owed, for 300 ms since the facts were read, 80 ms ago. Facts that are no newer earn nothing: they are
    /// waited for, for as long as they are old.
    #[test]
    fn time_is_that_of_the_facts() {
        let mut looks = Looks::new();
        let unit = looks.unit;
        looks.at(0, &[("all", 0)]);
        assert_eq!(looks.late(180, 100, &[("all", 5)]), (vec![(unit, true)], Some(220)));
        assert_eq!(looks.late(420, 100, &[("all", 5)]), (vec![], Some(320)));
        assert_eq!(looks.late(430, 400, &[("all", 5)]), (vec![(unit, false)], Some(50)));
    }

    proptest! {
        /// Whatever a unit would transfer at each look, if it transfers nothing while it owes: no more than its rate times
        /// the time, a burst, and the last of its transfers. If it always takes more than is left: no less than its rate.
        #[test]
        fn a_rate_is_neither_exceeded_nor_withheld(
            rate in 1u64..1 << 30,
            looks in proptest::collection::vec((1u64..100 * MS, 0u64..1 << 26), 1..100),
        ) {
            let (mut some, mut greedy) = (Bucket::new(rate), Bucket::new(rate));
            let (mut moved, mut last, mut most, mut passed) = (0u64, 0, 0u64, 0);
            for (ns, bytes) in looks {
                // What would be forgiven is left out: no unit gets so far that is looked at often.
                let bytes = if some.credit < 0 { 0 } else { bytes.min(rate) };
                some.pass(ns, bytes);
                (moved, passed) = (moved + bytes, passed + ns);
                last = if bytes > 0 { bytes } else { last };
                let earned = |passed: Time| u128::from(rate) * u128::from(passed) / 1_000_000_000;
                let earned_all = earned(passed + BURST_NS);
                prop_assert!(u128::from(moved) <= earned_all + u128::from(last), "{moved} of {earned_all}");
                prop_assert!(debt_ns(some) <= DEBT_NS);
                let left = u64::try_from(greedy.credit / BYTE + 1).unwrap_or(0);
                greedy.pass(ns, left);
                most += left;
                prop_assert!(u128::from(most) + 2 >= earned(passed - ns + BURST_NS), "{most} after {passed}");
            }
        }
    }
}
