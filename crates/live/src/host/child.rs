//! Programs that this one starts: the signals that they begin with, and the signal that ends them with it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid};

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
