use super::*;

/// Who is to be killed first, as the orders of a look change it.
pub(super) fn exposed(steps: &[Step<MemoryOrder>], before: &mut BTreeSet<UnitId>) {
    for step in steps {
        match step.action {
            MemoryOrder::Expose { unit, exposed: true } => assert!(before.insert(unit), "ordered twice"),
            MemoryOrder::Expose { unit, exposed: false } => assert!(before.remove(&unit), "taken back twice"),
            _ => {}
        }
    }
}

/// So much of a unit is in no file.
fn fill(world: &mut World, unit: UnitId, mib: u64) {
    let memory = world.of(unit);
    (memory.used, memory.anonymous) = (mib * MIB, mib * MIB);
}

/// Of 1,920 MiB, u0 has no more than its 960, and u1 has more: it goes first from when less than 419 MiB are left (8 % of 2,048,
/// and an eighth that may lie on lists) until 501 are again, and nothing is ordered twice; it is reported from 163 to 245. What it
/// may drop is no reason, nor what swap takes.
#[test]
fn who_is_beyond_its_entitlement_goes_first_before_memory_is_short() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut first = BTreeSet::new();
    let mut watched = vec![];
    let mut look = |world: &mut World, owner: u64, mib: u64| {
        fill(world, units[0], owner);
        fill(world, units[1], mib);
        let (steps, plan) = world.look(250);
        exposed(&steps, &mut first);
        let plan = plan.unwrap_or_default();
        watched = plan.watch;
        (first.iter().copied().collect::<Vec<_>>(), plan.beyond)
    };
    let beyond = |mib: u64| vec![Beyond { unit: units[1], bytes: mib * MIB }];
    assert_eq!(look(&mut world, 490, 1_000), (vec![], vec![]), "430 MiB are left");
    assert_eq!(look(&mut world, 510, 1_000), (vec![units[1]], vec![]), "410 are");
    assert_eq!(look(&mut world, 750, 1_000), (vec![units[1]], vec![]), "170 are");
    assert_eq!(look(&mut world, 800, 1_000), (vec![units[1]], beyond(40)), "120 are");
    assert_eq!(look(&mut world, 800, 1_050), (vec![units[1]], beyond(90)));
    assert_eq!(look(&mut world, 690, 1_000), (vec![units[1]], beyond(40)), "230 are: not yet enough");
    assert_eq!(look(&mut world, 670, 1_000), (vec![units[1]], vec![]), "250 are");
    assert_eq!(look(&mut world, 430, 1_000), (vec![units[1]], vec![]), "490 are: not yet enough");
    assert_eq!(look(&mut world, 410, 1_000), (vec![], vec![]), "510 are");
    assert_eq!(look(&mut world, 900, 1_000).0, [units[1]]);
    world.facts.swap_free = 1_024 * MIB;
    assert_eq!(look(&mut world, 900, 1_000), (vec![], vec![]), "there is swap");
    world.facts.swap_free = 0;
    assert_eq!(look(&mut world, 900, 1_000).0, [units[1]]);
    for _ in 0..39 {
        assert_eq!(
            look(&mut world, 900, 950).0,
            [units[1]],
            "it is within its own: for ten seconds it goes first still"
        );
    }
    assert_eq!(look(&mut world, 900, 950).0, []);

    assert_eq!(watched, [units[0], units[1]], "both are near");

    // 100 MiB are left; what is clean is not held.
    fill(&mut world, units[0], 900);
    fill(&mut world, units[1], 920);
    world.of(units[1]).used = 1_020 * MIB;
    assert!(!world.look(250).0.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })));
}

/// Those who are in no unit take 900 MiB: units are entitled to half as much as before, and none of them is to blame.
#[test]
fn what_is_in_no_unit_exposes_nobody() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    fill(&mut world, units[0], 800);
    fill(&mut world, units[1], 100);
    world.looks(3);
    world.facts.shared = 900 * MIB;
    let (steps, plan) = world.look(250);
    assert!(plan.is_some_and(|plan| plan.units[units[0].index()].entitled < 600 * MIB));
    assert!(!steps.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })), "{steps:?}");
    // Nor while it grows to what it was entitled to before; but beyond that, it is.
    let mut first = BTreeSet::new();
    for (mib, blamed) in [(950, false), (970, true)] {
        fill(&mut world, units[0], mib);
        exposed(&world.look(250).0, &mut first);
        assert_eq!(!first.is_empty(), blamed, "{mib} MiB");
    }
}

/// Those who are in no unit have had 900 MiB all the time: who takes more than its half of the rest is to blame, long before it
/// has what it would be entitled to without them, which is not there. And from the first look on, nobody knows who was first.
#[test]
fn what_was_in_no_unit_before_excuses_nobody() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.facts.shared = 900 * MIB;
    let mut first = BTreeSet::new();
    fill(&mut world, units[0], 500);
    fill(&mut world, units[1], 540);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new(), "it may have been there before them");
    for (mib, blamed) in [(100, false), (540, true)] {
        fill(&mut world, units[1], mib);
        exposed(&world.look(250).0, &mut first);
        assert_eq!(first.contains(&units[1]), blamed, "{mib} MiB");
        assert!(!first.contains(&units[0]));
    }
}

/// The same where entitlements do not sink alike: of 400 MiB less, who has 900 reserved loses half, and so does the other one,
/// which had much less.
#[test]
fn what_is_in_no_unit_exposes_nobody_beside_who_has_much_reserved() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(900 * MIB));
    let mut world = World::new(contract);
    fill(&mut world, units[0], 1_000);
    fill(&mut world, units[1], 400);
    world.looks(3);
    world.facts.shared += 400 * MIB;
    let mut first = BTreeSet::new();
    let (steps, plan) = world.look(250);
    assert!(plan.is_some_and(|plan| plan.units[units[1].index()].entitled < 330 * MIB));
    exposed(&steps, &mut first);
    assert_eq!(first, BTreeSet::new());
    fill(&mut world, units[1], 520);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::from([units[1]]));
}

/// A unit that is within its entitlement is not exposed for what one of its sub-units takes of another; when it is beyond, that
/// sub-unit is, and nobody under `smp`.
#[test]
fn sub_units_are_exposed_when_what_is_around_them_is_beyond() {
    let (mut contract, units) = equals(2);
    let sub = contract.add(Some(units[0]), "sub");
    contract.add(Some(units[0]), "other");
    let mut world = World::new(contract);
    fill(&mut world, sub, 900);
    fill(&mut world, units[1], 940);
    let mut first = BTreeSet::new();
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new(), "80 MiB are left");
    fill(&mut world, sub, 1_010);
    fill(&mut world, units[1], 850);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::from([sub]));
    world.contract.machine.scheme = Scheme::Smp;
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new());
}
