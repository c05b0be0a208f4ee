//! Reclaims memory from control groups without blocking the daemon.
//!
//! Problem: a write that lowers memory.high, or a write to memory.reclaim, returns only after the kernel has
//! reclaimed memory. That takes as long as the devices to which pages are written, and the daemon must be
//! able to call back CPUs meanwhile.
//!
//! Algorithm: a thread per control group makes the slow writes, and exits when it has nothing to do. Each
//! control group has one *target*, a bound and an amount to reclaim. A new order replaces the target, so
//! there is no queue. If a bound grows, the caller writes it at once. Both the bytes reclaimed and the time
//! spent are counted, so that the policy knows the reclaim rate. A page on its way to swap is free only when
//! it has been written. So the kernel may report a failure although it has reclaimed some pages. After a
//! failure, the number of bytes reclaimed is taken from memory.stat (`pgsteal`).
//!
//! Properties: the last bound written is the last bound ordered, whatever write was in flight. Reclaim
//! proceeds in steps, so that a new target takes effect soon, and stops at the bound. The threads end with
//! the daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::LiveError;
use crate::host::{write, write_without_waiting};
use crate::observe::knob::{failed, read, value_of};
use crate::observe::memory::source::page_bytes;

/// The size of a reclaim step.
const STEP_BYTES: u64 = 8 << 20;
/// The argument of memory.reclaim that excludes anonymous pages.
const FILES_ALONE: &str = "swappiness=0";
/// The number of fruitless steps in a row after which a target is given up.
const FRUITLESS_MAX: u32 = 3;

/// If the write of a bound returns sooner than this, the kernel reclaimed nothing during the write.
const TAKING_MIN: Duration = Duration::from_millis(1);

/// The worker threads, by control group.
#[derive(Debug, Default)]
pub(in crate::apply::cgroup) struct Pager {
    workers: BTreeMap<PathBuf, Arc<Worker>>,
}

/// The target of one control group, shared with its thread.
#[derive(Debug, Default)]
struct Worker {
    target: Mutex<Target>,
}

/// The target of one control group's thread, and what the thread has reclaimed.
#[derive(Debug, Default)]
struct Target {
    /// The bound ordered last, as text.
    bound: String,
    /// Whether the thread has to write the bound.
    unwritten: bool,
    /// Whether the group's manager writes the bound, too, so that it is no error to read back another value.
    shared: bool,
    /// The bytes left to reclaim.
    reclaim: u64,
    /// Whether to reclaim only file pages.
    files: bool,
    /// If the group exceeded its bound when the reclaim was ordered: the bound, at which reclaim stops.
    floor: Option<u64>,
    /// Reclaimed so far.
    taken: Reclaimed,
    /// Whether the thread is running.
    working: bool,
    problems: Vec<LiveError>,
}

/// Memory reclaimed from a control group on request, and how long the kernel took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reclaimed {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Reclaimed {
    /// The sum of both.
    pub(super) fn with(self, other: Reclaimed) -> Reclaimed {
        Reclaimed {
            bytes: self.bytes.saturating_add(other.bytes),
            time: self.time.saturating_add(other.time),
        }
    }
}

impl Target {
    /// Counts reclaimed memory.
    fn took(&mut self, bytes: u64, time: Duration) {
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        self.taken.time = self.taken.time.saturating_add(time);
        self.reclaim = self.reclaim.saturating_sub(bytes);
    }
}

