//! What holds at places, told to systemd as properties.
//!
//! Problem: systemd writes the control groups that are its own, and writes them anew. It switches off a controller that none of
//! its properties needs.
//!
//! Algorithm: a value is in the kernel's file at once ([`places`](super::places)), and here it is *wanted* as a property. At most
//! twice a second for each systemd unit, systemd is asked what its properties are, and then to set those that are wanted and still
//! are what they were. CPUs and weights change with every loan, and systemd calls all who listen when it is told: of those it is told
//! what was wanted for a second, or after five seconds what is wanted then. The journal has both before. A value that is neither what was there nor what was given is an administrator's:
//! it takes the place of what was there. Every five seconds it is looked for. A value that was given and is not there, without
//! another's in its place, is given again: systemd did not answer, or somebody took it away. So is all that was given, when a systemd
//! unit that was gone comes again with what it had before.
//!
//! systemd adds to a list of devices. Of a list to which an administrator has added a disk, ours is taken out: the policy orders no
//! rates where others have set some.
//!
//! A systemd unit that is left is taken back first, also where it is held again at once: it may be another of the same name.
//!
//! systemd writes all files of a group when it is told one property of it, by what it was told last of the others; and all files of all
//! groups when it reads its own anew. Which groups it has written is told ([`Properties::take_rewritten`]).
//!
//! What an administrator set is a fact for the policy ([`GroupBounds`]), which orders within it. A value that was given and is in
//! force no more is not given again until the policy has seen that.
//!
//! systemd keeps the controller `cpu` on for a weight, and not for counting, which a kernel does without it. Our scheduler does not see
//! the groups of a kernel where that controller is off. So a systemd unit whose weight nobody sets has the usual one.
//!
//! Limits:
//! - Where systemd does not answer, the kernel's files have what holds, until systemd writes them.
//! - systemd has no call that sets what is still as it was. What an administrator sets in the tenth of a millisecond between the
//!   question and the call is lost.
//! - Where an administrator sets a rate without `--runtime`, systemd writes ours of other disks beside it, below `/etc`. At the next look
//!   it is told to take them out. Where it cannot write there then, they stay.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::{GroupBounds, MS, Time};

use crate::LiveError;
use crate::systemd::{
    Answer, Change, Done, Former, Instance, Property, PropertyChange, Queue, Request, Reverted, Value,
};
use crate::undo::journal::{Entry, Journal, record};

/// What is set of places.
const PROPERTIES: [Property; 9] = [
    Property::AllowedCPUs,
    Property::CPUAccounting,
    Property::CPUWeight,
    Property::IOAccounting,
    Property::IOReadBandwidthMax,
    Property::IOWriteBandwidthMax,
    Property::MemoryHigh,
    Property::MemoryLow,
    Property::MemoryMin,
];

/// Rates are all an administrator's, or all ours.
const RATES: [Property; 2] = [Property::IOReadBandwidthMax, Property::IOWriteBandwidthMax];

/// What switches a place's controllers on.
const ACCOUNTING: [Property; 2] = [Property::CPUAccounting, Property::IOAccounting];

/// The weight of a control group that has none.
const WEIGHT_USUAL: Value = Value::Number(100);

/// A systemd unit is asked no more often.
const ASK_NS: Time = 500 * MS;

/// What changes with every loan.
const LENT: [Property; 2] = [Property::AllowedCPUs, Property::CPUWeight];

/// For how long that is to be the same before systemd is told, if it was told another before.
const REST_NS: Time = 1_000 * MS;

/// So often it is looked for what an administrator sets.
const LOOK_NS: Time = 5_000 * MS;

/// systemd answers again once it has done so for this long. Every unit is looked at in that time.
const ANSWERS_NS: Time = 2 * LOOK_NS;

/// So many of the values that were given are remembered: the last may be in force, or the one before it.
const GIVEN_MAX: usize = 2;

