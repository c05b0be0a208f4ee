//! Interval plots (forest plots) of the claims: a line for each claim with a tolerance, by document and by
//! figure, table or section.
//!
//! The claims have different units, so each line has its own scale:
//! - A tolerance with two ends is as wide as in any other line. What lies outside of the plot becomes an
//!   arrow at the edge, with its number.
//! - A tolerance with one end has no width. Its band extends to the edge, and the scale is such that the
//!   published and the measured value are within the plot.
//!
//! Each kind of mark has its own shape, so that no fact is shown by colour alone.

use commonhold_report::figures::NOTHING;
use commonhold_report::svg::{WIDTH, open};
use commonhold_report::table::{escape, html_cell};

use crate::claims::{Basis, Claim, Claims, Measured, Tolerance, digits};
use crate::studies::StudyRow;

/// The plots' part of the page's style sheet. A claim stands above its plot, since it takes more room than
/// the numbers beside the plot.
pub(crate) const STYLE: &str = "\
table.intervals, .intervals thead, .intervals tbody { display: block; }
.intervals tr { display: grid; grid-template-columns: minmax(0, 1fr) 7rem 7rem 7rem; border-bottom: 1px solid var(--line); }
.intervals th, .intervals td { border: 0; white-space: normal; overflow-wrap: break-word; }
.intervals th:first-child { grid-column: 1 / -1; }
.intervals th.plot { text-align: left; }
.intervals th[scope=rowgroup] { padding-top: 1rem; color: var(--soft); }
.intervals th span { font-weight: 400; color: var(--soft); }
.intervals tr:has(th[scope=rowgroup]) { break-after: avoid; }
.plot svg { margin: 0; }
.plot .small { font-size: 12px; }
.plot .published, .plot .frozen { fill: var(--ground); stroke: var(--ink); stroke-width: 1.5; }
.plot .mean { fill: var(--ink); }
.plot .held-out { fill: var(--isolate); stroke: var(--isolate); stroke-width: 1.5; }
.plot .fitted { fill: var(--ground); stroke: var(--isolate); stroke-width: 1.5; }
@media screen and (max-width: 40rem) {
  .intervals tr { grid-template-columns: 1fr 1fr; }
  .intervals thead { display: none; }
  .intervals td.plot { grid-column: 1 / -1; }
  .plot .small { font-size: 13px; }
}
";

const LEFT: f64 = 8.0;
const RIGHT: f64 = WIDTH - 8.0;
/// The ends of every tolerance that has two.
const BAND: (f64, f64) = (168.0, 312.0);
/// The height of a lane of marks.
const LANE: f64 = 20.0;
/// From the lanes to the base line of the numbers below them.
const NUMBERS: f64 = 14.0;
/// The width of an arrow at the edge.
const ARROW: f64 = 9.0;

/// The section of all interval plots; empty if no claim has a tolerance.
pub(crate) fn html(claims: &Claims) -> String {
    let is_drawn = |claim: &&Claim| claim.tolerance != Tolerance::None && claim.basis != Basis::Beyond;
    let drawn: Vec<&Claim> = claims.rows.iter().filter(is_drawn).collect();
    if drawn.is_empty() {
        return String::new();
    }
    let studied: Vec<&StudyRow> = claims.studies.iter().flat_map(|study| &study.rows).collect();
    let mut section = format!("<h2>Published and measured values</h2>\n{MARKS}");
    if !studied.is_empty() {
        section += MARKS_OF_FITS;
    }
    for seed in in_order(drawn.iter().map(|claim| claim.seed.as_str())) {
        section += &format!("<h3>Seed {}</h3>\n<table class=\"intervals\">\n{HEAD}", escape(seed));
        let rows: Vec<&Claim> = drawn.iter().copied().filter(|claim| claim.seed == seed).collect();
        for place in in_order(rows.iter().map(|claim| claim.place.as_str())) {
            let shown = place.strip_prefix(seed).unwrap_or(place).trim_start_matches([',', ' ']);
            section +=
                &format!("<tbody>\n<tr><th scope=\"rowgroup\" colspan=\"5\">{}</th></tr>\n", escape(shown));
            for claim in rows.iter().filter(|claim| claim.place == place) {
                section += &line(claim, studied.iter().find(|row| row.id == claim.id).copied());
            }
            section += "</tbody>\n";
        }
        section += "</table>\n";
    }
    section
}

