//! Scatter plots with a curve, and stacked bars, as SVG.

use commonhold_report::svg::{AXIS_HEIGHT, Axis, WIDTH, add_axis, open, step_for};
use commonhold_report::table::escape;

/// Points, and a curve with its confidence band, over the size.
pub(crate) struct Plot<'a> {
    /// Unique in the page.
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    /// The content of the plot in a sentence, for readers who cannot see it.
    pub(crate) description: &'a str,
    /// The unit of the horizontal axis.
    pub(crate) x_unit: &'a str,
    /// The unit of the vertical axis.
    pub(crate) y_unit: &'a str,
    /// The end of the axis of sizes.
    pub(crate) until: f64,
    pub(crate) points: &'a [(f64, f64)],
    pub(crate) curve: &'a [(f64, f64)],
    /// The confidence band around the curve: size, lower and upper end.
    pub(crate) band: &'a [(f64, f64, f64)],
    /// A size that is marked by a dashed line, and the label of that line.
    pub(crate) mark: Option<(f64, String)>,
}

const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 30.0;
const HEIGHT: f64 = 260.0;

/// Draws the plot. Bands are cut at a tenth above the highest point of runs and curve.
pub(crate) fn plot(plot: &Plot) -> String {
    let tops = plot.points.iter().chain(plot.curve).map(|(_, y)| *y).filter(|y| y.is_finite());
    let top = tops.fold(0.0, f64::max) * 1.1;
    let top = if top > 0.0 { top } else { 1.0 };
    let bottom = TOP + HEIGHT;
    let x = |size: f64| LEFT + (size / plot.until).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| bottom - (value / top).clamp(0.0, 1.0) * HEIGHT;
    let mut svg = open(plot.id, plot.title, plot.description, bottom + AXIS_HEIGHT);
    add_levels(&mut svg, top, plot.y_unit, y);
    if !plot.band.is_empty() {
        let above = plot.band.iter().map(|(size, _, high)| format!("{:.1} {:.1}", x(*size), y(*high)));
        let below = plot.band.iter().rev().map(|(size, low, _)| format!("{:.1} {:.1}", x(*size), y(*low)));
        let outline: Vec<String> = above.chain(below).collect();
        svg += &format!("<path class='band' d='M{}Z'/>\n", outline.join("L"));
    }
    if !plot.curve.is_empty() {
        let line: Vec<String> =
            plot.curve.iter().map(|(s, v)| format!("{:.1} {:.1}", x(*s), y(*v))).collect();
        svg += &format!("<path class='curve' d='M{}'/>\n", line.join("L"));
    }
    if let Some((size, label)) = &plot.mark {
        let at = x(*size);
        let (anchor, dx) = if at > f64::midpoint(LEFT, WIDTH) { ("end", -5.0) } else { ("start", 5.0) };
        svg += &format!("<line class='bound' x1='{at:.1}' y1='{TOP:.1}' x2='{at:.1}' y2='{bottom:.1}'/>\n");
        let label = escape(label);
        svg += &format!(
            "<text class='small' x='{:.1}' y='{:.1}' text-anchor='{anchor}'>{label}</text>\n",
            at + dx,
            bottom - 8.0
        );
    }
    for (size, value) in plot.points.iter().filter(|(_, value)| value.is_finite()) {
        svg += &format!("<circle class='point' cx='{:.1}' cy='{:.1}' r='3'/>\n", x(*size), y(*value));
    }
    // Sizes are whole numbers.
    let step = step_for(plot.until).max(1.0);
    let axis = Axis { left: LEFT, right: WIDTH - RIGHT, until: plot.until, step, unit: plot.x_unit };
    add_axis(&mut svg, &axis, bottom);
    svg + "</svg>\n"
}

/// Horizontal grid lines with values.
fn add_levels(svg: &mut String, top: f64, unit: &str, y: impl Fn(f64) -> f64) {
    *svg += &format!("<text class='small' x='0' y='14'>{}</text>\n", escape(unit));
    let step = step_for(top);
    let mut level = 0u32;
    while f64::from(level) * step <= top {
        let value = f64::from(level) * step;
        let at = y(value);
        let label = (value * 1e9).round() / 1e9;
        *svg += &format!(
            "<line class='grid' x1='{LEFT:.1}' y1='{at:.1}' x2='{:.1}' y2='{at:.1}'/>\n\
             <text class='small' x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>\n",
            WIDTH - RIGHT,
            LEFT - 7.0,
            at + 4.0
        );
        level += 1;
    }
}

/// A stacked bar.
pub(crate) struct Parts {
    /// The text before the bar.
    pub(crate) label: String,
    /// Lengths of the parts, in the unit of all bars.
    pub(crate) lengths: Vec<f64>,
}

/// A stacked bar chart.
pub(crate) struct Stack<'a> {
    /// Unique in the page.
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    pub(crate) description: &'a str,
    /// The kinds' names, in the order of the lengths.
    pub(crate) kinds: &'a [&'a str],
    pub(crate) bars: &'a [Parts],
    pub(crate) unit: &'a str,
}

const PITCH: f64 = 30.0;
const BAR: f64 = 20.0;
/// The width of a character of a name, in the font of narrow screens. A part contains its name only if there
/// is room.
const NAME_WIDTH: f64 = 7.5;
const LEGEND_PITCH: f64 = 18.0;

