//! The order of Linux: rates, weights, and what a policy observes.

use commonhold_policy::DiskUse;

use super::*;

const C: UnitId = UnitId(4);
const D: UnitId = UnitId(5);
/// One request of 8 sectors on the disk of a fixed time: 4 ms and 8 times 0.1 ms.
const ONE_NS: Time = 4_800_000;
/// 4096 bytes in a slice of 100 ms.
const RATE: u64 = 40_960;

fn linux(model: DiskModel, parents: &[Option<UnitId>], weighs: bool) -> Drive {
    Drive::linux(&disk(model, 0), parents, weighs)
}

/// Five units at the top, two of them the common parts.
fn flat() -> Vec<Option<UnitId>> {
    vec![None; 6]
}

/// A has C and D as sub-units.
fn nested() -> Vec<Option<UnitId>> {
    vec![None, None, None, None, Some(A), Some(A)]
}

/// Whose requests these are, by number.
fn submit_each(drive: &mut Drive, now: Time, requests: impl IntoIterator<Item = Request>) {
    for (id, request) in (0..).zip(requests) {
        drive.submit(now, Request { id, ..request });
    }
    drive.start(now);
}

/// When each request began, by number, in milliseconds.
fn begins(drive: &mut Drive) -> Vec<u64> {
    let mut begins = BTreeMap::new();
    while let Some(now) = drive.next() {
        if let Some(finished) = drive.complete(now) {
            begins.insert(finished.request.id, (now - finished.service_ns) / MS);
        }
        drive.start(now);
        assert_eq!(drive.check(), Ok(()));
    }
    begins.into_values().collect()
}

fn writes(unit: UnitId, lba: u64, sectors: u32) -> Request {
    Request { write: true, ..read(unit, lba, sectors) }
}

#[test]
fn a_rate_lets_pass_a_slice_at_a_time() {
    // One request is what may pass in the first 100 ms. The second is allowed in 200 ms: the slice, and what
    // it lacks there takes another 100. From then on, one in 100 ms.
    let mut drive = linux(fixed(), &flat(), true);
    drive.cap(0, A, Some(RATE), None);
    submit_each(&mut drive, 0, [read(A, 0, 8), read(A, 8, 8), read(A, 16, 8), read(A, 24, 8)]);
    assert_eq!(begins(&mut drive), [0, 200, 300, 400]);
    // Two and a half in a slice: two at once. The third lacks half of one, 20 ms at this rate, and with it in
    // the second slice go the fourth and fifth.
    let mut drive = linux(ssd(), &flat(), true);
    drive.cap(0, A, Some(RATE / 2 * 5), None);
    submit_each(&mut drive, 0, (0..6).map(|n| read(A, 8 * n, 8)));
    assert_eq!(begins(&mut drive), [0, 0, 120, 120, 120, 240]);
    // Four slices' worth in one request.
    let mut drive = linux(fixed(), &flat(), true);
    drive.cap(0, A, Some(RATE), None);
    submit_each(&mut drive, 0, [read(A, 0, 32)]);
    assert_eq!(begins(&mut drive), [400]);
}

#[test]
fn a_rate_is_for_one_unit_one_way() {
    let mut drive = linux(fixed(), &flat(), true);
    drive.cap(0, A, Some(RATE), Some(RATE * 2));
    let requests =
        [read(A, 0, 8), read(A, 8, 8), writes(A, 0, 16), writes(A, 16, 8), read(B, 0, 8), read(B, 8, 8)];
    submit_each(&mut drive, 0, requests);
    // In the device are A's first read, then its write beside B's reads. What is held is in no queue.
    assert_eq!(drive.facts(0, &Stalls::new(4)).device.unwrap().under_way, 1);
    let waits = drive.waiting() - drive.queue.len();
    assert_eq!(waits, 2);
    // A 4096 at 0, B 4.8 (its tag is 0), B again (A's tag is that of its read), A's write of 5.6 ms.
    // The second write lacks 4096 bytes at twice the rate: 150 ms.
    assert_eq!(begins(&mut drive), [0, 200, 9, 150, 4, 15]);
}

