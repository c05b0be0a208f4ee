//! How long each unit is stalled on disks, as the kernel's io.pressure reports it: a clock for each unit,
//! which runs while at least one of the unit's tasks waits for a disk.
//!
//! A unit has one clock for all disks. Sub-units have their own clocks, and do not count in their parent's.
//!
//! Properties (tested): two tasks that wait at the same time count once. Cost: constant.

use commonhold_contract::UnitId;

use crate::Time;

/// All units' clocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stalls {
    units: Vec<Clock>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Clock {
    /// The number of tasks that wait now, and since when there has been at least one.
    waiting: u32,
    since: Time,
    /// The time stalled before that.
    stalled_ns: Time,
}

impl Stalls {
    /// Clocks for `units` units without waiting tasks.
    pub fn new(units: usize) -> Stalls {
        Stalls { units: vec![Clock::default(); units] }
    }

    /// The number of units.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// A task of `unit` begins to wait for a disk. Ignored if there is no such unit.
    pub fn wait_begins(&mut self, now: Time, unit: UnitId) {
        if let Some(clock) = self.units.get_mut(unit.index()) {
            if clock.waiting == 0 {
                clock.since = now;
            }
            clock.waiting += 1;
        }
    }

    /// A task of `unit` ends its wait.
    pub fn wait_ends(&mut self, now: Time, unit: UnitId) {
        if let Some(clock) = self.units.get_mut(unit.index()) {
            debug_assert!(clock.waiting > 0, "a wait ends that did not begin");
            if clock.waiting == 1 {
                clock.stalled_ns += now.saturating_sub(clock.since);
            }
            clock.waiting = clock.waiting.saturating_sub(1);
        }
    }

    /// The time up to `now`, in ns, in which at least one task of `unit` itself waited.
    pub fn stalled_ns(&self, now: Time, unit: UnitId) -> Time {
        self.units.get(unit.index()).map_or(0, |clock| {
            let running = if clock.waiting > 0 { now.saturating_sub(clock.since) } else { 0 };
            clock.stalled_ns + running
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_count_once() {
        let (a, b) = (UnitId(2), UnitId(3));
        let mut stalls = Stalls::new(4);
        stalls.wait_begins(10, a);
        stalls.wait_begins(20, a);
        assert_eq!(stalls.stalled_ns(25, a), 15);
        stalls.wait_ends(30, a);
        stalls.wait_ends(50, a);
        stalls.wait_begins(60, a);
        // From 10 to 50, and from 60 on.
        assert_eq!((stalls.stalled_ns(60, a), stalls.stalled_ns(65, a)), (40, 45));
        assert_eq!(stalls.stalled_ns(65, b), 0);
        stalls.wait_begins(65, UnitId(9));
        assert_eq!((stalls.stalled_ns(99, UnitId(9)), stalls.units()), (0, 4));
    }
}
