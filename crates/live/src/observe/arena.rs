//! What processes tell of their transfers over the memory bus: the daemon's side of the arena (seed 003, section 4).
//!
//! Problem: only a program's own counters know what it transfers, and its word is all there is. It may lie, write rubbish, write
//! nothing, or end while it writes.
//!
//! Algorithm: a process that joins gets a page. Each look reads the pages of all processes of jobs. What a page has grown by
//! since the look before is added to its job's sum, up to what the CPU time could transfer that the process used since, and the last second's if it
//! did not tell of that. A
//! job's sum is as old as the oldest word of its processes. While a job is stopped, its processes transfer nothing and tell
//! nothing: their words do not age.
//!
//! A process that says that it cannot measure itself is unknown: nothing of it is added to a sum, and it counts as one that
//! did not join ([`Arena::has`]). Its zero bytes would else make it the most harmless of all.
//!
//! Properties: a job's sum never goes back, whoever leaves. A process has one page: one that joins again has lost the one before.
//! Nobody waits for a process. What is not to be believed is said once for each process.
//!
//! Limits: a lie that the CPU time allows is believed. A process that is forked, and keeps its parent's page, tells in its
//! parent's name.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use commonhold_client::arena::{LEFT, Told};
use commonhold_policy::{JobId, SharedUse, Time};

use super::process::{ProcFs, ProcessKey, is_alive};
use crate::LiveError;
use crate::host::arena::Shared;
use crate::host::clock;

/// Pages at one time.
pub const PAGES_MAX: usize = 4096;
/// Pages of one ordinary user's processes, so that no user locks the others out.
pub const PAGES_OF_USER_MAX: usize = 1024;

/// The most that a CPU transfers: a line of 64 bytes every half nanosecond, several times what any core does.
const BYTES_PER_NS: u64 = 128;
/// Lines that are on their way, and what was read ahead: so much more is no lie.
const SLACK_BYTES: u64 = 1 << 20;

/// A process that used so much CPU time since it told something tells nothing.
const SILENT_CPU_NS: u64 = 1_000_000_000;

/// How often to look whether those who joined and are in no job have ended.
const SWEEP_NS: Time = 1_000_000_000;

/// Why a process got no page.
#[derive(Debug)]
pub enum NotJoined {
    /// There is no room, in words.
    TooMany(String),
    /// The kernel refused one.
    Failed(io::Error),
}

/// Something that is not to be believed of a process: which kind, and the words.
pub(crate) type Complaint = (ProcessKey, &'static str, LiveError);

/// A process that joined.
#[derive(Debug)]
struct Member {
    page: Shared,
    pid: u32,
    user: u32,
    /// What it told last: the bytes as it told them, and when. At first nothing, at the time when it joined.
    at: Time,
    bytes: u64,
    has_told: bool,
    /// Its CPU clock then.
    cpu_ns: u64,
    /// What its CPU time was enough for before, and it did not tell of, in bytes.
    earned: u64,
    /// For how long it was stopped since, as far as `counted_to`.
    paused: Time,
    counted_to: Time,
    silent: bool,
    /// Its CPU clock when it began to say that nobody measures what it transfers, if that is what it said last. CPU time
    /// before that still counts in `cpu_ns`: a program may tell of its whole start as soon as it measures.
    unmeasured: Option<u64>,
    /// And has used so much CPU time since that it will hardly begin to.
    unmeasured_long: bool,
}

/// The job of a process, and since when it is stopped, if it is.
pub(crate) type JobOf<'a> = &'a dyn Fn(ProcessKey) -> Option<(JobId, Option<Time>)>;

/// All pages.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    members: BTreeMap<ProcessKey, Member>,
    sums: BTreeMap<JobId, SharedUse>,
    swept_at: Time,
}

impl Arena {
    /// A page for a process: the descriptor to send it.
    pub(crate) fn join(
        &mut self,
        key: ProcessKey,
        user: u32,
        every_ns: u64,
        procfs: &mut ProcFs,
    ) -> Result<OwnedFd, NotJoined> {
        self.join_within(key, user, every_ns, procfs, (PAGES_MAX, PAGES_OF_USER_MAX))
    }

