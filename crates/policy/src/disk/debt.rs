//! Token buckets for rates that are enforced by stopping units: when a unit is stopped, and for how long.
//!
//! Problem: without caps in the kernel, nothing slows down a process that transfers too much. Its transfers
//! can only be counted afterwards. But then the process's unit can be stopped until the unit's average rate
//! is low enough.
//!
//! Algorithm: each unit with a cap has a token bucket for reading and one for writing on each disk. Tokens
//! are bytes. They are added at the cap's rate, up to a burst of [`BURST_NS`] at that rate, and removed for
//! the transfers of the unit and its sub-units. A negative balance of a bucket is a *debt*. A unit with a
//! debt is stopped, and continued once it has no debt on any disk. A debt on a disk that disappears is
//! forgotten.
//!
//! Tokens are added for the time from one reading of the disk's counters to the next, not from step to step.
//!
//! Example: a unit may read 10 MiB/s, so that a burst is 1 MiB. With a full bucket, the unit reads 5 MiB at
//! once. It then has a debt of 4 MiB, and is stopped for 400 ms.
//!
//! Properties (tested):
//! - In any interval, a unit transfers at most the sum of three amounts: its rate times the length of the
//!   interval, one burst, and what it transfers between two samples.
//! - A unit that always transfers as much as it may gets its full rate, however low the rate is and however
//!   often the unit is sampled.
//! - A debt is at most the rate times [`DEBT_NS`]; a larger debt is reduced to that. So no unit is stopped
//!   for longer than [`DEBT_NS`].
//! - Only a unit with a cap and with processes is stopped. Transfers before the first sample cause no debt,
//!   and no tokens are added for the time before it.
//!
//! Limits: a stopped unit does not compute either. So units are stopped only to enforce the contract's
//! limits, not for sharing.

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

/// The largest balance and the largest debt of a bucket, as time at the rate.
const BURST_NS: Time = 100 * MS;
const DEBT_NS: Time = 2_000 * MS;
/// The sampling interval while a unit with a cap has processes and is not stopped.
const WATCH_NS: Time = 50 * MS;

/// A byte in the unit of account, the billionth of a byte: a rate of 1 byte per second adds one such unit in
/// a nanosecond, so that no fraction is lost.
const BYTE: i128 = 1_000_000_000;

/// A token bucket for reading or for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    /// Bytes per second; [`u64::MAX`] is unlimited.
    rate: u64,
    /// In [`BYTE`]ths of a byte; negative: debt.
    balance: i128,
}

impl Bucket {
    /// A full bucket.
    fn new(rate: u64) -> Bucket {
        let mut bucket = Bucket { rate, balance: 0 };
        bucket.balance = bucket.tokens(BURST_NS);
        bucket
    }

    /// The bucket with another rate. Its balance stays within a burst and the largest debt at the new rate. A
    /// bucket that is or was unlimited begins full.
    fn with_rate(self, rate: u64) -> Bucket {
        let mut new = Bucket::new(rate);
        if self.rate != u64::MAX && rate != u64::MAX {
            new.balance = self.balance.clamp(-new.tokens(DEBT_NS), new.balance);
        }
        new
    }

    /// The tokens that are added in a time, in [`BYTE`]ths of a byte.
    fn tokens(self, elapsed: Time) -> i128 {
        i128::from(self.rate).saturating_mul(i128::from(elapsed))
    }

    /// Adds the tokens for the time `elapsed`, and removes one for each of the `bytes` that were transferred
    /// in it.
    fn charge(&mut self, elapsed: Time, bytes: u64) {
        if self.rate == u64::MAX {
            return;
        }
        let balance = self.balance.saturating_add(self.tokens(elapsed)) - i128::from(bytes) * BYTE;
        self.balance = balance.clamp(-self.tokens(DEBT_NS), self.tokens(BURST_NS));
    }

    /// How long it takes to pay the debt, and the debt in bytes, both rounded up; `None` if there is no debt.
    fn debt(self) -> Option<(Time, u64)> {
        let debt_over =
            |divisor: i128| u64::try_from((-self.balance + divisor - 1) / divisor).unwrap_or(u64::MAX);
        (self.balance < 0).then(|| (debt_over(i128::from(self.rate).max(1)), debt_over(BYTE)))
    }
}

/// The buckets of units with caps on one disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Accounts {
    /// Reading and writing.
    buckets: BTreeMap<UnitId, [Bucket; 2]>,
    /// Units' counters at the last sample, and when its facts were read.
    used: BTreeMap<UnitId, DiskUse>,
    facts_at: Option<Time>,
}

