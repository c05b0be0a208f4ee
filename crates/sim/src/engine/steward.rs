//! The policies at work on the simulated machine: what the daemon does on a live one.
//!
//! At the times that the plans ask for, a snapshot goes to `commonhold_policy::step`. Its plan goes through the
//! independent checker. The checked plan goes to the switch-time scheduler: owners of CPUs, and weights. Memory is
//! divided anew at each period by `commonhold_policy::frames`, and at once when a unit is short of what it is entitled
//! to.

use std::sync::atomic::Ordering;

use commonhold_contract::{Contract, Resource, Scheme, UnitId};
use commonhold_dispatch::{BORROWS, LENDS, NOBODY, UnitRules};
use commonhold_ledger::Ledger;
use commonhold_policy::check::Books;
use commonhold_policy::frames::{self, Look};
use commonhold_policy::{
    Action, Input, Means, Plan, Snapshot, State, SwitchLoans, UnitFacts, borrows, entitlement, first_weight,
    lends, step,
};

use super::Engine;
use crate::Time;
use crate::scenario::Scenario;

/// What the switch-time scheduler can do.
const MEANS: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

/// What the policies remember, and what they are told.
pub(crate) struct Steward {
    state: State,
    books: Books,
    memory: frames::State,
    /// The contract with memory in frames.
    in_frames: Contract,
    pub(super) ledger: Ledger,
    /// CPU time that tasks waited for, by unit, of waits that are over.
    waited_ns: Vec<u64>,
    /// Processes by unit, and runnable threads by the unit that they run for.
    pub(super) present: Vec<u32>,
    pub(super) runnable: Vec<u32>,
    pub(crate) plans: u64,
    /// What the latest plan entitles each unit to, in millionths of a CPU; and that, times ns, summed up to then.
    entitled: Vec<u64>,
    entitled_so_far: Vec<u128>,
    planned_at: Time,
    memory_at: Time,
}

impl Steward {
    pub(super) fn new(scenario: &Scenario) -> Steward {
        let units = scenario.contract.units.len();
        Steward {
            state: State::default(),
            books: Books::default(),
            memory: frames::State::default(),
            in_frames: frames::in_frames(&scenario.contract, scenario.hardware.kernel.frame_bytes),
            ledger: Ledger::open(&scenario.contract, &scenario.hardware.machine),
            waited_ns: vec![0; units],
            present: vec![0; units],
            runnable: vec![0; units],
            plans: 0,
            entitled: vec![0; units],
            entitled_so_far: vec![0; units],
            planned_at: 0,
            memory_at: 0,
        }
    }

    /// A task of a unit has waited so long for a CPU.
    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        self.waited_ns[unit as usize] += span;
    }

    /// What a unit was entitled to in the mean, in millionths of a CPU.
    pub(super) fn entitled_mean(&self, unit: usize, now: Time) -> u64 {
        let latest = u128::from(self.entitled[unit]) * u128::from(now - self.planned_at);
        let mean = (self.entitled_so_far[unit] + latest).checked_div(u128::from(now)).unwrap_or(0);
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    fn take_in(&mut self, entitled: Vec<u64>, now: Time) {
        let elapsed = u128::from(now - self.planned_at);
        for (sum, latest) in self.entitled_so_far.iter_mut().zip(&self.entitled) {
            *sum += u128::from(*latest) * elapsed;
        }
        (self.entitled, self.planned_at) = (entitled, now);
    }

    /// Whether it is its unit's first.
    pub(super) fn came(&mut self, unit: u32) -> bool {
        self.present[unit as usize] += 1;
        self.runnable[unit as usize] += 1;
        self.present[unit as usize] == 1
    }

    pub(super) fn went(&mut self, unit: u32) {
        self.present[unit as usize] -= 1;
    }

    pub(super) fn became_runnable(&mut self, unit: u32) {
        self.runnable[unit as usize] += 1;
    }

    pub(super) fn blocked(&mut self, unit: u32) {
        self.runnable[unit as usize] -= 1;
    }
}

/// What each unit holds of a disk, as relative shares: those of the disk entitlements of all units.
pub(super) fn shares(scenario: &Scenario) -> Vec<u64> {
    let contract = &scenario.contract;
    let present: Vec<bool> = contract.ids().map(|id| contract.children(Some(id)).next().is_none()).collect();
    let capacity = entitlement::capacity(contract, &scenario.hardware.machine, Resource::Disk);
    let entitled = entitlement::entitle(contract, Resource::Disk, capacity, &present);
    contract.ids().map(|id| entitled.own(id)).collect()
}

