//! The CPU quota of this process: the smallest one of its control group and that group's ancestors.
//!
//! Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cpu.max`),
//! Documentation/scheduler/sched-bwc.rst (`cpu.cfs_quota_us`), cgroups(7), `proc_pid_mountinfo(5)`.
//!
//! Limits: in a container, quotas of groups outside of the container apply too but are not visible.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use commonhold_scale::study::Quota;

/// A quota, and the file with the throttling statistics of its control group.
#[derive(Debug, Clone, PartialEq)]
pub struct Cap {
    /// The quota as a number of CPUs, and the file that sets it.
    pub quota: Quota,
    stat: PathBuf,
}

impl Cap {
    /// The smallest quota of this process; `None` if it is unlimited.
    pub fn of_this() -> Option<Cap> {
        let read = |path: &Path| read_to_string(path).ok();
        let (groups, mounts) = (read("/proc/self/cgroup".as_ref())?, read("/proc/self/mountinfo".as_ref())?);
        strictest(&groups, &mounts, read)
    }

    /// Throttled time since the group was created, summed over CPUs; 0 if it cannot be read.
    pub fn throttled_ns(&self) -> u64 {
        read_to_string(&self.stat).map_or(0, |text| parse_throttled(&text))
    }
}

/// The smallest quota of all groups of this process, from the contents of /proc/self/cgroup and
/// /proc/self/mountinfo.
fn strictest(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Cap> {
    let mut caps: Vec<Cap> = Vec::new();
    for (mount, group, is_v2) in mounts.lines().filter_map(|line| own_group(line, groups)) {
        let with_ancestors = group.ancestors().filter(|dir| dir.starts_with(&mount));
        caps.extend(with_ancestors.filter_map(|dir| cap(dir, is_v2, &read)));
    }
    caps.into_iter().min_by(|a, b| a.quota.cpus.total_cmp(&b.quota.cpus))
}

/// From a line of mountinfo: the mount point of a hierarchy with a CPU controller, the directory of this
/// process's group there, and whether the hierarchy is of version 2. `None` for other mounts.
///
/// A line: `36 35 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu`. In `groups`:
/// `3:cpu,cpuacct:/a` or `0::/a`.
fn own_group(line: &str, groups: &str) -> Option<(PathBuf, PathBuf, bool)> {
    let (mount, source) = line.split_once(" - ")?;
    let mut words = mount.split_whitespace().skip(3);
    let (root, point) = (words.next()?, PathBuf::from(words.next()?));
    let mut words = source.split_whitespace();
    let (kind, options) = (words.next()?, words.nth(1)?);
    let is_v2 = kind == "cgroup2";
    let is_v1 = kind == "cgroup" && options.split(',').any(|option| option == "cpu");
    (is_v1 || is_v2).then_some(())?;
    let is_of_hierarchy = |controllers: &str| {
        if is_v2 { controllers.is_empty() } else { controllers.split(',').any(|name| name == "cpu") }
    };
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        is_of_hierarchy(controllers).then_some(path)
    })?;
    // In a container only a subtree may be mounted. A group outside of it has no path there.
    let below = Path::new(path).strip_prefix(root).ok()?;
    below.components().all(|part| matches!(part, std::path::Component::Normal(_))).then_some(())?;
    let group = point.join(below);
    Some((point, group, is_v2))
}

/// The quota of the group with this directory; `None` if it is unlimited.
fn cap(dir: &Path, is_v2: bool, read: impl Fn(&Path) -> Option<String>) -> Option<Cap> {
    let (file, quota, period) = if is_v2 {
        let file = dir.join("cpu.max");
        let text = read(&file)?;
        let (quota, period) = text.trim().split_once(' ')?;
        (file, quota.to_owned(), period.to_owned())
    } else {
        let file = dir.join("cpu.cfs_quota_us");
        let quota = read(&file)?;
        (file, quota, read(&dir.join("cpu.cfs_period_us"))?)
    };
    // `max` and -1 mean unlimited.
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    let cpus = number(&quota)? / number(&period)?;
    Some(Cap { quota: Quota { cpus, file: file.display().to_string() }, stat: dir.join("cpu.stat") })
}

/// Throttled time in ns, from `throttled_usec 12` of version 2 or `throttled_time 12000` of version 1.
fn parse_throttled(text: &str) -> u64 {
    let number =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    number("throttled_time ").or_else(|| Some(number("throttled_usec ")?.saturating_mul(1_000))).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The strictest quota among these files, given as paths and contents; and its file.
    fn strictest_of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<(f64, String)> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        strictest(groups, mounts, read).map(|cap| (cap.quota.cpus, cap.quota.file))
    }

    const V2: &str = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "33 31 0:30 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      34 31 0:31 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
                      35 31 0:32 / /cg/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_smallest_quota_of_the_enclosing_groups_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/cpu.max", "400000 100000\n"),
            ("/sys/fs/cgroup/other/cpu.max", "1000 100000\n"),
        ];
        let found = strictest_of("0::/a/b\n", V2, &files);
        assert_eq!(found, Some((1.5, "/sys/fs/cgroup/a/cpu.max".to_owned())));
        assert_eq!(strictest_of("0::/\n", V2, &files[..2]), None);
    }

    #[test]
    fn version_1_and_both_versions_at_once() {
        let files = [
            ("/cg/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("/cg/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
            ("/cg/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("/cg/cpu,cpuacct/cpu.cfs_period_us", "25000\n"),
        ];
        let groups = "4:cpuset:/x\n2:cpu,cpuacct:/a\n0::/\n";
        assert_eq!(
            strictest_of(groups, V1, &files),
            Some((2.0, "/cg/cpu,cpuacct/cpu.cfs_quota_us".to_owned()))
        );
    }

    #[test]
    fn a_container_sees_the_part_that_is_mounted() {
        let mounts = "33 31 0:30 /docker/1a /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        let files = [
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "70000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(strictest_of("2:cpu:/docker/1a\n", mounts, &files).unwrap().0.to_bits(), 0.7f64.to_bits());
        assert_eq!(strictest_of("2:cpu:/elsewhere\n", mounts, &files), None);
        assert_eq!(strictest_of("0::/../x\n", V2, &[("/sys/fs/cgroup/../x/cpu.max", "1 1\n")]), None);
    }

    #[test]
    fn throttled_time_of_both_versions() {
        assert_eq!(parse_throttled("nr_throttled 3\nthrottled_usec 12\n"), 12_000);
        assert_eq!(parse_throttled("nr_periods 9\nthrottled_time 12\n"), 12);
        assert_eq!(parse_throttled("usage_usec 9\n"), 0);
    }
}
