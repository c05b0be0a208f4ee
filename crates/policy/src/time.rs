//! Moments and spans.

/// Nanoseconds since an arbitrary start that never goes back: the backend's clock.
pub type Time = u64;

/// One millisecond, in [`Time`]'s measure.
pub const MS: Time = 1_000_000;
