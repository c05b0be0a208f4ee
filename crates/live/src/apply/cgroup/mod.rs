//! The `cgroup` backend: units as control groups (version 2).
//!
//! Problem: keep each unit to its CPUs, weight and cap, whatever its processes do, and have the kernel account exactly
//! for the CPU time that they use.
//!
//! Algorithm: the daemon's own subtree (`claim`) has one cgroup per unit (`layout`, `groups`). Processes are moved in when
//! the roster finds them; their children inherit the cgroup (`members`). Orders become writes to cpuset.cpus, cpu.weight,
//! cpu.max and cgroup.freeze (`order`, `knob`). Each write is read back, and a value that is not in force is an error.
//! A gang is only a part of a unit and has no cgroup, so signals stop its processes ([`stops`](super::stops)). Where systemd
//! or another manager owns the cgroups, units are held in theirs (`foreign_groups`).
//!
//! Facts: CPU time is cpu.stat of the unit's cgroup, which includes exited processes (`usage`). Runnable threads and
//! the time they waited come from the roster, which sums /proc/PID/task/TID/schedstat as for the `user` backend:
//! cpu.pressure has the time in which *any* thread waited, a different measure. A stopped unit counts the threads that
//! were runnable when it was stopped.
//!
//! Properties:
//! - Every change is in the journal before it is made, so that the caretaker can undo it.
//! - Processes of the built-in units are never moved.
//! - A failure on one unit or process does not affect the others.
//!
//! Limits: inside a delegated cgroup, only processes already below it can be moved; each other process is reported once.
//! A cap below 0.1 % of a CPU is rounded up to 0.1 %.

mod claim;
mod disk;
mod exposure;
mod foreign_groups;
mod groups;
pub mod io_cost;
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
use commonhold_policy::membership::is_within;
use commonhold_policy::plan::{BusOrder, CpuOrder, DiskOrder, MemoryOrder, PartOrder, SeatOrder};
use commonhold_policy::{DiskFacts, DiskMeans, JobId};
use commonhold_policy::{Means, Plan, Snapshot, Step, Time, UnitFacts};
use commonhold_policy::{MemoryFacts, MemoryMeans};

use super::bus::resctrl::Bus;
use super::confine::{Confinement, Confining, Problems, compare_masks, lineage};
use super::seats::Seats;
use super::stops::{ROUNDS_MAX, Stopping, Stops, continue_released, stop_closed};
use crate::host::affinity;
use crate::host::clock;
use crate::live_backend::{cannot, follow_each};
use crate::observe::arena::NotJoined;
use crate::observe::capability::CgroupBase;
use crate::observe::idle::Idle;
use crate::observe::jobs::{has_gangs, report_interval_ns};
use crate::observe::process::{ProcFs, ProcessKey};
use crate::observe::roster::{Changes, Member, Roster, Scan, Seen};
use crate::undo::journal::{self, Entry, Journal};
use crate::{ActiveBackend, Backend, LiveBackend, LiveError};
use claim::Tree;
use disk::Disks;
use exposure::Exposure;
use foreign_groups::ForeignGroups;
use groups::Groups;
use members::{Arrival, Members, forgets_affinity};
use memory::Memory;
use scopes::{ScopeReplies, Scopes};
use usage::Usage;

/// How often to check whether another program moved members away, in nanoseconds.
const STRAY_NS: Time = 1_000_000_000;

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
    /// Empty units whose CPU time was read since their last process exited: it no longer changes.
    still: Vec<bool>,
    seen: Seen,
    scan: Scan,
    now: Time,
    strays_at: Time,
    problems: Vec<LiveError>,
    seats: Seats,
    stops: Stops,
    /// Units that are one gang each and are stopped by the freezer.
    frozen: BTreeSet<UnitId>,
    confinement: Confinement,
    seating: Problems,
    /// The CPUs that each unit is confined to.
    confined: BTreeMap<UnitId, CpuSet>,
    usable: CpuSet,
    bus: Bus,
    foreign: ForeignGroups,
    /// `None` where systemd does not make scopes for us.
    scopes: Option<Scopes>,
    /// Counts changes in which process is in which control group.
    changed: u64,
}

