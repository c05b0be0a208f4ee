use super::*;
use crate::memory::reclaim_curve::reliable;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 2_048 * MIB;

/// A sample of a unit that had the same kinds of pages before. No time passes.
fn learn(
    rates: &mut ReclaimRates,
    reclaiming: &mut Reclaiming,
    unit: UnitMemory,
    facts: &MemoryFacts,
    owes: bool,
) {
    rates.observe(0, reclaiming, unit, facts, owes);
}

/// A borrower has 4 MiB of clean pages, and 20 MiB are reclaimed: these, and 16 that go to swap. It reads on,
/// and at the next sample has as many clean pages as were reclaimed. 16 MiB in a sixth of a second go to swap
/// at 96 MiB/s.
#[test]
fn pages_read_after_reclaim_began_were_not_reclaimed() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let had =
        |clean: u64| UnitMemory { used: (500 + clean) * MIB, anonymous: 500 * MIB, ..UnitMemory::default() };
    let taken = |mib: u64, ms: u64| Taken { bytes: mib * MIB, ns: ms * MS };
    let callable = |rates: &ReclaimRates, clean| rates.curve(had(clean), &facts).within(1_000 * MS) / MIB;
    let mut rates = ReclaimRates::default();
    // 4 MiB are dropped in 1/32 s, at the assumed rate.
    rates.learn(taken(20, 197), had(4), &facts);
    assert_eq!((callable(&rates, 0), callable(&rates, 128)), (96, 128));
    // The rest is too little for a measurement. And the rest is never faster than the whole.
    let learnt = rates.clone();
    rates.learn(taken(20, 400), had(14), &facts);
    assert_eq!(rates, learnt);
    let mut quick = ReclaimRates::default();
    quick.learn(taken(40, 100), had(20), &facts);
    assert_eq!(callable(&quick, 0), 400);
    assert_eq!(callable(&quick, 900), 400, "nothing is slower to drop than to swap out");
    // Of 100 MiB, 1 was anonymous and in swap already, 20 were clean, and 79 had to be written.
    let mostly = UnitMemory {
        used: 221 * MIB,
        anonymous: MIB,
        swap_cached: MIB,
        dirty: 200 * MIB,
        ..UnitMemory::default()
    };
    let mut written = ReclaimRates::default();
    written.learn(taken(100, 2_000), mostly, &facts);
    assert_eq!((written.dropped, written.written.measured), (ReclaimRates::default().dropped, true));
    // Writing is now faster than swapping out, so dirty pages go first: at 43 MiB/s, not 32.
    let both =
        UnitMemory { used: 700 * MIB, anonymous: 500 * MIB, dirty: 200 * MIB, ..UnitMemory::default() };
    assert_eq!(written.curve(both, &facts).within(1_000 * MS) / MIB, 43);
    // Whether 100 MiB that came after pages were counted can be dropped is unknown.
    assert_eq!(UnitMemory { used: 800 * MIB, uncounted: 100 * MIB, ..both }.clean(), 0);
    // Pages that are all in swap already only have to be dropped: at the assumed 128 MiB/s. If dropping takes
    // no time, they go before dirty pages.
    let in_swap =
        UnitMemory { used: 500 * MIB, anonymous: 500 * MIB, swap_cached: 500 * MIB, ..UnitMemory::default() };
    assert_eq!(ReclaimRates::default().curve(in_swap, &facts).within(1_000 * MS) / MIB, 128);
    let and_dirty = UnitMemory { used: 700 * MIB, dirty: 200 * MIB, ..in_swap };
    assert_eq!(ReclaimRates::free_to_drop().curve(and_dirty, &facts).within(0) / MIB, 500);
    // With as many clean pages from the start, these were reclaimed.
    rates.learn(taken(20, 20), had(20), &facts);
    assert_eq!(callable(&rates, 0), 96);
    assert!(callable(&rates, 900) > 800);
}

