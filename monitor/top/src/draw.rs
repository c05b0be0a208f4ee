//! Draws the screen. Only rows that are visible are laid out.

use commonhold_contract::Resource;
use commonhold_ledger::Verdict;
use commonhold_report::findings::PROBLEM;
use commonhold_report::table::{clean, fit, wrap};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::app::{App, Details, Link, View};
use crate::columns::{self, Bars, Column, gap_before};
use crate::figures::{amount, cpus};
use crate::pane::{self, HELP, Look, TextLine};
use crate::processes::Process;
use crate::rows::{Item, Row, Sight};
use crate::theme::{DIM, SELECTED, STRONG, Theme};

/// The broken findings, and the problems, that are shown above the table.
const TROUBLES_MAX: usize = 3;
/// The spaces for each unit around a unit.
const INDENT: usize = 2;
/// The longest number and user of a process, in columns, that widen the column of names.
const PROCESS_NAME_MAX: usize = 16;
/// The longest path, in columns, that widens the column of names.
const NAME_MAX: usize = 48;

/// Draws the screen. Scrolling positions in `app` are brought up to date.
pub(crate) fn draw(app: &mut App, buffer: &mut Buffer, theme: Theme) {
    let area = buffer.area;
    if area.width == 0 || area.height == 0 {
        return;
    }
    match app.sight.take() {
        Some(sight) => {
            screen(app, &sight, buffer, theme);
            app.sight = Some(sight);
        }
        None => put(buffer, 0, 0, area.width, "waiting for the daemon's first picture", Style::new()),
    }
    if app.is_help {
        help(buffer);
    }
    theme.finish(buffer);
}

fn screen(app: &mut App, sight: &Sight, buffer: &mut Buffer, theme: Theme) {
    let area = buffer.area;
    let has_foot = area.height >= 8 && !app.is_printed;
    let machine = if app.details == Details::Whole { Vec::new() } else { machine(sight, area.width, theme) };
    let mut head = headline(app, sight, area.width, theme);
    // Two thirds of the screen are the table's. Of troubles, at least one line is shown.
    let room = usize::from(area.height / 3).max(1);
    let mut troubles =
        if app.details == Details::Whole { Vec::new() } else { troubles(sight, area.width, theme) };
    troubles.truncate(room.saturating_sub(head.len() + machine.len()).max(1));
    head.extend(troubles);
    head.extend(machine);
    head.truncate(room);
    for (y, line) in (0..area.height).zip(&head) {
        buffer.set_line(0, y, line, area.width);
    }
    // An empty line, if there is plenty of room.
    let y = u16::try_from(head.len()).unwrap_or(area.height) + u16::from(area.height >= 16);
    let bottom = area.height - u16::from(has_foot);
    let body = Rect { x: 0, y, width: area.width, height: bottom.saturating_sub(y) };
    self::body(app, sight, buffer, body, theme);
    if has_foot {
        foot(app, buffer, area.height - 1);
    }
}

fn body(app: &mut App, sight: &Sight, buffer: &mut Buffer, body: Rect, theme: Theme) {
    if app.view == View::Trades && app.details == Details::Off {
        let lines = pane::trades(sight, body.width);
        let last = lines.len().saturating_sub(usize::from(body.height));
        app.top = app.top.min(last);
        text(buffer, body, &lines[app.top..], theme);
        return;
    }
    let selected = app.rows.get(app.selected).map(Row::unit);
    let pane_lines = match (app.details, selected) {
        (Details::Off, _) | (_, None) => Vec::new(),
        (_, Some(unit)) => pane::details(sight, unit, body.width),
    };
    let wanted = u16::try_from(pane_lines.len()).unwrap_or(u16::MAX).saturating_add(1);
    let pane_height = match app.details {
        Details::Off => 0,
        Details::Below => wanted.min(body.height * 3 / 5),
        Details::Whole => body.height,
    };
    let table = Rect { height: body.height - pane_height, ..body };
    if table.height > 0 {
        self::table(app, sight, buffer, table, theme);
    }
    if pane_height > 0 {
        let path = selected.map_or_else(String::new, |unit| clean(&sight.frame.units[unit].unit));
        let title = format!("─ {path} ");
        let rule = title.clone() + &"─".repeat(usize::from(body.width).saturating_sub(title.chars().count()));
        put(buffer, body.x, table.bottom(), body.width, &rule, STRONG);
        let room = Rect { y: table.bottom() + 1, height: pane_height - 1, ..body };
        let last = pane_lines.len().saturating_sub(usize::from(room.height));
        app.details_top = if app.details == Details::Whole { app.details_top.min(last) } else { 0 };
        text(buffer, room, &pane_lines[app.details_top..], theme);
    }
}

