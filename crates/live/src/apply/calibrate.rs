//! Measuring a disk's cost model, with a file of our own on a file system of it.
//!
//! Algorithm: a file without a name is written for a while, which lays it out. It has no name so that nothing of it is
//! left, however this ends. Then requests are kept under way past the page cache, each kind for as long: large and
//! small, one behind the other and from places drawn at random, reading and writing. Rates are what was done until the
//! last request ended.
//!
//! Properties: nothing but that file is written to. A disk that others use, or that is held at the moment, is refused,
//! before and after. Bytes are pseudo-random, so that nothing on the way can make them fewer.
//!
//! Limits: the disk is measured as this file system and the layers between give it out. The file lies close together,
//! so a disk with heads seeks less than it may have to. A drive that caches writes is measured with its cache, as long
//! as this is not full. A drive that takes more than 64 requests at once may carry more.
//!
//! Source: the measures are those of the kernel's `tools/cgroup/iocost_coef_gen.py`.

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

/// The largest file, and the part of the free space that it may take.
const FILE_BYTES_MAX: u64 = 4 << 30;
const FREE_PART: u64 = 4;
/// The smallest file that says something.
const FILE_BYTES_MIN: u64 = 4 << 20;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// What a buffer for direct requests, and their places, are aligned to.
const ALIGNMENT: usize = 4 << 10;
/// How long to look whether others use the disk, and which part of that it may be in use.
const LOOK: Duration = Duration::from_secs(1);
const BUSY_PERCENT: u64 = 5;
/// How much more than our own the disk may have transferred meanwhile: metadata of the file system.
const OTHERS_PART: u64 = 4;

/// Which requests are kept under way.
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

/// The first lays the file out; then large, sequential and random requests, reading, and the same writing.
const PASSES: [Pass; 7] = [
    pass(true, false, LARGE, 8),
    pass(false, false, LARGE, 8),
    pass(false, false, SMALL, 64),
    pass(false, true, SMALL, 64),
    pass(true, false, LARGE, 8),
    pass(true, false, SMALL, 64),
    pass(true, true, SMALL, 64),
];

/// How many passes a measurement has.
pub const PASS_COUNT: usize = PASSES.len();

/// The disk below a folder, ready to be measured.
#[derive(Debug)]
pub struct Target {
    /// The kernel's name for it.
    pub disk: String,
    /// What it is.
    pub identity: Identity,
    folder: PathBuf,
}

/// What a measurement came to.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The model.
    pub model: CostModel,
    /// How large the file was.
    pub file_bytes: u64,
}

impl Target {
    /// The disk that a folder's file system is on. Refused: a folder without one, or with several; a disk that is held by
    /// weights at the moment; and anybody who may not keep the result.
    pub fn below(folder: &Path) -> Result<Target, LiveError> {
        let tree = Tree::new(Path::new("/"));
        let disk = disk_below(&tree, folder)?;
        let mount = Path::new("/sys/fs/cgroup");
        refuse_if_held(&tree, mount, &disk)?;
        if let Some(why) = arrays::unfit(&tree, &disk) {
            return Err(LiveError::Unavailable {
                what: format!("array {disk} is not in its usual state: {why}"),
                remedy: "measure it when it is whole and idle (see /proc/mdstat)".to_owned(),
            });
        }
        let identity = Identity::read(&tree, &disk).ok_or_else(|| LiveError::Unavailable {
            what: format!("disk {disk} has gone"),
            remedy: "measure one that is there".to_owned(),
        })?;
        kept::make_folder(Path::new(FOLDER))?;
        Ok(Target { disk, identity, folder: folder.to_owned() })
    }

