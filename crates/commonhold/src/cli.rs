//! The command line: the one definition that help, man pages and completions come from.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command as Definition, Parser, Subcommand, ValueEnum};
use commonhold_contract::{Discipline, MEMBER_FORMS, MEMBER_RULES};
use commonhold_live::apply::kernel::BUILT_IN;
use commonhold_policy::rights::TICKETS_MAX;

use crate::exit::Exit;

/// The backends that this binary has, the best first. `kernel` is left out where it was built without clang.
pub(crate) const BACKENDS: &str = if BUILT_IN { "kernel, cgroup, user" } else { "cgroup, user" };

/// What `--version` prints behind the program's name; `-V` prints the first line alone, for scripts.
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
/// A contract says what each unit, a named group of processes, holds of the machine. Commonhold isolates units from each
/// other. It lends what a unit leaves idle, and calls it back when that unit wants it. It keeps accounts of all this.
#[derive(Debug, Parser)]
#[command(
    name = "commonhold",
    version,
    long_version = LONG_VERSION,
    after_help = Exit::table(),
    after_long_help = Exit::table(),
    mut_subcommands = in_paragraphs
)]
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
    Tickets(Tickets),
    Fund(Fund),
    Issue(Issue),
    Revoke(Revoke),
    Offer(Offer),
    Offers(Offers),
    Cancel(Cancel),
    Demo(Demo),
    Scale(Scale),
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
/// Prints the tree of units, with what each unit is entitled to when all units are active. Each error is shown at its
/// place in the file, with a remedy. Errors that depend on the machine's size are shown once there are no others.
///
/// Memory is shown less the reserve. `run` instead takes off what the kernel and processes in no unit hold, which `check`
/// cannot know.
#[derive(Debug, Args)]
#[command(after_long_help = members())]
pub(crate) struct Check {
    /// The contract, a TOML file (see `commonhold generate schema` for what it may say)
    pub(crate) contract: PathBuf,
    /// Check for another machine: a machine file, a scenario's machine.toml, or words such as `nodes:4 cpus:2 memory:512MiB`
    ///
    /// Without --machine, this machine is meant. `commonhold doctor --machine` writes a machine file of the machine it runs on.
    ///
    /// In words, `nodes:4 cpus:2 memory:512MiB` is 4 nodes with 2 CPUs and 512 MiB each: 8 CPUs and 2 GiB. Each word has a
    /// default:
    ///
    /// - `nodes:N` (1)
    ///
    /// - of each node: `cpus:N` logical CPUs (1), `memory:SIZE` (1GiB), `caches:N` last-level caches (1)
    ///
    /// - of each core: `threads:N` (1)
    ///
    /// - of the machine: `disks:N` (0, or 1 with `disk`), `disk:RATE` of each disk, such as 100MB/s, `swap:SIZE`, `bus:RATE`
    ///
    /// Users, groups, cgroups and processes that the contract names are not looked up with --machine.
    #[arg(long, value_name = "FILE|WORDS")]
    pub(crate) machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure how a program scales with CPUs, where its time goes, and what is to blame
///
/// Runs the program on growing sets of CPUs, several times each. The answer in one sentence comes first. Where others used
/// the CPUs that the program queued for, it is that the study is inconclusive; where a control group's quota bounds the
/// program, it names the quota. Then these questions are answered:
///
///   1. How does it scale? Gunther's law is fitted to the throughput:
///      X(n) = lambda n / (1 + alpha (n - 1) + beta n (n - 1))
///      alpha is serialisation, beta contention. Shown are both with
///      their bands, where the most throughput is, what one more CPU is
///      worth, and how latency grows. It takes three sizes.
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
/// Where the program takes a number of threads, write the letter n in braces in its place, without blanks.
/// It then has the size in its command line, and may use all CPUs. With --cpus, both grow. Sizes above the CPUs,
/// or above a quota, are measured and shown, and the law is not fitted to them.
///
/// Throughput is runs per second: the program must do the same work in every run, whatever the size. If
/// it does not, or starting it takes long, have it print its own rate, and tell with --rate how to find it.
/// `1.9k`, `2,235.5`, `3M/s` and `1.5e6` are read as what they mean; a number that may mean two things is refused.
///
/// Shown per size:
///   runs/s    the middle of its runs; the lowest and the highest
///   law says  what the fitted law has there
///   times     its throughput by that of the first size
///   latency   how many times as long as at the first size each of so
///             many equal parts of the work takes
///
/// States of threads:
///   user, system  on a CPU, in the program or in the kernel
///   memory        on a CPU that waits for memory, where that is counted
///   queue         ready to run, without a CPU
///   lock          waits for a futex (locks, conditions, barriers), a
///                 file lock, or a lock in the kernel
///   I/O, fault    waits for a disk; for a page that it touched
///   join          waits for a thread or process of its own to end
///   sleep         waits for anything else
///   stopped       by a signal or a debugger
///   unseen        nobody looked
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
pub(crate) struct Scale {
    /// The numbers of CPUs, such as `1,2,4` or `1-8`
    #[arg(long, value_name = "LIST", value_parser = sizes_of)]
    pub(crate) cpus: Option<SizeList>,
    /// The numbers that stand for n in braces; the program may use all CPUs
    #[arg(long, value_name = "LIST", value_parser = sizes_of, conflicts_with = "cpus")]
    pub(crate) sizes: Option<SizeList>,
    /// Runs of each size
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) repeat: u32,
    /// Runs of the largest size before these, which do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub(crate) warm_up: u32,
    /// Throughput is a number that the program prints: the last that this pattern finds, in parentheses
    #[arg(long, value_name = "REGEX")]
    pub(crate) rate: Option<String>,
    /// Do not look at the threads: only the first question is answered
    #[arg(long)]
    pub(crate) unwatched: bool,
    /// Count the program's locks, and find out by delays what mending the one most waited for would gain: five runs of the
    /// largest size for each of --repeat, and three times as many at least
    #[arg(long, conflicts_with = "unwatched")]
    pub(crate) locks: bool,
    /// Run nothing: fit the law to the rows of this file, `size,throughput`, each of which is a run
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["cpus", "sizes", "repeat", "warm_up", "rate", "unwatched", "locks", "command"]
    )]
    pub(crate) points: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required_unless_present = "points", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Simulate a scenario: a contract, a machine and a workload
