//! Taking back properties of systemd units.
//!
//! A systemd that does not answer is asked again at the end, when nobody is held any longer. What it does not answer for
//! then, it keeps until it is asked again or the machine starts anew. The files of it are taken away all the same, so that it
//! lasts no longer than the next `daemon-reload`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::Undone;
use crate::systemd::{Error, Held, Manager, Property, Value, Whose};
use crate::undo::journal::Entry;

impl Entry {
    /// What the journal is to have before properties of a systemd unit are set.
    pub fn of_properties(whose: &Whose, unit: &str, held: &[Held]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for Held { former, given } in held {
            let (whose, unit, property) = (whose.clone(), unit.to_owned(), former.property);
            entries.push(Entry::Property {
                whose: whose.clone(),
                unit: unit.clone(),
                former: former.clone(),
            });
            entries.extend(given.iter().map(|value| Entry::PropertyGiven {
                whose: whose.clone(),
                unit: unit.clone(),
                property,
                value: value.clone(),
            }));
        }
        entries
    }
}

/// How long a systemd that did not answer is left alone before it is asked again (exponential back-off). On a busy machine a call
/// may well take longer than the two seconds that it is given.
const PAUSES: [Duration; 4] = match cfg!(test) {
    true => [Duration::from_millis(1); 4],
    false => [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)],
};

/// Whoever waits for the end hears this often that there is progress.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// What is held, by systemd and unit.
type AllHeld = BTreeMap<Whose, BTreeMap<String, BTreeMap<Property, Held>>>;

/// What came of it.
#[derive(Default)]
pub(super) struct Restored {
    /// Properties that others have set meanwhile, and those that systemd took back: the kernel's files of these have what
    /// systemd says.
    systemds: BTreeSet<(String, Property)>,
    /// Those that are to read their files anew.
    to_read: Vec<Manager>,
    /// Those that did not answer.
    silent: Vec<Silent>,
}

/// A systemd that did not answer.
struct Silent {
    manager: Manager,
    error: Error,
    /// What it is still to take back.
    units: Units,
    /// Whether it is to read its files anew for what it took back before.
    reload: bool,
}

impl Restored {
    /// Whether a control group's file has what systemd says. What was in it when the daemon wrote it first may be older: the
    /// kernel keeps a weight that an administrator took back (`systemctl revert`) until systemd writes the file.
    pub(super) fn is_systemds(&self, file: &Path) -> bool {
        let property = match file.file_name().and_then(|name| name.to_str()) {
            Some("cpuset.cpus") => Property::AllowedCPUs,
            Some("cpu.weight") => Property::CPUWeight,
            Some("memory.high") => Property::MemoryHigh,
            Some("memory.low") => Property::MemoryLow,
            Some("memory.min") => Property::MemoryMin,
            _ => return false,
        };
        let unit = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        unit.is_some_and(|unit| self.systemds.contains(&(unit.to_owned(), property)))
    }

    /// Asks again where systemd did not answer, and has it read its files anew, where one is gone that it counts among them.
    /// The last: it takes its time, and nobody is held meanwhile.
    pub(super) fn finish(mut self, undone: &mut Undone, progress: &mut dyn FnMut()) {
        for pause in PAUSES {
            if self.silent.is_empty() {
                break;
            }
            let until = Instant::now() + pause;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                thread::sleep(left.min(SIGN_OF_LIFE));
                progress();
            }
            for Silent { manager, units, reload, .. } in std::mem::take(&mut self.silent) {
                restore_all((manager, reload), units, &mut self, undone, progress);
            }
        }
        for Silent { error, units, .. } in self.silent {
            let units: Vec<String> = units.into_iter().map(|(unit, _)| unit).collect();
            let units = units.join(", ");
            undone.problems.push(format!("{units}: properties are not as they were: {error}; {REMEDY}"));
        }
        for mut manager in self.to_read {
            read_anew(&mut manager, undone);
        }
    }
}

pub(super) fn restore(entries: &[Entry], undone: &mut Undone, progress: &mut dyn FnMut()) -> Restored {
    let mut restored = Restored::default();
    // What was taken back while the daemon ran, or was an administrator's then.
    let back = entries.iter().filter_map(|entry| match entry {
        Entry::PropertyBack { unit, property, .. } => Some((unit.clone(), *property)),
        _ => None,
    });
    restored.systemds.extend(back);
    for (whose, units) in held(entries) {
        let units = units.into_iter().map(|(unit, held)| (unit, held.into_values().collect()));
        let units = units.filter(|(_, held): &(String, Vec<Held>)| !held.is_empty()).collect();
        restore_all((Manager::new(whose), false), units, &mut restored, undone, progress);
    }
    restored
}

