//! The third stage: whether the values of a contract are consistent. Whether they fit a machine, the policy crate decides.

use std::collections::BTreeMap;

use crate::diagnostic::{Diagnostic, Span};
use crate::jobs::{GangRules, Gangs, GangsShare};
use crate::model::{Contract, Discipline, Each, MemberKind, Unit, UnitId};
use crate::nearest::nearest;
use crate::resource::{Amount, MILLIONTH, Resource};

/// A unit that was read, with spans that its value does not keep.
pub(crate) struct Seen {
    pub(crate) id: UnitId,
    /// The span of `each`.
    pub(crate) each: Option<Span>,
    /// The span of `each-by`.
    pub(crate) each_by: Option<Span>,
}

/// The spans of the rules for gangs that the contract sets.
#[derive(Debug, Default)]
pub(crate) struct GangsAt {
    pub(crate) by: Option<Span>,
    pub(crate) share: Option<Span>,
    pub(crate) first_rate: Option<Span>,
}

/// The most related spans of one diagnostic; more would bury it.
const RELATED_MAX: usize = 4;

/// Checks of a single unit.
pub(crate) fn unit(unit: &Unit, seen: &Seen) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for resource in Resource::ALL {
        found.extend(zero_limit(unit, resource));
        found.extend(tiny_limit(unit, resource));
        found.extend(hard_above_limit(unit, resource));
    }
    found.extend(repeated_members(unit));
    found.extend(each_of_nobody(unit, seen));
    found.extend(each_by_without_groups(unit, seen));
    found
}

fn zero_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let span = unit.places.limit[resource].clone()?;
    if !matches!(unit.limit[resource]?, Amount::Part(0) | Amount::Absolute(0)) {
        return None;
    }
    let message = format!("a {resource} limit of zero would let nothing of unit `{}` run", unit.path);
    Some(Diagnostic::error("zero-limit", span, message).help("write more than zero, or leave the limit out"))
}

/// The smallest useful limit, in the resource's measure: memory for a shell and a small program; the smallest cap on CPU that
/// the kernel enforces (1 ms per second); one block per second.
fn least_limit(resource: Resource) -> (u64, &'static str) {
    match resource {
        Resource::Cpu => (MILLIONTH / 1_000, "the kernel holds no less than 0.001 CPUs"),
        Resource::Memory => {
            (4 << 20, "a shell and a small program need about 4MiB, and with less they page without end")
        }
        Resource::Disk | Resource::Bus => (4 << 10, "disks transfer blocks of 4KiB"),
    }
}

/// Usually a mistyped unit: `1B` for `1GB`.
fn tiny_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let (least, why) = least_limit(resource);
    let Amount::Absolute(limit @ 1..) = unit.limit[resource]? else { return None };
    if limit >= least {
        return None;
    }
    let amount = |value| crate::quantity::amount_text(resource, Amount::Absolute(value));
    let message =
        format!("a {resource} limit of {} lets next to nothing of unit `{}` run", amount(limit), unit.path);
    let help = format!("write at least {}: {why}", amount(least));
    Some(Diagnostic::warning("tiny-limit", unit.places.limit[resource].clone()?, message).help(help))
}

/// A part and an absolute amount can only be compared on a machine.
fn hard_above_limit(unit: &Unit, resource: Resource) -> Option<Diagnostic> {
    let above = match (unit.hard[resource]?, unit.limit[resource]?) {
        (Amount::Part(hard), Amount::Part(limit)) | (Amount::Absolute(hard), Amount::Absolute(limit)) => {
            hard > limit
        }
        _ => false,
    };
    let (hard, limit) = (unit.places.hard[resource].clone()?, unit.places.limit[resource].clone()?);
    above.then(|| {
        let message = format!("unit `{}` reserves more {resource} than its limit", unit.path);
        let diagnostic = Diagnostic::error("hard-above-limit", hard, message).label("the reservation");
        diagnostic.related(limit, "the limit").help("raise the limit, or lower the reservation")
    })
}

fn repeated_members(unit: &Unit) -> Vec<Diagnostic> {
    let mut first: BTreeMap<&MemberKind, &Span> = BTreeMap::new();
    let mut found = Vec::new();
    for member in &unit.members {
        if let Some(earlier) = first.get(&member.kind) {
            let message = format!("unit `{}` lists `{}` twice", unit.path, member.kind);
            let diagnostic =
                Diagnostic::warning("repeated-member", member.span.clone(), message).label("again here");
            found.push(diagnostic.related((*earlier).clone(), "first here").help("remove one of them"));
        } else {
            first.insert(&member.kind, &member.span);
        }
    }
    found
}