const MARKS: &str = "<p class=\"soft\">◇ published value; ● measured mean, with its 90 % confidence interval over the seeds; \
                     ▶ beyond the plot, with its number. The shaded band is the tolerance; a bound's is open to one side. Each \
                     line has its own scale, in which a tolerance with two ends has the same width as in any other line. ± is \
                     half of the 90 % confidence interval; const: the same with every seed.</p>\n";

const MARKS_OF_FITS: &str = "<p class=\"soft\">Below: ▬ central 90 % of a held-out row under the kept settings; ▭ the same of a \
                             fitted row; ○ frozen guess (see Unknowns).</p>\n";

const HEAD: &str = "<thead><tr><th scope=\"col\">claim</th><th scope=\"col\" class=\"plot\">tolerance and values</th>\
                    <th scope=\"col\">published</th><th scope=\"col\">measured</th><th scope=\"col\">verdict</th>\
                    </tr></thead>\n";

/// Each different name once, by its first occurrence.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}

/// A claim's row of the table.
fn line(claim: &Claim, studied: Option<&StudyRow>) -> String {
    let published = if claim.expected.is_empty() { NOTHING } else { &claim.expected };
    let measured = measured_text(claim);
    let class = match claim.verdict.met() {
        Some(true) => " class=\"kept\"",
        Some(false) => " class=\"broken\"",
        None => "",
    };
    format!(
        "<tr><th scope=\"row\">{} <span>{}</span></th><td class=\"plot\">{}</td>{}{}<td{class} \
         data-head=\"verdict\">{}</td></tr>\n",
        escape(&claim.id),
        escape(&claim.says),
        plot(claim, studied),
        html_cell("published", published),
        html_cell("measured", &measured),
        claim.verdict.name()
    )
}

fn measured_text(claim: &Claim) -> String {
    let text = |measured: &Measured| measured.text(measured.half_90, claim.unit);
    claim.measured.as_ref().map_or_else(|| NOTHING.to_owned(), text)
}

/// The published value in the unit of the measured one. For a number in another unit, such as `+56 %` or
/// seconds where the row is a ratio, it is the centre of the tolerance, which was chosen around it. `None` if
/// no number is printed.
fn published(claim: &Claim) -> Option<f64> {
    let number = claim.expected.strip_suffix(claim.unit.suffix()).unwrap_or(&claim.expected);
    match (number.parse::<f64>(), claim.tolerance) {
        (Ok(value), Tolerance::Between { low, high }) if low <= value && value <= high => Some(value),
        (_, Tolerance::Between { low, high }) => {
            let first = claim.expected.split_whitespace().next()?;
            let is_number = |c: char| c.is_ascii_digit() || "+-.".contains(c);
            first.chars().all(is_number).then(|| f64::midpoint(low, high))
        }
        (value, _) => value.ok().filter(|value| value.is_finite()),
    }
}

/// The interval that decides about the claim: where every seed must meet the bound, all seeds' values, else
/// the 90 % confidence interval.
fn uncertainty(claim: &Claim) -> Option<(f64, f64)> {
    let measured = claim.measured.as_ref()?;
    if let Tolerance::AlwaysAtMost { .. } = claim.tolerance {
        let fold = |most: fn(f64, f64) -> f64| measured.by_seed.iter().copied().reduce(most);
        return Some((fold(f64::min)?, fold(f64::max)?));
    }
    measured.half_90.map(|half| (measured.mean - half, measured.mean + half))
}

/// A linear scale.
#[derive(Clone, Copy)]
struct Scale {
    /// A value, and its x.
    origin: (f64, f64),
    /// The length of 1.
    unit: f64,
}

