//! Reads the three texts of a scenario together: contract, machine and workload.
//!
//! A workload names units of the contract and disks of the machine. So it is read only if contract and
//! machine are without error. Overrides of the command line replace values of the files before the workload
//! is read.

use commonhold_contract::{Contract, Diagnostic, Scheme};

use super::machine::parse_with_scheduler_span;
use super::model::{Hardware, Scenario, Scheduler};
use super::parse_workload;
use super::values::{About, Span};

/// One of a scenario's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// `contract.toml`: what each unit is promised.
    Contract,
    /// `machine.toml`: the hardware and the costs of its kernel.
    Machine,
    /// `workload.toml`: the programs, files and jobs.
    Workload,
}

/// The errors and warnings about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub part: Part,
    /// All errors and warnings, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// The result of reading a scenario's three files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The scenario; `None` if a file has an error.
    pub scenario: Option<Scenario>,
    /// The machine's title and source.
    pub machine: About,
    /// The workload's title and source.
    pub workload: About,
    /// One entry for each file that has an error or a warning.
    pub findings: Vec<Finding>,
}

/// Values from the command line that replace values of the files. `None` leaves the file's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// Replaces the contract's scheme.
    pub scheme: Option<Scheme>,
    /// Replaces the machine's scheduler.
    pub scheduler: Option<Scheduler>,
    /// Makes all units negotiate, even those that the contract excludes.
    pub negotiate: bool,
}

impl Overrides {
    fn apply(self, contract: &mut Contract, hardware: &mut Hardware) {
        contract.machine.scheme = self.scheme.unwrap_or(contract.machine.scheme);
        if self.negotiate {
            contract.negotiate();
        }
        hardware.kernel.scheduler = self.scheduler.unwrap_or(hardware.kernel.scheduler);
    }
}

/// Reads a scenario from the texts of its files. The workload is read only if contract and machine are
/// without error.
pub fn read(contract: &str, machine: &str, workload: &str) -> Read {
    read_with(contract, machine, workload, Overrides::default())
}

/// Reads a scenario as [`read`] does, with overrides of values in the files.
pub fn read_with(contract: &str, machine: &str, workload: &str, overrides: Overrides) -> Read {
    let (mut contract_read, (mut hardware, scheduler_span)) =
        (commonhold_contract::parse(contract), parse_with_scheduler_span(machine));
    if let (Some(contract), Some(machine)) = (&mut contract_read.contract, &mut hardware.value) {
        overrides.apply(contract, machine);
        // A scheduler from the command line is no mistake of the file: the caller reports it.
        if let (Some(span), None) = (scheduler_span, overrides.scheduler)
            && let Some(diagnostic) = unheld_scheme(contract.machine.scheme, machine.kernel.scheduler, span)
        {
            hardware.diagnostics.push(diagnostic);
            hardware.value = None;
        }
    }
    let mut read = Read {
        scenario: None,
        machine: hardware.about,
        workload: About::default(),
        findings: vec![
            Finding { part: Part::Contract, diagnostics: contract_read.diagnostics },
            Finding { part: Part::Machine, diagnostics: hardware.diagnostics },
        ],
    };
    if let (Some(contract), Some(hardware)) = (contract_read.contract, hardware.value) {
        let workload_read = parse_workload(workload, &contract, &hardware);
        read.workload = workload_read.about;
        read.findings.push(Finding { part: Part::Workload, diagnostics: workload_read.diagnostics });
        read.scenario = workload_read.value.map(|workload| Scenario { contract, hardware, workload });
    }
    read.findings.retain(|finding| !finding.diagnostics.is_empty());
    read
}

/// An error if the scheduler knows no units but the contract's scheme needs them.
fn unheld_scheme(scheme: Scheme, scheduler: Scheduler, scheduler_span: Span) -> Option<Diagnostic> {
    let message =
        format!("the scheduler {scheduler} knows no units, and cannot hold the contract's scheme {scheme}");
    let help =
        format!("write `scheme = \"{}\"` in the contract's [machine], or leave `scheduler` out", Scheme::Smp);
    let error = || Diagnostic::error("unheld-scheme", scheduler_span, message);
    (!scheduler.holds(scheme)).then(|| error().label("knows no units").help(help))
}
