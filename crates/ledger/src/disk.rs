//! The accounts of disk bandwidth.
//!
//! A unit is entitled to its part of the bytes that all units together transferred. So while a disk is idle,
//! no unit is owed anything. Each time that transfers are booked, the entitled bytes of all units, including
//! `shared` and `kernel`, sum to the bytes transferred. Therefore lent bytes equal borrowed bytes. These sums
//! include units that a reload removed from the contract.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::DiskOrder;
use commonhold_policy::share::{part_of, split};
use commonhold_policy::{DiskUse, Plan, Reason, Snapshot, Time};

use crate::Imbalance;
use crate::loans::Loans;
use crate::spread::Histogram;
use crate::waits::{Cause, Occupants, had_by};

/// The disk account of one unit since the ledger was opened, all disks together, sub-units included.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct DiskAccount {
    /// The unit's present share of each disk's transfers, in millionths.
    pub entitled_part: u64,
    /// The unit's transfer rate over the last interval, in bytes per second.
    pub using_bytes_per_s: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, if the file system attributes them.
    pub written_bytes: u64,
    /// The number of requests.
    pub requests: u64,
    /// The unit's part of the bytes that all units transferred.
    pub entitled_bytes: u64,
    /// The bytes of that part that other units transferred.
    pub lent_bytes: u64,
    /// The bytes that the unit transferred beyond that part.
    pub borrowed_bytes: u64,
    /// Time in which any of the unit's processes was stalled for a disk, in nanoseconds; 0 if the kernel does
    /// not report it.
    pub waited_ns: u64,
    /// How often other units were limited to their parts because this unit waited.
    pub called_back: u64,
    /// The median call-back, which begins at the last sample at which the unit did not wait, or had its part.
    pub call_back_p50_ns: u64,
    /// The 99th percentile of call-backs.
    pub call_back_p99_ns: u64,
    /// The longest call-back.
    pub call_back_max_ns: u64,
}

/// A unit's running account, sub-units excluded. Bytes are of all disks together.
#[derive(Debug, Clone, Default)]
struct DiskEntry {
    /// The unit's share of each disk by the latest plan, in millionths.
    part: u64,
    /// The transfer rate over the last interval, in bytes per second.
    using: u64,
    used: DiskUse,
    /// Its stall time between the last two samples.
    stalled_ns: u64,
    entitled: u64,
    loans: Loans,
    call_backs: Histogram,
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disks {
    /// By [`UnitId::index`].
    units: Vec<DiskEntry>,
    /// Loans of units that left the contract. They balance those of units that are still present.
    closed: Loans,
    /// The latest sample of each disk: its time, and each unit's counters.
    seen: BTreeMap<String, (Time, Vec<DiskUse>)>,
    /// The units and disks with a rate limit in force.
    limited: BTreeSet<(UnitId, String)>,
    /// Those of them that the contract's own limit for the unit caused.
    by_contract: BTreeSet<(UnitId, String)>,
}

impl Disks {
    /// Charges the transfers since the previous snapshot, under the orders in force until now.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        // The limits on a removed disk ended with the disk.
        self.limited.retain(|(_, name)| snapshot.disks.iter().any(|disk| disk.name == *name));
        self.by_contract.retain(|key| self.limited.contains(key));
        let is_new = |name: &str, at: Time| self.seen.get(name).is_none_or(|(seen, _)| *seen < at);
        for entry in &mut self.units {
            entry.stalled_ns = 0;
        }
        if !snapshot.disks.iter().any(|disk| is_new(&disk.name, disk.at)) {
            return;
        }
        for entry in &mut self.units {
            entry.using = 0;
        }
        for disk in &snapshot.disks {
            self.resize(disk.units.len());
            let Some((at, before)) = self.seen.get_mut(&disk.name) else {
                self.seen.insert(disk.name.clone(), (disk.at, disk.units.clone()));
                continue;
            };
            let elapsed = disk.at.saturating_sub(*at);
            let before_of = |index: usize| before.get(index).copied().unwrap_or_default();
            let used: Vec<DiskUse> =
                disk.units.iter().enumerate().map(|(index, used)| used.since(before_of(index))).collect();
            *at = disk.at;
            before.clone_from(&disk.units);
            self.charge(&used, elapsed);
        }
        self.seen.retain(|name, _| snapshot.disks.iter().any(|disk| disk.name == *name));
        self.observe_stalls(snapshot);
    }

