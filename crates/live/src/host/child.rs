//! Child programs: start them on given CPUs, and collect their exit status and CPU time.

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

/// A command whose process begins with the kernel's default signal state: no signal blocked, none ignored.
///
/// A child inherits the signal mask and the ignored signals of the thread that starts it. This program blocks the signals that
/// it reads from a signalfd, and Rust's runtime ignores SIGPIPE. A program that inherits these is not ended by `timeout`,
/// Ctrl-C or a closed pipe. Signals that this program's own parent blocked or ignored are reset, too, with one exception:
/// SIGHUP, SIGINT and SIGQUIT stay ignored, since that is the purpose of `nohup` and of a shell's `&`.
///
/// Every program must be started through this function.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // SAFETY: between fork and exec it makes only system calls, and uses only memory on this stack.
    unsafe { command.pre_exec(default_signals) };
    command
}

/// Signals that stay ignored, since the user ignores them on purpose.
const KEPT: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Resets the calling process's signals. Makes only calls that are allowed between fork and exec.
///
/// Uses the raw system call: the C library refuses to change the two signals that its threads use, and these can be inherited
/// as ignored, too.
fn default_signals() -> io::Result<()> {
    /// The kernel's `struct sigaction`, with room to spare. All zeros is the default action.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_BYTES: usize = 8;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: the kernel reads the structure, and writes nothing. The default action runs no code. The kernel refuses
        // SIGKILL and SIGSTOP, which always have the default action.
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

/// Unblocks all signals in the calling thread.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set lives on this stack.
    let failed = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Stops ignoring SIGCHLD. This process may have inherited it as ignored; children would then vanish when they end, and their
/// status could not be read. Call this before any child is started.
pub fn keep_children() {
    // SAFETY: the default action runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Starts a command that may use only these CPUs, and that is killed when this process ends for whatever reason.
///
/// A process inherits the affinity of the thread that starts it. So the calling thread temporarily confines itself to these
/// CPUs. Errors: of the affinity, or of the command.
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

/// Has the kernel send a signal to a command's process when the thread that starts it ends, which includes that this process is
/// killed. Processes that the command starts are not affected.
pub fn ends_with_this(command: &mut Command, signal: Signal) {
    let parent = getpid();
    // SAFETY: between fork and exec it makes two system calls, and uses only copied values.
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

/// The step of [`start_on`] that failed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The affinity could not be set.
    Cpus(io::Error),
    /// The command could not be started.
    Command(io::Error),
}

/// Waits for a child, and returns its status and CPU time.
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

/// Collects a child's status if it has ended.
pub(crate) fn reap_if_ended(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

/// While this exists, this process is a subreaper: orphaned descendants become its children.
pub(crate) struct Adopts(());

impl Adopts {
    /// Makes this process a subreaper.
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

/// An anonymous file in memory for a program's output.
pub(crate) fn scratch() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("commonhold-output", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// The last `most` bytes of such a file, or all of it if it is shorter.
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

    /// `SigBlk` and `SigIgn` of a process started by this command.
    fn signals_of(command: &mut Command) -> (u64, u64) {
        let output = command.args(["-E", "^Sig(Blk|Ign)", "/proc/self/status"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mask = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        (mask("SigBlk:"), mask("SigIgn:"))
    }

    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    /// Blocks and ignores signals in the child, as a parent may have done, before the command's own preparation.
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
            "otherwise this tests nothing"
        );
        let mut command = Command::new("grep");
        // SAFETY: as above, followed by the step of `command`.
        unsafe { command.pre_exec(hostile).pre_exec(default_signals) };
        assert_eq!(signals_of(&mut command), (0, bit(libc::SIGHUP)));
        assert_eq!(signals_of(&mut super::command("grep")).0, 0);
    }
}
