//! What can be held of disks, disk by disk, and what cannot: write-back without an owner, and file systems elsewhere.

use std::collections::BTreeSet;
use std::path::Path;

use commonhold_contract::measure::Speed;
use commonhold_machine::capability::{Area, Row, State};

use super::context::{Capability, Context};
use super::resources::pressure;
use crate::observe::disk::devices::{self, Device, Weigher};
use crate::observe::disk::{NotADisk, is_numbered, not_a_disk};

/// The rows about disks. `io` and `memory` are those about the controllers.
pub(super) fn rows(context: &Context, io: &Row, memory: &Row) -> Vec<Row> {
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let disks = devices::read(&context.tree, &mount);
    let mut rows = vec![pressure(context, Area::Disk)];
    if disks.is_empty() {
        rows.push(Row::no(Area::Disk, "disks", "there is no disk in /sys/block"));
        return rows;
    }
    rows.extend(disks.iter().map(|disk| held(context, disk, io)));
    rows.extend([io_cost(context, &disks, io), bfq(context, &disks), measured(&disks)]);
    rows.push(layers(context, &disks));
    rows.extend([write_back(context, memory), by_user(context), elsewhere(context)]);
    rows
}

/// Which means hold one disk.
fn held(context: &Context, disk: &Device, io: &Row) -> Row {
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

/// What an array stands on.
fn drives(context: &Context, array: &str) -> String {
    context.tree.names(format!("/sys/block/{array}/slaves")).join(", ")
}

/// The row about the `user` backend.
pub(super) const BY_USER: &str = "user backend, disks";

/// How the `user` backend holds disks, and how much weaker than control groups.
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
    let heeds = |disk: &&Device| disk.weigher == Some(Weigher::Bfq);
    let heeding = named(disks.iter().filter(heeds));
    let deaf = disks.iter().filter(|disk| !heeds(disk));
    let why = |disk: &Device| {
        let scheduler = disk.schedulers.split(['[', ']']).nth(1);
        let scheduler = scheduler.or(disk.level.as_deref()).unwrap_or("none");
        let word = if scheduler == "mq-deadline" { "mq-deadline heeds classes alone" } else { scheduler };
        format!("{} ({word})", disk.name)
    };
    let deaf: Vec<String> = deaf.map(why).collect();
    let shares = match (heeding.as_str(), deaf.is_empty()) {
        ("", _) => format!("shares are not held: no scheduler heeds priorities on {}", deaf.join(", ")),
        (heeding, true) => format!("shares by I/O priority in eight steps on {heeding}"),
        (heeding, false) => {
            format!("shares by I/O priority in eight steps on {heeding}, not on {}", deaf.join(", "))
        }
    };
    let others = context.status.euid == 0 || context.status.has(Capability::SysPtrace);
    let own = if others { "" } else { "; our own user's processes only" };
    let reason = format!("limits by stopping a unit as a whole, all disks together; {shares}{own}");
    let row = Row::partly(Area::Disk, name, reason);
    match disks.iter().find(|disk| !heeds(disk) && disk.level.is_none()) {
        Some(disk) => row.remedy(format!(
            "use control groups, or as root echo bfq > /sys/block/{}/queue/scheduler",
            disk.name
        )),
        None => row.remedy("use control groups"),
    }
}

