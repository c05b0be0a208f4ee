//! CPUs: what runs on each, how fast, and when something is due.

use commonhold_dispatch::{NOBODY, TaskId};
use commonhold_policy::share::part_of;

use super::gates::Gate;
use super::program::Next;
use super::speed::{ALONE, Slow, beside_interrupts, refill_from, stretched};
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
    /// The time up to which its busy and idle time is accounted.
    pub(super) accounted: Time,
    pub(super) slow: Slow,
    /// The part of `slow` due to the node of the task's memory: a factor in millionths.
    pub(super) far: u64,
    /// What data in the nodes of the job's other tasks adds to that factor, in millionths.
    pub(super) shared: u64,
    /// What its task holds of the last-level cache, in bytes.
    held: u64,
    /// The part of `slow` due to interrupts, likewise.
    interrupted: u64,
    next_tick: Time,
    /// When it has to choose a task again, if it has to.
    kicked: Option<Time>,
    /// Since when it should have chosen again, but its task holds spin locks; it does once they are released.
    put_off: Option<Time>,
    /// The task that ran here last.
    last: u32,
    /// The time for which it was busy, and idle.
    pub(super) busy_ns: u64,
    pub(super) idle_ns: u64,
    pub(super) switches: u64,
}

impl Cpu {
    /// An idle CPU, its ticks staggered against the others'.
    pub(super) fn new(number: u32, of: u32, tick_ns: Time, interrupts: Option<&Interrupts>) -> Cpu {
        let stagger = u128::from(tick_ns) * u128::from(number + 1) / u128::from(of);
        Cpu {
            task: None,
            since: 0,
            accounted: 0,
            slow: Slow::NOT,
            far: ALONE,
            shared: 0,
            held: 0,
            interrupted: interrupts.map_or(ALONE, |interrupts| beside_interrupts(interrupts, number, of)),
            next_tick: Time::try_from(stagger).unwrap_or(tick_ns),
            kicked: None,
            put_off: None,
            last: NONE,
            busy_ns: 0,
            idle_ns: 0,
            switches: 0,
        }
    }

    /// The speed here of a task that only interrupts slow down.
    fn alone(&self) -> Slow {
        Slow::NOT.beside(self.interrupted)
    }

    /// Whether it is about to choose a task.
    pub(super) fn is_kicked(&self) -> bool {
        self.kicked.is_some()
    }
}

