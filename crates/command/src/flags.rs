//! Parts of the command line shared by all programs: parsing, values of flags, and the layout of help.

use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Command as Definition, Parser, ValueEnum};

use crate::output;

/// Parses this program's command line. Exits with status 2 if the usage is wrong, with 0 after --help or
/// --version.
///
/// `mistake` recognises a common mistake in the arguments; its explanation replaces clap's message.
pub fn parse<C: Parser>(mistake: impl Fn(&[String]) -> Option<String>) -> C {
    C::try_parse().unwrap_or_else(|error| {
        // clap's message quotes arguments unescaped. So the arguments are escaped and parsed again, for a
        // safe message.
        let args: Vec<String> =
            std::env::args_os().map(|arg| output::shown(&arg.to_string_lossy())).collect();
        match mistake(&args) {
            Some(explained) if error.use_stderr() => {
                C::command().error(ErrorKind::NoEquals, explained).exit()
            }
            _ if error.use_stderr() => C::try_parse_from(args).err().unwrap_or(error).exit(),
            _ => error.exit(),
        }
    })
}

/// The values of `--scheme`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemeChoice {
    /// No isolation
    Smp,
    /// Isolation; nothing is lent
    Quota,
    /// Isolation; idle resources are lent
    Isolate,
}

impl From<SchemeChoice> for commonhold_contract::Scheme {
    fn from(choice: SchemeChoice) -> Self {
        match choice {
            SchemeChoice::Smp => Self::Smp,
            SchemeChoice::Quota => Self::Quota,
            SchemeChoice::Isolate => Self::Isolate,
        }
    }
}

/// Joins the lines of each paragraph in the help of all commands, so that clap wraps the paragraph to the
/// terminal's width. Without this, help in verbatim doc comments would keep the line breaks of the source.
/// Indented lines are tables, and are not joined.
pub fn in_paragraphs(command: Definition) -> Definition {
    let command = command.mut_subcommands(in_paragraphs);
    let Some(about) = command.get_long_about().map(ToString::to_string) else { return command };
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut lines: Vec<String> = Vec::new();
    for line in about.lines() {
        match lines.last_mut().filter(|before| is_prose(before) && is_prose(line)) {
            Some(before) => {
                before.push(' ');
                before.push_str(line);
            }
            None => lines.push(line.to_owned()),
        }
    }
    command.long_about(lines.join("\n"))
}

/// Parses a time such as `30s`, `500ms`, `2min` or `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let remedy = || {
        format!("`{text}` is not a time: write a whole number and ms, s, min or h, such as `30s`, above 0")
    };
    let number: u64 = number.parse().map_err(|_| remedy())?;
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(remedy()),
    };
    number.checked_mul(ms).filter(|ms| *ms > 0).map(Duration::from_millis).ok_or_else(remedy)
}

/// Checks that help is wrapped to the terminal's width: no line is longer, and no line of a paragraph ends
/// while the next word would still fit. Only paragraphs begin at the left edge.
///
/// # Panics
///
/// If a line is too long or too short. Each program tests its definition with this.
pub fn assert_help_is_filled(command: &mut Definition, width: usize) {
    let help = command.clone().term_width(width).render_long_help().to_string();
    let text = help.split("Usage:").next().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        assert!(pair[0].chars().count() <= width, "{}: {}", command.get_name(), pair[0]);
        let in_paragraph = pair.iter().all(|line| !line.is_empty() && !line.starts_with(' '));
        let word = pair[1].split(' ').next().unwrap_or_default().chars().count();
        let room = width.saturating_sub(pair[0].chars().count());
        assert!(!in_paragraph || room < word + 1, "{}: {} | {}", command.get_name(), pair[0], pair[1]);
    }
    for below in command.get_subcommands_mut() {
        assert_help_is_filled(below, width);
    }
}
