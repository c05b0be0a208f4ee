//! Estimates how much of a unit's charge is for others: a file page is charged to the unit that first touched
//! it, although processes of other units may map the page, too.
//!
//! Problem: the kernel charges a page to one control group, and counts nowhere how much each unit uses. But
//! for a page that a process maps, it shows which control group is charged, and the page's number of
//! mappings.
//!
//! Algorithm: in each round, up to [`PROCESSES_MAX`] processes of each unit are sampled. Among the pages of
//! the files that such a process maps, [`SAMPLES`] are drawn by stratified sampling. A resident page that is
//! charged to another unit counts as a charge of that unit for others, divided by the page's number of
//! mappings. The result estimates the part of each unit's charge that would move to others if every page were
//! charged in equal parts to the processes that map it. A thread does this, with pauses of at least
//! [`PAUSE_MIN`] that keep it to a small part of the machine's time ([`rest_after`]).
//!
//! Limits: the estimate's error is some percent of the mapped memory. Files that are read without being
//! mapped are not seen. It takes root (`CAP_SYS_ADMIN`), and a kernel with `CONFIG_PROC_PAGE_MONITOR`.
//!
//! Source: admin-guide/mm/pagemap.rst.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::rest_after;
use super::source::page_bytes;
use crate::host::{self, File};
use crate::observe::knob::read;

/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The largest numbers of processes that are sampled in a unit, and of pages that are sampled in a process.
const PROCESSES_MAX: usize = 16;
const SAMPLES: u64 = 256;

/// Bits of an entry of /proc/PID/pagemap: whether the page is resident, and the number of its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The sampling thread and its results.
#[derive(Debug)]
pub(crate) struct Sharing(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The control groups that directly contain units' processes.
    leaves: Mutex<Vec<PathBuf>>,
    /// For each of these control groups, its charge for others, in bytes.
    charges: Mutex<BTreeMap<PathBuf, u64>>,
    has_ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sharing {
    /// Starts sampling; `None` if the kernel does not show page frames to this process.
    pub(crate) fn begin() -> Option<Sharing> {
        let frames = Frames::open(Path::new("/proc")).ok()?;
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let run = move || {
            let mut random = 1;
            while !of_thread.has_ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let leaves = lock(&of_thread.leaves).clone();
                *lock(&of_thread.charges) = sample(&leaves, &frames, &mut random);
                thread::sleep(PAUSE_MIN.max(rest_after(begun.elapsed())));
            }
        };
        thread::Builder::new().name("sharing".to_owned()).spawn(run).ok()?;
        Some(Sharing(shared))
    }

    /// Replaces the control groups to sample.
    pub(crate) fn follow(&self, leaves: Vec<PathBuf>) {
        *lock(&self.0.leaves) = leaves;
    }

    /// A control group's charge for others, in bytes.
    pub(crate) fn of(&self, leaf: &Path) -> u64 {
        lock(&self.0.charges).get(leaf).copied().unwrap_or(0)
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }
}

/// The kernel's tables of page frames, which have a number of 8 bytes for each frame.
struct Frames {
    proc: PathBuf,
    /// The inode of the control group that is charged for the frame.
    charged_to: File,
    /// How often the frame is mapped.
    mapping_counts: File,
}

impl Frames {
    fn open(proc: &Path) -> io::Result<Frames> {
        let (charged_to, mapping_counts) =
            (File::open(&proc.join("kpagecgroup"))?, File::open(&proc.join("kpagecount"))?);
        // Some sandboxes allow opening these files, but not reading them.
        number(&charged_to, 0)?;
        Ok(Frames { proc: proc.to_owned(), charged_to, mapping_counts })
    }
}

/// The number at an index of a table.
fn number(file: &File, index: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, index.saturating_mul(8))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Estimates each control group's charge for others, in bytes. `random` is the state of the random numbers.
fn sample(leaves: &[PathBuf], frames: &Frames, random: &mut u64) -> BTreeMap<PathBuf, u64> {
    // The kernel's tables identify a control group by its folder's inode.
    let by_inode = |leaf: &PathBuf| Some((host::look(leaf).ok()?.ino(), leaf.clone()));
    let owners: BTreeMap<u64, PathBuf> = leaves.iter().filter_map(by_inode).collect();
    let mut charges = BTreeMap::new();
    for (own, leaf) in &owners {
        let text = read(&leaf.join("cgroup.procs")).unwrap_or_default();
        let pids: Vec<&str> = text.lines().collect();
        // Each sampled process stands for `step` processes.
        let step = pids.len().div_ceil(PROCESSES_MAX).max(1);
        for pid in pids.iter().step_by(step) {
            for (owner, bytes) in sample_process(&frames.proc.join(pid), frames, random) {
                if let Some(owner) = owners.get(&owner).filter(|_| owner != *own) {
                    *charges.entry(owner.clone()).or_insert(0) += bytes * step as u64;
                }
            }
        }
    }
    charges
}

/// Estimates a process's part of the file pages that it maps, in bytes, by the inode of the control group
/// that is charged for them. `folder` is the process's folder in /proc. Empty for a process that has ended.
fn sample_process(folder: &Path, frames: &Frames, random: &mut u64) -> BTreeMap<u64, u64> {
    let mut bytes_by_owner = BTreeMap::new();
    let page = page_bytes();
    let Ok(pagemap) = File::open(&folder.join("pagemap")) else { return bytes_by_owner };
    let mappings = file_mappings(&read(&folder.join("maps")).unwrap_or_default());
    let pages: u64 = mappings.iter().map(|(from, to)| (to - from) / page).sum();
    let samples = pages.min(SAMPLES);
    // Stratified sampling: the pages are divided into `samples` strata of equal size, and one page is drawn
    // from each.
    for stratum in 0..samples {
        let boundary = |n: u64| u64::try_from(u128::from(pages) * u128::from(n) / u128::from(samples));
        let (from, to) = (boundary(stratum).unwrap_or(0), boundary(stratum + 1).unwrap_or(pages));
        let address = address_at(&mappings, (from + draw(random) % (to - from).max(1)) * page);
        let charge = address.and_then(|address| charge_of(&pagemap, frames, address / page));
        let Some((owner, mapping_count)) = charge else { continue };
        *bytes_by_owner.entry(owner).or_insert(0) += pages * page / samples / mapping_count;
    }
    bytes_by_owner
}

