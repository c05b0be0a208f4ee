//! The command line: the one definition that help, man pages and completions come from.
// Comments of items are the help that users read. A comment on an item without help would replace the text
// shown for it.
#![allow(missing_docs)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use commonhold_contract::{MEMBER_FORMS, MEMBER_RULES};
use commonhold_live::apply::kernel::BUILT_IN;
use commonhold_policy::rights::TICKETS_MAX;

use commonhold_command::exit::Exit;
use commonhold_command::flags::{SchemeChoice, duration, in_paragraphs};
use commonhold_command::place::Place;

/// The backends built into this binary, best first. A build without clang has no `kernel`.
pub const BACKENDS: &str = if BUILT_IN { "kernel, cgroup, user" } else { "cgroup, user" };

/// The output of `--version` after the program's name; `-V` prints only the first line, for scripts.
const LONG_VERSION: &str = if BUILT_IN {
    concat!(env!("CARGO_PKG_VERSION"), "\nbackends built in: kernel, cgroup, user")
} else {
    concat!(
        env!("CARGO_PKG_VERSION"),
        "\nbackends built in: cgroup, user (built without `kernel`, which needs clang)"
    )
};

/// Hold a contract on a shared Linux machine.
///
/// A contract says what each unit, a named group of processes, holds of the machine. Commonhold isolates
/// units from each other. It lends what a unit leaves idle, and calls it back when that unit wants it. It
/// keeps accounts of all this.
#[derive(Debug, Parser)]
#[command(
    name = "commonhold",
    version,
    long_version = LONG_VERSION,
    after_help = Exit::table(),
    after_long_help = Exit::table(),
    mut_subcommands = in_paragraphs
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Init(Init),
    Check(Check),
    Explain(Explain),
    Doctor(Doctor),
    Calibrate(Calibrate),
    Run(Run),
    Exec(Exec),
    Status(Status),
    Why(Why),
    History(History),
    Account(Account),
    Tickets(Tickets),
    Fund(Fund),
    Issue(Issue),
    Revoke(Revoke),
    Offer(Offer),
    Offers(Offers),
    Cancel(Cancel),
    Demo(Demo),
    /// Watch units live: entitled, used, lent, waiting, verdicts
    #[command(disable_help_flag = true)]
    Top(Elsewhere),
    /// Serve metrics for Prometheus, and a live page, on this machine
    #[command(disable_help_flag = true)]
    Serve(Elsewhere),
    /// Record what the units of this machine do, for `commonhold what-if`
    #[command(disable_help_flag = true)]
    Record(Elsewhere),
    /// Show a recording, or export it for other tools
    #[command(disable_help_flag = true)]
    Recording(Elsewhere),
    /// Measure how a program scales with CPUs, where its time goes, and what is to blame
    #[command(disable_help_flag = true)]
    Scale(Elsewhere),
    /// Simulate a scenario: a contract, a machine and a workload
    #[command(disable_help_flag = true)]
    Sim(Elsewhere),
    /// Put together the result files of a sweep's shards
    #[command(disable_help_flag = true)]
    Merge(Elsewhere),
    /// Reproduce the published results that the policies come from
    #[command(disable_help_flag = true)]
    Claims(Elsewhere),
    /// Replay a recording under another contract or on another machine
    #[command(disable_help_flag = true)]
    WhatIf(Elsewhere),
    /// Convert workloads of other programs for the simulator, and back
    #[command(disable_help_flag = true)]
    Workload(Elsewhere),
    /// Write man pages, completions, and the contract's schema
    #[command(disable_help_flag = true)]
    Generate(Elsewhere),
    /// Waits for a daemon to end, then undoes what it did.
    #[command(hide = true)]
    Caretaker(Caretaker),
    /// One piece of the demonstration's work.
    #[command(hide = true)]
    DemoTask(DemoTask),
}

