//! Programs that trade on their own behalf: offers bound to their program, and programs that wait for an
//! offer's outcome.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_client::{Client, Error, Offer, State, Why};

use crate::support::{Daemon, Place, STRANGER, Said, eventually, is_root, is_there, kill, said};

const TWO: &str = "version = 1\n[unit.a]\n[unit.b]\n";

fn start() -> (Place, Daemon) {
    let place = Place::with(TWO);
    let daemon = place.run(&[]);
    (place, daemon)
}

fn client(place: &Place) -> Client {
    Client::connect(place.socket()).unwrap()
}

fn a() -> Offer {
    Offer::new("a", "disk:30", "cpu:20")
}

fn b() -> Offer {
    Offer::new("b", "cpu:20", "disk:30")
}

/// The disk tickets of `a`.
fn disk_of_a(client: &mut Client) -> u64 {
    let all = client.tickets().unwrap();
    all.iter().find(|row| row.unit == "a" && row.resource.name() == "disk").unwrap().tickets
}

#[test]
fn an_offer_and_its_exchange_end_with_their_program() {
    let (place, daemon) = start();
    let mut other = client(&place);
    let mut program = client(&place);
    let offer = program.offer(&a().while_connected()).unwrap();
    assert_eq!(other.offers().unwrap().offers[0].gives, "disk:30");
    drop(program);
    let what = other.wait(offer.number, Some(Duration::from_secs(5))).unwrap();
    assert_eq!(what.state, State::Withdrawn);
    daemon.says(&format!("tickets the program that held {} is gone", offer.number));

    // Only one of the two is bound to its program.
    let mut program = client(&place);
    program.offer(&a().while_connected()).unwrap();
    let exchange = other.offer(&b()).unwrap().exchange.unwrap();
    assert_eq!(disk_of_a(&mut other), 70);
    drop(program);
    let what = other.wait(exchange, Some(Duration::from_secs(5))).unwrap();
    assert_eq!((what.state, what.why.as_deref()), (State::Ended, Some("ended")));
    assert_eq!(disk_of_a(&mut other), 100);

    // Nothing ends without a request.
    let mut program = client(&place);
    let offer = program.offer(&a()).unwrap();
    drop(program);
    let what = other.wait(offer.number, Some(Duration::from_millis(300))).unwrap();
    assert_eq!(what.state, State::Stands);
}

/// `commonhold offer ... -- PROGRAM`: the exit code is the program's, the program sees its offer, and the
/// offer is gone afterwards.
#[test]
fn an_offer_is_bound_to_a_program() {
    let (place, _daemon) = start();
    let mut other = client(&place);
    let offer = |program: &[&str]| {
        let terms = ["offer", "--unit", "a", "--give", "disk:30", "--want", "cpu:20"];
        place.command(&[&terms, program].concat())
    };
    let all_of_it = |socket: &Path| {
        format!("{} offers --directory {}", env!("CARGO_BIN_EXE_commonhold"), socket.display())
    };
    let script = format!("{}; exit 42", all_of_it(&place.directory()));
    let came = said(&mut offer(&["--", "sh", "-c", &script]));
    assert_eq!(came.code, Some(42), "{}", came.err);
    assert!(came.out.starts_with("offer  unit") && came.out.contains("a  30 disk  20 cpu"), "{}", came.out);
    assert_eq!(other.wait(1, Some(Duration::from_secs(5))).unwrap().state, State::Withdrawn);
    // Terminated by a signal, reported as a shell does.
    assert_eq!(said(&mut offer(&["--", "sh", "-c", "kill -9 $$"])).code, Some(128 + 9));
    said(&mut offer(&["--", "/nowhere/at/all"])).refused(127, &["cannot run `/nowhere/at/all`"]);
    let marker = place.path().join("marker");
    let touch = ["--at-least", "cpu:30", "--", "touch", marker.to_str().unwrap()];
    said(&mut offer(&touch)).refused(65, &["its minimum must be of the resource"]);
    assert!(!marker.exists(), "nothing was started");
    said(&mut offer(&["--json", "--", "true"])).refused(2, &["cannot be used with"]);
    eventually("nothing is left", || other.offers().unwrap().offers.is_empty());
}

