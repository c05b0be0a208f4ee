//! Programs that this one starts: on which CPUs, what became of them, and what the kernel counted for them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use commonhold_machine::CpuSet;
use rustix::process::{Pid, Signal, getpid, getppid};

use super::affinity;

/// CPU time of a process and of the children that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Used {
    /// In the program's own code.
    pub(crate) user_ns: u64,
    /// In the kernel.
    pub(crate) system_ns: u64,
}

/// Starts a command that may use these CPUs and no others, and that is killed when this process ends, however that does.
///
/// A process begins with the affinity of the thread that starts it. So the calling thread takes these CPUs for that long.
/// Errors: of the affinity, or of the command.
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

/// Has the kernel send a signal to a command's process when the thread that starts it ends: so when this process is killed,
/// too. What the command starts itself is its own affair.
pub fn ends_with_this(command: &mut Command, signal: Signal) {
    let parent = getpid();
    // SAFETY: between fork and exec, two system calls and no memory of this program's but copies.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            match getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(io::ErrorKind::Interrupted.into()),
            }
        });
    }
}

/// What could not be done.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It cannot be put on these CPUs.
    Cpus(io::Error),
    /// It cannot be started.
    Command(io::Error),
}

/// Takes the status of a child that has ended, or ends now, with what the kernel counted for it.
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

/// Takes the status of a child if it has ended.
pub(crate) fn reap_if_ended(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

/// While this lives, processes that lose their parent become children of this process, if they descend from it.
pub(crate) struct Adopts(());

impl Adopts {
    /// Begins.
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

/// A file in memory, without a name, that a program may write to.
pub(crate) fn scratch() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("commonhold-output", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// What such a file holds: all of it up to `most` bytes, else the end.
pub(crate) fn scratch_end(file: OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(file);
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length.min(most)).unwrap_or(0)];
    file.read_exact_at(&mut bytes, length - length.min(most))?;
    Ok(bytes)
}
