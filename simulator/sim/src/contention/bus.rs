//! How much slower tasks get when they share the memory bus.
//!
//! Problem: the bus carries B transactions in a unit of time. A task's need of it is known from its rate alone on the
//! machine. Wanted is how much slower each of several tasks runs when they run at once. Sharing out B is not enough:
//! tasks slow each other down long before the bus is full, because their transactions meet.
//!
//! Terms: a transaction occupies the bus for s = 1/B. A task has m transactions under way at once (*streams*). Each
//! stream computes for a while (its *think time* z), and then has the next transaction carried, for which it may have
//! to wait. A stream's *load* is u = s / (z + s), the part of the bus that it would take if it were alone.
//!
//! Algorithm: streams and bus are a closed queueing network with one server and a product-form solution (exponential
//! service; think times of any distribution). Streams are added one by one. Let P(n) be the probability that n
//! transactions are at the bus, and L its mean. A further stream of load u is slowed by 1 + u L, for on arrival it
//! finds what is there without it, and P becomes
//!
//! ```text
//! P'(n) = [(1 - u) P(n) + u n P(n-1)] / (1 + u L)
//! ```
//!
//! The order of adding does not matter. So each task's answer is what its last stream meets when all others were added
//! before, divided by what that stream meets from its own task alone. u is found from the task's rate alone by
//! bisection: m streams together, alone, carry exactly that rate.
//!
//! Number of streams: no scenario says it. A task has one stream per whole quarter of the bus that it takes alone, and
//! at least one. A program that waits for every transaction takes much of the bus only if it does next to nothing
//! else. A program that takes 80 % of the bus has several transactions under way. With this rule every stream of a
//! task that takes less than 93 % of the bus thinks longer than its transactions last. The quarter is a calibration.
//! Of the published programs, the one that streams (23.6 of 29.5 per us alone) gets three streams. Each application
//! thread (at most 14.45, not far below one half) gets one. With those, the worst slowdown beside two streaming
//! programs is 2.87, published as almost three. With one stream each, it is 1.81.
//!
//! Properties: alone a task is not slowed. Equal tasks are slowed equally. One more task, or a higher rate of another,
//! makes no task faster. The bus never carries more than B. A task that asks for more than B alone (a rate taken on a
//! faster bus) is slowed by that alone. Answers are to the nearest millionth, and depend on the rates only, not on
//! their order.
//!
//! Limits: a task is as greedy as its nominal rate, also where something else slows it at the same time. For N streams
//! of D different rates a new question costs D N² / 2 steps (64 CPUs and 8 rates: 16,000 steps, some 40 us); answers
//! are remembered. A task with several threads has a task here for each, and the rate of *one* alone. Where only the
//! rate r of two together is published, with v = r / B one alone has the rate B v / (1 + √(1 - v²)).
//!
//! Source: seed 003, section 3 (B = 29.5 per us; the slowdowns); Baskett, Chandy, Muntz and Palacios 1975 (the product
//! form).

use std::collections::BTreeMap;

use commonhold_contract::MILLIONTH;

use super::{millionths, real};
use crate::scenario;

/// Remembered answers hold this many rates at most, a few megabytes; then all are forgotten.
const REMEMBERED_RATES_MAX: usize = 1 << 16;

/// A task has one stream per this part of the bus that it takes alone.
const STREAMS_OF_A_FULL_BUS: u64 = 4;

/// Halvings until a load is as exact as a float can be.
const HALVINGS: u32 = 60;

/// The memory bus that a machine's CPUs share (seed 003, section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bus {
    capacity_per_ms: u64,
    /// Slowdowns by the rates that run at once, sorted, without zeros; in the same order.
    remembered: BTreeMap<Vec<u32>, Vec<u64>>,
    /// How many rates there are in the keys of `remembered`.
    remembered_rates: usize,
    /// The question at hand; kept so that a repeated question allocates nothing.
    sorted: Vec<u32>,
}

impl Bus {
    /// A bus on which nothing runs yet. One that carries nothing counts as one that carries a transaction in a ms.
    pub fn new(bus: &scenario::Bus) -> Self {
        let capacity_per_ms = bus.transactions_per_ms.max(1);
        Bus { capacity_per_ms, remembered: BTreeMap::new(), remembered_rates: 0, sorted: Vec::new() }
    }

    /// By how much each of the tasks is slowed that now run at once, in millionths; given what each would transfer alone,
    /// in transactions per ms. `out` is overwritten, in the order of the rates.
    pub fn slowdowns(&mut self, rates_per_ms: &[u32], out: &mut Vec<u64>) {
        out.clear();
        self.sorted.clear();
        self.sorted.extend(rates_per_ms.iter().filter(|rate| **rate > 0));
        if self.sorted.is_empty() {
            out.resize(rates_per_ms.len(), MILLIONTH);
            return;
        }
        self.sorted.sort_unstable();
        if let Some(slowdowns) = self.remembered.get(self.sorted.as_slice()) {
            answer(rates_per_ms, &self.sorted, slowdowns, out);
            return;
        }
        let slowdowns = solve(self.capacity_per_ms, &self.sorted);
        answer(rates_per_ms, &self.sorted, &slowdowns, out);
        self.remember(slowdowns);
    }

