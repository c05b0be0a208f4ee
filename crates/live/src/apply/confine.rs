//! Confinement: keeps threads on the CPUs ordered for them, by their affinities.
//!
//! A user or program may restrict its own threads to fewer CPUs; that mask is the thread's *original*. A
//! thread gets the CPUs that both the order and the original allow. If there is no such CPU, the order wins,
//! and the thread is *overridden*.
//!
//! Without control groups, every thread of every member is confined to the CPUs that its unit holds. With
//! control groups, a CPU set confines the unit, and only threads of jobs, which have a seat in a pool, are
//! confined here. The `kernel` backend's scheduler treats seats as preferences: then seats are only recorded
//! here, and no affinity changes.
//!
//! Where units take turns, their CPUs change ten times a second, and most of their processes sleep. So a
//! sleeper that was confined once keeps the mask of an earlier order until it has run, or until [`CATCH_UP`]
//! reaches it. The CPU time that it uses under the earlier mask is taken from its unit's
//! [allowance](super::allowance).

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

/// The maximum number of passes over new threads. Few are needed: a confined thread creates confined threads,
/// so a pass finds only threads that were created by threads unknown to the pass before.
const ROUNDS_MAX: usize = 20;

/// The number of sleepers that get the mask of the current order with each comparison of masks, once a
/// second.
const CATCH_UP: usize = 100;

/// In units with fewer processes than this, sleepers are confined at once, because that is cheap.
const SPARED_FROM: usize = 100;

/// The interval of checks for sleepers that have run. The roster reads their CPU clocks no more often than
/// this.
const CATCH_UP_NS: Time = 100 * MS;

/// A thread under an order.
#[derive(Debug, Clone)]
struct ConfinedThread {
    /// The mask that the thread's owner wants.
    original: CpuSet,
    /// The mask that we gave the thread, as read back from the kernel; if giving failed, the mask that the
    /// thread had before.
    given: CpuSet,
    /// Whether the order and the original have no CPU in common, so that the order replaces the owner's wish.
    overridden: bool,
}

/// Errors that concern single processes, and did not stop work on the others.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) unread: Vec<LiveError>,
    pub(super) reported: BTreeSet<(ProcessKey, &'static str)>,
}

impl Problems {
    pub(super) fn add(&mut self, err: LiveError) {
        self.unread.push(err);
    }

    /// Adds an error for a process, unless an error of the same kind was already added for that process.
    pub(super) fn once(&mut self, key: ProcessKey, kind: &'static str, err: impl FnOnce() -> LiveError) {
        if self.reported.insert((key, kind)) {
            self.unread.push(err());
        }
    }
}

/// The CPUs to which a unit is restricted; `None`: it is not restricted.
pub(super) type CpusOfUnit<'a> = &'a dyn Fn(UnitId) -> Option<CpuSet>;

/// A [`Confinement`] with the parts of a backend that it uses for the duration of one operation.
pub(super) struct Confining<'a> {
    pub(super) confinement: &'a mut Confinement,
    pub(super) roster: &'a mut Roster,
    pub(super) journal: &'a mut Journal,
    pub(super) problems: &'a mut Problems,
    /// The CPUs that all threads of a unit must be confined to, because no control group confines the unit.
    pub(super) ordered: CpusOfUnit<'a>,
    /// The CPU set of a unit's control group: the kernel removes other CPUs from the masks of threads there.
    pub(super) within: CpusOfUnit<'a>,
    /// All CPUs that this program may use.
    pub(super) all: &'a CpuSet,
}

