//! `commonhold sim`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use commonhold_contract::render;
use commonhold_report::simulation::{self, Study};
use commonhold_sim::scenario::{Overrides, Part, Read, Scenario, read_with};
use rayon::prelude::*;

use crate::cli::Sim;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::{load, output};

pub(crate) fn main(args: &Sim) -> Result<Exit, Failure> {
    let (scenario, machine) = open(args)?;
    let study = Study {
        scenario: name_of(args),
        machine,
        scheme: scenario.contract.machine.scheme,
        scheduler: scenario.hardware.kernel.scheduler,
        horizon_ns: scenario.workload.horizon_ns,
        runs: run_all(&scenario, args.seed, args.runs)?,
    };
    if let Some(path) = &args.html {
        output::write_page(path, &simulation::html(&study))?;
    }
    output::print(&match (args.json, args.csv) {
        (true, _) => simulation::json(&study),
        (_, true) => simulation::csv(&study),
        _ => simulation::text(&study, output::style()),
    })?;
    Ok(if study.sound() { Exit::Ok } else { Exit::Broken })
}

/// What the scenario is called: its folder, and its workload where that is another than the folder's.
fn name_of(args: &Sim) -> String {
    let folder = args.scenario.canonicalize().unwrap_or_else(|_| args.scenario.clone());
    let name =
        |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match &args.workload {
        Some(workload) => format!("{} ({})", name(&folder), name(workload)),
        None => name(&folder),
    }
}

/// Every run, by seed: the same whatever the number of threads.
fn run_all(
    scenario: &Scenario,
    seed: u64,
    runs: u64,
) -> Result<Vec<commonhold_sim::outcome::Outcome>, Failure> {
    let progress = Progress::new("runs", usize::try_from(runs).unwrap_or(usize::MAX));
    let seeds = seed..seed.saturating_add(runs);
    let run = |seed| {
        let outcome = commonhold_sim::run(scenario, seed);
        progress.step();
        outcome
    };
    let outcomes: Result<Vec<_>, _> = seeds.into_par_iter().map(run).collect();
    outcomes.map_err(|e| Failure::new(Exit::Invalid, e))
}

/// The scenario, if its files are right, and what its machine is called. Warnings are shown.
fn open(args: &Sim) -> Result<(Scenario, String), Failure> {
    if !args.scenario.is_dir() {
        let what = if args.scenario.exists() { "it is no folder" } else { "there is no such folder" };
        let remedy = "give a folder with contract.toml, machine.toml and workload.toml";
        return Err(Failure::new(Exit::NoInput, format!("{}: {what}; {remedy}", args.scenario.display())));
    }
    let path =
        |given: &Option<PathBuf>, name: &str| given.clone().unwrap_or_else(|| args.scenario.join(name));
    let contract = path(&args.contract, "contract.toml");
    let machine = path(&args.machine, "machine.toml");
    let workload = path(&args.workload, "workload.toml");
    let texts =
        [load::read(&contract)?, load::text_of(&machine, "machine")?, load::text_of(&workload, "workload")?];
    let instead =
        Overrides { scheme: args.scheme.map(Into::into), scheduler: args.scheduler.map(Into::into) };
    let Read { scenario, machine: about, findings, .. } = read_with(&texts[0], &texts[1], &texts[2], instead);
    let mut said = String::new();
    if let Some(scenario) = &scenario {
        // What `check` says of the contract on this machine, its own warnings among it.
        let name = contract.display().to_string();
        said += &load::check_text(&texts[0], &name, &scenario.hardware.machine, None)?.warnings;
    }
    let told = scenario.is_some();
    for finding in findings.into_iter().filter(|finding| !(told && finding.part == Part::Contract)) {
        let (path, text) = match finding.part {
            Part::Contract => (&contract, &texts[0]),
            Part::Machine => (&machine, &texts[1]),
            Part::Workload => (&workload, &texts[2]),
        };
        let colour = std::io::stderr().is_terminal();
        said += &render(&finding.diagnostics, text, &path.display().to_string(), colour);
    }
    match scenario {
        Some(scenario) => {
            output::complain_of(&said);
            Ok((scenario, about.title))
        }
        None => Err(Failure::new(Exit::Invalid, said.trim_end())),
    }
}
