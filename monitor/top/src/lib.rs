//! `commonhold top`: units live, in a terminal or as text.

mod app;
pub mod cli;
mod columns;
mod draw;
mod figures;
mod history;
mod pane;
mod processes;
mod rows;
#[cfg(test)]
mod sample;
mod screen;
#[cfg(test)]
mod tests;
mod theme;

use std::time::Duration;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output;
use commonhold_feed::Subscription;
use commonhold_protocol::monitor::MonitorReply;
use commonhold_report::status::is_within;
use commonhold_report::table::{clean, wrap};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use app::App;
use theme::Theme;

/// The most lines that `--once` prints.
const LINES_MAX: u16 = 20_000;

/// Runs the command.
///
/// # Errors
///
/// [`Exit::Usage`] without a terminal, unless `--once` is given; [`Exit::Unavailable`] if no daemon can be
/// reached, if it is too old, or if it has no such unit; [`Exit::System`] if the terminal fails.
pub fn run(args: &cli::Top) -> Result<Exit, Failure> {
    let every_ms = u64::try_from(args.every.as_millis()).unwrap_or(u64::MAX);
    let variable = |name: &str| std::env::var(name).ok();
    if !args.once {
        let remedy = "give --once to print one picture as text";
        if !output::is_terminal() {
            return Err(Failure::new(Exit::Usage, format!("standard output is no terminal: {remedy}")));
        }
        if variable("TERM").is_none_or(|term| term == "dumb" || term.is_empty()) {
            return Err(Failure::new(
                Exit::Usage,
                format!("the terminal cannot move its cursor (TERM): {remedy}"),
            ));
        }
    }
    let mut subscription = Subscription::open(&args.place, every_ms)?;
    let picture = subscription.next_picture()?;
    if let Some(root) = args.root() {
        check_unit(root, &picture)?;
    }
    let is_ascii = !theme::is_utf8(variable);
    if !args.once {
        let theme = Theme { has_colour: output::style().colour, is_ascii };
        drop((subscription, picture));
        return screen::run(args, every_ms, theme);
    }
    if args.json {
        let mut picture = MonitorReply::clone(&picture);
        if let Some(root) = args.root() {
            picture.units.retain(|unit| is_within(&unit.unit, root));
            picture.order =
                picture.order.map(|order| order.into_iter().filter(|path| is_within(path, root)).collect());
        }
        output::print(&commonhold_report::json("commonhold.top", &picture))?;
        return Ok(Exit::Ok);
    }
    let mut app = App::new(args.root());
    app.take_picture(&picture, Duration::ZERO);
    // The second picture gives rates. If it does not come, the first one is better than nothing.
    if let Ok(second) = subscription.next_picture() {
        app.take_picture(&second, args.every);
    }
    let width = u16::try_from(output::style().width).unwrap_or(u16::MAX);
    output::print(&text(&mut app, width, Theme { has_colour: false, is_ascii }))?;
    Ok(Exit::Ok)
}

/// One screen as text, with as many lines as it needs.
fn text(app: &mut App, width: u16, theme: Theme) -> String {
    let rows = u16::try_from(app.rows.len()).unwrap_or(u16::MAX);
    let height = rows.saturating_add(32).min(LINES_MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    app.is_printed = true;
    draw::draw(app, &mut buffer, theme);
    let mut text = lines(&buffer).trim_end().to_owned();
    text.push_str("\n\n");
    for line in wrap(&theme.text(pane::LEGEND), usize::from(width), "", "") {
        text += &line;
        text.push('\n');
    }
    text
}

/// The lines of a screen, without spaces at their ends. A character of two columns is followed by a cell that
/// it hides.
fn lines(buffer: &Buffer) -> String {
    let mut text = String::new();
    for cells in buffer.content().chunks(usize::from(buffer.area.width.max(1))) {
        let (mut line, mut hidden) = (String::new(), 0);
        for cell in cells {
            if hidden == 0 {
                line += cell.symbol();
                hidden = Span::raw(cell.symbol()).width();
            }
            hidden = hidden.saturating_sub(1);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The most units that an error names.
const NAMED_MAX: usize = 12;

fn check_unit(root: &str, picture: &MonitorReply) -> Result<(), Failure> {
    if picture.units.iter().any(|unit| unit.unit == root) {
        return Ok(());
    }
    let mut names: Vec<String> = picture.units.iter().take(NAMED_MAX).map(|unit| clean(&unit.unit)).collect();
    if picture.units.len() > NAMED_MAX {
        names.push(format!("{} more", picture.units.len() - NAMED_MAX));
    }
    Err(Failure::new(
        Exit::Unavailable,
        format!("the daemon has no unit `{root}`; there are {}", names.join(", ")),
    ))
}
