//! A device that serves one request after the other, each in a time by its size. It stands behind rates as the kernel
//! keeps them: what may go in a slice of 100 ms goes at its begin.

use alloc::collections::VecDeque;

use super::*;

const TICK: Time = MS / 2;
const SLICE: Time = 100 * MS;

/// A job with `depth` requests of `bytes` under way; each is asked for `thinks_ns` after the one before it ended, and after every
/// `burst` of them it does something else for `pauses_ns`.
#[derive(Debug, Clone, Copy)]
struct Job {
    unit: u32,
    bytes: u64,
    depth: usize,
    thinks_ns: Time,
    burst: u64,
    pauses_ns: Time,
}

/// Where a request is: not yet asked for, at its rate's gate, or in the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Thought { until: Time },
    Gate,
    Device { since: Time },
}

/// A unit's gate, as the kernel keeps it: in a slice goes what its rate allows until the slice's end, so all at its begin; what
/// was allowed and not used is lost with the slice unless somebody waits.
#[derive(Debug, Clone, Copy, Default)]
struct Gate {
    rate: u64,
    begun: Time,
    ends: Time,
    let_in: i64,
    waits: bool,
}

impl Gate {
    fn allows(rate: u64, elapsed: Time) -> i64 {
        i64::try_from(rate.min(1 << 40) / 1_000 * (elapsed / MS)).unwrap()
    }

    /// Another rate: what was let in beyond the old one, or less, counts against the new one while somebody waits.
    fn set(&mut self, now: Time, rate: u64) {
        if self.rate != rate {
            let ahead = self.let_in - Gate::allows(self.rate, now - self.begun);
            let let_in = if self.waits { ahead } else { 0 };
            *self = Gate { rate, begun: now, ends: now + SLICE, let_in, waits: self.waits };
        }
    }

    fn lets_in(&mut self, now: Time, bytes: u64) -> bool {
        if now >= self.ends && !self.waits {
            (self.begun, self.let_in) = (now, 0);
        }
        self.ends = self.ends.max(now + SLICE);
        let bytes = i64::try_from(bytes).unwrap();
        let elapsed = (now - self.begun).max(1).next_multiple_of(SLICE);
        if self.let_in + bytes > Gate::allows(self.rate, elapsed) {
            self.waits = true;
            return false;
        }
        (self.waits, self.let_in) = (false, self.let_in + bytes);
        let whole = (now - self.begun) / SLICE * SLICE;
        if whole >= 2 * SLICE {
            self.begun += whole - SLICE;
            self.let_in = (self.let_in - Gate::allows(self.rate, whole - SLICE)).max(0);
        }
        true
    }
}

#[derive(Debug, Clone)]
pub(super) struct Fifo {
    bytes_per_s: u64,
    /// What it takes at once although it carries less: a token bucket in front of it, or a cache inside.
    burst_bytes: u64,
    jobs: Vec<Job>,
    places: Vec<(usize, Place)>,
    /// How many requests each job had done.
    done: Vec<u64>,
    queue: VecDeque<usize>,
    /// When all that is in the device is done.
    done_at: Time,
    gates: BTreeMap<UnitId, Gate>,
    now: Time,
    pub(super) used: BTreeMap<UnitId, DiskUse>,
    pub(super) device: DeviceUse,
}

impl Fifo {
    fn new(bytes_per_s: u64, burst_bytes: u64, jobs: &[Job]) -> Fifo {
        let places = jobs.iter().enumerate();
        let places = places.flat_map(|(n, job)| vec![(n, Place::Thought { until: 0 }); job.depth]).collect();
        Fifo {
            bytes_per_s,
            burst_bytes,
            jobs: jobs.to_vec(),
            places,
            done: vec![0; jobs.len()],
            queue: VecDeque::new(),
            done_at: 0,
            gates: BTreeMap::new(),
            now: 0,
            used: BTreeMap::new(),
            device: DeviceUse::default(),
        }
    }

    /// One step of the policy.
    pub(super) fn run(&mut self, caps: &BTreeMap<UnitId, (Option<u64>, Option<u64>)>) {
        self.gates.retain(|unit, _| caps.contains_key(unit));
        for (unit, (read, _)) in caps {
            self.gates.entry(*unit).or_default().set(self.now, read.unwrap_or(u64::MAX));
        }
        for _ in 0..STEP / TICK {
            self.now += TICK;
            self.device.busy_ns += if self.queue.is_empty() { 0 } else { TICK };
            self.serve();
            self.ask();
        }
    }

