//! Invariants that are checked in every simulation, and must hold on any machine, whatever the policies
//! decide.
//!
//! - Conservation: the CPU time that units used is the time that CPUs were busy, and busy, idle and offline
//!   time sum to the elapsed time. Free frames and the frames of all owners sum to the machine's, and each
//!   owner exists. Transferred sectors equal charged sectors.
//! - No task is forgotten: every runnable task is on a CPU or in a queue.
//! - No task starves: no wait for a CPU, ended or not, is longer than the bound of its queue (see `patience`)
//!   or of the baseline scheduler.
//! - Loans end: every CPU that was called back came back within a tick, or within an interrupt. Memory is
//!   lent only up to what would be back in time, and comes back without pauses (see `loans`).
//!
//! A violation is noted with its time, and the run continues: later violations may follow from the first.

use commonhold_contract::{Scheme, UnitId};

use commonhold_dispatch::{ANYWHERE, Account, BORROWS, KERNEL, LENDS, NOBODY, TaskId};
use commonhold_policy::membership;
use commonhold_policy::tree::outermost;

use super::Engine;
use super::files::Purpose;
use super::patience::Wait;
use super::task::{Task, TaskState};
use crate::Time;
use crate::outcome::Outcome;
use crate::scenario::Scheduler;

/// The largest number of notes kept. Further violations are only counted.
const NOTES_MAX: usize = 20;

/// The results of the checks so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audit {
    pub(crate) notes: Vec<String>,
    pub(crate) checks: u64,
    pub(crate) broken: u64,
    /// The longest wait for a CPU, by unit.
    pub(crate) waited_max: Vec<Time>,
}

impl Audit {
    pub(super) fn new(units: usize) -> Audit {
        Audit { waited_max: vec![0; units], ..Audit::default() }
    }

    /// Records a violation.
    pub(super) fn note(&mut self, now: Time, what: &str) {
        self.broken += 1;
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("at {now} ns: {what}"));
        }
    }

    /// Records a wait for a CPU that has ended.
    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        let longest = &mut self.waited_max[unit as usize];
        *longest = (*longest).max(span);
    }

    /// Counts a check, and records a violation, described by `what`, if the check does not hold.
    pub(super) fn expect(&mut self, now: Time, holds: bool, what: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.note(now, &what());
        }
    }
}

