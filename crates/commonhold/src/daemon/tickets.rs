//! Changes of rights that clients ask for: which units they name, who may make them, and what came of them.
//!
//! A change is kept in the daemon's directory, then made by a turn of the loop, then answered.
//!
//! Authority: root and the daemon's own user may change everything. A unit's members may give its tickets to the units
//! beside it. Who may enter a unit and every unit directly in it *governs* it, and may change the tickets of these. To
//! be a member of the encloser is not enough: others' sub-units may be in it. And where `each` makes the sub-units,
//! nobody governs it: a user who came first could take what those are to have who come later.

use commonhold_contract::{Contract, Resource, UnitId};
use commonhold_policy::membership::may_enter;
use commonhold_policy::rights::{Bid, Change, Refused, Rights, Trade};
use commonhold_report::exchanges::Standing;
use commonhold_report::tickets::Tickets;
use commonhold_report::words;

use super::clients::Caller;
use super::hold::Hold;
use super::holdings;
use super::requests::{Answered, facts, may_all, name_of, refuse, reply, unit_of};
use crate::protocol::{Asked, OffersReply, Refusal, TicketsReply, refusal};

/// Every unit's tickets of every resource.
pub(super) fn all(hold: &mut Hold) -> Answered {
    let rights = hold.rights();
    let of = |unit: UnitId| Resource::ALL.map(|resource| row(hold, &rights, unit, resource));
    reply(&TicketsReply {
        offer: None,
        exchange: None,
        tickets: hold.contract().listed().into_iter().flat_map(of).collect(),
        expected: hold.expected(),
        not_held: holdings::of_those_not_held(hold),
    })
}

/// Those that are not the contract's, and those that are exchanged.
pub(super) fn changed(hold: &Hold) -> Vec<Tickets> {
    let rights = hold.rights();
    let of = |unit: UnitId| Resource::ALL.map(|resource| row(hold, &rights, unit, resource));
    let rows = hold.contract().listed().into_iter().flat_map(of);
    rows.filter(|row| row.is_changed() || row.lent > 0 || row.got > 0).collect()
}

/// Offers that stand, and exchanges.
pub(super) fn offers(hold: &Hold) -> Answered {
    let rights = hold.rights();
    let path = |unit: UnitId| hold.contract().unit(unit).path.clone();
    let standing = |(number, bid): (&u64, &Bid)| Standing {
        number: *number,
        unit: path(bid.by),
        gives: bid.gives,
        wants: bid.wants,
        with: bid.with.map(path),
        for_ns: bid.for_ns,
        at_least: bid.at_least,
        waits: rights.waits(bid).map(|why| words::refused(hold.contract(), why)),
    };
    let offers = rights.offers().iter().map(standing).collect();
    let statement = hold.statement();
    reply(&OffersReply { offers, exchanges: statement.exchanges, elapsed_ns: statement.elapsed_ns })
}

fn row(hold: &Hold, rights: &Rights, unit: UnitId, resource: Resource) -> Tickets {
    let asked = hold.contract().unit(unit);
    let (lent, got) = rights.lent_and_got(unit, resource);
    Tickets {
        unit: asked.path.clone(),
        resource,
        contract: asked.tickets[resource],
        tickets: (rights.tickets(unit, resource) + got).saturating_sub(lent),
        lent,
        got,
        entitled: hold.worth(rights, unit, resource),
        active: rights.is_active(unit, resource),
    }
}

/// Takes a change that a client asks for, if it may: it is kept by then, and the next turn makes it or refuses it.
pub(super) fn take(hold: &mut Hold, caller: &Caller, asked: &Asked) -> Result<(), Refusal> {
    let change = change(hold, asked)?;
    authorise(hold, caller, &change)?;
    hold.change(change).map_err(|e| refuse(refusal::FAILED, format!("nothing was changed: {e}")))
}

