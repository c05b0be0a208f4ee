//! cgroup v2: whether it is mounted, where this program may make its subtree, and with which controllers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use commonhold_machine::capability::{Area, Row, State};

use super::CgroupBase;
use super::context::Context;
use super::sched_ext::sched_ext;

/// The kernel command line with which cgroup v2 gets all controllers, as a remedy.
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
    /// The directory below which our subtree may be made; `None` if there is none.
    base: Option<Base>,
    /// `cgroup.controllers` of the root.
    root_controllers: BTreeSet<String>,
}

/// A directory below which we may make cgroups.
struct Base {
    dir: PathBuf,
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
        Cgroup { base: mount.as_ref().and_then(|mount| find_base(context, mount)), mount, root_controllers }
    }

    /// The base in the form that backends take, with paths in the probed tree.
    pub(super) fn base_for_backends(&self, context: &Context) -> Option<CgroupBase> {
        let (mount, base) = (self.mount.as_ref()?, self.base.as_ref()?);
        Some(CgroupBase {
            mount: context.tree.path(mount),
            base: context.tree.path(&base.dir),
            controllers: base.controllers.clone(),
            delegated: base.delegated,
        })
    }

    /// The rows about cgroup v2 itself.
    pub(super) fn rows(&self, context: &Context) -> Vec<Row> {
        let mut rows = vec![self.mounted(context), self.base_row(context)];
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

    /// The row that says below which directory we may make cgroups.
    fn base_row(&self, context: &Context) -> Row {
        let name = "place for our cgroups";
        let Some(base) = &self.base else {
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
            return Row::no(Area::Cgroup, name, reason).remedy(how_to_get_a_base(context, mount));
        };
        let dir = base.dir.display();
        match (base.delegated, context.status.euid) {
            (false, _) => Row::yes(Area::Cgroup, name, format!("{dir}, the root of the hierarchy")),
            (true, 0) => Row::yes(Area::Cgroup, name, format!("{dir}, delegated to us")),
            (true, _) => {
                let reach = base.reach.display();
                let reason =
                    format!("{dir}, delegated to us; only processes below {reach} can be moved there");
                Row::partly(Area::Cgroup, name, reason).remedy("run as root to hold every process")
            }
        }
    }

    /// The row about one controller.
    pub(super) fn controller(&self, context: &Context, area: Area, controller: &str) -> Row {
        let name = format!("{controller} controller");
        if let Some(base) = self.base.as_ref().filter(|base| base.controllers.contains(controller)) {
            return Row::yes(area, name, format!("offered at {}", base.dir.display()));
        }
        if let (Some(base), true) = (&self.base, self.root_controllers.contains(controller)) {
            let reason = format!("the kernel has it, but it is not passed on to {}", base.dir.display());
            return Row::no(area, name, reason).remedy(pass_on(context, base, controller));
        }
        if self.root_controllers.contains(controller) {
            let no_base = self.base_row(context).reason;
            let reason = format!("the kernel has it, but there is no place for our cgroups: {no_base}");
            return Row::no(area, name, reason);
        }
        let v1_name = if controller == "io" { "blkio" } else { controller };
        if let Some(mount) = context.cgroup1(v1_name) {
            let reason = format!("bound to cgroup v1 at {}", mount.point.display());
            return Row::no(area, name, reason).remedy(unbind(context, &mount.point, v1_name));
        }
        not_in_kernel(context, area, name, controller, v1_name)
    }

    /// The row that says whether the `cgroup` backend can hold CPU.
    pub(super) fn backend(&self, context: &Context) -> Row {
        let name = "cgroup backend";
        let base_row = self.base_row(context);
        let no = |row: Row| Row { area: Area::Cpu, name: name.to_owned(), state: State::No, ..row };
        if self.mount.is_none() {
            return no(self.mounted(context));
        }
        // Without the cpu controller no base would serve, so report that first.
        let cpu = self.controller(context, Area::Cpu, "cpu");
        if cpu.state == State::No && (self.base.is_some() || !self.root_controllers.contains("cpu")) {
            return no(Row { reason: format!("the cpu controller is missing ({})", cpu.reason), ..cpu });
        }
        let Some(base) = &self.base else { return no(base_row) };
        let has_cpuset = base.controllers.contains("cpuset");
        let means = if has_cpuset {
            "cpuset for home CPUs and loans, cpu.weight for shares"
        } else {
            "cpu.weight for shares, cpu.max for caps"
        };
        let cpuset = (!has_cpuset).then(|| Row {
            reason: "without the cpuset controller there are no home CPUs".to_owned(),
            ..self.controller(context, Area::Cpu, "cpuset")
        });
        let others = [base_row, sched_ext(context)].into_iter().filter(|row| row.state == State::Partly);
        let reservations: Vec<Row> = cpuset.into_iter().chain(others).collect();
        let Some(first) = reservations.first() else { return Row::yes(Area::Cpu, name, means) };
        let reasons = reservations.iter().map(|row| row.reason.as_str());
        let reason = std::iter::once(means).chain(reasons).collect::<Vec<_>>().join("; ");
        Row { remedy: first.remedy.clone(), ..Row::partly(Area::Cpu, name, reason) }
    }
}

