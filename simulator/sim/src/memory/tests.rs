use commonhold_contract::{Amount, Scheme};
use commonhold_machine::Machine;
use commonhold_policy::memory::frames::{Input, LoanBook, Trigger, step};
use commonhold_policy::rights::Rights;
use proptest::prelude::*;

use super::*;
use crate::scenario::model::{CallBack, Enforces, KernelCosts, Latency, MemoryLoans, Scheduler};

pub(super) const A: UnitId = UnitId(2);
pub(super) const B: UnitId = UnitId(3);
pub(super) const MS: Time = 1_000_000;

/// 4 KiB frames in three nodes, half of them in the first; 40 of them the kernel's; clusters of 4 pages, so a
/// floor of 8; disk requests of 64 KiB, 16 pages. Node 2 is nearer to node 0 than node 1 is.
pub(super) fn hardware(frames: u64) -> Hardware {
    let mut machine = Machine::synthetic("nodes:3 cpus:1 memory:4MiB").unwrap();
    let parts = [frames - frames / 2, frames / 4, frames / 2 - frames / 4];
    for (node, frames) in machine.nodes.iter_mut().zip(parts) {
        node.memory_bytes = frames * 4096;
    }
    let between_ns = vec![vec![80, 160, 120], vec![160, 80, 160], vec![120, 160, 80]];
    let kernel = KernelCosts {
        tick_ns: 0,
        scheduler: Scheduler::Commonhold,
        slice_ns: 10 * MS,
        switch_ns: 0,
        ipi_ns: 0,
        ipi_delays_ns: Vec::new(),
        idle_delays_ns: Vec::new(),
        signal_ns: 0,
        counter_age_ns: 0,
        interrupt_ns: 0,
        fault_ns: 0,
        request_ns: 0,
        fork_ns: 0,
        call_back: CallBack::Tick,
        frame_bytes: 4096,
        memory_bytes: 40 * 4096,
        cluster_pages: 4,
        memory_period_ns: 100 * MS,
        memory_loans: MemoryLoans::InTime,
        read_ahead: 0,
        write_behind: 1,
        request_sectors: 128,
        dirty_limit: 200_000,
        dirty_age_ns: 30_000 * MS,
    };
    let latency = Some(Latency { local_ns: 80, between_ns, service: None });
    let enforces = Enforces::Irix;
    Hardware {
        machine,
        enforces,
        kernel,
        latency,
        cache: None,
        last_cache_miss: 1_000_000,
        bus: None,
        contention: None,
        interrupts: None,
        disturbance: None,
        disks: Vec::new(),
    }
}

/// Two units of equal rights.
fn contract(scheme: Scheme) -> Contract {
    let mut contract = Contract::default();
    contract.machine.scheme = scheme;
    contract.add(None, "a");
    contract.add(None, "b");
    contract
}

/// A memory of `frames` frames, of which the units a and b may use these numbers.
fn memory(frames: u64, a: u64, b: u64) -> Memory {
    let mut memory = Memory::new(&hardware(frames), &contract(Scheme::Isolate)).unwrap();
    memory.allow(&[frames, frames, a, b]);
    memory
}

/// Completes at once the writes that disks would complete later.
pub(super) fn write_all(memory: &mut Memory, writes: Vec<PageOut>) {
    for write in writes {
        memory.written(write);
        memory.check().unwrap();
    }
}

fn write_all_of(memory: &mut Memory, unit: UnitId, pages: u32) {
    let out = memory.reclaim(unit, pages);
    write_all(memory, out.writes);
}

/// Requests a few pages, and reclaims until the request is granted. Returns how often it reclaimed. Writes
/// take no time.
pub(super) fn insist(
    memory: &mut Memory,
    unit: UnitId,
    pages: u32,
    mut ask: impl FnMut(&mut Memory) -> Grant,
) -> u32 {
    for round in 0..100 {
        if ask(memory) == Grant::Granted {
            return round;
        }
        let out = memory.reclaim(unit, pages);
        assert!(out.freed > 0 || !out.writes.is_empty() || out.forced, "something comes of it");
        write_all(memory, out.writes);
    }
    panic!("refused for ever");
}

pub(super) fn grown(memory: &mut Memory, unit: UnitId, pages: u32) -> SpaceId {
    let space = memory.open_space(unit, 10 * MS);
    for _ in 0..pages / 4 {
        insist(memory, unit, 4, |memory| memory.grow(space, 4));
    }
    space
}

pub(super) fn cached(memory: &mut Memory, unit: UnitId, pages: u32, dirty: bool) -> FileId {
    let file = memory.open_file(u64::from(pages));
    for _ in 0..pages / 4 {
        insist(memory, unit, 4, |memory| memory.cache(file, unit, 4, dirty));
        memory.reference(file, unit, 4);
    }
    file
}