/// What the last turn made of a change that was taken.
pub(super) fn outcome(hold: &mut Hold, asked: &Asked) -> Answered {
    let change = change(hold, asked)?;
    let Some(decided) = hold.decided().iter().rev().find(|decided| decided.change == change) else {
        let message = "not made yet: the last turn of the daemon failed. It is kept, and the next turn that does not fail \
                       makes it; `commonhold status` says what failed, and `commonhold tickets` whether it was made";
        return Err(refuse(refusal::FAILED, message.to_owned()));
    };
    if let Some(why) = decided.refused {
        let name = match why {
            Refused::Unknown { .. } => refusal::NO_SUCH_UNIT,
            Refused::TooFew { .. } => refusal::TOO_FEW,
            Refused::TooMany { .. } => refusal::TOO_MANY,
            Refused::Enclosers { .. } => refusal::NOT_SIBLINGS,
            Refused::Itself { .. } => refusal::SAME_UNIT,
            Refused::Lent { .. } => refusal::LENT,
            Refused::NoExchange { .. } => refusal::NO_EXCHANGE,
            Refused::NotReserved { .. } => refusal::NOT_RESERVED,
            Refused::Loop { .. } => refusal::LOOP,
            Refused::TooManyOffers => refusal::TOO_MANY_OFFERS,
            Refused::NoOffer { .. } => refusal::NO_OFFER,
        };
        return Err(refuse(name, words::refused(hold.contract(), why)));
    }
    let rights = hold.rights();
    let (offer, exchange) = served(hold.traded(), &change);
    let rows =
        about(hold.traded(), &change).into_iter().map(|(unit, resource)| row(hold, &rights, unit, resource));
    let tickets: Vec<Tickets> = rows.collect();
    let mut not_held = holdings::of_those_not_held(hold);
    not_held.retain(|holding| tickets.iter().any(|it| it.resource.name() == holding.resource));
    reply(&TicketsReply { offer, exchange, tickets, expected: Vec::new(), not_held })
}

/// With the numbers of the units that are named.
fn change(hold: &Hold, asked: &Asked) -> Result<Change, Refusal> {
    let unit = |path: &str| unit_of(hold, path, "given tickets");
    Ok(match asked {
        Asked::Set { unit: path, resource, tickets } => {
            Change::Set { unit: unit(path)?, resource: *resource, tickets: *tickets }
        }
        Asked::Issue { unit: path, resource, tickets } => {
            Change::Issue { unit: unit(path)?, resource: *resource, tickets: *tickets }
        }
        Asked::TakeBack { unit: path, resource, tickets } => {
            Change::TakeBack { unit: unit(path)?, resource: *resource, tickets: *tickets }
        }
        Asked::Transfer { from, to, resource, tickets } => {
            Change::Transfer { from: unit(from)?, to: unit(to)?, resource: *resource, tickets: *tickets }
        }
        Asked::Exchange { one, other, gives, gets } => {
            Change::Exchange { one: unit(one)?, other: unit(other)?, gives: *gives, gets: *gets }
        }
        Asked::Fund { unit: path, of, resource, tickets } => Change::Fund {
            unit: unit(path)?,
            of: of.as_deref().map(unit).transpose()?,
            resource: *resource,
            tickets: *tickets,
        },
        Asked::Offer { unit: path, gives, wants, with, for_ns, at_least } => {
            let with = with.as_deref().map(unit).transpose()?;
            let (by, for_ns, at_least) = (unit(path)?, *for_ns, *at_least);
            let bid = Bid { by, gives: *gives, wants: *wants, with, for_ns, at_least };
            Change::Offer { bid }
        }
        Asked::Cancel { number } => Change::Cancel { number: *number },
    })
}

/// The number that an offer was given at the last turn, and that of the exchange that served it then.
fn served(traded: &[Trade], change: &Change) -> (Option<u64>, Option<u64>) {
    let Change::Offer { bid: asked } = change else { return (None, None) };
    let offer = traded.iter().rev().find_map(|trade| match trade {
        Trade::Offered { offer, bid } if bid == asked => Some(*offer),
        _ => None,
    });
    let exchange = traded.iter().find_map(|trade| match trade {
        Trade::Made { deal, offers, .. } if offer.is_some_and(|offer| offers.contains(&offer)) => Some(*deal),
        _ => None,
    });
    (offer, exchange)
}

