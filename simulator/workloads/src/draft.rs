//! A workload in the making, and the text of its `workload.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use commonhold_contract::quantity::bytes_text;
use commonhold_contract::{Diagnostic, Span, duration_text, position};

use crate::{Imported, Options};

/// The most programs, jobs, files and locks that a workload may have, the most steps of an imported one, and
/// the longest time of a step and of a horizon, in ns.
pub(crate) const PROGRAMS_MAX: usize = 1024;
pub(crate) const JOBS_MAX: usize = 65_536;
pub(crate) const FILES_MAX: usize = 4096;
const LOCKS_MAX: usize = 1024;
/// The most events, and the most timers.
const EVENTS_MAX: usize = 4096;
pub(crate) const STEPS_MAX: usize = 1_000_000;
pub(crate) const STEP_MAX_NS: u64 = 365 * 24 * 3_600_000_000_000;
pub(crate) const HORIZON_MAX_NS: u64 = 10 * STEP_MAX_NS;
/// The most iterations of a loop.
pub(crate) const TIMES_MAX: u64 = 1_000_000_000;
/// The longest name, in characters.
const NAME_CHARS_MAX: usize = 64;
/// The most remarks in the head of a text.
const REMARKS_MAX: usize = 50;
/// The most names of units in the head of a text.
const UNITS_MAX: usize = 50;

pub(crate) const S: u64 = 1_000_000_000;

/// A workload, with what was found while it was read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) title: String,
    pub(crate) horizon_ns: u64,
    pub(crate) files: Vec<File>,
    pub(crate) locks: Vec<Lock>,
    /// Each with whether it counts.
    pub(crate) events: Vec<(String, bool)>,
    /// Each with whether it is shared.
    pub(crate) timers: Vec<(String, bool)>,
    pub(crate) programs: Vec<Program>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) found: Found,
}

#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) shared: bool,
}

#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) inherit: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    /// Each run is a job of its own.
    pub(crate) is_job: bool,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) program: String,
    pub(crate) start_ns: u64,
    pub(crate) count: u64,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) background: bool,
}

/// A step of a program. Names are those of the draft's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Cpu(u64),
    Busy(u64),
    Sleep(u64),
    Timer { timer: String, period_ns: u64, catch_up: bool },
    Lock { lock: String, steps: Vec<Step> },
    Wait { event: String, lock: Option<String> },
    Signal { event: String, all: bool },
    Barrier { parties: u64, event: String },
    Run { program: String, times: u64, at_once: u64, beside: bool },
    Read { file: String, bytes: u64, random: bool, direct: bool },
    Write { file: String, bytes: u64, random: bool, sync: bool, direct: bool },
    Repeat { times: Times, steps: Vec<Step> },
}

/// How often a loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// `None`: for ever.
    pub(crate) most: Option<u64>,
    /// It ends after this time.
    pub(crate) for_ns: Option<u64>,
}

impl Times {
    pub(crate) const FOR_EVER: Times = Times { most: None, for_ns: None };

    pub(crate) fn exactly(times: u64) -> Times {
        Times { most: Some(times), for_ns: None }
    }

    pub(crate) fn is_endless(self) -> bool {
        self == Times::FOR_EVER
    }
}

/// Whether steps never end by themselves.
pub(crate) fn is_endless(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Repeat { times, steps } => times.is_endless() || is_endless(steps),
        Step::Lock { steps, .. } => is_endless(steps),
        _ => false,
    })
}

/// Whether time passes in each execution of steps.
pub(crate) fn takes_time(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Cpu(_) | Step::Busy(_) | Step::Sleep(_) | Step::Timer { .. } => true,
        Step::Read { direct, .. } => *direct,
        Step::Write { sync, direct, .. } => *sync || *direct,
        Step::Lock { steps, .. } | Step::Repeat { steps, .. } => takes_time(steps),
        _ => false,
    })
}

/// The most iterations of a loop, and the most runs of a step.
fn most_times(steps: &[Step]) -> u64 {
    let of = |step: &Step| match step {
        Step::Run { times, .. } => *times,
        Step::Lock { steps, .. } => most_times(steps),
        Step::Repeat { times, steps } => times.most.unwrap_or(0).max(most_times(steps)),
        _ => 0,
    };
    steps.iter().map(of).max().unwrap_or(0)
}

