//! Section 5.6 of seed 004: two databases exchange memory and disk tickets.
//!
//! After 10,000 queries, the small database gives disk tickets for memory of the big one. The paper tries all
//! pairs of 100 to 800 tickets and 100 to 800 pages. The paper's figure has no numbers, but the text says for
//! which pairs both databases gain. The exchanges here lie on the edges of that region, since running all 64
//! takes too long for every test. `cargo test --release -p commonhold-claims --lib map_of_figure_11 --
//! --ignored --nocapture` runs and draws them all.

use commonhold_contract::Scheme::Isolate;
use commonhold_sim_report::claims::Tolerance;

use super::{Row, between, parameter, predicted};
use crate::experiments::{DATABASES, DATABASES_OFFERS, Experiment, on};
use crate::measure::{Seed, divide, real};

/// The exchange is made after about 90 s, and the 100 s that follow are measured.
const UNTIL_S: u64 = 200;
/// The time for which queries are counted, from the exchange on, in ns.
const COUNTED_NS: u64 = 100_000_000_000;

/// No exchange.
const NONE: Experiment = on(DATABASES, Isolate).until(UNTIL_S);

/// An exchange of disk tickets of the small database for pages of the big one.
const fn cell(disk: u64, pages: u64) -> Experiment {
    on(DATABASES_OFFERS, Isolate).offer(disk, pages).until(UNTIL_S)
}

/// Exchanges of 400 pages or more.
const MANY: &[Experiment] = &[
    NONE,
    cell(100, 400),
    cell(400, 400),
    cell(600, 400),
    cell(800, 400),
    cell(800, 600),
    cell(100, 700),
    cell(600, 700),
    cell(800, 700),
    cell(100, 800),
    cell(400, 800),
    cell(600, 800),
    cell(800, 800),
];
/// Exchanges of 100 pages.
const FEW: &[Experiment] =
    &[NONE, cell(100, 100), cell(200, 100), cell(400, 100), cell(600, 100), cell(800, 100)];
/// Exchanges of 200 and 300 pages for a large number of disk tickets.
const DEAR: &[Experiment] = &[NONE, cell(800, 200), cell(800, 300)];
/// Exchanges of 700 and 800 pages.
const ALL: &[Experiment] = &[
    NONE,
    cell(100, 700),
    cell(600, 700),
    cell(800, 700),
    cell(100, 800),
    cell(400, 800),
    cell(600, 800),
    cell(800, 800),
];
/// Exchanges of 600 disk tickets or more.
const BANDWIDTH: &[Experiment] = &[
    NONE,
    cell(600, 100),
    cell(800, 100),
    cell(600, 200),
    cell(800, 200),
    cell(600, 300),
    cell(800, 300),
    cell(600, 400),
    cell(800, 400),
    cell(800, 600),
    cell(600, 700),
    cell(800, 700),
    cell(600, 800),
    cell(800, 800),
];
/// Two disk tickets for a page: too much for 100 and 200 pages, and good for 300 and 400.
const TWO_FOR_ONE_BAD: &[Experiment] = &[NONE, cell(200, 100), cell(400, 200)];
const TWO_FOR_ONE_GOOD: &[Experiment] = &[NONE, cell(600, 300), cell(800, 400)];

/// The number of queries that a database served in the 100 s from `from_ns` on.
fn served(at: Seed, run: Experiment, job: &str, from_ns: u64) -> Option<f64> {
    let outcome = at.of(run)?;
    let rounds = outcome.rounds.iter().find(|rounds| rounds.job == job)?;
    let until_ns = from_ns + COUNTED_NS;
    (outcome.ended_ns >= until_ns).then(|| real(rounds.by(until_ns) - rounds.by(from_ns)))
}

/// A database's gain by the exchange of a run: 0.1 means ten per cent more queries than in the same 100 s of
/// the run `without` an exchange.
pub(crate) fn gain(at: Seed, run: Experiment, without: Experiment, job: &str) -> Option<f64> {
    let [exchange] = &at.of(run)?.ledger.exchanges[..] else { return None };
    let began_ns = exchange.began_ns;
    Some(divide(served(at, run, job, began_ns)?, served(at, without, job, began_ns)?)? - 1.0)
}

/// A database's gains, one per exchange of a list.
fn gains(at: Seed, of: &[Experiment], job: &str) -> Option<Vec<f64>> {
    of[1..].iter().map(|run| gain(at, *run, NONE, job)).collect()
}

/// The fraction of a list's exchanges by which a database gains; with `gains_by` false, by which it does not
/// gain.
fn part(at: Seed, of: &[Experiment], job: &str, gains_by: bool) -> Option<f64> {
    let gains = gains(at, of, job)?;
    let right = gains.iter().filter(|gain| (**gain > 0.0) == gains_by).count();
    divide(real(right as u64), real(gains.len() as u64))
}

/// The time at which the small database has served 10,000 queries, as a fraction of 300 s.
fn a_third(at: Seed) -> Option<f64> {
    let [exchange] = &at.of(cell(100, 400))?.ledger.exchanges[..] else { return None };
    Some(real(exchange.began_ns) / 300e9)
}

