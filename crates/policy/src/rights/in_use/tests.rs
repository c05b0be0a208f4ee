use super::*;
use crate::rights::{Bid, Change, Trade, Waits};
use crate::snapshot::UnitMemory;
use commonhold_contract::Resource::{Disk, Memory};
use commonhold_contract::{MILLIONTH, PerResource};
use proptest::prelude::*;

/// The memory that units divide.
const DIVIDED: u64 = 10_000;

/// `lab`, with `ana` and `al` in it, and `works`. 4,000 of 10,000 are reserved for `lab`, 2,000 of them for
/// `ana`; a quarter of all for `works`.
fn units() -> (Contract, [UnitId; 4], Rights) {
    with_reserved(4_000)
}

/// The same with `for_lab` reserved for `lab`.
fn with_reserved(for_lab: u64) -> (Contract, [UnitId; 4], Rights) {
    let mut contract = Contract::default();
    let lab = contract.add(None, "lab");
    let (ana, al) = (contract.add(Some(lab), "ana"), contract.add(Some(lab), "al"));
    let works = contract.add(None, "works");
    for (id, hard) in [
        (lab, Amount::Absolute(for_lab)),
        (ana, Amount::Absolute(2_000)),
        (works, Amount::Part(MILLIONTH / 4)),
    ] {
        contract.units[id.index()].hard.memory = Some(hard);
    }
    for id in [lab, ana, al, works] {
        contract.units[id.index()].tickets = PerResource::all(1_000);
    }
    let mut rights = Rights::new(&contract);
    rights.set_capacity(Memory, Capacity::Known(DIVIDED));
    for id in [ana, al, works] {
        rights.set_present(id, true).unwrap();
    }
    (contract, [lab, ana, al, works], rights)
}

/// From each unit's own use, and the part of it that is clean page cache.
fn in_use(contract: &Contract, own: &[(UnitId, u64, u64)]) -> InUse {
    let mut units = vec![UnitMemory::default(); contract.units.len()];
    for (id, used, clean) in own {
        units[id.index()] = UnitMemory { used: *used, anonymous: used - clean, ..UnitMemory::default() };
    }
    InUse::new(
        contract,
        &MemoryFacts { total: DIVIDED + 30, kernel: 10, shared: 20, units, ..MemoryFacts::default() },
    )
}

fn memory(bytes: u64) -> Offer {
    Offer::hard(Memory, Amount::Absolute(bytes))
}

fn bid(by: UnitId, gives: Offer, wants: Offer) -> Bid {
    Bid { by, gives, wants, with: None, for_ns: None, at_least: None, bound: false }
}

fn offer(rights: &mut Rights, by: UnitId, gives: Offer, wants: Offer) -> Result<(), Refused> {
    rights.apply(Change::Offer { bid: bid(by, gives, wants) })
}

/// 1,600 of the 2,000 reserved for `ana` are in use: she may give 400. Clean page cache does not count.
#[test]
fn memory_in_use_cannot_be_offered() {
    let (contract, [_, ana, ..], mut r) = units();
    let disk = Offer::tickets(Disk, 10);
    r.set_in_use(&in_use(&contract, &[(ana, 1_900, 300)]));
    let before = r.clone();
    let refused = Refused::InUse { unit: ana, used: 1_600, reserved: 2_000, most: 400 };
    assert_eq!(offer(&mut r, ana, memory(401), disk), Err(refused));
    assert_eq!(r, before);
    offer(&mut r, ana, memory(400), disk).unwrap();
    // Use beyond the reservation does not allow less.
    r.set_in_use(&in_use(&contract, &[(ana, 5_000, 0)]));
    let refused = Refused::InUse { unit: ana, used: 5_000, reserved: 2_000, most: 0 };
    assert_eq!(offer(&mut r, ana, memory(1), disk), Err(refused));
    // An inactive unit has no reservation.
    r.set_present(ana, false).unwrap();
    offer(&mut r, ana, memory(2_000), disk).unwrap();
}

/// A quarter of 10,000 is reserved for `works`, which uses 2,000 of it: it may give a twentieth, or 500.
#[test]
fn a_percentage_is_of_the_memory_that_units_divide() {
    let (contract, [.., works], mut r) = units();
    r.set_in_use(&in_use(&contract, &[(works, 2_000, 0)]));
    let part = |permille: u64| Offer::hard(Memory, Amount::Part(permille * MILLIONTH / 1_000));
    assert!(offer(&mut r, works, part(51), Offer::tickets(Disk, 10)).is_err());
    offer(&mut r, works, part(50), Offer::tickets(Disk, 10)).unwrap();
    assert!(offer(&mut r, works, memory(501), Offer::tickets(Disk, 10)).is_err());
    offer(&mut r, works, memory(500), Offer::tickets(Disk, 10)).unwrap();
}

