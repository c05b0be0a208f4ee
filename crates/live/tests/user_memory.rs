//! Memory under the `user` backend, on real processes: file pages can be paged out without swap.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::path::Path;

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::capability::paging_out;
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::Journal;
use commonhold_live::{Backend, LiveError};
use commonhold_machine::capability::State;
use commonhold_policy::plan::{MemoryOrder, Orders};
use commonhold_policy::{Plan, Reason, Snapshot, UnitMemory};
use support::skipped::skipped;
use support::{Job, eventually, example, start};

const MIB: u64 = 1 << 20;

/// A backend that holds some jobs, all in one unit.
struct Rig {
    backend: UserBackend,
    unit: UnitId,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new(jobs: &[&Job]) -> Rig {
        let mut contract = Contract::default();
        let unit = contract.add(None, "unit");
        let members = jobs.iter().map(|job| Member { kind: MemberKind::Pid(job.pid()), span: 0..0 });
        contract.units[unit.index()].members = members.collect();
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(directory.path()).unwrap();
        let roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let backend = UserBackend::new(contract, affinity::get(0).unwrap(), roster, journal);
        Rig { backend: backend.with_memory().unwrap(), unit, _directory: directory }
    }

    /// A turn without orders: the excess that it finds is paged out.
    fn turn(&mut self) -> Result<Snapshot, LiveError> {
        self.backend.settle(clock::now())?;
        let snapshot = self.backend.observe(clock::now(), &[])?;
        self.backend.apply(&Plan::default());
        Ok(snapshot)
    }

    /// The next scan at memory.
    fn seen(&mut self) -> UnitMemory {
        let mut seen = None;
        eventually("a look at memory", || {
            let snapshot = self.turn().unwrap();
            seen = snapshot.memory.map(|memory| memory.units[self.unit.index()]);
            seen.is_some()
        });
        seen.unwrap()
    }

