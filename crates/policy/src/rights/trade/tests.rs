use super::*;
use crate::rights::{Capacity, Change, TICKETS_MAX};
use commonhold_contract::{Amount, Contract, PerResource, Resource};
use proptest::prelude::*;
use std::collections::BTreeSet;

use Resource::{Cpu, Disk, Memory};

fn soft(tickets: u64, resource: Resource) -> Offer {
    Offer::tickets(resource, tickets)
}

fn bid(by: UnitId, gives: Offer, wants: Offer) -> Bid {
    Bid { by, gives, wants, with: None, for_ns: None, at_least: None, bound: false }
}

/// Units side by side, each with 1,000 tickets of everything.
fn units(n: usize) -> (Contract, Vec<UnitId>, Rights) {
    let mut contract = Contract::default();
    let ids: Vec<UnitId> = (0..n).map(|n| contract.add(None, &format!("u{n}"))).collect();
    for id in &ids {
        contract.units[id.index()].tickets = PerResource::all(1_000);
    }
    let rights = Rights::new(&contract);
    (contract, ids, rights)
}

/// Tickets of one resource.
fn just(resource: Resource, tickets: u64) -> PerResource<Option<u64>> {
    let mut all = PerResource::default();
    all[resource] = Some(tickets);
    all
}

fn offer(rights: &mut Rights, bid: Bid) -> Result<(), Refused> {
    rights.apply(Change::Offer { bid })
}

/// A unit's effective tickets of CPU and disk.
fn counts(rights: &Rights, unit: UnitId) -> (u64, u64) {
    let of = |resource| {
        let (lent, borrowed) = rights.lent_and_borrowed(unit, resource);
        rights.tickets(unit, resource) + borrowed - lent
    };
    (of(Cpu), of(Disk))
}