#[test]
fn a_rate_holds_sub_units_which_take_turns() {
    let mut drive = linux(fixed(), &nested(), true);
    drive.cap(0, A, Some(RATE), None);
    submit_each(
        &mut drive,
        0,
        [read(C, 0, 8), read(C, 8, 8), read(C, 16, 8), read(D, 24, 8), read(D, 32, 8)],
    );
    // C's first; then one of each in turn.
    assert_eq!(begins(&mut drive), [0, 200, 400, 300, 500]);
    // C has half of A's rate, which D need not wait for.
    let mut drive = linux(fixed(), &nested(), true);
    drive.cap(0, A, Some(RATE), None);
    drive.cap(0, C, Some(RATE / 2), None);
    submit_each(
        &mut drive,
        0,
        [read(C, 0, 4), read(C, 8, 8), read(C, 16, 8), read(D, 24, 4), read(D, 32, 8)],
    );
    // C: 2048 bytes at once, 6144 by 300 ms, and 10240 by 500. A: 2048 each of C and D at once, 4096 more by
    // 200 ms. D's first is behind C's in the device.
    assert_eq!(begins(&mut drive), [0, 300, 500, 4, 200]);
}

#[test]
fn another_rate_counts_from_now() {
    let mut drive = linux(fixed(), &flat(), true);
    drive.cap(0, A, Some(RATE), None);
    submit_each(&mut drive, 0, [read(A, 0, 8), read(A, 8, 8), read(A, 16, 8)]);
    assert_eq!(drive.complete(ONE_NS).map(|finished| finished.request.id), Some(0));
    drive.start(ONE_NS);
    // After 50 ms, 2048 bytes more than the rate have passed. At twice the rate, the slice has room for 8192,
    // and these count: one request, and the other lacks 2048 bytes, 25 ms.
    drive.cap(50 * MS, A, Some(RATE * 2), None);
    drive.start(50 * MS);
    assert_eq!(begins(&mut drive), [50, 175]);
    // What is free goes at once.
    submit_each(&mut drive, 1_000 * MS, (0..8).map(|n| read(A, 8 * n, 8)));
    drive.cap(1_001 * MS, A, None, None);
    drive.start(1_001 * MS);
    assert_eq!(drive.gates.len(), 0);
    assert_eq!(begins(&mut drive)[7], 1_000 + 7 * 48 / 10);
}

#[test]
fn the_common_parts_have_no_rate() {
    let mut drive = linux(fixed(), &flat(), true);
    for unit in [UnitId::KERNEL, UnitId::SHARED] {
        drive.cap(0, unit, Some(1), Some(1));
    }
    submit_each(&mut drive, 0, [read(UnitId::KERNEL, 0, 8), read(UnitId::SHARED, 0, 8)]);
    assert_eq!(begins(&mut drive), [0, 4]);
}

#[test]
fn a_rate_is_reached() {
    // 1 MB/s for 10 s, in requests of 64 KiB: the last slice's worth may be on its way.
    let mut drive = linux(ssd(), &flat(), true);
    drive.cap(0, A, Some(1_000_000), None);
    let stream = Stream { outstanding: 8, sectors: 128, ..Stream::copy(A, 0, 1_000) };
    let outcome = run(drive, vec![stream], 10_000 * MS);
    let bytes = outcome.sectors(0) * 512;
    assert!((9_800_000..=10_100_000).contains(&bytes), "{bytes}");
}

/// Units in the order in which their requests complete, if each has `each` waiting from the beginning. The
/// first round is there when the first is chosen.
fn served(drive: &mut Drive, each: u64, units: &[UnitId]) -> Vec<UnitId> {
    for n in 0..each {
        submit_each(drive, 0, units.iter().map(|unit| read(*unit, 1_000 * u64::from(unit.0) + 8 * n, 8)));
    }
    let mut units = Vec::new();
    while let Some(now) = drive.next() {
        units.extend(drive.complete(now).map(|finished| finished.request.unit));
        drive.start(now);
    }
    units
}

fn count(of: &[UnitId], unit: UnitId) -> usize {
    of.iter().filter(|other| **other == unit).count()
}

#[test]
fn weights_one_to_three() {
    let mut drive = linux(fixed(), &flat(), true);
    drive.weigh(0, B, 300);
    // A's tag goes up by four requests at a time, B's by four thirds.
    let order = served(&mut drive, 20, &[A, B]);
    assert_eq!(order[..12], [A, B, B, B, A, B, B, B, A, B, B, B]);
    // A disk that ignores weights serves them in order of arrival.
    let mut drive = linux(fixed(), &flat(), false);
    drive.weigh(0, B, 300);
    assert_eq!(served(&mut drive, 20, &[A, B])[..6], [A, B, A, B, A, B]);
}

