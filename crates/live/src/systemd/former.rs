//! What was before a property was set, and taking it back.
//!
//! Problem: systemd keeps what is set at run time in a file, `/run/systemd/system.control/UNIT.d/50-PROPERTY.conf`. Nothing in
//! its interface takes one such file away: `systemctl revert` takes away all that an administrator has set as well.
//!
//! Algorithm: before a property is set, its value and its file are remembered. To take it back, the value is set, which has
//! effect at once. systemd writes that into the file, too. So then the file gets its former content, or goes. systemd still
//! counts a file that went among those it has read. And it knows of values that were set though they are the default (a
//! `MemoryMin` of 0 is not that of the slice around it). Both end when it reads its files anew: once, after all that is
//! taken back ([`Reverted::reload`]).
//!
//! systemd adds to a list of devices. Where an administrator sets the rate of one disk, the rates that were given to other disks are
//! on the list still, and in the file that systemd writes for the administrator. So what was given is taken out of both
//! ([`Held::of_others`], [`Manager::take_out`]).
//!
//! Properties: what is taken back is as if it had never been set. A value that is none of those given is an administrator's,
//! and stays; so does a file that says another. Taking back what was never set, or twice, does nothing.
//!
//! Limits: an administrator who sets the very value that was given is not told apart.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Error, Manager, Property, UNSET, Value};
use crate::host;

/// All properties of one systemd unit are taken back within this time.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// The weight of a device where nobody has set one.
const WEIGHT: u64 = 100;

/// A property before it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    /// Which.
    pub property: Property,
    /// Its value.
    pub value: Value,
    /// Where systemd keeps a value that is set at run time.
    pub file: PathBuf,
    /// What is in that file; nothing if it is not there.
    pub content: Option<String>,
}

/// A property that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What was before.
    pub former: Former,
    /// The values that it was given. The last of them may be in force, or the one before if the last call failed.
    pub given: Vec<Value>,
}

/// What was taken back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reverted {
    /// Properties that have their former value again, or whose file is as it was.
    pub properties: u32,
    /// Those of them that systemd was told, and so has written into the kernel's files.
    pub set: Vec<Property>,
    /// Those that somebody else has set meanwhile, with the value that stays.
    pub left: Vec<(Property, Value)>,
    /// Whether systemd is to read its files anew ([`Manager::reload`]), so that nothing is left of it.
    pub reload: bool,
}

impl Manager {
    /// What properties are, before they are set. One that this systemd does not know is left out.
    pub fn former(&mut self, unit: &str, properties: &[Property]) -> Result<Vec<Former>, Error> {
        let state = self.state(unit)?;
        let folder = self.whose().drop_ins(state.is_transient).join(format!("{}.d", state.id));
        let of = |(property, value): (Property, Value)| {
            let file = folder.join(format!("50-{property}.conf"));
            let content = content(&file)?;
            Ok(Former { property, value, file, content })
        };
        self.show(unit, properties)?.into_iter().map(of).collect()
    }

    /// Takes properties of a systemd unit back. Of one that is gone, only the files are left to take away.
    pub fn revert(&mut self, unit: &str, held: &[Held]) -> Result<Reverted, Error> {
        let until = Instant::now() + TAKEN_BACK_WITHIN;
        let properties: Vec<Property> = held.iter().map(|held| held.former.property).collect();
        let mut reverted = Reverted::default();
        let now = match self.show(unit, &properties) {
            Ok(now) => now,
            Err(error) if error.is_gone() => {
                for held in held {
                    reverted.properties += u32::from(held.restore_file()?);
                }
                return Ok(reverted);
            }
            Err(error) => return Err(error),
        };
        for held in held {
            let property = held.former.property;
            let Some((_, value)) = now.iter().find(|(shown, _)| *shown == property) else { continue };
            let (before, others) = (held.former.value.clone().sorted(), held.of_others(value));
            let is_former = *value == before;
            let is_given = held.given.iter().any(|given| given.clone().sorted() == *value)
                || others.as_ref() == Some(&before);
            if !is_former && !is_given {
                reverted.left.push((property, others.as_ref().unwrap_or(value).clone()));
                // What others have set is in another file than ours, then.
                let was_ours = held.restore_file()?;
                reverted.reload |= was_ours;
                if let Some(others) = others {
                    let former = held.former.clone();
                    self.put_back(unit, &Former { value: others.clone(), ..former.clone() }, value, until)?;
                    if was_ours {
                        Held { former, given: vec![others] }.restore_file()?;
                    }
                }
                continue;
            }
            if !is_former && self.put_back(unit, &held.former, value, until)? {
                reverted.set.push(property);
            }
            let is_other_file = held.restore_file()?;
            reverted.reload |= is_other_file;
            reverted.properties += u32::from(is_other_file || !is_former);
        }
        Ok(reverted)
    }

