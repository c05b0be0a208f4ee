//! Home CPUs by pool: the properties that `partition`, `free` and `pool_fit` claim.

use alloc::format;
use alloc::string::String;

use commonhold_contract::PoolForm;
use proptest::prelude::*;

use super::*;

/// A machine and its owners. Units are a, b, c and so on; the common unit is `-`, and free CPUs are `.`.
struct World {
    machine: Machine,
    form: PoolForm,
    homes: Owners,
}

impl World {
    fn new(text: &str) -> World {
        let machine = Machine::synthetic(text).unwrap();
        World { machine, form: PoolForm::Auto, homes: Owners::new() }
    }

    fn pools(&self) -> Pools {
        crate::pools(&self.machine, self.form)
    }

    /// Assigns this many CPUs to each unit, and `common` to the common unit.
    fn deal(&mut self, units: &[usize], common: usize) -> String {
        let claim =
            |(count, unit): (&usize, u32)| Claim { unit: UnitId(unit), micro: *count as u64 * MILLIONTH };
        let mut claims: Vec<Claim> =
            units.iter().zip(2u32..).map(claim).filter(|claim| claim.micro > 0).collect();
        if common > 0 {
            claims.insert(0, claim((&common, UnitId::SHARED.0)));
        }
        self.homes = homes(&self.machine, &self.pools(), &claims, &self.homes);
        self.shown()
    }

    /// The owners of CPUs, pool by pool.
    fn shown(&self) -> String {
        let owner = |cpu: &u32| match self.homes.get(cpu) {
            None => '.',
            Some(&UnitId::SHARED) => '-',
            Some(unit) => char::from_u32(u32::from(b'a') + unit.0 - 2).unwrap_or('?'),
        };
        let pools = self.pools();
        let pools = pools.pools.iter().map(|pool| pool.cpus.iter().map(owner).collect::<String>());
        pools.collect::<Vec<_>>().join(" ")
    }

    fn lose(&mut self, cpus: impl Fn(u32) -> bool) {
        self.machine.cpus.retain(|cpu| !cpus(cpu.id));
    }
}

/// The example of `pool_fit`: pools of 8, 8 and 4 CPUs. The first unit of 6 gets the pool in the tightest
/// socket.
#[test]
fn a_unit_starts_in_the_smallest_unused_pool_that_holds_it() {
    let mut world = World::new("nodes:3 cpus:8");
    world.lose(|cpu| cpu >= 20);
    assert_eq!(world.deal(&[0, 0, 3, 0], 0), "........ ........ ccc.");
    assert_eq!(world.deal(&[6, 0, 3, 0], 0), "aaaaaa.. ........ ccc.");
    assert_eq!(world.deal(&[6, 6, 3, 0], 0), "aaaaaa.. bbbbbb.. ccc.");
    assert_eq!(world.deal(&[6, 6, 3, 1], 0), "aaaaaa.. bbbbbb.. cccd");
}

/// Four units of 2 on two pools of 8 lie two and two. A fifth makes three in the first; so a sixth is in the
/// second.
#[test]
fn a_pool_is_shared_with_as_few_as_possible() {
    let mut world = World::new("nodes:2 cpus:8");
    assert_eq!(world.deal(&[2, 2], 0), "aa...... bb......");
    assert_eq!(world.deal(&[2, 2, 1], 0), "aac..... bb......");
    assert_eq!(world.deal(&[2, 2, 1, 4], 0), "aac..... bbdddd..");
    // Two units in each. Best fit puts one of 1 into the second; only the first holds one of 3.
    assert_eq!(world.deal(&[2, 2, 1, 4, 1], 0), "aac..... bbdddde.");
    assert_eq!(world.deal(&[2, 2, 1, 4, 1, 3], 0), "aacfff.. bbdddde.");
}

/// Two sockets of two pools of 4. A unit of 8 gets a whole socket, though a pool of the other is unused. One
/// of 5 gets the remaining whole pool, and its rest joins the unit of 3: no other pool is broken up.
#[test]
fn a_large_unit_gets_adjacent_pools_and_a_part_of_a_used_one() {
    let mut world = World::new("nodes:4 cpus:4 sockets:2");
    world.form = PoolForm::Node;
    assert_eq!(world.deal(&[3], 0), "aaa. .... .... ....");
    assert_eq!(world.deal(&[3, 8], 0), "aaa. .... bbbb bbbb");
    assert_eq!(world.deal(&[3, 8, 5], 0), "aaac cccc bbbb bbbb");
    // In one socket, too, the rest starts no pool: it joins the pool of a.
    let mut world = World::new("nodes:4 cpus:4 sockets:1");
    world.form = PoolForm::Node;
    assert_eq!(world.deal(&[3], 0), "aaa. .... .... ....");
    assert_eq!(world.deal(&[3, 5], 0), "aaab bbbb .... ....");
}

