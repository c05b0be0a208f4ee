//! `commonhold scale`: runs a program at growing sizes, and reports the study.

mod locks;
mod points;
mod rate;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;

use commonhold_machine::{CpuSet, Machine};
use commonhold_measure::program::{self, Done, Ended, MeterOptions, NotRun, RunCache, RunRequest, Unnamed};
use commonhold_measure::quota::Cap;
use commonhold_scale::study::{Limit, Measure, Run, Size, Sizes, Study};
use commonhold_scale::{default_sizes, nearest};
use commonhold_scale_report as report;
use regex_lite::Regex;

use crate::cli::Scale;
use crate::exit::{Exit, Failure};
use crate::output::Page;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::{load, output};
use rate::rate;

/// The placeholder for the size in a command line.
const NUMBER: &str = "{n}";

/// Runs shorter than this are rejected. It takes one or two ms to start a process, and this time varies.
const TOO_SHORT_NS: u64 = 10_000_000;
/// Runs shorter than this are measured, but reported as short.
const SHORT_NS: u64 = 100_000_000;

/// If the runs of a size differ by more than this fraction, the difference is reported.
const SPREAD: f64 = 0.2;

pub(crate) fn main(args: &Scale) -> Result<Exit, Failure> {
    let page = args.html.as_deref().map(Page::at).transpose()?;
    if let Some(path) = &args.points {
        show(args, &points::study(path)?, page)?;
        return Ok(Exit::Ok);
    }
    let machine = load::machine_here()?;
    let plan = Plan::of(args, &machine)?;
    let signals = Signals::of_an_end()?;
    let mut runs =
        Runs { plan: &plan, signals: &signals, notes: Notes::default(), cache: RunCache::default() };
    let Some(sizes) = runs.measure()? else {
        return Err(interrupted());
    };
    let failed = sizes.iter().find_map(|size| Some((size.n, size.failed.clone()?)));
    let locks = match args.locks {
        true => runs.try_locks(&sizes)?,
        false => Ok(None),
    };
    let Ok(locks) = locks else { return Err(interrupted()) };
    let notes = std::mem::take(&mut runs.notes);
    let mut study = plan.study(&machine, sizes, &notes);
    study.locks = locks;
    if let (None, Some((size, why))) = (study.measured().next(), &failed) {
        return Err(Failure::new(
            Exit::Unmeasured,
            format!("no size could be measured; the first that failed is {size}: {why}"),
        ));
    }
    show(args, &study, page)?;
    Ok(if failed.is_some() { Exit::Unmeasured } else { Exit::Ok })
}

fn show(args: &Scale, study: &Study, page: Option<Page>) -> Result<(), Failure> {
    let text = if args.json { report::json(study) } else { report::text(study, output::style()) };
    Page::print_then_write(page, &text, || report::html(study))
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted; the program and its children were ended")
}

/// The runs to make.
struct Plan<'a> {
    args: &'a Scale,
    sizes_are: Sizes,
    rate: Option<Regex>,
    /// Sizes in ascending order, with their CPUs and what is new about these CPUs (see [`Steps`]).
    sizes: Vec<(u32, CpuSet, Option<&'static str>)>,
    /// All CPUs of the machine.
    all: CpuSet,
    /// The CPU quota of this process, which applies to the program too.
    cap: Option<Cap>,
}

