//! A simulated disk: requests arrive, wait in queues, are served in the order that a policy chooses, and
//! complete.
//!
//! Flow of a request:
//! - [`Drive::submit`] passes the request through the [`gates`], which delay it while a unit's rate is used
//!   up, into the [`queue`].
//! - [`Drive::start`] lets the [`order`] choose the next request, and hands that request to the [`device`].
//!   There it begins at once, or waits if the device accepts more requests than it serves. The [`mechanics`]
//!   compute its service time.
//! - [`Drive::next`] is the time of the disk's next event.
//! - [`Drive::complete`] returns an ended request and counts it in the [`figures`].
//!
//! The caller calls `start` after any `submit`, `complete`, `cap` or `weigh`, and `next` after every `start`,
//! since an arrival may end a wait.
//!
//! A disk of the order `linux` carries out what a policy on a live machine orders: [`Drive::cap`] is io.max,
//! [`Drive::weigh`] io.weight, and [`Drive::facts`] what a backend would observe, with [`Stalls`] for
//! io.pressure. A disk that honours weights hands the device no more requests than it serves at once, as
//! io.cost does, so that requests wait where their units are known. Otherwise the device queues 32 requests,
//! as a drive with an internal queue does. These wait regardless of their units, and the policy sees only how
//! long they take.
//!
//! Properties: deterministic, in whole nanoseconds. Every request completes exactly once. Times are those of
//! the calls: if the caller is late, nothing starts earlier. Cost per request: O(log n) for each unit with
//! waiting requests.
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
use gates::{Gates, Submitted};
use mechanics::{Mechanics, Service};
use order::{Choice, Linux, Order, Transfer};
use queue::{Place, Queue, Waiting, main_owner};
pub use stalls::Stalls;

use crate::Time;
use crate::scenario::{Disk, DiskOrder};

/// A delayed write that has waited for this time, in ns, becomes a request of its main owner.
pub const DELAYED_NS_MAX: Time = 1_000_000_000;

/// How many requests a device with an internal queue accepts: as many as a SATA drive.
const DEPTH: usize = 32;
const SECTOR_BYTES: u64 = 512;

/// A disk request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's number of the request, which the disk does not interpret.
    pub id: u32,
    /// The unit that submits it. [`UnitId::SHARED`] for delayed writes, [`UnitId::KERNEL`] for unrestricted
    /// requests.
    pub unit: UnitId,
    /// The first sector.
    pub lba: u64,
    /// The number of sectors, at least 1.
    pub sectors: u32,
    /// Whether it writes the sectors; otherwise it reads them.
    pub write: bool,
    /// How many sectors each unit is charged for when the request completes. The rest is charged to `unit`.
    pub owners: Vec<(UnitId, u32)>,
}

/// A completed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The request as it was submitted.
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
    /// Whether delayed writes count as their main owners' requests from the start, as on Linux.
    owned: bool,
    /// Whether units' weights are honoured.
    weighs: bool,
    gates: Gates,
    queue: Queue,
    /// The units' relative shares, by [`UnitId::index`].
    shares: Vec<u64>,
    device: Device,
    /// How many requests the device accepts, waiting or in service.
    depth: usize,
    /// The requests in service, by completion time and by number of start.
    in_service: BTreeMap<(Time, u64), InService>,
    /// When the policy decides again, if it waits.
    decision: Option<Time>,
    delayed_ns_max: Time,
    /// The sector at the end of the request that was started last.
    head: u64,
    /// The number of requests started so far.
    started: u64,
    submitted_sectors: u64,
    figures: Figures,
    /// What each unit has sent past the gates, by [`UnitId::index`].
    sent: Vec<DiskUse>,
    /// The time that ended requests spent in the device, including waits there, in ns.
    taken_ns: Time,
}