/// The arguments of a command that another program implements: see the module `program_beside`.
#[derive(Debug, Args)]
pub struct Elsewhere {
    /// Passed on to that program; its own --help explains them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<OsString>,
}

/// Look at this machine, and write a contract to begin with
///
/// On a terminal, it asks at most four questions: among whom to divide the machine, in which proportion, what
/// system services keep, and whether each of Slurm's jobs, or of Podman's containers, is a unit. With a flag,
/// and elsewhere, it asks nothing.
///
/// Groups are those of /etc/group that have at least two people. People are users with numbers from `UID_MIN`
/// to `UID_MAX` of /etc/login.defs. An ordinary user gets a contract for that user's own processes.
#[derive(Debug, Args)]
pub struct Init {
    /// Where to write the contract; `-` prints it
    #[arg(default_value = "contract.toml")]
    pub file: PathBuf,
    /// Divide the machine equally among all people
    #[arg(long, conflicts_with = "groups")]
    pub people: bool,
    /// Divide the machine among groups of users, in this proportion: `physics=2,chemistry=1`
    #[arg(long, value_name = "NAME[=N],...")]
    pub groups: Option<String>,
    /// The part that system services keep when they need it, or `none`
    #[arg(long, value_name = "PERCENT|none")]
    pub services: Option<String>,
    /// The manager each of whose jobs is a unit
    #[arg(long, value_enum)]
    pub jobs: Option<JobsChoice>,
    /// Replace a file that exists
    #[arg(long)]
    pub force: bool,
}