impl Plan<'_> {
    /// The plan for a command line. The error says what is wrong with the command line.
    fn of<'a>(args: &'a Scale, machine: &Machine) -> Result<Plan<'a>, Failure> {
        let wrong = |message: String| Failure::new(Exit::Usage, message);
        if let Some(word) = args.command.first().filter(|word| word.as_bytes().starts_with(b"-")) {
            let word = word.to_string_lossy();
            return Err(wrong(format!(
                "there is no option `{word}`: see `commonhold scale --help`; a program of that name is run as `./{word}`"
            )));
        }
        let has_number = args.command.iter().any(|word| find(word.as_bytes(), NUMBER.as_bytes()).is_some());
        if args.sizes.is_some() && !has_number {
            let message = "--sizes are numbers for {n} in the command line, which has none: write {n} where the program \
                           takes its number of threads, or use --cpus";
            return Err(wrong(message.to_owned()));
        }
        let order = nearest(machine);
        let count = u32::try_from(order.len()).unwrap_or(u32::MAX);
        let cap = Cap::of_this();
        let default = || default_sizes(count.min(whole_cpus(cap.as_ref())));
        let (sizes_are, numbers) = match (&args.cpus, has_number) {
            (Some(cpus), true) => (Sizes::Both, cpus.0.clone()),
            (Some(cpus), false) => (Sizes::Cpus, cpus.0.clone()),
            (None, true) => {
                let sizes = args.sizes.as_ref().map(|sizes| sizes.0.clone());
                (Sizes::Number, sizes.unwrap_or_else(default))
            }
            (None, false) => (Sizes::Cpus, default()),
        };
        let largest = numbers.last().copied().unwrap_or(1);
        if sizes_are != Sizes::Number && largest > count {
            let cpus = if count == 1 { "1 CPU" } else { &format!("{count} CPUs") };
            let message = format!(
                "--cpus asks for {largest}, and this process may use {cpus} ({}): name no more; for more threads than CPUs, \
                 write {{n}} where the program takes its number of threads, and --sizes {largest}",
                machine.cpu_set()
            );
            return Err(Failure::new(Exit::Unavailable, message));
        }
        let rate = args.rate.as_deref().map(Regex::new).transpose();
        let rate = rate.map_err(|e| {
            wrong(format!(
                "--rate is not a pattern: {e}; write one with the number in parentheses: 'rate: ([0-9.]+)'"
            ))
        })?;
        let all = machine.cpu_set();
        let mut steps = Steps::default();
        let with_cpus = |n: u32| {
            if sizes_are == Sizes::Number {
                return (n, all.clone(), None);
            }
            let cpus: Vec<u32> = order.iter().copied().take(n as usize).collect();
            let step = steps.next(machine, &cpus);
            (n, cpus.into_iter().collect(), step)
        };
        Ok(Plan { args, sizes_are, rate, sizes: numbers.into_iter().map(with_cpus).collect(), all, cap })
    }

    /// The command line for a size.
    fn command(&self, n: u32) -> Vec<OsString> {
        self.args.command.iter().map(|word| with_number(word, n)).collect()
    }

    fn study(&self, machine: &Machine, sizes: Vec<Size>, notes: &Notes) -> Study {
        let words: Vec<_> = self.args.command.iter().map(|word| word.to_string_lossy()).collect();
        let mut study = Study {
            command: words.join(" "),
            machine: machine.summary(),
            sizes_are: self.sizes_are,
            measure: self.args.rate.clone().map_or(Measure::Runs, Measure::Printed),
            warm_up: self.args.warm_up,
            sizes,
            quota: self.cap.as_ref().map(|cap| cap.quota.clone()),
            locks: None,
            limits: Vec::new(),
        };
        study.limits = self.limits(&study, notes);
        study
    }

    /// What could not be measured, and shortcomings of the runs.
    fn limits(&self, study: &Study, notes: &Notes) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut say = |what: String, remedy: &str| limits.push(Limit { what, remedy: remedy.to_owned() });
        let shortest = study.measured().flat_map(|size| &size.runs).map(|run| run.wall_ns).min();
        if let Some(ns) = shortest.filter(|ns| *ns < SHORT_NS) {
            say(
                format!("runs are as short as {} ms, of which starting takes a part", ns / 1_000_000),
                "give the program more work, so that a run takes a second",
            );
        }
        for size in study.measured() {
            if let Some((_, low, high)) = size.throughput().filter(|(_, low, high)| high / low > 1.0 + SPREAD)
            {
                let percent = (high / low - 1.0) * 100.0;
                say(
                    format!("runs of size {} differ by {percent:.0} %", size.n),
                    "run it on a machine that does nothing else, or more often with --repeat",
                );
            }
        }
        if notes.left > 0 {
            let (some, were) = if notes.left == 1 { ("a process", "was") } else { ("processes", "were") };
            say(
                format!("the program left {some} behind, which {were} ended after the run"),
                "have the program wait for its children: their time counts until the end of the run",
            );
        }
        if !self.args.unwatched {
            limits.extend(unmeasured(&self.all, notes));
        }
        limits
    }
}

/// The number of whole CPUs within the quota, at least 1. Larger sizes would be throttled.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is floored, and kept within bounds"
)]
fn whole_cpus(cap: Option<&Cap>) -> u32 {
    cap.map_or(u32::MAX, |cap| cap.quota.cpus.clamp(1.0, 65_535.0) as u32)
}