/// 4 MiB go to swap, too little for a measurement. An hour later the unit has read 400 MiB, and 100 of these
/// are dropped within 10 ms. That does not measure swap.
#[test]
fn pages_dropped_later_do_not_count_for_swap() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |clean: u64, taken: u64, ms: u64| UnitMemory {
        used: (500 + clean) * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: ms * MS,
        ..UnitMemory::default()
    };
    let (mut rates, mut reclaiming) = (ReclaimRates::default(), Reclaiming::default());
    for (s, unit) in
        [(0, has(0, 0, 0)), (1, has(0, 4, 125)), (3_600, has(400, 4, 125)), (3_601, has(300, 104, 135))]
    {
        rates.observe(s * 1_000 * MS, &mut reclaiming, unit, &facts, false);
    }
    assert_eq!(rates.curve(has(0, 0, 0), &facts).within(1_000 * MS) / MIB, 32);
}

#[test]
fn rates_follow_measurements() {
    let (mut rates, mut before) = (ReclaimRates::default(), Reclaiming::default());
    let second = 1_000 * MS;
    let memory = |taken: u64, ms: u64| UnitMemory {
        used: 600 * MIB,
        taken: taken * MIB,
        taking_ns: ms * MS,
        ..UnitMemory::default()
    };
    let swap = |mib: u64, packed_permille: u64| MemoryFacts {
        swap_free: mib * MIB,
        packed_permille,
        ..MemoryFacts::default()
    };
    // Three quarters of 400 ms count: at 128 MiB/s until something was measured.
    let within = |rates: &ReclaimRates, unit, facts: &MemoryFacts, time| {
        rates.curve(unit, facts).within(reliable(time)) / MIB
    };
    let none = swap(0, 0);
    let callable = |rates: &ReclaimRates| within(rates, memory(0, 0), &none, 400 * MS);
    assert_eq!(callable(&rates), 128 * 3 / 10);
    // 16 MiB in 16 ms: 1,000 MiB/s, which replaces the assumed rate.
    learn(&mut rates, &mut before, memory(16, 16), &none, false);
    assert_eq!(callable(&rates), 300);
    // Too little; then not while reclaim goes on; then 100 MiB in 500 ms: a quarter of the way down from
    // 1,000 to 200.
    learn(&mut rates, &mut before, memory(20, 300), &none, false);
    learn(&mut rates, &mut before, memory(100, 400), &none, true);
    assert_eq!(callable(&rates), 300);
    learn(&mut rates, &mut before, memory(116, 516), &none, false);
    assert_eq!(callable(&rates), 240);
    // 40 MiB at 1,000 MiB/s: a quarter of the way up, to 850. Nothing in a second: half way down.
    learn(&mut rates, &mut before, memory(156, 556), &none, false);
    assert_eq!(callable(&rates), 255);
    learn(&mut rates, &mut before, memory(156, 1_556), &none, true);
    assert_eq!(callable(&rates), 127);
    // The unit's counters began anew: the first sample is no measurement, the next is.
    learn(&mut rates, &mut before, memory(1, 1), &none, false);
    assert_eq!(callable(&rates), 127);
    learn(&mut rates, &mut before, memory(65, 65), &none, false);
    assert_eq!(callable(&rates), 170);
    // Anonymous memory, with swap: 32 MiB/s at first; then 16 MiB were reclaimed in a tenth of a second.
    let anonymous = UnitMemory { anonymous: 600 * MIB, ..memory(0, 0) };
    assert_eq!(within(&rates, anonymous, &swap(1_000, 0), second), 24);
    let took = UnitMemory { anonymous: 600 * MIB, ..memory(16, 100) };
    learn(&mut rates, &mut Reclaiming::default(), took, &swap(1_000, 0), false);
    assert_eq!(within(&rates, anonymous, &swap(1_000, 0), second), 120);
    let callable_into = |swap: &MemoryFacts| within(&rates, anonymous, swap, second);
    assert_eq!(callable_into(&swap(10, 0)), 10, "no more than swap has room for");
    // A third is in swap already. If swap has room for a fortieth of the rest, a fortieth of that third
    // counts; without room, nothing does.
    let third = UnitMemory { swap_cached: 200 * MIB, ..anonymous };
    assert_eq!([10, 0].map(|room| within(&rates, third, &swap(room, 0), second)), [10 + 5, 0]);
    // Swap that is memory: a quarter of each page stays there. Nothing stays of dirty file pages.
    assert_eq!((callable_into(&swap(1_000, 250)), callable_into(&swap(40, 250))), (90, 30));
    assert_eq!(callable_into(&swap(1_000, 1_000)), 0, "incompressible pages free nothing");
    let dirty = UnitMemory { dirty: 20 * MIB, used: 20 * MIB, ..UnitMemory::default() };
    // 20 MiB take 625 of 750 ms at the assumed rate; an eighth of a second is left at 160 MiB/s.
    assert_eq!(within(&rates, dirty, &swap(1_000, 250), second), 20 + 15);
    // Anonymous pages go first, since swapping is faster; 60 MiB take half of the time.
    let both = |mib: u64| UnitMemory { anonymous: mib * MIB, used: (20 + mib) * MIB, ..dirty };
    assert_eq!([600, 60].map(|mib| within(&rates, both(mib), &swap(1_000, 250), second)), [90, 45 + 12]);
    assert_eq!(callable(&rates), 170, "one rate is not the other");
    // Pages in swap already are dropped as fast as clean pages, 568 MiB/s; 3/4 of a second is relied on.
    let cached = UnitMemory { swap_cached: 600 * MIB, ..anonymous };
    assert_eq!(within(&rates, cached, &swap(1_000, 0), second), 426);
    // Another area is another device, of which nothing is known. The first area's rate is kept.
    let other = MemoryFacts { swap_next: 7, ..swap(1_000, 0) };
    assert_eq!((callable_into(&other), callable_into(&swap(1_000, 0))), (24, 120));
    learn(
        &mut rates,
        &mut Reclaiming::default(),
        UnitMemory { anonymous: 600 * MIB, ..memory(16, 1_000) },
        &other,
        false,
    );
    let callable_into = |swap: &MemoryFacts| within(&rates, anonymous, swap, second);
    assert_eq!((callable_into(&other), callable_into(&swap(1_000, 0))), (12, 120));
}

