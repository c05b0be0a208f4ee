//! Events and timers: processes that wait for a signal, and processes that work in periods.
//!
//! An event is a condition variable: a signal wakes the process that has waited the longest, and is lost if
//! none waits. If the event counts, it is a semaphore: the signal is kept for the next process that waits. A
//! process that gives up a lock while it waits takes the lock again as any other process does, behind those
//! that wait for it already.
//!
//! A timer has releases. Each is one period after the one before; the first period begins when the process
//! starts, or for a shared timer when the first process that uses it started. A process that comes before the
//! next release sleeps until then. A process that comes later overran: it goes on at once, and the next
//! period begins now, or at the missed release if the process is to catch up.
//!
//! Limits: signals and timers take no CPU time. A process catches up with at most a million releases.
//!
//! Source: `pthread_cond_wait(3)`, `sem_wait(3)`; rt-app's `timer` (relative, and absolute to catch up).

use std::collections::VecDeque;

use commonhold_dispatch::TaskId;

use super::Engine;
use super::program::{BEGUN, Done, NEW};
use super::task::TaskState;
use crate::Time;
use crate::scenario::Amount;

/// The most releases that a process catches up with, so that an endless loop that does nothing else ends.
const CATCH_UP_MAX: Time = 1_000_000;

/// The current state of an event.
#[derive(Debug, Default)]
pub(super) struct EventState {
    /// The tasks that wait, in the order in which they came.
    waiters: VecDeque<TaskId>,
    /// Signals that are kept; only of an event that counts.
    kept: u64,
}

impl Engine<'_> {
    /// A task waits for an event, and gives up a lock in that moment.
    pub(super) fn await_event(&mut self, id: TaskId, event: u16, lock: Option<u16>) -> Done {
        let task = &mut self.tasks[id as usize];
        if task.stage == BEGUN {
            return Done::Next;
        }
        task.stage = BEGUN;
        let state = &mut self.signals[event as usize];
        let is_kept = state.kept > 0;
        if is_kept {
            state.kept -= 1;
        } else {
            state.waiters.push_back(id);
        }
        if let Some(lock) = lock {
            self.release(id, lock);
        }
        if is_kept {
            return Done::Next;
        }
        self.count_answer(id);
        Done::Wait(TaskState::Event)
    }

    /// Wakes the first task that waits for an event, or `all` of them.
    pub(super) fn signal(&mut self, event: u16, all: bool) -> Done {
        let state = &mut self.signals[event as usize];
        let woken = if all { state.waiters.len() } else { state.waiters.len().min(1) };
        let woken: Vec<TaskId> = state.waiters.drain(..woken).collect();
        if woken.is_empty() && !all && self.scenario.workload.events[event as usize].counts {
            state.kept += 1;
        }
        for task in woken {
            self.wake(task);
        }
        Done::Next
    }

    /// A task sleeps to the next release of a timer, or goes on if the release has passed.
    pub(super) fn await_release(&mut self, id: TaskId, timer: u16, period_ns: Time, catch_up: bool) -> Done {
        if self.tasks[id as usize].stage == BEGUN {
            return Done::Next;
        }
        let now = self.now;
        let task = &mut self.tasks[id as usize];
        let begin = task.begun;
        let last = if self.scenario.workload.timers[timer as usize].shared {
            self.releases[timer as usize].get_or_insert(begin)
        } else {
            let index = task.releases.iter().position(|(number, _)| *number == timer).unwrap_or_else(|| {
                task.releases.push((timer, begin));
                task.releases.len() - 1
            });
            &mut task.releases[index].1
        };
        let earliest = now.saturating_sub(period_ns.saturating_mul(CATCH_UP_MAX));
        let due = last.saturating_add(period_ns).max(earliest);
        let overran = due <= now;
        *last = if overran && !catch_up { now } else { due };
        let release = *last;
        if overran {
            self.count_answer(id);
            self.tasks[id as usize].up_since = Some(release);
            return Done::Next;
        }
        task.stage = BEGUN;
        let until = due.saturating_add(self.lateness());
        let timer = self.task_timer(id);
        self.timers.set(timer, until);
        Done::Wait(TaskState::Sleeping)
    }

    /// A task stays on its CPU until a time has passed. A task that is stopped meanwhile continues here.
    pub(super) fn stay_busy(&mut self, id: TaskId, span: Amount) -> Done {
        let now = self.now;
        let task = &mut self.tasks[id as usize];
        if task.stage == NEW {
            let span = task.chance.amount(span);
            task.busy_until = Some(now.saturating_add(span));
            task.stage = BEGUN;
        }
        let Some(until) = task.busy_until.filter(|until| *until > now) else {
            task.busy_until = None;
            return Done::Next;
        };
        task.spins = true;
        (task.kernel, task.bus, task.working, task.core) = (0, 0, 0, 0);
        let timer = self.task_timer(id);
        self.timers.set(timer, until);
        Done::Compute
    }
}
