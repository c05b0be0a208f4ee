//! Units as currencies: funded, issued and taken back by command; owned; shown; written as a contract.

use std::fs;

use crate::support::{Place, Process, STRANGER, eventually, is_root, said};
use crate::tickets::{ask, done, file, start};

const LAB: &str = "version = 1\n[unit.lab]\n[unit.lab.unit.x]\n[unit.lab.unit.y]\n[unit.other]\n";

/// A unit's tickets of every resource, and what the contract gives it.
fn of(place: &Place, unit: &str) -> [(u64, u64); 4] {
    let all: serde_json::Value = serde_json::from_str(&done(place.call(&["tickets", "--json"]))).unwrap();
    let rows = all["tickets"].as_array().unwrap().iter().filter(|row| row["unit"] == unit);
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap();
    let rows: Vec<(u64, u64)> = rows.map(|row| (number(row, "tickets"), number(row, "contract"))).collect();
    rows.try_into().unwrap()
}

fn tickets(place: &Place, unit: &str) -> [u64; 4] {
    of(place, unit).map(|(tickets, _)| tickets)
}

/// Several resources are changed atomically, also in the file, and after the daemon was killed.
#[test]
fn several_resources_are_funded_or_none() {
    let (place, mut daemon) = start(LAB);
    let funded = done(place.call(&["fund", "lab", "disk=100", "cpu=200", "memory=7"]));
    assert_eq!(
        funded,
        "lab: 200 cpu tickets instead of 100; no processes now\nlab: 7 memory tickets instead of 100; no processes now\n\
         lab: 100 disk tickets; no processes now\n"
    );
    daemon.says("tickets lab: 200 cpu, 7 memory and 100 disk tickets from now on");
    done(place.call(&["issue", "lab/x", "cpu=50", "bus=1"]));
    done(place.call(&["revoke", "lab/x", "cpu=25", "disk=10", "--json"]));
    assert_eq!(tickets(&place, "lab/x"), [125, 100, 90, 101]);
    let (before, kept) = (tickets(&place, "lab/x"), file(&place));
    place.call(&["issue", "lab/x", "cpu=5", "disk=1000000"]).refused(65, &["give at most 999910"]);
    place
        .call(&["revoke", "lab/x", "cpu=5", "disk=90"])
        .refused(65, &["has 90 disk tickets", "take at most 89"]);
    assert_eq!((tickets(&place, "lab/x"), file(&place)), (before, kept), "none of them is changed");
    // Lent tickets stay, so nothing of the other resource is taken either.
    done(place.call(&["offer", "--unit", "lab/x", "--give", "disk:30", "--want", "cpu:20"]));
    done(place.call(&["offer", "--unit", "lab/y", "--give", "cpu:20", "--want", "disk:30"]));
    place.call(&["revoke", "lab/x", "cpu=5", "disk=60"]).refused(65, &["30 are lent in exchanges"]);
    done(place.call(&["cancel", "3"]));
    assert_eq!(tickets(&place, "lab/x"), [125, 100, 90, 101]);
    daemon.kill();
    let _daemon = place.run(&[]);
    assert_eq!(tickets(&place, "lab/x"), [125, 100, 90, 101]);
    assert_eq!(of(&place, "lab"), [(200, 100), (7, 100), (100, 100), (100, 100)]);
    let status = done(place.call(&["status"]));
    assert!(status.contains("tickets lab/x: 125 cpu tickets instead of 100"), "{status}");
}

