//! Loads the scheduler into the running kernel, sets up units, and prints their accounts.
//!
//! usage: load [--unit NAME=CGROUP:WEIGHT[:FLAGS]]... [--at-once CGROUP]... [--own CPUS=NAME]... [--recall
//! now|tick]
//!             [--slice MILLISECONDS] [--for SECONDS] [--timeout MILLISECONDS]
//!        load --break CGROUP
//!
//! `--unit` makes a unit of the tasks in a control group. A NAME of the form PARENT/NAME makes a sub-unit of
//! the earlier unit PARENT. FLAGS are `lend`, `borrow` and a discipline such as `lottery`, separated by
//! commas. `--at-once` puts the tasks of a control group into the kernel's own unit, for light tasks that
//! must not wait. `--own` gives CPUs, such as `0-3,6`, to a unit. CPUs without an owner are time-shared by
//! weight. Without `--for`, the scheduler runs until the standard input of this program ends. Other settings
//! are the daemon's: the slice, unless `--slice` sets it, and which CPUs are near each other.
//!
//! Two options test how the kernel ends the scheduler. `--timeout` sets how long a task may wait before the
//! kernel ends the scheduler. `--break` loads nothing: it makes the running scheduler, which any program may
//! have loaded, use a nonexistent queue for every task that enters that control group.
//!
//! Prints `ready` when the scheduler is attached, and at the end a line per unit; if the kernel ended the
//! scheduler, also why.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_dispatch::in_kernel::Scheduler;
use commonhold_dispatch::{
    BORROWS, Cause, Discipline, KERNEL, LENDS, NOBODY, Recall, Settings, UnitRules, sabotage,
};
use commonhold_live::apply::kernel;

/// How often to check whether the kernel has ended the scheduler.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The names of the built-in units, which have the numbers 0 and 1: the kernel's, and that of all processes
/// in no other unit.
const BUILT_IN: [&str; 2] = ["kernel", "others"];

type Failure = Box<dyn std::error::Error>;

/// The value of a `--unit` option.
struct UnitOption {
    name: String,
    cgroup: String,
    weight: u32,
    flags: u32,
    discipline: Discipline,
}

/// The parsed command line.
struct Options {
    units: Vec<UnitOption>,
    at_once: Vec<String>,
    /// CPUs, each list with the name of its owner.
    owners: Vec<(Vec<u32>, String)>,
    recall: Recall,
    slice_ms: Option<u64>,
    seconds: Option<u64>,
    timeout_ms: Option<u32>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.as_slice() {
        [word, cgroup] if word == "--break" => take_queue_away(cgroup),
        _ => parse_options(words.into_iter()).and_then(|options| run(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn take_queue_away(cgroup: &str) -> Result<(), Failure> {
    Ok(sabotage::take_queue_away(number_of(cgroup)?)?)
}

fn parse_options(mut words: impl Iterator<Item = String>) -> Result<Options, Failure> {
    let mut options = Options {
        units: Vec::new(),
        at_once: Vec::new(),
        owners: Vec::new(),
        recall: Recall::Now,
        slice_ms: None,
        seconds: None,
        timeout_ms: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--unit" => options.units.push(parse_unit(&value()?)?),
            "--at-once" => options.at_once.push(value()?),
            "--own" => options.owners.push(parse_owner(&value()?)?),
            "--recall" => options.recall = parse_recall(&value()?)?,
            "--slice" => options.slice_ms = Some(value()?.parse()?),
            "--for" => options.seconds = Some(value()?.parse()?),
            "--timeout" => options.timeout_ms = Some(value()?.parse()?),
            _ => return Err(format!("{word} is not an option: see the head of examples/load.rs").into()),
        }
    }
    Ok(options)
}

fn parse_unit(value: &str) -> Result<UnitOption, Failure> {
    let wrong = || format!("--unit {value}: expected NAME=CGROUP:WEIGHT[:lend,borrow,DISCIPLINE]");
    let (name, rest) = value.split_once('=').ok_or_else(wrong)?;
    let mut parts = rest.split(':');
    let (cgroup, weight) = parts.next().zip(parts.next()).ok_or_else(wrong)?;
    let (mut flags, mut discipline) = (0, Discipline::Stride);
    for flag in parts.next().unwrap_or_default().split(',').filter(|flag| !flag.is_empty()) {
        match (flag, Discipline::ALL.iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(flag))) {
            ("lend", _) => flags |= LENDS,
            ("borrow", _) => flags |= BORROWS,
            (_, Some(known)) => discipline = *known,
            _ => return Err(wrong().into()),
        }
    }
    Ok(UnitOption { name: name.into(), cgroup: cgroup.into(), weight: weight.parse()?, flags, discipline })
}

fn parse_owner(value: &str) -> Result<(Vec<u32>, String), Failure> {
    let (list, name) = value.split_once('=').ok_or_else(|| format!("--own {value}: expected CPUS=NAME"))?;
    Ok((parse_cpus(list)?, name.into()))
}

fn parse_recall(value: &str) -> Result<Recall, Failure> {
    match value {
        "now" => Ok(Recall::Now),
        "tick" => Ok(Recall::Tick),
        _ => Err(format!("--recall {value}: expected now or tick").into()),
    }
}

/// Parses CPU numbers in the kernel's format, such as `0-3,6`.
fn parse_cpus(list: &str) -> Result<Vec<u32>, Failure> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>()?..=last.parse::<u32>()?);
    }
    Ok(cpus)
}

