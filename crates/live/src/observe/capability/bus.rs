//! What this machine tells of the memory bus, and how it slows units down there.
//!
//! There are four ways to know what is transferred, and the rows of the first three begin with the best. By units: a processor
//! counts what groups transfer. By jobs: it counts what their threads fetch. By programs: they tell it. Where none of these
//! measures, it is assumed.

use std::io;

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row, State};

use super::context::{Capability, Context};
use super::resources::plain;
use crate::host;
use crate::observe::bus::capacity::known;
use crate::observe::bus::resctrl::{FOLDER, event, mounted, throttle};

/// Where others had more of the CPUs' time than that while the bus was measured, in percent, it may carry more.
const OTHERS_PERCENT: u64 = 5;

/// The row that says whether the processor slows units down.
pub(super) const CAP: &str = "units slowed down";

const TELL: &str =
    "start programs with LD_PRELOAD=libcommonhold-gang.so, or have them tell it (docs/gangs.md)";

/// The rows about the memory bus: the four ways, and what they stand on. `counter` is what opening a counter of our own said.
pub(super) fn rows(context: &Context, counter: io::Result<()>) -> Vec<Row> {
    let counts = counters(context, counter);
    vec![
        by_units(context),
        by_jobs(&counts),
        by_programs(&counts),
        assumed(),
        slowed_down(context),
        feature(context, "bandwidth meter (MBM)", &METERS, "measure the bus use of a group"),
        feature(context, "bandwidth cap (MBA)", &["mba"], "cap the bus use of a group"),
        resctrl(context),
        counts,
    ]
}

const METERS: [&str; 2] = ["cqm_mbm_total", "cqm_mbm_local"];

pub(super) fn has_flag(context: &Context, flags: &[&str]) -> bool {
    flags.iter().any(|flag| context.cpu_flags.contains(*flag))
}

/// Whether `run` would mount resctrl by itself.
pub(super) fn is_mountable(context: &Context) -> bool {
    context.tree.exists(FOLDER) && context.status.has(Capability::SysAdmin)
}

pub(super) const MOUNTS: &str =
    "`run` mounts resctrl for contracts with gangs, or with amounts of the bus, and unmounts it at its end";

fn by_units(context: &Context) -> Row {
    let (area, name) = (Area::Bus, "bus use of units");
    let Some(mount) = mounted(&context.tree) else {
        if is_mountable(context) && has_flag(context, &METERS) {
            return Row::yes(area, name, format!("what outermost units fetch and write back: {MOUNTS}"));
        }
        return Row::no(area, name, "there is no resctrl with counts, see below").remedy(TELL);
    };
    let Some(event) = event(&mount.point) else {
        let reason = "resctrl is mounted, but the processor counts no transfers (info/L3_MON/mon_features)";
        return Row::no(area, name, reason).remedy(TELL);
    };
    if !host::may_write(&mount.point.join("tasks")) {
        return Row::no(area, name, "resctrl is mounted, and this user may not write there")
            .remedy("run as root");
    }
    if event == "mbm_local_bytes" {
        let reason = "mbm_local_bytes counts what outermost units transfer in the node where they run, and nothing else";
        return Row::partly(area, name, reason);
    }
    Row::yes(area, name, format!("{event} counts what outermost units fetch and write back"))
}

fn by_jobs(counters: &Row) -> Row {
    let (area, name) = (Area::Bus, "bus use of jobs");
    let misses = "cache misses times a line, counted by the daemon for 512 threads";
    match counters.state {
        State::Yes => {
            Row::yes(area, name, format!("{misses}; what is fetched ahead or written back may be missing"))
        }
        State::Partly => Row {
            area,
            name: name.to_owned(),
            reason: format!("{misses}; {}", counters.reason),
            ..counters.clone()
        },
        State::No => Row { area, name: name.to_owned(), ..counters.clone() }
            .remedy(counters.remedy.as_deref().unwrap_or(TELL)),
    }
}

fn by_programs(counters: &Row) -> Row {
    let (area, name) = (Area::Bus, "bus use told by programs");
    match counters.state {
        State::No => {
            let reason = "by their own count alone (ch_transferred): the processor does not count for them here, \
                 and one that does not count itself is unknown";
            Row::partly(area, name, reason).remedy(TELL)
        }
        _ => Row::yes(area, name, "by counters of their own, or by their own count; they are believed")
            .remedy(TELL),
    }
}

fn assumed() -> Row {
    let reason = "a job of which nothing is known is taken to transfer `first-rate` for each thread";
    Row::partly(Area::Bus, "bus use assumed", reason).remedy("set `first-rate` in [machine]")
}

