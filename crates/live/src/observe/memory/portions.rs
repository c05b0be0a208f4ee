//! Which part of a process's memory is its own, where several map the same pages.
//!
//! Problem: /proc/PID/status is cheap, but it counts a page that several processes map in each of them: a server's
//! shared memory once for each of its workers. `smaps_rollup` counts each page once in all, and walks every page of
//! the process.
//!
//! Algorithm: a thread reads the latter, of the [`PROCESSES_MAX`] largest processes of each unit that has more than
//! one, and keeps the ratio of both. It rests [`REST_TIMES`] times as long as it took, and [`EVERY`] at least.
//!
//! Cost: a process that has not run since it was asked is asked again after [`AGAIN`], since others come to share its
//! pages and leave them. It is asked sooner where the processes that are asked have changed, but not before [`SETTLED`].
//! So at rest the thread asks one process a minute for each that there is.
//!
//! Limits: a process counts in full until its ratio is known, for some seconds. It always counts in full if many are
//! larger, or if it is smaller than [`BYTES_MIN`]. Ratios are some seconds old.
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
    /// What /proc shows of it.
    pub(crate) shown: Resident,
    /// What of that counts as its own.
    pub(crate) own: Resident,
    /// Its CPU clock then, if it can be read: it has not run since while that is the same.
    pub(crate) clock: Option<u64>,
}

/// How often is looked.
const EVERY: Duration = Duration::from_secs(2);
/// When who sleeps is asked again, and how soon where the processes have changed.
const AGAIN: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(10);
/// It takes at most 1/50 of a CPU.
const REST_TIMES: u32 = 50;
/// Of each unit.
const PROCESSES_MAX: usize = 32;
/// A process that holds less is not worth it.
const BYTES_MIN: u64 = 1 << 20;
/// What a ratio is a part of.
const WHOLE: u64 = 1 << 16;

/// Parts of what a process is shown to hold, of [`WHOLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Portion {
    anonymous: u64,
    file: u64,
}

impl Portion {
    fn of(part: Resident, shown: Resident) -> Portion {
        let ratio = |part: u64, of: u64| {
            let ratio = u128::from(part) * u128::from(WHOLE) / u128::from(of.max(1));
            u64::try_from(ratio).unwrap_or(WHOLE).min(WHOLE)
        };
        Portion { anonymous: ratio(part.anonymous, shown.anonymous), file: ratio(part.file, shown.file) }
    }

    fn apply(self, shown: Resident) -> Resident {
        let part = |bytes: u64, ratio: u64| bytes / WHOLE * ratio + bytes % WHOLE * ratio / WHOLE;
        Resident { anonymous: part(shown.anonymous, self.anonymous), file: part(shown.file, self.file) }
    }
}

/// The thread that asks, and what it knows. Begins with the first unit of several processes.
#[derive(Debug, Default)]
pub(crate) struct Portions {
    desk: Arc<Desk>,
    begun: bool,
}

#[derive(Debug, Default)]
struct Desk {
    asked: Mutex<Asked>,
    known: Mutex<BTreeMap<ProcessKey, Answer>>,
    ended: AtomicBool,
}

/// Of whom to ask.
#[derive(Debug, Clone, Default)]
struct Asked {
    /// With their CPU clocks.
    processes: BTreeMap<ProcessKey, Option<u64>>,
    /// When others were asked of last.
    changed: Option<Instant>,
}

impl Asked {
    fn follow(&mut self, processes: BTreeMap<ProcessKey, Option<u64>>, now: Instant) {
        if !processes.keys().eq(self.processes.keys()) {
            self.changed = Some(now);
        }
        self.processes = processes;
    }
}

/// What was answered for one process, when, and its CPU clock before. Without a portion it counts in full.
#[derive(Debug, Clone, Copy)]
struct Answer {
    portion: Option<Portion>,
    clock: Option<u64>,
    at: Instant,
}

