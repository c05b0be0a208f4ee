//! Sections 3 to 5 of seed 003: programs that share a memory bus, and gangs that are chosen by their bus
//! transfers.
//!
//! A program's time is the mean of its two copies. The rates of nine of the eleven programs are inferred (see
//! `scenarios/bus/workload.toml`): from the slowdowns of the four programs with the highest rates, and from
//! the mean and the largest slowdown of the others. So the rows about these slowdowns are calibrated. No
//! parameter was fitted to figure 2.

use commonhold_contract::{Gangs, Scheme};
use commonhold_sim_report::claims::{Basis, Tolerance};

use super::{Row, above, below, between, parameter, predicted, unmeasured_row};
use crate::experiments::{BUS, Experiment, as_it_is};
use crate::measure::{Seed, busy, divide, real};

/// The programs in the order of figure 1, by their bus rates.
const PROGRAMS: [&str; 11] =
    ["radiosity", "water-nsqr", "volrend", "barnes", "fmm", "lu-cb", "bt", "sp", "mg", "raytrace", "cg"];

/// The indices of the four programs that exceed the bus's capacity twice over, and of the seven others.
const HIGH: [usize; 4] = [7, 8, 9, 10];
const MODERATE: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];
const LU: usize = 5;
const BT: usize = 6;
const RAYTRACE: usize = 9;
const CG: usize = 10;

/// The capacity of the bus, in transactions per microsecond.
const BUS_RATE: f64 = 29.5;

/// These jobs under Linux 2.4 alone, without gangs.
const fn linux(jobs: &'static [(&'static str, u32)]) -> Experiment {
    as_it_is(BUS, Scheme::Smp).gangs(Gangs::Off).jobs(jobs)
}

/// An experiment per program: copies of the program, and the jobs beside them.
macro_rules! each_program {
    ($copies:literal $(, $beside:expr)*) => {
        [
            linux(&[("radiosity", $copies) $(, $beside)*]),
            linux(&[("water-nsqr", $copies) $(, $beside)*]),
            linux(&[("volrend", $copies) $(, $beside)*]),
            linux(&[("barnes", $copies) $(, $beside)*]),
            linux(&[("fmm", $copies) $(, $beside)*]),
            linux(&[("lu-cb", $copies) $(, $beside)*]),
            linux(&[("bt", $copies) $(, $beside)*]),
            linux(&[("sp", $copies) $(, $beside)*]),
            linux(&[("mg", $copies) $(, $beside)*]),
            linux(&[("raytrace", $copies) $(, $beside)*]),
            linux(&[("cg", $copies) $(, $beside)*]),
        ]
    };
}

type Each = [Experiment; 11];

// Figure 1: no CPU has more than one thread.
const ALONE: Each = each_program!(1);
const DOUBLED: Each = each_program!(2);
const BESIDE_BBMA: Each = each_program!(1, ("bbma", 2));
const BESIDE_NBBMA: Each = each_program!(1, ("nbbma", 2));
// Figure 2: two threads for each CPU.
const A: Each = each_program!(2, ("bbma", 4));
const B: Each = each_program!(2, ("nbbma", 4));
const C: Each = each_program!(2, ("bbma", 2), ("nbbma", 2));
const BBMA_ALONE: Experiment = linux(&[("bbma", 1), ("radiosity", 1)]);
/// The worst case of section 4: copies of a program that transfers little.
const COPIES: Experiment = linux(&[("radiosity", 4)]);

const fn by(mut runs: Each, by: Gangs) -> Each {
    let mut at = 0;
    while at < runs.len() {
        runs[at] = runs[at].gangs(by);
        at += 1;
    }
    runs
}

/// Sets the bus's capacity, in percent of the machine file's.
const fn on_a_bus(mut runs: Each, percent: u16) -> Each {
    let mut at = 0;
    while at < runs.len() {
        runs[at] = runs[at].bus_percent(percent);
        at += 1;
    }
    runs
}

const fn traced(mut runs: Each) -> Each {
    let mut at = 0;
    while at < runs.len() {
        runs[at] = runs[at].traced();
        at += 1;
    }
    runs
}

/// A set of experiments under Linux, under the two published policies, and under this project's policy.
#[derive(Clone, Copy)]
struct Set {
    linux: Each,
    latest: Each,
    window: Each,
    demand: Each,
}

