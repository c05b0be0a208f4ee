//! Sweeps in shards, interrupted and merged.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim.in/two");
const SWEEP: [&str; 6] = ["sim", SCENARIO, "--sweep", "tickets.light=50,100,200", "--seeds", "5"];

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_commonhold-sim"))
}

/// Runs the program in a folder.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    program().args(arguments).current_dir(folder).output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes a shard of the sweep to `NUMBER.jsonl`.
fn shard(folder: &Path, shard: &str, more: &[&str]) -> Output {
    let file = format!("{}.jsonl", shard.split('/').next().unwrap());
    let arguments: Vec<&str> = SWEEP
        .iter()
        .copied()
        .chain(["--shard", shard, "--output", &file])
        .chain(more.iter().copied())
        .collect();
    run(folder, &arguments)
}

/// A folder with the three shards of the sweep.
fn three_shards() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    for number in ["1/3", "2/3", "3/3"] {
        assert!(out(&shard(&path, number, &[])).contains("is complete: 5 runs, 5 of them run now"));
    }
    (folder, path)
}

#[test]
fn shards_together_are_the_whole() {
    let (_folder, path) = three_shards();
    for form in [&["--json"][..], &["--csv"], &[]] {
        let merged = run(&path, &[&["merge", "3.jsonl", "1.jsonl", "2.jsonl"], form].concat());
        let whole = run(&path, &[&SWEEP, form].concat());
        assert_eq!(out(&merged), out(&whole));
    }
    let threads = |number| {
        let output = program().args(SWEEP).arg("--json").env("RAYON_NUM_THREADS", number).output().unwrap();
        out(&output)
    };
    assert_eq!(threads("1"), threads("8"));
}

#[test]
fn a_file_without_shards_is_the_whole_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let all = [&SWEEP[..], &["--output", "all.jsonl", "--csv"]].concat();
    let first = run(folder.path(), &all);
    assert_eq!(out(&first), out(&run(folder.path(), &["merge", "all.jsonl", "--csv"])));
    let again = run(folder.path(), &all);
    assert_eq!(out(&again), out(&first));
    assert!(err(&again).contains("note: 15 of 15 runs are in the file"), "{again:?}");
}

/// The command is killed while runs are in progress, then repeated.
#[test]
fn a_killed_command_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let many = [
        "sim",
        SCENARIO,
        "--sweep",
        "tickets.light=50..1000:50",
        "--seeds",
        "20",
        "--output",
        "all.jsonl",
        "--csv",
    ];
    let file = folder.path().join("all.jsonl");
    let lines = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    let mut child = program()
        .args(many)
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while lines() < 20 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let done = lines();
    assert!(done >= 20, "{done} lines");
    // The kill may also have torn a line.
    let mut text = fs::read(&file).unwrap();
    text.extend(b"{\"point\":3,\"se");
    fs::write(&file, text).unwrap();
    let completed = run(folder.path(), &many);
    let whole = run(folder.path(), &[&many[..6], &["--csv"]].concat());
    assert_eq!(out(&completed), out(&whole));
    assert_eq!(lines(), 401);
}

