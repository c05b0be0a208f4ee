//! Pages out a unit's memory, process by process.
//!
//! Problem: without control groups nothing limits a unit's memory. But a daemon with the privilege can have the kernel page out
//! what a process has mapped (`process_madvise(MADV_PAGEOUT)`). The pages return when they are touched.
//!
//! Algorithm: each unit's excess is a target, set anew at each scan. One thread serves the targets in turn. It ranks the
//! mappings of the unit's processes ([`mappings`](crate::observe::memory::mappings)), and goes through them in pieces of
//! [`PIECE_BYTES`]. In each piece, it selects pages that are resident, mapped by no other process, and that swap or a file can
//! take. It ends when there is no target left.
//!
//! Properties:
//! - Never more than the target is requested.
//! - The pages taken are counted by examining the same pages again.
//! - A target that was measured before the last pieces were taken is reduced by them.
//! - A mapping is skipped after [`FRUITLESS_MAX`] fruitless pieces in a row.
//! - Fruitless walks through mappings take at most 1/[`REST_TIMES`] of a CPU.
//! - Nothing must be undone: pages return when they are touched.
//!
//! Limits: dirty file pages stay until they are written. The kernel takes file pages only from a process that may write to the
//! file or owns it.
//!
//! Source: `process_madvise(2)`, madvise(2), admin-guide/mm/pagemap.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_contract::{Contract, UnitId};

use crate::LiveError;
use crate::host::Pinned;
use crate::host::page_out::page_out;
use crate::host::{self, File};
use crate::observe::capability::GIVE_CAPABILITIES;
use crate::observe::memory::mappings::{Mapping, Page, parse, runs};
use crate::observe::memory::portions::Holder;
use crate::observe::memory::source::page_bytes;
use crate::observe::process::{ProcFs, ProcessKey, is_alive};

/// The largest amount requested at a time.
const PIECE_BYTES: u64 = 4 << 20;
/// The number of pages examined at a time: their pagemap entries fill 64 KiB.
const WINDOW_PAGES: usize = 8_192;
/// Ranges that one call may name (`UIO_MAXIOV`).
const RANGES_MAX: usize = 1_024;
/// After this many pieces in a row with less than an eighth taken, the rest of a mapping is skipped.
const FRUITLESS_MAX: u32 = 2;
/// After a pass that took less than half of the target, a unit is left alone for this multiple of the pass's duration.
const REST_TIMES: u32 = 20;
const REST_MIN: Duration = Duration::from_millis(500);

/// The total taken from a unit so far, and the time spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// What to take from one unit.
#[derive(Debug, Clone, Default)]
struct Target {
    bytes: u64,
    processes: Vec<ProcessKey>,
    taken: Taken,
    /// Whether the last pass could not take most of it.
    stuck: bool,
    rest_until: Option<Instant>,
}