/// `a` gives 300 disk for 200 CPU, `b` gives 250 CPU for 300 disk: each gives what the other wants, for the
/// shorter duration.
#[test]
fn two_matching_offers_are_served_for_their_duration() {
    let (_, ids, mut r) = units(3);
    let [a, b] = [ids[0], ids[1]];
    offer(&mut r, Bid { for_ns: Some(500), ..bid(a, soft(300, Disk), soft(200, Cpu)) }).unwrap();
    assert!(matches!(r.settle(10)[..], [Trade::Offered { offer: 1, .. }]));
    assert_eq!((r.next(), counts(&r, a)), (None, (1_000, 1_000)));
    offer(&mut r, Bid { for_ns: Some(800), ..bid(b, soft(250, Cpu), soft(300, Disk)) }).unwrap();
    let came = r.settle(20);
    let legs = vec![
        Leg { from: a, to: b, what: soft(300, Disk), of: None, into: None },
        Leg { from: b, to: a, what: soft(200, Cpu), of: None, into: None },
    ];
    let what = Deal { legs, since: 20, until: Some(520), bound: false };
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

/// Values follow the deal: of 10 CPUs between two, 6 and 4 while 200 of 1,000 tickets are lent.
#[test]
fn lent_tickets_count_for_the_borrower() {
    let (_, ids, mut r) = units(2);
    r.set_capacity(Cpu, Capacity::Known(10));
    for id in &ids {
        r.set_present(*id, true).unwrap();
    }
    offer(&mut r, bid(ids[0], soft(1, Memory), soft(200, Cpu))).unwrap();
    offer(&mut r, bid(ids[1], soft(200, Cpu), soft(1, Memory))).unwrap();
    r.settle(0);
    assert_eq!((r.value(ids[0], Cpu), r.value(ids[1], Cpu)), (6, 4));
    let deal = *r.deals().keys().next().unwrap();
    r.apply(Change::Cancel { number: deal }).unwrap();
    assert_eq!((r.value(ids[0], Cpu), r.value(ids[1], Cpu)), (5, 5));
    assert!(matches!(r.settle(1)[..], [Trade::Undone { why: Ending::Ended, .. }]));
}

/// CPU for disk, disk for memory, memory for CPU: three are served together, and an offer restricted to one
/// partner is not.
#[test]
fn a_ring_of_three_is_served() {
    let (_, ids, mut r) = units(4);
    let [one, two, three, four] = [ids[0], ids[1], ids[2], ids[3]];
    offer(&mut r, Bid { with: Some(four), ..bid(one, soft(10, Cpu), soft(10, Disk)) }).unwrap();
    offer(&mut r, bid(two, soft(20, Disk), soft(20, Memory))).unwrap();
    offer(&mut r, bid(three, soft(20, Memory), soft(10, Cpu))).unwrap();
    r.settle(0);
    assert_eq!((r.offers().len(), r.deals().len()), (3, 0));
    offer(&mut r, bid(one, soft(10, Cpu), soft(20, Disk))).unwrap();
    assert!(matches!(&r.settle(0)[1], Trade::Made { offers, .. } if *offers == [2, 4, 3]));
    assert_eq!(
        (counts(&r, one), counts(&r, two), counts(&r, three)),
        ((990, 1_020), (1_000, 980), (1_010, 1_000))
    );
    assert_eq!((r.lent_and_borrowed(two, Memory), r.lent_and_borrowed(three, Memory)), ((0, 20), (20, 0)));
    // The restricted offer remains: only its partner can match it.
    offer(&mut r, bid(two, soft(10, Disk), soft(10, Cpu))).unwrap();
    assert_eq!(r.settle(0).len(), 1);
    offer(&mut r, bid(four, soft(10, Disk), soft(10, Cpu))).unwrap();
    assert!(matches!(&r.settle(0)[1], Trade::Made { offers, .. } if *offers == [1, 7]));
}

#[test]
fn tickets_are_read_from_words() {
    assert_eq!("disk:300".parse(), Ok(soft(300, Disk)));
    for text in
        ["disk", "disk:", "disk:0", "disk:1000001", "disk:-1", "disks:3", ":3", "", "disk:3:4", "Disk:3"]
    {
        assert_eq!(text.parse::<Offer>(), Err(crate::rights::NoOffer), "{text}");
    }
}

#[test]
fn invalid_offers_are_refused() {
    let (mut contract, ids, _) = units(2);
    let inside = contract.add(Some(ids[0]), "inside");
    let mut r = Rights::new(&contract);
    let [a, b] = [ids[0], ids[1]];
    let mut try_it = |bid| offer(&mut r, bid);
    let (gives, wants) = (soft(10, Cpu), soft(10, Disk));
    let too_few = Refused::TooFew { unit: a, resource: Cpu, has: 1_000, fewer: 1_000 };
    assert_eq!(try_it(bid(a, soft(1_000, Cpu), wants)), Err(too_few));
    assert_eq!(try_it(bid(a, soft(0, Cpu), wants)), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(bid(a, gives, soft(0, Disk))), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(bid(a, gives, gives)), Err(Refused::NoExchange { unit: a }));
    assert_eq!(try_it(Bid { with: Some(a), ..bid(a, gives, wants) }), Err(Refused::Itself { unit: a }));
    let own = Err(Refused::Loop { unit: a });
    assert_eq!(try_it(Bid { with: Some(inside), ..bid(a, gives, wants) }), own);
    assert_eq!(try_it(Bid { with: Some(a), ..bid(inside, gives, wants) }), own);
    let least = |at_least| Bid { at_least: Some(at_least), ..bid(a, gives, wants) };
    for no_bound in [soft(11, Disk), soft(0, Disk), soft(1, Cpu), Offer::hard(Disk, Amount::Absolute(1))] {
        assert_eq!(try_it(least(no_bound)), Err(Refused::NoExchange { unit: a }), "{no_bound}");
    }
    let reserved = Offer::hard(Memory, Amount::Absolute(1 << 20));
    let not_reserved = Refused::NotReserved { unit: a, resource: Memory, left: None };
    assert_eq!(try_it(bid(a, reserved, wants)), Err(not_reserved));
    let unknown = UnitId(99);
    assert_eq!(try_it(bid(unknown, gives, wants)), Err(Refused::Unknown { unit: unknown }));
    assert_eq!(r.apply(Change::Cancel { number: 1 }), Err(Refused::NoOffer { number: 1 }));
    for _ in 0..OFFERS_OF_UNIT_MAX {
        offer(&mut r, bid(b, gives, wants)).unwrap();
    }
    assert_eq!(offer(&mut r, bid(b, gives, wants)), Err(Refused::TooManyOffersOfUnit { unit: b }));
    offer(&mut r, bid(a, gives, wants)).unwrap();
}

/// However many units use up their allowance of offers, a unit without an open offer finds room.
#[test]
fn no_units_take_the_room_of_all_others() {
    let (_, units, mut r) = units(200);
    let (gives, wants) = (soft(1, Disk), soft(999, Cpu));
    // 18 times 50 are 900, and the last 100 are for units without an offer.
    for unit in &units[..18] {
        for _ in 0..OFFERS_OF_UNIT_MAX {
            offer(&mut r, bid(*unit, gives, wants)).unwrap();
        }
    }
    for unit in &units[99..199] {
        offer(&mut r, bid(*unit, gives, wants)).unwrap();
        assert_eq!(offer(&mut r, bid(*unit, gives, wants)), Err(Refused::TooManyOffers));
    }
    assert_eq!(offer(&mut r, bid(units[199], gives, wants)), Err(Refused::TooManyOffers));
}

/// Two offers of the same 600 of 1,000 tickets: the second waits until the first exchange ends. Meanwhile the
/// unit's own tickets cannot fall to what is lent.
#[test]
fn borrowed_tickets_cannot_be_lent_on() {
    let (_, ids, mut r) = units(2);
    let [a, b] = [ids[0], ids[1]];
    for _ in 0..2 {
        offer(&mut r, Bid { for_ns: Some(100), ..bid(a, soft(600, Disk), soft(10, Cpu)) }).unwrap();
        offer(&mut r, bid(b, soft(10, Cpu), soft(600, Disk))).unwrap();
    }
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (1, 2));
    let has_lent = Refused::Lent { unit: a, resource: Disk, has: 1_000, lent: 600 };
    let waits: Vec<Option<Waits>> = r.offers().keys().map(|number| r.waits(*number)).collect();
    assert_eq!(waits, [Some(Waits::Lacks(has_lent)), Some(Waits::WaitsToo { offer: 3 })]);
    let lent = Refused::Lent { unit: a, resource: Disk, has: 1_000, lent: 600 };
    assert_eq!(r.set_tickets(a, Disk, 600), Err(lent));
    r.set_tickets(a, Disk, 601).unwrap();
    assert_eq!(counts(&r, a).1, 1);
    r.set_tickets(a, Disk, 1_000).unwrap();
    // The first ends and the second begins at the same time.
    let came = r.settle(100);
    assert!(matches!(came[..], [Trade::Undone { .. }, Trade::Made { .. }]), "{came:?}");
    assert_eq!((r.next(), counts(&r, b)), (Some(200), (990, 1_600)));
}

