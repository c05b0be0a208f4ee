//! Loads the scheduler, reloads it after failures, and keeps its tables up to date.
//!
//! Terms: the scheduler is *attached* while the kernel runs it. While the scheduler is *detached*, control
//! groups enforce the contract, and the policy gives the orders that control groups can carry out. A unit's
//! *slot* is its number in the scheduler's tables.
//!
//! Algorithm: the supervisor has a copy of the scheduler's tables: the units' slots, cgroups, weights,
//! lending and borrowing, and the owners of CPUs. A newly loaded scheduler gets the whole copy: parents
//! before their sub-units, cgroups before the scheduler is attached, owners after. The next poll notices a
//! scheduler that the kernel has ended. The scheduler is loaded again at once after CPU hotplug or a change
//! of discipline, and otherwise after a back-off ([`backoff`](super::backoff)). A scheduler that refuses an
//! update counts as failed.
//!
//! Properties (tested): a unit's cgroup is admitted before a process is moved into it. No update is repeated.
//! A reloaded scheduler has the state of the scheduler before it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_dispatch::{Account, COMMON, KERNEL, Lists, NOBODY, UNITS_MAX, UnitRules};
use commonhold_policy::{LoansByPair, Plan, SwitchLoans, Time, WaitedFor};
use commonhold_steward::{Rules, SwitchUpdate, Switches, disciplined, seated};

use super::backoff::Backoff;
use super::cannot_hold;
use super::gangs::{Gangs, Member, fits};
use super::loaded::{Features, Loader, Scheduler};
use super::loans::Loans;
use super::matches::{Levels, in_slots};
use super::slots::{Slot, Slots};
use super::switched::{PastCounts, UnitCounters};
use super::waits::Waits;
use crate::LiveError;
use crate::observe::jobs::has_gangs;

/// The scheduler is loaded with tables for this multiple of the present number of units, so that there is
/// room for new units.
const ROOM: u32 = 2;
/// The smallest number of units for which the scheduler is loaded with tables.
const UNITS_MIN: u32 = 64;
/// The rules in the scheduler's table for a slot that no unit has.
const EMPTY: UnitRules = UnitRules::USUAL;

/// The cgroup of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnitCgroup {
    /// The unit's number in the contract.
    pub(super) unit: UnitId,
    /// The directory with the unit's processes and sub-units.
    pub(super) dir: PathBuf,
}

/// A time in which the scheduler is detached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outage {
    /// When the outage began.
    pub(super) since: Time,
    /// The reason for the outage.
    pub(super) why: String,
    retry: Retry,
}

/// When to load the scheduler again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// At this time.
    At(Time),
    /// When the contract or the CPU caps in control groups change, because the scheduler cannot hold the
    /// present ones.
    OnChange,
    /// Never, because the scheduler failed too often.
    Never,
}

enum Attachment {
    Attached(Box<dyn Scheduler>),
    Detached(Outage),
}

/// A slot's entry in the scheduler's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotEntry {
    rules: UnitRules,
    /// The inode of the unit's cgroup; `None` for the built-in units.
    cgroup: Option<u64>,
}

/// The scheduler, attached or detached, and a copy of its tables.
pub(super) struct Supervisor {
    loader: Box<dyn Loader>,
    attachment: Attachment,
    /// The number of units for which the last loaded scheduler has tables.
    room: u32,
    /// The features of the last loaded scheduler.
    features: Features,
    /// The number of loads so far.
    loads: u64,
    backoff: Backoff,
    /// The gangs that the attached scheduler knows.
    gangs: Gangs,
    slots: Slots,
    /// The slot of each unit, by unit number.
    slot_of: Vec<Option<u32>>,
    /// The units' rules and the owners of CPUs, which follow from the contract and the plans.
    switches: Switches,
    /// The inode of the cgroup of each slot; `None` for the built-in units.
    cgroups: BTreeMap<u32, Option<u64>>,
    /// The slot of the unit that is held in each foreign control group, by inode.
    foreign: BTreeMap<u64, u32>,
    /// Membership rules for processes that execute a program, by slot.
    matches: Lists,
    /// The units' counters in the schedulers before the present one.
    past_counts: PastCounts,
    waits: Waits,
    /// The latest sample of what had the CPU while units' tasks waited.
    waited_for: Vec<WaitedFor>,
    loans: Loans,
    contract: Contract,
    /// The path of a control group with another program's CPU cap, which our scheduler cannot enforce;
    /// `None`: there is no such group.
    capped: Option<String>,
    now: Time,
    problems: Vec<LiveError>,
}

