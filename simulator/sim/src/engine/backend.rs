//! The simulated machine as the steward sees it: what it can enforce, what there is to see, and how orders are carried out.
//!
//! The loop is the daemon's own ([`Steward`]). A turn is due when the last plan asked for it, when a unit comes that was
//! not there, and at once when a unit that the plan watches is refused memory: what an alarm is on a live machine, the
//! kernel's own call of the policy is here.
//!
//! What the machine can enforce is that of the kernel that it has ([`Enforces`]). Seed 000's hands out frames itself,
//! refuses what is beyond a unit's bound, pages out on behalf of a unit, and schedules its disks by shares. Linux has
//! bounds, protection and one reclaim for memory, and rates and weights for disks; the facts about it are those that a
//! live machine tells, as often and as late as there: those of disks are up to [`FRESH_NS`] old, and an alarm brings the
//! next turn forward, to [`ALARM_NS`] after the last one, instead of being one.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::{NOBODY, UnitRules};
use commonhold_ledger::Statement;
use commonhold_policy::disk::FRESH_NS;
use commonhold_policy::memory::{EARLY_NS, frames};
use commonhold_policy::plan::{DiskOrder, MemoryOrder};
use commonhold_policy::{
    DiskFacts, DiskMeans, DiskUse, Frames, Means, MemoryFacts, MemoryMeans, Plan, Snapshot, SwitchLoans,
    Time, UnitFacts, UnitMemory,
};
use commonhold_steward::{ALARM_NS, Backend, Rules, Steward, SwitchUpdate, Switches};

use super::Engine;
use crate::scenario::{Enforces, MemoryLoans, Scenario};

/// What the machine remembers of the orders that hold.
#[derive(Debug)]
pub(super) struct BackendState {
    switches: Switches,
    /// When facts of memory are due, and when they were given last.
    memory_due: Time,
    memory_at: Option<Time>,
    /// Whether this turn's snapshot has them.
    memory_given: bool,
    /// A unit that is watched is short of memory.
    alarm: bool,
    /// The units that are watched.
    watched: Vec<UnitId>,
    /// How often each unit was seen to be short; and at the look before the last.
    refused: Vec<u64>,
    refused_before: Vec<u64>,
    /// The last look that was one of the policy's periods.
    period_at: Option<Time>,
    /// The facts of disks that were given last, and when.
    disks: Option<(Time, Vec<DiskFacts>)>,
    /// When the loop had its last turn, and when it has the next one.
    turned_at: Option<Time>,
    next_turn: Time,
}

impl BackendState {
    pub(super) fn new(scenario: &Scenario) -> BackendState {
        let contract = &scenario.contract;
        BackendState {
            switches: Switches::new(contract),
            refused: vec![0; contract.units.len()],
            refused_before: vec![0; contract.units.len()],
            period_at: None,
            disks: None,
            turned_at: None,
            next_turn: 0,
            memory_due: 0,
            memory_at: None,
            memory_given: false,
            alarm: false,
            watched: Vec::new(),
        }
    }
}

