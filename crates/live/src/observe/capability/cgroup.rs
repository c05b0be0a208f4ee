//! cgroup v2: whether it is mounted, where this program may make its subtree, and with which controllers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use commonhold_machine::capability::{Area, Row, State};

use super::CgroupBase;
use super::context::Context;
use super::sched_ext::sched_ext;

/// The remedy that gives cgroup v2 all controllers.
fn boot_v2(context: &Context) -> &'static str {
    if context.systemd {
        "boot with `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the kernel command line"
    } else {
        "boot with `cgroup_no_v1=all` on the kernel command line"
    }
}

/// Findings about cgroup v2, with paths as on the real machine.
pub(super) struct Cgroup {
    /// Where it is mounted.
    mount: Option<PathBuf>,
    /// Where a subtree may be made.
    place: Option<Place>,
    /// `cgroup.controllers` of the root.
    root_controllers: BTreeSet<String>,
}

/// A directory below which we may make cgroups.
struct Place {
    base: PathBuf,
    controllers: BTreeSet<String>,
    /// Whether the base is a cgroup other than the root.
    delegated: bool,
    /// The highest directory whose processes we may move into the base.
    reach: PathBuf,
}

impl Cgroup {
    pub(super) fn probe(context: &Context) -> Cgroup {
        let mount = context.cgroup2().map(|mount| mount.point.clone());
        let root_controllers = mount.as_ref().map(|mount| controllers(context, mount)).unwrap_or_default();
        Cgroup { place: mount.as_ref().and_then(|mount| place(context, mount)), mount, root_controllers }
    }

    /// The place for the backend, with paths in the probed tree.
    pub(super) fn typed(&self, context: &Context) -> Option<CgroupBase> {
        let (mount, place) = (self.mount.as_ref()?, self.place.as_ref()?);
        Some(CgroupBase {
            mount: context.tree.path(mount),
            base: context.tree.path(&place.base),
            controllers: place.controllers.clone(),
            delegated: place.delegated,
        })
    }

    /// The rows about cgroup v2 itself.
    pub(super) fn rows(&self, context: &Context) -> Vec<Row> {
        let mut rows = vec![self.mounted(context), self.place_row(context)];
        rows.extend(self.mount.as_ref().map(|mount| nsdelegate(context, mount)));
        rows
    }

    fn mounted(&self, context: &Context) -> Row {
        let v1 = context.mounts.iter().filter(|mount| mount.kind == "cgroup").count();
        let name = "cgroup v2";
        match &self.mount {
            None if context.tree.exists("/proc/cgroups") => {
                let remedy = "mount -t cgroup2 cgroup2 /sys/fs/cgroup";
                let remedy = if v1 > 0 { boot_v2(context) } else { remedy };
                Row::no(Area::Cgroup, name, "it is not mounted").remedy(remedy)
            }
            None => Row::no(Area::Cgroup, name, "this kernel has no control groups")
                .remedy("boot a kernel built with CONFIG_CGROUPS=y"),
            Some(mount) if v1 > 0 => {
                let hierarchies = if v1 == 1 { "hierarchy" } else { "hierarchies" };
                let reason = format!("mounted at {}, beside {v1} cgroup v1 {hierarchies}", mount.display());
                Row::partly(Area::Cgroup, name, reason).remedy(boot_v2(context))
            }
            Some(mount) => Row::yes(Area::Cgroup, name, format!("mounted at {}", mount.display())),
        }
    }

    fn place_row(&self, context: &Context) -> Row {
        let name = "place for our cgroups";
        let Some(place) = &self.place else {
            let Some(mount) = &self.mount else {
                return Row::no(Area::Cgroup, name, "there is no cgroup v2");
            };
            let own = context.own_cgroup(None).map(|(_, own)| own).filter(|own| own != mount);
            let top = mount.display();
            if context.cgroup2().is_some_and(|mount| mount.read_only) {
                return Row::no(Area::Cgroup, name, format!("{top} is mounted read-only"))
                    .remedy(make_writable(context, mount));
            }
            let reason = match own {
                Some(own) => {
                    format!("this user may write neither to {top} nor to its own cgroup, {}", own.display())
                }
                None => format!("{top} may not be written to"),
            };
            return Row::no(Area::Cgroup, name, reason).remedy(get_a_place(context, mount));
        };
        let base = place.base.display();
        match (place.delegated, context.status.euid) {
            (false, _) => Row::yes(Area::Cgroup, name, format!("{base}, the root of the hierarchy")),
            (true, 0) => Row::yes(Area::Cgroup, name, format!("{base}, delegated to us")),
            (true, _) => {
                let reach = place.reach.display();
                let reason =
                    format!("{base}, delegated to us; only processes below {reach} can be moved there");
                Row::partly(Area::Cgroup, name, reason).remedy("run as root to hold every process")
            }
        }
    }