impl Engine<'_> {
    /// Runs all checks of the present state.
    pub(super) fn audit_all(&mut self) {
        let mut audit = core::mem::take(&mut self.audit);
        self.audit_cpu_time(&mut audit);
        self.audit_tasks(&mut audit);
        self.audit_owners(&mut audit);
        self.audit_call_backs(&mut audit);
        self.audit_waits(&mut audit);
        self.audit_locks(&mut audit);
        self.audit_frames(&mut audit);
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

    /// Busy, idle and offline time sum to the elapsed time, and busy time is charged to units and to jobs.
    fn audit_cpu_time(&mut self, audit: &mut Audit) {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
            let cpu = &self.cpus[cpu];
            audit.expect(self.now, cpu.busy_ns + cpu.idle_ns + cpu.offline_ns == self.now, || {
                format!(
                    "a CPU was busy for {} ns, idle for {} ns and offline for {} ns, of {}",
                    cpu.busy_ns, cpu.idle_ns, cpu.offline_ns, self.now
                )
            });
            audit.expect(self.now, cpu.is_online || cpu.task.is_none(), || {
                "a CPU that is offline runs a task".to_owned()
            });
        }
        let busy: u64 = self.cpus.iter().map(|cpu| cpu.busy_ns).sum();
        let charged: u64 = (0..self.scenario.contract.units.len())
            .map(|unit| self.kernel.account(super::number(unit)).used_ns())
            .sum();
        let running = self.kernel.uncharged(self.now);
        audit.expect(self.now, busy == charged + running, || {
            format!(
                "CPUs were busy for {busy} ns, units were charged {charged} ns and {running} ns are yet to be charged"
            )
        });
        let spent: u64 = self.instances.iter().map(|job| job.spent.on_cpus_ns()).sum();
        let running = self.cpus.iter().filter(|cpu| cpu.task.is_some());
        let unpaid: u64 = running.map(|cpu| cpu.since.saturating_sub(self.now)).sum();
        audit.expect(self.now, spent == busy + unpaid, || {
            format!(
                "CPUs were busy for {busy} ns, jobs spent {spent} ns there, {unpaid} ns of that on switches to come"
            )
        });
    }

    /// The scheduler knows all runnable tasks, disks work while tasks wait for them, and without isolation no
    /// CPU idles while a task waits for a CPU.
    fn audit_tasks(&mut self, audit: &mut Audit) {
        let runnable: u64 = self.units.runnable.iter().map(|n| u64::from(*n)).sum();
        let known = self.kernel.runnable();
        audit.expect(self.now, runnable == known, || {
            format!("{runnable} tasks are runnable, and {known} are on CPUs and in queues")
        });
        let waits_for_disk =
            |task: &&Task| matches!(task.state, TaskState::Transfer | TaskState::File | TaskState::Throttled);
        let (stuck, under_way) = (
            self.tasks.iter().filter(waits_for_disk).count(),
            self.purposes.len() - self.free_purposes.len(),
        );
        audit.expect(self.now, stuck == 0 || under_way > 0, || {
            format!("{stuck} tasks wait for disks, none of which has anything to do")
        });
        let idle = self.cpus.iter().filter(|cpu| cpu.is_online && cpu.task.is_none()).count();
        // A kicked CPU is about to take a waiting task, so it does not count as idle beside a queue.
        let settled = !self.kernel.has_kicks() && self.cpus.iter().all(|cpu| !cpu.is_kicked());
        // Under Hurricane, a task with a dedicated CPU waits for that CPU while others idle.
        let runs_on_any_cpu = self.scenario.hardware.kernel.scheduler != Scheduler::Hurricane;
        if self.scenario.contract.machine.scheme == Scheme::Smp && settled && runs_on_any_cpu {
            let waiting = self.kernel.waiting();
            audit.expect(self.now, idle == 0 || waiting == 0, || {
                format!("{idle} CPUs idle while {waiting} tasks wait")
            });
        }
    }

    /// Free frames and the frames of all owners sum to the machine's; each owner is a live process, a file or
    /// the kernel; and the disks have a request for each page that is being written.
    fn audit_frames(&self, audit: &mut Audit) {
        let memory = self.memory.check();
        audit.expect(self.now, memory.is_ok(), || memory.err().unwrap_or_default());
        for id in self.scenario.contract.ids() {
            let (spaces, present) = (self.memory.spaces(id), u64::from(self.units.present[id.index()]));
            audit.expect(self.now, spaces == present, || {
                let name = &self.scenario.contract.unit(id).path;
                format!("{name}: {spaces} processes have memory, of {present} that are there")
            });
        }
        let (being_written, requested) =
            (self.memory.being_written(), self.purposes.iter().map(Purpose::pages_out).sum::<u64>());
        audit.expect(self.now, being_written == requested, || {
            format!("{being_written} pages are being written, and disks have {requested} of them to write")
        });
    }

    /// A task runs for another unit only if it holds a lock with inheritance that a task of that unit waits
    /// for.
    fn audit_locks(&self, audit: &mut Audit) {
        let wrong = self.find_wrong_unit();
        audit.expect(self.now, wrong.is_none(), || {
            let unit = |task: &Task| self.scenario.contract.units[task.runs_for as usize].path.as_str();
            let name = wrong.map(|id| unit(&self.tasks[id as usize])).unwrap_or_default();
            format!("a task runs for {name}, but no task of that unit waits for it")
        });
    }

    /// No CPU idles while a task waits that may run there. A CPU that runs another unit's task can be called
    /// back, or the task runs there for a moment to rescue it from starvation.
    fn audit_owners(&mut self, audit: &mut Audit) {
        let settled = !self.kernel.has_kicks() && self.cpus.iter().all(|cpu| !cpu.is_kicked());
        if self.scenario.contract.machine.scheme == Scheme::Smp || !settled {
            return;
        }
        for cpu in 0..super::number(self.cpus.len()) {
            if self.cpus[cpu as usize].is_deferred() || !self.cpus[cpu as usize].is_online {
                continue;
            }
            let (home, runs) = (self.kernel.home(cpu), self.kernel.runs(cpu));
            if self.cpus[cpu as usize].task.is_none() {
                let waits = self
                    .scenario
                    .contract
                    .ids()
                    .find(|id| self.may_use(*id, home) && self.kernel.waiting_in(id.0) > 0);
                audit.expect(self.now, waits.is_none(), || {
                    let name = waits.map(|id| self.scenario.contract.unit(id).path.as_str());
                    format!("CPU {cpu} idles while a task of {} waits", name.unwrap_or_default())
                });
            } else if home != NOBODY && !self.is_at_home_anywhere(runs) && self.outermost(runs) != home {
                let comes_back = self.kernel.can_come_back(cpu) || self.kernel.is_rescuing(cpu);
                audit.expect(self.now, comes_back, || {
                    format!("CPU {cpu} is on loan, and its owner cannot call it back")
                });
            }
        }
    }

    /// Whether a unit's tasks run on any CPU in their own right, so that no CPU is on loan to the unit.
    fn is_at_home_anywhere(&self, unit: u32) -> bool {
        unit == KERNEL || self.kernel.unit(unit).flags & ANYWHERE != 0
    }

    /// Whether a unit's tasks may run on an idle CPU whose owner is `home`.
    fn may_use(&self, unit: UnitId, home: u32) -> bool {
        let flags = |unit| self.kernel.unit(unit).flags;
        home == NOBODY
            || home == self.outermost(unit.0)
            || flags(unit.0) & ANYWHERE != 0
            || (flags(home) & LENDS != 0 && flags(unit.0) & BORROWS != 0)
    }

    /// The outermost unit around a unit: the unit itself at the top level.
    fn outermost(&self, unit: u32) -> u32 {
        outermost(&self.scenario.contract, UnitId(unit)).0
    }

    /// Every call-back of a CPU took at most its bound (seed 000, section 3.1).
    fn audit_call_backs(&mut self, audit: &mut Audit) {
        let bound = self.patience.call_back_ns();
        for id in self.scenario.contract.ids() {
            let unit = self.kernel.unit(id.0);
            audit.expect(self.now, unit.recall_ns_max <= bound, || {
                let name = &self.scenario.contract.unit(id).path;
                format!(
                    "{name}: a CPU came back {} ns after its call, at most {bound} ns are allowed",
                    unit.recall_ns_max
                )
            });
        }
    }

    /// No wait for a CPU in progress exceeds its bound.
    fn audit_waits(&mut self, audit: &mut Audit) {
        let late = (0..).zip(&self.tasks).find_map(|(id, task)| {
            self.check_wait(task.waits?, task.runs_for).err().map(|bound| (id, bound))
        });
        audit.expect(self.now, late.is_none(), || {
            late.map(|(id, bound)| self.describe_late_wait(id, bound)).unwrap_or_default()
        });
    }

    /// Checks that the ledger, which knows only plans and snapshots, has the same accounts as the engine. The
    /// ledger's account of a unit includes its sub-units. Adds the results of these checks to the outcome.
    pub(super) fn audit_ledger(&self, mut outcome: Outcome) -> Outcome {
        let mut audit = self.audit.clone();
        let ledger = &outcome.ledger;
        let totals = (ledger.capacity_ns, ledger.idle_ns);
        audit.expect(self.now, totals == (outcome.busy_ns + outcome.idle_ns, outcome.idle_ns), || {
            format!(
                "of the CPUs' time the ledger has {totals:?}, and {} ns were busy, {} ns idle",
                outcome.busy_ns, outcome.idle_ns
            )
        });
        let contract = &self.scenario.contract;
        for (id, account) in contract.listed().into_iter().zip(&ledger.accounts) {
            let family = || contract.held().filter(|other| membership::is_within(contract, *other, id));
            let sum = |figure: fn(&Account) -> u64| {
                family().map(|id| figure(self.kernel.account(id.0))).sum::<u64>()
            };
            let booked = [account.used_ns, account.lent_ns, account.borrowed_ns, account.called_back];
            let counted = [
                sum(Account::used_ns),
                sum(|account| account.lent_ns),
                sum(|account| account.borrowed_ns),
                family().map(|id| self.kernel.unit(id.0).recalls).sum(),
            ];
            audit.expect(self.now, booked == counted, || {
                format!(
                    "{}: used, lent, borrowed, called back are {booked:?} in the ledger, and {counted:?}",
                    account.unit
                )
            });
            let mean = self.units.entitled_mean(id.index(), self.now);
            let entitled = u128::from(mean) * u128::from(self.now) / 1_000_000;
            // Each entry of the ledger is rounded down to a ns, and the mean to a millionth.
            let error = u128::from(account.entitled_ns).abs_diff(entitled);
            let error_max = u128::from(self.units.plans) + u128::from(self.now) / 1_000_000 + 1;
            audit.expect(self.now, error <= error_max, || {
                format!(
                    "{}: entitled to {} ns in the ledger, and to {entitled} ns",
                    account.unit, account.entitled_ns
                )
            });
        }
        (outcome.checks, outcome.broken, outcome.notes) = (audit.checks, audit.broken, audit.notes);
        outcome
    }

    /// Ends a task's wait for a CPU: records its length, and checks its bound.
    pub(super) fn end_wait(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        let (since, unit, runs_for) = (task.since, task.unit, task.runs_for);
        let Some(wait) = task.waits else { return };
        self.audit.waited(unit, self.now - since);
        self.units.waited(unit, self.now - since);
        if let Err(bound) = self.check_wait(wait, runs_for) {
            let what = self.describe_late_wait(id, bound);
            self.audit.note(self.now, &what);
        }
        self.tasks[id as usize].waits = None;
    }

    /// Checks that a wait is within its bound so far. The error is the bound.
    fn check_wait(&self, wait: Wait, runs_for: u32) -> Result<(), Time> {
        match self.kernel.patience(self.scenario.hardware.kernel.switch_ns, self.tasks.len() as u64) {
            Some(bound) if self.now - wait.since > bound => Err(bound),
            Some(_) => Ok(()),
            None => self.patience.check_wait(self.now, wait, runs_for),
        }
    }

    /// The note about a wait that exceeds its bound.
    fn describe_late_wait(&self, id: TaskId, bound: Time) -> String {
        let task = &self.tasks[id as usize];
        let name = &self.scenario.contract.units[task.runs_for as usize].path;
        let waited = task.waits.map_or(0, |wait| self.now - wait.since);
        format!("{name}: a task waited {waited} ns for a CPU, at most {bound} ns are explained by its queue")
    }
}
