//! systemd scopes for processes that share a control group with other units.
//!
//! Problem: a process that entered by `exec` is in its user's session scope, together with the shell. For the
//! contract to hold its unit, the process must leave that group. But if it were moved without systemd, it
//! would be in a group that systemd does not know.
//!
//! Algorithm: the roster has the processes that are due ([`Roster::due_for_scopes`]). systemd is asked for a
//! scope in the unit's slice. Each process that entered by `exec` gets a scope of its own. The other due
//! processes of a unit get one scope together, and systemd is asked for such scopes at most twice a second.
//! The scope and each process's origin are recorded in the journal before the request. If systemd refuses
//! twice, or does not answer, the processes are moved into the unit's own control group instead.
//!
//! Properties: except during a call to systemd, a process is in no scope of another unit. systemd removes
//! empty scopes, which are then removed from the journal, too.
//!
//! Limits: if systemd carries out a request late, it may still move a process from the unit's own group into
//! the scope. The contract holds the unit in the scope as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::Contract;
use commonhold_policy::{MS, Time};

use super::members::Members;
use crate::LiveError;
use crate::host;
use crate::observe::knob::failed;
use crate::observe::process::{ProcFs, ProcessKey};
use crate::observe::roster::{Due, Roster};
use crate::systemd::{Answer, Done, Instance, Queue, Request, Scope, group_of_slice, slice_for};
use crate::undo::journal::{Entry, Journal, record};
use crate::undo::way_back;

/// The interval between batches of processes that did not enter by `exec`.
const BATCH_NS: Time = 500 * MS;

/// How often to check for scopes that have ended.
const POLL_NS: Time = 1_000 * MS;

/// The maximum number of requests for one process. systemd makes no scope if any process of a request has
/// exited, so the second request is for one process alone.
const TRIES_MAX: u8 = 2;

/// The maximum number of requests in flight to systemd. Further processes get no scope, so that they need not
/// wait.
const WAITING_MAX: u64 = 32;

/// A request in flight for a scope.
#[derive(Debug)]
struct PendingRequest {
    unit: String,
    cgroup: PathBuf,
    keys: Vec<ProcessKey>,
}

/// The outcome of a poll.
#[derive(Debug, Default)]
pub(super) struct ScopeReplies {
    /// The PIDs of processes for which systemd has answered. Most of these processes are in their scopes now,
    /// so their control groups must be read again.
    pub(super) arrived: Vec<u32>,
    /// Processes that get no scope: the caller moves them into the unit's own control group.
    pub(super) refused: Vec<ProcessKey>,
    pub(super) problems: Vec<LiveError>,
}

/// The scopes, and the requests for them.
#[derive(Debug)]
pub(super) struct Scopes {
    mount: PathBuf,
    queue: Queue,
    /// The requests in flight, by number.
    pending: BTreeMap<u64, PendingRequest>,
    /// The number of requests so far for each process.
    tries: BTreeMap<ProcessKey, u8>,
    /// Processes with a request in flight.
    waiting: BTreeSet<ProcessKey>,
    /// Processes for which systemd has answered, with their scopes: still to be checked for reused PIDs.
    unchecked: Vec<(ProcessKey, PathBuf)>,
    /// The directories of the scopes that are in the journal.
    recorded: BTreeSet<PathBuf>,
    batch_at: Time,
    polled_at: Time,
    /// Kinds of errors that were reported.
    reported: BTreeSet<String>,
}

impl Scopes {
    /// Connects to the machine's systemd; `None` if it has none.
    pub(super) fn begin(mount: &Path) -> Result<Option<Scopes>, LiveError> {
        let instance = Instance::system();
        instance.is_there().then(|| Scopes::of(mount, instance)).transpose()
    }

    /// Connects to this systemd.
    pub(super) fn of(mount: &Path, instance: Instance) -> Result<Scopes, LiveError> {
        Ok(Scopes {
            mount: mount.to_owned(),
            queue: Queue::start(instance)?,
            pending: BTreeMap::new(),
            tries: BTreeMap::new(),
            waiting: BTreeSet::new(),
            unchecked: Vec::new(),
            recorded: BTreeSet::new(),
            batch_at: 0,
            polled_at: 0,
            reported: BTreeSet::new(),
        })
    }

