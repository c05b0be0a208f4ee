//! A model of a disk in a closed loop with the policy. It divides its capacity by requests in flight, and
//! honours caps and weights.

mod fifo;
mod orders;

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec;

use commonhold_contract::{Amount, Contract, PerResource, Permission};
use commonhold_machine::Machine;
use proptest::prelude::*;

use super::*;
use crate::check::Books;
use crate::plan::{Orders, Plan};
use crate::snapshot::{DeviceUse, DiskMeans, DiskUse, Means, Snapshot, UnitFacts};

const MB: u64 = 1_000_000;
const STEP: Time = 100 * MS;

/// A unit's demand on the disk.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Requests in flight: its part of the disk without control.
    depth: u64,
    /// The most that it takes, in bytes per second.
    most: u64,
    /// Whether it writes.
    writes: bool,
    /// Whether it waits even while it gets all that it takes, since it sends one request at a time.
    waits: bool,
}

const IDLE: Load = Load { depth: 0, most: 0, writes: false, waits: false };

fn greedy(depth: u64) -> Load {
    Load { depth, most: u64::MAX, writes: false, waits: false }
}

struct Bench {
    contract: Contract,
    machine: Machine,
    /// The capacity, in bytes per second.
    carries: u64,
    /// Whether the disk honours weights, and whether it only reports that it does.
    weighs: bool,
    claims_to_weigh: bool,
    /// Whether caps are enforced by stopping units, and the units that are stopped.
    limits_only: bool,
    stopped: BTreeSet<UnitId>,
    /// The disk's name; `None` if it is gone.
    disk: Option<&'static str>,
    /// Whether the disk's scheduler flattens weights to their square roots.
    flattens: bool,
    /// Whether stalls are reported.
    pressure: bool,
    /// Its measured bandwidth.
    known: Option<u64>,
    loads: BTreeMap<UnitId, Load>,
    used: BTreeMap<UnitId, DiskUse>,
    device: DeviceUse,
    /// A device that serves request after request; the loads are then ignored.
    fifo: Option<fifo::Fifo>,
    /// Units that have no processes left, whatever is still in flight for them.
    gone: BTreeSet<UnitId>,
    caps: BTreeMap<UnitId, (Option<u64>, Option<u64>)>,
    weights: BTreeMap<UnitId, u32>,
    state: DiskState,
    rights: Arc<Rights>,
    books: Books,
    now: Time,
    /// When the next sample is due.
    next: Time,
    /// Whether the next sample repeats the facts of the last one.
    stale: bool,
    steps: Vec<Step<DiskOrder>>,
}

impl Bench {
    fn new(contract: Contract) -> Bench {
        Bench {
            contract,
            machine: Machine::synthetic("cpus:4 memory:1GiB disks:1").unwrap(),
            carries: 100 * MB,
            weighs: false,
            claims_to_weigh: false,
            limits_only: false,
            stopped: BTreeSet::new(),
            disk: Some("sda"),
            flattens: false,
            pressure: true,
            known: None,
            loads: BTreeMap::new(),
            used: BTreeMap::new(),
            device: DeviceUse::default(),
            fifo: None,
            gone: BTreeSet::new(),
            caps: BTreeMap::new(),
            weights: BTreeMap::new(),
            state: DiskState::default(),
            rights: Arc::default(),
            books: Books::default(),
            now: 1_000 * MS,
            next: 0,
            stale: false,
            steps: Vec::new(),
        }
    }

    /// A contract of top-level units with these tickets.
    fn tickets(tickets: &[u64]) -> Bench {
        let mut contract = Contract::default();
        for (n, tickets) in tickets.iter().enumerate() {
            let unit = contract.add(None, &format!("u{n}"));
            contract.units[unit.index()].tickets = PerResource::all(*tickets);
        }
        Bench::new(contract)
    }

    fn unit(n: u32) -> UnitId {
        UnitId(n + 2)
    }

    fn load(&mut self, n: u32, load: Load) {
        self.loads.insert(Bench::unit(n), load);
    }

