//! Measures the capacity of the memory bus.
//!
//! Algorithm: one thread is pinned to each CPU, and has three arrays in the memory of that CPU's node. In
//! each pass, all threads start together and compute `a = b + s * c` for all elements. A pass lasts from the
//! first start to the last end. The result is the rate of the best pass. This is done first for one CPU, then
//! for all CPUs together.
//!
//! Properties: only memory of this process is touched. Each element counts as 24 bytes: the bytes that caches
//! fetch, for two arrays to read and one to write. So the result is comparable to cache misses times the line
//! size. Most processors also write the third array's lines back; neither the result nor a count of cache
//! misses includes these transfers.
//!
//! Limits: transfers of other programs are missing from the result, unless these programs pause while a pass
//! runs. Transfers that a busy host takes from a virtual machine are missing, too. On a machine with several
//! nodes, the result is the sum of all nodes' capacities; programs that use remote memory get less.
//!
//! Source: J. `McCalpin`, Memory Bandwidth and Machine Balance in Current High Performance Computers, 1995
//! (STREAM's triad, with arrays of four times the last-level cache).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_machine::{CpuSet, Machine};

use crate::LiveError;
use crate::apply::kept;
use crate::host::{affinity, clock};
use crate::observe::bus::capacity::{Capacity, FOLDER, Identity};
use crate::observe::bus::last_cache;
use crate::observe::files::Tree;
use crate::observe::topology::{self, meminfo};

/// The number of progress reports in each of the [`KINDS`] of measurement.
pub const STEPS: u32 = 5;
/// The number of measurements: one with one CPU, one with all CPUs.
pub const KINDS: u32 = 2;

const ARRAYS: u64 = 3;
/// The size of an element, in bytes.
const ELEMENT: u64 = 8;
/// The size of an array, as a multiple of the caches that could hold it.
const TIMES_CACHE: u64 = 4;
/// The smallest total size of all arrays, as a multiple of all caches. Smaller arrays would be served partly
/// from the caches.
const TIMES_CACHE_MIN: u64 = 2;
/// The assumed size of a cache that the kernel does not describe.
const CACHE_BYTES: u64 = 32 << 20;
/// Arrays may take one `FREE_PART`th of the free memory.
const FREE_PART: u64 = 4;

/// A machine, ready to be measured.
#[derive(Debug)]
pub struct Target {
    /// Its identity.
    pub identity: Identity,
    machine: Machine,
    sizes: Sizes,
}

/// The number of elements of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// Of each array in the measurement with one CPU.
    one_cpu: usize,
    /// Of each array of each CPU, in the measurement with all CPUs.
    per_cpu: usize,
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The capacity of the bus.
    pub capacity: Capacity,
    /// The total size of the arrays.
    pub arrays_bytes: u64,
}

impl Target {
    /// This machine.
    ///
    /// Errors: too little free memory for arrays larger than the caches; this user may not store the result.
    pub fn here() -> Result<Target, LiveError> {
        let tree = Tree::new(Path::new("/"));
        let machine = topology::read(Path::new("/"))?;
        let free = meminfo(&tree, "/proc/meminfo", "MemAvailable:")?.unwrap_or(0);
        let sizes = Sizes::for_machine(&tree, &machine, free)?;
        kept::make_folder(Path::new(FOLDER))?;
        Ok(Target { identity: Identity::read(&tree, &machine), machine, sizes })
    }

