//! `commonhold history` and `commonhold account` on a history that is written here: `history/*.trycmd`, byte
//! for byte. `TRYCMD=overwrite cargo test -p commonhold --test history` updates the files; review the
//! difference.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use commonhold_contract::Resource;
use commonhold_history::{
    CallBacks, CpuUse, DiskUse, MachineUse, MemoryUse, Moment, Options, Record, UnitUse, UserUse, Writer,
};
use commonhold_ledger::{Verdict, Wait, WaitCause};
use commonhold_live::host::clock;

const S: u64 = 1_000_000_000;
const MIB: u128 = 1 << 20;
/// 2026-11-28 02:00 UTC.
const START_MS: u64 = 1_795_831_200_000;

fn unit(path: &str, seconds: u64, part: u64) -> UnitUse {
    let ns = seconds * S;
    let byte_ms = |mib: u128| mib * MIB * u128::from(seconds) * 1_000;
    let wait = Wait {
        resource: Resource::Cpu,
        cause: WaitCause::Unit { unit: "students".to_owned() },
        ns: ns / 10,
        beyond_ns: 0,
        inferred_ns: 0,
    };
    UnitUse {
        unit: path.to_owned(),
        processes: 3,
        cpu: CpuUse {
            entitled_ns: ns * 2,
            used_ns: ns * part / 2,
            lent_ns: ns / 4,
            borrowed_ns: ns / 8,
            waited_ns: ns / 10,
        },
        memory: Some(MemoryUse {
            entitled_byte_ms: byte_ms(2_048),
            used_byte_ms: byte_ms(512 * u128::from(part)),
            lent_byte_ms: byte_ms(256),
            borrowed_byte_ms: 0,
            waited_ns: 0,
        }),
        disk: Some(DiskUse {
            entitled_bytes: seconds * 10_000_000,
            read_bytes: seconds * 4_000_000,
            written_bytes: seconds * 2_000_000 * part,
            lent_bytes: seconds * 1_000_000,
            borrowed_bytes: 0,
            waited_ns: ns / 100,
        }),
        call_backs: BTreeMap::from([(Resource::Cpu, CallBacks { count: part, late: 0, max_ns: 7_500_000 })]),
        waits: vec![wait],
        verdicts: BTreeMap::from([(Resource::Cpu, if part > 2 { Verdict::Broken } else { Verdict::Kept })]),
        users: vec![
            UserUse { uid: Some(0), used_ns: ns * part / 4 },
            UserUse { uid: Some(4_000_000_001), used_ns: ns / 8 },
            UserUse { uid: None, used_ns: S },
        ],
    }
}

/// From 02:00 to 02:10; then, after another boot, from 07:45 to 07:50, while the clock is set forward by an
/// hour at 07:48.
fn fixture(folder: &Path, inner: &str) {
    let (mut writer, _) = Writer::open(folder, &Options::default()).unwrap();
    let mut append = |boot, boot_s: u64, wall_s: u64, part| {
        let moment =
            |s: u64| Moment { wall_ms: START_MS + (wall_s + s) * 1_000, boot, boot_ns: (boot_s + s) * S };
        let mut inner = unit(inner, 60, 1);
        inner.users.clear();
        let record = Record {
            start: moment(0),
            end: moment(60),
            duration_ns: 60 * S,
            machine: MachineUse {
                cpus: 8,
                memory_bytes: 8 << 30,
                capacity_ns: 480 * S,
                idle_ns: 200 * S,
                common_ns: 10 * S,
            },
            units: vec![unit("physics", 60, part), inner, unit("students", 60, 2)],
            ..Record::default()
        };
        writer.append(record).unwrap();
    };
    for minute in 0..10 {
        append(1, 500 + minute * 60, minute * 60, 2 + minute / 8);
    }
    let later = 5 * 3_600 + 45 * 60;
    for minute in 0..5 {
        let set_s = if minute >= 3 { 3_600 } else { 0 };
        append(2, 20 + minute * 60, later + minute * 60 + set_s, 2);
    }
}

#[test]
fn commands() {
    let dir = tempfile::tempdir().unwrap();
    fixture(&dir.path().join("history"), "physics/night");
    trycmd::TestCases::new()
        .env("COLUMNS", "100")
        .env("TZ", "UTC0")
        .env("COMMONHOLD_DIR", dir.path().to_str().unwrap())
        .case("tests/history/*.trycmd");
}

