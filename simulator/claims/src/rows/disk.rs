//! Section 4.5 of seed 000: tables 4 and 5, and the paper's statements about them.
//!
//! The first row of each table is the machine without isolation; the other rows are under `isolate`. The
//! copies' delayed writes belong to the `shared` unit. So two waits combine a copy's own requests and its
//! delayed writes: that of the copy in table 4, and that of the big copy in table 5. The queue length is an
//! average over time.

use commonhold_contract::Scheme::{Isolate, Smp};
use commonhold_sim::scenario::DiskOrder;
use commonhold_sim_report::claims::{Basis, Tolerance, Unit};

use super::{Row, above, below, between, parameter, predicted};
use crate::experiments::{Experiment, Files, MAKE_AND_COPY, TWO_COPIES, on};
use crate::measure::{Seed, divide, real};

/// The rows of both tables: position only, isolation only, position and isolation.
pub(crate) const ORDERS: [DiskOrder; 3] = [DiskOrder::Position, DiskOrder::Isolation, DiskOrder::Fair];
/// The columns of both tables: response and wait of the first and of the second job, queue length, service
/// time.
const UNITS: [Unit; 6] = [
    Unit::Seconds,
    Unit::Seconds,
    Unit::Milliseconds,
    Unit::Milliseconds,
    Unit::Requests,
    Unit::Milliseconds,
];

/// The experiment of a row of table 4.
pub(crate) const fn make_and_copy(order: DiskOrder) -> Experiment {
    ordered(MAKE_AND_COPY, order)
}

/// The experiment of a row of table 5.
pub(crate) const fn two_copies(order: DiskOrder) -> Experiment {
    ordered(TWO_COPIES, order)
}

const fn ordered(files: Files, order: DiskOrder) -> Experiment {
    let scheme = if matches!(order, DiskOrder::Position) { Smp } else { Isolate };
    on(files, scheme).order(order)
}

const ROWS_OF_4: &[Experiment] =
    &[make_and_copy(ORDERS[0]), make_and_copy(ORDERS[1]), make_and_copy(ORDERS[2])];
const ROWS_OF_5: &[Experiment] = &[two_copies(ORDERS[0]), two_copies(ORDERS[1]), two_copies(ORDERS[2])];
const ROW_OF_4: [&[Experiment]; 3] =
    [&[make_and_copy(ORDERS[0])], &[make_and_copy(ORDERS[1])], &[make_and_copy(ORDERS[2])]];
/// The experiments for a row of table 5: the row's own, and the first row's, by which the figures are
/// divided.
const ROW_OF_5: [&[Experiment]; 3] = [
    &[two_copies(ORDERS[0])],
    &[two_copies(ORDERS[1]), two_copies(ORDERS[0])],
    &[two_copies(ORDERS[2]), two_copies(ORDERS[0])],
];

/// Table 4 as printed.
pub(crate) const TABLE_4: [[f64; 6]; 3] = [
    [15.7, 12.8, 94.3, 38.4, 5.1, 10.6],
    [9.2, 15.8, 23.4, 63.5, 3.7, 11.6],
    [9.6, 15.6, 23.0, 75.4, 4.3, 11.4],
];
/// Table 5 as printed.
pub(crate) const TABLE_5: [[f64; 6]; 3] = [
    [0.93, 0.81, 155.8, 12.1, 5.17, 6.4],
    [0.56, 1.22, 68.9, 23.7, 3.26, 8.2],
    [0.28, 0.96, 31.9, 16.6, 3.1, 6.62],
];

/// The figure of one of the six columns of a table. `jobs` are the first and the second job; `units` are the
/// units whose requests count as those of each job.
fn column(at: Seed, run: Experiment, column: usize, jobs: [&str; 2], units: [&[&str]; 2]) -> Option<f64> {
    match column {
        0 | 1 => at.response(run, &[jobs[column]]),
        2 | 3 => Some(at.use_of_disk(run, units[column - 2])?.wait_ms),
        4 => Some(at.disk(run)?.queue),
        _ => Some(at.disk(run)?.latency_ms),
    }
}

/// A cell of table 4.
pub(crate) fn cell_of_4<const ROW: usize, const COLUMN: usize>(at: Seed) -> Option<f64> {
    let run = make_and_copy(ORDERS[ROW]);
    column(at, run, COLUMN, ["make", "copy"], [&["make"], &["copy", "shared"]])
}