/// Pools of 8, 4 and 2. The rest of the second unit of 5 joins the pool with more free CPUs, and starts no
/// pool.
#[test]
fn a_remainder_opens_no_unused_pool() {
    let mut world = World::new("nodes:3 cpus:8 sockets:1");
    world.form = PoolForm::Node;
    world.lose(|cpu| (12..16).contains(&cpu) || cpu >= 18);
    assert_eq!(world.deal(&[5, 5], 0), "aaaaab.. bbbb ..");
}

/// One socket is unused, the other has one unused pool. A unit that fits there leaves the first socket whole.
#[test]
fn a_unit_begins_in_the_socket_that_it_fits_best() {
    let mut world = World::new("nodes:4 cpus:4 sockets:2");
    world.form = PoolForm::Node;
    assert_eq!(world.deal(&[4, 4, 3], 0), "aaaa bbbb ccc. ....");
    assert_eq!(world.deal(&[0, 0, 3, 3], 0), ".... .... ccc. ddd.");
    assert_eq!(world.deal(&[0, 0, 3, 3, 8], 0), "eeee eeee ccc. ddd.");
}

/// A unit of 4 grows by 5: by an unused pool, though in the other socket, and by 1 in a used one.
#[test]
fn a_growing_unit_takes_an_unused_pool() {
    let mut world = World::new("nodes:4 cpus:4 sockets:2");
    world.form = PoolForm::Node;
    assert_eq!(world.deal(&[4, 2], 0), "aaaa bb.. .... ....");
    assert_eq!(world.deal(&[9, 2], 0), "aaaa bba. aaaa ....");
}

/// A unit of 2 grows by 2, and a new one of 2 comes: of two pools with enough free CPUs, it gets the one
/// where no unit grows.
#[test]
fn growing_units_come_before_new_ones() {
    let mut world = World::new("nodes:2 cpus:4");
    assert_eq!(world.deal(&[0, 2, 2], 0), "bb.. cc..");
    assert_eq!(world.deal(&[2, 4, 2], 0), "bbbb ccaa");
}

/// A unit of 8 has two pools with interleaved CPU numbers. Halved, it keeps one of them, and not half of
/// each.
#[test]
fn a_shrinking_unit_leaves_whole_pools() {
    let mut world = World::new("cpus:8 caches:2");
    for cpu in &mut world.machine.cpus {
        cpu.cache = cpu.id % 2;
    }
    assert_eq!(world.deal(&[8], 0), "aaaa aaaa");
    assert_eq!(world.deal(&[4], 0), "aaaa ....");
}

/// Units come one by one, and the common unit shrinks: each unit still gets a pool of its own. While the
/// common unit does not shrink, it does not move.
#[test]
fn the_common_units_cpus_block_no_unit() {
    let mut world = World::new("nodes:4 cpus:4");
    assert_eq!(world.deal(&[], 16), "---- ---- ---- ----");
    assert_eq!(world.deal(&[2], 14), "aa-- ---- ---- ----");
    assert_eq!(world.deal(&[2, 2], 12), "aa-- bb-- ---- ----");
    assert_eq!(world.deal(&[2, 2, 5], 7), "aac- bb-- cccc ----");
    assert_eq!(world.deal(&[2, 1, 6], 7), "aac- bc-- cccc ----");
}

/// Nodes of two caches of four cores of two threads: within a pool, a new unit's CPUs and a growing unit's
/// are adjacent.
#[test]
fn in_a_pool_cpus_lie_together() {
    let mut world = World::new("nodes:2 cpus:16 caches:2 threads:2");
    world.form = PoolForm::Node;
    assert_eq!(world.deal(&[3], 0), "aaa............. ................");
    assert_eq!(world.deal(&[3, 4], 0), "aaa............. bbbb............");
    assert_eq!(world.deal(&[5, 4], 0), "aaaaa........... bbbb............");
}

/// CPUs of a unit go offline: it takes others, in its pool first. They come back: no unit moves.
#[test]
fn cpus_go_offline_and_come_back() {
    let mut world = World::new("nodes:2 cpus:4");
    let all = world.machine.clone();
    assert_eq!(world.deal(&[3, 2], 0), "aaa. bb..");
    world.lose(|cpu| cpu == 0 || cpu == 4);
    assert_eq!(world.deal(&[3, 2], 0), "aaa bb.");
    // A third goes offline: the rest comes from the other pool.
    world.lose(|cpu| cpu == 1);
    assert_eq!(world.deal(&[3, 2], 0), "aa bba");
    world.machine = all;
    assert_eq!(world.deal(&[3, 2], 0), "..aa .bba");
}