/// The facts about threads that this machine, or this run, does not show.
fn unmeasured(cpus: &CpuSet, notes: &Notes) -> Vec<Limit> {
    let support = program::support(cpus);
    let mut limits = Vec::new();
    let mut say = |what: String, remedy: &str| limits.push(Limit { what, remedy: remedy.to_owned() });
    if let Some(why) = &support.no_records {
        say(
            format!(
                "what threads did after their last sample, and threads that started and ended between two samples: the \
                 kernel gives no records of ended threads ({why})"
            ),
            "run it as root, outside of a container",
        );
    } else if notes.lost {
        say(
            "some of the kernel's records of ended threads, which were lost since too many came at once"
                .to_owned(),
            "have the program start fewer processes, or read the result as a part",
        );
    }
    if !support.counts_delays {
        say(
            "the exact time waited for disks and pages: it is estimated from samples, since the kernel does not count it"
                .to_owned(),
            "switch it on: `sysctl kernel.task_delayacct=1`",
        );
    }
    if let Some(why) = &support.no_stalls {
        say(
            format!("how long CPUs wait for memory, which is part of `user`: nothing counts it ({why})"),
            "run it on a machine whose processor shows its counters, with `sysctl kernel.perf_event_paranoid=2` or less",
        );
    }
    if notes.hidden {
        say(
            "what some threads waited for: their files in /proc cannot be read".to_owned(),
            "run it as root; setuid programs hide it from other users",
        );
    }
    if let Some(why) = &notes.no_stacks {
        say(
            format!("where locks are taken: the program's memory cannot be read ({why})"),
            "run it as root, or with `sysctl kernel.yama.ptrace_scope=0`; setuid programs hide it",
        );
    }
    for why in notes.unnamed.iter().take(UNNAMED_MAX) {
        let (what, remedy) = unnamed(why);
        say(what, remedy);
    }
    if let Some(why) = &notes.no_kernel {
        say(
            format!("which locks of the kernel are waited for, and who wakes whom: {why}"),
            "run it as root, outside of a container, on Linux 5.19 or later with BPF and BTF",
        );
    } else if notes.kernel_lost > 0 {
        say(
            format!("{} waits in the kernel, for which the tables had no room", notes.kernel_lost),
            "have the program do less, or read the result as a part",
        );
    }
    if let Some(why) = &notes.no_shots {
        say(
            format!("where holders of locks are while they run: the kernel does not sample them ({why})"),
            "allow it with `sysctl kernel.perf_event_paranoid=2` or less, outside of a container, or run it as root",
        );
    }
    limits
}

/// The maximum number of reasons for unnamed call sites that are reported.
const UNNAMED_MAX: usize = 6;

/// Why a call site has no name, and the remedy.
fn unnamed(why: &Unnamed) -> (String, &'static str) {
    match why {
        Unnamed::Stripped(file) => (
            format!("names of functions in {file}, which are shown as offsets: the file has no symbols for them"),
            "install its debug symbols (on Debian, its package `-dbgsym` or `-dbg`), or build it without stripping it; for Go, \
             without `-ldflags=-s`",
        ),
        Unnamed::Jit(program, why) => (
            format!("names of functions in the JIT code of {program}: {why}"),
            "have it write a perf map: Java 17 or later with `-XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit \
             -XX:+PreserveFramePointer`, node with `--perf-basic-prof`, Python 3.12 or later with `-X perf`",
        ),
        Unnamed::Interpreted(program) => (
            format!("names of functions that {program} interprets: no perf map has these"),
            "let it run long enough for its code to be compiled (Java: at once with `-Xcomp`)",
        ),
        Unnamed::Torn(function) => (
            format!("what calls {function} where threads wait: there is no table for unwinding the caller's stack frame"),
            "build the program with `-fasynchronous-unwind-tables`, which is the default of most compilers",
        ),
        Unnamed::Unread => (
            "where some threads wait: they had gone on before their stack was copied, or run code of a file that was replaced"
                .to_owned(),
            "measure for longer, and start the program again if it was upgraded",
        ),
    }
}

/// Finds what is new about the CPUs of a size compared to the previous one: hyperthreads, another cache,
/// another node.
#[derive(Default)]
struct Steps {
    /// Whether the previous size had two hardware threads of one core.
    threads: bool,
    /// The number of caches of the previous size.
    caches: usize,
    /// The number of nodes of the previous size; 0: there was no size yet.
    nodes: usize,
}