/// Draws the bars. Each part contains the name of its kind if there is room, so that colour is not the only
/// distinction.
pub(crate) fn stack(stack: &Stack) -> String {
    let longest = stack.bars.iter().map(|bar| bar.lengths.iter().sum::<f64>()).fold(0.0, f64::max);
    let longest = if longest > 0.0 { longest } else { 1.0 };
    let (legend, legend_height) = legend(stack.kinds);
    let bars_top = TOP + legend_height - LEGEND_PITCH;
    #[allow(clippy::cast_precision_loss)]
    let bottom = bars_top + PITCH * stack.bars.len() as f64;
    let mut svg = open(stack.id, stack.title, stack.description, bottom + AXIS_HEIGHT);
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    svg += &legend;
    for (bar, i) in stack.bars.iter().zip(0u32..) {
        let top = bars_top + PITCH * f64::from(i) + (PITCH - BAR) / 2.0;
        let base = top + BAR / 2.0 + 4.0;
        svg += &format!("<text x='0' y='{base:.1}'>{}</text>\n", escape(&bar.label));
        let mut left = LEFT;
        for ((length, kind), at) in bar.lengths.iter().zip(stack.kinds).zip(0..) {
            let width = length * scale;
            if width >= 0.05 {
                svg += &format!(
                    "<rect style='fill:{}' x='{left:.1}' y='{top:.1}' width='{width:.1}' height='{BAR:.1}'/>\n",
                    colour(at)
                );
            }
            #[allow(clippy::cast_precision_loss)]
            if width > NAME_WIDTH * kind.len() as f64 + 6.0 {
                svg += &format!(
                    "<text class='small' style='fill:#000' x='{:.1}' y='{base:.1}' text-anchor='middle'>{}</text>\n",
                    left + width / 2.0,
                    escape(kind)
                );
            }
            left += width;
        }
    }
    let axis =
        Axis { left: LEFT, right: WIDTH - RIGHT, until: longest, step: step_for(longest), unit: stack.unit };
    add_axis(&mut svg, &axis, bottom);
    svg + "</svg>\n"
}

/// The colour of a kind. All are light enough for black text, and distinguishable for the colour-blind.
fn colour(kind: usize) -> &'static str {
    const COLOURS: [&str; 11] = [
        "#7fb8e8", "#b7d7f2", "#e8b04c", "#d9d9d9", "#e58a8a", "#8fcf9f", "#c7e9c0", "#cbb8e8", "#efe3b0",
        "#bfbfbf", "#f2f2f2",
    ];
    COLOURS[kind % COLOURS.len()]
}

/// The legend, in as many rows as it needs, and its height.
fn legend(kinds: &[&str]) -> (String, f64) {
    let mut svg = String::new();
    let (mut left, mut top) = (0.0, 6.0);
    for (kind, at) in kinds.iter().zip(0..) {
        #[allow(clippy::cast_precision_loss)]
        let width = 14.0 + NAME_WIDTH * kind.len() as f64 + 14.0;
        if left > 0.0 && left + width > WIDTH {
            left = 0.0;
            top += LEGEND_PITCH;
        }
        svg += &format!(
            "<rect style='fill:{}' x='{left:.1}' y='{top:.1}' width='10' height='10'/>\n\
             <text class='small' x='{:.1}' y='{:.1}'>{}</text>\n",
            colour(at),
            left + 14.0,
            top + 9.0,
            escape(kind)
        );
        left += width;
    }
    (svg, top - 6.0 + LEGEND_PITCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_curve_and_band_are_where_their_values_are() {
        let drawn = plot(&Plot {
            id: "x",
            title: "t",
            description: "d",
            x_unit: "CPUs",
            y_unit: "runs/s",
            until: 4.0,
            points: &[(4.0, 10.0), (2.0, f64::NAN)],
            curve: &[(0.0, 0.0), (4.0, 10.0)],
            band: &[(0.0, 0.0, 1.0), (4.0, 9.0, f64::INFINITY)],
            mark: Some((3.0, "peak".to_owned())),
        });
        assert_eq!(drawn.matches("<circle").count(), 1);
        // The highest value is at ten elevenths of the height.
        assert!(drawn.contains("<circle class='point' cx='462.0' cy='53.6' r='3'/>"), "{drawn}");
        assert!(drawn.contains("class='curve' d='M64.0 290.0L462.0 53.6'"), "{drawn}");
        assert!(drawn.contains("L462.0 30.0L462.0 77.3L64.0 290.0Z"), "{drawn}");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
    }

    #[test]
    fn parts_of_a_bar_are_as_long_as_they_are_large() {
        let bars = [
            Parts { label: "1".into(), lengths: vec![1.0, 1.0] },
            Parts { label: "2".into(), lengths: vec![2.0, 0.0] },
        ];
        let drawn = stack(&Stack {
            id: "x",
            title: "t",
            description: "d",
            kinds: &["user", "lock"],
            bars: &bars,
            unit: "s",
        });
        assert!(
            drawn.contains("x='64.0' y='35.0' width='199.0'")
                && drawn.contains("x='263.0' y='35.0' width='199.0'")
        );
        assert_eq!(drawn.matches("height='20.0'").count(), 3, "{drawn}");
    }
}
