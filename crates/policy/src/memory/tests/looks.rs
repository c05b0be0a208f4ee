use super::*;

/// While nobody is near a bound and nobody lends, a look a second does. Not where nothing tells that somebody meets its bound;
/// who is far from it is waited for, also while another one is near.
#[test]
fn where_nobody_is_near_a_bound_looks_are_few() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut looks = |used: u64, alarms: bool| {
        world.of(units[1]).used = used * MIB;
        world.means.alarms = alarms;
        let plan = world.look(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(looks(840, true), Some((1_040, 2)));
    assert_eq!(looks(840, false), Some((208, 2)));
    assert_eq!(looks(841, true), Some((208, 1)));
    assert_eq!(looks(100, true), Some((1_040, 2)));
}

/// What a unit's last process left behind keeps nobody from resting.
#[test]
fn who_is_gone_is_near_no_bound() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 100 * MIB;
    world.of(units[1]).used = MIB;
    let mut looks = |there: bool| {
        world.present[units[1].index()] = there;
        let plan = world.look(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(looks(false), Some((1_040, 2)));
    for _ in 0..frames::CALM_LOOKS {
        assert_eq!(looks(true), Some((1_040, 2)));
    }
    // The other one is calm, and lends it what is left.
    for _ in 0..20 {
        assert_eq!(looks(false), Some((1_040, 2)));
    }
    assert_eq!(world.share(units[1]).borrowed, MIB);
}

/// A lender is looked at within a quarter of what was promised; otherwise a look is as long after the last as units make it.
#[test]
fn who_lends_is_looked_at_in_time() {
    let (mut contract, units) = equals(2);
    contract.machine.call_back_memory_ns = 200 * MS;
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    let next = |world: &mut World| {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.look(250).1.map(|plan| plan.next - world.now)
    };
    assert_eq!(next(&mut world), Some(208 * MS));
    let after: Vec<Option<Time>> = (0..20).map(|_| next(&mut world)).collect();
    assert!(world.share(units[0]).lent > 0);
    // Or sooner, while its borrower is on trial.
    assert!(after[5..].iter().all(|next| [Some(50 * MS), Some(20 * MS)].contains(next)), "{after:?}");
    assert_eq!(after.last(), Some(&Some(50 * MS)));
}
