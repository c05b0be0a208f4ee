//! Holding a contract: the loop's body. Observe, decide, check, apply, account.

use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_ledger::{Ledger, Statement};
use commonhold_live::{LiveBackend, LiveError, clock};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::{Input, Plan, Snapshot, State, Time, step};

use super::users::{carry_over, expand};

/// Problems that are kept for `status`.
const PROBLEMS_KEPT: usize = 20;

/// A contract in force on a machine.
pub(super) struct Hold {
    /// As it is written, with a sub-unit for every user seen in a unit with `each`.
    pub(super) contract: Contract,
    machine: Machine,
    backend: Box<dyn LiveBackend>,
    state: State,
    books: Books,
    ledger: Ledger,
    watch: Vec<UnitId>,
    problems: VecDeque<String>,
    /// Problems that last.
    standing: Vec<String>,
    /// CPU time that a step takes, as the last ones did; nothing before the first, which takes long: everybody is new to it.
    step_ns: Option<u64>,
    /// How often each problem came up, so that one that stays is said once.
    said: BTreeMap<String, u64>,
}

/// What one step did.
pub(super) struct Stepped {
    /// When the next is due at the latest.
    pub(super) next: Time,
    /// The plan that was carried out.
    pub(super) plan: Plan,
    /// Problems that were not said before.
    pub(super) new_problems: Vec<String>,
}

impl Hold {
    pub(super) fn new(contract: Contract, machine: Machine, backend: Box<dyn LiveBackend>) -> Hold {
        Hold {
            ledger: Ledger::open(&contract, &machine),
            contract,
            machine,
            backend,
            state: State::default(),
            books: Books::default(),
            watch: Vec::new(),
            problems: VecDeque::new(),
            standing: Vec::new(),
            step_ns: None,
            said: BTreeMap::new(),
        }
    }

    /// Looks, decides and acts.
    pub(super) fn step(&mut self) -> Result<Stepped, LiveError> {
        let begun = clock::thread_cpu_ns();
        let stepped = self.step_once();
        let took = clock::thread_cpu_ns().saturating_sub(begun);
        self.step_ns = Some(self.step_ns.map_or(0, |before| before.midpoint(took)));
        stepped
    }

    fn step_once(&mut self) -> Result<Stepped, LiveError> {
        let snapshot = Snapshot { look_ns: self.step_ns.unwrap_or(0), ..self.observe()? };
        self.ledger.observe(&self.machine, &snapshot);
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.backend.means(),
            snapshot: &snapshot,
        };
        let (state, plan) = step(self.state.clone(), snapshot.at, input);
        let mut problems: Vec<String> =
            self.backend.take_problems().iter().map(ToString::to_string).collect();
        match self.books.replay(&self.contract, &self.machine, &plan) {
            Ok(books) => {
                (self.books, self.state) = (books, state);
                problems.extend(self.backend.apply(&plan).iter().map(ToString::to_string));
                self.ledger.book(&plan, clock::now());
                self.watch.clone_from(&plan.watch);
            }
            // The policy erred. What is in force stays in force, and the next snapshot is another chance.
            Err(wrong) => {
                problems.extend(wrong.iter().map(|what| format!("a plan was not carried out: {what}")));
            }
        }
        let next = plan.next;
        let mut new_problems = self.keep(problems);
        new_problems.extend(self.stand());
        Ok(Stepped { next, plan, new_problems })
    }

    /// Looks until no new user wants a sub-unit: at most once more for every level of the contract.
    fn observe(&mut self) -> Result<Snapshot, LiveError> {
        loop {
            let snapshot = self.backend.observe(clock::now(), &self.watch)?;
            let users = self.backend.take_users();
            if !expand(&mut self.contract, &users) {
                return Ok(snapshot);
            }
            self.backend.set_contract(&self.contract);
        }
    }

    /// Takes another contract, with the sub-units of users seen so far where it still has them.
    pub(super) fn reload(&mut self, mut contract: Contract, machine: Machine) {
        let old = std::mem::take(&mut self.contract);
        carry_over(&old, &mut contract);
        let map = commonhold_live::roster::remap(&old, &contract);
        let number = |unit: UnitId| map.get(unit.index()).copied().flatten();
        self.state = std::mem::take(&mut self.state).renumbered(&number);
        self.books = self.books.renumbered(&number);
        self.ledger.renumber(&contract, &number);
        self.watch.clear();
        self.backend.set_contract(&contract);
        (self.contract, self.machine) = (contract, machine);
        self.said.clear();
    }

    /// Takes note that the machine changed: CPUs came or went.
    pub(super) fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.contract.machine.scheme
    }

    pub(super) fn statement(&self) -> Statement {
        self.ledger.statement(&self.contract)
    }

    pub(super) fn backend(&mut self) -> &mut dyn LiveBackend {
        self.backend.as_mut()
    }

    /// What could not be done lately, newest last, and then what is wrong now.
    pub(super) fn problems(&self) -> Vec<String> {
        self.problems.iter().chain(&self.standing).cloned().collect()
    }

    /// Ends the hold; what is left to undo is in the journal.
    pub(super) fn end(self) -> commonhold_live::journal::Journal {
        self.backend.into_journal()
    }

    /// A problem that `status` is to tell of.
    pub(super) fn note(&mut self, problem: String) {
        self.problems.push_back(problem);
    }

    /// Takes note of the problems that last; those that began are returned.
    fn stand(&mut self) -> Vec<String> {
        let now: Vec<String> =
            self.backend.standing().iter().map(|problem| printable(&problem.to_string())).collect();
        let new = now.iter().filter(|problem| !self.standing.contains(problem)).cloned().collect();
        self.standing = now;
        new
    }

    /// Keeps problems for `status`; those that were not said before are returned.
    fn keep(&mut self, problems: Vec<String>) -> Vec<String> {
        let mut new = Vec::new();
        for problem in problems {
            let problem = printable(&problem);
            let times = self.said.entry(problem.clone()).or_insert(0);
            *times += 1;
            if *times == 1 {
                self.problems.push_back(problem.clone());
                new.push(problem);
            }
        }
        while self.problems.len() > PROBLEMS_KEPT {
            self.problems.pop_front();
        }
        new
    }
}

/// On one line. The names of other people's programs are in it: no escape code of theirs reaches a terminal.
fn printable(problem: &str) -> String {
    problem.replace('\n', "; ").replace(char::is_control, "\u{fffd}")
}
