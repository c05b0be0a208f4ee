//! Which number a unit has in the scheduler's tables.
//!
//! Terms: a *slot* is such a number. [`KERNEL`] and [`COMMON`] are those of the common parts, which have no cgroup of
//! ours. Others are held by units that have one. Contracts number units anew at every reload, so a slot goes by the
//! unit's path.
//!
//! Properties (tested): a slot is one unit's as long as that unit lives. No other unit gets it until that unit's
//! cgroup is gone, since there may be tasks in it until then. Free slots are taken lowest first, so that the tables
//! stay small.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use commonhold_dispatch::{COMMON, KERNEL};

use crate::host;

/// The first slot that is not a common part's.
const FIRST: u32 = if COMMON > KERNEL { COMMON + 1 } else { KERNEL + 1 };

/// One unit, and where its processes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its number.
    pub(super) number: u32,
    /// Its cgroup: the directory, and that directory's inode, by which the scheduler knows it.
    pub(super) dir: PathBuf,
    pub(super) cgroup: u64,
}

/// The slots of all units.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// By the unit's path; enclosers stand before their sub-units.
    held: BTreeMap<String, Slot>,
    /// Of units that the contract has no more.
    leaving: Vec<Slot>,
}

impl Slots {
    /// The slot of a unit whose cgroup is that directory: the one that it has, or the first free one. The cgroup's inode is
    /// looked up; one that cannot be, as where the cgroup could not be made, is 0, which is no cgroup's.
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

    /// The units that are none of these give their slots up. The slots, which stay taken until [`Slots::give_back`].
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) -> Vec<u32> {
        let (kept, leaving) = std::mem::take(&mut self.held).into_iter().partition(|(unit, _)| keep(unit));
        self.held = kept;
        let leaving: BTreeMap<String, Slot> = leaving;
        let numbers = leaving.values().map(|slot| slot.number).collect();
        // Sub-units before their enclosers, as they are given back.
        self.leaving.extend(leaving.into_values().rev());
        numbers
    }

    /// The slots that were given up and whose cgroups are gone, sub-units before their enclosers.
    pub(super) fn gone(&self) -> Vec<Slot> {
        self.leaving.iter().filter(|slot| inode(&slot.dir) != Some(slot.cgroup)).cloned().collect()
    }

    /// A slot that was given up may be taken by another unit.
    pub(super) fn give_back(&mut self, number: u32) {
        self.leaving.retain(|slot| slot.number != number);
    }

    /// Every unit's number, enclosers before their sub-units.
    pub(super) fn held(&self) -> impl Iterator<Item = u32> {
        self.held.values().map(|slot| slot.number)
    }

    /// How many numbers are in use, free ones below the highest included.
    pub(super) fn count(&self) -> u32 {
        self.all().map(|slot| slot.number + 1).max().unwrap_or(FIRST)
    }

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
    host::look(dir).ok().map(|found| found.ino())
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
    fn a_slot_is_reused_once_its_cgroup_is_gone_and_not_before() {
        let top = tempfile::tempdir().unwrap();
        let [_, b, c] = ["a", "a/b", "c"].map(|name| make(top.path(), name));
        let mut slots = Slots::default();
        assert_eq!(["a", "a/b", "c"].map(|unit| slots.take(unit, &top.path().join(unit)).number), [2, 3, 4]);
        assert_eq!(slots.retain(|unit| unit == "c"), [2, 3]);
        assert!(slots.gone().is_empty());
        assert_eq!(slots.take("d", &make(top.path(), "d")).number, 5);
        std::fs::remove_dir(&b).unwrap();
        let gone: Vec<u32> = slots.gone().iter().map(|slot| slot.number).collect();
        assert_eq!(gone, [3]);
        assert_eq!(slots.take("e", &make(top.path(), "e")).number, 6, "gone, but not given back yet");
        slots.give_back(3);
        assert_eq!(slots.take("f", &make(top.path(), "f")).number, 3);
        assert_eq!((slots.take("c", &c).number, slots.count()), (4, 7));
    }

    /// Somebody made the directory anew: what the old one's number says, says nothing of this one.
    #[test]
    fn a_cgroup_is_its_inode_and_not_its_name() {
        let top = tempfile::tempdir().unwrap();
        let a = make(top.path(), "a");
        let mut slots = Slots::default();
        slots.take("a", &a);
        slots.retain(|_| false);
        // The inode's number must not be reused.
        let _other = (std::fs::rename(&a, top.path().join("old")), make(top.path(), "a"));
        assert_eq!(slots.gone().len(), 1);
    }
}
