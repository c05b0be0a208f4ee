//! The `cgroup` backend: units as control groups (version 2).
//!
//! Problem: keep each unit to its CPUs, weight and cap, whatever its processes do, and have the kernel
//! account exactly for the CPU time that they use.
//!
//! Algorithm: the daemon's own subtree (`claim`) has one cgroup per unit (`layout`, `groups`). Processes are
//! moved in when the roster finds them; their children inherit the cgroup (`members`). Orders become writes
//! to cpuset.cpus, cpu.weight, cpu.max and cgroup.freeze (`order`, `knob`). Each write is read back, and a
//! value that is not in force is an error. A gang is only a part of a unit and has no cgroup, so signals stop
//! its processes ([`stops`](super::stops)). Where systemd or another manager owns the cgroups, units are held
//! in that manager's cgroups (`foreign_groups`).
//!
//! Facts: CPU time is read from cpu.stat of the unit's cgroup, which includes exited processes (`usage`).
//! Runnable threads and the time they waited come from the roster, which sums /proc/PID/task/TID/schedstat as
//! for the `user` backend. They do not come from cpu.pressure, which has a different measure: the time in
//! which *any* thread waited. A stopped unit counts the threads that were runnable when it was stopped.
//!
//! Properties:
//! - Every change is in the journal before it is made, so that the caretaker can undo it.
//! - Processes of the built-in units are never moved.
//! - A failure on one unit or process does not affect the others.
//!
//! Limits: inside a delegated cgroup, only processes that are already below that cgroup can be moved; every
//! other process is reported once. A cap below 0.1 % of a CPU is rounded up to 0.1 %.

