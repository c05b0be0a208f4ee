//! The accounts of the memory bus.
//!
//! At the end of each quantum, a plan reports what outermost units were entitled to and what they
//! transferred. Transfers beyond a unit's entitlement are *borrowed*. They are *lent* by the units that left
//! part of theirs unused, in proportion to what each left. The plan lists only units with known transfers, so
//! a part may have no lender. Lent and lenderless bytes together equal those borrowed, units dropped by a
//! reload included.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::{BusPart, BusPlan};
use commonhold_policy::share::{part_of, split};
use commonhold_policy::{Plan, Time};

use crate::Imbalance;
use crate::loans::Loans;
use crate::spread::Spread;

/// The account of one outermost unit since the ledger was opened, sub-units included.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct BusAccount {
    /// What it is entitled to now, in bytes per second.
    pub entitled_bytes_per_s: u64,
    /// Its limit in bytes per second; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_bytes_per_s: Option<u64>,
    /// What it transferred in the last quantum, in bytes per second.
    pub using_bytes_per_s: u64,
    /// Backlog in bytes: what it got less than it was due and has not caught up on. Negative: a surplus,
    /// which decays.
    pub owed_bytes: i64,
    /// Whether it is stopped now until others have caught up, or until it is back within its limit.
    pub waits: bool,
    /// What it was entitled to, over time.
    pub entitled_bytes: u64,
    /// What it transferred.
    pub used_bytes: u64,
    /// What others transferred of its unused part.
    pub lent_bytes: u64,
    /// What it transferred beyond what it was entitled to.
    pub borrowed_bytes: u64,
    /// Quanta in which it waited.
    pub waited_quanta: u64,
    /// The time of these, in nanoseconds.
    pub waited_ns: u64,
    /// Quanta in which others waited while it had a backlog.
    pub called_back: u64,
    /// Median call-back: from the start of the quantum that left it short until it had caught up.
    pub call_back_p50_ns: u64,
    /// The 99th percentile.
    pub call_back_p99_ns: u64,
    /// The longest.
    pub call_back_max_ns: u64,
}

/// A unit's running account.
#[derive(Debug, Clone, Default)]
struct BusEntry {
    /// From the latest plan; `None` if that does not list the unit.
    part: Option<BusPart>,
    entitled: u64,
    used: u64,
    loans: Loans,
    waited_quanta: u64,
    waited_ns: u64,
    called_back: u64,
    call_backs: Spread,
    /// Start of its backlog, and whether others waited for it meanwhile.
    owed_since: Option<(Time, bool)>,
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bus {
    units: BTreeMap<UnitId, BusEntry>,
    /// Loans of units that left the contract: their counterparts may still be there.
    closed: Loans,
    /// Bytes borrowed without a lender.
    lenderless: u64,
}

fn bytes(per_second: u64, time: Time) -> u64 {
    part_of(per_second, time, 1_000_000_000)
}

impl Bus {
    /// Enters what a plan reports of the quantum that has just ended.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let Some(bus) = &plan.decisions.bus else { return };
        self.charge(bus);
        let begun = plan.at.saturating_sub(bus.quantum_ns);
        for (unit, own) in &mut self.units {
            own.part = bus.units.iter().find(|part| part.unit == *unit).copied();
            let Some(part) = own.part else {
                own.owed_since = None;
                continue;
            };
            if part.waits {
                own.waited_quanta += 1;
                own.waited_ns += bus.quantum_ns;
            }
            let waits_for_it = bus.units.iter().any(|other| other.unit != *unit && other.waits);
            if part.owed > 0 {
                let (_, called) = own.owed_since.get_or_insert((begun, false));
                *called |= waits_for_it;
                own.called_back += u64::from(waits_for_it);
            } else if let Some((since, true)) = own.owed_since.take() {
                own.call_backs.add(plan.at.saturating_sub(since));
            }
        }
    }

    fn charge(&mut self, bus: &BusPlan) {
        let transfers = |rate: fn(&BusPart) -> u64| {
            bus.units.iter().map(move |part| bytes(rate(part), bus.quantum_ns)).collect::<Vec<u64>>()
        };
        let (entitled, used) = (transfers(|part| part.entitled), transfers(|part| part.used));
        let left: Vec<u64> =
            entitled.iter().zip(&used).map(|(entitled, used)| entitled.saturating_sub(*used)).collect();
        let beyond: u64 =
            entitled.iter().zip(&used).map(|(entitled, used)| used.saturating_sub(*entitled)).sum();
        let lent = beyond.min(left.iter().sum());
        self.lenderless += beyond - lent;
        for ((part, lent), (entitled, used)) in
            bus.units.iter().zip(split(lent, &left)).zip(entitled.into_iter().zip(used))
        {
            let own = self.units.entry(part.unit).or_default();
            own.entitled += entitled;
            own.used += used;
            own.loans += Loans { lent, borrowed: used.saturating_sub(entitled) };
        }
    }

    /// Adopts another contract. Accounts of units that left are closed; their loans stay in the sums.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        let gone = self.units.iter().filter(|(unit, _)| !contract.has(**unit));
        self.closed += gone.map(|(_, own)| own.loans).sum::<Loans>();
        self.units.retain(|unit, _| contract.has(*unit));
    }

    /// The account of a unit; `None` if no plan listed it, as for sub-units.
    pub(crate) fn account(&self, unit: UnitId) -> Option<BusAccount> {
        let own = self.units.get(&unit)?;
        let part = own.part;
        Some(BusAccount {
            entitled_bytes_per_s: part.map_or(0, |part| part.entitled),
            most_bytes_per_s: part.and_then(|part| part.most),
            using_bytes_per_s: part.map_or(0, |part| part.used),
            owed_bytes: part.map_or(0, |part| part.owed),
            waits: part.is_some_and(|part| part.waits),
            entitled_bytes: own.entitled,
            used_bytes: own.used,
            lent_bytes: own.loans.lent,
            borrowed_bytes: own.loans.borrowed,
            waited_quanta: own.waited_quanta,
            waited_ns: own.waited_ns,
            called_back: own.called_back,
            call_back_p50_ns: own.call_backs.within(500_000),
            call_back_p99_ns: own.call_backs.within(990_000),
            call_back_max_ns: own.call_backs.within(1_000_000),
        })
    }

    /// Whether lent and lenderless bytes differ from those borrowed.
    pub(crate) fn imbalance(&self) -> Option<Imbalance> {
        let open: Loans = self.units.values().map(|own| own.loans).sum();
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
    fn what_is_owed_is_called_back() {
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
        fn what_is_lent_is_what_is_borrowed(
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
