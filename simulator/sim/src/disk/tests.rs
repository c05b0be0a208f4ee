//! Every policy on every model: conservation, bounds, limits, and the purpose of each.

use commonhold_contract::UnitId;
use proptest::prelude::*;

use super::*;
use crate::scenario::{BatchChosen, DiskModel};

mod linux;

const MS: Time = 1_000_000;
const A: UnitId = UnitId(2);
const B: UnitId = UnitId(3);
const ORDERS: [DiskOrder; 6] = [
    DiskOrder::Position,
    DiskOrder::Isolation,
    DiskOrder::Fair,
    DiskOrder::Batched,
    DiskOrder::Linux,
    DiskOrder::Yfq,
];
/// Half an HP 97560's time: the longest request of 128 sectors takes overhead 1.1, seek 11.85, a turn of 7.5
/// and 128 + 18 sectors of 0.104 ms.
const LONGEST_NS: Time = 36 * MS;

fn disk(model: DiskModel, threshold_sectors: u64) -> Disk {
    Disk {
        name: "d".into(),
        model,
        order: None,
        weighs: false,
        depth: None,
        threshold_sectors,
        half_life_ns: 500 * MS,
        batch: 2,
        batch_chosen: BatchChosen::AtCompletion,
    }
}

fn hp() -> DiskModel {
    DiskModel::Hp97560 { scale: 2 }
}

fn fixed() -> DiskModel {
    DiskModel::Fixed { access_ns: 4 * MS, sector_ns: MS / 10, sectors: 1 << 20 }
}

fn ssd() -> DiskModel {
    DiskModel::Ssd { channels: 4, read_ns: MS / 10, write_ns: MS / 5, sector_ns: 1_000, sectors: 1 << 20 }
}

fn read(unit: UnitId, lba: u64, sectors: u32) -> Request {
    Request { id: 0, unit, lba, sectors, write: false, owners: Vec::new() }
}

/// A process that keeps several requests outstanding, and thinks before each.
#[derive(Debug, Clone)]
struct Stream {
    unit: UnitId,
    outstanding: u32,
    sectors: u32,
    /// Mean time from a completion to the next request; each is between half and one and a half of it.
    think_ns: Time,
    /// How many requests in all.
    requests: u32,
    write: bool,
    /// In sequence from `lba` on, else anywhere in `span` sectors from there.
    random: bool,
    lba: u64,
    span: u64,
    /// Delayed writes that the unit owns.
    delayed: bool,
    /// When it begins.
    start_ns: Time,
}

impl Stream {
    fn copy(unit: UnitId, lba: u64, requests: u32) -> Stream {
        Stream {
            unit,
            outstanding: 3,
            sectors: 78,
            think_ns: 0,
            requests,
            write: false,
            random: false,
            lba,
            span: 0,
            delayed: false,
            start_ns: 0,
        }
    }

    fn small(unit: UnitId, lba: u64, think_ns: Time, requests: u32) -> Stream {
        let base = Stream::copy(unit, lba, requests);
        Stream { outstanding: 1, sectors: 16, think_ns, random: true, span: 100_000, ..base }
    }

    fn request(&mut self, id: u32, chance: u64) -> Request {
        let room = self.span.saturating_sub(self.sectors.into()).max(1);
        let lba = if self.random { self.lba + chance % room } else { self.lba };
        self.lba += if self.random { 0 } else { u64::from(self.sectors) };
        let (unit, owners) = if self.delayed {
            (UnitId::SHARED, vec![(self.unit, self.sectors)])
        } else {
            (self.unit, Vec::new())
        };
        Request { id, unit, lba, sectors: self.sectors, write: self.write || self.delayed, owners }
    }
}

/// The outcome: when each stream ended, and all completions.
struct Outcome {
    ends: Vec<Time>,
    done: Vec<(Time, Finished)>,
    drive: Drive,
}

impl Outcome {
    fn of(&self, stream: usize) -> impl Iterator<Item = &Finished> {
        self.done.iter().map(|(_, finished)| finished).filter(move |f| f.request.id as usize == stream)
    }

    fn waited_ns_max(&self, stream: usize) -> Time {
        self.of(stream).map(|finished| finished.waited_ns).max().unwrap_or(0)
    }

    fn sectors(&self, stream: usize) -> u64 {
        self.of(stream).map(|finished| u64::from(finished.request.sectors)).sum()
    }
}

fn next_chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 24
}

/// Runs streams until `until`, or until all are done. A request's id is its stream.
fn run(drive: Drive, streams: Vec<Stream>, until: Time) -> Outcome {
    run_watched(drive, streams, until, |_, _| {})
}