    /// Ensures accounts for this many units; never shrinks.
    fn resize(&mut self, units: usize) {
        self.units.resize(self.units.len().max(units), DiskEntry::default());
    }

    /// Enters units' transfers on one disk in one interval.
    fn charge(&mut self, used: &[DiskUse], elapsed: Time) {
        // Samples are often closer together than transfers.
        if used.iter().all(|used| used.bytes() == 0 && used.requests == 0) {
            return;
        }
        let parts: Vec<u64> = self.units.iter().map(|entry| entry.part).collect();
        let total: u64 = used.iter().map(|used| used.bytes()).sum();
        // Before the first plan no unit is entitled to anything. Then count each unit's use as its due, so
        // that nothing is lent.
        let no_plan_yet = parts.iter().all(|part| *part == 0);
        for (index, (entry, due)) in self.units.iter_mut().zip(split(total, &parts)).enumerate() {
            let used = used.get(index).copied().unwrap_or_default();
            entry.used.read_bytes += used.read_bytes;
            entry.used.written_bytes += used.written_bytes;
            entry.used.requests += used.requests;
            entry.using += per_second(used.bytes(), elapsed);
            let due = if no_plan_yet { used.bytes() } else { due };
            entry.entitled += due;
            let (lent, borrowed) = (due.saturating_sub(used.bytes()), used.bytes().saturating_sub(due));
            entry.loans += Loans { lent, borrowed };
        }
    }

    /// Enters stall times. The kernel reports them per unit, not per disk: all disks of a snapshot have the
    /// same values, so the first disk's are used.
    fn observe_stalls(&mut self, snapshot: &Snapshot) {
        let Some(disk) = snapshot.disks.first() else { return };
        for (entry, used) in self.units.iter_mut().zip(&disk.units) {
            let before = entry.used.stalled_ns.or(used.stalled_ns);
            entry.stalled_ns = used.stalled_ns.unwrap_or(0).saturating_sub(before.unwrap_or(0));
            entry.used.stalled_ns = used.stalled_ns;
        }
    }

    /// Enters a plan that was carried out at `applied_at`.
    pub(crate) fn book(&mut self, plan: &Plan, applied_at: Time) {
        if !plan.decisions.disk.entitled.is_empty() {
            let entitled = &plan.decisions.disk.entitled;
            self.resize(entitled.len());
            let parts = entitled.iter().copied().chain(std::iter::repeat(0));
            self.units.iter_mut().zip(parts).for_each(|(entry, part)| entry.part = part);
        }
        for step in &plan.orders.disk {
            let DiskOrder::Cap { unit, disk, read, write } = &step.action else { continue };
            let key = (*unit, disk.clone());
            if read.is_none() && write.is_none() {
                self.limited.remove(&key);
                self.by_contract.remove(&key);
                continue;
            }
            if matches!(step.reason, Reason::DiskLimit { .. }) {
                self.by_contract.insert(key.clone());
            } else {
                self.by_contract.remove(&key);
            }
            let is_new_limit = self.limited.insert(key);
            if let (true, Reason::DiskWanted { by, since, .. }) = (is_new_limit, step.reason) {
                self.resize(by.index() + 1);
                self.units[by.index()].call_backs.add(applied_at.saturating_sub(since));
            }
        }
    }

