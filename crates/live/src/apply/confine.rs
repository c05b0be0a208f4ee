//! Confinement: keeps threads on the CPUs ordered for them, within what their owners allow.
//!
//! Without control groups, every thread of every member runs on the CPUs that its unit holds. With them, a CPU set keeps the
//! unit there, and only threads of jobs, which have a seat in a pool, are confined here. The `kernel` backend's scheduler
//! treats seats as preferences: then they are only recorded here, and no affinity changes.
//!
//! Where units take turns, their CPUs change ten times a second, and most of their processes sleep. So a sleeper that was
//! confined once keeps the mask of an earlier order until it has run, or until there is time for it ([`CATCH_UP`]). The CPU
//! time it uses by then is taken from its unit's [allowance](super::allowance).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::{MS, Time};

use super::allowance::Allowance;
use crate::LiveError;
use crate::host::affinity;
use crate::observe::process::{Pins, ProcessKey};
use crate::observe::roster::Roster;
use crate::undo::journal::{Entry, Journal};

/// The maximum number of passes over new threads: a confined thread creates confined ones, so each pass finds only threads
/// whose creators the previous one did not know.
const ROUNDS_MAX: usize = 20;

/// The number of sleepers that get their current masks with each comparison of masks, once a second.
const CATCH_UP: usize = 100;

/// In units with fewer processes, sleepers are confined at once: that is cheap.
const SPARED_FROM: usize = 100;

/// The interval of checks for sleepers that have run; the roster reads their clocks no more often than that.
const CATCH_UP_NS: Time = 100 * MS;

/// A thread under an order.
#[derive(Debug, Clone)]
struct ConfinedThread {
    /// The mask that its owner wants.
    original: CpuSet,
    /// The mask it was given, as read back from the kernel; the mask it had, if giving failed.
    given: CpuSet,
    /// Whether the order contradicts its owner's wish.
    overridden: bool,
}

/// Errors that did not stop the rest: each kind is reported once per process.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) unread: Vec<LiveError>,
    pub(super) reported: BTreeSet<(ProcessKey, &'static str)>,
}

impl Problems {
    pub(super) fn add(&mut self, err: LiveError) {
        self.unread.push(err);
    }

    pub(super) fn once(&mut self, key: ProcessKey, kind: &'static str, err: impl FnOnce() -> LiveError) {
        if self.reported.insert((key, kind)) {
            self.unread.push(err());
        }
    }
}

/// The CPUs that are ordered for a unit; `None`: all.
pub(super) type CpusOfUnit<'a> = &'a dyn Fn(UnitId) -> Option<CpuSet>;

/// What confining needs, besides the threads.
pub(super) struct Confining<'a> {
    pub(super) confinement: &'a mut Confinement,
    pub(super) roster: &'a mut Roster,
    pub(super) journal: &'a mut Journal,
    pub(super) problems: &'a mut Problems,
    /// The CPUs ordered by way of affinities.
    pub(super) ordered: CpusOfUnit<'a>,
    /// The CPU set of the unit's control group: the kernel removes other CPUs from a mask.
    pub(super) within: CpusOfUnit<'a>,
    /// All CPUs that this program may use.
    pub(super) all: &'a CpuSet,
}

/// The threads under orders, and the masks they were given.
#[derive(Debug, Default)]
pub(super) struct Confinement {
    /// The seats of threads of jobs, as the CPUs of their pools.
    seats: BTreeMap<ProcessKey, BTreeMap<u32, CpuSet>>,
    /// Whether seats are left to a scheduler instead of affinities. It is given the changed ones.
    leaves_seats: bool,
    changed_seats: Vec<(u32, Option<u32>)>,
    /// By process and thread.
    held: BTreeMap<ProcessKey, BTreeMap<u32, ConfinedThread>>,
    /// Every mask given so far, with the last original it replaced: children inherit the mask.
    given: BTreeMap<CpuSet, CpuSet>,
    /// Processes that the kernel does not let us change.
    refused: BTreeSet<ProcessKey>,
    /// Processes whose order was not carried out: it was refused, or how to undo it could not be recorded.
    waiting: BTreeSet<ProcessKey>,
    /// CPU clocks of processes when they were last confined.
    clocks: BTreeMap<ProcessKey, u64>,
    /// Sleepers under the mask of an earlier order.
    lagging: BTreeSet<ProcessKey>,
    caught_up_at: Time,
    allowance: Allowance,
}

