//! Invalid contracts: each with its message, its position in the file and its exit code.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::support::{Place, STRANGER, Said, is_root};

fn run(contract: &str) -> Said {
    let place = Place::with(contract);
    let said = place.call(&["run", "contract.toml", "--backend", "user", "--for", "1s"]);
    assert!(!place.directory().exists(), "nothing is made for a contract that does not hold");
    let checked = place.call(&["check", "contract.toml"]);
    assert_eq!((said.code, &said.err), (checked.code, &checked.err), "`check` says the same");
    said
}

#[test]
fn a_malformed_contract() {
    run("version = 1\n[unit.a\n").refused(1, &["contract.toml:2", "error"]);
}

#[test]
fn an_unknown_key() {
    run("version = 1\n[unit.a]\nticket = 5\n").refused(1, &["contract.toml:3:1", "`ticket`", "`tickets`"]);
}

#[test]
fn a_unit_named_twice() {
    run("version = 1\n[unit.a]\n[unit.b]\n[unit.a]\n").refused(1, &["contract.toml:4", "`a`"]);
}

#[test]
fn tickets_of_zero_and_below() {
    run("version = 1\n[unit.a]\ntickets = 0\n")
        .refused(1, &["contract.toml:3:11", "`tickets` cannot be 0", "from 1 to"]);
    run("version = 1\n[unit.a]\ntickets = -1\n")
        .refused(1, &["contract.toml:3:11", "`tickets` cannot be -1", "from 1 to"]);
}

#[test]
fn hard_reservations_that_exceed_the_machine() {
    let said = run("version = 1\n[unit.a]\nhard = { cpu = \"100000\" }\n");
    said.refused(
        1,
        &[
            "contract.toml:3:16",
            "reservation of 100000 CPUs is too large",
            "the machine has",
            "soft `tickets`",
        ],
    );
}

#[test]
fn errors_that_depend_on_the_machine_are_reported_with_the_others() {
    let said = run(
        "version = 1\n[unit.a]\ntickets = 0\nmembers = [\"user:no-such-user\"]\n[unit.b]\nhard = { cpu = \"100000\" }\n",
    );
    said.refused(1, &["contract.toml:3:11", "contract.toml:4:12", "knows no user `no-such-user`"]);
    // Possible follow-up errors are suppressed: `hard` of another unit after a wrong ticket, but not after a
    // wrong member.
    assert!(!said.err.contains("100000 CPUs"), "{}", said.err);
    let said = run("version = 1\n[unit.a]\nmembers = [\"usr:x\"]\n[unit.b]\nhard = { cpu = \"100000\" }\n");
    said.refused(1, &["contract.toml:3:13", "contract.toml:5:16", "100000 CPUs is too large"]);
}

