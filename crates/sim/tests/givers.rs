//! A unit that lent memory for a minute, and is short then, has what is idle before one that only borrowed.

mod scene;

use scene::{MS, outcome, response, unit};

const CONTRACT: &str = include_str!("../../../scenarios/giver/contract.toml");
const MACHINE: &str = include_str!("../../../scenarios/giver/machine.toml");
const WORKLOAD: &str = include_str!("../../../scenarios/giver/workload.toml");

#[test]
fn a_giver_is_first_when_it_is_short() {
    let forgetful = CONTRACT.replace("loans-remembered = \"10min\"", "loans-remembered = \"0s\"");
    assert_ne!(forgetful, CONTRACT);
    let [with, without] = [CONTRACT, &forgetful].map(|contract| {
        let end = outcome(contract, MACHINE, WORKLOAD);
        (response(&end, "giver") / MS, unit(&end, "giver").memory_waited_ns / MS)
    });
    assert!(with < without, "with memory {with:?} ms, without {without:?}");
}
