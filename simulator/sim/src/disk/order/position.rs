//! By head position alone: C-SCAN.
//!
//! Algorithm: the request closest at or ahead of the head goes next. When none is ahead, the first on the disk goes
//! next. Equal sectors go by arrival. The unit that asks does not matter, and delayed writes are requests like others.
//!
//! Properties: short seeks. A request waits at most for the rest of one sweep and its part of the next, since every
//! request moves the head on by at least a sector. It waits for one sweep more each time that a transfer passes over
//! its first sector: one that begins before that sector, or there and came earlier.
//!
//! Limits: a sweep is as long as a whole disk's transfer. A unit that reads on and on just ahead of the head keeps all
//! others waiting meanwhile. Cost: O(log n) per unit that waits.
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
