//! Standard output (style, width, broken pipes), standard error, and HTML pages.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use commonhold_report::{Style, is_foul, table};
use rustix::fd::AsFd;
use rustix::fs::{Access, access};

use crate::exit::{Exit, Failure};

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The style of printed text: with colours on a terminal unless `NO_COLOR` is set; as wide as the terminal,
/// else 80 columns.
pub fn style() -> Style {
    let terminal = is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Style { colour, width: size().map_or(80, |(columns, _)| columns) }
}

/// Columns and rows of the terminal; `None` if standard output is no terminal, or one of less than 20
/// columns.
pub fn size() -> Option<(usize, usize)> {
    size_of(io::stdout())
}

fn size_of(stream: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col >= 20).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// The width at which messages on standard output are wrapped: the terminal's. `None`: standard output is no
/// terminal, and each message is one line, so that programs can search for its words.
pub fn message_width() -> Option<usize> {
    size().map(|(columns, _)| columns)
}

/// Prints to standard output; a broken pipe (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), Failure> {
    print_to_reader(text).map(drop)
}

/// Prints to standard output. Returns whether there is still a reader: `false` after a broken pipe.
pub fn print_to_reader(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new(Exit::System, format!("cannot write to standard output: {e}"))),
    }
}

/// The path of an HTML page that a command writes at its end. The path is checked at the start, since the
/// work in between may take minutes.
#[derive(Debug)]
pub struct Page(PathBuf);

impl Page {
    /// Checks that a page can be written to this path. An existing file is not changed. If there is no file,
    /// the check creates one and removes it again.
    pub fn at(path: &Path) -> Result<Page, Failure> {
        let page = Page(path.to_owned());
        check_writable(path).map_err(|e| page.cannot(&e))?;
        Ok(page)
    }

    /// Prints the result, then writes the page, if there is one. In this order the user sees the result even
    /// if the page cannot be written.
    pub fn print_then_write(
        page: Option<Page>,
        result: &str,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        print(result)?;
        page.map_or(Ok(()), |page| page.write(&html()))
    }

    /// Writes the page.
    pub fn write(&self, html: &str) -> Result<(), Failure> {
        fs::write(&self.0, html).map_err(|e| self.cannot(&e))
    }

    fn cannot(&self, e: &io::Error) -> Failure {
        let remedy = "give a path in a folder that you may write to";
        let path = self.0.display();
        Failure::new(Exit::CannotCreate, format!("{path}: cannot write the page: {e}; {remedy}"))
    }
}

/// Fails if no file can be written at `path`. Writes nothing: an existing file is not even opened, and a new
/// file is created only to be removed.
fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(facts) if facts.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        // The file is not opened, since it may be a named pipe. Opening a pipe blocks until there is a
        // reader, and closing it would signal end of file to that reader.
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match File::create_new(path) {
            Ok(_) => fs::remove_file(path),
            // A dangling symbolic link: writing through it will create the file that it names.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    }
}

/// Prints a line to standard output, wrapped at a terminal's width, and ignores a failure. If the disk is
/// full or the terminal is gone, only the line is lost, and the program goes on.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{}", wrapped(line, message_width()));
}

/// Prints text to standard output as [`say`] does, but adds no newline. The text may be empty.
pub fn say_text(text: &str) {
    let _ = write!(io::stdout(), "{text}");
}

/// A message, wrapped at `width`, if there is one. A text of several lines is laid out already, except for
/// diagnostics: their messages and remedies are wrapped, the lines of source that they show are not.
fn wrapped(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width else { return text.into() };
    if !text.contains('\n') {
        return table::wrap_whole(text, width, "", "  ").join("\n").into();
    }
    let is_message = |line: &str| {
        let plain = without_colours(line);
        ["error", "warning", "= help"].iter().any(|first| plain.trim_start().starts_with(first))
    };
    fit_lines(text, width, is_message).into()
}

/// A line without the escape sequences of colours.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Text for standard output whose lines are messages: on a terminal, lines that are too long are wrapped. A
/// line with cells, which are two spaces apart, stays as it is.
pub fn messages(text: &str) -> String {
    let is_message = |line: &str| !line.trim_start().contains("  ");
    message_width().map_or_else(|| text.to_owned(), |width| fit_lines(text, width, is_message))
}

