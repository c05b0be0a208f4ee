use proptest::prelude::*;

use super::*;

/// The published bus: 29.5 transactions per us (seed 003, section 3).
const PUBLISHED: scenario::Bus = scenario::Bus { transactions_per_ms: 29_500, ..scenario::Bus::DEFAULT };

fn slowdowns(capacity: u64, rates: &[u32]) -> Vec<u64> {
    let mut out = Vec::new();
    Bus::new(&scenario::Bus { transactions_per_ms: capacity, ..scenario::Bus::DEFAULT })
        .slowdowns(rates, &mut out);
    out
}

/// What the first of these tasks suffers on the published bus, in millionths.
fn published(rates: &[u32]) -> u64 {
    slowdowns(PUBLISHED.transactions_per_ms, rates)[0]
}

fn carried_per_ms(rates: &[u32], slowdowns: &[u64]) -> f64 {
    rates.iter().zip(slowdowns).map(|(rate, slowdown)| f64::from(*rate) * 1e6 / real(*slowdown)).sum()
}

// Loads 0.4 and 0.2 of the bus. Each finds the other there with the probability that it is at the bus when
// alone, its load: the first is slowed by 1 + 0.4 * 0.2, the second by 1 + 0.2 * 0.4.
#[test]
fn two_tasks_by_hand() {
    assert_eq!(slowdowns(1_000, &[400, 200]), [1_080_000, 1_080_000]);
}

// Three of load 0.4. Two others: P(0), P(1), P(2) = 0.36, 0.48, 2 * 0.16 = 0.32, in sum 1.16; mean (0.48 +
// 0.64) / 1.16. Slowed by 1 + 0.4 * 1.12 / 1.16 = 1.386207.
#[test]
fn three_tasks_by_hand() {
    assert_eq!(slowdowns(1_000, &[400, 400, 400]), [1_386_207; 3]);
}

// A task that takes 0.6 of the bus has two streams: 2 u / (1 + u^2) = 0.6, u = 1/3. Beside one of load 0.4,
// whose slowdown: two streams of 1/3: P = 4/9, 4/9, 2 * 1/9, in sum 10/9; mean (4/9 + 4/9) / (10/9) = 0.8;
// 1 + 0.4 * 0.8 = 1.32. The first task's second stream meets 0.4 and its own 1/3: P = 0.6 * 2/3 = 0.4,
// 0.6/3 + 0.4 * 2/3 = 0.466667, 2 * 0.4/3 = 0.266667, in sum 1.133333; mean 1 / 1.133333; 1 + 1/3 /
// 1.133333 = 1.294118. Alone it meets 1 + 1/9: the ratio is 1.164706.
#[test]
fn two_streams_by_hand() {
    assert_eq!(slowdowns(1_000, &[600, 400]), [1_164_706, 1_320_000]);
}

// Each waits for all others' transactions and never thinks: a third of the bus each.
#[test]
fn who_does_nothing_but_transfer_shares_evenly() {
    assert_eq!(slowdowns(1_000, &[1_000; 3]), [3_000_000; 3]);
}

#[test]
fn alone_nobody_is_slowed() {
    for rate in [1, 499, 500, 749, 750, 999, 1_000] {
        assert_eq!(slowdowns(1_000, &[rate]), [MILLIONTH], "rate {rate}");
    }
}

#[test]
fn a_rate_beyond_the_bus_is_slowed_to_the_bus() {
    assert_eq!(slowdowns(1_000, &[2_500]), [2_500_000]);
}

#[test]
fn who_transfers_nothing_is_not_slowed_and_slows_nobody() {
    assert!(slowdowns(1_000, &[]).is_empty());
    assert_eq!(slowdowns(1_000, &[0, 0]), [MILLIONTH; 2]);
    assert_eq!(slowdowns(1_000, &[0, 400, 0, 200]), [MILLIONTH, 1_080_000, MILLIONTH, 1_080_000]);
    assert_eq!(slowdowns(0, &[0, 1]), [MILLIONTH; 2], "a bus of nothing counts as one of 1 per ms");
}

/// An even division slows a task only when the bus is full, and then those first that want most.
#[test]
fn an_even_division_gives_each_its_rate_or_an_equal_part() {
    let bus = scenario::Bus {
        transactions_per_ms: 1_000,
        division: scenario::BusDivision::Even,
        ..scenario::Bus::DEFAULT
    };
    let mut out = Vec::new();
    Bus::new(&bus).slowdowns(&[400, 0, 600], &mut out);
    assert_eq!(out, [MILLIONTH; 3]);
    // 100 are left alone; the other three have 300 each.
    Bus::new(&bus).slowdowns(&[600, 100, 600, 900], &mut out);
    assert_eq!(out, [2_000_000, MILLIONTH, 2_000_000, 3_000_000]);
}

