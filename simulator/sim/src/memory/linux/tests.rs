use commonhold_contract::Contract;
use proptest::prelude::*;

use super::super::tests::{A, B, MS, cached, grown, hardware, insist, write_all};
use super::super::{FileId, PageOut, SpaceId};
use super::*;

const X: UnitId = UnitId(4);
const PAGE: u64 = 4096;
const S: Time = 1_000 * MS;

/// a and b, and x within a.
fn contract() -> Contract {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    contract.add(None, "b");
    contract.add(Some(a), "x");
    contract
}

/// Of these frames 40 are the kernel's; up to 1 MiB the watermarks are 32, 40 and 48 frames.
fn memory(frames: u64) -> Memory {
    let hardware = Hardware { enforces: Enforces::Linux, ..hardware(frames) };
    Memory::new(&hardware, &contract()).unwrap()
}

/// Protects frames of a unit: all of low may be its own processes'.
fn protect(memory: &mut Memory, unit: UnitId, min: u64, low: u64) {
    memory.protect(unit, min * PAGE, low * PAGE, low * PAGE);
}

fn pages(out: &Reclaimed) -> u64 {
    out.writes.iter().map(PageOut::pages).sum()
}

/// The facts reported for a unit.
fn told(memory: &Memory, unit: UnitId) -> commonhold_policy::UnitMemory {
    memory.live_facts(memory.now, 0).units[unit.index()]
}

/// 800 KiB: sqrt(12,800) = 113, so 128 KiB, 32 frames, and a quarter. 4,000 KiB: sqrt(64,000) = 252 KiB, 63
/// frames, and 15. 64 GiB: 32 MiB, 8,192 frames; a thousandth of the machine is more than a quarter of that.
/// 8 TiB: 362 MiB, so 256.
#[test]
fn watermarks_are_those_of_linux() {
    let marks = |frames| {
        let Marks { min, low, high } = Marks::of(frames, PAGE);
        (min, low, high)
    };
    assert_eq!(marks(200), (32, 40, 48));
    assert_eq!(marks(1_000), (63, 78, 93));
    assert_eq!(marks(16 << 20), (8_192, 8_192 + 16_777, 8_192 + 2 * 16_777));
    assert_eq!(marks(2 << 30).0, 65_536);
    // 40 of 96 frames are the kernel's, 32 are kept, and 24 are needed.
    let linux = |frames| Hardware { enforces: Enforces::Linux, ..hardware(frames) };
    assert!(Memory::new(&linux(96), &contract()).is_ok());
    assert!(Memory::new(&linux(95), &contract()).is_err());
}

/// a is bounded to 60 frames, and 108 more are available. A request beyond the bound takes a's own pages,
/// once they are written.
#[test]
fn beyond_its_bound_a_unit_takes_its_own_pages() {
    let mut memory = memory(240);
    memory.set_bound(A, Some(60 * PAGE + 100));
    let (space, other) = (grown(&mut memory, A, 60), grown(&mut memory, B, 20));
    assert_eq!(memory.grow(space, 4), Grant::Short);
    let out = memory.reclaim(A, 4);
    assert_eq!((pages(&out), out.freed, out.waits, out.forced), (4, 0, true, false));
    assert_eq!(memory.grow(space, 4), Grant::Short);
    assert_eq!(memory.reclaim(A, 4), Reclaimed { waits: true, ..Reclaimed::default() }, "no second write");
    write_all(&mut memory, out.writes);
    assert_eq!(memory.grow(space, 4), Grant::Granted);
    assert_eq!((memory.resident(space), memory.missing(space), memory.resident(other)), (60, 4, 20));
    assert_eq!((told(&memory, A).refused, told(&memory, B).refused), (2, 0));
    // A bound that sinks takes nothing; the next request takes what is beyond.
    memory.set_bound(A, Some(40 * PAGE));
    assert_eq!(memory.used(A), 60);
    assert_eq!(insist(&mut memory, A, 4, |memory| memory.grow(space, 4)), 1);
    assert_eq!((memory.used(A), memory.missing(space)), (40, 28));
    memory.set_bound(A, None);
    assert_eq!(memory.grow(space, 20), Grant::Granted);
    assert_eq!(memory.counts(A).forced, 0);
}

/// Ten spaces that are floors, and a bound of 60: there is nothing to give, so each request is granted by
/// force.
#[test]
fn a_unit_with_nothing_to_give_is_let_through() {
    let mut memory = memory(240);
    let spaces: Vec<SpaceId> = (0..10).map(|_| grown(&mut memory, A, 8)).collect();
    memory.set_bound(A, Some(60 * PAGE));
    assert_eq!(insist(&mut memory, A, 4, |memory| memory.grow(spaces[0], 4)), 1);
    assert_eq!((memory.counts(A).forced, memory.used(A), memory.counts(A).ooms), (4, 84, 0));
    // What it has above its floor goes first, the next time.
    assert_eq!(insist(&mut memory, A, 4, |memory| memory.grow(spaces[1], 4)), 2);
    assert_eq!((memory.counts(A).forced, memory.used(A), memory.resident(spaces[0])), (8, 84, 8));
}

