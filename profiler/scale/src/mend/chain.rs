//! A closed system of threads, one lock and some CPUs, in which every duration is exponential.
//!
//! Problem: how often is the lock taken per second, if each thread computes and sleeps outside of it, then waits for it, then
//! computes and sleeps under it? A thread that holds the lock shares the CPUs with the others: so the lock is held longer
//! the more threads compute. Formulas for networks of queues leave that out.
//!
//! Algorithm: a Markov chain over (threads at the lock, threads that compute outside, whether the holder computes). Threads
//! share the CPUs equally. Its balance is solved by elimination without subtractions (Grassmann, Taksar and Heyman 1985), so
//! that durations may differ by any factor. Only a band of the matrix is touched: with n threads that takes about 4 n^4 steps.
//!
//! Properties: the throughput is at most the asymptotic bound of the same system, with deterministic durations.
//!
//! Limits: more than [`THREADS_MAX`] threads are replaced by that many, with a proportionally shorter sleep outside of the lock, which
//! keeps the asymptotic bounds. A time of 0 counts as a millionth of the cycle.

/// Threads that the chain distinguishes.
const THREADS_MAX: u32 = 24;

/// What a thread does between one request of the lock and the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct System {
    pub(crate) threads: u32,
    pub(crate) cpus: f64,
    /// Mean number of competing threads of other programs, which share the CPUs.
    pub(crate) others: f64,
    /// CPU time under the lock.
    pub(crate) hold_cpu: f64,
    /// Sleep under the lock, and the hand-over time.
    pub(crate) hold_sleep: f64,
    pub(crate) gap_cpu: f64,
    pub(crate) gap_sleep: f64,
    /// Waiting threads spin.
    pub(crate) spins: bool,
}

impl System {
    /// The length of a cycle without waits.
    fn cycle(&self) -> f64 {
        self.hold_cpu + self.hold_sleep + self.gap_cpu + self.gap_sleep
    }

    /// The same work, none of it under the lock.
    pub(crate) fn apart(self) -> System {
        System {
            hold_cpu: 0.0,
            hold_sleep: 0.0,
            gap_cpu: self.gap_cpu + self.hold_cpu,
            gap_sleep: self.gap_sleep + self.hold_sleep,
            ..self
        }
    }

    /// The asymptotic bound: what the lock, the CPUs and the threads allow.
    pub(crate) fn bound(&self) -> f64 {
        let (hold, cpu) = (self.hold_cpu + self.hold_sleep, self.hold_cpu + self.gap_cpu);
        let by_lock = if hold > 0.0 { 1.0 / hold } else { f64::INFINITY };
        let by_cpus = if cpu > 0.0 { self.cpus_at_most() / cpu } else { f64::INFINITY };
        by_lock.min(by_cpus).min(f64::from(self.threads) / self.cycle())
    }

    /// The CPUs that its threads get if all of them compute.
    pub(crate) fn cpus_at_most(&self) -> f64 {
        let threads = f64::from(self.threads);
        threads * (self.cpus / (threads + self.others)).min(1.0)
    }

    /// Acquisitions per second with exponential durations.
    pub(crate) fn throughput(&self) -> f64 {
        self.solve().0
    }

    /// Time queued for a CPU per cycle with exponential durations.
    pub(crate) fn queue(&self) -> f64 {
        self.solve().1
    }

