//! The accounts of the memory bus.
//!
//! At the end of each quantum, a plan reports the entitlements and the transfers of outermost units.
//! Transfers beyond a unit's entitlement are *borrowed*. The units with unused entitlement *lend* these
//! bytes, in proportion to what each left unused. The plan lists only units with known transfers, so some
//! borrowed bytes may have no lender. Lent bytes and bytes without a lender together equal borrowed bytes.
//! These sums include units that a reload removed from the contract.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::{BusPart, BusPlan};
use commonhold_policy::share::{part_of, split};
use commonhold_policy::{Plan, Time};

use crate::Imbalance;
use crate::loans::Loans;
use crate::spread::Histogram;

/// The account of one outermost unit since the ledger was opened, sub-units included.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct BusAccount {
    /// The unit's entitlement now, in bytes per second.
    pub entitled_bytes_per_s: u64,
    /// The unit's limit in bytes per second; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_bytes_per_s: Option<u64>,
    /// The unit's transfer rate in the last quantum, in bytes per second.
    pub using_bytes_per_s: u64,
    /// The unit's backlog in bytes: transfers that were due to it and that it has not caught up on. Negative:
    /// a surplus, which decays.
    pub owed_bytes: i64,
    /// Whether the unit is stopped now, until others have caught up or until it is back within its limit.
    pub waits: bool,
    /// The unit's entitlement, integrated over time.
    pub entitled_bytes: u64,
    /// Bytes transferred.
    pub used_bytes: u64,
    /// The bytes of the unit's unused entitlement that other units transferred.
    pub lent_bytes: u64,
    /// The bytes that the unit transferred beyond its entitlement.
    pub borrowed_bytes: u64,
    /// The number of quanta in which the unit waited.
    pub waited_quanta: u64,
    /// The duration of these quanta, in nanoseconds.
    pub waited_ns: u64,
    /// The number of quanta in which others waited while this unit had a backlog.
    pub called_back: u64,
    /// The median call-back, from the start of the quantum that left the unit short until it had caught up.
    pub call_back_p50_ns: u64,
    /// The 99th percentile of call-backs.
    pub call_back_p99_ns: u64,
    /// The longest call-back.
    pub call_back_max_ns: u64,
}

/// A unit's running account.
#[derive(Debug, Clone, Default)]
struct BusEntry {
    /// The unit's account in the latest plan; `None` if that plan does not list the unit.
    part: Option<BusPart>,
    entitled: u64,
    used: u64,
    due: u64,
    loans: Loans,
    waited_quanta: u64,
    waited_ns: u64,
    called_back: u64,
    call_backs: Histogram,
    /// The start of the unit's backlog, and whether others have waited since then; `None`: no backlog.
    owed_since: Option<(Time, bool)>,
}

/// One outermost unit's totals since the ledger was opened, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BusTotals {
    pub(crate) entitled: u64,
    pub(crate) used: u64,
    /// What the unit would have transferred on a private bus of the size of its entitlement.
    pub(crate) due: u64,
    pub(crate) borrowed: u64,
    /// The unit's limit now, in bytes per second.
    pub(crate) most: u64,
}

impl BusTotals {
    /// The growth since `before`; the limit is the present one.
    pub(crate) fn since(self, before: BusTotals) -> BusTotals {
        BusTotals {
            entitled: self.entitled.saturating_sub(before.entitled),
            used: self.used.saturating_sub(before.used),
            due: self.due.saturating_sub(before.due),
            borrowed: self.borrowed.saturating_sub(before.borrowed),
            most: self.most,
        }
    }
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bus {
    units: BTreeMap<UnitId, BusEntry>,
    /// Loans of units that left the contract. They balance those of units that are still present.
    closed: Loans,
    /// Bytes borrowed without a lender.
    lenderless: u64,
}

/// The bytes transferred in `duration` at a rate per second.
fn bytes(per_second: u64, duration: Time) -> u64 {
    part_of(per_second, duration, 1_000_000_000)
}

impl Bus {
    /// The time of the quanta in which a unit waited, in nanoseconds.
    pub(crate) fn waited_ns(&self, unit: UnitId) -> u64 {
        self.units.get(&unit).map_or(0, |entry| entry.waited_ns)
    }

    /// A unit's totals; `None` if the latest plan did not list it.
    pub(crate) fn totals_of(&self, unit: UnitId) -> Option<BusTotals> {
        let entry = self.units.get(&unit)?;
        let most = entry.part?.most.unwrap_or(u64::MAX);
        let BusEntry { entitled, used, due, loans, .. } = entry;
        Some(BusTotals { entitled: *entitled, used: *used, due: *due, borrowed: loans.borrowed, most })
    }

