//! The `kernel` backend: units as control groups, scheduled by the project's own scheduler in the kernel
//! (`sched_ext`).
//!
//! Problem: a daemon sees a few times a second which units have work. Whether the owner of a CPU has work for it
//! changes a thousand times as often. So the policy says which unit owns which CPU. The scheduler lends an idle CPU,
//! and calls it back, at the switch itself.
//!
//! Algorithm: the `cgroup` backend inside does everything that cgroups do: which process is in which unit, what units
//! use, and cpu.weight, which holds the contract when the scheduler goes. Owners and weights go to the scheduler as
//! well ([`reign`]). It knows a unit by its number ([`slots`]), and the unit's tasks by the unit's cgroup; sub-units'
//! cgroups lie in it. It has the contract's rules as well ([`matches`]). So a process that executes a program is in
//! its unit before the next look brings it into the unit's cgroup. Without a scheduler this is the `cgroup` backend:
//! its means, its orders.
//!
//! Seats of jobs' threads are preferences of the scheduler's while it rules: a thread's affinity stays as it is. While it
//! rests, they are affinities, as under the `cgroup` backend.
//!
//! Properties: if the daemon ends, however it does, the kernel closes the scheduler's link and its own scheduler takes
//! over. No task is lost. A scheduler that the kernel ended is loaded again, but not for ever ([`patience`]).
//!
//! Limits: the scheduler has no caps. Contracts that need them are for the `cgroup` backend ([`cannot_hold`]). While another
//! program has set a cap in a control group, it rests ([`caps`](crate::observe::caps)), so that the cap is held. The
//! kernel itself schedules real-time and deadline tasks before all others. They take CPUs of any unit, and are in the
//! units' accounts by their cgroups only.

mod gangs;
mod in_place;
mod loaded;
mod matches;
mod patience;
mod reign;
mod slots;
mod switched;

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::UNITS_MAX;
use commonhold_policy::cpu::needs_cap;
use commonhold_policy::{Means, Plan, Snapshot, Time};

use crate::apply::cgroup::CgroupBackend;
use crate::host::clock;
use crate::live_backend::follow_each;
use crate::observe::arena::NotJoined;
use crate::observe::caps::Caps;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Roster, Seen};
use crate::undo::journal::Journal;
use crate::{Backend, HeldBy, Instead, LiveBackend, LiveError};
use in_place::InPlace;
use loaded::ThisKernel;
use matches::levels;
use reign::{Place, Reign};

pub use crate::observe::capability::BUILT_IN;
pub use commonhold_dispatch::{Account, CallBacks, Cause, Had};
pub use loaded::settings;
pub use switched::Switched;

/// What this backend can enforce while its scheduler rules.
pub const MEANS: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

/// Why this backend's scheduler cannot hold a contract, on a machine with so many CPUs; nothing if it can.
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

/// Holds a contract by means of control groups and of a scheduler in the kernel.
pub struct KernelBackend {
    // In the order of ending: first the scheduler goes.
    reign: Reign,
    cgroup: CgroupBackend,
    /// How many schedulers were loaded when seats were told last.
    seated: u64,
    in_place: InPlace,
    caps: Caps,
    /// As of which change of names the scheduler knows the rules ([`SystemNames::changes`](crate::names::SystemNames)).
    named: u64,
}

impl KernelBackend {
    /// Loads the scheduler over a `cgroup` backend that has not observed yet: no process was moved. Fails where the kernel
    /// does not take the scheduler. A contract that it [`cannot_hold`] is no failure: cgroups hold it.
    pub fn new(cgroup: CgroupBackend, contract: &Contract) -> Result<KernelBackend, LiveError> {
        let mut backend = KernelBackend::at_rest(cgroup, contract);
        backend.reign.start()?;
        Ok(backend)
    }

    /// The same; where the kernel does not take the scheduler, cgroups hold the contract, and it is tried again after a pause,
    /// some times.
    pub fn patient(cgroup: CgroupBackend, contract: &Contract) -> KernelBackend {
        let mut backend = KernelBackend::at_rest(cgroup, contract);
        backend.reign.start_patiently();
        backend
    }

    fn at_rest(cgroup: CgroupBackend, contract: &Contract) -> KernelBackend {
        let levels = levels(contract, cgroup.roster().names());
        let mut reign = Reign::new(Box::new(ThisKernel), contract, &places(&cgroup), levels, clock::now());
        let mut caps = Caps::new(cgroup.mount());
        reign.heed_at_rest(caps.look(cgroup.now(), None, |dir, cap| cgroup.has_capped(dir, cap)));
        KernelBackend { reign, cgroup, seated: 0, in_place: InPlace::default(), caps, named: 0 }
    }