/// A borrower owes 100 MiB, and has shrunk by that after two seconds. An order reclaimed 10 of them in one
/// second; the unit's own bound did the rest. So they came at 50 MiB/s. What the unit freed by itself does
/// not count.
#[test]
fn memory_counts_whether_an_order_or_the_bound_reclaimed_it() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |used: u64, reclaimed: u64, taken: u64| UnitMemory {
        used: used * MIB,
        anonymous: used * MIB,
        reclaimed: reclaimed * MIB,
        taken: taken * MIB,
        taking_ns: taken * 100 * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &ReclaimRates| rates.curve(has(600, 0, 0), &facts).within(1_000 * MS) / MIB;
    let came = |reclaimed: u64| {
        let (mut rates, mut reclaiming) = (ReclaimRates::default(), Reclaiming::default());
        rates.observe(0, &mut reclaiming, has(500, 7, 0), &facts, false);
        rates.observe(1_000 * MS, &mut reclaiming, has(500, 7, 0), &facts, true);
        rates.observe(1_900 * MS, &mut reclaiming, has(420, 87, 5), &facts, true);
        assert_eq!(callable(&rates), 32, "not while reclaim goes on");
        rates.observe(3_000 * MS, &mut reclaiming, has(400, reclaimed, 10), &facts, false);
        callable(&rates)
    };
    assert_eq!([107, 37, 500].map(came), [50, 15, 50]);
    // The count of reclaimed bytes lags. 60 MiB more are in swap after two seconds.
    let (mut rates, mut reclaiming) = (ReclaimRates::default(), Reclaiming::default());
    for (ms, used, swapped, owes) in [(0, 500, 900, true), (2_000, 400, 960, false)] {
        let unit = UnitMemory { swapped: swapped * MIB, ..has(used, 7, 0) };
        rates.observe(ms * MS, &mut reclaiming, unit, &facts, owes);
    }
    assert_eq!(callable(&rates), 30);
}

