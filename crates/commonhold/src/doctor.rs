//! `commonhold doctor`: shows what this machine can enforce or, with `--machine`, prints this machine as a
//! machine file.

use std::path::Path;

use commonhold_live::observe::capability;
use commonhold_report::doctor;

use crate::cli::Doctor;
use crate::exit::{Exit, Failure};
use crate::{load, output};

pub(crate) fn main(args: &Doctor) -> Result<Exit, Failure> {
    let text = if args.machine {
        load::machine(None)?.to_toml()
    } else {
        let findings = capability::probe(Path::new("/")).findings();
        if args.json { doctor::json(&findings) } else { doctor::text(&findings, output::style()) }
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}
