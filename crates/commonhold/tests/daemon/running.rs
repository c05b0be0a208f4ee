//! A daemon from its start to its normal end.

use std::fs;
use std::os::unix::net::UnixStream;

use crate::support::{Place, Process, eventually, has_cpus};

#[test]
fn it_holds_answers_and_leaves_nothing_behind() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let mut daemon = place.run(&["--for", "1s"]);
    eventually("both are confined", || members.iter().all(Process::is_confined));
    let status = place.call(&["status"]);
    for words in
        ["scheme isolate", "u0", "u1", "= capacity", "Contract contract.toml, held by the user backend."]
    {
        assert!(status.out.contains(words), "`{words}` is not in:\n{}", status.out);
    }
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(members.iter().all(Process::is_free));
    assert!(daemon.out().contains("undone: 2 threads unpinned"), "{}", daemon.out());
    let mut left: Vec<_> =
        fs::read_dir(place.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["history", "lock"]);
    assert_eq!(daemon.err(), "");
}

/// A daemon that has just begun cannot tell yet whether the contract is kept.
#[test]
fn status_shows_one_unit_verdicts_alone_and_again() {
    let place = Place::with(
        "version = 1\n[unit.a]\nmembers = []\n[unit.a.unit.b]\nmembers = []\n[unit.c]\nmembers = []\n",
    );
    let _daemon = place.run(&[]);
    let all = place.call(&["status"]).out;
    assert!(all.starts_with("Too early to tell: "), "{all}");
    let one = place.call(&["status", "a"]).out;
    assert!(one.contains("\na ") && one.contains("\n  b ") && !one.contains("\nc "), "{one}");
    place.call(&["status", "d"]).refused(69, &["no unit `d` holds tickets; units are a, a/b, c"]);
    let check = place.call(&["status", "--check"]);
    assert!(check.code == Some(3) && check.out.lines().count() >= 1, "{check:?}");
    place.call(&["status", "--check", "--json"]).refused(2, &["cannot be used with"]);
    // It ends when the reader of its output is gone.
    let mut watch = place.command(&["status", "--watch=1"]);
    let mut watch = watch.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(watch.stdout.take().unwrap());
    let mut screens = 0;
    while screens < 2 {
        let mut line = String::new();
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut line).unwrap(), 0);
        screens += usize::from(line.starts_with("scheme isolate"));
    }
    drop(out);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

/// A rule for a resource that nothing holds is no promise that was kept.
#[test]
fn status_names_a_unit_whose_resource_nothing_holds() {
    let place =
        Place::with("version = 1\n[unit.a]\nmembers = []\nlimit.bus = \"10 %\"\n[unit.b]\nmembers = []\n");
    let _daemon = place.run(&[]);
    let mut check = place.call(&["status", "--check"]);
    eventually("a verdict on the bus", || {
        check = place.call(&["status", "--check"]);
        check.out.contains("a bus: cannot tell. Nothing holds the memory bus on this machine.")
    });
    assert!(check.code == Some(3) && !check.out.contains("b bus"), "{check:?}");
}

/// What a daemon did is read after its end, and the next daemon continues it.
#[test]
fn it_keeps_a_history_and_ends_with_an_account() {
    let member = Process::spinner();
    let place = Place::with_units(&[&member]);
    for _ in 0..2 {
        let mut daemon = place.run(&["--for", "2500ms"]);
        assert_eq!(daemon.wait().code(), Some(0));
        let out = daemon.out();
        assert!(out.contains("history in ") && out.contains("account of "), "{out}");
        let account = out.split("account of ").nth(1).unwrap_or_default();
        assert!(account.contains("\nu0 ") && account.contains("undo"), "{out}");
        assert_eq!(daemon.err(), "");
    }
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&place.call(arguments).out).unwrap()
    };
    let history = json(&["history", "u0", "--since", "1h", "--step", "second", "--json"]);
    let records = history["records"].as_array().unwrap();
    assert!(records.len() >= 4, "{history}");
    let ns = |value: &serde_json::Value| value.as_u64().unwrap();
    let covered: u64 = records.iter().map(|record| ns(&record["duration_ns"])).sum();
    let account = json(&["account", "u0", "--json"]);
    assert_eq!(ns(&account["covered_ns"]), covered);
    let unit = &account["units"][0];
    let by_user: u64 = unit["users"].as_array().unwrap().iter().map(|user| ns(&user["used_ns"])).sum();
    // The ledger's sample and the roster's are not of the same moment.
    let used = ns(&unit["cpu"]["used_ns"]);
    assert!(used > 0 && by_user.abs_diff(used) <= used / 4, "{account}");
}

#[test]
fn it_keeps_no_history_if_told_so() {
    let place = Place::with_units(&[&Process::sleeper()]);
    let mut daemon = place.run(&["--for", "1s", "--no-history"]);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!place.directory().join("history").exists());
    assert!(daemon.out().contains("account of "), "{}", daemon.out());
}