    /// Ends what is done by now.
    fn serve(&mut self) {
        let burst = per_burst(self.burst_bytes, self.bytes_per_s);
        while let Some(at) = self.queue.front().copied() {
            let (n, Place::Device { since }) = self.places[at] else { unreachable!("it is in the queue") };
            let job = self.jobs[n];
            let done = self.done_at.max(since) + job.bytes * 1_000_000_000 / self.bytes_per_s;
            // A bucket lets through what comes before it is full.
            if done.saturating_sub(burst) > self.now {
                return;
            }
            self.done_at = done;
            self.queue.pop_front();
            self.device.requests += 1;
            self.device.bytes += job.bytes;
            self.device.taken_ns += self.now - since;
            self.device.under_way -= 1;
            self.done[n] += 1;
            let pauses = job.burst > 0 && self.done[n].is_multiple_of(job.burst);
            let until = self.now + job.thinks_ns + if pauses { job.pauses_ns } else { 0 };
            self.places[at].1 = Place::Thought { until };
        }
    }

    /// Lets in what is wanted and may go.
    fn ask(&mut self) {
        let mut stalled = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for at in 0..self.places.len() {
            let (job, place) = self.places[at];
            let (unit, bytes) = (Bench::unit(self.jobs[job].unit), self.jobs[job].bytes);
            let used = self.used.entry(unit).or_default();
            used.stalled_ns.get_or_insert(0);
            let wants = match place {
                Place::Thought { until } => until <= self.now,
                Place::Gate => true,
                Place::Device { .. } => {
                    stalled.insert(unit);
                    false
                }
            };
            if !wants {
                continue;
            }
            stalled.insert(unit);
            let gate = self.gates.get_mut(&unit);
            if kept.contains(&unit) || gate.is_some_and(|gate| !gate.lets_in(self.now, bytes)) {
                kept.insert(unit);
                self.places[at].1 = Place::Gate;
                continue;
            }
            used.read_bytes += bytes;
            used.requests += 1;
            self.places[at].1 = Place::Device { since: self.now };
            self.device.under_way += 1;
            self.queue.push_back(at);
        }
        for unit in stalled {
            if let Some(used) = self.used.get_mut(&unit) {
                used.stalled_ns = used.stalled_ns.map(|ns| ns + TICK);
            }
        }
    }
}

fn per_burst(bytes: u64, bytes_per_s: u64) -> Time {
    bytes * 1_000_000_000 / bytes_per_s
}

/// What came out beside each other: how much longer the light job took for its requests than alone, and what the heavy one
/// had of what the light one leaves when it is alone; in per cent.
#[derive(Debug)]
struct Outcome {
    slowdown: u64,
    idle_used: u64,
    /// The lowest rate that the light unit was held to, in per cent of its part of the device; if it was held at all.
    light_held: Option<u64>,
}

const CARRIES: u64 = 8 * MB;

/// A light job that comes after 3 s, or that of another phase, beside a heavy one that was there before, for 15 s; equal shares of
/// a device of 8 MB/s. What the heavy one has there when the light one comes is its own to wait for, as long as it is alone: a
/// second of these requests is not counted.
fn beside(burst_bytes: u64, light: Job, heavy: Job, phase_ns: Time) -> Outcome {
    const SECONDS: u64 = 15;
    let run = |jobs: &[Job]| {
        let mut bench = Bench::tickets(&[100, 100]);
        let mut fifo = Fifo::new(CARRIES, burst_bytes, jobs);
        for (job, place) in &mut fifo.places {
            if jobs[*job].unit == light.unit {
                *place = Place::Thought { until: 3_000 * MS + phase_ns };
            }
        }
        bench.fifo = Some(fifo);
        (0..45).for_each(|_| bench.step());
        let before = bench.used.clone();
        (0..SECONDS * 10).for_each(|_| bench.step());
        let light_held = bench.steps.iter().filter_map(|step| match step.action {
            DiskOrder::Cap { unit, read, .. } if unit == Bench::unit(light.unit) => read,
            _ => None,
        });
        let light_held = light_held.min().map(|rate| rate * 100 / (CARRIES / 2));
        let moved = [light, heavy].map(|job| {
            let unit = Bench::unit(job.unit);
            let used = bench.used.get(&unit).copied().unwrap_or_default();
            used.since(before.get(&unit).copied().unwrap_or_default()).bytes()
        });
        (moved, light_held)
    };
    let ([alone, _], _) = run(&[light]);
    let ([got, had], light_held) = run(&[light, heavy]);
    let idle_used = had * 100 / (CARRIES * SECONDS).saturating_sub(alone).max(1);
    Outcome { slowdown: alone * 100 / got.max(1), idle_used, light_held }
}

/// What a device takes at once that has a cache, or that QEMU throttles.
const CACHE: u64 = 800_000;
const COPY: Job = Job { unit: 1, bytes: 64 << 10, depth: 32, thinks_ns: 0, burst: 0, pauses_ns: 0 };
const LARGE: Job = Job { bytes: 256 << 10, ..COPY };
/// A quarter of the device, alone: half of its part.
const COMPILE: Job = Job { unit: 0, bytes: 32 << 10, depth: 1, thinks_ns: 12 * MS, ..COPY };
const SERIAL: Job = Job { thinks_ns: 0, ..COMPILE };

