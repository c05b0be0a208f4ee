//! Programs: what a process does, op by op.
//!
//! A task that has finished its computation is *advanced*: it goes through its ops until one makes it compute
//! again or blocks it, or the program ends. The kernel's work for it (setting up a transfer, creating a
//! process) counts as computing too.

use commonhold_dispatch::TaskId;

use super::task::TaskState;
use super::{Engine, NONE};
use crate::Time;
use crate::chance::Chance;
use crate::scenario::Op;

/// The outcome of advancing a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It computes.
    Compute,
    /// It waits for something, or has ended.
    Leave,
}

/// The outcome of one op.
pub(super) enum Done {
    /// The op is done: the task continues with the next op.
    Next,
    /// The task computes now, and then continues this op.
    Compute,
    /// The task waits now, and then continues this op.
    Wait(TaskState),
    /// The op's state has changed: perform the op again at once.
    Again,
}

// Stages of an op (`Task::stage`): a task that continues an op after computing or waiting knows from the
// stage where.
/// The first stage of each op.
pub(super) const NEW: u32 = 0;
/// The op has begun. Most ops are done when the task continues them in this stage.
pub(super) const BEGUN: u32 = 1;
/// `Op::Run` only: the task computes the cost of a fork. When the task continues, the child starts.
const FORKING: u32 = 2;
/// `Op::Barrier` only: the task has spun for as long as it may, and sleeps once it has a CPU.
const SPUN: u32 = 3;

/// The tasks that meet at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// The children of one task.
    Children(TaskId),
    /// The copies of one job.
    Copies(u32),
    /// The tasks that meet at one event.
    Event(u16),
}

/// The fraction of work done in the kernel, in millionths, of work that is done in the kernel alone.
const KERNEL: u32 = 1_000_000;