impl Answer {
    /// Whether the answer stands for a process whose clock is now `clock`, where others came or left at `changed`.
    fn holds(&self, clock: Option<u64>, changed: Option<Instant>, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.at);
        let after = changed.is_none_or(|changed| self.at > changed);
        clock.is_some() && clock == self.clock && age < AGAIN && (after || age < SETTLED)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Portions {
    /// The part of each process's memory that is its own, as far as it is known, in place of what is shown.
    pub(crate) fn apply(&self, shown: &mut [Vec<Holder>]) {
        let known = lock(&self.desk.known);
        for holder in shown.iter_mut().flatten() {
            if let Some(portion) = known.get(&holder.process).and_then(|answer| answer.portion) {
                holder.own = portion.apply(holder.shown);
            }
        }
    }

    /// From now on, these are the processes, by unit.
    pub(crate) fn follow(&mut self, units: &[Vec<Holder>]) {
        let asked: BTreeMap<ProcessKey, Option<u64>> =
            units.iter().flat_map(|unit| worth_asking(unit)).collect();
        let wanted = !asked.is_empty();
        lock(&self.desk.asked).follow(asked, Instant::now());
        if wanted && !self.begun {
            let desk = Arc::clone(&self.desk);
            let thread = thread::Builder::new().name("portions".to_owned());
            // Without a thread, everything counts in full.
            self.begun = thread.spawn(move || live(&desk)).is_ok();
        }
    }
}

impl Drop for Portions {
    fn drop(&mut self) {
        self.desk.ended.store(true, Ordering::Relaxed);
    }
}

/// The processes of a unit of whom to ask: who is alone in it shares with nobody who counts, or with others' units.
fn worth_asking(unit: &[Holder]) -> Vec<(ProcessKey, Option<u64>)> {
    if unit.len() < 2 {
        return Vec::new();
    }
    let mut large: Vec<&Holder> = unit.iter().filter(|holder| holder.shown.bytes() >= BYTES_MIN).collect();
    large.sort_by_key(|holder| std::cmp::Reverse(holder.shown.bytes()));
    large.into_iter().take(PROCESSES_MAX).map(|holder| (holder.process, holder.clock)).collect()
}

fn live(desk: &Desk) {
    let Ok(mut procfs) = ProcFs::open(Path::new("/proc")) else { return };
    while !desk.ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let Asked { processes, changed } = lock(&desk.asked).clone();
        let mut known = lock(&desk.known).clone();
        known.retain(|key, _| processes.contains_key(key));
        for (key, clock) in processes {
            let now = Instant::now();
            if known.get(&key).is_none_or(|answer| !answer.holds(clock, changed, now)) {
                known.insert(key, Answer { portion: ask(&mut procfs, key), clock, at: now });
            }
        }
        *lock(&desk.known) = known;
        thread::sleep(EVERY.max(begun.elapsed() * REST_TIMES));
    }
}

fn ask(procfs: &mut ProcFs, key: ProcessKey) -> Option<Portion> {
    let part = procfs.proportional(key.pid).ok()??;
    let shown = procfs.resident(key.pid).ok()??;
    is_alive(procfs, key).ok()?.then(|| Portion::of(part, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32, mib: u64) -> Holder {
        let shown = Resident { anonymous: mib << 20, file: 0 };
        Holder { process: ProcessKey { pid, start: 1 }, shown, own: shown, clock: Some(0) }
    }

    /// Of 300 MiB in no file a third is its own, of 40 MiB in files all.
    #[test]
    fn a_portion_holds_for_later_sizes() {
        let mib = |anonymous: u64, file: u64| Resident { anonymous: anonymous << 20, file: file << 20 };
        let portion = Portion::of(mib(100, 40), mib(300, 40));
        let later = portion.apply(mib(600, 80));
        assert_eq!(later.file, 80 << 20);
        assert!(later.anonymous.abs_diff(200 << 20) < 1 << 20, "{later:?}");
        assert_eq!(Portion::of(mib(5, 0), mib(3, 0)).apply(mib(3, 1)), mib(3, 0), "never more than is shown");
    }

    #[test]
    fn the_largest_of_several_are_asked() {
        let pids = |unit: &[Holder]| worth_asking(unit).iter().map(|(key, _)| key.pid).collect::<Vec<_>>();
        assert!(pids(&[holder(1, 900)]).is_empty(), "who is alone shares with nobody");
        assert_eq!(pids(&[holder(1, 5), holder(2, 9), holder(3, 0)]), [2, 1]);
        let many: Vec<Holder> = (1..=50).map(|n| holder(n, u64::from(n))).collect();
        assert_eq!(pids(&many).len(), PROCESSES_MAX);
    }

    /// An answer stands while its process sleeps and nobody came or left: for a minute then, for ten seconds otherwise.
    #[test]
    fn who_sleeps_is_asked_seldom() {
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let answer = Answer { portion: None, clock: Some(5), at: now };
        assert!(answer.holds(Some(5), None, later(59)) && !answer.holds(Some(5), None, later(60)));
        assert!(!answer.holds(Some(6), None, later(1)), "it ran");
        assert!(!Answer { clock: None, ..answer }.holds(None, None, later(1)), "nobody knows whether it ran");
        let changed = Some(later(1));
        assert!(answer.holds(Some(5), changed, later(9)) && !answer.holds(Some(5), changed, later(10)));
        let mut asked = Asked::default();
        asked.follow(BTreeMap::from([(holder(1, 9).process, Some(5))]), now);
        asked.follow(BTreeMap::from([(holder(1, 9).process, Some(7))]), later(1));
        assert_eq!(asked.changed, Some(now), "the same processes");
        asked.follow(BTreeMap::from([(holder(2, 9).process, Some(7))]), later(2));
        assert_eq!(asked.changed, Some(later(2)));
    }
}
