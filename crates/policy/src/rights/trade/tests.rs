use super::*;
use crate::rights::{Capacity, Change, TICKETS_MAX};
use commonhold_contract::{Contract, Resource};
use proptest::prelude::*;
use std::collections::BTreeSet;

use Resource::{Cpu, Disk, Memory};

fn so_many(tickets: u64, resource: Resource) -> Offer {
    Offer { resource, tickets }
}

fn bid(by: UnitId, gives: Offer, wants: Offer) -> Bid {
    Bid { by, gives, wants, with: None, for_ns: None }
}

/// Units side by side, each with 1,000 tickets of everything.
fn units(n: usize) -> (Contract, Vec<UnitId>, Rights) {
    let mut contract = Contract::default();
    let ids: Vec<UnitId> = (0..n).map(|n| contract.add(None, &format!("u{n}"))).collect();
    for id in &ids {
        contract.units[id.index()].tickets = commonhold_contract::PerResource::all(1_000);
    }
    let rights = Rights::new(&contract);
    (contract, ids, rights)
}

fn offer(rights: &mut Rights, bid: Bid) -> Result<(), Refused> {
    rights.apply(Change::Offer { bid })
}

/// What counts of a unit's tickets: CPU and disk.
fn counts(rights: &Rights, unit: UnitId) -> (u64, u64) {
    let of = |resource| {
        let (lent, got) = rights.lent_and_got(unit, resource);
        rights.tickets(unit, resource) + got - lent
    };
    (of(Cpu), of(Disk))
}

/// `a` gives 300 disk for 200 CPU, `b` gives 250 CPU for 300 disk: each gives what the other wants, for the shorter of both
/// times.
#[test]
fn two_that_fit_are_served_for_their_time() {
    let (_, ids, mut r) = units(3);
    let [a, b] = [ids[0], ids[1]];
    offer(&mut r, Bid { for_ns: Some(500), ..bid(a, so_many(300, Disk), so_many(200, Cpu)) }).unwrap();
    assert!(matches!(r.settle(10)[..], [Trade::Offered { offer: 1, .. }]));
    assert_eq!((r.next(), counts(&r, a)), (None, (1_000, 1_000)));
    offer(&mut r, Bid { for_ns: Some(800), ..bid(b, so_many(250, Cpu), so_many(300, Disk)) }).unwrap();
    let came = r.settle(20);
    let legs = vec![
        Leg { from: a, to: b, what: so_many(300, Disk) },
        Leg { from: b, to: a, what: so_many(200, Cpu) },
    ];
    let what = Deal { legs, since: 20, until: Some(520) };
    assert_eq!(came[1], Trade::Made { deal: 3, offers: vec![1, 2], what: what.clone() });
    assert_eq!(
        (counts(&r, a), counts(&r, b), counts(&r, ids[2])),
        ((1_200, 700), (800, 1_300), (1_000, 1_000))
    );
    assert_eq!((r.next(), r.offers().len(), r.settle(519)), (Some(520), 0, vec![]));
    assert_eq!(r.settle(520), [Trade::Undone { deal: 3, why: Ending::Over, what }]);
    assert_eq!((counts(&r, a), counts(&r, b), r.next()), ((1_000, 1_000), (1_000, 1_000), None));
    assert_eq!(r.tickets(a, Cpu), 1_000);
}

/// What is worth something changes with the deal: of 10 CPUs among two, 6 and 4 while 200 of 1,000 tickets are lent.
#[test]
fn what_is_lent_counts_where_it_is() {
    let (_, ids, mut r) = units(2);
    r.set_capacity(Cpu, Capacity::Known(10));
    for id in &ids {
        r.set_present(*id, true).unwrap();
    }
    offer(&mut r, bid(ids[0], so_many(1, Memory), so_many(200, Cpu))).unwrap();
    offer(&mut r, bid(ids[1], so_many(200, Cpu), so_many(1, Memory))).unwrap();
    r.settle(0);
    assert_eq!((r.value(ids[0], Cpu), r.value(ids[1], Cpu)), (6, 4));
    let deal = *r.deals().keys().next().unwrap();
    r.apply(Change::Cancel { number: deal }).unwrap();
    assert_eq!((r.value(ids[0], Cpu), r.value(ids[1], Cpu)), (5, 5));
    assert!(matches!(r.settle(1)[..], [Trade::Undone { why: Ending::Ended, .. }]));
}

