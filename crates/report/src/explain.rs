//! A contract in sentences, for `explain`: who is in each unit, what the unit holds whatever others do, and
//! what it lends, borrows and never exceeds.
//!
//! Resources of which a unit holds the same part share a sentence. Parts are fractions in words where they
//! are simple ones, else percentages.

use commonhold_contract::{
    Amount, Contract, Each, MILLIONTH, Member, MemberKind, PerResource, Permission, Principal, Resource,
    Scheme, UnitId, Whose,
};
use commonhold_machine::Machine;

use crate::figures::{amount, count, duration, part as millionths};
use crate::table::{Paint, Style, clean, wrap};
use crate::tree::{self, Division};

/// The most units that are explained; a generated contract may have a hundred thousand.
const UNITS_MAX: usize = 200;

/// The tickets of a unit's own processes beside its sub-units.
const OWN_TICKETS: u64 = 100;

/// A contract in sentences, for a machine on which each unit is entitled to `divisions` while all units are
/// busy.
pub fn text(
    contract: &Contract,
    machine: &Machine,
    divisions: &PerResource<Division>,
    style: Style,
) -> String {
    let mut lines = wrap(&beginning(contract, machine), style.width, "", "");
    let units: Vec<UnitId> = depth_first(contract);
    for id in units.iter().take(UNITS_MAX) {
        let unit = contract.unit(*id);
        lines.push(String::new());
        lines.push(style.paint(Paint::Strong, &clean(&unit.path)));
        let sentences = sentences(contract, divisions, *id).join(" ");
        lines.extend(wrap(&clean(&sentences), style.width, "  ", "  "));
    }
    if let Some(more) = units.len().checked_sub(UNITS_MAX).filter(|more| *more > 0) {
        lines.push(format!("\n{} not explained.", count(more, "more unit")));
    }
    lines.join("\n") + "\n"
}

/// All units that hold tickets, each before its sub-units. A contract made in code may be nested too deeply
/// for recursion.
fn depth_first(contract: &Contract) -> Vec<UnitId> {
    let children = |id| contract.children(id).collect::<Vec<_>>().into_iter().rev();
    let mut stack: Vec<UnitId> = children(None).collect();
    let mut units = Vec::new();
    while let Some(id) = stack.pop() {
        units.push(id);
        stack.extend(children(Some(id)));
    }
    units
}

fn beginning(contract: &Contract, machine: &Machine) -> String {
    let units = contract.children(None).count();
    let summary = tree::summary(machine);
    if units == 0 {
        return format!(
            "The contract names no units, so all processes share a machine with {summary}, and nothing is isolated."
        );
    }
    let rules = &contract.machine;
    let idle = match rules.scheme {
        Scheme::Smp => {
            "Nothing is enforced: under `smp`, the kernel divides the machine, and the accounts are kept."
        }
        Scheme::Quota => "Under `quota`, what a unit leaves idle stays idle.",
        Scheme::Isolate => "What a unit leaves idle is lent to units that want more.",
    };
    let back = match rules.scheme {
        Scheme::Isolate => format!(
            " When its owner needs it, a CPU is back within {}, and memory within {}.",
            duration(rules.call_back_ns),
            duration(rules.call_back_memory_ns)
        ),
        Scheme::Smp | Scheme::Quota => String::new(),
    };
    format!("The contract divides a machine with {summary} among {}. {idle}{back}", count(units, "unit"))
}

fn sentences(contract: &Contract, divisions: &PerResource<Division>, id: UnitId) -> Vec<String> {
    let unit = contract.unit(id);
    let mut sentences = vec![members(contract, id)];
    sentences.extend(holds(contract, divisions, id));
    sentences.extend(unit.each.map(|each| {
        match each {
            Each::User => "Each user among them has an equal part of it.",
            Each::Cgroup => "Each control group directly below has a part of it.",
        }
        .to_owned()
    }));
    sentences.extend(may("lend", "lends", &unit.lend));
    sentences.extend(may("borrow", "borrows", &unit.borrow));
    for resource in Resource::ALL {
        if let Some(limit) = unit.limit[resource] {
            let of = if unit.parent.is_some() && matches!(limit, Amount::Part(_)) {
                " that the unit around it may use"
            } else {
                ""
            };
            let limit = quantity(resource, limit);
            sentences.push(format!("It never uses more than {limit}{of}, even if more is idle."));
        }
    }
    if unit.negotiate {
        sentences.push(
            "Commonhold tries exchanges of its tickets, and keeps those from which both units gain."
                .to_owned(),
        );
    }
    if let Some(owner) = &unit.owner {
        sentences.push(format!("{} may change the tickets in it.", capital(&who(owner))));
    }
    sentences
}

