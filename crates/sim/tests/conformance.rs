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
        used_ns: 9_631_482_500,
        lent_ns: 17_262_520_518,
        borrowed_ns: 195_985_797,
        called_back: 190,
    },
    Counted {
        name: "heavy",
        used_ns: 23_443_298_139,
        lent_ns: 1_687_400_906,
        borrowed_ns: 11_657_595_972,
        called_back: 0,
    },
    Counted {
        name: "brief",
        used_ns: 12_395_608_988,
        lent_ns: 3_737_985_974,
        borrowed_ns: 3_018_757_692,
        called_back: 54,
    },
];
/// CPU time of the daemon and the kernel's own threads, which are not replayed, in ns.
const OTHERS_NS: u64 = 7_815_567_937;

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
fn as_much_is_lent_and_called_back_as_in_the_kernel() {
    let outcome = replayed();
    let lent_ns: u64 = outcome.units.iter().map(|unit| unit.lent_ns).sum();
    scene::near(lent_ns, COUNTED.iter().map(|unit| unit.lent_ns).sum(), 200);
    let borrowed_ns = COUNTED.iter().map(|unit| unit.borrowed_ns).sum::<u64>() + OTHERS_NS;
    scene::near(outcome.units.iter().map(|unit| unit.borrowed_ns).sum(), borrowed_ns, 200);
    let called: [u64; 2] = [
        outcome.units.iter().map(|unit| unit.called_back).sum(),
        COUNTED.iter().map(|unit| unit.called_back).sum(),
    ];
    assert!(called[0] * 2 <= called[1] * 3 && called[1] * 2 <= called[0] * 3, "called back: {called:?}");
}