mod carry_out;
mod claim;
mod disk;
mod exposure;
mod facts;
mod follow;
mod foreign_groups;
mod groups;
pub mod io_cost;
mod jobs;
mod knob;
mod layout;
mod members;
pub(crate) mod memory;
mod order;
mod scopes;
mod systemd;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use commonhold_contract::{Contract, GangsShare, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::{DiskMeans, Means, MemoryMeans, Plan, Snapshot, Time, UnitFacts};

use super::bus::resctrl::Bus;
use super::confine::{Confinement, Problems, compare_masks};
use super::seats::Seats;
use super::stops::Stops;
use crate::host::affinity;
use crate::host::clock;
use crate::live_backend::follow_each;
use crate::observe::arena::NotJoined;
use crate::observe::capability::CgroupBase;
use crate::observe::idle::Idle;
use crate::observe::process::{ProcFs, ProcessKey};
use crate::observe::roster::{Roster, Scan, Seen};
use crate::undo::journal::{self, Entry, Journal};
use crate::{ActiveBackend, Backend, LiveBackend, LiveError};
use claim::Tree;
use disk::Disks;
use exposure::Exposure;
use foreign_groups::ForeignGroups;
use groups::Groups;
use members::{Members, forgets_affinity};
use memory::Memory;
use scopes::Scopes;
use usage::Usage;

/// How often to check whether another program moved members away, in nanoseconds.
const DISPLACED_CHECK_NS: Time = 1_000_000_000;

/// The CPU time of a unit's own processes by the scheduler's count; `None` if no scheduler counts it.
type Counted<'a> = &'a dyn Fn(UnitId) -> Option<Time>;

/// Enforces a contract with control groups.
#[derive(Debug)]
pub struct CgroupBackend {
    contract: Contract,
    roster: Roster,
    journal: Journal,
    groups: Groups,
    members: Members,
    /// `None` where the memory controller is not available.
    memory: Option<Memory>,
    exposure: Exposure,
    idle: Idle,
    disks: Disks,
    facts: Vec<UnitFacts>,
    usage: Vec<Usage>,
    /// Units without processes whose CPU time was read after their last process had exited, so that the CPU
    /// time no longer changes.
    usage_is_final: Vec<bool>,
    seen: Seen,
    scan: Scan,
    now: Time,
    displaced_checked_at: Time,
    problems: Vec<LiveError>,
    seats: Seats,
    stops: Stops,
    /// Units that are one gang each and are stopped by the freezer.
    frozen_gangs: BTreeSet<UnitId>,
    confinement: Confinement,
    seat_problems: Problems,
    /// The CPUs that each unit is confined to.
    confined: BTreeMap<UnitId, CpuSet>,
    usable: CpuSet,
    bus: Bus,
    foreign: ForeignGroups,
    /// `None` where systemd does not make scopes for us.
    scopes: Option<Scopes>,
    /// How many times a process changed its control group, or a foreign group was assigned to another unit,
    /// so far.
    changed: u64,
}

impl CgroupBackend {
    /// Claims a subtree below the cgroup `place.base`, and makes a cgroup for every unit of the contract.
    /// Processes are moved by the first [`Backend::settle_members`].
    ///
    /// The caretaker must already be running: in a delegated cgroup it is moved aside together with the
    /// daemon. Fails if the subtree belongs to a running daemon or to another program. Lesser failures go to
    /// [`CgroupBackend::take_problems`].
    pub fn new(
        place: &CgroupBase,
        contract: &Contract,
        mut roster: Roster,
        mut journal: Journal,
    ) -> Result<CgroupBackend, LiveError> {
        let mut procfs = ProcFs::open(Path::new("/proc"))?;
        let usable = usable_cpus()?;
        let (tree, mut problems) = Tree::claim(place, &mut procfs, &mut journal)?;
        if let Ok(path) = tree.top.strip_prefix(&place.mount) {
            roster.see_through(&format!("/{}", path.display()));
        }
        roster.held_at(place);
        let overwritten =
            forgets_affinity(&rustix::system::uname().release().to_string_lossy()).then(|| usable.clone());
        if let Some(cpus) = &overwritten {
            journal::record(&mut journal, &[Entry::AffinityGiven { cpus: cpus.clone() }])?;
        }
        let mut groups = Groups::new(tree);
        problems.extend(groups.follow(contract, &mut journal, 0));
        let memory = match groups.tree().has("memory").then(|| Memory::new(place, &groups.tree().top)) {
            Some(Ok(memory)) => Some(memory),
            Some(Err(error)) => {
                problems.push(error);
                None
            }
            None => None,
        };
        let mut backend = CgroupBackend {
            contract: contract.clone(),
            memory,
            exposure: Exposure::default(),
            roster,
            journal,
            groups,
            idle: Idle::new(usable.clone()),
            seats: Seats::default(),
            stops: Stops::default(),
            frozen_gangs: BTreeSet::new(),
            confinement: Confinement::default(),
            seat_problems: Problems::default(),
            confined: BTreeMap::new(),
            usable: usable.clone(),
            disks: Disks::new(&place.mount),
            members: Members::new(&place.mount, procfs, overwritten),
            facts: Vec::new(),
            usage: Vec::new(),
            usage_is_final: Vec::new(),
            seen: Seen::default(),
            scan: Scan::Full,
            now: 0,
            displaced_checked_at: 0,
            problems,
            bus: Bus::default(),
            foreign: ForeignGroups::new(&place.mount),
            scopes: None,
            changed: 0,
        };
        backend.follow_memory();
        backend.open_bus();
        if backend.roster.is_in_place() {
            backend.problems.extend(backend.foreign.connect_systemd().err());
            match Scopes::begin(&place.mount) {
                Ok(scopes) => backend.make_scopes(scopes),
                Err(error) => backend.problems.push(error),
            }
        }
        Ok(backend)
    }

    /// The number of files kept open per unit, with the controllers available at `place`.
    pub fn files_per_unit(place: &CgroupBase) -> usize {
        let memory = if place.controllers.contains("memory") { memory::FILES_PER_UNIT } else { 0 };
        groups::FILES_PER_UNIT + memory
    }

    /// Sets through which systemd scopes are made for processes that share a control group with other units'
    /// processes; `None`: no scopes are made.
    fn make_scopes(&mut self, scopes: Option<Scopes>) {
        if scopes.is_some() {
            self.roster.makes_scopes();
        }
        self.scopes = scopes;
    }

    /// Detects the processor's means to monitor and throttle memory bandwidth.
    fn open_bus(&mut self) {
        self.bus.open(Path::new("/"), &self.contract, &mut self.journal, &mut self.problems);
    }

    /// Tells the memory part in which cgroups the units are now.
    fn follow_memory(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let place = |unit: UnitId| self.groups.charged(unit, self.contract.unit(unit).parent);
        memory.follow(self.contract.held().filter_map(place).collect(), &mut self.journal);
    }

    /// Enables the kernel's io.cost for every disk with a measured model, so that weights take effect there.
    /// Returns the names of these disks; failures go to [`CgroupBackend::take_problems`].
    pub fn switch_on_io_cost(&mut self) -> Vec<String> {
        if !self.groups.tree().has("io") {
            return Vec::new();
        }
        let (on, problems) = io_cost::switch_on(self.disks.mount(), &mut self.journal);
        self.problems.extend(problems);
        on
    }

