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
    for arguments in [&["generate", "workload", foul][..], &["generate", "completions", foul]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-generate"));
        let output = command.args(arguments).output().expect("the program can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{arguments:?}: {output:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {said:?}");
        assert!(said.contains("\\u{1b}"), "{arguments:?}: {said}");
    }
}

/// The FIFO has no writer: a program that opened it for reading would hang.
#[test]
fn inputs_that_are_no_files_are_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a FIFO");
    let fifo = fifo.to_str().expect("UTF-8");
    let commands: [(&[&str], &str); 1] = [(&["generate", "workload", "FILE"], "recording")];
    for (arguments, what) in commands {
        for (file, kind) in
            [(fifo, "a FIFO or pipe"), ("/", "a directory"), ("/dev/zero", "a character device")]
        {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-generate"));
            let arguments = arguments.iter().map(|word| if *word == "FILE" { file } else { *word });
            let output = command.args(arguments).output().expect("the program can be run");
            let words = format!("{file}: cannot read the {what}: it is {kind}, not a regular file; give ");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(66) && errors.contains(&words), "{output:?}");
        }
    }
}
