//! Tests against a fake kernel that records the calls of a scheduler.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::rc::Rc;

use commonhold_contract::PoolForm;
use commonhold_dispatch::{Account, Discipline};
use commonhold_policy::membership::{Selector, Test};
use commonhold_policy::plan::{CpuDecision, CpuOrder, Orders};
use commonhold_policy::{Occupant, Reason, Step};

use super::super::loaded::Ended;
use super::*;

const SECOND: Time = 1_000_000_000;

#[derive(Default)]
struct Kernel {
    calls: Vec<String>,
    /// How the loaded scheduler ended, if it did.
    ended: Option<Ended>,
    /// Whether a scheduler is loaded.
    loaded: bool,
    /// Calls whose text begins so are refused.
    refuses: Option<&'static str>,
    cpus: usize,
    names: BTreeMap<u64, String>,
    /// Switches counted by the scheduler, by slot.
    switches: BTreeMap<u32, u64>,
    /// What it will report of waits: the slot that waited, the slot that had the CPU, and the time in ns.
    waits: Vec<(u32, u32, u64)>,
}

impl Kernel {
    fn record(&mut self, what: String) -> Result<(), LiveError> {
        if self.refuses.is_some_and(|refused| what.starts_with(refused)) {
            return Err(LiveError::Unavailable { what: format!("no {what}"), remedy: "be patient".into() });
        }
        self.calls.push(what);
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
        self.0.borrow_mut().record(format!("unit {unit}{parent} weighs {weight} flags {flags}{credit}{by}"))
    }

    fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), LiveError> {
        let mut kernel = self.0.borrow_mut();
        let what = format!("admit {} {unit}", kernel.name(cgroup));
        kernel.record(what)
    }

    fn forget(&mut self, cgroup: u64) -> Result<(), LiveError> {
        let mut kernel = self.0.borrow_mut();
        let what = format!("forget {}", kernel.name(cgroup));
        kernel.record(what)
    }

    fn set_matches(&mut self, lists: &Lists) {
        let lists: Vec<String> =
            lists.iter().map(|(level, list)| format!("of {level} {}", list.len())).collect();
        self.0.borrow_mut().calls.push(format!("rules {}", lists.join(" ")).trim_end().to_owned());
    }

    fn attach(&mut self) -> Result<(), LiveError> {
        self.0.borrow_mut().record("attach".to_owned())
    }

    fn own(&mut self, cpu: u32, unit: u32) -> Result<(), LiveError> {
        let unit = if unit == NOBODY { "nobody".to_owned() } else { unit.to_string() };
        self.0.borrow_mut().record(format!("own {cpu} {unit}"))
    }

    fn set_pools(&mut self, pools: &[u32]) {
        self.0.borrow_mut().calls.push(format!("pools {pools:?}"));
    }

    fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), LiveError> {
        self.0.borrow_mut().record(format!("seat {thread} {cpu:?}"))
    }

    fn put(&mut self, thread: u32, unit: u32) -> Result<(), LiveError> {
        self.0.borrow_mut().record(format!("put {thread} {unit}"))
    }

    fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), LiveError> {
        self.0.borrow_mut().record(format!("join {process} {gang:?}"))
    }

    fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), LiveError> {
        self.0.borrow_mut().record(format!("gate {gangs:?}"))
    }

    fn clear(&mut self, unit: u32) {
        self.0.borrow_mut().switches.remove(&unit);
    }

    fn unit_counters(&self, unit: u32) -> UnitCounters {
        let switches = self.0.borrow().switches.get(&unit).copied().unwrap_or(0);
        UnitCounters { account: Account { switches, ..Account::default() }, ..UnitCounters::default() }
    }

    /// All on CPU 1.
    fn accounts(&self, unit: u32) -> Vec<Account> {
        vec![Account::default(), self.unit_counters(unit).account]
    }

    fn take_waits_for_others(&mut self, each: &mut dyn FnMut(u32, u32, u64)) {
        for (waiter, runner, ns) in std::mem::take(&mut self.0.borrow_mut().waits) {
            each(waiter, runner, ns);
        }
    }

    fn ended(&self) -> Option<Ended> {
        self.0.borrow().ended.clone()
    }
}