/// Runs streams like [`run`], and inspects the drive after every event.
fn run_watched(
    mut drive: Drive,
    mut streams: Vec<Stream>,
    until: Time,
    mut watch: impl FnMut(Time, &mut Drive),
) -> Outcome {
    let mut chances: Vec<u64> = (1..=streams.len() as u64).collect();
    let mut issues = BTreeMap::new();
    let mut count = 0;
    for (at, stream) in streams.iter().enumerate() {
        for _ in 0..stream.outstanding {
            issues.insert((stream.start_ns, count), at);
            count += 1;
        }
    }
    let (mut ends, mut done) = (vec![0; streams.len()], Vec::new());
    loop {
        let issue = issues.first_key_value().map(|((time, _), _)| *time);
        let Some(now) = [issue, drive.next()].into_iter().flatten().min().filter(|now| *now < until) else {
            break;
        };
        if issue == Some(now) {
            let (_, at) = issues.pop_first().unwrap();
            let stream = &mut streams[at];
            if stream.requests > 0 {
                stream.requests -= 1;
                let request = stream.request(u32::try_from(at).unwrap(), next_chance(&mut chances[at]));
                drive.submit(now, request);
            }
        } else if let Some(finished) = drive.complete(now) {
            let at = finished.request.id as usize;
            let think_ns = streams[at].think_ns;
            let spread =
                if think_ns == 0 { 0 } else { think_ns / 2 + next_chance(&mut chances[at]) % think_ns };
            issues.insert((now + spread, count), at);
            count += 1;
            ends[at] = now;
            done.push((now, finished));
        }
        drive.start(now);
        watch(now, &mut drive);
        assert_eq!(drive.check(), Ok(()));
    }
    Outcome { ends, done, drive }
}

fn drive(order: DiskOrder, threshold_sectors: u64, shares: &[u64]) -> Drive {
    Drive::new(&disk(hp(), threshold_sectors), order, shares)
}

/// Units and sectors of what was served, in order.
fn schedule(outcome: &Outcome) -> Vec<(Time, u32, u64)> {
    outcome.done.iter().map(|(time, finished)| (*time, finished.request.id, finished.request.lba)).collect()
}

fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let stream = (0u32..5, 1u32..4, 1u32..129, 0u64..30, any::<[bool; 3]>(), 0u64..900_000);
    let stream =
        stream.prop_map(|(unit, outstanding, sectors, think_ms, [write, random, delayed], lba)| Stream {
            unit: UnitId(unit),
            outstanding,
            sectors,
            think_ns: think_ms * MS,
            requests: 40,
            write,
            random,
            lba,
            span: 100_000,
            delayed: delayed && unit > 1,
            start_ns: 0,
        });
    proptest::collection::vec(stream, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Seed 000, section 3.3: "a very large value resulting in the normal disk-head-position scheduling".
    #[test]
    fn an_endless_threshold_is_position_alone(streams in streams()) {
        let shares = [0, 0, 1, 3, 2];
        let position = run(drive(DiskOrder::Position, 0, &shares), streams.clone(), u64::MAX);
        let fair = run(drive(DiskOrder::Fair, u64::MAX, &shares), streams, u64::MAX);
        prop_assert_eq!(schedule(&position), schedule(&fair));
        prop_assert_eq!(position.drive.figures(), fair.drive.figures());
    }

    #[test]
    fn all_that_came_is_done_once(streams in streams(), model in 0usize..3, order in 0..ORDERS.len()) {
        let disk = disk([hp(), fixed(), ssd()][model].clone(), 64);
        let start = || Drive::new(&disk, ORDERS[order], &[0, 0, 1, 3]);
        let outcome = run(start(), streams.clone(), u64::MAX);
        for (at, stream) in streams.iter().enumerate() {
            prop_assert_eq!(outcome.of(at).count(), 40);
            prop_assert_eq!(outcome.sectors(at), 40 * u64::from(stream.sectors));
        }
        let figures = outcome.drive.figures();
        prop_assert_eq!(figures.total().waited_ns, figures.queued_ns);
        prop_assert_eq!(figures.total().served_ns, figures.in_service_ns);
        prop_assert!(outcome.drive.next().is_none());
        // The same again gives the same.
        prop_assert_eq!(schedule(&run(start(), streams, u64::MAX)), schedule(&outcome));
    }

    /// Position: between its arrival and its start, the head starts over at most once, and once more for each
    /// transfer that passes over its first sector without being it: one that came before it and begins there
    /// too, for one.
    #[test]
    fn position_keeps_nobody_for_ever(streams in streams()) {
        let outcome = run(drive(DiskOrder::Position, 0, &[]), streams, u64::MAX);
        let begun = |(end, finished): &(Time, Finished)| end - finished.service_ns;
        for it in &outcome.done {
            let arrival = begun(it) - it.1.waited_ns;
            let meanwhile: Vec<&Request> = outcome.done.iter()
                .filter(|other| begun(other) >= arrival && begun(other) <= begun(it))
                .map(|(_, finished)| &finished.request).collect();
            let passes = |r: &Request| (r.lba..r.lba + u64::from(r.sectors)).contains(&it.1.request.lba);
            let over = |r: &&&Request| !std::ptr::eq(**r, &raw const it.1.request) && passes(r);
            let allowed = 1 + meanwhile.iter().filter(over).count();
            prop_assert!(meanwhile.windows(2).filter(|pair| pair[1].lba < pair[0].lba).count() <= allowed);
        }
    }

    /// Batched: the bound that its file states, for units with one request outstanding, whose requests wait
    /// for none of their own.
    #[test]
    fn batched_bounds_every_wait(
        sizes in proptest::collection::vec((1u32..129, 0u64..30, any::<bool>(), 0u64..900_000, 1u64..4, 1u32..4), 2..6),
    ) {
        let mut shares = vec![0, 0];
        shares.extend(sizes.iter().map(|size| size.4));
        let streams: Vec<Stream> = (2..).zip(&sizes).map(|(unit, (sectors, think_ms, random, lba, _, outstanding))| {
            let base = Stream::small(UnitId(unit), *lba, think_ms * MS, 200);
            Stream { sectors: *sectors, random: *random, outstanding: *outstanding, ..base }
        }).collect();
        let outcome = run(drive(DiskOrder::Batched, 0, &shares), streams, u64::MAX);
        let pause = Mechanics::new(&hp()).reposition_ns();
        let (turn, credit) = (4 * pause, 4 * pause + 100 * MS);
        let (all, units) = (shares.iter().sum::<u64>(), sizes.len() as u64);
        for (at, size) in sizes.iter().enumerate().filter(|(_, size)| size.5 == 1) {
            let ahead = credit.max(turn + (LONGEST_NS + pause) * all / (units * size.4));
            let others = sizes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| {
                (ahead + credit + turn) * other.4 * units / all + LONGEST_NS + pause
            });
            let bound = others.sum::<u64>() + 2 * LONGEST_NS;
            let waited = outcome.waited_ns_max(at);
            prop_assert!(waited <= bound, "waited {} ms, bound {} ms", waited / MS, bound / MS);
        }
    }
}

/// Seed 000, section 3.3: "a choice of zero resulting in round-robin scheduling".
#[test]
fn no_threshold_alternates() {
    for units in 2u32..5 {
        let shares: Vec<u64> = (0..units + 2).map(|unit| u64::from(unit > 1)).collect();
        let streams: Vec<Stream> =
            (2..units + 2).map(|unit| Stream::copy(UnitId(unit), u64::from(unit) * 300_000, 300)).collect();
        let outcome = run(drive(DiskOrder::Fair, 0, &shares), streams, 10_000 * MS);
        let mut served = vec![0u32; units as usize];
        for (_, finished) in &outcome.done {
            served[finished.request.id as usize] += 1;
            let spread = served.iter().max().unwrap() - served.iter().min().unwrap();
            assert!(spread <= 1, "{served:?}");
        }
        assert!(served.iter().all(|n| *n > 80));
    }
}

/// A unit that copies keeps the head under Position; its requests lie ahead of the head for ever.
#[test]
fn position_alone_lets_a_copy_lock_others_out() {
    let streams = || vec![Stream::copy(B, 100_000, 1_000), Stream::small(A, 0, 5 * MS, 1_000)];
    let position = run(drive(DiskOrder::Position, 64, &[0, 0, 1, 1]), streams(), 5_000 * MS);
    // The first small request arrives while the copy's first is served, and no other is ever served.
    assert_eq!(position.of(1).count(), 0);
    for order in [DiskOrder::Isolation, DiskOrder::Fair, DiskOrder::Batched] {
        let fair = run(drive(order, 64, &[0, 0, 1, 1]), streams(), 5_000 * MS);
        assert!(fair.of(1).count() > 100, "{order:?}: {}", fair.of(1).count());
    }
}