    fn solve(&self) -> (f64, f64) {
        if self.threads > THREADS_MAX {
            return self.with_fewer_threads().solve();
        }
        let least = self.cycle() * 1e-6;
        let rate = |mean: f64| 1.0 / mean.max(least);
        let n = self.threads as usize;
        let states = States { threads: n };
        let mut chain = Chain::new(states.count(), states.width());
        for (q, b, sleeps) in states.all() {
            let from = states.at(q, b, sleeps);
            let share = self.share(q, b, sleeps);
            if b > 0 {
                chain.add(from, states.at(q, b - 1, sleeps), count(b) * share * rate(self.gap_cpu));
            }
            let asleep = n - q - b;
            if asleep > 0 {
                chain.add(from, states.at(q + 1, b, sleeps), count(asleep) * rate(self.gap_sleep));
            }
            if q > 0 && !sleeps {
                chain.add(from, states.at(q, b, true), share * rate(self.hold_cpu));
            } else if q > 0 {
                chain.add(from, states.at(q - 1, b + 1, false), rate(self.hold_sleep));
            }
        }
        let share = chain.balance();
        let (mut ends, mut queued) = (0.0, 0.0);
        for (q, b, sleeps) in states.all() {
            let part = share[states.at(q, b, sleeps)];
            ends += if q > 0 && sleeps { part * rate(self.hold_sleep) } else { 0.0 };
            queued += part * count(b + usize::from(q > 0 && !sleeps)) * (1.0 - self.share(q, b, sleeps));
        }
        (ends, queued / ends)
    }

    /// The part of a CPU that each computing thread gets.
    fn share(&self, q: usize, b: usize, sleeps: bool) -> f64 {
        let waiting = if self.spins { q.saturating_sub(1) } else { 0 };
        let computing = b + usize::from(q > 0 && !sleeps) + waiting;
        (self.cpus / (count(computing.max(1)) + self.others)).min(1.0)
    }

    fn with_fewer_threads(&self) -> System {
        let whole = self.cycle() * f64::from(THREADS_MAX) / f64::from(self.threads);
        let rest = self.hold_cpu + self.hold_sleep + self.gap_cpu;
        System { threads: THREADS_MAX, gap_sleep: (whole - rest).max(0.0), ..*self }
    }
}

#[allow(clippy::cast_precision_loss)]
fn count(n: usize) -> f64 {
    n as f64
}

/// The states and their numbers: by threads at the lock, then by threads that compute outside.
#[derive(Clone, Copy)]
struct States {
    threads: usize,
}

impl States {
    fn count(self) -> usize {
        self.at(self.threads, 0, true) + 1
    }

    /// Bandwidth: the largest distance of two states with a transition.
    fn width(self) -> usize {
        2 * self.threads + 3
    }

    fn at(self, q: usize, b: usize, sleeps: bool) -> usize {
        let n = self.threads;
        if q == 0 {
            return b;
        }
        // n + 1 states with no thread at the lock; for i threads there, two states for each of the n - i + 1 numbers that compute.
        let before = (n + 1) + 2 * ((q - 1) * (n + 1) - (q - 1) * q / 2);
        before + 2 * b + usize::from(sleeps)
    }

    fn all(self) -> impl Iterator<Item = (usize, usize, bool)> {
        let n = self.threads;
        (0..=n).flat_map(move |q| {
            let kinds: &[bool] = if q == 0 { &[false] } else { &[false, true] };
            (0..=n - q).flat_map(move |b| kinds.iter().map(move |sleeps| (q, b, *sleeps)))
        })
    }
}

/// A band matrix of transition rates.
struct Chain {
    states: usize,
    width: usize,
    /// Rows by source state; the middle of each row is the diagonal.
    rows: Vec<f64>,
}

impl Chain {
    fn new(states: usize, width: usize) -> Chain {
        Chain { states, width, rows: vec![0.0; states * (2 * width + 1)] }
    }

    fn index(&self, from: usize, to: usize) -> usize {
        from * (2 * self.width + 1) + to + self.width - from
    }

    fn add(&mut self, from: usize, to: usize, rate: f64) {
        let index = self.index(from, to);
        self.rows[index] += rate;
    }

