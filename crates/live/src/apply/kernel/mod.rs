//! The `kernel` backend: units as control groups, scheduled by the project's own scheduler in the kernel
//! (`sched_ext`).
//!
//! Problem: the daemon samples a few times a second which units have work, but whether a CPU's owner has work
//! for that CPU changes a thousand times as often. So the policy decides which unit owns which CPU; the
//! scheduler lends an idle CPU, and calls it back, at a context switch.
//!
//! Algorithm: the `cgroup` backend inside does everything that cgroups do: membership, accounting, and
//! cpu.weight, which enforces the contract when the scheduler is detached. Owners and weights also go to the
//! scheduler ([`supervisor`]). The scheduler identifies a unit by its slot ([`slots`]), and the unit's tasks
//! by their cgroup. It also has the contract's membership rules ([`matches`]), so a process that executes a
//! program is in its unit at once, before the daemon's next iteration moves the process into the unit's
//! cgroup. While the scheduler is detached, this backend works as the `cgroup` backend does, with the same
//! means and orders.
//!
//! While the scheduler is attached, it treats threads' seats as preferences, and no affinity changes. While
//! it is detached, seats are enforced by affinities, as under the `cgroup` backend.
//!
//! Properties: however the daemon ends, the kernel then closes the scheduler's link, and the kernel's own
//! scheduler takes over. No task is lost. A scheduler that the kernel ended is loaded again, with back-off
//! and a limit ([`backoff`]).
//!
//! Limits: the scheduler has no caps. Contracts that need them use the `cgroup` backend ([`cannot_hold`]).
//! While another program has set a CPU cap in a control group ([`caps`](crate::observe::caps)), the scheduler
//! is detached, so that the cap is honoured. Real-time and deadline tasks run before all others, on CPUs of
//! any unit; units' accounts include the CPU time of such tasks only as their cgroups count it.

mod backoff;
mod foreign_groups;
mod gangs;
mod loaded;
mod loans;
mod matches;
mod slots;
mod supervisor;
mod switched;
mod waits;

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::UNITS_MAX;
use commonhold_policy::cpu::needs_cap;
use commonhold_policy::{Means, Plan, Snapshot, Time, WaitedFor};

use crate::apply::cgroup::CgroupBackend;
use crate::host::clock;
use crate::live_backend::follow_each;
use crate::observe::arena::NotJoined;
use crate::observe::caps::Caps;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Roster, Seen};
use crate::undo::journal::Journal;
use crate::{ActiveBackend, Backend, LiveBackend, LiveError, Unavailable};
use foreign_groups::ForeignGroups;
use loaded::ThisKernel;
use matches::levels;
use supervisor::{Outage, Supervisor, UnitCgroup};
use waits::Waited;

pub use crate::observe::capability::BUILT_IN;
pub use commonhold_dispatch::{Account, CallBacks, Cause, Had};
pub use loaded::settings;
pub use switched::UnitCounters;

/// The means of this backend while its scheduler is attached.
pub const MEANS: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

/// Why the scheduler cannot hold a contract on a machine with `cpus` CPUs; `None` if it can.
pub fn cannot_hold(contract: &Contract, cpus: usize) -> Option<String> {
    if let Some(unit) = needs_cap(contract, MEANS, cpus) {
        return Some(format!(
            "unit {} needs a cap on CPU time, for its `limit` or since it may not borrow; the scheduler has no such \
             cap",
            contract.unit(unit).path
        ));
    }
    let units = contract.present().count();
    (units > UNITS_MAX as usize).then(|| {
        format!("{units} units, the built-in ones included, are more than the scheduler's {UNITS_MAX}")
    })
}