impl Steps {
    fn next(&mut self, machine: &Machine, cpus: &[u32]) -> Option<&'static str> {
        let places: Vec<_> = cpus.iter().filter_map(|id| machine.cpu(*id)).collect();
        let distinct = |property: fn(&commonhold_machine::Cpu) -> u32| {
            places.iter().map(|cpu| property(cpu)).collect::<std::collections::BTreeSet<u32>>().len()
        };
        let (cores, caches, nodes) =
            (distinct(|cpu| cpu.core), distinct(|cpu| cpu.cache), distinct(|cpu| cpu.node));
        let before = std::mem::replace(self, Steps { threads: cores < places.len(), caches, nodes });
        if before.nodes == 0 {
            return None;
        }
        if nodes > before.nodes {
            Some("another node")
        } else if caches > before.caches {
            Some("another cache")
        } else if self.threads && !before.threads {
            Some("two threads on one core")
        } else {
            None
        }
    }
}

/// A word of the command line with every `{n}` replaced by a size.
fn with_number(word: &OsString, n: u32) -> OsString {
    let (mut rest, mut replaced) = (word.as_bytes(), Vec::new());
    while let Some(at) = find(rest, NUMBER.as_bytes()) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(n.to_string().as_bytes());
        rest = &rest[at + NUMBER.len()..];
    }
    replaced.extend_from_slice(rest);
    OsString::from_vec(replaced)
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Shortcomings of the measurements, accumulated over all runs: see the fields of [`Done`].
#[derive(Default)]
struct Notes {
    lost: bool,
    hidden: bool,
    no_stacks: Option<String>,
    no_shots: Option<String>,
    unnamed: BTreeSet<Unnamed>,
    no_kernel: Option<String>,
    kernel_lost: u64,
    left: usize,
}

/// Makes the runs.
struct Runs<'a> {
    plan: &'a Plan<'a>,
    signals: &'a Signals,
    notes: Notes,
    cache: RunCache,
}

/// The outcome of one run.
enum Made {
    Run(Box<Run>),
    /// Why the run failed.
    Failed(String),
    /// The study was interrupted.
    Stopped,
}

