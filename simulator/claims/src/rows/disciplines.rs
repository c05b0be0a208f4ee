//! Schedulers of seed 002: the strength of each time-sharing discipline, and the problems that the lecture
//! warns of.
//!
//! The lecture prints no numbers for schedulers. Expected values are those that follow from shares and
//! half-lives alone. Each scenario has one CPU, so parts are parts of that CPU's time.
//!
//! The time in which a user catches up follows from the half-life h. The usage of a user that always runs
//! tends to U = h / ln 2. Suppose that user A has usage e, and that user B, with the smaller usage l, runs
//! alone until both usages are equal. After a time t, with x = 2^(-t/h), A has e x and B has U - (U - l) x.
//! They are equal at x = U / (U + e - l).
//!
//! - B slept for a minute while A ran: e = U, l = 0. So x = 1/2, and t = h = 2 s. Of the first 4 s, B has 2 s
//!   and half of the rest: 3/4.
//! - Both had half, then B slept for h: e = 3/4 U, l = 1/4 U. So x = 2/3, and t = 0.585 h = 1.17 s. Of the
//!   first 4 s, B has 0.646.

use commonhold_contract::Discipline::{
    self, Batch, Decay, Entitlement, Fifo, JobCurrency, Lottery, Rr, Stride,
};
use commonhold_contract::Scheme::Isolate;
use commonhold_sim_report::claims::{Basis, Tolerance, Unit};

use super::{Row, above, between, parameter, predicted, unmeasured_row};
use crate::experiments::{
    BOOSTING, ENTITLEMENT_SHARES, Experiment, FIRST_COME, Files, GIVES_UP, INACTIVE, MANY_BY_USER,
    MANY_PROCESSES, NAP, SLEEPER, SMALLEST_SHARE, TICKETS_CPU_FINE, on,
};
use crate::measure::{Seed, divide, real};

const fn run(files: Files, discipline: Discipline) -> Experiment {
    on(files, Isolate).under(discipline)
}

const SHARES: [Experiment; 7] = [
    run(ENTITLEMENT_SHARES, Stride),
    run(ENTITLEMENT_SHARES, Entitlement),
    run(ENTITLEMENT_SHARES, Lottery),
    run(ENTITLEMENT_SHARES, Decay),
    run(ENTITLEMENT_SHARES, Fifo),
    run(ENTITLEMENT_SHARES, Rr),
    run(ENTITLEMENT_SHARES, Batch),
];
const USERS: [&str; 3] = ["lab/ana", "lab/ben", "lab/cem"];
const BY_SHARE: [f64; 3] = [1.0 / 6.0, 1.0 / 3.0, 1.0 / 2.0];
const BY_SQUARE: [f64; 3] = [1.0 / 14.0, 4.0 / 14.0, 9.0 / 14.0];
const ALIKE: [f64; 3] = [1.0 / 3.0; 3];

const JOBS: Experiment = run(ENTITLEMENT_SHARES, JobCurrency);

const SMALL: [Experiment; 3] =
    [run(SMALLEST_SHARE, Stride), run(SMALLEST_SHARE, Entitlement), run(SMALLEST_SHARE, Decay)];
const SLEEPS: [Experiment; 3] = [run(SLEEPER, Stride), run(SLEEPER, Entitlement), run(SLEEPER, Decay)];
const NAPS: Experiment = run(NAP, Entitlement);
const GIVES: [Experiment; 2] = [run(GIVES_UP, Lottery), run(GIVES_UP, Rr)];
const WAITS: [Experiment; 2] = [run(INACTIVE, Lottery), run(INACTIVE, Entitlement)];
const BOOSTS: [Experiment; 2] = [run(BOOSTING, Decay), run(BOOSTING, Stride)];
const CROWD: Experiment = run(MANY_PROCESSES, Rr);
const BY_USER: Experiment = run(MANY_BY_USER, Rr);
const QUEUE: [Experiment; 2] = [run(FIRST_COME, Fifo), run(FIRST_COME, Stride)];
const CURRENCIES: Experiment = run(TICKETS_CPU_FINE, Entitlement).until(100);
/// The worth of each task's tickets while b3 sleeps.
const WORTH: [(&str, f64); 4] =
    [("a/a1", 1.0 / 6.0), ("a/a2", 1.0 / 3.0), ("b/b1", 1.0 / 6.0), ("b/b2", 1.0 / 3.0)];

