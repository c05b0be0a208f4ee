//! The columns of the table: which fit, how wide they are, and their cells.

use commonhold_contract::Resource;
use commonhold_feed::rates::Rates;
use commonhold_ledger::{Verdict, WaitCause};
use commonhold_protocol::monitor::{Gauge, UnitView};
use commonhold_report::figures::NOTHING;
use commonhold_report::table::{clean, fit};
use ratatui::style::Style;
use ratatui::text::Span;

use crate::app::View;
use crate::figures::{amount, cpus, pair, share, times};
use crate::theme::{DIM, STRONG, Theme};

/// The least width of a gauge with a bar: beyond it, the bar grows.
const BAR_MIN: u16 = 8;
/// The space between columns.
pub(crate) const GAP: u16 = 2;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    /// The worst verdict.
    Mark,
    /// What is used and entitled, with a bar if it is wide enough; if it is narrow, what is used.
    Gauge(Resource),
    Lent(Resource),
    Borrowed(Resource),
    /// How much is waited, and for whom most, if it is wide enough.
    Waiting(Resource),
    /// The 99th percentile of call-backs beside the promise.
    CallBack(Resource),
    Read,
    Written,
    Processes,
}

impl Column {
    /// The heading in `width` columns.
    pub(crate) fn head(self, width: u16) -> String {
        match self {
            Column::Name => "unit".to_owned(),
            Column::Mark => String::new(),
            Column::Gauge(resource) => {
                let (name, of, room) = (resource.name(), "using/entitled", usize::from(width));
                match room > name.len() + of.len() {
                    true => format!("{name}{of:>rest$}", rest = room - name.len()),
                    false => format!("{name:>room$}"),
                }
            }
            Column::Lent(_) => right("lent", width),
            Column::Borrowed(_) => right("borrowed", width),
            Column::Waiting(Resource::Cpu) => "waiting for".to_owned(),
            Column::Waiting(_) => if width < 12 { "stalled" } else { "stalled for" }.to_owned(),
            Column::CallBack(_) => right("call-back", width),
            Column::Read => right("read", width),
            Column::Written => right("written", width),
            Column::Processes => right("procs", width),
        }
    }
}

fn right(text: &str, width: u16) -> String {
    format!("{text:>width$}", width = usize::from(width))
}

/// The width of used and entitled amounts.
fn pair_width(resource: Resource) -> u16 {
    match resource {
        Resource::Cpu => 9,
        Resource::Memory => 11,
        Resource::Disk | Resource::Bus => 12,
    }
}

/// The widths that columns should have, the most important first. A later wish for the same column is a
/// wider one.
fn wishes(view: View) -> Vec<(Column, u16)> {
    use Column::{Borrowed, CallBack, Gauge, Lent, Mark, Name, Processes, Read, Waiting, Written};
    use Resource::{Cpu, Disk, Memory};
    let mut wishes = vec![(Name, 8), (Mark, 1)];
    wishes.extend(match view {
        View::Overview | View::Trades => vec![
            (Gauge(Cpu), 9),
            (Name, 12),
            (Gauge(Cpu), 9 + 1 + BAR_MIN),
            (Waiting(Cpu), 5),
            (Gauge(Memory), 8),
            (Gauge(Disk), 8),
            (Gauge(Memory), 11),
            (Waiting(Cpu), 14),
            (Name, 14),
            (Gauge(Cpu), 20),
            (Name, 16),
            (Waiting(Memory), 7),
            (Waiting(Disk), 7),
            (CallBack(Cpu), 9),
            (Gauge(Disk), 12),
            (Name, 20),
            (Processes, 5),
            (Gauge(Memory), 24),
            (Gauge(Disk), 24),
            (Gauge(Resource::Bus), 12),
            (Waiting(Cpu), 22),
            (Gauge(Cpu), 30),
            (Name, 28),
            (CallBack(Memory), 9),
            (Waiting(Memory), 18),
            (Waiting(Disk), 18),
        ],
        View::Cpu => vec![
            (Gauge(Cpu), 9),
            (Name, 12),
            (Gauge(Cpu), 9 + 1 + BAR_MIN),
            (Waiting(Cpu), 14),
            (Lent(Cpu), 5),
            (Borrowed(Cpu), 8),
            (Name, 14),
            (CallBack(Cpu), 9),
            (Waiting(Cpu), 16),
            (Gauge(Cpu), 24),
            (Name, 20),
            (Processes, 5),
            (Waiting(Cpu), 24),
            (Gauge(Cpu), 50),
            (Name, 28),
        ],
        View::Memory => vec![
            (Gauge(Memory), 8),
            (Name, 12),
            (Gauge(Memory), 11 + 1 + BAR_MIN),
            (Lent(Memory), 8),
            (Borrowed(Memory), 8),
            (Waiting(Memory), 7),
            (Name, 14),
            (CallBack(Memory), 9),
            (Gauge(Memory), 24),
            (Waiting(Memory), 18),
            (Name, 20),
            (Processes, 5),
            (Waiting(Memory), 24),
            (Gauge(Memory), 50),
            (Name, 28),
        ],
        View::Disk => vec![
            (Gauge(Disk), 8),
            (Name, 12),
            (Gauge(Disk), 12 + 1 + BAR_MIN),
            (Read, 8),
            (Written, 8),
            (Waiting(Disk), 7),
            (Name, 14),
            (Lent(Disk), 8),
            (Borrowed(Disk), 8),
            (CallBack(Disk), 9),
            (Waiting(Disk), 18),
            (Gauge(Disk), 26),
            (Name, 20),
            (Gauge(Resource::Bus), 12),
            (Waiting(Disk), 24),
            (Gauge(Disk), 50),
            (Name, 28),
        ],
    });
    wishes
}