#[test]
fn invalid_numbers_are_refused_with_the_value() {
    let (place, _daemon) = start(LAB);
    for (number, words) in [
        ("cpu=0", "cpu=0: a unit has one ticket of its own at least; write 1 to 1000000"),
        ("cpu=-5", "`-5`"),
        ("cpu=-0", "`-0`"),
        ("cpu=+5", "`+5`"),
        ("cpu=1.5", "`1.5`"),
        ("cpu=", "``"),
        ("cpu=1000001", "`1000001`"),
        ("cpu=99999999999999999999", "`99999999999999999999`"),
        ("cpu", "such as cpu=200"),
        ("network=5", "`network` is no resource with tickets: write cpu, memory, disk or bus"),
    ] {
        for command in ["fund", "issue", "revoke"] {
            place.call(&[command, "lab", "disk=5", number]).refused(2, &[words]);
        }
    }
    place
        .call(&["issue", "lab", "cpu=5", "disk=1", "cpu=6"])
        .refused(2, &["cpu is named twice, as cpu=5 and cpu=6; name each resource once"]);
    place.call(&["fund", "lab"]).refused(2, &["RESOURCE=N"]);
    for unit in ["shared", "kernel"] {
        place.call(&["fund", unit, "cpu=5"]).refused(69, &["is built in and cannot be given tickets"]);
        place.call(&["tickets", unit]).refused(69, &["is built in and cannot be shown"]);
    }
    place.call(&["revoke", "lab/z", "cpu=5"]).refused(69, &["has no unit `lab/z`; it has lab, lab/x, lab/y"]);
    place.call(&["tickets", "no"]).refused(69, &["has no unit `no`"]);
    place.call(&["tickets", "lab", "--as-contract"]).refused(2, &["cannot be used with"]);
    assert_eq!(file(&place), "");
}

/// The daemon refuses requests that the command would never send.
#[test]
fn invalid_requests_are_refused() {
    let (place, _daemon) = start(LAB);
    for (numbers, words) in [
        ("{}", "tickets of no resource are named"),
        ("{\"cpu\":0}", "0 cpu tickets are out of range; write 1 to 1000000"),
        ("{\"cpu\":1,\"disk\":1000001}", "1000001 disk tickets are out of range"),
        ("{\"cpu\":1,\"cpu\":2}", "duplicate field `cpu`"),
        ("{\"net\":1}", "unknown field `net`"),
        ("{\"cpu\":-1}", "invalid value: integer `-1`"),
        ("{\"cpu\":18446744073709551616}", "expected u64"),
    ] {
        let request = format!(
            "{{\"method\":\"io.commonhold.Change\",\"parameters\":\
             {{\"kind\":\"several\",\"unit\":\"lab\",\"how\":\"issue\",\"tickets\":{numbers}}}}}"
        );
        let answer = ask(&place, &request);
        assert_eq!(answer["error"], "org.varlink.service.InvalidParameter", "{answer}");
        assert!(answer["parameters"]["parameter"].as_str().unwrap().contains(words), "{answer}");
    }
    assert_eq!(tickets(&place, "lab"), [100; 4]);
}

/// `lab` issues tickets to a unit outside it, which holds them in addition to its own.
#[test]
fn another_currency_funds_a_unit() {
    let (place, daemon) = start(&format!("{LAB}[unit.works]\n"));
    let funded = done(place.call(&["fund", "works", "cpu=30", "disk=40", "--from", "lab"]));
    assert!(funded.contains("works holds 30 cpu tickets of lab beside its own"), "{funded}");
    for arguments in [&["tickets"][..], &["status"]] {
        let shown = done(place.call(arguments));
        assert!(shown.contains("works holds 40 disk tickets of lab beside its own"), "{shown}");
    }
    daemon.says("works: 30 cpu and 40 disk tickets of lab from now on, beside its own");
    assert_eq!(tickets(&place, "works"), [100; 4]);
    for unit in ["works", "lab"] {
        let shown = done(place.call(&["tickets", unit]));
        assert!(shown.contains("works holds 30 cpu tickets of lab beside its own"), "{shown}");
    }
    let contract = done(place.call(&["tickets", "--as-contract"]));
    assert!(contract.contains("commonhold fund works cpu=30 --from lab"), "{contract}");
    place.call(&["fund", "lab", "cpu=5", "--from", "lab/x"]).refused(65, &["would fund itself"]);
    place.call(&["fund", "works", "cpu=5", "--from", "no"]).refused(69, &["has no unit `no`"]);
    done(place.call(&["fund", "lab/x", "cpu=5", "--from", "/"]));
    done(place.call(&["fund", "works", "cpu=0", "disk=0", "--from", "lab"]));
    assert!(!done(place.call(&["tickets", "works"])).contains("of lab"), "they are taken back");
}

