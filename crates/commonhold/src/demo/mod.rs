//! `commonhold demo`: measures the benefit of isolation and sharing on this machine, with real processes.
//!
//! The demo reproduces seed 000's figure 2 on this machine. A light unit's job runs alone and beside a heavy
//! unit's job under each scheme, each time with a new daemon. The report compares the response times. Rounds
//! are repeated as a whole, so that a load of the machine that changes with time affects all schemes alike;
//! runs that other processes disturbed are repeated once more at the end.

mod session;
mod work;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use commonhold_contract::Scheme;
use commonhold_ledger::Statement;
use commonhold_machine::Machine;
use commonhold_report::comparison::{self, Comparison, Repeat, Run, Sample};
use commonhold_report::figures::seconds;
use commonhold_report::{html, status, tree};

use crate::cli::{BackendChoice, Demo};
use crate::exit::{Exit, Failure};
use crate::output::Page;
use crate::signals::{self, Signals};
use crate::{load, output, place, progress};
use session::{Job, Session};
pub(crate) use work::task;

/// The default contract.
const CONTRACT: &str = include_str!("../../../../examples/two-groups.toml");

/// How many times as many pieces the heavy unit's job has as the light unit's job. The heavy job must run
/// longer than the light one under every scheme.
const HEAVY_FACTOR: u32 = 5;

/// The interval at which the live table is drawn and a sample is taken.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);

/// The most rounds after the repeats, of those runs that other processes disturbed each time.
const FURTHER_ROUNDS: u32 = 2;

/// How much earlier than the light unit the heavy unit starts.
const HEAD_START: Duration = Duration::from_millis(500);

pub(crate) fn main(args: &Demo) -> Result<Exit, Failure> {
    let page = Page::at(&args.report)?;
    let signals = Signals::of_an_end()?;
    let result = compare(args, &page, &signals);
    // By now all processes have ended, and the directory is removed.
    match signals.next() {
        Some(received) => signals::end_by(received.signal),
        None => result,
    }
}

/// Sleeps for `time`. Fails if a signal arrives, so that the callers end all processes in order; then `main`
/// ends this program by that signal.
fn pause(signals: &Signals, time: Duration) -> Result<(), Failure> {
    match signals.came_within(time) {
        true => Err(Failure::new(Exit::Interrupted, "interrupted")),
        false => Ok(()),
    }
}

/// Runs the light job alone and both jobs under each scheme, in turn, and writes the report.
fn compare(args: &Demo, page: &Page, signals: &Signals) -> Result<Exit, Failure> {
    let directory = session::Directory::make()?;
    place::warn_of_others(directory.path());
    let machine = load::machine(None)?.divided(false);
    let contract = contract(args, &machine, directory.path())?;
    let plan = Plan::make(&machine, args.seconds, directory.path(), signals)?;
    let run = |scheme| Run { scheme, repeats: Vec::new(), statement: None, samples: Vec::new() };
    let mut comparison = Comparison {
        machine: tree::summary(&machine),
        backend: String::new(),
        light: plan.describe(plan.light),
        heavy: plan.describe(plan.heavy),
        commands: vec![format!(
            "commonhold demo --backend {} --seconds {} --repeats {}",
            backend_word(args.backend),
            args.seconds,
            args.repeats
        )],
        rows: [None, Some(Scheme::Smp), Some(Scheme::Quota), Some(Scheme::Isolate)].map(run).into(),
    };
    let mut screen = Screen::new(args);
    for round in 0..args.repeats + FURTHER_ROUNDS {
        let is_further = round >= args.repeats;
        let mut rows: Vec<&mut Run> =
            comparison.rows.iter_mut().filter(|row| !is_further || row.is_disturbed()).collect();
        // Every other round is in reverse, so that a load that grows or falls meanwhile affects all alike.
        if round % 2 == 1 {
            rows.reverse();
        }
        for row in rows {
            let mut session = Session::open(&contract, row.scheme, args.backend, directory.path(), signals)?;
            let repeat = measure(&mut session, &plan, row, &mut screen, signals)?;
            comparison.backend = session.close()?;
            screen.finish(row, &repeat, round + 1 < args.repeats + FURTHER_ROUNDS);
            row.repeats.push(repeat);
        }
    }
    let text = if args.json {
        comparison::json(&comparison)
    } else {
        format!("\n{}", comparison::text(&comparison, output::style()))
    };
    output::print(&text)?;
    page.write(&html::page(&comparison))?;
    if !args.json {
        output::print(&format!("report with plots: {}", absolute(&args.report).display()))?;
    }
    Ok(Exit::Ok)
}