impl Backend for Engine<'_> {
    type Error = Infallible;

    fn means(&self) -> Means {
        let kernel = &self.scenario.hardware.kernel;
        let seats = self.seating.means();
        let brings = self.brings();
        let gangs = self.seating.has_gangs();
        let cpus =
            Means { cpu_sets: true, weights: true, switches: true, seats, gangs, brings, ..Means::NONE };
        if self.enforces() == Enforces::Linux {
            let memory = MemoryMeans {
                bounds: true,
                guarantees: true,
                reclaim: true,
                alarms: true,
                kill_order: false,
                frames: None,
            };
            return Means {
                memory,
                disk: DiskMeans { caps: true, weights: true, ..DiskMeans::NONE },
                ..cpus
            };
        }
        let frames = Frames {
            bytes: kernel.frame_bytes,
            period_ns: kernel.memory_period_ns,
            in_time: kernel.memory_loans == MemoryLoans::InTime,
        };
        Means {
            memory: MemoryMeans { bounds: true, alarms: true, frames: Some(frames), ..MemoryMeans::NONE },
            disk: DiskMeans { shares: true, ..DiskMeans::NONE },
            ..cpus
        }
    }

    fn now(&self) -> Time {
        self.now
    }

    /// A simulated process is in its unit, and under the orders in force, from its first instruction: the workload names
    /// the unit, and `each` makes none here.
    fn settle_members(
        &mut self,
        _: Time,
        _: &mut Contract,
        _: &BTreeSet<UnitId>,
    ) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn observe(&mut self, now: Time, _: &[UnitId]) -> Result<Snapshot, Infallible> {
        // On Linux, a look that is made for other reasons shortly before stands for this one.
        let early = if self.enforces() == Enforces::Linux { EARLY_NS } else { 0 };
        let due = self.held.alarm || now.saturating_add(early) >= self.held.memory_due;
        self.held.memory_given = due;
        let memory = due.then(|| self.memory_facts());
        let mut snapshot = Snapshot { memory, ..self.snapshot() };
        if self.enforces() == Enforces::Linux {
            match &self.held.disks {
                Some((at, facts)) if now < at + FRESH_NS => snapshot.disks.clone_from(facts),
                _ => self.held.disks = Some((now, snapshot.disks.clone())),
            }
        }
        Ok(snapshot)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Infallible> {
        for update in self.held.switches.apply(plan) {
            self.tell(update);
        }
        if let Some(memory) = &plan.decisions.memory {
            self.held.memory_due = memory.next;
            self.held.watched.clone_from(&memory.watch);
            self.memory.begin_look();
        } else if self.held.memory_given && self.enforces() == Enforces::Irix {
            // Memory is not held. A live machine tells of it all the same.
            self.held.memory_due = Time::MAX;
        }
        self.order_seats(plan);
        if !plan.orders.gangs.is_empty() {
            self.order_gangs(plan);
        }
        for step in &plan.orders.memory {
            self.order_memory(&step.action);
        }
        for step in &plan.orders.disk {
            self.order_disk(&step.action);
        }
        Vec::new()
    }
}