fn each_of_nobody(unit: &Unit, seen: &Seen) -> Option<Diagnostic> {
    let (is_meant, whom, help): (fn(&MemberKind) -> bool, _, _) = match unit.each? {
        Each::User => (
            |kind| matches!(kind, MemberKind::User(_) | MemberKind::Group(_)),
            "its users, but names no user or group",
            "add a member such as \"group:NAME\"; without one, only users whose processes enter by another rule get a share",
        ),
        Each::Cgroup => (
            |kind| matches!(kind, MemberKind::Cgroup(_)),
            "control groups, but no rule of it names one around them: no sub-unit will be made",
            "add the group that they are in, such as \"cgroup:/system.slice/slurmstepd.scope\" for Slurm's jobs",
        ),
    };
    if unit.members.iter().any(|member| is_meant(&member.kind)) {
        return None;
    }
    let message = format!("unit `{}` splits among {whom}", unit.path);
    Some(Diagnostic::warning("each-of-nobody", seen.each.clone()?, message).help(help))
}

/// Users have no weights, unlike control groups.
fn each_by_without_groups(unit: &Unit, seen: &Seen) -> Option<Diagnostic> {
    let at = seen.each_by.clone()?;
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

/// Checks among the units below `parent`, or at the top level.
pub(crate) fn siblings(contract: &Contract, parent: Option<&Seen>, units: &[Seen]) -> Vec<Diagnostic> {
    let mut found = conflicts(contract, units);
    for resource in Resource::ALL {
        found.extend(parts_above_whole(contract, parent, units, resource));
        found.extend(parent.and_then(|parent| hard_above_encloser(contract, parent, units, resource)));
    }
    found.extend(units.iter().filter_map(|seen| deadline_without_discipline(contract, parent, seen.id)));
    if let (Some(each), Some(first)) = (parent.and_then(|parent| parent.each.clone()), units.first()) {
        let whom = match parent.and_then(|parent| contract.unit(parent.id).each) {
            Some(Each::Cgroup) => "control groups",
            Some(Each::User) | None => "its users",
        };
        let message = format!("a unit that splits among {whom} cannot declare sub-units too");
        let sub_unit = contract.unit(first.id).span.clone();
        let diagnostic =
            Diagnostic::error("each-and-sub-units", each, message).related(sub_unit, "a sub-unit");
        found.push(
            diagnostic.help("choose one: remove `each`, or the sub-units, which may stand beside this unit"),
        );
    }
    found
}

/// A deadline without a discipline that enforces it.
fn deadline_without_discipline(contract: &Contract, parent: Option<&Seen>, id: UnitId) -> Option<Diagnostic> {
    let unit = contract.unit(id);
    let around = parent.map(|parent| contract.unit(parent.id));
    if unit.deadline.is_none() || around.is_some_and(|around| around.discipline == Discipline::Dwcs) {
        return None;
    }
    let message = format!("`{}` has a deadline that no discipline enforces", unit.path);
    let help = match around {
        Some(around) => format!("write `discipline = \"dwcs\"` in `{}`", around.path),
        None => "put the unit into one with `discipline = \"dwcs\"`: units at the top have CPUs of their own"
            .to_owned(),
    };
    Some(Diagnostic::warning("deadline", unit.span.clone(), message).help(help))
}

/// Rules that only apply to the memory bus: the demand of threads without contention, and bytes per second as a part of the bus.
pub(crate) fn gangs(rules: GangRules, at: &GangsAt) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let Some(share) = at.share.clone().filter(|_| rules.share != GangsShare::Bus) else { return found };
    let because = format!(
        "gangs are chosen by {}",
        match rules.share {
            GangsShare::Cores => "instructions",
            _ => "cache occupancy",
        }
    );
    if let (Gangs::Demand, Some(by)) = (rules.by, at.by.clone()) {
        let message = "`gangs = \"demand\"` only estimates bandwidth on the memory bus";
        let help = "write `gangs = \"quanta-window\"` or `\"latest-quantum\"`, or leave `gangs-share` out";
        let found_here = Diagnostic::error("demand-of-the-bus", by, message);
        found.push(found_here.related(share.clone(), because.clone()).help(help));
    }
    if let (Amount::Absolute(_), Some(first_rate)) = (rules.first_rate, at.first_rate.clone()) {
        let message = "`first-rate` is a rate of the memory bus here";
        let help = "write a part, such as \"100%\"";
        found.push(
            Diagnostic::error("rate-of-the-bus", first_rate, message).related(share, because).help(help),
        );
    }
    found
}

