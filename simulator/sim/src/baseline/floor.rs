//! The state of CPUs, tasks and units that all baselines share: which task is on each CPU, up to when its CPU
//! time is charged, and the account of each unit.

use commonhold_dispatch::{Account, Kick, TaskId, Unit};

use crate::Time;

/// One CPU.
#[derive(Debug, Clone, Default)]
struct CpuState {
    current: Option<TaskId>,
    /// The time up to which the current task's CPU time is charged.
    charged: Time,
    /// When the CPU last chose a task.
    chose: Time,
    /// A reschedule was requested and is still pending.
    kicked: bool,
}

/// A task, as the scheduler sees it.
#[derive(Debug, Clone, Copy)]
struct TaskState {
    unit: u32,
    /// The CPU that the task is on, or was on last.
    last_cpu: u32,
    on_cpu: bool,
}

/// All CPUs, tasks and units, by index.
#[derive(Debug, Clone)]
pub(crate) struct CpuTable {
    cpus: Vec<CpuState>,
    tasks: Vec<TaskState>,
    units: Vec<Unit>,
    accounts: Vec<Account>,
    /// The number of tasks that wait for a CPU, by unit.
    waiting: Vec<u32>,
    kicks: Vec<Kick>,
}

impl CpuTable {
    pub(super) fn new(cpus: u32, units: u32) -> CpuTable {
        CpuTable {
            cpus: vec![CpuState::default(); cpus as usize],
            tasks: Vec::new(),
            units: (0..units).map(Unit::new).collect(),
            accounts: vec![Account::default(); units as usize],
            waiting: vec![0; units as usize],
            kicks: Vec::new(),
        }
    }

    /// The number of CPUs.
    pub(super) fn len(&self) -> u32 {
        crate::engine::number(self.cpus.len())
    }

    /// Adds a new task. Its last CPU is that of its parent, since the parent does the first work of a fork
    /// there.
    pub(super) fn start(&mut self, id: TaskId, unit: u32, parent: Option<TaskId>) {
        let last_cpu = parent.map_or(0, |parent| self.last(parent));
        let task = TaskState { unit, last_cpu, on_cpu: false };
        if id as usize == self.tasks.len() {
            self.tasks.push(task);
        } else {
            self.tasks[id as usize] = task;
        }
    }

    /// Charges the CPU time of the task on a CPU to the task's unit. Returns the task and the start of the
    /// charged time; `None` if the CPU idles.
    pub(super) fn charge(&mut self, now: Time, cpu: u32) -> Option<(TaskId, Time)> {
        let state = &mut self.cpus[cpu as usize];
        let id = state.current?;
        let from = core::mem::replace(&mut state.charged, now);
        self.accounts[self.tasks[id as usize].unit as usize].shared_ns += now - from;
        Some((id, from))
    }

    /// Counts a task as waiting for a CPU.
    pub(super) fn wait(&mut self, id: TaskId) {
        self.waiting[self.tasks[id as usize].unit as usize] += 1;
    }

    /// Takes the task off a CPU that is about to choose a task. `None` if the CPU idled.
    pub(super) fn take_off(&mut self, now: Time, cpu: u32) -> Option<TaskId> {
        let state = &mut self.cpus[cpu as usize];
        (state.chose, state.kicked) = (now, false);
        let id = state.current.take()?;
        self.tasks[id as usize].on_cpu = false;
        Some(id)
    }

    /// Puts a waiting task on a CPU.
    pub(super) fn put_on(&mut self, now: Time, cpu: u32, id: TaskId) {
        let state = &mut self.cpus[cpu as usize];
        (state.current, state.charged) = (Some(id), now);
        let task = &mut self.tasks[id as usize];
        (task.last_cpu, task.on_cpu) = (cpu, true);
        self.waiting[task.unit as usize] -= 1;
    }

    /// Requests that a CPU choose a task again.
    pub(super) fn kick(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        state.kicked = true;
        self.kicks.push(Kick { cpu, preempt: state.current.is_some() });
    }

    pub(super) fn kicks(&mut self, kicks: &mut Vec<Kick>) {
        kicks.append(&mut self.kicks);
    }

    pub(super) fn has_kicks(&self) -> bool {
        !self.kicks.is_empty()
    }

    /// Whether a CPU idles and was not kicked since it last chose a task.
    pub(super) fn is_free(&self, cpu: u32) -> bool {
        let state = &self.cpus[cpu as usize];
        state.current.is_none() && !state.kicked
    }

    /// The free CPU for a woken task: the task's last CPU, else the CPU that has been idle longest.
    pub(super) fn free_for(&self, id: TaskId) -> Option<u32> {
        let last = self.last(id);
        if self.is_free(last) {
            return Some(last);
        }
        (0..self.len()).filter(|cpu| self.is_free(*cpu)).min_by_key(|cpu| self.cpus[*cpu as usize].chose)
    }

    /// CPUs that run a task and were not kicked since they chose it, each with its task.
    pub(super) fn busy(&self) -> impl Iterator<Item = (u32, TaskId)> {
        let running =
            |(cpu, state): (u32, &CpuState)| state.current.filter(|_| !state.kicked).map(|id| (cpu, id));
        (0..).zip(&self.cpus).filter_map(running)
    }

    /// The task on a CPU, and the time up to which its CPU time is charged.
    pub(super) fn current(&self, cpu: u32) -> (Option<TaskId>, Time) {
        let state = &self.cpus[cpu as usize];
        (state.current, state.charged)
    }

    /// The CPU that a task is on, or was on last.
    pub(super) fn last(&self, id: TaskId) -> u32 {
        self.tasks[id as usize].last_cpu
    }

    pub(super) fn is_on_cpu(&self, id: TaskId) -> bool {
        self.tasks[id as usize].on_cpu
    }

    pub(super) fn unit_of(&self, id: TaskId) -> u32 {
        self.tasks[id as usize].unit
    }

    pub(super) fn unit(&self, unit: u32) -> &Unit {
        &self.units[unit as usize]
    }

    /// A unit's account. It has only the CPU time that the unit's tasks used, since no unit owns a CPU.
    pub(super) fn account(&self, unit: u32) -> &Account {
        &self.accounts[unit as usize]
    }

    /// The number of tasks that wait for a CPU, by unit.
    pub(super) fn waiting(&self) -> &[u32] {
        &self.waiting
    }
}