    /// The row about one controller.
    pub(super) fn controller(&self, context: &Context, area: Area, controller: &str) -> Row {
        let name = format!("{controller} controller");
        if let Some(place) = self.place.as_ref().filter(|place| place.controllers.contains(controller)) {
            return Row::yes(area, name, format!("offered at {}", place.base.display()));
        }
        if let (Some(place), true) = (&self.place, self.root_controllers.contains(controller)) {
            let reason = format!("the kernel has it, but it is not passed on to {}", place.base.display());
            return Row::no(area, name, reason).remedy(pass_on(context, place, controller));
        }
        if self.root_controllers.contains(controller) {
            let no_place = self.place_row(context).reason;
            let reason = format!("the kernel has it, but there is no place for our cgroups: {no_place}");
            return Row::no(area, name, reason);
        }
        let v1_name = if controller == "io" { "blkio" } else { controller };
        if let Some(mount) = context.cgroup1(v1_name) {
            let reason = format!("bound to cgroup v1 at {}", mount.point.display());
            return Row::no(area, name, reason).remedy(unbind(context, &mount.point, v1_name));
        }
        not_in_kernel(context, area, name, controller, v1_name)
    }

    /// Whether the `cgroup` backend can hold CPU here, and the place if so.
    pub(super) fn backend(&self, context: &Context) -> Row {
        let name = "cgroup backend";
        let place_row = self.place_row(context);
        let no = |row: Row| Row { area: Area::Cpu, name: name.to_owned(), state: State::No, ..row };
        if self.mount.is_none() {
            return no(self.mounted(context));
        }
        // Without the controller no place would do, so report that first.
        let cpu = self.controller(context, Area::Cpu, "cpu");
        if cpu.state == State::No && (self.place.is_some() || !self.root_controllers.contains("cpu")) {
            return no(Row { reason: format!("the cpu controller is missing ({})", cpu.reason), ..cpu });
        }
        let Some(place) = &self.place else { return no(place_row) };
        let has_cpuset = place.controllers.contains("cpuset");
        let means = if has_cpuset {
            "cpuset for home CPUs and loans, cpu.weight for shares"
        } else {
            "cpu.weight for shares, cpu.max for caps"
        };
        let cpuset = (!has_cpuset).then(|| Row {
            reason: "without the cpuset controller there are no home CPUs".to_owned(),
            ..self.controller(context, Area::Cpu, "cpuset")
        });
        let others = [place_row, sched_ext(context)].into_iter().filter(|row| row.state == State::Partly);
        let reservations: Vec<Row> = cpuset.into_iter().chain(others).collect();
        let Some(first) = reservations.first() else { return Row::yes(Area::Cpu, name, means) };
        let reasons = reservations.iter().map(|row| row.reason.as_str());
        let reason = std::iter::once(means).chain(reasons).collect::<Vec<_>>().join("; ");
        Row { remedy: first.remedy.clone(), ..Row::partly(Area::Cpu, name, reason) }
    }
}

/// The root of the mount if we may write there, else our own cgroup if it was delegated to us.
fn place(context: &Context, mount: &Path) -> Option<Place> {
    let own = context.own_cgroup(None).map(|(_, own)| own);
    let base = [Some(mount.to_owned()), own].into_iter().flatten().find(|dir| may_manage(context, dir))?;
    Some(Place {
        controllers: controllers(context, &base),
        // Only the true root of the hierarchy has no type: cgroup-v2.rst, "cgroup.type".
        delegated: context.tree.exists(base.join("cgroup.type")),
        reach: reach(context, &base, mount),
        base,
    })
}

/// Delegation grants the directory and these two files: cgroup-v2.rst, "Model of Delegation".
fn may_manage(context: &Context, dir: &Path) -> bool {
    ["", "cgroup.procs", "cgroup.subtree_control"].iter().all(|file| context.tree.may_write(dir.join(file)))
}

/// The highest ancestor of `base` from which processes can be moved: that takes write access to cgroup.procs of the common
/// ancestor of source and destination.
fn reach(context: &Context, base: &Path, mount: &Path) -> PathBuf {
    let below = base.ancestors().take_while(|dir| dir.starts_with(mount));
    let writable = below.take_while(|dir| context.tree.may_write(dir.join("cgroup.procs")));
    writable.last().unwrap_or(base).to_owned()
}

