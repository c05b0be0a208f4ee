//! The kernel's file system `resctrl`: what processors tell of the transfers of groups of tasks, and how they slow them down.
//!
//! Terms: a *monitoring group* has counts of its own; a *control group* has these and a schemata of its own, which says what
//! it is given. Each domain, a last-level cache, has a count. A percentage is of what one CPU can have, so two threads with
//! 10 % have twice as much as one.
//!
//! Limits: on AMD's processors, and with the mount option `mba_MBps`, a schemata says rates and no percentages. These are left
//! alone.
//!
//! Source: the kernel's Documentation/filesystems/resctrl.rst.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use commonhold_policy::Throttle;

use crate::host;
use crate::observe::files::Tree;

/// Where it is mounted, if nobody says otherwise.
pub(crate) const FOLDER: &str = "/sys/fs/resctrl";

/// What mountinfo shows of it where this program mounted it.
pub(crate) const SOURCE: &str = "commonhold";

/// What a control group has of everything, where it says percentages.
const ALL_PERCENT: u64 = 100;

/// Where the file system is mounted, and who did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where.
    pub(crate) point: PathBuf,
    /// What the one who mounted it called it.
    pub(crate) source: String,
    /// Whether a schemata says MiB/s, by the mount option `mba_MBps`.
    pub(crate) in_rates: bool,
}

/// The mount of a tree of kernel files; paths are those in the tree.
pub(crate) fn mounted(tree: &Tree) -> Option<Mount> {
    let text = tree.text("/proc/self/mountinfo")?;
    text.lines().find_map(|line| {
        let (ours, filesystem) = line.split_once(" - ")?;
        let mut words = filesystem.split(' ');
        let (kind, source, options) = (words.next()?, words.next()?, words.next()?);
        let point = ours.split(' ').nth(4).filter(|_| kind == "resctrl")?;
        let in_rates = options.split(',').any(|option| option == "mba_MBps");
        Some(Mount { point: tree.path(point), source: source.to_owned(), in_rates })
    })
}

/// The event that counts what a group transfers: all of it, else what it does in its own node.
pub(crate) fn event(point: &Path) -> Option<&'static str> {
    let features = host::read_to_string(&point.join("info/L3_MON/mon_features")).ok()?;
    let has = |event: &&str| features.lines().any(|line| line.trim() == *event);
    ["mbm_total_bytes", "mbm_local_bytes"].into_iter().find(has)
}

/// The event that tells how much of a cache a group's lines fill, in bytes.
pub(crate) const OCCUPANCY: &str = "llc_occupancy";

/// Whether that is there.
pub(crate) fn counts_occupancy(point: &Path) -> bool {
    let features = host::read_to_string(&point.join("info/L3_MON/mon_features")).unwrap_or_default();
    features.lines().any(|line| line.trim() == OCCUPANCY)
}

/// What a group's tasks hold of all caches, in bytes; `None` where no cache tells it now.
pub(crate) fn occupancy(group: &Path) -> Option<u64> {
    let domains = host::list(&group.join("mon_data")).ok()?;
    let domains = domains.into_iter().filter(|folder| folder.name().starts_with("mon_L3_"));
    let counts = domains.filter_map(|folder| {
        host::read_to_string(&folder.path.join(OCCUPANCY)).ok()?.trim().parse::<u64>().ok()
    });
    counts.reduce(u64::saturating_add)
}

/// How many groups can be told apart, the first included, which is everybody's.
pub(crate) fn group_count(point: &Path) -> Option<u64> {
    host::read_to_string(&point.join("info/L3_MON/num_rmids")).ok()?.trim().parse().ok()
}

