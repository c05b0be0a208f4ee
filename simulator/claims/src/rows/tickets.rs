//! Section 5 of seed 004: tickets and currencies for CPU time, memory and disks, and the effects of
//! exchanges.
//!
//! The paper prints few numbers, since its figures are pictures. Where the paper says that progress matches
//! funding, the values that follow from the tickets alone count as printed.

use commonhold_contract::Scheme::Isolate;
use commonhold_sim_report::claims::{Basis, Tolerance};

use super::{Row, above, between, parameter, predicted, unmeasured_row};
use crate::experiments::{
    Experiment, Files, TICKETS_CPU, TICKETS_DISK, TICKETS_DISK_TWO, TICKETS_EXCHANGE, TICKETS_EXCHANGE_LONG,
    TICKETS_EXCHANGE_LOTTERY, TICKETS_MEMORY, on,
};
use crate::measure::{Seed, divide, real};

pub(crate) const CURRENCIES: Experiment = on(TICKETS_CPU, Isolate);
pub(crate) const FIRST_HALF: Experiment = CURRENCIES.until(100);
/// Units, and the worth of their tickets as a fraction of the CPU: while b3 sleeps, and after.
pub(crate) const WORTH: [(&str, [f64; 2]); 5] = [
    ("a/a1", [1.0 / 6.0, 1.0 / 6.0]),
    ("a/a2", [1.0 / 3.0, 1.0 / 3.0]),
    ("b/b1", [1.0 / 6.0, 1.0 / 12.0]),
    ("b/b2", [1.0 / 3.0, 1.0 / 6.0]),
    ("b/b3", [0.0, 1.0 / 4.0]),
];

/// The times at which the memory of section 5.3 is measured, in s. The first 33 s are the ramp, in which 500
/// pages are read.
const LOOKS: [Experiment; 7] = [
    on(TICKETS_MEMORY, Isolate).until(40),
    on(TICKETS_MEMORY, Isolate).until(50),
    on(TICKETS_MEMORY, Isolate).until(60),
    on(TICKETS_MEMORY, Isolate).until(70),
    on(TICKETS_MEMORY, Isolate).until(80),
    on(TICKETS_MEMORY, Isolate).until(90),
    on(TICKETS_MEMORY, Isolate).until(100),
];

const HALF_OF_A_DISK: Experiment = on(TICKETS_DISK, Isolate);
const PROGRESS: [Experiment; 5] = [
    HALF_OF_A_DISK.until(20),
    HALF_OF_A_DISK.until(40),
    HALF_OF_A_DISK.until(60),
    HALF_OF_A_DISK.until(80),
    HALF_OF_A_DISK.until(100),
];
const USERS: [&str; 4] = ["user/first", "user/second", "user/third", "user/fourth"];
const ONE_OTHER: Experiment = on(TICKETS_DISK_TWO, Isolate);

/// A scenario without an exchange, and with each of the eight exchanges of figure 9.
const fn exchanges(files: Files) -> [Experiment; 9] {
    let run = on(files, Isolate);
    [
        run,
        run.exchange(100),
        run.exchange(200),
        run.exchange(300),
        run.exchange(400),
        run.exchange(500),
        run.exchange(600),
        run.exchange(700),
        run.exchange(800),
    ]
}

/// The paper's, under lottery scheduling.
const EXCHANGES: [Experiment; 9] = exchanges(TICKETS_EXCHANGE_LOTTERY);
/// The same under our default discipline, under which the negotiator's are run.
const BY_STRIDE: [Experiment; 9] = exchanges(TICKETS_EXCHANGE);
/// Runs of 140 and of 240 s without an exchange, then with a negotiator. The difference of two runs is the
/// last 100 s.
const NEGOTIATED: [Experiment; 4] = [
    on(TICKETS_EXCHANGE_LONG, Isolate).until(140),
    on(TICKETS_EXCHANGE_LONG, Isolate),
    on(TICKETS_EXCHANGE_LONG, Isolate).until(140).negotiate(),
    on(TICKETS_EXCHANGE_LONG, Isolate).negotiate(),
];
/// The negotiated exchange, and the eight exchanges of figure 9 to compare it with.
const FOUND_AND_SET: [Experiment; 13] = {
    let mut all = [NEGOTIATED[0]; 13];
    let mut at = 0;
    while at < 13 {
        all[at] = if at < 4 { NEGOTIATED[at] } else { BY_STRIDE[at - 4] };
        at += 1;
    }
    all
};
const READERS: [&str; 4] = ["tasks/reads-1", "tasks/reads-2", "tasks/reads-3", "tasks/reads-4"];