struct Fake(Rc<RefCell<Kernel>>);

impl Loader for Fake {
    fn load(&mut self, units: u32, features: Features) -> Result<Box<dyn Scheduler>, LiveError> {
        let mut kernel = self.0.borrow_mut();
        assert!(!kernel.loaded, "a kernel has one scheduler at a time");
        kernel.ended = None;
        let other = if features.disciplines { " with disciplines" } else { "" };
        let seats = if features.seats { " with seats" } else { "" };
        let gangs = if features.gangs { " with gangs" } else { "" };
        kernel.record(format!("load {units}{other}{seats}{gangs}"))?;
        kernel.switches.clear();
        kernel.loaded = true;
        Ok(Box::new(Loaded(Rc::clone(&self.0))))
    }

    /// Pools of two CPUs, or of the given size.
    fn pools(&self, form: PoolForm, _: bool) -> Result<Vec<u32>, LiveError> {
        let size = if let PoolForm::Size(size) = form { size } else { 2 };
        Ok((0..4).map(|cpu| cpu / size).collect())
    }

    fn cpus(&self) -> Result<usize, LiveError> {
        Ok(self.0.borrow().cpus)
    }
}

/// A fake kernel, and directories in place of cgroups.
struct World {
    kernel: Rc<RefCell<Kernel>>,
    top: tempfile::TempDir,
    contract: Contract,
    levels: Levels,
    supervisor: Option<Supervisor>,
}

impl World {
    fn new(units: &[&str]) -> World {
        let kernel = Rc::new(RefCell::new(Kernel { cpus: 4, ..Kernel::default() }));
        let top = tempfile::tempdir().unwrap();
        let mut world =
            World { kernel, top, contract: Contract::default(), levels: Levels::new(), supervisor: None };
        world.have(units);
        world
    }

    /// Sets the contract's units, and makes a directory for each.
    fn have(&mut self, units: &[&str]) {
        let before = std::mem::take(&mut self.contract);
        self.contract.machine.scheme = before.machine.scheme;
        for unit in units {
            let (parent, name) = unit.rsplit_once('/').unwrap_or(("", unit));
            self.contract.add(self.contract.find(parent), name);
            std::fs::create_dir_all(self.top.path().join(unit)).unwrap();
        }
        self.contract.adopt(&before, true);
        for unit in self.unit_cgroups() {
            let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&unit.dir).unwrap());
            let name = self.contract.unit(unit.unit).path.clone();
            self.kernel.borrow_mut().names.insert(inode, name);
        }
    }

    fn unit_cgroups(&self) -> Vec<UnitCgroup> {
        let dir = |unit: UnitId| self.top.path().join(&self.contract.unit(unit).path);
        self.contract.held().map(|unit| UnitCgroup { unit, dir: dir(unit) }).collect()
    }

    fn detached(&self) -> Supervisor {
        let loader = Box::new(Fake(Rc::clone(&self.kernel)));
        Supervisor::new(loader, &self.contract, &self.unit_cgroups(), self.levels.clone(), 0)
    }

    fn begin(&mut self) -> Result<(), LiveError> {
        let mut supervisor = self.detached();
        supervisor.start()?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    fn supervisor(&mut self) -> &mut Supervisor {
        self.supervisor.as_mut().unwrap()
    }

    fn follow(&mut self) {
        let (contract, places, levels) = (self.contract.clone(), self.unit_cgroups(), self.levels.clone());
        self.supervisor().follow(&contract, &places, levels);
    }

    fn unit(&self, path: &str) -> UnitId {
        self.contract.find(path).unwrap()
    }

    fn apply(&mut self, decisions: Vec<CpuDecision>, orders: Vec<CpuOrder>) {
        let reason = Reason::HoldsChanged;
        let mut plan = Plan { orders: Orders::of_cpus(reason, orders), ..Plan::default() };
        plan.decisions.cpu.steps = decisions.into_iter().map(|action| Step { action, reason }).collect();
        self.supervisor().apply(&plan);
    }

    /// The calls since the last time, as text.
    fn calls(&self) -> String {
        std::mem::take(&mut self.kernel.borrow_mut().calls).join(", ")
    }

    fn problems(&mut self) -> Vec<String> {
        self.supervisor().take_problems().iter().map(ToString::to_string).collect()
    }

    fn end(&self, restart: bool) {
        self.kernel.borrow_mut().ended = Some(Ended { restart, why: "stalled (kind 1026)".to_owned() });
    }

    fn is_attached(&self) -> bool {
        self.supervisor.as_ref().unwrap().outage().is_none() && self.kernel.borrow().loaded
    }
}

