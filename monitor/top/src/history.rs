//! The pictures of the last ten minutes.
//!
//! Problem: a picture of 1,000 busy units has about a megabyte, and 600 of them would be most of a small
//! machine's memory.
//!
//! Algorithm: consecutive pictures share the units that did not change. If there are still more than
//! [`FRAMES_MAX`] pictures or [`BYTES_MAX`] bytes, the picture goes whose neighbours are closest in time. The
//! last [`RECENT`] pictures stay.
//!
//! Properties: the ten minutes are always covered, evenly except for the last pictures.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use commonhold_ledger::{Finding, Wait};
use commonhold_protocol::monitor::{MachineView, MonitorReply, UnitView};

/// The length of the history.
const AGE_MAX: Duration = Duration::from_secs(600);
/// The most pictures that are kept.
const FRAMES_MAX: usize = 600;
/// The latest pictures, which are not thinned out.
const RECENT: usize = 60;
/// The most memory that units in pictures use, estimated, in bytes.
const BYTES_MAX: usize = 64 << 20;
/// The time over which rates are computed.
const RATES_OVER: Duration = Duration::from_secs(5);

/// A picture.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its number, which increases from picture to picture.
    pub(crate) number: u64,
    /// The connection that it came over: totals of different connections cannot be compared.
    connection: u32,
    /// When it came, since the program started.
    pub(crate) received: Duration,
    /// See [`MonitorReply::at_ns`].
    pub(crate) at_ns: u64,
    pub(crate) machine: Arc<MachineView>,
    /// In the contract's order.
    pub(crate) units: Vec<Arc<UnitView>>,
}

/// The pictures, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    frames: VecDeque<Arc<Frame>>,
    next: u64,
    connection: u32,
    /// The estimated memory of all units in `frames`; shared ones count once.
    bytes: usize,
}

impl History {
    /// Adds a picture.
    pub(crate) fn push(&mut self, picture: &MonitorReply, received: Duration) {
        let before = self.frames.back();
        let known: HashMap<&str, &Arc<UnitView>> =
            before.iter().flat_map(|frame| &frame.units).map(|unit| (unit.unit.as_str(), unit)).collect();
        let mut bytes = 0;
        let share = |unit: &UnitView| match known.get(unit.unit.as_str()) {
            Some(same) if ***same == *unit => Arc::clone(same),
            _ => {
                bytes += size(unit);
                Arc::new(unit.clone())
            }
        };
        let units = picture.units.iter().map(share).collect();
        let machine = match (before, &picture.machine) {
            (Some(before), Some(machine)) if *before.machine == *machine => Arc::clone(&before.machine),
            (Some(before), None) => Arc::clone(&before.machine),
            (_, machine) => Arc::new(machine.clone().unwrap_or_default()),
        };
        let (number, connection) = (self.next, self.connection);
        let frame = Frame { number, connection, received, at_ns: picture.at_ns, machine, units };
        self.frames.push_back(Arc::new(frame));
        self.next += 1;
        self.bytes += bytes;
        self.trim(received);
    }

    /// Notes that the connection ended: the next picture's totals may have begun anew.
    pub(crate) fn disconnected(&mut self) {
        self.connection += 1;
    }

    fn trim(&mut self, now: Duration) {
        while self.frames.front().is_some_and(|frame| now.saturating_sub(frame.received) >= AGE_MAX) {
            self.remove(0);
        }
        while self.frames.len() > 2 && (self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX) {
            let gap = |index: &usize| {
                self.frames[index + 1].received.saturating_sub(self.frames[index - 1].received)
            };
            let older = self.frames.len().saturating_sub(RECENT).max(2);
            self.remove((1..older).min_by_key(gap).unwrap_or(0));
        }
    }

    /// Removes a picture. Only consecutive pictures share a unit, so that it is freed unless a neighbour has
    /// it.
    fn remove(&mut self, index: usize) {
        let Some(frame) = self.frames.remove(index) else { return };
        let neighbours = [index.checked_sub(1), Some(index)].into_iter().flatten();
        let neighbours = neighbours.filter_map(|index| self.frames.get(index));
        let kept: HashSet<_> = neighbours.flat_map(|frame| &frame.units).map(Arc::as_ptr).collect();
        let freed = frame.units.iter().filter(|unit| !kept.contains(&Arc::as_ptr(unit)));
        self.bytes = self.bytes.saturating_sub(freed.map(|unit| size(unit)).sum());
    }

    /// The latest picture.
    pub(crate) fn latest(&self) -> Option<&Arc<Frame>> {
        self.frames.back()
    }

    /// The picture `steps` pictures after the one with this number, which may be gone; the first or the last
    /// picture if there are not as many.
    pub(crate) fn step(&self, number: u64, steps: isize) -> Option<&Arc<Frame>> {
        let last = self.frames.len().checked_sub(1)?;
        self.frames.get(self.index(number).saturating_add_signed(steps).min(last))
    }

