//! `commonhold check`: validates a contract for this machine or another one, and prints each unit's
//! entitlement.

use commonhold_contract::{Contract, PerResource, Resource};
use commonhold_live::observe::names::SystemNames;
use commonhold_machine::Machine;
use commonhold_policy::entitlement::{capacity, entitle_all};
use commonhold_report::holdings;
use commonhold_report::tree::{self, Division};

use crate::cli::{BackendChoice, Check};
use crate::daemon::Outlook;
use crate::exit::{Exit, Failure};
use crate::{load, output};

pub(crate) fn main(args: &Check) -> Result<Exit, Failure> {
    let machine = load::machine(args.machine.as_deref())?;
    let local_names = SystemNames::new();
    // Users of another machine cannot be looked up on this one.
    let names = args.machine.is_none().then_some(&local_names);
    if let (None, Some(warning)) = (&args.machine, load::doubt(&args.contract)) {
        output::warn(&warning);
    }
    if args.json {
        return json(args, &machine, names);
    }
    let loaded = load::contract(&args.contract, &machine, names)?;
    output::complain_of(&loaded.warnings);
    load::tell_of_cpus(&loaded.contract, &machine, args.machine.is_none());
    let machine = load::divided(&loaded.contract, &machine);
    let outlook = outlook(args, &loaded.contract, &machine)?;
    let holdings = outlook.as_ref().map_or(&[][..], |it| &it.holdings);
    let asked_for = loaded.contract.asked_for();
    for (resource, holding) in Resource::ALL.into_iter().zip(holdings) {
        if let (true, Some(warning)) = (asked_for[resource], holding.warning()) {
            output::warn(&warning);
        }
    }
    let divisions = divide(&loaded.contract, &machine);
    let mut text = tree::text(&loaded.contract, &machine, &divisions, output::style());
    if let Some(outlook) = &outlook {
        let width = output::message_width();
        text += "\nOn this machine, `run` would say:\n";
        text += &holdings::text(&outlook.holdings, width);
        text += &holdings::cannot_be_kept(&outlook.cannot_keep, width);
        text += &holdings::notes(&outlook.notes(), output::style());
    }
    output::print(&text)?;
    Ok(Exit::Ok)
}

/// What `run` would report on this machine; `None` if `check` is for another machine.
fn outlook(args: &Check, contract: &Contract, machine: &Machine) -> Result<Option<Outlook>, Failure> {
    match args.machine {
        Some(_) => Ok(None),
        None => Outlook::new(BackendChoice::Auto, contract, machine).map(Some),
    }
}

/// Prints the tree of units as JSON or, if the contract has errors, the errors.
fn json(args: &Check, machine: &Machine, names: Option<&SystemNames>) -> Result<Exit, Failure> {
    match load::diagnose_placed(&load::read(&args.contract)?, machine, names) {
        (Some(contract), warnings) => {
            load::tell_of_cpus(&contract, machine, args.machine.is_none());
            let machine = load::divided(&contract, machine);
            let outlook = outlook(args, &contract, &machine)?;
            let notes = outlook.as_ref().map(Outlook::notes).unwrap_or_default();
            let said = outlook.as_ref().map_or_else(holdings::Outlook::default, |it| holdings::Outlook {
                holdings: &it.holdings,
                cannot_keep: &it.cannot_keep,
                notes: &notes,
            });
            let divisions = divide(&contract, &machine);
            output::print(&tree::json(&contract, &machine, &divisions, said, &warnings))?;
            Ok(Exit::Ok)
        }
        (None, errors) => load::refuse_in_json(&errors),
    }
}

/// Every unit's entitlement when all units are active.
pub(crate) fn divide(contract: &Contract, machine: &Machine) -> PerResource<Division> {
    // A unit without sub-units is active only if it has processes of its own.
    let mut encloses = vec![false; contract.units.len()];
    for parent in contract.held().filter_map(|id| contract.unit(id).parent) {
        encloses[parent.index()] = true;
    }
    // A unit with sub-units may have processes of its own, too, if its rules match processes that match no
    // sub-unit. Such processes compete with the sub-units.
    let present: Vec<bool> = contract
        .ids()
        .map(|id| {
            let unit = contract.unit(id);
            !encloses[id.index()] || (!unit.members.is_empty() && unit.each.is_none())
        })
        .collect();
    let all = entitle_all(contract, machine, &present);
    let division =
        |resource, entitlement| Division { capacity: capacity(contract, machine, resource), entitlement };
    PerResource {
        cpu: division(Resource::Cpu, all.cpu),
        memory: division(Resource::Memory, all.memory),
        disk: division(Resource::Disk, all.disk),
        bus: division(Resource::Bus, all.bus),
    }
}