fn slowed_down(context: &Context) -> Row {
    let (area, name) = (Area::Bus, CAP);
    let Some(mount) = mounted(&context.tree) else {
        return match has_flag(context, &["mba"]) {
            true if is_mountable(context) => Row::partly(
                area,
                name,
                format!("the processor has a cap; {MOUNTS}, and sees then whether it takes percentages"),
            ),
            true => Row::no(area, name, "the processor has a cap, and resctrl is not mounted"),
            false => Row::no(area, name, "the processor, or the virtual machine, has no cap on transfers"),
        };
    };
    match throttle(&mount) {
        Ok(found) => {
            let (least, step) = (found.least, found.step);
            let reason =
                format!("from {least} % on, in steps of {step} %, of what a CPU can have: not of the bus");
            Row::yes(area, name, reason)
        }
        Err(why) => Row::no(area, name, why),
    }
}

fn feature(context: &Context, name: &str, flags: &[&str], what: &str) -> Row {
    if let Some(flag) = flags.iter().find(|flag| context.cpu_flags.contains(**flag)) {
        return Row::yes(Area::Bus, name, format!("the processor has it (`{flag}`)"));
    }
    let reason = format!("the processor, or the virtual machine, cannot {what} (no flag `{}`)", flags[0]);
    Row::no(Area::Bus, name, reason)
}

/// The row about what the memory bus carries.
pub(super) fn capacity(context: &Context, machine: &Machine) -> Row {
    let (area, name, measure) = (Area::Bus, "what the bus carries", "commonhold calibrate --bus");
    let Some(found) = known(&context.tree, machine) else {
        let reason =
            "it was not measured on this machine; gangs are chosen as if it were 10 GB/s for each CPU";
        return Row::no(area, name, reason).remedy(measure);
    };
    let gb = |rate: u64| format!("{}.{} GB/s", rate / 1_000_000_000, rate / 100_000_000 % 10);
    let (all, one) = (gb(found.all_bytes_per_s), gb(found.one_bytes_per_s));
    let reason = format!("measured: {all} by {} CPUs together, {one} by one", found.cpus);
    if found.others_percent > OTHERS_PERCENT {
        let reason = format!("{reason}, while others had {} % of the CPUs", found.others_percent);
        return Row::partly(area, name, reason).remedy(format!("{measure}, while nothing else runs"));
    }
    Row::yes(area, name, reason)
}

fn resctrl(context: &Context) -> Row {
    let (name, folder) = ("resctrl file system", "/sys/fs/resctrl");
    if let Some(mount) = context.mounts.iter().find(|mount| mount.kind == "resctrl") {
        return Row::yes(Area::Bus, name, format!("mounted at {}", mount.point.display()));
    }
    if context.tree.exists(folder) {
        return Row::no(Area::Bus, name, "the kernel has it, but it is not mounted")
            .remedy(format!("mount -t resctrl resctrl {folder}"));
    }
    if ["rdt_a", "cqm"].iter().any(|flag| context.cpu_flags.contains(*flag)) {
        return Row::no(Area::Bus, name, "the processor could, but this kernel was built without it")
            .remedy("boot a kernel built with CONFIG_X86_CPU_RESCTRL=y");
    }
    Row::no(Area::Bus, name, "neither the kernel nor the processor offers it here")
}

/// Cache misses stand for use of the bus where resctrl is missing.
fn counters(context: &Context, counter: io::Result<()>) -> Row {
    let name = "hardware counters";
    let paranoid = context.tree.text("/proc/sys/kernel/perf_event_paranoid");
    let Some(level) = paranoid.and_then(|text| text.parse::<i32>().ok()) else {
        return Row::no(Area::Bus, name, "this kernel has no perf events")
            .remedy("boot a kernel built with CONFIG_PERF_EVENTS=y");
    };
    let setting = format!("kernel.perf_event_paranoid = {level}");
    match counter {
        Ok(()) if context.status.has(Capability::Perfmon) || context.status.has(Capability::SysAdmin) => {
            Row::yes(Area::Bus, name, "cache misses of every process can be counted")
        }
        Ok(()) => Row::partly(Area::Bus, name, format!("cache misses of our own processes only ({setting})"))
            .remedy("run as root"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Row::no(Area::Bus, name, format!("forbidden: {setting}"))
                .remedy("sysctl kernel.perf_event_paranoid=2")
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            Row::no(Area::Bus, name, "the processor, or the virtual machine, cannot count cache misses")
        }
        Err(error) => Row::no(Area::Bus, name, format!("cache misses cannot be counted: {}", plain(&error))),
    }
}
