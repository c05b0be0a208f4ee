//! A run of the lab under the `kernel` backend, recorded by `lab/tests/80-conformance.sh` and replayed in the
//! simulator under the same contract. The simulator's figures differ from the kernel's by no more than
//! docs/conformance.md states.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use commonhold_sim::trace;

const CONTRACT: &str = include_str!("../../../lab/conformance/contract.toml");
const MACHINE: &str = include_str!("../../../lab/conformance/machine.toml");
const RECORDING: &str = include_str!("conformance/recording.txt");

/// The counts of the lab's kernel, and of the project's scheduler in that kernel, during the run.
const COUNTED: &str = include_str!("conformance/counted.txt");

/// The counts of one unit.
struct Counted {
    name: &'static str,
    used_ns: u64,
    lent_ns: u64,
    borrowed_ns: u64,
    called_back: u64,
}

fn replayed() -> Outcome {
    let workload = trace::read(RECORDING).unwrap().workload("recording.txt");
    scene::outcome(CONTRACT, MACHINE, &workload)
}

/// Reads a line of counts: a name, and numbers by name.
fn line(of: &str) -> impl Fn(&str) -> u64 {
    let line = COUNTED.lines().find(|line| line.starts_with(of)).unwrap();
    let number =
        |word: &'static str| word.split_once('=').map(|(name, value)| (name, value.parse().unwrap()));
    let numbers: std::collections::BTreeMap<&str, u64> = line.split(' ').filter_map(number).collect();
    move |name| numbers[name]
}

fn counted() -> [Counted; 3] {
    ["light", "heavy", "brief"].map(|name| {
        let number = line(name);
        Counted {
            name,
            used_ns: number("used_ns"),
            lent_ns: number("lent_ns"),
            borrowed_ns: number("borrowed_ns"),
            called_back: number("called_back"),
        }
    })
}

/// CPU time of the daemon and of kernel threads, which are not replayed.
fn others_ns() -> u64 {
    line("others")("used_ns")
}

#[test]
fn units_have_what_they_had_in_the_kernel() {
    let outcome = replayed();
    for counted in &counted() {
        // The unit with work for every CPU gets the CPU time that the others leave; in the lab, the daemon
        // uses a part of that.
        let used_ns = counted.used_ns + if counted.name == "heavy" { others_ns() } else { 0 };
        scene::near(scene::unit(&outcome, counted.name).used_ns, used_ns, 50);
    }
}

#[test]
fn as_much_is_lent_as_in_the_kernel() {
    let outcome = replayed();
    let lent_ns: u64 = outcome.units.iter().map(|unit| unit.lent_ns).sum();
    scene::near(lent_ns, counted().iter().map(|unit| unit.lent_ns).sum(), 200);
    let borrowed_ns = counted().iter().map(|unit| unit.borrowed_ns).sum::<u64>() + others_ns();
    scene::near(outcome.units.iter().map(|unit| unit.borrowed_ns).sum(), borrowed_ns, 200);
}

#[test]
fn cpus_are_called_back_as_often_as_in_the_kernel() {
    let outcome = replayed();
    let called = |name: &str| scene::unit(&outcome, name).called_back;
    for counted in &counted() {
        within(called(counted.name), counted.called_back, 2_000, counted.name);
    }
    let all = counted().iter().map(|unit| unit.called_back).sum();
    within(outcome.units.iter().map(|unit| unit.called_back).sum(), all, 1_250, "all");
}

/// Asserts that neither number exceeds the other by more than a factor of `thousandths`.
fn within(is: u64, should: u64, thousandths: u64, of: &str) {
    assert!(
        is * 1_000 <= should * thousandths && should * 1_000 <= is * thousandths,
        "{of}: called back {is} times, {should} in the kernel: not within {thousandths} thousandths"
    );
}
