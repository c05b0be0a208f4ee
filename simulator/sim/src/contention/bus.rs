//! The slowdown of tasks that share the memory bus.
//!
//! Problem: the bus carries B transactions per unit of time. Given each task's rate of transactions when it
//! runs alone, how much slower is each of several tasks that run at once? Dividing B among them is not
//! enough: tasks slow each other down long before the bus is saturated, because their transactions queue.
//!
//! Terms: a transaction occupies the bus for s = 1/B. A task has m outstanding transactions at once
//! (*streams*). Each stream computes for a while (its *think time* z), and then issues the next transaction,
//! which may have to queue. A stream's *load* is u = s / (z + s), the fraction of the bus that it would use
//! alone.
//!
//! Algorithm: streams and bus are a closed queueing network with one server and a product-form solution
//! (exponential service; think times of any distribution). Streams are added one by one. Let P(n) be the
//! probability that n transactions are at the bus, and L the mean of n. A further stream of load u is slowed
//! by 1 + u L, since it finds on arrival the queue of the network without it, and P becomes
//!
//! ```text
//! P'(n) = [(1 - u) P(n) + u n P(n-1)] / (1 + u L)
//! ```
//!
//! The order in which streams are added does not matter. So each task's slowdown is that of its last stream
//! when all other streams were added before, divided by the slowdown of that stream by its own task's streams
//! alone. u is found from the task's rate alone by bisection: the task's m streams, alone on the bus, carry
//! exactly that rate.
//!
//! Number of streams: by default, a task has one stream per whole quarter of the bus that it uses alone, and
//! at least one (`streams = 4`). A program that waits for every transaction can use much of the bus only
//! if it does almost nothing else; so a program that uses 80 % of the bus has several outstanding
//! transactions. With this rule, in a task that uses less than 93 % of the bus, every stream thinks longer
//! than its transactions take. The quarter is a calibration. Of the published programs, the streaming one
//! (23.6 of 29.5 per us alone) gets three streams. Each application thread (at most 14.45, just below one
//! half) gets one. With these, the worst slowdown beside two streaming programs is 2.87, published as almost
//! three. With one stream each, it is 1.81.
//!
//! How a real bus divides its capacity when it is full is rarely published. `division = "even"` is the other
//! extreme: a round robin among the processors, in which a task is slowed only when the bus is full.
//!
//! Properties: a task alone is not slowed. Equal tasks are slowed equally. One more task, or a higher rate of
//! another, makes no task faster. The bus never carries more than B. A task with a rate above B (measured on
//! a faster bus) is slowed even alone. Results are rounded to the nearest millionth, and depend only on the
//! rates, not on their order.
//!
//! Limits: a task that is slowed for other reasons at the same time still loads the bus with its nominal
//! rate. For N streams of D different rates, a new set of rates costs D N² / 2 steps (64 CPUs and 8 rates:
//! 16,000 steps, some 40 us); results are cached. A program with several threads is modelled as one task per
//! thread, each with the rate of *one* thread alone. If only the rate r of two threads together is published,
//! one alone has the rate B v / (1 + √(1 - v²)) with v = r / B.
//!
//! Source: seed 003, section 3 (B = 29.5 per us; the slowdowns); Baskett, Chandy, Muntz and Palacios 1975
//! (the product form).

use std::collections::BTreeMap;

use commonhold_contract::MILLIONTH;

use super::{millionths, real};
use crate::scenario::{self, BusDivision};

/// The size of the cache of results, as the sum of the numbers of rates; a few megabytes. A full cache is
/// emptied.
const CACHED_RATES_MAX: usize = 1 << 16;

/// The number of bisection steps for a load, enough for the precision of a float.
const HALVINGS: u32 = 60;

/// The memory bus that a machine's CPUs share (seed 003, section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bus {
    capacity_per_ms: u64,
    streams_of_full: u64,
    division: BusDivision,
    /// The cache of results: by the sorted positive rates of the running tasks, their slowdowns in the same
    /// order.
    cache: BTreeMap<Vec<u32>, Vec<u64>>,
    /// The sum of the numbers of rates in the keys of `cache`.
    cached_rates: usize,
    /// The key of the present call; kept so that a cache hit allocates nothing.
    sorted: Vec<u32>,
}

impl Bus {
    /// A bus with no tasks. A capacity of 0 counts as one transaction per ms.
    pub fn new(bus: &scenario::Bus) -> Self {
        Bus {
            capacity_per_ms: bus.transactions_per_ms.max(1),
            streams_of_full: u64::from(bus.streams),
            division: bus.division,
            cache: BTreeMap::new(),
            cached_rates: 0,
            sorted: Vec::new(),
        }
    }

