//! What the kernel tells about the memory of one control group.
//!
//! Source: cgroup-v2.rst, "Memory Interface Files".

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use commonhold_policy::UnitMemory;

use super::swap::Packing;
use crate::LiveError;
use crate::cgroup::knob::{failed, value_of};

/// Larger than most files that are read here: memory.stat has some sixty lines.
const BYTES: usize = 16 << 10;

/// Bytes of a page; what the kernel counts in pages is of this size on every machine that the program is built for.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: asks for a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4_096)
}

/// A file of the kernel that is read again and again.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
}

impl Source {
    pub(crate) fn open(path: PathBuf) -> Result<Source, LiveError> {
        match File::open(&path) {
            Ok(file) => Ok(Source { path, file }),
            Err(source) => Err(failed(&path, "open it".to_owned(), source)),
        }
    }

    /// The same file, or nothing if this kernel does not have it.
    pub(super) fn optional(path: PathBuf) -> Option<Source> {
        Source::open(path).ok()
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The text, in one read: that of a file which the kernel writes at once, however long it is.
    pub(crate) fn read<'a>(&self, buffer: &'a mut Buffer) -> Result<&'a str, LiveError> {
        let n = self.fill(buffer)?;
        Ok(buffer.text(n))
    }

    /// The same, of whatever is at that path now: a control group may have gone, and another one come.
    pub(crate) fn read_anew<'a>(&mut self, buffer: &'a mut Buffer) -> Result<&'a str, LiveError> {
        let n = if let Ok(n) = self.fill(buffer) {
            n
        } else {
            *self = Source::open(self.path.clone())?;
            self.fill(buffer)?
        };
        Ok(buffer.text(n))
    }

    fn fill(&self, buffer: &mut Buffer) -> Result<usize, LiveError> {
        loop {
            let n = told(self.file.read_at(&mut buffer.0, 0))
                .map_err(|source| failed(&self.path, "read it".to_owned(), source))?;
            if n < buffer.0.len() {
                return Ok(n);
            }
            buffer.0.resize(2 * n, 0);
        }
    }

    /// Shows every line of a file that may be larger than the buffer; of a line that is, nothing.
    pub(super) fn lines(&self, buffer: &mut Buffer, mut see: impl FnMut(&str)) -> io::Result<()> {
        let (mut at, mut kept) = (0, 0);
        loop {
            let n = self.file.read_at(&mut buffer.0[kept..], at)?;
            at += n as u64;
            let filled = kept + n;
            let whole = match buffer.0[..filled].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if n == 0 || filled == buffer.0.len() => filled,
                None => 0,
            };
            std::str::from_utf8(&buffer.0[..whole]).unwrap_or_default().lines().for_each(&mut see);
            if n == 0 {
                return Ok(());
            }
            buffer.0.copy_within(whole..filled, 0);
            kept = filled - whole;
        }
    }
}

/// What was read, which is nothing where a kernel has the file but not the feature: pressure with `psi=0`.
fn told(read: io::Result<usize>) -> io::Result<usize> {
    match read {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        read => read,
    }
}

/// Room for a file's text, which grows with it.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    fn text(&self, n: usize) -> &str {
        std::str::from_utf8(&self.0[..n]).unwrap_or_default()
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer(vec![0; BYTES])
    }
}

/// The files of one control group.
#[derive(Debug)]
pub(super) struct Group {
    current: Source,
    stat: Source,
    /// Without swap in the kernel there is none.
    swapped: Option<Source>,
}

/// What a control group is charged, with everything below it. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Charged {
    /// With `packed`.
    pub(crate) current: u64,
    /// What its pages on zram take: see [`super::swap`].
    pub(crate) packed: u64,
    /// What it has in swap.
    pub(crate) swapped: u64,
    pub(crate) anonymous: u64,
    pub(crate) dirty: u64,
    pub(crate) kernel: u64,
    pub(crate) inactive_file: u64,
    /// Pages of files, and what the kernel caches for it beside them.
    pub(crate) cached: u64,
    pub(crate) refaulted: u64,
}

impl Group {
    pub(super) fn open(dir: &Path) -> Result<Group, LiveError> {
        Ok(Group {
            current: Source::open(dir.join("memory.current"))?,
            stat: Source::open(dir.join("memory.stat"))?,
            swapped: Source::optional(dir.join("memory.swap.current")),
        })
    }

    pub(super) fn read(&self, buffer: &mut Buffer) -> Result<Charged, LiveError> {
        let current = self.current.read(buffer)?.trim().parse().unwrap_or(0);
        let swapped = match &self.swapped {
            Some(file) => file.read(buffer)?.trim().parse().unwrap_or(0),
            None => 0,
        };
        Ok(Charged { current, swapped, ..Charged::parse(self.stat.read(buffer)?, page_bytes()) })
    }
}

