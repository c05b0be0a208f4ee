//! Parents that stop themselves with a stopped child (su, sudo, script) continue when it does.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::Backend;
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::{Undone, undo};
use commonhold_policy::plan::{CpuOrder, Orders};
use commonhold_policy::{Plan, Reason};
use support::skipped::skipped;
use support::{Job, descendants, eventually, find, kill, start};

/// A parent, and the member that it waits for, which computes: a sleeping member would be left asleep.
struct Parent {
    job: Job,
    member: u32,
}

impl Parent {
    /// Starts a command line in which `TOKEN` is replaced by a word unique to this process.
    fn start(command: &[&str]) -> Parent {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let token = 20_000_000 + std::process::id() * 100 + COUNT.fetch_add(1, Ordering::Relaxed);
        let token = token.to_string();
        let command: Vec<String> = command.iter().map(|word| word.replace("TOKEN", &token)).collect();
        let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        let job = start(&command[0], &arguments);
        let member = ["md5sum", "/dev/zero", &token];
        eventually("the member runs", || find(&member).is_some());
        Parent { member: find(&member).unwrap(), job }
    }

    /// All stopped processes except for the member.
    fn stopped(&self) -> Vec<u32> {
        let others = descendants(self.job.pid()).into_iter().filter(|pid| *pid != self.member);
        others.filter(|pid| state(*pid) == Some('T')).collect()
    }

    fn all_run(&self) -> bool {
        state(self.member) == Some('S') && self.stopped().is_empty()
    }

    /// Whether no process with a signalfd, such as `script` and `su -P`, has a SIGCHLD pending. It learns of
    /// its child by that signal alone. A second one is merged with the first: it would learn that its child
    /// continued, and not that it stopped again.
    fn has_handled_signals(&self) -> bool {
        let is_pending = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let sets = status
                .lines()
                .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
            sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok())
                .any(|set| set & 1 << (libc::SIGCHLD - 1) != 0)
        };
        !descendants(self.job.pid()).into_iter().any(|pid| has_signalfd(pid) && is_pending(pid))
    }
}

fn has_signalfd(pid: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|at| at.ends_with("anon_inode:[signalfd]"))
}

impl Drop for Parent {
    fn drop(&mut self) {
        // They have sessions of their own.
        for pid in descendants(self.job.pid()).into_iter().rev() {
            kill(pid, libc::SIGKILL);
        }
    }
}

/// `T` if it is stopped, `S` if it runs or sleeps.
fn state(pid: u32) -> Option<char> {
    let state = kernels_state(pid)?;
    Some(if matches!(state, 'R' | 'D') { 'S' } else { state })
}

