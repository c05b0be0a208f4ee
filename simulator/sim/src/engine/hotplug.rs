//! CPUs that go offline and come online.
//!
//! Problem: on a live machine, an administrator or the firmware takes CPUs away and brings them back. Units
//! then hold CPUs that are gone, until the daemon has noticed.
//!
//! Algorithm, as on a live machine:
//! - At the workload's time, the tasks of CPUs that go offline wait for other CPUs, and the scheduler is
//!   loaded again with the units and owners in force (`Kernel::set_online`).
//! - The daemon compares the CPUs that are online with those of its machine, before a turn, and at most once
//!   in [`HOTPLUG_NS`]. If they differ, it gives the steward the machine as it is now, and the turn plans for
//!   that. The present time of a change is thus known to the daemon up to a second and a turn late.
//! - CPUs that are offline at time 0 are offline when the daemon starts.
//!
//! A CPU whose task holds a spin lock goes offline after the release: such a task is not preempted. The other
//! CPUs of the same change wait for it.
//!
//! Properties (audited): a CPU that is offline runs nothing, and its time is neither busy nor idle. Memory
//! stays. The sums of the ledger are exact, since snapshots have the time for which CPUs were online.
//!
//! Limits: a change takes no time. Interrupts that slow one CPU down (`[interrupts]`) end while that CPU is
//! offline.

use commonhold_machine::CpuSet;
use commonhold_steward::{HOTPLUG_NS, Steward};

use super::Engine;
use crate::Time;
use crate::outcome::OnlineCpus;
use crate::scenario::Scenario;

/// Which CPUs are online, and what the daemon knows about that.
#[derive(Debug)]
pub(super) struct Hotplug {
    online: CpuSet,
    /// How many of the workload's changes are due or were made.
    begun: usize,
    /// The CPUs that will be online once no task on the others holds a spin lock.
    due: Option<CpuSet>,
    /// When the daemon checks again.
    check_at: Time,
    /// The periods so far; empty if the workload has no changes.
    periods: Vec<OnlineCpus>,
}

impl Hotplug {
    pub(super) fn new(scenario: &Scenario) -> Hotplug {
        let online = scenario.hardware.machine.cpu_set();
        let whole = period(0, &online, Some(0));
        let periods = if scenario.workload.online.is_empty() { Vec::new() } else { vec![whole] };
        Hotplug { online, begun: 0, due: None, check_at: HOTPLUG_NS, periods }
    }

    pub(super) fn outcome(&self) -> Vec<OnlineCpus> {
        self.periods.clone()
    }
}

fn period(at_ns: Time, cpus: &CpuSet, noticed_ns: Option<Time>) -> OnlineCpus {
    OnlineCpus { at_ns, count: cpus.len(), cpus: cpus.clone(), noticed_ns }
}

impl Engine<'_> {
    /// Makes the changes of time 0, which the daemon knows when it starts, and sets the timer of the next.
    pub(super) fn begin_hotplug(&mut self) {
        self.hotplug_event();
        self.continue_hotplug();
        if let Some(mut steward) = self.steward.take() {
            self.notice(&mut steward);
            self.steward = Some(steward);
        }
    }

    /// Changes of the CPUs are due.
    pub(super) fn hotplug_event(&mut self) {
        let changes = &self.scenario.workload.online[self.hotplug.begun..];
        let due = changes.iter().take_while(|change| change.at_ns <= self.now).count();
        if let Some(last) = changes[..due].last() {
            self.hotplug.due = Some(last.online.clone());
        }
        self.hotplug.begun += due;
        if let Some(next) = changes.get(due) {
            self.timers.set(self.policy_timer() + 3, next.at_ns);
        }
    }

    /// Makes the change that is due, unless a task on a CPU that goes offline holds a spin lock.
    pub(super) fn continue_hotplug(&mut self) {
        let Some(due) = &self.hotplug.due else { return };
        let going = self.hotplug.online.difference(due);
        let holds_spin_lock = |cpu: u32| {
            let task = self.cpus[cpu as usize].task;
            task.is_some_and(|task| self.tasks[task as usize].spin_locks > 0)
        };
        if !going.iter().any(holds_spin_lock)
            && let Some(online) = self.hotplug.due.take()
        {
            self.set_online(online, &going);
        }
    }

    /// Makes exactly the CPUs `online` online; `going` are those that go offline.
    fn set_online(&mut self, online: CpuSet, going: &CpuSet) {
        if online == self.hotplug.online {
            return;
        }
        for cpu in going.iter() {
            self.settle(cpu as usize);
            self.leave_cpu(cpu as usize, true);
            self.cpus[cpu as usize].go_offline();
        }
        for cpu in online.difference(&self.hotplug.online).iter() {
            self.account(cpu as usize);
            self.cpus[cpu as usize].is_online = true;
        }
        self.hotplug.online = online;
        self.reload_scheduler(&self.hotplug.online.clone());
        // Tasks that keep their CPUs have new slices.
        for cpu in 0..self.cpus.len() {
            self.arm(super::number(cpu));
        }
        self.patience.note_online(self.hotplug.online.len());
        self.running_set_changed |= self.has_contention();
        self.hotplug.periods.retain(|period| period.at_ns < self.now);
        self.hotplug.periods.push(period(self.now, &self.hotplug.online, None));
    }

    /// Lets the daemon check whether CPUs went offline or came online, if its check is due.
    pub(super) fn check_for_hotplug(&mut self, steward: &mut Steward) {
        if self.now >= self.hotplug.check_at {
            self.hotplug.check_at = self.now + HOTPLUG_NS;
            self.notice(steward);
        }
    }

    /// Gives the steward the machine as it is now, if CPUs went offline or came online.
    fn notice(&mut self, steward: &mut Steward) {
        let Some(latest) = self.hotplug.periods.last_mut() else { return };
        if steward.machine().cpu_set() != self.hotplug.online {
            steward.set_machine(self.scenario.hardware.machine.with_cpus(&self.hotplug.online));
        }
        latest.noticed_ns.get_or_insert(self.now);
        self.patience.note_noticed();
    }

    /// The time for which CPUs were online, summed over CPUs; `None` if all are online all the time, which
    /// the ledger computes by itself.
    pub(super) fn online_ns(&self) -> Option<Time> {
        let changes = !self.hotplug.periods.is_empty();
        changes.then(|| self.cpus.iter().map(|cpu| self.now - cpu.offline_ns).sum())
    }
}
