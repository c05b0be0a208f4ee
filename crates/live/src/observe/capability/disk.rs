//! How each disk can be held, and which transfers cannot be held: write-back that is attributed to no unit,
//! and transfers to file systems of other machines.

use std::collections::BTreeSet;
use std::path::Path;

use commonhold_contract::measure::Speed;
use commonhold_machine::capability::{Area, Row, State};

use super::context::{Capability, Context};
use super::resources::pressure;
use crate::observe::disk::devices::{self, Device, Weigher};
use crate::observe::disk::{NotADisk, is_numbered, not_a_disk};

/// The rows about disks. `io` and `memory` are the rows of the io controller and the memory controller.
pub(super) fn rows(context: &Context, io: &Row, memory: &Row) -> Vec<Row> {
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let disks = devices::read(&context.tree, &mount);
    let mut rows = vec![pressure(context, Area::Disk)];
    if disks.is_empty() {
        rows.push(Row::no(Area::Disk, "disks", "there is no disk in /sys/block"));
        return rows;
    }
    rows.extend(disks.iter().map(|disk| disk_row(context, disk, io)));
    rows.extend([io_cost(context, &disks, io), bfq(context, &disks), measured(&disks)]);
    rows.push(layers(context, &disks));
    rows.extend([write_back(context, memory), by_user(context), elsewhere(context)]);
    rows
}

/// The row about one disk, with the mechanism that holds it. `io` is the row of the io controller.
fn disk_row(context: &Context, disk: &Device, io: &Row) -> Row {
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
            Row::yes(Area::Disk, name, "held by BFQ's weights, corrected by the measured throughput")
        }
        Some(Weigher::IoCost) => {
            Row::yes(Area::Disk, name, "held by io.cost's weights, corrected by the measured throughput")
        }
        None => {
            let rates = "held by rates (io.max) that follow use";
            let reason = match &disk.level {
                None => rates.to_owned(),
                Some(level) => format!("{level} on {}, {rates}", drives(context, &disk.name)),
            };
            Row::yes(Area::Disk, name, reason)
        }
    }
}

/// The drives of an array.
fn drives(context: &Context, array: &str) -> String {
    context.tree.names(format!("/sys/block/{array}/slaves")).join(", ")
}

/// The name of the row about the `user` backend.
pub(super) const BY_USER: &str = "user backend, disks";

/// The row that says how the `user` backend holds disks, which is weaker than control groups.
pub(super) fn by_user(context: &Context) -> Row {
    let name = BY_USER;
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let disks = devices::read(&context.tree, &mount);
    if disks.is_empty() {
        return Row::no(Area::Disk, name, "there is no disk in /sys/block");
    }
    if !context.tree.exists("/proc/self/io") {
        let reason = "this kernel does not count transfers by process (no /proc/PID/io): the user backend does not hold disks";
        let remedy = "boot a kernel built with CONFIG_TASK_IO_ACCOUNTING=y";
        return Row::no(Area::Disk, name, reason).remedy(remedy);
    }
    // Only BFQ honours I/O priorities, by which this backend holds shares. Other disks are named with their
    // schedulers.
    let has_priorities = |disk: &&Device| disk.weigher == Some(Weigher::Bfq);
    let with = names_of(disks.iter().filter(has_priorities));
    let without = disks.iter().filter(|disk| !has_priorities(disk));
    let with_scheduler = |disk: &Device| {
        let scheduler = disk.schedulers.split(['[', ']']).nth(1);
        let scheduler = scheduler.or(disk.level.as_deref()).unwrap_or("none");
        let word = if scheduler == "mq-deadline" { "mq-deadline honours classes only" } else { scheduler };
        format!("{} ({word})", disk.name)
    };
    let without: Vec<String> = without.map(with_scheduler).collect();
    let shares = match (with.as_str(), without.is_empty()) {
        ("", _) => {
            format!("shares are not held: no scheduler honours priorities on {}", without.join(", "))
        }
        (with, true) => format!("shares by I/O priority in eight steps on {with}"),
        (with, false) => {
            format!("shares by I/O priority in eight steps on {with}, not on {}", without.join(", "))
        }
    };
    let reads_other_users = context.status.euid == 0 || context.status.has(Capability::SysPtrace);
    let own = if reads_other_users { "" } else { "; our own user's processes only" };
    let reason = format!("limits by stopping a unit as a whole, all disks together; {shares}{own}");
    let row = Row::partly(Area::Disk, name, reason);
    match disks.iter().find(|disk| !has_priorities(disk) && disk.level.is_none()) {
        Some(disk) => row.remedy(format!(
            "use control groups, or as root echo bfq > /sys/block/{}/queue/scheduler",
            disk.name
        )),
        None => row.remedy("use control groups"),
    }
}

