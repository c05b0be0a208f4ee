//! The roster: which process is in which unit, and what each unit's processes use.
//!
//! Problem: members fork, exec, change their user and exit all the time. Looking at every file of every process ten
//! times a second would cost more than the contract is worth.
//!
//! Algorithm: a look begins with one small file, /proc/loadavg. It has the number of threads, and the number last
//! given to a new one. While both are unchanged, nothing was born and nothing ended. Otherwise /proc is listed. A
//! process's own files are read when it is new, and then only after it has run: a process that sleeps can neither exec
//! nor change its user.
//! - While it is younger than a second, they are read at every look, since it is about to exec.
//! - Afterwards they are read once a second, and only those that can change its unit under this contract.
//! - Where the contract has `cgroup` rules, all processes are read once a second, since another may move a sleeper.
//!
//! Cost: of a process that sleeps, a look reads the CPU clock, by one system call. All parts of a look share that reading
//! ([`Roster::clock`]), and skip the files of a process that did not run. The longer a process has slept, the rarer are the
//! readings ([`account`]): cost follows what runs.
//!
//! Placement is the policy's ([`place`]); parents are placed before their children. A process whose parent is gone
//! keeps what it inherited. One whose parent was gone before the first look is taken for a descendant of its session's
//! leader. Or it is taken for one of the unit that its environment names ([`MARKER`]), where its user, or root, did
//! enter that unit by `exec`.
//!
//! Names of users and groups that this machine does not know yet are looked up again once a minute, by a thread of its
//! own ([`SystemNames`]). An answer that names somebody places everybody anew.
//!
//! Properties: a process is known by number and start time. The program itself, the processes that it is told to leave
//! out, and process 1 are in no unit. Kernel threads are placed in `kernel`, for the count.
//!
//! CPU time of short lives: some is not seen, of a process between the last look and its end, or of one that lived too
//! briefly to be seen. It is counted when its parent waits for it, in the parent's unit.
//!
//! Limits: where no member waits for such a process (its parent is gone, or ignores its children), that time is not
//! counted: the ledger calls it common. A process that daemonises with a new session between two looks, without having
//! entered by `exec`, is placed by its user, group or cgroup.

mod account;
mod each;
mod entered;
mod inherit;
mod origin;
mod place;
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
use crate::observe::process::{Listed, ProcFs, ProcessKey, Stat, State};

pub use each::Seen;
pub use entered::{Entered, KeepsEntered};
use inherit::unit_if_there;

pub use scope::Due;

/// The variable that `exec` sets to a [`marker`] of the unit, so that a descendant is recognised when its parents are gone.
pub const MARKER: &str = "COMMONHOLD_UNIT";

/// The value of [`MARKER`] for a unit of one daemon, known by its process: what another daemon let in is no member here.
pub fn marker(daemon: u32, unit: &str) -> String {
    format!("{daemon}:{unit}")
}

/// How often facts that seldom change are read again, and how long a process counts as new. Nanoseconds.
const SECOND: Time = 1_000_000_000;

/// How thoroughly to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// What the time since the last look asks for.
    Quick,
    /// Everything about every process: the contract changed.
    Full,
}

/// A process in a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub key: ProcessKey,
    /// Its unit, and the rule that put it there.
    pub placement: Placement,
    /// Its effective user.
    pub uid: u32,
    /// Its session.
    pub session: u32,
    /// Its parent when it was looked at last; 0 when that is gone.
    pub parent: u32,
    /// The kernel's name of its program.
    pub comm: String,
    /// Why it may not be moved out of the control group that it is in; `None` where it may, or where nobody would.
    pub stays: Option<Stays>,
}

/// A process that changed its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The process.
    pub key: ProcessKey,
    /// Its unit so far; `None` if the contract has it no more.
    pub from: Option<UnitId>,
    /// Its unit now.
    pub to: UnitId,
}

