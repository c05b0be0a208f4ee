// Numbers of a handful of units.
#![allow(clippy::cast_possible_truncation)]

use super::*;
use commonhold_contract::PerResource;
use proptest::prelude::*;

const CPU: u64 = MILLIONTH;

/// Seed 004, figure 5: currencies A and B equal; A2 = 2 × A1; B2 = 2 × B1, B3 = 3 × B1.
fn figure_5() -> (Contract, [UnitId; 5]) {
    let mut c = Contract::default();
    let (a, b) = (c.add(None, "a"), c.add(None, "b"));
    let leaves = [(a, "a1", 1), (a, "a2", 2), (b, "b1", 1), (b, "b2", 2), (b, "b3", 3)];
    let ids = leaves.map(|(parent, name, tickets)| {
        let id = c.add(Some(parent), name);
        c.units[id.index()].tickets = PerResource::all(tickets);
        id
    });
    (c, ids)
}

fn present(contract: &Contract, ids: &[UnitId]) -> Vec<bool> {
    contract.ids().map(|id| ids.contains(&id)).collect()
}

fn cpu(contract: &Contract, cpus: u64, ids: &[UnitId]) -> Entitlement {
    entitle(contract, Resource::Cpu, Capacity::Known(cpus * CPU), &present(contract, ids))
}

/// Seed 004, section 5.2: with B3 asleep, A1 1/6, A2 1/3, B1 1/6, B2 1/3; when it wakes, B1 1/12, B2 1/6, B3
/// 1/4, and A1 and A2 keep theirs.
#[test]
fn currencies_insulate() {
    let (c, [a1, a2, b1, b2, b3]) = figure_5();
    let first = cpu(&c, 12, &[a1, a2, b1, b2]);
    assert_eq!([a1, a2, b1, b2, b3].map(|id| first.own(id) / CPU), [2, 4, 2, 4, 0]);
    let second = cpu(&c, 12, &[a1, a2, b1, b2, b3]);
    assert_eq!([a1, a2, b1, b2, b3].map(|id| second.own(id) / CPU), [2, 4, 1, 2, 3]);
}

/// 8 CPUs: 2 hard for p, the other 6 by 200:100: p 2 + 4, s 2. Without s, p has all 8; with a limit of 5, 3
/// are unheld.
#[test]
fn hard_first_then_soft_then_limits() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    c.units[p.index()].hard.cpu = Some(Amount::Absolute(2 * CPU));
    c.units[p.index()].tickets = PerResource::all(200);
    let both = cpu(&c, 8, &[p, s]);
    assert_eq!((both.own(p), both.own(s), both.unheld), (6 * CPU, 2 * CPU, 0));
    assert_eq!(cpu(&c, 8, &[p]).own(p), 8 * CPU);
    c.units[p.index()].limit.cpu = Some(Amount::Absolute(5 * CPU));
    assert_eq!((cpu(&c, 8, &[p]).own(p), cpu(&c, 8, &[p]).unheld), (5 * CPU, 3 * CPU));
}

/// 1,000 tickets of CPU against 100 are 10 of 11; 1,375 of memory against 1,100 are 5 of 9.
#[test]
fn each_resource_is_divided_by_tickets_of_its_own() {
    let mut c = Contract::default();
    let (a, b) = (c.add(None, "a"), c.add(None, "b"));
    c.units[a.index()].tickets = PerResource { cpu: 1_000, memory: 1_375, ..PerResource::all(100) };
    c.units[b.index()].tickets = PerResource { memory: 1_100, ..PerResource::all(100) };
    let value = |resource, whole| {
        let e = entitle(&c, resource, Capacity::Known(whole), &present(&c, &[a, b]));
        (e.value(a), e.value(b))
    };
    assert_eq!(value(Resource::Cpu, 11 * CPU), (10 * CPU, CPU));
    assert_eq!(value(Resource::Memory, 900), (500, 400));
    assert_eq!(value(Resource::Disk, 900), (450, 450));
}

/// 4 CPUs for p alone; its own processes count as a sub-unit of 100 tickets beside one of 300: 1 and 3.
#[test]
fn own_processes_are_one_more_sub_unit() {
    let mut c = Contract::default();
    let p = c.add(None, "p");
    let sub = c.add(Some(p), "sub");
    c.units[sub.index()].tickets = PerResource::all(300);
    let e = cpu(&c, 4, &[p, sub]);
    assert_eq!((e.value(p), e.own(p), e.own(sub)), (4 * CPU, CPU, 3 * CPU));
    assert_eq!(cpu(&c, 4, &[sub]).own(sub), 4 * CPU);
}

#[test]
fn conflicts_are_demands_beyond_the_machine() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    let sub = c.add(Some(s), "sub");
    let machine = Machine::synthetic("cpus:4 memory:1GiB").unwrap();
    assert_eq!(conflicts(&c, &machine), []);
    c.units[p.index()].hard.cpu = Some(Amount::Absolute(3 * CPU));
    c.units[s.index()].hard.cpu = Some(Amount::Part(MILLIONTH / 2));
    let asks: Vec<Ask> = conflicts(&c, &machine).into_iter().map(|c| c.what).collect();
    let hard = |level, asked, available| Ask::Hard { level, resource: Resource::Cpu, asked, available };
    assert_eq!(asks, [hard(None, 5 * CPU, 4 * CPU)]);
    // p has 3 of 4 hard, and the last is halved by tickets: s is guaranteed half a CPU, but its sub-unit asks
    // for 1.
    c.units[s.index()].hard.cpu = None;
    c.units[sub.index()].hard.cpu = Some(Amount::Absolute(CPU));
    let asks: Vec<Ask> = conflicts(&c, &machine).into_iter().map(|c| c.what).collect();
    assert_eq!(asks, [hard(Some(s), CPU, CPU / 2)]);
}

