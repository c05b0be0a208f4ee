//! What the command prints, to the byte: `commands/*.trycmd`. `TRYCMD=overwrite cargo test -p commonhold --test
//! golden` updates the files; review the difference.

#![allow(clippy::disallowed_methods)]

#[test]
fn commands() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/commands/*.trycmd");
}

/// The outcomes are the same, and in the same order, however many CPUs there are to simulate on.
#[test]
fn a_comparison_does_not_depend_on_the_number_of_threads() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/sim.in/two");
    let compare = |threads| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold"));
        command.args(["sim", folder, "--compare", "--runs", "3", "--json"]).env("RAYON_NUM_THREADS", threads);
        let output = command.output().expect("the program can be run");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    assert_eq!(compare("1"), compare("8"));
}

/// Whatever quotes an argument: our own messages, and those about the command line.
#[test]
fn no_message_has_control_characters_of_an_argument() {
    let foul = "a\u{1b}[31m\u{7}\u{9b}";
    for arguments in [
        &["exec", foul, "--directory", foul, "--", "true"][..],
        &["status", "--directory", foul],
        &["check", foul],
        &["check", foul, "--machine", foul],
        &["check", foul, "--machine", "cpus:\u{1b}"],
        &["sim", foul],
        &["scale", "--points", foul],
        &["scale", "--html", "/missing/\u{1b}", "--", "true"],
        &["scale", "--", foul],
        &["scale", "-\u{1b}"],
        &["claims", foul],
        &["calibrate", foul],
        &["generate", "workload", foul],
        &["generate", "completions", foul],
        &["demo", "--report", "/missing/\u{1b}"],
        &[foul],
        &["sim", ".", "--seed", foul],
        &["run", foul, "--for", foul],
        // What begins as a rendered message does.
        &["check", "\u{1b}[1mwarning"],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold"));
        let output = command.args(arguments).output().expect("the program can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{arguments:?}: {output:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {said:?}");
        assert!(said.contains("\\u{1b}"), "{arguments:?}: {said}");
    }
}
