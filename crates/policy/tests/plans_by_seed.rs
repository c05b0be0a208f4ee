//! Golden hashes of plans from random histories: a refactoring or an optimisation of the policy must not
//! change them.
//!
//! A seed determines a history: a machine, a contract, and some fifty steps, in which units come, go, sleep
//! and wake, CPUs go offline and come back, and tickets change. Every plan, and the plan checker's verdict,
//! enters the hash of its kind. After an intended change of behaviour, the failure message has the new list.

mod chance;

use std::fmt::Debug;

use chance::Chance;
use commonhold_contract::{Amount, Contract, MILLIONTH, PerResource, Scheme, UnitId};
use commonhold_machine::{Cpu, Machine};
use commonhold_policy::check::Books;
use commonhold_policy::{Input, MS, Means, Plan, PolicyState, Reason, Snapshot, UnitFacts, step};

/// Histories of each kind.
const HISTORIES: u64 = 60;
/// Steps of a history.
const STEPS: u64 = 50;

const USER: Means =
    Means { cpu_sets: true, weights: false, caps: false, gates: true, switches: false, ..Means::NONE };
const CGROUP: Means =
    Means { cpu_sets: true, weights: true, caps: true, gates: false, switches: false, ..Means::NONE };
const SWITCHES: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

const MACHINES: [&str; 8] = [
    "cpus:1",
    "cpus:5",
    "nodes:4 cpus:2",
    "nodes:2 cpus:8 threads:2 caches:2",
    "nodes:3 cpus:8 threads:2",
    "cpus:24 caches:4",
    "nodes:4 cpus:16 threads:2 caches:4",
    "nodes:16 cpus:3",
];

/// The half-life of loans.
const REMEMBERED: u64 = 600_000 * MS;

/// The hashes by kind; the fourth column is how long loans are remembered.
const HASHES: [(&str, Means, Scheme, u64, u64); 8] = [
    ("user isolate, no memory", USER, Scheme::Isolate, 0, 0x99CD_6515_B566_0B8B),
    ("user isolate", USER, Scheme::Isolate, REMEMBERED, 0x682B_9F86_F5A9_87CB),
    ("user quota", USER, Scheme::Quota, REMEMBERED, 0x0783_9815_08BB_4B7B),
    ("cgroup isolate, no memory", CGROUP, Scheme::Isolate, 0, 0x50A6_B61B_F158_E4CC),
    ("cgroup isolate", CGROUP, Scheme::Isolate, REMEMBERED, 0x6039_504B_3320_BA7D),
    ("cgroup quota", CGROUP, Scheme::Quota, REMEMBERED, 0x2EA7_331D_D6F7_3319),
    ("switches isolate", SWITCHES, Scheme::Isolate, REMEMBERED, 0x9B05_B6F8_2DB8_B2E1),
    ("user smp", USER, Scheme::Smp, REMEMBERED, 0xC233_1B65_C3B2_9ECA),
];

impl Chance {
    fn small(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(u64::from(n))).unwrap_or(0)
    }
}