impl Scale {
    /// The scale of a claim's line, see the module's head. `None` without a tolerance.
    fn of(claim: &Claim) -> Option<Scale> {
        let origin = match claim.tolerance.ends() {
            (Some(low), Some(high)) if low < high => {
                return Some(Scale { origin: (low, BAND.0), unit: (BAND.1 - BAND.0) / (high - low) });
            }
            (Some(low), _) => (low, BAND.0),
            (None, Some(high)) => (high, BAND.1),
            (None, None) => return None,
        };
        let (low, high) = uncertainty(claim).unzip();
        let mean = claim.measured.as_ref().map(|measured| measured.mean);
        let values = [published(claim), mean, low, high].into_iter().flatten();
        let unit_for = |value: f64| {
            let room = if value > origin.0 { RIGHT - origin.1 } else { origin.1 - LEFT };
            0.9 * room / (value - origin.0).abs()
        };
        let unit = values.map(unit_for).filter(|unit| unit.is_finite() && *unit > 0.0).reduce(f64::min);
        // All values are at the bound, or there are none: show twice the bound.
        let unit =
            unit.unwrap_or_else(|| (origin.1 - LEFT) / if origin.0 == 0.0 { 1.0 } else { origin.0.abs() });
        Some(Scale { origin, unit })
    }

    fn x(self, value: f64) -> f64 {
        self.origin.1 + (value - self.origin.0) * self.unit
    }
}

/// The marks of a plot.
struct Marks {
    scale: Scale,
    /// The middle of the lane of the next mark.
    y: f64,
    drawn: String,
    /// The width of the arrows at the left and the right edge of the lane.
    arrows: [f64; 2],
    /// The numbers of marks outside of the plot, by edge. They stand below the lanes, where they hide no
    /// mark.
    outside: [Vec<String>; 2],
}

impl Marks {
    fn new(scale: Scale) -> Marks {
        let outside = [Vec::new(), Vec::new()];
        Marks { scale, y: LANE / 2.0, drawn: String::new(), arrows: [0.0; 2], outside }
    }

    fn next_lane(&mut self) {
        self.y += LANE;
        self.arrows = [0.0; 2];
    }

    /// A mark at a value; an arrow if the value is outside of the plot.
    fn point(&mut self, class: &str, value: f64) {
        let (x, y) = (self.scale.x(value), self.y);
        if !(LEFT..=RIGHT).contains(&x) {
            return self.arrow(class, x > RIGHT, digits(value));
        }
        self.drawn += &match class {
            "published" => format!("<path class='{class}' d='M{x:.1} {:.1}l7 8l-7 8l-7 -8Z'/>\n", y - 8.0),
            _ => format!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='4.5'/>\n"),
        };
    }

    /// An arrow at an edge, beside those that are there.
    fn arrow(&mut self, class: &str, is_right: bool, number: String) {
        let edge = usize::from(is_right);
        let (tip, length) =
            if is_right { (RIGHT - self.arrows[edge], -ARROW) } else { (LEFT + self.arrows[edge], ARROW) };
        self.drawn += &format!("<path class='{class}' d='M{tip:.1} {:.1}l{length} -5v10Z'/>\n", self.y);
        self.arrows[edge] += ARROW;
        self.outside[edge].push(number);
    }

    /// A whisker, up to the plot's edges; nothing if it has no length or is outside.
    fn whisker(&mut self, (low, high): (f64, f64)) {
        let ends = [low, high].map(|value| self.scale.x(value));
        let [from, to] = ends.map(|x| x.clamp(LEFT, RIGHT));
        if from >= to {
            return;
        }
        let (top, bottom) = (self.y - 5.0, self.y + 5.0);
        let cap = |x: &&f64| (LEFT..=RIGHT).contains(*x);
        let caps: String = ends.iter().filter(cap).map(|x| format!("M{x:.1} {top:.1}V{bottom:.1}")).collect();
        self.drawn += &format!("<path class='whisker' d='M{from:.1} {:.1}H{to:.1}{caps}'/>\n", self.y);
    }