/// CPU for disk, disk for memory, memory for CPU: three are served together, and an offer to one unit is not.
#[test]
fn a_ring_of_three_is_served() {
    let (_, ids, mut r) = units(4);
    let [one, two, three, four] = [ids[0], ids[1], ids[2], ids[3]];
    offer(&mut r, Bid { with: Some(four), ..bid(one, so_many(10, Cpu), so_many(10, Disk)) }).unwrap();
    offer(&mut r, bid(two, so_many(20, Disk), so_many(20, Memory))).unwrap();
    offer(&mut r, bid(three, so_many(20, Memory), so_many(10, Cpu))).unwrap();
    r.settle(0);
    assert_eq!((r.offers().len(), r.deals().len()), (3, 0));
    offer(&mut r, bid(one, so_many(10, Cpu), so_many(20, Disk))).unwrap();
    assert!(matches!(&r.settle(0)[1], Trade::Made { offers, .. } if *offers == [2, 4, 3]));
    assert_eq!(
        (counts(&r, one), counts(&r, two), counts(&r, three)),
        ((990, 1_020), (1_000, 980), (1_010, 1_000))
    );
    assert_eq!((r.lent_and_got(two, Memory), r.lent_and_got(three, Memory)), ((0, 20), (20, 0)));
    // The offer to one unit is left: that unit alone can take it.
    offer(&mut r, bid(two, so_many(10, Disk), so_many(10, Cpu))).unwrap();
    assert_eq!(r.settle(0).len(), 1);
    offer(&mut r, bid(four, so_many(10, Disk), so_many(10, Cpu))).unwrap();
    assert!(matches!(&r.settle(0)[1], Trade::Made { offers, .. } if *offers == [1, 7]));
}

#[test]
fn tickets_are_read_from_words() {
    assert_eq!("disk:300".parse(), Ok(so_many(300, Disk)));
    for text in
        ["disk", "disk:", "disk:0", "disk:1000001", "disk:-1", "disks:3", ":3", "", "disk:3:4", "Disk:3"]
    {
        assert_eq!(text.parse::<Offer>(), Err(crate::rights::NoTickets), "{text}");
    }
}

#[test]
fn what_is_no_offer_is_refused() {
    let (mut contract, ids, _) = units(2);
    let inside = contract.add(Some(ids[0]), "inside");
    let mut r = Rights::new(&contract);
    let [a, b] = [ids[0], ids[1]];
    let mut try_it = |bid| offer(&mut r, bid);
    let (gives, wants) = (so_many(10, Cpu), so_many(10, Disk));
    let too_few = Refused::TooFew { unit: a, resource: Cpu, has: 1_000, fewer: 1_000 };
    assert_eq!(try_it(bid(a, so_many(1_000, Cpu), wants)), Err(too_few));
    assert_eq!(try_it(bid(a, so_many(0, Cpu), wants)), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(bid(a, gives, so_many(0, Disk))), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(bid(a, gives, gives)), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(Bid { with: Some(a), ..bid(a, gives, wants) }), Err(Refused::Itself { unit: a }));
    let enclosers = Refused::Enclosers { from: a, to: inside };
    assert_eq!(try_it(Bid { with: Some(inside), ..bid(a, gives, wants) }), Err(enclosers));
    let unknown = UnitId(99);
    assert_eq!(try_it(bid(unknown, gives, wants)), Err(Refused::Unknown { unit: unknown }));
    assert_eq!(r.apply(Change::Cancel { number: 1 }), Err(Refused::NoOffer { number: 1 }));
    for _ in 0..OFFERS_MAX {
        offer(&mut r, bid(b, gives, wants)).unwrap();
    }
    assert_eq!(offer(&mut r, bid(b, gives, wants)), Err(Refused::TooManyOffers));
}

