//! When the scheduler rules, and what it is told.
//!
//! Terms: it *rules* while it is loaded and schedules. Else it *rests*, and control groups hold the contract, by the
//! orders that the policy gives for their means.
//!
//! Algorithm: everything that a scheduler must know is remembered here: units with their slots, cgroups and weights,
//! whether they lend and borrow, and the owners of CPUs. A scheduler that is loaded anew is told all of it: enclosers
//! before their sub-units, cgroups before it schedules, owners after. A scheduler that the kernel ended is found at
//! the next look. It is loaded again at once if CPUs came or went, or if a unit's discipline changed, else after a pause ([`patience`](super::patience)).
//! A scheduler that refuses what it is told has failed in the same way.
//!
//! Properties (tested): the cgroup of a unit is admitted before a process is moved into it. Nothing is told twice.
//! After another load the scheduler knows what the one before knew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_dispatch::{Account, COMMON, KERNEL, Lists, NOBODY, UNITS_MAX, UnitRules};
use commonhold_policy::{Plan, Time};
use commonhold_steward::{Rules, SwitchUpdate, Switches, disciplined, seated};

use super::cannot_hold;
use super::gangs::{Gangs, Member, fits};
use super::loaded::{Knows, Loader, Scheduler};
use super::matches::{Levels, in_slots};
use super::patience::Patience;
use super::slots::{Slot, Slots};
use super::switched::{Former, Switched};
use crate::LiveError;
use crate::observe::jobs::has_gangs;

/// Room for units that come later: so many times those that there are, and no less than [`UNITS_MIN`].
const ROOM: u32 = 2;
const UNITS_MIN: u32 = 64;
/// A slot that is nobody's.
const EMPTY: UnitRules = UnitRules::USUAL;

/// A unit that has a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Its number in the contract.
    pub(super) unit: UnitId,
    /// The cgroup of the unit with all that is in it.
    pub(super) dir: PathBuf,
}

/// Why the scheduler does not rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rest {
    /// Since when.
    pub(super) since: Time,
    /// Why.
    pub(super) why: String,
    until: Until,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// It is loaded again then.
    Then(Time),
    /// This contract is not for it, or what is set in control groups: another may be.
    Another,
    /// It is given up.
    Ever,
}

enum State {
    Rules(Box<dyn Scheduler>),
    Rests(Rest),
}

/// What a scheduler is told of a slot: what the unit there is, and its cgroup, which the common parts do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken {
    rules: UnitRules,
    cgroup: Option<u64>,
}

/// The scheduler, loaded or not.
pub(super) struct Reign {
    loader: Box<dyn Loader>,
    state: State,
    /// For how many units the scheduler has room that was loaded last, and what it was loaded for.
    room: u32,
    knows: Knows,
    /// How many were loaded.
    loads: u64,
    patience: Patience,
    /// What the scheduler that is loaded knows of gangs.
    gangs: Gangs,
    slots: Slots,
    /// By unit of the contract, its slot.
    slot_of: Vec<Option<u32>>,
    /// What follows from contract and plans.
    switches: Switches,
    /// Cgroups by slot; the common parts have none.
    cgroups: BTreeMap<u32, Option<u64>>,
    /// Slots by control groups of other programs.
    held: BTreeMap<u64, u32>,
    /// The contract's rules for who executes a program, by slot.
    matches: Lists,
    former: Former,
    contract: Contract,
    /// A control group with a cap of another program's, which no scheduler of ours holds.
    capped: Option<String>,
    now: Time,
    problems: Vec<LiveError>,
}

impl Reign {
    /// For a contract; at rest until it starts.
    pub(super) fn new(
        loader: Box<dyn Loader>,
        contract: &Contract,
        places: &[Place],
        levels: Levels,
        now: Time,
    ) -> Reign {
        let rest = Rest { since: now, why: String::new(), until: Until::Another };
        let mut reign = Reign {
            loader,
            state: State::Rests(rest),
            room: 0,
            knows: Knows::default(),
            loads: 0,
            patience: Patience::default(),
            gangs: Gangs::default(),
            slots: Slots::default(),
            slot_of: Vec::new(),
            switches: Switches::new(contract),
            cgroups: BTreeMap::new(),
            held: BTreeMap::new(),
            matches: Lists::new(),
            former: Former::default(),
            contract: contract.clone(),
            capped: None,
            now,
            problems: Vec::new(),
        };
        reign.place(places);
        reign.matches = reign.lists(levels);
        reign
    }