/// 20 MiB go to swap in 400 ms, over three samples. The unit reads 100 MiB of files meanwhile, which were not
/// there to be dropped when reclaim began.
#[test]
fn pages_present_when_reclaim_began_were_reclaimed() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |clean: u64, taken: u64| UnitMemory {
        used: (500 + clean) * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: taken * 20 * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &ReclaimRates, clean| rates.curve(has(clean, 0), &facts).within(1_000 * MS) / MIB;
    let (mut rates, mut reclaiming) = (ReclaimRates::default(), Reclaiming::default());
    rates.observe(0, &mut reclaiming, has(0, 0), &facts, false);
    for (ms, clean, taken) in [(100, 0, 0), (200, 50, 6), (300, 100, 12)] {
        rates.observe(ms * MS, &mut reclaiming, has(clean, taken), &facts, true);
    }
    rates.observe(400 * MS, &mut reclaiming, has(100, 20), &facts, false);
    assert_eq!((callable(&rates, 0), callable(&rates, 128)), (50, 128));
}

/// A trial reclaims 20 MiB: the first 8 in 80 ms, the rest in 720. They are one measurement.
#[test]
fn a_trial_is_one_measurement() {
    let facts = MemoryFacts { total: TOTAL, swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |taken: u64, ms: u64| UnitMemory {
        used: 500 * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: ms * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &ReclaimRates| rates.curve(has(0, 0), &facts).within(1_000 * MS) / MIB;
    let (mut rates, mut reclaiming) = (ReclaimRates::default(), Reclaiming::default());
    reclaiming.tried_at = Some(0);
    rates.observe(200 * MS, &mut reclaiming, has(8, 80), &facts, false);
    assert_eq!(callable(&rates), 32, "not yet");
    rates.observe(1_000 * MS, &mut reclaiming, has(20, 800), &facts, false);
    assert_eq!(callable(&rates), 25);
}

#[test]
fn a_machine_that_drops_in_no_time_learns_from_writes_alone() {
    let (mut rates, mut before) = (ReclaimRates::free_to_drop(), Taken::default());
    let unit = UnitMemory { used: 5_000 * MIB, anonymous: 600 * MIB, ..UnitMemory::default() };
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let taken = |mib: u64, ms: u64| Taken { bytes: mib * MIB, ns: ms * MS };
    let callable = |rates: &ReclaimRates| rates.curve(unit, &facts).within(reliable(1_000 * MS)) / MIB;
    assert_eq!(callable(&rates), 4_400 + 24, "clean pages cost no time");
    rates.learn_written(&mut before, taken(4, 500), false, 0);
    assert_eq!(callable(&rates), 4_400 + 24, "too little");
    rates.learn_written(&mut before, taken(8, 1_000), true, 0);
    assert_eq!(callable(&rates), 4_400 + 6, "clean or not, all was written");
}

#[test]
fn trials_are_small_rare_and_of_one_kind_of_page() {
    let mut rates = ReclaimRates::default();
    let clean = UnitMemory { used: 600 * MIB, ..UnitMemory::default() };
    let mixed = UnitMemory { anonymous: 500 * MIB, ..clean };
    let mut swap_free = 0;
    let mut trial = |ms: u64, unit, callable: u64, total: u64| {
        let facts = MemoryFacts { total, swap_free, ..MemoryFacts::default() };
        rates.bytes_to_try(ms * MS, unit, callable * MIB, &facts).map(|bytes| bytes / MIB)
    };
    assert_eq!(trial(0, mixed, 100, TOTAL), None);
    assert_eq!(trial(0, clean, 100, TOTAL), Some(32));
    assert_eq!((trial(499, clean, 100, TOTAL), trial(500, clean, 10, TOTAL)), (None, Some(10)));
    assert_eq!((trial(1_499, clean, 100, TOTAL), trial(1_500, clean, 100, 1 << 40)), (None, Some(64)));
    swap_free = 1_000 * MIB;
    let facts = MemoryFacts { total: TOTAL, swap_free, ..MemoryFacts::default() };
    let tried = rates.bytes_to_try(9_000 * MS, mixed, 100 * MIB, &facts);
    assert_eq!(tried, Some(32 * MIB), "pages that can go to swap");
}