impl Init {
    /// Whether a flag leaves nothing to ask.
    pub fn has_choices(&self) -> bool {
        self.people || self.groups.is_some() || self.services.is_some() || self.jobs.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobsChoice {
    /// Jobs of Slurm, by slurmstepd.scope
    Slurm,
    /// Containers of root's Podman, by machine.slice
    Podman,
    /// None
    None,
}

/// Explain a contract in sentences
///
/// For each unit: which processes are in it, what it holds whatever others do, what else it holds while all
/// units are busy, and what it lends, borrows and never exceeds. `check` shows the same as a table.
#[derive(Debug, Args)]
pub struct Explain {
    /// The contract
    pub contract: PathBuf,
    /// Explain it for another machine, as with `check --machine`
    #[arg(long, value_name = "FILE|WORDS")]
    pub machine: Option<String>,
}

/// Check a contract: syntax, values, and whether a machine can give what it promises
///
/// Prints the tree of units, with what each unit is entitled to when all units are active. Each error is
/// shown at its place in the file, with a remedy. Errors that depend on the machine's size are shown once
/// there are no others.
///
/// Memory is shown less the reserve. `run` instead subtracts the memory of the kernel and of processes in no
/// unit, which `check` cannot know.
#[derive(Debug, Args)]
#[command(after_long_help = members_help())]
pub struct Check {
    /// The contract, a TOML file (see `commonhold generate schema` for its keys)
    pub contract: PathBuf,
    /// Check for another machine: a machine file, or words such as `nodes:4 cpus:2 memory:512MiB`
    ///
    /// Without --machine, the contract is checked for this machine. `commonhold doctor --machine` writes a
    /// machine file of the machine it runs on.
    ///
    /// In words, `nodes:4 cpus:2 memory:512MiB` is 4 nodes with 2 CPUs and 512 MiB each: 8 CPUs and 2 GiB.
    /// Each word has a default:
    ///
    /// - `nodes:N` (1)
    ///
    /// - of each node: `cpus:N` logical CPUs (1), `memory:SIZE` (1GiB), `caches:N` last-level caches (1);
    ///   a list has a value for each node, such as `cpus:8,8,0` with `memory:32GiB,32GiB,64GiB`
    ///
    /// - of each core: `threads:N` (1)
    ///
    /// - of the machine: `disks:N` (0, or 1 with `disk`), `disk:RATE` of each disk, such as 100MB/s,
    ///   `swap:SIZE`, `bus:RATE`
    ///
    /// Users, groups, cgroups and processes that the contract names are not looked up with --machine.
    #[arg(long, value_name = "FILE|WORDS")]
    pub machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show what this machine can enforce and what it cannot, with reasons and remedies
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print this machine as a machine file, for `check --machine`
    #[arg(long, conflicts_with = "json")]
    pub machine: bool,
}

/// Measure a disk, or the memory bus, so that `check` and `run` know its bandwidth
///
/// *A disk.* Writes and reads a file on a file system of the disk, past the page cache. The file takes a
/// quarter of the free space, and 4 GiB at most. It has no name, and nothing of it is left afterwards.
///
/// Seven kinds of requests are measured. First, large requests (1 MiB) are written, which lays the file out.
/// Then three kinds are read: large ones, small ones (4 KiB) in order, and small ones at random places. The
/// same three are written. All this takes seven times the given time, and a second.
///
/// A disk that others use is refused: one that was busy for more than 5 % of a second before the measurement,
/// or whose transfers exceed the measurement's own by more than a quarter and 4 MiB.
///
/// The result is kept in /var/lib/commonhold/disks, keyed by the disk's model, serial number and size. An
/// array's is keyed by level, number of drives, UUID and size. `check` compares reservations in bytes per
/// second with it. `run` configures the kernel's io.cost with it, so that weights take effect on the disk.
///
/// *The memory bus*, with --bus. Computes with arrays larger than any cache, on one CPU and then on all of
/// them. It takes at most a quarter of the free memory, and twice the given time. The best pass counts, so
/// brief activity of others does no harm; their sustained traffic makes the result too low. The bytes that
/// caches fetch are counted.
///
/// The result is kept in /var/lib/commonhold/bus, keyed by the processors' model, the number of CPUs and
/// nodes, and the memory. `run` uses it to choose gangs that fit together. Without it, 10 GB/s per CPU are
/// assumed.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// A folder on a file system of the disk
    #[arg(required_unless_present = "bus")]
    pub folder: Option<PathBuf>,
    /// Measure the memory bus
    #[arg(long, conflicts_with = "folder")]
    pub bus: bool,
    /// The time for each of the seven kinds of requests, or, with --bus, for one CPU and for all CPUs; a disk
    /// with a larger cache needs longer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Hold a contract until told to stop
///
/// Runs in the foreground. SIGINT and SIGTERM end it, and everything it did is undone. SIGHUP reloads the
/// contract: either the whole new one comes into force, or the old one stays. If the daemon is killed, a
/// caretaker process undoes everything within a second.
///
/// A daemon that runs as root refuses a contract that another user may change: the file and each directory on
/// its path must belong to root, and neither group nor others may write to them, except to directories with
/// the sticky bit.
///
/// Tickets that were changed with `commonhold tickets` are changed again at the next start, if the contract
/// still has the unit and gives it the same number. The daemon lists them. `commonhold tickets --help` has
/// the rules.
///
/// The backends `kernel` and `cgroup` hold memory and disks by control groups, where they can use the
/// controllers. The backend `user` holds them more weakly: it pages out a unit's excess memory, sets I/O
/// priorities, which not every disk honours, and pauses a unit that exceeds a disk limit. At its start the
/// daemon reports what is held, what is not, and why; so does `status`.
///
/// Kernel threads, process 1 and Commonhold itself are in no unit, whatever rules match them. --dry-run shows
/// the processes that would be in each unit. `commonhold check --help` explains how members are written.
#[derive(Debug, Args)]
pub struct Run {
    /// The contract [default: the natural one, as root: each person who is logged in has an equal part,
    /// system services have theirs, and everything idle is lent]
    pub contract: Option<PathBuf>,
    /// Stop after this time (`30s`, `500ms`, `2min`, `1h`)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub length: Option<Duration>,
    /// Print the plan for this moment with its reasons, and what would be held; change nothing
    #[arg(long)]
    #[allow(clippy::struct_field_names, reason = "the flag's name")]
    pub dry_run: bool,
    /// What holds CPU, memory and disks
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
    /// Override the contract's scheme
    #[arg(long, value_enum)]
    pub scheme: Option<SchemeChoice>,
    /// Try exchanges of tickets for all units, overriding the contract's `negotiate`. An exchange is kept
    /// while both sides progress faster
    #[arg(long)]
    pub negotiate: bool,
    /// Leave the kernel's io.cost as it is. Without this flag, `run` switches io.cost on for the disks that
    /// `calibrate` measured, until it ends; weights then take effect on them
    #[arg(long)]
    pub no_io_cost: bool,
    /// Keep no history of what units had, used and waited for
    ///
    /// Without this flag, the daemon keeps one for `history` and `account`: in /var/lib/commonhold/history if
    /// it runs as root, else in ~/.local/state/commonhold/history (or below `$XDG_STATE_HOME`), and with
    /// --directory in DIR/history. Everybody may read root's, as everybody may ask for `status`, unless /proc
    /// is mounted with `hidepid`.
    #[arg(long)]
    pub no_history: bool,
    /// The most space for the history, such as `64MiB` [default: 128MiB; at least 1MiB]
    ///
    /// A record a second is kept for an hour, a record a minute for a week, and a record an hour for a year.
    /// Where the space does not suffice for that, older records are removed.
    #[arg(long, value_name = "SIZE", value_parser = history_size, conflicts_with = "no_history")]
    pub history_size: Option<u64>,
    /// Print every decision with its reason as it is made
    #[arg(long, short)]
    pub verbose: bool,
    /// With --dry-run: print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    #[command(flatten)]
    pub place: Place,
}

/// Run a command as a member of a unit
///
/// The command replaces this process: it keeps the process ID, so signals reach it, and its exit code is
/// returned. If no daemon is running, or you may not enter the unit, nothing is started.
#[derive(Debug, Args)]
pub struct Exec {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub place: Place,
}

/// Show whether the contract is kept, and per unit: entitled, used, lent, waited
///
/// Begins with the verdict. For each unit and resource, the contract is kept
/// if the unit had all that it wanted or is entitled to, in the last 10 s.
/// It is broken if the unit had less while others had what it is entitled
/// to, or if a call-back took longer than promised. Each broken verdict is
/// shown with its reason and a remedy.
///
/// A table for each resource that is held has the same columns:
///   entitled     what the unit holds now: CPUs, bytes of memory, a share of
///                each disk, or bytes per second of the bus
///   using        what it uses now; of memory, page cache included
///   used %       what it used since the daemon started, in percent of its
///                entitlement; of memory, what it uses now; of disks, of its
///                share while it used them
///   lent         what others used of its entitlement: CPU time, or bytes
///                transferred; of memory, what it lends now
///   borrowed     what it had on loan of others: time for which it had a CPU,
///                bytes transferred; of memory, what it borrows now
///   called back  how often it called back what it had lent
///   longest      upper bound on the longest call-back
///   waited       CPU: time that its threads were ready to run without a
///                CPU; memory, disk: time that one of its processes was
///                stalled; bus: time that it was stopped for others
///
/// Lines below a row say what its columns do not. The lines below a table
/// account for all of the machine's CPU time or memory; `common` is the CPU
/// time of everything outside the units.
///
/// The lines after the tables say how each resource is held, or why it is
/// not. Problems follow and, under the kernel backend, the counters of its
/// scheduler.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Status {
    /// Show only this unit and its sub-units
    #[arg(conflicts_with = "pid")]
    pub unit: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show again after this many seconds, until Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        conflicts_with_all = ["pid", "check"]
    )]
    pub watch: Option<u64>,
    /// Print the verdicts, in a line if all are kept; exit with 0 if all are kept, 1 if one is broken, 3 if
    /// it cannot be told
    #[arg(long, conflicts_with_all = ["pid", "json"])]
    pub check: bool,
    /// Show the unit of this process, and the rule that put it there
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub place: Place,
}

