//! Followers: processes that stop themselves because a descendant was stopped.
//!
//! Problem: su, runuser, sudo and script wait for their child with WUNTRACED. When it stops, they send themselves SIGSTOP, as a
//! job of an interactive shell should; sudo stops its whole process group. Nobody continues them when the child goes on: they
//! would stay stopped for ever.
//!
//! Algorithm: before a process is stopped, its ancestors that run are entered in the journal. Once no descendant of such a
//! process is stopped any more, it is continued if SIGSTOP has stopped it meanwhile, with what stopped in its process group.
//! Descendants are continued first: a parent that goes on while its child is still stopped would stop itself again.
//!
//! Properties:
//! - A process that was stopped before its descendant was stays stopped. So does one that its terminal stopped (Ctrl-Z), whose
//!   signal tells.
//! - A parent that saw its child stopped may send itself the signal only after the child went on. So each is watched for
//!   [`SETTLES_NS`] more, and as long as it is running.
//!
//! Cost: an ancestor's file is read when it is first entered, and then only after it has run.
//!
//! Limits: a SIGSTOP that a user sends to an ancestor while its descendant is stopped cannot be told from its own.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::Time;
use rustix::process::Signal;

use super::Stopping;
use crate::LiveError;
use crate::observe::process::{ProcessKey, Stat, ThreadState};
use crate::undo::journal::Entry;

/// For how long a process may still stop itself after its last stopped descendant went on. Nanoseconds.
const SETTLES_NS: Time = 1_000_000_000;

/// Processes that may stop themselves. They ran when their descendant was stopped.
pub(super) type Followers = BTreeMap<ProcessKey, Follower>;

/// A process that may stop itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    /// Its CPU clock when it was seen to run last: while it stands still, it cannot have stopped itself.
    clock: Option<u64>,
    /// Since when no descendant is stopped.
    settles_since: Option<Time>,
}

/// What is to become of the followers when gates open.
#[derive(Default)]
pub(super) struct Verdict {
    /// To be continued, children before their parents.
    stopped: Vec<ProcessKey>,
    /// No followers any more.
    settled: Vec<ProcessKey>,
}

