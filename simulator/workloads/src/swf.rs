//! Reads a log of jobs in the Standard Workload Format 2.2 (Feitelson,
//! <https://www.cs.huji.ac.il/labs/parallel/workload/swf.html>).
//!
//! Each job becomes a job that starts when it was submitted, and runs a process on each of its processors.
//! How long a job waited for its processors is left out, since the simulation determines that. A process
//! computes for the average CPU time of the job's processors, or for the run time if that is unknown; the
//! rest of the run time it sleeps.
//!
//! Jobs that are alike share a program. If there are more programs than a workload may have, run times and
//! memory are rounded to fewer digits. Memory is left out before run times have less than three.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::Span;

use crate::draft::{
    Draft, Found, HORIZON_MAX_NS, JOBS_MAX, Job, NameMaker, PROGRAMS_MAX, Program, S, STEP_MAX_NS, Step,
};
use crate::{Options, Units};

/// The names of the 18 fields, for messages.
const FIELDS: [&str; 18] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
];

/// The most processes of a job, and of all jobs together.
const PROCESSORS_MAX: i64 = 100_000;
const TASKS_MAX: u64 = 1_000_000;
/// The most memory of a process, in kB: 1 PiB.
const MEMORY_MAX_KB: u64 = 1 << 40;
/// Run times keep this many digits; memory is left out if they would have less.
const DIGITS_MIN: u32 = 3;

/// A job of the log.
struct Logged {
    number: i64,
    at: Span,
    submitted_s: u64,
    /// CPU time of each process, and the rest of the run time, in hundredths of a second.
    cpu: u64,
    idle: u64,
    processors: u64,
    /// Of each process; 0 if it is unknown.
    memory_kb: u64,
    unit: Option<i64>,
}

/// Reads a text.
pub(crate) fn read(text: &str, options: &Options) -> Draft {
    let mut draft = Draft { title: "a log of jobs".to_owned(), ..Draft::default() };
    let mut found = Found::default();
    let mut names = options.names.clone();
    let mut jobs: Vec<Logged> = Vec::new();
    let (mut start, mut left_out) = (0, 0u64);
    for raw in text.split_inclusive('\n') {
        let line = raw.trim();
        let at = start..start + raw.trim_end().len();
        start += raw.len();
        if let Some(comment) = line.strip_prefix(';') {
            header(comment.trim(), options, &mut names, &mut draft);
            continue;
        }
        if line.is_empty() {
            continue;
        }
        if options.jobs.is_some_and(|most| jobs.len() >= most) {
            left_out += 1;
            continue;
        }
        if jobs.len() == JOBS_MAX {
            let message = format!("the log has more than {JOBS_MAX} jobs");
            found.error("too-many-jobs", &at, message, "pass --jobs N for the first N");
            break;
        }
        jobs.extend(job(line, at, options.units, &mut found));
        if found.has_error() && jobs.is_empty() && start > 1 << 20 {
            // Nothing in a MiB is a job: this is no such log.
            break;
        }
    }
    if jobs.is_empty() && !found.has_error() {
        found.error(
            "no-jobs",
            &(0..0),
            "the log has no job that ran".to_owned(),
            "give a log with lines of 18 numbers",
        );
    }
    if left_out > 0 {
        let at = jobs.last().map_or(0..0, |job| job.at.clone());
        found.remark("jobs", &at, format!("{left_out} further jobs are left out, as --jobs says"));
    }
    if !found.has_error() {
        build(&mut jobs, &names, options, &mut draft, &mut found);
    }
    draft.found = found;
    draft
}

/// Reads a comment of the header: the title, and the names of queues and partitions.
fn header(comment: &str, options: &Options, names: &mut BTreeMap<i64, String>, draft: &mut Draft) {
    let Some((label, value)) = comment.split_once(':') else { return };
    let value = value.trim();
    match (label.trim(), options.units) {
        ("Computer", _) => draft.title = format!("Jobs on {value}"),
        ("Queue", Units::Queue)
        | ("Partition", Units::Partition)
        | ("User", Units::User)
        | ("Group", Units::Group) => {
            // `Queue: 1 batch ...`
            let mut words = value.split_whitespace();
            if let (Some(Ok(number)), Some(name)) = (words.next().map(str::parse), words.next()) {
                let name = || name.trim_matches(['"', ',']).to_owned();
                names.entry(number).or_insert_with(name);
            }
        }
        _ => {}
    }
}