/// A unit leaves: its exchanges are undone and its offers dropped. A unit gets fewer tickets by the contract
/// than it lent: the exchange is undone.
#[test]
fn a_reload_undoes_exchanges_that_became_invalid() {
    let (mut contract, ids, mut r) = units(3);
    let pair = |r: &mut Rights, one: UnitId, other: UnitId| {
        offer(r, bid(one, soft(400, Disk), soft(300, Cpu))).unwrap();
        offer(r, bid(other, soft(300, Cpu), soft(400, Disk))).unwrap();
        r.settle(0);
    };
    pair(&mut r, ids[0], ids[1]);
    pair(&mut r, ids[0], ids[2]);
    offer(&mut r, bid(ids[1], soft(5, Cpu), soft(5, Memory))).unwrap();
    r.settle(0);
    assert_eq!(counts(&r, ids[0]), (1_600, 200));
    // 700 disk tickets do not cover both: the newer exchange ends.
    contract.units[ids[0].index()].tickets[Disk] = 700;
    r.adopt(&contract);
    assert!(matches!(r.settle(1)[..], [Trade::Undone { deal: 6, why: Ending::TooFew, .. }]));
    assert_eq!((counts(&r, ids[0]), counts(&r, ids[2])), ((1_300, 300), (1_000, 1_000)));
    // u1 leaves.
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

/// A unit close to the maximum of tickets does not exceed it: the offers wait until there is room.
#[test]
fn no_exchange_gives_more_than_a_unit_may_have() {
    let (_, ids, mut r) = units(2);
    r.set_tickets(ids[0], Cpu, TICKETS_MAX - 5).unwrap();
    offer(&mut r, bid(ids[0], soft(10, Disk), soft(10, Cpu))).unwrap();
    offer(&mut r, bid(ids[1], soft(10, Cpu), soft(10, Disk))).unwrap();
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

/// An offer restricted to one partner is not part of a ring of three, even with that partner next to it.
#[test]
fn an_offer_to_one_unit_is_served_by_that_unit_alone() {
    let (_, ids, mut r) = units(3);
    offer(&mut r, Bid { with: Some(ids[1]), ..bid(ids[0], soft(10, Cpu), soft(10, Disk)) }).unwrap();
    offer(&mut r, bid(ids[1], soft(10, Memory), soft(10, Cpu))).unwrap();
    offer(&mut r, Bid { with: Some(ids[0]), ..bid(ids[2], soft(10, Disk), soft(10, Memory)) }).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (0, 3));
}

/// `ana` of `lab` lends 30 of her 100 CPU tickets to `bo` of `works`, who has 600 tickets there beside
/// another 600. With 12 CPUs in all, a ticket of `lab` is worth 6/200 of a CPU, and one of `works` 6/1200. So
/// `bo` gives 6 disk tickets for each of hers.
fn apart() -> (Contract, [UnitId; 6], Rights) {
    let mut contract = Contract::default();
    let (lab, works) = (contract.add(None, "lab"), contract.add(None, "works"));
    let of = [(lab, "ana"), (lab, "al"), (works, "bo"), (works, "ben")];
    let [ana, al, bo, ben] = of.map(|(encloser, name)| contract.add(Some(encloser), name));
    for id in [bo, ben] {
        contract.units[id.index()].tickets = PerResource::all(600);
    }
    let mut rights = Rights::new(&contract);
    for resource in Resource::ALL {
        rights.set_capacity(resource, Capacity::Known(12_000));
    }
    for id in [ana, al, bo, ben] {
        rights.set_present(id, true).unwrap();
    }
    (contract, [lab, works, ana, al, bo, ben], rights)
}

#[test]
fn units_of_different_enclosers_exchange_what_is_worth_the_same() {
    let (contract, [lab, works, ana, al, bo, ben], mut r) = apart();
    let all = |r: &Rights, resource| {
        let all = r.entitlement(resource);
        for id in contract.held() {
            assert_eq!((r.value(id, resource), r.own(id, resource)), (all.value(id), all.own(id)), "{id:?}");
        }
        [lab, works, ana, al, bo, ben].map(|id| all.value(id))
    };
    let before = all(&r, Cpu);
    assert_eq!(before, [6_000, 6_000, 3_000, 3_000, 3_000, 3_000]);
    offer(&mut r, bid(ana, soft(30, Cpu), soft(20, Disk))).unwrap();
    // 119 of his disk tickets are worth less than 20 of hers, and 184 of his CPU tickets more than 30 of
    // hers.
    offer(&mut r, bid(bo, soft(119, Disk), soft(180, Cpu))).unwrap();
    offer(&mut r, bid(bo, soft(120, Disk), soft(184, Cpu))).unwrap();
    r.settle(0);
    assert_eq!(r.deals().len(), 0);
    offer(&mut r, bid(bo, soft(200, Disk), soft(180, Cpu))).unwrap();
    r.settle(0);
    let deal = r.deals().values().next().unwrap();
    let what: Vec<Offer> = deal.legs.iter().map(|leg| leg.what).collect();
    assert_eq!(what, [soft(30, Cpu), soft(120, Disk)]);
    // Within `lab`: 70 for her, 30 for him, 100 for al.
    assert_eq!(all(&r, Cpu), [5_100, 6_900, 2_100, 3_000, 3_900, 3_000]);
    assert_eq!(all(&r, Disk), [6_600, 5_400, 3_600, 3_000, 2_400, 3_000]);
    assert_eq!(r.issued(Some(lab), Cpu), 200);
    // His tickets count in `lab` as long as he is active.
    r.set_present(bo, false).unwrap();
    assert_eq!(all(&r, Cpu), [6_000, 6_000, 2_470, 3_530, 0, 6_000]);
    r.set_present(bo, true).unwrap();
    let number = *r.deals().keys().next().unwrap();
    r.apply(Change::Cancel { number }).unwrap();
    assert_eq!((all(&r, Cpu), all(&r, Disk)), (before, before));
}

/// Equal offers across enclosers match although values are rounded (10,000 by two and by three), once their
/// currencies are comparable: as soon as a unit in each is active.
#[test]
fn equal_offers_across_enclosers_fit_once_they_are_worth_something() {
    let mut contract = Contract::default();
    let (lab, works) = (contract.add(None, "lab"), contract.add(None, "works"));
    let [ana, bo] = [(lab, "ana"), (works, "bo")].map(|(around, name)| contract.add(Some(around), name));
    let _others = [lab, lab, works, works].map(|around| contract.add(Some(around), "other"));
    let third = contract.add(None, "third");
    let mut r = Rights::new(&contract);
    for resource in [Cpu, Disk] {
        r.set_capacity(resource, Capacity::Known(10_000));
    }
    offer(&mut r, bid(ana, soft(50, Cpu), soft(50, Disk))).unwrap();
    offer(&mut r, bid(bo, soft(50, Disk), soft(50, Cpu))).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (0, 2));
    for id in [ana, bo, third] {
        r.set_present(id, true).unwrap();
    }
    r.settle(1);
    let what: Vec<Offer> = r.deals().values().flat_map(|deal| &deal.legs).map(|leg| leg.what).collect();
    assert_eq!(what, [soft(50, Cpu), soft(50, Disk)]);
    // The borrower moves to another encloser: the exchange ends.
    contract.units[bo.index()].parent = Some(lab);
    r.adopt(&contract);
    assert!(matches!(r.settle(2)[..], [Trade::Undone { why: Ending::Gone, .. }]));
    assert!(r.lots(Cpu).next().is_none() && r.lent_and_borrowed(ana, Cpu) == (0, 0));
}

