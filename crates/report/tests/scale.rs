//! What a study looks like, to the byte. Golden files: see `golden.rs`.

use commonhold_report::{Style, scale};
use commonhold_scale::law::Law;
use commonhold_scale::states::{State, Times};
use commonhold_scale::study::{Limit, Measure, Named, Run, Size, Sizes, Study, Watched};

const MS: u64 = 1_000_000;

/// A run of that length; its threads spend it in these states, in ms.
fn run(wall_ms: u64, states: &[(State, u64)]) -> Run {
    let mut times = Times::default();
    for (state, ms) in states {
        times.add(*state, ms * MS);
    }
    let named = |name: &str, threads| Named { name: name.to_owned(), threads, times };
    let by_name = vec![named("worker-*", 8), named("a<b", 1)];
    let watched = Watched { times, by_name, threads: 9, looks: 100 };
    #[allow(clippy::cast_precision_loss)]
    let throughput = 1_000.0 / wall_ms as f64;
    Run { wall_ns: wall_ms * MS, throughput, watched: Some(watched) }
}

/// Runs as long as the law has them, a little more and a little less.
fn study(numbers: &[u32]) -> Study {
    let law = Law { lambda: 0.25, alpha: 0.04, beta: 0.015 };
    let size = |n: &u32| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wall = (1e3 / law.throughput(f64::from(*n))) as u64;
        let lock = u64::from(*n - 1) * wall / 3;
        let states = [(State::User, 3_600), (State::System, 400), (State::Lock, lock), (State::Join, wall)];
        Size {
            n: *n,
            cpus: (0..*n).collect(),
            step: (*n == 8).then_some("another node"),
            runs: [wall - wall / 100, wall, wall + wall / 90].map(|ms| run(ms, &states)).into(),
            failed: None,
        }
    };
    Study {
        command: "./solve <input> -j{n}".to_owned(),
        machine: "16 CPUs, 2 nodes, 2 caches, 32 GiB memory, no swap, 1 disk".to_owned(),
        sizes_are: Sizes::Cpus,
        measure: Measure::Runs,
        warm_up: 1,
        sizes: numbers.iter().map(size).collect(),
        locks: None,
        limits: vec![Limit { what: "how long CPUs wait".to_owned(), remedy: "ask".to_owned() }],
    }
}

#[test]
fn a_program_that_peaks() {
    insta::assert_snapshot!(scale::text(&study(&[1, 2, 4, 8, 12, 16]), Style::PLAIN));
}

#[test]
fn a_program_that_peaks_as_json() {
    insta::assert_snapshot!(scale::json(&study(&[1, 2, 4])));
}

#[test]
fn a_program_that_peaks_as_a_page() {
    insta::assert_snapshot!(scale::html(&study(&[1, 2, 4, 8, 12, 16])));
}

#[test]
fn two_sizes_one_size_and_none() {
    let mut none = study(&[1]);
    none.sizes[0].runs.clear();
    none.sizes[0].failed = Some("the program ended with exit code 3: no".to_owned());
    let studies = [study(&[1, 4]), study(&[4]), none];
    let texts = studies.iter().map(|study| scale::text(study, Style::PLAIN));
    insta::assert_snapshot!(texts.collect::<Vec<_>>().join("\n========\n\n"));
    assert!(studies.iter().all(|study| !scale::html(study).contains("NaN")));
}

#[test]
fn printed_rates_nobody_looked_and_a_law_that_does_not_hold() {
    let mut study = study(&[1, 2, 4, 8, 12, 16]);
    (study.sizes_are, study.measure) = (Sizes::Number, Measure::Printed("rate: ([0-9.]+)".to_owned()));
    for size in &mut study.sizes {
        for run in &mut size.runs {
            run.watched = None;
            run.throughput *= if size.n >= 8 { 0.6 } else { 1.0 };
        }
    }
    insta::assert_snapshot!(scale::text(&study, Style::PLAIN));
}
