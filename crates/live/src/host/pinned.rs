//! Processes pinned by a pidfd.
//!
//! The kernel reuses the number of a process once its parent has waited for it, and that of a thread once the thread has
//! ended. A pidfd keeps referring to the process that it was opened for. Three kinds of calls follow from that:
//!
//! - Signals and `process_madvise(2)` take the pidfd itself. They never reach another process.
//! - Files of /proc that stay open refer to one process as well, as a pidfd does.
//! - All other calls take numbers only. For these, [`Pinned::is_running`] and [`Pinned::has_thread`] tell *after* a call
//!   whether the number referred to the pinned process throughout: numbers are reused, but never given back.
//!
//! Source: `pidfd_open(2)`; `pidfd_poll()` and `pidfd_show_fdinfo()` of the kernel's fs/pidfs.c and kernel/fork.c.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::files::read_to_string;
use super::tamper::{About, Kind, ask, is_on, pass};

/// One process, by its pidfd.
#[derive(Debug)]
pub struct Pinned {
    pub(super) process: OwnedFd,
    pub(super) pid: u32,
}

impl Pinned {
    /// Pins the process that has this number now. Which process that is must be checked *afterwards*, by its start time:
    /// [`pin`](crate::observe::process::pin) does both.
    ///
    /// Errors are the kernel's: `ESRCH` if there is none.
    pub fn of(pid: u32) -> io::Result<Pinned> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(gone)?;
        pass(Kind::Pin, About::Process(pid))?;
        Ok(Pinned { process: pidfd_open(number, PidfdFlags::empty())?, pid })
    }

    /// Takes over a pidfd from elsewhere, such as `SO_PEERPIDFD`. Its number comes from the field `Pid:` of the pidfd's
    /// /proc/self/fdinfo.
    ///
    /// `ESRCH` if the process was waited for already, or is not visible from this PID namespace: it has no number then.
    /// `InvalidData` if the descriptor is no pidfd.
    pub fn from_pidfd(process: OwnedFd) -> io::Result<Pinned> {
        let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
        let text = read_to_string(Path::new(&path))?;
        let Some(number) = text.lines().find_map(|line| line.strip_prefix("Pid:")) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{path} has no field `Pid:`")));
        };
        // -1: waited for. 0: in no namespace that this one can see.
        let pid = number.trim().parse().ok().filter(|pid| *pid > 0).ok_or_else(gone)?;
        Ok(Pinned { process, pid })
    }

    /// Its number. Another process may have it once [`Pinned::is_running`] is false.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs: a pidfd polls as readable once every thread has ended. While it runs, its number is its own.
    pub fn is_running(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.process, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut polled, Some(&at_once)) {
                Ok(ready) => return Ok(ready == 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether a thread number belongs to this process now. Sends nothing: signal 0 only looks the thread up.
    pub fn has_thread(&self, tid: u32) -> io::Result<bool> {
        let number = |id: u32| libc::pid_t::try_from(id).map_err(|_| gone());
        // SAFETY: numbers in, a number out.
        let found = unsafe { libc::syscall(libc::SYS_tgkill, number(self.pid)?, number(tid)?, 0) };
        let error = if found == 0 { None } else { Some(io::Error::last_os_error()) };
        match error.as_ref().and_then(io::Error::raw_os_error) {
            Some(libc::ESRCH) => Ok(false),
            // The kernel looks the thread up before it checks permission. The pidfd is polled last: only then was the
            // process's number its own while the thread was looked up.
            None | Some(libc::EPERM) => self.is_running(),
            Some(_) => Err(error.unwrap_or_else(gone)),
        }
    }

    /// Sends it a signal. Errors are the kernel's: `ESRCH` if it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if is_on() {
            ask(Kind::Signal, About::Process(self.pid), signal.as_raw().to_string()).passed()?;
        }
        Ok(pidfd_send_signal(&self.process, signal)?)
    }

    /// Becomes readable when it ends.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.process
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn a_pidfd_from_elsewhere_knows_its_process_until_that_is_waited_for() {
        let mut child = sleeper();
        let original = Pinned::of(child.id()).unwrap();
        let copy = || original.process.as_fd().try_clone_to_owned().unwrap();
        let pinned = Pinned::from_pidfd(copy()).unwrap();
        assert_eq!(pinned.pid(), child.id());
        assert!(pinned.is_running().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!pinned.is_running().unwrap());
        assert_eq!(Pinned::from_pidfd(copy()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Pinned::from_pidfd(file.into()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn threads_belong_to_their_process_alone() {
        let mut child = sleeper();
        let (own, other) = (Pinned::of(std::process::id()).unwrap(), Pinned::of(child.id()).unwrap());
        let tid = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        assert!(own.has_thread(tid).unwrap() && own.has_thread(own.pid()).unwrap());
        assert!(!other.has_thread(tid).unwrap() && other.has_thread(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!other.has_thread(other.pid()).unwrap());
    }
}
