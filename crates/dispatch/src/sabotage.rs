//! Breaks the scheduler that runs in the kernel, for tests of how that ends.
//!
//! It breaks the shipped scheduler, which contains no code for this. Its tables are found by name, as any BPF tool finds
//! them, and given a unit without a queue: the first task of that unit is then an error.

use std::mem::offset_of;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::in_kernel::Error;
use crate::tables::Rules;

const RULES: &str = ".data.rules";
const CGROUPS: &str = "unit_of_cgroup";

/// Leaves tasks that enter this control group (its directory's inode number) without a queue, so that the kernel ends the
/// scheduler: the one loaded last, by any process.
pub fn take_queue_away(cgroup: u64) -> Result<(), Error> {
    let rules = table(RULES)?;
    let first = 0_u32.to_ne_bytes();
    let mut set = rules.lookup(&first, MapFlags::ANY).map_err(wrong)?.ok_or(Error::Part(RULES))?;
    let place = set
        .get_mut(offset_of!(Rules, units)..)
        .and_then(|rest| rest.first_chunk_mut())
        .ok_or(Error::Part(RULES))?;
    let unit = u32::from_ne_bytes(*place);
    *place = (unit + 1).to_ne_bytes();
    rules.update(&first, &set, MapFlags::ANY).map_err(wrong)?;
    table(CGROUPS)?.update(&cgroup.to_ne_bytes(), &unit.to_ne_bytes(), MapFlags::ANY).map_err(wrong)
}

/// The newest table with this suffix in its name. (libbpf puts a part of a program's name before those of its sections.)
fn table(name: &'static str) -> Result<MapHandle, Error> {
    let known = MapInfoIter::default().filter(|map| map.name.as_encoded_bytes().ends_with(name.as_bytes()));
    let newest = known.map(|map| map.id).max().ok_or(Error::Part(name))?;
    MapHandle::from_map_id(newest).map_err(wrong)
}

fn wrong(source: libbpf_rs::Error) -> Error {
    Error::Use { what: "the running scheduler cannot be broken".to_owned(), source }
}
