//! Which request goes next: what a policy is given, and what it answers.
//!
//! A policy sees the queue, and is notified of arrivals, starts and ends. It does not see how long a request will take.
//! There is one exception: a start carries the time that the model has worked out, for disks that serve several side
//! by side.

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

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Start this one.
    Serve(UnitId, Place),
    /// Start nothing before this time, which is later than now, unless something arrives.
    WaitUntil(Time),
    /// There is nothing to do.
    Nothing,
}

impl From<Option<(UnitId, Place)>> for Choice {
    fn from(found: Option<(UnitId, Place)>) -> Choice {
        found.map_or(Choice::Nothing, |(unit, place)| Choice::Serve(unit, place))
    }
}

/// A transfer, as policies see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer<'a> {
    /// In whose turn it went.
    pub(super) turn_of: UnitId,
    /// The units that pay, each with its sectors.
    pub(super) charged: &'a [(UnitId, u64)],
    /// Sectors in all.
    pub(super) sectors: u64,
    /// What it takes from start to end.
    pub(super) service_ns: Time,
}

/// A policy.
pub(super) trait Order: Debug + Send {
    /// Whether delayed writes come last, and are handed to their owners when they are old.
    fn defers(&self) -> bool {
        true
    }

    /// The units' relative shares by [`UnitId::index`] are these from now on, 0 for none.
    fn set_shares(&mut self, _shares: &[u64]) {}

    /// A request of `unit` has just been put into the queue.
    fn arrived(&mut self, _now: Time, _unit: UnitId, _queue: &Queue) {}

    /// What to do, with a channel free and the head at sector `head`.
    fn choose(&mut self, now: Time, head: u64, queue: &Queue) -> Choice;

    /// What was chosen in the turn of `unit` is handed to the device, in which it may wait.
    fn handed(&mut self, _now: Time, _unit: UnitId, _request: &Request) {}

    /// A request of `unit` goes as the kernel's, at that unit's expense.
    fn owe(&mut self, _now: Time, _unit: UnitId, _request: &Request, _queue: &Queue) {}

    /// `unit` has another weight among its siblings.
    fn weigh(&mut self, _unit: UnitId, _weight: u32) {}

    /// A request that was handed to the device begins.
    fn began(&mut self, _now: Time, _transfer: &Transfer) {}

    /// A transfer has ended.
    fn ended(&mut self, _now: Time, _transfer: &Transfer, _queue: &Queue) {}
}

/// The policy of that name, for a disk with such mechanics.
pub(super) fn of(order: DiskOrder, disk: &Disk, shares: &[u64], mechanics: &Mechanics) -> Box<dyn Order> {
    match order {
        DiskOrder::Position => Box::new(position::Position),
        DiskOrder::Isolation => Box::new(isolation::Isolation::new(shares, disk.half_life_ns)),
        DiskOrder::Fair => Box::new(fair::Fair::new(shares, disk.half_life_ns, disk.threshold_sectors)),
        DiskOrder::Batched => Box::new(batched::Batched::new(shares, mechanics.reposition_ns())),
        DiskOrder::Linux => Box::new(Linux::new(&[], true, mechanics)),
        DiskOrder::Yfq => Box::new(yfq::Yfq::new(shares, mechanics.channels().max(disk.batch as usize))),
    }
}
