//! A contract in force, and a turn of the loop.

use std::collections::BTreeSet;
use std::fmt;

use commonhold_contract::{Contract, Resource, Scheme, UnitId};
use commonhold_ledger::{Imbalance, Ledger, Statement};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::entitlement::{Capacity, capacity};
use commonhold_policy::rights::{Change, Rights};
use commonhold_policy::{Input, Plan, Snapshot, State, Time, step};

use crate::Backend;

/// How soon after a turn an alarm of a machine ([`MemoryMeans::alarms`](commonhold_policy::MemoryMeans::alarms)) makes
/// another one.
pub const ALARM_NS: Time = 15_000_000;

/// A contract in force on a machine: what is decided from, and what is remembered.
#[derive(Debug)]
pub struct Steward {
    contract: Contract,
    machine: Machine,
    state: State,
    books: Books,
    ledger: Ledger,
    watch: Vec<UnitId>,
    /// Changes of rights that no plan that was carried out has made or refused yet, in order.
    changes: Vec<Change>,
    /// What is divided of memory, in bytes, by the last plan that said so.
    memory_divided: Option<u64>,
    /// Vacant places that a turn has seen vacant: other units may take them.
    free: BTreeSet<UnitId>,
}

/// A unit's tickets of a resource, where they are not those that the contract gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The unit.
    pub unit: UnitId,
    /// Of what.
    pub resource: Resource,
    /// What the contract gives it.
    pub contract: u64,
    /// What it has.
    pub tickets: u64,
}

/// What one turn did.
#[derive(Debug)]
pub struct Turn<E> {
    /// What was seen.
    pub snapshot: Snapshot,
    /// What was decided.
    pub plan: Plan,
    /// What did not go as it should, in the order in which it was found.
    pub wrong: Vec<Wrong<E>>,
}

