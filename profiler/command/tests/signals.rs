//! With which signals the measured program begins: the kernel's defaults, whatever the caller of `commonhold
//! scale` has.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Blocks and ignores what no program should inherit, and SIGHUP as `nohup` does; resets what the tests' own
/// caller may ignore.
fn spoil(command: &mut Command) -> &mut Command {
    let prepare = || {
        // SAFETY: calls that are allowed between fork and exec, on memory of this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            for signal in [libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD, libc::SIGUSR2] {
                libc::signal(signal, libc::SIG_IGN);
            }
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(prepare) }
}

#[test]
fn a_measured_program_begins_with_the_default_signals() {
    let folder = tempfile::tempdir().unwrap();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status >>signals; sleep 0.05";
    let arguments = ["scale", "--cpus", "1", "--repeat", "1", "--warm-up", "0", "--", "sh", "-c", script];
    let mut command = Command::new(env!("CARGO_BIN_EXE_commonhold-scale"));
    let output = spoil(command.args(arguments).current_dir(folder.path())).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let signals = fs::read_to_string(folder.path().join("signals")).unwrap();
    assert_eq!(signals, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n");
}