/// With fixed rates that leave the light job what it takes, it is not delayed at all on such a device, neither here nor in the lab.
#[test]
fn a_light_job_is_not_delayed_by_a_queue_of_others() {
    let rests = Job { thinks_ns: 30 * MS, ..COMPILE };
    let pauses = Job { burst: 80, pauses_ns: 2_000 * MS, ..COMPILE };
    let rare = Job { thinks_ns: 300 * MS, ..COMPILE };
    for (light, heavy, slowdown_max, used_min) in [
        (COMPILE, COPY, 106, 90),
        (COMPILE, LARGE, 106, 80),
        (rests, COPY, 104, 85),
        (rests, LARGE, 106, 80),
        (pauses, COPY, 108, 70),
        (pauses, LARGE, 112, 65),
        (rare, COPY, 104, 80),
        (rare, LARGE, 106, 70),
        // It would take all of the device: half is its part, and twice as long.
        (SERIAL, COPY, 210, 0),
        (SERIAL, LARGE, 220, 0),
    ] {
        let outcome = beside(CACHE, light, heavy, 0);
        let kept = outcome.slowdown <= slowdown_max && outcome.idle_used >= used_min;
        assert!(kept, "{outcome:?} {light:?} {heavy:?}");
        assert!(
            outcome.light_held.is_none() || light.thinks_ns == 0,
            "within its part: {outcome:?} {light:?}"
        );
    }
}

/// All that may go in a slice goes at its begin: where nothing takes that at once, it is in the way of who comes next. So much
/// the kernel's rates cannot prevent, and others have less instead.
#[test]
fn without_a_cache_bursts_delay_a_little() {
    for (heavy, slowdown_max) in [(COPY, 140), (LARGE, 150)] {
        let outcome = beside(0, COMPILE, heavy, 0);
        assert!(outcome.slowdown <= slowdown_max && outcome.idle_used >= 30, "{outcome:?} {heavy:?}");
        assert_eq!(outcome.light_held, None, "{outcome:?}");
    }
}

/// Seed 004, section 5.4, from the first second on: who has half has two requests under way, the four have four each.
#[test]
fn four_to_one_in_a_device() {
    for burst_bytes in [0, CACHE] {
        let jobs: Vec<Job> =
            (0..5).map(|n| Job { unit: n, depth: if n == 0 { 2 } else { 4 }, ..COPY }).collect();
        let mut bench = Bench::tickets(&[1, 1_000, 1_000, 1_000, 1_000]);
        bench.contract.units[2].hard.disk = Some(Amount::Part(500_000));
        bench.carries = CARRIES;
        bench.fifo = Some(Fifo::new(CARRIES, burst_bytes, &jobs));
        bench.run(3);
        for _ in 0..4 {
            let got = bench.run(5);
            let (four, all) = (got[1..].iter().sum::<u64>() / 4, got.iter().sum::<u64>());
            assert!((3_800..=4_200).contains(&(got[0] * 1_000 / four)), "{got:?} {burst_bytes}");
            assert!(all >= if burst_bytes > 0 { 960 } else { 830 }, "{got:?} {burst_bytes}");
        }
    }
}

/// Who has no process any more has no tickets; what it wrote is on its way all the same, and its next job finds it as it was.
#[test]
fn who_has_just_left_is_not_held_to_nothing() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.fifo = Some(Fifo::new(CARRIES, CACHE, &[COMPILE, LARGE]));
    bench.run(10);
    bench.gone.insert(Bench::unit(0));
    for _ in 0..10 {
        bench.step();
        assert_eq!(bench.caps.get(&Bench::unit(0)), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A compiler's way: some small files one after the other, and pauses, whenever it comes and whatever its rhythm. It is within
    /// its part, so it is never held below it; not even when the heavy one was held to so little before that it seems ahead.
    #[test]
    fn who_is_within_its_part_is_not_held_below_it(
        phase_ms in 0u64..1_000,
        (thinks_ms, burst, pauses_ms) in (12u64..60, 10u64..80, 0u64..4_000),
        (cached, large, pauses) in (any::<bool>(), any::<bool>(), prop_oneof![Just(0), 500u64..3_000]),
    ) {
        let light = Job { thinks_ns: thinks_ms * MS, burst, pauses_ns: pauses_ms * MS, ..COMPILE };
        let heavy = if large { LARGE } else { COPY };
        let heavy = Job { burst: if pauses > 0 { 200 } else { 0 }, pauses_ns: pauses * MS, ..heavy };
        let outcome = beside(if cached { CACHE } else { 0 }, light, heavy, phase_ms * MS);
        prop_assert!(outcome.light_held.is_none_or(|percent| percent >= 87), "{outcome:?} {light:?} {heavy:?}");
    }
}