impl Charged {
    /// From the text of memory.stat: sizes are in bytes there, events in pages.
    fn parse(text: &str, page: u64) -> Charged {
        let value = |key: &str| value_of(text, key).unwrap_or(0);
        let kernel = value("kernel").saturating_sub(value("slab_reclaimable"));
        let refaults = value("workingset_refault_anon") + value("workingset_refault_file");
        Charged {
            current: 0,
            packed: 0,
            swapped: 0,
            anonymous: value("anon") + value("shmem"),
            dirty: value("file_dirty") + value("file_writeback"),
            kernel,
            inactive_file: value("inactive_file"),
            cached: value("inactive_file") + value("active_file") + value("slab_reclaimable"),
            refaulted: refaults.saturating_mul(page),
        }
    }

    /// With what its pages on zram take, which nobody is charged.
    pub(super) fn packed(self, packing: &Packing) -> Charged {
        let packed = packing.of(self.swapped);
        Charged { current: self.current.saturating_add(packed), packed, ..self }
    }

    /// Together with another one.
    pub(super) fn with(self, other: &Charged) -> Charged {
        Charged {
            current: self.current + other.current,
            packed: self.packed + other.packed,
            swapped: self.swapped + other.swapped,
            anonymous: self.anonymous + other.anonymous,
            dirty: self.dirty + other.dirty,
            kernel: self.kernel + other.kernel,
            inactive_file: self.inactive_file + other.inactive_file,
            cached: self.cached + other.cached,
            refaulted: self.refaulted + other.refaulted,
        }
    }

    /// Without what belongs to others within it.
    pub(super) fn without(self, others: &[Charged]) -> Charged {
        let less = |own: u64, of: fn(&Charged) -> u64| own.saturating_sub(others.iter().map(of).sum());
        Charged {
            current: less(self.current, |c| c.current),
            packed: less(self.packed, |c| c.packed),
            swapped: less(self.swapped, |c| c.swapped),
            anonymous: less(self.anonymous, |c| c.anonymous),
            dirty: less(self.dirty, |c| c.dirty),
            kernel: less(self.kernel, |c| c.kernel),
            inactive_file: less(self.inactive_file, |c| c.inactive_file),
            cached: less(self.cached, |c| c.cached),
            refaulted: less(self.refaulted, |c| c.refaulted),
        }
    }

    /// As the policy wants it, without what other files tell.
    pub(super) fn unit(self) -> UnitMemory {
        UnitMemory {
            used: self.current,
            packed: self.packed,
            anonymous: self.anonymous,
            dirty: self.dirty,
            kernel: self.kernel,
            refaulted: self.refaulted,
            ..UnitMemory::default()
        }
    }
}

/// Time in which somebody waited for memory, in nanoseconds, from the text of a memory.pressure.
pub(super) fn stalled_ns(text: &str) -> u64 {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("total=")));
    total.and_then(|us| us.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1_000)
}

/// The tightest bound on a control group and those that enclose it, up to the mount: what a container may use. `None`:
/// there is none.
pub(crate) fn tightest_bound(dir: &Path, mount: &Path) -> Option<u64> {
    dir.ancestors().take_while(|dir| dir.starts_with(mount)).filter_map(bound_of).min()
}

/// The bound on a control group itself, in bytes; `None`: it has none.
pub(super) fn bound_of(dir: &Path) -> Option<u64> {
    let bound = |file: &str| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    ["memory.max", "memory.high"].into_iter().filter_map(bound).min()
}

/// What a control group may still swap out, by its own bound on swap and those above; `None`: there is none.
pub(super) fn swap_room(dir: &Path, mount: &Path) -> Option<u64> {
    let number = |dir: &Path, file: &str| -> Option<u64> {
        std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
    };
    let room = |dir: &Path| {
        let most = number(dir, "memory.swap.max")?;
        Some(most.saturating_sub(number(dir, "memory.swap.current").unwrap_or(0)))
    };
    dir.ancestors().take_while(|dir| dir.starts_with(mount)).filter_map(room).min()
}