#[test]
fn weights_have_bounds() {
    let mut drive = linux(fixed(), &flat(), true);
    drive.weigh(0, A, 0);
    drive.weigh(0, B, 4_000);
    let order = served(&mut drive, 1_100, &[A, B]);
    // One, and a thousand.
    assert_eq!(count(&order[..1_001], B), 1_000);
}

#[test]
fn what_a_sleeping_unit_leaves_goes_to_the_other() {
    let mut drive = linux(fixed(), &flat(), true);
    drive.weigh(0, A, 1);
    drive.weigh(0, B, 1_000);
    submit_each(&mut drive, 0, (0..10).map(|n| read(A, 8 * n, 8)));
    assert_eq!(begins(&mut drive)[9], 9 * ONE_NS / MS);
    // It has no debt for that: when B comes, A's next goes after a thousand of B's, and not after more. B has
    // half a period's credit besides, 250 ms of which 1000 of 1001 are 52 requests.
    let now = 1_000 * MS;
    submit_each(&mut drive, now, (0..1_200).map(|n| read(B, 8 * n, 8)).chain([read(A, 80, 8)]));
    let at = (begins(&mut drive)[1_200] - 1_000) * MS / ONE_NS;
    assert!((1..=1_053).contains(&at), "{at}");
}

#[test]
fn weights_count_among_siblings() {
    // A and B have half each. C has a quarter of A's half, D three.
    let mut drive = linux(fixed(), &nested(), true);
    drive.weigh(0, D, 300);
    let order = served(&mut drive, 100, &[B, C, D]);
    let had = |order: &[UnitId]| [B, C, D].map(|unit| count(order, unit));
    assert_eq!(had(&order[..80]), [40, 10, 30]);
    // With processes of A's own, they count as one more of 100: a fifth of A's half each for them and C.
    let mut drive = linux(fixed(), &nested(), true);
    drive.weigh(0, D, 300);
    let order = served(&mut drive, 100, &[A, B, C, D]);
    assert_eq!((had(&order[..80]), count(&order[..80], A)), ([40, 8, 24], 8));
}

#[test]
fn a_unit_counts_for_a_period_after_its_last_request() {
    // D has one request of three quarters of A's half, and rests from 4.8 ms on. Twice 64 requests of 4.8 ms
    // are more than the 500 ms that a period is at most.
    let streams = || {
        let many = |unit| Stream { sectors: 8, ..Stream::copy(unit, 1_000 * u64::from(unit.0), 100_000) };
        vec![Stream { outstanding: 1, requests: 1, ..many(D) }, many(B), many(C)]
    };
    let had = |until| {
        let mut drive = linux(fixed(), &nested(), true);
        drive.weigh(0, D, 300);
        let outcome = run(drive, streams(), until);
        [1, 2].map(|stream| outcome.of(stream).count())
    };
    // 100 requests: B has half, C an eighth.
    let [b, c] = had(485 * MS);
    assert!((79..=81).contains(&b) && (19..=21).contains(&c), "{b} {c}");
    // Then as much as B.
    let (before, after) = (had(600 * MS), had(600 * MS + 200 * ONE_NS));
    let [b, c] = [0, 1].map(|at| after[at] - before[at]);
    assert!(b.abs_diff(c) <= 2, "{b} {c}");
}

/// A unit that thinks in between is served at once while it stays within its share.
#[test]
fn a_light_unit_is_next() {
    let streams = vec![Stream::small(A, 0, 40 * MS, 100), Stream::copy(B, 900_000, 100_000)];
    let outcome = run(linux(fixed(), &flat(), true), streams, 20_000 * MS);
    assert_eq!(outcome.of(0).count(), 100);
    // One request of 78 sectors in service.
    assert!(outcome.waited_ns_max(0) <= 4 * MS + 78 * MS / 10, "{}", outcome.waited_ns_max(0));
    // On a disk that ignores weights, it waits for all of the copy's requests in the device.
    let streams = vec![
        Stream::small(A, 0, 40 * MS, 100),
        Stream { outstanding: 20, ..Stream::copy(B, 900_000, 100_000) },
    ];
    let outcome = run(linux(fixed(), &flat(), false), streams, 20_000 * MS);
    assert!(outcome.waited_ns_max(0) >= 19 * (4 * MS + 78 * MS / 10), "{}", outcome.waited_ns_max(0));
}

