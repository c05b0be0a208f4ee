//! Orders on systemd's control groups, set as systemd properties.
//!
//! Problem: systemd rewrites the files of its control groups, and disables a controller that none of its
//! properties needs. So values that are only in the kernel's files do not last.
//!
//! Terms: a value is *wanted* until it was sent to systemd, and *given* from then on. The *former* value is
//! the one to restore. A contract's unit is *held* in the group of a systemd unit.
//!
//! Algorithm: [`foreign_groups`](super::foreign_groups) writes the kernel's file at once, and here the value
//! becomes wanted. At most twice a second for each systemd unit, the daemon reads the unit's properties, and
//! then sets those with wanted values. CPUs and weights change with every loan, and each change makes systemd
//! signal all D-Bus listeners; so these are sent only when they were stable for a second, or after five
//! seconds. Former and given values are recorded in the journal before systemd is asked to set them.
//!
//! Administrators: a value that is neither the former nor a given one was set by an administrator, and
//! becomes the former value. This is checked every five seconds. An administrator's value is a fact for the
//! policy ([`GroupBounds`]), which orders within that bound. A given value that an administrator replaced is
//! not given again until the policy has seen the new value.
//!
//! Lost values: if a property has neither a given value nor an administrator's, systemd did not carry out the
//! request, or another program reset the property. Then the last given value is given again. If a systemd
//! unit goes away and comes back with its former values, all given values are given again.
//!
//! Lists of devices: systemd appends to them. If an administrator appends a disk, the daemon removes its own
//! entries, since the policy orders no rates where others have set some.
//!
//! Leaving: when no unit is held in a group any more, the properties of its systemd unit are reverted. This
//! happens even if a unit is held there again at once, since the systemd unit may be a new one of the same
//! name.
//!
//! Rewriting: systemd rewrites all files of a group when one of its properties is set, and the files of all
//! groups after a `daemon-reload`. [`Properties::take_rewritten`] returns these groups.
//!
//! The `cpu` controller: our scheduler does not see groups without it. systemd keeps the controller enabled
//! for a systemd unit with a weight, but not for one with accounting alone, since the kernel accounts CPU
//! time without the controller. So a systemd unit without a weight gets the default weight.
//!
//! Limits:
//! - While systemd does not answer, orders are in force in the kernel's files, until systemd rewrites them.
//! - systemd has no compare-and-set. A value that an administrator sets in the tenth of a millisecond between
//!   reading and setting is lost.
//! - When an administrator sets a rate without `--runtime`, systemd also saves our rates of other disks below
//!   `/etc`. The next poll removes them, unless `/etc` is not writable.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_policy::{GroupBounds, MS, Time};

