//! A made-up table of claims, in every form.
#![allow(clippy::unwrap_used)]

use commonhold_report::Style;
use commonhold_sim_report::claims::{
    Bar, Basis, Chart, Claim, Claims, Measured, Tolerance, Unit, Verdict, html, json, tallies, text,
};

fn measured(mean: f64) -> Measured {
    Measured { mean, half_95: Some(0.02), half_90: Some(0.015), by_seed: vec![mean - 0.01, mean + 0.01] }
}

fn claim(id: &str, basis: Basis, tolerance: Tolerance, mean: Option<f64>, verdict: Verdict) -> Claim {
    Claim {
        id: id.to_owned(),
        seed: if basis == Basis::Beyond { "" } else { "000" }.to_owned(),
        place: "4.2.1".to_owned(),
        says: format!("The statement of {id}, in words"),
        expected: if mean.is_some() { "+56 %".to_owned() } else { String::new() },
        tolerance,
        basis,
        unit: if basis == Basis::Calibrated { Unit::Milliseconds } else { Unit::Ratio },
        note: if verdict == Verdict::Miss { "with a note".to_owned() } else { String::new() },
        runs: vec!["folder/{machine, workload} smp".to_owned()],
        measured: mean.map(measured),
        verdict,
    }
}

fn claims() -> Claims {
    use Basis::{Beyond, Calibrated, Lost, Parameter, Predicted};
    let void = "folder/{machine, workload} smp, seed 2: 1 of 9 checks did not hold: a frame was lost";
    let rows = vec![
        claim("T-1", Predicted, Tolerance::Between { low: 1.48, high: 1.64 }, Some(1.55), Verdict::Hit),
        claim("T-2", Predicted, Tolerance::Above { bound: 1.0 }, Some(1.2), Verdict::SignHolds),
        claim("T-3", Predicted, Tolerance::AtMost { high: 0.5 }, Some(0.7), Verdict::Miss),
        claim(
            "T-4",
            Predicted,
            Tolerance::AlwaysAtMost { high: 10.1 },
            None,
            Verdict::Void { reason: void.into() },
        ),
        claim("T-5", Predicted, Tolerance::None, Some(145.0), Verdict::Reported),
        claim("T-6", Calibrated, Tolerance::Below { bound: 100.0 }, Some(94.3), Verdict::SignHolds),
        claim(
            "T-7",
            Parameter,
            Tolerance::None,
            None,
            Verdict::Parameter { held_by: vec!["a.rs: f".into()] },
        ),
        claim("T-8", Parameter, Tolerance::None, None, Verdict::Parameter { held_by: Vec::new() }),
        claim("T-9", Lost, Tolerance::None, None, Verdict::NotMeasured { reason: "it is lost".into() }),
        claim("<T&10>", Beyond, Tolerance::AtLeast { low: 2.5 }, Some(2.6), Verdict::Hit),
    ];
    let bar = |label: &str, class: &str, paper, mean: Option<f64>| Bar {
        label: label.to_owned(),
        class: class.to_owned(),
        paper,
        measured: mean.map(measured),
    };
    let charts = vec![Chart {
        id: "figure-4".to_owned(),
        title: "Figure 4: made up".to_owned(),
        reference: "smp, B = 100".to_owned(),
        bars: vec![
            bar("U", "smp", Some(1.56), Some(1.55)),
            bar("U", "quota", None, Some(1.01)),
            bar("U", "isolate", None, None),
        ],
    }];
    Claims {
        seeds: vec![1, 2],
        rows,
        charts,
        studies: Vec::new(),
        command: "commonhold claims T <x>".to_owned(),
    }
}

#[test]
fn for_a_terminal() {
    insta::assert_snapshot!(text(&claims(), Style { colour: false, width: 100 }));
}

#[test]
fn as_json() {
    insta::assert_snapshot!(json(&claims()));
}

#[test]
fn as_a_page() {
    // What it begins with, up to its heading, is every page's.
    let page = html(&claims());
    let (_, body) = page.split_once("<h1>").unwrap();
    insta::assert_snapshot!(body);
}

#[test]
fn each_basis_is_counted_apart() {
    // Predicted: T-1 and T-2 are met, T-3 is missed, T-4 is void and so not met, T-5 has no verdict.
    let tallies = tallies(&claims());
    let counts: Vec<(Basis, usize, usize, usize)> =
        tallies.iter().map(|tally| (tally.basis, tally.rows, tally.decided, tally.met)).collect();
    let expected = [
        (Basis::Predicted, 5, 4, 2),
        (Basis::Calibrated, 1, 1, 1),
        (Basis::Beyond, 1, 1, 1),
        (Basis::Parameter, 2, 0, 1),
        (Basis::Lost, 1, 0, 0),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn names_cannot_break_the_page() {
    let page = html(&claims());
    assert!(page.contains("&lt;T&amp;10&gt;") && !page.contains("<T&") && !page.contains("<x>"));
    assert!(!page.contains("<script") && !page.contains("http"));
}
