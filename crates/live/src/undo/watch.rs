//! The caretaker's watchdog: how long it waits for the daemon's next heartbeat.
//!
//! Problem: a daemon that misses a heartbeat, and is neither stopped nor traced, may just be slow on an
//! overloaded machine. With a fixed time limit, daemon and caretaker could stop and continue the same
//! processes in turn.
//!
//! Algorithm: each heartbeat that such a daemon misses doubles the time limit (exponential back-off), up to
//! [`PATIENCE_MAX`]. After [`TRUST_AGAIN`] without a miss the limit is reset.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::lifeline::{PATIENCE_NS, REST};
use crate::observe::process::{ProcFs, ThreadState};

/// The initial time limit.
const PATIENCE: Duration = Duration::from_nanos(PATIENCE_NS);
/// The longest time limit.
const PATIENCE_MAX: Duration = Duration::from_secs(12);
/// The time without a miss after which the limit is reset.
const TRUST_AGAIN: Duration = Duration::from_secs(60);

/// The watchdog over a daemon.
#[derive(Debug)]
pub(super) struct Watch {
    /// The daemon's process number.
    daemon: u32,
    /// The present time limit.
    patience: Duration,
    /// The deadline of the next heartbeat; `None` while no process is stopped, or after all were continued.
    deadline: Option<Instant>,
    /// When the last miss was; `None` if the time limit is the initial one.
    missed_at: Option<Instant>,
}

impl Watch {
    /// A watchdog over the daemon with this process number, disarmed until the first heartbeat.
    pub(super) fn over(daemon: u32) -> Watch {
        Watch { daemon, patience: PATIENCE, deadline: None, missed_at: None }
    }

    /// The time until the deadline, for `poll`; `None`, which waits without a timeout, while there is no
    /// deadline.
    pub(super) fn time_left(&self, now: Instant) -> Option<Timespec> {
        let time_left = self.deadline?.saturating_duration_since(now);
        Some(Timespec {
            tv_sec: i64::try_from(time_left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time_left.subsec_nanos().into(),
        })
    }

    /// Sets the next deadline, or disarms the watchdog, by the bytes that the daemon wrote: heartbeats, or
    /// the end of the watch.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Instant) {
        let is_long_ago = |missed_at: Instant| now.saturating_duration_since(missed_at) >= TRUST_AGAIN;
        if self.missed_at.is_some_and(is_long_ago) {
            (self.patience, self.missed_at) = (PATIENCE, None);
        }
        // Only the last byte says whether any process is stopped now.
        self.deadline = (bytes.last() != Some(&REST)).then(|| now + self.patience);
    }

    /// Records that the deadline passed and the stopped processes were continued. Disarms the watchdog until
    /// the daemon's next heartbeat, and doubles the time limit unless the daemon is stopped or traced.
    pub(super) fn missed(&mut self, now: Instant) {
        let stat = ProcFs::open(Path::new("/proc")).and_then(|mut procfs| procfs.stat(self.daemon));
        let stat = stat.ok().flatten();
        self.disarm(
            now,
            stat.is_some_and(|stat| matches!(stat.state, ThreadState::Stopped | ThreadState::Traced)),
        );
    }

    fn disarm(&mut self, now: Instant, is_stopped: bool) {
        (self.deadline, self.missed_at) = (None, Some(now));
        if !is_stopped {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::lifeline::WATCH;
    use super::*;

    #[test]
    fn a_slow_daemon_gets_more_time_and_a_stopped_one_does_not() {
        let begin = Instant::now();
        let mut watch = Watch::over(1);
        let left = |watch: &Watch, now| watch.time_left(now).map(|left| (left.tv_sec, left.tv_nsec));
        assert_eq!(left(&watch, begin), None);
        watch.receive(&[WATCH], begin);
        assert_eq!(left(&watch, begin), Some((1, 500_000_000)));
        watch.disarm(begin, true);
        assert_eq!(left(&watch, begin), None, "disarmed until the next heartbeat");
        watch.receive(&[WATCH], begin);
        assert_eq!(left(&watch, begin), Some((1, 500_000_000)));
        for seconds in [3, 6, 12, 12] {
            watch.disarm(begin, false);
            watch.receive(&[REST, WATCH], begin);
            assert_eq!(left(&watch, begin), Some((seconds, 0)));
        }
        watch.receive(&[WATCH], begin + TRUST_AGAIN / 2);
        assert_eq!(left(&watch, begin + TRUST_AGAIN / 2), Some((12, 0)));
        let later = begin + TRUST_AGAIN;
        watch.receive(&[WATCH], later);
        assert_eq!(left(&watch, later), Some((1, 500_000_000)));
        watch.receive(&[WATCH, REST], later);
        assert_eq!(left(&watch, later), None);
    }
}