impl Engine<'_> {
    /// Whether units lend and borrow CPUs.
    pub(super) fn prepare_units(&mut self) {
        let contract = &self.scenario.contract;
        for id in contract.ids() {
            let lends = if lends(contract, id) { LENDS } else { 0 };
            let flags = lends | if borrows(contract, id) { BORROWS } else { 0 };
            self.set_unit(id, first_weight(id), flags);
        }
    }

    fn set_unit(&mut self, unit: UnitId, weight: u32, flags: u32) {
        let parent = self.scenario.contract.unit(unit).parent.map_or(NOBODY, |parent| parent.0);
        let taken = self.kernel.set_unit(self.now, unit.0, UnitRules { parent, weight, flags });
        self.audit.expect(self.now, taken, || {
            format!("the scheduler refused a weight of {weight} for unit number {}", unit.0)
        });
    }

    /// The policy looks at the machine, and what it plans is done.
    pub(super) fn policy_event(&mut self) {
        self.clock.store(self.now, Ordering::Relaxed);
        let snapshot = self.look();
        let (contract, machine) = (&self.scenario.contract, &self.scenario.hardware.machine);
        let state = core::mem::take(&mut self.steward.state);
        let input = Input { contract, machine, means: MEANS, snapshot: &snapshot };
        let (state, plan) = step(state, self.now, input);
        self.steward.state = state;
        self.steward.plans += 1;
        match self.steward.books.replay(contract, machine, &plan) {
            Ok(books) => {
                self.steward.books = books;
                self.steward.ledger.book(&plan, self.now);
                self.carry_out(&plan);
            }
            Err(wrong) => self.audit.note(self.now, &wrong.join("; ")),
        }
        self.steward.take_in(plan.entitled, self.now);
        self.expect_of_waits();
        self.audit_all();
        self.timers.set(self.policy_timer(), plan.next.max(self.now + 1));
    }

    /// What waits for CPUs may come to follows from what was planned.
    fn expect_of_waits(&mut self) {
        let contract = &self.scenario.contract;
        self.patience.looked(self.now, self.kernel.home(0) == NOBODY);
        let mut own = self.steward.entitled.clone();
        for id in contract.held() {
            if let Some(parent) = contract.unit(id).parent {
                own[parent.index()] -= self.steward.entitled[id.index()];
            }
        }
        for id in contract.ids().filter(|id| self.steward.present[id.index()] > 0) {
            self.patience.entitled(id.0, own[id.index()], self.kernel.unit(id.0).weight);
        }
    }

    /// What there is to see, entered into the ledger.
    pub(super) fn look(&mut self) -> Snapshot {
        let snapshot = self.snapshot();
        self.steward.ledger.observe(&self.scenario.hardware.machine, &snapshot);
        snapshot
    }

    fn snapshot(&mut self) -> Snapshot {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
        let units = (0..self.scenario.contract.units.len())
            .map(|unit| {
                let (counted, account) =
                    (self.kernel.unit(super::number(unit)), self.kernel.account(super::number(unit)));
                UnitFacts {
                    at: self.now,
                    processes: self.steward.present[unit],
                    runnable: self.steward.runnable[unit],
                    used_ns: account.used_ns(),
                    waited_ns: self.steward.waited_ns[unit],
                    outside: 0,
                    loans: SwitchLoans {
                        lent_ns: account.lent_ns,
                        borrowed_ns: account.borrowed_ns,
                        called_back: counted.recalls,
                        call_back_sum_ns: counted.recall_ns,
                        call_back_max_ns: counted.recall_ns_max,
                    },
                }
            })
            .collect();
        Snapshot {
            at: self.now,
            units,
            idle_ns: self.cpus.iter().map(|cpu| cpu.idle_ns).sum(),
            ..Snapshot::default()
        }
    }

    /// Decisions about owners and orders about weights; CPU sets follow from the owners at every switch.
    fn carry_out(&mut self, plan: &Plan) {
        for step in &plan.steps {
            match step.action {
                Action::Own { cpu, unit } => self.kernel.own(self.now, cpu, unit.0),
                Action::Disown { cpu, .. } => {
                    let taken = |other: &commonhold_policy::Step| matches!(other.action, Action::Own { cpu: again, .. } if again == cpu);
                    // A CPU that changes hands in this plan goes straight from one to the other.
                    if !plan.steps.iter().any(taken) {
                        self.kernel.own(self.now, cpu, NOBODY);
                    }
                }
                Action::Weigh { unit, weight } => {
                    let flags = self.kernel.unit(unit.0).flags;
                    self.set_unit(unit, weight, flags);
                }
                _ => {}
            }
        }
    }

    /// Memory is divided anew, and what has been dirty for long is written behind.
    pub(super) fn memory_event(&mut self) {
        self.divide_memory(Look::Period);
        self.page_out();
        self.write_behind();
        self.release_throttled();
        let period = self.scenario.hardware.kernel.memory_period_ns;
        self.timers.set(self.policy_timer() + 1, self.now + period);
    }

    /// A unit is short of frames that it lent: they are called back at once.
    pub(super) fn call_back_memory(&mut self) {
        if self.scenario.contract.machine.scheme == Scheme::Isolate && self.steward.memory_at != self.now {
            self.divide_memory(Look::CallBack);
        }
    }

    fn divide_memory(&mut self, look: Look) {
        self.steward.memory_at = self.now;
        let mut facts = self.memory.facts();
        for (facts, present) in facts.iter_mut().zip(&self.steward.present) {
            facts.present = *present > 0;
        }
        self.bound_loans(&mut facts);
        let input = frames::Input {
            contract: &self.steward.in_frames,
            frames: self.memory.frames(),
            units: &facts,
            look,
        };
        let (state, allowances) = frames::step(core::mem::take(&mut self.steward.memory), input);
        self.steward.memory = state;
        let allowed: Vec<u64> = allowances.iter().map(|allowance| allowance.allowed).collect();
        self.memory.allow(&allowed);
        self.note_loans(look, &facts, &allowances);
        self.collect_debts();
        self.expect_no_rest();
        // Not at a call-back: a unit that calls frames back would wake all that wait, and each calls back in turn.
        if look == Look::Period {
            self.feed_starved();
        }
    }

    /// The unit of a number.
    pub(super) fn unit_id(unit: u32) -> UnitId {
        UnitId(unit)
    }
}
