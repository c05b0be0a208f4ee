//! The measured cost model of a disk, kept across runs of the program and reboots.
//!
//! A disk is identified by its model, its serial number and its size, since its kernel name may change at the
//! next boot. An array is identified by its level, the number of its drives, its UUID and its size. Each disk
//! has a JSON file below [`FOLDER`], which may be removed at any time; the disk then counts as not measured.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::observe::files::{Tree, plain};

/// The folder with the models.
pub const FOLDER: &str = "/var/lib/commonhold/disks";

/// A disk's performance in one direction (reading or writing), with no other load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Bytes per second, in large requests.
    pub bytes_per_s: u64,
    /// Sequential requests of 4 KiB per second.
    pub sequential_per_s: u64,
    /// Random requests of 4 KiB per second.
    pub random_per_s: u64,
    /// The 95th percentile of the latency of random requests, in microseconds, at the queue depth of the
    /// measurement.
    pub latency_us: u64,
}

/// A disk's cost model: the coefficients of the kernel's `linear` model (io.cost.model), and latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModel {
    /// Reading.
    pub read: Way,
    /// Writing.
    pub write: Way,
}

impl CostModel {
    /// The disk's throughput with large requests, in bytes per second, in the slower direction.
    pub fn bytes_per_s(&self) -> u64 {
        self.read.bytes_per_s.min(self.write.bytes_per_s)
    }
}

/// Identifies a disk across reboots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The model name; empty if unknown.
    pub model: String,
    /// The serial number, else the world-wide name; empty if it has neither.
    pub serial: String,
    /// The size.
    pub bytes: u64,
}

impl Identity {
    /// The identity of the disk with this kernel name.
    pub(crate) fn read(tree: &Tree, disk: &str) -> Option<Identity> {
        let text =
            |file: &str| tree.text(format!("/sys/block/{disk}/{file}")).filter(|text| !text.is_empty());
        let sectors: u64 = text("size")?.parse().ok()?;
        // An array's performance depends on its level and number of drives. Without a superblock it has no
        // UUID.
        let array_model = || Some(format!("md {} of {}", text("md/level")?, text("md/raid_disks")?));
        let uuid =
            || text("md/uuid").filter(|uuid| uuid.contains(|c: char| c.is_ascii_hexdigit() && c != '0'));
        Some(Identity {
            model: text("device/model").or_else(array_model).unwrap_or_default(),
            // NVMe, virtio, SCSI and ATA, in that order.
            serial: ["device/serial", "serial", "wwid", "device/wwid"]
                .iter()
                .find_map(|file| text(file))
                .or_else(uuid)
                .unwrap_or_default(),
            bytes: sectors.checked_mul(512)?,
        })
    }

    /// The name of the file with the disk's cost model.
    fn file_name(&self) -> String {
        format!("{}_{}_{}.json", plain(&self.model), plain(&self.serial), self.bytes)
    }

    /// The file with the disk's cost model.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(self.file_name())
    }
}

/// The cost model of a disk; `None` if the disk was not measured.
pub(crate) fn known(tree: &Tree, disk: &str) -> Option<CostModel> {
    let text = tree.kept(Identity::read(tree, disk)?.path())?;
    let model: CostModel = serde_json::from_str(&text).ok()?;
    // A rate of 0 would hold every unit to 0.
    (model.bytes_per_s() > 0).then_some(model)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn a_disk_is_identified_by_model_serial_and_size() {
        let kept = "/var/lib/commonhold/disks/Fast_Disk_S_1_512000.json";
        let way = r#"{"bytes_per_s":8000000,"sequential_per_s":2000,"random_per_s":1900,"latency_us":33000}"#;
        let dir = fake::tree(&[
            ("/sys/block/sda/size", "1000\n"),
            ("/sys/block/sda/device/model", "Fast Disk \n"),
            ("/sys/block/sda/device/serial", "S/1\n"),
            ("/sys/block/sdb/size", "1000\n"),
            ("/sys/block/sdb/device/model", "Fast Disk\n"),
            (kept, &format!(r#"{{"read":{way},"write":{}}}"#, way.replace("8000000", "7000000"))),
        ]);
        let tree = Tree::new(dir.path());
        let model = known(&tree, "sda").unwrap();
        assert_eq!((model.bytes_per_s(), model.read.random_per_s), (7_000_000, 1_900));
        assert_eq!(known(&tree, "sdb"), None, "another serial number");
        fake::add(&dir, &[(kept, &format!(r#"{{"read":{way},"write":{}}}"#, way.replace("8000000", "0")))]);
        assert_eq!(known(&tree, "sda"), None, "a rate of 0 was not measured");
        fake::add(&dir, &[(kept, &format!(r#"{{"read":{way},"write":{way}}}"#))]);
        assert!(known(&tree, "sda").is_some());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(tree.path(kept), open).unwrap();
        assert_eq!(known(&tree, "sda"), None, "any user may have written it");
    }

    #[test]
    fn an_array_is_identified_by_level_drives_and_uuid() {
        let uuid = "65f0bc76-003b-9679-b435-95ae30753c73";
        let dir = fake::tree(&[
            ("/sys/block/md0/size", "1000\n"),
            ("/sys/block/md0/md/level", "raid5\n"),
            ("/sys/block/md0/md/raid_disks", "3\n"),
            ("/sys/block/md0/md/uuid", &format!("{uuid}\n")),
        ]);
        let read = || Identity::read(&Tree::new(dir.path()), "md0").unwrap();
        let identity =
            |serial: &str| Identity { model: "md raid5 of 3".into(), serial: serial.into(), bytes: 512_000 };
        assert_eq!(read(), identity(uuid));
        let none = uuid.replace(|c: char| c != '-', "0");
        fake::add(&dir, &[("/sys/block/md0/md/uuid", &none)]);
        assert_eq!(read(), identity(""), "an array without a superblock");
    }

    #[test]
    fn a_model_name_cannot_lead_to_another_folder() {
        let identity = Identity { model: "../../etc".into(), serial: "\u{1b}[1m".into(), bytes: 7 };
        assert_eq!(identity.path(), Path::new(FOLDER).join("______etc___1m_7.json"));
    }
}
