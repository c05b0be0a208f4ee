//! What can be held of disks, disk by disk, and what cannot: write-back that is nobody's, and file systems elsewhere.

use commonhold_machine::capability::{Area, Row, State};

use super::context::Context;
use super::resources::pressure;
use crate::disk::devices::{self, Device, Weigher};

/// The rows about disks. `io` and `memory` are those about the controllers.
pub(super) fn rows(context: &Context, io: &Row, memory: &Row) -> Vec<Row> {
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let disks = devices::read(&context.tree, &mount);
    let mut rows = vec![pressure(context, Area::Disk)];
    if disks.is_empty() {
        rows.push(Row::no(Area::Disk, "disks", "there is no disk in /sys/block"));
        return rows;
    }
    rows.extend(disks.iter().map(|disk| held(disk, io)));
    let names: Vec<String> = disks.iter().map(|disk| disk.name.clone()).collect();
    rows.extend([io_cost(context, &names), bfq(context, &names), layers(&disks)]);
    rows.push(write_back(context, memory));
    rows.push(elsewhere(context));
    rows
}

/// Which means hold one disk.
fn held(disk: &Device, io: &Row) -> Row {
    let name = format!("disk {}", disk.name);
    if io.state == State::No {
        let reason = format!("cannot be held without the io controller: {}", io.reason);
        let row = Row::no(Area::Disk, name, reason);
        return match &io.remedy {
            Some(remedy) => row.remedy(remedy.clone()),
            None => row,
        };
    }
    match disk.weigher {
        Some(Weigher::Bfq) => {
            Row::yes(Area::Disk, name, "held by weights, which BFQ heeds, corrected by what comes out")
        }
        Some(Weigher::IoCost) => {
            Row::yes(Area::Disk, name, "held by weights, which io.cost heeds, corrected by what comes out")
        }
        None => Row::yes(Area::Disk, name, "held by rates (io.max) that follow use"),
    }
}

/// io.cost makes io.weight work. It is configured per disk, in the root cgroup only.
fn io_cost(context: &Context, disks: &[String]) -> Row {
    let name = "io.cost";
    let mount = context.cgroup2().map(|mount| mount.point.join("io.cost.qos"));
    let Some((file, text)) = mount.and_then(|file| context.tree.text(&file).map(|text| (file, text))) else {
        let reason = "the top cgroup has no io.cost.qos, which comes with the io controller on cgroup v2";
        return Row::no(Area::Disk, name, reason)
            .remedy("with the io controller: boot a kernel built with CONFIG_BLK_CGROUP_IOCOST=y");
    };
    let device = |disk: &String| context.tree.text(format!("/sys/block/{disk}/dev"));
    let enabled = |device: &String| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(device.as_str()));
        line.is_some_and(|line| line.split_whitespace().any(|word| word == "enable=1"))
    };
    let off = disks.iter().find(|disk| !device(disk).as_ref().is_some_and(enabled));
    match off {
        None => Row::yes(Area::Disk, name, format!("enabled on {}", disks.join(", "))),
        Some(disk) => {
            let device = device(disk).unwrap_or_else(|| "MAJOR:MINOR".to_owned());
            let remedy = format!("echo '{device} enable=1' > {}", file.display());
            Row::partly(Area::Disk, name, format!("the kernel has it, but it is off on {disk}"))
                .remedy(remedy)
        }
    }
}

fn bfq(context: &Context, disks: &[String]) -> Row {
    let name = "BFQ";
    let scheduler = |disk: &String| {
        context.tree.text(format!("/sys/block/{disk}/queue/scheduler")).unwrap_or_else(|| "none".to_owned())
    };
    let shown =
        disks.iter().map(|disk| format!("{disk}: {}", scheduler(disk))).collect::<Vec<_>>().join("; ");
    let Some(without) = disks.iter().find(|disk| !scheduler(disk).contains("[bfq]")) else {
        return Row::yes(Area::Disk, name, format!("schedules {}", disks.join(", ")));
    };
    let offered = scheduler(without).split_whitespace().any(|name| name == "bfq");
    let load = if offered { "" } else { "modprobe bfq && " };
    let remedy = format!("{load}echo bfq > /sys/block/{without}/queue/scheduler");
    let any = disks.iter().any(|disk| scheduler(disk).contains("[bfq]"));
    let row = if any { Row::partly(Area::Disk, name, shown) } else { Row::no(Area::Disk, name, shown) };
    row.remedy(remedy)
}

/// Requests carry their cgroup through device mapper and md, so that it is the disk below that counts and holds them.
fn layers(disks: &[Device]) -> Row {
    let name = "layers on disks";
    let on = |disk: &Device| {
        let layers: Vec<&str> = disk.layers.iter().map(String::as_str).collect();
        (!layers.is_empty()).then(|| format!("{} on {}", layers.join(", "), disk.name))
    };
    let layered: Vec<String> = disks.iter().filter_map(on).collect();
    if layered.is_empty() {
        return Row::yes(Area::Disk, name, "no device-mapper or md device");
    }
    let reason = format!("{}: requests are counted and held at the disk below", layered.join("; "));
    Row::yes(Area::Disk, name, reason)
}

/// What is written to a file reaches the disk later, by threads of the kernel's own: whose it is, only some file systems say,
/// and only with the memory controller.
fn write_back(context: &Context, memory: &Row) -> Row {
    let name = "write-back is its owner's";
    if memory.state == State::No {
        let reason =
            "without the memory controller nobody knows whose it is: only reads and direct writes are held";
        return Row::no(Area::Disk, name, reason);
    }
    let silent = mounted(context, &|kind| devices::is_local(kind) && !devices::charges_write_back(kind));
    if silent.is_empty() {
        return Row::yes(Area::Disk, name, "the file systems on disks say whose it is");
    }
    let reason = format!("{} does not say: there, only reads and direct writes are held", silent.join(", "));
    Row::partly(Area::Disk, name, reason).remedy("use ext4, xfs, btrfs or f2fs where many write")
}

/// File systems whose disks are other machines'.
fn elsewhere(context: &Context) -> Row {
    let name = "no file systems elsewhere";
    let remote = mounted(context, &devices::is_remote);
    if remote.is_empty() {
        return Row::yes(Area::Disk, name, "none is mounted from another machine");
    }
    let reason = format!("outside of control, since the disks are another machine's: {}", remote.join(", "));
    Row::partly(Area::Disk, name, reason).remedy("hold them where the disks are")
}

/// The mounts of such kinds: `/home (nfs4)`; at most four, and how many more.
fn mounted(context: &Context, which: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mounts = context.mounts.iter().filter(|mount| which(&mount.kind));
    let mut shown: Vec<String> =
        mounts.map(|mount| format!("{} ({})", mount.point.display(), mount.kind)).collect();
    let more = shown.len().saturating_sub(4);
    shown.truncate(4);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown
}
