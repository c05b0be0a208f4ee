//! Starts the program on given CPUs, and reaps it: its exit status, and the CPU time that the kernel counted.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};

use commonhold_live::host::affinity;
use commonhold_live::host::child::ends_with_this;
use commonhold_machine::CpuSet;
use rustix::process::{Pid, Signal, getpid};

/// CPU time of a process and of the children that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Used {
    /// In user mode.
    pub(crate) user_ns: u64,
    /// In kernel mode.
    pub(crate) system_ns: u64,
}

/// Starts a command with its affinity set to these CPUs. It is killed when this process ends for any reason.
///
/// A process inherits the affinity of the thread that starts it, so the calling thread has that affinity
/// during the call.
pub(crate) fn start_on(cpus: &CpuSet, command: &mut Command) -> Result<Child, Refused> {
    let before = affinity::get(0).map_err(Refused::Cpus)?;
    affinity::set(0, cpus).map_err(Refused::Cpus)?;
    ends_with_this(command, Signal::KILL);
    let started = command.spawn().map_err(Refused::Command);
    match (affinity::set(0, &before), started) {
        (Ok(()), started) => started,
        (Err(error), started) => {
            if let Ok(mut child) = started {
                let _ = child.kill().and_then(|()| child.wait());
            }
            Err(Refused::Cpus(error))
        }
    }
}

/// Why a command was not started.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The affinity cannot be set.
    Cpus(io::Error),
    /// The command cannot be executed.
    Command(io::Error),
}

/// Waits for a child; returns its status and the CPU time that the kernel counted for it.
pub(crate) fn reap(pid: u32) -> io::Result<(ExitStatus, Used)> {
    use std::os::unix::process::ExitStatusExt;
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ECHILD))?;
    let mut status = 0;
    // SAFETY: the kernel fills both; every bit pattern of the structure is valid.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        while libc::wait4(pid, &raw mut status, 0, &raw mut usage) < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        usage
    };
    let ns = |time: libc::timeval| {
        let (s, us) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_usec).unwrap_or(0));
        s.saturating_mul(1_000_000_000).saturating_add(us.saturating_mul(1_000))
    };
    Ok((ExitStatus::from_raw(status), Used { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) }))
}

/// Reaps a child if it has ended.
pub(crate) fn reap_if_ended(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

/// While this value lives, this process is the subreaper of its descendants: orphans among them become its
/// children.
pub(crate) struct Adopts(());

impl Adopts {
    pub(crate) fn begin() -> io::Result<Adopts> {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(Adopts(()))
    }
}

impl Drop for Adopts {
    fn drop(&mut self) {
        let _ = rustix::process::set_child_subreaper(None);
    }
}

/// An anonymous file in memory for the output of a program.
pub(crate) fn scratch() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("commonhold-output", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// The last `bytes_max` bytes of a file made by [`scratch`].
pub(crate) fn scratch_end(file: OwnedFd, bytes_max: u64) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(file);
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length.min(bytes_max)).unwrap_or(0)];
    file.read_exact_at(&mut bytes, length - length.min(bytes_max))?;
    Ok(bytes)
}
