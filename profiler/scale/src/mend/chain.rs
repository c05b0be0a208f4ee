//! A closed system of threads, one lock and some CPUs, in which every duration is exponential.
//!
//! Problem: how often is the lock taken per second, if each thread in turn computes and sleeps without the
//! lock, waits for the lock, and computes and sleeps under the lock? The thread that holds the lock shares
//! the CPUs with the other threads. So the more threads compute, the longer the lock is held. Formulas for
//! networks of queues leave that out.
//!
//! Algorithm: a Markov chain. A state is the number of threads at the lock (its holder included), the number
//! of threads that compute without the lock, and whether the holder sleeps. Threads share the CPUs equally.
//! The chain's stationary distribution is found by elimination without subtractions (Grassmann, Taksar and
//! Heyman 1985), so that durations may differ by any factor. Only a band of the matrix is touched: with n
//! threads that takes about 4 n^4 steps.
//!
//! Properties: the throughput is at most the asymptotic bound of the same system, with deterministic
//! durations.
//!
//! Limits: more than [`THREADS_MAX`] threads are replaced by that many, with a proportionally shorter sleep
//! outside of the lock, which keeps the asymptotic bounds. A time of 0 counts as a millionth of the cycle.

/// The largest number of threads that the chain is built for.
const THREADS_MAX: u32 = 24;

/// The threads, the CPUs, and the mean times of a thread's cycle from one request of the lock to the next, in
/// seconds. *Hold* is the time under the lock, *gap* the time without the lock.
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
    /// Whether waiting threads spin.
    pub(crate) spins: bool,
}

impl System {
    /// The length of a cycle without waits.
    fn cycle(&self) -> f64 {
        self.hold_cpu + self.hold_sleep + self.gap_cpu + self.gap_sleep
    }

    /// The system with all work under the lock moved outside.
    pub(crate) fn apart(self) -> System {
        System {
            hold_cpu: 0.0,
            hold_sleep: 0.0,
            gap_cpu: self.gap_cpu + self.hold_cpu,
            gap_sleep: self.gap_sleep + self.hold_sleep,
            ..self
        }
    }

    /// The asymptotic bound on acquisitions per second: the least of what the lock, the CPUs and the number
    /// of threads allow.
    pub(crate) fn bound(&self) -> f64 {
        let (hold, cpu) = (self.hold_cpu + self.hold_sleep, self.hold_cpu + self.gap_cpu);
        let by_lock = if hold > 0.0 { 1.0 / hold } else { f64::INFINITY };
        let by_cpus = if cpu > 0.0 { self.cpus_at_most() / cpu } else { f64::INFINITY };
        by_lock.min(by_cpus).min(f64::from(self.threads) / self.cycle())
    }

    /// The number of CPUs that the program's threads get if all of them compute.
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

    /// Acquisitions per second, and time queued for a CPU per cycle.
    fn solve(&self) -> (f64, f64) {
        if self.threads > THREADS_MAX {
            return self.with_fewer_threads().solve();
        }
        let least = self.cycle() * 1e-6;
        let rate = |mean: f64| 1.0 / mean.max(least);
        let n = self.threads as usize;
        let states = States { threads: n };
        let mut chain = Chain::new(states.count(), states.width());
        // A cycle: a thread computes without the lock, sleeps, arrives at the lock, computes under the lock,
        // sleeps, and releases.
        for (at_lock, computing, sleeps) in states.all() {
            let from = states.index(at_lock, computing, sleeps);
            let cpu_share = self.cpu_share(at_lock, computing, sleeps);
            if computing > 0 {
                let to = states.index(at_lock, computing - 1, sleeps);
                chain.add(from, to, count(computing) * cpu_share * rate(self.gap_cpu));
            }
            let asleep = n - at_lock - computing;
            if asleep > 0 {
                let to = states.index(at_lock + 1, computing, sleeps);
                chain.add(from, to, count(asleep) * rate(self.gap_sleep));
            }
            if at_lock > 0 && !sleeps {
                chain.add(from, states.index(at_lock, computing, true), cpu_share * rate(self.hold_cpu));
            } else if at_lock > 0 {
                let to = states.index(at_lock - 1, computing + 1, false);
                chain.add(from, to, rate(self.hold_sleep));
            }
        }
        let probabilities = chain.stationary();
        let (mut releases, mut queued) = (0.0, 0.0);
        for (at_lock, computing, sleeps) in states.all() {
            let probability = probabilities[states.index(at_lock, computing, sleeps)];
            releases += if at_lock > 0 && sleeps { probability * rate(self.hold_sleep) } else { 0.0 };
            let runnable = computing + usize::from(at_lock > 0 && !sleeps);
            let without_cpu = 1.0 - self.cpu_share(at_lock, computing, sleeps);
            queued += probability * count(runnable) * without_cpu;
        }
        (releases, queued / releases)
    }

    /// The fraction of a CPU that each runnable thread gets in a state.
    fn cpu_share(&self, at_lock: usize, computing: usize, sleeps: bool) -> f64 {
        let spinning = if self.spins { at_lock.saturating_sub(1) } else { 0 };
        let runnable = computing + usize::from(at_lock > 0 && !sleeps) + spinning;
        (self.cpus / (count(runnable.max(1)) + self.others)).min(1.0)
    }