/// io.cost makes io.weight work. It is configured per disk, in the hierarchy's top cgroup only.
fn io_cost(context: &Context, disks: &[Device], io: &Row) -> Row {
    let name = "io.cost";
    let mount = context.cgroup2().map(|mount| mount.point.clone()).unwrap_or_default();
    let file = mount.join("io.cost.qos");
    if !context.tree.exists(&file) {
        return without_io_cost(context, &mount, io);
    }
    // Where BFQ schedules, it is not needed.
    let unheld = || disks.iter().filter(|disk| disk.weigher.is_none());
    let off = unheld().find(|disk| disk.queues);
    let cannot = match named(unheld().filter(|disk| !disk.queues)).as_str() {
        "" => String::new(),
        names => format!("; {names} cannot: the kernel has no queue of requests there"),
    };
    match (off, cannot.is_empty()) {
        (None, true) => {
            let on = named(disks.iter().filter(|disk| disk.weigher == Some(Weigher::IoCost)));
            let reason =
                if on.is_empty() { "not needed beside BFQ".to_owned() } else { format!("enabled on {on}") };
            Row::yes(Area::Disk, name, reason)
        }
        (None, false) => {
            let row = Row::partly(Area::Disk, name, format!("the kernel has it{cannot}"));
            let multipath = unheld().any(|disk| !disk.queues && disk.name.starts_with("nvme"));
            // The kernel's ways to one drive have queues, and what stands before them has none.
            if multipath {
                row.remedy("boot with `nvme_core.multipath=N` on the kernel command line")
            } else {
                row
            }
        }
        (Some(disk), _) => {
            let reason = format!("the kernel has it, but it is off on {}{cannot}", disk.name);
            let how = match disk.model {
                Some(_) => "commonhold run switches it on",
                None => "commonhold calibrate FOLDER, then commonhold run",
            };
            let remedy =
                format!("{how}; or, unmeasured, echo '{} enable=1' > {}", disk.number, file.display());
            Row::partly(Area::Disk, name, reason).remedy(remedy)
        }
    }
}

/// Why the top cgroup has no io.cost.qos.
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
    // The hierarchy's own top has no events.
    if context.tree.exists(mount.join("cgroup.events")) {
        let reason = "what is mounted here is not the hierarchy's top, which alone has io.cost.qos";
        return Row::no(Area::Disk, name, reason).remedy("look outside of this container");
    }
    let config = context.tree.text(format!("/boot/config-{}", context.kernel)).unwrap_or_default();
    let reason = if config.lines().any(|line| line == "CONFIG_BLK_CGROUP_IOCOST=y") {
        "the kernel was built with it, and its top cgroup has no io.cost.qos all the same"
    } else {
        "the io controller is there and the top cgroup has no io.cost.qos: this kernel was built without it"
    };
    Row::no(Area::Disk, name, reason).remedy("boot a kernel built with CONFIG_BLK_CGROUP_IOCOST=y")
}

fn named<'d>(disks: impl Iterator<Item = &'d Device>) -> String {
    disks.map(|disk| disk.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Of which disks it is known what they carry.
fn measured(disks: &[Device]) -> Row {
    let name = "what disks carry";
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
            Row::no(Area::Disk, name, "no disk was measured: reservations in bytes per second count as none")
                .remedy(remedy)
        }
        all if all == disks.len() => Row::yes(Area::Disk, name, known.join("; ")),
        _ => Row::partly(Area::Disk, name, known.join("; ")).remedy(remedy),
    }
}

