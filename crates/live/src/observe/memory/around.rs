//! How much memory may be used below a place that is bounded: in a container, or in a slice that others use too.
//!
//! Problem: a control group may use what it and each of those that enclose it are bounded to, less what others already
//! hold there. The tightest bound alone does not tell: others may nearly have used up a wider one.
//!
//! Algorithm: for each enclosing control group with a bound, take the bound, less what is charged there and not to our
//! units. The least of these counts. Pages of files that are not ours are not counted as held, as on a whole machine
//! ([`super::machine`]): the kernel gives them up at the bound.
//!
//! Limits: an enclosing control group's files may not be openable; then only its bound is known. Of those above the
//! mount, not even that is known.

use std::path::{Path, PathBuf};

use super::facts::{Charged, Group, bound_of};
use super::source::Buffer;
use crate::LiveError;

/// The control groups from a place up to the mount that tell what they are charged, the place's own first.
#[derive(Debug)]
pub(crate) struct Around(Vec<(PathBuf, Group)>);

impl Around {
    /// Fails where the place's own files cannot be opened. The hierarchy's root has none.
    pub(crate) fn open(base: &Path, mount: &Path) -> Result<Around, LiveError> {
        let mut groups = vec![(base.to_owned(), Group::open(base)?)];
        let above = base.ancestors().skip(1).take_while(|dir| dir.starts_with(mount));
        groups.extend(above.filter_map(|dir| Some((dir.to_owned(), Group::open(dir).ok()?))));
        Ok(Around(groups))
    }

    /// What our units may be charged in all, in bytes; `ours` is what they are. `None`: nothing here is bounded.
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

/// What others hold of a control group that encloses ours, in bytes, without what the kernel takes from them when asked.
fn held_beside(all: &Charged, ours: &Charged) -> u64 {
    let beside = all.current.saturating_sub(ours.current);
    beside.saturating_sub(all.cached.saturating_sub(ours.cached))
}
