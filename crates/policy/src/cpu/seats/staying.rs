//! Which seats are told, what CPUs they are, and who stays where it is.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Placement, UnitId};
use commonhold_machine::CpuSet;

use super::tests::World;
use crate::plan::SeatOrder;
use crate::snapshot::{JobFacts, JobId, ThreadFacts, ThreadId};

/// A job whose first thread was seen on a CPU.
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

fn told(world: &World) -> Vec<Option<CpuSet>> {
    let cpus = world.orders.iter().filter_map(|step| match &step.action {
        SeatOrder::Seat { cpus, .. } => Some(cpus.clone()),
        SeatOrder::Bring { .. } => None,
    });
    cpus.collect()
}

fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

/// Its own children would have to wait for it.
#[test]
fn nobody_is_tied_to_one_cpu() {
    let mut world = World::new("nodes:3 cpus:1 memory:1GiB", Placement::WorstFit);
    begin(&mut world, 0, 1);
    assert_eq!((world.seen().as_str(), told(&world)), ("- a -", Vec::new()));
    let mut world = World::new("nodes:3 cpus:2 memory:1GiB", Placement::WorstFit);
    begin(&mut world, 0, 2);
    assert_eq!(told(&world), [Some(set([2, 3]))]);
}

/// The unit has two of a pool's four CPUs. Where a scheduler lends at every switch, the others may be lent to it.
#[test]
fn a_seat_is_the_whole_pool_where_a_scheduler_keeps_units_apart() {
    for (switches, cpus) in [(false, set([0, 1])), (true, set(0..4))] {
        let mut world = World::new("nodes:2 cpus:4 memory:1GiB", Placement::WorstFit);
        world.means.switches = switches;
        world.held = Some([(UnitId(2), (0..2).collect())].into());
        begin(&mut world, 0, 0);
        assert_eq!(told(&world), [Some(cpus)], "{switches}");
        // It has no more seats for that.
        world.grow(1, 2);
        assert_eq!(world.seen(), "ab-- ----", "{switches}");
    }
}

/// Two nodes of eight. In a node of which a quarter is taken, a job stays that ran there; the next one goes where there is
/// more room.
#[test]
fn a_job_stays_in_a_pool_that_is_mostly_free() {
    let mut world = World::new("nodes:2 cpus:8 memory:1GiB", Placement::WorstFit);
    for job in 0..4 {
        begin(&mut world, job, 9);
    }
    assert_eq!(world.seen(), "d------- abc-----");
    // Whoever asks for another placement has that.
    let mut world = World::new("nodes:2 cpus:8 memory:1GiB", Placement::FewestJobs);
    begin(&mut world, 0, 9);
    begin(&mut world, 1, 9);
    assert_eq!(world.seen(), "a------- b-------");
}
