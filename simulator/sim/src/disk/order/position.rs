//! Scheduling by head position alone: C-SCAN.
//!
//! Algorithm: the request closest at or ahead of the head goes next; if no request is ahead, the first on the
//! disk. Requests for the same sector go by arrival. Units are ignored, and delayed writes are requests like
//! others.
//!
//! Properties: short seeks. A request waits at most for the rest of the present sweep and the next sweep up
//! to its sector, since every request moves the head on by at least a sector. It waits for one more sweep
//! each time that a transfer passes over its first sector: a transfer that begins before that sector, or
//! there and arrived earlier.
//!
//! Limits: a sweep may transfer the whole disk. A unit that reads continuously just ahead of the head delays
//! all other requests meanwhile. Cost: O(log n) per unit with waiting requests.
//!
//! Source: seed 000, section 3.3, first paragraph.

use super::{Choice, Order};
use crate::Time;
use crate::disk::queue::Queue;

/// C-SCAN.
#[derive(Debug)]
pub(super) struct Position;

impl Order for Position {
    fn defers(&self) -> bool {
        false
    }

    fn choose(&mut self, _now: Time, head: u64, queue: &Queue) -> Choice {
        queue.sweep(queue.units(), head).into()
    }
}