use crate::LiveError;
use crate::systemd::{
    Answer, Change, Done, Instance, Property, PropertyChange, PropertyState, Queue, Request, Reverted, Value,
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

/// The properties for rates. If an administrator has set any rate of a systemd unit, we set none there.
const RATES: [Property; 2] = [Property::IOReadBandwidthMax, Property::IOWriteBandwidthMax];

/// The properties that enable controllers.
const ACCOUNTING: [Property; 2] = [Property::CPUAccounting, Property::IOAccounting];

/// The default weight of a control group.
const WEIGHT_DEFAULT: Value = Value::Number(100);

/// The shortest interval between requests for one systemd unit.
const ASK_NS: Time = 500 * MS;

/// The properties that change with every loan.
const LENT: [Property; 2] = [Property::AllowedCPUs, Property::CPUWeight];

/// How long the [`LENT`] properties must be stable before another value is sent.
const REST_NS: Time = 1_000 * MS;

/// How often to check for an administrator's values.
const POLL_NS: Time = 5_000 * MS;

/// How long systemd must answer before its silence counts as ended. In that time, every systemd unit is
/// polled at least once.
const ANSWERS_NS: Time = 2 * POLL_NS;

/// The number of given values that are remembered per property: either of the last two may be in force.
const GIVEN_MAX: usize = 2;

/// A request to systemd that has not been answered.
#[derive(Debug)]
enum Asked {
    /// To read the properties.
    Properties,
    /// To make these changes.
    Set(Vec<Change>),
    /// To revert these properties.
    Revert(Vec<Property>),
    /// To read all property files again.
    Reload,
}

/// The properties of one systemd unit.
#[derive(Debug, Default)]
struct UnitProperties {
    /// The values to restore; empty until systemd has answered.
    former: BTreeMap<Property, PropertyState>,
    /// Whether systemd has answered.
    is_known: bool,
    /// The values to send.
    wanted: BTreeMap<Property, Value>,
    /// When a wanted value last changed; 0: send the wanted values at once.
    wanted_at: Time,
    /// The last values given, the latest last, at most [`GIVEN_MAX`].
    given: BTreeMap<Property, Vec<Value>>,
    /// Whether a request for this systemd unit is in flight.
    is_busy: bool,
    /// When a request was last sent; `None`: send one at once.
    asked_at: Option<Time>,
    /// Whether a unit of the contract is held in the group of this systemd unit, so that the controllers are
    /// needed.
    holds_unit: bool,
    /// Whether all given values are to be reverted. Wanted values arrived after that decision, and are sent
    /// after the revert.
    is_leaving: bool,
}

/// The properties of all systemd units that hold units of the contract.
#[derive(Debug)]
pub(super) struct Properties {
    instance: Instance,
    queue: Queue,
    units: BTreeMap<String, UnitProperties>,
    asked: BTreeMap<u64, (String, Asked)>,
    /// Systemd units whose files systemd has rewritten since the last call of [`Properties::take_rewritten`].
    rewritten: BTreeSet<String>,
    /// Errors that were reported.
    reported: BTreeSet<String>,
    /// The standing problem while systemd does not answer.
    silence: Option<LiveError>,
    /// Since when systemd answers again, if it was silent before.
    answers_since: Option<Time>,
    /// Whether systemd has to reload, because property files were removed. This is requested after all
    /// pending reverts.
    needs_reload: bool,
    /// The earliest time of a retried reload.
    reload_after: Time,
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
            needs_reload: false,
            reload_after: 0,
            now: 0,
        })
    }

    /// Notes that a unit is held in a systemd unit's group from now on, so that systemd must enable the
    /// controllers there.
    pub(super) fn begin_holding(&mut self, unit: &str) {
        let state = self.units.entry(unit.to_owned()).or_default();
        state.holds_unit = true;
        state.want_accounting();
    }

    /// Notes that no unit is held in a systemd unit's group any more, so that its properties are to be
    /// reverted.
    pub(super) fn end_holding(&mut self, unit: &str) {
        if let Some(state) = self.units.get_mut(unit) {
            (state.is_leaving, state.holds_unit) = (true, false);
            state.wanted.clear();
        }
    }

    /// Makes a value wanted: it will be sent to systemd.
    pub(super) fn want(&mut self, unit: &str, property: Property, value: Value) {
        let state = self.units.entry(unit.to_owned()).or_default();
        if state.wanted.insert(property, value.clone()) != Some(value) {
            state.wanted_at = self.now;
        }
    }

    /// Makes a systemd unit's wanted values due at once, even if they are not stable yet, because its files
    /// were overwritten.
    pub(super) fn hasten(&mut self, unit: &str) {
        if let Some(state) = self.units.get_mut(unit) {
            state.wanted_at = 0;
        }
    }

    /// The systemd units whose files systemd has rewritten since the last call.
    pub(super) fn take_rewritten(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.rewritten)
    }

    /// Whether a value of this property is wanted, and so is still to be sent to systemd.
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
                    (self.needs_reload, self.reload_after) = (true, now.saturating_add(POLL_NS));
                    if !error.is_silence() && self.reported.insert(error.to_string()) {
                        problems.push(error.into());
                    }
                }
                continue;
            }
            let Some(state) = self.units.get_mut(&unit) else { continue };
            state.is_busy = false;
            match (asked, answer) {
                (Asked::Properties, Ok(Answer::Properties(states))) => {
                    let present = states.iter().map(|state| (state.property, state.value.clone())).collect();
                    let has_changed_file =
                        state.compare(&self.instance, &unit, states, journal, &mut problems);
                    self.needs_reload |= has_changed_file;
                    problems.extend(self.send_wanted(&unit, &present, journal).err());
                }
                (Asked::Revert(properties), Ok(answer)) => {
                    if let Answer::Reverted(Reverted { left, reload, .. }) = &answer {
                        self.needs_reload |= *reload;
                        let notices = left.iter().map(|(property, value)| stays(&unit, *property, value));
                        problems.extend(notices);
                    }
                    problems.extend(self.forget(&unit, &properties, journal).err());
                    self.rewritten.insert(unit);
                }
                (Asked::Set(changes), Ok(answer)) => {
                    if matches!(&answer, Answer::Set(left) if left.len() < changes.len()) {
                        self.rewritten.insert(unit);
                    }
                    if matches!(&answer, Answer::Set(left) if !left.is_empty()) {
                        // An administrator has just set another value, which must be read at once.
                        state.asked_at = None;
                    }
                }
                (asked, Err(error)) if error.is_gone() => {
                    // The systemd unit's property files remain, and would take effect if the unit comes back.
                    let changes = state.changes();
                    let properties: Vec<Property> =
                        changes.iter().map(|change| change.former.property).collect();
                    if changes.is_empty() || matches!(asked, Asked::Revert(_)) {
                        problems.extend(self.forget(&unit, &properties, journal).err());
                    } else {
                        state.is_busy = true;
                        self.revert(unit, properties, changes);
                    }
                }
                (asked, Err(error)) => {
                    match asked {
                        Asked::Set(changes) => self.handle_failed_set(&unit, changes, error.is_silence()),
                        // If a unit is held in the group again, values that systemd did not revert stay in
                        // force.
                        Asked::Revert(_) if !error.is_silence() => {
                            state.is_leaving &= state.wanted.is_empty();
                        }
                        Asked::Revert(_) | Asked::Properties | Asked::Reload => {}
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

    /// Updates the standing problem that systemd does not answer. Hysteresis: one answer does not end a
    /// silence, because a systemd that was blocked has a backlog, and may be late again.
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

    /// Sends the requests that are due: to revert a systemd unit's properties, to read them, and to reload.
    fn ask(&mut self, now: Time) {
        let (mut reads, mut reverts) = (Vec::new(), Vec::new());
        for (unit, state) in &mut self.units {
            let since = state.asked_at.map(|at| now.saturating_sub(at));
            if state.is_busy || since.is_some_and(|since| since < ASK_NS) {
                continue;
            }
            let changes: Vec<PropertyChange> = state.changes();
            if state.is_leaving {
                let properties = changes.iter().map(|change| change.former.property).collect();
                reverts.push((unit.clone(), properties, changes));
            } else if !state.is_known || state.is_due(now) || since.is_none_or(|since| since >= POLL_NS) {
                let request = Request::Properties { unit: unit.clone(), properties: PROPERTIES.to_vec() };
                reads.push((unit.clone(), request));
            } else {
                continue;
            }
            (state.is_busy, state.asked_at) = (true, Some(now));
        }
        let any_leaving = self.units.values().any(|state| state.is_leaving);
        if self.needs_reload && now >= self.reload_after && !any_leaving {
            self.needs_reload = false;
            let number = self.queue.ask(Request::Reload);
            self.asked.insert(number, (String::new(), Asked::Reload));
        }
        for (unit, request) in reads {
            let number = self.queue.ask(request);
            self.asked.insert(number, (unit, Asked::Properties));
        }
        for (unit, properties, changes) in reverts {
            self.revert(unit, properties, changes);
        }
    }

    /// Asks systemd to revert changes of a systemd unit's properties.
    fn revert(&mut self, unit: String, properties: Vec<Property>, changes: Vec<PropertyChange>) {
        let number = self.queue.ask(Request::Revert { unit: unit.clone(), changes });
        self.asked.insert(number, (unit, Asked::Revert(properties)));
    }

    /// Handles a failed request to set values. If systemd did not answer, the values are wanted again. If it
    /// refused several values, each is requested alone, since systemd sets all or none. A single refused
    /// value does not count as given.
    fn handle_failed_set(&mut self, unit: &str, changes: Vec<Change>, is_silence: bool) {
        let Some(state) = self.units.get_mut(unit) else { return };
        if is_silence {
            // If the systemd unit is leaving, its wanted values are for a unit of the contract that is held
            // in its group again.
            if !state.is_leaving {
                for change in changes {
                    state.wanted.entry(change.property).or_insert(change.to);
                }
            }
        } else if changes.len() > 1 {
            state.is_busy = true;
            for change in changes {
                self.ask_to_set(unit, vec![change]);
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

    /// Asks systemd to change a systemd unit's properties.
    fn ask_to_set(&mut self, unit: &str, changes: Vec<Change>) {
        let number = self.queue.ask(Request::Set { unit: unit.to_owned(), changes: changes.clone() });
        self.asked.insert(number, (unit.to_owned(), Asked::Set(changes)));
    }

    /// Asks systemd to set those wanted values of a systemd unit that differ from the present values, after
    /// recording former and given values in the journal.
    fn send_wanted(
        &mut self,
        unit: &str,
        present: &BTreeMap<Property, Value>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(state) = self.units.get_mut(unit).filter(|state| !state.is_leaving) else { return Ok(()) };
        let (mut changes, others_have_rates) = (Vec::new(), state.others_have_rates());
        for (property, wanted) in std::mem::take(&mut state.wanted) {
            // A property that this systemd does not know is skipped.
            let (Some(from), Some(former)) = (present.get(&property), state.former.get(&property)) else {
                continue;
            };
            let yields = others_have_rates && RATES.contains(&property);
            let to = if yields { former.value.clone() } else { wanted };
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
        self.ask_to_set(unit, changes);
        Ok(())
    }

    /// Forgets a systemd unit whose `reverted` properties were reverted. If a unit of the contract is held in
    /// its group, still or again, a new record is started.
    fn forget(&mut self, unit: &str, reverted: &[Property], journal: &mut Journal) -> Result<(), LiveError> {
        let entries = reverted.iter().map(|property| Entry::PropertyReverted {
            instance: self.instance.clone(),
            unit: unit.to_owned(),
            property: *property,
        });
        record(journal, &entries.collect::<Vec<_>>())?;
        let state = self.units.remove(unit);
        if let Some(state) = state.filter(|state| !state.is_leaving || !state.wanted.is_empty()) {
            self.units.insert(unit.to_owned(), state.restarted());
        }
        Ok(())
    }
}

impl UnitProperties {
    /// Makes systemd's accounting properties wanted, because they make systemd enable the controllers.
    fn want_accounting(&mut self) {
        self.wanted.extend(ACCOUNTING.map(|accounting| (accounting, Value::Flag(true))));
    }

    /// The record with which to go on after a revert. If the systemd unit went away while a unit was held in
    /// its group, all given values are wanted again. When the systemd unit comes back, these values are sent,
    /// except for a property whose value is not the former one: an administrator has set it.
    fn restarted(self) -> UnitProperties {
        let UnitProperties { mut former, mut wanted, given, asked_at, holds_unit, is_leaving, .. } = self;
        if is_leaving {
            return UnitProperties { wanted, asked_at, holds_unit, ..UnitProperties::default() };
        }
        for (property, given) in given {
            if let Some(last) = given.into_iter().next_back() {
                wanted.entry(property).or_insert(last);
            }
        }
        former.retain(|property, _| wanted.contains_key(property));
        let mut state = UnitProperties { former, wanted, asked_at, holds_unit, ..UnitProperties::default() };
        if holds_unit {
            state.want_accounting();
        }
        state
    }

    /// Whether a wanted value is due to be sent: any value at once, except that a new value of a [`LENT`]
    /// property that was given before has to be stable.
    fn is_due(&self, now: Time) -> bool {
        let must_be_stable =
            |property: &Property| LENT.contains(property) && self.given.contains_key(property);
        let is_stable = now >= self.wanted_at.saturating_add(REST_NS);
        !self.wanted.is_empty() && (is_stable || !self.wanted.keys().all(must_be_stable))
    }

    /// All changes that we made to properties of this systemd unit, which are to be reverted at the end.
    fn changes(&self) -> Vec<PropertyChange> {
        self.given.keys().filter_map(|property| self.change_of(*property)).collect()
    }

    /// Our change of a property; `None` if we made none.
    fn change_of(&self, property: Property) -> Option<PropertyChange> {
        let given = self.given.get(&property)?.clone();
        Some(PropertyChange { former: self.former.get(&property)?.clone(), given })
    }

    /// Compares the present `states` of properties with former and given values. Values that were lost become
    /// wanted again; values that an administrator has set become former values. Adds errors to `problems`.
    /// Returns whether a property file was removed or written.
    fn compare(
        &mut self,
        instance: &Instance,
        unit: &str,
        states: Vec<PropertyState>,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) -> bool {
        self.is_known = true;
        let mut has_changed_file = false;
        for mut present in states {
            let property = present.property;
            let Some(change) = self.change_of(property) else {
                let is_new = self.former.get(&property).is_some_and(|former| former.value != present.value);
                if is_new {
                    // An administrator has set the property. The wanted value was ordered before the policy
                    // knew this.
                    self.wanted.remove(&property);
                }
                self.former.insert(property, present);
                continue;
            };
            let others_value = change.set_by_others(&present.value);
            let former = &change.former.value;
            let is_known_value = change.given.contains(&present.value)
                || *former == present.value
                || others_value.as_ref() == Some(former);
            if is_known_value {
                let last = change.given.last();
                if let Some(lost) = last.filter(|last| **last != present.value && !self.is_leaving) {
                    self.wanted.entry(property).or_insert_with(|| lost.clone());
                }
                continue;
            }
            // An administrator has set the property. If the administrator's value is in another file, our
            // file still exists.
            match change.restore_file() {
                Ok(true) => (present.content, has_changed_file) = (change.former.content, true),
                Ok(false) => {}
                Err(error) => problems.push(error.into()),
            }
            problems.extend(self.yield_property(instance, unit, present, others_value, journal).err());
        }
        self.remove_rates_beside_others();
        self.keep_cpu();
        has_changed_file
    }

    /// Yields a property to an administrator who has set it: our values are no longer in force, so nothing is
    /// to be reverted. The exception is a list to which the administrator appended: our entries are still in
    /// force. `others_value` is then the list without our entries, to which the property is to be reverted;
    /// otherwise it is `None`.
    fn yield_property(
        &mut self,
        instance: &Instance,
        unit: &str,
        present: PropertyState,
        others_value: Option<Value>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let (property, in_force) = (present.property, present.value.clone());
        let (instance, unit) = (instance.clone(), unit.to_owned());
        let reverted = Entry::PropertyReverted { instance: instance.clone(), unit: unit.clone(), property };
        let (former, given) = match others_value {
            Some(others) => (present.restricted_to(others), Some(in_force)),
            None => (present, None),
        };
        let mut entries = vec![reverted];
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

    /// Whether an administrator has set rates; the policy then orders none.
    fn others_have_rates(&self) -> bool {
        let is_set =
            |rates: &Property| self.former.get(rates).is_some_and(|former| former.value != rates.nothing());
        RATES.iter().any(is_set)
    }

    /// If an administrator has set rates, makes the former rates wanted, so that ours are removed.
    fn remove_rates_beside_others(&mut self) {
        if self.is_leaving || !self.others_have_rates() {
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

    /// Makes the default weight wanted, so that systemd keeps the `cpu` controller enabled, unless an
    /// administrator has set a weight.
    fn keep_cpu(&mut self) {
        let weight = Property::CPUWeight;
        let is_unset = self.former.get(&weight).is_some_and(|former| former.value == weight.nothing());
        if is_unset && !self.is_leaving && !self.given.contains_key(&weight) {
            self.wanted.entry(weight).or_insert(WEIGHT_DEFAULT);
        }
    }
}

/// The notice that a property was not reverted, because an administrator has set it.
fn stays(unit: &str, property: Property, value: &Value) -> LiveError {
    LiveError::Unavailable {
        what: format!("{unit}: {property} stays `{}`: an administrator has set it", value.text(property)),
        remedy: "no action is needed".to_owned(),
    }
}

#[cfg(test)]
mod tests;