/// A lot is subject to the maximum of tickets as well: the exchange would move 833.
#[test]
fn lots_are_bounded_by_the_maximum_of_tickets() {
    for (room, deals) in [(5, 0), (2_000, 1)] {
        let (_, [lab, _, ana, _, bo, _], mut r) = apart();
        r.fund(bo, Some(lab), just(Cpu, TICKETS_MAX - room)).unwrap();
        r.set_tickets(ana, Cpu, 5_000).unwrap();
        offer(&mut r, bid(ana, soft(2_000, Cpu), soft(1, Disk))).unwrap();
        offer(&mut r, bid(bo, soft(500, Disk), soft(1, Cpu))).unwrap();
        r.settle(0);
        assert_eq!(r.deals().len(), deals, "{room}");
    }
}

/// In a ring, a reduction propagates to the next unit; below a minimum there is no exchange.
#[test]
fn a_ring_is_served_in_part_down_to_the_least_of_each() {
    for (least, served) in [(60, true), (61, false)] {
        let (_, ids, mut r) = units(3);
        let part = |quantity, resource| Some(soft(quantity, resource));
        offer(&mut r, Bid { at_least: part(least, Cpu), ..bid(ids[0], soft(100, Disk), soft(100, Cpu)) })
            .unwrap();
        offer(&mut r, Bid { at_least: part(50, Memory), ..bid(ids[1], soft(100, Cpu), soft(100, Memory)) })
            .unwrap();
        offer(&mut r, Bid { at_least: part(10, Disk), ..bid(ids[2], soft(60, Memory), soft(60, Disk)) })
            .unwrap();
        r.settle(0);
        assert_eq!(r.deals().len(), usize::from(served), "{least}");
        let quantity = r.deals().values().flat_map(|deal| &deal.legs).all(|leg| leg.quantity() == 60);
        assert!(quantity);
    }
}

