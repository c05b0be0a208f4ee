//! Sections 5 and 6 of seed 001: pools of several sizes, parallelism, placement, on Hector.
//!
//! A program's response time is the mean over all its jobs in all streams. The delays are those of the delay
//! switches of section 3, in cycles per packet that leaves a station.

use std::collections::BTreeSet;

use commonhold_contract::{Placement, PoolForm, Scheme};
use commonhold_sim_report::claims::{Basis, Tolerance};

use super::{Row, above, below, between, parameter, predicted, unmeasured_row};
use crate::experiments::{Experiment, Files, POOLS_EIGHT, POOLS_FOUR, POOLS_SIX, POOLS_TWO, as_it_is};
use crate::measure::{Seed, divide, largest_step, real, smallest_step};

/// Programs of figures 1, 2 and 5.
pub(crate) const FIVE: [&str; 5] = ["fft", "hough", "mm", "neural", "pde"];
/// Programs of figure 3.
pub(crate) const THREE: [&str; 3] = ["hough", "mm", "simplex"];

const fn hector(files: Files, size: u32, delay: u64) -> Experiment {
    as_it_is(files, Scheme::Smp).pools(PoolForm::Size(size)).delay(delay)
}

/// The sizes of pools in figures 1 and 2.
pub(crate) const SIZES: [u32; 5] = [1, 2, 4, 6, 12];

/// A scenario with pools of each size.
const fn sizes(files: Files, delay: u64) -> [Experiment; 5] {
    let mut runs = [hector(files, SIZES[0], delay); 5];
    let mut at = 1;
    while at < runs.len() {
        runs[at] = hector(files, SIZES[at], delay);
        at += 1;
    }
    runs
}

pub(crate) const TWO: [Experiment; 5] = sizes(POOLS_TWO, 16);
pub(crate) const FOUR: [Experiment; 5] = sizes(POOLS_FOUR, 16);
pub(crate) const EIGHT: [Experiment; 5] = sizes(POOLS_EIGHT, 16);
pub(crate) const FOUR_4: Experiment = FOUR[2];
const FOUR_6: Experiment = FOUR[3];
const FOUR_12: Experiment = FOUR[4];
pub(crate) const SIX_4: Experiment = hector(POOLS_SIX, 4, 16);
pub(crate) const SIX_6: Experiment = hector(POOLS_SIX, 6, 16);
const NEAR_4: Experiment = hector(POOLS_FOUR, 4, 0);
const NEAR_12: Experiment = hector(POOLS_FOUR, 12, 0);
const MIDDLE_4: Experiment = hector(POOLS_FOUR, 4, 8);
const MIDDLE_12: Experiment = hector(POOLS_FOUR, 12, 8);
const FAR_4: [Experiment; 2] = [hector(POOLS_FOUR, 4, 32), hector(POOLS_FOUR, 4, 64)];
const FAR_12: [Experiment; 2] = [hector(POOLS_FOUR, 12, 32), hector(POOLS_FOUR, 12, 64)];
pub(crate) const FIRST_FIT: Experiment = FOUR_4.placed(Placement::FirstFit);
const FIRST_FIT_TRACED: Experiment = FIRST_FIT.traced();
const WORST_FIT_TRACED: Experiment = FOUR_4.traced();
const BY_JOBS: Experiment = FOUR_4.placed(Placement::FewestJobs);
/// Beyond the paper: pools of four with repartitioning.
const REPARTITIONED: Experiment = FOUR_4.repartitioned();

const EIGHT_AND_FOUR: &[Experiment] =
    &[FOUR[0], FOUR[1], FOUR[2], FOUR[3], FOUR[4], EIGHT[0], EIGHT[1], EIGHT[2], EIGHT[3], EIGHT[4]];

/// The mean response time of all jobs in one experiment, divided by that in the experiment `by`.
fn combined(at: Seed, one: Experiment, by: Experiment) -> Option<f64> {
    at.change(&FIVE, one, by)
}

/// The part of a program's response time that pools of four save, compared with one pool of twelve, at a
/// delay of 16.
fn gain(at: Seed, program: &str) -> Option<f64> {
    Some(1.0 - at.change(&[program], FOUR_4, FOUR_12)?)
}

