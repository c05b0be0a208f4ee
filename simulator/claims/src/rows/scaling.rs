//! Scalability in practice, and the other claims of seed 002 about machines: queues, locks, disks,
//! interrupts.
//!
//! The lecture's curves are pictures without numbers; it prints numbers only for one lock. So nearly all rows
//! here are signs, and their loads are estimates of this project.
//!
//! The queue (D/M/1): a request arrives every 25 ms, and needs 20 ms in the mean, exponentially distributed.
//! A fraction s of the arrivals finds other requests in the queue, where s = exp(-(1 - s) / 0.8) = 0.629. So
//! a request takes 1 / (1 - s) = 2.7 times as long as it would alone.
//!
//! The lock: it was taken 50,542,055 times for 0.5 us each, which is 72.3 % of 35.0 s. Twelve CPUs have 419 s
//! of CPU time in that time, so a CPU takes the lock once in 8.3 us. It waits for 29 us in 13.1 % of these
//! cases, which is 3.8 us in the mean. The remaining 4 us are work outside the lock.

use commonhold_contract::Discipline::{Gang, JobCurrency};
use commonhold_contract::Scheme::Isolate;
use commonhold_scale::law::Law;
use commonhold_scale::{Point, scaling};
use commonhold_sim::outcome::{LockOutcome, Outcome};
use commonhold_sim_report::claims::{Basis, Tolerance, Unit};

use super::{Row, above, below, between, parameter, predicted, unmeasured_row};
use crate::experiments::{
    AIM7, AIM7_FEW, DISK_ACCESS, Experiment, GANGS, INTERRUPTED, INTERRUPTS_SPREAD, QUEUE, QUEUE_TWO,
    TREE_NONE, TREE_READERS, TREE_SPIN, on,
};
use crate::measure::{Seed, divide, real};

const REQUESTS: [Experiment; 3] = [on(QUEUE[0], Isolate), on(QUEUE[1], Isolate), on(QUEUE[2], Isolate)];
const BY_TWO: [Experiment; 2] = [on(QUEUE_TWO[0], Isolate), on(QUEUE_TWO[1], Isolate)];
const COMPUTE: [Experiment; 2] = [on(TREE_NONE, Isolate).copies(1), on(TREE_NONE, Isolate).copies(12)];
const SPIN: [Experiment; 7] = sizes(on(TREE_SPIN, Isolate));
const READERS: [Experiment; 7] = sizes(on(TREE_READERS, Isolate));
const SPIN_12: &[Experiment] = &[SPIN[6]];
const FEW: [Experiment; 2] = [on(AIM7_FEW[0], Isolate).copies(8), on(AIM7_FEW[1], Isolate).copies(16)];
const DISKS: [Experiment; 4] =
    [on(AIM7[0], Isolate), on(AIM7[1], Isolate), on(AIM7[2], Isolate), on(AIM7[3], Isolate)];
const READS: [Experiment; 2] = [on(DISK_ACCESS[0], Isolate), on(DISK_ACCESS[1], Isolate)];
const MEETS: [Experiment; 2] = [on(GANGS, Isolate).under(Gang), on(GANGS, Isolate).under(JobCurrency)];
const INTERRUPTS: [Experiment; 3] =
    [on(INTERRUPTED[0], Isolate), on(INTERRUPTED[1], Isolate), on(INTERRUPTS_SPREAD, Isolate)];

/// The numbers of processes, each on a CPU of its own.
const SIZES: [u32; 7] = [1, 2, 4, 6, 8, 10, 12];
const AT_8: usize = 4;
const AT_10: usize = 5;
const AT_12: usize = 6;

const fn sizes(run: Experiment) -> [Experiment; 7] {
    let mut runs = [run; 7];
    let mut at = 0;
    while at < runs.len() {
        runs[at] = run.copies(SIZES[at]);
        at += 1;
    }
    runs
}

/// Rounds of the first job per second.
fn rate(at: Seed, run: Experiment) -> Option<f64> {
    let outcome = at.of(run)?;
    divide(real(outcome.rounds.first()?.rounds) * 1e9, real(outcome.ended_ns))
}

/// The rate of rounds in one experiment, divided by that in the other.
fn faster(at: Seed, one: Experiment, other: Experiment) -> Option<f64> {
    divide(rate(at, one)?, rate(at, other)?)
}

