//! The programs that read what is served: see `scripts/serve-test`.

#![allow(clippy::unwrap_used)]

use std::process::Command;

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

/// Runs a part of the script, or reports what it lacks here.
#[track_caller]
fn run(part: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/serve-test");
    let mut command = Command::new("python3");
    command.args(["-B", script, "--serve", env!("CARGO_BIN_EXE_commonhold-serve"), part]);
    let Ok(output) = command.output() else {
        skipped::skipped("python3 is missing: install python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(77) => skipped::skipped(said.lines().last().unwrap_or_default()),
        code => assert_eq!(code, Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn prometheus_reads_the_metrics() {
    run("prometheus");
}

#[test]
fn a_browser_shows_the_page() {
    run("page");
}