/// The row about io.cost, which enforces io.weight. io.cost is configured per disk, in the root cgroup only.
/// `io` is the row of the io controller.
fn io_cost(context: &Context, disks: &[Device], io: &Row) -> Row {
    let name = "io.cost";
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let file = mount.join("io.cost.qos");
    if !context.tree.exists(&file) {
        return without_io_cost(context, &mount, io);
    }
    // A disk that BFQ schedules does not need io.cost.
    let unweighted = || disks.iter().filter(|disk| disk.weigher.is_none());
    let off = unweighted().find(|disk| disk.queues);
    let cannot = match names_of(unweighted().filter(|disk| !disk.queues)).as_str() {
        "" => String::new(),
        names => format!("; {names} cannot have it: the kernel has no request queue there"),
    };
    match (off, cannot.is_empty()) {
        (None, true) => {
            let on = names_of(disks.iter().filter(|disk| disk.weigher == Some(Weigher::IoCost)));
            let reason =
                if on.is_empty() { "not needed beside BFQ".to_owned() } else { format!("enabled on {on}") };
            Row::yes(Area::Disk, name, reason)
        }
        (None, false) => {
            let row = Row::partly(Area::Disk, name, format!("the kernel has it{cannot}"));
            let multipath = unweighted().any(|disk| !disk.queues && disk.name.starts_with("nvme"));
            // Each path of a multipath drive has a queue; the device in front of the paths has none.
            if multipath {
                row.remedy("boot with `nvme_core.multipath=N` on the kernel command line")
            } else {
                row
            }
        }
        (Some(disk), _) => {
            let reason = format!("the kernel has it, but it is off on {}{cannot}", disk.name);
            let command = match disk.model {
                Some(_) => "commonhold run switches it on",
                None => "commonhold calibrate FOLDER, then commonhold run",
            };
            let remedy =
                format!("{command}; or, unmeasured, echo '{} enable=1' > {}", disk.number, file.display());
            Row::partly(Area::Disk, name, reason).remedy(remedy)
        }
    }
}

/// The row about io.cost if the root cgroup has no io.cost.qos, with the reason.
fn without_io_cost(context: &Context, mount: &Path, io: &Row) -> Row {
    let name = "io.cost";
    if io.state == State::No {
        let reason = format!("comes with the io controller, which is missing: {}", io.reason);
        let row = Row::no(Area::Disk, name, reason);
        return match &io.remedy {
            Some(remedy) => row.remedy(remedy.clone()),
            None => row,
        };
    }
    // Only the hierarchy's root has no cgroup.events.
    if context.tree.exists(mount.join("cgroup.events")) {
        let reason = "the mount does not show the hierarchy's root, the only cgroup with io.cost.qos";
        return Row::no(Area::Disk, name, reason).remedy("look outside this container");
    }
    let config = context.tree.text(format!("/boot/config-{}", context.kernel)).unwrap_or_default();
    let reason = if config.lines().any(|line| line == "CONFIG_BLK_CGROUP_IOCOST=y") {
        "the kernel was built with it, but its root cgroup has no io.cost.qos"
    } else {
        "the io controller exists, but the root cgroup has no io.cost.qos: this kernel was built without it"
    };
    Row::no(Area::Disk, name, reason).remedy("boot a kernel built with CONFIG_BLK_CGROUP_IOCOST=y")
}