    /// An interval as a bar; arrows for ends outside of the plot.
    fn bar(&mut self, class: &str, (low, high): (f64, f64)) {
        let (from, to) = (self.scale.x(low), self.scale.x(high));
        if from > RIGHT || to < LEFT {
            return self.arrow(class, from > RIGHT, format!("{}..{}", digits(low), digits(high)));
        }
        let (left, right) = (from.max(LEFT), to.min(RIGHT));
        self.drawn += &format!(
            "<rect class='{class}' x='{left:.1}' y='{:.1}' width='{:.1}' height='6'/>\n",
            self.y - 3.0,
            (right - left).max(2.0)
        );
        for (is_outside, is_right, value) in [(from < LEFT, false, low), (to > RIGHT, true, high)] {
            if is_outside {
                self.arrow(class, is_right, digits(value));
            }
        }
    }

    /// The marks, with the numbers of those outside at a height.
    fn with_numbers(self, y: f64) -> String {
        let edges = [(LEFT, "start"), (RIGHT, "end")].into_iter().zip(&self.outside);
        let text = |((x, anchor), numbers): ((f64, &str), &Vec<String>)| {
            format!(
                "<text class='small' x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>\n",
                numbers.join(", ")
            )
        };
        let numbers: String = edges.filter(|(_, numbers)| !numbers.is_empty()).map(text).collect();
        self.drawn + &numbers
    }
}

/// The plot of a claim: the tolerance behind one lane for the measured value, and one for the fit.
fn plot(claim: &Claim, studied: Option<&StudyRow>) -> String {
    let Some(scale) = Scale::of(claim) else { return String::new() };
    let frozen = studied.and_then(|row| row.frozen.as_ref()?.mean);
    let interval = studied.and_then(|row| row.interval);
    let lanes = if frozen.is_some() || interval.is_some() { 2.0 } else { 1.0 };
    let bottom = LANE * lanes;
    let id = format!("interval-{}", claim.id);
    let mut svg = open(&id, &claim.id, &described(claim, studied), bottom + 18.0);
    svg += &band(claim.tolerance, scale, bottom);
    let mut marks = Marks::new(scale);
    if let Some(value) = published(claim) {
        marks.point("published", value);
    }
    if let Some(interval) = uncertainty(claim) {
        marks.whisker(interval);
    }
    if let Some(Measured { mean, .. }) = claim.measured {
        marks.point("mean", mean);
    }
    marks.next_lane();
    if let Some((row, interval)) = studied.zip(interval) {
        marks.bar(if row.is_held_out { "held-out" } else { "fitted" }, interval);
    }
    if let Some(mean) = frozen {
        marks.point("frozen", mean);
    }
    svg + &marks.with_numbers(bottom + NUMBERS) + "</svg>"
}

/// The band of a tolerance, with a line and a number at each of its ends.
fn band(tolerance: Tolerance, scale: Scale, bottom: f64) -> String {
    let (low, high) = tolerance.ends();
    let [left, right] = [(low, LEFT), (high, RIGHT)].map(|(end, edge)| end.map_or(edge, |end| scale.x(end)));
    let mut band = format!(
        "<rect class='band' x='{left:.1}' y='0' width='{:.1}' height='{bottom:.1}'/>\n",
        right - left
    );
    for (end, x) in [(low, left), (high, right)] {
        if let Some(end) = end {
            band += &format!(
                "<line class='axis' x1='{x:.1}' y1='0' x2='{x:.1}' y2='{bottom:.1}'/>\n\
                 <text class='small' x='{x:.1}' y='{:.1}' text-anchor='middle'>{}</text>\n",
                bottom + NUMBERS,
                digits(end)
            );
        }
    }
    band
}

/// The plot in words, for people who cannot see it.
fn described(claim: &Claim, studied: Option<&StudyRow>) -> String {
    let mut words = vec![format!("tolerance {}", claim.tolerance.text())];
    words.extend(published(claim).map(|value| format!("published {}", digits(value))));
    words.push(format!("measured {}", measured_text(claim)));
    if let Some((row, (low, high))) = studied.and_then(|row| Some((row, row.interval?))) {
        let part = if row.is_held_out { "held out" } else { "fitted" };
        words.push(format!("{part}, under the kept settings {}..{}", digits(low), digits(high)));
    }
    let frozen = studied.and_then(|row| row.frozen.as_ref()?.mean);
    words.extend(frozen.map(|mean| format!("frozen guess {}", digits(mean))));
    words.join("; ")
}
