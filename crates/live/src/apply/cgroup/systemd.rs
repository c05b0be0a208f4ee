//! Orders on systemd's control groups, set as systemd properties.
//!
//! Problem: systemd rewrites the files of its control groups, and disables a controller that none of its properties needs.
//!
//! Terms: a value is *wanted* until it was sent, then *given*. The *former* value is the one to restore.
//!
//! Algorithm: [`foreign_groups`](super::foreign_groups) writes the kernel's file at once; here the value becomes wanted. At
//! most twice a second per systemd unit, the daemon gets its properties, and then sets the wanted ones. CPUs and
//! weights change with every loan, and each change makes systemd signal all D-Bus listeners; so those are sent only when
//! they were stable for a second, or after five seconds. The journal has former and given values before.
//!
//! A value that is neither the former nor a given one is an administrator's, and becomes the former value. This is checked
//! every five seconds. A given value that is missing, with no administrator's value instead, is given again: systemd did
//! not answer, or another program reset it. When a systemd unit comes back with its former values, all given values are given
//! again.
//!
//! Lists of devices: systemd appends to them. If an administrator appends a disk, the daemon removes its own entries, since the
//! policy orders no rates where others have set some.
//!
//! A systemd unit that is no longer held is reverted first, even if it is held again at once, since it may be another
//! unit of the same name.
//!
//! systemd rewrites all files of a group when one of its properties is set, and all groups after a `daemon-reload`.
//! [`Properties::take_rewritten`] returns these groups.
//!
//! An administrator's value is a fact for the policy ([`GroupBounds`]), which orders within it. A given value that it replaced is
//! not given again until the policy has seen that.
//!
//! systemd keeps the `cpu` controller enabled for a weight, but not for accounting, which the kernel does without it. Our
//! scheduler does not see groups without that controller. So a systemd unit with an unset weight gets the default one.
//!
//! Limits:
//! - While systemd does not answer, orders are in force in the kernel's files, until systemd rewrites them.
//! - systemd has no compare-and-set. A value that an administrator sets in the tenth of a millisecond between reading and
//!   setting is lost.
//! - When an administrator sets a rate without `--runtime`, systemd also saves our rates of other disks below `/etc`. The next
//!   poll removes them, unless `/etc` is not writable.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::{GroupBounds, MS, Time};

use crate::LiveError;
use crate::systemd::{
    Answer, Change, Done, Former, Instance, Property, PropertyChange, Queue, Request, Reverted, Value,
};
use crate::undo::journal::{Entry, Journal, record};

/// The properties that are set here.
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

/// Rates, which are either all an administrator's or all ours.
const RATES: [Property; 2] = [Property::IOReadBandwidthMax, Property::IOWriteBandwidthMax];

/// The properties that enable controllers.
const ACCOUNTING: [Property; 2] = [Property::CPUAccounting, Property::IOAccounting];

/// The default weight of a control group.
const WEIGHT_USUAL: Value = Value::Number(100);

/// The shortest interval between requests for one systemd unit.
const ASK_NS: Time = 500 * MS;

/// The properties that change with every loan.
const LENT: [Property; 2] = [Property::AllowedCPUs, Property::CPUWeight];

/// How long those must be stable before another value is sent.
const REST_NS: Time = 1_000 * MS;

/// How often to check for an administrator's values.
const POLL_NS: Time = 5_000 * MS;

/// How long systemd must answer before its silence counts as ended. Every unit is polled in that time.
const ANSWERS_NS: Time = 2 * POLL_NS;

/// Given values remembered per property: either of the last two may be in force.
const GIVEN_MAX: usize = 2;

#[derive(Debug)]
enum Asked {
    Former,
    Set(Vec<Change>),
    Revert(Vec<Property>),
    Reload,
}