/// Shares of 1 and 3, both always with requests: three times the sectors, within 5 %. Batched divides time,
/// and a copy in shorter turns gets fewer sectors out of it.
#[test]
fn unequal_shares() {
    for order in [DiskOrder::Isolation, DiskOrder::Fair, DiskOrder::Batched] {
        let streams = vec![Stream::copy(A, 100_000, 100_000), Stream::copy(B, 900_000, 100_000)];
        let outcome = run(drive(order, 16, &[0, 0, 1, 3]), streams, 30_000 * MS);
        let figures = outcome.drive.figures();
        let had = |unit| match order {
            DiskOrder::Batched => figures.unit(unit).served_ns,
            _ => figures.unit(unit).sectors,
        };
        let (one, three) = (had(A), had(B));
        assert!((57 * one..63 * one).contains(&(20 * three)), "{order:?}: {three} to {one}");
    }
}

/// A unit without a share gets next to nothing beside one with a share, and everything when it is alone.
/// (Under Fair, the one with a share never is a threshold beyond its part then, so that the other has to wait
/// for the sweep.)
#[test]
fn no_share_is_not_starved() {
    for order in [DiskOrder::Isolation, DiskOrder::Batched] {
        let mut seen = Vec::new();
        for requests in [0, 100_000] {
            let streams = vec![Stream::copy(A, 100_000, requests), Stream::copy(B, 900_000, 100_000)];
            let outcome = run(drive(order, 16, &[0, 0, 1, 0]), streams, 60_000 * MS);
            seen.push(outcome.sectors(1));
        }
        assert!(seen[1] > 0 && seen[1] * 10 < seen[0], "{order:?}: {seen:?}");
    }
}

/// The lightest unit's wait under Isolation and Fair: its count is about 0, so each other of n units goes
/// until its own is beyond n thresholds and a request, twice if a halving comes between, and one request is
/// in service.
#[test]
fn a_light_unit_waits_for_a_bounded_number_of_sectors() {
    for (order, threshold) in [(DiskOrder::Isolation, 0), (DiskOrder::Fair, 0), (DiskOrder::Fair, 64)] {
        let mut streams: Vec<Stream> =
            (3..6).map(|unit| Stream::copy(UnitId(unit), u64::from(unit) * 300_000, 100_000)).collect();
        streams.push(Stream::small(A, 0, 400 * MS, 60));
        let outcome = run(drive(order, threshold, &[0, 0, 1, 1, 1, 1]), streams, 60_000 * MS);
        // At most 2 * 3 * (4 * 64 + 78 + 16) sectors, in requests of 78: 27 requests at 20 ms. Threshold
        // 0: 8.
        let requests = 2 * 3 * (4 * threshold + 78 + 16) / 78 + 1;
        assert_eq!(outcome.of(3).count(), 60);
        assert!(
            outcome.waited_ns_max(3) <= requests * 20 * MS,
            "{order:?}: {} ms",
            outcome.waited_ns_max(3) / MS
        );
    }
}

/// Two heavy units: one that is denied comes back. Under Position the second would never be served.
#[test]
fn a_denied_unit_comes_back() {
    for threshold in [0, 64, 256] {
        let streams = vec![Stream::copy(A, 100_000, 100_000), Stream::copy(B, 900_000, 100_000)];
        let outcome = run(drive(DiskOrder::Fair, threshold, &[0, 0, 1, 1]), streams, 20_000 * MS);
        // A unit may go two thresholds and a request beyond the other, and wait as long: at 20 ms per 78
        // sectors.
        let bound = (2 * (2 * threshold + 2 * 78) / 78 + 3) * 20 * MS;
        for at in 0..2 {
            assert!(outcome.waited_ns_max(at) <= bound, "{threshold}: {} ms", outcome.waited_ns_max(at) / MS);
        }
    }
}

/// The larger the threshold, the fewer seeks: the copies' throughput does not fall.
#[test]
fn a_larger_threshold_seeks_less() {
    let done = |threshold| {
        let streams = vec![Stream::copy(A, 100_000, 100_000), Stream::copy(B, 900_000, 100_000)];
        run(drive(DiskOrder::Fair, threshold, &[0, 0, 1, 1]), streams, 20_000 * MS).done.len()
    };
    let swept: Vec<usize> = [0, 64, 256, 1_024, u64::MAX].into_iter().map(done).collect();
    assert!(swept.is_sorted(), "{swept:?}");
    // One seek of about 17 ms per 10 ms request at one end, none at the other.
    assert!(swept[0] * 2 < swept[4], "{swept:?}");
}

fn submit_all(drive: &mut Drive, requests: Vec<Request>) {
    for (id, request) in (0..).zip(requests) {
        drive.submit(0, Request { id, ..request });
    }
}

/// Serves all waiting requests, and returns them in the order of completion.
fn drain(drive: &mut Drive) -> Vec<u32> {
    let (mut order, mut now) = (Vec::new(), 0);
    drive.start(now);
    while let Some(next) = drive.next() {
        now = next;
        order.extend(drive.complete(now).map(|finished| finished.request.id));
        drive.start(now);
    }
    order
}