impl Supervisor {
    /// A supervisor whose scheduler is detached until [`Supervisor::start`].
    pub(super) fn new(
        loader: Box<dyn Loader>,
        contract: &Contract,
        cgroups: &[UnitCgroup],
        levels: Levels,
        now: Time,
    ) -> Supervisor {
        let not_started = Outage { since: now, why: String::new(), retry: Retry::OnChange };
        let mut supervisor = Supervisor {
            loader,
            attachment: Attachment::Detached(not_started),
            room: 0,
            features: Features::default(),
            loads: 0,
            backoff: Backoff::default(),
            gangs: Gangs::default(),
            slots: Slots::default(),
            slot_of: Vec::new(),
            switches: Switches::new(contract),
            cgroups: BTreeMap::new(),
            foreign: BTreeMap::new(),
            matches: Lists::new(),
            past_counts: PastCounts::default(),
            waits: Waits::default(),
            waited_for: Vec::new(),
            loans: Loans::default(),
            contract: contract.clone(),
            capped: None,
            now,
            problems: Vec::new(),
        };
        supervisor.assign_slots(cgroups);
        supervisor.matches = supervisor.lists(levels);
        supervisor
    }

    /// Loads and attaches the scheduler, unless it cannot hold the contract.
    pub(super) fn start(&mut self) -> Result<(), LiveError> {
        match self.unfit() {
            Some(why) => self.detach(why, Retry::OnChange),
            None => self.attach()?,
        }
        Ok(())
    }

    /// Does the same as [`Supervisor::start`], except that a failure to load is reported and retried, as
    /// later failures are.
    pub(super) fn start_patiently(&mut self) {
        if let Err(error) = self.start() {
            self.fail(&error.to_string());
        }
    }

    /// Why the scheduler is detached; `None` while it is attached.
    pub(super) fn outage(&self) -> Option<&Outage> {
        match &self.attachment {
            Attachment::Attached(_) => None,
            Attachment::Detached(outage) => Some(outage),
        }
    }

    /// A unit's counters in all schedulers since the backend began.
    pub(super) fn unit_counters(&self, unit: UnitId) -> UnitCounters {
        let Some(slot) = self.slot(unit) else { return UnitCounters::default() };
        let present = match &self.attachment {
            Attachment::Attached(scheduler) => Some(scheduler.unit_counters(slot)),
            Attachment::Detached(_) => None,
        };
        self.past_counts.sum_with(slot, present.as_ref())
    }

    /// A unit's account on each CPU, indexed by CPU number; [`Supervisor::unit_counters`] has the sums.
    pub(super) fn accounts(&self, unit: UnitId) -> Vec<Account> {
        let Some(slot) = self.slot(unit) else { return Vec::new() };
        let present = match &self.attachment {
            Attachment::Attached(scheduler) => scheduler.accounts(slot),
            Attachment::Detached(_) => Vec::new(),
        };
        self.past_counts.sums_by_cpu_with(slot, &present)
    }

    /// What had the CPU while units' tasks waited for it, in all schedulers since the backend began, by
    /// ascending waiter and occupant: a sample that is at most a second old. The scheduler's pairs of
    /// units in it lag by up to two seconds more. Empty while the scheduler is detached.
    pub(super) fn waited_for(&mut self, now: Time) -> &[WaitedFor] {
        if let Attachment::Attached(scheduler) = &mut self.attachment
            && self.waits.is_due(now)
        {
            let waits = &mut self.waits;
            scheduler.take_waits_for_others(&mut |waiter, runner, ns| waits.add(waiter, runner, ns));
            self.sample_waits();
            self.sample_loans(now);
        }
        if self.outage().is_none() { &self.waited_for } else { &[] }
    }

