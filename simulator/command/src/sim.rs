//! `commonhold sim`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::load;
use commonhold_command::output::{self, Page};
use commonhold_command::progress::Progress;
use commonhold_contract::{Discipline, PerResource, Permission, Scheme, UnitId, duration_text, render};
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::edit::Texts;
use commonhold_sim::scenario::{CallBack, Enforces, Overrides, Part, Read, Scenario, Scheduler, read_with};
use commonhold_sim_command::cli::{ALL, Sim};
use commonhold_sim_report::contracts::{self, CONTRACTS_MAX, Contracts, UnderContract};
use commonhold_sim_report::disciplines::{self, Disciplines, Under};
use commonhold_sim_report::figures::RunFigures;
use commonhold_sim_report::schemes::{self, Alone, Schemes};
use commonhold_sim_report::simulation::{self, Study};
use rayon::prelude::*;

use crate::run_progress::RunProgress;
use crate::{first, sweep};

pub(crate) fn main(args: &Sim) -> Result<Exit, Failure> {
    if let Some(folder) = &args.new {
        return first::write(folder);
    }
    if args.contract.len() > 1 {
        return compare_contracts(args);
    }
    if !args.sweep.is_empty() {
        return sweep::main(args);
    }
    let (mut scenario, machine) = open(args, args.contract.first())?;
    let interval_ns = args.trace.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1));
    scenario.workload.trace_ns = interval_ns;
    let page = args.html.as_deref().map(Page::at).transpose()?;
    if args.compare {
        return compare(args, &scenario, &machine, page);
    }
    if !args.disciplines.is_empty() {
        return compare_disciplines(args, &scenario, &machine, page);
    }
    let runs = run_all(std::slice::from_ref(&scenario), args.seed, args.seeds)?;
    let study = study(args, &scenario, &machine, runs);
    let text = match (args.json, args.csv) {
        (true, _) => simulation::json(&study),
        (_, true) => simulation::csv(&study),
        _ => simulation::text(&study, output::style()),
    };
    Page::print_then_write(page, &text, || simulation::html(&study))?;
    Ok(if study.sound() { Exit::Ok } else { Exit::CheckFailed })
}

fn study(args: &Sim, scenario: &Scenario, machine: &str, runs: Vec<Outcome>) -> Study {
    Study {
        scenario: name_of(args),
        machine: machine.to_owned(),
        scheme: scenario.contract.machine.scheme,
        scheduler: scenario.hardware.kernel.scheduler,
        horizon_ns: scenario.workload.horizon_ns,
        frame_bytes: scenario.hardware.kernel.frame_bytes,
        runs,
    }
}

/// Runs the scenario under every scheme, and each unit's jobs alone on the unit's share.
fn compare(args: &Sim, scenario: &Scenario, machine: &str, page: Option<Page>) -> Result<Exit, Failure> {
    let compared = [Scheme::Smp, Scheme::Quota, Scheme::Isolate];
    let mut scenarios: Vec<Scenario> = compared.iter().map(|scheme| under(scenario, *scheme)).collect();
    let units = units_that_end(scenario);
    scenarios.extend(units.iter().map(|unit| alone(scenario, *unit)));
    let mut outcomes = run_all(&scenarios, args.seed, args.seeds)?.into_iter();
    let mut next = || outcomes.by_ref().take(usize::try_from(args.seeds).unwrap_or(usize::MAX)).collect();
    let studies =
        scenarios.iter().take(compared.len()).map(|scenario| study(args, scenario, machine, next()));
    let studies = studies.collect();
    let path = |unit: &UnitId| scenario.contract.unit(*unit).path.clone();
    let alone = units.iter().map(|unit| Alone { unit: path(unit), runs: next() }).collect();
    let schemes = Schemes { studies, alone };
    let text = match (args.json, args.csv) {
        (true, _) => schemes::json(&schemes),
        (_, true) => schemes::csv(&schemes),
        _ => schemes::text(&schemes, output::style()),
    };
    Page::print_then_write(page, &text, || schemes::html(&schemes))?;
    Ok(if schemes.sound() { Exit::Ok } else { Exit::CheckFailed })
}

