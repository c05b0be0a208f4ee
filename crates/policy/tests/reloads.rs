//! Histories in which everything changes at once: contracts are reloaded, unit numbers are reused, users
//! come, tickets are exchanged, disks go and are renamed, memory is not sampled, means change, and clocks go
//! back.
//!
//! Invariants of each step: the plan checker finds nothing wrong; every order and decision concerns a unit of
//! the contract; and every stopped unit has a rate, processes, and a disk that exists.

mod chance;

use std::collections::BTreeSet;

use chance::Chance;
use commonhold_contract::{Amount, Contract, MILLIONTH, PerResource, Permission, Resource, Scheme, UnitId};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::plan::{CpuDecision, DiskOrder};
use commonhold_policy::rights::{Bid, Change, Offer, Trade};
use commonhold_policy::{
    DeviceUse, DiskFacts, DiskMeans, DiskUse, Input, MS, Means, MemoryFacts, MemoryMeans, Plan, PolicyState,
    Snapshot, UnitFacts, UnitMemory, step,
};

const HISTORIES: u64 = 60;
const STEPS: u64 = 80;

impl Chance {
    fn permission(&mut self) -> Permission {
        match self.below(6) {
            0 => Permission::No,
            1 => Permission::AtMost(Amount::Part(self.below(MILLIONTH))),
            _ => Permission::Yes,
        }
    }

    /// Some of ten names, each below an earlier one or at the top.
    fn contract(&mut self) -> Contract {
        let mut contract = Contract::default();
        contract.machine.scheme = match self.below(6) {
            0 => Scheme::Smp,
            1 => Scheme::Quota,
            _ => Scheme::Isolate,
        };
        let mut units: Vec<UnitId> = Vec::new();
        for n in 0..10 {
            if self.one_in(3) {
                continue;
            }
            let parent =
                if self.one_in(2) { units.get(usize::try_from(n / 2).unwrap_or(0)).copied() } else { None };
            let id = contract.add(parent, &format!("u{n}"));
            units.push(id);
            let unit = &mut contract.units[id.index()];
            unit.tickets = PerResource::all(1 + self.below(300));
            if self.one_in(2) {
                unit.limit.disk = Some(Amount::Absolute(1_000_000 + self.below(20_000_000)));
            }
            if self.one_in(3) {
                unit.limit.memory = Some(Amount::Part(100_000 + self.below(900_000)));
            }
            if self.one_in(4) {
                unit.limit.cpu = Some(Amount::Part(100_000 + self.below(900_000)));
            }
            if self.one_in(4) {
                unit.hard.memory = Some(Amount::Part(self.below(100_000)));
            }
            if self.one_in(4) {
                unit.hard.cpu = Some(Amount::Part(self.below(100_000)));
            }
            for resource in Resource::ALL {
                (unit.lend[resource], unit.borrow[resource]) = (self.permission(), self.permission());
            }
        }
        contract
    }
}

fn means(chance: &mut Chance) -> Means {
    let memory = MemoryMeans { bounds: true, reclaim: true, ..MemoryMeans::NONE };
    let disk = DiskMeans { caps: true, weights: true, shares: false, limits_only: true };
    match chance.below(3) {
        0 => {
            let memory = MemoryMeans { guarantees: true, alarms: true, kill_order: true, ..memory };
            let disk = DiskMeans { limits_only: false, ..disk };
            Means { cpu_sets: true, weights: true, caps: true, gates: true, disk, memory, ..Means::NONE }
        }
        1 => Means { cpu_sets: true, weights: true, switches: true, disk, memory, ..Means::NONE },
        _ => Means { cpu_sets: true, gates: true, disk, memory, ..Means::NONE },
    }
}

/// Every unit that a plan concerns.
fn mentioned(plan: &Plan) -> Vec<UnitId> {
    let mut units: Vec<UnitId> = plan.orders.disk.iter().map(|step| step.action.unit()).collect();
    units.extend(plan.orders.cpu.iter().map(|step| step.action.unit()));
    units.extend(plan.orders.memory.iter().map(|step| step.action.unit()));
    for step in &plan.decisions.cpu.steps {
        match step.action {
            CpuDecision::Own { unit, .. } => units.push(unit),
            CpuDecision::Lend { lender, borrower, .. } => units.extend([lender, borrower]),
            // Something may be taken from a removed unit.
            CpuDecision::Disown { .. } | CpuDecision::CallBack { .. } | CpuDecision::Return { .. } => {}
        }
    }
    units.extend(&plan.watch);
    units
}

