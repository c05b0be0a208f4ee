//! Loads the lock meter (`meter/meter.c`) into a program, and reads what it counted.
//!
//! The meter's shared object and its tables are two files in memory (memfd). The program opens both by their
//! paths in this process's directory in /proc, and not by inherited descriptors. So they are available even
//! to a program that closes all of its descriptors, and to its children.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use commonhold_live::host::clock;
use rustix::fs::{MemfdFlags, memfd_create};

/// The shared object that is preloaded into the program.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meter.so"));

// As in meter/meter.h.
const MAGIC: u64 = 0x3172_6574_656d_6b6c;
const HEADER_BYTES: usize = 4096;
const PROCESSES: usize = 512;
const PROCESS_BYTES: usize = 65536;
const SLABS: usize = 2048;
const SLAB_BYTES: usize = 65536;
const SLAB_HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 192;
const RECORDS: usize = 340;
/// Offset of the header's counters: processes, slabs, records dropped for lack of room.
const COUNTERS_AT: usize = 56;

/// What the meter does in addition to counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeterOptions {
    /// The class of locks whose cycles are sampled and delayed; 0: no class.
    pub class: u64,
    /// The delay during each hold, as additional CPU time.
    pub inside_ns: u64,
    /// The delay after each release, as additional CPU time.
    pub outside_ns: u64,
}

/// Shortest time between two sampled cycles of a thread: sampling a cycle takes about 10 us.
const SAMPLE_NS: u64 = 2_000_000;

/// A meter for one run.
#[derive(Debug)]
pub(crate) struct Meter {
    object: OwnedFd,
    counts: OwnedFd,
}

/// The program's records, with times converted to ns.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// The mappings of each process that took a lock, as in `/proc/PID/maps`, by the process's number in the
    /// tables.
    pub(crate) maps: Vec<String>,
    pub(crate) records: Vec<Record>,
    /// Locks not counted because the tables were full.
    pub(crate) overflowed: u64,
}

/// The subject of a record, with its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// One thread's use of a lock.
    Lock(OfLock),
    /// One thread's use of a lock at one call site.
    Site(OfSite),
    /// Time waited at a call site while the lock was held by a thread that took it at the call site `holder`.
    Holder(u64),
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) process: usize,
    pub(crate) thread: usize,
    /// The lock's address in the process.
    pub(crate) lock: u64,
    /// The address of the call site that takes the lock.
    pub(crate) site: u64,
    /// The address of the holder's call site.
    pub(crate) holder: u64,
    pub(crate) class: u64,
    /// 1 mutex, 2 rwlock, 3 spinlock.
    pub(crate) kind: u32,
    pub(crate) about: About,
}

/// The fields of `struct meter_record` (meter/meter.c) that count a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfLock {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) gap: u64,
    pub(crate) gaps: u64,
    pub(crate) injected: u64,
    pub(crate) samples: u64,
    pub(crate) hold_wall: u64,
    pub(crate) hold_cpu: u64,
    pub(crate) hold_queue: u64,
    pub(crate) gap_wall: u64,
    pub(crate) gap_cpu: u64,
    pub(crate) gap_queue: u64,
}

/// The fields of `struct meter_record` (meter/meter.c) that count a call site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfSite {
    pub(crate) total: u64,
    pub(crate) shared: u64,
    pub(crate) waited: u64,
    pub(crate) wait: u64,
    pub(crate) wait_max: u64,
    pub(crate) hold: u64,
    pub(crate) hold_max: u64,
    pub(crate) rejected: u64,
    pub(crate) retaken: u64,
}

impl Meter {
    pub(crate) fn new(options: MeterOptions) -> io::Result<Meter> {
        let object = executable()?;
        std::fs::File::from(object.try_clone()?).write_all_at(OBJECT, 0)?;
        let counts = memfd_create("commonhold-locks", MemfdFlags::CLOEXEC)?;
        let file = std::fs::File::from(counts.try_clone()?);
        // Pages that are never written take no memory.
        file.set_len((HEADER_BYTES + PROCESSES * PROCESS_BYTES + SLABS * SLAB_BYTES) as u64)?;
        let ticks_per_ms = ticks_per_ms();
        let words = [
            MAGIC,
            u64::from(ticks_per_ms.is_some()),
            ticks_per_ms.unwrap_or(1_000_000),
            options.class,
            options.inside_ns,
            options.outside_ns,
            SAMPLE_NS,
        ];
        file.write_all_at(&words.map(u64::to_ne_bytes).concat(), 0)?;
        Ok(Meter { object, counts })
    }