    fn order(&mut self, action: MemoryOrder) {
        let orders = Orders::of_memory(Reason::HoldsChanged, [action]);
        let problems = self.backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn allow(&mut self, bytes: u64) {
        self.order(MemoryOrder::Allow { unit: self.unit, bytes: Some(bytes) });
    }

    fn problems(&mut self) -> Vec<String> {
        self.backend.take_problems().iter().map(ToString::to_string).collect()
    }
}

/// Whether the kernel pages out for the user that runs the tests; prints the reason if not.
#[track_caller]
fn pages_out() -> bool {
    let found = paging_out("/".as_ref());
    if found.state == State::No {
        skipped(&found.reason);
    }
    found.state != State::No
}

/// A file of 48 MiB on a disk, synced.
fn file() -> tempfile::NamedTempFile {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = tempfile::NamedTempFile::new_in(place).unwrap();
    std::fs::write(file.path(), vec![1; 48 << 20]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

/// A process's resident memory, as the kernel reports it.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

fn has(mib: &str, file: &tempfile::NamedTempFile) -> Job {
    start(example("has"), &[mib, file.path().to_str().unwrap()])
}

/// A process that has mapped a file of 48 MiB, and little else.
fn with_its_file() -> (tempfile::NamedTempFile, Job, Rig) {
    let file = file();
    let job = has("1", &file);
    let mut rig = Rig::new(&[&job]);
    eventually("it has its memory", || rig.seen().used > 48 * MIB);
    (file, job, rig)
}

/// 8 MiB of its own and 48 of a file, together some 57; 40 are allowed: the rest is paged out, and no more.
#[test]
fn the_excess_is_paged_out_and_no_more() {
    if !pages_out() {
        return;
    }
    let file = file();
    let job = has("8", &file);
    let mut rig = Rig::new(&[&job]);
    let mut before = UnitMemory::default();
    eventually("it has its memory, and no more comes", || {
        let earlier = std::mem::replace(&mut before, rig.seen()).used;
        before.used > 56 * MIB && before.used == earlier
    });
    assert!(before.anonymous > 8 * MIB && before.anonymous < 16 * MIB, "{before:?}");
    rig.allow(40 * MIB);
    eventually("it is within its bound", || rig.seen().used <= 41 * MIB);
    let after = rig.seen();
    // Pages that the kernel keeps in one folio are unmapped together, but some of them stay in its cache.
    assert!(after.used > 30 * MIB, "too much is gone: {after:?}");
    // The kernel sums resident pages per CPU, and may be some pages behind.
    assert!(after.taken <= before.used - 39 * MIB, "{after:?}");
    assert!(after.anonymous + MIB > before.anonymous && after.refused > 0, "{after:?}");
    // When it touches all of it again, the pages are read from the disk, and as many are taken.
    job.say("again\n");
    eventually("what was taken came back", || rig.seen().refaulted > 0);
    eventually("it is within its bound again", || rig.seen().used <= 41 * MIB);
    rig.order(MemoryOrder::Allow { unit: rig.unit, bytes: None });
    job.say("again\n");
    eventually("it has all of it", || rig.seen().used > 56 * MIB);
    assert!(rig.problems().is_empty());
}

/// A file that two processes map counts once, and its shared pages are left alone, which is reported once.
#[test]
fn shared_pages_count_once_and_stay() {
    if !pages_out() {
        return;
    }
    let file = file();
    let jobs = [has("1", &file), has("1", &file)];
    let mut rig = Rig::new(&[&jobs[0], &jobs[1]]);
    eventually("both have it", || jobs.iter().all(|job| resident(job.pid()) > 49 * MIB));
    eventually("it is counted once", || rig.seen().used < 70 * MIB);
    rig.allow(20 * MIB);
    let mut problems = Vec::new();
    eventually("it is reported", || {
        rig.seen();
        problems.extend(rig.problems());
        !problems.is_empty()
    });
    assert!(problems[0].starts_with("unit `unit` uses "), "{problems:?}");
    assert!(problems[0].contains("are beyond its bound"), "{problems:?}");
    for _ in 0..5 {
        rig.seen();
    }
    assert!(rig.problems().is_empty(), "once");
    assert!(rig.seen().used > 48 * MIB);
}

/// Reclaim takes the ordered amount, whatever the bound is.
#[test]
fn a_reclaim_order_is_carried_out_once() {
    if !pages_out() {
        return;
    }
    let (_file, _job, mut rig) = with_its_file();
    rig.order(MemoryOrder::Reclaim { unit: rig.unit, bytes: 10 * MIB, files: false });
    eventually("some of it is taken", || rig.seen().taken > 9 * MIB);
    for _ in 0..5 {
        rig.seen();
    }
    assert!(rig.seen().taken <= 10 * MIB, "{:?}", rig.seen());
}

/// Without the privilege, the kernel's refusal is reported once, and memory is not enforced from then on.
#[test]
fn a_refusal_is_reported_once_and_ends_enforcement() {
    if !pages_out() {
        return;
    }
    let (_file, job, mut rig) = with_its_file();
    // For this thread, and the threads it starts.
    give_up_sys_nice();
    rig.allow(20 * MIB);
    let mut problems = Vec::new();
    eventually("it is said", || {
        let _ = rig.turn();
        problems.extend(rig.problems());
        !problems.is_empty()
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("memory is not held from now on; run as root, or `setcap"), "{problems:?}");
    assert!(!rig.backend.means().memory.bounds);
    assert_eq!(rig.turn().unwrap().memory, None);
    assert!(support::state(job.pid()) != 'Z');
}

fn give_up_sys_nice() {
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_NICE: u32 = 23;
    let header = [VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the kernel reads a header of two numbers, and fills, then reads, two times three sets.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0][0] &= !(1 << SYS_NICE);
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()), 0);
    }
}

/// A sleeping process's numbers are remembered, but pages that others take from it are noticed when its turn
/// comes. Here the file that it maps is truncated.
#[test]
fn pages_that_others_take_from_a_sleeper_are_noticed() {
    let (file, job, mut rig) = with_its_file();
    file.as_file().set_len(0).unwrap();
    eventually("the kernel has unmapped it", || resident(job.pid()) < 16 * MIB);
    eventually("it is seen", || rig.seen().used < 16 * MIB);
}