/// How a group can be slowed down; otherwise why it cannot.
pub(crate) fn throttle(mount: &Mount) -> Result<Throttle, String> {
    let number = |name: &str| {
        let text = host::read_to_string(&mount.point.join("info/MB").join(name)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let (Some(least), Some(step)) = (number("min_bandwidth"), number("bandwidth_gran")) else {
        return Err("the processor offers no cap (there is no info/MB)".to_owned());
    };
    if mount.in_rates {
        return Err(
            "it is mounted with `mba_MBps`: the kernel itself holds rates, which are left alone".to_owned()
        );
    }
    let text = host::read_to_string(&mount.point.join("schemata")).unwrap_or_default();
    let domains = bandwidths(&text);
    if domains.is_empty() {
        return Err("the schemata has no line MB".to_owned());
    }
    if domains.iter().any(|(_, value)| *value > ALL_PERCENT) {
        return Err("the processor takes rates of each cache and no percentages (as AMD's do)".to_owned());
    }
    Ok(Throttle { least: least.clamp(1, 100), step: step.clamp(1, 100) })
}

/// The line MB of a schemata: domains, and what is given there.
pub(crate) fn bandwidths(schemata: &str) -> Vec<(u64, u64)> {
    let line = schemata.lines().find_map(|line| line.trim().strip_prefix("MB:"));
    let pair = |pair: &str| {
        let (domain, value) = pair.split_once('=')?;
        Some((domain.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    line.unwrap_or_default().split(';').filter_map(pair).collect()
}

/// What is written to give a group so many percent in all domains.
pub(crate) fn bandwidth_line(domains: &[(u64, u64)], percent: u32) -> String {
    let pairs: Vec<String> = domains.iter().map(|(domain, _)| format!("{domain}={percent}")).collect();
    format!("MB:{}", pairs.join(";"))
}

/// The groups of a process as the kernel names them (`/proc/PID/cpu_resctrl_groups`): whether one of them is another program's.
pub(crate) fn is_anothers(groups: &str, ours: &str) -> bool {
    let of = |line: &str| {
        let name = line.strip_prefix("res:").or_else(|| line.strip_prefix("mon:"))?;
        Some(name.trim().trim_matches('/').to_owned())
    };
    groups.lines().filter_map(of).any(|name| !name.is_empty() && !name.starts_with(ours))
}

/// Adds up what a group transferred, whatever happens to its counts.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// By folder of a domain: its count when it was read last.
    counts: BTreeMap<PathBuf, u64>,
    bytes: u64,
    /// Whether a count was read ever.
    is_told: bool,
}

impl Meter {
    /// Reads the counts of a group's domains, and adds what they have grown by. A count that cannot be read now (`Unavailable`
    /// while nobody of it ran, `Error`, `Unassigned`) is the same as before; one that goes back began anew.
    pub(crate) fn read(&mut self, group: &Path, event: &str) {
        for folder in host::list(&group.join("mon_data")).unwrap_or_default() {
            // The parts of a cache that belong to nodes are within: the whole has their sum.
            if !folder.name().starts_with("mon_L3_") {
                continue;
            }
            let text = host::read_to_string(&folder.path.join(event)).unwrap_or_default();
            let Ok(count) = text.trim().parse::<u64>() else { continue };
            let before = self.counts.insert(folder.path, count);
            self.is_told = true;
            self.bytes = self.bytes.saturating_add(before.map_or(0, |before| count.saturating_sub(before)));
        }
    }

    /// Forgets the counts of a group that is gone, or begins anew. What they counted stays.
    pub(crate) fn forget(&mut self, group: &Path) {
        self.counts.retain(|folder, _| !folder.starts_with(group));
    }

    /// Bytes since the first look; `None` before anything was told.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.is_told.then_some(self.bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    const MOUNTED: &str = "30 23 0:26 / /sys/fs/resctrl rw,relatime shared:9 - resctrl resctrl rw\n";

    #[test]
    fn who_mounted_it_and_how() {
        let of = |line: &str| {
            let dir = fake::tree(&[("/proc/self/mountinfo", line)]);
            let mount = mounted(&Tree::new(dir.path()))?;
            Some((mount.point.strip_prefix(dir.path()).unwrap().to_owned(), mount.source, mount.in_rates))
        };
        let at = PathBuf::from("sys/fs/resctrl");
        assert_eq!(of(MOUNTED), Some((at.clone(), "resctrl".into(), false)));
        let rates = MOUNTED.replace("resctrl rw\n", "us rw,mba_MBps\n");
        assert_eq!(of(&rates), Some((at, "us".into(), true)));
        assert_eq!(of("22 1 0:21 / /sys rw - sysfs sysfs rw\nnoise\n"), None);
    }

    #[test]
    fn caps_are_percentages_or_left_alone() {
        let of = |schemata: &str, in_rates: bool| {
            let dir = fake::tree(&[
                ("info/MB/min_bandwidth", "10\n"),
                ("info/MB/bandwidth_gran", "20\n"),
                ("schemata", schemata),
            ]);
            throttle(&Mount { point: dir.path().to_owned(), source: String::new(), in_rates })
        };
        let two = "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n";
        assert_eq!(of(two, false), Ok(Throttle { least: 10, step: 20 }));
        assert!(of(two, true).unwrap_err().contains("mba_MBps"));
        assert!(of("L3:0=f\nMB:0=2048;1=  16\n", false).unwrap_err().contains("AMD"));
        assert!(of("L3:0=f\n", false).unwrap_err().contains("no line MB"));
        assert_eq!(bandwidth_line(&bandwidths("MB:0=100;4= 30\n"), 70), "MB:0=70;4=70");
        let none = Mount { point: PathBuf::from("/nowhere"), source: String::new(), in_rates: false };
        assert!(throttle(&none).unwrap_err().contains("no cap"));
    }

    #[test]
    fn a_sum_grows_with_every_domain_and_never_goes_back() {
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
        assert_eq!(look("1000\n", "Unavailable\n"), Some(0), "what was before is not known whose it is");
        assert_eq!(look("1500\n", "40\n"), Some(500));
        assert_eq!(look("Unavailable\n", "100\n"), Some(560));
        assert_eq!(look("1700\n", "Unassigned\n"), Some(760));
        assert_eq!(look("3\n", "100\n"), Some(760), "it began anew");
        assert_eq!(look("10\n", "101\n"), Some(768));
        meter.forget(&group);
        assert_eq!(look_at(&mut meter, &group, event), Some(768), "as at first");
    }

    fn look_at(meter: &mut Meter, group: &Path, event: &str) -> Option<u64> {
        meter.read(group, event);
        meter.bytes()
    }

    #[test]
    fn what_a_group_holds_is_summed_over_caches() {
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
    fn groups_of_another_program_are_seen() {
        let is = |groups: &str| is_anothers(groups, "commonhold-");
        assert!(!is("res:/\nmon:/\n") && !is("res:\nmon:\n") && !is(""));
        assert!(!is("res:/\nmon:commonhold-3-a\n") && !is("res:commonhold-3-a\nmon:/\n"));
        assert!(is("res:p0\nmon:/\n") && is("res:/\nmon:m1\n"));
    }
}
