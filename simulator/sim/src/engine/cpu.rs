//! CPUs: which task runs on each, its progress and speed, and when the CPU's next event is due.
//!
//! An event *settles* the task's progress at its speed so far, runs a due tick, advances the task's program,
//! and lets the scheduler choose another task if needed. Then the CPU's timer is set to the first of the next
//! events.

use commonhold_dispatch::{NOBODY, TaskId};
use commonhold_policy::share::part_of;

use super::gates::Gate;
use super::program::Next;
use super::speed::{ALONE, Slow, refill_from, slowdown_by_interrupts, stretched};
use super::task::TaskState;
use super::{Engine, NONE};
use crate::Time;
use crate::scenario::{CallBack, Interrupts};

/// One CPU.
#[derive(Debug, Clone)]
pub(super) struct Cpu {
    pub(super) task: Option<TaskId>,
    /// The time up to which its task's progress is settled; ahead of the clock during a switch.
    pub(super) since: Time,
    /// The time up to which the CPU's busy and idle time is accounted.
    pub(super) accounted: Time,
    /// The slowdown of the running task.
    pub(super) slow: Slow,
    /// The part of `slow` due to the node of the task's memory: a factor in millionths.
    pub(super) far: u64,
    /// What data in the nodes of the job's other tasks adds to that factor, in millionths.
    pub(super) shared: u64,
    /// How much of the last-level cache the running task occupies, in bytes.
    held: u64,
    /// The part of `slow` due to interrupts: a factor in millionths.
    interrupted: u64,
    next_tick: Time,
    /// When the scheduler's interrupt arrives, at which the CPU chooses a task; `None` if no interrupt is
    /// under way.
    kicked: Option<Time>,
    /// Since when the choice of another task is deferred, because the running task holds a spin lock.
    deferred_since: Option<Time>,
    /// The task that ran here last, or [`NONE`].
    last: u32,
    pub(super) is_online: bool,
    /// Total busy and idle time, and the time for which the CPU was offline.
    pub(super) busy_ns: u64,
    pub(super) idle_ns: u64,
    pub(super) offline_ns: u64,
    pub(super) switches: u64,
}

impl Cpu {
    /// An idle CPU of a machine with `cpus` CPUs. The CPUs' ticks are staggered evenly over a tick period.
    pub(super) fn new(number: u32, cpus: u32, tick_ns: Time, interrupts: Option<&Interrupts>) -> Cpu {
        let stagger = u128::from(tick_ns) * u128::from(number + 1) / u128::from(cpus);
        Cpu {
            task: None,
            since: 0,
            accounted: 0,
            slow: Slow::NOT,
            far: ALONE,
            shared: 0,
            held: 0,
            interrupted: interrupts
                .map_or(ALONE, |interrupts| slowdown_by_interrupts(interrupts, number, cpus)),
            next_tick: Time::try_from(stagger).unwrap_or(tick_ns),
            kicked: None,
            deferred_since: None,
            last: NONE,
            is_online: true,
            busy_ns: 0,
            idle_ns: 0,
            offline_ns: 0,
            switches: 0,
        }
    }

    /// The slowdown of a task on this CPU by interrupts alone.
    fn alone(&self) -> Slow {
        Slow::NOT.times(self.interrupted)
    }

    /// Takes an idle CPU offline: an interrupt under way does not arrive any more.
    pub(super) fn go_offline(&mut self) {
        (self.is_online, self.kicked, self.deferred_since) = (false, None, None);
    }

    /// Whether an interrupt is under way at which the CPU chooses a task.
    pub(super) fn is_kicked(&self) -> bool {
        self.kicked.is_some()
    }

    /// Whether the CPU chooses a task once the present one has released its spin locks.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred_since.is_some()
    }
}