    /// The stationary distribution.
    fn balance(mut self) -> Vec<f64> {
        for last in (1..self.states).rev() {
            let near = last.saturating_sub(self.width)..last;
            let leaves: f64 = near.clone().map(|to| self.rows[self.index(last, to)]).sum();
            for from in near.clone() {
                let index = self.index(from, last);
                let rate = self.rows[index];
                if rate <= 0.0 {
                    continue;
                }
                self.rows[index] = rate / leaves;
                for to in near.clone().filter(|to| *to != from) {
                    let more = rate / leaves * self.rows[self.index(last, to)];
                    let index = self.index(from, to);
                    self.rows[index] += more;
                }
            }
        }
        let mut share = vec![0.0; self.states];
        share[0] = 1.0;
        for to in 1..self.states {
            share[to] = (to.saturating_sub(self.width)..to)
                .map(|from| share[from] * self.rows[self.index(from, to)])
                .sum();
        }
        let sum: f64 = share.iter().sum();
        share.iter().map(|part| part / sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(threads: u32, cpus: i32, times: [f64; 4]) -> System {
        let [hold_cpu, hold_sleep, gap_cpu, gap_sleep] = times;
        System {
            threads,
            cpus: f64::from(cpus),
            others: 0.0,
            hold_cpu,
            hold_sleep,
            gap_cpu,
            gap_sleep,
            spins: false,
        }
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-4, "{found}, not {expected}");
    }

    #[test]
    fn one_thread_waits_for_nothing() {
        near(system(1, 1, [1.0, 2.0, 3.0, 4.0]).throughput(), 0.1);
        near(system(1, 8, [0.0, 2.0, 0.0, 4.0]).throughput(), 1.0 / 6.0);
    }

    #[test]
    fn threads_that_sleep_and_a_lock_are_machines_and_a_mechanic() {
        // Three threads, one unit of sleep under the lock and one outside. P(q) = P(0) 3! / (3 - q)!: 1, 3, 6, 6 of 16.
        near(system(3, 9, [0.0, 1.0, 0.0, 1.0]).throughput(), 15.0 / 16.0);
    }

    #[test]
    fn without_a_lock_threads_share_the_cpus() {
        // Two threads on one CPU: half a unit of computing each, one asleep. P(b) = 1, 2 * 0.5, 2 * 0.25 of 2.5.
        near(system(2, 1, [0.0, 0.0, 0.5, 1.0]).throughput(), 2.0 * (1.5 / 2.5));
        // A part of the cycle is the wait for the CPU: two threads, so much throughput, and what they do themselves.
        near(system(2, 1, [0.0, 0.0, 0.5, 1.0]).queue(), 2.0 / 1.2 - 1.5);
        // On two CPUs nobody waits for anything.
        near(system(2, 2, [0.0, 0.0, 0.5, 1.0]).throughput(), 2.0 / 1.5);
    }

    #[test]
    fn who_spins_takes_cpu_time_from_the_holder() {
        let sleeps = system(4, 1, [1.0, 0.0, 1.0, 1.0]);
        let spins = System { spins: true, ..sleeps };
        assert!(spins.throughput() < sleeps.throughput() * 0.8);
        let (sleeps, spins) = (System { cpus: 4.0, ..sleeps }, System { cpus: 4.0, ..spins });
        near(spins.throughput(), sleeps.throughput());
    }

    #[test]
    fn many_threads_are_put_down_to_fewer_within_the_same_bounds() {
        let many = system(400, 4, [0.001, 0.0, 0.002, 1.0]);
        near(many.bound(), many.with_fewer_threads().bound());
        assert!(many.throughput() <= many.bound() && many.throughput() > 0.7 * many.bound());
    }

    #[test]
    fn the_bound_is_never_exceeded_and_times_may_differ_by_any_factor() {
        for threads in [1, 2, 5, 12] {
            for cpus in [1, 2, 8] {
                for times in [
                    [1e-6, 0.0, 1e-9, 1.0],
                    [1.0, 1.0, 1.0, 1.0],
                    [0.0, 1e-3, 1.0, 0.0],
                    [1e-7, 0.0, 0.0, 0.0],
                ] {
                    let system = system(threads, cpus, times);
                    let (found, bound) = (system.throughput(), system.bound());
                    assert!(found > 0.0 && found <= bound * (1.0 + 1e-4), "{system:?}: {found} of {bound}");
                }
            }
        }
    }
}
