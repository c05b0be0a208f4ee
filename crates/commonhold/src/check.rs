//! `commonhold check`.

use commonhold_contract::{Contract, PerResource, Resource};
use commonhold_live::names::SystemNames;
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
    let loaded = load::contract(&args.contract, &machine, names)?;
    eprint!("{}", loaded.warnings);
    let divisions = divide(&loaded.contract, &machine);
    let text = if args.json {
        tree::json(&loaded.contract, &machine, &divisions)
    } else {
        tree::text(&loaded.contract, &machine, &divisions, output::style())
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

/// What every unit is entitled to when all are active.
fn divide(contract: &Contract, machine: &Machine) -> PerResource<Division> {
    let parents: Vec<bool> = contract.ids().map(|id| contract.children(Some(id)).next().is_some()).collect();
    // A unit's own processes compete with its sub-units only if there are any: here, everything is in the leaves.
    let leaves: Vec<bool> = parents.iter().map(|parent| !parent).collect();
    let division = |resource| {
        let capacity = capacity(contract, machine, resource);
        Division { capacity, entitlement: entitle(contract, resource, capacity, &leaves) }
    };
    PerResource {
        cpu: division(Resource::Cpu),
        memory: division(Resource::Memory),
        disk: division(Resource::Disk),
        bus: division(Resource::Bus),
    }
}
