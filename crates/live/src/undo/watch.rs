//! How long the caretaker waits for the daemon's next heartbeat.
//!
//! Hysteresis: a daemon that is neither stopped nor traced may just be slow, on a machine that is short of everything. Each
//! missed heartbeat doubles its time limit, up to [`PATIENCE_MAX`]; after [`TRUST_AGAIN`] without a miss the limit is reset.
//! Otherwise daemon and caretaker would stop and continue the same processes in turn.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::lifeline::{PATIENCE_NS, REST};
use crate::observe::process::{ProcFs, ThreadState};

const PATIENCE: Duration = Duration::from_nanos(PATIENCE_NS);
const PATIENCE_MAX: Duration = Duration::from_secs(12);
const TRUST_AGAIN: Duration = Duration::from_secs(60);

/// The watchdog over a daemon.
#[derive(Debug)]
pub(super) struct Watch {
    daemon: u32,
    patience: Duration,
    /// The deadline of the next heartbeat; `None` while no process is stopped, or after all were continued.
    due: Option<Instant>,
    missed_at: Option<Instant>,
}

impl Watch {
    /// Watches the process with this number.
    pub(super) fn over(daemon: u32) -> Watch {
        Watch { daemon, patience: PATIENCE, due: None, missed_at: None }
    }

    /// The time until the deadline; `None` without one.
    pub(super) fn time_left(&self, now: Instant) -> Option<Timespec> {
        let left = self.due?.saturating_duration_since(now);
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }

    /// Takes in bytes that the daemon wrote.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Instant) {
        let is_trusted = |at: Instant| now.saturating_duration_since(at) >= TRUST_AGAIN;
        if self.missed_at.is_some_and(is_trusted) {
            (self.patience, self.missed_at) = (PATIENCE, None);
        }
        // The last byte has the current state.
        self.due = (bytes.last() != Some(&REST)).then(|| now + self.patience);
    }

    /// The deadline passed, and the stopped processes were continued. Disarmed until the daemon's next heartbeat.
    pub(super) fn missed(&mut self, now: Instant) {
        let stat = ProcFs::open(Path::new("/proc")).and_then(|mut procfs| procfs.stat(self.daemon));
        let stat = stat.ok().flatten();
        self.disarm(
            now,
            stat.is_some_and(|stat| matches!(stat.state, ThreadState::Stopped | ThreadState::Traced)),
        );
    }

    fn disarm(&mut self, now: Instant, is_stopped: bool) {
        (self.due, self.missed_at) = (None, Some(now));
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
