//! `commonhold explain`: a contract in sentences.

use commonhold_live::observe::names::SystemNames;
use commonhold_report::explain;

use crate::check::divide;
use crate::cli::Explain;
use crate::exit::{Exit, Failure};
use crate::{load, output};

pub(crate) fn main(args: &Explain) -> Result<Exit, Failure> {
    let machine = load::machine(args.machine.as_deref())?;
    let names = SystemNames::new();
    let names = args.machine.is_none().then_some(&names);
    let loaded = load::contract(&args.contract, &machine, names)?;
    output::complain_of(&loaded.warnings);
    let machine = load::divided(&loaded.contract, &machine);
    let divisions = divide(&loaded.contract, &machine);
    output::print(&explain::text(&loaded.contract, &machine, &divisions, output::style()))?;
    Ok(Exit::Ok)
}
