//! The third stage of parsing: checks whether the values of a contract are consistent with each other.
//! Whether they fit a machine is checked elsewhere, by the policy crate.
//!
//! Each check returns diagnostics, with the spans of all values that contradict each other.

use std::collections::BTreeMap;

use crate::diagnostic::{Diagnostic, Span};
use crate::jobs::{GangRules, Gangs, GangsShare};
use crate::model::{Contract, Discipline, Each, MemberKind, Unit, UnitId};
use crate::nearest::nearest;
use crate::resource::{Amount, MILLIONTH, Resource};

/// The spans of a unit's keys that are not in [`Unit`], but that this stage needs.
pub(crate) struct ReadUnit {
    pub(crate) id: UnitId,
    /// The span of `each`.
    pub(crate) each: Option<Span>,
    /// The span of `each-by`.
    pub(crate) each_by: Option<Span>,
}

/// The spans of the keys about gangs; `None` for a key that the contract does not set.
#[derive(Debug, Default)]
pub(crate) struct GangSpans {
    pub(crate) by: Option<Span>,
    pub(crate) share: Option<Span>,
    pub(crate) first_rate: Option<Span>,
}

/// The most related spans that one diagnostic shows; more would hide the problem.
const RELATED_MAX: usize = 4;

/// Checks a single unit.
pub(crate) fn unit(unit: &Unit, read_unit: &ReadUnit) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for resource in Resource::ALL {
        diagnostics.extend(zero_limit(unit, resource));
        diagnostics.extend(tiny_limit(unit, resource));
        diagnostics.extend(hard_above_limit(unit, resource));
    }
    diagnostics.extend(repeated_members(unit));
    diagnostics.extend(each_without_members(unit, read_unit));
    diagnostics.extend(each_by_without_groups(unit, read_unit));
    diagnostics
}

fn zero_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let span = unit.places.limit[resource].clone()?;
    if !matches!(unit.limit[resource]?, Amount::Part(0) | Amount::Absolute(0)) {
        return None;
    }
    let message = format!("a {resource} limit of zero would let nothing of unit `{}` run", unit.path);
    Some(Diagnostic::error("zero-limit", span, message).help("write more than zero, or leave the limit out"))
}

/// The smallest useful limit of a resource, in its unit of measure, and the reason for it, which a remedy
/// quotes. For CPUs, the limit is the smallest cap that the kernel enforces (1 ms per second). For memory, a
/// shell and a small program need it. For disks, it is one block per second.
fn useful_limit_min(resource: Resource) -> (u64, &'static str) {
    match resource {
        Resource::Cpu => (MILLIONTH / 1_000, "the kernel holds no less than 0.001 CPUs"),
        Resource::Memory => {
            (4 << 20, "a shell and a small program need about 4MiB, and with less they page without end")
        }
        Resource::Disk | Resource::Bus => (4 << 10, "disks transfer blocks of 4KiB"),
    }
}

/// Reports a limit that is too small to be useful. Usually its unit of measure is mistyped, as in `1B` for
/// `1GB`.
fn tiny_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let (limit_min, why) = useful_limit_min(resource);
    let Amount::Absolute(limit @ 1..) = unit.limit[resource]? else { return None };
    if limit >= limit_min {
        return None;
    }
    let amount = |value| crate::quantity::amount_text(resource, Amount::Absolute(value));
    let message =
        format!("a {resource} limit of {} lets next to nothing of unit `{}` run", amount(limit), unit.path);
    let help = format!("write at least {}: {why}", amount(limit_min));
    Some(Diagnostic::warning("tiny-limit", unit.places.limit[resource].clone()?, message).help(help))
}

/// Reports a reservation above the unit's own limit. A percentage and an absolute amount are not compared
/// here, since that requires a machine.
fn hard_above_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let is_above = match (unit.hard[resource]?, unit.limit[resource]?) {
        (Amount::Part(hard), Amount::Part(limit)) | (Amount::Absolute(hard), Amount::Absolute(limit)) => {
            hard > limit
        }
        _ => false,
    };
    let (hard, limit) = (unit.places.hard[resource].clone()?, unit.places.limit[resource].clone()?);
    is_above.then(|| {
        let message = format!("unit `{}` reserves more {resource} than its limit", unit.path);
        let diagnostic = Diagnostic::error("hard-above-limit", hard, message).label("the reservation");
        diagnostic.related(limit, "the limit").help("raise the limit, or lower the reservation")
    })
}

