use super::*;
use crate::plan::NodePart;
use crate::snapshot::{Means, Snapshot, ThreadFacts};
use alloc::string::String;
use commonhold_contract::{Contract, Placement};
use proptest::prelude::*;

/// Seed 001's machine without its station for the system: three stations of four CPUs.
const STATIONS: &str = "nodes:3 cpus:4 memory:1GiB";

/// Units: 2 and 3.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) contract: Contract,
    pub(super) means: Means,
    pub(super) state: Seating,
    pub(super) pool_cache: PoolCache,
    pub(super) now: Time,
    pub(super) step_ns: Time,
    pub(super) jobs: BTreeMap<u32, JobFacts>,
    pub(super) held: Option<BTreeMap<UnitId, CpuSet>>,
    pub(super) seats: Vec<Step<Seat>>,
    pub(super) orders: Vec<Step<SeatOrder>>,
}

impl World {
    pub(super) fn new(machine: &str, placement: Placement) -> World {
        let mut contract = Contract::default();
        contract.add(None, "a");
        contract.add(None, "b");
        contract.machine.placement = placement;
        contract.machine.repartition = false;
        World {
            machine: Machine::synthetic(machine).unwrap(),
            contract,
            means: Means { seats: Seats::Cpus, ..Means::NONE },
            state: Seating::default(),
            pool_cache: PoolCache::default(),
            now: 0,
            step_ns: 10 * MS,
            jobs: BTreeMap::new(),
            held: None,
            seats: Vec::new(),
            orders: Vec::new(),
        }
    }

    pub(super) fn step(&mut self) {
        let snapshot =
            Snapshot { at: self.now, jobs: self.jobs.values().cloned().collect(), ..Snapshot::default() };
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.means,
            snapshot: &snapshot,
            changes: &[],
        };
        let held = self.held.clone().map_or(HeldCpus::Shared, HeldCpus::By);
        (self.seats, self.orders) = (Vec::new(), Vec::new());
        let mut orders = SeatPlan { seats: &mut self.seats, orders: &mut self.orders };
        step(&mut self.state, &mut self.pool_cache, self.now, input, &held, &mut orders);
        self.now += self.step_ns;
    }

    /// Adds threads to a job, one at a time.
    pub(super) fn grow(&mut self, job: u32, threads: u32) {
        for _ in 0..threads {
            let new = JobFacts {
                job: JobId(job),
                name: String::new(),
                unit: UnitId(2),
                threads: Vec::new(),
                memory: None,
                shared: None,
            };
            let facts = self.jobs.entry(job).or_insert(new);
            let thread = ThreadId(u64::from(job) * 1_000 + facts.threads.len() as u64);
            facts.threads.push(ThreadFacts { thread, wants: true, cpu: None, tied: None });
            self.step();
        }
    }

    pub(super) fn end(&mut self, job: u32) {
        self.jobs.remove(&job);
        self.step();
    }

    /// One letter per thread by pool, as in the trace of figure 6, sorted within a pool.
    pub(super) fn seen(&self) -> String {
        let pools = self.pool_cache.pools.pools.iter().enumerate().map(|(at, pool)| {
            let mut text = String::new();
            for (id, job) in &self.state.jobs {
                let letter = char::from(b'a' + u8::try_from(id.0 % 26).unwrap());
                let in_pool = job.threads.values().filter(|thread| thread.seat == Some(at));
                text.extend(in_pool.map(|_| letter));
            }
            text.extend((text.len()..pool.cpus.len()).map(|_| '-'));
            text
        });
        pools.collect::<Vec<_>>().join(" ")
    }
}

/// Figure 4a: two jobs of six on three stations of four.
#[test]
fn the_figure_of_two_jobs_of_six() {
    let mut world = World::new(STATIONS, Placement::WorstFit);
    world.grow(0, 6);
    world.grow(1, 6);
    assert_eq!(world.seen(), "aaaa aabb bbbb");
    // Pools of six, as in figure 4b: each has one of its own.
    let mut world = World::new(STATIONS, Placement::WorstFit);
    world.contract.machine.pools = PoolForm::Size(6);
    world.grow(0, 6);
    world.grow(1, 6);
    assert_eq!(world.seen(), "aaaaaa bbbbbb");
}