///
/// Runs the project's own policies and scheduler on a simulated machine, in virtual time. Nothing on
/// this machine is changed. The same scenario and seed give the same outcome, to the byte. `commonhold
/// generate scenario-reference` lists what the files may say.
///
/// Shown per copy of a job:
///   response  time from its start to its end: the mean, and beside it
///             the shortest and the longest
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
///   calls     CPUs that it called back, and beside it the mean and the
///             longest time that this took
///   memory    its page frames: the mean over the run, the most, and
///             those at the end
///
/// --compare runs the scenario under smp, quota and isolate. It also runs each unit's jobs alone: under
/// quota, without the jobs of others. All runs have the same seeds. One table shows response times, CPU
/// time, memory and disk. A disk that one unit alone uses is wholly that unit's, in every run.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
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
    /// Try exchanges of tickets for all units, whatever the contract says (`negotiate`)
    #[arg(long)]
    pub(crate) negotiate: bool,
    /// Compare all schemes, and each unit alone on its share
    #[arg(long, conflicts_with = "scheme")]
    pub(crate) compare: bool,
    /// Compare disciplines, as `stride,lottery`: each for all units for which the contract names no other than `stride`. A
    /// unit's discipline orders its own tasks and its sub-units
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = disciplines(), conflicts_with = "compare")]
    pub(crate) disciplines: Vec<String>,
    /// The first run's seed; each further run has the next
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub(crate) seed: u64,
    /// How many runs; each has a seed of its own, and they use all CPUs of this machine
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) runs: u64,
    /// Show which job has which CPU, at intervals of this length: a letter for each job, a line where something changed; of the
    /// first run
    #[arg(long, value_name = "EVERY", value_parser = interval, num_args = 0..=1, require_equals = true, default_missing_value = "100ms", conflicts_with_all = ["compare", "disciplines"])]
    pub(crate) trace: Option<Duration>,
    /// Print JSON: every run in full
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// Print a line per job and run; with --disciplines, per figure
    #[arg(long, group = "form")]
    pub(crate) csv: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Reproduce the published results that the policies come from
