//! Wakes the daemon when a unit that lends reaches its bound.
//!
//! With five samples a second, an owner could wait for up to 200 ms. The kernel notifies sooner: a poll of a cgroup's
//! memory.events.local wakes up when the cgroup is throttled at memory.high, at most once in 10 ms. All such files are in one
//! epoll set, and the daemon waits for its descriptor along with its others.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{Timespec, epoll};

use super::source::Source;

/// The watched files. Edge-triggered: after an event, a file need not be read before the next.
#[derive(Debug)]
pub(crate) struct Alarms {
    epoll: OwnedFd,
    watched: BTreeSet<PathBuf>,
    rung: bool,
}

impl Alarms {
    /// Without watched files. `None` if the kernel refuses; then only the timer wakes the daemon.
    pub(crate) fn new() -> Option<Alarms> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        Some(Alarms { epoll, watched: BTreeSet::new(), rung: false })
    }

    /// Starts or stops watching a cgroup's events.
    pub(crate) fn watch(&mut self, dir: &std::path::Path, events: &Source, on: bool) {
        if on == self.watched.contains(dir) {
            return;
        }
        if on {
            let (data, flags) =
                (epoll::EventData::new_u64(0), epoll::EventFlags::PRI | epoll::EventFlags::ET);
            if epoll::add(&self.epoll, events.file(), data, flags).is_ok() {
                self.watched.insert(dir.to_owned());
            }
        } else {
            let _ = epoll::delete(&self.epoll, events.file());
            self.watched.remove(dir);
        }
    }

    /// Records that a cgroup's files were closed, which removes them from the set.
    pub(crate) fn forget(&mut self, dir: &std::path::Path) {
        self.watched.remove(dir);
    }

    /// Becomes readable when a watched cgroup reaches its bound.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Consumes pending events, so that the descriptor is not readable until the next one.
    pub(crate) fn drain(&mut self) {
        let mut events = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now))
            .is_ok_and(|n| n > 0)
        {
            self.rung = true;
            events.clear();
        }
    }

    /// Whether an event occurred since the last call.
    pub(crate) fn take(&mut self) -> bool {
        self.drain();
        std::mem::take(&mut self.rung)
    }
}