    /// Makes the list of what had the CPU while units' tasks waited for it.
    fn sample_waits(&mut self) {
        let mut units: BTreeMap<u32, UnitId> = BTreeMap::new();
        for (unit, slot) in (0..).map(UnitId).zip(&self.slot_of) {
            if let Some(slot) = slot {
                units.insert(*slot, unit);
            }
        }
        let in_order = (0..).map(UnitId).zip(&self.slot_of);
        let of = |(unit, slot): (UnitId, &Option<u32>)| {
            let account = self.unit_counters(unit).account;
            Some(self.waits.of(unit, (*slot)?, &account, |slot| units.get(&slot).copied()))
        };
        self.waited_for = in_order.filter_map(of).flatten().collect();
    }

    /// Adds the loans since the previous sample.
    fn sample_loans(&mut self, now: Time) {
        let units = (0..).map(UnitId).zip(&self.slot_of).filter(|(_, slot)| slot.is_some());
        let accounts = units.map(|(unit, _)| (unit, self.accounts(unit))).collect();
        self.loans.sample(now, accounts);
    }

    /// The loans between units in all schedulers since the backend began: a sample that is at most a second
    /// old. Empty while the scheduler is detached, since plans make the loans then.
    pub(super) fn loans(&self) -> LoansByPair {
        if self.outage().is_none() { self.loans.all() } else { LoansByPair::default() }
    }

    /// A unit's loans at switches, with all other units together.
    pub(super) fn switch_loans(&self, unit: UnitId) -> SwitchLoans {
        self.unit_counters(unit).loans(self.contract.machine.call_back_ns)
    }

    /// Takes the errors since the last call.
    pub(super) fn take_problems(&mut self) -> Vec<LiveError> {
        std::mem::take(&mut self.problems)
    }

    /// Checks whether the kernel has ended the scheduler, and loads the scheduler again when that is due.
    pub(super) fn poll(&mut self, now: Time) {
        self.now = now;
        match &self.attachment {
            Attachment::Attached(scheduler) => match scheduler.ended() {
                None => self.release_slots(),
                Some(end) if end.restart => self.reload(),
                Some(end) => self.fail(&format!("the kernel ended the scheduler: {}", end.why)),
            },
            Attachment::Detached(Outage { retry: Retry::At(retry_at), .. }) if now >= *retry_at => {
                self.reload();
            }
            Attachment::Detached(_) => self.release_slots(),
        }
    }

    /// Records before the start that another program has set a CPU cap, as [`Supervisor::set_capped`] does
    /// later.
    pub(super) fn note_capped(&mut self, capped: Option<&str>) {
        self.capped = capped.map(str::to_owned);
    }

    /// Detaches the scheduler if another program has set a CPU cap in a control group (`capped` is the
    /// group's path), and loads it again if there is no such cap any more (`capped` is `None`).
    pub(super) fn set_capped(&mut self, capped: Option<&str>) {
        if self.capped.as_deref() == capped {
            return;
        }
        self.capped = capped.map(str::to_owned);
        match (self.unfit(), self.outage().map(|outage| outage.retry)) {
            (Some(why), None) => self.stand_down(why),
            (Some(why), Some(Retry::OnChange)) => self.detach(why, Retry::OnChange),
            (None, Some(Retry::OnChange)) => self.reload(),
            (_, Some(_)) | (None, None) => {}
        }
    }