impl Engine<'_> {
    /// Something is due on a CPU: choosing another task, a tick, the end of a slice or of its task's computation.
    pub(super) fn cpu_event(&mut self, id: u32) {
        let at = id as usize;
        self.settle(at);
        let mut look = false;
        if self.cpus[at].kicked.is_some_and(|due| due <= self.now) {
            self.cpus[at].kicked = None;
            look = true;
        }
        let mut runnable = true;
        if let Some(task) = self.cpus[at].task {
            look |= self.tick(id);
            let stops = self.cpus[at].since <= self.now && self.stops(task);
            let doing = &self.tasks[task as usize];
            if stops {
                (look, runnable) = (true, false);
            } else if doing.left == 0 && !doing.spins && self.cpus[at].since <= self.now {
                if self.scenario.hardware.kernel.call_back == CallBack::Entry {
                    look |= self.kernel.tick(self.now, id);
                }
                let next = self.advance(task);
                self.crowd_changed |= self.contended();
                runnable = next == Next::Compute;
                if runnable {
                    self.look_at_memory(at);
                }
                look |= !runnable;
            }
            look |= self.kernel.slice_left(self.now, id) == 0;
            look = self.looks_now(at, task, look, runnable);
        }
        if look {
            self.look_for_task(id, runnable);
        }
        self.arm(id);
    }

    /// Whether a CPU chooses a task now. If its task holds a spin lock, it waits for the release: otherwise all tasks that spin
    /// for the lock would do so until the holder has a CPU again.
    fn looks_now(&mut self, at: usize, task: TaskId, look: bool, runnable: bool) -> bool {
        let keeps = runnable && self.tasks[task as usize].keeps > 0;
        let cpu = &mut self.cpus[at];
        if keeps {
            cpu.put_off = cpu.put_off.or(Some(self.now).filter(|_| look));
            return false;
        }
        let Some(since) = cpu.put_off.take() else { return look };
        self.patience.put_off(self.now - since);
        true
    }

    /// Runs the clock tick if it is due. Returns whether the CPU's task has to go.
    fn tick(&mut self, id: u32) -> bool {
        let period = self.scenario.hardware.kernel.tick_ns;
        let cpu = &mut self.cpus[id as usize];
        if period == 0 || cpu.next_tick > self.now {
            return false;
        }
        cpu.next_tick += period;
        self.kernel.tick(self.now, id)
    }

    /// Skips the ticks that an idle CPU slept through.
    fn skip_ticks(&mut self, at: usize) {
        let period = self.scenario.hardware.kernel.tick_ns;
        let cpu = &mut self.cpus[at];
        if period > 0 && cpu.next_tick <= self.now {
            cpu.next_tick += ((self.now - cpu.next_tick) / period + 1) * period;
        }
    }

    /// A CPU chooses the task that it runs from now on.
    fn look_for_task(&mut self, id: u32, runnable: bool) {
        let at = id as usize;
        let before = self.cpus[at].task;
        let next = self.kernel.schedule(self.now, id, runnable);
        if next == before && runnable {
            return;
        }
        self.account(at);
        if let Some(left) = before {
            let task = &mut self.tasks[left as usize];
            // A task that leaves during its switch has not been charged for all of it.
            let unpaid = self.cpus[at].since.saturating_sub(self.now);
            self.instances[task.instance as usize].spent.switch_ns -= unpaid;
            if task.state != TaskState::Ended {
                self.memory.ran(task.space);
            }
            task.cache = self.caches.as_ref().map(|caches| caches.leave(at));
            if runnable {
                task.since = self.now;
                task.waits = Some(self.patience.begin(self.now, task.runs_for));
            }
        }
        self.cpus[at].task = next;
        self.cpus[at].since = self.now;
        if let Some(task) = next {
            if before.is_none() {
                self.skip_ticks(at);
            }
            self.memory.ran(self.tasks[task as usize].space);
            self.switch_to(id, task);
            self.look_at_memory(at);
            self.spins_again(task);
        }
        self.crowd_changed |= self.contended();
    }

    /// Starts a task on a CPU. It is charged for the switch and for the refill of the cache.
    fn switch_to(&mut self, id: u32, next: TaskId) {
        let contended = self.contended();
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
        if !contended {
            cpu.slow = cpu.alone();
        }
        self.instances[task.instance as usize].spent.switch_ns += cost;
    }

    /// Settles a task's progress on a CPU up to now.
    pub(super) fn settle(&mut self, at: usize) {
        self.account(at);
        let cpu = &mut self.cpus[at];
        let Some(id) = cpu.task else { return };
        if cpu.since >= self.now {
            return;
        }
        let elapsed = self.now - cpu.since;
        cpu.since = self.now;
        let task = &mut self.tasks[id as usize];
        let spent = &mut self.instances[task.instance as usize].spent;
        if task.spins {
            spent.spin_ns += elapsed;
            return;
        }
        let slow = cpu.slow;
        // The end of a stretch was set on the next whole ns: it is reached, whatever the rounding.
        let work =
            if slow.total == ALONE { elapsed } else { part_of(elapsed, ALONE, slow.total) }.min(task.left);
        task.left -= work;
        let transferred = work.saturating_mul(u64::from(task.bus));
        task.had.transferred = task.had.transferred.saturating_add(transferred);
        task.had.held += u128::from(elapsed) * u128::from(cpu.held);
        spent.transferred = spent.transferred.saturating_add(transferred);
        if task.left > 0 && stretched(task.left, slow.total) == 0 {
            task.left = 0;
        }
        slow.book(spent, elapsed, work);
    }

    /// Accounts a CPU's time up to now as busy or idle.
    pub(super) fn account(&mut self, at: usize) {
        let cpu = &mut self.cpus[at];
        let elapsed = self.now - cpu.accounted;
        cpu.accounted = self.now;
        let Some(task) = cpu.task else {
            cpu.idle_ns += elapsed;
            return;
        };
        cpu.busy_ns += elapsed;
        self.windows.used(self.tasks[task as usize].unit, elapsed);
    }

    /// Sets a CPU's timer to the first thing that is due there.
    pub(super) fn arm(&mut self, id: u32) {
        let cpu = &self.cpus[id as usize];
        let mut due = cpu.kicked.unwrap_or(Time::MAX);
        if let Some(task) = cpu.task {
            let task = &self.tasks[task as usize];
            if !task.spins {
                due = due.min(cpu.since.max(self.now) + stretched(task.left, cpu.slow.total));
            }
            if task.keeps == 0 {
                due = due.min(self.now.saturating_add(self.kernel.slice_left(self.now, id)));
            }
            if let Gate::Shut(arrives) = task.gate {
                due = if task.keeps == 0 { due.min(arrives.max(cpu.since).max(self.now)) } else { due };
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

    /// Lets each kicked CPU choose a task once the interrupt has arrived.
    pub(super) fn deliver_kicks(&mut self) {
        let mut kicks = core::mem::take(&mut self.kicks);
        self.kernel.kicks(&mut kicks);
        let arrives = self.now + self.scenario.hardware.kernel.ipi_ns;
        for kick in kicks.drain(..) {
            let cpu = &mut self.cpus[kick.cpu as usize];
            if cpu.kicked.is_none() {
                cpu.kicked = Some(arrives);
            }
            self.arm(kick.cpu);
        }
        self.kicks = kicks;
    }

    /// Whether tasks slow each other down on this machine.
    pub(super) fn contended(&self) -> bool {
        self.contention.is_some()
            || self.bus.is_some()
            || self.shared.is_some()
            || self.last_caches.is_some()
            || self.cores.is_some()
    }

    /// Recomputes every running task's speed, after the set of running tasks has changed.
    pub(super) fn set_speeds(&mut self) {
        let mut all = 0u64;
        self.rates.clear();
        for cpu in &self.cpus {
            let Some(task) = cpu.task.map(|id| &self.tasks[id as usize]) else { continue };
            all += if task.spins { 0 } else { u64::from(task.kernel) };
            self.rates.push(if task.spins { 0 } else { task.bus });
        }
        if let Some(bus) = &mut self.bus {
            bus.slowdowns(&self.rates, &mut self.slowdowns);
        }
        let mut running = 0;
        self.look_at_shared();
        let (holdings, cores) = (self.holdings(), self.on_cores());
        for at in 0..self.cpus.len() {
            let Some(id) = self.cpus[at].task else { continue };
            let task = &self.tasks[id as usize];
            let part = if task.spins { 0 } else { task.kernel };
            let mut slow = match &self.contention {
                Some(kernel) => Slow::in_kernel(kernel.slowdown(part, all - u64::from(part))),
                None => Slow::NOT,
            };
            if self.bus.is_some() {
                slow = slow.beside(self.slowdowns[running]);
            }
            let held = holdings.get(running).map_or(0, |holding| holding.bytes);
            slow = slow.beside(holdings.get(running).map_or(ALONE, |holding| holding.slowdown));
            slow = slow.beside(cores.get(running).copied().unwrap_or(ALONE));
            slow = slow.beside(self.cpus[at].interrupted).afar(self.cpus[at].far + self.cpus[at].shared);
            running += 1;
            if self.cpus[at].slow != slow || self.cpus[at].held != held {
                self.settle(at);
                (self.cpus[at].slow, self.cpus[at].held) = (slow, held);
                self.arm(u32::try_from(at).unwrap_or(NOBODY));
            }
        }
    }

    /// Ends a task's spinning. If it has a CPU, it continues there.
    pub(super) fn end_spin(&mut self, id: TaskId) {
        let cpu = (0..self.cpus.len()).find(|cpu| self.cpus[*cpu].task == Some(id));
        if let Some(cpu) = cpu {
            self.settle(cpu); // as long as it still counts as spinning
        }
        self.tasks[id as usize].spins = false;
        if let Some(cpu) = cpu {
            self.arm(u32::try_from(cpu).unwrap_or(NOBODY));
        }
    }
}
