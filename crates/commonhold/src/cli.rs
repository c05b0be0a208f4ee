//! The command line: the one definition that help, man pages and completions come from.
// Comments of items are the help that users read. One of an item that has no help would replace what is shown for it.
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

/// The backends that this binary has, the best first. `kernel` is left out where it was built without clang.
pub const BACKENDS: &str = if BUILT_IN { "kernel, cgroup, user" } else { "cgroup, user" };

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
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
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
    /// Measure how a program scales with CPUs, where its time goes, and what is to blame
    #[command(disable_help_flag = true)]
    Scale(Elsewhere),
    /// Simulate a scenario: a contract, a machine and a workload
    #[command(disable_help_flag = true)]
    Sim(Elsewhere),
    /// Reproduce the published results that the policies come from
    #[command(disable_help_flag = true)]
    Claims(Elsewhere),
    /// Write man pages, completions, the contract's schema, or a workload from a recording
    #[command(disable_help_flag = true)]
    Generate(Elsewhere),
    /// Waits for a daemon to end, then undoes what it did.
    #[command(hide = true)]
    Caretaker(Caretaker),
    /// One piece of the demonstration's work.
    #[command(hide = true)]
    DemoTask(DemoTask),
}

/// The arguments of a command that another program has, beside this one: see the module `program_beside`.
#[derive(Debug, Args)]
pub struct Elsewhere {
    /// What that program reads; its own --help explains them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<OsString>,
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
pub struct Check {
    /// The contract, a TOML file (see `commonhold generate schema` for what it may say)
    pub contract: PathBuf,
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
pub struct Calibrate {
    /// A folder on a file system of the disk
    #[arg(required_unless_present = "bus")]
    pub folder: Option<PathBuf>,
    /// Measure the memory bus
    #[arg(long, conflicts_with = "folder")]
    pub bus: bool,
    /// How long to measure each of the seven kinds of requests, or one CPU and all of them; a disk with a larger cache needs
    /// longer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
pub struct Run {
    /// The contract
    pub contract: PathBuf,
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
    /// The scheme, whatever the contract says
    #[arg(long, value_enum)]
    pub scheme: Option<SchemeChoice>,
    /// Try exchanges of tickets for all units, whatever the contract says (`negotiate`). One is kept while both sides get on faster
    #[arg(long)]
    pub negotiate: bool,
    /// Leave the kernel's io.cost as it is. Without this flag, `run` switches io.cost on for the disks that `calibrate`
    /// measured, until it ends; weights then hold these disks
    #[arg(long)]
    pub no_io_cost: bool,
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
/// The command replaces this process. So signals to this process number reach the command, and its exit code is the one you
/// see. If no daemon runs, or you may not enter that unit, nothing is started.
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
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Tell which unit this process is in, and which rule put it there
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub place: Place,
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
pub struct Tickets {
    #[command(subcommand)]
    pub what: Option<TicketsWhat>,
    /// Show this unit as a currency [default: all units]
    pub unit: Option<String>,
    /// Print a contract that says what is in force now, with tickets as they were changed
    ///
    /// A run under it gives units the same rights. What no contract can say is in its comments: exchanges, offers, and tickets
    /// of units that `each` makes.
    #[arg(long, conflicts_with_all = ["unit", "json"])]
    pub as_contract: bool,
    #[command(flatten)]
    pub common: Common,
}

/// Set how many tickets a unit has, of several resources at once
///
/// The currency of the unit around it issues them: at the top, the machine's own. All numbers are set, or none. The others in
/// that currency hold less of what it is worth then, or more. Nobody outside it does.
///
/// With `--from`, another currency issues them, and the unit holds them beside its own. 0 takes them back.
#[derive(Debug, Args)]
pub struct Fund {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and all tickets of it that the unit has then: `cpu=200`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub tickets: Vec<Number>,
    /// The currency that issues them, by its unit, or `/` for the machine's own [default: that of the unit around it]
    #[arg(long, value_name = "CURRENCY")]
    pub from: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// Issue more tickets to a unit
///
/// The currency of the unit around it issues them, so that each ticket there is worth less: inflation. It is felt in that
/// currency alone. Of several resources, all are issued or none.
#[derive(Debug, Args)]
pub struct Issue {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and how many tickets more: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub tickets: Vec<Number>,
    #[command(flatten)]
    pub common: Common,
}

/// Take tickets back from a unit
///
/// The currency of the unit around it takes them, so that each other ticket there is worth more: deflation. It is felt in that
/// currency alone. Of several resources, all are taken back or none. A unit keeps one, and what it lent.
#[derive(Debug, Args)]
pub struct Revoke {
    /// The unit, by its path: `physics/night-batch`
    pub unit: String,
    /// A resource, and how many tickets fewer: `cpu=50`
    #[arg(value_name = "RESOURCE=N", required = true, value_parser = number_of)]
    pub tickets: Vec<Number>,
    #[command(flatten)]
    pub common: Common,
}

/// What every command about tickets takes.
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
pub struct Offer {
    /// The unit that offers, by its path [default: the one that this command runs in]
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<String>,
    /// What it gives: a resource and tickets, such as disk:300; or an amount of what is reserved for it, such as memory:2GiB
    #[arg(long, value_name = "RESOURCE:N")]
    pub give: commonhold_policy::rights::Offer,
    /// What it wants for that, such as cpu:200
    #[arg(long, value_name = "RESOURCE:N")]
    pub want: commonhold_policy::rights::Offer,
    /// The least of what it wants that it takes, for as much less of what it gives [default: all]
    #[arg(long, value_name = "RESOURCE:N")]
    pub at_least: Option<commonhold_policy::rights::Offer>,
    /// Only with this unit
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

/// Show the offers that stand, and exchanges of tickets
///
/// Of exchanges those in force are shown, and the last hundred that ended.
#[derive(Debug, Args)]
pub struct Offers {
    #[command(flatten)]
    pub common: Common,
}

/// Take an offer back, or end an exchange
///
/// The members of its units may, and so may root. After an exchange every unit has the tickets that it had before.
#[derive(Debug, Args)]
pub struct Cancel {
    /// The offer's or the exchange's number, as `commonhold offers` shows it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub number: Option<u64>,
    /// All offers of this unit that stand, and all exchanges that it is in
    #[arg(long, value_name = "UNIT")]
    pub all: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// Show what isolation and sharing are worth on this machine
///
/// Holds the contract while real work runs. A light unit's job runs alone first, then beside a heavy unit under each scheme:
/// smp, quota and isolate. The response times are compared. Writes a report with plots. Ctrl-C ends it, the daemon and the jobs.
#[derive(Debug, Args)]
pub struct Demo {
    /// The contract; it must have the units `light` and `heavy` [default: the built-in examples/two-groups.toml]
    pub contract: Option<PathBuf>,
    /// What holds CPU
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
    /// How long the light unit's job takes alone; all other work is scaled to it
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub seconds: u32,
    /// Run each scheme this many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
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

/// Where a daemon and its clients meet.
#[derive(Debug, Args)]
pub struct Place {
    /// The daemon's directory [default for root: /run/commonhold; for others: `$XDG_RUNTIME_DIR/commonhold`, or
    /// /tmp/commonhold-UID where there is no such directory; commands that ask a daemon then try root's]
    #[arg(long, value_name = "DIR", env = "COMMONHOLD_DIR", hide_env_values = true)]
    pub directory: Option<PathBuf>,
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

/// How members are written, below `check --help`.
fn members() -> String {
    let forms = MEMBER_FORMS.iter().map(|form| (form.forms.join(", "), form.who));
    let rows: Vec<String> = forms.map(|(forms, who)| format!("  {forms}\n      processes {who}\n")).collect();
    let rows = rows.concat();
    let rules = MEMBER_RULES.join("\n\n");
    format!("Members of a unit, as in `members = [\"group:physics\", \"user:ana\"]`:\n{rows}\n{rules}")
}

/// So many tickets of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    pub resource: commonhold_contract::Resource,
    pub tickets: u64,
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