fn kernels_state(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// The CPU time that a process used, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// A backend with a unit for each of these processes.
struct Rig {
    backend: UserBackend,
    units: Vec<UnitId>,
    directory: tempfile::TempDir,
}

impl Rig {
    fn new(members: &[u32]) -> Rig {
        let mut contract = Contract::default();
        for (n, pid) in members.iter().enumerate() {
            let unit = contract.add(None, &format!("unit{n}"));
            contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(*pid), span: 0..0 });
        }
        Rig::holding(contract)
    }

    fn holding(contract: Contract) -> Rig {
        let units = contract.held().collect();
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(directory.path()).unwrap();
        let roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let mut backend = UserBackend::new(contract, affinity::get(0).unwrap(), roster, journal);
        backend.settle(clock::now()).unwrap();
        backend.observe(clock::now(), &[]).unwrap();
        Rig { backend, units, directory }
    }

    #[track_caller]
    fn gate(&mut self, unit: usize, open: bool) {
        let order = CpuOrder::Gate { unit: self.units[unit], open };
        let orders = Orders::of_cpus(Reason::HoldsChanged, [order]);
        let problems = self.backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn look(&mut self) {
        self.backend.settle(clock::now()).unwrap();
        self.backend.observe(clock::now(), &[]).unwrap();
        let problems = self.backend.take_problems();
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[track_caller]
    fn eventually(&mut self, what: &str, holds: impl Fn() -> bool) {
        eventually(what, || {
            self.look();
            holds()
        });
    }

    /// Looks for longer than a follower may still stop itself.
    fn settle(&mut self) {
        let begun = clock::now();
        while clock::now() < begun + 1_300_000_000 {
            self.look();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Undoes the journal, as a caretaker would.
    fn undo(self) -> Undone {
        drop(self.backend);
        undo(&Journal::read(&self.directory.path().join("journal")).unwrap(), "/proc".as_ref())
    }
}

/// Whether this machine has the programs, and this user may use them.
#[track_caller]
fn has(programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("only root becomes another user without a password");
        return false;
    }
    let found = |program: &&str| {
        let directories = std::env::var("PATH").unwrap_or_default();
        let dirs = directories.split(':').chain(["/usr/sbin", "/usr/bin"]).map(PathBuf::from);
        dirs.map(|dir| dir.join(program)).any(|path| path.exists())
    };
    if let Some(program) = programs.iter().find(|program| !found(program)) {
        skipped(&format!("this machine has no {program}"));
        return false;
    }
    true
}

/// One test at a time: each depends on reactions within moments of a stop, and a dozen tests at once on two
/// CPUs exceed the time for which a parent is watched.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const SU: &[&str] = &["su", "nobody", "-s", "/bin/sh", "-c", "exec md5sum /dev/zero TOKEN"];

/// The programs, and whether a process of theirs stops itself.
#[test]
fn a_members_parents_continue_when_it_does() {
    let _alone = alone();
    let all: [(&[&str], &[&str], bool); 11] = [
        (&["su"], SU, true),
        (
            &["su", "script"],
            &["su", "-P", "nobody", "-s", "/bin/sh", "-c", "exec md5sum /dev/zero TOKEN"],
            true,
        ),
        (&["runuser"], &["runuser", "-u", "nobody", "--", "md5sum", "/dev/zero", "TOKEN"], true),
        (&["sudo"], &["sudo", "-u", "nobody", "md5sum", "/dev/zero", "TOKEN"], true),
        (&["script"], &["script", "-qc", "exec md5sum /dev/zero TOKEN", "/dev/null"], true),
        // Nested; sudo has a terminal, and stops its process group.
        (
            &["script", "sudo"],
            &["script", "-qc", "sudo -u nobody md5sum /dev/zero TOKEN | cat", "/dev/null"],
            true,
        ),
        (
            &["script"],
            &["script", "-qc", "su nobody -s /bin/sh -c 'exec md5sum /dev/zero TOKEN'; true", "/dev/null"],
            true,
        ),
        (&["bash"], &["bash", "-c", "set -m; md5sum /dev/zero TOKEN & wait; wait; sleep 1000"], false),
        (
            &["script", "bash"],
            &["script", "-qc", "bash -ic 'md5sum /dev/zero TOKEN & wait; sleep 1000'", "/dev/null"],
            false,
        ),
        (
            &["make"],
            &[
                "sh",
                "-c",
                "printf 'all: a b\\na:\\n\\tmd5sum /dev/zero TOKEN\\nb:\\n\\tsleep 1000\\n' | make -j2 -f -",
            ],
            false,
        ),
        (&["python3"], &["python3", "-c", "import pty; pty.spawn(['md5sum', '/dev/zero', 'TOKEN'])"], false),
    ];
    for (programs, command, stops) in all {
        if !has(programs) {
            continue;
        }
        let parent = Parent::start(command);
        let mut rig = Rig::new(&[parent.member]);
        for _ in 0..3 {
            rig.gate(0, false);
            rig.eventually("the member stops", || state(parent.member) == Some('T'));
            if stops {
                rig.eventually(&format!("{command:?} stops itself"), || !parent.stopped().is_empty());
            }
            let before = cpu_ticks(parent.member);
            rig.gate(0, true);
            // The kernel tells the parent that the member continued only once the member runs.
            rig.eventually(&format!("{command:?} runs again"), || {
                cpu_ticks(parent.member) > before && parent.all_run() && parent.has_handled_signals()
            });
        }
        // So short that the parent stops itself only afterwards, if at all.
        for _ in 0..20 {
            rig.gate(0, false);
            rig.gate(0, true);
        }
        rig.settle();
        assert!(parent.all_run(), "{command:?}: {:?} are stopped", parent.stopped());
        rig.gate(0, false);
        if stops {
            eventually("it stops itself", || !parent.stopped().is_empty());
        }
        let undone = rig.undo();
        assert!(undone.problems.is_empty() && undone.continued > u32::from(stops), "{command:?}: {undone:?}");
        eventually(&format!("{command:?} runs in the end"), || parent.all_run());
    }
}

/// The daemon ends right after the stop: the parent has not stopped itself yet.
#[test]
fn a_parent_that_is_about_to_stop_itself_at_the_end_runs() {
    let _alone = alone();
    if !has(&["su"]) {
        return;
    }
    let parent = Parent::start(SU);
    for _ in 0..20 {
        let mut rig = Rig::new(&[parent.member]);
        rig.gate(0, false);
        rig.undo();
        eventually("none is about to stop itself", || {
            let runs = |pid: &u32| *pid != parent.member && kernels_state(*pid) == Some('R');
            !descendants(parent.job.pid()).iter().any(runs)
        });
        assert!(parent.all_run(), "{:?} are stopped", parent.stopped());
    }
}

/// The parent is a member as well. Whichever unit continues first, the parent runs when both its own unit and
/// its child may.
#[test]
fn a_parent_in_a_unit_of_its_own_waits_for_both() {
    let _alone = alone();
    if !has(&["su"]) {
        return;
    }
    let parent = Parent::start(SU);
    let su = parent.job.pid();
    let mut rig = Rig::new(&[parent.member, su]);
    let both = |rig: &mut Rig, of_su: char, of_member: char| {
        rig.eventually(&format!("su in state {of_su}, its child in {of_member}"), || {
            (state(su), state(parent.member)) == (Some(of_su), Some(of_member))
        });
        rig.settle();
        assert_eq!((state(su), state(parent.member)), (Some(of_su), Some(of_member)));
    };
    for (first, second) in [(0, 1), (1, 0)] {
        // It stops itself, and then its unit is closed.
        rig.gate(0, false);
        both(&mut rig, 'T', 'T');
        rig.gate(1, false);
        both(&mut rig, 'T', 'T');
        rig.gate(first, true);
        both(&mut rig, 'T', if first == 0 { 'S' } else { 'T' });
        rig.gate(second, true);
        both(&mut rig, 'S', 'S');
    }
    rig.gate(1, false);
    rig.gate(0, false);
    rig.undo();
    eventually("both run", || parent.all_run());
}

/// An interactive shell that is a member like its job is stopped before the job, and continued after it: it
/// sees no stop, and keeps waiting. A shell that sees a stop would continue with its next command.
#[test]
fn a_shell_that_is_stopped_with_its_job_does_not_see_the_stop() {
    let _alone = alone();
    if !has(&["script", "bash"]) {
        return;
    }
    let job = Parent::start(&["script", "-qc", "bash -ic 'md5sum /dev/zero TOKEN; sleep 1000'", "/dev/null"]);
    let shell = parent_of(job.member);
    let mut contract = Contract::default();
    let unit = contract.add(None, "unit");
    contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(shell), span: 0..0 });
    let mut rig = Rig::holding(contract);
    for _ in 0..5 {
        rig.gate(0, false);
        rig.eventually("both stop", || [shell, job.member].map(state) == [Some('T'); 2]);
        rig.gate(0, true);
        rig.eventually("both run", || job.all_run());
    }
    rig.settle();
    assert_eq!(descendants(shell), [shell, job.member], "it began its next command");
    assert!(job.all_run());
}

