//! The figures by which disciplines are compared: each unit's CPU time and entitlement in each window of
//! time, and how long tasks that woke up waited for a CPU.
//!
//! A window is as long as the time between two samples of rounds. At its end, CPUs are accounted up to that
//! moment, so a slice that spans two windows is divided between them.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::Engine;
use crate::Time;
use crate::outcome::WakesOutcome;
use crate::scenario::Workload;
use commonhold_ledger::latencies::Latencies;

/// CPU time by window.
#[derive(Debug)]
pub(super) struct Windows {
    every_ns: Time,
    /// The end of the present window.
    ends: Time,
    units: Vec<UnitWindows>,
}

#[derive(Debug, Clone, Default)]
struct UnitWindows {
    /// CPU time in the present window so far.
    used: Time,
    /// The integral of the entitlement up to the beginning of the window, in millionths of a CPU times ns.
    entitled_before: u128,
    /// By past window: the CPU time used, and the CPU time entitled to.
    used_ns: Vec<Time>,
    entitled_ns: Vec<Time>,
}

impl Windows {
    pub(super) fn new(units: usize, every_ns: Time) -> Windows {
        Windows { every_ns, ends: every_ns, units: vec![UnitWindows::default(); units] }
    }

    /// Adds CPU time of one of a unit's tasks.
    pub(super) fn used(&mut self, unit: u32, span: Time) {
        self.units[unit as usize].used += span;
    }
}

/// The waits of a job's tasks after they woke up.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    pub(super) latencies: Latencies,
    /// The times from a wake-up until the task blocked again or ended.
    pub(super) responses: Latencies,
    /// How many deadlines were met, and missed.
    met: u64,
    missed: u64,
}

impl Waits {
    fn outcome(&self, job: &str) -> WakesOutcome {
        WakesOutcome {
            job: job.to_owned(),
            count: self.latencies.count(),
            median_ns: self.latencies.quantile_ns(500).unwrap_or(0),
            p99_ns: self.latencies.quantile_ns(990).unwrap_or(0),
            max_ns: self.latencies.longest_ns(),
            met: self.met,
            missed: self.missed,
        }
    }
}

/// The waits after wake-ups of each job whose tasks woke up, in the workload's order.
pub(super) fn wakes(workload: &Workload, waits: &[Waits]) -> Vec<WakesOutcome> {
    let jobs = workload.jobs.iter().zip(waits).filter(|(_, waits)| waits.latencies.count() > 0);
    jobs.map(|(job, waits)| waits.outcome(&job.name)).collect()
}

impl Engine<'_> {
    /// Ends the windows up to the next event's time `at`.
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

    /// By window: the CPU time of a unit's own processes, and what they were entitled to, both without
    /// sub-units.
    pub(super) fn windows_of(&self, id: UnitId) -> (Vec<Time>, Vec<Time>) {
        let contract = &self.scenario.contract;
        let mut entitled = self.windows.units[id.index()].entitled_ns.clone();
        for sub in contract.ids().filter(|sub| contract.unit(*sub).parent == Some(id)) {
            for (own, of_sub) in entitled.iter_mut().zip(&self.windows.units[sub.index()].entitled_ns) {
                *own = own.saturating_sub(*of_sub);
            }
        }
        (self.windows.units[id.index()].used_ns.clone(), entitled)
    }

    pub(super) fn window_ns(&self) -> Time {
        self.windows.every_ns
    }

    /// A task sleeps or ends, and so has completed the request that it woke up for: counts its deadline as
    /// met or missed.
    pub(super) fn count_answer(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        let Some(since) = task.up_since.take() else { return };
        let job = self.instances[task.instance as usize].job as usize;
        let waits = &mut self.wakes[job];
        waits.responses.add(self.now - since);
        let Some(deadline_ns) = self.scenario.workload.jobs[job].deadline_ns else { return };
        if self.now - since <= deadline_ns { waits.met += 1 } else { waits.missed += 1 }
    }

    /// At the end of the run: counts as missed the deadlines that have passed while the task still works on
    /// the request.
    pub(super) fn count_missed_deadlines(&mut self) {
        for id in 0..super::number(self.tasks.len()) {
            let task = &self.tasks[id as usize];
            let job = self.instances[task.instance as usize].job as usize;
            let due = task.up_since.zip(self.scenario.workload.jobs[job].deadline_ns);
            if due.is_some_and(|(since, deadline_ns)| self.now - since > deadline_ns) {
                self.count_answer(id);
            }
        }
    }

    /// A task gets a CPU: if it has just woken up, counts how long it waited.
    pub(super) fn count_wake(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if core::mem::take(&mut task.woke) {
            let job = self.instances[task.instance as usize].job;
            self.wakes[job as usize].latencies.add(self.now - task.since);
        }
    }
}