/// What did not go as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong<E> {
    /// The machine refused something, or could not be seen in part. The rest was done.
    Machine(E),
    /// The policy erred: the plan was not carried out, and what was in force stays.
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
    /// Nothing is in force yet; the first turn begins.
    pub fn new(contract: Contract, machine: Machine) -> Steward {
        Steward {
            ledger: Ledger::open(&contract, &machine),
            contract,
            machine,
            state: State::default(),
            books: Books::default(),
            watch: Vec::new(),
            changes: Vec::new(),
            memory_divided: None,
            free: BTreeSet::new(),
        }
    }

    /// One turn: settles members, observes, decides, checks, applies and accounts. `look_ns` is the CPU time that a turn takes;
    /// 0 on a simulated machine. An error comes from settling or observing; no plan was made then.
    pub fn turn<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        look_ns: u64,
    ) -> Result<Turn<B::Error>, B::Error> {
        let now = self.settle_members(backend)?;
        let snapshot = Snapshot { look_ns, ..backend.observe(now, &self.watch)? };
        let mut wrong: Vec<Wrong<B::Error>> =
            backend.take_problems().into_iter().map(Wrong::Machine).collect();
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
            // What is in force stays in force, and the next snapshot is another chance: for changes of rights too.
            Err(found) => wrong.extend(found.into_iter().map(Wrong::Plan)),
        }
        Ok(Turn { snapshot, plan, wrong })
    }

    /// Enters what a snapshot shows, without deciding anything: the last look of a run.
    pub fn account(&mut self, snapshot: &Snapshot) -> Vec<Imbalance> {
        self.ledger.observe(&self.machine, snapshot)
    }

    /// Settles members until the contract has every unit that `each` asks for: at most once more for every level of the
    /// contract. Returns the time of the last pass.
    fn settle_members<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<Time, B::Error> {
        loop {
            let now = backend.now();
            let before = self.contract.vacant.clone();
            if !backend.settle_members(now, &mut self.contract, &self.free)? {
                return Ok(now);
            }
            let gone: Vec<UnitId> = self.contract.vacant.difference(&before).copied().collect();
            if !gone.is_empty() {
                self.part(&gone);
            }
        }
    }

    /// Units that `each` made are gone.
    fn part(&mut self, gone: &[UnitId]) {
        let contract = &self.contract;
        self.ledger.close(gone, contract);
        self.watch.retain(|unit| contract.has(*unit));
        self.changes.retain(|change| change.about().into_iter().all(|(unit, _)| contract.has(unit)));
    }

    /// Queues a change of rights. The next turn whose plan is carried out makes it or refuses it, after those that were
    /// queued before; `plan.decisions.rights` has the outcome. Nothing is known of it before.
    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Takes back the change that was queued last, if no turn has made it.
    pub fn withdraw(&mut self) {
        self.changes.pop();
    }

    /// The rights under the contract in force, as they will be once the queued changes are made. Tickets alone are
    /// foreseen: which units are there, a turn sees.
    pub fn foreseen(&self) -> Rights {
        let mut rights = self.rights();
        for change in &self.changes {
            // What is refused changes nothing, and the turn says why.
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

    /// Where tickets are not those of the contract in force, in the order of the text and of resources.
    pub fn changed(&self, rights: &Rights) -> Vec<Changed> {
        let of = |unit: UnitId| {
            Resource::ALL.map(|resource| Changed {
                unit,
                resource,
                contract: self.contract.unit(unit).tickets[resource],
                tickets: rights.tickets(unit, resource),
            })
        };
        self.contract.listed().into_iter().flat_map(of).filter(|it| it.contract != it.tickets).collect()
    }

    /// What a unit's tickets of a resource are worth while the units that have processes want it: millionths of a CPU,
    /// bytes of memory, millionths of what each disk or the memory bus transfers. 0 for a unit without processes.
    pub fn worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        rights.to_part(resource, self.divided(resource)).value(unit)
    }

    /// The same of a unit's own processes, beside its sub-units.
    pub fn own_worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        rights.to_part(resource, self.divided(resource)).own(unit)
    }

    /// What units divide of a resource, in the same measures.
    pub fn whole(&self, resource: Resource) -> u64 {
        self.divided(resource).total()
    }

    fn divided(&self, resource: Resource) -> Capacity {
        match resource {
            Resource::Cpu => capacity(&self.contract, &self.machine, resource),
            Resource::Memory => self
                .memory_divided
                .map_or_else(|| capacity(&self.contract, &self.machine, resource), Capacity::Known),
            Resource::Disk | Resource::Bus => Capacity::Parts,
        }
    }

    /// Another contract holds from now on. Units of the same path stay the units that they are. A queued change stays queued
    /// where it would have stayed if it had been made: where the contract says no other number of the tickets that it is about, or
    /// none, since `each` made the unit of a control group.
    pub fn reload(&mut self, mut contract: Contract, machine: Machine) {
        contract.carry_over(&self.contract);
        contract.adopt(&self.contract, self.free == self.contract.vacant);
        self.ledger.adopt(&contract);
        self.watch.clear();
        let before = &self.contract;
        let same = |(unit, resource): (UnitId, Resource)| {
            before.has(unit)
                && contract.has(unit)
                && (before.unit(unit).tickets[resource] == contract.unit(unit).tickets[resource]
                    || contract.group_of(unit).is_some())
        };
        self.changes.retain(|change| change.about().into_iter().all(same));
        if contract.machine.scheme == Scheme::Smp {
            // No plan says it from now on.
            self.memory_divided = None;
        }
        (self.contract, self.machine) = (contract, machine);
        self.free.clear();
    }

    /// CPUs came or went.
    pub fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The contract in force, with the units that `each` made.
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// The machine, as it was found last.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The accounts as they stand.
    pub fn statement(&self) -> Statement {
        self.ledger.statement(&self.contract)
    }

    /// The accounts themselves.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl<E> Turn<E> {
    /// Whether the plan was carried out; if not, nothing that it decided came to be.
    pub fn is_carried_out(&self) -> bool {
        !self.wrong.iter().any(|wrong| matches!(wrong, Wrong::Plan(_)))
    }
}

/// When the next turn is due, given the plan of this one, on a machine whose clock shows `now`.
impl<E> Turn<E> {
    /// At the latest; later than `now`.
    pub fn next(&self, now: Time) -> Time {
        self.plan.next.max(now + 1)
    }
}

#[cfg(test)]
mod tests;