#[test]
fn two_commands_do_not_write_one_file() {
    let (_folder, path) = three_shards();
    let file = fs::File::open(path.join("1.jsonl")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let second = shard(&path, "1/3", &[]);
    assert_eq!(second.status.code(), Some(73));
    assert!(err(&second).contains("1.jsonl: another process writes runs to it; wait for it"), "{second:?}");
}

#[test]
fn what_is_missing_is_named() {
    let (_folder, path) = three_shards();
    let all = fs::read_to_string(path.join("2.jsonl")).unwrap();
    let lines: Vec<&str> = all.lines().filter(|line| !line.starts_with("{\"point\":1,\"seed\":3,")).collect();
    assert_eq!(lines.len(), 5);
    fs::write(path.join("2.jsonl"), lines.join("\n") + "\n").unwrap();
    let merged = run(&path, &["merge", "1.jsonl", "2.jsonl"]);
    assert_eq!(merged.status.code(), Some(3));
    let text = String::from_utf8(merged.stdout).unwrap();
    assert!(text.starts_with("two: Two CPUs, 3 points, seeds 1 to 5, incomplete\n"), "{text}");
    let (_, missing) = text.split_once("0 broken\n").unwrap();
    assert_eq!(
        missing,
        "incomplete: 6 of 15 runs are missing\n\
         shard 2/3 lacks 1 of its 5 runs\n\
         shard 3/3 has no file: 5 runs missing\n\
         missing at contract:unit.light.tickets=50: seed 3\n\
         missing at contract:unit.light.tickets=100: seeds 1, 3, 4\n\
         missing at contract:unit.light.tickets=200: seeds 2, 5\n"
    );
    let json = run(&path, &["merge", "1.jsonl", "2.jsonl", "--json"]);
    assert!(err(&json).starts_with("incomplete: 6 of 15 runs are missing\n"), "{json:?}");
    // A command that was ended before its first line leaves such a file.
    fs::write(path.join("3.jsonl"), "{\"schema\"").unwrap();
    let torn = run(&path, &["merge", "1.jsonl", "2.jsonl", "3.jsonl"]);
    assert_eq!((torn.status.code(), String::from_utf8_lossy(&torn.stdout).into_owned()), (Some(3), text));
    assert!(
        err(&torn).starts_with("note: 3.jsonl: it has no whole line: its runs count as missing; "),
        "{torn:?}"
    );
    let none = run(&path, &["merge", "3.jsonl", "3.jsonl"]);
    assert_eq!(none.status.code(), Some(66), "{none:?}");
}

/// A run of an earlier attempt that broke a check is not forgotten.
#[test]
fn a_shard_with_a_broken_run_fails_again() {
    let (_folder, path) = three_shards();
    let file = path.join("1.jsonl");
    let broken = fs::read_to_string(&file).unwrap().replacen("\"broken\":0", "\"broken\":1", 1);
    fs::write(&file, broken).unwrap();
    let again = shard(&path, "1/3", &[]);
    assert_eq!(again.status.code(), Some(70), "{again:?}");
}

#[test]
fn overlaps_are_counted_and_contradictions_refused() {
    let (_folder, path) = three_shards();
    let doubled = run(&path, &["merge", "1.jsonl", "2.jsonl", "2.jsonl", "3.jsonl"]);
    assert_eq!(out(&doubled), out(&run(&path, &SWEEP)));
    assert_eq!(
        err(&doubled),
        "note: 5 runs more than once, with the same figures each time; each counts once\n"
    );
    let other =
        fs::read_to_string(path.join("2.jsonl")).unwrap().replacen("\"ended_ns\":", "\"ended_ns\":1", 1);
    fs::write(path.join("other.jsonl"), other).unwrap();
    let refused = run(&path, &["merge", "1.jsonl", "2.jsonl", "other.jsonl", "3.jsonl"]);
    assert_eq!(refused.status.code(), Some(70));
    assert!(refused.stdout.is_empty());
    let message = "error: 2.jsonl and other.jsonl have different figures for contract:unit.light.tickets=";
    assert!(err(&refused).starts_with(message), "{refused:?}");
}

#[test]
fn files_of_other_sweeps_are_refused_and_not_changed() {
    let (_folder, path) = three_shards();
    let first = fs::read_to_string(path.join("1.jsonl")).unwrap();
    for (from, to, why) in [
        ("\"program\":\"", "\"program\":\"9", "it was written by version 9"),
        ("\"scenario\":\"two", "\"scenario\":\"three", "its scenario is three, not two"),
        ("\"50\"", "\"51\"", "its swept keys or values are others"),
        ("\"seeds\":5", "\"seeds\":6", "its seeds are 1 to 6, not 1 to 5"),
        ("\"inputs\":\"", "\"inputs\":\"0", "the scenario's files, or options such as --scheme, were others"),
    ] {
        let (header, _) = first.split_once('\n').unwrap();
        let other = header.replacen(from, to, 1) + "\n";
        assert_ne!(other.trim_end(), header);
        fs::write(path.join("other.jsonl"), &other).unwrap();
        let merged = run(&path, &["merge", "2.jsonl", "other.jsonl"]);
        assert_eq!(merged.status.code(), Some(1), "{merged:?}");
        let message = format!("error: other.jsonl is of another sweep than 2.jsonl: {why}");
        assert!(err(&merged).starts_with(&message), "{merged:?}");
        fs::write(path.join("1.jsonl"), &other).unwrap();
        let refused = shard(&path, "1/3", &[]);
        assert_eq!(refused.status.code(), Some(73), "{refused:?}");
        assert!(err(&refused).contains(&format!("is of another sweep: {why}")), "{refused:?}");
        assert_eq!(fs::read_to_string(path.join("1.jsonl")).unwrap(), other);
    }
    // The same sweep in other parts, and with an option.
    fs::write(path.join("1.jsonl"), &first).unwrap();
    let parts = shard(&path, "1/2", &[]);
    assert!(err(&parts).contains("1.jsonl: it exists, and has the runs of shard 1/3;"), "{parts:?}");
    let scheme = shard(&path, "1/3", &["--scheme", "smp"]);
    assert!(err(&scheme).contains("or options such as --scheme, were others"), "{scheme:?}");
    assert_eq!(fs::read_to_string(path.join("1.jsonl")).unwrap(), first);
}

#[test]
fn damaged_lines_are_named() {
    let (_folder, path) = three_shards();
    let good = fs::read_to_string(path.join("1.jsonl")).unwrap();
    for (line, why) in [
        ("{\"point\":1}", "1.jsonl:7: no run of the sweep: missing field `seed`"),
        ("{}x", "1.jsonl:7: no run of the sweep: "),
        ("", "1.jsonl:7: no run of the sweep: "),
    ] {
        fs::write(path.join("1.jsonl"), format!("{good}{line}\n")).unwrap();
        let merged = run(&path, &["merge", "1.jsonl", "2.jsonl", "3.jsonl"]);
        assert_eq!(merged.status.code(), Some(66), "{merged:?}");
        assert!(err(&merged).starts_with(&format!("error: {why}")), "{merged:?}");
        assert!(err(&merged).contains("; delete the line, and repeat the command"), "{merged:?}");
    }
    // A run of another shard, one of no point, and one with a name that could move the cursor.
    let of_second = fs::read_to_string(path.join("2.jsonl")).unwrap().lines().nth(1).unwrap().to_owned();
    let of_none = of_second.replacen("\"point\":", "\"point\":9", 1);
    let foul = good.lines().nth(1).unwrap().replacen("\"light\"", "\"\\u001b[31m\"", 1);
    for (line, why) in [
        (of_second, "is not in shard 1/3"),
        (of_none, "is not in shard 1/3"),
        (foul, "a name has control characters"),
    ] {
        fs::write(path.join("1.jsonl"), format!("{good}{line}\n")).unwrap();
        let merged = run(&path, &["merge", "1.jsonl", "2.jsonl", "3.jsonl"]);
        assert!(merged.status.code() == Some(66) && err(&merged).contains(why), "{merged:?}");
    }
    // A torn last line is a run that is missing.
    fs::write(path.join("1.jsonl"), good.trim_end()).unwrap();
    let torn = run(&path, &["merge", "1.jsonl", "2.jsonl", "3.jsonl"]);
    assert_eq!(torn.status.code(), Some(3));
    assert!(
        err(&torn).starts_with("note: 1.jsonl: the last line is torn: its run counts as missing"),
        "{torn:?}"
    );
    assert!(out(&shard(&path, "1/3", &[])).contains("is complete: 5 runs, 1 of them run now"));
    assert!(run(&path, &["merge", "1.jsonl", "2.jsonl", "3.jsonl"]).status.success());
}

/// A header that promises more than any sweep has.
#[test]
fn absurd_headers_are_refused() {
    let (_folder, path) = three_shards();
    let good = fs::read_to_string(path.join("1.jsonl")).unwrap();
    for (from, to) in [
        ("\"seeds\":5", "\"seeds\":18446744073709551615"),
        ("\"seed\":1,", "\"seed\":18446744073709551615,"),
        ("\"seeds\":5", "\"seeds\":0"),
        ("\"of\":3", "\"of\":0"),
        ("\"number\":1", "\"number\":4"),
        ("[\"50\",\"100\",\"200\"]", "[]"),
        ("\"Two CPUs\"", "\"\\u001b\""),
    ] {
        let other = good.replacen(from, to, 1);
        assert_ne!(other, good, "{from}");
        fs::write(path.join("1.jsonl"), other).unwrap();
        let merged = run(&path, &["merge", "1.jsonl"]);
        assert_eq!(merged.status.code(), Some(66), "{merged:?}");
        assert!(err(&merged).contains("1.jsonl: its first line is damaged"), "{merged:?}");
    }
}

#[test]
fn pages_have_plots_of_sweeps_and_contracts() {
    let folder = tempfile::tempdir().unwrap();
    out(&run(folder.path(), &[&SWEEP[..], &["--html", "sweep.html"]].concat()));
    let page = fs::read_to_string(folder.path().join("sweep.html")).unwrap();
    assert!(
        page.contains("<h3>light of light: response time</h3>") && page.contains("class='whisker'"),
        "{page}"
    );
    let contracts = [
        &format!("{SCENARIO}/contract.toml"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim.in/more.toml"),
    ];
    let arguments = [
        "sim",
        SCENARIO,
        "--contract",
        contracts[0],
        "--contract",
        contracts[1],
        "--html",
        "two.html",
        "--json",
    ];
    let json = out(&run(folder.path(), &arguments));
    assert!(json.contains("\"schema\": \"commonhold.contracts\""), "{json}");
    let page = fs::read_to_string(folder.path().join("two.html")).unwrap();
    assert!(page.contains("light of light, response time") && page.contains("B - A"), "{page}");
}

#[test]
fn a_first_scenario_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["sim", "--new", "a/first"];
    assert!(out(&run(folder.path(), &arguments)).contains("run `commonhold sim a/first`"));
    let (written, workload) =
        (out(&run(folder.path(), &["sim", "a/first"])), folder.path().join("a/first/workload.toml"));
    assert!(written.contains("0 broken\n"), "{written}");
    fs::write(&workload, "mine").unwrap();
    assert_eq!(run(folder.path(), &arguments).status.code(), Some(73));
    assert_eq!(fs::read_to_string(workload).unwrap(), "mine");
}