/// Three jobs that begin at once and grow afterwards (seed 001, section 6.2).
#[test]
fn only_worst_fit_leaves_room_to_grow() {
    let three = |placement| {
        let mut world = World::new(STATIONS, placement);
        for round in 1..=4 {
            (0..3).for_each(|job| world.grow(job, 1));
            if round == 1 {
                let first = world.seen();
                (0..3).for_each(|_| world.step());
                assert_eq!(world.seen(), first);
            }
        }
        world.seen()
    };
    assert_eq!(three(Placement::WorstFit), "aaaa bbbb cccc");
    assert_eq!(three(Placement::FewestJobs), "aaaa bbbb cccc");
    assert_eq!(three(Placement::FirstFit), "aabc abbc abcc");
    assert_eq!(three(Placement::BestFit), "aabc abbc abcc");
}

#[test]
fn fits_differ_by_what_is_free() {
    // Free: 1, 3 and 2.
    let begin = |placement, at: Option<u32>| {
        let mut world = World::new(STATIONS, Placement::FirstFit);
        world.grow(0, 3);
        world.contract.machine.placement = Placement::WorstFit;
        world.grow(1, 1);
        world.grow(2, 2);
        assert_eq!(world.seen(), "aaa- b--- cc--");
        world.contract.machine.placement = placement;
        let thread = ThreadFacts { thread: ThreadId(9_000), wants: true, cpu: at, tied: None };
        world.jobs.insert(
            9,
            JobFacts {
                job: JobId(9),
                name: String::new(),
                unit: UnitId(3),
                threads: alloc::vec![thread],
                memory: None,
                shared: None,
            },
        );
        world.step();
        world.seen()
    };
    assert_eq!(begin(Placement::FirstFit, None), "aaaj b--- cc--");
    assert_eq!(begin(Placement::BestFit, None), "aaaj b--- cc--");
    assert_eq!(begin(Placement::WorstFit, None), "aaa- bj-- cc--");
    assert_eq!(begin(Placement::Near, Some(11)), "aaa- b--- ccj-");
}

/// A pool with many threads of one job has fewer jobs than one with few threads of two.
#[test]
fn jobs_are_counted_and_not_their_threads() {
    let mut world = World::new("nodes:2 cpus:6 memory:1GiB", Placement::WorstFit);
    world.grow(0, 1);
    world.grow(1, 3);
    world.contract.machine.placement = Placement::FirstFit;
    world.grow(2, 1);
    assert_eq!(world.seen(), "ac---- bbb---");
    world.contract.machine.placement = Placement::FewestJobs;
    world.grow(3, 1);
    assert_eq!(world.seen(), "ac---- bbbd--");
}

#[test]
fn a_thread_without_a_seat_runs_anywhere_in_its_unit() {
    let mut world = World::new("nodes:2 cpus:2 memory:1GiB", Placement::WorstFit);
    world.grow(0, 4);
    world.grow(1, 1);
    assert_eq!(world.seen(), "aa aa");
    assert!(world.orders.is_empty(), "{:?}", world.orders);
    // It gets a seat as soon as one is free.
    world.jobs.get_mut(&0).unwrap().threads.pop();
    world.step();
    assert_eq!(world.seen(), "aa ab");
    let gone = world.seats.iter().find(|step| step.reason == Reason::ThreadGone).unwrap();
    assert_eq!((gone.action.thread, gone.action.pool), (ThreadId(3), None));
    // The thread may live on outside the job.
    let ordered = |step: &&Step<SeatOrder>| {
        matches!(step.action, SeatOrder::Seat { thread: ThreadId(3), cpus: None, .. })
    };
    assert_eq!(world.orders.iter().filter(ordered).count(), 1, "{:?}", world.orders);
}

#[test]
fn a_sleeping_thread_gives_up_its_seat() {
    let mut world = World::new("nodes:2 cpus:2 memory:1GiB", Placement::WorstFit);
    world.grow(0, 2);
    world.jobs.get_mut(&0).unwrap().threads[1].wants = false;
    world.step();
    assert_eq!(world.seen(), "aa --");
    world.now += REST_NS;
    world.step();
    assert_eq!(world.seen(), "a- --");
    assert!(matches!(
        world.orders[0],
        Step { action: SeatOrder::Seat { cpus: None, .. }, reason: Reason::Rests }
    ));
}

