//! A kernel that writes down what it is told.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::rc::Rc;

use commonhold_contract::PoolForm;
use commonhold_dispatch::{Account, Discipline};
use commonhold_policy::membership::{Selector, Test};
use commonhold_policy::plan::{CpuDecision, CpuOrder, Orders};
use commonhold_policy::{Reason, Step};

use super::super::loaded::Ended;
use super::*;

const SECOND: Time = 1_000_000_000;

#[derive(Default)]
struct Kernel {
    said: Vec<String>,
    /// How the scheduler ended that is loaded, if it did.
    ended: Option<Ended>,
    /// Whether one is loaded: there is one at a time.
    loaded: bool,
    /// What is refused from now on: the beginning of what is said.
    refuses: Option<&'static str>,
    cpus: usize,
    names: BTreeMap<u64, String>,
    /// Switches that the scheduler counted, by slot.
    switches: BTreeMap<u32, u64>,
}

impl Kernel {
    fn told(&mut self, what: String) -> Result<(), LiveError> {
        if self.refuses.is_some_and(|refused| what.starts_with(refused)) {
            return Err(LiveError::Unavailable { what: format!("no {what}"), remedy: "be patient".into() });
        }
        self.said.push(what);
        Ok(())
    }

    fn name(&self, cgroup: u64) -> String {
        self.names.get(&cgroup).cloned().unwrap_or_else(|| "?".to_owned())
    }
}

struct Loaded(Rc<RefCell<Kernel>>);

impl Drop for Loaded {
    fn drop(&mut self) {
        self.0.borrow_mut().loaded = false;
    }
}

impl Scheduler for Loaded {
    fn set_unit(&mut self, unit: u32, rules: UnitRules) -> Result<(), LiveError> {
        let UnitRules { parent, weight, flags, credit_ms, discipline, .. } = rules;
        let parent = if parent == NOBODY { String::new() } else { format!(" in {parent}") };
        let credit = if credit_ms == 0 { String::new() } else { format!(" credit {credit_ms}") };
        let by = if discipline == Discipline::Stride { String::new() } else { format!(" by {discipline:?}") };
        self.0.borrow_mut().told(format!("unit {unit}{parent} weighs {weight} flags {flags}{credit}{by}"))
    }

    fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), LiveError> {
        let mut kernel = self.0.borrow_mut();
        let what = format!("admit {} {unit}", kernel.name(cgroup));
        kernel.told(what)
    }

    fn forget(&mut self, cgroup: u64) -> Result<(), LiveError> {
        let mut kernel = self.0.borrow_mut();
        let what = format!("forget {}", kernel.name(cgroup));
        kernel.told(what)
    }

    fn set_matches(&mut self, lists: &Lists) {
        let lists: Vec<String> =
            lists.iter().map(|(level, list)| format!("of {level} {}", list.len())).collect();
        self.0.borrow_mut().said.push(format!("rules {}", lists.join(" ")).trim_end().to_owned());
    }

    fn attach(&mut self) -> Result<(), LiveError> {
        self.0.borrow_mut().told("attach".to_owned())
    }

    fn own(&mut self, cpu: u32, unit: u32) -> Result<(), LiveError> {
        let unit = if unit == NOBODY { "nobody".to_owned() } else { unit.to_string() };
        self.0.borrow_mut().told(format!("own {cpu} {unit}"))
    }

    fn set_pools(&mut self, pools: &[u32]) {
        self.0.borrow_mut().said.push(format!("pools {pools:?}"));
    }

    fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), LiveError> {
        self.0.borrow_mut().told(format!("seat {thread} {cpu:?}"))
    }

    fn put(&mut self, thread: u32, unit: u32) -> Result<(), LiveError> {
        self.0.borrow_mut().told(format!("put {thread} {unit}"))
    }

    fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), LiveError> {
        self.0.borrow_mut().told(format!("join {process} {gang:?}"))
    }

    fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), LiveError> {
        self.0.borrow_mut().told(format!("gate {gangs:?}"))
    }

    fn clear(&mut self, unit: u32) {
        self.0.borrow_mut().switches.remove(&unit);
    }

    fn switched(&self, unit: u32) -> Switched {
        let switches = self.0.borrow().switches.get(&unit).copied().unwrap_or(0);
        Switched { account: Account { switches, ..Account::default() }, ..Switched::default() }
    }

    /// All on CPU 1.
    fn accounts(&self, unit: u32) -> Vec<Account> {
        vec![Account::default(), self.switched(unit).account]
    }

    fn ended(&self) -> Option<Ended> {
        self.0.borrow().ended.clone()
    }
}