/// The response time of one experiment, divided by the smallest of the others.
fn by_best(at: Seed, one: Experiment, others: &[Experiment]) -> Option<f64> {
    let others: Option<Vec<f64>> = others.iter().map(|other| at.response(*other, &FIVE)).collect();
    divide(at.response(one, &FIVE)?, others?.into_iter().fold(f64::MAX, f64::min))
}

/// The difference of two experiments' response times, divided by the sum of the half-widths of their 90 %
/// confidence intervals. Below 1, the intervals overlap.
fn intervals_apart(at: Seed, jobs: &[&str], one: Experiment, other: Experiment) -> Option<f64> {
    let apart = (at.response(one, jobs)? - at.response(other, jobs)?).abs();
    divide(apart, at.interval(one, jobs)? + at.interval(other, jobs)?)
}

/// The number of programs whose response time is at least `part` shorter under worst fit than under first
/// fit.
fn programs_better(at: Seed, part: f64) -> Option<f64> {
    let ratios: Option<Vec<f64>> =
        FIVE.iter().map(|program| at.change(&[program], FOUR_4, FIRST_FIT)).collect();
    Some(ratios?.into_iter().map(|ratio| if ratio <= 1.0 - part { 1.0 } else { 0.0 }).sum())
}

/// The number of samples, among the first `first`, in which `holds` is true of the jobs in the pools.
fn moments(at: Seed, run: Experiment, first: usize, holds: fn(&[Vec<Option<usize>>]) -> bool) -> Option<f64> {
    let occupancy = at.of(run)?.occupancy.as_ref()?;
    let pools = |moment: &Vec<Option<usize>>| -> Vec<Vec<Option<usize>>> {
        let job_on = |cpu: &u32| moment.get(*cpu as usize).copied().flatten();
        occupancy.pools.iter().map(|pool| pool.iter().map(job_on).collect()).collect()
    };
    let count = occupancy.moments.iter().take(first).filter(|moment| holds(&pools(moment))).count();
    Some(real(count as u64))
}

/// Whether each pool is full, with the threads of a single job.
fn apart(pools: &[Vec<Option<usize>>]) -> bool {
    pools.iter().all(|pool| pool[0].is_some() && pool.iter().all(|job| *job == pool[0]))
}

/// Whether some pool has threads of three or more jobs.
fn crowded(pools: &[Vec<Option<usize>>]) -> bool {
    pools.iter().any(|pool| pool.iter().flatten().collect::<BTreeSet<_>>().len() > 2)
}

const FIGURE_4: &str = "crates/policy/src/cpu/seats/tests.rs: the_figure_of_two_jobs_of_six";
const FITS: &str = "crates/policy/src/cpu/seats/tests.rs: fits_differ_by_what_is_free";
const GROWS: &str = "crates/policy/src/cpu/seats/tests.rs: only_worst_fit_leaves_room_to_grow";
const CONSERVED: &str = "crates/policy/src/cpu/seats/tests.rs: seats_are_conserved";
const STAYS: &str = "crates/policy/src/cpu/seats/tests.rs: nobody_moves_without_need";
const BY_JOBS_TEST: &str = "crates/policy/src/cpu/seats/tests.rs: jobs_are_counted_and_not_their_threads";
const FORMED: &str = "crates/machine/src/pools.rs: sizes_that_the_seed_tries";
const HECTOR: &str = "simulator/claims/tests/configuration.rs: hector";
const TABLE_1: &str = "simulator/claims/tests/configuration.rs: hectors_latencies";
const STREAMS: &str = "simulator/claims/tests/configuration.rs: streams_of_jobs";

pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "PP-2-REQ",
            "001, section 2",
            "Pools match clusters of the hardware; jobs may span pools and share them",
            "",
        ),
        &[FORMED, FIGURE_4],
    ),
    parameter(
        (
            "PP-2-DEC",
            "001, section 2",
            "Threads are placed at arrival, expansion and contraction, and not moved otherwise",
            "",
        ),
        &[GROWS, STAYS],
    ),
    parameter(
        (
            "PP-3-HW",
            "001, section 3",
            "Processors of Hector: four stations of four, each processor with 4 MB of memory",
            "16",
        ),
        &[HECTOR],
    ),
    parameter(
        (
            "PP-3-ST0",
            "001, section 3",
            "Processors for jobs; one station of four is reserved for the system",
            "12",
        ),
        &[HECTOR],
    ),
    parameter(
        (
            "PP-3-DLY",
            "001, section 3",
            "Added delays of 0 to 64 cycles, only for packets that leave the station",
            "",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-L",
            "001, table 1",
            "Latency of a cache-line load from the processor's own memory module, in cycles",
            "19",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-S",
            "001, table 1",
            "Latency of a cache-line load from another module of the station, in cycles",
            "29",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R0",
            "001, table 1",
            "Latency of a cache-line load over the ring without added delay, in cycles",
            "37",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R4",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of 4, in cycles",
            "49",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R8",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of 8, in cycles",
            "61",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R16",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of 16, in cycles",
            "85",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R32",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of 32, in cycles",
            "133",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-R64",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of 64, in cycles",
            "229",
        ),
        &[TABLE_1],
    ),
    parameter(
        (
            "PP-T1-LIN",
            "001, table 1",
            "Latency of a cache-line load over the ring with a delay of d: 37 + 3 d cycles",
            "",
        ),
        &[TABLE_1],
    ),
    unmeasured_row(
        (
            "PP-3-CMP",
            "001, section 3",
            "Other machines have longer off-station latencies than Hector with a delay of 16",
            "",
        ),
        Basis::Outside,
        "the paper gives the latencies of other machines for comparison only",
    ),
    parameter(
        (
            "PP-3-POL",
            "001, section 3",
            "One queue for each processor, no thread migration; a thread without a free processor is not created",
            "",
        ),
        &[CONSERVED, STAYS],
    ),
    parameter(
        ("PP-T2", "001, table 2", "Speed-ups of six programs on the four processors of a station", ""),
        &[HECTOR],
    ),
    parameter(
        ("PP-5.1-CFG", "001, section 5.1", "Sizes of pools: 1, 2, 4, 6 and 12 processors", ""),
        &[FORMED],
    ),
    parameter(
        (
            "PP-5.2-WL",
            "001, section 5.2",
            "Number of jobs in figure 1: three streams of 75 jobs with four processes each",
            "225",
        ),
        &[STREAMS],
    ),
    parameter(
        (
            "PP-5.3-WL",
            "001, section 5.3",
            "Numbers of jobs in figure 2, with two, four and eight processes each",
            "300, 225, 125",
        ),
        &[STREAMS],
    ),
    parameter(
        (
            "PP-5.4-WL",
            "001, section 5.4",
            "Number of jobs in figure 3: two streams of 45 jobs with six processes each",
            "90",
        ),
        &[STREAMS],
    ),
    parameter(
        (
            "PP-6-WL",
            "001, section 6.2",
            "Number of jobs in figure 5: three streams, in pools of four, with a delay of 16",
            "225",
        ),
        &[STREAMS],
    ),
    parameter(
        (
            "PP-6.1-EXP",
            "001, section 6.1",
            "A new process goes to a pool that its job already uses, else to a pool by initial placement",
            "",
        ),
        &[FIGURE_4, GROWS],
    ),
    parameter(
        ("PP-6.2-FF", "001, section 6.2", "First fit: the first pool with a free processor", ""),
        &[FITS],
    ),
    parameter(
        (
            "PP-6.2-BF",
            "001, section 6.2",
            "Best fit: the pool with the fewest free processors, but at least one",
            "",
        ),
        &[FITS],
    ),
    parameter(
        ("PP-6.2-WF", "001, section 6.2", "Worst fit: the pool with the most free processors", ""),
        &[FITS],
    ),
    parameter(
        ("PP-6.2-ALT", "001, section 6.2", "Worst fit by jobs: the pool with the fewest jobs", ""),
        &[BY_JOBS_TEST],
    ),
    predicted(
        (
            "PP-F1-1",
            "001, section 5.2",
            "Mean response time in pools of four, relative to no pools, without added delay",
            "not significantly improved",
        ),
        between(0.88, 1.12),
        &[NEAR_4, NEAR_12],
        |at| combined(at, NEAR_4, NEAR_12),
    ),
    predicted(
        (
            "PP-F1-2a",
            "001, section 5.2",
            "Speed-up by pools of four over no pools: smallest ratio of successive delays (0, 8, 16 cycles)",
            "grows",
        ),
        above(1.0),
        &[NEAR_4, NEAR_12, MIDDLE_4, MIDDLE_12, FOUR_4, FOUR_12],
        |at| {
            smallest_step(&[
                combined(at, NEAR_12, NEAR_4)?,
                combined(at, MIDDLE_12, MIDDLE_4)?,
                combined(at, FOUR_12, FOUR_4)?,
            ])
        },
    ),
    predicted(
        (
            "PP-F1-2b",
            "001, section 5.2",
            "Mean response time in pools of four, relative to no pools, with a delay of 16",
            "substantial",
        ),
        Tolerance::AtMost { high: 0.85 },
        &[FOUR_4, FOUR_12],
        |at| combined(at, FOUR_4, FOUR_12),
    ),
    predicted(
        (
            "PP-F1-3",
            "001, section 5.2",
            "Mean response time in pools of four, relative to the best other pool size, with a delay of 16",
            "best",
        ),
        below(1.0),
        &FOUR,
        |at| by_best(at, FOUR_4, &[FOUR[0], FOUR[1], FOUR_6, FOUR_12]),
    ),
    predicted(
        (
            "PP-F1-4",
            "001, section 5.2",
            "Reduction in response time by pools of four: NEURAL relative to the mean of the four others",
            "an exception",
        ),
        Tolerance::AtMost { high: 0.5 },
        &[FOUR_4, FOUR_12],
        |at| {
            let others: Option<Vec<f64>> =
                ["fft", "hough", "mm", "pde"].iter().map(|program| gain(at, program)).collect();
            divide(gain(at, "neural")?, others?.iter().sum::<f64>() / 4.0)
        },
    ),
    predicted(
        (
            "PP-F1-5",
            "001, section 5.2",
            "Mean response time in two pools of six, relative to no pools, with a delay of 16",
            "a trend",
        ),
        below(1.0),
        &[FOUR_6, FOUR_12],
        |at| combined(at, FOUR_6, FOUR_12),
    ),
    predicted(
        (
            "PP-F1-6",
            "001, section 5.2",
            "Mean response time with the worst of pool sizes 2, 4 and 6, relative to no pools",
            "improved",
        ),
        below(1.0),
        &FOUR,
        |at| {
            let response = |run| combined(at, run, FOUR_12);
            Some(response(FOUR[1])?.max(response(FOUR_4)?).max(response(FOUR_6)?))
        },
    ),
    unmeasured_row(
        ("PP-F1-V", "001, figure 1", "Response times of figure 1", ""),
        Basis::Lost,
        "only in the figure",
    ),
    predicted(
        (
            "PP-F2-1",
            "001, section 5.3",
            "Jobs of eight processes: mean response time with the worst pool size, relative to the best",
            "no effect",
        ),
        Tolerance::AtMost { high: 1.10 },
        &EIGHT,
        |at| {
            let times: Option<Vec<f64>> = EIGHT.iter().map(|run| at.response(*run, &FIVE)).collect();
            let times = times?;
            divide(times.iter().copied().fold(0.0, f64::max), times.iter().copied().fold(f64::MAX, f64::min))
        },
    ),
    predicted(
        (
            "PP-F2-2a",
            "001, section 5.3",
            "Jobs of two processes: mean response time in pools of two, relative to pools of four",
            "no difference",
        ),
        between(0.92, 1.08),
        &TWO,
        |at| combined(at, TWO[1], TWO[2]),
    ),
    predicted(
        (
            "PP-F2-2b",
            "001, section 5.3",
            "Jobs of two processes: response time, worse of pool sizes 2 and 4 relative to best of 1, 6 and 12",
            "best",
        ),
        below(1.0),
        &TWO,
        |at| {
            let rest = [TWO[0], TWO[3], TWO[4]];
            Some(by_best(at, TWO[1], &rest)?.max(by_best(at, TWO[2], &rest)?))
        },
    ),
    predicted(
        (
            "PP-F2-3",
            "001, section 5.3",
            "Jobs of four processes: mean response time in pools of four, relative to the best other size",
            "minimal",
        ),
        below(1.0),
        &FOUR,
        |at| by_best(at, FOUR_4, &[FOUR[0], FOUR[1], FOUR_6, FOUR_12]),
    ),
    predicted(
        (
            "PP-F2-4",
            "001, section 5.3",
            "Response time of MM with eight processes, relative to four: smallest ratio of all pool sizes",
            "equal or higher",
        ),
        Tolerance::AtLeast { low: 1.0 },
        EIGHT_AND_FOUR,
        |at| {
            let ratios: Option<Vec<f64>> =
                EIGHT.iter().zip(FOUR).map(|(eight, four)| at.change(&["mm"], *eight, four)).collect();
            ratios.map(|ratios| ratios.into_iter().fold(f64::MAX, f64::min))
        },
    ),
    predicted(
        (
            "PP-F2-5",
            "001, section 5.3",
            "Response time, 4 processes in pools of 4 relative to 8 in the best pools: lowest of five programs",
            "some",
        ),
        below(1.0),
        EIGHT_AND_FOUR,
        |at| {
            let ratio = |program: &str| -> Option<f64> {
                let eight: Option<Vec<f64>> = EIGHT.iter().map(|run| at.response(*run, &[program])).collect();
                divide(at.response(FOUR_4, &[program])?, eight?.into_iter().fold(f64::MAX, f64::min))
            };
            let ratios: Option<Vec<f64>> = FIVE.iter().map(|program| ratio(program)).collect();
            ratios.map(|ratios| ratios.into_iter().fold(f64::MAX, f64::min))
        },
    ),
    unmeasured_row(
        ("PP-F2-V", "001, figure 2", "Response times of figure 2", ""),
        Basis::Lost,
        "only in the figure",
    ),
    predicted(
        (
            "PP-F3-1a",
            "001, section 5.4",
            "HOUGH, 6 processes: response-time difference of pools of 4 and 6, relative to summed 90 % half-widths",
            "not significant",
        ),
        Tolerance::AtMost { high: 1.0 },
        &[SIX_4, SIX_6],
        |at| intervals_apart(at, &["hough"], SIX_4, SIX_6),
    ),
    predicted(
        (
            "PP-F3-1b",
            "001, section 5.4",
            "SIMPLEX, 6 processes: response-time difference of pools of 4 and 6, relative to summed 90 % half-widths",
            "not significant",
        ),
        Tolerance::AtMost { high: 1.0 },
        &[SIX_4, SIX_6],
        |at| intervals_apart(at, &["simplex"], SIX_4, SIX_6),
    ),
    predicted(
        (
            "PP-F3-2a",
            "001, section 5.4",
            "Response time of MM with six processes in pools of four, relative to pools of six",
            "better",
        ),
        below(1.0),
        &[SIX_4, SIX_6],
        |at| at.change(&["mm"], SIX_4, SIX_6),
    ),
    predicted(
        (
            "PP-F3-2b",
            "001, section 5.4",
            "Response time in pools of 4 relative to 6: MM's ratio divided by the lower of HOUGH's and SIMPLEX's",
            "pronounced",
        ),
        below(1.0),
        &[SIX_4, SIX_6],
        |at| {
            let change = |program| at.change(&[program], SIX_4, SIX_6);
            divide(change("mm")?, change("hough")?.min(change("simplex")?))
        },
    ),
    predicted(
        (
            "PP-F3-3",
            "001, section 5.4",
            "Jobs of six processes: mean response time in pools of four, relative to pools of six",
            "architecture counts more",
        ),
        Tolerance::AtMost { high: 1.0 },
        &[SIX_4, SIX_6],
        |at| at.change(&THREE, SIX_4, SIX_6),
    ),
    unmeasured_row(
        ("PP-F3-V", "001, figure 3", "Percentages above the bars of figure 3", ""),
        Basis::Lost,
        "only in the figure",
    ),
    parameter(
        (
            "PP-F4",
            "001, figure 4",
            "Placement of two jobs of six processes on three stations",
            "A1-4, A5-6 B5-6, B1-4",
        ),
        &[FIGURE_4],
    ),
    predicted(
        (
            "PP-F5-1",
            "001, section 6.2",
            "Number of programs, of five, whose response time is 15 % or more lower under worst fit than first fit",
            "3 by 20 %",
        ),
        Tolerance::AtLeast { low: 3.0 },
        &[FOUR_4, FIRST_FIT],
        |at| programs_better(at, 0.15),
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "PP-F5-2",
            "001, section 6.2",
            "Mean response time of all jobs under worst fit, relative to first fit",
            "significantly better",
        ),
        Tolerance::AtMost { high: 0.9 },
        &[FOUR_4, FIRST_FIT],
        |at| combined(at, FOUR_4, FIRST_FIT),
    ),
    predicted(
        (
            "PP-F6a",
            "001, figure 6",
            "Samples (every 0.1 s) in which a single job fills each station, under first fit",
            "lines 12 to 17",
        ),
        Tolerance::AtLeast { low: 1.0 },
        &[FIRST_FIT_TRACED],
        |at| moments(at, FIRST_FIT_TRACED, usize::MAX, apart),
    ),
    predicted(
        (
            "PP-F6b",
            "001, figure 6",
            "Samples (every 0.1 s) in which three or more jobs share a station, under first fit",
            "lines 22 and 23",
        ),
        Tolerance::AtLeast { low: 1.0 },
        &[FIRST_FIT_TRACED],
        |at| moments(at, FIRST_FIT_TRACED, usize::MAX, crowded),
    ),
    predicted(
        (
            "PP-F6c",
            "001, section 6.2",
            "Samples in the first second in which three or more jobs share a station, under worst fit",
            "never",
        ),
        Tolerance::AlwaysAtMost { high: 0.0 },
        &[WORST_FIT_TRACED],
        |at| moments(at, WORST_FIT_TRACED, 10, crowded),
    ),
    predicted(
        (
            "PP-6-JOBS",
            "001, section 6.2",
            "Mean response time under worst fit by jobs, relative to worst fit by processors",
            "similar",
        ),
        between(0.95, 1.05),
        &[FOUR_4, BY_JOBS],
        |at| combined(at, BY_JOBS, FOUR_4),
    ),
    unmeasured_row(
        ("PP-8-CONT", "001, section 8", "Pools reduce contention in the interconnect", "not observable"),
        Basis::Outside,
        "the paper could not observe it",
    ),
    predicted(
        (
            "PP-8-GAP",
            "001, section 8",
            "Response time in pools of four, relative to no pools: largest ratio of successive delays, 0 to 64",
            "gains grow",
        ),
        below(1.0),
        &[NEAR_4, NEAR_12, MIDDLE_4, MIDDLE_12, FOUR_4, FOUR_12, FAR_4[0], FAR_12[0], FAR_4[1], FAR_12[1]],
        |at| {
            largest_step(&[
                combined(at, NEAR_4, NEAR_12)?,
                combined(at, MIDDLE_4, MIDDLE_12)?,
                combined(at, FOUR_4, FOUR_12)?,
                combined(at, FAR_4[0], FAR_12[0])?,
                combined(at, FAR_4[1], FAR_12[1])?,
            ])
        },
    ),
    predicted(
        (
            "PP-ABS-2",
            "001, abstract",
            "Jobs of six processes: mean response time in pools of a station's size, relative to the job's size",
            "architecture",
        ),
        Tolerance::AtMost { high: 1.0 },
        &[SIX_4, SIX_6],
        |at| at.change(&THREE, SIX_4, SIX_6),
    ),
    predicted(
        (
            "OURS-POOLS",
            "ours",
            "Mean response time under worst fit with repartitioning, relative to worst fit without",
            "",
        ),
        Tolerance::AtMost { high: 1.0 },
        &[REPARTITIONED, FOUR_4],
        |at| combined(at, REPARTITIONED, FOUR_4),
    )
    .basis(Basis::Beyond),
];