/// A history that cannot be written is a problem, and nothing else fails.
#[test]
fn a_history_that_cannot_be_written_is_a_problem() {
    let place = Place::with_units(&[&Process::sleeper()]);
    fs::create_dir_all(place.directory()).unwrap();
    fs::write(place.directory().join("history"), "a file").unwrap();
    let mut daemon = place.run(&[]);
    let problems = place.status()["problems"].to_string();
    assert!(problems.contains("history is not written: "), "{problems}");
    daemon.stop();
    assert!(daemon.err().contains("problem: history is not written: "), "{}", daemon.err());
    assert_eq!(fs::read_to_string(place.directory().join("history")).unwrap(), "a file");
}

#[test]
fn its_accounts_are_json_and_conserved() {
    let member = Process::sleeper();
    let place = Place::with_units(&[&member]);
    let _daemon = place.run(&[]);
    let status = place.status();
    assert_eq!(status["schema"], "commonhold.status");
    assert_eq!(status["backend"], "user");
    assert_eq!(status["contract"], "contract.toml");
    assert_eq!(status["problems"], serde_json::json!([]));
    let ns = |value: &serde_json::Value| value.as_u64().unwrap();
    let accounts = status["accounts"].as_array().unwrap();
    let used: u64 = accounts.iter().map(|account| ns(&account["used_ns"])).sum();
    assert_eq!(used + ns(&status["common_ns"]) + ns(&status["idle_ns"]), ns(&status["capacity_ns"]));
}

#[test]
fn it_says_what_it_does_not_hold() {
    let place = Place::with("version = 1\n[unit.a]\nhard = { memory = \"1MiB\" }\n");
    let daemon = place.run(&[]);
    let out = daemon.out();
    assert!(out.contains("cpu     held by the user backend (as asked)"), "{out}");
    let line = |resource: &str| out.lines().find_map(|line| line.strip_prefix(resource)).unwrap_or_default();
    // Whether the kernel pages memory out on request depends on the user that runs the tests, and the holding
    // of disks on the machine's disks.
    let how = line("memory  ");
    let weakly = how.strip_prefix("held weakly").or(how.strip_prefix("not held")).unwrap_or_default();
    assert!(weakly.starts_with(", though the contract asks for it: "), "{out}");
    assert!(line("disk    ").contains("held"), "{out}");
    assert!(out.contains("bus     not held: `gangs` is \"off\" in [machine]\n"), "{out}");
    // `status` reports the same, as text and JSON, and so does a dry run.
    let held = if how.starts_with("held") { "partly" } else { "no" };
    let memory = serde_json::json!({ "resource": "memory", "held": held, "how": how });
    assert_eq!(place.status()["holdings"][1], memory);
    let text = place.call(&["status"]);
    assert!(text.out.contains("bus     not held: `gangs` is \"off\" in [machine]\n"), "{}", text.out);
    let dry = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&dry.out).unwrap();
    assert_eq!(plan["holdings"][1], memory);
    // So does `check`, as a warning, since the contract asks for memory and not for disks.
    let checked = place.call(&["check", "contract.toml"]);
    assert!(
        checked.err.contains(&format!("warning: memory is {how}\n")) == (checked.out.contains(how)),
        "{checked:?}"
    );
    assert!(!checked.err.contains("warning: disk") && checked.code == Some(0), "{checked:?}");
    assert!(checked.out.contains("On this machine, `run` would say:\ncpu     held by the "), "{checked:?}");
}

#[test]
fn it_says_how_limits_of_cpu_are_held() {
    let place = Place::with("version = 1\n[unit.a]\nmembers = []\nlimit = { cpu = 0.5 }\n");
    let text = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run"]);
    assert!(text.out.contains("cpu     held by the user backend (as asked); limits by turns"), "{text:?}");
    let smp = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run", "--scheme", "smp"]);
    assert!(smp.out.contains("cpu     held by the user backend (as asked)\n"), "{smp:?}");
}

#[test]
fn units_that_negotiate_are_named_before_anything_is_tried() {
    let place = Place::with("version = 1\n[unit.a]\nmembers = []\n[unit.b]\nmembers = []\n");
    let daemon = place.run(&["--negotiate"]);
    let why = "units do not negotiate under the user backend, which cannot tell";
    assert!(daemon.out().contains(&format!("warning: {why}")), "{}", daemon.out());
    let status = place.call(&["status"]).out;
    assert!(status.contains("\nunits that negotiate: a, b; no trial yet\n"), "{status}");
    assert!(status.contains(&format!("\nproblem: {why}")), "{status}");
    assert_eq!(place.status()["negotiated"][1]["unit"], "b");
    let offers = place.call(&["offers"]).out;
    assert!(offers.ends_with("\nunits that negotiate: a, b; no trial yet\n"), "{offers}");
}

