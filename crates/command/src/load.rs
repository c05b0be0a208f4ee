//! Loads contracts and machines from files, with all diagnostics.

use std::io::{self, IsTerminal};
use std::path::Path;

use commonhold_contract::{Contract, Diagnostic, position, render};
use commonhold_live::host::trust;
use commonhold_live::observe::cpu_kinds::Isolation;
use commonhold_live::observe::names::SystemNames;
use commonhold_live::observe::topology;
use commonhold_machine::Machine;

use crate::exit::{Exit, Failure};
use crate::{fit, here, output};

/// The largest text that is read: a contract of 100,000 units has about 10 MB; a larger file is a mistaken
/// name.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The largest recording that is read: `trace` of tracefs has about 100 bytes per event.
const RECORDING_BYTES_MAX: u64 = 4 << 30;

const A_TOML_FILE: &str = "the path of a TOML file";

/// The remedy if the file describes a machine of a simulator's scenario. Such a file has keys that only the
/// simulator reads.
const SCENARIO_MACHINE: &str = "; a scenario's machine: pass its `shape` instead, as in `--machine 'nodes:4 cpus:2'`, or \
     check the whole scenario with `commonhold sim FOLDER`";

/// The requirements on root's contract.
const TRUSTED: &str = "root's contract, and each directory on the way to it, must belong to root, and neither group nor \
     others may write to them (`chown root:root`, `chmod go-w`), as in /etc/commonhold";

/// The codes of errors about members, which leave a contract's amounts valid.
const ABOUT_MEMBERS: [&str; 3] = ["bad-member", "conflicting-members", "unknown-unit"];

/// A contract that is valid on a machine, with its warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The contract.
    pub contract: Contract,
    /// Warnings, rendered.
    pub warnings: String,
}

/// Reads a contract and checks it for a machine. With `names`, the machine is this one, and users and groups
/// are looked up.
pub fn contract(path: &Path, machine: &Machine, names: Option<&SystemNames>) -> Result<Loaded, Failure> {
    let text = read(path)?;
    check_text(&text, &path.display().to_string(), machine, names)
}