/// Use grew after the offer was made: nothing is exchanged until it shrinks again.
#[test]
fn an_offer_waits_while_what_it_gives_is_in_use() {
    let (contract, [lab, ana, al, works], mut r) = units();
    let use_of_ana = |r: &mut Rights, used| r.set_in_use(&in_use(&contract, &[(ana, used, 0)]));
    use_of_ana(&mut r, 1_000);
    offer(&mut r, ana, memory(1_000), Offer::tickets(Disk, 10)).unwrap();
    use_of_ana(&mut r, 1_001);
    offer(&mut r, al, Offer::tickets(Disk, 10), memory(1_000)).unwrap();
    r.settle(0);
    let waits = r.waits(1);
    let refused = Refused::InUse { unit: ana, used: 1_001, reserved: 2_000, most: 999 };
    assert_eq!((r.deals().len(), waits), (0, Some(Waits::Lacks(refused))));
    let hard = |r: &Rights| [lab, ana, al, works].map(|id| r.entitlement(Memory).hard(id));
    assert_eq!(hard(&r), [4_000, 2_000, 0, 2_500]);
    use_of_ana(&mut r, 1_000);
    assert!(matches!(r.settle(1)[..], [Trade::Made { .. }]));
    assert_eq!(hard(&r), [4_000, 1_000, 1_000, 2_500]);
}

/// `ana` uses nothing, but `al` uses 3,500 of the 4,000 reserved for `lab`: 500 may leave it.
#[test]
fn memory_used_by_a_sibling_cannot_leave_the_encloser() {
    let (contract, [lab, ana, al, works], mut r) = units();
    r.set_in_use(&in_use(&contract, &[(al, 3_500, 0)]));
    offer(&mut r, ana, memory(501), Offer::tickets(Disk, 10)).unwrap();
    offer(&mut r, works, Offer::tickets(Disk, 100), memory(501)).unwrap();
    r.settle(0);
    assert_eq!(r.deals().len(), 0);
    let why = Refused::InUse { unit: lab, used: 3_500, reserved: 4_000, most: 500 };
    assert_eq!(r.waits(1), Some(Waits::Moves { offer: 2, why }));
    // An exchange within `lab` moves nothing out of it.
    offer(&mut r, al, Offer::tickets(Disk, 10), memory(501)).unwrap();
    r.settle(1);
    assert_eq!(r.deals().len(), 1);
    // An enclosing unit without a reservation loses nothing.
    let (contract, [_, ana, al, works], mut r) = with_reserved(0);
    r.set_in_use(&in_use(&contract, &[(al, 3_500, 0)]));
    offer(&mut r, ana, memory(501), Offer::tickets(Disk, 10)).unwrap();
    offer(&mut r, works, Offer::tickets(Disk, 100), memory(501)).unwrap();
    r.settle(0);
    assert_eq!(r.deals().len(), 1);
}

/// A random event; units are given by index.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Uses { unit: usize, used: u64, clean: u64 },
    Offers { unit: usize, much: u64, part: bool, gives: bool, tickets: u64 },
    Cancels { number: u64 },
    Present { unit: usize, present: bool },
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        3 => (1usize..4, 0u64..4_000, 0u64..500).prop_map(|(unit, used, clean)| Happens::Uses { unit, used, clean }),
        6 => (0usize..4, 1u64..2_000, any::<bool>(), any::<bool>(), 1u64..50)
            .prop_map(|(unit, much, part, gives, tickets)| Happens::Offers { unit, much, part, gives, tickets }),
        1 => (1u64..40).prop_map(|number| Happens::Cancels { number }),
        1 => (1usize..4, any::<bool>()).prop_map(|(unit, present)| Happens::Present { unit, present }),
    ]
}

proptest! {
    /// Whatever is offered, an exchange leaves the lender and its enclosers reservations that cover their
    /// use, unless they did not before.
    #[test]
    fn no_exchange_takes_memory_in_use(
        for_lab in prop_oneof![Just(0), Just(1_000), Just(4_000)],
        happenings in proptest::collection::vec(happens(), 1..60),
    ) {
        let (contract, ids, mut r) = with_reserved(for_lab);
        let mut own = ids.map(|id| (id, 0u64, 0u64));
        for (now, happens) in happenings.into_iter().enumerate() {
            match happens {
                Happens::Uses { unit, used, clean } => {
                    own[unit] = (ids[unit], used, clean.min(used));
                    r.set_in_use(&in_use(&contract, &own));
                }
                Happens::Offers { unit, much, part, gives, tickets } => {
                    let amount = if part { Amount::Part(much * 100) } else { Amount::Absolute(much) };
                    let (hard, soft) = (Offer::hard(Memory, amount), Offer::tickets(Disk, tickets));
                    let (gives, wants) = if gives { (hard, soft) } else { (soft, hard) };
                    let _ = offer(&mut r, ids[unit], gives, wants);
                }
                Happens::Cancels { number } => drop(r.apply(Change::Cancel { number })),
                Happens::Present { unit, present } => r.set_present(ids[unit], present).unwrap(),
            }
            let hard = |r: &Rights| {
                let all = r.at_capacity(Memory, Capacity::Known(DIVIDED)).all();
                ids.map(|id| all.hard(id))
            };
            let before = hard(&r);
            let known = r.at_capacity(Memory, Capacity::Known(DIVIDED));
            prop_assert_eq!(before, ids.map(|id| known.hard(id)));
            let active = ids.map(|id| r.is_active(id, Memory));
            let came = r.settle(now as u64);
            let after = hard(&r);
            let made = came.iter().filter(|trade| matches!(trade, Trade::Made { .. })).count() as u64;
            let in_use = in_use(&contract, &own);
            for (at, id) in ids.into_iter().enumerate().filter(|(at, _)| active[*at]) {
                // Percentages are rounded, once for each exchange.
                let kept = after[at] + made;
                prop_assert!(
                    kept >= before[at] || kept >= in_use.used_by(id),
                    "{id:?} had {} reserved, has {}, and uses {}", before[at], after[at], in_use.used_by(id)
                );
            }
        }
    }
}
