//! Disks on a live machine: discovery, use by unit, and orders as writes to cgroup files.
//!
//! Facts come from io.stat and io.pressure of each unit's own cgroup, read at most every 80 ms. Orders are
//! written to io.max, and to io.weight or io.bfq.weight. In the daemon's own cgroups these settings vanish
//! with the cgroup, so the journal has no entry for them. The cost model that makes weights effective is
//! machine-wide and is in the journal (`io_cost`).
//!
//! A disk is a whole physical device. Requests to a partition, LVM, dm-crypt or md reach the device with
//! their cgroup, so they are counted and limited at the device; to count the layers above as well would count
//! requests twice. Some arrays write to their drives without attributing the requests to a cgroup: such an
//! array is a disk itself, and its drives are not (`arrays`). Network file systems have no disk and are not
//! controlled.
//!
//! Disks are hot-plugged, and an assembled array replaces its drives. Orders on a device that is no longer a
//! disk are reset. If another device takes a known name or number, its state starts afresh.
//!
//! Source: "IO" in the kernel's cgroup-v2.rst; block/blk-throttle.c, block/blk-iocost.c, block/bfq-cgroup.c.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::UnitId;
use commonhold_policy::disk::FRESH_NS;
use commonhold_policy::{DiskFacts, DiskUse, GroupId};
use commonhold_policy::{MS, Time};

use super::knob::put_line;
use crate::LiveError;
use crate::observe::disk::devices::{self, Device, Weigher};
use crate::observe::disk::stat;
use crate::observe::files::Tree;
use crate::observe::memory::source::{Buffer, Source};

/// The cgroup file for rate limits.
const CAPS: &str = "io.max";
/// How often to rescan disks and their schedulers.
const DEVICES_NS: Time = 5_000 * MS;
/// The largest number of files that are kept open between samples, because opening a file costs more than
/// reading it.
const KEPT_MAX: usize = 96;

/// The machine's disks, the use by unit, and the orders in force.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    mount: PathBuf,
    devices: Vec<Device>,
    /// When the devices were last listed; `None`: list them now.
    devices_at: Option<Time>,
    /// Orders in force: control group, device number and file.
    orders: BTreeSet<(PathBuf, String, &'static str)>,
    /// The last facts.
    facts: Vec<DiskFacts>,
    /// When the facts were sampled.
    at: Option<Time>,
    files: OpenFiles,
    /// The counters of each foreign group when it was first sampled, by device number. Earlier use is not the
    /// unit's.
    baselines: BTreeMap<(GroupId, String), DiskUse>,
    /// Use in each foreign group since its baseline, by disk.
    in_foreign_groups: BTreeMap<GroupId, Vec<(String, DiskUse)>>,
}

/// Files that are sampled repeatedly, and stay open between samples.
#[derive(Debug, Default)]
struct OpenFiles {
    by_path: BTreeMap<PathBuf, Source>,
    buffer: Buffer,
}

impl OpenFiles {
    /// The present content of a file; `None` if it cannot be read.
    fn read(&mut self, path: &Path) -> Option<&str> {
        let OpenFiles { by_path, buffer } = self;
        if !by_path.contains_key(path) {
            let opened = Source::open(path).ok()?;
            if by_path.len() >= KEPT_MAX {
                // Files are read in about the same order each time, so evicting the last keeps most of the
                // cache.
                by_path.pop_last();
            }
            by_path.insert(path.to_owned(), opened);
        }
        by_path.get_mut(path)?.read_anew(buffer).ok()
    }
}

impl Disks {
    /// For a machine whose cgroups are mounted at `mount`. Reads nothing yet.
    pub(crate) fn new(mount: &Path) -> Disks {
        Disks { mount: mount.to_owned(), ..Disks::default() }
    }

    /// The cgroup mount point.
    pub(crate) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Use in each foreign group since it was first sampled, by disk.
    pub(super) fn in_foreign_groups(&self) -> &BTreeMap<GroupId, Vec<(String, DiskUse)>> {
        &self.in_foreign_groups
    }