fn run(options: &Options) -> Result<(), Failure> {
    let names: Vec<&str> =
        BUILT_IN.into_iter().chain(options.units.iter().map(|unit| unit.name.as_str())).collect();
    let mut scheduler = set_up(options, &names)?;
    scheduler.attach()?;
    for (cpus, name) in &options.owners {
        let unit = number_of_unit(&names, name)?;
        for &cpu in cpus {
            scheduler.own(cpu, unit)?;
        }
    }
    println!("ready");
    wait(options, &scheduler);
    let end = scheduler.ended();
    scheduler.detach();
    for (id, name) in (0..).zip(&names) {
        report(&scheduler, id, name);
    }
    end.map_or(Ok(()), |end| {
        Err(format!("the kernel ended the scheduler: {}: {} (kind {})", end.reason, end.message, end.kind)
            .into())
    })
}

/// Loads the scheduler and fills its tables. `names` has the names of all units by number.
fn set_up(options: &Options, names: &[&str]) -> Result<Scheduler, Failure> {
    let defaults = kernel::settings(u32::try_from(names.len())?)?;
    let slice_ns = options.slice_ms.map_or(defaults.slice_ns, |ms| ms * 1_000_000);
    let settings = Settings {
        slice_ns,
        preempt_ns: Settings::preempt_ns(slice_ns),
        recall: options.recall,
        disciplined: options.units.iter().any(|unit| unit.discipline != Discipline::Stride),
        seated: false,
        gated: false,
        ..defaults
    };
    let mut scheduler = match options.timeout_ms {
        Some(timeout_ms) => Scheduler::load_impatient(&settings, timeout_ms)?,
        None => Scheduler::load(&settings)?,
    };
    for id in 0..2 {
        scheduler
            .set_unit(id, UnitRules { parent: NOBODY, weight: 100, flags: BORROWS, ..UnitRules::USUAL })?;
    }
    for (id, unit) in (2..).zip(&options.units) {
        let UnitOption { weight, flags, discipline, .. } = *unit;
        let parent = match unit.name.rsplit_once('/') {
            Some((parent, _)) => number_of_unit(names, parent)?,
            None => NOBODY,
        };
        scheduler.set_unit(id, UnitRules { parent, weight, flags, discipline, ..UnitRules::USUAL })?;
        scheduler.admit(number_of(&unit.cgroup)?, id)?;
    }
    for cgroup in &options.at_once {
        scheduler.admit(number_of(cgroup)?, KERNEL)?;
    }
    Ok(scheduler)
}

fn number_of_unit(names: &[&str], name: &str) -> Result<u32, Failure> {
    let number =
        names.iter().position(|known| *known == name).ok_or_else(|| format!("no unit is named {name}"))?;
    Ok(u32::try_from(number)?)
}

/// A control group's number, which is the inode of its directory.
fn number_of(cgroup: &str) -> Result<u64, Failure> {
    Ok(fs::metadata(cgroup)
        .map_err(|error| format!("{cgroup}: {error}; name a control group's directory"))?
        .ino())
}

/// Waits until the time is up, the input ends, or the kernel ends the scheduler.
fn wait(options: &Options, scheduler: &Scheduler) {
    static INPUT_ENDED: AtomicBool = AtomicBool::new(false);
    let begun = Instant::now();
    if options.seconds.is_none() {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink());
            INPUT_ENDED.store(true, Ordering::Release);
        });
    }
    let must_end = || match options.seconds {
        Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
        None => INPUT_ENDED.load(Ordering::Acquire),
    };
    while !must_end() && scheduler.ended().is_none() {
        thread::sleep(CHECK_INTERVAL);
    }
}

fn report(scheduler: &Scheduler, id: u32, name: &str) {
    let (unit, account) = (scheduler.unit(id), scheduler.account_of(id));
    println!(
        "unit {name} used_ns {} lent_ns {} borrowed_ns {} visited_ns {} visiting_ns {} waited_higher_ns {} rescues {} \
         switches {} recalls {} recall_mean_ns {} recall_max_ns {} recall_p50_ns {} recall_p99_ns {} moved_cache {} \
         moved_node {} moved_far {} strays {}",
        account.used_ns(),
        account.lent_ns,
        account.borrowed_ns,
        account.visited_ns,
        account.visiting_ns,
        account.waited_ns(Cause::Higher),
        account.rescues,
        account.switches,
        unit.recalls,
        unit.recall_ns.checked_div(unit.recalls).unwrap_or(0),
        unit.recall_ns_max,
        unit.call_backs().within_ns(500_000).unwrap_or(0),
        unit.call_backs().within_ns(990_000).unwrap_or(0),
        account.moved_cache,
        account.moved_node,
        account.moved_far,
        account.strays,
    );
}
