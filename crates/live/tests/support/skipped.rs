//! Reports that a test does not run on this machine. cargo counts such a test as passed, and hides its
//! output; so it is also reported to `scripts/unit-tests`, which names and counts it. Tests of two crates
//! share this file.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// Reports that the current test is skipped, and why.
#[track_caller]
pub(crate) fn skipped(reason: &str) {
    let (thread, caller) = (std::thread::current(), Location::caller());
    // With one CPU, tests run on the main thread, which does not have the test's name.
    let name = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("{}:{}", caller.file(), caller.line()),
    };
    eprintln!("skipped {name}: {reason}");
    if let Some(path) = std::env::var_os("COMMONHOLD_SKIPPED") {
        let line = format!("unit {name}: {}\n", reason.replace('\n', " "));
        // In one write: tests run concurrently.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap_or_else(|error| {
            panic!("COMMONHOLD_SKIPPED: cannot write to {}: {error}", path.display())
        });
    }
}
