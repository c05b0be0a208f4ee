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

/// A disk's model with its state.
#[derive(Debug, Clone)]
pub(super) enum Mechanics {
    /// With an arm.
    Hp97560(Box<Hp97560>),
    /// Without: a time per request, another per sector, so many at a time.
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