    /// What each unit gets in one step, in bytes per second: by depth or weight, within its cap and its most.
    fn serve(&self) -> BTreeMap<UnitId, u64> {
        let units: Vec<UnitId> = self.loads.keys().copied().collect();
        let depth = |unit: &UnitId| if self.stopped.contains(unit) { 0 } else { self.loads[unit].depth };
        let weight = |unit: &UnitId| {
            let weight = u64::from(self.weights.get(unit).copied().unwrap_or(100));
            match (depth(unit), self.weighs) {
                (0, _) => 0,
                (depth, false) => depth,
                (_, true) if self.flattens => (weight * 10_000).isqrt(),
                (_, true) => weight,
            }
        };
        let room = |unit: &UnitId| {
            let (read, write) = self.caps.get(unit).copied().unwrap_or((None, None));
            let cap = if self.loads[unit].writes { write } else { read };
            let cap = cap.filter(|_| !self.limits_only);
            self.loads[unit].most.min(cap.unwrap_or(u64::MAX))
        };
        let weights: Vec<u64> = units.iter().map(weight).collect();
        let rooms: Vec<u64> = units.iter().map(room).collect();
        let (rates, _) = crate::share::split_capped(self.carries, &weights, &rooms);
        units.into_iter().zip(rates).collect()
    }

    /// What a FIFO device does in one step. Units that get less than their cap and their most have all their
    /// requests in the device, so a request of 64 KiB takes as long as these units' requests take.
    fn pour(&mut self) {
        const REQUEST: u64 = 64 << 10;
        let served = self.serve();
        let per = |bytes: u64, rate: u64| bytes * 1_000_000 / rate.max(1) * 1_000;
        let mut takes_ns = per(REQUEST, self.carries);
        for (unit, rate) in &served {
            let load = self.loads[unit];
            let (read, write) = self.caps.get(unit).copied().unwrap_or((None, None));
            let cap = if load.writes { write } else { read }.unwrap_or(u64::MAX);
            if load.depth > 0 && *rate < load.most.min(cap) {
                takes_ns = takes_ns.max(per(REQUEST * load.depth, *rate));
            }
        }
        let requests = served.values().map(|rate| rate / 10).sum::<u64>() / REQUEST;
        self.device.requests += requests;
        self.device.bytes += served.values().map(|rate| rate / 10).sum::<u64>();
        self.device.taken_ns += requests * takes_ns;
        self.device.busy_ns += STEP * served.values().sum::<u64>() / self.carries;
        self.device.under_way = requests * takes_ns / STEP;
        for (unit, rate) in served {
            let load = self.loads[&unit];
            let bytes = rate / 10;
            let used = self.used.entry(unit).or_default();
            if load.writes {
                used.written_bytes += bytes;
            } else {
                used.read_bytes += bytes;
            }
            // A unit that gets less than it would take waits all the time.
            let stalled = if load.depth > 0 && (load.waits || rate < load.most) { STEP } else { 0 };
            used.stalled_ns = self.pressure.then(|| used.stalled_ns.unwrap_or(0) + stalled);
        }
    }

