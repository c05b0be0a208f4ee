//! Handles clients' requests to change rights, and to show tickets, offers and exchanges.
//!
//! A change has three stages here. [`queue`] resolves the names of units, checks that the caller may make the
//! change, and persists and queues it. The next turn of the control loop makes or refuses it. Then
//! [`outcome`] answers the client. The stages within the turn are listed in `policy/rights/change.rs`.
//!
//! The rules of authority. Every unit is a currency: its tickets divide the unit's worth among the units
//! directly in it.
//!
//! - Root and the daemon's own user may change everything. The tickets of outermost units are of the
//!   machine's own currency, which belongs to root. So other users can only give or offer such tickets.
//! - A user who *governs* a unit may change the tickets of the units directly in it, in any way. If a unit
//!   has an *owner*, only the owner governs it. The owner is the `owner` that the contract names for the
//!   unit, or else for the nearest enclosing unit. If a sub-unit names an owner of its own, the outer owner
//!   decides how much the sub-unit is worth, but not how it is divided.
//! - A unit without any owner is governed by the users who may enter both this unit and every unit directly
//!   in it. Membership of the unit alone does not suffice, since other users' sub-units may be in it. If
//!   `each` makes the sub-units, only root and the daemon's user govern the unit: otherwise the first user
//!   could decide for users who come later.
//! - The `owner` that the contract names for a unit may give the unit's tickets to a sibling, or offer them.
//!   If the contract names none for this unit, the unit's members may do so, even if the unit inherits an
//!   owner. The users who govern the enclosing unit may always do so.

use commonhold_client::Why;
use commonhold_client::wire::{Asked, Refusal};
use commonhold_contract::{Contract, Member, PerResource, Resource, UnitId};
use commonhold_ledger::Exchange;
use commonhold_policy::membership::{is_owners, may_enter, owner_of};
use commonhold_policy::rights::{Bid, Change, Offer, Refused, Rights, TICKETS_MAX, Trade};
use commonhold_report::currency::Currency;
use commonhold_report::exchanges::Standing;
use commonhold_report::tickets::{Lot, Tickets};
use commonhold_report::words;

use super::clients::Caller;
use super::holdings;
use super::requests::{Answered, facts, is_privileged, name_of, refuse, reply, unit_of};
use super::session::Session;
use crate::protocol::{Awaited, OffersReply, TicketsReply, how_of_wire, numbers_of_wire, of_wire};

/// Answers with every unit's tickets of every resource.
pub(super) fn all(session: &mut Session) -> Answered {
    let rights = session.rights();
    let rows = |unit: UnitId| Resource::ALL.map(|resource| row(session, &rights, unit, resource));
    reply(&TicketsReply {
        offer: None,
        exchange: None,
        tickets: session.contract().listed().into_iter().flat_map(rows).collect(),
        expected: session.expected(),
        lots: lots(session.contract(), &rights, |_| true),
        not_held: holdings::of_those_not_held(session),
    })
}