/// The inode of the control group that is charged for a process's page, and the page's number of mappings.
/// `index` is the page's address divided by the page size. `None` if the page is not resident.
fn charge_of(pagemap: &File, frames: &Frames, index: u64) -> Option<(u64, u64)> {
    let entry = number(pagemap, index).ok()?;
    // Without the privilege, every frame number reads as 0.
    let frame = entry & FRAME;
    if entry & PRESENT == 0 || frame == 0 {
        return None;
    }
    let owner = number(&frames.charged_to, frame).ok()?;
    Some((owner, number(&frames.mapping_counts, frame).unwrap_or(1).max(1)))
}

/// The address ranges of file mappings, from the text of /proc/PID/maps: `FROM-TO FLAGS OFFSET DEVICE INODE
/// PATH`.
fn file_mappings(text: &str) -> Vec<(u64, u64)> {
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        if words.nth(3)? == "0" {
            return None;
        }
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        (to > from).then_some((from, to))
    };
    text.lines().filter_map(mapping).collect()
}

/// The address of the byte at an offset in the concatenation of all mappings.
fn address_at(mappings: &[(u64, u64)], mut offset: u64) -> Option<u64> {
    for (from, to) in mappings {
        if offset < to - from {
            return Some(from + offset);
        }
        offset -= to - from;
    }
    None
}

/// A pseudo-random number, good enough for sampling (a linear congruential generator with Knuth's constants,
/// the upper bits).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn table(path: &Path, numbers: &[u64]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn mappings_of_files_are_those_with_an_inode() {
        let text = "1000-3000 r-xp 00000000 fd:01 42 /usr/bin/a\n5000-6000 rw-p 00000000 00:00 0 [heap]\n\
                    7000-9000 r--s 00001000 fd:01 43 /data with spaces\n9000-8000 r--s 0 fd:01 44 /odd\n";
        let mappings = file_mappings(text);
        assert_eq!(mappings, [(0x1000, 0x3000), (0x7000, 0x9000)]);
        assert_eq!(address_at(&mappings, 0x1fff), Some(0x2fff));
        assert_eq!(address_at(&mappings, 0x2001), Some(0x7001));
        assert_eq!(address_at(&mappings, 0x4000), None);
    }

    /// Pages 1 to 4 of a process map a file. Page 1 is charged to its own unit; 2 to another, and only this
    /// process maps it; 3 to the other, and three processes map it; 4 is not resident. All are sampled: the
    /// other's charge for others is one page and a third.
    #[test]
    fn a_page_is_divided_among_its_mappings() {
        let proc = tempfile::tempdir().unwrap();
        let at = |name: &str| proc.path().join(name);
        let page = page_bytes();
        std::fs::create_dir(at("7")).unwrap();
        std::fs::write(at("7/maps"), format!("{page:x}-{:x} r--s 0 fd:01 42 /f\n", page * 5)).unwrap();
        table(&at("7/pagemap"), &[0, PRESENT | 1, PRESENT | 2, PRESENT | 3, 4]);
        let (own, other) = (at("own"), at("other"));
        for (leaf, pids) in [(&own, "7\n"), (&other, "")] {
            std::fs::create_dir(leaf).unwrap();
            std::fs::write(leaf.join("cgroup.procs"), pids).unwrap();
        }
        let number = |leaf: &Path| host::look(leaf).unwrap().ino();
        table(&at("kpagecgroup"), &[0, number(&own), number(&other), number(&other), number(&other)]);
        table(&at("kpagecount"), &[0, 1, 1, 3, 1]);
        let frames = Frames::open(proc.path()).unwrap();
        let found = sample(&[own, other.clone()], &frames, &mut 1);
        assert_eq!(found, BTreeMap::from([(other, page + page / 3)]));
    }

    /// Every third of forty processes is sampled, and counts for three: 14 of them map a page charged to
    /// another unit.
    #[test]
    fn a_sample_of_many_processes_is_extrapolated() {
        let proc = tempfile::tempdir().unwrap();
        let at = |name: &str| proc.path().join(name);
        let page = page_bytes();
        let (own, other) = (at("own"), at("other"));
        let pids: Vec<String> = (100..140).map(|pid| pid.to_string()).collect();
        for (leaf, pids) in [(&own, pids.join("\n")), (&other, String::new())] {
            std::fs::create_dir(leaf).unwrap();
            std::fs::write(leaf.join("cgroup.procs"), pids).unwrap();
        }
        for pid in &pids {
            std::fs::create_dir(at(pid)).unwrap();
            std::fs::write(at(pid).join("maps"), format!("0-{page:x} r--s 0 fd:01 42 /f\n")).unwrap();
            table(&at(pid).join("pagemap"), &[PRESENT | 1]);
        }
        table(&at("kpagecgroup"), &[0, std::fs::metadata(&other).unwrap().ino()]);
        table(&at("kpagecount"), &[0, 1]);
        let found = sample(&[own, other.clone()], &Frames::open(proc.path()).unwrap(), &mut 1);
        assert_eq!(found, BTreeMap::from([(other, page * 14 * 3)]));
    }
}
