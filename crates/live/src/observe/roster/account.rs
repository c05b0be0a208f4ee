//! What each unit's processes use, wait for and want.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::membership::Stays;
use commonhold_policy::{MS, Time, UnitFacts};

use super::{Known, Roster};
use crate::LiveError;
use crate::host::clock::process_cpu_ns;
use crate::observe::process::{ProcFs, State};

/// How old the facts of a unit may be that nobody watches.
const UNWATCHED: Time = 100 * MS;

/// How old those of the unit `shared` may be: nothing is decided on them, and it may hold most of a machine's processes.
const SHARED: Time = 1_000 * MS;

/// A clock that stands still is read again after this part of the time for which it has: what just ran is looked at each time,
/// and a process that has slept for long is looked at seldom.
const STILL_PART: Time = 8;

/// The longest pause between two readings of such a clock: the age that other facts may have, or longer on a machine with so
/// many processes that reading them all would take more than half a percent of a CPU.
const PAUSE_MAX: Time = UNWATCHED;
const PAUSE_PER_PROCESS: Time = MS / 5;

/// The same in a unit that is watched, for each of its processes: with up to 160 of them no look leaves any out.
const PAUSE_PER_WATCHED: Time = MS / 20;

/// How many threads of one process are looked at, at most, at each look; of more, an even sample stands for all, so that
/// a program of a thousand threads does not cost its unit's neighbours a CPU.
const THREADS_PER_LOOK: usize = 64;

/// How many looks long what wanted a CPU and ran meanwhile is taken to want one still: what computes without a pause is
/// asked every fourth time. When it stops running, it is asked at once.
const TRUSTED_LOOKS: u8 = 3;

/// One unit's sums since the roster began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    used_ns: u64,
    /// Of that, by processes while they stayed outside the unit's control group.
    outside_ns: u64,
    waited_ns: u64,
    looked_at: Option<Time>,
}

impl Account {
    /// Books CPU time of a process.
    fn add(&mut self, known: &Known, ns: u64) {
        self.used_ns += ns;
        // systemd takes it to where the kernel counts for the unit, at a moment that is not known: never twice.
        if known.member.stays.is_some_and(Stays::is_outside) && !known.is_leaving {
            self.outside_ns += ns;
        }
    }
}

/// A look, for those who read clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) number: u64,
    at: Time,
    /// For how long a clock that stands still may go unread, at most.
    pause_max: Time,
}

impl Look {
    /// Reads every clock.
    pub(super) fn without_pause(self) -> Look {
        Look { pause_max: 0, ..self }
    }
}

/// The counters of a process at the last look.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Its CPU clock as it was read last, and the number of that look.
    read: (u64, Option<u64>),
    read_at: Time,
    /// When the clock was last seen to advance.
    still_since: Time,
    /// What its unit was charged for, of its CPU clock; `None` if it has none that can be read.
    cpu_ns: Option<u64>,
    /// CPU time of its children that it waited for; `None` before the first reading of a process that was there before.
    children_ns: Option<u64>,
    /// CPU time of its children that was counted while they lived: it shows again when they are waited for.
    counted_ns: u64,
    /// Threads that wanted a CPU.
    runnable: u32,
    /// Looks since its state was read.
    trusted: u8,
    /// Time that each thread spent runnable without a CPU, by thread. `None` before the first reading.
    waits: Option<Vec<(u32, u64)>>,
    waits_at: Time,
}

impl Clocks {
    pub(super) fn new(cpu_ns: Option<u64>) -> Self {
        let born = cpu_ns == Some(0);
        Clocks { cpu_ns, children_ns: born.then_some(0), waits: born.then(Vec::new), ..Clocks::default() }
    }