/// Runs the scenario under each of several contracts.
fn compare_contracts(args: &Sim) -> Result<Exit, Failure> {
    let given = args.contract.len();
    if given > CONTRACTS_MAX {
        let message = format!("there are {given} --contract; give {CONTRACTS_MAX} at most");
        return Err(Failure::new(Exit::Usage, message));
    }
    let other = [
        (args.compare, "--compare"),
        (!args.disciplines.is_empty(), "--disciplines"),
        (!args.sweep.is_empty(), "--sweep"),
        (args.trace.is_some(), "--trace"),
    ];
    if let Some((_, option)) = other.iter().find(|(is_given, _)| *is_given) {
        let message = format!("several --contract are compared, and {option} needs one; give one --contract");
        return Err(Failure::new(Exit::Usage, message));
    }
    let page = args.html.as_deref().map(Page::at).transpose()?;
    let opened: Result<Vec<(Scenario, String)>, Failure> =
        args.contract.iter().map(|contract| open(args, Some(contract))).collect();
    let (scenarios, machines): (Vec<Scenario>, Vec<String>) = opened?.into_iter().unzip();
    let mut figures = figures_of_all(&scenarios, args.seed, args.seeds)?.into_iter();
    let runs = usize::try_from(args.seeds).unwrap_or(usize::MAX);
    let under = args.contract.iter().map(|contract| UnderContract {
        name: contract.display().to_string(),
        runs: figures.by_ref().take(runs).collect(),
    });
    let compared = Contracts {
        scenario: name_of(args),
        machine: machines.into_iter().next().unwrap_or_default(),
        contracts: under.collect(),
    };
    let text = match (args.json, args.csv) {
        (true, _) => contracts::json(&compared),
        (_, true) => contracts::csv(&compared),
        _ => contracts::text(&compared, output::style()),
    };
    Page::print_then_write(page, &text, || contracts::html(&compared))?;
    Ok(if compared.sound() { Exit::Ok } else { Exit::CheckFailed })
}

/// Runs the scenario under each of the listed disciplines.
fn compare_disciplines(
    args: &Sim,
    scenario: &Scenario,
    machine: &str,
    page: Option<Page>,
) -> Result<Exit, Failure> {
    let (scheduler, scheme) = (scenario.hardware.kernel.scheduler, scenario.contract.machine.scheme);
    if scheme == Scheme::Smp || scheduler != Scheduler::Commonhold {
        let (what, remedy) = if scheme == Scheme::Smp {
            (
                "under the scheme smp all tasks are equal, and no discipline orders them",
                "add `--scheme isolate`",
            )
        } else {
            ("a baseline's scheduler has no disciplines", "add `--scheduler commonhold`")
        };
        return Err(Failure::new(Exit::Usage, format!("--disciplines: {what}; {remedy}")));
    }
    let listed = |kind: &Discipline| args.disciplines.iter().any(|name| name == ALL || name == kind.name());
    let kinds: Vec<Discipline> = Discipline::ALL.into_iter().filter(listed).collect();
    let scenarios: Vec<Scenario> = kinds.iter().map(|kind| ordered(scenario, *kind)).collect();
    let mut outcomes = run_all(&scenarios, args.seed, args.seeds)?.into_iter();
    let runs = usize::try_from(args.seeds).unwrap_or(usize::MAX);
    let under = kinds.iter().zip(&scenarios).map(|(discipline, scenario)| Under {
        discipline: *discipline,
        study: study(args, scenario, machine, outcomes.by_ref().take(runs).collect()),
    });
    let compared = Disciplines { under: under.collect() };
    let text = match (args.json, args.csv) {
        (true, _) => disciplines::json(&compared),
        (_, true) => disciplines::csv(&compared),
        _ => disciplines::text(&compared, output::style()),
    };
    Page::print_then_write(page, &text, || disciplines::html(&compared))?;
    Ok(if compared.sound() { Exit::Ok } else { Exit::CheckFailed })
}