    /// Adopts another contract, with its units' cgroups and membership rules. Call this before a process is
    /// moved into a new cgroup.
    pub(super) fn follow(&mut self, contract: &Contract, cgroups: &[UnitCgroup], levels: Levels) {
        self.release_slots();
        let (former_entries, former_owners) = (self.entries(), self.owners());
        let former_pools = self.contract.machine.pools;
        self.contract.clone_from(contract);
        self.assign_slots(cgroups);
        self.sample_waits();
        let lists = self.lists(levels);
        let former_matches = std::mem::replace(&mut self.matches, lists);
        let retry = self.outage().map(|outage| outage.retry);
        match (self.unfit(), retry) {
            // A scheduler that failed too often stays detached under any contract.
            (Some(_), Some(Retry::OnChange | Retry::Never)) => {}
            (Some(why), _) => self.stand_down(why),
            (None, Some(Retry::OnChange)) => self.reload(),
            (None, Some(_)) => {}
            // The tables of the attached scheduler are too small, or it was loaded without a feature that the
            // contract needs.
            (None, None)
                if self.slots.count() > self.room
                    || self.has_other_disciplines(&former_entries)
                    || seated(&self.contract) && !self.features.seats
                    || has_gangs(&self.contract) && !self.features.gangs =>
            {
                self.reload();
            }
            (None, None) => self.update(|supervisor, scheduler| {
                let owners = supervisor.owners();
                let unowned = former_owners.keys().filter(|cpu| !owners.contains_key(cpu));
                supervisor.update_units(scheduler, &former_entries)?;
                if supervisor.matches != former_matches {
                    scheduler.set_matches(&supervisor.matches);
                }
                if supervisor.features.seats && supervisor.contract.machine.pools != former_pools {
                    scheduler.set_pools(
                        &supervisor
                            .loader
                            .pools(supervisor.contract.machine.pools, supervisor.contract.machine.isolated)?,
                    );
                }
                unowned.copied().try_for_each(|cpu| scheduler.own(cpu, NOBODY))
            }),
        }
    }

    /// The contract in force.
    pub(super) fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Adopts changed membership rules of the same contract, because a user or group name in the contract was
    /// resolved.
    pub(super) fn follow_rules(&mut self, levels: Levels) {
        let lists = self.lists(levels);
        if lists == self.matches {
            return;
        }
        self.matches = lists;
        self.update(|supervisor, scheduler| {
            scheduler.set_matches(&supervisor.matches);
            Ok(())
        });
    }

    /// Carries out a plan's orders for the scheduler.
    pub(super) fn apply(&mut self, plan: &Plan) {
        let updates = self.switches.apply(plan);
        self.update(|supervisor, scheduler| {
            updates.iter().try_for_each(|update| match *update {
                SwitchUpdate::Unit(unit, rules) => match supervisor.slot(unit) {
                    Some(slot) => scheduler.set_unit(slot, supervisor.in_slots(rules)),
                    None => Ok(()),
                },
                SwitchUpdate::Own(cpu, unit) => {
                    scheduler.own(cpu, unit.and_then(|unit| supervisor.slot(unit)).unwrap_or(NOBODY))
                }
            })
        });
    }

    /// The number of loads so far. A newly loaded scheduler has no seats.
    pub(super) fn loads(&self) -> u64 {
        self.loads
    }

    /// Adopts the present foreign control groups in which units are held, each with its inode and its unit.
    pub(super) fn follow_foreign_groups(&mut self, cgroups: impl Iterator<Item = (u64, UnitId)>) {
        let foreign: BTreeMap<u64, u32> =
            cgroups.filter_map(|(group, unit)| Some((group, self.slot(unit)?))).collect();
        if foreign == self.foreign {
            return;
        }
        let former = std::mem::replace(&mut self.foreign, foreign);
        self.update(|supervisor, scheduler| {
            let removed = former.keys().filter(|group| !supervisor.foreign.contains_key(group));
            removed.copied().try_for_each(|group| scheduler.forget(group))?;
            let new = supervisor.foreign.iter().filter(|(group, slot)| former.get(group) != Some(slot));
            new.into_iter().try_for_each(|(group, slot)| scheduler.admit(*group, *slot))
        });
    }

