use super::*;

/// 1,920 MiB between two: 960 each, guaranteed and bounded, said once.
#[test]
fn everybody_has_its_own_and_no_more() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(320 * MIB));
    let mut world = World::new(contract);
    let (steps, plan) = world.look(0);
    // 320 hard, and halves of the 1,600 that are left.
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
    assert_eq!(world.look(250).0, []);
}

/// u0 may not borrow, and uses its 960 MiB of 1,920 when its tickets sink to half of u1's: it is entitled to 640, and its bound
/// follows. It wants no new page, at which a kernel would hold it to that: so what is beyond is taken. Where nothing comes of
/// it, it is told rarely, and nobody looks sooner for its sake. A unit that may borrow keeps what nobody wants.
#[test]
fn who_may_not_borrow_keeps_nothing_beyond_its_entitlement() {
    for (borrow, owes) in [(Permission::No, true), (Permission::Yes, false)] {
        let (mut contract, units) = equals(2);
        contract.units[units[0].index()].borrow.memory = borrow;
        let mut world = World::new(contract);
        (world.of(units[0]).used, world.of(units[1]).used) = (960 * MIB, 100 * MIB);
        let reclaimed = |steps: &[Step<MemoryOrder>]| {
            let bytes = |step: &Step<MemoryOrder>| match (&step.action, step.reason) {
                (MemoryOrder::Reclaim { unit, bytes, .. }, Reason::Owes { .. }) if *unit == units[0] => {
                    Some(bytes / MIB)
                }
                _ => None,
            };
            steps.iter().find_map(bytes)
        };
        assert_eq!(reclaimed(&world.look(250).0), None);
        world.contract.units[units[1].index()].tickets.memory = 200;
        let (steps, plan) = world.look(250);
        assert_eq!(bound(&steps, units[0]), Some(640));
        assert_eq!(reclaimed(&steps), owes.then_some(320));
        assert!(plan.is_some_and(|plan| plan.next > world.now + DEBT_LOOK_NS && !plan.units[2].called_back));
        assert_eq!(reclaimed(&world.look(250).0), None, "nothing came of it");
        world.of(units[0]).used = 800 * MIB;
        assert_eq!(reclaimed(&world.look(250).0), owes.then_some(160), "something did");
        assert_eq!(reclaimed(&world.look(9_000).0), None);
        assert_eq!(reclaimed(&world.look(1_000).0), owes.then_some(160), "after a while");
        world.of(units[0]).used = 640 * MIB;
        assert_eq!(reclaimed(&world.look(250).0), None);
    }
}

/// What encloses a unit is guaranteed with it. Of 1,920 MiB, a has 200 hard and half of the rest, 1,060 in all; of these, its
/// sub-unit b has a tenth hard, and half of what is left beside a's own processes: 583.
#[test]
fn guarantees_enclose_those_of_sub_units() {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    let b = contract.add(Some(a), "b");
    contract.add(None, "c");
    contract.units[a.index()].hard.memory = Some(Amount::Absolute(200 * MIB));
    contract.units[b.index()].hard.memory = Some(Amount::Part(MILLIONTH / 10));
    let mut world = World::new(contract);
    let (steps, _) = world.look(0);
    let guarantee = |unit, [min, low, own]: [u64; 3]| {
        steps.iter().any(|step| {
            step.action == MemoryOrder::Guarantee { unit, min: min * MIB, low: low * MIB, own: own * MIB }
        })
    };
    assert!(guarantee(a, [200, 1_060, 477]) && guarantee(b, [106, 583, 583]), "{steps:?}");
    // Where nothing can be guaranteed, bounds are all there is.
    world.means.guarantees = false;
    let (steps, _) = world.look(250);
    assert!(
        steps.iter().any(|step| step.action == MemoryOrder::Guarantee { unit: a, min: 0, low: 0, own: 0 }),
        "{steps:?}"
    );
    assert_eq!(world.share(a).allowed, 477 * MIB);
}

/// Nothing is reserved for a itself. What is for b and d, which are in it, and for e in d, is guaranteed all the way up: a kernel
/// keeps nothing for a unit that is not kept for the one around it. b and d share 480 MiB beside it: a has half of 1,920.
#[test]
fn what_is_reserved_in_a_unit_is_guaranteed_around_it() {
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
    world.look(0);
    assert_eq!(all(&world), [400, 300, 100, 100, 200]);
    // Who is not there has nothing kept, and those around have so much less.
    world.present[b.index()] = false;
    world.look(250);
    assert_eq!(all(&world), [100, 0, 100, 100, 200]);
    // More than there is of a: what is in it shrinks alike, and a is guaranteed what it is entitled to, no more.
    for id in [d, inner] {
        world.contract.units[id.index()].hard.memory = Some(Amount::Absolute(1_900 * MIB));
    }
    world.look(250);
    let entitled: u64 = [a, b, d, inner].map(|id| world.share(id).entitled).iter().sum::<u64>() / MIB;
    let [of_a, .., of_other] = all(&world);
    assert_eq!((of_a, of_other), (entitled, 200));
    assert!(of_a + of_other <= 1_920);
}

