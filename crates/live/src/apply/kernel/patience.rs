//! When to load the scheduler again that the kernel ended, or did not take.
//!
//! Problem: the cause that ended it once (a task that waited too long, a bug) may end it again at once. Every load and
//! end disturbs all tasks of the machine. But a failure once a month should not leave the machine without the
//! scheduler.
//!
//! Algorithm: pauses grow, one after each failure. There is none after the last: then the scheduler is given up. After
//! [`QUIET_NS`] of scheduling without a failure, the pauses start anew.

use commonhold_policy::Time;

const SECOND: Time = 1_000_000_000;

/// How long to wait after each failure in a row; after one more there is no other attempt.
const PAUSES_NS: [Time; 4] = [SECOND, 4 * SECOND, 16 * SECOND, 60 * SECOND];

/// After so long without a failure, earlier ones are forgotten.
const QUIET_NS: Time = 600 * SECOND;

/// Failures so far, in a row.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failures: usize,
    works_since: Option<Time>,
}

impl Patience {
    /// It schedules, from now on.
    pub(super) fn works(&mut self, now: Time) {
        self.works_since = Some(now);
    }

    /// It ended, or could not be loaded: when to try again; `None` if it is given up.
    pub(super) fn failed(&mut self, now: Time) -> Option<Time> {
        if self.works_since.take().is_some_and(|since| now.saturating_sub(since) >= QUIET_NS) {
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
        let mut patience = Patience::default();
        let mut now = 0;
        for pause in [1, 4, 16, 60] {
            patience.works(now);
            now += SECOND;
            assert_eq!(patience.failed(now), Some(now + pause * SECOND));
        }
        assert_eq!(patience.failed(now), None);
        // Given up is given up, however long ago.
        assert_eq!(patience.failed(now + 2 * QUIET_NS), None);
    }

    #[test]
    fn ten_quiet_minutes_forgive() {
        let mut patience = Patience::default();
        patience.failed(0);
        patience.failed(0);
        patience.works(SECOND);
        assert_eq!(patience.failed(QUIET_NS), Some(QUIET_NS + 16 * SECOND), "a second short of ten minutes");
        patience.works(QUIET_NS);
        assert_eq!(patience.failed(2 * QUIET_NS), Some(2 * QUIET_NS + SECOND));
    }
}