/// Whether what is written into memory.low below `dir` can be in force: every control group that encloses it must be
/// protected itself, but for the hierarchy's root, which has no such file.
pub(crate) fn is_protected(dir: &Path, mount: &Path) -> bool {
    let above = dir.ancestors().take_while(|dir| dir.starts_with(mount));
    let unprotected = |dir: &Path| match std::fs::read_to_string(dir.join("memory.low")) {
        Ok(text) => text.trim() == "0",
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    !above.into_iter().any(unprotected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_charged_what_memory_stat_says() {
        let text = "anon 1000\nfile 9000\nkernel 300\nshmem 50\nfile_dirty 7\nfile_writeback 3\ninactive_file 4000\n\
                    active_file 600\nslab_reclaimable 100\nworkingset_refault_anon 2\nworkingset_refault_file 3\n";
        let seen = Charged::parse(text, 4_096);
        let expected = Charged {
            current: 0,
            packed: 0,
            swapped: 0,
            anonymous: 1_050,
            dirty: 10,
            kernel: 200,
            inactive_file: 4_000,
            cached: 4_700,
            refaulted: 5 * 4_096,
        };
        assert_eq!(seen, expected);
        let own = Charged { current: 10, ..expected }.without(&[Charged {
            current: 4,
            anonymous: 2_000,
            ..Charged::default()
        }]);
        assert_eq!((own.current, own.anonymous, own.dirty), (6, 0, 10));
    }

    /// What a unit has on zram is used by it, without its sub-units' part.
    #[test]
    fn what_is_packed_counts_as_used() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("current", "1000\n"), ("stat", "anon 900\n"), ("swap.current", "400\n")] {
            std::fs::write(dir.path().join(format!("memory.{file}")), text).unwrap();
        }
        let seen = Group::open(dir.path()).unwrap().read(&mut Buffer::default()).unwrap();
        assert_eq!((seen.current, seen.swapped), (1_000, 400));
        let whole = seen.packed(&Packing::of_all(800, 300));
        assert_eq!((whole.current, whole.packed), (1_150, 150));
        let own = whole.without(&[Charged { current: 200, packed: 50, ..Charged::default() }]).unit();
        assert_eq!((own.used, own.packed, own.anonymous), (950, 100, 900));
        assert_eq!(whole.with(&whole).packed, 300);
    }

    /// `psi=0` leaves the file and refuses to read it: nothing is told. Any other refusal is said.
    #[test]
    fn a_feature_that_is_off_tells_nothing() {
        let refused = |errno| told(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(told(Ok(3)).unwrap(), 3);
        assert_eq!(refused(libc::EOPNOTSUPP).unwrap(), 0);
        assert_eq!(refused(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    /// A file that was removed is gone; what came in its place is read, of whatever length.
    #[test]
    fn a_file_is_read_as_it_is_now() {
        let (dir, mut buffer) = (tempfile::tempdir().unwrap(), Buffer::default());
        let path = dir.path().join("io.stat");
        let long = "8:0 rbytes=1\n".repeat(3_000);
        std::fs::write(&path, &long).unwrap();
        let mut source = Source::open(path.clone()).unwrap();
        assert_eq!(source.read(&mut buffer).unwrap(), long);
        std::fs::write(&path, "8:0 rbytes=2\n").unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=2\n");
        // As a control group's file is once that has gone: it cannot be read.
        source.file = File::open(dir.path()).unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=2\n");
        std::fs::remove_file(&path).unwrap();
        source.file = File::open(dir.path()).unwrap();
        assert!(source.read_anew(&mut buffer).is_err());
        std::fs::write(&path, "8:0 rbytes=3\n").unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=3\n");
    }

    #[test]
    fn pressure() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!((stalled_ns(text), stalled_ns("")), (1_234_000, 0));
    }

    /// A container of 1 MiB in a slice with 512 KiB; protection holds only while everything above has it.
    #[test]
    fn what_stands_above_bounds_and_protects() {
        let mount = tempfile::tempdir().unwrap();
        let dir = mount.path().join("slice/container");
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(tightest_bound(&dir, mount.path()), None);
        assert!(is_protected(&dir, mount.path()));
        for (file, text) in [
            ("slice/memory.high", "524288\n"),
            ("slice/memory.max", "max\n"),
            ("slice/container/memory.max", "1048576\n"),
        ] {
            std::fs::write(mount.path().join(file), text).unwrap();
        }
        assert_eq!(tightest_bound(&dir, mount.path()), Some(512 << 10));
        // Swap: 100 of 300 are used in the container, and none may be in what encloses it.
        assert_eq!(swap_room(&dir, mount.path()), None);
        for (file, text) in [("max", "300\n"), ("current", "100\n")] {
            std::fs::write(dir.join(format!("memory.swap.{file}")), text).unwrap();
        }
        assert_eq!(swap_room(&dir, mount.path()), Some(200));
        std::fs::write(mount.path().join("slice/memory.swap.max"), "0\n").unwrap();
        assert_eq!(swap_room(&dir, mount.path()), Some(0));
        std::fs::write(dir.join("memory.low"), "1000\n").unwrap();
        assert!(is_protected(&dir, mount.path()));
        std::fs::write(mount.path().join("slice/memory.low"), "0\n").unwrap();
        assert!(!is_protected(&dir, mount.path()));
    }
}