/// CPU time of a unit, in s.
fn cpu_s(at: Seed, run: Experiment, unit: &str) -> Option<f64> {
    Some(real(at.unit(run, unit)?.used_ns) / 1e9)
}

/// Pages that a unit read from the disk.
fn pages(at: Seed, run: Experiment, unit: &str) -> Option<f64> {
    Some(real(at.disk(run)?.units.iter().find(|entry| entry.unit == unit)?.requests))
}

/// A unit's CPU time in one half of the run, as a fraction of the CPU.
pub(crate) fn share(at: Seed, unit: &str, half: usize) -> Option<f64> {
    let first = cpu_s(at, FIRST_HALF, unit)?;
    let had = if half == 0 { first } else { cpu_s(at, CURRENCIES, unit)? - first };
    Some(had / 100.0)
}

/// The largest relative error of a unit's CPU time in one half of the run, compared with the worth of its
/// tickets.
fn off_in_half(at: Seed, half: usize) -> Option<f64> {
    let off = WORTH
        .iter()
        .filter(|(_, worth)| worth[half] > 0.0)
        .map(|(unit, worth)| Some((share(at, unit, half)? / worth[half] - 1.0).abs()));
    most(off)
}

/// The largest difference between the two halves in the CPU time of a task of a.
fn change_of_a(at: Seed) -> Option<f64> {
    most(["a/a1", "a/a2"].into_iter().map(|unit| {
        let first = cpu_s(at, FIRST_HALF, unit)?;
        Some((divide(cpu_s(at, CURRENCIES, unit)? - first, first)? - 1.0).abs())
    }))
}

/// The fewest pages of a unit at any of the measured times.
fn fewest(at: Seed, unit: &str) -> Option<f64> {
    least(LOOKS.into_iter().map(|run| Some(real(at.unit(run, unit)?.frames))))
}

/// The most pages of the two units without guarantees, together, at any of the measured times.
fn unguaranteed(at: Seed) -> Option<f64> {
    let pages = |run, unit| Some(real(at.unit(run, unit)?.frames));
    most(LOOKS.into_iter().map(|run| Some(pages(run, "third")? + pages(run, "fourth")?)))
}

/// The pages that the task with half of the disk read, divided by the mean of the others.
fn by_the_others(at: Seed, run: Experiment) -> Option<f64> {
    let others: Option<Vec<f64>> = USERS.iter().map(|unit| pages(at, run, unit)).collect();
    divide(4.0 * pages(at, run, "reserved")?, others?.iter().sum())
}

/// The smallest coefficient of determination of a unit's pages over time, for a line through the origin.
fn linear(at: Seed) -> Option<f64> {
    least(["reserved"].into_iter().chain(USERS).map(|unit| {
        let ys: Vec<f64> = PROGRESS.iter().map(|run| pages(at, *run, unit)).collect::<Option<_>>()?;
        let xs = [20.0, 40.0, 60.0, 80.0, 100.0];
        let slope =
            xs.iter().zip(&ys).map(|(x, y)| x * y).sum::<f64>() / xs.iter().map(|x| x * x).sum::<f64>();
        let mean = ys.iter().sum::<f64>() / 5.0;
        let rest: f64 = xs.iter().zip(&ys).map(|(x, y)| (y - slope * x) * (y - slope * x)).sum();
        Some(1.0 - divide(rest, ys.iter().map(|y| (y - mean) * (y - mean)).sum())?)
    }))
}

/// A unit's gain by each exchange, from 100 tickets on: 0.1 means ten per cent more than without an exchange.
fn gains(at: Seed, runs: &[Experiment; 9], of: Figure, unit: &str) -> Option<Vec<f64>> {
    let before = of(at, runs[0], unit)?;
    runs[1..].iter().map(|run| Some(divide(of(at, *run, unit)?, before)? - 1.0)).collect()
}