/// The properties of one systemd unit.
#[derive(Debug, Default)]
struct UnitProperties {
    /// The values to restore; empty until systemd has answered.
    former: BTreeMap<Property, Former>,
    is_known: bool,
    wanted: BTreeMap<Property, Value>,
    /// When a wanted value last changed.
    wanted_at: Time,
    given: BTreeMap<Property, Vec<Value>>,
    is_busy: bool,
    asked_at: Option<Time>,
    /// Whether a unit of the contract is held there, so that its controllers are needed.
    is_place: bool,
    /// Whether all given values are to be reverted. Wanted values came later, and are sent after that.
    leaves: bool,
}

/// The properties of all systemd units that hold units of the contract.
#[derive(Debug)]
pub(super) struct Properties {
    instance: Instance,
    queue: Queue,
    units: BTreeMap<String, UnitProperties>,
    asked: BTreeMap<u64, (String, Asked)>,
    /// Units whose files systemd has rewritten since the last call of [`Properties::take_rewritten`].
    rewritten: BTreeSet<String>,
    /// Errors that were reported.
    reported: BTreeSet<String>,
    /// The standing problem while systemd does not answer.
    silence: Option<LiveError>,
    /// Since when systemd answers again, if it was silent before.
    answers_since: Option<Time>,
    /// Whether systemd has to reload because property files were removed, after all pending reverts.
    is_to_read: bool,
    /// The earliest time of a retried reload.
    read_after: Time,
    now: Time,
}

impl Properties {
    /// Connects to the machine's systemd; `None` if it has none.
    pub(super) fn begin() -> Result<Option<Properties>, LiveError> {
        let instance = Instance::system();
        instance.is_there().then(|| Properties::of(instance)).transpose()
    }

    /// Connects to this systemd.
    pub(super) fn of(instance: Instance) -> Result<Properties, LiveError> {
        let queue = Queue::start(instance.clone())?;
        let (units, asked) = (BTreeMap::new(), BTreeMap::new());
        let (rewritten, reported) = (BTreeSet::new(), BTreeSet::new());
        Ok(Properties {
            instance,
            queue,
            units,
            asked,
            rewritten,
            reported,
            silence: None,
            answers_since: None,
            is_to_read: false,
            read_after: 0,
            now: 0,
        })
    }

    /// A unit is now held in a systemd unit's group: enables the controllers.
    pub(super) fn come(&mut self, unit: &str) {
        let state = self.units.entry(unit.to_owned()).or_default();
        state.is_place = true;
        state.count();
    }

    /// No unit is held in the group any longer: reverts it.
    pub(super) fn leave(&mut self, unit: &str) {
        if let Some(state) = self.units.get_mut(unit) {
            (state.leaves, state.is_place) = (true, false);
            state.wanted.clear();
        }
    }

    /// Requests a property value for a systemd unit.
    pub(super) fn want(&mut self, unit: &str, property: Property, value: Value) {
        let state = self.units.entry(unit.to_owned()).or_default();
        if state.wanted.insert(property, value.clone()) != Some(value) {
            state.wanted_at = self.now;
        }
    }

    /// Sends wanted values without waiting for them to be stable, because the files were overwritten.
    pub(super) fn hasten(&mut self, unit: &str) {
        if let Some(state) = self.units.get_mut(unit) {
            state.wanted_at = 0;
        }
    }

