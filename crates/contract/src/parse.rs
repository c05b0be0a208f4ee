//! Runs all stages from text to contract: [`document`] reads the syntax, [`read`] reads the values, and
//! `check` compares the values.

use crate::diagnostic::Diagnostic;
use crate::model::Contract;
use crate::{document, read};

/// The result of [`parse()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The contract, if no diagnostic is an error.
    pub contract: Option<Contract>,
    /// After an error: the readable part of the contract, with defaults in place of invalid values. Callers
    /// use it to report, in the same run, which of its amounts do not fit the machine.
    pub draft: Option<Contract>,
    /// The errors and warnings, in the order of the text. There are at most 200; if there were more, the last
    /// one gives their number.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a contract, and reports every error in one run. Accepts any text.
pub fn parse(text: &str) -> Parsed {
    let missing = ["unknown-unit", "missing-version"];
    let (contract, diagnostics) = document::read(text, &missing, read::read);
    let (contract, draft) = match diagnostics.iter().any(Diagnostic::is_error) {
        true => (None, Some(contract)),
        false => (Some(contract), None),
    };
    Parsed { contract, draft, diagnostics }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::document::DIAGNOSTICS_MAX;
    use crate::keys::{DEPTH_MAX, HARD, Kind, LEND, MACHINE, MEMBERS_MAX, ROOT, Table, UNIT, UNITS_MAX};
    use crate::model::{CpuMode, Each, Member, MemberKind, Places, Principal, Scheme, Unit, UnitId};
    use crate::resource::{Amount, DEFAULT_TICKETS, PerResource, Permission, Resource};

    fn contract(text: &str) -> Contract {
        let parsed = parse(text);
        parsed.contract.unwrap_or_else(|| panic!("{text}\n{:#?}", parsed.diagnostics))
    }

    fn codes(text: &str) -> Vec<&'static str> {
        parse(text).diagnostics.iter().map(|diagnostic| diagnostic.code).collect()
    }

    #[test]
    fn every_value_arrives() {
        let text = r#"
            version = 1
            [machine]
            cpu = "partition"
            scheme = "quota"
            reserve = "512MiB"
            rotation = "100ms"
            call-back = "20ms"
            call-back-memory = "500ms"
            loans-remembered = "1min"
            isolated = true
            default = "physics/batch"
            [unit.physics]
            members = ["group:physics", 'user:1000']
            tickets = 200
            hard = { cpu = 1.5, memory = "8GiB", disk = "25%", bus = "1GB/s" }
            limit = { cpu = 2, memory = "50%" }
            lend = { memory = false }
            borrow = false
            [unit.physics.unit.batch]
            [unit.lab]
            members = ["group:lab"]
            each = "user"
        "#;
        let contract = contract(text);
        let machine = &contract.machine;
        assert_eq!((machine.cpu, machine.scheme), (CpuMode::Partition, Scheme::Quota));
        assert_eq!(machine.reserve, Amount::Absolute(512 << 20));
        assert_eq!((machine.rotation_ns, machine.call_back_ns), (100_000_000, 20_000_000));
        assert_eq!(machine.call_back_memory_ns, 500_000_000);
        assert_eq!(machine.loans_remembered_ns, 60_000_000_000);
        assert!(machine.isolated && !Contract::default().machine.isolated);
        let physics = contract.unit(contract.find("physics").unwrap());
        let span = |part: &str| text.find(part).map(|start| start..start + part.len()).unwrap();
        let group = Member {
            kind: MemberKind::Group(Principal::Name("physics".into())),
            span: span("\"group:physics\""),
        };
        let user = Member { kind: MemberKind::User(Principal::Id(1000)), span: span("'user:1000'") };
        let expected = Unit {
            members: vec![group, user],
            tickets: PerResource::all(200),
            hard: PerResource {
                cpu: Some(Amount::Absolute(1_500_000)),
                memory: Some(Amount::Absolute(8 << 30)),
                disk: Some(Amount::Part(250_000)),
                bus: Some(Amount::Absolute(1_000_000_000)),
            },
            limit: PerResource {
                cpu: Some(Amount::Absolute(2_000_000)),
                memory: Some(Amount::Part(500_000)),
                ..PerResource::default()
            },
            lend: PerResource { memory: Permission::No, ..PerResource::default() },
            borrow: PerResource::all(Permission::No),
            span: span("[unit.physics]").start + 6..span("[unit.physics]").end - 1,
            places: Places {
                members: Some(span("[\"group:physics\", 'user:1000']")),
                hard: PerResource {
                    cpu: Some(span("1.5")),
                    memory: Some(span("\"8GiB\"")),
                    disk: Some(span("\"25%\"")),
                    bus: Some(span("\"1GB/s\"")),
                },
                limit: PerResource {
                    cpu: Some(span("2, memory = \"50%\"").start..span("2, memory = \"50%\"").start + 1),
                    memory: Some(span("\"50%\"")),
                    ..PerResource::default()
                },
            },
            ..Unit::new("physics", None)
        };
        assert_eq!(physics, &expected);
        let batch = contract.find("physics/batch").unwrap();
        assert_eq!((contract.unit(batch).parent, contract.default_unit), (contract.find("physics"), batch));
        assert_eq!(contract.unit(contract.find("lab").unwrap()).each, Some(Each::User));
    }

    #[test]
    fn a_missing_key_has_its_default() {
        let contract = contract("version = 1\n[unit.a]");
        let a = contract.unit(contract.find("a").unwrap());
        assert_eq!(a, &Unit { span: a.span.clone(), ..Unit::new("a", None) });
        assert_eq!((a.tickets, contract.default_unit), (PerResource::all(DEFAULT_TICKETS), UnitId::SHARED));
        assert_eq!(contract.machine, Contract::default().machine);
    }

    #[test]
    fn units_stand_in_the_order_of_the_text_each_parent_first() {
        let text =
            "version = 1\n[unit.z.unit.y]\n[unit.b]\n[unit.z.unit.a]\n[unit.a]\nunit = { k = {}, j = {} }";
        let contract = contract(text);
        let paths: Vec<&str> = contract.held().map(|id| contract.unit(id).path.as_str()).collect();
        assert_eq!(paths, ["z", "z/y", "z/a", "b", "a", "a/k", "a/j"]);
    }

    /// A contract with one key of a table set; `physics` is there for `default` to name.
    fn with_key(table: &Table, key: &str, value: &str) -> String {
        let header = match table.title {
            "a contract" if key == "version" => return "version = 1".to_owned(),
            "a contract" => return format!("version = 1\n{key} = {value}"),
            "[machine]" => "[machine]\n".to_owned(),
            "a unit" => "[unit.physics]\n".to_owned(),
            "`lend`" => "[unit.physics.lend]\n".to_owned(),
            _ => "[unit.physics.hard]\n".to_owned(),
        };
        let unit = if table.title == "[machine]" { "\n[unit.physics]" } else { "" };
        format!("version = 1\n{header}{key} = {value}{unit}")
    }

    #[test]
    fn every_key_of_the_table_is_read_and_has_an_effect() {
        for table in [&ROOT, &MACHINE, &UNIT, &HARD, &LEND] {
            for key in table.keys.iter().filter(|key| key.name != "version") {
                let spanless = |text: &str| {
                    let mut contract = contract(text);
                    contract.pools_span = 0..0;
                    for unit in &mut contract.units {
                        (unit.span, unit.places) = (0..0, Places::default());
                        unit.members.iter_mut().chain(&mut unit.owner).for_each(|member| member.span = 0..0);
                    }
                    contract
                };
                let set = spanless(&with_key(table, key.name, key.example));
                let bare =
                    if table.title == "a contract" { "version = 1" } else { "version = 1\n[unit.physics]" };
                assert_ne!(set, spanless(bare), "`{}` of {}", key.name, table.title);
                if !key.default.is_empty() {
                    let default = with_key(table, key.name, key.default);
                    assert_eq!(spanless(&default), spanless(bare), "the default of `{}`", key.name);
                }
            }
        }
    }

    #[test]
    fn all_words_of_a_choice_have_different_meanings() {
        for key in MACHINE.keys {
            let Kind::Choice(words) = key.kind else { continue };
            let contracts: Vec<_> = words
                .iter()
                .map(|word| contract(&with_key(&MACHINE, key.name, &format!("\"{word}\""))))
                .collect();
            for (i, a) in contracts.iter().enumerate() {
                assert!(
                    contracts[i + 1..].iter().all(|b| a.machine != b.machine),
                    "{} of {}",
                    words[i],
                    key.name
                );
            }
        }
    }

    #[test]
    fn a_syntax_error_hides_no_other_error_and_causes_none() {
        let text = "version = 1\n[machine]\ndefault = \"b\"\n[unit.a]\nmembers = [\"user:x\"\ntickets = 0\n\
                    [unit.b\neach = \"user\"";
        assert_eq!(codes(text), ["syntax", "out-of-range", "syntax"]);
        assert_eq!(codes("version = \n[unit.a]"), ["syntax"]);
        // Whether the unit names users cannot be told while its members cannot be read.
        assert_eq!(codes("version = 1\n[unit.a]\nmembers = [\neach = \"user\""), ["syntax"]);
    }

    #[test]
    fn the_keys_of_a_repeated_unit_are_not_reported_too() {
        let text =
            "version = 1\n[unit.a]\ntickets = 1\n[unit.a]\ntickets = 2\n[unit.b]\nlend = true\nlend = true";
        let parsed = parse(text);
        assert_eq!(codes(text), ["duplicate", "duplicate"]);
        let related: Vec<_> = parsed.diagnostics.iter().map(|d| &text[d.related[0].0.clone()]).collect();
        assert_eq!(related, ["a", "lend"]);
        assert!(parsed.contract.is_none());
    }

    #[test]
    fn limits_of_size_are_kept() {
        let units = |count: usize| {
            (0..count).fold("version = 1\n".to_owned(), |text, i| text + &format!("[unit.u{i}]\n"))
        };
        assert_eq!(codes(&units(UNITS_MAX)), [] as [&str; 0]);
        assert_eq!(codes(&units(UNITS_MAX + 2)), ["too-many-units"]);

        let nested = |depth: usize| format!("version = 1\n[{}]", vec!["unit.u"; depth].join("."));
        assert_eq!(codes(&nested(DEPTH_MAX)), [] as [&str; 0]);
        assert_eq!(codes(&nested(DEPTH_MAX + 3)), ["too-deep"]);

        let members = |count: usize| {
            let list: Vec<String> = (0..count).map(|uid| format!("\"user:{uid}\"")).collect();
            format!("version = 1\n[unit.a]\nmembers = [{}]", list.join(","))
        };
        assert_eq!(codes(&members(MEMBERS_MAX)), [] as [&str; 0]);
        assert_eq!(codes(&members(MEMBERS_MAX + 1)), ["too-many-members"]);
    }

    #[test]
    fn a_flood_of_mistakes_is_cut_short() {
        let text = (0..1000).fold("version = 1\n".to_owned(), |text, i| text + &format!("key{i} = 1\n"));
        let diagnostics = parse(&text).diagnostics;
        assert_eq!(diagnostics.len(), DIAGNOSTICS_MAX);
        assert_eq!(diagnostics[DIAGNOSTICS_MAX - 1].message, "801 more problems are not shown");
        assert!(diagnostics[DIAGNOSTICS_MAX - 1].is_error());
    }

    #[test]
    fn a_hostile_text_does_not_exhaust_the_stack() {
        let brackets = format!("a = {}", "[".repeat(100_000));
        let dots = format!("{}a = 1", "a.".repeat(100_000));
        let key = format!("{}a", "a.".repeat(70));
        let braces = format!("{}1{}", format!("{{ {key} = ").repeat(70), " }".repeat(70));
        for text in [brackets, dots, format!("[{key}]\n{key} = {braces}")] {
            assert!(parse(&text).contract.is_none());
        }
    }

    #[test]
    fn reservations_may_sum_to_all_and_equal_the_limit() {
        let unit =
            |name: &str| format!("[unit.{name}]\nhard = {{ cpu = \"50%\" }}\nlimit = {{ cpu = \"50%\" }}\n");
        assert_eq!(codes(&format!("version = 1\n{}{}", unit("a"), unit("b"))), [] as [&str; 0]);
    }

    /// One number is every resource's. Of a table, what is left out has the usual 100.
    #[test]
    fn tickets_are_one_number_or_one_per_resource() {
        let tickets = |value: &str| {
            let contract = contract(&format!("version = 1\n[unit.a]\ntickets = {value}"));
            contract.unit(contract.find("a").unwrap()).tickets
        };
        assert_eq!(tickets("200"), PerResource::all(200));
        assert_eq!((tickets("200").single(), tickets("{}").single()), (Some(&200), Some(&100)));
        let all = tickets("{ cpu = 1000, memory = 1375, disk = 1, bus = 1_000_000 }");
        assert_eq!(all, PerResource { cpu: 1_000, memory: 1_375, disk: 1, bus: 1_000_000 });
        assert_eq!(tickets("{ disk = 7 }"), PerResource { disk: 7, ..PerResource::all(100) });
        assert_eq!(tickets("{ disk = 7 }").single(), None);
    }

    /// 10 % of 55 are 5.5, which are 5; a CPU is a million millionths.
    #[test]
    fn permissions_are_switches_or_amounts() {
        let text = "version = 1\n[unit.a]\nlend = { memory = \"2GiB\", cpu = true, bus = false }\n\
                    borrow = { cpu = 4, disk = \"10%\", memory = \"0B\" }";
        let contract = contract(text);
        let a = contract.unit(contract.find("a").unwrap());
        let at_most = |bytes| Permission::AtMost(Amount::Absolute(bytes));
        let lend = PerResource {
            memory: at_most(2 << 30),
            bus: Permission::No,
            ..PerResource::all(Permission::Yes)
        };
        let borrow = PerResource {
            cpu: at_most(4_000_000),
            memory: at_most(0),
            disk: Permission::AtMost(Amount::Part(100_000)),
            bus: Permission::Yes,
        };
        assert_eq!((a.lend, a.borrow), (lend, borrow));
        let allows = Resource::ALL.map(|resource| a.borrow[resource].allows());
        assert_eq!(allows, [true, false, true, true], "an amount of zero is a no");
        let most = [a.borrow.disk, a.borrow.cpu, Permission::Yes, Permission::No].map(|one| one.most(55));
        assert_eq!(most, [5, 4_000_000, u64::MAX, 0]);
    }

    #[test]
    fn units_negotiate_if_the_contract_says_so() {
        let mut contract =
            contract("version = 1\n[unit.a]\nnegotiate = true\n[unit.b]\n[unit.c]\nnegotiate = false");
        let negotiate = |contract: &Contract| -> Vec<bool> {
            contract.held().map(|id| contract.unit(id).negotiate).collect()
        };
        assert_eq!(negotiate(&contract), [true, false, false]);
        contract.negotiate();
        assert_eq!(negotiate(&contract), [true; 3]);
        assert!(!contract.unit(UnitId::SHARED).negotiate, "the common parts hold no tickets");
        let wrong = parse("version = 1\n[unit.a]\nnegotiate = \"yes\"");
        assert!(wrong.contract.is_none());
    }

    /// Units, resources and permissions in JSON: a number, a word, and what a contract would say.
    #[test]
    fn values_are_written_and_read_as_json() {
        let unit: UnitId = serde_json::from_str("7").unwrap();
        assert_eq!((unit, serde_json::to_string(&unit).unwrap().as_str()), (UnitId(7), "7"));
        for resource in Resource::ALL {
            let text = serde_json::to_string(&resource).unwrap();
            assert_eq!(text, format!("\"{resource}\""));
            assert_eq!(serde_json::from_str::<Resource>(&text).unwrap(), resource);
        }
        let permissions = [Permission::No, Permission::Yes, Permission::AtMost(Amount::Part(5))];
        assert_eq!(serde_json::to_string(&permissions).unwrap(), "[false,true,{\"part\":5}]");
    }

    #[test]
    fn each_resource_has_its_own_values() {
        for resource in Resource::ALL {
            let text = format!(
                "version = 1\n[unit.a]\nlend = {{ {resource} = false }}\nhard = {{ {resource} = \"7%\" }}"
            );
            let contract = contract(&text);
            let a = contract.unit(contract.find("a").unwrap());
            for other in Resource::ALL {
                assert_eq!(a.lend[other].allows(), other != resource);
                assert_eq!(a.hard[other], (other == resource).then_some(Amount::Part(70_000)));
            }
        }
    }
}
