//! How long reading takes. The test is ignored unless asked for, since it measures the machine as much as the
//! program: `cargo test --release -p commonhold-contract --test speed -- --ignored --nocapture`
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::time::{Duration, Instant};

use commonhold_contract::{parse, render};

/// A contract of `units` units, each with members, a reservation and a limit, ten of them in each enclosing
/// unit.
fn contract(units: usize) -> String {
    let mut text = "version = 1\n".to_owned();
    for i in 0..units {
        let name = if i % 10 == 0 { format!("u{i}") } else { format!("u{}.unit.s{i}", i - i % 10) };
        let _ = write!(
            text,
            "\n[unit.{name}]\nmembers = [\"group:g{i}\", \"user:p{i}\"]\ntickets = {}\n\
             hard = {{ cpu = \"0.001\", memory = \"1MiB\" }}\nlimit = {{ memory = \"50%\" }}\nlend = {{ disk = false }}\n",
            i + 1
        );
    }
    text
}

/// The fastest of some runs: the others were disturbed.
fn fastest(mut run: impl FnMut()) -> Duration {
    let mut time = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..21).map(|_| time()).min().unwrap()
}

#[test]
#[ignore = "measures the machine"]
fn a_thousand_units_are_read_within_ten_milliseconds() {
    let text = contract(1000);
    assert!(parse(&text).contract.is_some());
    let valid = fastest(|| assert!(parse(&text).contract.is_some()));
    println!("1,000 units, {} bytes: {valid:?}", text.len());

    let broken = text.replace("tickets", "ticket").replace("lend = {", "lend = [");
    let found = fastest(|| assert!(!render(&parse(&broken).diagnostics, &broken, "x.toml", true).is_empty()));
    println!("the same with 2,000 mistakes, shown: {found:?}");
    assert!(valid < Duration::from_millis(10), "{valid:?}");
}
