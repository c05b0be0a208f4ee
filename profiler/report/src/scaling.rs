//! The first question in words: how does it scale?

use commonhold_report::figures::{NOTHING, seconds};
use commonhold_report::table::{Paint, Table};
use commonhold_scale::law::Law;
use commonhold_scale::scaling::{Scaling, Slope, Two, latency_is_a_problem, slope};
use commonhold_scale::study::{Measure, Size};
use commonhold_scale::{Band, Bands, Fit};
use serde::Serialize;

use crate::{Answered, Finding, number, size};

/// A row for each size: the measured throughput, and the throughput by the law.
pub(super) fn table(answered: &Answered) -> Table {
    let study = answered.study;
    let per_second = match study.measure {
        Measure::Runs => "runs/s",
        Measure::Printed(_) => "printed",
        Measure::Points(_) => "given",
    };
    let heads = [
        "size",
        per_second,
        "lowest",
        "highest",
        "law\nsays",
        "times\nthe first",
        "a run\ntakes",
        "latency\ntimes",
    ];
    let mut table = Table::new(&heads);
    let first = study.measured().next().and_then(|size| Some((size.n, size.throughput()?.0)));
    for size in study.measured() {
        table.row(Paint::Plain, row(answered, first, size));
        if let Some(step) = size.step {
            table.line(Paint::Faint, format!("  from here on: {step}"));
        }
    }
    table
}

/// The row of a size. `first`: the first size, and its median throughput.
fn row(answered: &Answered, first: Option<(u32, f64)>, size: &Size) -> Vec<String> {
    let Some(((median, low, high), (first_n, first))) = size.throughput().zip(first) else {
        return vec![NOTHING.to_owned(); 8];
    };
    let law = match &answered.scaling {
        // The law only applies to CPUs that exist.
        Scaling::Law(fit) if !answered.study.is_beyond(size) => number(fit.law.throughput(f64::from(size.n))),
        _ => NOTHING.to_owned(),
    };
    let ratio = median / first;
    // By Little's law: at size n, n pieces of work are in flight.
    let latency = f64::from(size.n) / f64::from(first_n) / ratio;
    vec![
        size.n.to_string(),
        number(median),
        number(low),
        number(high),
        law,
        format!("{ratio:.2}"),
        size.wall_s().filter(|_| answered.was_run()).map_or_else(|| NOTHING.to_owned(), seconds),
        format!("{latency:.2}"),
    ]
}

/// `between 0.1 and 0.2`, `at least 3`.
fn between(band: Band) -> String {
    match band.high {
        Some(high) => format!("between {} and {}", number(band.low), number(high)),
        None => format!("at least {}", number(band.low)),
    }
}

/// The findings on how the program scales.
pub(super) fn findings(answered: &Answered) -> Vec<Finding> {
    let mut findings = of_answer(answered);
    findings.extend(beyond(answered));
    findings
}

/// Sizes that the law is not fitted to, and why.
fn beyond(answered: &Answered) -> Option<Finding> {
    let study = answered.study;
    let sizes: Vec<&Size> = study.measured().filter(|size| study.is_beyond(size)).collect();
    let last = sizes.last()?;
    let cpus = last.cpus.len();
    #[allow(clippy::cast_precision_loss)]
    let quota = study.quota.as_ref().filter(|quota| quota.cpus < cpus as f64);
    let there_are = match quota {
        Some(quota) => format!("the quota allows the time of {}", number(quota.cpus)),
        None => format!("there {} {cpus}", if cpus == 1 { "is" } else { "are" }),
    };
    let numbers = sizes.iter().map(|size| size.n.to_string()).collect::<Vec<_>>().join(", ");
    let which =
        if sizes.len() == 1 { format!("Size {numbers} asks") } else { format!("Sizes {numbers} ask") };
    Some((
        "left out",
        format!(
            "{which} for more CPUs than it can have: {there_are}. Threads that take turns show how it behaves under more load, \
             and not how it scales, so the law is not fitted to that."
        ),
    ))
}

/// The findings for each kind of answer.
fn of_answer(answered: &Answered) -> Vec<Finding> {
    match &answered.scaling {
        Scaling::Law(fit) => of_law(answered, fit),
        Scaling::Two(two) => of_two_sizes(answered, two),
        Scaling::One => vec![(
            "law",
            "One size says nothing of how it scales. Name three or more with --cpus, or --sizes where the command line \
             has {n}."
                .to_owned(),
        )],
        Scaling::Nothing if answered.study.measured().next().is_some() => {
            vec![("law", "No size has as many CPUs as it asks for. Measure smaller ones.".to_owned())]
        }
        Scaling::Nothing => vec![("law", "No size could be measured.".to_owned())],
        Scaling::FarFromOne => vec![(
            "law",
            "The sizes are too far from 1 to tell what one alone would do: the law's line does not end above 0. Measure \
             smaller sizes too."
                .to_owned(),
        )],
    }
}

