//! A contract in force, and one turn of the loop that enforces it.

use std::collections::BTreeSet;
use std::fmt;

use commonhold_contract::{Contract, Resource, Scheme, UnitId};
use commonhold_ledger::{Imbalance, Ledger, Statement};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::entitlement::{Capacity, capacity};
use commonhold_policy::rights::{Change, Rights};
use commonhold_policy::{Input, Plan, PolicyState, Snapshot, Time, step};

use crate::Backend;

/// The shortest time from one turn to the next that an alarm
/// ([`MemoryMeans::alarms`](commonhold_policy::MemoryMeans::alarms)) causes, in nanoseconds.
pub const ALARM_NS: Time = 15_000_000;

/// The shortest time between two checks for CPU hotplug, in nanoseconds. The check precedes a turn, and
/// [`Steward::set_machine`] follows if CPUs went offline or came online.
pub const HOTPLUG_NS: Time = 1_000_000_000;

/// A contract in force on a machine, with the state that lasts from turn to turn.
#[derive(Debug)]
pub struct Steward {
    contract: Contract,
    machine: Machine,
    state: PolicyState,
    books: Books,
    ledger: Ledger,
    /// The units whose facts must be fresh in the next snapshot, by the last plan.
    watch: Vec<UnitId>,
    /// Queued changes of rights, in order. They leave the queue when a plan that makes or refuses them was
    /// carried out.
    changes: Vec<Change>,
    /// The memory that units divide, in bytes, by the last plan that decided on memory; `None`: no such plan.
    memory_divided: Option<u64>,
    /// Unit numbers that were vacant in the last turn whose plan was carried out, so that policy and accounts
    /// have dropped the old units. New units may take them.
    free: BTreeSet<UnitId>,
}

/// A unit's tickets of a resource that differ from the contract's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The unit.
    pub unit: UnitId,
    /// The resource.
    pub resource: Resource,
    /// Tickets by the contract.
    pub contract: u64,
    /// Tickets now.
    pub tickets: u64,
}

/// The outcome of one turn.
#[derive(Debug)]
pub struct Turn<E> {
    /// The observed facts.
    pub snapshot: Snapshot,
    /// The decisions and orders.
    pub plan: Plan,
    /// Failures, in the order in which they occurred.
    pub wrong: Vec<Wrong<E>>,
}

/// A failure in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong<E> {
    /// The machine refused an order, or a part of the machine could not be observed. The rest of the turn was
    /// done.
    Machine(E),
    /// The plan failed the check and was not carried out. Earlier orders stay in force.
    Plan(String),
    /// The ledger does not balance.
    Ledger(Imbalance),
}

impl<E: fmt::Display> fmt::Display for Wrong<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Machine(error) => error.fmt(f),
            Wrong::Plan(what) => write!(f, "a plan was not carried out: {what}"),
            Wrong::Ledger(imbalance) => imbalance.fmt(f),
        }
    }
}

impl Steward {
    /// A steward that enforces a contract on a machine. No orders are in force yet.
    pub fn new(contract: Contract, machine: Machine) -> Steward {
        Steward {
            ledger: Ledger::open(&contract, &machine),
            contract,
            machine,
            state: PolicyState::default(),
            books: Books::default(),
            watch: Vec::new(),
            changes: Vec::new(),
            memory_divided: None,
            free: BTreeSet::new(),
        }
    }

