//! CPU time of a unit, where our scheduler counts it beside the kernel.
//!
//! Problem: cpu.stat has the whole truth, but it is expensive to read. The kernel gathers what each CPU counted, one
//! after the other. It does so under a lock that every reader of every control group wants, and gives way to others in
//! between.
//!
//! Algorithm: cpu.stat is read every two seconds. Meanwhile, what the scheduler counted since is added.
//!
//! Limits: real-time and deadline tasks are not the scheduler's. So what they use is told up to two seconds late.

use commonhold_policy::Time;

/// How old the kernel's count may be, in nanoseconds.
const AGE_MAX: Time = 2_000_000_000;

/// What a unit's own processes used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    told_ns: Time,
    read: Option<Read>,
}

/// Both counts at the moment when the kernel's was read.
#[derive(Debug, Clone, Copy)]
struct Read {
    at: Time,
    kernel_ns: Time,
    counted_ns: Time,
}

impl Usage {
    /// CPU time so far; never less than the last time. `counted` is the scheduler's count of who runs under it, `kernel`
    /// reads the kernel's; what that cannot tell, it was told before.
    pub(super) fn now(
        &mut self,
        now: Time,
        counted: Option<Time>,
        kernel: impl FnOnce() -> Option<Time>,
    ) -> Time {
        let young = |read: &Read| now < read.at.saturating_add(AGE_MAX);
        let since = |read: Read| Some(read.kernel_ns + counted?.checked_sub(read.counted_ns)?);
        let used = self.read.filter(young).and_then(since).or_else(|| {
            let kernel_ns = kernel()?;
            self.read = counted.map(|counted_ns| Read { at: now, kernel_ns, counted_ns });
            Some(kernel_ns)
        });
        self.told_ns = self.told_ns.max(used.unwrap_or(0));
        self.told_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = AGE_MAX;

    #[test]
    fn the_kernels_count_is_read_now_and_then_and_corrects_the_schedulers() {
        let mut usage = Usage::default();
        assert_eq!(usage.now(0, Some(7), || Some(100)), 100);
        assert_eq!(usage.now(S - 1, Some(57), || unreachable!("it is young")), 150);
        // A real-time task used 30 that the scheduler does not know of.
        assert_eq!(usage.now(S, Some(60), || Some(183)), 183);
        assert_eq!(usage.now(S + 1, Some(60), || unreachable!("it is young")), 183);
        // The kernel counts at its ticks, the scheduler at switches: neither takes back what was told.
        assert_eq!(usage.now(S + 2, Some(70), || unreachable!("it is young")), 193);
        assert_eq!(usage.now(2 * S, Some(70), || Some(190)), 193);
        assert_eq!(usage.now(2 * S + 1, Some(75), || unreachable!("it is young")), 195);
    }

    #[test]
    fn without_a_scheduler_the_kernel_is_asked_each_time() {
        let mut usage = Usage::default();
        assert_eq!(usage.now(0, None, || Some(1)), 1);
        assert_eq!(usage.now(1, None, || Some(2)), 2);
        assert_eq!(usage.now(2, None, || None), 2);
        // One that began, and one that began anew: its count is less than it was.
        assert_eq!(usage.now(3, Some(50), || Some(4)), 4);
        assert_eq!(usage.now(4, Some(0), || Some(5)), 5);
        assert_eq!(usage.now(5, Some(3), || unreachable!("it is young")), 8);
    }
}
