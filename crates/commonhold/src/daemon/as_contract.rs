//! Writes the rights in force as a contract, for `commonhold tickets --as-contract`. The contract has the
//! tickets as they were changed. Its comments list the rights that no contract can express.
//!
//! Property (tested): under the written contract, units have the rights that they will have here once all
//! exchanges have ended.

use commonhold_contract::{Contract, PerResource, Resource, UnitId, write};
use commonhold_policy::rights::Rights;
use commonhold_report::tickets::Expected;
use commonhold_report::words;

use super::requests::{About, Answered, reply};
use super::session::Session;
use crate::protocol::ContractReply;

/// Answers with the contract's text: comments about the rights that it cannot express, then the contract.
pub(super) fn answer(session: &Session, about: &About) -> Answered {
    let rights = session.rights();
    let mut above = vec![
        format!(
            "What is in force, written by `commonhold tickets --as-contract`: {} with the tickets as",
            about.contract_path
        ),
        "they were changed since. Comments of that file are not in it.".to_owned(),
    ];
    above.extend(inexpressible(session.contract(), &rights, &session.expected()));
    for (resource, (unit, of, tickets)) in Resource::ALL
        .into_iter()
        .flat_map(|resource| rights.funded(resource).map(move |fund| (resource, fund)))
    {
        let path = |unit: UnitId| &*session.contract().unit(unit).path;
        let (unit, from) = (path(unit), of.map_or("/", path));
        above.push(format!(
            "Not in it: {unit} holds {tickets} {resource} tickets of another currency. To restore it:\n  commonhold fund {unit} \
             {resource}={tickets} --from {from}"
        ));
    }
    for exchange in session.statement().exchanges.iter().filter(|exchange| exchange.ended_ns.is_none()) {
        let legs: Vec<String> = exchange
            .lent
            .iter()
            .map(|leg| format!("{} lends {} to {}", leg.from, words::much(leg.what), leg.to))
            .collect();
        above.push(format!(
            "Not in it: exchange {}: {}. Each unit's own tickets are below.",
            exchange.number,
            legs.join(", ")
        ));
    }
    let offers = rights.offers().len();
    if offers > 0 {
        above.push(format!("Not in it: open offers: {offers}. `commonhold offers` shows them."));
    }
    reply(&ContractReply { contract: write(&in_force(session.contract(), &rights), &above) })
}

/// The contract with each unit's present tickets in place of the contract's numbers. Tickets lent in an
/// exchange count for the unit that lends them.
fn in_force(contract: &Contract, rights: &Rights) -> Contract {
    let mut in_force = contract.clone();
    for id in contract.held() {
        let mut tickets = PerResource::default();
        for resource in Resource::ALL {
            tickets[resource] = rights.tickets(id, resource);
        }
        in_force.units[id.index()].tickets = tickets;
    }
    in_force
}