    /// Takes systemd's replies, and asks for scopes for processes that are due.
    pub(super) fn poll(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
        (members, top): (&mut Members, &Path),
        journal: &mut Journal,
    ) -> ScopeReplies {
        let mut replies = ScopeReplies::default();
        self.take_replies(&mut replies);
        self.move_out_reused_pids(roster.procfs(), &mut replies);
        let may_ask = |due: &Due| !self.waiting.contains(&due.key) && !replies.refused.contains(&due.key);
        let due: Vec<Due> = roster.due_for_scopes(now).into_iter().filter(may_ask).collect();
        let (entering, others): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|due| due.enters);
        // The processes of each request.
        let mut batches: Vec<Vec<Due>> = entering.into_iter().map(|due| vec![due]).collect();
        if !others.is_empty() && now >= self.batch_at.saturating_add(BATCH_NS) {
            self.batch_at = now;
            let mut by_unit: BTreeMap<_, Vec<Due>> = BTreeMap::new();
            for due in others {
                match self.tries.contains_key(&due.key) {
                    // A process whose first request failed gets a request of its own, so that this request
                    // cannot fail because another process exits.
                    true => batches.push(vec![due]),
                    false => by_unit.entry(due.unit).or_default().push(due),
                }
            }
            batches.extend(by_unit.into_values());
        }
        for batch in batches {
            let Some(first) = batch.first() else { continue };
            let unit = &contract.unit(first.unit).path;
            let keys: Vec<ProcessKey> = batch.iter().map(|due| due.key).collect();
            let is_overloaded = self.queue.waiting() >= WAITING_MAX;
            match slice_for(unit).filter(|_| !is_overloaded) {
                None => {
                    let why = if is_overloaded {
                        "too many requests are in flight"
                    } else {
                        "the unit's path is too long"
                    };
                    replies.problems.extend(self.no_scope(unit, why, why.to_owned()));
                    replies.refused.extend(keys);
                }
                Some(slice) => {
                    let origins = members.leave_for_scope(&keys, top);
                    match self.ask(now, (unit, slice), keys.clone(), origins, journal) {
                        Ok(()) => roster.leave_for_scope(&keys),
                        Err(error) => replies.problems.push(error),
                    }
                }
            }
        }
        if now >= self.polled_at.saturating_add(POLL_NS) {
            self.polled_at = now;
            replies.problems.extend(self.forget_ended(journal).err());
        }
        replies
    }

    /// Asks systemd for a scope in the unit's slice for these processes, after recording the scope and their
    /// origins in the journal.
    fn ask(
        &mut self,
        now: Time,
        (unit, slice): (&str, String),
        keys: Vec<ProcessKey>,
        origins: Vec<Entry>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(first) = keys.first() else { return Ok(()) };
        // The name is unique on this machine, because a PID is not reused within the same millisecond.
        let name = format!("commonhold-{}-{}.scope", first.pid, now / MS);
        let cgroup = self.mount.join(group_of_slice(&slice).trim_start_matches('/')).join(&name);
        let mut entries = vec![Entry::Scope { cgroup: cgroup.clone() }];
        entries.extend(origins);
        record(journal, &entries)?;
        self.recorded.insert(cgroup.clone());
        for key in &keys {
            self.waiting.insert(*key);
            let tries = self.tries.entry(*key).or_default();
            *tries = tries.saturating_add(1);
        }
        let scope = Scope {
            name,
            slice,
            description: format!("processes of the unit {unit} of Commonhold's contract"),
            pids: keys.iter().map(|key| key.pid).collect(),
            properties: Vec::new(),
        };
        let number = self.queue.ask(Request::Start(scope));
        self.pending.insert(number, PendingRequest { unit: unit.to_owned(), cgroup, keys });
        Ok(())
    }

    /// Adds the outcomes of the requests that systemd has answered to `replies`.
    fn take_replies(&mut self, replies: &mut ScopeReplies) {
        for Done { number, answer } in self.queue.done() {
            let Some(PendingRequest { unit, cgroup, keys }) = self.pending.remove(&number) else { continue };
            self.unchecked.extend(keys.iter().map(|key| (*key, cgroup.clone())));
            for key in &keys {
                self.waiting.remove(key);
            }
            match answer {
                Ok(Answer::Started) => {
                    replies.arrived.extend(keys.iter().map(|key| key.pid));
                    for key in &keys {
                        self.tries.remove(key);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    let is_final = |key: &ProcessKey| {
                        error.is_silence() || self.tries.get(key).is_none_or(|tries| *tries >= TRIES_MAX)
                    };
                    let (refused, to_retry): (Vec<ProcessKey>, Vec<ProcessKey>) =
                        keys.into_iter().partition(is_final);
                    // systemd may have made the scope although its reply was lost.
                    replies.arrived.extend(to_retry.iter().chain(&refused).map(|key| key.pid));
                    if !refused.is_empty() {
                        let kind = kind_of(&error.to_string(), error.is_silence());
                        replies.problems.extend(self.no_scope(&unit, &error.to_string(), kind));
                    }
                    replies.refused.extend(refused);
                }
            }
        }
    }

    /// Moves processes out of scopes into which systemd put them by mistake: systemd looks up the PIDs of a
    /// request later, and a PID may have been reused by then. Such a process is moved to its parent's control
    /// group.
    fn move_out_reused_pids(&mut self, procfs: &mut ProcFs, replies: &mut ScopeReplies) {
        for (key, cgroup) in std::mem::take(&mut self.unchecked) {
            if let Err(source) = way_back::take_back(procfs, key, &cgroup) {
                replies.problems.push(failed(&cgroup, format!("send process {} out of it", key.pid), source));
            }
        }
    }

    /// An error which says that processes of a unit get no scope; `None` if this kind of error was reported
    /// before.
    fn no_scope(&mut self, unit: &str, why: &str, kind: String) -> Option<LiveError> {
        self.reported.insert(kind).then(|| LiveError::Unavailable {
            what: format!("systemd makes no scope for processes of unit {unit}: {why}"),
            remedy: "they are moved into the unit's own control group".to_owned(),
        })
    }

    /// Drops scopes from the journal that systemd has removed or never made.
    fn forget_ended(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        let requested: BTreeSet<&PathBuf> = self.pending.values().map(|request| &request.cgroup).collect();
        let has_ended = |dir: &&PathBuf| !requested.contains(dir) && matches!(host::is_there(dir), Ok(false));
        let ended: Vec<PathBuf> = self.recorded.iter().filter(has_ended).cloned().collect();
        let entries = ended.iter().map(|cgroup| Entry::ScopeEnded { cgroup: cgroup.clone() });
        record(journal, &entries.collect::<Vec<_>>())?;
        self.recorded.retain(|dir| !ended.contains(dir));
        Ok(())
    }

    /// Forgets a process that has exited.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.tries.remove(&key);
    }
}

