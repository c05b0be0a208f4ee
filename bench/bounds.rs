// Compares what a test counted with the bound in bounds.toml. Tests that count include this file.

use std::path::Path;

use toml::de::{DeTable, DeValue};

const TEXT: &str = include_str!("bounds.toml");

/// The bound with this name. The error says what to write into bounds.toml. `file` is the test's own path, as
/// given by `file!()`.
fn bound_of(name: &str, file: &str) -> Result<u64, String> {
    let table = DeTable::parse(TEXT).map_err(|error| format!("bench/bounds.toml: {error}"))?;
    let entry = table.get_ref().get(name).and_then(|entry| entry.get_ref().as_table());
    let entry = entry.ok_or_else(|| format!("bench/bounds.toml has no [{name}]: write one"))?;
    let held_by = entry.get("test").and_then(|test| test.get_ref().as_str()).unwrap_or_default();
    if held_by.is_empty() || !file.ends_with(held_by) {
        return Err(format!("bench/bounds.toml: [{name}]: its test is {file}, not `{held_by}`: write that"));
    }
    let bound = entry.get("bound").and_then(|bound| match bound.get_ref() {
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    });
    bound.ok_or_else(|| {
        format!("bench/bounds.toml: [{name}]: `bound` is no whole number: write the most that may be counted")
    })
}

/// All bounds, as (name, the test that checks it).
#[allow(dead_code)]
pub(crate) fn all() -> Vec<(String, String)> {
    let table = DeTable::parse(TEXT).unwrap_or_else(|error| panic!("bench/bounds.toml: {error}"));
    let test = |entry: &DeValue<'_>| entry.get("test")?.get_ref().as_str().map(str::to_owned);
    let entries = table.get_ref().iter();
    entries
        .map(|(name, entry)| (name.get_ref().to_string(), test(entry.get_ref()).unwrap_or_default()))
        .collect()
}

/// Prints the count, and fails if it exceeds the bound.
#[track_caller]
pub(crate) fn hold(name: &str, value: u64, file: &str) {
    let bound = bound_of(name, file).unwrap_or_else(|problem| panic!("{problem}"));
    println!("{name}: {value}, at most {bound}");
    assert!(
        value <= bound,
        "{name}: {value} were counted, and at most {bound} may be (bench/bounds.toml): do less, or say there why it is more"
    );
}

/// Whether a counting tool is installed. A missing tool that could be installed here, since apt-get is there,
/// fails the test. Otherwise a missing tool is reported, so that the test counts as skipped. `list` is the
/// list of packages with the tool.
#[allow(dead_code)]
#[track_caller]
pub(crate) fn has_tool(program: &str, list: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |name: &str| std::env::split_paths(&path).any(|folder| Path::new(&folder).join(name).is_file());
    if is_installed(program) {
        return true;
    }
    assert!(!is_installed("apt-get"), "{program} is missing: install it: scripts/packages {list}");
    println!(
        "skipped: {program} is missing, and this is no Debian: install it by your distribution's packages"
    );
    false
}