/// A cell of table 5.
pub(crate) fn cell_of_5<const ROW: usize, const COLUMN: usize>(at: Seed) -> Option<f64> {
    let run = two_copies(ORDERS[ROW]);
    column(at, run, COLUMN, ["small", "big"], [&["small"], &["big", "shared"]])
}

/// A cell of table 5, divided by the cell of the first row in the same column.
fn ratio_of_5<const ROW: usize, const COLUMN: usize>(at: Seed) -> Option<f64> {
    divide(cell_of_5::<ROW, COLUMN>(at)?, cell_of_5::<0, COLUMN>(at)?)
}

/// The mean waits of a request of the small and of the big copy, in ms.
pub(super) fn waits_of_copies(at: Seed, order: DiskOrder) -> Option<(f64, f64)> {
    let wait = |units| Some(at.use_of_disk(two_copies(order), units)?.wait_ms);
    Some((wait(&["small"])?, wait(&["big", "shared"])?))
}

/// The functions that measure the six cells of a row.
macro_rules! cells {
    ($cell:ident, $row:literal) => {
        [
            $cell::<$row, 0>,
            $cell::<$row, 1>,
            $cell::<$row, 2>,
            $cell::<$row, 3>,
            $cell::<$row, 4>,
            $cell::<$row, 5>,
        ]
    };
}

type Figures = [fn(Seed) -> Option<f64>; 6];

/// The names and the printed values of the six cells of a row.
type Printed = [(&'static str, &'static str); 6];

/// The claims of a row of table 4: responses and service time within 10 %, waits and queue length within 25
/// %. The first row is calibrated.
const fn row_of_4(row: usize, printed: Printed, figures: Figures) -> [Row; 6] {
    let basis = if row == 0 { Basis::Calibrated } else { Basis::Predicted };
    let mut rows = [EMPTY; 6];
    let mut column = 0;
    while column < 6 {
        let part = if matches!(column, 0 | 1 | 5) { 0.10 } else { 0.25 };
        let value = TABLE_4[row][column];
        let (id, expected) = printed[column];
        let tolerance = between(value * (1.0 - part), value * (1.0 + part));
        rows[column] = predicted(
            (id, "table 4", SAYS_4[row][column], expected),
            tolerance,
            ROW_OF_4[row],
            figures[column],
        )
        .unit(UNITS[column])
        .basis(basis);
        column += 1;
    }
    rows
}

/// The claims of a row of table 5. The first row's absolute figures are only reported; the other rows' ratios
/// to the first row are to be within 25 %.
const fn row_of_5(row: usize, printed: Printed, figures: Figures) -> [Row; 6] {
    let mut rows = [EMPTY; 6];
    let mut column = 0;
    while column < 6 {
        let ratio = TABLE_5[row][column] / TABLE_5[0][column];
        let (id, expected) = printed[column];
        let tolerance = if row == 0 { Tolerance::None } else { between(ratio * 0.75, ratio * 1.25) };
        let cell = predicted(
            (id, "table 5", SAYS_5[row][column], expected),
            tolerance,
            ROW_OF_5[row],
            figures[column],
        );
        rows[column] = if row == 0 { cell.unit(UNITS[column]).note(TOO_FAST) } else { cell };
        column += 1;
    }
    rows
}

const TOO_FAST: &str = "no verdict: 5.5 MB in 0.93 s exceed the rate at which the stated disk can read";

const EMPTY: Row = super::unmeasured_row(("", "", "", ""), Basis::Lost, "");

/// The statements of a row's cells.
macro_rules! says {
    ($policy:literal, $first:literal, $second:literal) => {
        [
            concat!("Response time of the ", $first, " under ", $policy),
            concat!("Response time of the ", $second, " under ", $policy),
            concat!("Mean disk wait of the ", $first, "'s requests under ", $policy),
            concat!("Mean disk wait of the ", $second, "'s requests under ", $policy),
            concat!("Mean length of the disk queue under ", $policy),
            concat!("Mean disk service time of a request under ", $policy),
        ]
    };
}