    /// Scans processes, and moves members into their units' control groups. Returns the users and control
    /// groups seen in units with `each`, for which the contract may need sub-units.
    pub fn settle(&mut self, now: Time) -> Result<Seen, LiveError> {
        // Never backwards: facts would look fresh until the clock caught up.
        let now = now.max(self.now);
        self.now = now;
        if self.journal.beats().beat(!self.stops.is_empty() || self.groups.any_stopped()) {
            self.stops.recheck_all();
            self.problems.extend(self.groups.freeze_anew(now));
        }
        let changes = self.roster.refresh(&self.contract, now, self.scan)?;
        self.scan = Scan::Quick;
        self.follow(&changes);
        self.follow_scopes();
        self.follow_foreign_groups();
        let came = !(changes.joined.is_empty() && changes.moved.is_empty());
        // Also samples counters, before `settle_jobs` removes groups of ended jobs, whose counts would be
        // lost.
        let bus = self.bus.follow(now, came, &self.contract, &mut self.roster, &mut self.journal);
        self.problems.extend(bus);
        self.seen.extend(changes.seen);
        self.remove_leaving();
        self.enforce_gangs()?;
        if now >= self.displaced_checked_at.saturating_add(DISPLACED_CHECK_NS) {
            self.displaced_checked_at = now;
            self.problems.extend(self.members.send_stranded(self.groups.tree()));
            self.groups.remove_stuck();
            if self.groups.complete(&mut self.journal, now) {
                self.follow_memory();
            }
            self.find_displaced()?;
            self.confining(compare_masks);
        }
        self.problems.extend(self.groups.find_unstopped(now));
        self.seats.follow(&self.contract, &mut self.roster)?;
        let members = match self.contract.machine.gangs.share {
            GangsShare::Cache => self.seats.members().map(|(key, job, _)| (key, job)).collect(),
            GangsShare::Bus => BTreeMap::new(),
        };
        let (contract, hands) = (&self.contract, (&mut self.roster, &mut self.journal));
        self.problems.extend(self.bus.settle_jobs(now, contract, self.seats.units(), &members, hands));
        let cpus = self.foreign.given_cpus(&self.contract);
        Ok(Seen { cpus, ..std::mem::take(&mut self.seen) })
    }

    /// Ends the backend. The caretaker undoes what the journal has.
    pub fn close(self) -> Journal {
        self.journal
    }

    /// The foreign control groups in which units are held, each with its unit and its directory.
    pub(crate) fn foreign_groups(&self) -> impl Iterator<Item = (UnitId, &Path)> {
        self.foreign.all().map(|(_, unit, dir)| (unit, dir))
    }

    /// Where the hierarchy is mounted.
    pub(crate) fn mount(&self) -> &Path {
        self.foreign.mount()
    }

    /// A foreign control group whose manager has set a CPU cap.
    pub(crate) fn capped_group(&self) -> Option<&str> {
        self.foreign.capped()
    }

    /// Whether this backend wrote a control group's CPU cap.
    pub(crate) fn has_capped(&self, dir: &Path, cap: &str) -> bool {
        dir.starts_with(&self.groups.tree().top) || self.foreign.has_capped(dir, cap)
    }

    /// The cgroup directory of each unit, with its sub-units.
    pub(crate) fn unit_dirs(&self) -> impl Iterator<Item = (UnitId, &Path)> {
        self.contract.held().filter_map(|unit| Some((unit, self.groups.dir(unit)?)))
    }

    /// A counter that grows whenever a process changes its control group, or a foreign group is assigned to
    /// another unit.
    pub(crate) fn changed(&self) -> u64 {
        self.changed
    }

