//! How this machine measures use of the memory bus, and whether it can throttle units there.
//!
//! The number of transferred bytes comes from one of four sources. Each source has a row; the best comes
//! first. The processor counts the transfers of each unit's resource group, or the cache misses of each job's
//! threads. Programs report their own transfers. Without any of these, a rate is assumed.

use std::io;

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row, State};

use super::context::{Capability, Context};
use super::resources::plain;
use crate::host;
use crate::observe::bus::capacity::known;
use crate::observe::bus::resctrl::{FOLDER, event, mounted, throttle};

/// If other programs had more than this percentage of the CPUs' time while the bus was measured, its true
/// capacity may be larger than the measured one.
const OTHERS_PERCENT: u64 = 5;

/// The row that says whether the processor can throttle units.
pub(super) const CAP: &str = "bus use of units capped";

/// The remedy if nothing but programs can count their transfers.
const REPORT: &str =
    "start programs with LD_PRELOAD=libcommonhold-gang.so, or have them report it (docs/gangs.md)";

/// The rows about the memory bus: the four sources of transferred bytes, throttling, and the features that
/// these need. `counter` is the result of opening a counter of cache misses for this process.
pub(super) fn rows(context: &Context, counter: io::Result<()>) -> Vec<Row> {
    let counts = counters(context, counter);
    vec![
        by_units(context),
        by_jobs(&counts),
        by_programs(&counts),
        assumed(),
        cap(context),
        feature(context, "bandwidth meter (MBM)", &METERS, "measure the bus use of a group"),
        feature(context, "bandwidth cap (MBA)", &["mba"], "cap the bus use of a group"),
        resctrl(context),
        counts,
    ]
}

/// The processor's flags for counting a group's transfers.
const METERS: [&str; 2] = ["cqm_mbm_total", "cqm_mbm_local"];

/// Whether the processor shows one of these flags.
pub(super) fn has_flag(context: &Context, flags: &[&str]) -> bool {
    flags.iter().any(|flag| context.cpu_flags.contains(*flag))
}

/// Whether `run` can mount resctrl.
pub(super) fn is_mountable(context: &Context) -> bool {
    context.tree.exists(FOLDER) && context.status.has(Capability::SysAdmin)
}

/// When `run` mounts resctrl, for the rows' reasons.
pub(super) const MOUNTS: &str =
    "`run` mounts resctrl for contracts with gangs, or with amounts of the bus, and unmounts it at its end";

/// The row that says whether the processor counts the transfers of units.
fn by_units(context: &Context) -> Row {
    let (area, name) = (Area::Bus, "bus use of units");
    let Some(mount) = mounted(&context.tree) else {
        if is_mountable(context) && has_flag(context, &METERS) {
            return Row::yes(area, name, format!("what outermost units fetch and write back: {MOUNTS}"));
        }
        return Row::no(area, name, "no resctrl with counters is available, see below").remedy(REPORT);
    };
    let Some(event) = event(&mount.point) else {
        let reason = "resctrl is mounted, but the processor counts no transfers (info/L3_MON/mon_features)";
        return Row::no(area, name, reason).remedy(REPORT);
    };
    if !host::may_write(&mount.point.join("tasks")) {
        return Row::no(area, name, "resctrl is mounted, and this user may not write there")
            .remedy("run as root");
    }
    if event == "mbm_local_bytes" {
        let reason =
            "mbm_local_bytes counts only what outermost units transfer within the node where they run";
        return Row::partly(area, name, reason);
    }
    Row::yes(area, name, format!("{event} counts what outermost units fetch and write back"))
}

/// The row that says whether the daemon can count the transfers of jobs. `counters` is the row about hardware
/// counters.
fn by_jobs(counters: &Row) -> Row {
    let (area, name) = (Area::Bus, "bus use of jobs");
    let misses = "cache misses times a line, counted by the daemon for 512 threads";
    match counters.state {
        State::Yes => Row::yes(area, name, format!("{misses}; prefetches and write-backs may be missing")),
        State::Partly => Row {
            area,
            name: name.to_owned(),
            reason: format!("{misses}; {}", counters.reason),
            ..counters.clone()
        },
        State::No => Row { area, name: name.to_owned(), ..counters.clone() }
            .remedy(counters.remedy.as_deref().unwrap_or(REPORT)),
    }
}

