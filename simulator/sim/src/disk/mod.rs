//! A simulated disk: requests come, wait, are served in some order, and complete.
//!
//! Flow:
//! - [`Drive::submit`] brings a request to the [`gates`], which hold it while a unit's rate is used up, and then puts it
//!   into the [`queue`].
//! - [`Drive::start`] asks the [`order`] which request goes next, and hands it to the [`device`]. There it begins at once,
//!   or waits where the device takes more requests than it serves. The [`mechanics`] say how long it takes.
//! - [`Drive::next`] tells when to look again.
//! - [`Drive::complete`] hands back what is done and counts it in the [`figures`].
//!
//! The caller calls `start` after any `submit`, `complete`, `cap` or `weigh`. It asks `next` again after every `start`,
//! since an arrival may end a wait.
//!
//! A disk of the order `linux` can do what a policy on a live machine asks of Linux: [`Drive::cap`] is io.max,
//! [`Drive::weigh`] io.weight, and [`Drive::facts`] what a backend would observe, with [`Stalls`] for io.pressure.
//! A disk that honours weights hands the device no more requests than it serves at once, as io.cost does, so that requests
//! wait where their units are known. Otherwise the device queues 32 requests, as a drive with an internal queue does. These
//! wait regardless of their units, and the policy sees only how long they take.
//!
//! Properties: deterministic, whole nanoseconds. Every request completes exactly once. Nothing is started early
//! because the caller is late: times are those of the calls. Cost per request: O(units that wait), which are no more
//! than the requests that wait, each with O(log n).
//!
//! Limits: requests are neither merged nor split, and a request that was handed to the device is finished.

mod device;
mod figures;
mod gates;
mod hp97560;
mod mechanics;
mod order;
mod queue;
mod stalls;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::{DeviceUse, DiskFacts, DiskUse};

use device::{Device, Handed};
pub use figures::{Figures, UnitFigures};
use gates::{Coming, Gates};
use mechanics::{Mechanics, Service};
use order::{Choice, Linux, Order, Transfer};
use queue::{Place, Queue, Waiting, main_owner};
pub use stalls::Stalls;

use crate::Time;
use crate::scenario::{Disk, DiskOrder};

/// A delayed write that has waited so long goes on as its main owner's request, in ns.
pub const DELAYED_NS_MAX: Time = 1_000_000_000;

/// How many requests a device takes that has a queue of its own: as many as a SATA drive.
const DEPTH: usize = 32;
const SECTOR_BYTES: u64 = 512;

/// A disk request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it; means nothing here.
    pub id: u32,
    /// The unit that asks. [`UnitId::SHARED`] for delayed writes, [`UnitId::KERNEL`] for what is not restricted.
    pub unit: UnitId,
    /// The first sector.
    pub lba: u64,
    /// How many sectors, at least 1.
    pub sectors: u32,
    /// Writes them; else reads.
    pub write: bool,
    /// Which unit is charged how many of its sectors when it is done; what is missing, or everything if empty, `unit`.
    pub owners: Vec<(UnitId, u32)>,
}

/// A request that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// As it was submitted.
    pub request: Request,
    /// From arrival to start, in ns.
    pub waited_ns: Time,
    /// From start to completion, in ns.
    pub service_ns: Time,
}

/// A disk with its queue.
#[derive(Debug)]
pub struct Drive {
    name: String,
    mechanics: Mechanics,
    order: Box<dyn Order>,
    /// Whether delayed writes are their main owners' from the start, and whether units' weights count.
    owned: bool,
    weighs: bool,
    gates: Gates,
    queue: Queue,
    shares: Vec<u64>,
    device: Device,
    /// How many requests the device takes, waiting or in service.
    depth: usize,
    /// By completion time, then by start.
    in_service: BTreeMap<(Time, u64), InService>,
    /// When the policy wants to be asked again.
    decision: Option<Time>,
    delayed_ns_max: Time,
    /// The end of the last request that was started.
    head: u64,
    started: u64,
    submitted_sectors: u64,
    figures: Figures,
    /// What units sent beyond the gates, by [`UnitId::index`].
    sent: Vec<DiskUse>,
    /// What ended requests took in the device, waiting there included, in ns.
    taken_ns: Time,
}

#[derive(Debug)]
struct InService {
    request: Request,
    /// In whose turn it goes: its unit's, its main owner's if it is a delayed write, the kernel's if it is urgent.
    turn_of: UnitId,
    /// When it was handed to the device.
    handed: Time,
    waited_ns: Time,
    service: Service,
}