/// Currencies must not form a cycle, by one exchange or by two.
#[test]
fn no_exchange_closes_a_loop() {
    let (_, [lab, works, ana, _, bo, _], mut r) = apart();
    offer(&mut r, Bid { with: Some(works), ..bid(ana, soft(10, Cpu), soft(5, Disk)) }).unwrap();
    offer(&mut r, bid(works, soft(50, Disk), soft(1, Cpu))).unwrap();
    r.settle(0);
    assert_eq!(r.deals().len(), 1, "`works` is worth something by tickets of `lab`");
    // `lab` would depend on tickets of `works`: a cycle for CPU, but not for memory.
    offer(&mut r, bid(bo, soft(10, Cpu), soft(1, Memory))).unwrap();
    offer(&mut r, bid(lab, soft(50, Memory), soft(1, Cpu))).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (1, 2));
    assert_eq!(r.fund(lab, Some(works), just(Cpu, 5)), Err(Refused::Loop { unit: lab }));
    assert_eq!(r.fund(works, Some(bo), just(Memory, 5)), Err(Refused::Loop { unit: works }));
    r.fund(lab, Some(works), just(Memory, 5)).unwrap();
}

/// Funding from a second currency: `lab` issues 200 CPU tickets to a unit of `works`.
#[test]
fn a_unit_is_funded_by_another_currency() {
    let (_, [lab, works, ana, al, bo, ben], mut r) = apart();
    r.fund(bo, Some(lab), just(Cpu, 200)).unwrap();
    let values = |r: &Rights| [lab, works, ana, al, bo, ben].map(|id| r.value(id, Cpu));
    assert_eq!(values(&r), [3_000, 9_000, 1_500, 1_500, 6_000, 3_000]);
    assert_eq!(r.funded(Cpu).collect::<Vec<_>>(), [(bo, Some(lab), 200)]);
    r.fund(bo, None, just(Cpu, 100)).unwrap();
    assert_eq!(values(&r), [2_000, 10_000, 1_000, 1_000, 8_000, 2_000]);
    r.fund(bo, Some(works), just(Cpu, 1_200)).unwrap();
    assert_eq!(r.tickets(bo, Cpu), 1_200, "of its own encloser's currency it is what it has");
    for of in [Some(lab), None] {
        r.fund(bo, of, just(Cpu, 0)).unwrap();
    }
    r.fund(bo, Some(works), just(Cpu, 600)).unwrap();
    let many = Refused::TooMany { unit: bo, resource: Cpu, has: 0, more: TICKETS_MAX + 1 };
    assert_eq!(r.fund(bo, Some(lab), just(Cpu, TICKETS_MAX + 1)), Err(many));
    assert_eq!(r.fund(bo, Some(UnitId(99)), just(Cpu, 1)), Err(Refused::Unknown { unit: UnitId(99) }));
    assert_eq!(r, apart().2);
}