    /// Drops failures on foreign control groups that have ended: a service may stop, or a session end,
    /// between observing and applying.
    fn without_ended_groups(&self, mut problems: Vec<LiveError>) -> Vec<LiveError> {
        let (mount, own) = (self.foreign.mount(), &self.groups.tree().top);
        problems.retain(|problem| {
            let LiveError::File { path, source, .. } = problem else { return true };
            let is_missing = matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
            let is_others = path.starts_with(mount) && !path.starts_with(own);
            let has_ended =
                is_missing && is_others && path.parent().is_some_and(|group| !crate::host::is_dir(group));
            !has_ended
        });
        problems
    }
}

impl LiveBackend for CgroupBackend {
    fn set_contract(&mut self, contract: &Contract) {
        self.remove_leaving();
        self.exposure.follow_contract(contract);
        self.confined.retain(|unit, _| contract.has(*unit));
        self.contract = contract.clone();
        self.facts.clear();
        self.usage.clear();
        self.usage_is_final.clear();
        self.scan = Scan::Full;
        let problems = self.groups.follow(contract, &mut self.journal, self.now);
        self.problems.extend(problems);
        self.follow_memory();
        self.bus.follow_contract(contract);
        self.open_bus();
    }

    fn standing(&self) -> Vec<&LiveError> {
        self.exposure.standing().chain(self.foreign.silence()).collect()
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref()?.alarm()
    }

    fn drain_alarm(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.drain_alarm();
        }
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>> {
        self.seats.join(&self.contract, key, user, &mut self.roster)
    }

    fn active(&self) -> ActiveBackend {
        ActiveBackend { name: "cgroup", fallback_from: None }
    }

    fn into_journal(self: Box<Self>) -> Journal {
        (*self).close()
    }
}

impl Backend for CgroupBackend {
    type Error = LiveError;

    fn now(&self) -> Time {
        clock::now()
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        let memory = self.memory.as_mut().map(Memory::take_problems);
        self.problems.extend(memory.into_iter().flatten());
        let problems = std::mem::take(&mut self.problems);
        self.without_ended_groups(problems)
    }

    fn means(&self) -> Means {
        let (cpu_sets, cpu) = (self.groups.tree().has("cpuset"), self.groups.tree().has("cpu"));
        let io = self.groups.tree().has("io");
        let disk = DiskMeans { caps: io, weights: io, shares: false, limits_only: false };
        let memory = self.memory.as_ref().map_or(MemoryMeans::NONE, Memory::means);
        let throttle = self.bus.throttles();
        let foreign_groups = self.roster.is_in_place();
        let means = Means {
            cpu_sets,
            weights: cpu,
            caps: cpu,
            gates: true,
            throttle,
            foreign_groups,
            disk,
            memory,
            ..Means::NONE
        };
        Seats::means(&self.contract, means)
    }