#[test]
fn it_states_the_cpu_time_of_processes_in_no_unit() {
    let place = Place::with("version = 1\n[unit.a]\nmembers = []\n");
    let daemon = place.run(&[]);
    let part = "; processes in no unit are not held: the kernel divides CPU time between them and the units' processes\n";
    let dry = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run"]).out;
    for (said, by) in [(daemon.out(), " (as asked)"), (dry, " (as asked)"), (place.call(&["status"]).out, "")]
    {
        assert!(said.contains(&format!("cpu     held by the user backend{by}{part}")), "{said}");
    }
    let checked = place.call(&["check", "contract.toml"]).out;
    assert!(checked.contains("; processes in no unit "), "{checked}");
}

/// The daemon's directory may be a relative path, although its caretaker has another working directory.
#[test]
fn a_relative_directory_is_undone_as_well() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let mut daemon = place.run(&["--directory", "daemon"]);
    eventually("both are confined", || members.iter().all(Process::is_confined));
    daemon.stop();
    assert!(members.iter().all(Process::is_free), "{}", daemon.out());
}

#[test]
fn a_second_daemon_is_refused() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let _daemon = place.run(&[]);
    let second = place.call(&["run", "contract.toml", "--backend", "user", "--for", "1s"]);
    second.refused(73, &["another daemon runs in", "give another --directory"]);
    assert!(UnixStream::connect(place.socket()).is_ok(), "the first one still answers");
}

/// Refused before anything is changed: otherwise a caretaker would have to undo it and report that.
#[test]
fn where_no_socket_can_be_the_daemon_does_not_begin() {
    let place = Place::with("version = 1\n[unit.a]\n");
    std::fs::create_dir_all(place.socket()).unwrap();
    let refused = place.call(&["run", "contract.toml", "--backend", "user", "--for", "1s"]);
    refused.refused(71, &["cannot remove an old socket", "choose another --directory"]);
    assert!(!refused.err.contains("caretaker") && !place.directory().join("journal").exists(), "{refused:?}");
    let long = "d".repeat(120);
    let refused = place.call(&["run", "contract.toml", "--for", "1s", "--directory", &long]);
    refused.refused(71, &["cannot open a socket", "choose another --directory"]);
    assert!(!refused.err.contains("caretaker"), "{refused:?}");
}

#[test]
fn a_dry_run_plans_and_touches_nothing() {
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let text = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.out.contains("the user backend would hold this (as asked)"), "{}", text.out);
    assert!(text.out.contains("u0"), "{}", text.out);
    assert!(text.out.contains("\nProcesses that would be held now\n  u0: 1 process of "), "{}", text.out);
    assert!(text.out.contains("\nNot held: kernel threads, process 1 and Commonhold itself"), "{}", text.out);
    assert!(!text.out.contains("io.cost"), "{text:?}");
    let json = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(plan["schema"], "commonhold.plan");
    assert_eq!(plan["present"][1]["unit"], "u1");
    assert_eq!(plan["present"][1]["processes"], 1);
    assert!(plan["entitled"].as_array().unwrap().iter().all(|entitled| entitled["unit"] != "kernel"));
    assert!(members.iter().all(Process::is_free));
    assert!(!place.directory().exists());
}

#[test]
fn the_scheme_of_the_command_line_wins() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let _daemon = place.run(&["--scheme", "quota"]);
    assert_eq!(place.status()["scheme"], "quota");
}

#[test]
fn with_verbose_every_decision_is_printed_with_its_reason() {
    let member = Process::sleeper();
    let place = Place::with_units(&[&member]);
    let daemon = place.run(&["--verbose"]);
    daemon.says("cpu 0: owned by u0: it is entitled to");
}

/// The daemon prints the backends built in first, and so does `--version`: otherwise one would suspect the
/// kernel.
#[test]
fn the_backends_that_were_built_in() {
    let place = Place::with("version = 1\n[unit.a]\nmembers = []\n");
    let built = if cfg!(feature = "kernel") { "kernel, cgroup, user" } else { "cgroup, user" };
    let version = env!("CARGO_PKG_VERSION");
    let said = place.call(&["run", "contract.toml", "--backend", "user", "--for", "100ms"]);
    let first = format!("commonhold {version}, with the backends {built}");
    assert_eq!(said.out.lines().next(), Some(&*first), "{said:?}");
    let said = place.call(&["--version"]);
    assert!(said.out.starts_with(&format!("commonhold {version}\nbackends built in: {built}")), "{said:?}");
    assert_eq!(place.call(&["-V"]).out, format!("commonhold {version}\n"));
    let doctor = place.call(&["doctor", "--json"]).out;
    assert_eq!(doctor.contains("this binary was built without the scheduler"), !cfg!(feature = "kernel"));
}