/// Answers with a unit as a currency.
pub(super) fn currency(session: &mut Session, path: &str) -> Answered {
    let unit = unit_of(session, path, "shown as a currency")?;
    let rights = session.rights();
    let contract = session.contract();
    let encloser = contract.unit(unit).parent;
    let rows = |unit: UnitId| Resource::ALL.map(|resource| row(session, &rights, unit, resource));
    let by_resource = |amount: &dyn Fn(Resource) -> u64| {
        let mut amounts = PerResource::default();
        for resource in Resource::ALL {
            amounts[resource] = amount(resource);
        }
        amounts
    };
    let inside = contract.listed().into_iter().filter(|id| contract.unit(*id).parent == Some(unit));
    let issued: Vec<Tickets> = inside.flat_map(rows).collect();
    let is_in = |exchange: &Exchange| exchange.lent.iter().any(|leg| leg.from == path || leg.to == path);
    let mut exchanges = session.statement().exchanges;
    exchanges.retain(|exchange| exchange.ended_ns.is_none() && is_in(exchange));
    let currency = Currency {
        unit: path.to_owned(),
        encloser: encloser.map(|encloser| contract.unit(encloser).path.clone()),
        governors: governors(contract, Some(unit)),
        funding: rows(unit).to_vec(),
        issued_around: by_resource(&|resource| rights.issued(encloser, resource)),
        worth_around: by_resource(&|resource| {
            encloser.map_or_else(
                || session.whole(resource),
                |encloser| session.worth(&rights, encloser, resource),
            )
        }),
        own: by_resource(&|resource| rights.own_tickets(Some(unit), resource)),
        own_worth: by_resource(&|resource| session.own_worth(&rights, unit, resource)),
        issued,
        lots: lots(contract, &rights, |id| id == unit),
        exchanges,
        not_held: Vec::new(),
    };
    reply(&Currency { not_held: holdings::of_those_not_held(session), ..currency })
}

/// The lots that concern the selected units: those that such a unit holds, and those of such a unit's
/// currency.
pub(super) fn lots(contract: &Contract, rights: &Rights, is_selected: impl Fn(UnitId) -> bool) -> Vec<Lot> {
    let path = |unit: UnitId| contract.unit(unit).path.clone();
    let all = Resource::ALL.into_iter().flat_map(|resource| rights.lots(resource));
    let selected = all.filter(|(holder, of, _)| is_selected(*holder) || of.is_some_and(&is_selected));
    selected.map(|(holder, of, what)| Lot { unit: path(holder), of: of.map(path), what }).collect()
}

/// The tickets whose number differs from the contract's, and the tickets of units in exchanges.
pub(super) fn changed(session: &Session) -> Vec<Tickets> {
    let rights = session.rights();
    let rows = |unit: UnitId| Resource::ALL.map(|resource| row(session, &rights, unit, resource));
    let listed = session.contract().listed().into_iter().flat_map(rows);
    listed.filter(|row| row.is_changed() || row.lent > 0 || row.got > 0).collect()
}

/// Answers with the open offers, and the exchanges.
pub(super) fn offers(session: &Session) -> Answered {
    let rights = session.rights();
    let path = |unit: UnitId| session.contract().unit(unit).path.clone();
    let standing = |(number, bid): (&u64, &Bid)| Standing {
        number: *number,
        unit: path(bid.by),
        gives: bid.gives,
        wants: bid.wants,
        with: bid.with.map(path),
        for_ns: bid.for_ns,
        at_least: bid.at_least,
        waits: rights.waits(*number).map(|why| words::waits(session.contract(), why)),
    };
    let offers = rights.offers().iter().map(standing).collect();
    let statement = session.statement();
    reply(&OffersReply {
        offers,
        exchanges: statement.exchanges,
        negotiated: statement.negotiated,
        elapsed_ns: statement.elapsed_ns,
    })
}

/// A unit's tickets of a resource: the contract's number, the present one with exchanges, and their worth.
fn row(session: &Session, rights: &Rights, unit: UnitId, resource: Resource) -> Tickets {
    let in_contract = session.contract().unit(unit);
    let (lent, got) = rights.lent_and_borrowed(unit, resource);
    Tickets {
        unit: in_contract.path.clone(),
        resource,
        contract: in_contract.tickets[resource],
        tickets: (rights.tickets(unit, resource) + got).saturating_sub(lent),
        lent,
        got,
        entitled: session.worth(rights, unit, resource),
        active: rights.is_active(unit, resource),
    }
}

/// Resolves, authorises, persists and queues a client's change. The next turn makes or refuses it.
pub(super) fn queue(session: &mut Session, caller: &Caller, asked: &Asked) -> Result<Change, Refusal> {
    let change = resolve(session, asked)?;
    authorise(session, caller, &change)?;
    session.queue_change(change).map_err(|e| refuse(&Why::Failed, format!("nothing was changed: {e}")))?;
    Ok(change)
}

