//! What the kernel and the hardware offer per resource, beside cgroup controllers.

use std::io;

use commonhold_machine::capability::{Area, Row};

use super::context::{Capability, Context};
use crate::observe::topology::is_layered_disk;

/// The row about CPU pressure.
pub(super) fn cpu(context: &Context) -> Row {
    pressure(context, Area::Cpu)
}

/// The rows about memory: PSI, swap, zram.
pub(super) fn memory(context: &Context) -> Vec<Row> {
    vec![pressure(context, Area::Memory), swap(context), zram(context)]
}

/// The rows about disks: PSI, io.cost, BFQ, layers. `disks` are the names of the whole disks.
pub(super) fn disk(context: &Context, disks: &[String]) -> Vec<Row> {
    let mut rows = vec![pressure(context, Area::Disk)];
    if disks.is_empty() {
        rows.push(Row::no(Area::Disk, "disks", "there is no disk in /sys/block"));
        return rows;
    }
    rows.extend([io_cost(context, disks), bfq(context, disks), layers(context)]);
    rows
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

fn pressure(context: &Context, area: Area) -> Row {
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
fn swaps(context: &Context) -> Vec<String> {
    let text = context.tree.text("/proc/swaps").unwrap_or_default();
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

fn swap(context: &Context) -> Row {
    let swaps = swaps(context);
    if swaps.is_empty() {
        let reason =
            "there is none: only memory for pages of files can be lent, since no other could be called back";
        return Row::no(Area::Memory, "swap", reason).remedy(ADD_SWAP);
    }
    Row::yes(Area::Memory, "swap", swaps.join(", "))
}

fn zram(context: &Context) -> Row {
    let name = "compressed swap (zram)";
    let used: Vec<String> = swaps(context).into_iter().filter(|swap| swap.contains("zram")).collect();
    if !used.is_empty() {
        return Row::yes(Area::Memory, name, used.join(", "));
    }
    let there = context.tree.names("/sys/block").iter().any(|name| name.starts_with("zram"));
    let reason =
        if there { "the kernel has it, but no swap is on it" } else { "the module zram is not loaded" };
    Row::no(Area::Memory, name, reason).remedy(ADD_ZRAM)
}

/// io.cost makes io.weight work. It is configured per disk, in the root cgroup only.
fn io_cost(context: &Context, disks: &[String]) -> Row {
    let name = "io.cost";
    let mount = context.cgroup2().map(|mount| mount.point.join("io.cost.qos"));
    let Some((file, text)) = mount.and_then(|file| context.tree.text(&file).map(|text| (file, text))) else {
        let reason = "the top cgroup has no io.cost.qos, which comes with the io controller on cgroup v2";
        return Row::no(Area::Disk, name, reason)
            .remedy("with the io controller: boot a kernel built with CONFIG_BLK_CGROUP_IOCOST=y");
    };
    let device = |disk: &String| context.tree.text(format!("/sys/block/{disk}/dev"));
    let enabled = |device: &String| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(device.as_str()));
        line.is_some_and(|line| line.split_whitespace().any(|word| word == "enable=1"))
    };
    let off = disks.iter().find(|disk| !device(disk).as_ref().is_some_and(enabled));
    match off {
        None => Row::yes(Area::Disk, name, format!("enabled on {}", disks.join(", "))),
        Some(disk) => {
            let device = device(disk).unwrap_or_else(|| "MAJOR:MINOR".to_owned());
            let remedy = format!("echo '{device} enable=1' > {}", file.display());
            Row::partly(Area::Disk, name, format!("the kernel has it, but it is off on {disk}"))
                .remedy(remedy)
        }
    }
}

fn bfq(context: &Context, disks: &[String]) -> Row {
    let name = "BFQ";
    let scheduler = |disk: &String| {
        context.tree.text(format!("/sys/block/{disk}/queue/scheduler")).unwrap_or_else(|| "none".to_owned())
    };
    let shown =
        disks.iter().map(|disk| format!("{disk}: {}", scheduler(disk))).collect::<Vec<_>>().join("; ");
    let Some(without) = disks.iter().find(|disk| !scheduler(disk).contains("[bfq]")) else {
        return Row::yes(Area::Disk, name, format!("schedules {}", disks.join(", ")));
    };
    let offered = scheduler(without).split_whitespace().any(|name| name == "bfq");
    let load = if offered { "" } else { "modprobe bfq && " };
    let remedy = format!("{load}echo bfq > /sys/block/{without}/queue/scheduler");
    let any = disks.iter().any(|disk| scheduler(disk).contains("[bfq]"));
    let row = if any { Row::partly(Area::Disk, name, shown) } else { Row::no(Area::Disk, name, shown) };
    row.remedy(remedy)
}

fn layers(context: &Context) -> Row {
    let name = "disks without layers";
    let layered: Vec<String> =
        context.tree.names("/sys/block").into_iter().filter(|name| is_layered_disk(name)).collect();
    if layered.is_empty() {
        return Row::yes(Area::Disk, name, "no device-mapper or md device: weights reach the disk");
    }
    let reason = format!("weights do not reach the disk through {}", layered.join(", "));
    Row::partly(Area::Disk, name, reason)
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