/// Two offers of the same 600 of 1,000 tickets: the second waits until the first exchange is over. Meanwhile the contract's
/// own numbers cannot go below what is lent.
#[test]
fn what_is_lent_is_not_lent_again() {
    let (_, ids, mut r) = units(2);
    let [a, b] = [ids[0], ids[1]];
    for _ in 0..2 {
        offer(&mut r, Bid { for_ns: Some(100), ..bid(a, so_many(600, Disk), so_many(10, Cpu)) }).unwrap();
        offer(&mut r, bid(b, so_many(10, Cpu), so_many(600, Disk))).unwrap();
    }
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (1, 2));
    let waits: Vec<bool> = r.offers().values().map(|bid| r.waits(bid).is_some()).collect();
    assert_eq!(waits, [true, false], "a has lent them already");
    let lent = Refused::Lent { unit: a, resource: Disk, has: 1_000, lent: 600 };
    assert_eq!(r.set_tickets(a, Disk, 600), Err(lent));
    r.set_tickets(a, Disk, 601).unwrap();
    assert_eq!(counts(&r, a).1, 1);
    r.set_tickets(a, Disk, 1_000).unwrap();
    // The first ends and the second begins at one moment.
    let came = r.settle(100);
    assert!(matches!(came[..], [Trade::Undone { .. }, Trade::Made { .. }]), "{came:?}");
    assert_eq!((r.next(), counts(&r, b)), (Some(200), (990, 1_600)));
}

/// A unit goes: its exchanges are undone, and its offers forgotten. A unit that gets fewer tickets by the contract than it
/// lent: the exchange is undone.
#[test]
fn a_reload_undoes_what_cannot_go_on() {
    let (mut contract, ids, mut r) = units(3);
    let pair = |r: &mut Rights, one: UnitId, other: UnitId| {
        offer(r, bid(one, so_many(400, Disk), so_many(300, Cpu))).unwrap();
        offer(r, bid(other, so_many(300, Cpu), so_many(400, Disk))).unwrap();
        r.settle(0);
    };
    pair(&mut r, ids[0], ids[1]);
    pair(&mut r, ids[0], ids[2]);
    offer(&mut r, bid(ids[1], so_many(5, Cpu), so_many(5, Memory))).unwrap();
    r.settle(0);
    assert_eq!(counts(&r, ids[0]), (1_600, 200));
    // 700 disk tickets are not enough for both: the newer exchange ends.
    contract.units[ids[0].index()].tickets[Disk] = 700;
    r.adopt(&contract);
    assert!(matches!(r.settle(1)[..], [Trade::Undone { deal: 6, why: Ending::TooFew, .. }]));
    assert_eq!((counts(&r, ids[0]), counts(&r, ids[2])), ((1_300, 300), (1_000, 1_000)));
    // u1 goes.
    let mut fewer = Contract::default();
    fewer.add(None, "u0");
    fewer.add(None, "u2");
    fewer.units[ids[0].index()].tickets = contract.units[ids[0].index()].tickets;
    fewer.adopt(&contract, true);
    r.adopt(&fewer);
    let came = r.settle(2);
    assert!(
        came.iter().any(|came| matches!(came, Trade::Undone { deal: 3, why: Ending::Gone, .. })),
        "{came:?}"
    );
    assert!(came.iter().any(|came| matches!(came, Trade::Withdrawn { .. })), "{came:?}");
    assert_eq!((counts(&r, ids[0]), r.deals().len(), r.offers().len()), ((1_000, 700), 0, 0));
}

