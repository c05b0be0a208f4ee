//! Reads `workload.toml`: the jobs of the simulated machine.
//!
//! Names are numbered first, so that a step may name what the text declares later. A reference to something that does
//! not exist is reported and left out. [`check`] finds out whether the values fit each other, the machine and the
//! contract.

use commonhold_contract::document::{Document, Named};
use commonhold_contract::{Contract, Diagnostic, UnitId, nearest};
use toml::de::DeTable;

use super::changes;
use super::check::{self, Places};
use super::keys::{FILE, JOB, LOCK, PROGRAM, WORKLOAD};
use super::limits::{CHANGES_MAX, FILES_MAX, HORIZON_MAX_NS, JOBS_MAX, LOCKS_MAX, PROGRAMS_MAX};
use super::model::{File, Hardware, Job, Lock, Program, Workload};
use super::steps::{self, Known};
use super::values::{Entry, Names, Parsed, Span, missing, number, number_32, read, tables};
use crate::Time;

/// When the simulation ends at the latest where a workload does not say.
const HORIZON_NS: Time = 3_600_000_000_000;

/// When a program comes back to each page where it does not say.
const REUSE_NS: Time = 300_000_000;

/// Reads a workload for a contract and a machine, and finds every mistake in one go.
pub fn parse_workload(text: &str, contract: &Contract, hardware: &Hardware) -> Parsed<Workload> {
    read(text, &WORKLOAD, |document, entries| {
        let disks = Names::new("disk", hardware.disks.iter().map(|disk| disk.name.as_str()));
        let (workload, places) = workload(document, &entries, contract, &disks);
        check::workload(document, &workload, &places, hardware);
        workload
    })
}

fn workload(
    document: &mut Document,
    entries: &[Entry],
    contract: &Contract,
    disks: &Names,
) -> (Workload, Places) {
    let mut list = |name: &str, max| {
        let entry = entries.iter().find(|entry| entry.key.name == name);
        entry.map(|entry| tables(document, entry, name, max)).unwrap_or_default()
    };
    let files = list("file", FILES_MAX);
    let locks = list("lock", LOCKS_MAX);
    let programs = list("program", PROGRAMS_MAX);
    let jobs = list("job", JOBS_MAX);
    let changes = list("change", CHANGES_MAX);
    let offers = list("offer", CHANGES_MAX);
    let known = Known {
        files: Names::new("file", files.iter().map(|(named, _)| named.name)),
        locks: Names::new("lock", locks.iter().map(|(named, _)| named.name)),
        programs: Names::new("program", programs.iter().map(|(named, _)| named.name)),
    };
    let (mut workload, mut places) = (Workload::default(), Places::default());
    workload.horizon_ns = horizon(document, entries, &mut places);
    for (named, table) in &files {
        workload.files.push(file(document, named, table, disks));
        places.files.push(named.at.clone());
    }
    for (named, table) in &locks {
        workload.locks.push(lock(document, named, table));
        places.locks.push(named.at.clone());
    }
    for (named, table) in &programs {
        workload.programs.push(program(document, named, table, &known, &mut places));
    }
    for (named, table) in &jobs {
        let read = Jobs { contract, disks, programs: &known.programs };
        workload.jobs.extend(read.job(document, named, table, &mut places));
    }
    let tables = [&changes[..], &offers[..]];
    (workload.changes, workload.awaited) = changes::read(document, tables, contract, &workload);
    (workload, places)
}

fn horizon(document: &mut Document, entries: &[Entry], places: &mut Places) -> Time {
    let Some(entry) = entries.iter().find(|entry| entry.key.name == "horizon") else {
        let message = "the workload has no `horizon`: the simulation ends after 1h at the latest";
        let help = "write `horizon = \"1h\"`, or another time";
        document.report(Diagnostic::warning("default-horizon", 0..0, message).help(help));
        return HORIZON_NS;
    };
    places.horizon = document.span(entry.value);
    // Behind the latest there is nothing: so one mistake is not followed by many.
    number(document, entry).unwrap_or(HORIZON_MAX_NS)
}

