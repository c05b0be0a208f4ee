//! `commonhold sim --new`: writes a first scenario.

use std::fs;
use std::io;
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output;

/// The files of the first scenario. docs/simulator.md lists them.
const FILES: [(&str, &str); 3] = [
    ("contract.toml", include_str!("first/contract.toml")),
    ("machine.toml", include_str!("first/machine.toml")),
    ("workload.toml", include_str!("first/workload.toml")),
];

/// Writes the files to a folder that is new or empty.
pub(crate) fn write(folder: &Path) -> Result<Exit, Failure> {
    let name = folder.display();
    let cannot = |e: io::Error| {
        let remedy = "give a path in a folder that you may write to";
        Failure::new(Exit::CannotCreate, format!("{name}: cannot write a scenario there: {e}; {remedy}"))
    };
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => {
            let message = format!(
                "{name}: the folder is not empty, and was not changed; give one that is new or empty"
            );
            return Err(Failure::new(Exit::CannotCreate, message));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => fs::create_dir_all(folder).map_err(cannot)?,
        Err(e) => return Err(cannot(e)),
    }
    for (file, text) in FILES {
        let mut new = fs::File::create_new(folder.join(file)).map_err(cannot)?;
        io::Write::write_all(&mut new, text.as_bytes()).map_err(cannot)?;
    }
    output::print(&format!(
        "{name}: contract.toml, machine.toml and workload.toml are written; run `commonhold sim {name}`, then change them"
    ))?;
    Ok(Exit::Ok)
}