    /// Measures it, for so long with each of [`PASS_COUNT`] kinds of requests; `done` is called after each.
    pub fn measure(&self, each: Duration, done: &dyn Fn()) -> Result<Measured, LiveError> {
        let tree = Tree::new(Path::new("/"));
        self.refuse_if_busy(&tree)?;
        let file = self.file()?;
        let before = transferred(&tree, &self.disk);
        let mut size = self.room()?;
        let mut ours = 0;
        let mut found = [Found::default(); PASS_COUNT];
        for (n, (pass, found)) in PASSES.iter().zip(&mut found).enumerate() {
            *found =
                run(&file, pass, size, each, n == 0).map_err(|source| self.failed("use a file", source))?;
            if n == 0 {
                size = found.bytes;
            }
            ours += found.bytes;
            done();
        }
        let all = transferred(&tree, &self.disk).saturating_sub(before);
        if all > ours + ours / OTHERS_PART + FILE_BYTES_MIN {
            return Err(self.busy(&format!(
                "something else transferred {} KiB meanwhile",
                all.saturating_sub(ours) >> 10
            )));
        }
        let way = |large: &Found, sequential: &Found, random: &Found| Way {
            bytes_per_s: large.bytes_per_s(),
            sequential_per_s: sequential.requests_per_s(),
            random_per_s: random.requests_per_s(),
            latency_us: random.latency_us,
        };
        let [_, read_large, read_next, read_random, write_large, write_next, write_random] = &found;
        let model = CostModel {
            read: way(read_large, read_next, read_random),
            write: way(write_large, write_next, write_random),
        };
        Ok(Measured { model, file_bytes: size })
    }

    /// Keeps what was measured; returns the file that has it.
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
            what: format!("disk {} is busy, so the measurement would be too low: {why}", self.disk),
            remedy: "measure it while nothing else uses it".to_owned(),
        }
    }

    /// How large the file may become.
    fn room(&self) -> Result<u64, LiveError> {
        let free =
            host::free_bytes(&self.folder).map_err(|source| self.failed("look for room in it", source))?;
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

    /// A file that nobody else can open. Some file systems cannot make one without a name: there it loses it at once.
    fn file(&self) -> Result<File, LiveError> {
        let direct = |more: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600).custom_flags(libc::O_DIRECT | more);
            options
        };
        if let Ok(file) = File::open_with(&self.folder, &direct(libc::O_TMPFILE)) {
            return Ok(file);
        }
        let path = self.folder.join(format!(".commonhold-calibrate-{}", std::process::id()));
        File::open_with(&path, direct(0).create_new(true))
            .and_then(|file| host::remove_file(&path).map(|()| file))
            .map_err(|source| self.failed("make a file that goes past the page cache", source))
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

/// A disk is not measured while weights hold it, nor an array while io.cost holds a drive of it.
fn refuse_if_held(tree: &Tree, mount: &Path, disk: &str) -> Result<(), LiveError> {
    let refused = |name: &str, remedy: String| LiveError::Unavailable {
        what: format!("disk {name} is held by weights now, so the measurement would be too low"),
        remedy,
    };
    let mut all = drives_of(tree, disk);
    all.retain(|drive| drive != disk);
    all.push(disk.to_owned());
    for name in all {
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
                    "BFQ needs no model; to measure it all the same: echo none > /sys/block/{disk}/queue/scheduler"
                );
                return Err(refused(&name, remedy));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    bytes: u64,
    requests: u64,
    elapsed: Duration,
    /// What 95 of 100 requests took at most.
    latency_us: u64,
}

impl Found {
    fn bytes_per_s(&self) -> u64 {
        per_second(self.bytes, self.elapsed)
    }

    fn requests_per_s(&self) -> u64 {
        per_second(self.requests, self.elapsed)
    }
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let per = u128::from(count) * 1_000_000 / elapsed.as_micros().max(1);
    u64::try_from(per).unwrap_or(u64::MAX)
}

/// Keeps a pass's requests under way, below `size`, for so long; where it lays a file out, at most once all over it.
fn run(file: &File, pass: &Pass, size: u64, length: Duration, lays_out: bool) -> io::Result<Found> {
    let begun = Instant::now();
    let (next, took) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let places = (size / pass.bytes as u64).max(1);
    let one = |number: u64| -> io::Result<()> {
        let mut buffer = Buffer::new(pass.bytes, number);
        let mut chance = Chance(number + 1);
        let mut own = Vec::new();
        while begun.elapsed() < length {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if lays_out && turn >= places {
                break;
            }
            let place = if pass.random { chance.next() } else { turn } % places;
            let at = Instant::now();
            let offset = place * pass.bytes as u64;
            if pass.writes {
                buffer.renew(turn);
                file.write_all_at(buffer.bytes(), offset)?;
            } else {
                file.read_exact_at(buffer.bytes(), offset)?;
            }
            own.push(u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        took.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(own);
        Ok(())
    };
    let one = &one;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..pass.depth as u64).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the measurement failed")))
        })
    })?;
    let elapsed = begun.elapsed();
    let mut took = took.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    took.sort_unstable();
    let requests = took.len() as u64;
    let latency_us = took.get(took.len() * 95 / 100).copied().unwrap_or(0);
    Ok(Found { bytes: requests * pass.bytes as u64, requests, elapsed, latency_us })
}