    /// Loads a scheduler, unless the contract asks for what none can hold: then it rests.
    pub(super) fn start(&mut self) -> Result<(), LiveError> {
        match self.unfit() {
            Some(why) => self.rest(why, Until::Another),
            None => self.begin()?,
        }
        Ok(())
    }

    /// The same; where it cannot be loaded, it rests as after any other failure, and is loaded again.
    pub(super) fn start_patiently(&mut self) {
        if let Err(error) = self.start() {
            self.fail(&error.to_string());
        }
    }

    /// Why it does not rule; nothing while it does.
    pub(super) fn rest_now(&self) -> Option<&Rest> {
        match &self.state {
            State::Rules(_) => None,
            State::Rests(rest) => Some(rest),
        }
    }

    /// What was counted of a unit since the backend began.
    pub(super) fn switched(&self, unit: UnitId) -> Switched {
        let Some(slot) = self.slot(unit) else { return Switched::default() };
        let now = match &self.state {
            State::Rules(scheduler) => Some(scheduler.switched(slot)),
            State::Rests(_) => None,
        };
        self.former.with(slot, now.as_ref())
    }

    /// The accounts by CPU of which [`Reign::switched`] has the sum.
    pub(super) fn accounts(&self, unit: UnitId) -> Vec<Account> {
        let Some(slot) = self.slot(unit) else { return Vec::new() };
        let now = match &self.state {
            State::Rules(scheduler) => scheduler.accounts(slot),
            State::Rests(_) => Vec::new(),
        };
        self.former.cpus_with(slot, &now)
    }

    /// What went wrong since the last call.
    pub(super) fn take_problems(&mut self) -> Vec<LiveError> {
        std::mem::take(&mut self.problems)
    }

    /// Looks whether it still rules, and loads it again when it is time.
    pub(super) fn look(&mut self, now: Time) {
        self.now = now;
        match &self.state {
            State::Rules(scheduler) => match scheduler.ended() {
                None => self.release_slots(),
                Some(end) if end.restart => self.load_again(),
                Some(end) => self.fail(&format!("the kernel ended the scheduler: {}", end.why)),
            },
            State::Rests(Rest { until: Until::Then(again), .. }) if now >= *again => self.load_again(),
            State::Rests(_) => self.release_slots(),
        }
    }

    /// The same as [`Reign::heed`], before it starts.
    pub(super) fn heed_at_rest(&mut self, capped: Option<&str>) {
        self.capped = capped.map(str::to_owned);
    }

    /// Heeds that another program has set a cap on CPU time in a control group, or that none has any more.
    pub(super) fn heed(&mut self, capped: Option<&str>) {
        if self.capped.as_deref() == capped {
            return;
        }
        self.capped = capped.map(str::to_owned);
        match (self.unfit(), self.rest_now().map(|rest| rest.until)) {
            (Some(why), None) => self.give_way(why),
            (Some(why), Some(Until::Another)) => self.rest(why, Until::Another),
            (None, Some(Until::Another)) => self.load_again(),
            (_, Some(_)) | (None, None) => {}
        }
    }

    /// Follows another contract, whose units have these cgroups and rules; nobody was moved into new cgroups yet.
    pub(super) fn follow(&mut self, contract: &Contract, places: &[Place], levels: Levels) {
        self.release_slots();
        let (taken, owned) = (self.taken(), self.owned());
        let form = self.contract.machine.pools;
        self.contract.clone_from(contract);
        self.place(places);
        let lists = self.lists(levels);
        let former = std::mem::replace(&mut self.matches, lists);
        let until = self.rest_now().map(|rest| rest.until);
        match (self.unfit(), until) {
            // Given up is given up, whatever another contract asks for.
            (Some(_), Some(Until::Another | Until::Ever)) => {}
            (Some(why), _) => self.give_way(why),
            (None, Some(Until::Another)) => self.load_again(),
            (None, Some(_)) => {}
            (None, None)
                if self.slots.count() > self.room
                    || self.has_other_disciplines(&taken)
                    || seated(&self.contract) && !self.knows.seats
                    || has_gangs(&self.contract) && !self.knows.gangs =>
            {
                self.load_again();
            }
            (None, None) => self.tell(|reign, scheduler| {
                let owned_now = reign.owned();
                let orphans = owned.keys().filter(|cpu| !owned_now.contains_key(cpu));
                reign.tell_units(scheduler, &taken)?;
                if reign.matches != former {
                    scheduler.set_matches(&reign.matches);
                }
                if reign.knows.seats && reign.contract.machine.pools != form {
                    scheduler.set_pools(
                        &reign.loader.pools(reign.contract.machine.pools, reign.contract.machine.isolated)?,
                    );
                }
                orphans.copied().try_for_each(|cpu| scheduler.own(cpu, NOBODY))
            }),
        }
    }