#[test]
fn orders_by_hand() {
    let requests =
        || vec![read(A, 900, 8), read(A, 100, 8), read(B, 500, 8), read(A, 300, 8), read(B, 50, 8)];
    let served = |order| {
        let mut drive = drive(order, 0, &[0, 0, 1, 1]);
        submit_all(&mut drive, requests());
        drain(&mut drive)
    };
    // From sector 0 up: 50, 100, 300, 500, 900.
    assert_eq!(served(DiskOrder::Position), [4, 1, 3, 2, 0]);
    // A's in the order they came (0, 1, 3), B's likewise (2, 4), in turn.
    assert_eq!(served(DiskOrder::Isolation), [0, 2, 1, 4, 3]);
    // 50 (B), then only A passes: 100. Both have 8: 300 (A) is next, then only B: 500. Then 900.
    assert_eq!(served(DiskOrder::Fair), [4, 1, 3, 2, 0]);
    // A is the first unit: a turn is more than three requests long. Then B from the head at 908, and over
    // again.
    assert_eq!(served(DiskOrder::Batched), [1, 3, 0, 4, 2]);
    // Finish tags: A's 8, 16, 24, B's 8, 16. Batches of two: 900 and 500 (0 and 2), then 100 (1) and 50 (4),
    // then 300. The head comes from 0: 500, 900, then over again.
    assert_eq!(served(DiskOrder::Yfq), [2, 0, 4, 1, 3]);
    // 500 and 700, then from 708 on: 900 before 100.
    let mut drive = drive(DiskOrder::Yfq, 0, &[0, 0, 1, 1]);
    submit_all(&mut drive, vec![read(A, 500, 8), read(A, 900, 8), read(B, 700, 8), read(B, 100, 8)]);
    assert_eq!(drain(&mut drive), [0, 2, 1, 3]);
}

#[test]
fn the_kernel_first_and_delayed_writes_last() {
    let delayed = |lba| Request { write: true, owners: vec![(A, 8)], ..read(UnitId::SHARED, lba, 8) };
    for order in [DiskOrder::Isolation, DiskOrder::Batched, DiskOrder::Fair, DiskOrder::Yfq] {
        let mut drive = drive(order, 0, &[0, 0, 1, 1]);
        submit_all(
            &mut drive,
            vec![delayed(10), read(A, 700, 8), read(B, 800, 8), read(UnitId::KERNEL, 600, 8)],
        );
        assert_eq!(drain(&mut drive), [3, 1, 2, 0], "{order:?}");
        assert_eq!(drive.figures().unit(UnitId::SHARED).sectors, 8);
        assert_eq!(drive.figures().unit(A).charged_sectors, 16);
    }
    // By position alone they are requests like others.
    let mut drive = drive(DiskOrder::Position, 0, &[]);
    submit_all(&mut drive, vec![delayed(10), read(A, 700, 8), read(UnitId::KERNEL, 600, 8)]);
    assert_eq!(drain(&mut drive), [0, 2, 1]);
}

/// While a unit reads without end, delayed writes wait for a second; then they go in their owner's turn.
#[test]
fn delayed_writes_wait_for_a_bounded_time() {
    for order in [DiskOrder::Isolation, DiskOrder::Fair, DiskOrder::Batched] {
        let writes = Stream { delayed: true, ..Stream::copy(B, 900_000, 100_000) };
        let streams = vec![Stream::copy(A, 100_000, 100_000), writes];
        let outcome = run(drive(order, 64, &[0, 0, 1, 1]), streams, 20_000 * MS);
        let waited = outcome.waited_ns_max(1);
        assert!(waited > 900 * MS && waited < DELAYED_NS_MAX + 300 * MS, "{order:?}: {} ms", waited / MS);
        assert!(outcome.of(1).count() > 50);
    }
}

/// Old delayed writes of a unit that copies do not keep a light unit out: they are the copier's requests.
#[test]
fn old_writes_of_a_heavy_unit_stay_its_own() {
    for order in [DiskOrder::Isolation, DiskOrder::Fair, DiskOrder::Batched] {
        let writes = Stream { delayed: true, outstanding: 40, ..Stream::copy(B, 900_000, 100_000) };
        let streams = vec![Stream::copy(B, 100_000, 100_000), writes, Stream::small(A, 0, 100 * MS, 100)];
        let outcome = run(drive(order, 0, &[0, 0, 1, 1]), streams, 60_000 * MS);
        // One of the heavy unit's in service, at most 36 ms, and where sectors tie, one more.
        assert_eq!(outcome.of(2).count(), 100);
        assert!(
            outcome.waited_ns_max(2) <= 2 * LONGEST_NS,
            "{order:?}: {} ms",
            outcome.waited_ns_max(2) / MS
        );
    }
}