/// The path of the contract's file, after a check that the contract has the two units in which the jobs run.
fn contract(args: &Demo, machine: &Machine, directory: &Path) -> Result<PathBuf, Failure> {
    let path = if let Some(path) = &args.contract {
        path.clone()
    } else {
        let path = directory.join("two-groups.toml");
        std::fs::write(&path, CONTRACT).map_err(|e| {
            Failure::new(Exit::System, format!("{}: cannot write the contract: {e}", path.display()))
        })?;
        path
    };
    let loaded = load::contract(&path, machine, None)?;
    for unit in ["light", "heavy"] {
        if loaded.contract.find(unit).is_none() {
            return Err(Failure::new(
                Exit::Invalid,
                format!(
                    "{}: the demonstration needs the units `light` and `heavy`; `{unit}` is missing",
                    path.display()
                ),
            ));
        }
    }
    Ok(path)
}

/// A unit's work: `pieces` in all, at most `at_a_time` concurrently.
#[derive(Debug, Clone, Copy)]
struct Load {
    pieces: u32,
    at_a_time: u32,
}

/// The work of a demonstration, scaled to this machine.
struct Plan {
    kind: work::Kind,
    light: Load,
    heavy: Load,
}

impl Plan {
    /// Scales the work to the machine, such that the light unit's job takes `seconds` when it runs alone. The
    /// light unit keeps half of the CPUs busy, which is its share. The heavy unit runs two processes per CPU.
    fn make(machine: &Machine, seconds: u32, directory: &Path, signals: &Signals) -> Result<Plan, Failure> {
        let cpus = u32::try_from(machine.cpus.len()).unwrap_or(u32::MAX);
        let kind = work::Kind::choose();
        let piece = kind.time_one(directory, signals)?;
        let pieces_per_cpu = (f64::from(seconds) / piece.as_secs_f64()).round().clamp(1.0, 100_000.0);
        // The number is whole and at most 100,000.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let pieces_per_cpu = pieces_per_cpu as u32;
        let at_a_time = (cpus / 2).max(1);
        let light = Load { pieces: pieces_per_cpu * at_a_time, at_a_time };
        Ok(Plan { kind, light, heavy: Load { pieces: light.pieces * HEAVY_FACTOR, at_a_time: cpus * 2 } })
    }

    fn describe(&self, load: Load) -> String {
        format!("{} {}, {} at a time", load.pieces, self.kind.plural(), load.at_a_time)
    }
}

/// Runs the jobs of one row to completion. The first repeat also adds the statement and samples of CPU use to
/// the row.
fn measure(
    session: &mut Session,
    plan: &Plan,
    row: &mut Run,
    screen: &mut Screen,
    signals: &Signals,
) -> Result<Repeat, Failure> {
    let before = session.status()?;
    let heavy = match row.scheme {
        Some(_) => Some(session.start("heavy", plan.kind, plan.heavy)?),
        None => None,
    };
    if heavy.is_some() {
        pause(signals, HEAD_START)?;
    }
    let light = session.start("light", plan.kind, plan.light)?;
    let begun = Instant::now();
    let is_first_run = row.repeats.is_empty();
    let mut jobs: Vec<(&str, Job)> = vec![("light", light)];
    jobs.extend(heavy.map(|job| ("heavy", job)));
    let mut repeat = Repeat { light_s: f64::NAN, heavy_s: None, others: 0.0 };
    let mut entitled: BTreeMap<String, u64> = BTreeMap::new();
    while !jobs.is_empty() {
        pause(signals, Duration::from_millis(20))?;
        let mut running = Vec::new();
        for (unit, mut job) in jobs {
            match job.run_time_if_ended()? {
                Some(run_time) if unit == "light" => repeat.light_s = run_time.as_secs_f64(),
                Some(run_time) => repeat.heavy_s = Some(run_time.as_secs_f64()),
                None => running.push((unit, job)),
            }
        }
        jobs = running;
        if screen.is_due() {
            let statement = session.status()?;
            if jobs.iter().any(|(unit, _)| *unit == "light") {
                let entitled_now = statement.accounts.iter().map(|a| (a.unit.clone(), a.entitled_micro_cpus));
                entitled = entitled_now.collect();
            }
            if is_first_run {
                let using = |a: &commonhold_ledger::Account| (a.unit.clone(), to_cpus(a.using_micro_cpus));
                let using = statement.accounts.iter().map(using).collect();
                row.samples.push(Sample { at_s: begun.elapsed().as_secs_f64(), using });
            }
            screen.draw(row, &statement);
        }
    }
    let mut statement = session.status()?;
    repeat.others = others(&before, &statement);
    if is_first_run {
        // At the end no unit is active. So the row shows the entitlements that were in force while the light
        // job ran.
        for account in &mut statement.accounts {
            account.entitled_micro_cpus =
                entitled.get(&account.unit).copied().unwrap_or(account.entitled_micro_cpus);
        }
        row.statement = Some(statement);
    }
    Ok(repeat)
}

