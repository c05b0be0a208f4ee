//! Feeds arbitrary texts to the importers of workloads: they must return, and what they write must be a
//! workload that the simulator reads.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use commonhold_contract::{Contract, Level, parse, render};
use commonhold_sim::scenario::{Hardware, parse_machine, parse_workload};
use commonhold_workloads::{Format, Options, Units, import};
use libfuzzer_sys::fuzz_target;

static SURROUNDINGS: LazyLock<(Contract, Hardware)> = LazyLock::new(|| {
    let contract = parse("version = 1\n[unit.light]\n").contract;
    let machine = parse_machine("version = 1\nshape = \"cpus:4 memory:64GiB\"\n[disk.d0]\n").value;
    (contract.expect("the contract is valid"), machine.expect("the machine is valid"))
});

const FORMATS: [Format; 5] = [Format::RtApp, Format::Fio, Format::Iolog, Format::Swf, Format::Trace];

fuzz_target!(|text: &str| {
    for format in FORMATS {
        check(text, format);
    }
});

fn check(text: &str, format: Format) {
    let options = Options {
        unit: "light".to_owned(),
        units: Units::One,
        source: "fuzz".to_owned(),
        horizon_ns: None,
        jobs: None,
        names: BTreeMap::new(),
    };
    let imported = import(text, format, &options);
    for diagnostic in &imported.diagnostics {
        assert!(text.get(diagnostic.span.clone()).is_some(), "{diagnostic:?} points into the text");
    }
    let shown = render(&imported.diagnostics, text, "a", false);
    assert!(!shown.contains('\u{1b}'), "no escape code of the text reaches the terminal");
    let Some(workload) = &imported.text else {
        let has_errors = imported.diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
        assert!(has_errors, "without a workload there is an error");
        return;
    };
    // A trace names its own units.
    if format != Format::Trace {
        let (contract, hardware) = &*SURROUNDINGS;
        let parsed = parse_workload(workload, contract, hardware);
        let errors = parsed.diagnostics.iter().filter(|diagnostic| diagnostic.level == Level::Error);
        assert_eq!(errors.count(), 0, "{}", render(&parsed.diagnostics, workload, "workload.toml", false));
    }
}
