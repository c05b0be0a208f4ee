//! Gates by signals: stops and continues all processes of a unit, or of a gang, with SIGSTOP and SIGCONT.
//!
//! Properties: a process is stopped while any of its gates is closed. Processes that their user or a debugger
//! stopped are not touched. A stop is written to the journal before it is sent, so that the caretaker
//! continues every stopped process if the daemon dies.
//!
//! Order: parents are stopped before their children, and continued after them, because a parent that waits
//! for stopped children (WUNTRACED) must not run while it could see a stopped child. [`followers`] deals with
//! the parents that are behind no gate, and so do see their children stopped. A process that sleeps is not
//! stopped ([`sleepers`]), unless it is the ancestor of a stopped process.
//!
//! In seed 003, section 4, signals pass from thread to thread and may overtake each other, so a thread blocks
//! only if it was sent more blocks than unblocks. Such counts are unnecessary here: the kernel stops all
//! threads of a process at once, and a continue cancels a pending stop, so signals cannot overtake each
//! other.

mod followers;
mod sleepers;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use commonhold_contract::UnitId;
use commonhold_policy::Time;
use rustix::process::Signal;

use super::confine::{Problems, record, remedy};
use crate::LiveError;
use crate::host::signal;
use crate::observe::process::{ProcessKey, Stat, ThreadState, is_now};
use crate::observe::roster::{Member, Roster};
use crate::undo::journal::{Entry, Journal};
use followers::{Followers, Verdict};
use sleepers::{Rest, Sleepers};

/// The maximum number of rounds of looking for processes to stop. Even a fork storm needs fewer: a stopped
/// process cannot fork, so each round leaves fewer processes that can.
pub(super) const ROUNDS_MAX: usize = 100;

/// The number of waits, and the length of each, for processes that were sent a stop and still run. A process
/// inside fork(2) is about to have a child; without a wait, nothing would stop the child.
const SETTLE_ROUNDS: usize = 10;
const SETTLE_PAUSE: Duration = Duration::from_micros(100);

/// The stopped processes.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// Processes that we stopped, by number, each with its CPU clock when it was last seen stopped; `None`:
    /// not seen yet.
    ours: BTreeMap<u32, (ProcessKey, Option<u64>)>,
    followers: Followers,
    sleepers: Sleepers,
    /// Remaining waits for the most recently stopped processes ([`SETTLE_ROUNDS`]).
    settle_rounds: usize,
    /// Whether the set of stopped processes has changed since the followers were last examined.
    changed: bool,
}

/// Processes behind a closed gate that are not on record as stopped by us, or do not stay stopped.
#[derive(Default)]
struct Unstopped {
    /// Running, and not stopped by us before.
    new: Vec<ProcessKey>,
    /// Stopped by us, but running: another process continued it, or our signal has not taken effect yet.
    again: Vec<ProcessKey>,
    /// Followers that have stopped themselves.
    stopped_themselves: Vec<ProcessKey>,
    /// Whether a process that we stopped is on a CPU, or in a run queue, at this moment.
    any_runnable: bool,
}

/// [`Stops`] with the parts of a backend that it uses for the duration of one operation.
pub(super) struct Stopping<'a> {
    pub(super) stops: &'a mut Stops,
    pub(super) roster: &'a mut Roster,
    pub(super) journal: &'a mut Journal,
    pub(super) problems: &'a mut Problems,
    /// The time of this scan.
    pub(super) now: Time,
    /// Whether a gate of the process is closed.
    pub(super) closed: &'a dyn Fn(&Member) -> bool,
}

impl Stops {
    /// Whether no process is stopped by us, and none may stop itself in response.
    pub(super) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.followers.is_empty()
    }

    /// Whether there is nothing to continue or to watch: no stopped process, no follower and no sleeper
    /// behind a closed gate.
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && self.sleepers.asleep().next().is_none()
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.drop_stop(key);
        self.sleepers.forget(key);
    }

    /// Removes a process from those that we stopped.
    fn drop_stop(&mut self, key: ProcessKey) {
        if self.is_ours(key) {
            self.ours.remove(&key.pid);
            self.changed = true;
        }
    }

    /// Makes the next scan examine every process that we stopped, even if the process's CPU clock has not
    /// moved, because another process may have continued it.
    pub(super) fn recheck_all(&mut self) {
        for (_, clock) in self.ours.values_mut() {
            *clock = None;
        }
    }

    /// Whether we stopped a process.
    fn is_ours(&self, key: ProcessKey) -> bool {
        self.ours.get(&key.pid).is_some_and(|(stopped, _)| *stopped == key)
    }

    /// Whether a process was seen stopped with its CPU clock at this value, and so has not run since.
    fn is_still_stopped(&self, key: ProcessKey, clock: Option<u64>) -> bool {
        clock.is_some() && self.ours.get(&key.pid) == Some(&(key, clock))
    }

    /// Records the CPU clock of a process that we stopped, as read when the process was seen stopped; `None`
    /// if it was not seen stopped.
    fn note_clock(&mut self, key: ProcessKey, clock: Option<u64>) {
        if self.is_ours(key) {
            self.ours.insert(key.pid, (key, clock));
        }
    }
}

