//! The accounts of disk bandwidth.
//!
//! A unit is entitled to its part of what all units transferred together; an idle disk owes nothing. Every
//! entry conserves two sums: entitled bytes, with those of no unit, sum to what was transferred; hence lent
//! bytes equal borrowed ones, units dropped by a reload included.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::DiskOrder;
use commonhold_policy::share::{part_of, split};
use commonhold_policy::{DiskUse, Plan, Reason, Snapshot, Time};

use crate::Imbalance;
use crate::loans::Loans;
use crate::spread::Spread;

/// The disk account of one unit since the ledger was opened, all disks together, sub-units included.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct DiskAccount {
    /// Its present share of what each disk transfers, in millionths.
    pub entitled_part: u64,
    /// What it transferred over the last interval, in bytes per second.
    pub using_bytes_per_s: u64,
    /// Bytes it read.
    pub read_bytes: u64,
    /// Bytes it wrote, if the file system attributes them.
    pub written_bytes: u64,
    /// Its requests.
    pub requests: u64,
    /// Its part of what all units transferred, in bytes.
    pub entitled_bytes: u64,
    /// What others transferred of that part, in bytes.
    pub lent_bytes: u64,
    /// What it transferred beyond that part, in bytes.
    pub borrowed_bytes: u64,
    /// Time in which any of its processes was stalled for a disk, in nanoseconds; 0 if the kernel does not
    /// report it.
    pub waited_ns: u64,
    /// How often others were limited to their parts because it waited.
    pub called_back: u64,
    /// Median call-back: from the last sample at which it did not wait, or had its part.
    pub call_back_p50_ns: u64,
    /// The 99th percentile.
    pub call_back_p99_ns: u64,
    /// The longest.
    pub call_back_max_ns: u64,
}

/// A unit's running account.
#[derive(Debug, Clone, Default)]
struct DiskEntry {
    part: u64,
    using: u64,
    used: DiskUse,
    entitled: u64,
    loans: Loans,
    call_backs: Spread,
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disks {
    /// By [`UnitId::index`].
    units: Vec<DiskEntry>,
    /// Loans of units that left the contract: their counterparts may still be there.
    closed: Loans,
    /// The latest sample of each disk.
    seen: BTreeMap<String, (Time, Vec<DiskUse>)>,
    /// Rate limits in force.
    held: BTreeSet<(UnitId, String)>,
}

impl Disks {
    /// Enters what happened up to the snapshot, under the orders in force until then.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        // A removed disk took its limits with it.
        self.held.retain(|(_, name)| snapshot.disks.iter().any(|disk| disk.name == *name));
        let fresh = |name: &str, at: Time| self.seen.get(name).is_none_or(|(seen, _)| *seen < at);
        if !snapshot.disks.iter().any(|disk| fresh(&disk.name, disk.at)) {
            return;
        }
        for own in &mut self.units {
            own.using = 0;
        }
        for disk in &snapshot.disks {
            self.reach(disk.units.len());
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

    /// Ensures accounts for this many units.
    fn reach(&mut self, units: usize) {
        self.units.resize(self.units.len().max(units), DiskEntry::default());
    }

    /// Enters units' transfers on one disk in one interval.
    fn charge(&mut self, used: &[DiskUse], elapsed: Time) {
        // Samples are often closer together than transfers.
        if used.iter().all(|used| used.bytes() == 0 && used.requests == 0) {
            return;
        }
        let parts: Vec<u64> = self.units.iter().map(|own| own.part).collect();
        let all: u64 = used.iter().map(|used| used.bytes()).sum();
        // Before the first plan no unit is entitled to anything, and nothing is lent.
        let none_is_entitled = parts.iter().all(|part| *part == 0);
        for (index, (own, due)) in self.units.iter_mut().zip(split(all, &parts)).enumerate() {
            let used = used.get(index).copied().unwrap_or_default();
            own.used.read_bytes += used.read_bytes;
            own.used.written_bytes += used.written_bytes;
            own.used.requests += used.requests;
            own.using += per_second(used.bytes(), elapsed);
            let due = if none_is_entitled { used.bytes() } else { due };
            own.entitled += due;
            let (lent, borrowed) = (due.saturating_sub(used.bytes()), used.bytes().saturating_sub(due));
            own.loans += Loans { lent, borrowed };
        }
    }

    /// Stall times are per unit and the same at every disk of a snapshot, so the first disk's are used.
    fn observe_stalls(&mut self, snapshot: &Snapshot) {
        let Some(disk) = snapshot.disks.first() else { return };
        for (own, used) in self.units.iter_mut().zip(&disk.units) {
            own.used.stalled_ns = used.stalled_ns;
        }
    }

    /// Enters a plan that was carried out at `applied_at`.
    pub(crate) fn book(&mut self, plan: &Plan, applied_at: Time) {
        if !plan.decisions.disk.entitled.is_empty() {
            let entitled = &plan.decisions.disk.entitled;
            self.reach(entitled.len());
            let parts = entitled.iter().copied().chain(std::iter::repeat(0));
            self.units.iter_mut().zip(parts).for_each(|(own, part)| own.part = part);
        }
        for step in &plan.orders.disk {
            let DiskOrder::Cap { unit, disk, read, write } = &step.action else { continue };
            let key = (*unit, disk.clone());
            if read.is_none() && write.is_none() {
                self.held.remove(&key);
            } else if let (true, Reason::DiskWanted { by, since, .. }) = (self.held.insert(key), step.reason)
            {
                self.reach(by.index() + 1);
                self.units[by.index()].call_backs.add(applied_at.saturating_sub(since));
            }
        }
    }

    /// Adopts another contract. Accounts of units that left are closed; their loans stay in the sums.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        for (id, own) in (0..).map(UnitId).zip(&mut self.units) {
            if !contract.has(id) {
                self.closed += own.loans;
                *own = DiskEntry::default();
            }
        }
        self.held.retain(|(id, _)| contract.has(*id));
        // The next snapshot is the baseline for the new contract's units.
        self.seen.clear();
    }

