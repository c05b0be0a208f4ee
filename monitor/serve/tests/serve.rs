//! The program as a process: a daemon that comes and goes, and command lines that are refused.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn serve(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-serve"));
    command.args(["serve", "--as-root", "--listen", "127.0.0.1:0", "--directory"]).arg(directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Output {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_commonhold-serve"));
    command.arg("serve").args(arguments).output().unwrap()
}

/// A server that ends with the test.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(directory: &Path) -> Running {
        let mut child = serve(directory).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("commonhold serve: listening on http://").unwrap();
        Running { address: address.trim_end_matches('/').to_owned(), child }
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits for metrics with this line.
    fn wait_for(&self, line: &str) {
        for _ in 0..600 {
            if self.metrics().lines().any(|shown| shown == line) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no {line} in {}", self.metrics());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Accepts a client as the daemon does, and sends it messages.
fn answer(listener: &UnixListener, messages: &[&str]) -> UnixStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut call = Vec::new();
    BufReader::new(&stream).read_until(0, &mut call).unwrap();
    let call = String::from_utf8(call).unwrap();
    assert!(call.contains("io.commonhold.Monitor") && call.contains("\"more\":true"), "{call}");
    for message in messages {
        stream.write_all(format!("{message}\0").as_bytes()).unwrap();
    }
    stream
}

#[test]
fn a_daemon_may_be_absent_come_go_and_be_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(folder.path());
    server.wait_for("commonhold_up 0");

    let picture = include_str!("sample.json");
    let whole = format!("{{\"parameters\":{picture},\"continues\":true}}");
    let difference = "{\"parameters\":{\"whole\":false,\"at_ns\":700000000000,\"wall_ms\":1790000700500,\
                      \"gone\":[\"students\"]},\"continues\":true}";
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = answer(&listener, &[&whole]);
    server.wait_for("commonhold_unit_processes{unit=\"students\"} 140");
    drop(daemon);
    server.wait_for("commonhold_up 0");
    // Restarted: what is gone in a difference is gone.
    let daemon = answer(&listener, &[&whole, difference]);
    server.wait_for("commonhold_unit_processes{unit=\"shared\"} 61");
    for _ in 0..600 {
        if !server.metrics().contains("unit=\"students\"}") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!server.metrics().contains("{unit=\"students\"}"));
    drop(daemon);
    let _old = answer(&listener, &["{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{}}"]);
    let _garbage = answer(&listener, &["{]"]);
    let _not_whole = answer(&listener, &[difference]);
    server.wait_for("commonhold_up 0");
}

#[test]
fn the_absence_of_a_daemon_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(folder.path());
    server.wait_for("commonhold_up 0");
    // Long enough for several attempts.
    std::thread::sleep(Duration::from_secs(2));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&server.child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut errors = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(errors.matches("no daemon runs here").count(), 1, "{errors}");
}

#[test]
fn wrong_command_lines_are_refused_with_a_remedy() {
    let refused = |arguments: &[&str], code: i32, remedy: &str| {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(remedy), "{arguments:?}: {text}");
    };
    refused(&["--as-root", "--listen", "0.0.0.0:0"], 2, "--any-address");
    refused(&["--as-root", "--listen", "example.org:80"], 2, "unix:PATH");
    refused(&["--as-root", "--listen", "unix:/proc/none/socket"], 73, "--listen");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--as-root", "--listen", &address], 73, "choose another with --listen");
    if rustix::process::geteuid().is_root() {
        refused(&["--listen", "127.0.0.1:0"], 77, "--as-root");
    }
}
