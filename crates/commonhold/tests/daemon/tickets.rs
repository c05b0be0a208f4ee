//! Changes of tickets while the contract is in force: made, refused, persisted.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::{Daemon, Place, Process, STRANGER, Said, eventually, is_root, said};

const TWO: &str = "version = 1\n[unit.a]\n[unit.b]\n";

pub(crate) fn start(contract: &str) -> (Place, Daemon) {
    let place = Place::with(contract);
    let daemon = place.run(&[]);
    (place, daemon)
}

#[track_caller]
pub(crate) fn done(said: Said) -> String {
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}

/// A unit's tickets of a resource, and the contract's number.
fn of(place: &Place, unit: &str, resource: &str) -> (u64, u64) {
    let all: serde_json::Value = serde_json::from_str(&done(place.call(&["tickets", "--json"]))).unwrap();
    let rows = all["tickets"].as_array().unwrap();
    let row = rows.iter().find(|row| row["unit"] == unit && row["resource"] == resource).unwrap();
    (row["tickets"].as_u64().unwrap(), row["contract"].as_u64().unwrap())
}

/// The units in the order of `tickets`.
fn listed(place: &Place) -> Vec<String> {
    let all: serde_json::Value = serde_json::from_str(&done(place.call(&["tickets", "--json"]))).unwrap();
    let rows = all["tickets"].as_array().unwrap().iter();
    rows.step_by(4).map(|row| row["unit"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn file(place: &Place) -> String {
    fs::read_to_string(place.directory().join("tickets.json")).unwrap_or_default()
}

/// Sends one request and reads its reply, in JSON.
pub(crate) fn ask(place: &Place, request: &str) -> serde_json::Value {
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(format!("{request}\0").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.pop(), Some(0), "{request}");
    serde_json::from_slice(&answer).unwrap()
}

/// Two units with a process each divide the machine by 100 and 100, and then by 300 and 100.
#[test]
fn a_change_is_made_and_answered_with_its_worth() {
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let daemon = place.run(&[]);
    let cpus = std::thread::available_parallelism().unwrap().get() as u64 * 1_000_000;
    let request = r#"{"method":"io.commonhold.Change","parameters":{"kind":"issue","unit":"u0","resource":"cpu","tickets":200}}"#;
    let answer = ask(&place, request);
    let row = &answer["parameters"]["tickets"][0];
    let expected = serde_json::json!(
        {"unit": "u0", "resource": "cpu", "contract": 100, "tickets": 300, "entitled": cpus * 3 / 4, "active": true}
    );
    assert_eq!(*row, expected, "{answer}");
    daemon.says("tickets u0: 200 more cpu tickets");
    let status = done(place.call(&["status"]));
    assert!(status.contains("tickets u0: 300 cpu tickets instead of 100; entitled to"), "{status}");
    assert_eq!(place.status()["tickets"][0], expected);
    let entitled = place.status()["accounts"][0]["entitled_micro_cpus"].as_u64();
    assert_eq!(entitled, Some(cpus * 3 / 4), "it is in force when it is answered");
}

#[test]
fn units_give_and_are_set_and_taken_back() {
    let (place, _daemon) = start(TWO);
    let given = done(place.call(&["tickets", "give", "a", "b", "disk", "40"]));
    assert_eq!(
        given,
        "a: 60 disk tickets instead of 100; no processes now\nb: 140 disk tickets instead of 100; no processes now\n"
    );
    // Resources that nothing holds are noted.
    let bus = "bus tickets have no effect now: not held: `gangs` is \"off\" in [machine]\n";
    let given = done(place.call(&["tickets", "give", "a", "b", "bus", "1"]));
    assert!(given.ends_with(bus), "{given}");
    assert!(done(place.call(&["tickets"])).ends_with(bus));
    done(place.call(&["tickets", "give", "b", "a", "bus", "1"]));
    done(place.call(&["tickets", "set", "a", "cpu", "7", "--json"]));
    assert_eq!([of(&place, "a", "disk"), of(&place, "a", "cpu")], [(60, 100), (7, 100)]);
    let table = done(place.call(&["tickets"]));
    assert!(
        table.contains(
            "unit     currency      cpu  memory       disk  bus\na     the machine  7 (100)     100   60 (100)  100\n"
        ),
        "{table}"
    );
    let exchange = "{\"method\":\"io.commonhold.Change\",\"parameters\":{\"kind\":\"exchange\",\"one\":\"a\",\"other\":\"b\",\
                    \"gives\":\"bus:10\",\"gets\":\"disk:40\"}}";
    let answer = ask(&place, exchange);
    assert_eq!(answer["parameters"]["tickets"].as_array().map(Vec::len), Some(4), "{answer}");
    assert_eq!([of(&place, "a", "bus"), of(&place, "b", "bus")], [(90, 100), (110, 100)]);
    for (unit, resource) in [("a", "cpu"), ("a", "bus"), ("b", "bus")] {
        done(place.call(&["tickets", "set", unit, resource, "100"]));
    }
    assert!(done(place.call(&["tickets"])).contains("All are those of the contract."));
    assert_eq!(file(&place), "", "nothing is left to be kept");
}

#[test]
fn what_cannot_be_made_is_refused_with_a_remedy() {
    let (place, daemon) =
        start("version = 1\n[unit.a]\n[unit.a.unit.sub]\n[unit.b]\nhard = { memory = \"64MiB\" }\n");
    place
        .call(&["tickets", "give", "a", "b", "cpu", "100"])
        .refused(65, &["would leave none; take at most 99"]);
    place.call(&["tickets", "give", "a", "b", "cpu", "1000000"]).refused(65, &["a has 100 cpu tickets"]);
    place.call(&["tickets", "give", "b", "a/sub", "cpu", "1"]).refused(65, &["name two siblings"]);
    place.call(&["tickets", "give", "b", "b", "cpu", "1"]).refused(65, &["cannot give tickets to itself"]);
    place.call(&["tickets", "set", "no", "cpu", "1"]).refused(69, &["has no unit `no`; it has a, a/sub, b"]);
    place.call(&["tickets", "set", "shared", "cpu", "1"]).refused(69, &["is built in"]);
    place.call(&["tickets", "set", "a", "cpu", "0"]).refused(2, &["0 is not in 1..=1000000"]);
    place
        .call(&["tickets", "set", "a", "network", "1"])
        .refused(2, &["possible values: cpu, memory, disk, bus"]);
    for (parameters, error) in [
        (
            "{\"kind\":\"set\",\"unit\":\"a\",\"resource\":\"cpu\",\"tickets\":0}",
            "io.commonhold.TooFewTickets",
        ),
        (
            "{\"kind\":\"issue\",\"unit\":\"a\",\"resource\":\"cpu\",\"tickets\":18446744073709551615}",
            "io.commonhold.TooManyTickets",
        ),
        ("{\"kind\":\"steal\",\"unit\":\"a\"}", "org.varlink.service.InvalidParameter"),
        (
            "{\"kind\":\"set\",\"unit\":\"a\",\"resource\":\"cpu\",\"tickets\":-1}",
            "org.varlink.service.InvalidParameter",
        ),
        (
            "{\"kind\":\"offer\",\"unit\":\"a\",\"gives\":\"disk\",\"wants\":\"cpu:1\"}",
            "org.varlink.service.InvalidParameter",
        ),
        ("[]", "org.varlink.service.InvalidParameter"),
    ] {
        let answer =
            ask(&place, &format!("{{\"method\":\"io.commonhold.Change\",\"parameters\":{parameters}}}"));
        assert_eq!(answer["error"], error, "{answer}");
    }
    assert!(
        daemon.out().contains("tickets a: gives 100 cpu tickets to b: refused, since unit a has 100"),
        "{}",
        daemon.out()
    );
    assert!(done(place.call(&["tickets"])).contains("All are those of the contract."));
    assert_eq!(file(&place), "");
}

/// After a daemon was killed or ended, the next one starts with the changed tickets.
#[test]
fn a_change_outlives_its_daemon() {
    let (place, mut daemon) = start(TWO);
    done(place.call(&["tickets", "give", "a", "b", "cpu", "40"]));
    daemon.kill();
    // Units have other numbers now.
    place.write("version = 1\n[unit.new]\n[unit.b]\n[unit.a]\n");
    let mut daemon = place.run(&[]);
    daemon.says("tickets that were changed before this daemon began are changed again:");
    assert!(daemon.out().contains("tickets a: 60 cpu tickets from now on"), "{}", daemon.out());
    assert_eq!(["a", "b", "new"].map(|unit| of(&place, unit, "cpu").0), [60, 140, 100]);
    daemon.stop();
    assert!(!place.directory().join("journal").exists(), "the journal is gone, and this is not in it");
    let _daemon = place.run(&[]);
    assert_eq!(["a", "b", "new"].map(|unit| of(&place, unit, "cpu").0), [60, 140, 100]);
}

#[test]
fn a_reload_keeps_changes_until_the_file_says_otherwise() {
    let (place, mut daemon) = start(TWO);
    for (unit, resource) in [("a", "cpu"), ("a", "disk"), ("b", "cpu")] {
        done(place.call(&["tickets", "set", unit, resource, "7"]));
    }
    place.write("version = 1\n[unit.new]\n[unit.b]\n[unit.a]\nlend = false\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml");
    assert_eq!([of(&place, "a", "cpu"), of(&place, "b", "cpu")], [(7, 100), (7, 100)]);
    // A unit inserted in the middle is listed in the middle, in every list.
    place.write("version = 1\n[unit.new]\n[unit.b]\n[unit.b.unit.x]\n[unit.later]\n[unit.a]\nlend = false\n");
    daemon.signal(libc::SIGHUP);
    eventually("it is reloaded", || daemon.out().matches("reloaded").count() == 2);
    let order = ["new", "b", "b/x", "later", "a"];
    assert_eq!(listed(&place), order);
    assert_eq!(place.units(), order);
    let lines = done(place.call(&["status"]));
    assert!(lines.find("tickets b: ") < lines.find("tickets a: "), "{lines}");
    place.write("version = 1\n[unit.a]\ntickets = { cpu = 50 }\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("tickets a: no longer 7 cpu tickets, since the contract gives it 50 instead of 100");
    daemon.says("tickets b: no longer 7 cpu tickets, since the contract has no unit b");
    eventually("it is reloaded", || daemon.out().matches("reloaded").count() == 3);
    assert_eq!([of(&place, "a", "cpu"), of(&place, "a", "disk")], [(50, 50), (7, 100)]);
    assert!(!file(&place).contains("\"b\"") && !file(&place).contains("cpu"), "{}", file(&place));
    daemon.stop();
    // The same at a start: the contract file is newer than the change.
    place.write("version = 1\n[unit.a]\n");
    let mut daemon = place.run(&[]);
    done(place.call(&["tickets", "set", "a", "cpu", "9"]));
    daemon.stop();
    place.write("version = 1\n[unit.a]\ntickets = 30\n");
    let daemon = place.run(&[]);
    assert!(daemon.out().contains("since the contract gives it 30 instead of 100"), "{}", daemon.out());
    assert_eq!([of(&place, "a", "cpu"), of(&place, "a", "disk")], [(30, 30), (30, 30)]);
    assert_eq!(file(&place), "");
}

/// A change is persisted before it is made: if that fails, it is not made.
#[test]
fn a_change_that_cannot_be_persisted_is_not_made() {
    let (place, mut daemon) = start(TWO);
    // A folder blocks the name of the temporary file.
    let trap = place.directory().join("tickets.new");
    fs::create_dir(&trap).unwrap();
    place
        .call(&["tickets", "set", "a", "cpu", "7"])
        .refused(71, &["nothing was changed", "cannot write the changed tickets"]);
    assert_eq!(of(&place, "a", "cpu"), (100, 100));
    fs::remove_dir(&trap).unwrap();
    done(place.call(&["tickets", "set", "a", "cpu", "8"]));
    daemon.kill();
    // A foreign file does not keep the daemon from holding a contract, and is not overwritten.
    fs::write(place.directory().join("tickets.json"), "nonsense").unwrap();
    let daemon = place.run(&[]);
    daemon.says("cannot understand the changed tickets: line 1, `nonsense`");
    assert_eq!(of(&place, "a", "cpu"), (100, 100));
    assert!(done(place.call(&["status"])).contains("the contract's own tickets are in force"));
    assert_eq!(file(&place), "nonsense");
    done(place.call(&["tickets", "set", "a", "cpu", "9"]));
    assert_eq!(fs::read_to_string(place.directory().join("tickets.json.unread-1")).unwrap(), "nonsense");
    assert!(file(&place).contains("\"tickets\": 9"), "{}", file(&place));
}

/// While the file cannot be written, a change that a reload ended stays in it: `status` reports this, and the
/// write is retried.
#[test]
fn a_failed_write_of_changes_is_retried() {
    let (place, mut daemon) = start(TWO);
    for unit in ["a", "b"] {
        done(place.call(&["tickets", "set", unit, "cpu", "7"]));
    }
    let trap = place.directory().join("tickets.new");
    fs::create_dir(&trap).unwrap();
    place.write("version = 1\n[unit.a]\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml");
    let words = "the next daemon may not know which tickets were changed";
    assert!(file(&place).contains("\"b\""), "the file is as it was");
    eventually("it is said", || daemon.err().contains(words));
    let status = done(place.call(&["status"]));
    assert!(status.contains(words) && status.contains("it is tried again every second"), "{status}");
    assert_eq!(of(&place, "a", "cpu"), (7, 100), "what is in force is told as it is");
    fs::remove_dir(&trap).unwrap();
    eventually("it is kept", || !file(&place).contains("\"b\"") && file(&place).contains("\"a\""));
    eventually("it is no problem any more", || !done(place.call(&["status"])).contains(words));
    assert_eq!(daemon.err().matches(words).count(), 1, "{}", daemon.err());
    daemon.stop();
}

/// A member may give its unit's tickets, and take none. A user who may enter a unit and all of its sub-units
/// governs it.
#[test]
fn what_other_users_may_change() {
    if !is_root() {
        return;
    }
    let (other, third) = (STRANGER + 1, STRANGER + 2);
    let contract = format!(
        "version = 1\n[unit.top]\nmembers = [\"user:{STRANGER}\", \"user:{other}\"]\n\
         [unit.top.unit.mine]\nmembers = [\"user:{STRANGER}\"]\n[unit.top.unit.theirs]\nmembers = [\"user:{other}\"]\n\
         [unit.open]\nmembers = [\"user:{third}\"]\n[unit.open.unit.x]\n[unit.open.unit.y]\n"
    );
    let (place, _daemon) = start(&contract);
    let as_stranger = |arguments: &[&str]| said(&mut place.command_of(STRANGER, arguments));
    done(as_stranger(&["tickets"]));
    done(as_stranger(&["tickets", "give", "top/mine", "top/theirs", "cpu", "30"]));
    assert_eq!((of(&place, "top/mine", "cpu").0, of(&place, "top/theirs", "cpu").0), (70, 130));
    for (arguments, words) in [
        (
            ["give", "top/theirs", "top/mine", "cpu", "30"].as_slice(),
            "may not give away tickets of unit `top/theirs`",
        ),
        (&["set", "top/mine", "cpu", "500"], "may not change the tickets of unit `top/mine`"),
        (&["set", "top/theirs", "cpu", "1"], "may not change the tickets of unit `top/theirs`"),
        (&["set", "top", "cpu", "500"], "may not change the tickets of unit `top`"),
    ] {
        as_stranger(&[&["tickets"], arguments].concat()).refused(77, &[&STRANGER.to_string(), words]);
    }
    assert_eq!((of(&place, "top/mine", "cpu").0, of(&place, "top/theirs", "cpu").0), (70, 130));
    done(said(&mut place.command_of(third, &["tickets", "set", "open/x", "cpu", "500"])));
    done(as_stranger(&["tickets", "give", "top", "open", "disk", "10"]));
    assert_eq!((of(&place, "open/x", "cpu").0, of(&place, "top", "disk").0), (500, 90));
    let as_other = |arguments: &[&str]| said(&mut place.command_of(other, arguments));
    as_other(&["tickets", "give", "open/x", "open/y", "cpu", "1"]).refused(77, &["may not give away"]);

    // A member may offer, and end its unit's exchanges. Others may not.
    let [mine, theirs] = [
        ["offer", "--unit", "top/mine", "--give", "disk:5", "--want", "cpu:5"],
        ["offer", "--unit", "top/theirs", "--give", "cpu:5", "--want", "disk:5"],
    ];
    as_stranger(&theirs).refused(77, &["may not offer tickets of unit `top/theirs`"]);
    done(as_stranger(&mine));
    as_other(&["cancel", "1"]).refused(77, &["may not take back offer or exchange 1"]);
    done(as_stranger(&["cancel", "1"]));
    done(as_stranger(&mine));
    assert!(done(as_other(&theirs)).contains("is served by exchange 4"));
    said(&mut place.command_of(third, &["cancel", "4"])).refused(77, &["may not take back"]);
    said(&mut place.command_of(third, &["cancel", "99"])).refused(65, &["has the number 99"]);
    assert!(done(as_stranger(&["cancel", "4"])).contains("exchange 4 has ended"));
}

/// A user's sub-unit does not exist when the next daemon starts: its change waits for the user.
#[test]
fn a_users_change_waits_for_the_user() {
    if !is_root() {
        return;
    }
    let contract = format!("version = 1\n[unit.all]\nmembers = [\"user:{STRANGER}\"]\neach = \"user\"\n");
    let (place, mut daemon) = start(&contract);
    let path = format!("all/{STRANGER}");
    let process = Process::sleeper_of(STRANGER, STRANGER);
    eventually("the user has a sub-unit", || place.units().contains(&path));
    said(&mut place.command_of(STRANGER, &["tickets", "set", &path, "cpu", "1000000"]))
        .refused(77, &["may not change the tickets"]);
    done(place.call(&["tickets", "set", &path, "cpu", "9"]));
    daemon.kill();
    drop(process);
    let daemon = place.run(&[]);
    assert!(!place.units().contains(&path), "nobody is there");
    let expected = format!("{path}: 9 cpu tickets instead of 100, once its user has processes");
    for words in [&["status"][..], &["tickets"]] {
        assert!(done(place.call(words)).contains(&expected), "{words:?}");
    }
    assert_eq!(place.status()["expected_tickets"][0]["unit"], path.as_str());
    assert!(file(&place).contains(&path));
    let _process = Process::sleeper_of(STRANGER, STRANGER);
    eventually("the user has a sub-unit again", || place.units().contains(&path));
    daemon.says(&format!("tickets {path}: 9 cpu tickets from now on"));
    assert_eq!(of(&place, &path, "cpu"), (9, 100));
    assert!(!done(place.call(&["status"])).contains("once its user"), "it is expected no more");
}

/// `a` computes and `b` reads: each offers what it can spare. Both are served at once, and undone exactly
/// when their time expires or one of them ends the exchange. Lent tickets cannot be taken while an exchange
/// is in force.
#[test]
fn offers_that_fit_are_served_and_undone() {
    let (place, daemon) = start(TWO);
    let offer = |unit: &str, give: &str, want: &str, more: &[&str]| {
        let args = ["offer", "--unit", unit, "--give", give, "--want", want];
        place.call(&[&args, more].concat())
    };
    let stands = done(offer("a", "disk:30", "cpu:20", &[]));
    assert_eq!(stands, "offer 1 is open; `commonhold cancel 1` withdraws it\n");
    let offers = done(place.call(&["offers"]));
    assert!(offers.contains("1         a  30 disk  20 cpu"), "{offers}");
    assert!(offers.contains("offer 1 waits: no offer of another unit gives cpu tickets"), "{offers}");
    let all: serde_json::Value = serde_json::from_str(&done(place.call(&["offers", "--json"]))).unwrap();
    assert_eq!(all["offers"][0]["waits"], "no offer of another unit gives cpu tickets");
    let served = done(offer("b", "cpu:25", "disk:30", &["--with", "a"]));
    assert_eq!(
        served,
        "offer 2 is served by exchange 3; `commonhold cancel 3` ends it\n\
         a: 70 disk tickets instead of 100, 30 lent in exchanges; no processes now\n\
         b: 130 disk tickets instead of 100, 30 got in exchanges; no processes now\n\
         b: 80 cpu tickets instead of 100, 20 lent in exchanges; no processes now\n\
         a: 120 cpu tickets instead of 100, 20 got in exchanges; no processes now\n"
    );
    daemon.says("tickets exchange 3: a lends 30 disk tickets to b, b lends 20 cpu tickets to a");
    assert_eq!([of(&place, "a", "cpu"), of(&place, "b", "disk")], [(120, 100), (130, 100)]);
    assert!(file(&place).contains("\"changed\": []"), "an exchange is no change of the units' own tickets");
    place
        .call(&["tickets", "set", "a", "disk", "30"])
        .refused(65, &["30 are lent in exchanges", "leave at least 31"]);
    let over = done(place.call(&["cancel", "3"]));
    assert!(over.starts_with("exchange 3 has ended\n") && over.contains("a: 100 cpu tickets;"), "{over}");
    assert_eq!([of(&place, "a", "cpu"), of(&place, "b", "disk")], [(100, 100), (100, 100)]);
    place.call(&["cancel", "3"]).refused(65, &["has the number 3"]);

    let short = ["--for", "300ms"];
    done(offer("a", "disk:10", "cpu:10", &short));
    let served = done(place.call(
        &[&["offer", "--unit", "b", "--give", "cpu:10", "--want", "disk:10", "--json"][..], &short].concat(),
    ));
    let served: serde_json::Value = serde_json::from_str(&served).unwrap();
    assert_eq!((served["offer"].as_u64(), served["exchange"].as_u64()), (Some(5), Some(6)), "{served}");
    eventually("the exchange is over", || of(&place, "a", "cpu") == (100, 100));
    let offers = done(place.call(&["offers"]));
    assert!(offers.contains("over") && offers.contains("ended by a unit"), "{offers}");
    let all: serde_json::Value = serde_json::from_str(&done(place.call(&["offers", "--json"]))).unwrap();
    assert_eq!(all["exchanges"].as_array().map(Vec::len), Some(2), "{all}");
}

/// `cancel --all` takes back a unit's offers and ends its exchanges; offers of others stay open.
#[test]
fn all_offers_of_a_unit_are_taken_back_at_once() {
    let (place, _daemon) = start(TWO);
    let offer = |unit: &str, give: &str, want: &str| {
        done(place.call(&["offer", "--unit", unit, "--give", give, "--want", want]));
    };
    offer("a", "disk:30", "cpu:20");
    offer("b", "cpu:20", "disk:30");
    offer("a", "bus:10", "memory:9");
    offer("a", "disk:5", "memory:90");
    offer("b", "disk:7", "cpu:90");
    let over = done(place.call(&["cancel", "--all", "a"]));
    assert!(over.starts_with("offer 4 is cancelled\noffer 5 is cancelled\nexchange 3 has ended\n"), "{over}");
    assert_eq!([of(&place, "a", "cpu"), of(&place, "b", "disk")], [(100, 100), (100, 100)]);
    let left: serde_json::Value = serde_json::from_str(&done(place.call(&["offers", "--json"]))).unwrap();
    assert_eq!((left["offers"].as_array().map(Vec::len), &left["offers"][0]["unit"]), (Some(1), &"b".into()));
    let none = done(place.call(&["cancel", "--all", "a"]));
    assert_eq!(none, "unit a has no offer and is in no exchange\n");
    let all: serde_json::Value =
        serde_json::from_str(&done(place.call(&["cancel", "--all", "b", "--json"]))).unwrap();
    assert_eq!((&all["schema"], &all["cancelled"]), (&"commonhold.cancelled".into(), &[6].into()));
    place.call(&["cancel", "--all", "c"]).refused(69, &["no unit `c`"]);
}

/// A daemon is killed during an exchange, with an offer open: the next one continues both under their
/// numbers, and ends the exchange at the same time.
#[test]
fn exchanges_and_offers_outlive_a_daemon() {
    let (place, mut daemon) = start(TWO);
    let offer = |unit: &str, give: &str, want: &str| {
        done(place.call(&["offer", "--unit", unit, "--give", give, "--want", want]));
    };
    offer("a", "disk:30", "cpu:20");
    offer("b", "cpu:20", "disk:30");
    offer("b", "bus:10", "memory:9");
    daemon.kill();
    let mut daemon = place.run(&[]);
    daemon.says("exchange 3: a lends 30 disk tickets to b, b lends 20 cpu tickets to a");
    assert_eq!([of(&place, "a", "cpu"), of(&place, "b", "disk")], [(120, 100), (130, 100)]);
    let offers = done(place.call(&["offers"]));
    assert!(offers.contains("4         b  10 bus  9 memory"), "{offers}");
    offer("a", "memory:9", "bus:10");
    done(place.call(&["cancel", "3"]));
    assert_eq!([of(&place, "a", "cpu"), of(&place, "a", "bus")], [(100, 100), (110, 100)]);
    daemon.stop();
    place.write("version = 1\n[unit.a]\n");
    let daemon = place.run(&[]);
    assert!(
        daemon.out().contains("exchange 6 is not in force again, since the contract has no unit b"),
        "{}",
        daemon.out()
    );
    assert_eq!(file(&place), "");
}

#[test]
fn invalid_offers_are_refused() {
    let (place, _daemon) =
        start("version = 1\n[unit.a]\n[unit.a.unit.sub]\n[unit.b]\nhard = { memory = \"64MiB\" }\n");
    let offer = |unit: &str, give: &str, want: &str, more: &[&str]| {
        let args = ["offer", "--unit", unit, "--give", give, "--want", want];
        place.call(&[&args, more].concat())
    };
    offer("a", "disk:100", "cpu:1", &[]).refused(65, &["a has 100 disk tickets", "take at most 99"]);
    offer("a", "disk:1", "disk:1", &[])
        .refused(65, &["at least one ticket of a resource for at least one of another"]);
    offer("a", "disk:1", "cpu:1", &["--with", "a/sub"])
        .refused(65, &["would fund itself", "name another unit"]);
    offer("a", "disk:9", "cpu:9", &["--at-least", "cpu:10"]).refused(65, &["no larger than what it wants"]);
    offer("a", "memory:1GiB", "cpu:1", &[]).refused(65, &["no reserved memory", "`hard` in the contract"]);
    offer("b", "memory:1GiB", "disk:1", &[])
        .refused(65, &["more memory than is reserved", "lend at most memory:64MiB"]);
    offer("a", "memory:1G", "cpu:1", &[]).refused(2, &["memory:2GiB"]);
    offer("no", "disk:1", "cpu:1", &[]).refused(69, &["has no unit `no`"]);
    offer("a", "disk", "cpu:1", &[]).refused(2, &["such as disk:300"]);
    offer("a", "disk:0", "cpu:1", &[]).refused(2, &["1 to 1000000"]);
    place.call(&["cancel", "1"]).refused(65, &["no open offer and no exchange in force"]);
    // Without a unit's name, the process's unit is used: it has none with tickets.
    place
        .call(&["offer", "--give", "disk:1", "--want", "cpu:1"])
        .refused(69, &["this command runs in no unit", "--unit"]);
}

/// Across units, and partially: `b` gives 32 MiB of its reservation to `a/sub` for disk tickets of `a`'s
/// currency. It offers half of its reservation: part of the other half is in use.
#[test]
fn units_of_different_enclosers_exchange_reservations() {
    let (place, daemon) =
        start("version = 1\n[unit.a]\n[unit.a.unit.sub]\n[unit.b]\nhard = { memory = \"128MiB\" }\n");
    let offer = |unit: &str, give: &str, want: &str, more: &[&str]| {
        done(place.call(&[&["offer", "--unit", unit, "--give", give, "--want", want], more].concat()))
    };
    // Tickets of different currencies are comparable while these have a worth above 0.
    let load =
        ["a/sub", "b"].map(|unit| Process::start(&mut place.command(&["exec", unit, "--", "sleep", "60"])));
    eventually("both are seen", || {
        let all: serde_json::Value = serde_json::from_str(&done(place.call(&["tickets", "--json"]))).unwrap();
        let is_active = |row: &&serde_json::Value| row["resource"] == "disk" && row["active"] == true;
        all["tickets"].as_array().unwrap().iter().filter(is_active).count() == 3
    });
    offer("b", "memory:64MiB", "disk:20", &["--at-least", "disk:10"]);
    let offers = done(place.call(&["offers"]));
    assert!(offers.contains("64MiB memory  20 disk, 10 disk at least"), "{offers}");
    let served = offer("a/sub", "disk:10", "memory:32MiB", &[]);
    assert!(served.contains("is served by exchange 3"), "{served}");
    daemon.says("exchange 3: b lends 32MiB of reserved memory to a/sub, a/sub lends 10 disk tickets to b");
    let offers = done(place.call(&["offers"]));
    assert!(offers.contains("32MiB memory") && offers.contains("10 disk of a"), "{offers}");
    done(place.call(&["cancel", "3"]));
    drop(load);
}

/// A reload drops `b` during an exchange: `a` gets back what it lent.
#[test]
fn a_reload_that_drops_a_unit_undoes_its_exchanges() {
    let (place, daemon) = start(TWO);
    done(place.call(&["offer", "--unit", "a", "--give", "disk:30", "--want", "cpu:20"]));
    done(place.call(&["offer", "--unit", "b", "--give", "cpu:20", "--want", "disk:30"]));
    assert_eq!(of(&place, "a", "disk"), (70, 100));
    place.write("version = 1\n[unit.a]\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("exchange 3 is reversed, since a unit was removed: ");
    daemon.says(" lends 30 disk tickets to a removed unit");
    assert_eq!([of(&place, "a", "disk"), of(&place, "a", "cpu")], [(100, 100), (100, 100)]);
}