    /// The CPU clock of this process: read once in a look, and where it stands still only after a pause. `None` if there is no
    /// such process.
    pub(super) fn read(&mut self, pid: u32, look: Look) -> Option<u64> {
        let (number, before) = self.read;
        let pause = (self.read_at.saturating_sub(self.still_since) / STILL_PART).min(look.pause_max);
        if number != look.number && look.at >= self.read_at.saturating_add(pause) {
            let clock = process_cpu_ns(pid);
            if number == 0 || clock != before {
                self.still_since = look.at;
            }
            self.read = (look.number, clock);
            self.read_at = look.at;
        }
        self.read.1
    }

    /// What its parent will be told that it used, as far as that was counted: all but what it used since the last look.
    pub(super) fn bequest(&self) -> u64 {
        self.cpu_ns.unwrap_or(0) + self.children_ns.unwrap_or(0) + self.counted_ns
    }

    /// A child ended that had been counted. Before the first reading there is nothing to be counted twice.
    pub(super) fn inherit(&mut self, bequest_ns: u64) {
        if self.children_ns.is_some() {
            self.counted_ns += bequest_ns;
        }
    }

    /// Takes the children's time as it is now; what is new in it.
    fn children(&mut self, now_ns: u64) -> u64 {
        let grown = now_ns.saturating_sub(self.children_ns.unwrap_or(now_ns));
        self.children_ns = Some(now_ns);
        let counted = grown.min(self.counted_ns);
        self.counted_ns -= counted;
        grown - counted
    }
}

impl Roster {
    /// Looks what the processes of the units in `watch` used and want; those of other units are looked at when the last
    /// look is 100 ms ago (`shared`: a second; `kernel`: never). A process that slept since costs one system call at most.
    pub fn account(&mut self, now: Time, watch: &[UnitId]) -> Result<(), LiveError> {
        self.now = now;
        // Whoever accounts twice in a look wants to know what happened in between.
        if self.accounted == self.look {
            self.look += 1;
        }
        self.accounted = self.look;
        self.accounts.resize_with(self.contract.units.len().max(self.accounts.len()), Account::default);
        let default_unit = self.contract.default_unit;
        let due: Vec<bool> = (0u32..)
            .map(UnitId)
            .zip(&mut self.accounts)
            .map(|(unit, account)| {
                let age = if unit == UnitId::SHARED && default_unit != unit { SHARED } else { UNWATCHED };
                let old = account.looked_at.is_none_or(|at| now >= at.saturating_add(age));
                let due = unit != UnitId::KERNEL && (old || watch.contains(&unit));
                if due {
                    account.looked_at = Some(now);
                }
                due
            })
            .collect();
        let usual = self.this_look();
        let watched = self.pauses_of_watched(watch);
        let (mut procfs_busy, accounts) = (None, &mut self.accounts);
        for known in self.known.values_mut().filter(|known| !known.ended) {
            let unit = known.member.placement.unit;
            let pause_max = watched.get(&unit).map_or(usual.pause_max, |pause| usual.pause_max.min(*pause));
            let this = Look { pause_max, ..usual };
            if due.get(unit.index()).copied().unwrap_or(false)
                && let Some(account) = accounts.get_mut(unit.index())
                && let Err(err) = look(&mut self.procfs, &mut self.threads, known, account, now, this)
            {
                procfs_busy.get_or_insert(err);
            }
        }
        procfs_busy.map_or(Ok(()), Err)
    }