/// The threads under orders, and the masks they were given.
#[derive(Debug, Default)]
pub(super) struct Confinement {
    /// The seat of each seated thread, by process and thread, as the CPUs of its pool.
    seats: BTreeMap<ProcessKey, BTreeMap<u32, CpuSet>>,
    /// Whether a scheduler places threads in their seats, so that affinities need not.
    leaves_seats: bool,
    /// Threads whose seats changed and are yet to be reported to the scheduler, each with the first CPU of
    /// its seat.
    changed_seats: Vec<(u32, Option<u32>)>,
    /// The threads that are under an order, by process and thread.
    confined: BTreeMap<ProcessKey, BTreeMap<u32, ConfinedThread>>,
    /// Every mask given so far, with the last original that it replaced. A new thread may inherit such a
    /// mask, which tells it from a mask that the thread's owner chose.
    given: BTreeMap<CpuSet, CpuSet>,
    /// Processes that the kernel does not let us change.
    refused: BTreeSet<ProcessKey>,
    /// Processes to confine again, because their threads could not be examined, or because a change could not
    /// be recorded or failed.
    waiting: BTreeSet<ProcessKey>,
    /// The CPU clock of each process when it was last confined: it has run since if its clock differs.
    clocks: BTreeMap<ProcessKey, u64>,
    /// Sleepers whose threads still have the mask of an earlier order.
    lagging: BTreeSet<ProcessKey>,
    caught_up_at: Time,
    allowance: Allowance,
}

/// The change that an examined thread needs.
struct Change {
    key: ProcessKey,
    tid: u32,
    /// The record of the thread before its mask is changed.
    thread: ConfinedThread,
    /// The mask to give; `None` if the thread already has the right mask.
    new_mask: Option<CpuSet>,
}

/// The result of examining threads. Its entries must be in the journal before its changes are made.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    /// Masks that no thread was given before, each with an original that it replaces.
    new_given: BTreeMap<CpuSet, CpuSet>,
    changes: Vec<Change>,
    /// Processes with a thread that could not be examined.
    unexamined: Vec<ProcessKey>,
}

