//! The signal state of programs that `commonhold` starts: the kernel's defaults, whatever its caller's state
//! is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use crate::support::{Place, eventually, said};

/// Prints its blocked and ignored signals.
const SIGNALS: [&str; 4] = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];

/// The expected output: `nohup` is honoured.
const DEFAULT: &str = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n";

/// Gives a command a signal state that the programs it starts must not inherit, and SIGHUP ignored as by
/// `nohup`.
fn hostile(command: &mut Command) -> &mut Command {
    let prepare = || {
        // SAFETY: async-signal-safe calls, allowed between fork and exec, on this stack's memory.
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
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(prepare) }
}

#[test]
fn of_exec_and_of_an_offers_program() {
    let place = Place::with("version = 1\n[unit.a]\n[unit.b]\n");
    let _daemon = place.run(&[]);
    let exec = [&["exec", "a", "--"][..], &SIGNALS].concat();
    assert_eq!(said(hostile(&mut place.command(&exec))).out, DEFAULT);
    let offer = ["offer", "--unit", "a", "--give", "disk:30", "--want", "cpu:20", "--"];
    assert_eq!(said(hostile(&mut place.command(&[&offer[..], &SIGNALS].concat()))).out, DEFAULT);
}

/// The demonstration, with a fake compiler, and `tmp` for its temporary files.
fn demonstration(place: &Place, compiler: &str) -> Command {
    let (bin, tmp) = (place.path().join("bin"), place.path().join("tmp"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&tmp).unwrap();
    fs::write(bin.join("cc"), format!("#!/bin/sh\n{compiler}")).unwrap();
    fs::set_permissions(bin.join("cc"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut demo = place.command(&["demo", "--seconds", "1", "--backend", "user"]);
    demo.env("PATH", path).env("TMPDIR", tmp).stdout(Stdio::null()).stderr(Stdio::null());
    demo
}

/// Interrupted while it times a piece of work that does not end, and while its daemon holds jobs.
#[test]
fn that_end_the_demonstration_leave_nothing_of_it() {
    for (signal, length, pieces) in
        [(libc::SIGINT, "1000", 1), (libc::SIGTERM, "0.05", 8), (libc::SIGHUP, "0.05", 8)]
    {
        let place = Place::new();
        let told = place.path().join("pieces");
        let compiler = format!("[ $1 = --version ] && exit\necho >>{}\nsleep {length}\n", told.display());
        let mut demo = demonstration(&place, &compiler).process_group(0).spawn().unwrap();
        let count = || fs::read_to_string(&told).unwrap_or_default().lines().count();
        eventually("it is at work", || count() >= pieces);
        // SAFETY: a plain system call.
        unsafe { libc::kill(i32::try_from(demo.id()).unwrap(), signal) };
        eventually("it ends", || demo.try_wait().unwrap().is_some());
        assert_eq!(demo.wait().unwrap().signal(), Some(signal));
        assert_eq!(fs::read_dir(place.path().join("tmp")).unwrap().count(), 0);
        // The fake compiler's path is in the environment of all processes that it started.
        let bin = place.path().join("bin").display().to_string();
        let is_of_it = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(&bin);
        let processes = || fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("environ"));
        eventually("all have ended", || !processes().filter_map(|path| fs::read(path).ok()).any(is_of_it));
    }
}

/// A fake compiler reports the state; the demonstration's daemon and jobs are between it and the caller.
#[test]
fn of_the_demonstration() {
    let place = Place::new();
    let told = place.path().join("signals");
    // Each reports in one write, since several run at once.
    let compiler = format!(
        "said=$({})\nprintf '%s\\n' \"$said\" >>{}\nsleep 0.05\n",
        SIGNALS.map(|word| format!("'{word}'")).join(" "),
        told.display()
    );
    let mut demo = demonstration(&place, &compiler);
    let mut demo = hostile(&mut demo).process_group(0).spawn().unwrap();
    let said = || fs::read_to_string(&told).unwrap_or_default();
    // The first four come from the program itself, the later ones from jobs in units.
    eventually("its jobs compile", || said().lines().count() >= 2 * 8);
    demo.kill().unwrap();
    demo.wait().unwrap();
    let said = said();
    for lines in said.lines().collect::<Vec<_>>().chunks_exact(2) {
        assert_eq!(format!("{}\n{}\n", lines[0], lines[1]), DEFAULT, "{said}");
    }
}

/// It ignores the signals that would end it with the daemon, and blocks none.
#[test]
fn of_the_caretaker() {
    let place = Place::with("version = 1\n[unit.a]\n[unit.b]\n");
    let daemon = place.run(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.caretaker())).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let bit = |signal: i32| 1u64 << (signal - 1);
    let ignored = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTERM]
        .map(bit)
        .iter()
        .sum::<u64>();
    assert_eq!((mask("SigBlk:"), mask("SigIgn:") & ignored), (0, ignored), "{status}");
}
