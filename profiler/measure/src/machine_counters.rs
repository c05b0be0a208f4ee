//! Counters of the whole machine: CPU time and interrupts by CPU, interrupts by source, and disk I/O.
//!
//! Source: proc(5), `/proc/stat`, `/proc/interrupts`, `/proc/softirqs`, `/proc/self/mountinfo`; the kernel's
//! Documentation/admin-guide/iostats.rst.
//!
//! Limits: the activity of other programs during a run is included.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;

use commonhold_machine::CpuSet;
use commonhold_scale::blame::{Disk, InterruptTime};

/// `USER_HZ` is 100 on every architecture that Linux still has.
const TICK_NS: u64 = 10_000_000;
const SECTOR: u64 = 512;

/// CPU time by CPU at one moment, in nanoseconds: used, and stolen by the hypervisor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Busy(BTreeMap<u32, (u64, u64)>);

impl Busy {
    /// Reads the present counters; empty if `/proc/stat` cannot be read.
    pub(crate) fn now() -> Busy {
        Busy(parse_busy(&read_to_string("/proc/stat").unwrap_or_default()))
    }

    /// Used and stolen time on these CPUs since `before`, in nanoseconds.
    pub(crate) fn since(&self, before: &Busy, cpus: &CpuSet) -> (u64, u64) {
        let difference = |cpu: u32| {
            let (now, then) = (self.0.get(&cpu)?, before.0.get(&cpu)?);
            Some((now.0.saturating_sub(then.0), now.1.saturating_sub(then.1)))
        };
        cpus.iter().filter_map(difference).fold((0, 0), |sum, cpu| (sum.0 + cpu.0, sum.1 + cpu.1))
    }
}

/// Used and stolen time by CPU, from lines `cpu3 user nice system idle iowait irq softirq steal guest
/// guest_nice`, in ticks. User time includes guest time.
fn parse_busy(text: &str) -> BTreeMap<u32, (u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let cpu: u32 = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let at = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let used = [0, 1, 2, 5, 6].map(at).iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        Some((cpu, (used.saturating_mul(TICK_NS), at(7).saturating_mul(TICK_NS))))
    };
    text.lines().filter_map(line).collect()
}

/// Counters at one moment. Counters that cannot be read are empty and are not reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Time in interrupts, by CPU.
    interrupt_ns: BTreeMap<u32, u64>,
    /// Number of interrupts, by source and CPU.
    sources: BTreeMap<String, BTreeMap<u32, u64>>,
    disks: BTreeMap<String, DiskCounts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DiskCounts {
    number: (u32, u32),
    requests: u64,
    bytes: u64,
    waited_ms: u64,
    busy_ms: u64,
}

impl Counts {
    /// Reads the present counters.
    pub(crate) fn now() -> Counts {
        let read = |path: &str| read_to_string(path).unwrap_or_default();
        let mut sources = parse_interrupts(&read("/proc/interrupts"));
        let softirqs = parse_interrupts(&read("/proc/softirqs"));
        sources.extend(softirqs.into_iter().map(|(name, counts)| (format!("softirq {name}"), counts)));
        Counts {
            interrupt_ns: parse_stat(&read("/proc/stat")),
            sources,
            disks: parse_disks(&read("/proc/diskstats")),
        }
    }

    /// Interrupts on these CPUs since `before`.
    pub(crate) fn interrupts_since(&self, before: &Counts, cpus: &CpuSet) -> Vec<InterruptTime> {
        let interrupts = |cpu: u32| {
            let of_cpu = |by_cpu: &BTreeMap<u32, u64>| by_cpu.get(&cpu).copied().unwrap_or(0);
            let ns = of_cpu(&self.interrupt_ns).checked_sub(of_cpu(&before.interrupt_ns))?;
            let sources = self.sources.iter().filter_map(|(source, by_cpu)| {
                let earlier = before.sources.get(source).map_or(0, of_cpu);
                Some((source.clone(), of_cpu(by_cpu).checked_sub(earlier).filter(|count| *count > 0)?))
            });
            self.interrupt_ns.contains_key(&cpu).then(|| InterruptTime {
                cpu,
                ns,
                sources: sources.collect(),
            })
        };
        cpus.iter().filter_map(interrupts).collect()
    }

