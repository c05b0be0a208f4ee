//! CPU time of a unit, combined from the kernel's count and our scheduler's.
//!
//! Problem: the kernel's count, cpu.stat, is exact but expensive to read. For each read, the kernel flushes
//! the counters of every CPU, under one lock for all control groups.
//!
//! Algorithm: cpu.stat is read every two seconds. In between, the growth of the scheduler's count since the
//! last read is added.
//!
//! Limits: our scheduler does not run real-time and deadline tasks, so their CPU time shows up to two seconds
//! late.

use commonhold_policy::Time;

/// The maximum age of the kernel's count, in nanoseconds.
const AGE_MAX: Time = 2_000_000_000;

/// The CPU time of a unit's own processes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// The last value that was reported.
    reported_ns: Time,
    last_read: Option<Counts>,
}

/// Both counts at the time of the last read of cpu.stat.
#[derive(Debug, Clone, Copy)]
struct Counts {
    at: Time,
    kernel_ns: Time,
    scheduler_ns: Time,
}

impl Usage {
    /// CPU time so far, which never decreases. `scheduler_ns` is the scheduler's count, if there is a
    /// scheduler; `read_kernel` reads the kernel's count. If neither is known, the last value is returned.
    pub(super) fn now(
        &mut self,
        now: Time,
        scheduler_ns: Option<Time>,
        read_kernel: impl FnOnce() -> Option<Time>,
    ) -> Time {
        let is_recent = |counts: &Counts| now < counts.at.saturating_add(AGE_MAX);
        // Fails if the scheduler's count decreased, because the scheduler was loaded anew.
        let extrapolated =
            |counts: Counts| Some(counts.kernel_ns + scheduler_ns?.checked_sub(counts.scheduler_ns)?);
        let used_ns = self.last_read.filter(is_recent).and_then(extrapolated).or_else(|| {
            let kernel_ns = read_kernel()?;
            self.last_read = scheduler_ns.map(|scheduler_ns| Counts { at: now, kernel_ns, scheduler_ns });
            Some(kernel_ns)
        });
        self.reported_ns = self.reported_ns.max(used_ns.unwrap_or(0));
        self.reported_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = AGE_MAX;

    #[test]
    fn the_kernels_count_is_read_every_two_seconds_and_corrects_the_schedulers() {
        let mut usage = Usage::default();
        assert_eq!(usage.now(0, Some(7), || Some(100)), 100);
        assert_eq!(usage.now(S - 1, Some(57), || unreachable!("the count is recent")), 150);
        // A real-time task used 30 that the scheduler does not count.
        assert_eq!(usage.now(S, Some(60), || Some(183)), 183);
        assert_eq!(usage.now(S + 1, Some(60), || unreachable!("the count is recent")), 183);
        assert_eq!(usage.now(S + 2, Some(70), || unreachable!("the count is recent")), 193);
        // The kernel counts at ticks, the scheduler at switches, so the kernel's count is behind. The
        // reported time never decreases.
        assert_eq!(usage.now(2 * S, Some(70), || Some(190)), 193);
        assert_eq!(usage.now(2 * S + 1, Some(75), || unreachable!("the count is recent")), 195);
    }

    #[test]
    fn without_a_scheduler_the_kernel_is_asked_each_time() {
        let mut usage = Usage::default();
        assert_eq!(usage.now(0, None, || Some(1)), 1);
        assert_eq!(usage.now(1, None, || Some(2)), 2);
        assert_eq!(usage.now(2, None, || None), 2);
        // A scheduler was loaded, and then reloaded with a smaller count.
        assert_eq!(usage.now(3, Some(50), || Some(4)), 4);
        assert_eq!(usage.now(4, Some(0), || Some(5)), 5);
        assert_eq!(usage.now(5, Some(3), || unreachable!("the count is recent")), 8);
    }
}
