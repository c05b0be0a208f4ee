//! A program that an offer is bound to: `commonhold offer ... -- PROGRAM`.
//!
//! This process holds the connection, and waits. When the program ends, for whatever reason, this one ends, and so the offer.
//! Signals that somebody sends to this process go on to the program. Those that the kernel sends for a key of the terminal reach
//! the program by themselves. If this process is killed, the program is sent SIGTERM: it would go on without what it counts on.

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

/// What somebody may send to have a program end, or do what it says.
const FORWARDED: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGALRM, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// What a shell adds to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Runs a program to its end: its exit code, or 128 and the number of the signal that ended it.
pub(crate) fn run(program: &OsString, arguments: &[OsString]) -> Result<i32, Failure> {
    let failed =
        |what: &str, e: &dyn std::fmt::Display| Failure::new(Exit::System, format!("cannot {what}: {e}"));
    // From here on signals wait until there is a program to send them to.
    let signals = Signals::open(&FORWARDED).map_err(|e| failed("wait for signals", &e))?;
    let mut child = start(program, arguments).map_err(|e| {
        let exit = if e.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        Failure::new(exit, format!("cannot run `{}`: {e}", program.to_string_lossy()))
    })?;
    let status = wait(&mut child, &signals).map_err(|e| failed("wait for the program", &e))?;
    Ok(status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or(0)))
}

fn start(program: &OsString, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = command(program);
    command.args(arguments);
    ends_with_this(&mut command, Signal::TERM);
    command.spawn()
}

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
        while let Some(came) = signals.next() {
            if let Some(signal) = Signal::from_named_raw(came.signal).filter(|_| !came.by_kernel) {
                // One that has ended meanwhile needs none.
                let _ = pidfd_send_signal(&program, signal);
            }
        }
        if has_ended {
            return child.wait();
        }
    }
}
