//! Helpers of tests: scenarios from texts, and runs in which every audit check must hold.
#![allow(dead_code, clippy::format_push_string, reason = "texts of tests, of which every file uses a part")]

use commonhold_contract::render;
use commonhold_sim::outcome::{JobOutcome, Outcome, UnitOutcome};
use commonhold_sim::scenario::{Part, Scenario, read};

/// A millisecond and a second, in ns.
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;

/// The scenario of three texts, which must have no errors.
pub(crate) fn scenario(contract: &str, machine: &str, workload: &str) -> Scenario {
    let read = read(contract, machine, workload);
    read.scenario.unwrap_or_else(|| {
        let shown = read.findings.iter().map(|finding| {
            let (text, name) = match finding.part {
                Part::Contract => (contract, "contract.toml"),
                Part::Machine => (machine, "machine.toml"),
                Part::Workload => (workload, "workload.toml"),
            };
            let wrong: Vec<_> =
                finding.diagnostics.iter().filter(|found| found.is_error()).cloned().collect();
            render(&wrong, text, name, false)
        });
        panic!("no scenario: {}", shown.collect::<String>());
    })
}

/// Runs a scenario, and asserts that every audit check held.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    run_with(scenario, 1)
}

/// Runs a scenario with another seed, and asserts that every audit check held.
pub(crate) fn run_with(scenario: &Scenario, seed: u64) -> Outcome {
    let outcome = commonhold_sim::run(scenario, seed).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.broken, 0, "seed {seed}: {:#?}", outcome.notes);
    outcome
}

/// Runs the scenario of three texts.
pub(crate) fn outcome(contract: &str, machine: &str, workload: &str) -> Outcome {
    run(&scenario(contract, machine, workload))
}

/// The copies of a job.
pub(crate) fn jobs<'a>(outcome: &'a Outcome, name: &str) -> Vec<&'a JobOutcome> {
    outcome.jobs.iter().filter(|job| job.name == name).collect()
}

/// The response time of a job in ns: the mean of its copies.
pub(crate) fn response(outcome: &Outcome, name: &str) -> u64 {
    let spans: Vec<u64> = jobs(outcome, name)
        .iter()
        .map(|job| job.response_ns().unwrap_or_else(|| panic!("{name} ended before the horizon")))
        .collect();
    spans.iter().sum::<u64>() / spans.len() as u64
}

/// A unit's outcome.
pub(crate) fn unit<'a>(outcome: &'a Outcome, name: &str) -> &'a UnitOutcome {
    outcome.units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("{name} had processes"))
}

/// Asserts that two numbers differ by at most `per_mille` of the second.
#[track_caller]
pub(crate) fn near(is: u64, should: u64, per_mille: u64) {
    let off = is.abs_diff(should);
    assert!(off * 1000 <= should * per_mille, "{is} is not within {per_mille} per mille of {should}");
}

/// A machine with `cpus` CPUs on which all costs are zero but those in `more`. The clock ticks every 10 ms,
/// slices last 30 ms.
pub(crate) fn machine(cpus: u32, more: &str) -> String {
    let mut text = format!("version = 1\nshape = \"cpus:{cpus} memory:64MiB\"\n[kernel]\n{more}\n");
    let is_given = |key: &str| more.lines().any(|line| line.starts_with(key));
    for (key, usual) in [("tick", "10ms"), ("slice", "30ms"), ("call_back", "now")] {
        if !is_given(key) {
            text += &format!("{key} = \"{usual}\"\n");
        }
    }
    for key in ["switch", "ipi", "fault", "request", "fork"] {
        if !is_given(key) {
            text += &format!("{key} = \"0s\"\n");
        }
    }
    text
}

/// A contract with units a and b that have these keys, under a scheme.
pub(crate) fn contract(scheme: &str, a: &str, b: &str) -> String {
    format!("version = 1\n[machine]\nscheme = \"{scheme}\"\n[unit.a]\n{a}\n[unit.b]\n{b}\n")
}

/// A workload with these programs, by name, and these jobs.
pub(crate) fn workload(programs: &[(&str, &str)], jobs: &[(&str, &str, &str, &str)]) -> String {
    let mut text = "version = 1\nhorizon = \"1h\"\n".to_owned();
    for (name, steps) in programs {
        text += &format!("[program.{name}]\ndo = [{steps}]\n");
    }
    for (name, unit, program, more) in jobs {
        text += &format!("[job.{name}]\nunit = \"{unit}\"\nprogram = \"{program}\"\n{more}\n");
    }
    text
}