/// A second in which unit `a` used half a CPU, so long ago in this boot, labelled as `ahead_s` later than it
/// was; the same for its end.
fn second(ago_s: u64, ahead_s: [u64; 2]) -> Record {
    let (wall_ms, boot, boot_ns) = (clock::wall_ms(), clock::boot(), clock::since_boot());
    let moment = |ago_s, ahead_s| Moment {
        wall_ms: wall_ms + ahead_s * 1_000 - ago_s * 1_000,
        boot,
        boot_ns: boot_ns.saturating_sub(ago_s * S),
    };
    Record {
        start: moment(ago_s, ahead_s[0]),
        end: moment(ago_s - 1, ahead_s[1]),
        duration_ns: S,
        units: vec![unit("a", 1, 1)],
        ..Record::default()
    }
}

/// The clock was set forward by a day, and back twenty seconds later.
#[test]
fn after_the_clock_was_set_forward_and_back_no_time_is_missing_and_none_is_too_much() {
    const DAY_S: u64 = 86_400;
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), &Options::default()).unwrap();
    for ago_s in (1..=30).rev() {
        let ahead = |ago_s| if (5..25).contains(&ago_s) { DAY_S } else { 0 };
        writer.append(second(ago_s, [ahead(ago_s), ahead(ago_s - 1)])).unwrap();
    }
    let output = run(dir.path(), &["history", "--since", "1m", "--step", "second"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("the clock was set back by 24.0 h at "), "{said}");
    assert!(!said.contains("no daemon ran"), "{said}");
    let output = run(dir.path(), &["history", "--since", "2d", "--until", "@9999999999", "--step", "second"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("the clock was set forward by 24.0 h at "), "{said}");

    let output = run(dir.path(), &["why", "a", "--last", "10s", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let recorded_ns = said["recorded_ns"].as_u64().unwrap();
    assert!((1..=10 * S).contains(&recorded_ns), "{said}");
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold"));
    command.args(arguments).arg("--history").arg(folder).env("TZ", "UTC0").output().unwrap()
}

#[test]
fn damage_is_reported_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fixture(dir.path(), "physics/night, \"batch\"");
    let file = dir.path().join("second-0000001.history");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    fs::write(dir.path().join("second-0000002.history"), b"CH-HIST\n\x07\x00\x00\x00\x00\x00\x00\x00")
        .unwrap();
    let output = run(dir.path(), &["history", "--since", "2026-11-28", "--step", "second", "--csv"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1 + 14 * 3);
    assert!(said.contains("/second-0000001.history: ") && said.contains("are damaged"), "{said}");
    assert!(said.contains("second-0000002.history: skipped, since it has format 7"), "{said}");
}

#[test]
fn csv_and_json_have_the_same_figures() {
    let dir = tempfile::tempdir().unwrap();
    fixture(dir.path(), "physics/night, \"batch\"");
    let output =
        run(dir.path(), &["history", "physics", "--since", "2026-11-28", "--json", "--step", "minute"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 15);
    let used: u64 = records.iter().map(|it| it["units"][0]["cpu"]["used_ns"].as_u64().unwrap()).sum();
    let output = run(dir.path(), &["account", "physics", "--since", "2026-11-28", "--csv"]);
    let csv = String::from_utf8(output.stdout).unwrap();
    let mut lines = csv.split("\r\n").map(|line| line.split(',').collect::<Vec<_>>());
    let heads = lines.next().unwrap();
    let at = heads.iter().position(|head| *head == "cpu_used_seconds").unwrap();
    let seconds = lines.next().unwrap()[at].replace('.', "");
    assert_eq!(seconds.parse::<u64>().unwrap(), used);
    assert!(csv.contains("\"physics/night, \"\"batch\"\"\""), "{csv}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    fixture(dir.path(), "physics/night, \"batch\"");
    let program = env!("CARGO_BIN_EXE_commonhold");
    let script = format!(
        "'{program}' history --since 2026-11-28 --csv --step second --history '{}' | head -n 1; echo ${{PIPESTATUS[0]}}",
        dir.path().display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.stdout.ends_with(b"\n0\n"), "{output:?}");
    assert_eq!(output.stderr, b"");
}

/// One record of 2 s at a time of the wall clock, and at a time since boot.
fn record(wall_s: u64, boot_s: u64, units: Vec<UnitUse>) -> Record {
    let moment = |s| Moment { wall_ms: START_MS + (wall_s + s) * 1_000, boot: 1, boot_ns: (boot_s + s) * S };
    Record { start: moment(0), end: moment(2), duration_ns: 2 * S, units, ..Record::default() }
}

fn written(records: impl IntoIterator<Item = Record>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), &Options::default()).unwrap();
    records.into_iter().for_each(|record| writer.append(record).unwrap());
    dir
}

fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn errors_name_a_remedy() {
    let dir = written([]);
    let file = dir.path().join("lock");
    for (folder, arguments, exit, parts) in [
        (dir.path(), &["history", "--since", "soon"][..], 2, ["`soon` is not a time", "`10m`, `2h` or `7d`"]),
        (dir.path(), &["history", "--since", "2999-01-01"], 2, ["2999-01-01 00:00:00", "an earlier --since"]),
        (dir.path(), &["account", "--since", "today", "--until", "yesterday"], 2, ["ends before", "--until"]),
        (dir.path(), &["account", "--month", "2026-13"], 2, ["`2026-13` is not a month", "write `2026-11`"]),
        (&file, &["history"], 66, ["Not a directory", "name the folder"]),
        (Path::new("/nowhere"), &["account"], 66, ["no history in /nowhere", "`commonhold run CONTRACT`"]),
    ] {
        let output = run(folder, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
        assert_eq!(output.status.code(), Some(exit), "{said}");
    }
}

#[test]
fn a_clock_that_is_set_counts_no_time_twice() {
    const DAY: u64 = 86_400;
    // A day of 10 s each, and then the same again.
    let seconds = (0..5).map(|n| record(DAY + 2 * n, 2 * n, vec![unit("physics", 2, 2)]));
    let again = (5..10).map(|n| record(2 * n, 2 * n, vec![unit("physics", 2, 2)]));
    let ahead = record(9_000 * DAY, 20, vec![unit("physics", 2, 2)]);
    let dir = written(seconds.chain(again).chain([ahead]));
    let text = said(dir.path(), &["account", "--since", "2026-11-28 02:00", "--until", "2026-11-30"]);
    assert!(text.contains("covers 20.0 s") && text.contains("set back by 24.0 h"), "{text}");
    assert!(!text.contains("No daemon ran"), "{text}");
    // A clock that was ahead left records of the future.
    let text = said(dir.path(), &["history", "--since", "2026-12-01", "--until", "2026-12-02"]);
    assert!(text.contains("there are records from 2026-11-28 02:00:10 to 2051-"), "{text}");
    let text = said(dir.path(), &["history", "--since", "2026-11-28 02:00", "--until", "2099-01-01"]);
    assert!(text.contains("the clock was set forward by "), "{text}");
}

#[test]
fn names_do_no_harm() {
    let names = ["=cmd|' /C calc'!A0", "a\u{1b}[2J", "+1", "@b"];
    let dir = written([record(0, 0, names.map(|name| unit(name, 2, 2)).to_vec())]);
    let period = ["--since", "2026-11-28", "--until", "2026-11-29"];
    for (command, how) in [
        ("history", "--step=second"),
        ("history", "--csv"),
        ("history", "--json"),
        ("account", "--by=user"),
        ("account", "--csv"),
        ("account", "--json"),
    ] {
        let text = said(dir.path(), &[&[command, how], &period[..]].concat());
        assert!(!text.contains('\u{1b}'), "{command} {how}: {text}");
        let cells = text.split(',').filter(|cell| how == "--csv" && cell.starts_with(['=', '+', '@']));
        assert_eq!(cells.collect::<Vec<_>>(), [""; 0], "{command} {how}");
    }
}

#[test]
fn a_thousand_units_are_listed() {
    let units: Vec<UnitUse> = (0..1_000).map(|n| unit(&format!("students/user-{n}"), 2, 2)).collect();
    let dir = written([record(0, 0, units.clone()), record(2, 2, units)]);
    let period = ["--since", "2026-11-28", "--until", "2026-11-29"];
    let csv = said(dir.path(), &[&["account", "--csv"], &period[..]].concat());
    assert_eq!(csv.lines().count(), 1_001);
    let json = said(dir.path(), &[&["history", "--json", "--step", "second"], &period[..]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["records"][1]["units"].as_array().unwrap().len(), 1_000);
}
