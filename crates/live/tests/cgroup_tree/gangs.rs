//! Gangs under the `cgroup` backend, with the gates of units: a job that is a unit is frozen in its control
//! group, and others are stopped by signals.

use std::path::Path;

use commonhold_contract::{Gangs, JobKind};
use commonhold_live::Backend;
use commonhold_live::apply::cgroup::CgroupBackend;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::undo;
use commonhold_policy::plan::{CpuOrder, GangOrder};
use commonhold_policy::{JobId, Plan, Reason, Step};

use super::{Bench, apply, children, cpu_ticks, monotonic, observe, state, wait_for};

#[track_caller]
fn gate(backend: &mut CgroupBackend, job: JobId, unit: commonhold_contract::UnitId, open: bool) {
    let mut plan = Plan::default();
    let action = GangOrder::Gate { job, unit, open };
    plan.orders.gangs.push(Step { action, reason: Reason::NotThisQuantum });
    let problems = backend.apply(&plan);
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_gang_stops_beside_its_units_gate_and_is_undone() {
    let Some(mut bench) = Bench::new("gangs", &[]) else { return };
    let pids = [bench.spawn("while :; do :; done"), bench.spawn("while :; do sleep 0.01; done")];
    let unit = bench.unit(None, "a", pids[0]);
    bench.contract.units[unit.index()].members.push(commonhold_contract::Member {
        kind: commonhold_contract::MemberKind::Pid(pids[1]),
        span: 0..0,
    });
    bench.contract.units[unit.index()].job = Some(JobKind::Tree);
    bench.contract.machine.gangs.by = Gangs::Demand;
    let mut backend = bench.backend();
    assert!(backend.means().gangs);
    let job_of = |backend: &mut CgroupBackend, pid: u32| {
        let snapshot = observe(backend, monotonic());
        snapshot.jobs.iter().find(|job| job.name.contains(&format!("({pid})"))).map(|job| job.job)
    };
    let busy = job_of(&mut backend, pids[0]).unwrap();
    let forks = job_of(&mut backend, pids[1]).unwrap();
    wait_for("the loop to be seen running", || observe(&mut backend, monotonic()).unit(unit).runnable >= 1);
    gate(&mut backend, busy, unit, false);
    wait_for("the loop to stop", || state(pids[0]) == 'T');
    assert_ne!(state(pids[1]), 'T', "it is another gang's");
    let snapshot = observe(&mut backend, monotonic());
    assert!(snapshot.unit(unit).runnable >= 1, "it would run if it could");
    let facts = snapshot.jobs.iter().find(|job| job.job == busy).unwrap();
    assert!(facts.threads.iter().all(|thread| !thread.wants));
    // Opening its unit's gate does not open its own, and vice versa.
    apply(&mut backend, [CpuOrder::Gate { unit, open: false }]);
    apply(&mut backend, [CpuOrder::Gate { unit, open: true }]);
    observe(&mut backend, monotonic());
    assert_eq!(state(pids[0]), 'T');
    apply(&mut backend, [CpuOrder::Gate { unit, open: false }]);
    gate(&mut backend, busy, unit, true);
    wait_for("the unit to stop", || bench.file("a/cgroup.events").contains("frozen 1"));
    let before = cpu_ticks(pids[0]);
    observe(&mut backend, monotonic());
    assert_eq!(cpu_ticks(pids[0]), before);
    apply(&mut backend, [CpuOrder::Gate { unit, open: true }]);
    wait_for("the loop to run", || cpu_ticks(pids[0]) > before && state(pids[0]) == 'R');
    // A process that forks is stopped with all its children.
    gate(&mut backend, forks, unit, false);
    wait_for("all to stop", || {
        observe(&mut backend, monotonic());
        let family: Vec<u32> = children(pids[1]).into_iter().chain([pids[1]]).collect();
        // An ended child waits for its parent, which is stopped. A parent waits for a child that shares its
        // memory (`vfork`) to execute a program, which the child cannot do while it is stopped.
        let states: Vec<char> = family.iter().map(|pid| state(*pid)).collect();
        states.contains(&'T') && states.iter().all(|state| matches!(state, 'T' | 'Z' | 'D'))
    });
    drop(backend.close());
    let undone = undo(&Journal::read(&bench.run.path().join("journal")).unwrap(), Path::new("/proc"));
    assert!(undone.problems.is_empty() && undone.continued >= 1, "{undone:?}");
    wait_for("it to run", || state(pids[1]) != 'T' && state(pids[0]) == 'R');
}

/// A unit that is one job is frozen in its control group, with everything it forks and without a signal. Both
/// its own gate and its gang's hold it; a sub-unit is another job; a newcomer is frozen; and all continue
/// when the daemon has ended.
#[test]
fn a_unit_that_is_a_gang_is_frozen() {
    let Some(mut bench) = Bench::new("frozen", &[]) else { return };
    let (forks, inner, late) = (
        bench.spawn("while :; do (exec true); done"),
        bench.spawn("while :; do :; done"),
        bench.spawn("while :; do :; done"),
    );
    let unit = bench.unit(None, "a", forks);
    let sub = bench.unit(Some(unit), "b", inner);
    for unit in [unit, sub] {
        bench.contract.units[unit.index()].job = Some(JobKind::Unit);
    }
    bench.contract.machine.gangs.by = Gangs::Demand;
    let mut backend = bench.backend();
    let snapshot = observe(&mut backend, monotonic());
    let job = snapshot.jobs.iter().find(|job| job.unit == unit).unwrap().job;
    let frozen = |bench: &Bench, yes: bool| {
        let line = format!("frozen {}", u32::from(yes));
        wait_for(&line.clone(), || bench.file("a/own/cgroup.events").contains(&line));
    };
    gate(&mut backend, job, unit, false);
    frozen(&bench, true);
    assert_ne!(state(forks), 'T', "no signal was sent");
    assert!(bench.file("a/b/cgroup.events").contains("frozen 0"), "it is another job's");
    let snapshot = observe(&mut backend, monotonic());
    assert_eq!(
        snapshot.jobs.iter().find(|facts| facts.job == job).unwrap().threads.iter().find(|it| it.wants),
        None
    );
    apply(&mut backend, [CpuOrder::Gate { unit, open: false }]);
    gate(&mut backend, job, unit, true);
    frozen(&bench, true);
    gate(&mut backend, job, unit, false);
    apply(&mut backend, [CpuOrder::Gate { unit, open: true }]);
    frozen(&bench, true);
    // Another process joins the unit.
    bench.contract.units[unit.index()]
        .members
        .push(commonhold_contract::Member { kind: commonhold_contract::MemberKind::Pid(late), span: 0..0 });
    commonhold_live::LiveBackend::set_contract(&mut backend, &bench.contract);
    observe(&mut backend, monotonic());
    frozen(&bench, true);
    let before = cpu_ticks(late);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!((state(late), cpu_ticks(late)), ('S', before));
    gate(&mut backend, job, unit, true);
    frozen(&bench, false);
    gate(&mut backend, job, unit, false);
    frozen(&bench, true);
    drop(backend.close());
    let undone = undo(&Journal::read(&bench.run.path().join("journal")).unwrap(), Path::new("/proc"));
    assert!(undone.problems.is_empty() && undone.continued == 0, "{undone:?}");
    let before = cpu_ticks(late);
    wait_for("all to run", || cpu_ticks(late) > before && state(inner) == 'R');
}