impl Stopping<'_> {
    /// Stops the running processes behind closed gates. Returns whether the caller must scan for new
    /// processes and call again: a process was stopped just now, which may have forked before, or a stopped
    /// process is still running.
    fn stop_closed(&mut self) -> Result<bool, LiveError> {
        let members = self.roster.members().filter(|member| (self.closed)(member));
        let mut members: Vec<(ProcessKey, UnitId)> =
            members.map(|member| (member.key, member.placement.unit)).collect();
        members.sort_unstable_by_key(|(key, _)| (key.start, key.pid));
        let mut unstopped = Unstopped::default();
        for (key, unit) in members {
            // A clock that has not moved saves reading the process's state. It moves if another process
            // continues this process.
            let clock = self.roster.cpu_ns(key.pid);
            if self.stops.is_still_stopped(key, clock) {
                continue;
            }
            let rest = match self.stops.is_ours(key) {
                true => Rest::Stop,
                false => self.stops.sleepers.judge(key, unit, clock, self.now),
            };
            if rest != Rest::Sleeps {
                self.examine(key, clock, rest, &mut unstopped)?;
            }
        }
        self.examine_sleeping_ancestors(&mut unstopped)?;
        let Unstopped { mut new, again, stopped_themselves, any_runnable } = unstopped;
        new.sort_unstable_by_key(|key| (key.start, key.pid));
        // The journal comes first: the stops, and the ancestors that may stop themselves in response.
        let followers = if new.is_empty() { Vec::new() } else { self.new_followers(&new)? };
        let stopped = new.iter().chain(&stopped_themselves).map(|key| Entry::Stopped { process: *key });
        let may_follow = followers.iter().map(|(key, _)| Entry::MayFollow { process: *key });
        let entries: Vec<Entry> = stopped.chain(may_follow).collect();
        record(self.journal, &entries)?;
        for key in new.iter().chain(&stopped_themselves) {
            self.stops.ours.insert(key.pid, (*key, None));
            self.stops.changed = true;
        }
        self.stops.followers.extend(followers);
        let mut not_stopped = Vec::new();
        for key in &new {
            if self.signal(*key, Signal::STOP, "stop", is_running) != Some(true) {
                // The process ended, another process stopped it in the meantime, or the signal was refused:
                // there is no stop of ours to undo.
                self.stops.drop_stop(*key);
                not_stopped.push(Entry::Continued { process: *key });
            }
        }
        for key in again {
            // No signal is sent if the process has stopped by now, because our first signal took effect late.
            self.signal(key, Signal::STOP, "stop", is_running);
        }
        record(self.journal, &not_stopped)?;
        if !new.is_empty() {
            self.stops.settle_rounds = SETTLE_ROUNDS;
            return Ok(true);
        }
        let must_wait = any_runnable && self.stops.settle_rounds > 0;
        if must_wait {
            self.stops.settle_rounds -= 1;
            thread::sleep(SETTLE_PAUSE);
        }
        Ok(must_wait)
    }

    /// Reads the state of a process behind a closed gate. Adds the process to `unstopped`, or, if `rest`
    /// allows it and the process sleeps, to the sleepers. Does neither if the process is stopped already.
    fn examine(
        &mut self,
        key: ProcessKey,
        clock: Option<u64>,
        rest: Rest,
        unstopped: &mut Unstopped,
    ) -> Result<(), LiveError> {
        let stat = self.roster.procfs().stat(key.pid)?.filter(|stat| stat.key == key);
        // A follower stopped itself because of a descendant. Its own gate is closed now, so it counts as
        // stopped by us, too.
        let is_follower = self.stops.followers.contains_key(&key) && !self.stops.is_ours(key);
        if is_follower && stat.as_ref().is_some_and(Stat::is_stopped_by_sigstop) {
            unstopped.stopped_themselves.push(key);
            return Ok(());
        }
        let is_stopped = stat.as_ref().is_some_and(|stat| stat.state == ThreadState::Stopped);
        self.stops.note_clock(key, clock.filter(|_| is_stopped));
        // A process that its user or a debugger stopped is left to them.
        let Some(stat) = stat.filter(is_running) else { return Ok(()) };
        match clock {
            // `Asleep` excludes a process that waits for a disk: a unit stopped for its disk use must not
            // transfer anything.
            Some(clock) if rest == Rest::IfAsleep && stat.state == ThreadState::Asleep => {
                self.stops.sleepers.leave(key, clock);
            }
            _ if self.stops.is_ours(key) => {
                unstopped.any_runnable |= stat.state == ThreadState::Runnable;
                unstopped.again.push(key);
            }
            _ => unstopped.new.push(key),
        }
        Ok(())
    }

    /// Adds sleepers with a stopped descendant to `unstopped`. If such a sleeper is a shell and were left
    /// asleep, it would see the descendant stop, and report the job as stopped by the user.
    fn examine_sleeping_ancestors(&mut self, unstopped: &mut Unstopped) -> Result<(), LiveError> {
        if unstopped.new.is_empty() && !self.stops.changed {
            return Ok(());
        }
        let stopped = unstopped.new.iter().chain(self.stops.ours.values().map(|(key, _)| key));
        let ancestors = self.ancestors(stopped.map(|key| key.pid));
        let sleeping_ancestors: Vec<ProcessKey> =
            self.stops.sleepers.asleep().filter(|key| ancestors.contains(key)).collect();
        for key in sleeping_ancestors {
            self.stops.sleepers.remove(key);
            self.examine(key, None, Rest::Stop, unstopped)?;
        }
        Ok(())
    }

    /// Continues the processes that we stopped and that are behind no closed gate any more. Then continues
    /// the followers that had stopped themselves because of these processes.
    fn continue_released(&mut self) -> Result<(), LiveError> {
        let is_released =
            |key: &ProcessKey| self.roster.member(key.pid).is_none_or(|member| !(self.closed)(member));
        let mut released: Vec<ProcessKey> =
            self.stops.ours.values().map(|(key, _)| *key).filter(is_released).collect();
        // Children before their parents.
        released.sort_unstable_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        let released_set: BTreeSet<ProcessKey> = released.iter().copied().collect();
        // An error must not keep processes stopped. The next scan judges the followers again.
        let verdict = self.judge_followers(&released_set).unwrap_or_else(|error| {
            self.problems.add(error);
            Verdict::default()
        });
        let new_followers = self.followers_among(&released_set);
        let may_follow: Vec<Entry> =
            new_followers.iter().map(|(key, _)| Entry::MayFollow { process: *key }).collect();
        if let Err(error) = record(self.journal, &may_follow) {
            // This must not keep processes stopped, either. We watch the new followers all the same, but a
            // caretaker would not continue them.
            self.problems.add(error);
        }
        self.stops.followers.extend(new_followers);
        self.release_sleepers();
        let mut entries = Vec::new();
        for key in released {
            // The signal is sent even if the process does not seem stopped: our stop may be pending until the
            // process leaves the kernel, and a continue cancels it. A process whose signal is refused stays
            // ours, and the next scan retries.
            if self.signal(key, Signal::CONT, "continue", |stat| stat.state != ThreadState::Ended).is_some() {
                self.stops.drop_stop(key);
                let clock = self.roster.cpu_ns(key.pid);
                self.stops.sleepers.release(key, clock);
                entries.push(Entry::Continued { process: key });
            }
        }
        entries.extend(self.continue_followers(verdict));
        record(self.journal, &entries)
    }

    /// Records, for each sleeper whose gate has opened, that it is no longer behind a closed gate.
    fn release_sleepers(&mut self) {
        let is_released =
            |key: &ProcessKey| self.roster.member(key.pid).is_none_or(|member| !(self.closed)(member));
        let released: Vec<ProcessKey> = self.stops.sleepers.asleep().filter(is_released).collect();
        for key in released {
            self.stops.sleepers.release(key, None);
        }
    }

    /// Sends a signal to a process if the process still exists and `condition` holds for its state. Returns
    /// whether the signal was sent; `None` if the kernel refused it, which is reported once. `what` names the
    /// signal's purpose in that report.
    fn signal(
        &mut self,
        key: ProcessKey,
        signal: Signal,
        what: &str,
        condition: fn(&Stat) -> bool,
    ) -> Option<bool> {
        match signal::send(key.pid, signal, || is_now(self.roster.procfs(), key, condition)) {
            Ok(sent) => Some(sent),
            Err(source) => {
                let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
                let remedy = remedy(&source);
                self.problems.once(key, "signal", || LiveError::Process {
                    pid: key.pid,
                    name,
                    what: what.to_owned(),
                    source,
                    remedy,
                });
                None
            }
        }
    }
}

/// [`Stopping::stop_closed`] as a plain function, which can be passed where a closure over any lifetime is
/// expected.
pub(super) fn stop_closed(stopping: &mut Stopping<'_>) -> Result<bool, LiveError> {
    stopping.stop_closed()
}

/// [`Stopping::continue_released`] as a plain function; reports an error instead of returning it.
pub(super) fn continue_released(stopping: &mut Stopping<'_>) {
    if let Err(error) = stopping.continue_released() {
        stopping.problems.add(error);
    }
}

/// Whether a process is neither stopped, nor traced, nor ended. It may be asleep.
fn is_running(stat: &Stat) -> bool {
    matches!(stat.state, ThreadState::Runnable | ThreadState::Blocked | ThreadState::Asleep)
}
