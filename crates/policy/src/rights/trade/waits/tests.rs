use super::*;
use crate::rights::Change;
use commonhold_contract::Resource::{Cpu, Disk, Memory};
use commonhold_contract::{Contract, PerResource, Resource};

fn soft(tickets: u64, resource: Resource) -> Offer {
    Offer::tickets(resource, tickets)
}

fn bid(by: UnitId, gives: Offer, wants: Offer) -> Bid {
    Bid { by, gives, wants, with: None, for_ns: None, at_least: None, bound: false }
}

/// `ana` and `al` in `lab`, `bo` in `works`, each with 1,000 tickets, and 1,000 bytes of memory reserved for
/// `ana`.
fn units(present: bool) -> ([UnitId; 4], Rights) {
    let mut contract = Contract::default();
    let (lab, works) = (contract.add(None, "lab"), contract.add(None, "works"));
    let (ana, al) = (contract.add(Some(lab), "ana"), contract.add(Some(lab), "al"));
    let bo = contract.add(Some(works), "bo");
    for id in [lab, works, ana, al, bo] {
        contract.units[id.index()].tickets = PerResource::all(1_000);
    }
    contract.units[ana.index()].hard.memory = Some(Amount::Absolute(1_000));
    contract.units[bo.index()].hard.memory = Some(Amount::Part(500_000));
    let mut rights = Rights::new(&contract);
    rights.set_capacity(Cpu, Capacity::Known(12_000));
    for id in [ana, al, bo] {
        rights.set_present(id, present).unwrap();
    }
    ([lab, ana, al, bo], rights)
}

/// Why each offer waits, the oldest first.
fn waits(rights: &mut Rights, bids: &[Bid]) -> Vec<Option<Waits>> {
    for bid in bids {
        rights.apply(Change::Offer { bid: *bid }).unwrap();
    }
    rights.settle(0);
    assert!(rights.deals().is_empty());
    rights.offers().keys().map(|number| rights.waits(*number)).collect()
}

#[test]
fn no_other_offer_gives_or_wants_the_resource() {
    let ([_, ana, al, _], mut r) = units(true);
    let (disk, cpu, memory) = (soft(30, Disk), soft(20, Cpu), soft(10, Memory));
    let [first, own, last] =
        waits(&mut r, &[bid(ana, disk, cpu), bid(ana, cpu, disk), bid(al, cpu, memory)])[..]
    else {
        panic!()
    };
    assert_eq!(first, Some(Waits::NobodyWants(disk)), "its own offers do not count");
    assert_eq!(own, Some(Waits::NobodyGives(disk)));
    assert_eq!(last, Some(Waits::NobodyGives(memory)));
    assert_eq!(r.waits(99), None);
}

/// Reservations and tickets do not match.
#[test]
fn tickets_do_not_match_reservations() {
    let ([_, ana, al, _], mut r) = units(true);
    let hard = Offer::hard(Memory, Amount::Absolute(500));
    let unreserved = soft(10, Memory);
    let came = waits(&mut r, &[bid(ana, hard, soft(3, Cpu)), bid(al, soft(3, Cpu), unreserved)]);
    assert_eq!(came, [Some(Waits::NobodyWants(hard)), Some(Waits::NobodyGives(unreserved))]);
}

#[test]
fn an_offer_is_for_another_unit() {
    let ([_, ana, al, bo], mut r) = units(true);
    let only = Bid { with: Some(bo), ..bid(ana, soft(30, Disk), soft(20, Cpu)) };
    let came = waits(&mut r, &[only, bid(al, soft(20, Cpu), soft(30, Disk))]);
    assert_eq!(came, [Some(Waits::ForOthers { offer: 2 }), Some(Waits::ForOthers { offer: 1 })]);
}

/// One gives 15 CPU tickets of the 20 that are wanted.
#[test]
fn an_offer_gives_too_little_or_wants_too_much() {
    let ([_, ana, al, _], mut r) = units(true);
    let came =
        waits(&mut r, &[bid(ana, soft(30, Disk), soft(20, Cpu)), bid(al, soft(15, Cpu), soft(30, Disk))]);
    assert_eq!(
        came,
        [
            Some(Waits::GivesLess { offer: 2, gives: soft(15, Cpu), needs: Some(soft(20, Cpu)) }),
            Some(Waits::WantsMore { offer: 1, wants: soft(20, Cpu), needs: Some(soft(20, Cpu)) }),
        ]
    );
}

/// From 10 up, three disk tickets for two of CPU; the other wants two for one.
#[test]
fn two_offers_with_incompatible_ratios_wait() {
    let ([_, ana, al, _], mut r) = units(true);
    let part = Bid { at_least: Some(soft(10, Cpu)), ..bid(ana, soft(30, Disk), soft(20, Cpu)) };
    let came = waits(&mut r, &[part, bid(al, soft(12, Cpu), soft(24, Disk))]);
    assert_eq!(came, [Some(Waits::Ratio { offer: 2 }), Some(Waits::Ratio { offer: 1 })]);
}

/// No unit in `lab` or `works` is active: their tickets have no value. As soon as one is, they are compared.
#[test]
fn tickets_without_value_are_not_compared() {
    let ([lab, ana, _, bo], mut r) = units(false);
    let came =
        waits(&mut r, &[bid(ana, soft(30, Disk), soft(20, Cpu)), bid(bo, soft(20, Cpu), soft(30, Disk))]);
    assert_eq!(came[0], Some(Waits::NobodyActive { offer: 2, within: Some(lab) }));
    r.set_present(ana, true).unwrap();
    r.settle(1);
    assert!(matches!(r.waits(1), Some(Waits::NobodyActive { offer: 2, within }) if within != Some(lab)));
    r.set_present(bo, true).unwrap();
    r.settle(2);
    assert_eq!((r.waits(1), r.deals().len()), (None, 1));
}

/// The capacity of memory is unknown, so bytes cannot be converted.
#[test]
fn bytes_are_not_compared_while_the_capacity_is_unknown() {
    let ([_, ana, _, bo], mut r) = units(true);
    let bytes = Offer::hard(Memory, Amount::Absolute(500));
    let part = Offer::hard(Memory, Amount::Part(100_000));
    let came = waits(&mut r, &[bid(ana, soft(3, Cpu), bytes), bid(bo, part, soft(1, Cpu))]);
    assert_eq!(
        came,
        [
            Some(Waits::NotWeighed { offer: 2, what: bytes }),
            Some(Waits::NotWeighed { offer: 1, what: bytes })
        ]
    );
}

/// A transfer that would close a cycle is not possible; and if one gives and another wants, there is no ring.
#[test]
fn two_matching_offers_cannot_be_served() {
    let ([lab, ana, al, bo], mut r) = units(true);
    let came =
        waits(&mut r, &[bid(ana, soft(30, Disk), soft(1, Cpu)), bid(lab, soft(900, Cpu), soft(1, Disk))]);
    assert!(matches!(came[0], Some(Waits::Moves { offer: 2, why: Refused::Loop { .. } })), "{came:?}");
    let (_, mut r) = units(true);
    let came =
        waits(&mut r, &[bid(ana, soft(30, Disk), soft(20, Cpu)), bid(al, soft(20, Cpu), soft(9, Memory))]);
    assert_eq!(came[0], Some(Waits::NobodyWants(soft(30, Disk))));
    r.apply(Change::Offer { bid: bid(bo, soft(900, Resource::Bus), soft(1, Disk)) }).unwrap();
    r.settle(1);
    assert_eq!((r.waits(1), r.deals().len()), (Some(Waits::NoRing), 0));
}