/// What changed between two looks. Ids are those of the contract given to the later one. A look that failed midway tells
/// nothing; what it found is told by the next one that does not fail.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Processes seen for the first time, parents before their children.
    pub joined: Vec<(ProcessKey, UnitId)>,
    /// Processes that ended, and where they were.
    pub left: Vec<(ProcessKey, Option<UnitId>)>,
    /// Processes that changed their unit.
    pub moved: Vec<Moved>,
    /// Processes that stay in their unit and may now be moved into its control group, or no longer may.
    pub regrouped: Vec<(ProcessKey, UnitId)>,
    /// What was seen of units with `each`.
    pub seen: Seen,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// Notes an end. A process that nobody was told of leaves no more than it joined.
    fn note_end(&mut self, key: ProcessKey, unit: Option<UnitId>) {
        self.moved.retain(|moved| moved.key != key);
        self.regrouped.retain(|(regrouped, _)| *regrouped != key);
        let told = self.joined.len();
        self.joined.retain(|(joined, _)| *joined != key);
        if self.joined.len() == told {
            self.left.push((key, unit));
        }
    }
}

/// Which facts about a process can change its unit under a contract: no others are read again and again.
#[derive(Debug, Clone, Copy, Default)]
struct Decisive {
    identity: bool,
    program: bool,
    cgroup: bool,
}

/// That members are moved into control groups of units.
#[derive(Debug, Clone, Default)]
struct Moving {
    /// The control group that was given to this program, as /proc shows its path, if one was.
    delegated: Option<String>,
    /// Whether units are held where their processes are, and only those are moved that a rule names.
    in_place: bool,
}

impl Decisive {
    fn under(contract: &Contract) -> Decisive {
        let each = contract.present().any(|unit| contract.unit(unit).each == Some(Each::User));
        let mut decisive = Decisive { identity: each, ..Decisive::default() };
        for member in contract.units.iter().flat_map(|unit| &unit.members) {
            match member.kind {
                MemberKind::User(_) | MemberKind::Group(_) => decisive.identity = true,
                MemberKind::Command(_) => decisive.program = true,
                MemberKind::CommandOf(..) => (decisive.program, decisive.identity) = (true, true),
                MemberKind::Cgroup(_) => decisive.cgroup = true,
                MemberKind::Pid(_) => {}
            }
        }
        decisive
    }
}

/// Who is where.
#[derive(Debug)]
pub struct Roster {
    procfs: ProcFs,
    names: SystemNames,
    own: BTreeSet<u32>,
    contract: Contract,
    decisive: Decisive,
    /// `None` where members stay in the control groups that they are in.
    moving: Option<Moving>,
    places: place::Places,
    /// Where version 2 of control groups is mounted, if units are held there.
    mount: Option<PathBuf>,
    /// Since when nobody is in a control group that has a sub-unit.
    empty_since: BTreeMap<UnitId, Time>,
    scopes: scope::Scopes,
    /// Processes beside those of other units: of these, some are to get a scope.
    beside: BTreeSet<u32>,
    known: BTreeMap<u32, Known>,
    /// Users and units; these by path, since ids change with the contract.
    entered: BTreeMap<ProcessKey, (u32, String)>,
    keeper: Option<Box<dyn KeepsEntered>>,
    /// Users that entered a unit by `exec` since this roster began, or before and are kept: whom the marker is believed.
    grants: BTreeSet<(u32, String)>,
    accounts: Vec<account::Account>,
    /// What /proc/loadavg said before the last listing.
    births: Option<(u32, u32)>,
    /// Listed by the last listing, and not met: processes and their inodes.
    missed: BTreeSet<(u32, u64)>,
    /// Numbers the looks: a CPU clock is read once in each.
    look: u64,
    /// The last look whose clocks were accounted for.
    accounted: u64,
    /// The time of this look.
    now: Time,
    origins: origin::Origins,
    /// Processes that were seen for the first time less than a second ago.
    young: BTreeSet<u32>,
    /// Processes to place again.
    stale: BTreeSet<u32>,
    /// What looks found that failed midway: it is remembered here by then, and nobody was told.
    untold: Changes,
    /// Whether a look under another contract has not come to its end yet.
    anew: bool,
    /// When facts were read again last; `None` before the first look.
    facts_at: Option<Time>,
    listed: Vec<Listed>,
    threads: Vec<u32>,
}

