//! Disks: their names and layers, the kernel's statistics, and measured cost models.
//!
//! A disk here is a device at the bottom of a stack, such as a drive. Partitions and layers such as LVM are
//! no disks. An exception is a *self-writing array* ([`arrays`]), which counts as a disk in place of its
//! drives.

pub(crate) mod arrays;
pub(crate) mod below;
pub(crate) mod devices;
pub mod model;
pub(crate) mod stat;

use commonhold_machine::Disk;

use super::files::Tree;
use crate::LiveError;

/// Why a device in /sys/block does not count as a disk. If a layer counted, every transfer would count at the
/// layer and at the disk below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotADisk {
    /// The device is stacked on other devices of this machine: device mapper, md, bcache, drbd, anything with
    /// `slaves`.
    Layer,
    /// A ZFS volume. No kernel file shows its devices, and its requests come from ZFS's own threads.
    Zvol,
    /// One of several paths to a disk (`NVMe` multipath).
    Path,
    /// A hardware partition of an eMMC device: boot areas, RPMB, general purpose.
    Area,
    /// Backed by memory or a file.
    Virtual,
    /// A removable medium or raw flash, which contracts do not cover.
    Medium,
    /// The device's data is on another machine.
    Remote,
}

/// Devices that are no disks, by name. A name is one of these prefixes and a number.
const BY_NAME: [(&str, NotADisk); 17] = [
    ("dm-", NotADisk::Layer),
    ("bcache", NotADisk::Layer),
    ("drbd", NotADisk::Layer),
    ("zd", NotADisk::Zvol),
    ("loop", NotADisk::Virtual),
    ("ram", NotADisk::Virtual),
    ("zram", NotADisk::Virtual),
    ("ublkb", NotADisk::Virtual),
    ("sr", NotADisk::Medium),
    ("fd", NotADisk::Medium),
    ("pcd", NotADisk::Medium),
    ("mtdblock", NotADisk::Medium),
    ("ubiblock", NotADisk::Medium),
    ("nbd", NotADisk::Remote),
    ("rbd", NotADisk::Remote),
    ("rnbd", NotADisk::Remote),
    ("etherd!e", NotADisk::Remote),
];

/// Why a device does not count as a disk; `None` if it does. A self-writing array is a disk.
pub(crate) fn not_a_disk(tree: &Tree, name: &str) -> Option<NotADisk> {
    let device = format!("/sys/block/{name}");
    if arrays::level(tree, name).is_some() {
        return None;
    }
    let hidden = tree.text(format!("{device}/hidden")).is_some_and(|hidden| hidden == "1");
    if hidden || is_nvme_path(name) {
        return Some(NotADisk::Path);
    }
    // An array that was stopped has no slaves.
    if arrays::is_md(tree, name) || !tree.names(format!("{device}/slaves")).is_empty() {
        return Some(NotADisk::Layer);
    }
    if emmc_of_area(name).is_some() {
        return Some(NotADisk::Area);
    }
    BY_NAME.into_iter().find(|(prefix, _)| is_numbered(name, prefix)).map(|(_, why)| why)
}

/// Whether a device is one of several paths to an `NVMe` namespace, by its name (`nvme0c1n1`). Kernels before
/// 4.17 have no file `hidden`, which shows the same.
fn is_nvme_path(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix("nvme").and_then(|rest| rest.split_once('c'));
    let numbers = numbers.and_then(|(disk, rest)| Some((disk, rest.split_once('n')?)));
    numbers.is_some_and(|(disk, (path, namespace))| [disk, path, namespace].into_iter().all(is_number))
}

/// The eMMC device of a hardware partition: `mmcblk0` for `mmcblk0boot1`. `None` for any other name.
pub(crate) fn emmc_of_area(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("mmcblk")?;
    let digit_count = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, area) = rest.split_at(digit_count);
    let area_kind = area.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_area = !number.is_empty() && ["boot", "rpmb", "gp"].contains(&area_kind);
    is_area.then(|| &name[..name.len() - area.len()])
}

/// The disks, except for drives that serve only self-writing arrays.
pub(crate) fn list(tree: &Tree) -> Result<Vec<Disk>, LiveError> {
    let mut disks = all_disks(tree)?;
    disks.retain(|disk| !arrays::serves_arrays_only(tree, &disk.name));
    Ok(disks)
}

