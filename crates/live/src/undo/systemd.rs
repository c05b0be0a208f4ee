//! Reverts properties of systemd units.
//!
//! A systemd that does not answer is asked again at the end, when no process is stopped or confined any
//! longer. If systemd still does not answer, the daemon's values stay in force for now. Their drop-ins are
//! removed all the same, so that the values last no longer than the next `daemon-reload` or reboot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::Undone;
use crate::systemd::{Error, Instance, Manager, Property, PropertyChange, Value};
use crate::undo::journal::Entry;

impl Entry {
    /// The entries to record before properties of a systemd unit are set: for each property, its former state
    /// and the values that the daemon gives it.
    pub fn of_properties(instance: &Instance, unit: &str, changes: &[PropertyChange]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for PropertyChange { former, given } in changes {
            let (instance, unit, property) = (instance.clone(), unit.to_owned(), former.property);
            entries.push(Entry::Property {
                instance: instance.clone(),
                unit: unit.clone(),
                former: former.clone(),
            });
            entries.extend(given.iter().map(|value| Entry::PropertyGiven {
                instance: instance.clone(),
                unit: unit.clone(),
                property,
                value: value.clone(),
            }));
        }
        entries
    }
}

/// Back-off before an unresponsive systemd is asked again (exponential). On a busy machine a call may well
/// exceed its timeout of two seconds.
const PAUSES: [Duration; 4] = match cfg!(test) {
    true => [Duration::from_millis(1); 4],
    false => [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)],
};

/// The interval of progress reports while waiting.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The changes to revert, by systemd instance, systemd unit and property.
type AllChanges = BTreeMap<Instance, BTreeMap<String, BTreeMap<Property, PropertyChange>>>;

/// The state of reverting.
#[derive(Default)]
pub(super) struct Restored {
    /// The properties whose value in systemd is final, each with its systemd unit: systemd has reverted the
    /// property, or another program has set it meanwhile. For such a property, systemd writes the kernel's
    /// file.
    settled: BTreeSet<(String, Property)>,
    /// Instances that must reload their files.
    to_reload: Vec<Manager>,
    /// Instances that did not answer.
    silent: Vec<Silent>,
}

/// A systemd instance that did not answer.
struct Silent {
    manager: Manager,
    /// The error of the call that had no answer.
    error: Error,
    /// The changes still to revert.
    units: Units,
    /// Whether the instance must reload its files to complete earlier reverts.
    reload: bool,
}

impl Restored {
    /// Whether systemd has the final value of a control group's file, so that the content from the journal
    /// must not be written back. That content may be outdated: after an administrator's `systemctl revert`,
    /// the kernel keeps the old weight until systemd writes the file.
    pub(super) fn is_settled(&self, file: &Path) -> bool {
        let property = match file.file_name().and_then(|name| name.to_str()) {
            Some("cpuset.cpus") => Property::AllowedCPUs,
            Some("cpu.weight") => Property::CPUWeight,
            Some("memory.high") => Property::MemoryHigh,
            Some("memory.low") => Property::MemoryLow,
            Some("memory.min") => Property::MemoryMin,
            _ => return false,
        };
        let unit = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        unit.is_some_and(|unit| self.settled.contains(&(unit.to_owned(), property)))
    }

    /// Asks unresponsive instances again, with exponential back-off, and then makes systemd reload its files
    /// if reverts are incomplete without that. Both take long, so call this when no process is stopped or
    /// confined any longer.
    pub(super) fn finish(mut self, undone: &mut Undone, progress: &mut dyn FnMut()) {
        for pause in PAUSES {
            if self.silent.is_empty() {
                break;
            }
            let until = Instant::now() + pause;
            while let Some(remaining) = until.checked_duration_since(Instant::now()) {
                thread::sleep(remaining.min(SIGN_OF_LIFE));
                progress();
            }
            for Silent { manager, units, reload, .. } in std::mem::take(&mut self.silent) {
                restore_all((manager, reload), units, &mut self, undone, progress);
            }
        }
        for Silent { error, units, .. } in self.silent {
            let units: Vec<String> = units.into_iter().map(|(unit, _)| unit).collect();
            let units = units.join(", ");
            undone.problems.push(format!("{units}: properties could not be restored: {error}; {REMEDY}"));
        }
        for mut manager in self.to_reload {
            reload(&mut manager, undone);
        }
    }
}

