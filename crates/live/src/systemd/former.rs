//! Records the state of a systemd unit's property before the daemon sets the property, and reverts the
//! property.
//!
//! Problem: systemd keeps a run-time value in a file, `/run/systemd/system.control/UNIT.d/50-PROPERTY.conf`.
//! Its interface cannot remove a single such file: `systemctl revert` also removes everything that an
//! administrator has set.
//!
//! Algorithm: before a property is set, its value and its file are recorded. To revert the property,
//! 1. the former value is set, which takes effect at once;
//! 2. the file, into which systemd has written that value, gets its former content, or is removed;
//! 3. systemd reloads its files, once, after everything is reverted ([`Reverted::reload`]). Without a reload,
//!    systemd would still refer to a removed file. And systemd distinguishes an unset property from one that
//!    is set to the default: an unset `MemoryMin` follows the slice around it, and a `MemoryMin` of 0 does
//!    not.
//!
//! systemd merges lists of devices. If an administrator sets the rate of one disk, the daemon's rates of
//! other disks stay in the list, and in the file that systemd writes for the administrator. So the daemon's
//! rates are removed from the list and from the file ([`PropertyChange::set_by_others`],
//! [`Manager::remove_persistent`]).
//!
//! Properties: a reverted property is as if it had never been set. A value that the daemon did not give was
//! set by an administrator, and stays, as does a file with such a value. Reverting is idempotent, and does
//! nothing for a property that was never set.
//!
//! Limits: a value that an administrator set is reverted if it equals a value that the daemon gave.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Error, Manager, Property, UNSET, Value};
use crate::host;

/// The time limit for reverting all properties of one systemd unit.
const REVERTED_WITHIN: Duration = Duration::from_secs(2);

/// The general weight on disks (`IOWeight`) if it is unset.
const DEFAULT_WEIGHT: u64 = 100;

/// The state of a property at one moment: usually, just before the daemon sets the property for the first
/// time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyState {
    /// The property.
    pub property: Property,
    /// The property's value.
    pub value: Value,
    /// The drop-in into which systemd writes a run-time value of the property.
    pub file: PathBuf,
    /// The drop-in's content; `None` if the file does not exist.
    pub content: Option<String>,
}

/// A property that the daemon has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyChange {
    /// The property's state before the first change.
    pub former: PropertyState,
    /// The values that the daemon gave the property, oldest first. The last value is in force; if the last
    /// call failed, the one before it is.
    pub given: Vec<Value>,
}

/// The outcome of reverting.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reverted {
    /// The number of properties whose former value or file was restored.
    pub properties: u32,
    /// The properties whose former value was set by a call to systemd, which has thus written the kernel's
    /// files.
    pub set: Vec<Property>,
    /// The properties that another program has set meanwhile and that are left alone, each with its present
    /// value.
    pub left: Vec<(Property, Value)>,
    /// Whether systemd must reload its files ([`Manager::reload`]) to complete the revert.
    pub reload: bool,
}

impl Manager {
    /// The present state of properties, which callers record before they set the properties. Properties that
    /// this version of systemd does not know are left out.
    pub fn former(&mut self, unit: &str, properties: &[Property]) -> Result<Vec<PropertyState>, Error> {
        let state = self.state(unit)?;
        let folder = self.instance().drop_ins(state.is_transient).join(format!("{}.d", state.id));
        let record = |(property, value): (Property, Value)| {
            let file = folder.join(format!("50-{property}.conf"));
            let content = content(&file)?;
            Ok(PropertyState { property, value, file, content })
        };
        self.show(unit, properties)?.into_iter().map(record).collect()
    }

    /// Reverts properties of a systemd unit, within [`REVERTED_WITHIN`]. If the unit is gone, only the
    /// drop-ins are restored.
    pub fn revert(&mut self, unit: &str, changes: &[PropertyChange]) -> Result<Reverted, Error> {
        let until = Instant::now() + REVERTED_WITHIN;
        let properties: Vec<Property> = changes.iter().map(|change| change.former.property).collect();
        let mut reverted = Reverted::default();
        let current_values = match self.show(unit, &properties) {
            Ok(values) => values,
            Err(error) if error.is_gone() => {
                for change in changes {
                    reverted.properties += u32::from(change.restore_file()?);
                }
                return Ok(reverted);
            }
            Err(error) => return Err(error),
        };
        for change in changes {
            let property = change.former.property;
            let Some((_, current)) = current_values.iter().find(|(shown, _)| *shown == property) else {
                continue;
            };
            let former_value = change.former.value.clone().sorted();
            let others_value = change.set_by_others(current);
            let is_former = *current == former_value;
            // A list of devices also counts as the daemon's value if only the former entries are left when
            // the daemon's entries are removed.
            let is_given = change.given.iter().any(|given| given.clone().sorted() == *current)
                || others_value.as_ref() == Some(&former_value);
            if !is_former && !is_given {
                // Another program set the property meanwhile. Its value stays, without the daemon's entries
                // of a list.
                reverted.left.push((property, others_value.as_ref().unwrap_or(current).clone()));
                let file_changed = change.restore_file()?;
                reverted.reload |= file_changed;
                if let Some(others_value) = others_value {
                    let former = change.former.clone();
                    let target = PropertyState { value: others_value.clone(), ..former.clone() };
                    self.restore(unit, &target, current, until)?;
                    // The call above has written the file once more: restore it again, if it was the
                    // daemon's.
                    if file_changed {
                        PropertyChange { former, given: vec![others_value] }.restore_file()?;
                    }
                }
                continue;
            }
            if !is_former && self.restore(unit, &change.former, current, until)? {
                reverted.set.push(property);
            }
            let file_changed = change.restore_file()?;
            reverted.reload |= file_changed;
            reverted.properties += u32::from(file_changed || !is_former);
        }
        Ok(reverted)
    }