    /// Measures with one CPU for the time `each`, then with all CPUs for the same time. Calls `done`
    /// [`STEPS`] times in each measurement.
    pub fn measure(&self, each: Duration, done: &dyn Fn()) -> Result<Measured, LiveError> {
        let cpus: Vec<u32> = self.machine.cpus.iter().map(|cpu| cpu.id).collect();
        let failed = |source: io::Error| LiveError::Process {
            pid: std::process::id(),
            name: "commonhold".to_owned(),
            what: "measure the memory bus".to_owned(),
            source,
            remedy: "; its threads need memory, and each CPU of the machine".to_owned(),
        };
        let one = best_rate(&cpus[..1], self.sizes.one_cpu, each, done).map_err(failed)?;
        let before = Busy::now(cpus.len());
        let all = best_rate(&cpus, self.sizes.per_cpu, each, done).map_err(failed)?;
        let others_percent = Busy::now(cpus.len()).others_percent_since(&before);
        let count = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
        let arrays_bytes = ARRAYS * ELEMENT * (self.sizes.per_cpu as u64) * u64::from(count);
        // All CPUs together transfer at least as much as one.
        let all = all.max(one);
        let capacity = Capacity { one_bytes_per_s: one, all_bytes_per_s: all, cpus: count, others_percent };
        Ok(Measured { capacity, arrays_bytes })
    }

    /// Stores the result; returns the path of the file.
    pub fn keep(&self, capacity: &Capacity) -> Result<PathBuf, LiveError> {
        let path = self.identity.path();
        kept::keep(&path, capacity)?;
        Ok(path)
    }
}

impl Sizes {
    /// The sizes of the arrays on this machine. They exceed the caches, so that memory is measured, and fit
    /// in `free` bytes of free memory.
    fn for_machine(tree: &Tree, machine: &Machine, free: u64) -> Result<Sizes, LiveError> {
        let mut caches: BTreeMap<u32, u64> = BTreeMap::new();
        for cpu in &machine.cpus {
            let cache = last_cache(tree, cpu.id);
            let (first, bytes) = cache.map_or((cpu.id, CACHE_BYTES), |cache| (cache.first_cpu, cache.bytes));
            caches.insert(first, bytes);
        }
        let (all, largest) = (caches.values().sum::<u64>(), caches.values().copied().max().unwrap_or(0));
        let cpus = (machine.cpus.len() as u64).max(1);
        let array_bytes_max = free / FREE_PART / ARRAYS;
        let elements = |bytes: u64| usize::try_from(bytes / ELEMENT).unwrap_or(usize::MAX).max(1);
        if array_bytes_max * ARRAYS < all * TIMES_CACHE_MIN {
            return Err(LiveError::Unavailable {
                what: format!(
                    "{} MiB are free: too little for arrays larger than the caches of {} MiB",
                    free >> 20,
                    all >> 20
                ),
                remedy: format!(
                    "free {} MiB, or measure on fewer CPUs: taskset -c LIST commonhold calibrate --bus",
                    (all * TIMES_CACHE_MIN * FREE_PART).saturating_sub(free) >> 20
                ),
            });
        }
        Ok(Sizes {
            one_cpu: elements((largest * TIMES_CACHE).min(array_bytes_max)),
            per_cpu: elements((all * TIMES_CACHE).min(array_bytes_max) / cpus),
        })
    }
}