impl Drive {
    /// A disk at rest. `order` is `disk.order`, or what the scheme implies; `shares` are the units' relative shares of
    /// this disk by [`UnitId::index`], 0 for none. A disk of the order `linux` ignores the shares; it honours weights, and its
    /// units have no sub-units.
    pub fn new(disk: &Disk, order: DiskOrder, shares: &[u64]) -> Drive {
        let mechanics = Mechanics::new(&disk.model);
        let is_linux = matches!(order, DiskOrder::Linux);
        Drive {
            name: disk.name.clone(),
            order: order::of(order, disk, shares, &mechanics),
            owned: is_linux,
            weighs: is_linux,
            gates: Gates::default(),
            queue: Queue::default(),
            shares: shares.to_vec(),
            device: Device::default(),
            depth: mechanics.channels(),
            mechanics,
            in_service: BTreeMap::new(),
            decision: None,
            delayed_ns_max: DELAYED_NS_MAX,
            head: 0,
            started: 0,
            submitted_sectors: 0,
            figures: Figures::default(),
            sent: Vec::new(),
            taken_ns: 0,
        }
    }

    /// A disk of the order `linux` at rest, for units with these parents, by [`UnitId::index`]. `weighs` says whether it
    /// honours weights, as a calibrated disk does on Linux. All weights are 100, and no unit has a rate.
    pub fn linux(disk: &Disk, parents: &[Option<UnitId>], weighs: bool) -> Drive {
        let drive = Drive::new(disk, DiskOrder::Linux, &[]);
        let channels = drive.mechanics.channels();
        Drive {
            order: Box::new(Linux::new(parents, weighs, &drive.mechanics)),
            weighs,
            gates: Gates::new(parents),
            depth: if weighs { channels } else { channels.max(DEPTH) },
            ..drive
        }
    }

    /// Sets how many requests the device takes, waiting there or in service; at least as many as it serves at once.
    #[must_use]
    pub fn with_depth(self, depth: usize) -> Drive {
        Drive { depth: depth.max(self.mechanics.channels()), ..self }
    }

    /// With another limit on the wait of delayed writes, in ns, in place of [`DELAYED_NS_MAX`].
    #[must_use]
    pub fn with_delayed_ns_max(self, delayed_ns_max: Time) -> Drive {
        Drive { delayed_ns_max, ..self }
    }

    /// How many sectors it has.
    pub fn sectors(&self) -> u64 {
        self.mechanics.sectors()
    }

    /// Holds a unit with its sub-units to these rates from now on, in bytes per second each way; `None` is without bound.
    /// A rate of 0 counts as 1. The common parts have no rates. Call [`Drive::start`] afterwards.
    ///
    /// On a disk of another order than `linux`, delayed writes are no unit's until they are done, so no rate holds them.
    pub fn cap(&mut self, now: Time, unit: UnitId, read: Option<u64>, write: Option<u64>) {
        self.pass(now);
        self.gates.set(now, unit, false, read);
        self.gates.set(now, unit, true, write);
    }

    /// Sets a unit's weight among its siblings, clamped to 1..=1000. Has an effect only on a disk of the order `linux` that
    /// honours weights. Call [`Drive::start`] afterwards.
    pub fn weigh(&mut self, now: Time, unit: UnitId, weight: u32) {
        self.pass(now);
        self.order.weigh(unit, weight);
    }

    /// What a backend would observe of this disk at `now`, which is not before the last call with a time. `stalls` has
    /// as many units as the facts are to have.
    ///
    /// Units' bytes and requests count from when their rates let them pass. Of the order `linux`, a delayed write counts
    /// for its main owner alone.
    pub fn facts(&self, now: Time, stalls: &Stalls) -> DiskFacts {
        let total = self.figures.total();
        let device = DeviceUse {
            requests: total.requests,
            bytes: total.sectors * SECTOR_BYTES,
            taken_ns: self.taken_ns,
            busy_ns: self.figures.busy_ns_at(now, !self.in_service.is_empty()),
            under_way: (self.device.len() + self.in_service.len()) as u64,
        };
        let facts = |unit: UnitId| DiskUse {
            stalled_ns: Some(stalls.stalled_ns(now, unit)),
            ..self.sent.get(unit.index()).copied().unwrap_or_default()
        };
        DiskFacts {
            name: self.name.clone(),
            at: now,
            weighs: self.weighs,
            bytes_per_s: self.weighs.then(|| self.mechanics.costs().bytes_per_s()),
            device: Some(device),
            units: (0..).take(stalls.units()).map(UnitId).map(facts).collect(),
        }
    }