    /// Removes the daemon's entries `gone` from a persistent list of devices. When an administrator sets an
    /// entry of such a list, systemd also writes the entries that are in force, the daemon's among them, into
    /// the persistent file.
    pub(super) fn remove_persistent(
        &mut self,
        unit: &str,
        property: Property,
        gone: &[(String, u64)],
        until: Instant,
    ) -> Result<(), Error> {
        let Some(folder) = self.instance().persistent_drop_ins().filter(|_| !gone.is_empty()) else {
            return Ok(());
        };
        let file = folder.join(format!("{unit}.d/50-{property}.conf"));
        let listed = content(&file).ok().flatten().and_then(|content| property.parse_file(&content));
        let Some(listed) = listed else { return Ok(()) };
        let remaining = listed.beyond(&Value::Devices(gone.to_vec()));
        if remaining.len() == listed.devices().len() {
            return Ok(());
        }
        match self.set(unit, &[(property, Value::Devices(remaining))], false, until) {
            // systemd cannot write the file. That is no error: the caller restores at least the value in
            // force.
            Err(error) if !error.is_silence() => Ok(()),
            result => result,
        }
    }

    /// Sets a property, whose value is `current`, to its former value. Returns whether systemd accepted the
    /// former value; if not, it takes effect when systemd reloads its files.
    fn restore(
        &mut self,
        unit: &str,
        former: &PropertyState,
        current: &Value,
        until: Instant,
    ) -> Result<bool, Error> {
        self.remove_persistent(unit, former.property, &current.beyond(&former.value), until)?;
        // The kernel keeps the weight of a device that is no longer listed: set it to the general weight
        // first.
        if let (Property::IODeviceWeight, Value::Devices(weights)) = (former.property, current) {
            let general_weight = match self.show(unit, &[Property::IOWeight])?.first() {
                Some((_, Value::Number(weight))) if *weight != UNSET => *weight,
                _ => DEFAULT_WEIGHT,
            };
            let equal_weights = weights.iter().map(|(device, _)| (device.clone(), general_weight)).collect();
            self.set_until(unit, &[(former.property, Value::Devices(equal_weights))], until)?;
        }
        match self.set_until(unit, &[(former.property, former.value.clone())], until) {
            // Some values are accepted in a file but not in a call (`MemoryMax=0`).
            Err(Error::Unsuitable { .. }) => Ok(false),
            Err(Error::Refused { name, .. }) if name.ends_with(".InvalidArgs") => Ok(false),
            result => result.map(|()| true),
        }
    }
}

impl PropertyState {
    /// For a property that is a list of devices: this state without our entries, in the value and in the
    /// file's content. `others` is the list of the remaining entries.
    pub(crate) fn restricted_to(self, others: Value) -> PropertyState {
        let gone = self.value.beyond(&others);
        let content = self.content.map(|content| self.property.without(&content, &gone));
        PropertyState { value: others, content, ..self }
    }
}

impl PropertyChange {
    /// The entries of the present list of devices, `current`, that others have set: those that the daemon did
    /// not give. `None` if the daemon gave no entry, or the value is no list.
    pub(crate) fn set_by_others(&self, current: &Value) -> Option<Value> {
        let (all, former) = (current.devices(), self.former.value.devices());
        let is_given = |device: &(String, u64)| {
            !former.contains(device) && self.given.iter().any(|given| given.devices().contains(device))
        };
        let others: Vec<(String, u64)> = all.iter().filter(|device| !is_given(device)).cloned().collect();
        (others.len() < all.len()).then_some(Value::Devices(others))
    }