/// The same with no frame to be had: it is let through its bound, and then b, which has all the rest, gives.
/// 192 frames less the 32 that are kept: a has 80, b has 80.
#[test]
fn let_through_its_bound_a_unit_takes_from_all() {
    let mut memory = memory(232);
    let spaces: Vec<SpaceId> = (0..10).map(|_| grown(&mut memory, A, 8)).collect();
    let other = grown(&mut memory, B, 80);
    memory.set_bound(A, Some(60 * PAGE));
    insist(&mut memory, A, 4, |memory| memory.grow(spaces[0], 4));
    assert_eq!((memory.used(A), memory.resident(other), memory.free()), (84, 76, 32));
}

/// a uses 120 frames and b 40, and no more than what is kept, 32, is free. Until 48 are, a gives 12 and b 4.
/// With 100 of a's protected, they give in proportion to 20 and 40: 5 1/3 and 10 2/3, in clusters of 4: 4
/// and 12.
#[test]
fn all_give_in_proportion_to_what_is_beyond_their_protection() {
    for (low, gives) in [(0, (12, 4)), (100, (4, 12))] {
        let mut memory = memory(232);
        let (a, b) = (grown(&mut memory, A, 120), grown(&mut memory, B, 40));
        protect(&mut memory, A, 0, low);
        assert!(memory.is_low());
        let out = memory.reclaim_in_background();
        write_all(&mut memory, out.writes);
        assert_eq!((memory.missing(a), memory.missing(b)), gives);
    }
}

/// 44 are free: nothing happens. 40 are not fewer than 40; with 36 the background begins, and goes on until
/// 48 are.
#[test]
fn the_background_works_from_low_to_high() {
    let mut memory = memory(240);
    let space = grown(&mut memory, A, 156);
    assert_eq!((memory.free(), memory.is_low()), (44, false));
    assert_eq!(memory.grow(space, 4), Grant::Granted);
    assert_eq!((memory.reclaim_in_background(), memory.is_low()), (Reclaimed::default(), false));
    assert_eq!(memory.grow(space, 4), Grant::Granted);
    let out = memory.reclaim_in_background();
    assert_eq!((memory.free(), pages(&out), out.waits), (36, 12, true));
    assert_eq!(memory.reclaim_in_background(), Reclaimed { waits: true, ..Reclaimed::default() });
    write_all(&mut memory, out.writes);
    assert_eq!(memory.free(), 48);
    assert!(memory.is_low(), "it has not looked yet");
    assert_eq!((memory.reclaim_in_background(), memory.is_low()), (Reclaimed::default(), false));
    // It was woken, and does not go to sleep because 44 are free again by the time it looks.
    let brief = memory.open_space(B, MS);
    assert_eq!(memory.grow(brief, 8), Grant::Granted);
    assert_eq!(memory.grow(space, 4), Grant::Granted);
    memory.close_space(brief);
    assert_eq!((memory.free(), pages(&memory.reclaim_in_background())), (44, 4));
}

/// Clean pages are free at once, however many are wanted: 1,000 frames, of which 78 and 93 are the
/// watermarks. a has a file of 600, and b grows to 324: 76 are free, so a gives the 17 that are missing, or b
/// its part of these.
#[test]
fn the_background_drops_all_at_once() {
    let mut memory = memory(1_040);
    cached(&mut memory, A, 600, false);
    protect(&mut memory, B, 0, 324);
    grown(&mut memory, B, 324);
    assert_eq!(memory.free(), 76);
    let out = memory.reclaim_in_background();
    assert_eq!((out.freed, out.writes.len(), memory.free(), memory.used(A)), (17, 0, 93, 583));
}

/// memory.low protects a's 120 frames; b has no protection. `shared` takes all that b has and no page of a's;
/// then the floors of b and of its own; and a gives only when nothing else is left.
#[test]
fn low_is_taken_last() {
    let mut memory = memory(232);
    let (a, b) = (grown(&mut memory, A, 120), grown(&mut memory, B, 40));
    protect(&mut memory, A, 0, 120);
    let common = grown(&mut memory, UnitId::SHARED, 40);
    assert_eq!((memory.resident(a), memory.used(B) + memory.used(UnitId::SHARED)), (120, 40));
    memory.close_space(b);
    memory.close_space(common);
    let few: Vec<SpaceId> = (0..5).map(|_| grown(&mut memory, B, 8)).collect();
    protect(&mut memory, B, 0, 40);
    protect(&mut memory, A, 100, 120);
    // Both are within low. a has 20 beyond its min and b 40: of 4 pages a would give 1 1/3, and b 2 2/3, but
    // b has floors.
    insist(&mut memory, B, 4, |memory| memory.grow(few[0], 4));
    assert_eq!((memory.resident(a), memory.used(B)), (116, 44));
    assert_eq!(memory.counts(B).ooms, 0);
}