    /// The systemd units whose files systemd has rewritten since the last call.
    pub(super) fn take_rewritten(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.rewritten)
    }

    /// Whether a newer value than systemd's is still to be sent.
    pub(super) fn wants(&self, unit: &str, property: Property) -> bool {
        self.units.get(unit).is_some_and(|state| state.wanted.contains_key(&property))
    }

    /// The bounds that an administrator has set on a systemd unit; `None` while unknown.
    pub(super) fn set_by_others(&self, unit: &str) -> Option<GroupBounds> {
        let state = self.units.get(unit).filter(|state| state.is_known)?;
        let value = |property: Property| {
            state
                .former
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

    /// Takes systemd's replies, and sends requests that are due.
    pub(super) fn poll(&mut self, now: Time, journal: &mut Journal) -> Vec<LiveError> {
        self.now = now;
        let mut problems = Vec::new();
        for Done { number, answer } in self.queue.done() {
            let Some((unit, asked)) = self.asked.remove(&number) else { continue };
            if let Asked::Reload = asked {
                self.rewritten.extend(self.units.keys().cloned());
                if let Err(error) = answer {
                    (self.is_to_read, self.read_after) = (true, now.saturating_add(POLL_NS));
                    if !error.is_silence() && self.reported.insert(error.to_string()) {
                        problems.push(error.into());
                    }
                }
                continue;
            }
            let Some(state) = self.units.get_mut(&unit) else { continue };
            state.is_busy = false;
            match (asked, answer) {
                (Asked::Former, Ok(Answer::Former(list))) => {
                    let now = list.iter().map(|former| (former.property, former.value.clone())).collect();
                    let has_removed = state.hear(&self.instance, &unit, list, journal, &mut problems);
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
                        // An administrator's value: read it at once.
                        state.asked_at = None;
                    }
                }
                (asked, Err(error)) if error.is_gone() => {
                    // Its property files remain, and would take effect if it comes back.
                    let held = state.held();
                    let properties: Vec<Property> = held.iter().map(|held| held.former.property).collect();
                    if held.is_empty() || matches!(asked, Asked::Revert(_)) {
                        problems.extend(self.forget(&unit, &properties, journal).err());
                    } else {
                        state.is_busy = true;
                        self.take_back(unit, properties, held);
                    }
                }
                (asked, Err(error)) => {
                    match asked {
                        Asked::Set(changes) => self.not_set(&unit, changes, error.is_silence()),
                        // Held again meanwhile: values that cannot be reverted stay.
                        Asked::Revert(_) if !error.is_silence() => state.leaves &= state.wanted.is_empty(),
                        Asked::Revert(_) | Asked::Former | Asked::Reload => {}
                    }
                    if !error.is_silence() && self.reported.insert(format!("{unit} {error}")) {
                        problems.push(error.into());
                    }
                }
                (_, Ok(_)) => {}
            }
        }
        self.update_silence();
        self.ask(now);
        problems
    }

    /// Updates the standing problem, with hysteresis: a systemd that was blocked has a backlog and may be late again, so one
    /// answer does not end a silence.
    fn update_silence(&mut self) {
        let now = self.now;
        match self.queue.silence() {
            Some(seen) => {
                self.answers_since = None;
                self.silence.get_or_insert_with(|| LiveError::Unavailable {
                    what: format!("systemd did not answer: {seen}"),
                    remedy: "limits are in force in the kernel's files, and are sent to systemd when it answers: it is asked \
                             again, after a second and then less often"
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

    /// The standing problem that systemd does not answer.
    pub(super) fn silence(&self) -> Option<&LiveError> {
        self.silence.as_ref()
    }

    fn ask(&mut self, now: Time) {
        let (mut requests, mut back) = (Vec::new(), Vec::new());
        for (unit, state) in &mut self.units {
            let since = state.asked_at.map(|at| now.saturating_sub(at));
            if state.is_busy || since.is_some_and(|since| since < ASK_NS) {
                continue;
            }
            let held: Vec<PropertyChange> = state.held();
            if state.leaves {
                let properties = held.iter().map(|held| held.former.property).collect();
                back.push((unit.clone(), properties, held));
            } else if !state.is_known || state.is_due(now) || since.is_none_or(|since| since >= POLL_NS) {
                let request = Request::Former { unit: unit.clone(), properties: PROPERTIES.to_vec() };
                requests.push((unit.clone(), request));
            } else {
                continue;
            }
            (state.is_busy, state.asked_at) = (true, Some(now));
        }
        if self.is_to_read && now >= self.read_after && !self.units.values().any(|state| state.leaves) {
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

    /// Handles a failed request: after silence the values are wanted again; of several refused values, each is requested alone,
    /// since systemd sets all or none.
    fn not_set(&mut self, unit: &str, changes: Vec<Change>, is_silence: bool) {
        let Some(state) = self.units.get_mut(unit) else { return };
        if is_silence {
            // Not if the unit was left meanwhile: its wanted values are newer.
            if !state.leaves {
                for change in changes {
                    state.wanted.entry(change.property).or_insert(change.to);
                }
            }
        } else if changes.len() > 1 {
            state.is_busy = true;
            for change in changes {
                self.ask_for(unit, vec![change]);
            }
        } else if let Some(Change { property, to, .. }) = changes.first()
            && let Some(given) = state.given.get_mut(property)
        {
            given.retain(|given| given != to);
            if given.is_empty() {
                state.given.remove(property);
            }
        }
    }

    fn ask_for(&mut self, unit: &str, changes: Vec<Change>) {
        let number = self.queue.ask(Request::Set { unit: unit.to_owned(), changes: changes.clone() });
        self.asked.insert(number, (unit.to_owned(), Asked::Set(changes)));
    }

    /// Requests the wanted values that differ from the values `now` of a systemd unit.
    fn set(
        &mut self,
        unit: &str,
        now: &BTreeMap<Property, Value>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(state) = self.units.get_mut(unit).filter(|state| !state.leaves) else { return Ok(()) };
        let (mut changes, others_have_rates) = (Vec::new(), state.others_have_rates());
        for (property, to) in std::mem::take(&mut state.wanted) {
            // A property that this systemd does not know is skipped.
            let (Some(from), Some(former)) = (now.get(&property), state.former.get(&property)) else {
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
            if !state.given.contains_key(property) {
                let former = state.former[property].clone();
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
            let given = state.given.entry(*property).or_default();
            given.retain(|given| given != to);
            given.push(to.clone());
            given.drain(..given.len().saturating_sub(GIVEN_MAX));
        }
        state.is_busy = true;
        self.ask_for(unit, changes);
        Ok(())
    }

    /// Forgets a systemd unit after a revert. One that is still held, or held again, starts afresh.
    fn forget(&mut self, unit: &str, given: &[Property], journal: &mut Journal) -> Result<(), LiveError> {
        let back = given.iter().map(|property| Entry::PropertyReverted {
            instance: self.instance.clone(),
            unit: unit.to_owned(),
            property: *property,
        });
        record(journal, &back.collect::<Vec<_>>())?;
        let state = self.units.remove(unit);
        if let Some(state) = state.filter(|state| !state.leaves || !state.wanted.is_empty()) {
            self.units.insert(unit.to_owned(), state.anew());
        }
        Ok(())
    }
}

impl UnitProperties {
    /// Requests accounting, which enables the controllers.
    fn count(&mut self) {
        self.wanted.extend(ACCOUNTING.map(|accounting| (accounting, Value::Flag(true))));
    }

    /// The state after a revert. A systemd unit that went away gets its given values again when it comes back with its former
    /// values; other values are an administrator's.
    fn anew(self) -> UnitProperties {
        let UnitProperties { mut former, mut wanted, given, asked_at, is_place, leaves, .. } = self;
        if leaves {
            return UnitProperties { wanted, asked_at, is_place, ..UnitProperties::default() };
        }
        for (property, given) in given {
            if let Some(last) = given.into_iter().next_back() {
                wanted.entry(property).or_insert(last);
            }
        }
        former.retain(|property, _| wanted.contains_key(property));
        let mut state = UnitProperties { former, wanted, asked_at, is_place, ..UnitProperties::default() };
        if is_place {
            state.count();
        }
        state
    }

    /// Whether a wanted value is due to be sent.
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

    /// Takes the present values of properties. Whether a property file was removed or written.
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
                    // An administrator's value.
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
            // An administrator's value too. If it is in another file, ours still exists.
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

    /// Yields a property to an administrator: given values are no longer in force, and not reverted. In a list that was
    /// appended to, given entries are still in force; only those of `others` are to stay.
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

    /// Whether others have set rates, so that the policy orders none.
    fn others_have_rates(&self) -> bool {
        let is_set =
            |rates: &Property| self.former.get(rates).is_some_and(|former| former.value != rates.nothing());
        RATES.iter().any(is_set)
    }

    /// Removes our rates where others have set some.
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

    /// Makes systemd keep the `cpu` controller enabled, unless an administrator's weight does.
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
        remedy: "no action is needed".to_owned(),
    }
}

#[cfg(test)]
mod tests;
