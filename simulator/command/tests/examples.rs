//! The scripts of examples/sweep. The lab's 2g-systemd-sweep runs them under Slurm.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

/// A folder with the scripts, a scenario, and a program `commonhold` in `bin`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sweep");
    for script in ["array.sbatch", "merge.sbatch", "submit", "with-parallel"] {
        fs::copy(examples.join(script), folder.path().join(script)).unwrap();
    }
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_commonhold-sim"), folder.path().join("bin/commonhold")).unwrap();
    assert!(run(folder.path(), &["commonhold", "sim", "--new", "scenario"], &[]).status.success());
    folder
}

/// Runs a command with one seed for each value.
fn run(folder: &Path, words: &[&str], environment: &[(&str, &str)]) -> Output {
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("env");
    command.args(words).current_dir(folder).env("PATH", path).env("SEEDS", "1");
    command.envs(environment.iter().copied()).output().unwrap()
}

fn assert_merged(merged: &Output, folder: &Path) {
    let text = String::from_utf8_lossy(&merged.stdout);
    assert!(merged.status.success() && text.contains("\n8 runs, "), "{merged:?}");
    assert!(fs::read_to_string(folder.join("sweep.html")).unwrap().contains("</html>"));
}

/// Slurm's part is taken by a loop: each task with its number, then the merge.
#[test]
fn the_job_array_covers_the_sweep() {
    let folder = folder();
    for task in 1..=16 {
        let task = task.to_string();
        let variables = [("SLURM_ARRAY_TASK_ID", task.as_str()), ("SLURM_CPUS_PER_TASK", "1")];
        let ran = run(folder.path(), &["bash", "array.sbatch"], &variables);
        assert!(ran.status.success(), "{ran:?}");
    }
    assert_merged(&run(folder.path(), &["bash", "merge.sbatch"], &[]), folder.path());
}

#[test]
fn parallel_covers_the_sweep() {
    let folder = folder();
    let version = run(folder.path(), &["parallel", "--version"], &[]);
    if !String::from_utf8_lossy(&version.stdout).contains("GNU parallel") {
        skipped::skipped("GNU parallel is not installed");
        return;
    }
    assert_merged(&run(folder.path(), &["./with-parallel"], &[]), folder.path());
}
