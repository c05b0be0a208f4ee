//! Serialises a contract as TOML, for `commonhold tickets --as-contract`.
//!
//! Properties (tested): reading the text gives an equal contract, except for spans. Only values that differ
//! from their defaults are written. Sub-units that `each` created are not written: `each` creates them again.

use std::fmt::{Display, Write};

use crate::Contract;
use crate::jobs::PoolForm;
use crate::keys::{CALL_BACK_IDLE, CALL_BACK_MOST, VERSION};
use crate::model::{CpuMode, Deadline, Discipline, Growth, MachineRules, Unit, UnitId, Weighed};
use crate::quantity::{amount_text, duration_text, part_text};
use crate::resource::{Amount, DEFAULT_TICKETS, PerResource, Permission, Resource};

/// The contract as TOML, with the texts of `above` as comments at the beginning. Parsing the result gives an
/// equal contract, except for spans, and for sub-units that `each` created.
pub fn write(contract: &Contract, above: &[String]) -> String {
    let mut text = String::new();
    for line in above.iter().flat_map(|comment| comment.lines()) {
        // Control characters are replaced, since TOML does not allow them in comments.
        let line: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let _ = writeln!(text, "# {line}");
    }
    let _ = writeln!(text, "version = {VERSION}");
    machine(&mut text, contract);
    for id in contract.listed() {
        let is_written = |id: UnitId| {
            contract.unit(id).parent.is_none_or(|encloser| contract.unit(encloser).each.is_none())
        };
        if is_written(id) {
            unit(&mut text, contract.unit(id));
        }
    }
    text
}

/// Writes the `[machine]` table, if any of its values differs from the default.
fn machine(text: &mut String, contract: &Contract) {
    let (rules, default) = (&contract.machine, MachineRules::default());
    let mut lines = String::new();
    if rules.cpu != default.cpu {
        let word = match rules.cpu {
            CpuMode::Auto => "auto",
            CpuMode::Partition => "partition",
            CpuMode::Proportional => "proportional",
        };
        entry(&mut lines, "cpu", &quoted(word));
    }
    if rules.scheme != default.scheme {
        entry(&mut lines, "scheme", &quoted(rules.scheme.name()));
    }
    if rules.reserve != default.reserve {
        entry(&mut lines, "reserve", &quoted(&amount_text(Resource::Memory, rules.reserve)));
    }
    for (key, ns, default) in [
        ("rotation", rules.rotation_ns, default.rotation_ns),
        ("call-back", rules.call_back_ns, default.call_back_ns),
        ("call-back-memory", rules.call_back_memory_ns, default.call_back_memory_ns),
        ("loans-remembered", rules.loans_remembered_ns, default.loans_remembered_ns),
    ] {
        if ns != default {
            entry(&mut lines, key, &quoted(&duration_text(ns)));
        }
    }
    growth(&mut lines, rules.call_back_memory_grows.different_from(default.call_back_memory_grows));
    if rules.pools != default.pools {
        match rules.pools {
            PoolForm::Size(cpus) => entry(&mut lines, "pools", &cpus),
            form => entry(&mut lines, "pools", &quoted(form.word().unwrap_or("auto"))),
        }
    }
    if rules.isolated != default.isolated {
        entry(&mut lines, "isolated", &rules.isolated);
    }
    if rules.placement != default.placement {
        entry(&mut lines, "placement", &quoted(rules.placement.name()));
    }
    if rules.repartition != default.repartition {
        entry(&mut lines, "repartition", &rules.repartition);
    }
    if rules.gangs.by != default.gangs.by {
        entry(&mut lines, "gangs", &quoted(rules.gangs.by.name()));
    }
    if rules.gangs.share != default.gangs.share {
        entry(&mut lines, "gangs-share", &quoted(rules.gangs.share.name()));
    }
    if rules.gangs.quantum_ns != default.gangs.quantum_ns {
        entry(&mut lines, "quantum", &quoted(&duration_text(rules.gangs.quantum_ns)));
    }
    if rules.gangs.window != default.gangs.window {
        entry(&mut lines, "window", &rules.gangs.window);
    }
    if rules.gangs.first_rate != default.gangs.first_rate {
        entry(&mut lines, "first-rate", &quoted(&amount_text(Resource::Bus, rules.gangs.first_rate)));
    }
    if contract.default_unit != UnitId::SHARED {
        entry(&mut lines, "default", &quoted(&contract.unit(contract.default_unit).path));
    }
    if !lines.is_empty() {
        let _ = write!(text, "\n[machine]\n{lines}");
    }
}

