//! Decides when to load a scheduler again that the kernel ended or refused.
//!
//! Problem: the cause of a failure (a task that waited too long, a bug) may recur at once, and every loading
//! and every end of a scheduler disturbs all tasks of the machine. But a failure once a month should not
//! leave the machine without the scheduler.
//!
//! Algorithm: each consecutive failure is followed by the next of the pauses [`PAUSES_NS`]. The first failure
//! after the last pause is final: the scheduler is given up. If the scheduler runs for [`QUIET_NS`] without a
//! failure, the pauses begin again with the first.

use commonhold_policy::Time;

const SECOND: Time = 1_000_000_000;

/// The pause after each consecutive failure. The failure after the last pause is final.
const PAUSES_NS: [Time; 4] = [SECOND, 4 * SECOND, 16 * SECOND, 60 * SECOND];

/// The time without a failure after which earlier failures do not count any more.
const QUIET_NS: Time = 600 * SECOND;

/// The state of the back-off.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The number of consecutive failures.
    failures: usize,
    /// When the scheduler was attached; `None` if it is not.
    attached_since: Option<Time>,
}

impl Backoff {
    /// Notes that the scheduler was attached.
    pub(super) fn attached(&mut self, now: Time) {
        self.attached_since = Some(now);
    }

    /// Notes that the scheduler ended or could not be loaded. Returns when to retry; `None` if the scheduler
    /// is given up.
    pub(super) fn failed(&mut self, now: Time) -> Option<Time> {
        if self.attached_since.take().is_some_and(|since| now.saturating_sub(since) >= QUIET_NS) {
            self.failures = 0;
        }
        let pause = *PAUSES_NS.get(self.failures)?;
        self.failures += 1;
        Some(now.saturating_add(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_the_fifth_failure_is_the_last() {
        let mut backoff = Backoff::default();
        let mut now = 0;
        for pause in [1, 4, 16, 60] {
            backoff.attached(now);
            now += SECOND;
            assert_eq!(backoff.failed(now), Some(now + pause * SECOND));
        }
        assert_eq!(backoff.failed(now), None);
        // It stays given up.
        assert_eq!(backoff.failed(now + 2 * QUIET_NS), None);
    }

    #[test]
    fn ten_quiet_minutes_forgive() {
        let mut backoff = Backoff::default();
        backoff.failed(0);
        backoff.failed(0);
        backoff.attached(SECOND);
        assert_eq!(backoff.failed(QUIET_NS), Some(QUIET_NS + 16 * SECOND), "a second short of ten minutes");
        backoff.attached(QUIET_NS);
        assert_eq!(backoff.failed(2 * QUIET_NS), Some(2 * QUIET_NS + SECOND));
    }
}