/// The number of pools, largest first, that hold a need.
fn fewest(mut room: Vec<usize>, mut need: usize) -> usize {
    room.sort_unstable_by_key(|room| Reverse(*room));
    let takes = room.iter().take_while(|room| {
        let goes_on = need > 0;
        need = need.saturating_sub(**room);
        goes_on
    });
    takes.count()
}

prop_compose! {
    /// A machine of uneven nodes, pools of any form, and claims at several times; some CPUs are offline at
    /// some of them.
    fn history()(
        shape in (1u32..6, 1u32..3, 1u32..4),
        form in prop_oneof![
            3 => Just(PoolForm::Auto), 1 => Just(PoolForm::Cache), 1 => Just(PoolForm::Node), 1 => Just(PoolForm::Socket),
            1 => Just(PoolForm::Machine), 1 => (1u32..7).prop_map(PoolForm::Size),
        ],
        two_sockets in any::<bool>(),
        never in proptest::collection::vec(prop::bool::weighted(0.2), 30),
        times in proptest::collection::vec(
            (proptest::collection::vec(0u64..12, 6), proptest::collection::vec(prop::bool::weighted(0.1), 30)), 1..6,
        ),
    ) -> (Machine, PoolForm, Vec<(Vec<u64>, Vec<bool>)>) {
        let (nodes, caches, cores) = shape;
        let mut machine = Machine::synthetic(&format!("nodes:{nodes} caches:{caches} cpus:{}", caches * cores)).unwrap();
        machine.cpus.retain(|cpu| cpu.id == 0 || !never[cpu.id as usize]);
        if two_sockets {
            machine.cpus.iter_mut().for_each(|cpu| cpu.socket = u32::from(cpu.node > nodes / 2));
        }
        (machine, form, times)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// For any claims and hotplug: a unit has the CPUs that it is entitled to, even when pools are full, and
    /// keeps every CPU that it may keep. A new home spans as few pools as were free, the largest first: an
    /// unused pool, if one holds it.
    #[test]
    fn homes_by_pool((machine, form, times) in history()) {
        let mut before = Owners::new();
        for (weights, gone) in times {
            let mut there = machine.clone();
            there.cpus.retain(|cpu| cpu.id == 0 || !gone[cpu.id as usize]);
            let pools = crate::pools(&there, form);
            let pool_of = pools.by_cpu();
            // The first is the common unit, present at some times only.
            let entitled = crate::rights::share::split(there.cpus.len() as u64 * MILLIONTH, &weights);
            let ids = [UnitId::SHARED].into_iter().chain((2u32..).map(UnitId));
            let claims: Vec<Claim> = ids.zip(&entitled).map(|(unit, micro)| Claim { unit, micro: *micro }).collect();
            let after = homes(&there, &pools, &claims, &before);

            let held = |owners: &Owners, unit: UnitId| -> BTreeSet<u32> {
                owners.iter().filter(|(cpu, owner)| **owner == unit && pool_of.contains_key(cpu)).map(|(cpu, _)| *cpu).collect()
            };
            for claim in &claims {
                let (had, has) = (held(&before, claim.unit), held(&after, claim.unit));
                prop_assert_eq!(has.len(), claim.whole(), "{:?}", claim.unit);
                let same = before.values().filter(|unit| **unit == claim.unit).count() == claim.whole();
                if !claim.unit.is_common() || same {
                    prop_assert_eq!(had.intersection(&has).count(), claim.whole().min(had.len()), "{:?} moves", claim.unit);
                }
            }

            before = after;

            // From scratch, one after the other, so that what was free for each is known.
            let after = homes(&there, &pools, &claims, &Owners::new());
            let mut order: Vec<&Claim> = claims.iter().filter(|claim| !claim.unit.is_common()).collect();
            order.sort_by_key(|claim| (Reverse(claim.whole()), claim.unit));
            let mut room: Vec<usize> = pools.pools.iter().map(|pool| pool.cpus.len()).collect();
            let mut units = vec![0u32; room.len()];
            for claim in order.into_iter().filter(|claim| claim.whole() > 0) {
                let has = count_by(&held(&after, claim.unit).into_iter().collect::<Vec<_>>(), |cpu| pool_of[&cpu]);
                prop_assert_eq!(has.len(), fewest(room.clone(), claim.whole()), "{:?}: {:?} of {:?}", claim, has, room);
                let holding = || (0..room.len()).filter(|pool| room[*pool] >= claim.whole());
                if let Some((least, size)) = holding().map(|pool| (units[pool], room[pool])).min() {
                    let (pool, _) = has.first_key_value().unwrap();
                    prop_assert_eq!((units[*pool], room[*pool]), (least, size), "{:?} of {:?}, {:?}", claim, room, units);
                }
                for (pool, count) in has {
                    room[pool] -= count;
                    units[pool] += 1;
                }
            }
        }
    }
}