    /// Sets the units of threads whose control groups do not identify their units.
    pub(super) fn put(&mut self, threads: &[(u32, UnitId)]) {
        if !threads.is_empty() {
            self.update(|supervisor, scheduler| {
                let in_slots =
                    threads.iter().filter_map(|(thread, unit)| Some((*thread, supervisor.slot(*unit)?)));
                in_slots.into_iter().try_for_each(|(thread, slot)| scheduler.put(thread, slot))
            });
        }
    }

    /// Sets threads' seats. Each is given as a CPU of the pool; `None` removes the seat.
    pub(super) fn seat(&mut self, seats: &[(u32, Option<u32>)]) {
        if self.features.seats && !seats.is_empty() {
            self.update(|_, scheduler| {
                seats.iter().try_for_each(|(thread, cpu)| scheduler.seat(*thread, *cpu))
            });
        }
    }

    /// Whether the scheduler stops these gangs when they are shut: it is attached, and its table of gangs has
    /// room for them.
    pub(super) fn can_gate(&self, members: &[Member]) -> bool {
        self.features.gangs && self.outage().is_none() && fits(members)
    }

    /// Tells the scheduler the members of gangs, and which gangs are shut. If the scheduler does not stop
    /// these gangs ([`Supervisor::can_gate`]), opens all of them, because signals stop them instead.
    pub(super) fn gate(&mut self, members: &[Member]) {
        let update = if self.can_gate(members) {
            self.gangs.follow(members)
        } else if self.features.gangs && self.gangs.any_shut() {
            self.gangs.follow(&[])
        } else {
            return;
        };
        let has_gates = self.gangs.any_shut() || !update.gates.is_empty();
        self.update(|_, scheduler| {
            update.joins.iter().try_for_each(|(process, gang)| scheduler.join(*process, *gang))?;
            if has_gates { scheduler.gate(&update.gates) } else { Ok(()) }
        });
    }

    /// Whether the scheduler must be loaded again because of disciplines: the contract has disciplines and
    /// the scheduler was loaded without that feature, or a unit has another discipline now than in the
    /// `former` entries.
    fn has_other_disciplines(&self, former: &BTreeMap<u32, SlotEntry>) -> bool {
        let is_changed = |(slot, entry): (&u32, &SlotEntry)| {
            former.get(slot).is_some_and(|former| former.rules.discipline != entry.rules.discipline)
        };
        disciplined(&self.contract) && !self.features.disciplines || self.entries().iter().any(is_changed)
    }

    /// A unit's rules, with the slot of its parent instead of the parent's number.
    fn in_slots(&self, rules: Rules) -> UnitRules {
        let parent = rules.parent.and_then(|parent| self.slot(parent)).unwrap_or(NOBODY);
        let Rules { weight, flags, credit_ms, discipline, deadline, .. } = rules;
        UnitRules { parent, weight, flags, credit_ms, discipline, deadline }
    }

    /// The entry of each slot.
    fn entries(&self) -> BTreeMap<u32, SlotEntry> {
        let entry = |(unit, rules)| {
            let slot = self.slot(unit)?;
            let cgroup = self.cgroups.get(&slot).copied().flatten();
            Some((slot, SlotEntry { rules: self.in_slots(rules), cgroup }))
        };
        self.switches.units().filter_map(entry).collect()
    }

    /// The slot of the owner of each owned CPU.
    fn owners(&self) -> BTreeMap<u32, u32> {
        self.switches.owners().filter_map(|(cpu, unit)| Some((cpu, self.slot(unit)?))).collect()
    }

    fn slot(&self, unit: UnitId) -> Option<u32> {
        self.slot_of.get(unit.index()).copied().flatten()
    }

    /// Assigns slots and cgroups to the contract's units. Units that left the contract lose their CPUs.
    fn assign_slots(&mut self, cgroups: &[UnitCgroup]) {
        self.switches.follow(&self.contract);
        let path = |cgroup: &UnitCgroup| self.contract.unit(cgroup.unit).path.clone();
        let paths: Vec<String> = cgroups.iter().map(path).collect();
        let present: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        let leaving = self.slots.retain(|unit| present.contains(unit));
        self.cgroups.retain(|slot, _| !leaving.contains(slot));
        self.slot_of = vec![None; self.contract.units.len()];
        self.assign(UnitId::KERNEL, KERNEL, None);
        self.assign(UnitId::SHARED, COMMON, None);
        for (unit, path) in cgroups.iter().zip(&paths) {
            let Slot { number, cgroup, .. } = self.slots.take(path, &unit.dir);
            self.assign(unit.unit, number, Some(cgroup));
        }
    }

