//! A consistency check of memory: the counts of units are compared with sums over spaces and files.

use commonhold_contract::UnitId;

use super::{Memory, UnitPages};

impl Memory {
    /// Checks that frames are conserved and sums agree. The error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let used: u64 = self.units.iter().map(|unit| unit.used).sum();
        if used + self.free != self.frames {
            return Err(format!("{used} frames used and {} free are not {}", self.free, self.frames));
        }
        let mut units = vec![UnitPages::default(); self.units.len()];
        units[UnitId::KERNEL.index()].used = self.kernel;
        for space in &self.spaces {
            let unit = &mut units[space.unit.index()];
            unit.used += space.charged();
            unit.leaving += space.leaving;
            unit.spaces += u64::from(space.open);
        }
        for owned in self.files.iter().flat_map(|file| &file.owned) {
            let unit = &mut units[owned.unit.index()];
            unit.used += owned.charged();
            unit.leaving += owned.leaving;
            unit.writing += owned.writing;
        }
        let figures = |unit: &UnitPages| (unit.used, unit.leaving, unit.writing, unit.spaces);
        for (i, (counted, summed)) in self.units.iter().zip(&units).enumerate() {
            if figures(counted) != figures(summed) {
                return Err(format!(
                    "unit {i}: used, leaving, writing, spaces are told as {:?} but add up to {:?}",
                    figures(counted),
                    figures(summed)
                ));
            }
        }
        self.check_nodes()?;
        self.check_files()?;
        self.check_orders()
    }

    /// How many processes of a unit have memory.
    pub fn spaces(&self, unit: UnitId) -> u64 {
        self.units[unit.index()].spaces
    }

    /// How many pages are being written, whether they leave or stay: the sum over all page-outs in flight.
    pub fn being_written(&self) -> u64 {
        self.units.iter().map(|unit| unit.leaving + unit.writing).sum()
    }

    fn check_files(&self) -> Result<(), String> {
        for (i, file) in self.files.iter().enumerate() {
            if file.cached() > file.pages {
                return Err(format!("file {i} has {} pages and {} in the cache", file.pages, file.cached()));
            }
            if !file.evictions_are_consistent() {
                return Err(format!("file {i}: more pages were taken than are missing"));
            }
            if !file.open && file.clean() + file.dirty() > 0 {
                return Err(format!("file {i} is removed but has pages in the cache"));
            }
        }
        Ok(())
    }
}
