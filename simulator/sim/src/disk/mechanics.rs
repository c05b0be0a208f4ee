//! The service time of a request, by the disk's model.
//!
//! There are three models with one interface: an HP 97560 (see [`hp97560`](super::hp97560)), a disk with a
//! fixed time per request, and a solid-state disk that serves several requests at once. Only the first has a
//! state, so that times depend on earlier requests. All times are whole nanoseconds.

use super::hp97560::{self, Hp97560};
use crate::Time;
use crate::scenario::DiskModel;

/// The service time of a request by component, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Service {
    /// The controller's overhead; on a disk without mechanics, the whole time per request.
    pub(super) overhead_ns: Time,
    /// Moving the arm, or switching heads.
    pub(super) seek_ns: Time,
    /// Waiting for the first sector to pass the head.
    pub(super) rotation_ns: Time,
    /// Transferring the sectors, from the platters or over the bus.
    pub(super) transfer_ns: Time,
}

impl Service {
    /// The sum of the components.
    pub(super) fn total_ns(self) -> Time {
        self.overhead_ns + self.seek_ns + self.rotation_ns + self.transfer_ns
    }
}

/// The fixed cost per request in one direction, in ns: near the unit's last request, and elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestCost {
    pub(super) near_ns: Time,
    pub(super) far_ns: Time,
}

/// A linear cost model of requests, as the kernel's io.cost has one: a cost per request and a cost per
/// sector. The costs are means, and do not depend on the disk's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Costs {
    pub(super) read: RequestCost,
    pub(super) write: RequestCost,
    /// A number of sectors, and the time to transfer them on one channel.
    pub(super) span: (u64, Time),
    pub(super) channels: u64,
}

impl Costs {
    /// The cost of a request: its expected time divided by the number of channels, rounded up.
    pub(super) fn of(&self, sectors: u64, write: bool, near: bool) -> Time {
        let per_request = if write { self.write } else { self.read };
        let request_ns = if near { per_request.near_ns } else { per_request.far_ns };
        let (span, span_ns) = self.span;
        (request_ns * span + sectors * span_ns).div_ceil(span * self.channels)
    }

    /// The disk's bandwidth in sequential requests of 1 MiB, in bytes per second, in the slower direction.
    pub(super) fn bytes_per_s(&self) -> u64 {
        const LARGE: u64 = 2_048;
        let cost_ns = self.of(LARGE, false, true).max(self.of(LARGE, true, true)).max(1);
        LARGE * 512 * 1_000_000_000 / cost_ns
    }
}

/// A disk's model with its state.
#[derive(Debug, Clone)]
pub(super) enum Mechanics {
    /// A disk with an arm.
    Hp97560(Box<Hp97560>),
    /// A disk without an arm: a time per request, a time per sector, and parallel channels.
    Flat {
        /// Per read.
        read_ns: Time,
        /// Per write.
        write_ns: Time,
        /// Per sector.
        sector_ns: Time,
        /// The number of sectors.
        sectors: u64,
        /// How many requests it serves at once.
        channels: u32,
    },
}

impl Mechanics {
    /// An idle disk.
    pub(super) fn new(model: &DiskModel) -> Mechanics {
        match *model {
            DiskModel::Hp97560 { scale } => Mechanics::Hp97560(Box::new(Hp97560::new(scale))),
            DiskModel::Fixed { access_ns, sector_ns, sectors } => {
                Mechanics::Flat { read_ns: access_ns, write_ns: access_ns, sector_ns, sectors, channels: 1 }
            }
            DiskModel::Ssd { channels, read_ns, write_ns, sector_ns, sectors } => {
                Mechanics::Flat { read_ns, write_ns, sector_ns, sectors, channels: channels.max(1) }
            }
        }
    }

    /// The number of sectors.
    pub(super) fn sectors(&self) -> u64 {
        match *self {
            Mechanics::Hp97560(_) => hp97560::SECTORS,
            Mechanics::Flat { sectors, .. } => sectors,
        }
    }

    /// How many requests it serves at once.
    pub(super) fn channels(&self) -> usize {
        match *self {
            Mechanics::Hp97560(_) => 1,
            Mechanics::Flat { channels, .. } => channels as usize,
        }
    }

    /// The mean extra time of a request to a distant sector; 0 if distance does not matter.
    pub(super) fn reposition_ns(&self) -> Time {
        match self {
            Mechanics::Hp97560(drive) => drive.reposition_ns(),
            Mechanics::Flat { .. } => 0,
        }
    }

    /// The cost model. On a disk with an arm, reads near the last read are read ahead, which overlaps with
    /// the controller's overhead; a request elsewhere waits for the arm and half a revolution.
    pub(super) fn costs(&self) -> Costs {
        match self {
            Mechanics::Hp97560(drive) => {
                let overhead_ns = drive.overhead_ns();
                let far_ns = overhead_ns + drive.reposition_ns();
                Costs {
                    read: RequestCost { near_ns: 0, far_ns },
                    write: RequestCost { near_ns: overhead_ns, far_ns },
                    span: drive.cylinder(),
                    channels: 1,
                }
            }
            Mechanics::Flat { read_ns, write_ns, sector_ns, channels, .. } => {
                let anywhere = |ns| RequestCost { near_ns: ns, far_ns: ns };
                let (read, write) = (anywhere(*read_ns), anywhere(*write_ns));
                Costs { read, write, span: (1, *sector_ns), channels: u64::from(*channels) }
            }
        }
    }

    /// Whether the disk has an arm, so that a request's position matters.
    pub(super) fn has_arm(&self) -> bool {
        matches!(self, Mechanics::Hp97560(_))
    }

    /// Serves a request that starts at `now`, and returns its time.
    pub(super) fn service(&mut self, now: Time, lba: u64, sectors: u64, write: bool) -> Service {
        match self {
            Mechanics::Hp97560(drive) => drive.service(now, lba, sectors, write),
            Mechanics::Flat { read_ns, write_ns, sector_ns, .. } => Service {
                overhead_ns: if write { *write_ns } else { *read_ns },
                transfer_ns: sectors * *sector_ns,
                ..Service::default()
            },
        }
    }
}
