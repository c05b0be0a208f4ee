//! CPU accounts of units: time used, time waited, and threads that want a CPU.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::membership::Stays;
use commonhold_policy::{MS, Time, UnitFacts};

use super::{Known, Roster};
use crate::LiveError;
use crate::host::clock::process_cpu_ns;
use crate::observe::process::{ProcFs, ThreadState};

/// How old the facts of an unwatched unit may be.
const UNWATCHED: Time = 100 * MS;

/// How old the facts of the unit `shared` may be: no decision depends on them, and it may have most of a machine's processes.
const SHARED: Time = 1_000 * MS;

/// A CPU clock that has stood still for `t` is read again after `t / STILL_DIVISOR`: a process that just ran is read in every
/// scan, one that has slept for long is read rarely.
const STILL_DIVISOR: Time = 8;

/// The longest pause between two readings of such a clock: the age that other facts may have, or [`PAUSE_PER_PROCESS`] for each
/// process if that is longer, so that reading all clocks takes at most half a percent of a CPU.
const PAUSE_MAX: Time = UNWATCHED;
const PAUSE_PER_PROCESS: Time = MS / 5;

/// The longest pause in a watched unit, for each of its processes: with up to 160 of them, every scan reads them all.
const PAUSE_PER_WATCHED: Time = MS / 20;

/// The most threads of one process that a scan reads. Of more, it takes an even sample and extrapolates, so that a program of a
/// thousand threads does not cost its unit's neighbours a CPU.
const THREADS_SAMPLED_MAX: usize = 64;

/// For how many scans a process that wanted a CPU and has run since is assumed to want it still: a process that computes
/// without pause is read in every fourth scan. Once it stops running, it is read at once.
const TRUSTED_SCANS: u8 = 3;

/// One unit's sums since the roster was created.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    used_ns: u64,
    /// The part used by processes while they were outside the unit's control group.
    outside_ns: u64,
    waited_ns: u64,
    updated_at: Option<Time>,
}

impl Account {
    /// Charges CPU time of a process.
    fn add(&mut self, known: &Known, ns: u64) {
        self.used_ns += ns;
        // systemd moves it, at an unknown moment, to where the kernel charges the unit: do not charge twice.
        if known.member.stays.is_some_and(Stays::is_outside) && !known.is_leaving {
            self.outside_ns += ns;
        }
    }
}

/// One pass over the processes' CPU clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    /// The number of the scan that it belongs to.
    pub(super) scan: u64,
    at: Time,
    /// The longest time for which a clock that stands still may go unread.
    pause_max: Time,
}

impl Pass {
    /// Reads every clock.
    pub(super) fn without_pause(self) -> Pass {
        Pass { pause_max: 0, ..self }
    }
}

/// The counters of a process at the last scan.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The scan that last read its CPU clock, and the value.
    last_read: (u64, Option<u64>),
    read_at: Time,
    /// When the clock was last seen to advance.
    still_since: Time,
    /// The value of its CPU clock up to which its unit was charged; `None` if the clock cannot be read.
    cpu_ns: Option<u64>,
    /// CPU time of its children that it waited for; `None` before the first reading of a process older than the roster.
    children_ns: Option<u64>,
    /// CPU time of its children that was charged while they lived, and that the kernel reports again once it waits for them.
    counted_ns: u64,
    /// Threads that wanted a CPU.
    runnable: u32,
    /// Scans since its state was read.
    trusted_scans: u8,
    /// Time that each thread spent runnable without a CPU, in nanoseconds, by thread. `None` before the first reading.
    waits: Option<Vec<(u32, u64)>>,
    waits_at: Time,
}

impl Clocks {
    pub(super) fn new(cpu_ns: Option<u64>) -> Self {
        let born = cpu_ns == Some(0);
        Clocks { cpu_ns, children_ns: born.then_some(0), waits: born.then(Vec::new), ..Clocks::default() }
    }

    /// The CPU clock of this process. It is read once per scan, and only after a pause if it stands still. `None` if the process
    /// does not exist.
    pub(super) fn read(&mut self, pid: u32, pass: Pass) -> Option<u64> {
        let (scan, before) = self.last_read;
        let pause = (self.read_at.saturating_sub(self.still_since) / STILL_DIVISOR).min(pass.pause_max);
        if scan != pass.scan && pass.at >= self.read_at.saturating_add(pause) {
            let clock = process_cpu_ns(pid);
            if scan == 0 || clock != before {
                self.still_since = pass.at;
            }
            self.last_read = (pass.scan, clock);
            self.read_at = pass.at;
        }
        self.last_read.1
    }

    /// The CPU time that its parent's children's time will contain and that was already charged: all but that since the last
    /// scan.
    pub(super) fn bequest(&self) -> u64 {
        self.cpu_ns.unwrap_or(0) + self.children_ns.unwrap_or(0) + self.counted_ns
    }