/// A thread that was examined, and its new state.
struct Change {
    key: ProcessKey,
    tid: u32,
    held: ConfinedThread,
    /// Its new mask; `None` if it already has it.
    cpus: Option<CpuSet>,
}

/// The result of examining threads: nothing is applied before its entries are in the journal.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    given: BTreeMap<CpuSet, CpuSet>,
    changes: Vec<Change>,
    /// Processes with a thread that could not be examined.
    unseen: Vec<ProcessKey>,
}

impl Confinement {
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.held.remove(&key);
        self.seats.remove(&key);
        self.refused.remove(&key);
        self.waiting.remove(&key);
        self.clocks.remove(&key);
        self.lagging.remove(&key);
    }

    /// Seats a thread of a job on these CPUs, or unseats it. Takes effect with the next scan at its process.
    pub(super) fn seat(&mut self, key: ProcessKey, tid: u32, cpus: Option<CpuSet>) {
        if self.leaves_seats {
            self.changed_seats.push((tid, cpus.as_ref().and_then(first)));
        }
        let threads = self.seats.entry(key).or_default();
        match cpus {
            Some(cpus) => threads.insert(tid, cpus),
            None => threads.remove(&tid),
        };
        if threads.is_empty() {
            self.seats.remove(&key);
        }
    }

    pub(super) fn leaves_seats(&self) -> bool {
        self.leaves_seats
    }

    /// Leaves seats to a scheduler, or takes them back. Returns whether that changed: then processes with seats must be
    /// examined.
    pub(super) fn leave_seats(&mut self, leave: bool) -> bool {
        let is_new = self.leaves_seats != leave && !self.seats.is_empty();
        self.leaves_seats = leave;
        is_new
    }

    /// Processes with a seated thread.
    pub(super) fn seated(&self) -> Vec<ProcessKey> {
        self.seats.keys().copied().collect()
    }

    /// All seats, by thread: the first CPU of each.
    pub(super) fn all_seats(&self) -> Vec<(u32, Option<u32>)> {
        self.seats.values().flatten().map(|(tid, cpus)| (*tid, first(cpus))).collect()
    }

    /// Seats that changed since the last call, while they were left to a scheduler.
    pub(super) fn changed_seats(&mut self) -> Vec<(u32, Option<u32>)> {
        std::mem::take(&mut self.changed_seats)
    }

    /// The CPUs that its owner restricts a thread to, of those that this program may use. `None` if its owner allows all of
    /// them, only its group restricts it, or the owner's wish is unknown.
    pub(super) fn tied(
        &self,
        key: ProcessKey,
        tid: u32,
        within: Option<&CpuSet>,
        all: &CpuSet,
    ) -> Option<CpuSet> {
        let held = self.held.get(&key).and_then(|threads| threads.get(&tid));
        let wish = match held {
            Some(held) => held.original.clone(),
            // A given mask may have been inherited, and then is not the owner's wish.
            None => {
                affinity::get(tid).ok().filter(|now| !self.given.contains_key(now) && within != Some(now))?
            }
        };
        (!all.difference(&wish).is_empty()).then_some(wish)
    }

    pub(super) fn overridden(&self) -> usize {
        self.held.values().flat_map(BTreeMap::values).filter(|held| held.overridden).count()
    }

    fn first(&self, key: ProcessKey) -> Option<&ConfinedThread> {
        let threads = self.held.get(&key)?;
        threads.get(&key.pid).or_else(|| threads.values().next())
    }
}