/// Explain where the time of a unit, a process or a job went
///
/// Every second for which the unit waited is in one cause, and the causes add up to the whole. First come
/// sentences: what the unit waited for, which unit had it, and what would have helped, if the accounts prove
/// it. Then comes a table of all causes.
///
/// A wait for a CPU is the time for which a thread was ready to run and did not run; the waits of several
/// threads are added up. Under the `kernel` backend, the scheduler counts at every switch what had the CPU
/// meanwhile. Under `cgroup` and `user`, and for memory and disks under every backend, the waits of each
/// second are divided over those that had the resource in that second, in proportion to what they had. The
/// column `inferred` has these times.
///
/// A unit waits `beyond its part` while it has at least its entitlement: no other unit owes it anything.
/// Waits at a limit of the unit, and for its own threads, are kept apart from waits for neighbours. Sleep,
/// and waits for locks or for input, are not waits for the machine.
///
/// The figures come from the history (see `commonhold history`). Without it, they come from the daemon, and
/// cover the time since it started. A process or job has the causes of its unit.
#[derive(Debug, Args)]
pub struct Why {
    /// A unit's path, the number of a process, or the name of a job
    #[arg(value_name = "UNIT|PID|JOB")]
    pub subject: String,
    /// The period that ends now (`30s`, `10m`, `2h`, `7d`)
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    pub last: Duration,
    /// The folder of the history [default: that of the daemon]
    #[arg(long, value_name = "DIR")]
    pub history: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: Place,
}