const fn set(linux: &'static Each) -> Set {
    Set {
        linux: *linux,
        latest: by(*linux, Gangs::LatestQuantum),
        window: by(*linux, Gangs::QuantaWindow),
        demand: by(*linux, Gangs::Demand),
    }
}

const SET_A: Set = set(&A);
const SET_B: Set = set(&B);
const SET_C: Set = set(&C);
const A_TRACED: Each = traced(SET_A.window);
const B_TRACED: Each = traced(SET_B.window);
/// Set B on a bus of four times the capacity.
const B_WIDE: Set = set(&on_a_bus(B, 400));
/// Set B on buses of twice and of half the capacity.
const B_TWICE: Set = set(&on_a_bus(B, 200));
const B_HALF: Set = set(&on_a_bus(B, 50));
const DOUBLED_HALF: Each = on_a_bus(DOUBLED, 50);

/// The concatenation of lists of experiments.
macro_rules! all {
    ($($each:expr),+) => {{
        const LISTS: &[Each] = &[$($each),+];
        const ALL: [Experiment; LISTS.len() * 11] = {
            let mut all = [LISTS[0][0]; LISTS.len() * 11];
            let mut at = 0;
            while at < all.len() {
                all[at] = LISTS[at / 11][at % 11];
                at += 1;
            }
            all
        };
        &ALL
    }};
}

/// All sets, under Linux and both published policies.
const PUBLISHED: &[Experiment] = all!(
    SET_A.linux,
    SET_A.latest,
    SET_A.window,
    SET_B.linux,
    SET_B.latest,
    SET_B.window,
    SET_C.linux,
    SET_C.latest,
    SET_C.window
);

/// A row: the mean improvement over Linux under a policy, in a set.
macro_rules! improves {
    ($id:literal, $place:literal, $says:literal, $printed:literal, $set:ident, $policy:ident) => {
        predicted(($id, $place, $says, $printed), above(0.0), all!($set.linux, $set.$policy), |at| {
            mean(&improvements(at, &$set.$policy, &$set.linux)?)
        })
    };
}

/// A row: by how much this project's policy improves on the better published policy, in a set.
macro_rules! ahead {
    ($id:literal, $says:literal, $set:ident) => {
        predicted(
            ($id, "ours", $says, "0.05"),
            Tolerance::AtLeast { low: 0.05 },
            all!($set.linux, $set.latest, $set.window, $set.demand),
            |at| ahead(at, &$set),
        )
        .basis(Basis::Beyond)
    };
}

/// A program's time divided by its time alone.
fn slowdown(at: Seed, runs: &Each, program: usize) -> Option<f64> {
    at.change(&[PROGRAMS[program]], runs[program], ALONE[program])
}

fn slowdowns(at: Seed, runs: &Each, programs: &[usize]) -> Option<Vec<f64>> {
    programs.iter().map(|program| slowdown(at, runs, *program)).collect()
}

/// The bus rate of a run: the transfers of all jobs while the program runs, in transactions per microsecond.
fn carried(at: Seed, run: Experiment) -> Option<f64> {
    let outcome = at.of(run)?;
    let sum: u64 = outcome.jobs.iter().map(|job| job.spent.transferred / 1_000_000).sum();
    divide(real(sum), real(outcome.ended_ns) / 1e3)
}

/// The number of programs of which two copies use at least 85 % of a bus with capacity `bus`.
fn that_fill(at: Seed, runs: &Each, bus: f64) -> Option<f64> {
    let carried: Option<Vec<f64>> = runs.iter().map(|run| carried(at, *run)).collect();
    Some(real(carried?.iter().filter(|carried| **carried >= 0.85 * bus).count() as u64))
}

/// The part of a program's time under Linux that a policy saves.
fn improvement(at: Seed, runs: &Each, linux: &Each, program: usize) -> Option<f64> {
    Some(1.0 - at.change(&[PROGRAMS[program]], runs[program], linux[program])?)
}

fn improvements(at: Seed, runs: &Each, linux: &Each) -> Option<Vec<f64>> {
    (0..PROGRAMS.len()).map(|program| improvement(at, runs, linux, program)).collect()
}