    /// The same, with room for so many in all, and of a user.
    fn join_within(
        &mut self,
        key: ProcessKey,
        user: u32,
        every_ns: u64,
        procfs: &mut ProcFs,
        (most, most_of_user): (usize, usize),
    ) -> Result<OwnedFd, NotJoined> {
        let room = |arena: &Arena| {
            let others = || arena.members.iter().filter(|(other, _)| **other != key);
            let of_user = others().filter(|(_, member)| member.user == user).count();
            (others().count() < most, user == 0 || of_user < most_of_user)
        };
        if room(self) != (true, true) {
            self.sweep(procfs);
        }
        let too_many = |whose: &str, most: usize| {
            NotJoined::TooMany(format!(
                "{most} processes{whose} tell what they transfer already; this one is taken to transfer what its job does"
            ))
        };
        match room(self) {
            (false, _) => return Err(too_many("", most)),
            (_, false) => return Err(too_many(" of this user", most_of_user)),
            _ => {}
        }
        let (page, file) = Shared::new(key.pid).map_err(NotJoined::Failed)?;
        let now = clock::now();
        page.look(now, every_ns);
        let cpu_ns = clock::process_cpu_ns(key.pid).unwrap_or(0);
        let member = Member {
            page,
            pid: key.pid,
            user,
            at: now,
            bytes: 0,
            has_told: false,
            cpu_ns,
            earned: 0,
            paused: 0,
            counted_to: now,
            silent: false,
            unmeasured: None,
            unmeasured_long: false,
        };
        self.members.insert(key, member);
        Ok(file)
    }

    /// Forgets those that have ended. One that cannot be looked at stays.
    fn sweep(&mut self, procfs: &mut ProcFs) {
        self.members.retain(|key, _| is_alive(procfs, *key).unwrap_or(true));
    }

    /// What jobs transferred, as far as their processes tell.
    pub(crate) fn look(
        &mut self,
        now: Time,
        every_ns: u64,
        job_of: JobOf<'_>,
        procfs: &mut ProcFs,
        complaints: &mut Vec<Complaint>,
    ) -> &BTreeMap<JobId, SharedUse> {
        if now >= self.swept_at.saturating_add(SWEEP_NS) {
            self.swept_at = now;
            self.sweep(procfs);
        }
        let mut oldest: BTreeMap<JobId, Time> = BTreeMap::new();
        let sums = &mut self.sums;
        self.members.retain(|key, member| {
            member.page.look(now, every_ns);
            let Some((job, shut)) = job_of(*key) else { return true };
            let grown = member.look(now, shut, every_ns, &mut |what: &'static str, why, remedy: &str| {
                let name = procfs.stat(key.pid).ok().flatten().map(|stat| stat.comm).unwrap_or_default();
                let remedy = remedy.to_owned();
                let source = io::Error::other(why);
                complaints.push((
                    *key,
                    what,
                    LiveError::Process { pid: key.pid, name, what: what.to_owned(), source, remedy },
                ));
            });
            if grown > 0 || member.has_told {
                let sum = sums.entry(job).or_default();
                sum.amount = sum.amount.saturating_add(grown);
            }
            if member.has_told && !member.silent && member.unmeasured.is_none() && member.at != LEFT {
                let at = member.at.saturating_add(member.paused);
                oldest.entry(job).and_modify(|oldest| *oldest = at.min(*oldest)).or_insert(at);
            }
            member.at != LEFT
        });
        for (job, at) in oldest {
            if let Some(sum) = sums.get_mut(&job) {
                // One that came later may tell of an earlier moment.
                sum.at = sum.at.max(at);
            }
        }
        sums
    }

    /// Whether a process tells what it transfers itself. One that cannot measure it does not.
    pub(crate) fn has(&self, key: ProcessKey) -> bool {
        self.members.get(&key).is_some_and(|member| member.unmeasured.is_none())
    }

    /// Whether a process joined, and has long measured nothing. One that counts for itself does so only after the first
    /// part of its work.
    pub(crate) fn is_unmeasured(&self, key: ProcessKey) -> bool {
        self.members.get(&key).is_some_and(|member| member.unmeasured_long)
    }

    /// The thread by which a process tells, as it says; never its first.
    pub(crate) fn writer(&self, key: ProcessKey) -> Option<u32> {
        self.members.get(&key)?.page.writer().filter(|tid| *tid != key.pid)
    }

    /// Keeps the sums of these jobs alone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&JobId) -> bool) {
        self.sums.retain(|job, _| is_there(job));
    }
}