/// A problem, with the process and the kind that it is reported once for; without a process, once in total.
pub(super) type Problem = (Option<ProcessKey>, &'static str, LiveError);

#[derive(Debug, Default)]
struct Wanted {
    targets: BTreeMap<UnitId, Target>,
    working: bool,
    swap: bool,
    /// The kernel refuses in general: nothing is retried.
    refused: bool,
    problems: Vec<Problem>,
}

/// The handle of the thread, which runs only while there is a target.
#[derive(Debug, Default)]
pub(super) struct Pageout(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk(Mutex<Wanted>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pageout {
    /// Replaces a unit's target. `measured` is what [`Pageout::taken`] was when the excess was measured; `swap`: whether
    /// swap has room for anonymous pages.
    pub(super) fn want(&self, unit: UnitId, bytes: u64, measured: Taken, holders: &[Holder], swap: bool) {
        let mut wanted = self.0.lock();
        wanted.swap = swap;
        let refused = wanted.refused;
        let target = wanted.targets.entry(unit).or_default();
        target.bytes = bytes.saturating_sub(target.taken.bytes.saturating_sub(measured.bytes));
        if bytes == 0 {
            (target.stuck, target.rest_until) = (false, None);
        }
        target.processes = holders.iter().map(|holder| holder.process).collect();
        if target.is_due() && !refused && !std::mem::replace(&mut wanted.working, true) {
            drop(wanted);
            self.begin();
        }
    }

    fn begin(&self) {
        let desk = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("memory".to_owned());
        if let Err(source) = thread.spawn(move || work(&desk)) {
            let mut wanted = self.0.lock();
            wanted.working = false;
            let what = format!("no thread can be started to page memory out: {source}");
            let remedy = "raise the limit on threads (ulimit -u)".to_owned();
            wanted.problems.push((None, "thread", LiveError::Unavailable { what, remedy }));
        }
    }

    /// The total taken from a unit so far.
    pub(super) fn taken(&self, unit: UnitId) -> Taken {
        self.0.lock().targets.get(&unit).map(|target| target.taken).unwrap_or_default()
    }

    /// Whether the last pass could not take most of the unit's target.
    pub(super) fn is_stuck(&self, unit: UnitId) -> bool {
        self.0.lock().targets.get(&unit).is_some_and(|target| target.stuck)
    }

    /// Whether the kernel refuses in general.
    pub(super) fn is_refused(&self) -> bool {
        self.0.lock().refused
    }

    /// Follows another contract: earlier targets are void.
    pub(super) fn follow(&self, contract: &Contract) {
        let mut wanted = self.0.lock();
        wanted.targets.retain(|unit, _| contract.has(*unit));
        wanted.targets.values_mut().for_each(|target| target.bytes = 0);
    }

    /// The problems since the last call.
    pub(super) fn take_problems(&self) -> Vec<Problem> {
        std::mem::take(&mut self.0.lock().problems)
    }
}

impl Drop for Pageout {
    fn drop(&mut self) {
        self.0.lock().targets.clear();
    }
}

impl Target {
    fn is_due(&self) -> bool {
        self.bytes >= page_bytes() && self.rest_until.is_none_or(|until| Instant::now() >= until)
    }
}

/// The thread: one pass for each unit with a target, until there is none.
fn work(desk: &Desk) {
    let mut done: BTreeSet<UnitId> = BTreeSet::new();
    loop {
        let next = {
            let mut wanted = desk.lock();
            let due = |(unit, target): &(&UnitId, &Target)| target.is_due() && !done.contains(*unit);
            let next =
                wanted.targets.iter().find(due).map(|(unit, target)| (*unit, target.processes.clone()));
            // Targets that become due again meanwhile wait for the next scan.
            wanted.working = next.is_some() && !wanted.refused;
            next.filter(|_| wanted.working)
        };
        let Some((unit, processes)) = next else { return };
        done.insert(unit);
        pass(desk, unit, &processes);
    }
}

/// Takes from one unit until the target is met, or nothing more can be taken.
fn pass(desk: &Desk, unit: UnitId, processes: &[ProcessKey]) {
    let begun = Instant::now();
    let progress = |wanted: &Wanted| {
        let target = wanted.targets.get(&unit);
        target.map_or((0, 0), |target| (target.bytes, target.taken.bytes))
    };
    let (asked, before) = progress(&desk.lock());
    let work = Pass { desk, unit, swap: desk.lock().swap };
    if let Ok(mut procfs) = ProcFs::open(Path::new("/proc")) {
        work.through(&mut procfs, processes);
    }
    let mut wanted = desk.lock();
    if let Some(target) = wanted.targets.get_mut(&unit) {
        target.taken.time = target.taken.time.saturating_add(begun.elapsed());
        // A unit that gave much, and allocated as much again meanwhile, can give again.
        let left = target.bytes >= page_bytes() && target.taken.bytes - before < asked / 2;
        target.stuck = left;
        target.rest_until = left.then(|| Instant::now() + REST_MIN.max(begun.elapsed() * REST_TIMES));
    }
}

struct Pass<'d> {
    desk: &'d Desk,
    unit: UnitId,
    swap: bool,
}

/// A process whose memory is examined.
struct Subject {
    key: ProcessKey,
    pinned: Pinned,
    pages: File,
}

/// The outcome of a piece.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Took(u64),
    /// The mapping, or the process, has changed or refuses: skip it.
    Leave,
}

impl Pass<'_> {
    fn through(&self, procfs: &mut ProcFs, processes: &[ProcessKey]) {
        let mut subjects = Vec::new();
        let mut ranked: Vec<(usize, Mapping)> = Vec::new();
        // Never this program's own memory.
        for key in processes.iter().filter(|key| key.pid != std::process::id()) {
            match open(procfs, *key) {
                Ok(Some((subject, mappings))) => {
                    ranked.extend(mappings.into_iter().map(|mapping| (subjects.len(), mapping)));
                    subjects.push(subject);
                }
                Ok(None) => {}
                Err(source) => self.report(*key, "examine its memory", source),
            }
        }
        ranked.retain(|(_, mapping)| mapping.takeable(self.swap) > 0);
        ranked.sort_by_cached_key(|(_, mapping)| mapping.rank(self.swap));
        for (at, mapping) in &ranked {
            if self.left() < page_bytes() {
                return;
            }
            self.mapping(&subjects[*at], mapping);
        }
    }

    /// The remaining target, in bytes.
    fn left(&self) -> u64 {
        let wanted = self.desk.lock();
        if wanted.refused { 0 } else { wanted.targets.get(&self.unit).map_or(0, |target| target.bytes) }
    }

    /// Goes through one mapping, window by window.
    fn mapping(&self, subject: &Subject, mapping: &Mapping) {
        let (page, mut at, mut fruitless) = (page_bytes(), mapping.start, 0);
        while at < mapping.end {
            let pages = usize::try_from((mapping.end - at) / page).unwrap_or(WINDOW_PAGES).min(WINDOW_PAGES);
            let Some(window) = look(&subject.pages, at, pages) else { return };
            let most = self.left().min(PIECE_BYTES) / page;
            if most == 0 {
                return;
            }
            let mut runs = runs(&window, self.swap, usize::try_from(most).unwrap_or(0));
            runs.truncate(RANGES_MAX);
            let Some((last, count)) = runs.last().copied() else {
                at += pages as u64 * page;
                continue;
            };
            let asked = runs.iter().map(|(_, count)| *count as u64 * page).sum::<u64>();
            match self.piece(subject, at, &runs) {
                Outcome::Took(bytes) if bytes >= asked / 8 => fruitless = 0,
                Outcome::Took(_) => fruitless += 1,
                Outcome::Leave => return,
            }
            if fruitless >= FRUITLESS_MAX {
                return;
            }
            at += (last + count) as u64 * page;
        }
    }

    /// Requests some runs of pages, and counts how many of them are gone.
    fn piece(&self, subject: &Subject, base: u64, runs: &[(usize, usize)]) -> Outcome {
        let page = page_bytes();
        let ranges: Vec<(u64, u64)> =
            runs.iter().map(|(first, count)| (base + *first as u64 * page, *count as u64 * page)).collect();
        if let Err(source) = page_out(&subject.pinned, &ranges) {
            return self.refusal(subject.key, source);
        }
        let Some((last, count)) = runs.last() else { return Outcome::Leave };
        let Some(after) = look(&subject.pages, base, last + count) else { return Outcome::Leave };
        let gone = |(first, count): &(usize, usize)| {
            let run = after.get(*first..first + count).unwrap_or_default();
            run.iter().filter(|page| !page.is_present()).count() as u64
        };
        let bytes = runs.iter().map(gone).sum::<u64>() * page;
        if let Some(target) = self.desk.lock().targets.get_mut(&self.unit) {
            target.taken.bytes = target.taken.bytes.saturating_add(bytes);
            target.bytes = target.bytes.saturating_sub(bytes);
        }
        Outcome::Took(bytes)
    }

    fn refusal(&self, key: ProcessKey, source: io::Error) -> Outcome {
        match source.raw_os_error() {
            // The process or the mapping has ended.
            Some(libc::ESRCH | libc::ENOMEM | libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EPERM | libc::ENOSYS) => {
                let mut wanted = self.desk.lock();
                wanted.refused = true;
                wanted.problems.push((None, "page out", refused(&source)));
            }
            _ => self.report(key, "page its memory out", source),
        }
        Outcome::Leave
    }

    fn report(&self, key: ProcessKey, what: &str, source: io::Error) {
        let remedy = match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                "; its memory is left alone: it is another user's, or protects itself; run commonhold as root"
            }
            Some(libc::EINVAL) => {
                "; its memory is left alone: the kernel is older than 5.10, or that memory is locked"
            }
            _ => "; its memory is left alone",
        };
        let error = LiveError::Process {
            pid: key.pid,
            name: host::read_to_string(format!("/proc/{}/comm", key.pid).as_ref())
                .map(|name| name.trim_end().to_owned())
                .unwrap_or_default(),
            what: what.to_owned(),
            source,
            remedy: remedy.to_owned(),
        };
        self.desk.lock().problems.push((Some(key), "memory", error));
    }
}

