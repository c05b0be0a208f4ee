//! The part of a period that records cover, and why they do not cover the rest.

use commonhold_history::Record;
use commonhold_report::figures::duration;
use jiff::tz::TimeZone;

use super::when::{Period, words};

/// The shortest time without records that is shown as a gap, in nanoseconds. Turns of the daemon, and so
/// records, may be some seconds apart.
const GAP_NS: u64 = 5_000_000_000;
/// The smallest setting of the clock that is shown, in milliseconds.
const CLOCK_SET_MS: u64 = 2_000;

/// What happened between two records, or within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// There is no record between two times, in milliseconds since 1970.
    NoRecord(u64, u64),
    /// The same, between two records of which one follows the other: a daemon ended, and another started.
    NoDaemon(u64, u64),
    /// No daemon ran for a part of the interval that begins at a time, in nanoseconds.
    NoDaemonIn(u64, u64),
    /// The machine was suspended for a part of the interval that begins at a time, in nanoseconds.
    SuspendedIn(u64, u64),
    /// The clock was set by this number of milliseconds, at a time by the clock then.
    ClockSet(i64, u64),
}

impl Event {
    pub(super) fn line(self, zone: &TimeZone) -> String {
        let part = |from, ns| format!("for {} of the interval from {}", duration(ns), words(from, zone));
        match self {
            Event::NoRecord(from, to) => format!("there is no record from {}", span(from, to, zone)),
            Event::NoDaemon(from, to) => format!("no daemon ran from {}", span(from, to, zone)),
            Event::NoDaemonIn(from, ns) => format!("no daemon ran {}", part(from, ns)),
            Event::SuspendedIn(from, ns) => format!("the machine was suspended {}", part(from, ns)),
            Event::ClockSet(ms, at) => {
                let by = duration(ms.unsigned_abs().saturating_mul(1_000_000));
                let direction = if ms < 0 { "back" } else { "forward" };
                format!("the clock was set {direction} by {by} at {}", words(at, zone))
            }
        }
    }

    /// [`Event::line`] as a sentence.
    pub(super) fn sentence(self, zone: &TimeZone) -> String {
        let mut line = self.line(zone) + ".";
        line[..1].make_ascii_uppercase();
        line
    }

    /// Where records are missing between two times, these times.
    pub(super) fn gap(self) -> Option<(u64, u64)> {
        match self {
            Event::NoRecord(from, to) | Event::NoDaemon(from, to) => Some((from, to)),
            _ => None,
        }
    }
}

/// `2026-11-28 02:10:00 to 07:45:10`.
fn span(from: u64, to: u64, zone: &TimeZone) -> String {
    let (first, last) = (words(from, zone), words(to, zone));
    let last = match (first.split_once(' '), last.split_once(' ')) {
        (Some((a, _)), Some((b, time))) if a == b => time.to_owned(),
        _ => last,
    };
    format!("{first} to {last}")
}

/// The part of a period that records cover.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    first_ms: Option<u64>,
    /// The last record, without its units.
    last: Option<Record>,
    pub(super) covered_ns: u64,
    pub(super) events: Vec<Event>,
}

impl Coverage {
    /// Adds the next record; returns what happened before it.
    pub(super) fn add(&mut self, record: &Record) -> Vec<Event> {
        let mut events = Vec::new();
        let set = |ms: i64, at| {
            let is_set = ms.unsigned_abs() >= CLOCK_SET_MS;
            is_set.then_some(Event::ClockSet(ms, at))
        };
        if let Some(last) = &self.last {
            let (from, to) = (last.end.wall_ms, record.start.wall_ms);
            let clock_set = set(last.end.clock_set_ms(&record.start), from);
            // A sum of the reader's own has no number, and follows the record before it.
            let is_next = record.number == 0 || [last.number + 1, last.through + 1].contains(&record.number);
            if last.end.until_ns(&record.start) >= GAP_NS {
                events.extend(match is_next {
                    true => Some(Event::NoDaemon(from, to)),
                    // After the clock was set, records between them may be of another period.
                    false => clock_set.is_none().then_some(Event::NoRecord(from, to)),
                });
            }
            events.extend(clock_set);
        }
        let from = record.start.wall_ms;
        let without = record.missing_ns().saturating_sub(record.suspended_ns);
        events.extend((without >= GAP_NS).then_some(Event::NoDaemonIn(from, without)));
        let suspended = record.suspended_ns;
        events.extend((suspended >= GAP_NS).then_some(Event::SuspendedIn(from, suspended)));
        events.extend(set(record.start.clock_set_ms(&record.end), from));
        self.first_ms.get_or_insert(from);
        self.last = Some(Record { units: Vec::new(), ..*record });
        self.covered_ns = self.covered_ns.saturating_add(record.duration_ns);
        self.events.extend(&events);
        events
    }