impl Stopping<'_> {
    /// Ancestors of these processes that run and are not known as followers: those that must be in the journal before any of
    /// these is stopped.
    pub(super) fn new_followers(
        &mut self,
        stopping: &[ProcessKey],
    ) -> Result<Vec<(ProcessKey, Follower)>, LiveError> {
        let mut new = Vec::new();
        let about_to_stop: BTreeSet<ProcessKey> = stopping.iter().copied().collect();
        for key in self.ancestors(stopping.iter().map(|key| key.pid)) {
            let known = self.stops.followers.get_mut(&key);
            if let Some(follower) = known {
                follower.settles_since = None;
                continue;
            }
            if self.stops.has(key) || about_to_stop.contains(&key) {
                continue;
            }
            let clock = self.roster.clock_now(key.pid);
            let stat = self.roster.procfs().stat(key.pid)?.filter(|stat| stat.key == key);
            if stat.as_ref().is_some_and(super::runs) {
                new.push((key, Follower { clock, settles_since: None }));
            }
        }
        Ok(new)
    }

    /// Of processes that are about to be continued, those with a descendant that stays stopped: they may stop themselves at once.
    pub(super) fn followers_among(&self, released: &BTreeSet<ProcessKey>) -> Vec<(ProcessKey, Follower)> {
        if released.is_empty() {
            return Vec::new();
        }
        let needed = self.needed(released);
        let follower = Follower { clock: None, settles_since: None };
        released.iter().filter(|key| needed.contains(key)).map(|key| (*key, follower)).collect()
    }

    /// Looks at the followers without a stopped descendant, where `released` are about to be continued. To be called before these
    /// are: that a terminal asked for a stop is forgotten with their continuation.
    pub(super) fn judge_followers(&mut self, released: &BTreeSet<ProcessKey>) -> Result<Verdict, LiveError> {
        let mut verdict = Verdict::default();
        let settling = self.stops.followers.values().any(|follower| follower.settles_since.is_some());
        if !settling && !self.stops.changed && released.is_empty() {
            return Ok(verdict);
        }
        self.stops.changed = false;
        let needed = self.needed(released);
        let keys: Vec<ProcessKey> = self.stops.followers.keys().copied().collect();
        for key in keys {
            if self.stops.has(key) && !released.contains(&key) {
                // Its own gate is closed: it is continued when that opens.
                verdict.settled.push(key);
            } else if !needed.contains(&key) {
                self.judge(key, &mut verdict)?;
            }
        }
        verdict.stopped.sort_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        verdict.stopped.dedup();
        Ok(verdict)
    }

    fn judge(&mut self, key: ProcessKey, verdict: &mut Verdict) -> Result<(), LiveError> {
        let now = self.now;
        let clock = self.roster.clock_now(key.pid);
        let Some(follower) = self.stops.followers.get_mut(&key) else { return Ok(()) };
        let since = *follower.settles_since.get_or_insert(now);
        let has_time = now < since.saturating_add(SETTLES_NS);
        if clock.is_some() && follower.clock == clock {
            if !has_time {
                verdict.settled.push(key);
            }
            return Ok(());
        }
        let stat = self.roster.procfs().stat(key.pid)?.filter(|stat| stat.key == key);
        let Some(stat) = stat.filter(|stat| stat.state != ThreadState::Ended) else {
            verdict.settled.push(key);
            return Ok(());
        };
        if super::runs(&stat) {
            if let Some(follower) = self.stops.followers.get_mut(&key) {
                follower.clock = clock;
            }
            // What runs at this moment may be on its way to stop itself.
            if !has_time && stat.state != ThreadState::Runnable {
                verdict.settled.push(key);
            }
            return Ok(());
        }
        let stopped = if stat.is_stopped_by_sigstop() { self.stopped_with(&stat)? } else { Vec::new() };
        if stopped.is_empty() {
            // Its terminal stopped it, or a debugger: it is theirs.
            verdict.settled.push(key);
        } else if let Some(follower) = self.stops.followers.get_mut(&key) {
            // It may have been told of several stops, and stop itself once for each.
            *follower = Follower { clock: None, settles_since: Some(now) };
        }
        verdict.stopped.extend(stopped);
        Ok(())
    }

    /// What stopped with a follower, and is not stopped by us.
    fn stopped_with(&mut self, stat: &Stat) -> Result<Vec<ProcessKey>, LiveError> {
        let session = self.roster.members().filter(|member| member.session == stat.session);
        let session: Vec<u32> = session.map(|member| member.key.pid).collect();
        let mut stopped = self.roster.procfs().stopped_with(stat, &session)?;
        stopped.retain(|key| !self.stops.has(*key));
        Ok(stopped)
    }

    /// Continues who followed, and forgets who is settled. One that could not be continued is tried again by the next look.
    pub(super) fn continue_followers(&mut self, verdict: Verdict) -> Vec<Entry> {
        let Verdict { stopped, settled } = verdict;
        for key in stopped {
            self.signal(key, Signal::CONT, "continue", Stat::is_stopped_by_sigstop);
        }
        for key in &settled {
            self.stops.followers.remove(key);
        }
        settled.into_iter().map(|process| Entry::FollowsNot { process }).collect()
    }

    /// The ancestors of what stays stopped once `released` are continued.
    fn needed(&self, released: &BTreeSet<ProcessKey>) -> BTreeSet<ProcessKey> {
        let stays = self.stops.ours.values().map(|(key, _)| key).filter(|key| !released.contains(*key));
        self.ancestors(stays.map(|key| key.pid))
    }

    pub(super) fn ancestors(&self, of: impl Iterator<Item = u32>) -> BTreeSet<ProcessKey> {
        let mut found = BTreeSet::new();
        for pid in of {
            let parent = |pid: u32| self.roster.member(self.roster.member(pid)?.parent);
            let mut at = parent(pid);
            // Whose ancestors are known already are not looked for again.
            while let Some(ancestor) = at.filter(|ancestor| found.insert(ancestor.key)) {
                at = parent(ancestor.key.pid);
            }
        }
        found
    }
}
