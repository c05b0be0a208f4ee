//! What the kernel offers for holding memory, besides the memory controller itself: guarantees, calling
//! memory back, the ages of pages, charges for shared files, and paging out by the `user` backend.
//!
//! `cgroups` is the part of the cgroup hierarchy in which this program may make its subtree.

use commonhold_machine::capability::{Area, Enforcer, Row, State};
use commonhold_policy::MemoryMeans;

use super::CgroupBase;
use super::context::{Capability, Context};
use super::resources;
use super::surroundings::GIVE_CAPABILITIES;
use crate::host;
use crate::observe::memory::ages::are_made;
use crate::observe::memory::facts::{is_protected, tightest_bound};

/// The files that show the generations of pages (MGLRU), and whether the kernel makes generations.
const GENERATIONS: &str = "/sys/kernel/debug/lru_gen";
const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";

/// The file with the control group that each page frame is charged to.
const CHARGED_TO: &str = "/proc/kpagecgroup";

/// The rows about guarantees, calling back, cold pages and shared files. The first two exist only with the
/// memory controller.
pub(super) fn rows(context: &Context, cgroups: Option<&CgroupBase>) -> Vec<Row> {
    let with_memory = cgroups.filter(|cgroups| cgroups.controllers.contains("memory"));
    let mut rows: Vec<Row> = with_memory
        .map(|cgroups| [guarantees(context, cgroups), call_back(cgroups)])
        .into_iter()
        .flatten()
        .collect();
    rows.extend([cold(context), shared_files(context)]);
    rows
}

/// The row that says whether the kernel shows how much a unit is charged for pages that other units map, too.
fn shared_files(context: &Context) -> Row {
    let name = "charges for shared files known";
    let unseen = "`status` does not show what a unit is charged for files that other units map, too";
    if !context.tree.exists(CHARGED_TO) {
        return Row::partly(Area::Memory, name, format!("this kernel has no {CHARGED_TO}: {unseen}"))
            .remedy("boot a kernel built with CONFIG_PROC_PAGE_MONITOR=y and CONFIG_MEMCG=y");
    }
    if context.status.euid != 0 {
        return Row::partly(Area::Memory, name, format!("{CHARGED_TO} is for root: {unseen}"))
            .remedy("run as root");
    }
    Row::yes(
        Area::Memory,
        name,
        format!("{CHARGED_TO} shows which unit is charged for a page that several units map"),
    )
}

/// The row that says whether guarantees (memory.low and memory.min) would take effect in our cgroups.
fn guarantees(context: &Context, cgroups: &CgroupBase) -> Row {
    let name = "memory guarantees";
    if !cgroups.delegated || is_protected(&cgroups.base, &cgroups.mount) {
        return Row::yes(
            Area::Memory,
            name,
            "memory.min and memory.low are in force where our cgroups would be",
        );
    }
    let base = cgroups.base.display();
    let reason = format!(
        "memory.low is 0 in {base} or above it: units are held to their allowance, but other processes on the machine can \
         take memory from them"
    );
    let root = if context.status.euid == 0 { "" } else { "run commonhold itself as root, or " };
    let remedy = format!(
        "as root{outside}, {root}raise memory.low of {base} and of all that enclose it",
        outside = if cgroups.base == cgroups.mount { " outside this container" } else { "" }
    );
    Row::partly(Area::Memory, name, reason).remedy(remedy)
}

/// The orders about memory that can be enforced in these cgroups. `reclaim`: whether these cgroups have
/// `memory.reclaim`.
pub(crate) fn means_at(cgroups: &CgroupBase, reclaim: bool) -> MemoryMeans {
    if !cgroups.controllers.contains("memory") {
        return MemoryMeans::NONE;
    }
    let guarantees = !cgroups.delegated || is_protected(&cgroups.base, &cgroups.mount);
    MemoryMeans { bounds: true, guarantees, reclaim, alarms: true, kill_order: true, frames: None }
}

impl CgroupBase {
    /// The orders about memory that can be enforced in cgroups below this base.
    pub fn memory(&self) -> MemoryMeans {
        means_at(self, has_reclaim(self))
    }
}

/// Whether cgroups below this base have memory.reclaim. The hierarchy's root never has this file, so the
/// children are asked, too.
fn has_reclaim(cgroups: &CgroupBase) -> bool {
    host::list(&cgroups.base)
        .unwrap_or_default()
        .iter()
        .any(|entry| host::exists(&entry.path.join("memory.reclaim")) || entry.name() == "memory.reclaim")
}

/// The row about memory.reclaim (Linux 5.19). Without this file, a loan is called back by lowering the
/// borrower's bound, which is slower and makes the borrower wait.
fn call_back(cgroups: &CgroupBase) -> Row {
    let name = "memory called back at once";
    let bound = tightest_bound(&cgroups.base, &cgroups.mount).filter(|_| cgroups.delegated);
    let within =
        bound.map(|bytes| format!("; we are bounded to {} MiB, which is the amount divided", bytes >> 20));
    let within = within.unwrap_or_default();
    if has_reclaim(cgroups) {
        return Row::yes(Area::Memory, name, format!("the kernel has memory.reclaim{within}"));
    }
    let reason = format!(
        "no cgroup here has memory.reclaim: a borrower gives memory back only when it allocates more{within}"
    );
    Row::partly(Area::Memory, name, reason).remedy("boot a kernel of version 5.19 or later")
}