/// Which processes are in a unit.
fn members(contract: &Contract, id: UnitId) -> String {
    let unit = contract.unit(id);
    let mut rules: Vec<String> = unit.members.iter().map(processes).collect();
    if contract.default_unit == id {
        rules.push("all processes that no rule matches".to_owned());
    }
    let within = match unit.parent {
        Some(parent) => format!(", among the processes of {}", contract.unit(parent).path),
        None => String::new(),
    };
    if rules.is_empty() {
        return "Processes enter it by `commonhold exec` alone.".to_owned();
    }
    format!("Its members are {}{within}.", list(&rules))
}

fn processes(member: &Member) -> String {
    match &member.kind {
        MemberKind::Command(glob) => format!("programs named {glob} (and what they start)"),
        MemberKind::CommandOf(glob, whose) => {
            format!("programs named {glob} of {} (and what they start)", principal(whose))
        }
        MemberKind::Cgroup(path) => format!("the processes in the control group {path}"),
        MemberKind::Pid(pid) => format!("process {pid} (and what it starts)"),
        MemberKind::User(_) | MemberKind::Users(..) | MemberKind::Group(_) => {
            format!("the processes of {}", who(member))
        }
    }
}

/// A user or a group.
fn who(member: &Member) -> String {
    match &member.kind {
        MemberKind::User(user) => user_words(user),
        MemberKind::Group(group) => group_words(group),
        MemberKind::Users(first, last) => format!("users with numbers from {first} to {last}"),
        other => other.to_string(),
    }
}

fn principal(whose: &Whose) -> String {
    match whose {
        Whose::User(user) => user_words(user),
        Whose::Group(group) => group_words(group),
    }
}

fn user_words(user: &Principal) -> String {
    match user {
        Principal::Name(name) => format!("user {name}"),
        Principal::Id(id) => format!("user number {id}"),
    }
}

fn group_words(group: &Principal) -> String {
    match group {
        Principal::Name(name) => format!("the group {name}"),
        Principal::Id(id) => format!("group number {id}"),
    }
}

/// A reservation; tickets, and the sum of those among which they count.
type Holding = (Option<Amount>, (u64, u64));

/// What a unit holds: a sentence for all resources of which it holds the same part.
fn holds(contract: &Contract, divisions: &PerResource<Division>, id: UnitId) -> Vec<String> {
    let unit = contract.unit(id);
    let key = |resource| -> Holding { (unit.hard[resource], share(contract, id, resource)) };
    let mut groups: Vec<(Vec<Resource>, Holding)> = Vec::new();
    for resource in Resource::ALL {
        match groups.iter_mut().find(|(_, other)| *other == key(resource)) {
            Some((resources, _)) => resources.push(resource),
            None => groups.push((vec![resource], key(resource))),
        }
    }
    let whole = match unit.parent {
        Some(parent) => format!(" that {} holds", contract.unit(parent).path),
        None => String::new(),
    };
    let sentence = |(resources, (hard, (tickets, sum))): (Vec<Resource>, _)| {
        let nouns = list(&resources.iter().map(|resource| noun(*resource).to_owned()).collect::<Vec<_>>());
        let part = fraction(tickets, sum);
        let values = resources.iter().filter_map(|resource| {
            let value = divisions[*resource].of(id);
            matches!(value, Amount::Absolute(_)).then(|| quantity(*resource, value))
        });
        let values: Vec<String> = values.collect();
        let now = match values.is_empty() {
            true => String::new(),
            false => format!(": {} while all units are busy", list(&values)),
        };
        match hard {
            Some(hard) => {
                let hard = match (hard, resources.as_slice()) {
                    (Amount::Absolute(_), [resource, ..]) => quantity(*resource, hard),
                    (Amount::Part(millionths), _) => {
                        format!("{} of {nouns}{whole}", fraction(millionths, MILLIONTH))
                    }
                    (Amount::Absolute(_), []) => String::new(),
                };
                format!("It owns {hard} whatever others do, and {part} of what reservations leave{now}.")
            }
            None => format!("It holds {part} of {nouns}{whole}{now}."),
        }
    };
    groups.into_iter().map(sentence).collect()
}