/// Who was away has a claim to half a period, 250 ms of which half is its own, and to no more.
#[test]
fn a_late_comer_does_not_shut_others_out_of_linux() {
    let late = Stream { start_ns: 10_000 * MS, ..Stream::copy(B, 900_000, 100_000) };
    let streams = vec![Stream::copy(A, 100_000, 100_000), late];
    let outcome = run(linux(fixed(), &flat(), true), streams, 15_000 * MS);
    // Beside that, each of three requests of 11.8 ms waits for two of its own, and for three of the other's.
    let waited = outcome.waited_ns_max(0);
    assert!((125 * MS..=(125 + 6 * 12) * MS).contains(&waited), "{} ms", waited / MS);
}

#[test]
fn the_kernel_goes_first_and_shared_as_a_unit() {
    let mut drive = linux(fixed(), &flat(), true);
    let units = [UnitId::SHARED, A, UnitId::KERNEL];
    let order = served(&mut drive, 3, &units);
    let (kernel, shared) = (UnitId::KERNEL, UnitId::SHARED);
    assert_eq!(order, [kernel, kernel, kernel, shared, A, shared, A, shared, A]);
}

/// All units are in one control group, beside those of processes in no unit: however many units are active,
/// and whatever their weights, half of the disk is theirs.
#[test]
fn what_is_shared_has_as_much_as_all_units_together() {
    let shared = UnitId::SHARED;
    let mut drive = linux(fixed(), &flat(), true);
    drive.weigh(0, B, 300);
    let order = served(&mut drive, 60, &[shared, A, B]);
    assert_eq!([shared, A, B].map(|unit| count(&order[..80], unit)), [40, 10, 30]);
    // Alone, either has all of it.
    let mut drive = linux(fixed(), &flat(), true);
    drive.weigh(0, A, 1_000);
    assert_eq!(served(&mut drive, 5, &[shared]), [shared; 5]);
}

#[test]
fn delayed_writes_are_their_owners_at_once() {
    let delayed =
        |owners: &[(UnitId, u32)], lba| Request { owners: owners.to_vec(), ..writes(UnitId::SHARED, lba, 8) };
    let mut drive = linux(fixed(), &flat(), true);
    drive.cap(0, B, None, Some(RATE));
    let mixed = [(A, 3), (B, 5)];
    let requests = [
        delayed(&mixed, 0),
        delayed(&mixed, 8),
        delayed(&[(UnitId::SHARED, 8)], 16),
        read(A, 0, 8),
        delayed(&[], 24),
    ];
    submit_each(&mut drive, 0, requests);
    let facts = drive.facts(0, &Stalls::new(4));
    // One of B's is held at its rate.
    let one = DiskUse { written_bytes: 4_096, requests: 1, stalled_ns: Some(0), ..DiskUse::default() };
    assert_eq!(facts.unit(B), one);
    assert_eq!(facts.unit(UnitId::SHARED), DiskUse { written_bytes: 8_192, requests: 2, ..one });
    // The first of each unit has no tag: shared, A, B.
    assert_eq!(begins(&mut drive), [9, 200, 0, 4, 14]);
    // Sectors are charged to all that own them, as ever.
    let charged = |unit| drive.figures().unit(unit).charged_sectors;
    assert_eq!((charged(A), charged(B), charged(UnitId::SHARED)), (6 + 8, 10, 16));
}

#[test]
fn a_write_to_swap_is_held_by_nothing_and_paid_for() {
    let mut drive = linux(fixed(), &nested(), true);
    drive.cap(0, A, None, Some(RATE));
    drive.submit(0, Request { id: 3, ..read(B, 0, 8) });
    let request = writes(C, 0, 16);
    drive.submit_urgent(0, Request { id: 0, ..request.clone() });
    drive.submit(0, Request { id: 1, ..writes(D, 24, 8) });
    drive.submit(0, Request { id: 2, ..read(C, 32, 8) });
    drive.start(0);
    let facts = drive.facts(0, &Stalls::new(6));
    assert_eq!((facts.unit(C).written_bytes, facts.unit(C).requests, facts.unit(D).requests), (8_192, 2, 0));
    // The kernel's first, 5.6 ms; then B, since C has paid. At A's rate, 12288 bytes are 300 ms.
    assert_eq!(begins(&mut drive), [0, 300, 10, 5]);
    // Elsewhere it is a write as any.
    let mut drive = Drive::new(&disk(fixed(), 0), DiskOrder::Isolation, &[0, 0, 1, 1]);
    drive.submit(0, Request { id: 1, ..read(A, 0, 8) });
    drive.submit_urgent(0, Request { id: 0, ..request });
    drive.start(0);
    assert_eq!(begins(&mut drive), [4, 0]);
}