/// The kind of an error, by which errors are reported once: the text of the error without digits.
fn kind_of(error: &str, is_silent: bool) -> String {
    if is_silent { "silent".to_owned() } else { error.replace(|c: char| c.is_ascii_digit(), "") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::Duration;

    use commonhold_contract::{Member, MemberKind, UnitId};

    use super::*;
    use crate::host::{Kind, tamper};
    use crate::observe::roster::Scan;
    use crate::systemd::fake::{FakeSystemd, Fault};

    /// Beyond any `pid_max`: no real process has these numbers.
    const BASE: u32 = 90_000_000;
    const SHELL: &str = "/user.slice/user-1000.slice/session-3.scope";
    const SECOND: Time = 1_000 * MS;

    struct Fake {
        dir: tempfile::TempDir,
        systemd: FakeSystemd,
        contract: Contract,
        build: UnitId,
        roster: Roster,
        members: Members,
        journal: Journal,
        scopes: Scopes,
        now: Time,
    }

    impl Fake {
        /// A shell and two builds in a session, scanned once.
        fn new() -> Fake {
            let dir = tempfile::tempdir().unwrap();
            for folder in ["proc", "run", &format!("cgroup{SHELL}")] {
                fs::create_dir_all(dir.path().join(folder)).unwrap();
            }
            fs::write(dir.path().join(format!("cgroup{SHELL}/cgroup.procs")), "").unwrap();
            let mut contract = Contract::default();
            let build = contract.add(None, "build");
            let make = MemberKind::Command("make".to_owned());
            contract.units[build.index()].members.push(Member { kind: make, span: 0..0 });
            let (mount, proc) = (dir.path().join("cgroup"), dir.path().join("proc"));
            let mut roster = Roster::new(&proc, &[]).unwrap();
            roster.holds_in_place();
            roster.makes_scopes();
            let systemd = FakeSystemd::new(true);
            let mut fake = Fake {
                members: Members::new(&mount, ProcFs::open(&proc).unwrap(), None),
                journal: Journal::create(&dir.path().join("run")).unwrap().0,
                scopes: Scopes::of(&mount, systemd.instance()).unwrap(),
                now: 10 * SECOND,
                dir,
                systemd,
                contract,
                build,
                roster,
            };
            for (pid, comm) in [(1, "sh"), (2, "make"), (3, "make")] {
                fake.put(pid, comm, SHELL);
            }
            fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
            fake
        }

        fn put(&self, pid: u32, comm: &str, group: &str) {
            let dir = self.dir.path().join(format!("proc/{}", BASE + pid));
            fs::create_dir_all(&dir).unwrap();
            let number = BASE + pid;
            let stat =
                format!("{number} ({comm}) S 0 1 {number} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0\n", 100 + pid);
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("status"), "Uid:\t1000\t1000\nGid:\t1000\t1000\nGroups:\t\n").unwrap();
            fs::write(dir.join("cmdline"), format!("/bin/{comm}\0")).unwrap();
            fs::write(dir.join("cgroup"), format!("0::{group}\n")).unwrap();
        }

        fn poll(&mut self) -> ScopeReplies {
            let Fake { scopes, contract, roster, members, journal, now, dir, .. } = self;
            let top = dir.path().join("cgroup/commonhold");
            scopes.poll(*now, contract, roster, (members, &top), journal)
        }

        /// Polls until systemd has answered, without advancing the clock.
        fn answered(&mut self) -> ScopeReplies {
            while self.scopes.queue.waiting() > 0 {
                let replies = self.poll();
                if !(replies.arrived.is_empty() && replies.refused.is_empty()) {
                    return replies;
                }
                thread::sleep(Duration::from_millis(1));
            }
            panic!("systemd was asked for nothing, or its answer was not heard");
        }

        fn entries(&self) -> Vec<Entry> {
            Journal::read(self.journal.path()).unwrap()
        }

        fn scopes(&self) -> Vec<(String, Vec<u32>)> {
            let stage = self.systemd.stage();
            stage.scopes.iter().map(|(_, slice, pids)| (slice.clone(), pids.clone())).collect()
        }
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid: BASE + pid, start: u64::from(100 + pid) }
    }

    #[test]
    fn a_units_processes_get_one_scope_and_go_back_to_their_session() {
        let mut fake = Fake::new();
        let replies = fake.poll();
        assert_eq!((replies.arrived.len(), replies.problems.len()), (0, 0));
        assert_eq!(fake.answered().arrived, [BASE + 2, BASE + 3]);
        assert_eq!(fake.scopes(), [("commonhold-build.slice".to_owned(), vec![BASE + 2, BASE + 3])]);
        let mount = fake.dir.path().join("cgroup");
        let name = fake.systemd.stage().scopes[0].0.clone();
        let group = format!("/commonhold.slice/commonhold-build.slice/{name}");
        let cgroup = mount.join(&group[1..]);
        let session = mount.join(&SHELL[1..]);
        let moved = |pid| Entry::Moved { process: key(pid), from: session.clone() };
        assert_eq!(fake.entries(), [Entry::Scope { cgroup: cgroup.clone() }, moved(2), moved(3)]);
        // They have arrived: no more requests.
        fs::create_dir_all(&cgroup).unwrap();
        for pid in [2, 3] {
            fake.put(pid, "make", &group);
        }
        fake.roster.look_for_scopes(&[BASE + 2, BASE + 3]).unwrap();
        fake.now += SECOND;
        assert_eq!(fake.poll().problems.len() + fake.scopes.pending.len(), 0);
        let slice = "/commonhold.slice/commonhold-build.slice";
        assert_eq!(fake.roster.foreign_group_of(BASE + 3), Some((slice, fake.build)));
        assert!(fake.members.send_out_of_scope(key(3), "make").is_none());
        let back = fs::read_to_string(session.join("cgroup.procs")).unwrap();
        assert_eq!(back.trim(), (BASE + 3).to_string());
        // Without its session the other process stays. systemd removes the scope after its last process.
        fs::remove_dir_all(&session).unwrap();
        assert!(fake.members.send_out_of_scope(key(2), "make").is_none());
        fs::remove_dir(&cgroup).unwrap();
        fake.now += SECOND;
        fake.poll();
        assert_eq!(fake.entries().last(), Some(&Entry::ScopeEnded { cgroup }));
        let before = fake.entries().len();
        fake.now += SECOND;
        fake.poll();
        assert_eq!(fake.entries().len(), before, "reported once");
    }

    /// systemd resolves PIDs later than they are sent. Fails if reused PIDs are not checked.
    #[test]
    fn a_process_that_reuses_a_pid_leaves_the_scope() {
        let mut fake = Fake::new();
        fake.poll();
        let group = loop {
            if let Some((name, ..)) = fake.systemd.stage().scopes.first() {
                break format!("/commonhold.slice/commonhold-build.slice/{name}");
            }
            thread::sleep(Duration::from_millis(1));
        };
        // Process 2 has exited; a child of process 1 has its PID, and systemd moved that one into the scope.
        fake.put(2, "other", &group);
        let stat = fake.dir.path().join(format!("proc/{}/stat", BASE + 2));
        let text = fs::read_to_string(&stat).unwrap();
        let parent = format!(") S {} ", BASE + 1);
        fs::write(&stat, text.replace(") S 0 ", &parent).replace(" 102 0", " 999 0")).unwrap();
        fake.put(3, "make", &group);
        for dir in Path::new(&group).ancestors() {
            let dir = fake.dir.path().join(format!("cgroup{}", dir.display()));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.procs"), "").unwrap();
        }
        assert_eq!(fake.answered().problems.len(), 0);
        let back = fs::read_to_string(fake.dir.path().join(format!("cgroup{SHELL}/cgroup.procs"))).unwrap();
        assert_eq!(back.trim(), (BASE + 2).to_string(), "not the process that was requested");
    }

    #[test]
    fn processes_that_enter_are_not_batched() {
        let mut fake = Fake::new();
        fake.poll();
        fake.answered();
        for pid in [4, 5, 6] {
            fake.put(pid, "x", SHELL);
        }
        fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
        for pid in [4, 5] {
            assert!(fake.roster.enter(&fake.contract, key(pid), fake.build).unwrap());
        }
        fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
        fake.poll();
        let mut replies = ScopeReplies::default();
        while fake.scopes.queue.waiting() > 0 {
            fake.scopes.take_replies(&mut replies);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(replies.arrived, [BASE + 4, BASE + 5]);
        let alone = [4, 5].map(|pid| ("commonhold-build.slice".to_owned(), vec![BASE + pid]));
        assert_eq!(fake.scopes()[1..3], alone);
    }

    #[test]
    fn without_a_journal_entry_no_scope_is_requested() {
        let mut fake = Fake::new();
        let hook = tamper(|access| match access.kind {
            Kind::Write if access.path.ends_with("run/journal") => crate::host::Answer::Refuse(libc::ENOSPC),
            _ => crate::host::Answer::GoOn,
        });
        assert_eq!(fake.poll().problems.len(), 1);
        drop(hook);
        assert_eq!((fake.scopes.queue.waiting(), fake.entries().len()), (0, 0));
        fake.now += BATCH_NS;
        fake.poll();
        assert_eq!(fake.answered().arrived, [BASE + 2, BASE + 3]);
    }

    #[test]
    fn a_process_refused_twice_gets_no_scope_which_is_reported_once() {
        let mut fake = Fake::new();
        // Both together, then each alone; then a third process.
        for _ in 0..5 {
            fake.systemd.fail("StartTransientUnit", Fault::Refuse("org.freedesktop.DBus.Error.Failed"));
        }
        let (mut reported, mut refused) = (0, Vec::new());
        for expected in [vec![], vec![key(2), key(3)]] {
            fake.now += BATCH_NS;
            fake.poll();
            while fake.scopes.queue.waiting() > 0 {
                let replies = fake.answered();
                refused.extend(replies.refused);
                reported += replies.problems.len();
            }
            assert_eq!(refused, expected);
        }
        fake.roster.refuse_scopes(&[key(2), key(3)]);
        fake.put(4, "make", SHELL);
        fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
        for _ in 0..2 {
            fake.now += SECOND;
            fake.poll();
            reported += fake.answered().problems.len();
        }
        assert_eq!((reported, fake.scopes()), (1, vec![]));
        assert_eq!(fake.systemd.stage().faults.len(), 0, "each was asked for twice");
    }

    #[test]
    fn a_silent_systemd_is_not_asked_again() {
        let mut fake = Fake::new();
        fake.systemd.fail("StartTransientUnit", Fault::Silence);
        fake.poll();
        let replies = fake.answered();
        assert_eq!((replies.refused, replies.problems.len()), (vec![key(2), key(3)], 1));
        assert!(replies.problems[0].to_string().contains("unit build"), "{}", replies.problems[0]);
    }

    #[test]
    fn beyond_the_limit_processes_get_no_scope() {
        let mut fake = Fake::new();
        fake.poll();
        fake.answered();
        let all: Vec<u32> = (10..13 + u32::try_from(WAITING_MAX).unwrap()).collect();
        for pid in &all {
            fake.put(*pid, "x", SHELL);
        }
        fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
        for pid in &all {
            assert!(fake.roster.enter(&fake.contract, key(*pid), fake.build).unwrap());
        }
        fake.roster.refresh(&fake.contract, fake.now, Scan::Full).unwrap();
        let replies = fake.poll();
        let last: Vec<ProcessKey> = all[all.len() - 3..].iter().map(|pid| key(*pid)).collect();
        assert_eq!((replies.refused, replies.problems.len()), (last, 1));
        assert!(replies.problems[0].to_string().contains("too many"), "{}", replies.problems[0]);
    }
}