/// A unit's tickets, and the sum of those among which they count.
fn share(contract: &Contract, id: UnitId, resource: Resource) -> (u64, u64) {
    let unit = contract.unit(id);
    let siblings: u64 = contract.children(unit.parent).map(|id| contract.unit(id).tickets[resource]).sum();
    let own = unit.parent.map_or(0, |parent| {
        let around = contract.unit(parent);
        if around.each.is_none() && !around.members.is_empty() { OWN_TICKETS } else { 0 }
    });
    (unit.tickets[resource], siblings + own)
}

/// What a unit may not lend or borrow, or only up to an amount.
fn may(verb: &str, verbs: &str, permissions: &PerResource<Permission>) -> Vec<String> {
    if Resource::ALL.iter().all(|resource| !permissions[*resource].allows()) {
        return vec![format!("It {verbs} nothing.")];
    }
    let sentence = |resource: Resource| match permissions[resource] {
        Permission::Yes => None,
        Permission::AtMost(most) if permissions[resource].allows() => {
            let whole = match (most, verb) {
                (Amount::Part(_), "lend") => " that it holds",
                _ => "",
            };
            Some(format!("It {verbs} at most {}{whole}.", quantity(resource, most)))
        }
        Permission::No | Permission::AtMost(_) => Some(format!("It never {verbs} {}.", noun(resource))),
    };
    Resource::ALL.into_iter().filter_map(sentence).collect()
}

fn noun(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "the CPUs",
        Resource::Memory => "the memory",
        Resource::Disk => "the disks",
        Resource::Bus => "the memory bus",
    }
}

/// An amount with its resource: `2 CPUs`, `half of memory`, `50 MB/s of each disk`.
fn quantity(resource: Resource, amount_of_it: Amount) -> String {
    let amount = amount(resource, amount_of_it);
    match (resource, amount_of_it) {
        (_, Amount::Part(millionths)) => format!("{} of {}", fraction(millionths, MILLIONTH), noun(resource)),
        (Resource::Cpu, Amount::Absolute(MILLIONTH)) => "1 CPU".to_owned(),
        (Resource::Cpu, Amount::Absolute(_)) => format!("{amount} CPUs"),
        (Resource::Memory, Amount::Absolute(_)) => format!("{amount} of memory"),
        (Resource::Disk, Amount::Absolute(_)) => format!("{amount} of each disk"),
        (Resource::Bus, Amount::Absolute(_)) => format!("{amount} of the memory bus"),
    }
}

/// A part in words: `all`, `half`, `two thirds`, `36 %`.
fn fraction(part: u64, whole: u64) -> String {
    const NUMBERS: [&str; 8] = ["", "one", "two", "three", "four", "five", "six", "seven"];
    const PARTS: [&str; 11] =
        ["", "", "half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
    let divisor = gcd(part, whole).max(1);
    let (n, d) = (part / divisor, whole / divisor);
    let d_index = usize::try_from(d).unwrap_or(usize::MAX);
    match (n, PARTS.get(d_index)) {
        (1, Some(&"")) => "all".to_owned(),
        (1, Some(&"half")) => "half".to_owned(),
        (1, Some(&name)) => format!("{} {name}", if name == "eighth" { "an" } else { "a" }),
        (2..=7, Some(name)) if n < d => format!("{} {name}s", NUMBERS[usize::try_from(n).unwrap_or(0)]),
        _ => u64::try_from(u128::from(part) * u128::from(MILLIONTH) / u128::from(whole.max(1)))
            .map_or(String::new(), millionths),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `a`, `a and b`, `a, b and c`.
fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_simple_fractions_or_percentages() {
        let words =
            [(1, 1), (100, 200), (200, 300), (10, 40), (3, 8), (1, 8), (7, 9), (10, 110), (0, 5), (0, 0)];
        let words: Vec<String> = words.map(|(part, whole)| fraction(part, whole)).into();
        assert_eq!(
            words,
            [
                "all",
                "half",
                "two thirds",
                "a quarter",
                "three eighths",
                "an eighth",
                "seven ninths",
                "9.1%",
                "0%",
                "0%"
            ]
        );
    }
}
