//! `commonhold check`.

use std::path::Path;

use commonhold_contract::{Contract, Diagnostic, PerResource, Resource, position};
use commonhold_live::names::SystemNames;
use commonhold_live::observe::capability;
use commonhold_machine::Machine;
use commonhold_policy::entitlement::{capacity, entitle};
use commonhold_report::tree::{self, Division};

use crate::cli::Check;
use crate::exit::{Exit, Failure};
use crate::{load, output};

pub(crate) fn main(args: &Check) -> Result<Exit, Failure> {
    let machine = load::machine(args.machine.as_deref())?;
    let here = SystemNames::new();
    // The users of another machine cannot be asked for here.
    let names = args.machine.is_none().then_some(&here);
    if args.json {
        return json(args, &machine, names);
    }
    let loaded = load::contract(&args.contract, &machine, names)?;
    output::complain_of(&loaded.warnings);
    if args.machine.is_none() {
        warn_of_unheld(&loaded.contract);
    }
    let divisions = divide(&loaded.contract, &machine);
    output::print(&tree::text(&loaded.contract, &machine, &divisions, output::style()))?;
    Ok(Exit::Ok)
}

/// Resources that the contract asks for and nothing here would hold: the daemon says so too, but later.
fn warn_of_unheld(contract: &Contract) {
    let asked = load::asked_for(contract);
    for enforcer in capability::probe(Path::new("/")).enforcers() {
        let resource = Resource::ALL.into_iter().find(|resource| resource.name() == enforcer.resource.name());
        if let (None, Some(resource)) = (&enforcer.name, resource.filter(|resource| asked[*resource])) {
            output::complain(&format!(
                "warning: the contract asks for {resource}, and nothing here holds it: {}; see `commonhold doctor`",
                enforcer.why
            ));
        }
    }
}

/// The tree, or what is wrong with the contract, as JSON.
fn json(args: &Check, machine: &Machine, names: Option<&SystemNames>) -> Result<Exit, Failure> {
    let text = load::read(&args.contract)?;
    let (contract, diagnostics) = load::diagnose(&text, machine, names);
    let place = |diagnostic: &Diagnostic| {
        let (line, column) = position(&text, diagnostic.span.start);
        serde_json::json!({ "line": line, "column": column, "diagnostic": diagnostic })
    };
    let placed: Vec<_> = diagnostics.iter().map(place).collect();
    if let Some(contract) = contract {
        output::print(&tree::json(&contract, machine, &divide(&contract, machine), &placed))?;
        return Ok(Exit::Ok);
    }
    let document = serde_json::json!({
        "schema": "commonhold.diagnostics",
        "version": commonhold_report::JSON_VERSION,
        "diagnostics": placed,
    });
    output::print(&format!("{document:#}"))?;
    Ok(Exit::Invalid)
}

/// What every unit is entitled to when all are active.
fn divide(contract: &Contract, machine: &Machine) -> PerResource<Division> {
    // In an encloser, own processes compete with the sub-units where its rules admit any that no sub-unit takes.
    let present: Vec<bool> = contract
        .ids()
        .map(|id| {
            let unit = contract.unit(id);
            let leaf = contract.children(Some(id)).next().is_none();
            leaf || (!unit.members.is_empty() && unit.each.is_none())
        })
        .collect();
    let division = |resource| {
        let capacity = capacity(contract, machine, resource);
        Division { capacity, entitlement: entitle(contract, resource, capacity, &present) }
    };
    PerResource {
        cpu: division(Resource::Cpu),
        memory: division(Resource::Memory),
        disk: division(Resource::Disk),
        bus: division(Resource::Bus),
    }
}
