//! Reads the changes of rights in a workload: changes of tickets and offers to exchange tickets.
//!
//! The tickets of units depend only on the contract and on earlier changes. So this module replays all
//! changes, and reports a change that would be refused as an error of the workload: the simulation never
//! refuses one. The time of an offer that waits for a job is unknown; the replay makes these offers last, in
//! the order of the text.

use commonhold_contract::document::{Document, Named};
use commonhold_contract::quantity::duration_text;
use commonhold_contract::{Contract, Diagnostic, Resource, UnitId, nearest};
use commonhold_policy::rights::{Bid, Change, NoOffer, Offer, Refused, Rights, TICKETS_MAX};
use toml::de::DeTable;

use super::keys::{CHANGE, OFFER, RESOURCES};
use super::model::{AwaitedChange, Op, RightsChange, Workload};
use super::values::{Entry, Span, missing, number};
use super::workload::unit;

/// Reads the tables `[change.NAME]` and `[offer.NAME]`, and reports those that would be refused. Returns the
/// changes that have a time, in order of time, and the offers that wait for a job, in the order of the text.
pub(super) fn read(
    document: &mut Document,
    tables: [&[(Named, &DeTable)]; 2],
    contract: &Contract,
    workload: &Workload,
) -> (Vec<RightsChange>, Vec<AwaitedChange>) {
    let [change_tables, offer_tables] = tables;
    let mut changes: Vec<(RightsChange, Span)> =
        change_tables.iter().filter_map(|(named, table)| change(document, named, table, contract)).collect();
    let mut awaited: Vec<(AwaitedChange, Span)> = Vec::new();
    for (named, table) in offer_tables {
        match offer(document, named, table, contract, workload) {
            Some(Offered::At(change)) => changes.push((change, named.at.clone())),
            Some(Offered::After(change)) => awaited.push((change, named.at.clone())),
            None => {}
        }
    }
    let horizon_ns = workload.horizon_ns;
    // The sort is stable: changes of the same time stay in the order of the text.
    changes.sort_by_key(|(change, _)| change.at_ns);
    let mut rights = Rights::default();
    rights.follow(contract);
    for (change, at) in &changes {
        if change.at_ns >= horizon_ns {
            let [start, end] = [change.at_ns, horizon_ns].map(duration_text);
            let noun = noun(change.change);
            let message = format!("the {noun} would be made at {start}, and the simulation ends at {end}");
            let help = "write a later `horizon`, or an earlier `at`";
            document.report(Diagnostic::error("never-starts", at.clone(), message).help(help));
        }
        rights.settle(change.at_ns);
        if let Err(why) = rights.apply(change.change) {
            document.report(refused(contract, at.clone(), noun(change.change), why));
        }
    }
    for (change, at) in &awaited {
        if let Err(why) = rights.apply(change.change) {
            document.report(refused(contract, at.clone(), noun(change.change), why));
        }
    }
    (
        changes.into_iter().map(|(change, _)| change).collect(),
        awaited.into_iter().map(|(change, _)| change).collect(),
    )
}

/// An offer, by what starts it.
enum Offered {
    /// A time.
    At(RightsChange),
    /// A number of rounds of a job.
    After(AwaitedChange),
}

/// Reads `[change.NAME]`; `None` if a required key is missing or wrong.
fn change(
    document: &mut Document,
    named: &Named,
    table: &DeTable,
    contract: &Contract,
) -> Option<(RightsChange, Span)> {
    let (mut from, mut to, mut is_transfer, mut resource, mut tickets) = (None, None, false, None, None);
    let mut at_ns = 0;
    // Required keys: name, example, and whether the table has the key.
    let mut required =
        [("unit", "\"physics\"", false), ("resource", "\"cpu\"", false), ("tickets", "50", false)];
    for entry in document.entries(&CHANGE, table) {
        for (key, _, is_present) in &mut required {
            *is_present |= *key == entry.key.name;
        }
        match entry.key.name {
            "at" => at_ns = number(document, &entry).unwrap_or(0),
            "unit" => from = unit(document, &entry, contract, "change of tickets is of"),
            "to" => {
                is_transfer = true;
                to = unit(document, &entry, contract, "tickets are given to");
            }
            "resource" => {
                let word = document.choice(&entry, &RESOURCES);
                resource = Resource::ALL.into_iter().find(|resource| Some(resource.name()) == word);
            }
            _ => tickets = number(document, &entry),
        }
    }
    report_missing(document, named, "change", &required);
    let (unit, resource, tickets) = (from?, resource?, tickets?);
    let change = match is_transfer {
        true => Change::Transfer { from: unit, to: to?, resource, tickets },
        false => Change::Set { unit, resource, tickets },
    };
    Some((RightsChange { at_ns, change }, named.at.clone()))
}

