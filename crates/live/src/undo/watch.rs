//! For how long the caretaker waits for the daemon's next beat.
//!
//! Hysteresis: a daemon that is neither stopped nor traced may just be slow, on a machine that is short of everything. After each
//! time that it was waited for in vain, it is given twice as long, up to [`PATIENCE_MAX`], until it has beaten in time for
//! [`TRUST_AGAIN`]. So the two do not stop and continue the same processes in turn.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::lifeline::{PATIENCE_NS, REST};
use crate::observe::process::{ProcFs, ThreadState};

const PATIENCE: Duration = Duration::from_nanos(PATIENCE_NS);
const PATIENCE_MAX: Duration = Duration::from_secs(12);
const TRUST_AGAIN: Duration = Duration::from_secs(60);

/// The caretaker's watch over a daemon.
#[derive(Debug)]
pub(super) struct Watch {
    daemon: u32,
    patience: Duration,
    /// When the next beat is due at the latest; `None` while nobody is stopped, or all were continued.
    due: Option<Instant>,
    opened_at: Option<Instant>,
}

impl Watch {
    /// Over the process of that number.
    pub(super) fn of(daemon: u32) -> Watch {
        Watch { daemon, patience: PATIENCE, due: None, opened_at: None }
    }

    /// How long to wait; `None` for as long as it takes.
    pub(super) fn time_left(&self, now: Instant) -> Option<Timespec> {
        let left = self.due?.saturating_duration_since(now);
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }

    /// The daemon wrote this.
    pub(super) fn hear(&mut self, bytes: &[u8], now: Instant) {
        let is_trusted = |at: Instant| now.saturating_duration_since(at) >= TRUST_AGAIN;
        if self.opened_at.is_some_and(is_trusted) {
            (self.patience, self.opened_at) = (PATIENCE, None);
        }
        // Of several at once, the last says how it is now.
        self.due = (bytes.last() != Some(&REST)).then(|| now + self.patience);
    }

    /// No beat came, and what was stopped was continued. It is not looked at again before the daemon turns.
    pub(super) fn opened(&mut self, now: Instant) {
        let stat = ProcFs::open(Path::new("/proc")).and_then(|mut procfs| procfs.stat(self.daemon));
        let stat = stat.ok().flatten();
        self.open(
            now,
            stat.is_some_and(|stat| matches!(stat.state, ThreadState::Stopped | ThreadState::Traced)),
        );
    }

    fn open(&mut self, now: Instant, is_stopped: bool) {
        (self.due, self.opened_at) = (None, Some(now));
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
    fn a_slow_daemon_is_given_more_time_and_a_stopped_one_is_not() {
        let begin = Instant::now();
        let mut watch = Watch::of(1);
        let left = |watch: &Watch, now| watch.time_left(now).map(|left| (left.tv_sec, left.tv_nsec));
        assert_eq!(left(&watch, begin), None);
        watch.hear(&[WATCH], begin);
        assert_eq!(left(&watch, begin), Some((1, 500_000_000)));
        watch.open(begin, true);
        assert_eq!(left(&watch, begin), None, "once, until it beats again");
        watch.hear(&[WATCH], begin);
        assert_eq!(left(&watch, begin), Some((1, 500_000_000)));
        for seconds in [3, 6, 12, 12] {
            watch.open(begin, false);
            watch.hear(&[REST, WATCH], begin);
            assert_eq!(left(&watch, begin), Some((seconds, 0)));
        }
        watch.hear(&[WATCH], begin + TRUST_AGAIN / 2);
        assert_eq!(left(&watch, begin + TRUST_AGAIN / 2), Some((12, 0)));
        let later = begin + TRUST_AGAIN;
        watch.hear(&[WATCH], later);
        assert_eq!(left(&watch, later), Some((1, 500_000_000)));
        watch.hear(&[WATCH, REST], later);
        assert_eq!(left(&watch, later), None);
    }
}
