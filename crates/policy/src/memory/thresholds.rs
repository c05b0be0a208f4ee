//! Thresholds that several stages share. Each is the denominator of a fraction.

/// A unit is near its bound when less than 1/8 of the bound is left.
pub(super) const NEAR_PART: u64 = 8;
/// A unit owes nothing while it exceeds its allowance by at most 1/512 of the machine: a kernel hands out
/// pages in batches.
pub(super) const SLACK_PART: u64 = 512;
