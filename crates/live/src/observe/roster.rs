//! The roster: each process's unit, and what each unit's processes use.
//!
//! Problem: members fork, exec, change their user and exit all the time. Reading every file of every process
//! ten times a second would cost more than the contract is worth.
//!
//! Algorithm: a scan begins with one small file, /proc/loadavg, which has the number of threads and the pid
//! given out last. While both are unchanged, no process started or ended. Otherwise the scan lists /proc. It
//! reads a process's own files when the process is new, and later only after the process has run: a sleeping
//! process can neither exec nor change its user.
//! - While the process is younger than a second, every scan reads its files, since the process is about to
//!   exec.
//! - Afterwards its files are read once a second, and only those that can change its unit under this
//!   contract.
//! - If the contract has `cgroup` rules, every process is read once a second, since another process can move
//!   a sleeping one.
//!
//! Cost: for a sleeping process, a scan reads only the CPU clock, by one system call. All stages of a scan
//! share that reading ([`Roster::clock`]), and skip the files of a process that did not run. The longer a
//! process has slept, the less often its clock is read ([`account`]), so the cost follows the number of
//! processes that run.
//!
//! The policy decides placement ([`place`]); parents are placed before their children. A process whose parent
//! has ended keeps the placement that it inherited. A process whose parent ended before the first scan counts
//! as a descendant of its session's leader. If no rule named that leader, the process belongs to the unit
//! that its environment names ([`MARKER`]), provided that its user, or root, entered that unit by `exec`.
//!
//! Names of users and groups that this machine does not know yet are looked up again once a minute, in a
//! separate thread ([`SystemNames`]). When a name is found, all processes are placed anew.
//!
//! Properties: a process is identified by its pid and start time. This program, the processes that its caller
//! excludes, and process 1 are in no unit. Kernel threads are placed in `kernel`, so that they are counted.
//!
//! CPU time of short-lived processes: what a process uses between the last scan and its end, or in a life too
//! short to be seen, is charged to its parent's unit when the parent waits for the process.
//!
//! Limits: if no member waits for such a process (its parent has ended, or ignores its children), the CPU
//! time is charged to no unit, and the ledger calls it common. A process that daemonises with a new session
//! between two scans, without having entered by `exec`, is placed by its user, group or cgroup.

mod account;
mod each;
mod entered;
mod foreign_groups;
mod inherit;
mod origin;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, Each, MemberKind, UnitId};
use commonhold_policy::Time;
use commonhold_policy::membership::{Placement, ProcessFacts, Stays, place, stays};

use crate::LiveError;
use crate::host::clock::process_cpu_ns;
use crate::observe::names::SystemNames;
use crate::observe::process::{Listed, ProcFs, ProcessKey, Stat, ThreadState};

pub use each::Seen;
pub use entered::{Entered, KeepsEntered};
use inherit::unit_if_there;

pub use scope::Due;

/// The environment variable that `exec` sets to a [`marker`] of the unit, so that a descendant is recognised
/// after its ancestors have ended.
pub const MARKER: &str = "COMMONHOLD_UNIT";

/// The value of [`MARKER`] for a unit of the daemon with this pid. With another daemon's pid, the marker is
/// ignored.
pub fn marker(daemon: u32, unit: &str) -> String {
    format!("{daemon}:{unit}")
}

/// How often rarely changing facts are read again, and how long a process counts as new. Nanoseconds.
const SECOND: Time = 1_000_000_000;

/// How thorough a scan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// Reads only new processes, and files whose next reading is due.
    Quick,
    /// Reads all files of every process, since the contract changed.
    Full,
}

/// A process in a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub key: ProcessKey,
    /// The process's unit, and the rule that put the process into that unit.
    pub placement: Placement,
    /// Its effective user.
    pub uid: u32,
    /// Its session.
    pub session: u32,
    /// Its parent's pid at the last scan; 0 if the parent has ended.
    pub parent: u32,
    /// The kernel's name of its program.
    pub comm: String,
    /// Why the process may not be moved out of its control group; `None` if the process may be moved, or if
    /// this backend moves no members.
    pub stays: Option<Stays>,
}

