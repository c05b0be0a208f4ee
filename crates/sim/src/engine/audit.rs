//! Checks that run in every simulation: what must hold on any machine, whatever the policies decide.
//!
//! Conservation: CPU time that units used is the time that CPUs were busy, and busy and idle time is all there is; frames
//! and sectors as their own books have them. Nobody is forgotten: every runnable task is on a CPU or in a queue. Nobody
//! starves: no task waits for a CPU longer than a bound that its unit's queue explains, or that a baseline has. Every CPU
//! that was called back came back within a tick, or within an interrupt. What does not hold is noted with the time, and the
//! run goes on: the first note is where to look.

use commonhold_contract::{MILLIONTH, Scheme};
use commonhold_dispatch::{BORROWS, KERNEL, LENDS, NOBODY};

use super::Engine;
use super::task::{State, Task};
use crate::Time;
use crate::scenario::CallBack;

/// Notes kept; further ones are counted.
const NOTES_MAX: usize = 20;

/// What was found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audit {
    pub(crate) notes: Vec<String>,
    pub(crate) checks: u64,
    pub(crate) broken: u64,
    /// The longest wait for a CPU, by unit.
    pub(crate) waited_max: Vec<Time>,
    /// The most tasks that were runnable at once, by unit.
    runnable_max: Vec<u32>,
    /// The least that a unit was entitled to while it had processes, in millionths of a CPU, a whole CPU at most.
    entitled_min: Vec<u64>,
}

impl Audit {
    pub(super) fn new(units: usize) -> Audit {
        Audit {
            waited_max: vec![0; units],
            runnable_max: vec![0; units],
            entitled_min: vec![MILLIONTH; units],
            ..Audit::default()
        }
    }

    /// Something does not hold.
    pub(super) fn note(&mut self, now: Time, what: &str) {
        self.broken += 1;
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("at {now} ns: {what}"));
        }
    }

    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        let longest = &mut self.waited_max[unit as usize];
        *longest = (*longest).max(span);
    }

    fn expect(&mut self, now: Time, holds: bool, what: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.note(now, &what());
        }
    }
}

