#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use commonhold_replay::{Figures, UnitFigures};
use commonhold_report::table::Style;
use commonhold_sim::Latencies;
use commonhold_sim_report::what_if::{self, WhatIf};

const MS: u64 = 1_000_000;

fn latencies(spans_ms: &[u64]) -> Latencies {
    let mut latencies = Latencies::default();
    for ms in spans_ms {
        latencies.add(ms * MS);
    }
    latencies
}

/// A unit that used `used_ms` of CPU time and waited `waited_ms`, with these responses.
fn unit(path: &str, used_ms: u64, waited_ms: u64, responses_ms: &[u64]) -> UnitFigures {
    let mut unit = UnitFigures::of(path);
    (unit.used_ns, unit.waited_ns, unit.has_wakes) = (used_ms * MS, waited_ms * MS, true);
    unit.responses = latencies(responses_ms);
    unit.wakes = latencies(&[1, 1, 2]);
    unit.sleeps = 3;
    unit.waits.insert(("cpu".to_owned(), "own".to_owned()), waited_ms * MS);
    unit.verdicts = vec![("cpu".to_owned(), "kept".to_owned())];
    unit
}

fn figures(light: UnitFigures, heavy: UnitFigures) -> Figures {
    Figures::new(10_000 * MS, vec![light, heavy])
}

fn example() -> WhatIf {
    let recorded = figures(unit("light", 2_000, 400, &[40, 50, 60]), unit("heavy", 8_000, 4_000, &[]));
    // The response of `light` is off by a fifth.
    let replayed = figures(unit("light", 2_040, 404, &[50, 60, 70]), unit("heavy", 7_960, 4_100, &[]));
    let mut light = unit("light", 4_000, 100, &[40, 41, 42]);
    light.waits.insert(("cpu".to_owned(), "unit heavy".to_owned()), 300 * MS);
    let mut heavy = unit("heavy", 6_000, 8_000, &[]);
    heavy.verdicts = vec![("cpu".to_owned(), "broken".to_owned())];
    WhatIf {
        recording: "tuesday.rec".to_owned(),
        about: "10.0 s of 8 tasks in 2 units".to_owned(),
        recorded_contract: "version = 1\n".to_owned(),
        recorded_machine: "shape = \"cpus:2\"\n".to_owned(),
        doubts: vec!["3 events were lost; bursts and sleeps around them are wrong".to_owned()],
        recorded,
        replayed,
        other: Some(("new.toml".to_owned(), figures(light, heavy))),
        against: None,
    }
}

#[test]
fn an_untrusted_figure_is_not_predicted() {
    let text = what_if::text(&example(), Style::PLAIN);
    insta::assert_snapshot!(text);
    insta::assert_snapshot!("json", what_if::json(&example()));
}

#[test]
fn a_prediction_is_refuted_by_a_recording() {
    let mut what_if = example();
    assert!(!what_if.is_refuted());
    what_if.against = Some(("wednesday.rec".to_owned(), what_if.other.clone().unwrap().1));
    assert!(!what_if.is_refuted());
    what_if.against = Some(("wednesday.rec".to_owned(), what_if.recorded.clone()));
    assert!(what_if.is_refuted());
    let text = what_if::text(&what_if, Style::PLAIN);
    insta::assert_snapshot!(text.split("The prediction").nth(1).unwrap());
}

#[test]
fn a_page_has_the_same_tables() {
    let page = what_if::html(&example());
    for part in ["not to be trusted", "Under new.toml", "Waiting, by cause", "cpu: kept, then broken"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script"));
}
