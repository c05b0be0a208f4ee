//! The command line: the one definition that help, man pages and completions come from.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use commonhold_contract::MEMBER_FORMS;

use crate::exit::Exit;

/// Hold a contract on a shared Linux machine.
///
/// A contract says what each group of processes (a unit) holds of the machine. Commonhold isolates units from each other,
/// lends what is idle, calls it back when its owner wants it, and keeps accounts of it all.
#[derive(Debug, Parser)]
#[command(name = "commonhold", version, after_help = Exit::table(), after_long_help = Exit::table())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(Check),
    Doctor(Doctor),
    Calibrate(Calibrate),
    Run(Run),
    Exec(Exec),
    Status(Status),
    Demo(Demo),
    Sim(Sim),
    Claims(Claims),
    Generate(Generate),
    /// Waits for a daemon to end, then undoes what it did.
    #[command(hide = true)]
    Caretaker(Caretaker),
    /// One piece of the demonstration's work.
    #[command(hide = true)]
    DemoTask(DemoTask),
}

/// Check a contract: syntax, values, and whether a machine can give what it promises
///
/// Prints the tree of units with what each is entitled to when all are active. Errors are shown at their places in
/// the file, with what would be right; those that the machine's size makes, once there are no others. Memory is shown less the reserve: what the kernel and processes in no unit hold, which
/// `run` takes off instead, is not known before.
#[derive(Debug, Args)]
#[command(after_long_help = members())]
pub(crate) struct Check {
    /// The contract, a TOML file (see `commonhold generate schema` for what it may say)
    pub(crate) contract: PathBuf,
    /// Check for another machine: a machine file, a scenario's machine.toml, or words such as `nodes:4 cpus:2 memory:512MiB`, CPUs
    /// and memory being those of each node
    ///
    /// `commonhold doctor --machine` writes a machine file of the machine that it runs on. In words, of which none is required:
    /// `nodes:N` (default: 1); of each node, `cpus:N` (logical CPUs; 1), `memory:SIZE` (1GiB) and `caches:N` (last-level ones;
    /// 1); of each core `threads:N` (1); of the whole machine `disks:N`, of `disk:RATE` each (such as 100MB/s), `swap:SIZE` and
    /// `bus:RATE`. So `nodes:4 cpus:2 memory:512MiB` has 8 CPUs and 2 GiB. Who is named in the contract is not looked for then.
    #[arg(long, value_name = "FILE|WORDS")]
    pub(crate) machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Simulate a scenario: a contract, a machine and a workload
///
/// Runs the project's own policies and scheduler on a simulated machine, in virtual time: nothing on this machine is
/// changed. The same scenario and seed give the same outcome, to the byte. `commonhold generate scenario-reference` lists
/// what the files may say.
///
/// Shown per copy of a job: working, its tasks' CPU time; no CPU, the time that they were ready to run without one; blocked,
/// that for disks, memory, locks and each other, a parent's for its children too; faults, page faults that needed a disk.
/// Per unit: entitled, CPUs in the mean over the run; lent and borrowed, CPU time on its home CPUs by others, and by it on
/// others'; calls, CPUs that it called back, and how long that took; memory, its page frames in the mean over the run, and
/// at most.
///
/// --compare runs the scenario under smp, quota and isolate, and each unit's jobs alone on its share (under quota, without
/// the others' jobs), all with the same seeds, and prints one table of it: response times, CPU time, memory and disk. A disk
/// that nobody else uses is all its own, also alone.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// A folder with contract.toml, machine.toml and workload.toml
    pub(crate) scenario: PathBuf,
    /// Another contract than the folder's
    #[arg(long, value_name = "FILE")]
    pub(crate) contract: Option<PathBuf>,
    /// Another machine than the folder's
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Another workload than the folder's
    #[arg(long, value_name = "FILE")]
    pub(crate) workload: Option<PathBuf>,
    /// The scheme, whatever the contract says
    #[arg(long, value_enum)]
    pub(crate) scheme: Option<SchemeChoice>,
    /// The scheduler, whatever the machine says; a baseline of the published experiments needs the scheme smp
    #[arg(long, value_enum)]
    pub(crate) scheduler: Option<SchedulerChoice>,
    /// Compare all schemes, and each unit alone on its share
    #[arg(long, conflicts_with = "scheme")]
    pub(crate) compare: bool,
    /// The first run's seed; each further run has the next
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub(crate) seed: u64,
    /// Runs, each with a seed of its own, on all CPUs of this machine
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) runs: u64,
    /// Print JSON: every run in full
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// Print a line per job and run
    #[arg(long, group = "form")]
    pub(crate) csv: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Reproduce the published results that the policies come from
