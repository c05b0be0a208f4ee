//! Runs a program to which an offer is bound: `commonhold offer ... -- PROGRAM`.
//!
//! This process keeps the connection to the daemon open, and waits. When the program ends, this process ends, and the daemon
//! takes the offer back. Signals from other processes are forwarded to the program. Signals that the kernel sends for the
//! terminal (Ctrl-C) reach the program directly. If this process is killed, the program gets SIGTERM: the program would
//! otherwise go on without the exchange that it relies on.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use commonhold_live::host::child::{command, ends_with_this};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit::{Exit, Failure};
use crate::signals::Signals;

/// The signals that are forwarded to the program.
const FORWARDED: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGALRM, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// A shell's exit code for a program terminated by a signal is the signal's number plus this.
const SIGNAL_EXIT_OFFSET: i32 = 128;

/// Runs a program to its end; returns its exit code, or 128 plus the number of the signal that terminated it.
pub(crate) fn run(program: &OsString, arguments: &[OsString]) -> Result<i32, Failure> {
    let failed =
        |what: &str, e: &dyn std::fmt::Display| Failure::new(Exit::System, format!("cannot {what}: {e}"));
    // From here on signals stay pending until the program runs.
    let signals = Signals::open(&FORWARDED).map_err(|e| failed("wait for signals", &e))?;
    let mut child = start(program, arguments).map_err(|e| {
        let exit = if e.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        Failure::new(exit, format!("cannot run `{}`: {e}", program.to_string_lossy()))
    })?;
    let status = wait(&mut child, &signals).map_err(|e| failed("wait for the program", &e))?;
    Ok(status.code().unwrap_or_else(|| SIGNAL_EXIT_OFFSET + status.signal().unwrap_or(0)))
}

fn start(program: &OsString, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = command(program);
    command.args(arguments);
    ends_with_this(&mut command, Signal::TERM);
    command.spawn()
}

/// Waits for the program's end, and forwards signals meanwhile.
fn wait(child: &mut Child, signals: &Signals) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let program = pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
    loop {
        let mut files =
            [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN), PollFd::new(&program, PollFlags::IN)];
        match poll(&mut files, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let has_ended = files[1].revents().contains(PollFlags::IN);
        while let Some(received) = signals.next() {
            if let Some(signal) = Signal::from_named_raw(received.signal).filter(|_| !received.by_kernel) {
                // Fails only if the program has already ended.
                let _ = pidfd_send_signal(&program, signal);
            }
        }
        if has_ended {
            return child.wait();
        }
    }
}