    /// Disk I/O since `before`. Stacked devices are listed beside the disks below them; partitions are not
    /// listed.
    pub(crate) fn disks_since(&self, before: &Counts) -> Vec<Disk> {
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let is_partition = |name: &str| Path::new("/sys/class/block").join(name).join("partition").exists();
        let names: Vec<&str> =
            self.disks.keys().map(String::as_str).filter(|name| !is_partition(name)).collect();
        let mut by_disk = mounts_of(&mounts, &self.disks, &names);
        let difference = |name: &&str| {
            let (now, then) = (self.disks.get(*name)?, before.disks.get(*name).copied().unwrap_or_default());
            let requests = now.requests.checked_sub(then.requests).filter(|requests| *requests > 0)?;
            let ms = |now: u64, then: u64| now.saturating_sub(then) * 1_000_000;
            Some(Disk {
                name: (*name).to_owned(),
                mounts: by_disk.remove(*name).unwrap_or_default(),
                requests,
                waited_ns: ms(now.waited_ms, then.waited_ms),
                busy_ns: ms(now.busy_ms, then.busy_ms),
                bytes: now.bytes.saturating_sub(then.bytes),
            })
        };
        names.iter().filter_map(difference).collect()
    }
}

/// Time in interrupts and softirqs by CPU, from lines `cpu3 user nice system idle iowait irq softirq ...`, in
/// ticks.
fn parse_stat(text: &str) -> BTreeMap<u32, u64> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let cpu: u32 = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let (hard, soft): (u64, u64) = (words.nth(5)?.parse().ok()?, words.next()?.parse().ok()?);
        Some((cpu, (hard + soft) * TICK_NS))
    };
    text.lines().filter_map(line).collect()
}

/// Number of interrupts by source and CPU. The text has a line with the CPUs, and a line for each source:
/// `24: 1 0 IO-APIC 5-edge virtio0`, `LOC: 1 2 Local timer interrupts`, or for softirqs `NET_RX: 1 2`.
fn parse_interrupts(text: &str) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let mut lines = text.lines();
    let heads = lines.next().unwrap_or_default().split_whitespace();
    let cpus: Vec<u32> = heads.filter_map(|head| head.strip_prefix("CPU")?.parse().ok()).collect();
    let mut sources: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
    for line in lines {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let counts = words.iter().map_while(|word| word.parse::<u64>().ok());
        let counts: Vec<u64> = counts.take(cpus.len()).collect();
        // Skip lines with one count for all CPUs: `ERR: 0`.
        if counts.len() < cpus.len() {
            continue;
        }
        let (name, rest) = (name.trim(), words.get(cpus.len()..).unwrap_or_default());
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let source = match rest.last() {
            Some(device) if is_number => (*device).to_owned(),
            Some(_) => rest.join(" "),
            None => name.to_owned(),
        };
        let by_cpu = sources.entry(source).or_default();
        cpus.iter().zip(counts).for_each(|(cpu, count)| *by_cpu.entry(*cpu).or_default() += count);
    }
    sources
}

/// Counters by disk, from lines `253 0 vda reads merged sectors ms writes merged sectors ms in-flight busy-ms
/// weighted-ms ...`.
fn parse_disks(text: &str) -> BTreeMap<String, DiskCounts> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = (*words.get(2)?).to_owned();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let counts = DiskCounts {
            number: (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?),
            requests: number(3)? + number(7)?,
            bytes: (number(5)? + number(9)?) * SECTOR,
            waited_ms: number(6)? + number(10)?,
            busy_ms: number(12)?,
        };
        Some((name, counts))
    };
    text.lines().filter_map(line).collect()
}

/// Mount points by disk: `36 35 8:1 / /home rw,noatime - ext4 /dev/sda1 rw`. The name of a partition begins
/// with that of its disk.
fn mounts_of(
    mounts: &str,
    disks: &BTreeMap<String, DiskCounts>,
    names: &[&str],
) -> BTreeMap<String, Vec<String>> {
    let mut by_disk: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in mounts.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let words: Vec<&str> = mount.split_whitespace().collect();
        let (Some(number), Some(path)) = (words.get(2), words.get(4)) else { continue };
        let device = source.split_whitespace().nth(1).and_then(|path| path.strip_prefix("/dev/"));
        let number = number.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let is_it = |(name, counts): &(&String, &DiskCounts)| {
            number == Some(counts.number) || device == Some(name.as_str())
        };
        let Some((found, _)) = disks.iter().find(is_it) else { continue };
        let disk = names.iter().filter(|name| found.starts_with(**name)).max_by_key(|name| name.len());
        if let Some(disk) = disk {
            let paths = by_disk.entry((*disk).to_owned()).or_default();
            if paths.len() < MOUNTS_MAX && !paths.iter().any(|known| known == path) {
                paths.push((*path).to_owned());
            }
        }
    }
    by_disk
}