    fn step(&mut self) {
        self.now += if self.stale { MS } else { STEP };
        let at = if self.stale { self.now / STEP * STEP } else { self.now };
        if self.stale {
            // No new facts.
        } else if let Some(fifo) = &mut self.fifo {
            fifo.run(&self.caps);
            (self.used, self.device) = (fifo.used.clone(), fifo.device);
        } else {
            self.pour();
        }
        let n = self.contract.units.len();
        let has_load = |id: UnitId| self.loads.contains_key(&id) || self.fifo.is_some();
        let processes = |id: UnitId| u32::from(has_load(id) && !self.gone.contains(&id));
        let facts = |id: UnitId| UnitFacts { at: self.now, processes: processes(id), ..UnitFacts::default() };
        let disk = |name: &str| DiskFacts {
            name: name.to_string(),
            at,
            weighs: self.weighs || self.claims_to_weigh,
            bytes_per_s: self.known,
            device: Some(self.device),
            units: (0..n)
                .map(|i| self.used.get(&UnitId(u32::try_from(i).unwrap())).copied().unwrap_or_default())
                .collect(),
        };
        let snapshot = Snapshot {
            at: self.now,
            units: self.contract.ids().map(facts).collect(),
            disks: self.disk.map(disk).into_iter().collect(),
            ..Snapshot::default()
        };
        let means = Means {
            cpu_sets: true,
            weights: true,
            caps: true,
            gates: true,
            switches: false,
            disk: DiskMeans { caps: true, weights: true, shares: false, limits_only: self.limits_only },
            ..Means::NONE
        };
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means,
            snapshot: &snapshot,
            changes: &[],
        };
        Arc::make_mut(&mut self.rights).follow(&self.contract);
        let mut plan = Plan { at: self.now, ..Plan::default() };
        let (disk, next) = step(&mut self.state, self.now, input, &mut self.rights, &mut plan.orders.disk);
        plan.decisions.disk = disk;
        plan.decisions.cpu.entitled = vec![0, 4 * MILLIONTH];
        self.books = self.books.replay(&self.contract, &self.machine, &plan).unwrap();
        self.next = next.unwrap_or(self.now + 250 * MS);
        for step in plan.orders.disk {
            match step.action {
                DiskOrder::Cap { unit, read: None, write: None, .. } => drop(self.caps.remove(&unit)),
                DiskOrder::Cap { unit, read, write, .. } => drop(self.caps.insert(unit, (read, write))),
                DiskOrder::Weigh { unit, weight, .. } => drop(self.weights.insert(unit, weight)),
                DiskOrder::Stop { unit, stopped: true, .. } => drop(self.stopped.insert(unit)),
                DiskOrder::Stop { unit, stopped: false, .. } => drop(self.stopped.remove(&unit)),
                DiskOrder::Share { .. } => panic!("{step:?}"),
            }
            self.steps.push(step);
        }
    }

    /// Runs on, and returns what each unit got of the capacity, in thousandths.
    fn run(&mut self, seconds: u64) -> Vec<u64> {
        let before = self.used.clone();
        for _ in 0..seconds * 10 {
            self.step();
        }
        let transferred: Vec<u64> = self
            .contract
            .held()
            .map(|id| {
                let used = |map: &BTreeMap<UnitId, DiskUse>| map.get(&id).copied().unwrap_or_default();
                used(&self.used).since(used(&before)).bytes()
            })
            .collect();
        let all: u64 = self.carries * seconds;
        transferred.into_iter().map(|bytes| bytes * 1_000 / all).collect()
    }
}

#[test]
fn more_requests_do_not_get_more_than_the_part() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(0, greedy(1));
    bench.load(1, greedy(31));
    bench.run(3);
    let got = bench.run(10);
    assert!((485..=515).contains(&got[0]) && got[0] + got[1] >= 980, "{got:?}");
}

/// Seed 004, section 5.4: one unit has half reserved, four share the rest: 4:1.
#[test]
fn a_hard_half_against_four() {
    let mut bench = Bench::tickets(&[100; 5]);
    bench.contract.units[2].hard.disk = Some(Amount::Part(500_000));
    // The four have twice the requests.
    for n in 0..5 {
        bench.load(n, greedy(if n == 0 { 1 } else { 2 }));
    }
    // With equal tickets it would also get a fifth of the rest: 60 % against 10 % each. So it holds hardly
    // any tickets.
    bench.contract.units[2].tickets = PerResource::all(1);
    for n in 3..7 {
        bench.contract.units[n].tickets = PerResource::all(1_000);
    }
    bench.run(3);
    let got = bench.run(20);
    let four: u64 = got[1..].iter().sum::<u64>() / 4;
    assert!((3_800..=4_200).contains(&(got[0] * 1_000 / four)), "{got:?}");
    assert!(got.iter().sum::<u64>() >= 980, "{got:?}");
}

/// If caps are enforced by stopping units, no unit is throttled to a share, nor to a percentage of an
/// unmeasured capacity.
#[test]
fn stopping_enforces_limits_alone() {
    let mut bench = Bench::tickets(&[100, 100, 100]);
    bench.limits_only = true;
    bench.contract.units[2].limit.disk = Some(Amount::Absolute(5 * MB));
    bench.contract.units[3].limit.disk = Some(Amount::Part(100_000));
    bench.contract.units[4].borrow.disk = false.into();
    for n in 0..3 {
        bench.load(n, greedy(8));
    }
    bench.run(5);
    let capped: Vec<UnitId> = bench.caps.keys().copied().collect();
    assert_eq!(capped, [Bench::unit(0)], "{:?}", bench.caps);
    bench.known = Some(100 * MB);
    bench.run(1);
    assert_eq!(bench.caps.len(), 3, "{:?}", bench.caps);
}