#[test]
fn facts_are_those_of_a_kernel() {
    let mut drive = linux(fixed(), &flat(), false);
    let mut stalls = Stalls::new(6);
    stalls.wait_begins(MS, A);
    submit_each(&mut drive, 0, [read(A, 0, 8), read(A, 8, 8), writes(B, 16, 8)]);
    // 2.2 ms into the second, which waited in the device for the first.
    assert!(drive.complete(ONE_NS).is_some());
    drive.start(ONE_NS);
    let facts = drive.facts(7 * MS, &stalls);
    assert_eq!((facts.name.as_str(), facts.at, facts.weighs, facts.bytes_per_s), ("d", 7 * MS, false, None));
    let device = DeviceUse { requests: 1, bytes: 4_096, taken_ns: ONE_NS, busy_ns: 7 * MS, under_way: 2 };
    assert_eq!(facts.device, Some(device));
    let a = DiskUse { read_bytes: 8_192, written_bytes: 0, requests: 2, stalled_ns: Some(6 * MS) };
    let b = DiskUse { read_bytes: 0, written_bytes: 4_096, requests: 1, stalled_ns: Some(0) };
    assert_eq!((facts.units.len(), facts.unit(A), facts.unit(B)), (6, a, b));
    begins(&mut drive);
    // 4.8, 9.6 and 14.4 ms; then it is idle.
    let device = drive.facts(50 * MS, &stalls).device.unwrap();
    let ended =
        DeviceUse { requests: 3, bytes: 12_288, taken_ns: 6 * ONE_NS, busy_ns: 3 * ONE_NS, under_way: 0 };
    assert_eq!(device, ended);
    // A disk that honours weights has no more requests than it serves, and a known capacity: 2048 sectors in
    // 208.8 ms.
    let mut drive = linux(fixed(), &flat(), true);
    submit_each(&mut drive, 0, [read(A, 0, 8), read(A, 8, 8)]);
    let facts = drive.facts(0, &stalls);
    assert_eq!((facts.weighs, facts.bytes_per_s), (true, Some(5_021_915)));
    assert_eq!(facts.device.unwrap().under_way, 1);
}

#[test]
fn what_disks_carry() {
    let carries = |model| Mechanics::new(&model).costs().bytes_per_s();
    // 1368 sectors in 1530 sector times, and 1.1 ms of the controller for each write of 2048 sectors, 238.5
    // ms.
    let rate = carries(hp());
    assert!((4_370_000..4_380_000).contains(&rate), "{rate}");
    // Four channels; a write takes 0.2 ms and 2.048 ms, and a fourth of that is the disk's.
    assert_eq!(carries(ssd()), 1_048_576 * 1_000_000_000 / 562_000);
}

#[test]
fn costs_are_those_of_the_mechanics() {
    // Random reads of 16 sectors, and reads in sequence, on the disk with an arm: what is expected, and what
    // they take.
    for (random, within) in [(true, 15), (false, 5)] {
        let stream =
            Stream { random, span: 2_600_000, outstanding: 1, sectors: 16, ..Stream::copy(A, 0, 1_000) };
        let outcome = run(linux(hp(), &flat(), true), vec![stream], u64::MAX);
        let costs = Mechanics::new(&hp()).costs();
        let (took, cost) = (outcome.drive.figures().unit(A).served_ns / 1_000, costs.of(16, false, !random));
        assert!(took.abs_diff(cost) * 100 < cost * within, "{took} ns, {cost} expected");
    }
}

