//! Real processes as members, and the kernel's view of them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub(crate) mod jobs;
pub(crate) mod skipped;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_live::host::affinity;
use commonhold_live::observe::process::ProcessKey;
use commonhold_live::observe::roster::{MARKER, marker};
use commonhold_machine::CpuSet;

/// A process with its own session. All processes of the session end with the test.
pub struct Job(Child);

/// Starts a program as a job.
pub fn start(program: impl AsRef<OsStr>, arguments: &[&str]) -> Job {
    start_with(Command::new(program), arguments)
}

/// Starts a program as a job, with the marker of processes that entered a unit of this process's daemon by
/// `exec`.
pub fn start_marked(program: &str, arguments: &[&str], unit: &str) -> Job {
    let mut command = Command::new(program);
    command.env(MARKER, marker(std::process::id(), unit));
    start_with(command, arguments)
}

fn start_with(mut command: Command, arguments: &[&str]) -> Job {
    command.args(arguments).stdin(Stdio::piped());
    // A process that outlives its test must not keep the test's output open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: two system calls, which are safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            // However the test ends, the job does not outlive it.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
    Job(command.spawn().unwrap())
}

impl Job {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn say(&self, line: &str) {
        self.0.stdin.as_ref().unwrap().write_all(line.as_bytes()).unwrap();
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A fork storm continues while it is killed: a stopped process cannot fork.
        for signal in [libc::SIGSTOP, libc::SIGSTOP, libc::SIGKILL, libc::SIGKILL] {
            for pid in session(self.pid()) {
                kill(pid, signal);
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a process that a test started.
    unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) };
}

/// Waits until `holds`, or fails the test.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The first CPU that this process may use, and all such CPUs; `None`, with the reason printed, if there is
/// only one.
#[track_caller]
pub fn one_cpu() -> Option<(CpuSet, CpuSet)> {
    let all = affinity::get(0).unwrap();
    if all.len() < 2 {
        skipped::skipped("this machine has one CPU, so that nothing can be seen to be confined");
        return None;
    }
    Some((all.iter().take(1).collect(), all))
}

/// Parent, session, state and start of every process.
fn all() -> BTreeMap<u32, (u32, u32, char, u64)> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some((
            pid,
            (rest[1].parse().ok()?, rest[3].parse().ok()?, rest[0].parse().ok()?, rest[19].parse().ok()?),
        ))
    })
    .collect()
}

pub fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start: all()[&pid].3 }
}

/// A process and all its descendants.
pub fn descendants(pid: u32) -> Vec<u32> {
    let all = all();
    let mut descendants = vec![pid];
    for n in 0.. {
        let Some(parent) = descendants.get(n).copied() else { break };
        descendants.extend(all.iter().filter(|(_, facts)| facts.0 == parent).map(|(pid, _)| *pid));
    }
    descendants
}

/// Processes of a session that have not ended.
pub fn session(leader: u32) -> Vec<u32> {
    let all = all();
    all.iter().filter(|(_, facts)| facts.1 == leader && facts.2 != 'Z').map(|(pid, _)| *pid).collect()
}

pub fn state(pid: u32) -> char {
    all()[&pid].2
}

/// States of all processes of a session.
pub fn states(leader: u32) -> Vec<char> {
    all().values().filter(|facts| facts.1 == leader && facts.2 != 'Z').map(|facts| facts.2).collect()
}

pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The distinct masks of all threads of a process and its descendants.
pub fn masks(pid: u32) -> Vec<CpuSet> {
    distinct(&descendants(pid))
}

/// The distinct masks of all threads of a session.
pub fn session_masks(leader: u32) -> Vec<CpuSet> {
    distinct(&session(leader))
}

fn distinct(pids: &[u32]) -> Vec<CpuSet> {
    let masks = pids.iter().flat_map(|pid| threads(*pid)).filter_map(|tid| affinity::get(tid).ok());
    masks.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The process with that command line.
pub fn find(command: &[&str]) -> Option<u32> {
    let wanted = command.join("\0") + "\0";
    let matches =
        |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted.as_bytes());
    all().into_keys().find(matches)
}

/// A program of `examples/`, which cargo builds before it runs tests.
pub fn example(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{}: build it: cargo build -p commonhold-live --examples", path.display());
    path
}

pub fn churn() -> PathBuf {
    example("churn")
}