/// The time that steps take at least, in ns.
pub(crate) fn span_ns(steps: &[Step]) -> u64 {
    let of = |step: &Step| match step {
        Step::Cpu(ns) | Step::Busy(ns) | Step::Sleep(ns) => *ns,
        Step::Timer { period_ns, .. } => *period_ns,
        Step::Lock { steps, .. } => span_ns(steps),
        Step::Repeat { times, steps } => {
            let all = span_ns(steps).saturating_mul(times.most.unwrap_or(1));
            times.for_ns.map_or(all, |for_ns| all.min(for_ns))
        }
        _ => 0,
    };
    steps.iter().map(of).fold(0, u64::saturating_add)
}

/// The diagnostics of a text. A remark that applies to many places names the first, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Found {
    diagnostics: Vec<Diagnostic>,
    /// By code and position: the errors.
    errors: BTreeSet<(&'static str, usize, usize)>,
    /// By code and message: the index of the remark, and how many places it has.
    remarks: BTreeMap<(&'static str, String), (usize, usize)>,
    /// The first remark beyond the most, and how many there are.
    further: Option<(Span, usize)>,
}

/// The most errors and the most different remarks that are reported.
const ERRORS_MAX: usize = 100;
const DISTINCT_MAX: usize = 1_000;

impl Found {
    pub(crate) fn error(&mut self, code: &'static str, at: &Span, message: String, help: &str) {
        if self.errors.len() < ERRORS_MAX && self.errors.insert((code, at.start, at.end)) {
            self.diagnostics.push(Diagnostic::error(code, at.clone(), message).help(help));
        }
    }

    /// Adds a remark: something that the workload does not say as the text does.
    pub(crate) fn remark(&mut self, code: &'static str, at: &Span, message: impl Into<String>) {
        let key = (code, message.into());
        if let Some((_, places)) = self.remarks.get_mut(&key) {
            *places += 1;
        } else if self.remarks.len() == DISTINCT_MAX {
            self.further.get_or_insert_with(|| (at.clone(), 0)).1 += 1;
        } else {
            let index = self.diagnostics.len();
            self.diagnostics.push(Diagnostic::warning(code, at.clone(), key.1.clone()));
            self.remarks.insert(key, (index, 1));
        }
    }

    /// Adds a remark with a remedy, if there is one. A remedy is only sought for a remark that is shown, and
    /// only once: looking for a name that is alike takes long.
    pub(crate) fn advise(
        &mut self,
        code: &'static str,
        at: &Span,
        message: String,
        help: impl FnOnce() -> Option<String>,
    ) {
        let before = self.diagnostics.len();
        self.remark(code, at, message);
        if let Some(added) = self.diagnostics.get_mut(before) {
            added.help = help();
        }
    }

    /// Whether no further error is shown, so that its remedy need not be sought.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() >= ERRORS_MAX
    }

    pub(crate) fn has_error(&self) -> bool {
        !self.errors.is_empty()
    }

    fn finish(mut self) -> Vec<Diagnostic> {
        for (index, places) in self.remarks.values().filter(|(_, places)| *places > 1) {
            let s = if *places > 2 { "s" } else { "" };
            self.diagnostics[*index].label = format!("and {} other place{s}", places - 1);
        }
        if let Some((at, count)) = self.further {
            let message = format!("{count} further remarks are left out, from this one on");
            self.diagnostics.push(Diagnostic::warning("further", at, message));
        }
        self.diagnostics.sort_by_key(|found| found.span.start);
        self.diagnostics
    }
}

/// Makes names that the workload's language allows, each only once.
#[derive(Debug, Default)]
pub(crate) struct NameMaker {
    made: BTreeSet<String>,
    /// The last number behind a name: alike names do not search from the first on.
    numbers: BTreeMap<String, u32>,
}

impl NameMaker {
    /// A name like `wanted`.
    pub(crate) fn make(&mut self, wanted: &str) -> String {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let mut name: String =
            wanted.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(NAME_CHARS_MAX - 6).collect();
        if name.is_empty() || name.starts_with(['.', '-']) {
            name.insert(0, '_');
        }
        if self.made.insert(name.clone()) {
            return name;
        }
        let number = self.numbers.entry(name.clone()).or_insert(1);
        loop {
            *number += 1;
            let unique = format!("{name}-{number}");
            if self.made.insert(unique.clone()) {
                return unique;
            }
        }
    }
}

impl Draft {
    /// The text, unless there are errors.
    pub(crate) fn finish(mut self, text: &str, options: &Options) -> Imported {
        self.check_limits(&options.source);
        let found = core::mem::take(&mut self.found).finish();
        if found.iter().any(Diagnostic::is_error) {
            return Imported { text: None, diagnostics: found };
        }
        Imported { text: Some(self.text(text, &found, options)), diagnostics: found }
    }