/// The part of the machine's CPU time between two statements that processes in no unit used.
#[allow(clippy::cast_precision_loss, reason = "times of hours are exact enough")]
fn others(before: &Statement, after: &Statement) -> f64 {
    let since = |of: fn(&Statement) -> u64| of(after).saturating_sub(of(before)) as f64;
    let capacity = since(|statement| statement.capacity_ns);
    if capacity > 0.0 { since(|statement| statement.common_ns) / capacity } else { 0.0 }
}

#[allow(clippy::cast_precision_loss)]
fn to_cpus(micro: u64) -> f64 {
    micro as f64 / 1e6
}

/// The output while jobs run: on a terminal, a progress bar and a table that are redrawn in place;
/// everywhere, a bar for each job that has ended.
struct Screen {
    live: bool,
    quiet: bool,
    /// How long the light unit's job takes alone, in seconds.
    alone_s: u32,
    repeats: u32,
    begun: Instant,
    lines: usize,
    drawn_at: Instant,
}

/// How many times as long as the light unit's job alone a round takes: that job, both jobs on all CPUs under
/// smp and isolate, and the heavy unit's job on half of them under quota.
const ROUND_FACTOR: u32 = 1 + 2 * (1 + HEAVY_FACTOR) / 2 + HEAVY_FACTOR;

/// The length of the longest bar that is expected, that of the heavy unit's job under quota.
const BAR_COLUMNS: f64 = 40.0;

impl Screen {
    fn new(args: &Demo) -> Screen {
        let live = std::io::stdout().is_terminal() && !args.json;
        let now = Instant::now();
        let &Demo { json: quiet, seconds: alone_s, repeats, .. } = args;
        Screen { live, quiet, alone_s, repeats, begun: now, lines: 0, drawn_at: now }
    }

    /// Whether the interval since the last drawing has passed; if so, the next interval begins.
    fn is_due(&mut self) -> bool {
        let is_due = self.drawn_at.elapsed() >= DRAW_INTERVAL;
        if is_due {
            self.drawn_at = Instant::now();
        }
        is_due
    }

    fn draw(&mut self, row: &Run, statement: &Statement) {
        if !self.live {
            return;
        }
        let height = output::size().map_or(24, |(_, rows)| rows).min(16);
        let text =
            format!("{}\n{}", self.progress(row), status::live(statement, output::style(), height - 1));
        self.clear();
        print!("{text}");
        let _ = std::io::stdout().flush();
        self.lines = text.lines().count();
    }

    fn progress(&self, row: &Run) -> String {
        let whole = u64::from(self.alone_s * ROUND_FACTOR * self.repeats);
        let done = self.begun.elapsed().as_secs();
        let round = row.repeats.len() + 1;
        let which = match u32::try_from(round) {
            Ok(round) if round <= self.repeats => {
                format!("round {round} of {}, {}", self.repeats, row.name())
            }
            _ => format!("{}, again", row.name()),
        };
        let left = whole.checked_sub(done).map_or(String::new(), |left| format!(": about {left} s left"));
        format!("{} {which}{left}", progress::bar(done, whole))
    }

    /// Moves the cursor to the first line of the last drawing, and clears it.
    fn clear(&mut self) {
        if self.lines > 0 {
            print!("\x1b[{}A\x1b[J", self.lines);
        }
        self.lines = 0;
    }

    /// Prints the times of a repeat that has ended.
    fn finish(&mut self, row: &Run, repeat: &Repeat, may_repeat: bool) {
        self.clear();
        if self.quiet {
            return;
        }
        let mut name = row.name();
        for (job, time_s) in [("light", Some(repeat.light_s)), ("heavy", repeat.heavy_s)] {
            let Some(time_s) = time_s else { continue };
            let cells = time_s / f64::from(self.alone_s * HEAVY_FACTOR) * BAR_COLUMNS;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            let cells = cells.round().clamp(1.0, BAR_COLUMNS * 1.25) as usize;
            println!("{:<8} {job} {:>8}  {}", std::mem::take(&mut name), seconds(time_s), "█".repeat(cells));
        }
        if repeat.is_disturbed() {
            let again = if may_repeat { "; it does not count if another run is undisturbed" } else { "" };
            println!("         other processes used {:.0} % of the machine{again}", repeat.others * 100.0);
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The backend's name on `run`'s command line.
fn backend_word(backend: BackendChoice) -> &'static str {
    match backend {
        BackendChoice::Auto => "auto",
        BackendChoice::Kernel => "kernel",
        BackendChoice::Cgroup => "cgroup",
        BackendChoice::User => "user",
    }
}