fn bfq(context: &Context, disks: &[Device]) -> Row {
    let name = "BFQ";
    let disks: Vec<String> =
        disks.iter().filter(|disk| disk.level.is_none()).map(|disk| disk.name.clone()).collect();
    if disks.is_empty() {
        return Row::no(Area::Disk, name, "an array has no queue of requests that it could schedule");
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
    let any = disks.iter().any(|disk| scheduler(disk).contains("[bfq]"));
    let row = if any { Row::partly(Area::Disk, name, shown) } else { Row::no(Area::Disk, name, shown) };
    row.remedy(remedy)
}

/// Requests carry their cgroup through device mapper and md, so that it is the disk below that counts and holds them. Arrays
/// that write to their drives themselves, in no unit's name, are disks. Of those that LVM makes, which have images as their
/// drives, nobody tells the level.
fn layers(context: &Context, disks: &[Device]) -> Row {
    let name = "layers on disks";
    let on = |disk: &Device| {
        let layers: Vec<&str> = disk.layers.iter().map(String::as_str).collect();
        (!layers.is_empty()).then(|| format!("{} on {}", layers.join(", "), disk.name))
    };
    let layered: Vec<String> = disks.iter().filter_map(on).collect();
    let silent = unattributed(context);
    if layered.is_empty() && silent.is_empty() {
        return Row::yes(Area::Disk, name, "no device-mapper or md device");
    }
    let known = |layer: &&String| disks.iter().any(|disk| disk.name == **layer);
    let arrays: BTreeSet<&str> =
        disks.iter().flat_map(|disk| &disk.layers).filter(known).map(String::as_str).collect();
    let arrays: Vec<&str> = arrays.into_iter().collect();
    let writes = match arrays.join(", ").as_str() {
        "" => String::new(),
        names => format!("; what {names} writes there is held at {names}"),
    };
    let below = || format!("{}: requests are counted and held at the disk below{writes}", layered.join("; "));
    let held = (!layered.is_empty()).then(below);
    let reason = held.into_iter().chain(silent.iter().cloned()).collect::<Vec<_>>().join("; ");
    let is_image = |layer: &String| {
        let name = context.tree.text(format!("/sys/block/{layer}/dm/name"));
        name.is_some_and(|name| name.contains("_rimage_"))
    };
    if !disks.iter().flat_map(|disk| &disk.layers).any(is_image) {
        return if silent.is_empty() {
            Row::yes(Area::Disk, name, reason)
        } else {
            Row::partly(Area::Disk, name, reason).remedy("keep what units share on a file system on a disk")
        };
    }
    let reason = format!("{reason}; writes to RAID 4 to 6 made by LVM carry no unit's name and are not held");
    Row::partly(Area::Disk, name, reason).remedy("make such arrays with mdadm, and volumes on them")
}

/// What threads of the kernel's own transfer for layers, so that it is in no unit's name at the disk below.
fn unattributed(context: &Context) -> Vec<String> {
    let blocks = context.tree.names("/sys/block");
    let named = |which: &dyn Fn(&str) -> bool| {
        blocks.iter().filter(|name| which(name)).map(String::as_str).collect::<Vec<_>>().join(", ")
    };
    let zvols = named(&|name| not_a_disk(&context.tree, name) == Some(NotADisk::Zvol));
    let datasets = mounted(context, &|kind| kind == "zfs").join(", ");
    let zfs = [zvols, datasets].into_iter().filter(|names| !names.is_empty()).collect::<Vec<_>>().join(", ");
    let numbered = |prefix: &'static str| named(&|name| is_numbered(name, prefix));
    let (bcache, drbd) = (numbered("bcache"), numbered("drbd"));
    let kinds = [
        (
            zfs,
            "all requests of ZFS come from its own threads, and which disks carry it is in no file of the kernel's: what \
               units do there counts for none and is not held",
        ),
        (bcache, "what bcache writes back or fills its cache with is in no unit's name and is not held"),
        (drbd, "what drbd writes for its peer is in no unit's name and is not held"),
    ];
    let there = kinds.into_iter().filter(|(names, _)| !names.is_empty());
    there.map(|(names, what)| format!("{names}: {what}")).collect()
}

/// What is written to a file reaches the disk later, by threads of the kernel's own: whose it is, only some file systems say,
/// and only with the memory controller.
fn write_back(context: &Context, memory: &Row) -> Row {
    let name = "write-back has an owner";
    if memory.state == State::No {
        let reason = "without the memory controller the kernel does not know which unit wrote: at most reads and \
            direct writes can be held";
        return Row::no(Area::Disk, name, reason);
    }
    let silent = mounted(context, &|kind| devices::is_local(kind) && !devices::charges_write_back(kind));
    if silent.is_empty() {
        return Row::yes(Area::Disk, name, "the file systems on disks say which unit wrote");
    }
    let reason = format!(
        "{} does not say which unit wrote: there, only reads and direct writes are held",
        silent.join(", ")
    );
    Row::partly(Area::Disk, name, reason).remedy("use ext4, xfs, btrfs or f2fs where several units write")
}

/// File systems whose disks are other machines'.
fn elsewhere(context: &Context) -> Row {
    let name = "file systems are local";
    match outside_of_control(context) {
        None => Row::yes(Area::Disk, name, "none is mounted from another machine"),
        Some(reason) => Row::partly(Area::Disk, name, reason).remedy("hold them where the disks are"),
    }
}

/// The same in words, if there are any.
pub(super) fn outside_of_control(context: &Context) -> Option<String> {
    let remote = mounted(context, &devices::is_remote);
    let words =
        || format!("outside of control, since the disks are another machine's: {}", remote.join(", "));
    (!remote.is_empty()).then(words)
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