/// The root of the mount if we may write to it, else our own cgroup if it was delegated to us.
fn find_base(context: &Context, mount: &Path) -> Option<Base> {
    let own = context.own_cgroup(None).map(|(_, own)| own);
    let dir = [Some(mount.to_owned()), own].into_iter().flatten().find(|dir| may_manage(context, dir))?;
    Some(Base {
        controllers: controllers(context, &dir),
        // Only the true root of the hierarchy has no type: cgroup-v2.rst, "cgroup.type".
        delegated: context.tree.exists(dir.join("cgroup.type")),
        reach: reach(context, &dir, mount),
        dir,
    })
}

/// Whether we may make cgroups in a directory. Delegation grants write access to the directory and these two
/// files: cgroup-v2.rst, "Model of Delegation".
fn may_manage(context: &Context, dir: &Path) -> bool {
    ["", "cgroup.procs", "cgroup.subtree_control"].iter().all(|file| context.tree.may_write(dir.join(file)))
}

/// The highest ancestor of `dir` below which we may move processes to `dir`: moving takes write access to
/// cgroup.procs of the common ancestor of source and destination.
fn reach(context: &Context, dir: &Path, mount: &Path) -> PathBuf {
    let ancestors = dir.ancestors().take_while(|dir| dir.starts_with(mount));
    let writable = ancestors.take_while(|dir| context.tree.may_write(dir.join("cgroup.procs")));
    writable.last().unwrap_or(dir).to_owned()
}

/// The controllers that a cgroup offers.
fn controllers(context: &Context, dir: &Path) -> BTreeSet<String> {
    let text = context.tree.text(dir.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The remedy if we may make cgroups nowhere.
fn how_to_get_a_base(context: &Context, mount: &Path) -> String {
    match (context.status.euid, context.systemd) {
        (0, _) => format!("mount -o remount,rw {}", mount.display()),
        (_, true) => "run as root, or `systemd-run --user --scope -p Delegate=yes commonhold ...`".to_owned(),
        (_, false) => "run as root".to_owned(),
    }
}

/// The remedy for a read-only mount. Containers usually see their control groups read-only, and cannot change
/// that from within.
fn make_writable(context: &Context, mount: &Path) -> String {
    let outside = "in a container, start it with its control groups writable (docker run --privileged --cgroupns private)";
    match context.status.euid {
        0 => format!("mount -o remount,rw {}; {outside}", mount.display()),
        _ => outside.to_owned(),
    }
}

/// The remedy that makes the ancestors of our base enable a controller for their children.
fn pass_on(context: &Context, base: &Base, controller: &str) -> String {
    if context.systemd
        && base.dir.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"user@"))
    {
        return "as root, put `[Service]` and `Delegate=cpu cpuset io memory pids` on two lines of \
                /etc/systemd/system/user@.service.d/delegate.conf, run `systemctl daemon-reload`, log in anew"
            .to_owned();
    }
    let parent = base.dir.parent().unwrap_or(&base.dir).join("cgroup.subtree_control");
    format!("as root, from the top down to {}: echo +{controller} > {}", base.dir.display(), parent.display())
}

/// The remedy that moves a controller from cgroup v1 to v2: at the next boot, or at once if its v1 hierarchy
/// has only a root.
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

/// A controller's number of cgroups and whether it is enabled, from its line `name hierarchy cgroups enabled`
/// in /proc/cgroups.
fn kernel_table(context: &Context, v1_name: &str) -> Option<(u64, bool)> {
    let table = context.tree.text("/proc/cgroups")?;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match lines.find(|words| words.first() == Some(&v1_name))?.as_slice() {
        [_, _, cgroups, enabled] => Some((cgroups.parse().ok()?, *enabled == "1")),
        _ => None,
    }
}

/// The row about a controller that neither version of cgroups shows.
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

/// Whether a controller is disabled. Newer kernels list in /proc/cgroups only the controllers of v1, so the
/// kernel command line is checked as well.
fn is_disabled(context: &Context, controller: &str, v1_name: &str) -> bool {
    let command_line = context.tree.text("/proc/cmdline").unwrap_or_default();
    let mut disabled = command_line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("cgroup_disable="))
        .flat_map(|names| names.split(','));
    disabled.any(|name| name == v1_name || name == controller)
        || kernel_table(context, v1_name).is_some_and(|(_, enabled)| !enabled)
}

/// The row about the mount option that makes cgroup namespaces boundaries of delegation.
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
