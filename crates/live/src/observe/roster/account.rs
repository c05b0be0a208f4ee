//! CPU accounts of units: time used, time waited, and threads that want a CPU.
//!
//! Each scan reads the CPU clock of every process that may have run, and charges the growth to the process's
//! unit. Only for a process that ran are its files read: the state and waiting times of its threads, and the
//! CPU time of its ended children. If a scan saw a child alive, the time that the child had used until then
//! is charged already. So only the CPU time of ended children that exceeds the time already charged for them
//! is charged now.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::membership::Stays;
use commonhold_policy::{MS, Time, UnitFacts};

use super::{Known, Roster};
use crate::LiveError;
use crate::host::clock::process_cpu_ns;
use crate::observe::process::{ProcFs, ThreadState};

/// How old the facts of an unwatched unit may be.
const UNWATCHED_AGE_MAX: Time = 100 * MS;

/// How old the facts of the unit `shared` may be, unless it is the default unit: no decision depends on them,
/// and `shared` may have most of a machine's processes.
const SHARED_AGE_MAX: Time = 1_000 * MS;

/// A CPU clock that has stood still for the time `t` is read again after `t / STILL_DIVISOR`. So the clock of
/// a process that just ran is read in every scan, and that of a process that has slept for long is read
/// rarely.
const STILL_DIVISOR: Time = 8;

/// The longest pause between two readings of a clock that stands still: the age that facts of unwatched units
/// may have, or [`PAUSE_PER_PROCESS`] times the number of processes if that is longer, so that reading all
/// clocks takes at most half a percent of a CPU.
const PAUSE_MAX: Time = UNWATCHED_AGE_MAX;
const PAUSE_PER_PROCESS: Time = MS / 5;

/// For the clocks of a watched unit's processes, the longest pause is this time for each process of the unit.
/// So in a unit with up to 160 processes, every scan reads all clocks.
const PAUSE_PER_WATCHED: Time = MS / 20;

/// The largest number of threads of one process whose state a scan reads. Of more threads, the scan reads an
/// even sample and extrapolates, so that a program of a thousand threads does not cost its unit's neighbours
/// a CPU.
const THREADS_SAMPLED_MAX: usize = 64;

/// A process that wanted a CPU is assumed to want one for this number of further scans, while its clock
/// advances. So the files of a process that computes without pause are read only in every fourth scan. When
/// its clock stops, they are read at once.
const TRUSTED_SCANS: u8 = 3;

/// The most users whose CPU time is counted separately in a unit. That of further users is counted together.
const USERS_MAX: usize = 256;

/// One unit's sums since the roster was created.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    used_ns: u64,
    /// `used_ns` by the effective user of the process; `None` is all users beyond [`USERS_MAX`].
    used_by: BTreeMap<Option<u32>, u64>,
    /// The part of `used_ns` that processes used while they were outside the unit's control group.
    outside_ns: u64,
    waited_ns: u64,
    updated_at: Option<Time>,
}

impl Account {
    /// Charges CPU time of a process.
    fn charge(&mut self, known: &Known, ns: u64) {
        if ns == 0 {
            return;
        }
        self.used_ns += ns;
        let user = Some(known.member.uid);
        let is_counted = self.used_by.len() < USERS_MAX || self.used_by.contains_key(&user);
        *self.used_by.entry(user.filter(|_| is_counted)).or_insert(0) += ns;
        // While systemd moves a process into the unit's group, the kernel begins to count it there at an
        // unknown moment: do not count its time twice.
        if known.member.stays.is_some_and(Stays::is_outside) && !known.is_leaving {
            self.outside_ns += ns;
        }
    }
}

/// One pass over the processes' CPU clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    /// The number of the scan.
    pub(super) scan: u64,
    at: Time,
    /// The longest time for which a clock that stands still may go unread.
    pause_max: Time,
}

impl Pass {
    /// This pass, but without pauses: it reads every clock, even a clock that has stood still for long.
    pub(super) fn without_pause(self) -> Pass {
        Pass { pause_max: 0, ..self }
    }
}

