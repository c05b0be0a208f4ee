//! Child programs: the signal state with which they start, and the signal that ends them when this program
//! ends.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid};

/// A command whose process begins with the kernel's default signal state: no signal blocked, none ignored.
///
/// A child inherits the signal mask and the ignored signals of the thread that starts it. This program blocks
/// the signals that it reads from a signalfd, and Rust's runtime ignores SIGPIPE. A child that inherited
/// these would not be ended by `timeout`, Ctrl-C or a closed pipe. Signals that this program's own parent
/// blocked or ignored are reset, too, with one exception: SIGHUP, SIGINT and SIGQUIT stay ignored, since that
/// is the purpose of `nohup` and of a shell's `&`.
///
/// Every program must be started through this function.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // SAFETY: between fork and exec it makes only system calls, and uses only memory on this stack.
    unsafe { command.pre_exec(default_signals) };
    command
}

/// Signals that stay ignored, since users ignore them on purpose.
const KEPT: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Resets the calling process's signals. Makes only calls that are allowed between fork and exec.
///
/// Uses the raw system call, since the C library refuses to change the two signals that its threads use.
/// These two can be inherited as ignored, too.
fn default_signals() -> io::Result<()> {
    /// The kernel's `struct sigaction`, with room to spare. All zeros is the default action.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_BYTES: usize = 8;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: the kernel reads the structure, and writes nothing. The default action runs no code. The
        // kernel refuses SIGKILL and SIGSTOP, which always have the default action.
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

/// Stops ignoring SIGCHLD, before any child is started. This process may have inherited the signal as
/// ignored. Children would then vanish when they end, and their status could not be read.
pub fn keep_children() {
    // SAFETY: the default action runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Has the kernel send a signal to a command's process when the thread that starts the command ends, for
/// example because this process is killed. Processes that the command starts get no signal.
pub fn ends_with_this(command: &mut Command, signal: Signal) {
    let parent = getpid();
    // SAFETY: between fork and exec it makes two system calls, and uses only copied values.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            // If the parent ended before the call above, no signal will be sent: do not start the program.
            match getppid() {
                Some(current) if current == parent => Ok(()),
                _ => Err(io::ErrorKind::Interrupted.into()),
            }
        });
    }
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

    /// Blocks and ignores signals in the child, as a parent may have done, before the command's own
    /// preparation.
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
    fn a_child_starts_with_default_signals_whatever_its_parent_has() {
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
