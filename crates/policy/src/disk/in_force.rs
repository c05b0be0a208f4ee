//! Caps and weights in force for one unit on one disk.

use crate::plan::Reason;

/// The lowest rate to which a unit is throttled, in bytes per second: a few small requests.
pub const RATE_MIN: u64 = 64 << 10;

/// The rates at which a unit may read and write at most, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskCap {
    /// Reading.
    pub read: u64,
    /// Writing.
    pub write: u64,
}

/// A cap or a weight in force, with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order<T> {
    pub(super) value: T,
    pub(super) because: Reason,
}
