//! The charts of the report: the papers' bars where the papers print their numbers, and the measured bars
//! beside them.
//!
//! Figures of which a paper prints one or two numbers have no chart, since the interval plots of their rows
//! show as much: the curves of seed 002, and figures 7, 8, 10 and 11 of seed 004. Figure 9 of seed 004 has
//! none because its numbers are lost; its rows compare it with the tickets. The charts of seed 001 have
//! measured bars only, since its figures state no numbers, but which bar is the shortest.

use commonhold_contract::Scheme::{self, Isolate, Quota, Smp};
use commonhold_sim::scenario::DiskOrder;
use commonhold_sim_report::claims::{Bar, Chart};

use crate::experiments::{
    CPU_ISOLATION, Experiment, KERNEL_BALANCED, KERNEL_ONE, KERNEL_TWO, KERNEL_UNBALANCED, MEMORY_BALANCED,
    MEMORY_UNBALANCED, OTHERS, on,
};
use crate::measure::{Seed, busy, divide};
use crate::rows::disk::{ORDERS, TABLE_4, TABLE_5, cell_of_4, cell_of_5, make_and_copy, two_copies};
use crate::rows::kernel::{HEAVY, LIGHT};
use crate::rows::machines::{DUMP_ISOLATE, DUMP_SMP, MP1_ISOLATE, MP1_SMP, MP6_ISOLATE, MP6_SMP, UP};
use crate::rows::{pools, rows, tickets};
use crate::run::Runs;
use crate::verdict::summarise;

type Measure<'a> = Box<dyn Fn(Seed) -> Option<f64> + 'a>;

/// A bar to measure.
struct Plan<'a> {
    label: String,
    /// The scheme whose colour the bar has, or [`MEASURED`].
    class: &'static str,
    /// The value that the paper prints.
    paper: Option<f64>,
    measure: Measure<'a>,
    /// All experiments that `measure` uses.
    needs: Vec<Experiment>,
}

/// The class of bars in figures that do not compare schemes.
const MEASURED: &str = "measured";

/// A bar of the response time of jobs in one experiment, divided by that of the jobs and experiment `by`.
fn response<'a>(
    label: &str,
    paper: Option<f64>,
    of: (Experiment, &'a [&'a str]),
    by: (Experiment, &'a [&'a str]),
) -> Plan<'a> {
    Plan {
        label: label.to_owned(),
        class: of.0.scheme.name(),
        paper,
        measure: Box::new(move |seed: Seed| seed.ratio(of, by)),
        needs: vec![of.0, by.0],
    }
}

/// A bar with a row's printed and measured value. `shown` turns a value of the row into one of the chart.
fn of_row(label: &str, id: &str, shown: fn(f64) -> f64) -> Option<Plan<'static>> {
    let row = rows().into_iter().find(|row| row.id == id)?;
    let measure = row.measure?;
    Some(Plan {
        label: label.to_owned(),
        class: MEASURED,
        paper: row.expected.parse().ok().map(shown),
        measure: Box::new(move |seed: Seed| measure(seed).map(shown)),
        needs: row.needs.to_vec(),
    })
}

