//! The pipe from the daemon to its caretaker. Its end is the daemon's end; what is written to it says that the daemon turns.
//!
//! Problem: a daemon that is itself stopped (SIGSTOP, a debugger), or hangs, continues nobody whom it has stopped.
//!
//! Algorithm: before anybody is stopped, the daemon has the caretaker watch it ([`WATCH`]). From then on each turn writes a beat,
//! one in [`BEAT_NS`] at most. Once nobody is stopped any more, it has the caretaker rest ([`REST`]). So a caretaker that has
//! nobody to continue sleeps without a time limit, and nothing is written while nobody is stopped.
//!
//! Properties: the daemon never waits for its caretaker. If the pipe is full, the caretaker has beats enough to read.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use commonhold_policy::Time;

use crate::host::clock;

/// Somebody is about to be stopped, or is: the next beat is due within [`PATIENCE_NS`].
pub(super) const WATCH: u8 = b'w';
/// Nobody is stopped.
pub(super) const REST: u8 = b'r';

/// The least time between two beats.
const BEAT_NS: Time = 250_000_000;

/// How long the caretaker waits for a beat. Turns are a second apart at most where a look takes long; with the beats' distance
/// they are in time even so, and whoever is stopped by a daemon that makes none runs again within two seconds.
pub(super) const PATIENCE_NS: Time = 1_500_000_000;

/// A turn that comes so long after the one before: what was stopped may have been continued meanwhile.
const GAP_NS: Time = 1_000_000_000;

/// The daemon's end. Dropping it is the caretaker's signal to undo everything.
#[derive(Debug)]
pub(super) struct Lifeline(Arc<Mutex<Line>>);

/// A handle for whoever stops processes. It does not keep the pipe open.
#[derive(Debug, Clone, Default)]
pub struct Beats(Weak<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    pipe: OwnedFd,
    /// Whether the caretaker watches.
    watched: bool,
    written_at: Time,
    turned_at: Time,
}

impl Lifeline {
    /// Over this pipe, which is not to block.
    pub(super) fn new(pipe: OwnedFd) -> Lifeline {
        let now = clock::now();
        Lifeline(Arc::new(Mutex::new(Line { pipe, watched: false, written_at: now, turned_at: now })))
    }

    pub(super) fn beats(&self) -> Beats {
        Beats(Arc::downgrade(&self.0))
    }

    /// Goes on over the pipe of another caretaker. Whoever has [`Beats`] of this one beats there from now on.
    pub(super) fn move_to(&self, other: Lifeline) {
        if let Ok(line) = Arc::try_unwrap(other.0) {
            let mut next = line.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut line = locked(&self.0);
            // The daemon may make no further turn: whoever is stopped now is this one's to continue.
            if line.watched {
                next.watched = true;
                next.write(WATCH);
            }
            *line = next;
        }
    }
}

impl Beats {
    /// Has the caretaker watch from now on: somebody is about to be stopped.
    pub(crate) fn watch(&self) {
        if let Some(line) = self.0.upgrade() {
            let mut line = locked(&line);
            if !line.watched {
                line.watched = true;
                line.write(WATCH);
            }
        }
    }

    /// The daemon makes a turn; `stops`: whether anybody is stopped. Whether those may have been continued since the turn before,
    /// because that was long ago.
    pub(crate) fn turn(&self, stops: bool) -> bool {
        let Some(line) = self.0.upgrade() else { return false };
        let mut line = locked(&line);
        let now = clock::now();
        let gap = stops && now.saturating_sub(line.turned_at) >= GAP_NS;
        line.turned_at = now;
        let due = !line.watched || now.saturating_sub(line.written_at) >= BEAT_NS;
        if stops && due {
            line.write(WATCH);
        } else if !stops && line.watched {
            line.write(REST);
        }
        line.watched = stops;
        gap
    }
}

impl Line {
    fn write(&mut self, what: u8) {
        self.written_at = clock::now();
        // Full: there are beats to read. Broken: the daemon's event loop learns that the caretaker ended.
        let _ = rustix::io::write(&self.pipe, &[what]);
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

    fn said(pipe: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; 64];
        rustix::io::read(pipe, &mut bytes).map_or(Vec::new(), |length| bytes[..length].to_vec())
    }

    #[test]
    fn only_while_somebody_is_stopped_there_is_a_beat() {
        let (theirs, lifeline) = pipe();
        let beats = lifeline.beats();
        assert!(!beats.turn(false) && said(&theirs).is_empty());
        beats.watch();
        beats.watch();
        assert!(!beats.turn(true));
        assert_eq!(said(&theirs), [WATCH], "a beat so soon after the first is left out");
        locked(&lifeline.0).written_at -= BEAT_NS;
        beats.turn(true);
        beats.turn(false);
        beats.turn(false);
        assert_eq!(said(&theirs), [WATCH, REST]);
    }

    #[test]
    fn a_turn_after_a_gap_is_told() {
        let (_theirs, lifeline) = pipe();
        let beats = lifeline.beats();
        assert!(!beats.turn(true));
        locked(&lifeline.0).turned_at -= GAP_NS;
        assert!(beats.turn(true) && !beats.turn(true));
    }

    #[test]
    fn another_caretaker_is_told_and_a_gone_one_is_no_error() {
        let (_, lifeline) = pipe();
        let beats = lifeline.beats();
        beats.watch();
        let (next, other) = pipe();
        lifeline.move_to(other);
        beats.turn(true);
        assert_eq!(said(&next), [WATCH]);
        drop(lifeline);
        assert_eq!(rustix::io::read(&next, &mut [0; 1]), Ok(0), "the end is seen while there are handles");
        assert!(!beats.turn(true));
    }
}