#[test]
fn streams_are_whole_quarters_of_the_bus() {
    let rates = [1, 499, 500, 749, 750, 999, 1_000];
    assert_eq!(rates.map(|rate| streams(rate, 1_000, 4)), [1, 1, 2, 2, 3, 3, 4]);
    assert_eq!([14_452, 23_600].map(|rate| streams(rate, 29_500, 4)), [1, 3], "the published programs");
}

// A task that uses much of the bus alone is split into enough streams that each uses the bus for less than
// half of the time.
#[test]
fn streams_think_longer_than_their_transactions_last() {
    for rate in 1u32..930 {
        let share = f64::from(rate) / 1_000.0;
        let load = load(share, streams(rate.into(), 1_000, 4));
        assert!(load < 0.5, "share {share}: load {load}");
    }
}

/// The rate of one thread alone, in transactions per ms, where two together have this rate: see the file's
/// head.
fn one_of_two(together_per_ms: f64) -> u32 {
    let part = together_per_ms / 29_500.0;
    let alone = 29_500.0 * part / (1.0 + (1.0 - part * part).sqrt());
    u32::try_from(millionths(alone / 1e6)).unwrap()
}

/// How much slower an application of two threads is beside these tasks, against alone; in percent.
fn slower_by_percent(together_per_ms: f64, beside: &[u32]) -> f64 {
    let thread = one_of_two(together_per_ms);
    let with_all = [&[thread, thread], beside].concat();
    let ratio = real(published(&with_all)) / real(published(&[thread, thread]));
    (1000.0 * (ratio - 1.0)).round() / 10.0
}

// Seed 003, section 3: the application with the highest rate has 23.31 per us with two threads. v =
// 23.31/29.5 = 0.790169, sqrt(1 - v^2) = 0.612887, one alone 29.5 * 0.790169 / 1.612887 = 14.452.
#[test]
fn a_thread_alone_has_more_than_half_of_the_rate_of_two() {
    let thread = one_of_two(23_310.0);
    assert_eq!(thread, 14_452);
    let together = carried_per_ms(&[thread; 2], &slowdowns(29_500, &[thread; 2]));
    assert!((together - 23_310.0).abs() < 1.0, "{together}");
}

// Printed: two instances at once are slower by 41 % to 61 %.
#[test]
fn two_instances_of_the_published_applications() {
    let instance = |rate: f64| slower_by_percent(rate, &[one_of_two(rate); 2]);
    assert!((instance(23_310.0) - 60.8).abs() < 0.05, "{}", instance(23_310.0));
    assert!((instance(19_600.0) - 41.2).abs() < 0.05, "{}", instance(19_600.0));
    let rates = [one_of_two(23_310.0); 4];
    let total = carried_per_ms(&rates, &slowdowns(29_500, &rates));
    assert!((total - 28_990.0).abs() < 5.0, "{total}");
}

// Printed, beside two programs that stream with 23.6 per us: 2 to almost 3 times as long for those with high
// rates, 2 % at least for the others; and nothing beside two programs with 0.0037 per us (3.7 per ms, here
// 4).
#[test]
fn beside_the_published_streaming_programs() {
    let streaming = |rate: f64| slower_by_percent(rate, &[23_600; 2]);
    assert!((streaming(23_310.0) - 186.8).abs() < 0.1, "{}", streaming(23_310.0));
    assert!((streaming(19_600.0) - 157.4).abs() < 0.1, "{}", streaming(19_600.0));
    assert!((streaming(480.0) - 3.4).abs() < 0.1, "{}", streaming(480.0));
    assert!(slower_by_percent(23_310.0, &[4; 2]) < 0.1);
}

#[test]
fn slowed_long_before_the_bus_is_full() {
    // Four tasks ask for half of the bus. Beside three of load 1/8: P = 0.669922, 0.287109, 2 * 0.041016, 6 *
    // 0.001953, in sum 1.050781; mean 0.486328 / 1.050781 = 0.462825; 1 + 0.462825 / 8.
    assert_eq!(slowdowns(1_000, &[125; 4]), [1_057_853; 4]);
}

