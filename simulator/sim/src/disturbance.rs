//! The disturbance of a machine that is never quite idle: daemons that run now and then, and jobs that do not
//! start at the same instant.
//!
//! Problem: without any, tasks of equal length under equal slices run in lock-step for ever, as gangs that no
//! real machine would schedule, and a baseline is better than it ever was.
//!
//! Algorithm: daemons are tasks in no unit. Each computes, sleeps, and computes again, with exponentially
//! distributed times. The start of each copy of a job is delayed by a uniformly distributed time. Random
//! numbers come from the run's seed, in streams of their own, so the jobs draw the same numbers as without.

use std::borrow::Cow;

use commonhold_contract::UnitId;

use crate::Time;
use crate::chance::Chance;
use crate::scenario::{Amount, Job, Op, Program, Scenario, Spread};

/// The name of the job whose processes are the daemons.
pub const DAEMONS: &str = "daemons";

/// The scenario with the machine's daemons as the last job; the scenario itself if the machine has none.
pub(crate) fn with_daemons(scenario: &Scenario) -> Cow<'_, Scenario> {
    let Some(disturbance) = scenario.hardware.disturbance.filter(|it| it.daemons > 0) else {
        return Cow::Borrowed(scenario);
    };
    let mut scenario = scenario.clone();
    let exponential = |mean| Amount { mean, spread: Spread::Exponential };
    let sleep = Op::Sleep { span: exponential(disturbance.every_ns) };
    let work = exponential(disturbance.runs_ns);
    let ops = vec![
        sleep,
        Op::Cpu { work, kernel: 0, bus_per_ms: 0, cache_bytes: 0, core: 0 },
        Op::Again { to: 0, times: 0, counter: 0 },
    ];
    let workload = &mut scenario.workload;
    let Ok(program) = u32::try_from(workload.programs.len()) else { return Cow::Owned(scenario) };
    workload.programs.push(Program {
        name: DAEMONS.to_owned(),
        memory_bytes: 0,
        resident: false,
        reuse_ns: 1,
        hot_bytes: 0,
        stalled: 0,
        shares: 0,
        of_first: 0,
        is_job: false,
        ops,
    });
    workload.jobs.push(Job {
        name: DAEMONS.to_owned(),
        unit: UnitId::SHARED,
        program,
        start_ns: 0,
        count: disturbance.daemons,
        every_ns: 0,
        deadline_ns: None,
        disk: 0,
        background: true,
    });
    Cow::Owned(scenario)
}

/// By how much the start of a copy of a job is delayed, in ns.
pub(crate) fn delay(scenario: &Scenario, seed: u64, job: u32, copy: u32) -> Time {
    match scenario.hardware.disturbance {
        Some(disturbance) if disturbance.starts_ns > 0 => {
            let number = 1 << 63 | u64::from(job) << 32 | u64::from(copy);
            Chance::of(seed, number).below(disturbance.starts_ns)
        }
        _ => 0,
    }
}