struct Fake(Rc<RefCell<Kernel>>);

impl Loader for Fake {
    fn load(&mut self, units: u32, knows: Knows) -> Result<Box<dyn Scheduler>, LiveError> {
        let mut kernel = self.0.borrow_mut();
        assert!(!kernel.loaded, "a kernel has one scheduler at a time");
        kernel.ended = None;
        let other = if knows.disciplines { " with disciplines" } else { "" };
        let seats = if knows.seats { " with seats" } else { "" };
        let gangs = if knows.gangs { " with gangs" } else { "" };
        kernel.told(format!("load {units}{other}{seats}{gangs}"))?;
        kernel.switches.clear();
        kernel.loaded = true;
        Ok(Box::new(Loaded(Rc::clone(&self.0))))
    }

    /// Two CPUs to a pool, or as many as is said.
    fn pools(&self, form: PoolForm, _: bool) -> Result<Vec<u32>, LiveError> {
        let size = if let PoolForm::Size(size) = form { size } else { 2 };
        Ok((0..4).map(|cpu| cpu / size).collect())
    }

    fn cpus(&self) -> Result<usize, LiveError> {
        Ok(self.0.borrow().cpus)
    }
}

/// A machine with directories for cgroups.
struct World {
    kernel: Rc<RefCell<Kernel>>,
    top: tempfile::TempDir,
    contract: Contract,
    levels: Levels,
    reign: Option<Reign>,
}

impl World {
    fn new(units: &[&str]) -> World {
        let kernel = Rc::new(RefCell::new(Kernel { cpus: 4, ..Kernel::default() }));
        let top = tempfile::tempdir().unwrap();
        let mut world =
            World { kernel, top, contract: Contract::default(), levels: Levels::new(), reign: None };
        world.have(units);
        world
    }

    /// The contract has these units, and each a cgroup.
    fn have(&mut self, units: &[&str]) {
        let before = std::mem::take(&mut self.contract);
        self.contract.machine.scheme = before.machine.scheme;
        for unit in units {
            let (parent, name) = unit.rsplit_once('/').unwrap_or(("", unit));
            self.contract.add(self.contract.find(parent), name);
            std::fs::create_dir_all(self.top.path().join(unit)).unwrap();
        }
        self.contract.adopt(&before, true);
        for place in self.places() {
            let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&place.dir).unwrap());
            let name = self.contract.unit(place.unit).path.clone();
            self.kernel.borrow_mut().names.insert(inode, name);
        }
    }

    fn places(&self) -> Vec<Place> {
        let dir = |unit: UnitId| self.top.path().join(&self.contract.unit(unit).path);
        self.contract.held().map(|unit| Place { unit, dir: dir(unit) }).collect()
    }

    fn at_rest(&self) -> Reign {
        let loader = Box::new(Fake(Rc::clone(&self.kernel)));
        Reign::new(loader, &self.contract, &self.places(), self.levels.clone(), 0)
    }

    fn begin(&mut self) -> Result<(), LiveError> {
        let mut reign = self.at_rest();
        reign.start()?;
        self.reign = Some(reign);
        Ok(())
    }

    fn reign(&mut self) -> &mut Reign {
        self.reign.as_mut().unwrap()
    }

    fn follow(&mut self) {
        let (contract, places, levels) = (self.contract.clone(), self.places(), self.levels.clone());
        self.reign().follow(&contract, &places, levels);
    }

    fn unit(&self, path: &str) -> UnitId {
        self.contract.find(path).unwrap()
    }

    fn apply(&mut self, decisions: Vec<CpuDecision>, orders: Vec<CpuOrder>) {
        let reason = Reason::HoldsChanged;
        let mut plan = Plan { orders: Orders::of_cpus(reason, orders), ..Plan::default() };
        plan.decisions.cpu.steps = decisions.into_iter().map(|action| Step { action, reason }).collect();
        self.reign().apply(&plan);
    }

    /// What was said since the last call.
    fn said(&self) -> String {
        std::mem::take(&mut self.kernel.borrow_mut().said).join(", ")
    }

    fn problems(&mut self) -> Vec<String> {
        self.reign().take_problems().iter().map(ToString::to_string).collect()
    }

    fn end(&self, restart: bool) {
        self.kernel.borrow_mut().ended = Some(Ended { restart, why: "stalled (kind 1026)".to_owned() });
    }

    fn rules(&self) -> bool {
        self.reign.as_ref().unwrap().rest_now().is_none() && self.kernel.borrow().loaded
    }
}