/// A random contract of up to 12 units, and which of them have processes.
fn any_contract() -> impl Strategy<Value = (Contract, Vec<bool>)> {
    let unit = (
        0usize..6,
        1u64..500,
        proptest::option::of(0u64..MILLIONTH),
        proptest::option::of(1u64..=MILLIONTH),
        any::<bool>(),
    );
    proptest::collection::vec(unit, 1..12).prop_map(|units| {
        let mut c = Contract::default();
        let mut present = vec![false, false];
        for (i, (parent, tickets, hard, limit, has)) in units.into_iter().enumerate() {
            // Some of the earlier units become parents.
            let parent = (parent > 2 && i > 0).then(|| UnitId(2 + (parent % i) as u32));
            let id = c.add(parent, &format!("u{i}"));
            let unit = &mut c.units[id.index()];
            unit.tickets = PerResource::all(tickets);
            unit.hard.cpu = hard.map(|h| Amount::Part(h / 8));
            unit.limit.cpu = limit.map(Amount::Part);
            present.push(has);
        }
        (c, present)
    })
}

proptest! {
    #[test]
    fn conserved_and_within_limits((c, present) in any_contract(), cpus in 1u64..64) {
        let capacity = Capacity::Known(cpus * CPU);
        let e = entitle(&c, Resource::Cpu, capacity, &present);
        prop_assert_eq!(e.own.iter().sum::<u64>() + e.unheld, cpus * CPU);
        for id in c.held() {
            let below: u64 = c.children(Some(id)).map(|sub| e.value(sub)).sum();
            prop_assert_eq!(e.value(id), e.own(id) + below);
            let whole = c.unit(id).parent.map_or(cpus * CPU, |parent| e.value(parent));
            if let Some(limit) = c.unit(id).limit.cpu {
                prop_assert!(e.value(id) <= limit.of(whole));
            }
        }
    }

    /// Rights are local: tickets of a unit's sub-units change nothing outside the unit.
    #[test]
    fn inflation_stays_inside((c, present) in any_contract(), who in 0usize..12, more in 1u64..10_000) {
        let id = UnitId(2 + (who % (c.units.len() - 2)) as u32);
        let Some(parent) = c.unit(id).parent else { return Ok(()) };
        let capacity = Capacity::Known(8 * CPU);
        let before = entitle(&c, Resource::Cpu, capacity, &present);
        let mut inflated = c.clone();
        inflated.units[id.index()].tickets.cpu += more;
        let after = entitle(&inflated, Resource::Cpu, capacity, &present);
        for other in c.held().filter(|other| *other == parent || !crate::membership::is_within(&c, *other, parent)) {
            prop_assert_eq!(before.value(other), after.value(other));
        }
    }

    /// Tickets of one resource do not affect the others.
    #[test]
    fn tickets_of_a_resource_are_its_own((c, present) in any_contract(), who in 0usize..12, more in 1u64..10_000) {
        let id = UnitId(2 + (who % (c.units.len() - 2)) as u32);
        for raised_one in Resource::ALL {
            let mut raised = c.clone();
            raised.units[id.index()].tickets[raised_one] += more;
            for resource in Resource::ALL.into_iter().filter(|resource| *resource != raised_one) {
                let capacity = Capacity::Known(8 * CPU);
                let value = |contract| entitle(contract, resource, capacity, &present);
                prop_assert_eq!(value(&raised), value(&c));
            }
        }
    }

    /// More tickets are never worth less.
    #[test]
    fn monotonic((c, present) in any_contract(), who in 0usize..12, more in 1u64..10_000) {
        let id = UnitId(2 + (who % (c.units.len() - 2)) as u32);
        let capacity = Capacity::Known(8 * CPU);
        let before = entitle(&c, Resource::Cpu, capacity, &present).value(id);
        let mut raised = c.clone();
        raised.units[id.index()].tickets.cpu += more;
        // Within 1 millionth per level, because of rounding.
        prop_assert!(entitle(&raised, Resource::Cpu, capacity, &present).value(id) + 16 >= before);
    }

    /// A unit that leaves makes no other poorer: its part goes to the others.
    #[test]
    fn who_leaves_makes_nobody_poorer((c, present) in any_contract(), who in 0usize..12) {
        let gone = UnitId(2 + (who % (c.units.len() - 2)) as u32);
        let capacity = Capacity::Known(8 * CPU);
        let before = entitle(&c, Resource::Cpu, capacity, &present);
        let mut without = present.clone();
        for id in c.held().filter(|id| crate::membership::is_within(&c, *id, gone)) {
            without[id.index()] = false;
        }
        let after = entitle(&c, Resource::Cpu, capacity, &without);
        // Checked for its siblings; deeper, percentages of a larger whole may shift rights between
        // neighbours.
        for id in c.children(c.unit(gone).parent).filter(|id| *id != gone && without[id.index()]) {
            prop_assert!(after.value(id) + 1 >= before.value(id));
        }
    }
}