/// Of 1,920 MiB, u0 has 600 reserved and 660 of the rest, and uses 700, 500 of them cold: what it does not use is lent, and 100
/// of what is cold, the rest being reserved. When it uses 300 only, what is guaranteed to it sinks with its bound, which never is
/// below; when it wants its own, both are whole again.
#[test]
fn of_a_reservation_only_what_is_not_used_is_lent() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(600 * MIB));
    contract.machine.reserve = Amount::Part(0);
    let mut world = World::new(contract);
    world.took(units[1], 64, 16);
    let kept = |world: &mut World, used: u64, cold: u64| {
        for _ in 0..25 {
            (world.of(units[0]).used, world.of(units[0]).cold) = (used * MIB, cold * MIB);
            let allowed = world.share(units[1]).allowed.max(660 * MIB) / MIB;
            world.thrash(units[1], allowed);
            world.look(250);
        }
        let orders = world.in_force[&units[0]];
        [orders.min, orders.high.unwrap_or(0), world.share(units[0]).lent].map(|bytes| bytes / MIB)
    };
    assert_eq!(kept(&mut world, 700, 500), [600, 600, 660]);
    // What it uses is taken 4 MiB higher than it is.
    assert_eq!(kept(&mut world, 300, 0), [304, 304, 956]);
    world.thrash(units[0], 304);
    world.look(20);
    assert_eq!(
        (world.in_force[&units[0]].min, world.in_force[&units[0]].high),
        (600 * MIB, Some(1_260 * MIB))
    );
}

/// A page more or less, or a little in what others hold, changes no order.
#[test]
fn small_movements_are_no_reason_for_orders() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.of(units[0]).used = 100 * MIB;
    world.took(units[1], 64, 16);
    for _ in 0..20 {
        let allowed = world.share(UnitId(3)).allowed.max(600 * MIB) / MIB;
        world.thrash(units[1], allowed);
        world.look(250);
    }
    for i in 0..20 {
        world.of(units[0]).used = 100 * MIB + (i % 3) * MIB;
        world.facts.kernel = 100 * MIB + (i % 4) * MIB;
        world.thrash(units[1], world.share(UnitId(3)).allowed / MIB);
        let steps = world.look(250).0;
        assert!(i < 2 || steps.is_empty(), "look {i}: {steps:?}");
    }
}

/// What is not observed stays as it is; what cannot be held any more, or must not be, is let go.
#[test]
fn nothing_is_held_that_should_not_be() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.look(0);
    assert_eq!(world.look_at(250, None), (vec![], None));
    assert_eq!(world.in_force.len(), 2);
    world.present[units[0].index()] = false;
    let (steps, _) = world.look(250);
    assert!(steps.contains(&Step {
        action: MemoryOrder::Allow { unit: units[0], bytes: None },
        reason: Reason::NobodyThere
    }));
    assert_eq!(world.share(units[1]).entitled, 1_920 * MIB, "who is away is entitled to nothing");
    world.means = MemoryMeans::NONE;
    world.look_at(250, None);
    assert!(world.in_force.is_empty());
    world.means = MEMORY;
    world.look(250);
    world.contract.machine.scheme = Scheme::Smp;
    world.look(250);
    assert!(world.in_force.is_empty());
}

/// What a unit has packed is used by it, and no bound and no guarantee of the kernel counts it: they are so much less.
#[test]
fn what_is_packed_comes_off_what_is_charged() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 500 * MIB;
    world.looks(2);
    let high = |world: &World| world.in_force[&units[0]].high.map(|bytes| bytes / MIB);
    assert_eq!(high(&world), Some(960));
    world.of(units[0]).packed = 100 * MIB - 1_000;
    let (steps, _) = world.look(250);
    assert_eq!((high(&world), world.share(units[0]).allowed / MIB), (Some(860), 960));
    assert!(
        steps.iter().any(|step| matches!(
            step.action,
            MemoryOrder::Guarantee { unit, low, .. } if unit == units[0] && low == 860 * MIB
        )),
        "{steps:?}"
    );
    // A few pages more change nothing.
    world.of(units[0]).packed = 103 * MIB;
    assert_eq!(world.look(250).0, []);
}