/// 240 frames less the kernel's 40 are free. A space of 100 and a file of 40 leave 60; when both are
/// gone, 200.
#[test]
fn frames_come_back_at_close() {
    let mut memory = memory(240, 200, 0);
    let (space, file) = (grown(&mut memory, A, 100), cached(&mut memory, A, 40, true));
    assert_eq!((memory.free(), memory.used(A)), (60, 140));
    memory.close_space(space);
    memory.close_file(file);
    assert_eq!((memory.free(), memory.used(A)), (200, 0));
    memory.check().unwrap();
    // The numbers are used again.
    assert_eq!((memory.open_space(B, 0), memory.open_file(1)), (space, file));
}

/// Pages that are being written when their process ends are free when the write ends, and not before.
#[test]
fn pages_come_where_they_are_touched_or_as_near_as_there_is_room() {
    // 400 frames: 200, 100 and 100 by node, less the kernel's 20, 10 and 10.
    let mut memory = memory(400, 400, 400);
    let space = memory.open_space(A, 0);
    memory.set_home(space, 1);
    assert_eq!(memory.grow(space, 10), Grant::Granted);
    assert_eq!(memory.pages_by_node(space), [0, 10, 0]);
    // 180 fit into node 0; the next from there is 2, 120 ns away.
    memory.set_home(space, 0);
    assert_eq!(memory.grow(space, 190), Grant::Granted);
    assert_eq!(memory.pages_by_node(space), [180, 10, 10]);
    // 80 more fit into node 2, and 0 is full.
    memory.set_home(space, 2);
    assert_eq!(memory.grow(space, 100), Grant::Granted);
    assert_eq!(memory.pages_by_node(space), [180, 30, 90]);
    memory.check().unwrap();
}

/// Two processes with 60 and 30 pages in node 0 and 12 in node 2 move; the pages of a third process stay.
#[test]
fn pages_come_to_their_parts() {
    let mut memory = memory(400, 400, 400);
    let spaces = [memory.open_space(A, 0), memory.open_space(A, 0)];
    let other = memory.open_space(B, 0);
    for (space, node, pages) in [(spaces[0], 0, 60), (spaces[1], 0, 30), (spaces[1], 2, 12), (other, 0, 10)] {
        memory.set_home(space, node);
        assert_eq!(memory.grow(space, pages), Grant::Granted);
    }
    // Those of node 2 come to node 0, which has enough; the job has nothing else elsewhere.
    memory.migrate(&spaces, &[(0, 1)], false);
    assert_eq!(memory.pages_by_node(spaces[1]), [42, 0, 0]);
    // 34 and 68 of 102: of each process a third goes.
    memory.migrate(&spaces, &[(1, 1), (0, 2)], true);
    assert_eq!(memory.pages_by_node(spaces[0]), [40, 20, 0]);
    assert_eq!(memory.pages_by_node(spaces[1]), [28, 14, 0]);
    assert_eq!(memory.pages_by_node(other), [10, 0, 0]);
    memory.check().unwrap();
    // Node 2 has 90 frames: no more can come.
    memory.migrate(&spaces, &[(2, 1)], true);
    let there: u64 = spaces.iter().map(|space| memory.pages_by_node(*space)[2]).sum();
    assert_eq!(there, 90);
    memory.check().unwrap();
}

proptest! {
    /// Random migrations lose no page and move no page to a node that is not named. Repeated, a migration
    /// moves nothing if there was room the first time.
    #[test]
    fn pages_that_move_are_conserved(
        grown in proptest::collection::vec((0usize..2, 0usize..3, 1u32..60), 1..6),
        parts in proptest::collection::vec(1u64..5, 1..4), divided: bool,
    ) {
        let mut memory = memory(400, 400, 400);
        let spaces = [memory.open_space(A, 0), memory.open_space(A, 0)];
        for (space, node, pages) in grown {
            memory.set_home(spaces[space], node);
            let _ = memory.grow(spaces[space], pages);
        }
        let lies = |memory: &Memory| spaces.map(|space| {
            let mut lies = memory.pages_by_node(space).to_vec();
            lies.resize(3, 0);
            lies
        });
        let before = lies(&memory);
        let parts: Vec<(usize, u64)> = parts.into_iter().enumerate().collect();
        memory.migrate(&spaces, &parts, divided);
        memory.check().unwrap();
        let after = lies(&memory);
        for (before, after) in before.iter().zip(&after) {
            prop_assert_eq!(before.iter().sum::<u64>(), after.iter().sum::<u64>());
            prop_assert!((parts.len()..3).all(|node| after[node] <= before[node]));
        }
        // Where a node was full, room may have come by what left it.
        if before.iter().flatten().sum::<u64>() <= 90 {
            memory.migrate(&spaces, &parts, divided);
            prop_assert_eq!(lies(&memory), after);
        }
    }
}

