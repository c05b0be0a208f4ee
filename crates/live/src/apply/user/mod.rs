//! The `user` backend, which works with any user's privileges:
//! - it enforces CPU by affinity and stop signals, which any user may apply to their own processes;
//! - it enforces disks by I/O priorities ([`priorities`]) and stops ([`disk`]);
//! - it enforces memory by paging out ([`memory`]), which does take privileges.
//!
//! Homes and loans are affinity masks on every thread of every member. A share finer than a CPU is a gate:
//! the unit's processes are stopped and continued as a whole. New processes and threads inherit their
//! creator's mask, so a fork storm stays confined. A process that joins a unit in another way is confined
//! when it is found.
//!
//! Properties: a thread runs on the CPUs that both the order and its owner allow, or on the order's if the
//! two contradict each other. When an order ends, the thread runs where its owner last allowed. Every change
//! is in the journal before it is made. A process that its user stopped is never continued. No process
//! outside the units is touched, except for parents of members that stopped themselves in response to a gate,
//! which are continued.
//!
//! Cost at rest: a scan reads /proc/loadavg, to see that no process was born and none ended. It reads the
//! machine's counts of idle time and memory, and members' CPU clocks, by one system call each; the longer a
//! member has slept, the less often. A member whose clock has not moved has not run, so its files are not
//! read. The exceptions are one such member in fifty, at most five at each scan, in turn ([`memory`]). Once a
//! second, the roster lists /proc, and the masks of members are compared. crates/commonhold/tests/rest.rs
//! counts it.
//!
//! Limits: signals are visible. A shell that is no member, but whose job is one, reports the job as stopped.
//! A parent that stops itself with its child (su, sudo, script) is continued with it. If a user stops a
//! process while its unit is stopped, that stop is lost when the unit continues. Members of root or another
//! user need root.

mod disk;
mod gate;
mod memory;
mod pageout;
mod priorities;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::MemoryMeans;
use commonhold_policy::membership::is_within;
use commonhold_policy::plan::{CpuOrder, DiskOrder, MemoryOrder, Orders};
use commonhold_policy::{Means, Plan, Snapshot, Time};

use crate::host::clock;
use crate::live_backend::{cannot, follow_each};
use crate::observe::arena::NotJoined;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Roster, Scan, Seen};
use crate::undo::journal::Journal;
use crate::{ActiveBackend, Backend, LiveBackend, LiveError};

use super::confine::{Confinement, Confining, Problems, compare_masks, lineage};
use super::seats::Seats;
use crate::observe::idle::Idle;
use disk::Disks;
use gate::Gates;
use memory::Memory;
use priorities::Priorities;

/// How often the masks of sleeping members are compared with the given ones, in nanoseconds.
const SECOND: Time = 1_000_000_000;

/// The means that this backend always has. The means for memory are added by [`UserBackend::with_memory`].
pub const MEANS: Means = Means { cpu_sets: true, gates: true, disk: disk::MEANS, ..Means::NONE };

/// The means for memory if the kernel pages out for us
/// ([`paging_out`](crate::observe::capability::paging_out)).
pub use memory::MEANS as MEMORY_MEANS;

/// The orders in force for a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Order {
    cpus: Option<CpuSet>,
    closed: bool,
}

/// The backend that needs neither root nor control groups.
#[derive(Debug)]
pub struct UserBackend {
    contract: Contract,
    roster: Roster,
    journal: Journal,
    /// By unit.
    orders: Vec<Order>,
    confinement: Confinement,
    seats: Seats,
    /// The CPUs of the machine that may be used.
    all: CpuSet,
    gates: Gates,
    idle: Idle,
    /// `None` if memory is not enforced.
    memory: Option<Memory>,
    disks: Disks,
    priorities: Priorities,
    problems: Problems,
    seen: Seen,
    /// Whether the contract has changed since the last scan.
    rescan: bool,
    now: Time,
    compared_at: Time,
}

impl UserBackend {
    /// A backend that enforces a contract on `cpus`, the CPUs that may be used. Changes nothing before the
    /// first order.
    pub fn new(contract: Contract, cpus: CpuSet, roster: Roster, journal: Journal) -> Self {
        UserBackend {
            orders: vec![Order::default(); contract.units.len()],
            contract,
            roster,
            journal,
            confinement: Confinement::default(),
            seats: Seats::default(),
            all: cpus.clone(),
            gates: Gates::default(),
            idle: Idle::new(cpus),
            memory: None,
            disks: Disks::default(),
            priorities: Priorities::default(),
            problems: Problems::default(),
            seen: Seen::default(),
            rescan: true,
            now: 0,
            compared_at: 0,
        }
    }