/// 4,000 of 12,000 are reserved for `ana` in `lab`, a quarter of the machine for `works`: she gives 1,000 of
/// hers for disk tickets.
#[test]
fn reservations_are_exchanged() {
    let (mut contract, [lab, works, ana, al, bo, _], _) = apart();
    contract.units[ana.index()].hard.memory = Some(Amount::Absolute(4_000));
    contract.units[works.index()].hard.memory = Some(Amount::Part(250_000));
    let mut r = apart().2;
    r.adopt(&contract);
    let values = |r: &Rights| [lab, works, ana, al, bo].map(|id| r.value(id, Memory));
    let hard = |r: &Rights| [lab, works, ana, bo].map(|id| r.entitlement(Memory).hard(id));
    let before = r.clone();
    assert_eq!(values(&r), [4_500, 7_500, 4_250, 250, 3_750]);
    let memory = |amount| Offer::hard(Memory, Amount::Absolute(amount));
    let left = Some(memory(4_000));
    let refused = offer(&mut r, bid(ana, memory(4_001), soft(10, Disk)));
    assert_eq!(refused, Err(Refused::NotReserved { unit: ana, resource: Memory, left }));
    offer(&mut r, bid(ana, memory(1_000), soft(10, Disk))).unwrap();
    offer(&mut r, bid(bo, soft(60, Disk), soft(1, Memory))).unwrap();
    r.settle(0);
    assert_eq!(r.deals().len(), 0, "tickets are wanted, and a reservation is given");
    offer(&mut r, bid(bo, soft(60, Disk), memory(900))).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), values(&r)), (1, [3_600, 8_400, 3_350, 250, 4_650]));
    assert_eq!(hard(&r), [0, 3_900, 3_100, 900]);
    // A reload reserves less for her than she lent.
    contract.units[ana.index()].hard.memory = Some(Amount::Absolute(800));
    r.adopt(&contract);
    assert!(matches!(r.settle(1)[..], [Trade::Undone { why: Ending::TooFew, .. }]));
    contract.units[ana.index()].hard.memory = Some(Amount::Absolute(4_000));
    r.adopt(&contract);
    assert_eq!((values(&r), hard(&r)), (values(&before), hard(&before)));
    // The machine has 12,000: of a quarter, 1,200 are a tenth of the machine.
    offer(&mut r, bid(works, memory(1_300), soft(10, Disk))).unwrap();
    offer(&mut r, bid(lab, soft(10, Disk), Offer::hard(Memory, Amount::Absolute(1_200)))).unwrap();
    r.settle(2);
    let what: Vec<Offer> = r.deals().values().flat_map(|deal| &deal.legs).map(|leg| leg.what).collect();
    assert!(what.contains(&Offer::hard(Memory, Amount::Part(100_000))), "{what:?}");
}

/// Two disk tickets for one of memory are too many for 100, and not for 300 (seed 004, section 5.6).
#[test]
fn an_offer_may_be_served_in_part() {
    let (_, ids, mut r) = units(3);
    let [a, b, c] = [ids[0], ids[1], ids[2]];
    let bounded = Bid { at_least: Some(soft(300, Memory)), ..bid(a, soft(800, Disk), soft(400, Memory)) };
    offer(&mut r, bounded).unwrap();
    offer(&mut r, bid(b, soft(100, Memory), soft(200, Disk))).unwrap();
    // The ratio is the other's: 601 disk are more than `a` gives for 300.
    offer(&mut r, bid(c, soft(300, Memory), soft(601, Disk))).unwrap();
    r.settle(0);
    assert_eq!((r.deals().len(), r.offers().len()), (0, 3));
    offer(&mut r, bid(b, soft(350, Memory), soft(650, Disk))).unwrap();
    r.settle(0);
    let what: Vec<Offer> = r.deals().values().flat_map(|deal| &deal.legs).map(|leg| leg.what).collect();
    assert_eq!(what, [soft(650, Disk), soft(350, Memory)]);
    assert_eq!(r.offers().len(), 2, "what is left of it stands no more");
    // Both have a minimum: 200 CPU for 100 memory at most, and 150 for 90.
    offer(&mut r, Bid { at_least: Some(soft(50, Memory)), ..bid(c, soft(200, Cpu), soft(100, Memory)) })
        .unwrap();
    offer(&mut r, Bid { at_least: Some(soft(10, Cpu)), ..bid(b, soft(90, Memory), soft(150, Cpu)) }).unwrap();
    r.settle(0);
    let what: Vec<Offer> = r.deals().values().flat_map(|deal| &deal.legs).map(|leg| leg.what).collect();
    assert_eq!(what[2..], [soft(150, Cpu), soft(90, Memory)]);
}

#[test]
fn offers_are_read_and_written_as_text() {
    let hard = Offer::hard;
    for (text, offer) in [
        ("disk:300", soft(300, Disk)),
        ("memory:2GiB", hard(Memory, Amount::Absolute(2 << 30))),
        ("memory:25%", hard(Memory, Amount::Part(250_000))),
        ("cpu:1.5cpus", hard(Cpu, Amount::Absolute(1_500_000))),
        ("disk:20MB/s", hard(Disk, Amount::Absolute(20_000_000))),
    ] {
        assert_eq!((text.parse(), offer.to_string()), (Ok(offer), text.to_owned()));
        assert_eq!(serde_json::to_string(&offer).unwrap(), format!("\"{text}\""));
    }
    assert_eq!("cpu:1cpu".parse(), Ok(hard(Cpu, Amount::Absolute(1_000_000))));
    for text in ["cpu:1.5", "cpu:0cpus", "memory:0%", "memory:2G", "memory:2cpus", "cpu:cpus"] {
        assert_eq!(text.parse::<Offer>(), Err(crate::rights::NoOffer), "{text}");
    }
}