fn of_law(answered: &Answered, fit: &Fit) -> Vec<Finding> {
    let (law, bands) = (fit.law, fit.bands);
    let with_band = |value: f64, band: Option<Band>| match band {
        Some(band) => format!("{}, {}", number(value), between(band)),
        None => number(value),
    };
    let mut findings = vec![
        (
            "serialisation",
            format!(
                "alpha = {}: the part of the work that only one at a time can do.",
                with_band(law.alpha, bands.map(|b| b.alpha))
            ),
        ),
        (
            "contention",
            format!(
                "beta = {}: what every pair costs, by having to agree.",
                with_band(law.beta, bands.map(|b| b.beta))
            ),
        ),
        ("peak", peak(answered, &law, bands)),
    ];
    if let Some(largest) = answered.study.within().last() {
        findings.push(("one more", one_more(answered, fit, largest.n)));
        findings.push(("latency", latency(answered, &law, largest.n)));
    }
    if bands.is_none() {
        let remedy = "There are no bands: the law has three numbers, and there are no more runs than that. Measure more \
                      sizes, or more runs with --repeat.";
        findings.push(("bands", remedy.to_owned()));
    }
    if fit.misfit {
        let why = "The law does not hold here: the sizes leave the curve by more than runs of one size differ. Something \
                   changes at some size, such as a second node or a full cache. Read the points, not the curve.";
        findings.push(("misfit", why.to_owned()));
    }
    findings
}

/// The sentence on the size of peak throughput.
fn peak(answered: &Answered, law: &Law, bands: Option<Bands>) -> String {
    let kind = answered.study.sizes_are;
    let noun = kind.noun(2);
    let band = bands.map(|bands| bands.peak);
    match law.peak() {
        _ if law.falls_from_the_first_step() => {
            let times = number(law.speed_up(2.0));
            format!("Throughput falls from the first step on: two do {times} times what one does.")
        }
        None => {
            let ceiling = match law.alpha > 0.0 {
                true => format!(" Throughput approaches {} times that of one.", number(1.0 / law.alpha)),
                false => " It scales in proportion.".to_owned(),
            };
            let low = band.map(|band| format!(" If there is one, it is at {} or more.", number(band.low)));
            format!("There is none: more never costs throughput.{ceiling}{}", low.unwrap_or_default())
        }
        Some(at) => {
            let band = band.map(|band| format!(", {}", between(band))).unwrap_or_default();
            let times = number(law.speed_up(at.max(1.0)));
            let at = if noun == "CPUs" {
                format!("{} CPUs", number(at))
            } else {
                format!("{{n}} = {}", number(at))
            };
            format!("Most throughput is at {at}{band}: {times} times that of one.")
        }
    }
}

/// The sentence on what one more CPU adds, and whether the sign of that is certain.
fn one_more(answered: &Answered, fit: &Fit, n: u32) -> String {
    let at = size(answered.study.sizes_are, n);
    let gain = fit.law.one_more(f64::from(n));
    let certainty = match slope(fit, f64::from(n)) {
        Slope::Positive => "the slope is still positive",
        Slope::Unclear => "the runs do not tell whether the slope is positive",
        Slope::Negative => "the slope is negative, and fewer would do more",
    };
    let adds = if gain < 0.0 { "costs" } else { "adds" };
    format!("Beyond {at}, one more {adds} {} of what one alone does: {certainty}.", percent(gain.abs()))
}

fn percent(part: f64) -> String {
    format!("{} %", number(part * 100.0))
}

/// The sentence on latency.
fn latency(answered: &Answered, law: &Law, n: u32) -> String {
    let times = law.latency_ratio(f64::from(n));
    let at = size(answered.study.sizes_are, n);
    let verdict = match latency_is_a_problem(law, f64::from(n)) {
        true => "a problem, since more than half of that is waiting or lost",
        false => "not a problem",
    };
    format!(
        "At {at}, one of {n} equal parts of the work takes {} times as long as alone: {verdict}.",
        number(times)
    )
}

fn of_two_sizes(answered: &Answered, two: &Two) -> Vec<Finding> {
    let kind = answered.study.sizes_are;
    let (from, to) = (size(kind, two.from), size(kind, two.to));
    let band = two.band.map(|band| format!(", {}", between(band))).unwrap_or_default();
    let ideal = f64::from(two.to) / f64::from(two.from);
    let mut findings = vec![(
        "gain",
        format!(
            "{to}: {}{band} times the throughput of {from}. In proportion it would be {}.",
            number(two.speed_up),
            number(ideal)
        ),
    )];
    let mut bounds = Vec::new();
    bounds.extend(
        two.alpha_most
            .map(|alpha| format!("serialisation (alpha) of {}, if there is no contention", number(alpha))),
    );
    bounds.extend(
        two.beta_most
            .map(|beta| format!("contention (beta) of {}, if there is no serialisation", number(beta))),
    );
    let bounds = match bounds.is_empty() {
        true => String::new(),
        false => format!(" It is a {}.", bounds.join("; or a ")),
    };
    findings.push((
        "law",
        format!(
            "Two sizes cannot tell serialisation and contention apart, nor where the peak is: the law has two numbers beside \
             the throughput of one.{bounds} Measure a third size."
        ),
    ));
    findings
}

/// The answer as JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub(super) enum Shown {
    Law { law: Law, peak: Option<f64>, bands: Option<Bands>, misfit: bool },
    TwoSizes(Two),
    OneSize,
    NoSize,
    FarFromOne,
}

impl Shown {
    pub(super) fn of(scaling: &Scaling) -> Shown {
        match scaling {
            Scaling::Law(fit) => {
                Shown::Law { law: fit.law, peak: fit.law.peak(), bands: fit.bands, misfit: fit.misfit }
            }
            Scaling::Two(two) => Shown::TwoSizes(*two),
            Scaling::One => Shown::OneSize,
            Scaling::Nothing => Shown::NoSize,
            Scaling::FarFromOne => Shown::FarFromOne,
        }
    }
}