impl Engine<'_> {
    /// A CPU's timer has expired: an interrupt of the scheduler, a stop signal or a tick is due, or the
    /// task's slice or computation has ended.
    pub(super) fn cpu_event(&mut self, id: u32) {
        let index = id as usize;
        self.settle(index);
        let mut must_choose = false;
        if self.cpus[index].kicked.is_some_and(|due| due <= self.now) {
            self.cpus[index].kicked = None;
            must_choose = true;
        }
        // Whether the present task could go on.
        let mut runnable = true;
        if let Some(task) = self.cpus[index].task {
            must_choose |= self.tick(id);
            // `since` lies ahead of the clock during a switch; a task can stop or advance only after the
            // switch.
            let stops = self.cpus[index].since <= self.now && self.stop_if_signalled(task);
            let current = &self.tasks[task as usize];
            if stops {
                (must_choose, runnable) = (true, false);
            } else if current.left == 0 && !current.spins && self.cpus[index].since <= self.now {
                // A kernel that calls CPUs back at its entry checks now, as it does at a tick.
                if self.scenario.hardware.kernel.call_back == CallBack::Entry {
                    must_choose |= self.kernel.tick(self.now, id);
                }
                let next = self.advance(task);
                self.running_set_changed |= self.has_contention();
                runnable = next == Next::Compute;
                if runnable {
                    self.update_remote_slowdown(index);
                }
                must_choose |= !runnable;
            }
            must_choose |= self.kernel.slice_left(self.now, id) == 0;
            must_choose = self.defer_for_spin_locks(index, task, must_choose, runnable);
        }
        if must_choose {
            self.choose_task(id, runnable);
        }
        self.arm(id);
    }

    /// Defers a CPU's choice of another task while the running task holds a spin lock: otherwise all tasks
    /// that spin for the lock would do so until the holder has a CPU again. Returns whether the CPU chooses
    /// now; a deferred choice is made once the task has released its spin locks.
    fn defer_for_spin_locks(
        &mut self,
        index: usize,
        task: TaskId,
        must_choose: bool,
        runnable: bool,
    ) -> bool {
        let keeps_cpu = runnable && self.tasks[task as usize].spin_locks > 0;
        let cpu = &mut self.cpus[index];
        if keeps_cpu {
            cpu.deferred_since = cpu.deferred_since.or(Some(self.now).filter(|_| must_choose));
            return false;
        }
        let Some(since) = cpu.deferred_since.take() else { return must_choose };
        self.patience.note_deferral(self.now - since);
        true
    }

    /// Runs the clock tick if it is due. Returns whether the running task has to leave the CPU.
    fn tick(&mut self, id: u32) -> bool {
        let period = self.scenario.hardware.kernel.tick_ns;
        let cpu = &mut self.cpus[id as usize];
        if period == 0 || cpu.next_tick > self.now {
            return false;
        }
        cpu.next_tick += period;
        self.kernel.tick(self.now, id)
    }

    /// Moves the next tick of a CPU that was idle beyond now: an idle CPU has no ticks.
    fn skip_ticks(&mut self, index: usize) {
        let period = self.scenario.hardware.kernel.tick_ns;
        let cpu = &mut self.cpus[index];
        if period > 0 && cpu.next_tick <= self.now {
            cpu.next_tick += ((self.now - cpu.next_tick) / period + 1) * period;
        }
    }

    /// Lets the scheduler choose the task that a CPU runs from now on. `runnable`: whether the present task
    /// could go on.
    fn choose_task(&mut self, id: u32, runnable: bool) {
        let index = id as usize;
        let before = self.cpus[index].task;
        let next = self.kernel.schedule(self.now, id, runnable);
        if next == before && runnable {
            return;
        }
        self.leave_cpu(index, runnable);
        self.cpus[index].task = next;
        if let Some(task) = next {
            if before.is_none() {
                self.skip_ticks(index);
            }
            self.memory.note_run(self.tasks[task as usize].space);
            self.switch_to(id, task);
            self.update_remote_slowdown(index);
            self.retry_spin_lock(task);
        }
        self.running_set_changed |= self.has_contention();
    }

    /// Takes the task off a CPU, if it has one. `runnable`: the task waits for a CPU from now on.
    pub(super) fn leave_cpu(&mut self, index: usize, runnable: bool) {
        self.account(index);
        if let Some(previous) = self.cpus[index].task.take() {
            let task = &mut self.tasks[previous as usize];
            // The switch to a task was charged in advance. If the task leaves during the switch, the rest is
            // refunded.
            let refund = self.cpus[index].since.saturating_sub(self.now);
            self.instances[task.instance as usize].spent.switch_ns -= refund;
            if task.state != TaskState::Ended {
                self.memory.note_run(task.space);
            }
            task.cache = self.caches.as_ref().map(|caches| caches.leave(index));
            if runnable {
                task.since = self.now;
                task.waits = Some(self.patience.begin(self.now, task.runs_for));
            }
        }
        self.cpus[index].since = self.now;
    }

    /// Starts a task on a CPU, and charges the task for the switch and for the refill of the cache.
    fn switch_to(&mut self, id: u32, next: TaskId) {
        let has_contention = self.has_contention();
        self.tasks[next as usize].cpu = id;
        self.end_wait(next);
        self.count_wake(next);
        let costs = &self.scenario.hardware;
        let task = &self.tasks[next as usize];
        let cpu = &mut self.cpus[id as usize];
        let spent = &mut self.instances[task.instance as usize].spent;
        spent.waited_ns += self.now - task.since;
        cpu.switches += 1;
        let mut cost = if cpu.last == next { 0 } else { costs.kernel.switch_ns };
        if let Some(caches) = &mut self.caches {
            let hot = self.scenario.workload.programs[task.program as usize].hot_bytes;
            let refill = caches.arrive(id as usize, hot, task.cache);
            cost += refill_from(self.remote.as_ref(), &self.memory, task.space, id as usize, refill);
        }
        cpu.last = next;
        cpu.since = self.now + cost;
        if !has_contention {
            cpu.slow = cpu.alone();
        }
        self.instances[task.instance as usize].spent.switch_ns += cost;
    }

    /// Settles the progress of a CPU's task up to now: books the elapsed time by cause, and reduces the
    /// task's remaining work.
    pub(super) fn settle(&mut self, index: usize) {
        self.account(index);
        let cpu = &mut self.cpus[index];
        let Some(id) = cpu.task else { return };
        if cpu.since >= self.now {
            return;
        }
        let elapsed = self.now - cpu.since;
        cpu.since = self.now;
        let task = &mut self.tasks[id as usize];
        let spent = &mut self.instances[task.instance as usize].spent;
        if task.spins {
            let kind = if task.busy_until.is_some() { &mut spent.work_ns } else { &mut spent.spin_ns };
            *kind += elapsed;
            return;
        }
        let slow = cpu.slow;
        // The timer of the computation's end was rounded up to whole ns, so the work may come out larger than
        // what remains.
        let work =
            if slow.total == ALONE { elapsed } else { part_of(elapsed, ALONE, slow.total) }.min(task.left);
        task.left -= work;
        let transferred = work.saturating_mul(u64::from(task.bus));
        task.gang_use.transferred = task.gang_use.transferred.saturating_add(transferred);
        task.gang_use.held += u128::from(elapsed) * u128::from(cpu.held);
        spent.transferred = spent.transferred.saturating_add(transferred);
        if task.left > 0 && stretched(task.left, slow.total) == 0 {
            task.left = 0;
        }
        slow.book(spent, elapsed, work);
    }

    /// Accounts a CPU's time up to now as busy, idle or offline.
    pub(super) fn account(&mut self, index: usize) {
        let cpu = &mut self.cpus[index];
        let elapsed = self.now - cpu.accounted;
        cpu.accounted = self.now;
        let Some(task) = cpu.task else {
            *(if cpu.is_online { &mut cpu.idle_ns } else { &mut cpu.offline_ns }) += elapsed;
            return;
        };
        cpu.busy_ns += elapsed;
        self.windows.used(self.tasks[task as usize].unit, elapsed);
    }

    /// Sets a CPU's timer to the earliest of its next events: see [`Engine::cpu_event`].
    pub(super) fn arm(&mut self, id: u32) {
        let cpu = &self.cpus[id as usize];
        let mut due = cpu.kicked.unwrap_or(Time::MAX);
        if let Some(task) = cpu.task {
            let task = &self.tasks[task as usize];
            if !task.spins {
                due = due.min(cpu.since.max(self.now) + stretched(task.left, cpu.slow.total));
            }
            if task.spin_locks == 0 {
                due = due.min(self.now.saturating_add(self.kernel.slice_left(self.now, id)));
            }
            if let Gate::Shut(arrives) = task.gate {
                due = if task.spin_locks == 0 { due.min(arrives.max(cpu.since).max(self.now)) } else { due };
            }
            if self.scenario.hardware.kernel.tick_ns > 0 {
                due = due.min(cpu.next_tick.max(self.now));
            }
        }
        if due == Time::MAX {
            self.timers.clear(id);
        } else {
            self.timers.set(id, due);
        }
    }

    /// Sends an interrupt to each CPU that the scheduler kicked. The CPU chooses a task when the interrupt
    /// arrives.
    pub(super) fn deliver_kicks(&mut self) {
        let mut kicks = core::mem::take(&mut self.kicks);
        self.kernel.kicks(&mut kicks);
        let costs = &self.scenario.hardware.kernel;
        for kick in kicks.drain(..) {
            let is_idle = self.cpus[kick.cpu as usize].task.is_none();
            let delays = match is_idle && !costs.idle_delays_ns.is_empty() {
                true => &costs.idle_delays_ns,
                false => &costs.ipi_delays_ns,
            };
            let delay_ns = match delays.len() {
                0 => costs.ipi_ns,
                count => delays[usize::try_from(self.chance.below(count as u64)).unwrap_or(0)],
            };
            let arrives = self.now + delay_ns;
            let cpu = &mut self.cpus[kick.cpu as usize];
            if cpu.kicked.is_none() {
                cpu.kicked = Some(arrives);
            }
            self.arm(kick.cpu);
        }
        self.kicks = kicks;
    }

    /// Whether running tasks slow each other down on this machine. Otherwise a task's speed changes only with
    /// its CPU.
    pub(super) fn has_contention(&self) -> bool {
        self.contention.is_some()
            || self.bus.is_some()
            || self.shared.is_some()
            || self.last_caches.is_some()
            || self.cores.is_some()
    }

    /// Recomputes every running task's speed, after the set of running tasks has changed.
    pub(super) fn set_speeds(&mut self) {
        // The running tasks' fractions of work done in the kernel, summed; and their rates of bus
        // transactions.
        let mut kernel_sum = 0u64;
        self.rates.clear();
        for cpu in &self.cpus {
            let Some(task) = cpu.task.map(|id| &self.tasks[id as usize]) else { continue };
            kernel_sum += if task.spins { 0 } else { u64::from(task.kernel) };
            self.rates.push(if task.spins { 0 } else { task.bus });
        }
        if let Some(bus) = &mut self.bus {
            bus.slowdowns(&self.rates, &mut self.slowdowns);
        }
        // Counts the CPUs that have a task: the index into the per-task results of the models.
        let mut running = 0;
        self.update_sharing_slowdowns();
        let (holdings, cores) = (self.holdings(), self.core_slowdowns());
        for index in 0..self.cpus.len() {
            let Some(id) = self.cpus[index].task else { continue };
            let task = &self.tasks[id as usize];
            let kernel_part = if task.spins { 0 } else { task.kernel };
            let mut slow = match &self.contention {
                Some(kernel) => {
                    Slow::in_kernel(kernel.slowdown(kernel_part, kernel_sum - u64::from(kernel_part)))
                }
                None => Slow::NOT,
            };
            if self.bus.is_some() {
                slow = slow.times(self.slowdowns[running]);
            }
            let held = holdings.get(running).map_or(0, |holding| holding.bytes);
            slow = slow.times(holdings.get(running).map_or(ALONE, |holding| holding.slowdown));
            slow = slow.times(cores.get(running).copied().unwrap_or(ALONE));
            slow = slow
                .times(self.cpus[index].interrupted)
                .with_remote(self.cpus[index].far + self.cpus[index].shared);
            running += 1;
            if self.cpus[index].slow != slow || self.cpus[index].held != held {
                self.settle(index);
                (self.cpus[index].slow, self.cpus[index].held) = (slow, held);
                self.arm(u32::try_from(index).unwrap_or(NOBODY));
            }
        }
    }

    /// Ends a task's spinning. If it has a CPU, it continues there.
    pub(super) fn end_spin(&mut self, id: TaskId) {
        let cpu = (0..self.cpus.len()).find(|cpu| self.cpus[*cpu].task == Some(id));
        if let Some(cpu) = cpu {
            // The time up to now counts as spinning.
            self.settle(cpu);
        }
        self.tasks[id as usize].spins = false;
        if let Some(cpu) = cpu {
            self.arm(u32::try_from(cpu).unwrap_or(NOBODY));
        }
    }
}