    /// Takes devices out of the list that systemd keeps for longer than until the machine's next start, where an administrator has
    /// one there: systemd has written down what was in force beside it, too.
    pub(super) fn take_out(
        &mut self,
        unit: &str,
        property: Property,
        gone: &[(String, u64)],
        until: Instant,
    ) -> Result<(), Error> {
        let Some(folder) = self.whose().lasting_drop_ins().filter(|_| !gone.is_empty()) else {
            return Ok(());
        };
        let file = folder.join(format!("{unit}.d/50-{property}.conf"));
        let said = content(&file).ok().flatten().and_then(|content| property.said_by(&content));
        let Some(said) = said else { return Ok(()) };
        let stays = said.beyond(&Value::Devices(gone.to_vec()));
        if stays.len() == said.devices().len() {
            return Ok(());
        }
        match self.set(unit, &[(property, Value::Devices(stays))], false, until) {
            // Where systemd cannot write there, at least what is in force is as it was.
            Err(error) if !error.is_silence() => Ok(()),
            set => set,
        }
    }

    /// Gives a property its former value; whether systemd took it at once.
    fn put_back(&mut self, unit: &str, former: &Former, now: &Value, until: Instant) -> Result<bool, Error> {
        self.take_out(unit, former.property, &now.beyond(&former.value), until)?;
        // The kernel keeps the weight of a device that is not named any more: so it gets the one that it would have.
        if let (Property::IODeviceWeight, Value::Devices(now)) = (former.property, now) {
            let weight = match self.show(unit, &[Property::IOWeight])?.first() {
                Some((_, Value::Number(weight))) if *weight != UNSET => *weight,
                _ => WEIGHT,
            };
            let even = now.iter().map(|(device, _)| (device.clone(), weight)).collect();
            self.set_until(unit, &[(former.property, Value::Devices(even))], until)?;
        }
        match self.set_until(unit, &[(former.property, former.value.clone())], until) {
            // A file may say what a call may not (`MemoryMax=0`). It is in force when systemd has read its files anew.
            Err(Error::Unsuitable { .. }) => Ok(false),
            Err(Error::Refused { name, .. }) if name.ends_with(".InvalidArgs") => Ok(false),
            set => set.map(|()| true),
        }
    }
}

impl Former {
    /// The same, where only this of a list was there before.
    pub(crate) fn of_others(self, others: Value) -> Former {
        let gone = self.value.beyond(&others);
        let content = self.content.map(|content| self.property.without(&content, &gone));
        Former { value: others, content, ..self }
    }
}

impl Held {
    /// What others have set of a list: all of it but what was given. `None` where nothing of it was given, and of what is no list.
    pub(crate) fn of_others(&self, now: &Value) -> Option<Value> {
        let (all, had) = (now.devices(), self.former.value.devices());
        let is_given = |device: &(String, u64)| {
            !had.contains(device) && self.given.iter().any(|given| given.devices().contains(device))
        };
        let others: Vec<(String, u64)> = all.iter().filter(|device| !is_given(device)).cloned().collect();
        (others.len() < all.len()).then_some(Value::Devices(others))
    }

    /// Gives a property's file its former content, or removes it, unless it says what was neither given nor before. Whether
    /// anything was changed.
    pub(crate) fn restore_file(&self) -> Result<bool, Error> {
        let Former { property, value, file, content: former } = &self.former;
        let Some(now) = content(file)? else { return Ok(false) };
        if former.as_ref() == Some(&now) {
            return Ok(false);
        }
        let said = property.said_by(&now);
        let is_ours = |value: &Value| said == Some(value.clone().sorted());
        if !is_ours(value) && !self.given.iter().any(is_ours) {
            return Ok(false);
        }
        if let Some(former) = former {
            host::write_file(file, former.as_bytes()).map_err(|source| failed(file, source))?;
            return Ok(true);
        }
        host::remove_file(file).map_err(|source| failed(file, source))?;
        // Others may have files there.
        if let Some(folder) = file.parent() {
            let _ = host::remove_dir(folder);
        }
        Ok(true)
    }
}

