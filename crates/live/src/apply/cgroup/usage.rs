//! CPU time of a unit, combined from the kernel's count and our scheduler's.
//!
//! Problem: cpu.stat is exact but expensive to read: the kernel flushes the counters of every CPU, under a lock that it
//! shares with all readers of all control groups.
//!
//! Algorithm: cpu.stat is read every two seconds. In between, the scheduler's count since that read is added to it.
//!
//! Limits: our scheduler does not run real-time and deadline tasks, so their CPU time shows up to two seconds late.

use commonhold_policy::Time;

/// The maximum age of the kernel's count, in nanoseconds.
const AGE_MAX: Time = 2_000_000_000;

/// The CPU time of a unit's own processes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    reported_ns: Time,
    read: Option<Counts>,
}

/// Both counts at the time of the last read of cpu.stat.
#[derive(Debug, Clone, Copy)]
struct Counts {
    at: Time,
    kernel_ns: Time,
    counted_ns: Time,
}

impl Usage {
    /// CPU time so far, which never decreases. `counted` is the scheduler's count; `kernel` reads the kernel's. If both are
    /// `None`, the last value is returned.
    pub(super) fn now(
        &mut self,
        now: Time,
        counted: Option<Time>,
        kernel: impl FnOnce() -> Option<Time>,
    ) -> Time {
        let young = |read: &Counts| now < read.at.saturating_add(AGE_MAX);
        let since = |read: Counts| Some(read.kernel_ns + counted?.checked_sub(read.counted_ns)?);
        let used = self.read.filter(young).and_then(since).or_else(|| {
            let kernel_ns = kernel()?;
            self.read = counted.map(|counted_ns| Counts { at: now, kernel_ns, counted_ns });
            Some(kernel_ns)
        });
        self.reported_ns = self.reported_ns.max(used.unwrap_or(0));
        self.reported_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = AGE_MAX;

    #[test]
    fn the_kernels_count_is_read_now_and_then_and_corrects_the_schedulers_count() {
        let mut usage = Usage::default();
        assert_eq!(usage.now(0, Some(7), || Some(100)), 100);
        assert_eq!(usage.now(S - 1, Some(57), || unreachable!("it is young")), 150);
        // A real-time task used 30 that the scheduler does not count.
        assert_eq!(usage.now(S, Some(60), || Some(183)), 183);
        assert_eq!(usage.now(S + 1, Some(60), || unreachable!("it is young")), 183);
        assert_eq!(usage.now(S + 2, Some(70), || unreachable!("it is young")), 193);
        // The kernel counts at ticks, the scheduler at switches, so the kernel's count is behind. The reported time never
        // decreases.
        assert_eq!(usage.now(2 * S, Some(70), || Some(190)), 193);
        assert_eq!(usage.now(2 * S + 1, Some(75), || unreachable!("it is young")), 195);
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
        assert_eq!(usage.now(5, Some(3), || unreachable!("it is young")), 8);
    }
}
