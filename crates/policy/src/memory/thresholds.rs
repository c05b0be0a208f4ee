//! Thresholds that several stages share, as fractions.

/// A unit is near its bound when less than this fraction of the bound is left.
pub(super) const NEAR_PART: u64 = 8;
/// A unit owes nothing while it exceeds its allowance by at most this fraction of the machine: a kernel hands out
/// pages in batches.
pub(super) const SLACK_PART: u64 = 512;
