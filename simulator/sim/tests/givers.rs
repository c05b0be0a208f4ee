//! Credit: a unit that lent for a minute, and is short then, gets idle resources before a unit that only
//! borrowed. The tests cover memory, and CPUs that the scheduler lends at every switch.

mod scene;

use scene::{MS, outcome, response, unit};

const CONTRACT: &str = include_str!("../../../scenarios/giver/contract.toml");
const MACHINE: &str = include_str!("../../../scenarios/giver/machine.toml");
const WORKLOAD: &str = include_str!("../../../scenarios/giver/workload.toml");

#[test]
fn a_giver_of_memory_is_first_when_it_is_short() {
    let forgetful = CONTRACT.replace("loans-remembered = \"10min\"", "loans-remembered = \"0s\"");
    assert_ne!(forgetful, CONTRACT);
    let [with, without] = [CONTRACT, &forgetful].map(|contract| {
        let end = outcome(contract, MACHINE, WORKLOAD);
        (response(&end, "giver") / MS, unit(&end, "giver").memory_waited_ns / MS)
    });
    assert!(with < without, "with memory {with:?} ms, without {without:?}");
}

/// Three units of two CPUs each. Two units lend their CPUs to the third for a minute; then one of the two
/// wants four CPUs. This unit alone gets the CPUs that the other one lends, until it has borrowed as much as
/// it lent.
#[test]
fn a_giver_of_cpus_is_first_when_it_is_short_and_until_it_has_it_back() {
    let machine = "version = 1\nshape = \"cpus:6 memory:1GiB\"\nenforces = \"irix\"\n";
    let jobs = |name: &str, count: usize| {
        let background = name != "giver";
        format!(
            "[job.{name}]\nunit = \"{name}\"\nprogram = \"{name}\"\ncount = {count}\nbackground = {background}\n"
        )
    };
    let run = |remembered: &str, seconds: u64| {
        let contract = format!(
            "version = 1\n[machine]\nscheme = \"isolate\"\nloans-remembered = \"{remembered}\"\n\
             [unit.giver]\n[unit.taker]\n[unit.away]\n"
        );
        let workload = format!(
            "version = 1\nhorizon = \"20min\"\n\
             [program.giver]\ndo = [{{ sleep = \"60s\" }}, {{ cpu = \"{seconds}s\" }}]\n\
             [program.taker]\ndo = [{{ repeat = \"forever\", do = [{{ cpu = \"1s\" }}] }}]\n\
             [program.away]\ndo = [{{ repeat = \"forever\", do = [{{ sleep = \"1s\" }}] }}]\n{}{}{}",
            jobs("giver", 4),
            jobs("taker", 6),
            jobs("away", 1)
        );
        let end = outcome(&contract, machine, &workload);
        assert_eq!(end.broken, 0, "{:?}", end.notes);
        response(&end, "giver") / MS - 60_000
    };
    // Four CPUs with credit; without credit, its own two and one of the lender's.
    let (with, without) = (run("10min", 20), run("0s", 20));
    assert!((20_000..20_600).contains(&with), "with memory {with} ms");
    assert!((26_000..27_500).contains(&without), "without {without} ms");
    // The credit is limited to the amount that the unit lent: a longer job has the same CPUs as without
    // credit in the end.
    let (with, without) = (run("10min", 400), run("0s", 400));
    assert!((30_000..130_000).contains(&(without - with)), "with memory {with} ms, without {without} ms");
}