///
/// Runs the scenarios behind them on the simulated machine, several seeds each, and shows what was printed, what was
/// measured, the tolerance that was fixed beforehand, and the verdict. A value to which a parameter was fitted is marked
/// as calibrated, and counts for nothing. The exit code does not depend on the verdicts.
#[derive(Debug, Args)]
pub(crate) struct Claims {
    /// Only these: an identifier, or the beginning of several, such as PI-T4
    pub(crate) ids: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with the table and the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Seeds per scenario
    #[arg(long, value_name = "K", default_value_t = 7, value_parser = clap::value_parser!(u64).range(2..=30))]
    pub(crate) seeds: u64,
}

/// Show what this machine can enforce, why not what it cannot, and the remedy
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print this machine as a machine file, for `check --machine`
    #[arg(long, conflicts_with = "json")]
    pub(crate) machine: bool,
}

/// Measure a disk, so that what it carries is known and weights can count on it
///
/// Writes and reads a file of its own on a file system of the disk, past the page cache: in order and at random places, large
/// requests and small ones. The file takes a quarter of what is free there, and 4 GiB at most; it has no name, and nothing of
/// it is left. The seven kinds of requests are: large ones (1 MiB) written, which lays the file out; then large ones, small ones
/// (4 KiB) in order and small ones at random places, read, and the same three written.
///
/// A disk that others use is refused: before, if it is in use for more than 5 % of a second; afterwards, if it transferred over a
/// quarter more than what was measured with, and 4 MiB. The result is kept in /var/lib/commonhold/disks by the disk's model, serial
/// number and size (an array's by level, number of drives, UUID and size): `check` weighs reservations in bytes per second
/// against it, and `run` gives it to the kernel, so that weights hold the disk. It takes seven times the given time, and a second.
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// A folder on a file system of the disk
    pub(crate) folder: PathBuf,
    /// How long to measure each of the seven kinds of requests; rates of disks that cache more need more
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Hold a contract until told to stop
///
/// Runs in the foreground. SIGINT and SIGTERM end it, and everything it did is undone; SIGHUP reads the contract again, all
/// or nothing. If it is killed, a caretaker process undoes everything within a second.
///
/// Memory and disks are held by control groups under `kernel` and `cgroup`, where their controllers can be used; under
/// `user` more weakly: what a unit has too much of memory is paged out, disks heed priorities or not, and who exceeds a limit
/// on them is stopped for a while. What is held and what is not is said at the start, with the reason, and by `status`.
///
/// Kernel threads, process 1 and Commonhold itself are in no unit, whatever its rules match. --dry-run shows who would be in which
/// unit; `commonhold check --help` tells how members are written.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The contract
    pub(crate) contract: PathBuf,
    /// Stop after this time (`30s`, `500ms`, `2min`, `1h`)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) length: Option<Duration>,
    /// Print the plan for this moment, with reasons, and what would be held and what not; change nothing
    #[arg(long)]
    #[allow(clippy::struct_field_names, reason = "the flag's name")]
    pub(crate) dry_run: bool,
    /// How CPU is held, and with it memory and disks
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// The scheme, whatever the contract says
    #[arg(long, value_enum)]
    pub(crate) scheme: Option<SchemeChoice>,
    /// Leave the kernel's io.cost as it is; otherwise it is switched on, until the end, for the disks that `calibrate`
    /// measured, and weights hold these
    #[arg(long)]
    pub(crate) no_io_cost: bool,
    /// Print every decision with its reason as it is made
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// With --dry-run: print JSON
    #[arg(long, requires = "dry_run")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Run a command as a member of a unit
///
/// The command replaces this process: its process number, its signals and its exit code are its own. If no daemon runs, or
/// you may not enter that unit, nothing is started.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The unit, by its path: `physics/night-batch`
    pub(crate) unit: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Show per unit: entitled, used, lent, borrowed, called back, waited