/// Reads `[offer.NAME]`; `None` if a required key is missing, or if a key is wrong.
fn offer(
    document: &mut Document,
    named: &Named,
    table: &DeTable,
    contract: &Contract,
    workload: &Workload,
) -> Option<Offered> {
    let (mut by, mut gives, mut wants, mut with, mut has_with) = (None, None, None, None, false);
    let (mut at, mut after, mut for_ns, mut at_least, mut has_at_least) = (None, None, None, None, false);
    // Required keys: name, example, and whether the table has the key.
    let mut required =
        [("unit", "\"physics\"", false), ("give", "\"disk:300\"", false), ("want", "\"cpu:200\"", false)];
    for entry in document.entries(&OFFER, table) {
        for (key, _, is_present) in &mut required {
            *is_present |= *key == entry.key.name;
        }
        match entry.key.name {
            "at" => at = Some(number(document, &entry).unwrap_or(0)),
            "after" => {
                let span = document.span(entry.value);
                after = Some((span, rounds(document, &entry, workload)));
            }
            "unit" => by = unit(document, &entry, contract, "offer is of"),
            "give" => gives = tickets(document, &entry),
            "want" => wants = tickets(document, &entry),
            "at_least" => {
                has_at_least = true;
                at_least = tickets(document, &entry);
            }
            "with" => {
                has_with = true;
                with = unit(document, &entry, contract, "offer is for");
            }
            _ => for_ns = number(document, &entry),
        }
    }
    report_missing(document, named, "offer", &required);
    if has_with && with.is_none() || has_at_least && at_least.is_none() {
        return None;
    }
    if let (Some(_), Some((after_span, _))) = (at, &after) {
        let message = format!("offer `{}` says both `at` and `after`", named.name);
        let help = "leave one of them out";
        document.report(Diagnostic::error("at-and-after", after_span.clone(), message).help(help));
    }
    let bid = Bid { by: by?, gives: gives?, wants: wants?, with, for_ns, at_least, bound: false };
    let change = Change::Offer { bid };
    Some(match after {
        Some((_, rounds_of_job)) => {
            let (job, rounds) = rounds_of_job?;
            Offered::After(AwaitedChange { job, rounds, change })
        }
        None => Offered::At(RightsChange { at_ns: at.unwrap_or(0), change }),
    })
}

/// Reads `10000 rounds of small`: the job's index and the number of rounds.
fn rounds(document: &mut Document, entry: &Entry, workload: &Workload) -> Option<(u16, u64)> {
    let text = document.string(entry, "rounds of a job, as in \"100 rounds of small\"")?;
    let place = document.span(entry.value);
    let parsed = text.split_once(" rounds of ").and_then(|(number, job)| Some((number.parse().ok()?, job)));
    let Some((rounds @ 1.., name)) = parsed else {
        let message = format!("\"{text}\" is no number of rounds of a job");
        let help = "for example: after = \"100 rounds of small\"";
        document.report(Diagnostic::error("bad-rounds", place, message).help(help));
        return None;
    };
    let Some(job) = workload.jobs.iter().position(|job| job.name == name) else {
        let message = format!("there is no job `{name}`");
        let help = match nearest(name, workload.jobs.iter().map(|job| job.name.as_str())) {
            Some(known) => format!("did you mean \"{known}\"?"),
            None => format!("declare it: [job.{name}]"),
        };
        document.report(Diagnostic::error("unknown-name", place, message).help(help));
        return None;
    };
    let rounds_max = rounds_max(workload, job);
    if rounds_max < rounds {
        let message =
            format!("job `{name}` goes round {rounds_max} times at most, and the offer waits for {rounds}");
        let help = "name no more rounds than the outermost `repeat` of its program has, times its copies";
        document.report(Diagnostic::error("never-starts", place, message).help(help));
    }
    Some((u16::try_from(job).ok()?, rounds))
}

