//! Which threads are restricted to their pool, to which CPUs, and which jobs stay where they already run.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Placement, UnitId};
use commonhold_machine::CpuSet;

use super::tests::World;
use crate::plan::SeatOrder;
use crate::snapshot::{JobFacts, JobId, ThreadFacts, ThreadId};

/// Adds a job whose first thread was seen on a CPU.
fn begin(world: &mut World, job: u32, cpu: u32) {
    let thread =
        ThreadFacts { thread: ThreadId(u64::from(job) * 1_000), wants: true, cpu: Some(cpu), tied: None };
    let facts = JobFacts {
        job: JobId(job),
        name: String::new(),
        unit: UnitId(2),
        threads: [thread].into(),
        memory: None,
        shared: None,
    };
    world.jobs.insert(job, facts);
    world.step();
}

fn ordered(world: &World) -> Vec<Option<CpuSet>> {
    let cpus = world.orders.iter().filter_map(|step| match &step.action {
        SeatOrder::Seat { cpus, .. } => Some(cpus.clone()),
        SeatOrder::Bring { .. } => None,
    });
    cpus.collect()
}

fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

/// It would wait for its own children.
#[test]
fn no_thread_is_restricted_to_one_cpu() {
    let mut world = World::new("nodes:3 cpus:1 memory:1GiB", Placement::WorstFit);
    begin(&mut world, 0, 1);
    assert_eq!((world.seen().as_str(), ordered(&world)), ("- a -", Vec::new()));
    let mut world = World::new("nodes:3 cpus:2 memory:1GiB", Placement::WorstFit);
    begin(&mut world, 0, 2);
    assert_eq!(ordered(&world), [Some(set([2, 3]))]);
}

/// The unit has two of a pool's four CPUs. A scheduler that lends at every switch may lend it the others.
#[test]
fn a_seat_is_the_whole_pool_where_a_scheduler_keeps_units_apart() {
    for (switches, cpus) in [(false, set([0, 1])), (true, set(0..4))] {
        let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::WorstFit);
        world.means.switches = switches;
        world.held = Some([(UnitId(2), (0..2).collect())].into());
        begin(&mut world, 0, 0);
        assert_eq!(ordered(&world), [Some(cpus)], "{switches}");
        // That adds no seats.
        world.grow(1, 2);
        assert_eq!(world.seen(), "ab-- ----", "{switches}");
    }
}

/// Two nodes of eight. A job that already runs in a node stays there while a quarter of it is occupied; the
/// next one goes where more is free.
#[test]
fn a_job_stays_in_a_pool_that_is_mostly_free() {
    let mut world = World::new("nodes:2 cpus:8 memory:1GiB", Placement::WorstFit);
    for job in 0..4 {
        begin(&mut world, job, 9);
    }
    assert_eq!(world.seen(), "d------- abc-----");
    // Another placement takes precedence.
    let mut world = World::new("nodes:2 cpus:8 memory:1GiB", Placement::FewestJobs);
    begin(&mut world, 0, 9);
    begin(&mut world, 1, 9);
    assert_eq!(world.seen(), "a------- b-------");
}
