use super::*;

/// 1,920 MiB, of which u0 has 320 reserved: entitlements are guaranteed and bounded, and ordered once.
#[test]
fn every_unit_has_its_entitlement_and_no_more() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(320 * MIB));
    let mut world = World::new(contract);
    let (steps, plan) = world.sample(0);
    // 320 hard, and half each of the other 1,600.
    let order =
        |unit, min, low| MemoryOrder::Guarantee { unit, min: min * MIB, low: low * MIB, own: low * MIB };
    let actions: Vec<MemoryOrder> = steps.iter().map(|step| step.action.clone()).collect();
    let expected = [
        MemoryOrder::Allow { unit: units[0], bytes: Some(1_120 * MIB) },
        MemoryOrder::Allow { unit: units[1], bytes: Some(800 * MIB) },
        order(units[0], 320, 1_120),
        order(units[1], 0, 800),
    ];
    assert_eq!(actions, expected);
    assert_eq!(plan.map(|plan| (plan.divided, plan.watch)), Some((1_920 * MIB, units)));
    assert_eq!(world.sample(250).0, []);
}

/// u0 may not borrow, and uses its 960 MiB of 1,920 when u1's tickets double. It is then entitled to 640, and
/// its bound follows. A kernel enforces that only when the unit allocates, so the rest is reclaimed by order.
/// Fruitless orders are repeated rarely, and samples are not more frequent. A unit that may borrow keeps what
/// no other unit wants.
#[test]
fn a_unit_that_may_not_borrow_keeps_nothing_beyond_its_entitlement() {
    for (borrow, owes) in [(Permission::No, true), (Permission::Yes, false)] {
        let (mut contract, units) = equals(2);
        contract.units[units[0].index()].borrow.memory = borrow;
        let mut world = World::new(contract);
        (world.memory(units[0]).used, world.memory(units[1]).used) = (960 * MIB, 100 * MIB);
        let reclaimed = |steps: &[Step<MemoryOrder>]| {
            let bytes = |step: &Step<MemoryOrder>| match (&step.action, step.reason) {
                (MemoryOrder::Reclaim { unit, bytes, .. }, Reason::Owes { .. }) if *unit == units[0] => {
                    Some(bytes / MIB)
                }
                _ => None,
            };
            steps.iter().find_map(bytes)
        };
        assert_eq!(reclaimed(&world.sample(250).0), None);
        world.contract.units[units[1].index()].tickets.memory = 200;
        let (steps, plan) = world.sample(250);
        assert_eq!(bound(&steps, units[0]), Some(640));
        assert_eq!(reclaimed(&steps), owes.then_some(320));
        assert!(
            plan.is_some_and(|plan| plan.next > world.now + DEBT_SAMPLE_NS && !plan.units[2].called_back)
        );
        assert_eq!(reclaimed(&world.sample(250).0), None, "nothing was reclaimed");
        world.memory(units[0]).used = 800 * MIB;
        assert_eq!(reclaimed(&world.sample(250).0), owes.then_some(160), "something was reclaimed");
        assert_eq!(reclaimed(&world.sample(9_000).0), None);
        assert_eq!(reclaimed(&world.sample(1_000).0), owes.then_some(160), "after a while");
        world.memory(units[0]).used = 640 * MIB;
        assert_eq!(reclaimed(&world.sample(250).0), None);
    }
}

/// A guarantee covers sub-units. Of 1,920 MiB, a has 200 hard and half of the rest, 1,060 in all. Of these,
/// its sub-unit b has a tenth hard, and half of the rest beside a's own processes: 583.
#[test]
fn guarantees_enclose_those_of_sub_units() {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    let b = contract.add(Some(a), "b");
    contract.add(None, "c");
    contract.units[a.index()].hard.memory = Some(Amount::Absolute(200 * MIB));
    contract.units[b.index()].hard.memory = Some(Amount::Part(MILLIONTH / 10));
    let mut world = World::new(contract);
    let (steps, _) = world.sample(0);
    let guarantee = |unit, [min, low, own]: [u64; 3]| {
        steps.iter().any(|step| {
            step.action == MemoryOrder::Guarantee { unit, min: min * MIB, low: low * MIB, own: own * MIB }
        })
    };
    assert!(guarantee(a, [200, 1_060, 477]) && guarantee(b, [106, 583, 583]), "{steps:?}");
    // A backend without guarantees orders only bounds.
    world.means.guarantees = false;
    let (steps, _) = world.sample(250);
    assert!(
        steps.iter().any(|step| step.action == MemoryOrder::Guarantee { unit: a, min: 0, low: 0, own: 0 }),
        "{steps:?}"
    );
    assert_eq!(world.share(a).allowed, 477 * MIB);
}

