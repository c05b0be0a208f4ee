//! The socket as varlink: descriptions, flags and errors of requests, and subscriptions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use commonhold_client::wire::{Call, Receiver};
use commonhold_client::{Client, Error, Subscription, Why};
use serde_json::Value;

use crate::skipped::skipped;
use crate::support::{Daemon, Place, Process, eventually, said};

/// The most clients that may hold offers, wait or subscribe at one time.
const KEPT_MAX: usize = 192;

const MONITOR: &str =
    "{\"method\":\"io.commonhold.Monitor\",\"parameters\":{\"every_ms\":250},\"more\":true}";

fn start() -> (Place, Daemon) {
    let place = Place::with("version = 1\n[unit.a]\n[unit.b]\n");
    let daemon = place.run(&[]);
    (place, daemon)
}

/// A client that sends raw requests.
struct Raw {
    stream: UnixStream,
    receiver: Receiver,
}

impl Raw {
    fn connect(place: &Place) -> Raw {
        let stream = UnixStream::connect(place.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Raw { stream, receiver: Receiver::default() }
    }

    fn send(&mut self, request: &str) {
        self.stream.write_all(format!("{request}\0").as_bytes()).unwrap();
    }

    fn receive(&mut self) -> Value {
        serde_json::from_slice(&self.receiver.receive(&self.stream).unwrap().unwrap()).unwrap()
    }

    fn ask(&mut self, request: &str) -> Value {
        self.send(request);
        self.receive()
    }
}

fn subscribe(place: &Place) -> Subscription<Value> {
    let replies = Client::connect(place.socket()).unwrap();
    let replies = replies.subscribe(&Call::Monitor { every_ms: Some(250) }).unwrap();
    replies.set_patience(Some(Duration::from_secs(20))).unwrap();
    replies
}

#[test]
fn the_daemon_describes_itself() {
    let (place, _daemon) = start();
    let mut client = Client::connect(place.socket()).unwrap();
    let info: Value = client.call(&Call::GetInfo {}).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    for interface in info["interfaces"].as_array().unwrap() {
        let interface = interface.as_str().unwrap().to_owned();
        let call = Call::GetInterfaceDescription { interface: interface.clone() };
        let described: Value = client.call(&call).unwrap();
        assert!(described["description"].as_str().unwrap().contains(&format!("\ninterface {interface}\n")));
    }
    let unknown = client.call::<Value>(&Call::GetInterfaceDescription { interface: "x".to_owned() });
    assert_eq!(unknown.unwrap_err().why(), Some(&Why::InterfaceNotFound));
}

/// A client that others wrote, from the description alone.
#[test]
fn the_public_python_module_understands_the_daemon() {
    let (place, _daemon) = start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/public_client.py");
    let mut python = Command::new("python3");
    let said = said(python.args(["-B", script]).arg(place.socket()));
    if said.code == Some(77) {
        skipped("python3 has no module varlink: pip install varlink");
    } else {
        assert_eq!(said.code, Some(0), "{}", said.err);
    }
}

#[test]
fn flags_of_requests_are_respected() {
    let (place, _daemon) = start();
    let mut raw = Raw::connect(&place);
    // A method with one reply has one with `more`, too.
    let offers = raw.ask("{\"method\":\"io.commonhold.Offers\",\"more\":true}");
    assert!(offers["parameters"]["elapsed_ns"].is_u64() && offers.get("continues").is_none(), "{offers}");
    // No reply, not even an error; also of a method that waits, and of one that subscribes.
    raw.send("{\"method\":\"io.commonhold.Currency\",\"parameters\":{\"unit\":\"a\"},\"oneway\":true}");
    raw.send("{\"method\":\"io.commonhold.Currency\",\"parameters\":{\"unit\":\"?\"},\"oneway\":true}");
    raw.send("{\"method\":\"io.commonhold.Where\",\"parameters\":{\"pid\":1},\"oneway\":true}");
    raw.send("{\"method\":\"io.commonhold.Where\",\"parameters\":7,\"oneway\":true}");
    raw.send("{\"method\":\"io.commonhold.Monitor\",\"oneway\":true,\"more\":true}");
    assert!(raw.ask("{\"method\":\"io.commonhold.AsContract\"}")["parameters"]["contract"].is_string());
    let refused = raw.ask("{\"method\":\"io.commonhold.Offers\",\"upgrade\":true}");
    assert_eq!(refused["error"], "org.varlink.service.InvalidParameter");
    for every_ms in ["0", "249", "-1", "\"1s\""] {
        let request = MONITOR.replace("250", every_ms);
        assert_eq!(raw.ask(&request)["error"], "org.varlink.service.InvalidParameter", "{every_ms}");
    }
    let whole = raw.ask("{\"method\":\"io.commonhold.Monitor\"}");
    assert!(whole["parameters"]["whole"] == true && whole.get("continues").is_none(), "{whole}");
    assert_eq!(place.units(), ["a", "b"]);
}

#[test]
fn a_subscriber_gets_everything_and_then_what_changes() {
    let place = Place::new();
    let member = Process::sleeper();
    place.write(&format!("version = 1\n[unit.a]\nmembers = [\"pid:{}\"]\n[unit.b]\n", member.pid()));
    let daemon = place.run(&[]);
    let mut replies = subscribe(&place);
    let first = replies.next().unwrap().unwrap();
    assert_eq!((&first["whole"], &first["order"]), (&true.into(), &serde_json::json!(["a", "b"])));
    let units = |reply: &Value| reply["units"].as_array().cloned().unwrap_or_default();
    assert_eq!(units(&first)[0]["processes"], 1, "{first}");
    assert!(first["machine"]["holdings"].is_array());
    drop(member);
    let gone = replies.by_ref().map(Result::unwrap).find(|reply| {
        assert_eq!(reply["whole"], false);
        assert!(units(reply).iter().all(|unit| unit["unit"] != "b"), "nothing happens in b: {reply}");
        units(reply).iter().any(|unit| unit["unit"] == "a" && unit["processes"] == 0)
    });
    assert!(gone.unwrap()["at_ns"].as_u64() > first["at_ns"].as_u64());
    place.write("version = 1\n[unit.c]\n");
    daemon.signal(libc::SIGHUP);
    let reloaded = replies.by_ref().map(Result::unwrap).find(|reply| reply["whole"] == true);
    assert_eq!(reloaded.unwrap()["order"], serde_json::json!(["c"]));
    drop(daemon);
    let end = replies.find_map(Result::err).unwrap();
    assert!(matches!(end, Error::HungUp), "{end}");
}

/// A client that shuts down its writing side may still read; one that sends further requests gets no answer
/// to them.
#[test]
fn a_subscriber_may_not_ask_but_may_fall_silent() {
    let (place, _daemon) = start();
    let mut raw = Raw::connect(&place);
    raw.send(MONITOR);
    raw.send("{\"method\":\"io.commonhold.AsContract\"}");
    raw.stream.shutdown(Shutdown::Write).unwrap();
    for n in 0..4 {
        let reply = raw.receive();
        assert_eq!((&reply["continues"], &reply["parameters"]["whole"]), (&true.into(), &(n == 0).into()));
    }
}

/// A subscriber that does not read costs the daemon one reply, and gets all that it missed later.
#[test]
fn a_subscriber_that_does_not_read_is_skipped() {
    let (place, _daemon) = start();
    let mut slow = Raw::connect(&place);
    slow.send(MONITOR);
    let mut byte = [0];
    slow.stream.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"{");
    let mut others = subscribe(&place);
    assert!((0..6).all(|_| others.next().unwrap().is_ok()), "others are served meanwhile");
    for _ in 0..20 {
        slow.stream.read_exact(&mut byte).unwrap();
    }
    let rest = slow.receiver.receive(&slow.stream).unwrap().unwrap();
    assert!(rest.ends_with(b"\"continues\":true}"));
    assert_eq!(slow.receive()["continues"], true);
}

/// Subscriptions are limited, and end with their connections.
#[test]
fn a_flood_of_subscriptions_leaves_room_for_requests() {
    let (place, _daemon) = start();
    let count = if rustix::process::geteuid().is_root() { 400 } else { 100 };
    let mut flood: Vec<Raw> = Vec::new();
    let mut refused = 0;
    for _ in 0..count {
        let mut raw = Raw::connect(&place);
        let reply = raw.ask(MONITOR);
        if reply["error"] == "io.commonhold.TooManyClients" {
            refused += 1;
        } else {
            assert_eq!(reply["continues"], true, "{reply}");
            flood.push(raw);
        }
    }
    assert!(flood.len() <= KEPT_MAX && flood.len() + refused == count, "{} {refused}", flood.len());
    assert_eq!(place.units(), ["a", "b"]);
    assert!(flood.iter_mut().all(|raw| raw.receive()["continues"] == true), "all go on");
    drop(flood);
    eventually("there is room again", || Raw::connect(&place).ask(MONITOR)["continues"] == true);
}