/// Comments about tickets that a contract cannot state: changed tickets of units that `each` made, since a
/// contract cannot name these units, and tickets that a unit will have later.
fn inexpressible(contract: &Contract, rights: &Rights, expected: &[Expected]) -> Vec<String> {
    let is_made_by_each =
        |id: &UnitId| contract.unit(*id).parent.is_some_and(|parent| contract.unit(parent).each.is_some());
    let mut lines = Vec::new();
    for id in contract.listed().into_iter().filter(is_made_by_each) {
        let unit = contract.unit(id);
        for resource in Resource::ALL {
            let (tickets, usual) = (rights.tickets(id, resource), unit.tickets[resource]);
            if tickets != usual {
                let unit = &unit.path;
                lines.push(format!(
                    "Not in it, since `each` makes {unit}: {tickets} {resource} tickets instead of {usual}. To restore it:\n  \
                     commonhold fund {unit} {resource}={tickets}"
                ));
            }
        }
    }
    lines.extend(expected.iter().map(|expected| format!("Not in it: {}.", expected.line())));
    lines
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::{Amount, Each, parse};
    use commonhold_policy::rights::{Change, How, TICKETS_MAX};
    use proptest::prelude::*;

    /// Parses the text; returns its rights and its contract.
    fn read(text: &str) -> (Contract, Rights) {
        let parsed = parse(text);
        let contract = parsed.contract.unwrap_or_else(|| panic!("{text}\n{:#?}", parsed.diagnostics));
        let rights = Rights::new(&contract);
        (contract, rights)
    }

    fn any_change(units: u32) -> impl Strategy<Value = Change> {
        let resource = || proptest::sample::select(Resource::ALL.to_vec());
        let tickets = || prop_oneof![1u64..300, 1..=TICKETS_MAX];
        (0..4, 2..2 + units, 2..2 + units, resource(), resource(), tickets(), tickets()).prop_map(
            |(kind, unit, to, resource, other, tickets, more)| {
                let (unit, to) = (UnitId(unit), UnitId(to));
                let mut several = PerResource::default();
                (several[resource], several[other]) = (Some(tickets), Some(more));
                match kind {
                    0 => Change::Several { unit, how: How::Set, tickets: several },
                    1 => Change::Several { unit, how: How::Issue, tickets: several },
                    2 => Change::Several { unit, how: How::TakeBack, tickets: several },
                    _ => Change::Transfer { from: unit, to, resource, tickets },
                }
            },
        )
    }

    proptest! {
        /// After any changes, the rendered contract is valid, and gives each unit the same rights.
        #[test]
        fn rights_are_the_same_under_what_is_written(
            units in proptest::collection::vec((any::<prop::sample::Index>(), 1u64..500, 0u64..100_000), 1..8),
            changes in proptest::collection::vec(any_change(8), 0..30),
            there in proptest::collection::vec(any::<bool>(), 8),
        ) {
            let mut contract = Contract::default();
            let mut enclosers = vec![None];
            for (n, (encloser, tickets, hard)) in units.iter().enumerate() {
                let id = contract.add(*encloser.get(&enclosers), &format!("u{n}"));
                enclosers.push(Some(id));
                contract.units[id.index()].tickets.cpu = *tickets;
                contract.units[id.index()].hard.disk = Some(Amount::Part(*hard));
            }
            let mut rights = Rights::new(&contract);
            // A refused change has no effect.
            for change in changes {
                let _ = rights.apply(change);
            }
            let (now, mut again) = read(&write(&in_force(&contract, &rights), &[]));
            prop_assert_eq!(now.held().count(), contract.held().count());
            let pairs: Vec<(UnitId, UnitId)> =
                contract.held().map(|id| (id, now.find(&contract.unit(id).path).unwrap())).collect();
            for ((id, same), there) in pairs.iter().zip(there) {
                rights.set_present(*id, there).unwrap();
                again.set_present(*same, there).unwrap();
            }
            for (id, same) in pairs {
                for resource in Resource::ALL {
                    prop_assert_eq!(again.tickets(same, resource), rights.tickets(id, resource));
                    prop_assert_eq!(again.value(same, resource), rights.value(id, resource));
                }
            }
        }
    }

    #[test]
    fn rights_that_no_contract_can_express_are_comments() {
        let mut contract = Contract::default();
        let all = contract.add(None, "all");
        contract.units[all.index()].each = Some(Each::User);
        let ana = contract.add(Some(all), "ana");
        let mut rights = Rights::new(&contract);
        rights.issue(ana, Resource::Cpu, 7).unwrap();
        let when = "instead of 100, once its user has processes".to_owned();
        let expected = Expected { unit: "all/bo".to_owned(), resource: Resource::Disk, tickets: 9, when };
        let lines = inexpressible(&contract, &rights, &[expected]);
        let text = write(&in_force(&contract, &rights), &lines);
        let said = "\
# Not in it, since `each` makes all/ana: 107 cpu tickets instead of 100. To restore it:
#   commonhold fund all/ana cpu=107
# Not in it: all/bo: 9 disk tickets instead of 100, once its user has processes.
version = 1

[unit.all]
each = \"user\"
";
        assert_eq!(text, said);
        read(&text);
    }
}