    /// A system of [`THREADS_MAX`] threads with the same asymptotic bounds: the cycle is shorter in
    /// proportion to the threads.
    fn with_fewer_threads(&self) -> System {
        let cycle = self.cycle() * f64::from(THREADS_MAX) / f64::from(self.threads);
        let without_gap_sleep = self.hold_cpu + self.hold_sleep + self.gap_cpu;
        System { threads: THREADS_MAX, gap_sleep: (cycle - without_gap_sleep).max(0.0), ..*self }
    }
}

#[allow(clippy::cast_precision_loss)]
fn count(n: usize) -> f64 {
    n as f64
}

/// The states of the chain, and their indices: ordered by the threads at the lock, then by the threads that
/// compute without it, then by whether the holder sleeps.
#[derive(Clone, Copy)]
struct States {
    threads: usize,
}

impl States {
    fn count(self) -> usize {
        self.index(self.threads, 0, true) + 1
    }

    /// The bandwidth of the matrix: an upper bound on the distance of the indices of two states with a
    /// transition.
    fn width(self) -> usize {
        2 * self.threads + 3
    }

    fn index(self, at_lock: usize, computing: usize, sleeps: bool) -> usize {
        let n = self.threads;
        if at_lock == 0 {
            return computing;
        }
        // There are n + 1 states with no thread at the lock. With i threads at the lock, 0 to n - i threads
        // may compute, and there are two states for each of these n - i + 1 numbers.
        let first = (n + 1) + 2 * ((at_lock - 1) * (n + 1) - (at_lock - 1) * at_lock / 2);
        first + 2 * computing + usize::from(sleeps)
    }

    /// All states: threads at the lock, threads that compute without it, and whether the holder sleeps.
    fn all(self) -> impl Iterator<Item = (usize, usize, bool)> {
        let n = self.threads;
        (0..=n).flat_map(move |at_lock| {
            let sleeps: &[bool] = if at_lock == 0 { &[false] } else { &[false, true] };
            (0..=n - at_lock)
                .flat_map(move |computing| sleeps.iter().map(move |sleeps| (at_lock, computing, *sleeps)))
        })
    }
}

/// A Markov chain: a band matrix of transition rates.
struct Chain {
    states: usize,
    width: usize,
    /// The rows, by source state. The middle of each row is the diagonal.
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

    /// The stationary distribution: the probability of each state.
    fn stationary(mut self) -> Vec<f64> {
        // Eliminate the last state: its transitions become direct ones between the states before it.
        for last in (1..self.states).rev() {
            let neighbours = last.saturating_sub(self.width)..last;
            let leaving: f64 = neighbours.clone().map(|to| self.rows[self.index(last, to)]).sum();
            for from in neighbours.clone() {
                let index = self.index(from, last);
                let rate = self.rows[index];
                if rate <= 0.0 {
                    continue;
                }
                self.rows[index] = rate / leaving;
                for to in neighbours.clone().filter(|to| *to != from) {
                    let more = rate / leaving * self.rows[self.index(last, to)];
                    let index = self.index(from, to);
                    self.rows[index] += more;
                }
            }
        }
        // Substitute back, from the first state on, and normalise.
        let mut weights = vec![0.0; self.states];
        weights[0] = 1.0;
        for to in 1..self.states {
            weights[to] = (to.saturating_sub(self.width)..to)
                .map(|from| weights[from] * self.rows[self.index(from, to)])
                .sum();
        }
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
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

    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-4, "{found}, not {expected}");
    }

    #[test]
    fn one_thread_waits_for_nothing() {
        assert_near(system(1, 1, [1.0, 2.0, 3.0, 4.0]).throughput(), 0.1);
        assert_near(system(1, 8, [0.0, 2.0, 0.0, 4.0]).throughput(), 1.0 / 6.0);
    }

    #[test]
    fn threads_that_sleep_and_a_lock_are_machines_and_a_mechanic() {
        // Three threads, one unit of sleep under the lock and one outside. P(q) = P(0) 3! / (3 - q)!: 1, 3,
        // 6, 6 of 16.
        assert_near(system(3, 9, [0.0, 1.0, 0.0, 1.0]).throughput(), 15.0 / 16.0);
    }

    #[test]
    fn without_a_lock_threads_share_the_cpus() {
        // Two threads on one CPU: half a unit of computing each, one asleep. P(b) = 1, 2 * 0.5, 2 * 0.25 of
        // 2.5.
        assert_near(system(2, 1, [0.0, 0.0, 0.5, 1.0]).throughput(), 2.0 * (1.5 / 2.5));
        // By Little's law, the cycle takes 2 threads / 1.2 per second. The wait for the CPU is that less the
        // 1.5 of the thread itself.
        assert_near(system(2, 1, [0.0, 0.0, 0.5, 1.0]).queue(), 2.0 / 1.2 - 1.5);
        // On two CPUs no thread waits.
        assert_near(system(2, 2, [0.0, 0.0, 0.5, 1.0]).throughput(), 2.0 / 1.5);
    }

    #[test]
    fn spinning_threads_take_cpu_time_from_the_holder() {
        let sleeps = system(4, 1, [1.0, 0.0, 1.0, 1.0]);
        let spins = System { spins: true, ..sleeps };
        assert!(spins.throughput() < sleeps.throughput() * 0.8);
        let (sleeps, spins) = (System { cpus: 4.0, ..sleeps }, System { cpus: 4.0, ..spins });
        assert_near(spins.throughput(), sleeps.throughput());
    }

    #[test]
    fn many_threads_are_replaced_by_fewer_with_the_same_bounds() {
        let many = system(400, 4, [0.001, 0.0, 0.002, 1.0]);
        assert_near(many.bound(), many.with_fewer_threads().bound());
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