/// The disks, including drives that serve only self-writing arrays.
fn all_disks(tree: &Tree) -> Result<Vec<Disk>, LiveError> {
    let mut disks = Vec::new();
    for name in tree.names("/sys/block") {
        if not_a_disk(tree, &name).is_some() {
            continue;
        }
        let size_file = format!("/sys/block/{name}/size");
        let Some(size) = tree.optional(&size_file)? else { continue };
        // The size is in units of 512 bytes, whatever the disk's sector size:
        // Documentation/ABI/stable/sysfs-block.
        let bytes = size.parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(512));
        let bytes = bytes.ok_or_else(|| tree.malformed(&size_file, "a number of sectors", &size))?;
        if bytes > 0 {
            let bytes_per_s = model::known(tree, &name).map(|model| model.bytes_per_s());
            disks.push(Disk { name, bytes, bytes_per_s });
        }
    }
    Ok(disks)
}

/// The names of the disks, except for drives that serve only self-writing arrays; empty if the disks cannot
/// be read.
pub(crate) fn disk_names(tree: &Tree) -> Vec<String> {
    list(tree).unwrap_or_default().into_iter().map(|disk| disk.name).collect()
}

/// The names of the disks, including drives that serve only self-writing arrays; empty if the disks cannot be
/// read.
pub(crate) fn all_disk_names(tree: &Tree) -> Vec<String> {
    all_disks(tree).unwrap_or_default().into_iter().map(|disk| disk.name).collect()
}

/// The folders of a device's partitions.
pub(crate) fn partitions(tree: &Tree, name: &str) -> impl Iterator<Item = String> {
    let folder = format!("/sys/block/{name}");
    let partitions = tree.names(&folder).into_iter().filter(move |entry| entry.starts_with(name));
    partitions.map(move |partition| format!("{folder}/{partition}"))
}

/// Whether a device's name begins with this prefix and a digit (`sr0`, but not `srv`).
pub(crate) fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn layers_paths_and_areas_are_no_disks() {
        let dir = fake::tree(&[]);
        let disks = ["mmcblk0", "nvme0n1", "nvme10n2", "sda", "sdrd", "vda", "xvda", "zdx", "pmem0", "dasda"];
        let layers = ["bcache0", "drbd1", "dm-0", "md127", "newkind0", "md_d0"];
        let areas = ["mmcblk0boot0", "mmcblk0boot1", "mmcblk0rpmb", "mmcblk12gp3"];
        let of_others =
            ["zd0", "zd16", "nvme0c0n1", "nvme0c12n1", "hidden0", "loop7", "ram0", "zram0", "ublkb0"];
        let media = ["sr0", "fd0", "mtdblock0", "ubiblock0_1", "nbd0", "rbd0", "rnbd0", "etherd!e1.1"];
        for name in disks.iter().chain(&layers).chain(&areas).chain(&of_others).chain(&media) {
            fake::add(&dir, &[(&format!("/sys/block/{name}/size"), "2000\n")]);
        }
        // A device without slaves has the folder, too.
        std::fs::create_dir_all(dir.path().join("sys/block/sda/slaves")).unwrap();
        fake::add(
            &dir,
            &[
                ("/sys/block/bcache0/slaves/sda/x", ""),
                ("/sys/block/newkind0/slaves/sda/x", ""),
                ("/sys/block/md127/md/level", "raid1\n"),
                ("/sys/block/md_d0/md/level", "raid0\n"),
                ("/sys/block/hidden0/hidden", "1\n"),
            ],
        );
        let tree = Tree::new(dir.path());
        let mut expected = disks;
        expected.sort_unstable();
        assert_eq!(all_disk_names(&tree), expected);
        let why = |name| not_a_disk(&tree, name);
        assert!(layers.iter().all(|name| why(name) == Some(NotADisk::Layer)));
        assert!(areas.iter().all(|name| why(name) == Some(NotADisk::Area)));
        assert_eq!(
            (why("zd0"), why("nvme0c0n1"), why("rbd0")),
            (Some(NotADisk::Zvol), Some(NotADisk::Path), Some(NotADisk::Remote))
        );
        assert_eq!((emmc_of_area("mmcblk12gp3"), emmc_of_area("mmcblk0p1")), (Some("mmcblk12"), None));
    }
}