/// How many rounds all copies of a job make together: iterations of the outermost loops of its program.
fn rounds_max(workload: &Workload, job: usize) -> u64 {
    let job = &workload.jobs[job];
    let ops = workload.programs.get(job.program as usize).map_or(&[][..], |program| &program.ops);
    let outermost = ops.iter().map(|op| match *op {
        Op::Again { times: 0, counter: 0, .. } => u64::MAX,
        Op::Again { times, counter: 0, .. } => u64::from(times),
        _ => 0,
    });
    outermost.fold(0, u64::saturating_add).saturating_mul(u64::from(job.count))
}

/// Reads an amount of a resource, such as `disk:300`.
fn tickets(document: &mut Document, entry: &Entry) -> Option<Offer> {
    let text = document.string(entry, "a resource and an amount")?;
    let parsed = text.parse();
    if let Err(why) = &parsed {
        let message = format!("\"{text}\" is no amount of a resource");
        let span = document.span(entry.value);
        document.report(Diagnostic::error("bad-tickets", span, message).help(NoOffer::to_string(why)));
    }
    parsed.ok()
}

/// Reports the required keys that a table lacks. Each key comes with an example and with whether the table
/// has the key.
fn report_missing(document: &mut Document, named: &Named, noun: &str, required: &[(&str, &str, bool)]) {
    let table = format!("{noun} `{}`", named.name);
    for (key, example, _) in required.iter().filter(|(_, _, is_present)| !is_present) {
        missing(document, named.at.clone(), &table, key, example);
    }
}

/// What messages call a change.
fn noun(change: Change) -> &'static str {
    if matches!(change, Change::Offer { .. }) { "offer" } else { "change" }
}

/// The error of a change that the rights would refuse.
fn refused(contract: &Contract, at: Span, noun: &str, why: Refused) -> Diagnostic {
    let path = |unit: UnitId| contract.units.get(unit.index()).map_or("", |unit| unit.path.as_str());
    let (message, help) = match why {
        Refused::Unknown { unit } => (
            format!("unit `{}` holds no tickets", path(unit)),
            "name a unit that the contract declares".to_owned(),
        ),
        Refused::TooFew { unit, resource, has, fewer } => (
            format!("`{}` has {has} {resource} tickets then: {fewer} fewer would leave none", path(unit)),
            format!("give {} at most", has.saturating_sub(1)),
        ),
        Refused::TooMany { unit, resource, has, more } => (
            format!(
                "`{}` has {has} {resource} tickets then: {more} more would exceed {TICKETS_MAX}",
                path(unit)
            ),
            format!("give {} at most", TICKETS_MAX.saturating_sub(has)),
        ),
        Refused::Enclosers { from, to } => (
            format!("`{}` and `{}` are not within the same unit", path(from), path(to)),
            "units with different parents have different currencies: name two siblings".to_owned(),
        ),
        Refused::Lent { unit, resource, has, lent } => (
            format!("`{}` has {has} {resource} tickets then, and has lent {lent} of them", path(unit)),
            format!("leave it {} at least", lent + 1),
        ),
        Refused::NoExchange { .. } => (
            "it gives and wants the same resource, or its `at_least` is not of what it wants, or more"
                .to_owned(),
            "give tickets of one resource for tickets of another".to_owned(),
        ),
        Refused::NotReserved { unit, resource, left } => (
            format!("`{}` has less {resource} reserved then than it would lend", path(unit)),
            left.map_or_else(
                || format!("reserve some with `hard` in the contract, or give tickets: \"{resource}:300\""),
                |left| format!("give \"{left}\" at most"),
            ),
        ),
        Refused::InUse { unit, used, reserved, most } => (
            format!(
                "`{}` uses {used} bytes of memory then, of {reserved} that are reserved for it",
                path(unit)
            ),
            format!("give {most} bytes at most, or later"),
        ),
        Refused::Loop { unit } => (
            format!("`{}` would be worth something by its own tickets", path(unit)),
            "name a unit that is not in it, and that it is not in".to_owned(),
        ),
        Refused::TooManyOffers | Refused::TooManyOffersOfUnit { .. } => (
            "too many offers stand then".to_owned(),
            "make fewer offers, or offers that are served".to_owned(),
        ),
        Refused::NoOffer { number } | Refused::NumberTaken { number } => {
            (format!("there is no offer of number {number} then"), "name another".to_owned())
        }
        Refused::Itself { unit } => (
            format!("`{}` cannot give tickets to itself", path(unit)),
            "name another unit beside it".to_owned(),
        ),
    };
    let message = format!("the {noun} is refused: {message}");
    Diagnostic::error("change-refused", at, message).help(help)
}
