//! What the kernel offers for CPU and memory besides cgroup controllers: pressure stall information (PSI),
//! swap and zram.

use std::io;

use commonhold_machine::capability::{Area, Row};

use super::context::Context;

/// The row about CPU pressure.
pub(super) fn cpu(context: &Context) -> Row {
    pressure(context, Area::Cpu)
}

/// The rows about memory: PSI, swap, zram.
pub(super) fn memory(context: &Context) -> Vec<Row> {
    vec![pressure(context, Area::Memory), swap(context), zram(context)]
}

/// The row that says whether the kernel shows how long tasks were stalled on a resource.
pub(super) fn pressure(context: &Context, area: Area) -> Row {
    let (file, what) = match area {
        Area::Disk => ("/proc/pressure/io", "io pressure (PSI)"),
        Area::Memory => ("/proc/pressure/memory", "memory pressure (PSI)"),
        _ => ("/proc/pressure/cpu", "cpu pressure (PSI)"),
    };
    match context.tree.read(file) {
        Ok(text) if text.starts_with("some ") => Row::yes(area, what, format!("{file} can be read")),
        Ok(_) => Row::no(area, what, format!("{file} is in an unknown format")),
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

/// The row about swap areas, without which anonymous memory cannot be called back.
fn swap(context: &Context) -> Row {
    let swaps = swaps(context);
    if swaps.is_empty() {
        let reason = "no swap area: only memory for file pages can be lent, since other memory could not be called back";
        return Row::no(Area::Memory, "swap", reason).remedy(ADD_SWAP);
    }
    Row::yes(Area::Memory, "swap", swaps.join(", "))
}

/// The row about swap that is compressed in memory.
fn zram(context: &Context) -> Row {
    let name = "compressed swap (zram)";
    let used: Vec<String> = swaps(context).into_iter().filter(|swap| swap.contains("zram")).collect();
    if !used.is_empty() {
        let reason =
            format!("{}; a unit's pages there still take memory, and count as used by it", used.join(", "));
        return Row::yes(Area::Memory, name, reason);
    }
    let is_loaded = context.tree.names("/sys/block").iter().any(|name| name.starts_with("zram"));
    let reason =
        if is_loaded { "the kernel has it, but no swap is on it" } else { "the module zram is not loaded" };
    Row::no(Area::Memory, name, reason).remedy(ADD_ZRAM)
}

/// The kernel's message for an error, without the number that Rust appends.
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
