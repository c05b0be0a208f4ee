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
