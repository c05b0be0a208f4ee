//! A disk's figures: per unit, and in total.
//!
//! They are sums, not means: the report computes means, and a check can add them up. There are two mean queue
//! lengths: over time, and as arriving requests find the queue. Tables 4 and 5 of seed 000 do not say which
//! they have, so both are kept.

use commonhold_contract::UnitId;
use commonhold_policy::DiskUse;

use super::mechanics::Service;
use crate::Time;

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// One unit's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitFigures {
    /// The number of completed requests. Delayed writes count for [`UnitId::SHARED`].
    pub requests: u64,
    /// The sectors of these requests.
    pub sectors: u64,
    /// The sectors charged to the unit: of its own requests, and its part of delayed writes.
    pub charged_sectors: u64,
    /// The charged sectors that were written.
    pub written_sectors: u64,
    /// The requests' time from arrival to start, in ns.
    pub waited_ns: Time,
    /// The requests' time from start to completion, in ns.
    pub served_ns: Time,
    /// The longest wait of a request, in ns.
    pub waited_ns_max: Time,
}

impl UnitFigures {
    /// The figures in the policy's type.
    pub(super) fn used(&self) -> DiskUse {
        DiskUse {
            read_bytes: (self.charged_sectors - self.written_sectors) * SECTOR,
            written_bytes: self.written_sectors * SECTOR,
            requests: self.requests,
            stalled_ns: None,
        }
    }
}

/// A disk's figures since the beginning, up to its last event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// By [`UnitId::index`]; units beyond the end had no request.
    pub units: Vec<UnitFigures>,
    /// The number of submitted requests.
    pub arrivals: u64,
    /// Time with at least one request in service, in ns.
    pub busy_ns: Time,
    /// The time that requests waited, summed over requests, in ns. Divided by the elapsed time: the mean
    /// number waiting.
    pub queued_ns: Time,
    /// The time that requests were in service, summed over requests, in ns. Divided by the elapsed time: the
    /// mean number in service.
    pub in_service_ns: Time,
    /// The number of waiting requests at each arrival, summed over arrivals.
    pub found_waiting: u64,
    /// The number of requests in service at each arrival, summed over arrivals.
    pub found_in_service: u64,
    /// The controller's overhead, in ns; on a disk without mechanics, the time per request.
    pub overhead_ns: Time,
    /// Time of moving the arm and switching heads, in ns.
    pub seek_ns: Time,
    /// Time of waiting for a sector to pass the head, in ns.
    pub rotation_ns: Time,
    /// Time of transfer, in ns.
    pub transfer_ns: Time,
    /// The time of the last event.
    last: Time,
}

impl Figures {
    /// One unit's figures.
    pub fn unit(&self, unit: UnitId) -> UnitFigures {
        self.units.get(unit.index()).copied().unwrap_or_default()
    }

    /// The sums over all units; for the longest wait, the maximum.
    pub fn total(&self) -> UnitFigures {
        self.units.iter().fold(UnitFigures::default(), |sum, unit| UnitFigures {
            requests: sum.requests + unit.requests,
            sectors: sum.sectors + unit.sectors,
            charged_sectors: sum.charged_sectors + unit.charged_sectors,
            written_sectors: sum.written_sectors + unit.written_sectors,
            waited_ns: sum.waited_ns + unit.waited_ns,
            served_ns: sum.served_ns + unit.served_ns,
            waited_ns_max: sum.waited_ns_max.max(unit.waited_ns_max),
        })
    }

    /// The time with at least one request in service, up to `now`. `serves`: whether requests are in service
    /// since the last event.
    pub(super) fn busy_ns_at(&self, now: Time, serves: bool) -> Time {
        self.busy_ns + if serves { now.saturating_sub(self.last) } else { 0 }
    }

    /// Adds the time since the last event to the integrals, with this number of requests waiting and in
    /// service.
    pub(super) fn advance_time(&mut self, now: Time, waiting: u64, in_service: u64) {
        let span = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        self.queued_ns += span * waiting;
        self.in_service_ns += span * in_service;
        self.busy_ns += if in_service > 0 { span } else { 0 };
    }

    /// Checks that the times are consistent.
    pub(super) fn check(&self) -> Result<(), String> {
        let served_ns = self.total().served_ns;
        match (self.busy_ns, self.in_service_ns) {
            (busy_ns, _) if busy_ns > self.last => Err(format!("busy for {busy_ns} ns of {}", self.last)),
            (_, in_service_ns) if in_service_ns < served_ns => {
                Err(format!("{served_ns} ns of service in {in_service_ns} ns"))
            }
            _ => Ok(()),
        }
    }

    /// Counts an arrival, with this number of requests waiting and in service.
    pub(super) fn arrive(&mut self, waiting: u64, in_service: u64) {
        self.arrivals += 1;
        self.found_waiting += waiting;
        self.found_in_service += in_service;
    }

    /// Counts a completion.
    pub(super) fn finish(&mut self, unit: UnitId, sectors: u64, waited_ns: Time, service: Service) {
        let entry = self.entry(unit);
        entry.requests += 1;
        entry.sectors += sectors;
        entry.waited_ns += waited_ns;
        entry.served_ns += service.total_ns();
        entry.waited_ns_max = entry.waited_ns_max.max(waited_ns);
        self.overhead_ns += service.overhead_ns;
        self.seek_ns += service.seek_ns;
        self.rotation_ns += service.rotation_ns;
        self.transfer_ns += service.transfer_ns;
    }

    /// Charges sectors to a unit.
    pub(super) fn charge(&mut self, unit: UnitId, sectors: u64, write: bool) {
        let entry = self.entry(unit);
        entry.charged_sectors += sectors;
        entry.written_sectors += if write { sectors } else { 0 };
    }

    fn entry(&mut self, unit: UnitId) -> &mut UnitFigures {
        if unit.index() >= self.units.len() {
            self.units.resize(unit.index() + 1, UnitFigures::default());
        }
        &mut self.units[unit.index()]
    }
}