    /// Adopts another contract. The accounts of units that left are closed; their loans stay in the sums.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        for (id, entry) in (0..).map(UnitId).zip(&mut self.units) {
            if !contract.has(id) {
                self.closed += entry.loans;
                *entry = DiskEntry::default();
            }
        }
        self.limited.retain(|(id, _)| contract.has(*id));
        self.by_contract.retain(|(id, _)| contract.has(*id));
        // The next snapshot is the baseline for the new contract's units.
        self.seen.clear();
    }

    /// Closes the account of a unit that ended, and adds it to the encloser's account.
    pub(crate) fn close_into(&mut self, unit: UnitId, encloser: UnitId) {
        self.limited.retain(|(limited, _)| *limited != unit);
        self.by_contract.retain(|(limited, _)| *limited != unit);
        // Another unit may take the number and count from 0.
        for (_, units) in self.seen.values_mut() {
            units.get_mut(unit.index()).map(std::mem::take);
        }
        let Some(entry) = self.units.get_mut(unit.index()).map(std::mem::take) else { return };
        let Some(encloser) = self.units.get_mut(encloser.index()) else { return };
        encloser.used.read_bytes += entry.used.read_bytes;
        encloser.used.written_bytes += entry.used.written_bytes;
        encloser.used.requests += entry.used.requests;
        encloser.entitled += entry.entitled;
        encloser.loans += entry.loans;
        encloser.call_backs.merge(&entry.call_backs);
    }

    /// The account of a unit, given the unit and its sub-units, the unit first; `None` if no disk was
    /// observed.
    pub(crate) fn account(&self, family: &[UnitId]) -> Option<DiskAccount> {
        if self.seen.is_empty() && self.units.is_empty() {
            return None;
        }
        let entries: Vec<&DiskEntry> = family.iter().filter_map(|id| self.units.get(id.index())).collect();
        let sum = |figure: &dyn Fn(&DiskEntry) -> u64| entries.iter().map(|entry| figure(entry)).sum::<u64>();
        let mut call_backs = Histogram::default();
        for entry in &entries {
            call_backs.merge(&entry.call_backs);
        }
        Some(DiskAccount {
            entitled_part: sum(&|entry| entry.part),
            using_bytes_per_s: sum(&|entry| entry.using),
            read_bytes: sum(&|entry| entry.used.read_bytes),
            written_bytes: sum(&|entry| entry.used.written_bytes),
            requests: sum(&|entry| entry.used.requests),
            entitled_bytes: sum(&|entry| entry.entitled),
            lent_bytes: sum(&|entry| entry.loans.lent),
            borrowed_bytes: sum(&|entry| entry.loans.borrowed),
            waited_ns: sum(&|entry| entry.used.stalled_ns.unwrap_or(0)),
            called_back: call_backs.count(),
            call_back_p50_ns: call_backs.quantile(500_000),
            call_back_p99_ns: call_backs.quantile(990_000),
            call_back_max_ns: call_backs.quantile(1_000_000),
        })
    }

    /// The units that stalled for disks between the last two samples, each with the time, if the last
    /// snapshot sampled a disk.
    pub(crate) fn stalls(&self) -> Vec<(UnitId, u64)> {
        let stalled = (0u32..).map(UnitId).zip(&self.units).filter(|(_, entry)| entry.stalled_ns > 0);
        stalled.map(|(unit, entry)| (unit, entry.stalled_ns)).collect()
    }

    /// Why a unit stalled between the last two samples: the causes, weighted by transfers, and whether the
    /// unit had at least its entitlement. `lineage`: the unit and its enclosers.
    pub(crate) fn causes(&self, lineage: &[UnitId]) -> (Vec<(Cause, u64)>, bool) {
        let Some(entry) = lineage.first().and_then(|unit| self.units.get(unit.index())) else {
            return (Vec::new(), false);
        };
        let total: u64 = self.units.iter().map(|entry| entry.using).sum();
        let is_beyond = entry.using >= part_of(total, entry.part, 1_000_000);
        if self.by_contract.iter().any(|(unit, _)| lineage.contains(unit)) {
            return (vec![(Cause::Limit, 1)], is_beyond);
        }
        let ids = (0u32..).map(UnitId).zip(&self.units).filter(|(_, entry)| entry.using > 0);
        let had = Occupants::of(ids.map(|(id, entry)| (had_by(id), entry.using)));
        (had.causes(lineage[0], Cause::Own, entry.using), is_beyond)
    }

    /// A unit's entitled bytes, transferred bytes and stall time since the ledger was opened, sub-units
    /// excluded; `None` if no disk was observed.
    pub(crate) fn totals_of(&self, unit: UnitId) -> Option<(u64, u64)> {
        if self.seen.is_empty() {
            return None;
        }
        self.units.get(unit.index()).map(|entry| (entry.entitled, entry.used.bytes()))
    }

    /// The imbalance if lent bytes differ from borrowed bytes.
    pub(crate) fn imbalance(&self) -> Option<Imbalance> {
        let open: Loans = self.units.iter().map(|entry| entry.loans).sum();
        let Loans { lent, borrowed } = open + self.closed;
        (lent != borrowed).then_some(Imbalance::Disk { lent, borrowed })
    }
}

