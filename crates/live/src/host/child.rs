//! Programs that this one starts: on which CPUs, what became of them, and what the kernel counted for them.

use std::ffi::OsStr;
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

/// A command whose process begins with the kernel's default signals: none blocked, none ignored.
///
/// A child inherits the mask and the ignored signals of the thread that starts it. This program blocks the signals that it
/// reads from a file, and Rust's runtime ignores SIGPIPE. A program that inherits these is not ended by `timeout`, by Ctrl-C
/// or by a closed pipe. What whoever started this program blocks or ignores is not passed on either, with one exception:
/// SIGHUP, SIGINT and SIGQUIT stay ignored if they were, since that is what `nohup` and a shell's `&` are for.
///
/// Every program that is started begins here, so that none is forgotten.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // SAFETY: between fork and exec, system calls on memory of this stack, and no other memory of this program's.
    unsafe { command.pre_exec(default_signals) };
    command
}

/// Those that the user ignores on purpose.
const KEPT: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Of the calling process. Makes only calls that are allowed between fork and exec.
///
/// The kernel is asked directly: the C library refuses to touch the two signals that its threads use, and these can be
/// inherited as ignored, too.
fn default_signals() -> io::Result<()> {
    /// `struct sigaction` as the kernel has it, with room to spare. All zeros is the default action.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_BYTES: usize = 8;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: the kernel reads the structure, and writes nothing. The default action runs no code. SIGKILL and SIGSTOP
        // are refused, and always have it.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SET_BYTES,
            )
        };
    }
    unblock_signals()
}

/// Has the calling thread block no signal.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set lives on this stack.
    let failed = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Stops ignoring SIGCHLD, which whoever started this process may have ignored: children would vanish as they end, and their
/// status could not be read. To be called before any is started.
pub fn keep_children() {
    // SAFETY: the default action runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `SigBlk` and `SigIgn` of a process that this command starts.
    fn signals_of(command: &mut Command) -> (u64, u64) {
        let output = command.args(["-E", "^Sig(Blk|Ign)", "/proc/self/status"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        (of("SigBlk:"), of("SigIgn:"))
    }

    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    /// Blocks and ignores in the child what a caller may have, before the command's own preparation.
    #[allow(clippy::unnecessary_wraps, reason = "it is a step before exec")]
    fn hostile() -> io::Result<()> {
        // SAFETY: calls that are allowed between fork and exec, on memory of this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            for signal in [libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM, libc::SIGRTMAX()] {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
        Ok(())
    }

    #[test]
    fn a_program_begins_with_the_default_signals_whatever_this_one_has() {
        let mut inherits = Command::new("grep");
        // SAFETY: see `hostile`.
        unsafe { inherits.pre_exec(hostile) };
        let (blocked, ignored) = signals_of(&mut inherits);
        assert!(
            blocked & bit(libc::SIGTERM) != 0 && ignored & bit(libc::SIGCHLD) != 0,
            "else this tests nothing"
        );
        let mut command = Command::new("grep");
        // SAFETY: as above, and what `command` does, after it.
        unsafe { command.pre_exec(hostile).pre_exec(default_signals) };
        assert_eq!(signals_of(&mut command), (0, bit(libc::SIGHUP)));
        assert_eq!(signals_of(&mut super::command("grep")).0, 0);
    }
}