    fn assign(&mut self, unit: UnitId, slot: u32, cgroup: Option<u64>) {
        self.slot_of[unit.index()] = Some(slot);
        self.cgroups.insert(slot, cgroup);
    }

    /// The membership rules by slot.
    fn lists(&self, levels: Levels) -> Lists {
        in_slots(levels, |unit| self.slot(unit))
    }

    /// Why the scheduler cannot hold the contract; `None` if it can.
    fn unfit(&self) -> Option<String> {
        if self.contract.machine.scheme == Scheme::Smp {
            return Some("the scheme is smp, which leaves scheduling to the kernel".to_owned());
        }
        // If the CPUs cannot be counted, planning fails too and reports it.
        let cpus = self.loader.cpus().unwrap_or(usize::MAX);
        let capped = |group: &String| {
            format!(
                "{group} has a cap on CPU time (`CPUQuota=`, a container's `--cpus`, a pod's limit), which the kernel's own \
                 scheduler alone holds"
            )
        };
        cannot_hold(&self.contract, cpus).or_else(|| self.capped.as_ref().map(capped))
    }

    /// Loads a scheduler, fills its tables and attaches it. After a failure, the supervisor is as it was
    /// before the call.
    fn attach(&mut self) -> Result<(), LiveError> {
        let room = (self.slots.count() * ROOM).clamp(UNITS_MIN, UNITS_MAX);
        let features = Features {
            disciplines: disciplined(&self.contract),
            seats: seated(&self.contract),
            gangs: has_gangs(&self.contract),
        };
        let mut scheduler = self.loader.load(room, features)?;
        if features.seats {
            scheduler
                .set_pools(&self.loader.pools(self.contract.machine.pools, self.contract.machine.isolated)?);
        }
        self.update_units(scheduler.as_mut(), &BTreeMap::new())?;
        self.foreign.iter().try_for_each(|(group, slot)| scheduler.admit(*group, *slot))?;
        scheduler.set_matches(&self.matches);
        scheduler.attach()?;
        self.owners().iter().try_for_each(|(cpu, slot)| scheduler.own(*cpu, *slot))?;
        self.attachment = Attachment::Attached(scheduler);
        (self.room, self.features) = (room, features);
        self.gangs = Gangs::default();
        self.loads += 1;
        self.backoff.attached(self.now);
        Ok(())
    }

    /// Loads the scheduler again. An attached one is detached first, since the kernel runs one at a time.
    fn reload(&mut self) {
        if let Some(why) = self.unfit() {
            return self.stand_down(why);
        }
        self.detach("it is being loaded".to_owned(), Retry::Never);
        if let Err(error) = self.attach() {
            self.fail(&error.to_string());
        }
    }

    /// Detaches the scheduler until the contract or the CPU caps change, and reports that.
    fn stand_down(&mut self, why: String) {
        let until = if self.capped.is_some() { "that is gone" } else { "there is another contract" };
        self.problems.push(LiveError::Unavailable {
            what: why.clone(),
            remedy: format!("until {until}, control groups hold this contract"),
        });
        self.detach(why, Retry::OnChange);
    }

    /// Detaches a scheduler that failed, schedules the next attempt, and reports both.
    fn fail(&mut self, why: &str) {
        let (retry, next) = match self.backoff.failed(self.now) {
            Some(retry_at) => {
                let seconds = (retry_at - self.now).div_ceil(1_000_000_000);
                (Retry::At(retry_at), format!("it is loaded again in {seconds} s"))
            }
            None => (
                Retry::Never,
                "it ended too often and is given up: start the daemon again, or with `--backend cgroup`"
                    .to_owned(),
            ),
        };
        self.problems.push(LiveError::Unavailable {
            what: why.to_owned(),
            remedy: format!("control groups hold the contract, and {next}"),
        });
        self.detach(why.to_owned(), retry);
    }