fn held(entries: &[Entry]) -> AllHeld {
    let mut all = AllHeld::new();
    for entry in entries {
        match entry {
            Entry::Property { whose, unit, former } => {
                let unit = all.entry(whose.clone()).or_default().entry(unit.clone()).or_default();
                // What was found later, the daemon had set.
                let held = || Held { former: former.clone(), given: Vec::new() };
                unit.entry(former.property).or_insert_with(held);
            }
            Entry::PropertyGiven { whose, unit, property, value } => {
                let held = all.get_mut(whose).and_then(|units| units.get_mut(unit)?.get_mut(property));
                if let Some(held) = held {
                    held.given.push(value.clone());
                }
            }
            Entry::PropertyBack { whose, unit, property } => {
                if let Some(unit) = all.get_mut(whose).and_then(|units| units.get_mut(unit)) {
                    unit.remove(property);
                }
            }
            _ => {}
        }
    }
    all
}

/// What is held of one systemd, by unit.
type Units = Vec<(String, Vec<Held>)>;

/// Has one systemd take properties back, and read its files anew at the end if it has to, or had to before. Units that it did
/// not answer for are left for [`Restored::finish`].
fn restore_all(
    (mut manager, mut reload): (Manager, bool),
    units: Units,
    restored: &mut Restored,
    undone: &mut Undone,
    progress: &mut dyn FnMut(),
) {
    let mut silence: Option<(Error, Units)> = None;
    for (unit, held) in units {
        if let Some((_, units)) = &mut silence {
            forget(&held, &unit, undone);
            units.push((unit, held));
            continue;
        }
        match manager.revert(&unit, &held) {
            Ok(reverted) => {
                undone.properties += reverted.properties;
                reload |= reverted.reload;
                let theirs = reverted.left.iter().map(|(property, _)| property);
                let systemds = theirs.chain(&reverted.set).map(|property| (unit.clone(), *property));
                restored.systemds.extend(systemds);
                undone
                    .notices
                    .extend(reverted.left.iter().map(|(property, value)| left(&unit, *property, value)));
            }
            Err(error) if error.is_silence() => {
                forget(&held, &unit, undone);
                silence = Some((error, vec![(unit, held)]));
            }
            Err(error) => {
                forget(&held, &unit, undone);
                undone.problems.push(format!("{unit}: properties are not as they were: {error}; {REMEDY}"));
            }
        }
        progress();
    }
    match silence {
        Some((error, units)) => restored.silent.push(Silent { manager, error, units, reload }),
        None if reload => restored.to_read.push(manager),
        None => {}
    }
}

/// What is to be done where systemd has not done it.
const REMEDY: &str = "their files are gone, so `systemctl daemon-reload` gives them what they had";

fn read_anew(manager: &mut Manager, undone: &mut Undone) {
    match manager.reload() {
        Ok(true) => {}
        Ok(false) => undone.notices.push("systemd still reads its files anew".to_owned()),
        Err(error) => undone.problems.push(format!(
            "systemd counts files among its own that are gone: {error}; have it read them anew: systemctl daemon-reload"
        )),
    }
}

/// Takes away the files of what systemd was not asked about, or did not do.
fn forget(held: &[Held], unit: &str, undone: &mut Undone) {
    for held in held {
        if let Err(error) = held.restore_file() {
            undone.problems.push(format!("{unit}: {error}"));
        }
    }
}

