//! Reads `workload.toml`: the files, locks, programs and jobs of the simulated machine.
//!
//! Names are numbered first, so that a step may name a file, lock or program that the text declares later. A
//! reference to an undeclared name is reported, and the step or job that has it is left out. [`check`] then
//! finds values that contradict each other, the machine or the contract.

use commonhold_contract::document::{Document, Named};
use commonhold_contract::{Contract, Diagnostic, UnitId, nearest};
use toml::de::DeTable;

use super::changes;
use super::check::{self, Places};
use super::hotplug;
use super::keys::{EVENT, FILE, JOB, LOCK, PROGRAM, TIMER, Table, WORKLOAD};
use super::limits::{CHANGES_MAX, EVENTS_MAX, FILES_MAX, HORIZON_MAX_NS, JOBS_MAX, LOCKS_MAX, PROGRAMS_MAX};
use super::model::{Event, File, Hardware, Job, Lock, Program, Timer, Workload};
use super::steps::{self, Known};
use super::values::{Entry, Names, Parsed, Span, missing, number, number_32, read, tables};
use crate::Time;

/// Default horizon: the simulation ends no later than this.
const HORIZON_NS: Time = 3_600_000_000_000;

/// Default `reuse`: CPU time in which a program touches each page of its working set once.
const REUSE_NS: Time = 300_000_000;

/// Reads a workload for a contract and a machine. One pass reports every mistake.
pub fn parse_workload(text: &str, contract: &Contract, hardware: &Hardware) -> Parsed<Workload> {
    read(text, &WORKLOAD, |document, entries| {
        let (workload, places) = workload(document, &entries, contract, hardware);
        check::workload(document, &workload, &places, hardware);
        workload
    })
}

