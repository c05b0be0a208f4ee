//! How long a request takes on a disk, by the disk's model.
//!
//! Three models stand behind one interface: an HP 97560 (see [`hp97560`](super::hp97560)), a disk with a fixed time
//! per request, and a solid-state disk that serves several requests side by side. Only the first depends on what came
//! before. All times are whole nanoseconds.

use super::hp97560::{self, Hp97560};
use crate::Time;
use crate::scenario::DiskModel;

/// What one request takes, by what it takes it for, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Service {
    /// The controller, or all that a disk without mechanics takes per request.
    pub(super) overhead_ns: Time,
    /// Moving the arm, or switching heads.
    pub(super) seek_ns: Time,
    /// Waiting for the first sector to come round.
    pub(super) rotation_ns: Time,
    /// Sectors passing, or going over the bus.
    pub(super) transfer_ns: Time,
}

impl Service {
    /// All together.
    pub(super) fn total_ns(self) -> Time {
        self.overhead_ns + self.seek_ns + self.rotation_ns + self.transfer_ns
    }
}

/// What one request takes with nothing else to do, one way, in ns: near the last one, and anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) near_ns: Time,
    pub(super) far_ns: Time,
}

/// What requests are expected to take, in the terms of the kernel's io.cost: so much each, and so much by size. These
/// are means, and do not depend on the disk's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Costs {
    pub(super) read: Way,
    pub(super) write: Way,
    /// Sectors, and the time that they take on one channel.
    pub(super) span: (u64, Time),
    pub(super) channels: u64,
}

impl Costs {
    /// What a request takes of the disk's time, all channels together, rounded up.
    pub(super) fn of(&self, sectors: u64, write: bool, near: bool) -> Time {
        let way = if write { self.write } else { self.read };
        let each_ns = if near { way.near_ns } else { way.far_ns };
        let (span, span_ns) = self.span;
        (each_ns * span + sectors * span_ns).div_ceil(span * self.channels)
    }

    /// What the disk carries in requests of 1 MiB, one behind the other, in bytes per second, whichever way is slower.
    pub(super) fn bytes_per_s(&self) -> u64 {
        const LARGE: u64 = 2_048;
        let takes_ns = self.of(LARGE, false, true).max(self.of(LARGE, true, true)).max(1);
        LARGE * 512 * 1_000_000_000 / takes_ns
    }
}

/// A disk's model with its state.
#[derive(Debug, Clone)]
pub(super) enum Mechanics {
    /// With an arm.
    Hp97560(Box<Hp97560>),
    /// Without an arm: a time per request, a time per sector, several channels side by side.
    Flat {
        /// Per read.
        read_ns: Time,
        /// Per write.
        write_ns: Time,
        /// Per sector.
        sector_ns: Time,
        /// Sectors in all.
        sectors: u64,
        /// Requests side by side.
        channels: u32,
    },
}

impl Mechanics {
    /// A disk at rest.
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

    /// How many sectors it has.
    pub(super) fn sectors(&self) -> u64 {
        match *self {
            Mechanics::Hp97560(_) => hp97560::SECTORS,
            Mechanics::Flat { sectors, .. } => sectors,
        }
    }

    /// How many requests it serves side by side.
    pub(super) fn channels(&self) -> usize {
        match *self {
            Mechanics::Hp97560(_) => 1,
            Mechanics::Flat { channels, .. } => channels as usize,
        }
    }

    /// What it takes to turn to a distant sector, beyond what every request takes; 0 where distance does not matter.
    pub(super) fn reposition_ns(&self) -> Time {
        match self {
            Mechanics::Hp97560(drive) => drive.reposition_ns(),
            Mechanics::Flat { .. } => 0,
        }
    }

    /// What requests are expected to take. Of a disk with an arm, reads near the last one are read ahead of, beside
    /// which the controller works; one elsewhere waits for the arm and half a revolution.
    pub(super) fn costs(&self) -> Costs {
        match self {
            Mechanics::Hp97560(drive) => {
                let overhead_ns = drive.overhead_ns();
                let far_ns = overhead_ns + drive.reposition_ns();
                Costs {
                    read: Way { near_ns: 0, far_ns },
                    write: Way { near_ns: overhead_ns, far_ns },
                    span: drive.cylinder(),
                    channels: 1,
                }
            }
            Mechanics::Flat { read_ns, write_ns, sector_ns, channels, .. } => {
                let way = |ns| Way { near_ns: ns, far_ns: ns };
                let (read, write) = (way(*read_ns), way(*write_ns));
                Costs { read, write, span: (1, *sector_ns), channels: u64::from(*channels) }
            }
        }
    }

    /// Whether it has an arm, so that a request's place matters.
    pub(super) fn has_arm(&self) -> bool {
        matches!(self, Mechanics::Hp97560(_))
    }

    /// Carries out a request that starts at `now`.
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
