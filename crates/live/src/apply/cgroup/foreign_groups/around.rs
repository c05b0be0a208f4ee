//! Memory protection of the ancestors of foreign groups.
//!
//! The kernel protects a control group at most as much as its ancestors. So each ancestor gets the sum of the protection of all
//! foreign groups below it. Protection that an administrator has set on an ancestor is left alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ForeignGroups, MEMORY_FILES, note, systemd_unit_of};
use crate::LiveError;
use crate::apply::cgroup::knob;
use crate::host;
use crate::observe::knob::{failed, read};
use crate::systemd::{Property, Value};
use crate::undo::journal::{Entry, Journal, record};

impl ForeignGroups {
    /// Whether a file of an ancestor was written here, and an administrator has not set protection there since.
    fn keeps_around(&self, group: &Path, file: &str) -> bool {
        let by_others = || {
            let (properties, unit) = (self.properties.as_ref()?, systemd_unit_of(&self.mount, group)?);
            properties.set_by_others(&unit).map(|set| set.kept)
        };
        self.recorded.contains(&group.join(file)) && by_others() != Some(true)
    }

    /// Protects ancestors as much as the foreign groups below them.
    pub(super) fn keep_around(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        self.forget_around(journal)?;
        let mut sums: BTreeMap<PathBuf, (u64, u64)> =
            self.around.keys().map(|group| (group.clone(), (0, 0))).collect();
        for group in self.groups.iter().filter(|group| group.kept != (0, 0)) {
            let above = group.dir.ancestors().skip(1);
            for dir in above.take_while(|above| above.starts_with(&self.mount) && *above != self.mount) {
                let sum = sums.entry(dir.to_owned()).or_default();
                *sum = (sum.0.saturating_add(group.kept.0), sum.1.saturating_add(group.kept.1));
            }
        }
        let mut done = Ok(());
        for (group, (min, low)) in &sums {
            for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
                let kept = self.keep_in(group, file, *bytes, journal);
                // The group may have been removed meanwhile.
                done = done.and(if host::is_dir(group) { kept } else { Ok(()) });
            }
        }
        if self.around != sums {
            (self.around, self.around_unsent_since) = (sums, Some(self.now));
        }
        done
    }

    fn keep_in(
        &mut self,
        group: &Path,
        file: &str,
        bytes: u64,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let path = group.join(file);
        let original = read(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
        // Protection that was set before is left alone.
        if self.recorded.contains(&path) {
            if !self.keeps_around(group, file) {
                return Ok(());
            }
        } else if original != "0" {
            return Ok(());
        }
        note(&mut self.recorded, &path, &original, journal)?;
        knob::put(&path, &bytes.to_string())
    }

    /// Forgets ancestors that have been removed.
    fn forget_around(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        let gone: Vec<PathBuf> = self.around.keys().filter(|group| !host::is_dir(group)).cloned().collect();
        for group in gone {
            self.around.remove(&group);
            if let (Some(properties), Some(unit)) =
                (&mut self.properties, systemd_unit_of(&self.mount, &group))
            {
                properties.leave(&unit);
            }
            let files = MEMORY_FILES.map(|file| group.join(file));
            self.recorded.retain(|path| !files.contains(path));
            record(journal, &files.map(|path| Entry::KnobReleased { path }))?;
        }
        Ok(())
    }

    /// Sends the protection of ancestors to systemd.
    pub(super) fn send_around(&mut self) {
        let mut wants = Vec::new();
        for (group, (min, low)) in &self.around {
            let Some(unit) = systemd_unit_of(&self.mount, group) else { continue };
            for (file, property, bytes) in
                [("memory.low", Property::MemoryLow, low), ("memory.min", Property::MemoryMin, min)]
            {
                if self.keeps_around(group, file) {
                    wants.push((unit.clone(), property, Value::Number(*bytes)));
                }
            }
        }
        if let Some(properties) = &mut self.properties {
            for (unit, property, value) in wants {
                properties.want(&unit, property, value);
            }
        }
    }

    /// Rewrites the protection of an ancestor after systemd has written its files.
    pub(super) fn rewrite_around(&self, unit: &str) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let around = self
            .around
            .iter()
            .find(|(group, _)| systemd_unit_of(&self.mount, group).as_deref() == Some(unit));
        if let Some((group, (min, low))) = around {
            for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
                if self.keeps_around(group, file) && host::is_dir(group) {
                    problems.extend(knob::put(&group.join(file), &bytes.to_string()).err());
                }
            }
        }
        problems
    }
}