/// Makes each systemd instance revert the properties that the journal lists. Call [`Restored::finish`] later.
pub(super) fn restore(entries: &[Entry], undone: &mut Undone, progress: &mut dyn FnMut()) -> Restored {
    let mut restored = Restored::default();
    // Properties that were reverted, or set by an administrator, while the daemon ran.
    let settled_before = entries.iter().filter_map(|entry| match entry {
        Entry::PropertyReverted { unit, property, .. } => Some((unit.clone(), *property)),
        _ => None,
    });
    restored.settled.extend(settled_before);
    for (instance, units) in changes(entries) {
        let units = units.into_iter().map(|(unit, changes)| (unit, changes.into_values().collect()));
        let units =
            units.filter(|(_, changes): &(String, Vec<PropertyChange>)| !changes.is_empty()).collect();
        restore_all((Manager::new(instance), false), units, &mut restored, undone, progress);
    }
    restored
}

/// The changes that the journal lists and that were not reverted while the daemon ran.
fn changes(entries: &[Entry]) -> AllChanges {
    let mut all = AllChanges::new();
    for entry in entries {
        match entry {
            Entry::Property { instance, unit, former } => {
                let unit = all.entry(instance.clone()).or_default().entry(unit.clone()).or_default();
                // The first entry counts: when later ones were written, the value was the daemon's own.
                let unchanged = || PropertyChange { former: former.clone(), given: Vec::new() };
                unit.entry(former.property).or_insert_with(unchanged);
            }
            Entry::PropertyGiven { instance, unit, property, value } => {
                let change = all.get_mut(instance).and_then(|units| units.get_mut(unit)?.get_mut(property));
                if let Some(change) = change {
                    change.given.push(value.clone());
                }
            }
            Entry::PropertyReverted { instance, unit, property } => {
                if let Some(unit) = all.get_mut(instance).and_then(|units| units.get_mut(unit)) {
                    unit.remove(property);
                }
            }
            _ => {}
        }
    }
    all
}

/// The changes of one systemd instance, by systemd unit.
type Units = Vec<(String, Vec<PropertyChange>)>;

/// Makes one systemd instance revert properties. `reload`: an earlier attempt already requires that the
/// instance reload its files. After the first call without an answer, the remaining units and the reload are
/// left to [`Restored::finish`].
fn restore_all(
    (mut manager, mut reload): (Manager, bool),
    units: Units,
    restored: &mut Restored,
    undone: &mut Undone,
    progress: &mut dyn FnMut(),
) {
    // The error of the call without an answer, and the units from that call on.
    let mut silence: Option<(Error, Units)> = None;
    for (unit, changes) in units {
        if let Some((_, remaining_units)) = &mut silence {
            remove_drop_ins(&changes, &unit, undone);
            remaining_units.push((unit, changes));
            continue;
        }
        match manager.revert(&unit, &changes) {
            Ok(reverted) => {
                undone.properties += reverted.properties;
                reload |= reverted.reload;
                let set_by_others = reverted.left.iter().map(|(property, _)| property);
                let settled = set_by_others.chain(&reverted.set).map(|property| (unit.clone(), *property));
                restored.settled.extend(settled);
                undone.notices.extend(
                    reverted.left.iter().map(|(property, value)| stays_notice(&unit, *property, value)),
                );
            }
            Err(error) if error.is_silence() => {
                remove_drop_ins(&changes, &unit, undone);
                silence = Some((error, vec![(unit, changes)]));
            }
            Err(error) => {
                remove_drop_ins(&changes, &unit, undone);
                undone.problems.push(format!("{unit}: properties could not be restored: {error}; {REMEDY}"));
            }
        }
        progress();
    }
    match silence {
        Some((error, units)) => restored.silent.push(Silent { manager, error, units, reload }),
        None if reload => restored.to_reload.push(manager),
        None => {}
    }
}