impl Confining<'_> {
    /// Like [`Confining::confine`], after a change of a unit's order: sleepers that were confined before may keep their masks
    /// until [`Confining::catch_up`].
    pub(super) fn confine_unit(&mut self, keys: &[ProcessKey], now: Time) {
        let mut awake = Vec::new();
        for key in keys {
            if keys.len() >= SPARED_FROM && self.sleeps(*key, now) {
                self.confinement.lagging.insert(*key);
            } else {
                awake.push(*key);
            }
        }
        self.confine(&awake);
    }

    /// Whether a process has not run since it was confined, and its unit's allowance is not overdrawn.
    fn sleeps(&mut self, key: ProcessKey, now: Time) -> bool {
        let clock = self.roster.cpu_ns(key.pid);
        let is_settled = clock.is_some()
            && self.confinement.clocks.get(&key).copied() == clock
            && self.confinement.held.contains_key(&key)
            && !self.confinement.seats.contains_key(&key)
            && !self.confinement.waiting.contains(&key);
        let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
        is_settled && unit.is_some_and(|unit| !self.confinement.allowance.is_overdrawn(unit, now))
    }

    /// Confines sleepers that have run under the mask of an earlier order.
    pub(super) fn catch_up(&mut self, now: Time) {
        if now < self.confinement.caught_up_at.saturating_add(CATCH_UP_NS) {
            return;
        }
        self.confinement.caught_up_at = now;
        let mut woken = Vec::new();
        for key in &self.confinement.lagging {
            let (then, clock) = (self.confinement.clocks.get(key), self.roster.cpu_ns(key.pid));
            let used = then.zip(clock).map_or(0, |(then, clock)| clock.saturating_sub(*then));
            if used > 0 {
                woken.push((*key, used));
            }
        }
        for (key, used) in &woken {
            if let Some(member) = self.roster.member(key.pid) {
                self.confinement.allowance.take(member.placement.unit, *used, now);
            }
        }
        let woken: Vec<ProcessKey> = woken.into_iter().map(|(key, _)| key).collect();
        self.confine(&woken);
    }

    /// Applies the orders in force to every thread of these processes.
    pub(super) fn confine(&mut self, keys: &[ProcessKey]) {
        for key in keys {
            self.confinement.lagging.remove(key);
            self.confinement.clocks.extend(self.roster.cpu_ns(key.pid).map(|clock| (*key, clock)));
        }
        let mut keys: Vec<ProcessKey> = keys.iter().copied().filter(|key| self.is_concerned(*key)).collect();
        let mut done = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let births = self.roster.procfs().births().ok().flatten();
            if keys.is_empty() || !self.confine_round(&mut keys, &mut done) {
                break;
            }
            // No process or thread was born since the listing, so none was missed.
            if births.is_some() && self.roster.procfs().births().ok().flatten() == births {
                break;
            }
        }
        self.release(&keys);
    }

    /// Whether a process is or was under an order, or inherited a mask of ours. Others are not examined.
    fn is_concerned(&self, key: ProcessKey) -> bool {
        if self.confinement.refused.contains(&key) {
            return false;
        }
        let member = self.roster.member(key.pid).filter(|member| member.key == key);
        let seated = !self.confinement.leaves_seats && self.confinement.seats.contains_key(&key);
        let ordered = seated || member.is_some_and(|member| (self.ordered)(member.placement.unit).is_some());
        let born_with = || {
            let given = &self.confinement.given;
            !given.is_empty() && affinity::get(key.pid).is_ok_and(|now| given.contains_key(&now))
        };
        ordered || self.confinement.held.contains_key(&key) || born_with()
    }

    /// Confines the threads that are not in `done` yet. Returns whether there were any. A process whose threads cannot be
    /// listed is removed from `keys`, and waits.
    fn confine_round(&mut self, keys: &mut Vec<ProcessKey>, done: &mut BTreeSet<u32>) -> bool {
        let (mut batch, mut threads) = (Batch::default(), Vec::new());
        let before = done.len();
        keys.retain(|key| {
            let listed = self.roster.procfs().threads(key.pid, &mut threads);
            let is_listed = listed.is_ok();
            if let Err(err) = listed {
                self.problems.add(err);
                self.confinement.waiting.insert(*key);
                threads.clear();
            }
            for tid in threads.iter().filter(|tid| done.insert(**tid)) {
                self.examine(*key, *tid, &mut batch);
            }
            is_listed
        });
        if let Err(err) = self.record(&batch.entries) {
            self.problems.add(err);
            self.confinement.waiting.extend(keys.iter());
            return false;
        }
        self.confinement.waiting.extend(batch.unseen);
        self.confinement.given.append(&mut batch.given);
        let mut pins = Pins::default();
        for change in batch.changes {
            self.carry_through(change, &mut pins);
        }
        done.len() > before
    }

    /// Adds a thread's new state to the batch, and the entries that must be recorded before.
    fn examine(&self, key: ProcessKey, tid: u32, batch: &mut Batch) {
        let now = match affinity::get(tid) {
            Ok(now) => now,
            Err(error) => {
                batch.unseen.extend((error.raw_os_error() != Some(libc::ESRCH)).then_some(key));
                return;
            }
        };
        let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
        let seats = self.confinement.seats.get(&key).filter(|_| !self.confinement.leaves_seats);
        let seat = seats.and_then(|threads| threads.get(&tid)).cloned();
        let ordered_for_unit = unit.and_then(|unit| (self.ordered)(unit));
        let within = unit.and_then(|unit| (self.within)(unit));
        let held = self.confinement.held.get(&key).and_then(|threads| threads.get(&tid));
        let original = match held {
            Some(held) if is_effect_of(&held.given, &now, within.as_ref()) => held.original.clone(),
            // Its owner has chosen another mask since: that is the wish from now on.
            Some(_) => now.clone(),
            // Only its group keeps it there: the owner allows all CPUs.
            None if within.as_ref() == Some(&now) => self.all.clone(),
            None => self
                .inherited(key, &now, seat.is_some() || ordered_for_unit.is_some())
                .unwrap_or_else(|| now.clone()),
        };
        // The owner may have restricted it to other CPUs since the plan was made.
        let seat = seat.filter(|seat| !seat.intersection(&original).is_empty());
        let ordered = seat.or(ordered_for_unit);
        let (cpus, overridden) = mask(ordered.as_ref(), &original);
        if held.is_none_or(|held| held.original != original) {
            batch.entries.push(Entry::Affinity { process: key, tid, cpus: original.clone() });
        }
        if cpus != original
            && !self.confinement.given.contains_key(&cpus)
            && batch.given.insert(cpus.clone(), original.clone()).is_none()
        {
            batch.entries.push(Entry::AffinityGiven { cpus: cpus.clone() });
        }
        let cpus = (!is_effect_of(&cpus, &now, within.as_ref())).then_some(cpus);
        batch.changes.push(Change {
            key,
            tid,
            held: ConfinedThread { original, given: now, overridden },
            cpus,
        });
    }

    /// The original of a thread that inherited a mask we gave: that of its process, its parent, its session. `None` if its
    /// owner chose the mask, or nothing is known (`guess` allows any original that fits).
    fn inherited(&self, key: ProcessKey, now: &CpuSet, guess: bool) -> Option<CpuSet> {
        let any = self.confinement.given.get(now)?;
        if let Some(first) = self.confinement.first(key) {
            return Some(first.original.clone());
        }
        let member = self.roster.member(key.pid)?;
        if let Some(parent) = self.roster.member(member.parent) {
            return self.confinement.first(parent.key).map(|held| held.original.clone());
        }
        // Its parent is gone: it was reparented, unless it leads a session, as services do.
        let leads = member.session == key.pid;
        let of_session = self
            .roster
            .members()
            .find(|other| other.session == member.session && self.confinement.held.contains_key(&other.key));
        let first = of_session.and_then(|other| self.confinement.first(other.key)).map(|held| &held.original);
        first.or((guess && !leads).then_some(any)).cloned()
    }

    fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(self.journal, entries)
    }

    fn carry_through(&mut self, change: Change, pins: &mut Pins) {
        let Change { key, tid, held, cpus } = change;
        if held.overridden {
            self.report_overridden(key, &held.original);
        }
        self.confinement.held.entry(key).or_default().insert(tid, held);
        if let Some(cpus) = cpus {
            self.give(pins, key, tid, &cpus);
        }
    }

    /// Gives a thread its mask, and reads back what the kernel made of it.
    ///
    /// `sched_setaffinity(2)` takes a bare thread number. The process is pinned, and [`Pinned::give`] checks the thread around
    /// the call.
    fn give(&mut self, pins: &mut Pins, key: ProcessKey, tid: u32, cpus: &CpuSet) {
        // The kernel removes CPUs that a cpuset does not have.
        let is_ours = |now: &CpuSet| now.difference(cpus).is_empty();
        let given = pins
            .pin(self.roster.procfs(), key)
            .and_then(|process| process.give(tid, cpus, (affinity::get, affinity::set), is_ours));
        match given {
            Ok(()) => {
                let now = affinity::get(tid).unwrap_or_else(|_| cpus.clone());
                if now != *cpus {
                    self.note_difference(key, cpus, &now);
                }
                let threads = self.confinement.held.entry(key).or_default();
                threads.entry(tid).and_modify(|held| held.given = now);
            }
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => {
                self.confinement.held.entry(key).or_default().remove(&tid);
            }
            Err(err) => self.refuse(key, cpus, err),
        }
    }

    /// The kernel removed CPUs outside of the process's cpuset. The resulting mask counts as given.
    fn note_difference(&mut self, key: ProcessKey, cpus: &CpuSet, now: &CpuSet) {
        if !self.confinement.given.contains_key(now) {
            if let Err(err) = self.record(&[Entry::AffinityGiven { cpus: now.clone() }]) {
                self.problems.add(err);
            }
            let original = self.confinement.given.get(cpus).cloned().unwrap_or_else(|| cpus.clone());
            self.confinement.given.insert(now.clone(), original);
        }
        self.problems.once(key, "cpuset", || LiveError::NotInForce {
            path: PathBuf::from(format!("/proc/{}/status", key.pid)),
            wrote: cpus.to_string(),
            read: now.to_string(),
            remedy: "; a control group confines the process to fewer CPUs: see /proc/PID/cpuset".to_owned(),
        });
    }

    fn refuse(&mut self, key: ProcessKey, cpus: &CpuSet, source: io::Error) {
        let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
        if source.raw_os_error() == Some(libc::EPERM) {
            self.confinement.refused.insert(key);
            self.confinement.held.remove(&key);
        } else {
            self.confinement.waiting.insert(key);
        }
        let remedy = remedy(&source);
        let what = format!("confine to CPUs {cpus}");
        self.problems.once(key, "confine", || LiveError::Process {
            pid: key.pid,
            name,
            what,
            source,
            remedy,
        });
    }

    fn report_overridden(&mut self, key: ProcessKey, original: &CpuSet) {
        let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
        self.problems.once(key, "overridden", || LiveError::Process {
            pid: key.pid,
            name,
            what: format!("keep to its own choice of CPUs, {original}"),
            source: io::Error::other(
                "its unit holds none of these CPUs, so the process runs where its unit does",
            ),
            remedy: format!("; let it choose among more: taskset -apc LIST {}", key.pid),
        });
    }

    /// Forgets threads under no order that have their owners' masks.
    fn release(&mut self, keys: &[ProcessKey]) {
        for key in keys {
            let member = self.roster.member(key.pid);
            if member.is_none_or(|member| (self.ordered)(member.placement.unit).is_none())
                && !self.confinement.waiting.contains(key)
                && let Some(threads) = self.confinement.held.get_mut(key)
            {
                threads.retain(|_, held| held.given != held.original);
                if threads.is_empty() {
                    self.confinement.held.remove(key);
                }
            }
        }
    }

    /// Finds threads whose owners have chosen another mask since, and applies the orders again to their processes and to those
    /// that wait.
    pub(super) fn compare_masks(&mut self) {
        let mut changed: Vec<ProcessKey> =
            std::mem::take(&mut self.confinement.waiting).into_iter().collect();
        changed.extend(self.confinement.lagging.iter().take(CATCH_UP));
        for (key, threads) in &mut self.confinement.held {
            let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
            let within = unit.and_then(|unit| (self.within)(unit));
            // A thread that ended is forgotten.
            threads.retain(|tid, held| match affinity::get(*tid) {
                Ok(now) => {
                    if !is_effect_of(&held.given, &now, within.as_ref()) && changed.last() != Some(key) {
                        changed.push(*key);
                    }
                    true
                }
                Err(error) => error.raw_os_error() != Some(libc::ESRCH),
            });
        }
        self.confine(&changed);
    }
}

