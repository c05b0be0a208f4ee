use super::*;
use commonhold_contract::{Each, Given, Newcomer, Weighed};
use commonhold_policy::rights::Refused;
use commonhold_policy::{Means, UnitFacts};
use std::convert::Infallible;

const CPU: u64 = 1_000_000;

/// A machine in a steady state: every unit has one runnable process.
struct Still {
    now: Time,
    units: usize,
}

impl Backend for Still {
    type Error = Infallible;

    fn means(&self) -> Means {
        Means { cpu_sets: true, gates: true, ..Means::NONE }
    }

    fn now(&self) -> Time {
        self.now
    }

    fn settle_members(
        &mut self,
        _: Time,
        _: &mut Contract,
        _: &BTreeSet<UnitId>,
    ) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn observe(&mut self, now: Time, _watch: &[UnitId]) -> Result<Snapshot, Infallible> {
        let unit = UnitFacts { processes: 1, runnable: 1, ..UnitFacts::default() };
        Ok(Snapshot { at: now, units: vec![unit; self.units], ..Snapshot::default() })
    }

    fn apply(&mut self, _plan: &Plan) -> Vec<Infallible> {
        self.now += 1_000_000_000;
        Vec::new()
    }
}

/// Two units, 4 CPUs.
fn steward() -> (Steward, Still, [UnitId; 2]) {
    let mut contract = Contract::default();
    let units = ["a", "b"].map(|name| contract.add(None, name));
    let machine = Machine::synthetic("cpus:4").unwrap();
    let still = Still { now: 1, units: contract.units.len() };
    (Steward::new(contract, machine), still, units)
}

fn set(unit: UnitId, tickets: u64) -> Change {
    Change::Set { unit, resource: Resource::Cpu, tickets }
}

/// 4 CPUs by 100 and 100 tickets are 2 each; by 300 and 100, 3 and 1.
#[test]
fn the_next_turn_makes_a_change_and_reports_it() {
    let (mut steward, mut still, [a, b]) = steward();
    let turn = steward.turn(&mut still, 0).unwrap();
    assert_eq!(turn.plan.decisions.cpu.entitled[a.index()], 2 * CPU);
    steward.queue_change(set(a, 300));
    assert_eq!(
        steward.worth(&steward.rights(), a, Resource::Cpu),
        2 * CPU,
        "nothing is made before the turn"
    );
    assert_eq!(steward.worth(&steward.foreseen(), a, Resource::Cpu), 3 * CPU);
    let turn = steward.turn(&mut still, 0).unwrap();
    let decided = &turn.plan.decisions.rights;
    assert_eq!((decided.len(), decided[0].change, decided[0].refused), (1, set(a, 300), None));
    assert_eq!([a, b].map(|unit| turn.plan.decisions.cpu.entitled[unit.index()]), [3 * CPU, CPU]);
    let rights = steward.rights();
    assert_eq!([a, b].map(|unit| steward.worth(&rights, unit, Resource::Cpu)), [3 * CPU, CPU]);
    let changed = Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets: 300 };
    assert_eq!(steward.changed(&rights), [changed]);
    assert_eq!(steward.turn(&mut still, 0).unwrap().plan.decisions.rights, [], "it is made once");
    steward.queue_change(set(a, 100));
    assert_eq!(steward.changed(&steward.foreseen()), [], "it is taken back");
}

#[test]
fn a_refusal_is_reported_once_and_a_withdrawn_change_never() {
    let (mut steward, mut still, [a, b]) = steward();
    steward.queue_change(set(a, 0));
    steward.queue_change(set(b, 7));
    steward.withdraw_last_change();
    let turn = steward.turn(&mut still, 0).unwrap();
    let refused = Refused::TooFew { unit: a, resource: Resource::Cpu, has: 100, fewer: 100 };
    let decided: Vec<_> = turn.plan.decisions.rights.iter().map(|it| (it.change, it.refused)).collect();
    assert_eq!(decided, [(set(a, 0), Some(refused))]);
    assert_eq!(steward.changed(&steward.foreseen()), []);
    assert_eq!(steward.turn(&mut still, 0).unwrap().plan.decisions.rights, []);
}

