//! `commonhold generate`: man pages, completions and the schema, all from their one definition.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::cli::{Cli, Generate, What};
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn main(args: &Generate) -> Result<Exit, Failure> {
    match &args.what {
        What::Man { directory } => man(directory)?,
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "commonhold", &mut text);
            output::print(&String::from_utf8_lossy(&text))?;
        }
        What::Schema => output::print(&format!("{:#}", commonhold_contract::schema()))?,
    }
    Ok(Exit::Ok)
}

fn man(directory: &Path) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| {
        Failure::new(Exit::System, format!("{}: cannot write man pages: {e}", directory.display()))
    };
    fs::create_dir_all(directory).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(cannot)
}
