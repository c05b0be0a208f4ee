//! The kernel's file system `resctrl`: transfers of groups of tasks, as processors count and throttle them.
//!
//! Terms: a *monitoring group* of tasks has its own counters; a *control group* (not a cgroup) also has its
//! own *schemata*, which sets the group's resources. A *domain* is a last-level cache; each domain has a
//! separate counter. A bandwidth percentage is relative to the maximum of one CPU, so two threads of a group
//! with 10 % may together transfer twice as much as one thread.
//!
//! Limits: on AMD processors, and with the mount option `mba_MBps`, a schemata has rates instead of
//! percentages. Groups with rates are not throttled.
//!
//! Source: the kernel's Documentation/filesystems/resctrl.rst.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use commonhold_policy::Throttle;

use crate::host;
use crate::observe::files::Tree;

/// The usual mount point.
pub(crate) const FOLDER: &str = "/sys/fs/resctrl";

/// The mount source that this program gives, by which mountinfo shows that this program mounted the file
/// system.
pub(crate) const SOURCE: &str = "commonhold";

/// The value of an unthrottled control group, in percent.
const ALL_PERCENT: u64 = 100;

/// A mount of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The source given by the program that mounted it; [`SOURCE`] if that was this program.
    pub(crate) source: String,
    /// Whether schematas are in MiB/s, by the mount option `mba_MBps`.
    pub(crate) in_rates: bool,
}

/// The mount of resctrl that mountinfo shows, with paths in this tree of kernel files; `None` if it is not
/// mounted.
pub(crate) fn mounted(tree: &Tree) -> Option<Mount> {
    let text = tree.text("/proc/self/mountinfo")?;
    text.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut words = filesystem.split(' ');
        let (kind, source, options) = (words.next()?, words.next()?, words.next()?);
        let point = mount.split(' ').nth(4).filter(|_| kind == "resctrl")?;
        let in_rates = options.split(',').any(|option| option == "mba_MBps");
        Some(Mount { point: tree.path(point), source: source.to_owned(), in_rates })
    })
}

/// The event that counts a group's transfers: preferably all transfers, else those within the node where the
/// tasks run. `None` if the processor counts neither.
pub(crate) fn event(point: &Path) -> Option<&'static str> {
    let features = host::read_to_string(&point.join("info/L3_MON/mon_features")).ok()?;
    let has = |event: &&str| features.lines().any(|line| line.trim() == *event);
    ["mbm_total_bytes", "mbm_local_bytes"].into_iter().find(has)
}

/// The event for the bytes of a cache that a group's lines occupy.
pub(crate) const OCCUPANCY: &str = "llc_occupancy";

/// Whether the processor supports [`OCCUPANCY`].
pub(crate) fn counts_occupancy(point: &Path) -> bool {
    let features = host::read_to_string(&point.join("info/L3_MON/mon_features")).unwrap_or_default();
    features.lines().any(|line| line.trim() == OCCUPANCY)
}

/// Bytes that lines of a group's tasks occupy in all caches; `None` if no cache's counter can be read now.
pub(crate) fn occupancy(group: &Path) -> Option<u64> {
    let domains = host::list(&group.join("mon_data")).ok()?;
    let domains = domains.into_iter().filter(|folder| folder.name().starts_with("mon_L3_"));
    let counts = domains.filter_map(|folder| {
        host::read_to_string(&folder.path.join(OCCUPANCY)).ok()?.trim().parse::<u64>().ok()
    });
    counts.reduce(u64::saturating_add)
}

/// The number of groups that can be monitored, including the default group.
pub(crate) fn group_count(point: &Path) -> Option<u64> {
    host::read_to_string(&point.join("info/L3_MON/num_rmids")).ok()?.trim().parse().ok()
}