#[test]
fn pages_are_taken_from_all_nodes_alike() {
    let mut memory = memory(400, 400, 400);
    let space = memory.open_space(A, 0);
    for (node, pages) in [(0, 60), (1, 30), (2, 10)] {
        memory.set_home(space, node);
        assert_eq!(memory.grow(space, pages), Grant::Granted);
    }
    let out = memory.reclaim(A, 50);
    assert_eq!(memory.pages_by_node(space), [60, 30, 10], "on their way out they still take up frames");
    write_all(&mut memory, out.writes);
    assert_eq!(memory.pages_by_node(space).iter().sum::<u64>(), memory.resident(space));
    // 30, 15 and 5, but for the rounding of each cluster of four.
    assert_eq!(memory.pages_by_node(space), [29, 16, 5]);
    // What comes back comes to where the process runs now.
    memory.set_home(space, 1);
    assert_eq!(memory.swap_in(space, 8), Grant::Granted);
    assert_eq!(memory.pages_by_node(space), [29, 24, 5]);
}

#[test]
fn pages_in_flight_outlive_their_process() {
    let mut memory = memory(240, 40, 0);
    let space = grown(&mut memory, A, 40);
    let out = memory.reclaim(A, 4);
    assert_eq!(out.writes.iter().map(PageOut::pages).sum::<u64>(), 4);
    memory.close_space(space);
    assert_eq!(memory.used(A), 4);
    assert_ne!(memory.open_space(A, 0), space);
    write_all(&mut memory, out.writes);
    assert_eq!(memory.used(A), 0);
    assert_eq!(memory.open_space(A, 0), space);
}

/// a has used up its 60 frames; b uses 20 of its 140, so 120 are free. a's request is refused all the same,
/// and the pages that are then paged out are a's own.
#[test]
fn a_full_unit_is_refused_while_frames_are_free() {
    let mut memory = memory(240, 60, 140);
    let (space, other) = (grown(&mut memory, A, 60), grown(&mut memory, B, 20));
    assert_eq!(memory.free(), 120);
    assert_eq!(memory.grow(space, 1), Grant::Short);
    assert_eq!(memory.facts()[2], Facts { present: true, used: 60, short: true, ..Facts::default() });
    assert!(!memory.facts()[2].short, "marks begin anew");
    let out = memory.reclaim(A, 1);
    assert_eq!((out.freed, out.waits), (0, true));
    // One page of memory must go to swap first; asking again starts no second write.
    assert_eq!(out.writes.iter().map(PageOut::pages).sum::<u64>(), 1);
    assert_eq!(memory.reclaim(A, 1), Reclaimed { waits: true, ..Reclaimed::default() });
    write_all(&mut memory, out.writes);
    assert_eq!((memory.resident(space), memory.missing(space)), (59, 1));
    assert_eq!(memory.grow(space, 1), Grant::Granted);
    assert_eq!((memory.resident(other), memory.used(B)), (20, 20));
}

/// Clean cache pages go first, even if the space was unused for longer; of two files, the one that was read
/// only once.
#[test]
fn clean_pages_go_first_and_used_once_before_used_twice() {
    let mut memory = memory(240, 60, 140);
    let space = grown(&mut memory, A, 20);
    let twice = cached(&mut memory, A, 20, false);
    memory.reference(twice, A, 20);
    memory.at(10 * MS);
    let once = cached(&mut memory, A, 20, false);
    memory.at(20 * MS);
    // Ages: 20 ms for the one used twice; 10 ms, times 4, for the one used once.
    let out = memory.reclaim(A, 8);
    assert_eq!((out.freed, out.writes.len()), (8, 0));
    assert_eq!((memory.cached(once), memory.cached(twice), memory.resident(space)), (12, 20, 20));
    let out = memory.reclaim(A, 60);
    assert_eq!(out.freed, 32);
    // 60 asked for: 32 clean ones, and of the space all but its floor of 8.
    assert_eq!(out.writes.iter().map(PageOut::pages).sum::<u64>(), 12);
    assert_eq!((memory.cached(once), memory.cached(twice), memory.resident(space)), (0, 0, 8));
    write_all(&mut memory, out.writes);
}

/// A space that ran just now (age: its reuse time, 10 ms) and one that slept for 90 ms (age 100 ms), both 92
/// pages above the floor: of 40 pages the sleeper gives ten elevenths at first, 36, and a little less as it
/// shrinks.
#[test]
fn idle_spaces_give_more() {
    let mut memory = memory(240, 200, 0);
    let (running, idle) = (grown(&mut memory, A, 100), grown(&mut memory, A, 100));
    memory.at(90 * MS);
    memory.note_run(running);
    let out = memory.reclaim(A, 40);
    write_all(&mut memory, out.writes);
    assert_eq!((memory.missing(running), memory.missing(idle)), (4, 36));
}

