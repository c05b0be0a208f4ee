//! I/O priorities: give units their shares of the disks without control groups.
//!
//! Problem: without control groups, no weight can be set for a unit. But BFQ honours the I/O priority of the
//! requesting thread.
//!
//! Algorithm: a unit's share is the product of the weights ordered for the unit and the units around it. The
//! largest share gets level 0 of the best-effort class. Other shares get levels in proportion, since BFQ
//! gives level n the weight 8 - n. Every thread of every member gets its unit's level, and its children
//! inherit the level. A thread that joins in another way is found when its process is first seen, or once a
//! second.
//!
//! Properties: a thread has the weaker of its unit's level and the priority that its owner chose, the
//! thread's *original*. When the order or the daemon ends, the thread gets the original back. Every change is
//! in the journal before it is made. No thread is put into the idle class, since the smallest share is a
//! promise, too.
//!
//! Limits: there are eight levels, so no unit's weight is below an eighth of the largest. A priority belongs
//! to a thread, so a unit with more requesting processes gets more. Deferred writes are made by kernel
//! threads, at the priority of these threads.
//!
//! Source: block/bfq-iosched.c.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, UnitId};

use super::{UserBackend, lineage};
use crate::LiveError;
use crate::host::io_priority::{self, IoPriority, LEVELS};
use crate::observe::process::{Pins, ProcessKey};
use crate::undo::journal::Entry;

/// The sum of the weights of siblings, unless the policy has corrected some of these weights.
const WEIGHTS_SUM: u64 = 500;

/// A thread under an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrioritizedThread {
    /// The priority that the thread's owner chose.
    original: IoPriority,
    /// The priority that the order gives the thread.
    given: IoPriority,
}

/// The orders, and the threads under them.
#[derive(Debug, Default)]
pub(super) struct Priorities {
    weights: BTreeMap<UnitId, u32>,
    /// The levels of all units, which follow from the weights.
    levels: BTreeMap<UnitId, IoPriority>,
    prioritized: BTreeMap<ProcessKey, BTreeMap<u32, PrioritizedThread>>,
    /// Priorities that the journal lists as given by us.
    given: BTreeSet<IoPriority>,
    /// Processes that the kernel does not let us change.
    refused: BTreeSet<ProcessKey>,
}

impl Priorities {
    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.prioritized.remove(&key);
        self.refused.remove(&key);
    }

    /// Adopts another contract: forgets the weights of units that are not in it.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.weights.retain(|unit, _| contract.has(*unit));
    }

    /// Whether nothing is ordered, and no thread's original remains to be restored.
    fn is_idle(&self) -> bool {
        self.levels.is_empty() && self.prioritized.is_empty()
    }
}

/// The level whose weight in BFQ, 8 - level, is nearest to the share's fraction of the largest share,
/// times 8.
fn level(share: u64, largest: u64) -> IoPriority {
    let levels = u64::from(LEVELS);
    // Rounded to the nearest integer.
    let weight = (share * levels * 2 + largest).checked_div(largest * 2).unwrap_or(levels).clamp(1, levels);
    IoPriority::best_effort(u16::try_from(levels - weight).unwrap_or(0))
}

impl UserBackend {
    /// Records the weight ordered for a unit. [`UserBackend::follow_weights`] applies all weights.
    pub(super) fn weigh_disk(&mut self, unit: UnitId, weight: u32) {
        self.priorities.weights.insert(unit, weight);
    }

    /// Computes all units' levels from the weights, and gives them to all members' threads. If no disk's
    /// scheduler honours priorities any more, every thread gets its original back.
    pub(super) fn follow_weights(&mut self) {
        if !self.disks.honours_priorities() {
            self.priorities.weights.clear();
        }
        // In fixed point: 1 << 24 is the whole disk.
        let share = |unit: UnitId| {
            lineage(&self.contract, unit).try_fold(1 << 24, |share: u64, unit| {
                let weight = self.priorities.weights.get(&unit)?;
                Some(share.saturating_mul(u64::from(*weight)) / WEIGHTS_SUM)
            })
        };
        let shares: BTreeMap<UnitId, u64> =
            self.contract.held().filter_map(|unit| Some((unit, share(unit)?))).collect();
        let largest = shares.values().copied().max().unwrap_or(0);
        let levels: BTreeMap<UnitId, IoPriority> =
            shares.into_iter().map(|(unit, share)| (unit, level(share, largest))).collect();
        if levels != self.priorities.levels {
            self.priorities.levels = levels;
            self.prioritize_all();
        }
    }

