//! `commonhold what-if`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::load;
use commonhold_command::output::{self, Page};
use commonhold_contract::Contract;
use commonhold_machine::Machine;
use commonhold_replay::scenario::scenario;
use commonhold_replay::{Figures, Recorded, ReplayError};
use commonhold_report::figures::{count, duration};
use commonhold_sim_command::cli::WhatIf as Args;
use commonhold_sim_report::what_if::{self, WhatIf};

use crate::run_progress::RunProgress;

pub(crate) fn main(args: &Args) -> Result<Exit, Failure> {
    let page = args.html.as_deref().map(Page::at).transpose()?;
    let recorded = read(&args.recording)?;
    let against = match &args.against {
        Some(path) => Some((name(path), read(path)?.measured)),
        None => None,
    };
    let replayed = replay(args, &recorded, "the recorded contract", &recorded.contract, None)?;
    let other = match other(args, &recorded)? {
        Some((name, contract, machine)) => {
            let figures = replay(args, &recorded, &name, &contract, machine.as_ref())?;
            Some((name, figures))
        }
        None => None,
    };
    let what_if = WhatIf {
        recording: args.recording.display().to_string(),
        about: about(&recorded),
        recorded_contract: recorded.header.contract.clone(),
        recorded_machine: recorded.header.machine.clone(),
        doubts: doubts(&recorded),
        recorded: recorded.measured,
        replayed,
        other,
        against,
    };
    let text = if args.json { what_if::json(&what_if) } else { what_if::text(&what_if, output::style()) };
    Page::print_then_write(page, &text, || what_if::html(&what_if))?;
    Ok(if what_if.is_refuted() { Exit::Broken } else { Exit::Ok })
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn read(path: &Path) -> Result<Recorded, Failure> {
    let named = |error: &io::Error| {
        let remedy = "give a file that `commonhold record` wrote";
        Failure::new(Exit::of_named(error), format!("{}: {error}; {remedy}", path.display()))
    };
    let file = File::open(path).map_err(|error| named(&error))?;
    if !file.metadata().map_err(|error| named(&error))?.is_file() {
        return Err(named(&io::Error::new(io::ErrorKind::IsADirectory, "it is not a file")));
    }
    Recorded::read(BufReader::new(file))
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))
}

/// The other contract and machine, with a name for both; `None` if none was given.
fn other(args: &Args, recorded: &Recorded) -> Result<Option<(String, Contract, Option<Machine>)>, Failure> {
    let machine = args.machine.as_deref().map(|machine| load::machine(Some(machine))).transpose()?;
    let mut names = Vec::new();
    let mut contract = match &args.contract {
        Some(path) => {
            names.push(name(path));
            let loaded = load::contract(path, machine.as_ref().unwrap_or(&recorded.machine), None)?;
            output::complain_of(&loaded.warnings);
            loaded.contract
        }
        None => recorded.contract.clone(),
    };
    if let Some(scheme) = args.scheme {
        contract.machine.scheme = scheme.into();
        names.push(format!("the scheme {}", contract.machine.scheme.name()));
    }
    if machine.is_some() {
        names.extend(args.machine.clone());
    }
    Ok((!names.is_empty()).then(|| (names.join(" on "), contract, machine)))
}

/// The figures of a replay under a contract with this name.
fn replay(
    args: &Args,
    recorded: &Recorded,
    name: &str,
    contract: &Contract,
    machine: Option<&Machine>,
) -> Result<Figures, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Invalid, error);
    let scenario = scenario(recorded, contract, machine).map_err(|error| match error {
        ReplayError::Units(_) => {
            failed(&format!("{}: {error}; add it, or record again", output::shown(name)))
        }
        error => Failure::new(Exit::NoInput, error),
    })?;
    let progress = RunProgress::new(scenario.workload.horizon_ns);
    let outcome = commonhold_sim::run_watched(&scenario, args.seed, progress.clock())
        .map_err(|error| failed(&error))?;
    if outcome.broken > 0 {
        let notes = outcome.notes.join("; ");
        return Err(Failure::new(
            Exit::CheckFailed,
            format!("{} of the simulation's own checks failed: {notes}", outcome.broken),
        ));
    }
    Ok(Figures::of_run(&outcome))
}

/// The recording in a line.
fn about(recorded: &Recorded) -> String {
    let header = &recorded.header;
    format!(
        "{} of {} in {}, by {}; backend {}, scheme {}, Linux {}",
        duration(recorded.activity.length_ns),
        count(recorded.activity.tasks.len(), "task"),
        count(recorded.measured.units.len(), "unit"),
        header.method,
        header.backend,
        header.scheme,
        output::shown(&header.kernel)
    )
}

/// What leaves the recording or its replay in doubt.
fn doubts(recorded: &Recorded) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(damage) = &recorded.damage {
        doubts.push(format!("{damage}; what follows is missing"));
    }
    match &recorded.end {
        None if recorded.damage.is_none() => {
            doubts.push(
                "the recording was cut short: the recorder did not end it, or the file was truncated"
                    .to_owned(),
            );
        }
        None => {}
        Some(end) => {
            if end.lost > 0 {
                doubts
                    .push(format!("{} events were lost; bursts and sleeps around them are wrong", end.lost));
            }
            if end.disordered > 0 {
                doubts.push(format!(
                    "{} events came too late to be put in order, and are left out",
                    end.disordered
                ));
            }
            if end.without_accounts_ns > 0 {
                let span = duration(end.without_accounts_ns);
                doubts.push(format!(
                    "for {span} no daemon answered the recorder; its call-backs and waits of that time are missing"
                ));
            }
        }
    }
    if let Some(change) = &recorded.not_held {
        let since = if change.at_ns < 1_000_000_000 {
            String::new()
        } else {
            format!("from {} on, ", duration(change.at_ns))
        };
        doubts.push(format!("{since}CPU time was {}; the replay holds it", output::shown(&change.how)));
    }
    if !recorded.knows_wakers {
        doubts.push(
            "the recorder could not tell what woke threads: in the replay, no thread waits for another"
                .to_owned(),
        );
    }
    if recorded.left_out > 0 {
        doubts.push(format!(
            "the recorder left {} out, as there were too many; their CPU time counts for no unit",
            count(usize::try_from(recorded.left_out).unwrap_or(usize::MAX), "process or thread")
        ));
    }
    let missing = recorded.missing.saturating_add(recorded.impossible);
    if missing > 0 {
        doubts.push(format!(
            "the kernel did not report {missing} of the switches between threads; their times are estimates"
        ));
    }
    if recorded.contract_changes > 0 {
        let number = count(recorded.contract_changes, "time");
        doubts.push(format!(
            "the contract or its tickets changed {number} meanwhile; the replay uses the first contract"
        ));
    }
    if recorded.header.backend != "kernel" {
        doubts.push(format!(
            "the recorded backend was `{}`; the replay has Commonhold's scheduler, as the backend `kernel`",
            output::shown(&recorded.header.backend)
        ));
    }
    doubts
}