#[derive(Debug)]
struct InService {
    request: Request,
    /// The unit as whose request it is scheduled: its own unit; the main owner of a delayed write; the kernel
    /// if it is urgent.
    scheduled_unit: UnitId,
    /// When it was handed to the device.
    handed: Time,
    waited_ns: Time,
    service: Service,
}

impl Drive {
    /// An idle disk. `order` is `disk.order`, or the order that the scheme implies; `shares` are the units'
    /// relative shares of this disk by [`UnitId::index`], 0 for none. A disk of the order `linux` ignores the
    /// shares; it honours weights, and its units have no sub-units.
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

    /// An idle disk of the order `linux`, for units with these parents, by [`UnitId::index`]. `weighs` says
    /// whether the disk honours weights, as a calibrated disk does on Linux. All weights are 100, and no unit
    /// has a rate limit.
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

    /// Sets how many requests the device accepts, waiting or in service; at least as many as it serves at
    /// once.
    #[must_use]
    pub fn with_depth(self, depth: usize) -> Drive {
        Drive { depth: depth.max(self.mechanics.channels()), ..self }
    }

    /// Sets the limit on the wait of delayed writes, in ns, in place of [`DELAYED_NS_MAX`].
    #[must_use]
    pub fn with_delayed_ns_max(self, delayed_ns_max: Time) -> Drive {
        Drive { delayed_ns_max, ..self }
    }

    /// The disk's number of sectors.
    pub fn sectors(&self) -> u64 {
        self.mechanics.sectors()
    }

    /// Limits a unit with its sub-units to these rates from now on, in bytes per second for each direction;
    /// `None` for no limit. A rate of 0 counts as 1. The built-in units `shared` and `kernel` have no limits.
    /// Call [`Drive::start`] afterwards.
    ///
    /// On a disk of another order than `linux`, delayed writes belong to no unit until they complete, so
    /// rates do not apply.
    pub fn cap(&mut self, now: Time, unit: UnitId, read: Option<u64>, write: Option<u64>) {
        self.advance_time(now);
        self.gates.set(now, unit, false, read);
        self.gates.set(now, unit, true, write);
    }

    /// Sets a unit's weight among its siblings, clamped to 1..=1000. Has an effect only on a disk of the
    /// order `linux` that honours weights. Call [`Drive::start`] afterwards.
    pub fn weigh(&mut self, now: Time, unit: UnitId, weight: u32) {
        self.advance_time(now);
        self.order.weigh(unit, weight);
    }

    /// The facts about this disk that a backend would observe at `now`, which is not before the last call
    /// with a time. The facts have as many units as `stalls`.
    ///
    /// A unit's request counts once the rate limits let it pass. On a disk of the order `linux`, a delayed
    /// write counts for its main owner alone.
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

    /// Accepts a request, which begins at a later call of [`Drive::start`].
    ///
    /// # Panics
    /// If the request has no sectors, or reaches beyond the disk's end: the check of the scenario keeps files
    /// within their disk.
    pub fn submit(&mut self, now: Time, request: Request) {
        self.count_arrival(now, &request);
        let unit = self.scheduled_unit(&request);
        if let Some(passing) = self.gates.enter(now, Submitted { unit, request, arrived: now }) {
            self.admit(now, passing);
        }
    }

    /// Accepts a request for which other units may wait, as Linux does with a write to swap. It is scheduled
    /// as the kernel's, which no rate or weight delays, and its cost is deducted from its unit's later
    /// requests. On a disk of another order than `linux`, it is a normal request.
    ///
    /// # Panics
    /// As [`Drive::submit`].
    pub fn submit_urgent(&mut self, now: Time, request: Request) {
        if !self.owned {
            return self.submit(now, request);
        }
        self.count_arrival(now, &request);
        let unit = self.scheduled_unit(&request);
        self.gates.charge_urgent(now, unit, &request);
        self.count_sent(unit, &request);
        self.order.charge_urgent(now, unit, &request, &self.queue);
        self.queue.push(UnitId::KERNEL, now, request);
        self.order.arrived(now, UnitId::KERNEL, &self.queue);
    }