/// a's 120 pages of a file are all in write-behind. b's 40 are within memory.low, so a request waits for a's
/// pages.
#[test]
fn what_is_clean_soon_is_waited_for_before_low_is_taken() {
    let mut memory = memory(232);
    let (file, space) = (cached(&mut memory, A, 120, true), grown(&mut memory, B, 40));
    protect(&mut memory, B, 0, 40);
    let writes: Vec<PageOut> = std::iter::from_fn(|| memory.write_out(file)).collect();
    assert_eq!(memory.grow(space, 4), Grant::Short);
    assert_eq!(memory.reclaim(B, 4), Reclaimed { waits: true, ..Reclaimed::default() });
    write_all(&mut memory, writes);
    assert_eq!(insist(&mut memory, B, 4, |memory| memory.grow(space, 4)), 1);
    assert_eq!((memory.resident(space), memory.cached(file)), (44, 116));
}

/// All is within memory.min. b's request of 4 is let through to what is kept, and what b has beyond its own
/// min then is taken before there is a second kill.
#[test]
fn within_min_a_kill_is_counted() {
    let mut memory = memory(232);
    let (a, b) = (grown(&mut memory, A, 120), grown(&mut memory, B, 40));
    protect(&mut memory, A, 120, 120);
    protect(&mut memory, B, 40, 40);
    assert_eq!(memory.grow(b, 4), Grant::Short);
    let out = memory.reclaim(B, 4);
    assert_eq!(out, Reclaimed { forced: true, ..Reclaimed::default() });
    assert_eq!(memory.grow(b, 4), Grant::Granted);
    assert_eq!((memory.free(), memory.counts(B).ooms, memory.counts(B).forced), (28, 1, 4));
    let out = memory.reclaim(B, 4);
    assert_eq!((pages(&out), memory.counts(B).ooms), (4, 1));
    write_all(&mut memory, out.writes);
    assert_eq!((memory.resident(a), memory.resident(b)), (120, 40));
}

/// More memory is promised than the machine has. b's requests are granted by force eight times, until no
/// frame is free. The ninth time, the unit that uses most gives 36 pages, so that the 32 frames of the min
/// watermark are free again.
#[test]
fn where_more_is_promised_than_there_is_the_largest_gives() {
    let mut memory = memory(232);
    let (a, b) = (grown(&mut memory, A, 120), grown(&mut memory, B, 40));
    protect(&mut memory, A, 1_000, 1_000);
    protect(&mut memory, B, 1_000, 1_000);
    for _ in 0..8 {
        assert_eq!(insist(&mut memory, B, 4, |memory| memory.grow(b, 4)), 1);
    }
    assert_eq!((memory.free(), memory.counts(B).ooms, memory.resident(a)), (0, 8, 120));
    assert_eq!(insist(&mut memory, B, 4, |memory| memory.grow(b, 4)), 1);
    assert_eq!((memory.free(), memory.counts(B).ooms), (32, 9));
    assert_eq!((memory.resident(a), memory.resident(b)), (84, 76));
}

/// a is protected of 100 with x; a's own processes are to have 20 of it, x 80. Both use more. A sub-unit is
/// protected of no more than its encloser, and b takes from neither.
#[test]
fn a_sub_unit_is_protected_within_its_encloser() {
    let mut memory = memory(272);
    let (a, x, b) = (grown(&mut memory, A, 40), grown(&mut memory, X, 100), grown(&mut memory, B, 60));
    memory.protect(A, 0, 100 * PAGE, 20 * PAGE);
    protect(&mut memory, X, 0, 80);
    assert_eq!(memory.protected(Keeps::Low)[2..], [20, 0, 80]);
    // x claims 100 of its setting, a claims 20: of these 120, five sixths are protected.
    protect(&mut memory, X, 0, 200);
    assert_eq!(memory.protected(Keeps::Low)[2..], [16, 0, 83]);
    // In proportion to 24, 17 and 60 beyond: of 16 pages, 3.8, 2.7 and 9.5. In clusters: b 9.5 to 5.5 to 1.5,
    // a, x.
    assert_eq!(memory.free(), 32);
    let out = memory.reclaim_in_background();
    write_all(&mut memory, out.writes);
    assert_eq!([a, x, b].map(|space| memory.missing(space)), [4, 4, 8]);
}