const COMMON_PARTS: &str = "unit 0 weighs 100 flags 3, unit 1 weighs 10000 flags 7, ";

/// Two units, one with a sub-unit: told from without to within, admitted before it schedules, owners after.
#[test]
fn everything_is_told_in_order_and_again_after_another_load() {
    let mut w = World::new(&["a", "a/b", "c"]);
    w.begin().unwrap();
    let units = format!(
        "load 64, {COMMON_PARTS}unit 2 weighs 100 flags 3, admit a 2, unit 3 in 2 weighs 100 flags 3, admit a/b 3, \
         unit 4 weighs 100 flags 3, admit c 4, rules, attach"
    );
    assert_eq!(w.said(), units);
    let (a, b, c) = (w.unit("a"), w.unit("a/b"), w.unit("c"));
    w.apply(
        vec![
            CpuDecision::Own { cpu: 0, unit: a },
            CpuDecision::Own { cpu: 1, unit: c },
            CpuDecision::Own { cpu: 2, unit: UnitId::SHARED },
        ],
        vec![CpuOrder::Weigh { unit: b, weight: 5_000 }, CpuOrder::Confine { unit: c, cpus: None }],
    );
    assert_eq!(w.said(), "unit 3 in 2 weighs 5000 flags 3, own 0 2, own 1 4, own 2 1");
    w.apply(
        vec![
            CpuDecision::Disown { cpu: 0, unit: a },
            CpuDecision::Disown { cpu: 1, unit: c },
            CpuDecision::Own { cpu: 0, unit: c },
        ],
        vec![],
    );
    assert_eq!(w.said(), "own 0 4, own 1 nobody");
    w.end(true);
    w.reign().look(SECOND);
    let again = units.replace("3 in 2 weighs 100", "3 in 2 weighs 5000") + ", own 0 4, own 2 1";
    assert!(w.rules() && w.problems().is_empty());
    assert_eq!(w.said(), again);
}

/// A credit is told, and again after another load.
#[test]
fn what_a_unit_lent_is_told_with_what_it_is() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    let (_, a) = (w.said(), w.unit("a"));
    w.apply(vec![], vec![CpuOrder::Credit { unit: a, credit_ms: -7_000 }]);
    assert_eq!(w.said(), "unit 2 weighs 100 flags 3 credit -7000");
    w.end(true);
    w.reign().look(SECOND);
    assert!(w.said().contains("unit 2 weighs 100 flags 3 credit -7000"));
}

/// Tasks that are ordered by one discipline cannot be ordered by another: a scheduler that is loaded anew orders them. So it is
/// with the first one that is not stride. A unit that comes with one of those that are known needs no other scheduler.
#[test]
fn another_discipline_is_for_another_scheduler() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    assert!(w.said().starts_with("load 64, "));
    let by = |w: &mut World, unit: &str, discipline| {
        let unit = w.unit(unit);
        w.contract.units[unit.index()].discipline = discipline;
        w.follow();
        w.said()
    };
    let said = by(&mut w, "a", commonhold_contract::Discipline::Lottery);
    assert!(
        said.starts_with("load 64 with disciplines, ") && said.contains("flags 3 by Lottery, "),
        "{said}"
    );
    let said = by(&mut w, "b", commonhold_contract::Discipline::Rr);
    assert!(said.starts_with("load 64 with disciplines, ") && said.contains("flags 3 by Rr, "), "{said}");
    w.have(&["a", "b", "c"]);
    for (unit, discipline) in [
        ("a", commonhold_contract::Discipline::Lottery),
        ("b", commonhold_contract::Discipline::Rr),
        ("c", commonhold_contract::Discipline::Fifo),
    ] {
        let unit = w.unit(unit);
        w.contract.units[unit.index()].discipline = discipline;
    }
    w.follow();
    assert_eq!(w.said(), "unit 4 weighs 100 flags 3 by Fifo, admit c 4");
    for unit in ["a", "b", "c"] {
        let unit = w.unit(unit);
        w.contract.units[unit.index()].discipline = commonhold_contract::Discipline::Stride;
    }
    w.follow();
    assert!(w.said().starts_with("load 64, "));
}