/// The maximum number of mount points listed for a disk: in a container, a disk may be mounted at many
/// places.
const MOUNTS_MAX: usize = 3;

/// Bytes that a process and its reaped children read from disks, and wrote to disks, from `/proc/PID/io`.
pub(crate) fn parse_io(text: &str) -> Option<(u64, u64)> {
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("read_bytes:")?, number("write_bytes:")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_by_source_and_cpu() {
        let text = "           CPU0       CPU2\n 24:          1          5  IO-APIC   5-edge      eth0\n\
                    LOC:        100        200   Local timer interrupts\nERR:          0\n";
        let sources = parse_interrupts(text);
        assert_eq!(sources["eth0"], BTreeMap::from([(0, 1), (2, 5)]));
        assert_eq!(sources["Local timer interrupts"][&2], 200);
        assert_eq!(sources.len(), 2);
        let soft = parse_interrupts("   CPU0  CPU1\n NET_RX:   7  8\n");
        assert_eq!(soft["NET_RX"], BTreeMap::from([(0, 7), (1, 8)]));
        let stat = "cpu  1 1 1 1 1 1 1 0\ncpu0 1 2 3 4 5 6 7 0\nintr 5\n";
        assert_eq!(parse_stat(stat), BTreeMap::from([(0, 13 * TICK_NS)]));
    }

    #[test]
    fn busy_and_stolen_time_by_cpu() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 500 6 7 8 1 1\ncpu2 5 0 0 1\nintr 5\n";
        let now = Busy(parse_busy(stat));
        assert_eq!(now.0, BTreeMap::from([(0, (19 * TICK_NS, 8 * TICK_NS)), (2, (5 * TICK_NS, 0))]));
        let before = Busy(BTreeMap::from([(0, (9 * TICK_NS, 8 * TICK_NS)), (2, (5 * TICK_NS, 0))]));
        assert_eq!(now.since(&before, &"0,2,7".parse().unwrap()), (10 * TICK_NS, 0));
        assert_eq!(now.since(&Busy::default(), &"0".parse().unwrap()), (0, 0));
    }

    #[test]
    fn interrupts_since_an_earlier_reading() {
        let counts = |ns: u64, count: u64| Counts {
            interrupt_ns: BTreeMap::from([(0, ns), (1, 9)]),
            sources: BTreeMap::from([("eth0".into(), BTreeMap::from([(0, count)]))]),
            disks: BTreeMap::new(),
        };
        let cpus: CpuSet = "0".parse().unwrap();
        let stolen = counts(30, 7).interrupts_since(&counts(10, 5), &cpus);
        assert_eq!(stolen, [InterruptTime { cpu: 0, ns: 20, sources: vec![("eth0".into(), 2)] }]);
        assert_eq!(Counts::default().interrupts_since(&Counts::default(), &cpus), []);
    }

    #[test]
    fn disks_with_their_file_systems() {
        let text = "   8       0 sda 10 0 20 30 1 0 2 3 0 40 50 0 0 0 0\n   8       1 sda1 9 0 18 27 1 0 2 3 0 36 45\n short\n";
        let disks = parse_disks(text);
        let sda = DiskCounts { number: (8, 0), requests: 11, bytes: 22 * 512, waited_ms: 33, busy_ms: 40 };
        assert_eq!(disks["sda"], sda);
        let mounts = "36 35 8:1 / /home rw,noatime master:1 - ext4 /dev/sda1 rw\n37 35 0:30 / /data rw - btrfs /dev/sda rw\n\
                      38 35 0:5 / /proc rw - proc proc rw\n";
        let by_disk = mounts_of(mounts, &disks, &["sda"]);
        assert_eq!(
            by_disk,
            BTreeMap::from([("sda".to_owned(), vec!["/home".to_owned(), "/data".to_owned()])])
        );
        assert_eq!(parse_io("rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n"), Some((4096, 8192)));
        assert_eq!(parse_io(""), None);
    }
}
