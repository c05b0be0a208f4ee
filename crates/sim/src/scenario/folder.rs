//! The three texts of a scenario, read together.

use commonhold_contract::Diagnostic;

use super::model::Scenario;
use super::values::About;
use super::{parse_machine, parse_workload};

/// One of a scenario's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What each unit holds.
    Contract,
    /// The hardware.
    Machine,
    /// Who does what.
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

/// Reads a scenario from the texts of its files. A workload names units and disks, so it is read when those are known.
pub fn read(contract: &str, machine: &str, workload: &str) -> Read {
    let (asked, hardware) = (commonhold_contract::parse(contract), parse_machine(machine));
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
