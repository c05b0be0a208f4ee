//! Every machine and workload in `bad/` gets exactly the errors and warnings of its golden copy. The examples
//! of the documentation are accepted.
//!
//! `INSTA_UPDATE=always cargo test -p commonhold-sim` writes the expected texts anew; review them as a diff.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, Diagnostic, Level, parse, render};
use commonhold_sim::scenario::{Hardware, Parsed, parse_machine, parse_workload, reference};

fn contract() -> Contract {
    parse("version = 1\n[unit.physics]\n[unit.physics.unit.batch]\n[unit.students]").contract.unwrap()
}

/// Four CPUs, a bus, and two disks of 1 GiB.
fn hardware() -> Hardware {
    let text = "version = 1\nshape = \"cpus:4 memory:64MiB\"\n[bus]\ntransactions = 29500\n\
                [disk.d0]\nsize = \"1GiB\"\n[disk.d1]\nsize = \"1GiB\"";
    parse_machine(text).value.unwrap()
}

/// The texts of a folder, sorted by name.
fn texts(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad").join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    assert!(!paths.is_empty(), "there are texts in {}", folder.display());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// Compares the diagnostics of each text of a folder with their golden copy.
fn explained(folder: &str, read: impl Fn(&str) -> (bool, Vec<Diagnostic>)) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new("bad").join(folder));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, text) in texts(folder) {
            let (valid, diagnostics) = read(&text);
            assert!(!diagnostics.is_empty(), "{name} is bad");
            let errors = diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
            assert_eq!(valid, !errors, "{name}: a value if and only if there is no error");
            let shown = render(&diagnostics, &text, &name, false);
            insta::assert_snapshot!(name.trim_end_matches(".toml"), shown);
        }
    });
}

fn outcome<T>(parsed: Parsed<T>) -> (bool, Vec<Diagnostic>) {
    (parsed.value.is_some(), parsed.diagnostics)
}

#[test]
fn bad_machines_are_explained() {
    explained("machine", |text| outcome(parse_machine(text)));
}

#[test]
fn bad_workloads_are_explained() {
    let (contract, hardware) = (contract(), hardware());
    explained("workload", |text| outcome(parse_workload(text, &contract, &hardware)));
}

#[test]
fn files_and_memory_need_a_disk() {
    let hardware = parse_machine("version = 1\nshape = \"\"").value.unwrap();
    let codes = |file: &str, program: &str| {
        let text = format!(
            "version = 1\nhorizon = \"1min\"\n{file}\n[program.p]\n{program}\n[job.j]\nunit = \"shared\"\nprogram = \"p\""
        );
        let diagnostics = parse_workload(&text, &contract(), &hardware).diagnostics;
        diagnostics.iter().map(|diagnostic| diagnostic.code).collect::<Vec<_>>()
    };
    assert_eq!(codes("[file.a]\nsize = \"1KiB\"", "do = [{ metadata = \"a\" }]"), ["no-disk"]);
    assert_eq!(codes("", "memory = \"4KiB\"\ndo = [{ cpu = \"1s\" }]"), ["no-disk"]);
    assert_eq!(codes("", "do = [{ cpu = \"1s\" }]"), [] as [&str; 0]);
}

#[test]
fn the_reference_says_what_the_table_of_keys_says() {
    insta::with_settings!({ omit_expression => true }, {
        insta::assert_snapshot!(reference());
    });
}
