//! Properties for every text, valid or not.
#![allow(clippy::unwrap_used)]

use commonhold_contract::{Level, parse, position, render};
use proptest::prelude::*;

/// A contract that uses every key, for mutations to start from.
const WHOLE: &str = r#"version = 1
[machine]
cpu = "auto"
scheme = "isolate"
reserve = "8%"
rotation = "250ms"
call-back = "10ms"
call-back-memory = "1s"
default = "physics/night-batch"
[unit.physics]
members = ["group:physics", "user:ana", "cgroup:/lab", "pid:77"]
owner = "user:ana"
tickets = { cpu = 200, memory = 1375 }
hard = { cpu = "2", memory = "8GiB", disk = "25%", bus = "20%" }
limit = { memory = "32GiB" }
lend = { cpu = true, memory = "2GiB", bus = false }
borrow = { cpu = 1.5, disk = "10%" }
[unit.physics.unit.night-batch]
members = ["command:simulate*"]
[unit.students]
members = ["group:größe"]
each = "user"
tickets = 50
borrow = true
"#;

/// Properties of any text's diagnostics.
fn check(text: &str) {
    let parsed = parse(text);
    let errors = parsed.diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
    assert_eq!(parsed.contract.is_none(), errors, "a contract if and only if there is no error");
    assert_eq!(parsed.draft.is_some(), errors, "else what could be read");
    for diagnostic in &parsed.diagnostics {
        let related = diagnostic.related.iter().map(|(span, _)| span);
        for span in related.chain([&diagnostic.span]) {
            assert!(text.get(span.clone()).is_some(), "{span:?} is no slice of {text:?}: {diagnostic:?}");
        }
        assert!(!diagnostic.message.is_empty());
    }
    assert!(parsed.diagnostics.is_sorted_by_key(|diagnostic| diagnostic.span.start));
    for color in [false, true] {
        let shown = render(&parsed.diagnostics, text, "contract.toml", color);
        assert_eq!(shown.is_empty(), parsed.diagnostics.is_empty());
    }
    let units = parsed.contract.iter().flat_map(|contract| &contract.units);
    for unit in units.filter(|unit| !unit.span.is_empty()) {
        assert!(text[unit.span.clone()].contains(&unit.name));
    }
}

/// Pieces that contracts and their mistakes are made of.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "version",
        "machine",
        "unit",
        "members",
        "owner",
        "tickets",
        "hard",
        "limit",
        "lend",
        "each",
        "cpu",
        "memory",
        "physics",
        "=",
        ".",
        ",",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "\"\"\"",
        "#",
        "\n",
        "\r\n",
        " ",
        "\t",
        "1",
        "0",
        "-1",
        "1.5",
        "25%",
        "8GiB",
        "8G",
        "\"user:ana\"",
        "\"cgroup:/a\"",
        "true",
        "\\u0041",
        "ä",
        "𝄞",
        "\0",
        "\u{feff}",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..60).prop_map(|words| words.concat())
}

/// `WHOLE` with some of its characters removed, doubled or replaced.
fn mutated() -> impl Strategy<Value = String> {
    let change = (0..WHOLE.chars().count(), 0..3, any::<char>());
    prop::collection::vec(change, 1..4).prop_map(|changes| {
        let mut text: Vec<char> = WHOLE.chars().collect();
        for (at, what, with) in changes {
            let at = at.min(text.len() - 1);
            match what {
                0 => drop(text.remove(at)),
                1 => text.insert(at, with),
                _ => text.insert(at, text[at]),
            }
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in "\\PC*") {
        check(&text);
    }

    #[test]
    fn anything_made_of_the_languages_pieces_is_answered(text in pieces()) {
        check(&text);
    }

    #[test]
    fn any_slip_of_the_hand_is_answered(text in mutated()) {
        check(&text);
    }

    #[test]
    fn a_text_cut_off_anywhere_is_answered(at in 0..WHOLE.len()) {
        if let Some(text) = WHOLE.get(..at) {
            check(text);
        }
    }

    #[test]
    fn positions_and_offsets_agree(text in "[a-c\nä]{0,40}", offset in 0usize..60) {
        let (line, column) = position(&text, offset);
        let within = text.split('\n').nth(line - 1).unwrap();
        prop_assert!(column <= within.chars().count() + 1);
    }
}

#[test]
fn the_contract_that_mutations_start_from_is_valid() {
    let parsed = parse(WHOLE);
    assert!(parsed.contract.is_some() && parsed.diagnostics.is_empty(), "{:#?}", parsed.diagnostics);
}