/// A unit's jobs are placed on the CPUs that it holds, and on no others.
#[test]
fn units_have_boards_of_their_own() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::WorstFit);
    let held = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>();
    world.held = Some([(UnitId(2), held(&[0, 4, 5])), (UnitId(3), held(&[1, 2, 3, 6, 7]))].into());
    world.grow(0, 2);
    assert_eq!(world.seen(), "---- aa--");
    let ordered = |world: &World| world.orders.iter().map(|step| step.action.clone()).collect::<Vec<_>>();
    assert!(
        matches!(&ordered(&world)[0], SeatOrder::Seat { cpus: Some(cpus), .. } if *cpus == held(&[4, 5])),
        "{:?}",
        ordered(&world)
    );
    // The unit loses one of these CPUs: the last thread moves.
    world.held = Some([(UnitId(2), held(&[0, 4])), (UnitId(3), held(&[1, 2, 3, 5, 6, 7]))].into());
    world.step();
    assert_eq!(world.seen(), "a--- a---");
}

/// A further thread goes to the job's pool with the fewest threads (seed 001, section 6.1).
#[test]
fn a_job_grows_in_its_emptiest_pool() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::FirstFit);
    world.grow(0, 2);
    world.grow(1, 4);
    world.jobs.get_mut(&0).unwrap().threads.pop();
    world.step();
    assert_eq!(world.seen(), "abb- bb--");
    world.grow(1, 1);
    assert_eq!(world.seen(), "abb- bbb-");
}

/// Two districts of sixteen pools: jobs start in the emptier district, and stay there.
#[test]
fn districts_come_first() {
    let mut world = World::new("nodes:32 sockets:2 cpus:2 memory:1GiB", Placement::WorstFit);
    world.contract.machine.pools = PoolForm::Node;
    let pool_of = |world: &World, thread| {
        world.state.jobs.values().find_map(|job| job.threads.get(&ThreadId(thread))).unwrap().seat
    };
    world.grow(0, 2);
    assert_eq!((world.pool_cache.pools.districts.len(), pool_of(&world, 1)), (2, Some(0)));
    world.grow(1, 1);
    assert_eq!(pool_of(&world, 1_000), Some(16));
    world.grow(0, 1);
    assert_eq!(pool_of(&world, 2), Some(1));
    // A thread pinned to the other district gets its seat there.
    let threads = alloc::vec![ThreadFacts {
        thread: ThreadId(9_000),
        wants: true,
        cpu: None,
        tied: Some([63].into_iter().collect())
    }];
    world.jobs.insert(
        9,
        JobFacts { job: JobId(9), name: String::new(), unit: UnitId(2), threads, memory: None, shared: None },
    );
    world.jobs.get_mut(&0).unwrap().threads.clear();
    world.step();
    world.grow(8, 1);
    assert_eq!(pool_of(&world, 9_000), Some(31));
}

/// One thread is pinned to a CPU of the second node, and one to a CPU that others occupy.
#[test]
fn seats_respect_affinity() {
    let mut world = World::new("nodes:2 cpus:2 memory:1GiB", Placement::WorstFit);
    let tie = |world: &mut World, job: u32, cpu: u32| {
        let thread = &mut world.jobs.get_mut(&job).unwrap().threads[0];
        thread.tied = Some([cpu].into_iter().collect());
        thread.cpu = Some(cpu);
    };
    let begin = |world: &mut World, job: u32, cpu: u32| {
        let thread = ThreadId(u64::from(job) * 1_000);
        let tied = Some([cpu].into_iter().collect());
        let threads = alloc::vec![ThreadFacts { thread, wants: true, cpu: Some(cpu), tied }];
        let facts = JobFacts {
            job: JobId(job),
            name: String::new(),
            unit: UnitId(2),
            threads,
            memory: None,
            shared: None,
        };
        world.jobs.insert(job, facts);
        world.step();
    };
    begin(&mut world, 0, 3);
    assert_eq!(world.seen(), "-- a-");
    world.grow(1, 2);
    assert_eq!(world.seen(), "bb a-");
    // No seat is reserved for it where it cannot run.
    begin(&mut world, 2, 1);
    assert_eq!(world.seen(), "bb a-");
    world.grow(3, 1);
    assert_eq!(world.seen(), "bb ad");
    // Its affinity changes: it gives up its seat, and finds none in the new pool.
    tie(&mut world, 0, 0);
    world.step();
    assert_eq!(world.seen(), "bb d-");
    world.end(1);
    assert_eq!(world.seen(), "ac d-");
}

