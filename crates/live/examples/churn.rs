//! A *storm* of short-lived threads or processes, to test programs that must keep track of such changes.
//!
//! `churn threads N`: N threads at a time, each of which starts its successor and ends. `churn forks N`: N
//! processes at a time, each of which starts its successor, does not wait for it, and ends. The first process
//! adopts the orphans, since not every machine's process 1 does so quickly.
//!
//! The storm ends by itself after [`LENGTH`], even if the program that started it has ended: a storm that
//! outlives its test would stall the machine.
#![allow(clippy::disallowed_methods)]

use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The life of a thread or process. It is so short that many live and end between two scans, and so long that
/// one CPU sustains some tens at a time.
const LIFE: Duration = Duration::from_millis(10);

/// The longest duration of a storm.
const LENGTH: Duration = Duration::from_secs(30);

/// The variable that carries a storm's end, in seconds since 1970.
const END: &str = "CHURN_END";

/// The seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether the storm has lasted long enough.
fn has_ended() -> bool {
    env::var(END).ok().and_then(|end| end.parse().ok()).is_none_or(|end: u64| seconds() >= end)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["threads", count] => {
            for _ in 0..count.parse()? {
                thread::spawn(live_and_start_successor);
            }
        }
        ["forks", count] => {
            adopt_orphans()?;
            // SAFETY: no other thread runs yet.
            unsafe { env::set_var(END, (seconds() + LENGTH.as_secs()).to_string()) };
            for _ in 0..count.parse()? {
                fork()?;
            }
        }
        ["fork"] => {
            thread::sleep(LIFE);
            // If the first process, which adopts the orphans, has ended, process 1 is the parent, and the
            // storm ends.
            if std::os::unix::process::parent_id() != 1 && !has_ended() {
                fork()?;
            }
            return Ok(());
        }
        _ => return Err("usage: churn threads|forks N".into()),
    }
    thread::sleep(LENGTH);
    Ok(())
}

fn live_and_start_successor() {
    thread::sleep(LIFE);
    thread::spawn(live_and_start_successor);
}

/// Makes this process the parent of orphans. Ignores SIGCHLD, which all processes of the storm inherit, so
/// that ended children are reaped at once.
fn adopt_orphans() -> std::io::Result<()> {
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    Ok(())
}

fn fork() -> std::io::Result<()> {
    Command::new(env::current_exe()?).arg("fork").spawn().map(drop)
}