/// Show what units had, used and waited for in the past
///
/// A row for each interval, with the columns of `status` in the same order: entitlement and use are averages
/// over the interval, the other figures its sums. Without a unit, all units together. Intervals in which no
/// daemon ran are shown as a line, and so is a clock that was set.
///
/// The files of the history are read directly, whether a daemon runs or not.
///
/// Times are in the local time zone. A time is one of:
///
/// - `10m`, `2h`, `7d`, `3w`, `30s`: so long ago
///
/// - `today`, `yesterday`: the beginning of that day
///
/// - `2026-11-28`, `2026-11-28 14:00`, `2026-11-28T14:00:00+01:00`
///
/// - `@1795874400`: seconds since 1970
#[derive(Debug, Args)]
pub struct History {
    /// The unit, by its path: `physics/night-batch` [default: all units together]
    pub unit: Option<String>,
    /// The first time of the period
    #[arg(long, value_name = "WHEN", default_value = "1h")]
    pub since: String,
    /// The end of the period [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// The length of an interval
    #[arg(long, value_enum, default_value_t = StepChoice::Auto)]
    pub step: StepChoice,
    #[command(flatten)]
    pub output: HistoryOutput,
}

/// The values of `--step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StepChoice {
    /// Kept for an hour
    Second,
    /// Kept for a week
    Minute,
    /// Kept for a year
    Hour,
    /// The longest of these that gives enough rows, and is still kept
    Auto,
}

/// Account for what units, or users, had and used over a period
///
/// CPU-hours used, entitled, lent, borrowed and waited; GiB-hours of memory; and GiB read and written.
/// Figures of a unit include its sub-units. The text states which part of the period the history does not
/// cover. Each stretch of time is accounted with the finest records that are still kept.
///
/// By user, only CPU time is known: that of processes that lived long enough to be seen, mostly some tens of
/// milliseconds. The rest is shown as unseen.
///
/// `commonhold history --help` explains how times are written.
#[derive(Debug, Args)]
pub struct Account {
    /// The unit, by its path, with its sub-units [default: all units]
    pub unit: Option<String>,
    /// Account for a month of the local time zone [default: the present one]
    #[arg(long, value_name = "YYYY-MM", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["since", "until"])]
    pub month: Option<String>,
    /// The first time of the period [default: the beginning of the history]
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// The end of the period [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// What a row is about
    #[arg(long, value_enum, default_value_t = ByChoice::Unit)]
    pub by: ByChoice,
    #[command(flatten)]
    pub output: HistoryOutput,
}

