//! Processes pinned by a pidfd.
//!
//! The kernel reuses the id of a process once its parent has waited for it, and the id of a thread once the
//! thread has ended. A pidfd always refers to the process for which it was opened. So there are three kinds
//! of calls:
//!
//! - Signals and `process_madvise(2)` take the pidfd itself, and never reach another process.
//! - Open files of /proc always refer to one process, like a pidfd.
//! - All other calls take only ids. Here [`Pinned::is_running`] and [`Pinned::has_thread`] show *after* a
//!   call whether the id referred to the pinned process during the call: a process that has lost its id never
//!   gets the id back.
//!
//! Source: `pidfd_open(2)`; `pidfd_poll()` and `pidfd_show_fdinfo()` of the kernel's fs/pidfs.c and
//! kernel/fork.c.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::files::read_to_string;
use super::tamper::{About, Kind, ask, has_hook, pass};

/// A process pinned by its pidfd.
#[derive(Debug)]
pub struct Pinned {
    pub(super) process: OwnedFd,
    pub(super) pid: u32,
}

impl Pinned {
    /// Pins the process that has this pid now. A caller must check *afterwards*, by the start time, which
    /// process that is; [`pin`](crate::observe::process::pin) does both.
    ///
    /// Errors are the kernel's: `ESRCH` if there is no such process.
    pub fn of(pid: u32) -> io::Result<Pinned> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(gone)?;
        pass(Kind::Pin, About::Process(pid))?;
        Ok(Pinned { process: pidfd_open(number, PidfdFlags::empty())?, pid })
    }

    /// Takes over a pidfd from elsewhere, such as `SO_PEERPIDFD`. Its pid comes from the field `Pid:` in the
    /// pidfd's /proc/self/fdinfo.
    ///
    /// `ESRCH` if the process was already waited for, or is not visible in this PID namespace: it then has no
    /// pid. `InvalidData` if the descriptor is not a pidfd.
    pub fn from_pidfd(process: OwnedFd) -> io::Result<Pinned> {
        let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
        let text = read_to_string(Path::new(&path))?;
        let Some(number) = text.lines().find_map(|line| line.strip_prefix("Pid:")) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{path} has no field `Pid:`")));
        };
        // -1: already waited for. 0: not visible in this namespace.
        let pid = number.trim().parse().ok().filter(|pid| *pid > 0).ok_or_else(gone)?;
        Ok(Pinned { process, pid })
    }

    /// Its pid. Another process may have it once [`Pinned::is_running`] is false.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process still runs: a pidfd polls as readable once every thread has ended. While the
    /// process runs, no other process has its pid.
    pub fn is_running(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.process, PollFlags::IN)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut polled, Some(&no_wait)) {
                Ok(ready) => return Ok(ready == 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether a thread id belongs to this process now. Sends no signal: signal 0 only looks the thread up.
    pub fn has_thread(&self, tid: u32) -> io::Result<bool> {
        let number = |id: u32| libc::pid_t::try_from(id).map_err(|_| gone());
        // SAFETY: the call takes and returns only numbers.
        let status = unsafe { libc::syscall(libc::SYS_tgkill, number(self.pid)?, number(tid)?, 0) };
        let error = if status == 0 { None } else { Some(io::Error::last_os_error()) };
        match error.as_ref().and_then(io::Error::raw_os_error) {
            Some(libc::ESRCH) => Ok(false),
            // The kernel looks the thread up before it checks permission. The pidfd is polled last, which
            // proves that no other process had the pid during the lookup.
            None | Some(libc::EPERM) => self.is_running(),
            Some(_) => Err(error.unwrap_or_else(gone)),
        }
    }

    /// Sets a property of one of its threads that the kernel sets by thread id only and that children
    /// inherit: the affinity, or an I/O priority. `ESRCH` if the thread has ended, or if another process had
    /// its id at any time before this returned.
    ///
    /// The thread is looked up before the call, so that a thread that already reuses the id is never touched.
    /// It is looked up again after the call. If another thread got the id in between, it also started in
    /// between, so it had inherited its previous value from its creator: it gets its creator's value.
    /// `is_ours` recognises the value that was set, which the kernel may have adjusted.
    pub(crate) fn give<V>(
        &self,
        tid: u32,
        value: &V,
        (get, set): (Get<V>, Set<V>),
        is_ours: impl Fn(&V) -> bool,
    ) -> io::Result<()> {
        if !self.has_thread(tid)? {
            return Err(gone());
        }
        set(tid, value)?;
        if self.has_thread(tid)? {
            return Ok(());
        }
        restore_inherited(tid, (get, set), is_ours)?;
        Err(gone())
    }

    /// Sends a signal to the process. Errors are the kernel's: `ESRCH` if it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if has_hook() {
            ask(Kind::Signal, About::Process(self.pid), signal.as_raw().to_string()).passed()?;
        }
        Ok(pidfd_send_signal(&self.process, signal)?)
    }

    /// The pidfd, which becomes readable when the process ends.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.process
    }
}

