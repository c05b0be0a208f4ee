//! Changes of rights in a workload: what is changed when, and whether it can be.
//!
//! The tickets of units depend on the contract and on earlier changes alone. So a change that would be refused is an
//! error of the workload, and none is refused while the machine runs.

use commonhold_contract::document::{Document, Named};
use commonhold_contract::quantity::duration_text;
use commonhold_contract::{Contract, Diagnostic, Resource, UnitId};
use commonhold_policy::rights::{Change, Refused, Rights, TICKETS_MAX};
use toml::de::DeTable;

use super::keys::{CHANGE, RESOURCES};
use super::model::RightsChange;
use super::values::{Span, missing, number};
use super::workload::unit;
use crate::Time;

/// Reads the tables `[change.NAME]`, and says which of them would be refused. In the order in which they are made.
pub(super) fn read(
    document: &mut Document,
    tables: &[(Named, &DeTable)],
    contract: &Contract,
    horizon_ns: Time,
) -> Vec<RightsChange> {
    let mut changes: Vec<(RightsChange, Span)> =
        tables.iter().filter_map(|(named, table)| change(document, named, table, contract)).collect();
    // Of those at the same time, the first in the text comes first.
    changes.sort_by_key(|(change, _)| change.at_ns);
    let mut rights = Rights::default();
    rights.follow(contract);
    for (change, at) in &changes {
        if change.at_ns >= horizon_ns {
            let [made, end] = [change.at_ns, horizon_ns].map(duration_text);
            let message = format!("the change would be made at {made}, and the simulation ends at {end}");
            let help = "write a later `horizon`, or an earlier `at`";
            document.report(Diagnostic::error("never-starts", at.clone(), message).help(help));
        }
        if let Err(why) = rights.apply(change.change) {
            document.report(refused(contract, at.clone(), why));
        }
    }
    changes.into_iter().map(|(change, _)| change).collect()
}

/// `None` if something is missing.
fn change(
    document: &mut Document,
    named: &Named,
    table: &DeTable,
    contract: &Contract,
) -> Option<(RightsChange, Span)> {
    let (mut from, mut to, mut gives, mut resource, mut tickets) = (None, None, false, None, None);
    let mut at_ns = 0;
    let mut said = [("unit", "\"physics\"", false), ("resource", "\"cpu\"", false), ("tickets", "50", false)];
    for entry in document.entries(&CHANGE, table) {
        for (key, _, said) in &mut said {
            *said |= *key == entry.key.name;
        }
        match entry.key.name {
            "at" => at_ns = number(document, &entry).unwrap_or(0),
            "unit" => from = unit(document, &entry, contract, "change of tickets is of"),
            "to" => {
                gives = true;
                to = unit(document, &entry, contract, "tickets are given to");
            }
            "resource" => {
                let word = document.choice(&entry, &RESOURCES);
                resource = Resource::ALL.into_iter().find(|resource| Some(resource.name()) == word);
            }
            _ => tickets = number(document, &entry),
        }
    }
    let what = format!("change `{}`", named.name);
    for (key, example, _) in said.iter().filter(|(_, _, said)| !said) {
        missing(document, named.at.clone(), &what, key, example);
    }
    let (unit, resource, tickets) = (from?, resource?, tickets?);
    let change = match gives {
        true => Change::Transfer { from: unit, to: to?, resource, tickets },
        false => Change::Set { unit, resource, tickets },
    };
    Some((RightsChange { at_ns, change }, named.at.clone()))
}

fn refused(contract: &Contract, at: Span, why: Refused) -> Diagnostic {
    let path = |unit: UnitId| contract.units.get(unit.index()).map_or("", |unit| unit.path.as_str());
    let (message, help) = match why {
        Refused::Unknown { unit } => (
            format!("unit `{}` holds no tickets", path(unit)),
            "name a unit that the contract declares".to_owned(),
        ),
        Refused::TooFew { unit, resource, has, fewer } => (
            format!("`{}` has {has} {resource} tickets then: {fewer} fewer would leave it none", path(unit)),
            format!("give {} at most", has.saturating_sub(1)),
        ),
        Refused::TooMany { unit, resource, has, more } => (
            format!(
                "`{}` has {has} {resource} tickets then: {more} more would be over {TICKETS_MAX}",
                path(unit)
            ),
            format!("give {} at most", TICKETS_MAX.saturating_sub(has)),
        ),
        Refused::Enclosers { from, to } => (
            format!("`{}` and `{}` are not within the same unit", path(from), path(to)),
            "tickets are no common measure between units: name two units side by side".to_owned(),
        ),
        Refused::Itself { unit } => (
            format!("`{}` cannot give tickets to itself", path(unit)),
            "name another unit beside it".to_owned(),
        ),
    };
    let message = format!("the change is refused: {message}");
    Diagnostic::error("change-refused", at, message).help(help)
}
