//! The kernel's files of one cgroup: what to write into them, and whether the kernel took it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use commonhold_machine::CpuSet;

use crate::{LiveError, MORE_FILES};

/// The shortest quota and the longest period that the kernel accepts in cpu.max, in microseconds
/// (`min_cfs_quota_period` and `max_cfs_quota_period` in kernel/sched/core.c).
const QUOTA_US_MIN: u64 = 1_000;
const PERIOD_US_MAX: u64 = 1_000_000;
const PERIOD_US: u64 = 100_000;

/// The text for cpu.max: so many microseconds per period. A cap below 1 % of a CPU needs a longer period, and one below
/// 0.1 % cannot be held and becomes 0.1 %.
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

/// The number behind `key` in a file of `key number` lines, such as cpu.stat and cgroup.events.
pub(crate) fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Writes a value as a whole: the kernel's files take one write, not several.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    // An empty string would be no write at all; the kernel takes a newline for it.
    let text = if value.is_empty() { "\n" } else { value };
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// What a file holds, without the white space around it.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Writes a value and looks whether the kernel took it.
pub(crate) fn put(path: &Path, value: &str) -> Result<(), LiveError> {
    write(path, value).map_err(|source| failed(path, format!("write `{value}`"), source))?;
    expect(path, value, "; another program writes this file too: stop it, or let it leave this cgroup alone")
}

/// Writes a set of CPUs, looks whether the kernel took it and also has it in force, and returns what the file holds now.
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

/// Lets a cgroup have every CPU of its encloser: an empty set. Kernels such as 6.1 refuse that with ENOSPC where there are
/// processes (`validate_change()` in kernel/cgroup/cpuset.c): there the encloser's CPUs are written out.
fn put_any_cpu(dir: &Path) -> Result<Option<CpuSet>, LiveError> {
    let path = dir.join("cpuset.cpus");
    match write(&path, "") {
        Ok(()) => {
            expect(&path, "", "; another program writes this file too: stop it")?;
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
        Err(source) => return Err(failed(&path, "write an empty set".to_owned(), source)),
    }
    let file = dir.with_file_name("cpuset.cpus.effective");
    let text = read(&file).map_err(|source| failed(&file, "read it".to_owned(), source))?;
    put(&path, &text)?;
    Ok(text.parse().ok())
}

/// Compares what a file holds with what it should.
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

/// An error on one of the kernel's files, with what can be done about it.
pub(crate) fn failed(path: &Path, what: String, source: io::Error) -> LiveError {
    let remedy = match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            "; run as root, or below a delegated cgroup: systemd-run --user --scope -p Delegate=yes commonhold run ..."
        }
        Some(libc::ENOENT | libc::ENODEV) => {
            "; another program removed the cgroup or its controller: stop it, and start commonhold again"
        }
        Some(libc::EBUSY) => {
            "; the cgroup still holds processes or cgroups of another program: move them out of it"
        }
        Some(libc::EMFILE) => MORE_FILES,
        _ => "",
    };
    LiveError::File { path: path.to_owned(), what, source, remedy: remedy.to_owned() }
}

/// A small file of the kernel that is read again and again: opened once.
#[derive(Debug)]
pub(super) struct Gauge {
    path: PathBuf,
    file: File,
}

impl Gauge {
    /// Opens it.
    pub(super) fn open(path: PathBuf) -> Result<Gauge, LiveError> {
        match File::open(&path) {
            Ok(file) => Ok(Gauge { path, file }),
            Err(source) => Err(failed(&path, "open it".to_owned(), source)),
        }
    }

    /// The number behind `key` now; 0 if the kernel does not tell.
    pub(super) fn value(&self, key: &str) -> Result<u64, LiveError> {
        let mut buffer = [0; 1024];
        let n = self
            .file
            .read_at(&mut buffer, 0)
            .map_err(|source| failed(&self.path, "read it".to_owned(), source))?;
        let text = std::str::from_utf8(&buffer[..n]).unwrap_or_default();
        Ok(value_of(text, key).unwrap_or_default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn caps() {
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
    fn keyed_files() {
        let text = "usage_usec 1234\nuser_usec 1000\nsystem_usec x\n";
        assert_eq!(value_of(text, "usage_usec"), Some(1234));
        assert_eq!(value_of(text, "user_usec"), Some(1000));
        assert_eq!(value_of(text, "system_usec"), None);
        assert_eq!(value_of(text, "usage"), None);
    }

    #[test]
    fn who_has_no_descriptor_left_is_told_what_to_raise() {
        let error =
            failed(Path::new("cpu.stat"), "open it".to_owned(), io::Error::from_raw_os_error(libc::EMFILE));
        assert!(error.to_string().contains("LimitNOFILE="), "{error}");
    }

    #[test]
    fn what_the_kernel_did_not_take_is_an_error_that_names_both_values() {
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
            error.contains("cpu.max: cannot write `max 100000`") && error.contains("another program"),
            "{error}"
        );
    }
}
