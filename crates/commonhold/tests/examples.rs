//! The examples' entitlements match their comments.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// An example, a unit of it, a resource, its share of the machine in thousandths, and the words of the
/// comment.
const STATED: [(&str, &str, &str, u64, &str); 13] = [
    ("build-host.toml", "people", "cpu", 900, "the people hold 90 %"),
    ("build-host.toml", "builds", "memory", 100, "the builds 10 %"),
    ("class-room.toml", "teachers", "cpu", 257, "25.7 % of the\n# CPUs"),
    ("class-room.toml", "teachers", "memory", 257, "and of the memory there is to divide"),
    ("class-room.toml", "teachers", "disk", 10, "1/101 of them, 1 %"),
    ("three-groups.toml", "physics", "cpu", 625, "physics holds 5 CPUs"),
    ("three-groups.toml", "chemistry", "cpu", 250, "chemistry 2"),
    // 200 of 450 of the 13.72 GiB of 14.72 that physics does not reserve.
    ("three-groups.toml", "chemistry", "memory", 414, "as much memory as physics"),
    ("three-groups.toml", "guests", "cpu", 125, "guests 1."),
    // 1/11 of physics' 5 of 8 CPUs.
    ("three-groups.toml", "physics/night-batch", "cpu", 57, "9.1 %"),
    ("two-groups.toml", "light", "cpu", 500, "each holds 50 %"),
    ("two-groups.toml", "heavy", "memory", 500, "each holds 50 %"),
    ("two-groups.toml", "heavy", "disk", 500, "each holds 50 %"),
];

fn number(amount: &serde_json::Value) -> u64 {
    ["absolute", "part"].iter().find_map(|measure| amount[measure].as_u64()).unwrap()
}

#[test]
fn comments_state_what_check_says() {
    for (file, unit, resource, thousandths, words) in STATED {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(words), "{file} says no more: {words}");
        let mut check = Command::new(env!("CARGO_BIN_EXE_commonhold"));
        check.arg("check").arg(&path).args(["--json", "--machine", "cpus:8 memory:16GiB disks:1"]);
        let output = check.output().unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let tree: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let units = tree["units"].as_array().unwrap();
        let found = units.iter().find(|found| found["unit"] == unit).unwrap();
        let entitled = number(&found["resources"][resource]["entitled"]);
        let whole = number(&tree["capacity"][resource]);
        let held = (entitled * 1000 + whole / 2) / whole;
        assert_eq!(held, thousandths, "{file}: thousandths of {resource} that {unit} holds, {words}");
    }
}

/// The arithmetic in the comments of two examples matches what is printed.
#[test]
fn check_prints_the_sum_of_a_reservation_and_tickets() {
    for (file, sum) in [
        ("class-room.toml", "cpu: 25% reserved + 1% of the other 75% by tickets = 25.7% of the machine\n"),
        ("three-groups.toml", "cpu: 1 reserved + 57.1% of the other 7 by tickets = 5\n"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
        let mut check = Command::new(env!("CARGO_BIN_EXE_commonhold"));
        check.env("COLUMNS", "100").arg("check").arg(&path).args(["--machine", "cpus:8 memory:16GiB"]);
        let text = String::from_utf8(check.output().unwrap().stdout).unwrap();
        assert!(text.contains(sum), "{file} lacks {sum}{text}");
    }
}