#[test]
fn a_device_has_its_own_queue_unless_weights_are_heeded() {
    for (weighs, model, depth) in [(true, hp(), 1), (false, hp(), 32), (true, ssd(), 4), (false, ssd(), 32)] {
        let mut drive = linux(model, &flat(), weighs);
        submit_each(&mut drive, 0, (0..40).map(|n| read(A, 100 * n, 8)));
        assert_eq!(drive.facts(0, &Stalls::new(4)).device.unwrap().under_way, depth);
    }
    let mut drive = linux(ssd(), &flat(), false).with_depth(1);
    submit_each(&mut drive, 0, (0..40).map(|n| read(A, 100 * n, 8)));
    assert_eq!(drive.facts(0, &Stalls::new(4)).device.unwrap().under_way, 4);
}

/// In the device, an arm sweeps over all units' requests.
#[test]
fn an_arm_sweeps_in_the_device() {
    let mut drive = linux(hp(), &flat(), false);
    submit_all(
        &mut drive,
        vec![read(A, 900, 8), read(A, 100, 8), read(B, 1_500, 8), read(A, 2_000, 8), read(B, 50, 8)],
    );
    assert_eq!(drain(&mut drive), [0, 2, 3, 4, 1]);
}

/// Trees: all at the top, two within A, and C within B within A.
fn trees() -> [Vec<Option<UnitId>>; 3] {
    [flat(), nested(), vec![None, None, None, Some(A), Some(B), None]]
}

