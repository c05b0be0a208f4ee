//! Continues processes that stopped themselves because a descendant was stopped, as su, sudo and script do.
//!
//! Term: a *follower* is a process that may stop itself so (an entry [`Entry::MayFollow`] of the journal).
//!
//! Problem: a follower may see its child stopped, and send itself SIGSTOP only after the child was continued.
//! Until then the follower runs.
//!
//! Algorithm: followers are polled, and each one found stopped is continued, until no follower has been
//! runnable for [`QUIET_ROUNDS`] polls, or [`ROUNDS_MAX`] polls were made.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use super::{Undone, continue_one};
use crate::LiveError;
use crate::observe::process::{Listed, ProcFs, ProcessKey, Stat, ThreadState};
use crate::undo::journal::Entry;

/// The maximum number of polls. An ancestor may be runnable all the time, busy with unrelated work.
const ROUNDS_MAX: usize = 60;
/// After this number of polls without a runnable follower, no follower is about to stop itself. Few polls do
/// not suffice: sudo learns of its child's stop from another of its own processes, and sleeps until then, and
/// once more until its terminal has taken what it wrote. On a busy host, each of these takes a time slice.
const QUIET_ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_millis(5);

/// The followers that are stopped, children before their parents. Call this before any process is continued.
pub(super) fn stopped(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) -> Vec<ProcessKey> {
    stopped_or_problem(&followers(entries), procfs, undone)
}

/// Like [`stopped_among`]; after an error, notes a problem and returns no processes.
fn stopped_or_problem(
    followers: &BTreeSet<ProcessKey>,
    procfs: &mut ProcFs,
    undone: &mut Undone,
) -> Vec<ProcessKey> {
    stopped_among(followers, procfs).unwrap_or_else(|error| {
        undone.problems.push(format!(
            "cannot find the processes that stopped with a child: {error}; see: ps -eo pid,stat,args"
        ));
        Vec::new()
    })
}

/// Watches followers for a while, and continues those that stop themselves although their child was
/// continued.
///
/// `continued` has the processes that were continued. A parent among these processes counts as a follower:
/// before it was itself stopped, it may have seen that its child was stopped, and it reacts once it runs.
/// `continued` must not contain processes that a living daemon may stop again.
pub(super) fn continue_late_followers(
    entries: &[Entry],
    continued: &BTreeSet<ProcessKey>,
    procfs: &mut ProcFs,
    undone: &mut Undone,
) {
    let mut followers = followers(entries);
    let parents: BTreeSet<u32> =
        continued.iter().filter_map(|key| Some(procfs.stat(key.pid).ok()??.parent)).collect();
    followers.extend(continued.iter().filter(|key| parents.contains(&key.pid)));
    let mut quiet_rounds = 0;
    for _ in 0..ROUNDS_MAX {
        if followers.is_empty() || quiet_rounds == QUIET_ROUNDS {
            return;
        }
        thread::sleep(ROUND);
        for key in stopped_or_problem(&followers, procfs, undone) {
            continue_one(key, procfs, undone, Stat::is_stopped_by_sigstop);
        }
        let mut is_runnable = |key: &ProcessKey| {
            let stat = procfs.stat(key.pid).ok().flatten();
            stat.is_some_and(|stat| stat.key == *key && stat.state == ThreadState::Runnable)
        };
        quiet_rounds = if followers.iter().any(&mut is_runnable) { 0 } else { quiet_rounds + 1 };
    }
}

/// The processes that may have stopped themselves, by the journal.
fn followers(entries: &[Entry]) -> BTreeSet<ProcessKey> {
    let mut followers = BTreeSet::new();
    for entry in entries {
        match entry {
            Entry::MayFollow { process } => followers.insert(*process),
            Entry::NoLongerFollows { process } => followers.remove(process),
            _ => false,
        };
    }
    followers
}

/// The followers that SIGSTOP has stopped, together with the processes that stopped with them
/// ([`ProcFs::stopped_with`]), youngest first, so that children come before their parents.
fn stopped_among(
    followers: &BTreeSet<ProcessKey>,
    procfs: &mut ProcFs,
) -> Result<Vec<ProcessKey>, LiveError> {
    let (mut stopped, mut all) = (BTreeSet::new(), Vec::<Listed>::new());
    for key in followers {
        let stat = procfs.stat(key.pid)?.filter(|stat| stat.key == *key && stat.is_stopped_by_sigstop());
        let Some(stat) = stat else { continue };
        if all.is_empty() {
            procfs.processes(&mut all)?;
        }
        let pids: Vec<u32> = all.iter().map(|listed| listed.pid).collect();
        stopped.extend(procfs.stopped_with(&stat, &pids)?);
    }
    let mut stopped: Vec<ProcessKey> = stopped.into_iter().collect();
    stopped.sort_unstable_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
    Ok(stopped)
}