/// The place of a column in a row.
fn place(column: Column) -> u8 {
    use Resource::{Bus, Cpu, Disk, Memory};
    let of = |resource| match resource {
        Cpu => 10,
        Memory => 20,
        Disk => 30,
        Bus => 40,
    };
    match column {
        Column::Name => 0,
        Column::Mark => 1,
        Column::Gauge(resource) => of(resource),
        Column::Read => of(Disk) + 1,
        Column::Written => of(Disk) + 2,
        Column::Lent(resource) => of(resource) + 3,
        Column::Borrowed(resource) => of(resource) + 4,
        Column::Waiting(resource) => of(resource) + 5,
        Column::CallBack(resource) => of(resource) + 6,
        Column::Processes => 50,
    }
}

/// The columns of a view that fit `width`, with their widths, in the order in which they are shown. Columns
/// for which `has` is false are left out.
pub(crate) fn layout(
    view: View,
    width: u16,
    longest_name: u16,
    has: impl Fn(Column) -> bool,
) -> Vec<(Column, u16)> {
    let mut columns: Vec<(Column, u16)> = Vec::new();
    let taken = |columns: &[(Column, u16)]| {
        columns.iter().map(|(column, width)| width + gap_before(*column)).sum::<u16>()
    };
    for (column, wish) in wishes(view).into_iter().filter(|(column, _)| has(*column)) {
        let wish = if column == Column::Name { wish.min(longest_name) } else { wish };
        let found = columns.iter().position(|(other, _)| *other == column);
        let mut next = columns.clone();
        match found {
            Some(index) => next[index].1 = next[index].1.max(wish),
            None => next.push((column, wish)),
        }
        if taken(&next) <= width {
            columns = next;
        }
    }
    // What is left is the names'; if they are short, it stays empty.
    let left = width.saturating_sub(taken(&columns));
    if let Some((_, name)) = columns.iter_mut().find(|(column, _)| *column == Column::Name) {
        *name = name.saturating_add(left).min(longest_name.max(*name));
    }
    columns.sort_by_key(|(column, _)| place(*column));
    columns
}

/// The space before a column.
pub(crate) fn gap_before(column: Column) -> u16 {
    match column {
        Column::Name => 0,
        Column::Mark | Column::Gauge(Resource::Cpu) => 1,
        _ => GAP,
    }
}

/// How bars are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bars {
    pub(crate) theme: Theme,
    /// Whether they have the length of the whole machine, rather than of the unit's entitlement.
    pub(crate) is_scale_whole: bool,
}