const COMMON_PARTS: &str = "unit 0 weighs 100 flags 3, unit 1 weighs 10000 flags 7, ";

/// Two units, one with a sub-unit: set enclosers first, admitted before attaching, owners after.
#[test]
fn a_load_fills_the_tables_in_order() {
    let mut w = World::new(&["a", "a/b", "c"]);
    w.begin().unwrap();
    let units = format!(
        "load 64, {COMMON_PARTS}unit 2 weighs 100 flags 3, admit a 2, unit 3 in 2 weighs 100 flags 3, admit a/b 3, \
         unit 4 weighs 100 flags 3, admit c 4, rules, attach"
    );
    assert_eq!(w.calls(), units);
    let (a, b, c) = (w.unit("a"), w.unit("a/b"), w.unit("c"));
    w.apply(
        vec![
            CpuDecision::Own { cpu: 0, unit: a },
            CpuDecision::Own { cpu: 1, unit: c },
            CpuDecision::Own { cpu: 2, unit: UnitId::SHARED },
        ],
        vec![CpuOrder::Weigh { unit: b, weight: 5_000 }, CpuOrder::Confine { unit: c, cpus: None }],
    );
    assert_eq!(w.calls(), "unit 3 in 2 weighs 5000 flags 3, own 0 2, own 1 4, own 2 1");
    w.apply(
        vec![
            CpuDecision::Disown { cpu: 0, unit: a },
            CpuDecision::Disown { cpu: 1, unit: c },
            CpuDecision::Own { cpu: 0, unit: c },
        ],
        vec![],
    );
    assert_eq!(w.calls(), "own 0 4, own 1 nobody");
    w.end(true);
    w.supervisor().poll(SECOND);
    let again = units.replace("3 in 2 weighs 100", "3 in 2 weighs 5000") + ", own 0 4, own 2 1";
    assert!(w.is_attached() && w.problems().is_empty());
    assert_eq!(w.calls(), again);
}

/// What was waited for is sampled once a second, kept over a reload, and not attributed to a unit that takes
/// another's slot.
#[test]
fn waits_are_by_unit_and_not_by_slot() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    let (a, b) = (w.unit("a"), w.unit("b"));
    let unit = |waiter, unit, ns| WaitedFor { waiter, occupant: Occupant::Unit(unit), ns };
    let counted = |w: &mut World, at: Time, waits: &[(u32, u32, u64)]| {
        w.kernel.borrow_mut().waits.extend_from_slice(waits);
        w.supervisor().poll(at);
        w.supervisor().waited_for(at).to_vec()
    };
    assert_eq!(
        counted(&mut w, SECOND, &[(2, 3, 5), (3, 1, 7), (2, 3, 1)]),
        [unit(a, b, 6), unit(b, UnitId::SHARED, 7)]
    );
    assert_eq!(counted(&mut w, SECOND + 1, &[(2, 3, 10)]).len(), 2, "it is not sampled yet");
    // A reload takes what was counted.
    w.end(true);
    assert_eq!(
        counted(&mut w, 2 * SECOND, &[(3, 2, 1)]),
        [unit(a, b, 16), unit(b, UnitId::SHARED, 7), unit(b, a, 1)]
    );
    // While it is detached, there is no list.
    w.end(false);
    assert_eq!(counted(&mut w, 3 * SECOND, &[]), []);
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    assert_eq!(counted(&mut w, SECOND, &[(2, 3, 5), (3, 2, 7)]).len(), 2);
    // b leaves, and then its cgroup and its slot. What is counted until then is not c's.
    w.have(&["a", "c"]);
    w.follow();
    std::fs::remove_dir(w.top.path().join("b")).unwrap();
    let unknown = |ns| WaitedFor { waiter: a, occupant: Occupant::Unknown, ns };
    assert_eq!(w.supervisor().waited_for(SECOND + 1), [unknown(5)]);
    assert_eq!(counted(&mut w, 2 * SECOND, &[(2, 3, 1)]), [unknown(6)]);
    w.have(&["a", "c", "d"]);
    w.follow();
    let d = w.unit("d");
    assert_eq!(counted(&mut w, 3 * SECOND, &[(2, 3, 2)]), [unit(a, d, 2), unknown(6)]);
}