/// 5 MB/s of a disk that carries 100: with a sample each 100 ms, 10 MB pass before the unit is stopped, for
/// two seconds.
#[test]
fn a_limit_is_enforced_by_stopping() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.limits_only = true;
    bench.contract.units[2].limit.disk = Some(Amount::Absolute(5 * MB));
    bench.load(0, greedy(8));
    bench.run(5);
    let got = bench.run(60);
    assert!((47..=52).contains(&got[0]), "{got:?}");
}

/// Whatever the contract becomes, no unit is stopped for a disk that is gone or has another name, and the
/// checker agrees.
#[test]
fn no_unit_is_stopped_for_a_disk_that_is_gone() {
    let stopped = || {
        let mut bench = Bench::tickets(&[100, 100]);
        bench.limits_only = true;
        bench.contract.units[2].limit.disk = Some(Amount::Absolute(5 * MB));
        bench.load(0, greedy(8));
        while bench.stopped.is_empty() {
            bench.step();
        }
        bench
    };
    let mut bench = stopped();
    bench.disk = None;
    bench.step();
    assert_eq!(bench.stopped, BTreeSet::new());
    bench.contract.machine.scheme = Scheme::Smp;
    bench.step();
    let mut bench = stopped();
    bench.disk = Some("all");
    bench.step();
    assert_eq!(bench.stopped, BTreeSet::new());
    let mut bench = stopped();
    (bench.disk, bench.contract.units[2].limit.disk) = (None, None);
    bench.step();
    assert_eq!(bench.stopped, BTreeSet::new());
}

#[test]
fn the_checker_knows_which_units_are_stopped() {
    let mut contract = Contract::default();
    let unit = contract.add(None, "a");
    let machine = Machine::synthetic("cpus:1 memory:1GiB disks:1").unwrap();
    let plan = |actions: Vec<DiskOrder>, disks: &[&str]| {
        let mut plan = Plan { orders: Orders::of_disks(Reason::DiskFree, actions), ..Plan::default() };
        plan.decisions.cpu.entitled = vec![0, MILLIONTH];
        plan.decisions.disk.disks = disks.iter().map(ToString::to_string).collect();
        plan
    };
    let replay = |books: &Books, actions: Vec<DiskOrder>, disks: &[&str]| {
        books.replay(&contract, &machine, &plan(actions, disks))
    };
    let stop = |unit, stopped| DiskOrder::Stop { unit, disk: "sda".to_string(), stopped };
    let cap = |rate| DiskOrder::Cap { unit, disk: "sda".to_string(), read: rate, write: rate };
    let none = Books::default();
    let wrong = |text: &str| Err(vec![text.to_string()]);
    assert_eq!(
        replay(&none, vec![stop(unit, true)], &["sda"]),
        wrong("a is stopped for a rate, and has none")
    );
    assert_eq!(
        replay(&none, vec![stop(unit, false)], &["sda"]),
        wrong("a is continued, and was not stopped for its rate")
    );
    let common = replay(&none, vec![stop(UnitId::SHARED, true)], &["sda"]).unwrap_err();
    assert_eq!(common[0], "shared is stopped for a rate, and is a common part");
    let stopped = replay(&none, vec![cap(Some(1)), stop(unit, true)], &["sda"]).unwrap();
    assert_eq!(
        replay(&stopped, vec![stop(unit, true)], &["sda"]),
        wrong("a is stopped for its rate, and was stopped before")
    );
    assert_eq!(replay(&stopped, vec![], &["sda"]), Ok(stopped.clone()));
    for (actions, disks) in [(vec![cap(None)], "sda"), (vec![], "sdb")] {
        assert_eq!(replay(&stopped, actions, &[disks]), wrong("a is stopped for a rate, and has none"));
    }
    assert_eq!(replay(&stopped, vec![cap(None), stop(unit, false)], &["sda"]), Ok(none.clone()));
    assert_eq!(replay(&stopped, vec![stop(unit, false)], &[]), Ok(none));
}

/// A cap is not changed by a hundredth, unless the one in force exceeds the contract's limit.
#[test]
fn a_limit_that_sinks_a_little_is_enforced() {
    let mut bench = Bench::tickets(&[100]);
    bench.load(0, greedy(8));
    let mut cap = |limit: u64| {
        bench.contract.units[2].limit.disk = Some(Amount::Absolute(limit * MB / 10));
        bench.run(1);
        bench.caps[&Bench::unit(0)].0
    };
    assert_eq!([cap(500), cap(495), cap(499)], [Some(50 * MB), Some(49_500_000), Some(49_500_000)]);
}