/// Whose tickets a change was about, of what; of an offer or its end, those that it moved.
fn about(traded: &[Trade], change: &Change) -> Vec<(UnitId, Resource)> {
    let moved = |deal: u64| {
        let what = traded.iter().find_map(|trade| match trade {
            Trade::Made { deal: number, what, .. } | Trade::Undone { deal: number, what, .. }
                if *number == deal =>
            {
                Some(what)
            }
            _ => None,
        });
        let legs = what.into_iter().flat_map(|deal| &deal.legs);
        legs.flat_map(|leg| [(leg.from, leg.what.resource), (leg.to, leg.what.resource)]).collect()
    };
    match change {
        Change::Offer { .. } => served(traded, change).1.map_or_else(Vec::new, moved),
        Change::Cancel { number } => moved(*number),
        _ => change.about(),
    }
}

fn authorise(hold: &mut Hold, caller: &Caller, change: &Change) -> Result<(), Refusal> {
    if may_all(caller) {
        return Ok(());
    }
    let (contract, rights) = (hold.contract().clone(), hold.rights());
    let backend = hold.backend();
    let facts = facts(caller);
    let names = backend.roster().names();
    if may_change(&contract, &rights, &|unit| may_enter(&contract, names, &facts, unit), change) {
        return Ok(());
    }
    let name = name_of(backend, caller);
    let message = match change {
        Change::Transfer { from, .. } => format!(
            "user {name} may not give away tickets of unit `{}`: its members may, and those who govern the unit around it; \
             ask one of them, or root",
            contract.unit(*from).path
        ),
        Change::Offer { bid } => format!(
            "user {name} may not offer tickets of unit `{}`: its members may, and those who govern the unit around it; ask \
             one of them, or root",
            contract.unit(bid.by).path
        ),
        Change::Cancel { number } => format!(
            "user {name} may not take back offer or exchange {number}: the members of its units may, which `commonhold offers` \
             names"
        ),
        _ => format!(
            "user {name} may not change the tickets of unit `{}`: only root and the daemon's own user may, and in a \
             sub-unit that the contract names those who may enter the unit around it and every unit in that; a member may \
             give tickets away with `commonhold tickets give`",
            contract.unit(change.about()[0].0).path
        ),
    };
    Err(refuse(refusal::NOT_ALLOWED, message))
}

