//! Every dependency comes from the registry and has a compatible licence.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::process::Command;

use serde_json::Value;

/// The same list as in deny.toml.
const LICENCES: [&str; 7] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "Unicode-3.0",
    "Zlib",
    "BSD-1-Clause",
];

/// The same for build-time crates, which may have licences that linked crates may not.
const AT_BUILD_TIME: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Checks an SPDX expression: at least one alternative of every part must be allowed. Parentheses only group
/// alternatives here.
fn allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn licences_and_sources() {
    let metadata = metadata();
    for package in list(&metadata["packages"]).iter().filter(|package| !package["source"].is_null()) {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("none");
        let excepted = AT_BUILD_TIME.contains(&(name, licence));
        assert!(excepted || allowed(licence), "{name}: licence {licence} is not in the list of deny.toml");
        let source = package["source"].as_str().unwrap();
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
    }
}

#[test]
fn what_works_at_build_time_is_in_no_program() {
    let metadata = metadata();
    for (name, _) in AT_BUILD_TIME {
        let nodes = list(&metadata["resolve"]["nodes"]).iter();
        let uses: Vec<&Value> = nodes
            .flat_map(|node| list(&node["deps"]))
            .filter(|used| used["name"] == name)
            .flat_map(|used| list(&used["dep_kinds"]))
            .map(|kind| &kind["kind"])
            .collect();
        assert!(!uses.is_empty() && uses.iter().all(|kind| *kind == "build"), "{name} is used as {uses:?}");
    }
}

#[test]
fn what_is_not_in_the_list_is_not_allowed() {
    assert!(allowed("MIT OR GPL-3.0-only") && allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!allowed("GPL-2.0-only") && !allowed("MIT AND GPL-3.0-only") && !allowed("none"));
}