/// Samples taken for other resources, whose disk facts are not new, change nothing.
#[test]
fn stale_facts_change_nothing() {
    for depths in [[1, 16], [4, 32]] {
        let mut bench = Bench::tickets(&[100, 100]);
        for (n, depth) in (0..).zip(depths) {
            bench.load(n, Load { waits: true, ..greedy(depth) });
        }
        let mut held = 0;
        for _ in 0..100 {
            bench.step();
            let (before, now) = (bench.steps.len(), bench.now);
            held += bench.caps.len();
            bench.stale = true;
            (0..9).for_each(|_| bench.step());
            (bench.stale, bench.now) = (false, now);
            assert_eq!(bench.steps[before..], [], "after {} ms", now / MS);
        }
        assert!(held > 0, "{depths:?}");
    }
}

#[test]
fn idle_bandwidth_is_lent_and_called_back_at_once() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(1, greedy(16));
    let got = bench.run(5);
    assert_eq!((got[1], bench.steps.len()), (1_000, 0), "a unit alone is not throttled: {got:?}");
    bench.load(0, greedy(1));
    // The sample that finds it waiting gives it its part: it waits in the first step, and has its part in the
    // second.
    bench.run(1);
    let got = bench.run(2);
    assert!(got[0] >= 470, "{got:?}");
    let because = bench.steps[0].reason;
    assert!(matches!(because, Reason::DiskWanted { by, .. } if by == Bench::unit(0)), "{because:?}");
    bench.load(0, IDLE);
    bench.run(5);
    assert_eq!(bench.run(2)[1], 1_000, "{:?}", bench.caps);
    assert!(bench.caps.is_empty());
}

#[test]
fn bandwidth_that_a_waiting_unit_cannot_use_is_lent() {
    let mut bench = Bench::tickets(&[100, 100]);
    // One small request at a time: it always waits, and gets 10 MB/s of 100 even from an idle disk.
    bench.load(0, Load { depth: 1, most: 10 * MB, writes: false, waits: true });
    bench.load(1, greedy(31));
    bench.run(10);
    let got = bench.run(10);
    assert!(got[0] >= 95 && got[1] >= 700, "{got:?}");
}

#[test]
fn an_initial_burst_is_not_the_capacity() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.carries = 1_000 * MB;
    bench.load(1, greedy(31));
    bench.run(1);
    bench.carries = 100 * MB;
    bench.load(0, greedy(1));
    bench.run(6);
    let got = bench.run(10);
    assert!((470..=530).contains(&got[0]), "{got:?}");
}

#[test]
fn limits_apply_on_an_idle_disk() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.contract.units[2].limit.disk = Some(Amount::Absolute(20 * MB));
    bench.load(0, greedy(8));
    bench.run(1);
    let got = bench.run(5);
    assert!((195..=200).contains(&got[0]), "{got:?}");
    bench.contract.machine.scheme = Scheme::Smp;
    bench.run(1);
    assert!(bench.caps.is_empty(), "the scheme does not isolate");
}

/// A limit below a unit's part also holds beside others, which get the rest; one above its part changes
/// nothing.
#[test]
fn a_limit_and_a_part_hold_together() {
    for (limit, own, other) in [(20, 190..=200, 730..=805), (80, 480..=520, 480..=520)] {
        let mut bench = Bench::tickets(&[100, 100]);
        bench.contract.units[2].limit.disk = Some(Amount::Absolute(limit * MB));
        bench.load(0, greedy(16));
        bench.load(1, greedy(2));
        bench.run(5);
        let got = bench.run(10);
        assert!(own.contains(&got[0]) && other.contains(&got[1]), "{limit}: {got:?}");
    }
}

/// What the limit of an enclosing unit keeps from its sub-unit is divided among all others.
#[test]
fn other_units_get_what_an_outer_limit_leaves() {
    let mut contract = Contract::default();
    let outer = contract.add(None, "outer");
    let inner = contract.add(Some(outer), "inner");
    let others = [contract.add(None, "b"), contract.add(None, "c")];
    contract.units[outer.index()].limit.disk = Some(Amount::Absolute(10 * MB));
    let mut bench = Bench::new(contract);
    // The model does not enforce caps of enclosing units, so the sub-unit's own demand is set to that limit.
    bench.loads.insert(inner, Load { most: 10 * MB, waits: true, ..greedy(8) });
    bench.loads.insert(others[0], greedy(31));
    bench.loads.insert(others[1], greedy(1));
    bench.run(5);
    let got = bench.run(10);
    assert!(got[2..].iter().all(|got| (420..=470).contains(got)), "{got:?}");
}

