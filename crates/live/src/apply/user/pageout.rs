//! Pages out a unit's memory, process by process.
//!
//! Problem: without control groups, nothing limits a unit's memory. But a daemon with the privilege can have
//! the kernel page out what a process has mapped (`process_madvise(MADV_PAGEOUT)`). The pages return when
//! they are touched.
//!
//! Algorithm: each unit has a *target*, the number of bytes to page out, which each scan sets anew. One
//! thread serves the units one after another. It ranks the mappings of the unit's processes
//! ([`mappings`](crate::observe::memory::mappings)), and goes through them in *pieces* of at most
//! [`PIECE_BYTES`]: pages that are resident, that no other process maps, and that swap or a file can take.
//! The thread ends when no target is left.
//!
//! Properties:
//! - Never more than the target is requested.
//! - The pages *taken* are counted by examining the same pages again after the request.
//! - A scan measures memory while pages are being taken. Pages taken since the measurement are subtracted
//!   from the new target.
//! - The rest of a mapping is skipped after [`FRUITLESS_MAX`] fruitless pieces in a row.
//! - Fruitless passes take at most 1/[`REST_TIMES`] of a CPU.
//! - Nothing must be undone: pages return when they are touched.
//!
//! Limits: dirty file pages stay until they are written. The kernel takes file pages only from a process that
//! may write to the file or owns it.
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

/// The largest piece.
const PIECE_BYTES: u64 = 4 << 20;
/// The number of pages examined at a time: their pagemap entries fill 64 KiB.
const WINDOW_PAGES: usize = 8_192;
/// The number of ranges that one call may name (`UIO_MAXIOV`).
const RANGES_MAX: usize = 1_024;
/// After this many pieces in a row of which less than an eighth was taken, the rest of a mapping is skipped.
const FRUITLESS_MAX: u32 = 2;
/// After a pass that took less than half of the target, a unit is left alone for this multiple of the pass's
/// duration.
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
    /// The bytes still to take.
    bytes: u64,
    processes: Vec<ProcessKey>,
    taken: Taken,
    /// Whether the last pass took less than half of the target.
    stuck: bool,
    /// If set, no pass before this time.
    rest_until: Option<Instant>,
}

