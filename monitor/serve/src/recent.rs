//! The samples of the last ten minutes, so that a page that is opened now has a past.

use std::collections::{BTreeMap, VecDeque};

use commonhold_protocol::monitor::{Gauge, MonitorReply, UnitView};

use crate::history::{Sample, Series, is_at_top};

/// How far back samples reach, in milliseconds.
const REACH_MS: u64 = 600_000;

/// The most samples of units that are kept. With more than 400 units, they reach less far back.
const SAMPLES_MAX: usize = 1 << 18;

/// A ring of samples.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    moments: VecDeque<Moment>,
    /// The samples in all of `moments`.
    count: usize,
    last: BTreeMap<String, [u64; 3]>,
    last_ns: u64,
}

#[derive(Debug)]
struct Moment {
    at_ms: u64,
    units: BTreeMap<Box<str>, Sample>,
}

impl Recent {
    /// Adds a picture. One that is older than the last, by the clock, replaces all that it contradicts.
    pub(crate) fn add(&mut self, picture: &MonitorReply) {
        let elapsed_ns = picture.at_ns.saturating_sub(self.last_ns);
        let last = std::mem::take(&mut self.last);
        let sample = |unit: &UnitView| sample(unit, last.get(&unit.unit), elapsed_ns);
        let units: BTreeMap<Box<str>, Sample> =
            picture.units.iter().map(|unit| (unit.unit.as_str().into(), sample(unit))).collect();
        self.last = picture.units.iter().map(|unit| (unit.unit.clone(), waited(unit))).collect();
        self.last_ns = picture.at_ns;
        while self.moments.back().is_some_and(|moment| moment.at_ms >= picture.wall_ms) {
            self.count -= self.moments.pop_back().map_or(0, |moment| moment.units.len());
        }
        self.count += units.len();
        self.moments.push_back(Moment { at_ms: picture.wall_ms, units });
        let oldest = picture.wall_ms.saturating_sub(REACH_MS);
        while self.moments.len() > 1
            && (self.count > SAMPLES_MAX || self.moments.front().is_some_and(|moment| moment.at_ms < oldest))
        {
            self.count -= self.moments.pop_front().map_or(0, |moment| moment.units.len());
        }
    }

    /// The samples of a unit, or of the units at the top together, of a period in milliseconds since 1970, at
    /// least `step_ms` apart. The moments are the same for all units, so that samples can be subtracted.
    pub(crate) fn series(&self, unit: Option<&str>, from_ms: u64, to_ms: u64, step_ms: u64) -> Series {
        let mut series = Series::default();
        let mut next = from_ms;
        for moment in self.moments.iter().filter(|moment| moment.at_ms <= to_ms) {
            if moment.at_ms < next {
                continue;
            }
            // Pictures are never exactly a second apart.
            next = moment.at_ms + step_ms - step_ms / 2;
            let sample = if let Some(path) = unit {
                moment.units.get(path).copied()
            } else {
                let at_top = moment.units.iter().filter(|(path, _)| is_at_top(path));
                at_top.map(|(_, sample)| *sample).reduce(Sample::plus)
            };
            if let Some(sample) = sample {
                series.push(moment.at_ms, sample);
            }
        }
        series
    }
}

/// A unit's waiting time for CPUs, memory and disks.
fn waited(unit: &UnitView) -> [u64; 3] {
    [unit.totals.cpu_waited_ns, unit.totals.memory_waited_ns, unit.totals.disk_waited_ns]
}

#[allow(clippy::cast_precision_loss, reason = "plots need no more than 24 bits")]
fn sample(unit: &UnitView, waited_before: Option<&[u64; 3]>, elapsed_ns: u64) -> Sample {
    let gauge = |gauge: Option<Gauge>, of: fn(Gauge) -> u64| gauge.map(|gauge| of(gauge) as f32);
    let cpus = |micro: u64| Some(micro as f32 / 1e6);
    let rates = waited_before.filter(|_| elapsed_ns > 0).map(|before| {
        let now = waited(unit);
        [0, 1, 2].map(|index: usize| now[index].saturating_sub(before[index]) as f32 / elapsed_ns as f32)
    });
    Sample {
        cpu_used: cpus(unit.cpu.using),
        cpu_entitled: cpus(unit.cpu.entitled),
        cpu_lent: cpus(unit.cpu.lent),
        cpu_borrowed: cpus(unit.cpu.borrowed),
        memory_used: gauge(unit.memory, |gauge| gauge.using),
        memory_entitled: gauge(unit.memory, |gauge| gauge.entitled),
        disk_used: gauge(unit.disk, |gauge| gauge.using),
        disk_entitled: gauge(unit.disk, |gauge| gauge.entitled),
        cpu_waiting: rates.map(|rates| rates[0]),
        memory_waiting: rates.map(|rates| rates[1]),
        disk_waiting: rates.map(|rates| rates[2]),
    }
}

#[cfg(test)]
mod tests {
    use crate::picture;

    use super::*;

    #[test]
    fn samples_are_bounded_in_time_and_ordered_by_the_clock() {
        let mut recent = Recent::default();
        let mut picture = picture::sample();
        let start_ms = picture.wall_ms;
        let unit = picture.units[0].unit.clone();
        for second in 0..1_000 {
            picture.wall_ms = start_ms + second * 1_000;
            picture.at_ns += 1_000_000_000;
            picture.units[0].totals.cpu_waited_ns += 500_000_000;
            recent.add(&picture);
        }
        let end_ms = picture.wall_ms;
        let all = recent.series(Some(&unit), 0, u64::MAX, 1_000);
        assert_eq!(all.t.len(), 601);
        assert_eq!(all.cpu_waiting.last(), Some(&Some(0.5)));
        assert!(recent.series(Some(&unit), end_ms - 60_000, end_ms, 10_000).t.len() <= 13);
        assert!(recent.series(Some("no such unit"), 0, u64::MAX, 1_000).t.is_empty());
        let sum = recent.series(None, 0, u64::MAX, 1_000);
        // 1.13 of physics, 6.1 of students and 0.12 of shared.
        assert!((sum.cpu_used[0].unwrap() - 7.35).abs() < 1e-5);
        assert_eq!(sum.t, all.t);
        // The clock is set back.
        picture.wall_ms = end_ms - 100_000;
        recent.add(&picture);
        let t = recent.series(Some(&unit), 0, u64::MAX, 1_000).t;
        assert!(t.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(recent.count, recent.moments.iter().map(|moment| moment.units.len()).sum::<usize>());
    }
}
