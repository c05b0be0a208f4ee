//! The command line of `commonhold-record`: `commonhold record` and `commonhold recording`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use commonhold_command::exit::Exit;
use commonhold_command::flags::{duration, in_paragraphs};
use commonhold_command::place::Place;

/// Record a machine
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

/// The commands of this program; `commonhold NAME` passes its own name on as the first argument.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "a comment here would replace the command's own description")]
pub enum Command {
    Record(Record),
    Recording(Recording),
}

/// Record what the units of this machine do, for `commonhold what-if`
///
/// Writes a file with the bursts, sleeps and wake-ups of the units' threads, their disk requests, the memory
/// of their processes, and the daemon's accounts, contract and tickets over time. `commonhold what-if`
/// replays it under another contract; `commonhold recording` shows or exports it.
///
/// As root, every event of the scheduler is recorded. Otherwise, or where the kernel refuses, the threads'
/// clocks are read from /proc at short intervals.
///
/// The file has the names of threads and the paths of units, and is readable by you alone. Recording ends
/// after the given time, when the file reaches its limit, or with Ctrl-C. A file that exists is not
/// overwritten.
#[derive(Debug, Args)]
pub struct Record {
    /// The file to write
    pub file: PathBuf,
    /// For how long to record
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "10m")]
    pub length: Duration,
    /// The largest size of the file
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256MiB")]
    pub size: u64,
    /// The interval between two samples of the accounts and of processes, 250ms or more
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub every: Duration,
    /// How to observe threads
    #[arg(long, value_enum, default_value_t = MethodChoice::Auto)]
    pub method: MethodChoice,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes the field's own help")]
    pub place: Place,
}

/// `--method`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodChoice {
    /// Events if possible, else clocks
    Auto,
    /// Every event of the kernel's scheduler; needs root
    Events,
    /// The threads' clocks, 20 times a second
    Clocks,
}

/// Show a recording, or export it for other tools
///
/// Prints what the recording is of: its machine, contract and length, what was lost, and what each unit did.
/// With --perfetto or --csv it writes files instead, unless --json is given too. Files and folders that exist
/// are not overwritten. They are readable by you alone, as the recording is.
///
/// If the recording was cut short, what was complete is shown, with a warning. If it is damaged, what is
/// before the damage is shown, and the exit code is 1.
#[derive(Debug, Args)]
pub struct Recording {
    /// A file that `commonhold record` wrote
    pub file: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
    /// Write a trace for the Perfetto viewer: a row for each CPU and each unit, loans and call-backs as flows
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write CSV files into this new folder: threads, events, bursts, waits, sleeps, loans, call-backs,
    /// usage, units, lent CPUs, causes of waits, processes, disks
    #[arg(long, value_name = "FOLDER")]
    pub csv: Option<PathBuf>,
}

/// The shortest interval between samples.
const EVERY_MIN: Duration = Duration::from_millis(250);
/// The smallest limit of a file.
const SIZE_MIN: u64 = 1 << 20;

/// Parses `--every`.
fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    let least = EVERY_MIN.as_millis();
    (every >= EVERY_MIN)
        .then_some(every)
        .ok_or_else(|| format!("`{text}` is too short: write {least}ms or more"))
}

/// Parses `--size`.
fn size(text: &str) -> Result<u64, String> {
    let bytes = commonhold_contract::quantity::bytes(text)
        .map_err(|problem| format!("{}; {}", problem.message, problem.help))?;
    (bytes >= SIZE_MIN).then_some(bytes).ok_or_else(|| format!("`{text}` is too small: write 1MiB or more"))
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
}