    /// Makes the backend enforce memory, too. The user must be allowed to have the kernel page out.
    pub fn with_memory(mut self) -> Result<Self, LiveError> {
        self.memory = Some(Memory::new(self.contract.units.len())?);
        Ok(self)
    }

    /// Records that a process entered a unit by `exec`; it is a member from the next scan on. False if it has
    /// ended.
    pub fn enter(&mut self, key: ProcessKey, unit: UnitId) -> Result<bool, LiveError> {
        self.roster.enter(&self.contract, key, unit)
    }

    /// The number of threads on CPUs that their owner did not allow, because their unit holds none of the
    /// CPUs that the owner allowed.
    pub fn overridden(&self) -> usize {
        self.confinement.overridden()
    }

    /// Ends the backend: scans a last time, so that the journal is complete, and returns the journal for
    /// [`Caretaker::finish`](crate::undo::caretaker::Caretaker::finish), which undoes the changes in it.
    pub fn close(mut self) -> Journal {
        // If the scan fails, the caretaker finds the descendants by itself.
        let _ = self.scan();
        self.journal
    }

    /// Whether the unit, or a unit around it, is stopped.
    fn is_closed(&self, unit: UnitId) -> bool {
        lineage(&self.contract, unit).any(|unit| {
            self.disks.is_stopped(unit) || self.orders.get(unit.index()).is_some_and(|order| order.closed)
        })
    }

    /// The units that an order on `unit` applies to.
    fn units_within(&self, unit: UnitId) -> Vec<UnitId> {
        self.contract.ids().filter(|inner| is_within(&self.contract, *inner, unit)).collect()
    }

    fn members_within(&self, unit: UnitId) -> Vec<ProcessKey> {
        let units = self.units_within(unit);
        let inside = |unit: &UnitId| units.binary_search(unit).is_ok();
        self.roster
            .members()
            .filter(|member| inside(&member.placement.unit))
            .map(|member| member.key)
            .collect()
    }

    /// Applies the orders in force, and the seats, to every thread of these processes.
    fn confine(&mut self, keys: &[ProcessKey]) {
        self.confining(|confining| confining.confine(keys));
    }

    fn compare_masks(&mut self) {
        self.confining(compare_masks);
    }