fn left(unit: &str, property: Property, value: &Value) -> String {
    let value = value.text(property).replace('\n', ", ");
    let value = if value.is_empty() { "not set".to_owned() } else { value };
    format!("{unit}: {property} stays {value}: another program has set it")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::systemd::played::{Fault, Played};

    const A: &str = "a.slice";
    const B: &str = "b.scope";

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    /// Two systemd units with two properties, and the journal of it.
    fn held(played: &Played) -> Vec<Entry> {
        played.unit(A, false, &[(Property::CPUWeight, number(42))]);
        played.unit(B, true, &[]);
        let mut manager = Manager::new(played.whose());
        let mut entries = Vec::new();
        for unit in [A, B] {
            for value in [number(7), number(8)] {
                let all = [Property::CPUWeight, Property::MemoryHigh];
                let former = manager.former(unit, &all).unwrap();
                let held = |former| Held { former, given: vec![value.clone()] };
                let held: Vec<Held> = former.into_iter().map(held).collect();
                entries.extend(Entry::of_properties(&played.whose(), unit, &held));
                manager.set_runtime(unit, &all.map(|property| (property, value.clone()))).unwrap();
            }
        }
        assert_eq!(played.files().len(), 6);
        entries
    }

    fn undo(entries: &[Entry]) -> Undone {
        let mut undone = Undone::default();
        restore(entries, &mut undone, &mut || ()).finish(&mut undone, &mut || ());
        undone
    }

    fn weights(played: &Played) -> [Value; 2] {
        [A, B].map(|unit| played.value(unit, Property::CPUWeight))
    }

    #[test]
    fn a_journal_alone_takes_all_of_it_back() {
        let played = Played::new(true);
        let entries = held(&played);
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
        assert_eq!(weights(&played), [number(42), Property::CPUWeight.nothing()]);
        assert_eq!(played.files(), [""; 0]);
        let heard = played.stage().heard.clone();
        assert_eq!(heard.iter().filter(|method| *method == "Reload").count(), 1);
        assert_eq!(undo(&entries), Undone::default(), "twice");
    }

    #[test]
    fn a_value_that_was_recorded_and_never_given_is_no_other_programs() {
        let played = Played::new(true);
        let mut entries = held(&played);
        let value = number(9);
        let (whose, unit, property) = (played.whose(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyGiven { whose, unit, property, value });
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
    }

    #[test]
    fn what_was_taken_back_before_is_left_alone() {
        let played = Played::new(true);
        let mut entries = held(&played);
        let (whose, unit, property) = (played.whose(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyBack { whose, unit, property });
        assert_eq!(undo(&entries).properties, 3);
        assert_eq!(weights(&played), [number(8), Property::CPUWeight.nothing()]);
    }

    #[test]
    fn what_another_program_has_set_is_told_and_stays() {
        let played = Played::new(true);
        let entries = held(&played);
        played.set(B, Property::CPUWeight, number(500));
        let undone = undo(&entries);
        assert_eq!(undone.notices, ["b.scope: CPUWeight stays 500: another program has set it"]);
        assert_eq!((undone.properties, undone.problems.len()), (3, 0));
    }

    #[test]
    fn what_another_program_has_set_is_not_written_over_in_the_kernels_file() {
        let played = Played::new(true);
        let mut entries = held(&played);
        played.set(B, Property::MemoryHigh, number(500));
        // Seen while the daemon ran.
        let (whose, unit, property) = (played.whose(), A.to_owned(), Property::CPUWeight);
        entries.push(Entry::PropertyBack { whose, unit, property });
        let restored = restore(&entries, &mut Undone::default(), &mut || ());
        let is_systemds = |file: &str| restored.is_systemds(&Path::new("/sys/fs/cgroup/x.slice").join(file));
        assert!(is_systemds("b.scope/memory.high") && is_systemds("a.slice/cpu.weight"));
        assert!(!is_systemds("b.scope/memory.max"));
    }

    /// An administrator's weight was taken back (`systemctl revert`) before the daemon set its own: the kernel still had the
    /// administrator's then.
    #[test]
    fn what_systemd_took_back_is_not_written_over_with_what_the_kernel_had() {
        let played = Played::new(true);
        let entries = held(&played);
        let restored = restore(&entries, &mut Undone::default(), &mut || ());
        let file = Path::new("/sys/fs/cgroup/x.slice/b.scope/cpu.weight");
        assert!(restored.is_systemds(file));
        // Where systemd did not answer, the file is all that there is.
        let played = Played::new(true);
        let entries = held(&played);
        played.fail("GetUnit", Fault::Silence);
        assert!(!restore(&entries, &mut Undone::default(), &mut || ()).is_systemds(file));
    }

    /// As a busy machine does, when its daemon is stopped.
    #[test]
    fn a_systemd_that_was_late_is_asked_again() {
        let played = Played::new(true);
        let entries = held(&played);
        played.fail("SetUnitProperties", Fault::Silence);
        played.fail("SetUnitProperties", Fault::Silence);
        assert_eq!(undo(&entries), Undone { properties: 4, ..Undone::default() });
        assert_eq!(weights(&played), [number(42), Property::CPUWeight.nothing()]);
        assert_eq!(played.files(), [""; 0]);
    }

    #[test]
    fn where_systemd_does_not_answer_the_files_go_and_it_is_said_once() {
        let played = Played::new(true);
        let entries = held(&played);
        for _ in 0..=PAUSES.len() {
            played.fail("GetUnit", Fault::Silence);
        }
        let undone = undo(&entries);
        assert_eq!(undone.problems.len(), 1, "{undone:?}");
        assert!(undone.problems[0].starts_with("a.slice, b.scope: properties"), "{undone:?}");
        assert!(undone.problems[0].contains("systemctl daemon-reload"), "{undone:?}");
        assert_eq!(played.files(), [""; 0]);
        // As a later daemon finds it: what was given is still in force, and is taken back.
        assert_eq!(undo(&entries).properties, 4);
        assert_eq!(weights(&played), [number(42), Property::CPUWeight.nothing()]);
    }

    #[test]
    fn what_one_is_refused_is_told_and_the_others_go_on() {
        let played = Played::new(true);
        let entries = held(&played);
        played.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
        let undone = undo(&entries);
        assert_eq!((undone.problems.len(), undone.properties), (1, 2), "{undone:?}");
        assert!(undone.problems[0].starts_with("a.slice: properties"), "{undone:?}");
        // systemd has read its files anew for the other one, and so this one is as it was, too.
        assert_eq!(weights(&played), [number(42), Property::CPUWeight.nothing()]);
    }
}
