//! Followers: processes that stop themselves because a descendant was stopped.
//!
//! Problem: su, runuser, sudo and script wait for their child with WUNTRACED. When the child stops, such a
//! program sends itself SIGSTOP, as a job of an interactive shell should; sudo stops its whole process group.
//! Nothing continues the program when its child is continued, so it would stay stopped for ever.
//!
//! Algorithm: before a process is stopped, its running ancestors are recorded in the journal as followers.
//! When the last stopped descendant of a follower is to be continued, the follower is examined. If SIGSTOP
//! has stopped the follower meanwhile, it is continued as well, with the processes of its process group that
//! stopped at the same time. Descendants are continued first: a parent that continues while its child is
//! still stopped would stop itself again.
//!
//! Properties:
//! - A process that was stopped before its descendant stays stopped. So does a process that its terminal
//!   stopped (Ctrl-Z), which the stop signal's number shows.
//! - A parent that saw its child stopped may be slow, and stop itself only after the child was continued. So
//!   a follower *settles*: it is watched for another [`SETTLES_NS`], and for as long as it is running.
//!
//! Cost: an ancestor's file is read when it is first recorded, and then only after it has run.
//!
//! Limits: a SIGSTOP that a user sends to an ancestor while its descendant is stopped cannot be distinguished
//! from the ancestor's own.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::Time;
use rustix::process::Signal;

use super::Stopping;
use crate::LiveError;
use crate::observe::process::{ProcessKey, Stat, ThreadState};
use crate::undo::journal::Entry;

/// How long a follower is watched after its last stopped descendant was continued, in nanoseconds.
const SETTLES_NS: Time = 1_000_000_000;

/// Processes that may stop themselves, because they were running when a descendant was stopped.
pub(super) type Followers = BTreeMap<ProcessKey, Follower>;

/// What is known of a process that may stop itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    /// The follower's CPU clock when it was last seen running. While the clock has this value, the follower
    /// has not stopped itself. `None`: examine it in any case.
    clock: Option<u64>,
    /// The time since when the follower has no stopped descendant; `None` while it has one.
    settles_since: Option<Time>,
}

/// The processes to continue, and the followers to forget, when gates open.
#[derive(Default)]
pub(super) struct Verdict {
    /// Processes to continue, children before their parents.
    stopped: Vec<ProcessKey>,
    /// Followers to forget, because they will not stop themselves any more.
    settled: Vec<ProcessKey>,
}

