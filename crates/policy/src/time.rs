//! Moments and spans.

/// A moment or a span, in nanoseconds. Moments are readings of the backend's clock, which is monotonic and
/// starts at an arbitrary time.
pub type Time = u64;

/// One millisecond, in nanoseconds.
pub const MS: Time = 1_000_000;
