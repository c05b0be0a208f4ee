//! Steps follow the rights: tickets, exchanges, and the memory in use.

use commonhold_contract::Amount;

use super::*;
use crate::plan::{DiskOrder, Step};
use crate::rights::{Bid, Ending, Offer, Refused, Trade, Waits};
use crate::snapshot::{DiskMeans, MemoryFacts, UnitMemory};

/// Values derived from rights are cached until rights change: a disk that divides by shares gets new shares
/// when tickets or its capacity change, and not otherwise. Entitlements also follow which units are present.
#[test]
fn shares_of_a_disk_follow_rights_and_what_it_carries() {
    let disk = DiskMeans { shares: true, ..DiskMeans::NONE };
    let mut w = World::new("cpus:2 memory:1GiB disks:1", Means { disk, ..SWITCHES }, &[100, 300]);
    w.disks = vec![DiskFacts { name: "sda".into(), ..DiskFacts::default() }];
    (0..2).for_each(|n| w.run(n, 1));
    let look = |w: &mut World| {
        let plan = w.after(100);
        let share = |step: &Step<DiskOrder>| match step.action {
            DiskOrder::Share { unit, share, .. } => (unit.0, share),
            _ => panic!("{step:?}"),
        };
        let ordered: Vec<(u32, u64)> = plan.orders.disk.iter().map(share).collect();
        (ordered, [plan.decisions.disk.entitled[2], plan.decisions.disk.entitled[3]])
    };
    assert_eq!(look(&mut w), (vec![(2, 250_000), (3, 750_000)], [250_000, 750_000]));
    assert_eq!(look(&mut w), (vec![], [250_000, 750_000]));
    w.changes = vec![Change::Set { unit: UnitId(2), resource: Resource::Disk, tickets: 300 }];
    assert_eq!(look(&mut w), (vec![(2, 500_000), (3, 500_000)], [500_000, 500_000]));
    w.changes.clear();
    w.disks[0].bytes_per_s = Some(1_000);
    assert_eq!(look(&mut w), (vec![(2, 500), (3, 500)], [500_000, 500_000]));
    w.leave(0);
    assert_eq!(look(&mut w), (vec![], [0, 1_000_000]));
}

/// A step asks for the next one at the end of an exchange at the latest, and that one ends it; the checker
/// replays both.
#[test]
fn a_step_comes_when_an_exchange_ends() {
    let mut contract = Contract::default();
    let (one, other) = (contract.add(None, "one"), contract.add(None, "other"));
    let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
    let [cpu, disk] = [Resource::Cpu, Resource::Disk].map(|resource| Offer::tickets(resource, 1));
    let changes = [
        Bid { by: one, gives: cpu, wants: disk, with: None, for_ns: None, at_least: None, bound: false },
        Bid {
            by: other,
            gives: disk,
            wants: cpu,
            with: None,
            for_ns: Some(500),
            at_least: None,
            bound: false,
        },
    ]
    .map(|bid| Change::Offer { bid });
    let snapshot = Snapshot::default();
    let input = |changes| Input {
        contract: &contract,
        machine: &machine,
        means: Means::NONE,
        snapshot: &snapshot,
        changes,
    };
    let (state, made) = step(PolicyState::default(), 7, input(&changes));
    assert_eq!((made.next, made.decisions.trade.len()), (507, 3));
    let (_, over) = step(state, 507, input(&[]));
    assert!(matches!(over.decisions.trade[..], [Trade::Undone { why: Ending::Over, .. }]));
    let books = Books::default();
    let after = books.replay(&contract, &machine, &made).unwrap();
    assert!(after.replay(&contract, &machine, &over).is_ok());
    let wrong = books.replay(&contract, &machine, &over).unwrap_err();
    assert!(wrong.iter().any(|error| error.contains("was not in force")), "{wrong:?}");
}

/// Memory is sampled less often than rights change: the last sample counts, without removed units.
#[test]
fn a_step_knows_the_memory_in_use_at_the_last_sample() {
    let mut contract = Contract::default();
    let ids = ["one", "other"].map(|name| contract.add(None, name));
    contract.units[ids[0].index()].hard.memory = Some(Amount::Absolute(100 << 20));
    let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
    let there = UnitFacts { processes: 1, ..UnitFacts::default() };
    let blind = Snapshot { units: vec![there; 4], ..Snapshot::default() };
    let mut used = vec![UnitMemory::default(); 4];
    (used[ids[0].index()].used, used[ids[0].index()].anonymous) = (70 << 20, 60 << 20);
    let facts = MemoryFacts { total: 1 << 30, units: used, ..MemoryFacts::default() };
    let sees = Snapshot { memory: Some(facts), ..blind.clone() };
    let offer = |mebibytes: u64| Change::Offer {
        bid: Bid {
            by: ids[0],
            gives: Offer::hard(Resource::Memory, Amount::Absolute(mebibytes << 20)),
            wants: Offer::tickets(Resource::Cpu, 1),
            with: None,
            for_ns: None,
            at_least: None,
            bound: false,
        },
    };
    let after = |state: PolicyState, contract: &Contract, snapshot: &Snapshot, changes: &[Change]| {
        let input = Input { contract, machine: &machine, means: Means::NONE, snapshot, changes };
        let (state, plan) = step(state, 0, input);
        (state, plan.decisions.rights.iter().filter_map(|change| change.refused).collect::<Vec<_>>())
    };
    let (state, _) = after(PolicyState::default(), &contract, &sees, &[]);
    let in_use = Refused::InUse { unit: ids[0], used: 60 << 20, reserved: 100 << 20, most: 40 << 20 };
    let (state, refused) = after(state, &contract, &blind, &[offer(41), offer(40)]);
    assert_eq!(refused, [in_use]);
    // The next sample: the standing offer waits.
    let mut more = sees.clone();
    more.memory.as_mut().unwrap().units[ids[0].index()].anonymous = 61 << 20;
    let (state, _) = after(state, &contract, &more, &[]);
    assert!(
        matches!(state.rights().waits(1), Some(Waits::Lacks(Refused::InUse { most, .. })) if most == 39 << 20)
    );
    // Another unit has the number, and uses nothing yet.
    contract.vacant.insert(ids[0]);
    let (state, _) = after(state, &contract, &blind, &[]);
    contract.vacant.clear();
    assert_eq!(after(state, &contract, &blind, &[offer(100)]).1, []);
}
