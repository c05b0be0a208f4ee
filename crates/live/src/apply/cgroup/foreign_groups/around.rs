//! Memory protection of the ancestors of foreign groups.
//!
//! The kernel protects a control group's memory at most as much as its ancestors' memory. So each ancestor of
//! foreign groups gets the sum of their protection (`memory.min` and `memory.low`). Protection that an
//! administrator has set on an ancestor is left alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ForeignGroups, MEMORY_FILES, record_original, systemd_unit_of};
use crate::LiveError;
use crate::apply::cgroup::knob;
use crate::host;
use crate::observe::knob::{failed, read};
use crate::systemd::{Property, Value};
use crate::undo::journal::{Entry, Journal, record};

impl ForeignGroups {
    /// Whether the protection in an ancestor's file is ours: we wrote it, and no administrator has set
    /// protection there since.
    fn is_ancestor_protection_ours(&self, group: &Path, file: &str) -> bool {
        let is_set_by_others = || {
            let (properties, unit) = (self.properties.as_ref()?, systemd_unit_of(&self.mount, group)?);
            properties.set_by_others(&unit).map(|set| set.kept)
        };
        self.recorded.contains(&group.join(file)) && is_set_by_others() != Some(true)
    }

    /// Sets the protection of all ancestors to the sum of the protection of the foreign groups below them.
    pub(super) fn protect_ancestors(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        self.forget_ancestors(journal)?;
        // An ancestor without protected groups any more gets 0.
        let mut sums: BTreeMap<PathBuf, (u64, u64)> =
            self.ancestors.keys().map(|group| (group.clone(), (0, 0))).collect();
        for group in self.groups.iter().filter(|group| group.protection != (0, 0)) {
            let ancestors = group.dir.ancestors().skip(1);
            for dir in ancestors.take_while(|dir| dir.starts_with(&self.mount) && *dir != self.mount) {
                let (min, low) = sums.entry(dir.to_owned()).or_default();
                *min = min.saturating_add(group.protection.0);
                *low = low.saturating_add(group.protection.1);
            }
        }
        let mut result = Ok(());
        for (group, (min, low)) in &sums {
            for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
                let written = self.protect_ancestor(group, file, *bytes, journal);
                // The group may have been removed meanwhile.
                result = result.and(if host::is_dir(group) { written } else { Ok(()) });
            }
        }
        if self.ancestors != sums {
            (self.ancestors, self.ancestors_unsent_since) = (sums, Some(self.now));
        }
        result
    }

    /// Writes the protection of an ancestor, unless an administrator has set protection there.
    fn protect_ancestor(
        &mut self,
        group: &Path,
        file: &str,
        bytes: u64,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let path = group.join(file);
        let original = read(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
        if self.recorded.contains(&path) {
            if !self.is_ancestor_protection_ours(group, file) {
                return Ok(());
            }
        } else if original != "0" {
            return Ok(());
        }
        record_original(&mut self.recorded, &path, &original, journal)?;
        knob::put(&path, &bytes.to_string())
    }

    /// Forgets ancestors that have been removed.
    fn forget_ancestors(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        let removed: Vec<PathBuf> =
            self.ancestors.keys().filter(|group| !host::is_dir(group)).cloned().collect();
        for group in removed {
            self.ancestors.remove(&group);
            if let (Some(properties), Some(unit)) =
                (&mut self.properties, systemd_unit_of(&self.mount, &group))
            {
                properties.end_holding(&unit);
            }
            let files = MEMORY_FILES.map(|file| group.join(file));
            self.recorded.retain(|path| !files.contains(path));
            record(journal, &files.map(|path| Entry::KnobReleased { path }))?;
        }
        Ok(())
    }

    /// Sends the protection of ancestors to systemd.
    pub(super) fn send_ancestors(&mut self) {
        let mut to_send = Vec::new();
        for (group, (min, low)) in &self.ancestors {
            let Some(unit) = systemd_unit_of(&self.mount, group) else { continue };
            for (file, property, bytes) in
                [("memory.low", Property::MemoryLow, low), ("memory.min", Property::MemoryMin, min)]
            {
                if self.is_ancestor_protection_ours(group, file) {
                    to_send.push((unit.clone(), property, Value::Number(*bytes)));
                }
            }
        }
        if let Some(properties) = &mut self.properties {
            for (unit, property, value) in to_send {
                properties.want(&unit, property, value);
            }
        }
    }

    /// Writes the protection of an ancestor again, because systemd has written the files of the systemd unit
    /// `unit`.
    pub(super) fn rewrite_ancestor(&self, unit: &str) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let ancestor = self
            .ancestors
            .iter()
            .find(|(group, _)| systemd_unit_of(&self.mount, group).as_deref() == Some(unit));
        if let Some((group, (min, low))) = ancestor {
            for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
                if self.is_ancestor_protection_ours(group, file) && host::is_dir(group) {
                    problems.extend(knob::put(&group.join(file), &bytes.to_string()).err());
                }
            }
        }
        problems
    }
}
