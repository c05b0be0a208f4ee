//! Charts as SVG. The SVG is written without a library, so that the same data always give the same bytes.
//!
//! Elements have classes, for which the page's style sheet has the colours of a light and a dark scheme. No
//! fact is shown by colour alone: each bar has its figure beside it, and a unit's use beyond its entitlement
//! is hatched.
//!
//! A page scales charts to its width. Charts are narrow, and labels stand above what they name, so that text
//! stays readable on a phone, where the style sheet also makes it larger.

use crate::table::{escape, fit};

/// The width of every chart, in SVG units.
pub const WIDTH: f64 = 480.0;

/// The content of a bar chart.
#[derive(Debug)]
pub struct BarChart<'a> {
    /// An identifier that is unique in the page. The elements for title and description are named after it.
    pub id: &'a str,
    /// The title, which screen readers read out as the picture's name.
    pub title: &'a str,
    /// The content of the chart in a sentence, for people who cannot see it.
    pub description: &'a str,
    /// The bars, from top to bottom.
    pub bars: Vec<ChartBar<'a>>,
    /// The value at which the dashed line of the promise is drawn, and the line's label.
    pub bound: (f64, String),
    /// The label of the axis, which says what 100 means.
    pub unit: &'a str,
}

/// One bar.
#[derive(Debug)]
pub struct ChartBar<'a> {
    /// The label; it is cut after [`NAME_COLUMNS`].
    pub label: &'a str,
    /// The class that determines the bar's colour.
    pub class: &'a str,
    /// The value, as a ratio; `None` if it was not measured.
    pub value: Option<f64>,
    /// The lowest and the highest of several measurements, shown as a whisker.
    pub range: Option<(f64, f64)>,
    /// The figure, which stands after the label, above the bar.
    pub figure: String,
}

/// The columns after which names are cut.
const NAME_COLUMNS: usize = 30;

/// The x at which the bars begin: half of the width of the axis's `0`.
const BARS_LEFT: f64 = 6.0;
/// The margin at the right, for half of the last mark's number.
const BARS_RIGHT: f64 = 16.0;
const BAR_PITCH: f64 = 46.0;
const BAR_HEIGHT: f64 = 18.0;
/// From the top of a bar's row to the bar. The label is in between.
const BAR_TOP: f64 = 22.0;
const BARS_TOP: f64 = 24.0;

/// Horizontal bars from zero, each with its figure.
pub fn bars(chart: &BarChart) -> String {
    let measured = chart.bars.iter().flat_map(|bar| [bar.value, bar.range.map(|(_, high)| high)]).flatten();
    let longest = measured.fold(chart.bound.0, f64::max);
    let x = |value: f64| BARS_LEFT + value / longest * (WIDTH - BARS_LEFT - BARS_RIGHT);
    #[allow(clippy::cast_precision_loss)]
    let bottom = BARS_TOP + BAR_PITCH * chart.bars.len() as f64;
    let mut svg = open(chart.id, chart.title, chart.description, bottom + AXIS_HEIGHT);
    for (bar, i) in chart.bars.iter().zip(0u32..) {
        let top = BARS_TOP + BAR_PITCH * f64::from(i) + BAR_TOP;
        add_bar(&mut svg, bar, top, x);
        // The line of the promise leaves the labels out.
        let (at, from, to) = (x(chart.bound.0), top - 3.0, top + BAR_HEIGHT + 3.0);
        svg += &format!("<line class='bound' x1='{at:.1}' y1='{from:.1}' x2='{at:.1}' y2='{to:.1}'/>\n");
    }
    let at = x(chart.bound.0);
    let label = escape(&chart.bound.1);
    // The label extends towards the middle, since it would otherwise be cut at the picture's edge.
    let anchor = if at > f64::midpoint(BARS_LEFT, WIDTH) { "end" } else { "start" };
    svg += &format!("<text class='small' x='{at:.1}' y='15' text-anchor='{anchor}'>{label}</text>\n");
    svg += &format!(
        "<line class='axis' x1='{BARS_LEFT:.1}' y1='{BARS_TOP:.1}' x2='{BARS_LEFT:.1}' y2='{bottom:.1}'/>\n"
    );
    let (until, unit) = (longest * 100.0, chart.unit);
    let axis = Axis { left: BARS_LEFT, right: WIDTH - BARS_RIGHT, until, step: step_for(until), unit };
    add_axis(&mut svg, &axis, bottom);
    svg + "</svg>\n"
}

