//! The report as an HTML page with plots.

use commonhold_report::html::{CLOSE, open};
use commonhold_report::table::escape;
use commonhold_scale::scaling::Scaling;
use commonhold_scale::states::State;
use commonhold_scale::study::{Measure, Sizes, Study};

use crate::plot::{Parts, Plot, Stack, plot, stack};
use crate::{Answered, Finding, about, blame, limits, mend, number, scaling, time, verdict};

/// The number of segments of a curve.
const STEPS: u32 = 120;

/// The page with plots.
pub fn html(study: &Study) -> String {
    let answered = Answered::of(study);
    let mut page = open("How a program scales, where its time goes, and who is to blame", "");
    page += &format!("<dl class=\"facts\">\n<dt>Program</dt><dd>{}</dd>\n", escape(&study.command));
    for (label, fact) in ["Machine", "Sizes", "Throughput", "Runs"].iter().zip(about(study)) {
        page += &format!("<dt>{label}</dt><dd>{}</dd>\n", escape(&fact));
    }
    page += "</dl>\n";
    page += &format!("<p><strong>{}</strong></p>\n", escape(&verdict::verdict(&answered)));
    page += "<h2>How does it scale?</h2>\n";
    page += &sentences(&scaling::findings(&answered));
    page += &throughput(&answered);
    page += &latency(&answered);
    page += &scaling::table(&answered).html();
    if !answered.was_run() {
        return page + CLOSE;
    }
    page += "<h2>Where does the time go?</h2>\n";
    page += &sentences(&time::findings(&answered));
    if answered.is_watched() {
        page += &states(study);
        page += &time::table(&answered).html();
        page += STATES;
    }
    page += "<h2>Who is to blame?</h2>\n";
    page += &sentences(&blame::findings(&answered));
    if let Some(table) = blame::table(&answered) {
        page += &format!("<p>{}</p>\n{}", escape(&blame::lead(&answered)), table.html());
    }
    if let Some(experiment) = &answered.mend {
        page += "<h2>Would mending it help?</h2>\n";
        page += &sentences(&mend::findings(&answered));
        if !experiment.locks.locks.is_empty() {
            page += &mend::table(experiment.locks).html();
        }
    }
    let limits = limits(study);
    if !limits.is_empty() {
        let items = limits
            .iter()
            .map(|limit| format!("<li>{}; {}</li>\n", escape(&limit.what), escape(&limit.remedy)));
        page += &format!("<h2>What was not measured</h2>\n<ul>\n{}</ul>\n", items.collect::<String>());
    }
    page + CLOSE
}

fn sentences(findings: &[Finding]) -> String {
    let item = |(label, text): &Finding| format!("<dt>{}</dt><dd>{}</dd>\n", escape(label), escape(text));
    format!("<dl class=\"facts\">\n{}</dl>\n", findings.iter().map(item).collect::<String>())
}

fn unit(study: &Study) -> &'static str {
    if study.sizes_are == Sizes::Number { "{n}" } else { "CPUs" }
}

/// The end of the axis of sizes: a little beyond the largest size.
fn until(study: &Study) -> f64 {
    let largest = study.measured().map(|size| size.n).max().unwrap_or(1);
    f64::from(largest) * 1.1
}

/// The sizes at which a curve is drawn, from 1 to `until`.
fn along(until: f64) -> impl Iterator<Item = f64> {
    (0..=STEPS).map(move |i| 1.0 + (until - 1.0).max(0.0) * f64::from(i) / f64::from(STEPS))
}

/// The plot of throughput by size.
fn throughput(answered: &Answered) -> String {
    let study = answered.study;
    let until = until(study);
    let runs =
        study.measured().flat_map(|size| size.runs.iter().map(|run| (f64::from(size.n), run.throughput)));
    let points: Vec<(f64, f64)> = runs.collect();
    let (mut curve, mut band, mut mark) = (Vec::new(), Vec::new(), None);
    if let Scaling::Law(fit) = &answered.scaling {
        curve = along(until).map(|n| (n, fit.law.throughput(n))).collect();
        let around =
            |n: f64| fit.throughput_band(n).map(|band| (n, band.low, band.high.unwrap_or(f64::INFINITY)));
        band = along(until).filter_map(around).collect();
        let peak = fit.law.peak().filter(|peak| *peak <= until);
        mark = peak.map(|peak| (peak, format!("most throughput: {}", number(peak))));
    }
    let y_unit = match study.measure {
        Measure::Runs => "runs per second",
        Measure::Printed(_) => "as the program prints it",
        Measure::Points(_) => "as the file has it",
    };
    let medians =
        study.measured().filter_map(|size| Some(format!("{}: {}", size.n, number(size.throughput()?.0))));
    let description = medians.collect::<Vec<_>>().join("; ");
    let drawn = plot(&Plot {
        id: "throughput",
        title: "Throughput by size",
        description: &description,
        x_unit: unit(study),
        y_unit,
        until,
        points: &points,
        curve: &curve,
        band: &band,
        mark,
    });
    let caption = if curve.is_empty() {
        "Every run is a point."
    } else {
        "Every run is a point. The line is the law; where it would be in 95 of 100 such studies is shaded."
    };
    format!("<h3>Throughput</h3>\n<figure>\n{drawn}<figcaption>{caption}</figcaption>\n</figure>\n")
}