fn file(document: &mut Document, named: &Named, table: &DeTable, disks: &Names) -> File {
    let mut file = File {
        name: named.name.to_owned(),
        bytes: 0,
        disk: None,
        shared: false,
        fragment_bytes: 0,
        buffer_bytes: 0,
    };
    let mut sized = false;
    for entry in document.entries(&FILE, table) {
        match entry.key.name {
            "size" => {
                sized = true;
                // A file of no known size holds whatever is read from it.
                file.bytes = number(document, &entry).unwrap_or(u64::MAX);
            }
            "disk" => file.disk = disks.find(document, &entry),
            "shared" => file.shared = document.switch(&entry).unwrap_or(false),
            "buffer" => file.buffer_bytes = number(document, &entry).unwrap_or(0),
            _ => file.fragment_bytes = number(document, &entry).unwrap_or(0),
        }
    }
    if !sized {
        file.bytes = u64::MAX;
        missing(document, named.at.clone(), &format!("file `{}`", named.name), "size", "\"4MiB\"");
    }
    file
}

fn lock(document: &mut Document, named: &Named, table: &DeTable) -> Lock {
    let name = named.name;
    let mut lock = Lock { name: name.to_owned(), readers: false, inherit: false, spins: false, line_ns: 0 };
    let mut places: [Option<Span>; 2] = [None, None];
    for entry in document.entries(&LOCK, table) {
        let place = document.span(entry.value);
        match entry.key.name {
            "readers" => lock.readers = document.switch(&entry).unwrap_or(false),
            "inherit" => {
                lock.inherit = document.switch(&entry).unwrap_or(false);
                places[0] = Some(place);
            }
            "spins" => lock.spins = document.switch(&entry).unwrap_or(false),
            _ => {
                lock.line_ns = number(document, &entry).unwrap_or(0);
                places[1] = Some(place);
            }
        }
    }
    let [inherit, line] = places;
    if let Some(place) = inherit.filter(|_| lock.inherit && lock.spins) {
        let message =
            format!("lock `{name}` spins: a process that waits for it needs its CPU, and lends none");
        let help = "remove `inherit` or `spins`";
        document.report(Diagnostic::error("spins-and-lends", place, message).help(help));
    }
    if let Some(place) = line.filter(|_| lock.line_ns > 0 && !lock.spins) {
        let message =
            format!("lock `{name}` has a `line`, and does not spin: nobody waits for its cache line");
        document.report(Diagnostic::warning("line-of-no-spin", place, message).help("add `spins = true`"));
    }
    lock
}

fn program(
    document: &mut Document,
    named: &Named,
    table: &DeTable,
    known: &Known,
    places: &mut Places,
) -> Program {
    let mut program = Program {
        name: named.name.to_owned(),
        memory_bytes: 0,
        reuse_ns: REUSE_NS,
        hot_bytes: 0,
        stalled: 0,
        shares: 0,
        of_first: 0,
        is_job: false,
        ops: Vec::new(),
    };
    let mut place = check::ProgramPlace { name: named.at.clone(), steps: Vec::new(), partial: true };
    let (mut said, mut of_first, mut wrong_shares) = (false, None, false);
    for entry in document.entries(&PROGRAM, table) {
        match entry.key.name {
            "memory" => program.memory_bytes = number(document, &entry).unwrap_or(0),
            "reuse" => program.reuse_ns = number(document, &entry).unwrap_or(REUSE_NS),
            "hot" => program.hot_bytes = number(document, &entry).unwrap_or(0),
            "shares" => {
                let shares = number_32(document, &entry);
                wrong_shares = shares.is_none();
                program.shares = shares.unwrap_or(0);
            }
            "of_first" => {
                program.of_first = number_32(document, &entry).unwrap_or(0);
                of_first = Some(document.span(entry.value));
            }
            "job" => program.is_job = document.switch(&entry).unwrap_or(false),
            "stalled" => program.stalled = number_32(document, &entry).unwrap_or(0),
            _ => {
                said = true;
                let steps = steps::read(document, known, &entry);
                (program.ops, place.steps, place.partial) = (steps.ops, steps.places, steps.partial);
            }
        }
    }
    if let Some(place) = of_first.filter(|_| program.shares == 0 && !wrong_shares) {
        let message = format!("program `{}` has `of_first`, and shares no data", named.name);
        let help = "add `shares`, of which `of_first` is a part";
        document.report(Diagnostic::warning("part-of-nothing", place, message).help(help));
    }
    if !said {
        let what = format!("program `{}`", named.name);
        missing(document, named.at.clone(), &what, "do", "[{ cpu = \"1s\" }]");
    }
    places.programs.push(place);
    program
}