impl Worker {
    fn lock(&self) -> MutexGuard<'_, Target> {
        // No code panics with the lock held, and a poisoned target is still valid.
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pager {
    /// Sets a control group's bound. If the bound `is_lowered`, the group's thread writes it later; otherwise
    /// it is written before this function returns.
    pub(super) fn bound(&mut self, dir: &Path, text: &str, is_lowered: bool) -> Result<(), LiveError> {
        let worker = self.worker(dir);
        let working = {
            let mut target = worker.lock();
            text.clone_into(&mut target.bound);
            target.unwritten = is_lowered || target.working;
            if !is_lowered {
                target.reclaim = 0;
            }
            target.working
        };
        if is_lowered {
            self.start(dir);
            return Ok(());
        }
        write_bound(&dir.join("memory.high"), text)?;
        // A running thread may be about to write an earlier bound. After that, it writes this bound again,
        // and checks it.
        if working { Ok(()) } else { expect(&worker, dir, text) }
    }

    /// Lowers the bound of a control group whose manager may write the bound, too.
    pub(in crate::apply::cgroup) fn lower(&mut self, dir: &Path, text: &str) {
        {
            let worker = self.worker(dir);
            let mut target = worker.lock();
            text.clone_into(&mut target.bound);
            (target.unwritten, target.shared) = (true, true);
        }
        self.start(dir);
    }

    /// Notes that the bound has grown to `text`, which the caller is about to write. A running thread may
    /// still write an earlier bound, so it is made to write this bound after that.
    pub(in crate::apply::cgroup) fn note_raised(&mut self, dir: &Path, text: &str) {
        if let Some(worker) = self.workers.get(dir) {
            let mut target = worker.lock();
            text.clone_into(&mut target.bound);
            // A running thread may be about to write an earlier bound. After that, it writes this bound
            // again.
            (target.unwritten, target.reclaim) = (target.working, 0);
        }
    }

    /// Sets how many bytes to reclaim from a control group. This replaces what remains of an earlier order.
    /// If `files` is set, only file pages are reclaimed, where the kernel supports that.
    pub(in crate::apply::cgroup) fn reclaim(&mut self, dir: &Path, bytes: u64, files: bool) {
        {
            let worker = self.worker(dir);
            let mut target = worker.lock();
            let bound = target.bound.parse().unwrap_or(u64::MAX);
            target.floor = (used(dir) > bound).then_some(bound);
            (target.reclaim, target.files) = (bytes, files);
        }
        self.start(dir);
    }

    /// The memory that was reclaimed from a control group since its first order.
    pub(super) fn taken(&self, dir: &Path) -> Reclaimed {
        self.workers.get(dir).map(|worker| worker.lock().taken).unwrap_or_default()
    }

    /// Cancels the target of a control group that was removed or is not enforced any more.
    pub(in crate::apply::cgroup) fn forget(&mut self, dir: &Path) {
        if let Some(worker) = self.workers.remove(dir) {
            let mut target = worker.lock();
            (target.unwritten, target.reclaim) = (false, 0);
        }
    }

    /// Takes the errors since the last call.
    pub(super) fn take_problems(&mut self) -> Vec<LiveError> {
        self.workers.values().flat_map(|worker| std::mem::take(&mut worker.lock().problems)).collect()
    }

    fn worker(&mut self, dir: &Path) -> Arc<Worker> {
        Arc::clone(self.workers.entry(dir.to_owned()).or_default())
    }

    /// Starts a control group's thread if it is not running.
    fn start(&mut self, dir: &Path) {
        let worker = self.worker(dir);
        if std::mem::replace(&mut worker.lock().working, true) {
            return;
        }
        let dir = dir.to_owned();
        let thread = thread::Builder::new().name("memory".to_owned());
        let (threads_worker, threads_dir) = (Arc::clone(&worker), dir.clone());
        if let Err(source) = thread.spawn(move || work(&threads_worker, &threads_dir)) {
            let mut target = worker.lock();
            target.working = false;
            target.problems.push(failed(&dir, "start a thread to take memory from it".to_owned(), source));
        }
    }
}

/// A thread's next step.
enum Next {
    Bound(String),
    Reclaim { bytes: u64, files: bool },
    Exit,
}

/// The thread's main loop.
fn work(worker: &Worker, dir: &Path) {
    work_by(worker, dir, write);
}

/// [`work`] with the function that writes memory.reclaim, which tests replace. An error cancels the target.
fn work_by(worker: &Worker, dir: &Path, write: impl Fn(&Path, &str) -> io::Result<()>) {
    let mut fruitless = 0;
    loop {
        let result = match next_step(worker) {
            Next::Exit => return,
            Next::Bound(text) => set_bound(worker, dir, &text),
            Next::Reclaim { bytes, files } => reclaim_step(worker, dir, bytes, files, &mut fruitless, &write),
        };
        if let Err(error) = result {
            let mut target = worker.lock();
            target.problems.push(error);
            (target.unwritten, target.reclaim) = (false, 0);
        }
    }
}

/// Takes a thread's next step from its target: an unwritten bound before a reclaim.
fn next_step(worker: &Worker) -> Next {
    let mut target = worker.lock();
    if std::mem::take(&mut target.unwritten) {
        Next::Bound(target.bound.clone())
    } else if target.reclaim > 0 {
        Next::Reclaim { bytes: target.reclaim.min(STEP_BYTES), files: target.files }
    } else {
        target.working = false;
        Next::Exit
    }
}

/// The bytes that a control group is charged now; 0 if this cannot be read.
fn used(dir: &Path) -> u64 {
    read(&dir.join("memory.current")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// All memory ever reclaimed from a control group, in bytes; `None` if the kernel does not count it.
fn total_reclaimed(dir: &Path) -> Option<u64> {
    let text = read(&dir.join("memory.stat")).ok()?;
    Some(value_of(&text, "pgsteal")?.saturating_mul(page_bytes()))
}

/// Writes a bound, and checks it. The memory that the kernel reclaims during the write is counted, and
/// deducted from the target.
fn set_bound(worker: &Worker, dir: &Path, text: &str) -> Result<(), LiveError> {
    let (before, begun) = (used(dir), Instant::now());
    write_bound(&dir.join("memory.high"), text)?;
    let time = begun.elapsed();
    if time >= TAKING_MIN {
        worker.lock().took(before.saturating_sub(used(dir)), time);
    }
    expect(worker, dir, text)
}

/// Makes one reclaim step of `bytes` bytes. The kernel returns EAGAIN if it reclaimed less than requested.
fn reclaim_step(
    worker: &Worker,
    dir: &Path,
    bytes: u64,
    files: bool,
    fruitless: &mut u32,
    write: impl Fn(&Path, &str) -> io::Result<()>,
) -> Result<(), LiveError> {
    let file = dir.join("memory.reclaim");
    if worker.lock().floor.is_some_and(|floor| used(dir) <= floor) {
        worker.lock().reclaim = 0;
        return Ok(());
    }
    let before = total_reclaimed(dir);
    let begun = Instant::now();
    let mut taken = bytes;
    let request = if files { format!("{bytes} {FILES_ALONE}") } else { bytes.to_string() };
    match write(&file, &request) {
        Ok(()) => *fruitless = 0,
        // EINVAL: a kernel before Linux 6.10 has no `swappiness=`. EAGAIN: there are no more file pages.
        // Either way, the next step reclaims any pages.
        Err(error) if files && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EAGAIN)) => {
            worker.lock().files = false;
            return Ok(());
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
            let after = total_reclaimed(dir);
            let reclaimed = after.zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
            taken = reclaimed.min(bytes);
            *fruitless = if taken == 0 { *fruitless + 1 } else { 0 };
        }
        Err(source) => return Err(failed(&file, format!("write `{request}`"), source)),
    }
    let mut target = worker.lock();
    target.took(taken, begun.elapsed());
    if *fruitless >= FRUITLESS_MAX {
        *fruitless = 0;
        target.reclaim = 0;
    }
    Ok(())
}

/// Writes a bound. With `O_NONBLOCK`, Linux 6.16 and later do not reclaim during the write.
fn write_bound(file: &Path, text: &str) -> Result<(), LiveError> {
    let written = write_without_waiting(file, text);
    written.map_err(|source| failed(file, format!("write `{text}`"), source))
}

/// Checks that the bound just written is in force, unless another bound was ordered meanwhile.
fn expect(worker: &Worker, dir: &Path, text: &str) -> Result<(), LiveError> {
    let file = dir.join("memory.high");
    let content = read(&file).map_err(|source| failed(&file, "read it back".to_owned(), source))?;
    let target = worker.lock();
    if content == text || target.bound != text || target.unwritten || target.shared {
        return Ok(());
    }
    Err(LiveError::NotInForce {
        path: file,
        wrote: text.to_owned(),
        read: content,
        remedy: "; another program writes this file too: stop it, or let it leave this cgroup alone"
            .to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn group() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in ["memory.high", "memory.reclaim"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        dir
    }

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_last_bound_ordered_stays() {
        let dir = group();
        let mut pager = Pager::default();
        for round in 1..50 {
            pager.bound(dir.path(), &(round * 10).to_string(), true).unwrap();
            pager.bound(dir.path(), &(round * 1_000_000).to_string(), false).unwrap();
        }
        let worker = pager.worker(dir.path());
        eventually("the thread rests", || !worker.lock().working);
        assert_eq!(read(&dir.path().join("memory.high")).unwrap(), "49000000");
        assert_eq!(pager.take_problems().len(), 0);
    }

    /// 20 MiB in steps of 8: all of it is counted, with the time it took.
    #[test]
    fn reclaimed_memory_is_counted() {
        let dir = group();
        let mut pager = Pager::default();
        assert_eq!(pager.taken(dir.path()), Reclaimed::default());
        pager.reclaim(dir.path(), 20 << 20, false);
        eventually("all is taken", || pager.taken(dir.path()).bytes == 20 << 20);
        assert!(pager.taken(dir.path()).time > Duration::ZERO);
        assert_eq!(read(&dir.path().join("memory.reclaim")).unwrap(), (4 << 20).to_string());
    }

    /// Reclaim from a group above its bound of 50 MiB stops there; a group that was never above it is still
    /// reclaimed from.
    #[test]
    fn reclaim_stops_at_the_bound() {
        let dir = group();
        let mut pager = Pager::default();
        let current = dir.path().join("memory.current");
        std::fs::write(&current, (40 << 20).to_string()).unwrap();
        pager.bound(dir.path(), &(50 << 20).to_string(), false).unwrap();
        pager.reclaim(dir.path(), 16 << 20, false);
        eventually("all is taken", || pager.taken(dir.path()).bytes == 16 << 20);
        let worker = pager.worker(dir.path());
        eventually("the thread rests", || !worker.lock().working);
        *worker.lock() =
            Target { reclaim: 100 << 20, floor: Some(50 << 20), working: true, ..Target::default() };
        work(&worker, dir.path());
        assert_eq!(worker.lock().taken, Reclaimed::default());
        std::fs::write(&current, (60 << 20).to_string()).unwrap();
        *worker.lock() =
            Target { reclaim: 16 << 20, floor: Some(50 << 20), working: true, ..Target::default() };
        work(&worker, dir.path());
        assert_eq!(worker.lock().taken.bytes, 16 << 20);
    }

    /// A bound that grows cancels the reclaim target.
    #[test]
    fn a_bound_that_grows_ends_a_debt() {
        let dir = group();
        let mut pager = Pager::default();
        let worker = pager.worker(dir.path());
        *worker.lock() = Target { reclaim: 100 << 20, working: true, ..Target::default() };
        pager.bound(dir.path(), "1000", false).unwrap();
        assert_eq!(worker.lock().reclaim, 0);
    }

    /// The write of a bound reclaimed 30 of 40 MiB: 10 are left.
    #[test]
    fn memory_that_a_bound_reclaimed_is_deducted() {
        let mut target = Target { reclaim: 40 << 20, ..Target::default() };
        target.took(30 << 20, Duration::from_millis(5));
        assert_eq!((target.reclaim, target.taken.bytes), (10 << 20, 30 << 20));
    }

    /// After three fruitless steps the target is given up without a problem; another error ends it at once
    /// and is reported. Bytes reclaimed before count.
    #[test]
    fn fruitless_reclaim_is_given_up_after_three_steps() {
        let refuse = |errnos: &'static [i32]| {
            let asked = std::cell::Cell::new(0);
            let worker = Worker::default();
            *worker.lock() = Target { reclaim: 100 << 20, working: true, ..Target::default() };
            work_by(&worker, Path::new("/none"), |_, _| {
                asked.set(asked.get() + 1);
                match errnos.get(asked.get() - 1).or(errnos.last()) {
                    Some(0) | None => Ok(()),
                    Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
                }
            });
            let target = worker.lock();
            assert!(target.reclaim == 0 && !target.working);
            (asked.get(), target.taken.bytes >> 20, target.problems.len())
        };
        assert_eq!(refuse(&[libc::EAGAIN]), (3, 0, 0));
        assert_eq!(refuse(&[libc::EAGAIN, libc::EINTR, 0, libc::EAGAIN]), (6, 8, 0));
        assert_eq!(refuse(&[0, libc::EOPNOTSUPP]), (2, 8, 1));
    }

    /// Of each step of 8 MiB the kernel has written 3 to swap when it returns EAGAIN, four times; then
    /// nothing is left.
    #[test]
    fn a_partly_successful_reclaim_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut pager = Pager::default();
        let worker = pager.worker(dir.path());
        *worker.lock() = Target { reclaim: 100 << 20, working: true, ..Target::default() };
        let asked = std::cell::Cell::new(0);
        let stat = |pages: u64| {
            std::fs::write(dir.path().join("memory.stat"), format!("anon 1\npgsteal {pages}\n")).unwrap();
        };
        stat(0);
        work_by(&worker, dir.path(), |_, _| {
            asked.set(asked.get() + 1);
            stat((3 << 20) / page_bytes() * u64::min(asked.get(), 4));
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        });
        assert_eq!((asked.get(), worker.lock().taken.bytes >> 20), (4 + 3, 4 * 3));
    }

    #[test]
    fn a_failed_write_is_reported_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut pager = Pager::default();
        pager.reclaim(dir.path(), 100 << 20, false);
        let worker = pager.worker(dir.path());
        eventually("the thread rests", || !worker.lock().working);
        let problems = pager.take_problems();
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].to_string().contains("memory.reclaim: cannot write `8388608`"),
            "{}",
            problems[0]
        );
    }
}
