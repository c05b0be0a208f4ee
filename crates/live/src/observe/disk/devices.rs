//! The disks of the machine, the layers on them, and the mechanism by which each honours weights.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::model::{self, CostModel};
use super::stat::line_of;
use super::{arrays, disk_names, partitions};
use crate::host;
use crate::observe::files::Tree;

/// The mechanism by which a disk honours weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weigher {
    /// The kernel's cost model, enabled in the root's io.cost.qos.
    IoCost,
    /// The I/O scheduler BFQ.
    Bfq,
}

/// A whole physical disk, or a self-writing array.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Device {
    /// Its kernel name: `nvme0n1`.
    pub(crate) name: String,
    /// Its number, as io.stat and io.max write it: `259:0`.
    pub(crate) number: String,
    /// The inode of its folder in /sys, which differs from that of a later device with the same name and
    /// number. (The kernel's `diskseq` does not serve: it counts media, and changes when an array is first
    /// opened.)
    pub(crate) folder: Option<u64>,
    /// The level of an array.
    pub(crate) level: Option<String>,
    /// The mechanism by which the disk honours weights now, if any.
    pub(crate) weigher: Option<Weigher>,
    /// The schedulers available for the disk, as queue/scheduler shows them: the active one is in brackets.
    pub(crate) schedulers: String,
    /// Devices of device mapper and md that are stacked on the disk or on one of its partitions, at any
    /// depth.
    pub(crate) layers: BTreeSet<String>,
    /// Its measured cost model, if any.
    pub(crate) model: Option<CostModel>,
    /// Whether the disk has a request queue to schedule. The common device of a multipath drive's paths has
    /// none.
    pub(crate) queues: bool,
}

/// The disks of a machine whose cgroup v2 hierarchy is mounted at `mount`, except disks used only for swap. A
/// unit's memory bound already determines how much it swaps out; throttling these transfers would make a
/// lender wait for its memory.
pub(crate) fn read(tree: &Tree, mount: &Path) -> Vec<Device> {
    let qos = tree.text(mount.join("io.cost.qos")).unwrap_or_default();
    let device = |name: String| {
        let number = tree.text(format!("/sys/block/{name}/dev"))?;
        let schedulers = tree.text(format!("/sys/block/{name}/queue/scheduler")).unwrap_or_default();
        let weigher = weigher(&schedulers, &qos, &number);
        let mut layers = BTreeSet::new();
        add_holders(tree, &name, &mut layers);
        let (model, queues) = (model::known(tree, &name), tree.exists(format!("/sys/block/{name}/mq")));
        let folder = host::look(&tree.path(format!("/sys/block/{name}"))).map(|folder| folder.ino()).ok();
        let level = arrays::level(tree, &name);
        Some(Device { name, number, folder, level, weigher, schedulers, layers, model, queues })
    };
    let swaps = tree.text("/proc/swaps").unwrap_or_default();
    let has_files = |name: &String| !is_swap_only(tree, &swaps, name);
    disk_names(tree).into_iter().filter(has_files).filter_map(device).collect()
}

/// Whether a whole disk, or its only partition, is a swap area. `swaps` is the text of /proc/swaps.
fn is_swap_only(tree: &Tree, swaps: &str, name: &str) -> bool {
    let is_swap = |name: &str| {
        let areas =
            swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()?.strip_prefix("/dev/"));
        areas.into_iter().any(|area| area == name)
    };
    let partitions: Vec<String> = partitions(tree, name).collect();
    let has_only_swap = match partitions.as_slice() {
        [only] => only.rsplit('/').next().is_some_and(is_swap),
        _ => false,
    };
    is_swap(name) || has_only_swap
}

impl Device {
    /// Whether `other` is a different device with the same name.
    pub(crate) fn is_replaced_by(&self, other: &Device) -> bool {
        self.name == other.name && (&self.number, self.folder) != (&other.number, other.folder)
    }

    /// Whether it still exists.
    pub(crate) fn is_there(&self, tree: &Tree) -> bool {
        tree.text(format!("/sys/block/{}/dev", self.name)).as_ref() == Some(&self.number)
    }
}

/// The mechanism by which a disk or an array's drive honours weights now; `None` if neither mechanism is
/// enabled on it.
pub(crate) fn weigher_of(tree: &Tree, mount: &Path, name: &str) -> Option<Weigher> {
    let qos = tree.text(mount.join("io.cost.qos")).unwrap_or_default();
    let schedulers = tree.text(format!("/sys/block/{name}/queue/scheduler")).unwrap_or_default();
    weigher(&schedulers, &qos, &tree.text(format!("/sys/block/{name}/dev"))?)
}

/// The mechanism that honours weights, from the texts of queue/scheduler and io.cost.qos. BFQ takes
/// precedence over io.cost, which is in a layer above BFQ: if weights were set for both, they would be
/// applied twice.
fn weigher(schedulers: &str, qos: &str, number: &str) -> Option<Weigher> {
    if schedulers.contains("[bfq]") {
        return Some(Weigher::Bfq);
    }
    let line = line_of(qos, number)?;
    line.split_whitespace().any(|word| word == "enable=1").then_some(Weigher::IoCost)
}

