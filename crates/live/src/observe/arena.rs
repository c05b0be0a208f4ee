//! The daemon's side of the arena, in which processes report their memory bus transfers (seed 003, section
//! 4).
//!
//! Problem: only a program's own counters know what it transfers, so its report cannot be verified. The
//! program may lie, write garbage, write nothing, or end in the middle of a write.
//!
//! Algorithm: a process that joins gets a page. Each poll reads the pages of all processes of jobs, and adds
//! the growth of a page's byte count to the sum of the process's job. The growth is capped by a token bucket:
//! the CPU time that the process uses fills it at [`BYTES_PER_NS`], and accepted bytes empty it. The bucket
//! holds what a CPU could transfer in eight report intervals, and at least in [`SILENT_CPU_NS`]. A job's sum
//! is as old as its processes' oldest report. While a job is stopped, its processes transfer and report
//! nothing, so their reports do not age.
//!
//! A process that reports that it cannot measure itself adds nothing to a sum, and is treated like a process
//! that did not join ([`Arena::has`]). If its report counted as zero bytes, it would look like the least
//! demanding process of all.
//!
//! Properties: a job's sum never decreases, whichever process leaves. A process has one page; joining again
//! replaces the page. The daemon never waits for a process. An implausible report is complained of once for
//! each process.
//!
//! Limits: a false report that the CPU time allows is accepted. A forked process that keeps its parent's page
//! reports in its parent's name.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use commonhold_client::arena::{LEFT, Told};
use commonhold_policy::{JobId, SharedUse, Time};

use super::process::{ProcFs, ProcessKey, is_alive};
use crate::LiveError;
use crate::host::arena::Shared;
use crate::host::clock;

/// The largest number of pages at one time.
pub const PAGES_MAX: usize = 4096;
/// The largest number of pages that the processes of one ordinary user may have, so that no user can take all
/// pages.
pub const PAGES_OF_USER_MAX: usize = 1024;

/// The most that a CPU can transfer: a line of 64 bytes every half nanosecond, several times what any core
/// achieves.
const BYTES_PER_NS: u64 = 128;
/// Tolerance for lines in flight and prefetched.
const SLACK_BYTES: u64 = 1 << 20;

/// A process that used this much CPU time since its last report, or more if reports are due rarely, counts as
/// silent.
const SILENT_CPU_NS: u64 = 1_000_000_000;

/// How often ended processes are removed, in nanoseconds.
const SWEEP_NS: Time = 1_000_000_000;

/// Why a process got no page.
#[derive(Debug)]
pub enum NotJoined {
    /// All pages are taken, or all that one user may have. Has the message.
    TooMany(String),
    /// The kernel refused to make a page.
    Failed(io::Error),
}

/// An implausible or missing report of a process: its kind, for deduplication, and the message.
pub(crate) type Complaint = (ProcessKey, &'static str, LiveError);

/// A process that joined.
#[derive(Debug)]
struct Member {
    page: Shared,
    pid: u32,
    user: u32,
    /// The time and byte count of the process's last report. Before its first report, these are the time when
    /// it joined, and 0.
    at: Time,
    bytes: u64,
    has_reported: bool,
    /// The process's CPU clock at its last report of a measurement, or when it joined.
    cpu_ns: u64,
    /// Bytes that the process's CPU time so far would have allowed and that it has not reported.
    credit: u64,
    /// For how long the process was stopped between its last report and `paused_until`.
    paused: Time,
    /// The time of the last poll, up to which `paused` is summed.
    paused_until: Time,
    is_silent: bool,
    /// The process's CPU clock when it first reported that it cannot measure itself; `None` if it has
    /// reported a measurement since. CPU time before that still counts in `cpu_ns`: a program may report all
    /// transfers since its start once it measures.
    unmeasured_since: Option<u64>,
    /// Whether the process has used so much CPU time since `unmeasured_since` that it is unlikely to measure
    /// at all.
    is_unmeasured_for_long: bool,
}

/// A process's job, and since when the job is stopped, if it is.
pub(crate) type JobOf<'a> = &'a dyn Fn(ProcessKey) -> Option<(JobId, Option<Time>)>;

/// All pages.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    members: BTreeMap<ProcessKey, Member>,
    sums: BTreeMap<JobId, SharedUse>,
    swept_at: Time,
}