fn workload(
    document: &mut Document,
    entries: &[Entry],
    contract: &Contract,
    hardware: &Hardware,
) -> (Workload, Places) {
    let disks = &Names::new("disk", hardware.disks.iter().map(|disk| disk.name.as_str()));
    let mut named_tables = |name: &str, max| {
        let entry = entries.iter().find(|entry| entry.key.name == name);
        entry.map(|entry| tables(document, entry, name, max)).unwrap_or_default()
    };
    let files = named_tables("file", FILES_MAX);
    let locks = named_tables("lock", LOCKS_MAX);
    let events = named_tables("event", EVENTS_MAX);
    let timers = named_tables("timer", EVENTS_MAX);
    let programs = named_tables("program", PROGRAMS_MAX);
    let jobs = named_tables("job", JOBS_MAX);
    let changes = named_tables("change", CHANGES_MAX);
    let offers = named_tables("offer", CHANGES_MAX);
    let cpus = named_tables("cpus", CHANGES_MAX);
    let known = Known {
        files: Names::new("file", files.iter().map(|(named, _)| named.name)),
        locks: Names::new("lock", locks.iter().map(|(named, _)| named.name)),
        events: Names::new("event", events.iter().map(|(named, _)| named.name)),
        timers: Names::new("timer", timers.iter().map(|(named, _)| named.name)),
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
    for (named, table) in &events {
        let counts = only_switch(document, &EVENT, table);
        workload.events.push(Event { name: named.name.to_owned(), counts });
        places.events.push(named.at.clone());
    }
    for (named, table) in &timers {
        let shared = only_switch(document, &TIMER, table);
        workload.timers.push(Timer { name: named.name.to_owned(), shared });
        places.timers.push(named.at.clone());
    }
    for (named, table) in &programs {
        workload.programs.push(program(document, named, table, &known, &mut places));
    }
    for (named, table) in &jobs {
        let reader = JobReader { contract, disks, programs: &known.programs };
        workload.jobs.extend(reader.job(document, named, table, &mut places));
    }
    let tables = [&changes[..], &offers[..]];
    (workload.changes, workload.awaited) = changes::read(document, tables, contract, &workload);
    workload.online = hotplug::read(document, &cpus, hardware, workload.horizon_ns);
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
    // After an unreadable horizon, assume the longest: else every job would be reported as starting too late.
    number(document, entry).unwrap_or(HORIZON_MAX_NS)
}

fn file(document: &mut Document, named: &Named, table: &DeTable, disks: &Names) -> File {
    let mut file = File {
        name: named.name.to_owned(),
        bytes: 0,
        disk: None,
        shared: false,
        fragment_bytes: 0,
        gap_bytes: 0,
        buffer_bytes: 0,
        hot: 0,
        hot_reads: 0,
    };
    let (mut has_size, mut hot_span) = (false, None);
    for entry in document.entries(&FILE, table) {
        if entry.key.name.starts_with("hot") {
            hot_span = Some(document.span(entry.value));
        }
        match entry.key.name {
            "size" => {
                has_size = true;
                // An unreadable size counts as the largest, so that no access is reported as beyond the
                // file's end.
                file.bytes = number(document, &entry).unwrap_or(u64::MAX);
            }
            "disk" => file.disk = disks.find(document, &entry),
            "shared" => file.shared = document.switch(&entry).unwrap_or(false),
            "hot" => file.hot = number_32(document, &entry).unwrap_or(0),
            "hot_reads" => file.hot_reads = number_32(document, &entry).unwrap_or(0),
            "gap" => file.gap_bytes = number(document, &entry).unwrap_or(0),
            "buffer" => file.buffer_bytes = number(document, &entry).unwrap_or(0),
            _ => file.fragment_bytes = number(document, &entry).unwrap_or(0),
        }
    }
    if let Some(span) = hot_span.filter(|_| (file.hot == 0) != (file.hot_reads == 0)) {
        let message = format!(
            "file `{}` has one of `hot` and `hot_reads`: all of its pages are read alike",
            named.name
        );
        let help = "add the other, or remove this one";
        document.report(Diagnostic::warning("half-of-hot", span, message).help(help));
    }
    if !has_size {
        file.bytes = u64::MAX;
        missing(document, named.at.clone(), &format!("file `{}`", named.name), "size", "\"4MiB\"");
    }
    file
}

/// Reads a table whose only key is a switch, which is off by default.
fn only_switch(document: &mut Document, keys: &'static Table, table: &DeTable) -> bool {
    let entries = document.entries(keys, table);
    entries.first().and_then(|entry| document.switch(entry)).unwrap_or(false)
}

fn lock(document: &mut Document, named: &Named, table: &DeTable) -> Lock {
    let name = named.name;
    let mut lock = Lock {
        name: name.to_owned(),
        readers: false,
        inherit: false,
        spins: false,
        unfair: false,
        line_ns: 0,
    };
    let (mut inherit_span, mut unfair_span, mut line_span): (Option<Span>, Option<Span>, Option<Span>) =
        Default::default();
    for entry in document.entries(&LOCK, table) {
        let span = document.span(entry.value);
        match entry.key.name {
            "readers" => lock.readers = document.switch(&entry).unwrap_or(false),
            "inherit" => {
                lock.inherit = document.switch(&entry).unwrap_or(false);
                inherit_span = Some(span);
            }
            "spins" => lock.spins = document.switch(&entry).unwrap_or(false),
            "unfair" => {
                lock.unfair = document.switch(&entry).unwrap_or(false);
                unfair_span = Some(span);
            }
            _ => {
                lock.line_ns = number(document, &entry).unwrap_or(0);
                line_span = Some(span);
            }
        }
    }
    if let Some(span) = inherit_span.filter(|_| lock.inherit && lock.spins) {
        let message =
            format!("lock `{name}` spins: a process that waits for it needs its CPU, and lends none");
        let help = "remove `inherit` or `spins`";
        document.report(Diagnostic::error("spins-and-lends", span, message).help(help));
    }
    if let Some(span) = unfair_span.filter(|_| lock.unfair && (!lock.spins || lock.line_ns == 0)) {
        let message =
            format!("lock `{name}` is `unfair`, but no cache line travels while others wait for it");
        let help = "add `spins = true` and a `line`";
        document.report(Diagnostic::warning("unfair-without-line", span, message).help(help));
    }
    if let Some(span) = line_span.filter(|_| lock.line_ns > 0 && !lock.spins) {
        let message =
            format!("lock `{name}` has a `line`, and does not spin: nobody waits for its cache line");
        document.report(Diagnostic::warning("line-of-no-spin", span, message).help("add `spins = true`"));
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
        resident: false,
        reuse_ns: REUSE_NS,
        hot_bytes: 0,
        stalled: 0,
        shares: 0,
        of_first: 0,
        is_job: false,
        ops: Vec::new(),
    };
    let mut place = check::ProgramPlace { name: named.at.clone(), steps: Vec::new(), partial: true };
    let (mut has_steps, mut of_first_span, mut is_shares_wrong) = (false, None, false);
    for entry in document.entries(&PROGRAM, table) {
        match entry.key.name {
            "memory" => program.memory_bytes = number(document, &entry).unwrap_or(0),
            "resident" => program.resident = document.switch(&entry).unwrap_or(false),
            "reuse" => program.reuse_ns = number(document, &entry).unwrap_or(REUSE_NS),
            "hot" => program.hot_bytes = number(document, &entry).unwrap_or(0),
            "shares" => {
                let shares = number_32(document, &entry);
                is_shares_wrong = shares.is_none();
                program.shares = shares.unwrap_or(0);
            }
            "of_first" => {
                program.of_first = number_32(document, &entry).unwrap_or(0);
                of_first_span = Some(document.span(entry.value));
            }
            "job" => program.is_job = document.switch(&entry).unwrap_or(false),
            "stalled" => program.stalled = number_32(document, &entry).unwrap_or(0),
            _ => {
                has_steps = true;
                let steps = steps::read(document, known, &entry);
                (program.ops, place.steps, place.partial) = (steps.ops, steps.places, steps.partial);
            }
        }
    }
    if let Some(span) = of_first_span.filter(|_| program.shares == 0 && !is_shares_wrong) {
        let message = format!("program `{}` has `of_first`, and shares no data", named.name);
        let help = "add `shares`, of which `of_first` is a part";
        document.report(Diagnostic::warning("part-of-nothing", span, message).help(help));
    }
    if !has_steps {
        let owner = format!("program `{}`", named.name);
        missing(document, named.at.clone(), &owner, "do", "[{ cpu = \"1s\" }]");
    }
    places.programs.push(place);
    program
}

/// Reads jobs; has the units, disks and programs that a job may name.
struct JobReader<'a> {
    contract: &'a Contract,
    disks: &'a Names,
    programs: &'a Names,
}

