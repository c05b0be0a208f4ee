//! `commonhold scale` on real programs. How long they take is not asserted.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

fn scale(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_commonhold-scale")).arg("scale").args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Works for a while: a tenth of a second or so.
const WORK: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.05";

/// The kind of answer for numbers of threads: those above the number of CPUs are no points of the law.
fn answer(sizes: &[usize]) -> &'static str {
    let cpus = std::thread::available_parallelism().unwrap().get();
    match sizes.iter().filter(|size| **size <= cpus).count() {
        0 => "no-size",
        1 => "one-size",
        2 => "two-sizes",
        _ => "law",
    }
}

#[test]
fn a_law_and_states_that_add_up() {
    let work = format!("echo size {{n}}; {WORK} & {WORK} & wait");
    let output = scale(&["--sizes", "1,2,3", "--repeat", "2", "--json", "--", "sh", "-c", &work]);
    assert!(output.status.success(), "{output:?}");
    let study = json(&output);
    assert_eq!(study["scaling"]["answer"], answer(&[1, 2, 3]));
    for size in study["sizes"].as_array().unwrap() {
        let runs = size["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        for run in runs {
            let states = &run["states"];
            let by_state = states["by_state"].as_object().unwrap();
            let sum: u64 = by_state.values().map(|ns| ns.as_u64().unwrap()).sum();
            let (lived, excess) =
                (states["lived_ns"].as_u64().unwrap(), states["excess_ns"].as_u64().unwrap());
            assert_eq!(sum, lived + excess);
            // The shell and two subshells, and what these sleep with; without root, what is short may be
            // missed.
            let least = if rustix::process::geteuid().is_root() { 3 } else { 1 };
            assert!(states["threads"].as_u64().unwrap() >= least, "{run}");
            assert!(by_state.contains_key("user") || by_state.contains_key("system"), "{run}");
            // Nobody lives longer than the run: five processes at most.
            assert!(lived <= 5 * run["wall_ns"].as_u64().unwrap(), "{run}");
        }
    }
}

#[test]
fn the_program_may_use_the_cpus_of_its_size_and_no_others() {
    let count = "test $(nproc) = {n} || { nproc >&2; exit 9; }; sleep 0.05";
    let output = scale(&["--cpus", "1", "--repeat", "2", "--json", "--", "sh", "-c", count]);
    assert!(output.status.success(), "{output:?}");
    let study = json(&output);
    assert_eq!((&study["scaling"]["answer"], &study["sizes_are"]), (&"one-size".into(), &"both".into()));
}

#[test]
fn a_rate_that_the_program_prints() {
    let print = "sleep 0.03; echo rate: 1; echo rate: {n}.5";
    let rate = ["--rate", "rate: ([0-9.]+)", "--sizes", "1,2", "--repeat", "1", "--unwatched", "--json"];
    let output = scale(&[&rate[..], &["--", "sh", "-c", print]].concat());
    let study = json(&output);
    assert_eq!(study["sizes"][1]["runs"][0]["throughput"], 2.5);
    assert_eq!(study["sizes"][1]["runs"][0]["states"], Value::Null);
    assert_eq!(study["scaling"]["answer"], answer(&[1, 2]));
    let with_unit = scale(&[&rate[..], &["--", "sh", "-c", "sleep 0.03; echo rate: {n}.9k"]].concat());
    assert_eq!(json(&with_unit)["sizes"][1]["runs"][0]["throughput"], 2_900.0);
    let unclear = scale(&[&rate[..], &["--", "sh", "-c", "sleep 0.03; echo rate: 2.235,{n}"]].concat());
    assert_eq!(unclear.status.code(), Some(3), "{unclear:?}");
    assert!(errors(&unclear).contains("goes on with `,1`"), "{unclear:?}");
    let silent = scale(&[&rate[..], &["--", "sh", "-c", "sleep 0.03; echo {n}"]].concat());
    assert_eq!(silent.status.code(), Some(3));
    assert!(
        errors(&silent).contains("printed nothing that `rate: ([0-9.]+)` (--rate) is found in"),
        "{silent:?}"
    );
}