/// By unit: the common parts, a with x and y in it, b. a, of 100, uses 30 itself, x 100, y 40, b 50 of 50.
#[test]
fn protection_comes_from_the_top() {
    let places = [Place::Outside, Place::Outside, Place::Top, Place::Top, Place::In(2), Place::In(2)];
    let setting = |whole, own| Setting { whole, own };
    let effective = |used: [u64; 6], x, y, own| {
        let none = setting(0, 0);
        let settings = [none, none, setting(100, own), setting(50, 0), setting(x, 0), setting(y, 0)];
        protection::effective(&places, &used, &settings)
    };
    // 20, 80 and 40 are claimed of 100: each gets 100/140 of it.
    assert_eq!(effective([90, 90, 30, 50, 100, 40], 80, 60, 20), [0, 0, 14, 50, 57, 28]);
    // 20, 30 and 0: 50 more go by what is beyond, which is 10, 70 and 40 of 120.
    assert_eq!(effective([90, 90, 30, 50, 100, 40], 30, 0, 20), [0, 0, 24, 50, 59, 16]);
    // a uses 40 of its 100 in all, and b 90: what a does not claim protects b. Of the 40, x has what a itself
    // leaves.
    assert_eq!(effective([90, 90, 10, 90, 30, 0], 0, 0, 10), [0, 0, 10, 110, 30, 0]);
}

/// a has 20 clean pages of a file and 40 of a process; 30 are to be taken, though all are protected. Dropping
/// takes 1 us each, and the writes end 2 ms later.
#[test]
fn taking_is_an_act_that_takes_time() {
    let mut memory = memory(240);
    let (space, _) = (grown(&mut memory, A, 40), cached(&mut memory, A, 20, false));
    protect(&mut memory, A, 60, 60);
    memory.at(5 * MS);
    let out = memory.order_reclaim(A, 30 * PAGE + 1);
    assert_eq!((out.freed, pages(&out), out.writes.len(), out.waits), (20, 10, 3, true));
    assert_eq!((told(&memory, A).taken, told(&memory, A).taking_ns), (20 * PAGE, 20_000));
    memory.at(6 * MS);
    assert_eq!((told(&memory, A).taken, told(&memory, A).taking_ns), (20 * PAGE, 20_000 + MS));
    assert!(memory.has_reclaim_order(A));
    memory.at(7 * MS);
    write_all(&mut memory, out.writes);
    memory.at(9 * MS);
    assert_eq!((told(&memory, A).taken, told(&memory, A).taking_ns), (30 * PAGE, 20_000 + 2 * MS));
    assert_eq!((memory.continue_reclaim(A), memory.has_reclaim_order(A)), (Reclaimed::default(), false));
    assert_eq!((memory.used(A), memory.missing(space)), (30, 10));
    // What is taken for another reason is not counted.
    memory.set_bound(A, Some(30 * PAGE));
    insist(&mut memory, A, 4, |memory| memory.grow(space, 4));
    assert_eq!(told(&memory, A).taken, 30 * PAGE);
    // Of a unit that is beyond its bound no more is taken than brings it there.
    memory.set_bound(A, Some(25 * PAGE));
    let out = memory.order_reclaim(A, 100 * PAGE);
    assert_eq!((pages(&out), memory.used(A)), (5, 30));
}

/// Of a space of 100 pages 64 are written at once, 16 clusters; then the rest of 80. A bound that grows ends
/// it, and so do floors.
#[test]
fn taking_goes_on_as_pages_are_written() {
    let mut memory = memory(240);
    let space = grown(&mut memory, A, 100);
    let out = memory.order_reclaim(A, 80 * PAGE);
    assert_eq!((pages(&out), memory.continue_reclaim(A).writes.len()), (64, 0));
    write_all(&mut memory, out.writes);
    let out = memory.continue_reclaim(A);
    assert_eq!(pages(&out), 16);
    write_all(&mut memory, out.writes);
    assert_eq!((memory.resident(space), memory.has_reclaim_order(A)), (20, false));
    let out = memory.order_reclaim(A, 100 * PAGE);
    assert_eq!(pages(&out), 12, "all but the floor");
    assert!(memory.continue_reclaim(A).waits);
    write_all(&mut memory, out.writes);
    assert!(!memory.has_reclaim_order(A));
    insist(&mut memory, A, 16, |memory| memory.swap_in(space, 16));
    insist(&mut memory, A, 72, |memory| memory.grow(space, 72));
    // 8 of the 16 are clean, and swap has them already.
    assert_eq!(told(&memory, A).swap_cached, 8 * PAGE);
    let out = memory.order_reclaim(A, 80 * PAGE);
    assert_eq!((out.freed, pages(&out)), (6, 64), "the oldest: 6 of 70, as 8 of 88 are clean");
    memory.set_bound(A, None);
    write_all(&mut memory, out.writes);
    assert_eq!((memory.continue_reclaim(A), memory.has_reclaim_order(A)), (Reclaimed::default(), false));
}

