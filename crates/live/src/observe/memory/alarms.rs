//! Waking the daemon when a unit that lends meets its bound.
//!
//! A daemon that looks five times a second would let an owner wait for up to 200 ms. The kernel tells sooner. A
//! program that polls a cgroup's memory.events.local is woken when the cgroup is held at memory.high, at most once in
//! 10 ms. All such files are in one epoll set, whose descriptor the daemon waits for beside its others.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{Timespec, epoll};

use super::source::Source;

/// The files that are waited for. Edges count: a file stays in the set without being read.
#[derive(Debug)]
pub(crate) struct Alarms {
    epoll: OwnedFd,
    watched: BTreeSet<PathBuf>,
    rung: bool,
}

impl Alarms {
    /// None yet; nothing at all where the kernel refuses, so that only the clock wakes the daemon.
    pub(crate) fn new() -> Option<Alarms> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        Some(Alarms { epoll, watched: BTreeSet::new(), rung: false })
    }

    /// Waits for a cgroup's events, or no longer.
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

    /// A cgroup's files were closed, which takes them out of the set.
    pub(crate) fn forget(&mut self, dir: &std::path::Path) {
        self.watched.remove(dir);
    }

    /// Becomes readable when somebody meets a bound.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes in what happened, so that the descriptor is quiet until something else does.
    pub(crate) fn hear(&mut self) {
        let mut events = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now))
            .is_ok_and(|n| n > 0)
        {
            self.rung = true;
            events.clear();
        }
    }

    /// Whether something happened since the last call.
    pub(crate) fn take(&mut self) -> bool {
        self.hear();
        std::mem::take(&mut self.rung)
    }
}
