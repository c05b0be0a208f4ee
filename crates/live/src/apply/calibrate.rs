//! Measures a disk's cost model, with a temporary file on a file system of that disk.
//!
//! Algorithm: the file has no name, so that nothing of it remains however the program ends. First, writing to
//! the file allocates it. Then requests of one kind after another are kept in flight, each kind for the same
//! time. All are direct; the kinds differ in size, in order (sequential or random), and in direction. Rates
//! are averages until the last request has completed.
//!
//! Properties: nothing but that file is written to. A disk on which weights are in force is refused. The
//! measurement fails if other programs use the disk just before it or during it. The data is pseudo-random,
//! so that no layer can compress or deduplicate it.
//!
//! Limits: the disk is measured through the file system of that file, and through the layers between the file
//! system and the disk. The file is mostly contiguous, so a disk with heads seeks less than under other
//! loads. A drive's write cache makes writes seem faster until the cache is full. A drive that takes more
//! than 64 requests at once may have a higher capacity.
//!
//! Source: the same quantities as the kernel's `tools/cgroup/iocost_coef_gen.py`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::LiveError;
use crate::apply::kept;
use crate::host::{self, File};
use crate::observe::disk::arrays;
use crate::observe::disk::below::{disk_below, drives_of};
use crate::observe::disk::devices::{self, Weigher};
use crate::observe::disk::model::{CostModel, FOLDER, Identity, Way};
use crate::observe::files::Tree;

/// The largest file.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// The file may take one `FREE_PART`th of the free space.
const FREE_PART: u64 = 4;
/// The smallest useful file.
const FILE_BYTES_MIN: u64 = 4 << 20;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// The alignment of buffers and offsets for direct requests.
const ALIGNMENT: usize = 4 << 10;
/// How long to check, before the measurement, whether other programs use the disk.
const LOOK: Duration = Duration::from_secs(1);
/// The highest utilisation of the disk that is accepted before the measurement.
const BUSY_PERCENT: u64 = 5;
/// During the measurement, the disk may transfer one `OTHERS_PART`th more than our requests: file system
/// metadata.
const OTHERS_PART: u64 = 4;

/// The requests of one pass.
#[derive(Debug, Clone, Copy)]
struct Pass {
    writes: bool,
    random: bool,
    bytes: usize,
    depth: usize,
}

const fn pass(writes: bool, random: bool, bytes: usize, depth: usize) -> Pass {
    Pass { writes, random, bytes, depth }
}

/// The first pass allocates the file. Three passes read and three passes write, with large, sequential and
/// random requests.
const PASSES: [Pass; 7] = [
    pass(true, false, LARGE, 8),
    pass(false, false, LARGE, 8),
    pass(false, false, SMALL, 64),
    pass(false, true, SMALL, 64),
    pass(true, false, LARGE, 8),
    pass(true, false, SMALL, 64),
    pass(true, true, SMALL, 64),
];

/// The number of passes of a measurement.
pub const PASS_COUNT: usize = PASSES.len();

/// The disk below a folder, ready to be measured.
#[derive(Debug)]
pub struct Target {
    /// The kernel's name of the disk.
    pub disk: String,
    /// Its identity.
    pub identity: Identity,
    folder: PathBuf,
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The model.
    pub model: CostModel,
    /// The size of the file.
    pub file_bytes: u64,
}

impl Target {
    /// The disk that a folder's file system is on.
    ///
    /// Errors: the folder has no disk, or several; weights are in force on the disk; this user may not store
    /// the result.
    pub fn below(folder: &Path) -> Result<Target, LiveError> {
        let tree = Tree::new(Path::new("/"));
        let disk = disk_below(&tree, folder)?;
        let mount = Path::new("/sys/fs/cgroup");
        refuse_if_held(&tree, mount, &disk)?;
        if let Some(why) = arrays::unfit(&tree, &disk) {
            return Err(LiveError::Unavailable {
                what: format!("array {disk} is not in its normal state: {why}"),
                remedy: "measure it when it is whole and idle (see /proc/mdstat)".to_owned(),
            });
        }
        let identity = Identity::read(&tree, &disk).ok_or_else(|| LiveError::Unavailable {
            what: format!("disk {disk} does not exist any more"),
            remedy: "measure an existing disk".to_owned(),
        })?;
        kept::make_folder(Path::new(FOLDER))?;
        Ok(Target { disk, identity, folder: folder.to_owned() })
    }

