//! `/api/history`: past samples of a unit, or of all units together.

// Plots need no more than single precision.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::path::PathBuf;

use commonhold_history::{Record, Resolution, UnitUse};
use serde::{Deserialize, Serialize};

/// The most samples in an answer.
const POINTS_MAX: u64 = 2_000;

/// A question.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Query {
    /// The unit's path; `None`: the sum of the units at the top.
    pub(crate) unit: Option<String>,
    /// Begin and end of the period, in seconds since 1970.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The time between samples, in seconds.
    #[serde(default = "one")]
    pub(crate) step: u64,
}

fn one() -> u64 {
    1
}

impl Query {
    /// Checks the question's bounds.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to write.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.from >= self.to {
            return Err(format!("from={} must be less than to={}", self.from, self.to));
        }
        if self.to > u64::from(u32::MAX) * 2 {
            return Err(format!("to={} is not a number of seconds since 1970", self.to));
        }
        let least = (self.to - self.from).div_ceil(POINTS_MAX).max(1);
        if self.step < least {
            return Err(format!(
                "step={} gives more than {POINTS_MAX} samples; write step={least}",
                self.step
            ));
        }
        Ok(())
    }
}

/// A sample of a unit, sub-units included: CPUs; bytes of memory; bytes per second of all disks; and waiting
/// time in seconds per second, for CPUs summed over threads. `None` if it is not known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) cpu_used: Option<f32>,
    pub(crate) cpu_entitled: Option<f32>,
    pub(crate) cpu_lent: Option<f32>,
    pub(crate) cpu_borrowed: Option<f32>,
    pub(crate) memory_used: Option<f32>,
    pub(crate) memory_entitled: Option<f32>,
    pub(crate) disk_used: Option<f32>,
    pub(crate) disk_entitled: Option<f32>,
    pub(crate) cpu_waiting: Option<f32>,
    pub(crate) memory_waiting: Option<f32>,
    pub(crate) disk_waiting: Option<f32>,
}

impl Sample {
    /// The sum. A value that only one sample has is taken as it is.
    pub(crate) fn plus(self, other: Sample) -> Sample {
        let sum = |a: Option<f32>, b: Option<f32>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Sample {
            cpu_used: sum(self.cpu_used, other.cpu_used),
            cpu_entitled: sum(self.cpu_entitled, other.cpu_entitled),
            cpu_lent: sum(self.cpu_lent, other.cpu_lent),
            cpu_borrowed: sum(self.cpu_borrowed, other.cpu_borrowed),
            memory_used: sum(self.memory_used, other.memory_used),
            memory_entitled: sum(self.memory_entitled, other.memory_entitled),
            disk_used: sum(self.disk_used, other.disk_used),
            disk_entitled: sum(self.disk_entitled, other.disk_entitled),
            cpu_waiting: sum(self.cpu_waiting, other.cpu_waiting),
            memory_waiting: sum(self.memory_waiting, other.memory_waiting),
            disk_waiting: sum(self.disk_waiting, other.disk_waiting),
        }
    }
}

/// Whether no unit encloses the one with this path.
pub(crate) fn is_at_top(path: &str) -> bool {
    !path.contains('/')
}

/// Samples by column, as plots need them: each column has an entry for each of `t`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Series {
    /// When, in seconds since 1970.
    pub(crate) t: Vec<f64>,
    pub(crate) cpu_used: Vec<Option<f32>>,
    pub(crate) cpu_entitled: Vec<Option<f32>>,
    pub(crate) cpu_lent: Vec<Option<f32>>,
    pub(crate) cpu_borrowed: Vec<Option<f32>>,
    pub(crate) memory_used: Vec<Option<f32>>,
    pub(crate) memory_entitled: Vec<Option<f32>>,
    pub(crate) disk_used: Vec<Option<f32>>,
    pub(crate) disk_entitled: Vec<Option<f32>>,
    pub(crate) cpu_waiting: Vec<Option<f32>>,
    pub(crate) memory_waiting: Vec<Option<f32>>,
    pub(crate) disk_waiting: Vec<Option<f32>>,
}

