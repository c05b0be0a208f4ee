//! What is kept for the control groups around places.
//!
//! A kernel guarantees a group no more than it guarantees those around it. So what protects places' memory protects the groups
//! around them, as much as all places in them together. What an administrator keeps there is left alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{MEMORY_FILES, Places, note, systemds};
use crate::LiveError;
use crate::apply::cgroup::knob;
use crate::host;
use crate::observe::knob::{failed, read};
use crate::systemd::{Property, Value};
use crate::undo::journal::{Entry, Journal, record};

impl Places {
    /// Whether a file of a group around places was written here. What an administrator keeps there is left alone.
    fn keeps_around(&self, group: &Path, file: &str) -> bool {
        let by_others = || {
            let (properties, unit) = (self.properties.as_ref()?, systemds(&self.mount, group)?);
            properties.set_by_others(&unit).map(|set| set.kept)
        };
        self.recorded.contains(&group.join(file)) && by_others() != Some(true)
    }

    /// Keeps for the groups around places what is kept in them.
    pub(super) fn keep_around(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        self.forget_around(journal)?;
        let mut sums: BTreeMap<PathBuf, (u64, u64)> =
            self.around.keys().map(|group| (group.clone(), (0, 0))).collect();
        for spot in self.spots.iter().filter(|spot| spot.kept != (0, 0)) {
            let above = spot.dir.ancestors().skip(1);
            for group in above.take_while(|above| above.starts_with(&self.mount) && *above != self.mount) {
                let sum = sums.entry(group.to_owned()).or_default();
                *sum = (sum.0.saturating_add(spot.kept.0), sum.1.saturating_add(spot.kept.1));
            }
        }
        let mut done = Ok(());
        for (group, (min, low)) in &sums {
            for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
                let kept = self.keep_in(group, file, *bytes, journal);
                // One that has gone since needs nothing.
                done = done.and(if host::is_dir(group) { kept } else { Ok(()) });
            }
        }
        if self.around != sums {
            (self.around, self.around_untold_since) = (sums, Some(self.now));
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
        // What somebody keeps there already is left alone.
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

    /// Groups around places that have gone.
    fn forget_around(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        let gone: Vec<PathBuf> = self.around.keys().filter(|group| !host::is_dir(group)).cloned().collect();
        for group in gone {
            self.around.remove(&group);
            if let (Some(properties), Some(unit)) = (&mut self.properties, systemds(&self.mount, &group)) {
                properties.leave(&unit);
            }
            let files = MEMORY_FILES.map(|file| group.join(file));
            self.recorded.retain(|path| !files.contains(path));
            record(journal, &files.map(|path| Entry::KnobReleased { path }))?;
        }
        Ok(())
    }

    /// Tells systemd what is kept.
    pub(super) fn tell_around(&mut self) {
        let mut wants = Vec::new();
        for (group, (min, low)) in &self.around {
            let Some(unit) = systemds(&self.mount, group) else { continue };
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

    /// systemd has written a unit's files: they are to say what is kept.
    pub(super) fn write_around_again(&self, unit: &str) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let around =
            self.around.iter().find(|(group, _)| systemds(&self.mount, group).as_deref() == Some(unit));
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