///
/// Runs the scenarios behind the published results on the simulated machine, with several seeds each. Each row shows the
/// published value, the measured one, the tolerance and the verdict. The tolerance was fixed before the first run. A
/// parameter was fitted to a value marked `calibrated`: that value is no evidence. The exit code does not depend on the
/// verdicts.
#[derive(Debug, Args)]
pub(crate) struct Claims {
    /// Only these claims: an identifier, or the beginning of several, such as PI-T4
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

/// Show what this machine can enforce and what it cannot, with reasons and remedies
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print this machine as a machine file, for `check --machine`
    #[arg(long, conflicts_with = "json")]
    pub(crate) machine: bool,
}

/// Measure a disk, or the memory bus, so that `check` and `run` know what it carries
///
/// *A disk.* Writes and reads a file on a file system of the disk, past the page cache. The file takes a quarter of the free
/// space, and 4 GiB at most. It has no name, and nothing of it is left afterwards.
///
/// Seven kinds of requests are measured. First, large requests (1 MiB) are written, which lays the file out. Then three
/// kinds are read: large ones, small ones (4 KiB) in order, and small ones at random places. The same three are written. All
/// this takes seven times the given time, and a second.
///
/// A disk that others use is refused. Before the measurement, that is a disk in use for more than 5 % of a second. After it,
/// that is a disk that transferred more than the measurement did by a quarter and 4 MiB.
///
/// The result is kept in /var/lib/commonhold/disks, by the disk's model, serial number and size. An array's is kept by level,
/// number of drives, UUID and size. `check` compares reservations in bytes per second with it. `run` gives it to the kernel,
/// so that weights hold the disk.
///
/// *The memory bus*, with --bus. Computes with arrays that no cache holds, on one CPU and then on all of them. It takes at most
/// a quarter of the free memory, and twice the given time. The best pass counts, so others may run beside it for a while; but
/// if they transfer much all the time, the result is too low. What counts is what caches fetch.
///
/// The result is kept in /var/lib/commonhold/bus, by the processors' model, the number of CPUs and nodes, and the memory. `run`
/// chooses by it which gangs fit together. Without it, 10 GB/s are taken for each CPU.
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// A folder on a file system of the disk
    #[arg(required_unless_present = "bus")]
    pub(crate) folder: Option<PathBuf>,
    /// Measure the memory bus
    #[arg(long, conflicts_with = "folder")]
    pub(crate) bus: bool,
    /// How long to measure each of the seven kinds of requests, or one CPU and all of them; a disk with a larger cache needs
    /// longer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Hold a contract until told to stop