    /// Enters a plan's report on the quantum that has just ended, if it has one.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let Some(bus) = &plan.decisions.bus else { return };
        self.charge(bus);
        let began = plan.at.saturating_sub(bus.quantum_ns);
        for (unit, entry) in &mut self.units {
            entry.part = bus.units.iter().find(|part| part.unit == *unit).copied();
            let Some(part) = entry.part else {
                entry.owed_since = None;
                continue;
            };
            if part.waits {
                entry.waited_quanta += 1;
                entry.waited_ns += bus.quantum_ns;
            }
            let others_wait = bus.units.iter().any(|other| other.unit != *unit && other.waits);
            if part.owed > 0 {
                let (_, others_waited) = entry.owed_since.get_or_insert((began, false));
                *others_waited |= others_wait;
                entry.called_back += u64::from(others_wait);
            } else if let Some((since, true)) = entry.owed_since.take() {
                entry.call_backs.add(plan.at.saturating_sub(since));
            }
        }
    }

    /// Charges the units' transfers in a quantum, and divides the borrowed bytes among the lenders.
    fn charge(&mut self, bus: &BusPlan) {
        let bytes_at = |rate: fn(&BusPart) -> u64| {
            bus.units.iter().map(move |part| bytes(rate(part), bus.quantum_ns)).collect::<Vec<u64>>()
        };
        let (entitled, used) = (bytes_at(|part| part.entitled), bytes_at(|part| part.used));
        for (part, due) in bus.units.iter().zip(bytes_at(|part| part.due)) {
            self.units.entry(part.unit).or_default().due += due;
        }
        let unused: Vec<u64> =
            entitled.iter().zip(&used).map(|(entitled, used)| entitled.saturating_sub(*used)).collect();
        let borrowed: u64 =
            entitled.iter().zip(&used).map(|(entitled, used)| used.saturating_sub(*entitled)).sum();
        let lent = borrowed.min(unused.iter().sum());
        self.lenderless += borrowed - lent;
        for ((part, lent), (entitled, used)) in
            bus.units.iter().zip(split(lent, &unused)).zip(entitled.into_iter().zip(used))
        {
            let entry = self.units.entry(part.unit).or_default();
            entry.entitled += entitled;
            entry.used += used;
            entry.loans += Loans { lent, borrowed: used.saturating_sub(entitled) };
        }
    }