#[derive(Debug)]
enum Asked {
    Former,
    Set(Vec<Change>),
    Revert(Vec<Property>),
    Reload,
}

/// A systemd unit.
#[derive(Debug, Default)]
struct Told {
    /// What was there before, or is an administrator's; none until systemd has told.
    former: BTreeMap<Property, Former>,
    is_known: bool,
    wanted: BTreeMap<Property, Value>,
    /// When something was wanted last.
    wanted_at: Time,
    given: BTreeMap<Property, Vec<Value>>,
    is_busy: bool,
    asked_at: Option<Time>,
    /// Whether its controllers are to be on.
    is_place: bool,
    /// Whether all is to be taken back. What is wanted came later, and is told after that.
    leaves: bool,
}

/// What systemd was told.
#[derive(Debug)]
pub(super) struct Properties {
    instance: Instance,
    queue: Queue,
    units: BTreeMap<String, Told>,
    asked: BTreeMap<u64, (String, Asked)>,
    /// Units whose files systemd has written since that was asked last.
    rewritten: BTreeSet<String>,
    /// Refusals that were said.
    said: BTreeSet<String>,
    /// That systemd does not answer.
    silence: Option<LiveError>,
    /// Since when it has answered everything again, if it was silent before.
    answers_since: Option<Time>,
    /// systemd counts files among its own that are gone: it is to read them anew, once all is let go that is to be.
    is_to_read: bool,
    /// Not before this, where it has not done so.
    read_after: Time,
    now: Time,
}

impl Properties {
    /// Of the machine's systemd; `None` where there is none.
    pub(super) fn begin() -> Result<Option<Properties>, LiveError> {
        let instance = Instance::system();
        instance.is_there().then(|| Properties::of(instance)).transpose()
    }

    /// Of a systemd that is there.
    pub(super) fn of(instance: Instance) -> Result<Properties, LiveError> {
        let queue = Queue::start(instance.clone())?;
        let (units, asked) = (BTreeMap::new(), BTreeMap::new());
        let (rewritten, said) = (BTreeSet::new(), BTreeSet::new());
        Ok(Properties {
            instance,
            queue,
            units,
            asked,
            rewritten,
            said,
            silence: None,
            answers_since: None,
            is_to_read: false,
            read_after: 0,
            now: 0,
        })
    }

    /// A systemd unit's group is held from now on. Its controllers are switched on.
    pub(super) fn come(&mut self, unit: &str) {
        let told = self.units.entry(unit.to_owned()).or_default();
        told.is_place = true;
        told.count();
    }

    /// It is held no more.
    pub(super) fn leave(&mut self, unit: &str) {
        if let Some(told) = self.units.get_mut(unit) {
            (told.leaves, told.is_place) = (true, false);
            told.wanted.clear();
        }
    }

    /// A value is to be in force at a systemd unit.
    pub(super) fn want(&mut self, unit: &str, property: Property, value: Value) {
        let told = self.units.entry(unit.to_owned()).or_default();
        if told.wanted.insert(property, value.clone()) != Some(value) {
            told.wanted_at = self.now;
        }
    }

    /// Somebody has written over what is wanted of a systemd unit: it is told now, or what an administrator set is learnt.
    pub(super) fn hasten(&mut self, unit: &str) {
        if let Some(told) = self.units.get_mut(unit) {
            told.wanted_at = 0;
        }
    }

