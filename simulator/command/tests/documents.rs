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

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder with the first scenario.
fn first_scenario() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    printed(folder.path(), "sim --new first");
    folder
}

/// What the program prints for a command line, run in a folder.
fn printed(folder: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-sim"));
    let output = command.args(line.split(' ')).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_on_the_simulator_begins_with_the_first_scenario() {
    let (folder, page) = (first_scenario(), fs::read_to_string(format!("{ROOT}/docs/simulator.md")).unwrap());
    let mut lines = 0;
    for file in ["contract.toml", "machine.toml", "workload.toml"] {
        let text = fs::read_to_string(folder.path().join("first").join(file)).unwrap();
        assert!(page.contains(&format!("```toml\n{text}```\n")), "docs/simulator.md shows another {file}");
        lines += text.lines().count();
    }
    assert!(lines < 40, "{lines} lines are too many for a first scenario");
    let result = printed(folder.path(), "sim first");
    assert!(page.contains("`commonhold sim first`"), "the page names another command");
    assert!(
        page.contains(&format!("```\n{result}```\n")),
        "docs/simulator.md shows another result than\n{result}"
    );
}

#[test]
fn the_page_on_sweeps_shows_what_the_simulator_prints() {
    let (folder, page) = (first_scenario(), fs::read_to_string(format!("{ROOT}/docs/sweeps.md")).unwrap());
    let contract = fs::read_to_string(folder.path().join("first/contract.toml")).unwrap();
    fs::write(folder.path().join("less.toml"), contract.replace("tickets = 100", "tickets = 40")).unwrap();
    for (line, end) in [
        ("sim first --sweep tickets.physics=100..700:200 --seeds 10", "\nMeans over"),
        ("sim first --contract first/contract.toml --contract less.toml --seeds 10", "\n±: half"),
    ] {
        assert!(page.contains(&format!("`commonhold {line}`")), "the page names another command than {line}");
        let result = printed(folder.path(), line);
        let table = result.split(end).next().unwrap();
        assert!(
            page.contains(&format!("```\n{table}```\n")),
            "docs/sweeps.md shows another table than\n{table}"
        );
    }
}
