use super::super::pace;
use super::*;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 2_048 * MIB;

/// What was taken from a unit that has these pages, and had them before. No time passes.
fn learn(rates: &mut Rates, taking: &mut Taking, unit: UnitMemory, facts: &MemoryFacts, owes: bool) {
    rates.look(0, taking, unit, facts, owes);
}

/// A borrower has 4 MiB of clean pages, and 20 are taken from it: these, and what goes to swap. It reads on, and has as many clean
/// pages as were taken when it is looked at again. 16 MiB that take a sixth of a second go to swap at 96 MiB/s.
#[test]
fn what_a_unit_reads_anew_was_not_taken_from_it() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let had =
        |clean: u64| UnitMemory { used: (500 + clean) * MIB, anonymous: 500 * MIB, ..UnitMemory::default() };
    let taken = |mib: u64, ms: u64| Taken { bytes: mib * MIB, ns: ms * MS };
    let callable = |rates: &Rates, clean| rates.pace(had(clean), &facts).within(1_000 * MS) / MIB;
    let mut rates = Rates::default();
    // 4 MiB are dropped in 1/32 s, at the rate that is assumed.
    rates.learn(taken(20, 197), had(4), &facts);
    assert_eq!((callable(&rates, 0), callable(&rates, 128)), (96, 128));
    // Too little is left to tell; and what is left is no faster than all together.
    let learnt = rates.clone();
    rates.learn(taken(20, 400), had(14), &facts);
    assert_eq!(rates, learnt);
    let mut quick = Rates::default();
    quick.learn(taken(40, 100), had(20), &facts);
    assert_eq!(callable(&quick, 0), 400);
    assert_eq!(callable(&quick, 900), 400, "nothing is slower to drop than to swap out");
    // Of 100 MiB, 1 was in no file, in swap already; 20 were clean, and 79 had to be written.
    let mostly = UnitMemory {
        used: 221 * MIB,
        anonymous: MIB,
        swap_cached: MIB,
        dirty: 200 * MIB,
        ..UnitMemory::default()
    };
    let mut written = Rates::default();
    written.learn(taken(100, 2_000), mostly, &facts);
    assert_eq!((written.dropped, written.written.measured), (Rates::default().dropped, true));
    // They are written faster than pages are swapped out now, so they go first: at 43 MiB/s, not 32.
    let both =
        UnitMemory { used: 700 * MIB, anonymous: 500 * MIB, dirty: 200 * MIB, ..UnitMemory::default() };
    assert_eq!(written.pace(both, &facts).within(1_000 * MS) / MIB, 43);
    // Of 100 MiB that came since pages were counted nobody knows whether they can be dropped.
    assert_eq!(UnitMemory { used: 800 * MIB, uncounted: 100 * MIB, ..both }.clean(), 0);
    // What is all in swap already only has to be dropped: 128 MiB a second, as is assumed. If that takes no time, it goes before what
    // must be written.
    let in_swap =
        UnitMemory { used: 500 * MIB, anonymous: 500 * MIB, swap_cached: 500 * MIB, ..UnitMemory::default() };
    assert_eq!(Rates::default().pace(in_swap, &facts).within(1_000 * MS) / MIB, 128);
    let and_dirty = UnitMemory { used: 700 * MIB, dirty: 200 * MIB, ..in_swap };
    assert_eq!(Rates::free_to_drop().pace(and_dirty, &facts).within(0) / MIB, 500);
    // With as many clean pages from the start, it is these that were taken.
    rates.learn(taken(20, 20), had(20), &facts);
    assert_eq!(callable(&rates, 0), 96);
    assert!(callable(&rates, 900) > 800);
}