fn add_bar(svg: &mut String, bar: &ChartBar, top: f64, x: impl Fn(f64) -> f64) {
    let middle = top + BAR_HEIGHT / 2.0;
    let ChartBar { label, class, figure, .. } = bar;
    *svg += &format!(
        "<text x='{:.1}' y='{:.1}'>{}<tspan class='figure' dx='10'>{}</tspan></text>\n",
        BARS_LEFT + 5.0,
        top - 6.0,
        escape(&fit(label, NAME_COLUMNS)),
        escape(figure)
    );
    if let Some(value) = bar.value {
        *svg += &format!(
            "<rect class='{class}' x='{BARS_LEFT:.1}' y='{top:.1}' width='{:.1}' height='{BAR_HEIGHT:.1}'/>\n",
            x(value) - BARS_LEFT
        );
    }
    if let Some((low, high)) = bar.range {
        let (low, high) = (x(low), x(high));
        let (above, below) = (middle - 5.0, middle + 5.0);
        *svg += &format!(
            "<path class='whisker' d='M{low:.1} {middle:.1}H{high:.1}M{low:.1} {above:.1}V{below:.1}M{high:.1} \
             {above:.1}V{below:.1}'/>\n"
        );
    }
}

/// The CPU use of several units over time: one panel for each unit, and one time axis for all panels.
#[derive(Debug)]
pub struct TimeChart<'a> {
    /// An identifier that is unique in the page.
    pub id: &'a str,
    /// The title, which screen readers read out as the picture's name.
    pub title: &'a str,
    /// The content of the chart in a sentence, for people who cannot see it.
    pub description: &'a str,
    /// The end of the time axis, in seconds.
    pub until_s: f64,
    /// The number of CPUs at the top of every panel.
    pub cpus: f64,
    /// The panels, from top to bottom.
    pub panels: Vec<Panel<'a>>,
}

/// The CPU use of one unit.
#[derive(Debug)]
pub struct Panel<'a> {
    /// The unit's path.
    pub unit: &'a str,
    /// The unit's entitlement in CPUs, if it is known.
    pub entitled: Option<f64>,
    /// For each sample, in order of time: the time in seconds, and the mean number of CPUs used since the
    /// previous sample.
    pub samples: Vec<(f64, f64)>,
}

const PANEL_LEFT: f64 = 66.0;
const PANEL_RIGHT: f64 = 18.0;
const PANEL_HEIGHT: f64 = 54.0;
const PANEL_PITCH: f64 = 88.0;
/// From the top of a chart to its first panel. The panel's name is in between.
const PANELS_TOP: f64 = 24.0;

/// The chart of CPU use over time. Use is drawn as a step line, filled up to the entitlement and hatched
/// beyond it. A dashed line shows the entitlement.
pub fn steps(chart: &TimeChart) -> String {
    #[allow(clippy::cast_precision_loss)]
    let bottom = PANELS_TOP + PANEL_PITCH * chart.panels.len() as f64;
    let mut svg =
        open(chart.id, chart.title, chart.description, bottom - (PANEL_PITCH - PANEL_HEIGHT) + AXIS_HEIGHT);
    let id = escape(chart.id);
    svg += &format!(
        "<defs><pattern id='{id}-beyond' width='6' height='6' patternUnits='userSpaceOnUse'><path class='hatch' d='M-1 1L1 \
         -1M0 6L6 0M5 7L7 5'/></pattern></defs>\n"
    );
    for (panel, i) in chart.panels.iter().zip(0u32..) {
        add_panel(&mut svg, chart, panel, PANELS_TOP + PANEL_PITCH * f64::from(i));
    }
    add_time_axis(&mut svg, chart.until_s, bottom - (PANEL_PITCH - PANEL_HEIGHT));
    svg + "</svg>\n"
}

fn time_x(at_s: f64, until_s: f64) -> f64 {
    let part = if until_s > 0.0 { (at_s / until_s).clamp(0.0, 1.0) } else { 0.0 };
    PANEL_LEFT + part * (WIDTH - PANEL_LEFT - PANEL_RIGHT)
}

