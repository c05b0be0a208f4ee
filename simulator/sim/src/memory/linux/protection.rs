//! Effective protection: what is in force of memory.min and memory.low, given what encloses a unit.
//!
//! Problem: a unit's sub-units may be promised more than it is promised itself.
//!
//! Terms: each unit is a control group with its sub-units. Where it has any, its own processes are a group beside
//! them. All top-level units are in one group, whose setting is the sum of theirs, as on the live machine. `shared` memory is
//! outside. A group *claims* the smaller of its use and its setting.
//!
//! Algorithm, from the top down:
//! - What siblings claim is theirs while what encloses them is protected of as much. Else each gets its part of that,
//!   in proportion to its claim.
//! - What they leave unclaimed protects those of them that use more than their setting, in proportion to how much
//!   more. Linux does this where it is mounted with `memory_recursiveprot`, as systemd does.
//!
//! Properties (tested): a group is protected of no more than what encloses it; siblings together of no more, either.
//!
//! Source: Linux 6.12, `mm/page_counter.c` (`effective_protection`); cgroup-v2.rst, "`memory_recursiveprot`".

use commonhold_contract::{Contract, UnitId};

/// Where a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in the tree: a common part.
    Outside,
    /// At the top level.
    Top,
    /// In the unit of that number, which is a smaller one.
    In(usize),
}

/// What is written for a unit, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Setting {
    /// With its sub-units.
    pub(super) whole: u64,
    /// For the group of its own processes, where it has sub-units.
    pub(super) own: u64,
}

/// A group's frames, with what is in it.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    used: u64,
    /// What those directly in it claim.
    claimed: u64,
    /// What it is protected of.
    protected: u64,
}

/// Where each unit of a contract is.
pub(super) fn places(contract: &Contract) -> Vec<Place> {
    let place = |id: UnitId| match contract.unit(id).parent {
        _ if id.is_common() => Place::Outside,
        None => Place::Top,
        Some(parent) => Place::In(parent.index()),
    };
    contract.ids().map(place).collect()
}

/// What each unit's own processes are protected of, which may be more than they use. `used` is without sub-units.
/// All have one element per unit.
pub(super) fn effective(places: &[Place], used: &[u64], settings: &[Setting]) -> Vec<u64> {
    let (mut top, mut groups) = (Group::default(), vec![Group::default(); places.len()]);
    let mut encloses = vec![false; places.len()];
    // A unit stands before its sub-units: going backwards carries sums all the way up.
    for (i, place) in places.iter().enumerate().rev() {
        groups[i].used += used[i];
        if encloses[i] {
            groups[i].claimed += used[i].min(settings[i].own);
        }
        let (all, claim) = (groups[i].used, groups[i].used.min(settings[i].whole));
        let around = match place {
            Place::Outside => continue,
            Place::Top => &mut top,
            Place::In(unit) => {
                encloses[*unit] = true;
                &mut groups[*unit]
            }
        };
        around.used += all;
        around.claimed += claim;
        if *place == Place::Top {
            top.protected += settings[i].whole;
        }
    }
    let mut own = vec![0; places.len()];
    for (i, place) in places.iter().enumerate() {
        let around = match place {
            Place::Outside => continue,
            Place::Top => top,
            Place::In(unit) => groups[*unit],
        };
        groups[i].protected = part(groups[i].used, settings[i].whole, around);
        own[i] = if encloses[i] { part(used[i], settings[i].own, groups[i]) } else { groups[i].protected };
    }
    own
}

/// The effective protection of a group with this use and setting, given that of the group around it.
fn part(used: u64, setting: u64, around: Group) -> u64 {
    let claim = used.min(setting);
    if around.claimed > around.protected {
        return scaled(claim, around.protected, around.claimed);
    }
    let (unclaimed, beyond) = (around.protected - around.claimed, used - claim);
    claim + scaled(unclaimed, beyond, around.used.saturating_sub(around.claimed))
}

/// `whole * part / of`; nothing of nothing.
fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    let scaled = (u128::from(whole) * u128::from(part)).checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