/// Enforces a contract with control groups and a scheduler in the kernel.
pub struct KernelBackend {
    // In drop order: the scheduler is detached first.
    supervisor: Supervisor,
    cgroup: CgroupBackend,
    /// How many times the scheduler had been loaded when seats were last sent: a newly loaded one has no
    /// seats.
    seated: u64,
    foreign: ForeignGroups,
    caps: Caps,
    /// By unit.
    waited: Vec<Waited>,
    /// The version of the resolved user and group names
    /// ([`SystemNames::changes`](crate::observe::names::SystemNames)) in the scheduler's rules.
    named: u64,
}

impl KernelBackend {
    /// Loads the scheduler over a `cgroup` backend that has not moved any process yet. Fails if the kernel
    /// does not accept the scheduler. A contract that it [`cannot_hold`] is not a failure: control groups
    /// enforce it.
    pub fn new(cgroup: CgroupBackend, contract: &Contract) -> Result<KernelBackend, LiveError> {
        let mut backend = KernelBackend::detached(cgroup, contract);
        backend.supervisor.start()?;
        Ok(backend)
    }

    /// Does the same as [`KernelBackend::new`], except that it does not fail if the kernel refuses the
    /// scheduler: control groups enforce the contract meanwhile, and loading is retried with back-off.
    pub fn patient(cgroup: CgroupBackend, contract: &Contract) -> KernelBackend {
        let mut backend = KernelBackend::detached(cgroup, contract);
        backend.supervisor.start_patiently();
        backend
    }

    fn detached(cgroup: CgroupBackend, contract: &Contract) -> KernelBackend {
        let levels = levels(contract, cgroup.roster().names());
        let mut supervisor =
            Supervisor::new(Box::new(ThisKernel), contract, &unit_cgroups(&cgroup), levels, clock::now());
        let mut caps = Caps::new(cgroup.mount());
        supervisor.note_capped(caps.look(cgroup.now(), None, |dir, cap| cgroup.has_capped(dir, cap)));
        let (foreign, waited) = (ForeignGroups::default(), Vec::new());
        KernelBackend { supervisor, cgroup, seated: 0, foreign, caps, waited, named: 0 }
    }

    /// Settles members. Returns what was seen of units with `each`, for which the contract may need
    /// sub-units.
    ///
    /// First checks whether the scheduler is still attached, because the next plan is made for the means that
    /// the backend has at this moment.
    fn settle(&mut self, now: Time) -> Result<Seen, LiveError> {
        self.supervisor.poll(now);
        let cgroup = &self.cgroup;
        let capped = self.caps.look(now, cgroup.capped_group(), |dir, cap| cgroup.has_capped(dir, cap));
        self.supervisor.set_capped(capped);
        self.cgroup.leave_gangs(self.supervisor.can_gate(&self.cgroup.members_of_jobs()));
        let seen = self.cgroup.settle(now)?;
        self.follow_names();
        self.foreign.update(&mut self.supervisor, &mut self.cgroup);
        self.supervisor.gate(&self.cgroup.members_of_jobs());
        Ok(seen)
    }

    /// Sends the membership rules again if a user or group name in them was resolved.
    fn follow_names(&mut self) {
        let names = self.cgroup.roster().names();
        if names.changes() != self.named {
            self.named = names.changes();
            self.supervisor.follow_rules(levels(self.supervisor.contract(), names));
        }
    }
}

/// The cgroups of the contract's units.
fn unit_cgroups(cgroup: &CgroupBackend) -> Vec<UnitCgroup> {
    cgroup.unit_dirs().map(|(unit, dir)| UnitCgroup { unit, dir: dir.to_owned() }).collect()
}

impl LiveBackend for KernelBackend {
    fn set_contract(&mut self, contract: &Contract) {
        self.cgroup.set_contract(contract);
        self.waited.resize(contract.units.len(), Waited::default());
        for unit in &contract.vacant {
            self.waited[unit.index()] = Waited::default();
        }
        let levels = levels(contract, self.cgroup.roster().names());
        self.supervisor.follow(contract, &unit_cgroups(&self.cgroup), levels);
    }

    fn standing(&self) -> Vec<&LiveError> {
        self.cgroup.standing()
    }