fn controllers(context: &Context, dir: &Path) -> BTreeSet<String> {
    let text = context.tree.text(dir.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

fn get_a_place(context: &Context, mount: &Path) -> String {
    match (context.status.euid, context.systemd) {
        (0, _) => format!("mount -o remount,rw {}", mount.display()),
        (_, true) => "run as root, or `systemd-run --user --scope -p Delegate=yes commonhold ...`".to_owned(),
        (_, false) => "run as root".to_owned(),
    }
}

/// Containers usually see their control groups read-only, and cannot change that from within.
fn make_writable(context: &Context, mount: &Path) -> String {
    let outside = "in a container, start it with its control groups writable (docker run --privileged --cgroupns private)";
    match context.status.euid {
        0 => format!("mount -o remount,rw {}; {outside}", mount.display()),
        _ => outside.to_owned(),
    }
}

/// How the ancestors of our place pass a controller on.
fn pass_on(context: &Context, place: &Place, controller: &str) -> String {
    if context.systemd
        && place.base.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"user@"))
    {
        return "as root, put `[Service]` and `Delegate=cpu cpuset io memory pids` on two lines of \
                /etc/systemd/system/user@.service.d/delegate.conf, run `systemctl daemon-reload`, log in anew"
            .to_owned();
    }
    let parent = place.base.parent().unwrap_or(&place.base).join("cgroup.subtree_control");
    format!(
        "as root, from the top down to {}: echo +{controller} > {}",
        place.base.display(),
        parent.display()
    )
}

/// How a controller gets from version 1 to version 2: at the next boot, or at once if only the root exists in version 1.
fn unbind(context: &Context, mount: &Path, v1_name: &str) -> String {
    let (mount, boot) = (mount.display(), boot_v2(context));
    match kernel_table(context, v1_name) {
        Some((1, _)) => {
            format!("umount {mount}, where it has no cgroups, until the next boot; for good, {boot}")
        }
        Some(_) => format!("{boot}: {mount} has cgroups, and cannot be unmounted"),
        None => boot.to_owned(),
    }
}

/// A controller's number of cgroups and whether it is enabled, from its line `name hierarchy cgroups enabled` in /proc/cgroups.
fn kernel_table(context: &Context, v1_name: &str) -> Option<(u64, bool)> {
    let table = context.tree.text("/proc/cgroups")?;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match lines.find(|words| words.first() == Some(&v1_name))?.as_slice() {
        [_, _, cgroups, enabled] => Some((cgroups.parse().ok()?, *enabled == "1")),
        _ => None,
    }
}

fn not_in_kernel(context: &Context, area: Area, name: String, controller: &str, v1_name: &str) -> Row {
    let config = match controller {
        "cpu" => "CONFIG_CGROUP_SCHED and CONFIG_FAIR_GROUP_SCHED",
        "cpuset" => "CONFIG_CPUSETS",
        "memory" => "CONFIG_MEMCG",
        _ => "CONFIG_BLK_CGROUP",
    };
    if is_disabled(context, controller, v1_name) {
        return Row::no(area, name, "disabled on the kernel command line")
            .remedy(format!("remove `cgroup_disable={controller}` from the kernel command line and boot"));
    }
    match kernel_table(context, v1_name) {
        Some(_) => Row::no(area, name, "the kernel has it, but cgroup v2 does not show it here"),
        None => Row::no(area, name, "this kernel was built without it")
            .remedy(format!("boot a kernel built with {config}")),
    }
}

/// Newer kernels list in /proc/cgroups only what version 1 offers, so this checks the kernel command line as well.
fn is_disabled(context: &Context, controller: &str, v1_name: &str) -> bool {
    let command_line = context.tree.text("/proc/cmdline").unwrap_or_default();
    let mut disabled = command_line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("cgroup_disable="))
        .flat_map(|names| names.split(','));
    disabled.any(|name| name == v1_name || name == controller)
        || kernel_table(context, v1_name).is_some_and(|(_, enabled)| !enabled)
}

fn nsdelegate(context: &Context, mount: &Path) -> Row {
    let name = "nsdelegate";
    let set =
        context.cgroup2().is_some_and(|mount| mount.options.iter().any(|option| option == "nsdelegate"));
    if set {
        return Row::yes(Area::Cgroup, name, "cgroup namespaces are boundaries of delegation");
    }
    let reason = "a container with cgroups of its own could change the limits set on it";
    Row::no(Area::Cgroup, name, reason).remedy(format!("mount -o remount,nsdelegate {}", mount.display()))
}