/// The charts that have runs, in the order of the papers.
pub(crate) fn charts(runs: &Runs) -> Vec<Chart> {
    let figures = [
        (
            "figure-2",
            "Figure 2: response time of a make on four CPUs without isolation (MP4+D is printed as over 300)",
            "one CPU = 100",
            figure_2(),
        ),
        (
            "figure-4",
            "Figure 4: response time of users 1 to 4, balanced (B) and unbalanced (U)",
            "smp, B = 100",
            figure_4(),
        ),
        (
            "figure-5",
            "Figure 5: response time of users 5 to 8, unbalanced",
            "smp, balanced = 100",
            figure_5(),
        ),
        (
            "figure-6",
            "Figure 6: response time under isolation beside seven other users, with one and two jobs per user",
            "single workstation = 100",
            figure_6(),
        ),
        ("figure-7", "Figure 7: CPU time of one job", "single workstation = 100", figure_7()),
        ("figure-8", "Figure 8: response time with CPU isolation", "smp = 100", figure_8()),
        (
            "figure-9",
            "Figure 9: response time with memory isolation, balanced (B) and unbalanced (U)",
            "smp, B = 100",
            figure_9(),
        ),
        (
            "figure-10",
            "Figure 10: response time of a make on four CPUs under smp and isolate (MP4+D under smp is printed as over 300)",
            "one CPU = 100",
            figure_10(),
        ),
        ("table-4", "Table 4: make and copy on one disk", "position only = 100", table_4()),
        ("table-5", "Table 5: small and big copy on one disk", "position only = 100", table_5()),
        (
            "001-figure-1",
            "Seed 001, figure 1: response time of jobs of four processes by pool size, with a delay of 16",
            "no pools = 100",
            by_size(&pools::FOUR, "four"),
        ),
        (
            "001-figure-2",
            "Seed 001, figure 2: response time of jobs of two and of eight processes by pool size",
            "no pools = 100",
            by_size(&pools::TWO, "two").into_iter().chain(by_size(&pools::EIGHT, "eight")).collect(),
        ),
        (
            "001-figure-3",
            "Seed 001, figure 3: response time of jobs of six processes in pools of four",
            "pools of six = 100",
            by_program(&pools::THREE, pools::SIX_4, pools::SIX_6),
        ),
        (
            "001-figure-5",
            "Seed 001, figure 5: response time under worst fit",
            "first fit = 100",
            by_program(&pools::FIVE, pools::FOUR_4, pools::FIRST_FIT),
        ),
        (
            "002-lock-metering",
            "Seed 002, lock metering: find_lock_page on twelve CPUs",
            "all time, all acquisitions = 100",
            lock_metering(),
        ),
        (
            "003-figure-1",
            "Seed 003, figure 1: slowdowns of the four programs with high bus rates, and of the seven others",
            "alone = 100",
            bus_slowdowns(),
        ),
        (
            "003-figure-2",
            "Seed 003, figure 2: mean time of a program in each set of jobs",
            "Linux = 100",
            bus_sets(),
        ),
        (
            "004-figure-6",
            "Seed 004, figure 6: CPU time in two currencies, while b3 sleeps and after",
            "the CPU = 100",
            shares_of_currencies(),
        ),
    ];
    figures
        .into_iter()
        .filter_map(|(id, title, reference, plans)| chart(id, title, reference, &plans, runs))
        .collect()
}

/// A chart of the bars whose runs were all made; `None` if there is no such bar.
fn chart(id: &str, title: &str, reference: &str, plans: &[Plan], runs: &Runs) -> Option<Chart> {
    let was_run = |plan: &&Plan| plan.needs.iter().all(|run| runs.has(*run));
    let bars: Vec<Bar> = plans.iter().filter(was_run).map(|plan| bar(plan, runs)).collect();
    (!bars.is_empty()).then(|| Chart {
        id: id.to_owned(),
        title: title.to_owned(),
        reference: reference.to_owned(),
        bars,
    })
}

/// Measures a bar; it stays without a measured value if a run is not valid or a figure is missing.
fn bar(plan: &Plan, runs: &Runs) -> Bar {
    let is_valid = plan.needs.iter().all(|run| runs.flaw(*run).is_none());
    let figure = |index| (plan.measure)(Seed::new(runs, index));
    let figures: Option<Vec<f64>> =
        if is_valid { (0..runs.seeds().len()).map(figure).collect() } else { None };
    Bar {
        label: plan.label.clone(),
        class: plan.class.to_owned(),
        paper: plan.paper,
        measured: figures.as_deref().and_then(summarise),
    }
}

fn figure_2() -> Vec<Plan<'static>> {
    let a: &[&str] = &["a"];
    let by = (UP, a);
    let mut plans = vec![response("MP1", Some(0.65), (MP1_SMP, a), by)];
    plans.extend((1..5).map(|n| {
        response(&format!("+ {n} job{}", if n == 1 { "" } else { "s" }), None, (on(OTHERS[n], Smp), a), by)
    }));
    plans.push(response("MP6", Some(2.36), (MP6_SMP, a), by));
    plans.push(response("MP4+D", Some(3.0), (DUMP_SMP, a), by));
    plans
}

fn figure_4() -> Vec<Plan<'static>> {
    let by: (Experiment, &[&str]) = (on(KERNEL_BALANCED, Smp), &LIGHT);
    let bars = |scheme: Scheme, paper: [Option<f64>; 2]| {
        [
            response("B", paper[0], (on(KERNEL_BALANCED, scheme), &LIGHT), by),
            response("U", paper[1], (on(KERNEL_UNBALANCED, scheme), &LIGHT), by),
        ]
    };
    let smp = bars(Smp, [Some(1.0), Some(1.56)]);
    smp.into_iter().chain(bars(Quota, [None; 2])).chain(bars(Isolate, [None; 2])).collect()
}

