use super::*;

/// Applies the orders of a sample to the set of exposed units.
pub(super) fn exposed(steps: &[Step<MemoryOrder>], units: &mut BTreeSet<UnitId>) {
    for step in steps {
        match step.action {
            MemoryOrder::Expose { unit, exposed: true } => assert!(units.insert(unit), "ordered twice"),
            MemoryOrder::Expose { unit, exposed: false } => assert!(units.remove(&unit), "withdrawn twice"),
            _ => {}
        }
    }
}

/// Gives a unit `mib` of anonymous memory, and no other.
fn fill(world: &mut World, unit: UnitId, mib: u64) {
    let memory = world.memory(unit);
    (memory.used, memory.anonymous) = (mib * MIB, mib * MIB);
}

/// Of 1,920 MiB, u0 has no more than its 960, and u1 has more. u1 is exposed from when less than 419 MiB are
/// left (8 % of 2,048, and an eighth that may lie on lists) until 501 are left again, and nothing is ordered
/// twice. It is reported from 163 MiB until 245. Clean pages and what fits into swap do not count.
#[test]
fn a_unit_beyond_its_entitlement_is_exposed_before_memory_is_short() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut exposed_units = BTreeSet::new();
    let mut watched = vec![];
    let mut sample = |world: &mut World, owner: u64, mib: u64| {
        fill(world, units[0], owner);
        fill(world, units[1], mib);
        let (steps, plan) = world.sample(250);
        exposed(&steps, &mut exposed_units);
        let plan = plan.unwrap_or_default();
        watched = plan.watch;
        (exposed_units.iter().copied().collect::<Vec<_>>(), plan.beyond)
    };
    let beyond = |mib: u64| vec![Beyond { unit: units[1], bytes: mib * MIB }];
    assert_eq!(sample(&mut world, 490, 1_000), (vec![], vec![]), "430 MiB are left");
    assert_eq!(sample(&mut world, 510, 1_000), (vec![units[1]], vec![]), "410 are");
    assert_eq!(sample(&mut world, 750, 1_000), (vec![units[1]], vec![]), "170 are");
    assert_eq!(sample(&mut world, 800, 1_000), (vec![units[1]], beyond(40)), "120 are");
    assert_eq!(sample(&mut world, 800, 1_050), (vec![units[1]], beyond(90)));
    assert_eq!(sample(&mut world, 690, 1_000), (vec![units[1]], beyond(40)), "230 are: not yet enough");
    assert_eq!(sample(&mut world, 670, 1_000), (vec![units[1]], vec![]), "250 are");
    assert_eq!(sample(&mut world, 430, 1_000), (vec![units[1]], vec![]), "490 are: not yet enough");
    assert_eq!(sample(&mut world, 410, 1_000), (vec![], vec![]), "510 are");
    assert_eq!(sample(&mut world, 900, 1_000).0, [units[1]]);
    world.facts.swap_free = 1_024 * MIB;
    assert_eq!(sample(&mut world, 900, 1_000), (vec![], vec![]), "there is swap");
    world.facts.swap_free = 0;
    assert_eq!(sample(&mut world, 900, 1_000).0, [units[1]]);
    for _ in 0..39 {
        assert_eq!(
            sample(&mut world, 900, 950).0,
            [units[1]],
            "it is within its entitlement, but exposed for ten more seconds"
        );
    }
    assert_eq!(sample(&mut world, 900, 950).0, []);

    assert_eq!(watched, [units[0], units[1]], "both are near");

    // 100 MiB are left; clean pages are not held.
    fill(&mut world, units[0], 900);
    fill(&mut world, units[1], 920);
    world.memory(units[1]).used = 1_020 * MIB;
    assert!(!world.sample(250).0.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })));
}

/// Processes outside all units grow by 900 MiB. Units are then entitled to half as much as before, and none
/// is to blame.
#[test]
fn growth_outside_all_units_exposes_no_unit() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    fill(&mut world, units[0], 800);
    fill(&mut world, units[1], 100);
    world.samples(3);
    world.facts.shared = 900 * MIB;
    let (steps, plan) = world.sample(250);
    assert!(plan.is_some_and(|plan| plan.units[units[0].index()].entitled < 600 * MIB));
    assert!(!steps.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })), "{steps:?}");
    // Nor while a unit grows to its former entitlement; beyond that, it is.
    let mut exposed_units = BTreeSet::new();
    for (mib, is_exposed) in [(950, false), (970, true)] {
        fill(&mut world, units[0], mib);
        exposed(&world.sample(250).0, &mut exposed_units);
        assert_eq!(!exposed_units.is_empty(), is_exposed, "{mib} MiB");
    }
}

/// Processes outside all units had 900 MiB all the time. A unit that takes more than its half of the rest is
/// to blame, long before it has what it would be entitled to without them. At the first sample, who took
/// memory first is unknown.
#[test]
fn memory_held_outside_all_units_from_the_start_excuses_no_unit() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.facts.shared = 900 * MIB;
    let mut exposed_units = BTreeSet::new();
    fill(&mut world, units[0], 500);
    fill(&mut world, units[1], 540);
    exposed(&world.sample(250).0, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::new(), "it may have held that before them");
    for (mib, is_exposed) in [(100, false), (540, true)] {
        fill(&mut world, units[1], mib);
        exposed(&world.sample(250).0, &mut exposed_units);
        assert_eq!(exposed_units.contains(&units[1]), is_exposed, "{mib} MiB");
        assert!(!exposed_units.contains(&units[0]));
    }
}

/// The same if entitlements do not sink alike: of 400 MiB less, a unit with 900 MiB reserved loses half, and
/// so does the other unit, which had much less.
#[test]
fn growth_outside_all_units_exposes_no_unit_beside_a_large_reservation() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(900 * MIB));
    let mut world = World::new(contract);
    fill(&mut world, units[0], 1_000);
    fill(&mut world, units[1], 400);
    world.samples(3);
    world.facts.shared += 400 * MIB;
    let mut exposed_units = BTreeSet::new();
    let (steps, plan) = world.sample(250);
    assert!(plan.is_some_and(|plan| plan.units[units[1].index()].entitled < 330 * MIB));
    exposed(&steps, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::new());
    fill(&mut world, units[1], 520);
    exposed(&world.sample(250).0, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::from([units[1]]));
}

/// While a unit is within its entitlement, a sub-unit that takes from another is not exposed. When the unit
/// is beyond, that sub-unit is exposed. Under `smp`, none is.
#[test]
fn a_sub_unit_is_exposed_when_its_parent_is_beyond() {
    let (mut contract, units) = equals(2);
    let sub = contract.add(Some(units[0]), "sub");
    contract.add(Some(units[0]), "other");
    let mut world = World::new(contract);
    fill(&mut world, sub, 900);
    fill(&mut world, units[1], 940);
    let mut exposed_units = BTreeSet::new();
    exposed(&world.sample(250).0, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::new(), "80 MiB are left");
    fill(&mut world, sub, 1_010);
    fill(&mut world, units[1], 850);
    exposed(&world.sample(250).0, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::from([sub]));
    world.contract.machine.scheme = Scheme::Smp;
    exposed(&world.sample(250).0, &mut exposed_units);
    assert_eq!(exposed_units, BTreeSet::new());
}