/// The plot of latency by size, relative to size 1; without the law, relative to the smallest size.
fn latency(answered: &Answered) -> String {
    let study = answered.study;
    let until = until(study);
    let smallest = study.measured().next().and_then(|size| Some(f64::from(size.n) / size.throughput()?.0));
    let (base, curve) = match &answered.scaling {
        Scaling::Law(fit) => {
            (Some(1.0 / fit.law.lambda), along(until).map(|n| (n, fit.law.latency_ratio(n))).collect())
        }
        _ => (smallest, Vec::new()),
    };
    let Some(base) = base else { return String::new() };
    let runs =
        study.measured().flat_map(|size| size.runs.iter().map(|run| (f64::from(size.n), run.throughput)));
    let points: Vec<(f64, f64)> = runs.map(|(n, throughput)| (n, n / throughput / base)).collect();
    let largest = points.last().map(|(n, times)| format!("{} times as long at {n}", number(*times)));
    let drawn = plot(&Plot {
        id: "latency",
        title: "Latency by size",
        description: &largest.unwrap_or_default(),
        x_unit: unit(study),
        y_unit: "times as long as alone",
        until,
        points: &points,
        curve: &curve,
        band: &[],
        mark: None,
    });
    format!(
        "<h3>Latency</h3>\n<figure>\n{drawn}<figcaption>How long one of so many equal parts of the work takes. Perfect \
         scaling is a level line at 1.</figcaption>\n</figure>\n"
    )
}

/// The chart of states: a stacked bar for each size.
fn states(study: &Study) -> String {
    let states: Vec<State> = time::states(study);
    let kinds: Vec<&str> = states.iter().map(|state| state.name()).collect();
    let bars: Vec<Parts> = study
        .measured()
        .filter(|size| size.times().1 > 0)
        .map(|size| {
            let (times, _) = size.times();
            let lengths = states.iter().map(|state| time::share(times, *state) * 100.0).collect();
            Parts { label: size.n.to_string(), lengths }
        })
        .collect();
    let described = bars.iter().map(|bar| {
        let parts = bar.lengths.iter().zip(&kinds).map(|(part, kind)| format!("{kind} {part:.0} %"));
        format!("{}: {}", bar.label, parts.collect::<Vec<_>>().join(", "))
    });
    let drawn = stack(&Stack {
        id: "states",
        title: "What threads did, by size",
        description: &described.collect::<Vec<_>>().join("; "),
        kinds: &kinds,
        bars: &bars,
        unit: "% of the threads' lives",
    });
    format!(
        "<figure>\n{drawn}<figcaption>A bar for each size: all threads of all runs.</figcaption>\n</figure>\n"
    )
}

const STATES: &str = "<h3>The states</h3>
<dl class=\"facts\">
<dt>user, system</dt><dd>On a CPU, in the program or in the kernel.</dd>
<dt>memory</dt><dd>On a CPU that waits for memory, where the machine counts it.</dd>
<dt>queue</dt><dd>Ready to run, without a CPU.</dd>
<dt>lock</dt><dd>Waits for a lock, a condition variable or a barrier (a futex), for a file lock, or for a lock in the kernel.</dd>
<dt>I/O, fault</dt><dd>Waits for a disk; for a page that it touched.</dd>
<dt>join</dt><dd>Waits for a thread or process of the program to end.</dd>
<dt>sleep</dt><dd>Waits for anything else: time, a pipe, the network.</dd>
<dt>stopped</dt><dd>By a signal or a debugger.</dd>
<dt>unseen</dt><dd>Not sampled.</dd>
</dl>
";
