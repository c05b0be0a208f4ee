//! The control files of a cgroup: values to write, and whether the kernel accepted them.

use std::path::Path;

use commonhold_machine::CpuSet;

use crate::LiveError;
use crate::host::{empty_cpus, write};
use crate::observe::disk::stat::line_of;
use crate::observe::knob::{failed, read};

/// The shortest quota for cpu.max, in microseconds (`min_cfs_quota_period` in kernel/sched/core.c).
const QUOTA_US_MIN: u64 = 1_000;
/// The longest period for cpu.max, in microseconds (`max_cfs_quota_period` in kernel/sched/core.c).
const PERIOD_US_MAX: u64 = 1_000_000;
/// The period to use where the quota is long enough, in microseconds.
const PERIOD_US: u64 = 100_000;

/// The text for cpu.max, `QUOTA PERIOD` in microseconds. A cap below 1 % of a CPU needs a longer period,
/// since its quota would be too short. A cap below 0.1 % is rounded up to 0.1 %.
pub(super) fn cpu_max(micro_cpus: Option<u64>) -> String {
    let Some(micro) = micro_cpus else { return format!("max {PERIOD_US}") };
    let quota = u128::from(micro) * u128::from(PERIOD_US) / 1_000_000;
    if quota >= u128::from(QUOTA_US_MIN) {
        return format!("{quota} {PERIOD_US}");
    }
    let period =
        (QUOTA_US_MIN * 1_000_000).checked_div(micro).map_or(PERIOD_US_MAX, |us| us.min(PERIOD_US_MAX));
    format!("{QUOTA_US_MIN} {period}")
}

/// Writes a value, and reads it back to check that it is in force.
pub(crate) fn put(path: &Path, value: &str) -> Result<(), LiveError> {
    write(path, value).map_err(|source| failed(path, format!("write `{value}`"), source))?;
    expect(path, value, "; another program writes this file too: stop it, or let it leave this cgroup alone")
}

/// Writes a CPU set, and checks that it is both accepted and effective; `None` lets the cgroup use every CPU
/// of its parent. Returns the file's content after the write; `None` if the file is empty.
pub(super) fn put_cpus(dir: &Path, cpus: Option<&CpuSet>) -> Result<Option<CpuSet>, LiveError> {
    let Some(cpus) = cpus else { return put_any_cpu(dir) };
    put(&dir.join("cpuset.cpus"), &cpus.to_string())?;
    expect(
        &dir.join("cpuset.cpus.effective"),
        &cpus.to_string(),
        "; a cpu is offline, or a cgroup above allows fewer cpus: see cpuset.cpus.effective there",
    )?;
    Ok(Some(cpus.clone()))
}

/// Lets a cgroup use every CPU of its parent. Returns the file's content, since not every kernel accepts an
/// empty set.
fn put_any_cpu(dir: &Path) -> Result<Option<CpuSet>, LiveError> {
    let path = dir.join("cpuset.cpus");
    let written =
        empty_cpus(&path).map_err(|source| failed(&path, "write an empty set".to_owned(), source))?;
    expect(&path, &written, "; another program writes this file too: stop it")?;
    Ok(written.parse().ok().filter(|_| !written.is_empty()))
}

/// Returns an error with this remedy unless a file's content is the expected value.
fn expect(path: &Path, value: &str, remedy: &str) -> Result<(), LiveError> {
    let read = read(path).map_err(|source| failed(path, "read it back".to_owned(), source))?;
    if read == value {
        return Ok(());
    }
    Err(LiveError::NotInForce {
        path: path.to_owned(),
        wrote: value.to_owned(),
        read,
        remedy: remedy.to_owned(),
    })
}

/// Writes a device's line into a file with one line per device, and checks that the file then shows the line
/// `expected`. If `expected` is empty, the file must not have a line for the device.
pub(super) fn put_line(path: &Path, value: &str, expected: &str) -> Result<(), LiveError> {
    write(path, value).map_err(|source| failed(path, format!("write `{value}`"), source))?;
    let text = read(path).map_err(|source| failed(path, "read it back".to_owned(), source))?;
    let line = line_of(&text, value.split_whitespace().next().unwrap_or_default()).unwrap_or_default();
    if line.trim() == expected {
        return Ok(());
    }
    Err(LiveError::NotInForce {
        path: path.to_owned(),
        wrote: value.to_owned(),
        read: line.to_owned(),
        remedy: "; another program writes this file too: stop it, or let it leave this cgroup alone"
            .to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn caps_become_quotas_and_periods() {
        for (micro, text) in [
            (None, "max 100000"),
            (Some(2_500_000), "250000 100000"),
            (Some(10_000), "1000 100000"),
            // 0.5 % of a CPU: 1 ms in 200 ms.
            (Some(5_000), "1000 200000"),
            (Some(10), "1000 1000000"),
            (Some(0), "1000 1000000"),
            (Some(u64::MAX), "1844674407370955161 100000"),
        ] {
            assert_eq!(cpu_max(micro), text, "{micro:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_in_force_is_an_error_that_names_both_values() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cpuset.cpus"), "").unwrap();
        std::fs::write(dir.path().join("cpuset.cpus.effective"), "0\n").unwrap();
        let cpus = "0-1".parse().unwrap();
        let error = put_cpus(dir.path(), Some(&cpus)).unwrap_err().to_string();
        assert!(
            error.contains("effective: wrote `0-1` but reads back `0`: the limit is not in force; a cpu"),
            "{error}"
        );
        let error = put(&dir.path().join("cpu.max"), "max 100000").unwrap_err().to_string();
        assert!(
            error.contains("cpu.max: cannot write `max 100000`") && error.contains("the cgroup was removed"),
            "{error}"
        );
    }

    #[test]
    fn a_line_that_is_not_in_force_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("io.max");
        std::fs::write(&path, "").unwrap();
        // A plain file shows what was written, like a kernel that accepts it.
        put_line(&path, "8:0 rbps=1 wbps=max", "8:0 rbps=1 wbps=max").unwrap();
        let error = put_line(&path, "8:0 rbps=2 wbps=max", "").unwrap_err().to_string();
        assert!(error.contains("io.max: wrote `8:0 rbps=2 wbps=max` but reads back `8:0 rbps=2"), "{error}");
    }
}
