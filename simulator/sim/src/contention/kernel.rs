//! How much slower kernel work is when several CPUs do it at once.
//!
//! Problem: the CPUs share one kernel. Two costs grow with the number of CPUs in it. The CPUs wait for the coarse spin
//! lock over the memory system's structures (memlock). And each update invalidates lines in the others' caches, which
//! then stall.
//!
//! Terms: *demand* D is the part of kernel work that holds the lock, when alone. The rest, *think time* Z = 1 - D,
//! needs no lock. The *stall* γ is what each further CPU adds to every CPU's memory stall, as a part of the work. φ(P)
//! is the time that P CPUs in kernel work each take for a unit of it.
//!
//! Algorithm: the lock is a closed machine-repair queue with one customer per CPU. A customer thinks Z and then holds
//! the lock for D, both exponentially distributed. Exact mean value analysis takes one step per customer. A customer
//! that arrives at the lock finds the queue that the others alone would form. So it waits W(P) = D Q(P-1), where Q(P)
//! = P R / (Z + R) and R = D + W(P). Then
//!
//! ```text
//! φ(P) = 1 + W(P) + γ (P - 1)
//! ```
//!
//! W is tabulated once for every P up to the machine's CPUs, in millionths. A task that is in the kernel for a part k
//! of its work meets there the sum of the other running tasks' parts, Σk. This is rarely a whole number; W in between
//! is interpolated linearly. The task slows down by 1 - k + k φ(1 + Σk).
//!
//! Properties: alone nothing slows down. One more CPU, or more of any CPU's work in the kernel, makes no task faster.
//! The lock is never busy for more than the whole time. Once it is always busy, each further CPU adds D to every CPU's
//! time. Lock and stall add up to the slowdown, exactly. Everything is rounded to the nearest millionth, W as well as
//! a task's part of it: lock and stall are each within one millionth. The table takes linear work and memory, a lookup
//! constant work.
//!
//! Limits: all synchronisation is one lock (seed 000: that lock is more than 80 % of it). W is convex, so the interpolation
//! is slightly too high. Slowed kernel work takes more of a task's time, and so overlaps others' more often; this is
//! not modelled. Nor is that a stalled CPU returns to the lock later.
//!
//! Source: seed 000, section 3.4 (the causes) and section 4.2.3 (their size on eight CPUs, from which D = 11.73 % and
//! γ = 1.771 % for work that is all kernel-intensive); Reiser and Lavenberg 1980 (mean value analysis).

use commonhold_contract::MILLIONTH;

use super::{millionths, real};
use crate::scenario::Contention;

/// What a task's kernel work costs beside that of others, in millionths of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowdown {
    /// Time per unit of the task's work, kernel and not; a million and the two parts below.
    pub total: u64,
    /// The part in which it spins for the lock.
    pub lock: u64,
    /// The part in which its CPU stalls for lines that other CPUs invalidated.
    pub stall: u64,
}

/// The kernel that a machine's CPUs share (seed 000, section 4.2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Waiting for the lock by the number of other CPUs in the kernel, in millionths of kernel work; never empty.
    lock_wait: Vec<u64>,
    /// Stall that each other CPU adds, in millionths of kernel work.
    stall: u64,
}

impl Kernel {
    /// The kernel of a machine of `cpus` CPUs. A lock demand above the whole counts as the whole.
    pub fn new(contention: &Contention, cpus: usize) -> Self {
        let demand = real(contention.lock_demand.min(MILLIONTH)) / real(MILLIONTH);
        Kernel { lock_wait: lock_waits(demand, cpus.max(1)), stall: contention.stall }
    }

    /// The slowdown of a task of whose work `k_millionths` are kernel work; the other running tasks' parts sum to
    /// `others_millionths`. Panics if this is more than the machine's other CPUs: a mistake of the caller's.
    #[must_use]
    pub fn slowdown(&self, k_millionths: u32, others_millionths: u64) -> Slowdown {
        let most = (self.lock_wait.len() as u64 - 1) * MILLIONTH;
        assert!(others_millionths <= most, "more kernel work ({others_millionths}) than other CPUs ({most})");
        let lock = part_of(self.lock_wait_beside(others_millionths), k_millionths.into());
        let stall = part_of(part_of(self.stall, others_millionths), k_millionths.into());
        Slowdown { total: MILLIONTH.saturating_add(lock).saturating_add(stall), lock, stall }
    }

    /// Looks W up in the table, with linear interpolation.
    fn lock_wait_beside(&self, others_millionths: u64) -> u64 {
        let whole = usize::try_from(others_millionths / MILLIONTH).unwrap_or(usize::MAX);
        let below = self.lock_wait[whole];
        // The last entry has no next one, and nothing beyond it to interpolate.
        let above = self.lock_wait.get(whole + 1).copied().unwrap_or(below);
        below + part_of(above - below, others_millionths % MILLIONTH)
    }
}

/// W for one CPU, for two, and so on: in millionths of the work.
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
    let exact = u128::from(amount) * u128::from(millionths);
    let whole = u128::from(MILLIONTH);
    u64::try_from((exact + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
