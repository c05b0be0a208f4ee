//! From files to checked values: the contract and the machine, or everything that is wrong with them.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use commonhold_contract::{Contract, Diagnostic, MemberKind, Principal, Resource, amount_text, render};
use commonhold_live::names::SystemNames;
use commonhold_machine::Machine;
use commonhold_policy::entitlement::{Ask, Capacity, Conflict, capacity, conflicts, entitle};
use commonhold_policy::membership::Names;

use crate::exit::{Exit, Failure};

/// The largest contract that is read: a file of 100,000 units is about 10 MB; more is a mistaken file name.
const CONTRACT_BYTES_MAX: u64 = 64 << 20;

/// A contract that holds on a machine, and what is to be said about it all the same.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) contract: Contract,
    /// Warnings, rendered.
    pub(crate) warnings: String,
}

/// Reads and checks a contract for a machine. `names`: also ask this machine for its users and groups.
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
        diagnostics.extend(conflicts(contract, machine).iter().map(|c| explain(contract, machine, c)));
        diagnostics.extend(left_with_nothing(contract, machine));
        diagnostics.extend(names.map(|names| unknown_names(contract, names)).unwrap_or_default());
        diagnostics.sort_by_key(|diagnostic| diagnostic.span.start);
    }
    let wrong = diagnostics.iter().any(Diagnostic::is_error);
    (parsed.contract.filter(|_| !wrong), diagnostics)
}

/// The text of a contract's file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    text_of(path, "contract")
}

/// The text of a file that a person wrote.
pub(crate) fn text_of(path: &Path, what: &str) -> Result<String, Failure> {
    let cannot = |why: String, remedy: &str| {
        Failure::new(Exit::NoInput, format!("{}: cannot read the {what}: {why}; {remedy}", path.display()))
    };
    let facts = fs::metadata(path).map_err(|e| cannot(e.to_string(), "give the path of a TOML file"))?;
    if facts.is_dir() {
        return Err(cannot("it is a directory".to_owned(), "give the path of a TOML file"));
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

/// The machine at hand, a machine file, or words that describe one.
pub(crate) fn machine(given: Option<&str>) -> Result<Machine, Failure> {
    let Some(given) = given else {
        return Ok(commonhold_live::observe::topology::read(Path::new("/"))?);
    };
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

/// A conflict between contract and machine, in the contract's own words and place.
fn explain(contract: &Contract, machine: &Machine, conflict: &Conflict) -> Diagnostic {
    let span = conflict.span.clone();
    match conflict.what {
        Ask::Hard { level, resource, asked, available } => {
            let (asked, available) = (show(contract, machine, resource, asked), show(contract, machine, resource, available));
            let (whose, at_least) = match level {
                None => ("the units".to_owned(), "the machine has".to_owned()),
                Some(id) => {
                    let path = &contract.unit(id).path;
                    (format!("the sub-units of `{path}`"), format!("when all units are active `{path}` holds"))
                }
            };
            Diagnostic::error(
                "hard-exceeds",
                span,
                format!("hard {resource} reservations of {whose} sum to {asked}, but {at_least} {available}"),
            )
            .label("the largest of them is here")
            .help("lower the hard reservations, or turn some of them into soft `tickets`, which always fit")
        }
        Ask::Partition { units, cpus } => Diagnostic::error(
            "partition-too-small",
            span,
            format!("`cpu = \"partition\"` with {units} units on {cpus} CPUs: not every unit can have a home CPU"),
        )
        .label("there is no CPU left for this unit")
        .help("write `cpu = \"auto\"`, which time-shares where there are more units than CPUs, or nest the units"),
    }
}

/// Units that the hard reservations of others leave nothing of the CPUs when all are active.
fn left_with_nothing(contract: &Contract, machine: &Machine) -> Vec<Diagnostic> {
    let everybody = vec![true; contract.units.len()];
    let cpu = entitle(contract, Resource::Cpu, capacity(contract, machine, Resource::Cpu), &everybody);
    let nothing = contract.held().filter(|id| cpu.value(*id) == 0);
    let top = nothing.filter(|id| contract.unit(*id).parent.is_none_or(|parent| cpu.value(parent) > 0));
    top.map(|id| {
        let unit = contract.unit(id);
        Diagnostic::warning(
            "nothing-left",
            unit.span.clone(),
            format!("nothing of the CPUs is left for `{}` when all units are active", unit.path),
        )
        .label("it runs on what the others leave idle, and is stopped when they leave nothing")
        .help("lower the `hard` reservations of the others, or give this unit one")
    })
    .collect()
}

fn show(contract: &Contract, machine: &Machine, resource: Resource, value: u64) -> String {
    let amount = match capacity(contract, machine, resource) {
        Capacity::Known(_) => commonhold_contract::Amount::Absolute(value),
        Capacity::Parts => commonhold_contract::Amount::Part(value),
    };
    match amount {
        // What is left of a machine's memory is no round number of bytes.
        commonhold_contract::Amount::Absolute(bytes) if resource == Resource::Memory && bytes >= 10 << 20 => {
            format!("{} MiB", bytes >> 20)
        }
        amount if resource == Resource::Cpu => format!("{} CPUs", amount_text(resource, amount)),
        amount => amount_text(resource, amount),
    }
}

/// Users and groups that this machine does not know: a typing error in a name would silently hold nobody.
fn unknown_names(contract: &Contract, names: &SystemNames) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for member in contract.units.iter().flat_map(|unit| &unit.members) {
        let (kind, name, known) = match &member.kind {
            MemberKind::User(Principal::Name(name)) => ("user", name, names.uid(name).is_some()),
            MemberKind::Group(Principal::Name(name)) => ("group", name, names.gid(name).is_some()),
            _ => continue,
        };
        if !known {
            let tool = if kind == "user" { "useradd" } else { "groupadd" };
            found.push(
                Diagnostic::error("unknown-name", member.span.clone(), format!("this machine knows no {kind} `{name}`"))
                    .label(format!("`getent {} {name}` finds nothing", if kind == "user" { "passwd" } else { "group" }))
                    .help(format!(
                        "correct the name, make it with `{tool} {name}`, or check for another machine with --machine"
                    )),
            );
        }
    }
    found
}