/// A process that changed its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The process.
    pub key: ProcessKey,
    /// Its previous unit; `None` if the contract no longer has that unit.
    pub from: Option<UnitId>,
    /// The process's present unit.
    pub to: UnitId,
}

/// The changes between two scans. Unit ids are those of the contract given to the later scan. A scan that
/// fails midway reports nothing; the next successful scan reports the findings of both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Processes seen for the first time, parents before their children.
    pub joined: Vec<(ProcessKey, UnitId)>,
    /// Processes that ended, each with its last unit.
    pub left: Vec<(ProcessKey, Option<UnitId>)>,
    /// Processes that changed their unit.
    pub moved: Vec<Moved>,
    /// Processes that stay in their unit, and that may now be moved into the unit's control group, or no
    /// longer may.
    pub regrouped: Vec<(ProcessKey, UnitId)>,
    /// Users, control groups and CPU limits that the scan found in units with `each`.
    pub seen: Seen,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// Records that a process ended. If the start of the process was not reported yet, neither its start nor
    /// its end is reported.
    fn note_end(&mut self, key: ProcessKey, unit: Option<UnitId>) {
        self.moved.retain(|moved| moved.key != key);
        self.regrouped.retain(|(regrouped, _)| *regrouped != key);
        let joined_before = self.joined.len();
        self.joined.retain(|(joined, _)| *joined != key);
        if self.joined.len() == joined_before {
            self.left.push((key, unit));
        }
    }
}

/// The kinds of facts that can change a process's unit under a contract. Only these facts are read
/// periodically.
#[derive(Debug, Clone, Copy, Default)]
struct Decisive {
    identity: bool,
    program: bool,
    cgroup: bool,
}

/// How members are moved into control groups of units.
#[derive(Debug, Clone, Default)]
struct Moving {
    /// The control group delegated to this program, if any, as /proc shows its path.
    delegated: Option<String>,
    /// Whether units are held in the control groups where their processes are, so that only processes that a
    /// rule names are moved.
    in_place: bool,
}

impl Decisive {
    /// The decisive facts under a contract, by the kinds of its rules.
    fn under(contract: &Contract) -> Decisive {
        let divides_users = contract.present().any(|unit| contract.unit(unit).each == Some(Each::User));
        let mut decisive = Decisive { identity: divides_users, ..Decisive::default() };
        for member in contract.units.iter().flat_map(|unit| &unit.members) {
            match member.kind {
                MemberKind::User(_) | MemberKind::Users(..) | MemberKind::Group(_) => {
                    decisive.identity = true;
                }
                MemberKind::Command(_) => decisive.program = true,
                MemberKind::CommandOf(..) => (decisive.program, decisive.identity) = (true, true),
                MemberKind::Cgroup(_) => decisive.cgroup = true,
                MemberKind::Pid(_) => {}
            }
        }
        decisive
    }
}

