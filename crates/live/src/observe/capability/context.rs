//! Facts that all probes share: mounts, our own cgroups and status, the processor's flags.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use commonhold_machine::CpuSet;

use crate::observe::files::Tree;

/// The name of the line with the flags, on x86 and on Arm.
const CPUINFO_FLAGS: [&str; 2] = ["flags", "Features"];

/// Facts that are read once for all probes.
pub(super) struct Context {
    pub(super) tree: Tree,
    pub(super) mounts: Vec<Mount>,
    pub(super) own_cgroups: Vec<OwnCgroup>,
    pub(super) status: Status,
    pub(super) cpu_flags: BTreeSet<String>,
    pub(super) kernel: String,
    /// Whether systemd is process 1, so that remedies may use its commands.
    pub(super) systemd: bool,
}

impl Context {
    pub(super) fn read(root: &Path) -> Context {
        let tree = Tree::new(root);
        Context {
            mounts: tree.text("/proc/self/mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default(),
            own_cgroups: tree.text("/proc/self/cgroup").map(|text| parse_own(&text)).unwrap_or_default(),
            status: Status::parse(&tree.text("/proc/self/status").unwrap_or_default()),
            cpu_flags: cpu_flags(&tree.text("/proc/cpuinfo").unwrap_or_default()),
            kernel: tree.text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            systemd: tree.exists("/run/systemd/system"),
            tree,
        }
    }

    /// The kernel's version, if it can be parsed.
    pub(super) fn release(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// The mount of the cgroup v2 hierarchy. Of several mounts, preferably the one at the usual path, else
    /// one that shows the hierarchy's root.
    pub(super) fn cgroup2(&self) -> Option<&Mount> {
        let mounts = self.mounts.iter().filter(|mount| mount.kind == "cgroup2");
        mounts.min_by_key(|mount| (mount.point != Path::new("/sys/fs/cgroup"), mount.root != Path::new("/")))
    }

    /// The mount of the cgroup v1 hierarchy that has a controller.
    pub(super) fn cgroup1(&self, controller: &str) -> Option<&Mount> {
        let has_controller = |mount: &&Mount| {
            mount.kind == "cgroup" && mount.options.iter().any(|option| option == controller)
        };
        self.mounts.iter().find(has_controller)
    }

    /// Whether a cgroup of this path exists, in the v2 hierarchy or in systemd's v1 hierarchy, whose paths
    /// /proc shows if v2 is unused. `None` if no mount would show a cgroup of this path.
    pub(super) fn has_cgroup(&self, path: &Path) -> Option<bool> {
        let hierarchies = [self.cgroup2(), self.cgroup1("name=systemd")];
        let mut directories =
            hierarchies.into_iter().flatten().filter_map(|mount| mount.directory_of(path)).peekable();
        directories.peek()?;
        Some(directories.any(|directory| self.tree.exists(directory)))
    }

    /// The mount point and our own cgroup, both as directories, in the v2 hierarchy (`controller: None`) or
    /// in the hierarchy of a v1 controller. `None` if the hierarchy is not mounted, or our cgroup is outside
    /// the part that the mount shows.
    pub(super) fn own_cgroup(&self, controller: Option<&str>) -> Option<(PathBuf, PathBuf)> {
        let mount = match controller {
            None => self.cgroup2()?,
            Some(controller) => self.cgroup1(controller)?,
        };
        let own = self.own_cgroups.iter().find(|own| match controller {
            None => own.version2,
            Some(controller) => own.controllers.iter().any(|own| own == controller),
        })?;
        Some((mount.point.clone(), mount.directory_of(&own.path)?))
    }
}

/// One line of /proc/self/mountinfo: see `proc_pid_mountinfo(5)`.
pub(super) struct Mount {
    /// Where it is mounted.
    pub(super) point: PathBuf,
    /// The folder of its file system that is mounted at `point`.
    pub(super) root: PathBuf,
    /// `cgroup2`, `resctrl`, ...
    pub(super) kind: String,
    /// The file system's own options; a v1 hierarchy names its controllers here.
    pub(super) options: Vec<String>,
    /// Whether the mount or its file system is read-only.
    pub(super) read_only: bool,
}

impl Mount {
    /// The path at which this mount shows a folder, given by its path in the mounted file system; `None` if
    /// it does not.
    fn directory_of(&self, path: &Path) -> Option<PathBuf> {
        // A cgroup outside our cgroup namespace is shown as `/../..`: there is no directory for it.
        if path.components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        let below = path.strip_prefix(&self.root).ok()?;
        // Joining an empty path would add a slash at the end.
        Some(if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let has_ro =
        |options: Option<&str>| options.is_some_and(|words| words.split(',').any(|word| word == "ro"));
    let is_mount_read_only = has_ro(mount.next());
    let mut filesystem = filesystem.split(' ');
    let kind = filesystem.next()?.to_owned();
    let options = filesystem.nth(1)?;
    Some(Mount {
        point: unescape(point).into(),
        root: unescape(root).into(),
        kind,
        options: options.split(',').map(str::to_owned).collect(),
        read_only: is_mount_read_only || has_ro(Some(options)),
    })
}

/// Decodes a path of mountinfo, in which the kernel writes space, tab, newline and backslash as `\040` and
/// the like.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// One line of /proc/self/cgroup: see cgroups(7).
pub(super) struct OwnCgroup {
    version2: bool,
    controllers: Vec<String>,
    pub(super) path: PathBuf,
}

fn parse_own(text: &str) -> Vec<OwnCgroup> {
    let parse = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some(OwnCgroup {
            version2: hierarchy == "0" && controllers.is_empty(),
            controllers: controllers.split(',').map(str::to_owned).collect(),
            path: PathBuf::from(path),
        })
    };
    text.lines().filter_map(parse).collect()
}

/// Our privileges, from /proc/self/status.
pub(super) struct Status {
    /// The effective user.
    pub(super) euid: u32,
    /// The effective capabilities, as bits.
    pub(super) capabilities: u64,
    /// The CPUs we may use.
    pub(super) cpus: CpuSet,
    /// The groups that count for file access: the file system group, and the supplementary ones.
    pub(super) groups: BTreeSet<u32>,
}

impl Status {
    fn parse(text: &str) -> Status {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(':').map(str::trim)
        };
        let euid = field("Uid").and_then(|ids| ids.split_whitespace().nth(1)).and_then(|id| id.parse().ok());
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let numbers = |text: &str| -> Vec<u32> {
            text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        let file_system_group = field("Gid").map(numbers).and_then(|ids| ids.get(3).copied());
        let groups = field("Groups").map(numbers).unwrap_or_default();
        let cpus = field("Cpus_allowed_list").and_then(|list| list.parse().ok());
        Status {
            // Unknown privileges count as none.
            euid: euid.unwrap_or(u32::MAX),
            capabilities: capabilities.unwrap_or(0),
            cpus: cpus.unwrap_or_default(),
            groups: groups.into_iter().chain(file_system_group).collect(),
        }
    }

    /// Whether a capability is among our effective capabilities.
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities & (1 << capability as u32) != 0
    }
}

/// The capabilities used here, with their numbers in linux/capability.h.
#[derive(Clone, Copy)]
pub(super) enum Capability {
    Kill = 5,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    Perfmon = 38,
    Bpf = 39,
}

/// The flags of the first processor in /proc/cpuinfo.
fn cpu_flags(text: &str) -> BTreeSet<String> {
    let line = text.lines().find(|line| CPUINFO_FLAGS.iter().any(|name| line.starts_with(name)));
    let flags = line.and_then(|line| line.split_once(':')).map(|(_, flags)| flags).unwrap_or_default();
    flags.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mounts_with_optional_fields_and_odd_names() {
        let mounts = parse_mounts(
            "30 23 0:26 /docker/a\\040b /sys/fs/cgroup ro,nosuid shared:4 master:1 - cgroup2 cgroup rw,nsdelegate\n\
             31 23 0:27 / /mnt rw - ext4 /dev/sda1 rw\nnot a mount\n",
        );
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].root, Path::new("/docker/a b"));
        assert_eq!(mounts[0].options, ["rw", "nsdelegate"]);
        assert_eq!(mounts[0].directory_of(Path::new("/docker/a b/c")), Some("/sys/fs/cgroup/c".into()));
        assert_eq!(mounts[0].directory_of(Path::new("/docker/a b")), Some("/sys/fs/cgroup".into()));
        assert_eq!(mounts[0].directory_of(Path::new("/elsewhere")), None);
        assert_eq!(mounts[1].directory_of(Path::new("/../x")), None);
    }

    #[test]
    fn the_status_of_a_process_without_facts_has_no_privileges() {
        let status = Status::parse("");
        assert!(status.euid != 0 && !status.has(Capability::Kill));
        let status =
            Status::parse("Uid:\t1000\t0\t0\t0\nCapEff:\t0000000000800020\nCpus_allowed_list:\t0-2\n");
        assert_eq!((status.euid, status.cpus.len()), (0, 3));
        assert!(status.has(Capability::Kill) && status.has(Capability::SysNice));
        assert!(!status.has(Capability::SysAdmin) && !status.has(Capability::Perfmon));
    }

    #[test]
    fn flags_of_the_first_cpu_on_either_architecture() {
        assert!(cpu_flags("processor : 0\nflags\t\t: fpu mba rdt_a\n").contains("mba"));
        assert!(cpu_flags("processor : 0\nFeatures\t: fp asimd\n").contains("asimd"));
        assert!(cpu_flags("").is_empty());
    }
}
