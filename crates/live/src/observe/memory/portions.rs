//! A process's portion of memory that several processes map.
//!
//! Problem: /proc/PID/status is cheap, but it counts a page in each process that maps it: a server's shared
//! memory once for each worker. `smaps_rollup` divides each page among the processes that map it, but walks
//! all pages of the process.
//!
//! Algorithm: a process's *portion* is the ratio of its memory in `smaps_rollup` to its memory in `status`. A
//! thread measures the portions of the [`PROCESSES_MAX`] largest processes of each unit with more than one
//! process. It then pauses for [`REST_TIMES`] times as long as that took, and at least for [`PAUSE_MIN`].
//! Between measurements, memory in `status` times the portion counts as the process's own.
//!
//! Cost: a process that has not run since its measurement is measured again only after [`VALID_USUALLY`],
//! since other processes may have mapped or unmapped its pages. If the set of measured processes has changed
//! since, it is measured again after [`VALID_AFTER_CHANGE`]. So on an idle machine, each process is measured
//! once a minute.
//!
//! Limits: a process's memory counts in full until its portion is known, which takes some seconds. It always
//! counts in full if [`PROCESSES_MAX`] processes of the unit are larger, or if it is smaller than
//! [`BYTES_MIN`]. Portions are some seconds old.
//!
//! Source: proc.rst, `smaps_rollup`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::observe::process::{ProcFs, ProcessKey, Resident, is_alive};

/// A process that holds memory for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) process: ProcessKey,
    /// Its resident memory, as `status` shows it.
    pub(crate) shown: Resident,
    /// The part of `shown` that counts as its own.
    pub(crate) own: Resident,
    /// Its CPU clock, if it can be read: while the clock stands still, the process has not run.
    pub(crate) clock: Option<u64>,
}

/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// For how long the measurement of a sleeping process is valid. The first time is the usual one; the second
/// counts if the set of processes has changed since the measurement.
const VALID_USUALLY: Duration = Duration::from_secs(60);
const VALID_AFTER_CHANGE: Duration = Duration::from_secs(10);
/// The thread takes at most 1/50 of a CPU.
const REST_TIMES: u32 = 50;
/// The largest number of processes that are measured in a unit.
const PROCESSES_MAX: usize = 32;
/// Smaller processes are not measured.
const BYTES_MIN: u64 = 1 << 20;
/// The denominator of portions.
const DENOMINATOR: u64 = 1 << 16;

/// A process's portions of its resident memory, in units of 1/[`DENOMINATOR`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Portion {
    anonymous: u64,
    file: u64,
}

impl Portion {
    /// The ratio of a process's own part (PSS) to its resident memory.
    fn of(own: Resident, shown: Resident) -> Portion {
        let ratio = |own: u64, shown: u64| {
            let ratio = u128::from(own) * u128::from(DENOMINATOR) / u128::from(shown.max(1));
            u64::try_from(ratio).unwrap_or(DENOMINATOR).min(DENOMINATOR)
        };
        Portion { anonymous: ratio(own.anonymous, shown.anonymous), file: ratio(own.file, shown.file) }
    }

    /// The own part of this resident memory.
    fn apply(self, shown: Resident) -> Resident {
        let scale =
            |bytes: u64, ratio: u64| bytes / DENOMINATOR * ratio + bytes % DENOMINATOR * ratio / DENOMINATOR;
        Resident { anonymous: scale(shown.anonymous, self.anonymous), file: scale(shown.file, self.file) }
    }
}

/// The measuring thread and its results. The thread starts with the first unit that has several processes.
#[derive(Debug, Default)]
pub(crate) struct Portions {
    shared: Arc<Shared>,
    has_begun: bool,
}

/// The state that the thread and the daemon's loop share.
#[derive(Debug, Default)]
struct Shared {
    targets: Mutex<Targets>,
    known: Mutex<BTreeMap<ProcessKey, Measurement>>,
    has_ended: AtomicBool,
}

/// The processes to measure.
#[derive(Debug, Clone, Default)]
struct Targets {
    /// The processes with their CPU clocks.
    processes: BTreeMap<ProcessKey, Option<u64>>,
    /// When the set of processes last changed.
    changed: Option<Instant>,
}

impl Targets {
    /// Replaces the processes, and notes whether the set has changed.
    fn follow(&mut self, processes: BTreeMap<ProcessKey, Option<u64>>, now: Instant) {
        if !processes.keys().eq(self.processes.keys()) {
            self.changed = Some(now);
        }
        self.processes = processes;
    }
}

/// The result for one process, with its CPU clock before the measurement, and the time of the measurement. If
/// the measurement yielded no portion, the process's memory counts in full.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    portion: Option<Portion>,
    clock: Option<u64>,
    at: Instant,
}