/// What is remembered of a process.
#[derive(Debug)]
struct Known {
    member: Member,
    facts: ProcessFacts,
    /// Where its parent was placed when that ended.
    orphaned: Option<Placement>,
    inode: u64,
    /// It stands in a control group of ours.
    is_moved: bool,
    /// The control group that it is in, where that is a scope for processes of units.
    scope: Option<String>,
    /// It is to get no scope, since systemd made none for it.
    is_refused: bool,
    /// systemd is asked for a scope for it.
    is_leaving: bool,
    seen_at: Time,
    /// Its CPU clock when its facts were read.
    facts_cpu_ns: Option<u64>,
    /// Ended and not yet waited for by its parent.
    ended: bool,
    clocks: account::Clocks,
}

impl Roster {
    /// An empty roster. `proc` is `/proc`, or a fake tree in tests; `own` are processes to leave out besides this one:
    /// the caretaker.
    pub fn new(proc: &Path, own: &[u32]) -> Result<Roster, LiveError> {
        let mut roster = Roster {
            procfs: ProcFs::open(proc)?,
            names: SystemNames::new(),
            own: BTreeSet::new(),
            contract: Contract::default(),
            decisive: Decisive::default(),
            moving: None,
            places: place::Places::default(),
            mount: None,
            empty_since: BTreeMap::new(),
            scopes: scope::Scopes::default(),
            beside: BTreeSet::new(),
            known: BTreeMap::new(),
            entered: BTreeMap::new(),
            keeper: None,
            grants: BTreeSet::new(),
            accounts: Vec::new(),
            births: None,
            missed: BTreeSet::new(),
            look: 0,
            accounted: 0,
            now: 0,
            origins: origin::Origins::default(),
            young: BTreeSet::new(),
            stale: BTreeSet::new(),
            untold: Changes::default(),
            anew: false,
            facts_at: None,
            listed: Vec::new(),
            threads: Vec::new(),
        };
        roster.leave_out(own);
        Ok(roster)
    }

    /// Tells that processes are moved to this control group and below it, as /proc shows its path, on the contract's
    /// account: for `cgroup` rules they go on to count as standing where they were.
    pub fn see_through(&mut self, subtree: &str) {
        self.origins.see_through(subtree);
    }

    /// Tells that members are moved into control groups of units, as far as [`stays`] allows. `delegated` is the control group
    /// that was given to this program, as /proc shows its path, if one was.
    pub fn moves_members(&mut self, delegated: Option<String>) {
        self.moving = Some(Moving { delegated, in_place: false });
    }

    /// Tells that units are held in control groups of other programs, where their processes are, and that only processes are
    /// moved that a rule names, and that stand among others'.
    pub fn holds_in_place(&mut self) {
        self.moving = Some(Moving { delegated: None, in_place: true });
        self.origins.see_through_scopes(scope::SLICE);
    }

