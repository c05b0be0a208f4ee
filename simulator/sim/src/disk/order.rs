//! The interface of disk scheduling policies, which choose the request that is served next.
//!
//! A policy sees the queue, and is notified of arrivals, starts and ends. It cannot ask how long a request
//! would take. But the notice of a start has the service time that the model has computed, for disks that
//! serve several requests at once.

mod batched;
mod fair;
mod isolation;
mod linux;
mod position;
mod yfq;

use std::fmt::Debug;

use commonhold_contract::UnitId;

pub(super) use linux::Linux;

use super::Request;
use super::mechanics::Mechanics;
use super::queue::{Place, Queue};
use crate::Time;
use crate::scenario::{Disk, DiskOrder};

/// A policy's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Start this request.
    Serve(UnitId, Place),
    /// Start nothing before this time, which is later than now, unless a request arrives.
    WaitUntil(Time),
    /// Start nothing: no request can be served now.
    Nothing,
}

impl From<Option<(UnitId, Place)>> for Choice {
    fn from(request: Option<(UnitId, Place)>) -> Choice {
        request.map_or(Choice::Nothing, |(unit, place)| Choice::Serve(unit, place))
    }
}

/// What a policy sees of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer<'a> {
    /// The unit as whose request it was scheduled.
    pub(super) scheduled_unit: UnitId,
    /// How many sectors each unit is charged for.
    pub(super) charged: &'a [(UnitId, u64)],
    /// All sectors.
    pub(super) sectors: u64,
    /// The time from start to end.
    pub(super) service_ns: Time,
}

/// A disk scheduling policy.
pub(super) trait Order: Debug + Send {
    /// Whether delayed writes come last, and become their owners' requests when they are old.
    fn defers(&self) -> bool {
        true
    }

    /// Sets the units' relative shares, by [`UnitId::index`]; 0 for none.
    fn set_shares(&mut self, _shares: &[u64]) {}

    /// A request of `unit` has just been put into the queue.
    fn arrived(&mut self, _now: Time, _unit: UnitId, _queue: &Queue) {}

    /// Chooses the next request, when the device can accept one and the head is at sector `head`.
    fn choose(&mut self, now: Time, head: u64, queue: &Queue) -> Choice;

    /// The chosen request, scheduled as `unit`'s, is handed to the device, in which it may wait.
    fn handed(&mut self, _now: Time, _unit: UnitId, _request: &Request) {}

    /// An urgent request of `unit` is served as the kernel's: charges its cost to the unit.
    fn charge_urgent(&mut self, _now: Time, _unit: UnitId, _request: &Request, _queue: &Queue) {}

    /// Sets the weight of `unit` among its siblings.
    fn weigh(&mut self, _unit: UnitId, _weight: u32) {}

    /// A request that was handed to the device begins.
    fn began(&mut self, _now: Time, _transfer: &Transfer) {}

    /// A transfer has ended.
    fn ended(&mut self, _now: Time, _transfer: &Transfer, _queue: &Queue) {}
}

/// The policy of an order, for a disk with these mechanics.
pub(super) fn of(order: DiskOrder, disk: &Disk, shares: &[u64], mechanics: &Mechanics) -> Box<dyn Order> {
    match order {
        DiskOrder::Position => Box::new(position::Position),
        DiskOrder::Isolation => Box::new(isolation::Isolation::new(shares, disk.half_life_ns)),
        DiskOrder::Fair => Box::new(fair::Fair::new(shares, disk.half_life_ns, disk.threshold_sectors)),
        DiskOrder::Batched => Box::new(batched::Batched::new(shares, mechanics.reposition_ns())),
        DiskOrder::Linux => Box::new(Linux::new(&[], true, mechanics)),
        DiskOrder::Yfq => {
            let size = mechanics.channels().max(disk.batch as usize);
            Box::new(yfq::Yfq::new(shares, size, disk.batch_chosen))
        }
    }
}