    /// Checks and counts a new request.
    fn count_arrival(&mut self, now: Time, request: &Request) {
        let end = request.lba.saturating_add(u64::from(request.sectors));
        let fits = request.sectors > 0 && end <= self.sectors();
        assert!(fits, "request for {} sectors at {} of {}", request.sectors, request.lba, self.sectors());
        self.advance_time(now);
        self.figures.arrive(self.waiting(), self.in_service.len() as u64);
        self.submitted_sectors += u64::from(request.sectors);
    }

    /// The unit as whose request a request is scheduled at first: its own unit, or on Linux the main owner of
    /// a delayed write.
    fn scheduled_unit(&self, request: &Request) -> UnitId {
        let is_delayed = self.owned && request.unit == UnitId::SHARED;
        let owner = if is_delayed { main_owner(request) } else { None };
        owner.unwrap_or(request.unit)
    }

    /// Admits requests that rate limits let pass now, and starts requests while the device accepts any.
    pub fn start(&mut self, now: Time) {
        self.advance_time(now);
        self.decision = None;
        for released in self.gates.release(now) {
            self.admit(now, released);
        }
        if self.order.defers() {
            for owner in self.queue.promote(now, self.delayed_ns_max) {
                self.order.arrived(now, owner, &self.queue);
            }
        }
        self.begin_service(now);
        while self.device.len() + self.in_service.len() < self.depth {
            match self.order.choose(now, self.head, &self.queue) {
                Choice::Serve(unit, place) => {
                    self.hand_to_device(now, unit, place);
                    self.begin_service(now);
                }
                Choice::Nothing => break,
                Choice::WaitUntil(time) => {
                    debug_assert!(time > now, "a wait ends later than now");
                    self.decision = Some(time);
                    break;
                }
            }
        }
    }

    /// When to call [`Drive::complete`]: a request completes then, or a wait by the policy or a rate limit
    /// ends. `None` if the disk is idle.
    pub fn next(&self) -> Option<Time> {
        let done = self.in_service.first_key_value().map(|((time, _), _)| *time);
        [done, self.decision, self.gates.next()].into_iter().flatten().min()
    }

    /// Returns a request that has completed by `now`, one per call. `None` if no request has, as when
    /// [`Drive::next`] was the end of a wait: then call [`Drive::start`].
    pub fn complete(&mut self, now: Time) -> Option<Finished> {
        self.advance_time(now);
        let entry = self.in_service.first_entry().filter(|entry| entry.key().0 <= now)?;
        let InService { request, scheduled_unit, handed, waited_ns, service } = entry.remove();
        self.taken_ns += now.saturating_sub(handed);
        let charged = charged(&request);
        for (unit, sectors) in &charged {
            self.figures.charge(*unit, *sectors, request.write);
        }
        self.figures.finish(request.unit, u64::from(request.sectors), waited_ns, service);
        self.order.ended(now, &transfer(&request, scheduled_unit, &charged, service), &self.queue);
        Some(Finished { request, waited_ns, service_ns: service.total_ns() })
    }

    /// Delays the interrupt of the latest completed request by `late`, which counts as part of the request's
    /// time.
    pub fn delay_interrupt(&mut self, late: Time) {
        self.taken_ns += late;
    }

    /// Sets a unit's share of the disk, relative to the sum of all shares; 0 for none.
    pub fn set_share(&mut self, unit: UnitId, share: u64) {
        if self.shares.len() <= unit.index() {
            self.shares.resize(unit.index() + 1, 0);
        }
        self.shares[unit.index()] = share;
        self.order.set_shares(&self.shares);
    }

    /// The transfers charged to each unit, by [`UnitId::index`].
    pub fn used(&self) -> Vec<DiskUse> {
        self.figures.units.iter().map(UnitFigures::used).collect()
    }