    /// Whether units are held in control groups of other programs.
    pub fn is_in_place(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.in_place)
    }

    /// The control groups of other programs that units are held in, as /proc shows their paths.
    pub fn places(&self) -> &BTreeMap<String, UnitId> {
        &self.places.held
    }

    /// Why a process that enters a unit by `exec` is not moved into the unit's control group; `None` if it is, if nobody is
    /// moved, or if the process is gone.
    pub fn stays_on_entering(&mut self, pid: u32) -> Result<Option<Stays>, LiveError> {
        let Some(Moving { delegated, in_place }) = &self.moving else { return Ok(None) };
        let Some(cgroup) = self.procfs.cgroup(pid)? else { return Ok(None) };
        let facts = ProcessFacts { cgroup, ..ProcessFacts::default() };
        let entered = Placement { named: true, ..Placement::by_default(UnitId::SHARED) };
        let stays = stays(&facts, &entered, delegated.as_deref());
        // Alone in its group it is held there.
        let beside = |known: &Known| known.member.key.pid != pid && known.group() == facts.cgroup;
        let is_alone = || !self.known.values().any(|known| !known.ended && beside(known));
        Ok(if *in_place { stays.filter(|_| !is_alone()).map(|_| Stays::Mixed) } else { stays })
    }

    /// Reads again what is known of these processes, and places them by that.
    pub fn look_again(&mut self, pids: &[u32]) -> Result<Changes, LiveError> {
        let mut changes = std::mem::take(&mut self.untold);
        let read = pids.iter().try_for_each(|pid| self.read_one_again(*pid, false, &mut changes));
        self.place_again(&mut changes);
        self.tell(read, changes)
    }

    /// What a look found; if it failed, the next one tells it.
    fn tell(&mut self, looked: Result<(), LiveError>, changes: Changes) -> Result<Changes, LiveError> {
        match looked {
            Ok(()) => Ok(changes),
            Err(error) => {
                self.untold = changes;
                Err(error)
            }
        }
    }

    /// Replaces the processes to leave out; this one and process 1 always are.
    pub fn leave_out(&mut self, own: &[u32]) {
        self.own = own.iter().copied().chain([1, std::process::id()]).collect();
        self.births = None;
    }

    /// Looks who is there and puts everybody where the contract says. An error means that not everything could be seen.
    /// What was found before it is told by the next look that does not fail.
    pub fn refresh(&mut self, contract: &Contract, now: Time, how: Scan) -> Result<Changes, LiveError> {
        let mut changes = std::mem::take(&mut self.untold);
        let looked = self.look(contract, now, how, &mut changes);
        self.tell(looked, changes)
    }

    fn look(
        &mut self,
        contract: &Contract,
        now: Time,
        how: Scan,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        self.look += 1;
        self.now = now;
        let anew = how == Scan::Full || contract.units.len() != self.contract.units.len();
        if how == Scan::Full {
            self.names.forget();
        }
        if anew {
            self.adopt(contract, changes);
            self.anew = true;
        }
        if self.names.look_again(now) {
            self.stale.extend(self.known.keys());
        }
        let anew = self.anew;
        let first = self.facts_at.is_none();
        let thorough = anew || self.facts_at.is_none_or(|at| now >= at.saturating_add(SECOND));
        self.list(now, first, thorough, changes)?;
        self.read_again(now, thorough, anew, changes)?;
        if thorough {
            self.facts_at = Some(now);
        }
        self.anew = false;
        self.place_again(changes);
        self.find_places(thorough, changes);
        if !changes.is_empty() || anew {
            changes.seen.newcomers = self.find_newcomers();
        }
        if thorough && self.divides_groups() {
            changes.seen.gone = self.find_gone(now);
        }
        Ok(())
    }

    /// Notes that a process entered a unit by `exec`; the next look puts it there. Its user is read from the kernel.
    /// False if the process is gone. An error if it could not be kept for the next daemon: then it is in no unit by that.
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

    /// Every process in a unit of the contract looked at last, the common parts included, by number.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.known.values().filter(|known| !known.ended).map(|known| &known.member)
    }

    /// The processes directly in a unit, by number.
    pub fn members_of(&self, unit: UnitId) -> impl Iterator<Item = &Member> {
        self.members().filter(move |member| member.placement.unit == unit)
    }

    /// The process with that number, if it is in a unit.
    pub fn member(&self, pid: u32) -> Option<&Member> {
        self.known.get(&pid).filter(|known| !known.ended).map(|known| &known.member)
    }

    /// Places processes by another name service from now on.
    #[cfg(test)]
    fn ask_names_of(&mut self, names: SystemNames) {
        self.names = names;
    }

    /// The machine's users and groups.
    pub fn names(&self) -> &SystemNames {
        &self.names
    }

    /// The procfs that is looked at.
    pub fn procfs(&mut self) -> &mut ProcFs {
        &mut self.procfs
    }

    /// A process's CPU clock as of this look, or of an earlier one if it has slept for long. While it stays the same, the process
    /// did not run: what only a process itself can change is as it was. `None` tells nothing. Read before the files that are
    /// remembered with it: what it does meanwhile shows at a later look.
    pub(crate) fn clock(&mut self, pid: u32) -> Option<u64> {
        let look = self.this_look();
        self.known.get_mut(&pid)?.clocks.read(pid, look)
    }

    /// The same as of this look, however long the process has slept.
    pub(crate) fn clock_now(&mut self, pid: u32) -> Option<u64> {
        let look = self.this_look().without_pause();
        self.known.get_mut(&pid)?.clocks.read(pid, look)
    }

    /// Takes note of who came and who went.
    fn list(
        &mut self,
        now: Time,
        first: bool,
        thorough: bool,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        // Read before the listing: what is born during it changes the file again.
        let births = self.procfs.births()?;
        if !thorough && births.is_some() && births == self.births {
            return Ok(());
        }
        let mut listed = std::mem::take(&mut self.listed);
        let again =
            self.procfs.processes(&mut listed).and_then(|()| self.compare(&listed, now, first, changes));
        self.listed = listed;
        // After a failure, too, the next look lists again.
        self.births = births.filter(|_| matches!(again, Ok(false)));
        again.map(|_| ())
    }

    /// Whether to list again: a process could not be met, since it ended, or since its files told too little.
    fn compare(
        &mut self,
        listed: &[Listed],
        now: Time,
        first: bool,
        changes: &mut Changes,
    ) -> Result<bool, LiveError> {
        let mut missed = BTreeSet::new();
        let there: BTreeMap<u32, u64> = listed.iter().map(|entry| (entry.pid, entry.inode)).collect();
        let gone =
            self.known.keys().copied().filter(|pid| !there.contains_key(pid) || self.own.contains(pid));
        let mut gone: Vec<u32> = gone.collect();
        let mut new: BTreeMap<u32, Known> = BTreeMap::new();
        for (pid, inode) in there {
            if self.own.contains(&pid) || self.known.get(&pid).is_some_and(|known| known.inode == inode) {
                continue;
            }
            let stat = self.procfs.stat(pid)?;
            match (self.known.get_mut(&pid), stat) {
                (Some(known), Some(stat)) if known.member.key == stat.key => known.inode = inode,
                (known, stat) => {
                    // A reused number: the process that had it is gone.
                    gone.extend(known.map(|_| pid));
                    let met = stat.map(|stat| self.meet(stat, inode, now, first)).transpose()?.flatten();
                    if met.is_none() {
                        missed.insert((pid, inode));
                    }
                    new.extend(met.map(|known| (pid, known)));
                }
            }
        }
        self.part(&gone, changes);
        self.young.extend(new.keys());
        self.welcome(new, changes);
        // Once more: what may not be looked at at all is missed each time.
        let again = !missed.is_subset(&self.missed);
        self.missed = missed;
        Ok(again)
    }

    /// A process seen for the first time; `None` if it ended meanwhile.
    fn meet(&mut self, stat: Stat, inode: u64, now: Time, first: bool) -> Result<Option<Known>, LiveError> {
        let cpu_ns = process_cpu_ns(stat.key.pid);
        // Where nobody waits for them, those that ended are many: nothing more is read of them.
        let facts =
            if has_ended(&stat) { Some(ProcessFacts::default()) } else { self.read_facts(&stat, None)? };
        let Some(facts) = facts else { return Ok(None) };
        // What it used before the first look of all belongs to nobody; afterwards it was born since the last look.
        let clocks = account::Clocks::new(if first { cpu_ns } else { Some(0) });
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
            // What was there at the first look is past its first exec.
            seen_at: if first { now.saturating_sub(SECOND) } else { now },
            facts_cpu_ns: cpu_ns,
            clocks,
        }))
    }

    /// What /proc says of a process; `None` if it ended meanwhile. What is not decisive stays as it was `before`.
    fn read_facts(
        &mut self,
        stat: &Stat,
        before: Option<ProcessFacts>,
    ) -> Result<Option<ProcessFacts>, LiveError> {
        let pid = stat.key.pid;
        if stat.kernel_thread {
            let comm = stat.comm.clone();
            return Ok(Some(ProcessFacts { pid, comm, kernel_thread: true, ..ProcessFacts::default() }));
        }
        let all = before.is_none();
        let mut facts = before.unwrap_or_default();
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

    /// Forgets processes that ended; their children remember where they were.
    fn part(&mut self, gone: &[u32], changes: &mut Changes) {
        let mut parents = BTreeMap::new();
        // Children before their parents: what was counted of a grandchild passes through the child.
        let mut youngest_first: Vec<(u64, u32)> =
            gone.iter().filter_map(|pid| Some((self.known.get(pid)?.member.key.start, *pid))).collect();
        youngest_first.sort_unstable_by_key(|key| std::cmp::Reverse(*key));
        for (_, pid) in youngest_first {
            let Some(known) = self.known.remove(&pid) else { continue };
            self.entered.remove(&known.member.key);
            self.scopes.entering.remove(&known.member.key);
            parents.insert(pid, known.member.placement);
            if let Some(parent) = self.known.get_mut(&known.member.parent) {
                parent.clocks.inherit(known.clocks.bequest());
            }
            if !known.ended {
                changes.note_end(known.member.key, unit_if_there(known.member.placement.unit));
            }
        }
        if !parents.is_empty() {
            for known in self.known.values_mut() {
                if let Some(placement) = parents.get(&known.member.parent) {
                    known.orphan(Some(*placement));
                }
            }
        }
    }

    /// Reads the facts again of those that may have changed them.
    fn read_again(
        &mut self,
        now: Time,
        thorough: bool,
        all: bool,
        changes: &mut Changes,
    ) -> Result<(), LiveError> {
        let movable = all || (thorough && self.decisive.cgroup);
        let look = self.this_look();
        let mut due = Vec::new();
        let is_young = |known: &Known| now < known.seen_at.saturating_add(SECOND);
        let mut judge = |pid: u32, known: &mut Known| {
            // A kernel thread is looked at again once: it may have been on its way to become a user's helper program.
            let young = is_young(known);
            let may_change = if known.facts.kernel_thread { young } else { thorough || young };
            if !known.ended && may_change && (movable || known.clocks.read(pid, look) != known.facts_cpu_ns) {
                due.push((pid, all || young));
            }
        };
        self.young.retain(|pid| self.known.get(pid).is_some_and(is_young));
        if thorough {
            self.known.iter_mut().for_each(|(pid, known)| judge(*pid, known));
        } else {
            // Of many thousand processes, few are young.
            for pid in &self.young {
                if let Some(known) = self.known.get_mut(pid) {
                    judge(*pid, known);
                }
            }
        }
        for (pid, whole) in due {
            self.read_one_again(pid, whole, changes)?;
        }
        Ok(())
    }

    /// `whole`: also what is not decisive.
    fn read_one_again(&mut self, pid: u32, whole: bool, changes: &mut Changes) -> Result<(), LiveError> {
        let cpu_ns = self.clock(pid);
        let stat = self.procfs.stat(pid)?;
        let before = self.known.get(&pid).filter(|_| !whole).map(|known| known.facts.clone());
        let facts = stat.as_ref().map(|stat| self.read_facts(stat, before)).transpose()?.flatten();
        let (Some(stat), Some(mut facts)) = (stat, facts) else { return Ok(()) };
        let Some(known) = self.known.get_mut(&pid) else { return Ok(()) };
        if known.member.key != stat.key {
            // A reused number that the directory's inode did not tell: list again at the next look.
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
        facts.cgroup = self.origins.counts_as(facts.cgroup, &known.facts.cgroup);
        if known.facts != facts {
            known.facts = facts;
            self.stale.insert(pid);
        }
        if has_ended(&stat) && !known.ended {
            known.ended = true;
            changes.note_end(stat.key, unit_if_there(known.member.placement.unit));
        }
        let before = known.member.parent;
        if before != stat.parent && before != 0 {
            let placement = self.known.get(&before).map(|parent| parent.member.placement);
            // Its children inherit from it as before, it from its memory: nobody needs to be placed again for that.
            self.known.entry(pid).and_modify(|known| known.orphan(placement));
        }
        Ok(())
    }
}

impl Known {
    /// The control group that it is in, or counts as being in.
    fn group(&self) -> &str {
        self.scope.as_deref().unwrap_or(&self.facts.cgroup)
    }

    /// Its parent ended: what it inherited from it stays.
    fn orphan(&mut self, parent: Option<Placement>) {
        self.member.parent = 0;
        if parent.is_some() {
            self.orphaned = parent;
        }
    }
}

/// A first thread that ended while others go on is shown like a process that ended, but for the count of threads.
fn has_ended(stat: &Stat) -> bool {
    stat.state == State::Ended && stat.threads <= 1
}

/// Why a process may not be moved out of its control group.
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

/// Where a process belongs, given what is known of its ancestors.
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