    /// The environment variables that load the meter into the program.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        let path = |file: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut preload = OsString::from(path(&self.object));
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        [("LD_PRELOAD", preload), ("COMMONHOLD_METER", path(&self.counts).into())]
    }

    /// Reads what the program's processes counted.
    pub(crate) fn read(&self) -> io::Result<Counted> {
        let file = std::fs::File::from(self.counts.try_clone()?);
        let mut head = vec![0; HEADER_BYTES];
        file.read_exact_at(&mut head, 0)?;
        let counter = |at: usize| u32_at(&head, COUNTERS_AT + at) as usize;
        let ticks = ticks_per_ms().unwrap_or(1_000_000);
        let mut counted = Counted { overflowed: counter(8) as u64, ..Counted::default() };
        for at in 0..counter(0).min(PROCESSES) {
            let mut bytes = vec![0; PROCESS_BYTES];
            file.read_exact_at(&mut bytes, (HEADER_BYTES + at * PROCESS_BYTES) as u64)?;
            let length = (u32_at(&bytes, 4) as usize).min(PROCESS_BYTES - 8);
            counted.maps.push(String::from_utf8_lossy(&bytes[8..8 + length]).into_owned());
        }
        for at in 0..counter(4).min(SLABS) {
            let mut bytes = vec![0; SLAB_BYTES];
            let from = HEADER_BYTES + PROCESSES * PROCESS_BYTES + at * SLAB_BYTES;
            file.read_exact_at(&mut bytes, from as u64)?;
            let process = u32_at(&bytes, 0) as usize;
            let records = bytes[SLAB_HEAD_BYTES..].chunks_exact(RECORD_BYTES).take(RECORDS);
            counted.records.extend(records.filter_map(|bytes| record(bytes, process, at, ticks)));
        }
        Ok(counted)
    }
}

/// A file in memory that may be executed. Kernels before 6.3 lack the flag for that, and always allow it.
fn executable() -> io::Result<OwnedFd> {
    match memfd_create("commonhold-meter", MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => Ok(memfd_create("commonhold-meter", MemfdFlags::CLOEXEC)?),
        other => Ok(other?),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Parses a record of the tables; `None` if it is unused.
fn record(bytes: &[u8], process: usize, thread: usize, ticks_per_ms: u64) -> Option<Record> {
    let word = |at: usize| {
        bytes.get(8 * at..8 * at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_ne_bytes)
    };
    let ns = |at: usize| {
        u64::try_from(u128::from(word(at)) * 1_000_000 / u128::from(ticks_per_ms.max(1))).unwrap_or(u64::MAX)
    };
    let about = match u32_at(bytes, 36) {
        1 => About::Lock(OfLock {
            first: ns(5),
            last: ns(6),
            gap: ns(8),
            gaps: word(9),
            injected: word(10),
            samples: word(12),
            hold_wall: ns(13),
            hold_cpu: word(14),
            hold_queue: word(15),
            gap_wall: ns(17),
            gap_cpu: word(18),
            gap_queue: word(19),
        }),
        2 => About::Site(OfSite {
            total: word(5),
            shared: word(6),
            waited: word(7),
            wait: ns(8),
            wait_max: ns(9),
            hold: ns(10),
            hold_max: ns(11),
            rejected: word(12),
            retaken: word(13),
        }),
        3 => About::Holder(ns(8)),
        _ => return None,
    };
    let (lock, site, holder, class) = (word(0), word(1), word(2), word(3));
    Some(Record { process, thread, lock, site, holder, class, kind: u32_at(bytes, 32), about })
}

/// The frequency of the processor's time-stamp counter; `None` if that counter is not constant. Reading it
/// costs less than the kernel's clock.
#[cfg(target_arch = "x86_64")]
fn ticks_per_ms() -> Option<u64> {
    static TICKS: OnceLock<Option<u64>> = OnceLock::new();
    // SAFETY: every x86_64 processor has this instruction. A parent may forbid it by prctl PR_SET_TSC: then
    // the kernel kills this process.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    *TICKS.get_or_init(|| {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let flags = cpus.lines().find(|line| line.starts_with("flags"))?;
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        if !has("constant_tsc") || !has("nonstop_tsc") {
            return None;
        }
        let (from_ns, from) = (clock::now(), counter());
        std::thread::sleep(Duration::from_millis(20));
        let (to_ns, to) = (clock::now(), counter());
        let rate =
            u128::from(to.checked_sub(from)?) * 1_000_000 / u128::from(to_ns.saturating_sub(from_ns).max(1));
        u64::try_from(rate).ok().filter(|rate| *rate > 0)
    })
}

/// On other architectures, times come from the kernel's clock.
#[cfg(not(target_arch = "x86_64"))]
fn ticks_per_ms() -> Option<u64> {
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_c_have_the_same_constants() {
        let header = include_str!("meter/meter.h");
        for (name, number) in [
            ("METER_HEADER_BYTES", HEADER_BYTES),
            ("METER_PROCESSES", PROCESSES),
            ("METER_PROCESS_BYTES", PROCESS_BYTES),
            ("METER_SLABS", SLABS),
            ("METER_SLAB_BYTES", SLAB_BYTES),
            ("METER_RECORD_BYTES", RECORD_BYTES),
            ("METER_RECORDS", RECORDS),
        ] {
            assert!(header.contains(&format!("\t{name} = {number},")), "{name}");
        }
        assert!(header.contains(&format!("METER_MAGIC {MAGIC:#x}ull")), "{MAGIC:#x}");
    }

    #[test]
    fn a_record_is_read_word_by_word() {
        let words: Vec<u64> = (0..24).map(|n| if n == 4 { 1 | 2 << 32 } else { n * 10 }).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let found = record(&bytes, 7, 8, 2_000_000).unwrap();
        assert_eq!((found.process, found.thread, found.kind), (7, 8, 1));
        let About::Site(site) = found.about else { panic!("{found:?}") };
        assert_eq!((site.total, site.wait, site.hold_max, site.retaken), (50, 40, 55, 130));
        assert_eq!(record(&[0; RECORD_BYTES], 0, 0, 1), None);
    }
}