/// The present state of an open offer or an exchange in force.
pub(super) fn present_state(session: &Session, number: u64) -> Result<Awaited, Refusal> {
    let rights = session.rights();
    if rights.offers().contains_key(&number) {
        return Ok(Awaited::Stands);
    }
    if rights.deals().contains_key(&number) {
        return Ok(Awaited::InForce);
    }
    Err(refuse(&Why::NoSuchOffer, words::refused(session.contract(), Refused::NoOffer { number })))
}

/// Answers a queued change after the turn that decided about it: with the affected tickets, or with a
/// refusal.
pub(super) fn outcome(session: &mut Session, asked: &Asked) -> Answered {
    let change = resolve(session, asked)?;
    let Some(decided) = session.decided().iter().rev().find(|decided| decided.change == change) else {
        let message = "not made yet: the last turn of the daemon failed. It is kept, and the next turn that does not fail \
                       makes it; `commonhold status` says what failed, and `commonhold tickets` whether it was made";
        return Err(refuse(&Why::Failed, message.to_owned()));
    };
    if let Some(why) = decided.refused {
        let name = match why {
            Refused::Unknown { .. } => Why::NoSuchUnit,
            Refused::TooFew { .. } => Why::TooFewTickets,
            Refused::TooMany { .. } => Why::TooManyTickets,
            Refused::Enclosers { .. } => Why::NotSiblings,
            Refused::Itself { .. } => Why::SameUnit,
            Refused::Lent { .. } => Why::TicketsLent,
            Refused::NoExchange { .. } => Why::NoExchange,
            Refused::NotReserved { .. } => Why::NotReserved,
            Refused::InUse { .. } => Why::MemoryInUse,
            Refused::Loop { .. } => Why::Loop,
            Refused::TooManyOffers | Refused::TooManyOffersOfUnit { .. } => Why::TooManyOffers,
            Refused::NoOffer { .. } | Refused::NumberTaken { .. } => Why::NoSuchOffer,
        };
        return Err(refuse(&name, words::refused(session.contract(), why)));
    }
    let rights = session.rights();
    let (offer, exchange) = offer_and_exchange(session.traded(), &change);
    let affected = affected(session.traded(), &change);
    let tickets: Vec<Tickets> =
        affected.iter().map(|(unit, resource)| row(session, &rights, *unit, *resource)).collect();
    let mut not_held = holdings::of_those_not_held(session);
    not_held.retain(|holding| tickets.iter().any(|row| row.resource.name() == holding.resource));
    let lots = lots(session.contract(), &rights, |unit| affected.iter().any(|(other, _)| *other == unit));
    reply(&TicketsReply { offer, exchange, tickets, expected: Vec::new(), lots, not_held })
}