/// The values of `--by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByChoice {
    /// A unit
    Unit,
    /// A user in a unit
    User,
}

// What `history` and `account` read, and how they print it. The comments of the fields are the help that
// users read; clap would show one on the struct in their place.
#[derive(Debug, Args)]
pub struct HistoryOutput {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values (RFC 4180) with a header line
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// The folder of the history, whatever --directory says [default: that of this user's daemon, then
    /// that of root's]
    #[arg(long, value_name = "DIR")]
    pub history: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

/// Parses `--history-size`.
fn history_size(text: &str) -> Result<u64, String> {
    let bytes = commonhold_contract::quantity::bytes(text)
        .map_err(|problem| format!("{}; {}", problem.message, problem.help))?;
    let (least, most) = (commonhold_history::BYTES_MIN, 64 << 30);
    match (least..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err("a history has at least 1MiB and at most 64GiB".to_owned()),
    }
}

/// Show units' tickets, or change them while the daemon runs
///
/// Every unit is a currency: its tickets divide its worth among its sub-units. The table shows each unit's
/// tickets of each resource, their currency, and their present worth on this machine. With a unit's name,
/// that unit is shown as a currency: its funding, the tickets that it has issued to its sub-units and to its
/// own processes, its exchanges, and the limits that currencies impose.
///
/// Where tickets were changed, the contract's number is shown beside them, and a line gives the unit's
/// present entitlement. Tickets that a unit will have once its user has processes are listed below. A note
/// marks changed tickets of a resource that is not held here.
///
/// A change takes effect at once, and lasts until the contract file overrides it. It is first written to the
/// daemon's directory (`tickets.json`). The next daemon that starts there makes it again, whether this one
/// ended or was killed. If that directory is on a memory file system, as /run is, changes do not survive a
/// reboot.
///
/// A change expires when the contract gives that unit another number of tickets of that resource, or drops
/// the unit. Only a reload or a start reads the contract. To take a change back, set the contract's number.
///
/// Root and the daemon's own user may change all tickets. The `owner` that the contract names for a unit may
/// change the tickets of its direct sub-units, and give or offer the unit's own. A unit without an owner
/// inherits that of its parent, and its members may give or offer its tickets. Where no enclosing unit has an
/// owner, a user who may enter a unit and all of its direct sub-units may change the tickets of these, unless
/// `each` made them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Tickets {
    #[command(subcommand)]
    pub what: Option<TicketsWhat>,
    /// Show this unit as a currency [default: all units]
    pub unit: Option<String>,
    /// Print the contract in force, with all changes of tickets
    ///
    /// A run under it gives units the same rights. Its comments list what no contract can express: exchanges,
    /// offers, and tickets of units that `each` makes.
    #[arg(long, conflicts_with_all = ["unit", "json"])]
    pub as_contract: bool,
    #[command(flatten)]
    pub common: Common,
}

/// Set how many tickets a unit has, of several resources at once
///
/// The parent unit's currency issues them; for an outermost unit, the machine's own. Either all numbers are
/// set or none. The shares of the other units in that currency shrink or grow; units outside it are
/// unaffected.
///
/// With `--from`, another currency issues them, and the unit holds them in addition to its own. 0 takes them
/// back.
#[derive(Debug, Args)]
pub struct Fund {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and the unit's new number of tickets of it: `cpu=200`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = parse_number)]
    pub tickets: Vec<Number>,
    /// The currency that issues them, by its unit, or `/` for the machine's own [default: the parent unit's]
    #[arg(long, value_name = "CURRENCY")]
    pub from: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// Issue more tickets to a unit
///
/// The parent unit's currency issues them, so that each ticket there is worth less (inflation). No other
/// currency is affected. With several resources, either all are issued or none.
#[derive(Debug, Args)]
pub struct Issue {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and the number of tickets to add: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = parse_number)]
    pub tickets: Vec<Number>,
    #[command(flatten)]
    pub common: Common,
}

