use super::*;

/// A sample a second is enough while no unit is near its bound and none lends, if units that meet their
/// bounds raise alarms. The alarms of units far from their bounds are wanted, also while another unit is near
/// its bound.
#[test]
fn samples_are_rare_while_no_unit_is_near_its_bound() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut next = |used: u64, alarms: bool| {
        world.memory(units[1]).used = used * MIB;
        world.means.alarms = alarms;
        let plan = world.sample(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(next(840, true), Some((1_040, 2)));
    assert_eq!(next(840, false), Some((208, 2)));
    assert_eq!(next(841, true), Some((208, 1)));
    assert_eq!(next(100, true), Some((1_040, 2)));
}

/// Memory that a unit's last process left behind does not keep samples frequent.
#[test]
fn a_unit_without_processes_is_near_no_bound() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 100 * MIB;
    world.memory(units[1]).used = MIB;
    let mut next = |present: bool| {
        world.present[units[1].index()] = present;
        let plan = world.sample(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(next(false), Some((1_040, 2)));
    for _ in 0..frames::CALM_SAMPLES {
        assert_eq!(next(true), Some((1_040, 2)));
    }
    // The other unit is calm, and lends it what was left behind.
    for _ in 0..20 {
        assert_eq!(next(false), Some((1_040, 2)));
    }
    assert_eq!(world.share(units[1]).borrowed, MIB);
}

/// While a unit lends, samples are a quarter of the promised time apart; otherwise a period, which the number
/// of units sets.
#[test]
fn a_lender_is_sampled_in_time() {
    let (mut contract, units) = equals(2);
    contract.machine.call_back_memory_ns = 200 * MS;
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    let next = |world: &mut World| {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.sample(250).1.map(|plan| plan.next - world.now)
    };
    assert_eq!(next(&mut world), Some(208 * MS));
    let after: Vec<Option<Time>> = (0..20).map(|_| next(&mut world)).collect();
    assert!(world.share(units[0]).lent > 0);
    // Or sooner, while the borrower is on trial.
    assert!(after[5..].iter().all(|next| [Some(50 * MS), Some(20 * MS)].contains(next)), "{after:?}");
    assert_eq!(after.last(), Some(&Some(50 * MS)));
}