    /// Restores the drop-in's former content, or removes the file if it did not exist. A file whose value is
    /// neither the former one nor one that the daemon gave was written by an administrator, and is left
    /// alone. Returns whether anything was changed.
    pub(crate) fn restore_file(&self) -> Result<bool, Error> {
        let PropertyState { property, value, file, content: former } = &self.former;
        let Some(current) = content(file)? else { return Ok(false) };
        if former.as_ref() == Some(&current) {
            return Ok(false);
        }
        let value_in_file = property.parse_file(&current);
        let is_in_file = |value: &Value| value_in_file == Some(value.clone().sorted());
        if !is_in_file(value) && !self.given.iter().any(is_in_file) {
            return Ok(false);
        }
        if let Some(former) = former {
            host::write_file(file, former.as_bytes()).map_err(|source| failed(file, source))?;
            return Ok(true);
        }
        host::remove_file(file).map_err(|source| failed(file, source))?;
        // The folder stays if it is not empty.
        if let Some(folder) = file.parent() {
            let _ = host::remove_dir(folder);
        }
        Ok(true)
    }
}

/// The content of a file; `None` if it does not exist.
fn content(file: &Path) -> Result<Option<String>, Error> {
    match host::read_to_string(file) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(file, source)),
    }
}

fn failed(file: &Path, source: io::Error) -> Error {
    let remedy = "remove it by hand, and have systemd reload its files: systemctl daemon-reload".to_owned();
    Error::Files { path: file.to_owned(), source, remedy }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::super::fake::{FakeSystemd, Fault};
    use super::*;

    const U: &str = "user-7.slice";

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    /// Sets values as the daemon does: records, then sets.
    fn hold(manager: &mut Manager, unit: &str, all: &[(Property, Value)]) -> Vec<PropertyChange> {
        let properties: Vec<Property> = all.iter().map(|(property, _)| *property).collect();
        let former = manager.former(unit, &properties).unwrap();
        manager.set_runtime(unit, all).unwrap();
        let given = |former: &PropertyState| {
            all.iter().filter(|set| set.0 == former.property).map(|set| set.1.clone()).collect()
        };
        former.into_iter().map(|former| PropertyChange { given: given(&former), former }).collect()
    }

    fn some(cpus: &str) -> Vec<(Property, Value)> {
        let devices = Value::Devices(vec![("/dev/sdb".to_owned(), 7), ("/dev/sda".to_owned(), 9)]);
        vec![
            (Property::CPUWeight, number(200)),
            (Property::AllowedCPUs, Value::Cpus(cpus.parse().unwrap())),
            (Property::MemoryMin, number(1 << 20)),
            (Property::IODeviceWeight, devices.clone()),
            (Property::IOReadBandwidthMax, devices),
        ]
    }

    #[test]
    fn a_reverted_property_is_as_if_never_set() {
        for is_transient in [false, true] {
            let systemd = FakeSystemd::new(true);
            let base = [(Property::CPUWeight, number(42))];
            systemd.unit(U, is_transient, &base);
            let mut manager = Manager::new(systemd.instance());
            let before = manager.show(U, Property::ALL).unwrap();
            let changes = hold(&mut manager, U, &some("0-3"));
            assert_eq!(systemd.files().len(), 6);
            assert_ne!(manager.show(U, Property::ALL).unwrap(), before);
            let reverted = manager.revert(U, &changes).unwrap();
            let set = changes.iter().map(|change| change.former.property).collect();
            assert_eq!(reverted, Reverted { properties: 5, set, left: vec![], reload: true });
            assert_eq!((manager.show(U, Property::ALL).unwrap(), systemd.files()), (before.clone(), vec![]));
            assert!(manager.state(U).unwrap().needs_reload, "the removed file is among those it has read");
            assert!(manager.reload().unwrap());
            assert!(!manager.state(U).unwrap().needs_reload);
            assert_eq!(manager.show(U, Property::ALL).unwrap(), before);
            assert_eq!(manager.revert(U, &changes).unwrap(), Reverted::default(), "twice");
        }
    }

    /// The kernel's file keeps the line of an unlisted device.
    #[test]
    fn a_device_gets_its_units_weight_before_it_is_unlisted() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[(Property::IOWeight, number(300))]);
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &some("0")[3..4]);
        systemd.stage().heard.clear();
        // If the first of two calls is refused, nothing else is done.
        systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.Failed"));
        manager.revert(U, &changes).unwrap_err();
        assert_eq!(systemd.stage().heard, ["SetUnitProperties"]);
        manager.revert(U, &changes).unwrap();
        assert_eq!(systemd.stage().heard.len(), 3);
        assert_eq!(systemd.value(U, Property::IODeviceWeight), Property::IODeviceWeight.nothing());
    }

    #[test]
    fn an_earlier_run_time_value_is_restored() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        systemd.set(U, Property::CPUWeight, number(77));
        let file = systemd.drop_in(U, Property::CPUWeight);
        let content = fs::read_to_string(&file).unwrap() + "# by hand\n";
        fs::write(&file, &content).unwrap();
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &some("0-3")[..1]);
        assert_eq!(systemd.value(U, Property::CPUWeight), number(200));
        manager.revert(U, &changes).unwrap();
        assert_eq!(
            (systemd.value(U, Property::CPUWeight), fs::read_to_string(&file).unwrap()),
            (number(77), content)
        );
    }

    #[test]
    fn a_value_that_an_administrator_set_meanwhile_stays() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &some("0-3"));
        // One by `set-property --runtime`, one by another file, which leaves the daemon's file unchanged.
        systemd.set(U, Property::CPUWeight, number(500));
        systemd.stage().units.get_mut(U).unwrap().now.insert(Property::MemoryMin, number(5));
        let reverted = manager.revert(U, &changes).unwrap();
        let left = vec![(Property::CPUWeight, number(500)), (Property::MemoryMin, number(5))];
        let set = vec![Property::AllowedCPUs, Property::IODeviceWeight, Property::IOReadBandwidthMax];
        assert_eq!(reverted, Reverted { properties: 3, set, left, reload: true });
        assert_eq!(systemd.files(), ["user-7.slice.d", "50-CPUWeight.conf"]);
        assert_eq!(systemd.value(U, Property::CPUWeight), number(500));
    }

    fn rates(all: &[(&str, u64)]) -> Value {
        Value::Devices(all.iter().map(|(disk, rate)| ((*disk).to_owned(), *rate)).collect())
    }

    /// The daemon set two disks, and an administrator a third: with `--runtime`, or persistently.
    #[test]
    fn the_daemons_entries_are_removed_from_an_administrators_list() {
        for lasts in [false, true] {
            let systemd = FakeSystemd::new(true);
            systemd.unit(U, false, &[]);
            let mut manager = Manager::new(systemd.instance());
            let changes = hold(&mut manager, U, &some("0-3")[4..]);
            let (property, theirs) = (Property::IOReadBandwidthMax, rates(&[("/dev/sdc", 3)]));
            match lasts {
                false => systemd.set(U, property, theirs.clone()),
                true => systemd.set_lasting(U, property, theirs.clone()),
            }
            let all = rates(&[("/dev/sda", 9), ("/dev/sdb", 7), ("/dev/sdc", 3)]);
            assert_eq!(systemd.value(U, property), all, "systemd adds to what is there");
            let reverted = manager.revert(U, &changes).unwrap();
            let left = vec![(property, theirs.clone())];
            assert_eq!(reverted, Reverted { properties: 0, set: vec![], left, reload: lasts });
            assert_eq!(systemd.value(U, property), theirs);
            manager.reload().unwrap();
            assert_eq!(systemd.value(U, property), theirs, "the files say the same");
            assert_eq!(systemd.files().is_empty(), lasts, "{:?}", systemd.files());
        }
    }

    /// `IOReadBandwidthMax=/dev/sda infinity`: one of the daemon's entries is gone, and no other was set.
    #[test]
    fn the_rest_of_a_shortened_list_is_removed() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[(Property::IOReadBandwidthMax, rates(&[("/dev/sdc", 3)]))]);
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &some("0-3")[4..]);
        let some = rates(&[("/dev/sdb", 7), ("/dev/sdc", 3)]);
        systemd.stage().units.get_mut(U).unwrap().now.insert(Property::IOReadBandwidthMax, some);
        let reverted = manager.revert(U, &changes).unwrap();
        let set = vec![Property::IOReadBandwidthMax];
        assert_eq!(reverted, Reverted { properties: 1, set, left: vec![], reload: true });
        assert_eq!(systemd.value(U, Property::IOReadBandwidthMax), rates(&[("/dev/sdc", 3)]));
    }

    #[test]
    fn the_drop_ins_of_a_systemd_unit_that_is_gone_are_removed() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &some("0-3"));
        systemd.stage().units.clear();
        let reverted = manager.revert(U, &changes).unwrap();
        assert_eq!(reverted, Reverted { properties: 5, set: vec![], left: vec![], reload: false });
        assert_eq!(systemd.files(), [""; 0]);
    }

    #[test]
    fn a_value_that_only_a_file_can_have_is_restored_by_a_reload() {
        let systemd = FakeSystemd::new(true);
        let nothing = (Property::MemoryMax, number(0));
        systemd.unit(U, false, std::slice::from_ref(&nothing));
        let mut manager = Manager::new(systemd.instance());
        let changes = hold(&mut manager, U, &[(Property::MemoryMax, number(7))]);
        assert!(manager.revert(U, &changes).unwrap().reload);
        manager.reload().unwrap();
        assert_eq!(manager.show(U, &[Property::MemoryMax]).unwrap(), [nothing]);
    }
}
