//! Confinement: threads run on the CPUs that are ordered for them, as far as their owners let them.
//!
//! Without control groups, every thread of every member runs on the CPUs that its unit holds. With them, a CPU set keeps the
//! unit there, and this is for the threads of jobs alone, which have a seat in a pool. A scheduler of the project's own takes
//! seats for preferences: then they are kept here, and no affinity changes.
//!
//! Where units take turns, they change their CPUs ten times a second, and most of their processes sleep. So a sleeper that was
//! confined once keeps the mask of an earlier order until it has run, or until there is time for it ([`CATCH_UP`]). What it
//! uses by then is taken from its unit's [allowance](super::allowance).

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

/// Looks for threads that were created meanwhile: a thread that is confined creates confined ones, so each look finds
/// only those of threads that the look before did not know.
const ROUNDS_MAX: usize = 20;

/// How many sleepers get the masks of the orders in force with each comparison of masks, once a second.
const CATCH_UP: usize = 100;

/// In units of fewer processes, sleepers are confined at once as well: that costs little.
const SPARED_FROM: usize = 100;

/// How often it is looked whether they have run; the roster reads their clocks no more often than that.
const CATCH_UP_NS: Time = 100 * MS;

/// A thread under an order.
#[derive(Debug, Clone)]
struct Held {
    /// Where its owner wants it.
    original: CpuSet,
    /// Where it was put, as the kernel showed it afterwards; where it was, as long as that was refused.
    given: CpuSet,
    /// The order contradicts its owner's wish.
    overridden: bool,
}

/// What went wrong without stopping the rest: each kind once per process.
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
pub(super) type OfUnit<'a> = &'a dyn Fn(UnitId) -> Option<CpuSet>;

/// What confining needs, besides the threads.
pub(super) struct Confining<'a> {
    pub(super) confinement: &'a mut Confinement,
    pub(super) roster: &'a mut Roster,
    pub(super) journal: &'a mut Journal,
    pub(super) problems: &'a mut Problems,
    /// What is ordered by way of threads.
    pub(super) ordered: OfUnit<'a>,
    /// What a control group keeps the unit to: the kernel leaves out other CPUs of a mask.
    pub(super) within: OfUnit<'a>,
    /// All CPUs that the machine lets this program use.
    pub(super) all: &'a CpuSet,
}

/// The threads under orders, and the masks they were given.
#[derive(Debug, Default)]
pub(super) struct Confinement {
    /// Threads of jobs, and the CPUs of their pools.
    seats: BTreeMap<ProcessKey, BTreeMap<u32, CpuSet>>,
    /// Seats are a scheduler's, and no affinities: it is told those that changed.
    leaves_seats: bool,
    changed_seats: Vec<(u32, Option<u32>)>,
    /// By process and thread.
    held: BTreeMap<ProcessKey, BTreeMap<u32, Held>>,
    /// Every mask given so far, with an original that it stood for last: children inherit it.
    given: BTreeMap<CpuSet, CpuSet>,
    /// Processes that the kernel does not let us touch.
    refused: BTreeSet<ProcessKey>,
    /// Processes that wait for an order to be carried out, since it was refused, or how to undo it could not be recorded.
    waiting: BTreeSet<ProcessKey>,
    /// CPU clocks of processes when they were confined last.
    clocks: BTreeMap<ProcessKey, u64>,
    /// Sleepers under the mask of an earlier order.
    lagging: BTreeSet<ProcessKey>,
    caught_up_at: Time,
    allowance: Allowance,
}

/// A thread that was looked at, and what is to become of it.
struct Change {
    key: ProcessKey,
    tid: u32,
    held: Held,
    /// The mask it is to have; `None` if it has it.
    cpus: Option<CpuSet>,
}