/// The part of the small database's 8 MB that is in memory at the end.
fn fits(at: Seed) -> Option<f64> {
    Some(real(at.unit(cell(600, 300), "small")?.frames) / 2_048.0)
}

const SCENES: &str = "simulator/claims/tests/configuration.rs: databases";

pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "TK-DB-CFG",
            "004 §5.6",
            "Databases of 4 MB and 64 MB with caches of 4 MB and 500 KB; 16 MB of memory; four iohogs",
            "",
        ),
        &[SCENES],
    ),
    parameter(
        (
            "TK-DB-TIX",
            "004 §5.6",
            "1,000 CPU and 1,000 disk tickets for each task; 1,375 reserved pages for each database",
            "",
        ),
        &[SCENES],
    ),
    parameter(
        (
            "TK-DB-GRID",
            "004 §5.6",
            "The small database gives 100 to 800 disk tickets for 100 to 800 pages, after 10,000 queries",
            "",
        ),
        &[SCENES],
    ),
    predicted(
        (
            "TK-DB-GRIDa",
            "004 §5.6",
            "Time until the small database has served 10,000 queries, as a fraction of 300 s",
            "0.33",
        ),
        between(0.28, 0.38),
        &[cell(100, 400)],
        a_third,
    )
    .once()
    .basis(commonhold_sim_report::claims::Basis::Calibrated)
    .note("the speed of the disk was fitted to it"),
    predicted(
        (
            "TK-F11-1a",
            "004 fig. 11",
            "Fraction of 12 exchanges for 400 pages or more by which the small database gains",
            "1",
        ),
        Tolerance::AtLeast { low: 0.9 },
        MANY,
        |at| part(at, MANY, "small", true),
    )
    .once(),
    predicted(
        (
            "TK-F11-1b",
            "004 fig. 11",
            "Fraction of 5 exchanges for 100 pages by which the small database does not gain",
            "1",
        ),
        Tolerance::AtLeast { low: 0.9 },
        FEW,
        |at| part(at, FEW, "small", false),
    )
    .once(),
    predicted(
        (
            "TK-F11-1c",
            "004 fig. 11",
            "Fraction of 2 exchanges (800 disk tickets for 200, 300 pages) without a gain of the small database",
            "1",
        ),
        Tolerance::AtLeast { low: 0.9 },
        DEAR,
        |at| part(at, DEAR, "small", false),
    )
    .once(),
    predicted(
        (
            "TK-F11-2",
            "004 fig. 11",
            "Smallest gain of the small database by 700 or 800 pages (10 means 1000 % more queries)",
            "10",
        ),
        Tolerance::AtLeast { low: 5.0 },
        ALL,
        |at| gains(at, ALL, "small")?.into_iter().reduce(f64::min),
    )
    .once(),
    predicted(
        (
            "TK-F11-3",
            "004 §5.6",
            "Fraction of the small database's 8 MB that is in memory after an exchange for 300 pages",
            "0.75",
        ),
        between(0.65, 0.85),
        &[cell(600, 300)],
        fits,
    )
    .once()
    .basis(commonhold_sim_report::claims::Basis::Calibrated)
    .note("the model of memory was fitted to it"),
    predicted(
        (
            "TK-F11-4",
            "004 fig. 11",
            "Fraction of 13 exchanges of 600 disk tickets or more by which the big database gains",
            "1",
        ),
        Tolerance::AtLeast { low: 1.0 },
        BANDWIDTH,
        |at| part(at, BANDWIDTH, "big", true),
    )
    .once(),
    predicted(
        (
            "TK-F11-5a",
            "004 §5.6",
            "Fraction of 2 exchanges at 2 disk tickets a page (100, 200 pages) with no gain of the small database",
            "1",
        ),
        Tolerance::AtLeast { low: 1.0 },
        TWO_FOR_ONE_BAD,
        |at| part(at, TWO_FOR_ONE_BAD, "small", false),
    )
    .once(),
    predicted(
        (
            "TK-F11-5b",
            "004 §5.6",
            "Fraction of 2 exchanges at 2 disk tickets a page (300, 400 pages) by which the small database gains",
            "1",
        ),
        Tolerance::AtLeast { low: 1.0 },
        TWO_FOR_ONE_GOOD,
        |at| part(at, TWO_FOR_ONE_GOOD, "small", true),
    )
    .once(),
    parameter(
        (
            "TK-F11-6",
            "004 fig. 11",
            "A gain compares queries in the 100 s after the exchange with the same 100 s of a run without it",
            "",
        ),
        &["simulator/claims/src/rows/databases.rs: gains_are_of_the_hundred_seconds_after"],
    ),
    parameter(
        (
            "TK-FN8",
            "004 note 8",
            "Exchanged amounts are base values, since all units are at the top level",
            "",
        ),
        &[SCENES],
    ),
    predicted(
        (
            "TK-NEG",
            "004 §5.6",
            "Number of exchanges at 2 disk tickets a page, from the smallest on, with no gain of the small database",
            "",
        ),
        Tolerance::Between { low: 1.0, high: 3.0 },
        &[NONE, cell(200, 100), cell(400, 200), cell(600, 300), cell(800, 400)],
        |at| {
            let cells = [cell(200, 100), cell(400, 200), cell(600, 300), cell(800, 400)];
            let gains: Option<Vec<f64>> = cells.into_iter().map(|run| gain(at, run, NONE, "small")).collect();
            let rising = gains?.iter().map(|gain| *gain > 0.0).collect::<Vec<_>>();
            let fewest = rising.iter().position(|gains| *gains)?;
            rising[fewest..].iter().all(|gains| *gains).then(|| real(fewest as u64))
        },
    )
    .once()
    .note("of 100, 200, 300 and 400 pages; measured only if some exchange and all larger ones give a gain"),
];

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use commonhold_sim::outcome::{Outcome, RoundsOutcome};

    use super::*;
    use crate::run::Runs;

    /// A run whose small database serves one query a second up to the exchange at 90 s, and `rate` a second
    /// from then on.
    fn made_up(rate: u64, without: &Outcome) -> Outcome {
        let by_then = (0..=UNTIL_S).map(|s| s.min(90) + s.saturating_sub(90) * rate).collect();
        let rounds =
            vec![RoundsOutcome { job: "small".to_owned(), rounds: 0, every_ns: 1_000_000_000, by_then }];
        Outcome { rounds, ended_ns: UNTIL_S * 1_000_000_000, ..without.clone() }
    }

    /// 100 queries without and 300 with the exchange are a gain of two. What came before the exchange does
    /// not count.
    #[test]
    fn gains_are_of_the_hundred_seconds_after() {
        let scenario = on(DATABASES_OFFERS, Isolate).offer(800, 800).until(1).scenario().unwrap();
        let mut outcome = commonhold_sim::run(&scenario, 1).unwrap();
        let with = |mut outcome: Outcome, rate, began_ns| {
            outcome = made_up(rate, &outcome);
            let exchange = commonhold_sim::outcome::Exchange {
                number: 1,
                lent: Vec::new(),
                began_ns,
                until_ns: None,
                ended_ns: None,
                why: None,
                trial: None,
            };
            outcome.ledger.exchanges = vec![exchange];
            outcome
        };
        outcome.ledger.exchanges.clear();
        let run = |began_ns| {
            let runs = Runs::new(
                vec![1],
                vec![
                    (NONE, vec![Ok(made_up(1, &outcome))]),
                    (cell(800, 800), vec![Ok(with(outcome.clone(), 3, began_ns))]),
                ],
            );
            gain(Seed::new(&runs, 0), cell(800, 800), NONE, "small")
        };
        assert_eq!(run(90_000_000_000), Some(2.0));
        // Half of these queries came before.
        assert_eq!(run(40_000_000_000), Some(1.0));
        // The 100 s are not over at the end.
        assert_eq!(run(101_000_000_000), None);
    }

    /// Draws figure 11: by how much each database gains by each of the 64 exchanges, in per cent, where all
    /// pages are read alike, and where some are read more often. Counts the exchanges by which `small` gains.
    #[test]
    #[ignore = "takes some minutes in a release build"]
    fn map_of_figure_11() {
        let amounts = [100, 200, 300, 400, 500, 600, 700, 800];
        for (hot, reads) in [(0, 0), (50, 70), (20, 80), (10, 90)] {
            let outcome = |run: Experiment| {
                let mut scenario = run.scenario().unwrap();
                for file in scenario.workload.files.iter_mut().filter(|file| file.buffer_bytes > 0) {
                    (file.hot, file.hot_reads) = (hot * 10_000, reads * 10_000);
                }
                vec![Ok(commonhold_sim::run(&scenario, 1).unwrap())]
            };
            let mut runs = vec![(NONE, outcome(NONE))];
            for run in amounts.iter().flat_map(|disk| amounts.iter().map(move |pages| cell(*disk, *pages))) {
                runs.push((run, outcome(run)));
            }
            let runs = Runs::new(vec![1], runs);
            let at = Seed::new(&runs, 0);
            let gain = |disk: u64, pages: u64, job: &str| gain(at, cell(disk, pages), NONE, job).unwrap();
            let mut drawn = format!("{reads} % of the queries to {hot} % of the pages\n");
            for job in ["small", "big"] {
                let _ = writeln!(
                    drawn,
                    "\n{job}, per cent: rows are disk tickets, columns pages\n      {}",
                    amounts.map(|pages| format!("{pages:>6}")).concat()
                );
                for disk in amounts {
                    let cells = amounts.map(|pages| format!("{:>6.0}", 100.0 * gain(disk, pages, job)));
                    let _ = writeln!(drawn, "{disk:>6}{}", cells.concat());
                }
            }
            let gains = |pages: &[u64]| {
                let all = pages.iter().flat_map(|pages| amounts.map(|disk| gain(disk, *pages, "small")));
                all.filter(|gain| *gain > 0.0).count()
            };
            println!(
                "{drawn}\nsmall gains by {} of 40 with 400 pages or more, by {} of 8 with 100",
                gains(&amounts[3..]),
                gains(&[100])
            );
        }
    }
}
