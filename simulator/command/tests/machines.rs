//! `check --machine` reads the machines of scenarios without the simulator, and finds the same facts.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use commonhold_command::scenario_machine;
use commonhold_sim::scenario::parse_machine;

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn check_reads_the_machine_of_every_scenario_as_the_simulator_does() {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let machines = files(&scenarios).into_iter().map(|folder| folder.join("machine.toml"));
    let machines: Vec<PathBuf> =
        machines.chain(files(&scenarios.join("machines"))).filter(|file| file.exists()).collect();
    assert!(machines.len() > 30, "{machines:?}");
    for file in machines {
        let text = fs::read_to_string(&file).unwrap();
        let simulated = parse_machine(&text).value.unwrap().machine;
        assert_eq!(scenario_machine::parse(&text), Some(simulated), "{}", file.display());
    }
}