/// A thread pinned to its pool does not join the others of its job.
#[test]
fn pinned_threads_are_not_moved() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::FirstFit);
    world.grow(0, 2);
    world.grow(1, 4);
    assert_eq!(world.seen(), "aabb bb--");
    for thread in &mut world.jobs.get_mut(&1).unwrap().threads {
        thread.tied = Some(if thread.thread.0 < 1_002 { [2, 3] } else { [4, 5] }.into_iter().collect());
    }
    world.contract.machine.repartition = true;
    world.end(0);
    assert_eq!(world.seen(), "bb-- bb--");
}

/// A scattered job comes together when another ends, once it has run long enough for that to pay.
#[test]
fn a_job_that_ends_makes_room() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::FirstFit);
    world.contract.machine.repartition = true;
    world.grow(0, 2);
    world.grow(1, 4);
    assert_eq!(world.seen(), "aabb bb--");
    world.end(0);
    assert_eq!(world.seen(), "bbbb ----");
    let why = |step: &Step<Seat>| matches!(step.reason, Reason::Together { from: 1, threads: 2 });
    assert!(world.seats.iter().any(why), "{:?}", world.seats);
}

#[test]
fn two_jobs_exchange_their_places() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::FirstFit);
    for _ in 0..4 {
        world.grow(0, 1);
        world.grow(1, 1);
    }
    assert_eq!(world.seen(), "aabb aabb");
    world.contract.machine.repartition = true;
    world.step();
    assert_eq!(world.seen(), "aaaa bbbb");
    let seen = world.seen();
    world.now += 5_000 * MS;
    world.jobs.values_mut().for_each(|job| job.threads.iter_mut().for_each(|thread| thread.wants = true));
    world.step();
    assert_eq!((world.seen(), world.seats.len()), (seen, 0));
}

#[test]
fn a_short_job_is_not_moved() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::FirstFit);
    world.step_ns = MS / 10;
    world.contract.machine.repartition = true;
    world.grow(0, 2);
    world.grow(1, 3);
    world.end(0);
    assert_eq!(world.seen(), "bb-- b---");
}

#[test]
fn pages_come_after_their_threads_once() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::WorstFit);
    world.contract.machine.repartition = true;
    world.means.brings = true;
    world.grow(0, 2);
    let gib = 1 << 30;
    world.jobs.get_mut(&0).unwrap().memory = Some(alloc::vec![(0, gib), (1, gib / 10)]);
    let mut brought = 0;
    for _ in 0..100 {
        world.now += 100 * MS;
        world.step();
        let bring = world.orders.iter().filter(|step| matches!(step.action, SeatOrder::Bring { .. }));
        for step in bring {
            brought += 1;
            assert!(
                matches!(&step.action, SeatOrder::Bring { nodes, divided: false, .. } if nodes[0].node == 0 && nodes.len() == 1)
            );
            assert_eq!(step.reason, Reason::PagesApart { bytes: gib / 10 });
        }
    }
    assert_eq!(brought, 1);
}

/// The page orders of the next `looks` steps.
fn brought(world: &mut World, looks: u32) -> Vec<(Vec<NodePart>, bool, Reason)> {
    let mut all = Vec::new();
    for _ in 0..looks {
        world.now += 100 * MS;
        world.step();
        all.extend(world.orders.iter().filter_map(|step| match &step.action {
            SeatOrder::Bring { nodes, divided, .. } => Some((nodes.clone(), *divided, step.reason)),
            SeatOrder::Seat { .. } => None,
        }));
    }
    all
}

/// Six threads on stations of four: four in the parent's, which has all the memory, and two in the next.
#[test]
fn a_job_in_two_pools_has_its_pages_in_both() {
    let mut world = World::new(STATIONS, Placement::WorstFit);
    world.contract.machine.repartition = true;
    world.means.brings = true;
    world.grow(0, 6);
    assert_eq!(world.seen(), "aaaa aa-- ----");
    world.jobs.get_mut(&0).unwrap().memory = Some(alloc::vec![(0, 600 << 20)]);
    let parts = [NodePart { node: 0, part: 4_000 }, NodePart { node: 1, part: 2_000 }].to_vec();
    assert_eq!(brought(&mut world, 90), [(parts, true, Reason::PagesApart { bytes: 200 << 20 })]);
    // Divided like that, pages stay.
    world.jobs.get_mut(&0).unwrap().memory = Some(alloc::vec![(0, 400 << 20), (1, 200 << 20)]);
    assert_eq!(brought(&mut world, 200), []);
}