fn repeated_members(unit: &Unit) -> Vec<Diagnostic> {
    let mut first_spans: BTreeMap<&MemberKind, &Span> = BTreeMap::new();
    let mut diagnostics = Vec::new();
    for member in &unit.members {
        if let Some(first) = first_spans.get(&member.kind) {
            let message = format!("unit `{}` lists `{}` twice", unit.path, member.kind);
            let diagnostic =
                Diagnostic::warning("repeated-member", member.span.clone(), message).label("again here");
            diagnostics.push(diagnostic.related((*first).clone(), "first here").help("remove one of them"));
        } else {
            first_spans.insert(&member.kind, &member.span);
        }
    }
    diagnostics
}

/// Reports a unit with `each` that can never have a sub-unit, since its members name no users or, for
/// `each = "cgroup"`, no control groups.
fn each_without_members(unit: &Unit, read_unit: &ReadUnit) -> Option<Diagnostic> {
    let (gets_sub_unit, whom, help): (fn(&MemberKind) -> bool, _, _) = match unit.each? {
        Each::User => (
            |kind| matches!(kind, MemberKind::User(_) | MemberKind::Users(..) | MemberKind::Group(_)),
            "its users, but names no user or group",
            "add a member such as \"group:NAME\"; without one, only users whose processes enter by another rule get a share",
        ),
        Each::Cgroup => (
            |kind| matches!(kind, MemberKind::Cgroup(_)),
            "control groups, but no rule of it names one around them: no sub-unit will be made",
            "add the group that they are in, such as \"cgroup:/system.slice/slurmstepd.scope\" for Slurm's jobs",
        ),
    };
    if unit.members.iter().any(|member| gets_sub_unit(&member.kind)) {
        return None;
    }
    let message = format!("unit `{}` splits among {whom}", unit.path);
    Some(Diagnostic::warning("each-of-nobody", read_unit.each.clone()?, message).help(help))
}

/// Reports `each-by` without `each = "cgroup"`. It would have no effect, since users have no weights or CPUs
/// as control groups have.
fn each_by_without_groups(unit: &Unit, read_unit: &ReadUnit) -> Option<Diagnostic> {
    let at = read_unit.each_by.clone()?;
    if unit.each == Some(Each::Cgroup) {
        return None;
    }
    let message = format!("unit `{}` weighs its control groups, but does not split among them", unit.path);
    let help = if unit.each.is_some() {
        "write `each = \"cgroup\"` instead of `\"user\"`, or remove `each-by`"
    } else {
        "add `each = \"cgroup\"`, or remove `each-by`"
    };
    Some(Diagnostic::warning("each-by-without-groups", at, message).help(help))
}

/// Checks the units directly in `parent`, or at the top level (`None`), against each other and against
/// `parent`.
pub(crate) fn siblings(
    contract: &Contract,
    parent: Option<&ReadUnit>,
    units: &[ReadUnit],
) -> Vec<Diagnostic> {
    let mut diagnostics = conflicts(contract, units);
    for resource in Resource::ALL {
        diagnostics.extend(parts_above_whole(contract, parent, units, resource));
        diagnostics.extend(parent.and_then(|parent| hard_above_encloser(contract, parent, units, resource)));
    }
    diagnostics
        .extend(units.iter().filter_map(|unit| deadline_without_discipline(contract, parent, unit.id)));
    if let (Some(each), Some(first)) = (parent.and_then(|parent| parent.each.clone()), units.first()) {
        let whom = match parent.and_then(|parent| contract.unit(parent.id).each) {
            Some(Each::Cgroup) => "control groups",
            Some(Each::User) | None => "its users",
        };
        let message = format!("a unit that splits among {whom} cannot declare sub-units too");
        let sub_unit = contract.unit(first.id).span.clone();
        let diagnostic =
            Diagnostic::error("each-and-sub-units", each, message).related(sub_unit, "a sub-unit");
        diagnostics.push(
            diagnostic.help("choose one: remove `each`, or the sub-units, which may stand beside this unit"),
        );
    }
    diagnostics
}

