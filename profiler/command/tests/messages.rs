//! Messages of `commonhold scale` about its command line.
#![allow(clippy::disallowed_methods)]

/// Whatever quotes an argument: our own messages, and those about the command line.
#[test]
fn no_message_has_control_characters_of_an_argument() {
    let foul = "a\u{1b}[31m\u{7}\u{9b}";
    for arguments in [
        &["scale", "--points", foul][..],
        &["scale", "--html", "/missing/\u{1b}", "--", "true"],
        &["scale", "--", foul],
        &["scale", "-\u{1b}"],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-scale"));
        let output = command.args(arguments).output().expect("the program can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{arguments:?}: {output:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {said:?}");
        assert!(said.contains("\\u{1b}"), "{arguments:?}: {said}");
    }
}