impl Engine<'_> {
    /// All checks, at this moment.
    pub(super) fn audit_all(&mut self) {
        let mut audit = core::mem::take(&mut self.audit);
        self.audit_cpu_time(&mut audit);
        self.audit_tasks(&mut audit);
        self.audit_owners(&mut audit);
        self.audit_call_backs(&mut audit);
        let memory = self.memory.check();
        audit.expect(self.now, memory.is_ok(), || memory.err().unwrap_or_default());
        for (drive, disk) in self.drives.iter().zip(&self.scenario.hardware.disks) {
            let total = drive.figures().total();
            audit.expect(self.now, total.sectors == total.charged_sectors, || {
                format!(
                    "disk {}: {} sectors were transferred, {} charged",
                    disk.name, total.sectors, total.charged_sectors
                )
            });
        }
        self.audit = audit;
    }

    fn audit_cpu_time(&mut self, audit: &mut Audit) {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
            let cpu = &self.cpus[cpu];
            audit.expect(self.now, cpu.busy_ns + cpu.idle_ns == self.now, || {
                format!(
                    "a CPU was busy for {} ns and idle for {} ns, of {}",
                    cpu.busy_ns, cpu.idle_ns, self.now
                )
            });
        }
        let busy: u64 = self.cpus.iter().map(|cpu| cpu.busy_ns).sum();
        let charged: u64 = (0..self.scenario.contract.units.len())
            .map(|unit| self.kernel.unit(super::number(unit)).used_ns)
            .sum();
        let running = self.kernel.uncharged(self.now);
        audit.expect(self.now, busy == charged + running, || {
            format!("CPUs were busy for {busy} ns, units were charged {charged} ns and {running} ns are yet to be charged")
        });
    }

    fn audit_tasks(&mut self, audit: &mut Audit) {
        let wanting: u64 = self.steward.runnable.iter().map(|n| u64::from(*n)).sum();
        let known = self.kernel.runnable();
        audit.expect(self.now, wanting == known, || {
            format!("{wanting} tasks are runnable, and {known} are on CPUs and in queues")
        });
        for (most, now) in audit.runnable_max.iter_mut().zip(&self.steward.runnable) {
            *most = (*most).max(*now);
        }
        let for_disks = |task: &&Task| matches!(task.state, State::Transfer | State::File | State::Throttled);
        let (stuck, under_way) =
            (self.tasks.iter().filter(for_disks).count(), self.purposes.len() - self.free_purposes.len());
        audit.expect(self.now, stuck == 0 || under_way > 0, || {
            format!("{stuck} tasks wait for disks, none of which has anything to do")
        });
        let units = self.steward.entitled().iter().zip(&self.steward.present);
        for (least, (now, present)) in audit.entitled_min.iter_mut().zip(units) {
            *least = (*least).min(if *present == 0 { MILLIONTH } else { *now });
        }
        let idle = self.cpus.iter().filter(|cpu| cpu.task.is_none()).count();
        // A CPU that was kicked this moment is on its way to the task; else, without isolation, none idles beside a queue.
        let settled = !self.kernel.has_kicks() && self.cpus.iter().all(|cpu| !cpu.is_kicked());
        if self.scenario.contract.machine.scheme == Scheme::Smp && settled {
            let waiting = self.kernel.waiting();
            audit.expect(self.now, idle == 0 || waiting == 0, || {
                format!("{idle} CPUs idle while {waiting} tasks wait")
            });
        }
    }

    /// No CPU idles beside a task that may run there, and whoever runs on another's CPU can be called back.
    fn audit_owners(&mut self, audit: &mut Audit) {
        let settled = !self.kernel.has_kicks() && self.cpus.iter().all(|cpu| !cpu.is_kicked());
        if self.scenario.contract.machine.scheme == Scheme::Smp || !settled {
            return;
        }
        for cpu in 0..super::number(self.cpus.len()) {
            let (home, runs) = (self.kernel.home(cpu), self.kernel.runs(cpu));
            if self.cpus[cpu as usize].task.is_none() {
                let waits = self
                    .scenario
                    .contract
                    .ids()
                    .find(|id| self.may_use(id.0, home) && self.kernel.waiting_in(id.0) > 0);
                audit.expect(self.now, waits.is_none(), || {
                    let name = waits.map(|id| self.scenario.contract.unit(id).path.as_str());
                    format!("CPU {cpu} idles while a task of {} waits", name.unwrap_or_default())
                });
            } else if home != NOBODY && runs != home && runs != KERNEL {
                audit.expect(self.now, self.kernel.can_come_back(cpu), || {
                    format!("CPU {cpu} is on loan, and its owner cannot call it back")
                });
            }
        }
    }

    /// Whether a unit's tasks may run on an idle CPU of that owner.
    fn may_use(&self, unit: u32, home: u32) -> bool {
        let flags = |unit| self.kernel.unit(unit).flags;
        home == NOBODY || home == unit || (flags(home) & LENDS != 0 && flags(unit) & BORROWS != 0)
    }

    /// Every call-back within its bound (seed 000, section 3.1), and no wait for a CPU beyond a bound.
    fn audit_call_backs(&mut self, audit: &mut Audit) {
        let costs = &self.scenario.hardware.kernel;
        let bound = match costs.call_back {
            CallBack::Now => costs.ipi_ns,
            CallBack::Tick | CallBack::Entry => costs.tick_ns,
        };
        let most: u64 = audit.runnable_max.iter().map(|n| u64::from(*n)).sum();
        let baseline = self.kernel.patience(costs.switch_ns, self.tasks.len() as u64);
        for id in self.scenario.contract.ids() {
            let unit = self.kernel.unit(id.0);
            audit.expect(self.now, unit.recall_ns_max <= bound, || {
                let name = &self.scenario.contract.unit(id).path;
                format!(
                    "{name}: a CPU came back {} ns after its call, at most {bound} ns are allowed",
                    unit.recall_ns_max
                )
            });
            // A unit that owns a part of a CPU waits for its turn, and its tasks share what it gets then.
            // `shared` may be entitled to nothing: it runs on what the others lend, and waits for as long as they do not.
            let part = match audit.entitled_min[id.index()] {
                0 => continue,
                least => MILLIONTH.div_ceil(least),
            };
            let turns = self.scenario.contract.units.len() as u64 + 4 * part;
            let queue = 4 * (costs.slice_ns + costs.switch_ns) * (most + 1) * part;
            let own = self.scenario.contract.machine.rotation_ns * turns + queue;
            let bound = baseline.unwrap_or(own);
            let waited = audit.waited_max[id.index()];
            audit.expect(self.now, waited <= bound, || {
                let name = &self.scenario.contract.unit(id).path;
                format!("{name}: a task waited {waited} ns for a CPU, at most {bound} ns are explained by its queue")
            });
        }
    }
}
