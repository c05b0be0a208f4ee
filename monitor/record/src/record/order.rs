//! Puts events in the order of time. Each CPU's events arrive in order, but the CPUs' buffers are read one
//! after another.

use commonhold_recording::TimedEvent;

/// How long an event is held back, in ns: an earlier event of another CPU may still be on its way into a
/// buffer for this long. An interrupt or a hypervisor may delay it.
const HOLD_NS: u64 = 20_000_000;

/// Events that are held back.
#[derive(Debug, Default)]
pub(super) struct Order {
    held: Vec<TimedEvent>,
    /// The time of the last event that was released.
    released_ns: u64,
    /// Events that came after a later one had been released. They are left out.
    pub(super) disordered: u64,
}

impl Order {
    /// Where events are added.
    pub(super) fn arrivals(&mut self) -> &mut Vec<TimedEvent> {
        &mut self.held
    }

    /// The events that are older than [`HOLD_NS`] at `now_ns`, in order.
    pub(super) fn release(&mut self, now_ns: u64) -> Vec<TimedEvent> {
        self.release_up_to(now_ns.saturating_sub(HOLD_NS))
    }

    /// All events, in order.
    pub(super) fn release_all(&mut self) -> Vec<TimedEvent> {
        self.release_up_to(u64::MAX)
    }

    fn release_up_to(&mut self, until_ns: u64) -> Vec<TimedEvent> {
        // Stable: events of one CPU at the same time stay in order.
        self.held.sort_by_key(|event| event.at_ns);
        let later = self.held.partition_point(|event| event.at_ns <= until_ns);
        let held = self.held.split_off(later);
        let mut released = std::mem::replace(&mut self.held, held);
        let late = released.partition_point(|event| event.at_ns < self.released_ns);
        released.drain(..late);
        self.disordered += late as u64;
        self.released_ns = released.last().map_or(self.released_ns, |event| event.at_ns);
        released
    }
}

#[cfg(test)]
mod tests {
    use commonhold_recording::Event;

    use super::*;

    fn event(at_ns: u64, child: u32) -> TimedEvent {
        TimedEvent { at_ns, event: Event::Fork { parent: 1, child } }
    }

    #[test]
    fn events_of_several_buffers_are_merged() {
        let mut order = Order::default();
        order.arrivals().extend([event(10, 1), event(30, 2), event(HOLD_NS + 50, 3)]);
        order.arrivals().extend([event(20, 4), event(30, 5)]);
        let released = order.release(HOLD_NS + 40);
        assert_eq!(released, [event(10, 1), event(20, 4), event(30, 2), event(30, 5)]);
        order.arrivals().push(event(40, 6));
        assert_eq!(order.release_all(), [event(40, 6), event(HOLD_NS + 50, 3)]);
        assert_eq!(order.disordered, 0);
    }

    #[test]
    fn an_event_that_is_too_late_is_counted_and_left_out() {
        let mut order = Order::default();
        order.arrivals().push(event(50, 1));
        order.release_all();
        order.arrivals().extend([event(49, 2), event(50, 3)]);
        assert_eq!((order.release_all(), order.disordered), (vec![event(50, 3)], 1));
    }
}