impl CgroupBackend {
    /// Claims a subtree below `place.base` and makes a cgroup for every unit of the contract. Processes are moved by the
    /// first [`Backend::settle_members`].
    ///
    /// The caretaker must already be running: in a delegated cgroup it is moved aside together with the daemon. Fails if the
    /// subtree belongs to a running daemon or to another program. Lesser failures go to [`CgroupBackend::take_problems`].
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
            frozen: BTreeSet::new(),
            confinement: Confinement::default(),
            seating: Problems::default(),
            confined: BTreeMap::new(),
            usable: usable.clone(),
            disks: Disks::new(&place.mount),
            members: Members::new(&place.mount, procfs, overwritten),
            facts: Vec::new(),
            usage: Vec::new(),
            still: Vec::new(),
            seen: Seen::default(),
            scan: Scan::Full,
            now: 0,
            strays_at: 0,
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

    /// Moves processes that share a control group with other units' processes into scopes that systemd makes.
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

    /// Updates the unit cgroups that memory is read from.
    fn follow_memory(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let place = |unit: UnitId| self.groups.charged(unit, self.contract.unit(unit).parent);
        memory.follow(self.contract.held().filter_map(place).collect(), &mut self.journal);
    }

    /// Enables the kernel's io.cost for every disk with a measured model, so that weights take effect there. Returns the
    /// names of these disks; failures go to [`CgroupBackend::take_problems`].
    pub fn switch_on_io_cost(&mut self) -> Vec<String> {
        if !self.groups.tree().has("io") {
            return Vec::new();
        }
        let (on, problems) = io_cost::switch_on(self.disks.mount(), &mut self.journal);
        self.problems.extend(problems);
        on
    }

    /// Settles members. Returns what was seen of units with `each`, for which the contract may need sub-units.
    pub fn settle(&mut self, now: Time) -> Result<Seen, LiveError> {
        // Never backwards: facts would look fresh until the clock caught up.
        let now = now.max(self.now);
        self.now = now;
        if self.journal.beats().turn(!self.stops.is_empty() || self.groups.any_stopped()) {
            self.stops.doubt();
            self.problems.extend(self.groups.freeze_anew(now));
        }
        let changes = self.roster.refresh(&self.contract, now, self.scan)?;
        self.scan = Scan::Quick;
        self.follow(&changes);
        self.follow_scopes();
        self.follow_foreign_groups();
        let came = !(changes.joined.is_empty() && changes.moved.is_empty());
        // Also samples counters, before `settle_jobs` removes groups of ended jobs, whose counts would be lost.
        let bus = self.bus.follow(now, came, &self.contract, &mut self.roster, &mut self.journal);
        self.problems.extend(bus);
        self.seen.extend(changes.seen);
        self.remove_leaving();
        self.enforce_gangs()?;
        if now >= self.strays_at.saturating_add(STRAY_NS) {
            self.strays_at = now;
            self.problems.extend(self.members.send_stranded(self.groups.tree()));
            self.groups.remove_stuck();
            if self.groups.complete(&mut self.journal, now) {
                self.follow_memory();
            }
            self.find_strays()?;
            self.confining(compare_masks);
        }
        self.problems.extend(self.groups.find_unstopped(now));
        self.seats.follow(&self.contract, &mut self.roster)?;
        let members = match self.contract.machine.gangs.share {
            GangsShare::Cache => self.seats.members().map(|(key, job, _)| (key, job)).collect(),
            GangsShare::Bus | GangsShare::Cores => BTreeMap::new(),
        };
        let (contract, hands) = (&self.contract, (&mut self.roster, &mut self.journal));
        self.problems.extend(self.bus.settle_jobs(now, contract, self.seats.units(), &members, hands));
        let cpus = self.foreign.given_cpus(&self.contract);
        Ok(Seen { cpus, ..std::mem::take(&mut self.seen) })
    }

