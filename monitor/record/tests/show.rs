#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use commonhold_machine::Machine;
use commonhold_recording::*;

const MS: u64 = 1_000_000;

fn unit(path: &str, owned: &str, used_ms: u64, calls: u64) -> UnitSample {
    UnitSample {
        path: path.to_owned(),
        processes: 1,
        entitled_micro_cpus: 1_000_000,
        owned: owned.to_owned(),
        used_ns: used_ms * MS,
        call_backs: CallBacks { count: calls, classes: vec![(2_048, calls)], ..CallBacks::default() },
        memory: Some(MemorySample { used: 64 << 20, ..MemorySample::default() }),
        disk: Some(DiskUse { read: used_ms << 10, ..DiskUse::default() }),
        ..UnitSample::default()
    }
}

fn sample(at_ms: u64, calls: u64) -> Block {
    let units = vec![unit("light", "0", at_ms / 2, calls), unit("heavy", "1", at_ms, 0)];
    let process = ProcessSample { pid: 11, anonymous: 32 << 20, ..ProcessSample::default() };
    let disk = DiskSample { name: "sda".to_owned(), device: 8 << 20, ..DiskSample::default() };
    Block::Sample(Sample {
        at_ns: at_ms * MS,
        units,
        processes: vec![process],
        disks: vec![disk],
        ..Sample::default()
    })
}

/// `light` owns CPU 0, and `heavy` CPU 1. 12 of `heavy` borrows CPU 0 until 11 of `light` wakes up.
fn recording() -> Vec<u8> {
    let header = Header {
        program: "0.1.0".to_owned(),
        kernel: "6.12.1".to_owned(),
        began_wall_ms: 1_780_000_000_000,
        machine: Machine::synthetic("nodes:1 cpus:2 memory:4GiB").unwrap().to_toml(),
        contract: "version = 1\n[unit.light]\n[unit.heavy]\n".to_owned(),
        contract_file: "/etc/commonhold.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method: Method::Events,
        sample_ns: 1_000 * MS,
    };
    let thread = |tid, name: &str, unit: &str| Thread {
        tid,
        pid: tid,
        name: name.to_owned(),
        unit: unit.to_owned(),
        seen_ns: 0,
    };
    let at = |at_ms: u64, event| TimedEvent { at_ns: at_ms * MS, event };
    let switch = |cpu, from, left, to| Event::Switch { cpu, from, left, to };
    let events = vec![
        at(0, switch(0, 0, Left::Preempted, 12)),
        at(0, switch(1, 0, Left::Preempted, 13)),
        at(40, Event::Wake { cpu: 1, thread: 11, by: 13 }),
        at(41, switch(0, 12, Left::Preempted, 11)),
        at(60, switch(0, 11, Left::Asleep, 12)),
        at(99, switch(0, 12, Left::Blocked, 0)),
        at(100, switch(1, 13, Left::Ended, 0)),
    ];
    let mut writer = Writer::begin(Vec::new(), &header, u64::MAX).unwrap();
    let threads =
        vec![thread(11, "editor", "light"), thread(12, "=sum", "heavy"), thread(13, "spin", "heavy")];
    for block in [Block::Threads(threads), sample(0, 0), Block::Events(events), sample(100, 1)] {
        writer.write(&block).unwrap();
    }
    let end = End {
        at_ns: 100 * MS,
        why: Why::Time,
        lost: 0,
        disordered: 0,
        recorder_ns: MS,
        without_accounts_ns: 0,
    };
    writer.end(&end).unwrap()
}

struct Folder(tempfile::TempDir);

impl Folder {
    /// A folder with the bytes as `a.rec`.
    fn with(bytes: &[u8]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.rec"), bytes).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn show(&self, options: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_commonhold-record"))
            .args(["recording", "a.rec"])
            .args(options)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_recording_is_summed_up() {
    let folder = Folder::with(&recording());
    let output = folder.show(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    insta::assert_snapshot!("text", text(&output.stdout));
    insta::assert_snapshot!("json", text(&folder.show(&["--json"]).stdout));
}

#[test]
fn tables_are_exported() {
    let folder = Folder::with(&recording());
    assert!(folder.show(&["--csv", "tables"]).status.success());
    let mut all = String::new();
    for name in ["threads", "bursts", "waits", "usage", "units", "processes", "disks"] {
        let table = std::fs::read_to_string(folder.path(&format!("tables/{name}.csv"))).unwrap();
        all += &format!("== {name}.csv\n{table}");
    }
    insta::assert_snapshot!(all);
    let again = folder.show(&["--csv", "tables"]);
    assert_eq!(again.status.code(), Some(73));
    assert!(text(&again.stderr).contains("name a new one"), "{}", text(&again.stderr));
}

#[test]
fn a_trace_has_a_row_for_each_cpu_and_unit_and_flows_for_loans() {
    let folder = Folder::with(&recording());
    assert!(folder.show(&["--perfetto", "a.pftrace"]).status.success());
    let trace = text(&std::fs::read(folder.path("a.pftrace")).unwrap());
    for part in
        ["CPU 0", "CPU 1", "light", "heavy", "lends CPU 0 to heavy", "calls CPU 0 back", "loan of", "editor"]
    {
        assert!(trace.contains(part), "{part}");
    }
    checked(&folder.path("a.pftrace"));
}

/// Checks a trace by Perfetto's own definitions, where the Python package is installed.
fn checked(trace: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/check-perfetto");
    let Ok(output) = Command::new("python3").arg(script).arg(trace).output() else { return };
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", text(&output.stdout));
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let whole = recording();
    let shown = |bytes: &[u8]| {
        let output = Folder::with(bytes).show(&[]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, foreign) = shown(b"# tracer: nop\n");
    assert_eq!(code, Some(66));
    assert!(foreign.contains("a.rec: this is no recording"), "{foreign}");
    let (code, cut) = shown(&whole[..whole.len() - 10]);
    assert_eq!(code, Some(0));
    assert!(cut.contains("note: the file was truncated"), "{cut}");
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let (code, damaged) = shown(&damaged);
    assert_eq!(code, Some(0));
    assert!(damaged.contains("note: the recording is damaged at byte"), "{damaged}");
    let mut other = whole;
    other[8] = 9;
    let (code, other) = shown(&other);
    assert_eq!(code, Some(66));
    assert!(other.contains("version 9"), "{other}");
}