/// The number of served requests, the sum of their work and the sum of their response times, in ns.
fn served(at: Seed, run: Experiment) -> Option<(f64, f64, f64)> {
    let ended = at.of(run)?.jobs.iter().filter_map(|job| Some((job.response_ns()?, job.spent.work_ns)));
    let sum = ended.fold((0, 0, 0), |(n, work_sum, response_sum), (response_ns, work_ns)| {
        (n + 1, work_sum + work_ns, response_sum + response_ns)
    });
    Some((real(sum.0), real(sum.1), real(sum.2)))
}

/// The mean slowdown of a request: response time divided by work.
fn latency(at: Seed, run: Experiment) -> Option<f64> {
    let (_, work, time) = served(at, run)?;
    divide(time, work)
}

/// The CPU time of all CPUs over the whole run, in ns.
fn capacity_ns(outcome: &Outcome) -> f64 {
    real(outcome.busy_ns + outcome.idle_ns)
}

/// The part of all CPUs' time that is useful work of the load, without waits and overhead.
fn work(at: Seed, run: Experiment) -> Option<f64> {
    let outcome = at.of(run)?;
    divide(real(outcome.jobs.iter().map(|job| job.spent.work_ns).sum()), capacity_ns(outcome))
}

fn spun_ns(outcome: &Outcome) -> f64 {
    real(outcome.jobs.iter().map(|job| job.spent.spin_ns).sum())
}

/// A figure of the spin lock in the run with twelve processes. The figure also gets the run's outcome, to
/// compute fractions.
fn metered(at: Seed, figure: fn(&LockOutcome, &Outcome) -> Option<f64>) -> Option<f64> {
    let outcome = at.of(SPIN[AT_12])?;
    figure(outcome.locks.first()?, outcome)
}

fn law(at: Seed, runs: &[Experiment; 7]) -> Option<Law> {
    let point = |(size, run): (u32, &Experiment)| Some(Point { size, throughput: rate(at, *run)? });
    let points: Option<Vec<Point>> = SIZES.into_iter().zip(runs).map(point).collect();
    Some(scaling::law_through(&points?)?.law)
}

/// Twelve, divided by the size at which throughput peaks by Gunther's law; 0 if throughput never falls.
fn beyond_peak(at: Seed, runs: &[Experiment; 7]) -> Option<f64> {
    law(at, runs)?.peak().map_or(Some(0.0), |peak| divide(12.0, peak))
}

/// The throughput of the disk, in sectors per second.
fn bandwidth(at: Seed, run: Experiment) -> Option<f64> {
    let sectors: u64 = at.disk(run)?.units.iter().map(|unit| unit.sectors).sum();
    divide(real(sectors) * 1e9, real(at.of(run)?.ended_ns))
}

