//! Misbehaving clients: the daemon survives and serves the others.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use crate::support::{Daemon, Place, STRANGER, eventually, is_root, said};

const STATUS: &[u8] = b"{\"method\":\"io.commonhold.Status\",\"parameters\":{}}\0";

fn start() -> (Place, Daemon) {
    let place = Place::with("version = 1\n[unit.a]\n");
    let daemon = place.run(&[]);
    (place, daemon)
}

fn connect(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(place.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream
}

/// Reads one message, without its NUL; empty when the daemon hung up.
fn receive(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap_or(0) == 1 && byte[0] != 0 {
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn five_lines_of_any_language_are_a_client() {
    let (place, _daemon) = start();
    let mut stream = connect(&place);
    stream.write_all(STATUS).unwrap();
    // It shuts down its writing side, and still expects its answer.
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(receive(&mut stream).contains("\"backend\":\"user\""));
    assert_eq!(receive(&mut stream), "", "then the daemon hangs up");
}

#[test]
fn several_requests_at_once_and_one_in_pieces() {
    let (place, _daemon) = start();
    let mut stream = connect(&place);
    let (begin, end) = STATUS.split_at(10);
    stream.write_all(&[STATUS, STATUS, begin].concat()).unwrap();
    assert!(receive(&mut stream).contains("statement"));
    assert!(receive(&mut stream).contains("statement"));
    stream.write_all(end).unwrap();
    assert!(receive(&mut stream).contains("statement"));
}

#[test]
fn garbage_is_answered_with_what_is_wrong() {
    let (place, _daemon) = start();
    let mut stream = connect(&place);
    for (garbage, answer) in [
        ("\u{1b}[2J nonsense", "org.varlink.service.InvalidParameter"),
        ("", "org.varlink.service.InvalidParameter"),
        ("{\"method\":\"io.commonhold.Destroy\",\"parameters\":{}}", "org.varlink.service.MethodNotFound"),
        (
            "{\"method\":\"io.commonhold.Where\",\"parameters\":{\"pid\":-1}}",
            "org.varlink.service.InvalidParameter",
        ),
        ("{\"method\":\"io.commonhold.Enter\",\"parameters\":{\"unit\":\"no\"}}", "io.commonhold.NoSuchUnit"),
    ] {
        stream.write_all(format!("{garbage}\0").as_bytes()).unwrap();
        let said = receive(&mut stream);
        assert!(said.contains(answer), "{garbage}: {said}");
    }
    stream.write_all(&[0xff, 0xfe, 0]).unwrap();
    assert!(receive(&mut stream).contains("InvalidParameter"));
    assert_eq!(place.units(), ["a"]);
}

#[test]
fn a_request_without_an_end_is_cut_off() {
    let (place, _daemon) = start();
    let mut stream = connect(&place);
    let sent = stream.write_all(&vec![b'x'; 1 << 20]);
    assert!(sent.is_err() || receive(&mut stream).is_empty());
    assert_eq!(place.units(), ["a"]);
}

#[test]
fn a_client_that_hangs_up_is_forgotten() {
    let (place, _daemon) = start();
    for part in [&b""[..], b"{\"method\"", STATUS] {
        let mut stream = connect(&place);
        stream.write_all(part).unwrap();
    }
    assert_eq!(place.units(), ["a"]);
}

/// A client that keeps asking and never reads blocks only itself, and costs the daemon one answer.
#[test]
fn who_never_reads_is_not_listened_to() {
    let (place, daemon) = start();
    let mut stream = connect(&place);
    let begin = resident_kib(&daemon);
    let mut refused = None;
    for _ in 0..200 {
        if let Err(e) = stream.write_all(&STATUS.repeat(1_000)) {
            refused = Some(e.kind());
            break;
        }
    }
    // It is either no longer read from, or disconnected.
    let kinds = [ErrorKind::WouldBlock, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(refused.is_some_and(|kind| kinds.contains(&kind)), "{refused:?}");
    assert_eq!(place.units(), ["a"]);
    let grown = resident_kib(&daemon).saturating_sub(begin);
    assert!(grown < 4 << 10, "the daemon grew by {grown} KiB");
}

fn resident_kib(daemon: &Daemon) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// More idle clients than the limit: the oldest are disconnected, and all requests are served meanwhile.
#[test]
fn idle_clients_make_room() {
    let (place, _daemon) = start();
    let mut streams: Vec<UnixStream> = (0..300).map(|_| connect(&place)).collect();
    assert_eq!(place.units(), ["a"], "there is room for one more");
    let room = if rustix::process::geteuid().is_root() { 256 } else { 64 };
    assert_eq!(answered(&mut streams), room - 1);
    assert!(receive(&mut streams[0]).is_empty(), "the first one is gone");
    assert_eq!(place.units(), ["a"]);
}

/// The number of clients that are served.
fn answered(streams: &mut [UnixStream]) -> usize {
    // A refused client cannot even send a request.
    let asked = streams.iter_mut().filter_map(|stream| stream.write_all(STATUS).is_ok().then_some(stream));
    asked.map(receive).filter(|answer| !answer.is_empty()).count()
}

/// Turns of the loop so far, as the daemon reports.
fn turns(place: &Place) -> u64 {
    let mut stream = connect(place);
    stream.write_all(STATUS).unwrap();
    let status: serde_json::Value = serde_json::from_str(&receive(&mut stream)).unwrap();
    status["parameters"]["daemon"]["turns"].as_u64().unwrap()
}

/// Runs a function on a new thread as an unused user.
fn as_stranger<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let act = || {
            // SAFETY: unlike the library's function, the bare system call changes only this thread.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER) };
            assert_eq!(changed, 0);
            act()
        };
        scope.spawn(act).join().unwrap()
    })
}

/// Connections that pipeline as many requests as the daemon takes, while the test lasts. If they had priority
/// over turns, none would be made for tens of seconds.
#[test]
fn a_flood_of_requests_stops_neither_the_loop_nor_others() {
    if !is_root() {
        return;
    }
    let (place, _daemon) = start();
    let where_one = b"{\"method\":\"io.commonhold.Where\",\"parameters\":{\"pid\":1}}\0";
    let begun = turns(&place);
    let mut flood: Vec<UnixStream> = as_stranger(|| (0..62).map(|_| connect(&place)).collect());
    for (n, stream) in flood.iter_mut().enumerate() {
        let request = if n % 2 == 0 { STATUS } else { where_one };
        stream.write_all(&request.repeat(60_000 / request.len())).unwrap();
    }
    let ended = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for stream in &flood {
            // Answers are read, so that back-pressure does not limit the flood.
            let mut stream = stream.try_clone().unwrap();
            let ended = &ended;
            scope.spawn(move || {
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let mut room = vec![0; 1 << 16];
                while !ended.load(std::sync::atomic::Ordering::Relaxed)
                    && !matches!(stream.read(&mut room), Ok(0))
                {}
            });
        }
        // Each of these must be answered amid the flood, before the connection's timeout.
        eventually("the loop goes on turning", || turns(&place) > begun + 3);
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(place.units(), ["a"]);
}

/// Connects repeatedly without sending a request, and reconnects when disconnected.
const FLOODS: &str = "
import socket, sys
while True:
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    client.close()
";

/// Returns how many requests, each over a new connection, were answered.
const ASKS: &str = "
import socket, sys, time
answered = 0
for _ in range(30):
    time.sleep(0.1)
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        client.settimeout(20)
        client.send(b'{\"method\":\"io.commonhold.Offers\",\"parameters\":{}}\\0')
        answered += len(client.recv(4096)) > 0
    except OSError as error:
        print(error)
        break
print('answered', answered)
";

/// Users who only connect do not use up other users' budgets. Processes rather than threads: a thread with
/// its own user is taken for a process that has changed its user.
#[test]
fn a_flood_of_connections_keeps_no_other_user_waiting() {
    if !is_root() {
        return;
    }
    let (place, _daemon) = start();
    let python = |script: &str, uid: u32| {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(place.socket()).uid(uid).gid(uid);
        command
    };
    let mut flood: Vec<Child> = (1..4).map(|n| python(FLOODS, STRANGER + n).spawn().unwrap()).collect();
    let said = said(&mut python(ASKS, STRANGER));
    for child in &mut flood {
        let floods_yet = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(floods_yet, "it was to connect all the while");
    }
    assert!(said.out.contains("answered 30"), "{said:?}");
}

/// `Where` of a process in no unit that is older than the last sample forces no turn.
#[test]
fn asking_for_a_process_in_no_unit_makes_no_turns() {
    let (place, _daemon) = start();
    let mut stream = connect(&place);
    let before = turns(&place);
    for _ in 0..200 {
        stream.write_all(b"{\"method\":\"io.commonhold.Where\",\"parameters\":{\"pid\":1}}\0").unwrap();
        assert!(receive(&mut stream).contains("is in no unit"));
    }
    let made = turns(&place) - before;
    assert!(made < 150, "{made} turns for 200 requests");
}

/// A connection whose process has exited, inherited by another one: the process ID may have been reused.
#[test]
fn who_connected_and_exited_enters_nothing() {
    let (place, _daemon) = start();
    let enter = "{\"method\":\"io.commonhold.Enter\",\"parameters\":{\"unit\":\"a\"}}";
    let script = format!(
        "import os, socket, sys\n\
         client = socket.socket(socket.AF_UNIX)\n\
         child = os.fork()\n\
         if child == 0:\n    client.connect({:?})\n    os._exit(0)\n\
         os.waitpid(child, 0)\n\
         client.send({enter:?}.encode() + b'\\0')\n\
         print(client.recv(4096).decode())\n",
        place.socket()
    );
    let said = said(Command::new("python3").args(["-c", &script]));
    assert!(said.out.contains("io.commonhold.NoSuchProcess"), "{said:?}");
}

/// The audit log names user, process and unit.
#[test]
fn each_entry_and_each_refusal_is_recorded() {
    if !is_root() {
        return;
    }
    let (place, mut daemon) = start();
    assert_eq!(place.call(&["exec", "a", "--", "true"]).code, Some(0));
    let refused = said(&mut place.command_of(STRANGER, &["exec", "a", "--", "true"]));
    assert_ne!(refused.code, Some(0));
    daemon.stop();
    let log = daemon.out();
    let records: Vec<&str> = log.lines().filter(|line| line.starts_with("audit ")).collect();
    assert!(
        records[0].contains("event=\"enter\" unit=\"a\" uid=\"0\"")
            && records[0].contains("outcome=\"done\"")
    );
    assert!(records[1].contains(&format!("uid=\"{STRANGER}\"")), "{records:?}");
    assert!(records[1].contains("outcome=\"io.commonhold.NotAllowed\""), "{records:?}");
}

/// An ordinary user cannot lock the others out.
#[test]
fn a_user_has_only_so_many_clients() {
    if !is_root() {
        return;
    }
    let (place, _daemon) = start();
    let mut streams: Vec<UnixStream> = as_stranger(|| (0..100).map(|_| connect(&place)).collect());
    assert_eq!(place.units(), ["a"], "root is served, and all others have come in");
    assert_eq!(answered(&mut streams), 64);
    assert_eq!(place.units(), ["a"], "root is served all the while");
}
