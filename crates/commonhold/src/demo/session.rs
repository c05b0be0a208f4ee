//! A daemon with its jobs, from start to end. When a [`Session`] or a [`Job`] is dropped, its processes are
//! ended, so that no process is left running after an error.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use commonhold_client::wire::Call;
use commonhold_contract::Scheme;
use commonhold_ledger::Statement;
use commonhold_live::host::child::{command, ends_with_this};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::work::Kind;
use super::{Load, pause};
use commonhold_command::place::Place;

use crate::cli::BackendChoice;
use crate::client::call;
use crate::exit::{Exit, Failure};
use crate::place;
use crate::protocol::StatusReply;
use crate::signals::Signals;

/// How long to wait until a daemon is ready. Even a slow machine needs less.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// The number of attempts to remove the directory.
const REMOVAL_ATTEMPTS: u32 = 10;

/// A directory for the daemon, its contract and the jobs' files; removed at the end.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn make() -> Result<Directory, Failure> {
        let path = std::env::temp_dir().join(format!("commonhold-demo-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().create(&path);
        made.map_err(|e| {
            Failure::new(Exit::System, format!("{}: cannot make it: {e}; set TMPDIR", path.display()))
        })?;
        Ok(Directory(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A killed process may still finish a call that creates a file.
        for _ in 0..REMOVAL_ATTEMPTS {
            match std::fs::remove_dir_all(&self.0) {
                Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// A running daemon.
pub(super) struct Session {
    daemon: Child,
    place: Place,
    log: PathBuf,
    directory: PathBuf,
    backend: String,
}

/// A command that runs this program with other arguments.
fn own_program(arguments: &[&str]) -> Command {
    let mut command = command("/proc/self/exe");
    // The new process gets its own process group, so that Ctrl-C reaches only the demo, which then ends the
    // others in order.
    command.args(arguments).process_group(0).stdin(Stdio::null());
    // The new process gets SIGTERM when the demo dies. Otherwise its daemon would go on holding the contract.
    ends_with_this(&mut command, Signal::TERM);
    command
}

fn cannot(what: &str, e: &std::io::Error) -> Failure {
    Failure::new(Exit::System, format!("cannot {what}: {e}"))
}

impl Session {
    /// Starts a daemon with a contract, and waits until it answers. Without a scheme, the daemon runs under
    /// `smp`, which only accounts.
    pub(super) fn open(
        contract: &Path,
        scheme: Option<Scheme>,
        backend: BackendChoice,
        directory: &Path,
        signals: &Signals,
    ) -> Result<Session, Failure> {
        let place = Place { directory: Some(directory.join("daemon")) };
        let log = directory.join("daemon.log");
        let file = File::create(&log).map_err(|e| cannot("write the daemon's log", &e))?;
        let errors = file.try_clone().map_err(|e| cannot("write the daemon's log", &e))?;
        let arguments = [
            "run",
            "--backend",
            super::backend_word(backend),
            "--scheme",
            scheme.unwrap_or(Scheme::Smp).name(),
        ];
        let daemon = own_program(&arguments)
            .arg("--directory")
            .arg(directory.join("daemon"))
            .arg(contract)
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|e| cannot("start the daemon", &e))?;
        let mut session =
            Session { daemon, place, log, directory: directory.to_owned(), backend: String::new() };
        session.wait_until_ready(signals)?;
        Ok(session)
    }

    fn wait_until_ready(&mut self, signals: &Signals) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < START_TIME_MAX {
            if let Ok(stream) = place::connect(&self.place) {
                let reply: StatusReply = call(&mut stream.into(), &Call::Status { by_cpu: false })?;
                self.backend = reply.backend;
                return Ok(());
            }
            if self.daemon.try_wait().map_err(|e| cannot("wait for the daemon", &e))?.is_some() {
                break;
            }
            pause(signals, Duration::from_millis(10))?;
        }
        let mut text = String::new();
        let _ = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        Err(Failure::new(
            Exit::Unavailable,
            format!("the daemon did not start; it said:\n{}", text.trim_end()),
        ))
    }

    pub(super) fn status(&self) -> Result<Statement, Failure> {
        let reply: StatusReply =
            call(&mut place::connect(&self.place)?.into(), &Call::Status { by_cpu: false })?;
        Ok(reply.statement)
    }

    /// Starts a job in a unit.
    pub(super) fn start(&self, unit: &str, kind: Kind, load: Load) -> Result<Job, Failure> {
        let files = self.directory.join(unit);
        std::fs::create_dir_all(&files).map_err(|e| cannot("make a directory for a job", &e))?;
        let mut command = own_program(&["exec", "--directory"]);
        command
            .arg(self.directory.join("daemon"))
            .args([unit, "--", "/proc/self/exe", "demo-task", kind.name()])
            .args([load.pieces.to_string(), load.at_a_time.to_string()])
            .current_dir(files)
            .stdout(Stdio::null());
        Job::start(&mut command, format!("the job in unit `{unit}`"))
    }

    /// Ends the daemon and waits until its changes are undone; returns the backend's name.
    pub(super) fn close(mut self) -> Result<String, Failure> {
        send_signal(&self.daemon, Signal::TERM);
        let status = self.daemon.wait().map_err(|e| cannot("wait for the daemon", &e))?;
        if !status.success() {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            return Err(Failure::new(
                Exit::System,
                format!("the daemon ended with {status}:\n{}", text.trim_end()),
            ));
        }
        Ok(std::mem::take(&mut self.backend))
    }
}

fn send_signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            send_signal(&self.daemon, Signal::TERM);
            let _ = self.daemon.wait();
        }
    }
}

/// A running job with its descendants.
pub(super) struct Job {
    child: Child,
    /// The job's name in error messages.
    description: String,
    begun: Instant,
    has_ended: bool,
}

impl Job {
    /// Starts a job in a new process group, which is killed on drop.
    pub(super) fn start(command: &mut Command, description: String) -> Result<Job, Failure> {
        let begun = Instant::now();
        let child =
            command.process_group(0).spawn().map_err(|e| cannot(&format!("start {description}"), &e))?;
        Ok(Job { child, description, begun, has_ended: false })
    }

    /// The job's run time if it has ended successfully; `None` while it runs.
    pub(super) fn run_time_if_ended(&mut self) -> Result<Option<Duration>, Failure> {
        let Some(status) = self.child.try_wait().map_err(|e| cannot("wait for a job", &e))? else {
            return Ok(None);
        };
        self.has_ended = true;
        let run_time = self.begun.elapsed();
        match status.success() {
            true => Ok(Some(run_time)),
            false => Err(Failure::new(Exit::System, format!("{} ended with {status}", self.description))),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.has_ended {
            if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}