/// Jobs need a scheduler that knows of seats. It is told the machine's pools, and again when they are formed otherwise.
#[test]
fn jobs_are_for_a_scheduler_that_knows_seats() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    assert!(w.said().starts_with("load 64, "));
    w.reign().seat(&[(9, Some(2))]);
    assert_eq!(w.said(), "", "this one knows of none");
    let (a, loads) = (w.unit("a"), w.reign().loads());
    w.contract.units[a.index()].job = Some(commonhold_contract::JobKind::Tree);
    w.follow();
    let said = w.said();
    assert!(said.starts_with("load 64 with seats, pools [0, 0, 1, 1], "), "{said}");
    assert!(said.contains("unit 2 weighs 100 flags 11, "), "{said}");
    assert_eq!(w.reign().loads(), loads + 1);
    w.reign().seat(&[(9, Some(2)), (10, None)]);
    assert_eq!(w.said(), "seat 9 Some(2), seat 10 None");
    w.contract.machine.pools = PoolForm::Size(4);
    w.follow();
    assert_eq!(w.said(), "pools [0, 0, 0, 0]");
    w.end(false);
    w.reign().look(SECOND);
    w.reign().seat(&[(9, None)]);
    assert_eq!(w.said(), "", "none rules");
}

/// Gangs need a scheduler that knows of them. One that is loaded anew is told all of them again.
#[test]
fn gangs_are_for_a_scheduler_that_knows_them() {
    use crate::observe::process::ProcessKey;
    use commonhold_policy::JobId;
    let of = |pid, job, shut| (ProcessKey { pid, start: 1 }, JobId(job), shut);
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.said();
    w.reign().gate(&[of(9, 1, true)]);
    assert!(w.said().is_empty() && !w.reign().gates(&[]), "this one knows of none");
    let a = w.unit("a");
    w.contract.units[a.index()].job = Some(commonhold_contract::JobKind::Tree);
    w.contract.machine.gangs.by = commonhold_contract::Gangs::LatestQuantum;
    w.follow();
    assert!(w.said().starts_with("load 64 with seats with gangs, "));
    assert!(w.reign().gates(&[]));
    w.reign().gate(&[of(9, 1, true), of(8, 2, false)]);
    assert_eq!(w.said(), "join 8 Some(1), join 9 Some(0), gate [(0, true)]");
    w.reign().gate(&[of(9, 1, true), of(8, 2, false)]);
    assert_eq!(w.said(), "gate []", "those that end are let go, the others breathe");
    w.end(true);
    w.reign().look(SECOND);
    w.said();
    w.reign().gate(&[of(9, 1, true)]);
    assert_eq!(w.said(), "join 9 Some(0), gate [(0, true)]");
    w.reign().gate(&[of(9, 1, false)]);
    assert_eq!(w.said(), "gate [(0, false)]");
    w.reign().gate(&[of(9, 1, false)]);
    assert_eq!(w.said(), "");
}

#[test]
fn an_end_is_said_and_mended_after_a_pause() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    let a = w.unit("a");
    w.end(false);
    w.reign().look(10 * SECOND);
    assert_eq!(
        w.problems(),
        [
            "the kernel ended the scheduler: stalled (kind 1026); control groups hold the contract, and it is loaded again in 1 s"
        ]
    );
    assert!(!w.rules());
    w.said();
    // What is planned meanwhile is told later.
    w.apply(vec![CpuDecision::Own { cpu: 3, unit: a }], vec![CpuOrder::Weigh { unit: a, weight: 10_000 }]);
    w.reign().look(11 * SECOND - 1);
    assert_eq!((w.said(), w.rules()), (String::new(), false));
    assert_eq!(w.reign().rest_now().unwrap().since, 10 * SECOND);
    w.reign().look(11 * SECOND);
    assert_eq!(
        w.said(),
        format!("load 64, {COMMON_PARTS}unit 2 weighs 10000 flags 3, admit a 2, rules, attach, own 3 2")
    );
    assert!(w.rules());
}

/// What was counted goes on over another load, and is nobody else's when a slot is.
#[test]
fn what_was_counted_stays_with_its_unit() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    let (a, b) = (w.unit("a"), w.unit("b"));
    w.kernel.borrow_mut().switches = BTreeMap::from([(2, 100), (3, 7)]);
    assert_eq!([a, b].map(|unit| w.reign().switched(unit).account.switches), [100, 7]);
    w.end(false);
    w.reign().look(SECOND);
    assert_eq!(w.reign().switched(a).account.switches, 100, "while it rests");
    w.reign().look(2 * SECOND);
    w.kernel.borrow_mut().switches = BTreeMap::from([(2, 20)]);
    assert_eq!([a, b].map(|unit| w.reign().switched(unit).account.switches), [120, 7]);
    assert_eq!([a, b].map(|unit| w.reign().accounts(unit)[1].switches), [120, 7]);
    w.have(&["b"]);
    w.follow();
    std::fs::rename(w.top.path().join("a"), w.top.path().join("gone")).unwrap();
    w.reign().look(3 * SECOND);
    w.have(&["b", "c"]);
    w.follow();
    let c = w.unit("c");
    assert!(w.said().contains("admit c 2"));
    assert_eq!(w.reign().switched(c).account.switches, 0);
    assert_eq!(w.reign().accounts(c), [Account::default(); 2]);
}