/// Reports a unit's deadline if the discipline of the enclosing unit does not serve deadlines.
fn deadline_without_discipline(
    contract: &Contract,
    parent: Option<&ReadUnit>,
    id: UnitId,
) -> Option<Diagnostic> {
    let unit = contract.unit(id);
    let encloser = parent.map(|parent| contract.unit(parent.id));
    if unit.deadline.is_none() || encloser.is_some_and(|unit| unit.discipline == Discipline::Dwcs) {
        return None;
    }
    let message = format!("`{}` has a deadline that no discipline enforces", unit.path);
    let help = match encloser {
        Some(encloser) => format!("write `discipline = \"dwcs\"` in `{}`", encloser.path),
        None => "put the unit into one with `discipline = \"dwcs\"`: units at the top have CPUs of their own"
            .to_owned(),
    };
    Some(Diagnostic::warning("deadline", unit.span.clone(), message).help(help))
}

/// Reports rules for gangs that only make sense for the memory bus, if gangs are chosen by another resource.
/// These rules are `gangs = "demand"`, and a `first-rate` in bytes per second.
pub(crate) fn gangs(rules: GangRules, spans: &GangSpans) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let other_share = spans.share.clone().filter(|_| rules.share != GangsShare::Bus);
    let Some(share) = other_share else { return diagnostics };
    let because = "gangs are chosen by cache occupancy";
    if let (Gangs::Demand, Some(by)) = (rules.by, spans.by.clone()) {
        let message = "`gangs = \"demand\"` only estimates bandwidth on the memory bus";
        let help = "write `gangs = \"quanta-window\"` or `\"latest-quantum\"`, or leave `gangs-share` out";
        let diagnostic = Diagnostic::error("demand-of-the-bus", by, message);
        diagnostics.push(diagnostic.related(share.clone(), because).help(help));
    }
    if let (Amount::Absolute(_), Some(first_rate)) = (rules.first_rate, spans.first_rate.clone()) {
        let message = "`first-rate` is a rate of the memory bus here";
        let help = "write a part, such as \"100%\"";
        diagnostics.push(
            Diagnostic::error("rate-of-the-bus", first_rate, message).related(share, because).help(help),
        );
    }
    diagnostics
}

/// Reports a member that two siblings list. Neither unit is more specific than the other, so the contract
/// does not say to which of them the processes belong.
fn conflicts(contract: &Contract, units: &[ReadUnit]) -> Vec<Diagnostic> {
    let mut first_places: BTreeMap<&MemberKind, (UnitId, &Span)> = BTreeMap::new();
    let mut diagnostics = Vec::new();
    for id in units.iter().map(|unit| unit.id) {
        for member in &contract.unit(id).members {
            let (first, span) = *first_places.entry(&member.kind).or_insert((id, &member.span));
            if first == id {
                continue;
            }
            let (a, b) = (&contract.unit(first).path, &contract.unit(id).path);
            let message = format!("`{}` is a member of unit `{b}` and of unit `{a}`", member.kind);
            let diagnostic = Diagnostic::error("conflicting-members", member.span.clone(), message);
            let diagnostic = diagnostic.label(format!("in `{b}`")).related(span.clone(), format!("in `{a}`"));
            diagnostics.push(
                diagnostic.help("leave it in one of them; processes of both units need a unit around both"),
            );
        }
    }
    diagnostics
}