/// However slow the disk and however small the share, a few small requests pass.
#[test]
fn no_unit_is_throttled_to_nothing() {
    let mut bench = Bench::tickets(&[1, 10_000, 10_000]);
    bench.carries = 2 * MB;
    for n in 0..3 {
        bench.load(n, greedy(16));
    }
    bench.run(5);
    let least = bench.caps.values().filter_map(|(read, _)| *read).min();
    assert_eq!(least, Some(RATE_MIN), "{:?}", bench.caps);
}

/// The kernel does not say for which disk a task stalled. A unit that never used this disk does not wait for
/// it.
#[test]
fn a_unit_that_waits_for_another_disk_is_ignored() {
    let mut bench = Bench::tickets(&[100, 100, 100]);
    bench.load(0, Load { depth: 1, most: 0, writes: false, waits: true });
    bench.load(1, greedy(16));
    let got = bench.run(5);
    assert_eq!((got[1], bench.steps.len()), (1_000, 0), "{got:?} {:?}", bench.caps);
}

/// A unit that gets what it wants without waiting leaves the rest to the units that wait, in equal parts.
#[test]
fn a_unit_that_does_not_wait_gets_no_more() {
    let mut bench = Bench::tickets(&[100, 100, 100]);
    bench.load(0, Load { most: 10 * MB, ..greedy(40) });
    bench.load(1, greedy(31));
    bench.load(2, greedy(2));
    bench.run(5);
    let got = bench.run(10);
    assert!(got[0] >= 95 && got[1..].iter().all(|got| (400..=480).contains(got)), "{got:?}");
}

/// A unit that took little and now takes all that it was left gets its part again.
#[test]
fn a_unit_that_wants_more_again_gets_it() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(0, Load { depth: 1, most: 10 * MB, writes: false, waits: true });
    bench.load(1, greedy(31));
    bench.run(10);
    bench.load(0, greedy(1));
    bench.run(2);
    let got = bench.run(5);
    assert!(got[0] >= 450, "{got:?}");
}

/// A throttled unit that wants little is free again once the others have left the crowd.
#[test]
fn no_unit_stays_throttled_after_the_others_have_left() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(0, greedy(2));
    bench.load(1, greedy(31));
    bench.run(5);
    assert!(!bench.caps.is_empty());
    bench.load(0, IDLE);
    bench.load(1, Load { most: MB, ..greedy(1) });
    bench.run(6);
    assert!(bench.caps.is_empty(), "{:?}", bench.caps);
}

#[test]
fn a_unit_that_may_not_borrow_gets_its_part_and_no_more() {
    let mut bench = Bench::tickets(&[100, 300]);
    bench.contract.units[2].borrow.disk = false.into();
    bench.load(0, greedy(4));
    bench.load(1, greedy(4));
    bench.run(3);
    bench.load(1, Load { most: 10 * MB, ..greedy(4) });
    bench.run(5);
    let got = bench.run(5);
    assert!((240..=260).contains(&got[0]), "{got:?}");
}

#[test]
fn a_unit_that_does_not_lend_finds_its_part_free() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.contract.units[2].lend.disk = false.into();
    bench.load(0, greedy(4));
    bench.load(1, greedy(4));
    bench.run(5);
    bench.load(0, IDLE);
    bench.run(5);
    let got = bench.run(5);
    assert!((450..=550).contains(&got[1]), "{got:?}");
}