/// What Batched is for: a program that reads small pieces, thinking for 3 ms, beside a copy.
#[test]
fn batched_serves_a_quick_reader_and_a_copy_better_than_fair() {
    let both = |order| {
        let streams = vec![Stream::small(A, 900_000, 3 * MS, 300), Stream::copy(B, 100_000, 100_000)];
        let outcome = run(drive(order, 64, &[0, 0, 1, 1]), streams, 20_000 * MS);
        let end = outcome.ends[0];
        let copied = outcome.done.iter().filter(|(time, f)| *time <= end && f.request.id == 1).count() as u64;
        (end, copied * 1_000 * MS / end)
    };
    let (fair_end, fair_rate) = both(DiskOrder::Fair);
    let (end, rate) = both(DiskOrder::Batched);
    // Fair alternates: a seek each way for every small piece. Measured: see the message.
    let figures =
        format!("reader {} and {} ms, copy {rate} and {fair_rate} requests/s", end / MS, fair_end / MS);
    assert!(end * 10 < fair_end * 8 && rate * 10 > fair_rate * 12, "{figures}");
}

/// And two copies: turns, not request by request.
#[test]
fn batched_copies_side_by_side() {
    let done = |order, both: bool| {
        let streams =
            vec![Stream::copy(A, 0, 100_000), Stream::copy(B, 900_000, if both { 100_000 } else { 0 })];
        let outcome = run(drive(order, 64, &[0, 0, 1, 1]), streams, 20_000 * MS);
        (outcome.of(0).count(), outcome.of(1).count())
    };
    let (alone, _) = done(DiskOrder::Batched, false);
    let (one, other) = done(DiskOrder::Batched, true);
    assert!(one.abs_diff(other) * 20 < alone, "{one} and {other}");
    assert!((one + other) * 100 > alone * 85, "{one} and {other} of {alone}");
}

/// A unit whose pauses are short is waited for, and only such a one.
#[test]
fn waits_for_the_quick_only() {
    let idle_beside_a_copy = |think_ns| {
        let streams = vec![Stream::small(A, 900_000, think_ns, 200), Stream::copy(B, 100_000, 100_000)];
        let outcome = run(drive(DiskOrder::Batched, 0, &[0, 0, 1, 1]), streams, 5_000 * MS);
        outcome.drive.figures().queued_ns > 0 && outcome.drive.figures().busy_ns < 4_900 * MS
    };
    assert!(idle_beside_a_copy(4 * MS));
    assert!(!idle_beside_a_copy(40 * MS));
}

/// The disk time that a unit is waited for is its own: beside a reader whose pieces are all read ahead, 1.5
/// ms each, and who thinks for 7 ms, a copy has half of the time, not what is left over.
#[test]
fn waiting_is_on_the_account_of_whom_it_is_for() {
    let reader = Stream { random: false, ..Stream::small(A, 900_000, 7 * MS, 10_000) };
    let streams = vec![reader, Stream::copy(B, 100_000, 100_000)];
    let outcome = run(drive(DiskOrder::Batched, 0, &[0, 0, 1, 1]), streams, 10_000 * MS);
    let copied = outcome.drive.figures().unit(B).served_ns;
    assert!((4_500 * MS..6_500 * MS).contains(&copied), "{} ms", copied / MS);
}

/// A unit that was idle for long has a claim to the credit, not to all the time that it did not use.
#[test]
fn a_late_comer_does_not_shut_others_out() {
    let late = Stream { start_ns: 10_000 * MS, ..Stream::copy(B, 900_000, 100_000) };
    let streams = vec![Stream::copy(A, 100_000, 100_000), late];
    let outcome = run(drive(DiskOrder::Batched, 0, &[0, 0, 1, 1]), streams, 15_000 * MS);
    // Credit 142 ms, and the turn of 42 ms by which it may be ahead afterwards, and a request or two.
    let waited = outcome.waited_ns_max(0);
    assert!(waited > 142 * MS && waited < (142 + 42) * MS + 2 * LONGEST_NS, "{} ms", waited / MS);
}