/// 4 MiB go to swap, too little to tell. An hour later the unit has read 400 MiB, and 100 of these are dropped within 10 ms. That is
/// not how fast swap is.
#[test]
fn what_was_dropped_later_does_not_count_for_swap() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |clean: u64, taken: u64, ms: u64| UnitMemory {
        used: (500 + clean) * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: ms * MS,
        ..UnitMemory::default()
    };
    let (mut rates, mut taking) = (Rates::default(), Taking::default());
    for (s, unit) in
        [(0, has(0, 0, 0)), (1, has(0, 4, 125)), (3_600, has(400, 4, 125)), (3_601, has(300, 104, 135))]
    {
        rates.look(s * 1_000 * MS, &mut taking, unit, &facts, false);
    }
    assert_eq!(rates.pace(has(0, 0, 0), &facts).within(1_000 * MS) / MIB, 32);
}

#[test]
fn rates_follow_what_taking_took() {
    let (mut rates, mut before) = (Rates::default(), Taking::default());
    let second = 1_000 * MS;
    let seen = |taken: u64, ms: u64| UnitMemory {
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
    // Of 400 ms, three quarters count: at 128 MiB/s as long as nothing was measured.
    let within = |rates: &Rates, unit, facts: &MemoryFacts, time| {
        rates.pace(unit, facts).within(pace::relied(time)) / MIB
    };
    let none = swap(0, 0);
    let callable = |rates: &Rates| within(rates, seen(0, 0), &none, 400 * MS);
    assert_eq!(callable(&rates), 128 * 3 / 10);
    // 16 MiB in 16 ms: 1,000 MiB/s, which replaces what was assumed.
    learn(&mut rates, &mut before, seen(16, 16), &none, false);
    assert_eq!(callable(&rates), 300);
    // Too little to tell; while more is being taken, not yet; then 100 MiB in 500 ms, a quarter of the way down from 1,000 to 200.
    learn(&mut rates, &mut before, seen(20, 300), &none, false);
    learn(&mut rates, &mut before, seen(100, 400), &none, true);
    assert_eq!(callable(&rates), 300);
    learn(&mut rates, &mut before, seen(116, 516), &none, false);
    assert_eq!(callable(&rates), 240);
    // 40 MiB at 1,000 MiB/s: a quarter of the way up, to 850. Nothing in a second: half way down.
    learn(&mut rates, &mut before, seen(156, 556), &none, false);
    assert_eq!(callable(&rates), 255);
    learn(&mut rates, &mut before, seen(156, 1_556), &none, true);
    assert_eq!(callable(&rates), 127);
    // The unit was made anew: what it counts is no measurement, and what follows is.
    learn(&mut rates, &mut before, seen(1, 1), &none, false);
    assert_eq!(callable(&rates), 127);
    learn(&mut rates, &mut before, seen(65, 65), &none, false);
    assert_eq!(callable(&rates), 170);
    // Anonymous memory, with swap: 32 MiB/s at first; then 16 MiB were taken in a tenth of a second.
    let anonymous = UnitMemory { anonymous: 600 * MIB, ..seen(0, 0) };
    assert_eq!(within(&rates, anonymous, &swap(1_000, 0), second), 24);
    let took = UnitMemory { anonymous: 600 * MIB, ..seen(16, 100) };
    learn(&mut rates, &mut Taking::default(), took, &swap(1_000, 0), false);
    assert_eq!(within(&rates, anonymous, &swap(1_000, 0), second), 120);
    let callable_into = |swap: &MemoryFacts| within(&rates, anonymous, swap, second);
    assert_eq!(callable_into(&swap(10, 0)), 10, "no more than swap has room for");
    // A third is in swap already. With room for a fortieth of the rest, as much of it can be had; with none, nothing.
    let third = UnitMemory { swap_cached: 200 * MIB, ..anonymous };
    assert_eq!([10, 0].map(|room| within(&rates, third, &swap(room, 0), second)), [10 + 5, 0]);
    // Swap that is memory: a quarter of each page stays there; of what has to be written to files, nothing does.
    assert_eq!((callable_into(&swap(1_000, 250)), callable_into(&swap(40, 250))), (90, 30));
    assert_eq!(callable_into(&swap(1_000, 1_000)), 0, "what cannot be compressed frees nothing");
    let dirty = UnitMemory { dirty: 20 * MIB, used: 20 * MIB, ..UnitMemory::default() };
    // 20 MiB take 625 of 750 ms as long as no such pages were taken; an eighth of a second is left at 160 MiB/s.
    assert_eq!(within(&rates, dirty, &swap(1_000, 250), second), 20 + 15);
    // What there is to be swapped goes before, since it goes faster; 60 MiB take half of the time.
    let both = |mib: u64| UnitMemory { anonymous: mib * MIB, used: (20 + mib) * MIB, ..dirty };
    assert_eq!([600, 60].map(|mib| within(&rates, both(mib), &swap(1_000, 250), second)), [90, 45 + 12]);
    assert_eq!(callable(&rates), 170, "one rate is not the other");
    // What is in swap already only has to be dropped: as fast as clean pages, 568 MiB/s, and 3/4 of a second is relied on.
    let cached = UnitMemory { swap_cached: 600 * MIB, ..anonymous };
    assert_eq!(within(&rates, cached, &swap(1_000, 0), second), 426);
    // Another area is another device: nothing is known of it. What is known of the first is not forgotten.
    let other = MemoryFacts { swap_next: 7, ..swap(1_000, 0) };
    assert_eq!((callable_into(&other), callable_into(&swap(1_000, 0))), (24, 120));
    learn(
        &mut rates,
        &mut Taking::default(),
        UnitMemory { anonymous: 600 * MIB, ..seen(16, 1_000) },
        &other,
        false,
    );
    let callable_into = |swap: &MemoryFacts| within(&rates, anonymous, swap, second);
    assert_eq!((callable_into(&other), callable_into(&swap(1_000, 0))), (12, 120));
}

/// A borrower owes 100 MiB, and has them less after two seconds. An order took 10 of them, in one second: the unit's own bound
/// did the rest. So they came at 50 MiB/s. What it gave up by itself does not count.
#[test]
fn what_came_back_counts_whoever_took_it() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |used: u64, reclaimed: u64, taken: u64| UnitMemory {
        used: used * MIB,
        anonymous: used * MIB,
        reclaimed: reclaimed * MIB,
        taken: taken * MIB,
        taking_ns: taken * 100 * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &Rates| rates.pace(has(600, 0, 0), &facts).within(1_000 * MS) / MIB;
    let came = |reclaimed: u64| {
        let (mut rates, mut taking) = (Rates::default(), Taking::default());
        rates.look(0, &mut taking, has(500, 7, 0), &facts, false);
        rates.look(1_000 * MS, &mut taking, has(500, 7, 0), &facts, true);
        rates.look(1_900 * MS, &mut taking, has(420, 87, 5), &facts, true);
        assert_eq!(callable(&rates), 32, "while more is being taken, not yet");
        rates.look(3_000 * MS, &mut taking, has(400, reclaimed, 10), &facts, false);
        callable(&rates)
    };
    assert_eq!([107, 37, 500].map(came), [50, 15, 50]);
    // What was reclaimed is told late. 60 MiB more are in swap after two seconds.
    let (mut rates, mut taking) = (Rates::default(), Taking::default());
    for (ms, used, swapped, owes) in [(0, 500, 900, true), (2_000, 400, 960, false)] {
        let unit = UnitMemory { swapped: swapped * MIB, ..has(used, 7, 0) };
        rates.look(ms * MS, &mut taking, unit, &facts, owes);
    }
    assert_eq!(callable(&rates), 30);
}

/// 20 MiB go to swap in 400 ms, in three looks. The unit reads 100 MiB of files meanwhile: they were not there to be dropped.
#[test]
fn what_was_there_when_it_began_was_taken() {
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |clean: u64, taken: u64| UnitMemory {
        used: (500 + clean) * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: taken * 20 * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &Rates, clean| rates.pace(has(clean, 0), &facts).within(1_000 * MS) / MIB;
    let (mut rates, mut taking) = (Rates::default(), Taking::default());
    rates.look(0, &mut taking, has(0, 0), &facts, false);
    for (ms, clean, taken) in [(100, 0, 0), (200, 50, 6), (300, 100, 12)] {
        rates.look(ms * MS, &mut taking, has(clean, taken), &facts, true);
    }
    rates.look(400 * MS, &mut taking, has(100, 20), &facts, false);
    assert_eq!((callable(&rates, 0), callable(&rates, 128)), (50, 128));
}

/// A trial takes 20 MiB: the first 8 in 80 ms, the rest in 720. It is one amount.
#[test]
fn what_a_trial_takes_is_one_amount() {
    let facts = MemoryFacts { total: TOTAL, swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let has = |taken: u64, ms: u64| UnitMemory {
        used: 500 * MIB,
        anonymous: 500 * MIB,
        taken: taken * MIB,
        taking_ns: ms * MS,
        ..UnitMemory::default()
    };
    let callable = |rates: &Rates| rates.pace(has(0, 0), &facts).within(1_000 * MS) / MIB;
    let (mut rates, mut taking) = (Rates::default(), Taking::default());
    taking.tried = Some(0);
    rates.look(200 * MS, &mut taking, has(8, 80), &facts, false);
    assert_eq!(callable(&rates), 32, "not yet");
    rates.look(1_000 * MS, &mut taking, has(20, 800), &facts, false);
    assert_eq!(callable(&rates), 25);
}

#[test]
fn a_machine_that_drops_in_no_time_learns_of_writes_alone() {
    let (mut rates, mut before) = (Rates::free_to_drop(), Taken::default());
    let unit = UnitMemory { used: 5_000 * MIB, anonymous: 600 * MIB, ..UnitMemory::default() };
    let facts = MemoryFacts { swap_free: 1_000 * MIB, ..MemoryFacts::default() };
    let taken = |mib: u64, ms: u64| Taken { bytes: mib * MIB, ns: ms * MS };
    let callable = |rates: &Rates| rates.pace(unit, &facts).within(pace::relied(1_000 * MS)) / MIB;
    assert_eq!(callable(&rates), 4_400 + 24, "what is clean costs no time");
    rates.learn_written(&mut before, taken(4, 500), false, 0);
    assert_eq!(callable(&rates), 4_400 + 24, "too little to tell");
    rates.learn_written(&mut before, taken(8, 1_000), true, 0);
    assert_eq!(callable(&rates), 4_400 + 6, "clean or not, it was written");
}

#[test]
fn a_trial_takes_little_seldom_and_of_one_kind() {
    let mut rates = Rates::default();
    let clean = UnitMemory { used: 600 * MIB, ..UnitMemory::default() };
    let mixed = UnitMemory { anonymous: 500 * MIB, ..clean };
    let mut swap_free = 0;
    let mut trial = |ms: u64, unit, callable: u64, total: u64| {
        let facts = MemoryFacts { total, swap_free, ..MemoryFacts::default() };
        rates.trial(ms * MS, unit, callable * MIB, &facts).map(|bytes| bytes / MIB)
    };
    assert_eq!(trial(0, mixed, 100, TOTAL), None);
    assert_eq!(trial(0, clean, 100, TOTAL), Some(32));
    assert_eq!((trial(499, clean, 100, TOTAL), trial(500, clean, 10, TOTAL)), (None, Some(10)));
    assert_eq!((trial(1_499, clean, 100, TOTAL), trial(1_500, clean, 100, 1 << 40)), (None, Some(64)));
    swap_free = 1_000 * MIB;
    let facts = MemoryFacts { total: TOTAL, swap_free, ..MemoryFacts::default() };
    let tried = rates.trial(9_000 * MS, mixed, 100 * MIB, &facts);
    assert_eq!(tried, Some(32 * MIB), "what could go to swap");
}
