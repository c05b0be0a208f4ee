//! How this machine measures the use of caches, for gangs that are chosen by their use of caches.

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row, State};

use super::bus::{MOUNTS, has_flag, is_mountable};
use super::context::Context;
use crate::host;
use crate::observe::bus::resctrl::{counts_occupancy, group_count, mounted};

const CACHE: &str = "cache held by jobs";

/// The row that says whether the processor counts the cache lines that a job occupies.
pub(super) fn cache_use(context: &Context) -> Row {
    let area = Area::Bus;
    let no = |why: &str| {
        Row::no(
            area,
            CACHE,
            format!("{why}; with `gangs-share = \"cache\"`, a job is assumed to hold `first-rate`"),
        )
        .remedy("choose gangs by `gangs-share = \"bus\"`")
    };
    let Some(mount) = mounted(&context.tree) else {
        return match has_flag(context, &["cqm_occup_llc"]) {
            true if is_mountable(context) => Row::yes(area, CACHE, format!("by llc_occupancy: {MOUNTS}")),
            true => no("the processor counts it, and resctrl is not mounted"),
            false => no("the processor, or the virtual machine, does not count it (no flag `cqm_occup_llc`)"),
        };
    };
    if !counts_occupancy(&mount.point) {
        return no("resctrl is mounted, but counts no llc_occupancy (info/L3_MON/mon_features)");
    }
    if !host::may_write(&mount.point.join("tasks")) {
        return no("resctrl is mounted, and this user may not write there").remedy("run as root");
    }
    let groups = group_count(&mount.point).unwrap_or(0).saturating_sub(1);
    let reason =
        format!("llc_occupancy counts it for {groups} groups, units and jobs together, in steps of some KiB");
    Row::yes(area, CACHE, reason)
}

/// The row about the size of the last-level caches.
pub(super) fn cache_size(machine: &Machine) -> Row {
    let (area, name) = (Area::Bus, "size of last-level caches");
    match machine.cache_bytes() {
        Some(bytes) => Row::yes(area, name, format!("{} MiB in all", bytes >> 20)),
        None => Row {
            state: State::Partly,
            ..Row::no(area, name, "the kernel does not show it; 2 MiB are assumed for each CPU")
        },
    }
}