impl Arena {
    /// Gives a process a page, and returns the page's descriptor, which is to be sent to the process.
    /// `every_ns`: how often the process is to report.
    pub(crate) fn join(
        &mut self,
        key: ProcessKey,
        user: u32,
        every_ns: u64,
        procfs: &mut ProcFs,
    ) -> Result<OwnedFd, NotJoined> {
        self.join_within(key, user, every_ns, procfs, (PAGES_MAX, PAGES_OF_USER_MAX))
    }

    /// Does the work of [`Arena::join`]. The limits on the number of pages, in total and for each user, are
    /// parameters.
    fn join_within(
        &mut self,
        key: ProcessKey,
        user: u32,
        every_ns: u64,
        procfs: &mut ProcFs,
        (pages_max, pages_of_user_max): (usize, usize),
    ) -> Result<OwnedFd, NotJoined> {
        // Whether there is room in total, and for this user. The process's own page does not count, since it
        // is replaced.
        let has_room = |arena: &Arena| {
            let others = || arena.members.iter().filter(|(other, _)| **other != key);
            let of_user = others().filter(|(_, member)| member.user == user).count();
            (others().count() < pages_max, user == 0 || of_user < pages_of_user_max)
        };
        if has_room(self) != (true, true) {
            self.sweep(procfs);
        }
        let too_many = |whose: &str, limit: usize| {
            NotJoined::TooMany(format!(
                "{limit} processes{whose} already report their transfers; this process is assumed to transfer as much as other \
                 processes of its job"
            ))
        };
        match has_room(self) {
            (false, _) => return Err(too_many("", pages_max)),
            (_, false) => return Err(too_many(" of this user", pages_of_user_max)),
            _ => {}
        }
        let (page, file) = Shared::new(key.pid).map_err(NotJoined::Failed)?;
        let now = clock::now();
        page.set_polled(now, every_ns);
        let cpu_ns = clock::process_cpu_ns(key.pid).unwrap_or(0);
        let member = Member {
            page,
            pid: key.pid,
            user,
            at: now,
            bytes: 0,
            has_reported: false,
            cpu_ns,
            credit: 0,
            paused: 0,
            paused_until: now,
            is_silent: false,
            unmeasured_since: None,
            is_unmeasured_for_long: false,
        };
        self.members.insert(key, member);
        Ok(file)
    }

    /// Removes processes that have ended. A process that cannot be read stays.
    fn sweep(&mut self, procfs: &mut ProcFs) {
        self.members.retain(|key, _| is_alive(procfs, *key).unwrap_or(true));
    }

    /// Reads all pages. Returns each job's transfers, in bytes, as reported by its processes. `every_ns`: how
    /// often processes are to report. Implausible and missing reports are added to `complaints`.
    pub(crate) fn poll(
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
            member.page.set_polled(now, every_ns);
            let Some((job, stopped_since)) = job_of(*key) else { return true };
            let accepted =
                member.poll(now, stopped_since, every_ns, &mut |what: &'static str, why, remedy: &str| {
                    let name = procfs.stat(key.pid).ok().flatten().map(|stat| stat.comm).unwrap_or_default();
                    let remedy = remedy.to_owned();
                    let source = io::Error::other(why);
                    complaints.push((
                        *key,
                        what,
                        LiveError::Process { pid: key.pid, name, what: what.to_owned(), source, remedy },
                    ));
                });
            if accepted > 0 || member.has_reported {
                let sum = sums.entry(job).or_default();
                sum.amount = sum.amount.saturating_add(accepted);
            }
            // Only processes that go on reporting determine how old the job's sum is.
            if member.has_reported
                && !member.is_silent
                && member.unmeasured_since.is_none()
                && member.at != LEFT
            {
                let at = member.at.saturating_add(member.paused);
                oldest.entry(job).and_modify(|oldest| *oldest = at.min(*oldest)).or_insert(at);
            }
            member.at != LEFT
        });
        for (job, at) in oldest {
            if let Some(sum) = sums.get_mut(&job) {
                // A process that joined later may report an earlier moment.
                sum.at = sum.at.max(at);
            }
        }
        sums
    }

    /// Whether a process joined and has not reported that it cannot measure itself.
    pub(crate) fn has(&self, key: ProcessKey) -> bool {
        self.members.get(&key).is_some_and(|member| member.unmeasured_since.is_none())
    }

    /// Whether a process joined and has reported for long that it cannot measure itself. The wait is needed,
    /// since a program that counts for itself reports its first count only after the first part of its work.
    pub(crate) fn is_unmeasured(&self, key: ProcessKey) -> bool {
        self.members.get(&key).is_some_and(|member| member.is_unmeasured_for_long)
    }

    /// The thread that writes a process's reports, as the process states; `None` if that is unknown, or the
    /// first thread.
    pub(crate) fn writer(&self, key: ProcessKey) -> Option<u32> {
        self.members.get(&key)?.page.writer().filter(|tid| *tid != key.pid)
    }

    /// Drops the sums of all jobs for which `is_present` is false.
    pub(crate) fn retain(&mut self, is_present: impl Fn(&JobId) -> bool) {
        self.sums.retain(|job, _| is_present(job));
    }
}

