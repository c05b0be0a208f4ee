//! What the kernel offers for holding memory, beside the memory controller itself.

use commonhold_machine::capability::{Area, Enforcer, Row, State};

use super::CgroupPlace;
use super::context::Context;
use crate::memory::{bound_above, is_protected};

/// Where the kernel shows generations of pages, and whether it makes any.
const GENERATIONS: &str = "/sys/kernel/debug/lru_gen";
const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";

/// The rows about guarantees, calling back, and cold pages. `place` is where our control groups would be.
pub(super) fn rows(context: &Context, place: Option<&CgroupPlace>) -> Vec<Row> {
    let with_memory = place.filter(|place| place.controllers.contains("memory"));
    let mut rows: Vec<Row> =
        with_memory.map(|place| [guarantees(place), call_back(place)]).into_iter().flatten().collect();
    rows.push(cold(context));
    rows
}

fn guarantees(place: &CgroupPlace) -> Row {
    let name = "memory guarantees";
    if !place.delegated || is_protected(&place.base, &place.mount) {
        return Row::yes(
            Area::Memory,
            name,
            "memory.min and memory.low are in force where our cgroups would be",
        );
    }
    let base = place.base.display();
    let reason = format!(
        "memory.low is 0 in {base} or above it: units are held to what they are allowed, but nothing is kept for them from \
         others on the machine"
    );
    let remedy = format!(
        "as root, run commonhold itself as root, or raise memory.low of {base} and of all that enclose it"
    );
    Row::partly(Area::Memory, name, reason).remedy(remedy)
}

/// Kernels from 5.19 on have memory.reclaim; a bound in between takes more time, and makes the borrower wait.
fn call_back(place: &CgroupPlace) -> Row {
    let name = "memory called back at once";
    let bound = bound_above(&place.base, &place.mount).filter(|_| place.delegated);
    let has =
        std::fs::read_dir(&place.base).into_iter().flatten().flatten().any(|entry| {
            entry.path().join("memory.reclaim").exists() || entry.file_name() == "memory.reclaim"
        });
    let within =
        bound.map(|bytes| format!("; we are bounded to {} MiB, which is what is divided", bytes >> 20));
    let within = within.unwrap_or_default();
    if has {
        return Row::yes(Area::Memory, name, format!("the kernel has memory.reclaim{within}"));
    }
    let reason =
        format!("no cgroup here has memory.reclaim: a borrower gives back only as it asks for more{within}");
    Row::partly(Area::Memory, name, reason).remedy("boot a kernel of version 5.19 or later")
}

fn cold(context: &Context) -> Row {
    let name = "cold pages known (MGLRU)";
    let enabled = context.tree.text(ENABLED).filter(|text| text != "0x0000" && text != "n");
    let shown = context.tree.text(GENERATIONS).is_some_and(|text| text.starts_with("memcg"));
    let instead = "instead, inactive pages of files are taken to be cold, and no others";
    match (enabled, shown) {
        (Some(_), true) => Row::yes(Area::Memory, name, format!("{GENERATIONS} tells how old pages are")),
        (Some(_), false) => {
            Row::partly(Area::Memory, name, format!("{GENERATIONS} cannot be read; {instead}"))
                .remedy("as root: mount -t debugfs none /sys/kernel/debug")
        }
        (None, _) if context.tree.exists(ENABLED) => {
            Row::partly(Area::Memory, name, format!("the kernel has generations, but makes none; {instead}"))
                .remedy(format!("echo y > {ENABLED}"))
        }
        (None, _) => {
            Row::partly(Area::Memory, name, format!("this kernel has no generations of pages; {instead}"))
                .remedy("boot a kernel built with CONFIG_LRU_GEN=y (6.1 or later)")
        }
    }
}

/// What holds memory.
pub(super) fn enforcer(place: Result<&CgroupPlace, &Row>, rows: &[Row]) -> Enforcer {
    let found = |name: &str| rows.iter().find(|row| row.area == Area::Memory && row.name == name);
    let (name, why) = match place {
        Ok(place) if place.controllers.contains("memory") => {
            let means =
                "memory.high for what units are allowed, memory.min and memory.low for what is theirs";
            let less = found("memory guarantees").filter(|row| row.state == State::Partly);
            (
                Some("cgroup".to_owned()),
                less.map_or(means.to_owned(), |row| format!("{means}; {}", row.reason)),
            )
        }
        Ok(_) => {
            let why = found("memory controller").map(|row| row.reason.clone()).unwrap_or_default();
            (None, format!("the memory controller is missing: {why}"))
        }
        Err(row) => (None, format!("no cgroup backend here: {}", row.reason)),
    };
    Enforcer { resource: Area::Memory, name, why }
}
