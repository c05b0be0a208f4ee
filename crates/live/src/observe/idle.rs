//! Idle time of CPUs, from /proc/stat.

use std::collections::BTreeMap;

use commonhold_machine::CpuSet;
use commonhold_policy::{MS, Time};

use crate::LiveError;
use crate::observe::process::ProcFs;

/// For how long a reading is reused. /proc/stat is expensive, since the kernel sums up every interrupt of the
/// machine for it.
const AGE_MAX: Time = 100 * MS;

/// Accumulates the idle time of a set of CPUs since the first reading.
#[derive(Debug)]
pub(crate) struct Idle {
    cpus: CpuSet,
    /// The highest count of each CPU so far, in clock ticks: `iowait` decreases now and then on some kernels.
    ticks: BTreeMap<u32, u64>,
    ns: u64,
    tick_ns: u64,
    read_at: Option<Time>,
}

impl Idle {
    pub(crate) fn new(cpus: CpuSet) -> Self {
        // SAFETY: asks for a constant.
        let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
        Idle { cpus, ticks: BTreeMap::new(), ns: 0, tick_ns: 1_000_000_000 / per_second, read_at: None }
    }

    /// Idle time summed over the CPUs since the first reading, in nanoseconds, with the resolution of a clock
    /// tick. It never decreases.
    pub(crate) fn read(&mut self, procfs: &mut ProcFs, now: Time) -> Result<u64, LiveError> {
        if self.read_at.is_some_and(|at| now < at.saturating_add(AGE_MAX)) {
            return Ok(self.ns);
        }
        self.read_at = Some(now);
        let text = procfs.read_kept("stat")?.map(String::from_utf8_lossy).unwrap_or_default();
        for (cpu, ticks) in text.lines().filter_map(parse).filter(|(cpu, _)| self.cpus.contains(*cpu)) {
            let highest = self.ticks.entry(cpu).or_insert(ticks);
            self.ns += ticks.saturating_sub(*highest) * self.tick_ns;
            *highest = ticks.max(*highest);
        }
        Ok(self.ns)
    }
}

/// Parses a line `cpu3 user nice system idle iowait ...` to the CPU and the sum of its idle and iowait ticks:
/// a CPU whose tasks wait for a disk is idle, too. `None` for other lines, such as the sum `cpu ...`.
fn parse(line: &str) -> Option<(u32, u64)> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let cpu = fields.next()?.parse().ok()?;
    let mut ticks = fields.skip(3).map(|field| field.parse::<u64>().ok());
    Some((cpu, ticks.next()?? + ticks.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn idle_time_is_summed_over_the_given_cpus() {
        let root = tempfile::tempdir().unwrap();
        let mut procfs = ProcFs::open(root.path()).unwrap();
        let mut idle = Idle::new("0,2".parse().unwrap());
        let mut at = |now: Time, cpu0: &str, cpu1: &str, cpu2: &str| {
            let text = format!("cpu  9 9 9 9 9\ncpu0 {cpu0}\ncpu1 {cpu1}\ncpu2 {cpu2}\nintr 5 cpu\n");
            fs::write(root.path().join("stat"), text).unwrap();
            idle.read(&mut procfs, now).unwrap() / idle.tick_ns
        };
        assert_eq!(at(0, "1 1 1 100 10 0", "0 0 0 5 5 0", "1 1 1 7 0 0"), 0);
        // CPU 0: 5 + 1, CPU 2: 3; CPU 1 is not ours.
        assert_eq!(at(AGE_MAX, "1 1 1 105 11 0", "0 0 0 50 5 0", "1 1 1 10 0 0"), 9);
        assert_eq!(at(AGE_MAX + 1, "1 1 1 200 11 0", "0 0 0 50 5 0", "1 1 1 10 0 0"), 9);
        // `iowait` decreased by 4, and the sum with it: no idle time is added until the sum is where it was.
        assert_eq!(at(2 * AGE_MAX, "1 1 1 105 7 0", "0 0 0 50 5 0", "1 1 1 11 0 0"), 10);
        assert_eq!(at(3 * AGE_MAX, "1 1 1 110 7 0", "0 0 0 50 5 0", "1 1 1 11 0 0"), 11);
    }
}