impl Accounts {
    /// Charges each bucket for the transfers since the last sample. Does nothing if the facts are not new.
    fn charge(&mut self, contract: &Contract, facts: &DiskFacts) {
        if self.facts_at.is_some_and(|at| facts.at <= at) {
            return;
        }
        let elapsed = self.facts_at.map_or(0, |at| facts.at - at);
        let mut transferred: BTreeMap<UnitId, [u64; 2]> = BTreeMap::new();
        for unit in contract.held() {
            let counters = facts.unit(unit);
            let Some(before) = self.used.insert(unit, counters) else { continue };
            let new = counters.since(before);
            if new.bytes() == 0 {
                continue;
            }
            // Each enclosing unit with a cap pays for the transfer as well.
            for payer in lineage(contract, unit).filter(|payer| self.buckets.contains_key(payer)) {
                let [read, written] = transferred.entry(payer).or_default();
                *read = read.saturating_add(new.read_bytes);
                *written = written.saturating_add(new.written_bytes);
            }
        }
        for (unit, buckets) in &mut self.buckets {
            let bytes = transferred.get(unit).copied().unwrap_or_default();
            for (bucket, bytes) in buckets.iter_mut().zip(bytes) {
                bucket.charge(elapsed, bytes);
            }
        }
        self.facts_at = Some(facts.at);
    }

    /// Gives each unit with a cap buckets at the cap's rates, and removes the buckets of other units.
    fn follow(&mut self, caps: &BTreeMap<UnitId, Order<DiskCap>>) {
        self.buckets.retain(|unit, _| caps.contains_key(unit));
        for (unit, cap) in caps {
            let (read, write) = (cap.value.read, cap.value.write);
            let buckets = self.buckets.entry(*unit).or_insert_with(|| [read, write].map(Bucket::new));
            for (bucket, rate) in buckets.iter_mut().zip([read, write]) {
                if bucket.rate != rate {
                    *bucket = bucket.with_rate(rate);
                }
            }
        }
    }

    fn forget_gone(&mut self, contract: &Contract) {
        self.buckets.retain(|unit, _| contract.has(*unit));
        self.used.retain(|unit, _| contract.has(*unit));
    }
}

/// A unit's debt on the disk where it takes longest to pay.
#[derive(Debug, Clone, Copy)]
struct Debt<'a> {
    disk: &'a str,
    bytes: u64,
    /// When it will be paid, by the clock of the facts.
    paid_at: Time,
    /// When the facts were read.
    facts_at: Time,
}

/// The buckets of all disks, and the units that are stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Debts {
    disks: BTreeMap<String, Accounts>,
    /// The units that are stopped, each with the disk on which it was in debt.
    stopped: BTreeMap<UnitId, String>,
}

impl Debts {
    /// Charges the transfers since the last sample, follows the caps in force on each disk, and stops or
    /// continues units. `caps` gives the caps in force on a disk. Returns when to sample next, if a unit with
    /// a cap has processes.
    pub(super) fn settle<'a>(
        &mut self,
        now: Time,
        input: Input<'_>,
        caps: impl Fn(&DiskFacts) -> Option<&'a BTreeMap<UnitId, Order<DiskCap>>>,
        steps: &mut Vec<Step<DiskOrder>>,
    ) -> Option<Time> {
        let contract = input.contract;
        let disks = if input.means.disk.limits_only { input.snapshot.disks.as_slice() } else { &[] };
        if disks.is_empty() && self.stopped.is_empty() {
            self.disks.clear();
            return None;
        }
        self.disks.retain(|name, _| disks.iter().any(|facts| facts.name == *name));
        if !contract.vacant.is_empty() {
            self.disks.values_mut().for_each(|accounts| accounts.forget_gone(contract));
            // The stop of a unit ended when the backend removed the unit.
            self.stopped.retain(|unit, _| contract.has(*unit));
        }
        for (facts, caps) in disks.iter().filter_map(|facts| Some((facts, caps(facts)?))) {
            let accounts = self.disks.entry(facts.name.clone()).or_default();
            accounts.charge(contract, facts);
            accounts.follow(caps);
        }
        let debts = debts(&self.disks);
        let has_caps = self.disks.values().any(|accounts| !accounts.buckets.is_empty());
        let present = if has_caps { present(input) } else { BTreeSet::new() };
        let next = next_sample(now, &self.disks, &debts, &present);
        let must_stop = |unit: &UnitId| debts.contains_key(unit) && present.contains(unit);
        let order = |unit, disk: String, stopped, reason| Step {
            action: DiskOrder::Stop { unit, disk, stopped },
            reason,
        };
        for (unit, disk) in core::mem::take(&mut self.stopped) {
            if must_stop(&unit) {
                self.stopped.insert(unit, disk);
            } else {
                steps.push(order(unit, disk, false, Reason::DiskDebtPaid));
            }
        }
        for (unit, debt) in debts.iter().filter(|(unit, _)| must_stop(unit)) {
            if !self.stopped.contains_key(unit) {
                self.stopped.insert(*unit, String::from(debt.disk));
                let reason = Reason::DiskDebt { bytes: debt.bytes };
                steps.push(order(*unit, String::from(debt.disk), true, reason));
            }
        }
        next
    }
}