///
/// Runs in the foreground. SIGINT and SIGTERM end it, and everything it did is undone. SIGHUP reads the contract again: the
/// new one comes into force as a whole, or the old one stays. If the daemon is killed, a caretaker process undoes everything
/// within a second.
///
/// A daemon of root's refuses a contract that another user may change: the file, and each directory on the way to it, must
/// belong to root, and neither group nor others may write to them, but for directories with the sticky bit.
///
/// Tickets that were changed with `commonhold tickets` are changed again at the next start, if the contract has that unit and
/// still gives it the same number. The daemon says which. `commonhold tickets --help` has the rules.
///
/// The backends `kernel` and `cgroup` hold memory and disks by control groups, where they can use the controllers. The backend
/// `user` holds them more weakly: it pages out what a unit has too much of, sets I/O priorities, which not every disk heeds,
/// and stops a unit for a while that exceeds a limit on disks. The daemon says at its start what is held, what is not, and
/// why. `status` says it too.
///
/// Kernel threads, process 1 and Commonhold itself are in no unit, whatever rules match them. --dry-run shows which processes
/// would be in which unit. `commonhold check --help` explains how members are written.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The contract
    pub(crate) contract: PathBuf,
    /// Stop after this time (`30s`, `500ms`, `2min`, `1h`)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) length: Option<Duration>,
    /// Print the plan for this moment with its reasons, and what would be held; change nothing
    #[arg(long)]
    #[allow(clippy::struct_field_names, reason = "the flag's name")]
    pub(crate) dry_run: bool,
    /// What holds CPU, memory and disks
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// The scheme, whatever the contract says
    #[arg(long, value_enum)]
    pub(crate) scheme: Option<SchemeChoice>,
    /// Try exchanges of tickets for all units, whatever the contract says (`negotiate`). One is kept while both sides get on faster
    #[arg(long)]
    pub(crate) negotiate: bool,
    /// Leave the kernel's io.cost as it is. Without this flag, `run` switches io.cost on for the disks that `calibrate`
    /// measured, until it ends; weights then hold these disks
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
/// The command replaces this process. So signals to this process number reach the command, and its exit code is the one you
/// see. If no daemon runs, or you may not enter that unit, nothing is started.
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
/// CPUs:
///   entitled     CPUs that the unit holds now
///   using        CPUs that it used lately
///   used %       CPU time it used since the daemon began, in percent of
///                what it was entitled to
///   lent         CPU time of its own that others used
///   borrowed     CPU time of others that it used
///   called back  loans that it ended because it wanted the CPU
///   longest      the longest that a call-back took, at most
///   waited       time that its threads were ready to run without a CPU;
///                the line below names the units that borrowed its CPUs
///   common       CPU time of everything outside the units
///
/// Disks, all together:
///   entitled     the part of each disk that the unit holds now
///   using        what it reads and writes lately
///   used %       what it transferred, in percent of its part while it
///                used the disks
///   lent         bytes that others moved with this unit's idle share
///   borrowed     bytes that it moved with the idle share of others
///   called back  times that it wanted its share again, and the time
///                within which it had it in 99 of 100 cases
///   waited       time that a process of it was stalled for a disk
///
/// Memory, in a table of its own where memory is held:
///   entitled     what the unit's tickets are worth of what is divided
///   allowed      what it may use now: entitled - lent + borrowed
///   using        what is charged to it, pages of files included
///   lent         what it lends now
///   borrowed     what it borrows now
///   called back  times that it wanted back what it lent
///   longest      the longest that this took
///   waited       time that a process of it waited for memory
///
/// The line below that table says where all of the machine's memory is.
/// The last lines say what is not held, and why.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
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

/// Show units' tickets, or change them while the daemon runs
///
/// Every unit is a currency: its tickets divide what it is worth among the units in it. Shown are every unit's tickets of each
/// resource, the currency that they are of, and what they are worth on this machine now. With a unit's name, that unit is shown
/// as a currency: what funds it, what it has issued to the units in it and to its own processes, its exchanges, and the limits
/// that currencies impose.
///
/// Where tickets were changed, the number that the contract gives stands
/// beside them, and a line says what the unit is entitled to now. Tickets that a unit will have once its user has processes
/// are shown below. Where nothing holds a resource here, that is said of changed tickets of it.
///
/// A change is made at once, and lasts until the contract file says otherwise. It is kept in the daemon's directory
/// (`tickets.json`) before it is made. The next daemon that begins there makes it again, whether this one ended or was killed.
/// Where that directory is on a memory file system, as /run is, it is gone after the machine's next start.
///
/// A change is over when the contract gives that unit another number of tickets of that resource, or has the unit no more.
/// That counts from the reload or the start that reads the contract. To take a change back, set the contract's number.
///
/// Root and the daemon's own user may change all tickets. A unit's `owner`, as the contract names it, may change the tickets of
/// the units directly in that unit, and give or offer the unit's own. A unit without an owner has that of the unit around it,
/// and its members may give or offer its tickets. Where no unit around has an owner, a user who may enter a unit and every unit
/// directly in it may change the tickets of the latter, unless `each` made them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Tickets {
    #[command(subcommand)]
    pub(crate) what: Option<TicketsWhat>,
    /// Show this unit as a currency [default: all units]
    pub(crate) unit: Option<String>,
    /// Print a contract that says what is in force now, with tickets as they were changed
    ///
    /// A run under it gives units the same rights. What no contract can say is in its comments: exchanges, offers, and tickets
    /// of units that `each` makes.
    #[arg(long, conflicts_with_all = ["unit", "json"])]
    pub(crate) as_contract: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Set how many tickets a unit has, of several resources at once
