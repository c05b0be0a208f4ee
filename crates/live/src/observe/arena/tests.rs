#![allow(clippy::unwrap_used)]
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use commonhold_client::arena::{Page, Told};

use super::*;

const JOB: JobId = JobId(7);
const EVERY: u64 = 1_000_000;

/// An arena that this process joined, and access to its page.
struct Rig {
    arena: Arena,
    procfs: ProcFs,
    me: ProcessKey,
    file: OwnedFd,
    complaints: Vec<Complaint>,
}

impl Rig {
    fn new() -> Rig {
        let mut procfs = ProcFs::open("/proc".as_ref()).unwrap();
        let me = procfs.stat(std::process::id()).unwrap().unwrap().key;
        let mut arena = Arena::default();
        let file = arena.join(me, 1000, EVERY, &mut procfs).unwrap();
        Rig { arena, procfs, me, file, complaints: Vec::new() }
    }

    fn put(&self, at: usize, number: u64) {
        rustix::io::pwrite(&self.file, &number.to_ne_bytes(), at as u64).unwrap();
    }

    fn tell(&self, told: Told) {
        self.put(offset_of!(Page, at_ns), told.at_ns);
        self.put(offset_of!(Page, bytes), told.bytes);
        self.put(offset_of!(Page, unmeasured), u64::from(told.unmeasured));
    }

    fn tell_now(&self, bytes: u64) -> u64 {
        let at_ns = clock::now();
        self.tell(Told { at_ns, bytes, ..Told::default() });
        at_ns
    }

    /// Polls the page at this time; the job runs, or is stopped since `stopped_since`.
    fn poll_at(&mut self, now: Time, stopped_since: Option<Time>) -> Option<SharedUse> {
        let me = self.me;
        let job_of = |key: ProcessKey| (key == me).then_some((JOB, stopped_since));
        let Rig { arena, procfs, complaints, .. } = self;
        arena.poll(now, EVERY, &job_of, procfs, complaints).get(&JOB).copied()
    }

    fn poll(&mut self) -> Option<SharedUse> {
        self.poll_at(clock::now(), None)
    }

    /// Checks the complaints since the last call.
    #[track_caller]
    fn complained(&mut self, words: &[&str]) {
        let errors: Vec<String> = self.complaints.drain(..).map(|(_, _, error)| error.to_string()).collect();
        assert!(
            errors.len() == words.len()
                && errors.iter().zip(words).all(|(error, words)| error.contains(words)),
            "{errors:?}"
        );
    }
}

/// Uses CPU time.
fn work(ns: u64) {
    let begin = clock::process_cpu_ns(std::process::id()).unwrap();
    while clock::process_cpu_ns(std::process::id()).unwrap() < begin + ns {
        std::hint::black_box((0..1000).sum::<u64>());
    }
}

#[test]
fn reports_are_added_up() {
    let mut rig = Rig::new();
    assert_eq!(rig.poll(), None, "nothing yet");
    let at = rig.tell_now(1000);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 1000 }));
    let at = rig.tell_now(1500);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 1500 }));
    // After joining again, the process begins at 0, and its job's sum continues.
    rig.file = rig.arena.join(rig.me, 1000, EVERY, &mut rig.procfs).unwrap();
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 1500 }));
    let at = rig.tell_now(10);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 1510 }));
    // A process that leaves does not reduce its job's sum.
    rig.tell(Told { at_ns: LEFT, bytes: 20, ..Told::default() });
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 1520 }));
    assert!(rig.arena.members.is_empty());
    rig.complained(&[]);
}

#[test]
fn a_lie_is_cut_off_at_what_cpus_can_do_and_said() {
    let mut rig = Rig::new();
    rig.tell_now(1 << 60);
    let believed = rig.poll().unwrap().amount;
    assert!(believed < 1 << 50, "{believed}");
    rig.complained(&["cannot trust what it reports to have transferred over the memory bus"]);
    // Bytes above the cap are not added later.
    rig.tell_now((1 << 60) + 5);
    assert_eq!(rig.poll().unwrap().amount, believed + 5);
    rig.complained(&[]);
}

/// Bytes transferred over some time may be reported at once, if not too late.
#[test]
fn a_large_report_is_accepted_if_cpu_time_allows_it() {
    let mut rig = Rig::new();
    for _ in 0..10 {
        work(5_000_000);
        rig.tell_now(0);
        rig.poll();
    }
    let bytes = 45_000_000 * BYTES_PER_NS;
    rig.tell_now(bytes);
    assert_eq!(rig.poll().unwrap().amount, bytes);
    rig.complained(&[]);
    rig.tell_now(2 * bytes);
    assert!(rig.poll().unwrap().amount < 2 * bytes, "but once");
    rig.complained(&["its CPU time allows at most"]);
}

