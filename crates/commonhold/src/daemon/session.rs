//! Holding a contract on this machine: turns of the loop, and the problems that they meet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commonhold_contract::{Contract, Resource, Scheme, UnitId};
use commonhold_ledger::Statement;
use commonhold_live::host::clock;
use commonhold_live::{LiveBackend, LiveError};
use commonhold_machine::Machine;
use commonhold_policy::plan::RightsChange;
use commonhold_policy::rights::{Change, Rights, Trade};
use commonhold_policy::{Plan, Time};
use commonhold_report::tickets::Expected;
use commonhold_steward::{Steward, Turn, Wrong};

use super::kept_tickets::Keeper;

/// How soon it is tried again to keep tickets.
const KEEP_AGAIN_NS: Time = 1_000_000_000;

/// Problems that are kept for `status`.
const PROBLEMS_KEPT: usize = 20;

/// Different problems that are remembered as said. Processes' names are in them, so that users could make up any number.
const SAID_MAX: usize = 1_024;

/// A contract in force on this machine.
pub(super) struct Session {
    steward: Steward,
    backend: Box<dyn LiveBackend>,
    keeper: Keeper,
    /// Whether what is kept may not be what is in force any more, once a plan is carried out.
    keep_again: bool,
    /// Why what is in force could not be kept, if it could not, and when that is tried again.
    unkept: Option<(String, Time)>,
    /// What was said of that; empty once it has ended.
    unkept_said: Option<String>,
    /// The changes of rights that the last turn made or refused.
    decided: Vec<RightsChange>,
    /// What the last turn made of offers.
    traded: Vec<Trade>,
    problems: VecDeque<String>,
    /// Why the contract was not reloaded when that was asked for last.
    not_reloaded: Option<String>,
    /// Problems that last.
    standing: Vec<String>,
    /// Sums of the ledger that do not come out, by what they are of, as of the last turn.
    imbalances: BTreeMap<&'static str, String>,
    /// CPU time that a step takes, as the last ones did; nothing before the first, which takes long: everybody is new to it.
    step_ns: Option<u64>,
    /// Names of users and groups that were found since the daemon said so last.
    news: Vec<String>,
    /// Problems that were said, so that one that stays is said once.
    said: BTreeSet<String>,
}

/// What one step did.
pub(super) struct Stepped {
    /// When the next is due at the latest.
    pub(super) next: Time,
    /// The plan that was carried out.
    pub(super) plan: Plan,
    /// Problems that were not said before.
    pub(super) new_problems: Vec<String>,
    /// Problems that lasted, and are over: each as it was said when it began.
    pub(super) over: Vec<String>,
}