/// The names of disks, separated by commas.
fn names_of<'d>(disks: impl Iterator<Item = &'d Device>) -> String {
    disks.map(|disk| disk.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The row about the disks whose throughput was measured.
fn measured(disks: &[Device]) -> Row {
    let name = "throughput of disks measured";
    let known: Vec<String> = disks
        .iter()
        .filter_map(|disk| {
            let model = disk.model?;
            Some(format!(
                "{}: {} read, {} written",
                disk.name,
                Speed(Some(model.read.bytes_per_s)),
                Speed(Some(model.write.bytes_per_s))
            ))
        })
        .collect();
    let remedy = "commonhold calibrate FOLDER, with a folder on a file system of the disk";
    match known.len() {
        0 => {
            Row::no(Area::Disk, name, "no disk was measured: reservations in bytes per second have no effect")
                .remedy(remedy)
        }
        all if all == disks.len() => Row::yes(Area::Disk, name, known.join("; ")),
        _ => Row::partly(Area::Disk, name, known.join("; ")).remedy(remedy),
    }
}

/// The row that says which disks the scheduler BFQ serves.
fn bfq(context: &Context, disks: &[Device]) -> Row {
    let name = "BFQ";
    let disks: Vec<String> =
        disks.iter().filter(|disk| disk.level.is_none()).map(|disk| disk.name.clone()).collect();
    if disks.is_empty() {
        return Row::no(Area::Disk, name, "an array has no request queue to schedule");
    }
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
    let has_bfq = disks.iter().any(|disk| scheduler(disk).contains("[bfq]"));
    let row = if has_bfq { Row::partly(Area::Disk, name, shown) } else { Row::no(Area::Disk, name, shown) };
    row.remedy(remedy)
}

/// The row about layers. Requests keep their cgroup on the way through device mapper and md, so the disk
/// below can attribute them to units. An array whose own threads write to its drives, attributed to no unit,
/// is itself a disk. Arrays of LVM, whose drives are image devices, are an exception: no kernel file shows
/// their level.
fn layers(context: &Context, disks: &[Device]) -> Row {
    let name = "layers on disks";
    let layers_on = |disk: &Device| {
        let layers: Vec<&str> = disk.layers.iter().map(String::as_str).collect();
        (!layers.is_empty()).then(|| format!("{} on {}", layers.join(", "), disk.name))
    };
    let layered: Vec<String> = disks.iter().filter_map(layers_on).collect();
    let unattributed = unattributed(context);
    if layered.is_empty() && unattributed.is_empty() {
        return Row::yes(Area::Disk, name, "no device-mapper or md device");
    }
    // Layers that are themselves disks: self-writing arrays on drives with another use.
    let is_disk = |layer: &&String| disks.iter().any(|disk| disk.name == **layer);
    let arrays: BTreeSet<&str> =
        disks.iter().flat_map(|disk| &disk.layers).filter(is_disk).map(String::as_str).collect();
    let arrays: Vec<&str> = arrays.into_iter().collect();
    let writes = match arrays.join(", ").as_str() {
        "" => String::new(),
        names => format!("; what {names} writes there is held at {names}"),
    };
    let below = || format!("{}: requests are counted and held at the disk below{writes}", layered.join("; "));
    let held = (!layered.is_empty()).then(below);
    let reason = held.into_iter().chain(unattributed.iter().cloned()).collect::<Vec<_>>().join("; ");
    let is_image = |layer: &String| {
        let name = context.tree.text(format!("/sys/block/{layer}/dm/name"));
        name.is_some_and(|name| name.contains("_rimage_"))
    };
    if !disks.iter().flat_map(|disk| &disk.layers).any(is_image) {
        return if unattributed.is_empty() {
            Row::yes(Area::Disk, name, reason)
        } else {
            Row::partly(Area::Disk, name, reason).remedy("keep shared data on a file system on a disk")
        };
    }
    let reason =
        format!("{reason}; writes to RAID 4 to 6 made by LVM are attributed to no unit and are not held");
    Row::partly(Area::Disk, name, reason).remedy("make such arrays with mdadm, and volumes on top of them")
}

/// A sentence about each kind of layer whose transfers are made by kernel threads, so that the disk below
/// attributes them to no unit.
fn unattributed(context: &Context) -> Vec<String> {
    let devices = context.tree.names("/sys/block");
    let names_where = |is_wanted: &dyn Fn(&str) -> bool| {
        devices.iter().filter(|name| is_wanted(name)).map(String::as_str).collect::<Vec<_>>().join(", ")
    };
    let zvols = names_where(&|name| not_a_disk(&context.tree, name) == Some(NotADisk::Zvol));
    let datasets = mounted(context, &|kind| kind == "zfs").join(", ");
    let zfs = [zvols, datasets].into_iter().filter(|names| !names.is_empty()).collect::<Vec<_>>().join(", ");
    let numbered = |prefix: &'static str| names_where(&|name| is_numbered(name, prefix));
    let (bcache, drbd) = (numbered("bcache"), numbered("drbd"));
    let kinds = [
        (
            zfs,
            "all requests of ZFS come from its own threads, and no kernel file says which disks carry them: transfers of units \
               there are attributed to no unit and are not held",
        ),
        (bcache, "bcache's write-back and cache fills are attributed to no unit and are not held"),
        (drbd, "drbd's writes for its peer are attributed to no unit and are not held"),
    ];
    let present = kinds.into_iter().filter(|(names, _)| !names.is_empty());
    present.map(|(names, what)| format!("{names}: {what}")).collect()
}

/// The row about write-back: kernel threads write file data to the disk after the program's write. Only some
/// file systems attribute these writes to a cgroup, and only with the memory controller, whose row is
/// `memory`.
fn write_back(context: &Context, memory: &Row) -> Row {
    let name = "write-back is attributed";
    if memory.state == State::No {
        let reason = "without the memory controller the kernel cannot attribute write-back to units: at most reads and \
            direct writes can be held";
        return Row::no(Area::Disk, name, reason);
    }
    let unattributed =
        mounted(context, &|kind| devices::is_local(kind) && !devices::charges_write_back(kind));
    if unattributed.is_empty() {
        return Row::yes(Area::Disk, name, "all file systems on disks attribute it to units");
    }
    let reason = format!(
        "{} does not attribute it to units: only reads and direct writes are held there",
        unattributed.join(", ")
    );
    Row::partly(Area::Disk, name, reason).remedy("use ext4, xfs, btrfs or f2fs where several units write")
}

/// The row about file systems whose disks belong to other machines.
fn elsewhere(context: &Context) -> Row {
    let name = "file systems are local";
    match outside_of_control(context) {
        None => Row::yes(Area::Disk, name, "none is mounted from another machine"),
        Some(reason) => Row::partly(Area::Disk, name, reason).remedy("hold them where the disks are"),
    }
}

/// The message about file systems of other machines, if any are mounted.
pub(super) fn outside_of_control(context: &Context) -> Option<String> {
    let remote = mounted(context, &devices::is_remote);
    let words =
        || format!("outside of control, since the disks belong to another machine: {}", remote.join(", "));
    (!remote.is_empty()).then(words)
}

/// The mounts of the kinds of file system for which `is_wanted` is true, as `/home (nfs4)`: at most four, and
/// the number of others.
fn mounted(context: &Context, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mounts = context.mounts.iter().filter(|mount| is_wanted(&mount.kind));
    let mut shown: Vec<String> =
        mounts.map(|mount| format!("{} ({})", mount.point.display(), mount.kind)).collect();
    let more = shown.len().saturating_sub(4);
    shown.truncate(4);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown
}