/// Resolves unit paths to numbers and parses amounts.
fn resolve(session: &Session, asked: &Asked) -> Result<Change, Refusal> {
    let unit = |path: &str| unit_of(session, path, "given tickets");
    let amount = |text: &str| {
        let invalid = |e| refuse(&Why::InvalidParameter, format!("`{text}` is no offer: {e}"));
        text.parse::<Offer>().map_err(invalid)
    };
    Ok(match asked {
        Asked::Set { unit: path, resource, tickets } => {
            Change::Set { unit: unit(path)?, resource: of_wire(*resource), tickets: *tickets }
        }
        Asked::Issue { unit: path, resource, tickets } => {
            Change::Issue { unit: unit(path)?, resource: of_wire(*resource), tickets: *tickets }
        }
        Asked::TakeBack { unit: path, resource, tickets } => {
            Change::TakeBack { unit: unit(path)?, resource: of_wire(*resource), tickets: *tickets }
        }
        Asked::Several { unit: path, how, tickets } => {
            let unit = unit(path)?;
            let tickets = numbers_of_wire(*tickets);
            check_numbers(tickets, 1)?;
            Change::Several { unit, how: how_of_wire(*how), tickets }
        }
        Asked::Transfer { from, to, resource, tickets } => {
            let (from, to) = (unit(from)?, unit(to)?);
            Change::Transfer { from, to, resource: of_wire(*resource), tickets: *tickets }
        }
        Asked::Exchange { one, other, gives, gets } => {
            let (one, other) = (unit(one)?, unit(other)?);
            Change::Exchange { one, other, gives: amount(gives)?, gets: amount(gets)? }
        }
        Asked::Fund { unit: path, of, tickets } => {
            let (unit, of) = (unit(path)?, of.as_deref().map(unit).transpose()?);
            let tickets = numbers_of_wire(*tickets);
            check_numbers(tickets, 0)?;
            Change::Fund { unit, of, tickets }
        }
        // With `while_connected`, `HeldOffers` takes the offer back when the connection closes.
        Asked::Offer { unit: path, gives, wants, with, for_ns, at_least, while_connected } => {
            let with = with.as_deref().map(unit).transpose()?;
            let (by, gives, wants) = (unit(path)?, amount(gives)?, amount(wants)?);
            let at_least = at_least.as_deref().map(amount).transpose()?;
            Change::Offer {
                bid: Bid { by, gives, wants, with, for_ns: *for_ns, at_least, bound: *while_connected },
            }
        }
        Asked::Cancel { number } => Change::Cancel { number: *number },
    })
}

/// Checks numbers of tickets: at least one resource, each number in `least..=TICKETS_MAX`.
fn check_numbers(tickets: PerResource<Option<u64>>, least: u64) -> Result<(), Refusal> {
    let named = Resource::ALL.into_iter().filter_map(|resource| Some((resource, tickets[resource]?)));
    let numbers: Vec<(Resource, u64)> = named.collect();
    if numbers.is_empty() {
        let message = "tickets of no resource are named; write at least one, such as {\"cpu\": 200}";
        return Err(refuse(&Why::InvalidParameter, message.to_owned()));
    }
    match numbers.into_iter().find(|(_, tickets)| !(least..=TICKETS_MAX).contains(tickets)) {
        Some((resource, tickets)) => {
            let message =
                format!("{tickets} {resource} tickets are out of range; write {least} to {TICKETS_MAX}");
            Err(refuse(&Why::InvalidParameter, message))
        }
        None => Ok(()),
    }
}

/// The number that an offer got at the last turn, and the number of the exchange that served the offer at
/// that turn, if any.
fn offer_and_exchange(traded: &[Trade], change: &Change) -> (Option<u64>, Option<u64>) {
    let Change::Offer { bid: queued } = change else { return (None, None) };
    let offer = traded.iter().rev().find_map(|trade| match trade {
        Trade::Offered { offer, bid } if bid == queued => Some(*offer),
        _ => None,
    });
    let exchange = traded.iter().find_map(|trade| match trade {
        Trade::Made { deal, offers, .. } if offer.is_some_and(|offer| offers.contains(&offer)) => Some(*deal),
        _ => None,
    });
    (offer, exchange)
}

/// The units and resources whose tickets a change affected. For an offer or a cancellation, these are the
/// tickets that an exchange moved at the last turn.
fn affected(traded: &[Trade], change: &Change) -> Vec<(UnitId, Resource)> {
    let moved = |deal: u64| {
        let exchange = traded.iter().find_map(|trade| match trade {
            Trade::Made { deal: number, what, .. } | Trade::Undone { deal: number, what, .. }
                if *number == deal =>
            {
                Some(what)
            }
            _ => None,
        });
        let legs = exchange.into_iter().flat_map(|deal| &deal.legs);
        legs.flat_map(|leg| [(leg.from, leg.what.resource), (leg.to, leg.what.resource)]).collect()
    };
    match change {
        Change::Offer { .. } => offer_and_exchange(traded, change).1.map_or_else(Vec::new, moved),
        Change::Cancel { number } => moved(*number),
        _ => change.about(),
    }
}