    /// One turn: assigns processes to units ([`Backend::settle_members`]), observes, accounts, decides,
    /// checks and applies. `look_ns` is the CPU time that a turn takes; 0 on a simulated machine. `Err`: one
    /// of the first two stages failed, and no plan was made.
    pub fn turn<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        look_ns: u64,
    ) -> Result<Turn<B::Error>, B::Error> {
        let now = self.settle_members(backend)?;
        let snapshot = Snapshot { look_ns, ..backend.observe(now, &self.watch)? };
        let mut wrong: Vec<Wrong<B::Error>> =
            backend.take_problems().into_iter().map(Wrong::Machine).collect();
        // Charge the time since the last turn before the plan changes anything.
        wrong.extend(self.account(&snapshot).into_iter().map(Wrong::Ledger));
        let (contract, machine) = (&self.contract, &self.machine);
        let input =
            Input { contract, machine, means: backend.means(), snapshot: &snapshot, changes: &self.changes };
        let (state, plan) = step(self.state.clone(), snapshot.at, input);
        match self.books.replay(contract, machine, &plan) {
            Ok(books) => {
                (self.books, self.state) = (books, state);
                wrong.extend(backend.apply(&plan).into_iter().map(Wrong::Machine));
                wrong.extend(self.ledger.book(&plan, backend.now()).into_iter().map(Wrong::Ledger));
                self.watch.clone_from(&plan.watch);
                self.changes.clear();
                self.memory_divided =
                    plan.decisions.memory.as_ref().map(|memory| memory.divided).or(self.memory_divided);
                self.free.clone_from(&self.contract.vacant);
            }
            // Earlier orders stay in force. The next turn plans again, with the same queued changes of
            // rights.
            Err(violations) => wrong.extend(violations.into_iter().map(Wrong::Plan)),
        }
        Ok(Turn { snapshot, plan, wrong })
    }

    /// Charges the time since the previous snapshot to the accounts, without making a plan. A run ends with
    /// such a call.
    pub fn account(&mut self, snapshot: &Snapshot) -> Vec<Imbalance> {
        self.ledger.observe(&self.contract, &self.machine, snapshot)
    }

    /// Calls [`Backend::settle_members`] until the contract has every unit that `each` asks for: at most one
    /// repetition for every level of the contract. Returns the time of the last call.
    fn settle_members<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<Time, B::Error> {
        loop {
            let now = backend.now();
            let vacant_before = self.contract.vacant.clone();
            if !backend.settle_members(now, &mut self.contract, &self.free)? {
                return Ok(now);
            }
            let ended: Vec<UnitId> = self.contract.vacant.difference(&vacant_before).copied().collect();
            if !ended.is_empty() {
                self.drop_units(&ended);
            }
        }
    }

    /// Drops the state of units that `each` made and that have ended.
    fn drop_units(&mut self, ended: &[UnitId]) {
        let contract = &self.contract;
        self.ledger.close(ended, contract);
        self.watch.retain(|unit| contract.has(*unit));
        self.changes.retain(|change| change.about().into_iter().all(|(unit, _)| contract.has(unit)));
    }

    /// Queues a change of rights, behind the changes queued before. The next turn whose plan is carried out
    /// makes or refuses the change; `plan.decisions.rights` has the outcome. `policy/rights/change.rs`
    /// describes the whole path of a change.
    pub fn queue_change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Removes the last queued change.
    pub fn withdraw_last_change(&mut self) {
        self.changes.pop();
    }

    /// The rights as they will be once the queued changes are made. Only tickets are predicted: the set of
    /// active units stays that of the last turn.
    pub fn foreseen(&self) -> Rights {
        let mut rights = self.rights();
        for change in &self.changes {
            // A refused change has no effect, and the turn reports the reason.
            let _ = rights.apply(*change);
        }
        rights
    }

    /// The rights under the contract in force, as the last turn left them.
    pub fn rights(&self) -> Rights {
        let mut rights = self.state.rights().clone();
        rights.follow(&self.contract);
        rights
    }

    /// The tickets that differ from the contract in force: by unit, in the order of the contract's text, then
    /// by resource.
    pub fn changed(&self, rights: &Rights) -> Vec<Changed> {
        let tickets = |unit: UnitId| {
            Resource::ALL.map(|resource| Changed {
                unit,
                resource,
                contract: self.contract.unit(unit).tickets[resource],
                tickets: rights.tickets(unit, resource),
            })
        };
        self.contract
            .listed()
            .into_iter()
            .flat_map(tickets)
            .filter(|changed| changed.contract != changed.tickets)
            .collect()
    }

    /// The worth of a unit's tickets of a resource while all active units want it: millionths of a CPU, bytes
    /// of memory, or millionths of the capacity of each disk or of the memory bus. 0 for an inactive unit.
    pub fn worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        rights.at_capacity(resource, self.divided(resource)).value(unit)
    }

    /// The worth of the part that the unit's own processes hold, without its sub-units; in the same measure
    /// as [`Steward::worth`].
    pub fn own_worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        rights.at_capacity(resource, self.divided(resource)).own(unit)
    }

    /// The amount of a resource that all units together divide, in the same measure as [`Steward::worth`].
    pub fn whole(&self, resource: Resource) -> u64 {
        self.divided(resource).total()
    }

    /// The capacity that units divide. For memory it is the amount that the last plan divided; before the
    /// first plan, the amount that the contract gives.
    fn divided(&self, resource: Resource) -> Capacity {
        match resource {
            Resource::Cpu => capacity(&self.contract, &self.machine, resource),
            Resource::Memory => self
                .memory_divided
                .map_or_else(|| capacity(&self.contract, &self.machine, resource), Capacity::Known),
            Resource::Disk | Resource::Bus => Capacity::Parts,
        }
    }

    /// Replaces the contract. Units of the same path keep their identity. A queued change survives by the
    /// same rule as a change that was made: if the new contract gives its units the same numbers of the
    /// tickets concerned, or if `each` made the unit from a control group, since no contract states that
    /// unit's tickets.
    pub fn reload(&mut self, mut contract: Contract, machine: Machine) {
        contract.carry_over(&self.contract);
        contract.adopt(&self.contract, self.free == self.contract.vacant);
        self.ledger.adopt(&contract);
        self.watch.clear();
        let before = &self.contract;
        let survives = |(unit, resource): (UnitId, Resource)| {
            before.has(unit)
                && contract.has(unit)
                && (before.unit(unit).tickets[resource] == contract.unit(unit).tickets[resource]
                    || contract.group_of(unit).is_some())
        };
        self.changes.retain(|change| change.about().into_iter().all(survives));
        if contract.machine.scheme == Scheme::Smp {
            // Under `smp` no plan divides memory.
            self.memory_divided = None;
        }
        (self.contract, self.machine) = (contract, machine);
        self.free.clear();
    }

    /// Replaces the machine, after CPU hotplug.
    pub fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The contract in force, including units made by `each`.
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// The machine, as last detected.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The present accounts.
    pub fn statement(&self) -> Statement {
        self.ledger.statement(&self.contract)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl<E> Turn<E> {
    /// Whether the plan passed the check and was carried out.
    pub fn is_carried_out(&self) -> bool {
        !self.wrong.iter().any(|wrong| matches!(wrong, Wrong::Plan(_)))
    }

    /// When the next turn is due at the latest by this turn's plan, but always later than `now`.
    pub fn next(&self, now: Time) -> Time {
        self.plan.next.max(now + 1)
    }
}

#[cfg(test)]
mod tests;
