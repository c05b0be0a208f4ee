//! Line plots with error bars, as SVG: a figure over the values of a swept key, one line for each combination
//! of the other keys' values. Each line has its own marker, so that no fact is shown by colour alone.

use commonhold_report::svg::{WIDTH, open, step_for};
use commonhold_report::table::{escape, fit};

use crate::figures::Estimate;

/// A plot.
pub(crate) struct Plot<'a> {
    /// An identifier that is unique in the page.
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    /// The label of the horizontal axis.
    pub(crate) across: &'a str,
    /// The places of the swept values on the horizontal axis, each with its label.
    pub(crate) ticks: Vec<(f64, String)>,
    /// The lines; at most [`LINES_MAX`] are drawn.
    pub(crate) lines: Vec<Line>,
    /// Writes a value of the vertical axis.
    pub(crate) show: fn(f64) -> String,
    /// Whether the values are bytes, whose axis has binary steps.
    pub(crate) is_bytes: bool,
}

/// One line.
pub(crate) struct Line {
    /// The name in the legend; empty if the plot has one line.
    pub(crate) label: String,
    /// From left to right: the places, and the values there.
    pub(crate) points: Vec<(f64, Estimate)>,
}

/// The most lines of a plot; more could not be told apart.
pub(crate) const LINES_MAX: usize = 8;
/// The page's style for these plots.
pub(crate) const STYLE: &str = "svg .line { fill: none; stroke: var(--isolate); stroke-width: 1.5; }\n\
     svg .marker { fill: var(--ground); stroke: var(--isolate); stroke-width: 1.5; }\n\
     svg .solid { fill: var(--isolate); }\n";

const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 172.0;
/// The most labels of the horizontal axis.
const LABELS_MAX: usize = 8;
/// The columns after which labels are cut.
const LABEL_COLUMNS: usize = 12;

/// The plot as SVG; empty if it has no points.
pub(crate) fn draw(plot: &Plot<'_>) -> String {
    let lines = &plot.lines[..plot.lines.len().min(LINES_MAX)];
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        return String::new();
    }
    let top = |estimate: &Estimate| estimate.interval.map_or(estimate.mean, |(_, high)| high);
    let highest = points().map(|(_, estimate)| top(estimate)).fold(0.0, f64::max);
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let places = plot.ticks.iter().map(|(place, _)| *place);
    let (from, to) = places.fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
    let x = |at: f64| {
        if to > from {
            LEFT + 8.0 + (at - from) / (to - from) * (RIGHT - LEFT - 16.0)
        } else {
            f64::midpoint(LEFT, RIGHT)
        }
    };
    let y = |value: f64| BOTTOM - (value / highest).clamp(0.0, 1.0) * (BOTTOM - TOP);
    let has_legend = lines.len() > 1;
    #[expect(clippy::cast_precision_loss, reason = "a number of lines")]
    let legend = if has_legend { 18.0 * lines.len() as f64 } else { 0.0 };
    let mut svg = open(plot.id, plot.title, &described(plot, lines), BOTTOM + 44.0 + legend);
    svg += &axes(plot, highest, x, y);
    for (line, number) in lines.iter().zip(0usize..) {
        svg += &drawn(line, number, x, y);
        if has_legend {
            let at = BOTTOM + 52.0 + 18.0 * f64::from(u32::try_from(number).unwrap_or(0));
            svg += &marker(number, LEFT, at - 4.0);
            svg += &format!(
                "<text x='{:.1}' y='{at:.1}'>{}</text>\n",
                LEFT + 12.0,
                escape(&fit(&line.label, 60))
            );
        }
    }
    svg + "</svg>\n"
}

fn axes(plot: &Plot<'_>, highest: f64, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut svg = String::new();
    let mut scale = 1.0;
    while plot.is_bytes && highest / scale >= 1024.0 {
        scale *= 1024.0;
    }
    let step = step_for(highest / scale) * scale;
    let mut mark = 0u32;
    while f64::from(mark) * step <= highest * (1.0 + 1e-9) {
        let value = f64::from(mark) * step;
        let at = y(value);
        svg += &format!(
            "<line class='grid' x1='{LEFT:.1}' y1='{at:.1}' x2='{RIGHT:.1}' y2='{at:.1}'/>\n\
             <text class='small' x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>\n",
            LEFT - 6.0,
            at + 4.0,
            escape(&(plot.show)(value))
        );
        mark += 1;
    }
    let every = plot.ticks.len().div_ceil(LABELS_MAX).max(1);
    for (place, label) in plot.ticks.iter().step_by(every) {
        let at = x(*place);
        svg += &format!(
            "<line class='axis' x1='{at:.1}' y1='{BOTTOM:.1}' x2='{at:.1}' y2='{:.1}'/>\n\
             <text class='small' x='{at:.1}' y='{:.1}' text-anchor='middle'>{}</text>\n",
            BOTTOM + 5.0,
            BOTTOM + 18.0,
            escape(&fit(label, LABEL_COLUMNS))
        );
    }
    svg + &format!(
        "<line class='axis' x1='{LEFT:.1}' y1='{BOTTOM:.1}' x2='{RIGHT:.1}' y2='{BOTTOM:.1}'/>\n\
         <text class='small' x='{RIGHT:.1}' y='{:.1}' text-anchor='end'>{}</text>\n",
        BOTTOM + 34.0,
        escape(&fit(plot.across, 60))
    )
}

fn drawn(line: &Line, number: usize, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let path: Vec<String> =
        line.points.iter().map(|(at, estimate)| format!("{:.1} {:.1}", x(*at), y(estimate.mean))).collect();
    let dash = if number == 0 { String::new() } else { format!(" stroke-dasharray='{} 3'", 2 + 2 * number) };
    let mut svg = format!("<path class='line'{dash} d='M{}'/>\n", path.join("L"));
    for (at, Estimate { mean, interval }) in &line.points {
        let at = x(*at);
        if let Some((low, high)) = interval.filter(|(low, high)| low < high) {
            let (low, high, left, right) = (y(low), y(high), at - 4.0, at + 4.0);
            svg += &format!(
                "<path class='whisker' d='M{at:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}M{left:.1} \
                 {high:.1}H{right:.1}'/>\n"
            );
        }
        svg += &marker(number, at, y(*mean));
    }
    svg
}

/// The marker of a line: one of four shapes, hollow or solid.
fn marker(number: usize, x: f64, y: f64) -> String {
    let class = if number < 4 { "marker solid" } else { "marker" };
    match number % 4 {
        0 => format!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='3.5'/>\n"),
        1 => format!("<path class='{class}' d='M{:.1} {:.1}h7v7h-7Z'/>\n", x - 3.5, y - 3.5),
        2 => format!("<path class='{class}' d='M{x:.1} {:.1}l5 5l-5 5l-5 -5Z'/>\n", y - 5.0),
        _ => format!("<path class='{class}' d='M{x:.1} {:.1}l5 8h-10Z'/>\n", y - 5.0),
    }
}

/// The plot in words, for people who cannot see it.
fn described(plot: &Plot<'_>, lines: &[Line]) -> String {
    let label = |at: f64| {
        plot.ticks.iter().find(|(place, _)| place.total_cmp(&at).is_eq()).map_or("", |(_, label)| label)
    };
    let line = |line: &Line| {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(at, estimate)| format!("{}: {}", label(*at), (plot.show)(estimate.mean)))
            .collect();
        let name = if line.label.is_empty() { String::new() } else { format!("{}: ", line.label) };
        name + &points.join(", ")
    };
    lines.iter().map(line).collect::<Vec<_>>().join("; ")
}