/// Checks a contract's text as [`contract`] does; `file` is its name in messages.
pub fn check_text(
    text: &str,
    file: &str,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> Result<Loaded, Failure> {
    let (contract, diagnostics) = diagnose(text, machine, names);
    let rendered = render(&diagnostics, text, file, std::io::stderr().is_terminal());
    match contract {
        Some(contract) => Ok(Loaded { contract, warnings: rendered }),
        None => Err(Failure::rendered(Exit::Invalid, &rendered)),
    }
}

/// Parses a contract and checks it for a machine; returns the contract if it has no errors, and all
/// diagnostics.
pub fn diagnose(
    text: &str,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> (Option<Contract>, Vec<Diagnostic>) {
    let parsed = commonhold_contract::parse(text);
    let mut diagnostics = parsed.diagnostics;
    if let Some(contract) = &parsed.contract {
        diagnostics.extend(fit::diagnose(contract, &divided(contract, machine)));
        diagnostics.extend(names.map(|names| here::diagnose(contract, names)).unwrap_or_default());
    }
    if let Some(draft) = &parsed.draft {
        // Errors about amounts are reported only if the amounts were read without error. Otherwise they would
        // be consequences of the errors above.
        let amounts_stand = diagnostics.iter().all(|d| !d.is_error() || ABOUT_MEMBERS.contains(&d.code));
        let fitting = if amounts_stand { fit::diagnose(draft, &divided(draft, machine)) } else { Vec::new() };
        diagnostics.extend(fitting.into_iter().filter(Diagnostic::is_error));
        diagnostics.extend(names.map(|names| here::unknown_names(draft, names)).unwrap_or_default());
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.start);
    let wrong = diagnostics.iter().any(Diagnostic::is_error);
    (parsed.contract.filter(|_| !wrong), diagnostics)
}

/// The part of a machine that a contract divides: without isolated CPUs, unless the contract has
/// `isolated = true`.
pub fn divided(contract: &Contract, machine: &Machine) -> Machine {
    machine.divided(contract.machine.isolated)
}

/// Prints notes on CPUs that the contract does not divide, and on CPUs of unequal capacity. `is_here` means
/// that `machine` is this one, which may have isolated CPUs that this process may not use.
pub fn tell_of_cpus(contract: &Contract, machine: &Machine, is_here: bool) {
    for note in cpu_notes(contract, machine, is_here) {
        output::warn(&format!("note: {note}"));
    }
}

fn cpu_notes(contract: &Contract, machine: &Machine, is_here: bool) -> Vec<String> {
    let divided = divided(contract, machine);
    let isolation = if is_here { topology::isolation(Path::new("/")) } else { Isolation::default() };
    let left_out = isolation.all().union(&machine.isolated()).difference(&divided.cpu_set());
    let by = if isolation.by.is_empty() { String::new() } else { format!(" ({isolation})") };
    let help = match contract.machine.isolated {
        false => "write `isolated = true` in [machine] to divide those that commonhold may use",
        true => {
            "this process may not use them: for those of isolcpus, start it under `taskset -c LIST`; a cpuset \
             partition keeps its CPUs until it is dissolved"
        }
    };
    let isolated =
        (!left_out.is_empty()).then(|| format!("isolated CPUs {left_out}{by} are given to no unit; {help}"));
    isolated.into_iter().chain(divided.unequal_capacity()).collect()
}

/// Checks a contract as [`diagnose`] does; returns the diagnostics for a JSON document, each with its line
/// and column.
pub fn diagnose_placed(
    text: &str,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> (Option<Contract>, Vec<serde_json::Value>) {
    let (contract, diagnostics) = diagnose(text, machine, names);
    let place = |diagnostic: &Diagnostic| {
        let (line, column) = position(text, diagnostic.span.start);
        serde_json::json!({ "line": line, "column": column, "diagnostic": diagnostic })
    };
    (contract, diagnostics.iter().map(place).collect())
}

/// Prints a contract's diagnostics as a JSON document, in place of the document that the user requested.
pub fn refuse_in_json(placed: &[serde_json::Value]) -> Result<Exit, Failure> {
    let document = serde_json::json!({
        "schema": "commonhold.diagnostics",
        "version": commonhold_report::JSON_VERSION,
        "diagnostics": placed,
    });
    output::print(&format!("{document:#}"))?;
    Ok(Exit::Invalid)
}

/// Prints a failure as the document of [`refuse_in_json`]. The failure has no position in the contract's
/// text, so line and column are 1.
pub fn fail_in_json(failure: &Failure) -> Result<Exit, Failure> {
    let code = match failure.exit {
        Exit::NoInput | Exit::NotAllowed => "unreadable",
        _ => "failed",
    };
    let diagnostic = Diagnostic::error(code, 0..0, failure.message());
    refuse_in_json(&[serde_json::json!({ "line": 1, "column": 1, "diagnostic": diagnostic })])?;
    Ok(failure.exit)
}

/// Reads a contract's file.
pub fn read(path: &Path) -> Result<String, Failure> {
    text_of(path, "contract", A_TOML_FILE)
}

/// Reads a contract that will be put in force. A process of root refuses a file that other users may change.
pub fn read_trusted(path: &Path) -> Result<String, Failure> {
    text(path, "contract", A_TOML_FILE, trust::read_trusted(path, TEXT_BYTES_MAX))
}

/// A warning with the reason if `run` as root would refuse a contract because others may change it.
pub fn doubt(path: &Path) -> Option<String> {
    // If the file cannot be examined, there is no warning: reading the file will report the error.
    let why = trust::who_else_may_change(path).ok()??;
    Some(format!("warning: {}: `run` as root refuses this contract: {why}; {TRUSTED}", path.display()))
}

/// Reads a text file that the user named. In errors, `what` names the file, and `wanted` describes what the
/// user should give.
pub fn text_of(path: &Path, what: &str, wanted: &str) -> Result<String, Failure> {
    text(path, what, wanted, trust::read_input(path, TEXT_BYTES_MAX))
}

/// Reads a workload of another program, or a recording, up to 4 GiB.
pub fn foreign_workload(path: &Path) -> Result<String, Failure> {
    let wanted = "a file in one of the formats that `commonhold workload import --help` lists";
    text(path, "workload", wanted, trust::read_input(path, RECORDING_BYTES_MAX))
}

fn text(path: &Path, what: &str, wanted: &str, read: io::Result<Vec<u8>>) -> Result<String, Failure> {
    let cannot = |exit: Exit, why: String, remedy: &str| {
        Failure::new(exit, format!("{}: cannot read the {what}: {why}; {remedy}", path.display()))
    };
    let bytes = read.map_err(|e| match e.kind() {
        // Without an errno, the refusal comes from `read_trusted`: others may change the file.
        io::ErrorKind::PermissionDenied if e.raw_os_error().is_none() => {
            cannot(Exit::NotAllowed, e.to_string(), TRUSTED)
        }
        io::ErrorKind::PermissionDenied => {
            cannot(Exit::NoInput, e.to_string(), "give a file that you may read")
        }
        _ => cannot(Exit::NoInput, e.to_string(), &format!("give {wanted}")),
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        cannot(Exit::NoInput, format!("it is not UTF-8 text (byte {at})"), "save it as UTF-8")
    })
}

/// Detects this machine, and warns as [`warn_of_renumbering`] does.
pub fn machine_here() -> Result<Machine, Failure> {
    let machine = topology::read(Path::new("/"))?;
    warn_of_renumbering();
    Ok(machine)
}

/// Warns if the kernel's files list other CPUs than those that this process may use, as in some containers.
pub fn warn_of_renumbering() {
    if let Some(renumbered) = topology::renumbered(Path::new("/")) {
        output::warn(&format!("warning: {renumbered}"));
    }
}

/// The machine that `--machine` describes, by a file or in words; without the flag, this machine.
pub fn machine(given: Option<&str>) -> Result<Machine, Failure> {
    let Some(given) = given else { return machine_here() };
    // A description such as `nodes:4` could also be a file name. If there is such a file, the file is read.
    let path = Path::new(given);
    if path.exists() || !given.contains(':') {
        let wanted = "a machine file, or words such as `nodes:4 cpus:2 memory:512MiB`";
        let text = text_of(path, "machine file", wanted)?;
        return Machine::from_toml(&text).map_err(|e| {
            let is_scenario = text.lines().any(|line| line.starts_with("shape"));
            let remedy = if is_scenario { SCENARIO_MACHINE } else { "" };
            Failure::new(Exit::Invalid, format!("{given}: {e}{remedy}"))
        });
    }
    Machine::synthetic(given).map_err(|e| Failure::new(Exit::Usage, format!("--machine: {e}")))
}