/// The remedy if systemd has not reverted properties.
const REMEDY: &str = "their files are gone, so `systemctl daemon-reload` gives them what they had";

/// Has systemd reload its files, so that it no longer refers to removed drop-ins.
fn reload(manager: &mut Manager, undone: &mut Undone) {
    match manager.reload() {
        Ok(true) => {}
        Ok(false) => undone.notices.push("systemd is still reloading its files".to_owned()),
        Err(error) => undone.problems.push(format!(
            "systemd still refers to drop-ins that were removed: {error}; have it reload: systemctl daemon-reload"
        )),
    }
}

/// Removes, or restores, the drop-ins of properties that systemd did not revert.
fn remove_drop_ins(changes: &[PropertyChange], unit: &str, undone: &mut Undone) {
    for change in changes {
        if let Err(error) = change.restore_file() {
            undone.problems.push(format!("{unit}: {error}"));
        }
    }
}

/// The notice for a property that another program set meanwhile.
fn stays_notice(unit: &str, property: Property, value: &Value) -> String {
    let value = value.text(property).replace('\n', ", ");
    let value = if value.is_empty() { "unset".to_owned() } else { value };
    format!("{unit}: {property} stays {value}: another program has set it")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::systemd::fake::{FakeSystemd, Fault};

    const A: &str = "a.slice";
    const B: &str = "b.scope";

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    /// Sets two properties of two systemd units, and returns the journal of that.
    fn set_properties(systemd: &FakeSystemd) -> Vec<Entry> {
        systemd.unit(A, false, &[(Property::CPUWeight, number(42))]);
        systemd.unit(B, true, &[]);
        let mut manager = Manager::new(systemd.instance());
        let mut entries = Vec::new();
        for unit in [A, B] {
            for value in [number(7), number(8)] {
                let all = [Property::CPUWeight, Property::MemoryHigh];
                let former = manager.former(unit, &all).unwrap();
                let change = |former| PropertyChange { former, given: vec![value.clone()] };
                let changes: Vec<PropertyChange> = former.into_iter().map(change).collect();
                entries.extend(Entry::of_properties(&systemd.instance(), unit, &changes));
                manager.set_runtime(unit, &all.map(|property| (property, value.clone()))).unwrap();
            }
        }
        assert_eq!(systemd.files().len(), 6);
        entries
    }

    fn undo(entries: &[Entry]) -> Undone {
        let mut undone = Undone::default();
        restore(entries, &mut undone, &mut || ()).finish(&mut undone, &mut || ());
        undone
    }

    fn weights(systemd: &FakeSystemd) -> [Value; 2] {
        [A, B].map(|unit| systemd.value(unit, Property::CPUWeight))
    }

    #[test]
    fn the_journal_alone_suffices_to_revert_everything() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
        assert_eq!(weights(&systemd), [number(42), Property::CPUWeight.nothing()]);
        assert_eq!(systemd.files(), [""; 0]);
        let heard = systemd.stage().heard.clone();
        assert_eq!(heard.iter().filter(|method| *method == "Reload").count(), 1);
        assert_eq!(undo(&entries), Undone::default(), "twice");
    }

    #[test]
    fn a_value_that_was_recorded_and_never_set_is_no_other_programs() {
        let systemd = FakeSystemd::new(true);
        let mut entries = set_properties(&systemd);
        let value = number(9);
        let (instance, unit, property) = (systemd.instance(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyGiven { instance, unit, property, value });
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
    }

    #[test]
    fn an_already_reverted_property_is_left_alone() {
        let systemd = FakeSystemd::new(true);
        let mut entries = set_properties(&systemd);
        let (instance, unit, property) = (systemd.instance(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyReverted { instance, unit, property });
        assert_eq!(undo(&entries).properties, 3);
        assert_eq!(weights(&systemd), [number(8), Property::CPUWeight.nothing()]);
    }

    #[test]
    fn a_property_that_another_program_set_stays_and_is_reported() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        systemd.set(B, Property::CPUWeight, number(500));
        let undone = undo(&entries);
        assert_eq!(undone.notices, ["b.scope: CPUWeight stays 500: another program has set it"]);
        assert_eq!((undone.properties, undone.problems.len()), (3, 0));
    }

    #[test]
    fn the_kernels_file_of_a_property_that_another_program_set_is_not_overwritten() {
        let systemd = FakeSystemd::new(true);
        let mut entries = set_properties(&systemd);
        systemd.set(B, Property::MemoryHigh, number(500));
        // Seen while the daemon ran.
        let (instance, unit, property) = (systemd.instance(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyReverted { instance, unit, property });
        let restored = restore(&entries, &mut Undone::default(), &mut || ());
        let is_settled = |file: &str| restored.is_settled(&Path::new("/sys/fs/cgroup/x.slice").join(file));
        assert!(is_settled("b.scope/memory.high") && is_settled("a.slice/cpu.weight"));
        assert!(!is_settled("b.scope/memory.max"));
    }

    /// An administrator's weight was reverted (`systemctl revert`) before the daemon set its own, so the
    /// kernel's file still had the administrator's weight then.
    #[test]
    fn the_kernels_file_of_a_reverted_property_is_not_overwritten() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        let restored = restore(&entries, &mut Undone::default(), &mut || ());
        let file = Path::new("/sys/fs/cgroup/x.slice/b.scope/cpu.weight");
        assert!(restored.is_settled(file));
        // Without an answer from systemd, the kernel's file is the only record.
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        systemd.fail("GetUnit", Fault::Silence);
        assert!(!restore(&entries, &mut Undone::default(), &mut || ()).is_settled(file));
    }

    /// As on a busy machine, when its daemon is stopped.
    #[test]
    fn a_slow_systemd_is_asked_again() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        systemd.fail("SetUnitProperties", Fault::Silence);
        systemd.fail("SetUnitProperties", Fault::Silence);
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
        assert_eq!(weights(&systemd), [number(42), Property::CPUWeight.nothing()]);
        assert_eq!(systemd.files(), [""; 0]);
    }

    #[test]
    fn without_an_answer_the_drop_ins_are_removed_and_one_problem_is_reported() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        for _ in 0..=PAUSES.len() {
            systemd.fail("GetUnit", Fault::Silence);
        }
        let undone = undo(&entries);
        assert_eq!(undone.problems.len(), 1, "{undone:?}");
        assert!(undone.problems[0].starts_with("a.slice, b.scope: properties"), "{undone:?}");
        assert!(undone.problems[0].contains("systemctl daemon-reload"), "{undone:?}");
        assert_eq!(systemd.files(), [""; 0]);
        // As a later daemon finds it: the given values are still in force, and are reverted.
        assert_eq!(undo(&entries).properties, 4);
        assert_eq!(weights(&systemd), [number(42), Property::CPUWeight.nothing()]);
    }

    #[test]
    fn a_refusal_for_one_unit_is_reported_and_the_others_are_reverted() {
        let systemd = FakeSystemd::new(true);
        let entries = set_properties(&systemd);
        systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
        let undone = undo(&entries);
        assert_eq!((undone.problems.len(), undone.properties), (1, 2), "{undone:?}");
        assert!(undone.problems[0].starts_with("a.slice: properties"), "{undone:?}");
        // systemd has reloaded its files for the other unit, so this unit is restored, too.
        assert_eq!(weights(&systemd), [number(42), Property::CPUWeight.nothing()]);
    }
}