#[test]
fn what_fails_five_times_is_given_up() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.kernel.borrow_mut().refuses = Some("attach");
    w.end(false);
    let mut said = Vec::new();
    for second in 0..1000 {
        w.reign().look(second * SECOND);
        said.extend(w.problems());
    }
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said[1].starts_with(
        "no attach; be patient; control groups hold the contract, and it is loaded again in 4 s"
    ));
    assert!(said[4].contains("given up: start the daemon again, or with `--backend cgroup`"), "{}", said[4]);
    assert!(!w.rules() && !w.kernel.borrow().loaded);
    // Another contract changes nothing about that, nor one that no scheduler can hold in between.
    w.kernel.borrow_mut().refuses = None;
    w.have(&["b"]);
    w.follow();
    assert!(!w.rules());
    w.contract.machine.scheme = Scheme::Smp;
    w.follow();
    w.contract.machine.scheme = Scheme::Isolate;
    w.follow();
    assert!(!w.rules());
}

#[test]
fn a_scheduler_that_is_refused_at_the_start_is_an_error() {
    let mut w = World::new(&["a"]);
    w.kernel.borrow_mut().refuses = Some("load");
    assert_eq!(w.begin().unwrap_err().to_string(), "no load 64; be patient");
}

#[test]
fn a_scheduler_that_nobody_asked_for_is_tried_again_where_it_was_refused_at_the_start() {
    let mut w = World::new(&["a"]);
    w.kernel.borrow_mut().refuses = Some("load");
    w.reign = Some(w.at_rest());
    w.reign().start_patiently();
    assert!(!w.rules());
    assert_eq!(
        w.problems(),
        ["no load 64; be patient; control groups hold the contract, and it is loaded again in 1 s"]
    );
    assert_eq!(w.reign().rest_now().unwrap().why, "no load 64; be patient");
    w.kernel.borrow_mut().refuses = None;
    w.reign().look(SECOND / 2);
    assert!(!w.rules());
    w.reign().look(SECOND);
    assert!(w.rules() && w.problems().is_empty());
}

/// One that is told what it does not take is not left to hold something else than the contract says.
#[test]
fn who_refuses_what_it_is_told_has_failed() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.kernel.borrow_mut().refuses = Some("own");
    let a = w.unit("a");
    w.apply(vec![CpuDecision::Own { cpu: 3, unit: a }], vec![]);
    assert!(!w.rules() && w.problems()[0].starts_with("no own 3 2; "));
    w.kernel.borrow_mut().refuses = None;
    w.reign().look(SECOND);
    assert!(w.rules() && w.said().ends_with("attach, own 3 2"));
}

/// Rules are told by slot, and again only when they changed.
#[test]
fn rules_are_told_by_slot() {
    let mut w = World::new(&["a", "a/b"]);
    let (a, b) = (w.unit("a"), w.unit("a/b"));
    let user = |uid, unit| Selector { test: Test::User(uid), unit: Some(unit) };
    w.levels = Levels::from([(None, vec![user(1000, a), user(1001, a)]), (Some(a), vec![user(1000, b)])]);
    w.begin().unwrap();
    assert!(w.said().ends_with("rules of 1 2 of 2 1, attach"));
    w.follow();
    assert_eq!(w.said(), "");
    w.levels.remove(&Some(a));
    w.follow();
    assert_eq!(w.said(), "rules of 1 2");
}

