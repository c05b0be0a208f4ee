//! `commonhold offer ... -- PROGRAM`: runs a program, with an offer that lasts as long as the program.
//!
//! This process keeps its connection to the daemon open and waits for the program's end. Then it ends as
//! well, and the daemon takes the offer back, or ends the exchange that served the offer.
//!
//! Signals that another process sends to this one are forwarded to the program. Signals that the kernel sends
//! for a key of the terminal, such as Ctrl-C, are not forwarded: the kernel sends them to the program, too.
//! If this process is killed, the program gets SIGTERM, since it would otherwise go on without the exchange
//! that it relies on.

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

/// The exit code for a program that a signal terminated is this plus the signal's number, as in a shell.
const SIGNAL_EXIT_OFFSET: i32 = 128;

/// Runs a program to its end; returns its exit code, or 128 plus the number of the signal that terminated it.
pub(crate) fn run(program: &OsString, arguments: &[OsString]) -> Result<i32, Failure> {
    let failed =
        |what: &str, e: &dyn std::fmt::Display| Failure::new(Exit::System, format!("cannot {what}: {e}"));
    // From here on these signals are blocked. One that arrives before the program runs is forwarded later by
    // `wait`.
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

/// Forwards signals to the program until it ends; returns its exit status.
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