fn figure_5() -> Vec<Plan<'static>> {
    let by: (Experiment, &[&str]) = (on(KERNEL_BALANCED, Smp), &HEAVY);
    [Smp, Quota, Isolate]
        .map(|scheme| response("U", None, (on(KERNEL_UNBALANCED, scheme), &HEAVY), by))
        .into()
}

fn figure_6() -> Vec<Plan<'static>> {
    let user: &[&str] = &["u1"];
    vec![
        response(
            "one job",
            Some(1.31),
            (on(KERNEL_BALANCED, Isolate), &LIGHT),
            (on(KERNEL_ONE, Quota), user),
        ),
        response("two jobs", None, (on(KERNEL_UNBALANCED, Isolate), &HEAVY), (on(KERNEL_TWO, Quota), user)),
    ]
}

fn figure_7() -> Vec<Plan<'static>> {
    let bar = |scheme: Scheme| {
        let (run, alone) = (on(KERNEL_BALANCED, scheme), on(KERNEL_ONE, Quota));
        Plan {
            label: "one job".to_owned(),
            class: scheme.name(),
            paper: None,
            measure: Box::new(move |seed: Seed| {
                divide(seed.spent(run, &LIGHT, busy)?, seed.spent(alone, &["u1"], busy)?)
            }),
            needs: vec![run, alone],
        }
    };
    [Smp, Quota, Isolate].map(bar).into()
}

fn figure_8() -> Vec<Plan<'static>> {
    let mut plans = Vec::new();
    for (label, job) in [("Ocean", &["ocean"]), ("Flashlite", &["flashlite"]), ("VCS", &["vcs"])] {
        for scheme in [Smp, Quota, Isolate] {
            let paper = (scheme == Smp).then_some(1.0);
            plans.push(response(
                label,
                paper,
                (on(CPU_ISOLATION, scheme), job),
                (on(CPU_ISOLATION, Smp), job),
            ));
        }
    }
    plans
}

fn figure_9() -> Vec<Plan<'static>> {
    let by: (Experiment, &[&str]) = (on(MEMORY_BALANCED, Smp), &["u1"]);
    let mut plans = Vec::new();
    for scheme in [Smp, Quota, Isolate] {
        let paper = (scheme == Smp).then_some(1.0);
        plans.push(response("user 1, B", paper, (on(MEMORY_BALANCED, scheme), &["u1"]), by));
        plans.push(response("user 1, U", None, (on(MEMORY_UNBALANCED, scheme), &["u1"]), by));
    }
    for scheme in [Smp, Quota, Isolate] {
        plans.push(response("user 2, U", None, (on(MEMORY_UNBALANCED, scheme), &["u2"]), by));
    }
    plans
}

fn figure_10() -> Vec<Plan<'static>> {
    let a: &[&str] = &["a"];
    let pairs = [
        ("MP1", MP1_SMP, Some(0.65), MP1_ISOLATE, None),
        ("MP6", MP6_SMP, Some(2.36), MP6_ISOLATE, None),
        ("MP4+D", DUMP_SMP, Some(3.0), DUMP_ISOLATE, Some(1.47)),
    ];
    let both = |(label, smp, paper_smp, isolate, paper)| {
        [response(label, paper_smp, (smp, a), (UP, a)), response(label, paper, (isolate, a), (UP, a))]
    };
    pairs.into_iter().flat_map(both).collect()
}

/// The colours of the three disk orders: those of the schemes that use them.
const CLASSES: [Scheme; 3] = [Smp, Quota, Isolate];

const COLUMNS: usize = 6;
const LABELS_4: [&str; COLUMNS] =
    ["make, response", "copy, response", "make, wait", "copy, wait", "queue length", "service time"];
const LABELS_5: [&str; COLUMNS] =
    ["small, response", "big, response", "small, wait", "big, wait", "queue length", "service time"];

/// The functions that measure the cells of a table, by row and column.
type Cells = [[fn(Seed) -> Option<f64>; COLUMNS]; 3];

/// [`Cells`] from a function that is generic in row and column.
macro_rules! table {
    ($cell:ident) => {{
        let rows: Cells = [
            [$cell::<0, 0>, $cell::<0, 1>, $cell::<0, 2>, $cell::<0, 3>, $cell::<0, 4>, $cell::<0, 5>],
            [$cell::<1, 0>, $cell::<1, 1>, $cell::<1, 2>, $cell::<1, 3>, $cell::<1, 4>, $cell::<1, 5>],
            [$cell::<2, 0>, $cell::<2, 1>, $cell::<2, 2>, $cell::<2, 3>, $cell::<2, 4>, $cell::<2, 5>],
        ];
        rows
    }};
}

