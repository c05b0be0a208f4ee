//! The simulated machine as a backend of the steward: its means, its snapshots, and how it carries out
//! orders.
//!
//! The loop is the daemon's own ([`Steward`]). It takes a *turn*
//! - when the last plan asked for it;
//! - when a unit gets its first process;
//! - when a unit that the plan watches is refused memory (an *alarm*).
//!
//! The means are those of the simulated kernel ([`Enforces`]):
//! - Seed 000's kernel grants frames itself, refuses requests beyond a unit's bound, pages out on behalf of a
//!   unit, and schedules its disks by shares. An alarm is a turn at once, as if the kernel called the policy.
//! - Linux has bounds, protection and one reclaim for memory, and rates and weights for disks. Its facts are
//!   as fresh as on a live machine: facts of disks are up to [`FRESH_NS`] old. An alarm brings the next turn
//!   forward, to [`ALARM_NS`] after the last turn.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::{Holder, NOBODY, Reload, UnitRules};
use commonhold_ledger::{Statement, Verdict};
use commonhold_machine::CpuSet;
use commonhold_policy::disk::FRESH_NS;
use commonhold_policy::memory::{EARLY_NS, frames};
use commonhold_policy::plan::{DiskOrder, MemoryOrder};
use commonhold_policy::{
    DiskFacts, DiskMeans, DiskUse, Frames, Means, MemoryFacts, MemoryMeans, Occupant, Plan, Snapshot,
    SwitchLoans, Time, UnitFacts, UnitMemory, WaitedFor,
};
use commonhold_steward::{ALARM_NS, Backend, Rules, Steward, SwitchUpdate, Switches};

use super::Engine;
use super::switcher::pools_by_cpu;
use crate::scenario::{Enforces, MemoryLoans, Scenario};

/// The backend's state between turns: the orders in force, and when facts are due.
#[derive(Debug)]
pub(super) struct BackendState {
    switches: Switches,
    /// When facts about memory are due, and when a snapshot had them last.
    memory_due: Time,
    memory_at: Option<Time>,
    /// Whether this turn's snapshot has facts about memory.
    memory_given: bool,
    /// A watched unit is short of memory.
    alarm: bool,
    /// The units that the last plan watches.
    watched: Vec<UnitId>,
    /// By unit: how often a sample of memory found the unit short, up to the last sample and up to the one
    /// before.
    refused: Vec<u64>,
    refused_before: Vec<u64>,
    /// The last sample of memory at which the policy's period had passed, rather than an alarm.
    period_at: Option<Time>,
    /// The latest facts about disks, and their time.
    disks: Option<(Time, Vec<DiskFacts>)>,
    /// The time of the loop's last turn, and of its next.
    turned_at: Option<Time>,
    next_turn: Time,
    /// By unit: the verdict on the run so far.
    verdicts: Vec<Verdict>,
    /// When the contract was last judged.
    judged_at: Time,
}

/// The time between two judgements of the contract, each about the last ten seconds.
const JUDGE_NS: Time = 1_000_000_000;

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
            verdicts: vec![Verdict::CannotTell; contract.units.len()],
            judged_at: 0,
        }
    }
}