fn first(cpus: &CpuSet) -> Option<u32> {
    cpus.iter().next()
}

/// Records how to undo a change that is made without control groups.
pub(super) fn record(journal: &mut Journal, entries: &[Entry]) -> Result<(), LiveError> {
    journal.record(entries).map_err(|source| LiveError::File {
        path: journal.path().to_owned(),
        what: "write".to_owned(),
        source,
        remedy: "; a change that could not be undone is not made: free some space there".to_owned(),
    })
}

/// A unit and its enclosers, from within.
pub(super) fn lineage(contract: &Contract, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
    std::iter::successors(Some(unit), |unit| contract.units.get(unit.index()).and_then(|unit| unit.parent))
}

/// [`Confining::compare_masks`], as a function over any lifetime.
pub(super) fn compare_masks(confining: &mut Confining<'_>) {
    confining.compare_masks();
}

/// Whether a mask is what the kernel makes of `given` in a group with a CPU set: it removes other CPUs, and ignores the mask if
/// nothing would be left.
fn is_effect_of(given: &CpuSet, now: &CpuSet, within: Option<&CpuSet>) -> bool {
    let reduced = |within: &CpuSet| {
        let both = given.intersection(within);
        *now == both || (both.is_empty() && now == within)
    };
    given == now || within.is_some_and(reduced)
}