/// A credit is sent, and again after a reload.
#[test]
fn credits_are_part_of_a_units_rules() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    let (_, a) = (w.calls(), w.unit("a"));
    w.apply(vec![], vec![CpuOrder::Credit { unit: a, credit_ms: -7_000 }]);
    assert_eq!(w.calls(), "unit 2 weighs 100 flags 3 credit -7000");
    w.end(true);
    w.supervisor().poll(SECOND);
    assert!(w.calls().contains("unit 2 weighs 100 flags 3 credit -7000"));
}

/// Queued tasks cannot change their discipline, so a change reloads the scheduler, and so does the first
/// discipline other than stride. A new unit with a loaded discipline needs no reload.
#[test]
fn a_change_of_discipline_reloads() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    assert!(w.calls().starts_with("load 64, "));
    let by = |w: &mut World, unit: &str, discipline| {
        let unit = w.unit(unit);
        w.contract.units[unit.index()].discipline = discipline;
        w.follow();
        w.calls()
    };
    let calls = by(&mut w, "a", commonhold_contract::Discipline::Lottery);
    assert!(
        calls.starts_with("load 64 with disciplines, ") && calls.contains("flags 3 by Lottery, "),
        "{calls}"
    );
    let calls = by(&mut w, "b", commonhold_contract::Discipline::Rr);
    assert!(calls.starts_with("load 64 with disciplines, ") && calls.contains("flags 3 by Rr, "), "{calls}");
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
    assert_eq!(w.calls(), "unit 4 weighs 100 flags 3 by Fifo, admit c 4");
    for unit in ["a", "b", "c"] {
        let unit = w.unit(unit);
        w.contract.units[unit.index()].discipline = commonhold_contract::Discipline::Stride;
    }
    w.follow();
    assert!(w.calls().starts_with("load 64, "));
}

/// Jobs need a scheduler with seats. It gets the machine's pools, and again when their form changes.
#[test]
fn jobs_reload_with_seats() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    assert!(w.calls().starts_with("load 64, "));
    w.supervisor().seat(&[(9, Some(2))]);
    assert_eq!(w.calls(), "", "this one features of none");
    let (a, loads) = (w.unit("a"), w.supervisor().loads());
    w.contract.units[a.index()].job = Some(commonhold_contract::JobKind::Tree);
    w.follow();
    let calls = w.calls();
    assert!(calls.starts_with("load 64 with seats, pools [0, 0, 1, 1], "), "{calls}");
    assert!(calls.contains("unit 2 weighs 100 flags 11, "), "{calls}");
    assert_eq!(w.supervisor().loads(), loads + 1);
    w.supervisor().seat(&[(9, Some(2)), (10, None)]);
    assert_eq!(w.calls(), "seat 9 Some(2), seat 10 None");
    w.contract.machine.pools = PoolForm::Size(4);
    w.follow();
    assert_eq!(w.calls(), "pools [0, 0, 0, 0]");
    w.end(false);
    w.supervisor().poll(SECOND);
    w.supervisor().seat(&[(9, None)]);
    assert_eq!(w.calls(), "", "none rules");
}