impl Backend for Engine<'_> {
    type Error = Infallible;

    fn means(&self) -> Means {
        let kernel = &self.scenario.hardware.kernel;
        let seats = self.seating.means();
        let brings = self.can_migrate_pages();
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

    /// Does nothing: a simulated process is in its unit, and under the orders in force, from its first
    /// instruction. The workload names the unit, and the key `each` makes no units in a simulation.
    fn settle_members(
        &mut self,
        _: Time,
        _: &mut Contract,
        _: &BTreeSet<UnitId>,
    ) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn observe(&mut self, now: Time, _: &[UnitId]) -> Result<Snapshot, Infallible> {
        // On Linux, a turn shortly before the facts are due samples memory too, as the daemon's does.
        let early = if self.enforces() == Enforces::Linux { EARLY_NS } else { 0 };
        let due = self.backend.alarm || now.saturating_add(early) >= self.backend.memory_due;
        self.backend.memory_given = due;
        let memory = due.then(|| self.memory_facts());
        let mut snapshot = Snapshot { memory, ..self.snapshot() };
        if self.enforces() == Enforces::Linux {
            match &self.backend.disks {
                Some((at, facts)) if now < at + FRESH_NS => snapshot.disks.clone_from(facts),
                _ => self.backend.disks = Some((now, snapshot.disks.clone())),
            }
        }
        Ok(snapshot)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Infallible> {
        for update in self.backend.switches.apply(plan) {
            self.apply_switch(update);
        }
        if let Some(memory) = &plan.decisions.memory {
            self.backend.memory_due = memory.next;
            self.backend.watched.clone_from(&memory.watch);
            self.memory.begin_sample();
        } else if self.backend.memory_given && self.enforces() == Enforces::Irix {
            // The plan does not control memory, so facts about it are not needed. A live machine reports them
            // all the same.
            self.backend.memory_due = Time::MAX;
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
            MemoryOrder::Allow { unit, bytes } => self.memory.set_bound(unit, bytes),
            MemoryOrder::Guarantee { unit, min, low, own } => self.memory.protect(unit, min, low, own),
            MemoryOrder::Reclaim { unit, bytes, .. } => {
                let reclaimed = self.memory.order_reclaim(unit, bytes);
                self.finish_reclaim(reclaimed);
            }
            // The means exclude this order: no process is killed in a simulation.
            MemoryOrder::Expose { .. } => {}
        }
    }

    fn order_disk(&mut self, order: &DiskOrder) {
        let (DiskOrder::Share { disk, .. }
        | DiskOrder::Cap { disk, .. }
        | DiskOrder::Weigh { disk, .. }
        | DiskOrder::Stop { disk, .. }) = order;
        let Some(index) = self.scenario.hardware.disks.iter().position(|other| other.name == *disk) else {
            return;
        };
        let (drive, now) = (&mut self.drives[index], self.now);
        match *order {
            DiskOrder::Share { unit, share, .. } => drive.set_share(unit, share),
            DiskOrder::Cap { unit, read, write, .. } => drive.cap(now, unit, read, write),
            DiskOrder::Weigh { unit, weight, .. } => drive.weigh(now, unit, weight),
            // The means exclude this order: the simulated disk holds rates itself.
            DiskOrder::Stop { .. } => {}
        }
        self.serve_drive(index);
    }

    /// Gives the switch-time scheduler each unit's rules: its weight, and whether it lends and borrows CPUs.
    pub(super) fn prepare_units(&mut self) {
        for (unit, rules) in self.backend.switches.units().collect::<Vec<_>>() {
            self.apply_switch(SwitchUpdate::Unit(unit, rules));
        }
    }

    /// Gives the switch-time scheduler new rules of a unit, or a new owner of a CPU.
    fn apply_switch(&mut self, update: SwitchUpdate) {
        match update {
            SwitchUpdate::Unit(unit, rules) => {
                let accepted = self.kernel.set_unit(self.now, unit.0, unit_rules(rules));
                self.audit.expect(self.now, accepted, || {
                    format!("the scheduler refused a weight of {} for unit number {}", rules.weight, unit.0)
                });
            }
            SwitchUpdate::Own(cpu, unit) => {
                self.kernel.own(self.now, cpu, unit.map_or(NOBODY, |unit| unit.0));
            }
        }
    }

    /// Makes exactly these CPUs online, and loads the scheduler again with the rules and owners in force, as
    /// the daemon does after hotplug.
    pub(super) fn reload_scheduler(&mut self, online: &CpuSet) {
        let switches = &self.backend.switches;
        let units: Vec<_> = switches.units().map(|(unit, rules)| (unit.0, unit_rules(rules))).collect();
        let owners: Vec<_> = switches.owners().map(|(cpu, unit)| (cpu, unit.0)).collect();
        let Scenario { contract, hardware, .. } = self.scenario;
        let pools =
            pools_by_cpu(contract, &hardware.machine.with_cpus(online), super::number(self.cpus.len()));
        let reload = Reload { units: &units, owners: &owners, pools: &pools };
        self.kernel.set_online(self.now, online, reload);
    }

    /// The facts about all resources but memory, with all progress settled.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
        let units = (0..self.scenario.contract.units.len()).map(|unit| self.unit_facts(unit)).collect();
        Snapshot {
            at: self.now,
            units,
            waited_for: self.waited_for(),
            idle_ns: self.cpus.iter().map(|cpu| cpu.idle_ns).sum(),
            online_ns: self.online_ns(),
            disks: (0..self.drives.len()).map(|drive| self.disk_facts(drive)).collect(),
            jobs: self.jobs(),
            ..Snapshot::default()
        }
    }

    /// What had the CPU while units' tasks waited for it; empty under a baseline. A wait counts when it ends.
    fn waited_for(&mut self) -> Vec<WaitedFor> {
        let Some(others) = self.kernel.waits_for_others() else { return Vec::new() };
        let others =
            others.iter().map(|((waiter, runner), ns)| (*waiter, Occupant::Unit(UnitId(*runner)), *ns));
        let mut listed: Vec<(u32, Occupant, u64)> = others.collect();
        for unit in 0..self.scenario.contract.units.len() {
            let number = super::number(unit);
            let account = self.kernel.account(number);
            for (occupant, holder) in [
                (Occupant::Unit(UnitId(number)), Holder::Own),
                (Occupant::HigherClass, Holder::Higher),
                (Occupant::Idle, Holder::Idle),
                (Occupant::Unknown, Holder::Unknown),
            ] {
                listed.push((number, occupant, account.waited_for_ns(holder)));
            }
        }
        listed.retain(|(_, _, ns)| *ns > 0);
        listed.sort_unstable();
        let wait = |(waiter, occupant, ns)| WaitedFor { waiter: UnitId(waiter), occupant, ns };
        listed.into_iter().map(wait).collect()
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
            limited_ns: 0,
            bus: None,
            loans: SwitchLoans {
                lent_ns: account.lent_ns,
                borrowed_ns: account.borrowed_ns,
                called_back: counted.recalls,
                call_back_sum_ns: counted.recall_ns,
                call_back_max_ns: counted.recall_ns_max,
                late: counted.call_backs().longer_than(self.scenario.contract.machine.call_back_ns),
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
            units: self.disk_use(drive),
            ..DiskFacts::default()
        }
    }

    /// Each unit's transfers of a disk, and how long the unit was stalled on disks, as a live kernel reports
    /// them.
    fn disk_use(&self, drive: usize) -> Vec<DiskUse> {
        let stalled = |unit: UnitId| Some(self.stalls.stalled_ns(self.now, unit));
        let transfers = self.drives[drive].used();
        (0..)
            .take(transfers.len())
            .map(UnitId)
            .zip(transfers)
            .map(|(unit, transfers)| DiskUse { stalled_ns: stalled(unit), ..transfers })
            .collect()
    }

    /// The facts about memory. Resets the marks of units that were short.
    fn memory_facts(&mut self) -> MemoryFacts {
        let frame = self.frame_bytes();
        if self.now >= self.backend.memory_due {
            self.backend.period_at = Some(self.now);
        }
        (self.backend.memory_at, self.backend.alarm) = (Some(self.now), false);
        self.backend.refused_before.clone_from(&self.backend.refused);
        if self.enforces() == Enforces::Linux {
            let facts = self.memory.live_facts(self.now, self.swap_free());
            for (refused, unit) in self.backend.refused.iter_mut().zip(&facts.units) {
                *refused = unit.refused;
            }
            return facts;
        }
        let unit_facts = self.memory.facts();
        // What units could give up is computed only where it bounds loans.
        let in_time = self.scenario.hardware.kernel.memory_loans == MemoryLoans::InTime;
        let giveable = if in_time { self.memory.giveable() } else { Vec::new() };
        let unit = |(id, facts): (UnitId, &frames::Facts)| {
            let refused = &mut self.backend.refused[id.index()];
            *refused += u64::from(facts.short);
            let gives = giveable.get(id.index()).copied().unwrap_or_default();
            let (written, taking) = self.loans.written(id, self.now);
            UnitMemory {
                used: facts.used * frame,
                anonymous: gives.anonymous * frame,
                dirty: gives.dirty * frame,
                // The rest cannot be taken now: it is being written, or `giveable` is not computed.
                kernel: facts.used.saturating_sub(gives.clean + gives.dirty + gives.anonymous) * frame,
                refused: *refused,
                taken: written.bytes,
                taking_ns: written.ns,
                taking,
                ..UnitMemory::default()
            }
        };
        let units = self.scenario.contract.ids().zip(&unit_facts).map(unit).collect();
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

    /// Whether this turn samples memory because the policy's period has passed. Only then may loans grow.
    pub(super) fn is_memory_period(&self) -> bool {
        self.backend.period_at == Some(self.now)
    }

    /// Whether a unit was refused memory between the last two samples; `facts` are those of the last.
    pub(super) fn is_short(&self, id: UnitId, facts: &MemoryFacts) -> bool {
        facts.units.get(id.index()).is_some_and(|unit| unit.refused > self.backend.refused_before[id.index()])
    }

    /// A turn of the loop is due.
    pub(super) fn policy_event(&mut self) {
        self.clock.store(self.now, Ordering::Relaxed);
        self.turn();
        self.audit_all();
    }

    /// Sets the timer of the workload's next timed change of rights.
    pub(super) fn await_change(&mut self) {
        if let Some(next) = self.scenario.workload.changes.get(self.changed) {
            self.timers.set(self.policy_timer() + 2, next.at_ns);
        }
    }

    /// Changes of rights are due: queues them with the steward, and takes a turn, which makes them as on a
    /// live machine.
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

    /// A unit is short of memory. If the plan watches the unit, takes a turn at once, or on Linux brings the
    /// next turn forward, as the daemon does.
    pub(super) fn alarm(&mut self, unit: UnitId) {
        if !self.backend.watched.contains(&unit) || self.backend.memory_at == Some(self.now) {
            return;
        }
        self.backend.alarm = true;
        match self.enforces() {
            Enforces::Irix => self.turn(),
            // The alarm wakes the daemon; the task goes on meanwhile.
            Enforces::Linux => {
                let earliest = self.backend.turned_at.map_or(self.now, |at| self.now.max(at + ALARM_NS));
                self.advance_turn(earliest);
            }
        }
    }

    /// Brings the loop's next turn forward to this time, unless the turn is due before it.
    pub(super) fn advance_turn(&mut self, at: Time) {
        if at < self.backend.next_turn {
            self.backend.next_turn = at;
            self.timers.set(self.policy_timer(), at);
        }
    }

    /// Lets the next turn sample memory, because a unit got its first process and needs a bound. Seed 000's
    /// kernel needs no sample now: it checks each request for frames.
    pub(super) fn sample_memory_next_turn(&mut self) {
        if self.enforces() == Enforces::Linux {
            self.backend.memory_due = self.backend.memory_due.min(self.now);
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) {
        let Some(mut steward) = self.steward.take() else { return };
        if self.next_migration_end().is_some_and(|at| at <= self.now) {
            self.complete_migrations();
        }
        self.check_for_hotplug(&mut steward);
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
        if self.now >= self.backend.judged_at + JUDGE_NS {
            self.judge();
        }
        (self.backend.turned_at, self.backend.next_turn) = (Some(self.now), turn.next(self.now));
        let migration_end = self.next_migration_end().unwrap_or(Time::MAX);
        self.backend.next_turn = self.backend.next_turn.min(migration_end);
        self.timers.set(self.policy_timer(), self.backend.next_turn);
    }

    /// Makes the ledger's last entry, at the end of the run.
    pub(super) fn account_last(&mut self) {
        let snapshot = self.snapshot();
        let Some(steward) = &mut self.steward else { return };
        for imbalance in steward.account(&snapshot) {
            self.audit.note(self.now, &imbalance.to_string());
        }
    }

    /// Judges whether the contract was kept in the last ten seconds. One broken verdict breaks the run's;
    /// without one, the run's is kept if any is.
    pub(super) fn judge(&mut self) {
        self.backend.judged_at = self.now;
        let statement = self.statement();
        for (id, account) in self.scenario.contract.listed().into_iter().zip(&statement.accounts) {
            let worst = account.findings.iter().map(|finding| finding.verdict).max();
            let so_far = &mut self.backend.verdicts[id.index()];
            *so_far = match (*so_far, worst.unwrap_or(Verdict::CannotTell)) {
                (Verdict::Broken, _) | (_, Verdict::Broken) => Verdict::Broken,
                (Verdict::Kept, _) | (_, Verdict::Kept) => Verdict::Kept,
                (Verdict::CannotTell, Verdict::CannotTell) => Verdict::CannotTell,
            };
        }
    }

    /// The verdict on the run: see [`Engine::judge`].
    pub(super) fn verdict(&self, id: UnitId) -> Verdict {
        self.backend.verdicts[id.index()]
    }

    /// The ledger's accounts.
    pub(super) fn statement(&self) -> Statement {
        self.steward.as_ref().map_or_else(Statement::default, Steward::statement)
    }
}

/// A unit's rules in the form of the scheduler.
fn unit_rules(rules: Rules) -> UnitRules {
    let Rules { parent, weight, flags, credit_ms, discipline, deadline } = rules;
    let parent = parent.map_or(NOBODY, |parent| parent.0);
    UnitRules { parent, weight, flags, credit_ms, discipline, deadline }
}

#[cfg(test)]
mod tests;