    /// [`Backend::observe`], for a scheduler above that counts the CPU time of units.
    pub(crate) fn observe_counted(
        &mut self,
        watch: &[UnitId],
        counted: Counted<'_>,
    ) -> Result<Snapshot, LiveError> {
        let now = self.now;
        self.roster.account(now, &Seats::watched(&self.contract, watch))?;
        let mut units = self.facts(counted);
        self.bus.tell(&mut units);
        let memory = self.memory_facts(now);
        let disks = self.disk_facts();
        let charged = self.memory.as_ref().map(Memory::charged_in_foreign_groups).unwrap_or_default();
        let foreign_groups = self.foreign.facts(&charged, self.disks.in_foreign_groups());
        let idle_ns = self.idle.read(self.roster.procfs(), now)?;
        let (contract, confined) = (&self.contract, &self.confined);
        let (confinement, all) = (&self.confinement, &self.usable);
        let tied = |unit, key, tid| {
            let within = lineage(contract, unit).find_map(|unit| confined.get(&unit));
            confinement.tied(key, tid, within, all)
        };
        let mut jobs = self.seats.observe(now, contract, &mut self.roster, &tied)?;
        self.bus.tell_jobs(now, &mut jobs);
        self.seats.complain(&mut self.seating);
        self.problems.append(&mut self.seating.unread);
        Ok(Snapshot { at: now, units, idle_ns, disks, memory, jobs, foreign_groups, ..Snapshot::default() })
    }

    /// Ends the backend. The caretaker undoes what the journal has.
    pub fn close(self) -> Journal {
        self.journal
    }

    /// The foreign control groups that units are held in: the unit and the directory of each.
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

    /// Asks systemd for the scopes that are due, and takes in the processes that arrived in one.
    fn follow_scopes(&mut self) {
        let CgroupBackend { scopes, contract, roster, members, journal, now, groups, .. } = self;
        let Some(scopes) = scopes else { return };
        let ScopeReplies { arrived, refused, problems } =
            scopes.poll(*now, contract, roster, (members, &groups.tree().top), journal);
        self.problems.extend(problems);
        if !arrived.is_empty() {
            match self.roster.look_for_scopes(&arrived) {
                Ok(changes) => self.follow(&changes),
                Err(error) => self.problems.push(error),
            }
        }
        if !refused.is_empty() {
            let changes = self.roster.refuse_scopes(&refused);
            self.follow(&changes);
        }
    }

    /// Polls foreign groups, and follows which of them hold units.
    fn follow_foreign_groups(&mut self) {
        let CgroupBackend { foreign, contract, roster, disks, journal, memory, problems, now, .. } = self;
        problems.extend(foreign.poll(*now, memory.as_mut().map(Memory::pager), journal));
        if !foreign.follow(contract, roster.foreign_groups(), disks, journal, problems) {
            return;
        }
        self.changed += 1;
        if let Some(memory) = &mut self.memory {
            memory.follow_foreign_groups(self.foreign.all());
        }
    }