///
/// entitled: CPUs the unit holds now. using: CPUs it used lately. used %: what it used of what it was entitled to, since the
/// daemon began. lent, borrowed: CPU time of its own lent to others, and of others' held on loan. called back: loans it
/// ended because it wanted the CPU, and the longest that took, at most. waited: time its threads were ready to run without
/// a CPU, and on whose account. common: CPU time of everything outside the units.
///
/// Of disks, all together. entitled: the part of each that the unit holds now. using: what it reads and writes lately. used %:
/// of what it was entitled to while it used them. lent, borrowed: bytes of its part that others transferred, and that it did
/// of theirs, while it did not want them, or they. called back: times that it wanted its part again, and within what time 99
/// of 100 had it. waited: time in which some process of it was stalled for a disk.
///
/// Of memory, in a table of its own where it is held: entitled, what the unit's tickets are worth of what is divided.
/// allowed: what it may use now, which is that, less what it lends, plus what it borrows. using: what it is charged, files'
/// pages included. lent, borrowed: now. called back: how often it wanted back what it lent, and the longest that took.
/// waited: time in which one of its processes at least waited for memory. Below it: all memory, and where it is. Last, what
/// is not held, and why.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Tell which unit this process is in, and which rule put it there
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Show what isolation and sharing are worth on this machine
///
/// Holds the contract for real work: a light unit's job alone, then beside a heavy unit under each scheme (smp, quota,
/// isolate), and compares the response times. Writes a report with plots.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The contract; it must have the units `light` and `heavy` [default: the built-in examples/two-groups.toml]
    pub(crate) contract: Option<PathBuf>,
    /// How CPU is held
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// The light unit's job, alone, in seconds: everything else is scaled to it
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub(crate) seconds: u32,
    /// Run each scheme this many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub(crate) repeats: u32,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "commonhold-demo.html")]
    pub(crate) report: PathBuf,
    /// Print JSON at the end, and no live table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write what the program knows of itself (man pages, completions, the contract's schema), or a workload from a recording
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Man pages, one per command, into a directory
    Man {
        /// The directory; made if it is not there
        directory: PathBuf,
    },
    /// Completions for a shell, to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The contract's JSON schema, for editors, to standard output
    Schema,
    /// Every key of a contract, with an example, its values and its default, as Markdown, to standard output
    ContractReference,
    /// Every key of a scenario's machine.toml and workload.toml, with its default and range, to standard output
    ScenarioReference,
    /// A workload for `commonhold sim` from a recording of a live machine, to standard output
    ///
    /// The recording is the text of tracefs' `trace` with the events `sched_switch`, `sched_wakeup`, `sched_wakeup_new` and
    /// `sched_process_fork`, on the clock `mono`. Lines before it say which threads are in which unit:
    /// `# commonhold unit light: 101 102`; whom they fork is in their unit, and all others are not replayed. Every task
    /// becomes a job with the CPU time of its bursts and the length of its sleeps. Lost events are an error.
    Workload {
        /// The recording
        trace: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Caretaker {
    pub(crate) journal: PathBuf,
    pub(crate) pipe: i32,
}

#[derive(Debug, Args)]
pub(crate) struct DemoTask {
    pub(crate) kind: String,
    pub(crate) amount: u64,
    pub(crate) count: u32,
}

/// Where a daemon and its clients meet.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The daemon's directory [default: /run/commonhold for root; else `$XDG_RUNTIME_DIR/commonhold`, or /tmp/commonhold-UID without
    /// such a directory; `exec` and `status` then try root's]
    #[arg(long, value_name = "DIR", env = "COMMONHOLD_DIR", hide_env_values = true)]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendChoice {
    /// The best that this machine offers
    Auto,
    /// Control groups, and the project's own scheduler in the kernel
    Kernel,
    /// Control groups, version 2
    Cgroup,
    /// CPU affinity, and stop and continue: no privileges needed for one's own processes
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemeChoice {
    /// No isolation
    Smp,
    /// Isolation, nothing is lent
    Quota,
    /// Isolation, and what is idle is lent
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedulerChoice {
    /// The project's own
    Commonhold,
    /// IRIX 5: priorities that degrade with use
    IrixDecay,
    /// Linux 2.4: epochs
    #[value(name = "linux-2.4")]
    Linux24,
}

impl From<SchedulerChoice> for commonhold_sim::scenario::Scheduler {
    fn from(choice: SchedulerChoice) -> Self {
        match choice {
            SchedulerChoice::Commonhold => Self::Commonhold,
            SchedulerChoice::IrixDecay => Self::IrixDecay,
            SchedulerChoice::Linux24 => Self::Linux24,
        }
    }
}

/// How members are written, below `check --help`.
fn members() -> String {
    let forms = MEMBER_FORMS.iter().map(|form| (form.forms.join(", "), form.who));
    let rows: Vec<String> = forms.map(|(forms, who)| format!("  {forms}\n      processes {who}\n")).collect();
    let rows = rows.concat();
    format!(
        "Members of a unit, as in `members = [\"group:physics\", \"user:ana\"]`:\n{rows}Where several rules match, the most specific \
         wins: entered by `commonhold exec`, then pid, cgroup, command, user, group; of two paths the longer, of two patterns the one that leaves less open, else the unit that stands first. A \
         sub-unit's rules select among the members of its encloser. What matches nothing is in the unit that `[machine] default` \
         names, or else in `shared`, which is not restricted."
    )
}

/// The last seed that a first run may have: those of further runs follow it.
const SEED_MAX: u64 = u64::MAX / 2;

/// `30s`, `500ms`, `2min`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let remedy =
        || format!("`{text}` is not a time: write a whole number and ms, s, min or h, such as `30s`");
    let number: u64 = number.parse().map_err(|_| remedy())?;
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(remedy()),
    };
    number.checked_mul(ms).filter(|ms| *ms > 0).map(Duration::from_millis).ok_or_else(remedy)
}