/// 256 frames, 8 % of them 20, and 16 are free: the pager begins. Two equal spaces of different units give
/// alike where nobody is held to anything: 8 each of 16.
#[test]
fn smp_takes_from_everybody() {
    let mut memory = memory(256, 256, 256);
    let (a, b) = (grown(&mut memory, A, 100), grown(&mut memory, B, 100));
    assert!(memory.is_low() && memory.is_unit_low(A) && memory.is_unit_low(B));
    let out = memory.reclaim(A, 16);
    write_all(&mut memory, out.writes);
    assert_eq!((memory.missing(a), memory.missing(b)), (8, 8));
    assert_eq!(memory.counts(A).seized, 0);
}

/// b borrowed 52 frames; they are called back, and a, within its allowance, finds no frame free: b pays.
#[test]
fn debtors_pay_first() {
    let mut memory = memory(240, 48, 152);
    let (a, b) = (grown(&mut memory, A, 48), grown(&mut memory, B, 152));
    memory.allow(&[240, 240, 100, 100]);
    assert!(memory.is_unit_low(B));
    assert_eq!(memory.grow(a, 4), Grant::Short);
    let out = memory.reclaim(A, 4);
    write_all(&mut memory, out.writes);
    assert_eq!(memory.grow(a, 4), Grant::Granted);
    assert_eq!((memory.resident(a), memory.resident(b), memory.counts(A).seized), (52, 148, 0));
}

/// Half of the pages that are swapped in stay clean, and need no second write.
#[test]
fn pages_that_were_not_modified_need_no_second_write() {
    let mut memory = memory(240, 60, 0);
    let space = grown(&mut memory, A, 60);
    let out = memory.reclaim(A, 8);
    write_all(&mut memory, out.writes);
    assert_eq!(memory.swap_in(space, 5), Grant::Granted);
    // 2.5 of 5 are modified: 2, the half is carried over. Then 1.5 + 0.5 of the other 3.
    assert_eq!((memory.spaces[0].clean, memory.missing(space)), (3, 3));
    assert_eq!(memory.swap_in(space, 9), Grant::Granted);
    assert_eq!((memory.spaces[0].clean, memory.missing(space)), (4, 0));
    let out = memory.reclaim(A, 4);
    assert_eq!((out.freed, out.writes), (4, Vec::new()));
    assert_eq!(memory.counts(A).paged_out, 8);
}

/// a reads a file of 40 pages. After b has read half of it, half is shared; after another half, half of the
/// rest; after the whole, all of it. Shared pages never go back to a user.
#[test]
fn the_second_user_makes_pages_shared() {
    let mut memory = memory(240, 100, 100);
    let file = cached(&mut memory, A, 40, false);
    memory.reference(file, B, 20);
    let used = |memory: &Memory| [A, B, UnitId::SHARED].map(|unit| memory.used(unit));
    assert_eq!(used(&memory), [20, 0, 20]);
    memory.dirty(file, B, 20);
    assert_eq!(used(&memory), [10, 0, 30]);
    memory.reference(file, B, 40);
    assert_eq!(used(&memory), [0, 0, 40]);
    memory.reference(file, A, 40);
    assert_eq!(used(&memory), [0, 0, 40]);
    // b overwrote 20 of 40 clean pages.
    assert_eq!(memory.files[0].dirty(), 20);
    memory.check().unwrap();
}

/// b uses one page of a's 40 after the other: 1, 39/40, 39/40, 38/40, 37/40 of a page, and no part of it is
/// lost.
#[test]
fn parts_of_pages_add_up() {
    let mut memory = memory(240, 100, 100);
    let file = cached(&mut memory, A, 40, false);
    let mut shared = Vec::new();
    for _ in 0..5 {
        memory.reference(file, B, 1);
        shared.push(memory.used(UnitId::SHARED));
    }
    assert_eq!(shared, [1, 1, 2, 3, 4]);
}

/// A fault shows that the process runs: 90 ms after its last fault, a space's pages are 100 ms old; at a new
/// fault, 10 ms, its reuse time.
#[test]
fn a_fault_is_a_sign_of_life() {
    let mut memory = memory(240, 100, 0);
    let space = grown(&mut memory, A, 20);
    memory.at(90 * MS);
    assert_eq!(memory.spaces[0].age(memory.now), 100 * MS);
    assert_eq!(memory.grow(space, 1), Grant::Granted);
    assert_eq!(memory.spaces[0].age(memory.now), 10 * MS);
    write_all_of(&mut memory, A, 1);
    memory.at(180 * MS);
    assert_eq!(memory.swap_in(space, 1), Grant::Granted);
    assert_eq!(memory.spaces[0].age(memory.now), 10 * MS);
}

