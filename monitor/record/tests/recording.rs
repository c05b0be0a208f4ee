//! `commonhold recording`, as a program: messages and exit codes, and a trace that Perfetto's definitions
//! read.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use commonhold_recording::{
    Block, End, Event, Header, Left, Method, Sample, Thread, TimedEvent, UnitSample, VERSION, Why, Writer,
};
use tempfile::TempDir;

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

const END: End =
    End { at_ns: 900_000, why: Why::Told, lost: 0, disordered: 0, recorder_ns: 0, without_accounts_ns: 0 };

/// A recording in which two threads of `heavy` and one of `light` run by turns on four CPUs, of which `light`
/// has two.
fn recording() -> Vec<u8> {
    let header = Header {
        program: "0.1.0".to_owned(),
        kernel: "6.12.1".to_owned(),
        began_wall_ms: 1_780_000_000_000,
        machine: String::new(),
        contract: "version = 1\n".to_owned(),
        contract_file: "/etc/commonhold/contract.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method: Method::Events,
        sample_ns: 1_000_000_000,
    };
    let mut writer = Writer::begin(Vec::new(), &header, u64::MAX).unwrap();
    let thread = |tid, unit: &str| Thread { tid, pid: tid, name: "w".into(), unit: unit.into(), seen_ns: 0 };
    let threads = vec![thread(1, "light"), thread(2, "heavy"), thread(3, "heavy")];
    writer.write(&Block::Threads(threads)).unwrap();
    let unit = |path: &str, owned: &str| UnitSample {
        path: path.to_owned(),
        owned: owned.to_owned(),
        ..UnitSample::default()
    };
    let units = vec![unit("light", "0-1"), unit("heavy", "2-3")];
    writer.write(&Block::Sample(Sample { units, ..Sample::default() })).unwrap();
    let mut last = [0; 4];
    let mut events = Vec::new();
    for n in 1..2_000_u32 {
        let (cpu, to) = (n % 4, [1, 2, 3, 0][(n / 3 % 4) as usize]);
        let at_ns = u64::from(n) * 400;
        let left = if n % 5 == 0 { Left::Asleep } else { Left::Preempted };
        let from = std::mem::replace(&mut last[cpu as usize], to);
        events.push(TimedEvent { at_ns, event: Event::Switch { cpu, from, left, to } });
        events.push(TimedEvent {
            at_ns: at_ns + 100,
            event: Event::Wake { cpu, thread: n % 4, by: to, by_interrupt: true },
        });
    }
    writer.write(&Block::Events(events)).unwrap();
    writer.end(&END).unwrap()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-record"));
    command.current_dir(folder).arg("recording").args(arguments).output().unwrap()
}

/// A folder with a file `a.rec` of this content.
fn folder(content: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.rec"), content).unwrap();
    folder
}

/// The exit code, and what standard error has.
fn said(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(folder.path(), arguments);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_is_no_recording_is_refused() {
    let whole = recording();
    let mut later = whole.clone();
    later[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    for (content, expected) in [
        (
            &b"[unit.a]\n"[..],
            "error: a.rec: this is no recording: it does not begin as the files of `commonhold record` do\n",
        ),
        (
            &later,
            "error: a.rec: this recording has version 3 of the format, and this program reads version 2\n",
        ),
        (&whole[..30], "error: a.rec: this recording was cut short before its header was complete\n"),
    ] {
        assert_eq!(said(&folder(content), &["a.rec"]), (Some(66), expected.to_owned()));
    }
    let (code, error) = said(&folder(b""), &["b.rec"]);
    assert_eq!(
        (code, &*error),
        (Some(66), "error: b.rec: cannot read it: No such file or directory (os error 2)\n")
    );
    let (code, error) = said(&folder(b""), &["."]);
    assert_eq!((code, &*error), (Some(66), "error: .: cannot read it: Is a directory (os error 21)\n"));
}

#[test]
fn what_is_incomplete_is_shown() {
    let mut bytes = recording();
    let cut = folder(&bytes[..bytes.len() - 3]);
    let output = run(cut.path(), &["a.rec"]);
    assert_eq!(output.status.code(), Some(0));
    let warning = "warning: a.rec: the recording was cut short; what was complete was read\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), warning);
    assert!(String::from_utf8_lossy(&output.stdout).contains("3998 events, 1 sample\n"), "{output:?}");

    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = folder(&bytes);
    let output = run(damaged.path(), &["a.rec"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("error: a.rec: the recording is damaged at byte "), "{error}");
    assert!(error.ends_with(": a block whose checksum is wrong; only what is before was read\n"), "{error}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("3998 events, 1 sample\n"), "{output:?}");
}

#[test]
fn exports_are_for_their_user_alone_and_overwrite_nothing() {
    let folder = folder(&recording());
    let output = run(folder.path(), &["a.rec", "--perfetto", "a.trace", "--csv", "a.csv"]);
    let says = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(says.starts_with("wrote a.trace: ") && says.contains(" bursts, "), "{says}");
    assert!(says.ends_with("wrote 13 files to a.csv\n"), "{says}");
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("a.trace"), mode("a.csv"), mode("a.csv/bursts.csv")], [0o600, 0o700, 0o600]);

    let exists = "cannot create it: File exists (os error 17); name a new";
    for (option, name, what) in [("--perfetto", "a.rec", "file"), ("--csv", "a.csv", "folder")] {
        let (code, error) = said(&folder, &["a.rec", option, name]);
        assert_eq!((code, error), (Some(73), format!("error: {name}: {exists} {what}\n")));
    }
    let (code, error) = said(&folder, &["a.rec", "--csv", "none/a.csv"]);
    let missing = "cannot create it: No such file or directory (os error 2); name a folder in a folder that \
                   exists and that you may write to";
    assert_eq!((code, error), (Some(73), format!("error: none/a.csv: {missing}\n")));
    let json = run(folder.path(), &["a.rec", "--json", "--perfetto", "b.trace"]);
    let text = String::from_utf8(json.stdout).unwrap();
    assert!(text.starts_with("{\n  \"schema\": \"commonhold.recording\"") && text.ends_with("}\n"), "{text}");
}

#[test]
fn perfetto_reads_the_trace() {
    let folder = folder(&recording());
    assert!(run(folder.path(), &["a.rec", "--perfetto", "a.trace"]).status.success());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/check-perfetto");
    let Ok(output) = Command::new("python3").arg(script).arg(folder.path().join("a.trace")).output() else {
        skipped::skipped("python3 is missing: install python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => {
            assert!(
                said.contains("CPUs: ") && said.contains("loans: ") && said.contains("call-backs: "),
                "{said}"
            );
        }
        Some(77) => skipped::skipped(said.lines().last().unwrap_or_default()),
        _ => panic!("{said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}