const SAYS_4: [[&str; 6]; 3] = [
    says!("position only", "make", "copy"),
    says!("isolation only", "make", "copy"),
    says!("position and isolation", "make", "copy"),
];
const SAYS_5: [[&str; 6]; 3] = [
    says!("position only", "small copy", "big copy"),
    says!("isolation only, relative to position only", "small copy", "big copy"),
    says!("position and isolation, relative to position only", "small copy", "big copy"),
];

/// Tables 4 and 5 row by row.
pub(super) static CELLS: [[Row; 6]; 6] = [
    row_of_4(
        0,
        [
            ("PI-T4-P1a", "15.7 s"),
            ("PI-T4-P1b", "12.8 s"),
            ("PI-T4-P1c", "94.3 ms"),
            ("PI-T4-P1d", "38.4 ms"),
            ("PI-T4-P1e", "5.1"),
            ("PI-T4-P1f", "10.6 ms"),
        ],
        cells!(cell_of_4, 0),
    ),
    row_of_4(
        1,
        [
            ("PI-T4-I1a", "9.2 s"),
            ("PI-T4-I1b", "15.8 s"),
            ("PI-T4-I1c", "23.4 ms"),
            ("PI-T4-I1d", "63.5 ms"),
            ("PI-T4-I1e", "3.7"),
            ("PI-T4-I1f", "11.6 ms"),
        ],
        cells!(cell_of_4, 1),
    ),
    row_of_4(
        2,
        [
            ("PI-T4-B1a", "9.6 s"),
            ("PI-T4-B1b", "15.6 s"),
            ("PI-T4-B1c", "23.0 ms"),
            ("PI-T4-B1d", "75.4 ms"),
            ("PI-T4-B1e", "4.3"),
            ("PI-T4-B1f", "11.4 ms"),
        ],
        cells!(cell_of_4, 2),
    ),
    row_of_5(
        0,
        [
            ("PI-T5-Pa", "0.93 s"),
            ("PI-T5-Pb", "0.81 s"),
            ("PI-T5-Pc", "155.8 ms"),
            ("PI-T5-Pd", "12.1 ms"),
            ("PI-T5-Pe", "5.17"),
            ("PI-T5-Pf", "6.4 ms"),
        ],
        cells!(cell_of_5, 0),
    ),
    row_of_5(
        1,
        [
            ("PI-T5-Ia", "0.60 (0.56 s)"),
            ("PI-T5-Ib", "1.51 (1.22 s)"),
            ("PI-T5-Ic", "0.44 (68.9 ms)"),
            ("PI-T5-Id", "1.96 (23.7 ms)"),
            ("PI-T5-Ie", "0.63 (3.26)"),
            ("PI-T5-If", "1.28 (8.2 ms)"),
        ],
        cells!(ratio_of_5, 1),
    ),
    row_of_5(
        2,
        [
            ("PI-T5-Ba", "0.30 (0.28 s)"),
            ("PI-T5-Bb", "1.19 (0.96 s)"),
            ("PI-T5-Bc", "0.20 (31.9 ms)"),
            ("PI-T5-Bd", "1.37 (16.6 ms)"),
            ("PI-T5-Be", "0.60 (3.1)"),
            ("PI-T5-Bf", "1.03 (6.62 ms)"),
        ],
        cells!(ratio_of_5, 2),
    ),
];

/// A make's response under a row of table 4 by that under the first.
fn make(at: Seed, row: usize) -> Option<f64> {
    at.change(&["make"], make_and_copy(ORDERS[row]), make_and_copy(ORDERS[0]))
}

/// A copy's response in the same way.
fn copy(at: Seed, row: usize) -> Option<f64> {
    at.change(&["copy"], make_and_copy(ORDERS[row]), make_and_copy(ORDERS[0]))
}

/// The one of two figures that is further off.
fn further(from: f64, one: f64, other: f64) -> f64 {
    if (one - from).abs() >= (other - from).abs() { one } else { other }
}

/// The mean over the rows of table 4 of a figure of each.
fn over_rows(figure: impl Fn(Experiment) -> Option<f64>) -> Option<f64> {
    let sum: Option<f64> = ROWS_OF_4.iter().map(|run| figure(*run)).sum();
    Some(sum? / 3.0)
}

/// Sum of all requests' times in service by the run's length.
fn utilisation(at: Seed, run: Experiment) -> Option<f64> {
    let disk = at.disk(run)?;
    let longest = at.response(run, &["make"])?.max(at.response(run, &["copy"])?);
    divide(real(disk.requests) * disk.latency_ms / 1e3, longest)
}

