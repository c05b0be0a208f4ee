//! Seats on machines of 512 and 4,096 CPUs, on uneven machines, and under CPU hotplug: no thread lacks a seat
//! while one is free.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Placement, UnitId};
use commonhold_machine::{CpuSet, Machine};
use proptest::prelude::*;

use super::tests::World;
use super::{Seating, needs_seat};
use crate::plan::SeatOrder;
use crate::snapshot::{JobFacts, JobId, ThreadFacts, ThreadId};
use crate::time::MS;

/// 64 pools of 8 in 4 sockets, and 512 pools of 8 in 64 nodes.
const LARGE: [&str; 2] =
    ["sockets:4 nodes:16 cpus:32 caches:4 memory:1GiB", "sockets:8 nodes:64 cpus:64 caches:8 memory:1GiB"];

#[derive(Debug, Clone)]
enum Event {
    /// This many threads of a job come at once, in unit 2 or 3.
    Come(u32, usize),
    End(u32),
    /// The job's threads fall asleep, or wake.
    Rest(u32),
    Wait(u64),
    /// CPUs go offline: a range, or every n-th. Or all come back.
    Lose(u32, u32),
    LoseEach(u32),
    AllCome,
}

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let job = 0u32..12;
    let event = prop_oneof![
        6 => (job.clone(), 1..=most).prop_map(|(job, threads)| Event::Come(job, threads)),
        2 => job.clone().prop_map(Event::End),
        1 => job.prop_map(Event::Rest),
        1 => (1u64..3_000).prop_map(Event::Wait),
        1 => (0u32..4_096, 1u32..600).prop_map(|(from, count)| Event::Lose(from, count)),
        1 => (2u32..9).prop_map(Event::LoseEach),
        2 => Just(Event::AllCome),
    ];
    prop::collection::vec(event, 1..20)
}

/// Adds threads to a job, all at once.
fn come(world: &mut World, job: u32, threads: usize) {
    let facts = world.jobs.entry(job).or_insert_with(|| JobFacts {
        job: JobId(job),
        name: String::new(),
        unit: UnitId(2 + job % 2),
        threads: Vec::new(),
        memory: None,
        shared: None,
    });
    for _ in 0..threads {
        let thread = ThreadId(u64::from(job) * 100_000 + facts.threads.len() as u64);
        facts.threads.push(ThreadFacts { thread, wants: true, cpu: Some(0), tied: None });
    }
    world.step();
}

fn play(world: &mut World, whole: &Machine, event: &Event) {
    match *event {
        Event::Come(job, threads) => come(world, job, threads),
        Event::End(job) => world.end(job),
        Event::Rest(job) => {
            if let Some(facts) = world.jobs.get_mut(&job) {
                facts.threads.iter_mut().for_each(|thread| thread.wants = !thread.wants);
            }
            world.step();
        }
        Event::Wait(ms) => {
            world.now += ms * MS;
            world.step();
        }
        Event::Lose(from, count) => lose(world, |cpu| cpu != 1 && (from..from + count).contains(&cpu)),
        Event::LoseEach(part) => lose(world, |cpu| cpu.is_multiple_of(part)),
        Event::AllCome => {
            world.machine = whole.clone();
            world.step();
        }
    }
}

fn lose(world: &mut World, gone: impl Fn(u32) -> bool) {
    world.machine.cpus.retain(|cpu| !gone(cpu.id));
    world.step();
}

/// The numbers of a unit's threads with a seat, and of awake ones without.
fn count(state: &Seating, unit: Option<UnitId>, now: u64) -> (usize, usize) {
    let jobs = state.jobs.values().filter(|job| unit.is_none_or(|unit| job.unit == unit));
    let threads: Vec<_> = jobs.flat_map(|job| job.threads.values()).collect();
    let sit = threads.iter().filter(|thread| thread.seat.is_some()).count();
    let stand =
        threads.iter().filter(|thread| thread.seat.is_none() && needs_seat(thread, now, false)).count();
    (sit, stand)
}

