//! Tables 2 and 3 and section 4.2 of seed 000: the configurations, and parallel makes on eight CPUs.

use commonhold_contract::Scheme::{Isolate, Quota, Smp};
use commonhold_sim::outcome::Spent;
use commonhold_sim_report::claims::{Basis, Tolerance};

use super::{Row, above, below, between, parameter, predicted, unmeasured_row};
use crate::experiments::{
    Experiment, KERNEL_AMPLE, KERNEL_BALANCED, KERNEL_ONE, KERNEL_TWO, KERNEL_UNBALANCED, on,
};
use crate::measure::{Seed, busy, divide, real};

/// Users with one job in either configuration.
pub(crate) const LIGHT: [&str; 4] = ["u1", "u2", "u3", "u4"];
/// Users with two jobs in the unbalanced configuration.
pub(crate) const HEAVY: [&str; 4] = ["u5", "u6", "u7", "u8"];

/// The experiments of [`f6_1`]: eight users with one job each under `isolate`, and one user alone with an
/// eighth of the machine.
pub(super) const F6_1: &[Experiment] = &[on(KERNEL_BALANCED, Isolate), on(KERNEL_ONE, Quota)];

/// The response time of a job beside seven other users, divided by that of a job alone.
pub(super) fn f6_1(at: Seed) -> Option<f64> {
    at.ratio((on(KERNEL_BALANCED, Isolate), &LIGHT), (on(KERNEL_ONE, Quota), &["u1"]))
}

/// The additional amount that is spent on a job beside seven other users, compared with a job alone, in ns.
fn more(at: Seed, amount: fn(&Spent) -> u64) -> Option<f64> {
    Some(
        at.spent(on(KERNEL_BALANCED, Isolate), &LIGHT, amount)?
            - at.spent(on(KERNEL_ONE, Quota), &["u1"], amount)?,
    )
}

const HARDWARE: &str = "simulator/claims/tests/configuration.rs: kernel_intensive";

pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "PI-T2-K",
            "table 2",
            "Kernel-intensive: 8 CPUs, 44 MB, separate disks; 8 users with 8 or 12 makes of 2 compiles each",
            "",
        ),
        &[HARDWARE],
    ),
    parameter(
        (
            "PI-T2-C",
            "table 2",
            "CPU isolation: 8 CPUs, 64 MB; Ocean (4 processes) for one user, 3 Flashlite and 3 VCS for another",
            "",
        ),
        &["simulator/claims/tests/configuration.rs: cpu_isolation"],
    ),
    parameter(
        (
            "PI-T2-M",
            "table 2",
            "Memory isolation: 4 CPUs, 16 MB, separate disks; 2 users with 2 or 3 makes of 4 compiles each",
            "",
        ),
        &["simulator/claims/tests/configuration.rs: memory_isolation"],
    ),
    parameter(
        (
            "PI-T2-D",
            "table 2",
            "Disk isolation: 2 CPUs, 44 MB, one HP 97560 disk; a make and a file copy",
            "",
        ),
        &["simulator/claims/tests/configuration.rs: disk_isolation"],
    ),
    parameter(
        (
            "PI-T3",
            "table 3",
            "Three schemes are compared: fixed quotas, performance isolation and no isolation",
            "",
        ),
        &["crates/policy/src/step/tests.rs: quota_never_lends_and_smp_never_orders"],
    ),
    parameter(
        (
            "PI-4.1-HW",
            "4.1",
            "Cache of 1 MB with lines of 128 bytes, 500 ns per miss; an HP 97560 where users share a disk",
            "",
        ),
        &[HARDWARE, "simulator/claims/tests/configuration.rs: disk_isolation"],
    ),
    parameter(
        (
            "PI-F3",
            "figure 3",
            "Kernel-intensive workload: eight jobs if balanced, twelve jobs if unbalanced",
            "",
        ),
        &[HARDWARE],
    ),
    parameter(
        ("PI-4.2-POL", "4.2", "Eight users with equal shares; idle resources may be lent to any user", ""),
        &[HARDWARE],
    ),
    predicted(
        (
            "PI-F4-1",
            "4.2.1",
            "Response time of users 1 to 4 without isolation, unbalanced load relative to balanced load",
            "+56 %",
        ),
        between(1.48, 1.64),
        &[on(KERNEL_UNBALANCED, Smp), on(KERNEL_BALANCED, Smp)],
        |at| at.change(&LIGHT, on(KERNEL_UNBALANCED, Smp), on(KERNEL_BALANCED, Smp)),
    ),
    predicted(
        (
            "PI-F4-2a",
            "4.2.1",
            "Response time of users 1 to 4 under isolation, unbalanced load relative to balanced load",
            "",
        ),
        below(1.10),
        &[on(KERNEL_UNBALANCED, Isolate), on(KERNEL_BALANCED, Isolate)],
        |at| at.change(&LIGHT, on(KERNEL_UNBALANCED, Isolate), on(KERNEL_BALANCED, Isolate)),
    ),
    predicted(
        (
            "PI-F4-2b",
            "4.2.1",
            "Response time of users 1 to 4 under fixed quotas, unbalanced load relative to balanced load",
            "",
        ),
        below(1.10),
        &[on(KERNEL_UNBALANCED, Quota), on(KERNEL_BALANCED, Quota)],
        |at| at.change(&LIGHT, on(KERNEL_UNBALANCED, Quota), on(KERNEL_BALANCED, Quota)),
    ),
    unmeasured_row(
        ("PI-F4-3", "figure 4", "Bars of figure 4 for fixed quotas and isolation", ""),
        Basis::Lost,
        "the figure's numbers did not survive; only the simulated bars are drawn",
    ),
    predicted(
        (
            "PI-F5-1",
            "4.2.2",
            "Response time of users 5 to 8 (two jobs each) under fixed quotas, relative to no isolation",
            "",
        ),
        above(1.0),
        &[on(KERNEL_UNBALANCED, Quota), on(KERNEL_UNBALANCED, Smp)],
        |at| at.change(&HEAVY, on(KERNEL_UNBALANCED, Quota), on(KERNEL_UNBALANCED, Smp)),
    ),
    predicted(
        (
            "PI-F5-2",
            "4.2.2",
            "Response time of users 5 to 8 (two jobs each) under isolation, relative to no isolation",
            "a little better",
        ),
        between(0.85, 1.08),
        &[on(KERNEL_UNBALANCED, Isolate), on(KERNEL_UNBALANCED, Smp)],
        |at| at.change(&HEAVY, on(KERNEL_UNBALANCED, Isolate), on(KERNEL_UNBALANCED, Smp)),
    ),
    predicted(
        (
            "PI-F5-3",
            "4.2.2",
            "Isolation relative to no isolation, response time of users 5 to 8: ample memory minus 44 MB",
            "",
        ),
        above(0.0),
        &[
            on(KERNEL_UNBALANCED, Isolate),
            on(KERNEL_UNBALANCED, Smp),
            on(KERNEL_AMPLE, Isolate),
            on(KERNEL_AMPLE, Smp),
        ],
        |at| {
            let ample = at.change(&HEAVY, on(KERNEL_AMPLE, Isolate), on(KERNEL_AMPLE, Smp))?;
            Some(ample - at.change(&HEAVY, on(KERNEL_UNBALANCED, Isolate), on(KERNEL_UNBALANCED, Smp))?)
        },
    )
    .note("the paper attributes the improvement (PI-F5-2) to memory that light users release early; a difference of two ratios"),
    parameter(
        (
            "PI-F6-0",
            "4.2.3",
            "The single workstation is the machine of the eight users with only one of them active",
            "",
        ),
        &[HARDWARE],
    ),
    predicted(
        (
            "PI-F6-1",
            "4.2.3",
            "Response time of users 1 to 4 (one job each) under isolation, relative to the single workstation",
            "+31 %",
        ),
        between(1.26, 1.36),
        F6_1,
        f6_1,
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "PI-F6-2",
            "4.2.3",
            "Response time of users 5 to 8 (two jobs each) under isolation, relative to the single workstation",
            "",
        ),
        below(1.0),
        &[on(KERNEL_UNBALANCED, Isolate), on(KERNEL_TWO, Quota)],
        |at| at.ratio((on(KERNEL_UNBALANCED, Isolate), &HEAVY), (on(KERNEL_TWO, Quota), &["u1"])),
    ),
    predicted(
        (
            "PI-F7-1",
            "4.2.3",
            "CPU time of a job (one per user) under isolation, relative to no isolation",
            "",
        ),
        Tolerance::Between { low: 0.97, high: 1.03 },
        &[on(KERNEL_BALANCED, Isolate), on(KERNEL_BALANCED, Smp)],
        |at| {
            let cpu = |run| at.spent(run, &LIGHT, busy);
            divide(cpu(on(KERNEL_BALANCED, Isolate))?, cpu(on(KERNEL_BALANCED, Smp))?)
        },
    ),
    predicted(
        (
            "PI-F7-2",
            "4.2.3",
            "Increase in CPU time from single workstation to eight users, relative to that in response time",
            "",
        ),
        Tolerance::AtLeast { low: 0.9 },
        F6_1,
        |at| {
            let (run, alone) = (on(KERNEL_BALANCED, Isolate), on(KERNEL_ONE, Quota));
            let response = (at.response(run, &LIGHT)? - at.response(alone, &["u1"])?) * 1e9;
            divide(more(at, busy)?, response)
        },
    )
    .note("each job has one CPU, so CPU time and response time are comparable"),
    predicted(
        (
            "PI-F7-3",
            "4.2.3",
            "Synchronisation as a fraction of the synchronisation and kernel stall time that eight users add",
            "about 60 %",
        ),
        between(0.55, 0.65),
        F6_1,
        |at| {
            let (lock, stall) = (more(at, |spent| spent.lock_ns)?, more(at, |spent| spent.stall_ns)?);
            divide(lock, lock + stall)
        },
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "PI-F7-4",
            "4.2.3",
            "Fraction of synchronisation time that is spent on one lock (memlock)",
            "over 80 %",
        ),
        between(0.8, 1.0),
        F6_1,
        |at| {
            let run = on(KERNEL_BALANCED, Isolate);
            let outcome = at.of(run)?;
            let spinning = real(outcome.jobs.iter().map(|job| job.spent.lock_ns).sum());
            let semaphores = real(outcome.locks.iter().map(|lock| lock.waited_ns).sum());
            divide(spinning, spinning + semaphores)
        },
    )
    .note("the model has no other spin lock")
    .basis(Basis::Calibrated),
    unmeasured_row(
        (
            "PI-F7-5",
            "4.2.3",
            "Added stall by kernel subsystem: half in virtual memory, a third in the file system",
            "half, a third",
        ),
        Basis::Outside,
        "the model does not distinguish the kernel's data structures",
    ),
];
