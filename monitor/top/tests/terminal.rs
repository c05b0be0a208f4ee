//! The program on a pseudo-terminal: stops, continues, changes of size, signals, and a daemon that comes and
//! goes.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// The terminal's alternate screen is entered, and left.
const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";
const PATIENCE: Duration = Duration::from_secs(60);

const PICTURE: &str = r#"{"parameters":{"whole":true,"at_ns":100000000000,"wall_ms":1700000000000,
    "machine":{"contract":"/c.toml","scheme":"isolate","backend":"user","holdings":[],"cpus":2,"used_ns":1,"common_ns":1,
        "idle_ns":1,"call_back_promised_ns":10000000,"daemon":{"turns":1,"longest_gap_ns":1,"cpu_ns":1}},
    "units":[{"unit":"physics","processes":0,
        "cpu":{"whole":2000000,"entitled":720000,"using":130000,"lent":0,"borrowed":0},
        "totals":{"cpu_used_ns":1,"cpu_lent_ns":0,"cpu_borrowed_ns":0,"cpu_waited_ns":0,"memory_waited_ns":0,
            "disk_waited_ns":0,"disk_read_bytes":0,"disk_written_bytes":0}}],
    "order":["physics"]},"continues":true}"#;

/// Waits until a condition holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A daemon that answers each request with the same picture, until it is dropped.
struct Daemon {
    clients: Arc<Mutex<Vec<UnixStream>>>,
    socket: PathBuf,
}

impl Daemon {
    fn start(directory: &Path) -> Daemon {
        let socket = directory.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let clients = Arc::new(Mutex::new(Vec::new()));
        let accepted = Arc::clone(&clients);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                // The client that is to end this loop sends nothing.
                if BufReader::new(stream.try_clone().unwrap()).read_until(0, &mut request).unwrap() == 0 {
                    return;
                }
                // The client may be gone already.
                let _ = stream.write_all(format!("{PICTURE}\0").as_bytes());
                accepted.lock().unwrap().push(stream);
            }
        });
        Daemon { clients, socket }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(UnixStream::connect(&self.socket));
        let _ = fs::remove_file(&self.socket);
        for client in self.clients.lock().unwrap().drain(..) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn top(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-top"));
    command.args(["top", "--directory"]).arg(directory).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    command
}

/// `commonhold top` on a terminal.
struct Screen {
    child: Child,
    terminal: OwnedFd,
    keys: File,
    drawn: Arc<Mutex<String>>,
}

impl Screen {
    fn open(directory: &Path) -> Screen {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let end = OpenOptions::new().read(true).write(true).open(name).unwrap();
        set_size(&terminal, 80, 24);
        let mut command = top(directory);
        // A process group of its own, whose parent is in another one: only then SIGTSTP stops it.
        command.process_group(0);
        command.stdin(end.try_clone().unwrap()).stdout(end.try_clone().unwrap()).stderr(end);
        let keys = File::from(terminal.try_clone().unwrap());
        let mut output = keys.try_clone().unwrap();
        let screen = Screen { child: command.spawn().unwrap(), terminal, keys, drawn: Arc::default() };
        let drawn = Arc::clone(&screen.drawn);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once the program has ended.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        screen.wait_for(ENTERS);
        screen.wait_for("physics");
        assert!(screen.is_raw());
        screen
    }

    fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.terminal, columns, rows);
        // It is not the controlling terminal of the program, so the kernel does not tell it.
        self.signal(Signal::WINCH);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the program has drawn this, and forgets what it drew up to there.
    fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is not drawn"), || {
            let mut drawn = self.drawn.lock().unwrap();
            let found = drawn.find(text);
            found.inspect(|at| drop(drawn.drain(..at + text.len()))).is_some()
        });
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal passes on each key as it is pressed.
    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    fn is_stopped(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        status.rsplit(')').next().unwrap().trim_start().starts_with('T')
    }

    fn end(mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the program does not end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

fn set_size(terminal: &OwnedFd, columns: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[test]
fn a_stopped_program_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(folder.path());
    let mut screen = Screen::open(folder.path());
    screen.press("\x1a");
    screen.wait_for(LEAVES);
    wait_until("the program does not stop", || screen.is_stopped());
    assert!(!screen.is_raw());
    screen.signal(Signal::CONT);
    screen.wait_for(ENTERS);
    screen.wait_for("physics");
    assert!(screen.is_raw());
    screen.press("q");
    screen.wait_for(LEAVES);
    wait_until("the terminal stays raw", || !screen.is_raw());
    assert_eq!(screen.end().code(), Some(0));
}

#[test]
fn a_signal_restores_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(folder.path());
    let screen = Screen::open(folder.path());
    screen.signal(Signal::TERM);
    screen.wait_for(LEAVES);
    wait_until("the terminal stays raw", || !screen.is_raw());
    assert_eq!(screen.end().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_terminal_of_any_size_is_redrawn() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(folder.path());
    let mut screen = Screen::open(folder.path());
    for (columns, rows) in [(20, 8), (120, 40), (1, 1), (80, 24)] {
        screen.resize(columns, rows);
        if columns > 1 {
            // Names are cut at 20 columns.
            screen.wait_for("physi");
        }
    }
    screen.press("q");
    assert_eq!(screen.end().code(), Some(0));
}

#[test]
fn a_daemon_that_comes_back_is_followed_again() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let mut screen = Screen::open(folder.path());
    drop(daemon);
    screen.wait_for("no daemon");
    let daemon = Daemon::start(folder.path());
    wait_until("the program does not ask again", || !daemon.clients.lock().unwrap().is_empty());
    screen.press("q");
    assert_eq!(screen.end().code(), Some(0));
}

#[test]
fn a_pipe_that_is_closed_early_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(folder.path());
    let mut child = top(folder.path());
    let child = child.args(["--once", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((errors.as_str(), child.wait().unwrap().code()), ("", Some(0)));
}
