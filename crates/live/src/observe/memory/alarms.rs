//! Wakes the daemon when a unit that lends reaches its bound.
//!
//! With five samples a second, the unit, which owns the memory lent, could wait for up to 200 ms. The kernel
//! notifies sooner: a poll of a cgroup's memory.events.local wakes up when the cgroup is throttled at
//! memory.high, at most once in 10 ms. The files of all lending units are in one epoll set, and the daemon's
//! loop also waits for the descriptor of that set.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{Timespec, epoll};

use super::source::Source;

/// The watched files. Edge-triggered: after an event, a file need not be read to get the next event.
#[derive(Debug)]
pub(crate) struct Alarms {
    epoll: OwnedFd,
    /// The folders of the cgroups whose events are watched.
    watched: BTreeSet<PathBuf>,
    /// An event occurred since the last [`Alarms::take`].
    has_rung: bool,
}

impl Alarms {
    /// An empty set. `None` if the kernel refuses to make one; then only the timer wakes the daemon.
    pub(crate) fn new() -> Option<Alarms> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        Some(Alarms { epoll, watched: BTreeSet::new(), has_rung: false })
    }

    /// Starts (`on`) or stops watching a cgroup, given by its folder and its open events file.
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
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        while epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&no_wait))
            .is_ok_and(|n| n > 0)
        {
            self.has_rung = true;
            events.clear();
        }
    }

    /// Whether an event occurred since the last call.
    pub(crate) fn take(&mut self) -> bool {
        self.drain();
        std::mem::take(&mut self.has_rung)
    }
}