/// All processes, with their units.
#[derive(Debug)]
pub struct Roster {
    procfs: ProcFs,
    names: SystemNames,
    /// Pids that are in no unit: this program's processes, and process 1.
    excluded: BTreeSet<u32>,
    contract: Contract,
    decisive: Decisive,
    /// `None` if members stay in their control groups.
    moving: Option<Moving>,
    foreign_groups: foreign_groups::ForeignGroups,
    /// Where cgroup v2 is mounted, if units are held there.
    mount: Option<PathBuf>,
    /// Sub-units whose control groups are empty, each with the time since when.
    empty_since: BTreeMap<UnitId, Time>,
    scopes: scope::Scopes,
    /// Processes that share a control group with processes of other units, and may need a scope.
    in_mixed_groups: BTreeSet<u32>,
    known: BTreeMap<u32, Known>,
    /// Processes that entered by `exec`, each with its user and the path of its unit. Unit ids would change
    /// with the contract.
    entered: BTreeMap<ProcessKey, (u32, String)>,
    keeper: Option<Box<dyn KeepsEntered>>,
    /// Each user who entered a unit by `exec`, under this daemon or a previous one, with the unit's path. The
    /// [`MARKER`] of such a user's processes is trusted.
    grants: BTreeSet<(u32, String)>,
    accounts: Vec<account::Account>,
    /// The thread count and last pid in /proc/loadavg before the last listing; `None` forces the next scan to
    /// list again.
    births: Option<(u32, u32)>,
    /// Processes (pid and inode) that the last listing showed but that could not be read.
    unreadable: BTreeSet<(u32, u64)>,
    /// The number of this scan. Each CPU clock is read at most once per scan.
    scan: u64,
    /// The last scan whose clocks were accounted for.
    accounted: u64,
    /// The time of this scan.
    now: Time,
    origins: origin::Origins,
    /// Processes first seen less than a second ago.
    young: BTreeSet<u32>,
    /// Processes to place again.
    stale: BTreeSet<u32>,
    /// Changes found by scans that failed midway: already recorded in this roster, but not reported to the
    /// caller.
    unreported: Changes,
    /// Whether no scan has succeeded under the present contract yet.
    is_contract_new: bool,
    /// When the files of all processes were last due; `None` before the first scan.
    facts_at: Option<Time>,
    /// Reused buffers: the listing of /proc, and the threads of one process.
    listed: Vec<Listed>,
    threads: Vec<u32>,
}

/// The roster's record of a process.
#[derive(Debug)]
struct Known {
    member: Member,
    facts: ProcessFacts,
    /// The last placement of the process's parent, if the parent has ended. The process still inherits that
    /// placement.
    orphaned: Option<Placement>,
    /// The inode of its folder in /proc.
    inode: u64,
    /// The process is in a control group of this program.
    is_moved: bool,
    /// The process's control group, if that is a scope that systemd made for processes of units.
    scope: Option<String>,
    /// The process gets no scope, since systemd refused to make one.
    is_refused: bool,
    /// systemd has been asked to move the process into a scope.
    is_leaving: bool,
    /// When a scan first saw the process.
    seen_at: Time,
    /// The process's CPU clock when its facts were read.
    facts_cpu_ns: Option<u64>,
    /// The process has ended, and its parent has not waited for it.
    ended: bool,
    clocks: account::Clocks,
}

impl Roster {
    /// An empty roster. `proc` is `/proc`, or a fake tree in tests. `excluded` are pids to leave out besides
    /// this process and process 1, such as the caretaker's.
    pub fn new(proc: &Path, excluded: &[u32]) -> Result<Roster, LiveError> {
        let mut roster = Roster {
            procfs: ProcFs::open(proc)?,
            names: SystemNames::new(),
            excluded: BTreeSet::new(),
            contract: Contract::default(),
            decisive: Decisive::default(),
            moving: None,
            foreign_groups: foreign_groups::ForeignGroups::default(),
            mount: None,
            empty_since: BTreeMap::new(),
            scopes: scope::Scopes::default(),
            in_mixed_groups: BTreeSet::new(),
            known: BTreeMap::new(),
            entered: BTreeMap::new(),
            keeper: None,
            grants: BTreeSet::new(),
            accounts: Vec::new(),
            births: None,
            unreadable: BTreeSet::new(),
            scan: 0,
            accounted: 0,
            now: 0,
            origins: origin::Origins::default(),
            young: BTreeSet::new(),
            stale: BTreeSet::new(),
            unreported: Changes::default(),
            is_contract_new: false,
            facts_at: None,
            listed: Vec::new(),
            threads: Vec::new(),
        };
        roster.leave_out(excluded);
        Ok(roster)
    }

    /// Declares that the backend moves processes into the control group `subtree`, given as /proc shows its
    /// path, or below it. For `cgroup` rules, these processes still count as being in the groups that they
    /// came from.
    pub fn see_through(&mut self, subtree: &str) {
        self.origins.see_through(subtree);
    }

    /// Declares that the backend moves members into control groups of units where [`stays`] allows it.
    /// `delegated` is the control group delegated to this program, if any, as /proc shows its path.
    pub fn moves_members(&mut self, delegated: Option<String>) {
        self.moving = Some(Moving { delegated, in_place: false });
    }