    /// The contract that it follows.
    pub(super) fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Follows other rules of the same contract: a name in it has a number now.
    pub(super) fn follow_rules(&mut self, levels: Levels) {
        let lists = self.lists(levels);
        if lists == self.matches {
            return;
        }
        self.matches = lists;
        self.tell(|reign, scheduler| {
            scheduler.set_matches(&reign.matches);
            Ok(())
        });
    }

    /// Carries out what a plan says to a scheduler. What else it orders is for control groups.
    pub(super) fn apply(&mut self, plan: &Plan) {
        let updates = self.switches.apply(plan);
        self.tell(|reign, scheduler| {
            updates.iter().try_for_each(|update| match *update {
                SwitchUpdate::Unit(unit, rules) => match reign.slot(unit) {
                    Some(slot) => scheduler.set_unit(slot, reign.in_slots(rules)),
                    None => Ok(()),
                },
                SwitchUpdate::Own(cpu, unit) => {
                    scheduler.own(cpu, unit.and_then(|unit| reign.slot(unit)).unwrap_or(NOBODY))
                }
            })
        });
    }

    /// How many schedulers were loaded so far. One that is new knows no seats.
    pub(super) fn loads(&self) -> u64 {
        self.loads
    }

    /// Follows in which control groups of other programs units are held: the number of each (its inode), and its unit.
    pub(super) fn hold(&mut self, places: impl Iterator<Item = (u64, UnitId)>) {
        let now: BTreeMap<u64, u32> =
            places.filter_map(|(group, unit)| Some((group, self.slot(unit)?))).collect();
        if now == self.held {
            return;
        }
        let before = std::mem::replace(&mut self.held, now);
        self.tell(|reign, scheduler| {
            let gone = before.keys().filter(|group| !reign.held.contains_key(group));
            gone.copied().try_for_each(|group| scheduler.forget(group))?;
            let new = reign.held.iter().filter(|(group, slot)| before.get(group) != Some(slot));
            new.into_iter().try_for_each(|(group, slot)| scheduler.admit(*group, *slot))
        });
    }

    /// Tells the units of threads whose control groups do not say them.
    pub(super) fn put(&mut self, threads: &[(u32, UnitId)]) {
        if !threads.is_empty() {
            self.tell(|reign, scheduler| {
                let known = threads.iter().filter_map(|(thread, unit)| Some((*thread, reign.slot(*unit)?)));
                known.into_iter().try_for_each(|(thread, slot)| scheduler.put(thread, slot))
            });
        }
    }

    /// Tells where threads have their seats: a CPU of the pool of each.
    pub(super) fn seat(&mut self, seats: &[(u32, Option<u32>)]) {
        if self.knows.seats && !seats.is_empty() {
            self.tell(|_, scheduler| {
                seats.iter().try_for_each(|(thread, cpu)| scheduler.seat(*thread, *cpu))
            });
        }
    }

    /// Whether it stops these gangs.
    pub(super) fn gates(&self, members: &[Member]) -> bool {
        self.knows.gangs && self.rest_now().is_none() && fits(members)
    }

    /// Tells who is of which gang, and which are shut, where [`Reign::gates`] says so.
    pub(super) fn gate(&mut self, members: &[Member]) {
        let told = if self.gates(members) {
            self.gangs.follow(members)
        } else if self.knows.gangs && self.gangs.any_shut() {
            self.gangs.follow(&[])
        } else {
            return;
        };
        let turns = self.gangs.any_shut() || !told.gates.is_empty();
        self.tell(|_, scheduler| {
            told.joins.iter().try_for_each(|(process, gang)| scheduler.join(*process, *gang))?;
            if turns { scheduler.gate(&told.gates) } else { Ok(()) }
        });
    }

