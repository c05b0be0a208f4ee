//! Offers of tickets, served while the simulated machine runs.

mod scene;

use std::fmt::Write;

use commonhold_sim::outcome::Outcome;
use scene::{MS, S, outcome};

const CONTRACT: &str = "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.a]\n[unit.b]\n[unit.c]\n";
const MACHINE: &str = "version = 1\nshape = \"cpus:1 memory:1GiB\"\n";

/// Three units compute for 9 s; each works 5 ms at a time, so that all of them always want the CPU.
fn run(offers: &str) -> Outcome {
    let mut workload = "version = 1\nhorizon = \"9s\"\n[program.p]\n\
                        do = [ { repeat = 1000000, do = [ { cpu = \"5ms\" } ] } ]\n"
        .to_owned();
    for unit in ["a", "b", "c"] {
        let _ = writeln!(workload, "[job.{unit}]\nunit = \"{unit}\"\nprogram = \"p\"");
    }
    outcome(CONTRACT, MACHINE, &(workload + offers))
}

/// Tenths of a second that each unit had.
fn used(outcome: &Outcome) -> Vec<u64> {
    outcome.units.iter().map(|unit| (unit.used_ns + 50 * MS) / (100 * MS)).collect()
}

/// From 3 s on, for 3 s, `a` has 50 CPU tickets of `b`: 3 s and 0 s of these for 2 s each; `c` has a third throughout. An
/// offer to nobody in particular that nobody serves stands for nothing.
#[test]
fn an_exchange_is_in_force_for_its_time() {
    assert_eq!(used(&run("")), [30, 30, 30]);
    let outcome = run(
        "[offer.first]\nat = \"1s\"\nunit = \"a\"\ngive = \"disk:30\"\nwant = \"cpu:50\"\nfor = \"3s\"\n\
         [offer.never]\nat = \"1s\"\nunit = \"c\"\ngive = \"disk:30\"\nwant = \"cpu:99\"\n\
         [offer.second]\nat = \"3s\"\nunit = \"b\"\ngive = \"cpu:60\"\nwant = \"disk:30\"\nwith = \"a\"\n",
    );
    // In 3 s: 150, 50 and 100 of 300 tickets are 1.5, 0.5 and 1 s.
    assert_eq!(used(&outcome), [35, 25, 30]);
    let [exchange] = &outcome.ledger.exchanges[..] else { panic!("{:?}", outcome.ledger.exchanges) };
    let lent: Vec<(&str, &str, String)> =
        exchange.lent.iter().map(|lent| (&*lent.from, &*lent.to, lent.what.to_string())).collect();
    assert_eq!(lent, [("a", "b", "disk:30".to_owned()), ("b", "a", "cpu:50".to_owned())]);
    assert_eq!((exchange.began_ns, exchange.ended_ns), (3 * S, Some(6 * S)));
}

/// Each has a third of 9 s: `a` has done 200 rounds of 5 ms after 3 s. Then the exchange begins, and `a` has half of what is
/// left, 150 of 300 tickets.
#[test]
fn an_offer_waits_for_rounds_of_a_job() {
    let outcome = run("[offer.first]\nunit = \"b\"\ngive = \"cpu:50\"\nwant = \"disk:30\"\n\
         [offer.second]\nafter = \"200 rounds of a\"\nunit = \"a\"\ngive = \"disk:30\"\nwant = \"cpu:50\"\n");
    let [exchange] = &outcome.ledger.exchanges[..] else { panic!("{:?}", outcome.ledger.exchanges) };
    assert!((2_950 * MS..3_050 * MS).contains(&exchange.began_ns), "{exchange:?}");
    assert_eq!(used(&outcome), [40, 20, 30]);
    let rounds = |job: &str| outcome.rounds.iter().find(|of| of.job == job).unwrap();
    let [a, b] = ["a", "b"].map(rounds);
    assert_eq!(a.every_ns, S);
    // By 3 s a third of 600, by 9 s 40 of 90 tenths of 1,800: what runs at the moment makes one more or less.
    for (at, of_a, of_b) in [(0, 0, 0), (3 * S, 200, 200), (9 * S, 800, 400)] {
        let near = |rounds: u64, expected: u64| rounds.abs_diff(expected) <= 10;
        assert!(near(a.by(at), of_a) && near(b.by(at), of_b), "{at}: {} {}", a.by(at), b.by(at));
    }
    // Between two entries rounds come evenly; behind the last there are no more.
    assert_eq!(a.by(3 * S + S / 2), a.by(3 * S) + (a.by(4 * S) - a.by(3 * S)) / 2);
    assert_eq!(a.by(100 * S), a.rounds);
}
