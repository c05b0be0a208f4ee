//! `commonhold record`, as a program, with a daemon that is a thread of the test.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_command::place::socket;
use commonhold_ledger::{Account, Statement};
use commonhold_protocol::replies::{MembersReply, PaceReply, StatusReply};
use commonhold_recording::{Block, End, Event, Reader, Sample, Why};
use serde_json::{Value, json};

/// Starts `record a.rec` in this folder, which is the daemon's, too.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    start_by("clocks", folder, arguments)
}

fn start_by(method: &str, folder: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_commonhold-record"))
        .current_dir(folder)
        .args(["record", "a.rec", "--method", method, "--directory", "."])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the first line on standard output.
fn wait_until_it_records(child: &mut Child) {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    while !line.ends_with('\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        line.push(char::from(byte[0]));
    }
    assert!(line.starts_with("recording a.rec: "), "{line}");
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

/// The exit code, and standard error.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Serves one connection: gives `answer` each method with its parameters, until it has no reply.
fn serve(mut client: UnixStream, answer: impl Fn(&str, &Value) -> Option<Value>) {
    let mut requests = BufReader::new(client.try_clone().unwrap());
    loop {
        let mut request = Vec::new();
        if requests.read_until(0, &mut request).unwrap_or(0) == 0 {
            return;
        }
        request.pop();
        let request: Value = serde_json::from_slice(&request).unwrap();
        let Some(reply) = answer(request["method"].as_str().unwrap(), &request["parameters"]) else {
            // Like a process that is stopped: the connection stays open.
            let _ = requests.read_to_end(&mut Vec::new());
            return;
        };
        let _ = client.write_all(format!("{reply}\0").as_bytes());
    }
}

/// The accounts of the units `here`, which has this process, and `gone`, which is removed meanwhile.
fn status() -> Value {
    let account = |unit: &str| Account { unit: unit.to_owned(), processes: 1, ..Account::default() };
    let accounts = vec![account("gone"), account("here")];
    let reply = StatusReply {
        backend: "user".to_owned(),
        instead: None,
        contract: "/etc/commonhold/contract.toml".to_owned(),
        holdings: Vec::new(),
        statement: Statement { accounts, ..Statement::default() },
        daemon: PaceReply::default(),
        switches: Vec::new(),
        tickets: Vec::new(),
        expected_tickets: Vec::new(),
        lots: Vec::new(),
        problems: Vec::new(),
    };
    json!({ "parameters": reply })
}

fn answer(method: &str, parameters: &Value) -> Value {
    match (method, parameters["unit"].as_str()) {
        ("io.commonhold.Status", _) => status(),
        ("io.commonhold.Members", Some("here")) => {
            json!({ "parameters": MembersReply { pids: vec![std::process::id()], count: 1 } })
        }
        ("io.commonhold.Members", _) => {
            json!({ "error": "io.commonhold.NoSuchUnit", "parameters": { "message": "no such unit" } })
        }
        ("io.commonhold.AsContract", _) => json!({ "parameters": { "contract": "version = 1\n" } }),
        _ => panic!("{method}"),
    }
}

/// A daemon in this folder that answers one connection.
fn start_daemon(folder: &Path) {
    let listener = UnixListener::bind(socket(folder)).unwrap();
    thread::spawn(move || {
        serve(listener.accept().unwrap().0, |method, parameters| Some(answer(method, parameters)));
    });
}

/// The samples of a recording, the units of its threads, and its end.
fn read(path: &Path) -> (Vec<Sample>, Vec<String>, End) {
    let mut reader = Reader::open(File::open(path).unwrap()).unwrap();
    let (mut samples, mut units) = (Vec::new(), Vec::new());
    loop {
        match reader.next_block().unwrap() {
            Some(Block::Sample(sample)) => samples.push(sample),
            Some(Block::Threads(threads)) => units.extend(threads.into_iter().map(|thread| thread.unit)),
            Some(Block::End(end)) => return (samples, units, end),
            Some(_) => {}
            None => panic!("no end"),
        }
    }
}

#[test]
fn a_unit_that_is_gone_costs_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    start_daemon(folder.path());
    let (code, said) = end(start(folder.path(), &["--every", "250ms", "--for", "600ms"]));
    assert_eq!((code, &*said), (Some(0), ""));
    let (samples, units, end) = read(&folder.path().join("a.rec"));
    assert!(samples.len() >= 3 && samples.iter().all(|sample| sample.units.len() == 2), "{samples:?}");
    assert!(!units.is_empty() && units.iter().all(|unit| unit == "here"), "{units:?}");
    assert_eq!((end.why, end.without_accounts_ns), (Why::Time, 0));
}

/// A thread that sleeps and is woken by a timer, again and again, is in the recording.
#[test]
fn events_of_the_scheduler_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    start_daemon(folder.path());
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(2));
        }
    });
    let (code, said) = end(start_by("events", folder.path(), &["--every", "250ms", "--for", "1s"]));
    if code == Some(77) {
        return skipped::skipped(said.lines().next().unwrap_or_default());
    }
    assert_eq!(code, Some(0), "{said}");
    let mut reader = Reader::open(File::open(folder.path().join("a.rec")).unwrap()).unwrap();
    let (mut wakes, mut switches) = (0, 0);
    while let Some(block) = reader.next_block().unwrap() {
        if let Block::Events(events) = block {
            wakes += events.iter().filter(|timed| matches!(timed.event, Event::Wake { .. })).count();
            switches += events.iter().filter(|timed| matches!(timed.event, Event::Switch { .. })).count();
        }
    }
    assert!(wakes > 50 && switches > 50, "{wakes} wake-ups, {switches} switches");
}