#[test]
fn remembered_answers_are_the_same_and_bounded() {
    let mut bus = Bus::new(&PUBLISHED);
    let mut out = vec![7; 99];
    for first in 1..2_000u32 {
        let rates = [&[first; 50][..], &[0, 5_000]].concat();
        bus.slowdowns(&rates, &mut out);
        let fresh = out.clone();
        bus.slowdowns(&rates, &mut out);
        assert_eq!(out, fresh);
        assert_eq!(out.len(), 52);
        assert_eq!(bus.cached_rates, bus.cache.keys().map(Vec::len).sum::<usize>());
        assert!(bus.cached_rates <= CACHED_RATES_MAX);
    }
    // 2^16 / 51 = 1,285 answers fit, so all were forgotten once.
    assert!(bus.cache.len() < 1_999);
}

#[test]
fn a_large_machine_shares_out_a_full_bus() {
    // 512 tasks that each ask for a tenth: 51.2 times the bus. Each gets 1/512, a slowdown of 51.2.
    let slowdowns = slowdowns(1_000, &[100; 512]);
    assert_eq!(slowdowns, [51_200_000; 512]);
}

/// A bus of a thousand, some tasks that each ask for up to the whole of it.
fn tasks() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(
        prop_oneof![0u32..=1_000, Just(0), Just(300), Just(499), Just(500), Just(1_000)],
        1..12,
    )
}

proptest! {
    /// The bus carries no more than it can; up to the rounding of the slowdowns.
    #[test]
    fn the_bus_is_never_overfull(mut rates in tasks(), beyond in 0u32..5_000) {
        rates.push(beyond);
        let carried = carried_per_ms(&rates, &slowdowns(1_000, &rates));
        prop_assert!(carried <= 1_000.0 * (1.0 + 1e-6), "{carried}");
    }

    /// Neither is it left idle while two tasks would each take all of it.
    #[test]
    fn a_full_bus_is_used(mut rates in tasks()) {
        rates.extend([1_000, 1_000]);
        let carried = carried_per_ms(&rates, &slowdowns(1_000, &rates));
        prop_assert!(carried >= 1_000.0 * (1.0 - 1e-6), "{carried}");
    }

    /// One more task makes nobody faster, nor does a higher rate of another; up to rounding.
    #[test]
    fn monotone(rates in tasks(), another in 0u32..1_000, more in 1u32..500) {
        let before = slowdowns(1_000, &rates);
        let beside = slowdowns(1_000, &[&rates[..], &[another]].concat());
        let greedier = slowdowns(1_000, &[&rates[..], &[another + more]].concat());
        for task in 0..rates.len() {
            prop_assert!(before[task] >= MILLIONTH);
            prop_assert!(beside[task] + 1 >= before[task]);
            prop_assert!(greedier[task] + 1 >= beside[task], "{} {}", beside[task], greedier[task]);
        }
    }

    /// The answers go with the tasks, not with their places; equal tasks get equal answers.
    #[test]
    fn the_order_does_not_matter(rates in tasks(), turn in 0usize..12) {
        let mut turned = rates.clone();
        turned.rotate_left(turn % rates.len());
        let mut expected = slowdowns(1_000, &rates);
        expected.rotate_left(turn % rates.len());
        prop_assert_eq!(slowdowns(1_000, &turned), expected);
    }

    /// Against the network's balance equations: with one stream each, the probability of every set of streams
    /// at the bus is (its size)! times the product of the loads inside and of their complements outside.
    /// Throughputs from all 2^N sets.
    #[test]
    fn equals_the_sum_over_all_states(rates in prop::collection::vec(1u32..500, 1..9)) {
        let loads: Vec<f64> = rates.iter().map(|rate| f64::from(*rate) / 1_000.0).collect();
        let answers = slowdowns(1_000, &rates);
        for task in 0..rates.len() {
            let thinking = 1.0 - part_of_time_at_the_bus(&loads, task);
            // Alone it thinks for 1 - u of the time; slowed by I, it thinks for (1 - u) / I.
            let exact = (1.0 - loads[task]) / thinking;
            prop_assert!((real(answers[task]) / 1e6 - exact).abs() < 1e-6, "{} {exact}", answers[task]);
        }
    }
}

/// By enumeration of all sets of streams that may be at the bus.
fn part_of_time_at_the_bus(loads: &[f64], task: usize) -> f64 {
    let weight = |set: u32| {
        let factors = loads.iter().enumerate().map(|(i, u)| if set >> i & 1 == 1 { *u } else { 1.0 - u });
        (1..=set.count_ones()).map(f64::from).chain(factors).product::<f64>()
    };
    let sets = || 0..1u32 << loads.len();
    let with: f64 = sets().filter(|set| set >> task & 1 == 1).map(weight).sum();
    with / sets().map(weight).sum::<f64>()
}