fn job(line: &str, at: Span, units: Units, found: &mut Found) -> Option<Logged> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() != FIELDS.len() {
        let message = format!("the line has {} fields, and a job has 18", words.len());
        found.error("fields", &at, message, "write -1 for what is unknown");
        return None;
    }
    let mut fields = [0i64; 18];
    // The run time and the average CPU time, in hundredths of a second: they may have decimals.
    let (mut run, mut cpu) = (None, None);
    for (index, word) in words.iter().enumerate() {
        let number = word.parse::<i64>().ok().or_else(|| {
            let (whole, decimals) = word.split_once('.')?;
            let is_number = decimals.bytes().all(|byte| byte.is_ascii_digit());
            whole.parse().ok().filter(|_| is_number)
        });
        let Some(number) = number else {
            let message = format!("`{word}` is no number: {}", FIELDS[index]);
            found.error("no-number", &at, message, "write a whole number, or -1 if it is unknown");
            return None;
        };
        // -0.5 is unknown too.
        fields[index] = if word.starts_with('-') { number.min(-1) } else { number };
        match index {
            3 => run = hundredths(word),
            5 => cpu = hundredths(word),
            _ => {}
        }
    }
    let [number, submitted, _, _, allocated, _, memory_kb, requested, ..] = fields;
    // One more line has the whole job.
    if matches!(fields[10], 2..=4) {
        found.remark("partial", &at, "partial executions of jobs, of status 2 to 4, are left out");
        return None;
    }
    let processors = if allocated > 0 { allocated } else { requested };
    let Some(run) = run.filter(|run| *run > 0 && processors > 0) else {
        let message = "jobs that never ran, or of which run time or processors are unknown, are left out";
        found.remark("unknown", &at, message);
        return None;
    };
    if processors > PROCESSORS_MAX {
        let message = format!("job {number} has {processors} processors, more than {PROCESSORS_MAX}");
        found.error("out-of-range", &at, message, "leave it out");
        return None;
    }
    let most = i64::try_from(STEP_MAX_NS / S).unwrap_or(i64::MAX);
    if submitted < 0 || submitted > 9 * most || run / 100 > most.unsigned_abs() {
        let message = format!("job {number}: submitted at {submitted} s, {} s long", words[3]);
        found.error("out-of-range", &at, message, "times are in seconds, up to nine years and a year");
        return None;
    }
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let memory_kb = unsigned(memory_kb);
    if memory_kb > MEMORY_MAX_KB {
        let message = format!("job {number}: used memory of {memory_kb} kB for each processor");
        found.error("out-of-range", &at, message, "write kilobytes, up to 1 PiB, or -1 if it is unknown");
        return None;
    }
    if fields[16] > 0 {
        found.remark(
            "preceding",
            &at,
            "jobs do not wait for their preceding job, but start when they were submitted",
        );
    }
    let cpu = cpu.unwrap_or(run).min(run);
    let unit = match units {
        Units::User => fields[11],
        Units::Group => fields[12],
        Units::Queue => fields[14],
        Units::Partition => fields[15],
        Units::One | Units::Taskgroup => -1,
    };
    Some(Logged {
        number,
        at,
        submitted_s: unsigned(submitted),
        cpu,
        idle: run - cpu,
        processors: unsigned(processors),
        memory_kb,
        unit: (unit >= 0).then_some(unit),
    })
}

/// Hundredths of a second, rounded down; `None` if the number is negative.
fn hundredths(word: &str) -> Option<u64> {
    let (whole, decimals) = word.split_once('.').unwrap_or((word, ""));
    let decimals = format!("{decimals:0<2}");
    let decimals = decimals.get(..2)?.parse().ok()?;
    Some(whole.parse::<u64>().ok()?.saturating_mul(100).saturating_add(decimals))
}

/// Rounds a number to this many digits.
fn rounded(number: u64, digits: u32) -> u64 {
    let scale = 10u64.pow((number.max(1).ilog10() + 1).saturating_sub(digits));
    (number.saturating_add(scale / 2) / scale * scale).max(1)
}

