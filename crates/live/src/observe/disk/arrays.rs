//! Self-writing arrays, whose own threads write to their drives: Linux md RAID 4, 5 and 6, and RAID 1 with
//! write-behind.
//!
//! Problem: a self-writing array must write parity with the data, or lets a drive lag behind. So a unit's
//! writes reach the drives as the array's own requests, attributed to no unit, and are neither counted nor
//! limited at the drives. At the array itself, reads and writes are attributed to the unit, and the kernel
//! can count and limit them (io.stat, io.max).
//!
//! Algorithm: a self-writing array counts as a disk, and a drive that serves only such arrays does not. A
//! drive serves only such arrays if two conditions hold. All devices stacked on the drive or its partitions,
//! directly or through other layers, are self-writing arrays. And partitions without a device on them were
//! not used since boot. Arrays of arrays follow the same rule.
//!
//! Properties: each transfer of a unit is limited at one device at least, except for up to 16 MiB through
//! another partition of an array's drive. A drive with another use is limited in addition to the array; reads
//! through the array then count at both.
//!
//! Limits: an array can be held only by rates, since it has no request queue to schedule. RAID 4, 5 and 6
//! made by dm-raid (LVM) is not found, since only an ioctl shows the level of a device-mapper target.
//!
//! Source: the kernel's admin-guide/md.rst; `alloc_behind_master_bio` in drivers/md/raid1.c.

use super::partitions;
use crate::observe::files::Tree;

const WITH_PARITY: [&str; 3] = ["raid4", "raid5", "raid6"];

/// The largest number of sectors that firmware, kernel and boot loader transfer through a partition by
/// probing it. If more were transferred, the partition is in use.
const UNUSED_SECTORS: u64 = (16 << 20) / 512;

/// Deeper than any stack of devices; guards against cycles in a broken tree.
const DEPTH_MAX: u32 = 16;

/// Whether a device is an md array, of any level.
pub(crate) fn is_md(tree: &Tree, name: &str) -> bool {
    tree.exists(format!("/sys/block/{name}/md"))
}

/// The level of a self-writing array; `None` for any other device.
pub(crate) fn level(tree: &Tree, name: &str) -> Option<String> {
    let text = |file: &str| tree.text(format!("/sys/block/{name}/{file}"));
    let number = |file: &str| text(file).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let level = text("md/level")?;
    let has_write_behind = || level == "raid1" && number("md/bitmap/backlog") > 0;
    // An array that was stopped or not yet started has no size, and does not write.
    (number("size") > 0 && (WITH_PARITY.contains(&level.as_str()) || has_write_behind())).then_some(level)
}

/// Whether a disk is used only by self-writing arrays.
pub(crate) fn serves_arrays_only(tree: &Tree, disk: &str) -> bool {
    serves_arrays_only_above(tree, disk, 0)
}

/// Does the work of [`serves_arrays_only`] for a disk, or for a device that is stacked on the disk, above
/// `depth` other devices.
fn serves_arrays_only_above(tree: &Tree, name: &str, depth: u32) -> bool {
    let folder = format!("/sys/block/{name}");
    let are_arrays = |holders: &[String]| {
        holders
            .iter()
            .all(|holder| level(tree, holder).is_some() || serves_arrays_only_above(tree, holder, depth + 1))
    };
    let holders_of_whole = tree.names(format!("{folder}/holders"));
    let partitions: Vec<(String, Vec<String>)> = partitions(tree, name)
        .map(|partition| (partition.clone(), tree.names(format!("{partition}/holders"))))
        .collect();
    let has_holders =
        !holders_of_whole.is_empty() || partitions.iter().any(|(_, holders)| !holders.is_empty());
    depth < DEPTH_MAX
        && has_holders
        && are_arrays(&holders_of_whole)
        && partitions.iter().all(|(partition, holders)| match holders.as_slice() {
            [] => !was_used(tree, partition),
            holders => are_arrays(holders),
        })
}

/// Whether more was transferred through a partition since boot than probing takes. Mounts would be no
/// evidence: a mount may be in another namespace, and databases and some file systems use partitions without
/// a mount.
fn was_used(tree: &Tree, partition: &str) -> bool {
    let text = tree.text(format!("{partition}/stat")).unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let sectors = |field: usize| words.get(field).and_then(|word| word.parse::<u64>().ok());
    // A partition whose statistics cannot be read may be in use.
    let sum = sectors(2).zip(sectors(6)).map(|(read, written)| read.saturating_add(written));
    sum.is_none_or(|sum| sum > UNUSED_SECTORS)
}

