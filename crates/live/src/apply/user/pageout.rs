//! Paging out a unit's memory, by asking the kernel process by process.
//!
//! Problem: without control groups nothing bounds a unit's memory. But a daemon with the privilege can have the kernel
//! page out what a process has mapped (`process_madvise(MADV_PAGEOUT)`). It comes back as it is touched.
//!
//! Algorithm: what each unit has too much is a target, set anew at each look. One thread works on the targets in
//! turns. It ranks the mappings of the unit's processes ([`mappings`](crate::observe::memory::mappings)), and goes
//! through them in pieces of [`PIECE_BYTES`]. Of a piece, it asks for pages that are there, that no other process maps,
//! and that have somewhere to go. It ends when nothing is wanted.
//!
//! Properties:
//! - Never more than the target is asked for.
//! - What was taken is counted by looking at the same pages again.
//! - A target that was measured before the last piece was taken is less that piece.
//! - A mapping of which [`FRUITLESS_MAX`] pieces in a row gave little is left.
//! - Walking through mappings takes at most 1/[`REST_TIMES`] of a CPU where it is of no use.
//! - Nothing needs to be undone: pages come back as they are touched.
//!
//! Limits: file pages that must be written first stay until they are. The kernel takes pages of a file only for a
//! process that may write to it or owns it.
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

/// What is asked for at a time.
const PIECE_BYTES: u64 = 4 << 20;
/// Of so many pages it is looked at a time whether they are there: their descriptions fill 64 KiB.
const WINDOW_PAGES: usize = 8_192;
/// Ranges that one call may name (`UIO_MAXIOV`).
const RANGES_MAX: usize = 1_024;
/// After so many pieces in a row of which less than an eighth went, the rest of a mapping is left alone.
const FRUITLESS_MAX: u32 = 2;
/// After a pass that took less than half of what was wanted, a unit is left alone for so many times as long as that took.
const REST_TIMES: u32 = 20;
const REST_MIN: Duration = Duration::from_millis(500);

/// What was taken from a unit so far, and how long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// What is wanted of one unit.
#[derive(Debug, Clone, Default)]
struct Target {
    bytes: u64,
    processes: Vec<ProcessKey>,
    taken: Taken,
    /// At the last pass, most of it could not go.
    stuck: bool,
    rest_until: Option<Instant>,
}

/// A problem, with the process and the kind that it is told once for; without a process, once in all.
pub(super) type Problem = (Option<ProcessKey>, &'static str, LiveError);

#[derive(Debug, Default)]
struct Wanted {
    targets: BTreeMap<UnitId, Target>,
    working: bool,
    swap: bool,
    /// The kernel refuses in general: nothing is tried again.
    refused: bool,
    problems: Vec<Problem>,
}

/// The thread, if there is something to do, and what it is told.
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
    /// Wants so many bytes of a unit, in place of what was wanted before. `measured` is what [`Pageout::taken`] said before
    /// it was found out; `swap` tells whether there is room for what is in no file.
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

    /// What was taken from a unit so far.
    pub(super) fn taken(&self, unit: UnitId) -> Taken {
        self.0.lock().targets.get(&unit).map(|target| target.taken).unwrap_or_default()
    }

    /// Whether most of what was wanted of a unit could not be taken when it was tried last.
    pub(super) fn is_stuck(&self, unit: UnitId) -> bool {
        self.0.lock().targets.get(&unit).is_some_and(|target| target.stuck)
    }

    /// Whether the kernel refuses in general.
    pub(super) fn is_refused(&self) -> bool {
        self.0.lock().refused
    }

    /// Follows another contract: nothing that was wanted before is wanted still.
    pub(super) fn follow(&self, contract: &Contract) {
        let mut wanted = self.0.lock();
        wanted.targets.retain(|unit, _| contract.has(*unit));
        wanted.targets.values_mut().for_each(|target| target.bytes = 0);
    }

    /// What went wrong since the last call.
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

/// The thread's life: a pass for each unit that has too much, until nobody has.
fn work(desk: &Desk) {
    let mut done: BTreeSet<UnitId> = BTreeSet::new();
    loop {
        let next = {
            let mut wanted = desk.lock();
            let due = |(unit, target): &(&UnitId, &Target)| target.is_due() && !done.contains(*unit);
            let next =
                wanted.targets.iter().find(due).map(|(unit, target)| (*unit, target.processes.clone()));
            // What comes back to the desk meanwhile is found by the next look.
            wanted.working = next.is_some() && !wanted.refused;
            next.filter(|_| wanted.working)
        };
        let Some((unit, processes)) = next else { return };
        done.insert(unit);
        pass(desk, unit, &processes);
    }
}

/// Takes from one unit until it has given enough, or has nothing more to give.
fn pass(desk: &Desk, unit: UnitId, processes: &[ProcessKey]) {
    let begun = Instant::now();
    let of = |wanted: &Wanted| wanted.targets.get(&unit).map_or((0, 0), |it| (it.bytes, it.taken.bytes));
    let (asked, before) = of(&desk.lock());
    let work = Pass { desk, unit, swap: desk.lock().swap };
    if let Ok(mut procfs) = ProcFs::open(Path::new("/proc")) {
        work.through(&mut procfs, processes);
    }
    let mut wanted = desk.lock();
    if let Some(target) = wanted.targets.get_mut(&unit) {
        target.taken.time = target.taken.time.saturating_add(begun.elapsed());
        // Who gave much, and took as much anew meanwhile, can give again.
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

/// A process whose memory is looked at.
struct Subject {
    key: ProcessKey,
    pinned: Pinned,
    pages: File,
}

/// What to go on with after a piece.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Took(u64),
    /// The mapping, or the process, has changed or refuses.
    Leave,
}

impl Pass<'_> {
    fn through(&self, procfs: &mut ProcFs, processes: &[ProcessKey]) {
        let mut subjects = Vec::new();
        let mut ranked: Vec<(usize, Mapping)> = Vec::new();
        // Never this program's own memory, whoever asked.
        for key in processes.iter().filter(|key| key.pid != std::process::id()) {
            match open(procfs, *key) {
                Ok(Some((subject, mappings))) => {
                    ranked.extend(mappings.into_iter().map(|mapping| (subjects.len(), mapping)));
                    subjects.push(subject);
                }
                Ok(None) => {}
                Err(source) => self.report(*key, "look at its memory", source),
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

    /// Bytes that are wanted still.
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

    /// Asks for some runs of pages, and counts how many of them are gone.
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
            // It ended, or the mapping did.
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
                "; its memory is left as it is: it is another user's, or protects itself; run commonhold as root"
            }
            Some(libc::EINVAL) => {
                "; its memory is left as it is: the kernel is older than 5.10, or that memory is locked"
            }
            _ => "; its memory is left as it is",
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

/// Why nothing can be paged out here at all.
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

/// Pins a process, and reads what it has mapped; `None` if it is gone.
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

/// The pages from an address on; `None` if they cannot be looked at, or are gone.
fn look(pages: &File, start: u64, count: usize) -> Option<Vec<Page>> {
    let mut bytes = vec![0; count * 8];
    let read = pages.read_at(&mut bytes, start / page_bytes() * 8).ok()?;
    let numbers = bytes[..read].chunks_exact(8);
    let window: Vec<Page> =
        numbers.filter_map(|number| Some(Page(u64::from_ne_bytes(number.try_into().ok()?)))).collect();
    (window.len() == count).then_some(window)
}
