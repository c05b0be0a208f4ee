//! The output of `commonhold generate`, byte for byte: `*.trycmd`. `TRYCMD=overwrite cargo test -p
//! commonhold-generate --test golden` updates the file; review the difference.

#![allow(clippy::disallowed_methods)]

#[test]
fn commands() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/*.trycmd");
}

/// Everything that quotes an argument: our own messages, and clap's.
#[test]
fn no_message_has_control_characters_of_an_argument() {
    let foul = "a\u{1b}[31m\u{7}\u{9b}";
    for arguments in [&["generate", foul][..], &["generate", "completions", foul]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-generate"));
        let output = command.args(arguments).output().expect("the program can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{arguments:?}: {output:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {said:?}");
        assert!(said.contains("\\u{1b}"), "{arguments:?}: {said}");
    }
}
