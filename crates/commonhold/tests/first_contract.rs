//! The contract to begin with: `init`, and `run` without a contract.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn call(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

#[test]
fn a_new_contract_is_valid_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let written = call(folder, &["init"]);
    assert_eq!(written.status.code(), Some(0), "{}", said(&written));
    for command in ["check", "explain"] {
        let output = call(folder, &[command, "contract.toml"]);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", said(&output));
    }
    let again = call(folder, &["init"]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("contract.toml: it exists already"), "{}", said(&again));
    assert_eq!(call(folder, &["init", "--force"]).status.code(), Some(0));
}

#[test]
fn flags_decide() {
    let folder = tempfile::tempdir().unwrap();
    let text = |arguments: &[&str]| {
        let output = call(folder.path(), &[&["init", "-"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    if rustix::process::geteuid().is_root() {
        let groups = text(&["--groups", "physics=2,chemistry", "--services", "10", "--jobs", "slurm"]);
        for part in ["[unit.physics]", "tickets = 200", "[unit.chemistry]", "\"10%\"", "slurmstepd.scope"] {
            assert!(groups.contains(part), "{part}: {groups}");
        }
        let people = text(&["--people", "--services", "none", "--jobs", "none"]);
        assert!(people.contains("each = \"user\"") && !people.contains("services"), "{people}");
    }
    for wrong in [["--groups", "a=0"], ["--services", "95%"], ["--groups", ""]] {
        let output = call(folder.path(), &[&["init", "-"][..], &wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", said(&output));
    }
}

#[test]
fn without_a_contract_root_divides_the_machine_among_people() {
    let folder = tempfile::tempdir().unwrap();
    let output = call(folder.path(), &["run", "--dry-run", "--backend", "user"]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let directory = folder.path().join("daemon");
        let for_a_moment = ["run", "--backend", "user", "--for", "200ms", "--directory"];
        let output = call(folder.path(), &[&for_a_moment[..], &[directory.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("no contract was given: each person"), "{}", said(&output));
    } else {
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
}
