//! Which facts a machine that enforces as Linux reports, and when.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicU64;

use commonhold_policy::MS;

use super::*;
use crate::disk::Request;
use crate::scenario::read;

const A: UnitId = UnitId(2);

/// A machine at rest, with one unit and one job.
fn scenario(scheme: &str) -> Scenario {
    let contract = format!("version = 1\n[machine]\nscheme = \"{scheme}\"\n[unit.a]\n");
    let machine = "version = 1\nshape = \"cpus:2 memory:1GiB\"\nenforces = \"linux\"\n[disk.vda]\nmodel = \"ssd\"\n\
                   read = \"200us\"\nwrite = \"200us\"\nrate = \"25MiB/s\"\nsize = \"64GiB\"\n";
    let workload = "version = 1\nhorizon = \"1s\"\n[program.one]\ndo = [{ cpu = \"1s\" }]\n\
                    [job.one]\nunit = \"a\"\nprogram = \"one\"\n";
    read(&contract, machine, workload).scenario.unwrap()
}

/// Facts of disks are as old as on a live machine. The last look of a run, which asks for all there is, has
/// those of now.
#[test]
fn facts_of_disks_are_no_fresher_than_there() {
    let (scenario, clock) = (scenario("isolate"), AtomicU64::new(0));
    let mut engine = Engine::new(&scenario, 1, &clock).unwrap();
    let request = Request { id: 0, unit: A, lba: 0, sectors: 8, write: false, owners: Vec::new() };
    let mut look = |at: Time| {
        engine.now = at;
        engine.drives[0].submit(at, request.clone());
        let facts = engine.observe(at, &[]).unwrap().disks;
        (facts[0].at, facts[0].unit(A).requests)
    };
    assert_eq!([0, 79 * MS, 80 * MS, 159 * MS].map(&mut look), [(0, 1), (0, 1), (80 * MS, 3), (80 * MS, 3)]);
    assert_eq!(engine.snapshot().disks[0].unit(A).requests, 4);
}

/// An alarm makes another turn, but no sooner after the last one than in the daemon.
#[test]
fn an_alarm_is_heard_as_soon_as_there() {
    let (scenario, clock) = (scenario("isolate"), AtomicU64::new(0));
    let mut engine = Engine::new(&scenario, 1, &clock).unwrap();
    engine.policy_event();
    engine.backend.watched = vec![A];
    let mut alarm = |at: Time, unit: UnitId| {
        engine.now = at;
        engine.alarm(unit);
        (engine.backend.next_turn, engine.backend.alarm)
    };
    let before = alarm(MS, UnitId::SHARED);
    assert!(before.0 > 100 * MS && !before.1, "nobody watches it");
    assert_eq!(alarm(5 * MS, A), (15 * MS, true));
    assert_eq!(alarm(20 * MS, A), (15 * MS, true), "it is as good as there");
    engine.policy_event();
    engine.backend.watched = vec![A];
    engine.now = 60 * MS;
    engine.alarm(A);
    assert_eq!(engine.backend.next_turn, 60 * MS);
}

/// Linux raises an alarm when a unit meets its bound, but not when the whole machine is short of memory.
#[test]
fn an_alarm_is_of_a_bound() {
    let (scenario, clock) = (scenario("isolate"), AtomicU64::new(0));
    let mut engine = Engine::new(&scenario, 1, &clock).unwrap();
    engine.policy_event();
    engine.now = MS;
    engine.job_event(0);
    engine.backend.watched = vec![A];
    let _ = engine.make_room(0, 1);
    assert!(!engine.backend.alarm);
    engine.memory.set_bound(A, Some(0));
    let _ = engine.make_room(0, 1);
    assert!(engine.backend.alarm);
}

/// Where memory is not held, a live machine tells of it all the same, for the accounts.
#[test]
fn memory_is_told_of_under_smp() {
    let (scenario, clock) = (scenario("smp"), AtomicU64::new(0));
    let mut engine = Engine::new(&scenario, 1, &clock).unwrap();
    engine.policy_event();
    engine.now = 300 * MS;
    assert!(engine.observe(engine.now, &[]).unwrap().memory.is_some());
}

/// Two jobs of two units share one CPU: each unit waits for the other's turns, and the sum is its waiting
/// time.
#[test]
fn units_wait_for_each_other() {
    let contract = "version = 1\n[unit.a]\n[unit.b]\n";
    let machine = "version = 1\nshape = \"cpus:1 memory:1GiB\"\n";
    let workload = "version = 1\nhorizon = \"1s\"\n[program.one]\ndo = [{ cpu = \"10s\" }]\n\
                    [job.one]\nunit = \"a\"\nprogram = \"one\"\n\
                    [job.two]\nunit = \"b\"\nprogram = \"one\"\n";
    let scenario = read(contract, machine, workload).scenario.unwrap();
    let (b, clock) = (UnitId(3), AtomicU64::new(0));
    let mut engine = Engine::new(&scenario, 1, &clock).unwrap();
    engine.run_events();
    let snapshot = engine.snapshot();
    let listed = |waiter, occupant| {
        let found =
            snapshot.waited_for.iter().find(|wait| wait.waiter == waiter && wait.occupant == occupant);
        found.map_or(0, |wait| wait.ns)
    };
    for (waiter, other) in [(A, b), (b, A)] {
        let whole: u64 =
            snapshot.waited_for.iter().filter(|wait| wait.waiter == waiter).map(|wait| wait.ns).sum();
        // The scheduler's clock has no 0: waits from the beginning are a nanosecond shorter there.
        assert!(snapshot.unit(waiter).waited_ns - whole <= 1, "{whole}");
        assert!(listed(waiter, Occupant::Unit(other)) > 400 * MS, "{:?}", snapshot.waited_for);
        assert_eq!(listed(waiter, Occupant::Unknown), 0);
    }
}
