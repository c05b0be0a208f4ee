//! Reports of simulated runs: one scenario, the same scenario under several schemes, disciplines or
//! contracts, sweeps over values of its files, replays of recordings, and the claims of the published papers,
//! as text, JSON, CSV and HTML.
//!
//! Pure, as `commonhold-report` is: data in, text out. The same data give the same bytes on any machine.
// Text is put together from pieces all over this crate; `write!` to a `String` would return results that mean
// nothing.
#![allow(clippy::format_push_string, clippy::format_collect)]

pub mod claims;
pub mod contracts;
pub mod disciplines;
pub mod estimate;
pub mod figures;
mod intervals;
mod lines;
pub mod occupancy;
pub mod schemes;
pub mod simulation;
pub mod studies;
pub mod sweep;
pub mod what_if;
