//! Machines of known shape, each in a file named after it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use commonhold_machine::Machine;

/// Reads a fixture, and checks what holds for each: it can be written and read back.
fn fixture(name: &str) -> Machine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).with_extension("toml");
    let text = fs::read_to_string(&path).unwrap();
    let machine = Machine::from_toml(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine.clone()));
    machine
}

fn check(name: &str, summary: &str) {
    assert_eq!(fixture(name).summary(), summary, "{name}");
}

#[test]
fn shapes() {
    check("1node-2cpu", "2 CPUs, 1 node, 1 cache, 23.5 GiB memory, no swap, 1 disk");
    check("4node-8cpu", "8 CPUs, 4 nodes, 4 caches, 1.9 GiB memory, no swap, no disks");
    check(
        "2node-128cpu-smt2",
        "128 CPUs (64 cores), 2 nodes, 8 caches, 512 GiB memory, 64 GiB swap, 2 disks",
    );
}

#[test]
fn distances_on_the_large_server() {
    let machine = fixture("2node-128cpu-smt2");
    // From CPU 0: itself, its second thread, a core of its cache, another cache of its node, the other node.
    assert_eq!([0, 64, 7, 8, 32].map(|cpu| machine.distance(0, cpu)), [0, 1, 2, 3, 4]);
}

#[test]
fn the_lab_is_the_synthetic_machine_of_its_shape() {
    let lab = fixture("4node-8cpu");
    assert_eq!(lab.cpus, Machine::synthetic("nodes:4 cpus:2 memory:512MiB").unwrap().cpus);
}

#[test]
fn every_fixture_is_a_machine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for entry in fs::read_dir(folder).unwrap() {
        fixture(entry.unwrap().path().file_stem().unwrap().to_str().unwrap());
    }
}