    /// Whether a unit that the scheduler knows has another discipline now, or one that the scheduler was not loaded for.
    fn has_other_disciplines(&self, before: &BTreeMap<u32, Taken>) -> bool {
        let changed = |(slot, now): (&u32, &Taken)| {
            before.get(slot).is_some_and(|before| before.rules.discipline != now.rules.discipline)
        };
        disciplined(&self.contract) && !self.knows.disciplines || self.taken().iter().any(changed)
    }

    /// A unit's rules in the scheduler's numbers.
    fn in_slots(&self, rules: Rules) -> UnitRules {
        let parent = rules.parent.and_then(|parent| self.slot(parent)).unwrap_or(NOBODY);
        let Rules { weight, flags, credit_ms, discipline, deadline, .. } = rules;
        UnitRules { parent, weight, flags, credit_ms, discipline, deadline }
    }

    /// What each slot is.
    fn taken(&self) -> BTreeMap<u32, Taken> {
        let taken = |(unit, rules)| {
            let slot = self.slot(unit)?;
            let cgroup = self.cgroups.get(&slot).copied().flatten();
            Some((slot, Taken { rules: self.in_slots(rules), cgroup }))
        };
        self.switches.units().filter_map(taken).collect()
    }

    /// Slots by CPU; nobody's CPUs are left out.
    fn owned(&self) -> BTreeMap<u32, u32> {
        self.switches.owners().filter_map(|(cpu, unit)| Some((cpu, self.slot(unit)?))).collect()
    }

    fn slot(&self, unit: UnitId) -> Option<u32> {
        self.slot_of.get(unit.index()).copied().flatten()
    }

    /// Slots and their cgroups, as the contract has it. A unit that is gone owns nothing any more.
    fn place(&mut self, places: &[Place]) {
        self.switches.follow(&self.contract);
        let path = |place: &Place| self.contract.unit(place.unit).path.clone();
        let paths: Vec<String> = places.iter().map(path).collect();
        let kept: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        let left = self.slots.retain(|unit| kept.contains(unit));
        self.cgroups.retain(|slot, _| !left.contains(slot));
        self.slot_of = vec![None; self.contract.units.len()];
        self.settle(UnitId::KERNEL, KERNEL, None);
        self.settle(UnitId::SHARED, COMMON, None);
        for (place, path) in places.iter().zip(&paths) {
            let Slot { number, cgroup, .. } = self.slots.take(path, &place.dir);
            self.settle(place.unit, number, Some(cgroup));
        }
    }

    fn settle(&mut self, unit: UnitId, slot: u32, cgroup: Option<u64>) {
        self.slot_of[unit.index()] = Some(slot);
        self.cgroups.insert(slot, cgroup);
    }

    /// The rules by slot.
    fn lists(&self, levels: Levels) -> Lists {
        in_slots(levels, |unit| self.slot(unit))
    }

    /// Why no scheduler can hold the contract.
    fn unfit(&self) -> Option<String> {
        if self.contract.machine.scheme == Scheme::Smp {
            return Some("the scheme is smp, which leaves scheduling to the kernel".to_owned());
        }
        // Where the CPUs cannot be counted, a plan cannot be made either, and that is said there.
        let cpus = self.loader.cpus().unwrap_or(usize::MAX);
        let capped = |group: &String| {
            format!(
                "{group} has a cap on CPU time (`CPUQuota=`, a container's `--cpus`, a pod's limit), which the kernel's own \
                 scheduler alone holds"
            )
        };
        cannot_hold(&self.contract, cpus).or_else(|| self.capped.as_ref().map(capped))
    }

    /// Loads a scheduler and tells it everything. It rules then, or nothing has changed.
    fn begin(&mut self) -> Result<(), LiveError> {
        let room = (self.slots.count() * ROOM).clamp(UNITS_MIN, UNITS_MAX);
        let knows = Knows {
            disciplines: disciplined(&self.contract),
            seats: seated(&self.contract),
            gangs: has_gangs(&self.contract),
        };
        let mut scheduler = self.loader.load(room, knows)?;
        if knows.seats {
            scheduler
                .set_pools(&self.loader.pools(self.contract.machine.pools, self.contract.machine.isolated)?);
        }
        self.tell_units(scheduler.as_mut(), &BTreeMap::new())?;
        self.held.iter().try_for_each(|(group, slot)| scheduler.admit(*group, *slot))?;
        scheduler.set_matches(&self.matches);
        scheduler.attach()?;
        self.owned().iter().try_for_each(|(cpu, slot)| scheduler.own(*cpu, *slot))?;
        self.state = State::Rules(scheduler);
        (self.room, self.knows) = (room, knows);
        self.gangs = Gangs::default();
        self.loads += 1;
        self.patience.works(self.now);
        Ok(())
    }

