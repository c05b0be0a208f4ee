//! Effective protection: how much of a unit's memory.min or memory.low is in force, given the protection of
//! its parents.
//!
//! Problem: a unit's sub-units may be promised more than the unit itself.
//!
//! Terms: each unit is a control group that contains its sub-units. If it has sub-units, its own processes
//! are one more group beside them. All top-level units are in one group, whose setting is the sum of theirs,
//! as on the live machine. `shared` memory is outside the tree. A group *claims* the smaller of its use and
//! its setting.
//!
//! Algorithm, from the top down:
//! - If the parent's effective protection covers the claims of its children, each child gets its claim.
//!   Otherwise each gets a part of the parent's protection in proportion to its claim.
//! - The parent's protection beyond the claims protects children that use more than their setting, in
//!   proportion to that excess. Linux does so if the file system is mounted with `memory_recursiveprot`, as
//!   systemd does.
//!
//! Properties (tested): the effective protection of a group, and the sum over siblings, is at most the
//! parent's.
//!
//! Source: Linux 6.12, `mm/page_counter.c` (`effective_protection`); cgroup-v2.rst, "`memory_recursiveprot`".

use commonhold_contract::{Contract, UnitId};

/// A unit's place in the tree of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in the tree: one of the two built-in units.
    Outside,
    /// At the top level.
    Top,
    /// In the unit of this number, which is smaller than its own.
    In(usize),
}

/// The setting of memory.min or memory.low for a unit, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Setting {
    /// For the unit with its sub-units.
    pub(super) whole: u64,
    /// For the group of the unit's own processes, if it has sub-units.
    pub(super) own: u64,
}

/// A group's frames, including the groups in it.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    used: u64,
    /// The sum of its children's claims.
    claimed: u64,
    /// Its effective protection.
    protected: u64,
}

/// The place of each unit of a contract.
pub(super) fn places(contract: &Contract) -> Vec<Place> {
    let place = |id: UnitId| match contract.unit(id).parent {
        _ if id.is_common() => Place::Outside,
        None => Place::Top,
        Some(parent) => Place::In(parent.index()),
    };
    contract.ids().map(place).collect()
}

/// The effective protection of each unit's own processes, which may be more than they use. `used` is without
/// sub-units. All slices have one element per unit.
pub(super) fn effective(places: &[Place], used: &[u64], settings: &[Setting]) -> Vec<u64> {
    let (mut top, mut groups) = (Group::default(), vec![Group::default(); places.len()]);
    let mut has_sub_units = vec![false; places.len()];
    // Uses and claims, bottom up: a unit comes before its sub-units, so going backwards sums them up before
    // the parent.
    for (i, place) in places.iter().enumerate().rev() {
        groups[i].used += used[i];
        if has_sub_units[i] {
            groups[i].claimed += used[i].min(settings[i].own);
        }
        let (used_in_all, claim) = (groups[i].used, groups[i].used.min(settings[i].whole));
        let parent = match place {
            Place::Outside => continue,
            Place::Top => &mut top,
            Place::In(unit) => {
                has_sub_units[*unit] = true;
                &mut groups[*unit]
            }
        };
        parent.used += used_in_all;
        parent.claimed += claim;
        if *place == Place::Top {
            top.protected += settings[i].whole;
        }
    }
    // Effective protections, top down.
    let mut own = vec![0; places.len()];
    for (i, place) in places.iter().enumerate() {
        let parent = match place {
            Place::Outside => continue,
            Place::Top => top,
            Place::In(unit) => groups[*unit],
        };
        groups[i].protected = effective_protection(groups[i].used, settings[i].whole, parent);
        own[i] = match has_sub_units[i] {
            true => effective_protection(used[i], settings[i].own, groups[i]),
            false => groups[i].protected,
        };
    }
    own
}

/// The effective protection of a group with this use and setting.
fn effective_protection(used: u64, setting: u64, parent: Group) -> u64 {
    let claim = used.min(setting);
    if parent.claimed > parent.protected {
        return scaled(claim, parent.protected, parent.claimed);
    }
    let (unclaimed, excess) = (parent.protected - parent.claimed, used - claim);
    claim + scaled(unclaimed, excess, parent.used.saturating_sub(parent.claimed))
}

/// `amount * numerator / denominator`; 0 if the denominator is 0.
fn scaled(amount: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(amount) * u128::from(numerator);
    let scaled = product.checked_div(u128::from(denominator)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