    /// Adopts another contract. The accounts of units that left are closed; their loans stay in the sums.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        let dropped = self.units.iter().filter(|(unit, _)| !contract.has(**unit));
        self.closed += dropped.map(|(_, entry)| entry.loans).sum::<Loans>();
        self.units.retain(|unit, _| contract.has(*unit));
    }

    /// The account of a unit; `None` if no plan listed it, as for sub-units.
    pub(crate) fn account(&self, unit: UnitId) -> Option<BusAccount> {
        let entry = self.units.get(&unit)?;
        let part = entry.part;
        Some(BusAccount {
            entitled_bytes_per_s: part.map_or(0, |part| part.entitled),
            most_bytes_per_s: part.and_then(|part| part.most),
            using_bytes_per_s: part.map_or(0, |part| part.used),
            owed_bytes: part.map_or(0, |part| part.owed),
            waits: part.is_some_and(|part| part.waits),
            entitled_bytes: entry.entitled,
            used_bytes: entry.used,
            lent_bytes: entry.loans.lent,
            borrowed_bytes: entry.loans.borrowed,
            waited_quanta: entry.waited_quanta,
            waited_ns: entry.waited_ns,
            called_back: entry.called_back,
            call_back_p50_ns: entry.call_backs.quantile(500_000),
            call_back_p99_ns: entry.call_backs.quantile(990_000),
            call_back_max_ns: entry.call_backs.quantile(1_000_000),
        })
    }

    /// The imbalance if lent and lenderless bytes together differ from borrowed bytes.
    pub(crate) fn imbalance(&self) -> Option<Imbalance> {
        let open: Loans = self.units.values().map(|entry| entry.loans).sum();
        let (Loans { lent, borrowed }, lenderless) = (open + self.closed, self.lenderless);
        (lent + lenderless != borrowed).then_some(Imbalance::Bus { lent, lenderless, borrowed })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use commonhold_policy::MS;
    use commonhold_policy::plan::Decisions;
    use proptest::prelude::*;

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);
    const C: UnitId = UnitId(4);

    fn part(unit: UnitId, entitled: u64, used: u64) -> BusPart {
        BusPart { unit, entitled, most: None, used, due: 0, owed: 0, waits: false }
    }

    /// A quantum of 200 ms that ended at `at`.
    fn ended(at: u64, units: Vec<BusPart>) -> Plan {
        let bus = Some(BusPlan { quantum_ns: 200 * MS, carries: 10_000, units });
        Plan { at: at * MS, decisions: Decisions { bus, ..Decisions::default() }, ..Plan::default() }
    }

    /// Entitled to 5,000, 3,000 and 2,000 bytes per second, they transfer 1,000, 2,000 and 6,000 for a fifth
    /// of a second: 800 bytes are borrowed. The first left four times as much as the second.
    #[test]
    fn a_quantum_by_hand() {
        let mut books = Bus::default();
        assert_eq!(books.account(A), None);
        books.book(&ended(200, vec![part(A, 5_000, 1_000), part(B, 3_000, 2_000), part(C, 2_000, 6_000)]));
        let account = |unit| books.account(unit).unwrap();
        let figures = |unit| {
            let BusAccount { entitled_bytes, used_bytes, lent_bytes, borrowed_bytes, .. } = account(unit);
            (entitled_bytes, used_bytes, lent_bytes, borrowed_bytes)
        };
        assert_eq!([A, B, C].map(figures), [(1_000, 200, 640, 0), (600, 400, 160, 0), (400, 1_200, 0, 800)]);
        assert_eq!((account(A).entitled_bytes_per_s, account(A).using_bytes_per_s), (5_000, 1_000));
        assert_eq!(books.imbalance(), None);
    }

    /// Unit A is short in the quantum that ends at 400, and B waits until A has caught up at 1,000: 800 ms,
    /// of which two quanta were called back. A backlog for which no other unit waits is no call-back.
    #[test]
    fn a_backlog_for_which_others_wait_is_a_call_back() {
        let mut books = Bus::default();
        let quantum = |owed, waits| {
            vec![BusPart { owed, ..part(A, 5_000, 1_000) }, BusPart { waits, ..part(B, 5_000, 6_000) }]
        };
        for (at, owed, waits) in
            [(200, 0, false), (400, 700, false), (600, 500, true), (800, 200, true), (1_000, 0, false)]
        {
            books.book(&ended(at, quantum(owed, waits)));
        }
        for (at, owed, waits) in [(1_200, 9, false), (1_400, 0, false), (1_600, 0, true)] {
            books.book(&ended(at, quantum(owed, waits)));
        }
        let (a, b) = (books.account(A).unwrap(), books.account(B).unwrap());
        assert_eq!((a.called_back, a.call_back_p50_ns, a.call_back_max_ns), (2, 800 * MS, 800 * MS));
        assert_eq!((a.waited_quanta, b.waited_quanta, b.waited_ns, b.waits), (0, 3, 600 * MS, true));
        assert_eq!((b.called_back, b.call_back_max_ns), (0, 0));
    }

    #[test]
    fn a_unit_that_is_no_longer_listed_has_no_current_figures() {
        let mut books = Bus::default();
        books.book(&ended(200, vec![BusPart { owed: 5, ..part(A, 5_000, 1_000) }]));
        books.book(&ended(400, vec![part(B, 5_000, 1_000)]));
        let a = books.account(A).unwrap();
        assert_eq!((a.using_bytes_per_s, a.owed_bytes, a.used_bytes), (0, 0, 200));
        books.book(&Plan::default());
        assert_eq!(
            books.account(B).unwrap().using_bytes_per_s,
            1_000,
            "a plan without a quantum says nothing"
        );
    }

    /// Units with their entitlement and use, the index of a unit that a reload drops (4: none), and the
    /// quantum's length.
    fn any_quantum() -> impl Strategy<Value = (Vec<(u32, u64, u64)>, u32, u64)> {
        let unit = (0u32..4, 0u64..20_000_000_000, 0u64..20_000_000_000);
        (prop::collection::vec(unit, 0..4), 0u32..5, 1u64..2_000_000_000)
    }

    proptest! {
        /// Whatever plans report and whichever units are dropped, the sums balance, and no unit lends more
        /// than it left.
        #[test]
        fn lent_and_lenderless_bytes_equal_borrowed_bytes(
             quanta in prop::collection::vec(any_quantum(), 1..20),
        ) {
            let mut books = Bus::default();
            let mut contract = Contract::default();
            for name in ["a", "b", "c", "d"] {
                contract.add(None, name);
            }
            for (units, dropped, quantum_ns) in quanta {
                 let mut units: Vec<BusPart> =
                    units.into_iter().map(|(unit, entitled, used)| part(UnitId(2 + unit), entitled, used)).collect();
                units.sort_by_key(|part| part.unit);
                units.dedup_by_key(|part| part.unit);
                let before = books.clone();
                let bus = Some(BusPlan { quantum_ns, carries: 10_000, units: units.clone() });
                books.book(&Plan { decisions: Decisions { bus, ..Decisions::default() }, ..Plan::default() });
                prop_assert_eq!(books.imbalance(), None);
                for part in &units {
                     let now = books.account(part.unit).unwrap();
                    let then = before.account(part.unit).unwrap_or_default();
                    let entitled = now.entitled_bytes - then.entitled_bytes;
                    let used = now.used_bytes - then.used_bytes;
                    prop_assert!(now.lent_bytes - then.lent_bytes <= entitled.saturating_sub(used));
                    prop_assert_eq!(now.borrowed_bytes - then.borrowed_bytes, used.saturating_sub(entitled));
                }
                if dropped < 4 {
                    let mut without = contract.clone();
                    without.vacant.insert(UnitId(2 + dropped));
                    books.adopt(&without);
                    prop_assert_eq!(books.imbalance(), None);
                }
            }
        }
    }
}
