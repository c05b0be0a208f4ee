//! Standard output: style, width, and readers that hang up.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use commonhold_report::Style;

use crate::exit::{Exit, Failure};

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// How text is shown here: colours on a terminal unless `NO_COLOR` is set, and the terminal's width.
pub(crate) fn style() -> Style {
    let terminal = is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Style { colour, width: size().map_or(80, |(columns, _)| columns) }
}

/// Columns and rows of the terminal, if there is one.
pub(crate) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col >= 20).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Prints; a reader that hung up (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::System, format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a page of HTML.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    std::fs::write(path, page).map_err(|e| {
        let remedy = "give a path in a folder that you may write to";
        Failure::new(Exit::System, format!("{}: cannot write the page: {e}; {remedy}", path.display()))
    })
}

/// A line on standard output of a program that goes on whatever happens to its output: on a full disk, or after the
/// terminal is gone, the line is lost and nothing else.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The same on standard error.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The same for text that has its own line ends, or is empty.
pub(crate) fn complain_of(text: &str) {
    let _ = write!(io::stderr(), "{text}");
}
