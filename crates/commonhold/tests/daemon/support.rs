//! A daemon in a temporary directory, processes to hold, and the kernel's view of them.

use std::borrow::BorrowMut;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::skipped::skipped;

/// A user and group that no machine and no other test uses.
pub(crate) const STRANGER: u32 = 54_321;

/// The timeout of every wait: far longer than any takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this is root; if not, reports that a test is skipped.
#[track_caller]
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("only root can become another user");
    }
    root
}

/// Whether confinement is observable here; if not, reports that a test is skipped.
#[track_caller]
pub(crate) fn has_cpus() -> bool {
    let several = thread::available_parallelism().unwrap().get() > 1;
    if !several {
        skipped("on one CPU nothing can be seen to be confined");
    }
    several
}

/// A daemon's environment: its contract, its directory, and a program that every user can start.
pub(crate) struct Place(TempDir);

/// Resets the signals that end a program. `nohup` ignores SIGHUP, and a shell without job control ignores
/// SIGINT and SIGQUIT for background jobs. Children would inherit that, and a test that sends such a signal
/// would hang.
fn reset_ending_signals(command: &mut Command) {
    let prepare = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: an async-signal-safe call, allowed between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(prepare) };
}

impl Place {
    pub(crate) fn new() -> Place {
        let directory = tempfile::Builder::new().prefix("commonhold-test-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Place(directory)
    }

    /// With a contract.
    pub(crate) fn with(contract: &str) -> Place {
        let place = Place::new();
        place.write(contract);
        place
    }

    /// With a contract of units `u0`, `u1` and so on, each with one process.
    pub(crate) fn with_units(members: &[&Process]) -> Place {
        let unit =
            |(n, member): (usize, &&Process)| format!("[unit.u{n}]\nmembers = [\"pid:{}\"]\n", member.pid());
        let units: String = members.iter().enumerate().map(unit).collect();
        Place::with(&format!("version = 1\n{units}"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn contract(&self) -> PathBuf {
        self.path().join("contract.toml")
    }

    pub(crate) fn write(&self, contract: &str) {
        fs::write(self.contract(), contract).unwrap();
    }

    /// The daemon's directory.
    pub(crate) fn directory(&self) -> PathBuf {
        self.path().join("daemon")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory().join("socket")
    }

    /// `commonhold` with arguments, to be run here.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold"));
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null());
        command.env("COMMONHOLD_DIR", self.directory()).env_remove("XDG_RUNTIME_DIR");
        reset_ending_signals(&mut command);
        command
    }

    /// As an ordinary user, who may lack access to the build folder.
    pub(crate) fn command_of(&self, user: u32, arguments: &[&str]) -> Command {
        let program = self.path().join("commonhold");
        if !program.exists() {
            // Not `fs::copy`: a process forked by another test meanwhile would inherit the file open for
            // writing, and exec would fail with ETXTBSY.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_commonhold")).arg(&program).status();
            assert!(copied.unwrap().success());
        }
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null()).uid(user).gid(user);
        command.env("COMMONHOLD_DIR", self.directory()).env_remove("XDG_RUNTIME_DIR");
        reset_ending_signals(&mut command);
        command
    }

    /// Makes a directory for a daemon of the given user.
    pub(crate) fn make_directory_of(&self, user: u32) {
        fs::create_dir(self.directory()).unwrap();
        chown(self.directory(), Some(user), Some(user)).unwrap();
    }

    /// Runs `commonhold` to completion.
    pub(crate) fn call(&self, arguments: &[&str]) -> Said {
        said(&mut self.command(arguments))
    }

    /// Starts a daemon, and waits until it holds the contract.
    pub(crate) fn run(&self, arguments: &[&str]) -> Daemon {
        Daemon::start(self.command(&run_arguments(arguments)))
    }

    /// The same as an ordinary user.
    pub(crate) fn run_as(&self, user: u32) -> Daemon {
        Daemon::start(self.command_of(user, &run_arguments(&[])))
    }

    /// The unit that `status --pid` names for a process, and the rule.
    pub(crate) fn place_of(&self, pid: u32) -> String {
        let said = self.call(&["status", "--pid", &pid.to_string()]);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.out.trim_end().to_owned()
    }

    /// The daemon's accounts.
    pub(crate) fn status(&self) -> serde_json::Value {
        let said = self.call(&["status", "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    }

    /// Paths of the units in the daemon's accounts.
    pub(crate) fn units(&self) -> Vec<String> {
        let status = self.status();
        let accounts = status["accounts"].as_array().unwrap();
        accounts.iter().map(|account| account["unit"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn run_arguments<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["run", "contract.toml", "--backend", "user"];
    if !arguments.contains(&"--for") {
        all.extend(["--for", "60s"]);
    }
    all.extend(arguments);
    all
}

/// A command's output and exit status.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Asserts that it failed with a code, and printed all of these: on standard error, or as JSON if
    /// requested.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let said = if self.out.starts_with('{') { &self.out } else { &self.err };
        for words in words {
            assert!(said.contains(words), "`{words}` is not in:\n{said}");
        }
    }
}

pub(crate) fn said(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code(),
        signal: output.status.signal(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The output of a running program, as it is printed.
struct Heard {
    text: Arc<Mutex<String>>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Heard {
    fn listen(mut to: impl Read + Send + 'static) -> Heard {
        let text = Arc::new(Mutex::new(String::new()));
        let heard = text.clone();
        let listener = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = to.read(&mut chunk) {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..n]));
            }
        });
        Heard { text, listener: Some(listener) }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// Reads the remaining output of a program that has ended.
    fn finish(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap();
        }
    }
}

/// A running daemon; stopped on drop.
pub(crate) struct Daemon {
    child: Child,
    out: Heard,
    err: Heard,
}

impl Daemon {
    pub(crate) fn start(mut command: impl BorrowMut<Command>) -> Daemon {
        Daemon::start_in_place(command.borrow_mut().process_group(0))
    }

    /// As above, in the process group and session that the command sets up.
    pub(crate) fn start_in_place(command: &mut Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = Heard::listen(child.stdout.take().unwrap());
        let err = Heard::listen(child.stderr.take().unwrap());
        let mut daemon = Daemon { child, out, err };
        eventually("the daemon holds the contract", || {
            assert!(daemon.child.try_wait().unwrap().is_none(), "{}{}", daemon.out(), daemon.err());
            daemon.out().contains("holding;")
        });
        daemon
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn caretaker(&self) -> u32 {
        let children: Vec<u32> = children_of(self.pid());
        assert_eq!(children.len(), 1, "the caretaker is the daemon's only child: {children:?}");
        children[0]
    }

    /// Standard output so far.
    pub(crate) fn out(&self) -> String {
        self.out.text()
    }

    /// Standard error so far.
    pub(crate) fn err(&self) -> String {
        self.err.text()
    }

    pub(crate) fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Waits until it prints a text.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) {
        eventually(&format!("the daemon says `{words}`: {}{}", self.out(), self.err()), || {
            self.out().contains(words) || self.err().contains(words)
        });
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.out.finish();
        self.err.finish();
        status.unwrap()
    }

    /// Kills it with SIGKILL, which it cannot handle.
    pub(crate) fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.wait();
    }

    /// Ends it with a signal, as an administrator would, and asserts success.
    pub(crate) fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}{}", self.out(), self.err());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(libc::SIGTERM);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(3) && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process to hold, in a new process group, which is killed at the end of the test.
pub(crate) struct Process(Child);

impl Process {
    /// A sleeping process.
    pub(crate) fn sleeper() -> Process {
        Process::start(Command::new("sleep").arg("60"))
    }

    /// A sleeping process of an ordinary user.
    pub(crate) fn sleeper_of(user: u32, group: u32) -> Process {
        Process::start(Command::new("sleep").arg("60").uid(user).gid(group))
    }

    /// A busy process: end it soon.
    pub(crate) fn spinner() -> Process {
        // A limit on CPU time in seconds, which ends a forgotten spinner.
        Process::shell("ulimit -t 8; while :; do :; done")
    }

    pub(crate) fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script]))
    }

    pub(crate) fn start(command: &mut Command) -> Process {
        Process(command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its first child, once it exists.
    pub(crate) fn child(&self) -> u32 {
        let mut child = None;
        eventually("a child", || {
            child = children_of(self.pid()).first().copied();
            child.is_some()
        });
        child.unwrap()
    }

    /// Whether it is confined to a proper subset of this test's CPUs.
    pub(crate) fn is_confined(&self) -> bool {
        allowed(self.pid()) != allowed(std::process::id())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        state(self.pid()) == 'T'
    }

    /// Whether it is alive, and neither confined nor stopped.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_confined() && matches!(state(self.pid()), 'R' | 'S' | 'D')
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = -i32::try_from(self.pid()).unwrap();
        // SAFETY: kills the group that this process leads; its ID is not reused, since it was not waited for.
        unsafe { libc::kill(group, libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

pub(crate) fn kill(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a process that a test started.
    unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) };
}

/// A field of /proc/PID/status.
fn field(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().trim().to_owned()
}

/// The CPUs that a process may use, as the kernel lists them.
pub(crate) fn allowed(pid: u32) -> String {
    field(pid, "Cpus_allowed_list")
}

/// `R`, `S`, `T` and so on.
pub(crate) fn state(pid: u32) -> char {
    field(pid, "State").chars().next().unwrap()
}

pub(crate) fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists() && state(pid) != 'Z'
}

pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|child| child.parse().unwrap()).collect()
}
