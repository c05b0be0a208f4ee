//! Gangs: jobs whose tasks are stopped and continued by plans.
//!
//! A stop is a signal: it reaches a task some time after it was sent (`signal` in machine.toml). A running
//! task leaves its CPU then. A task that waits for a CPU, or is blocked, stops once it has a CPU again, since
//! a task handles signals itself. So a stop costs a switch, and so does continuing.
//!
//! A job's use of the resource that gangs share (bus transfers, cache space or executed work) is counted
//! exactly and reported at each sample. The count replaces the counters that the run-time library of seed 003
//! reads, or a program's own count. `counter_age` in machine.toml delays it, as where a program publishes its
//! count from time to time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    stopped: BTreeSet<JobId>,
    /// By job: the sum over its ended tasks.
    ended_use: BTreeMap<JobId, GangUse>,
    /// By job: the latest readings of its use, oldest first, where the policy sees old ones.
    readings: BTreeMap<JobId, VecDeque<SharedUse>>,
}

/// What a task has used of the resources that gangs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GangUse {
    /// Transfers over the bus, in millionths of a transaction.
    pub(super) transferred: u64,
    /// The integral of the occupied space of the last-level cache over time, in bytes times nanoseconds.
    pub(super) held: u128,
}

impl GangUse {
    pub(super) fn plus(self, other: GangUse) -> GangUse {
        GangUse {
            transferred: self.transferred.saturating_add(other.transferred),
            held: self.held + other.held,
        }
    }
}

/// Whether a task's job lets it run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Gate {
    /// It may run.
    #[default]
    Open,
    /// The stop signal arrives at this time. The task stops then, or once it has a CPU again.
    Shut(Time),
}

impl Engine<'_> {
    /// Carries out a plan's orders that stop or continue jobs.
    pub(super) fn order_gangs(&mut self, plan: &Plan) {
        for step in &plan.orders.gangs {
            let GangOrder::Gate { job, open, .. } = step.action;
            if open {
                self.gates.stopped.remove(&job);
            } else {
                self.gates.stopped.insert(job);
            }
            for id in self.tasks_of(job) {
                if open { self.open_gate(id) } else { self.shut_gate(id) }
            }
        }
    }

    /// Stops a new task whose job is stopped.
    pub(super) fn stop_with_its_job(&mut self, id: TaskId) {
        if !self.gates.stopped.is_empty() && self.gates.stopped.contains(&self.placed_job(id)) {
            self.shut_gate(id);
        }
    }

    /// Sends a stop signal to a task.
    fn shut_gate(&mut self, id: TaskId) {
        let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
        let task = &mut self.tasks[id as usize];
        task.gate = Gate::Shut(arrives);
        if task.state == TaskState::Stopped {
            // The task is still stopped from before: the signal that would have continued it is cancelled.
            let timer = self.task_timer(id);
            self.timers.clear(timer);
            return;
        }
        if let Some(cpu) = (0..self.cpus.len()).find(|cpu| self.cpus[*cpu].task == Some(id)) {
            self.arm(super::number(cpu));
        }
    }

    /// Sends a task the signal to continue. A task that has not stopped yet just goes on.
    fn open_gate(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.gate = Gate::Open;
        if task.state == TaskState::Stopped {
            let arrives = self.now + self.scenario.hardware.kernel.signal_ns;
            let timer = self.task_timer(id);
            self.timers.set(timer, arrives);
        }
    }

    /// Stops a running task if its stop signal has arrived, unless the task holds a spin lock. Returns
    /// whether the task stopped; it then has to leave its CPU.
    pub(super) fn stop_if_signalled(&mut self, id: TaskId) -> bool {
        let task = &mut self.tasks[id as usize];
        let due = matches!(task.gate, Gate::Shut(due) if due <= self.now);
        if !due || task.spin_locks > 0 || task.state != TaskState::Runnable {
            return false;
        }
        task.state = TaskState::Stopped;
        task.since = self.now;
        let unit = task.runs_for;
        self.units.stopped(unit);
        // The task's timer is for the signal that continues it, from now on.
        self.give_up_spinning(id);
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
        self.units.continued(task.runs_for);
        self.kernel.wake(self.now, id);
    }

    /// Adds what an ending task has used to its job's sum.
    pub(super) fn leave_gang(&mut self, id: TaskId) {
        if self.seating.has_gangs() && self.tasks[id as usize].is_placed {
            let ended_use = self.gates.ended_use.entry(self.placed_job(id)).or_default();
            *ended_use = ended_use.plus(self.tasks[id as usize].gang_use);
        }
    }

    /// How much a job has used of the resource that gangs share: bytes transferred, byte-seconds of the
    /// cache, or instructions. `live_use` is the sum over the job's live tasks. `None` if the machine does
    /// not model that resource.
    pub(super) fn shared_use(&mut self, job: JobId, live_use: GangUse) -> Option<SharedUse> {
        let ended_use = self.gates.ended_use.get(&job).copied().unwrap_or_default();
        let total = live_use.plus(ended_use);
        let amount = match self.scenario.contract.machine.gangs.share {
            GangsShare::Bus => {
                self.bus.as_ref()?;
                (total.transferred / 1_000_000).saturating_mul(self.scenario.hardware.line_bytes())
            }
            GangsShare::Cache => {
                self.last_caches.as_ref()?;
                u64::try_from(total.held / 1_000_000_000).unwrap_or(u64::MAX)
            }
        };
        let reading = SharedUse { at: self.now, amount };
        let newest = self.now.saturating_sub(self.scenario.hardware.kernel.counter_age_ns);
        if newest == self.now {
            return Some(reading);
        }
        let readings = self.gates.readings.entry(job).or_default();
        readings.push_back(reading);
        while readings.get(1).is_some_and(|second| second.at <= newest) {
            readings.pop_front();
        }
        readings.front().map(|seen| SharedUse { amount: seen.amount, ..reading })
    }
}