    /// Moves the account of a unit that ended into its heir's.
    pub(crate) fn bequeath(&mut self, unit: UnitId, heir: UnitId) {
        self.held.retain(|(held, _)| *held != unit);
        // Another unit may take the number and count from 0.
        for (_, units) in self.seen.values_mut() {
            units.get_mut(unit.index()).map(std::mem::take);
        }
        let Some(own) = self.units.get_mut(unit.index()).map(std::mem::take) else { return };
        let Some(heir) = self.units.get_mut(heir.index()) else { return };
        heir.used.read_bytes += own.used.read_bytes;
        heir.used.written_bytes += own.used.written_bytes;
        heir.used.requests += own.used.requests;
        heir.entitled += own.entitled;
        heir.loans += own.loans;
        heir.call_backs.merge(&own.call_backs);
    }

    /// The account of a unit, given the unit and its sub-units, the unit first; `None` if no disk was
    /// observed.
    pub(crate) fn account(&self, family: &[UnitId]) -> Option<DiskAccount> {
        if self.seen.is_empty() && self.units.is_empty() {
            return None;
        }
        let owns: Vec<&DiskEntry> = family.iter().filter_map(|id| self.units.get(id.index())).collect();
        let sum = |figure: &dyn Fn(&DiskEntry) -> u64| owns.iter().map(|own| figure(own)).sum::<u64>();
        let mut call_backs = Spread::default();
        for own in &owns {
            call_backs.merge(&own.call_backs);
        }
        Some(DiskAccount {
            entitled_part: sum(&|own| own.part),
            using_bytes_per_s: sum(&|own| own.using),
            read_bytes: sum(&|own| own.used.read_bytes),
            written_bytes: sum(&|own| own.used.written_bytes),
            requests: sum(&|own| own.used.requests),
            entitled_bytes: sum(&|own| own.entitled),
            lent_bytes: sum(&|own| own.loans.lent),
            borrowed_bytes: sum(&|own| own.loans.borrowed),
            waited_ns: sum(&|own| own.used.stalled_ns.unwrap_or(0)),
            called_back: call_backs.count(),
            call_back_p50_ns: call_backs.within(500_000),
            call_back_p99_ns: call_backs.within(990_000),
            call_back_max_ns: call_backs.within(1_000_000),
        })
    }

    /// Whether lent bytes differ from borrowed ones.
    pub(crate) fn imbalance(&self) -> Option<Imbalance> {
        let open: Loans = self.units.iter().map(|own| own.loans).sum();
        let Loans { lent, borrowed } = open + self.closed;
        (lent != borrowed).then_some(Imbalance::Disk { lent, borrowed })
    }
}

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
    fn what_a_dropped_unit_lent_and_borrowed_stays_in_the_sums() {
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