    /// Carries out an order for one of a unit's control groups.
    fn order_part(&mut self, order: &PartOrder) -> Vec<LiveError> {
        let CgroupBackend { foreign, disks, journal, memory, .. } = self;
        match *order {
            _ if order.at().is_some() => foreign.carry_out(order, memory.as_mut(), disks, journal),
            PartOrder::Cap { unit, micro_cpus, .. } => self.order_cpus(&CpuOrder::Cap { unit, micro_cpus }),
            PartOrder::Guarantee { unit, min, low, own, .. } => {
                self.order_memory(&MemoryOrder::Guarantee { unit, min, low, own })
            }
            PartOrder::Allow { unit, bytes, .. } => self.order_memory(&MemoryOrder::Allow { unit, bytes }),
            PartOrder::Reclaim { unit, bytes, files, .. } => {
                self.order_memory(&MemoryOrder::Reclaim { unit, bytes, files })
            }
            PartOrder::Transfer { unit, ref disk, read, write, .. } => {
                self.order_disk(&DiskOrder::Cap { unit, disk: disk.clone(), read, write })
            }
            // A unit's own cgroup gets its weight and CPUs by [`CpuOrder`].
            PartOrder::Confine { .. } | PartOrder::Weigh { .. } => Vec::new(),
        }
    }

    /// The cgroup directory of each unit, with its sub-units.
    pub(crate) fn unit_dirs(&self) -> impl Iterator<Item = (UnitId, &Path)> {
        self.contract.held().filter_map(|unit| Some((unit, self.groups.dir(unit)?)))
    }

    /// A counter of changes in which process is in which control group.
    pub(crate) fn changed(&self) -> u64 {
        self.changed
    }

    /// Moves processes that came or changed their unit, and forgets those that exited.
    fn follow(&mut self, changes: &Changes) {
        self.changed += u64::from(!changes.is_empty());
        for (process, _) in &changes.left {
            self.members.forget(*process);
            self.confinement.forget(*process);
            self.stops.forget(*process);
            self.scopes.iter_mut().for_each(|scopes| scopes.forget(*process));
            self.seating.reported.retain(|(reported, _)| reported != process);
        }
        let joined = changes.joined.iter().copied();
        let moved = changes.moved.iter().map(|moved| (moved.key, moved.to));
        let regrouped = changes.regrouped.iter().copied();
        let (mut arrivals, mut astray) = (Vec::new(), Vec::new());
        for (process, unit) in
            joined.chain(moved).chain(regrouped).filter(|(_, unit)| *unit != UnitId::KERNEL)
        {
            let name = self.name(process);
            let stays = self.roster.member(process.pid).is_some_and(|member| member.stays.is_some());
            if let Some(to) = self.groups.leaf(unit).filter(|_| !stays) {
                self.groups.came(unit);
                // Members of a cgroup that could not be made yet are found as strays once it is.
                if self.groups.is_made(unit) {
                    arrivals.push(Arrival { process, name, to });
                }
            } else if self.roster.is_astray(process.pid) {
                self.problems.extend(self.members.send_out_of_scope(process, &name));
                astray.push(process.pid);
            } else {
                self.problems.extend(self.members.send_home(process, &name, self.groups.tree()));
            }
        }
        self.problems.extend(self.members.bring(&arrivals, self.groups.tree(), &mut self.journal));
        if !astray.is_empty() {
            // The roster rereads sleepers only on request.
            match self.roster.look_for_scopes(&astray) {
                Ok(changes) => self.follow(&changes),
                Err(error) => self.problems.push(error),
            }
        }
    }

