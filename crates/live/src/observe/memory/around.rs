//! How much memory may be used below a bounded control group: in a container, or in a slice that others use, too.
//!
//! Problem: a control group's usage is limited by its own bound and by those of its ancestors, where others may already hold
//! memory. The tightest bound alone is not enough: others may have nearly used up a wider one.
//!
//! Algorithm: for each bounded group on the path to the root, take the bound less what is charged there to others than our units.
//! The least of these is the room. Others' file pages do not count as held, as on a whole machine ([`super::machine`]), since
//! the kernel reclaims them at the bound.
//!
//! Limits: ancestors whose files cannot be opened are left out. So are ancestors above the mount, which are not visible.

use std::path::{Path, PathBuf};

use super::facts::{Charged, Group, bound_of};
use super::source::Buffer;
use crate::LiveError;

/// The control groups from a base up to the mount whose charge can be read, the base first.
#[derive(Debug)]
pub(crate) struct Around(Vec<(PathBuf, Group)>);

impl Around {
    /// # Errors
    /// The base's own files cannot be opened. The hierarchy's root has none.
    pub(crate) fn open(base: &Path, mount: &Path) -> Result<Around, LiveError> {
        let mut groups = vec![(base.to_owned(), Group::open(base)?)];
        let above = base.ancestors().skip(1).take_while(|dir| dir.starts_with(mount));
        groups.extend(above.filter_map(|dir| Some((dir.to_owned(), Group::open(dir).ok()?))));
        Ok(Around(groups))
    }

    /// The most that our units may be charged in total, in bytes; `ours` is their present charge. `None`: no group here is
    /// bounded.
    pub(crate) fn room(&self, ours: &Charged, buffer: &mut Buffer) -> Result<Option<u64>, LiveError> {
        let mut least = None;
        for (dir, group) in &self.0 {
            if let Some(bound) = bound_of(dir) {
                let room = bound.saturating_sub(held_beside(&group.read(buffer)?, ours));
                least = Some(least.map_or(room, |least: u64| least.min(room)));
            }
        }
        Ok(least)
    }
}

/// What others hold in a control group that encloses ours, in bytes, without what the kernel can reclaim.
fn held_beside(all: &Charged, ours: &Charged) -> u64 {
    let beside = all.current.saturating_sub(ours.current);
    beside.saturating_sub(all.cached.saturating_sub(ours.cached))
}
