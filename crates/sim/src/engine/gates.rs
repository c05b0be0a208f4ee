//! Gangs: jobs whose tasks are stopped, and go on, as plans say.
//!
//! A stop is a signal: it reaches a task some time after it was sent (`signal` in machine.toml). One that runs leaves its CPU
//! then. One that waits for a CPU stops when it has one, and one that is blocked, when it has gone on and has one: a signal is
//! taken by the task itself. So a stop costs a switch, and so does going on.
//!
//! What a job transfers over the bus is counted exactly, and told at looks: what the paper's run-time library reads from
//! counters, or a program's own account. How often a live program tells it is not simulated.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_dispatch::TaskId;
use commonhold_policy::plan::{GangOrder, Plan};
use commonhold_policy::{JobId, SharedUse};

use super::Engine;
use super::task::State;
use crate::Time;

/// Jobs that are stopped.
#[derive(Debug, Default)]
pub(super) struct Gates {
    shut: BTreeSet<JobId>,
    /// What tasks transferred that ended, in millionths of a transaction.
    gone: BTreeMap<JobId, u64>,
}

/// How a task stands to its job's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Gate {
    /// It goes on.
    #[default]
    Open,
    /// It stops at that time, or when it has a CPU again.
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

    /// A new task of a job that is stopped will stop.
    pub(super) fn stop_with_its_job(&mut self, id: TaskId) {
        if !self.gates.shut.is_empty() && self.gates.shut.contains(&self.placed_job(id)) {
            self.shut(id);
        }
    }

    fn shut(&mut self, id: TaskId) {
        let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
        let task = &mut self.tasks[id as usize];
        task.gate = Gate::Shut(arrives);
        if task.state == State::Stopped {
            // It was to go on, and had not heard of it.
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
        if task.state == State::Stopped {
            let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
            let timer = self.task_timer(id);
            self.timers.set(timer, arrives);
        }
    }

    /// Whether the task on a CPU has to stop now: it leaves the CPU then.
    pub(super) fn stops(&mut self, id: TaskId) -> bool {
        let task = &mut self.tasks[id as usize];
        let due = matches!(task.gate, Gate::Shut(due) if due <= self.now);
        if !due || task.keeps > 0 || task.state != State::Runnable {
            return false;
        }
        task.state = State::Stopped;
        task.since = self.now;
        let unit = task.runs_for;
        self.units.stopped(unit);
        true
    }

    /// A stopped task goes on.
    pub(super) fn resume(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = State::Runnable;
        // It wanted a CPU all along.
        self.instances[task.instance as usize].spent.waited_ns += self.now - task.since;
        task.since = self.now;
        task.wanted = true;
        task.waits = Some(self.patience.begin(self.now, task.runs_for));
        self.units.goes_on(task.runs_for);
        self.kernel.wake(self.now, id);
    }

    /// A task ends: what it transferred stays its job's.
    pub(super) fn leave_gang(&mut self, id: TaskId) {
        if self.seating.has_gangs() && self.tasks[id as usize].is_placed {
            *self.gates.gone.entry(self.placed_job(id)).or_default() += self.tasks[id as usize].transferred;
        }
    }

    /// What a job transferred, whose tasks that are there transferred so much, in millionths of a transaction.
    pub(super) fn bus_use(&self, job: JobId, transferred: u64) -> Option<SharedUse> {
        self.bus.as_ref()?;
        let line = self.scenario.hardware.line_bytes();
        let all = transferred + self.gates.gone.get(&job).copied().unwrap_or(0);
        Some(SharedUse { at: self.now, amount: (all / 1_000_000).saturating_mul(line) })
    }
}