/// Delayed writes on an otherwise idle disk put their owner behind a unit that did not write, but by the
/// credit at most.
#[test]
fn delayed_writes_are_on_their_owners_account() {
    let writes = Stream { delayed: true, ..Stream::copy(A, 400_000, 250) };
    let copy = |unit, lba| Stream { start_ns: 9_000 * MS, ..Stream::copy(unit, lba, 100_000) };
    let streams = vec![writes, copy(B, 900_000), copy(A, 100_000)];
    let outcome = run(drive(DiskOrder::Batched, 0, &[0, 0, 1, 1]), streams, 12_000 * MS);
    assert!(outcome.ends[0] < 9_000 * MS && outcome.ends[0] > 2_000 * MS, "{} ms", outcome.ends[0] / MS);
    // B has the disk until the credit and a turn are used up, and the credit that it came with.
    let waited = outcome.waited_ns_max(2);
    assert!(waited > 142 * MS && waited < (142 + 42 + 142) * MS + 2 * LONGEST_NS, "{} ms", waited / MS);
}

#[test]
fn channels_are_shared_out() {
    // Shares 1 and 3 on four channels, counts by share as transfers begin: A 8, then B 2.7, 5.3, 8.
    for order in [DiskOrder::Isolation, DiskOrder::Batched] {
        let mut drive = Drive::new(&disk(ssd(), 0), order, &[0, 0, 1, 3]);
        submit_all(&mut drive, (0..16).map(|n| read(if n < 8 { A } else { B }, n * 100, 8)).collect());
        drive.start(0);
        let mut begun = Vec::new();
        while let Some(finished) = drive.next().and_then(|next| drive.complete(next)) {
            begun.push(finished.request.unit);
        }
        assert_eq!(begun, [A, B, B, B], "{order:?}");
    }
}

#[test]
fn a_decision_is_not_a_completion() {
    let mut drive = drive(DiskOrder::Batched, 0, &[0, 0, 1, 1]);
    drive.submit(0, read(A, 900, 8));
    drive.start(0);
    let done = drive.next().unwrap();
    assert!(drive.complete(done).is_some());
    // A delayed write waits until the disk has been quiet for the pause.
    drive.submit(done, Request { write: true, ..read(UnitId::SHARED, 5, 8) });
    drive.start(done);
    let decision = drive.next().unwrap();
    assert_eq!(decision, done + Mechanics::new(&hp()).reposition_ns());
    assert_eq!(drive.complete(decision), None);
    drive.start(decision);
    let end = drive.next().unwrap();
    assert_eq!(drive.complete(end).map(|finished| finished.waited_ns), Some(decision - done));
}

#[test]
fn channels_work_side_by_side() {
    // Six reads of 8 sectors on 4 channels: 0.1 ms + 8 us each; four are done at 0.108 ms, two at 0.216 ms.
    for order in ORDERS {
        let mut drive = Drive::new(&disk(ssd(), 64), order, &[0, 0, 1, 1]);
        submit_all(&mut drive, (0..6).map(|n| read(A, n * 100, 8)).collect());
        assert_eq!(drain(&mut drive).len(), 6);
        let figures = drive.figures();
        assert_eq!((figures.busy_ns, figures.in_service_ns), (216_000, 6 * 108_000));
        // Two waited for 0.108 ms.
        assert_eq!(figures.queued_ns, 216_000);
        assert_eq!((figures.found_waiting, figures.arrivals), (15, 6));
    }
}

#[test]
fn a_light_unit_gets_the_next_channel() {
    // A has 40 reads waiting and 4 in service when B comes: B's goes next, though channels free up one by
    // one.
    for order in [DiskOrder::Isolation, DiskOrder::Fair, DiskOrder::Batched] {
        let mut drive = Drive::new(&disk(ssd(), 0), order, &[0, 0, 1, 1]);
        submit_all(&mut drive, (0..44).map(|n| read(A, n * 100, 8)).collect());
        drive.start(0);
        drive.submit(1, read(B, 900_000, 8));
        let first = drive.next().unwrap();
        assert!(drive.complete(first).is_some());
        drive.start(first);
        let mut ends = Vec::new();
        while let Some(finished) = drive.next().and_then(|next| drive.complete(next)) {
            ends.push(finished.request.unit);
        }
        assert_eq!(ends.len(), 4);
        assert_eq!(ends[3], B, "{order:?}");
    }
}

#[test]
#[should_panic(expected = "request for 9 sectors at 1048568 of 1048576")]
fn beyond_the_last_sector() {
    Drive::new(&disk(fixed(), 0), DiskOrder::Position, &[]).submit(0, read(A, (1 << 20) - 8, 9));
}