    /// Confines threads of jobs to their seats.
    fn confining(&mut self, act: impl FnOnce(&mut Confining<'_>)) {
        let (contract, confined) = (&self.contract, &self.confined);
        let within = |unit| lineage(contract, unit).find_map(|unit| confined.get(&unit).cloned());
        act(&mut Confining {
            confinement: &mut self.confinement,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.seating,
            ordered: &|_| None,
            within: &within,
            all: &self.usable,
        });
        self.problems.append(&mut self.seating.unread);
    }

    fn order_seats(&mut self, orders: &[Step<SeatOrder>]) {
        let seated = self.seats.order(orders, &mut self.confinement, &mut self.problems);
        if !seated.is_empty() && !self.confinement.leaves_seats() {
            self.confining(|confining| confining.confine(&seated));
        }
    }

    /// Switches between seats as scheduler preferences (`leave`) and seats as affinities.
    pub(crate) fn leave_seats(&mut self, leave: bool) {
        if self.confinement.leave_seats(leave) {
            let seated = self.confinement.seated();
            self.confining(|confining| confining.confine(&seated));
        }
    }

    /// Each seated thread and the first CPU of its seat.
    pub(crate) fn seats(&self) -> Vec<(u32, Option<u32>)> {
        self.confinement.all_seats()
    }

    /// Seats that changed since the last call, while they were scheduler preferences.
    pub(crate) fn changed_seats(&mut self) -> Vec<(u32, Option<u32>)> {
        self.confinement.changed_seats()
    }

    /// Switches between gangs parked by the scheduler (`leave`) and gangs stopped here.
    pub(crate) fn leave_gangs(&mut self, leave: bool) {
        self.seats.leave_gangs(leave);
    }

    /// The processes of all jobs, and whether the job is shut.
    pub(crate) fn members_of_jobs(&self) -> Vec<(ProcessKey, JobId, bool)> {
        self.seats.members().collect()
    }

    /// Stops the gangs that are shut, then continues those that are open, so that a gang gets its CPUs before it runs.
    ///
    /// A unit whose own processes are one job is frozen in its cgroup; signals stop all other gangs, and those processes of
    /// such a unit that may not be moved into its cgroup.
    fn enforce_gangs(&mut self) -> Result<(), LiveError> {
        self.frozen = self.seats.shut_units(&self.contract);
        self.frozen.retain(|unit| self.groups.is_made(*unit));
        if !self.frozen.is_empty() {
            self.journal.beats().watch();
        }
        self.problems.extend(self.groups.shut(&self.frozen, self.now));
        for _ in 0..if self.seats.any_shut() { ROUNDS_MAX } else { 0 } {
            let stopped = self.stopping(stop_closed)?;
            let changes = self.roster.refresh(&self.contract, self.now, Scan::Quick)?;
            let came = !changes.joined.is_empty() || !changes.moved.is_empty();
            self.follow(&changes);
            self.seen.extend(changes.seen);
            if !stopped && !came {
                break;
            }
            self.seats.catch_up(&self.contract, &mut self.roster)?;
        }
        if !self.stops.is_idle() {
            self.stopping(continue_released);
        }
        Ok(())
    }

    fn stopping<T>(&mut self, act: impl FnOnce(&mut Stopping<'_>) -> T) -> T {
        let (seats, frozen) = (&self.seats, &self.frozen);
        let is_frozen = |member: &Member| member.stays.is_none() && frozen.contains(&member.placement.unit);
        let done = act(&mut Stopping {
            stops: &mut self.stops,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.seating,
            now: self.now,
            closed: &|member| seats.is_shut(member.key) && !is_frozen(member),
        });
        self.problems.append(&mut self.seating.unread);
        done
    }

    /// Moves back members that another program moved away, unless they may not be moved from where they are now.
    fn find_strays(&mut self) -> Result<(), LiveError> {
        let mut by_unit: BTreeMap<UnitId, Vec<(ProcessKey, String)>> = BTreeMap::new();
        let held = |member: &&Member| !member.placement.unit.is_common() && member.stays.is_none();
        for member in self.roster.members().filter(held) {
            by_unit.entry(member.placement.unit).or_default().push((member.key, member.comm.clone()));
        }
        let mut strayed = Vec::new();
        for (unit, members) in by_unit {
            let Some(leaf) = self.groups.leaf(unit).filter(|_| self.groups.is_made(unit)) else { continue };
            match claim::processes(&leaf) {
                Ok(pids) => {
                    let there: BTreeSet<u32> = pids.into_iter().collect();
                    let away = members.into_iter().filter(|(process, _)| !there.contains(&process.pid));
                    strayed.extend(away.map(|(process, name)| Arrival { process, name, to: leaf.clone() }));
                }
                Err(error) => self.problems.push(error),
            }
        }
        if strayed.is_empty() {
            return Ok(());
        }
        // The roster rereads sleepers only on request.
        let pids: Vec<u32> = strayed.iter().map(|arrival| arrival.process.pid).collect();
        let changes = self.roster.look_again(&pids)?;
        self.follow(&changes);
        strayed.retain(|arrival| {
            self.roster
                .member(arrival.process.pid)
                .is_some_and(|member| held(&member) && member.key == arrival.process)
        });
        self.problems.extend(self.members.bring_back(&strayed, self.groups.tree(), &mut self.journal));
        Ok(())
    }

    fn remove_leaving(&mut self) {
        let members = &mut self.members;
        let problems = self.groups.remove_leaving(|pid, tree| {
            members.identify(pid).and_then(|(process, name)| members.send_home(process, &name, tree))
        });
        self.problems.extend(problems);
    }

    fn name(&self, process: ProcessKey) -> String {
        self.roster.member(process.pid).map_or_else(|| "?".to_owned(), |member| member.comm.clone())
    }

    fn order_cpus(&mut self, order: &CpuOrder) -> Vec<LiveError> {
        let unit = order.unit();
        let controller = match order {
            CpuOrder::Confine { .. } => Some("cpuset"),
            CpuOrder::Weigh { .. } | CpuOrder::Cap { .. } => Some("cpu"),
            CpuOrder::Gate { .. } => None,
            // For the scheduler of the backend above.
            CpuOrder::Credit { .. } => return Vec::new(),
        };
        if let Err(error) = self.can_order(unit, controller) {
            return vec![error];
        }
        match order {
            CpuOrder::Confine { cpus, .. } => {
                match cpus {
                    Some(cpus) => self.confined.insert(unit, cpus.clone()),
                    None => self.confined.remove(&unit),
                };
                self.groups.confine(unit, cpus.as_ref())
            }
            CpuOrder::Weigh { weight, .. } => self.groups.weigh(unit, *weight),
            CpuOrder::Cap { micro_cpus, .. } => self.groups.cap(unit, *micro_cpus),
            CpuOrder::Credit { .. } => Vec::new(),
            CpuOrder::Gate { open, .. } => {
                let mut problems: Vec<LiveError> = Vec::new();
                if !open {
                    self.journal.beats().watch();
                    problems.extend(self.remember(unit).err());
                }
                problems.extend(self.groups.gate(unit, *open, self.now));
                problems
            }
        }
    }

    fn order_memory(&mut self, order: &MemoryOrder) -> Vec<LiveError> {
        let unit = order.unit();
        if let Err(error) = self.can_order(unit, Some("memory")) {
            return vec![error];
        }
        if let MemoryOrder::Expose { exposed, .. } = order {
            self.exposure.order(unit, *exposed);
            return Vec::new();
        }
        let memory = self.memory.as_mut();
        memory.map_or_else(Vec::new, |memory| memory.carry_out(order, &mut self.journal))
    }

    fn order_disk(&mut self, order: &DiskOrder) -> Vec<LiveError> {
        let unit = order.unit();
        if let Err(error) = self.can_order(unit, Some("io")) {
            return vec![error];
        }
        match order {
            DiskOrder::Weigh { disk, weight, .. } => {
                self.in_dir(unit, |disks, dir| disks.weigh(dir, disk, *weight))
            }
            DiskOrder::Cap { disk, read, write, .. } => {
                self.in_dir(unit, |disks, dir| disks.cap(dir, disk, *read, *write))
            }
            DiskOrder::Share { disk, .. } => vec![cannot(&format!("schedule disk {disk} by shares"))],
            DiskOrder::Stop { .. } => vec![cannot("stop a unit for its disks")],
        }
    }

    /// Carries out a disk order on a unit's cgroup.
    fn in_dir(
        &mut self,
        unit: UnitId,
        order: impl Fn(&mut Disks, &Path) -> Result<(), LiveError>,
    ) -> Vec<LiveError> {
        self.groups.dir(unit).and_then(|dir| order(&mut self.disks, dir).err()).into_iter().collect()
    }

    /// Disk use by unit, where the io controller is available.
    fn disk_facts(&mut self) -> Vec<DiskFacts> {
        if !self.groups.tree().has("io") {
            return Vec::new();
        }
        let leaf = |unit: UnitId| Some((unit, None, self.groups.leaf(unit)?));
        let places = self.foreign.all().map(|(place, unit, dir)| (unit, Some(place), dir.to_owned()));
        self.disks.observe(self.now, || self.contract.held().filter_map(leaf).chain(places).collect())
    }

    /// Drops failures on foreign control groups that have ended: a service may stop, or a session end, between observing and
    /// applying.
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

    /// An error for an order on a unit without a cgroup, or for a missing controller: ignoring it would leave the contract
    /// unenforced without notice.
    fn can_order(&self, unit: UnitId, controller: Option<&str>) -> Result<(), LiveError> {
        if self.groups.leaf(unit).is_none() {
            return Err(LiveError::Unavailable {
                what: format!(
                    "unit number {} has no cgroup: it is a built-in unit, or not in this contract",
                    unit.0
                ),
                remedy: "give the backend the contract that the plan was made for".to_owned(),
            });
        }
        match controller.filter(|name| !self.groups.tree().has(name)) {
            None => Ok(()),
            Some(name) => Err(LiveError::Unavailable {
                what: format!(
                    "the {name} controller is not available in {}",
                    self.groups.tree().top.display()
                ),
                remedy: "see `commonhold doctor` for what it needs".to_owned(),
            }),
        }
    }

    /// Samples the runnable threads of a unit before it is stopped, since a stopped thread is not runnable.
    fn remember(&mut self, unit: UnitId) -> Result<(), LiveError> {
        let within: Vec<UnitId> =
            self.contract.held().filter(|id| is_within(&self.contract, *id, unit)).collect();
        self.roster.account(self.now, &within)?;
        let mut facts = self.roster.unit_facts();
        self.seats.count_shut(&self.roster, &mut facts);
        for id in within {
            self.groups.wanting(id, facts.get(id.index()).map_or(0, |facts| facts.runnable));
        }
        Ok(())
    }

    /// CPU time of a unit's own processes; the previous value if the kernel's count cannot be read.
    fn used_ns(&mut self, unit: UnitId, counted: Option<Time>) -> Time {
        let CgroupBackend { usage, groups, problems, now, roster, foreign, contract, .. } = self;
        let outside_ns = roster.used_outside_ns(unit) + foreign.used_ns(unit, &contract.unit(unit).path);
        usage[unit.index()].now(*now, counted, || {
            let in_group = groups.used_ns(unit).unwrap_or_else(|error| {
                problems.push(error);
                None
            });
            in_group.map(|in_group| in_group + outside_ns)
        })
    }

    /// Memory facts, including what units' processes had charged elsewhere before they were moved in.
    fn memory_facts(&mut self, now: Time) -> Option<MemoryFacts> {
        let units = self.contract.units.len();
        let mut facts = self.memory.as_mut()?.observe(now, units)?;
        for member in self.roster.members().filter(|member| !member.placement.unit.is_common()) {
            if let Some(unit) = facts.units.get_mut(member.placement.unit.index()) {
                unit.elsewhere += self.members.charged_elsewhere(member.key);
            }
        }
        Some(facts)
    }

    /// The roster's facts, with CPU time as the kernel or the scheduler counts it.
    fn facts(&mut self, counted: Counted<'_>) -> Vec<UnitFacts> {
        let mut facts = self.roster.unit_facts();
        self.seats.count_shut(&self.roster, &mut facts);
        self.facts.resize(facts.len(), UnitFacts::default());
        self.usage.resize(facts.len(), Usage::default());
        self.still.resize(facts.len(), false);
        let mut came = false;
        for (unit, facts) in (0u32..).map(UnitId).zip(&mut facts) {
            if unit.is_common() {
                continue;
            }
            let before = self.facts[unit.index()];
            let wanting = self.groups.wanting(unit, facts.runnable);
            facts.runnable = if facts.processes == 0 { 0 } else { wanting };
            // All facts of a unit are of one moment: CPU time is read only when the others are.
            let fresh = facts.at != before.at || before.at == 0;
            let empty = facts.processes == 0;
            came |= before.processes == 0 && !empty;
            let due = fresh && !(empty && self.still[unit.index()]);
            self.still[unit.index()] = empty && (due || self.still[unit.index()]);
            facts.used_ns =
                if due { self.used_ns(unit, counted(unit).filter(|_| !empty)) } else { before.used_ns };
        }
        // The last memory plan has no bound for a unit that was empty.
        if let Some(memory) = self.memory.as_mut().filter(|_| came) {
            memory.wake();
        }
        self.facts.clone_from(&facts);
        facts
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
        self.still.clear();
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

    fn hear(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.hear();
        }
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>> {
        let (contract, every_ns) = (&self.contract, report_interval_ns(&self.contract));
        has_gangs(contract).then(|| Ok((self.seats.join(contract, key, user, &mut self.roster)?, every_ns)))
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
        let mut problems: Vec<LiveError> =
            plan.orders.cpu.iter().flat_map(|step| self.order_cpus(&step.action)).collect();
        self.order_seats(&plan.orders.seats);
        if !plan.orders.gangs.is_empty() {
            self.seats.gate(&plan.orders.gangs, clock::now().max(self.now), &self.roster);
            problems.extend(self.enforce_gangs().err());
        }
        let reclaimed = |step: &Step<PartOrder>| {
            matches!(step.action, PartOrder::Reclaim { .. }).then(|| step.action.unit())
        };
        let in_parts: BTreeSet<UnitId> = plan.orders.parts.iter().filter_map(reclaimed).collect();
        for step in &plan.orders.memory {
            // A unit with foreign groups has a reclaim order for each of its groups instead.
            let is_reclaim = matches!(step.action, MemoryOrder::Reclaim { .. });
            if !(is_reclaim && in_parts.contains(&step.action.unit())) {
                problems.extend(self.order_memory(&step.action));
            }
        }
        problems.extend(plan.orders.disk.iter().flat_map(|step| self.order_disk(&step.action)));
        problems.extend(plan.orders.parts.iter().flat_map(|step| self.order_part(&step.action)));
        for step in &plan.orders.bus {
            let BusOrder::Throttle { unit, percent } = step.action;
            problems.extend(self.bus.order(unit, percent, &mut self.roster, &mut self.journal).err());
        }
        if let Some(memory) = &plan.decisions.memory {
            self.exposure.record_exceeding(&self.contract, memory);
        }
        let expose = |step: &Step<MemoryOrder>| matches!(step.action, MemoryOrder::Expose { .. });
        let ordered = plan.orders.memory.iter().any(expose);
        if ordered || plan.decisions.memory.is_some() || self.exposure.is_ending() {
            problems.extend(self.exposure.follow(&mut self.roster, &mut self.journal));
        }
        if let Some(memory) = &mut self.memory {
            memory.attend(plan.decisions.memory.as_ref());
        }
        self.without_ended_groups(problems)
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

    /// A backend with a unit of the command `make`, over a fake /proc and a fake cgroup that has memory files but no
    /// controllers.
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
        // A turn shortly before the due time already observes memory.
        assert!(!observes_memory(1_000_000_000 - EARLY_NS - 1));
        assert!(observes_memory(1_000_000_000 - EARLY_NS));
    }

    /// A program that enters from a shell's session waits until systemd has made its scope, and is held there from that turn.
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
