//! The command line of `commonhold-scale`: `commonhold scale`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use commonhold_command::exit::Exit;
use commonhold_command::flags::in_paragraphs;

/// Measure how a program scales with CPUs
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
    Scale(Scale),
}

/// Measure how a program scales with CPUs, where its time goes, and what is to blame
///
/// Runs the program on growing sets of CPUs, several times each. The answer in one sentence comes first.
/// Where others used CPUs that the program queued for, it reports the study as inconclusive; where a control
/// group's quota limits the program, it names the quota. Then these questions are answered:
///
///   1. How does it scale? Gunther's law is fitted to the throughput:
///      X(n) = lambda n / (1 + alpha (n - 1) + beta n (n - 1))
///      alpha is serialisation, beta contention. Shown are both with
///      their confidence intervals, the size of peak throughput, the
///      gain of one more CPU, and the growth of latency. It takes
///      three sizes.
///   2. Where does the time go? What every thread did, by state. The
///      states add up to the threads' lives. Then: what the time went
///      into that more CPUs did not turn into work.
///   3. Who is to blame? Locks, where they are taken, and who holds
///      them; who wakes whom; interrupts and disks.
///   4. Would mending it help? With --locks: an experiment with the
///      lock that is waited for most.
///
/// `commonhold scale -- make -j8` uses 1, 2, 3, 4, 6, 8, 12 and so on up to all CPUs, nearest first. So
/// CPUs that share a cache come before others, and cores before their second hardware threads.
///
/// Where the program takes a number of threads, write the letter n in braces in its place, without blanks. It
/// then has the size in its command line, and may use all CPUs. With --cpus, both grow. Sizes above the CPUs,
/// or above a quota, are measured and shown, and the law is not fitted to them.
///
/// Throughput is runs per second: the program must do the same work in every run, whatever the size. If
/// it does not, or starting it takes long, have it print its own rate, and find that with --rate.
/// `1.9k`, `2,235.5`, `3M/s` and `1.5e6` are understood; an ambiguous number is refused.
///
/// Shown per size:
///   runs/s    the median of its runs; the lowest and the highest
///   law says  throughput by the fitted law
///   times     throughput relative to the first size
///   latency   with n CPUs, the time of each of n equal parts of the
///             work, relative to the first size
///
/// States of threads:
///   user, system  on a CPU, in the program or in the kernel
///   memory        on a CPU that waits for memory, where that is counted
///   queue         ready to run, without a CPU
///   lock          waits for a futex (locks, conditions, barriers), a
///                 file lock, or a lock in the kernel
///   I/O, fault    waits for a disk; for a page that it touched
///   join          waits for one of its threads or processes to end
///   sleep         waits for anything else
///   stopped       by a signal or a debugger
///   unseen        not sampled
///
/// With --locks, shown per lock and place: util, the part of the time for which it was held; con, how often
/// it was held already; how long it was held and waited for. Then holds of the lock that is waited for most
/// are made longer, and from what that costs is predicted what mending it gains.
///
/// The program runs with an empty standard input. What it prints is not shown. Ctrl-C ends it and its
/// children. A size whose program fails is left out, and the others are answered for: exit code 3.
///
/// docs/scale.md is a tutorial.
// Not written out above: clap takes n in braces for the end of a line.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Scale {
    /// The numbers of CPUs, such as `1,2,4` or `1-8`
    #[arg(long, value_name = "LIST", value_parser = sizes_of)]
    pub cpus: Option<SizeList>,
    /// The values of n in braces; the program may use all CPUs
    #[arg(long, value_name = "LIST", value_parser = sizes_of, conflicts_with = "cpus")]
    pub sizes: Option<SizeList>,
    /// Runs of each size
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Runs of the largest size before these, which do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub warm_up: u32,
    /// Take throughput from the program's output: the last match of this pattern's group in parentheses
    #[arg(long, value_name = "REGEX")]
    pub rate: Option<String>,
    /// Do not sample the threads: only the first question is answered
    #[arg(long)]
    pub unwatched: bool,
    /// Count the program's locks, and find out by delays what mending the one most waited for would gain:
    /// five runs of the largest size for each of --repeat, and three times as many at least
    #[arg(long, conflicts_with = "unwatched")]
    pub locks: bool,
    /// Run nothing: fit the law to the rows of this file, `size,throughput`, each of which is a run
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["cpus", "sizes", "repeat", "warm_up", "rate", "unwatched", "locks", "command"]
    )]
    pub points: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required_unless_present = "points", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Sizes, ascending, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeList(pub Vec<u32>);

/// Parses a list such as `1,2,4` or `1-8`.
fn sizes_of(text: &str) -> Result<SizeList, String> {
    let set: Result<commonhold_machine::CpuSet, _> = text.parse();
    let sizes: Vec<u32> = set.map(|set| set.iter().collect()).unwrap_or_default();
    match sizes.first() {
        None | Some(0) => {
            Err("write numbers from 1 to 65535 and ranges of them, such as `1,2,4` or `1-8`".to_owned())
        }
        Some(_) => Ok(SizeList(sizes)),
    }
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