/// A buffer that direct requests can be made from.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    bytes: usize,
}

impl Buffer {
    /// Filled with what no two threads have alike, and nothing can compress.
    fn new(bytes: usize, seed: u64) -> Buffer {
        let memory = vec![0; bytes + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        let mut buffer = Buffer { memory, begin, bytes };
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for word in buffer.bytes().chunks_exact_mut(8) {
            word.copy_from_slice(&chance.next().to_le_bytes());
        }
        buffer
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.bytes]
    }

    /// Makes every page of it another than it was, so that no two that are written are alike.
    fn renew(&mut self, turn: u64) {
        for page in self.bytes().chunks_exact_mut(SMALL) {
            page[..8].copy_from_slice(&turn.to_le_bytes());
        }
    }
}

/// Numbers in no order: xorshift64 (Marsaglia 2003).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A disk's counts, by their place in /sys/block/NAME/stat: Documentation/block/stat.rst.
fn counts(tree: &Tree, disk: &str, places: &[usize]) -> u64 {
    let text = tree.text(format!("/sys/block/{disk}/stat")).unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    places.iter().filter_map(|place| words.get(*place)?.parse::<u64>().ok()).sum()
}

/// Bytes read and written so far.
fn transferred(tree: &Tree, disk: &str) -> u64 {
    counts(tree, disk, &[2, 6]).saturating_mul(512)
}

/// Time in which requests were under way so far.
fn in_use_ms(tree: &Tree, disk: &str) -> u64 {
    counts(tree, disk, &[9])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn what_weights_hold_is_not_measured() {
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
        assert_eq!(refused("md0"), Ok(()), "BFQ holds nobody back who is alone");
        assert!(refused("sda").unwrap_err().contains("echo none > /sys/block/sda/queue/scheduler"));
        fake::add(
            &dir,
            &[("/sys/block/sda/queue/scheduler", "[none]\n"), ("/sys/fs/cgroup/io.cost.qos", "")],
        );
        assert_eq!((refused("md0"), refused("sda")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_pass_reads_what_was_laid_out_and_counts_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("measured");
        let file = File::open_with(&path, OpenOptions::new().read(true).write(true).create(true)).unwrap();
        // Long enough for a first request on a busy machine.
        let short = Duration::from_millis(200);
        let laid = run(&file, &pass(true, false, SMALL, 4), 40 << 10, Duration::from_secs(10), true).unwrap();
        assert_eq!((laid.bytes, laid.requests), (40 << 10, 10), "once all over it");
        let read = run(&file, &pass(false, true, SMALL, 4), laid.bytes, short, false).unwrap();
        assert!(read.elapsed >= short && read.bytes == read.requests * 4096);
        assert_eq!(file.look().unwrap().len(), 40 << 10, "nothing is written beyond");
        let error = run(&file, &pass(false, false, LARGE, 1), 8 << 20, Duration::from_secs(10), false);
        assert!(error.is_err(), "beyond its end");
    }

    #[test]
    fn direct_requests_are_aligned_and_no_two_pages_alike() {
        let mut buffer = Buffer::new(2 * SMALL, 3);
        assert_eq!(buffer.bytes().as_ptr() as usize % ALIGNMENT, 0);
        buffer.renew(7);
        let bytes = buffer.bytes().to_vec();
        assert_ne!(bytes[..SMALL], bytes[SMALL..]);
        buffer.renew(8);
        assert_ne!(bytes[..SMALL], buffer.bytes()[..SMALL]);
    }

    #[test]
    fn counts_of_a_disk() {
        let dir = fake::tree(&[("/sys/block/sda/stat", "10 0 80 5 3 0 16 2 0 700 9 0 0 0 0\n")]);
        let tree = Tree::new(dir.path());
        assert_eq!((transferred(&tree, "sda"), in_use_ms(&tree, "sda")), (96 * 512, 700));
    }
}