/// The mean improvement of a program's CPU time over Linux: what remains of an improvement when each program
/// has as much CPU time as under Linux.
fn mean_improvement_of_cpu_time(at: Seed, runs: &Each, linux: &Each) -> Option<f64> {
    let improvement = |program: usize| {
        let of = |run: Experiment| at.spent(run, &[PROGRAMS[program]], busy);
        Some(1.0 - divide(of(runs[program])?, of(linux[program])?)?)
    };
    let all: Option<Vec<f64>> = (0..PROGRAMS.len()).map(improvement).collect();
    mean(&all?)
}

fn mean(figures: &[f64]) -> Option<f64> {
    divide(figures.iter().sum(), real(figures.len() as u64))
}

fn most(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::MIN, f64::max)
}

fn least(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::MAX, f64::min)
}

/// The mean improvement of this project's policy over Linux, less that of the better published policy.
fn ahead(at: Seed, set: &Set) -> Option<f64> {
    let improvement = |runs| mean(&improvements(at, runs, &set.linux)?);
    Some(improvement(&set.demand)? - improvement(&set.latest)?.max(improvement(&set.window)?))
}

/// The fraction of a run's samples in which `holds` is true of the names of the jobs on the CPUs.
fn moments(at: Seed, run: Experiment, holds: impl Fn(&[&str]) -> bool) -> Option<f64> {
    let outcome = at.of(run)?;
    let occupancy = outcome.occupancy.as_ref()?;
    // The first second is for measuring.
    let later = occupancy.moments.iter().skip(10);
    let name =
        |job: usize| outcome.jobs.get(occupancy.jobs[job] as usize).map_or("", |job| job.name.as_str());
    let (mut all, mut held) = (0u64, 0u64);
    for moment in later {
        let names: Vec<&str> = moment.iter().flatten().map(|job| name(*job)).collect();
        all += 1;
        held += u64::from(holds(&names));
    }
    divide(real(held), real(all))
}

const FIT: &str = "crates/policy/src/gangs/fit.rs: the_nearest_to_what_is_left_for_each_cpu_is_the_fittest";
const OVERLOADED: &str =
    "crates/policy/src/gangs/fit.rs: where_too_much_was_given_the_one_that_transfers_least_is_the_fittest";
const STARVES: &str = "crates/policy/src/gangs/tests.rs: nobody_starves";
const BESIDE_HEAD: &str = "crates/policy/src/gangs/tests.rs: the_fittest_runs_beside_the_head";
const WINDOW: &str = "crates/policy/src/gangs/rates.rs: the_latest_quantum_and_the_average_of_five";
const XEONS: &str = "simulator/claims/tests/configuration.rs: four_xeons";
const BUS_SETS: &str = "simulator/claims/tests/configuration.rs: sets_of_programs_on_a_bus";

pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "BB-HW",
            "003, section 3",
            "Number of processors: Xeons of 1.4 GHz with 256 KB of cache each, 1 GB of memory, Linux 2.4",
            "4",
        ),
        &[XEONS],
    ),
    parameter(
        (
            "BB-BUS",
            "003, section 3",
            "Bus transactions per microsecond of STREAM on all CPUs (1797 MB/s)",
            "29.5",
        ),
        &[XEONS],
    ),
    predicted(
        (
            "BB-BBMA",
            "003, section 3",
            "Bus transactions per microsecond of one BBMA, which always misses its cache",
            "23.6",
        ),
        between(23.0, 24.2),
        &[BBMA_ALONE],
        |at| {
            let outcome = at.of(BBMA_ALONE)?;
            let bbma = outcome.jobs.iter().find(|job| job.name == "bbma")?;
            divide(real(bbma.spent.transferred / 1_000_000), real(bbma.spent.on_cpus_ns()) / 1e3)
        },
    )
    .basis(Basis::Calibrated),
    parameter(
        (
            "BB-NBBMA",
            "003, section 3",
            "Bus transactions per microsecond of one nBBMA, which always hits its cache",
            "0.0037",
        ),
        &[BUS_SETS],
    ),
    parameter(
        (
            "BB-4SETS",
            "003, section 3",
            "A program alone, two copies of it, beside two BBMA, beside two nBBMA; no CPU is shared",
            "",
        ),
        &[BUS_SETS],
    ),
    predicted(
        (
            "BB-F1A-1",
            "003, section 3, figure 1A",
            "Bus transactions per microsecond of CG alone, the program with the highest rate",
            "23.31",
        ),
        between(22.6, 24.0),
        &[ALONE[CG]],
        |at| carried(at, ALONE[CG]),
    )
    .basis(Basis::Calibrated),
    parameter(
        ("BB-F1A-O", "003, figure 2", "The order of the programs by their rates of bus transactions", ""),
        &[BUS_SETS],
    ),
    unmeasured_row(
        (
            "BB-F1A-V",
            "003, figure 1A",
            "Bus transaction rates of the nine programs between the lowest and the highest",
            "",
        ),
        Basis::Lost,
        "only in the figure",
    ),
    predicted(
        (
            "BB-F1A-2",
            "003, section 3, figure 1A",
            "Smallest fraction of the bus capacity that two copies of SP, MG, Raytrace or CG use",
            "close to 1",
        ),
        Tolerance::AtLeast { low: 0.85 },
        all!(DOUBLED),
        |at| {
            let carried: Option<Vec<f64>> =
                HIGH.iter().map(|program| carried(at, DOUBLED[*program])).collect();
            divide(least(&carried?), BUS_RATE)
        },
    ),
    predicted(
        (
            "BB-F1B-2a",
            "003, section 3, figure 1B",
            "Largest slowdown of two copies of SP, MG, Raytrace or CG, relative to one alone",
            "1.61",
        ),
        between(1.56, 1.66),
        all!(ALONE, DOUBLED),
        |at| Some(most(&slowdowns(at, &DOUBLED, &HIGH)?)),
    ),
    predicted(
        (
            "BB-F1B-2b",
            "003, section 3, figure 1B",
            "Smallest slowdown of two copies of SP, MG, Raytrace or CG, relative to one alone",
            "1.41",
        ),
        between(1.36, 1.46),
        all!(ALONE, DOUBLED),
        |at| Some(least(&slowdowns(at, &DOUBLED, &HIGH)?)),
    )
    .basis(Basis::Calibrated),
    unmeasured_row(
        (
            "BB-F1-RT",
            "003, section 3",
            "Bus transactions per microsecond of four Raytrace threads, more than of STREAM",
            "34.89",
        ),
        Basis::Outside,
        "the authors could not explain it; the model's bus cannot exceed its capacity",
    ),
    predicted(
        (
            "BB-F1-CONT",
            "003, section 3",
            "Slowdown of two copies of BT, which leave half of the bus unused, relative to one alone",
            "more than 1",
        ),
        above(1.0),
        all!(ALONE, DOUBLED),
        |at| slowdown(at, &DOUBLED, BT),
    ),
    predicted(
        (
            "BB-F1-SAT",
            "003, section 3",
            "Bus transactions per microsecond of a program and two BBMA, mean over the programs",
            "28.34",
        ),
        between(26.9, 29.8),
        all!(BESIDE_BBMA),
        |at| {
            let carried: Option<Vec<f64>> = BESIDE_BBMA.iter().map(|run| carried(at, *run)).collect();
            mean(&carried?)
        },
    ),
    predicted(
        (
            "BB-F1-MEMa",
            "003, section 3, abstract",
            "Largest slowdown of SP, MG, Raytrace and CG beside two BBMA, relative to alone",
            "almost 3",
        ),
        between(2.5, 3.0),
        all!(ALONE, BESIDE_BBMA),
        |at| Some(most(&slowdowns(at, &BESIDE_BBMA, &HIGH)?)),
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "BB-F1-MEMb",
            "003, section 3",
            "Smallest slowdown of SP, MG, Raytrace and CG beside two BBMA, relative to alone",
            "2 or more",
        ),
        Tolerance::AtLeast { low: 2.0 },
        all!(ALONE, BESIDE_BBMA),
        |at| Some(least(&slowdowns(at, &BESIDE_BBMA, &HIGH)?)),
    ),
    predicted(
        (
            "BB-F1-MODa",
            "003, section 3",
            "Smallest slowdown of the seven programs with lower rates beside two BBMA, relative to alone",
            "1.02",
        ),
        between(1.0, 1.07),
        all!(ALONE, BESIDE_BBMA),
        |at| Some(least(&slowdowns(at, &BESIDE_BBMA, &MODERATE)?)),
    ),
    predicted(
        (
            "BB-F1-MODb",
            "003, section 3",
            "Largest slowdown of the seven programs with lower rates beside two BBMA, relative to alone",
            "1.55",
        ),
        between(1.5, 1.6),
        all!(ALONE, BESIDE_BBMA),
        |at| Some(most(&slowdowns(at, &BESIDE_BBMA, &MODERATE)?)),
    )
    .basis(Basis::Calibrated),
    predicted(
        (
            "BB-F1-MODc",
            "003, section 3",
            "Mean slowdown of the seven programs with lower rates beside two BBMA, relative to alone",
            "1.18",
        ),
        between(1.13, 1.23),
        all!(ALONE, BESIDE_BBMA),
        |at| mean(&slowdowns(at, &BESIDE_BBMA, &MODERATE)?),
    )
    .basis(Basis::Calibrated),
    unmeasured_row(
        (
            "BB-F1-LU",
            "003, section 3",
            "Slowdown of LU CB and Water-nsqr beyond expectation, since they depend on their caches",
            "",
        ),
        Basis::Outside,
        "in the model no thread migrates while no CPU has two threads",
    ),
    predicted(
        (
            "BB-F1-NB",
            "003, section 3",
            "Largest slowdown of a program beside two nBBMA, relative to alone",
            "almost identical",
        ),
        Tolerance::AtMost { high: 1.02 },
        all!(ALONE, BESIDE_NBBMA),
        |at| Some(most(&slowdowns(at, &BESIDE_NBBMA, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])?)),
    ),
    predicted(
        (
            "BB-F1-TS",
            "003, sections 1 and 3",
            "Slowdown of CG beside two BBMA, relative to alone (time-sharing one CPU would be 2)",
            "more than 2",
        ),
        above(2.0),
        all!(ALONE, BESIDE_BBMA),
        |at| slowdown(at, &BESIDE_BBMA, CG),
    ),
    parameter(
        ("BB-4-GANG", "003, section 4", "All threads of a program run at once, or none of them", ""),
        &[STARVES, BESIDE_HEAD],
    ),
    parameter(
        (
            "BB-4-HEAD",
            "003, section 4",
            "The program at the head of the list always runs, so no program starves",
            "",
        ),
        &[STARVES],
    ),
    parameter(
        (
            "BB-4-LQ",
            "003, section 4",
            "Latest quantum: a program's last rate is compared with the bus capacity left for each free CPU",
            "",
        ),
        &[FIT, BESIDE_HEAD],
    ),
    parameter(
        (
            "BB-4-FIT",
            "003, section 4",
            "The fittest program's rate per thread is nearest to the bus capacity left for each free CPU",
            "",
        ),
        &[FIT],
    ),
    parameter(
        (
            "BB-4-NEG",
            "003, section 4",
            "On an overloaded bus, the fittest program is the one with the lowest rate",
            "",
        ),
        &[OVERLOADED],
    ),
    parameter(
        (
            "BB-4-QW",
            "003, section 4",
            "Quanta window: number of latest quanta over which rates are averaged",
            "5",
        ),
        &[WINDOW],
    ),
    unmeasured_row(
        ("BB-4-MGR", "003, section 4", "The user-level CPU manager, its shared page and its signals", ""),
        Basis::Outside,
        "part of the live daemon, and tested there",
    ),
    predicted(
        (
            "BB-4-OVH",
            "003, section 4",
            "Response time of four copies of Radiosity under the latest quantum, relative to Linux",
            "1.045 at most",
        ),
        Tolerance::AtMost { high: 1.05 },
        &[COPIES, COPIES.gangs(Gangs::LatestQuantum)],
        |at| at.change(&["radiosity"], COPIES.gangs(Gangs::LatestQuantum), COPIES),
    ),
    parameter(("BB-5-Q", "003, section 5", "Length of a quantum of the bus policies", "200 ms"), &[BUS_SETS]),
    parameter(
        ("BB-5-MPL", "003, section 5", "Sets A, B and C of figure 2: eight threads on four CPUs", ""),
        &[BUS_SETS],
    ),
    improves!(
        "BB-F2A-L",
        "003, section 5, figure 2A",
        "Mean improvement over Linux by the latest quantum, set A (two copies beside four BBMA)",
        "0.41",
        SET_A,
        latest
    ),
    improves!(
        "BB-F2A-W",
        "003, section 5, figure 2A",
        "Mean improvement over Linux by the quanta window, set A (two copies beside four BBMA)",
        "0.31",
        SET_A,
        window
    ),
    improves!(
        "BB-F2B-L",
        "003, section 5, figure 2B",
        "Mean improvement over Linux by the latest quantum, set B (two copies beside four nBBMA)",
        "0.13",
        SET_B,
        latest
    ),
    improves!(
        "BB-F2B-W",
        "003, section 5, figure 2B",
        "Mean improvement over Linux by the quanta window, set B (two copies beside four nBBMA)",
        "0.21",
        SET_B,
        window
    ),
    improves!(
        "BB-F2C-L",
        "003, section 5, figure 2C",
        "Mean improvement over Linux by the latest quantum, set C (two copies beside two BBMA and two nBBMA)",
        "0.26",
        SET_C,
        latest
    ),
    improves!(
        "BB-F2C-W",
        "003, section 5, figure 2C",
        "Mean improvement over Linux by the quanta window, set C (two copies beside two BBMA and two nBBMA)",
        "0.25",
        SET_C,
        window
    ),
    predicted(
        ("BB-F2-AVG", "003, abstract", "Mean improvement over Linux of all sets and both policies", "0.26"),
        above(0.0),
        PUBLISHED,
        |at| {
            let mut all = Vec::new();
            for set in [&SET_A, &SET_B, &SET_C] {
                all.extend(improvements(at, &set.latest, &set.linux)?);
                all.extend(improvements(at, &set.window, &set.linux)?);
            }
            mean(&all)
        },
    ),
    predicted(
        (
            "BB-F2-STAB",
            "003, sections 5 and 6",
            "Worst improvement of Raytrace and LU in any set: quanta window minus latest quantum",
            "more stable",
        ),
        above(0.0),
        PUBLISHED,
        |at| {
            let (mut window, mut latest) = (f64::MAX, f64::MAX);
            for set in [&SET_A, &SET_B, &SET_C] {
                for program in [LU, RAYTRACE] {
                    window = window.min(improvement(at, &set.window, &set.linux, program)?);
                    latest = latest.min(improvement(at, &set.latest, &set.linux, program)?);
                }
            }
            Some(window - latest)
        },
    ),
    predicted(
        (
            "BB-F2A-M",
            "003, section 5",
            "Quanta window, set A: fraction of samples in which 0, 2 or 4 threads of a low-rate program run",
            "at least two run together",
        ),
        Tolerance::AtLeast { low: 0.9 },
        all!(A_TRACED),
        |at| {
            let whole = |program: usize| {
                let name = PROGRAMS[program];
                moments(at, A_TRACED[program], move |names| {
                    names.iter().filter(|other| **other == name).count() % 2 == 0
                })
            };
            let parts: Option<Vec<f64>> = MODERATE.iter().map(|program| whole(*program)).collect();
            mean(&parts?)
        },
    ),
    predicted(
        (
            "BB-F2B-M",
            "003, section 5",
            "Quanta window, set B: fraction of samples in which at most two threads of a high-rate program run",
            "pairs with nBBMA",
        ),
        Tolerance::AtLeast { low: 0.9 },
        all!(B_TRACED),
        |at| {
            let apart = |program: usize| {
                let name = PROGRAMS[program];
                moments(at, B_TRACED[program], move |names| {
                    names.iter().filter(|other| **other == name).count() <= 2
                })
            };
            let parts: Option<Vec<f64>> = HIGH.iter().map(|program| apart(*program)).collect();
            mean(&parts?)
        },
    ),
    unmeasured_row(
        (
            "BB-F2-CACHE",
            "003, section 5",
            "Quanta of 200 ms have no measurable effect on cache performance",
            "",
        ),
        Basis::Outside,
        "needs the counters of a real machine",
    ),
    unmeasured_row(
        ("BB-F2-V", "003, figure 2", "Improvement of each program in figure 2", ""),
        Basis::Lost,
        "only in the figure",
    ),
    predicted(
        (
            "OURS-BUS-CPU-L",
            "ours",
            "Mean reduction in a program's CPU time by the latest quantum, relative to Linux, set B",
            "",
        ),
        Tolerance::None,
        all!(SET_B.linux, SET_B.latest),
        |at| mean_improvement_of_cpu_time(at, &SET_B.latest, &SET_B.linux),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-CPU-W",
            "ours",
            "Mean reduction in a program's CPU time by the quanta window, relative to Linux, set B",
            "",
        ),
        Tolerance::None,
        all!(SET_B.linux, SET_B.window),
        |at| mean_improvement_of_cpu_time(at, &SET_B.window, &SET_B.linux),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-WIDE-L",
            "ours",
            "Mean improvement over Linux by the latest quantum, set B with four times the bus capacity",
            "",
        ),
        Tolerance::None,
        all!(B_WIDE.linux, B_WIDE.latest),
        |at| mean(&improvements(at, &B_WIDE.latest, &B_WIDE.linux)?),
    )
    .basis(Basis::Beyond),
    ahead!(
        "OURS-BUS-A",
        "Mean improvement over Linux, set A: policy demand minus the better published policy",
        SET_A
    ),
    ahead!(
        "OURS-BUS-B",
        "Mean improvement over Linux, set B: policy demand minus the better published policy",
        SET_B
    ),
    ahead!(
        "OURS-BUS-C",
        "Mean improvement over Linux, set C: policy demand minus the better published policy",
        SET_C
    ),
    predicted(
        (
            "OURS-BUS-SLOW",
            "ours",
            "Largest time of a program under policy demand, relative to Linux, over all sets",
            "1.01",
        ),
        Tolerance::AtMost { high: 1.01 },
        all!(SET_A.linux, SET_A.demand, SET_B.linux, SET_B.demand, SET_C.linux, SET_C.demand),
        |at| {
            let mut worst = f64::MAX;
            for set in [&SET_A, &SET_B, &SET_C] {
                worst = worst.min(least(&improvements(at, &set.demand, &set.linux)?));
            }
            Some(1.0 - worst)
        },
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-OVH",
            "ours",
            "Response time of four copies of Radiosity under policy demand, relative to Linux",
            "1.02",
        ),
        Tolerance::AtMost { high: 1.02 },
        &[COPIES, COPIES.gangs(Gangs::Demand)],
        |at| at.change(&["radiosity"], COPIES.gangs(Gangs::Demand), COPIES),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-WIDE",
            "ours",
            "Mean improvement by policy demand in set B: four times the bus capacity relative to the published one",
            "goes to nothing",
        ),
        below(1.0),
        all!(SET_B.linux, SET_B.demand, B_WIDE.linux, B_WIDE.demand),
        |at| {
            let improvement = |set: &Set| mean(&improvements(at, &set.demand, &set.linux)?);
            divide(improvement(&B_WIDE)?, improvement(&SET_B)?)
        },
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-TWICE",
            "ours",
            "Mean improvement by policy demand in set B: twice the bus capacity relative to the published one",
            "half of it at most",
        ),
        Tolerance::AtMost { high: 0.5 },
        all!(SET_B.linux, SET_B.demand, B_TWICE.linux, B_TWICE.demand),
        |at| {
            let improvement = |set: &Set| mean(&improvements(at, &set.demand, &set.linux)?);
            divide(improvement(&B_TWICE)?, improvement(&SET_B)?)
        },
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-FULL",
            "ours",
            "Programs of which two copies use 85 % of the bus: number at half of the capacity minus at full",
            "more",
        ),
        above(0.0),
        all!(DOUBLED, DOUBLED_HALF),
        |at| Some(that_fill(at, &DOUBLED_HALF, BUS_RATE / 2.0)? - that_fill(at, &DOUBLED, BUS_RATE)?),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-BUS-HALF",
            "ours",
            "Mean improvement over Linux by policy demand, set B with half of the bus capacity",
            "more than none",
        ),
        above(0.0),
        all!(B_HALF.linux, B_HALF.demand),
        |at| mean(&improvements(at, &B_HALF.demand, &B_HALF.linux)?),
    )
    .basis(Basis::Beyond),
];
