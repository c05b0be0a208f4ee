//! The daemon's system calls while all processes sleep: the cost of a sample depends on changes, not on the
//! number of processes.
//!
//! The daemon and the sleepers are alone in a PID namespace. Only process starts and exits elsewhere show, in
//! the machine's count of threads, and cost a listing of the namespace's few processes. Counted by strace
//! from outside.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[path = "../../../bench/bounds.rs"]
mod bounds;

const UNITS: usize = 4;
const PROCESSES: u64 = 50;
/// The number of samples counted: those of about ten seconds, which include work that is done every five.
const LOOKS: usize = 45;

/// Starts a daemon and sleepers in the units, reports that, and sleeps.
const SCRIPT: &str = r#"
$PROGRAM run "$CONTRACT" --backend user --for 120s > log 2>&1 &
until $PROGRAM status > /dev/null 2>&1; do sleep 0.1; done
for n in $(seq $PROCESSES); do $PROGRAM exec u$((n % UNITS)) -- sleep 120 & done
sleep 5
$PROGRAM status --json > status.json
echo ready
wait
"#;

/// All processes in the namespace end with its first one.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        // With this option, `unshare` kills its child when it dies.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Path) -> Namespace {
    let contract = place.join("contract.toml");
    let units: Vec<String> = (0..UNITS).map(|n| format!("[unit.u{n}]\nmembers = []\n")).collect();
    fs::write(&contract, format!("version = 1\n{}", units.concat())).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", SCRIPT]);
    command.current_dir(place).env("COMMONHOLD_DIR", place.join("daemon")).env("CONTRACT", contract);
    command.env("PROGRAM", env!("CARGO_BIN_EXE_commonhold"));
    command.env("PROCESSES", PROCESSES.to_string()).env("UNITS", UNITS.to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let namespace = Namespace(child);
    let log = || fs::read_to_string(place.join("log")).unwrap_or_default();
    assert!(said.any(|line| line.is_ok_and(|line| line == "ready")), "it ended early: {}", log());
    namespace
}

/// The daemon's process ID outside the namespace, found by its contract argument.
fn daemon(contract: &Path) -> u32 {
    let given = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&b"run".as_slice()) && words.contains(&contract.as_os_str().as_encoded_bytes())
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.find(given).expect("the daemon is there")
}

/// The daemon's system calls per sample, over all threads: a sample ends when the first thread waits.
fn traced(pid: u32, into: &Path) -> Vec<u64> {
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--quiet=all", "--output"]).arg(into).args(["--attach", &pid.to_string()]);
    let mut strace = strace.stdin(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let waits = format!("{pid} ");
    let mut looks = Vec::new();
    while looks.len() < LOOKS {
        assert!(begun.elapsed() < Duration::from_secs(90), "{} looks in 90 seconds", looks.len());
        sleep(Duration::from_millis(500));
        assert!(strace.try_wait().unwrap().is_none(), "strace ended early");
        let text = fs::read_to_string(into).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.contains(" resumed>") && line.contains('('));
        let (mut calls, mut begins) = (0u64, None);
        looks.clear();
        for line in lines {
            calls += 1;
            let own = line.strip_prefix(&waits).map(str::trim_start);
            if own.is_some_and(|call| call.starts_with("epoll_pwait(")) {
                // The calls before the first wait are not a whole sample.
                looks.extend(begins.map(|begins| calls - begins));
                begins = Some(calls);
            }
        }
    }
    // SAFETY: a signal to a process that this test started and has not waited for.
    unsafe { libc::kill(i32::try_from(strace.id()).unwrap(), libc::SIGINT) };
    strace.wait().unwrap();
    looks
}

fn members(status: &Path) -> u64 {
    let status: serde_json::Value = serde_json::from_slice(&fs::read(status).unwrap()).unwrap();
    let accounts = status["accounts"].as_array().unwrap();
    let held = accounts.iter().filter(|account| account["unit"].as_str().unwrap().starts_with('u'));
    held.map(|account| account["processes"].as_u64().unwrap()).sum()
}

#[test]
fn a_look_at_rest_costs_what_changed() {
    if !bounds::has_tool("strace", "lab/packages") || !bounds::has_tool("unshare", "lab/packages") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give the daemon a PID namespace and look into it");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let _namespace = start(place.path());
    assert_eq!(members(&place.path().join("status.json")), PROCESSES);
    let pid = daemon(&place.path().join("contract.toml"));
    let mut looks = traced(pid, &place.path().join("calls"));
    let mean = looks.iter().sum::<u64>().div_ceil(looks.len() as u64);
    looks.sort_unstable();
    println!("calls of each look: {looks:?}");
    bounds::hold("rest-user-look", looks[looks.len() / 2], file!());
    bounds::hold("rest-user-second", looks[looks.len() * 9 / 10], file!());
    bounds::hold("rest-user-mean", mean, file!());
}

/// Each bound has a test that counts the item of that name.
#[test]
fn every_bound_is_held() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, test) in bounds::all() {
        let text =
            fs::read_to_string(root.join(&test)).unwrap_or_else(|error| panic!("[{name}]: {test}: {error}"));
        // A script derives its names from the backend's.
        let backend = ["cgroup", "kernel"].iter().find(|backend| name == format!("rest-{backend}-look"));
        let held = match backend {
            Some(backend) => text.contains(&format!("rest_of {backend}")) && text.contains("rest-$1-look"),
            None => text.contains(&format!("{name:?}")),
        };
        assert!(held, "bench/bounds.toml: [{name}] is held by nothing in {test}");
    }
}
