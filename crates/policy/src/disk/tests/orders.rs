//! Which orders are given, besides how much each unit gets.

use super::*;

/// Whether a part is within 15 thousandths of what it should be.
fn near(got: u64, due: u64) -> bool {
    got.abs_diff(due) <= 15
}

#[test]
fn a_reservation_in_bytes_counts_on_a_measured_disk() {
    for (known, due) in [(None, 500), (Some(100 * MB), 800)] {
        let mut bench = Bench::tickets(&[100, 100]);
        bench.contract.units[2].hard.disk = Some(Amount::Absolute(60 * MB));
        bench.known = known;
        bench.load(0, greedy(1));
        bench.load(1, greedy(31));
        bench.run(3);
        let got = bench.run(10);
        assert!(near(got[0], due), "{known:?}: {got:?}");
    }
}

#[test]
fn a_quota_stays_unused_for_its_owner() {
    let mut bench = Bench::tickets(&[100, 300]);
    bench.contract.machine.scheme = Scheme::Quota;
    bench.load(0, greedy(4));
    bench.run(3);
    let got = bench.run(5);
    assert!(near(got[0], 250), "{got:?}");
}

#[test]
fn the_tightest_of_several_bounds_holds() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.contract.units[2].limit.disk = Some(Amount::Absolute(20 * MB));
    bench.load(0, greedy(31));
    bench.load(1, greedy(1));
    bench.run(3);
    let got = bench.run(5);
    assert!(near(got[0], 200) && got[0] + got[1] >= 980, "{got:?}");
}

#[test]
fn a_limit_inside_a_limit_refers_to_the_outer_limit() {
    let mut contract = Contract::default();
    let outer = contract.add(None, "outer");
    let inner = contract.add(Some(outer), "inner");
    for unit in [outer, inner] {
        contract.units[unit.index()].limit.disk = Some(Amount::Part(500_000));
    }
    let mut bench = Bench::new(contract);
    bench.loads.insert(inner, greedy(8));
    bench.run(3);
    let got = bench.run(5);
    assert!(near(got[inner.index() - 2], 250), "{got:?}");
}

#[test]
fn a_reload_keeps_the_caps_of_the_units_that_stay() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(0, greedy(1));
    bench.load(1, greedy(31));
    bench.run(3);
    assert!(bench.caps.contains_key(&Bench::unit(1)));
    let mut contract = Contract::default();
    contract.add(None, &bench.contract.unit(Bench::unit(0)).path);
    contract.adopt(&bench.contract, true);
    bench.contract = contract;
    bench.load(1, greedy(0));
    bench.run(1);
    let disk = &bench.state.disks["sda"];
    assert!(
        disk.caps.is_empty() && disk.control.peak() > 0,
        "the unit is alone, and the capacity stays known"
    );
}

#[test]
fn weights_that_need_no_correction_are_written_once() {
    let mut bench = Bench::tickets(&[100, 400]);
    bench.weighs = true;
    bench.load(0, greedy(8));
    bench.load(1, greedy(8));
    bench.run(10);
    assert_eq!(bench.steps.len(), 2, "{:?}", bench.steps);
    // A unit that gets all it wants is not compared with others.
    bench.load(0, Load { most: 5 * MB, ..greedy(8) });
    bench.run(10);
    assert_eq!(bench.weights[&Bench::unit(0)], 125);
}

#[test]
fn a_unit_that_comes_finds_its_weight_in_place() {
    let mut bench = Bench::tickets(&[100, 400, 400]);
    bench.weighs = true;
    bench.load(1, greedy(8));
    bench.run(2);
    let weights = |bench: &Bench| (0..3).map(|n| bench.weights[&Bench::unit(n)]).collect::<Vec<u32>>();
    assert_eq!(weights(&bench), [125, 500, 500]);
    let orders = bench.steps.len();
    bench.load(0, greedy(8));
    bench.run(2);
    assert_eq!(bench.steps.len(), orders, "{:?}", bench.steps);
    // One unit has half in any case, so its weight relative to another depends on how many are present.
    let mut bench = Bench::tickets(&[0, 100, 100]);
    bench.weighs = true;
    bench.contract.units[2].hard.disk = Some(Amount::Part(500_000));
    bench.load(0, greedy(8));
    bench.load(1, greedy(8));
    bench.step();
    assert_eq!((bench.weights[&Bench::unit(0)], bench.weights[&Bench::unit(1)]), (500, 500));
    bench.load(2, greedy(8));
    bench.step();
    assert_eq!(weights(&bench), [500, 250, 250]);
}

#[test]
fn weights_that_were_given_up_are_tried_again() {
    let mut bench = Bench::tickets(&[100, 400]);
    bench.load(0, greedy(8));
    bench.load(1, greedy(8));
    (bench.claims_to_weigh, bench.weighs) = (true, false);
    bench.run(40);
    assert!(!bench.caps.is_empty());
    bench.weighs = true;
    bench.run(60);
    let got = bench.run(5);
    assert!(bench.caps.is_empty() && near(got[0], 200), "{got:?}");
}

/// As in the lab: the unit with half has two requests in flight, the four have four each.
#[test]
fn a_hard_half_with_few_requests_against_four() {
    let mut bench = Bench::tickets(&[1, 1_000, 1_000, 1_000, 1_000]);
    bench.contract.units[2].hard.disk = Some(Amount::Part(500_000));
    for n in 0..5 {
        bench.load(n, greedy(if n == 0 { 2 } else { 4 }));
    }
    bench.run(3);
    let got = bench.run(20);
    let four: u64 = got[1..].iter().sum::<u64>() / 4;
    assert!((3_850..=4_150).contains(&(got[0] * 1_000 / four)), "{got:?}");
    assert!(got.iter().sum::<u64>() >= 980, "{got:?}");
}