    /// The units whose files systemd has written since the last call: all of a unit's, whichever property it was told.
    pub(super) fn take_rewritten(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.rewritten)
    }

    /// Whether a newer value is to be told than systemd has.
    pub(super) fn wants(&self, unit: &str, property: Property) -> bool {
        self.units.get(unit).is_some_and(|told| told.wanted.contains_key(&property))
    }

    /// What an administrator has set of a systemd unit; `None` while that is not known.
    pub(super) fn set_by_others(&self, unit: &str) -> Option<GroupBounds> {
        let told = self.units.get(unit).filter(|told| told.is_known)?;
        let value = |property: Property| {
            told.former
                .get(&property)
                .map(|former| &former.value)
                .filter(|value| **value != property.nothing())
        };
        let memory = match value(Property::MemoryHigh) {
            Some(Value::Number(bytes)) => Some(*bytes),
            _ => None,
        };
        let cpus = match value(Property::AllowedCPUs) {
            Some(Value::Cpus(cpus)) => Some(cpus.clone()),
            _ => None,
        };
        let is_set = |properties: &[Property]| properties.iter().any(|property| value(*property).is_some());
        Some(GroupBounds {
            memory,
            cpus,
            weight: is_set(&[Property::CPUWeight]),
            cap: false,
            kept: is_set(&[Property::MemoryLow, Property::MemoryMin]),
            rates: is_set(&[Property::IOReadBandwidthMax, Property::IOWriteBandwidthMax]),
        })
    }

    /// Hears what systemd has answered, and asks it for what is due.
    pub(super) fn look(&mut self, now: Time, journal: &mut Journal) -> Vec<LiveError> {
        self.now = now;
        let mut problems = Vec::new();
        for Done { number, answer } in self.queue.done() {
            let Some((unit, asked)) = self.asked.remove(&number) else { continue };
            if let Asked::Reload = asked {
                self.rewritten.extend(self.units.keys().cloned());
                if let Err(error) = answer {
                    (self.is_to_read, self.read_after) = (true, now.saturating_add(LOOK_NS));
                    if !error.is_silence() && self.said.insert(error.to_string()) {
                        problems.push(error.into());
                    }
                }
                continue;
            }
            let Some(told) = self.units.get_mut(&unit) else { continue };
            told.is_busy = false;
            match (asked, answer) {
                (Asked::Former, Ok(Answer::Former(list))) => {
                    let now = list.iter().map(|former| (former.property, former.value.clone())).collect();
                    let has_removed = told.hear(&self.instance, &unit, list, journal, &mut problems);
                    self.is_to_read |= has_removed;
                    problems.extend(self.set(&unit, &now, journal).err());
                }
                (Asked::Revert(properties), Ok(answer)) => {
                    if let Answer::Reverted(Reverted { left, reload, .. }) = &answer {
                        self.is_to_read |= *reload;
                        problems.extend(left.iter().map(|(property, value)| stays(&unit, *property, value)));
                    }
                    problems.extend(self.forget(&unit, &properties, journal).err());
                    self.rewritten.insert(unit);
                }
                (Asked::Set(changes), Ok(answer)) => {
                    if matches!(&answer, Answer::Set(left) if left.len() < changes.len()) {
                        self.rewritten.insert(unit);
                    }
                    if matches!(&answer, Answer::Set(left) if !left.is_empty()) {
                        // An administrator's: learnt at once.
                        told.asked_at = None;
                    }
                }
                (asked, Err(error)) if error.is_gone() => {
                    // Its files stay, and would be in force when it comes again.
                    let held = told.held();
                    let properties: Vec<Property> = held.iter().map(|held| held.former.property).collect();
                    if held.is_empty() || matches!(asked, Asked::Revert(_)) {
                        problems.extend(self.forget(&unit, &properties, journal).err());
                    } else {
                        told.is_busy = true;
                        self.take_back(unit, properties, held);
                    }
                }
                (asked, Err(error)) => {
                    match asked {
                        Asked::Set(changes) => self.not_set(&unit, changes, error.is_silence()),
                        // It is held again: what cannot be taken back is held on.
                        Asked::Revert(_) if !error.is_silence() => told.leaves &= told.wanted.is_empty(),
                        Asked::Revert(_) | Asked::Former | Asked::Reload => {}
                    }
                    if !error.is_silence() && self.said.insert(format!("{unit} {error}")) {
                        problems.push(error.into());
                    }
                }
                (_, Ok(_)) => {}
            }
        }
        self.hear_silence();
        self.ask(now);
        problems
    }

    /// Hysteresis: one answer does not end a silence. A systemd that was away has much to catch up with, and may well be
    /// late with the next one.
    fn hear_silence(&mut self) {
        let now = self.now;
        match self.queue.silence() {
            Some(seen) => {
                self.answers_since = None;
                self.silence.get_or_insert_with(|| LiveError::Unavailable {
                    what: format!("systemd did not answer: {seen}"),
                    remedy: "limits are in force in the kernel's files, and its properties will follow: it is asked again, \
                             after a second and then less often"
                        .to_owned(),
                });
            }
            None if self.silence.is_some() => {
                let since = *self.answers_since.get_or_insert(now);
                self.silence.take_if(|_| now >= since.saturating_add(ANSWERS_NS));
            }
            None => {}
        }
    }

    /// That systemd does not answer, until it has answered for some seconds.
    pub(super) fn silence(&self) -> Option<&LiveError> {
        self.silence.as_ref()
    }

    fn ask(&mut self, now: Time) {
        let (mut requests, mut back) = (Vec::new(), Vec::new());
        for (unit, told) in &mut self.units {
            let since = told.asked_at.map(|at| now.saturating_sub(at));
            if told.is_busy || since.is_some_and(|since| since < ASK_NS) {
                continue;
            }
            let held: Vec<PropertyChange> = told.held();
            if told.leaves {
                let properties = held.iter().map(|held| held.former.property).collect();
                back.push((unit.clone(), properties, held));
            } else if !told.is_known || told.is_due(now) || since.is_none_or(|since| since >= LOOK_NS) {
                let request = Request::Former { unit: unit.clone(), properties: PROPERTIES.to_vec() };
                requests.push((unit.clone(), request));
            } else {
                continue;
            }
            (told.is_busy, told.asked_at) = (true, Some(now));
        }
        if self.is_to_read && now >= self.read_after && !self.units.values().any(|told| told.leaves) {
            self.is_to_read = false;
            let number = self.queue.ask(Request::Reload);
            self.asked.insert(number, (String::new(), Asked::Reload));
        }
        for (unit, request) in requests {
            let number = self.queue.ask(request);
            self.asked.insert(number, (unit, Asked::Former));
        }
        for (unit, properties, held) in back {
            self.take_back(unit, properties, held);
        }
    }

    fn take_back(&mut self, unit: String, properties: Vec<Property>, held: Vec<PropertyChange>) {
        let number = self.queue.ask(Request::Revert { unit: unit.clone(), changes: held });
        self.asked.insert(number, (unit, Asked::Revert(properties)));
    }

    /// What was asked for is not set. Where systemd was silent, it is wanted still. Of several that it refused, each is asked for alone:
    /// it sets all or none.
    fn not_set(&mut self, unit: &str, changes: Vec<Change>, is_silence: bool) {
        let Some(told) = self.units.get_mut(unit) else { return };
        if is_silence {
            // Not where it was left since: what is wanted there came later.
            if !told.leaves {
                for change in changes {
                    told.wanted.entry(change.property).or_insert(change.to);
                }
            }
        } else if changes.len() > 1 {
            told.is_busy = true;
            for change in changes {
                self.ask_for(unit, vec![change]);
            }
        } else if let Some(Change { property, to, .. }) = changes.first()
            && let Some(given) = told.given.get_mut(property)
        {
            given.retain(|given| given != to);
            if given.is_empty() {
                told.given.remove(property);
            }
        }
    }

    fn ask_for(&mut self, unit: &str, changes: Vec<Change>) {
        let number = self.queue.ask(Request::Set { unit: unit.to_owned(), changes: changes.clone() });
        self.asked.insert(number, (unit.to_owned(), Asked::Set(changes)));
    }

    /// Asks for what is wanted of a systemd unit of which it is known what was before, and what is `now`.
    fn set(
        &mut self,
        unit: &str,
        now: &BTreeMap<Property, Value>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(told) = self.units.get_mut(unit).filter(|told| !told.leaves) else { return Ok(()) };
        let (mut changes, others_have_rates) = (Vec::new(), told.others_have_rates());
        for (property, to) in std::mem::take(&mut told.wanted) {
            // One that this systemd does not know is left out.
            let (Some(from), Some(former)) = (now.get(&property), told.former.get(&property)) else {
                continue;
            };
            let is_others = others_have_rates && RATES.contains(&property);
            let to = if is_others { former.value.clone() } else { to };
            if from.clone().sorted() != to.clone().sorted() {
                changes.push(Change { property, from: from.clone(), to });
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::new();
        for Change { property, to, .. } in &changes {
            if !told.given.contains_key(property) {
                let former = told.former[property].clone();
                entries.push(Entry::Property {
                    instance: self.instance.clone(),
                    unit: unit.to_owned(),
                    former,
                });
            }
            let (instance, unit, value) = (self.instance.clone(), unit.to_owned(), to.clone());
            entries.push(Entry::PropertyGiven { instance, unit, property: *property, value });
        }
        record(journal, &entries)?;
        for Change { property, to, .. } in &changes {
            let given = told.given.entry(*property).or_default();
            given.retain(|given| given != to);
            given.push(to.clone());
            given.drain(..given.len().saturating_sub(GIVEN_MAX));
        }
        told.is_busy = true;
        self.ask_for(unit, changes);
        Ok(())
    }

    /// Nothing is held of a systemd unit any more. One that is held still, or came again meanwhile, begins anew.
    fn forget(&mut self, unit: &str, given: &[Property], journal: &mut Journal) -> Result<(), LiveError> {
        let back = given.iter().map(|property| Entry::PropertyReverted {
            instance: self.instance.clone(),
            unit: unit.to_owned(),
            property: *property,
        });
        record(journal, &back.collect::<Vec<_>>())?;
        let told = self.units.remove(unit);
        if let Some(told) = told.filter(|told| !told.leaves || !told.wanted.is_empty()) {
            self.units.insert(unit.to_owned(), told.anew());
        }
        Ok(())
    }
}

impl Told {
    /// Its controllers are to be on.
    fn count(&mut self) {
        self.wanted.extend(ACCOUNTING.map(|accounting| (accounting, Value::Flag(true))));
    }

    /// As it is after all was taken back. What a systemd unit was given that went, it is given again when it comes, where it then has
    /// what was there before: another value is an administrator's.
    fn anew(self) -> Told {
        let Told { mut former, mut wanted, given, asked_at, is_place, leaves, .. } = self;
        if leaves {
            return Told { wanted, asked_at, is_place, ..Told::default() };
        }
        for (property, given) in given {
            if let Some(last) = given.into_iter().next_back() {
                wanted.entry(property).or_insert(last);
            }
        }
        former.retain(|property, _| wanted.contains_key(property));
        let mut told = Told { former, wanted, asked_at, is_place, ..Told::default() };
        if is_place {
            told.count();
        }
        told
    }

    /// Whether something is wanted that systemd is to be told now.
    fn is_due(&self, now: Time) -> bool {
        let changes_often =
            |property: &Property| LENT.contains(property) && self.given.contains_key(property);
        let rests = now >= self.wanted_at.saturating_add(REST_NS);
        !self.wanted.is_empty() && (rests || !self.wanted.keys().all(changes_often))
    }

    fn held(&self) -> Vec<PropertyChange> {
        self.given.keys().filter_map(|property| self.held_of(*property)).collect()
    }

    fn held_of(&self, property: Property) -> Option<PropertyChange> {
        let given = self.given.get(&property)?.clone();
        Some(PropertyChange { former: self.former.get(&property)?.clone(), given })
    }

    /// Learns what properties are now. Whether a file of systemd's was removed, or written.
    fn hear(
        &mut self,
        instance: &Instance,
        unit: &str,
        list: Vec<Former>,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) -> bool {
        self.is_known = true;
        let mut has_removed = false;
        for mut now in list {
            let property = now.property;
            let Some(held) = self.held_of(property) else {
                let is_new = self.former.get(&property).is_some_and(|before| before.value != now.value);
                if is_new {
                    // An administrator's.
                    self.wanted.remove(&property);
                }
                self.former.insert(property, now);
                continue;
            };
            let others = held.set_by_others(&now.value);
            let before = &held.former.value;
            if held.given.contains(&now.value) || *before == now.value || others.as_ref() == Some(before) {
                if let Some(last) = held.given.last().filter(|last| **last != now.value && !self.leaves) {
                    self.wanted.entry(property).or_insert_with(|| last.clone());
                }
                continue;
            }
            // An administrator's, too. Where it is in a file of its own, ours is there still.
            match held.restore_file() {
                Ok(true) => (now.content, has_removed) = (held.former.content, true),
                Ok(false) => {}
                Err(error) => problems.push(error.into()),
            }
            problems.extend(self.yields(instance, unit, now, others, journal).err());
        }
        self.let_rates_go();
        self.keep_cpu();
        has_removed
    }

    /// An administrator has set a property: what was given is in force no more, and not to be taken back. But of a list to which it
    /// was added, what was given is in force still, and all but what is of `others` is to go.
    fn yields(
        &mut self,
        instance: &Instance,
        unit: &str,
        now: Former,
        others: Option<Value>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let (property, in_force) = (now.property, now.value.clone());
        let (instance, unit) = (instance.clone(), unit.to_owned());
        let back = Entry::PropertyReverted { instance: instance.clone(), unit: unit.clone(), property };
        let (former, given) = match others {
            Some(others) => (now.restricted_to(others), Some(in_force)),
            None => (now, None),
        };
        let mut entries = vec![back];
        if let Some(value) = given.clone() {
            let former = former.clone();
            entries.push(Entry::Property { instance: instance.clone(), unit: unit.clone(), former });
            entries.push(Entry::PropertyGiven { instance, unit, property, value });
        }
        record(journal, &entries)?;
        self.wanted.remove(&property);
        self.given.remove(&property);
        self.given.extend(given.map(|value| (property, vec![value])));
        self.former.insert(property, former);
        Ok(())
    }

    /// Whether somebody else has set rates: the policy orders none then.
    fn others_have_rates(&self) -> bool {
        let is_set =
            |rates: &Property| self.former.get(rates).is_some_and(|former| former.value != rates.nothing());
        RATES.iter().any(is_set)
    }

    /// Has ours taken out where others have set rates.
    fn let_rates_go(&mut self) {
        if self.leaves || !self.others_have_rates() {
            return;
        }
        for rates in RATES {
            if let (Some(given), Some(former)) = (self.given.get(&rates), self.former.get(&rates))
                && given.last() != Some(&former.value)
            {
                self.wanted.insert(rates, former.value.clone());
            }
        }
    }

    /// Has systemd keep the controller `cpu` on, unless somebody's weight does.
    fn keep_cpu(&mut self) {
        let weight = Property::CPUWeight;
        let is_unset = self.former.get(&weight).is_some_and(|former| former.value == weight.nothing());
        if is_unset && !self.leaves && !self.given.contains_key(&weight) {
            self.wanted.entry(weight).or_insert(WEIGHT_USUAL);
        }
    }
}

fn stays(unit: &str, property: Property, value: &Value) -> LiveError {
    LiveError::Unavailable {
        what: format!("{unit}: {property} stays `{}`: an administrator has set it", value.text(property)),
        remedy: "nothing is to be done".to_owned(),
    }
}

#[cfg(test)]
mod tests;