    /// Remembers the answer to the question at hand.
    fn remember(&mut self, slowdowns: Vec<u64>) {
        // Forgetting all at once needs no order of use, and a simulation soon asks the questions that matter again.
        if self.remembered_rates + self.sorted.len() > REMEMBERED_RATES_MAX {
            self.remembered.clear();
            self.remembered_rates = 0;
        }
        self.remembered_rates += self.sorted.len();
        self.remembered.insert(self.sorted.clone(), slowdowns);
    }
}

/// Looks up each task's slowdown by its rate.
fn answer(rates_per_ms: &[u32], sorted: &[u32], slowdowns: &[u64], out: &mut Vec<u64>) {
    let slowdown = |rate: &u32| sorted.binary_search(rate).map_or(MILLIONTH, |at| slowdowns[at]);
    out.extend(rates_per_ms.iter().map(slowdown));
}

/// The slowdown of each of the tasks, in the order of their rates, which are sorted and positive.
fn solve(capacity_per_ms: u64, sorted: &[u32]) -> Vec<u64> {
    let kinds: Vec<Kind> =
        sorted.chunk_by(|a, b| a == b).map(|equal| Kind::new(capacity_per_ms, equal)).collect();
    let slowdown = |of: &Kind| {
        let mut queue = Queue::empty();
        for kind in &kinds {
            let all = kind.tasks as u64 * kind.streams;
            queue.add(kind.load, if std::ptr::eq(kind, of) { all - 1 } else { all });
        }
        millionths(queue.stretch(of.load) / of.stretch_alone * of.excess)
    };
    kinds.iter().flat_map(|kind| std::iter::repeat_n(slowdown(kind), kind.tasks)).collect()
}

/// Tasks with the same rate.
struct Kind {
    tasks: usize,
    /// Transactions that each of the tasks has under way at once.
    streams: u64,
    /// Part of the bus that one stream would take alone.
    load: f64,
    /// What a task's last stream meets from the task's others.
    stretch_alone: f64,
    /// How much more than the whole bus a task asks for; 1 if it does not.
    excess: f64,
}

impl Kind {
    /// Tasks with these rates, which are equal, at least one.
    fn new(capacity_per_ms: u64, equal: &[u32]) -> Self {
        let asked = u64::from(equal[0]);
        let rate = asked.min(capacity_per_ms);
        let streams = streams(rate, capacity_per_ms);
        let load = load(real(rate) / real(capacity_per_ms), streams);
        let stretch_alone = stretch_alone(load, streams);
        Kind { tasks: equal.len(), streams, load, stretch_alone, excess: real(asked) / real(rate) }
    }
}

/// How many transactions a task with this rate has under way at once.
fn streams(rate_per_ms: u64, capacity_per_ms: u64) -> u64 {
    (rate_per_ms * STREAMS_OF_A_FULL_BUS / capacity_per_ms).max(1)
}

/// The load of each of `streams` streams that alone use the fraction `share` of the bus together.
fn load(share: f64, streams: u64) -> f64 {
    if streams == 1 {
        return share;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let carried = real(streams) * middle / stretch_alone(middle, streams);
        if carried < share { low = middle } else { high = middle }
    }
    high
}

/// The slowdown of one of `streams` equal streams by the others.
fn stretch_alone(load: f64, streams: u64) -> f64 {
    let mut queue = Queue::empty();
    queue.add(load, streams - 1);
    queue.stretch(load)
}

/// How many transactions are at the bus, waiting or carried: a probability for each number.
struct Queue(Vec<f64>);

impl Queue {
    fn empty() -> Self {
        Queue(vec![1.0])
    }

    /// How much longer a further stream takes per transaction and think time, for what it finds here.
    fn stretch(&self, load: f64) -> f64 {
        let mean: f64 = (0u32..).zip(&self.0).map(|(n, p)| f64::from(n) * p).sum();
        1.0 + load * mean
    }

    /// Adds `streams` streams of this load.
    fn add(&mut self, load: f64, streams: u64) {
        for _ in 0..streams {
            self.add_one(load);
        }
    }

    fn add_one(&mut self, load: f64) {
        let stretch = self.stretch(load);
        self.0.push(0.0);
        // From the longest queue down, since each number takes from the one below it.
        for n in (1..self.0.len()).rev() {
            self.0[n] = ((1.0 - load) * self.0[n] + load * real(n as u64) * self.0[n - 1]) / stretch;
        }
        self.0[0] *= (1.0 - load) / stretch;
    }
}

#[cfg(test)]
mod tests;
