//! A session holds one contract on this machine: it drives the steward and the live backend, turn by turn.
//!
//! The session also persists changed rights, so that a later daemon can restore them, and it collects
//! problems for the user. A *lasting* problem is reported when it begins and again when it ends. Any other
//! problem is reported once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commonhold_contract::{Contract, PerResource, Resource, Scheme, UnitId};
use commonhold_ledger::{Finding, FindingReason, Statement, Verdict};
use commonhold_live::host::clock;
use commonhold_live::{LiveBackend, LiveError};
use commonhold_machine::Machine;
use commonhold_policy::plan::RightsChange;
use commonhold_policy::rights::{Change, Rights, Trade};
use commonhold_policy::{Plan, Time};
use commonhold_report::tickets::Expected;
use commonhold_steward::{Steward, Turn, Wrong};

use super::holdings;
use super::kept_tickets::Keeper;
use super::verdicts::Verdicts;

/// The interval at which a failed write of the tickets is retried.
const KEEP_AGAIN_NS: Time = 1_000_000_000;

/// The most problems kept for `status`.
const PROBLEMS_KEPT: usize = 20;

/// The most problems that are remembered as reported. There must be a limit, since problems contain process
/// names, from which users can make any number of distinct texts.
const REPORTED_MAX: usize = 1_024;