/// The largest difference between a gain of the unit that computes and the gain that its tickets imply.
fn off_by_tickets(at: Seed) -> Option<f64> {
    let says = |n: f64| (1000.0 + n) / (2000.0 + n) / 0.5 - 1.0;
    let by_tickets = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0].map(says);
    let gains = gains(at, &EXCHANGES, cpu_s, "tasks/dhrystone")?;
    most(gains.into_iter().zip(by_tickets).map(|(gain, says)| Some((gain - says).abs())))
}

/// The smallest increase of the computing unit's gain from one exchange to the next larger one.
fn smallest_growth(at: Seed) -> Option<f64> {
    let gains = gains(at, &EXCHANGES, cpu_s, "tasks/dhrystone")?;
    least(gains.windows(2).map(|pair| Some(pair[1] - pair[0])))
}

/// The number of exchanged tickets at which the reading unit gained most.
fn best_exchange(at: Seed) -> Option<f64> {
    let gains = gains(at, &EXCHANGES, pages, "tasks/iohog")?;
    let best = (0..gains.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b]))?;
    Some(100.0 * real(best as u64 + 1))
}

/// A figure of a unit in a run.
type Figure = fn(Seed, Experiment, &str) -> Option<f64>;

/// The two sides of an exchange and their figures: CPU time of the unit that computes, pages of the unit that
/// reads.
const SIDES: [(&str, Figure); 2] = [("dhrystone", cpu_s), ("iohog", pages)];

/// The largest gain of the eight exchanges, where the gain of an exchange is that of the side that gains
/// less.
fn largest_gain(at: Seed) -> Option<f64> {
    let [one, other] = SIDES.map(|(unit, of)| gains(at, &BY_STRIDE, of, unit));
    most(one?.into_iter().zip(other?).map(|(one, other)| Some(one.min(other))))
}

/// The gain of the negotiated exchange in the last 100 s of the run: that of the side that gains less.
fn gain_found(at: Seed) -> Option<f64> {
    let [before, all, before_negotiated, all_negotiated] = NEGOTIATED;
    least(SIDES.into_iter().map(|(unit, of)| {
        let without = of(at, all, unit)? - of(at, before, unit)?;
        Some(divide(of(at, all_negotiated, unit)? - of(at, before_negotiated, unit)?, without)? - 1.0)
    }))
}

/// Each side's total over the whole run, trials included, divided by its total without an exchange: the
/// smaller of the two ratios.
fn least_in_all(at: Seed) -> Option<f64> {
    let [_, all, _, negotiated] = NEGOTIATED;
    least(SIDES.into_iter().map(|(unit, of)| divide(of(at, negotiated, unit)?, of(at, all, unit)?)))
}

/// The smallest part of CPU time that the task that computes and exchanged nothing has under any exchange.
fn least_cpu(at: Seed) -> Option<f64> {
    least(EXCHANGES.into_iter().map(|run| Some(cpu_s(at, run, "tasks/computes")? / 100.0)))
}

/// The parts of all disk requests of the readers that exchanged nothing.
fn parts_of_disk(at: Seed, run: Experiment) -> Option<Vec<f64>> {
    let all = real(at.disk(run)?.requests);
    READERS.iter().map(|unit| divide(pages(at, run, unit)?, all)).collect()
}

/// The smallest part of the disk that a reader that exchanged nothing has under any exchange.
fn least_disk(at: Seed) -> Option<f64> {
    least(EXCHANGES.into_iter().map(|run| least(parts_of_disk(at, run)?.into_iter().map(Some))))
}

/// The loss of the task that computes, by the largest exchange, compared with the loss of the readers.
fn losses(at: Seed) -> Option<f64> {
    let cpu = divide(cpu_s(at, EXCHANGES[8], "tasks/computes")?, cpu_s(at, EXCHANGES[0], "tasks/computes")?)?;
    let disk = |run| Some(parts_of_disk(at, run)?.iter().sum::<f64>());
    divide(1.0 - cpu, 1.0 - divide(disk(EXCHANGES[8])?, disk(EXCHANGES[0])?)?)
}

