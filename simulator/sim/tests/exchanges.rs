//! Offers of tickets, served while the simulated machine runs.

mod scene;

use std::fmt::Write;

use commonhold_ledger::Done;
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

/// The CPU time of each unit, in tenths of a second.
fn used(outcome: &Outcome) -> Vec<u64> {
    outcome.units.iter().map(|unit| (unit.used_ns + 50 * MS) / (100 * MS)).collect()
}

/// From 3 s on, for 3 s, `a` has 50 CPU tickets of `b`; `c` has a third throughout. An open offer that no
/// other offer matches has no effect.
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

/// Seed 004, section 5.5, without offers in the workload: the negotiator finds an exchange by which both the
/// unit that computes and the unit that reads get faster, step by step from a small exchange.
#[test]
fn units_that_negotiate_find_an_exchange() {
    let text = include_str!("../../../scenarios/tickets-exchange/contract.toml");
    let negotiate = |text: String, unit: &str| {
        text.replace(&format!("[unit.{unit}]"), &format!("[unit.{unit}]\nnegotiate = true"))
    };
    let contract = negotiate(negotiate(text.to_owned(), "dhrystone"), "iohog");
    let machine = include_str!("../../../scenarios/tickets-exchange/machine.toml");
    let workload = include_str!("../../../scenarios/tickets-exchange/workload.toml");
    assert_eq!(outcome(text, machine, workload).ledger.exchanges, [], "nobody negotiates unasked");
    let ledger = outcome(&contract, machine, workload).ledger;
    let found: Vec<_> = ledger.exchanges.iter().filter_map(|exchange| exchange.trial.clone()).collect();
    assert!(found.len() == ledger.exchanges.len() && found.len() > 2, "{found:?}");
    assert!(found.windows(2).all(|two| two[0].level < two[1].level), "from small to large");
    for good in found.iter().filter(|trial| matches!(trial.done, Done::Good | Done::Kept)) {
        assert!(good.sides.iter().all(|side| side.with > Some(side.without + side.noise)), "{good:?}");
    }
    assert_eq!(ledger.negotiated.len(), 2, "the others take no part");
    assert!(ledger.negotiated.iter().all(|came| came.gained_ns > came.lost_ns && came.risked_ns > 0));
}

/// Each has a third of 9 s: `a` has done 200 rounds of 5 ms after 3 s. Then the exchange begins, and `a` has
/// half of the rest, 150 of 300 tickets.
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
    // By 3 s a third of 600 rounds, by 9 s 40 of 90 tenths of 1,800 rounds; the round in progress makes a
    // difference of one.
    for (at, of_a, of_b) in [(0, 0, 0), (3 * S, 200, 200), (9 * S, 800, 400)] {
        let near = |rounds: u64, expected: u64| rounds.abs_diff(expected) <= 10;
        assert!(near(a.by(at), of_a) && near(b.by(at), of_b), "{at}: {} {}", a.by(at), b.by(at));
    }
    // Between two entries, rounds are interpolated; after the last entry there are no more.
    assert_eq!(a.by(3 * S + S / 2), a.by(3 * S) + (a.by(4 * S) - a.by(3 * S)) / 2);
    assert_eq!(a.by(100 * S), a.rounds);
}
