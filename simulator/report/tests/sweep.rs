//! A sweep of made-up runs, and contracts side by side.
#![allow(clippy::unwrap_used)]

use commonhold_report::table::Style;
use commonhold_sim::outcome::Verdict;
use commonhold_sim_report::contracts::{self, Contracts, UnderContract};
use commonhold_sim_report::figures::{JobFigures, RunFigures, UnitFigures};
use commonhold_sim_report::sweep::{self, Axis, Space, Sweep};
use insta::assert_snapshot;

/// A run of a unit with a job that took so long, if it ended.
fn run(seed: u64, took_ms: Option<u64>, verdict: Verdict) -> RunFigures {
    RunFigures {
        seed,
        ended_ns: 9_000_000_000,
        cut_off: took_ms.is_none(),
        stuck: Vec::new(),
        events: 10,
        checks: 5,
        broken: 0,
        units: vec![UnitFigures {
            unit: "u<".into(),
            share_millionths: 250_000 + seed * 1000,
            lent_ns: 0,
            borrowed_ns: 1_500_000_000,
            called_back: 0,
            call_back_max_ns: 0,
            memory_bytes_max: 1 << 30,
            disk_bytes: 0,
            verdict,
        }],
        jobs: vec![JobFigures {
            job: "j".into(),
            unit: "u<".into(),
            copies: 1,
            ended: u64::from(took_ms.is_some()),
            response_ns: took_ms.map(|ms| ms * 1_000_000),
        }],
    }
}

/// Three values of one key and three of another, and two seeds. The job of one run does not end; a point and
/// a run are missing.
fn sweep() -> Sweep {
    let axis = |key: &str, values: [&str; 3]| Axis {
        key: key.to_owned(),
        values: values.map(str::to_owned).to_vec(),
    };
    let keys =
        vec![axis("contract:unit.u<.tickets", ["50", "100", "200"]), axis("machine:x", ["<a>", "b,\"", "c"])];
    let at = |point: u64| match point {
        3 => Vec::new(),
        4 => vec![run(2, Some(400), Verdict::Kept)],
        5 => vec![run(1, Some(500), Verdict::Broken), run(2, None, Verdict::CannotTell)],
        _ => vec![run(1, Some(100 * point), Verdict::Kept), run(2, Some(100 * point + 50), Verdict::Broken)],
    };
    Sweep {
        scenario: "by-hand".into(),
        machine: String::new(),
        space: Space { keys },
        seed: 1,
        seeds: 2,
        runs: (0..9).map(at).collect(),
        missing: vec!["incomplete: 3 of 18 runs are missing".into()],
    }
}

#[test]
fn a_sweep_is_a_table_of_means() {
    assert_snapshot!("sweep_text", sweep::text(&sweep(), Style::PLAIN));
    assert_snapshot!("sweep_csv", sweep::csv(&sweep()));
}

#[test]
fn points_are_all_combinations() {
    let Sweep { space, .. } = sweep();
    assert_eq!(space.points(), Some(9));
    assert_eq!((space.values(0), space.values(5)), (vec!["50", "<a>"], vec!["100", "c"]));
    assert_eq!(space.point_text(8), "contract:unit.u<.tickets=200 machine:x=c");
}

#[test]
fn a_page_has_a_line_per_combination_of_the_other_keys() {
    let page = sweep::html(&sweep());
    let (_, plot) = page.split_once("<h3>j of u&lt;: response time</h3>").unwrap();
    let plot = plot.split_once("</figure>").unwrap().0;
    assert_eq!(plot.matches("class='line'").count(), 3, "{plot}");
    // 50, 100 and 200 are not evenly spaced: from 78 to 448, 100 is at a third.
    assert!(plot.contains("text-anchor='middle'>100</text>") && plot.contains("x1='201.3'"), "{plot}");
    assert!(plot.contains("machine:x=&lt;a&gt;</text>"), "{plot}");
    for foul in ["u<", "<a>"] {
        assert!(!page.contains(foul), "{foul}");
    }
}

#[test]
fn contracts_are_compared_within_seeds() {
    let under = |name: &str, runs| UnderContract { name: name.into(), runs };
    let kept = |seed, ms| run(seed, Some(ms), Verdict::Kept);
    // The differences are 50 and 60 ms, though the figures themselves differ by 300.
    let first = under("<a>.toml", vec![kept(1, 100), kept(2, 400), kept(3, 100)]);
    let second = under("b.toml", vec![kept(2, 460), kept(1, 150)]);
    let third = under("c.toml", vec![kept(1, 100), run(2, None, Verdict::Broken)]);
    let compared =
        Contracts { scenario: "by-hand".into(), machine: "M".into(), contracts: vec![first, second, third] };
    assert_snapshot!("contracts_text", contracts::text(&compared, Style { width: 120, ..Style::PLAIN }));
    let page = contracts::html(&compared);
    assert!(page.contains("not ended") && page.contains("&lt;a&gt;.toml") && !page.contains("<a>"), "{page}");
    assert!(contracts::json(&compared).contains("\"difference\": 55000000.0"));
}