/// The scenario with this discipline in every unit whose contract leaves the default.
fn ordered(scenario: &Scenario, discipline: Discipline) -> Scenario {
    let mut scenario = scenario.clone();
    for unit in scenario.contract.units.iter_mut().filter(|unit| unit.discipline == Discipline::default()) {
        unit.discipline = discipline;
    }
    scenario
}

/// The scenario under a scheme. A baseline's scheduler knows no units, so schemes that isolate units replace
/// it by ours.
fn under(scenario: &Scenario, scheme: Scheme) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.contract.machine.scheme = scheme;
    let scheduler = &mut scenario.hardware.kernel.scheduler;
    if !scheduler.holds(scheme) {
        *scheduler = Scheduler::Commonhold;
    }
    scenario
}

/// Units with at least one foreground job, in the contract's order.
fn units_that_end(scenario: &Scenario) -> Vec<UnitId> {
    let jobs = &scenario.workload.jobs;
    let ends = |unit: &UnitId| jobs.iter().any(|job| job.unit == *unit && !job.background);
    scenario.contract.ids().filter(ends).collect()
}

/// A unit's jobs alone. The scheme `quota` withholds the others' shares. The others' jobs stay in the
/// workload but never start, so that the unit's own jobs draw the same random numbers.
fn alone(scenario: &Scenario, unit: UnitId) -> Scenario {
    let mut scenario = under(scenario, Scheme::Quota);
    let never = scenario.workload.horizon_ns.saturating_add(1);
    for job in scenario.workload.jobs.iter_mut().filter(|job| job.unit != unit) {
        (job.background, job.start_ns) = (true, never);
    }
    scenario
}

/// The scenario's name: its folder, and its workload if another than the folder's was given.
pub(crate) fn name_of(args: &Sim) -> String {
    let folder = folder(args).canonicalize().unwrap_or_else(|_| folder(args).to_owned());
    let name =
        |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match &args.workload {
        Some(workload) => format!("{} ({})", name(&folder), name(workload)),
        None => name(&folder),
    }
}

/// The scenario's folder. The command line has one wherever a scenario is run.
fn folder(args: &Sim) -> &Path {
    args.scenario.as_deref().unwrap_or(Path::new("."))
}

/// Runs every scenario with every seed. The order of the outcomes does not depend on the number of threads.
fn run_all(scenarios: &[Scenario], seed: u64, runs: u64) -> Result<Vec<Outcome>, Failure> {
    if let ([scenario], 1) = (scenarios, runs) {
        let progress = RunProgress::new(scenario.workload.horizon_ns);
        let outcome = commonhold_sim::run_watched(scenario, seed, progress.clock());
        return outcome.map(|outcome| vec![outcome]).map_err(|error| Failure::new(Exit::Invalid, error));
    }
    run_each(scenarios, seed, runs, |_, outcome| outcome)
}

/// The figures of every scenario with every seed, in this order.
fn figures_of_all(scenarios: &[Scenario], seed: u64, runs: u64) -> Result<Vec<RunFigures>, Failure> {
    run_each(scenarios, seed, runs, |scenario, outcome| {
        RunFigures::of(&outcome, scenario.hardware.kernel.frame_bytes)
    })
}

/// Runs every scenario with every seed, on all CPUs, and keeps a part of each outcome.
fn run_each<T: Send>(
    scenarios: &[Scenario],
    seed: u64,
    runs: u64,
    part: impl Fn(&Scenario, Outcome) -> T + Sync,
) -> Result<Vec<T>, Failure> {
    let seeds = seed..seed.saturating_add(runs);
    let all: Vec<(&Scenario, u64)> =
        scenarios.iter().flat_map(|scenario| seeds.clone().map(move |seed| (scenario, seed))).collect();
    let progress = Progress::new("runs", all.len());
    let run = |(scenario, seed)| {
        let outcome = commonhold_sim::run(scenario, seed);
        progress.step();
        outcome.map(|outcome| part(scenario, outcome))
    };
    let outcomes: Result<Vec<_>, _> = all.into_par_iter().map(run).collect();
    outcomes.map_err(|error| Failure::new(Exit::Invalid, error))
}