/// A program that prints when it is ready: its offer is served by then.
#[test]
fn signals_reach_the_program_that_an_offer_is_bound_to() {
    let (place, _daemon) = start();
    let mut other = client(&place);
    let ready = place.path().join("ready");
    let begin = |script: &str| {
        let script = script.replace("READY", ready.to_str().unwrap());
        let terms =
            ["offer", "--unit", "a", "--give", "disk:30", "--want", "cpu:20", "--", "sh", "-c", &script];
        let child = place.command(&terms).spawn().unwrap();
        eventually("the program runs", || {
            std::fs::read_to_string(&ready).is_ok_and(|pid| pid.ends_with('\n'))
        });
        let pid: u32 = std::fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
        std::fs::remove_file(&ready).unwrap();
        (child, pid)
    };
    for (signal, code) in [(libc::SIGTERM, 7), (libc::SIGUSR1, 8), (libc::SIGHUP, 9)] {
        let script = "trap 'exit 7' TERM; trap 'exit 8' USR1; trap 'exit 9' HUP; echo $$ >READY; while :; do sleep 0.05; done";
        let (mut child, _) = begin(script);
        let exchange = other.offer(&b()).unwrap().exchange.unwrap();
        assert_eq!(disk_of_a(&mut other), 70);
        kill(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(other.wait(exchange, Some(Duration::from_secs(5))).unwrap().state, State::Ended);
        assert_eq!(disk_of_a(&mut other), 100);
    }
    // The process that holds the connection is killed: the offer ends, and the program gets SIGTERM.
    let (mut child, pid) = begin("echo $$ >READY; while :; do sleep 0.05; done");
    kill(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    eventually("the program ends", || !is_there(pid));
    eventually("nothing is left", || other.offers().unwrap().offers.is_empty());
}

/// Numbers of offers are never reused.
#[test]
fn a_cancelled_offer_is_not_cancelled_again_when_its_program_ends() {
    let (place, daemon) = start();
    let mut other = client(&place);
    let mut program = client(&place);
    let offer = program.offer(&a().while_connected()).unwrap();
    program.cancel(offer.number).unwrap();
    let again = other.offer(&a()).unwrap();
    drop(program);
    assert_eq!(other.wait(again.number, Some(Duration::from_millis(300))).unwrap().state, State::Stands);
    assert!(!daemon.out().contains("is gone"), "{}", daemon.out());
}

#[test]
fn a_program_waits_and_others_are_served_meanwhile() {
    let (place, _daemon) = start();
    let mut program = client(&place);
    let offer = program.offer(&a().while_connected()).unwrap().number;
    let (begun, at_most) = (Instant::now(), Duration::from_millis(200));
    assert_eq!(program.wait_until_served(offer, Some(at_most)).unwrap(), None, "nobody came");
    assert!(begun.elapsed() >= at_most);
    assert_eq!(program.wait(offer, Some(Duration::ZERO)).unwrap().state, State::Stands);

    let waits = thread::spawn(move || (program.wait_until_served(offer, None).unwrap().unwrap(), program));
    let mut other = client(&place);
    for _ in 0..20 {
        other.tickets().unwrap();
    }
    let served = other.offer(&b()).unwrap();
    let (exchange, mut program) = waits.join().unwrap();
    assert_eq!(Some(exchange), served.exchange);
    let late = program.wait(offer, None).unwrap();
    assert_eq!(
        (late.state, late.exchange),
        (State::Served, Some(exchange)),
        "what became of it is remembered"
    );

    let waits = thread::spawn(move || program.wait(exchange, None).unwrap());
    assert_eq!(other.wait(exchange, Some(Duration::ZERO)).unwrap().state, State::InForce);
    other.cancel(exchange).unwrap();
    assert_eq!(waits.join().unwrap().state, State::Ended);
    let unknown = other.wait(99, None).unwrap_err();
    assert_eq!(unknown.why(), Some(&Why::NoSuchOffer), "{unknown}");
}

/// Requests that a client sends while it waits are answered afterwards, in order, even after it has shut down
/// its writing side.
#[test]
fn requests_after_a_wait_are_answered_after_it() {
    let (place, daemon) = start();
    let offer = client(&place).offer(&a()).unwrap().number;
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    let wait = format!("{{\"method\":\"io.commonhold.Await\",\"parameters\":{{\"number\":{offer}}}}}\0");
    let tickets = "{\"method\":\"io.commonhold.Tickets\",\"parameters\":{}}\0";
    stream.write_all(format!("{wait}{tickets}").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = stream.read(&mut [0]).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::WouldBlock, "nothing is answered early");
    let before = ticks(&daemon);
    thread::sleep(Duration::from_millis(500));
    assert!(ticks(&daemon) - before < 25, "the daemon spins on a client that says no more");
    client(&place).cancel(offer).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    let answers: Vec<&str> = answers.split_terminator('\0').collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(
        answers[0].contains("\"state\":\"withdrawn\"") && answers[1].contains("\"tickets\":["),
        "{answers:?}"
    );
}

/// CPU time that the daemon has used, in hundredths of a second.
fn ticks(daemon: &Daemon) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A waiting program exits: its wait and its connection are gone.
#[test]
fn a_waiting_client_that_hangs_up_is_forgotten() {
    let (place, _daemon) = start();
    let offer = client(&place).offer(&a()).unwrap().number;
    for n in 0..300 {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        let wait = format!("{{\"method\":\"io.commonhold.Await\",\"parameters\":{{\"number\":{offer}}}}}\0");
        stream.write_all(wait.as_bytes()).unwrap();
        if n % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    eventually("there is room to wait", || {
        client(&place).wait(offer, Some(Duration::from_millis(1))).is_ok_and(|it| it.state == State::Stands)
    });
}

/// Clients that hold offers for long leave room for short requests, and those of one user leave room for
/// other users'.
#[test]
fn only_so_many_hold_offers() {
    if !is_root() {
        return;
    }
    // A unit may have 50 offers, so root's are spread over several units.
    let others = ["b1", "b2", "b3", "b4"].map(|unit| format!("[unit.{unit}]\n")).concat();
    let place = Place::with(&format!("version = 1\n[unit.a]\nmembers = [\"user:{STRANGER}\"]\n{others}"));
    let _daemon = place.run(&[]);
    let holds = |clients: &mut Vec<Client>, unit: &str| {
        let mut client = client(&place);
        let held = client.offer(&Offer::new(unit, "disk:1", "cpu:1").while_connected());
        clients.push(client);
        held
    };
    let hold_all = |units: &[&str]| {
        let mut clients = Vec::new();
        let refused = (0..300).find_map(|n| holds(&mut clients, units[n % units.len()]).err()).unwrap();
        assert!(matches!(&refused, Error::Refused { why: Why::TooManyClients, .. }), "{refused}");
        clients
    };
    let of_stranger = thread::scope(|scope| {
        let as_stranger = || {
            // SAFETY: unlike the library's function, the bare system call changes only this thread.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER) };
            assert_eq!(changed, 0);
            hold_all(&["a"])
        };
        scope.spawn(as_stranger).join().unwrap()
    });
    let roots = hold_all(&["b1", "b2", "b3", "b4"]);
    assert_eq!((of_stranger.len(), roots.len()), (48 + 1, 192 - 48 + 1));
    assert_eq!(place.units().len(), 5, "others are served");
    let mut idle: Vec<Client> = (0..100).map(|_| client(&place)).collect();
    assert!(idle.last_mut().unwrap().tickets().is_ok());
    let mut held: Vec<Client> = of_stranger.into_iter().take(48).chain(roots.into_iter().take(144)).collect();
    assert!(held.iter_mut().all(|it| it.tickets().is_ok()), "who holds an offer keeps the connection");
    drop(held);
    eventually("all is taken back", || client(&place).offers().unwrap().offers.is_empty());
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Builds a C program.
pub(crate) fn compiled(source: &str, to: &Path, more: &[&str]) -> Said {
    let warnings =
        ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];
    let mut cc = Command::new("cc");
    cc.args(warnings).args(more).args(["-I", "clients/c", "-o"]).arg(to).arg(source).current_dir(root());
    said(&mut cc)
}

#[track_caller]
pub(crate) fn compile(source: &str, to: &Path) {
    let said = compiled(source, to, &[]);
    assert_eq!(said.code, Some(0), "install gcc, as scripts/packages-run says: {said:?}");
}

/// The folder of a worked example's program in Rust, built as this test is.
pub(crate) fn built_example(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_commonhold")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "commonhold-client", "--example", name]);
    if built.ends_with("release") {
        cargo.arg("--release");
    }
    let said = said(cargo.arg("--target-dir").arg(built.parent().unwrap()).current_dir(root()));
    assert_eq!(said.code, Some(0), "{said:?}");
    built.join("examples")
}

/// A worked example that runs in unit `a`; killed on drop.
struct Trader {
    child: Child,
    says: PathBuf,
}

impl Trader {
    fn start(place: &Place, program: &[&Path], below: u64) -> Trader {
        let says = place.path().join("says");
        let mut command = place.command(&["exec", "a", "--"]);
        command.args(program).arg(place.socket()).arg(below.to_string());
        command.env("PYTHONPATH", root().join("clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
        let child = command.stdout(File::create(&says).unwrap()).spawn().unwrap();
        Trader { child, says }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.says).unwrap()
    }

    #[track_caller]
    fn says(&self, words: &str) {
        eventually(&format!("it says `{words}`"), || self.said().contains(words));
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Trader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worked example in one language, against a daemon: `below` is for work that takes a while.
fn trades(program: &[&Path], below: u64) {
    let (place, _daemon) = start();
    let mut other = client(&place);
    let stands = |other: &mut Client| {
        let mut found = None;
        eventually("the offer stands", || {
            let offers = other.offers().unwrap().offers;
            found = offers.first().map(|it| (it.number, it.unit.clone(), it.gives.clone(), it.wants.clone()));
            found.is_some()
        });
        let (number, unit, gives, wants) = found.unwrap();
        assert_eq!((&*unit, &*gives, &*wants), ("a", "disk:30", "cpu:20"));
        number
    };
    let wait = |other: &mut Client, number| other.wait(number, Some(Duration::from_secs(10))).unwrap();

    // It waits until it is served, works, and exits: the exchange ends with it, without a request.
    let mut trader = Trader::start(&place, program, 3_000);
    let offer = stands(&mut other);
    let exchange = other.offer(&b()).unwrap().exchange.unwrap();
    let ended = trader.child.wait().unwrap();
    let expected = format!("offer {offer} is open\nexchange {exchange} is in force\n430 primes below 3000\n");
    assert_eq!((ended.code(), trader.said()), (Some(0), expected));
    assert_eq!(wait(&mut other, exchange).state, State::Ended);
    assert_eq!(disk_of_a(&mut other), 100);

    // Killed while its offer is open.
    let mut trader = Trader::start(&place, program, below);
    let offer = stands(&mut other);
    trader.kill();
    assert_eq!(wait(&mut other, offer).state, State::Withdrawn);

    // Killed while it works: its unit and the other have their tickets back.
    let mut trader = Trader::start(&place, program, below);
    stands(&mut other);
    let exchange = other.offer(&b()).unwrap().exchange.unwrap();
    trader.says(&format!("exchange {exchange} is in force"));
    assert_eq!(disk_of_a(&mut other), 70);
    trader.kill();
    assert_eq!(wait(&mut other, exchange).state, State::Ended);
    let all = other.tickets().unwrap();
    assert!(all.iter().all(|row| row.tickets == 100 && row.lent == 0 && row.got == 0), "{all:?}");

    // The other unit ends the exchange: the program is notified, and goes on.
    let trader = Trader::start(&place, program, below);
    stands(&mut other);
    let exchange = other.offer(&b()).unwrap().exchange.unwrap();
    trader.says(&format!("exchange {exchange} is in force"));
    other.cancel(exchange).unwrap();
    trader.says(&format!("exchange {exchange} is over: going on with fewer tickets"));
}

#[test]
fn a_program_in_rust_trades() {
    trades(&[&built_example("trade").join("trade")], 5_000_000);
}

#[test]
fn a_program_in_c_trades() {
    let place = Place::new();
    let program = place.path().join("trade");
    compile("examples/trade/trade.c", &program);
    trades(&[&program], 20_000_000);
}

/// Python, with our module.
fn python(arguments: &[&str]) -> Command {
    let there = Command::new("python3").arg("--version").output();
    assert!(there.is_ok_and(|it| it.status.success()), "install python3, as scripts/packages-test says");
    let mut python = Command::new("python3");
    python.args(["-B", "-W", "error"]).args(arguments).current_dir(root());
    python.env("PYTHONPATH", "clients/python");
    python
}

#[test]
fn the_python_module_makes_an_error_of_what_is_no_answer() {
    let said = said(&mut python(&["clients/python/test_commonhold.py"]));
    assert!(said.code == Some(0) && said.err.contains("OK"), "{}", said.err);
}

/// The code in docs/programs.md compiles. Its Rust example is a doc test of the crate.
#[test]
fn the_document_shows_programs() {
    let text = std::fs::read_to_string(root().join("docs/programs.md")).unwrap();
    let block = |language: &str| {
        let begin = text.find(&format!("```{language}\n")).unwrap() + language.len() + 4;
        text[begin..].split("```").next().unwrap()
    };
    let place = Place::new();
    let source = place.path().join("document.c");
    let head =
        "#define _POSIX_C_SOURCE 200809L\n#define COMMONHOLD_IMPLEMENTATION\n#include \"commonhold.h\"\n";
    let body = format!("{head}int main(void) {{\n{}ch_close(&client);\nreturn 0;\n}}\n", block("c"));
    std::fs::write(&source, body).unwrap();
    compile(source.to_str().unwrap(), &place.path().join("document"));
    let source = place.path().join("document.py");
    std::fs::write(&source, block("python").replace("/run/commonhold/socket", "/nowhere/socket")).unwrap();
    let said = said(&mut python(&[source.to_str().unwrap()]));
    assert!(said.err.contains("FileNotFoundError"), "it comes as far as the socket: {}", said.err);
}

#[test]
fn a_program_in_python_trades() {
    drop(python(&[]));
    trades(&["python3".as_ref(), &root().join("examples/trade/trade.py")], 2_000_000);
}

#[test]
fn the_header_reads_json_strictly() {
    let place = Place::new();
    let program = place.path().join("test");
    let sanitize = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    if compiled("clients/c/test.c", &program, &sanitize).code != Some(0) {
        // Some distributions package the sanitizers separately.
        compile("clients/c/test.c", &program);
    }
    let said = said(&mut Command::new(&program));
    assert_eq!((said.code, &*said.out), (Some(0), ""), "{said:?}");
}