#[derive(Debug, Clone)]
enum Happens {
    Offer {
        by: usize,
        gives: Side,
        wants: Side,
        bound: Option<u64>,
        with: Option<usize>,
        for_ns: Option<u64>,
    },
    Cancel {
        number: u64,
    },
    Set {
        unit: usize,
        resource: usize,
        tickets: u64,
    },
    Fund {
        unit: usize,
        of: usize,
        resource: usize,
        tickets: u64,
    },
    Present {
        unit: usize,
        present: bool,
    },
    Wait {
        ns: u64,
    },
}

/// A resource, an amount and its kind: tickets, a percentage, an absolute amount.
type Side = (usize, u64, usize);

fn offered((resource, quantity, kind): Side) -> Offer {
    let resource = Resource::ALL[resource];
    match kind {
        0 => soft(quantity, resource),
        1 => Offer::hard(resource, Amount::Part(quantity * 20_000)),
        _ => Offer::hard(resource, Amount::Absolute(quantity << 13)),
    }
}

fn any_happening() -> impl Strategy<Value = Happens> {
    let side = || (0usize..3, 1u64..6, prop_oneof![4 => Just(0usize), 1 => Just(1), 1 => Just(2)]);
    let bound = proptest::option::weighted(0.3, 1u64..6);
    let with = proptest::option::weighted(0.2, 0usize..7);
    prop_oneof![
        8 => (0usize..7, side(), side(), bound, with, proptest::option::of(1u64..50))
            .prop_map(|(by, gives, wants, bound, with, for_ns)| Happens::Offer { by, gives, wants, bound, with, for_ns }),
        2 => (0u64..40).prop_map(|number| Happens::Cancel { number }),
        1 => (0usize..7, 0usize..3, 1u64..12).prop_map(|(unit, resource, tickets)| Happens::Set { unit, resource, tickets }),
        1 => (0usize..7, 0usize..8, 0usize..3, 0u64..12)
            .prop_map(|(unit, of, resource, tickets)| Happens::Fund { unit, of, resource, tickets }),
        1 => (0usize..7, any::<bool>()).prop_map(|(unit, present)| Happens::Present { unit, present }),
        2 => (1u64..40).prop_map(|ns| Happens::Wait { ns }),
    ]
}

/// Four siblings, two sub-units in the first and one in the second. Three have reservations.
fn nested() -> (Contract, Vec<UnitId>) {
    let mut contract = Contract::default();
    let mut ids: Vec<UnitId> = (0..4).map(|n| contract.add(None, &format!("u{n}"))).collect();
    ids.extend(["x", "y"].map(|name| contract.add(Some(ids[0]), name)));
    ids.push(contract.add(Some(ids[1]), "z"));
    for id in &ids {
        contract.units[id.index()].tickets = PerResource::all(6);
    }
    for (n, hard) in [(1, Amount::Part(100_000)), (2, Amount::Absolute(1 << 16)), (4, Amount::Part(200_000))]
    {
        contract.units[ids[n].index()].hard = PerResource::all(Some(hard));
    }
    (contract, ids)
}