#[test]
fn rubbish_is_passed_over_and_said() {
    let mut rig = Rig::new();
    let at = rig.tell_now(1000);
    let before = rig.poll();
    for (told, what) in [
        (Told { at_ns: at, bytes: 999, ..Told::default() }, "fewer bytes"),
        (Told { at_ns: at - 1, bytes: 2000, ..Told::default() }, "an earlier time"),
        (Told { at_ns: u64::MAX - 1, bytes: 2000, ..Told::default() }, "a time that has not come"),
        (Told { at_ns: 1, bytes: u64::MAX, ..Told::default() }, "anything"),
    ] {
        rig.tell(told);
        assert_eq!(rig.poll(), before, "{what}");
        rig.complained(&["cannot use an inconsistent report"]);
    }
    // A writer that never releases the page's lock.
    rig.put(offset_of!(Page, sequence), 3);
    rig.tell_now(3000);
    assert_eq!(rig.poll(), before);
    rig.complained(&[]);
    rig.put(offset_of!(Page, sequence), 4);
    assert_eq!(rig.poll().unwrap().amount, 3000);
}

#[test]
fn a_silent_process_is_not_waited_for() {
    let mut rig = Rig::new();
    work(SILENT_CPU_NS + 10_000_000);
    assert_eq!(rig.poll(), None);
    rig.complained(&["without a report"]);
    assert_eq!(rig.poll(), None);
    rig.complained(&[]);
    let at = rig.tell_now(9);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 9 }), "it is never too late");
}

/// The duration of a stop is added to the time of the last report before it.
#[test]
fn reports_do_not_age_while_a_job_is_stopped() {
    let mut rig = Rig::new();
    let at = rig.tell_now(1000);
    let at_of = |found: Option<SharedUse>| found.unwrap().at;
    let shut = clock::now();
    assert_eq!(at_of(rig.poll_at(shut, None)), at);
    assert_eq!(at_of(rig.poll_at(shut + 500, Some(shut + 300))), at + 200);
    assert_eq!(at_of(rig.poll_at(shut + 1_500, Some(shut + 300))), at + 1_200);
    assert_eq!(at_of(rig.poll_at(shut + 2_500, None)), at + 1_200, "it runs");
    let told = rig.tell_now(2000);
    assert_eq!(at_of(rig.poll()), told);
}

#[test]
fn there_is_room_for_so_many_and_no_user_takes_all() {
    let mut rig = Rig::new();
    // Joining a thousand times gives a process one page.
    for _ in 0..=PAGES_OF_USER_MAX {
        rig.file = rig.arena.join(rig.me, 1000, EVERY, &mut rig.procfs).unwrap();
    }
    assert_eq!(rig.arena.members.len(), 1);
    // The room of processes that have ended is given to new ones.
    let ended = |n: u64| ProcessKey { pid: rig.me.pid, start: n };
    for n in 0..2 * PAGES_OF_USER_MAX as u64 {
        rig.arena.join(ended(n), 1000, EVERY, &mut rig.procfs).unwrap();
    }
    assert!(rig.arena.members.len() <= PAGES_OF_USER_MAX && rig.arena.members.contains_key(&rig.me));
    // Living processes keep theirs.
    let mut children: Vec<std::process::Child> = Vec::new();
    let mut refused = None;
    rig.arena.members.clear();
    for _ in 0..3 {
        children.push(std::process::Command::new("sleep").arg("100").spawn().unwrap());
        let key = rig.procfs.stat(children.last().unwrap().id()).unwrap().unwrap().key;
        refused = rig.arena.join_within(key, 1000, EVERY, &mut rig.procfs, (3, 2)).err();
    }
    let another = rig.arena.join_within(rig.me, 1001, EVERY, &mut rig.procfs, (3, 2)).is_ok();
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let Some(NotJoined::TooMany(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("2 processes of this user") && another, "{why}");
}

/// Its zero bytes say nothing about its transfers, and must not make it look harmless.
#[test]
fn a_process_that_cannot_measure_itself_is_unknown() {
    let mut rig = Rig::new();
    let unmeasured = |bytes| Told { at_ns: clock::now(), bytes, unmeasured: true };
    rig.tell(unmeasured(0));
    assert_eq!(rig.poll(), None);
    assert!(!rig.arena.has(rig.me), "the daemon may count it");
    assert!(!rig.arena.is_unmeasured(rig.me), "it may begin to count");
    work(SILENT_CPU_NS + 10_000_000);
    rig.tell(unmeasured(1 << 40));
    assert_eq!(rig.poll(), None, "whatever it writes beside");
    assert!(rig.arena.is_unmeasured(rig.me));
    rig.complained(&[]);
    // Once it measures, its earlier reports do not count as transfers.
    rig.arena.join(rig.me, 1000, EVERY, &mut rig.procfs).map(|file| rig.file = file).unwrap();
    rig.tell(unmeasured(0));
    assert_eq!(rig.poll(), None);
    let at = rig.tell_now(700);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 700 }));
    assert!(rig.arena.has(rig.me) && !rig.arena.is_unmeasured(rig.me));
    // When it can no longer measure itself, its sum stays as old as its last measurement.
    rig.tell(unmeasured(700));
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: 700 }));
    assert!(!rig.arena.has(rig.me));
    rig.complained(&[]);
}

/// A program that begins to measure reports at once what it transferred since its start.
#[test]
fn a_process_that_begins_to_measure_may_report_all_since_its_start() {
    let mut rig = Rig::new();
    work(20_000_000);
    rig.tell(Told { at_ns: clock::now(), bytes: 0, unmeasured: true });
    assert_eq!(rig.poll(), None);
    let started = 20_000_000 * BYTES_PER_NS;
    let at = rig.tell_now(started);
    assert_eq!(rig.poll(), Some(SharedUse { at, amount: started }));
    rig.complained(&[]);
}