    fn roster(&self) -> &Roster {
        self.cgroup.roster()
    }

    fn roster_mut(&mut self) -> &mut Roster {
        self.cgroup.roster_mut()
    }

    fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>> {
        self.cgroup.join(key, user)
    }

    fn active(&self) -> ActiveBackend {
        let unavailable =
            |outage: &Outage| Unavailable { name: "kernel", since: outage.since, why: outage.why.clone() };
        match self.supervisor.outage() {
            None => ActiveBackend { name: "kernel", fallback_from: None },
            outage => ActiveBackend { fallback_from: outage.map(unavailable), ..self.cgroup.active() },
        }
    }

    fn unit_counters(&self, unit: UnitId) -> Option<UnitCounters> {
        Some(self.supervisor.unit_counters(unit))
    }

    fn accounts(&self, unit: UnitId) -> Vec<Account> {
        self.supervisor.accounts(unit)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.cgroup.alarm()
    }

    fn drain_alarm(&mut self) {
        self.cgroup.drain_alarm();
    }

    fn into_journal(self: Box<Self>) -> Journal {
        let KernelBackend { supervisor, cgroup, .. } = *self;
        drop(supervisor);
        cgroup.close()
    }
}

impl Backend for KernelBackend {
    type Error = LiveError;

    fn now(&self) -> Time {
        self.cgroup.now()
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        let mut problems = self.supervisor.take_problems();
        problems.extend(self.cgroup.take_problems());
        problems
    }

    fn means(&self) -> Means {
        let below = self.cgroup.means();
        if self.supervisor.outage().is_none() {
            Means {
                memory: below.memory,
                disk: below.disk,
                seats: below.seats,
                gangs: below.gangs,
                throttle: below.throttle,
                foreign_groups: below.foreign_groups,
                brings: below.brings,
                ..MEANS
            }
        } else {
            below
        }
    }

    fn settle_members(
        &mut self,
        now: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, LiveError> {
        let seen = self.settle(now)?;
        Ok(follow_each(self, &seen, contract, free))
    }

    fn observe(&mut self, _: Time, watch: &[UnitId]) -> Result<Snapshot, LiveError> {
        let (supervisor, rules) = (&self.supervisor, self.supervisor.outage().is_none());
        let counted = |unit| rules.then(|| supervisor.unit_counters(unit).account.used_ns());
        let mut snapshot = self.cgroup.observe_counted(watch, &counted)?;
        snapshot.waited_for = self.supervisor.waited_for(snapshot.at).to_vec();
        snapshot.loans = self.supervisor.loans();
        let mut sums = vec![0; snapshot.units.len()];
        for WaitedFor { waiter, ns, .. } in &snapshot.waited_for {
            if let Some(sum) = sums.get_mut(waiter.index()) {
                *sum += ns;
            }
        }
        self.waited.resize(sums.len(), Waited::default());
        let counts = sums.into_iter().zip(&mut self.waited);
        for ((unit, facts), (sum, waited)) in (0..).map(UnitId).zip(&mut snapshot.units).zip(counts) {
            facts.waited_ns = waited.now(facts.waited_ns, rules.then_some(sum));
            facts.loans = self.supervisor.switch_loans(unit);
        }
        Ok(snapshot)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<LiveError> {
        self.cgroup.leave_seats(self.supervisor.outage().is_none());
        let mut problems = self.cgroup.apply(plan);
        self.supervisor.apply(plan);
        if !plan.orders.gangs.is_empty() {
            self.supervisor.gate(&self.cgroup.members_of_jobs());
        }
        let (loads, changed) = (self.supervisor.loads(), self.cgroup.changed_seats());
        let seats = if loads == self.seated { changed } else { self.cgroup.seats() };
        self.seated = loads;
        self.supervisor.seat(&seats);
        problems.extend(self.supervisor.take_problems());
        problems
    }
}
