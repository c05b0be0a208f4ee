//! Followers: processes that stop themselves because a descendant was stopped.
//!
//! Problem: su, runuser, sudo and script wait for their child with WUNTRACED. When it stops, they send themselves SIGSTOP, as a
//! job of an interactive shell should; sudo stops its whole process group. Nothing continues them when the child continues:
//! they would stay stopped for ever.
//!
//! Algorithm: before a process is stopped, its running ancestors are recorded in the journal. Once no descendant of such an
//! ancestor is stopped any more, it is continued if SIGSTOP has stopped it meanwhile, with the processes of its process group
//! that stopped with it. Descendants are continued first: a parent that continues while its child is still stopped would stop
//! itself again.
//!
//! Properties:
//! - A process that was stopped before its descendant stays stopped. So does one that its terminal stopped (Ctrl-Z), which the
//!   stop signal's number shows.
//! - A parent that saw its child stopped may send itself the signal only after the child was continued. So each is watched for
//!   another [`SETTLES_NS`], and for as long as it is running.
//!
//! Cost: an ancestor's file is read when it is first recorded, and then only after it has run.
//!
//! Limits: a SIGSTOP that a user sends to an ancestor while its descendant is stopped cannot be distinguished from the
//! ancestor's own.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::Time;
use rustix::process::Signal;

use super::Stopping;
use crate::LiveError;
use crate::observe::process::{ProcessKey, Stat, ThreadState};
use crate::undo::journal::Entry;

/// How long a process may still stop itself after its last stopped descendant was continued, in nanoseconds.
const SETTLES_NS: Time = 1_000_000_000;

/// Processes that may stop themselves. They were running when their descendant was stopped.
pub(super) type Followers = BTreeMap<ProcessKey, Follower>;

/// A process that may stop itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    /// Its CPU clock when it was last seen running: if it has not moved, it cannot have stopped itself.
    clock: Option<u64>,
    /// Since when it has no stopped descendant.
    settles_since: Option<Time>,
}

/// What to do with the followers when gates open.
#[derive(Default)]
pub(super) struct Verdict {
    /// To continue, children before their parents.
    stopped: Vec<ProcessKey>,
    /// No longer followers.
    settled: Vec<ProcessKey>,
}

impl Stopping<'_> {
    /// Running ancestors of the processes in `stopping` that are not known as followers: they must be in the journal before any
    /// of these is stopped.
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

    /// Of the processes about to be continued, those with a descendant that stays stopped: they may stop themselves at once.
    pub(super) fn followers_among(&self, released: &BTreeSet<ProcessKey>) -> Vec<(ProcessKey, Follower)> {
        if released.is_empty() {
            return Vec::new();
        }
        let needed = self.needed(released);
        let follower = Follower { clock: None, settles_since: None };
        released.iter().filter(|key| needed.contains(key)).map(|key| (*key, follower)).collect()
    }

    /// Judges the followers without a stopped descendant once `released` are continued. Call this before that: a continue
    /// erases the evidence that a terminal asked for the stop.
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
        let may_still_stop = now < since.saturating_add(SETTLES_NS);
        if clock.is_some() && follower.clock == clock {
            if !may_still_stop {
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
            // It runs at this moment, and may be about to stop itself.
            if !may_still_stop && stat.state != ThreadState::Runnable {
                verdict.settled.push(key);
            }
            return Ok(());
        }
        let stopped = if stat.is_stopped_by_sigstop() { self.stopped_with(&stat)? } else { Vec::new() };
        if stopped.is_empty() {
            // Its terminal or a debugger stopped it, and may continue it.
            verdict.settled.push(key);
        } else if let Some(follower) = self.stops.followers.get_mut(&key) {
            // It may have been notified of several stops, and stop itself once for each.
            *follower = Follower { clock: None, settles_since: Some(now) };
        }
        verdict.stopped.extend(stopped);
        Ok(())
    }

    /// The processes that stopped with a follower, other than those we stopped.
    fn stopped_with(&mut self, stat: &Stat) -> Result<Vec<ProcessKey>, LiveError> {
        let session = self.roster.members().filter(|member| member.session == stat.session);
        let session: Vec<u32> = session.map(|member| member.key.pid).collect();
        let mut stopped = self.roster.procfs().stopped_with(stat, &session)?;
        stopped.retain(|key| !self.stops.has(*key));
        Ok(stopped)
    }

    /// Continues the followers that stopped, and forgets those that settled. The next scan retries a failure.
    pub(super) fn continue_followers(&mut self, verdict: Verdict) -> Vec<Entry> {
        let Verdict { stopped, settled } = verdict;
        for key in stopped {
            self.signal(key, Signal::CONT, "continue", Stat::is_stopped_by_sigstop);
        }
        for key in &settled {
            self.stops.followers.remove(key);
        }
        settled.into_iter().map(|process| Entry::NoLongerFollows { process }).collect()
    }

    /// The ancestors of the processes that stay stopped once `released` are continued.
    fn needed(&self, released: &BTreeSet<ProcessKey>) -> BTreeSet<ProcessKey> {
        let stays = self.stops.ours.values().map(|(key, _)| key).filter(|key| !released.contains(*key));
        self.ancestors(stays.map(|key| key.pid))
    }

    pub(super) fn ancestors(&self, pids: impl Iterator<Item = u32>) -> BTreeSet<ProcessKey> {
        let mut found = BTreeSet::new();
        for pid in pids {
            let parent = |pid: u32| self.roster.member(self.roster.member(pid)?.parent);
            let mut next = parent(pid);
            // If an ancestor is already known, so are its own ancestors.
            while let Some(ancestor) = next.filter(|ancestor| found.insert(ancestor.key)) {
                next = parent(ancestor.key.pid);
            }
        }
        found
    }
}