fn table_4() -> Vec<Plan<'static>> {
    columns(table!(cell_of_4), TABLE_4, make_and_copy, LABELS_4)
}

fn table_5() -> Vec<Plan<'static>> {
    columns(table!(cell_of_5), TABLE_5, two_copies, LABELS_5)
}

/// The bars of a table: for each column, the second and the third order divided by the first (position only).
/// `printed` has the paper's values.
fn columns(
    cells: Cells,
    printed: [[f64; COLUMNS]; 3],
    run: fn(DiskOrder) -> Experiment,
    labels: [&str; COLUMNS],
) -> Vec<Plan<'static>> {
    let plan = |column: usize, row: usize| Plan {
        label: labels[column].to_owned(),
        class: CLASSES[row].name(),
        paper: Some(printed[row][column] / printed[0][column]),
        measure: Box::new(move |seed: Seed| divide(cells[row][column](seed)?, cells[0][column](seed)?)),
        needs: vec![run(ORDERS[row]), run(ORDERS[0])],
    };
    (0..COLUMNS).flat_map(|column| [plan(column, 1), plan(column, 2)]).collect()
}

/// The mean response time of all programs with pools of each size, by that with one pool of all CPUs.
fn by_size(sizes: &[Experiment; 5], processes: &str) -> Vec<Plan<'static>> {
    let plan = |(run, size): (&Experiment, u32)| Plan {
        class: MEASURED,
        ..response(
            &format!("{processes} processes, pools of {size}"),
            None,
            (*run, &pools::FIVE),
            (sizes[4], &pools::FIVE),
        )
    };
    sizes[..4].iter().zip(pools::SIZES).map(plan).collect()
}

/// Each program's response time in one experiment by that in another.
fn by_program(programs: &'static [&'static str], run: Experiment, by: Experiment) -> Vec<Plan<'static>> {
    let plan = |program: &'static [&'static str]| Plan {
        class: MEASURED,
        ..response(program[0], None, (run, program), (by, program))
    };
    programs.chunks(1).map(plan).collect()
}

fn lock_metering() -> Vec<Plan<'static>> {
    let bars = [
        ("time that the lock was held", "CH-LOCK-1a"),
        ("CPU time spent spinning", "CH-LOCK-1b"),
        ("acquisitions that waited", "CH-LOCK-1c"),
    ];
    bars.into_iter().filter_map(|(label, id)| of_row(label, id, |part| part)).collect()
}

fn bus_slowdowns() -> Vec<Plan<'static>> {
    let bars = [
        ("high, two copies: smallest", "BB-F1B-2b"),
        ("high, two copies: largest", "BB-F1B-2a"),
        ("high, two BBMA: smallest", "BB-F1-MEMb"),
        ("high, two BBMA: largest", "BB-F1-MEMa"),
        ("others, two BBMA: smallest", "BB-F1-MODa"),
        ("others, two BBMA: mean", "BB-F1-MODc"),
        ("others, two BBMA: largest", "BB-F1-MODb"),
    ];
    bars.into_iter().filter_map(|(label, id)| of_row(label, id, |slowdown| slowdown)).collect()
}

/// Times and not improvements, since a bar cannot show that a policy is worse than Linux.
fn bus_sets() -> Vec<Plan<'static>> {
    let bars = [
        ("set A, latest quantum", "BB-F2A-L"),
        ("set A, quanta window", "BB-F2A-W"),
        ("set B, latest quantum", "BB-F2B-L"),
        ("set B, quanta window", "BB-F2B-W"),
        ("set C, latest quantum", "BB-F2C-L"),
        ("set C, quanta window", "BB-F2C-W"),
    ];
    bars.into_iter().filter_map(|(label, id)| of_row(label, id, |improvement| 1.0 - improvement)).collect()
}

fn shares_of_currencies() -> Vec<Plan<'static>> {
    let plan = |half: usize, (unit, worth): (&'static str, [f64; 2])| Plan {
        label: format!("{unit}, {} 100 s", ["first", "second"][half]),
        class: MEASURED,
        paper: Some(worth[half]),
        measure: Box::new(move |seed: Seed| tickets::share(seed, unit, half)),
        needs: vec![tickets::FIRST_HALF, tickets::CURRENCIES],
    };
    let half = |half| {
        tickets::WORTH.into_iter().filter(move |(_, worth)| worth[half] > 0.0).map(move |it| plan(half, it))
    };
    half(0).chain(half(1)).collect()
}