impl Stopping<'_> {
    /// The running ancestors of the processes in `stopping` that are not followers yet. They must be in the
    /// journal as followers before any process in `stopping` is stopped.
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
            if self.stops.is_ours(key) || about_to_stop.contains(&key) {
                continue;
            }
            let clock = self.roster.clock_now(key.pid);
            let stat = self.roster.procfs().stat(key.pid)?.filter(|stat| stat.key == key);
            if stat.as_ref().is_some_and(super::is_running) {
                new.push((key, Follower { clock, settles_since: None }));
            }
        }
        Ok(new)
    }

    /// The processes in `released`, which are about to be continued, that have a descendant which stays
    /// stopped. They become followers, since they may stop themselves as soon as they run.
    pub(super) fn followers_among(&self, released: &BTreeSet<ProcessKey>) -> Vec<(ProcessKey, Follower)> {
        if released.is_empty() {
            return Vec::new();
        }
        let ancestors = self.ancestors_of_remaining_stops(released);
        let follower = Follower { clock: None, settles_since: None };
        released.iter().filter(|key| ancestors.contains(key)).map(|key| (*key, follower)).collect()
    }

    /// Decides about the followers that will have no stopped descendant once the processes in `released` are
    /// continued. Call this before these are continued: a continue erases the number of the signal that
    /// stopped a process.
    pub(super) fn judge_followers(&mut self, released: &BTreeSet<ProcessKey>) -> Result<Verdict, LiveError> {
        let mut verdict = Verdict::default();
        let any_settling = self.stops.followers.values().any(|follower| follower.settles_since.is_some());
        if !any_settling && !self.stops.changed && released.is_empty() {
            return Ok(verdict);
        }
        self.stops.changed = false;
        let ancestors = self.ancestors_of_remaining_stops(released);
        let keys: Vec<ProcessKey> = self.stops.followers.keys().copied().collect();
        for key in keys {
            if self.stops.is_ours(key) && !released.contains(&key) {
                // We stopped the follower, too: it is continued when its own gate opens.
                verdict.settled.push(key);
            } else if !ancestors.contains(&key) {
                self.judge(key, &mut verdict)?;
            }
        }
        verdict.stopped.sort_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        verdict.stopped.dedup();
        Ok(verdict)
    }

    /// Adds a follower without stopped descendants to the verdict, unless it must be watched further.
    fn judge(&mut self, key: ProcessKey, verdict: &mut Verdict) -> Result<(), LiveError> {
        let now = self.now;
        let clock = self.roster.clock_now(key.pid);
        let Some(follower) = self.stops.followers.get_mut(&key) else { return Ok(()) };
        let since = *follower.settles_since.get_or_insert(now);
        let may_still_stop = now < since.saturating_add(SETTLES_NS);
        // A follower that has not run since it was seen running has not stopped itself: its state need not be
        // read.
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
        if super::is_running(&stat) {
            if let Some(follower) = self.stops.followers.get_mut(&key) {
                follower.clock = clock;
            }
            // A runnable follower may be about to stop itself.
            if !may_still_stop && stat.state != ThreadState::Runnable {
                verdict.settled.push(key);
            }
            return Ok(());
        }
        let stopped = if stat.is_stopped_by_sigstop() { self.stopped_with(&stat)? } else { Vec::new() };
        if stopped.is_empty() {
            // A terminal or a debugger stopped the follower: continuing it is up to them.
            verdict.settled.push(key);
        } else if let Some(follower) = self.stops.followers.get_mut(&key) {
            // The follower may have seen several stops, and stop itself once for each: watch it further.
            *follower = Follower { clock: None, settles_since: Some(now) };
        }
        verdict.stopped.extend(stopped);
        Ok(())
    }

    /// The follower, and the processes of its process group that stopped at the same time, without the
    /// processes that we stopped.
    fn stopped_with(&mut self, stat: &Stat) -> Result<Vec<ProcessKey>, LiveError> {
        let session = self.roster.members().filter(|member| member.session == stat.session);
        let session: Vec<u32> = session.map(|member| member.key.pid).collect();
        let mut stopped = self.roster.procfs().stopped_with(stat, &session)?;
        stopped.retain(|key| !self.stops.is_ours(*key));
        Ok(stopped)
    }

    /// Continues the processes that the verdict says have stopped, and forgets the followers that have
    /// settled. Returns the entries for the journal. A signal that fails is retried by the next scan.
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

    /// The ancestors of the processes that we stopped and that stay stopped when the processes in `released`
    /// are continued.
    fn ancestors_of_remaining_stops(&self, released: &BTreeSet<ProcessKey>) -> BTreeSet<ProcessKey> {
        let remaining = self.stops.ours.values().map(|(key, _)| key).filter(|key| !released.contains(*key));
        self.ancestors(remaining.map(|key| key.pid))
    }

    /// All ancestors of these processes that are members of units.
    pub(super) fn ancestors(&self, pids: impl Iterator<Item = u32>) -> BTreeSet<ProcessKey> {
        let mut ancestors = BTreeSet::new();
        for pid in pids {
            let parent = |pid: u32| self.roster.member(self.roster.member(pid)?.parent);
            let mut next = parent(pid);
            // If an ancestor is in the set already, so are its own ancestors.
            while let Some(ancestor) = next.filter(|ancestor| ancestors.insert(ancestor.key)) {
                next = parent(ancestor.key.pid);
            }
        }
        ancestors
    }
}