/// A unit's funding, issued tickets and worth, and the limits of currencies.
#[test]
fn a_unit_is_shown_as_a_currency() {
    let members = [Process::sleeper(), Process::sleeper()];
    let [one, two] = [0, 1].map(|n| members[n].pid());
    let (place, _daemon) = start(&format!(
        "version = 1\n[unit.lab]\nmembers = [\"pid:{one}\", \"pid:{two}\"]\ntickets = 300\nowner = \"user:{STRANGER}\"\n\
         [unit.lab.unit.x]\nmembers = [\"pid:{one}\"]\n[unit.other]\nmembers = []\n"
    ));
    let cpus = std::thread::available_parallelism().unwrap().get() as u64 * 1_000_000;
    let shown = done(place.call(&["tickets", "lab", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(json["schema"], "commonhold.currency");
    assert_eq!(
        (&json["funding"][0]["tickets"], &json["funding"][0]["entitled"]),
        (&300.into(), &cpus.into())
    );
    assert_eq!((&json["own"]["cpu"], &json["own_worth"]["cpu"]), (&100.into(), &(cpus / 2).into()));
    assert_eq!(
        (&json["issued"][0]["unit"], &json["issued"][0]["entitled"]),
        (&"lab/x".into(), &(cpus / 2).into())
    );
    assert_eq!(json["worth_around"]["cpu"], cpus);
    let text = done(place.call(&["tickets", "lab"]));
    let owner = format!("in which root and the owner of `lab`, user:{STRANGER} may change tickets:");
    for words in [
        "lab is funded in the currency of the machine:",
        &owner,
        "its own processes",
        "each unit in lab at most:",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = done(place.call(&["tickets", "lab/x"]));
    for words in ["lab/x at most: what lab holds", "the way out: an exchange of lab"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let all = done(place.call(&["tickets"]));
    assert!(all.contains("  x            lab  100") && all.contains("worth now"), "{all}");
}

/// The owner of a currency may change tickets within it, none outside it, and only while the contract names
/// it.
#[test]
fn an_owner_changes_what_is_in_its_currency() {
    if !is_root() {
        return;
    }
    let contract = |owner: u32| {
        format!(
            "version = 1\n[unit.lab]\nmembers = [\"user:{}\"]\nowner = \"user:{owner}\"\n[unit.lab.unit.x]\n\
             [unit.lab.unit.x.unit.inner]\n[unit.lab.unit.y]\nowner = \"user:{}\"\n[unit.lab.unit.y.unit.inner]\n[unit.other]\n",
            STRANGER + 1,
            STRANGER + 2,
        )
    };
    let (place, daemon) = start(&contract(STRANGER));
    let as_user = |user: u32, arguments: &[&str]| said(&mut place.command_of(user, arguments));
    done(as_user(STRANGER, &["fund", "lab/x", "cpu=200", "disk=50"]));
    done(as_user(STRANGER, &["issue", "lab/x/inner", "cpu=5"]));
    done(as_user(STRANGER, &["revoke", "lab/y", "cpu=5"]));
    done(as_user(STRANGER + 2, &["fund", "lab/y/inner", "cpu=5"]));
    done(as_user(STRANGER, &["offer", "--unit", "lab", "--give", "disk:5", "--want", "cpu:5"]));
    let may = format!("root and the owner of `lab`, user:{STRANGER}, may");
    let inner = format!("root and the owner of `lab/y`, user:{}, may", STRANGER + 2);
    for (user, arguments, words) in [
        (STRANGER, ["fund", "lab", "cpu=200"].as_slice(), "root and the daemon's own user may"),
        (STRANGER, &["issue", "other", "cpu=1"], "may not change the tickets of unit `other`"),
        (STRANGER, &["fund", "lab/y/inner", "cpu=6"], &inner),
        (STRANGER + 2, &["fund", "lab/y", "cpu=6"], &may),
        // With an owner, membership, even of all sub-units, does not suffice.
        (STRANGER + 1, &["issue", "lab/x", "cpu=1"], &may),
        (STRANGER + 1, &["tickets", "set", "lab/x", "cpu", "1"], &may),
        (
            STRANGER + 1,
            &["offer", "--unit", "lab", "--give", "disk:5", "--want", "cpu:5"],
            "its owner, user:54321, may",
        ),
    ] {
        as_user(user, arguments).refused(77, &[&user.to_string(), words]);
    }
    assert_eq!((tickets(&place, "lab/x"), tickets(&place, "lab/y/inner")[0]), ([200, 100, 50, 100], 5));
    // A reload that names another owner takes effect at once.
    place.write(&contract(STRANGER + 1));
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml");
    as_user(STRANGER, &["fund", "lab/x", "cpu=1"]).refused(77, &["may not change the tickets"]);
    done(as_user(STRANGER + 1, &["fund", "lab/x", "cpu=300"]));
    // The former owner's changes stay, as any change.
    assert_eq!(tickets(&place, "lab/x"), [300, 100, 50, 100]);
}

/// The rendered contract is valid, and under it no ticket counts as changed.
#[test]
fn what_is_in_force_is_written_as_a_contract() {
    let (place, daemon) = start(LAB);
    done(place.call(&["fund", "lab", "cpu=200", "disk=7"]));
    done(place.call(&["issue", "lab/x", "memory=50"]));
    done(place.call(&["offer", "--unit", "lab", "--give", "disk:3", "--want", "cpu:2"]));
    done(place.call(&["offer", "--unit", "other", "--give", "cpu:2", "--want", "disk:3"]));
    done(place.call(&["offer", "--unit", "other", "--give", "bus:2", "--want", "disk:3"]));
    let written = done(place.call(&["tickets", "--as-contract"]));
    assert_eq!(
        written,
        "# What is in force, written by `commonhold tickets --as-contract`: contract.toml with the tickets as\n\
         # they were changed since. Comments of that file are not in it.\n\
         # Not in it: exchange 3: lab lends 3 disk tickets to other, other lends 2 cpu tickets to lab. Each unit's own \
         tickets are below.\n\
         # Not in it: open offers: 1. `commonhold offers` shows them.\n\
         version = 1\n\n[unit.lab]\ntickets = { cpu = 200, disk = 7 }\n\n[unit.lab.unit.x]\ntickets = { memory = 150 }\n\n\
         [unit.lab.unit.y]\n\n[unit.other]\n"
    );
    done(place.call(&["cancel", "3"]));
    let before = ["lab", "lab/x", "lab/y", "other"].map(|unit| tickets(&place, unit));
    place.write(&written);
    done(place.call(&["check", "contract.toml"]));
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded contract.toml");
    assert_eq!(["lab", "lab/x", "lab/y", "other"].map(|unit| tickets(&place, unit)), before);
    assert!(done(place.call(&["tickets"])).contains("All are those of the contract."));
    done(place.call(&["cancel", "4"]));
    eventually("nothing is left to be kept", || file(&place).is_empty());
}

/// A truncated file, or one of another version: the daemon goes on, reports it, and loses nothing.
#[test]
fn a_file_of_no_use_is_set_aside_with_its_reason() {
    for (text, reason) in [
        (
            "{\"version\": 1, \"changed\": [\n {\"unit\": \"lab\", \"resource\": \"cpu\"",
            "line 2, `{\"unit\": \"lab\", \"resource\": \"cpu\"`: EOF",
        ),
        ("{\"version\": 3, \"changed\": []}\n", "it is of version 3, and this program knows 2"),
    ] {
        let (place, mut daemon) = start(LAB);
        daemon.stop();
        fs::write(place.directory().join("tickets.json"), text).unwrap();
        let daemon = place.run(&[]);
        for words in [reason, "the contract's own tickets are in force", "its name is tickets.json.unread-1"]
        {
            eventually(words, || daemon.err().contains(words));
        }
        assert!(done(place.call(&["status"])).contains("cannot understand the changed tickets"));
        done(place.call(&["fund", "lab", "cpu=9", "disk=8"]));
        assert_eq!(fs::read_to_string(place.directory().join("tickets.json.unread-1")).unwrap(), text);
        assert_eq!(tickets(&place, "lab"), [9, 100, 8, 100]);
    }
}