    /// Gives the threads of all members the levels of their units.
    pub(super) fn prioritize_all(&mut self) {
        if !self.priorities.is_idle() {
            let keys: Vec<ProcessKey> = self.roster.members().map(|member| member.key).collect();
            self.prioritize(&keys);
        }
    }

    /// Gives the threads of these processes the levels of their units, or their originals back if nothing is
    /// ordered for them.
    pub(super) fn prioritize(&mut self, keys: &[ProcessKey]) {
        if self.priorities.is_idle() {
            return;
        }
        let (mut changes, mut entries, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        // Processes for the next scan to retry. The records of their threads must be kept until then.
        let mut failed = BTreeSet::new();
        for key in keys {
            if self.priorities.refused.contains(key) || !self.is_concerned(*key) {
                continue;
            }
            if let Err(error) = self.roster.procfs().threads(key.pid, &mut threads) {
                self.problems.add(error);
                failed.insert(*key);
                continue;
            }
            for tid in &threads {
                changes.extend(self.examine(*key, *tid, &mut entries).map(|change| (*key, *tid, change)));
            }
        }
        if let Err(error) = self.record(&entries) {
            self.problems.add(error);
            return;
        }
        for entry in entries {
            if let Entry::PriorityGiven { priority } = entry {
                self.priorities.given.insert(priority);
            }
        }
        let mut pins = Pins::default();
        for (key, tid, change) in changes {
            if !self.give_priority(&mut pins, key, tid, change) {
                failed.insert(key);
            }
        }
        self.forget_unordered(keys.iter().filter(|key| !failed.contains(*key)));
    }

    /// Whether a process is or was under an order.
    fn is_concerned(&self, key: ProcessKey) -> bool {
        self.level_of(key).is_some() || self.priorities.prioritized.contains_key(&key)
    }

    /// The level of a process's unit; `None` if nothing is ordered for the unit.
    fn level_of(&self, key: ProcessKey) -> Option<IoPriority> {
        let member = self.roster.member(key.pid).filter(|member| member.key == key)?;
        self.priorities.levels.get(&member.placement.unit).copied()
    }

    /// The record of a thread after the change that it needs; `None` if it needs no change. Adds the journal
    /// entries that undo the change to `entries`.
    fn examine(&self, key: ProcessKey, tid: u32, entries: &mut Vec<Entry>) -> Option<PrioritizedThread> {
        let present = io_priority::get(tid).ok()?;
        let known = self.priorities.prioritized.get(&key).and_then(|threads| threads.get(&tid));
        let original = match known {
            Some(known) if known.given == present => known.original,
            // The owner has chosen another priority since we gave ours.
            Some(_) => present,
            None => self.inherited_original(key, present).unwrap_or(present),
        };
        let given = self.level_of(key).map_or(original, |ordered| ordered.within(original));
        if known.is_none_or(|known| known.original != original) {
            entries.push(Entry::Priority { process: key, tid, priority: original });
        }
        let entry = Entry::PriorityGiven { priority: given };
        if given != original && !self.priorities.given.contains(&given) && !entries.contains(&entry) {
            entries.push(entry);
        }
        let change = PrioritizedThread { original, given };
        (known != Some(&change) || present != given).then_some(change)
    }

    /// The original priority of a new thread that inherited `present`, a priority that we gave. It is the
    /// original of a thread of the same process, or else of the parent process, to which we gave `present`.
    /// `None` if there is no such thread.
    fn inherited_original(&self, key: ProcessKey, present: IoPriority) -> Option<IoPriority> {
        let parent = || self.roster.member(self.roster.member(key.pid)?.parent);
        let prioritized = &self.priorities.prioritized;
        let creators = prioritized.get(&key).or_else(|| prioritized.get(&parent()?.key))?;
        creators.values().find(|creator| creator.given == present).map(|creator| creator.original)
    }

    /// Gives a thread its priority. Returns false if the next scan must retry.
    ///
    /// `ioprio_set(2)` takes a bare thread number, which may be reused. So the process is pinned, and
    /// [`Pinned::give`](crate::host::Pinned::give) checks the thread before and after the call.
    fn give_priority(
        &mut self,
        pins: &mut Pins,
        key: ProcessKey,
        tid: u32,
        change: PrioritizedThread,
    ) -> bool {
        let calls = (io_priority::get as fn(u32) -> _, io_priority::set_to as fn(u32, &_) -> _);
        let result = pins
            .pin(self.roster.procfs(), key)
            .and_then(|process| process.give(tid, &change.given, calls, |read| *read == change.given));
        match result {
            Ok(()) => {
                self.priorities.prioritized.entry(key).or_default().insert(tid, change);
                true
            }
            Err(source) if source.raw_os_error() == Some(libc::ESRCH) => true,
            Err(source) => {
                let is_permanent = source.raw_os_error() == Some(libc::EPERM);
                if is_permanent {
                    self.priorities.refused.insert(key);
                }
                let name = self.roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default();
                let what = format!("give it I/O priority {}", change.given);
                let remedy = super::super::confine::remedy(&source);
                let pid = key.pid;
                self.problems.once(key, "priority", || LiveError::Process {
                    pid,
                    name,
                    what,
                    source,
                    remedy,
                });
                is_permanent
            }
        }
    }

    /// Forgets the processes that are under no order any more. Their threads must have their originals back.
    fn forget_unordered<'k>(&mut self, keys: impl Iterator<Item = &'k ProcessKey>) {
        for key in keys {
            if self.level_of(*key).is_none() {
                self.priorities.prioritized.remove(key);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::host::{self, affinity, clock};
    use crate::observe::roster::Roster;
    use crate::undo::journal::Journal;
    use crate::undo::undo;
    use commonhold_contract::{Contract, Member, MemberKind};
    use commonhold_policy::plan::{DiskOrder, Orders};
    use commonhold_policy::{Plan, Reason};
    use proptest::prelude::*;
    use std::process::{Child, Command, Stdio};

    /// A shell that waits for a line, and then becomes a program with a child.
    fn job() -> Child {
        let script = "read line; sleep 60 & sleep 60";
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn backend(jobs: &[Child]) -> (UserBackend, tempfile::TempDir) {
        let mut contract = Contract::default();
        for (n, job) in jobs.iter().enumerate() {
            let unit = contract.add(None, &format!("unit{n}"));
            contract.units[unit.index()].members =
                vec![Member { kind: MemberKind::Pid(job.id()), span: 0..0 }];
        }
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(directory.path()).unwrap();
        let roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let mut backend = UserBackend::new(contract, affinity::get(0).unwrap(), roster, journal);
        backend.disks.pretend(true);
        backend.settle(clock::now()).unwrap();
        backend.observe(clock::now(), &[]).unwrap();
        (backend, directory)
    }

    fn weigh(backend: &mut UserBackend, weights: &[u32]) {
        let order = |(unit, weight): (UnitId, &u32)| DiskOrder::Weigh {
            unit,
            disk: "sda".to_owned(),
            weight: *weight,
        };
        let units: Vec<UnitId> = backend.contract.held().collect();
        let orders = Orders::of_disks(Reason::HoldsChanged, units.into_iter().zip(weights).map(order));
        let problems = backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn children(pid: u32) -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    fn end(jobs: Vec<Child>) {
        for mut job in jobs {
            let all = children(job.id()).into_iter().chain([job.id()]);
            for pid in all {
                // SAFETY: a signal to a process that this test started.
                unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
            }
            job.wait().unwrap();
        }
    }

    /// The next scan retries a call that fails temporarily, both for giving and for reverting a priority.
    #[test]
    fn a_priority_that_was_refused_is_given_by_the_next_scan() {
        let jobs = vec![job(), job()];
        let priority_of = |pid: u32| io_priority::get(pid).unwrap();
        let (mut backend, _directory) = backend(&jobs);
        let refuse = |pid: u32| {
            host::tamper(move |access| {
                let refused = access.kind == host::Kind::SetIoPriority && access.pid == pid;
                if refused { host::Answer::Refuse(libc::ENOMEM) } else { host::Answer::GoOn }
            })
        };
        let hook = refuse(jobs[0].id());
        let order = |unit: UnitId, weight: u32| DiskOrder::Weigh { unit, disk: "sda".to_owned(), weight };
        let units: Vec<UnitId> = backend.contract.held().collect();
        let orders = Orders::of_disks(Reason::HoldsChanged, vec![order(units[0], 125), order(units[1], 375)]);
        let problems = backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(
            problems.len() == 1 && problems[0].to_string().contains("cannot give it I/O priority"),
            "{problems:?}"
        );
        assert_eq!(
            [priority_of(jobs[0].id()), priority_of(jobs[1].id())],
            [IoPriority::UNSET, IoPriority::best_effort(0)]
        );
        drop(hook);
        backend.prioritize_all();
        assert_eq!(priority_of(jobs[0].id()), IoPriority::best_effort(5));
        backend.disks.pretend(false);
        let hook = refuse(jobs[0].id());
        weigh(&mut backend, &[100, 100]);
        assert_eq!(
            [priority_of(jobs[0].id()), priority_of(jobs[1].id())],
            [IoPriority::best_effort(5), IoPriority::UNSET]
        );
        drop(hook);
        backend.prioritize_all();
        assert_eq!(priority_of(jobs[0].id()), IoPriority::UNSET);
        end(jobs);
    }

    /// A process whose threads cannot be listed does not delay the others, and gets its own priority at the
    /// next scan.
    #[test]
    fn a_process_whose_threads_cannot_be_listed_does_not_delay_others() {
        let jobs = vec![job(), job()];
        let priority_of = |pid: u32| io_priority::get(pid).unwrap();
        let (mut backend, _directory) = backend(&jobs);
        let units: Vec<UnitId> = backend.contract.held().collect();
        let blind = |pid: u32| {
            let file = format!("{pid}/task");
            host::tamper(move |access| match access.is(host::Kind::List, &file) {
                true => host::Answer::Refuse(libc::EIO),
                false => host::Answer::GoOn,
            })
        };
        let first = jobs.iter().map(Child::id).min().unwrap();
        let last = jobs.iter().map(Child::id).max().unwrap();
        let hook = blind(first);
        let order = |unit: UnitId| DiskOrder::Weigh { unit, disk: "sda".to_owned(), weight: 250 };
        let orders = Orders::of_disks(Reason::HoldsChanged, units.iter().map(|unit| order(*unit)));
        let problems = backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(problems.len() == 1 && problems[0].to_string().contains("cannot list"), "{problems:?}");
        assert_eq!([priority_of(first), priority_of(last)], [IoPriority::UNSET, IoPriority::best_effort(0)]);
        drop(hook);
        backend.prioritize_all();
        assert_eq!(priority_of(first), IoPriority::best_effort(0));
        // If reverting fails for a process, all its threads stay recorded.
        let hook = blind(first);
        backend.disks.pretend(false);
        backend.follow_weights();
        assert_eq!([priority_of(first), priority_of(last)], [IoPriority::best_effort(0), IoPriority::UNSET]);
        drop(hook);
        backend.prioritize_all();
        assert_eq!(priority_of(first), IoPriority::UNSET);
        end(jobs);
    }

    /// Three to one, also for processes forked meanwhile. When BFQ no longer schedules the disk, and when the
    /// daemon is killed, everything is restored, for forked processes as well.
    #[test]
    fn members_get_and_lose_the_priority_of_their_share() {
        let jobs = vec![job(), job()];
        let priority_of = |pid: u32| io_priority::get(pid).unwrap();
        io_priority::set(jobs[1].id(), IoPriority::best_effort(7)).unwrap();
        let (mut backend, directory) = backend(&jobs);
        weigh(&mut backend, &[125, 375]);
        assert_eq!(priority_of(jobs[0].id()), IoPriority::best_effort(5));
        assert_eq!(priority_of(jobs[1].id()), IoPriority::best_effort(7), "its owner's own choice is weaker");
        backend.disks.pretend(false);
        weigh(&mut backend, &[100, 100]);
        assert_eq!(priority_of(jobs[0].id()), IoPriority::UNSET);
        backend.disks.pretend(true);
        weigh(&mut backend, &[125, 375]);
        std::io::Write::write_all(&mut jobs[0].stdin.as_ref().unwrap(), b"go\n").unwrap();
        while children(jobs[0].id()).len() < 2 {
            std::thread::yield_now();
        }
        let forked = children(jobs[0].id());
        assert_eq!(
            forked.iter().map(|pid| priority_of(*pid)).max(),
            Some(IoPriority::best_effort(5)),
            "inherited"
        );
        // Killed before it saw those.
        drop(backend);
        let undone = undo(&Journal::read(&directory.path().join("journal")).unwrap(), "/proc".as_ref());
        assert!(undone.problems.is_empty() && undone.priorities >= 3, "{undone:?}");
        assert!(forked.iter().chain([&jobs[0].id()]).all(|pid| priority_of(*pid) == IoPriority::UNSET));
        assert_eq!(priority_of(jobs[1].id()), IoPriority::best_effort(7));
        end(jobs);
    }

    #[test]
    fn levels_count_in_proportion() {
        let levels = |most: u64| move |share: u64| level(share, most);
        assert_eq!([800, 700, 400, 100, 20].map(levels(800)), [0, 1, 4, 7, 7].map(IoPriority::best_effort));
        assert_eq!(level(0, 0), IoPriority::best_effort(0), "without shares all are alike");
    }

    proptest! {
        /// A larger share never has a weaker level, and the largest has the first level.
        #[test]
        fn levels_follow_shares(a in 1u64..1 << 30, b in 1u64..1 << 30) {
            let most = a.max(b);
            prop_assert!((a >= b) == (level(a, most) <= level(b, most)) || level(a, most) == level(b, most));
            prop_assert_eq!(level(most, most), IoPriority::best_effort(0));
        }
    }
}