    /// Adds the gaps at the beginning and the end of the period.
    pub(super) fn finish(&mut self, Period { from_ms, to_ms }: Period) {
        let gap = |from: u64, to: u64| {
            (to.saturating_sub(from) >= GAP_NS / 1_000_000).then_some(Event::NoRecord(from, to))
        };
        let first = gap(from_ms, self.first_ms.unwrap_or(to_ms));
        self.events.splice(..0, first);
        self.events.extend(self.last.as_ref().and_then(|last| gap(last.end.wall_ms, to_ms)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_history::Moment;

    const S: u64 = 1_000_000_000;

    /// A record of some seconds; `wall_ahead_s`: how far the wall clock is ahead of the time since boot.
    fn record(number: u64, seconds: [u64; 2], boot: u64, wall_ahead_s: u64) -> Record {
        let [start, end] =
            seconds.map(|s| Moment { wall_ms: (wall_ahead_s + s) * 1_000, boot, boot_ns: s * S });
        Record { number, start, end, duration_ns: end.boot_ns - start.boot_ns, ..Record::default() }
    }

    fn lines(records: &[Record]) -> Vec<String> {
        let mut coverage = Coverage::default();
        let events = records.iter().flat_map(|record| coverage.add(record));
        events.map(|event| event.line(&TimeZone::UTC)).collect()
    }

    #[test]
    fn no_daemon_ran_only_where_one_started() {
        let day = 86_400;
        let first = record(7, [10, 11], 1, day);
        // Another daemon, in the same boot and in the next; an hour and then minutes.
        let no_daemon = ["no daemon ran from 1970-01-02 00:00:11 to 00:01:40"];
        assert_eq!(lines(&[first.clone(), record(8, [100, 101], 1, day)]), no_daemon);
        assert_eq!(lines(&[first.clone(), record(8, [3, 4], 2, day + 97)]), no_daemon);
        let hour = Record { through: 90, ..first.clone() };
        assert_eq!(lines(&[hour, record(91, [100, 101], 1, day)]), no_daemon);
        // Records are lost.
        let lost = [first.clone(), record(97, [100, 101], 1, day)];
        assert_eq!(lines(&lost), ["there is no record from 1970-01-02 00:00:11 to 00:01:40"]);
        // Between them the clock was set back by a day, and then the period began anew.
        let again = [first, record(97, [100, 101], 1, 0)];
        assert_eq!(lines(&again), ["the clock was set back by 24.0 h at 1970-01-02 00:00:11"]);
    }

    #[test]
    fn a_suspended_machine_is_no_missing_daemon() {
        let slept = Record { duration_ns: S, suspended_ns: 59 * S, ..record(2, [11, 71], 1, 0) };
        let said = ["the machine was suspended for 59.0 s of the interval from 1970-01-01 00:00:11"];
        assert_eq!(lines(&[record(1, [10, 11], 1, 0), slept]), said);
        // A sum that has both.
        let both = Record { duration_ns: 30 * S, suspended_ns: 10 * S, ..record(0, [0, 60], 1, 0) };
        let said = [
            "no daemon ran for 20.0 s of the interval from 1970-01-01 00:00:00",
            "the machine was suspended for 10.0 s of the interval from 1970-01-01 00:00:00",
        ];
        assert_eq!(lines(&[both]), said);
    }
}