/// A job of a shell with job control, in a process group that a terminal could stop.
fn background_job() -> Parent {
    Parent::start(&["bash", "-c", "set -m; sh -c 'md5sum /dev/zero TOKEN; true' & wait; sleep 1000"])
}

fn parent_of(pid: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_parent_that_ctrl_z_stopped_stays_stopped() {
    let _alone = alone();
    let job = background_job();
    let shell = parent_of(job.member);
    let mut rig = Rig::new(&[job.member]);
    rig.gate(0, false);
    rig.eventually("the member stops", || state(job.member) == Some('T'));
    // To the process group, as the terminal does. The shell above waits for stops, so the kernel forgets the
    // signal.
    let group = i32::try_from(shell).unwrap();
    // SAFETY: a signal to a process group that this test started.
    assert_eq!(unsafe { libc::kill(-group, libc::SIGTSTP) }, 0);
    rig.eventually("the job stops", || state(shell) == Some('T'));
    rig.gate(0, true);
    rig.settle();
    assert_eq!(state(shell), Some('T'));
    rig.undo();
    assert_eq!(state(shell), Some('T'));
}

#[test]
fn a_parent_stopped_before_its_child_stays_stopped() {
    let _alone = alone();
    let job = background_job();
    let shell = parent_of(job.member);
    kill(shell, libc::SIGSTOP);
    eventually("stopped", || state(shell) == Some('T'));
    let mut rig = Rig::new(&[job.member]);
    rig.gate(0, false);
    rig.eventually("the member stops", || state(job.member) == Some('T'));
    rig.gate(0, true);
    rig.settle();
    assert_eq!((state(shell), state(job.member)), (Some('T'), Some('S')));
    rig.gate(0, false);
    rig.undo();
    assert_eq!((state(shell), state(job.member)), (Some('T'), Some('S')));
}

/// The daemon is killed while su is stopped: the caretaker continues both.
#[test]
fn a_killed_daemon_leaves_no_parent_stopped() {
    let _alone = alone();
    if !has(&["su"]) {
        return;
    }
    let parent = Parent::start(SU);
    let directory = tempfile::tempdir().unwrap();
    let first = affinity::get(0).unwrap().iter().next().unwrap();
    let mut daemon: Child = Command::new(support::example("hold"))
        .arg(directory.path())
        .args([parent.member.to_string(), first.to_string(), "closed".to_owned()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("su stops itself", || parent.stopped() == [parent.job.pid()]);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    eventually("both run", || parent.all_run());
    eventually("the journal is removed", || !directory.path().join("journal").exists());
    assert!(parent.all_run());
}