    /// The look that is being made.
    pub(super) fn this_look(&self) -> Look {
        let pause_max = PAUSE_MAX.max(self.known.len() as u64 * PAUSE_PER_PROCESS);
        Look { number: self.look, at: self.now, pause_max }
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
            facts.at = account.looked_at.unwrap_or(0);
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

    /// What processes of a unit used while they stayed outside its control group, in nanoseconds since the roster began.
    pub fn used_outside_ns(&self, unit: UnitId) -> u64 {
        self.accounts.get(unit.index()).map_or(0, |account| account.outside_ns)
    }

    /// Threads of one process that wanted a CPU at the last look.
    pub fn runnable(&self, pid: u32) -> u32 {
        self.known.get(&pid).map_or(0, |known| known.clocks.runnable)
    }

    /// The CPU clock of a process, as it was when it was looked at last.
    pub(crate) fn cpu_ns(&self, pid: u32) -> Option<u64> {
        self.known.get(&pid)?.clocks.cpu_ns
    }

    /// Gives what a process used so far to the unit that it is about to leave.
    pub(super) fn settle(&mut self, pid: u32) {
        let look = self.this_look().without_pause();
        if let Some(known) = self.known.get_mut(&pid)
            && let Some(account) = self.accounts.get_mut(known.member.placement.unit.index())
        {
            advance(known, account, look);
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

/// Adds what a process used since the last look. Whether it ran.
fn advance(known: &mut Known, account: &mut Account, look: Look) -> bool {
    let Some(cpu_ns) = known.clocks.read(known.member.key.pid, look) else {
        // It ended: its parent has waited for it, so it wants nothing.
        known.clocks.runnable = 0;
        return false;
    };
    let before = known.clocks.cpu_ns.unwrap_or(cpu_ns);
    known.clocks.cpu_ns = Some(cpu_ns);
    if cpu_ns < before {
        // A clock that goes back is another process's with the same number.
        known.inode = 0;
        return false;
    }
    account.add(known, cpu_ns - before);
    cpu_ns > before
}

fn look(
    procfs: &mut ProcFs,
    threads: &mut Vec<u32>,
    known: &mut Known,
    account: &mut Account,
    now: Time,
    this: Look,
) -> Result<(), LiveError> {
    let ran = advance(known, account, this);
    if !ran && known.clocks.runnable == 0 {
        return Ok(());
    }
    if ran && known.clocks.runnable > 0 && known.clocks.trusted < TRUSTED_LOOKS {
        known.clocks.trusted += 1;
        return Ok(());
    }
    known.clocks.trusted = 0;
    let pid = known.member.key.pid;
    let Some(stat) = procfs.stat(pid)? else {
        known.clocks.runnable = 0;
        return Ok(());
    };
    let children_ns = known.clocks.children(stat.children_ns);
    account.add(known, children_ns);
    if stat.threads == 1 {
        known.clocks.runnable = u32::from(stat.state == State::Runnable);
        threads.clear();
        threads.push(pid);
    } else if procfs.threads(pid, threads)? {
        known.clocks.runnable = count_runnable(procfs, pid, threads)?;
    }
    // The more threads, the less often: waiting is accounted, not decided on.
    let pause = UNWATCHED * (1 + threads.len() as u64 / THREADS_PER_LOOK as u64);
    if known.clocks.waits.is_none() || now >= known.clocks.waits_at.saturating_add(pause) {
        known.clocks.waits_at = now;
        account.waited_ns += waited_since(procfs, pid, threads, &mut known.clocks.waits)?;
    }
    Ok(())
}

fn count_runnable(procfs: &mut ProcFs, pid: u32, threads: &[u32]) -> Result<u32, LiveError> {
    let step = threads.len().div_ceil(THREADS_PER_LOOK).max(1);
    let (mut looked, mut runnable) = (0, 0);
    for tid in threads.iter().step_by(step) {
        looked += 1;
        runnable += usize::from(procfs.thread_state(pid, *tid)? == Some(State::Runnable));
    }
    let estimate = (runnable * threads.len()).div_ceil(looked.max(1));
    Ok(u32::try_from(estimate).unwrap_or(u32::MAX))
}

/// Time that the threads waited since the last reading. At the first reading of a process that was there before, none.
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
        .map_or(0, |before| now.iter().map(|(tid, ns)| ns.saturating_sub(at(before, *tid))).sum());
    *waits = Some(now);
    Ok(sum)
}

/// The value of a thread in a list sorted by thread; 0 if it is new.
fn at(list: &[(u32, u64)], tid: u32) -> u64 {
    list.binary_search_by_key(&tid, |(tid, _)| *tid).map_or(0, |i| list[i].1)
}