/// Adds all devices stacked on a device to `into`, at any depth: the kernel's `holders` of the device and of
/// its partitions, and their holders.
fn add_holders(tree: &Tree, name: &str, into: &mut BTreeSet<String>) {
    let of_whole = format!("/sys/block/{name}/holders");
    let folders = partitions(tree, name).map(|partition| format!("{partition}/holders")).chain([of_whole]);
    for holder in folders.flat_map(|folder| tree.names(folder)) {
        // Each device is visited once, which also ends a cycle in a broken tree.
        if into.insert(holder.clone()) {
            add_holders(tree, &holder, into);
        }
    }
}

/// File systems whose data is on other machines, so that no disk of this machine controls them.
const REMOTE: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "fuse.sshfs",
    "fuse.glusterfs",
    "lustre",
    "afs",
    "beegfs",
    "gpfs",
];

/// File systems that charge write-back to the cgroup that wrote (those with `SB_I_CGROUPWB`: fs/ext2, ext4,
/// btrfs, xfs, f2fs, and bcachefs).
const CHARGES_WRITE_BACK: [&str; 7] = ["ext2", "ext3", "ext4", "btrfs", "xfs", "f2fs", "bcachefs"];

/// Other writable file systems on disks of this machine.
const LOCAL: [&str; 10] =
    ["vfat", "exfat", "ntfs", "ntfs3", "fuseblk", "zfs", "jfs", "reiserfs", "nilfs2", "hfsplus"];

/// Whether a kind of file system keeps its data on another machine.
pub(crate) fn is_remote(kind: &str) -> bool {
    REMOTE.contains(&kind)
}

/// Whether a kind of file system keeps its data on a disk of this machine.
pub(crate) fn is_local(kind: &str) -> bool {
    LOCAL.contains(&kind) || charges_write_back(kind)
}

/// Whether a kind of file system charges write-back to the cgroup that wrote.
pub(crate) fn charges_write_back(kind: &str) -> bool {
    CHARGES_WRITE_BACK.contains(&kind)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    /// sda is a swap area, and so is sdb's only partition. sdc has another partition besides its swap area.
    #[test]
    fn a_drive_for_swap_alone_is_not_held() {
        let dir = fake::tree(&[(
            "/proc/swaps",
            "Filename Type Size Used Priority\n/dev/sda partition 9 0 -2\n/dev/sdb1 partition 9 0 -3\n\
             /dev/sdc2 partition 9 0 -4\n",
        )]);
        for name in ["sda", "sdb", "sdc", "sdd"] {
            let file = |file: &str| format!("/sys/block/{name}/{file}");
            fake::add(&dir, &[(&file("size"), "2000\n"), (&file("dev"), "8:0\n")]);
        }
        for part in ["sdb/sdb1", "sdc/sdc1", "sdc/sdc2", "sdd/sdd1"] {
            fake::add(&dir, &[(&format!("/sys/block/{part}/size"), "9\n")]);
        }
        let disks = read(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"));
        assert_eq!(disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>(), ["sdc", "sdd"]);
    }

    #[test]
    fn disks_are_read_with_weights_and_layers() {
        let dir = fake::tree(&[
            ("/sys/block/sda/size", "2000\n"),
            ("/sys/block/sda/dev", "8:0\n"),
            ("/sys/block/sda/queue/scheduler", "none mq-deadline [bfq]\n"),
            ("/sys/block/sda/sda1/holders/dm-0/dev", "253:0\n"),
            ("/sys/block/dm-0/size", "1000\n"),
            ("/sys/block/dm-0/dev", "253:0\n"),
            ("/sys/block/dm-0/holders/dm-1/dev", "253:1\n"),
            ("/sys/block/nvme0n1/size", "2000\n"),
            ("/sys/block/nvme0n1/dev", "259:0\n"),
            ("/sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline\n"),
            ("/sys/fs/cgroup/io.cost.qos", "8:0 enable=1 ctrl=auto\n259:0 enable=1 ctrl=user rpct=95.00\n"),
        ]);
        let disks = read(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"));
        let shown: Vec<_> =
            disks.iter().map(|disk| (disk.name.as_str(), disk.number.as_str(), disk.weigher)).collect();
        assert_eq!(shown, [("nvme0n1", "259:0", Some(Weigher::IoCost)), ("sda", "8:0", Some(Weigher::Bfq))]);
        assert_eq!(disks[1].layers.iter().collect::<Vec<_>>(), ["dm-0", "dm-1"]);
        assert!(disks[0].layers.is_empty());
        let again = read(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"));
        assert!(!disks[1].is_replaced_by(&again[1]));
        let folder = dir.path().join("sys/block/sda");
        // The old folder continues to exist, so that the new one cannot have its inode.
        std::fs::rename(&folder, dir.path().join("sda")).unwrap();
        fake::add(&dir, &[("/sys/block/sda/size", "2000\n"), ("/sys/block/sda/dev", "8:0\n")]);
        let again = read(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"));
        assert!(disks[1].is_replaced_by(&again[1]), "another device of that name and number");
        fake::add(&dir, &[("/sys/fs/cgroup/io.cost.qos", "259:0 enable=0 ctrl=auto\n")]);
        let disks = read(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"));
        assert_eq!(disks[0].weigher, None);
    }
}