/// The row that says how programs can count their own transfers. `counters` is the row about hardware
/// counters.
fn by_programs(counters: &Row) -> Row {
    let (area, name) = (Area::Bus, "bus use reported by programs");
    match counters.state {
        State::No => {
            let reason = "only by their own count (ch_transferred): the processor does not count for them here, and a program \
                without a count is unknown";
            Row::partly(area, name, reason).remedy(REPORT)
        }
        _ => Row::yes(area, name, "by hardware counters, or by their own count; reports are trusted")
            .remedy(REPORT),
    }
}

/// The row about transfers that nothing measures.
fn assumed() -> Row {
    let reason = "a job without measurements is assumed to transfer `first-rate` for each thread";
    Row::partly(Area::Bus, "bus use assumed", reason).remedy("set `first-rate` in [machine]")
}

/// The row that says whether the processor can throttle a unit's transfers.
fn cap(context: &Context) -> Row {
    let (area, name) = (Area::Bus, CAP);
    let Some(mount) = mounted(&context.tree) else {
        return match has_flag(context, &["mba"]) {
            true if is_mountable(context) => Row::partly(
                area,
                name,
                format!("the processor has a cap; {MOUNTS}, and then checks whether it takes percentages"),
            ),
            true => Row::no(area, name, "the processor has a cap, and resctrl is not mounted"),
            false => Row::no(area, name, "the processor, or the virtual machine, has no cap on transfers"),
        };
    };
    match throttle(&mount) {
        Ok(throttle) => {
            let (least, step) = (throttle.least, throttle.step);
            let reason = format!(
                "from {least} % in steps of {step} %, relative to a CPU's maximum and not to the bus"
            );
            Row::yes(area, name, reason)
        }
        Err(why) => Row::no(area, name, why),
    }
}

/// The row about a feature that the processor has if it shows one of these flags. `what` completes "the
/// processor cannot ...".
fn feature(context: &Context, name: &str, flags: &[&str], what: &str) -> Row {
    if let Some(flag) = flags.iter().find(|flag| context.cpu_flags.contains(**flag)) {
        return Row::yes(Area::Bus, name, format!("the processor has it (`{flag}`)"));
    }
    let reason = format!("the processor, or the virtual machine, cannot {what} (no flag `{}`)", flags[0]);
    Row::no(Area::Bus, name, reason)
}

/// The row about the bandwidth of the memory bus.
pub(super) fn capacity(context: &Context, machine: &Machine) -> Row {
    let (area, name, measure) = (Area::Bus, "bus bandwidth measured", "commonhold calibrate --bus");
    let Some(measured) = known(&context.tree, machine) else {
        let reason = "not on this machine; gangs are chosen as if it were 10 GB/s for each CPU";
        return Row::no(area, name, reason).remedy(measure);
    };
    let gb = |rate: u64| format!("{}.{} GB/s", rate / 1_000_000_000, rate / 100_000_000 % 10);
    let (all, one) = (gb(measured.all_bytes_per_s), gb(measured.one_bytes_per_s));
    let reason = format!("{all} by {} CPUs together, {one} by one", measured.cpus);
    if measured.others_percent > OTHERS_PERCENT {
        let reason = format!("{reason}, while others had {} % of the CPUs", measured.others_percent);
        return Row::partly(area, name, reason).remedy(format!("{measure}, while nothing else runs"));
    }
    Row::yes(area, name, reason)
}

/// The row about the file system through which the processor's meters and caps are used.
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
        return Row::no(Area::Bus, name, "the processor supports it, but this kernel was built without it")
            .remedy("boot a kernel built with CONFIG_X86_CPU_RESCTRL=y");
    }
    Row::no(Area::Bus, name, "neither the kernel nor the processor offers it here")
}

/// The row about hardware counters of cache misses, which approximate use of the bus without resctrl.
/// `counter` is the result of opening one for this process.
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
