//! The kernel's I/O cost model, io.cost: enabled with measured coefficients, and reset at the end.
//!
//! Problem: io.weight has no effect unless io.cost is enabled for the disk, and little effect if io.cost uses
//! the model of a different disk.
//!
//! Algorithm: at its start, the daemon writes the coefficients of every disk with a measured model to
//! io.cost.model, and enables io.cost.qos. Both files are in the root cgroup and have a line per disk. The
//! original lines are first recorded in the journal, and the caretaker restores them.
//!
//! `QoS` parameters:
//! - `max`: requests are issued at no more than 90 % of the modelled rate, so that they queue in the kernel,
//!   which schedules them by unit. A queue in the disk would ignore units.
//! - `rlat`, `wlat`: the latency targets are the latencies that the disk had at full load while it was
//!   measured. If more than 5 % of the requests exceed the target, the rate sinks, down to 25 % of the
//!   modelled rate (`min`).
//! - A latency target is at most 250 ms, the kernel's own for a rotating disk. The kernel's period is twice
//!   the target, and a unit's weight takes effect one period after the unit begins to use the disk (measured:
//!   `docs/disk.md`).
//! - A latency target is at least 5 ms, the kernel's own for a fast SSD. An SSD whose requests took 100 us
//!   while it was measured would otherwise be throttled while it erases blocks.
//!
//! Disks that are left alone:
//! - a disk that BFQ schedules, which has weights itself;
//! - a disk for which the administrator has enabled io.cost;
//! - a disk without a request queue, where the kernel cannot hold requests back;
//! - all disks if the kernel has no io.cost, or its files are not writable (in a container, or for a user's
//!   daemon).
//!
//! Source: "IO" in the kernel's cgroup-v2.rst; block/blk-iocost.c.

use std::path::Path;

use super::knob::put_line;
use crate::LiveError;
use crate::observe::disk::devices::{self, Device};
use crate::observe::disk::model::{CostModel, Way};
use crate::observe::disk::stat::line_of;
use crate::observe::files::Tree;
use crate::undo::journal::{Entry, Journal, record};

/// The percentile of the latencies that must meet the target.
const PERCENTILE: &str = "95.00";
/// The lowest issue rate, in per cent of the modelled rate.
const RATE_MIN: &str = "25.00";
/// The highest issue rate, in per cent of the modelled rate.
const RATE_MAX: &str = "90.00";

/// The bounds on the latency target, in microseconds.
const LATENCY_US: std::ops::RangeInclusive<u64> = 5_000..=250_000;

/// The files in the order in which they are written. Undoing reverses the order, so io.cost is off before the
/// model is reset.
const FILES: [&str; 2] = ["io.cost.model", "io.cost.qos"];

/// The disks for which to enable io.cost: measured disks on which weights have no effect yet.
fn disks_to_enable(tree: &Tree, mount: &Path) -> Vec<(Device, CostModel)> {
    let may_write = |file| tree.may_write(mount.join(file));
    if !FILES.into_iter().all(may_write) {
        return Vec::new();
    }
    let disks = devices::read(tree, mount).into_iter().filter(|disk| disk.weigher.is_none() && disk.queues);
    disks.filter_map(|disk| Some((disk.model?, disk))).map(|(model, disk)| (disk, model)).collect()
}

/// The names of the disks for which [`switch_on`] would enable io.cost, with cgroups mounted at `mount`.
pub fn would_be_on(mount: &Path) -> Vec<String> {
    disks_to_enable(&Tree::new(Path::new("/")), mount).into_iter().map(|(disk, _)| disk.name).collect()
}

/// Enables io.cost for every measured disk. Returns the names of the disks for which that succeeded, and the
/// errors.
pub(crate) fn switch_on(mount: &Path, journal: &mut Journal) -> (Vec<String>, Vec<LiveError>) {
    let (mut enabled, mut problems) = (Vec::new(), Vec::new());
    for (device, model) in disks_to_enable(&Tree::new(Path::new("/")), mount) {
        match switch_on_one(mount, &device, &model, journal) {
            Ok(()) => enabled.push(device.name),
            Err(error) => problems.push(error),
        }
    }
    (enabled, problems)
}

fn switch_on_one(
    mount: &Path,
    device: &Device,
    model: &CostModel,
    journal: &mut Journal,
) -> Result<(), LiveError> {
    let values = [model_line(&device.number, model), qos_line(&device.number, model)];
    for (file, value) in FILES.iter().zip(values) {
        let path = mount.join(file);
        let text = crate::observe::knob::read(&path).map_err(|source| LiveError::File {
            path: path.clone(),
            what: "read it".to_owned(),
            source,
            remedy: "; see `commonhold doctor` for what io.cost needs".to_owned(),
        })?;
        let original = original(file, line_of(&text, &device.number), &device.number);
        record(journal, &[Entry::Line { path: path.clone(), original, given: value.clone() }])?;
        put_line(&path, &value, &value)?;
    }
    Ok(())
}

