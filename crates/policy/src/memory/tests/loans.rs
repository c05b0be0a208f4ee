use super::*;

/// Of 1,920 MiB, u0 uses 60 of its 960; u1 thrashes with clean file pages. Less the reserve of 8 % of 2,048,
/// 736 may be lent, 120 at a sample. Then u0 is short: it has its entitlement at once, and u1 owes.
#[test]
fn a_loan_grows_and_is_called_back_at_once() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    world.thrash(units[1], 960);
    world.took(units[1], 64, 16);
    let mut shares = Vec::new();
    for _ in 0..20 {
        let allowed = shares.get(3).map_or(960, |share: &Share| share.allowed / MIB);
        world.thrash(units[1], allowed);
        shares = world.samples(1);
    }
    // u0's use counts as a little more than it is.
    let (lent, borrowed) = (shares[2].lent / MIB, shares[3].borrowed / MIB);
    assert!(lent == borrowed && (728..=736).contains(&lent), "{lent} and {borrowed}");
    let (_, plan) = world.sample(250);
    assert_eq!(plan.map(|plan| plan.watch), Some(vec![units[0]]));

    let all = shares[2].allowed;
    let memory = world.memory(units[0]);
    (memory.used, memory.anonymous, memory.refused) = (all, all, 1);
    let (steps, plan) = world.sample(10);
    assert_eq!((bound(&steps, units[0]), bound(&steps, units[1])), (Some(960), Some(960)));
    let reclaim = steps.iter().find(|step| matches!(step.action, MemoryOrder::Reclaim { .. }));
    let owed = lent - 8;
    assert!(
        matches!(reclaim, Some(Step { action: MemoryOrder::Reclaim { unit, bytes, .. }, reason: Reason::Owes { .. } })
            if *unit == units[1] && *bytes >= owed * MIB),
        "{steps:?}"
    );
    // The next sample comes soon, to see whether that was reclaimed.
    assert!(plan.is_some_and(|plan| plan.next == world.now + DEBT_SAMPLE_NS && plan.units[3].called_back));
    // The order is repeated after a while if the unit still owes, not at every sample.
    let reclaims = |steps: &[Step<MemoryOrder>]| {
        steps.iter().filter(|s| matches!(s.action, MemoryOrder::Reclaim { .. })).count()
    };
    let (steps, plan) = world.sample(20);
    assert_eq!((reclaims(&steps), plan.map(|plan| plan.next)), (0, Some(world.now + DEBT_SAMPLE_NS)));
    assert_eq!(reclaims(&world.sample(240).0), 1);
    world.memory(units[1]).used = 960 * MIB;
    let (steps, plan) = world.sample(20);
    assert!(!steps.iter().any(|step| matches!(step.action, MemoryOrder::Reclaim { .. })), "{steps:?}");
    assert!(plan.is_some_and(|plan| !plan.units[3].called_back));
}

/// Without swap, nothing is lent against anonymous pages; with swap, as much as can be written in time.
#[test]
fn memory_that_could_not_be_called_back_in_time_is_not_lent() {
    for (swap, at_most) in [(0, 0), (4_096, 32)] {
        let (contract, units) = equals(2);
        let mut world = World::new(contract);
        world.facts.swap_free = swap * MIB;
        for _ in 0..20 {
            world.thrash(units[1], 960);
            let memory = world.memory(units[1]);
            memory.anonymous = memory.used;
            let shares = world.samples(1);
            assert!(shares[3].borrowed <= at_most * MIB, "{shares:?}");
        }
        assert_eq!(world.share(UnitId(3)).borrowed > 0, swap > 0);
    }
}

/// u0 uses all its 960 MiB, and 500 of them are cold: they are lent. It misses them, so its cold pages count
/// as warm for a while.
#[test]
fn cold_pages_that_were_missed_count_as_warm_for_a_while() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    (world.memory(units[0]).used, world.memory(units[0]).cold) = (960 * MIB, 500 * MIB);
    world.took(units[1], 64, 16);
    let lent = |world: &mut World| {
        let allowed = world.share(UnitId(3)).allowed.max(960 * MIB) / MIB;
        world.thrash(units[1], allowed);
        world.samples(1)[2].lent / MIB
    };
    let most = (0..20).map(|_| lent(&mut world)).last();
    assert!(most.is_some_and(|most| (320..=337).contains(&most)), "{most:?}");
    world.thrash(units[0], 640);
    assert_eq!(lent(&mut world), 0);
    (world.memory(units[0]).used, world.memory(units[0]).cold) = (960 * MIB, 500 * MIB);
    assert_eq!((0..20).map(|_| lent(&mut world)).max(), Some(0));
    world.now += DOUBT_NS;
    assert!((0..20).any(|_| lent(&mut world) > 0));
}

