//! What units had in each window of time, and how long tasks waited for a CPU that woke: what disciplines are compared by.
//!
//! A window is as long as the time between two entries of rounds. It ends between two events. CPUs are accounted up to its
//! end first, so no slice is counted in a window that it only ends in.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::Engine;
use crate::Time;
use crate::outcome::WakesOutcome;
use crate::scenario::Workload;

/// CPU time by window.
#[derive(Debug)]
pub(super) struct Windows {
    every_ns: Time,
    ends: Time,
    units: Vec<OfUnit>,
}

#[derive(Debug, Clone, Default)]
struct OfUnit {
    used: Time,
    /// Millionths of a CPU, times ns, up to the beginning of the window.
    entitled_before: u128,
    used_ns: Vec<Time>,
    entitled_ns: Vec<Time>,
}

impl Windows {
    pub(super) fn new(units: usize, every_ns: Time) -> Windows {
        Windows { every_ns, ends: every_ns, units: vec![OfUnit::default(); units] }
    }

    /// A task of a unit had a CPU for so long.
    pub(super) fn used(&mut self, unit: u32, span: Time) {
        self.units[unit as usize].used += span;
    }
}

/// How long waits were. One is counted among those that are as long, but for less than a sixty-fourth.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    by_length: BTreeMap<Time, u64>,
    count: u64,
    longest: Time,
    /// Answers in time, and later.
    met: u64,
    missed: u64,
}

impl Waits {
    fn enter(&mut self, span: Time) {
        let spare = span.checked_ilog2().unwrap_or(0).saturating_sub(6);
        *self.by_length.entry(span >> spare << spare).or_default() += 1;
        self.count += 1;
        self.longest = self.longest.max(span);
    }

    /// The quantile at `thousandths`.
    fn within(&self, thousandths: u64) -> Time {
        let wanted = (self.count * thousandths).div_ceil(1_000).max(1);
        let mut so_far = 0;
        let reaches = |(_, count): &(&Time, &u64)| {
            so_far += **count;
            so_far >= wanted
        };
        self.by_length.iter().find(reaches).map_or(0, |(span, _)| *span)
    }

    fn outcome(&self, job: &str) -> WakesOutcome {
        WakesOutcome {
            job: job.to_owned(),
            count: self.count,
            median_ns: self.within(500),
            p99_ns: self.within(990),
            max_ns: self.longest,
            met: self.met,
            missed: self.missed,
        }
    }
}

/// Jobs whose tasks woke, in the workload's order.
pub(super) fn wakes(workload: &Workload, waits: &[Waits]) -> Vec<WakesOutcome> {
    let jobs = workload.jobs.iter().zip(waits).filter(|(_, waits)| waits.count > 0);
    jobs.map(|(job, waits)| waits.outcome(&job.name)).collect()
}

impl Engine<'_> {
    /// Windows that end before something happens, or when it does, end.
    pub(super) fn end_windows(&mut self, at: Time) {
        while self.windows.ends <= at {
            self.now = self.windows.ends;
            for cpu in 0..self.cpus.len() {
                self.account(cpu);
            }
            for unit in 0..self.windows.units.len() {
                let entitled = self.units.entitled_sum(unit, self.now);
                let window = &mut self.windows.units[unit];
                window.used_ns.push(core::mem::take(&mut window.used));
                let millionths = entitled - window.entitled_before;
                window.entitled_ns.push(Time::try_from(millionths / 1_000_000).unwrap_or(Time::MAX));
                window.entitled_before = entitled;
            }
            self.windows.ends += self.windows.every_ns;
        }
    }

    /// What a unit had in each window, and what its own processes were entitled to, without its sub-units.
    pub(super) fn windows_of(&self, id: UnitId) -> (Vec<Time>, Vec<Time>) {
        let contract = &self.scenario.contract;
        let mut entitled = self.windows.units[id.index()].entitled_ns.clone();
        for sub in contract.ids().filter(|sub| contract.unit(*sub).parent == Some(id)) {
            for (own, its) in entitled.iter_mut().zip(&self.windows.units[sub.index()].entitled_ns) {
                *own = own.saturating_sub(*its);
            }
        }
        (self.windows.units[id.index()].used_ns.clone(), entitled)
    }

    pub(super) fn window_ns(&self) -> Time {
        self.windows.every_ns
    }

    /// A task sleeps, or ends: it has answered what it woke for.
    pub(super) fn count_answer(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        let Some(since) = task.up_since.take() else { return };
        let job = self.instances[task.instance as usize].job as usize;
        let Some(deadline_ns) = self.scenario.workload.jobs[job].deadline_ns else { return };
        let waits = &mut self.wakes[job];
        if self.now - since <= deadline_ns { waits.met += 1 } else { waits.missed += 1 }
    }

    /// At the end of the run: counts tasks past their deadline that have not answered as late.
    pub(super) fn count_answers_that_are_late(&mut self) {
        for id in 0..super::number(self.tasks.len()) {
            let task = &self.tasks[id as usize];
            let job = self.instances[task.instance as usize].job as usize;
            let due = task.up_since.zip(self.scenario.workload.jobs[job].deadline_ns);
            if due.is_some_and(|(since, deadline_ns)| self.now - since > deadline_ns) {
                self.count_answer(id);
            }
        }
    }

    /// A task that woke has a CPU.
    pub(super) fn count_wake(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if core::mem::take(&mut task.woke) {
            let job = self.instances[task.instance as usize].job;
            self.wakes[job as usize].enter(self.now - task.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_by_hand() {
        let mut waits = Waits::default();
        for span in 1..=100 {
            waits.enter(span * 1_000);
        }
        // The 50th and the 99th of a hundred; 50,000 is below 2^16, and counted by 2^9; 99,000 by 2^10.
        let WakesOutcome { count, median_ns, p99_ns, max_ns, .. } = waits.outcome("job");
        assert_eq!((count, median_ns, p99_ns, max_ns), (100, 50_000 >> 9 << 9, 99_000 >> 10 << 10, 100_000));
        assert_eq!(Waits::default().within(500), 0);
    }
}