///
/// The currency of the unit around it issues them: at the top, the machine's own. All numbers are set, or none. The others in
/// that currency hold less of what it is worth then, or more. Nobody outside it does.
///
/// With `--from`, another currency issues them, and the unit holds them beside its own. 0 takes them back.
#[derive(Debug, Args)]
pub(crate) struct Fund {
    /// The unit, by its path: `physics/night-batch`
    pub(crate) unit: String,
    /// A resource, and all tickets of it that the unit has then: `cpu=200`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub(crate) tickets: Vec<Number>,
    /// The currency that issues them, by its unit, or `/` for the machine's own [default: that of the unit around it]
    #[arg(long, value_name = "CURRENCY")]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Issue more tickets to a unit
///
/// The currency of the unit around it issues them, so that each ticket there is worth less: inflation. It is felt in that
/// currency alone. Of several resources, all are issued or none.
#[derive(Debug, Args)]
pub(crate) struct Issue {
    /// The unit, by its path: `physics/night-batch`
    pub(crate) unit: String,
    /// A resource, and how many tickets more: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub(crate) tickets: Vec<Number>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Take tickets back from a unit
///
/// The currency of the unit around it takes them, so that each other ticket there is worth more: deflation. It is felt in that
/// currency alone. Of several resources, all are taken back or none. A unit keeps one, and what it lent.
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The unit, by its path: `physics/night-batch`
    pub(crate) unit: String,
    /// A resource, and how many tickets fewer: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub(crate) tickets: Vec<Number>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What every command about tickets takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TicketsWhat {
    /// Give a unit so many tickets of a resource from now on
    Set {
        /// The unit, by its path: `physics/night-batch`
        unit: String,
        /// Of what
        #[arg(value_enum)]
        resource: ResourceChoice,
        /// All that it has then
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TICKETS_MAX))]
        tickets: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Let a unit give tickets of a resource to a unit beside it
    Give {
        /// The unit that gives, by its path
        from: String,
        /// The unit that is given
        to: String,
        /// Of what
        #[arg(value_enum)]
        resource: ResourceChoice,
        /// How many
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TICKETS_MAX))]
        tickets: u64,
        #[command(flatten)]
        common: Common,
    },
}

