//! What the kernel and the hardware offer per resource, beside cgroup controllers.

use std::io;

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row};

use super::context::{Capability, Context};
use crate::observe::bus::capacity;

/// Where others had more of the CPUs' time than that while the bus was measured, in percent, it may carry more.
const OTHERS_PERCENT: u64 = 5;

/// The row about CPU pressure.
pub(super) fn cpu(context: &Context) -> Row {
    pressure(context, Area::Cpu)
}

/// The rows about memory: PSI, swap, zram.
pub(super) fn memory(context: &Context) -> Vec<Row> {
    vec![pressure(context, Area::Memory), swap(context), zram(context)]
}

/// The rows about the memory bus: resctrl and counters. `counter` is what opening a counter of our own said.
pub(super) fn bus(context: &Context, counter: io::Result<()>) -> Vec<Row> {
    let feature = |name: &str, flags: &[&str], what: &str| {
        if let Some(flag) = flags.iter().find(|flag| context.cpu_flags.contains(**flag)) {
            Row::yes(Area::Bus, name, format!("the processor has it (`{flag}`)"))
        } else {
            let reason =
                format!("the processor, or the virtual machine, cannot {what} (no flag `{}`)", flags[0]);
            Row::no(Area::Bus, name, reason)
        }
    };
    vec![
        feature(
            "bandwidth meter (MBM)",
            &["cqm_mbm_total", "cqm_mbm_local"],
            "measure the bus use of a group",
        ),
        feature("bandwidth cap (MBA)", &["mba"], "cap the bus use of a group"),
        resctrl(context),
        counters(context, counter),
    ]
}

/// The row about what the memory bus carries.
pub(super) fn bus_capacity(context: &Context, machine: &Machine) -> Row {
    let (area, name, measure) = (Area::Bus, "what the bus carries", "commonhold calibrate --bus");
    let Some(found) = capacity::known(&context.tree, machine) else {
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

pub(super) fn pressure(context: &Context, area: Area) -> Row {
    let (file, what) = match area {
        Area::Disk => ("/proc/pressure/io", "io pressure (PSI)"),
        Area::Memory => ("/proc/pressure/memory", "memory pressure (PSI)"),
        _ => ("/proc/pressure/cpu", "cpu pressure (PSI)"),
    };
    match context.tree.read(file) {
        Ok(text) if text.starts_with("some ") => Row::yes(area, what, format!("{file} can be read")),
        Ok(_) => Row::no(area, what, format!("{file} is in a format that is not known")),
        Err(error) => Row::no(area, what, format!("{file}: {}", plain(&error)))
            .remedy("boot with `psi=1` on the kernel command line (a kernel built with CONFIG_PSI=y)"),
    }
}

const ADD_SWAP: &str =
    "fallocate -l 4G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile";
const ADD_ZRAM: &str = "modprobe zram && d=$(zramctl --find --size 4G) && mkswap $d && swapon -p 100 $d";

/// The devices and files in /proc/swaps.
pub(super) fn swaps(context: &Context) -> Vec<String> {
    let text = context.tree.text("/proc/swaps").unwrap_or_default();
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

fn swap(context: &Context) -> Row {
    let swaps = swaps(context);
    if swaps.is_empty() {
        let reason = "there is none: only memory for pages of files can be lent, since no other memory could be called back";
        return Row::no(Area::Memory, "swap", reason).remedy(ADD_SWAP);
    }
    Row::yes(Area::Memory, "swap", swaps.join(", "))
}

fn zram(context: &Context) -> Row {
    let name = "compressed swap (zram)";
    let used: Vec<String> = swaps(context).into_iter().filter(|swap| swap.contains("zram")).collect();
    if !used.is_empty() {
        let reason =
            format!("{}; a unit's pages there still take memory, and count as used by it", used.join(", "));
        return Row::yes(Area::Memory, name, reason);
    }
    let there = context.tree.names("/sys/block").iter().any(|name| name.starts_with("zram"));
    let reason =
        if there { "the kernel has it, but no swap is on it" } else { "the module zram is not loaded" };
    Row::no(Area::Memory, name, reason).remedy(ADD_ZRAM)
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

/// The kernel's words for an error, without the number that Rust adds.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