/// A unit has a quarter of 100 MB/s, and may borrow 15 MB/s or a tenth of the disk beyond it. The other unit
/// takes only 10.
#[test]
fn a_unit_that_may_borrow_an_amount_gets_its_part_and_that() {
    let got = |borrow: Permission| {
        let mut bench = Bench::tickets(&[100, 300]);
        bench.contract.units[2].borrow.disk = borrow;
        bench.load(0, greedy(4));
        bench.load(1, greedy(4));
        bench.run(3);
        bench.load(1, Load { most: 10 * MB, ..greedy(4) });
        bench.run(5);
        (bench.run(5)[0], bench.caps.get(&Bench::unit(0)).copied())
    };
    let at_most = |amount| got(Permission::AtMost(amount));
    let (some, tenth) = (at_most(Amount::Absolute(15 * MB)).0, at_most(Amount::Part(100_000)).0);
    assert!((385..=415).contains(&some) && (335..=365).contains(&tenth), "{some} {tenth}");
    assert_eq!(
        at_most(Amount::Part(750_000)),
        got(Permission::Yes),
        "an amount that covers the disk is no ceiling"
    );
}

/// u0 has half of the disk. While it is idle, it lends 20 MB/s of that, or 60 % of it: the other unit gets 70
/// or 80 MB/s.
#[test]
fn a_unit_that_lends_an_amount_finds_the_rest_of_its_part_free() {
    let got = |lend: Amount| {
        let mut bench = Bench::tickets(&[100, 100]);
        bench.contract.units[2].lend.disk = Permission::AtMost(lend);
        bench.load(0, greedy(4));
        bench.load(1, greedy(4));
        bench.run(5);
        bench.load(0, IDLE);
        bench.run(5);
        (bench.run(5)[1], bench.caps.len())
    };
    let (some, most) = (got(Amount::Absolute(20 * MB)).0, got(Amount::Part(600_000)).0);
    assert!((650..=720).contains(&some) && (750..=820).contains(&most), "{some} {most}");
    assert_eq!(got(Amount::Part(1_000_000)), got(Amount::Absolute(u64::MAX)));
    assert!(got(Amount::Part(1_000_000)).0 > 950);
}

#[test]
fn reads_and_writes_count_together() {
    let mut bench = Bench::tickets(&[100, 100]);
    bench.load(0, greedy(1));
    bench.load(1, Load { writes: true, ..greedy(31) });
    bench.run(3);
    let got = bench.run(10);
    assert!((480..=520).contains(&got[0]), "{got:?}");
}

#[test]
fn without_stall_accounting_units_that_transfer_count_as_waiting() {
    let mut bench = Bench::tickets(&[100, 300]);
    bench.pressure = false;
    bench.load(0, greedy(31));
    bench.load(1, greedy(1));
    bench.run(3);
    let got = bench.run(10);
    assert!((235..=265).contains(&got[0]), "{got:?}");
}

#[test]
fn weights_are_corrected_by_what_units_get() {
    let mut bench = Bench::tickets(&[100, 400]);
    bench.weighs = true;
    bench.load(0, greedy(8));
    bench.load(1, greedy(8));
    bench.step();
    assert_eq!((bench.weights[&Bench::unit(0)], bench.weights[&Bench::unit(1)]), (125, 500));
    assert!(bench.caps.is_empty());
    // A scheduler that flattens 4:1 to 2:1: the first unit gets 1/3 instead of 1/5.
    bench.flattens = true;
    bench.run(10);
    let got = bench.run(10);
    assert!((190..=210).contains(&got[0]), "{got:?} {:?}", bench.weights);
    let corrected = |step: &Step<DiskOrder>| matches!(step.reason, Reason::DiskCorrected { .. });
    assert!(bench.steps.iter().any(corrected));
}

#[test]
fn a_disk_with_weights_is_sampled_less_often() {
    let next = |weighs| {
        let mut bench = Bench::tickets(&[100, 100]);
        bench.weighs = weighs;
        bench.load(0, greedy(8));
        bench.run(1);
        bench.next - bench.now
    };
    assert_eq!((next(false), next(true)), (BUSY_NS, WEIGHTED_NS));
}

#[test]
fn weights_that_a_disk_ignores_give_way_to_rates() {
    let mut bench = Bench::tickets(&[100, 400]);
    bench.load(0, greedy(8));
    bench.load(1, greedy(8));
    // The disk reports that it honours weights, and does not.
    (bench.claims_to_weigh, bench.weighs) = (true, false);
    bench.run(40);
    let got = bench.run(10);
    assert!((190..=210).contains(&got[0]), "{got:?} {:?}", bench.weights);
    assert!(!bench.caps.is_empty());
    assert_eq!(bench.weights[&Bench::unit(1)], 100, "the default weight");
}