/// A unit that has nearly all tickets that one may have gets no more than that: the offers stand until there is room.
#[test]
fn no_exchange_gives_more_than_a_unit_may_have() {
    let (_, ids, mut r) = units(2);
    r.set_tickets(ids[0], Cpu, TICKETS_MAX - 5).unwrap();
    offer(&mut r, bid(ids[0], so_many(10, Disk), so_many(10, Cpu))).unwrap();
    offer(&mut r, bid(ids[1], so_many(10, Cpu), so_many(10, Disk))).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (0, 2));
    r.set_tickets(ids[0], Cpu, TICKETS_MAX - 10).unwrap();
    r.settle(1);
    assert_eq!(
        (r.deals().len(), r.offers().len()),
        (1, 0),
        "tickets that change have offers looked at again"
    );
}

/// An offer to one unit is no part of a ring of three, though that unit would be the next in it.
#[test]
fn an_offer_to_one_unit_is_served_by_that_unit_alone() {
    let (_, ids, mut r) = units(3);
    offer(&mut r, Bid { with: Some(ids[1]), ..bid(ids[0], so_many(10, Cpu), so_many(10, Disk)) }).unwrap();
    offer(&mut r, bid(ids[1], so_many(10, Memory), so_many(10, Cpu))).unwrap();
    offer(&mut r, Bid { with: Some(ids[0]), ..bid(ids[2], so_many(10, Disk), so_many(10, Memory)) }).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (0, 3));
}

#[derive(Debug, Clone)]
enum Happens {
    Offer { by: usize, gives: (usize, u64), wants: (usize, u64), with: Option<usize>, for_ns: Option<u64> },
    Cancel { number: u64 },
    Set { unit: usize, resource: usize, tickets: u64 },
    Present { unit: usize, present: bool },
    Wait { ns: u64 },
}

fn any_happening() -> impl Strategy<Value = Happens> {
    let side = || (0usize..3, 1u64..6);
    prop_oneof![
        6 => (0usize..6, side(), side(), proptest::option::weighted(0.2, 0usize..6), proptest::option::of(1u64..50))
            .prop_map(|(by, gives, wants, with, for_ns)| Happens::Offer { by, gives, wants, with, for_ns }),
        2 => (0u64..40).prop_map(|number| Happens::Cancel { number }),
        1 => (0usize..6, 0usize..3, 1u64..12).prop_map(|(unit, resource, tickets)| Happens::Set { unit, resource, tickets }),
        1 => (0usize..6, any::<bool>()).prop_map(|(unit, present)| Happens::Present { unit, present }),
        2 => (1u64..40).prop_map(|ns| Happens::Wait { ns }),
    ]
}

/// Four units side by side, and two in the first.
fn nested() -> (Contract, Vec<UnitId>) {
    let mut contract = Contract::default();
    let mut ids: Vec<UnitId> = (0..4).map(|n| contract.add(None, &format!("u{n}"))).collect();
    ids.extend(["x", "y"].map(|name| contract.add(Some(ids[0]), name)));
    for id in &ids {
        contract.units[id.index()].tickets = commonhold_contract::PerResource::all(6);
    }
    (contract, ids)
}