    /// The facts for the policy, at most 80 ms old: each unit's use of each disk since the unit's cgroup was
    /// made. `leaves` yields the cgroup of each unit's own processes, and each foreign group of a unit. It is
    /// not called if there is no disk. Unreadable cgroups are skipped, since a cgroup may be removed at any
    /// time.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        leaves: impl FnOnce() -> Vec<(UnitId, Option<GroupId>, PathBuf)>,
    ) -> Vec<DiskFacts> {
        if self.at.is_some_and(|at| now < at.saturating_add(FRESH_NS)) {
            return self.facts.clone();
        }
        let mut replaced = Vec::new();
        if self.devices_at.is_none_or(|at| now >= at.saturating_add(DEVICES_NS)) {
            self.devices_at = Some(now);
            // Closes the files of removed units and devices.
            self.files.by_path.clear();
            replaced = self.follow_devices(devices::read(&Tree::new(Path::new("/")), &self.mount));
        }
        self.at = Some(now);
        let leaves = if self.devices.is_empty() { Vec::new() } else { leaves() };
        let units = leaves.iter().map(|(unit, _, _)| unit.index() + 1).max().unwrap_or(0);
        let mut facts: BTreeMap<&str, DiskFacts> = BTreeMap::new();
        // A replaced device is omitted from one sample: the policy then repeats its orders for the disk that
        // reappears.
        for device in self.devices.iter().filter(|device| !replaced.contains(&device.name)) {
            let weighs = device.weigher.is_some();
            let bytes_per_s = device.model.map(|model| model.bytes_per_s());
            let units = vec![DiskUse::default(); units];
            let stat = PathBuf::from(format!("/sys/block/{}/stat", device.name));
            let device_total = self.files.read(&stat).and_then(stat::device);
            let name = device.name.clone();
            let disk = DiskFacts { name, at: now, weighs, bytes_per_s, device: device_total, units };
            facts.insert(&device.number, disk);
        }
        self.in_foreign_groups.clear();
        for (unit, foreign_group, leaf) in &leaves {
            // Pressure is not reported by disk, so it counts for each disk.
            let stalled_ns = self.files.read(&leaf.join("io.pressure")).and_then(stat::stalled_ns);
            for disk in facts.values_mut() {
                let unit = &mut disk.units[unit.index()];
                unit.stalled_ns =
                    [unit.stalled_ns, stalled_ns].into_iter().flatten().reduce(u64::saturating_add);
            }
            let Some(text) = self.files.read(&leaf.join("io.stat")) else { continue };
            for (number, used) in stat::parse(text) {
                let Some(disk) = facts.get_mut(number) else { continue };
                let used = match foreign_group {
                    Some(group) => {
                        let baseline = self.baselines.entry((*group, number.to_owned())).or_insert(used);
                        let used = used.since(*baseline);
                        self.in_foreign_groups.entry(*group).or_default().push((disk.name.clone(), used));
                        used
                    }
                    None => used,
                };
                let unit = &mut disk.units[unit.index()];
                unit.read_bytes = unit.read_bytes.saturating_add(used.read_bytes);
                unit.written_bytes = unit.written_bytes.saturating_add(used.written_bytes);
                unit.requests = unit.requests.saturating_add(used.requests);
            }
        }
        self.baselines.retain(|(group, _), _| leaves.iter().any(|(_, listed, _)| *listed == Some(*group)));
        self.facts = facts.into_values().collect();
        self.facts.clone()
    }

    /// Replaces the list of devices, and resets the orders on devices that were removed. Returns the names
    /// that now refer to another device.
    fn follow_devices(&mut self, devices: Vec<Device>) -> Vec<String> {
        let former = std::mem::replace(&mut self.devices, devices);
        let is_present = |old: &Device| {
            self.devices.iter().any(|new| new.number == old.number && !old.is_replaced_by(new))
        };
        let removed: Vec<&str> =
            former.iter().filter(|old| !is_present(old)).map(|old| old.number.as_str()).collect();
        let (void, in_force): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.orders)
            .into_iter()
            .partition(|(_, number, _)| removed.contains(&number.as_str()));
        self.orders = in_force;
        for (dir, number, file) in void {
            let default = if file == CAPS { "rbps=max wbps=max" } else { "default" };
            // This fails if the device or the cgroup does not exist any more; then neither does the order.
            let _ = crate::host::write(&dir.join(file), &format!("{number} {default}"));
        }
        let is_new = |new: &&Device| former.iter().any(|old| old.is_replaced_by(new));
        self.devices.iter().filter(is_new).map(|new| new.name.clone()).collect()
    }

    /// Carries out an order on a device: calls `write` with the path of the cgroup's `file` and the device's
    /// number. A failure of `write` is no error if the device was removed meanwhile. `sets_limit`: the order
    /// sets a limit; if false, it removes one.
    fn order(
        &mut self,
        dir: &Path,
        disk: &str,
        file: &'static str,
        sets_limit: bool,
        write: impl FnOnce(&Path, &str) -> Result<(), LiveError>,
    ) -> Result<(), LiveError> {
        let device = self.device(disk)?;
        let key = (dir.to_owned(), device.number.clone(), file);
        let result = write(&dir.join(file), &device.number);
        let is_present = result.is_ok() || device.is_there(&Tree::new(Path::new("/")));
        // A write that failed may have set the limit nevertheless.
        if sets_limit {
            self.orders.insert(key);
        } else if result.is_ok() {
            self.orders.remove(&key);
        }
        if is_present {
            return result;
        }
        self.devices_at = None;
        Ok(())
    }

    /// Sets the weight of the cgroup `dir` among its siblings, 1 to 1,000.
    pub(crate) fn weigh(&mut self, dir: &Path, disk: &str, weight: u32) -> Result<(), LiveError> {
        let device = self.device(disk)?;
        let weigher = device.weigher.ok_or_else(|| LiveError::Unavailable {
            what: format!("disk {disk} does not honour weights"),
            remedy: "see `commonhold doctor` for what it needs".to_owned(),
        })?;
        self.order(dir, disk, weigher.file(), true, |path, number| {
            let value = format!("{number} {weight}");
            put_line(path, &value, &value)
        })
    }

    /// Limits reads and writes of the cgroup `dir`, sub-units included, in bytes per second; `None` removes a
    /// limit.
    pub(crate) fn cap(
        &mut self,
        dir: &Path,
        disk: &str,
        read: Option<u64>,
        write: Option<u64>,
    ) -> Result<(), LiveError> {
        let text = |rate: Option<u64>| rate.map_or_else(|| "max".to_owned(), |rate| rate.to_string());
        let is_limited = read.is_some() || write.is_some();
        self.order(dir, disk, CAPS, is_limited, |path, number| {
            let line = format!("{number} rbps={} wbps={}", text(read), text(write));
            // The kernel shows no line for a device without limits.
            let expected = if is_limited { format!("{line} riops=max wiops=max") } else { String::new() };
            put_line(path, &line, &expected)
        })
    }

    /// A disk's device number.
    pub(super) fn number(&self, disk: &str) -> Result<String, LiveError> {
        Ok(self.device(disk)?.number.clone())
    }

    fn device(&self, disk: &str) -> Result<&Device, LiveError> {
        self.devices.iter().find(|device| device.name == disk).ok_or_else(|| LiveError::Unavailable {
            what: format!("disk {disk} is gone"),
            remedy: "if it was not removed on purpose, attach it again".to_owned(),
        })
    }
}

