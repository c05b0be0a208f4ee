//! From files to checked values: the contract and the machine, or everything that is wrong with them.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use commonhold_contract::{Contract, Diagnostic, position, render};
use commonhold_live::names::SystemNames;
use commonhold_live::observe::cpu_kinds::Isolation;
use commonhold_live::observe::topology;
use commonhold_machine::Machine;

use crate::exit::{Exit, Failure};
use crate::{fit, here, output};

/// The largest contract that is read: a file of 100,000 units is about 10 MB; more is a mistaken file name.
const CONTRACT_BYTES_MAX: u64 = 64 << 20;

/// Codes of errors of a contract that leave every amount in it as it is.
const ABOUT_MEMBERS: [&str; 3] = ["bad-member", "conflicting-members", "unknown-unit"];

/// A contract that holds on a machine, and what is to be said about it all the same.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) contract: Contract,
    /// Warnings, rendered.
    pub(crate) warnings: String,
}

/// Reads and checks a contract for a machine. `names`: it is the machine at hand, which is also asked for the names in
/// the contract.
pub(crate) fn contract(
    path: &Path,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> Result<Loaded, Failure> {
    let text = read(path)?;
    check_text(&text, &path.display().to_string(), machine, names)
}

/// The same for a text that is at hand.
pub(crate) fn check_text(
    text: &str,
    file: &str,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> Result<Loaded, Failure> {
    let (contract, diagnostics) = diagnose(text, machine, names);
    let rendered = render(&diagnostics, text, file, std::io::stderr().is_terminal());
    match contract {
        Some(contract) => Ok(Loaded { contract, warnings: rendered }),
        None => Err(Failure::new(Exit::Invalid, rendered.trim_end())),
    }
}

/// A contract that holds on the machine, if the text is one, and everything that is to be said about it.
pub(crate) fn diagnose(
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
        // Where no amount is in doubt, what is said of them is no consequence of another error.
        let amounts_stand = diagnostics.iter().all(|d| !d.is_error() || ABOUT_MEMBERS.contains(&d.code));
        let fitting = if amounts_stand { fit::diagnose(draft, &divided(draft, machine)) } else { Vec::new() };
        diagnostics.extend(fitting.into_iter().filter(Diagnostic::is_error));
        diagnostics.extend(names.map(|names| here::unknown_names(draft, names)).unwrap_or_default());
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.start);
    let wrong = diagnostics.iter().any(Diagnostic::is_error);
    (parsed.contract.filter(|_| !wrong), diagnostics)
}

/// The machine that a contract divides.
pub(crate) fn divided(contract: &Contract, machine: &Machine) -> Machine {
    machine.divided(contract.machine.isolated)
}

/// What is to be known of CPUs that a contract does not divide, or that are unlike others. `is_here`: it is the machine at hand,
/// which may have isolated CPUs that this process may not use.
pub(crate) fn tell_of_cpus(contract: &Contract, machine: &Machine, is_here: bool) {
    for note in cpu_notes(contract, machine, is_here) {
        output::complain(&format!("note: {note}"));
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
            "this process may not use them: for those of isolcpus, start it under `taskset -c LIST`; a cpuset partition keeps its \
             CPUs until it is dissolved"
        }
    };
    let isolated =
        (!left_out.is_empty()).then(|| format!("isolated CPUs {left_out}{by} are given to no unit; {help}"));
    isolated.into_iter().chain(divided.unequal_capacity()).collect()
}

/// The same for JSON documents: the contract of a file, and each diagnostic with its line and column.
pub(crate) fn diagnose_placed(
    path: &Path,
    machine: &Machine,
    names: Option<&SystemNames>,
) -> Result<(Option<Contract>, Vec<serde_json::Value>), Failure> {
    let text = read(path)?;
    let (contract, diagnostics) = diagnose(&text, machine, names);
    let place = |diagnostic: &Diagnostic| {
        let (line, column) = position(&text, diagnostic.span.start);
        serde_json::json!({ "line": line, "column": column, "diagnostic": diagnostic })
    };
    Ok((contract, diagnostics.iter().map(place).collect()))
}

/// Prints what is wrong with a contract as a JSON document, in place of the one that was asked for.
pub(crate) fn refuse_in_json(placed: &[serde_json::Value]) -> Result<Exit, Failure> {
    let document = serde_json::json!({
        "schema": "commonhold.diagnostics",
        "version": commonhold_report::JSON_VERSION,
        "diagnostics": placed,
    });
    output::print(&format!("{document:#}"))?;
    Ok(Exit::Invalid)
}

/// The text of a contract's file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    text_of(path, "contract", "the path of a TOML file")
}

/// The text of a file that was named; `wanted` is what should have been.
pub(crate) fn text_of(path: &Path, what: &str, wanted: &str) -> Result<String, Failure> {
    let cannot = |why: String, remedy: &str| {
        Failure::new(Exit::NoInput, format!("{}: cannot read the {what}: {why}; {remedy}", path.display()))
    };
    let facts = fs::metadata(path).map_err(|e| cannot(e.to_string(), &format!("give {wanted}")))?;
    if facts.is_dir() {
        return Err(cannot("it is a directory".to_owned(), &format!("give {wanted}")));
    }
    if facts.len() > CONTRACT_BYTES_MAX {
        return Err(cannot(format!("it has {} bytes", facts.len()), &format!("a {what} has at most 64 MiB")));
    }
    let bytes = fs::read(path).map_err(|e| cannot(e.to_string(), "give a file that you may read"))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        cannot(format!("it is not UTF-8 text (byte {at})"), "save it as UTF-8")
    })
}

/// The machine at hand. Warns where its files list other CPUs than this process may use.
pub(crate) fn machine_here() -> Result<Machine, Failure> {
    let machine = topology::read(Path::new("/"))?;
    warn_of_renumbering();
    Ok(machine)
}

/// Warns where the machine's files list other CPUs than this process may use.
pub(crate) fn warn_of_renumbering() {
    if let Some(renumbered) = topology::renumbered(Path::new("/")) {
        output::complain(&format!("warning: {renumbered}"));
    }
}

/// The machine at hand, a machine file, or words that describe one.
pub(crate) fn machine(given: Option<&str>) -> Result<Machine, Failure> {
    let Some(given) = given else { return machine_here() };
    // `nodes:4` could be a file name too; a file that is there wins.
    let path = Path::new(given);
    if path.is_file() || !given.contains(':') {
        let text = fs::read_to_string(path).map_err(|e| {
            let remedy = "give a machine file, or words such as `nodes:4 cpus:2 memory:512MiB`";
            Failure::new(Exit::NoInput, format!("{given}: cannot read the machine file: {e}; {remedy}"))
        })?;
        // A scenario describes its machine in another format, which holds a machine too.
        let simulated =
            || commonhold_sim::scenario::parse_machine(&text).value.map(|hardware| hardware.machine);
        return Machine::from_toml(&text)
            .or_else(|e| simulated().ok_or(e))
            .map_err(|e| Failure::new(Exit::Invalid, format!("{given}:{e}")));
    }
    Machine::synthetic(given).map_err(|e| Failure::new(Exit::Usage, format!("--machine: {e}")))
}