/// 20 % of 240 is 48. Two files, 40 dirty pages at 0 and 20 at 10 ms, are over it: the older is written, 16
/// pages at a time, until 44 are dirty; what is left waits until it is 30 s old. Its pages stay, clean.
#[test]
fn write_behind_begins_with_the_oldest() {
    let mut memory = memory(240, 200, 0);
    let first = cached(&mut memory, A, 40, true);
    assert_eq!(memory.flush(), None);
    memory.at(10 * MS);
    let second = cached(&mut memory, A, 20, true);
    let write = memory.flush().unwrap();
    assert_eq!((write.source(), write.charges()), (Source::File(first), &[(A, 16)][..]));
    assert_eq!(memory.flush(), None);
    assert_eq!(memory.written(write), 0);
    assert_eq!((memory.cached(first), memory.cached(second), memory.used(A)), (40, 20, 60));
    // 16 of 40 were written, and all came at once: the others are as old.
    memory.at(30_000 * MS);
    let pages: Vec<u64> = std::iter::from_fn(|| memory.flush()).map(|write| write.pages()).collect();
    assert_eq!(pages, [16, 8]);
    memory.at(30_010 * MS);
    assert_eq!(memory.flush().unwrap().source(), Source::File(second));
}

/// 10 spaces of 8 pages, all floors, with an allowance of 60: a request is granted by force, and counted.
#[test]
fn who_has_nothing_to_give_is_forced() {
    let mut memory = memory(240, 100, 100);
    let spaces: Vec<SpaceId> = (0..10).map(|_| grown(&mut memory, A, 8)).collect();
    memory.allow(&[240, 240, 60, 140]);
    let rounds = insist(&mut memory, A, 4, |memory| memory.grow(spaces[0], 4));
    assert_eq!((rounds, memory.counts(A).forced, memory.used(A)), (1, 4, 84));
    // The one that is above its floor now gives before anybody is forced again.
    insist(&mut memory, A, 4, |memory| memory.grow(spaces[1], 4));
    assert_eq!((memory.counts(A).forced, memory.used(A)), (8, 84));
    assert_eq!(memory.resident(spaces[0]), 8);
}

/// 25 spaces of 8 pages, all floors, fill the machine, and nobody is held to anything: the one that was not
/// used for longest gives up pages all the same, and so the next asks in vain no more than once.
#[test]
fn floors_give_way_when_nothing_else_is_left() {
    let mut memory = memory(240, 240, 240);
    let spaces: Vec<SpaceId> = (0..25).map(|_| grown(&mut memory, A, 8)).collect();
    memory.at(1_000 * MS);
    spaces[1..].iter().for_each(|space| memory.note_run(*space));
    assert_eq!(insist(&mut memory, A, 4, |memory| memory.grow(spaces[1], 4)), 1);
    assert_eq!((memory.resident(spaces[0]), memory.counts(A).forced), (4, 0));
}

/// a and b are within their 100 frames, and the common parts have grown until none is free: a gives its own,
/// until the next look at what everybody may use.
#[test]
fn without_debtors_a_unit_helps_itself() {
    let mut memory = memory(240, 100, 100);
    // b's space has the lower number: it would be the first to give if everybody did.
    let (b, a) = (grown(&mut memory, B, 80), grown(&mut memory, A, 80));
    let common = grown(&mut memory, UnitId::SHARED, 40);
    insist(&mut memory, A, 4, |memory| memory.grow(a, 4));
    assert_eq!([a, b, common].map(|space| memory.resident(space)), [80, 80, 40]);
    assert_eq!(memory.missing(a), 4);
}

/// A unit whose pager has to free pages is short; a debtor's that pays is not, as long as it asks for
/// nothing.
#[test]
fn the_pager_marks_who_is_within_its_allowance() {
    let mut memory = memory(240, 100, 100);
    grown(&mut memory, A, 96);
    assert!(!memory.facts()[2].short);
    write_all_of(&mut memory, A, 4);
    assert!(memory.facts()[2].short);
    memory.allow(&[240, 240, 60, 140]);
    // It uses 92, owes 32, and wants to have 4 free.
    write_all_of(&mut memory, A, 4);
    assert_eq!(memory.facts()[2], Facts { present: true, used: 56, short: false, ..Facts::default() });
}

