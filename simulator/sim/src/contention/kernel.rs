//! The slowdown of work in the kernel when several CPUs are in the kernel at once.
//!
//! Problem: the CPUs share one kernel. Two costs grow with the number of CPUs in the kernel: they wait for
//! the coarse spin lock of the memory system's structures (memlock), and each update invalidates lines in the
//! other CPUs' caches, which then stall.
//!
//! Terms: *demand* D is the fraction of kernel work that holds the lock, without contention. The rest, *think
//! time* Z = 1 - D, needs no lock. The *stall* γ is the memory stall that each further CPU adds to every CPU,
//! as a fraction of the work. φ(P) is the time of a unit of kernel work when P CPUs are in the kernel.
//!
//! Algorithm: the lock is a closed machine-repair queue with one customer per CPU. A customer thinks for Z
//! and then holds the lock for D, both exponentially distributed. Exact mean value analysis takes one step
//! per customer: a customer that arrives at the lock finds the queue that the others would form without it.
//! So it waits W(P) = D Q(P-1), where Q(P) = P R / (Z + R) and R = D + W(P). Then
//!
//! ```text
//! φ(P) = 1 + W(P) + γ (P - 1)
//! ```
//!
//! W is tabulated once for every P up to the machine's CPUs, in millionths. A task with a fraction k of its
//! work in the kernel meets there, in the mean, the sum of the other running tasks' fractions, Σk. This is
//! rarely a whole number, so W is interpolated linearly. The task's slowdown is 1 - k + k φ(1 + Σk).
//!
//! Properties: a task alone is not slowed. One more CPU, or more work of any CPU in the kernel, makes no task
//! faster. The lock is never busy for more than all of the time. Once it is always busy, each further CPU
//! adds D to every CPU's time. Lock and stall add up to the excess exactly. W and a task's part of it are
//! rounded to the nearest millionth, so lock and stall are each within one millionth. The table takes linear
//! work and memory, a lookup constant work.
//!
//! Limits: all synchronisation is one lock (seed 000: that lock is more than 80 % of it). W is convex, so the
//! interpolation is slightly too high. Two effects are not modelled: slowed kernel work takes a larger
//! fraction of a task's time, and so overlaps more with other tasks' kernel work; and a stalled CPU returns
//! to the lock later.
//!
//! Source: seed 000, section 3.4 (the causes) and section 4.2.3 (their size on eight CPUs, from which D =
//! 11.73 % and γ = 1.771 % for work that is all kernel-intensive); Reiser and Lavenberg 1980 (mean value
//! analysis).

use commonhold_contract::MILLIONTH;

use super::{millionths, real};
use crate::scenario::Contention;

/// A task's slowdown by contention in the kernel, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowdown {
    /// Time per unit of all of the task's work: one million plus `lock` and `stall`.
    pub total: u64,
    /// The time spinning for the lock.
    pub lock: u64,
    /// The time stalled on cache lines that other CPUs invalidated.
    pub stall: u64,
}

/// The kernel that a machine's CPUs share (seed 000, section 4.2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The wait for the lock, by the number of other CPUs in the kernel, in millionths of kernel work; never
    /// empty.
    lock_wait: Vec<u64>,
    /// The stall that each other CPU adds, in millionths of kernel work.
    stall: u64,
}

impl Kernel {
    /// The kernel of a machine with `cpus` CPUs. A lock demand above 1 counts as 1.
    pub fn new(contention: &Contention, cpus: usize) -> Self {
        let demand = real(contention.lock_demand.min(MILLIONTH)) / real(MILLIONTH);
        Kernel { lock_wait: lock_waits(demand, cpus.max(1)), stall: contention.stall }
    }

    /// The slowdown of a task with the fraction `k_millionths` of its work in the kernel, if the other
    /// running tasks' fractions sum to `others_millionths`. Panics if that sum exceeds the number of the
    /// machine's other CPUs, which is a bug of the caller.
    #[must_use]
    pub fn slowdown(&self, k_millionths: u32, others_millionths: u64) -> Slowdown {
        let other_cpus = (self.lock_wait.len() as u64 - 1) * MILLIONTH;
        assert!(
            others_millionths <= other_cpus,
            "more kernel work ({others_millionths}) than other CPUs ({other_cpus})"
        );
        let lock = part_of(self.lock_wait_beside(others_millionths), k_millionths.into());
        let stall = part_of(part_of(self.stall, others_millionths), k_millionths.into());
        Slowdown { total: MILLIONTH.saturating_add(lock).saturating_add(stall), lock, stall }
    }

    /// Looks W up in the table, with linear interpolation.
    fn lock_wait_beside(&self, others_millionths: u64) -> u64 {
        let whole = usize::try_from(others_millionths / MILLIONTH).unwrap_or(usize::MAX);
        let below = self.lock_wait[whole];
        // At the last entry there is nothing to interpolate.
        let above = self.lock_wait.get(whole + 1).copied().unwrap_or(below);
        below + part_of(above - below, others_millionths % MILLIONTH)
    }
}

/// W for 1 to `cpus` CPUs, in millionths of the work, by mean value analysis.
fn lock_waits(demand: f64, cpus: usize) -> Vec<u64> {
    let think = 1.0 - demand;
    let mut queue = 0.0;
    let mut wait_beside = |others: u64| {
        let wait = demand * queue;
        let response = demand + wait;
        queue = real(others + 1) * response / (think + response);
        millionths(wait)
    };
    (0..cpus as u64).map(&mut wait_beside).collect()
}

/// `millionths` of an amount, rounded to the nearest, halves up; saturates at 64 bits.
fn part_of(amount: u64, millionths: u64) -> u64 {
    let product = u128::from(amount) * u128::from(millionths);
    let million = u128::from(MILLIONTH);
    u64::try_from((product + million / 2) / million).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
