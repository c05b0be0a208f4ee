//! The pipe from the daemon to its caretaker. End of file means that the daemon has ended; bytes are
//! heartbeats.
//!
//! Problem: a daemon that is itself stopped (SIGSTOP, a debugger), or hangs, does not continue the processes
//! that it stopped.
//!
//! Algorithm: before the first process is stopped, the daemon starts the caretaker's watchdog ([`WATCH`]).
//! From then on each iteration of the daemon's loop writes a heartbeat, at most one in [`BEAT_NS`]. When no
//! process is stopped any more, the daemon ends the watchdog ([`REST`]). So a caretaker without a running
//! watchdog sleeps without a timeout, and nothing is written while no process is stopped.
//!
//! Properties: the daemon never waits for its caretaker. If the pipe is full, the caretaker has enough
//! heartbeats to read.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use commonhold_policy::Time;

use crate::host::clock;

/// A process is stopped, or about to be: the next heartbeat is due within [`PATIENCE_NS`].
pub(super) const WATCH: u8 = b'w';
/// No process is stopped.
pub(super) const REST: u8 = b'r';

/// The minimum interval between two heartbeats (a rate limit).
const BEAT_NS: Time = 250_000_000;

/// How long the caretaker waits for a heartbeat. Even if scans take long, iterations of the daemon's loop are
/// at most a second apart, so that heartbeats are at most a second plus [`BEAT_NS`] apart. Processes that a
/// stalled daemon has stopped run again within two seconds.
pub(super) const PATIENCE_NS: Time = 1_500_000_000;

/// After a gap of this length between two iterations, the caretaker may have continued the stopped processes.
const GAP_NS: Time = 1_000_000_000;

/// The daemon's end of the pipe. Dropping it makes the caretaker undo everything.
#[derive(Debug)]
pub(super) struct Lifeline(Arc<Mutex<Line>>);

/// A handle for sending heartbeats, for the code that stops processes. A handle does not keep the pipe open,
/// since that would delay undoing.
#[derive(Debug, Clone, Default)]
pub struct Beats(Weak<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    pipe: OwnedFd,
    /// Whether the caretaker's watchdog runs.
    watched: bool,
    /// When a byte was last written.
    written_at: Time,
    /// When the last iteration of the daemon's loop began.
    iterated_at: Time,
}

impl Lifeline {
    /// Takes the write end, which must not block.
    pub(super) fn new(pipe: OwnedFd) -> Lifeline {
        let now = clock::now();
        Lifeline(Arc::new(Mutex::new(Line { pipe, watched: false, written_at: now, iterated_at: now })))
    }

    /// A handle for sending heartbeats.
    pub(super) fn beats(&self) -> Beats {
        Beats(Arc::downgrade(&self.0))
    }

    /// Switches to the pipe of another caretaker. Existing [`Beats`] send heartbeats to that caretaker from
    /// now on.
    pub(super) fn move_to(&self, other: Lifeline) {
        if let Ok(line) = Arc::try_unwrap(other.0) {
            let mut next = line.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut line = locked(&self.0);
            // At once, because the daemon may stall before its next iteration.
            if line.watched {
                next.watched = true;
                next.write(WATCH);
            }
            *line = next;
        }
    }
}

impl Beats {
    /// Starts the caretaker's watchdog: a process is about to be stopped.
    pub(crate) fn watch(&self) {
        if let Some(line) = self.0.upgrade() {
            let mut line = locked(&line);
            if !line.watched {
                line.watched = true;
                line.write(WATCH);
            }
        }
    }

    /// Sends a heartbeat if one is due. Call this in each iteration of the daemon's loop; `stops` says
    /// whether any process is stopped. Returns whether the previous iteration was so long ago that the
    /// caretaker may have continued the stopped processes, so that the daemon must stop them again.
    pub(crate) fn beat(&self, stops: bool) -> bool {
        let Some(line) = self.0.upgrade() else { return false };
        let mut line = locked(&line);
        let now = clock::now();
        let has_stalled = stops && now.saturating_sub(line.iterated_at) >= GAP_NS;
        line.iterated_at = now;
        let is_due = !line.watched || now.saturating_sub(line.written_at) >= BEAT_NS;
        if stops && is_due {
            line.write(WATCH);
        } else if !stops && line.watched {
            line.write(REST);
        }
        line.watched = stops;
        has_stalled
    }
}

impl Line {
    fn write(&mut self, byte: u8) {
        self.written_at = clock::now();
        // Errors are ignored. If the pipe is full, the caretaker has heartbeats to read. If the pipe is
        // broken, the caretaker has ended, of which the daemon's event loop learns by itself.
        let _ = rustix::io::write(&self.pipe, &[byte]);
    }
}

fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pipe() -> (OwnedFd, Lifeline) {
        let (theirs, ours) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        (theirs, Lifeline::new(ours))
    }

    fn received(pipe: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; 64];
        rustix::io::read(pipe, &mut bytes).map_or(Vec::new(), |length| bytes[..length].to_vec())
    }

    #[test]
    fn heartbeats_are_sent_only_while_processes_are_stopped() {
        let (theirs, lifeline) = pipe();
        let beats = lifeline.beats();
        assert!(!beats.beat(false) && received(&theirs).is_empty());
        beats.watch();
        beats.watch();
        assert!(!beats.beat(true));
        assert_eq!(received(&theirs), [WATCH], "a heartbeat so soon after the first is left out");
        locked(&lifeline.0).written_at -= BEAT_NS;
        beats.beat(true);
        beats.beat(false);
        beats.beat(false);
        assert_eq!(received(&theirs), [WATCH, REST]);
    }

    #[test]
    fn a_turn_after_a_gap_is_reported() {
        let (_theirs, lifeline) = pipe();
        let beats = lifeline.beats();
        assert!(!beats.beat(true));
        locked(&lifeline.0).iterated_at -= GAP_NS;
        assert!(beats.beat(true) && !beats.beat(true));
    }

    #[test]
    fn another_caretaker_takes_over_the_watch_and_a_gone_one_is_no_error() {
        let (_, lifeline) = pipe();
        let beats = lifeline.beats();
        beats.watch();
        let (next, other) = pipe();
        lifeline.move_to(other);
        beats.beat(true);
        assert_eq!(received(&next), [WATCH]);
        drop(lifeline);
        assert_eq!(rustix::io::read(&next, &mut [0; 1]), Ok(0), "the end is seen while there are handles");
        assert!(!beats.beat(true));
    }
}