/// Merges samples that are too close to be distinguished, so that a long run does not make a large page.
/// Merged samples are replaced by their mean over time.
fn thinned(samples: &[(f64, f64)], until_s: f64) -> Vec<(f64, f64)> {
    let step_s = until_s / (WIDTH - PANEL_LEFT - PANEL_RIGHT);
    let (mut thinned, mut begun_s, mut before_s, mut cpu_s) = (Vec::new(), 0.0, 0.0, 0.0);
    for (i, (at_s, cpus)) in samples.iter().enumerate() {
        cpu_s += cpus * (at_s - before_s).max(0.0);
        before_s = *at_s;
        let span_s = at_s - begun_s;
        if span_s > 0.0 && (span_s >= step_s || i + 1 == samples.len()) {
            thinned.push((*at_s, cpu_s / span_s));
            (begun_s, cpu_s) = (*at_s, 0.0);
        }
    }
    thinned
}

fn add_panel(svg: &mut String, chart: &TimeChart, panel: &Panel, top: f64) {
    let bottom = top + PANEL_HEIGHT;
    let right = WIDTH - PANEL_RIGHT;
    let y = |cpus: f64| {
        bottom - if chart.cpus > 0.0 { (cpus / chart.cpus).clamp(0.0, 1.0) * PANEL_HEIGHT } else { 0.0 }
    };
    let name = escape(&fit(panel.unit, NAME_COLUMNS));
    let entitlement = panel.entitled.map_or_else(String::new, |entitled| {
        format!("<tspan class='small' dx='10'>entitled {entitled:.2}</tspan>")
    });
    *svg += &format!("<text x='0' y='{:.1}'>{name}{entitlement}</text>\n", top - 7.0);
    let cpus = if chart.cpus > 1.0 { " CPUs" } else { " CPU" };
    // The upper value hangs below its height, clear of the panel's name.
    for (value, unit, below) in [(0.0, "", 4.0), (chart.cpus, cpus, 11.0)] {
        *svg += &format!(
            "<text class='small' x='{:.1}' y='{:.1}' text-anchor='end'>{value}{unit}</text>\n",
            PANEL_LEFT - 7.0,
            y(value) + below
        );
    }
    *svg += &format!(
        "<rect class='panel' x='{PANEL_LEFT:.1}' y='{top:.1}' width='{:.1}' height='{PANEL_HEIGHT:.1}'/>\n",
        right - PANEL_LEFT
    );
    let entitled = panel.entitled.unwrap_or(f64::MAX);
    let samples = thinned(&panel.samples, chart.until_s);
    let within = area(&samples, chart.until_s, |cpus| (bottom, y(cpus.min(entitled))));
    let beyond = area(&samples, chart.until_s, |cpus| (y(entitled), y(cpus.max(entitled))));
    *svg += &format!("<path class='use' d='{within}'/>\n");
    if samples.iter().any(|(_, cpus)| *cpus > entitled) {
        let id = escape(chart.id);
        *svg +=
            &format!("<path class='beyond' d='{beyond}'/><path fill='url(#{id}-beyond)' d='{beyond}'/>\n");
    }
    if let Some(entitled) = panel.entitled {
        let at = y(entitled);
        *svg += &format!(
            "<line class='entitled' x1='{PANEL_LEFT:.1}' y1='{at:.1}' x2='{right:.1}' y2='{at:.1}'/>\n"
        );
    }
}

/// An SVG path of rectangles, one for each sample. A rectangle extends from the previous sample's time to the
/// sample's own time. Neighbours of equal height are joined into one rectangle. `from_to` returns the lower
/// and the upper edge for a number of CPUs.
fn area(samples: &[(f64, f64)], until_s: f64, from_to: impl Fn(f64) -> (f64, f64)) -> String {
    let mut path = String::new();
    let mut left = time_x(0.0, until_s);
    let mut open: Option<(f64, f64, String)> = None; // left and right edge, and the heights as they will be written
    for (at_s, cpus) in samples {
        let right = time_x(*at_s, until_s);
        let (from, to) = from_to(*cpus);
        let heights = format!("{from:.1}V{to:.1}");
        match &mut open {
            Some((_, edge, same)) if *same == heights => *edge = right,
            _ => {
                close(&mut path, open.replace((left, right, heights)));
            }
        }
        left = right;
    }
    close(&mut path, open);
    path
}

fn close(path: &mut String, rectangle: Option<(f64, f64, String)>) {
    if let Some((left, right, heights)) = rectangle {
        let (from, to) = heights.split_once('V').unwrap_or((&heights, &heights));
        if from != to {
            *path += &format!("M{left:.1} {from}V{to}H{right:.1}V{from}Z");
        }
    }
}

/// The possible distances between marks on a time axis, in seconds. The first one that gives at most eight
/// marks is used.
const MARKS_S: [f64; 16] = [
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0,
];