/// The cell of a unit, without the name.
pub(crate) fn cell(
    column: Column,
    width: u16,
    unit: &UnitView,
    rates: &Rates,
    bars: Bars,
) -> Vec<Span<'static>> {
    let theme = bars.theme;
    let figure = |text: String, style: Style| vec![Span::styled(right(&text, width), style)];
    let zero = |n: u64, text: String| match n {
        0 => figure(NOTHING.to_owned(), DIM),
        _ => figure(text, Style::new()),
    };
    match column {
        Column::Name | Column::Mark => Vec::new(),
        Column::Gauge(resource) => match gauge(unit, resource) {
            Some(gauge) => gauge_cell(&gauge, resource, width, bars),
            None => figure(NOTHING.to_owned(), DIM),
        },
        Column::Lent(resource) => {
            let lent = gauge(unit, resource).map_or(0, |gauge| gauge.lent);
            zero(lent, amount(resource, lent))
        }
        Column::Borrowed(resource) => {
            let borrowed = gauge(unit, resource).map_or(0, |gauge| gauge.borrowed);
            zero(borrowed, amount(resource, borrowed))
        }
        Column::Waiting(resource) => waiting(resource, width, rates),
        Column::CallBack(resource) => {
            let Some(calls) = unit.call_backs.get(&resource).filter(|calls| calls.count > 0) else {
                return figure(NOTHING.to_owned(), DIM);
            };
            let took = calls.p99_ns.unwrap_or(calls.max_ns);
            let is_late = calls.promised_ns.is_some_and(|promised| took > promised);
            figure(times(took, calls.promised_ns), if is_late { theme.broken() } else { Style::new() })
        }
        Column::Read => zero(rates.read, amount(Resource::Disk, rates.read)),
        Column::Written => zero(rates.written, amount(Resource::Disk, rates.written)),
        Column::Processes => zero(u64::from(unit.processes), unit.processes.to_string()),
    }
}

/// A unit's gauge of a resource, if the resource is known.
pub(crate) fn gauge(unit: &UnitView, resource: Resource) -> Option<Gauge> {
    match resource {
        Resource::Cpu => Some(unit.cpu),
        Resource::Memory => unit.memory,
        Resource::Disk => unit.disk,
        Resource::Bus => unit.bus,
    }
}

fn gauge_cell(gauge: &Gauge, resource: Resource, width: u16, bars: Bars) -> Vec<Span<'static>> {
    let is_idle = gauge.using == 0 && gauge.entitled == 0;
    let style = if is_idle { DIM } else { Style::new() };
    let figures = pair_width(resource);
    if width < figures {
        return vec![Span::styled(right(&amount(resource, gauge.using), width), style)];
    }
    let text = pair(resource, gauge.using, gauge.entitled);
    if width <= figures + BAR_MIN {
        return vec![Span::styled(right(&text, width), style)];
    }
    let mut spans = match is_idle {
        true => vec![Span::raw(" ".repeat(usize::from(width - figures - 1)))],
        false => bar(gauge, width - figures - 1, bars),
    };
    spans.push(Span::styled(right(&text, figures + 1), style));
    spans
}

/// A bar of exactly `width` columns: what is used of the own part, what is borrowed, what is lent, and the
/// entitlement as a mark.
pub(crate) fn bar(gauge: &Gauge, width: u16, bars: Bars) -> Vec<Span<'static>> {
    let theme = bars.theme;
    let cells = u64::from(width.saturating_sub(1));
    // The amount at the right end. A bar of its own scale ends half above the entitlement.
    let scale = match (bars.is_scale_whole, gauge.entitled) {
        (true, _) | (false, 0) => gauge.whole,
        (false, entitled) => entitled.saturating_add(entitled / 2),
    }
    .max(1);
    let round = |amount: u64| {
        let at = (u128::from(amount) * u128::from(cells) * 2 / u128::from(scale)).div_ceil(2);
        u64::try_from(at).unwrap_or(u64::MAX).min(cells)
    };
    let mark = round(gauge.entitled);
    let own = round(gauge.using.saturating_sub(gauge.borrowed));
    let used = round(gauge.using);
    let lent = round(gauge.entitled.saturating_sub(gauge.lent));
    let is_beyond = gauge.using > scale;
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut push = |glyph: char, style: Style| match spans.last_mut() {
        Some(last) if last.style == style => last.content.to_mut().push(glyph),
        _ => spans.push(Span::styled(glyph.to_string(), style)),
    };
    for cell in 0..=cells {
        if cell == mark {
            push('│', STRONG);
        }
        if cell == cells {
            break;
        }
        let (glyph, style) = match cell {
            _ if is_beyond && cell + 1 == cells => ('▶', theme.borrowed()),
            _ if cell < own => ('█', theme.used()),
            _ if cell < used => ('▓', theme.borrowed()),
            _ if gauge.lent > 0 && cell >= lent && cell < mark => ('░', DIM),
            _ => (' ', Style::new()),
        };
        push(glyph, style);
    }
    spans
}