    /// Errors for what the simulator would refuse. Most of it has no one position in the text.
    fn check_limits(&mut self, source: &str) {
        let counts = [
            ("programs", self.programs.len(), PROGRAMS_MAX, "too-many-programs"),
            ("jobs", self.jobs.len(), JOBS_MAX, "too-many-jobs"),
            ("files", self.files.len(), FILES_MAX, "too-many-files"),
            ("locks", self.locks.len(), LOCKS_MAX, "too-many-locks"),
            ("events", self.events.len(), EVENTS_MAX, "too-many-events"),
            ("timers", self.timers.len(), EVENTS_MAX, "too-many-timers"),
        ];
        for (what, count, most, code) in counts {
            if count > most {
                let message = format!("{source} becomes a workload with {count} {what}, more than {most}");
                self.found.error(
                    code,
                    &(0..0),
                    message,
                    "divide the file, or give fewer things names of their own",
                );
            }
        }
        let times = self.programs.iter().map(|program| most_times(&program.steps)).max().unwrap_or(0);
        if times > TIMES_MAX {
            let message =
                format!("{source} becomes a workload with {times} iterations, more than {TIMES_MAX}");
            self.found.error("out-of-range", &(0..0), message, "let the loop run less often");
        }
    }

    fn text(&self, text: &str, found: &[Diagnostic], options: &Options) -> String {
        // Writing to a string does not fail.
        let mut out = String::from("version = 1\n");
        _ = writeln!(out, "title = {}\nsource = {}", quoted(&self.title), quoted(&options.source));
        for remark in found.iter().take(REMARKS_MAX) {
            let (line, _) = position(text, remark.span.start);
            let label = if remark.label.is_empty() { String::new() } else { format!(" ({})", remark.label) };
            let message = remark.message.replace(|c: char| c.is_control(), " ");
            comment(&mut out, &format!("Line {line}: {message}{label}."));
        }
        if found.len() > REMARKS_MAX {
            _ = writeln!(out, "# And {} more remarks.", found.len() - REMARKS_MAX);
        }
        let units: BTreeSet<&str> = self.jobs.iter().map(|job| job.unit.as_str()).collect();
        if units.len() > 1 {
            let names: Vec<&str> = units.iter().take(UNITS_MAX).copied().collect();
            let more = if units.len() > UNITS_MAX { ", .." } else { "" };
            comment(
                &mut out,
                &format!("The contract must have these {} units: {}{more}", units.len(), names.join(", ")),
            );
        }
        let horizon_ns = options.horizon_ns.unwrap_or(self.horizon_ns).clamp(1_000, HORIZON_MAX_NS);
        _ = writeln!(out, "horizon = \"{}\"", duration_text(horizon_ns));
        for file in &self.files {
            _ = writeln!(out, "\n[file.{}]\nsize = \"{}\"", key(&file.name), bytes_text(file.bytes));
            flag(&mut out, "shared", file.shared);
        }
        for lock in &self.locks {
            _ = writeln!(out, "\n[lock.{}]", key(&lock.name));
            flag(&mut out, "inherit", lock.inherit);
        }
        for (table, word, entries) in [("event", "counts", &self.events), ("timer", "shared", &self.timers)] {
            for (name, is_set) in entries {
                _ = writeln!(out, "\n[{table}.{}]", key(name));
                flag(&mut out, word, *is_set);
            }
        }
        for program in &self.programs {
            _ = writeln!(out, "\n[program.{}]", key(&program.name));
            if program.memory_bytes > 0 {
                _ = writeln!(out, "memory = \"{}\"", bytes_text(program.memory_bytes));
            }
            flag(&mut out, "job", program.is_job);
            out += "do = [\n";
            list(&mut out, &program.steps, 1);
            out += "]\n";
        }
        for job in &self.jobs {
            let unit = quoted(&job.unit);
            _ = writeln!(
                out,
                "\n[job.{}]\nunit = {unit}\nprogram = {}",
                key(&job.name),
                quoted(&job.program)
            );
            if job.start_ns > 0 {
                _ = writeln!(out, "start = \"{}\"", duration_text(job.start_ns));
            }
            if job.count > 1 {
                _ = writeln!(out, "count = {}", job.count);
            }
            if let Some(deadline_ns) = job.deadline_ns {
                _ = writeln!(out, "deadline = \"{}\"", duration_text(deadline_ns));
            }
            flag(&mut out, "background", job.background);
        }
        out
    }
}