/// A unit's part of the CPU time from second `from` to second `to`.
fn part(at: Seed, run: Experiment, unit: &str, from: usize, to: usize) -> Option<f64> {
    let used = at.unit(run, unit)?.used_by_window_ns.get(from..to)?;
    divide(real(used.iter().sum()), 1e9 * real((to - from) as u64))
}

/// The largest relative error of the three users' shares over a minute.
fn off(at: Seed, run: Experiment, expected: [f64; 3], seconds: usize) -> Option<f64> {
    USERS.iter().zip(expected).try_fold(0.0, |most: f64, (unit, expected)| {
        Some(most.max((part(at, run, unit, 0, seconds)? / expected - 1.0).abs()))
    })
}

/// The chi-square statistic of the users' turns of 5 ms each; it has two degrees of freedom.
fn chi_square(at: Seed) -> Option<f64> {
    let turns = 60.0 / 0.005;
    USERS.iter().zip(BY_SHARE).try_fold(0.0, |sum, (unit, share)| {
        let had = part(at, SHARES[2], unit, 0, 60)? * turns;
        Some(sum + (had - share * turns) * (had - share * turns) / (share * turns))
    })
}

/// The CPU time of the user with few processes, where the discipline orders processes and not users.
fn cpu_of_job(at: Seed, run: Experiment, job: &str) -> Option<f64> {
    let jobs = at.of(run)?.jobs.iter().filter(|entry| entry.name == job);
    Some(jobs.map(|job| real(job.spent.on_cpus_ns())).sum::<f64>() / 60e9)
}

/// The smallest part of the CPU that the user who always computes has in any second, from the second minute
/// on.
fn worst_second(at: Seed, run: Experiment) -> Option<f64> {
    (60..239).try_fold(1.0, |least: f64, from| Some(least.min(part(at, run, "lab/always", from, from + 1)?)))
}

/// The CPU time of the unit that waits, relative to its entitlement of a third.
fn of_a_third(at: Seed, run: Experiment) -> Option<f64> {
    Some(part(at, run, "lab/waits", 0, 60)? * 3.0)
}

fn ratio(at: Seed, run: Experiment) -> Option<f64> {
    divide(part(at, run, "lab/waits", 0, 60)?, part(at, run, "lab/computes", 0, 60)?)
}

/// The largest relative error of the shares of nested currencies from the fifth half-life on.
fn off_in_currencies(at: Seed) -> Option<f64> {
    WORTH.iter().try_fold(0.0, |most: f64, (unit, worth)| {
        Some(most.max((part(at, CURRENCIES, unit, 10, 99)? / worth - 1.0).abs()))
    })
}

macro_rules! disciplines {
    ($test:literal) => {
        concat!("crates/dispatch/tests/disciplines.rs: ", $test)
    };
}

pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "CH-DISP",
            "002 dispatching",
            "A waking task is queued to the CPU where it last ran, else to a near CPU, else to any CPU",
            "",
        ),
        &["crates/dispatch/tests/near.rs: who_wakes_takes_its_last_cpu_then_the_same_cache_then_the_same_node_then_another"],
    )
    .note("a CPU looks for a task in its own queue, in its unit's, and in those of other units that it may serve"),
    parameter(
        (
            "CH-CLS",
            "002 scheduler classes",
            "Schedulers for time-sharing, entitlements and batch jobs run side by side",
            "",
        ),
        &[
            disciplines!("these_divide_by_weight_within_a_hundredth"),
            disciplines!("turns_do_not_look_at_weights"),
            disciplines!("batches_are_long"),
        ],
    )
    .note("real-time classes are the kernel's own, above the scheduler"),
    parameter(
        (
            "CH-GANG",
            "002 gang scheduling",
            "Memory spaces take turns as gangs; within a gang, threads have a discipline of their own",
            "",
        ),
        &[
            disciplines!("a_gang_runs_on_all_cpus_at_once"),
            disciplines!("gangs_that_are_small_run_side_by_side"),
        ],
    )
    .note("a memory space is a unit here; its threads stay near each other, on the CPUs that the unit owns"),
    parameter(
        (
            "CH-JOB",
            "002 job currency",
            "Jobs get time by weight at intervals; jobs that used less than their entitlement go first, in turns",
            "",
        ),
        &[
            disciplines!("these_divide_by_weight_within_a_hundredth"),
            disciplines!("a_job_that_slept_has_half_from_then_on"),
        ],
    ),
    predicted(
        (
            "CH-JOBa",
            "002 job currency",
            "Largest relative error of CPU shares of 1:2:3 over 60 s under job currency",
            "0",
        ),
        Tolerance::AtMost { high: 0.02 },
        &[JOBS],
        |at| off(at, JOBS, BY_SHARE, 60),
    ),
    parameter(
        (
            "CH-ISO",
            "002 isochronous schedulers",
            "A guaranteed proportion of the processor, by deadlines; DWCS (only named) has windows of losses",
            "",
        ),
        &[
            disciplines!("no_window_is_violated_of_deadlines_that_are_alike"),
            disciplines!("no_deadline_is_missed_where_all_budgets_fit"),
            disciplines!("of_equal_deadlines_the_one_is_first_that_bears_least"),
        ],
    ),
    parameter(
        (
            "CH-ENT",
            "002 shares",
            "A user's entitlement is the user's shares divided by the shares of all active users",
            "",
        ),
        &[
            "crates/policy/src/rights/entitlement/tests.rs: currencies_insulate",
            "crates/policy/src/rights/entitlement/tests.rs: who_leaves_makes_nobody_poorer",
        ],
    ),
    predicted(
        (
            "CH-ENTa",
            "002 shares",
            "Largest relative error of CPU shares of 1:2:3 over 60 s under stride scheduling",
            "0",
        ),
        Tolerance::AtMost { high: 0.01 },
        &SHARES,
        |at| off(at, SHARES[0], BY_SHARE, 60),
    ),
    predicted(
        (
            "CH-ENTb",
            "002 shares",
            "Largest relative error of CPU shares of 1:2:3 over 60 s under entitlement scheduling",
            "0",
        ),
        Tolerance::AtMost { high: 0.01 },
        &SHARES,
        |at| off(at, SHARES[1], BY_SHARE, 60),
    ),
    predicted(
        (
            "CH-ENTc",
            "002 shares",
            "CPU share of a user with one process beside a user with nine: round robin among users",
            "0.5",
        ),
        between(0.49, 0.51),
        &[BY_USER],
        |at| part(at, BY_USER, "lab/few", 0, 60),
    ),
    predicted(
        (
            "CH-ENTd",
            "002 shares",
            "CPU share of a user with one process beside a user with nine: round robin among processes",
            "0.1",
        ),
        between(0.09, 0.11),
        &[CROWD],
        |at| cpu_of_job(at, CROWD, "few"),
    ),
    predicted(
        (
            "CH-SIMPLEa",
            "002 problems",
            "Largest relative error of CPU shares of 1:2:3 in the first second (no usage yet), under entitlement",
            "0",
        ),
        Tolerance::AtMost { high: 0.1 },
        &SHARES,
        |at| off(at, SHARES[1], BY_SHARE, 1),
    ),
    predicted(
        (
            "CH-SIMPLEb",
            "002 problems",
            "CPU time of a user with a share of 1/101, relative to that share, under entitlement scheduling",
            "1",
        ),
        between(0.9, 1.1),
        &SMALL,
        |at| Some(part(at, SMALL[1], "lab/small", 0, 120)? * 101.0),
    ),
    predicted(
        (
            "CH-SIMPLEc",
            "002 problems",
            "CPU time of a user with a share of 1/101, relative to that share, under stride scheduling",
            "1",
        ),
        between(0.9, 1.1),
        &SMALL,
        |at| Some(part(at, SMALL[0], "lab/small", 0, 120)? * 101.0),
    ),
    predicted(
        (
            "CH-SIMPLEd",
            "002 problems",
            "CPU time of a user with a share of 1/101, relative to that share, under decay, which squares shares",
            "",
        ),
        Tolerance::AtMost { high: 0.5 },
        &SMALL,
        |at| Some(part(at, SMALL[2], "lab/small", 0, 120)? * 101.0),
    ),
    predicted(
        (
            "CH-SIMPLEe",
            "002 problems",
            "CPU share in the first 20 s after a sleep of 60 s, beside one other user, under decay",
            "",
        ),
        Tolerance::AtLeast { low: 0.9 },
        &SLEEPS,
        |at| part(at, SLEEPS[2], "lab/late", 60, 80),
    )
    .note("decay forgets usage within minutes: the nearest to the simple scheduler, which forgets nothing"),
    predicted(
        (
            "CH-SIMPLEf",
            "002 problems",
            "CPU share from 10 s after a sleep of 60 s on, beside one other user, under entitlement scheduling",
            "0.5",
        ),
        between(0.49, 0.51),
        &SLEEPS,
        |at| part(at, SLEEPS[1], "lab/late", 70, 119),
    ),
    predicted(
        (
            "CH-SIMPLEg",
            "002 problems",
            "CPU share in the first second after a sleep of 60 s, beside one other user, under stride scheduling",
            "0.5",
        ),
        between(0.49, 0.52),
        &SLEEPS,
        |at| part(at, SLEEPS[0], "lab/late", 60, 61),
    ),
    predicted(
        (
            "CH-LOT-1a",
            "002 lottery",
            "Chi-square statistic of 12,000 lottery turns against shares of 1:2:3 (two degrees of freedom)",
            "",
        ),
        Tolerance::AtMost { high: 4.16 },
        &SHARES,
        chi_square,
    )
    .note("the mean of seven seeds has 14 degrees of freedom: by chance it exceeds 4.16 in 1 % of cases"),
    predicted(
        (
            "CH-LOT-1b",
            "002 lottery",
            "Largest relative error of CPU shares of 1:2:3 over 60 s under lottery scheduling",
            "0",
        ),
        Tolerance::AlwaysAtMost { high: 0.07 },
        &SHARES,
        |at| off(at, SHARES[2], BY_SHARE, 60),
    )
    .note("the smallest share is 2,000 of 12,000 turns, with a standard deviation of 2 %"),
    predicted(
        (
            "CH-LOT-2a",
            "002 inactive entity",
            "CPU time of a task that uses 1/5 of each turn, relative to whole turns: round robin",
            "0.2",
        ),
        between(0.19, 0.21),
        &GIVES,
        |at| ratio(at, GIVES[1]),
    )
    .note("round robin has turns and no tickets"),
    predicted(
        (
            "CH-LOT-2b",
            "002 inactive entity",
            "CPU time of a task that uses 1/5 of each turn, relative to whole turns: lottery with compensation tickets",
            "1",
        ),
        between(0.95, 1.05),
        &GIVES,
        |at| ratio(at, GIVES[0]),
    ),
    predicted(
        (
            "CH-LOT-2c",
            "002 inactive entity",
            "CPU time of a task that waits 2/3 of the time, relative to the third that it could use, under lottery",
            "",
        ),
        Tolerance::AtMost { high: 0.8 },
        &WAITS,
        |at| of_a_third(at, WAITS[0]),
    ),
    predicted(
        (
            "CH-LOT-2d",
            "002 inactive entity",
            "CPU time of a task that waits 2/3 of the time, relative to the third that it could use: entitlement",
            "1",
        ),
        Tolerance::AtLeast { low: 0.95 },
        &WAITS,
        |at| of_a_third(at, WAITS[1]),
    ),
    predicted(
        (
            "CH-LOT-2e",
            "002 inactive entity",
            "Smallest CPU share in any second of a user that always computes beside waking sleepers, under decay",
            "0",
        ),
        Tolerance::AtMost { high: 0.05 },
        &BOOSTS,
        |at| worst_second(at, BOOSTS[0]),
    ),
    predicted(
        (
            "CH-LOT-2f",
            "002 inactive entity",
            "Smallest CPU share in any second of a user that always computes beside waking sleepers, under stride",
            "",
        ),
        Tolerance::AtLeast { low: 0.3 },
        &BOOSTS,
        |at| worst_second(at, BOOSTS[1]),
    ),
    predicted(
        (
            "CH-WIL-1",
            "002 Williams",
            "CPU share in the first 4 s after a sleep of 60 s, beside one other user, under entitlement scheduling",
            "0.75",
        ),
        between(0.72, 0.78),
        &SLEEPS,
        |at| part(at, SLEEPS[1], "lab/late", 60, 64),
    )
    .note("see simulator/claims/src/rows/disciplines.rs for the arithmetic"),
    predicted(
        (
            "CH-WIL-2",
            "002 Williams",
            "CPU share in the first 4 s after a sleep of one half-life, under entitlement scheduling",
            "0.646",
        ),
        between(0.616, 0.676),
        &[NAPS],
        |at| part(at, NAPS, "lab/late", 32, 36),
    )
    .note("the closed form as printed is garbled; the value follows from alpha^k u + (1 - alpha^k) rho"),
    predicted(
        (
            "CH-WIL-3",
            "002 Williams",
            "Largest relative error of CPU shares of nested entitlements, from the fifth half-life on",
            "0",
        ),
        Tolerance::AtMost { high: 0.02 },
        &[CURRENCIES],
        off_in_currencies,
    ),
    unmeasured_row(
        (
            "CH-WIL-4",
            "002 Williams",
            "Williams's entitlement scheduler works very well, with low overhead",
            "",
        ),
        Basis::Outside,
        "no number, and nothing to compare with; its patent and its products are no claims about machines",
    ),
    predicted(
        (
            "OURS-DECAY",
            "ours",
            "Largest relative error of CPU shares from 1:4:9, for tickets of 1:2:3, under decay",
            "0",
        ),
        Tolerance::AtMost { high: 0.01 },
        &SHARES,
        |at| off(at, SHARES[3], BY_SQUARE, 60),
    )
    .basis(Basis::Beyond),
    predicted(
        ("OURS-RR", "ours", "Largest relative error of CPU shares from a third each, under round robin", "0"),
        Tolerance::AtMost { high: 0.01 },
        &SHARES,
        |at| off(at, SHARES[5], ALIKE, 60),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BATCH",
            "ours",
            "Largest relative error of CPU shares from a third each, under batch scheduling",
            "0",
        ),
        Tolerance::AtMost { high: 0.01 },
        &SHARES,
        |at| off(at, SHARES[6], ALIKE, 60),
    )
    .basis(Basis::Beyond),
    predicted(
        ("OURS-FIFO-1", "ours", "CPU share of the first of three users that always compute, under FIFO", "1"),
        Tolerance::AtLeast { low: 0.99 },
        &SHARES,
        |at| part(at, SHARES[4], "lab/ana", 0, 60),
    )
    .note("tasks that wait for seconds are rescued")
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-FIFO-2",
            "ours",
            "Response time of short jobs that arrive after a long one under FIFO, relative to stride",
            "",
        ),
        above(10.0),
        &QUEUE,
        |at| at.ratio((QUEUE[0], &["short"]), (QUEUE[1], &["short"])),
    )
    .basis(Basis::Beyond),
    predicted(
        ("OURS-FIFO-3", "ours", "Response time of a long job with short jobs behind it, under FIFO", "20"),
        between(19.8, 20.4),
        &QUEUE,
        |at| at.response(QUEUE[0], &["long"]),
    )
    .unit(Unit::Seconds)
    .basis(Basis::Beyond),
];