impl Member {
    /// Reads the page. Returns the accepted growth of its byte count.
    fn poll(
        &mut self,
        now: Time,
        stopped_since: Option<Time>,
        every_ns: u64,
        complain: &mut dyn FnMut(&'static str, String, &str),
    ) -> u64 {
        let on_page = self.page.told();
        // Both clocks are read after the page, so that they cover everything that an honest report includes.
        let cpu_ns = clock::process_cpu_ns(self.pid).unwrap_or(self.cpu_ns);
        let latest = clock::now().max(now);
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let patience_ns = every_ns.saturating_mul(8).max(SILENT_CPU_NS);
        let is_new =
            |report: &Told| report.at_ns != 0 && (report.at_ns, report.bytes) != (self.at, self.bytes);
        let new = on_page.filter(is_new);
        let is_consistent = |report: &Told| {
            let is_past = report.at_ns <= latest || report.at_ns == LEFT;
            report.bytes >= self.bytes && report.at_ns >= self.at && is_past
        };
        let mut accepted = 0;
        match (new.filter(is_consistent), new) {
            // A new report that says that the process cannot measure itself.
            (Some(report), _) if report.unmeasured => {
                let since_ns = *self.unmeasured_since.get_or_insert(cpu_ns);
                self.is_unmeasured_for_long |= cpu_ns.saturating_sub(since_ns) > patience_ns;
                (self.at, self.bytes) = (report.at_ns, report.bytes);
                (self.paused, self.is_silent) = (0, false);
            }
            // A new report of transfers. Unused allowance is kept as credit, since one report may cover a
            // long time.
            (Some(report), _) => {
                let allowed = used_ns.min(patience_ns).saturating_mul(BYTES_PER_NS);
                let credit =
                    self.credit.saturating_add(allowed).min(patience_ns.saturating_mul(BYTES_PER_NS));
                let reported = report.bytes - self.bytes;
                accepted = reported.min(credit.saturating_add(SLACK_BYTES));
                if reported > accepted {
                    let what = format!("{reported} bytes, where its CPU time allows at most {accepted}");
                    complain(
                        "trust what it reports to have transferred over the memory bus",
                        what,
                        "; only the possible bytes are counted",
                    );
                }
                self.credit = credit.saturating_sub(accepted);
                (self.at, self.bytes, self.has_reported) = (report.at_ns, report.bytes, true);
                (self.cpu_ns, self.paused, self.is_silent) = (cpu_ns, 0, false);
                (self.unmeasured_since, self.is_unmeasured_for_long) = (None, false);
            }
            // A new report that is inconsistent with the previous one, or with the clock.
            (None, Some(report)) => {
                let what = format!(
                    "{} bytes at {} ns, after {} bytes at {} ns; it is {latest} ns now",
                    report.bytes, report.at_ns, self.bytes, self.at
                );
                complain(
                    "use an inconsistent report of memory bus transfers",
                    what,
                    "; its previous report counts",
                );
                self.is_silent |= used_ns > patience_ns;
            }
            (None, None) if used_ns > patience_ns && !self.is_silent && self.unmeasured_since.is_none() => {
                self.is_silent = true;
                let what = format!("it joined, and used {used_ns} ns of CPU time without a report");
                let remedy = "; its job is judged by its other processes";
                complain("learn what it transfers over the memory bus", what, remedy);
            }
            (None, None) => {}
        }
        // While the job is stopped, add the time since the latest of its stop, the last poll and the last
        // report.
        if let Some(since) = stopped_since {
            let from = since.max(self.paused_until).max(if self.at == LEFT { 0 } else { self.at });
            self.paused = self.paused.saturating_add(now.saturating_sub(from));
        }
        self.paused_until = now;
        accepted
    }
}

#[cfg(test)]
mod tests;