/// The rate at which these CPUs together transfer in the best pass, in bytes/s. Passes are begun until the
/// time `length` has elapsed.
fn best_rate(cpus: &[u32], elements: usize, length: Duration, done: &dyn Fn()) -> io::Result<u64> {
    // `ready` includes the calling thread, which starts its clock when all arrays exist.
    let (ready, pass_barrier) = (Barrier::new(cpus.len() + 1), Barrier::new(cpus.len()));
    let (failed, continues, stop) = (AtomicBool::new(false), AtomicBool::new(true), AtomicBool::new(false));
    // The leader alone decides whether another pass follows, so that all threads make the same number of
    // passes.
    let run = |leads: bool, cpu: u32| -> io::Result<Vec<(Instant, Instant)>> {
        let arrays = affinity::set(0, &CpuSet::from_iter([cpu])).and_then(|()| Arrays::new(elements));
        if arrays.is_err() {
            failed.store(true, Ordering::SeqCst);
        }
        ready.wait();
        let mut arrays = arrays?;
        let mut passes = Vec::new();
        while !failed.load(Ordering::SeqCst) {
            if leads {
                continues.store(!stop.load(Ordering::SeqCst) || passes.is_empty(), Ordering::SeqCst);
            }
            pass_barrier.wait();
            if !continues.load(Ordering::SeqCst) {
                break;
            }
            let begun = Instant::now();
            arrays.triad();
            passes.push((begun, Instant::now()));
            // The leader must not change its decision before all threads have read it.
            pass_barrier.wait();
        }
        Ok(passes)
    };
    let passes = thread::scope(|scope| {
        let run = &run;
        let spawned: Vec<_> =
            cpus.iter().enumerate().map(|(n, cpu)| scope.spawn(move || run(n == 0, *cpu))).collect();
        ready.wait();
        for _ in 0..STEPS {
            if !failed.load(Ordering::SeqCst) {
                thread::sleep(length / STEPS);
            }
            done();
        }
        stop.store(true, Ordering::SeqCst);
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<Vec<_>>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the measurement failed")))
        };
        spawned.into_iter().map(join).collect::<io::Result<Vec<_>>>()
    })?;
    let bytes = ARRAYS * ELEMENT * (elements as u64) * (cpus.len() as u64);
    Ok(bytes_per_s(bytes, shortest_pass(&passes)))
}

/// The duration of the shortest pass, which lasts from its first start to its last end. `passes` has the
/// start and end of each pass for each thread.
fn shortest_pass(passes: &[Vec<(Instant, Instant)>]) -> Duration {
    let count = passes.iter().map(Vec::len).min().unwrap_or(0);
    let duration = |n: usize| {
        let begun = passes.iter().map(|passes| passes[n].0).min();
        let ended = passes.iter().map(|passes| passes[n].1).max();
        begun.zip(ended).map_or(Duration::MAX, |(begun, ended)| ended.duration_since(begun))
    };
    (0..count).map(duration).min().unwrap_or(Duration::MAX)
}