/// The state of a machine, and of the orders that it was given.
struct World {
    chance: Chance,
    contract: Contract,
    machine: Machine,
    means: Means,
    state: PolicyState,
    books: Books,
    settled: bool,
    now: u64,
    used: Vec<DiskUse>,
    memory: Vec<UnitMemory>,
    device: DeviceUse,
    disks: Vec<&'static str>,
    /// Rates and stops in force.
    capped: BTreeSet<(UnitId, String)>,
    stopped: BTreeSet<UnitId>,
    /// The number of exchanges.
    exchanges: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut chance = Chance(seed);
        World {
            contract: chance.contract(),
            machine: Machine::synthetic("nodes:2 cpus:4 memory:4GiB disks:1")
                .unwrap_or_else(|err| panic!("{err}")),
            means: means(&mut chance),
            chance,
            state: PolicyState::default(),
            books: Books::default(),
            settled: true,
            now: 0,
            used: Vec::new(),
            memory: Vec::new(),
            device: DeviceUse::default(),
            disks: vec!["sda"],
            exchanges: 0,
            capped: BTreeSet::new(),
            stopped: BTreeSet::new(),
        }
    }

    fn happen(&mut self) {
        let chance = &mut self.chance;
        if chance.one_in(8) {
            let mut contract = chance.contract();
            contract.adopt(&self.contract, self.settled);
            (self.contract, self.settled) = (contract, false);
            for unit in &self.contract.vacant {
                if let (Some(used), Some(memory)) =
                    (self.used.get_mut(unit.index()), self.memory.get_mut(unit.index()))
                {
                    (*used, *memory) = (DiskUse::default(), UnitMemory::default());
                }
            }
            let contract = &self.contract;
            self.capped.retain(|(unit, _)| contract.has(*unit));
            self.stopped.retain(|unit| contract.has(*unit));
        }
        if chance.one_in(12) {
            let parent = self.contract.held().next();
            self.contract.add(parent, &format!("user{}", self.now));
        }
        if chance.one_in(10) {
            const DISKS: [&[&str]; 5] = [&[], &["sda"], &["all"], &["sda", "sdb"], &["sdb"]];
            self.disks = DISKS[usize::try_from(chance.below(5)).unwrap_or(0)].to_vec();
        }
        if chance.one_in(40) {
            self.means = means(chance);
        }
        if chance.one_in(15) && self.machine.cpus.len() > 2 {
            self.machine.cpus.pop();
        }
        let ns = (1 + chance.below(300)) * MS;
        self.now = if chance.one_in(30) { self.now.saturating_sub(ns) } else { self.now + ns };
    }

    fn snapshot(&mut self) -> Snapshot {
        let (n, now, chance) = (self.contract.units.len(), self.now, &mut self.chance);
        self.used.resize(n, DiskUse::default());
        self.memory.resize(n, UnitMemory::default());
        self.device.busy_ns += 100 * MS;
        let mut units = vec![UnitFacts::default(); n];
        for unit in self.contract.held() {
            let (used, memory) = (&mut self.used[unit.index()], &mut self.memory[unit.index()]);
            let processes = u32::from(!chance.one_in(4));
            let runnable = u32::try_from(chance.below(6)).unwrap_or(0) * processes;
            units[unit.index()] = UnitFacts { at: now, processes, runnable, ..UnitFacts::default() };
            let bytes = if self.stopped.contains(&unit) { 0 } else { chance.below(4_000_000) };
            (used.read_bytes, used.requests) = (used.read_bytes + bytes, used.requests + 10);
            used.stalled_ns = Some(used.stalled_ns.unwrap_or(0) + chance.below(300 * MS));
            self.device.bytes += bytes;
            self.device.requests += 10;
            self.device.taken_ns += chance.below(3_000 * MS);
            memory.used = chance.below(600 << 20);
            memory.anonymous = memory.used / 3;
            memory.refused += chance.below(2);
            memory.refaulted += chance.below(50 << 20);
        }
        let disk = |name: &&str| DiskFacts {
            name: (*name).to_owned(),
            at: now,
            weighs: *name == "sdb",
            bytes_per_s: (*name == "all").then_some(50_000_000),
            device: Some(self.device),
            units: self.used.clone(),
        };
        let units_memory = self.memory.clone();
        let facts =
            MemoryFacts { total: 4 << 30, kernel: 1 << 28, units: units_memory, ..MemoryFacts::default() };
        let memory = (!chance.one_in(3)).then_some(facts);
        Snapshot {
            at: now,
            units,
            disks: self.disks.iter().map(disk).collect(),
            memory,
            ..Snapshot::default()
        }
    }

    /// Transfers, tickets of other currencies, and offers of which many match: of tickets, and of
    /// reservations.
    fn changes(&mut self) -> Vec<Change> {
        let units: Vec<UnitId> = self.contract.held().collect();
        let n = u64::try_from(units.len()).unwrap_or(0);
        let chance = &mut self.chance;
        if n == 0 || !chance.one_in(2) {
            return Vec::new();
        }
        let unit = |chance: &mut Chance| units[usize::try_from(chance.below(n)).unwrap_or(0)];
        let (one, other) = (unit(chance), unit(chance));
        let of = [Resource::Cpu, Resource::Memory, Resource::Disk];
        let at = usize::try_from(chance.below(3)).unwrap_or(0);
        let (gives, wants) = (of[at], of[(at + 1) % 3]);
        let mut offer = |resource: Resource| match resource == Resource::Memory && chance.one_in(2) {
            true => Offer::hard(resource, Amount::Part(1 + chance.below(20_000))),
            false => Offer::tickets(resource, 1 + chance.below(30)),
        };
        let (gives, wants) = (offer(gives), offer(wants));
        let tickets = self.chance.below(50);
        match self.chance.below(4) {
            0 => vec![Change::Transfer { from: one, to: other, resource: Resource::Memory, tickets }],
            1 => {
                let of = (!self.chance.one_in(4)).then_some(other);
                let tickets = PerResource { cpu: Some(tickets), memory: Some(tickets), ..Default::default() };
                vec![Change::Fund { unit: one, of, tickets }]
            }
            _ => {
                let for_ns = self.chance.one_in(2).then_some(700 * MS);
                let bid = Bid { by: one, gives, wants, with: None, for_ns, at_least: None, bound: false };
                let back = Bid { by: other, gives: wants, wants: gives, ..bid };
                [bid, back].map(|bid| Change::Offer { bid }).to_vec()
            }
        }
    }

    fn after(&mut self) {
        self.happen();
        let snapshot = self.snapshot();
        let changes = self.changes();
        let (contract, machine) = (&self.contract, &self.machine);
        let input = Input { contract, machine, means: self.means, snapshot: &snapshot, changes: &changes };
        let (state, plan) = step(self.state.clone(), self.now, input);
        let books = self
            .books
            .replay(contract, machine, &plan)
            .unwrap_or_else(|wrong| panic!("{wrong:#?}\n{plan:#?}"));
        let made = |trade: &&Trade| matches!(trade, Trade::Made { .. });
        self.exchanges += plan.decisions.trade.iter().filter(made).count();
        for unit in mentioned(&plan) {
            assert!(contract.has(unit), "unit {} of {:?}: {plan:#?}", unit.0, contract.vacant);
        }
        assert!(
            plan.next > self.now && plan.next < self.now + 10_000 * MS,
            "{} after {}",
            plan.next,
            self.now
        );
        // Some plans are not carried out, and the state from before them is restored.
        if self.chance.one_in(10) {
            return;
        }
        (self.state, self.books, self.settled) = (state, books, true);
        let there = |name: &str| snapshot.disks.iter().any(|disk| disk.name == name);
        self.capped.retain(|(_, disk)| there(disk));
        for step in &plan.orders.disk {
            match &step.action {
                DiskOrder::Cap { unit, disk, read: None, write: None } => {
                    self.capped.remove(&(*unit, disk.clone()));
                }
                DiskOrder::Cap { unit, disk, .. } => drop(self.capped.insert((*unit, disk.clone()))),
                DiskOrder::Stop { unit, stopped: true, .. } => drop(self.stopped.insert(*unit)),
                DiskOrder::Stop { unit, stopped: false, .. } => drop(self.stopped.remove(unit)),
                DiskOrder::Weigh { .. } | DiskOrder::Share { .. } => {}
            }
        }
        for unit in &self.stopped {
            assert!(self.capped.iter().any(|(capped, _)| capped == unit), "{unit:?} has no rate");
            let within = |id: UnitId| commonhold_policy::membership::is_within(contract, id, *unit);
            let processes = contract.held().filter(|id| within(*id)).map(|id| snapshot.unit(id).processes);
            assert!(processes.sum::<u32>() > 0, "{unit:?} has no processes");
        }
    }
}

#[test]
fn plans_concern_existing_units_whatever_changes() {
    let (mut stood_still, mut exchanges) = (0, 0);
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.after();
            stood_still += world.stopped.len();
        }
        exchanges += world.exchanges;
    }
    assert!(stood_still > 100 && exchanges > 300, "{stood_still} {exchanges}");
}