fn build(
    jobs: &mut [Logged],
    names: &BTreeMap<i64, String>,
    options: &Options,
    draft: &mut Draft,
    found: &mut Found,
) {
    let first = jobs.iter().map(|job| job.submitted_s).min().unwrap_or(0);
    let tasks = jobs.iter().map(|job| job.processors + 1).fold(0, u64::saturating_add);
    if tasks > TASKS_MAX {
        let message = format!("the jobs have {tasks} processes in all, more than {TASKS_MAX}");
        found.error("too-many-tasks", &(0..0), message, "pass --jobs N for the first N");
        return;
    }
    // Each shape needs a program for its processes, and one that runs them.
    let shape = |job: &Logged, digits: u32, has_memory: bool| {
        let part = |number: u64| if number == 0 { 0 } else { rounded(number, digits) };
        let memory_kb = if has_memory { part(job.memory_kb).min(MEMORY_MAX_KB) } else { 0 };
        (job.processors, part(job.cpu), part(job.idle), memory_kb)
    };
    let shapes = |digits: u32, has_memory: bool| {
        let shapes: BTreeSet<_> = jobs.iter().map(|job| shape(job, digits, has_memory)).collect();
        shapes.len() * 2
    };
    let digits = |has_memory: bool, least: u32| {
        (least..=19).rev().find(|digits| shapes(*digits, has_memory) <= PROGRAMS_MAX)
    };
    let has_memory = digits(true, DIGITS_MIN).is_some();
    if !has_memory && let Some(job) = jobs.iter().find(|job| job.memory_kb > 0) {
        let message = format!(
            "used memory is left out, since a workload has at most {PROGRAMS_MAX} programs: --jobs N takes the first N"
        );
        found.remark("memory", &job.at, message);
    }
    let Some(digits) = digits(has_memory, 1) else {
        let message = format!("the jobs have more than {} different shapes", PROGRAMS_MAX / 2);
        found.error("too-many-programs", &(0..0), message, "pass --jobs N for the first N");
        return;
    };
    if jobs.iter().any(|job| shape(job, digits, has_memory) != shape(job, 19, has_memory)) {
        let s = if digits == 1 { "" } else { "s" };
        let message = format!(
            "run times and memory are rounded to {digits} digit{s}, since a workload has at most {PROGRAMS_MAX} programs"
        );
        found.remark("rounded", &jobs[0].at, message);
    }
    let mut programs: BTreeMap<(u64, u64, u64, u64), String> = BTreeMap::new();
    let mut job_names = NameMaker::default();
    let mut end_s = 0;
    for job in jobs.iter() {
        let shape @ (processors, cpu, idle, memory_kb) = shape(job, digits, has_memory);
        let memory_bytes = memory_kb * 1024;
        let program = programs.entry(shape).or_insert_with_key(|_| {
            let memory = if memory_kb > 0 { format!("-{memory_kb}k") } else { String::new() };
            let name = format!("p{processors}-{cpu}-{idle}{memory}");
            let mut steps = Vec::new();
            steps.extend((cpu > 0).then_some(Step::Cpu(cpu * (S / 100))));
            steps.extend((idle > 0).then_some(Step::Sleep(idle * (S / 100))));
            if processors == 1 {
                draft.programs.push(Program { name: name.clone(), memory_bytes, is_job: false, steps });
                return name;
            }
            let process = format!("{name}-process");
            let run =
                Step::Run { program: process.clone(), times: processors, at_once: processors, beside: false };
            draft.programs.push(Program {
                name: name.clone(),
                memory_bytes: 0,
                is_job: false,
                steps: vec![run],
            });
            draft.programs.push(Program { name: process, memory_bytes, is_job: false, steps });
            name
        });
        let unit = match job.unit {
            Some(number) => {
                names.get(&number).cloned().unwrap_or_else(|| format!("{}{number}", prefix(options.units)))
            }
            None => options.unit.clone(),
        };
        let start_s = job.submitted_s - first;
        end_s = end_s.max(start_s + (job.cpu + job.idle) / 100);
        draft.jobs.push(Job {
            name: job_names.make(&format!("j{}", job.number)),
            unit,
            program: program.clone(),
            start_ns: start_s.saturating_mul(S),
            count: 1,
            deadline_ns: None,
            background: false,
        });
    }
    // Time for the jobs that wait for others.
    draft.horizon_ns = end_s.saturating_mul(2).saturating_mul(S).clamp(3600 * S, HORIZON_MAX_NS);
}

/// What the names of units begin with, where the log has only numbers.
fn prefix(units: Units) -> &'static str {
    match units {
        Units::User => "user",
        Units::Group => "group",
        Units::Queue => "queue",
        _ => "partition",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_digits() {
        let cases = [
            (12_345, 2, 12_000),
            (12_345, 3, 12_300),
            (99, 1, 100),
            (7, 1, 7),
            (0, 1, 1),
            (u64::MAX, 19, 18_446_744_073_709_551_610),
        ];
        for (number, digits, expected) in cases {
            assert_eq!(rounded(number, digits), expected, "{number}");
        }
        assert_eq!(
            ["5", "5.125", "5.1", "0", "-1", "x"].map(hundredths),
            [Some(500), Some(512), Some(510), Some(0), None, None]
        );
    }
}