    /// Keeps the counters of an attached scheduler, and detaches it: the kernel's own scheduler takes over.
    fn detach(&mut self, why: String, retry: Retry) {
        let since = self.outage().map_or(self.now, |outage| outage.since);
        if let Attachment::Attached(scheduler) = &mut self.attachment {
            for slot in self.cgroups.keys().filter(|slot| **slot < self.room) {
                self.past_counts.add(*slot, &scheduler.unit_counters(*slot), &scheduler.accounts(*slot));
            }
            take_waits(scheduler.as_mut(), &mut self.waits);
        }
        // This drops an attached scheduler, which detaches it.
        self.attachment = Attachment::Detached(Outage { since, why, retry });
    }

    /// Calls `act` with the scheduler, if the scheduler is attached. A scheduler that refuses an update has
    /// failed.
    fn update(&mut self, act: impl FnOnce(&Supervisor, &mut dyn Scheduler) -> Result<(), LiveError>) {
        // The scheduler is taken out of `self` for the call, since `act` reads `self` as well.
        let placeholder = Outage { since: self.now, why: String::new(), retry: Retry::Never };
        let mut attachment = std::mem::replace(&mut self.attachment, Attachment::Detached(placeholder));
        let updated = match &mut attachment {
            Attachment::Attached(scheduler) => act(self, scheduler.as_mut()),
            Attachment::Detached(_) => Ok(()),
        };
        self.attachment = attachment;
        if let Err(error) = updated {
            self.fail(&error.to_string());
        }
    }

    /// Sends the scheduler the entries that differ from the `former` ones, parents before their sub-units.
    fn update_units(
        &self,
        scheduler: &mut dyn Scheduler,
        former: &BTreeMap<u32, SlotEntry>,
    ) -> Result<(), LiveError> {
        let entries = self.entries();
        for slot in [KERNEL, COMMON].into_iter().chain(self.slots.held()) {
            let Some(entry) = entries.get(&slot) else { continue };
            let former = former.get(&slot);
            if former.map(|former| former.rules) != Some(entry.rules) {
                scheduler.set_unit(slot, entry.rules)?;
            }
            let former_cgroup = former.and_then(|former| former.cgroup);
            if former_cgroup != entry.cgroup {
                former_cgroup.map_or(Ok(()), |cgroup| scheduler.forget(cgroup))?;
                entry.cgroup.map_or(Ok(()), |cgroup| scheduler.admit(cgroup, slot))?;
            }
        }
        Ok(())
    }

    /// Frees the slots of units whose cgroups were removed, after the attached scheduler was made to forget
    /// these cgroups.
    fn release_slots(&mut self) {
        for Slot { number, cgroup, .. } in self.slots.without_cgroup() {
            let is_forgotten = match &mut self.attachment {
                // The scheduler refuses while a task of the unit is exiting. The next poll retries.
                Attachment::Attached(scheduler) => {
                    let is_forgotten =
                        scheduler.forget(cgroup).and_then(|()| scheduler.set_unit(number, EMPTY)).is_ok();
                    if is_forgotten {
                        take_waits(scheduler.as_mut(), &mut self.waits);
                        scheduler.clear(number);
                    }
                    is_forgotten
                }
                Attachment::Detached(_) => true,
            };
            if is_forgotten {
                self.past_counts.forget(number);
                self.waits.forget(number);
                self.slots.give_back(number);
            }
        }
    }
}

/// Takes all that the scheduler has counted about waits for other units.
fn take_waits(scheduler: &mut dyn Scheduler, waits: &mut Waits) {
    for _half in 0..2 {
        scheduler.take_waits_for_others(&mut |waiter, runner, ns| waits.add(waiter, runner, ns));
    }
}

#[cfg(test)]
mod tests;
