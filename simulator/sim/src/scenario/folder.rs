//! The three texts of a scenario, read together.

use commonhold_contract::{Contract, Diagnostic, Scheme};

use super::machine::parse_with_place;
use super::model::{Hardware, Scenario, Scheduler};
use super::parse_workload;
use super::values::{About, Span};

/// One of a scenario's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What each unit holds.
    Contract,
    /// The hardware.
    Machine,
    /// What the jobs do.
    Workload,
}

/// What there is to say about one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub part: Part,
    /// Everything that is wrong or doubtful in it.
    pub diagnostics: Vec<Diagnostic>,
}

/// A scenario as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The scenario, if nothing is wrong.
    pub scenario: Option<Scenario>,
    /// What the machine says of itself.
    pub machine: About,
    /// What the workload says of itself.
    pub workload: About,
    /// One entry per file about which there is something to say.
    pub findings: Vec<Finding>,
}

/// What is asked for whatever the files say; nothing where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// In place of the contract's scheme.
    pub scheme: Option<Scheme>,
    /// In place of the machine's scheduler.
    pub scheduler: Option<Scheduler>,
    /// All units negotiate, whatever the contract says.
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

/// Reads a scenario from the texts of its files. A workload names units and disks, so it is read when those are known.
pub fn read(contract: &str, machine: &str, workload: &str) -> Read {
    read_with(contract, machine, workload, Overrides::default())
}

/// The same with overrides of values in the files.
pub fn read_with(contract: &str, machine: &str, workload: &str, instead: Overrides) -> Read {
    let (mut asked, (mut hardware, place)) =
        (commonhold_contract::parse(contract), parse_with_place(machine));
    if let (Some(contract), Some(machine)) = (&mut asked.contract, &mut hardware.value) {
        instead.apply(contract, machine);
        // What the command line asks for is not the file's fault: the caller says so.
        if let (Some(place), None) = (place, instead.scheduler)
            && let Some(wrong) = unheld(contract.machine.scheme, machine.kernel.scheduler, place)
        {
            hardware.diagnostics.push(wrong);
            hardware.value = None;
        }
    }
    let mut read = Read {
        scenario: None,
        machine: hardware.about,
        workload: About::default(),
        findings: vec![
            Finding { part: Part::Contract, diagnostics: asked.diagnostics },
            Finding { part: Part::Machine, diagnostics: hardware.diagnostics },
        ],
    };
    if let (Some(contract), Some(hardware)) = (asked.contract, hardware.value) {
        let work = parse_workload(workload, &contract, &hardware);
        read.workload = work.about;
        read.findings.push(Finding { part: Part::Workload, diagnostics: work.diagnostics });
        read.scenario = work.value.map(|workload| Scenario { contract, hardware, workload });
    }
    read.findings.retain(|finding| !finding.diagnostics.is_empty());
    read
}

/// A scheduler that knows no units, under a scheme that needs them.
fn unheld(scheme: Scheme, scheduler: Scheduler, place: Span) -> Option<Diagnostic> {
    let message =
        format!("the scheduler {scheduler} knows no units, and cannot hold the contract's scheme {scheme}");
    let help =
        format!("write `scheme = \"{}\"` in the contract's [machine], or leave `scheduler` out", Scheme::Smp);
    (!scheduler.holds(scheme))
        .then(|| Diagnostic::error("unheld-scheme", place, message).label("knows no units").help(help))
}