/// Reads a value of a thread by its id.
type Get<V> = fn(u32) -> io::Result<V>;
/// Sets a value of a thread by its id.
type Set<V> = fn(u32, &V) -> io::Result<()>;

/// Restores the inherited value of a thread that reused an id, if it has our value now.
fn restore_inherited<V>(
    tid: u32,
    (get, set): (Get<V>, Set<V>),
    is_ours: impl Fn(&V) -> bool,
) -> io::Result<()> {
    let Some((process, creator)) = creator_of(tid) else { return Ok(()) };
    let restored = Pinned::of(process).and_then(|new_process| {
        if !new_process.has_thread(tid)? || !is_ours(&get(tid)?) {
            return Ok(());
        }
        // If the creator has ended or is in another PID namespace, the value of process 1 is the best guess.
        let inherited = get(creator).or_else(|_| get(1))?;
        set(tid, &inherited)
    });
    match restored {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        restored => restored,
    }
}

/// The process of a thread, and the thread whose values it probably inherited: the first thread of its
/// process or, for a first thread, of the parent process.
fn creator_of(tid: u32) -> Option<(u32, u32)> {
    let text = read_to_string(Path::new(&format!("/proc/{tid}/status"))).ok()?;
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
    let process = field("Tgid:")?;
    Some((process, if process == tid { field("PPid:")? } else { process }))
}

/// The error of a process or thread that has ended.
fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Answer, affinity, tamper};
    use super::*;
    use commonhold_machine::CpuSet;
    use std::cell::RefCell;
    use std::os::fd::AsFd;
    use std::process::{Child, Command};
    use std::rc::Rc;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn a_pidfd_from_elsewhere_has_a_pid_until_its_process_is_waited_for() {
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

    /// Sets the pid of the next process to start, which must be free.
    fn next_number(pid: u32) -> io::Result<()> {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
    }

    /// Ends a process and starts another with its pid; `None` if this test may not choose pids.
    fn reuse(child: &mut Child) -> Option<Child> {
        child.kill().and_then(|()| child.wait()).unwrap();
        for _ in 0..100 {
            next_number(child.id()).ok()?;
            let mut other = sleeper();
            if other.id() == child.id() {
                return Some(other);
            }
            other.kill().and_then(|()| other.wait()).unwrap();
        }
        None
    }

    /// Fails if the thread is not looked up again after the call: the pid is reused right before the system
    /// call, and the new process keeps the CPU that was meant for the other.
    #[test]
    fn a_process_that_reuses_a_pid_during_a_call_gets_its_value_back() {
        let all = affinity::get(0).unwrap();
        let one: CpuSet = all.iter().take(1).collect();
        let (mut first, second) = (sleeper(), Rc::new(RefCell::new(None)));
        let pid = first.id();
        let pinned = Pinned::of(pid).unwrap();
        let (reused, mut done) = (Rc::clone(&second), false);
        let hook = tamper(move |access| {
            if access.kind == Kind::SetAffinity && !std::mem::replace(&mut done, true) {
                *reused.borrow_mut() = reuse(&mut first);
            }
            Answer::GoOn
        });
        let given = pinned.give(pid, &one, (affinity::get, affinity::set), |now| *now == one);
        drop(hook);
        assert_eq!(given.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let Some(mut second) = second.borrow_mut().take() else {
            println!("not run: pids cannot be chosen here (CAP_CHECKPOINT_RESTORE)");
            return;
        };
        assert_eq!(affinity::get(pid).unwrap(), all);
        second.kill().and_then(|()| second.wait()).unwrap();
    }

    #[test]
    fn a_pid_that_another_process_already_has_is_not_touched() {
        let (mut first, mut second) = (sleeper(), sleeper());
        let pinned = Pinned::of(first.id()).unwrap();
        let one: CpuSet = affinity::get(0).unwrap().iter().take(1).collect();
        let before = affinity::get(second.id()).unwrap();
        let _hook = tamper(|access| {
            assert_ne!(access.kind, Kind::SetAffinity, "nothing is set");
            Answer::GoOn
        });
        let given = pinned.give(second.id(), &one, (affinity::get, affinity::set), |_| true);
        assert_eq!(given.unwrap_err().raw_os_error(), Some(libc::ESRCH), "not one of its threads");
        assert_eq!(affinity::get(second.id()).unwrap(), before);
        for child in [&mut first, &mut second] {
            child.kill().and_then(|()| child.wait()).unwrap();
        }
    }

    #[test]
    fn a_thread_belongs_to_its_process_only() {
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