impl Session {
    pub(super) fn new(
        contract: Contract,
        machine: Machine,
        backend: Box<dyn LiveBackend>,
        keeper: Keeper,
    ) -> Session {
        Session {
            steward: Steward::new(contract, machine),
            backend,
            keeper,
            keep_again: false,
            unkept: None,
            unkept_said: None,
            decided: Vec::new(),
            traded: Vec::new(),
            problems: VecDeque::new(),
            not_reloaded: None,
            standing: Vec::new(),
            imbalances: BTreeMap::new(),
            step_ns: None,
            news: Vec::new(),
            said: BTreeSet::new(),
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
        self.decided.clear();
        self.traded.clear();
        let turn = self.steward.turn(self.backend.as_mut(), self.step_ns.unwrap_or(0))?;
        let is_carried_out = turn.is_carried_out();
        let Turn { plan, wrong, .. } = turn;
        let mut imbalances = BTreeMap::new();
        let mut problems = Vec::new();
        for wrong in wrong {
            match &wrong {
                Wrong::Ledger(imbalance) => drop(imbalances.insert(imbalance.kind(), wrong.to_string())),
                Wrong::Machine(_) | Wrong::Plan(_) => problems.push(wrong.to_string()),
            }
        }
        if is_carried_out {
            self.follow_rights(&plan);
        }
        let lookups = self.backend.roster().names().take_news();
        problems.extend(lookups.problems);
        self.news.extend(lookups.news);
        let mut new_problems = self.keep(problems);
        let (began, over) = self.stand(imbalances);
        new_problems.extend(began);
        Ok(Stepped { next: plan.next, plan, new_problems, over })
    }

    /// Keeps what a plan that was carried out changed of rights, and has the next one change what waited for a unit that is
    /// there now.
    fn follow_rights(&mut self, plan: &Plan) {
        self.decided.clone_from(&plan.decisions.rights);
        self.traded.clone_from(&plan.decisions.trade);
        self.queue_kept_changes();
        let is_due = self.unkept.as_ref().is_none_or(|(_, again)| clock::now() >= *again);
        if !self.decided.is_empty() || !self.traded.is_empty() || (self.keep_again && is_due) {
            // What was refused was not foreseen, so that there is little to write. A failure is noted there.
            let _ = self.keep_foreseen();
        }
    }

    /// Queues the kept changes that waited for units that exist now.
    fn queue_kept_changes(&mut self) {
        for change in self.keeper.of_newcomers(self.steward.contract(), clock::now(), clock::wall_ms()) {
            self.steward.queue_change(change);
        }
    }

    /// Keeps the rights as they will be. What could not be kept is a problem until it can.
    fn keep_foreseen(&mut self) -> Result<(), LiveError> {
        let foreseen = self.steward.foreseen();
        let changed = self.steward.changed(&foreseen);
        let (contract, now, wall_ms) = (self.steward.contract(), clock::now(), clock::wall_ms());
        let kept = self.keeper.keep(contract, &changed, &foreseen, now, wall_ms);
        self.keep_again = kept.is_err();
        self.unkept = kept.as_ref().err().map(|e| {
            let why = printable(&format!(
                "the next daemon may not know which tickets were changed: {e}; it is tried again every second"
            ));
            (why, clock::now().saturating_add(KEEP_AGAIN_NS))
        });
        kept
    }

    /// Tries a last time to keep what could not be kept; the problem, if it cannot.
    pub(super) fn keep_last(&mut self) -> Option<String> {
        self.unkept.as_ref()?;
        self.keep_foreseen()
            .err()
            .map(|e| format!("the next daemon may not know which tickets were changed: {e}"))
    }

    /// Has the next turn make the changes again that were kept, those of them that the contract in force leaves in force;
    /// what is to be said of it.
    pub(super) fn restore(&mut self) -> Vec<String> {
        let contract = self.steward.contract();
        let (changes, mut notes) = self.keeper.restore(contract, clock::now(), clock::wall_ms());
        if !changes.is_empty() {
            notes.push("tickets that were changed before this daemon began are changed again:".to_owned());
        }
        for change in changes {
            self.steward.queue_change(change);
        }
        self.keep_again = true;
        notes
    }

    /// What is to be said of changes that the contract in force ends.
    pub(super) fn ended_changes(&mut self) -> Vec<String> {
        self.keeper.restore(self.steward.contract(), clock::now(), clock::wall_ms()).1
    }

    /// Persists a change of rights for later daemons and queues it for the next turn. On an error it is not
    /// queued, and the file is rewritten until it no longer contains it.
    pub(super) fn queue_change(&mut self, change: Change) -> Result<(), LiveError> {
        self.queue_changes(&[change])
    }

    /// As [`Session::queue_change`], of several changes atomically.
    pub(super) fn queue_changes(&mut self, changes: &[Change]) -> Result<(), LiveError> {
        // Kept changes are older, so they come first.
        self.queue_kept_changes();
        for change in changes {
            self.steward.queue_change(*change);
        }
        let kept = self.keep_foreseen();
        if kept.is_err() {
            for _ in changes {
                self.steward.withdraw_last_change();
            }
        }
        kept
    }

    /// What is new of users and groups that the contract names, once.
    pub(super) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// The changes of rights that the last turn made or refused; empty if its plan was not carried out.
    pub(super) fn decided(&self) -> &[RightsChange] {
        &self.decided
    }

    /// What came of offers at the last turn; nothing where its plan was not carried out.
    pub(super) fn traded(&self) -> &[Trade] {
        &self.traded
    }

    /// The rights as the last turn left them.
    pub(super) fn rights(&self) -> Rights {
        self.steward.rights()
    }

    /// Tickets that units will have: once a turn does not fail, or once the unit is there.
    pub(super) fn expected(&self) -> Vec<Expected> {
        let (now, foreseen) = (self.rights(), self.steward.foreseen());
        let mut expected = Vec::new();
        for unit in self.contract().listed() {
            for resource in Resource::ALL {
                let tickets = foreseen.tickets(unit, resource);
                if tickets != now.tickets(unit, resource) {
                    let unit = self.contract().unit(unit).path.clone();
                    let when = "with the next step that does not fail".to_owned();
                    expected.push(Expected { unit, resource, tickets, when });
                }
            }
        }
        expected.extend(self.keeper.waiting().iter().map(|kept| Expected {
            unit: kept.unit.clone(),
            resource: kept.resource,
            tickets: kept.tickets,
            when: format!("instead of {}, once its user has processes", kept.contract),
        }));
        expected
    }

    /// What a unit's tickets are worth, in the resource's measure.
    pub(super) fn worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        self.steward.worth(rights, unit, resource)
    }

