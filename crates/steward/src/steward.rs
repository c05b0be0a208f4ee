//! A contract in force, and a turn of the loop.

use std::fmt;

use commonhold_contract::{Contract, UnitId};
use commonhold_ledger::{Imbalance, Ledger, Statement};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::rights::Change;
use commonhold_policy::{Input, Plan, Snapshot, State, Time, step};

use crate::Backend;

/// A contract in force on a machine: what is decided from, and what is remembered.
#[derive(Debug)]
pub struct Steward {
    contract: Contract,
    machine: Machine,
    state: State,
    books: Books,
    ledger: Ledger,
    watch: Vec<UnitId>,
    /// Changes of rights that the next turn is to make, in order.
    changes: Vec<Change>,
    /// Places that a reload vacated are free for other units once a turn has seen them vacant.
    settled: bool,
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
            settled: true,
        }
    }

    /// One turn: looks, decides, checks, acts and accounts. `look_ns` is the CPU time that a turn takes, 0 where it takes
    /// none. An error is of the look, and then nothing was done.
    pub fn turn<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        look_ns: u64,
    ) -> Result<Turn<B::Error>, B::Error> {
        let snapshot = Snapshot { look_ns, ..self.observe(backend)? };
        let mut wrong: Vec<Wrong<B::Error>> =
            backend.take_problems().into_iter().map(Wrong::Machine).collect();
        wrong.extend(self.account(&snapshot).into_iter().map(Wrong::Ledger));
        let (contract, machine) = (&self.contract, &self.machine);
        let changes = &self.changes;
        let input = Input { contract, machine, means: backend.means(), snapshot: &snapshot, changes };
        let (state, plan) = step(self.state.clone(), snapshot.at, input);
        match self.books.replay(contract, machine, &plan) {
            Ok(books) => {
                (self.books, self.state) = (books, state);
                wrong.extend(backend.apply(&plan).into_iter().map(Wrong::Machine));
                wrong.extend(self.ledger.book(&plan, backend.now()).into_iter().map(Wrong::Ledger));
                self.watch.clone_from(&plan.watch);
                self.changes.clear();
                self.settled = true;
            }
            // What is in force stays in force, and the next snapshot is another chance.
            Err(found) => wrong.extend(found.into_iter().map(Wrong::Plan)),
        }
        Ok(Turn { snapshot, plan, wrong })
    }

    /// Has the next turn make a change of rights. Whether it was made, that turn's plan says (`decisions.rights`). A turn
    /// whose plan is not carried out leaves it to the next.
    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Enters what a snapshot shows, without deciding anything: the last look of a run.
    pub fn account(&mut self, snapshot: &Snapshot) -> Vec<Imbalance> {
        self.ledger.observe(&self.machine, snapshot)
    }

    /// Looks until no process asks for a unit of its own: at most once more for every level of the contract.
    fn observe<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<Snapshot, B::Error> {
        loop {
            let snapshot = backend.observe(backend.now(), &self.watch)?;
            if !backend.newcomers(&mut self.contract) {
                return Ok(snapshot);
            }
        }
    }

    /// Another contract holds from now on. Units of the same path stay the units that they are.
    pub fn reload(&mut self, mut contract: Contract, machine: Machine) {
        contract.carry_users_over(&self.contract);
        contract.adopt(&self.contract, self.settled);
        self.ledger.adopt(&contract);
        self.watch.clear();
        (self.contract, self.machine, self.settled) = (contract, machine, false);
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

/// When the next turn is due, given the plan of this one, on a machine whose clock shows `now`.
impl<E> Turn<E> {
    /// At the latest; later than `now`.
    pub fn next(&self, now: Time) -> Time {
        self.plan.next.max(now + 1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::{MILLIONTH, Resource};
    use commonhold_policy::rights::Refused;
    use commonhold_policy::{MS, Means, UnitFacts};

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);

    /// A machine whose units all run, and that says what it is told to.
    #[derive(Default)]
    struct Fake {
        now: Time,
        units: usize,
        applied: usize,
    }

    impl Backend for Fake {
        type Error = &'static str;

        fn means(&self) -> Means {
            Means { cpu_sets: true, weights: true, ..Means::NONE }
        }

        fn now(&self) -> Time {
            self.now
        }

        fn observe(&mut self, now: Time, _: &[UnitId]) -> Result<Snapshot, &'static str> {
            let busy = UnitFacts { at: now, processes: 1, runnable: 8, ..UnitFacts::default() };
            let units = (0..self.units).map(|unit| if unit < 2 { UnitFacts::default() } else { busy });
            Ok(Snapshot { at: now, units: units.collect(), ..Snapshot::default() })
        }

        fn apply(&mut self, plan: &Plan) -> Vec<&'static str> {
            self.applied += plan.steps();
            vec!["refused once"]
        }
    }

    fn two() -> Contract {
        let mut contract = Contract::default();
        contract.add(None, "a");
        contract.add(None, "b");
        contract
    }

    fn turn(steward: &mut Steward, fake: &mut Fake) -> Turn<&'static str> {
        fake.now += 100 * MS;
        fake.units = steward.contract().units.len();
        steward.turn(fake, 0).unwrap()
    }

    fn entitled(turn: &Turn<&'static str>) -> [u64; 2] {
        [A, B].map(|unit| turn.plan.decisions.cpu.entitled[unit.index()])
    }

    #[test]
    fn a_change_of_rights_is_made_once_by_the_next_turn() {
        let mut steward = Steward::new(two(), Machine::synthetic("cpus:4 memory:1GiB").unwrap());
        let mut fake = Fake::default();
        assert_eq!(entitled(&turn(&mut steward, &mut fake)), [2 * MILLIONTH, 2 * MILLIONTH]);
        let give = Change::Transfer { from: A, to: B, resource: Resource::Cpu, tickets: 50 };
        let much = Change::TakeBack { unit: A, resource: Resource::Cpu, tickets: 50 };
        steward.change(give);
        steward.change(much);
        let made = turn(&mut steward, &mut fake);
        let refused: Vec<Option<Refused>> =
            made.plan.decisions.rights.iter().map(|made| made.refused).collect();
        let few = Refused::TooFew { unit: A, resource: Resource::Cpu, has: 50, fewer: 50 };
        assert_eq!(refused, [None, Some(few)]);
        assert_eq!(entitled(&made), [MILLIONTH, 3 * MILLIONTH]);
        let after = turn(&mut steward, &mut fake);
        assert!(after.plan.decisions.rights.is_empty());
        assert_eq!(entitled(&after), [MILLIONTH, 3 * MILLIONTH]);
        // What was given stays given over a reload, to the units that stay.
        let mut contract = Contract::default();
        contract.add(None, "c");
        contract.add(None, "b");
        contract.add(None, "a");
        steward.reload(contract, Machine::synthetic("cpus:4 memory:1GiB").unwrap());
        let reloaded = turn(&mut steward, &mut fake);
        assert_eq!(entitled(&reloaded), [666_666, 2 * MILLIONTH]);
        assert!(
            fake.applied > 0 && reloaded.wrong == [Wrong::Machine("refused once")],
            "{:?}",
            reloaded.wrong
        );
    }
}
