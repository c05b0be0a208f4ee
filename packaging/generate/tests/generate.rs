//! The generated man pages, completions and schema.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::process::{Command, Output};

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

/// The public commands; hidden ones are shown nowhere.
const COMMANDS: [&str; 21] = [
    "init",
    "explain",
    "check",
    "top",
    "serve",
    "record",
    "recording",
    "what-if",
    "doctor",
    "run",
    "exec",
    "status",
    "why",
    "history",
    "account",
    "tickets",
    "offer",
    "offers",
    "cancel",
    "demo",
    "generate",
];

fn generate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_commonhold-generate")).arg("generate").args(arguments).output().unwrap()
}

#[test]
fn the_schema_is_json() {
    let schema: serde_json::Value = serde_json::from_slice(&generate(&["schema"]).stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for key in ["version", "machine", "unit"] {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
}

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = generate(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && COMMANDS.iter().all(|command| text.contains(command)), "{shell}");
        assert!(
            !text.contains("caretaker") && !text.contains("demo-task"),
            "{shell} completes hidden commands"
        );
    }
}

/// The shell accepts the generated completions.
#[test]
fn bash_reads_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("completions");
    fs::write(&file, generate(&["completions", "bash"]).stdout).unwrap();
    let script = format!(
        "source {} && COMP_WORDS=(commonhold st) COMP_CWORD=1 && _commonhold commonhold st commonhold && echo ${{COMPREPLY[@]}}",
        file.display()
    );
    let Ok(output) = Command::new("bash").args(["--norc", "-c", &script]).output() else {
        skipped::skipped("there is no bash here: install bash");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "status\n", "{output:?}");
}

/// A test that cannot run here reports that to `scripts/unit-tests`, rather than just pass.
#[test]
fn what_is_skipped_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let told = directory.path().join("told");
    let mut again = Command::new(std::env::current_exe().unwrap());
    // The previous test, without bash.
    again.args(["--exact", "bash_reads_its_completions", "--test-threads", "2"]);
    let output = again.env("PATH", directory.path()).env("COMMONHOLD_SKIPPED", &told).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = fs::read_to_string(told).unwrap();
    assert_eq!(told, "unit bash_reads_its_completions: there is no bash here: install bash\n");
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("deep/man");
    assert!(generate(&["man", pages.to_str().unwrap()]).status.success());
    let of_commands = pages.join("man1");
    let main = fs::read_to_string(of_commands.join("commonhold.1")).unwrap();
    assert!(main.contains("Exit codes") && main.contains("an input is invalid"), "{main}");
    for command in COMMANDS {
        let page = fs::read_to_string(of_commands.join(format!("commonhold-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{command}");
    }
    let run = fs::read_to_string(of_commands.join("commonhold-run.1")).unwrap();
    let synopsis =
        run.lines().skip_while(|line| *line != ".SH SYNOPSIS").nth(1).unwrap_or_default().replace('\\', "");
    assert!(synopsis.starts_with("fBcommonhold runfR [--for <TIME>] [--backend <BACKEND>]"), "{synopsis}");
    assert!(synopsis.contains("[--dry-run]") && synopsis.ends_with("[--help] [CONTRACT]"), "{synopsis}");
    assert!(!of_commands.join("commonhold-caretaker.1").exists(), "hidden commands have no page");
}

/// As `man` shows it: every key of a contract, every kind of member, and an example, without leftover
/// Markdown.
#[test]
fn the_contract_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    assert!(generate(&["man", directory.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(directory.path().join("man5/commonhold-contract.5")).unwrap();
    let page = page.replace("\\-", "-");
    for table in commonhold_contract::reference_tables() {
        for key in table.keys {
            assert!(page.contains(&format!(".TP\n\\fB{}\\fR = ", key.name)), "{}: {page}", key.name);
        }
    }
    for form in commonhold_contract::MEMBER_FORMS {
        assert!(page.contains(&format!("\\fB{}\\fR", form.forms[0])), "{}: {page}", form.kind);
    }
    assert!(page.contains("members = [\"command:simulate*\"]"), "{page}");
    let keys = page.split(".SH EXAMPLE").next().unwrap();
    assert!(!keys.contains('`') && !keys.contains("]("), "{keys}");
}

#[test]
fn a_place_for_man_pages_that_is_none_is_refused() {
    let output = generate(&["man", "/dev/null/man"]);
    assert_eq!(output.status.code(), Some(73));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null/man: cannot write man pages"));
}