/// Gangs need a scheduler with gangs. A reloaded one gets all of them again.
#[test]
fn gangs_reload_with_gangs() {
    use crate::observe::process::ProcessKey;
    use commonhold_policy::JobId;
    let of = |pid, job, shut| (ProcessKey { pid, start: 1 }, JobId(job), shut);
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.calls();
    w.supervisor().gate(&[of(9, 1, true)]);
    assert!(w.calls().is_empty() && !w.supervisor().can_gate(&[]), "this one features of none");
    let a = w.unit("a");
    w.contract.units[a.index()].job = Some(commonhold_contract::JobKind::Tree);
    w.contract.machine.gangs.by = commonhold_contract::Gangs::LatestQuantum;
    w.follow();
    assert!(w.calls().starts_with("load 64 with seats with gangs, "));
    assert!(w.supervisor().can_gate(&[]));
    w.supervisor().gate(&[of(9, 1, true), of(8, 2, false)]);
    assert_eq!(w.calls(), "join 8 Some(1), join 9 Some(0), gate [(0, true)]");
    w.supervisor().gate(&[of(9, 1, true), of(8, 2, false)]);
    assert_eq!(w.calls(), "gate []", "those that end are let go, the others breathe");
    w.end(true);
    w.supervisor().poll(SECOND);
    w.calls();
    w.supervisor().gate(&[of(9, 1, true)]);
    assert_eq!(w.calls(), "join 9 Some(0), gate [(0, true)]");
    w.supervisor().gate(&[of(9, 1, false)]);
    assert_eq!(w.calls(), "gate [(0, false)]");
    w.supervisor().gate(&[of(9, 1, false)]);
    assert_eq!(w.calls(), "");
}

#[test]
fn an_end_is_reported_and_the_scheduler_reloaded_after_a_pause() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    let a = w.unit("a");
    w.end(false);
    w.supervisor().poll(10 * SECOND);
    assert_eq!(
        w.problems(),
        [
            "the kernel ended the scheduler: stalled (kind 1026); control groups hold the contract, and it is loaded again in 1 s"
        ]
    );
    assert!(!w.is_attached());
    w.calls();
    // Orders made meanwhile are sent after the reload.
    w.apply(vec![CpuDecision::Own { cpu: 3, unit: a }], vec![CpuOrder::Weigh { unit: a, weight: 10_000 }]);
    w.supervisor().poll(11 * SECOND - 1);
    assert_eq!((w.calls(), w.is_attached()), (String::new(), false));
    assert_eq!(w.supervisor().outage().unwrap().since, 10 * SECOND);
    w.supervisor().poll(11 * SECOND);
    assert_eq!(
        w.calls(),
        format!("load 64, {COMMON_PARTS}unit 2 weighs 10000 flags 3, admit a 2, rules, attach, own 3 2")
    );
    assert!(w.is_attached());
}

/// Counters continue over a reload, and a slot's next unit starts at zero.
#[test]
fn counters_stay_with_their_unit() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    let (a, b) = (w.unit("a"), w.unit("b"));
    w.kernel.borrow_mut().switches = BTreeMap::from([(2, 100), (3, 7)]);
    assert_eq!([a, b].map(|unit| w.supervisor().unit_counters(unit).account.switches), [100, 7]);
    w.end(false);
    w.supervisor().poll(SECOND);
    assert_eq!(w.supervisor().unit_counters(a).account.switches, 100, "while it rests");
    w.supervisor().poll(2 * SECOND);
    w.kernel.borrow_mut().switches = BTreeMap::from([(2, 20)]);
    assert_eq!([a, b].map(|unit| w.supervisor().unit_counters(unit).account.switches), [120, 7]);
    assert_eq!([a, b].map(|unit| w.supervisor().accounts(unit)[1].switches), [120, 7]);
    w.have(&["b"]);
    w.follow();
    std::fs::rename(w.top.path().join("a"), w.top.path().join("gone")).unwrap();
    w.supervisor().poll(3 * SECOND);
    w.have(&["b", "c"]);
    w.follow();
    let c = w.unit("c");
    assert!(w.calls().contains("admit c 2"));
    assert_eq!(w.supervisor().unit_counters(c).account.switches, 0);
    assert_eq!(w.supervisor().accounts(c), [Account::default(); 2]);
}

#[test]
fn after_five_failures_the_scheduler_is_given_up() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.kernel.borrow_mut().refuses = Some("attach");
    w.end(false);
    let mut calls = Vec::new();
    for second in 0..1000 {
        w.supervisor().poll(second * SECOND);
        calls.extend(w.problems());
    }
    assert_eq!(calls.len(), 5, "{calls:?}");
    assert!(calls[1].starts_with(
        "no attach; be patient; control groups hold the contract, and it is loaded again in 4 s"
    ));
    assert!(
        calls[4].contains("given up: start the daemon again, or with `--backend cgroup`"),
        "{}",
        calls[4]
    );
    assert!(!w.is_attached() && !w.kernel.borrow().loaded);
    // It stays so under another contract, even after one that the scheduler cannot hold.
    w.kernel.borrow_mut().refuses = None;
    w.have(&["b"]);
    w.follow();
    assert!(!w.is_attached());
    w.contract.machine.scheme = Scheme::Smp;
    w.follow();
    w.contract.machine.scheme = Scheme::Isolate;
    w.follow();
    assert!(!w.is_attached());
}