impl Measurement {
    /// Whether the result is still valid for a process whose CPU clock is now `clock`, if the set of
    /// processes last changed at `changed`.
    fn is_valid(&self, clock: Option<u64>, changed: Option<Instant>, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.at);
        let is_after_change = changed.is_none_or(|changed| self.at > changed);
        clock.is_some()
            && clock == self.clock
            && age < VALID_USUALLY
            && (is_after_change || age < VALID_AFTER_CHANGE)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Portions {
    /// Sets each process's own memory by its portion, if that is known.
    pub(crate) fn apply(&self, shown: &mut [Vec<Holder>]) {
        let known = lock(&self.shared.known);
        for holder in shown.iter_mut().flatten() {
            if let Some(portion) = known.get(&holder.process).and_then(|measured| measured.portion) {
                holder.own = portion.apply(holder.shown);
            }
        }
    }

    /// Replaces the processes to measure, given all processes by unit.
    pub(crate) fn follow(&mut self, units: &[Vec<Holder>]) {
        let targets: BTreeMap<ProcessKey, Option<u64>> =
            units.iter().flat_map(|unit| worth_measuring(unit)).collect();
        let wanted = !targets.is_empty();
        lock(&self.shared.targets).follow(targets, Instant::now());
        if wanted && !self.has_begun {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("portions".to_owned());
            // Without a thread, every process counts in full.
            self.has_begun = thread.spawn(move || run(&shared)).is_ok();
        }
    }
}

impl Drop for Portions {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
    }
}

/// The processes of a unit that are worth measuring. The result is empty if the unit has only one process,
/// which shares no pages within its unit.
fn worth_measuring(unit: &[Holder]) -> Vec<(ProcessKey, Option<u64>)> {
    if unit.len() < 2 {
        return Vec::new();
    }
    let mut large: Vec<&Holder> = unit.iter().filter(|holder| holder.shown.bytes() >= BYTES_MIN).collect();
    large.sort_by_key(|holder| std::cmp::Reverse(holder.shown.bytes()));
    large.into_iter().take(PROCESSES_MAX).map(|holder| (holder.process, holder.clock)).collect()
}

/// The thread's loop: measures the processes whose measurements are no longer valid, and pauses.
fn run(shared: &Shared) {
    let Ok(mut procfs) = ProcFs::open(Path::new("/proc")) else { return };
    while !shared.has_ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let Targets { processes, changed } = lock(&shared.targets).clone();
        let mut known = lock(&shared.known).clone();
        known.retain(|key, _| processes.contains_key(key));
        for (key, clock) in processes {
            let now = Instant::now();
            if known.get(&key).is_none_or(|measured| !measured.is_valid(clock, changed, now)) {
                known.insert(key, Measurement { portion: measure(&mut procfs, key), clock, at: now });
            }
        }
        *lock(&shared.known) = known;
        thread::sleep(PAUSE_MIN.max(begun.elapsed() * REST_TIMES));
    }
}

/// The present portion of a process; `None` if it has ended or may not be read.
fn measure(procfs: &mut ProcFs, key: ProcessKey) -> Option<Portion> {
    let own = procfs.proportional(key.pid).ok()??;
    let shown = procfs.resident(key.pid).ok()??;
    is_alive(procfs, key).ok()?.then(|| Portion::of(own, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32, mib: u64) -> Holder {
        let shown = Resident { anonymous: mib << 20, file: 0 };
        Holder { process: ProcessKey { pid, start: 1 }, shown, own: shown, clock: Some(0) }
    }

    /// A third of 300 MiB of anonymous memory is its own, and all of 40 MiB of file pages.
    #[test]
    fn a_portion_applies_to_later_sizes() {
        let mib = |anonymous: u64, file: u64| Resident { anonymous: anonymous << 20, file: file << 20 };
        let portion = Portion::of(mib(100, 40), mib(300, 40));
        let later = portion.apply(mib(600, 80));
        assert_eq!(later.file, 80 << 20);
        assert!(later.anonymous.abs_diff(200 << 20) < 1 << 20, "{later:?}");
        assert_eq!(Portion::of(mib(5, 0), mib(3, 0)).apply(mib(3, 1)), mib(3, 0), "never more than is shown");
    }

    #[test]
    fn the_largest_of_several_processes_are_measured() {
        let pids = |unit: &[Holder]| worth_measuring(unit).iter().map(|(key, _)| key.pid).collect::<Vec<_>>();
        assert!(pids(&[holder(1, 900)]).is_empty(), "a single process shares with no other");
        assert_eq!(pids(&[holder(1, 5), holder(2, 9), holder(3, 0)]), [2, 1]);
        let many: Vec<Holder> = (1..=50).map(|n| holder(n, u64::from(n))).collect();
        assert_eq!(pids(&many).len(), PROCESSES_MAX);
    }

    /// While its process sleeps, a result holds for a minute, or for ten seconds if the set of processes
    /// changed.
    #[test]
    fn a_sleeping_process_is_measured_rarely() {
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let measured = Measurement { portion: None, clock: Some(5), at: now };
        assert!(measured.is_valid(Some(5), None, later(59)) && !measured.is_valid(Some(5), None, later(60)));
        assert!(!measured.is_valid(Some(6), None, later(1)), "it ran");
        assert!(!Measurement { clock: None, ..measured }.is_valid(None, None, later(1)), "it may have run");
        let changed = Some(later(1));
        assert!(
            measured.is_valid(Some(5), changed, later(9)) && !measured.is_valid(Some(5), changed, later(10))
        );
        let mut targets = Targets::default();
        targets.follow(BTreeMap::from([(holder(1, 9).process, Some(5))]), now);
        targets.follow(BTreeMap::from([(holder(1, 9).process, Some(7))]), later(1));
        assert_eq!(targets.changed, Some(now), "the same processes");
        targets.follow(BTreeMap::from([(holder(2, 9).process, Some(7))]), later(2));
        assert_eq!(targets.changed, Some(later(2)));
    }
}