/// Writes the table of a unit.
fn unit(text: &mut String, unit: &Unit) {
    let names: Vec<String> = unit.path.split('/').map(|name| format!("unit.{}", key(name))).collect();
    let _ = writeln!(text, "\n[{}]", names.join("."));
    // An empty list is written only if the contract had one. A missing list must stay missing, since `check`
    // warns of it.
    if !unit.members.is_empty() || unit.places.members.is_some() {
        let members: Vec<String> =
            unit.members.iter().map(|member| quoted(&member.kind.to_string())).collect();
        entry(text, "members", &format!("[{}]", members.join(", ")));
    }
    if let Some(owner) = &unit.owner {
        entry(text, "owner", &quoted(&owner.kind.to_string()));
    }
    if let Some(each) = unit.each {
        entry(text, "each", &quoted(each.name()));
    }
    if unit.each_by != Weighed::default() {
        entry(text, "each-by", &quoted(unit.each_by.name()));
    }
    match unit.tickets.single() {
        Some(&DEFAULT_TICKETS) => {}
        Some(all) => entry(text, "tickets", all),
        None => {
            let non_default =
                |resource| Some(unit.tickets[resource]).filter(|tickets| *tickets != DEFAULT_TICKETS);
            let tickets_text = |resource| non_default(resource).map(|tickets| tickets.to_string());
            entry(text, "tickets", &table(tickets_text));
        }
    }
    for (key, amounts) in [("hard", &unit.hard), ("limit", &unit.limit)] {
        if *amounts != PerResource::default() {
            entry(text, key, &table(|resource| amounts[resource].map(|value| amount(resource, value))));
        }
    }
    for (key, permissions) in [("lend", &unit.lend), ("borrow", &unit.borrow)] {
        match permissions.single() {
            Some(Permission::Yes) => {}
            Some(Permission::No) => entry(text, key, &false),
            _ => entry(text, key, &table(|resource| permission(resource, permissions[resource]))),
        }
    }
    growth(text, unit.call_back_memory_grows);
    if unit.negotiate {
        entry(text, "negotiate", &true);
    }
    if unit.discipline != Discipline::default() {
        entry(text, "discipline", &quoted(unit.discipline.name()));
    }
    if let Some(job) = unit.job {
        entry(text, "job", &quoted(job.name()));
    }
    if let Some(Deadline { period_ns, budget_ns, misses, of }) = unit.deadline {
        let [period, budget] = [period_ns, budget_ns].map(|ns| quoted(&duration_text(ns.into())));
        let table = format!("{{ period = {period}, budget = {budget}, misses = {misses}, of = {of} }}");
        entry(text, "deadline", &table);
    }
}

/// Writes the two keys for the growth of the promised call-back time, if they are set.
fn growth(text: &mut String, growth: Growth) {
    if let Some(part) = growth.idle {
        entry(text, CALL_BACK_IDLE, &quoted(&part_text(part)));
    }
    if let Some(ns) = growth.most_ns {
        entry(text, CALL_BACK_MOST, &quoted(&duration_text(ns)));
    }
}

/// Writes a line with a key and its value.
fn entry(text: &mut String, key: &str, value: &dyn Display) {
    let _ = writeln!(text, "{key} = {value}");
}

/// An inline table with the value of each resource, as `text_of` writes it. Resources with `None` are left
/// out.
fn table(text_of: impl Fn(Resource) -> Option<String>) -> String {
    let pairs =
        Resource::ALL.into_iter().filter_map(|resource| Some(format!("{resource} = {}", text_of(resource)?)));
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}

/// An amount as TOML, in quotes.
fn amount(resource: Resource, amount: Amount) -> String {
    quoted(&amount_text(resource, amount))
}

/// A permission as TOML; `None` for the default, which is `true`.
fn permission(resource: Resource, permission: Permission) -> Option<String> {
    match permission {
        Permission::Yes => None,
        Permission::No => Some("false".to_owned()),
        Permission::AtMost(most) => Some(amount(resource, most)),
    }
}

