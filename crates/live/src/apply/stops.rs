//! Stop signals: stops and continues the processes of a unit as a whole, and those of a gang.
//!
//! Properties: a process that its user or a debugger has stopped is left to them. A stop is in the journal before it is sent,
//! so that the caretaker continues every stopped process when the daemon ends. A process is stopped while any of its gates is
//! closed.
//!
//! In seed 003, section 4, signals pass from thread to thread and may overtake each other, so a thread blocks only if it was
//! sent more blocks than unblocks. Here the kernel stops all threads of a process at once, and a continue cancels a pending
//! stop: signals cannot overtake each other.
//!
//! Parents are stopped before their children, and continued after them: a parent that waits for stopped children (WUNTRACED)
//! must not run while it could see one. Parents that are not stopped themselves do see it: [`followers`].
//!
//! A sleeping process is not stopped ([`sleepers`]), unless it is the ancestor of one that is.

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

/// More rounds than any fork storm needs: a stopped process cannot fork, so each round leaves fewer that can.
pub(super) const ROUNDS_MAX: usize = 100;

/// How often, and how long each time, to wait for processes that were sent a stop and still run: one inside fork(2) is about to
/// have a child, which would be missed.
const SETTLE_ROUNDS: usize = 10;
const SETTLE_PAUSE: Duration = Duration::from_micros(100);

/// The stopped processes.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// Processes that we stopped, by number, and their CPU clocks when they were seen stopped.
    ours: BTreeMap<u32, (ProcessKey, Option<u64>)>,
    followers: Followers,
    sleepers: Sleepers,
    /// Remaining rounds of waiting for the most recently stopped processes.
    settle_rounds: usize,
    /// Whether the set of stopped processes has changed since the followers were judged.
    changed: bool,
}

/// Processes behind a closed gate that are not stopped as they should be.
#[derive(Default)]
struct Found {
    /// Not stopped by us before.
    new: Vec<ProcessKey>,
    /// Stopped by us, and continued by another process.
    again: Vec<ProcessKey>,
    /// Stopped by themselves.
    followed: Vec<ProcessKey>,
    /// Whether a process that we stopped is running at this moment.
    runs_on: bool,
}

/// What stopping needs, besides the set of stopped processes.
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
    /// Whether no process is stopped, by us or in response.
    pub(super) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.followers.is_empty()
    }

    /// Whether no gate holds a process, and no follower or sleeper needs watching.
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && self.sleepers.asleep().next().is_none()
    }

    /// The process has ended.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.drop_stop(key);
        self.sleepers.forget(key);
    }

    /// The process is not stopped by us any more.
    fn drop_stop(&mut self, key: ProcessKey) {
        if self.has(key) {
            self.ours.remove(&key.pid);
            self.changed = true;
        }
    }

    /// Another process may have continued any of them: examine each again, even if its clock has not moved.
    pub(super) fn doubt(&mut self) {
        for (_, clock) in self.ours.values_mut() {
            *clock = None;
        }
    }

    fn has(&self, key: ProcessKey) -> bool {
        self.ours.get(&key.pid).is_some_and(|(ours, _)| *ours == key)
    }

    /// Whether a process was seen stopped with its clock at this value.
    fn is_still_stopped(&self, key: ProcessKey, clock: Option<u64>) -> bool {
        clock.is_some() && self.ours.get(&key.pid) == Some(&(key, clock))
    }

    fn note_stopped(&mut self, key: ProcessKey, clock: Option<u64>) {
        if self.has(key) {
            self.ours.insert(key.pid, (key, clock));
        }
    }
}