#[test]
fn a_scheduler_that_is_refused_at_the_start_is_an_error() {
    let mut w = World::new(&["a"]);
    w.kernel.borrow_mut().refuses = Some("load");
    assert_eq!(w.begin().unwrap_err().to_string(), "no load 64; be patient");
}

#[test]
fn a_patient_start_retries_a_refused_load() {
    let mut w = World::new(&["a"]);
    w.kernel.borrow_mut().refuses = Some("load");
    w.supervisor = Some(w.detached());
    w.supervisor().start_patiently();
    assert!(!w.is_attached());
    assert_eq!(
        w.problems(),
        ["no load 64; be patient; control groups hold the contract, and it is loaded again in 1 s"]
    );
    assert_eq!(w.supervisor().outage().unwrap().why, "no load 64; be patient");
    w.kernel.borrow_mut().refuses = None;
    w.supervisor().poll(SECOND / 2);
    assert!(!w.is_attached());
    w.supervisor().poll(SECOND);
    assert!(w.is_attached() && w.problems().is_empty());
}

/// A scheduler that refuses an update would enforce something other than the contract, so it is detached.
#[test]
fn a_refused_update_is_a_failure() {
    let mut w = World::new(&["a"]);
    w.begin().unwrap();
    w.kernel.borrow_mut().refuses = Some("own");
    let a = w.unit("a");
    w.apply(vec![CpuDecision::Own { cpu: 3, unit: a }], vec![]);
    assert!(!w.is_attached() && w.problems()[0].starts_with("no own 3 2; "));
    w.kernel.borrow_mut().refuses = None;
    w.supervisor().poll(SECOND);
    assert!(w.is_attached() && w.calls().ends_with("attach, own 3 2"));
}

/// Membership rules are sent by slot, and again only when they change.
#[test]
fn membership_rules_are_sent_by_slot() {
    let mut w = World::new(&["a", "a/b"]);
    let (a, b) = (w.unit("a"), w.unit("a/b"));
    let user = |uid, unit| Selector { test: Test::User(uid), unit: Some(unit) };
    w.levels = Levels::from([(None, vec![user(1000, a), user(1001, a)]), (Some(a), vec![user(1000, b)])]);
    w.begin().unwrap();
    assert!(w.calls().ends_with("rules of 1 2 of 2 1, attach"));
    w.follow();
    assert_eq!(w.calls(), "");
    w.levels.remove(&Some(a));
    w.follow();
    assert_eq!(w.calls(), "rules of 1 2");
}

/// A reload of the contract renumbers units: slots stay, only changes are sent, and a removed unit loses its
/// CPUs at once and its slot when its cgroup is gone.
#[test]
fn a_contract_reload_sends_only_changes() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    let (a, b) = (w.unit("a"), w.unit("b"));
    w.apply(
        vec![CpuDecision::Own { cpu: 0, unit: a }, CpuDecision::Own { cpu: 1, unit: b }],
        vec![CpuOrder::Weigh { unit: b, weight: 7_000 }],
    );
    w.calls();
    w.have(&["b", "c", "b/d"]);
    let c = w.unit("c");
    w.contract.units[c.index()].lend.cpu = false.into();
    w.follow();
    assert_eq!(
        w.calls(),
        "unit 5 in 3 weighs 100 flags 3, admit b/d 5, unit 4 weighs 100 flags 2, admit c 4, own 0 nobody"
    );
    w.apply(vec![CpuDecision::Own { cpu: 0, unit: c }], vec![]);
    assert_eq!(w.calls(), "own 0 4");
    // The cgroup is removed while a task is still exiting.
    // (Unlike a cgroup's, a directory's inode may be reused.)
    std::fs::rename(w.top.path().join("a"), w.top.path().join("gone")).unwrap();
    w.kernel.borrow_mut().refuses = Some("unit 2");
    w.supervisor().poll(SECOND);
    w.have(&["b", "c", "b/d", "e"]);
    w.follow();
    assert_eq!(
        w.calls(),
        "forget a, forget a, unit 4 weighs 100 flags 3, unit 6 weighs 100 flags 3, admit e 6"
    );
    w.kernel.borrow_mut().refuses = None;
    w.supervisor().poll(2 * SECOND);
    w.have(&["b", "c", "b/d", "e", "f"]);
    w.follow();
    assert_eq!(w.calls(), "forget a, unit 2 weighs 100 flags 0, unit 2 weighs 100 flags 3, admit f 2");
}

