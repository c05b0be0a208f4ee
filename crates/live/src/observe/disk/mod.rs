//! Disks: which there are, what they are made of, what the kernel counts of them, and what was measured.

pub(crate) mod arrays;
pub(crate) mod below;
pub(crate) mod devices;
pub mod model;
pub(crate) mod stat;

use commonhold_machine::Disk;

use super::files::Tree;
use crate::LiveError;

/// What /sys/block lists and is no disk of its own.
const NOT_DISKS: [&str; 8] = ["loop", "ram", "zram", "dm-", "sr", "fd", "mtdblock", "nbd"];

/// The disks, without those that serve an array.
pub(crate) fn list(tree: &Tree) -> Result<Vec<Disk>, LiveError> {
    let mut disks = all_disks(tree)?;
    disks.retain(|disk| !arrays::serves_arrays_only(tree, &disk.name));
    Ok(disks)
}

/// The disks, with those that serve an array.
fn all_disks(tree: &Tree) -> Result<Vec<Disk>, LiveError> {
    let mut disks = Vec::new();
    for name in tree.names("/sys/block") {
        let device = format!("/sys/block/{name}");
        let hidden = tree.optional(&format!("{device}/hidden"))?.is_some_and(|hidden| hidden == "1");
        let stands_on_others = arrays::is_md(tree, &name) && arrays::level(tree, &name).is_none();
        if hidden || stands_on_others || NOT_DISKS.iter().any(|prefix| is_numbered(&name, prefix)) {
            continue;
        }
        let size_file = format!("{device}/size");
        let Some(size) = tree.optional(&size_file)? else { continue };
        // The size is in units of 512 bytes whatever the disk's own sector is: Documentation/ABI/stable/sysfs-block.
        let bytes = size.parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(512));
        let bytes = bytes.ok_or_else(|| tree.malformed(&size_file, "a number of sectors", &size))?;
        if bytes > 0 {
            let bytes_per_s = model::known(tree, &name).map(|model| model.bytes_per_s());
            disks.push(Disk { name, bytes, bytes_per_s });
        }
    }
    Ok(disks)
}

/// The names of the disks, as far as they can be read.
pub(crate) fn disk_names(tree: &Tree) -> Vec<String> {
    list(tree).unwrap_or_default().into_iter().map(|disk| disk.name).collect()
}

/// The names of the disks with those that serve an array, as far as they can be read.
pub(crate) fn all_disk_names(tree: &Tree) -> Vec<String> {
    all_disks(tree).unwrap_or_default().into_iter().map(|disk| disk.name).collect()
}

/// The folders of a device's partitions.
pub(crate) fn parts(tree: &Tree, name: &str) -> impl Iterator<Item = String> {
    let folder = format!("/sys/block/{name}");
    let parts = tree.names(&folder).into_iter().filter(move |part| part.starts_with(name));
    parts.map(move |part| format!("{folder}/{part}"))
}

/// Whether a device's name is that prefix and a number, with what may follow it (`sr0`, but not `srv`).
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