/// Invariants after each step: no pool is overfull, and no awake thread lacks a seat while its unit has a
/// free one.
fn holds(world: &World) -> Result<(), String> {
    let now = world.now - world.step_ns;
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let threads = world.state.jobs.values().flat_map(|job| job.threads.values());
    for pool in threads.filter_map(|thread| thread.seat) {
        *taken.entry(pool).or_default() += 1;
    }
    for (pool, taken) in taken {
        let there = world.pool_cache.pools.pools.get(pool).map_or(0, |pool| pool.cpus.len());
        if taken > there {
            return Err(format!("{taken} threads sit in pool {pool}, which has {there} CPUs"));
        }
    }
    let there: CpuSet = world.machine.cpus.iter().map(|cpu| cpu.id).collect();
    let units: Vec<(Option<UnitId>, usize)> = match &world.held {
        None => vec![(None, there.len())],
        Some(held) => held.iter().map(|(unit, own)| (Some(*unit), own.intersection(&there).len())).collect(),
    };
    for (unit, seats) in units {
        let (sit, stand) = count(&world.state, unit, now);
        if stand > 0 && sit < seats {
            return Err(format!("{stand} threads of {unit:?} stand, and {sit} sit on {seats} CPUs"));
        }
    }
    for order in &world.orders {
        let SeatOrder::Seat { cpus: Some(cpus), thread, .. } = &order.action else { continue };
        if cpus.is_empty() || !cpus.difference(&there).is_empty() {
            return Err(format!("thread {} is restricted to cpus {cpus}", thread.0));
        }
    }
    Ok(())
}

fn history(
    shape: &str,
    placement: usize,
    repartition: bool,
    held: Option<u32>,
    events: &[Event],
) -> Result<(), String> {
    let mut world = World::new(shape, Placement::ALL[placement]);
    world.contract.machine.repartition = repartition;
    let whole = world.machine.clone();
    let all = u32::try_from(whole.cpus.len()).unwrap();
    // One unit has less than a pool, or parts of several; the other has the rest.
    world.held = held.map(|own| {
        let first: CpuSet = (0..all).filter(|cpu| cpu % all.div_ceil(own) == 1).collect();
        let rest = (0..all).filter(|cpu| !first.contains(*cpu)).collect();
        [(UnitId(2), first), (UnitId(3), rest)].into()
    });
    for (at, event) in events.iter().enumerate() {
        play(&mut world, &whole, event);
        holds(&world).map_err(|wrong| format!("after event {at}, {event:?}: {wrong}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_thread_lacks_a_seat_on_512_cpus(
        events in events(200), placement in 0usize..5, repartition: bool, held in prop::option::of(1u32..40),
    ) {
        let found = history(LARGE[0], placement, repartition, held, &events);
        prop_assert!(found.is_ok(), "{found:?}");
    }

    /// Nodes of 3, 8 and 21 CPUs.
    #[test]
    fn no_thread_lacks_a_seat_on_an_uneven_machine(
        events in events(20), placement in 0usize..5, repartition: bool, held in prop::option::of(1u32..9),
    ) {
        let mut events = events;
        // Two of three nodes of 21 lose most of their CPUs.
        events.insert(0, Event::Lose(24, 18));
        events.insert(1, Event::Lose(50, 13));
        events.retain(|event| !matches!(event, Event::AllCome));
        let found = history("nodes:3 cpus:21 memory:1GiB", placement, repartition, held, &events);
        prop_assert!(found.is_ok(), "{found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn no_thread_lacks_a_seat_on_4096_cpus(
        events in events(1_200), placement in 0usize..5, held in prop::option::of(1u32..40),
    ) {
        let found = history(LARGE[1], placement, false, held, &events);
        prop_assert!(found.is_ok(), "{found:?}");
    }
}

/// The CPUs of the first pool go offline, which renumbers the pools: threads elsewhere stay, without new
/// orders.
#[test]
fn threads_stay_when_other_cpus_go_offline() {
    let mut world = World::new("nodes:4 cpus:2 memory:1GiB", Placement::WorstFit);
    for job in 0..4 {
        world.grow(job, 2);
    }
    assert_eq!(world.seen(), "aa bb cc dd");
    lose(&mut world, |cpu| cpu < 2);
    assert_eq!(world.seen(), "bb cc dd");
    let ordered: BTreeSet<u32> = world
        .orders
        .iter()
        .map(|step| match &step.action {
            SeatOrder::Seat { job, .. } | SeatOrder::Bring { job, .. } => job.0,
        })
        .collect();
    assert_eq!(ordered, [0].into());
    // They come back as pool 0, and the threads without a seat get one there.
    world.machine = Machine::synthetic("nodes:4 cpus:2 memory:1GiB").unwrap();
    world.step();
    assert_eq!(world.seen(), "aa bb cc dd");
}