/// For each unit in debt, the debt that takes longest to pay.
fn debts(disks: &BTreeMap<String, Accounts>) -> BTreeMap<UnitId, Debt<'_>> {
    let mut debts: BTreeMap<UnitId, Debt<'_>> = BTreeMap::new();
    for (disk, accounts) in disks {
        let facts_at = accounts.facts_at.unwrap_or(0);
        for (unit, buckets) in &accounts.buckets {
            let Some((wait, bytes)) = buckets.iter().filter_map(|bucket| bucket.debt()).max() else {
                continue;
            };
            let debt = Debt { disk, bytes, paid_at: facts_at.saturating_add(wait), facts_at };
            let longest = debts.entry(*unit).or_insert(debt);
            if longest.paid_at < debt.paid_at {
                *longest = debt;
            }
        }
    }
    debts
}

/// When to sample next, for the units with caps that are `present`: a unit in debt when the debt will be
/// paid, other units after [`WATCH_NS`]. `None` if there is no such unit.
fn next_sample(
    now: Time,
    disks: &BTreeMap<String, Accounts>,
    debts: &BTreeMap<UnitId, Debt<'_>>,
    present: &BTreeSet<UnitId>,
) -> Option<Time> {
    let units = disks.values().flat_map(|accounts| accounts.buckets.keys());
    let units = units.filter(|unit| present.contains(unit));
    // Not every sample reads the counters: wait at least as long as the present facts are old, so that the
    // next facts are new.
    let when_paid = |debt: &Debt<'_>| debt.paid_at.max(now + now.saturating_sub(debt.facts_at).max(MS));
    units.map(|unit| debts.get(unit).map_or(now + WATCH_NS, when_paid)).min()
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
        bucket.debt().map_or(0, |(wait, _)| wait)
    }

    /// 10 MiB/s. Of 5 MiB at once, 4 are owed, for 400 ms. At most two seconds' worth is owed.
    #[test]
    fn transfers_beyond_a_burst_are_owed() {
        let mut bucket = Bucket::new(10 * MIB);
        bucket.charge(0, MIB);
        assert_eq!(debt_ns(bucket), 0, "a burst is free");
        bucket.charge(0, 4 * MIB);
        assert_eq!(debt_ns(bucket), 400 * MS);
        bucket.charge(300 * MS, 0);
        assert_eq!(debt_ns(bucket), 100 * MS);
        bucket.charge(0, 1_000 * MIB);
        assert_eq!(debt_ns(bucket), DEBT_NS);
        let mut free = Bucket::new(u64::MAX);
        free.charge(0, 1_000 * MIB);
        assert_eq!(debt_ns(free), 0);
        let mut most = Bucket::new(u64::MAX - 1);
        most.charge(Time::MAX, 0);
        assert_eq!(debt_ns(most), 0);
        most.charge(0, u64::MAX);
        assert!((899 * MS..=901 * MS).contains(&debt_ns(most)), "a second's worth, less a burst");
    }

    /// 400 ms are owed at 10 MiB/s. A tenth of the rate would take 4 s, of which two are forgiven. An
    /// unlimited bucket is owed nothing, and begins full when it gets a rate.
    #[test]
    fn a_new_rate_clamps_tokens_and_debt() {
        let mut bucket = Bucket::new(10 * MIB);
        bucket.charge(0, 5 * MIB);
        assert_eq!(debt_ns(bucket.with_rate(20 * MIB)), 200 * MS);
        assert_eq!(debt_ns(bucket.with_rate(MIB)), DEBT_NS);
        assert_eq!(debt_ns(bucket.with_rate(u64::MAX)), 0);
        assert_eq!(bucket.with_rate(u64::MAX).with_rate(MIB), Bucket::new(MIB));
        assert_eq!(Bucket::new(10 * MIB).with_rate(MIB), Bucket::new(MIB), "the burst is at the new rate");
        assert_eq!(Bucket::new(MIB).with_rate(10 * MIB).balance, Bucket::new(MIB).balance);
    }

    /// 999 bytes per second earn 0.999 in a millisecond: a second of samples each millisecond earns 999.
    #[test]
    fn fractions_of_a_byte_are_kept() {
        let mut bucket = Bucket::new(999);
        bucket.charge(0, 99);
        bucket.charge(0, 999);
        for _ in 0..999 {
            bucket.charge(MS, 0);
            assert!(bucket.debt().is_some());
        }
        bucket.charge(MS, 0);
        assert_eq!(bucket.debt(), None);
    }

    /// Samples of some disks, each with what the sub-unit had written by then.
    struct Bench {
        contract: Contract,
        unit: UnitId,
        sub: UnitId,
        means: Means,
        caps: BTreeMap<UnitId, Order<DiskCap>>,
        processes: u32,
        debts: Debts,
    }

    impl Bench {
        /// A unit that may write 10 MiB/s to each disk, and its sub-unit with one process.
        fn new() -> Bench {
            let mut contract = Contract::default();
            let unit = contract.add(None, "a");
            let sub = contract.add(Some(unit), "b");
            let disk = DiskMeans { caps: true, limits_only: true, ..DiskMeans::NONE };
            let cap = DiskCap { read: u64::MAX, write: 10 * MIB };
            let caps = BTreeMap::from([(unit, Order { value: cap, because: Reason::DiskFree })]);
            let means = Means { disk, ..Means::NONE };
            Bench { contract, unit, sub, means, caps, processes: 1, debts: Debts::default() }
        }

        /// Samples `ms` after the first reading. Returns who is stopped or continued, and after how many
        /// milliseconds the next sample is due.
        fn at(&mut self, ms: u64, disks: &[(&str, u64)]) -> (Vec<(UnitId, bool)>, Option<u64>) {
            self.late(ms, ms, disks)
        }

        /// The same at `now`, with facts that were read at `at`.
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

    /// 10 MiB/s, and a sub-unit transfers 5 MiB in 100 ms: 1 MiB was a burst and 1 MiB is earned, so 3 MiB
    /// are owed, for 300 ms. A unit without processes is not stopped, nor one without a cap.
    #[test]
    fn a_unit_is_stopped_until_its_debt_is_paid() {
        let mut bench = Bench::new();
        let unit = bench.unit;
        assert_eq!(
            bench.at(0, &[("all", 7)]),
            (vec![], Some(50)),
            "transfers before the first sample are no debt"
        );
        assert_eq!(bench.at(100, &[("all", 12)]), (vec![(unit, true)], Some(300)));
        assert_eq!(bench.at(200, &[("all", 12)]), (vec![], Some(200)));
        assert_eq!(bench.at(400, &[("all", 12)]), (vec![(unit, false)], Some(50)));
        assert_eq!(bench.at(500, &[("all", 22)]), (vec![(unit, true)], Some(900)));
        bench.processes = 0;
        assert_eq!(
            bench.at(600, &[("all", 22)]),
            (vec![(unit, false)], None),
            "without processes it is not sampled"
        );
        bench.processes = 1;
        assert_eq!(bench.at(700, &[("all", 22)]).0, [(unit, true)]);
        bench.caps.clear();
        assert_eq!(bench.at(800, &[("all", 22)]), (vec![(unit, false)], None));
    }

    /// Whatever happens to a disk, no unit is stopped for one that is gone.
    #[test]
    fn a_disk_that_is_gone_is_owed_nothing() {
        let stopped = || {
            let mut bench = Bench::new();
            bench.at(0, &[("sda", 0)]);
            assert_eq!(bench.at(100, &[("sda", 12)]).0, [(bench.unit, true)]);
            bench
        };
        let mut bench = stopped();
        assert_eq!(bench.at(200, &[]), (vec![(bench.unit, false)], None), "it is gone");
        assert_eq!(bench.at(300, &[]), (vec![], None), "once");
        assert_eq!(bench.at(400, &[("sda", 12)]), (vec![], Some(50)), "it is back, and its buckets are full");
        let mut bench = stopped();
        assert_eq!(
            bench.at(200, &[("all", 12)]),
            (vec![(bench.unit, false)], Some(50)),
            "it has another name"
        );
        let mut bench = stopped();
        bench.caps.clear();
        assert_eq!(bench.at(200, &[]), (vec![(bench.unit, false)], None), "and the cap goes with it");
        let mut bench = stopped();
        bench.means.disk.limits_only = false;
        assert_eq!(
            bench.at(200, &[("sda", 12)]),
            (vec![(bench.unit, false)], None),
            "the disk throttles by itself now"
        );
        // The unit is gone: no order names it, and the next unit with its number owes nothing.
        let mut bench = stopped();
        bench.contract.vacant.extend([bench.unit, bench.sub]);
        bench.caps.clear();
        assert_eq!(bench.at(200, &[("sda", 12)]), (vec![], None));
        assert_eq!(bench.debts.stopped, BTreeMap::new());
    }

    /// Beyond a burst and what is earned, 2 MiB are owed on one disk and 5 on another: 200 ms and 500. The
    /// unit continues when the last debt is paid. If the disk with the longer debt goes, the other debt still
    /// stops the unit.
    #[test]
    fn a_unit_continues_when_it_owes_on_no_disk() {
        let mut bench = Bench::new();
        let unit = bench.unit;
        bench.at(0, &[("sda", 0), ("sdb", 0)]);
        assert_eq!(bench.at(100, &[("sda", 4), ("sdb", 7)]), (vec![(unit, true)], Some(500)));
        assert_eq!(bench.at(350, &[("sda", 4), ("sdb", 7)]), (vec![], Some(250)), "sda is paid");
        assert_eq!(bench.at(600, &[("sda", 4), ("sdb", 7)]), (vec![(unit, false)], Some(50)));
        assert_eq!(bench.at(700, &[("sda", 8), ("sdb", 11)]).0, [(unit, true)]);
        assert_eq!(bench.at(800, &[("sda", 8)]), (vec![], Some(100)), "sdb is gone");
        assert_eq!(bench.at(900, &[("sda", 8)]).0, [(unit, false)]);
    }

    /// 3 MiB are owed, for 300 ms since the facts were read, 80 ms ago. Facts that are not newer earn
    /// nothing. The next sample is due after as long as the facts are old.
    #[test]
    fn time_is_that_of_the_facts() {
        let mut bench = Bench::new();
        let unit = bench.unit;
        bench.at(0, &[("all", 0)]);
        assert_eq!(bench.late(180, 100, &[("all", 5)]), (vec![(unit, true)], Some(220)));
        assert_eq!(bench.late(420, 100, &[("all", 5)]), (vec![], Some(320)));
        assert_eq!(bench.late(430, 400, &[("all", 5)]), (vec![(unit, false)], Some(50)));
    }

    proptest! {
        /// A unit that transfers nothing while it owes gets at most its rate times the time, a burst, and its
        /// last transfer. One that always takes more than is left gets at least its rate.
        #[test]
        fn a_rate_is_neither_exceeded_nor_withheld(
            rate in 1u64..1 << 30,
            samples in proptest::collection::vec((1u64..100 * MS, 0u64..1 << 26), 1..100),
        ) {
            let (mut modest, mut greedy) = (Bucket::new(rate), Bucket::new(rate));
            let (mut modest_bytes, mut last, mut greedy_bytes, mut passed) = (0u64, 0, 0u64, 0);
            for (ns, bytes) in samples {
                // A debt that would be forgiven is left out: with frequent samples no unit comes to it.
                let bytes = if modest.balance < 0 { 0 } else { bytes.min(rate) };
                modest.charge(ns, bytes);
                (modest_bytes, passed) = (modest_bytes + bytes, passed + ns);
                last = if bytes > 0 { bytes } else { last };
                let earned = |passed: Time| u128::from(rate) * u128::from(passed) / 1_000_000_000;
                let earned_all = earned(passed + BURST_NS);
                prop_assert!(u128::from(modest_bytes) <= earned_all + u128::from(last), "{modest_bytes} of {earned_all}");
                prop_assert!(debt_ns(modest) <= DEBT_NS);
                let left = u64::try_from(greedy.balance / BYTE + 1).unwrap_or(0);
                greedy.charge(ns, left);
                greedy_bytes += left;
                prop_assert!(u128::from(greedy_bytes) + 2 >= earned(passed - ns + BURST_NS), "{greedy_bytes} after {passed}");
            }
        }
    }
}