impl Engine<'_> {
    fn order_memory(&mut self, order: &MemoryOrder) {
        match *order {
            MemoryOrder::Allow { unit, bytes } if self.enforces() == Enforces::Irix => {
                let frames = bytes.map(|bytes| bytes / self.frame_bytes());
                self.memory.allow_unit(unit, frames);
            }
            MemoryOrder::Allow { unit, bytes } => self.memory.bound(unit, bytes),
            MemoryOrder::Guarantee { unit, min, low, own } => self.memory.protect(unit, min, low, own),
            MemoryOrder::Reclaim { unit, bytes, .. } => {
                let taken = self.memory.take(unit, bytes);
                self.follow_reclaim(taken);
            }
            // No process is killed here, and the means say so.
            MemoryOrder::Expose { .. } => {}
        }
    }

    fn order_disk(&mut self, order: &DiskOrder) {
        let (DiskOrder::Share { disk, .. }
        | DiskOrder::Cap { disk, .. }
        | DiskOrder::Weigh { disk, .. }
        | DiskOrder::Stop { disk, .. }) = order;
        let Some(at) = self.scenario.hardware.disks.iter().position(|other| other.name == *disk) else {
            return;
        };
        let (drive, now) = (&mut self.drives[at], self.now);
        match *order {
            DiskOrder::Share { unit, share, .. } => drive.share_out(unit, share),
            DiskOrder::Cap { unit, read, write, .. } => drive.cap(now, unit, read, write),
            DiskOrder::Weigh { unit, weight, .. } => drive.weigh(now, unit, weight),
            // Rates are held by the disk here, and the means say so.
            DiskOrder::Stop { .. } => {}
        }
        self.drive_on(at);
    }

    /// Whether units lend and borrow CPUs.
    pub(super) fn prepare_units(&mut self) {
        for (unit, rules) in self.held.switches.units().collect::<Vec<_>>() {
            self.tell(SwitchUpdate::Unit(unit, rules));
        }
    }

    fn tell(&mut self, update: SwitchUpdate) {
        match update {
            SwitchUpdate::Unit(unit, Rules { parent, weight, flags, credit_ms, discipline, deadline }) => {
                let parent = parent.map_or(NOBODY, |parent| parent.0);
                let rules = UnitRules { parent, weight, flags, credit_ms, discipline, deadline };
                let taken = self.kernel.set_unit(self.now, unit.0, rules);
                self.audit.expect(self.now, taken, || {
                    format!("the scheduler refused a weight of {weight} for unit number {}", unit.0)
                });
            }
            SwitchUpdate::Own(cpu, unit) => {
                self.kernel.own(self.now, cpu, unit.map_or(NOBODY, |unit| unit.0));
            }
        }
    }

    /// What there is to see.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
        let units = (0..self.scenario.contract.units.len()).map(|unit| self.unit_facts(unit)).collect();
        Snapshot {
            at: self.now,
            units,
            idle_ns: self.cpus.iter().map(|cpu| cpu.idle_ns).sum(),
            disks: (0..self.drives.len()).map(|drive| self.disk_facts(drive)).collect(),
            jobs: self.jobs(),
            ..Snapshot::default()
        }
    }

    fn unit_facts(&self, unit: usize) -> UnitFacts {
        let number = super::number(unit);
        let (counted, account) = (self.kernel.unit(number), self.kernel.account(number));
        UnitFacts {
            at: self.now,
            processes: self.units.present[unit],
            runnable: self.units.runnable[unit] + self.units.stopped[unit],
            used_ns: account.used_ns(),
            waited_ns: self.units.waited_ns[unit],
            outside: 0,
            bus: None,
            loans: SwitchLoans {
                lent_ns: account.lent_ns,
                borrowed_ns: account.borrowed_ns,
                called_back: counted.recalls,
                call_back_sum_ns: counted.recall_ns,
                call_back_max_ns: counted.recall_ns_max,
            },
        }
    }

    fn disk_facts(&self, drive: usize) -> DiskFacts {
        if self.enforces() == Enforces::Linux {
            return self.drives[drive].facts(self.now, &self.stalls);
        }
        let (disk, facts) =
            (&self.scenario.hardware.disks[drive], &self.scenario.hardware.machine.disks[drive]);
        DiskFacts {
            name: disk.name.clone(),
            at: self.now,
            bytes_per_s: facts.bytes_per_s,
            units: self.used(drive),
            ..DiskFacts::default()
        }
    }

    /// What units did to a disk, and how long they were stalled for disks, as a live kernel tells.
    fn used(&self, drive: usize) -> Vec<DiskUse> {
        let stalled = |unit: UnitId| Some(self.stalls.stalled_ns(self.now, unit));
        let used = self.drives[drive].used();
        (0..)
            .take(used.len())
            .map(UnitId)
            .zip(used)
            .map(|(unit, used)| DiskUse { stalled_ns: stalled(unit), ..used })
            .collect()
    }

    /// The facts about memory. A unit's shortage is reported once.
    fn memory_facts(&mut self) -> MemoryFacts {
        let frame = self.frame_bytes();
        if self.now >= self.held.memory_due {
            self.held.period_at = Some(self.now);
        }
        (self.held.memory_at, self.held.alarm) = (Some(self.now), false);
        self.held.refused_before.clone_from(&self.held.refused);
        if self.enforces() == Enforces::Linux {
            let facts = self.memory.live_facts(self.now, self.swap_free());
            for (refused, unit) in self.held.refused.iter_mut().zip(&facts.units) {
                *refused = unit.refused;
            }
            return facts;
        }
        let seen = self.memory.facts();
        // What could be taken from whom is asked only where loans are bounded by it.
        let in_time = self.scenario.hardware.kernel.memory_loans == MemoryLoans::InTime;
        let giveable = if in_time { self.memory.giveable() } else { Vec::new() };
        let unit = |(id, facts): (UnitId, &frames::Facts)| {
            let refused = &mut self.held.refused[id.index()];
            *refused += u64::from(facts.short);
            let has = giveable.get(id.index()).copied().unwrap_or_default();
            let (written, taking) = self.loans.written(id, self.now);
            UnitMemory {
                used: facts.used * frame,
                anonymous: has.anonymous * frame,
                dirty: has.dirty * frame,
                // What is on its way out, or could not be taken for another reason.
                kernel: facts.used.saturating_sub(has.clean + has.dirty + has.anonymous) * frame,
                refused: *refused,
                taken: written.bytes,
                taking_ns: written.ns,
                taking,
                ..UnitMemory::default()
            }
        };
        let units = self.scenario.contract.ids().zip(&seen).map(unit).collect();
        let used = |id: UnitId| self.memory.used(id) * frame;
        MemoryFacts {
            total: self.memory.frames() * frame,
            kernel: used(UnitId::KERNEL),
            shared: used(UnitId::SHARED),
            swap_free: self.swap_free(),
            swap_next: 0,
            packed_permille: 0,
            units,
        }
    }

    /// Whether the last look at memory was one at which loans may grow.
    pub(super) fn is_memory_period(&self) -> bool {
        self.held.period_at == Some(self.now)
    }

    /// Whether a unit was short at the last look.
    pub(super) fn is_short(&self, id: UnitId, facts: &MemoryFacts) -> bool {
        facts.units.get(id.index()).is_some_and(|unit| unit.refused > self.held.refused_before[id.index()])
    }

    /// A turn of the loop is due.
    pub(super) fn policy_event(&mut self) {
        self.clock.store(self.now, Ordering::Relaxed);
        self.turn();
        self.audit_all();
    }

    /// The next change of rights has its time.
    pub(super) fn await_change(&mut self) {
        if let Some(next) = self.scenario.workload.changes.get(self.changed) {
            self.timers.set(self.policy_timer() + 2, next.at_ns);
        }
    }

    /// Changes of rights are made: as on a live machine, by a turn of the loop.
    pub(super) fn rights_event(&mut self) {
        let changes = &self.scenario.workload.changes[self.changed..];
        let due = changes.iter().take_while(|change| change.at_ns <= self.now).count();
        if let Some(steward) = &mut self.steward {
            changes[..due].iter().for_each(|change| steward.queue_change(change.change));
            self.rounds.due.drain(..).for_each(|change| steward.queue_change(change));
        }
        self.changed += due;
        self.await_change();
        self.policy_event();
    }

    /// A unit is short of memory: where the plan watches it, the loop has its turn at once, or on Linux soon, as the
    /// daemon has.
    pub(super) fn alarm(&mut self, unit: UnitId) {
        if !self.held.watched.contains(&unit) || self.held.memory_at == Some(self.now) {
            return;
        }
        self.held.alarm = true;
        match self.enforces() {
            Enforces::Irix => self.turn(),
            // The loop is woken, and the task goes on meanwhile.
            Enforces::Linux => {
                let soon = self.held.turned_at.map_or(self.now, |at| self.now.max(at + ALARM_NS));
                self.turn_by(soon);
            }
        }
    }

    /// The loop has its next turn then, if not before.
    pub(super) fn turn_by(&mut self, at: Time) {
        if at < self.held.next_turn {
            self.held.next_turn = at;
            self.timers.set(self.policy_timer(), at);
        }
    }

    /// A unit came that was not there: its memory is bounded at the next look, as on a live machine. A machine that hands
    /// out frames itself looks when one is asked for.
    pub(super) fn memory_is_due(&mut self) {
        if self.enforces() == Enforces::Linux {
            self.held.memory_due = self.held.memory_due.min(self.now);
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) {
        let Some(mut steward) = self.steward.take() else { return };
        if self.pages_come().is_some_and(|at| at <= self.now) {
            self.take_in_pages();
        }
        let turn = match steward.turn(self, 0) {
            Ok(turn) => turn,
            Err(never) => match never {},
        };
        self.steward = Some(steward);
        for wrong in &turn.wrong {
            self.audit.note(self.now, &wrong.to_string());
        }
        if let (Some(facts), Some(plan)) = (&turn.snapshot.memory, &turn.plan.decisions.memory) {
            self.note_loans(facts, plan, &turn.plan.orders.memory);
            self.collect_debts();
            self.expect_no_rest();
        }
        self.note_entitled(&turn.plan.decisions.cpu.entitled);
        (self.held.turned_at, self.held.next_turn) = (Some(self.now), turn.next(self.now));
        let pages = self.pages_come().unwrap_or(Time::MAX);
        self.held.next_turn = self.held.next_turn.min(pages);
        self.timers.set(self.policy_timer(), self.held.next_turn);
    }

    /// The ledger's last entry.
    pub(super) fn last_look(&mut self) {
        let snapshot = self.snapshot();
        let Some(steward) = &mut self.steward else { return };
        for imbalance in steward.account(&snapshot) {
            self.audit.note(self.now, &imbalance.to_string());
        }
    }

    /// The ledger's accounts.
    pub(super) fn statement(&self) -> Statement {
        self.steward.as_ref().map_or_else(Statement::default, Steward::statement)
    }
}

#[cfg(test)]
mod tests;
