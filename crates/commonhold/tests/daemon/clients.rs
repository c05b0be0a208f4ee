//! Clients of the socket that do not behave: the daemon lives on and serves the others.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::support::{Daemon, Place, STRANGER, is_root};

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

/// One message, without its NUL; empty when the daemon hung up.
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
    // It says no more, and still wants its answer.
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
fn who_hangs_up_is_forgotten() {
    let (place, _daemon) = start();
    for part in [&b""[..], b"{\"method\"", STATUS] {
        let mut stream = connect(&place);
        stream.write_all(part).unwrap();
    }
    assert_eq!(place.units(), ["a"]);
}

/// Who asks and asks and never reads makes only itself wait, and costs the daemon one answer.
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
    // It is either not read from any more, or hung up on.
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

/// More idle clients than there is room for: those that came first go, and everybody is served all the while.
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

/// How many of the clients are served.
fn answered(streams: &mut [UnixStream]) -> usize {
    // Who was turned away cannot even ask.
    let asked = streams.iter_mut().filter_map(|stream| stream.write_all(STATUS).is_ok().then_some(stream));
    asked.map(receive).filter(|answer| !answer.is_empty()).count()
}

/// An ordinary user cannot lock the others out.
#[test]
fn a_user_has_only_so_many_clients() {
    if !is_root() {
        return;
    }
    let (place, _daemon) = start();
    let mut streams: Vec<UnixStream> = thread::scope(|scope| {
        let connect_all = || {
            // SAFETY: the bare system call, unlike the library's function, changes this thread alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER) };
            assert_eq!(changed, 0);
            (0..100).map(|_| connect(&place)).collect()
        };
        scope.spawn(connect_all).join().unwrap()
    });
    assert_eq!(place.units(), ["a"], "root is served, and all others have come in");
    assert_eq!(answered(&mut streams), 64);
    assert_eq!(place.units(), ["a"], "root is served all the while");
}