/// Take tickets back from a unit
///
/// The parent unit's currency takes them, so that each remaining ticket there is worth more (deflation). No
/// other currency is affected. With several resources, either all are taken back or none. A unit keeps at
/// least one ticket, and those that it lent.
#[derive(Debug, Args)]
pub struct Revoke {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and the number of tickets to take: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = parse_number)]
    pub tickets: Vec<Number>,
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of every command about tickets.
#[derive(Debug, Args)]
pub struct Common {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Subcommand)]
pub enum TicketsWhat {
    /// Set a unit's number of tickets of a resource
    Set {
        /// The unit, by its path: `physics/night-batch`
        unit: String,
        /// The resource
        #[arg(value_enum)]
        resource: ResourceChoice,
        /// Its new number of tickets
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TICKETS_MAX))]
        tickets: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Let a unit give tickets of a resource to a sibling unit
    Give {
        /// The unit that gives, by its path
        from: String,
        /// The unit that receives them
        to: String,
        /// The resource
        #[arg(value_enum)]
        resource: ResourceChoice,
        /// How many tickets
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TICKETS_MAX))]
        tickets: u64,
        #[command(flatten)]
        common: Common,
    },
}

/// Offer a unit's tickets of one resource for tickets of another
///
/// A compute-bound unit may have no use for its disk tickets, and another unit none for its CPU tickets. Each
/// offers what it can spare. Matching offers are served at once: each unit gives what the other wants, and at
/// most what it offered. Three or four units may exchange in a ring. The rights of other units do not change.
///
/// An exchange lasts for the shortest time of its offers, until one of its units ends it with `commonhold
/// cancel`, or until one of them leaves the contract. Then all tickets return. An offer without a match stays
/// open until it is served or taken back. Both outlast the daemon.
///
/// Tickets within one unit are compared by number, those of different units by their present worth. A part of
/// a reservation (`hard`) matches only offers that want a reservation, and tickets only those that want
/// tickets. A unit's members may offer its tickets, and so may root.
///
/// With a program after `--`, the offer lasts as long as the program: it is made before the program starts.
/// When the program ends, the offer is taken back, or the exchange that served it is ended. The exit code is
/// the program's, or 128 plus the number of the signal that terminated it. Signals to this process reach the
/// program. If the offer is refused, nothing is started.
#[derive(Debug, Args)]
pub struct Offer {
    /// The unit that offers, by its path [default: the unit that this command runs in]
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<String>,
    /// What it gives: a number of tickets, such as disk:300, or a part of its reservation, such as
    /// memory:2GiB
    #[arg(long, value_name = "RESOURCE:N")]
    pub give: commonhold_policy::rights::Offer,
    /// What it wants in return, such as cpu:200
    #[arg(long, value_name = "RESOURCE:N")]
    pub want: commonhold_policy::rights::Offer,
    /// The least that it accepts; it then gives proportionally less [default: all that it wants]
    #[arg(long, value_name = "RESOURCE:N")]
    pub at_least: Option<commonhold_policy::rights::Offer>,
    /// Exchange only with this unit
    #[arg(long, value_name = "UNIT")]
    pub with: Option<String>,
    /// How long an exchange lasts at most (`30s`, `10min`, `1h`) [default: until it is ended]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// A program and its arguments: it starts when the offer is made, and the offer ends with it
    #[arg(last = true, conflicts_with = "json")]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub common: Common,
}

/// Show open offers, and exchanges of tickets
///
/// Shows exchanges in force, and the last hundred that ended.
#[derive(Debug, Args)]
pub struct Offers {
    #[command(flatten)]
    pub common: Common,
}