/// The error when the kernel does not page out at all.
fn refused(source: &io::Error) -> LiveError {
    let remedy = if source.raw_os_error() == Some(libc::ENOSYS) {
        "boot Linux 5.10 or later, built with CONFIG_ADVISE_SYSCALLS=y".to_owned()
    } else {
        format!("{GIVE_CAPABILITIES}; in a container, outside of it")
    };
    LiveError::Unavailable {
        what: format!("the kernel pages nothing out for us: {source}; memory is not held from now on"),
        remedy,
    }
}

/// Pins a process, and reads its mappings; `None` if it has ended.
fn open(procfs: &mut ProcFs, key: ProcessKey) -> io::Result<Option<(Subject, Vec<Mapping>)>> {
    let opened = Pinned::of(key.pid).and_then(|pinned| {
        if !is_alive(procfs, key).map_err(io::Error::other)? {
            return Ok(None);
        }
        let pages = File::open(&procfs.path().join(format!("{pid}/pagemap", pid = key.pid)))?;
        let smaps = host::read(&procfs.path().join(format!("{pid}/smaps", pid = key.pid)))?;
        Ok(Some((Subject { key, pinned, pages }, parse(&String::from_utf8_lossy(&smaps)))))
    });
    match opened {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(None),
        opened => opened,
    }
}

/// The pages from an address on; `None` if they cannot be read.
fn look(pages: &File, start: u64, count: usize) -> Option<Vec<Page>> {
    let mut bytes = vec![0; count * 8];
    let read = pages.read_at(&mut bytes, start / page_bytes() * 8).ok()?;
    let numbers = bytes[..read].chunks_exact(8);
    let window: Vec<Page> =
        numbers.filter_map(|number| Some(Page(u64::from_ne_bytes(number.try_into().ok()?)))).collect();
    (window.len() == count).then_some(window)
}