/// The same rule in two siblings: neither is more specific, so the contract does not say where a process belongs.
fn conflicts(contract: &Contract, units: &[Seen]) -> Vec<Diagnostic> {
    let mut first: BTreeMap<&MemberKind, (UnitId, &Span)> = BTreeMap::new();
    let mut found = Vec::new();
    for id in units.iter().map(|seen| seen.id) {
        for member in &contract.unit(id).members {
            let (owner, span) = *first.entry(&member.kind).or_insert((id, &member.span));
            if owner == id {
                continue;
            }
            let (a, b) = (&contract.unit(owner).path, &contract.unit(id).path);
            let message = format!("`{}` is a member of unit `{b}` and of unit `{a}`", member.kind);
            let diagnostic = Diagnostic::error("conflicting-members", member.span.clone(), message);
            let diagnostic = diagnostic.label(format!("in `{b}`")).related(span.clone(), format!("in `{a}`"));
            found.push(
                diagnostic.help("leave it in one of them; processes of both units need a unit around both"),
            );
        }
    }
    found
}

fn parts_above_whole(
    contract: &Contract,
    parent: Option<&Seen>,
    units: &[Seen],
    resource: Resource,
) -> Option<Diagnostic> {
    let parts: Vec<(u64, &Seen)> = units
        .iter()
        .filter_map(|seen| match contract.unit(seen.id).hard[resource] {
            Some(Amount::Part(part)) if part > 0 => Some((part, seen)),
            _ => None,
        })
        .collect();
    let sum: u64 = parts.iter().map(|(part, _)| part).sum();
    let (_, last) = parts.last().filter(|_| sum > MILLIONTH)?;
    let whole =
        parent.map_or("the machine".to_owned(), |seen| format!("unit `{}`", contract.unit(seen.id).path));
    let percent = crate::quantity::amount_text(resource, Amount::Part(sum));
    let message = format!("together, these units reserve {percent} of the {resource} of {whole}");
    let help = "lower them to 100% at most; tickets divide only what is left";
    let mut diagnostic = Diagnostic::error(
        "parts-above-whole",
        contract.unit(last.id).places.hard[resource].clone()?,
        message,
    )
    .help(help);
    for (_, seen) in parts.iter().take(parts.len() - 1).take(RELATED_MAX) {
        let label = format!("of `{}`", contract.unit(seen.id).path);
        diagnostic = diagnostic.related(contract.unit(seen.id).places.hard[resource].clone()?, label);
    }
    Some(diagnostic.label(format!("of `{}`", contract.unit(last.id).path)))
}

/// Sub-units reserve from the reservation of their enclosing unit, if it has one: the rest of its entitlement is by tickets, and
/// shrinks as others become active. (An enclosing unit without a reservation is checked on a machine, by the worth of its
/// tickets.)
fn hard_above_encloser(
    contract: &Contract,
    parent: &Seen,
    units: &[Seen],
    resource: Resource,
) -> Option<Diagnostic> {
    let hard = |seen: &Seen| match contract.unit(seen.id).hard[resource] {
        Some(Amount::Absolute(amount)) => Some(amount),
        _ => None,
    };
    let whole = hard(parent)?;
    let asked = units.iter().filter_map(hard).fold(0, u64::saturating_add);
    if asked <= whole {
        return None;
    }
    let worst = units.iter().max_by_key(|seen| hard(seen))?;
    let amount = |value| crate::quantity::amount_text(resource, Amount::Absolute(value));
    let (path, whole, asked) = (&contract.unit(parent.id).path, amount(whole), amount(asked));
    let message =
        format!("the sub-units of `{path}` reserve {asked} of {resource}, and `{path}` itself only {whole}");
    let diagnostic = Diagnostic::error(
        "hard-above-encloser",
        contract.unit(worst.id).places.hard[resource].clone()?,
        message,
    )
    .label(format!("of `{}`", contract.unit(worst.id).path))
    .related(contract.unit(parent.id).places.hard[resource].clone()?, format!("of `{path}`"));
    Some(diagnostic.help(format!(
        "raise the reservation of `{path}` to {asked}, lower those of its sub-units, or give them `tickets`"
    )))
}

/// Looks up the unit of `machine.default`.
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