    fn index(&self, number: u64) -> usize {
        self.frames.partition_point(|frame| frame.number < number).min(self.frames.len().saturating_sub(1))
    }

    /// The picture to compare with `frame` for rates: about [`RATES_OVER`] earlier, over the same connection.
    pub(crate) fn base(&self, frame: &Frame) -> Option<&Arc<Frame>> {
        let is_comparable =
            |other: &&Arc<Frame>| other.connection == frame.connection && other.at_ns < frame.at_ns;
        let earlier = || self.frames.iter().take(self.index(frame.number)).rev().take_while(is_comparable);
        let ns = u64::try_from(RATES_OVER.as_nanos()).unwrap_or(u64::MAX);
        earlier().find(|other| frame.at_ns - other.at_ns >= ns).or_else(|| earlier().last())
    }
}

/// The memory of a unit, estimated, in bytes.
fn size(unit: &UnitView) -> usize {
    let waits = unit.waits.len() * (size_of::<Wait>() + 16);
    let findings = unit.findings.len() * (size_of::<Finding>() + 16);
    let classes: usize = unit.call_backs.values().map(|calls| 64 + 16 * calls.classes.len()).sum();
    size_of::<UnitView>() + unit.unit.len() + unit.gangs.len() + waits + findings + classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(at_s: u64, units: &[(&str, u32)]) -> MonitorReply {
        let unit = |(path, processes): &(&str, u32)| UnitView {
            unit: (*path).to_owned(),
            processes: *processes,
            ..UnitView::default()
        };
        MonitorReply {
            whole: true,
            at_ns: at_s * 1_000_000_000,
            machine: Some(MachineView::default()),
            units: units.iter().map(unit).collect(),
            ..MonitorReply::default()
        }
    }

    fn pushed(history: &mut History, at_s: u64, units: &[(&str, u32)]) {
        history.push(&picture(at_s, units), Duration::from_secs(at_s));
    }

    #[test]
    fn unchanged_units_are_shared() {
        let mut history = History::default();
        pushed(&mut history, 1, &[("a", 1), ("b", 1)]);
        pushed(&mut history, 2, &[("a", 1), ("b", 2)]);
        let [first, second] = [0, 1].map(|i| &history.frames[i].units);
        assert!(Arc::ptr_eq(&first[0], &second[0]) && !Arc::ptr_eq(&first[1], &second[1]));
        assert!(Arc::ptr_eq(&history.frames[0].machine, &history.frames[1].machine));
        assert_eq!(history.bytes, 3 * size(&first[0]));
        history.remove(0);
        assert_eq!(history.bytes, 2 * size(&history.frames[0].units[0]));
    }

    #[test]
    fn ten_minutes_are_kept_at_any_pace() {
        let mut history = History::default();
        for s in 0..2_000 {
            pushed(&mut history, s, &[("a", u32::try_from(s).unwrap())]);
        }
        assert_eq!(history.frames.len(), 600);
        assert_eq!(history.frames[0].received, Duration::from_secs(1_400));
        // Of four a second, older ones are dropped.
        let mut history = History::default();
        for quarter in 0..8_000_u64 {
            history.push(&picture(quarter, &[]), Duration::from_millis(250 * quarter));
        }
        assert!((300..=600).contains(&history.frames.len()), "{}", history.frames.len());
        let times: Vec<u128> = history.frames.iter().map(|frame| frame.received.as_millis()).collect();
        assert!(times[times.len() - 1] - times[0] > 595_000, "{times:?}");
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 3_000), "{times:?}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = History::default();
        let paths: Vec<String> = (0..2_000).map(|i| format!("unit{i}")).collect();
        for s in 0..300 {
            let units: Vec<(&str, u32)> = paths.iter().map(|path| (path.as_str(), s)).collect();
            pushed(&mut history, u64::from(s), &units);
        }
        assert!(history.bytes <= BYTES_MAX, "{}", history.bytes);
        assert_eq!(history.frames[0].received, Duration::ZERO);
        assert_eq!(history.latest().unwrap().number, 299);
    }

    #[test]
    fn steps_and_bases_stay_within_the_history() {
        let mut history = History::default();
        assert!(history.step(0, 1).is_none() && history.latest().is_none());
        for s in 0..10 {
            pushed(&mut history, s, &[]);
        }
        let number = |steps| history.step(5, steps).unwrap().number;
        assert_eq!((number(-1), number(1), number(-100), number(100)), (4, 6, 0, 9));
        let base = |history: &History| history.base(history.latest().unwrap()).map(|frame| frame.number);
        assert_eq!(base(&history), Some(4));
        // A restarted daemon's totals begin anew.
        history.disconnected();
        pushed(&mut history, 10, &[]);
        assert_eq!(base(&history), None);
        pushed(&mut history, 11, &[]);
        assert_eq!(base(&history), Some(10));
        let first = Arc::clone(&history.frames[0]);
        assert!(history.base(&first).is_none());
    }
}