/// Refuses a change that the caller may not make. The message names the users who may.
fn authorise(session: &mut Session, caller: &Caller, change: &Change) -> Result<(), Refusal> {
    if is_privileged(caller) {
        return Ok(());
    }
    let (contract, rights) = (session.contract().clone(), session.rights());
    let backend = session.backend();
    let facts = facts(caller);
    let names = backend.roster().names();
    let user = User {
        may_enter: &|unit| may_enter(&contract, names, &facts, unit),
        is_owners: &|owner| is_owners(names, &facts, owner),
    };
    if may_change(&contract, &rights, &user, change) {
        return Ok(());
    }
    let name = name_of(backend, caller);
    let message = match change {
        Change::Transfer { from, .. } => {
            let (unit, who) = (&contract.unit(*from).path, givers(&contract, *from));
            format!(
                "user {name} may not give away tickets of unit `{unit}`: {who} may; ask one of them, or root"
            )
        }
        Change::Offer { bid } => {
            let (unit, who) = (&contract.unit(bid.by).path, givers(&contract, bid.by));
            format!("user {name} may not offer tickets of unit `{unit}`: {who} may; ask one of them, or root")
        }
        Change::Cancel { number } => format!(
            "user {name} may not take back offer or exchange {number}: those may who may offer its units' tickets, which \
             `commonhold offers` names"
        ),
        Change::Fund { of, .. } => format!(
            "user {name} may not issue tickets of {}: {} may",
            of.map_or("the machine's own currency".to_owned(), |of| format!(
                "unit `{}`",
                contract.unit(of).path
            )),
            governors(&contract, *of),
        ),
        _ => {
            let unit = change.about()[0].0;
            format!(
                "user {name} may not change the tickets of unit `{}`: {} may; {} may give its tickets away with `commonhold \
                 tickets give`, or offer them",
                contract.unit(unit).path,
                governors(&contract, contract.unit(unit).parent),
                givers(&contract, unit),
            )
        }
    };
    Err(refuse(&Why::NotAllowed, message))
}

/// The users who govern a unit, in words; with `None`, those who govern the machine's own currency.
pub(super) fn governors(contract: &Contract, unit: Option<UnitId>) -> String {
    let Some(unit) = unit else { return "root and the daemon's own user".to_owned() };
    match owner_of(contract, unit) {
        Some(owner) => format!("root and the owner of `{}`, {},", contract.unit(unit).path, owner.kind),
        None if contract.unit(unit).each.is_some() => "root and the daemon's own user".to_owned(),
        None => format!("root and those who may enter `{}` and every unit in it", contract.unit(unit).path),
    }
}

/// The users who may give and offer a unit's tickets, in words, without those who govern its parent.
fn givers(contract: &Contract, unit: UnitId) -> String {
    match &contract.unit(unit).owner {
        Some(owner) => format!("its owner, {},", owner.kind),
        None => "its members".to_owned(),
    }
}

/// A user, by the two questions that authorisation asks about users.
struct User<'a> {
    /// Whether the user may enter a unit.
    may_enter: &'a dyn Fn(UnitId) -> bool,
    /// Whether the user is a given owner, or in the group that is the owner.
    is_owners: &'a dyn Fn(&Member) -> bool,
}

