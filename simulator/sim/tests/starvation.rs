//! No task waits so long that a kernel would end the scheduler, however small its unit's part is and however
//! many tasks there are.
//!
//! `COMMONHOLD_SCENARIOS=300 cargo test --release -p commonhold-sim --test starvation` tries more contracts.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

#[path = "scene/chance.rs"]
mod chance;
mod scene;

use chance::Chance;
use std::env;

use commonhold_sim::outcome::Outcome;
use scene::{MS, S, outcome};

/// The time for which a task may wait before the kernel ends the scheduler.
const BORNE_NS: u64 = 30 * S;
/// The bound on waits in the tests: less than the kernel's, as a reserve for delays that are not simulated.
/// It holds as long as a tenth of the machine is enough to serve all late tasks in time.
const BORNE_BY_FEW_NS: u64 = 25 * S;
const FEW: u64 = 100;

/// Contracts that a plain `cargo test` tries.
const SCENARIOS: u64 = 10;

/// A unit's keys, and the number of its processes that compute without end.
struct Unit {
    path: String,
    keys: String,
    busy: u64,
}

fn unit(path: &str, keys: &str, busy: u64) -> Unit {
    Unit { path: path.to_owned(), keys: keys.to_owned(), busy }
}

/// The outcome of a simulated minute.
fn minute(cpus: u64, machine: &str, units: &[Unit]) -> Outcome {
    let mut contract = format!("version = 1\n[machine]\n{machine}\n");
    let mut workload = "version = 1\nhorizon = \"60s\"\n[program.busy]\n\
                        do = [{ repeat = \"forever\", do = [{ cpu = \"10s\" }] }]\n"
        .to_owned();
    for (number, Unit { path, keys, busy }) in units.iter().enumerate() {
        contract += &format!("[unit.{}]\n{keys}\n", path.replace('/', ".unit."));
        if *busy > 0 {
            workload += &format!(
                "[job.j{number}]\nunit = \"{path}\"\nprogram = \"busy\"\ncount = {busy}\nbackground = true\n"
            );
        }
    }
    let hardware = format!(
        "version = 1\nshape = \"cpus:{cpus} memory:1GiB\"\n[kernel]\nslice = \"5ms\"\ntick = \"1ms\"\ncall_back = \"now\"\n"
    );
    outcome(&contract, &hardware, &workload)
}

fn nobody_waits_too_long(cpus: u64, machine: &str, units: &[Unit]) {
    let outcome = minute(cpus, machine, units);
    let longest = outcome.units.iter().map(|unit| unit.waited_max_ns).max().unwrap();
    let shown = |unit: &Unit| {
        let (keys, busy) = (unit.keys.trim().replace('\n', ", "), unit.busy);
        let found = outcome.units.iter().find(|of| of.name == unit.path).unwrap();
        let (waited, used) = (found.waited_max_ns / MS, found.used_ns / MS);
        format!("{}: {keys}, {busy} busy, waited {waited} ms, used {used} ms\n", unit.path)
    };
    let few = units.iter().map(|unit| unit.busy).sum::<u64>() <= FEW * cpus;
    let borne = if few { BORNE_BY_FEW_NS } else { BORNE_NS };
    assert!(longest <= borne, "{cpus} CPUs, {machine}\n{}", units.iter().map(shown).collect::<String>());
}

#[test]
fn of_a_small_part() {
    for busy in [1, 64, 500] {
        let units = [unit("a", "tickets = 1", busy), unit("b", "tickets = 2000\nlend = false", 16)];
        nobody_waits_too_long(8, "", &units);
    }
}

#[test]
fn of_a_small_part_of_a_unit() {
    let units = [
        unit("u", "", 0),
        unit("u/a", "tickets = 1", 20),
        unit("u/b", "tickets = 2000", 4),
        unit("b", "", 4),
    ];
    nobody_waits_too_long(2, "", &units);
}

#[test]
fn of_a_crowd() {
    let units = [unit("a", "", 8_000), unit("b", "tickets = 700\nlend = false", 8)];
    nobody_waits_too_long(8, "", &units);
}

#[test]
fn of_anybody() {
    let seeds = env::var("COMMONHOLD_SCENARIOS").ok().and_then(|text| text.parse().ok()).unwrap_or(SCENARIOS);
    for seed in 0..seeds {
        let mut chance = Chance::of(seed);
        let mut units = Vec::new();
        for number in 0..chance.from(2, 8) {
            let mut keys = format!("tickets = {}\n", chance.one_of(&[1, 3, 10, 100, 1000, 5000]));
            if chance.once_in(2) {
                keys += "lend = false\n";
            }
            units.push(unit(&format!("u{number}"), &keys, chance.one_of(&[1, 2, 8, 40, 100])));
            if chance.once_in(3) {
                let keys = format!("tickets = {}\n", chance.one_of(&[1, 100, 5000]));
                units.push(unit(&format!("u{number}/v"), &keys, chance.one_of(&[1, 8, 60])));
            }
        }
        let mode = chance.one_of(&["", "cpu = \"partition\"", "cpu = \"proportional\""]);
        println!("seed {seed}");
        nobody_waits_too_long(chance.from(1, 8), mode, &units);
    }
}