/// A problem, with the process and the kind of problem. The caller reports each kind once per process, and a
/// problem without a process once in total.
pub(super) type Problem = (Option<ProcessKey>, &'static str, LiveError);

/// The state that the daemon and the thread share.
#[derive(Debug, Default)]
struct State {
    targets: BTreeMap<UnitId, Target>,
    /// Whether the thread runs.
    working: bool,
    /// Whether swap has room for anonymous pages.
    swap: bool,
    /// Whether the kernel has refused to page out at all. If so, no further request is made.
    refused: bool,
    problems: Vec<Problem>,
}

/// The daemon's handle of the thread, which runs only while there is a target.
#[derive(Debug, Default)]
pub(super) struct Pageout(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pageout {
    /// Replaces a unit's target, and starts the thread if necessary. `bytes` was measured when
    /// [`Pageout::taken`] had the value `taken_before`; pages taken since then are subtracted from it.
    /// `swap`: whether swap has room for anonymous pages.
    pub(super) fn set_target(
        &self,
        unit: UnitId,
        bytes: u64,
        taken_before: Taken,
        holders: &[Holder],
        swap: bool,
    ) {
        let mut state = self.0.lock();
        state.swap = swap;
        let refused = state.refused;
        let target = state.targets.entry(unit).or_default();
        target.bytes = bytes.saturating_sub(target.taken.bytes.saturating_sub(taken_before.bytes));
        if bytes == 0 {
            (target.stuck, target.rest_until) = (false, None);
        }
        target.processes = holders.iter().map(|holder| holder.process).collect();
        if target.is_due() && !refused && !std::mem::replace(&mut state.working, true) {
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(&self) {
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("memory".to_owned());
        if let Err(source) = thread.spawn(move || serve_targets(&shared)) {
            let mut state = self.0.lock();
            state.working = false;
            let what = format!("no thread can be started to page memory out: {source}");
            let remedy = "raise the limit on threads (ulimit -u)".to_owned();
            state.problems.push((None, "thread", LiveError::Unavailable { what, remedy }));
        }
    }

    /// The total taken from a unit so far.
    pub(super) fn taken(&self, unit: UnitId) -> Taken {
        self.0.lock().targets.get(&unit).map(|target| target.taken).unwrap_or_default()
    }

    /// Whether the last pass took less than half of the unit's target.
    pub(super) fn is_stuck(&self, unit: UnitId) -> bool {
        self.0.lock().targets.get(&unit).is_some_and(|target| target.stuck)
    }

    /// Whether the kernel has refused to page out at all.
    pub(super) fn is_refused(&self) -> bool {
        self.0.lock().refused
    }

    /// Adopts another contract: drops all targets. The next scan sets new ones.
    pub(super) fn follow(&self, contract: &Contract) {
        let mut state = self.0.lock();
        state.targets.retain(|unit, _| contract.has(*unit));
        state.targets.values_mut().for_each(|target| target.bytes = 0);
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
    /// Whether a pass can begin: there is at least a page to take, and no pause after a fruitless pass is in
    /// force.
    fn is_due(&self) -> bool {
        self.bytes >= page_bytes() && self.rest_until.is_none_or(|until| Instant::now() >= until)
    }
}

/// The work of the thread: one pass for each unit with a target.
fn serve_targets(shared: &Shared) {
    let mut served: BTreeSet<UnitId> = BTreeSet::new();
    loop {
        let next = {
            let mut state = shared.lock();
            let is_next = |(unit, target): &(&UnitId, &Target)| target.is_due() && !served.contains(*unit);
            let next =
                state.targets.iter().find(is_next).map(|(unit, target)| (*unit, target.processes.clone()));
            // A served unit whose target has become due again waits for the next scan, which starts another
            // thread.
            state.working = next.is_some() && !state.refused;
            next.filter(|_| state.working)
        };
        let Some((unit, processes)) = next else { return };
        served.insert(unit);
        serve_target(shared, unit, &processes);
    }
}

/// Takes from one unit until its target is met, or nothing more can be taken.
fn serve_target(shared: &Shared, unit: UnitId, processes: &[ProcessKey]) {
    let begun = Instant::now();
    let progress = |state: &State| {
        let target = state.targets.get(&unit);
        target.map_or((0, 0), |target| (target.bytes, target.taken.bytes))
    };
    let (target_bytes, taken_before) = progress(&shared.lock());
    let pass = Pass { shared, unit, swap: shared.lock().swap };
    if let Ok(mut procfs) = ProcFs::open(Path::new("/proc")) {
        pass.take_from(&mut procfs, processes);
    }
    let mut state = shared.lock();
    if let Some(target) = state.targets.get_mut(&unit) {
        target.taken.time = target.taken.time.saturating_add(begun.elapsed());
        // A unit that gave at least half is not stuck even if it still exceeds its bound: it may have
        // allocated memory meanwhile.
        let is_stuck = target.bytes >= page_bytes() && target.taken.bytes - taken_before < target_bytes / 2;
        target.stuck = is_stuck;
        target.rest_until = is_stuck.then(|| Instant::now() + REST_MIN.max(begun.elapsed() * REST_TIMES));
    }
}

/// A pass through the memory of one unit.
struct Pass<'d> {
    shared: &'d Shared,
    unit: UnitId,
    /// Whether swap has room for anonymous pages.
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
    /// The number of bytes taken.
    Took(u64),
    /// The process or the mapping has changed, or the kernel refuses: the rest of the mapping is skipped.
    Skip,
}

impl Pass<'_> {
    /// Takes from the mappings of these processes, those with the most untouched memory first, until the
    /// target is met.
    fn take_from(&self, procfs: &mut ProcFs, processes: &[ProcessKey]) {
        let mut subjects = Vec::new();
        // Each mapping with the index of its process in `subjects`.
        let mut ranked: Vec<(usize, Mapping)> = Vec::new();
        // The daemon's own memory is never paged out.
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
        for (index, mapping) in &ranked {
            if self.remaining_bytes() < page_bytes() {
                return;
            }
            self.take_from_mapping(&subjects[*index], mapping);
        }
    }

    /// The remaining target, in bytes; 0 once the kernel has refused to page out.
    fn remaining_bytes(&self) -> u64 {
        let state = self.shared.lock();
        if state.refused { 0 } else { state.targets.get(&self.unit).map_or(0, |target| target.bytes) }
    }

    /// Goes through one mapping: examines a window of pages, takes a piece of the window, and goes on after
    /// the piece.
    fn take_from_mapping(&self, subject: &Subject, mapping: &Mapping) {
        let (page_bytes, mut address, mut fruitless) = (page_bytes(), mapping.start, 0);
        while address < mapping.end {
            let remaining_pages = usize::try_from((mapping.end - address) / page_bytes);
            let window_pages = remaining_pages.unwrap_or(WINDOW_PAGES).min(WINDOW_PAGES);
            let Some(window) = read_pages(&subject.pages, address, window_pages) else { return };
            let piece_pages = self.remaining_bytes().min(PIECE_BYTES) / page_bytes;
            if piece_pages == 0 {
                return;
            }
            let mut runs = runs(&window, self.swap, usize::try_from(piece_pages).unwrap_or(0));
            runs.truncate(RANGES_MAX);
            let Some((last, count)) = runs.last().copied() else {
                address += window_pages as u64 * page_bytes;
                continue;
            };
            let requested = runs.iter().map(|(_, count)| *count as u64 * page_bytes).sum::<u64>();
            match self.take_piece(subject, address, &runs) {
                Outcome::Took(bytes) if bytes >= requested / 8 => fruitless = 0,
                Outcome::Took(_) => fruitless += 1,
                Outcome::Skip => return,
            }
            if fruitless >= FRUITLESS_MAX {
                return;
            }
            address += (last + count) as u64 * page_bytes;
        }
    }

    /// Asks the kernel to page out some runs of pages, and counts the pages that were paged out. A run is its
    /// first page, counted from the address `base`, and its number of pages.
    fn take_piece(&self, subject: &Subject, base: u64, runs: &[(usize, usize)]) -> Outcome {
        let page_bytes = page_bytes();
        let ranges: Vec<(u64, u64)> = runs
            .iter()
            .map(|(first, count)| (base + *first as u64 * page_bytes, *count as u64 * page_bytes))
            .collect();
        if let Err(source) = page_out(&subject.pinned, &ranges) {
            return self.note_refusal(subject.key, source);
        }
        let Some((last, count)) = runs.last() else { return Outcome::Skip };
        let Some(after) = read_pages(&subject.pages, base, last + count) else { return Outcome::Skip };
        let absent_pages = |(first, count): &(usize, usize)| {
            let run = after.get(*first..first + count).unwrap_or_default();
            run.iter().filter(|page| !page.is_present()).count() as u64
        };
        let bytes = runs.iter().map(absent_pages).sum::<u64>() * page_bytes;
        if let Some(target) = self.shared.lock().targets.get_mut(&self.unit) {
            target.taken.bytes = target.taken.bytes.saturating_add(bytes);
            target.bytes = target.bytes.saturating_sub(bytes);
        }
        Outcome::Took(bytes)
    }

    /// Reports an error of the kernel, if it matters. An error that concerns all processes ends paging out
    /// altogether.
    fn note_refusal(&self, key: ProcessKey, source: io::Error) -> Outcome {
        match source.raw_os_error() {
            // The process or the mapping has ended, or the call was interrupted.
            Some(libc::ESRCH | libc::ENOMEM | libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EPERM | libc::ENOSYS) => {
                let mut state = self.shared.lock();
                state.refused = true;
                state.problems.push((None, "page out", refused(&source)));
            }
            _ => self.report(key, "page its memory out", source),
        }
        Outcome::Skip
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
        self.shared.lock().problems.push((Some(key), "memory", error));
    }
}

/// The error to report when the kernel refuses to page out at all.
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

/// The state of `count` pages from the address `start` on; `None` if it cannot be read.
fn read_pages(pages: &File, start: u64, count: usize) -> Option<Vec<Page>> {
    let mut bytes = vec![0; count * 8];
    let read = pages.read_at(&mut bytes, start / page_bytes() * 8).ok()?;
    let numbers = bytes[..read].chunks_exact(8);
    let window: Vec<Page> =
        numbers.filter_map(|number| Some(Page(u64::from_ne_bytes(number.try_into().ok()?)))).collect();
    (window.len() == count).then_some(window)
}