fn waiting(resource: Resource, width: u16, rates: &Rates) -> Vec<Span<'static>> {
    let rate = match resource {
        Resource::Cpu => rates.cpu_waiting,
        Resource::Memory => rates.memory_stalled,
        Resource::Disk => rates.disk_stalled,
        Resource::Bus => 0,
    };
    // Below a hundredth there is nothing to see.
    if rate < 5_000 {
        return vec![Span::styled(format!("{NOTHING:>4}"), DIM)];
    }
    let figure = if resource == Resource::Cpu { cpus(rate) } else { share(rate) };
    let mut spans = vec![Span::raw(format!("{figure:>4}"))];
    let room = usize::from(width).saturating_sub(figure.len().max(4) + 1);
    if room >= 4
        && let Some(worst) = rates.worst(resource)
    {
        spans.push(Span::styled(format!(" {}", fit(&cause(&worst.cause), room)), DIM));
    }
    spans
}

/// A cause of waiting in a word or two.
fn cause(cause: &WaitCause) -> String {
    match cause {
        WaitCause::Own => "itself".to_owned(),
        WaitCause::Unit { unit } => clean(unit),
        WaitCause::OtherUnits => "further units".to_owned(),
        WaitCause::CallBack { unit } => format!("call-back: {}", clean(unit)),
        WaitCause::Limit => "its limit".to_owned(),
        WaitCause::Common => "common parts".to_owned(),
        WaitCause::HigherClass => "real-time".to_owned(),
        WaitCause::Switch => "switching".to_owned(),
        WaitCause::Gate => "its gang's turn".to_owned(),
        WaitCause::Unknown => "unknown".to_owned(),
    }
}

/// The mark of a unit: the worst verdict, on the view's resource if it has one.
pub(crate) fn mark(unit: &UnitView, view: View, theme: Theme) -> Span<'static> {
    let of_view = |resource| view.resource().is_none_or(|only| only == resource);
    let findings = unit.findings.iter().filter(|finding| of_view(finding.resource));
    match findings.map(|finding| finding.verdict).max() {
        Some(Verdict::Broken) => Span::styled("!", theme.broken()),
        Some(Verdict::CannotTell) => Span::styled("?", theme.cannot_tell()),
        Some(Verdict::Kept) => Span::styled("✓", DIM),
        None => Span::raw(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(using: u64, lent: u64, borrowed: u64, is_scale_whole: bool) -> String {
        let gauge = Gauge { whole: 800, entitled: 100, using, lent, borrowed };
        let bars = Bars { theme: Theme::PLAIN, is_scale_whole };
        bar(&gauge, 16, bars).into_iter().map(|span| span.content.into_owned()).collect()
    }

    #[test]
    fn used_lent_and_borrowed_differ_without_colour() {
        assert_eq!(drawn(0, 0, 0, false), "          │     ");
        assert_eq!(drawn(60, 0, 0, false), "██████    │     ");
        assert_eq!(drawn(60, 40, 0, false), "██████░░░░│     ");
        assert_eq!(drawn(130, 0, 30, false), "██████████│▓▓▓  ");
        assert_eq!(drawn(60, 0, 30, false), "███▓▓▓    │     ");
        assert_eq!(drawn(500, 0, 400, false), "██████████│▓▓▓▓▶");
        assert_eq!(drawn(130, 0, 30, true), "██│             ");
        assert_eq!(drawn(u64::MAX, 0, u64::MAX, true), "▓▓│▓▓▓▓▓▓▓▓▓▓▓▓▶");
    }

    #[test]
    fn columns_fit_any_width() {
        for view in View::ALL {
            for width in 0..300 {
                let columns = layout(view, width, 40, |_| true);
                let taken: u16 = columns.iter().map(|(column, width)| width + gap_before(*column)).sum();
                assert!(taken <= width, "{view:?} {width}: {columns:?}");
                assert!(width < 8 || columns[0].0 == Column::Name, "{width}");
            }
        }
    }
}