/// Take an offer back, or end an exchange
///
/// Root and the members of the units involved may do this. When an exchange ends, each unit has the same
/// tickets as before it.
#[derive(Debug, Args)]
pub struct Cancel {
    /// The offer's or the exchange's number, as `commonhold offers` shows it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub number: Option<u64>,
    /// All open offers of this unit, and all its exchanges
    #[arg(long, value_name = "UNIT")]
    pub all: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// Show what isolation and sharing are worth on this machine
///
/// Holds the contract while real work runs. A light unit's job runs alone, then beside a heavy unit under
/// each scheme: smp, quota and isolate. The response times are compared. Writes a report with plots.
/// Ctrl-C ends it, the daemon and the jobs.
///
/// A run during which processes in no unit used more than 5 % of the machine is repeated. If there is no
/// other run, the verdict is `inconclusive`, as it is if the repeats vary so much that they do not tell.
#[derive(Debug, Args)]
pub struct Demo {
    /// The contract; it must have the units `light` and `heavy` [default: the built-in
    /// examples/two-groups.toml]
    pub contract: Option<PathBuf>,
    /// What holds CPU
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
    /// How long the light unit's job takes alone; all other work is scaled to it
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub seconds: u32,
    /// Run each scheme this many times, in turn
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub repeats: u32,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "commonhold-demo.html")]
    pub report: PathBuf,
    /// Print JSON at the end, and no live table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Caretaker {
    pub journal: PathBuf,
    pub pipe: i32,
}

#[derive(Debug, Args)]
pub struct DemoTask {
    pub kind: String,
    pub amount: u64,
    pub count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// The best that this machine offers
    Auto,
    /// Control groups, and the project's own scheduler in the kernel
    Kernel,
    /// Control groups, version 2
    Cgroup,
    /// CPU affinity, and stopping and continuing processes; needs no privileges for one's own processes
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResourceChoice {
    Cpu,
    Memory,
    Disk,
    Bus,
}

impl From<ResourceChoice> for commonhold_contract::Resource {
    fn from(choice: ResourceChoice) -> Self {
        match choice {
            ResourceChoice::Cpu => Self::Cpu,
            ResourceChoice::Memory => Self::Memory,
            ResourceChoice::Disk => Self::Disk,
            ResourceChoice::Bus => Self::Bus,
        }
    }
}

/// The syntax of members, for the end of `check --help`.
fn members_help() -> String {
    let forms = MEMBER_FORMS.iter().map(|form| (form.forms.join(", "), form.who));
    let rows: Vec<String> = forms.map(|(forms, who)| format!("  {forms}\n      processes {who}\n")).collect();
    let rows = rows.concat();
    let rules = MEMBER_RULES.join("\n\n");
    format!("Members of a unit, as in `members = [\"group:physics\", \"user:ana\"]`:\n{rows}\n{rules}")
}

/// A number of tickets of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    pub resource: commonhold_contract::Resource,
    pub tickets: u64,
}

/// Parses `cpu=200`: a resource, and 0 to [`TICKETS_MAX`] tickets. Each command decides whether it accepts 0.
fn parse_number(text: &str) -> Result<Number, String> {
    let range = format!("0 to {TICKETS_MAX}");
    let Some((word, number)) = text.split_once('=') else {
        return Err(format!("write a resource, `=` and {range}, such as cpu=200"));
    };
    let resource = commonhold_contract::Resource::ALL.into_iter().find(|resource| resource.name() == word);
    let resource = resource
        .ok_or_else(|| format!("`{word}` is no resource with tickets: write cpu, memory, disk or bus"))?;
    // `parse` alone would accept a sign: +5.
    let is_digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let tickets = number.parse().ok().filter(|tickets| is_digits && (0..=TICKETS_MAX).contains(tickets));
    let tickets = tickets.ok_or_else(|| format!("a unit cannot have `{number}` tickets: write {range}"))?;
    Ok(Number { resource, tickets })
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