/// YFQ: units that always have requests waiting get sectors by share, whatever the size of requests and
/// batches.
#[test]
fn yfq_serves_by_share() {
    for (batch, shares) in [(1, [1, 1, 1]), (2, [4, 1, 1]), (8, [5, 2, 1])] {
        let disk = Disk { batch, ..disk(hp(), 0) };
        let stream = |at: u32| Stream {
            outstanding: 20,
            sectors: [16, 64, 128][at as usize],
            ..Stream::copy(UnitId(2 + at), u64::from(at) * 300_000, 100_000)
        };
        let drive = Drive::new(&disk, DiskOrder::Yfq, &[0, 0, shares[0], shares[1], shares[2]]);
        let outcome = run(drive, (0..3).map(stream).collect(), 60_000 * MS);
        let all: u64 = (0..3).map(|at| outcome.sectors(at)).sum();
        for (at, share) in shares.iter().enumerate() {
            let wanted = all * share / shares.iter().sum::<u64>();
            // A batch of the largest requests, and one request more.
            let off = outcome.sectors(at).abs_diff(wanted);
            assert!(off <= 128 * u64::from(batch + 1), "{batch} {shares:?}: {at} off by {off} of {wanted}");
        }
    }
}

/// Seed 004, section 5.6: a task that waits for each request before it sends the next has at most half of the
/// disk beside another that always waits, whatever it holds.
#[test]
fn who_waits_for_each_request_has_half_of_the_disk() {
    for shares in [[1, 1], [3, 1], [1_000, 1]] {
        let stream = |at: u32| Stream {
            sectors: 8,
            ..Stream::small(UnitId(2 + at), u64::from(at) * 300_000, 0, 100_000)
        };
        let drive = drive(DiskOrder::Yfq, 0, &[0, 0, shares[0], shares[1]]);
        let outcome = run(drive, (0..2).map(stream).collect(), 60_000 * MS);
        let (one, other) = (outcome.sectors(0), outcome.sectors(1));
        let per_cent = one * 100 / (one + other);
        assert!((48..52).contains(&per_cent), "{shares:?}: {per_cent} %");
    }
}

/// Seed 004, figure 8: half of the disk for one task, an eighth for each of four others, with one request at
/// a time each, which they send 0.3 ms after the last. At completion, the one misses each batch after one in
/// which it was last.
#[test]
fn who_was_last_in_a_batch_has_a_place_in_the_next_after_resubmission() {
    let part = |batch_chosen| {
        let disk = Disk { batch_chosen, ..disk(hp(), 0) };
        let stream = |at: u32| Stream {
            sectors: 8,
            ..Stream::small(UnitId(2 + at), u64::from(at) * 300_000, 3 * MS / 10, 100_000)
        };
        let drive = Drive::new(&disk, DiskOrder::Yfq, &[0, 0, 4, 1, 1, 1, 1]);
        let outcome = run(drive, (0..5).map(stream).collect(), 60_000 * MS);
        let [one, all] = [outcome.sectors(0), (0..5).map(|at| outcome.sectors(at)).sum()];
        one * 100 / all
    };
    let parts = [BatchChosen::AtCompletion, BatchChosen::AfterResubmission].map(part);
    assert!((33..37).contains(&parts[0]) && (49..=50).contains(&parts[1]), "{parts:?} per cent");
}

/// The requests that five tasks have in a hundred seconds, with one at a time each, where the first has
/// `tickets` and the others 1,000 each. Their files lie one behind the other.
fn carried(model: DiskModel, random: bool, tickets: u64) -> u64 {
    let disk = Disk { batch_chosen: BatchChosen::AfterResubmission, ..disk(model, 0) };
    let stream = |at: u32| Stream {
        outstanding: 1,
        sectors: 8,
        think_ns: 3 * MS / 10,
        random,
        span: 32_768,
        ..Stream::copy(UnitId(2 + at), u64::from(at) * 32_768, 100_000)
    };
    let drive = Drive::new(&disk, DiskOrder::Yfq, &[0, 0, tickets, 1_000, 1_000, 1_000, 1_000]);
    run(drive, (0..5).map(stream).collect(), 100_000 * MS).done.len() as u64
}

/// Equal finish tags change nothing about how much a disk carries: neither on one without an arm, nor where
/// requests lie anywhere in the files. (Tasks with equal shares that read their files in sequence do so in
/// step, so the platters have turned by the same angle from each request to the next. That angle, and no tie,
/// is what makes the disk faster or slower at equal shares than at any others.)
#[test]
fn equal_shares_carry_as_much_as_others() {
    for (model, random) in [(fixed(), false), (DiskModel::Hp97560 { scale: 1 }, true)] {
        let [equal, other] = [1_000, 1_010].map(|tickets| carried(model.clone(), random, tickets));
        assert!(equal.abs_diff(other) * 100 < equal * 3 / 2, "{model:?}: {equal} and {other}");
    }
}
