//! Finds the disk that a folder is on.
//!
//! Algorithm: the search begins at the device of the folder's file system. From a partition it goes on to the
//! partition's disk, and from a device of device mapper or md to the devices below. It stops at a
//! self-writing array, which counts as a disk.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{all_disk_names, arrays, emmc_of_area};
use crate::LiveError;
use crate::host;
use crate::observe::files::Tree;

/// The name of the whole disk below a folder's file system. An error if there is no disk, or more than one.
pub(crate) fn disk_below(tree: &Tree, folder: &Path) -> Result<String, LiveError> {
    let facts = host::look(folder).map_err(|source| LiveError::File {
        path: folder.to_owned(),
        what: "read its attributes".to_owned(),
        source,
        remedy: "; name a folder on a file system of the disk".to_owned(),
    })?;
    if !facts.is_dir() {
        return Err(LiveError::Unavailable {
            what: format!("{} is not a folder", folder.display()),
            remedy: "name a folder on a file system of the disk: the disk itself is never written to"
                .to_owned(),
        });
    }
    let number = number_of(tree, folder, facts.dev());
    let no_disk = |why: &str| LiveError::Unavailable {
        what: format!("{} is on no disk of this machine: {why}", folder.display()),
        remedy: "name a folder on a file system of the disk".to_owned(),
    };
    let number = number.ok_or_else(|| no_disk("its file system has no device"))?;
    let path = host::canonical(&tree.path(format!("/sys/dev/block/{number}")))
        .map_err(|_| no_disk("its device is not known to the kernel"))?;
    let mut devices = Vec::new();
    add_whole_disks(&path, &is_array(tree), &mut devices, 0);
    let disks = all_disk_names(tree);
    devices.retain(|name| disks.contains(name));
    match devices.as_slice() {
        [disk] => Ok(disk.clone()),
        [] => Err(no_disk("its device is not backed by a disk")),
        several => Err(LiveError::Unavailable {
            what: format!("{} is on several disks: {}", folder.display(), several.join(", ")),
            remedy: "measure each with a folder on a file system of that disk alone".to_owned(),
        }),
    }
}

/// The drives below a disk: an array's drives, else the disk itself.
pub(crate) fn drives_of(tree: &Tree, disk: &str) -> Vec<String> {
    let mut drives = Vec::new();
    if let Ok(path) = host::canonical(&tree.path(format!("/sys/block/{disk}"))) {
        add_whole_disks(&path, &|_| false, &mut drives, 0);
    }
    drives
}

/// Returns a function that says whether the device of a name is a self-writing array.
fn is_array(tree: &Tree) -> impl Fn(&str) -> bool {
    move |name| arrays::level(tree, name).is_some()
}

/// The number (`259:0`) of the device with the file system of a folder, whose metadata shows the number
/// `device`. File systems such as btrfs show an anonymous number with the major part 0. Then the device is
/// the source of the mount that contains the folder.
fn number_of(tree: &Tree, folder: &Path, device: u64) -> Option<String> {
    let number = |device: u64| (rustix::fs::major(device), rustix::fs::minor(device));
    let text = |(major, minor): (u32, u32)| format!("{major}:{minor}");
    if number(device).0 != 0 {
        return Some(text(number(device)));
    }
    let folder = host::canonical(folder).ok()?;
    let mounts = tree.text("/proc/self/mountinfo")?;
    let enclosing = mounts.lines().filter_map(parse_mount).filter(|(point, _)| folder.starts_with(point));
    let (_, source) = enclosing.max_by_key(|(point, _)| point.as_os_str().len())?;
    let facts = host::look(&source).ok()?;
    Some(number(facts.rdev())).filter(|number| number.0 != 0).map(text)
}

/// The mount point and the source in a line of mountinfo.
fn parse_mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let (point, source) = (mount.split_whitespace().nth(4)?, filesystem.split_whitespace().nth(1)?);
    Some((PathBuf::from(point), PathBuf::from(source)))
}