proptest! {
    /// Whatever is offered, taken back and ended: what is lent is got, within one encloser; each unit keeps a ticket; no event
    /// is told twice; own tickets change by being set alone; and when all deals are ended, all is as if none had been.
    #[test]
    fn tickets_are_conserved(happenings in proptest::collection::vec(any_happening(), 1..80)) {
        let (contract, ids) = nested();
        let mut r = Rights::new(&contract);
        r.set_capacity(Cpu, Capacity::Known(1 << 20));
        let mut plain = r.clone();
        let (mut now, mut open) = (0, BTreeSet::new());
        for it in happenings {
            match it {
                Happens::Offer { by, gives, wants, with, for_ns } => {
                    let side = |(resource, tickets): (usize, u64)| so_many(tickets, Resource::ALL[resource]);
                    let with = with.map(|with| ids[with]);
                    let bid = Bid { by: ids[by], gives: side(gives), wants: side(wants), with, for_ns };
                    let _ = offer(&mut r, bid);
                }
                Happens::Cancel { number } => drop(r.apply(Change::Cancel { number })),
                Happens::Set { unit, resource, tickets } => {
                    let change = Change::Set { unit: ids[unit], resource: Resource::ALL[resource], tickets };
                    if r.apply(change).is_ok() {
                        plain.apply(change).unwrap();
                    }
                }
                Happens::Present { unit, present } => {
                    r.set_present(ids[unit], present).unwrap();
                    plain.set_present(ids[unit], present).unwrap();
                }
                Happens::Wait { ns } => now += ns,
            }
            for came in r.settle(now) {
                match came {
                    Trade::Made { deal, offers, what } => {
                        prop_assert!(open.insert(deal), "{deal} twice");
                        prop_assert_eq!(offers.len(), what.legs.len());
                        let from: BTreeSet<UnitId> = what.legs.iter().map(|leg| leg.from).collect();
                        let to: BTreeSet<UnitId> = what.legs.iter().map(|leg| leg.to).collect();
                        prop_assert!(from == to && from.len() == what.legs.len());
                    }
                    Trade::Undone { deal, .. } => prop_assert!(open.remove(&deal), "{deal} was not open"),
                    _ => {}
                }
            }
            prop_assert_eq!(&open, &r.deals().keys().copied().collect());
            prop_assert!(r.next().is_none_or(|next| next > now));
            for resource in Resource::ALL {
                for level in [&ids[..4], &ids[4..]] {
                    let sums = level.iter().map(|id| r.lent_and_got(*id, resource)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                    prop_assert_eq!(sums.0, sums.1, "{} is not conserved", resource);
                    for id in level {
                        let (lent, got) = r.lent_and_got(*id, resource);
                        prop_assert!(lent < r.tickets(*id, resource) && got <= TICKETS_MAX);
                        prop_assert_eq!(r.tickets(*id, resource), plain.tickets(*id, resource));
                    }
                }
            }
        }
        for number in open {
            r.apply(Change::Cancel { number }).unwrap();
        }
        for resource in Resource::ALL {
            let nothing = ids.iter().all(|id| r.lent_and_got(*id, resource) == (0, 0));
            prop_assert!(nothing);
            prop_assert_eq!(r.entitlement(resource), plain.entitlement(resource));
        }
    }

    /// Seed 004, section 5.5: where all units are present and none is limited, a deal leaves everybody else's value what it
    /// was, within 1 by rounding; and a ring that can be closed is closed, whoever comes first.
    #[test]
    fn others_keep_their_rights(tickets in proptest::collection::vec(2u64..1_000, 3..8), part in 1u64..100) {
        let (mut contract, ids, _) = units(tickets.len());
        for (id, tickets) in ids.iter().zip(&tickets) {
            contract.units[id.index()].tickets = commonhold_contract::PerResource::all(*tickets);
        }
        let mut r = Rights::new(&contract);
        for resource in Resource::ALL {
            r.set_capacity(resource, Capacity::Known(1 << 30));
        }
        for id in &ids {
            r.set_present(*id, true).unwrap();
        }
        let before = r.clone();
        let amount = |n: usize, resource| so_many((tickets[n] * part / 100).clamp(1, tickets[n] - 1), resource);
        let (gives, wants) = (amount(0, Cpu), amount(1, Disk));
        offer(&mut r, bid(ids[0], gives, wants)).unwrap();
        offer(&mut r, bid(ids[1], wants, gives)).unwrap();
        r.settle(0);
        prop_assert_eq!(r.deals().len(), 1);
        for resource in [Cpu, Disk] {
            for id in &ids[2..] {
                prop_assert!(r.value(*id, resource).abs_diff(before.value(*id, resource)) <= 1);
            }
        }
        prop_assert!(r.value(ids[1], Cpu) > before.value(ids[1], Cpu));
        prop_assert!(r.value(ids[0], Disk) > before.value(ids[0], Disk));
    }
}