impl Confinement {
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.confined.remove(&key);
        self.seats.remove(&key);
        self.refused.remove(&key);
        self.waiting.remove(&key);
        self.clocks.remove(&key);
        self.lagging.remove(&key);
    }

    /// Seats a thread of a job on these CPUs; `None` unseats the thread. The affinity changes when the
    /// process is next confined.
    pub(super) fn seat(&mut self, key: ProcessKey, tid: u32, cpus: Option<CpuSet>) {
        if self.leaves_seats {
            self.changed_seats.push((tid, cpus.as_ref().and_then(first_cpu)));
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

    /// Leaves seats to a scheduler, or takes them back. Returns whether processes with seats must be confined
    /// again.
    pub(super) fn leave_seats(&mut self, leave: bool) -> bool {
        let affects_seats = self.leaves_seats != leave && !self.seats.is_empty();
        self.leaves_seats = leave;
        affects_seats
    }

    /// Processes with a seated thread.
    pub(super) fn seated(&self) -> Vec<ProcessKey> {
        self.seats.keys().copied().collect()
    }

    /// All seated threads, each with the first CPU of its seat.
    pub(super) fn all_seats(&self) -> Vec<(u32, Option<u32>)> {
        self.seats.values().flatten().map(|(tid, cpus)| (*tid, first_cpu(cpus))).collect()
    }

    /// Threads whose seats changed since the last call while seats were left to a scheduler, each with the
    /// first CPU of its seat; `None` if the thread was unseated.
    pub(super) fn changed_seats(&mut self) -> Vec<(u32, Option<u32>)> {
        std::mem::take(&mut self.changed_seats)
    }

    /// The CPUs to which a thread's owner restricts the thread. `None` if the owner allows every CPU in
    /// `all`, if only the CPU set `within` of the thread's control group restricts the thread, or if the
    /// owner's wish is unknown.
    pub(super) fn tied(
        &self,
        key: ProcessKey,
        tid: u32,
        within: Option<&CpuSet>,
        all: &CpuSet,
    ) -> Option<CpuSet> {
        let confined = self.confined.get(&key).and_then(|threads| threads.get(&tid));
        let wish = match confined {
            Some(thread) => thread.original.clone(),
            // A new thread may have inherited a mask that we gave to another thread. Such a mask is not the
            // owner's wish.
            None => affinity::get(tid)
                .ok()
                .filter(|mask| !self.given.contains_key(mask) && within != Some(mask))?,
        };
        (!all.difference(&wish).is_empty()).then_some(wish)
    }

    /// The number of threads whose owners' wishes the orders in force override.
    pub(super) fn overridden(&self) -> usize {
        self.confined.values().flat_map(BTreeMap::values).filter(|thread| thread.overridden).count()
    }

    /// A confined thread of a process: the main thread if possible.
    fn main_thread(&self, key: ProcessKey) -> Option<&ConfinedThread> {
        let threads = self.confined.get(&key)?;
        threads.get(&key.pid).or_else(|| threads.values().next())
    }
}

impl Confining<'_> {
    /// Confines the processes `keys` of a unit whose order changed. In a large unit, processes that have
    /// slept since they were last confined keep their masks until [`Confining::catch_up`].
    pub(super) fn confine_unit(&mut self, keys: &[ProcessKey], now: Time) {
        let mut confined_now = Vec::new();
        for key in keys {
            if keys.len() >= SPARED_FROM && self.may_lag(*key, now) {
                self.confinement.lagging.insert(*key);
            } else {
                confined_now.push(*key);
            }
        }
        self.confine(&confined_now);
    }

    /// Whether a process may keep the mask of an earlier order: it has not run since it was confined, and its
    /// unit's allowance is not overdrawn.
    fn may_lag(&mut self, key: ProcessKey, now: Time) -> bool {
        let clock = self.roster.cpu_ns(key.pid);
        let has_slept = clock.is_some()
            && self.confinement.clocks.get(&key).copied() == clock
            && self.confinement.confined.contains_key(&key)
            && !self.confinement.seats.contains_key(&key)
            && !self.confinement.waiting.contains(&key);
        let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
        has_slept && unit.is_some_and(|unit| !self.confinement.allowance.is_overdrawn(unit, now))
    }

    /// Confines sleepers that have run under the mask of an earlier order.
    pub(super) fn catch_up(&mut self, now: Time) {
        if now < self.confinement.caught_up_at.saturating_add(CATCH_UP_NS) {
            return;
        }
        self.confinement.caught_up_at = now;
        let mut woken = Vec::new();
        for key in &self.confinement.lagging {
            let (before, clock) = (self.confinement.clocks.get(key), self.roster.cpu_ns(key.pid));
            let used_ns = before.zip(clock).map_or(0, |(before, clock)| clock.saturating_sub(*before));
            if used_ns > 0 {
                woken.push((*key, used_ns));
            }
        }
        for (key, used_ns) in &woken {
            if let Some(member) = self.roster.member(key.pid) {
                self.confinement.allowance.take(member.placement.unit, *used_ns, now);
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
        let mut examined = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let births = self.roster.procfs().births().ok().flatten();
            if keys.is_empty() || !self.confine_round(&mut keys, &mut examined) {
                break;
            }
            // No process or thread was born on the machine since before the listing, so the listing was
            // complete.
            if births.is_some() && self.roster.procfs().births().ok().flatten() == births {
                break;
            }
        }
        self.forget_released(&keys);
    }

    /// Whether a process must be examined: it is or was under an order, or inherited a mask that we gave.
    fn is_concerned(&self, key: ProcessKey) -> bool {
        if self.confinement.refused.contains(&key) {
            return false;
        }
        let member = self.roster.member(key.pid).filter(|member| member.key == key);
        let seated = !self.confinement.leaves_seats && self.confinement.seats.contains_key(&key);
        let ordered = seated || member.is_some_and(|member| (self.ordered)(member.placement.unit).is_some());
        let inherited_mask = || {
            let given = &self.confinement.given;
            !given.is_empty() && affinity::get(key.pid).is_ok_and(|mask| given.contains_key(&mask))
        };
        ordered || self.confinement.confined.contains_key(&key) || inherited_mask()
    }

    /// Confines the threads of these processes that are not in `examined` yet. Returns whether another round
    /// is needed, because there were such threads. A process whose threads cannot be listed is removed from
    /// `keys`, and waits.
    fn confine_round(&mut self, keys: &mut Vec<ProcessKey>, examined: &mut BTreeSet<u32>) -> bool {
        let (mut batch, mut threads) = (Batch::default(), Vec::new());
        let examined_before = examined.len();
        keys.retain(|key| {
            let listed = self.roster.procfs().threads(key.pid, &mut threads);
            let is_listed = listed.is_ok();
            if let Err(err) = listed {
                self.problems.add(err);
                self.confinement.waiting.insert(*key);
                threads.clear();
            }
            for tid in threads.iter().filter(|tid| examined.insert(**tid)) {
                self.examine(*key, *tid, &mut batch);
            }
            is_listed
        });
        if let Err(err) = self.record(&batch.entries) {
            self.problems.add(err);
            self.confinement.waiting.extend(keys.iter());
            return false;
        }
        self.confinement.waiting.extend(batch.unexamined);
        self.confinement.given.append(&mut batch.new_given);
        let mut pins = Pins::default();
        for change in batch.changes {
            self.make_change(change, &mut pins);
        }
        examined.len() > examined_before
    }

    /// Adds the change that a thread needs to the batch, with the journal entries that undo it.
    fn examine(&self, key: ProcessKey, tid: u32, batch: &mut Batch) {
        let mask = match affinity::get(tid) {
            Ok(mask) => mask,
            Err(error) => {
                batch.unexamined.extend((error.raw_os_error() != Some(libc::ESRCH)).then_some(key));
                return;
            }
        };
        let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
        let seats = self.confinement.seats.get(&key).filter(|_| !self.confinement.leaves_seats);
        let seat = seats.and_then(|threads| threads.get(&tid)).cloned();
        let ordered_for_unit = unit.and_then(|unit| (self.ordered)(unit));
        let within = unit.and_then(|unit| (self.within)(unit));
        let known = self.confinement.confined.get(&key).and_then(|threads| threads.get(&tid));
        // Which mask does the thread's owner want?
        let original = match known {
            Some(known) if is_effect_of(&known.given, &mask, within.as_ref()) => known.original.clone(),
            // The owner has chosen another mask since we gave ours: from now on, that mask is the original.
            Some(_) => mask.clone(),
            // Only the control group restricts the thread: the owner allows all CPUs.
            None if within.as_ref() == Some(&mask) => self.all.clone(),
            None => self
                .inherited_original(key, &mask, seat.is_some() || ordered_for_unit.is_some())
                .unwrap_or_else(|| mask.clone()),
        };
        // The owner may have restricted the thread to CPUs outside of the seat after the plan was made.
        let seat = seat.filter(|seat| !seat.intersection(&original).is_empty());
        let ordered = seat.or(ordered_for_unit);
        let (target, overridden) = target_mask(ordered.as_ref(), &original);
        if known.is_none_or(|known| known.original != original) {
            batch.entries.push(Entry::Affinity { process: key, tid, cpus: original.clone() });
        }
        if target != original
            && !self.confinement.given.contains_key(&target)
            && batch.new_given.insert(target.clone(), original.clone()).is_none()
        {
            batch.entries.push(Entry::AffinityGiven { cpus: target.clone() });
        }
        let new_mask = (!is_effect_of(&target, &mask, within.as_ref())).then_some(target);
        batch.changes.push(Change {
            key,
            tid,
            thread: ConfinedThread { original, given: mask, overridden },
            new_mask,
        });
    }

    /// The original of a new thread that inherited a mask which we gave to another thread: the original of
    /// the thread's process, or else of its parent, or else, if its parent is no member, of its session. As a
    /// last resort, if `may_guess`, the last original that the mask replaced. `None` if the thread's owner
    /// chose the mask, or if no original is known.
    fn inherited_original(&self, key: ProcessKey, mask: &CpuSet, may_guess: bool) -> Option<CpuSet> {
        let last_replaced = self.confinement.given.get(mask)?;
        if let Some(thread) = self.confinement.main_thread(key) {
            return Some(thread.original.clone());
        }
        let member = self.roster.member(key.pid)?;
        if let Some(parent) = self.roster.member(member.parent) {
            return self.confinement.main_thread(parent.key).map(|thread| thread.original.clone());
        }
        // The parent is no member. Presumably, the process's first parent was a member, and has ended. That
        // is not presumed of a process that leads a session: it may be a service, whose parent is the service
        // manager.
        let leads_session = member.session == key.pid;
        let in_session = self.roster.members().find(|other| {
            other.session == member.session && self.confinement.confined.contains_key(&other.key)
        });
        let session_original = in_session
            .and_then(|other| self.confinement.main_thread(other.key))
            .map(|thread| &thread.original);
        session_original.or((may_guess && !leads_session).then_some(last_replaced)).cloned()
    }

    fn record(&mut self, entries: &[Entry]) -> Result<(), LiveError> {
        record(self.journal, entries)
    }

    fn make_change(&mut self, change: Change, pins: &mut Pins) {
        let Change { key, tid, thread, new_mask } = change;
        if thread.overridden {
            self.report_overridden(key, &thread.original);
        }
        self.confinement.confined.entry(key).or_default().insert(tid, thread);
        if let Some(mask) = new_mask {
            self.set_mask(pins, key, tid, &mask);
        }
    }

    /// Sets a thread's affinity mask, and records the mask that the kernel made of it.
    ///
    /// `sched_setaffinity(2)` takes a bare thread number, which may be reused. So the process is pinned, and
    /// [`Pinned::give`] checks the thread before and after the call.
    fn set_mask(&mut self, pins: &mut Pins, key: ProcessKey, tid: u32, cpus: &CpuSet) {
        // The kernel removes CPUs that a cpuset does not have, so a subset of our mask is our doing, too.
        let is_ours = |mask: &CpuSet| mask.difference(cpus).is_empty();
        let result = pins
            .pin(self.roster.procfs(), key)
            .and_then(|process| process.give(tid, cpus, (affinity::get, affinity::set), is_ours));
        match result {
            Ok(()) => {
                let read_back = affinity::get(tid).unwrap_or_else(|_| cpus.clone());
                if read_back != *cpus {
                    self.note_reduced_mask(key, cpus, &read_back);
                }
                let threads = self.confinement.confined.entry(key).or_default();
                threads.entry(tid).and_modify(|thread| thread.given = read_back);
            }
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => {
                self.confinement.confined.entry(key).or_default().remove(&tid);
            }
            Err(err) => self.note_refusal(key, cpus, err),
        }
    }

    /// Notes that the kernel removed CPUs outside of the process's cpuset from a mask that we gave. The
    /// reduced mask counts as given by us, too, because threads may inherit it.
    fn note_reduced_mask(&mut self, key: ProcessKey, cpus: &CpuSet, reduced: &CpuSet) {
        if !self.confinement.given.contains_key(reduced) {
            if let Err(err) = self.record(&[Entry::AffinityGiven { cpus: reduced.clone() }]) {
                self.problems.add(err);
            }
            let original = self.confinement.given.get(cpus).cloned().unwrap_or_else(|| cpus.clone());
            self.confinement.given.insert(reduced.clone(), original);
        }
        self.problems.once(key, "cpuset", || LiveError::NotInForce {
            path: PathBuf::from(format!("/proc/{}/status", key.pid)),
            wrote: cpus.to_string(),
            read: reduced.to_string(),
            remedy: "; a control group confines the process to fewer CPUs: see /proc/PID/cpuset".to_owned(),
        });
    }

    /// Notes and reports that the kernel refused a mask. Without permission (`EPERM`), the process is not
    /// tried again.
    fn note_refusal(&mut self, key: ProcessKey, cpus: &CpuSet, source: io::Error) {
        let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
        if source.raw_os_error() == Some(libc::EPERM) {
            self.confinement.refused.insert(key);
            self.confinement.confined.remove(&key);
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

    /// Forgets the threads that are under no order any more and have their original masks back.
    fn forget_released(&mut self, keys: &[ProcessKey]) {
        for key in keys {
            let member = self.roster.member(key.pid);
            if member.is_none_or(|member| (self.ordered)(member.placement.unit).is_none())
                && !self.confinement.waiting.contains(key)
                && let Some(threads) = self.confinement.confined.get_mut(key)
            {
                threads.retain(|_, thread| thread.given != thread.original);
                if threads.is_empty() {
                    self.confinement.confined.remove(key);
                }
            }
        }
    }

    /// Compares each confined thread's mask with the mask that we gave. Confines again the processes whose
    /// owners have chosen other masks since, the processes that wait for another attempt, and some sleepers.
    pub(super) fn compare_masks(&mut self) {
        let mut to_confine: Vec<ProcessKey> =
            std::mem::take(&mut self.confinement.waiting).into_iter().collect();
        to_confine.extend(self.confinement.lagging.iter().take(CATCH_UP));
        for (key, threads) in &mut self.confinement.confined {
            let unit = self.roster.member(key.pid).map(|member| member.placement.unit);
            let within = unit.and_then(|unit| (self.within)(unit));
            // Threads that have ended are removed.
            threads.retain(|tid, thread| match affinity::get(*tid) {
                Ok(mask) => {
                    let is_changed = !is_effect_of(&thread.given, &mask, within.as_ref());
                    if is_changed && to_confine.last() != Some(key) {
                        to_confine.push(*key);
                    }
                    true
                }
                Err(error) => error.raw_os_error() != Some(libc::ESRCH),
            });
        }
        self.confine(&to_confine);
    }
}

fn first_cpu(cpus: &CpuSet) -> Option<u32> {
    cpus.iter().next()
}

/// Writes entries to the journal, before the changes that they undo are made.
pub(super) fn record(journal: &mut Journal, entries: &[Entry]) -> Result<(), LiveError> {
    journal.record(entries).map_err(|source| LiveError::File {
        path: journal.path().to_owned(),
        what: "write".to_owned(),
        source,
        remedy: "; a change that could not be undone is not made: free some space there".to_owned(),
    })
}

/// A unit and the units around it, innermost first.
pub(super) fn lineage(contract: &Contract, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
    std::iter::successors(Some(unit), |unit| contract.units.get(unit.index()).and_then(|unit| unit.parent))
}

/// [`Confining::compare_masks`] as a plain function, which can be passed where a closure over any lifetime is
/// expected.
pub(super) fn compare_masks(confining: &mut Confining<'_>) {
    confining.compare_masks();
}

/// Whether the mask `read`, which a thread has, results from giving the thread the mask `given`. If the
/// thread's control group has the CPU set `within`, the kernel removes other CPUs from the mask; if no CPU
/// would remain, it uses the whole CPU set.
fn is_effect_of(given: &CpuSet, read: &CpuSet, within: Option<&CpuSet>) -> bool {
    let is_reduced = |within: &CpuSet| {
        let both = given.intersection(within);
        *read == both || (both.is_empty() && read == within)
    };
    given == read || within.is_some_and(is_reduced)
}

/// The mask for a thread under an order: the CPUs that both the order and the thread's owner allow; if there
/// are no such CPUs, the order's. The flag is true in the latter case: the order overrides the owner.
fn target_mask(ordered: Option<&CpuSet>, original: &CpuSet) -> (CpuSet, bool) {
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

    /// A mask that the kernel reduced to a group's CPU set is not the owner's choice.
    #[test]
    fn a_group_removes_cpus_from_a_mask() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        for (given, read, within, is_effect) in [
            ("0-1", "0-1", None, true),
            ("0-1", "1", None, false),
            ("0-1", "1", Some("1-3"), true),
            ("0-1", "2-3", Some("2-3"), true),
            ("0-1", "2", Some("2-3"), false),
            ("0-1", "0", Some("0-3"), false),
        ] {
            let within = within.map(set);
            assert_eq!(
                is_effect_of(&set(given), &set(read), within.as_ref()),
                is_effect,
                "{given} {read} {within:?}"
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
            assert_eq!(target_mask(Some(&set(ordered)), &set(original)), (set(cpus), overridden));
        }
        assert_eq!(target_mask(None, &set("3")), (set("3"), false));
    }
}