/// Writes a comment, broken between words.
fn comment(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split_whitespace() {
        if column == 0 || column + 1 + word.len() > 108 {
            *out += if column == 0 { "# " } else { "\n#  " };
            column = 0;
        } else {
            *out += " ";
        }
        *out += word;
        column += word.len() + 1;
    }
    *out += "\n";
}

fn flag(out: &mut String, key: &str, is_set: bool) {
    if is_set {
        _ = writeln!(out, "{key} = true");
    }
}

/// A name as a key: quoted if it has a dot.
fn key(name: &str) -> String {
    if name.contains('.') { quoted(name) } else { name.to_owned() }
}

/// A text as a string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

fn list(out: &mut String, steps: &[Step], depth: usize) {
    for step in steps {
        _ = write!(out, "{:indent$}{{ ", "", indent = 4 * depth);
        step_text(out, step, depth);
        *out += " },\n";
    }
}

/// The keys of the switches that are on.
fn switches(switches: &[(&str, bool)]) -> String {
    let on = switches.iter().filter(|(_, on)| *on);
    on.map(|(key, _)| format!(", {key} = true")).collect::<Vec<_>>().concat()
}

fn step_text(out: &mut String, step: &Step, depth: usize) {
    let time = |ns: u64| duration_text(ns);
    let mut body = None;
    _ = match step {
        Step::Cpu(ns) => write!(out, "cpu = \"{}\"", time(*ns)),
        Step::Busy(ns) => write!(out, "busy = \"{}\"", time(*ns)),
        Step::Sleep(ns) => write!(out, "sleep = \"{}\"", time(*ns)),
        Step::Timer { timer, period_ns, catch_up } => {
            let more = if *catch_up { ", catch_up = true" } else { "" };
            write!(out, "timer = {}, period = \"{}\"{more}", quoted(timer), time(*period_ns))
        }
        Step::Lock { lock, steps } => {
            body = Some(steps);
            write!(out, "lock = {}", quoted(lock))
        }
        Step::Wait { event, lock } => {
            let lock = lock.as_ref().map(|lock| format!(", lock = {}", quoted(lock))).unwrap_or_default();
            write!(out, "wait = {}{lock}", quoted(event))
        }
        Step::Signal { event, all } => {
            write!(out, "signal = {}{}", quoted(event), if *all { ", all = true" } else { "" })
        }
        Step::Barrier { parties, event } => write!(out, "barrier = {parties}, at = {}", quoted(event)),
        Step::Run { program, times, at_once, beside } => {
            let times = if *times > 1 { format!(", times = {times}") } else { String::new() };
            let at_once = if *at_once > 1 { format!(", at_once = {at_once}") } else { String::new() };
            let beside = if *beside { ", beside = true" } else { "" };
            write!(out, "run = {}{times}{at_once}{beside}", quoted(program))
        }
        Step::Read { file, bytes, random, direct } => {
            let switches = switches(&[("random", *random), ("direct", *direct)]);
            write!(out, "read = {}, bytes = \"{}\"{switches}", quoted(file), bytes_text(*bytes))
        }
        Step::Write { file, bytes, random, sync, direct } => {
            let switches = switches(&[("random", *random), ("sync", *sync), ("direct", *direct)]);
            write!(out, "write = {}, bytes = \"{}\"{switches}", quoted(file), bytes_text(*bytes))
        }
        Step::Repeat { times, steps } => {
            body = Some(steps);
            let most = times.most.map_or("\"forever\"".to_owned(), |most| most.to_string());
            let end = times.for_ns.map(|ns| format!(", for = \"{}\"", time(ns))).unwrap_or_default();
            write!(out, "repeat = {most}{end}")
        }
    };
    let Some(steps) = body else { return };
    if let [only] = &steps[..]
        && !matches!(only, Step::Lock { .. } | Step::Repeat { .. })
    {
        *out += ", do = [{ ";
        step_text(out, only, depth);
        *out += " }]";
        return;
    }
    *out += ", do = [\n";
    list(out, steps, depth + 1);
    _ = write!(out, "{:indent$}]", "", indent = 4 * depth);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_allowed_and_unique() {
        let mut names = NameMaker::default();
        let made = ["mp3.decoder", "mp3.decoder", "a b", "a/b", "-x", "", "é"].map(|name| names.make(name));
        assert_eq!(made, ["mp3.decoder", "mp3.decoder-2", "a_b", "a_b-2", "_-x", "_", "_-2"]);
        assert!(names.make(&"x".repeat(1000)).len() <= NAME_CHARS_MAX);
    }

    #[test]
    fn texts_are_quoted() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000A\"");
    }
}