/// A rate in bytes per second.
fn per_second(bytes: u64, elapsed: Time) -> u64 {
    part_of(bytes, 1_000_000_000, elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_policy::plan::{Decisions, DiskPlan, Orders};
    use commonhold_policy::{DiskFacts, MS, Step};

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);

    /// Three quarters and one quarter.
    fn entitled() -> Plan {
        let disk = DiskPlan { entitled: vec![0, 0, 750_000, 250_000], ..DiskPlan::default() };
        Plan { decisions: Decisions { disk, ..Decisions::default() }, ..Plan::default() }
    }

    fn snapshot(at: Time, a: u64, b: u64) -> Snapshot {
        let used = |bytes| DiskUse {
            read_bytes: bytes,
            requests: bytes / 10,
            stalled_ns: Some(at),
            ..DiskUse::default()
        };
        let units = vec![DiskUse::default(), DiskUse::default(), used(a), used(b)];
        let disk = DiskFacts { name: "sda".to_owned(), at, units, ..DiskFacts::default() };
        Snapshot { at, disks: vec![disk], ..Snapshot::default() }
    }

    /// Parts 3:1. In a second, 400 bytes are transferred, 100 of them by A: its part was 300, so 200 are
    /// lent.
    #[test]
    fn a_second_by_hand() {
        let mut books = Disks::default();
        assert_eq!(books.account(&[A]), None);
        books.observe(&snapshot(1_000 * MS, 7, 9));
        books.book(&entitled(), 0);
        books.observe(&snapshot(2_000 * MS, 107, 309));
        // The same sample again changes nothing.
        books.observe(&snapshot(2_000 * MS, 107, 309));
        let (a, b) = (books.account(&[A]).unwrap_or_default(), books.account(&[B]).unwrap_or_default());
        assert_eq!((a.read_bytes, a.entitled_bytes, a.lent_bytes, a.borrowed_bytes), (100, 300, 200, 0));
        assert_eq!((b.read_bytes, b.entitled_bytes, b.lent_bytes, b.borrowed_bytes), (300, 100, 0, 200));
        assert_eq!((b.using_bytes_per_s, b.entitled_part, b.waited_ns), (300, 250_000, 2_000 * MS));
        let both = books.account(&[A, B]).unwrap_or_default();
        assert_eq!((both.read_bytes, both.lent_bytes, both.requests), (400, 200, 40));
    }

    /// Parts 3:1, and 200 bytes of 400 are lent; then a reload drops one of the two, and another unit takes
    /// its number. Of another 400 bytes half as much is lent, since the first transfers 200 of its 300.
    #[test]
    fn loans_of_a_dropped_unit_stay_in_the_sums() {
        for dropped in [A, B] {
            let mut books = Disks::default();
            let plan = entitled();
            books.observe(&snapshot(1_000 * MS, 0, 0));
            books.book(&plan, 0);
            books.observe(&snapshot(2_000 * MS, 100, 300));
            let mut contract = Contract::default();
            contract.add(None, "a");
            contract.add(None, "b");
            contract.vacant.insert(dropped);
            books.adopt(&contract);
            books.observe(&snapshot(3_000 * MS, 0, 0));
            books.book(&plan, 0);
            books.observe(&snapshot(4_000 * MS, 200, 200));
            let (a, b) = (books.account(&[A]).unwrap_or_default(), books.account(&[B]).unwrap_or_default());
            let figures = (a.lent_bytes, b.borrowed_bytes, books.closed.lent, books.closed.borrowed);
            assert_eq!(books.imbalance(), None);
            assert_eq!(figures, if dropped == A { (100, 300, 200, 0) } else { (300, 100, 0, 200) });
        }
    }

    /// A call-back is booked when its limit is new, not when the rate changes.
    #[test]
    fn a_call_back_is_counted_once() {
        let mut books = Disks::default();
        let order = |read| Step {
            action: DiskOrder::Cap { unit: B, disk: "sda".to_owned(), read, write: read },
            reason: Reason::DiskWanted { part: 1, by: A, since: 5 },
        };
        let ordered = |disk| Plan { orders: Orders { disk, ..Orders::default() }, ..Plan::default() };
        for (steps, at) in
            [(vec![order(Some(9))], 105), (vec![order(Some(8))], 300), (vec![order(None)], 400)]
        {
            books.book(&ordered(steps), at);
        }
        let a = books.account(&[A]).unwrap_or_default();
        assert_eq!((a.called_back, a.call_back_max_ns), (1, 100));
        books.book(&ordered(vec![order(Some(9))]), 206);
        assert_eq!(books.account(&[A]).unwrap_or_default().called_back, 2);
        books.observe(&Snapshot::default());
        books.book(&ordered(vec![order(Some(9))]), 307);
        assert_eq!(books.account(&[A]).unwrap_or_default().called_back, 3, "the disk was gone meanwhile");
    }
}