/// Why a measurement of an array would not be representative now, such as a resync; `None` if it would be
/// representative.
pub(crate) fn unfit(tree: &Tree, name: &str) -> Option<String> {
    let text = |file: &str| tree.text(format!("/sys/block/{name}/md/{file}")).unwrap_or_default();
    match (text("sync_action").as_str(), text("degraded").as_str()) {
        ("" | "idle" | "frozen" | "none", "" | "0") => None,
        ("" | "idle" | "frozen" | "none", missing) => Some(format!("{missing} of its drives are missing")),
        (action, _) => Some(format!("a {action} of the array is in progress")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    /// sda and sdb have a large partition for md0, and sda a small one that a boot loader may use; sdc as a
    /// whole belongs to md0.
    const ARRAY: [(&str, &str); 8] = [
        ("/sys/block/md0/size", "1000\n"),
        ("/sys/block/md0/md/level", "raid5\n"),
        ("/sys/block/sda/sda1/stat", "9 0 512 1 0 0 0 0 0 1 1\n"),
        ("/sys/block/sda/sda2/holders/md0/x", ""),
        ("/sys/block/sda/sda2/stat", "9 0 9999999 1 0 0 9999999 0 0 1 1\n"),
        ("/sys/block/sdb/sdb1/holders/md0/x", ""),
        ("/sys/block/sdc/holders/md0/x", ""),
        ("/sys/block/sdd/size", "1000\n"),
    ];

    /// The disks that serve only arrays, with these files in addition.
    fn taken(more: &[(&str, &str)]) -> Vec<&'static str> {
        let dir = fake::tree(&ARRAY);
        fake::add(&dir, more);
        let tree = Tree::new(dir.path());
        ["sda", "sdb", "sdc", "sdd"].into_iter().filter(|disk| serves_arrays_only(&tree, disk)).collect()
    }

    #[test]
    fn a_drive_serves_arrays_only_if_no_other_part_of_it_is_used() {
        assert_eq!(taken(&[]), ["sda", "sdb", "sdc"]);
        // 16 MiB, read and written together.
        let used = "9 0 32000 1 9 0 769 0 0 1 1\n";
        assert_eq!(taken(&[("/sys/block/sda/sda1/stat", used)]), ["sdb", "sdc"]);
        assert_eq!(taken(&[("/sys/block/sda/sda1/stat", "")]), ["sdb", "sdc"], "it may be in use");
        assert_eq!(
            taken(&[("/sys/block/sdb/sdb2/holders/dm-0/x", "")]),
            ["sda", "sdc"],
            "a volume beside it"
        );
        assert_eq!(
            taken(&[("/sys/block/sdc/holders/md1/x", "")]),
            ["sda", "sdb"],
            "an array that is not self-writing"
        );
    }

    #[test]
    fn only_self_writing_levels_count_as_disks() {
        for level in ["raid4", "raid6"] {
            assert_eq!(taken(&[("/sys/block/md0/md/level", level)]), ["sda", "sdb", "sdc"]);
        }
        for level in ["raid0", "raid1", "raid10", "linear"] {
            assert_eq!(taken(&[("/sys/block/md0/md/level", level)]), [""; 0]);
        }
        let behind = |backlog| {
            taken(&[("/sys/block/md0/md/level", "raid1\n"), ("/sys/block/md0/md/bitmap/backlog", backlog)])
        };
        assert_eq!(behind("256\n"), ["sda", "sdb", "sdc"], "write-behind");
        assert_eq!(behind("0\n"), [""; 0]);
        assert_eq!(taken(&[("/sys/block/md0/size", "0\n")]), [""; 0], "an array that was not started");
    }

    #[test]
    fn layers_between_a_drive_and_its_array_are_passed_through() {
        let layered = [("/sys/block/sdd/holders/dm-0/x", ""), ("/sys/block/dm-0/holders/md0/x", "")];
        assert_eq!(taken(&layered), ["sda", "sdb", "sdc", "sdd"]);
        assert_eq!(taken(&layered[..1]), ["sda", "sdb", "sdc"], "a layer that is used by itself");
        let circle = [("/sys/block/sdd/holders/dm-0/x", ""), ("/sys/block/dm-0/holders/dm-0/x", "")];
        assert_eq!(taken(&circle), ["sda", "sdb", "sdc"], "a broken tree");
    }

    #[test]
    fn an_array_is_measured_only_while_idle_and_complete() {
        let dir = fake::tree(&ARRAY);
        let unfit = |files: &[(&str, &str)]| {
            fake::add(&dir, files);
            unfit(&Tree::new(dir.path()), "md0")
        };
        assert_eq!(unfit(&[]), None);
        let action = "/sys/block/md0/md/sync_action";
        assert_eq!(unfit(&[(action, "idle\n"), ("/sys/block/md0/md/degraded", "0\n")]), None);
        assert_eq!(unfit(&[(action, "resync\n")]).as_deref(), Some("a resync of the array is in progress"));
        let missing = [(action, "idle\n"), ("/sys/block/md0/md/degraded", "1\n")];
        assert_eq!(unfit(&missing).as_deref(), Some("1 of its drives are missing"));
    }
}
