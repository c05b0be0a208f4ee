//! A container where /sys lists other CPUs than the process may use, as lxcfs makes them. A file mounted over
//! /sys/devices/system/cpu/online, in a mount namespace does the same.
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

const CONTRACT: &str = "version = 1\n[unit.a]\nmembers = []\n[unit.b]\nmembers = []\n";

/// The program in such a container: it may use only `cpu`, and the file lists `listed`.
fn run(place: &Path, cpu: usize, listed: &str, arguments: &str) -> Output {
    fs::write(place.join("online"), format!("{listed}\n")).unwrap();
    fs::write(place.join("contract.toml"), CONTRACT).unwrap();
    let script = format!(
        "mount --bind online /sys/devices/system/cpu/online && exec taskset -c {cpu} \"$PROGRAM\" {arguments}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(place);
    command.env("PROGRAM", env!("CARGO_BIN_EXE_commonhold")).env("COMMONHOLD_DIR", place.join("daemon"));
    command.output().unwrap()
}

#[test]
fn commands_take_the_cpus_of_the_affinity_and_warn_once() {
    if !bounds::has_tool("unshare", "lab/packages") || !bounds::has_tool("taskset", "lab/packages") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skipped::skipped("only root can mount a file over one of /sys");
        return;
    }
    let own = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).rev().find(|cpu| own.is_set(*cpu)).unwrap();
    let listed = if cpu == 0 { "1" } else { "0" };
    let place = tempfile::tempdir().unwrap();
    let warning =
        format!("this process may use CPUs {cpu}, but /sys/devices/system/cpu/online lists {listed}");
    for arguments in [
        "doctor --machine",
        "check contract.toml",
        "check contract.toml --json",
        "run contract.toml --dry-run --backend user",
        "run contract.toml --backend user --for 1s",
        "scale --cpus 1 --repeat 1 --unwatched -- sleep 0.03",
    ] {
        let output = run(place.path(), cpu, listed, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {output:?}");
        assert_eq!(said.matches(&warning).count(), 1, "{arguments}: {said}");
    }
    let machine = run(place.path(), cpu, listed, "doctor --machine").stdout;
    let machine = String::from_utf8(machine).unwrap();
    assert_eq!(machine.matches("core = ").count(), 1, "{machine}");
    assert!(machine.contains(&format!("{{ id = {cpu}, ")), "{machine}");
    let doctor = run(place.path(), cpu, listed, "doctor --json");
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "every CPU usable").unwrap();
    assert!(row["state"] == "partly" && row["reason"].as_str().unwrap().contains(&warning), "{row}");
}