/// The value that restores a disk's line. A line with `ctrl=auto` shows values that the kernel chose; to
/// write these values would turn them into a user's choice, so only `ctrl=auto` is written. A disk without a
/// line is disabled and automatic.
fn original(file: &str, line: Option<&str>, number: &str) -> String {
    let is_qos = file == "io.cost.qos";
    match line {
        Some(line) if !line.contains("ctrl=auto") => line.to_owned(),
        Some(line) if is_qos && line.contains("enable=1") => format!("{number} enable=1 ctrl=auto"),
        _ if is_qos => format!("{number} enable=0 ctrl=auto"),
        _ => format!("{number} ctrl=auto"),
    }
}

/// The line of io.cost.model in the kernel's format.
fn model_line(number: &str, model: &CostModel) -> String {
    let way = |letter: char, way: &Way| {
        let Way { bytes_per_s, sequential_per_s, random_per_s, .. } = way;
        format!(
            "{letter}bps={bytes_per_s} {letter}seqiops={sequential_per_s} {letter}randiops={random_per_s}"
        )
    };
    format!("{number} ctrl=user model=linear {} {}", way('r', &model.read), way('w', &model.write))
}

/// The line of io.cost.qos in the kernel's format.
fn qos_line(number: &str, model: &CostModel) -> String {
    let latency = |way: &Way| way.latency_us.clamp(*LATENCY_US.start(), *LATENCY_US.end());
    format!(
        "{number} enable=1 ctrl=user rpct={PERCENTILE} rlat={} wpct={PERCENTILE} wlat={} min={RATE_MIN} max={RATE_MAX}",
        latency(&model.read),
        latency(&model.write)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    /// Four disks: sda is measured and has a queue, sdb is scheduled by BFQ, sdc has no queue, and sdd is not
    /// measured.
    fn machine(mount: &[(&str, &str)]) -> tempfile::TempDir {
        let model = serde_json::to_string(&MODEL).unwrap();
        let mut files = Vec::new();
        for (n, disk) in (1..).zip(["sda", "sdb", "sdc", "sdd"]) {
            let mut put = |file: &str, text: &str| {
                files.push((format!("/sys/block/{disk}/{file}"), text.to_owned()));
            };
            put("size", &n.to_string());
            put("dev", &format!("8:{}", 16 * (n - 1)));
            put("queue/scheduler", if disk == "sdb" { "[bfq] none" } else { "[none]" });
            if disk != "sdc" {
                put("mq/0/cpu_list", "0");
            }
            if disk != "sdd" {
                let kept = format!("{}/__{}.json", crate::observe::disk::model::FOLDER, 512 * n);
                files.push((kept, model.clone()));
            }
        }
        files.extend(mount.iter().map(|(file, text)| (format!("/cg/{file}"), (*text).to_owned())));
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        fake::tree(&files)
    }

    #[test]
    fn it_is_enabled_for_measured_disks_with_a_queue_and_without_weights() {
        let names = |mount: &[(&str, &str)]| {
            let dir = machine(mount);
            let disks = disks_to_enable(&Tree::new(dir.path()), Path::new("/cg"));
            disks.into_iter().map(|(disk, _)| disk.name).collect::<Vec<_>>()
        };
        let (model, qos) = (("io.cost.model", ""), ("io.cost.qos", ""));
        assert_eq!(names(&[model, qos]), ["sda"]);
        let administrators = ("io.cost.qos", "8:0 enable=1 ctrl=user\n");
        assert_eq!(names(&[model, administrators]), [""; 0]);
        assert_eq!(names(&[]), [""; 0], "a kernel without it");
    }

    const MODEL: CostModel = CostModel {
        read: Way {
            bytes_per_s: 8_000_000,
            sequential_per_s: 2_000,
            random_per_s: 1_900,
            latency_us: 33_000,
        },
        write: Way { bytes_per_s: 7_000_000, sequential_per_s: 1_700, random_per_s: 1_600, latency_us: 1 },
    };

    #[test]
    fn lines_as_the_kernel_shows_them() {
        assert_eq!(
            model_line("8:0", &MODEL),
            "8:0 ctrl=user model=linear rbps=8000000 rseqiops=2000 rrandiops=1900 wbps=7000000 wseqiops=1700 wrandiops=1600"
        );
        assert_eq!(
            qos_line("8:0", &MODEL),
            "8:0 enable=1 ctrl=user rpct=95.00 rlat=33000 wpct=95.00 wlat=5000 min=25.00 max=90.00"
        );
    }

    #[test]
    fn values_that_the_kernel_chose_are_left_to_the_kernel_again() {
        let restored = |file, line| original(file, line, "8:0");
        assert_eq!(restored("io.cost.qos", None), "8:0 enable=0 ctrl=auto");
        assert_eq!(restored("io.cost.model", None), "8:0 ctrl=auto");
        assert_eq!(restored("io.cost.model", Some("8:0 ctrl=auto model=linear rbps=1")), "8:0 ctrl=auto");
        let automatic = "8:0 enable=1 ctrl=auto rpct=0.00";
        assert_eq!(restored("io.cost.qos", Some(automatic)), "8:0 enable=1 ctrl=auto");
        let chosen = "8:0 enable=0 ctrl=user rpct=95.00 rlat=5000 wpct=95.00 wlat=5000 min=50.00 max=150.00";
        assert_eq!(restored("io.cost.qos", Some(chosen)), chosen);
    }
}