/// One look at threads: nothing of it is in force before its entries are in the journal.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    given: BTreeMap<CpuSet, CpuSet>,
    changes: Vec<Change>,
    /// Processes of which a thread could not be looked at.
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

    /// A thread of a job has a seat on these CPUs, or none any more. In force with the next look at its process.
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

    /// Seats are left to a scheduler, or not. Whether that is new: then processes with seats are to be looked at.
    pub(super) fn leave_seats(&mut self, leave: bool) -> bool {
        let is_new = self.leaves_seats != leave && !self.seats.is_empty();
        self.leaves_seats = leave;
        is_new
    }

    /// Processes of which a thread has a seat.
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

    /// The CPUs that its owner ties a thread to, of those that the program may use; `None`: all of them, or those of its
    /// group, or nobody can tell.
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
            // A mask that was given may have been inherited, and is nobody's wish then.
            None => {
                affinity::get(tid).ok().filter(|now| !self.given.contains_key(now) && within != Some(now))?
            }
        };
        (!all.difference(&wish).is_empty()).then_some(wish)
    }

    pub(super) fn overridden(&self) -> usize {
        self.held.values().flat_map(BTreeMap::values).filter(|held| held.overridden).count()
    }

    fn first(&self, key: ProcessKey) -> Option<&Held> {
        let threads = self.held.get(&key)?;
        threads.get(&key.pid).or_else(|| threads.values().next())
    }
}

