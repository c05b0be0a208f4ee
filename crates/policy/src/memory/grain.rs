//! How finely memory is looked at.

/// A unit is near its bound that uses all but this part of it.
pub(super) const NEAR_PART: u64 = 8;
/// A unit that is beyond its allowance by no more than this part of the machine owes nothing: a kernel hands out pages
/// in batches.
pub(super) const SLACK_PART: u64 = 512;
