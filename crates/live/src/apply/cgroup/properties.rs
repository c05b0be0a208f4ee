//! What holds at places, told to systemd as properties.
//!
//! Problem: systemd writes the control groups that are its own, and writes them anew. It switches off a controller that none of
//! its properties needs.
//!
//! Algorithm: a value is in the kernel's file at once ([`places`](super::places)), and here it is *wanted* as a property. At most
//! twice a second for each systemd unit, systemd is asked what its properties are, and then to set those that are wanted and still
//! are what they were. The journal has both before. A value that is neither what was there nor what was given is an administrator's:
//! it takes the place of what was there. Every five seconds it is looked for. A value that was given and is not there, without
//! another's in its place, is given again: systemd did not answer, or somebody took it away.
//!
//! systemd writes all files of a group when it is told one property of it, by what it was told last of the others; and all files of all
//! groups when it reads its own anew. Which groups it has written is told ([`Properties::take_rewritten`]).
//!
//! What an administrator set is a fact for the policy ([`PlaceBounds`]), which orders within it. A value that was given and is in
//! force no more is not given again until the policy has seen that.
//!
//! systemd keeps the controller `cpu` on for a weight, and not for counting, which a kernel does without it. Our scheduler does not see
//! the groups of a kernel where that controller is off. So a systemd unit whose weight nobody sets has the usual one.
//!
//! Limits:
//! - Where systemd does not answer, the kernel's files have what holds, until systemd writes them.
//! - systemd has no call that sets what is still as it was. What an administrator sets in the tenth of a millisecond between the
//!   question and the call is lost.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::{MS, PlaceBounds, Time};

use crate::LiveError;
use crate::systemd::{
    Answer, Change, Done, Former, Held, News, Property, Queue, Request, Reverted, Value, Whose,
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

/// The weight of a control group that has none.
const WEIGHT_USUAL: Value = Value::Number(100);

/// A systemd unit is asked no more often.
const ASK_NS: Time = 500 * MS;

/// So often it is looked for what an administrator sets.
const LOOK_NS: Time = 5_000 * MS;

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
    given: BTreeMap<Property, Vec<Value>>,
    is_busy: bool,
    asked_at: Option<Time>,
    leaves: bool,
}

/// What systemd was told.
#[derive(Debug)]
pub(super) struct Properties {
    whose: Whose,
    queue: Queue,
    units: BTreeMap<String, Told>,
    asked: BTreeMap<u64, (String, Asked)>,
    /// Units whose files systemd has written since that was asked last.
    rewritten: BTreeSet<String>,
    /// Refusals that were said.
    said: BTreeSet<String>,
    /// systemd counts files among its own that are gone: it is to read them anew, once all is let go that is to be.
    is_to_read: bool,
}

impl Properties {
    /// Of the machine's systemd; `None` where there is none.
    pub(super) fn begin() -> Result<Option<Properties>, LiveError> {
        let whose = Whose::system();
        whose.is_there().then(|| Properties::of(whose)).transpose()
    }

    /// Of a systemd that is there.
    pub(super) fn of(whose: Whose) -> Result<Properties, LiveError> {
        let queue = Queue::start(whose.clone())?;
        let (units, asked) = (BTreeMap::new(), BTreeMap::new());
        let (rewritten, said) = (BTreeSet::new(), BTreeSet::new());
        Ok(Properties { whose, queue, units, asked, rewritten, said, is_to_read: false })
    }

    /// A systemd unit's group is held from now on. Its controllers are switched on.
    pub(super) fn come(&mut self, unit: &str) {
        let told = self.units.entry(unit.to_owned()).or_default();
        told.leaves = false;
        for accounting in [Property::CPUAccounting, Property::IOAccounting] {
            told.wanted.insert(accounting, Value::Flag(true));
        }
    }

    /// It is held no more.
    pub(super) fn leave(&mut self, unit: &str) {
        if let Some(told) = self.units.get_mut(unit) {
            told.leaves = true;
            told.wanted.clear();
        }
    }