impl Engine<'_> {
    /// Performs a task's ops until one takes time or blocks, or the program ends.
    pub(super) fn advance(&mut self, id: TaskId) -> Next {
        loop {
            // The computation was interrupted by a page fault: handle it and compute on.
            if self.tasks[id as usize].beyond > 0 {
                return match self.touch(id) {
                    Done::Wait(state) => self.block(id, state),
                    _ => Next::Compute,
                };
            }
            let task = &self.tasks[id as usize];
            let program = &self.scenario.workload.programs[task.program as usize];
            let Some(op) = program.ops.get(task.pc as usize).copied() else {
                if task.alive > 0 {
                    return self.block(id, TaskState::Children);
                }
                self.end(id);
                self.units.blocked(self.tasks[id as usize].runs_for);
                return Next::Leave;
            };
            match self.perform(id, op) {
                Done::Next => {
                    let task = &mut self.tasks[id as usize];
                    task.pc += 1;
                    task.stage = NEW;
                }
                Done::Compute => return Next::Compute,
                Done::Wait(state) => return self.block(id, state),
                Done::Again => {}
            }
        }
    }

    fn block(&mut self, id: TaskId, state: TaskState) -> Next {
        if state == TaskState::Sleeping {
            self.count_answer(id);
        }
        let task = &mut self.tasks[id as usize];
        task.state = state;
        task.since = self.now;
        self.units.blocked(task.runs_for);
        self.stall_begins(id);
        Next::Leave
    }

    fn perform(&mut self, id: TaskId, op: Op) -> Done {
        match op {
            Op::Cpu { work, kernel, bus_per_ms, cache_bytes, core } => {
                let task = &mut self.tasks[id as usize];
                if task.stage == BEGUN {
                    return Done::Next;
                }
                task.stage = BEGUN;
                let work = task.chance.amount(work);
                (task.working, task.core) = (cache_bytes, core);
                self.compute(id, work, kernel, bus_per_ms)
            }
            Op::Read { file, bytes, random, direct: true } => {
                self.transfer_directly(id, file, bytes, random, false)
            }
            Op::Write { file, bytes, random, direct: true, .. } => {
                self.transfer_directly(id, file, bytes, random, true)
            }
            Op::Read { file, bytes, random, .. } => self.read(id, file, bytes, random),
            Op::Write { file, bytes, random, sync, .. } => self.write(id, file, bytes, random, sync),
            Op::Metadata { file, delayed } => self.write_metadata(id, file, delayed),
            Op::Sleep { span } => self.sleep(id, span),
            Op::Run { program, times, at_once, beside } => {
                self.run_children(id, program, times, at_once, beside)
            }
            Op::Barrier { parties, event, spin_ns } => self.reach_barrier(id, parties, event, spin_ns),
            Op::Busy { span } => self.stay_busy(id, span),
            Op::Timer { timer, period_ns, catch_up } => self.await_release(id, timer, period_ns, catch_up),
            Op::Wait { event, lock } => self.await_event(id, event, lock),
            Op::Signal { event, all } => self.signal(event, all),
            Op::Acquire { lock, read } => self.acquire(id, lock, read),
            Op::Release { lock } => {
                self.release(id, lock);
                Done::Next
            }
            Op::Again { to, times, counter } => {
                if counter == 0 {
                    self.round_ended(id);
                }
                let task = &mut self.tasks[id as usize];
                let count = &mut task.counters[counter as usize];
                *count += 1;
                if times != 0 && *count >= times {
                    *count = 0;
                    return Done::Next;
                }
                self.jump(id, to)
            }
            Op::Begin { counter } => {
                self.tasks[id as usize].loops_begun[counter as usize] = self.now;
                Done::Next
            }
            Op::Over { counter, span_ns } => {
                let task = &mut self.tasks[id as usize];
                if self.now < task.loops_begun[counter as usize].saturating_add(span_ns) {
                    return Done::Next;
                }
                task.counters[counter as usize] = 0;
                let past = task.pc + 2;
                if counter == 0 {
                    self.round_ended(id);
                }
                self.jump(id, past)
            }
            Op::Piece { pieces, to, past } => {
                let taken = &mut self.instances[self.tasks[id as usize].instance as usize].pieces;
                if *taken >= pieces {
                    return self.jump(id, past);
                }
                *taken += 1;
                self.jump(id, to)
            }
        }
    }

    fn jump(&mut self, id: TaskId, to: u32) -> Done {
        let task = &mut self.tasks[id as usize];
        task.pc = to;
        task.stage = NEW;
        Done::Again
    }

    /// A task has gone through an outermost loop of its program. If a job's own process did, that ends a
    /// round of the job. A policy change that waits for the round is made right after this event, by a turn
    /// of the daemon's loop.
    fn round_ended(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        if task.parent != NONE {
            return;
        }
        let job = self.instances[task.instance as usize].job;
        if self.rounds.count_round(self.now, job, &self.scenario.workload) {
            self.timers.set(self.policy_timer() + 2, self.now);
        }
    }

    /// Starts a computation of `work` ns, of which a fraction of `kernel` millionths is done in the kernel,
    /// with `bus` transactions per ms. The computation ends at once if there is no work.
    pub(super) fn compute(&mut self, id: TaskId, work: Time, kernel: u32, bus: u32) -> Done {
        let task = &mut self.tasks[id as usize];
        task.kernel = kernel;
        task.bus = bus;
        task.left = 0;
        task.beyond = work;
        if work == 0 {
            return Done::Again;
        }
        self.compute_to_next_fault(id);
        Done::Compute
    }

    /// Starts a computation in the kernel on a task's behalf, which touches no pages of the task's working
    /// set.
    pub(super) fn charge(&mut self, id: TaskId, work: Time) -> Done {
        let task = &mut self.tasks[id as usize];
        task.kernel = KERNEL;
        (task.bus, task.working, task.core) = (0, 0, 0);
        task.left = work;
        task.beyond = 0;
        if work == 0 { Done::Again } else { Done::Compute }
    }

    fn sleep(&mut self, id: TaskId, span: crate::scenario::Amount) -> Done {
        let task = &mut self.tasks[id as usize];
        if task.stage == BEGUN {
            return Done::Next;
        }
        task.stage = BEGUN;
        let span = task.chance.amount(span);
        let until = self.now.saturating_add(span).saturating_add(self.lateness());
        let timer = self.task_timer(id);
        self.timers.set(timer, until);
        Done::Wait(TaskState::Sleeping)
    }

    /// Starts `times` children, at most `at_once` alive at once, and waits for them. `beside`: starts all and
    /// waits for none.
    fn run_children(&mut self, id: TaskId, program: u32, times: u32, at_once: u32, beside: bool) -> Done {
        let fork_ns = self.scenario.hardware.kernel.fork_ns;
        let task = &mut self.tasks[id as usize];
        if task.stage == NEW {
            task.to_start = times;
            task.stage = BEGUN;
        }
        // The fork is paid for; the child starts now.
        if task.stage == FORKING {
            task.stage = BEGUN;
            task.to_start -= 1;
            task.alive += 1;
            let (instance, chance) = (task.instance, Chance::of(task.chance.bits(), 0));
            let instance = self.instance_for(program, instance);
            self.spawn(program, instance, id, chance);
            return Done::Again;
        }
        if task.to_start > 0 && (beside || task.alive < at_once) {
            task.stage = FORKING;
            return self.charge(id, fork_ns);
        }
        if task.alive > 0 && !beside { Done::Wait(TaskState::Children) } else { Done::Next }
    }

    /// A task reaches a barrier. The last of `parties` tasks releases the others.
    fn reach_barrier(&mut self, id: TaskId, parties: u32, event: Option<u16>, spin_ns: Time) -> Done {
        let task = &mut self.tasks[id as usize];
        match task.stage {
            NEW => task.stage = BEGUN,
            SPUN => {
                task.stage = BEGUN;
                return Done::Wait(TaskState::Barrier);
            }
            _ => return Done::Next,
        }
        let group = match event {
            Some(event) => Group::Event(event),
            None if task.parent == NONE => Group::Copies(self.instances[task.instance as usize].job),
            None => Group::Children(task.parent),
        };
        let waiting = self.barriers.entry(group).or_default();
        if waiting.len() + 1 < parties as usize {
            waiting.push(id);
            if spin_ns == 0 {
                return Done::Wait(TaskState::Barrier);
            }
            task.spins = true;
            task.kernel = 0;
            task.bus = 0;
            if spin_ns < Time::MAX {
                let timer = self.task_timer(id);
                self.timers.set(timer, self.now.saturating_add(spin_ns));
            }
            return Done::Compute;
        }
        for other in self.barriers.remove(&group).unwrap_or_default() {
            let task = &mut self.tasks[other as usize];
            if task.spins {
                if self.spins_at_barrier_for(other).is_some() {
                    let timer = self.task_timer(other);
                    self.timers.clear(timer);
                }
                self.end_spin(other);
            } else if task.stage == SPUN {
                // It has not gone to sleep yet.
                task.stage = BEGUN;
            } else {
                self.wake(other);
            }
        }
        Done::Next
    }

    /// For how long a task spins at most, if it spins at a barrier and may not do so for ever.
    fn spins_at_barrier_for(&self, id: TaskId) -> Option<Time> {
        let task = &self.tasks[id as usize];
        match self.scenario.workload.programs[task.program as usize].ops.get(task.pc as usize) {
            Some(Op::Barrier { spin_ns, .. }) if task.spins && *spin_ns < Time::MAX => Some(*spin_ns),
            _ => None,
        }
    }

    /// A task that spins at a barrier, and may not do so for ever, gives up: it sleeps once it has a CPU. A
    /// task that stays busy goes on with its step once it has a CPU. Returns whether the task did so.
    pub(super) fn give_up_spinning(&mut self, id: TaskId) -> bool {
        if self.tasks[id as usize].spins && self.tasks[id as usize].busy_until.is_some() {
            let timer = self.task_timer(id);
            self.timers.clear(timer);
            self.end_spin(id);
            return true;
        }
        if self.spins_at_barrier_for(id).is_none() {
            return false;
        }
        let timer = self.task_timer(id);
        self.timers.clear(timer);
        self.tasks[id as usize].stage = SPUN;
        self.end_spin(id);
        true
    }
}