/// The CPUs of a thread under an order: those that both the order and its owner allow, or else the order's. The flag reports
/// that the two contradict each other.
fn mask(ordered: Option<&CpuSet>, original: &CpuSet) -> (CpuSet, bool) {
    let Some(ordered) = ordered else { return (original.clone(), false) };
    let both = ordered.intersection(original);
    if both.is_empty() { (ordered.clone(), true) } else { (both, false) }
}

/// The remedy if the kernel does not let us change a process.
pub(super) fn remedy(err: &io::Error) -> String {
    match err.raw_os_error() {
        Some(libc::EPERM) => {
            "; it is another user's: run commonhold as root, or leave it out of the contract"
        }
        Some(libc::EINVAL) => {
            "; none of these CPUs is in its control group's cpuset: widen that, or leave it out"
        }
        _ => "",
    }
    .to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What the kernel makes of a mask in a group with a CPU set is not the owner's choice.
    #[test]
    fn a_group_removes_cpus_from_a_mask() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        for (given, now, within, left) in [
            ("0-1", "0-1", None, true),
            ("0-1", "1", None, false),
            ("0-1", "1", Some("1-3"), true),
            ("0-1", "2-3", Some("2-3"), true),
            ("0-1", "2", Some("2-3"), false),
            ("0-1", "0", Some("0-3"), false),
        ] {
            let within = within.map(set);
            assert_eq!(
                is_effect_of(&set(given), &set(now), within.as_ref()),
                left,
                "{given} {now} {within:?}"
            );
        }
    }

    /// A scheduler is given the seats that changed since it took over, and a new one all of them.
    #[test]
    fn seats_are_left_to_a_scheduler() {
        let (mut confinement, key) = (Confinement::default(), ProcessKey { pid: 4, start: 7 });
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        confinement.seat(key, 4, Some(set("2-3")));
        assert!(confinement.changed_seats().is_empty(), "it is an affinity");
        assert!(confinement.leave_seats(true) && !confinement.leave_seats(true));
        assert_eq!((confinement.all_seats(), confinement.seated()), (vec![(4, Some(2))], vec![key]));
        confinement.seat(key, 5, Some(set("0-1")));
        confinement.seat(key, 4, None);
        assert_eq!(confinement.changed_seats(), [(5, Some(0)), (4, None)]);
        assert!(confinement.changed_seats().is_empty());
        assert_eq!(confinement.all_seats(), [(5, Some(0))]);
        assert!(confinement.leave_seats(false), "it is an affinity again");
    }

    #[test]
    fn an_order_is_narrowed_to_the_owners_wish_if_possible() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        for (ordered, original, cpus, overridden) in
            [("0-1", "0-3", "0-1", false), ("0-1", "1-2", "1", false), ("0-1", "3", "0-1", true)]
        {
            assert_eq!(mask(Some(&set(ordered)), &set(original)), (set(cpus), overridden));
        }
        assert_eq!(mask(None, &set("3")), (set("3"), false));
    }
}