/// A reload numbers units anew: slots stay, what is new is told alone, and who is gone loses its CPUs at once and its slot
/// when its cgroup is gone.
#[test]
fn a_reload_tells_what_changed() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    let (a, b) = (w.unit("a"), w.unit("b"));
    w.apply(
        vec![CpuDecision::Own { cpu: 0, unit: a }, CpuDecision::Own { cpu: 1, unit: b }],
        vec![CpuOrder::Weigh { unit: b, weight: 7_000 }],
    );
    w.said();
    w.have(&["b", "c", "b/d"]);
    let c = w.unit("c");
    w.contract.units[c.index()].lend.cpu = false.into();
    w.follow();
    assert_eq!(
        w.said(),
        "unit 5 in 3 weighs 100 flags 3, admit b/d 5, unit 4 weighs 100 flags 2, admit c 4, own 0 nobody"
    );
    w.apply(vec![CpuDecision::Own { cpu: 0, unit: c }], vec![]);
    assert_eq!(w.said(), "own 0 4");
    // The cgroup goes, and a task is still on its way out.
    // (A directory's inode may be used again, a cgroup's never is.)
    std::fs::rename(w.top.path().join("a"), w.top.path().join("gone")).unwrap();
    w.kernel.borrow_mut().refuses = Some("unit 2");
    w.reign().look(SECOND);
    w.have(&["b", "c", "b/d", "e"]);
    w.follow();
    assert_eq!(
        w.said(),
        "forget a, forget a, unit 4 weighs 100 flags 3, unit 6 weighs 100 flags 3, admit e 6"
    );
    w.kernel.borrow_mut().refuses = None;
    w.reign().look(2 * SECOND);
    w.have(&["b", "c", "b/d", "e", "f"]);
    w.follow();
    assert_eq!(w.said(), "forget a, unit 2 weighs 100 flags 0, unit 2 weighs 100 flags 3, admit f 2");
}

/// Room for 64, then for twice as many as there are, and never for more than the tables have.
#[test]
fn more_units_than_there_is_room_for_are_another_load() {
    let names: Vec<String> = (0..1022).map(|unit| format!("u{unit}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut w = World::new(&names[..20]);
    w.begin().unwrap();
    assert!(w.said().starts_with("load 64, "));
    w.have(&names[..63]);
    w.follow();
    assert!(w.rules() && w.said().starts_with("load 130, "));
    w.have(&names);
    w.follow();
    assert!(w.rules() && w.said().starts_with("load 1024, "));
    let mut more = names.clone();
    more.push("one-more");
    w.have(&more);
    w.follow();
    assert!(
        !w.rules() && w.problems()[0].starts_with("1025 units, the built-in ones included, are more than")
    );
    w.have(&names);
    w.follow();
    assert!(w.rules());
}

/// What no scheduler holds, control groups do, until there is another contract.
#[test]
fn a_contract_that_it_cannot_hold_is_left_to_cgroups() {
    let mut w = World::new(&["a", "b"]);
    w.contract.machine.scheme = Scheme::Smp;
    w.begin().unwrap();
    assert_eq!((w.said(), w.rules(), w.problems().len()), (String::new(), false, 0));
    w.contract.machine.scheme = Scheme::Quota;
    w.follow();
    assert!(w.rules() && w.said().contains("unit 2 weighs 100 flags 0, "));
    // Two units on one CPU, neither of which may use what the other leaves.
    w.kernel.borrow_mut().cpus = 1;
    w.end(true);
    w.reign().look(SECOND);
    assert!(
        !w.rules() && w.problems()[0].contains("unit a") && w.reign().rest_now().unwrap().since == SECOND
    );
    w.contract.machine.scheme = Scheme::Isolate;
    w.follow();
    assert!(w.rules());
    let a = w.unit("a");
    w.contract.units[a.index()].limit.cpu = Some(commonhold_contract::Amount::Absolute(500_000));
    w.follow();
    assert!(!w.rules() && w.problems()[0].contains("needs a cap"));
}

/// `CPUQuota=` is held by the kernel's own scheduler alone. It is loaded again when that is gone, and told once.
#[test]
fn a_cap_of_another_program_is_left_to_cgroups() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    w.said();
    w.reign().heed(Some("/user.slice"));
    assert!(!w.rules());
    let problems = w.problems();
    assert!(problems.len() == 1 && problems[0].contains("/user.slice has a cap"), "{problems:?}");
    w.reign().heed(Some("/user.slice"));
    w.follow();
    assert!(!w.rules());
    w.reign().heed(Some("/system.slice"));
    assert!(w.reign().rest_now().unwrap().why.starts_with("/system.slice"));
    assert_eq!(w.problems(), [""; 0]);
    w.reign().heed(None);
    assert!(w.rules() && w.said().contains("unit 2 weighs 100 "));
    // At the start, nothing is loaded.
    w.reign = Some(w.at_rest());
    w.reign().heed_at_rest(Some("/user.slice"));
    w.reign().start().unwrap();
    assert!(!w.rules());
    w.reign().heed(None);
    assert!(w.rules());
}