impl JobReader<'_> {
    /// Reads `[job.NAME]`; `None` if the job's unit or program is missing or unknown.
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
        // Required keys: name, example, and whether the table has the key.
        let mut required = [("unit", "\"physics\"", false), ("program", "\"hog\"", false)];
        for entry in document.entries(&JOB, table) {
            let name = entry.key.name;
            for (key, _, is_present) in &mut required {
                *is_present |= *key == name;
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
        for (key, example, _) in required.iter().filter(|(_, _, is_present)| !is_present) {
            missing(document, named.at.clone(), &format!("job `{}`", named.name), key, example);
        }
        (job.unit, job.program) = (job_unit?, u32::from(program?));
        places.jobs.push(place);
        Some(job)
    }
}

/// The unit that an entry names. Reports an unknown unit, and the built-in unit `kernel`, which runs no jobs
/// and has no tickets. `relation` completes the message "no ... the built-in unit `kernel`".
pub(super) fn unit(
    document: &mut Document,
    entry: &Entry,
    contract: &Contract,
    relation: &str,
) -> Option<UnitId> {
    let path = document.string(entry, "the path of a unit")?;
    let (message, help) = match contract.find(path) {
        Some(UnitId::KERNEL) => {
            let message = format!("no {relation} the built-in unit `kernel`");
            (message, "name a unit of the contract, or \"shared\"".to_owned())
        }
        Some(unit) => return Some(unit),
        None => {
            let paths = || contract.held().map(|id| contract.unit(id).path.as_str());
            let help = match nearest(path, paths()) {
                Some(known) => format!("did you mean \"{known}\"?"),
                None => format!("the units of the contract are {}", first_names(paths())),
            };
            (format!("there is no unit `{path}` in the contract"), help)
        }
    };
    let span: Span = document.span(entry.value);
    document.report(Diagnostic::error("unknown-unit", span, message).help(help));
    None
}

/// The first eight names, and `..` if there are more.
fn first_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.take(9).collect();
    match names.len() {
        0 => return "only \"shared\": it declares none".to_owned(),
        9 => names[8] = "..",
        _ => {}
    }
    names.join(", ")
}