    fn confining(&mut self, act: impl FnOnce(&mut Confining<'_>)) {
        let (contract, orders) = (&self.contract, &self.orders);
        let ordered = |unit| lineage(contract, unit).find_map(|unit| orders.get(unit.index())?.cpus.clone());
        act(&mut Confining {
            confinement: &mut self.confinement,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.problems,
            ordered: &ordered,
            within: &|_| None,
            all: &self.all,
        });
    }

    /// Finds new, ended and moved processes, and applies the orders in force to the new and moved ones.
    /// Returns whether there were any of these.
    fn scan(&mut self) -> Result<bool, LiveError> {
        let how = if self.rescan { Scan::Full } else { Scan::Quick };
        let changes = self.roster.refresh(&self.contract, self.now, how)?;
        self.rescan = false;
        for (key, _) in &changes.left {
            self.confinement.forget(*key);
            self.gates.forget(*key);
            self.priorities.forget(*key);
            self.problems.reported.retain(|(reported, _)| reported != key);
        }
        let joined = changes.joined.iter().map(|(key, _)| *key);
        let arrived: Vec<ProcessKey> = joined.chain(changes.moved.iter().map(|moved| moved.key)).collect();
        self.seen.extend(changes.seen);
        self.confine(&arrived);
        self.prioritize(&arrived);
        Ok(!arrived.is_empty())
    }

    /// Assigns processes to units. Returns the users and control groups seen in units with `each`, for which
    /// the contract may need sub-units.
    pub fn settle(&mut self, now: Time) -> Result<Seen, LiveError> {
        // If the clock jumped back, every sample would seem recent until the clock had caught up.
        self.now = now.max(self.now);
        self.gates.beat(&self.journal);
        self.scan()?;
        self.enforce_gates()?;
        if self.now >= self.compared_at.saturating_add(SECOND) {
            self.compared_at = self.now;
            self.compare_masks();
            self.prioritize_all();
        }
        self.seats.follow(&self.contract, &mut self.roster)?;
        Ok(std::mem::take(&mut self.seen))
    }

    fn order_cpus(&mut self, order: &CpuOrder) -> Result<(), LiveError> {
        match order {
            CpuOrder::Confine { unit, cpus } => {
                self.order(*unit)?.cpus.clone_from(cpus);
                let (members, now) = (self.members_within(*unit), self.now);
                match cpus {
                    Some(_) => self.confining(|confining| confining.confine_unit(&members, now)),
                    None => self.confine(&members),
                }
                Ok(())
            }
            CpuOrder::Gate { unit, open } => {
                self.order(*unit)?.closed = !open;
                Ok(())
            }
            CpuOrder::Weigh { unit, .. } => Err(self.cannot("a weight", *unit)),
            CpuOrder::Cap { unit, .. } => Err(self.cannot("a cap on CPU time", *unit)),
            CpuOrder::Credit { unit, .. } => Err(self.cannot("a credit of loans", *unit)),
        }
    }

    fn order_memory(&mut self, order: &MemoryOrder) -> Result<(), LiveError> {
        match (order, &mut self.memory) {
            (MemoryOrder::Allow { .. } | MemoryOrder::Reclaim { .. }, Some(memory)) => {
                memory.order(order);
                Ok(())
            }
            (MemoryOrder::Allow { unit, .. }, None) => Err(self.cannot("a bound on memory", *unit)),
            (MemoryOrder::Reclaim { unit, .. }, None) => Err(self.cannot("memory to give up", *unit)),
            (MemoryOrder::Guarantee { unit, .. }, _) => Err(self.cannot("a guarantee of memory", *unit)),
            (MemoryOrder::Expose { unit, .. }, _) => Err(self.cannot("an order of killing", *unit)),
        }
    }

    /// The error for an order that this backend cannot carry out. The order is not ignored: the policy knows
    /// the means, so the plan was made for another backend.
    fn cannot(&self, what: &str, unit: UnitId) -> LiveError {
        let path = self.contract.units.get(unit.index()).map_or("?", |unit| unit.path.as_str());
        LiveError::Unavailable {
            what: format!("the user backend cannot order {what} for `{path}`"),
            remedy: "use the cgroup backend: commonhold run --backend cgroup".to_owned(),
        }
    }

    fn order(&mut self, unit: UnitId) -> Result<&mut Order, LiveError> {
        if unit.is_common() {
            return Err(LiveError::Unavailable {
                what: format!("the unit `{}` is never restricted", self.contract.unit(unit).path),
                remedy: "name a unit of the contract".to_owned(),
            });
        }
        self.orders.get_mut(unit.index()).ok_or_else(|| LiveError::Unavailable {
            what: format!("the plan orders unit number {}, which this contract does not have", unit.0),
            remedy: "give the backend the contract that the plan was made for".to_owned(),
        })
    }

    /// The units of the contract that are not stopped.
    fn open_units(&self) -> Vec<UnitId> {
        self.contract.held().filter(|unit| !self.is_closed(*unit)).collect()
    }

    /// Records the demand of the units in `open_before` that are closed now, because the demand of a stopped
    /// unit cannot be observed.
    fn remember(&mut self, open_before: &[UnitId]) -> Result<(), LiveError> {
        let units: Vec<UnitId> = open_before.iter().copied().filter(|unit| self.is_closed(*unit)).collect();
        if !units.is_empty() {
            self.roster.account(self.now, &units)?;
            let mut facts = self.roster.unit_facts();
            self.seats.count_shut(&self.roster, &mut facts);
            for unit in units {
                self.gates.remember(unit, facts.get(unit.index()).map_or(0, |facts| facts.runnable));
            }
        }
        Ok(())
    }

    /// Stops a unit for its disk use, or continues it.
    fn stop_for_disk(&mut self, unit: UnitId, stopped: bool) -> Result<(), LiveError> {
        let open_before = self.open_units();
        self.disks.stop(unit, stopped);
        self.remember(&open_before)?;
        self.enforce_gates()
    }

    fn snapshot(&mut self) -> Result<Snapshot, LiveError> {
        let mut units = self.roster.unit_facts();
        self.seats.count_shut(&self.roster, &mut units);
        for (unit, facts) in (0u32..).map(UnitId).zip(&mut units) {
            if self.is_closed(unit) {
                facts.runnable = if facts.processes == 0 { 0 } else { self.gates.remembered(unit) };
            }
        }
        let idle_ns = self.idle.read(self.roster.procfs(), self.now)?;
        let memory = match &mut self.memory {
            Some(memory) => memory.observe(self.now, &self.contract, &mut self.roster)?,
            None => None,
        };
        Ok(Snapshot {
            at: self.now,
            units,
            idle_ns,
            memory,
            disks: self.disks.facts(),
            jobs: {
                let (confinement, all) = (&self.confinement, &self.all);
                let tied = |_, key, tid| confinement.tied(key, tid, None, all);
                self.seats.observe(self.now, &self.contract, &mut self.roster, &tied)?
            },
            ..Snapshot::default()
        })
    }
}

impl LiveBackend for UserBackend {
    fn set_contract(&mut self, contract: &Contract) {
        self.orders.resize(contract.units.len(), Order::default());
        for unit in &contract.vacant {
            self.orders[unit.index()] = Order::default();
        }
        self.gates.follow(contract);
        if let Some(memory) = &mut self.memory {
            memory.follow(contract);
        }
        self.disks.follow(contract);
        self.priorities.follow(contract);
        self.contract = contract.clone();
        self.rescan = true;
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
        ActiveBackend { name: "user", fallback_from: None }
    }