/// A contract, its backend, and its state.
pub(super) struct Session {
    steward: Steward,
    backend: Box<dyn LiveBackend>,
    keeper: Keeper,
    /// Whether the file of persisted rights must be written again after the next plan that is carried out.
    must_persist: bool,
    /// If the last write of that file failed: the problem, and the time of the next retry.
    persist_problem: Option<(String, Time)>,
    /// That problem's text as it was reported; `None` if there is no such problem now.
    persist_problem_reported: Option<String>,
    /// The changes of rights that the last turn made or refused.
    decided: Vec<RightsChange>,
    /// The last turn's trades.
    traded: Vec<Trade>,
    problems: VecDeque<String>,
    /// Why the history is not written, if it is not.
    history_problem: Option<String>,
    /// The error of the last reload, if it failed.
    not_reloaded: Option<String>,
    /// Ongoing problems of the backend.
    standing: Vec<String>,
    /// The ledger's imbalances at the last turn, by kind.
    imbalances: BTreeMap<&'static str, String>,
    /// A moving average of a turn's CPU time. It does not include the first turn, which takes long because
    /// every process is new.
    step_ns: Option<u64>,
    /// Unreported news about lookups of users and groups.
    news: Vec<String>,
    /// The problems that were reported. A problem in this set is not reported again when it occurs again.
    reported: BTreeSet<String>,
    verdicts: Verdicts,
    /// The resources that nothing holds, and the active backend for which that was found out; `None` after
    /// the contract or the machine was replaced.
    not_held: Option<(&'static str, PerResource<bool>)>,
}

/// The result of one step.
pub(super) struct Stepped {
    /// The deadline of the next step.
    pub(super) next: Time,
    /// The plan that was carried out.
    pub(super) plan: Plan,
    /// Problems that were not reported before.
    pub(super) new_problems: Vec<String>,
    /// Problems that have ended, each as it was reported when it began.
    pub(super) ended: Vec<String>,
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
            must_persist: false,
            persist_problem: None,
            persist_problem_reported: None,
            decided: Vec::new(),
            traded: Vec::new(),
            problems: VecDeque::new(),
            history_problem: None,
            not_reloaded: None,
            standing: Vec::new(),
            imbalances: BTreeMap::new(),
            step_ns: None,
            news: Vec::new(),
            reported: BTreeSet::new(),
            verdicts: Verdicts::default(),
            not_held: None,
        }
    }

    /// Makes one turn: observes, decides, applies and accounts. Measures the turn's CPU time, from which the
    /// steward determines how often to make turns.
    pub(super) fn step(&mut self) -> Result<Stepped, LiveError> {
        let begun = clock::thread_cpu_ns();
        let stepped = self.unmeasured_step();
        let elapsed_ns = clock::thread_cpu_ns().saturating_sub(begun);
        self.step_ns = Some(self.step_ns.map_or(0, |average| average.midpoint(elapsed_ns)));
        stepped
    }

    fn unmeasured_step(&mut self) -> Result<Stepped, LiveError> {
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
            self.persist_decided(&plan);
        }
        let lookups = self.backend.roster().names().take_news();
        problems.extend(lookups.problems);
        self.news.extend(lookups.news);
        let mut new_problems = self.remember(problems);
        let (began, ended) = self.update_standing(imbalances);
        new_problems.extend(began);
        Ok(Stepped { next: plan.next, plan, new_problems, ended })
    }

    /// Persists the rights that a carried-out plan changed, and queues the persisted changes that waited for
    /// units that exist now.
    fn persist_decided(&mut self, plan: &Plan) {
        self.decided.clone_from(&plan.decisions.rights);
        self.traded.clone_from(&plan.decisions.trade);
        self.queue_waiting_changes();
        let is_due = self.persist_problem.as_ref().is_none_or(|(_, retry_at)| clock::now() >= *retry_at);
        if !self.decided.is_empty() || !self.traded.is_empty() || (self.must_persist && is_due) {
            // A failure is recorded as a problem and retried later.
            let _ = self.persist_foreseen();
        }
    }

    /// Queues the persisted changes that waited for units that exist now.
    fn queue_waiting_changes(&mut self) {
        for change in self.keeper.for_new_units(self.steward.contract(), clock::now(), clock::wall_ms()) {
            self.steward.queue_change(change);
        }
    }

    /// Persists the rights as they will be after the queued changes. A failure is a problem until a retry
    /// succeeds.
    fn persist_foreseen(&mut self) -> Result<(), LiveError> {
        let foreseen = self.steward.foreseen();
        let changed = self.steward.changed(&foreseen);
        let (contract, now, wall_ms) = (self.steward.contract(), clock::now(), clock::wall_ms());
        let persisted = self.keeper.persist(contract, &changed, &foreseen, now, wall_ms);
        self.must_persist = persisted.is_err();
        self.persist_problem = persisted.as_ref().err().map(|e| {
            let why = printable(&format!(
                "the next daemon may not know which tickets were changed: {e}; it is tried again every second"
            ));
            (why, clock::now().saturating_add(KEEP_AGAIN_NS))
        });
        persisted
    }

    /// Retries a failed write before the session ends; returns the problem if the write fails again.
    pub(super) fn retry_persisting(&mut self) -> Option<String> {
        self.persist_problem.as_ref()?;
        self.persist_foreseen()
            .err()
            .map(|e| format!("the next daemon may not know which tickets were changed: {e}"))
    }

    /// Queues the persisted changes that are still valid under the contract in force; returns notes.
    pub(super) fn restore(&mut self) -> Vec<String> {
        let contract = self.steward.contract();
        let (changes, mut notes) = self.keeper.restore(contract, clock::now(), clock::wall_ms());
        if !changes.is_empty() {
            notes.push("tickets that were changed before this daemon began are changed again:".to_owned());
        }
        for change in changes {
            self.steward.queue_change(change);
        }
        self.must_persist = true;
        notes
    }

    /// Notes on the changes that have expired under the contract in force.
    pub(super) fn ended_changes(&mut self) -> Vec<String> {
        self.keeper.restore(self.steward.contract(), clock::now(), clock::wall_ms()).1
    }

    /// Persists a change of rights for later daemons and queues it for the next turn. After an error the
    /// change is not queued, and the file is rewritten until it no longer contains the change.
    pub(super) fn queue_change(&mut self, change: Change) -> Result<(), LiveError> {
        self.queue_changes(&[change])
    }

    /// Persists and queues several changes as [`Session::queue_change`] does, either all of them or none.
    pub(super) fn queue_changes(&mut self, changes: &[Change]) -> Result<(), LiveError> {
        // Persisted changes that waited for units are older than the new ones, so they are queued first.
        self.queue_waiting_changes();
        for change in changes {
            self.steward.queue_change(*change);
        }
        let persisted = self.persist_foreseen();
        if persisted.is_err() {
            for _ in changes {
                self.steward.withdraw_last_change();
            }
        }
        persisted
    }

    /// Takes the unreported news of user and group lookups.
    pub(super) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// The changes of rights that the last turn made or refused; empty if its plan was not carried out.
    pub(super) fn decided(&self) -> &[RightsChange] {
        &self.decided
    }

    /// The trades of the last turn; empty if its plan was not carried out.
    pub(super) fn traded(&self) -> &[Trade] {
        &self.traded
    }

    /// The rights as the last turn left them.
    pub(super) fn rights(&self) -> Rights {
        self.steward.rights()
    }

    /// Tickets that units will have once a turn succeeds, or once the unit exists.
    pub(super) fn expected(&self) -> Vec<Expected> {
        let (present, foreseen) = (self.rights(), self.steward.foreseen());
        let mut expected = Vec::new();
        for unit in self.contract().listed() {
            for resource in Resource::ALL {
                let tickets = foreseen.tickets(unit, resource);
                if tickets != present.tickets(unit, resource) {
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

    /// The worth of a unit's tickets, in the resource's unit of measure.
    pub(super) fn worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        self.steward.worth(rights, unit, resource)
    }

    /// The share of a unit's own processes, without its sub-units, in the resource's unit of measure.
    pub(super) fn own_worth(&self, rights: &Rights, unit: UnitId, resource: Resource) -> u64 {
        self.steward.own_worth(rights, unit, resource)
    }

    /// The amount of a resource that the units divide, in the resource's unit of measure.
    pub(super) fn whole(&self, resource: Resource) -> u64 {
        self.steward.whole(resource)
    }

    /// Replaces the contract. A sub-unit that `each` made for a user stays if the new contract would make one
    /// for that user, too.
    pub(super) fn reload(&mut self, contract: Contract, machine: Machine) {
        self.steward.reload(contract, machine);
        self.backend.set_contract(self.steward.contract());
        self.reported.clear();
        self.must_persist = true;
        self.not_held = None;
    }

    /// Replaces the machine, after CPU hotplug.
    pub(super) fn set_machine(&mut self, machine: Machine) {
        self.steward.set_machine(machine);
        self.not_held = None;
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

    /// The ledger's statement, in which verdicts say if nothing holds a resource. Such a resource has a
    /// verdict, even if the ledger has none, where a unit asks for it.
    pub(super) fn statement(&self) -> Statement {
        let mut statement = self.steward.statement();
        let not_held = self.not_held.as_ref().map_or(PerResource::all(false), |(_, not_held)| *not_held);
        for resource in Resource::ALL.into_iter().filter(|resource| not_held[*resource]) {
            let contract = self.contract();
            let asking = contract.held().map(|id| contract.unit(id)).filter(|unit| unit.asks_for(resource));
            let asking: BTreeSet<&str> = asking.map(|unit| unit.path.as_str()).collect();
            for account in &mut statement.accounts {
                match account.findings.iter_mut().find(|finding| finding.resource == resource) {
                    Some(finding) if finding.verdict == Verdict::Broken => {
                        finding.reason = FindingReason::NotHeld;
                    }
                    None if asking.contains(account.unit.as_str()) => {
                        account.findings.push(Finding::not_held(resource));
                    }
                    Some(_) | None => {}
                }
            }
        }
        statement
    }

    /// The changes of verdicts to report now; empty if they were compared less than a second ago.
    pub(super) fn changed_verdicts(&mut self) -> Vec<String> {
        let now = clock::now();
        if !self.verdicts.are_due(now) {
            return Vec::new();
        }
        self.update_not_held();
        let statement = self.statement();
        self.verdicts.compare(now, &statement)
    }

    /// Finds out which resources nothing holds, unless that is known for the active backend. It takes
    /// hundreds of system calls.
    fn update_not_held(&mut self) {
        let backend = self.backend.active().name;
        if self.not_held.as_ref().is_none_or(|(known, _)| *known != backend) {
            let holdings = holdings::now(self);
            self.not_held = Some((backend, holdings::not_held(&holdings)));
        }
    }

    pub(super) fn backend(&mut self) -> &mut dyn LiveBackend {
        self.backend.as_mut()
    }

    /// The recent problems, newest last, followed by the lasting ones and the broken verdicts.
    pub(super) fn problems(&self) -> Vec<String> {
        let persist_problem = self.persist_problem.iter().map(|(why, _)| why);
        self.problems
            .iter()
            .chain(&self.standing)
            .chain(persist_problem)
            .chain(&self.history_problem)
            .chain(&self.not_reloaded)
            .chain(self.imbalances.values())
            .chain(self.verdicts.problems())
            .cloned()
            .collect()
    }

    /// Ends the session; returns the journal, which lists the changes to the machine that must be undone.
    pub(super) fn end(self) -> commonhold_live::undo::journal::Journal {
        self.backend.into_journal()
    }

    /// Adds a problem for `status`.
    pub(super) fn note(&mut self, problem: String) {
        self.problems.push_back(problem);
    }

    /// Records whether the history is written: `None` if it is. Returns the previous problem.
    pub(super) fn note_history(&mut self, problem: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.history_problem, problem)
    }

    /// Records the outcome of a reload: `None` if the contract is in force.
    pub(super) fn note_reload(&mut self, problem: Option<String>) {
        self.not_reloaded = problem;
    }

    /// Updates the lasting problems: the backend's, a failure to persist rights, and imbalances of the
    /// ledger. Returns the problems that began and those that ended.
    fn update_standing(&mut self, imbalances: BTreeMap<&'static str, String>) -> (Vec<String>, Vec<String>) {
        let standing: Vec<String> =
            self.backend.standing().iter().map(|problem| printable(&problem.to_string())).collect();
        let without = |all: &[String], others: &[String]| -> Vec<String> {
            all.iter().filter(|problem| !others.contains(problem)).cloned().collect()
        };
        let mut new = without(&standing, &self.standing);
        let mut ended = without(&self.standing, &standing);
        self.standing = standing;
        match &self.persist_problem {
            // Attempts to write may fail with different errors, which count as one problem.
            Some((why, _)) if self.persist_problem_reported.is_none() => {
                new.push(why.clone());
                self.persist_problem_reported = Some(why.clone());
            }
            Some(_) => {}
            None => ended.extend(self.persist_problem_reported.take()),
        }
        // An imbalance is reported only when it begins. The numbers in its text change at every turn, so
        // later texts differ.
        let began = imbalances.iter().filter(|(kind, _)| !self.imbalances.contains_key(*kind));
        new.extend(began.map(|(_, text)| text.clone()));
        self.imbalances = imbalances;
        (new, ended)
    }

    /// Remembers problems for `status`; returns those that were not reported before.
    fn remember(&mut self, problems: Vec<String>) -> Vec<String> {
        let mut new = Vec::new();
        for problem in problems {
            let problem = printable(&problem);
            if is_first_report(&mut self.reported, &problem) {
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

/// Remembers a problem as reported; returns whether it was not reported before. When [`REPORTED_MAX`]
/// problems are remembered, all are forgotten, so that a problem that occurs again is then reported again.
fn is_first_report(reported: &mut BTreeSet<String>, problem: &str) -> bool {
    if reported.contains(problem) {
        return false;
    }
    if reported.len() >= REPORTED_MAX {
        reported.clear();
    }
    reported.insert(problem.to_owned())
}

/// A problem's text as one line without control characters. The text may contain names of other users'
/// processes, whose escape codes must not reach a terminal.
fn printable(problem: &str) -> String {
    problem.replace('\n', "; ").replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
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

    /// The `user` backend on this machine, which holds no process, with ongoing problems that the test sets.
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

    /// A session of two units without members, its files in a directory, and ongoing problems that the test
    /// sets.
    pub(in super::super) fn troubled(directory: &Path) -> (Session, Rc<RefCell<Vec<&'static str>>>) {
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
    fn a_lasting_problem_is_reported_when_it_begins_and_when_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let (mut session, wanted) = troubled(directory.path());
        let mut said = |problems: &[&'static str]| {
            *wanted.borrow_mut() = problems.to_vec();
            let Stepped { new_problems, ended, .. } = session.step().unwrap();
            (new_problems, ended, session.problems())
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
    fn the_end_of_a_failure_to_persist_tickets_is_reported() {
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
        // The retry is not due yet, however slow this machine is.
        session.persist_problem.as_mut().unwrap().1 = Time::MAX;
        let failed = session.step().unwrap();
        let [problem] = &failed.new_problems[..] else { panic!("{:?}", failed.new_problems) };
        assert!(problem.starts_with("the next daemon may not know which tickets"), "{problem}");
        assert_eq!(failed.ended, Vec::<String>::new());
        fs::create_dir(&kept).unwrap();
        // The retry is due.
        session.persist_problem.as_mut().unwrap().1 = 0;
        let stepped = session.step().unwrap();
        assert_eq!((&stepped.ended, &stepped.new_problems), (&vec![problem.clone()], &Vec::new()));
        assert_eq!(session.step().unwrap().ended, Vec::<String>::new());
    }

    #[test]
    fn a_problem_is_reported_once_and_few_are_remembered() {
        let mut said = BTreeSet::new();
        assert!(is_first_report(&mut said, "it lasts") && !is_first_report(&mut said, "it lasts"));
        assert!((0..5_000).all(|pid| is_first_report(&mut said, &format!("process {pid}"))));
        assert!(said.len() <= REPORTED_MAX, "{}", said.len());
    }
}