/// a was granted frames beyond its allowance of 60 by force, until no frame was free. b gets its allowance
/// from a, not from itself.
#[test]
fn who_was_forced_gives_its_floor_to_who_is_entitled() {
    let mut memory = memory(240, 60, 140);
    let mine = grown(&mut memory, B, 100);
    for _ in 0..13 {
        grown(&mut memory, A, 8);
    }
    // 7 spaces fit in 56; 4 pages more are within 60, and what comes after is forced until 100 are used; then
    // a pays.
    assert_eq!((memory.used(A), memory.free()), (100, 0));
    insist(&mut memory, B, 4, |memory| memory.grow(mine, 4));
    assert_eq!((memory.used(A), memory.used(B), memory.resident(mine)), (96, 104, 104));
    assert_eq!((memory.counts(A).seized, memory.counts(B).seized), (0, 0));
}

/// Of two files with dirty pages of the same age, those used once count as 4 times older, and give 4 times as
/// much: of 20 pages 16 and 4.
#[test]
fn dirty_pages_that_were_used_once_are_older() {
    let mut memory = memory(240, 200, 0);
    let (once, twice) = (cached(&mut memory, A, 20, true), cached(&mut memory, A, 20, true));
    memory.at(10 * MS);
    memory.reference(twice, A, 20);
    let out = memory.reclaim(A, 20);
    assert_eq!(out.writes.iter().map(PageOut::pages).sum::<u64>(), 20);
    write_all(&mut memory, out.writes);
    assert_eq!((memory.cached(once), memory.cached(twice)), (4, 16));
}

/// A file read from 0 to 36 ms, 4 pages each 4 ms. When 20 of its 40 pages are gone, those left came after 18
/// ms: at 42 ms they count as 4 * 24 = 96 ms old. The same for dirty pages.
#[test]
fn of_a_stream_the_first_pages_go_first() {
    let mut memory = memory(240, 200, 0);
    let (read, written) = (memory.open_file(40), memory.open_file(40));
    for i in 0..10 {
        memory.at(i * 4 * MS);
        assert_eq!(memory.cache(read, A, 4, false), Grant::Granted);
        assert_eq!(memory.cache(written, A, 4, true), Grant::Granted);
        memory.reference(read, A, 4);
    }
    memory.at(42 * MS);
    assert_eq!(memory.reclaim(A, 20).freed, 20);
    assert_eq!(memory.files[0].clean_age(memory.now), 96 * MS);
    // 16 of 40 dirty pages are those of the first 36 * 16 / 40 = 14.4 ms.
    assert_eq!(memory.write_out(written).unwrap().pages(), 16);
    assert_eq!(memory.files[1].dirty_since, 14_400_000);
}

/// 1,040 frames, 8 % of them 83: the pager of a unit of 500 begins at 500 * 83 / 1,040 = 39 frames below its
/// allowance, whatever is free; that of the common parts when 41 are free. Where nobody is held to anything
/// all begin at 83.
#[test]
fn low_is_near_the_allowance() {
    let mut memory = memory(1_040, 500, 500);
    let space = grown(&mut memory, A, 460);
    assert!(!memory.is_unit_low(A), "40 below");
    assert_eq!(memory.grow(space, 2), Grant::Granted);
    assert!(memory.is_unit_low(A) && !memory.is_unit_low(B) && !memory.is_unit_low(UnitId::SHARED));
    grown(&mut memory, B, 496);
    assert!(memory.is_low() && !memory.is_unit_low(UnitId::SHARED), "42 are free");
    assert_eq!(memory.grow(space, 4), Grant::Granted);
    assert!(memory.is_unit_low(UnitId::SHARED));
    memory.allow(&[1_040; 4]);
    assert!(memory.is_unit_low(UnitId::SHARED) && memory.is_unit_low(A));
}

/// 240 frames: 40 the kernel's, and 8 + 16 are needed besides.
#[test]
fn a_machine_must_hold_its_kernel_and_a_process() {
    assert!(Memory::new(&hardware(64), &contract(Scheme::Smp)).is_ok());
    let error = Memory::new(&hardware(63), &contract(Scheme::Smp)).unwrap_err();
    assert_eq!(error, TooSmall { frames: 63, kernel: 40, needed: 24 });
}

/// One operation on a random memory.
#[derive(Debug, Clone)]
enum Act {
    Open(u8),
    Close(usize),
    Grow(usize, u32),
    Back(usize, u32),
    Cache(usize, u8, u32, bool),
    Use(usize, u8, u32, bool),
    Delete(usize),
    Flush,
    Reclaim(u8, u32),
    Done(usize),
    Wait(u64),
    Ran(usize, usize),
    Allow(u64, u64),
}