/// Adds the whole disks below `device`, a folder of /sys, to `into`: the disk of a partition or of an eMMC
/// area, and the slaves of device mapper, md and the like. The search goes down to the first device for which
/// `is_disk` is true, else to the bottom.
fn add_whole_disks(device: &Path, is_disk: &dyn Fn(&str) -> bool, into: &mut Vec<String>, depth: u32) {
    // Deeper than any stack of devices; guards against cycles in a broken tree.
    if depth > 16 {
        return;
    }
    let below: Vec<PathBuf> = host::list(&device.join("slaves"))
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| host::canonical(&entry.path).ok())
        .collect();
    let name = device.file_name().and_then(|name| name.to_str());
    if !below.is_empty() && !name.is_some_and(is_disk) {
        for device in &below {
            add_whole_disks(device, is_disk, into, depth + 1);
        }
    } else if host::exists(&device.join("partition")) || name.and_then(emmc_of_area).is_some() {
        if let Some(disk) = device.parent() {
            add_whole_disks(disk, is_disk, into, depth + 1);
        }
    } else if let Some(name) = name
        && !into.iter().any(|known| known == name)
    {
        into.push(name.to_owned());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn layers_and_partitions_lead_to_whole_disks() {
        let dir = fake::tree(&[
            ("/sys/devices/sda/size", "1000\n"),
            ("/sys/devices/sda/sda1/partition", "1\n"),
            ("/sys/devices/sdb/size", "1000\n"),
            ("/sys/devices/dm-0/size", "1000\n"),
            ("/sys/devices/dm-0/slaves/x", ""),
        ]);
        let at = |name: &str| dir.path().join("sys/devices").join(name);
        let found = |name: &str| {
            let mut into = Vec::new();
            add_whole_disks(&at(name), &|name| name == "md0", &mut into, 0);
            into
        };
        assert_eq!(found("sda/sda1"), ["sda"]);
        assert_eq!(found("sdb"), ["sdb"]);
        fake::add(&dir, &[("/sys/devices/mmcblk0/mmcblk0gp0/mmcblk0gp0p1/partition", "1\n")]);
        assert_eq!(found("mmcblk0/mmcblk0gp0/mmcblk0gp0p1"), ["mmcblk0"]);
        std::fs::remove_file(at("dm-0/slaves/x")).unwrap();
        for (link, target) in [("sda1", "../../sda/sda1"), ("sdb", "../../sdb")] {
            std::os::unix::fs::symlink(target, at("dm-0/slaves").join(link)).unwrap();
        }
        let mut both = found("dm-0");
        both.sort();
        assert_eq!(both, ["sda", "sdb"]);
        fake::add(&dir, &[("/sys/devices/md0/slaves/x", ""), ("/sys/devices/md0/md0p1/partition", "1\n")]);
        assert_eq!(found("md0/md0p1"), ["md0"], "an array that is itself a disk");
    }

    #[test]
    fn drives_of_an_array_are_found_below_it() {
        let dir = fake::tree(&[("/sys/block/sda/sda1/partition", "1\n"), ("/sys/block/md0/slaves/x", "")]);
        std::fs::remove_file(dir.path().join("sys/block/md0/slaves/x")).unwrap();
        std::os::unix::fs::symlink("../../sda/sda1", dir.path().join("sys/block/md0/slaves/sda1")).unwrap();
        let tree = Tree::new(dir.path());
        assert_eq!(
            (drives_of(&tree, "md0"), drives_of(&tree, "sda")),
            (vec!["sda".to_owned()], vec!["sda".to_owned()])
        );
        assert!(drives_of(&tree, "sdb").is_empty());
    }

    #[test]
    fn a_path_that_is_no_folder_on_a_disk_is_refused() {
        let error =
            |path: &str| disk_below(&Tree::new(Path::new("/")), Path::new(path)).unwrap_err().to_string();
        assert!(error("/proc").contains("on no disk of this machine"), "{}", error("/proc"));
        assert!(error("/dev/null").contains("the disk itself is never written to"));
        assert!(error("/no/such/folder").contains("cannot read its attributes"));
    }
}
