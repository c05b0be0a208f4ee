//! A run of the lab under the `kernel` backend, recorded by `lab/tests/80-conformance.sh`, replayed under the same contract:
//! the simulator comes as near to what the kernel counted as docs/conformance.md says.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use commonhold_sim::trace;

const CONTRACT: &str = include_str!("../../../lab/conformance/contract.toml");
const MACHINE: &str = include_str!("../../../lab/conformance/machine.toml");
const RECORDING: &str = include_str!("conformance/recording.txt");

/// What the lab's kernel, and our scheduler in it, counted of one unit while it was recorded.
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

const COUNTED: [Counted; 3] = [
    Counted {
        name: "light",
        used_ns: 8_740_225_000,
        lent_ns: 16_372_208_536,
        borrowed_ns: 339_446_989,
        called_back: 265,
    },
    Counted {
        name: "heavy",
        used_ns: 25_757_738_000,
        lent_ns: 405_297_255,
        borrowed_ns: 13_776_503_364,
        called_back: 0,
    },
    Counted {
        name: "brief",
        used_ns: 11_569_109_000,
        lent_ns: 4_999_165_039,
        borrowed_ns: 4_144_677_308,
        called_back: 123,
    },
];
/// CPU time of the daemon and the kernel's own threads, which are not replayed, in ns.
const OTHERS_NS: u64 = 3_516_043_169;

#[test]
fn units_have_what_they_had_in_the_kernel() {
    let outcome = replayed();
    for counted in &COUNTED {
        // The unit with work for every CPU has what the others leave: in the lab, the daemon too takes of it.
        let used_ns = counted.used_ns + if counted.name == "heavy" { OTHERS_NS } else { 0 };
        scene::near(scene::unit(&outcome, counted.name).used_ns, used_ns, 100);
    }
}

#[test]
fn as_much_is_lent_as_in_the_kernel() {
    let outcome = replayed();
    let lent_ns: u64 = outcome.units.iter().map(|unit| unit.lent_ns).sum();
    scene::near(lent_ns, COUNTED.iter().map(|unit| unit.lent_ns).sum(), 200);
    let borrowed_ns = COUNTED.iter().map(|unit| unit.borrowed_ns).sum::<u64>() + OTHERS_NS;
    scene::near(outcome.units.iter().map(|unit| unit.borrowed_ns).sum(), borrowed_ns, 200);
}

#[test]
fn cpus_are_called_back_as_often_as_in_the_kernel() {
    let outcome = replayed();
    let called = |name: &str| scene::unit(&outcome, name).called_back;
    for counted in &COUNTED {
        within(called(counted.name), counted.called_back, 2_000, counted.name);
    }
    let all = COUNTED.iter().map(|unit| unit.called_back).sum();
    within(outcome.units.iter().map(|unit| unit.called_back).sum(), all, 1_250, "all");
}

/// That neither number is more than so many thousandths of the other.
fn within(is: u64, should: u64, thousandths: u64, of: &str) {
    assert!(
        is * 1_000 <= should * thousandths && should * 1_000 <= is * thousandths,
        "{of}: called back {is} times, {should} in the kernel: not within {thousandths} thousandths"
    );
}
