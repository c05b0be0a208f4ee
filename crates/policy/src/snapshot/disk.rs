//! The facts that a backend observed about disks, and the orders that it can carry out for disks.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use crate::time::Time;

/// The kinds of order about disks that a backend can carry out. The default is no kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskMeans {
    /// Units can be limited to rates (io.max).
    pub caps: bool,
    /// Units can be weighted, on disks that honour weights ([`DiskFacts::weighs`]).
    pub weights: bool,
    /// The machine schedules its disks by units' shares, like the kernel of seed 000 (section 3.3). It is
    /// given the shares, and needs no other order.
    pub shares: bool,
    /// A rate is enforced by stopping the whole unit. So the policy uses rates only for limits, and for
    /// ceilings on disks of known bandwidth, but not to enforce shares.
    pub limits_only: bool,
}

impl DiskMeans {
    /// No means.
    pub const NONE: DiskMeans = DiskMeans { caps: false, weights: false, shares: false, limits_only: false };
}

/// Transfers of a unit's own processes on one disk since the backend started. Monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUse {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, including write-back that the file system attributes to it.
    pub written_bytes: u64,
    /// Requests, reading and writing.
    pub requests: u64,
    /// Time in which any of its tasks was stalled for any disk, in nanoseconds; `None` if the kernel does not
    /// report it.
    pub stalled_ns: Option<u64>,
}

impl DiskUse {
    /// Bytes read and written.
    pub fn bytes(self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// The difference to an earlier sample.
    #[must_use]
    pub fn since(self, before: DiskUse) -> DiskUse {
        DiskUse {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            requests: self.requests.saturating_sub(before.requests),
            stalled_ns: self
                .stalled_ns
                .zip(before.stalled_ns)
                .map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// A device's counters over all users since it appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceUse {
    /// Completed requests. Monotone.
    pub requests: u64,
    /// Bytes that they transferred. Monotone.
    pub bytes: u64,
    /// The sum of their service times, in nanoseconds. Monotone.
    pub taken_ns: u64,
    /// Time with at least one request in flight, in nanoseconds. Monotone.
    pub busy_ns: u64,
    /// Requests in flight.
    pub under_way: u64,
}

/// A disk at one sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskFacts {
    /// The kernel's name for it: `sda`.
    pub name: String,
    /// When it was sampled, on the backend's clock.
    pub at: Time,
    /// Whether it honours weights: io.cost is on, or BFQ schedules it.
    pub weighs: bool,
    /// Measured capacity in bytes per second, if known.
    pub bytes_per_s: Option<u64>,
    /// The device's counters; `None` if the kernel does not report them.
    pub device: Option<DeviceUse>,
    /// Transfers indexed by [`UnitId::index`]; units beyond its end had none.
    pub units: Vec<DiskUse>,
}

impl DiskFacts {
    /// A unit's transfers.
    pub fn unit(&self, unit: UnitId) -> DiskUse {
        self.units.get(unit.index()).copied().unwrap_or_default()
    }
}
