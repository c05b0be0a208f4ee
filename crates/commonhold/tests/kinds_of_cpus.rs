//! Isolated CPUs and CPUs of unequal capacity, on described machines and on this one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::thread::{CpuSet, sched_getaffinity};

#[path = "../../../bench/bounds.rs"]
#[allow(dead_code)]
mod bounds;
#[path = "../../live/tests/support/skipped.rs"]
mod skipped;

/// Two large CPUs, one of half their capacity, and an isolated one.
const MACHINE: &str = "nodes = [{ id = 0, memory_bytes = 1073741824 }]
cpus = [
  { id = 0, node = 0, cache = 0, core = 0 },
  { id = 1, node = 0, cache = 0, core = 1 },
  { id = 2, node = 0, cache = 0, core = 2, capacity = 512 },
  { id = 3, node = 0, cache = 0, core = 3, isolated = true },
]
";
const UNITS: &str = "[unit.a]\nmembers = []\n[unit.b]\nmembers = []\n";

fn contract(place: &Path, machine: &str) -> String {
    fs::write(place.join("contract.toml"), format!("version = 1\n[machine]\n{machine}\n{UNITS}")).unwrap();
    place.join("contract.toml").to_str().unwrap().to_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_names_them_and_divides_isolated_cpus_only_if_told() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("machine.toml"), MACHINE).unwrap();
    let check = |rules: &str| {
        let contract = contract(place.path(), rules);
        let machine = place.path().join("machine.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold"));
        let output = command.args(["check", &contract, "--json", "--machine"]).arg(machine).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let tree: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (tree["machine"]["cpus"].as_array().unwrap().len(), errors(&output))
    };
    let (cpus, said) = check("");
    assert_eq!(cpus, 3);
    assert!(said.contains("note: isolated CPUs 3 are given to no unit; write `isolated = true`"), "{said}");
    assert!(said.contains("note: CPUs 2 have 50 % of the largest CPU's capacity"), "{said}");
    let (cpus, said) = check("isolated = true");
    assert!(cpus == 4 && !said.contains("isolated CPUs"), "{said}");
}

/// The kernel's list of isolated CPUs, replaced in a mount namespace.
#[test]
fn isolated_cpus_of_this_machine_are_given_to_no_unit() {
    if !bounds::has_tool("unshare", "lab/packages") {
        return;
    }
    let own = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let [.., last] = cpus.as_slice() else { return };
    if cpus.len() < 2 || !rustix::process::geteuid().is_root() {
        skipped::skipped("only root can mount a file over one of /sys, and one CPU alone is never left out");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("isolated"), format!("{last}\n")).unwrap();
    let run = |rules: &str, arguments: &str| {
        contract(place.path(), rules);
        let script = format!(
            "mount --bind isolated /sys/devices/system/cpu/isolated && exec \"$PROGRAM\" {arguments}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).current_dir(place.path());
        command.env("PROGRAM", env!("CARGO_BIN_EXE_commonhold"));
        let output = command.env("COMMONHOLD_DIR", place.path().join("daemon")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let note = format!("note: isolated CPUs {last} ({last} by isolcpus) are given to no unit");
    let of_all = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains(&format!("on {}", commonhold_machine::count(cpus.len(), "CPU")))
    };
    let held = run("", "run contract.toml --backend user --for 300ms");
    assert!(errors(&held).contains(&note) && !of_all(&held), "{held:?}");
    let told = run("isolated = true", "run contract.toml --backend user --for 300ms");
    assert!(!errors(&told).contains(&note) && of_all(&told), "{told:?}");
    let doctor = run("", "doctor --json");
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "no isolated CPUs").unwrap();
    let reason = row["reason"].as_str().unwrap();
    assert!(row["state"] == "partly" && reason.contains(&format!("{last} by isolcpus")), "{row}");
}