fn bytes_per_s(bytes: u64, took: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The arrays of one thread.
struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Arrays {
    /// Arrays in the node of the calling thread, which is the first to touch their pages.
    fn new(elements: usize) -> io::Result<Arrays> {
        let filled = |value: f64| -> io::Result<Vec<f64>> {
            let mut array = Vec::new();
            array.try_reserve_exact(elements).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            array.resize(elements, value);
            Ok(array)
        };
        Ok(Arrays { a: filled(0.5)?, b: filled(1.0)?, c: filled(2.0)? })
    }

    #[inline(never)]
    #[allow(clippy::suboptimal_flops, reason = "a fused operation is a call where the processor has none")]
    fn triad(&mut self) {
        let scale = std::hint::black_box(3.0);
        for ((a, b), c) in self.a.iter_mut().zip(&self.b).zip(&self.c) {
            *a = *b + scale * *c;
        }
        std::hint::black_box(&mut self.a);
    }
}

/// The busy time of CPUs, and this process's part of it.
struct Busy {
    at: Instant,
    cpus: usize,
    all_ns: u64,
    own_ns: u64,
}

impl Busy {
    fn now(cpus: usize) -> Busy {
        let text = Tree::new(Path::new("/")).text("/proc/stat").unwrap_or_default();
        let own_ns = clock::process_cpu_ns(std::process::id()).unwrap_or(0);
        Busy { at: Instant::now(), cpus, all_ns: busy_ns(&text), own_ns }
    }

    /// The percentage of these CPUs' time that other processes used since `before`.
    fn others_percent_since(&self, before: &Busy) -> u64 {
        let ns = |now: u64, before: u64| u128::from(now.saturating_sub(before));
        let others_ns = ns(self.all_ns, before.all_ns).saturating_sub(ns(self.own_ns, before.own_ns));
        let capacity_ns = self.at.duration_since(before.at).as_nanos().max(1) * (self.cpus as u128);
        u64::try_from(others_ns * 100 / capacity_ns).unwrap_or(100).min(100)
    }
}

/// The busy time of all CPUs in /proc/stat, including time stolen by the host, in nanoseconds:
/// `proc_stat(5)`.
fn busy_ns(stat: &str) -> u64 {
    /// `USER_HZ` is 100 on every architecture that Linux still supports.
    const TICK_NS: u64 = 10_000_000;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
    let busy = ticks.take(8).enumerate().filter(|(field, _)| !matches!(field, 3 | 4)).map(|(_, ticks)| ticks);
    busy.sum::<u64>().saturating_mul(TICK_NS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn arrays_are_larger_than_caches_and_leave_memory_free() {
        let file = |cpu: u32, name: &str| format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/{name}");
        let dir = fake::tree(&[]);
        for (cpu, shared) in [(0, "0-1\n"), (1, "0-1\n"), (2, "2-3\n"), (3, "2-3\n")] {
            fake::add(
                &dir,
                &[
                    (&file(cpu, "level"), "3\n"),
                    (&file(cpu, "size"), "16384K\n"),
                    (&file(cpu, "shared_cpu_list"), shared),
                ],
            );
        }
        let (tree, machine) = (Tree::new(dir.path()), Machine::synthetic("nodes:2 cpus:2").unwrap());
        let sizes = |free_mib: u64| {
            Sizes::for_machine(&tree, &machine, free_mib << 20).map_err(|error| error.to_string())
        };
        // For one: four times 16 MiB. For each of four threads: four times two caches of 16 MiB, divided by
        // four.
        let mib = |mib: usize| mib << 17;
        assert_eq!(sizes(8192), Ok(Sizes { one_cpu: mib(64), per_cpu: mib(32) }));
        // A quarter of 600 MiB is 150 MiB: 50 MiB for each array.
        assert_eq!(sizes(600), Ok(Sizes { one_cpu: mib(50), per_cpu: mib(50) / 4 }));
        let refused = sizes(255).unwrap_err();
        assert!(
            refused.contains("255 MiB are free") && refused.contains("the caches of 32 MiB"),
            "{refused}"
        );
        assert!(refused.contains("free 1 MiB"), "{refused}");
    }

    #[test]
    fn a_pass_lasts_from_the_first_start_to_the_last_end() {
        let at = Instant::now();
        let ms =
            |begun: u64, ended: u64| (at + Duration::from_millis(begun), at + Duration::from_millis(ended));
        let passes = [vec![ms(0, 5), ms(10, 14)], vec![ms(1, 9), ms(12, 17), ms(20, 21)]];
        assert_eq!(shortest_pass(&passes), Duration::from_millis(7));
        assert_eq!(bytes_per_s(7_000, Duration::from_millis(7)), 1_000_000);
        assert_eq!(bytes_per_s(7_000, shortest_pass(&[])), 0);
    }

    #[test]
    fn all_threads_do_the_same_passes_and_end() {
        let cpus: Vec<u32> = affinity::get(0).unwrap().iter().collect();
        let steps = std::cell::Cell::new(0);
        let rate = best_rate(&cpus, 1_000, Duration::from_millis(5), &|| steps.set(steps.get() + 1)).unwrap();
        assert!(rate > 0 && steps.get() == STEPS, "{rate} {}", steps.get());
        let refused = best_rate(&[cpus[0], 65_000], 1_000, Duration::from_secs(100), &|| ()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "there is no such CPU");
        let mut arrays = Arrays::new(3).unwrap();
        arrays.triad();
        assert_eq!(arrays.a, [7.0; 3]);
    }

    #[test]
    fn others_time_is_busy_time_without_our_own() {
        let stat = "cpu  100 50 200 9000 800 10 20 30 70 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ns(stat), 410 * 10_000_000);
        let at = Instant::now();
        let before = Busy { at, cpus: 2, all_ns: 1_000, own_ns: 500 };
        let after = Busy { at: at + Duration::from_micros(1), cpus: 2, all_ns: 2_800, own_ns: 1_700 };
        assert_eq!(after.others_percent_since(&before), 30, "600 of 2,000 ns");
    }
}