    /// What a unit's own processes hold beside its sub-units, in the same measure.
    pub(super) fn own_worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        self.steward.own_worth(rights, unit, resource)
    }

    /// What units divide of a resource, in the same measure.
    pub(super) fn whole(&self, resource: Resource) -> u64 {
        self.steward.whole(resource)
    }

    /// Takes another contract, with the sub-units of users seen so far where it still has them.
    pub(super) fn reload(&mut self, contract: Contract, machine: Machine) {
        self.steward.reload(contract, machine);
        self.backend.set_contract(self.steward.contract());
        self.said.clear();
        self.keep_again = true;
    }

    /// Takes note that the machine changed: CPUs came or went.
    pub(super) fn set_machine(&mut self, machine: Machine) {
        self.steward.set_machine(machine);
    }

    pub(super) fn machine(&self) -> &Machine {
        self.steward.machine()
    }

    pub(super) fn contract(&self) -> &Contract {
        self.steward.contract()
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.contract().machine.scheme
    }

    pub(super) fn statement(&self) -> Statement {
        self.steward.statement()
    }

    pub(super) fn backend(&mut self) -> &mut dyn LiveBackend {
        self.backend.as_mut()
    }

    /// What could not be done lately, newest last, and then what is wrong now.
    pub(super) fn problems(&self) -> Vec<String> {
        let unkept = self.unkept.iter().map(|(why, _)| why);
        self.problems
            .iter()
            .chain(&self.standing)
            .chain(unkept)
            .chain(&self.not_reloaded)
            .chain(self.imbalances.values())
            .cloned()
            .collect()
    }

    /// Ends the session; what is left to undo is in the journal.
    pub(super) fn end(self) -> commonhold_live::undo::journal::Journal {
        self.backend.into_journal()
    }

    /// A problem that `status` is to tell of.
    pub(super) fn note(&mut self, problem: String) {
        self.problems.push_back(problem);
    }

    /// What came of the last reload: `None` if the contract is in force.
    pub(super) fn note_reload(&mut self, problem: Option<String>) {
        self.not_reloaded = problem;
    }

    /// Takes note of the problems that last; those that began, and those that are over.
    fn stand(&mut self, imbalances: BTreeMap<&'static str, String>) -> (Vec<String>, Vec<String>) {
        let now: Vec<String> =
            self.backend.standing().iter().map(|problem| printable(&problem.to_string())).collect();
        let without = |all: &[String], others: &[String]| -> Vec<String> {
            all.iter().filter(|problem| !others.contains(problem)).cloned().collect()
        };
        let (mut new, mut over) = (without(&now, &self.standing), without(&self.standing, &now));
        self.standing = now;
        match &self.unkept {
            // Each attempt may fail in another way; it is one problem.
            Some((why, _)) if self.unkept_said.is_none() => {
                new.push(why.clone());
                self.unkept_said = Some(why.clone());
            }
            Some(_) => {}
            None => over.extend(self.unkept_said.take()),
        }
        // The numbers go on changing: what does not come out is said when it begins.
        let began = imbalances.iter().filter(|(kind, _)| !self.imbalances.contains_key(*kind));
        new.extend(began.map(|(_, text)| text.clone()));
        self.imbalances = imbalances;
        (new, over)
    }

    /// Keeps problems for `status`; those that were not said before are returned.
    fn keep(&mut self, problems: Vec<String>) -> Vec<String> {
        let mut new = Vec::new();
        for problem in problems {
            let problem = printable(&problem);
            if is_said_first(&mut self.said, &problem) {
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

/// Whether a problem was not said before. If too many different ones are remembered, all are forgotten, and what stays is said
/// once more.
fn is_said_first(said: &mut BTreeSet<String>, problem: &str) -> bool {
    if said.contains(problem) {
        return false;
    }
    if said.len() >= SAID_MAX {
        said.clear();
    }
    said.insert(problem.to_owned())
}

/// On one line. The names of other people's programs are in it: no escape code of theirs reaches a terminal.
fn printable(problem: &str) -> String {
    problem.replace('\n', "; ").replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::rc::Rc;

    use commonhold_live::apply::user::UserBackend;
    use commonhold_live::observe::arena::NotJoined;
    use commonhold_live::observe::process::ProcessKey;
    use commonhold_live::observe::roster::Roster;
    use commonhold_live::undo::journal::Journal;
    use commonhold_live::{ActiveBackend, Backend};
    use commonhold_policy::rights::Bid;
    use commonhold_policy::{Means, Snapshot};

    use super::*;

    /// The `user` backend on this machine, which holds nobody here, with problems that last as long as the test says.
    struct Troubled {
        user: UserBackend,
        wanted: Rc<RefCell<Vec<&'static str>>>,
        standing: Vec<LiveError>,
    }

    impl LiveBackend for Troubled {
        fn set_contract(&mut self, contract: &Contract) {
            self.user.set_contract(contract);
        }

        fn standing(&self) -> Vec<&LiveError> {
            self.standing.iter().collect()
        }

        fn roster(&self) -> &Roster {
            self.user.roster()
        }

        fn roster_mut(&mut self) -> &mut Roster {
            self.user.roster_mut()
        }

        fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>> {
            self.user.join(key, user)
        }

        fn active(&self) -> ActiveBackend {
            self.user.active()
        }

        fn into_journal(self: Box<Self>) -> Journal {
            Box::new(self.user).into_journal()
        }
    }

    impl Backend for Troubled {
        type Error = LiveError;

        fn means(&self) -> Means {
            self.user.means()
        }

        fn now(&self) -> Time {
            self.user.now()
        }

        fn settle_members(
            &mut self,
            now: Time,
            contract: &mut Contract,
            free: &BTreeSet<UnitId>,
        ) -> Result<bool, LiveError> {
            self.user.settle_members(now, contract, free)
        }

        fn observe(&mut self, now: Time, watch: &[UnitId]) -> Result<Snapshot, LiveError> {
            let problem =
                |what: &&str| LiveError::Unavailable { what: (*what).to_owned(), remedy: "wait".to_owned() };
            self.standing = self.wanted.borrow().iter().map(problem).collect();
            self.user.observe(now, watch)
        }

        fn apply(&mut self, plan: &Plan) -> Vec<LiveError> {
            self.user.apply(plan)
        }

        fn take_problems(&mut self) -> Vec<LiveError> {
            self.user.take_problems()
        }
    }

    /// A session of two units without members, its files in a directory, and what stands of problems at each step.
    fn troubled(directory: &Path) -> (Session, Rc<RefCell<Vec<&'static str>>>) {
        let mut contract = Contract::default();
        contract.add(None, "a");
        contract.add(None, "b");
        let machine = commonhold_live::observe::topology::read(Path::new("/")).unwrap();
        let (journal, _) = Journal::create(directory).unwrap();
        let roster = Roster::new(Path::new("/proc"), &[]).unwrap();
        let user = UserBackend::new(contract.clone(), machine.cpu_set(), roster, journal);
        let wanted = Rc::new(RefCell::new(Vec::new()));
        let backend = Box::new(Troubled { user, wanted: Rc::clone(&wanted), standing: Vec::new() });
        let kept = directory.join("kept");
        fs::create_dir(&kept).unwrap();
        (Session::new(contract, machine, backend, Keeper::open(&kept).0), wanted)
    }

    #[test]
    fn a_problem_that_lasts_is_said_when_it_begins_and_when_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let (mut session, wanted) = troubled(directory.path());
        let mut said = |problems: &[&'static str]| {
            *wanted.borrow_mut() = problems.to_vec();
            let Stepped { new_problems, over, .. } = session.step().unwrap();
            (new_problems, over, session.problems())
        };
        let (silent, lost) = ("systemd is silent; wait".to_owned(), "a disk is lost; wait".to_owned());
        let none = Vec::<String>::new;
        assert_eq!(said(&[]), (none(), none(), none()));
        let both = || vec![silent.clone(), lost.clone()];
        assert_eq!(said(&["systemd is silent", "a disk is lost"]), (both(), none(), both()));
        assert_eq!(said(&["systemd is silent", "a disk is lost"]), (none(), none(), both()));
        assert_eq!(said(&["a disk is lost"]), (none(), vec![silent.clone()], vec![lost.clone()]));
        assert_eq!(said(&[]), (none(), vec![lost.clone()], none()));
        assert_eq!(said(&[]), (none(), none(), none()), "the end is said once");
        assert_eq!(said(&["a disk is lost"]), (vec![lost.clone()], none(), vec![lost]), "it is said again");
    }

    #[test]
    fn the_end_of_a_failure_to_keep_tickets_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let (mut session, _) = troubled(directory.path());
        let kept = directory.path().join("kept");
        fs::remove_dir(&kept).unwrap();
        let bid = Bid {
            by: session.contract().listed()[0],
            gives: "disk:30".parse().unwrap(),
            wants: "cpu:20".parse().unwrap(),
            with: None,
            for_ns: None,
            at_least: None,
            bound: false,
        };
        assert!(session.queue_change(Change::Offer { bid }).is_err());
        // However long this machine takes to get there, the next attempt is not due.
        session.unkept.as_mut().unwrap().1 = Time::MAX;
        let failed = session.step().unwrap();
        let [problem] = &failed.new_problems[..] else { panic!("{:?}", failed.new_problems) };
        assert!(problem.starts_with("the next daemon may not know which tickets"), "{problem}");
        assert_eq!(failed.over, Vec::<String>::new());
        fs::create_dir(&kept).unwrap();
        // The next attempt is due.
        session.unkept.as_mut().unwrap().1 = 0;
        let stepped = session.step().unwrap();
        assert_eq!((&stepped.over, &stepped.new_problems), (&vec![problem.clone()], &Vec::new()));
        assert_eq!(session.step().unwrap().over, Vec::<String>::new());
    }

    #[test]
    fn a_problem_is_said_once_and_few_are_remembered() {
        let mut said = BTreeSet::new();
        assert!(is_said_first(&mut said, "it lasts") && !is_said_first(&mut said, "it lasts"));
        assert!((0..5_000).all(|pid| is_said_first(&mut said, &format!("process {pid}"))));
        assert!(said.len() <= SAID_MAX, "{}", said.len());
    }
}