/// Draws lines from the top of `room`; if they do not fit, the last line says so.
fn text(buffer: &mut Buffer, room: Rect, lines: &[TextLine], theme: Theme) {
    let height = usize::from(room.height);
    for (y, line) in (room.y..room.bottom()).zip(lines) {
        let is_last = y + 1 == room.bottom() && lines.len() > height;
        let style = match line.look {
            _ if is_last => DIM,
            Look::Plain => Style::new(),
            Look::Strong => STRONG,
            Look::Dim => DIM,
            Look::Broken => theme.broken(),
            Look::CannotTell => theme.cannot_tell(),
        };
        let more = format!("… {} more", lines.len() + 1 - height.min(lines.len()));
        put(buffer, room.x, y, room.width, if is_last { &more } else { &line.text }, style);
    }
}

/// The verdict, below the state of the connection if that is broken.
fn headline(app: &App, sight: &Sight, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let columns = usize::from(width);
    let mut lines = Vec::new();
    let banner = match &app.link {
        Link::Live => None,
        Link::Lost(why) => Some(format!("daemon gone, reconnecting: {why}")),
        Link::TooOld => Some("the daemon is older than this program; restart it".to_owned()),
    };
    if let Some(banner) = banner {
        let text = fit(&clean(&banner), columns);
        let padding = " ".repeat(columns.saturating_sub(Span::raw(&*text).width()));
        lines.push(Line::styled(text + &padding, SELECTED));
    }
    let broken: Vec<_> = sight.broken().collect();
    let findings = || sight.frame.units.iter().flat_map(|unit| &unit.findings);
    let unknown = findings().filter(|finding| finding.verdict == Verdict::CannotTell).count();
    let (verdict, style) = match (broken.is_empty(), findings().count()) {
        (true, 0) => ("no verdict yet".to_owned(), theme.cannot_tell()),
        (true, all) if all == unknown => {
            ("cannot tell whether the contract is kept".to_owned(), theme.cannot_tell())
        }
        (true, _) if unknown == 0 => ("all kept".to_owned(), Style::new()),
        (true, _) => (format!("kept; cannot tell for {unknown}"), Style::new()),
        (false, _) => {
            let named =
                broken.iter().map(|(unit, finding)| format!("{} {}", clean(&unit.unit), finding.resource));
            (format!("{} broken: {}", broken.len(), named.collect::<Vec<_>>().join(", ")), theme.broken())
        }
    };
    let state = state(app, sight);
    let name = "commonhold  ";
    let name = if columns < 60 { "" } else { name };
    let room = columns.saturating_sub(name.len() + if state.is_empty() { 0 } else { state.len() + 2 });
    let verdict = fit(&verdict, room);
    let padding = " ".repeat(columns.saturating_sub(name.len() + Span::raw(&*verdict).width() + state.len()));
    lines.push(Line::from(vec![
        Span::styled(name, STRONG),
        Span::styled(verdict, style),
        Span::raw(padding),
        Span::styled(state, STRONG),
    ]));
    lines
}