/// How groups can be throttled, or why they cannot be.
pub(crate) fn throttle(mount: &Mount) -> Result<Throttle, String> {
    let number = |name: &str| {
        let text = host::read_to_string(&mount.point.join("info/MB").join(name)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let (Some(least), Some(step)) = (number("min_bandwidth"), number("bandwidth_gran")) else {
        return Err("the processor offers no cap (info/MB does not exist)".to_owned());
    };
    if mount.in_rates {
        return Err(
            "it is mounted with `mba_MBps`: the kernel enforces rates, which this program does not change"
                .to_owned(),
        );
    }
    let text = host::read_to_string(&mount.point.join("schemata")).unwrap_or_default();
    let domains = bandwidths(&text);
    if domains.is_empty() {
        return Err("the schemata has no line MB".to_owned());
    }
    if domains.iter().any(|(_, value)| *value > ALL_PERCENT) {
        return Err("the processor takes rates of each cache instead of percentages (as AMD's do)".to_owned());
    }
    Ok(Throttle { least: least.clamp(1, 100), step: step.clamp(1, 100) })
}

/// Parses the line MB of a schemata to the domains, each with its value (a percentage or a rate); empty
/// without that line.
pub(crate) fn bandwidths(schemata: &str) -> Vec<(u64, u64)> {
    let line = schemata.lines().find_map(|line| line.trim().strip_prefix("MB:"));
    let parse_pair = |pair: &str| {
        let (domain, value) = pair.split_once('=')?;
        Some((domain.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    line.unwrap_or_default().split(';').filter_map(parse_pair).collect()
}

/// The line to write to a group's schemata so that the group gets this percentage in all domains.
pub(crate) fn bandwidth_line(domains: &[(u64, u64)], percent: u32) -> String {
    let pairs: Vec<String> = domains.iter().map(|(domain, _)| format!("{domain}={percent}")).collect();
    format!("MB:{}", pairs.join(";"))
}

/// Whether a process is in a group of another program. `groups` is the text of
/// `/proc/PID/cpu_resctrl_groups`; `own_prefix` begins the names of this program's groups. The default group
/// has an empty name.
pub(crate) fn is_anothers(groups: &str, own_prefix: &str) -> bool {
    let parse_name = |line: &str| {
        let name = line.strip_prefix("res:").or_else(|| line.strip_prefix("mon:"))?;
        Some(name.trim().trim_matches('/').to_owned())
    };
    groups.lines().filter_map(parse_name).any(|name| !name.is_empty() && !name.starts_with(own_prefix))
}

/// Sums a group's transfers across resets of its counters.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// By folder of a domain: the last value of its counter.
    counts: BTreeMap<PathBuf, u64>,
    bytes: u64,
    /// Whether a counter has ever been read.
    is_known: bool,
}

impl Meter {
    /// Reads the counters of a group's domains, and adds their growth to the sum. A counter that cannot be
    /// read now (`Unavailable` if no task of the group has run in the domain, `Error`, `Unassigned`) counts
    /// as unchanged. A counter that decreased was reset, and adds nothing this time.
    pub(crate) fn read(&mut self, group: &Path, event: &str) {
        for folder in host::list(&group.join("mon_data")).unwrap_or_default() {
            // A cache's folder may contain folders of its nodes. They are not read, since the cache's counter
            // is their sum.
            if !folder.name().starts_with("mon_L3_") {
                continue;
            }
            let text = host::read_to_string(&folder.path.join(event)).unwrap_or_default();
            let Ok(count) = text.trim().parse::<u64>() else { continue };
            let previous = self.counts.insert(folder.path, count);
            self.is_known = true;
            let growth = previous.map_or(0, |previous| count.saturating_sub(previous));
            self.bytes = self.bytes.saturating_add(growth);
        }
    }

    /// Forgets the counters of a group that was removed or is made anew, but keeps the sum.
    pub(crate) fn forget(&mut self, group: &Path) {
        self.counts.retain(|folder, _| !folder.starts_with(group));
    }

    /// Bytes transferred since the first reading of a counter; `None` before that.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.is_known.then_some(self.bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    const MOUNTED: &str = "30 23 0:26 / /sys/fs/resctrl rw,relatime shared:9 - resctrl resctrl rw\n";

    #[test]
    fn mount_source_and_options_are_parsed() {
        let mount_of = |line: &str| {
            let dir = fake::tree(&[("/proc/self/mountinfo", line)]);
            let mount = mounted(&Tree::new(dir.path()))?;
            Some((mount.point.strip_prefix(dir.path()).unwrap().to_owned(), mount.source, mount.in_rates))
        };
        let at = PathBuf::from("sys/fs/resctrl");
        assert_eq!(mount_of(MOUNTED), Some((at.clone(), "resctrl".into(), false)));
        let rates = MOUNTED.replace("resctrl rw\n", "us rw,mba_MBps\n");
        assert_eq!(mount_of(&rates), Some((at, "us".into(), true)));
        assert_eq!(mount_of("22 1 0:21 / /sys rw - sysfs sysfs rw\nnoise\n"), None);
    }

    #[test]
    fn groups_are_throttled_only_by_percentages() {
        let throttle_of = |schemata: &str, in_rates: bool| {
            let dir = fake::tree(&[
                ("info/MB/min_bandwidth", "10\n"),
                ("info/MB/bandwidth_gran", "20\n"),
                ("schemata", schemata),
            ]);
            throttle(&Mount { point: dir.path().to_owned(), source: String::new(), in_rates })
        };
        let two = "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n";
        assert_eq!(throttle_of(two, false), Ok(Throttle { least: 10, step: 20 }));
        assert!(throttle_of(two, true).unwrap_err().contains("mba_MBps"));
        assert!(throttle_of("L3:0=f\nMB:0=2048;1=  16\n", false).unwrap_err().contains("AMD"));
        assert!(throttle_of("L3:0=f\n", false).unwrap_err().contains("no line MB"));
        assert_eq!(bandwidth_line(&bandwidths("MB:0=100;4= 30\n"), 70), "MB:0=70;4=70");
        let none = Mount { point: PathBuf::from("/nowhere"), source: String::new(), in_rates: false };
        assert!(throttle(&none).unwrap_err().contains("no cap"));
    }

    #[test]
    fn a_sum_grows_with_every_domain_and_never_decreases() {
        let dir = fake::tree(&[("info/L3_MON/mon_features", "llc_occupancy\nmbm_local_bytes\n")]);
        let group = dir.path().join("mon_groups/a");
        let set = |first: &str, second: &str| {
            fake::add(
                &dir,
                &[
                    ("mon_groups/a/mon_data/mon_L3_00/mbm_local_bytes", first),
                    ("mon_groups/a/mon_data/mon_L3_01/mbm_local_bytes", second),
                    ("mon_groups/a/mon_data/mon_PERF_00/mbm_local_bytes", "77777\n"),
                ],
            );
        };
        let event = event(dir.path()).unwrap();
        assert_eq!(event, "mbm_local_bytes");
        let mut meter = Meter::default();
        let mut look = |first: &str, second: &str| {
            set(first, second);
            meter.read(&group, event);
            meter.bytes()
        };
        assert_eq!(look("Unavailable\n", "Error\n"), None);
        assert_eq!(look("1000\n", "Unavailable\n"), Some(0), "earlier transfers may be another group's");
        assert_eq!(look("1500\n", "40\n"), Some(500));
        assert_eq!(look("Unavailable\n", "100\n"), Some(560));
        assert_eq!(look("1700\n", "Unassigned\n"), Some(760));
        assert_eq!(look("3\n", "100\n"), Some(760), "the counter was reset");
        assert_eq!(look("10\n", "101\n"), Some(768));
        meter.forget(&group);
        assert_eq!(look_at(&mut meter, &group, event), Some(768), "as at the first reading");
    }

    fn look_at(meter: &mut Meter, group: &Path, event: &str) -> Option<u64> {
        meter.read(group, event);
        meter.bytes()
    }

    #[test]
    fn occupancy_is_summed_over_caches() {
        let dir = fake::tree(&[("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n")]);
        assert!(counts_occupancy(dir.path()) && !counts_occupancy(Path::new("/nowhere")));
        let group = dir.path().join("mon_groups/a");
        assert_eq!(occupancy(&group), None);
        fake::add(&dir, &[("mon_groups/a/mon_data/mon_L3_00/llc_occupancy", "Unavailable\n")]);
        assert_eq!(occupancy(&group), None);
        fake::add(
            &dir,
            &[
                ("mon_groups/a/mon_data/mon_L3_00/llc_occupancy", "65536\n"),
                ("mon_groups/a/mon_data/mon_L3_01/llc_occupancy", "4096\n"),
                ("mon_groups/a/mon_data/mon_PERF_00/llc_occupancy", "7\n"),
            ],
        );
        assert_eq!(occupancy(&group), Some(69_632));
    }

    #[test]
    fn groups_of_another_program_are_recognised() {
        let is = |groups: &str| is_anothers(groups, "commonhold-");
        assert!(!is("res:/\nmon:/\n") && !is("res:\nmon:\n") && !is(""));
        assert!(!is("res:/\nmon:commonhold-3-a\n") && !is("res:commonhold-3-a\nmon:/\n"));
        assert!(is("res:p0\nmon:/\n") && is("res:/\nmon:m1\n"));
    }
}