/// FNV-1a, continued from `so_far`.
fn hash(so_far: u64, text: &str) -> u64 {
    text.bytes().fold(so_far, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn contract(chance: &mut Chance, scheme: Scheme) -> Contract {
    let mut contract = Contract::default();
    contract.machine.scheme = scheme;
    let units = if chance.one_in(4) { 1 + chance.small(40) } else { 1 + chance.small(8) };
    let nested = chance.one_in(2);
    for n in 0..units {
        let parent = (nested && n > 0 && chance.one_in(2)).then(|| UnitId(2 + chance.small(n)));
        let id = contract.add(parent, &format!("u{n}"));
        let unit = &mut contract.units[id.index()];
        unit.tickets = PerResource::all(1 + chance.below(400));
        unit.lend.cpu = (!chance.one_in(8)).into();
        unit.borrow.cpu = (!chance.one_in(8)).into();
        if chance.one_in(8) {
            unit.limit.cpu = Some(Amount::Absolute((1 + chance.below(60)) * MILLIONTH / 10));
        }
        if chance.one_in(12) {
            unit.hard.cpu = Some(Amount::Absolute(chance.below(3) * MILLIONTH));
        }
    }
    contract
}

/// Events of the machine, the contract and the units before a step.
fn happen(
    chance: &mut Chance,
    machine: &mut Machine,
    away: &mut Vec<Cpu>,
    contract: &mut Contract,
    facts: &mut [UnitFacts],
) {
    for _ in 0..=chance.below(4) {
        let unit = 2 + usize::try_from(chance.below(facts.len() as u64 - 2)).unwrap_or(0);
        let used_ns = facts[unit].used_ns;
        facts[unit] = match chance.below(5) {
            0 => UnitFacts { used_ns, ..UnitFacts::default() },
            1 => UnitFacts { used_ns, processes: 1, ..UnitFacts::default() },
            _ => UnitFacts { used_ns, processes: 1, runnable: chance.small(12), ..UnitFacts::default() },
        };
        if chance.one_in(10) {
            contract.units[unit].tickets = PerResource::all(1 + chance.below(400));
        }
    }
    if chance.one_in(12) && machine.cpus.len() > 1 {
        let gone = usize::try_from(chance.below(machine.cpus.len() as u64)).unwrap_or(0);
        away.push(machine.cpus.remove(gone));
    }
    if chance.one_in(20) {
        machine.cpus.append(away);
        machine.cpus.sort_by_key(|cpu| cpu.id);
    }
}

/// The hash of one history, continued from `so_far`.
fn history(so_far: u64, seed: u64, means: Means, scheme: Scheme, remembered_ns: u64) -> u64 {
    let mut chance = Chance(seed);
    let text = MACHINES[usize::try_from(chance.below(8)).unwrap_or(0)];
    let mut machine = Machine::synthetic(text).unwrap_or_else(|err| panic!("{text}: {err}"));
    let mut contract = contract(&mut chance, scheme);
    contract.machine.loans_remembered_ns = remembered_ns;
    let mut snapshot =
        Snapshot { units: vec![UnitFacts::default(); contract.units.len()], ..Snapshot::default() };
    let (mut state, mut books, mut away) = (PolicyState::default(), Books::default(), Vec::new());
    let mut all = so_far;
    for _ in 0..STEPS {
        happen(&mut chance, &mut machine, &mut away, &mut contract, &mut snapshot.units);
        let ns = chance.below(300) * MS;
        snapshot.at += ns;
        for facts in &mut snapshot.units {
            // Some facts are stale.
            facts.at = if chance.one_in(10) { facts.at } else { snapshot.at };
            facts.used_ns += chance.below(ns + 1) * u64::from(facts.runnable);
        }
        let input =
            Input { contract: &contract, machine: &machine, means, snapshot: &snapshot, changes: &[] };
        let (after, plan) = step(state, snapshot.at, input);
        state = after;
        let checked = books.replay(&contract, &machine, &plan);
        let plan = written(&plan);
        all = hash(all, &format!("{plan}{:?}", checked.as_ref().err()));
        books = checked.unwrap_or_default();
    }
    all
}

/// The CPU part of a plan, in a form independent of the plan's types.
fn written(plan: &Plan) -> String {
    let reason = |reason: Reason| match reason {
        Reason::Scheme { scheme } => format!("Scheme({scheme:?})"),
        reason => format!("{reason:?}"),
    };
    let step = |action: &dyn Debug, because: Reason| {
        format!("Step {{ action: {action:?}, reason: {} }}", reason(because))
    };
    let decided = plan.decisions.cpu.steps.iter().map(|made| step(&made.action, made.reason));
    let ordered = plan.orders.cpu.iter().map(|given| step(&given.action, given.reason));
    let steps: Vec<String> = decided.chain(ordered).collect();
    let (entitled, watch) = (&plan.decisions.cpu.entitled, &plan.watch);
    format!(
        "Plan {{ at: {}, steps: [{}], next: {}, entitled: {entitled:?}, watch: {watch:?} }}",
        plan.at,
        steps.join(", "),
        plan.next
    )
}

#[test]
fn plans_are_what_they_were() {
    let found = HASHES.map(|(name, means, scheme, remembered, _)| {
        let next = |all, seed| history(all, seed, means, scheme, remembered);
        let all = (0..HISTORIES).fold(0xCBF2_9CE4_8422_2325, next);
        (name, all)
    });
    let recorded = HASHES.map(|(name, _, _, _, hash)| (name, hash));
    assert!(found == recorded, "plans changed; the hashes are now {found:#X?}");
}