impl Stopping<'_> {
    /// Stops the running processes behind closed gates. Returns whether there were new ones, or may be in a moment.
    fn stop_closed(&mut self) -> Result<bool, LiveError> {
        let members = self.roster.members().filter(|member| (self.closed)(member));
        let mut members: Vec<(ProcessKey, UnitId)> =
            members.map(|member| (member.key, member.placement.unit)).collect();
        members.sort_unstable_by_key(|(key, _)| (key.start, key.pid));
        let mut found = Found::default();
        for (key, unit) in members {
            // If another process continues it, its clock moves, which the roster sees.
            let clock = self.roster.cpu_ns(key.pid);
            if self.stops.is_still_stopped(key, clock) {
                continue;
            }
            let is_ours = self.stops.has(key);
            let rest =
                if is_ours { Rest::Stop } else { self.stops.sleepers.judge(key, unit, clock, self.now) };
            if rest != Rest::Sleeps {
                self.examine(key, clock, rest, &mut found)?;
            }
        }
        self.wake_ancestors(&mut found)?;
        let Found { mut new, again, followed, runs_on } = found;
        new.sort_unstable_by_key(|key| (key.start, key.pid));
        let followers = if new.is_empty() { Vec::new() } else { self.new_followers(&new)? };
        let stopped = new.iter().chain(&followed).map(|key| Entry::Stopped { process: *key });
        let follow = followers.iter().map(|(key, _)| Entry::MayFollow { process: *key });
        let entries: Vec<Entry> = stopped.chain(follow).collect();
        record(self.journal, &entries)?;
        for key in new.iter().chain(&followed) {
            self.stops.ours.insert(key.pid, (*key, None));
            self.stops.changed = true;
        }
        self.stops.followers.extend(followers);
        let mut missed = Vec::new();
        for key in &new {
            if self.signal(*key, Signal::STOP, "stop", runs) != Some(true) {
                // It ended, or another process stopped it in the meantime: it is not ours to continue.
                self.stops.drop_stop(*key);
                missed.push(Entry::Continued { process: *key });
            }
        }
        for key in again {
            // Not sent if it is stopped by now: the first signal had not taken effect yet, and the process stays ours.
            self.signal(key, Signal::STOP, "stop", runs);
        }
        record(self.journal, &missed)?;
        if !new.is_empty() {
            self.stops.settle_rounds = SETTLE_ROUNDS;
            return Ok(true);
        }
        let wait = runs_on && self.stops.settle_rounds > 0;
        if wait {
            self.stops.settle_rounds -= 1;
            thread::sleep(SETTLE_PAUSE);
        }
        Ok(wait)
    }

    /// Examines a process behind a closed gate, and adds it to `found` if it must be stopped.
    fn examine(
        &mut self,
        key: ProcessKey,
        clock: Option<u64>,
        rest: Rest,
        found: &mut Found,
    ) -> Result<(), LiveError> {
        let stat = self.roster.procfs().stat(key.pid)?.filter(|stat| stat.key == key);
        // It stopped itself in response to another gate: from now on it is stopped for its own as well.
        let is_follower = self.stops.followers.contains_key(&key) && !self.stops.has(key);
        if is_follower && stat.as_ref().is_some_and(Stat::is_stopped_by_sigstop) {
            found.followed.push(key);
            return Ok(());
        }
        let is_stopped = stat.as_ref().is_some_and(|stat| stat.state == ThreadState::Stopped);
        self.stops.note_stopped(key, clock.filter(|_| is_stopped));
        // A process that its user or a debugger stopped is left to them.
        let Some(stat) = stat.filter(runs) else { return Ok(()) };
        match clock {
            // One that waits for a disk is not idle: a unit that is stopped for its disk use must not transfer anything.
            Some(clock) if rest == Rest::IfAsleep && stat.state == ThreadState::Asleep => {
                self.stops.sleepers.leave(key, clock);
            }
            _ if self.stops.has(key) => {
                found.runs_on |= stat.state == ThreadState::Runnable;
                found.again.push(key);
            }
            _ => found.new.push(key),
        }
        Ok(())
    }

    /// Stops sleeping ancestors of stopped processes: a shell would report its job as stopped by the user.
    fn wake_ancestors(&mut self, found: &mut Found) -> Result<(), LiveError> {
        if found.new.is_empty() && !self.stops.changed {
            return Ok(());
        }
        let stopped = found.new.iter().chain(self.stops.ours.values().map(|(key, _)| key));
        let ancestors = self.ancestors(stopped.map(|key| key.pid));
        let woken: Vec<ProcessKey> =
            self.stops.sleepers.asleep().filter(|key| ancestors.contains(key)).collect();
        for key in woken {
            self.stops.sleepers.wake(key);
            self.examine(key, None, Rest::Stop, found)?;
        }
        Ok(())
    }

    /// Continues our stopped processes that no closed gate holds any more, and then their followers.
    fn continue_released(&mut self) -> Result<(), LiveError> {
        let released =
            |key: &ProcessKey| self.roster.member(key.pid).is_none_or(|member| !(self.closed)(member));
        let mut released: Vec<ProcessKey> =
            self.stops.ours.values().map(|(key, _)| *key).filter(released).collect();
        released.sort_unstable_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        let leaving: BTreeSet<ProcessKey> = released.iter().copied().collect();
        // An error must not keep processes stopped: the next scan judges again.
        let verdict = self.judge_followers(&leaving).unwrap_or_else(|error| {
            self.problems.add(error);
            Verdict::default()
        });
        let followers = self.followers_among(&leaving);
        let follow: Vec<Entry> =
            followers.iter().map(|(key, _)| Entry::MayFollow { process: *key }).collect();
        if let Err(error) = record(self.journal, &follow) {
            // This must not keep processes stopped. They are watched all the same; only a caretaker would not know of them.
            self.problems.add(error);
        }
        self.stops.followers.extend(followers);
        self.release_sleepers();
        let mut entries = Vec::new();
        for key in released {
            // A stop takes effect when the process next leaves the kernel: cancel it even if it does not show yet. A process
            // that could not be continued stays ours, and the next scan retries.
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

    fn release_sleepers(&mut self) {
        let is_released =
            |key: &ProcessKey| self.roster.member(key.pid).is_none_or(|member| !(self.closed)(member));
        let released: Vec<ProcessKey> = self.stops.sleepers.asleep().filter(is_released).collect();
        for key in released {
            self.stops.sleepers.release(key, None);
        }
    }

    /// Whether the signal was sent; `None` if it was refused, which is reported once.
    fn signal(
        &mut self,
        key: ProcessKey,
        signal: Signal,
        what: &str,
        wanted: fn(&Stat) -> bool,
    ) -> Option<bool> {
        match signal::send(key.pid, signal, || is_now(self.roster.procfs(), key, wanted)) {
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

/// [`Stopping::stop_closed`], as a function over any lifetime.
pub(super) fn stop_closed(stopping: &mut Stopping<'_>) -> Result<bool, LiveError> {
    stopping.stop_closed()
}

/// [`Stopping::continue_released`], as a function over any lifetime.
pub(super) fn continue_released(stopping: &mut Stopping<'_>) {
    if let Err(error) = stopping.continue_released() {
        stopping.problems.add(error);
    }
}

/// Neither stopped, nor traced, nor ended.
fn runs(stat: &Stat) -> bool {
    matches!(stat.state, ThreadState::Runnable | ThreadState::Blocked | ThreadState::Asleep)
}