/// The counters of a process at the last scan.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The number of the scan that last read the process's CPU clock, and the clock's value.
    last_read: (u64, Option<u64>),
    read_at: Time,
    /// When the clock was last seen to advance.
    still_since: Time,
    /// The value of the process's CPU clock up to which its unit was charged; `None` if the clock cannot be
    /// read.
    cpu_ns: Option<u64>,
    /// The CPU time of ended children for which the process has waited, as the kernel sums it up; `None`
    /// before the first reading, if the process is older than the roster.
    children_ns: Option<u64>,
    /// The CPU time of ended children that was charged while they lived, and that the kernel has yet to add
    /// to `children_ns`, when this process waits for them.
    expected_ns: u64,
    /// Threads that wanted a CPU.
    runnable: u32,
    /// The number of scans since the states of the process's threads were last read.
    trusted_scans: u8,
    /// Time that each thread spent runnable without a CPU, in nanoseconds, sorted by thread. `None` before
    /// the first reading.
    waits: Option<Vec<(u32, u64)>>,
    waits_at: Time,
}

impl Clocks {
    /// The counters of a new process, whose CPU time before `cpu_ns` will not be charged. `cpu_ns` is 0 if
    /// the process is younger than the roster.
    pub(super) fn new(cpu_ns: Option<u64>) -> Self {
        let is_young = cpu_ns == Some(0);
        let (children_ns, waits) = (is_young.then_some(0), is_young.then(Vec::new));
        Clocks { cpu_ns, children_ns, waits, ..Clocks::default() }
    }

    /// The CPU clock of this process, read at most once per scan, and less often while it stands still.
    /// `None` if the process does not exist.
    pub(super) fn read(&mut self, pid: u32, pass: Pass) -> Option<u64> {
        let (scan, previous) = self.last_read;
        let pause = (self.read_at.saturating_sub(self.still_since) / STILL_DIVISOR).min(pass.pause_max);
        if scan != pass.scan && pass.at >= self.read_at.saturating_add(pause) {
            let clock = process_cpu_ns(pid);
            if scan == 0 || clock != previous {
                self.still_since = pass.at;
            }
            self.last_read = (pass.scan, clock);
            self.read_at = pass.at;
        }
        self.last_read.1
    }

    /// The CPU time of this process and its descendants that was already charged. When the parent waits for
    /// this process, the kernel adds this time to the parent's time of ended children, and also the time
    /// since the last scan, which was not charged.
    pub(super) fn already_charged_ns(&self) -> u64 {
        self.cpu_ns.unwrap_or(0) + self.children_ns.unwrap_or(0) + self.expected_ns
    }

    /// Records that a child ended, so that its [`already_charged_ns`](Clocks::already_charged_ns) is not
    /// charged again when the kernel adds it to the time of ended children. Nothing is recorded before the
    /// first reading of that time, since the growth before that reading is never charged.
    pub(super) fn expect_from_child(&mut self, charged_ns: u64) {
        if self.children_ns.is_some() {
            self.expected_ns += charged_ns;
        }
    }

    /// Updates the children's time to `children_ns`, and returns the part of its growth that was not charged
    /// before.
    fn uncharged_children_ns(&mut self, children_ns: u64) -> u64 {
        let growth = children_ns.saturating_sub(self.children_ns.unwrap_or(children_ns));
        self.children_ns = Some(children_ns);
        let charged_before = growth.min(self.expected_ns);
        self.expected_ns -= charged_before;
        growth - charged_before
    }
}

