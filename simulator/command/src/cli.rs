//! The command line of `commonhold-sim`: `commonhold sim`, `merge`, `what-if`, `workload` and `claims`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use commonhold_command::exit::Exit;
use commonhold_command::flags::{SchemeChoice, duration, in_paragraphs};
use commonhold_contract::Discipline;
use serde::{Deserialize, Serialize};

/// Simulate a contract, and reproduce published results
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
    Sim(Box<Sim>),
    Merge(Merge),
    Claims(Claims),
    WhatIf(WhatIf),
    Workload(Workload),
}

/// Simulate a scenario: a contract, a machine and a workload
///
/// Runs the project's own policies and scheduler on a simulated machine, in virtual time. Nothing on
/// this machine is changed. The same scenario and seed give the same output, byte for byte. `commonhold
/// generate scenario-reference` lists the files' keys.
///
/// Shown per copy of a job:
///   response  time from its start to its end: the mean, the shortest
///             and the longest
///   working   CPU time of its tasks
///   no CPU    time that its tasks were ready to run without a CPU
///   blocked   time that its tasks waited for disks, memory, locks or
///             each other; a parent's wait for its children counts too
///   faults    page faults that needed a disk
///
/// Shown per unit:
///   entitled  CPUs, in the mean over the run
///   lent      CPU time of others on this unit's home CPUs
///   borrowed  CPU time of this unit on the home CPUs of others
///   calls     CPUs that it called back, with the mean and the longest
///             call-back
///   memory    its page frames: the mean over the run, the maximum, and
///             those at the end
///
/// --compare runs the scenario under smp, quota and isolate. It also runs each unit's jobs alone: under
/// quota, without the jobs of others. All runs have the same seeds. One table shows response times, CPU
/// time, memory and disk. A disk that one unit alone uses is wholly that unit's, in every run.
///
/// With two to eight --contract, the scenario runs under each, with the same seeds. One table shows each
/// figure and its difference from the first contract, with confidence intervals.
///
/// --sweep runs the scenario with each of several values of a key, and shows means and confidence
/// intervals over the seeds. VALUES are separated by commas, or FROM..TO:STEP. KEY is one of:
///   tickets.UNIT          a unit's tickets
///   UNIT.KEY              another key of a unit: physics.hard.memory
///   contract:PATH, machine:PATH, workload:PATH
///                         a value in that file: machine:kernel.slice
/// The result file of a shard (--shard) is completed by the same command if it was interrupted.
/// `commonhold merge` puts the shards' files together.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Sim {
    /// A folder with contract.toml, machine.toml and workload.toml
    #[arg(required_unless_present = "new")]
    pub scenario: Option<PathBuf>,
    /// Write a first scenario to this folder, which must be new or empty
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    pub new: Option<PathBuf>,
    /// Replace the folder's contract; twice or more: compare these contracts
    #[arg(long, value_name = "FILE")]
    pub contract: Vec<PathBuf>,
    /// Replace the folder's machine
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Replace the folder's workload
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// Override the contract's scheme
    #[arg(long, value_enum)]
    pub scheme: Option<SchemeChoice>,
    /// Override the machine's scheduler; a baseline of the published experiments needs the scheme smp
    #[arg(long, value_enum)]
    pub scheduler: Option<SchedulerChoice>,
    /// Try exchanges of tickets for all units, overriding the contract's `negotiate`
    #[arg(long)]
    pub negotiate: bool,
    /// Compare all schemes, and each unit alone on its share
    #[arg(long, conflicts_with = "scheme")]
    pub compare: bool,
    /// Compare disciplines, such as `stride,lottery`: each is set for all units whose discipline in the
    /// contract is `stride`. A unit's discipline orders its own tasks and its sub-units
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = disciplines(), conflicts_with = "compare")]
    pub disciplines: Vec<String>,
    /// The first run's seed; each further run has the next
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub seed: u64,
    /// The number of runs, each with its own seed; in a sweep, of runs with each value. They use all CPUs of
    /// this machine
    #[arg(
        long,
        alias = "runs",
        value_name = "K",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    pub seeds: u64,
    /// Run the scenario with each of these values; with several --sweep, all combinations
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["compare", "disciplines", "trace"])]
    pub sweep: Vec<String>,
    /// Run only the K-th of N parts of the sweep, and write its runs to a file
    #[arg(long, value_name = "K/N", value_parser = shard, requires = "sweep", conflicts_with_all = ["form", "html"])]
    pub shard: Option<Shard>,
    /// The sweep's result file; if it exists, only the runs that it lacks are run [default for a shard:
    /// SCENARIO-K-of-N.jsonl]
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub output: Option<PathBuf>,
    /// Show the job on each CPU in the first run, at intervals of this length: a letter for each job, a line
    /// for each change
    #[arg(
        long,
        value_name = "EVERY",
        value_parser = interval,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "100ms",
        conflicts_with_all = ["compare", "disciplines"]
    )]
    pub trace: Option<Duration>,
    /// Print JSON: every run in full
    #[arg(long, group = "form")]
    pub json: bool,
    /// Print a line per job and run; with --disciplines, --sweep or several --contract, per figure
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Put together the result files of a sweep's shards
///
/// Checks that the files belong to one sweep, and that no run is missing or has different figures in two
/// files. If runs are missing, it names them, reports the others, and exits with status 3.
#[derive(Debug, Args)]
pub struct Merge {
    /// The files that `commonhold sim --sweep` wrote
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON: means and confidence intervals of each point
    #[arg(long, group = "form")]
    pub json: bool,
    /// Print a line per point and figure
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Reproduce the published results that the policies come from
///
/// Runs the scenarios behind the published results on the simulated machine, with several seeds each. Each
/// row shows the published value, the measured one, the tolerance and the verdict. The tolerance was fixed
/// before the first run. A parameter was fitted to a value marked `calibrated`: that value is no evidence.
/// The exit code does not depend on the verdicts.
///
/// Then the parameters that a document leaves unsaid are varied: they are fitted to one half of the
/// document's rows, and predict the other half. That takes minutes; --quick leaves it out.
#[derive(Debug, Args)]
pub struct Claims {
    /// Only these claims: an identifier, or the beginning of several, such as PI-T4
    pub ids: Vec<String>,
    /// Only the table, in seconds: the documents' unknowns are neither fitted nor varied
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page with the table and the figures to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Seeds per scenario
    #[arg(long, value_name = "K", default_value_t = 7, value_parser = clap::value_parser!(u64).range(2..=30))]
    pub seeds: u64,
}

/// Replay a recording under another contract or on another machine
///
/// First the recorded contract is replayed, and each figure is compared with the recording. Then the other
/// contract is. A figure is not to be trusted if the replay of the recorded contract is off by more than the
/// figure's bound, which was registered before such a replay was first compared.
///
/// `commonhold record` makes recordings. Commonhold's scheduler is simulated whatever the recorded backend
/// was, so recordings of the kernel backend agree best.
#[derive(Debug, Args)]
pub struct WhatIf {
    /// A file that `commonhold record` wrote
    pub recording: PathBuf,
    /// The other contract; without this and --machine, only the recorded contract is replayed
    #[arg(long, value_name = "FILE")]
    pub contract: Option<PathBuf>,
    /// The other machine: a machine file, or its shape in words such as `nodes:2 cpus:8 memory:32GiB`
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<String>,
    /// Override the scheme of the other contract; without --contract, of the recorded one
    #[arg(long, value_enum)]
    pub scheme: Option<SchemeChoice>,
    /// Compare the prediction with a recording that was made under the other contract
    #[arg(long, value_name = "RECORDING")]
    pub against: Option<PathBuf>,
    /// The seed of the runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Convert workloads of other programs for the simulator, and back
///
/// docs/workloads.md lists the keys of each format.
#[derive(Debug, Args)]
pub struct Workload {
    #[command(subcommand)]
    #[allow(missing_docs, reason = "a comment here would replace the command's own description")]
    pub action: WorkloadAction,
}

/// What `commonhold workload` does.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "a comment here would replace the command's own description")]
pub enum WorkloadAction {
    Import(ImportWorkload),
    Export(ExportWorkload),
}

/// Write a file of another program as a workload.toml
///
/// The formats are: rt-app's JSON; fio's job files (fio), and its logs of I/O, version 2 and 3 (iolog); the
/// Standard Workload Format 2.2 (swf); and a recording of a live machine (trace). Without --from, the file's
/// beginning shows its format.
///
/// What the simulator does not do as the file says is a warning, and a comment in the workload.
///
/// A recording is the text of the file `trace` of tracefs. It has the events `sched_switch`, `sched_wakeup`,
/// `sched_wakeup_new` and `sched_process_fork`, on the clock `mono`. Lines before the events assign threads
/// to units: `# commonhold unit light: 101 102`. Threads that these create are in the same unit. Other
/// threads are not replayed. Every thread becomes a job with the CPU time of its bursts and the length of
/// its sleeps. Lost events are an error.
#[derive(Debug, Args)]
pub struct ImportWorkload {
    /// The file
    pub file: PathBuf,
    /// Its format
    #[arg(long, value_enum)]
    pub from: Option<FormatChoice>,
    /// The path of the unit that the jobs belong to, as the contract has it
    #[arg(long, value_name = "PATH", default_value = "shared")]
    pub unit: String,
    /// Make a unit of each of these, in place of --unit
    #[arg(long, value_enum)]
    pub units: Option<UnitsChoice>,
    /// Name a unit of --units by its number in the log, such as `3=physics`; may be repeated
    #[arg(long = "name", value_name = "N=NAME", value_parser = number_and_name)]
    pub names: Vec<(i64, String)>,
    /// When the simulation ends, in place of the file's own time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub horizon: Option<Duration>,
    /// Only the first jobs of a log of jobs
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub jobs: Option<usize>,
    /// Write to this file, not to standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Write a scenario's workload as a file of another program
///
/// What the other program cannot say is a warning.
#[derive(Debug, Args)]
pub struct ExportWorkload {
    /// A folder with contract.toml, machine.toml and workload.toml
    pub scenario: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    pub to: ExportChoice,
    /// Replace the folder's workload
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// Put each task in a task group named after its unit; rt-app needs root for that
    #[arg(long)]
    pub taskgroups: bool,
    /// Write to this file, not to standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `--from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the command's description explains them")]
pub enum FormatChoice {
    RtApp,
    Fio,
    Iolog,
    Swf,
    Trace,
}

/// `--to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the command's description explains them")]
pub enum ExportChoice {
    RtApp,
}

/// `--units`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnitsChoice {
    /// rt-app: a task's `taskgroup`
    Taskgroup,
    /// swf: a job's user
    User,
    /// swf: a job's group
    Group,
    /// swf: a job's queue
    Queue,
    /// swf: a job's partition
    Partition,
}

/// Parses `--name`.
fn number_and_name(text: &str) -> Result<(i64, String), String> {
    let pair = text.split_once('=').filter(|(_, name)| !name.is_empty());
    let pair = pair.and_then(|(number, name)| Some((number.parse().ok()?, name.to_owned())));
    pair.ok_or_else(|| format!("`{text}` is no number with a name: write 3=physics"))
}

/// Parses `--jobs`.
fn jobs(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("`{text}` is no number of jobs: write 1 or more"))
}

/// `--scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerChoice {
    /// The project's own
    Commonhold,
    /// IRIX 5: priorities that degrade with use
    IrixDecay,
    /// Linux 2.4: epochs
    #[value(name = "linux-2.4")]
    Linux24,
    /// Hurricane: a queue for each CPU
    Hurricane,
}

impl From<SchedulerChoice> for commonhold_sim::scenario::Scheduler {
    fn from(choice: SchedulerChoice) -> Self {
        match choice {
            SchedulerChoice::Commonhold => Self::Commonhold,
            SchedulerChoice::IrixDecay => Self::IrixDecay,
            SchedulerChoice::Linux24 => Self::Linux24,
            SchedulerChoice::Hurricane => Self::Hurricane,
        }
    }
}

/// `--shard`: one of several parts of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// The number of the part, from 1 to `of`.
    pub number: u64,
    /// The number of parts.
    pub of: u64,
}