fn act() -> impl Strategy<Value = Act> {
    let (at, unit, pages) = (0usize..64, 2u8..4, 1u32..17);
    prop_oneof![
        1 => unit.clone().prop_map(Act::Open),
        1 => at.clone().prop_map(Act::Close),
        6 => (at.clone(), pages.clone()).prop_map(|(i, n)| Act::Grow(i, n)),
        3 => (at.clone(), pages.clone()).prop_map(|(i, n)| Act::Back(i, n)),
        4 => (at.clone(), unit.clone(), pages.clone(), any::<bool>()).prop_map(|(i, u, n, d)| Act::Cache(i, u, n, d)),
        3 => (at.clone(), unit.clone(), pages.clone(), any::<bool>()).prop_map(|(i, u, n, d)| Act::Use(i, u, n, d)),
        1 => at.clone().prop_map(Act::Delete),
        1 => Just(Act::Flush),
        4 => (unit, pages).prop_map(|(u, n)| Act::Reclaim(u, n)),
        4 => at.clone().prop_map(Act::Done),
        1 => (0u64..100).prop_map(Act::Wait),
        1 => (at, 0usize..3).prop_map(|(i, node)| Act::Ran(i, node)),
        1 => (0u64..300, 0u64..300).prop_map(|(a, b)| Act::Allow(a, b)),
    ]
}

/// A memory with its open spaces and files, and the writes in flight.
struct Trial {
    memory: Memory,
    spaces: Vec<SpaceId>,
    files: Vec<FileId>,
    writes: Vec<PageOut>,
}

impl Trial {
    fn new(frames: u64, a: u64, b: u64) -> Self {
        let mut memory = memory(frames, a, b);
        let files = (0..3).map(|i| memory.open_file(20 * (i + 1))).collect();
        Trial { memory, spaces: Vec::new(), files, writes: Vec::new() }
    }

    fn space(&self, i: usize) -> Option<SpaceId> {
        self.spaces.get(i % self.spaces.len().max(1)).copied()
    }

    fn act(&mut self, act: &Act) {
        let memory = &mut self.memory;
        let file = |i: usize| self.files[i % self.files.len()];
        let unit = |unit: u8| UnitId(u32::from(unit));
        match *act {
            Act::Open(u) => self.spaces.push(memory.open_space(unit(u), 5 * MS)),
            Act::Cache(i, u, pages, dirty) => drop(memory.cache(file(i), unit(u), pages, dirty)),
            Act::Use(i, u, pages, true) => memory.dirty(file(i), unit(u), pages),
            Act::Use(i, u, pages, false) => memory.reference(file(i), unit(u), pages),
            Act::Delete(i) => {
                let i = i % self.files.len();
                memory.close_file(self.files[i]);
                self.files[i] = memory.open_file(30);
            }
            Act::Flush => self.writes.extend(memory.flush()),
            Act::Reclaim(u, pages) => self.writes.extend(memory.reclaim(unit(u), pages).writes),
            Act::Done(i) if !self.writes.is_empty() => {
                memory.written(self.writes.swap_remove(i % self.writes.len()));
            }
            Act::Done(_) => {}
            Act::Wait(ms) => memory.at(memory.now + ms * MS),
            Act::Allow(a, b) => memory.allow(&[1_000, 1_000, a, b]),
            Act::Close(i) | Act::Grow(i, _) | Act::Back(i, _) | Act::Ran(i, _) => {
                if let Some(space) = self.space(i) {
                    self.act_on_space(space, act);
                }
            }
        }
    }