    /// The disk's figures up to the last call with a time.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Checks conservation: submitted requests and sectors are completed, in service or waiting; completed
    /// sectors are charged; a request's time is the sum of its parts; the disk was busy for at most the
    /// elapsed time. O(n).
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

    /// Puts a request that has passed the gates into the queue.
    fn admit(&mut self, now: Time, submitted: Submitted) {
        let Submitted { unit, request, arrived } = submitted;
        self.count_sent(unit, &request);
        self.queue.push(unit, arrived, request);
        self.order.arrived(now, unit, &self.queue);
    }

    /// Counts a request that a unit has sent past the gates.
    fn count_sent(&mut self, unit: UnitId, request: &Request) {
        if unit.index() >= self.sent.len() {
            self.sent.resize(unit.index() + 1, DiskUse::default());
        }
        let (sent, bytes) = (&mut self.sent[unit.index()], u64::from(request.sectors) * SECTOR_BYTES);
        sent.requests += 1;
        *if request.write { &mut sent.written_bytes } else { &mut sent.read_bytes } += bytes;
    }

    /// Hands the request that the policy chose to the device.
    fn hand_to_device(&mut self, now: Time, unit: UnitId, place: Place) {
        let waiting = self.queue.take(unit, place);
        debug_assert!(waiting.is_some(), "a policy chooses among waiting requests");
        let Some(waiting) = waiting else { return };
        let Waiting { request, arrived, .. } = waiting;
        self.order.handed(now, unit, &request);
        self.device.push(Handed { request, scheduled_unit: unit, arrived, handed: now });
    }

    /// Begins requests that wait in the device, up to the number that it serves at once.
    fn begin_service(&mut self, now: Time) {
        while self.in_service.len() < self.mechanics.channels() {
            let head = self.mechanics.has_arm().then_some(self.head);
            let Some(Handed { request, scheduled_unit, arrived, handed }) = self.device.take(head) else {
                return;
            };
            let service = self.mechanics.service(now, request.lba, u64::from(request.sectors), request.write);
            self.order.began(now, &transfer(&request, scheduled_unit, &[], service));
            self.head = request.lba + u64::from(request.sectors);
            let key = (now + service.total_ns(), self.started);
            self.started += 1;
            let waited_ns = now.saturating_sub(arrived);
            self.in_service.insert(key, InService { request, scheduled_unit, handed, waited_ns, service });
        }
    }

    /// The number of requests that were submitted and have not begun.
    fn waiting(&self) -> u64 {
        self.gates.len() + self.queue.len() + self.device.len() as u64
    }

    /// Advances the time integrals of the figures to now.
    fn advance_time(&mut self, now: Time) {
        self.figures.advance_time(now, self.waiting(), self.in_service.len() as u64);
    }
}

/// Checks that both sides of an account are equal.
fn equal(what: &str, left: u64, right: u64) -> Result<(), String> {
    if left == right {
        Ok(())
    } else {
        Err(format!("{left} {what} on one side of the account, {right} on the other"))
    }
}

fn transfer<'a>(
    request: &Request,
    scheduled_unit: UnitId,
    charged: &'a [(UnitId, u64)],
    service: Service,
) -> Transfer<'a> {
    Transfer { scheduled_unit, charged, sectors: u64::from(request.sectors), service_ns: service.total_ns() }
}

/// How many of a request's sectors each unit is charged for. They sum to the request's sectors: the part
/// without an owner is charged to the request's unit.
fn charged(request: &Request) -> Vec<(UnitId, u64)> {
    let mut remaining = u64::from(request.sectors);
    let mut charges = Vec::with_capacity(request.owners.len() + 1);
    for (unit, sectors) in &request.owners {
        let charged = u64::from(*sectors).min(remaining);
        remaining -= charged;
        charges.push((*unit, charged));
    }
    if remaining > 0 {
        charges.push((request.unit, remaining));
    }
    charges
}