proptest! {
    /// In any history of offers, withdrawals and ends: every currency has the tickets that it issued; no more
    /// is lent of a reservation than there is; each unit keeps a ticket; each event is reported once; own
    /// tickets change only when set; values sum to the capacity; and after all deals ended, all is as if none
    /// had been.
    #[test]
    fn tickets_are_conserved(happenings in proptest::collection::vec(any_happening(), 1..80)) {
        let (contract, ids) = nested();
        let mut r = Rights::new(&contract);
        for resource in Resource::ALL {
            r.set_capacity(resource, Capacity::Known(1 << 20));
        }
        let mut plain = r.clone();
        let (mut now, mut open) = (0, BTreeSet::new());
        for it in happenings {
            match it {
                Happens::Offer { by, gives, wants, bound, with, for_ns } => {
                    let with = with.map(|with| ids[with]);
                    let at_least = bound.map(|quantity| offered((wants.0, quantity, wants.2)));
                    let bid = Bid { with, for_ns, at_least, ..bid(ids[by], offered(gives), offered(wants)) };
                    let _ = offer(&mut r, bid);
                }
                Happens::Cancel { number } => drop(r.apply(Change::Cancel { number })),
                Happens::Set { unit, resource, tickets } => {
                    let change = Change::Set { unit: ids[unit], resource: Resource::ALL[resource], tickets };
                    if r.apply(change).is_ok() {
                        plain.apply(change).unwrap();
                    }
                }
                Happens::Fund { unit, of, resource, tickets } => {
                    let of = ids.get(of).copied();
                    let change = Change::Fund { unit: ids[unit], of, tickets: just(Resource::ALL[resource], tickets) };
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
                for of in [None, Some(ids[0]), Some(ids[1])] {
                    let level = || ids.iter().filter(|id| contract.unit(**id).parent == of);
                    let issued = |r: &Rights| level().map(|id| r.tickets(*id, resource)).sum::<u64>()
                        + r.funded(resource).filter(|(_, funded, _)| *funded == of).map(|(_, _, quantity)| quantity).sum::<u64>();
                    let own = level().map(|id| {
                        let (lent, borrowed) = r.lent_and_borrowed(*id, resource);
                        r.tickets(*id, resource) + borrowed - lent
                    });
                    let lots = |kind| r.lots.all(resource).filter(move |(lot, _)| lot.currency == of && lot.kind == kind);
                    let lots = |kind| lots(kind).map(|(_, quantity)| quantity).sum::<u64>();
                    prop_assert_eq!(own.sum::<u64>() + lots(Kind::Soft), issued(&r), "{} is not conserved", resource);
                    prop_assert_eq!(issued(&r), issued(&plain));
                    for (kind, lent) in [Kind::Part, Kind::Absolute].map(|kind| (kind, lots(kind))) {
                        let of_kind = |id: &&UnitId| {
                            contract.unit(**id).hard[resource].map(Kind::of).is_some_and(|(own, _)| own == kind)
                        };
                        let out: u64 = level().filter(of_kind).map(|id| r.unit(*id).unwrap().hard_lent[resource]).sum();
                        prop_assert_eq!(lent, out);
                    }
                }
                let all = r.entitlement(resource);
                for id in &ids {
                    let (lent, borrowed) = r.lent_and_borrowed(*id, resource);
                    prop_assert!(lent < r.tickets(*id, resource) && borrowed <= TICKETS_MAX);
                    prop_assert_eq!(r.tickets(*id, resource), plain.tickets(*id, resource));
                    let hard = contract.unit(*id).hard[resource].map_or(0, |hard| Kind::of(hard).1);
                    prop_assert!(r.unit(*id).unwrap().hard_lent[resource] <= hard);
                    prop_assert_eq!((r.value(*id, resource), r.own(*id, resource)), (all.value(*id), all.own(*id)));
                    let inside = contract.children(Some(*id)).map(|inner| all.value(inner)).sum::<u64>();
                    prop_assert_eq!(all.own(*id) + inside, all.value(*id));
                    prop_assert!(all.hard(*id) <= all.value(*id));
                }
            }
        }
        for number in open {
            r.apply(Change::Cancel { number }).unwrap();
        }
        for resource in Resource::ALL {
            let nothing = ids.iter().all(|id| r.lent_and_borrowed(*id, resource) == (0, 0));
            prop_assert!(nothing);
            prop_assert_eq!(r.entitlement(resource), plain.entitlement(resource));
        }
    }

    /// With all units present, a unit that neither trades nor encloses a trader has what it would have
    /// without trade, including exchanges between enclosers and of reservations. Within rounding: 1 at each
    /// level.
    #[test]
    fn a_unit_without_exchanges_keeps_its_value(happenings in proptest::collection::vec(any_happening(), 1..60)) {
        let (contract, ids) = nested();
        let mut r = Rights::new(&contract);
        for resource in Resource::ALL {
            r.set_capacity(resource, Capacity::Known(1 << 20));
        }
        for id in &ids {
            r.set_present(*id, true).unwrap();
        }
        let plain = r.clone();
        for it in happenings {
            match it {
                Happens::Offer { by, gives, wants, bound, with, for_ns } => {
                    let with = with.map(|with| ids[with]);
                    let at_least = bound.map(|quantity| offered((wants.0, quantity, wants.2)));
                    let bid = Bid { with, for_ns, at_least, ..bid(ids[by], offered(gives), offered(wants)) };
                    let _ = offer(&mut r, bid);
                }
                Happens::Cancel { number } => drop(r.apply(Change::Cancel { number })),
                _ => {}
            }
            r.settle(0);
            let parties: BTreeSet<UnitId> =
                r.deals().values().flat_map(|deal| &deal.legs).map(|leg| leg.from).collect();
            for resource in Resource::ALL {
                for id in ids.iter().filter(|id| !r.lineage(Some(**id)).any(|it| parties.contains(&it))) {
                    let (now, before) = (r.own(*id, resource), plain.own(*id, resource));
                    prop_assert!(now.abs_diff(before) <= 8, "{id:?} has {now}, and had {before} {resource}");
                }
            }
        }
    }

    /// Seed 004, section 5.5: with all units present and none limited, a deal leaves other values unchanged
    /// within 1; and a ring that can be closed is closed, whatever the order of offers.
    #[test]
    fn others_keep_their_rights(tickets in proptest::collection::vec(2u64..1_000, 3..8), part in 1u64..100) {
        let (mut contract, ids, _) = units(tickets.len());
        for (id, tickets) in ids.iter().zip(&tickets) {
            contract.units[id.index()].tickets = PerResource::all(*tickets);
        }
        let mut r = Rights::new(&contract);
        for resource in Resource::ALL {
            r.set_capacity(resource, Capacity::Known(1 << 30));
        }
        for id in &ids {
            r.set_present(*id, true).unwrap();
        }
        let before = r.clone();
        let amount = |n: usize, resource| soft((tickets[n] * part / 100).clamp(1, tickets[n] - 1), resource);
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