    fn act_on_space(&mut self, space: SpaceId, act: &Act) {
        match *act {
            Act::Close(_) => {
                self.memory.close_space(space);
                self.spaces.retain(|open| *open != space);
            }
            Act::Grow(_, pages) => drop(self.memory.grow(space, pages)),
            Act::Back(_, pages) => drop(self.memory.swap_in(space, pages)),
            Act::Ran(_, node) => self.memory.set_home(space, node),
            _ => self.memory.note_run(space),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn frames_are_conserved(acts in proptest::collection::vec(act(), 1..200)) {
        let mut trial = Trial::new(200, 80, 80);
        for act in &acts {
            trial.act(act);
            prop_assert_eq!(trial.memory.check(), Ok(()), "after {:?}", act);
        }
        let Trial { mut memory, spaces, files, writes } = trial;
        for space in spaces {
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
    }

    /// a and b are held to 80 frames each of 160, and touch no file of the other's. Whatever a does, b's
    /// pages stay, and b may have the rest of its frames in the end.
    #[test]
    fn nobody_takes_anothers_pages(acts in proptest::collection::vec(act(), 1..200)) {
        let mut trial = Trial::new(200, 80, 80);
        let mine = grown(&mut trial.memory, B, 40);
        let kept = cached(&mut trial.memory, B, 20, false);
        for act in acts {
            let a = u8::try_from(A.0).unwrap();
            trial.act(&match act {
                Act::Open(_) => Act::Open(a),
                Act::Cache(i, _, n, d) => Act::Cache(i, a, n, d),
                Act::Use(i, _, n, d) => Act::Use(i, a, n, d),
                Act::Reclaim(_, n) => Act::Reclaim(a, n),
                Act::Allow(..) => Act::Flush,
                other => other,
            });
            prop_assert_eq!((trial.memory.resident(mine), trial.memory.cached(kept)), (40, 20));
            prop_assert!(trial.memory.used(A) <= 80 + trial.memory.counts(A).forced);
        }
        for write in trial.writes {
            trial.memory.written(write);
        }
        insist(&mut trial.memory, B, 16, |memory| memory.grow(mine, 16));
        prop_assert_eq!((trial.memory.resident(mine), trial.memory.cached(kept)), (56, 20));
        prop_assert_eq!(trial.memory.counts(B).seized, 0);
    }

    /// Progress: each request is granted after some rounds, even with a small allowance on a full machine.
    #[test]
    fn no_request_is_refused_for_ever(
        acts in proptest::collection::vec(act(), 1..100),
        allowed in 0u64..100,
        pages in 1u32..17,
    ) {
        let mut trial = Trial::new(140, 60, 40);
        for act in &acts {
            trial.act(act);
        }
        let Trial { mut memory, writes, .. } = trial;
        memory.allow(&[1_000, 1_000, allowed, 40]);
        let space = memory.open_space(A, MS);
        for write in writes {
            memory.written(write);
        }
        let before = memory.counts(A).forced;
        insist(&mut memory, A, pages, |memory| memory.grow(space, pages));
        memory.check().unwrap();
        if allowed >= memory.units[A.index()].spaces * 8 + u64::from(pages) {
            prop_assert_eq!(memory.counts(A).forced, before, "who has room for its floors needs no force");
        }
    }

    /// The policy and the memory together: under constant demands, allowances settle, and a unit whose demand
    /// fits gets all of it.
    #[test]
    fn the_policy_and_the_memory_come_to_rest(fits in 10u32..45, wants in 60u32..120, reserve in 0u64..100_000) {
        let mut contract = contract(Scheme::Isolate);
        contract.machine.reserve = Amount::Part(reserve);
        let mut memory = Memory::new(&hardware(140), &contract).unwrap();
        let mut loans = LoanBook::default();
        let (a, b) = (memory.open_space(A, MS), memory.open_space(B, MS));
        let mut history = Vec::new();
        for number in 0..60 {
            let units = memory.facts();
            let mut rights = Rights::new(&contract);
            for (unit, facts) in contract.ids().zip(&units) {
                let _ = rights.set_present(unit, facts.present);
            }
            let (trigger, rights) = (Trigger::Period, &rights);
            let (contract, now) = (&contract, number * 100 * MS);
            let input = Input {
                contract, rights, frames: 140, frame_bytes: 1, units: &units, now, trigger, delay_ns: 0, first: &[],
            };
            let (next, shares) = step(loans, input);
            loans = next;
            let allowed: Vec<u64> = shares.allowances.iter().map(|allowance| allowance.allowed).collect();
            memory.allow(&allowed);
            for (space, unit, wanted) in [(a, A, fits), (b, B, wants)] {
                for _ in 0..40 {
                    let has = memory.resident(space);
                    let (missing, more) = (memory.missing(space), u64::from(wanted).saturating_sub(has));
                    let n = u32::try_from(more.min(4)).unwrap();
                    match (n, missing) {
                        (0, _) => break,
                        (_, 0) => drop(insist(&mut memory, unit, n, |memory| memory.grow(space, n))),
                        _ => drop(insist(&mut memory, unit, n, |memory| memory.swap_in(space, n))),
                    }
                }
            }
            memory.check().unwrap();
            history.push(allowed);
        }
        prop_assert_eq!(memory.resident(a), u64::from(fits));
        prop_assert_eq!(&history[40], &history[59]);
        prop_assert!(history[59][3] >= 50);
    }
}

/// 10 frames from the beginning, 30 from 1 s to 3 s, 20 to 4 s: 90 frame-seconds in 4 s. Grants that are
/// refused count for nothing.
#[test]
fn frames_are_counted_over_time() {
    let mut memory = memory(1000, 30, 960);
    memory.at(0);
    let (first, second) = (memory.open_space(A, MS), memory.open_space(A, MS));
    assert_eq!(memory.grow(first, 10), Grant::Granted);
    memory.at(1_000 * MS);
    assert_eq!(memory.grow(second, 20), Grant::Granted);
    assert_eq!(memory.grow(second, 1), Grant::Short);
    memory.at(3_000 * MS);
    memory.close_space(first);
    memory.at(4_000 * MS);
    assert_eq!(memory.used_mean_and_max(A), (22, 30));
    assert_eq!(memory.used_mean_and_max(UnitId::KERNEL), (40, 40));
}