/// An account may be created later, and a directory server may be away: the rest of the contract is held
/// meanwhile.
#[test]
fn an_unknown_user_and_an_unknown_group_are_doubts() {
    let place = Place::with(
        "version = 1\n[unit.a]\nmembers = [\"user:no-such-user\", \"group:rooot\"]\nowner = \"user:nobody-at-all\"\n\
         [unit.b]\nmembers = [\"command:no-such-command\"]\n",
    );
    let doubts = [
        "warning[unknown-name]: this machine knows no user `no-such-user`",
        "nobody is a member by this rule until the user exists",
        "create it with `useradd`",
        "this machine knows no group `rooot`",
        "did you mean `group:root`?",
        "this machine knows no user `nobody-at-all`",
        "nobody owns the unit until the user exists",
    ];
    let said = place.call(&["check", "contract.toml"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for doubt in doubts {
        assert!(said.err.contains(doubt), "{doubt}: {}", said.err);
    }
    assert!(!said.err.contains("getent"), "nobody asked getent: {}", said.err);
    let ran = place.call(&["run", "contract.toml", "--backend", "user", "--for", "1s"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for doubt in doubts {
        assert!(ran.err.contains(doubt), "{doubt}: {}", ran.err);
    }
    assert!(ran.out.contains("holding; stop with"), "{}", ran.out);
}

/// `check` and the daemon warn of probable mistakes; the daemon holds the contract nevertheless.
#[test]
fn doubts_about_members_and_limits() {
    let place = Place::with(
        "version = 1\n[machine]\ndefault = \"rest\"\n\
         [unit.a]\nmembers = [\"cgroup:/no-such-cgroup\", \"pid:4194304\", \"user:root\"]\nlimit = { cpu = 100000 }\n\
         [unit.b]\n[unit.b.unit.c]\nmembers = [\"command:no-such-command\"]\n\
         [unit.d]\nmembers = []\n[unit.rest]\n",
    );
    let said = place.call(&["check", "contract.toml"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let doubts = [
        "warning[absent-cgroup]: this machine has no cgroup `/no-such-cgroup` now\n --> contract.toml:5:12",
        "warning[absent-process]: there is no process 4194304 now\n --> contract.toml:5:38",
        "warning[takes-roots]: `user:root` puts the system's own services into unit `a`\n --> contract.toml:5:53",
        "warning[limits-nothing]: a cpu limit of 100000 CPUs does not limit `a`\n --> contract.toml:6:17",
        "warning[no-members]: unit `b` names no members\n --> contract.toml:7:7",
    ];
    for doubt in doubts {
        assert!(said.err.contains(doubt), "`{doubt}` is not in:\n{}", said.err);
    }
    let warnings = said.err.lines().filter(|line| line.starts_with("warning[")).count();
    assert_eq!(
        warnings,
        doubts.len(),
        "no others: an empty list is meant, and the rest falls into `rest`\n{}",
        said.err
    );
    let dry = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run"]);
    assert!(doubts.iter().all(|doubt| dry.err.contains(doubt)), "{}", dry.err);
    // In JSON, they are in the document, as with `check`.
    let warnings = |command: &[&str]| {
        let json: serde_json::Value = serde_json::from_str(&place.call(command).out).unwrap();
        json["warnings"].clone()
    };
    let dry = warnings(&["run", "contract.toml", "--backend", "user", "--dry-run", "--json"]);
    assert_eq!(dry.as_array().unwrap().len(), doubts.len());
    assert_eq!(dry, warnings(&["check", "contract.toml", "--json"]));
}

#[test]
fn a_contract_of_many_units_without_members_has_few_warnings() {
    let units: Vec<String> = (0..8).map(|n| format!("[unit.u{n}]\n")).collect();
    let said = Place::with(&format!("version = 1\n{}", units.concat())).call(&["check", "contract.toml"]);
    assert_eq!(said.err.matches("warning[no-members]").count(), 5, "{}", said.err);
    assert!(said.err.contains("unit `u4` names no members, and so with 3 more"), "{}", said.err);
}

#[test]
fn a_dry_run_in_json_says_what_is_wrong_in_json() {
    let place = Place::with("version = 1\n[unit.a]\nticket = 5\n");
    let dry = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run", "--json"]);
    let checked = place.call(&["check", "contract.toml", "--json"]);
    assert!(dry.out.contains("\"schema\": \"commonhold.diagnostics\""), "{dry:?}");
    assert_eq!((dry.code, dry.out, dry.err), (checked.code, checked.out, checked.err));
    // An endless file, and a missing one.
    assert!(std::process::Command::new("mkfifo").arg(place.path().join("pipe")).status().unwrap().success());
    for name in ["pipe", "none"] {
        for arguments in
            [&["check", name, "--json"][..], &["run", name, "--backend", "user", "--dry-run", "--json"]]
        {
            let said = place.call(arguments);
            let document: serde_json::Value = serde_json::from_str(&said.out).unwrap();
            let found = &document["diagnostics"][0]["diagnostic"];
            assert_eq!((said.code, document["schema"].as_str()), (Some(66), Some("commonhold.diagnostics")));
            assert_eq!((&found["code"], &found["level"]), (&"unreadable".into(), &"error".into()));
            assert!(
                found["message"].as_str().unwrap().starts_with(&format!("{name}: cannot read")),
                "{document}"
            );
            assert!(!said.err.contains("error"), "{said:?}");
        }
    }
}

/// Units nest as tables in tables, so no unit can contain itself: what looks like it is another unit's name.
#[test]
fn a_cycle_cannot_be_written() {
    let said =
        Place::with("version = 1\n[unit.a.unit.b.unit.a]\n").call(&["check", "contract.toml", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("\"a/b/a\""), "{}", said.out);
    // Nor can one unit name another as its member.
    let said = run("version = 1\n[unit.a]\nmembers = [\"unit:b\"]\n[unit.b]\nmembers = [\"unit:a\"]\n");
    said.refused(1, &["contract.toml:3", "unit:b", "contract.toml:5", "unit:a"]);
}

#[test]
fn a_contract_that_is_not_there() {
    let place = Place::new();
    let arguments = ["run", "contract.toml", "--for", "1s"];
    place.call(&arguments).refused(66, &["contract.toml: cannot read the contract: No such file"]);
    fs::create_dir(place.contract()).unwrap();
    place.call(&arguments).refused(66, &["it is a directory, not a regular file; give the path of a TOML"]);
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// All commands that read a named file. The FIFO has no writer, so a command that opened it for reading would
/// hang.
#[test]
fn what_is_no_file_is_refused_at_once_by_every_command() {
    let place = Place::with("version = 1\n[unit.a]\n");
    make_fifo(&place.path().join("fifo"));
    std::os::unix::fs::symlink("fifo", place.path().join("link")).unwrap();
    fs::create_dir(place.path().join("folder")).unwrap();
    let commands: [(&[&str], &str); 7] = [
        (&["check", "FILE"], "contract"),
        (&["check", "FILE", "--json"], "contract"),
        (&["check", "contract.toml", "--machine", "FILE"], "machine file"),
        (&["run", "FILE", "--for", "1s"], "contract"),
        (&["run", "FILE", "--dry-run"], "contract"),
        (&["run", "FILE", "--dry-run", "--json"], "contract"),
        (&["demo", "FILE"], "contract"),
    ];
    for (command, what) in commands {
        for (file, kind) in [
            ("fifo", "a FIFO or pipe"),
            ("link", "a FIFO or pipe"),
            ("folder", "a directory"),
            ("/dev/zero", "a character device"),
        ] {
            let arguments: Vec<&str> =
                command.iter().map(|word| if *word == "FILE" { file } else { word }).collect();
            let words = format!("{file}: cannot read the {what}: it is {kind}, not a regular file; give ");
            place.call(&arguments).refused(66, &[&words]);
        }
    }
    fs::remove_file(place.contract()).unwrap();
    fs::File::create(place.contract()).unwrap().set_len(3 << 30).unwrap();
    place
        .call(&["check", "contract.toml"])
        .refused(66, &["cannot read the contract: it has more than 64 MiB"]);
}

/// Root's daemon refuses a contract that another user can write. `check` warns of it, and a reload keeps the
/// one in force.
#[test]
fn a_contract_that_others_may_write() {
    if !is_root() {
        return;
    }
    let place = Place::with("version = 1\n[unit.a]\nmembers = []\n");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let daemon = place.run(&[]);
    place.write("version = 1\n[unit.b]\nmembers = []\n");
    mode(&place.contract(), 0o666);
    daemon.signal(libc::SIGHUP);
    daemon.says("not reloaded: the contract in force stays in force");
    assert!(daemon.err().contains("the mode 0666 lets others write"), "{}", daemon.err());
    assert_eq!(place.units(), ["a"]);
    drop(daemon);
    for (path, bad, good) in [(place.contract(), 0o664, 0o644), (place.path().to_owned(), 0o757, 0o755)] {
        mode(&path, bad);
        let words = format!("the mode {bad:04o} lets others write; root's contract, and each directory");
        for more in [&["--for", "1s"][..], &["--dry-run"], &["--dry-run", "--json"]] {
            let arguments = [&["run", "contract.toml", "--backend", "user"], more].concat();
            place.call(&arguments).refused(77, &["contract.toml: cannot read the contract: ", &words]);
        }
        let checked = place.call(&["check", "contract.toml"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert!(
            checked.err.contains("warning: contract.toml: `run` as root refuses this contract"),
            "{checked:?}"
        );
        mode(&path, good);
        assert_eq!(place.call(&["check", "contract.toml"]).err, "");
    }
    // It affects only this user's processes.
    chown(place.contract(), Some(STRANGER), None).unwrap();
    place
        .call(&["run", "contract.toml", "--for", "1s"])
        .refused(77, &["the owner is the user with the number"]);
    mode(&place.contract(), 0o666);
    fs::remove_dir_all(place.directory()).unwrap();
    place.make_directory_of(STRANGER);
    drop(place.run_as(STRANGER));
}
