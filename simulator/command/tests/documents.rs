//! The documents show what the simulator prints.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_page_on_disciplines_shows_what_the_simulator_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/disciplines.md")).unwrap();
    let words = [
        "sim",
        "scenarios/inactive-entity",
        "--disciplines",
        "stride,lottery,entitlement,decay,fifo,rr,batch",
    ];
    assert!(page.contains(&format!("`commonhold {}`", words.join(" "))), "the page names another command");
    let output =
        Command::new(env!("CARGO_BIN_EXE_commonhold-sim")).args(words).current_dir(&root).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table = text.split("\nhad:").next().unwrap();
    assert!(
        table.lines().count() > 10 && page.contains(table),
        "docs/disciplines.md shows another table than\n{table}"
    );
}

#[test]
fn the_readme_shows_what_the_simulator_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let words = ["sim", "scenarios/cpu-isolation", "--compare"];
    assert!(readme.contains(&format!("`commonhold {}`", words.join(" "))), "README.md names another command");
    let output =
        Command::new(env!("CARGO_BIN_EXE_commonhold-sim")).args(words).current_dir(&root).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table = text.split("\nalone:").next().unwrap();
    assert!(
        table.lines().count() > 10 && readme.contains(table),
        "README.md shows another table than\n{table}"
    );
}