/// The make's response under the third row of table 4 as its waits under the first two foretell it, by what
/// it is: T = S + N (W + L) / c, with the time S that does not depend on the disk and the part 1/c of
/// requests that block.
fn foretold(at: Seed) -> Option<f64> {
    let row = |row: usize| {
        let run = make_and_copy(ORDERS[row]);
        let of_disk = at.use_of_disk(run, &["make"])?;
        let waited_s = of_disk.requests * (of_disk.wait_ms + of_disk.service_ms) / 1e3;
        Some((at.response(run, &["make"])?, waited_s))
    };
    let (first, second, third) = (row(0)?, row(1)?, row(2)?);
    let blocking = divide(first.0 - second.0, first.1 - second.1)?;
    divide(first.0 + blocking * (third.1 - first.1), third.0)
}

/// Requests of the copy that are outstanding in the mean: N (W + L) / T.
fn outstanding(at: Seed, run: Experiment) -> Option<f64> {
    let of_disk = at.use_of_disk(run, &["copy", "shared"])?;
    let total_s = of_disk.requests * (of_disk.wait_ms + of_disk.service_ms) / 1e3;
    divide(total_s, at.response(run, &["copy"])?)
}

const CONFIGURATION: &str = "simulator/claims/tests/configuration.rs: disk_isolation";

