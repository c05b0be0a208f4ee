//! Gangs: jobs whose tasks are stopped and continued by plans.
//!
//! A stop is a signal: it reaches a task some time after it was sent (`signal` in machine.toml). A running task leaves
//! its CPU then. A task that waits for a CPU, or is blocked, stops once it has a CPU again, since a task handles signals itself.
//! So a stop costs a switch, and so does continuing.
//!
//! What a job transfers over the bus, holds of caches or executes is counted exactly and reported at samples. It
//! stands in for what the paper's run-time library reads from counters, or for a program's own count. How often a live program
//! reports is not simulated.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::GangsShare;
use commonhold_dispatch::TaskId;
use commonhold_policy::plan::{GangOrder, Plan};
use commonhold_policy::{JobId, SharedUse};

use super::Engine;
use super::task::TaskState;
use crate::Time;

/// Jobs that are stopped.
#[derive(Debug, Default)]
pub(super) struct Gates {
    shut: BTreeSet<JobId>,
    /// By job: what its ended tasks had used.
    gone: BTreeMap<JobId, Had>,
}

/// What a task has used of the resources that gangs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Had {
    /// Transferred over the bus, in millionths of a transaction.
    pub(super) transferred: u64,
    /// Held of the last-level cache, in bytes times nanoseconds.
    pub(super) held: u128,
}

impl Had {
    /// The sum of both.
    pub(super) fn and(self, other: Had) -> Had {
        Had { transferred: self.transferred.saturating_add(other.transferred), held: self.held + other.held }
    }
}

/// Whether a task may run, by its job's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Gate {
    /// It may run.
    #[default]
    Open,
    /// The stop signal arrives at this time. The task stops then, or once it has a CPU again.
    Shut(Time),
}

impl Engine<'_> {
    /// Carries out what a plan orders about gangs.
    pub(super) fn order_gangs(&mut self, plan: &Plan) {
        for step in &plan.orders.gangs {
            let GangOrder::Gate { job, open, .. } = step.action;
            if open {
                self.gates.shut.remove(&job);
            } else {
                self.gates.shut.insert(job);
            }
            for id in self.tasks_of(job) {
                if open { self.open(id) } else { self.shut(id) }
            }
        }
    }

    /// Stops a new task whose job is stopped.
    pub(super) fn stop_with_its_job(&mut self, id: TaskId) {
        if !self.gates.shut.is_empty() && self.gates.shut.contains(&self.placed_job(id)) {
            self.shut(id);
        }
    }

    fn shut(&mut self, id: TaskId) {
        let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
        let task = &mut self.tasks[id as usize];
        task.gate = Gate::Shut(arrives);
        if task.state == TaskState::Stopped {
            // The signal that would have continued it had not arrived yet.
            let timer = self.task_timer(id);
            self.timers.clear(timer);
            return;
        }
        if let Some(cpu) = (0..self.cpus.len()).find(|cpu| self.cpus[*cpu].task == Some(id)) {
            self.arm(super::number(cpu));
        }
    }

    fn open(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.gate = Gate::Open;
        if task.state == TaskState::Stopped {
            let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
            let timer = self.task_timer(id);
            self.timers.set(timer, arrives);
        }
    }

    /// Stops the task on a CPU if its stop signal has arrived. Returns whether it did; the task then has to leave the CPU.
    pub(super) fn stops(&mut self, id: TaskId) -> bool {
        let task = &mut self.tasks[id as usize];
        let due = matches!(task.gate, Gate::Shut(due) if due <= self.now);
        if !due || task.keeps > 0 || task.state != TaskState::Runnable {
            return false;
        }
        task.state = TaskState::Stopped;
        task.since = self.now;
        let unit = task.runs_for;
        self.units.stopped(unit);
        true
    }

    /// Continues a stopped task.
    pub(super) fn resume(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Runnable;
        // The time stopped counts as waiting for a CPU.
        self.instances[task.instance as usize].spent.waited_ns += self.now - task.since;
        task.since = self.now;
        task.wanted = true;
        task.waits = Some(self.patience.begin(self.now, task.runs_for));
        self.units.goes_on(task.runs_for);
        self.kernel.wake(self.now, id);
    }

    /// Adds what an ending task has used to its job's sum.
    pub(super) fn leave_gang(&mut self, id: TaskId) {
        if self.seating.has_gangs() && self.tasks[id as usize].is_placed {
            let gone = self.gates.gone.entry(self.placed_job(id)).or_default();
            *gone = gone.and(self.tasks[id as usize].had);
        }
    }

    /// What a job has used of the resource that gangs share; `had` is the sum over its live tasks. `None` if the machine does
    /// not model that resource.
    pub(super) fn shared_use(&self, job: JobId, had: Had) -> Option<SharedUse> {
        let had = had.and(self.gates.gone.get(&job).copied().unwrap_or_default());
        let amount = match self.scenario.contract.machine.gangs.share {
            GangsShare::Bus => {
                self.bus.as_ref()?;
                (had.transferred / 1_000_000).saturating_mul(self.scenario.hardware.line_bytes())
            }
            GangsShare::Cache => {
                self.last_caches.as_ref()?;
                u64::try_from(had.held / 1_000_000_000).unwrap_or(u64::MAX)
            }
        };
        Some(SharedUse { at: self.now, amount })
    }
}
