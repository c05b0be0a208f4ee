//! The work of the demonstration: real programs that fork, exec, read, compute and write.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use commonhold_live::host::child::command;

use super::pause;
use super::session::Job;
use crate::cli::DemoTask;
use crate::exit::{Exit, Failure};
use crate::signals::Signals;

/// The kind of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One run of the C compiler, as in seed 000's parallel make: a driver, a compiler and an assembler.
    Compile,
    /// One run of this program that hashes for a while: the fallback without a C compiler.
    Hash,
}

/// The interval at which a timed piece is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The number of functions in the C source of a piece. The source takes about 0.2 s to compile on a present
/// machine.
const FUNCTIONS: u32 = 120;
/// The number of rounds in a hashing piece.
const ROUNDS: u64 = 60_000_000;

impl Kind {
    /// Compilation if this machine has a C compiler, else hashing.
    pub(super) fn choose() -> Kind {
        let compiler_status =
            command("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if compiler_status.is_ok_and(|status| status.success()) { Kind::Compile } else { Kind::Hash }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Compile => "compile",
            Kind::Hash => "hash",
        }
    }

    pub(super) fn plural(self) -> &'static str {
        match self {
            Kind::Compile => "compilations",
            Kind::Hash => "hash computations",
        }
    }

    /// Runs a piece three times, on an otherwise idle machine; returns the shortest time.
    pub(super) fn time_one(self, directory: &Path, signals: &Signals) -> Result<Duration, Failure> {
        let mut shortest = Duration::MAX;
        self.prepare(directory)?;
        for n in 0..3 {
            let mut job = Job::start(&mut self.piece(directory, n), "a piece of work".to_owned())?;
            let run_time = loop {
                if let Some(run_time) = job.run_time_if_ended()? {
                    break run_time;
                }
                pause(signals, POLL_INTERVAL)?;
            };
            shortest = shortest.min(run_time);
        }
        Ok(shortest)
    }

    /// Writes the C source that all pieces compile. Hashing pieces need no input.
    fn prepare(self, directory: &Path) -> Result<(), Failure> {
        if self == Kind::Hash {
            return Ok(());
        }
        let path = directory.join("piece.c");
        std::fs::write(&path, source())
            .map_err(|e| Failure::new(Exit::System, format!("{}: cannot write it: {e}", path.display())))
    }

    /// The command of the `n`-th piece.
    fn piece(self, directory: &Path, n: u32) -> Command {
        let mut command = match self {
            Kind::Compile => {
                let mut command = command("cc");
                command.args(["-O1", "-c", "piece.c", "-o"]).arg(format!("piece{n}.o"));
                // A killed compiler leaves temporary files, which are removed with the directory.
                command.env("TMPDIR", ".");
                command
            }
            Kind::Hash => {
                let mut command = command("/proc/self/exe");
                command.args(["demo-task", "rounds"]).args([ROUNDS.to_string(), "1".to_owned()]);
                command
            }
        };
        command.current_dir(directory).stdin(Stdio::null());
        command
    }

    fn start(self, directory: &Path, n: u32) -> Result<Child, Failure> {
        let started = self.piece(directory, n).spawn();
        started.map_err(|e| Failure::new(Exit::System, format!("cannot start a piece of work: {e}")))
    }
}

fn expect_success(status: std::io::Result<std::process::ExitStatus>) -> Result<(), Failure> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(Exit::System, format!("a piece of work ended with {status}"))),
        Err(e) => Err(Failure::new(Exit::System, format!("cannot wait for a piece of work: {e}"))),
    }
}

/// Generates a C source that keeps an optimiser busy: many functions with loops over their arguments.
fn source() -> String {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        let _ = write!(
            text,
            "unsigned f{n}(unsigned *a, unsigned n) {{\n\
             \tunsigned s = {n};\n\
             \tfor (unsigned i = 0; i < n; i++) {{\n\
             \t\tfor (unsigned j = i; j < n; j += {step}) s = (s ^ a[i]) * 31u + (a[j] >> (s & 7u));\n\
             \t\tswitch (s % 5u) {{ case 0: s += a[i / 2]; break; case 1: s ^= i; break; case 2: s -= a[n - 1 - i]; break;\n\
             \t\tdefault: a[i] = s; }}\n\
             \t}}\n\
             \treturn s;\n}}\n",
            step = n % 7 + 1,
        );
    }
    text
}

/// The hidden command `demo-task KIND AMOUNT COUNT`. With the kind `compile` or `hash` it runs a job: AMOUNT
/// pieces, at most COUNT at a time. With the kind `rounds` it runs one hashing piece of AMOUNT rounds.
pub(crate) fn task(args: &DemoTask) -> Result<Exit, Failure> {
    let kind = match args.kind.as_str() {
        "compile" => Kind::Compile,
        "hash" => Kind::Hash,
        "rounds" => {
            std::hint::black_box(hash(args.amount));
            return Ok(Exit::Ok);
        }
        other => return Err(Failure::new(Exit::Usage, format!("no work of kind `{other}`"))),
    };
    make(kind, u32::try_from(args.amount).unwrap_or(u32::MAX), args.count)?;
    Ok(Exit::Ok)
}

fn hash(rounds: u64) -> u64 {
    (0..rounds).fold(0xcbf2_9ce4_8422_2325, |h, n| (h ^ n).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Runs `pieces` pieces, at most `at_a_time` concurrently, like `make -j`.
fn make(kind: Kind, pieces: u32, at_a_time: u32) -> Result<(), Failure> {
    let directory = Path::new(".");
    kind.prepare(directory)?;
    let mut running: Vec<Child> = Vec::new();
    let mut started = 0;
    while started < pieces || !running.is_empty() {
        while started < pieces && running.len() < at_a_time as usize {
            running.push(kind.start(directory, started)?);
            started += 1;
        }
        wait_any(&mut running)?;
    }
    Ok(())
}

/// Blocks until at least one child has ended, and removes every ended child from `running`. Fails if one of
/// these children failed.
fn wait_any(running: &mut Vec<Child>) -> Result<(), Failure> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    // NOWAIT reports that a child has ended, but leaves the child to be reaped by `try_wait` below.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    match waitid(WaitId::All, options) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Failure::new(Exit::System, format!("cannot wait for a piece of work: {e}"))),
    }
    let mut still_running = Vec::new();
    for mut child in running.drain(..) {
        match child.try_wait() {
            Ok(None) => still_running.push(child),
            ended => expect_success(ended.map(Option::unwrap_or_default))?,
        }
    }
    *running = still_running;
    Ok(())
}