/// What the paper says of the disk runs in words.
pub(super) const ROWS: &[Row] = &[
    parameter(
        (
            "PI-4.5-CFG",
            "4.5",
            "Two CPUs, an HP 97560 at half of its latency; a make and a copy of 20 MB under three disk orders",
            "",
        ),
        &[CONFIGURATION],
    ),
    parameter(
        (
            "PI-4.5-PM",
            "4.5",
            "Number of the make's disk requests: not all contiguous, some of them to one sector",
            "300",
        ),
        &[CONFIGURATION],
    )
    .measured(ROW_OF_4[0], |at| Some(at.use_of_disk(make_and_copy(ORDERS[0]), &["make"])?.requests))
    .unit(Unit::Requests),
    predicted(
        (
            "PI-4.5-CP",
            "4.5",
            "Number of the copy's disk requests: mostly contiguous, several outstanding",
            "1050",
        ),
        between(1_049.5, 1_050.5),
        ROW_OF_4[0],
        |at| Some(at.use_of_disk(make_and_copy(ORDERS[0]), &["copy", "shared"])?.requests),
    )
    .unit(Unit::Requests),
    predicted(
        (
            "PI-T4-Q1",
            "4.5",
            "Reduction in the make's response time under the fair orders, relative to position only (41 % and 39 %)",
            "",
        ),
        between(0.30, 0.50),
        ROWS_OF_4,
        |at| Some(further(0.40, 1.0 - make(at, 1)?, 1.0 - make(at, 2)?)),
    )
    .note("isolation only or position and isolation, whichever value is further from 40 %"),
    predicted(
        (
            "PI-T4-Q2a",
            "4.5",
            "Increase in the copy's response time under the fair orders, relative to position only (23 % and 22 %)",
            "",
        ),
        between(0.10, 0.35),
        ROWS_OF_4,
        |at| Some(further(0.225, copy(at, 1)? - 1.0, copy(at, 2)? - 1.0)),
    )
    .note("isolation only or position and isolation, whichever value is further from 22.5 %"),
    predicted(
        (
            "PI-T4-Q2b",
            "4.5",
            "Mean disk wait of the make's requests under the fair orders, relative to position only (a quarter)",
            "",
        ),
        below(1.0),
        ROWS_OF_4,
        |at| {
            let worse = cell_of_4::<1, 2>(at)?.max(cell_of_4::<2, 2>(at)?);
            divide(worse, cell_of_4::<0, 2>(at)?)
        },
    )
    .note("isolation only or position and isolation, whichever ratio is larger"),
    predicted(
        (
            "PI-T4-Q2c",
            "4.5",
            "Mean disk wait of the copy's requests under the fair orders, relative to position only",
            "",
        ),
        above(1.0),
        ROWS_OF_4,
        |at| {
            let worse = cell_of_4::<1, 3>(at)?.min(cell_of_4::<2, 3>(at)?);
            divide(worse, cell_of_4::<0, 3>(at)?)
        },
    )
    .note("isolation only or position and isolation, whichever ratio is smaller"),
    predicted(
        ("PI-T4-Q3", "4.5", "Response time under isolation only, relative to position and isolation", ""),
        between(0.90, 1.10),
        ROWS_OF_4,
        |at| Some(further(1.0, divide(make(at, 1)?, make(at, 2)?)?, divide(copy(at, 1)?, copy(at, 2)?)?)),
    )
    .note("the ratio of make and copy that is further from 1"),
    predicted(
        (
            "PI-T4-D",
            "table 4",
            "Disk utilisation: requests times mean service time, divided by the time until both jobs end",
            "0.91-0.99",
        ),
        between(0.96 * 0.95, 0.96 * 1.05),
        ROWS_OF_4,
        |at| over_rows(|run| utilisation(at, run)),
    )
    .basis(Basis::Derived)
    .note("the mean of the three disk orders"),
    predicted(
        (
            "PI-T4-D2",
            "table 4",
            "Queue length that an arriving request finds, relative to its average over time, position only",
            "",
        ),
        Tolerance::None,
        ROW_OF_4[0],
        |at| {
            let disk = at.disk(make_and_copy(ORDERS[0]))?;
            divide(disk.queue_at_arrival, disk.queue)
        },
    )
    .basis(Basis::Derived)
    .note("the printed queue lengths are neither"),
    predicted(
        (
            "PI-T4-D3",
            "table 4",
            "Make under position and isolation: response time predicted from disk waits, relative to measured",
            "0.95",
        ),
        between(0.90, 1.10),
        ROWS_OF_4,
        foretold,
    )
    .basis(Basis::Derived),
    predicted(
        ("PI-T4-D4", "table 4", "Mean number of outstanding requests of the copy", "4.0-5.8"),
        between(3.93, 5.93),
        ROWS_OF_4,
        |at| over_rows(|run| outstanding(at, run)),
    )
    .basis(Basis::Derived)
    .unit(Unit::Requests)
    .note("the mean of the three disk orders, within one request"),
    parameter(
        ("PI-T5-CFG", "4.5", "Copies of 500 KB and 5 MB on the same disk; both files are contiguous", ""),
        &["simulator/claims/tests/configuration.rs: two_copies"],
    ),
    predicted(
        (
            "PI-T5-Q1a",
            "4.5",
            "Response time of the small copy under the fair orders, relative to position only",
            "",
        ),
        below(1.0),
        ROWS_OF_5,
        |at| Some(ratio_of_5::<1, 0>(at)?.max(ratio_of_5::<2, 0>(at)?)),
    )
    .note("isolation only or position and isolation, whichever ratio is larger"),
    predicted(
        (
            "PI-T5-Q1b",
            "4.5",
            "Response times of both copies under position and isolation, relative to isolation only",
            "",
        ),
        below(1.0),
        ROWS_OF_5,
        |at| {
            let small = divide(cell_of_5::<2, 0>(at)?, cell_of_5::<1, 0>(at)?)?;
            Some(small.max(divide(cell_of_5::<2, 1>(at)?, cell_of_5::<1, 1>(at)?)?))
        },
    )
    .note("the larger ratio of the two copies"),
    predicted(
        (
            "PI-T5-Q2a",
            "4.5",
            "Mean disk service time of two copies under position and isolation, relative to position only (+3 %)",
            "",
        ),
        Tolerance::AtMost { high: 1.08 },
        ROW_OF_5[2],
        ratio_of_5::<2, 5>,
    ),
    predicted(
        (
            "PI-T5-Q2b",
            "4.5",
            "Mean disk service time of two copies under isolation only, relative to position only",
            "almost 30 %",
        ),
        between(1.10, 1.35),
        ROW_OF_5[1],
        ratio_of_5::<1, 5>,
    ),
    predicted(
        ("PI-T5-D", "table 5", "Number of disk requests of the two copies under position only", "145"),
        Tolerance::None,
        ROW_OF_5[0],
        |at| Some(real(at.disk(two_copies(ORDERS[0]))?.requests)),
    )
    .basis(Basis::Calibrated)
    .unit(Unit::Requests)
    .note("published: response time divided by service time, hence reads only, faster than the stated disk can read; \
         write-behind begins later"),
];