    /// Measures the disk in [`PASS_COUNT`] passes, each of which takes the time `each`. Calls `done` after
    /// each pass.
    ///
    /// Errors: the disk is busy, the file system has too little space, or a request fails.
    pub fn measure(&self, each: Duration, done: &dyn Fn()) -> Result<Measured, LiveError> {
        let tree = Tree::new(Path::new("/"));
        self.refuse_if_busy(&tree)?;
        let file = self.make_file()?;
        let before = transferred(&tree, &self.disk);
        let mut size = self.file_bytes_max()?;
        let mut own_bytes = 0;
        let mut results = [PassResult::default(); PASS_COUNT];
        for (n, (pass, result)) in PASSES.iter().zip(&mut results).enumerate() {
            *result =
                run(&file, pass, size, each, n == 0).map_err(|source| self.failed("use a file", source))?;
            // Later passes stay within what the first one allocated.
            if n == 0 {
                size = result.bytes;
            }
            own_bytes += result.bytes;
            done();
        }
        let all_bytes = transferred(&tree, &self.disk).saturating_sub(before);
        if all_bytes > own_bytes + own_bytes / OTHERS_PART + FILE_BYTES_MIN {
            return Err(self.busy(&format!(
                "other programs transferred {} KiB meanwhile",
                all_bytes.saturating_sub(own_bytes) >> 10
            )));
        }
        let way = |large: &PassResult, sequential: &PassResult, random: &PassResult| Way {
            bytes_per_s: large.bytes_per_s(),
            sequential_per_s: sequential.requests_per_s(),
            random_per_s: random.requests_per_s(),
            latency_us: random.latency_us,
        };
        let [_, read_large, read_sequential, read_random, write_large, write_sequential, write_random] =
            &results;
        let model = CostModel {
            read: way(read_large, read_sequential, read_random),
            write: way(write_large, write_sequential, write_random),
        };
        Ok(Measured { model, file_bytes: size })
    }

    /// Stores the model; returns the path of the file.
    pub fn keep(&self, model: &CostModel) -> Result<PathBuf, LiveError> {
        let path = self.identity.path();
        kept::keep(&path, model)?;
        Ok(path)
    }

    fn refuse_if_busy(&self, tree: &Tree) -> Result<(), LiveError> {
        let begun = Instant::now();
        let before = in_use_ms(tree, &self.disk);
        thread::sleep(LOOK);
        let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let percent = in_use_ms(tree, &self.disk).saturating_sub(before) * 100 / elapsed;
        if percent <= BUSY_PERCENT {
            return Ok(());
        }
        Err(self.busy(&format!(
            "it was in use for {percent} % of the last second; at most {BUSY_PERCENT} % are accepted"
        )))
    }

    fn busy(&self, why: &str) -> LiveError {
        LiveError::Unavailable {
            what: format!("disk {} is busy, which would distort the measurement: {why}", self.disk),
            remedy: "measure it while no other program uses it".to_owned(),
        }
    }

    /// The largest size that the file may have, in bytes. Error: there is too little free space for a useful
    /// measurement.
    fn file_bytes_max(&self) -> Result<u64, LiveError> {
        let free = host::free_bytes(&self.folder)
            .map_err(|source| self.failed("determine its free space", source))?;
        let size = (free / FREE_PART).min(FILE_BYTES_MAX) / LARGE as u64 * LARGE as u64;
        if size < FILE_BYTES_MIN {
            return Err(LiveError::Unavailable {
                what: format!(
                    "{} has {} MiB free, too little to measure with",
                    self.folder.display(),
                    free >> 20
                ),
                remedy: format!(
                    "free {} MiB, or name a folder on another file system of that disk",
                    (FILE_BYTES_MIN * FREE_PART) >> 20
                ),
            });
        }
        Ok(size)
    }

    /// Makes a file without a name, so that no other program can open it. On file systems without
    /// `O_TMPFILE`, the file has a name at first, which is removed at once.
    fn make_file(&self) -> Result<File, LiveError> {
        let direct = |extra_flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600).custom_flags(libc::O_DIRECT | extra_flags);
            options
        };
        if let Ok(file) = File::open_with(&self.folder, &direct(libc::O_TMPFILE)) {
            return Ok(file);
        }
        let path = self.folder.join(format!(".commonhold-calibrate-{}", std::process::id()));
        File::open_with(&path, direct(0).create_new(true))
            .and_then(|file| host::remove_file(&path).map(|()| file))
            .map_err(|source| self.failed("make a file for direct requests", source))
    }

    fn failed(&self, what: &str, source: io::Error) -> LiveError {
        LiveError::File {
            path: self.folder.clone(),
            what: format!("{what} there"),
            source,
            remedy: "; name a folder on a file system of the disk that may be written to".to_owned(),
        }
    }
}