/// Of a file of 100, 40 pages came in, and 20 of them were taken. The next 60 are new, and the 20 after that
/// came back. Pages that come back from swap count, too.
#[test]
fn what_was_taken_and_comes_back_is_a_refault() {
    let mut memory = memory(240);
    let file = memory.open_file(100);
    let enter = |memory: &mut Memory, pages| {
        assert_eq!(memory.cache(file, A, pages, false), Grant::Granted);
        told(memory, A).refaulted / PAGE
    };
    assert_eq!(enter(&mut memory, 40), 0);
    assert_eq!(memory.order_reclaim(A, 20 * PAGE).freed, 20);
    assert_eq!((enter(&mut memory, 60), enter(&mut memory, 15), enter(&mut memory, 5)), (0, 15, 20));
    let space = grown(&mut memory, A, 20);
    assert_eq!(memory.order_reclaim(A, 100 * PAGE).freed, 100);
    let out = memory.order_reclaim(A, 10 * PAGE);
    write_all(&mut memory, out.writes);
    assert_eq!(memory.swap_in(space, 6), Grant::Granted);
    assert_eq!(told(&memory, A).refaulted, 26 * PAGE);
    let swapped = told(&memory, A).swapped;
    assert!(
        (4 * PAGE..=10 * PAGE).contains(&swapped),
        "of 10, 6 came back, and some of these were modified: {swapped}"
    );
    // 241 others are taken since: what comes back then was not taken lately.
    let other = memory.open_file(1);
    for _ in 0..230 {
        assert_eq!(memory.cache(other, B, 1, false), Grant::Granted);
        assert_eq!(memory.order_reclaim(B, PAGE).freed, 1);
    }
    assert_eq!(memory.evicted - memory.files[0].evicted_at, 240);
    assert_eq!(enter(&mut memory, 2), 28);
    assert_eq!(memory.cache(other, B, 1, false), Grant::Granted);
    assert_eq!(memory.order_reclaim(B, PAGE).freed, 1);
    assert_eq!(enter(&mut memory, 2), 28);
    assert_eq!(told(&memory, B).refaulted, 230 * PAGE);
}

/// Of a file of 100, 40 pages came in, and all were taken. What is read anywhere in it after that was there
/// before in 40 of 100 cases: 4 of 10. Then 54 of the 90 that are missing were never there: 3 of the next 5,
/// and 2 come back.
#[test]
fn what_is_read_anywhere_comes_back_in_proportion() {
    let mut memory = memory(240);
    let file = memory.open_file(100);
    assert_eq!(memory.cache_anywhere(file, A, 40), Grant::Granted);
    assert_eq!(memory.order_reclaim(A, 40 * PAGE).freed, 40);
    assert_eq!(memory.cache_anywhere(file, A, 10), Grant::Granted);
    assert_eq!(told(&memory, A).refaulted, 4 * PAGE);
    assert_eq!(memory.cache_anywhere(file, A, 5), Grant::Granted);
    assert_eq!(told(&memory, A).refaulted, 6 * PAGE);
    // The last 85: 51 are new.
    assert_eq!(memory.cache_anywhere(file, A, 85), Grant::Granted);
    assert_eq!(told(&memory, A).refaulted, 40 * PAGE);
}

/// Half of a file's missing pages were taken long ago, half lately: half of the pages that come back count as
/// refaults.
#[test]
fn missing_pages_come_back_evenly() {
    let mut memory = memory(240);
    let file = cached(&mut memory, A, 40, false);
    assert_eq!(memory.order_reclaim(A, 10 * PAGE).freed, 10);
    memory.files[0].evicted = 0;
    assert_eq!(memory.order_reclaim(A, 10 * PAGE).freed, 10);
    let mut seen = Vec::new();
    for _ in 0..4 {
        assert_eq!(memory.cache(file, A, 5, false), Grant::Granted);
        seen.push(told(&memory, A).refaulted / PAGE);
    }
    assert_eq!(seen, [2, 5, 7, 10]);
}

/// Two tasks wait from 10 to 20 and from 15 to 30, and one from 40 on.
#[test]
fn a_unit_stalls_while_a_task_of_it_waits() {
    let mut memory = memory(240);
    memory.wait_begins(A, 10);
    memory.wait_begins(A, 15);
    memory.wait_ends(A, 20);
    memory.wait_begins(B, 20);
    memory.wait_ends(A, 30);
    memory.wait_begins(A, 40);
    let stalled = |now| [A, B, X].map(|unit| memory.live_facts(now, 0).units[unit.index()].stalled_ns);
    assert_eq!((stalled(40), stalled(45)), ([20, 20, 0], [25, 25, 0]));
}