    /// A value is to be in force at a systemd unit.
    pub(super) fn want(&mut self, unit: &str, property: Property, value: Value) {
        self.units.entry(unit.to_owned()).or_default().wanted.insert(property, value);
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
    pub(super) fn set_by_others(&self, unit: &str) -> Option<PlaceBounds> {
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
        Some(PlaceBounds {
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
        let mut problems = Vec::new();
        for Done { number, answer } in self.queue.done() {
            let Some((unit, asked)) = self.asked.remove(&number) else { continue };
            if let Asked::Reload = asked {
                self.rewritten.extend(self.units.keys().cloned());
                continue;
            }
            let Some(told) = self.units.get_mut(&unit) else { continue };
            told.is_busy = false;
            match (asked, answer) {
                (Asked::Former, Ok(Answer::Former(list))) => {
                    let now = list.iter().map(|former| (former.property, former.value.clone())).collect();
                    problems.extend(told.hear(&self.whose, &unit, list, journal).err());
                    problems.extend(self.set(&unit, &now, journal).err());
                }
                (Asked::Revert(properties), Ok(answer)) => {
                    if let Answer::Reverted(Reverted { left, reload, .. }) = &answer {
                        self.is_to_read |= *reload;
                        problems.extend(left.iter().map(|(property, value)| stays(&unit, *property, value)));
                    }
                    problems.extend(self.forget(&unit, &properties, journal).err());
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
                    if let Asked::Set(changes) = asked {
                        self.not_set(&unit, changes, error.is_silence());
                    }
                    if !error.is_silence() && self.said.insert(format!("{unit} {error}")) {
                        problems.push(error.into());
                    }
                }
                (_, Ok(_)) => {}
            }
        }
        while let Some(news) = self.queue.news() {
            problems.push(match news {
                News::Lost(why) => LiveError::Unavailable {
                    what: format!("systemd is told nothing: {why}"),
                    remedy: "meanwhile the kernel's files have what holds".to_owned(),
                },
                News::Back => LiveError::Unavailable {
                    what: "systemd answers again".to_owned(),
                    remedy: "nothing is to be done".to_owned(),
                },
            });
        }
        self.ask(now);
        problems
    }

    fn ask(&mut self, now: Time) {
        let (mut requests, mut back) = (Vec::new(), Vec::new());
        for (unit, told) in &mut self.units {
            let since = told.asked_at.map(|at| now.saturating_sub(at));
            if told.is_busy || since.is_some_and(|since| since < ASK_NS) {
                continue;
            }
            let held: Vec<Held> = told.held();
            if told.leaves {
                let properties = held.iter().map(|held| held.former.property).collect();
                back.push((unit.clone(), properties, held));
            } else if !told.is_known || !told.wanted.is_empty() || since.is_none_or(|since| since >= LOOK_NS)
            {
                let request = Request::Former { unit: unit.clone(), properties: PROPERTIES.to_vec() };
                requests.push((unit.clone(), request));
            } else {
                continue;
            }
            (told.is_busy, told.asked_at) = (true, Some(now));
        }
        if self.is_to_read && !self.units.values().any(|told| told.leaves) {
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

    fn take_back(&mut self, unit: String, properties: Vec<Property>, held: Vec<Held>) {
        let number = self.queue.ask(Request::Revert { unit: unit.clone(), held });
        self.asked.insert(number, (unit, Asked::Revert(properties)));
    }

    /// What was asked for is not set. Where systemd was silent, it is wanted still. Of several that it refused, each is asked for alone:
    /// it sets all or none.
    fn not_set(&mut self, unit: &str, changes: Vec<Change>, is_silence: bool) {
        let Some(told) = self.units.get_mut(unit) else { return };
        if is_silence {
            for change in changes {
                told.wanted.entry(change.property).or_insert(change.to);
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
        let mut changes = Vec::new();
        for (property, to) in std::mem::take(&mut told.wanted) {
            // One that this systemd does not know is left out.
            let Some(from) = now.get(&property).filter(|_| told.former.contains_key(&property)) else {
                continue;
            };
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
                entries.push(Entry::Property { whose: self.whose.clone(), unit: unit.to_owned(), former });
            }
            let (whose, unit, value) = (self.whose.clone(), unit.to_owned(), to.clone());
            entries.push(Entry::PropertyGiven { whose, unit, property: *property, value });
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

    /// Nothing is held of a systemd unit any more. One that came again meanwhile begins anew.
    fn forget(&mut self, unit: &str, given: &[Property], journal: &mut Journal) -> Result<(), LiveError> {
        let back = given.iter().map(|property| Entry::PropertyBack {
            whose: self.whose.clone(),
            unit: unit.to_owned(),
            property: *property,
        });
        record(journal, &back.collect::<Vec<_>>())?;
        if let Some(told) = self.units.remove(unit).filter(|told| !told.leaves) {
            let Told { wanted, asked_at, .. } = told;
            self.units.insert(unit.to_owned(), Told { wanted, asked_at, ..Told::default() });
        }
        Ok(())
    }
}

impl Told {
    fn held(&self) -> Vec<Held> {
        let held = |(property, given): (&Property, &Vec<Value>)| {
            Some(Held { former: self.former.get(property)?.clone(), given: given.clone() })
        };
        self.given.iter().filter_map(held).collect()
    }

    /// Learns what properties are now.
    fn hear(
        &mut self,
        whose: &Whose,
        unit: &str,
        list: Vec<Former>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        self.is_known = true;
        for now in list {
            let property = now.property;
            let is_ours = |given: &Vec<Value>| {
                given.contains(&now.value)
                    || self.former.get(&property).is_some_and(|before| before.value == now.value)
            };
            match self.given.get(&property) {
                Some(given) if is_ours(given) => {
                    if let Some(last) = given.last().filter(|last| **last != now.value && !self.leaves) {
                        self.wanted.entry(property).or_insert_with(|| last.clone());
                    }
                }
                Some(_) => {
                    // An administrator's: what was given is in force no more, and not to be taken back.
                    let whose = whose.clone();
                    record(journal, &[Entry::PropertyBack { whose, unit: unit.to_owned(), property }])?;
                    self.given.remove(&property);
                    self.wanted.remove(&property);
                    self.former.insert(property, now);
                }
                None => {
                    let is_new = self.former.get(&property).is_some_and(|before| before.value != now.value);
                    if is_new {
                        // An administrator's, too.
                        self.wanted.remove(&property);
                    }
                    self.former.insert(property, now);
                }
            }
        }
        self.keep_cpu();
        Ok(())
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