/// What a unit's own requests get where all of `busy` have some, by definition.
fn part(parents: &[Option<UnitId>], weights: &[u32], busy: &[UnitId], unit: UnitId) -> f64 {
    let within = |unit: UnitId, above: UnitId| {
        std::iter::successors(Some(unit), |unit| parents[unit.index()]).any(|unit| unit == above)
    };
    let all = |parent: Option<UnitId>| {
        let own = if parent.is_some_and(|parent| busy.contains(&parent)) { 100.0 } else { 0.0 };
        let children = (1..6).map(UnitId).filter(|child| parents[child.index()] == parent);
        let active = children.filter(|child| busy.iter().any(|unit| within(*unit, *child)));
        own + active.map(|child| f64::from(weights[child.index()])).sum::<f64>()
    };
    let path = std::iter::successors(Some(unit), |unit| parents[unit.index()]);
    let above = path.map(|unit| f64::from(weights[unit.index()]) / all(parents[unit.index()]));
    100.0 / all(Some(unit)) * above.product::<f64>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_is_ordered_all_is_done_once(
        streams in streams(), model in 0usize..3, tree in 0usize..3, weighs in any::<bool>(),
        orders in proptest::collection::vec(
            (0u64..1_000, 2u32..6, 0u32..1_200, proptest::option::of(20_000u64..2_000_000)), 0..12),
    ) {
        let start = || linux([hp(), fixed(), ssd()][model].clone(), &trees()[tree], weighs);
        let outcome = || {
            let mut left = orders.clone();
            left.sort_unstable();
            left.reverse();
            run_watched(start(), streams.clone(), u64::MAX, |now, drive| {
                while left.last().is_some_and(|order| order.0 * MS <= now) {
                    let (_, unit, weight, rate) = left.pop().unwrap();
                    drive.cap(now, UnitId(unit), rate, rate.map(|rate| rate / 2));
                    drive.weigh(now, UnitId(unit), weight);
                    drive.start(now);
                }
            })
        };
        let done = outcome();
        for (at, stream) in streams.iter().enumerate() {
            prop_assert_eq!(done.of(at).count(), 40);
            prop_assert_eq!(done.sectors(at), 40 * u64::from(stream.sectors));
        }
        let figures = done.drive.figures();
        prop_assert_eq!(figures.total().waited_ns, figures.queued_ns);
        prop_assert!(done.drive.next().is_none());
        let facts = done.drive.facts(u64::MAX, &Stalls::new(8));
        let device = facts.device.unwrap();
        prop_assert_eq!(device.bytes, facts.units.iter().map(|used| used.bytes()).sum::<u64>());
        prop_assert_eq!(device.requests, facts.units.iter().map(|used| used.requests).sum::<u64>());
        prop_assert_eq!((device.under_way, device.busy_ns), (0, figures.busy_ns));
        prop_assert!(device.taken_ns >= figures.in_service_ns);
        prop_assert_eq!(schedule(&outcome()), schedule(&done));
    }

    /// Units that always have waiting requests get disk time by parts: none is ever more than a request ahead
    /// of another.
    #[test]
    fn weights_divide_the_disks_time(
        tree in 0usize..3, weights in proptest::collection::vec(1u32..=1_000, 6),
        busy in proptest::sample::subsequence(vec![A, B, C, D], 2..=4),
        sectors in proptest::collection::vec(1u32..129, 6), quick in any::<bool>(),
    ) {
        let mut drive = linux(if quick { ssd() } else { fixed() }, &trees()[tree], true);
        for unit in (2..6).map(UnitId) {
            drive.weigh(0, unit, weights[unit.index()]);
        }
        let streams = busy.iter().map(|unit| {
            let base = Stream::copy(*unit, 100_000 * u64::from(unit.0), u32::MAX);
            Stream { sectors: sectors[unit.index()], outstanding: 10, ..base }
        });
        // All come while the kernel has the disk, so that none is charged less for having been alone.
        let kernel = Stream { outstanding: 4, ..Stream::copy(UnitId::KERNEL, 0, 4) };
        let streams = std::iter::once(kernel).chain(streams).collect();
        let outcome = run(drive, streams, if quick { 100 * MS } else { 5_000 * MS });
        let had = |unit: UnitId| {
            let serving = outcome.drive.in_service.values().filter(|entry| entry.scheduled_unit == unit);
            let serving: Time = serving.map(|entry| entry.service.total_ns()).sum();
            f64::from(u32::try_from((outcome.drive.figures().unit(unit).served_ns + serving) / 1_000).unwrap())
        };
        let model = if quick { (100.0, 1.0) } else { (4_000.0, 100.0) };
        let by_part = |unit: UnitId, us: f64| us / part(&trees()[tree], &weights, &busy, unit);
        for one in &busy {
            let request = by_part(*one, model.0 + model.1 * f64::from(sectors[one.index()]));
            for other in &busy {
                let ahead = by_part(*one, had(*one)) - by_part(*other, had(*other));
                // What each had is in whole microseconds.
                let rounding = by_part(*one, 1.0) + by_part(*other, 1.0);
                prop_assert!(
                    ahead <= request * 1.001 + rounding,
                    "{one:?} {ahead} us ahead of {other:?}, a request is {request}"
                );
            }
        }
    }

    /// With sub-units, within any time since its first request, a gate passes at most its rate times that
    /// time, plus one slice's allowance.
    #[test]
    fn rates_are_not_exceeded(
        streams in streams(), model in 1usize..3, tree in 0usize..3, weighs in any::<bool>(),
        rates in proptest::collection::vec(
            (proptest::option::of(10_000u64..1_000_000), proptest::option::of(10_000u64..1_000_000)), 6),
    ) {
        let parents = trees()[tree].clone();
        let mut drive = linux([hp(), fixed(), ssd()][model].clone(), &parents, weighs);
        for unit in (2..6).map(UnitId) {
            let (read, write) = rates[unit.index()];
            drive.cap(0, unit, read, write);
        }
        let within = |unit: UnitId, above: UnitId| {
            std::iter::successors(Some(unit), |unit| parents[unit.index()]).any(|unit| unit == above)
        };
        run_watched(drive, streams, u64::MAX, |now, drive| {
            let facts = drive.facts(now, &Stalls::new(6));
            for unit in (2..6).map(UnitId) {
                let family: Vec<DiskUse> = (0..6).map(UnitId).filter(|id| within(*id, unit)).map(|id| facts.unit(id)).collect();
                let (read, write) = rates[unit.index()];
                let read = (read, family.iter().map(|used| used.read_bytes).sum::<u64>());
                let write = (write, family.iter().map(|used| used.written_bytes).sum::<u64>());
                for (rate, bytes) in [read, write] {
                    let allowed = rate.map_or(u64::MAX, |rate| rate * (now / MS + 1) / 1_000 + rate / 10);
                    assert!(bytes <= allowed, "{unit:?}: {bytes} of {allowed} at {} ms", now / MS);
                }
            }
        });
    }

    #[test]
    fn the_disk_does_not_idle_while_a_request_waits(
        streams in streams(), model in 0usize..3, tree in 0usize..3, weighs in any::<bool>(),
    ) {
        let drive = linux([hp(), fixed(), ssd()][model].clone(), &trees()[tree], weighs);
        let channels = drive.mechanics.channels();
        run_watched(drive, streams, u64::MAX, |_, drive| {
            assert!(drive.waiting() == 0 || drive.in_service.len() == channels);
        });
    }
}