/// Wraps the lines that are messages, with their indentation.
fn fit_lines(text: &str, width: usize, is_message: impl Fn(&str) -> bool) -> String {
    let fit = |line: &str| {
        if !is_message(line) {
            return line.to_owned();
        }
        let indent = &line[..line.len() - line.trim_start_matches(' ').len()];
        table::wrap_whole(line, width, indent, &format!("{indent}  ")).join("\n")
    };
    text.split('\n').map(fit).collect::<Vec<_>>().join("\n")
}

/// Escapes control characters, and characters that reorder text, in the form `\u{1b}`. Text from arguments,
/// files and the daemon may contain them, and they could move the cursor or hide text. Newlines and tabs are
/// not escaped, since some messages have several lines.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_foul(c) && c != '\n' && c != '\t' {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}

/// Prints a line to standard error, escaped by [`shown`], since it may quote a user, a file or the daemon.
pub fn warn(line: &str) {
    complain(&shown(line));
}

/// Prints a line to standard error without escaping it, wrapped at a terminal's width, and ignores a failure.
/// The caller must have escaped text of others by [`shown`].
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", wrapped(line, error_width()));
}

/// Prints text to standard error as [`complain`] does, but adds no newline. The text may be empty.
pub fn complain_of(text: &str) {
    let _ = write!(io::stderr(), "{}", wrapped(text, error_width()));
}

/// The width of standard error, if it is a terminal.
fn error_width() -> Option<usize> {
    size_of(io::stderr()).map(|(columns, _)| columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_line_ends_are_not() {
        assert_eq!(
            shown("a\u{1b}[31m\u{7}\r\n\tä\u{9b}\u{202e}"),
            "a\\u{1b}[31m\\u{7}\\u{d}\n\tä\\u{9b}\\u{202e}"
        );
        let failure = Failure::new(Exit::Usage, "\u{1b}[1merror");
        assert_eq!(failure.to_string(), "error: \\u{1b}[1merror");
    }

    #[test]
    fn messages_are_wrapped_on_terminals_alone() {
        let message = "error: /run/commonhold/socket: no such file";
        assert_eq!(wrapped(message, None), message);
        assert_eq!(wrapped(message, Some(20)), "error:\n  /run/commonhold/socket:\n  no such file");
        let table = "a     b\n1     2 and more than twenty columns";
        assert_eq!(wrapped(table, Some(20)), table);
        let source = "  |\n4 | a = { b = 1, c = 2, d = 3 }\n";
        let diagnostic = format!("error[x]: a word that is unknown\n{source}  = help: write another one\n");
        assert_eq!(
            wrapped(&diagnostic, Some(20)),
            format!("error[x]: a word\n  that is unknown\n{source}  = help: write\n    another one\n")
        );
        assert_eq!(without_colours("\u{1b}[1m\u{1b}[91merror\u{1b}[0m: a"), "error: a");
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_page_that_cannot_be_written_is_refused_and_nothing_is_left_of_the_question() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str| Page::at(&folder.path().join(name));
        let names = || fs::read_dir(folder.path()).unwrap().count();
        page("new.html").unwrap();
        assert_eq!(names(), 0);
        for name in ["missing/new.html", ".", "new.html/"] {
            assert_eq!(page(name).unwrap_err().exit, Exit::CannotCreate, "{name}");
        }
        fs::write(folder.path().join("old.html"), "old").unwrap();
        let old = page("old.html").unwrap();
        assert_eq!(fs::read(folder.path().join("old.html")).unwrap(), b"old");
        old.write("new").unwrap();
        assert_eq!(fs::read(folder.path().join("old.html")).unwrap(), b"new");
        // A pipe without a reader does not block.
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            folder.path().join("pipe"),
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        page("pipe").unwrap();
        std::os::unix::fs::symlink("later.html", folder.path().join("link")).unwrap();
        page("link").unwrap().write("later").unwrap();
        assert_eq!(names(), 4);
    }
}