    /// [`Backend::settle_members`] without the units that `each` makes.
    ///
    /// Checks first whether the scheduler is still loaded: the next plan is made for the means of this moment.
    fn settle(&mut self, now: Time) -> Result<(), LiveError> {
        self.reign.look(now);
        let cgroup = &self.cgroup;
        let capped = self.caps.look(now, cgroup.capped_place(), |dir, cap| cgroup.has_capped(dir, cap));
        self.reign.heed(capped);
        self.cgroup.leave_gangs(self.reign.gates(&self.cgroup.members_of_jobs()));
        self.cgroup.settle(now)?;
        self.follow_names();
        self.in_place.tell(&mut self.reign, &mut self.cgroup);
        self.reign.gate(&self.cgroup.members_of_jobs());
        Ok(())
    }

    /// Tells the scheduler the rules again if a name in them has a number since.
    fn follow_names(&mut self) {
        let names = self.cgroup.roster().names();
        if names.changes() != self.named {
            self.named = names.changes();
            self.reign.follow_rules(levels(self.reign.contract(), names));
        }
    }
}

/// Where the units' processes are, or will be.
fn places(cgroup: &CgroupBackend) -> Vec<Place> {
    cgroup.places().map(|(unit, dir)| Place { unit, dir: dir.to_owned() }).collect()
}

impl LiveBackend for KernelBackend {
    fn set_contract(&mut self, contract: &Contract) {
        self.cgroup.set_contract(contract);
        let levels = levels(contract, self.cgroup.roster().names());
        self.reign.follow(contract, &places(&self.cgroup), levels);
    }

    fn take_seen(&mut self) -> Seen {
        self.cgroup.take_seen()
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

    fn held_by(&self) -> HeldBy {
        match self.reign.rest_now() {
            None => HeldBy { backend: "kernel", instead: None },
            Some(rest) => HeldBy {
                backend: self.cgroup.held_by().backend,
                instead: Some(Instead { of: "kernel", since: rest.since, why: rest.why.clone() }),
            },
        }
    }

    fn switched(&self, unit: UnitId) -> Option<Switched> {
        Some(self.reign.switched(unit))
    }

    fn accounts(&self, unit: UnitId) -> Vec<Account> {
        self.reign.accounts(unit)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.cgroup.alarm()
    }

    fn hear(&mut self) {
        self.cgroup.hear();
    }

    fn into_journal(self: Box<Self>) -> Journal {
        let KernelBackend { reign, cgroup, .. } = *self;
        drop(reign);
        cgroup.close()
    }
}

impl Backend for KernelBackend {
    type Error = LiveError;

    fn now(&self) -> Time {
        self.cgroup.now()
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        let mut problems = self.reign.take_problems();
        problems.extend(self.cgroup.take_problems());
        problems
    }

    fn means(&self) -> Means {
        let below = self.cgroup.means();
        if self.reign.rest_now().is_none() {
            Means {
                memory: below.memory,
                disk: below.disk,
                seats: below.seats,
                gangs: below.gangs,
                throttle: below.throttle,
                places: below.places,
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
        self.settle(now)?;
        Ok(follow_each(self, contract, free))
    }

    fn observe(&mut self, _: Time, watch: &[UnitId]) -> Result<Snapshot, LiveError> {
        let (reign, rules) = (&self.reign, self.reign.rest_now().is_none());
        let counted = |unit| rules.then(|| reign.switched(unit).account.used_ns());
        let mut snapshot = self.cgroup.observe_counted(watch, &counted)?;
        for (unit, facts) in (0..).map(UnitId).zip(&mut snapshot.units) {
            facts.loans = reign.switched(unit).loans();
        }
        Ok(snapshot)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<LiveError> {
        self.cgroup.leave_seats(self.reign.rest_now().is_none());
        let mut problems = self.cgroup.apply(plan);
        self.reign.apply(plan);
        if !plan.orders.gangs.is_empty() {
            self.reign.gate(&self.cgroup.members_of_jobs());
        }
        let (loads, changed) = (self.reign.loads(), self.cgroup.changed_seats());
        let seats = if loads == self.seated { changed } else { self.cgroup.seats() };
        self.seated = loads;
        self.reign.seat(&seats);
        problems.extend(self.reign.take_problems());
        problems
    }
}
