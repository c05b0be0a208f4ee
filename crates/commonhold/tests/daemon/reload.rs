//! SIGHUP: a reload is atomic.

use std::fs;

use crate::support::{Place, Process, eventually, has_cpus};

#[test]
fn a_good_change_takes_effect() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let daemon = place.run(&[]);
    assert_eq!(place.units(), ["a"]);
    place.write("version = 1\n[machine]\nscheme = \"quota\"\n[unit.b]\n[unit.a]\n[unit.a.unit.inner]\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml; the scheme is quota");
    assert_eq!(place.status()["scheme"], "quota");
    assert_eq!(place.units(), ["b", "a", "a/inner"]);
}

/// A process that leaves the contract is released; one that stays is confined as before, although its unit's
/// number changes.
#[test]
fn who_leaves_is_let_go() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let daemon = place.run(&[]);
    eventually("both are confined", || members[..2].iter().all(Process::is_confined));
    let unit =
        |name: &str, member: &Process| format!("[unit.{name}]\nmembers = [\"pid:{}\"]\n", member.pid());
    place.write(&format!("version = 1\n{}{}", unit("new", &members[2]), unit("u1", &members[1])));
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded");
    eventually("the first is free, the others are confined", || {
        members[0].is_free() && members[1..].iter().all(Process::is_confined)
    });
}

#[test]
fn a_bad_change_leaves_the_old_contract_in_force() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let daemon = place.run(&[]);
    place.write("version = 1\n[unit.b]\nticket = 5\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("not reloaded: the contract in force stays in force");
    assert!(daemon.err().contains("contract.toml:3:1"), "{}", daemon.err());
    assert!(daemon.err().contains("unknown key `ticket`"), "{}", daemon.err());
    assert_eq!(place.units(), ["a"]);
    let problems = place.status()["problems"].to_string();
    assert!(problems.contains("contract.toml was not reloaded"), "{problems}");
    // Once corrected, it is loaded.
    place.write("version = 1\n[unit.b]\ntickets = 5\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml");
    assert_eq!(place.units(), ["b"]);
    let problems = place.status()["problems"].to_string();
    assert!(!problems.contains("reloaded"), "{problems}");
}

#[test]
fn a_contract_that_vanished_leaves_the_old_one_in_force() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let mut daemon = place.run(&[]);
    fs::remove_file(place.contract()).unwrap();
    daemon.signal(libc::SIGHUP);
    daemon.says("not reloaded: the contract in force stays in force");
    assert!(daemon.err().contains("cannot read the contract: No such file"), "{}", daemon.err());
    assert_eq!(place.units(), ["a"]);
    daemon.stop();
}
