//! Assigns each unit its *slot*, the unit's number in the scheduler's tables.
//!
//! The slots [`KERNEL`] and [`COMMON`] belong to the built-in units, which have no cgroup; all other slots
//! belong to units with a cgroup. A unit is identified by its path, since unit numbers may change at a
//! reload.
//!
//! Properties (tested): a unit keeps its slot. When a unit leaves the contract, no other unit gets its slot
//! until its cgroup is removed, since tasks may be in the cgroup until then. The lowest free slot is taken
//! first, so that the tables stay small.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use commonhold_dispatch::{COMMON, KERNEL};

use crate::host;

/// The first slot after those of the built-in units.
const FIRST: u32 = if COMMON > KERNEL { COMMON + 1 } else { KERNEL + 1 };

/// The slot of one unit, with the unit's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    /// The slot's number.
    pub(super) number: u32,
    /// The directory of the unit's cgroup.
    pub(super) dir: PathBuf,
    /// The inode of that directory, by which the scheduler identifies the cgroup.
    pub(super) cgroup: u64,
}

/// The slots of all units.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The slots of the contract's units, by unit path. So parents come before their sub-units.
    held: BTreeMap<String, Slot>,
    /// The slots of units that have left the contract, and whose cgroups may still exist.
    leaving: Vec<Slot>,
}

impl Slots {
    /// Returns the slot of the unit `unit` with the cgroup `dir`: the unit's present slot, or the first free
    /// one. If the cgroup does not exist, its inode is 0, which no cgroup has.
    pub(super) fn take(&mut self, unit: &str, dir: &Path) -> Slot {
        let cgroup = inode(dir).unwrap_or(0);
        let number = match self.held.get(unit) {
            Some(slot) => slot.number,
            None => self.first_free(),
        };
        let slot = Slot { number, dir: dir.to_owned(), cgroup };
        self.held.insert(unit.to_owned(), slot.clone());
        slot
    }

    /// Removes the units for whose paths `stays` is false, and returns the numbers of their slots. These
    /// slots stay reserved until [`Slots::give_back`].
    pub(super) fn retain(&mut self, stays: impl Fn(&str) -> bool) -> Vec<u32> {
        let (staying, leaving) =
            std::mem::take(&mut self.held).into_iter().partition(|(unit, _)| stays(unit));
        self.held = staying;
        let leaving: BTreeMap<String, Slot> = leaving;
        let numbers = leaving.values().map(|slot| slot.number).collect();
        // Sub-units before their parents, which is the order in which the slots are freed.
        self.leaving.extend(leaving.into_values().rev());
        numbers
    }

    /// The reserved slots whose cgroups were removed, sub-units before their parents.
    pub(super) fn without_cgroup(&self) -> Vec<Slot> {
        self.leaving.iter().filter(|slot| inode(&slot.dir) != Some(slot.cgroup)).cloned().collect()
    }

    /// Frees a reserved slot for another unit.
    pub(super) fn give_back(&mut self, number: u32) {
        self.leaving.retain(|slot| slot.number != number);
    }

    /// The numbers of the slots of the contract's units, parents before their sub-units.
    pub(super) fn held(&self) -> impl Iterator<Item = u32> {
        self.held.values().map(|slot| slot.number)
    }

    /// The table size in use: the highest slot plus one.
    pub(super) fn count(&self) -> u32 {
        self.all().map(|slot| slot.number + 1).max().unwrap_or(FIRST)
    }

    /// All slots that no new unit may take.
    fn all(&self) -> impl Iterator<Item = &Slot> {
        self.held.values().chain(&self.leaving)
    }

    fn first_free(&self) -> u32 {
        let mut taken: Vec<u32> = self.all().map(|slot| slot.number).collect();
        taken.sort_unstable();
        taken.iter().fold(FIRST, |free, number| if *number == free { free + 1 } else { free })
    }
}

fn inode(dir: &Path) -> Option<u64> {
    host::look(dir).ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn make(top: &Path, name: &str) -> PathBuf {
        let dir = top.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_slot_is_reused_when_its_cgroup_was_removed_and_not_before() {
        let top = tempfile::tempdir().unwrap();
        let [_, b, c] = ["a", "a/b", "c"].map(|name| make(top.path(), name));
        let mut slots = Slots::default();
        assert_eq!(["a", "a/b", "c"].map(|unit| slots.take(unit, &top.path().join(unit)).number), [2, 3, 4]);
        assert_eq!(slots.retain(|unit| unit == "c"), [2, 3]);
        assert!(slots.without_cgroup().is_empty());
        assert_eq!(slots.take("d", &make(top.path(), "d")).number, 5);
        std::fs::remove_dir(&b).unwrap();
        let without_cgroup: Vec<u32> = slots.without_cgroup().iter().map(|slot| slot.number).collect();
        assert_eq!(without_cgroup, [3]);
        assert_eq!(slots.take("e", &make(top.path(), "e")).number, 6, "slot 3 is still reserved");
        slots.give_back(3);
        assert_eq!(slots.take("f", &make(top.path(), "f")).number, 3);
        assert_eq!((slots.take("c", &c).number, slots.count()), (4, 7));
    }

    /// A directory that was made again under the same name is another cgroup.
    #[test]
    fn a_cgroup_is_its_inode_and_not_its_name() {
        let top = tempfile::tempdir().unwrap();
        let a = make(top.path(), "a");
        let mut slots = Slots::default();
        slots.take("a", &a);
        slots.retain(|_| false);
        // Keep the old directory, so that its inode is not reused.
        let _other = (std::fs::rename(&a, top.path().join("old")), make(top.path(), "a"));
        assert_eq!(slots.without_cgroup().len(), 1);
    }
}