/// Offer a unit's tickets of one resource for others' of another
///
/// A unit that computes may have no use for its disk tickets, and another none for its CPU tickets. Each offers what it can do
/// without. Offers that fit each other are served at once: each gives what the other wants, and at most what it said. Three or
/// four units may serve each other in a ring. Others' rights stay what they are.
///
/// An exchange lasts for the shortest time of its offers, until one of its units ends it with `commonhold cancel`, or until one of
/// them leaves the contract. All tickets are back then. An offer that fits none stands until it is served or taken back. Both
/// outlast the daemon.
///
/// Within one unit, tickets are compared by their number; in different units, by what they are worth now. A part of a reservation
/// (hard) serves units that want a reservation, and tickets those that want tickets. The members of a unit may offer its tickets, and so may root.
///
/// With a program after `--`, the offer is the program's: it is made before the program starts, and taken back when it ends. So is
/// the exchange that served it. The exit code is the program's, or 128 and the number of the signal that ended it. Signals to this
/// process reach the program. If the offer is refused, nothing is started.
#[derive(Debug, Args)]
pub(crate) struct Offer {
    /// The unit that offers, by its path [default: the one that this command runs in]
    #[arg(long, value_name = "UNIT")]
    pub(crate) unit: Option<String>,
    /// What it gives: a resource and tickets, such as disk:300; or an amount of what is reserved for it, such as memory:2GiB
    #[arg(long, value_name = "RESOURCE:N")]
    pub(crate) give: commonhold_policy::rights::Offer,
    /// What it wants for that, such as cpu:200
    #[arg(long, value_name = "RESOURCE:N")]
    pub(crate) want: commonhold_policy::rights::Offer,
    /// The least of what it wants that it takes, for as much less of what it gives [default: all]
    #[arg(long, value_name = "RESOURCE:N")]
    pub(crate) at_least: Option<commonhold_policy::rights::Offer>,
    /// Only with this unit
    #[arg(long, value_name = "UNIT")]
    pub(crate) with: Option<String>,
    /// How long an exchange lasts at most (`30s`, `10min`, `1h`) [default: until it is ended]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// A program and its arguments: it starts when the offer is made, and the offer ends with it
    #[arg(last = true, conflicts_with = "json")]
    pub(crate) program: Vec<OsString>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Show the offers that stand, and exchanges of tickets
///
/// Of exchanges those in force are shown, and the last hundred that ended.
#[derive(Debug, Args)]
pub(crate) struct Offers {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Take an offer back, or end an exchange
///
/// The members of its units may, and so may root. After an exchange every unit has the tickets that it had before.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The offer's or the exchange's number, as `commonhold offers` shows it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) number: Option<u64>,
    /// All offers of this unit that stand, and all exchanges that it is in
    #[arg(long, value_name = "UNIT")]
    pub(crate) all: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Show what isolation and sharing are worth on this machine
///
/// Holds the contract while real work runs. A light unit's job runs alone first, then beside a heavy unit under each scheme:
/// smp, quota and isolate. The response times are compared. Writes a report with plots. Ctrl-C ends it, the daemon and the jobs.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The contract; it must have the units `light` and `heavy` [default: the built-in examples/two-groups.toml]
    pub(crate) contract: Option<PathBuf>,
    /// What holds CPU
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// How long the light unit's job takes alone; all other work is scaled to it
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

/// Write man pages, completions, the contract's schema, or a workload from a recording
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Man pages, one per command and one of the contract's language, into a directory
    Man {
        /// The directory, such as /usr/local/share/man; pages go into man1 and man5 in it, which are made if they are not there
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
    /// The recording is the text of the file `trace` of tracefs. It has the events `sched_switch`, `sched_wakeup`,
    /// `sched_wakeup_new` and `sched_process_fork`, on the clock `mono`.
    ///
    /// Lines before the events say which threads are in which unit: `# commonhold unit light: 101 102`. Threads that these
    /// create are in the same unit. No other thread is replayed.
    ///
    /// Every thread becomes a job with the CPU time of its bursts and the length of its sleeps. Lost events are an error.
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
    /// The daemon's directory [default for root: /run/commonhold; for others: `$XDG_RUNTIME_DIR/commonhold`, or
    /// /tmp/commonhold-UID where there is no such directory; commands that ask a daemon then try root's]
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
    /// CPU affinity, and stopping and continuing processes; needs no privileges for one's own processes
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemeChoice {
    /// No isolation
    Smp,
    /// Isolation; nothing is lent
    Quota,
    /// Isolation; what is idle is lent
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

/// What `--disciplines` may list.
fn disciplines() -> PossibleValuesParser {
    PossibleValuesParser::new(std::iter::once(ALL).chain(Discipline::ALL.into_iter().map(Discipline::name)))
}

/// All disciplines, in that list.
pub(crate) const ALL: &str = "all";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResourceChoice {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedulerChoice {
    /// The project's own
    Commonhold,
    /// IRIX 5: priorities that degrade with use
    IrixDecay,
    /// Linux 2.4: epochs
    #[value(name = "linux-2.4")]
    Linux24,
    /// A queue for each CPU: Hurricane.
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

/// The command with each paragraph of its description in one line: clap fills these to the terminal's width. In a verbatim
/// comment, lines end where the source's do. Indented lines are tables, and stay as they are.
fn in_paragraphs(command: Definition) -> Definition {
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

/// How members are written, below `check --help`.
fn members() -> String {
    let forms = MEMBER_FORMS.iter().map(|form| (form.forms.join(", "), form.who));
    let rows: Vec<String> = forms.map(|(forms, who)| format!("  {forms}\n      processes {who}\n")).collect();
    let rows = rows.concat();
    let rules = MEMBER_RULES.join("\n\n");
    format!("Members of a unit, as in `members = [\"group:physics\", \"user:ana\"]`:\n{rows}\n{rules}")
}

/// The last seed that a first run may have: those of further runs follow it.
const SEED_MAX: u64 = u64::MAX / 2;

/// Sizes, ascending, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SizeList(pub(crate) Vec<u32>);

/// `1,2,4`, `1-8`.
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

/// `30s`, `500ms`, `2min`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let remedy = || {
        format!("`{text}` is not a time: write a whole number and ms, s, min or h, such as `30s`; 0 is none")
    };
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

/// How often to look.
fn interval(text: &str) -> Result<Duration, String> {
    let remedy = |_| {
        format!(
            "`{text}` is no interval: write 1ms or more after the `=`, as in `--trace=500ms`, or `--trace` alone for 100ms"
        )
    };
    duration(text).map_err(remedy)
}

/// What to say of a time that follows `--trace` without `=`: it would be taken for another argument.
pub(crate) fn stray_interval(args: &[String]) -> Option<String> {
    let pair = args.windows(2).find(|pair| pair[0] == "--trace" && duration(&pair[1]).is_ok())?;
    Some(format!("`--trace {0}` has its time in an argument of its own: write `--trace={0}`", pair[1]))
}

/// So many tickets of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) resource: commonhold_contract::Resource,
    pub(crate) tickets: u64,
}

/// `cpu=200`: a resource, and 0 to the most tickets. Which command takes 0 is the command's.
fn number_of(text: &str) -> Result<Number, String> {
    let range = format!("0 to {TICKETS_MAX}");
    let Some((word, number)) = text.split_once('=') else {
        return Err(format!("write a resource, `=` and {range}, such as cpu=200"));
    };
    let resource = commonhold_contract::Resource::ALL.into_iter().find(|resource| resource.name() == word);
    let resource = resource
        .ok_or_else(|| format!("`{word}` is no resource with tickets: write cpu, memory, disk or bus"))?;
    // Not what a number may look like elsewhere: +5, -0.
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let tickets = number.parse().ok().filter(|tickets| digits && (0..=TICKETS_MAX).contains(tickets));
    let tickets = tickets.ok_or_else(|| format!("a unit cannot have `{number}` tickets: write {range}"))?;
    Ok(Number { resource, tickets })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// No line is longer than the terminal is wide. None ends early: the word that follows would not have fitted. So says each
    /// line of a paragraph, since no other line begins at the edge behind one that does.
    #[test]
    fn help_is_filled_to_the_terminals_width() {
        fn hold(command: &mut Definition, width: usize) {
            let help = command.clone().term_width(width).render_long_help().to_string();
            let text = help.split("Usage:").next().unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                assert!(pair[0].chars().count() <= width, "{}: {}", command.get_name(), pair[0]);
                let in_paragraph = pair.iter().all(|line| !line.is_empty() && !line.starts_with(' '));
                let word = pair[1].split(' ').next().unwrap_or_default().chars().count();
                let room = width.saturating_sub(pair[0].chars().count());
                assert!(
                    !in_paragraph || room < word + 1,
                    "{}: {} | {}",
                    command.get_name(),
                    pair[0],
                    pair[1]
                );
            }
            for below in command.get_subcommands_mut() {
                hold(below, width);
            }
        }
        for width in [80, 90, 100] {
            let mut command = Cli::command();
            command.build();
            hold(&mut command, width);
        }
    }
}