    /// Loads it again. The one before goes first: a kernel has one at a time.
    fn load_again(&mut self) {
        if let Some(why) = self.unfit() {
            return self.give_way(why);
        }
        self.rest("it is being loaded".to_owned(), Until::Ever);
        if let Err(error) = self.begin() {
            self.fail(&error.to_string());
        }
    }

    /// It rests until there is another contract, or no cap any more, and that is said.
    fn give_way(&mut self, why: String) {
        let until = if self.capped.is_some() { "that is gone" } else { "there is another contract" };
        self.problems.push(LiveError::Unavailable {
            what: why.clone(),
            remedy: format!("until {until}, control groups hold this contract"),
        });
        self.rest(why, Until::Another);
    }

    /// It failed: it rests, and what comes next is said.
    fn fail(&mut self, why: &str) {
        let (until, next) = match self.patience.failed(self.now) {
            Some(again) => {
                let seconds = (again - self.now).div_ceil(1_000_000_000);
                (Until::Then(again), format!("it is loaded again in {seconds} s"))
            }
            None => (
                Until::Ever,
                "it ended too often and is given up: start the daemon again, or with `--backend cgroup`"
                    .to_owned(),
            ),
        };
        self.problems.push(LiveError::Unavailable {
            what: why.to_owned(),
            remedy: format!("control groups hold the contract, and {next}"),
        });
        self.rest(why.to_owned(), until);
    }

    fn rest(&mut self, why: String, until: Until) {
        let since = self.rest_now().map_or(self.now, |rest| rest.since);
        if let State::Rules(scheduler) = &self.state {
            for slot in self.cgroups.keys().filter(|slot| **slot < self.room) {
                self.former.keep(*slot, &scheduler.switched(*slot), &scheduler.accounts(*slot));
            }
        }
        // A scheduler that ruled is dropped here, and the kernel's own takes over.
        self.state = State::Rests(Rest { since, why, until });
    }

    /// Tells something to the scheduler, if it rules; one that refuses has failed.
    fn tell(&mut self, what: impl FnOnce(&Reign, &mut dyn Scheduler) -> Result<(), LiveError>) {
        let nothing = Rest { since: self.now, why: String::new(), until: Until::Ever };
        let mut state = std::mem::replace(&mut self.state, State::Rests(nothing));
        let told = match &mut state {
            State::Rules(scheduler) => what(self, scheduler.as_mut()),
            State::Rests(_) => Ok(()),
        };
        self.state = state;
        if let Err(error) = told {
            self.fail(&error.to_string());
        }
    }

    /// Tells of the units that are not as they were, enclosers before their sub-units.
    fn tell_units(
        &self,
        scheduler: &mut dyn Scheduler,
        before: &BTreeMap<u32, Taken>,
    ) -> Result<(), LiveError> {
        let taken = self.taken();
        for slot in [KERNEL, COMMON].into_iter().chain(self.slots.held()) {
            let Some(told) = taken.get(&slot) else { continue };
            let before = before.get(&slot);
            if before.map(|before| before.rules) != Some(told.rules) {
                scheduler.set_unit(slot, told.rules)?;
            }
            let before = before.and_then(|before| before.cgroup);
            if before != told.cgroup {
                before.map_or(Ok(()), |cgroup| scheduler.forget(cgroup))?;
                told.cgroup.map_or(Ok(()), |cgroup| scheduler.admit(cgroup, slot))?;
            }
        }
        Ok(())
    }

    /// Slots whose cgroups are gone may be other units', once the scheduler has forgotten whose they were.
    fn release_slots(&mut self) {
        for Slot { number, cgroup, .. } in self.slots.gone() {
            let released = match &mut self.state {
                // Refused while a task of the unit's is on its way out: then at the next look.
                State::Rules(scheduler) => {
                    let released =
                        scheduler.forget(cgroup).and_then(|()| scheduler.set_unit(number, EMPTY)).is_ok();
                    if released {
                        scheduler.clear(number);
                    }
                    released
                }
                State::Rests(_) => true,
            };
            if released {
                self.former.drop(number);
                self.slots.give_back(number);
            }
        }
    }
}

#[cfg(test)]
mod tests;