    fn into_journal(self: Box<Self>) -> Journal {
        (*self).close()
    }
}

impl Backend for UserBackend {
    type Error = LiveError;

    fn now(&self) -> Time {
        clock::now()
    }

    fn means(&self) -> Means {
        let memory = self.memory.as_ref().map_or(MemoryMeans::NONE, Memory::means);
        Means { memory, ..Seats::means(&self.contract, MEANS) }
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

    /// The machine's idle time in the result may be up to 100 ms old, and so may the facts about units that
    /// are not watched.
    fn observe(&mut self, _: Time, watch: &[UnitId]) -> Result<Snapshot, LiveError> {
        self.disks.observe(self.now, &self.contract, &mut self.roster)?;
        self.roster.account(self.now, &Seats::watched(&self.contract, watch))?;
        let snapshot = self.snapshot();
        self.seats.complain(&mut self.problems);
        snapshot
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        for (process, kind, problem) in self.memory.iter_mut().flat_map(Memory::take_problems) {
            match process {
                Some(key) => self.problems.once(key, kind, || problem),
                None => self.problems.add(problem),
            }
        }
        std::mem::take(&mut self.problems.unread)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<LiveError> {
        let mut failed = Vec::new();
        if let Some(memory) = &mut self.memory {
            memory.follow_plan(&self.contract, plan.decisions.memory.as_ref());
        }
        // Earlier orders spared sleepers, which still have older masks. The sleepers that have run since, as
        // the accounts show now, are confined.
        let now = self.now;
        self.confining(|confining| confining.catch_up(now));
        let Orders { cpu, seats, gangs, bus, memory, disk, parts } = &plan.orders;
        if plan.orders == Orders::default() {
            return failed;
        }
        // So that no reused number is taken for a member.
        failed.extend(self.scan().err());
        let has_gates = cpu.iter().any(|step| matches!(step.action, CpuOrder::Gate { .. }));
        let open_before = if has_gates { self.open_units() } else { Vec::new() };
        failed.extend(cpu.iter().filter_map(|step| self.order_cpus(&step.action).err()));
        if has_gates {
            // All gates at once: each enforcement examines all members.
            failed.extend(self.remember(&open_before).err());
            failed.extend(self.enforce_gates().err());
        }
        let seated = self.seats.order(seats, &mut self.confinement, &mut failed);
        self.confine(&seated);
        if !gangs.is_empty() {
            self.seats.gate(gangs, clock::now().max(self.now), &self.roster);
            failed.extend(self.enforce_gates().err());
        }
        failed.extend(parts.iter().map(|_| cannot("hold units in control groups")));
        failed.extend(bus.iter().map(|_| cannot("slow down what units transfer over the memory bus")));
        failed.extend(memory.iter().filter_map(|step| self.order_memory(&step.action).err()));
        for step in disk {
            match &step.action {
                DiskOrder::Weigh { unit, weight, .. } => self.weigh_disk(*unit, *weight),
                DiskOrder::Cap { unit, read, write, .. } => self.disks.cap(*unit, *read, *write),
                DiskOrder::Stop { unit, stopped, .. } => {
                    failed.extend(self.stop_for_disk(*unit, *stopped).err());
                }
                DiskOrder::Share { disk, .. } => {
                    failed.push(cannot(&format!("schedule disk {disk} by shares")));
                }
            }
        }
        if disk.iter().any(|step| matches!(step.action, DiskOrder::Weigh { .. })) {
            self.follow_weights();
        }
        failed.extend(self.take_problems());
        failed
    }
}
