//! How this machine measures use of caches and cores, for gangs that are chosen by their use of caches or cores.

use std::io;

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row, State};

use super::bus::{MOUNTS, has_flag, is_mountable};
use super::context::{Capability, Context};
use super::resources::plain;
use crate::host;
use crate::observe::bus::resctrl::{counts_occupancy, group_count, mounted};

const CACHE: &str = "cache held by jobs";
const CORES: &str = "instructions of jobs";

/// The rows about measuring jobs. `instructions` is the result of opening a counter of instructions for this process.
pub(super) fn rows(context: &Context, instructions: io::Result<()>) -> [Row; 2] {
    [cache_use(context), core_use(context, instructions)]
}

/// The row that says whether the processor counts the cache lines that a job occupies.
fn cache_use(context: &Context) -> Row {
    let area = Area::Bus;
    let no = |why: &str| {
        Row::no(
            area,
            CACHE,
            format!("{why}; with `gangs-share = \"cache\"`, a job is assumed to hold `first-rate`"),
        )
        .remedy("choose gangs by another `gangs-share`")
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

/// The row that says whether the daemon can count the instructions that a job executes.
fn core_use(context: &Context, instructions: io::Result<()>) -> Row {
    let area = Area::Bus;
    let no = |why: String| {
        Row::no(
            area,
            CORES,
            format!(
                "{why}; with `gangs-share = \"cores\"`, all jobs are assumed to execute at the same rate"
            ),
        )
    };
    match instructions {
        Ok(()) if context.status.has(Capability::Perfmon) || context.status.has(Capability::SysAdmin) => {
            Row::yes(area, CORES, "counted by the daemon for 512 threads of any user, outside the kernel")
        }
        Ok(()) => Row::partly(area, CORES, "counted by the daemon for 512 threads of our own processes only")
            .remedy("run as root"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            no("forbidden by kernel.perf_event_paranoid".to_owned())
                .remedy("sysctl kernel.perf_event_paranoid=2")
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            no("the processor, or the virtual machine, cannot count them".to_owned())
                .remedy("choose gangs by another `gangs-share`")
        }
        Err(error) => no(format!("they cannot be counted: {}", plain(&error))),
    }
}

/// The rows about the caches and cores that jobs share.
pub(super) fn machine_rows(machine: &Machine) -> [Row; 2] {
    let area = Area::Bus;
    let caches = match machine.cache_bytes() {
        Some(bytes) => Row::yes(area, "size of last-level caches", format!("{} MiB in all", bytes >> 20)),
        None => Row {
            state: State::Partly,
            ..Row::no(
                area,
                "size of last-level caches",
                "the kernel does not show it; 2 MiB are assumed for each CPU",
            )
        },
    };
    let (cpus, cores) = (machine.cpus.len(), machine.cores());
    let cores = if cpus > cores {
        Row::yes(area, "cores shared", format!("{cpus} hardware threads on {cores} cores"))
    } else {
        let reason = "each CPU is a separate core: `gangs-share = \"cores\"` gains nothing here";
        Row::no(area, "cores shared", reason)
    };
    [caches, cores]
}