#[test]
fn a_stopped_daemon_does_not_stop_the_recorder() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(socket(folder.path())).unwrap();
    thread::spawn(move || {
        let asked = Cell::new(0);
        let twice = |method: &str, parameters: &Value| {
            asked.set(asked.get() + u32::from(method == "io.commonhold.Status"));
            (asked.get() <= 2).then(|| answer(method, parameters))
        };
        serve(listener.accept().unwrap().0, twice);
    });
    let mut child = start(folder.path(), &["--every", "250ms", "--for", "1m"]);
    wait_until_it_records(&mut child);
    thread::sleep(Duration::from_secs(2));
    let told = Instant::now();
    terminate(&child);
    let (code, said) = end(child);
    assert!(told.elapsed() < Duration::from_secs(10), "it waited for the daemon");
    assert_eq!(code, Some(0), "{said}");
    let lost =
        "warning: recording goes on without accounts until the daemon answers: the daemon does not answer";
    assert_eq!(said.matches(lost).count(), 1, "{said}");
    assert!(said.contains("warning: no accounts for "), "{said}");
    let (samples, _, end) = read(&folder.path().join("a.rec"));
    assert_eq!(end.why, Why::Told);
    assert!(end.without_accounts_ns > 500_000_000, "{end:?}");
    assert!(samples.len() > 3 && samples.last().unwrap().units.is_empty(), "{samples:?}");
}

#[test]
fn a_last_sample_is_taken_after_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    start_daemon(folder.path());
    let mut child = start(folder.path(), &["--every", "1m"]);
    wait_until_it_records(&mut child);
    terminate(&child);
    let (code, said) = end(child);
    assert_eq!((code, &*said), (Some(0), ""));
    let (samples, _, end) = read(&folder.path().join("a.rec"));
    assert_eq!((samples.len(), end.why), (2, Why::Told));
    assert!(samples.iter().all(|sample| sample.units.len() == 2), "{samples:?}");
}

#[test]
fn a_file_that_exists_is_refused_at_once_and_none_is_left_without_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = end(start(folder.path(), &[]));
    assert_eq!(code, Some(69), "{said}");
    assert!(!folder.path().join("a.rec").exists());
    fs::write(folder.path().join("a.rec"), "mine").unwrap();
    let (code, said) = end(start(folder.path(), &[]));
    let exists = "error: a.rec: cannot write it: File exists (os error 17); name a new file\n";
    assert_eq!((code, &*said), (Some(73), exists));
    assert_eq!(fs::read_to_string(folder.path().join("a.rec")).unwrap(), "mine");
}