    /// Takes over a child's [`bequest`](Clocks::bequest). Before the first reading nothing can be charged twice.
    pub(super) fn inherit(&mut self, bequest_ns: u64) {
        if self.children_ns.is_some() {
            self.counted_ns += bequest_ns;
        }
    }

    /// Updates the children's time, and returns the part that was not charged before.
    fn children(&mut self, now_ns: u64) -> u64 {
        let grown = now_ns.saturating_sub(self.children_ns.unwrap_or(now_ns));
        self.children_ns = Some(now_ns);
        let counted = grown.min(self.counted_ns);
        self.counted_ns -= counted;
        grown - counted
    }
}

impl Roster {
    /// Updates the accounts of the units in `watch`. Those of other units are updated if they are 100 ms old (`shared`: a second;
    /// `kernel`: never). A process that has slept since costs at most one system call.
    pub fn account(&mut self, now: Time, watch: &[UnitId]) -> Result<(), LiveError> {
        self.now = now;
        // Accounting twice in one scan must read the clocks anew.
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
                let age = if unit == UnitId::SHARED && default_unit != unit { SHARED } else { UNWATCHED };
                let old = account.updated_at.is_none_or(|at| now >= at.saturating_add(age));
                let due = unit != UnitId::KERNEL && (old || watch.contains(&unit));
                if due {
                    account.updated_at = Some(now);
                }
                due
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

    /// CPU time of a unit's processes while outside its control group, in nanoseconds since the roster was created.
    pub fn used_outside_ns(&self, unit: UnitId) -> u64 {
        self.accounts.get(unit.index()).map_or(0, |account| account.outside_ns)
    }

    /// Threads of one process that wanted a CPU at the last scan.
    pub fn runnable(&self, pid: u32) -> u32 {
        self.known.get(&pid).map_or(0, |known| known.clocks.runnable)
    }

    /// The CPU clock of a process, up to which its unit was charged.
    pub(crate) fn cpu_ns(&self, pid: u32) -> Option<u64> {
        self.known.get(&pid)?.clocks.cpu_ns
    }

    /// Charges what a process used so far to the unit that it is about to leave.
    pub(super) fn settle(&mut self, pid: u32) {
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

/// Charges what a process used since the last scan. Whether it ran.
fn charge(known: &mut Known, account: &mut Account, pass: Pass) -> bool {
    let Some(cpu_ns) = known.clocks.read(known.member.key.pid, pass) else {
        // It ended, and its parent has waited for it: it wants no CPU.
        known.clocks.runnable = 0;
        return false;
    };
    let before = known.clocks.cpu_ns.unwrap_or(cpu_ns);
    known.clocks.cpu_ns = Some(cpu_ns);
    if cpu_ns < before {
        // A clock that went back belongs to a later process with the same pid.
        known.inode = 0;
        return false;
    }
    account.add(known, cpu_ns - before);
    cpu_ns > before
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
    if !ran && known.clocks.runnable == 0 {
        return Ok(());
    }
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
    let children_ns = known.clocks.children(stat.children_ns);
    account.add(known, children_ns);
    if stat.threads == 1 {
        known.clocks.runnable = u32::from(stat.state == ThreadState::Runnable);
        threads.clear();
        threads.push(pid);
    } else if procfs.threads(pid, threads)? {
        known.clocks.runnable = count_runnable(procfs, pid, threads)?;
    }
    // The more threads, the less often: the time waited is only accounted, no decision depends on it.
    let pause = UNWATCHED * (1 + threads.len() as u64 / THREADS_SAMPLED_MAX as u64);
    if known.clocks.waits.is_none() || now >= known.clocks.waits_at.saturating_add(pause) {
        known.clocks.waits_at = now;
        account.waited_ns += waited_since(procfs, pid, threads, &mut known.clocks.waits)?;
    }
    Ok(())
}

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

/// Time that the threads waited since the last reading; 0 at the first reading of a process older than the roster.
fn waited_since(
    procfs: &mut ProcFs,
    pid: u32,
    threads: &[u32],
    waits: &mut Option<Vec<(u32, u64)>>,
) -> Result<u64, LiveError> {
    let mut now = Vec::with_capacity(threads.len());
    for tid in threads {
        if let Some(counted) = procfs.thread_schedstat(pid, *tid)? {
            now.push((*tid, counted.waited_ns));
        }
    }
    let sum = waits
        .as_ref()
        .map_or(0, |before| now.iter().map(|(tid, ns)| ns.saturating_sub(value_of(before, *tid))).sum());
    *waits = Some(now);
    Ok(sum)
}

/// The value of a thread in a list sorted by thread; 0 if it is new.
fn value_of(list: &[(u32, u64)], tid: u32) -> u64 {
    list.binary_search_by_key(&tid, |(tid, _)| *tid).map_or(0, |i| list[i].1)
}