impl Roster {
    /// Updates the accounts of the units in `watch`. Accounts of other units are updated if they are 100 ms
    /// old (`shared`, unless it is the default unit: a second; `kernel`: never). A process that has slept
    /// since its last update costs at most one system call.
    pub fn account(&mut self, now: Time, watch: &[UnitId]) -> Result<(), LiveError> {
        self.now = now;
        // Clocks are read once per scan. A second call in one scan must read them anew, so it counts as
        // another scan.
        if self.accounted == self.scan {
            self.scan += 1;
        }
        self.accounted = self.scan;
        self.accounts.resize_with(self.contract.units.len().max(self.accounts.len()), Account::default);
        let default_unit = self.contract.default_unit;
        let due: Vec<bool> = (0u32..)
            .map(UnitId)
            .zip(&mut self.accounts)
            .map(|(unit, account)| {
                let is_plain_shared = unit == UnitId::SHARED && default_unit != UnitId::SHARED;
                let age_max = if is_plain_shared { SHARED_AGE_MAX } else { UNWATCHED_AGE_MAX };
                let is_old = account.updated_at.is_none_or(|at| now >= at.saturating_add(age_max));
                let is_due = unit != UnitId::KERNEL && (is_old || watch.contains(&unit));
                if is_due {
                    account.updated_at = Some(now);
                }
                is_due
            })
            .collect();
        let usual = self.this_pass();
        let watched = self.pauses_of_watched(watch);
        let (mut first_error, accounts) = (None, &mut self.accounts);
        for known in self.known.values_mut().filter(|known| !known.ended) {
            let unit = known.member.placement.unit;
            let pause_max = watched.get(&unit).map_or(usual.pause_max, |pause| usual.pause_max.min(*pause));
            let pass = Pass { pause_max, ..usual };
            if due.get(unit.index()).copied().unwrap_or(false)
                && let Some(account) = accounts.get_mut(unit.index())
                && let Err(err) = update(&mut self.procfs, &mut self.threads, known, account, now, pass)
            {
                first_error.get_or_insert(err);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// The pass of the present scan.
    pub(super) fn this_pass(&self) -> Pass {
        let pause_max = PAUSE_MAX.max(self.known.len() as u64 * PAUSE_PER_PROCESS);
        Pass { scan: self.scan, at: self.now, pause_max }
    }

    /// For each watched unit, the longest time for which a clock of the unit's processes may go unread.
    fn pauses_of_watched(&self, watch: &[UnitId]) -> BTreeMap<UnitId, Time> {
        let mut pauses: BTreeMap<UnitId, Time> = watch.iter().map(|unit| (*unit, 0)).collect();
        for known in self.known.values().take(if watch.is_empty() { 0 } else { usize::MAX }) {
            if let Some(pause) = pauses.get_mut(&known.member.placement.unit) {
                *pause += PAUSE_PER_WATCHED;
            }
        }
        pauses
    }

    /// The facts of every unit, by index, as of the last [`Roster::account`].
    pub fn unit_facts(&self) -> Vec<UnitFacts> {
        let mut facts = vec![UnitFacts::default(); self.contract.units.len()];
        for (facts, account) in facts.iter_mut().zip(&self.accounts) {
            (facts.used_ns, facts.waited_ns) = (account.used_ns, account.waited_ns);
            facts.at = account.updated_at.unwrap_or(0);
        }
        for known in self.known.values().filter(|known| !known.ended) {
            if let Some(facts) = facts.get_mut(known.member.placement.unit.index()) {
                facts.processes += 1;
                facts.outside += u32::from(known.member.stays.is_some_and(Stays::is_outside));
                facts.runnable += known.clocks.runnable;
            }
        }
        facts
    }

    /// CPU time that a unit's processes used while outside the unit's control group, in nanoseconds since the
    /// roster was created.
    pub fn used_outside_ns(&self, unit: UnitId) -> u64 {
        self.accounts.get(unit.index()).map_or(0, |account| account.outside_ns)
    }

    /// CPU time by user that a unit's processes used, sub-units excluded, in nanoseconds since the roster was
    /// created. `None` stands for all users beyond the first 256. Processes that no scan saw are not
    /// included.
    pub fn used_by_user(&self, unit: UnitId) -> Option<&BTreeMap<Option<u32>, u64>> {
        Some(&self.accounts.get(unit.index())?.used_by).filter(|users| !users.is_empty())
    }

    /// Threads of one process that wanted a CPU at the last scan.
    pub fn runnable(&self, pid: u32) -> u32 {
        self.known.get(&pid).map_or(0, |known| known.clocks.runnable)
    }

    /// The value of a process's CPU clock up to which its unit was charged; `None` if unknown.
    pub(crate) fn cpu_ns(&self, pid: u32) -> Option<u64> {
        self.known.get(&pid)?.clocks.cpu_ns
    }

    /// Charges the CPU time that a process used until now to its present unit. Call this before the process
    /// changes its unit or its control group.
    pub(super) fn charge_until_now(&mut self, pid: u32) {
        let pass = self.this_pass().without_pause();
        if let Some(known) = self.known.get_mut(&pid)
            && let Some(account) = self.accounts.get_mut(known.member.placement.unit.index())
        {
            charge(known, account, pass);
        }
    }

    /// Keeps the sums of units that the new contract still has.
    pub(super) fn carry_accounts(&mut self, contract: &Contract) {
        self.accounts.resize(contract.units.len(), Account::default());
        for unit in &contract.vacant {
            self.accounts[unit.index()] = Account::default();
        }
    }
}

/// Charges the CPU time that a process used since the last scan. Returns whether it ran.
fn charge(known: &mut Known, account: &mut Account, pass: Pass) -> bool {
    let Some(cpu_ns) = known.clocks.read(known.member.key.pid, pass) else {
        // The process has ended, and its parent has waited for it: the process wants no CPU.
        known.clocks.runnable = 0;
        return false;
    };
    let charged_ns = known.clocks.cpu_ns.unwrap_or(cpu_ns);
    known.clocks.cpu_ns = Some(cpu_ns);
    if cpu_ns < charged_ns {
        // A clock that went back belongs to a later process with the same pid. With an inode of 0, the next
        // listing reads this pid's files again, and finds the later process.
        known.inode = 0;
        return false;
    }
    account.charge(known, cpu_ns - charged_ns);
    cpu_ns > charged_ns
}

/// Updates one process: CPU time used and waited for, and threads that want a CPU.
fn update(
    procfs: &mut ProcFs,
    threads: &mut Vec<u32>,
    known: &mut Known,
    account: &mut Account,
    now: Time,
    pass: Pass,
) -> Result<(), LiveError> {
    let ran = charge(known, account, pass);
    // A process that slept, and wanted no CPU before, has nothing else to read.
    if !ran && known.clocks.runnable == 0 {
        return Ok(());
    }
    // A process that computes without pause is assumed to go on.
    if ran && known.clocks.runnable > 0 && known.clocks.trusted_scans < TRUSTED_SCANS {
        known.clocks.trusted_scans += 1;
        return Ok(());
    }
    known.clocks.trusted_scans = 0;
    let pid = known.member.key.pid;
    let Some(stat) = procfs.stat(pid)? else {
        known.clocks.runnable = 0;
        return Ok(());
    };
    let children_ns = known.clocks.uncharged_children_ns(stat.children_ns);
    account.charge(known, children_ns);
    if stat.threads == 1 {
        known.clocks.runnable = u32::from(stat.state == ThreadState::Runnable);
        threads.clear();
        threads.push(pid);
    } else if procfs.threads(pid, threads)? {
        known.clocks.runnable = count_runnable(procfs, pid, threads)?;
    }
    // Waiting times are read less often if there are many threads: they are only accounted, and no decision
    // depends on them.
    let pause = UNWATCHED_AGE_MAX * (1 + threads.len() as u64 / THREADS_SAMPLED_MAX as u64);
    if known.clocks.waits.is_none() || now >= known.clocks.waits_at.saturating_add(pause) {
        known.clocks.waits_at = now;
        account.waited_ns += waited_since(procfs, pid, threads, &mut known.clocks.waits)?;
    }
    Ok(())
}

/// The number of runnable threads among `threads` of a process, extrapolated from an even sample if there are
/// many.
fn count_runnable(procfs: &mut ProcFs, pid: u32, threads: &[u32]) -> Result<u32, LiveError> {
    let step = threads.len().div_ceil(THREADS_SAMPLED_MAX).max(1);
    let (mut sampled, mut runnable) = (0, 0);
    for tid in threads.iter().step_by(step) {
        sampled += 1;
        runnable += usize::from(procfs.thread_state(pid, *tid)? == Some(ThreadState::Runnable));
    }
    let estimate = (runnable * threads.len()).div_ceil(sampled.max(1));
    Ok(u32::try_from(estimate).unwrap_or(u32::MAX))
}

/// The time for which the threads waited for a CPU since the last reading. `waits` has the values of the last
/// reading, and is replaced by the present ones. The result is 0 at the first reading of a process that is
/// older than the roster.
fn waited_since(
    procfs: &mut ProcFs,
    pid: u32,
    threads: &[u32],
    waits: &mut Option<Vec<(u32, u64)>>,
) -> Result<u64, LiveError> {
    let mut current = Vec::with_capacity(threads.len());
    for tid in threads {
        if let Some(schedstat) = procfs.thread_schedstat(pid, *tid)? {
            current.push((*tid, schedstat.waited_ns));
        }
    }
    let growth_since = |previous: &Vec<(u32, u64)>| {
        current.iter().map(|(tid, ns)| ns.saturating_sub(value_of(previous, *tid))).sum()
    };
    let sum = waits.as_ref().map_or(0, growth_since);
    *waits = Some(current);
    Ok(sum)
}

/// The value of a thread in a list sorted by thread; 0 for a thread that is not in the list, since it is new.
fn value_of(list: &[(u32, u64)], tid: u32) -> u64 {
    list.binary_search_by_key(&tid, |(tid, _)| *tid).map_or(0, |i| list[i].1)
}