    /// Takes a request. It begins at a call of [`Drive::start`].
    ///
    /// # Panics
    /// If it has no sectors, or some beyond the disk's last: the scenario's check is to keep files within their disk.
    pub fn submit(&mut self, now: Time, request: Request) {
        self.take(now, &request);
        let unit = self.turn_of(&request);
        if let Some(coming) = self.gates.enter(now, Coming { unit, request, arrived: now }) {
            self.admit(now, coming);
        }
    }

    /// Takes a request that others may wait for, as Linux does a write to swap: it goes as the kernel's, which no rate and
    /// no weight keeps back, and its unit has so much less afterwards. On a disk of another order than `linux`, it is a
    /// request as any.
    ///
    /// # Panics
    /// As [`Drive::submit`].
    pub fn submit_urgent(&mut self, now: Time, request: Request) {
        if !self.owned {
            return self.submit(now, request);
        }
        self.take(now, &request);
        let unit = self.turn_of(&request);
        self.gates.owe(now, unit, &request);
        self.count(unit, &request);
        self.order.owe(now, unit, &request, &self.queue);
        self.queue.push(UnitId::KERNEL, now, request);
        self.order.arrived(now, UnitId::KERNEL, &self.queue);
    }

    /// A request comes.
    fn take(&mut self, now: Time, request: &Request) {
        let end = request.lba.saturating_add(u64::from(request.sectors));
        let fits = request.sectors > 0 && end <= self.sectors();
        assert!(fits, "request for {} sectors at {} of {}", request.sectors, request.lba, self.sectors());
        self.pass(now);
        self.figures.arrive(self.waiting(), self.in_service.len() as u64);
        self.submitted_sectors += u64::from(request.sectors);
    }

    /// In whose turn a request goes from the start.
    fn turn_of(&self, request: &Request) -> UnitId {
        let is_delayed = self.owned && request.unit == UnitId::SHARED;
        let owner = if is_delayed { main_owner(request) } else { None };
        owner.unwrap_or(request.unit)
    }

    /// Begins what can begin.
    pub fn start(&mut self, now: Time) {
        self.pass(now);
        self.decision = None;
        for coming in self.gates.release(now) {
            self.admit(now, coming);
        }
        if self.order.defers() {
            for owner in self.queue.promote(now, self.delayed_ns_max) {
                self.order.arrived(now, owner, &self.queue);
            }
        }
        self.begin(now);
        while self.device.len() + self.in_service.len() < self.depth {
            match self.order.choose(now, self.head, &self.queue) {
                Choice::Serve(unit, place) => {
                    self.hand(now, unit, place);
                    self.begin(now);
                }
                Choice::Nothing => break,
                Choice::WaitUntil(time) => {
                    debug_assert!(time > now, "a wait that is over is no wait");
                    self.decision = Some(time);
                    break;
                }
            }
        }
    }

    /// When to call [`Drive::complete`]: a request completes then, or a wait ends that the policy or a unit's rate imposed.
    pub fn next(&self) -> Option<Time> {
        let done = self.in_service.first_key_value().map(|((time, _), _)| *time);
        [done, self.decision, self.gates.next()].into_iter().flatten().min()
    }

    /// What is done at `now`, one request at a time. None where [`Drive::next`] stood for a decision: call
    /// [`Drive::start`], which makes it.
    pub fn complete(&mut self, now: Time) -> Option<Finished> {
        self.pass(now);
        let entry = self.in_service.first_entry().filter(|entry| entry.key().0 <= now)?;
        let InService { request, turn_of, handed, waited_ns, service } = entry.remove();
        self.taken_ns += now.saturating_sub(handed);
        let charged = charged(&request);
        for (unit, sectors) in &charged {
            self.figures.charge(*unit, *sectors, request.write);
        }
        self.figures.finish(request.unit, u64::from(request.sectors), waited_ns, service);
        self.order.ended(now, &transfer(&request, turn_of, &charged, service), &self.queue);
        Some(Finished { request, waited_ns, service_ns: service.total_ns() })
    }

    /// Delays the kernel's notice of the latest completed request by `late`, which counts as part of the request's time.
    pub fn told_late(&mut self, late: Time) {
        self.taken_ns += late;
    }

    /// A unit has this share of the disk from now on, in relation to all others' shares; 0 for none.
    pub fn share_out(&mut self, unit: UnitId, share: u64) {
        if self.shares.len() <= unit.index() {
            self.shares.resize(unit.index() + 1, 0);
        }
        self.shares[unit.index()] = share;
        self.order.set_shares(&self.shares);
    }