/// A process that comes back to each page once in 4 s, and ran up to 12 s. At 20 s, it ran for 2 s of the
/// last 10: half of its pages had their turn. At 15 s all had, and at 22 s none.
#[test]
fn memory_that_was_not_touched_is_cold() {
    let mut memory = memory(240);
    let space = memory.open_space(A, 4 * S);
    for _ in 0..10 {
        assert_eq!(memory.grow(space, 4), Grant::Granted);
    }
    let cold = |memory: &Memory, now| {
        let facts = memory.live_facts(now, 0).units[A.index()];
        (facts.cold_anonymous / PAGE, (facts.cold - facts.cold_anonymous) / PAGE)
    };
    assert_eq!(cold(&memory, 9 * S), (0, 0));
    assert_eq!(cold(&memory, 10 * S), (40, 0));
    memory.at(12 * S);
    memory.note_run(space);
    assert_eq!([15, 20, 22].map(|s| cold(&memory, s * S).0), [0, 20, 40]);
    // What came after that is not cold, however rarely its process comes back to it.
    let rare = memory.open_space(A, 100 * S);
    assert_eq!(memory.grow(rare, 20), Grant::Granted);
    assert_eq!([20, 22].map(|s| cold(&memory, s * S).0), [20, 60]);
}

/// A file that came in from 0 to 9 s: at 14 s, 4/9 of its 40 pages came more than 10 s ago, at 19 s all. Used
/// again at 12 s, it is not cold until 22 s.
#[test]
fn files_that_were_not_used_are_cold() {
    let mut memory = memory(240);
    let file = memory.open_file(40);
    for s in 0..10 {
        memory.at(s * S);
        assert_eq!(memory.cache(file, A, 4, false), Grant::Granted);
        memory.reference(file, A, 4);
    }
    let cold = |memory: &Memory, s| memory.live_facts(s * S, 0).units[A.index()].cold / PAGE;
    assert_eq!([9, 10, 14, 18, 19].map(|s| cold(&memory, s)), [0, 0, 17, 35, 40]);
    memory.at(12 * S);
    memory.reference(file, B, 4);
    assert_eq!([19, 21, 22].map(|s| cold(&memory, s)), [0, 0, 40]);
}

/// 240 frames: 40 are the kernel's, and 48 free ones. `shared` has 24 in a process, and 40 clean ones of a
/// file of which it needs 20, a half of them since 48 is more. a has 30: 20 in no file, 6 dirty, 4 clean; b
/// uses the file too.
#[test]
fn facts_are_told_as_a_live_machine_tells_them() {
    let mut memory = memory(240);
    grown(&mut memory, UnitId::SHARED, 24);
    cached(&mut memory, UnitId::SHARED, 40, false);
    grown(&mut memory, A, 20);
    let (dirty, clean) = (memory.open_file(6), memory.open_file(4));
    assert_eq!(memory.cache(dirty, A, 6, true), Grant::Granted);
    assert_eq!(memory.cache(clean, A, 4, false), Grant::Granted);
    memory.reference(clean, B, 4);
    let facts = memory.live_facts(0, 7);
    assert_eq!((facts.total, facts.kernel, facts.shared), (240 * PAGE, 88 * PAGE, 44 * PAGE));
    assert_eq!((facts.swap_free, facts.packed_permille, facts.units.len()), (7, 0, 5));
    let a = facts.units[A.index()];
    assert_eq!((a.used, a.anonymous, a.dirty), (30 * PAGE, 20 * PAGE, 6 * PAGE));
    assert_eq!(facts.units[UnitId::SHARED.index()], commonhold_policy::UnitMemory::default());
    // What is being written is dirty until it is written.
    let write = memory.write_out(dirty).unwrap();
    assert_eq!(told(&memory, A).dirty, 6 * PAGE);
    memory.written(write);
    assert_eq!(told(&memory, A).dirty, 0);
}

#[derive(Debug, Clone)]
enum Act {
    Open(u32),
    Close(usize),
    Grow(usize, u32),
    Back(usize, u32),
    Cache(usize, u32, u32, bool),
    Use(usize, u32, u32, bool),
    Delete(usize),
    Flush,
    Done(usize),
    Wait(u64),
    Bound(u32, Option<u64>),
    Protect(u32, u64, u64),
    Take(u32, u64),
    TakeOn(u32),
    Background,
}

fn act() -> impl Strategy<Value = Act> {
    let (at, unit, pages, frames) = (0usize..64, 1u32..5, 1u32..17, 0u64..200);
    prop_oneof![
        1 => unit.clone().prop_map(Act::Open),
        1 => at.clone().prop_map(Act::Close),
        8 => (at.clone(), pages.clone()).prop_map(|(i, n)| Act::Grow(i, n)),
        3 => (at.clone(), pages.clone()).prop_map(|(i, n)| Act::Back(i, n)),
        6 => (at.clone(), unit.clone(), pages.clone(), any::<bool>()).prop_map(|(i, u, n, d)| Act::Cache(i, u, n, d)),
        2 => (at.clone(), unit.clone(), pages, any::<bool>()).prop_map(|(i, u, n, d)| Act::Use(i, u, n, d)),
        1 => at.clone().prop_map(Act::Delete),
        1 => Just(Act::Flush),
        5 => at.prop_map(Act::Done),
        1 => (0u64..20_000).prop_map(Act::Wait),
        2 => (unit.clone(), proptest::option::of(frames.clone())).prop_map(|(u, n)| Act::Bound(u, n)),
        2 => (unit.clone(), frames.clone(), frames.clone()).prop_map(|(u, min, low)| Act::Protect(u, min, low)),
        2 => (unit.clone(), frames).prop_map(|(u, n)| Act::Take(u, n)),
        2 => unit.prop_map(Act::TakeOn),
        3 => Just(Act::Background),
    ]
}

