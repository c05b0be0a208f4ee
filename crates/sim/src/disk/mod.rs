//! A simulated disk: requests come, wait, are served in some order, and complete.
//!
//! Flow:
//! - [`Drive::submit`] puts a request into the [`queue`].
//! - [`Drive::start`] asks the [`order`] which request goes next, and the [`mechanics`] how long it takes.
//! - [`Drive::next`] tells when to look again.
//! - [`Drive::complete`] hands back what is done and counts it in the [`figures`].
//!
//! The caller calls `start` after any `submit` and any `complete`. It asks `next` again after every `start`, since an
//! arrival may end a wait.
//!
//! Properties: deterministic, whole nanoseconds. Every request completes exactly once. Nothing is started early
//! because the caller is late: times are those of the calls. Cost per request: O(units that wait), which are no more
//! than the requests that wait, each with O(log n).
//!
//! Limits: requests are neither merged nor split, and a request that was started is finished.

mod figures;
mod hp97560;
mod mechanics;
mod order;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::DiskUse;

pub use figures::{Figures, UnitFigures};
use mechanics::{Mechanics, Service};
use order::{Choice, Order, Transfer};
use queue::{Place, Queue};

use crate::Time;
use crate::scenario::{Disk, DiskOrder};

/// A delayed write that has waited so long goes on as its main owner's request, in ns.
pub const DELAYED_NS_MAX: Time = 1_000_000_000;

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
    mechanics: Mechanics,
    order: Box<dyn Order>,
    queue: Queue,
    shares: Vec<u64>,
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
}

#[derive(Debug)]
struct InService {
    request: Request,
    /// In whose turn it goes: its unit's, or for an old delayed write its main owner's.
    turn_of: UnitId,
    waited_ns: Time,
    service: Service,
}

impl Drive {
    /// A disk at rest. `order` is `disk.order`, or what the scheme implies; `shares` are the units' relative shares of
    /// this disk by [`UnitId::index`], 0 for none.
    pub fn new(disk: &Disk, order: DiskOrder, shares: &[u64]) -> Drive {
        let mechanics = Mechanics::new(&disk.model);
        Drive {
            order: order::of(order, disk, shares, mechanics.reposition_ns()),
            mechanics,
            queue: Queue::default(),
            shares: shares.to_vec(),
            in_service: BTreeMap::new(),
            decision: None,
            delayed_ns_max: DELAYED_NS_MAX,
            head: 0,
            started: 0,
            submitted_sectors: 0,
            figures: Figures::default(),
        }
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

    /// Takes a request. It begins at a call of [`Drive::start`].
    ///
    /// # Panics
    /// If it has no sectors, or some beyond the disk's last: the scenario's check is to keep files within their disk.
    pub fn submit(&mut self, now: Time, request: Request) {
        let end = request.lba.saturating_add(u64::from(request.sectors));
        let fits = request.sectors > 0 && end <= self.sectors();
        assert!(fits, "request for {} sectors at {} of {}", request.sectors, request.lba, self.sectors());
        self.pass(now);
        self.figures.arrive(self.queue.len(), self.in_service.len() as u64);
        self.submitted_sectors += u64::from(request.sectors);
        let unit = request.unit;
        self.queue.push(now, request);
        self.order.arrived(now, unit, &self.queue);
    }

    /// Begins what can begin.
    pub fn start(&mut self, now: Time) {
        self.pass(now);
        self.decision = None;
        if self.order.defers() {
            for owner in self.queue.promote(now, self.delayed_ns_max) {
                self.order.arrived(now, owner, &self.queue);
            }
        }
        while self.in_service.len() < self.mechanics.channels() {
            match self.order.choose(now, self.head, &self.queue) {
                Choice::Serve(unit, place) => self.begin(now, unit, place),
                Choice::Nothing => break,
                Choice::WaitUntil(time) => {
                    debug_assert!(time > now, "a wait that is over is no wait");
                    self.decision = Some(time);
                    break;
                }
            }
        }
    }

    /// When to call [`Drive::complete`]: a request is done then, or a wait of the policy is over.
    pub fn next(&self) -> Option<Time> {
        let done = self.in_service.first_key_value().map(|((time, _), _)| *time);
        [done, self.decision].into_iter().flatten().min()
    }

    /// What is done at `now`, one request at a time. None where [`Drive::next`] stood for a decision: call
    /// [`Drive::start`], which makes it.
    pub fn complete(&mut self, now: Time) -> Option<Finished> {
        self.pass(now);
        let entry = self.in_service.first_entry().filter(|entry| entry.key().0 <= now)?;
        let InService { request, turn_of, waited_ns, service } = entry.remove();
        let charged = charged(&request);
        for (unit, sectors) in &charged {
            self.figures.charge(*unit, *sectors, request.write);
        }
        self.figures.finish(request.unit, u64::from(request.sectors), waited_ns, service);
        self.order.ended(now, &transfer(&request, turn_of, &charged, service), &self.queue);
        Some(Finished { request, waited_ns, service_ns: service.total_ns() })
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
        equal("requests", self.figures.arrivals, total.requests + in_service + self.queue.len())?;
        equal("sectors", self.submitted_sectors, total.sectors + serving + self.queue.sectors())?;
        equal("sectors at someone's charge", total.sectors, total.charged_sectors)?;
        equal("ns of service", total.served_ns, parts.iter().sum())?;
        self.figures.check()
    }

    fn begin(&mut self, now: Time, unit: UnitId, place: Place) {
        let waiting = self.queue.take(unit, place);
        debug_assert!(waiting.is_some(), "a policy chooses among those that wait");
        let Some(waiting) = waiting else { return };
        let request = waiting.request;
        let service = self.mechanics.service(now, request.lba, u64::from(request.sectors), request.write);
        self.order.began(now, &transfer(&request, unit, &[], service));
        self.head = request.lba + u64::from(request.sectors);
        let key = (now + service.total_ns(), self.started);
        self.started += 1;
        let waited_ns = now.saturating_sub(waiting.arrived);
        self.in_service.insert(key, InService { request, turn_of: unit, waited_ns, service });
    }

    fn pass(&mut self, now: Time) {
        self.figures.pass(now, self.queue.len(), self.in_service.len() as u64);
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