fn add_time_axis(svg: &mut String, until_s: f64, top: f64) {
    let step = MARKS_S.into_iter().find(|step| until_s / step <= 8.0).unwrap_or(until_s / 8.0);
    let axis = Axis { left: PANEL_LEFT, right: WIDTH - PANEL_RIGHT, until: until_s, step, unit: "seconds" };
    add_axis(svg, &axis, top);
}

/// A horizontal axis that begins with zero at its left end.
#[derive(Debug)]
pub struct Axis<'a> {
    /// The x of its left end.
    pub left: f64,
    /// The x of its right end.
    pub right: f64,
    /// The value at its right end.
    pub until: f64,
    /// The distance between two marks, as a value; see [`step_for`].
    pub step: f64,
    /// The name of the values' unit of measure.
    pub unit: &'a str,
}

/// The height that an axis takes, including its marks and labels.
pub const AXIS_HEIGHT: f64 = 36.0;

/// The smallest distance between marks that gives at most eight of them, and that is 1, 2 or 5 times a power
/// of ten.
pub fn step_for(until: f64) -> f64 {
    // Only multiplication is used, since every platform rounds it alike.
    let mut power = 1e-9;
    while until / (power * 10.0) > 8.0 {
        power *= 10.0;
    }
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * power).find(|step| until / step <= 8.0).unwrap_or(until)
}

/// Draws an axis at the height `top`: marks with their values, and below the right end the unit of measure.
pub fn add_axis(svg: &mut String, axis: &Axis, top: f64) {
    let Axis { left, right, until, step, unit } = axis;
    *svg += &format!(
        "<line class='axis' x1='{left:.1}' y1='{top:.1}' x2='{right:.1}' y2='{top:.1}'/>\n\
         <text class='small' x='{right:.1}' y='{:.1}' text-anchor='end'>{}</text>\n",
        top + 33.0,
        escape(unit)
    );
    let mut mark = 0u32;
    while *step > 0.0 && f64::from(mark) * step <= until * (1.0 + 1e-9) {
        let at = f64::from(mark) * step;
        let x = left + at / until * (right - left);
        // The value is rounded first, since 3 × 0.1 is not exactly 0.3.
        let label = (at * 1e6).round() / 1e6;
        *svg +=
            &format!("<line class='axis' x1='{x:.1}' y1='{top:.1}' x2='{x:.1}' y2='{:.1}'/>\n", top + 5.0);
        *svg += &format!(
            "<text class='small' x='{x:.1}' y='{:.1}' text-anchor='middle'>{label}</text>\n",
            top + 19.0
        );
        mark += 1;
    }
}

/// The beginning of an SVG picture, with its title and its description.
pub fn open(id: &str, title: &str, description: &str, height: f64) -> String {
    let (id, title, description) = (escape(id), escape(title), escape(description));
    format!(
        "<svg viewBox='0 0 {WIDTH:.0} {height:.0}' role='img' aria-labelledby='{id}-title {id}-desc'>\n\
         <title id='{id}-title'>{title}</title>\n<desc id='{id}-desc'>{description}</desc>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_cpu_time() {
        let samples: Vec<(f64, f64)> =
            (1..=10_000).map(|i| (f64::from(i) / 100.0, f64::from(i % 3))).collect();
        let thinned = thinned(&samples, 100.0);
        assert!(thinned.len() <= 560, "{} steps", thinned.len());
        let sum = |samples: &[(f64, f64)]| {
            let mut before_s = 0.0;
            samples
                .iter()
                .map(|(at_s, cpus)| cpus * (at_s - std::mem::replace(&mut before_s, *at_s)))
                .sum::<f64>()
        };
        assert!((sum(&samples) - sum(&thinned)).abs() < 1e-6, "{} became {}", sum(&samples), sum(&thinned));
    }

    #[test]
    fn equal_neighbours_are_one_rectangle() {
        let path = area(&[(1.0, 1.0), (2.0, 1.0), (3.0, 0.0), (4.0, 2.0)], 4.0, |cpus| (10.0, 10.0 - cpus));
        assert_eq!(path.matches('Z').count(), 2, "{path}");
        assert!(path.starts_with("M66.0 10.0V9.0H264.0V10.0Z"), "{path}");
    }

    #[test]
    fn text_is_escaped_and_cleaned() {
        assert_eq!(escape("<a href=\"x\">'&\u{1}"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{FFFD}");
    }
}