/// What is broken, and then problems, the latest first.
fn troubles(sight: &Sight, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let findings = sight.broken().map(|(unit, finding)| {
        (format!("{} {}", clean(&unit.unit), clean(&pane::finding(finding))), theme.broken())
    });
    // Broken verdicts are among the problems, too, and are shown as findings.
    let problems = sight.frame.machine.problems.iter().rev().filter(|problem| !problem.starts_with(PROBLEM));
    let problems = problems.map(|problem| (format!("problem: {}", clean(problem)), theme.cannot_tell()));
    let all: Vec<_> = findings.chain(problems).collect();
    let mut lines = Vec::new();
    for (trouble, style) in all.iter().take(TROUBLES_MAX) {
        let wrapped = wrap(trouble, usize::from(width), "", "  ");
        lines.extend(wrapped.into_iter().take(2).map(|text| Line::styled(text, *style)));
    }
    if all.len() > TROUBLES_MAX {
        lines.push(Line::styled(format!("… {} more", all.len() - TROUBLES_MAX), DIM));
    }
    lines
}

/// Whether the picture stays, and how old it is.
fn state(app: &App, sight: &Sight) -> String {
    if !app.is_paused {
        return String::new();
    }
    let latest = app.history.latest().map_or(sight.frame.received, |latest| latest.received);
    match latest.saturating_sub(sight.frame.received).as_secs() {
        0 => "paused".to_owned(),
        s @ 1..60 => format!("paused, {s} s ago"),
        s => format!("paused, {} min {} s ago", s / 60, s % 60),
    }
}

/// The machine: CPUs, memory, how the contract is held.
fn machine(sight: &Sight, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let machine = &sight.frame.machine;
    let columns = usize::from(width);
    let mut lines = Vec::new();
    let rates = sight.machine;
    let whole = u64::from(machine.cpus) * 1_000_000;
    let mut cpu = vec![Span::styled(format!("{:<8}", format!("{} CPUs", machine.cpus)), STRONG)];
    if sight.over_ns > 0 {
        if columns >= 60 {
            let cells = columns / 4;
            let part = |n: u64| {
                let part = u128::from(n) * cells as u128 / u128::from(whole.max(1));
                usize::try_from(part).unwrap_or(cells).min(cells)
            };
            let used = part(rates.used);
            let common = part(rates.used.saturating_add(rates.common)) - used;
            cpu.push(Span::styled("█".repeat(used), theme.used()));
            cpu.push(Span::styled("▓".repeat(common), theme.borrowed()));
            cpu.push(Span::styled("·".repeat(cells - used - common), DIM));
            cpu.push(Span::raw("  "));
        }
        let [used, common, idle] = [rates.used, rates.common, rates.idle].map(cpus);
        cpu.push(Span::raw(format!("used {used}  common {common}  idle {idle}")));
        cpu.push(Span::styled(format!("  daemon {}", percent(rates.daemon)), DIM));
    }
    lines.push(Line::from(cpu));
    if let Some(memory) = machine.memory {
        let size = |n| amount(Resource::Memory, n);
        lines.push(Line::from(vec![
            Span::styled(format!("{:<8}", "memory"), STRONG),
            Span::raw(format!(
                "{}: units divide {}, in no unit {}, kernel {}",
                size(memory.total),
                size(memory.divided),
                size(memory.shared),
                size(memory.kernel)
            )),
        ]));
    }
    let held = format!(
        "held by {}, scheme {}, contract {}",
        clean(&machine.backend),
        clean(&machine.scheme),
        clean(&machine.contract)
    );
    lines.push(Line::styled(fit(&held, columns), DIM));
    if let Some(instead) = &machine.instead {
        let text = format!("{} does not hold it: {}", clean(&instead.of), clean(&instead.why));
        lines.push(Line::styled(fit(&text, columns), theme.cannot_tell()));
    }
    lines
}