#[test]
fn a_unit_is_short_at_its_bound_and_under_pressure() {
    let at = |used: u64| UnitMemory { used: used * MIB, ..UnitMemory::default() };
    let share = Share { allowed: 960 * MIB, ..Share::default() };
    let before = UnitRecord { facts: at(960), known: true, share, ..UnitRecord::default() };
    let short = |now: UnitMemory| before.is_short(now, 1_000 * MS, 512 << 10);
    assert!(!short(at(960)));
    assert!(short(UnitMemory { refaulted: MIB, ..at(960) }));
    assert!(
        short(UnitMemory { stalled_ns: 51 * MS, ..at(960) })
            && !short(UnitMemory { stalled_ns: 50 * MS, ..at(960) })
    );
    assert!(short(UnitMemory { anonymous: MIB, ..at(960) }));
    // Away from its bound, only if it was held there since the last sample.
    assert!(!short(UnitMemory { refaulted: MIB, ..at(900) }));
    assert!(short(UnitMemory { refaulted: MIB, refused: 1, ..at(900) }));
    assert!(!UnitRecord { known: false, ..before }.is_short(
        UnitMemory { refaulted: MIB, ..at(960) },
        1,
        512 << 10
    ));
}

#[test]
fn doubt_lasts_twice_as_long_each_time_until_it_is_forgotten() {
    let share = Share { lent: MIB, ..Share::default() };
    let mut unit = UnitRecord { share, ..UnitRecord::default() };
    let missed = UnitMemory { refaulted: MIB, ..UnitMemory::default() };
    let mut doubted = |now: Time, short: bool| {
        unit.update_doubt(now, short, missed, 512 << 10);
        unit.doubted_until.saturating_sub(now)
    };
    assert_eq!(doubted(0, false), 0);
    assert_eq!(doubted(0, true), DOUBT_NS);
    assert_eq!(doubted(DOUBT_NS, true), 2 * DOUBT_NS);
    assert_eq!(doubted(4 * DOUBT_NS, true), 4 * DOUBT_NS);
    let most = (0..10).map(|_| doubted(8 * DOUBT_NS, true)).last();
    assert_eq!(most, Some(DOUBT_NS_MAX));
    assert_eq!(doubted(9 * DOUBT_NS + 2 * DOUBT_NS_MAX, true), DOUBT_NS);
}

/// A loan begins small. Of a second, 208 ms pass until a sample and 40 until the last one; three quarters of
/// the rest at 128 MiB/s are 72 MiB. What a trial reclaims shows the rate, and the loan follows: 64 MiB in
/// 320 ms allow 112 MiB.
#[test]
fn a_loan_grows_when_its_rate_was_measured() {
    let (mut contract, units) = equals(2);
    contract.machine.call_back_memory_grows = Growth::default();
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    let trials = |world: &mut World, samples: u32| {
        let mut trials = Vec::new();
        for _ in 0..samples {
            world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
            let allowed = world.share(units[1]).allowed;
            for step in world.sample(250).0 {
                if let (MemoryOrder::Allow { unit, bytes: Some(bytes) }, Reason::OnTrial) =
                    (step.action, step.reason)
                {
                    assert_eq!(unit, units[1]);
                    trials.push((allowed - bytes) / MIB);
                }
            }
        }
        trials
    };
    // Each comes twice as long after the last: within 22 samples of 250 ms, at 0, 0.5, 1.5 and 3.5 s, each a
    // sample later.
    assert_eq!(trials(&mut world, 22), [32; 4]);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((71..=72).contains(&borrowed), "{borrowed}");
    world.took(units[1], 64, 320);
    trials(&mut world, 5);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((111..=113).contains(&borrowed), "{borrowed}");
    // A unit that is no longer short is not put on trial, however long ago the last trial was.
    world.now += 100_000 * MS;
    assert!(world.sample(250).0.iter().all(|step| step.reason != Reason::OnTrial));
    world.took(units[1], 64, 3_200);
    trials(&mut world, 5);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((61..=63).contains(&borrowed), "on a slower machine: {borrowed}");
}