/// The policy's state is reset, so that it assigns CPUs a second time: the checker refuses that plan.
#[test]
fn a_plan_that_is_not_carried_out_changes_no_rights() {
    let (mut steward, mut still, [a, _]) = steward();
    steward.turn(&mut still, 0).unwrap();
    let remembered = std::mem::take(&mut steward.state);
    steward.queue_change(set(a, 300));
    let turn = steward.turn(&mut still, 0).unwrap();
    assert!(!turn.is_carried_out(), "{:?}", turn.wrong);
    assert_eq!(steward.changed(&steward.rights()), []);
    steward.state = remembered;
    let turn = steward.turn(&mut still, 0).unwrap();
    assert!(turn.is_carried_out(), "{:?}", turn.wrong);
    assert_eq!(turn.plan.decisions.rights[0].change, set(a, 300));
    assert_eq!(steward.changed(&steward.rights()).len(), 1);
    assert_eq!(steward.turn(&mut still, 0).unwrap().plan.decisions.rights, []);
}

/// A reload keeps a change unless the file gives another number of the same tickets.
#[test]
fn a_reload_keeps_changes_until_the_file_changes_these_tickets() {
    let (mut steward, mut still, [a, b]) = steward();
    for resource in [Resource::Cpu, Resource::Disk] {
        steward.queue_change(Change::Transfer { from: a, to: b, resource, tickets: 40 });
    }
    steward.turn(&mut still, 0).unwrap();
    let mut contract = Contract::default();
    contract.add(None, "new");
    let again = ["b", "a"].map(|name| contract.add(None, name));
    contract.units[again[0].index()].tickets.disk = 50;
    let machine = steward.machine().clone();
    steward.reload(contract, machine);
    let tickets = |steward: &Steward| {
        let rights = steward.rights();
        [Resource::Cpu, Resource::Disk].map(|resource| [a, b].map(|unit| rights.tickets(unit, resource)))
    };
    assert_eq!(tickets(&steward), [[60, 140], [60, 50]]);
    still.units = steward.contract().units.len();
    steward.turn(&mut still, 0).unwrap();
    assert_eq!(tickets(&steward), [[60, 140], [60, 50]]);
}

/// Queued changes are older than the file, like those already made.
#[test]
fn a_reload_drops_queued_changes_of_tickets_that_the_file_changes() {
    let (mut steward, mut still, [a, b]) = steward();
    steward.turn(&mut still, 0).unwrap();
    let give = |resource| Change::Transfer { from: a, to: b, resource, tickets: 40 };
    for resource in [Resource::Cpu, Resource::Disk] {
        steward.queue_change(give(resource));
    }
    let mut contract = Contract::default();
    let again = ["b", "a"].map(|name| contract.add(None, name));
    contract.units[again[0].index()].tickets.disk = 50;
    let machine = steward.machine().clone();
    steward.reload(contract, machine);
    let turn = steward.turn(&mut still, 0).unwrap();
    let made: Vec<Change> = turn.plan.decisions.rights.iter().map(|it| it.change).collect();
    assert_eq!(made, [give(Resource::Cpu)]);
    steward.queue_change(set(b, 7));
    let mut contract = Contract::default();
    contract.add(None, "a");
    let machine = steward.machine().clone();
    steward.reload(contract, machine);
    assert_eq!(steward.turn(&mut still, 0).unwrap().plan.decisions.rights, [], "there is no b");
}

/// The tickets of a job's unit come from `each`, not from the file: a reload keeps their changes, queued ones
/// included.
#[test]
fn a_reload_keeps_changes_of_a_job() {
    let written = |by: Weighed| {
        let mut contract = Contract::default();
        let slurm = contract.add(None, "slurm");
        let unit = &mut contract.units[slurm.index()];
        (unit.each, unit.each_by) = (Some(Each::Cgroup), by);
        (contract, slurm)
    };
    let (mut contract, slurm) = written(Weighed::Equally);
    let given = Given { cpus: None, weight: Some(39) };
    contract.welcome(&[Newcomer::group(slurm, "/s/job_17", given)], &BTreeSet::new());
    let job = contract.find("slurm/job_17").unwrap();
    let mut still = Still { now: 1, units: contract.units.len() };
    let mut steward = Steward::new(contract, Machine::synthetic("cpus:4").unwrap());
    steward.queue_change(set(job, 300));
    steward.turn(&mut still, 0).unwrap();
    steward.queue_change(Change::Set { unit: job, resource: Resource::Memory, tickets: 400 });
    let machine = steward.machine().clone();
    steward.reload(written(Weighed::Weight).0, machine);
    steward.turn(&mut still, 0).unwrap();
    let rights = steward.rights();
    let tickets =
        [Resource::Cpu, Resource::Memory, Resource::Disk].map(|resource| rights.tickets(job, resource));
    assert_eq!(tickets, [300, 400, 39]);
}