impl Series {
    /// Adds a sample; `at_ms` is in milliseconds since 1970.
    pub(crate) fn push(&mut self, at_ms: u64, sample: Sample) {
        #[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
        self.t.push(at_ms as f64 / 1e3);
        self.cpu_used.push(sample.cpu_used);
        self.cpu_entitled.push(sample.cpu_entitled);
        self.cpu_lent.push(sample.cpu_lent);
        self.cpu_borrowed.push(sample.cpu_borrowed);
        self.memory_used.push(sample.memory_used);
        self.memory_entitled.push(sample.memory_entitled);
        self.disk_used.push(sample.disk_used);
        self.disk_entitled.push(sample.disk_entitled);
        self.cpu_waiting.push(sample.cpu_waiting);
        self.memory_waiting.push(sample.memory_waiting);
        self.disk_waiting.push(sample.disk_waiting);
    }
}

/// The samples that the daemon's history on disk has of a period; `None` if no history can be read here, or
/// it has nothing of the period. It may block. The answer has at most one sample for each step.
pub(crate) fn of_daemon(histories: &[PathBuf], query: &Query) -> Option<Series> {
    let reader = histories.iter().find_map(|folder| commonhold_history::open(folder).ok())?;
    let resolution = match query.step {
        0..60 => Resolution::Second,
        60..3_600 => Resolution::Minute,
        _ => Resolution::Hour,
    };
    let (step_ms, mut series) = (query.step.max(1) * 1_000, Series::default());
    let mut sum: Option<Record> = None;
    for record in reader.records(resolution, query.from * 1_000, query.to * 1_000).flatten() {
        let is_full = |sum: &Record| record.start.wall_ms.saturating_sub(sum.start.wall_ms) >= step_ms;
        if sum.as_ref().is_some_and(is_full) {
            series.add_record(sum.take(), query.unit.as_deref());
        }
        commonhold_history::add(&mut sum, record);
    }
    series.add_record(sum, query.unit.as_deref());
    (!series.t.is_empty()).then_some(series)
}

impl Series {
    /// Adds a record of the history as one sample, unless it is empty.
    fn add_record(&mut self, record: Option<Record>, unit: Option<&str>) {
        let Some(record) = record.filter(|record| record.duration_ns > 0) else { return };
        let seconds = record.duration_ns as f64 / 1e9;
        let sample = if let Some(path) = unit {
            sample(&record.unit(path).cloned().unwrap_or_default(), seconds)
        } else {
            let at_top = record.units.iter().filter(|unit| is_at_top(&unit.unit));
            at_top.fold(Sample::default(), |sum, unit| sum.plus(sample(unit, seconds)))
        };
        self.push(record.end.wall_ms, sample);
    }
}

fn sample(unit: &UnitUse, seconds: f64) -> Sample {
    let per_second = |amount: f64| Some((amount / seconds) as f32);
    let (cpu, memory, disk) = (unit.cpu, unit.memory, unit.disk);
    let ns = |ns: u64| per_second(ns as f64 / 1e9);
    let bytes = |byte_ms: u128| per_second(byte_ms as f64 / 1e3);
    Sample {
        cpu_used: ns(cpu.used_ns),
        cpu_entitled: ns(cpu.entitled_ns),
        cpu_lent: ns(cpu.lent_ns),
        cpu_borrowed: ns(cpu.borrowed_ns),
        memory_used: memory.and_then(|memory| bytes(memory.used_byte_ms)),
        memory_entitled: memory.and_then(|memory| bytes(memory.entitled_byte_ms)),
        disk_used: disk.and_then(|disk| per_second((disk.read_bytes + disk.written_bytes) as f64)),
        disk_entitled: disk.and_then(|disk| per_second(disk.entitled_bytes as f64)),
        cpu_waiting: ns(cpu.waited_ns),
        memory_waiting: memory.and_then(|memory| ns(memory.waited_ns)),
        disk_waiting: disk.and_then(|disk| ns(disk.waited_ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_bounded() {
        let check = |from, to, step| Query { unit: None, from, to, step }.check();
        assert!(check(0, 600, 1).is_ok());
        assert!(check(0, 2_000, 1).is_ok());
        assert!(check(600, 600, 1).unwrap_err().contains("less than"));
        assert!(check(0, 600, 0).unwrap_err().contains("step=1"));
        assert!(check(0, 86_400, 1).unwrap_err().contains("step=44"));
        assert!(check(0, 86_400, 44).is_ok());
        assert!(check(0, u64::MAX, u64::MAX).is_err());
    }
}