    /// What each unit transferred, as it was charged, by [`UnitId::index`].
    pub fn used(&self) -> Vec<DiskUse> {
        self.figures.units.iter().map(UnitFigures::used).collect()
    }

    /// What it did so far, up to the last call with a time.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Checks that nothing was lost: requests and sectors that came are done, in service or waiting; sectors done are
    /// charged; a request's time is the sum of its parts; the disk was not busy for longer than time passed. O(n).
    pub fn check(&self) -> Result<(), String> {
        let total = self.figures.total();
        let in_service = self.in_service.len() as u64;
        let serving: u64 = self.in_service.values().map(|entry| u64::from(entry.request.sectors)).sum();
        let parts = [
            self.figures.overhead_ns,
            self.figures.seek_ns,
            self.figures.rotation_ns,
            self.figures.transfer_ns,
        ];
        equal("requests", self.figures.arrivals, total.requests + in_service + self.waiting())?;
        let waiting = self.gates.sectors() + self.queue.sectors() + self.device.sectors();
        equal("sectors", self.submitted_sectors, total.sectors + serving + waiting)?;
        equal("sectors at someone's charge", total.sectors, total.charged_sectors)?;
        equal("ns of service", total.served_ns, parts.iter().sum())?;
        self.figures.check()
    }

    /// A request is beyond the gates.
    fn admit(&mut self, now: Time, coming: Coming) {
        let Coming { unit, request, arrived } = coming;
        self.count(unit, &request);
        self.queue.push(unit, arrived, request);
        self.order.arrived(now, unit, &self.queue);
    }

    /// Counts what a unit sends.
    fn count(&mut self, unit: UnitId, request: &Request) {
        if unit.index() >= self.sent.len() {
            self.sent.resize(unit.index() + 1, DiskUse::default());
        }
        let (sent, bytes) = (&mut self.sent[unit.index()], u64::from(request.sectors) * SECTOR_BYTES);
        sent.requests += 1;
        *if request.write { &mut sent.written_bytes } else { &mut sent.read_bytes } += bytes;
    }

    /// Hands what was chosen to the device.
    fn hand(&mut self, now: Time, unit: UnitId, place: Place) {
        let waiting = self.queue.take(unit, place);
        debug_assert!(waiting.is_some(), "a policy chooses among those that wait");
        let Some(waiting) = waiting else { return };
        let Waiting { request, arrived, .. } = waiting;
        self.order.handed(now, unit, &request);
        self.device.push(Handed { request, turn_of: unit, arrived, handed: now });
    }

    /// Begins requests that the device holds, up to the number that it serves at once.
    fn begin(&mut self, now: Time) {
        while self.in_service.len() < self.mechanics.channels() {
            let head = self.mechanics.has_arm().then_some(self.head);
            let Some(Handed { request, turn_of, arrived, handed }) = self.device.take(head) else { return };
            let service = self.mechanics.service(now, request.lba, u64::from(request.sectors), request.write);
            self.order.began(now, &transfer(&request, turn_of, &[], service));
            self.head = request.lba + u64::from(request.sectors);
            let key = (now + service.total_ns(), self.started);
            self.started += 1;
            let waited_ns = now.saturating_sub(arrived);
            self.in_service.insert(key, InService { request, turn_of, handed, waited_ns, service });
        }
    }

    /// How many requests came and have not begun.
    fn waiting(&self) -> u64 {
        self.gates.len() + self.queue.len() + self.device.len() as u64
    }

    fn pass(&mut self, now: Time) {
        self.figures.pass(now, self.waiting(), self.in_service.len() as u64);
    }
}

fn equal(what: &str, left: u64, right: u64) -> Result<(), String> {
    if left == right {
        Ok(())
    } else {
        Err(format!("{left} {what} on one side of the account, {right} on the other"))
    }
}

fn transfer<'a>(
    request: &Request,
    turn_of: UnitId,
    charged: &'a [(UnitId, u64)],
    service: Service,
) -> Transfer<'a> {
    Transfer { turn_of, charged, sectors: u64::from(request.sectors), service_ns: service.total_ns() }
}

/// Which unit pays for how many of a request's sectors, in all as many as it has.
fn charged(request: &Request) -> Vec<(UnitId, u64)> {
    let mut left = u64::from(request.sectors);
    let mut parts = Vec::with_capacity(request.owners.len() + 1);
    for (unit, sectors) in &request.owners {
        let part = u64::from(*sectors).min(left);
        left -= part;
        parts.push((*unit, part));
    }
    if left > 0 {
        parts.push((request.unit, left));
    }
    parts
}