    /// Declares that units are held in control groups of other programs, where their processes are. The
    /// backend then moves only processes that a rule names and that share a group with processes of other
    /// units.
    pub fn holds_in_place(&mut self) {
        self.moving = Some(Moving { delegated: None, in_place: true });
        self.origins.see_through_scopes(scope::SLICE);
    }

    /// Whether units are held in control groups of other programs.
    pub fn is_in_place(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.in_place)
    }

    /// The control groups of other programs in which units are held, as /proc shows their paths.
    pub fn foreign_groups(&self) -> &BTreeMap<String, UnitId> {
        &self.foreign_groups.unit_by_group
    }

    /// Why a process that enters a unit by `exec` will not be moved into the unit's control group; `None` if
    /// it will be moved, if this backend moves no members, or if the process has ended.
    pub fn stays_on_entering(&mut self, pid: u32) -> Result<Option<Stays>, LiveError> {
        let Some(Moving { delegated, in_place }) = &self.moving else { return Ok(None) };
        let Some(cgroup) = self.procfs.cgroup(pid)? else { return Ok(None) };
        let facts = ProcessFacts { cgroup, ..ProcessFacts::default() };
        let entered = Placement { named: true, ..Placement::by_default(UnitId::SHARED) };
        let stays = stays(&facts, &entered, delegated.as_deref());
        // A process that is alone in its group can be held in that group.
        let shares_group = |known: &Known| known.member.key.pid != pid && known.group() == facts.cgroup;
        let is_alone = || !self.known.values().any(|known| !known.ended && shares_group(known));
        Ok(if *in_place { stays.filter(|_| !is_alone()).map(|_| Stays::Mixed) } else { stays })
    }

    /// Reads the facts of these processes again, and places them accordingly.
    pub fn look_again(&mut self, pids: &[u32]) -> Result<Changes, LiveError> {
        let mut changes = std::mem::take(&mut self.unreported);
        let read = pids.iter().try_for_each(|pid| self.read_one_again(*pid, false, &mut changes));
        self.place_again(&mut changes);
        self.report(read, changes)
    }

    /// Returns the changes of a scan. After a failure, the changes are kept for the next scan to report.
    fn report(&mut self, scanned: Result<(), LiveError>, changes: Changes) -> Result<Changes, LiveError> {
        match scanned {
            Ok(()) => Ok(changes),
            Err(error) => {
                self.unreported = changes;
                Err(error)
            }
        }
    }

    /// Replaces the processes to leave out. This process and process 1 are always left out.
    pub fn leave_out(&mut self, excluded: &[u32]) {
        self.excluded = excluded.iter().copied().chain([1, std::process::id()]).collect();
        self.births = None;
    }

    /// Scans all processes and places them by the contract.
    ///
    /// # Errors
    /// Some processes could not be read. The next successful scan also reports the changes that this scan
    /// found.
    pub fn refresh(&mut self, contract: &Contract, now: Time, how: Scan) -> Result<Changes, LiveError> {
        let mut changes = std::mem::take(&mut self.unreported);
        let scanned = self.scan(contract, now, how, &mut changes);
        self.report(scanned, changes)
    }

    /// Finds and places processes that are new or changed, and adds the changes to `changes`.
    fn scan(
        &mut self,
        contract: &Contract,
        now: Time,
        how: Scan,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        self.scan += 1;
        self.now = now;
        let is_new = how == Scan::Full || contract.units.len() != self.contract.units.len();
        if how == Scan::Full {
            self.names.forget();
        }
        if is_new {
            self.adopt(contract, changes);
            // Stays set if this scan fails, so that the next one reads everything under the new contract.
            self.is_contract_new = true;
        }
        if self.names.retry_unanswered(now) {
            self.stale.extend(self.known.keys());
        }
        let read_all = self.is_contract_new;
        let is_first = self.facts_at.is_none();
        // Once a second, every process that may have changed is read, and not only the young ones.
        let all_are_due = read_all || self.facts_at.is_none_or(|at| now >= at.saturating_add(SECOND));
        self.list(now, is_first, all_are_due, changes)?;
        self.read_again(now, all_are_due, read_all, changes)?;
        if all_are_due {
            self.facts_at = Some(now);
        }
        self.is_contract_new = false;
        self.place_again(changes);
        self.assign_foreign_groups(all_are_due, changes);
        if !changes.is_empty() || read_all {
            changes.seen.newcomers = self.find_newcomers();
        }
        if all_are_due && self.divides_groups() {
            changes.seen.gone = self.find_gone(now);
        }
        Ok(())
    }

    /// Records that a process entered a unit by `exec`; the next scan places the process in that unit. The
    /// process's user is read from the kernel. Returns false if the process has ended.
    ///
    /// # Errors
    /// The process could not be recorded for the next daemon, or its files could not be read. It has then not
    /// entered.
    pub fn enter(&mut self, contract: &Contract, key: ProcessKey, unit: UnitId) -> Result<bool, LiveError> {
        let (stat, identity) = (self.procfs.stat(key.pid)?, self.procfs.identity(key.pid)?);
        let (Some(_), Some(identity)) = (stat.filter(|stat| stat.key == key), identity) else {
            return Ok(false);
        };
        let path = contract.unit(unit).path.clone();
        self.keep(key, identity.uid, &path)?;
        self.grants.insert((identity.uid, path.clone()));
        self.entered.insert(key, (identity.uid, path));
        self.stale.insert(key.pid);
        self.scopes.entering.insert(key);
        Ok(true)
    }

    /// Every process in a unit of the last scan's contract, the built-in units included, in the order of
    /// pids.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.known.values().filter(|known| !known.ended).map(|known| &known.member)
    }

    /// The processes in a unit, without those of sub-units, in the order of pids.
    pub fn members_of(&self, unit: UnitId) -> impl Iterator<Item = &Member> {
        self.members().filter(move |member| member.placement.unit == unit)
    }

    /// The process with this pid, if it is in a unit.
    pub fn member(&self, pid: u32) -> Option<&Member> {
        self.known.get(&pid).filter(|known| !known.ended).map(|known| &known.member)
    }

    /// Replaces the name service.
    #[cfg(test)]
    fn set_names(&mut self, names: SystemNames) {
        self.names = names;
    }

    /// The machine's users and groups.
    pub fn names(&self) -> &SystemNames {
        &self.names
    }

    /// The procfs that scans read.
    pub fn procfs(&mut self) -> &mut ProcFs {
        &mut self.procfs
    }

    /// A process's CPU clock as of this scan, or of an earlier one if the process has slept for long. A clock
    /// that stands still shows that the process did not run, so facts that only the process itself can change
    /// are unchanged. `None` if the clock is unknown: the process may have run.
    ///
    /// A caller that caches a file together with this clock must read the clock first: then a later scan
    /// notices a change that the process makes between the two readings.
    pub(crate) fn clock(&mut self, pid: u32) -> Option<u64> {
        let pass = self.this_pass();
        self.known.get_mut(&pid)?.clocks.read(pid, pass)
    }

    /// A process's CPU clock as of this scan, even if the process has slept for long.
    pub(crate) fn clock_now(&mut self, pid: u32) -> Option<u64> {
        let pass = self.this_pass().without_pause();
        self.known.get_mut(&pid)?.clocks.read(pid, pass)
    }

    /// Finds processes that started or ended. Unless `always` is true, /proc is listed only if /proc/loadavg
    /// shows that a process started or ended.
    fn list(
        &mut self,
        now: Time,
        is_first_scan: bool,
        always: bool,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        // Read before the listing: a process that starts during the listing changes the file again.
        let births = self.procfs.births()?;
        if !always && births.is_some() && births == self.births {
            return Ok(());
        }
        let mut listed = std::mem::take(&mut self.listed);
        let must_repeat = self
            .procfs
            .processes(&mut listed)
            .and_then(|()| self.compare(&listed, now, is_first_scan, changes));
        self.listed = listed;
        // After a failure, too, the next scan lists again.
        self.births = births.filter(|_| matches!(must_repeat, Ok(false)));
        must_repeat.map(|_| ())
    }

    /// Compares a listing of /proc with the known processes, and records which started or ended. Returns
    /// whether the next scan must list again, because a process could not be read: it ended meanwhile, or its
    /// files were incomplete.
    fn compare(
        &mut self,
        listed: &[Listed],
        now: Time,
        is_first_scan: bool,
        changes: &mut Changes,
    ) -> Result<bool, LiveError> {
        let mut unreadable = BTreeSet::new();
        let inodes: BTreeMap<u32, u64> = listed.iter().map(|entry| (entry.pid, entry.inode)).collect();
        let is_excluded = |pid: &u32| self.excluded.contains(pid);
        let mut ended: Vec<u32> =
            self.known.keys().copied().filter(|pid| !inodes.contains_key(pid) || is_excluded(pid)).collect();
        let mut new: BTreeMap<u32, Known> = BTreeMap::new();
        for (pid, inode) in inodes {
            if self.excluded.contains(&pid) || self.known.get(&pid).is_some_and(|known| known.inode == inode)
            {
                continue;
            }
            let stat = self.procfs.stat(pid)?;
            match (self.known.get_mut(&pid), stat) {
                (Some(known), Some(stat)) if known.member.key == stat.key => known.inode = inode,
                (known, stat) => {
                    // A reused pid: the process that had it has ended.
                    ended.extend(known.map(|_| pid));
                    let record = stat
                        .map(|stat| self.read_new(stat, inode, now, is_first_scan))
                        .transpose()?
                        .flatten();
                    if record.is_none() {
                        unreadable.insert((pid, inode));
                    }
                    new.extend(record.map(|known| (pid, known)));
                }
            }
        }
        self.forget_ended(&ended, changes);
        self.young.extend(new.keys());
        self.place_new(new, changes);
        // Repeat only once: a process that may never be read is unreadable in every listing.
        let must_repeat = !unreadable.is_subset(&self.unreadable);
        self.unreadable = unreadable;
        Ok(must_repeat)
    }

    /// Reads a process that was not known before; `None` if it ended meanwhile.
    fn read_new(
        &mut self,
        stat: Stat,
        inode: u64,
        now: Time,
        is_first_scan: bool,
    ) -> Result<Option<Known>, LiveError> {
        let cpu_ns = process_cpu_ns(stat.key.pid);
        // There may be thousands of zombies if a parent does not wait for its children: read no other file of
        // a zombie.
        let facts =
            if has_ended(&stat) { Some(ProcessFacts::default()) } else { self.read_facts(&stat, None)? };
        let Some(facts) = facts else { return Ok(None) };
        // CPU time from before the very first scan is charged to no unit. After that scan, a new process has
        // started since the previous scan, so all its CPU time is charged.
        let clocks = account::Clocks::new(if is_first_scan { cpu_ns } else { Some(0) });
        let placement = Placement::by_default(UnitId::SHARED);
        Ok(Some(Known {
            ended: has_ended(&stat),
            member: Member {
                key: stat.key,
                placement,
                uid: facts.uid,
                session: stat.session,
                parent: stat.parent,
                comm: stat.comm,
                stays: None,
            },
            facts,
            orphaned: None,
            inode,
            is_moved: false,
            scope: None,
            is_refused: false,
            is_leaving: false,
            // A process seen by the first scan is past its first exec, so it is not young.
            seen_at: if is_first_scan { now.saturating_sub(SECOND) } else { now },
            facts_cpu_ns: cpu_ns,
            clocks,
        }))
    }

    /// Reads the facts of a process from /proc; `None` if it ended meanwhile. Facts that cannot change the
    /// process's unit are copied from `earlier`; if `earlier` is `None`, all facts are read.
    fn read_facts(
        &mut self,
        stat: &Stat,
        earlier: Option<ProcessFacts>,
    ) -> Result<Option<ProcessFacts>, LiveError> {
        let pid = stat.key.pid;
        if stat.kernel_thread {
            let comm = stat.comm.clone();
            return Ok(Some(ProcessFacts { pid, comm, kernel_thread: true, ..ProcessFacts::default() }));
        }
        let all = earlier.is_none();
        let mut facts = earlier.unwrap_or_default();
        (facts.pid, facts.kernel_thread) = (pid, false);
        if all || self.decisive.identity {
            let Some(identity) = self.procfs.identity(pid)? else { return Ok(None) };
            (facts.uid, facts.gids) = (identity.uid, identity.gids);
        }
        if all || self.decisive.program {
            let Some(names) = self.procfs.program(pid, &stat.comm)? else { return Ok(None) };
            (facts.program, facts.comm) = (names.file, names.called);
        }
        if all || self.decisive.cgroup || self.moving.is_some() {
            let Some(cgroup) = self.procfs.cgroup(pid)? else { return Ok(None) };
            facts.cgroup = cgroup;
        }
        facts.manager = self.procfs.is_service_manager(pid, &stat.comm);
        Ok(Some(facts))
    }

    /// Forgets processes that ended. Their children keep the placements that they inherited.
    fn forget_ended(&mut self, ended: &[u32], changes: &mut Changes) {
        let mut placements = BTreeMap::new();
        // Children before their parents: CPU time already charged for a grandchild passes to the parent
        // through the child.
        let mut youngest_first: Vec<(u64, u32)> =
            ended.iter().filter_map(|pid| Some((self.known.get(pid)?.member.key.start, *pid))).collect();
        youngest_first.sort_unstable_by_key(|key| std::cmp::Reverse(*key));
        for (_, pid) in youngest_first {
            let Some(known) = self.known.remove(&pid) else { continue };
            self.entered.remove(&known.member.key);
            self.scopes.entering.remove(&known.member.key);
            placements.insert(pid, known.member.placement);
            if let Some(parent) = self.known.get_mut(&known.member.parent) {
                parent.clocks.expect_from_child(known.clocks.already_charged_ns());
            }
            if !known.ended {
                changes.note_end(known.member.key, unit_if_there(known.member.placement.unit));
            }
        }
        if !placements.is_empty() {
            for known in self.known.values_mut() {
                if let Some(placement) = placements.get(&known.member.parent) {
                    known.orphan(Some(*placement));
                }
            }
        }
    }

    /// Reads again the facts of processes that may have changed. These are the young processes; if
    /// `all_are_due`, also every process that ran. If `is_contract_new`, all facts of all processes are read,
    /// of sleeping ones, too.
    fn read_again(
        &mut self,
        now: Time,
        all_are_due: bool,
        is_contract_new: bool,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        // With `cgroup` rules, another process may have moved a sleeping one.
        let reads_sleeping = is_contract_new || (all_are_due && self.decisive.cgroup);
        let pass = self.this_pass();
        let mut due = Vec::new();
        let is_young = |known: &Known| now < known.seen_at.saturating_add(SECOND);
        let mut add_if_due = |pid: u32, known: &mut Known| {
            // A young kernel thread is read again: it may have been about to exec a user-mode helper program.
            let young = is_young(known);
            let may_change = if known.facts.kernel_thread { young } else { all_are_due || young };
            if !known.ended
                && may_change
                && (reads_sleeping || known.clocks.read(pid, pass) != known.facts_cpu_ns)
            {
                due.push((pid, is_contract_new || young));
            }
        };
        self.young.retain(|pid| self.known.get(pid).is_some_and(is_young));
        if all_are_due {
            self.known.iter_mut().for_each(|(pid, known)| add_if_due(*pid, known));
        } else {
            // Visit only the young ones: few of many thousand processes are.
            for pid in &self.young {
                if let Some(known) = self.known.get_mut(pid) {
                    add_if_due(*pid, known);
                }
            }
        }
        for (pid, all_facts) in due {
            self.read_one_again(pid, all_facts, changes)?;
        }
        Ok(())
    }

    /// Reads one process's facts again: all facts if `all_facts`, otherwise those that can change the
    /// process's unit.
    fn read_one_again(&mut self, pid: u32, all_facts: bool, changes: &mut Changes) -> Result<(), LiveError> {
        let cpu_ns = self.clock(pid);
        let stat = self.procfs.stat(pid)?;
        let earlier = self.known.get(&pid).filter(|_| !all_facts).map(|known| known.facts.clone());
        let facts = stat.as_ref().map(|stat| self.read_facts(stat, earlier)).transpose()?.flatten();
        let (Some(stat), Some(mut facts)) = (stat, facts) else { return Ok(()) };
        let Some(known) = self.known.get_mut(&pid) else { return Ok(()) };
        if known.member.key != stat.key {
            // The pid was reused, and the directory's inode did not reveal it: list again at the next scan.
            (known.inode, self.births) = (0, None);
            return Ok(());
        }
        known.facts_cpu_ns = cpu_ns;
        known.member.uid = facts.uid;
        known.member.session = stat.session;
        known.member.comm.clone_from(&stat.comm);
        known.is_moved = self.origins.is_own(&facts.cgroup);
        let scope = self.origins.is_scope(&facts.cgroup).then(|| facts.cgroup.clone());
        if known.scope != scope {
            known.scope = scope;
            self.stale.insert(pid);
        }
        facts.cgroup = self.origins.origin_of(facts.cgroup, &known.facts.cgroup);
        if known.facts != facts {
            known.facts = facts;
            self.stale.insert(pid);
        }
        if has_ended(&stat) && !known.ended {
            known.ended = true;
            changes.note_end(stat.key, unit_if_there(known.member.placement.unit));
        }
        let previous_parent = known.member.parent;
        if previous_parent != stat.parent && previous_parent != 0 {
            let placement = self.known.get(&previous_parent).map(|parent| parent.member.placement);
            // The process keeps the placement that it inherited, and its children inherit as before: none is
            // placed again.
            self.known.entry(pid).and_modify(|known| known.orphan(placement));
        }
        Ok(())
    }
}

