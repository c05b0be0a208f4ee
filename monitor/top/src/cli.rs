//! The command line of `commonhold-top`: `commonhold top`.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use commonhold_command::exit::Exit;
use commonhold_command::flags::{duration, in_paragraphs};
use commonhold_command::place::Place;
use commonhold_protocol::monitor::EVERY_MS_MIN;

/// Watch units live
#[derive(Debug, Parser)]
#[command(
    name = "commonhold",
    bin_name = "commonhold",
    version,
    after_help = Exit::table(),
    after_long_help = Exit::table(),
    mut_subcommands = in_paragraphs
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command; `commonhold top` passes its own name on as the first argument.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "a comment here would replace the command's own description")]
pub enum Command {
    Top(Top),
}

/// Watch units live: entitled, used, lent, waiting, verdicts
///
/// Shows the units as a tree with their processes, and keeps the last ten minutes. Press ? for the keys.
///
/// In a bar, the mark is the entitlement. What the unit uses of its own part is full; what it lends and what
/// it borrows have patterns of their own, so that no colour is needed. Beside the bar stand the present use
/// and the entitlement.
///
/// waiting: threads that are runnable without a CPU, on average, and the cause of most of the waiting. For
/// memory and disks, it is the part of the time in which a process was stalled. Both are of the last five
/// seconds.
///
/// Colours are left out if `NO_COLOR` is set. Without a UTF-8 locale, bars consist of ASCII characters.
#[derive(Debug, Args)]
pub struct Top {
    /// Show only this unit and its sub-units
    #[arg(value_name = "UNIT")]
    pub unit: Option<String>,
    /// The same as the argument UNIT
    #[arg(long = "unit", value_name = "UNIT", conflicts_with = "unit")]
    pub unit_option: Option<String>,
    /// The interval between pictures, 250ms or more
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub every: Duration,
    /// Print one picture as text, and end
    #[arg(long)]
    pub once: bool,
    /// With --once: print the picture as JSON
    #[arg(long, requires = "once")]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes the field's own help")]
    pub place: Place,
}

impl Top {
    /// The path of the unit to show, if not all.
    pub fn root(&self) -> Option<&str> {
        self.unit.as_deref().or(self.unit_option.as_deref())
    }
}

/// Parses `--every`.
fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    let least = Duration::from_millis(EVERY_MS_MIN);
    (every >= least).then_some(every).ok_or_else(|| {
        format!("`{text}` is too short: the daemon sends a picture every {EVERY_MS_MIN}ms at most")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use commonhold_command::flags::assert_help_is_filled;

    use super::*;

    #[test]
    fn help_is_filled_to_the_terminals_width() {
        for width in [80, 90, 100] {
            let mut command = Cli::command();
            command.build();
            assert_help_is_filled(&mut command, width);
        }
    }

    #[test]
    fn a_unit_is_an_argument_or_an_option() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let root = |line: &str| {
            let Command::Top(top) = parse(line).unwrap().command;
            top.root().map(str::to_owned)
        };
        assert_eq!(root("commonhold top physics").as_deref(), Some("physics"));
        assert_eq!(root("commonhold top --unit physics").as_deref(), Some("physics"));
        assert_eq!(root("commonhold top --once --json"), None);
        for wrong in ["top --json", "top a --unit b", "top --every 100ms", "top --every 1"] {
            assert!(parse(&format!("commonhold {wrong}")).is_err(), "{wrong}");
        }
    }
}