/// Whether a user who may enter some units may make a change.
fn may_change(
    contract: &Contract,
    rights: &Rights,
    may_enter: &dyn Fn(UnitId) -> bool,
    change: &Change,
) -> bool {
    let governs = |encloser: UnitId| {
        // Where users have sub-units, one who came first would decide for those who come later.
        let is_users = contract.unit(encloser).each.is_some();
        !is_users && may_enter(encloser) && contract.children(Some(encloser)).all(may_enter)
    };
    let governs_around = |unit: UnitId| contract.unit(unit).parent.is_some_and(governs);
    match *change {
        Change::Set { unit, .. } | Change::Issue { unit, .. } | Change::TakeBack { unit, .. } => {
            governs_around(unit)
        }
        // The currency's: who decides on what it issues. Of the base currency root alone does.
        Change::Fund { of, .. } => of.is_some_and(|of| governs(of)),
        // That the other is a sibling, the rights themselves see to.
        Change::Transfer { from, .. } => may_enter(from) || governs_around(from),
        Change::Exchange { one, other, .. } => governs_around(one) && governs_around(other),
        Change::Offer { bid } => may_enter(bid.by) || governs_around(bid.by),
        // Where there is no such number, the rights themselves say so.
        Change::Cancel { number }
            if !rights.offers().contains_key(&number) && !rights.deals().contains_key(&number) =>
        {
            true
        }
        Change::Cancel { number } => {
            let offer = rights.offers().get(&number).map(|bid| bid.by);
            let legs = rights.deals().get(&number).into_iter().flat_map(|deal| &deal.legs);
            let mut units = offer.into_iter().chain(legs.map(|leg| leg.from));
            units.any(|unit| may_enter(unit) || governs_around(unit))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_policy::rights::Offer;
    use proptest::prelude::*;

    const CPU: Resource = Resource::Cpu;

    /// `top` with `ana` and `bo` in it, and `other`.
    fn contract() -> (Contract, [UnitId; 4]) {
        let mut contract = Contract::default();
        let top = contract.add(None, "top");
        let units =
            [top, contract.add(Some(top), "ana"), contract.add(Some(top), "bo"), contract.add(None, "other")];
        (contract, units)
    }

    fn changes(one: UnitId, other: UnitId) -> [(&'static str, Change); 5] {
        let offer = Offer::tickets(CPU, 1);
        [
            ("set", Change::Set { unit: one, resource: CPU, tickets: 1 }),
            ("issue", Change::Issue { unit: one, resource: CPU, tickets: 1 }),
            ("take back", Change::TakeBack { unit: one, resource: CPU, tickets: 1 }),
            ("transfer", Change::Transfer { from: one, to: other, resource: CPU, tickets: 1 }),
            ("exchange", Change::Exchange { one, other, gives: offer, gets: offer }),
        ]
    }

    fn allowed(contract: &Contract, enters: &[UnitId], one: UnitId, other: UnitId) -> Vec<&'static str> {
        let rights = Rights::new(contract);
        let may = |(_, change): &(&str, Change)| {
            may_change(contract, &rights, &|unit| enters.contains(&unit), change)
        };
        changes(one, other).iter().filter(|it| may(it)).map(|(name, _)| *name).collect()
    }

    #[test]
    fn a_member_gives_and_takes_nothing() {
        let (contract, [top, ana, bo, other]) = contract();
        let all = ["set", "issue", "take back", "transfer", "exchange"];
        for (enters, one, two, may) in [
            // Each user has a sub-unit: ana is a member of the encloser, too.
            (&[top, ana][..], ana, bo, &["transfer"][..]),
            (&[top, ana], bo, ana, &[]),
            // Everybody of `top` may enter all that is in it.
            (&[top, ana, bo], ana, bo, &all),
            // Nobody but root governs the top level.
            (&[top, ana, bo, other], top, other, &["transfer"]),
            (&[ana, bo], ana, bo, &["transfer"]),
            (&[other], ana, bo, &[]),
        ] {
            assert_eq!(allowed(&contract, enters, one, two), may, "{enters:?} {one:?} {two:?}");
        }
    }

    /// Ana is the only user who came so far: what Bo is to have is not hers.
    #[test]
    fn the_first_user_does_not_decide_for_the_next() {
        let mut contract = Contract::default();
        let all = contract.add(None, "all");
        let (ana, other) = (contract.add(Some(all), "ana"), contract.add(None, "other"));
        assert_eq!(
            allowed(&contract, &[all, ana], ana, other).len(),
            4,
            "she governs a unit that is hers alone"
        );
        contract.units[all.index()].each = Some(commonhold_contract::Each::User);
        assert_eq!(allowed(&contract, &[all, ana], ana, other), ["transfer"]);
    }

    proptest! {
        /// Nobody changes a unit that he may not enter, and without entering its encloser nobody does but give.
        #[test]
        fn nobody_reaches_what_he_may_not_enter(enters in proptest::collection::btree_set(2u32..6, 0..4)) {
            let (contract, units) = contract();
            let enters: Vec<UnitId> = enters.into_iter().map(UnitId).collect();
            for (one, other) in units.into_iter().flat_map(|one| units.map(|other| (one, other))) {
                for name in allowed(&contract, &enters, one, other) {
                    prop_assert!(enters.contains(&one), "{name} of {one:?} with {enters:?}");
                    prop_assert!(name == "transfer" || contract.unit(one).parent.is_some_and(|it| enters.contains(&it)));
                }
            }
        }
    }
}