impl Weigher {
    /// The cgroup file for weights.
    fn file(self) -> &'static str {
        match self {
            Weigher::IoCost => "io.weight",
            Weigher::Bfq => "io.bfq.weight",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Disks with these weighers, as if just scanned.
    fn disks(weighers: &[Option<Weigher>]) -> Disks {
        let device = |(n, weigher): (usize, &Option<Weigher>)| Device {
            name: format!("sd{n}"),
            number: format!("8:{n}"),
            weigher: *weigher,
            queues: true,
            ..Device::default()
        };
        Disks {
            devices: weighers.iter().enumerate().map(device).collect(),
            devices_at: Some(1),
            ..Disks::default()
        }
    }

    #[test]
    fn facts_are_of_each_units_own_cgroup_and_at_most_80_ms_old() {
        let (dir, unit) = (tempfile::tempdir().unwrap(), UnitId(3));
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("io.stat", "8:0 rbytes=10 wbytes=2 rios=1 wios=1\n9:9 rbytes=7\n");
        write("io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
        let mut disks = disks(&[Some(Weigher::Bfq), None]);
        let leaves = [(unit, None, dir.path().to_owned())];
        let facts = disks.observe(100 * MS, || leaves.to_vec());
        let shown: Vec<_> = facts.iter().map(|disk| (disk.name.as_str(), disk.weighs, disk.at)).collect();
        assert_eq!(shown, [("sd0", true, 100 * MS), ("sd1", false, 100 * MS)]);
        let used = DiskUse { read_bytes: 10, written_bytes: 2, requests: 2, stalled_ns: Some(5_000) };
        assert_eq!(facts[0].unit(unit), used);
        assert_eq!(facts[1].unit(unit), DiskUse { stalled_ns: Some(5_000), ..DiskUse::default() });
        write("io.stat", "8:0 rbytes=20 wbytes=2 rios=2 wios=1\n");
        assert_eq!(
            disks.observe(179 * MS, || panic!("no cgroup is read"))[0].unit(unit).read_bytes,
            10,
            "they are fresh"
        );
        assert_eq!(disks.observe(180 * MS, || leaves.to_vec())[0].unit(unit).read_bytes, 20);
    }

    #[test]
    fn without_disks_no_cgroup_is_read() {
        let mut none = disks(&[]);
        assert!(none.observe(100 * MS, || panic!("no cgroup is read")).is_empty());
    }

    #[test]
    fn a_weight_is_written_to_the_file_of_the_disks_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["io.weight", "io.bfq.weight"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let mut disks = disks(&[Some(Weigher::Bfq), Some(Weigher::IoCost), None]);
        disks.weigh(dir.path(), "sd0", 300).unwrap();
        disks.weigh(dir.path(), "sd1", 70).unwrap();
        let text = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!((text("io.bfq.weight").as_str(), text("io.weight").as_str()), ("8:0 300", "8:1 70"));
        let mut error = |disk: &str| disks.weigh(dir.path(), disk, 1).unwrap_err().to_string();
        let without_weights = error("sd2");
        assert!(without_weights.contains("disk sd2 does not honour weights"), "{without_weights}");
        let removed = error("sd9");
        assert!(removed.contains("disk sd9 is gone"), "{removed}");
    }

    #[test]
    fn orders_on_a_device_that_is_no_disk_any_more_are_reset() {
        let dir = tempfile::tempdir().unwrap();
        let text = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
        for file in ["io.max", "io.bfq.weight"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let mut disks = disks(&[Some(Weigher::Bfq), None]);
        disks.weigh(dir.path(), "sd0", 300).unwrap();
        // A plain file does not show the other bounds, as the kernel does.
        let _ = disks.cap(dir.path(), "sd1", Some(7), None);
        let both = disks.devices.clone();
        assert_eq!(disks.follow_devices(both.clone()), [""; 0]);
        assert_eq!(
            (text("io.bfq.weight").as_str(), text("io.max").as_str()),
            ("8:0 300", "8:1 rbps=7 wbps=max")
        );
        assert_eq!(disks.follow_devices(Vec::new()), [""; 0]);
        assert_eq!(
            (text("io.bfq.weight").as_str(), text("io.max").as_str()),
            ("8:0 default", "8:1 rbps=max wbps=max")
        );
        std::fs::write(dir.path().join("io.max"), "").unwrap();
        disks.follow_devices(both);
        disks.follow_devices(Vec::new());
        assert_eq!(text("io.max"), "", "once");
    }

    #[test]
    fn orders_are_forgotten_when_another_device_takes_the_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("io.max"), "").unwrap();
        let mut disks = disks(&[None, None]);
        let _ = disks.cap(dir.path(), "sd1", Some(7), None);
        let mut devices = disks.devices.clone();
        devices[1].folder = Some(9);
        assert_eq!(disks.follow_devices(devices.clone()), ["sd1"]);
        assert!(disks.orders.is_empty());
        assert_eq!(disks.follow_devices(devices), [""; 0]);
    }
}