/// The largest ratio between two readers' parts of the disk, over all exchanges.
fn spread(at: Seed) -> Option<f64> {
    most(EXCHANGES.into_iter().map(|run| {
        let parts = parts_of_disk(at, run)?;
        divide(most(parts.iter().copied().map(Some))?, least(parts.iter().copied().map(Some))?)
    }))
}

fn most(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    figures.into_iter().try_fold(f64::MIN, |most, figure| Some(most.max(figure?)))
}

fn least(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    figures.into_iter().try_fold(f64::MAX, |least, figure| Some(least.min(figure?)))
}

const SCENES: &str = "simulator/claims/tests/configuration.rs: tickets";

pub(super) const ROWS: &[Row] = &[
    parameter(("TK-HW", "004 §5.1", "One Pentium Pro of 200 MHz, 128 MB of memory, one disk", ""), &[SCENES]),
    parameter(
        (
            "TK-F5",
            "004 fig. 5",
            "Two currencies of equal value; tickets 1:2 within one (a1, a2), 1:2:3 within the other (b1, b2, b3)",
            "",
        ),
        &[SCENES],
    ),
    predicted(
        (
            "TK-F6-1",
            "004 §5.2",
            "Largest relative error of CPU shares while b3 sleeps (a1 1/6, a2 1/3, b1 1/6, b2 1/3)",
            "0",
        ),
        Tolerance::AtMost { high: 0.02 },
        &[FIRST_HALF],
        |at| off_in_half(at, 0),
    ),
    predicted(
        (
            "TK-F6-2a",
            "004 §5.2",
            "Largest relative error of CPU shares once b3 runs (a1 1/6, a2 1/3, b1 1/12, b2 1/6, b3 1/4)",
            "0",
        ),
        Tolerance::AtMost { high: 0.02 },
        &[FIRST_HALF, CURRENCIES],
        |at| off_in_half(at, 1),
    ),
    predicted(
        ("TK-F6-2b", "004 §5.2", "Largest relative change in the CPU time of a1 and a2 once b3 runs", "0"),
        Tolerance::AtMost { high: 0.02 },
        &[FIRST_HALF, CURRENCIES],
        change_of_a,
    ),
    parameter(
        ("TK-F7-CFG", "004 §5.3", "Memory of 8 MB, of which 1,075 pages can be reserved; four tasks", ""),
        &[SCENES],
    ),
    predicted(
        ("TK-F7-1a", "004 fig. 7", "Fewest pages of the task with 500 guaranteed pages, from 40 s on", "500"),
        Tolerance::AtLeast { low: 500.0 },
        &LOOKS,
        |at| fewest(at, "large"),
    )
    .note("sampled every 10 s"),
    predicted(
        ("TK-F7-1b", "004 fig. 7", "Fewest pages of the task with 350 guaranteed pages, from 40 s on", "350"),
        Tolerance::AtLeast { low: 350.0 },
        &LOOKS,
        |at| fewest(at, "small"),
    )
    .note("sampled every 10 s"),
    predicted(
        (
            "TK-F7-2",
            "004 fig. 7",
            "Most pages of the two tasks without a guarantee, together, from 40 s on",
            "",
        ),
        Tolerance::Below { bound: 350.0 },
        &LOOKS,
        unguaranteed,
    )
    .note("guarantees of 850 pages leave 225 of 1,075"),
    parameter(
        (
            "TK-F8-CFG",
            "004 §5.4",
            "YFQ in batches of two requests; five tasks with one outstanding request each",
            "",
        ),
        &[SCENES],
    ),
    predicted(
        (
            "TK-F8-1",
            "004 fig. 8",
            "Pages read by the task with half of the disk, relative to the mean of the four others",
            "4.1",
        ),
        between(3.7, 4.5),
        &[HALF_OF_A_DISK],
        |at| by_the_others(at, HALF_OF_A_DISK),
    ),
    predicted(
        (
            "TK-F8-2",
            "004 fig. 8",
            "Pages read over time by each task: smallest coefficient of determination of a linear fit",
            "",
        ),
        Tolerance::AtLeast { low: 0.98 },
        &PROGRESS,
        linear,
    ),
    parameter(
        (
            "TK-F9-CFG",
            "004 §5.5",
            "Seven tasks with 1,000 CPU and 1,000 disk tickets each; exchanges of 100 to 800, one for one",
            "",
        ),
        &[SCENES],
    ),
    predicted(
        (
            "TK-F9-1a",
            "004 fig. 9",
            "Smallest increase in the computing task's gain from one exchange to the next larger one",
            "",
        ),
        above(0.0),
        &EXCHANGES,
        smallest_growth,
    ),
    predicted(
        (
            "TK-F9-1b",
            "004 fig. 9",
            "Largest difference between the computing task's gain and the gain that its tickets imply",
            "0",
        ),
        Tolerance::AtMost { high: 0.04 },
        &EXCHANGES,
        off_by_tickets,
    ),
    predicted(
        (
            "TK-F9-2a",
            "004 fig. 9",
            "Smallest gain of the reading task by an exchange of 100 to 800 tickets",
            "",
        ),
        above(0.0),
        &EXCHANGES,
        |at| least(gains(at, &EXCHANGES, pages, "tasks/iohog")?.into_iter().map(Some)),
    ),
    predicted(
        ("TK-F9-2b", "004 fig. 9", "Number of exchanged tickets by which the reading task gains most", "500"),
        between(400.0, 600.0),
        &EXCHANGES,
        best_exchange,
    ),
    unmeasured_row(
        ("TK-F9-3", "004 fig. 9", "Gains of both tasks in figure 9", ""),
        Basis::Lost,
        "the figure is a picture that could not be read",
    ),
    predicted(
        (
            "TK-F10-1a",
            "004 fig. 10",
            "Smallest CPU share of the computing task that takes no part in the exchange, over all exchanges",
            "0.143",
        ),
        Tolerance::AtLeast { low: 0.14 },
        &EXCHANGES,
        least_cpu,
    ),
    predicted(
        (
            "TK-F10-1b",
            "004 fig. 10",
            "Smallest disk share of a reading task that takes no part in the exchange, over all exchanges",
            "0.143",
        ),
        Tolerance::AtLeast { low: 0.14 },
        &EXCHANGES,
        least_disk,
    ),
    predicted(
        (
            "TK-F10-2",
            "004 §5.5",
            "Loss by the largest exchange: the uninvolved computing task relative to the uninvolved readers",
            "",
        ),
        above(1.0),
        &[EXCHANGES[0], EXCHANGES[8]],
        losses,
    ),
    predicted(
        (
            "TK-F10-3",
            "004 note 6",
            "Largest ratio of the disk shares of two uninvolved readers, over all exchanges",
            "1",
        ),
        Tolerance::AtMost { high: 1.1 },
        &EXCHANGES,
        spread,
    ),
    // What the grid of section 5.6 finds has its rows after these, by the same measure.
    predicted(
        (
            "OURS-NEG-GAIN",
            "ours",
            "Gain by the negotiated exchange, relative to the best exchange of figure 9",
            "",
        ),
        Tolerance::AtLeast { low: 0.8 },
        &FOUND_AND_SET,
        |at| divide(gain_found(at)?, largest_gain(at)?),
    )
    .basis(Basis::Beyond)
    .note("the gain of the side that gains less; if negotiated, in the last 100 s of 240 s"),
    predicted(
        ("OURS-NEG-BOTH", "ours", "Gain by the negotiated exchange of the side that gains less", ""),
        above(0.0),
        &NEGOTIATED,
        gain_found,
    )
    .basis(Basis::Beyond)
    .note("in the last 100 s of 240 s"),
    predicted(
        (
            "OURS-NEG-COST",
            "ours",
            "Smaller of both sides' total progress with negotiation (trials included), relative to without",
            "",
        ),
        Tolerance::AtLeast { low: 1.0 },
        &NEGOTIATED,
        least_in_all,
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "TK-5.6-50",
            "004 §5.6",
            "Disk share of a task with one outstanding request beside one other task that reads",
            "0.5",
        ),
        Tolerance::AlwaysAtMost { high: 0.52 },
        &[ONE_OTHER],
        |at| divide(pages(at, ONE_OTHER, "reserved")?, real(at.disk(ONE_OTHER)?.requests)),
    ),
];
