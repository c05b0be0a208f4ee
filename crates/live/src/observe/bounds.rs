//! What the manager of a control group, or an administrator by way of it, has set there.

use std::path::Path;

use commonhold_machine::CpuSet;
use commonhold_policy::GroupBounds;

use crate::observe::caps::CAP;
use crate::observe::knob::read;

/// What is set in a control group, by its path as /proc shows it, where version 2 is mounted there. Nothing, where nothing can be
/// read.
pub fn of(mount: &Path, group: &str) -> GroupBounds {
    let dir = mount.join(group.trim_start_matches('/'));
    by(|file| read(&dir.join(file)).ok())
}

/// The same, where `says` is what a file says.
pub(crate) fn by(says: impl Fn(&str) -> Option<String>) -> GroupBounds {
    let bound = |file: &str| says(file)?.parse::<u64>().ok();
    let cpus = says("cpuset.cpus").filter(|text| !text.is_empty());
    GroupBounds {
        memory: [bound("memory.max"), bound("memory.high")].into_iter().flatten().min(),
        cpus: cpus.and_then(|text| text.parse::<CpuSet>().ok()),
        weight: says("cpu.weight").is_some_and(|weight| weight != "100"),
        cap: says(CAP).is_some_and(|cap| !cap.starts_with("max")),
        kept: ["memory.low", "memory.min"].into_iter().any(|file| says(file).is_some_and(|kept| kept != "0")),
        rates: says("io.max").is_some_and(|rates| !rates.is_empty()),
    }
}
