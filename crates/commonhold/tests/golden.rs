//! The command's output, byte for byte: `commands/*.trycmd`. `TRYCMD=overwrite cargo test -p commonhold
//! --test golden` updates the files; review the difference.

#![allow(clippy::disallowed_methods)]

#[test]
fn commands() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/commands/*.trycmd");
}

/// Everything that quotes an argument: our own messages, and clap's.
#[test]
fn no_message_has_control_characters_of_an_argument() {
    let foul = "a\u{1b}[31m\u{7}\u{9b}";
    for arguments in [
        &["exec", foul, "--directory", foul, "--", "true"][..],
        &["status", "--directory", foul],
        &["check", foul],
        &["check", foul, "--machine", foul],
        &["check", foul, "--machine", "cpus:\u{1b}"],
        &["calibrate", foul],
        &["demo", "--report", "/missing/\u{1b}"],
        &[foul],
        &["run", foul, "--for", foul],
        // Rendered diagnostics.
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