/// A plan divided 6 bytes of memory. Under `smp` no plan divides any, so the worth is computed from the
/// machine again.
#[test]
fn under_smp_the_divided_memory_is_forgotten() {
    let (mut steward, mut still, [a, _]) = steward();
    steward.turn(&mut still, 0).unwrap();
    steward.memory_divided = Some(6);
    assert_eq!(steward.worth(&steward.rights(), a, Resource::Memory), 3);
    let mut contract = steward.contract().clone();
    contract.machine.scheme = Scheme::Smp;
    let machine = steward.machine().clone();
    steward.reload(contract, machine);
    assert!(steward.worth(&steward.rights(), a, Resource::Memory) > 6);
}

/// A machine on which a job comes at each turn and ends three turns later. Each has one process that always
/// computes.
struct Jobs {
    now: Time,
    over: Option<UnitId>,
    around: UnitId,
    used: std::collections::BTreeMap<UnitId, u64>,
    seen: usize,
}

const LOOK: Time = 1_000_000_000;

impl Backend for Jobs {
    type Error = Infallible;

    fn means(&self) -> Means {
        Means { cpu_sets: true, gates: true, ..Means::NONE }
    }

    fn now(&self) -> Time {
        self.now
    }

    fn observe(&mut self, now: Time, _watch: &[UnitId]) -> Result<Snapshot, Infallible> {
        let mut units = vec![UnitFacts::default(); self.seen];
        for (unit, used_ns) in &self.used {
            units[unit.index()] =
                UnitFacts { at: now, processes: 1, runnable: 1, used_ns: *used_ns, ..UnitFacts::default() };
        }
        Ok(Snapshot { at: now, units, ..Snapshot::default() })
    }

    fn settle_members(
        &mut self,
        _: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, Infallible> {
        let next = u32::try_from(self.now / LOOK).unwrap();
        let find = |contract: &Contract, number: u32| contract.find(&format!("jobs/{number}"));
        if find(contract, next).is_some() {
            return Ok(false);
        }
        // A job ends, and in the second pass of the same turn another comes.
        let over = next.checked_sub(3).and_then(|number| find(contract, number));
        if let Some(over) = over {
            assert!(contract.dismiss(&[over]));
            self.over = Some(over);
        } else {
            contract
                .welcome(&[Newcomer::group(self.around, &format!("/jobs/{next}"), Given::default())], free);
            let came = find(contract, next).unwrap();
            assert_ne!(Some(came), self.over, "no turn has seen that this number is vacant");
            self.used.insert(came, 0);
        }
        self.used.retain(|unit, _| contract.has(*unit));
        self.seen = contract.units.len();
        Ok(true)
    }

    fn apply(&mut self, _plan: &Plan) -> Vec<Infallible> {
        self.now += LOOK;
        self.used.values_mut().for_each(|used| *used += LOOK);
        Vec::new()
    }
}

/// While jobs come and end, plans are carried out, the books balance, unit numbers are reused, and the CPU
/// time of ended jobs is in the account of the enclosing unit.
#[test]
fn jobs_come_and_go() {
    let mut contract = Contract::default();
    let around = contract.add(None, "jobs");
    contract.units[around.index()].each = Some(Each::Cgroup);
    contract.add(None, "others");
    let mut steward = Steward::new(contract, Machine::synthetic("cpus:6").unwrap());
    let mut jobs = Jobs { now: LOOK, over: None, around, used: [(UnitId(3), 0)].into(), seen: 4 };
    for turn in 1..40_u64 {
        let done = steward.turn(&mut jobs, 0).unwrap();
        assert!(done.wrong.is_empty(), "turn {turn}: {:?}", done.wrong);
        let there: Vec<&str> = steward
            .contract()
            .children(Some(around))
            .map(|id| steward.contract().unit(id).name.as_str())
            .collect();
        assert_eq!(there.len() as u64, turn.min(3), "{there:?}");
        // Three jobs, and two numbers that are vacant for a turn.
        assert!(steward.contract().units.len() <= 4 + 5, "{}", steward.contract().units.len());
        let statement = steward.statement();
        let used = statement.accounts.iter().find(|account| account.unit == "jobs").unwrap().used_ns;
        // CPU time of each present or ended job, as observed before this turn.
        let due: u64 = (1..=turn).map(|came| (turn - came).min(2) * LOOK).sum();
        assert_eq!(used, due, "turn {turn}");
    }
}