#[test]
fn a_unit_that_is_short_learns_why_it_may_not_use_more() {
    let reasons =
        [Because::BorrowsInTime, Because::Borrows, Because::BorrowsFirst, Because::Limit, Because::Entitled];
    let (nothing, limit) = (Some(NoMore::NothingIdle), Some(NoMore::Limit));
    let in_time = Some(NoMore::InTime);
    assert_eq!(reasons.map(|because| no_more(because, true)), [in_time, nothing, nothing, limit, None]);
    // A loan that may still grow is not final.
    assert_eq!(reasons.map(|because| no_more(because, false)), [in_time, None, None, limit, None]);
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    for _ in 0..20 {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.sample(250);
    }
    assert_eq!((world.share(units[0]).no_more, world.share(units[1]).no_more), (None, in_time));
}

/// Cold memory that is lent is reclaimed from its owner, if the backend can do that. For the owner this is no
/// call-back.
#[test]
fn lent_cold_memory_is_reclaimed_from_its_owner() {
    for reclaim in [true, false] {
        let (contract, units) = equals(2);
        let mut world = World::new(contract);
        world.means.reclaim = reclaim;
        (world.memory(units[0]).used, world.memory(units[0]).cold) = (960 * MIB, 500 * MIB);
        world.took(units[1], 64, 16);
        let mut reclaimed = false;
        for _ in 0..10 {
            world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
            reclaimed |= world.sample(250).0.iter().any(|step| {
                matches!(step.action, MemoryOrder::Reclaim { unit, .. } if unit == units[0])
                    && matches!(step.reason, Reason::Owes { .. })
            });
            assert!(!world.share(units[0]).called_back);
        }
        assert!(reclaimed == reclaim && world.share(units[0]).lent > 0);
    }
}

/// Cold anonymous memory is lent while it fits into swap, less what it takes there. Swap space counts once
/// for two lenders.
#[test]
fn cold_anonymous_memory_is_lent_while_swap_has_room() {
    let most = |swap: u64, packed_permille: u64| {
        let (contract, units) = equals(3);
        let mut world = World::new(contract);
        (world.facts.swap_free, world.facts.packed_permille) = (swap * MIB, packed_permille);
        for owner in &units[..2] {
            let memory = world.memory(*owner);
            (memory.used, memory.anonymous) = (640 * MIB, 640 * MIB);
            (memory.cold, memory.cold_anonymous) = (500 * MIB, 500 * MIB);
        }
        world.took(units[2], 64, 16);
        let shares = (0..30).map(|_| {
            world.thrash(units[2], world.share(units[2]).allowed.max(640 * MIB) / MIB);
            let shares = world.samples(1);
            (shares[2].lent + shares[3].lent) / MIB
        });
        shares.max().unwrap_or_default()
    };
    assert_eq!(most(0, 0), 0);
    // 300 MiB less the reserve of 8 % of 2 GiB; then 600 MiB, of which a quarter stays in memory.
    assert!((134..=137).contains(&most(300, 0)), "{}", most(300, 0));
    assert!((284..=287).contains(&most(600, 250)), "{}", most(600, 250));
}

/// While a unit owes, no trial begins with another unit that borrows all that its rate permits.
#[test]
fn no_trial_begins_while_a_unit_owes() {
    let (mut contract, units) = equals(3);
    contract.machine.call_back_memory_grows = Growth::default();
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    // Both borrow all that their rates permit; the second may use more than it is allowed.
    let press = |world: &mut World, beyond: u64| {
        for (unit, more) in [(units[1], 0), (units[2], beyond)] {
            let allowed = world.share(unit).allowed.max(640 * MIB) / MIB;
            world.thrash(unit, allowed + more);
        }
        // A trial is due at every sample, and reclaim is ordered again.
        world.now += 64_000 * MS;
        let steps = world.sample(250).0;
        let ordered = |is_reason: fn(&Reason) -> bool| steps.iter().any(|step| is_reason(&step.reason));
        let tried = ordered(|reason| *reason == Reason::OnTrial);
        (tried, ordered(|reason| matches!(reason, Reason::Owes { .. })))
    };
    assert!((0..10).any(|_| press(&mut world, 0).0), "a trial begins");
    // A limit ends the second loan, while the first goes on at its rate.
    world.contract.units[units[2].index()].limit.memory = Some(Amount::Absolute(640 * MIB));
    world.contract.units[units[2].index()].borrow.memory = false.into();
    let outcomes: Vec<(bool, bool)> = (0..3).map(|_| press(&mut world, 300)).collect();
    assert_eq!(outcomes[0], (false, true), "{outcomes:?}");
    let borrowed = world.share(units[1]).borrowed;
    assert!(borrowed > 0, "a trial of the other would have been possible");
}