/// A name as a key of TOML. It is put in quotes if necessary, for example if it has a dot, which would make
/// two keys of it.
fn key(name: &str) -> String {
    let is_bare =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// A text as a basic string of TOML, in double quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::jobs::{GANG_WINDOW_MAX, Gangs, GangsShare, JobKind, Placement};
    use crate::model::{Member, MemberKind, Places, Principal, Scheme};
    use crate::parse;
    use proptest::prelude::*;

    /// Without what says where it stands in a text.
    fn spanless(mut contract: Contract) -> Contract {
        contract.pools_span = 0..0;
        for unit in &mut contract.units {
            let members = unit.places.members.as_ref().map(|_| 0..0);
            (unit.span, unit.places) = (0..0, Places { members, ..Places::default() });
            unit.members.iter_mut().chain(&mut unit.owner).for_each(|member| member.span = 0..0);
        }
        contract
    }

    fn read(text: &str) -> Contract {
        let parsed = parse(text);
        parsed.contract.unwrap_or_else(|| panic!("{text}\n{:#?}", parsed.diagnostics))
    }

    #[test]
    fn every_key_is_written() {
        let text = r#"# changed
# and more
version = 1

[machine]
cpu = "partition"
scheme = "quota"
reserve = "512MiB"
rotation = "100ms"
call-back = "20ms"
call-back-memory = "500ms"
call-back-memory-most = "1min"
default = "physics/night-batch"

[unit.physics]
members = ["group:physics", "user:DOMAIN\\ana \"x\""]
owner = "user:ana"
tickets = { cpu = 200, bus = 7 }
hard = { cpu = "1.5", memory = "8GiB", disk = "25%" }
limit = { cpu = "50%", bus = "1GB/s" }
lend = { memory = "2GiB", bus = false }
borrow = false
call-back-memory-idle = "0%"
call-back-memory-most = "5s"

[unit.physics.unit.night-batch]
members = []
tickets = 30

[unit."a.b"]
members = ["group:all"]
each = "user"
"#;
        let mut contract = read(text);
        let above = ["changed\nand more".to_owned()];
        assert_eq!(write(&contract, &above), text);
        // What `each` made, it makes again.
        let each = contract.find("a.b").unwrap();
        contract.welcome(&[crate::Newcomer::user(each, 1000, "ana")], &std::collections::BTreeSet::new());
        assert_eq!(write(&contract, &above), text);
        let hostile = write(&contract, &["a\u{1b}[31m\r\nversion = 2".to_owned()]);
        assert!(hostile.starts_with("# a\u{fffd}[31m\n# version = 2\nversion = 1\n"), "{hostile}");
        read(&hostile);
    }

    fn any_amount() -> impl Strategy<Value = Option<Amount>> {
        prop_oneof![
            Just(None),
            (0u64..=250_000).prop_map(|part| Some(Amount::Part(part))),
            (1u64..1 << 45).prop_map(|amount| Some(Amount::Absolute(amount))),
        ]
    }

    fn any_permission() -> impl Strategy<Value = Permission> {
        prop_oneof![
            Just(Permission::Yes),
            Just(Permission::No),
            any_amount().prop_map(|amount| amount.map_or(Permission::Yes, Permission::AtMost)),
        ]
    }

    fn per_resource<T: std::fmt::Debug + 'static>(
        of: impl Fn() -> BoxedStrategy<T>,
    ) -> impl Strategy<Value = PerResource<T>> {
        (of(), of(), of(), of()).prop_map(|(cpu, memory, disk, bus)| PerResource { cpu, memory, disk, bus })
    }

    proptest! {
        /// Any contract that can be written is read as it was.
        #[test]
        fn what_is_written_is_read(
            units in proptest::collection::vec(
                (
                    any::<prop::sample::Index>(),
                    "[A-Za-z0-9_.-]{0,6}",
                    per_resource(|| (1u64..=1_000_000).boxed()),
                    per_resource(|| any_amount().boxed()),
                    per_resource(|| any_permission().boxed()),
                    proptest::option::of("[a-z\"\\\\'#= ]{1,8}"),
                ),
                1..4,
            ),
            (rotation, scheme, cpu, owner) in (10u64..10_000, 0..3usize, 0..3usize, proptest::option::of(0u32..9)),
        ) {
            let mut contract = Contract::default();
            contract.machine.rotation_ns = rotation * 1_000_000;
            contract.machine.loans_remembered_ns = rotation * 60_000_000_000;
            contract.machine.isolated = rotation % 2 == 0;
            contract.machine.call_back_memory_grows.idle = Some(rotation * 10);
            contract.machine.call_back_memory_grows.most_ns = Some(rotation * 20_000_000);
            let turn = usize::try_from(rotation).unwrap();
            let size = PoolForm::Size(u32::try_from(rotation).unwrap());
            contract.machine.pools = PoolForm::NAMED.get(turn % 7).copied().unwrap_or(size);
            contract.machine.placement = Placement::ALL[turn % Placement::ALL.len()];
            contract.machine.repartition = rotation % 2 == 0;
            contract.machine.gangs.by = Gangs::ALL[turn % Gangs::ALL.len()];
            contract.machine.gangs.quantum_ns = rotation * 1_000_000;
            contract.machine.gangs.window = u32::try_from(rotation).unwrap().min(GANG_WINDOW_MAX);
            contract.machine.gangs.first_rate = Amount::Absolute(rotation * 1_000);
            if contract.machine.gangs.by != Gangs::Demand {
                contract.machine.gangs.share = GangsShare::ALL[turn / 7 % GangsShare::ALL.len()];
            }
            if contract.machine.gangs.share != GangsShare::Bus {
                contract.machine.gangs.first_rate = Amount::Part(rotation * 10);
            }
            contract.machine.scheme = [Scheme::Smp, Scheme::Quota, Scheme::Isolate][scheme];
            contract.machine.cpu = [CpuMode::Auto, CpuMode::Partition, CpuMode::Proportional][cpu];
            let mut made = vec![None];
            for (n, (encloser, name, tickets, hard, permissions, member)) in units.into_iter().enumerate() {
                let id = contract.add(*encloser.get(&made), &format!("u{n}{name}"));
                made.push(Some(id));
                let unit = &mut contract.units[id.index()];
                (unit.tickets, unit.lend) = (tickets, permissions);
                // Absolute ones could exceed the encloser's.
                for resource in Resource::ALL {
                    unit.hard[resource] = hard[resource].filter(|it| matches!(it, Amount::Part(_)));
                    unit.borrow[resource] = hard[resource].map_or(Permission::Yes, Permission::AtMost);
                }
                let name = member.filter(|it| it.trim() == it).map(|it| format!("{it}{n}"));
                let user = |name| Member { kind: MemberKind::User(Principal::Name(name)), span: 0..0 };
                unit.members = name.into_iter().map(user).collect();
                unit.negotiate = n % 2 == 1;
                unit.call_back_memory_grows =
                    Growth { idle: owner.map(u64::from), most_ns: owner.map(|n| 1_000_000_000 * (u64::from(n) + 1)) };
                unit.discipline = Discipline::ALL[(n + cpu) % Discipline::ALL.len()];
                unit.deadline = owner.map(|n| {
                    Deadline { period_ns: 20_000_000, budget_ns: 1_000_000 * (n + 1), misses: n, of: n + 1 }
                });
                unit.job = owner.map(|uid| JobKind::ALL[uid as usize % JobKind::ALL.len()]);
                unit.owner = owner.map(|uid| Member { kind: MemberKind::Group(Principal::Id(uid)), span: 0..0 });
            }
            let text = write(&contract, &[]);
            let mut found = spanless(read(&text));
            let mut expected = spanless(contract);
            // The text has the units of a unit behind it: paths are what counts.
            let by_path = |contract: &mut Contract| {
                let paths: Vec<String> = contract.units.iter().map(|unit| unit.path.clone()).collect();
                let mut units: Vec<(Option<String>, Unit)> = contract.units.iter().map(|unit| {
                    let parent = unit.parent.map(|parent| paths[parent.index()].clone());
                    (parent, Unit { parent: None, places: Places::default(), ..unit.clone() })
                }).collect();
                units.sort_by(|one, other| one.1.path.cmp(&other.1.path));
                units
            };
            prop_assert_eq!(by_path(&mut found), by_path(&mut expected), "{}", text);
            prop_assert_eq!(found.machine, expected.machine);
        }
    }
}