impl Runs<'_> {
    /// Makes all runs; returns `None` if the study was interrupted. Each round has a run of every size. The
    /// order of sizes alternates between ascending and descending, so that external load affects all sizes
    /// alike.
    fn measure(&mut self) -> Result<Option<Vec<Size>>, Failure> {
        let plan = self.plan;
        let size = |(n, cpus, step): &(u32, CpuSet, Option<&'static str>)| Size {
            n: *n,
            cpus: cpus.clone(),
            step: *step,
            runs: Vec::new(),
            failed: None,
        };
        let mut sizes: Vec<Size> = plan.sizes.iter().map(size).collect();
        let (warm_up, repeat) = (plan.args.warm_up as usize, plan.args.repeat as usize);
        let progress = Progress::new("runs", warm_up + repeat * sizes.len());
        // Warm up with the largest size: it is usually the fastest, and uses every CPU.
        for _ in 0..warm_up {
            let Some(largest) = sizes.iter_mut().rev().find(|size| size.failed.is_none()) else { break };
            match self.run(largest)? {
                Made::Stopped => return Ok(None),
                Made::Failed(why) => largest.failed = Some(why),
                Made::Run(_) => {}
            }
            progress.step();
        }
        for round in 0..repeat {
            let mut order: Vec<&mut Size> = sizes.iter_mut().filter(|size| size.failed.is_none()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for size in order {
                match self.run(size)? {
                    Made::Stopped => return Ok(None),
                    Made::Failed(why) => {
                        // Discard all runs of a size that fails once: the successful runs would be a biased
                        // sample.
                        size.runs.clear();
                        size.failed = Some(why);
                    }
                    Made::Run(run) => size.runs.push(*run),
                }
                progress.step();
            }
        }
        Ok(Some(sizes))
    }

    fn run(&mut self, size: &Size) -> Result<Made, Failure> {
        let watch = !self.plan.args.unwatched;
        Ok(match self.done(size, watch, None)? {
            None => Made::Stopped,
            Some(done) => self.judge(*done),
        })
    }

    /// Makes one run of the program, and notes its shortcomings; returns `None` if the study was interrupted.
    fn done(
        &mut self,
        size: &Size,
        watch: bool,
        meter: Option<MeterOptions>,
    ) -> Result<Option<Box<Done>>, Failure> {
        let plan = self.plan;
        let command = plan.command(size.n);
        let request = RunRequest {
            command: &command,
            cpus: &size.cpus,
            keep_output: plan.rate.is_some(),
            watch,
            meter,
            cap: plan.cap.as_ref(),
        };
        let ran = program::run(&request, &plan.all, self.signals.as_fd(), &mut self.cache);
        let done = match ran.map_err(not_run)? {
            Ended::Stopped => return Ok(None),
            Ended::Done(done) => done,
        };
        self.notes.lost |= done.lost;
        self.notes.hidden |= done.hidden;
        self.notes.no_stacks = self.notes.no_stacks.take().or(done.no_stacks.clone());
        self.notes.no_kernel = self.notes.no_kernel.take().or(done.no_kernel.clone());
        self.notes.kernel_lost += done.kernel_lost;
        self.notes.no_shots = self.notes.no_shots.take().or(done.no_shots.clone());
        self.notes.unnamed.extend(done.unnamed.iter().cloned());
        self.notes.left += done.left;
        Ok(Some(done))
    }

    /// Whether a run counts, with its throughput.
    fn judge(&self, done: Done) -> Made {
        if let Some(why) = failure(&done) {
            return Made::Failed(why);
        }
        if done.wall_ns < TOO_SHORT_NS {
            return Made::Failed(format!(
                "a run took {:.1} ms, which is too short to measure: give the program more work, so that a run takes a \
                 second",
                wall_s(&done) * 1e3
            ));
        }
        let throughput = match &self.plan.rate {
            None => 1.0 / wall_s(&done),
            Some(pattern) => match rate(pattern, &String::from_utf8_lossy(&done.output)) {
                Ok(rate) => rate,
                Err(why) => return Made::Failed(why),
            },
        };
        Made::Run(Box::new(Run { wall_ns: done.wall_ns, throughput, load: done.load, watched: done.watched }))
    }
}

/// The wall-clock time of a run in seconds. Exact below a hundred days.
#[allow(clippy::cast_precision_loss)]
fn wall_s(done: &Done) -> f64 {
    done.wall_ns as f64 / 1e9
}

fn not_run(error: NotRun) -> Failure {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match error {
        NotRun::Command { source, name } if source.kind() == NotFound => {
            let remedy = "name a program on the PATH, or a path";
            Failure::new(Exit::NotFound, format!("there is no program `{name}`: {remedy}"))
        }
        NotRun::Command { ref source, .. } if source.kind() == PermissionDenied => {
            Failure::new(Exit::CannotRun, format!("{error}; make it executable, or name another"))
        }
        NotRun::Command { .. } => Failure::new(Exit::CannotRun, error),
        NotRun::Cpus { .. } => Failure::new(Exit::Unavailable, error),
        NotRun::Live(error) => error.into(),
    }
}

/// How a program failed, with the last line of its standard error; `None` if it succeeded.
fn failure(done: &Done) -> Option<String> {
    if done.status.success() {
        return None;
    }
    let how = match (done.status.code(), done.status.signal()) {
        (Some(code), _) => format!("the program ended with exit code {code}"),
        (None, Some(signal)) => format!("the program was ended by signal {signal}"),
        (None, None) => "the program ended without success".to_owned(),
    };
    let errors = String::from_utf8_lossy(&done.errors);
    let last = errors.lines().rev().find(|line| !line.trim().is_empty());
    Some(last.map_or_else(|| how.clone(), |line| format!("{how}: {}", line.trim())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_n_is_replaced() {
        assert_eq!(with_number(&"-j{n},{n}".into(), 12), "-j12,12");
        assert_eq!(with_number(&"{m}".into(), 12), "{m}");
    }

    #[test]
    fn steps_between_sizes_are_named() {
        let machine = Machine::synthetic("nodes:2 cpus:4 threads:2").unwrap();
        let (order, mut steps) = (nearest(&machine), Steps::default());
        let named: Vec<_> = [1, 2, 3, 4, 5, 8].map(|n| steps.next(&machine, &order[..n])).into();
        assert_eq!(named, [None, None, Some("two threads on one core"), None, Some("another node"), None]);
    }
}
