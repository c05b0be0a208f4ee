//! The limits that are set in a control group by its manager, or by an administrator through the manager.

use std::path::Path;

use commonhold_machine::CpuSet;
use commonhold_policy::GroupBounds;

use crate::observe::caps::CAP;
use crate::observe::knob::read;

/// The limits set in a control group. `mount` is where cgroup v2 is mounted; `group` is the group's path as
/// /proc shows it. Files that cannot be read count as unset.
pub fn of(mount: &Path, group: &str) -> GroupBounds {
    let dir = mount.join(group.trim_start_matches('/'));
    by(|file| read(&dir.join(file)).ok())
}

/// The limits in the files of a control group. `text` returns the trimmed text of the file with a given name,
/// if it can be read.
pub(crate) fn by(text: impl Fn(&str) -> Option<String>) -> GroupBounds {
    let bytes = |file: &str| text(file)?.parse::<u64>().ok();
    let cpus = text("cpuset.cpus").filter(|list| !list.is_empty());
    GroupBounds {
        memory: [bytes("memory.max"), bytes("memory.high")].into_iter().flatten().min(),
        cpus: cpus.and_then(|list| list.parse::<CpuSet>().ok()),
        weight: text("cpu.weight").is_some_and(|weight| weight != "100"),
        cap: text(CAP).is_some_and(|cap| !cap.starts_with("max")),
        kept: ["memory.low", "memory.min"].into_iter().any(|file| text(file).is_some_and(|kept| kept != "0")),
        rates: text("io.max").is_some_and(|rates| !rates.is_empty()),
    }
}