impl Confining<'_> {
    /// The same as [`Confining::confine`], where the order of a unit changed: sleepers that were confined before may keep the masks
    /// that they have until [`Confining::catch_up`].
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

    /// Whether a process has not run since it was confined, and its unit's sleepers may be left alone.
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

    /// Puts every thread of these processes where the orders in force for their units say.
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
            // Nothing was born since the threads were listed: there is none that was not seen.
            if births.is_some() && self.roster.procfs().births().ok().flatten() == births {
                break;
            }
        }
        self.release(&keys);
    }

    /// Whether a process is or was under an order, or was born with a mask of ours. Others are not even looked at.
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

    /// Confines the threads that are not in `done` yet. Whether there were any. A process whose threads cannot be listed is
    /// none of `keys` any more: it waits.
    fn confine_round(&mut self, keys: &mut Vec<ProcessKey>, done: &mut BTreeSet<u32>) -> bool {
        let (mut batch, mut threads) = (Batch::default(), Vec::new());
        let before = done.len();
        keys.retain(|key| {
            let listed = self.roster.procfs().threads(key.pid, &mut threads);
            let can_be = listed.is_ok();
            if let Err(err) = listed {
                self.problems.add(err);
                self.confinement.waiting.insert(*key);
                threads.clear();
            }
            for tid in threads.iter().filter(|tid| done.insert(**tid)) {
                self.examine(*key, *tid, &mut batch);
            }
            can_be
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

    /// Adds to the batch what is to become of a thread, and what must be in the journal before.
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
        let of_unit = unit.and_then(|unit| (self.ordered)(unit));
        let within = unit.and_then(|unit| (self.within)(unit));
        let held = self.confinement.held.get(&key).and_then(|threads| threads.get(&tid));
        let original = match held {
            Some(held) if is_left(&held.given, &now, within.as_ref()) => held.original.clone(),
            // Somebody else chose a mask since: that is the wish from now on.
            Some(_) => now.clone(),
            // Its group alone keeps it there: that is nobody's wish.
            None if within.as_ref() == Some(&now) => self.all.clone(),
            None => {
                self.inherited(key, &now, seat.is_some() || of_unit.is_some()).unwrap_or_else(|| now.clone())
            }
        };
        // The owner may have tied it to other CPUs since the plan was made.
        let seat = seat.filter(|seat| !seat.intersection(&original).is_empty());
        let ordered = seat.or(of_unit);
        let (cpus, overridden) = mask(ordered.as_ref(), &original);
        if held.is_none_or(|held| held.original != original) {
            batch.entries.push(Entry::Affinity { process: key, tid, cpus: original.clone() });
        }
        if cpus != original
            && !self.confinement.given.contains_key(&cpus)
            && batch.given.insert(cpus.clone(), original.clone()).is_none()
        {
            batch.entries.push(Entry::Given { cpus: cpus.clone() });
        }
        let cpus = (!is_left(&cpus, &now, within.as_ref())).then_some(cpus);
        batch.changes.push(Change { key, tid, held: Held { original, given: now, overridden }, cpus });
    }

    /// The original of a thread that was born with a mask we gave: that of its process, its parent, its session. `None`
    /// if the mask is its owner's own choice, or if nothing tells (`guess` allows to take any that fits).
    fn inherited(&self, key: ProcessKey, now: &CpuSet, guess: bool) -> Option<CpuSet> {
        let any = self.confinement.given.get(now)?;
        if let Some(first) = self.confinement.first(key) {
            return Some(first.original.clone());
        }
        let member = self.roster.member(key.pid)?;
        if let Some(parent) = self.roster.member(member.parent) {
            return self.confinement.first(parent.key).map(|held| held.original.clone());
        }
        // Its parent is gone: it was reparented, unless it leads a session of its own, as services do.
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
    /// `sched_setaffinity(2)` takes a number. Its process is pinned, and [`Pinned::give`] looks the thread up around the call.
    fn give(&mut self, pins: &mut Pins, key: ProcessKey, tid: u32, cpus: &CpuSet) {
        // The kernel leaves out CPUs that a cpuset does not have.
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

    /// The kernel leaves out CPUs that the process's cpuset does not have. The mask it made of ours counts as given.
    fn note_difference(&mut self, key: ProcessKey, cpus: &CpuSet, now: &CpuSet) {
        if !self.confinement.given.contains_key(now) {
            if let Err(err) = self.record(&[Entry::Given { cpus: now.clone() }]) {
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
        let what = format!("confine to cpus {cpus}");
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
            what: format!("keep to its own choice of cpus, {original}"),
            source: io::Error::other(
                "its unit holds none of these CPUs, so the process runs where its unit does",
            ),
            remedy: format!("; let it choose among more: taskset -apc LIST {}", key.pid),
        });
    }

    /// Forgets threads that are where their owners want them, under no order.
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

    /// Looks whether somebody chose another mask for a thread since, and puts such processes under the order anew, and those
    /// that wait for it.
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
                    if !is_left(&held.given, &now, within.as_ref()) && changed.last() != Some(key) {
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

/// Records how to undo what is about to be done without control groups.
pub(super) fn record(journal: &mut Journal, entries: &[Entry]) -> Result<(), LiveError> {
    journal.record(entries).map_err(|source| LiveError::File {
        path: journal.path().to_owned(),
        what: "write".to_owned(),
        source,
        remedy: "; nothing is done that could not be undone: free some space there".to_owned(),
    })
}

/// A unit and those around it, from within.
pub(super) fn lineage(contract: &Contract, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
    std::iter::successors(Some(unit), |unit| contract.units.get(unit.index()).and_then(|unit| unit.parent))
}

/// [`Confining::compare_masks`], for whatever lifetime.
pub(super) fn compare_masks(confining: &mut Confining<'_>) {
    confining.compare_masks();
}

/// Whether a mask is what the kernel makes of the one that was given, in a group that is kept to some CPUs: it leaves out the
/// others, and if nothing is left, the mask.
fn is_left(given: &CpuSet, now: &CpuSet, within: Option<&CpuSet>) -> bool {
    let left = |within: &CpuSet| {
        let both = given.intersection(within);
        *now == both || (both.is_empty() && now == within)
    };
    given == now || within.is_some_and(left)
}

/// Where a thread is to run under an order, given where its owner wants it: where both allow it, else as ordered. The flag
/// tells that they contradict each other.
fn mask(ordered: Option<&CpuSet>, original: &CpuSet) -> (CpuSet, bool) {
    let Some(ordered) = ordered else { return (original.clone(), false) };
    let both = ordered.intersection(original);
    if both.is_empty() { (ordered.clone(), true) } else { (both, false) }
}

/// What to do about a process that the kernel does not let us touch.
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

    /// What the kernel makes of a mask in a group that is kept to some CPUs is no choice of anybody's.
    #[test]
    fn a_group_leaves_out_cpus() {
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
            assert_eq!(is_left(&set(given), &set(now), within.as_ref()), left, "{given} {now} {within:?}");
        }
    }

    /// A scheduler is told seats that changed since it has them, and one that is new all of them.
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
    fn an_order_holds_within_what_the_owner_wants_where_that_is_possible() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        for (ordered, original, cpus, overridden) in
            [("0-1", "0-3", "0-1", false), ("0-1", "1-2", "1", false), ("0-1", "3", "0-1", true)]
        {
            assert_eq!(mask(Some(&set(ordered)), &set(original)), (set(cpus), overridden));
        }
        assert_eq!(mask(None, &set("3")), (set("3"), false));
    }
}