#[test]
fn a_size_that_fails_is_told_and_the_others_are_answered_for() {
    let fails = "sleep 0.03; echo no such luck >&2; [ {n} != 2 ]";
    let output = scale(&["--sizes", "1,2,3,4", "--repeat", "2", "--json", "--", "sh", "-c", fails]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let study = json(&output);
    assert_eq!(study["scaling"]["answer"], answer(&[1, 3, 4]));
    assert_eq!(study["sizes"][1]["failed"], "the program ended with exit code 1: no such luck");
    let all = scale(&["--sizes", "1,2", "--", "sh", "-c", "sleep 0.03; kill -9 $$ # {n}"]);
    assert_eq!(all.status.code(), Some(3));
    assert!(
        errors(&all).contains("the first that failed is 1: ") || errors(&all).contains("ended by signal 9"),
        "{all:?}"
    );
}

#[test]
fn what_cannot_be_measured_is_said_with_its_exit_code() {
    for (arguments, code, message) in [
        (&["--", "/no/such/program"][..], 127, "there is no program `/no/such/program`"),
        (&["--", "/etc/passwd"], 126, "cannot run /etc/passwd"),
        (&["--cpus", "1,60000", "--", "true"], 69, "--cpus asks for 60000"),
        (&["--cpus", "3-1", "--", "true"], 2, "write numbers from 1 to 65535"),
        (&["--cpus", "0,1", "--", "true"], 2, "write numbers from 1 to 65535"),
        (&["--sizes", "1,2", "--", "true"], 2, "which has none"),
        (&["--rate", "(", "--", "true"], 2, "--rate is not a pattern"),
    ] {
        let output = scale(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(errors(&output).contains(message), "{arguments:?}: {}", errors(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    for page in [folder.path().join("missing/page.html"), folder.path().to_owned()] {
        let output = scale(&["--html", page.to_str().unwrap(), "--", "touch", ran.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(73), "{output:?}");
        assert!(errors(&output).contains("cannot write the page"), "{output:?}");
        assert!(!ran.exists());
    }
}

/// A program under `nohup` outlives its terminal.
#[test]
fn a_hangup_that_the_caller_ignored_ends_no_study() {
    let script = "trap '' HUP; \"$0\" scale --cpus 1 --repeat 1 --warm-up 0 -- sh -c 'sleep 1.5; : 7424.5'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_commonhold-scale")]).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let of_study = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
    let began = std::time::Instant::now();
    let study = loop {
        if let Some(pid) = of_study().unwrap_or_default().split_whitespace().next() {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            if !children.unwrap_or_default().trim().is_empty() {
                break pid.parse().unwrap();
            }
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "no program was started");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let pid = rustix::process::Pid::from_raw(study).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Processes with that word in their command line.
fn running(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).any(|w| w == word.as_bytes())).count()
}

#[test]
fn an_interrupt_ends_the_program_and_all_that_it_started() {
    // One of them in a session of its own, which a signal to the group would not reach; one that does not
    // listen.
    let work = "setsid sleep 7421.5 & sh -c 'trap \"\" TERM; sleep 7421.5 & wait; wait' & sleep 7421.5; wait";
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-scale"));
    command.args(["scale", "--", "sh", "-c", work]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    while running("7421.5") < 3 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(errors(&output).contains("interrupted"));
    assert_eq!(running("7421.5"), 0);
}

/// Nobody is left to tell, but the program does not run on.
#[test]
fn a_kill_ends_the_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-scale"));
    command
        .args(["scale", "--cpus", "1", "--", "sleep", "7423.5"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The study has the number in its command line, too.
    while running("7423.5") < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = std::time::Instant::now();
    while running("7423.5") > 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "it runs on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn what_a_program_leaves_behind_is_ended_and_told() {
    let output = scale(&[
        "--cpus",
        "1",
        "--repeat",
        "1",
        "--warm-up",
        "0",
        "--json",
        "--",
        "sh",
        "-c",
        "setsid sleep 7422.5 & sleep 0.1",
    ]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("left a process behind"), "{output:?}");
    assert_eq!(running("7422.5"), 0);
}

#[test]
fn locks_are_counted_and_one_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("locks");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/guest/locks.c");
    let flags = ["-std=gnu11", "-O2", "-g", "-pthread", "-o"];
    let compiled = Command::new("cc").args(flags).arg(&program).arg(source).status().unwrap();
    assert!(compiled.success());
    let ask = |kind: &str, more: &[&str]| {
        let flags = ["--locks", "--json", "--sizes", "2", "--repeat", "1", "--warm-up", "0"];
        let work = [program.to_str().unwrap(), kind, "{n}", "100", "100", "500", "100", "500"];
        scale(&[&flags[..], more, &["--"], &work].concat())
    };
    let output = ask("mutex", &[]);
    assert!(output.status.success(), "{output:?}");
    let locks = &json(&output)["locks"];
    let lock = &locks["locks"][0];
    assert_eq!((&lock["name"], &lock["kind"]), (&"counter_lock".into(), &"mutex".into()));
    assert_eq!((&lock["counts"]["total"], &locks["tried"]), (&100.into(), &lock["class"]));
    assert!(lock["sites"][0]["name"].as_str().unwrap().starts_with("run (locks.c:"), "{lock}");
    // Three rounds of four runs with the meter, and of one without.
    assert_eq!(locks["trials"].as_array().unwrap().len(), 12);
    assert_eq!(locks["throughput_plain"].as_array().unwrap().len(), 3);
    let gain = &locks["mend"]["apart"];
    assert!(
        gain["times"].as_f64().unwrap() >= 1.0 && gain["low"].as_f64() <= gain["high"].as_f64(),
        "{locks}"
    );
    for trial in locks["trials"].as_array().unwrap() {
        let (asked, injected) = (trial["delay_ns"].as_u64().unwrap(), trial["cycle"]["injected_s"].as_f64());
        assert_eq!(asked > 0, injected.unwrap() > 0.0, "{trial}");
    }
    // Without a lock there is nothing to be tried.
    let none = ask("none", &[]);
    assert!(none.status.success());
    assert_eq!(
        (&json(&none)["locks"]["tried"], &json(&none)["locks"]["untold"]),
        (&Value::Null, &"not-tried".into())
    );
    // Threads that are not sampled.
    assert_eq!(ask("mutex", &["--unwatched"]).status.code(), Some(2));
}

/// Ends processes with the test.
struct Ends(Vec<std::process::Child>);

impl Drop for Ends {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// External load must not count as serialisation of the program: it is reported first.
#[test]
fn what_others_use_of_the_cpus_makes_it_inconclusive() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    // The limit is of CPU time, in seconds: one that is forgotten dies of it.
    let spin = || Command::new("sh").args(["-c", "ulimit -t 60; while :; do :; done"]).spawn().unwrap();
    let _others = Ends((0..cpus * 2).map(|_| spin()).collect());
    let work = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let flags = ["--cpus", "1", "--repeat", "2", "--warm-up", "0"];
    let output = scale(&[&flags[..], &["--json", "--", "sh", "-c", work]].concat());
    assert!(output.status.success(), "{output:?}");
    let study = json(&output);
    assert_eq!(study["outside"]["outside"], "others", "{study}");
    let said = study["verdict"].as_str().unwrap();
    assert!(said.starts_with("Inconclusive: others used ") && said.contains(" % of these CPUs"), "{said}");
    let load = &study["sizes"][0]["runs"][0]["load"];
    assert!(load["others_ns"].as_u64().unwrap() > 0 && load["whole_ns"].as_u64().unwrap() > 0, "{load}");
    // In the text it stands before any table.
    let output = scale(&[&flags[..], &["--", "sh", "-c", work]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.find("Inconclusive: others used").unwrap() < text.find("1. How does it scale?").unwrap(),
        "{text}"
    );
}

/// A control group with a quota of half a CPU; removed with the test.
struct Capped(std::path::PathBuf);

impl Capped {
    fn make() -> Option<Capped> {
        let mounts = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"];
        mounts.iter().find_map(|mount| {
            let group = std::path::Path::new(mount).join(format!("commonhold-test-{}", std::process::id()));
            std::fs::create_dir(&group).ok()?;
            let capped = Capped(group);
            let write = |name: &str, text: &str| std::fs::write(capped.0.join(name), text).is_ok();
            let is_v1 = write("cpu.cfs_period_us", "20000") && write("cpu.cfs_quota_us", "10000");
            (is_v1 || capped.0.join("cpu.max").exists() && write("cpu.max", "10000 20000")).then_some(capped)
        })
    }
}

impl Drop for Capped {
    fn drop(&mut self) {
        // It is empty some moments after its last process has ended.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_quota_is_named() {
    let Some(capped) = Capped::make() else {
        return skipped::skipped("no control group with a quota can be made here");
    };
    let commonhold = env!("CARGO_BIN_EXE_commonhold-scale");
    let enter = format!(
        "echo $$ >{}/cgroup.procs; mkdir {0}/inner; exec {commonhold} scale --repeat 1 --warm-up 0 --json -- sh -c '{WORK}'",
        capped.0.display()
    );
    let output = Command::new("sh").args(["-c", &enter]).output().unwrap();
    let _ = std::fs::remove_dir(capped.0.join("inner"));
    assert!(output.status.success(), "{output:?}");
    let study = json(&output);
    assert_eq!(study["quota"]["cpus"], 0.5, "{study}");
    assert!(study["quota"]["file"].as_str().unwrap().starts_with(capped.0.to_str().unwrap()), "{study}");
    // Sizes that nobody asked for do not go beyond it.
    let sizes = study["sizes"].as_array().unwrap();
    assert_eq!(
        (sizes.len(), &sizes[0]["size"], &sizes[0]["beyond"]),
        (1, &1.into(), &true.into()),
        "{study}"
    );
    let said = study["verdict"].as_str().unwrap();
    assert!(said.starts_with("A CPU quota bounds it: ") || said.starts_with("Inconclusive"), "{said}");
}

#[test]
fn points_of_a_file_are_fitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sizes.csv");
    let file = path.to_str().unwrap();
    // 10 n / (1 + 0.1 (n - 1)).
    std::fs::write(&path, "size,throughput\n1,10\n2,18.181818\n4,30.769231\n8,47.058824\n8,47.0588\n")
        .unwrap();
    let output = scale(&["--json", "--points", file]);
    assert!(output.status.success(), "{output:?}");
    let law = &json(&output)["scaling"]["law"];
    assert!((law["alpha"].as_f64().unwrap() - 0.1).abs() < 1e-4, "{law}");
    std::fs::write(&path, "1,10\n2,18 MB\n\n4\n").unwrap();
    let output = scale(&["--points", file]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = errors(&output);
    assert!(
        said.contains(&format!("{file}:2: `2,18 MB`")) && said.contains(&format!("{file}:4: `4`")),
        "{said}"
    );
    // One that would never end, and one that is not there.
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    for name in ["pipe", "none", "."] {
        assert_eq!(scale(&["--points", folder.path().join(name).to_str().unwrap()]).status.code(), Some(66));
    }
    std::fs::write(&path, "# none\n").unwrap();
    assert_eq!(scale(&["--points", file]).status.code(), Some(1));
    assert_eq!(scale(&["--points", file, "--", "true"]).status.code(), Some(2));
}