impl User<'_> {
    /// Whether the user may change the tickets of the units directly in a unit.
    fn governs(&self, contract: &Contract, unit: UnitId) -> bool {
        match owner_of(contract, unit) {
            Some(owner) => (self.is_owners)(owner),
            // If `each` makes a sub-unit for each user, the first user could decide for users who come later.
            None if contract.unit(unit).each.is_some() => false,
            None => (self.may_enter)(unit) && contract.children(Some(unit)).all(self.may_enter),
        }
    }

    /// Whether the user may change a unit's tickets.
    fn governs_parent(&self, contract: &Contract, unit: UnitId) -> bool {
        contract.unit(unit).parent.is_some_and(|encloser| self.governs(contract, encloser))
    }

    /// Whether the user may give a unit's tickets away, or offer them.
    fn may_give(&self, contract: &Contract, unit: UnitId) -> bool {
        let is_owner_or_member = match &contract.unit(unit).owner {
            Some(owner) => (self.is_owners)(owner),
            None => (self.may_enter)(unit),
        };
        is_owner_or_member || self.governs_parent(contract, unit)
    }
}

/// Whether a user may make a change.
fn may_change(contract: &Contract, rights: &Rights, user: &User<'_>, change: &Change) -> bool {
    match *change {
        Change::Set { unit, .. }
        | Change::Issue { unit, .. }
        | Change::TakeBack { unit, .. }
        | Change::Several { unit, .. } => user.governs_parent(contract, unit),
        // The users who govern the issuing currency decide; for the machine's own currency, only root.
        Change::Fund { of, .. } => of.is_some_and(|of| user.governs(contract, of)),
        // `Rights` checks that the receiver is a sibling.
        Change::Transfer { from, .. } => user.may_give(contract, from),
        Change::Exchange { one, other, .. } => {
            user.governs_parent(contract, one) && user.governs_parent(contract, other)
        }
        Change::Offer { bid } => user.may_give(contract, bid.by),
        // Only the daemon itself resumes exchanges and offers, when it starts.
        Change::Resume { .. } => false,
        // `Rights` reports an unknown number.
        Change::Cancel { number }
            if !rights.offers().contains_key(&number) && !rights.deals().contains_key(&number) =>
        {
            true
        }
        Change::Cancel { number } => {
            let offer = rights.offers().get(&number).map(|bid| bid.by);
            let legs = rights.deals().get(&number).into_iter().flat_map(|deal| &deal.legs);
            let mut units = offer.into_iter().chain(legs.map(|leg| leg.from));
            units.any(|unit| user.may_give(contract, unit))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::{MemberKind, Principal};
    use commonhold_policy::rights::How;
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

    fn changes(one: UnitId, other: UnitId) -> [(&'static str, Change); 6] {
        let offer = Offer::tickets(CPU, 1);
        [
            ("set", Change::Set { unit: one, resource: CPU, tickets: 1 }),
            ("issue", Change::Issue { unit: one, resource: CPU, tickets: 1 }),
            ("take back", Change::TakeBack { unit: one, resource: CPU, tickets: 1 }),
            ("several", Change::Several { unit: one, how: How::Set, tickets: PerResource::all(Some(1)) }),
            ("transfer", Change::Transfer { from: one, to: other, resource: CPU, tickets: 1 }),
            ("exchange", Change::Exchange { one, other, gives: offer, gets: offer }),
        ]
    }

    fn allowed(contract: &Contract, enters: &[UnitId], one: UnitId, other: UnitId) -> Vec<&'static str> {
        allowed_to(contract, 0, enters, one, other)
    }

    /// A caller with this user number.
    fn allowed_to(
        contract: &Contract,
        uid: u32,
        enters: &[UnitId],
        one: UnitId,
        other: UnitId,
    ) -> Vec<&'static str> {
        let rights = Rights::new(contract);
        let caller = User {
            may_enter: &|unit| enters.contains(&unit),
            is_owners: &|owner| owner.kind == user_member(uid),
        };
        let is_allowed = |(_, change): &&(&str, Change)| may_change(contract, &rights, &caller, change);
        changes(one, other).iter().filter(is_allowed).map(|(name, _)| *name).collect()
    }

    fn user_member(uid: u32) -> MemberKind {
        MemberKind::User(Principal::Id(uid))
    }

    fn own(contract: &mut Contract, unit: UnitId, uid: u32) {
        contract.units[unit.index()].owner = Some(Member { kind: user_member(uid), span: 0..0 });
    }

    /// User 7 owns `top` and user 8 `top/ana`; `top/bo` has no owner. Each has sub-units.
    #[test]
    fn an_owner_decides_in_its_own_currency_and_in_no_other() {
        let (mut contract, [top, ana, bo, other]) = contract();
        let [a1, a2, b1, b2] = [(ana, "1"), (ana, "2"), (bo, "1"), (bo, "2")]
            .map(|(encloser, name)| contract.add(Some(encloser), name));
        own(&mut contract, top, 7);
        own(&mut contract, ana, 8);
        let every = [top, ana, bo, other, a1, a2, b1, b2];
        let all = ["set", "issue", "take back", "several", "transfer", "exchange"];
        for (uid, enters, one, two, may) in [
            // The owner of `top`, who may enter no unit, changes its direct sub-units, and gives its own
            // tickets.
            (7, &[][..], ana, bo, &all[..]),
            (7, &[], top, other, &["transfer"]),
            // Ana governs her own sub-units; `bo` has no owner, so that of `top` governs it.
            (7, &[], a1, a2, &[]),
            (7, &[], b1, b2, &all),
            (8, &[], a1, a2, &all),
            (8, &[], ana, bo, &["transfer"]),
            (8, &[], b1, b2, &[]),
            (8, &[], top, other, &[]),
            // With an owner, membership everywhere does not suffice: members may only give tickets of units
            // without their own owner.
            (9, &every, ana, bo, &[]),
            (9, &every, bo, ana, &["transfer"]),
            (9, &every, b1, b2, &["transfer"]),
            (9, &every, top, other, &[]),
            (9, &every, other, top, &["transfer"]),
        ] {
            assert_eq!(allowed_to(&contract, uid, enters, one, two), may, "{uid} {one:?} {two:?}");
        }
        // An owner governs even sub-units made by `each`, because the contract names it.
        contract.units[top.index()].each = Some(commonhold_contract::Each::User);
        assert_eq!(allowed_to(&contract, 7, &[], ana, bo), all);
        contract.units[top.index()].owner = None;
        assert_eq!(
            allowed_to(&contract, 7, &[], ana, bo),
            [""; 0],
            "the owner's rights end when the contract no longer names the owner"
        );
    }

    #[test]
    fn a_member_gives_and_takes_nothing() {
        let (contract, [top, ana, bo, other]) = contract();
        let all = ["set", "issue", "take back", "several", "transfer", "exchange"];
        for (enters, one, two, may) in [
            // Each user has a sub-unit; ana is a member of the encloser, too.
            (&[top, ana][..], ana, bo, &["transfer"][..]),
            (&[top, ana], bo, ana, &[]),
            // All members of `top` may enter all of its sub-units.
            (&[top, ana, bo], ana, bo, &all),
            // Only root governs the top level.
            (&[top, ana, bo, other], top, other, &["transfer"]),
            (&[ana, bo], ana, bo, &["transfer"]),
            (&[other], ana, bo, &[]),
        ] {
            assert_eq!(allowed(&contract, enters, one, two), may, "{enters:?} {one:?} {two:?}");
        }
    }

    /// Ana is the only user so far, and still may not decide on Bo's tickets.
    #[test]
    fn the_first_user_does_not_decide_for_the_next() {
        let mut contract = Contract::default();
        let all = contract.add(None, "all");
        let (ana, other) = (contract.add(Some(all), "ana"), contract.add(None, "other"));
        assert_eq!(
            allowed(&contract, &[all, ana], ana, other).len(),
            5,
            "she governs a unit that is hers alone"
        );
        contract.units[all.index()].each = Some(commonhold_contract::Each::User);
        assert_eq!(allowed(&contract, &[all, ana], ana, other), ["transfer"]);
    }

    proptest! {
        /// A user changes only units that it may enter, and may only give tickets if it may not enter the
        /// encloser.
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