/// The content of a file, if it is there.
fn content(file: &Path) -> Result<Option<String>, Error> {
    match host::read_to_string(file) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(file, source)),
    }
}

fn failed(file: &Path, source: io::Error) -> Error {
    let remedy =
        "take it away by hand, and have systemd read its files anew: systemctl daemon-reload".to_owned();
    Error::Files { path: file.to_owned(), source, remedy }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::super::played::{Fault, Played};
    use super::*;

    const U: &str = "user-7.slice";

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    /// Sets values as the daemon does: remembers, then sets.
    fn hold(manager: &mut Manager, unit: &str, all: &[(Property, Value)]) -> Vec<Held> {
        let properties: Vec<Property> = all.iter().map(|(property, _)| *property).collect();
        let former = manager.former(unit, &properties).unwrap();
        manager.set_runtime(unit, all).unwrap();
        let given = |former: &Former| {
            all.iter().filter(|set| set.0 == former.property).map(|set| set.1.clone()).collect()
        };
        former.into_iter().map(|former| Held { given: given(&former), former }).collect()
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
    fn what_is_taken_back_was_never_set() {
        for is_transient in [false, true] {
            let played = Played::new(true);
            let base = [(Property::CPUWeight, number(42))];
            played.unit(U, is_transient, &base);
            let mut manager = Manager::new(played.whose());
            let before = manager.show(U, Property::ALL).unwrap();
            let held = hold(&mut manager, U, &some("0-3"));
            assert_eq!(played.files().len(), 6);
            assert_ne!(manager.show(U, Property::ALL).unwrap(), before);
            let reverted = manager.revert(U, &held).unwrap();
            let set = held.iter().map(|held| held.former.property).collect();
            assert_eq!(reverted, Reverted { properties: 5, set, left: vec![], reload: true });
            assert_eq!((manager.show(U, Property::ALL).unwrap(), played.files()), (before.clone(), vec![]));
            assert!(manager.state(U).unwrap().needs_reload, "what went is among what it has read");
            assert!(manager.reload().unwrap());
            assert!(!manager.state(U).unwrap().needs_reload);
            assert_eq!(manager.show(U, Property::ALL).unwrap(), before);
            assert_eq!(manager.revert(U, &held).unwrap(), Reverted::default(), "twice");
        }
    }

    /// The kernel's file keeps a line of a device that is named no more.
    #[test]
    fn a_device_has_the_weight_of_its_unit_before_it_has_none() {
        let played = Played::new(true);
        played.unit(U, false, &[(Property::IOWeight, number(300))]);
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &some("0")[3..4]);
        played.stage().heard.clear();
        // The first of two calls is refused: then nothing else is done.
        played.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.Failed"));
        manager.revert(U, &held).unwrap_err();
        assert_eq!(played.stage().heard, ["SetUnitProperties"]);
        manager.revert(U, &held).unwrap();
        assert_eq!(played.stage().heard.len(), 3);
        assert_eq!(played.value(U, Property::IODeviceWeight), Property::IODeviceWeight.nothing());
    }

    #[test]
    fn what_somebody_had_set_at_run_time_before_is_there_again() {
        let played = Played::new(true);
        played.unit(U, false, &[]);
        played.set(U, Property::CPUWeight, number(77));
        let file = played.drop_in(U, Property::CPUWeight);
        let content = fs::read_to_string(&file).unwrap() + "# by hand\n";
        fs::write(&file, &content).unwrap();
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &some("0-3")[..1]);
        assert_eq!(played.value(U, Property::CPUWeight), number(200));
        manager.revert(U, &held).unwrap();
        assert_eq!(
            (played.value(U, Property::CPUWeight), fs::read_to_string(&file).unwrap()),
            (number(77), content)
        );
    }

    #[test]
    fn what_an_administrator_has_set_meanwhile_stays() {
        let played = Played::new(true);
        played.unit(U, false, &[]);
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &some("0-3"));
        // One by `set-property --runtime`, one by another file, which leaves ours as it is.
        played.set(U, Property::CPUWeight, number(500));
        played.stage().units.get_mut(U).unwrap().now.insert(Property::MemoryMin, number(5));
        let reverted = manager.revert(U, &held).unwrap();
        let left = vec![(Property::CPUWeight, number(500)), (Property::MemoryMin, number(5))];
        let set = vec![Property::AllowedCPUs, Property::IODeviceWeight, Property::IOReadBandwidthMax];
        assert_eq!(reverted, Reverted { properties: 3, set, left, reload: true });
        assert_eq!(played.files(), ["user-7.slice.d", "50-CPUWeight.conf"]);
        assert_eq!(played.value(U, Property::CPUWeight), number(500));
    }

    fn rates(all: &[(&str, u64)]) -> Value {
        Value::Devices(all.iter().map(|(disk, rate)| ((*disk).to_owned(), *rate)).collect())
    }

    /// Ours are of two disks, and an administrator's of a third: `--runtime`, or in a file that lasts.
    #[test]
    fn of_a_list_to_which_an_administrator_added_ours_goes() {
        for lasts in [false, true] {
            let played = Played::new(true);
            played.unit(U, false, &[]);
            let mut manager = Manager::new(played.whose());
            let held = hold(&mut manager, U, &some("0-3")[4..]);
            let (property, theirs) = (Property::IOReadBandwidthMax, rates(&[("/dev/sdc", 3)]));
            match lasts {
                false => played.set(U, property, theirs.clone()),
                true => played.set_lasting(U, property, theirs.clone()),
            }
            let all = rates(&[("/dev/sda", 9), ("/dev/sdb", 7), ("/dev/sdc", 3)]);
            assert_eq!(played.value(U, property), all, "systemd adds to what is there");
            let reverted = manager.revert(U, &held).unwrap();
            let left = vec![(property, theirs.clone())];
            assert_eq!(reverted, Reverted { properties: 0, set: vec![], left, reload: lasts });
            assert_eq!(played.value(U, property), theirs);
            manager.reload().unwrap();
            assert_eq!(played.value(U, property), theirs, "the files say the same");
            assert_eq!(played.files().is_empty(), lasts, "{:?}", played.files());
        }
    }

    /// `IOReadBandwidthMax=/dev/sda infinity`: one of ours is gone, and nobody has set anything.
    #[test]
    fn of_a_list_from_which_something_was_taken_the_rest_goes() {
        let played = Played::new(true);
        played.unit(U, false, &[(Property::IOReadBandwidthMax, rates(&[("/dev/sdc", 3)]))]);
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &some("0-3")[4..]);
        let some = rates(&[("/dev/sdb", 7), ("/dev/sdc", 3)]);
        played.stage().units.get_mut(U).unwrap().now.insert(Property::IOReadBandwidthMax, some);
        let reverted = manager.revert(U, &held).unwrap();
        let set = vec![Property::IOReadBandwidthMax];
        assert_eq!(reverted, Reverted { properties: 1, set, left: vec![], reload: true });
        assert_eq!(played.value(U, Property::IOReadBandwidthMax), rates(&[("/dev/sdc", 3)]));
    }

    #[test]
    fn of_a_systemd_unit_that_is_gone_the_files_go() {
        let played = Played::new(true);
        played.unit(U, false, &[]);
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &some("0-3"));
        played.stage().units.clear();
        let reverted = manager.revert(U, &held).unwrap();
        assert_eq!(reverted, Reverted { properties: 5, set: vec![], left: vec![], reload: false });
        assert_eq!(played.files(), [""; 0]);
    }

    #[test]
    fn a_value_that_only_a_file_can_say_comes_back_with_the_files() {
        let played = Played::new(true);
        let nothing = (Property::MemoryMax, number(0));
        played.unit(U, false, std::slice::from_ref(&nothing));
        let mut manager = Manager::new(played.whose());
        let held = hold(&mut manager, U, &[(Property::MemoryMax, number(7))]);
        assert!(manager.revert(U, &held).unwrap().reload);
        manager.reload().unwrap();
        assert_eq!(manager.show(U, &[Property::MemoryMax]).unwrap(), [nothing]);
    }
}