/// Nothing is reserved for a itself. The reservations of its sub-units b and d, and of e in d, are guaranteed
/// all the way up: a kernel protects no memory of a group that is not protected in its parent. a has half of
/// 1,920 MiB.
#[test]
fn a_reservation_inside_a_unit_is_guaranteed_around_it() {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    let (b, d) = (contract.add(Some(a), "b"), contract.add(Some(a), "d"));
    let inner = contract.add(Some(d), "e");
    let other = contract.add(None, "c");
    for (id, mib) in [(b, 300), (d, 50), (inner, 100), (other, 200)] {
        contract.units[id.index()].hard.memory = Some(Amount::Absolute(mib * MIB));
    }
    let mut world = World::new(contract);
    let min = |world: &World, id: UnitId| world.in_force.get(&id).map_or(0, |orders| orders.min / MIB);
    let all = |world: &World| [a, b, d, inner, other].map(|id| min(world, id));
    world.sample(0);
    assert_eq!(all(&world), [400, 300, 100, 100, 200]);
    // An absent unit is guaranteed nothing, and its parent that much less.
    world.present[b.index()] = false;
    world.sample(250);
    assert_eq!(all(&world), [100, 0, 100, 100, 200]);
    // The reservations exceed a's entitlement: they shrink alike, and a is guaranteed its entitlement, no
    // more.
    for id in [d, inner] {
        world.contract.units[id.index()].hard.memory = Some(Amount::Absolute(1_900 * MIB));
    }
    world.sample(250);
    let entitled: u64 = [a, b, d, inner].map(|id| world.share(id).entitled).iter().sum::<u64>() / MIB;
    let [min_of_a, .., min_of_other] = all(&world);
    assert_eq!((min_of_a, min_of_other), (entitled, 200));
    assert!(min_of_a + min_of_other <= 1_920);
}

/// Of 1,920 MiB, u0 has 600 reserved and 660 of the rest, and uses 700, 500 of them cold. Its unused memory
/// is lent, and 100 MiB of cold memory; the rest is reserved. When it uses only 300, its guarantee sinks with
/// its bound, and is never above that. When it is short, both are whole again.
#[test]
fn only_the_unused_part_of_a_reservation_is_lent() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(600 * MIB));
    contract.machine.reserve = Amount::Part(0);
    let mut world = World::new(contract);
    world.took(units[1], 64, 16);
    let kept = |world: &mut World, used: u64, cold: u64| {
        for _ in 0..25 {
            (world.memory(units[0]).used, world.memory(units[0]).cold) = (used * MIB, cold * MIB);
            let allowed = world.share(units[1]).allowed.max(660 * MIB) / MIB;
            world.thrash(units[1], allowed);
            world.sample(250);
        }
        let orders = world.in_force[&units[0]];
        [orders.min, orders.high.unwrap_or(0), world.share(units[0]).lent].map(|bytes| bytes / MIB)
    };
    assert_eq!(kept(&mut world, 700, 500), [600, 600, 660]);
    // Its use counts as 4 MiB more than it is.
    assert_eq!(kept(&mut world, 300, 0), [304, 304, 956]);
    world.thrash(units[0], 304);
    world.sample(20);
    assert_eq!(
        (world.in_force[&units[0]].min, world.in_force[&units[0]].high),
        (600 * MIB, Some(1_260 * MIB))
    );
}

/// A few pages more or less, in a unit or outside all units, change no order.
#[test]
fn small_movements_change_no_order() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 100 * MIB;
    world.took(units[1], 64, 16);
    for _ in 0..20 {
        let allowed = world.share(UnitId(3)).allowed.max(600 * MIB) / MIB;
        world.thrash(units[1], allowed);
        world.sample(250);
    }
    for i in 0..20 {
        world.memory(units[0]).used = 100 * MIB + (i % 3) * MIB;
        world.facts.kernel = 100 * MIB + (i % 4) * MIB;
        world.thrash(units[1], world.share(UnitId(3)).allowed / MIB);
        let steps = world.sample(250).0;
        assert!(i < 2 || steps.is_empty(), "sample {i}: {steps:?}");
    }
}

/// Without an observation, orders stay. They are withdrawn if a unit has no processes, if the backend can no
/// longer enforce them, and under `smp`.
#[test]
fn orders_are_withdrawn_when_they_should_not_hold() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.sample(0);
    assert_eq!(world.sample_with(250, None), (vec![], None));
    assert_eq!(world.in_force.len(), 2);
    world.present[units[0].index()] = false;
    let (steps, _) = world.sample(250);
    assert!(steps.contains(&Step {
        action: MemoryOrder::Allow { unit: units[0], bytes: None },
        reason: Reason::NobodyThere
    }));
    assert_eq!(world.share(units[1]).entitled, 1_920 * MIB, "an absent unit is entitled to nothing");
    world.means = MemoryMeans::NONE;
    world.sample_with(250, None);
    assert!(world.in_force.is_empty());
    world.means = MEMORY;
    world.sample(250);
    world.contract.machine.scheme = Scheme::Smp;
    world.sample(250);
    assert!(world.in_force.is_empty());
}

/// A unit uses its packed memory, but no bound and no guarantee of the kernel counts it, so they are lower by
/// that amount.
#[test]
fn packed_memory_is_subtracted_from_bounds_and_guarantees() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 500 * MIB;
    world.samples(2);
    let high = |world: &World| world.in_force[&units[0]].high.map(|bytes| bytes / MIB);
    assert_eq!(high(&world), Some(960));
    world.memory(units[0]).packed = 100 * MIB - 1_000;
    let (steps, _) = world.sample(250);
    assert_eq!((high(&world), world.share(units[0]).allowed / MIB), (Some(860), 960));
    assert!(
        steps.iter().any(|step| matches!(
            step.action,
            MemoryOrder::Guarantee { unit, low, .. } if unit == units[0] && low == 860 * MIB
        )),
        "{steps:?}"
    );
    // A few pages more change no order.
    world.memory(units[0]).packed = 103 * MIB;
    assert_eq!(world.sample(250).0, []);
}