#[test]
fn sub_units_share_what_their_parent_gets() {
    let mut contract = Contract::default();
    let outer = contract.add(None, "outer");
    let (one, two) = (contract.add(Some(outer), "one"), contract.add(Some(outer), "two"));
    let other = contract.add(None, "other");
    let mut bench = Bench::new(contract);
    for (unit, depth) in [(one, 1), (two, 8), (other, 31)] {
        bench.loads.insert(unit, greedy(depth));
    }
    bench.run(4);
    let got = bench.run(10);
    let by = |unit: UnitId| got[unit.index() - 2];
    assert!((235..=265).contains(&by(one)) && (235..=265).contains(&by(two)), "{got:?}");
    assert!((480..=520).contains(&by(other)), "{got:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A permission for an amount that exceeds the capacity is an unlimited permission: all orders are the
    /// same.
    #[test]
    fn huge_amounts_are_unlimited_permissions(
        loads in proptest::collection::vec((0u32..4, 0u64..40, 1u64..200, any::<bool>()), 1..8),
        huge in prop_oneof![Just(Amount::Absolute(u64::MAX)), Just(Amount::Absolute(1_000 * MB)), Just(Amount::Part(1_000_000))],
        weighs in any::<bool>(),
    ) {
        let orders = |permission: Permission| {
            let mut bench = Bench::tickets(&[100, 200, 300, 1]);
            bench.weighs = weighs;
            for unit in &mut bench.contract.units {
                (unit.lend.disk, unit.borrow.disk) = (permission, permission);
            }
            for (n, depth, most, writes) in &loads {
                bench.load(*n, Load { depth: *depth, most: most * MB, writes: *writes, waits: false });
                for _ in 0..15 {
                    bench.step();
                }
            }
            bench.steps
        };
        prop_assert_eq!(orders(Permission::Yes), orders(Permission::AtMost(huge)));
    }

    /// Whatever loads come and go, no unit gets more than its part and what it may borrow, once the capacity
    /// is known.
    #[test]
    fn no_ceiling_exceeds_what_may_be_borrowed(
        tickets in proptest::collection::vec(1u64..1_000, 2..5),
        amount in prop_oneof![(0u64..100).prop_map(|mb| Amount::Absolute(mb * MB)), (0u64..1_000_000).prop_map(Amount::Part)],
        loads in proptest::collection::vec((0u32..5, 0u64..40, 1u64..200), 1..8),
    ) {
        let mut bench = Bench::tickets(&tickets);
        bench.known = Some(bench.carries);
        let units = u32::try_from(tickets.len()).unwrap();
        bench.contract.units[2].borrow.disk = Permission::AtMost(amount);
        (0..units).for_each(|n| bench.load(n, IDLE));
        for (n, depth, most) in loads {
            bench.load(n % units, Load { depth, most: most * MB, ..IDLE });
            bench.run(2);
            let all: u64 = tickets.iter().sum();
            let most = bench.carries * tickets[0] / all + amount.of(bench.carries) + 1;
            let got = bench.serve().get(&Bench::unit(0)).copied().unwrap_or(0);
            // A rate in force may be a 64th off.
            prop_assert!(got <= (most + most / 32).max(RATE_MIN), "{got} of {most}: {:?}", bench.caps);
        }
    }

    /// Whatever loads come and go, the checker accepts all plans, no unit is starved, and the disk is in use.
    #[test]
    fn no_unit_is_starved(
        tickets in proptest::collection::vec(1u64..1_000, 2..6),
        loads in proptest::collection::vec((0u32..6, 0u64..40, 1u64..200, any::<bool>()), 1..8),
    ) {
        let mut bench = Bench::tickets(&tickets);
        let units = u32::try_from(tickets.len()).unwrap();
        for (n, depth, most, writes) in loads {
            bench.load(n % units, Load { depth, most: most * MB, writes, waits: false });
            for _ in 0..15 {
                bench.step();
            }
        }
        bench.run(3);
        let got = bench.run(5);
        for (unit, load) in &bench.loads {
            prop_assert!(load.depth == 0 || got[unit.index() - 2] > 0, "{unit:?} {got:?}");
        }
        let demand: u64 = bench.loads.values().filter(|load| load.depth > 0).map(|load| load.most).sum();
        let carried = got.iter().sum::<u64>();
        prop_assert!(carried * 100 >= (demand.min(bench.carries) / MB) * 400, "{got:?} of {demand}");
    }
}