/// What jobs may name.
struct Jobs<'a> {
    contract: &'a Contract,
    disks: &'a Names,
    programs: &'a Names,
}

impl Jobs<'_> {
    /// `None` if what it belongs to or runs is not known.
    fn job(
        &self,
        document: &mut Document,
        named: &Named,
        table: &DeTable,
        places: &mut Places,
    ) -> Option<Job> {
        let (mut job_unit, mut program) = (None, None);
        let mut job = Job {
            name: named.name.to_owned(),
            unit: UnitId::SHARED,
            program: 0,
            start_ns: 0,
            count: 1,
            every_ns: 0,
            deadline_ns: None,
            disk: 0,
            background: false,
        };
        let mut place = check::JobPlace::at(named.at.clone());
        let mut said = [("unit", "\"physics\"", false), ("program", "\"hog\"", false)];
        for entry in document.entries(&JOB, table) {
            let name = entry.key.name;
            for (key, _, said) in &mut said {
                *said |= *key == name;
            }
            place.mark(name, document.span(entry.value));
            match name {
                "unit" => job_unit = unit(document, &entry, self.contract, "job belongs to"),
                "program" => program = self.programs.find(document, &entry),
                "start" => job.start_ns = number(document, &entry).unwrap_or(0),
                "count" => job.count = number_32(document, &entry).unwrap_or(1),
                "every" => job.every_ns = number(document, &entry).unwrap_or(0),
                "deadline" => job.deadline_ns = number(document, &entry),
                "disk" => job.disk = self.disks.find(document, &entry).unwrap_or(0),
                _ => job.background = document.switch(&entry).unwrap_or(true),
            }
        }
        for (key, example, _) in said.iter().filter(|(_, _, said)| !said) {
            missing(document, named.at.clone(), &format!("job `{}`", named.name), key, example);
        }
        (job.unit, job.program) = (job_unit?, program?);
        places.jobs.push(place);
        Some(job)
    }
}

/// The unit that a value names; `kernel` is refused.
pub(super) fn unit(
    document: &mut Document,
    entry: &Entry,
    contract: &Contract,
    what: &str,
) -> Option<UnitId> {
    let path = document.string(entry, "the path of a unit")?;
    let (message, help) = match contract.find(path) {
        Some(UnitId::KERNEL) => {
            let message = format!("no {what} the built-in unit `kernel`");
            (message, "name a unit of the contract, or \"shared\"".to_owned())
        }
        Some(unit) => return Some(unit),
        None => {
            let paths = || contract.held().map(|id| contract.unit(id).path.as_str());
            let help = match nearest(path, paths()) {
                Some(known) => format!("did you mean \"{known}\"?"),
                None => format!("the units of the contract are {}", some(paths())),
            };
            (format!("there is no unit `{path}` in the contract"), help)
        }
    };
    let span: Span = document.span(entry.value);
    document.report(Diagnostic::error("unknown-unit", span, message).help(help));
    None
}

/// The first few of many names.
fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.take(9).collect();
    match names.len() {
        0 => return "only \"shared\": it declares none".to_owned(),
        9 => names[8] = "..",
        _ => {}
    }
    names.join(", ")
}
