//! Feeds arbitrary bytes to the contract's parser: it must return, and its result must be consistent.
#![no_main]

use commonhold_contract::{Level, Parsed, Resource, amount_text, parse, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let parsed = parse(text);
    let errors = parsed.diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
    assert_eq!(parsed.contract.is_none(), errors, "a contract if and only if there is no error");
    assert_eq!(parsed.draft.is_some(), errors, "else what could be read");
    for diagnostic in &parsed.diagnostics {
        assert!(text.get(diagnostic.span.clone()).is_some(), "{diagnostic:?} points into the text");
        for (span, _) in &diagnostic.related {
            assert!(text.get(span.clone()).is_some(), "{diagnostic:?} points into the text");
        }
    }
    let shown = render(&parsed.diagnostics, text, "contract.toml", false);
    assert!(!shown.contains('\u{1b}'), "no escape code of the text reaches the terminal");
    check_units(&parsed);
});

/// The invariants that later stages rely on.
fn check_units(parsed: &Parsed) {
    let Some(contract) = &parsed.contract else { return };
    for id in contract.held() {
        let unit = contract.unit(id);
        assert!(unit.parent.is_none_or(|parent| parent < id && !parent.is_common()), "parents stand first");
        assert_eq!(contract.find(&unit.path), Some(id), "paths are unique");
        for resource in Resource::ALL {
            assert!(unit.tickets[resource] > 0);
            let loans = [unit.lend[resource].amount(), unit.borrow[resource].amount()];
            for amount in [unit.hard[resource], unit.limit[resource]].into_iter().chain(loans).flatten() {
                assert!(!amount_text(resource, amount).is_empty());
            }
        }
    }
}