/// A memory with its open spaces and files, and the writes in flight.
struct Trial {
    memory: Memory,
    spaces: Vec<(SpaceId, UnitId)>,
    files: Vec<FileId>,
    writes: Vec<PageOut>,
}

impl Trial {
    fn new(frames: u64) -> Self {
        let mut memory = memory(frames);
        let files = (0..3).map(|i| memory.open_file(20 * (i + 1))).collect();
        let spaces = [A, B, X].map(|unit| (memory.open_space(unit, 5 * MS), unit)).to_vec();
        Trial { memory, spaces, files, writes: Vec::new() }
    }

    fn act(&mut self, act: &Act) {
        let memory = &mut self.memory;
        let (file, space) = (|i: usize| i % self.files.len(), |i: usize| self.spaces[i % self.spaces.len()]);
        // What was refused is reclaimed for, and asked again the next time.
        let (asked, out) = match *act {
            Act::Open(u) => {
                self.spaces.push((memory.open_space(UnitId(u), 5 * MS), UnitId(u)));
                return;
            }
            Act::Close(i) => {
                memory.close_space(space(i).0);
                let i = i % self.spaces.len();
                self.spaces[i] = (memory.open_space(self.spaces[i].1, MS), self.spaces[i].1);
                return;
            }
            Act::Grow(i, n) => (Some((space(i).1, n, memory.grow(space(i).0, n))), None),
            Act::Back(i, n) => (Some((space(i).1, n, memory.swap_in(space(i).0, n))), None),
            Act::Cache(i, u, n, dirty) => {
                (Some((UnitId(u), n, memory.cache(self.files[file(i)], UnitId(u), n, dirty))), None)
            }
            Act::Use(i, u, n, true) => return memory.dirty(self.files[file(i)], UnitId(u), n),
            Act::Use(i, u, n, false) => return memory.reference(self.files[file(i)], UnitId(u), n),
            Act::Delete(i) => {
                let i = file(i);
                memory.close_file(self.files[i]);
                self.files[i] = memory.open_file(30);
                return;
            }
            Act::Flush => return self.writes.extend(memory.flush()),
            Act::Done(i) => {
                if !self.writes.is_empty() {
                    memory.written(self.writes.swap_remove(i % self.writes.len()));
                }
                return;
            }
            Act::Wait(ms) => return memory.at(memory.now + ms * MS),
            Act::Bound(u, frames) => return memory.set_bound(UnitId(u), frames.map(|frames| frames * PAGE)),
            Act::Protect(u, min, low) => {
                return memory.protect(UnitId(u), min * PAGE, low * PAGE, low * PAGE / 2);
            }
            Act::Take(u, frames) => (None, Some(memory.order_reclaim(UnitId(u), frames * PAGE))),
            Act::TakeOn(u) => (None, Some(memory.continue_reclaim(UnitId(u)))),
            Act::Background => (None, Some(memory.reclaim_in_background())),
        };
        let short = asked.filter(|(_, _, grant)| *grant == Grant::Short);
        let out = out.or_else(|| short.map(|(unit, n, _)| memory.reclaim(unit, n)));
        self.writes.extend(out.into_iter().flat_map(|out| out.writes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn frames_are_conserved_whatever_is_ordered(acts in proptest::collection::vec(act(), 1..200)) {
        let mut trial = Trial::new(200);
        for act in &acts {
            trial.act(act);
            prop_assert_eq!(trial.memory.check(), Ok(()), "after {:?}", act);
        }
        let Trial { mut memory, spaces, files, writes } = trial;
        for (space, _) in spaces {
            memory.close_space(space);
        }
        for file in files {
            memory.close_file(file);
        }
        for write in writes {
            memory.written(write);
        }
        prop_assert_eq!(memory.check(), Ok(()));
        prop_assert_eq!(memory.free(), 160, "nothing but the kernel's 40 of 200 is left");
        for unit in [A, B, X] {
            let _ = memory.continue_reclaim(unit);
            prop_assert!(!memory.has_reclaim_order(unit));
        }
    }

    /// Whatever others want, a unit keeps what it uses of its memory.min, while no more is promised than
    /// there is: 232 frames, of which 40 are the kernel's, 32 are kept, and a request takes 16.
    #[test]
    fn min_is_never_taken(
        acts in proptest::collection::vec(act(), 1..300),
        (mine, min) in (0u32..80, 0u64..80),
        others in 0u64..60,
    ) {
        let mut trial = Trial::new(232);
        let space = grown(&mut trial.memory, B, mine);
        let (used, before) = (trial.memory.used(B), min.min(trial.memory.used(B)));
        protect(&mut trial.memory, B, min, 0);
        protect(&mut trial.memory, A, others, 150);
        let other = |u: u32| if u == B.0 { A.0 } else { u };
        for act in acts {
            trial.act(&match act {
                Act::Open(u) => Act::Open(other(u)),
                Act::Cache(i, u, n, d) => Act::Cache(i, other(u), n, d),
                Act::Grow(i, n) => Act::Grow(if i % trial.spaces.len() == 1 { 0 } else { i }, n),
                Act::Bound(u, n) => Act::Bound(other(u), n),
                Act::Take(u, n) => Act::Take(other(u), n),
                Act::Protect(u, _, low) if u == B.0 => Act::Protect(X.0, 0, low),
                Act::Protect(u, _, low) => Act::Protect(u, others, low),
                other => other,
            });
            let own = &trial.memory.units[B.index()];
            prop_assert!(own.used - own.leaving >= before, "{} of {}", own.used - own.leaving, used);
        }
        prop_assert_eq!([UnitId::SHARED, A, X].map(|unit| trial.memory.counts(unit).ooms), [0; 3]);
        prop_assert!(trial.memory.resident(space) >= before);
    }

    /// b is protected by memory.low of all that it uses, and others have a space that is large enough to take
    /// from.
    #[test]
    fn low_is_not_taken_while_others_have_more(acts in proptest::collection::vec(act(), 1..300)) {
        let mut trial = Trial::new(232);
        let space = grown(&mut trial.memory, B, 60);
        protect(&mut trial.memory, B, 0, 60);
        let other = |u: u32| if u == B.0 { A.0 } else { u };
        for act in acts {
            trial.act(&match act {
                Act::Open(u) => Act::Open(other(u)),
                Act::Cache(i, u, n, d) => Act::Cache(i, other(u), n, d),
                Act::Grow(i, n) => Act::Grow(if i % trial.spaces.len() == 1 { 0 } else { i }, n),
                Act::Bound(u, n) => Act::Bound(other(u), n),
                Act::Take(u, n) => Act::Take(other(u), n),
                Act::Protect(..) => Act::Background,
                other => other,
            });
            prop_assert_eq!(trial.memory.resident(space), 60);
        }
    }

    /// Progress: each request is granted after some rounds, with any allowances and protections, on a full
    /// machine.
    #[test]
    fn no_request_is_refused_for_ever(
        acts in proptest::collection::vec(act(), 1..150),
        bound in proptest::option::of(0u64..100),
        pages in 1u32..17,
    ) {
        let mut trial = Trial::new(160);
        for act in &acts {
            trial.act(act);
        }
        let Trial { mut memory, writes, .. } = trial;
        memory.set_bound(A, bound.map(|frames| frames * PAGE));
        let space = memory.open_space(A, MS);
        for write in writes {
            memory.written(write);
        }
        for _ in 0..20 {
            insist(&mut memory, A, pages, |memory| memory.grow(space, pages));
        }
        memory.check().unwrap();
    }

    /// The effective protection of a unit, and the sum over its children, is at most that of the unit around
    /// it.
    #[test]
    fn no_unit_is_protected_of_more_than_what_encloses_it(
        used in proptest::collection::vec(0u64..100, 7),
        whole in proptest::collection::vec(0u64..100, 7),
        own in proptest::collection::vec(0u64..100, 7),
    ) {
        // 2 has 4 and 5, and 5 has 6.
        let places =
            [Place::Outside, Place::Outside, Place::Top, Place::Top, Place::In(2), Place::In(2), Place::In(5)];
        let settings: Vec<Setting> =
            whole.iter().zip(&own).map(|(whole, own)| Setting { whole: *whole, own: *own }).collect();
        let kept = protection::effective(&places, &used, &settings);
        let most = whole[2] + whole[3];
        prop_assert!(kept.iter().sum::<u64>() <= most);
        // Without 3 there is nobody else whose unclaimed part protects 2: all in it have no more than it was
        // promised.
        let alone = protection::effective(&places, &[0, 0, used[2], 0, used[4], used[5], used[6]], &settings);
        prop_assert!(alone.iter().sum::<u64>() <= most);
        prop_assert_eq!((kept[0], kept[1]), (0, 0));
        // What is used of a promise is kept, up to a part of each frame, where the promises above hold as
        // much.
        if used[3] <= whole[3] && used[2] + used[4] + used[5] + used[6] <= whole[2] {
            prop_assert!(kept[3] >= used[3]);
        }
    }
}
