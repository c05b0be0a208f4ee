//! Differences among a machine's CPUs: isolation and capacity.
//!
//! An isolated CPU is one that the administrator keeps free of ordinary tasks; a CPU's capacity is its speed
//! relative to the largest CPU's.
//!
//! | fact | read from |
//! | --- | --- |
//! | isolated at boot | /sys/devices/system/cpu/isolated (`isolcpus`) |
//! | without ticks | `/sys/devices/system/cpu/nohz_full` |
//! | isolated at run time | cpuset.cpus.isolated in the root cgroup |
//! | capacity | `cpuN/cpu_capacity` (Arm, and x86 since Linux 6.12) |
//! | capacity where x86 mixes cores | `cpuN/acpi_cppc/highest_perf`, else `cpuN/cpufreq/cpuinfo_max_freq` |
//!
//! The files of the last row count only if the kernel names small cores (`/sys/devices/cpu_atom/cpus`).
//! Otherwise `highest_perf` ranks cores that differ only in their turbo frequency.

use std::collections::BTreeMap;
use std::fmt;

use commonhold_machine::{CAPACITY_MAX, CpuSet};

use super::files::Tree;

const CPUS: &str = "/sys/devices/system/cpu";

/// The kernel's lists of small cores in x86 processors.
const SMALL: [&str; 2] = ["/sys/devices/cpu_atom/cpus", "/sys/devices/cpu_lowpower/cpus"];

/// Isolated CPUs, and what isolates them. This process may be allowed to use some, all or none of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Isolation {
    /// Each mechanism that isolates CPUs, as the administrator writes it, and its CPUs. No set is empty.
    pub by: Vec<(&'static str, CpuSet)>,
}

impl Isolation {
    /// Reads the kernel's lists. A file that is missing or says `(null)` names no CPU.
    pub(crate) fn read(tree: &Tree) -> Isolation {
        let list =
            |path: &str| tree.text(path).and_then(|text| text.parse::<CpuSet>().ok()).unwrap_or_default();
        let all = [
            ("isolcpus", list(&format!("{CPUS}/isolated"))),
            ("nohz_full", list(&format!("{CPUS}/nohz_full"))),
            ("an isolated cpuset partition", list("/sys/fs/cgroup/cpuset.cpus.isolated")),
        ];
        Isolation { by: all.into_iter().filter(|(_, cpus)| !cpus.is_empty()).collect() }
    }

    /// All isolated CPUs.
    pub fn all(&self) -> CpuSet {
        self.by.iter().fold(CpuSet::default(), |all, (_, cpus)| all.union(cpus))
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.by.iter().map(|(by, cpus)| format!("{cpus} by {by}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// The capacity of each of these CPUs, from 1 to [`CAPACITY_MAX`], which is the capacity of the largest CPUs.
/// All CPUs count as largest if any capacity is unknown.
pub(crate) fn capacities(tree: &Tree, cpus: &[u32]) -> BTreeMap<u32, u32> {
    let has_small_cores = || SMALL.iter().any(|path| tree.exists(path));
    let files: &[&str] = match () {
        () if cpus.iter().any(|cpu| tree.exists(format!("{CPUS}/cpu{cpu}/cpu_capacity"))) => {
            &["cpu_capacity"]
        }
        () if has_small_cores() => &["acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"],
        () => &[],
    };
    let number = |cpu: u32, file: &str| {
        tree.text(format!("{CPUS}/cpu{cpu}/{file}"))?.parse::<u64>().ok().filter(|number| *number > 0)
    };
    // The first file that all CPUs have: a frequency cannot be compared with a performance level.
    let raw_values = files.iter().find_map(|file| {
        cpus.iter().map(|cpu| Some((*cpu, number(*cpu, file)?))).collect::<Option<BTreeMap<u32, u64>>>()
    });
    let raw_values = raw_values.unwrap_or_default();
    let largest = raw_values.values().copied().max().unwrap_or(1);
    let scaled = |value: u64| {
        let capacity = u128::from(value) * u128::from(CAPACITY_MAX) / u128::from(largest);
        u32::try_from(capacity).unwrap_or(CAPACITY_MAX).clamp(1, CAPACITY_MAX)
    };
    let capacity = |cpu: u32| raw_values.get(&cpu).map_or(CAPACITY_MAX, |value| scaled(*value));
    cpus.iter().map(|cpu| (*cpu, capacity(*cpu))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn isolated_cpus_are_named_by_what_isolates_them() {
        let dir = fake::tree(&[
            ("/sys/devices/system/cpu/isolated", "2-3\n"),
            ("/sys/devices/system/cpu/nohz_full", "3\n"),
            ("/sys/fs/cgroup/cpuset.cpus.isolated", "6\n"),
        ]);
        let found = Isolation::read(&Tree::new(dir.path()));
        assert_eq!(found.to_string(), "2-3 by isolcpus, 3 by nohz_full, 6 by an isolated cpuset partition");
        assert_eq!(found.all().to_string(), "2-3,6");
        fake::add(
            &dir,
            &[
                ("/sys/devices/system/cpu/isolated", "\n"),
                ("/sys/devices/system/cpu/nohz_full", "  (null)\n"),
                ("/sys/fs/cgroup/cpuset.cpus.isolated", "\n"),
            ],
        );
        assert_eq!(Isolation::read(&Tree::new(dir.path())), Isolation::default());
    }

    #[test]
    fn capacity_is_relative_to_the_largest_cpu() {
        let capacities_with = |files: &[(&str, &str)]| {
            let dir = fake::tree(&[]);
            for (path, text) in files {
                let path = if path.starts_with('/') { (*path).to_owned() } else { format!("{CPUS}/{path}") };
                fake::add(&dir, &[(&path, text)]);
            }
            capacities(&Tree::new(dir.path()), &[0, 1]).into_values().collect::<Vec<_>>()
        };
        assert_eq!(capacities_with(&[]), [1024, 1024]);
        assert_eq!(
            capacities_with(&[("cpu0/cpu_capacity", "446\n"), ("cpu1/cpu_capacity", "1024\n")]),
            [446, 1024]
        );
        assert_eq!(
            capacities_with(&[("cpu0/cpu_capacity", "446\n"), ("cpu1/cpu_capacity", "446\n")]),
            [1024, 1024]
        );
        assert_eq!(
            capacities_with(&[("cpu0/cpu_capacity", "many\n"), ("cpu1/cpu_capacity", "9\n")]),
            [1024, 1024]
        );
        let ranks = [("cpu0/acpi_cppc/highest_perf", "30\n"), ("cpu1/acpi_cppc/highest_perf", "60\n")];
        assert_eq!(capacities_with(&ranks), [1024, 1024], "ranks of equal cores");
        let mixed = [ranks[0], ranks[1], ("/sys/devices/cpu_atom/cpus", "0\n")];
        assert_eq!(capacities_with(&mixed), [512, 1024]);
        let speeds = [
            ("cpu0/cpufreq/cpuinfo_max_freq", "3000000\n"),
            ("cpu1/cpufreq/cpuinfo_max_freq", "4000000\n"),
            ("/sys/devices/cpu_atom/cpus", "0\n"),
        ];
        assert_eq!(capacities_with(&speeds), [768, 1024]);
    }
}