impl Shard {
    /// The whole sweep.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };

    /// Whether the run with this index is in the part. Neighbouring runs are in different parts, so that each
    /// part has runs of every point.
    pub fn has(self, index: u64) -> bool {
        index % self.of == self.number - 1
    }
}

/// The most parts of a sweep.
pub const SHARDS_MAX: u64 = 10_000;

/// Parses `--shard`.
fn shard(text: &str) -> Result<Shard, String> {
    let parsed = text.split_once('/').and_then(|(number, of)| {
        let shard = Shard { number: number.parse().ok()?, of: of.parse().ok()? };
        ((1..=SHARDS_MAX).contains(&shard.of) && (1..=shard.of).contains(&shard.number)).then_some(shard)
    });
    parsed.ok_or_else(|| {
        format!(
            "`{text}` is no shard: write K/N, such as 3/16, with K from 1 to N, and N at most {SHARDS_MAX}"
        )
    })
}

/// The values of `--disciplines`.
fn disciplines() -> PossibleValuesParser {
    PossibleValuesParser::new(std::iter::once(ALL).chain(Discipline::ALL.into_iter().map(Discipline::name)))
}

/// All disciplines, in that list.
pub const ALL: &str = "all";

/// The largest seed of a first run: those of further runs follow it.
const SEED_MAX: u64 = u64::MAX / 2;

/// Parses the interval of `--trace`.
fn interval(text: &str) -> Result<Duration, String> {
    let remedy = |_| {
        format!(
            "`{text}` is no interval: write 1ms or more after the `=`, as in `--trace=500ms`, or `--trace` alone for 100ms"
        )
    };
    duration(text).map_err(remedy)
}

/// The error for a time that follows `--trace` without `=`: it would be taken for another argument.
pub fn stray_interval(args: &[String]) -> Option<String> {
    let pair = args.windows(2).find(|pair| pair[0] == "--trace" && duration(&pair[1]).is_ok())?;
    Some(format!("`--trace {0}` has its time in an argument of its own: write `--trace={0}`", pair[1]))
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