impl Member {
    /// Reads the page; how many more bytes are to be believed.
    fn look(
        &mut self,
        now: Time,
        shut: Option<Time>,
        every_ns: u64,
        complain: &mut dyn FnMut(&'static str, String, &str),
    ) -> u64 {
        let told = self.page.told();
        // Both are later than what was read: who is honest is not taken for a liar.
        let cpu_ns = clock::process_cpu_ns(self.pid).unwrap_or(self.cpu_ns);
        let latest = clock::now().max(now);
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let patience_ns = every_ns.saturating_mul(8).max(SILENT_CPU_NS);
        let new = told.filter(|told| told.at_ns != 0 && (told.at_ns, told.bytes) != (self.at, self.bytes));
        let makes_sense = |told: &Told| {
            let has_come = told.at_ns <= latest || told.at_ns == LEFT;
            told.bytes >= self.bytes && told.at_ns >= self.at && has_come
        };
        let mut grown = 0;
        match (new.filter(makes_sense), new) {
            (Some(told), _) if told.unmeasured => {
                let since_ns = *self.unmeasured.get_or_insert(cpu_ns);
                self.unmeasured_long |= cpu_ns.saturating_sub(since_ns) > patience_ns;
                (self.at, self.bytes) = (told.at_ns, told.bytes);
                (self.paused, self.silent) = (0, false);
            }
            (Some(told), _) => {
                // A program that tells much at once may have transferred it since long before.
                let earned = used_ns.min(patience_ns).saturating_mul(BYTES_PER_NS);
                let most = self.earned.saturating_add(earned).min(patience_ns.saturating_mul(BYTES_PER_NS));
                let says = told.bytes - self.bytes;
                grown = says.min(most.saturating_add(SLACK_BYTES));
                if says > grown {
                    let what = format!("{says} bytes, where its CPU time was enough for {grown}");
                    complain(
                        "believe what it says it transferred over the memory bus",
                        what,
                        "; these are believed",
                    );
                }
                self.earned = most.saturating_sub(grown);
                (self.at, self.bytes, self.has_told) = (told.at_ns, told.bytes, true);
                (self.cpu_ns, self.paused, self.silent) = (cpu_ns, 0, false);
                (self.unmeasured, self.unmeasured_long) = (None, false);
            }
            (None, Some(told)) => {
                let what = format!(
                    "{} bytes at {} ns, after {} at {}, and it is {latest} now",
                    told.bytes, told.at_ns, self.bytes, self.at
                );
                complain(
                    "make sense of what it writes of the memory bus",
                    what,
                    "; what it told before counts",
                );
                self.silent |= used_ns > patience_ns;
            }
            (None, None) if used_ns > patience_ns && !self.silent && self.unmeasured.is_none() => {
                self.silent = true;
                let what = format!("it joined, and used {used_ns} ns of CPU time without a word");
                let remedy = "; its job is judged by the others of its processes";
                complain("hear what it transfers over the memory bus", what, remedy);
            }
            (None, None) => {}
        }
        if let Some(since) = shut {
            let from = since.max(self.counted_to).max(if self.at == LEFT { 0 } else { self.at });
            self.paused = self.paused.saturating_add(now.saturating_sub(from));
        }
        self.counted_to = now;
        grown
    }
}

#[cfg(test)]
mod tests;