/// The row that says whether the kernel shows the ages of pages, from which cold pages are known.
fn cold(context: &Context) -> Row {
    let name = "cold pages known (MGLRU)";
    let enabled = context.tree.text(ENABLED).filter(|text| are_made(text));
    let shown = context.tree.text(GENERATIONS).is_some_and(|text| text.starts_with("memcg"));
    let instead = "instead, only inactive pages of files count as cold";
    match (enabled, shown) {
        (Some(_), true) => Row::yes(Area::Memory, name, format!("{GENERATIONS} shows the age of pages")),
        (Some(_), false) => {
            Row::partly(Area::Memory, name, format!("{GENERATIONS} cannot be read; {instead}"))
                .remedy("as root: mount -t debugfs none /sys/kernel/debug")
        }
        (None, _) if context.tree.exists(ENABLED) => Row::partly(
            Area::Memory,
            name,
            format!(
                "the kernel has generations of pages, but they are disabled; \
                {instead}"
            ),
        )
        .remedy(format!("echo y > {ENABLED}")),
        (None, _) => {
            Row::partly(Area::Memory, name, format!("this kernel has no generations of pages; {instead}"))
                .remedy("boot a kernel built with CONFIG_LRU_GEN=y (6.1 or later)")
        }
    }
}

/// The row that says whether the `user` backend can hold memory, by having other processes' memory paged out.
/// `has_syscall`: whether the kernel has `process_madvise(2)`.
pub(super) fn paging_out(context: &Context, has_syscall: bool) -> Row {
    let name = "user backend, memory";
    let no = |why: &str, remedy: &str| {
        let reason = format!("{why}: the user backend does not hold memory");
        Row::no(Area::Memory, name, reason).remedy(remedy)
    };
    if !has_syscall {
        let remedy = "boot Linux 5.10 or later, built with CONFIG_ADVISE_SYSCALLS=y";
        return no("the kernel does not have process_madvise", remedy);
    }
    if !context.tree.exists("/proc/self/pagemap") {
        let remedy = "boot a kernel built with CONFIG_PROC_PAGE_MONITOR=y";
        return no("this kernel has no /proc/PID/pagemap", remedy);
    }
    if !context.status.has(Capability::SysNice) {
        return no("paging out others' memory takes CAP_SYS_NICE", GIVE_CAPABILITIES);
    }
    // This is weaker than control groups: nothing bounds a unit between two polls, or keeps others from
    // taking its memory.
    let weaker =
        "memory beyond a unit's allowance is paged out after the unit took it; no guarantees, no cold pages";
    let swapless = resources::swaps(context).is_empty();
    let only_files = if swapless { ", and without swap pages of files only" } else { "" };
    let reads_other_users = context.status.euid == 0 || context.status.has(Capability::SysPtrace);
    let own = if reads_other_users { "" } else { "; our own user's processes only" };
    let row = Row::partly(Area::Memory, name, format!("{weaker}{only_files}{own}"));
    match (reads_other_users, swapless) {
        (false, _) => row.remedy(GIVE_CAPABILITIES),
        (true, true) => row.remedy("use control groups, or add swap: see `swap`"),
        (true, false) => row.remedy("use control groups"),
    }
}

/// The enforcer of memory: cgroups (an error is the reason why there are none), else the `user` backend,
/// whose row is `paging`.
pub(super) fn enforcer(cgroups: Result<&CgroupBase, &Row>, rows: &[Row], paging: &Row) -> Enforcer {
    let row_named = |name: &str| rows.iter().find(|row| row.area == Area::Memory && row.name == name);
    let (name, why) = match cgroups {
        Ok(cgroups) if cgroups.controllers.contains("memory") => {
            let means = "memory.high for allowances, memory.min and memory.low for guarantees";
            let limitation = row_named("memory guarantees").filter(|row| row.state == State::Partly);
            (
                Some("cgroup".to_owned()),
                limitation.map_or(means.to_owned(), |row| format!("{means}; {}", row.reason)),
            )
        }
        // Without the memory controller, a cgroup backend would not help.
        cgroups => {
            let missing =
                row_named("memory controller").filter(|row| cgroups.is_ok() || row.state == State::No);
            let why = match (missing, cgroups) {
                (Some(row), _) => format!("the memory controller is missing: {}", row.reason),
                (None, Err(row)) => format!("no cgroup backend here: {}", row.reason),
                (None, Ok(_)) => "the memory controller is missing".to_owned(),
            };
            // If a cgroup backend holds CPU without the memory controller, nothing holds memory.
            match cgroups {
                Err(_) if paging.state != State::No => {
                    (Some("user".to_owned()), format!("{}; not cgroup: {why}", paging.reason))
                }
                Err(_) => (None, format!("{why}; {}", paging.reason)),
                Ok(_) => (None, why),
            }
        }
    };
    Enforcer { resource: Area::Memory, name, why }
}