/// Checks that all files exist. The error lists all missing files.
fn check_present(files: &[(&PathBuf, &str)]) -> Result<(), Failure> {
    let missing: Vec<&(&PathBuf, &str)> = files.iter().filter(|(path, _)| !path.exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let listed: Vec<String> =
        missing.iter().map(|(path, what)| format!("{} (the {what})", path.display())).collect();
    let options: Vec<String> = missing.iter().map(|(_, what)| format!("--{what}")).collect();
    let these = if missing.len() == 1 { "this file is" } else { "these files are" };
    let remedy = format!("write them, or name others with {}", options.join(", "));
    Err(Failure::new(Exit::NoInput, format!("{these} missing: {}; {remedy}", listed.join(", "))))
}

/// A scenario's files.
#[derive(Clone)]
pub(crate) struct Files {
    /// The paths of contract, machine and workload.
    paths: [PathBuf; 3],
    /// Their texts.
    pub(crate) texts: Texts,
}

/// A valid scenario.
pub(crate) struct Checked {
    /// The scenario.
    pub(crate) scenario: Scenario,
    /// The title of its machine.
    pub(crate) machine: String,
    /// Warnings, rendered.
    pub(crate) warnings: String,
}

/// Reads and checks the scenario: returns it with its machine's title, and prints warnings.
fn open(args: &Sim, contract: Option<&PathBuf>) -> Result<(Scenario, String), Failure> {
    let checked = check(args, &read_files(args, contract)?)?;
    output::complain_of(&checked.warnings);
    Ok((checked.scenario, checked.machine))
}

/// Reads the scenario's files, with this contract in place of the folder's.
pub(crate) fn read_files(args: &Sim, contract: Option<&PathBuf>) -> Result<Files, Failure> {
    let folder = folder(args);
    if !folder.is_dir() {
        let what = if folder.exists() { "it is not a folder" } else { "there is no such folder" };
        let remedy =
            "give a folder with contract.toml, machine.toml and workload.toml, or write one with --new";
        return Err(Failure::new(Exit::NoInput, format!("{}: {what}; {remedy}", folder.display())));
    }
    let path = |given: Option<&PathBuf>, name: &str| given.cloned().unwrap_or_else(|| folder.join(name));
    let contract = path(contract, "contract.toml");
    let machine = path(args.machine.as_ref(), "machine.toml");
    let workload = path(args.workload.as_ref(), "workload.toml");
    check_present(&[(&contract, "contract"), (&machine, "machine"), (&workload, "workload")])?;
    let toml = |path: &Path, what| load::text_of(path, what, "the path of a TOML file");
    let texts = Texts {
        contract: load::read(&contract)?,
        machine: toml(&machine, "machine")?,
        workload: toml(&workload, "workload")?,
    };
    Ok(Files { paths: [contract, machine, workload], texts })
}

/// Checks the scenario. The error has all diagnostics.
pub(crate) fn check(args: &Sim, files: &Files) -> Result<Checked, Failure> {
    let ([contract, machine, workload], texts) = (&files.paths, &files.texts);
    let overrides = Overrides {
        scheme: args.scheme.map(Into::into),
        scheduler: args.scheduler.map(Into::into),
        negotiate: args.negotiate,
    };
    let Read { scenario, machine: about, findings, .. } =
        read_with(&texts.contract, &texts.machine, &texts.workload, overrides);
    let mut warnings = String::new();
    if let Some(scenario) = &scenario {
        // The diagnostics of `commonhold check` for the contract on this machine, warnings included.
        let name = contract.display().to_string();
        warnings += &load::check_text(&texts.contract, &name, &scenario.hardware.machine, None)?.warnings;
        warnings += &not_limited(scenario);
        warnings += &late(scenario);
        warnings += &not_placed(scenario);
    }
    // `check_text` has reported the contract's findings.
    let is_checked = scenario.is_some();
    for finding in findings.into_iter().filter(|finding| !(is_checked && finding.part == Part::Contract)) {
        let path = match finding.part {
            Part::Contract => contract,
            Part::Machine => machine,
            Part::Workload => workload,
        };
        let colour = std::io::stderr().is_terminal();
        let text = texts.of(finding.part);
        warnings += &render(&finding.diagnostics, text, &path.display().to_string(), colour);
    }
    let Some(scenario) = scenario else { return Err(Failure::rendered(Exit::Invalid, &warnings)) };
    let (scheduler, scheme) = (scenario.hardware.kernel.scheduler, scenario.contract.machine.scheme);
    // --compare replaces a baseline's scheduler under schemes that it cannot hold.
    if args.scheduler.is_some() && !args.compare && !scheduler.holds(scheme) {
        let remedy = "add `--scheme smp`, or leave --scheduler out";
        let what = format!("--scheduler {scheduler} knows no units, and cannot hold the scheme {scheme}");
        return Err(Failure::new(Exit::Usage, format!("{what}; {remedy}")));
    }
    Ok(Checked { scenario, machine: about.title, warnings })
}

/// Warnings about limits and amounts of loans that a live machine enforces and the simulator does not.
fn not_limited(scenario: &Scenario) -> String {
    let contract = &scenario.contract;
    // A machine that enforces as Linux does holds limits on disks by rates.
    let disks = scenario.hardware.enforces == Enforces::Irix;
    let limited = |id: &UnitId| {
        let limit = &contract.unit(*id).limit;
        contract.machine.scheme != Scheme::Smp && (limit.cpu.is_some() || disks && limit.disk.is_some())
    };
    let what = if disks { "borrowed CPUs and on disks" } else { "borrowed CPUs" };
    let limit_warning = |id: UnitId| {
        let path = &contract.unit(id).path;
        format!("warning: the simulator does not hold `{path}` to its limit on {what}; a live machine does\n")
    };
    let lends_amounts = |id: &UnitId| {
        let unit = contract.unit(*id);
        let named = |loans: &PerResource<Permission>| {
            [Some(loans.cpu), disks.then_some(loans.disk)]
                .iter()
                .flatten()
                .any(|loan| loan.amount().is_some() && loan.allows())
        };
        contract.machine.scheme == Scheme::Isolate && (named(&unit.lend) || named(&unit.borrow))
    };
    let resources = if disks { "CPUs and disks" } else { "CPUs" };
    let amount_warning = |id: UnitId| {
        let path = &contract.unit(id).path;
        format!(
            "warning: the simulator takes amounts of {resources} that `{path}` lends and borrows for `true`\n"
        )
    };
    let limits: String = contract.held().filter(limited).map(limit_warning).collect();
    limits + &contract.held().filter(lends_amounts).map(amount_warning).collect::<String>()
}

/// A warning if the machine calls a CPU back later than the contract promises.
fn late(scenario: &Scenario) -> String {
    let promised_ns = scenario.contract.machine.call_back_ns;
    let kernel = &scenario.hardware.kernel;
    let at_once = kernel.call_back == CallBack::Now;
    if scenario.contract.machine.scheme != Scheme::Isolate || at_once || kernel.tick_ns <= promised_ns {
        return String::new();
    }
    format!(
        "warning: the contract promises that a CPU is called back within {}, but this machine looks only at its clock tick, \
         every {}: write `call_back = \"now\"` in the machine file\n",
        duration_text(promised_ns),
        duration_text(kernel.tick_ns)
    )
}

/// Warnings about units without `job` under Hurricane's scheduler. It never moves a task, so all tasks of
/// such a unit stay on one CPU.
fn not_placed(scenario: &Scenario) -> String {
    if scenario.hardware.kernel.scheduler != Scheduler::Hurricane {
        return String::new();
    }
    let (contract, jobs) = (&scenario.contract, &scenario.workload.jobs);
    let is_unplaced =
        |id: &UnitId| jobs.iter().any(|job| job.unit == *id) && contract.unit(*id).job.is_none();
    let warning = |id: UnitId| {
        let path = &contract.unit(id).path;
        format!(
            "warning: the scheduler hurricane moves nothing, and `{path}` says no `job`: its tasks stay on the first CPU; give \
             that unit `job = \"tree\"` in the contract, or choose another `scheduler`\n"
        )
    };
    contract.ids().filter(is_unplaced).map(warning).collect()
}