/// Fails for a disk on which weights are in force (by BFQ or io.cost), and for an array with a drive on which
/// io.cost is enabled: both would distort the measurement.
fn refuse_if_held(tree: &Tree, mount: &Path, disk: &str) -> Result<(), LiveError> {
    let refused = |name: &str, remedy: String| LiveError::Unavailable {
        what: format!("disk {name} is held by weights now, which would distort the measurement"),
        remedy,
    };
    let mut names = drives_of(tree, disk);
    names.retain(|drive| drive != disk);
    names.push(disk.to_owned());
    for name in names {
        match devices::weigher_of(tree, mount, &name) {
            Some(Weigher::IoCost) => {
                let number = tree.text(format!("/sys/block/{name}/dev")).unwrap_or_default();
                let remedy = format!(
                    "end the daemon that switched io.cost on, or switch it off: echo '{number} enable=0' > {}/io.cost.qos",
                    mount.display()
                );
                return Err(refused(&name, remedy));
            }
            Some(Weigher::Bfq) if name == disk => {
                let remedy = format!(
                    "BFQ needs no model; to measure it anyway: echo none > /sys/block/{disk}/queue/scheduler"
                );
                return Err(refused(&name, remedy));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The result of one pass.
#[derive(Debug, Clone, Copy, Default)]
struct PassResult {
    bytes: u64,
    requests: u64,
    elapsed: Duration,
    /// The 95th percentile of the requests' latencies.
    latency_us: u64,
}

impl PassResult {
    fn bytes_per_s(&self) -> u64 {
        per_second(self.bytes, self.elapsed)
    }

    fn requests_per_s(&self) -> u64 {
        per_second(self.requests, self.elapsed)
    }
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(count) * 1_000_000 / elapsed.as_micros().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Carries out a pass for the time `length`, in the first `size` bytes of the file: keeps [`Pass::depth`]
/// requests in flight, each by a thread of its own. If `allocates`, the pass ends when each offset has been
/// written once.
fn run(file: &File, pass: &Pass, size: u64, length: Duration, allocates: bool) -> io::Result<PassResult> {
    let begun = Instant::now();
    let (next_number, latencies) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let slots = (size / pass.bytes as u64).max(1);
    let issue_requests = |thread_number: u64| -> io::Result<()> {
        let mut buffer = Buffer::new(pass.bytes, thread_number);
        let mut random = Xorshift(thread_number + 1);
        let mut own_latencies = Vec::new();
        while begun.elapsed() < length {
            let number = next_number.fetch_add(1, Ordering::Relaxed);
            if allocates && number >= slots {
                break;
            }
            let slot = if pass.random { random.next() } else { number } % slots;
            let issued_at = Instant::now();
            let offset = slot * pass.bytes as u64;
            if pass.writes {
                buffer.renew(number);
                file.write_all_at(buffer.bytes(), offset)?;
            } else {
                file.read_exact_at(buffer.bytes(), offset)?;
            }
            own_latencies.push(u64::try_from(issued_at.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(own_latencies);
        Ok(())
    };
    let issue_requests = &issue_requests;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..pass.depth as u64).map(|number| scope.spawn(move || issue_requests(number))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the measurement failed")))
        })
    })?;
    let elapsed = begun.elapsed();
    let mut latencies = latencies.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    latencies.sort_unstable();
    let requests = latencies.len() as u64;
    let latency_us = latencies.get(latencies.len() * 95 / 100).copied().unwrap_or(0);
    Ok(PassResult { bytes: requests * pass.bytes as u64, requests, elapsed, latency_us })
}

/// A buffer for direct requests: `bytes` bytes of `memory` from `begin`, which is aligned.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    bytes: usize,
}

impl Buffer {
    /// A buffer filled with incompressible data, which differs from that of other seeds.
    fn new(bytes: usize, seed: u64) -> Buffer {
        let memory = vec![0; bytes + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        let mut buffer = Buffer { memory, begin, bytes };
        let mut random = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for word in buffer.bytes().chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        buffer
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.bytes]
    }

    /// Marks every page with a request's number, so that no two written pages are equal.
    fn renew(&mut self, number: u64) {
        for page in self.bytes().chunks_exact_mut(SMALL) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// Pseudo-random numbers: xorshift64 (Marsaglia 2003).
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The sum of the fields of /sys/block/NAME/stat at these positions (see the kernel's
/// Documentation/block/stat.rst).
fn stat_sum(tree: &Tree, disk: &str, positions: &[usize]) -> u64 {
    let text = tree.text(format!("/sys/block/{disk}/stat")).unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    positions.iter().filter_map(|position| words.get(*position)?.parse::<u64>().ok()).sum()
}

/// The bytes that a disk read and wrote since boot.
fn transferred(tree: &Tree, disk: &str) -> u64 {
    stat_sum(tree, disk, &[2, 6]).saturating_mul(512)
}

/// The time since boot in which a disk had requests in flight, in milliseconds.
fn in_use_ms(tree: &Tree, disk: &str) -> u64 {
    stat_sum(tree, disk, &[9])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn a_disk_held_by_weights_is_refused() {
        let dir = fake::tree(&[
            ("/sys/block/sda/dev", "8:0\n"),
            ("/sys/block/sda/queue/scheduler", "[none]\n"),
            ("/sys/block/md0/dev", "9:0\n"),
            ("/sys/block/md0/slaves/x", ""),
            ("/sys/fs/cgroup/io.cost.qos", "8:0 enable=1 ctrl=auto\n"),
        ]);
        std::fs::remove_file(dir.path().join("sys/block/md0/slaves/x")).unwrap();
        std::os::unix::fs::symlink("../../sda", dir.path().join("sys/block/md0/slaves/sda")).unwrap();
        let refused = |disk: &str| {
            let refused = refuse_if_held(&Tree::new(dir.path()), Path::new("/sys/fs/cgroup"), disk);
            refused.map_err(|error| error.to_string())
        };
        let by_a_drive = refused("md0").unwrap_err();
        assert!(
            by_a_drive.contains("disk sda is held") && by_a_drive.contains("'8:0 enable=0'"),
            "{by_a_drive}"
        );
        fake::add(&dir, &[("/sys/block/sda/queue/scheduler", "none [bfq]\n")]);
        assert_eq!(refused("md0"), Ok(()), "BFQ does not slow a single user");
        assert!(refused("sda").unwrap_err().contains("echo none > /sys/block/sda/queue/scheduler"));
        fake::add(
            &dir,
            &[("/sys/block/sda/queue/scheduler", "[none]\n"), ("/sys/fs/cgroup/io.cost.qos", "")],
        );
        assert_eq!((refused("md0"), refused("sda")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_pass_counts_its_requests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("measured");
        let file = File::open_with(&path, OpenOptions::new().read(true).write(true).create(true)).unwrap();
        // Long enough for a first request on a busy machine.
        let short = Duration::from_millis(200);
        let allocated =
            run(&file, &pass(true, false, SMALL, 4), 40 << 10, Duration::from_secs(10), true).unwrap();
        assert_eq!((allocated.bytes, allocated.requests), (40 << 10, 10), "each offset once");
        let read = run(&file, &pass(false, true, SMALL, 4), allocated.bytes, short, false).unwrap();
        assert!(read.elapsed >= short && read.bytes == read.requests * 4096);
        assert_eq!(file.look().unwrap().len(), 40 << 10, "nothing is written beyond");
        let error = run(&file, &pass(false, false, LARGE, 1), 8 << 20, Duration::from_secs(10), false);
        assert!(error.is_err(), "beyond its end");
    }

    #[test]
    fn buffers_are_aligned_and_no_two_pages_are_equal() {
        let mut buffer = Buffer::new(2 * SMALL, 3);
        assert_eq!(buffer.bytes().as_ptr() as usize % ALIGNMENT, 0);
        buffer.renew(7);
        let bytes = buffer.bytes().to_vec();
        assert_ne!(bytes[..SMALL], bytes[SMALL..]);
        buffer.renew(8);
        assert_ne!(bytes[..SMALL], buffer.bytes()[..SMALL]);
    }

    #[test]
    fn a_disks_transfers_and_time_in_use_are_read() {
        let dir = fake::tree(&[("/sys/block/sda/stat", "10 0 80 5 3 0 16 2 0 700 9 0 0 0 0\n")]);
        let tree = Tree::new(dir.path());
        assert_eq!((transferred(&tree, "sda"), in_use_ms(&tree, "sda")), (96 * 512, 700));
    }
}