    /// Computes the slowdowns of the running tasks, in millionths, from the rates that they would have alone,
    /// in transactions per ms. Overwrites `out`, in the order of the rates.
    pub fn slowdowns(&mut self, rates_per_ms: &[u32], out: &mut Vec<u64>) {
        out.clear();
        self.sorted.clear();
        self.sorted.extend(rates_per_ms.iter().filter(|rate| **rate > 0));
        if self.sorted.is_empty() {
            out.resize(rates_per_ms.len(), MILLIONTH);
            return;
        }
        self.sorted.sort_unstable();
        if let Some(slowdowns) = self.cache.get(self.sorted.as_slice()) {
            look_up(rates_per_ms, &self.sorted, slowdowns, out);
            return;
        }
        let slowdowns = match self.division {
            BusDivision::Queue => queued(self.capacity_per_ms, self.streams_of_full, &self.sorted),
            BusDivision::Even => even(self.capacity_per_ms, &self.sorted),
        };
        look_up(rates_per_ms, &self.sorted, &slowdowns, out);
        self.add_to_cache(slowdowns);
    }

    /// Adds the result of the present call to the cache.
    fn add_to_cache(&mut self, slowdowns: Vec<u64>) {
        // Emptying the whole cache needs no order of use, and a simulation soon recomputes the frequent sets
        // of rates.
        if self.cached_rates + self.sorted.len() > CACHED_RATES_MAX {
            self.cache.clear();
            self.cached_rates = 0;
        }
        self.cached_rates += self.sorted.len();
        self.cache.insert(self.sorted.clone(), slowdowns);
    }
}

/// Looks up each task's slowdown by its rate. A task with rate 0 is not slowed.
fn look_up(rates_per_ms: &[u32], sorted: &[u32], slowdowns: &[u64], out: &mut Vec<u64>) {
    let slowdown = |rate: &u32| sorted.binary_search(rate).map_or(MILLIONTH, |index| slowdowns[index]);
    out.extend(rates_per_ms.iter().map(slowdown));
}

/// The slowdowns on a bus that divides its capacity evenly: a task gets its rate, or an equal part of what
/// the tasks of lower rates leave (max-min fairness). The rates are sorted and positive.
fn even(capacity_per_ms: u64, sorted: &[u32]) -> Vec<u64> {
    let mut left = real(capacity_per_ms);
    let part = |(index, rate): (usize, &u32)| {
        let rate = f64::from(*rate);
        let got = rate.min(left / real((sorted.len() - index) as u64));
        left -= got;
        millionths(rate / got)
    };
    sorted.iter().enumerate().map(part).collect()
}

/// The slowdowns of tasks whose transactions queue, in the order of their rates, which are sorted and
/// positive.
fn queued(capacity_per_ms: u64, streams_of_full: u64, sorted: &[u32]) -> Vec<u64> {
    let class = |equal: &[u32]| Class::new(capacity_per_ms, streams_of_full, equal);
    let classes: Vec<Class> = sorted.chunk_by(|a, b| a == b).map(class).collect();
    let slowdown = |class: &Class| {
        // All streams but one of this class, whose slowdown is computed.
        let mut queue = Queue::empty();
        for other in &classes {
            let streams = other.tasks as u64 * other.streams;
            queue.add(other.load, if std::ptr::eq(other, class) { streams - 1 } else { streams });
        }
        millionths(queue.stretch(class.load) / class.stretch_alone * class.excess)
    };
    classes.iter().flat_map(|class| std::iter::repeat_n(slowdown(class), class.tasks)).collect()
}

/// Tasks with the same rate.
struct Class {
    tasks: usize,
    /// The number of outstanding transactions of each task.
    streams: u64,
    /// The fraction of the bus that one stream would use alone.
    load: f64,
    /// The slowdown of a task's stream by the task's other streams.
    stretch_alone: f64,
    /// The ratio of a task's rate to the bus's capacity, at least 1.
    excess: f64,
}

impl Class {
    /// The tasks with these rates, which are equal; at least one.
    fn new(capacity_per_ms: u64, streams_of_full: u64, equal: &[u32]) -> Self {
        let nominal_rate = u64::from(equal[0]);
        let rate = nominal_rate.min(capacity_per_ms);
        let streams = streams(rate, capacity_per_ms, streams_of_full);
        let load = load(real(rate) / real(capacity_per_ms), streams);
        let stretch_alone = stretch_alone(load, streams);
        Class { tasks: equal.len(), streams, load, stretch_alone, excess: real(nominal_rate) / real(rate) }
    }
}

/// The number of outstanding transactions of a task with this rate.
fn streams(rate_per_ms: u64, capacity_per_ms: u64, streams_of_full: u64) -> u64 {
    (rate_per_ms * streams_of_full / capacity_per_ms).max(1)
}

/// The load of each of `streams` streams that together, alone on the bus, use the fraction `share` of it.
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

/// The distribution of the number of transactions at the bus, waiting or in service: a probability for each
/// number.
struct Queue(Vec<f64>);

impl Queue {
    fn empty() -> Self {
        Queue(vec![1.0])
    }

    /// The slowdown of a further stream of this load by the transactions at the bus.
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
        // In descending order, since each probability is computed from the old value of the next smaller
        // number.
        for n in (1..self.0.len()).rev() {
            self.0[n] = ((1.0 - load) * self.0[n] + load * real(n as u64) * self.0[n - 1]) / stretch;
        }
        self.0[0] *= (1.0 - load) / stretch;
    }
}

#[cfg(test)]
mod tests;