/// Millionths in percent with a decimal: `0.3 %`.
fn percent(millionths: u64) -> String {
    let tenths = millionths.saturating_add(500) / 1_000;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn table(app: &mut App, sight: &Sight, buffer: &mut Buffer, area: Rect, theme: Theme) {
    let names = app.rows.iter().map(|row| name_width(row, sight)).max().unwrap_or(8).clamp(8, NAME_MAX);
    let units = &sight.frame.units;
    let has = |column: Column| match column {
        Column::Gauge(resource) | Column::Lent(resource) | Column::Borrowed(resource) => {
            units.iter().any(|unit| columns::gauge(unit, resource).is_some())
        }
        Column::Waiting(Resource::Memory) => units.iter().any(|unit| unit.memory.is_some()),
        Column::Waiting(Resource::Disk) => units.iter().any(|unit| unit.disk.is_some()),
        Column::CallBack(resource) => units.iter().any(|unit| unit.call_backs.contains_key(&resource)),
        _ => true,
    };
    let columns = columns::layout(app.view, area.width, u16::try_from(names).unwrap_or(u16::MAX), has);
    let mut x = area.x;
    for (column, width) in &columns {
        x += gap_before(*column);
        put(buffer, x, area.y, *width, &column.head(*width), STRONG);
        x += width;
    }
    let height = usize::from(area.height - 1);
    app.page = height.max(1);
    app.top = scrolled(app.top, app.selected, height, app.rows.len());
    if app.rows.is_empty() && height > 0 {
        let why = match (&app.choice.root, app.choice.filter.is_empty()) {
            (Some(root), true) => format!("no unit {} now; u shows all", clean(root)),
            (_, false) => format!("no unit contains {}; Esc shows all", clean(&app.choice.filter)),
            (None, true) => "no unit holds tickets: all is shared".to_owned(),
        };
        put(buffer, area.x, area.y + 1, area.width, &why, DIM);
    }
    let bars = Bars { theme, is_scale_whole: app.is_scale_whole };
    let visible = app.rows.iter().enumerate().skip(app.top).take(height);
    for (y, (index, row)) in (area.y + 1..).zip(visible) {
        let line = Rect { y, height: 1, ..area };
        draw_row(row, sight, app.view, &columns, buffer, line, bars);
        if index == app.selected && !app.is_printed {
            buffer.set_style(line, SELECTED);
        }
    }
}

/// The first visible row, such that the selected one is visible.
fn scrolled(top: usize, selected: usize, height: usize, rows: usize) -> usize {
    let least = (selected + 1).saturating_sub(height);
    top.clamp(least, selected.max(least)).min(rows.saturating_sub(height))
}

fn name_width(row: &Row, sight: &Sight) -> usize {
    let name = match &row.item {
        Item::Unit(unit) => Span::raw(leaf(&sight.frame.units[*unit].unit)).width(),
        Item::Process(_, process) => {
            let user = Span::raw(process.user.as_str()).width();
            (process.pid.to_string().len() + 1 + user).min(PROCESS_NAME_MAX)
        }
        Item::Note(..) => 0,
    };
    row.depth * INDENT + 2 + name
}

fn leaf(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn draw_row(
    row: &Row,
    sight: &Sight,
    view: View,
    columns: &[(Column, u16)],
    buffer: &mut Buffer,
    area: Rect,
    bars: Bars,
) {
    let theme = bars.theme;
    let indent = " ".repeat(row.depth * INDENT);
    let index = match &row.item {
        Item::Note(_, text) => {
            put(buffer, area.x, area.y, area.width, &format!("{indent}  {}", clean(text)), DIM);
            return;
        }
        Item::Process(_, process) => {
            return draw_process(process, &indent, view, columns, buffer, area);
        }
        Item::Unit(index) => *index,
    };
    let (unit, rates) = (&sight.frame.units[index], &sight.rates[index]);
    let sign = match row.open {
        None => "  ",
        Some(true) => "▾ ",
        Some(false) => "▸ ",
    };
    let is_idle = row.is_around || unit.processes == 0 && unit.cpu.entitled == 0 && unit.cpu.using == 0;
    let style = if is_idle { DIM } else { Style::new() };
    let mut x = area.x;
    for (column, width) in columns {
        x += gap_before(*column);
        match column {
            Column::Name => {
                put(buffer, x, area.y, *width, &format!("{indent}{sign}{}", clean(leaf(&unit.unit))), style);
            }
            Column::Mark => {
                buffer.set_span(x, area.y, &columns::mark(unit, view, theme), *width);
            }
            _ => {
                buffer.set_line(
                    x,
                    area.y,
                    &Line::from(columns::cell(*column, *width, unit, rates, bars)),
                    *width,
                );
            }
        }
        x += width;
    }
}

/// A process: its number and user in the column of names, CPU or memory in the resource's column, and the
/// command in all columns after that.
fn draw_process(
    process: &Process,
    indent: &str,
    view: View,
    columns: &[(Column, u16)],
    buffer: &mut Buffer,
    area: Rect,
) {
    let name = format!("{indent}  {} {}", process.pid, clean(&process.user));
    let figure = match view {
        View::Memory => amount(Resource::Memory, process.resident),
        _ => process.cpu.map_or_else(|| "-".to_owned(), cpus),
    };
    let mut x = area.x;
    let mut rest = area.x;
    for (column, width) in columns {
        x += gap_before(*column);
        match column {
            Column::Name => put(buffer, x, area.y, *width, &name, DIM),
            Column::Gauge(_) if rest == area.x => {
                put(
                    buffer,
                    x,
                    area.y,
                    *width,
                    &format!("{figure:>width$}", width = usize::from(*width)),
                    Style::new(),
                );
                rest = x + width + columns::GAP;
            }
            _ => {}
        }
        x += width;
    }
    let room = area.right().saturating_sub(rest);
    if rest > area.x {
        put(buffer, rest, area.y, room, &clean(&process.command), Style::new());
    }
}

/// The last line: the views, and the most important keys; or the filter that is typed.
fn foot(app: &App, buffer: &mut Buffer, y: u16) {
    let width = buffer.area.width;
    if app.is_typing {
        let text = format!("/{}", clean(&app.choice.filter));
        put(buffer, 0, y, width, &format!("{text}_   Enter: keep  Esc: all"), Style::new());
        return;
    }
    let mut spans = Vec::new();
    for (number, view) in (1..).zip(View::ALL) {
        let style = if view == app.view { SELECTED } else { DIM };
        spans.push(Span::styled(format!("{number} {}", view.name()), style));
        spans.push(Span::raw(" "));
    }
    // The keys that fit, the most important first.
    let mut keys = vec!["? help".to_owned(), "q quit".to_owned(), format!("s by {}", app.choice.sort.name())];
    if !app.choice.filter.is_empty() {
        keys.insert(0, format!("/{}", clean(&app.choice.filter)));
    }
    if let Some(root) = &app.choice.root {
        keys.insert(0, format!("u only {}", clean(root)));
    }
    keys.push("i details".to_owned());
    for key in keys {
        let taken: usize = spans.iter().map(Span::width).sum();
        let key = format!("  {key}");
        if taken + Span::raw(&*key).width() <= usize::from(width) {
            spans.push(Span::styled(key, DIM));
        }
    }
    buffer.set_line(0, y, &Line::from(spans), width);
}

/// The help, over the middle of the screen.
fn help(buffer: &mut Buffer) {
    let screen = buffer.area;
    let keys = HELP.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> = HELP.iter().map(|(key, what)| format!("{key:<keys$}  {what}")).collect();
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = u16::try_from(widest + 4).unwrap_or(u16::MAX).min(screen.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(screen.height);
    let area = Rect { x: (screen.width - width) / 2, y: (screen.height - height) / 2, width, height };
    for y in area.y..area.bottom() {
        put(buffer, area.x, y, width, &" ".repeat(usize::from(width)), Style::reset());
    }
    let rule = |title: &str| {
        title.to_owned() + &"─".repeat(usize::from(width).saturating_sub(title.chars().count()))
    };
    put(buffer, area.x, area.y, width, &rule("─ help "), STRONG);
    for (y, line) in (area.y + 1..area.bottom()).zip(&lines) {
        put(buffer, area.x + 2.min(width), y, width.saturating_sub(2), line, Style::new());
    }
    if height > 2 {
        put(buffer, area.x, area.bottom() - 1, width, &rule("─ any key goes back "), STRONG);
    }
}

/// Writes text into at most `width` columns; a longer one is cut, with an ellipsis.
fn put(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    let area = buffer.area;
    let width = width.min(area.right().saturating_sub(x));
    if y < area.bottom() && width > 0 {
        buffer.set_stringn(x, y, fit(text, usize::from(width)), usize::from(width), style);
    }
}
