//! Breaks the scheduler that runs in the kernel, to test how the system recovers.
//!
//! The shipped scheduler contains no code for this. Its tables are looked up by name, as any BPF tool does,
//! and get an additional unit without a queue. The first task of that unit causes an error that ends the
//! scheduler.

use std::mem::offset_of;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::in_kernel::Error;
use crate::tables::Rules;

const RULES: &str = ".data.rules";
const CGROUPS: &str = "unit_of_cgroup";

/// Assigns a control group, given by its directory's inode number, to a unit without a queue. The kernel ends
/// the scheduler when the first task enters that group. Acts on the scheduler that was loaded last, by any
/// process.
pub fn take_queue_away(cgroup: u64) -> Result<(), Error> {
    let rules = table(RULES)?;
    let first = 0_u32.to_ne_bytes();
    let mut bytes = rules.lookup(&first, MapFlags::ANY).map_err(wrong)?.ok_or(Error::Part(RULES))?;
    let units = bytes
        .get_mut(offset_of!(Rules, units)..)
        .and_then(|rest| rest.first_chunk_mut())
        .ok_or(Error::Part(RULES))?;
    let unit = u32::from_ne_bytes(*units);
    *units = (unit + 1).to_ne_bytes();
    rules.update(&first, &bytes, MapFlags::ANY).map_err(wrong)?;
    table(CGROUPS)?.update(&cgroup.to_ne_bytes(), &unit.to_ne_bytes(), MapFlags::ANY).map_err(wrong)
}

/// The newest table whose name ends with `name`. (libbpf prefixes the names of sections with a part of the
/// program's name.)
fn table(name: &'static str) -> Result<MapHandle, Error> {
    let candidates =
        MapInfoIter::default().filter(|map| map.name.as_encoded_bytes().ends_with(name.as_bytes()));
    let newest = candidates.map(|map| map.id).max().ok_or(Error::Part(name))?;
    MapHandle::from_map_id(newest).map_err(wrong)
}

fn wrong(source: libbpf_rs::Error) -> Error {
    Error::Use { what: "the running scheduler cannot be broken".to_owned(), source }
}