/// Reports reservations of siblings, in percent, whose sum exceeds 100 %. The diagnostic is at the last
/// reservation.
fn parts_above_whole(
    contract: &Contract,
    parent: Option<&ReadUnit>,
    units: &[ReadUnit],
    resource: Resource,
) -> Option<Diagnostic> {
    let parts: Vec<(u64, &ReadUnit)> = units
        .iter()
        .filter_map(|unit| match contract.unit(unit.id).hard[resource] {
            Some(Amount::Part(part)) if part > 0 => Some((part, unit)),
            _ => None,
        })
        .collect();
    let sum: u64 = parts.iter().map(|(part, _)| part).sum();
    let (_, last) = parts.last().filter(|_| sum > MILLIONTH)?;
    let whole =
        parent.map_or("the machine".to_owned(), |unit| format!("unit `{}`", contract.unit(unit.id).path));
    let percent = crate::quantity::amount_text(resource, Amount::Part(sum));
    let message = format!("together, these units reserve {percent} of the {resource} of {whole}");
    let help = "lower them to 100% at most; tickets divide only what is left";
    let mut diagnostic = Diagnostic::error(
        "parts-above-whole",
        contract.unit(last.id).places.hard[resource].clone()?,
        message,
    )
    .help(help);
    for (_, unit) in parts.iter().take(parts.len() - 1).take(RELATED_MAX) {
        let label = format!("of `{}`", contract.unit(unit.id).path);
        diagnostic = diagnostic.related(contract.unit(unit.id).places.hard[resource].clone()?, label);
    }
    Some(diagnostic.label(format!("of `{}`", contract.unit(last.id).path)))
}

/// Reports sub-units that together reserve more than the enclosing unit does, in absolute amounts. Only the
/// enclosing unit's reservation can back theirs: the rest of its entitlement is by tickets, and shrinks when
/// other units become active. If the enclosing unit has no reservation, nothing is reported here. The
/// sub-units' reservations are then compared, on a machine, with the worth of its tickets.
fn hard_above_encloser(
    contract: &Contract,
    parent: &ReadUnit,
    units: &[ReadUnit],
    resource: Resource,
) -> Option<Diagnostic> {
    let hard = |unit: &ReadUnit| match contract.unit(unit.id).hard[resource] {
        Some(Amount::Absolute(amount)) => Some(amount),
        _ => None,
    };
    let available = hard(parent)?;
    let reserved = units.iter().filter_map(hard).fold(0, u64::saturating_add);
    if reserved <= available {
        return None;
    }
    let largest = units.iter().max_by_key(|unit| hard(unit))?;
    let amount = |value| crate::quantity::amount_text(resource, Amount::Absolute(value));
    let (path, available, reserved) = (&contract.unit(parent.id).path, amount(available), amount(reserved));
    let message = format!(
        "the sub-units of `{path}` reserve {reserved} of {resource}, and `{path}` itself only {available}"
    );
    let diagnostic = Diagnostic::error(
        "hard-above-encloser",
        contract.unit(largest.id).places.hard[resource].clone()?,
        message,
    )
    .label(format!("of `{}`", contract.unit(largest.id).path))
    .related(contract.unit(parent.id).places.hard[resource].clone()?, format!("of `{path}`"));
    Some(diagnostic.help(format!(
        "raise the reservation of `{path}` to {reserved}, lower those of its sub-units, or give them `tickets`"
    )))
}

/// Looks up the unit that `machine.default` names.
pub(crate) fn default_unit(contract: &Contract, path: &str, span: &Span) -> Result<UnitId, Box<Diagnostic>> {
    if path == contract.unit(UnitId::KERNEL).path {
        let message = "processes cannot fall into the built-in unit `kernel`";
        let help = "name a unit of the contract, or `shared`: the kernel's unit holds its own threads only";
        return Err(Box::new(Diagnostic::error("unknown-unit", span.clone(), message).help(help)));
    }
    contract.find(path).ok_or_else(|| {
        let paths = contract.held().map(|id| contract.unit(id).path.as_str());
        let help = match nearest(path, paths) {
            Some(known) => format!("did you mean \"{known}\"?"),
            None => "write the path of a declared unit: \"physics\", \"physics/night-batch\"".to_owned(),
        };
        let message = format!("there is no unit `{path}` for the processes that match nothing");
        Box::new(Diagnostic::error("unknown-unit", span.clone(), message).help(help))
    })
}