pub(super) const ROWS: &[Row] = &[
    predicted(
        (
            "CH-CURVEa",
            "002 system performance",
            "Fraction of requests served at an offered load of 10 % of capacity",
            "1",
        ),
        between(0.95, 1.05),
        &REQUESTS,
        |at| divide(served(at, REQUESTS[0])?.0, real(at.of(REQUESTS[0])?.jobs.len() as u64)),
    ),
    predicted(
        (
            "CH-CURVEb",
            "002 system performance",
            "Response time relative to service time at an offered load of 10 % of capacity",
            "1",
        ),
        between(1.0, 1.05),
        &REQUESTS,
        |at| latency(at, REQUESTS[0]),
    ),
    predicted(
        (
            "CH-CURVEc",
            "002 system performance",
            "Response time relative to service time at an offered load of 80 % of capacity",
            "2.7",
        ),
        between(2.43, 2.97),
        &REQUESTS,
        |at| latency(at, REQUESTS[1]),
    )
    .note("the lecture says only that latency grows; see simulator/claims/src/rows/scaling.rs for the arithmetic"),
    predicted(
        (
            "CH-CURVEd",
            "002 system performance",
            "Throughput at an offered load of 200 % of capacity, relative to capacity",
            "1",
        ),
        between(0.95, 1.05),
        &REQUESTS,
        |at| divide(served(at, REQUESTS[2])?.0 * 20e6, capacity_ns(at.of(REQUESTS[2])?)),
    ),
    predicted(
        (
            "CH-CURVEe",
            "002 system performance",
            "Fraction of response time spent in the queue at an offered load of 200 % of capacity",
            "1",
        ),
        Tolerance::AtLeast { low: 0.95 },
        &REQUESTS,
        |at| Some(1.0 - 1.0 / latency(at, REQUESTS[2])?),
    ),
    predicted(
        (
            "CH-CURVEf",
            "002 system performance",
            "Throughput of two CPUs, relative to one CPU, at an offered load of 200 % of one CPU",
            "2",
        ),
        between(1.9, 2.1),
        &[REQUESTS[2], BY_TWO[1]],
        |at| divide(served(at, BY_TWO[1])?.0, served(at, REQUESTS[2])?.0),
    ),
    predicted(
        (
            "CH-CURVEg",
            "002 system performance",
            "Slowdown of requests with two CPUs, relative to one CPU, at an offered load of 80 % of one CPU",
            "",
        ),
        below(1.0),
        &[REQUESTS[1], BY_TWO[0]],
        |at| divide(latency(at, BY_TWO[0])?, latency(at, REQUESTS[1])?),
    ),
    parameter(
        (
            "CH-USL",
            "002 Gunther's law",
            "Gunther's law, C(d) = d / (1 + alpha (d - 1) + beta d (d - 1)), and the size at which it peaks",
            "",
        ),
        &[
            "profiler/scale/src/law.rs: the_law_begins_at_lambda_and_peaks_where_the_seed_says",
            "profiler/scale/src/law.rs: without_contention_there_is_no_peak_and_a_ceiling",
        ],
    ),
    parameter(
        (
            "CH-USL-FIT",
            "002 Gunther's law",
            "A fit of Gunther's law recovers serialisation (alpha) and contention (beta)",
            "",
        ),
        &[
            "profiler/scale/src/fit/tests.rs: without_noise_the_numbers_are_found",
            "profiler/scale/src/fit/tests.rs: five_per_cent_of_noise_move_contention_by_less_than_a_fifth",
        ],
    ),
    parameter(
        (
            "CH-MEM",
            "002 memory hierarchy",
            "Latencies by order of magnitude: local memory 100s of ns, disks 10s of ms",
            "",
        ),
        &["simulator/claims/tests/configuration.rs: the_memory_hierarchy_by_orders_of_magnitude"],
    )
    .note("for remote memory the lecture prints ms, as for a network; seed 001 has 2.2 us, the usual order of magnitude"),
    predicted(
        (
            "CH-MEMa",
            "002 memory hierarchy",
            "Mean service time of random page reads on an HP 97560",
            "10s of ms",
        ),
        between(10.0, 100.0),
        &READS,
        |at| Some(at.disk(READS[1])?.latency_ms),
    )
    .unit(Unit::Milliseconds),
    unmeasured_row(
        ("CH-HOPS", "002 NUMA concepts", "Number of hops in a hypercube of n nodes: O(n-th root of n)", ""),
        Basis::Outside,
        "as printed that is close to 1 for all n; a hypercube of n nodes has log2 n hops. The model has distances \
         between nodes, and no links",
    ),
    parameter(
        (
            "CH-TOPO",
            "002 topology scheduling",
            "A job has nodes reserved, and uses memory of other nodes if its own nodes have too little",
            "",
        ),
        &[
            "crates/policy/src/cpu/partition.rs: whole_cpus_lie_together",
            "crates/dispatch/tests/near.rs: a_units_own_cpus_come_before_nearer_ones_that_others_lend",
            "simulator/sim/tests/numa.rs: what_does_not_fit_into_the_own_node_is_remote",
        ],
    )
    .note("here CPUs are reserved, which are chosen next to each other"),
    unmeasured_row(
        (
            "CH-PRIN",
            "002 general principles",
            "Separate data that different CPUs write; let readers run in parallel; atomic operations, not locks",
            "",
        ),
        Basis::Outside,
        "about real caches, which the simulator lacks: `bench/principles` measures each as a ratio on this machine",
    ),
    predicted(
        ("CH-RX", "002 RX2600", "Throughput of a multi-user benchmark on two CPUs, relative to one CPU", "2"),
        Tolerance::AtLeast { low: 1.9 },
        &FEW,
        |at| faster(at, FEW[1], FEW[0]),
    ),
    predicted(
        (
            "CH-ALT-1a",
            "002 Altix, single spindle",
            "Fraction of the CPU time of 16 CPUs that is useful work, with a single disk",
            "",
        ),
        Tolerance::AtMost { high: 0.5 },
        &DISKS,
        |at| work(at, DISKS[0]),
    )
    .note("the lecture calls it awful; that this is less than half is our reading"),
    predicted(
        (
            "CH-ALT-1b",
            "002 Altix",
            "Useful fraction of the CPU time of 16 CPUs with a single disk, relative to a RAID",
            "",
        ),
        below(1.0),
        &DISKS,
        |at| divide(work(at, DISKS[0])?, work(at, DISKS[1])?),
    ),
    predicted(
        (
            "CH-ALT-2a",
            "002 Altix, RAID",
            "Fraction of the CPU time of 16 CPUs that is useful work, with a RAID",
            "",
        ),
        Tolerance::AtMost { high: 0.9 },
        &DISKS,
        |at| work(at, DISKS[1]),
    ),
    predicted(
        (
            "CH-ALT-2b",
            "002 Altix",
            "Useful fraction of the CPU time of 16 CPUs with a RAID, relative to a RAM disk",
            "",
        ),
        below(1.0),
        &DISKS,
        |at| divide(work(at, DISKS[1])?, work(at, DISKS[2])?),
    ),
    predicted(
        (
            "CH-ALT-3",
            "002 Altix, RAM disk",
            "Useful fraction of the CPU time of 16 CPUs with a RAM disk, relative to a load without disk I/O",
            "",
        ),
        below(1.0),
        &DISKS,
        |at| divide(work(at, DISKS[2])?, work(at, DISKS[3])?),
    )
    .note("here the cause is the one lock of the file system; the lecture suspects the I/O subsystem"),
    predicted(
        (
            "CH-OLY-1",
            "002 Olympia, CPU-only",
            "Throughput of 12 CPUs on CPU-only work, relative to 12 times the throughput of one CPU",
            "",
        ),
        Tolerance::AtLeast { low: 0.8 },
        &COMPUTE,
        |at| Some(faster(at, COMPUTE[1], COMPUTE[0])? / 12.0),
    ),
    predicted(
        (
            "CH-OLY-2a",
            "002 Olympia, tmpfs",
            "Throughput of 12 CPUs under the spin lock, relative to 8 CPUs",
            "",
        ),
        below(1.0),
        &SPIN,
        |at| faster(at, SPIN[AT_12], SPIN[AT_8]),
    ),
    predicted(
        (
            "CH-OLY-2b",
            "002 Olympia, tmpfs",
            "12 CPUs relative to the number at which a fit of Gunther's law peaks, under the spin lock",
            "",
        ),
        above(1.0),
        &SPIN,
        |at| beyond_peak(at, &SPIN),
    ),
    predicted(
        (
            "CH-LOCK-1a",
            "002 lock metering",
            "Fraction of the run for which the lock is held (find_lock_page, 12 CPUs)",
            "0.723",
        ),
        between(0.651, 0.795),
        SPIN_12,
        |at| metered(at, |lock, run| divide(real(lock.held_ns), real(run.ended_ns))),
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "CH-LOCK-1b",
            "002 lock metering",
            "Fraction of CPU time spent spinning on the lock (find_lock_page, 12 CPUs)",
            "0.425",
        ),
        between(0.3825, 0.4675),
        SPIN_12,
        |at| metered(at, |_, run| divide(spun_ns(run), capacity_ns(run))),
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "CH-LOCK-1c",
            "002 lock metering",
            "Fraction of lock acquisitions that wait (find_lock_page, 12 CPUs)",
            "0.131",
        ),
        between(0.1179, 0.1441),
        SPIN_12,
        |at| metered(at, |lock, _| divide(real(lock.waits), real(lock.taken))),
    ),
    predicted(
        (
            "CH-LOCK-1d",
            "002 lock metering",
            "Mean wait of the lock acquisitions that wait (find_lock_page, 12 CPUs)",
            "29 us",
        ),
        between(26.1, 31.9),
        SPIN_12,
        |at| metered(at, |lock, _| divide(real(lock.waited_ns) / 1e3, real(lock.waits))),
    )
    .unit(Unit::Microseconds),
    predicted(
        (
            "CH-LOCK-1e",
            "002 lock metering",
            "Sum of all waits for the lock, relative to the CPU time spent spinning (find_lock_page, 12 CPUs)",
            "1",
        ),
        between(0.9, 1.1),
        SPIN_12,
        |at| metered(at, |lock, run| divide(real(lock.waited_ns), spun_ns(run))),
    ),
    unmeasured_row(
        (
            "CH-LOCK-1f",
            "002 lock metering",
            "Fraction of CPU time spent spinning, from the printed row's other figures: 45.7 % (192 s of 419 s)",
            "42.5 %",
        ),
        Basis::Derived,
        "192 s: 50,542,055 acquisitions, of which 13.1 % wait for 29 us; 419 s: 12 CPUs during 50,542,055 times 0.5 us, \
         divided by 72.3 %. The result is 7.5 % more than printed",
    ),
    unmeasured_row(
        (
            "CH-LOCK-2",
            "002 lock metering",
            "Utilisation of the lock retaken after a wait for the page (1,113 acquisitions, 85.3 % of them wait)",
            "0.01 %",
        ),
        Basis::Outside,
        "one in 45,000 acquisitions; the model has no locked pages",
    ),
    predicted(
        (
            "CH-RWa",
            "002 Olympia, rwlock",
            "Throughput of 12 CPUs under a readers-writer lock, relative to 8 CPUs",
            "",
        ),
        above(1.0),
        &READERS,
        |at| faster(at, READERS[AT_12], READERS[AT_8]),
    ),
    predicted(
        (
            "CH-RWb",
            "002 Olympia, rwlock",
            "Throughput of 12 CPUs under a readers-writer lock, relative to 10 CPUs",
            "",
        ),
        above(1.0),
        &READERS,
        |at| faster(at, READERS[AT_12], READERS[AT_10]),
    ),
    predicted(
        (
            "CH-RWc",
            "002 Olympia, rwlock",
            "12 CPUs relative to the number at which a fit of Gunther's law peaks, under a readers-writer lock",
            "",
        ),
        below(1.0),
        &READERS,
        |at| beyond_peak(at, &READERS),
    )
    .note("0 if throughput never falls"),
    predicted(
        (
            "CH-RWd",
            "002 Olympia, rwlock",
            "Time per operation of a process on 12 CPUs under a readers-writer lock, relative to one CPU",
            "",
        ),
        above(1.0),
        &READERS,
        |at| Some(12.0 / faster(at, READERS[AT_12], READERS[0])?),
    ),
    predicted(
        (
            "CH-RWe",
            "002 Olympia, rwlock",
            "Throughput of 12 CPUs under a readers-writer lock, relative to the spin lock",
            "",
        ),
        above(1.0),
        &[SPIN[AT_12], READERS[AT_12]],
        |at| faster(at, READERS[AT_12], SPIN[AT_12]),
    ),
    unmeasured_row(
        (
            "CH-FS",
            "002 other file systems",
            "Throughput of ext3 and XFS on a RAM disk, and by number of spindles",
            "",
        ),
        Basis::Lost,
        "the curves are pictures, whose numbers did not survive",
    ),
    predicted(
        (
            "CH-INTa",
            "002 interrupts",
            "Throughput of 8 threads, relative to 7, on 8 CPUs of which one takes all interrupts",
            "",
        ),
        below(1.0),
        &INTERRUPTS,
        |at| faster(at, INTERRUPTS[1], INTERRUPTS[0]),
    ),
    predicted(
        (
            "CH-INTb",
            "002 interrupts",
            "Throughput of 8 threads with interrupts spread over 8 CPUs, relative to all interrupts on one CPU",
            "",
        ),
        above(1.0),
        &INTERRUPTS,
        |at| faster(at, INTERRUPTS[2], INTERRUPTS[1]),
    ),
    predicted(
        (
            "CH-DISK",
            "002 disks",
            "Bandwidth of sequential page reads, relative to random page reads, on an HP 97560",
            "",
        ),
        Tolerance::AtLeast { low: 10.0 },
        &READS,
        |at| divide(bandwidth(at, READS[0])?, bandwidth(at, READS[1])?),
    ),
    predicted(
        (
            "CH-JOB-LIMa",
            "002 job currency",
            "Throughput of a program with barriers under gang scheduling, relative to job currency",
            "",
        ),
        above(1.0),
        &MEETS,
        |at| faster(at, MEETS[0], MEETS[1]),
    ),
    unmeasured_row(
        (
            "CH-JOB-LIMb",
            "002 job currency",
            "Job currency scales to a few hundred CPUs only, since queues are re-sorted at each interval",
            "",
        ),
        Basis::Outside,
        "ours re-sorts nothing: a job changes its band when it is examined (crates/dispatch/src/discipline)",
    ),
    unmeasured_row(
        (
            "CH-GOALS",
            "002 conclusions",
            "ccNUMA can scale, but tuning for one architecture can break others",
            "",
        ),
        Basis::Outside,
        "a conclusion, with nothing to compare",
    ),
];
