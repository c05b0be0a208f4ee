//! The daemon's history on disk: a ring of samples a second, a minute and an hour, and accounts over any
//! period.
//!
//! A [`Record`] has what each unit had, used and waited for *over an interval*, so the account of a period is
//! the sum of its records. [`Writer`] appends records to the three rings of a folder. [`Reader`] reads them,
//! also while a daemon writes and when none runs.
//!
//! ```no_run
//! let reader = commonhold_history::open("/var/lib/commonhold/history".as_ref())?;
//! let (mut total, mut skipped) = (None, Vec::new());
//! for record in reader.finest(1_795_000_000_000, 1_795_003_600_000) {
//!     match record {
//!         Ok(record) => commonhold_history::add(&mut total, record),
//!         Err(lost) => skipped.push(lost),
//!     }
//! }
//! # Ok::<(), commonhold_history::OpenError>(())
//! ```
//!
//! `docs/history.md` describes the format, its bounds, and what happens to damaged files.

mod folder;
mod frame;
mod reader;
mod record;
mod sample;
#[cfg(test)]
mod testing;
mod wire;
mod writer;

pub use folder::OpenError;
pub use reader::{Reader, Records, Skipped, open};
pub use record::{
    CallBacks, CpuUse, DiskUse, MachineUse, MemoryUse, Moment, Record, UnitUse, UserUse, add, sum,
};
pub use sample::{Sample, UsersCpu};
pub use writer::{BYTES_DEFAULT, BYTES_MIN, Options, Writer};

/// The length of the intervals of a ring's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// A record a second, kept for an hour of recording.
    Second,
    /// A record a minute, kept for a week of recording.
    Minute,
    /// A record an hour, kept for a year of recording.
    Hour,
}

impl Resolution {
    /// Every resolution, the finest first.
    pub const ALL: [Resolution; 3] = [Resolution::Second, Resolution::Minute, Resolution::Hour];

    /// The name in file names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Resolution::Second => "second",
            Resolution::Minute => "minute",
            Resolution::Hour => "hour",
        }
    }

    /// The length of an interval in milliseconds.
    pub const fn ms(self) -> u64 {
        match self {
            Resolution::Second => 1_000,
            Resolution::Minute => 60_000,
            Resolution::Hour => 3_600_000,
        }
    }

    /// The number of records that the ring keeps at least, unless its bound of bytes is reached first.
    pub const fn records_kept(self) -> u64 {
        match self {
            Resolution::Second => 3_600,
            Resolution::Minute => 7 * 24 * 60,
            Resolution::Hour => 365 * 24,
        }
    }

    /// The resolution from whose records those of this one are summed; `None` for the finest.
    pub const fn finer(self) -> Option<Resolution> {
        match self {
            Resolution::Second => None,
            Resolution::Minute => Some(Resolution::Second),
            Resolution::Hour => Some(Resolution::Minute),
        }
    }
}
