//! What the simulator prints, to the byte: `*.trycmd`. `TRYCMD=overwrite cargo test -p commonhold-sim-command
//! --test golden` updates the files; review the difference.

#![allow(clippy::disallowed_methods)]

#[test]
fn commands() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/*.trycmd");
}

/// The outcomes are the same, and in the same order, however many CPUs there are to simulate on.
#[test]
fn a_comparison_does_not_depend_on_the_number_of_threads() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim.in/two");
    let compare = |threads| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-sim"));
        command
            .args(["sim", folder, "--compare", "--seeds", "3", "--json"])
            .env("RAYON_NUM_THREADS", threads);
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
    let all =
        [&["sim", foul][..], &["claims", foul], &["sim", ".", "--seed", foul], &["workload", "import", foul]];
    for arguments in all {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-sim"));
        let output = command.args(arguments).output().expect("the program can be run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !errors.is_empty(), "{arguments:?}: {output:?}");
        assert!(!errors.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {errors:?}");
        assert!(errors.contains("\\u{1b}"), "{arguments:?}: {errors}");
    }
}

/// Nobody ever writes to the FIFO: a program that opens it to read would not end.
#[test]
fn inputs_that_are_no_files_are_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a FIFO");
    let fifo = fifo.to_str().expect("UTF-8");
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/aim7");
    let commands: [(&[&str], &str); 4] = [
        (&["sim", scenario, "--contract", "FILE"], "contract"),
        (&["sim", scenario, "--machine", "FILE"], "machine"),
        (&["sim", scenario, "--workload", "FILE"], "workload"),
        (&["workload", "import", "FILE"], "workload"),
    ];
    for (arguments, what) in commands {
        for (file, kind) in
            [(fifo, "a FIFO or pipe"), ("/", "a directory"), ("/dev/zero", "a character device")]
        {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_commonhold-sim"));
            let arguments = arguments.iter().map(|word| if *word == "FILE" { file } else { *word });
            let output = command.args(arguments).output().expect("the program can be run");
            let words = format!("{file}: cannot read the {what}: it is {kind}, not a regular file; give ");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(66) && errors.contains(&words), "{output:?}");
        }
    }
}