/// Whether a lender with room that reads `back_mib` back at each sample is doubted then.
pub(super) fn lender(lent: u64, back_mib: &[u64], every_ms: u64) -> Vec<bool> {
    lender_of(lent * MIB, MIB, back_mib, every_ms)
}

/// The same, with `back` in units of `grain` bytes.
fn lender_of(lent: u64, grain: u64, back: &[u64], every_ms: u64) -> Vec<bool> {
    let share = Share { lent, allowed: 900 * MIB, ..Share::default() };
    let mut unit = UnitRecord { share, known: true, ..UnitRecord::default() };
    let mut now = 1_000_000 * MS;
    unit.update_doubt(now, false, unit.facts, 512 << 10);
    let doubted = back.iter().map(|back| {
        now += every_ms * MS;
        unit.facts.refaulted += back * grain;
        unit.update_doubt(now, false, unit.facts, 512 << 10);
        now < unit.doubted_until
    });
    doubted.collect()
}

/// 600 MiB are lent. At 2 MiB a second all would be read back within five minutes; at a MiB in two seconds it
/// would not. Pages read back during the ten seconds of doubt were taken before, and do not count.
#[test]
fn pages_that_are_read_back_were_not_cold() {
    assert_eq!(lender(600, &[2, 2, 0], 1_000), [false, true, true]);
    assert_eq!(lender(600, &[1, 0, 1, 0, 1, 0], 1_000), [false; 6]);
    let back: Vec<u64> = [9; 11].into_iter().chain([0; 9]).collect();
    let doubted = lender(600, &back, 1_000);
    assert_eq!(doubted.iter().filter(|doubted| **doubted).count(), 10, "{doubted:?}");
    // A few pages do not count, however little is lent. A unit that lends nothing did not lose them by
    // lending.
    assert_eq!(lender(0, &[0], 2_000), [false]);
    assert_eq!(lender_of(MIB, 1_000_000, &[1, 0, 1], 2_000), [false; 3]);
    assert_eq!(lender_of(MIB, 1_000_000, &[2, 0, 0], 2_000), [true; 3]);
    assert_eq!(lender(0, &[90, 90, 90], 2_000), [false; 3]);
}

#[test]
fn a_reload_keeps_orders_in_force() {
    let (contract, _) = equals(2);
    let mut world = World::new(contract.clone());
    world.sample(0);
    let mut again = contract.clone();
    again.adopt(&contract, true);
    world.contract = again;
    assert_eq!(world.sample(250).0, []);
}

/// Loans grow once a period (208 ms here), or a little sooner ([`EARLY_NS`]), however many samples come in
/// between.
#[test]
fn loans_grow_once_a_period() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    world.took(units[1], 64, 16);
    let borrowed = |world: &mut World, after_ms: u64| {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.sample(after_ms);
        world.share(units[1]).borrowed / MIB
    };
    let first = (0..10).map(|_| borrowed(&mut world, 250)).find(|borrowed| *borrowed > 0);
    assert_eq!(first, Some(120));
    assert_eq!([20, 20, 142, 1].map(|ms| borrowed(&mut world, ms)), [120, 120, 120, 240]);
}

/// A reload removes a unit that borrows. At the next sample, between two periods, its loan has ended, and the
/// lender has its whole entitlement.
#[test]
fn a_unit_that_a_reload_removed_borrows_nothing() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.memory(units[0]).used = 60 * MIB;
    world.took(units[1], 64, 16);
    for _ in 0..10 {
        world.thrash(units[1], world.share(units[1]).allowed.max(640 * MIB) / MIB);
        world.sample(250);
    }
    assert!(world.share(units[1]).borrowed > 0);
    world.contract.vacant.insert(units[1]);
    world.present[units[1].index()] = false;
    *world.memory(units[1]) = UnitMemory::default();
    world.sample(20);
    let left = [0, 1].map(|n| (world.share(units[n]).lent, world.share(units[n]).borrowed));
    assert_eq!(left, [(0, 0); 2]);
}