/// The tables have 64 entries at first, then twice the number of units, up to the maximum.
#[test]
fn more_units_than_table_entries_reload() {
    let names: Vec<String> = (0..1022).map(|unit| format!("u{unit}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut w = World::new(&names[..20]);
    w.begin().unwrap();
    assert!(w.calls().starts_with("load 64, "));
    w.have(&names[..63]);
    w.follow();
    assert!(w.is_attached() && w.calls().starts_with("load 130, "));
    w.have(&names);
    w.follow();
    assert!(w.is_attached() && w.calls().starts_with("load 1024, "));
    let mut more = names.clone();
    more.push("one-more");
    w.have(&more);
    w.follow();
    assert!(
        !w.is_attached()
            && w.problems()[0].starts_with("1025 units, the built-in ones included, are more than")
    );
    w.have(&names);
    w.follow();
    assert!(w.is_attached());
}

/// Control groups enforce a contract that the scheduler cannot hold, until the contract changes.
#[test]
fn a_contract_that_the_scheduler_cannot_hold_is_left_to_cgroups() {
    let mut w = World::new(&["a", "b"]);
    w.contract.machine.scheme = Scheme::Smp;
    w.begin().unwrap();
    assert_eq!((w.calls(), w.is_attached(), w.problems().len()), (String::new(), false, 0));
    w.contract.machine.scheme = Scheme::Quota;
    w.follow();
    assert!(w.is_attached() && w.calls().contains("unit 2 weighs 100 flags 0, "));
    // Two units on one CPU that may not borrow, which needs a cap.
    w.kernel.borrow_mut().cpus = 1;
    w.end(true);
    w.supervisor().poll(SECOND);
    assert!(
        !w.is_attached()
            && w.problems()[0].contains("unit a")
            && w.supervisor().outage().unwrap().since == SECOND
    );
    w.contract.machine.scheme = Scheme::Isolate;
    w.follow();
    assert!(w.is_attached());
    let a = w.unit("a");
    w.contract.units[a.index()].limit.cpu = Some(commonhold_contract::Amount::Absolute(500_000));
    w.follow();
    assert!(!w.is_attached() && w.problems()[0].contains("needs a cap"));
}

/// Only the kernel's own scheduler enforces `CPUQuota=`. Ours is detached while one is set, which is reported
/// once.
#[test]
fn another_programs_cap_detaches_the_scheduler() {
    let mut w = World::new(&["a", "b"]);
    w.begin().unwrap();
    w.calls();
    w.supervisor().set_capped(Some("/user.slice"));
    assert!(!w.is_attached());
    let problems = w.problems();
    assert!(problems.len() == 1 && problems[0].contains("/user.slice has a cap"), "{problems:?}");
    w.supervisor().set_capped(Some("/user.slice"));
    w.follow();
    assert!(!w.is_attached());
    w.supervisor().set_capped(Some("/system.slice"));
    assert!(w.supervisor().outage().unwrap().why.starts_with("/system.slice"));
    assert_eq!(w.problems(), [""; 0]);
    w.supervisor().set_capped(None);
    assert!(w.is_attached() && w.calls().contains("unit 2 weighs 100 "));
    // With a cap at the start, nothing is loaded.
    w.supervisor = Some(w.detached());
    w.supervisor().note_capped(Some("/user.slice"));
    w.supervisor().start().unwrap();
    assert!(!w.is_attached());
    w.supervisor().set_capped(None);
    assert!(w.is_attached());
}
