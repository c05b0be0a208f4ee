//! How much memory our units may use below a bounded control group: in a container, or in a slice that others
//! use, too.
//!
//! Problem: a control group's usage is limited by its own bound and by the bounds of its ancestors, where
//! others may already hold memory. The tightest bound alone is not enough: others may have nearly used up a
//! wider bound.
//!
//! Algorithm: each bounded group on the path to the root leaves its bound less the memory charged there to
//! others than our units. The room is the least of these differences. Others' file pages do not count, as on
//! a whole machine ([`super::machine`]), since the kernel reclaims them at the bound.
//!
//! Limits: ancestors whose files cannot be opened are left out. So are ancestors above the mount, which are
//! not visible.

use std::path::{Path, PathBuf};

use super::facts::{Charged, Group, bound_of};
use super::source::Buffer;
use crate::LiveError;

/// The control groups from a base up to the mount whose charge can be read, the base first.
#[derive(Debug)]
pub(crate) struct Around(Vec<(PathBuf, Group)>);

impl Around {
    /// Opens the files of `base` and its ancestors up to `mount`.
    ///
    /// # Errors
    /// The base's own files cannot be opened. The hierarchy's root has no such files.
    pub(crate) fn open(base: &Path, mount: &Path) -> Result<Around, LiveError> {
        let mut groups = vec![(base.to_owned(), Group::open(base)?)];
        let above = base.ancestors().skip(1).take_while(|dir| dir.starts_with(mount));
        groups.extend(above.filter_map(|dir| Some((dir.to_owned(), Group::open(dir).ok()?))));
        Ok(Around(groups))
    }

    /// The largest total that our units may be charged, in bytes; `None` if none of these groups is bounded.
    /// `units` is the present charge of our units.
    pub(crate) fn room(&self, units: &Charged, buffer: &mut Buffer) -> Result<Option<u64>, LiveError> {
        let mut least_room = None;
        for (dir, group) in &self.0 {
            if let Some(bound) = bound_of(dir) {
                let room = bound.saturating_sub(held_by_others(&group.read(buffer)?, units));
                least_room = Some(least_room.map_or(room, |least: u64| least.min(room)));
            }
        }
        Ok(least_room)
    }
}

/// The bytes that others than our units hold in a control group that is charged `all`, without cache that the
/// kernel can reclaim.
fn held_by_others(all: &Charged, units: &Charged) -> u64 {
    let of_others = all.current.saturating_sub(units.current);
    of_others.saturating_sub(all.cached.saturating_sub(units.cached))
}