impl Known {
    /// The scope in which the process is, if any; otherwise the control group in which `cgroup` rules see the
    /// process.
    fn group(&self) -> &str {
        self.scope.as_deref().unwrap_or(&self.facts.cgroup)
    }

    /// Records that the process's parent ended, and keeps the parent's last placement, if known, since the
    /// process inherits it.
    fn orphan(&mut self, parents_placement: Option<Placement>) {
        self.member.parent = 0;
        if parents_placement.is_some() {
            self.orphaned = parents_placement;
        }
    }
}

/// Whether a process is a zombie. A process of which only the first thread ended has the same state, but
/// several threads.
fn has_ended(stat: &Stat) -> bool {
    stat.state == ThreadState::Ended && stat.threads <= 1
}

/// Why a process may not be moved out of its control group; `None` if it may be moved, or if this backend
/// moves no members.
fn stays_of(roster: &Roster, known: &Known) -> Option<Stays> {
    let Moving { delegated, in_place } = roster.moving.as_ref()?;
    if known.member.placement.unit.is_common() {
        return None;
    }
    if *in_place {
        return roster.stays_in_place(known);
    }
    stays(&known.facts, &known.member.placement, delegated.as_deref())
}

/// The unit and the rule that the policy chooses for a process, which may inherit its parent's placement. The
/// user and the groups are those of the user for whom the process counts.
fn placement_of(roster: &Roster, known: &Known) -> Placement {
    let parent = roster.known.get(&known.member.parent).map(|parent| parent.member.placement);
    let entered = roster.entered.get(&known.member.key).and_then(|(_, path)| roster.contract.find(path));
    let mut facts = ProcessFacts { parent: parent.or(known.orphaned), entered, ..known.facts.clone() };
    let user = roster.user_of(&facts);
    if user != facts.uid {
        (facts.uid, facts.gids) = (user, roster.names.groups_of(user));
    }
    place(&roster.contract, &roster.names, &facts)
}