/// The first thread is pinned to the second node: that node comes first.
#[test]
fn the_parents_node_is_filled_first() {
    let mut world = World::new("nodes:2 cpus:2 memory:1GiB", Placement::WorstFit);
    world.contract.machine.repartition = true;
    world.means.brings = true;
    let thread = |n, tied: Option<[u32; 1]>| ThreadFacts {
        thread: ThreadId(n),
        wants: true,
        cpu: None,
        tied: tied.map(|cpus| cpus.into_iter().collect()),
    };
    let threads = alloc::vec![thread(1, Some([2])), thread(2, Some([0])), thread(3, Some([1]))];
    let facts = JobFacts {
        job: JobId(0),
        name: String::new(),
        unit: UnitId(2),
        threads,
        memory: Some(alloc::vec![(0, 1 << 30)]),
        shared: None,
    };
    world.jobs.insert(0, facts);
    let (nodes, divided, _) = brought(&mut world, 100).remove(0);
    assert_eq!(
        (nodes.iter().map(|part| (part.node, part.part)).collect::<Vec<_>>(), divided),
        ([(1, 1_000), (0, 2_000)].to_vec(), true)
    );
}

/// Pools of six become pools of four: seats follow their CPUs while there is room, and all threads get new
/// orders.
#[test]
fn seats_follow_a_change_of_the_pools_form() {
    let mut world = World::new(STATIONS, Placement::WorstFit);
    world.contract.machine.pools = PoolForm::Size(6);
    world.grow(0, 6);
    world.grow(1, 6);
    world.contract.machine.pools = PoolForm::Node;
    world.step();
    assert_eq!(world.seen(), "aaaa bbbb aabb");
    let ordered = world
        .orders
        .iter()
        .filter(|step| matches!(&step.action, SeatOrder::Seat { cpus: Some(cpus), .. } if cpus.len() == 4));
    assert_eq!(ordered.count(), 12);
    world.step();
    assert!(world.orders.is_empty() && world.seats.is_empty());
    world.contract.machine.pools = PoolForm::Machine;
    world.step();
    assert_eq!(world.seen(), "aaaaaabbbbbb");
    // The second pool of four contains the third pool of two: threads move only if they must.
    let mut world = World::new(STATIONS, Placement::WorstFit);
    (0..2).for_each(|job| world.grow(job, 2));
    assert_eq!(world.seen(), "aa-- bb-- ----");
    world.contract.machine.pools = PoolForm::Size(2);
    world.step();
    assert_eq!(world.seen(), "aa -- bb -- -- --");
}

#[test]
fn a_few_pages_apart_stay_there() {
    let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::WorstFit);
    world.contract.machine.repartition = true;
    world.means.brings = true;
    world.grow(0, 2);
    world.jobs.get_mut(&0).unwrap().memory = Some(alloc::vec![(0, 1_000_000), (1, 40_000)]);
    for _ in 0..100 {
        world.now += 100 * MS;
        world.step();
        assert!(!world.orders.iter().any(|step| matches!(step.action, SeatOrder::Bring { .. })));
    }
}

/// What may happen to jobs.
#[derive(Debug, Clone)]
enum Event {
    Grow(u32, u32),
    Shrink(u32),
    End(u32),
    Rest(u32),
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0u32..8, 1u32..6).prop_map(|(job, threads)| Event::Grow(job, threads)),
        1 => (0u32..8).prop_map(Event::Shrink),
        1 => (0u32..8).prop_map(Event::End),
        1 => (0u32..8).prop_map(Event::Rest),
        2 => (1u64..3_000).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 1..40)
}

fn play(world: &mut World, event: &Event) {
    match event {
        Event::Grow(job, threads) => world.grow(*job, *threads),
        Event::Shrink(job) => {
            if let Some(facts) = world.jobs.get_mut(job) {
                facts.threads.pop();
            }
            world.step();
        }
        Event::End(job) => world.end(*job),
        Event::Rest(job) => {
            if let Some(facts) = world.jobs.get_mut(job) {
                facts.threads.iter_mut().for_each(|thread| thread.wants = !thread.wants);
            }
            world.step();
        }
        Event::Wait(ms) => {
            world.now += ms * MS;
            world.step();
        }
    }
}

fn together(state: &Seating) -> u64 {
    let square = |job: &Job| job.spread().iter().map(|(_, count)| u64::from(*count).pow(2)).sum::<u64>();
    state.jobs.values().map(square).sum()
}

