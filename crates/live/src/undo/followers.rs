//! Continues processes that stopped themselves because a descendant was stopped, as su, sudo and script do.
//!
//! Such a parent may see its child stopped, and send itself SIGSTOP only after the child was continued. Until then it is
//! running. So the running ones are polled until none runs, or for [`ROUNDS_MAX`] rounds.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use super::{Undone, continue_one};
use crate::LiveError;
use crate::observe::process::{Listed, ProcFs, ProcessKey, Stat, ThreadState};
use crate::undo::journal::Entry;

/// The maximum number of polls: an ancestor may be busy with unrelated work.
const ROUNDS_MAX: usize = 30;
/// After this many polls with none running, none is about to stop itself. More than one: sudo learns of the stop from another
/// of its processes.
const QUIET_ROUNDS: usize = 2;
const ROUND: Duration = Duration::from_millis(5);

/// The processes that stopped in response, children before their parents. Call this before any process is continued.
pub(super) fn stopped(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) -> Vec<ProcessKey> {
    all_stopped(&followers(entries), procfs, undone)
}

fn all_stopped(
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

/// Continues followers that stop after their child was continued. Parents among the `continued` processes count as followers:
/// such a parent may have seen its child's stop before its own, and reacts once it runs. `continued` must not contain processes
/// that a living daemon may stop again.
pub(super) fn settle(
    entries: &[Entry],
    continued: &BTreeSet<ProcessKey>,
    procfs: &mut ProcFs,
    undone: &mut Undone,
) {
    let mut followers = followers(entries);
    let parents: BTreeSet<u32> =
        continued.iter().filter_map(|key| Some(procfs.stat(key.pid).ok()??.parent)).collect();
    followers.extend(continued.iter().filter(|key| parents.contains(&key.pid)));
    let mut quiet = 0;
    for _ in 0..ROUNDS_MAX {
        if followers.is_empty() || quiet == QUIET_ROUNDS {
            return;
        }
        thread::sleep(ROUND);
        for key in all_stopped(&followers, procfs, undone) {
            continue_one(key, procfs, undone, Stat::is_stopped_by_sigstop);
        }
        let mut runs = |key: &ProcessKey| {
            let stat = procfs.stat(key.pid).ok().flatten();
            stat.is_some_and(|stat| stat.key == *key && stat.state == ThreadState::Runnable)
        };
        quiet = if followers.iter().any(&mut runs) { 0 } else { quiet + 1 };
    }
}

/// The processes that may have stopped themselves.
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
