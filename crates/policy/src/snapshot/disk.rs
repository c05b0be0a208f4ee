//! What a backend observed of disks, and what it can order.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use crate::time::Time;

/// What a backend can order for disks. By default nothing, as in the simulator, whose disks schedule by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskMeans {
    /// Units can be held to rates (io.max).
    pub caps: bool,
    /// Units can be given weights, on disks that heed them ([`DiskFacts::weighs`]).
    pub weights: bool,
    /// The machine schedules its disks by units' shares itself, as the kernel of seed 000 does (section 3.3): it is told
    /// the shares, and holds units to nothing else.
    pub shares: bool,
    /// Rates are held by stopping all of a unit: so they are for limits alone, and for ceilings where it is known what
    /// the disk carries; no unit is held to a share by them.
    pub limits_only: bool,
}

impl DiskMeans {
    /// Nothing can be ordered.
    pub const NONE: DiskMeans = DiskMeans { caps: false, weights: false, shares: false, limits_only: false };
}

/// What a unit's own processes did to one disk since the backend began. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUse {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, write-back of what it wrote to files included where the file system says whose it was.
    pub written_bytes: u64,
    /// Requests, reading and writing.
    pub requests: u64,
    /// Time in which some task of it was stalled for a disk, whichever, in nanoseconds; `None` where the kernel does not tell.
    pub stalled_ns: Option<u64>,
}

impl DiskUse {
    /// Bytes both ways.
    pub fn bytes(self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// What happened since `before`.
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

/// What a device did in all, for all users, since it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceUse {
    /// Requests that ended. Never goes back.
    pub requests: u64,
    /// What these transferred. Never goes back.
    pub bytes: u64,
    /// How long these took in the device, all together, in nanoseconds. Never goes back.
    pub taken_ns: u64,
    /// Time in which at least one request was in it, in nanoseconds. Never goes back.
    pub busy_ns: u64,
    /// Requests that are in it now.
    pub under_way: u64,
}

/// One disk at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskFacts {
    /// The kernel's name for it: `sda`.
    pub name: String,
    /// When these facts were read, on the backend's clock.
    pub at: Time,
    /// Whether it heeds weights: io.cost is on, or BFQ schedules it.
    pub weighs: bool,
    /// What it can transfer, in bytes per second, where that was measured.
    pub bytes_per_s: Option<u64>,
    /// What the device did; `None` where the kernel does not tell.
    pub device: Option<DeviceUse>,
    /// What units did to it, by [`UnitId::index`]; units beyond its end did nothing.
    pub units: Vec<DiskUse>,
}

impl DiskFacts {
    /// What a unit did.
    pub fn unit(&self, unit: UnitId) -> DiskUse {
        self.units.get(unit.index()).copied().unwrap_or_default()
    }
}