fn seats(state: &Seating) -> BTreeMap<ThreadId, PoolAt> {
    let threads = state.jobs.values().flat_map(|job| &job.threads);
    threads.filter_map(|(id, thread)| Some((*id, thread.seat?))).collect()
}

proptest! {
    /// For any distribution of pages: orders sum to all pages, name each node once, and lead to a stable
    /// distribution.
    #[test]
    fn well_placed_pages_stay(
        size in 1u32..7, threads in 1u32..13, memory in proptest::collection::vec(0u64..1 << 32, 3),
    ) {
        let mut world = World::new(STATIONS, Placement::WorstFit);
        world.contract.machine.repartition = true;
        world.contract.machine.pools = PoolForm::Size(size);
        world.means.brings = true;
        world.grow(0, threads);
        world.jobs.get_mut(&0).unwrap().memory = Some((0..).zip(memory.iter().copied()).collect());
        let all: u64 = memory.iter().sum();
        if let Some((nodes, divided, reason)) = brought(&mut world, 95).into_iter().next() {
            let Reason::PagesApart { bytes } = reason else { panic!("{reason:?}") };
            let due = NodePart::due(&nodes, all);
            prop_assert!(bytes > 0 && bytes <= all && nodes.iter().all(|part| part.part > 0));
            prop_assert_eq!(due.iter().map(|(_, pages)| pages).sum::<u64>(), all);
            let distinct: BTreeSet<u32> = nodes.iter().map(|part| part.node).collect();
            prop_assert_eq!(distinct.len(), nodes.len());
            // The parent sits in the first pool, so its node comes first.
            prop_assert_eq!((nodes[0].node, divided), (0, threads > size));
            world.jobs.get_mut(&0).unwrap().memory = Some(due);
            prop_assert_eq!(brought(&mut world, 110), []);
        }
        // No order: nothing or little is misplaced, or the job is too young.
    }

    /// No pool is overfull, and no awake thread lacks a seat while one is free.
    #[test]
    fn seats_are_conserved(events in events(), placement in 0usize..5, repartition: bool, fixed: bool, size in 1u32..14) {
        let mut world = World::new(STATIONS, Placement::ALL[placement]);
        world.contract.machine.repartition = repartition;
        world.contract.machine.pools = PoolForm::Size(size);
        world.means.seats = if fixed { Seats::Fixed } else { Seats::Cpus };
        for event in &events {
            play(&mut world, event);
            let seats = seats(&world.state);
            let pools = &world.pool_cache.pools.pools;
            for (at, pool) in pools.iter().enumerate() {
                let taken = seats.values().filter(|seat| **seat == at).count();
                prop_assert!(taken <= pool.cpus.len(), "{}", world.seen());
            }
            let now = world.now - world.step_ns;
            let stands = world.state.jobs.values().flat_map(|job| job.threads.values());
            let stands = stands.filter(|thread| needs_seat(thread, now, fixed) && thread.seat.is_none()).count();
            prop_assert!(stands == 0 || seats.len() == 12, "{} of 12, {stands} stand", seats.len());
        }
    }

    /// Without repartitioning, a running thread never moves.
    #[test]
    fn nobody_moves_without_need(events in events(), placement in 0usize..5) {
        let mut world = World::new(STATIONS, Placement::ALL[placement]);
        world.means.seats = Seats::Fixed;
        for event in &events {
            let before = seats(&world.state);
            play(&mut world, event);
            let after = seats(&world.state);
            for (thread, pool) in before {
                prop_assert!(after.get(&thread).is_none_or(|now| *now == pool));
            }
        }
    }

    /// Repartitioning alone never reduces total cohesion, and terminates.
    #[test]
    fn repartitioning_increases_cohesion(events in events(), placement in 0usize..5) {
        let mut world = World::new(STATIONS, Placement::ALL[placement]);
        world.means.seats = Seats::Fixed;
        for event in &events {
            play(&mut world, event);
        }
        let before = together(&world.state);
        world.contract.machine.repartition = true;
        world.now += 60_000 * MS;
        world.step();
        prop_assert!(together(&world.state) >= before, "{}", world.seen());
        // A minute later, the same facts cause no move.
        world.now += 60_000 * MS;
        world.step();
        let rested = seats(&world.state);
        world.now += 60_000 * MS;
        world.step();
        prop_assert_eq!(seats(&world.state), rested);
    }
}