    fn settle_members(
        &mut self,
        now: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, LiveError> {
        let seen = self.settle(now)?;
        Ok(follow_each(self, &seen, contract, free))
    }

    fn observe(&mut self, _: Time, watch: &[UnitId]) -> Result<Snapshot, LiveError> {
        self.observe_counted(watch, &|_| None)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<LiveError> {
        self.carry_out(plan)
    }
}

/// The CPUs of a process without an affinity of its own, taken from the daemon's.
fn usable_cpus() -> Result<CpuSet, LiveError> {
    affinity::get(0).map_err(|source| LiveError::Process {
        pid: std::process::id(),
        name: "commonhold".to_owned(),
        what: "read its own affinity".to_owned(),
        source,
        remedy: String::new(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use commonhold_contract::{Member, MemberKind};
    use commonhold_policy::memory::EARLY_NS;
    use commonhold_policy::plan::MemoryPlan;

    use super::*;

    /// Beyond any `pid_max`: no real process has it.
    const PID: u32 = 90_000_001;

    /// Adds a process of this name to a fake /proc.
    fn put(proc: &Path, comm: &str) {
        let dir = proc.join(PID.to_string());
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("{PID} ({comm}) S 0 1 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 101 0\n");
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("status"), "Uid:\t0\t0\nGid:\t0\t0\nGroups:\t\n").unwrap();
        fs::write(dir.join("cmdline"), format!("/bin/{comm}\0")).unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
    }

    /// A backend with a unit of the command `make`, over a fake /proc and a fake cgroup that has memory files
    /// but no controllers.
    fn backend(dir: &Path) -> CgroupBackend {
        let place = CgroupBase {
            mount: dir.join("cgroup"),
            base: dir.join("cgroup"),
            controllers: BTreeSet::new(),
            delegated: false,
        };
        for folder in ["cgroup", "proc", "run"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        fs::write(dir.join("cgroup/cgroup.subtree_control"), "\n").unwrap();
        let mut contract = Contract::default();
        let build = contract.add(None, "build");
        let make = MemberKind::Command("make".to_owned());
        contract.units[build.index()].members.push(Member { kind: make, span: 0..0 });
        let roster = Roster::new(&dir.join("proc"), &[]).unwrap();
        let (journal, _) = Journal::create(&dir.join("run")).unwrap();
        let mut backend = CgroupBackend::new(&place, &contract, roster, journal).unwrap();
        backend.memory = Some(Memory::new(&place, &backend.groups.tree().top).unwrap());
        backend
    }

    /// Memory is not due for long, but a unit's first process makes it due once.
    #[test]
    fn memory_is_due_when_a_unit_gets_its_first_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut backend = backend(dir.path());
        let mut observes_memory = |now: Time| {
            backend.settle(now).unwrap();
            let snapshot = backend.observe(now, &[]).unwrap();
            let rest = MemoryPlan { next: 1_000_000_000, ..MemoryPlan::default() };
            let mut plan = Plan::default();
            plan.decisions.memory = snapshot.memory.is_some().then_some(rest);
            backend.apply(&plan);
            snapshot.memory.is_some()
        };
        assert!(observes_memory(1));
        put(&dir.path().join("proc"), "other");
        assert!(!observes_memory(2), "in no unit");
        fs::remove_dir_all(dir.path().join("proc").join(PID.to_string())).unwrap();
        assert!(!observes_memory(3));
        put(&dir.path().join("proc"), "make");
        assert!(observes_memory(4));
        assert!(!observes_memory(5), "it was there before");
        // An iteration shortly before the due time already observes memory.
        assert!(!observes_memory(1_000_000_000 - EARLY_NS - 1));
        assert!(observes_memory(1_000_000_000 - EARLY_NS));
    }

    /// A program that enters from a shell's session waits until systemd has made its scope, and is held there
    /// from that turn.
    #[test]
    fn a_process_that_enters_waits_for_its_scope_and_is_held_there() {
        const SHELL: &str = "/user.slice/user-0.slice/session-3.scope";
        let dir = tempfile::tempdir().unwrap();
        let mut backend = backend(dir.path());
        let proc = dir.path().join("proc");
        let put_into = |group: &str| {
            let file = proc.join(PID.to_string()).join("cgroup");
            fs::write(file, format!("0::{group}\n")).unwrap();
        };
        put(&proc, "x");
        fs::rename(proc.join(PID.to_string()), proc.join((PID + 1).to_string())).unwrap();
        let shell = proc.join((PID + 1).to_string());
        let stat =
            fs::read_to_string(shell.join("stat")).unwrap().replace(&PID.to_string(), &(PID + 1).to_string());
        fs::write(shell.join("stat"), stat).unwrap();
        fs::write(shell.join("cgroup"), format!("0::{SHELL}\n")).unwrap();
        put(&proc, "x");
        put_into(SHELL);
        let played = crate::systemd::fake::FakeSystemd::new(true);
        backend.roster.holds_in_place();
        backend.make_scopes(Some(Scopes::of(&dir.path().join("cgroup"), played.instance()).unwrap()));
        backend.settle(1).unwrap();
        let contract = backend.contract.clone();
        let build = contract.find("build").unwrap();
        let key = ProcessKey { pid: PID, start: 101 };
        assert!(backend.roster.enter(&contract, key, build).unwrap());
        backend.settle(2).unwrap();
        assert!(backend.roster.is_entering(key));
        assert_eq!(backend.foreign_groups().count(), 0);
        while played.stage().scopes.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // Plays systemd.
        let (name, slice, pids) = played.stage().scopes[0].clone();
        assert_eq!((slice.as_str(), pids.as_slice()), ("commonhold-build.slice", [PID].as_slice()));
        let group = format!("/commonhold.slice/{slice}/{name}");
        fs::create_dir_all(dir.path().join(format!("cgroup{group}"))).unwrap();
        put_into(&group);
        let mut now = 3;
        while backend.roster.is_entering(key) {
            backend.settle(now).unwrap();
            backend.observe(now, &[]).unwrap();
            now += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let held: Vec<(UnitId, &Path)> = backend.foreign_groups().collect();
        assert_eq!(held, [(build, dir.path().join(format!("cgroup/commonhold.slice/{slice}")).as_path())]);
        assert_eq!(played.stage().scopes.len(), 1);
        // The fake tree lacks the controllers' files, which is reported.
        let problems = backend.take_problems();
        assert!(problems.iter().all(|problem| problem.to_string().contains("cpu.stat")), "{problems:?}");
    }
}
