//! Taking memory from control groups without waiting for it.
//!
//! Problem: a kernel that is told a lower memory.high, or to reclaim, does so before it answers. That takes as long as
//! the devices that it writes to. The daemon has CPUs to call back meanwhile.
//!
//! Algorithm: a thread for each control group does what may take long, and ends when it has nothing to do. What is
//! wanted is a target, not a queue: a thread that gets a new target while it works takes the latest. A bound that
//! grows is written at once, by the caller. The time that the kernel took is counted beside what it took, so that the
//! policy knows a rate. A page that goes to swap is free when it is written, and a kernel that waits for many says that it
//! could not take all. Then what it took is what memory.stat says (`pgsteal`).
//!
//! Properties: the bound written last is the one ordered last, whatever was in flight. Reclaim goes in steps, so that
//! a new target is seen soon, and takes no more than what is beyond the bound. Nothing of this outlives the daemon.

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

/// What is reclaimed at a time.
const STEP_BYTES: u64 = 8 << 20;
/// Nothing that would have to go to swap.
const FILES_ALONE: &str = "swappiness=0";
/// After so many steps in a row that took nothing, there is nothing to take.
const FRUITLESS_MAX: u32 = 3;

/// A bound that is written within this has taken nothing.
const TAKING_MIN: Duration = Duration::from_millis(1);

/// The threads, by control group.
#[derive(Debug, Default)]
pub(in crate::apply::cgroup) struct Pager {
    desks: BTreeMap<PathBuf, Arc<Desk>>,
}

/// What is wanted of one control group.
#[derive(Debug, Default)]
struct Desk {
    wanted: Mutex<Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    /// The bound ordered last, as text, and whether it was written since.
    bound: String,
    unwritten: bool,
    /// The group is also written by its manager: another bound than ours in it is no mistake.
    shared: bool,
    /// Bytes to take.
    reclaim: u64,
    /// Of pages of files alone.
    files: bool,
    /// Of a control group that uses more than its bound no more is taken than brings it there.
    floor: Option<u64>,
    /// What was taken so far.
    taken: Taken,
    /// A thread is at it.
    working: bool,
    problems: Vec<LiveError>,
}

/// What was taken from a control group by order, and how long the kernel was at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Taken {
    /// Together with what was taken from another control group.
    pub(super) fn with(self, other: Taken) -> Taken {
        Taken { bytes: self.bytes.saturating_add(other.bytes), time: self.time.saturating_add(other.time) }
    }
}

impl Wanted {
    fn took(&mut self, bytes: u64, time: Duration) {
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        self.taken.time = self.taken.time.saturating_add(time);
        self.reclaim = self.reclaim.saturating_sub(bytes);
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Nothing here panics with the lock held, and a bound is a bound.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pager {
    /// Bounds a control group. A bound that `sinks` is written by a thread; another one is in force on return.
    pub(super) fn bound(&mut self, dir: &Path, text: &str, sinks: bool) -> Result<(), LiveError> {
        let desk = self.desk(dir);
        let working = {
            let mut wanted = desk.lock();
            text.clone_into(&mut wanted.bound);
            wanted.unwritten = sinks || wanted.working;
            if !sinks {
                wanted.reclaim = 0;
            }
            wanted.working
        };
        if sinks {
            self.work(dir);
            return Ok(());
        }
        write_bound(&dir.join("memory.high"), text)?;
        // A thread that is about to write an earlier bound writes this one after it, and looks then.
        if working { Ok(()) } else { expect(&desk, dir, text) }
    }

    /// Writes a bound that sinks into a control group whose manager may write another one.
    pub(in crate::apply::cgroup) fn lower(&mut self, dir: &Path, text: &str) {
        {
            let desk = self.desk(dir);
            let mut wanted = desk.lock();
            text.clone_into(&mut wanted.bound);
            (wanted.unwritten, wanted.shared) = (true, true);
        }
        self.work(dir);
    }

    /// A bound that has grown was written by another way.
    pub(in crate::apply::cgroup) fn raised(&mut self, dir: &Path, text: &str) {
        if let Some(desk) = self.desks.get(dir) {
            let mut wanted = desk.lock();
            text.clone_into(&mut wanted.bound);
            // A thread that is about to write an earlier bound writes this one after it.
            (wanted.unwritten, wanted.reclaim) = (wanted.working, 0);
        }
    }

    /// Takes so much from a control group, in place of what it was told before: of `files` alone, if the kernel knows how.
    pub(in crate::apply::cgroup) fn reclaim(&mut self, dir: &Path, bytes: u64, files: bool) {
        {
            let desk = self.desk(dir);
            let mut wanted = desk.lock();
            let bound = wanted.bound.parse().unwrap_or(u64::MAX);
            wanted.floor = (used(dir) > bound).then_some(bound);
            (wanted.reclaim, wanted.files) = (bytes, files);
        }
        self.work(dir);
    }

    /// What was taken from a control group since it was first ordered about.
    pub(super) fn taken(&self, dir: &Path) -> Taken {
        self.desks.get(dir).map(|desk| desk.lock().taken).unwrap_or_default()
    }

    /// A control group is gone, or nobody wants anything of it any more.
    pub(in crate::apply::cgroup) fn forget(&mut self, dir: &Path) {
        if let Some(desk) = self.desks.remove(dir) {
            let mut wanted = desk.lock();
            (wanted.unwritten, wanted.reclaim) = (false, 0);
        }
    }

    /// What went wrong since the last call.
    pub(super) fn take_problems(&mut self) -> Vec<LiveError> {
        self.desks.values().flat_map(|desk| std::mem::take(&mut desk.lock().problems)).collect()
    }

    fn desk(&mut self, dir: &Path) -> Arc<Desk> {
        Arc::clone(self.desks.entry(dir.to_owned()).or_default())
    }

    /// Sees to it that a thread is at work for a control group.
    fn work(&mut self, dir: &Path) {
        let desk = self.desk(dir);
        if std::mem::replace(&mut desk.lock().working, true) {
            return;
        }
        let dir = dir.to_owned();
        let thread = thread::Builder::new().name("memory".to_owned());
        let (at, to) = (Arc::clone(&desk), dir.clone());
        if let Err(source) = thread.spawn(move || work(&at, &to)) {
            let mut wanted = desk.lock();
            wanted.working = false;
            wanted.problems.push(failed(&dir, "start a thread to take memory from it".to_owned(), source));
        }
    }
}

/// What to do next.
enum Next {
    Bound(String),
    Reclaim { bytes: u64, files: bool },
    Rest,
}

/// A thread's life.
fn work(desk: &Desk, dir: &Path) {
    work_by(desk, dir, write);
}

/// The same; memory is taken by writing with `write`.
fn work_by(desk: &Desk, dir: &Path, write: impl Fn(&Path, &str) -> io::Result<()>) {
    let mut fruitless = 0;
    loop {
        let done = match next(desk) {
            Next::Rest => return,
            Next::Bound(text) => bound(desk, dir, &text),
            Next::Reclaim { bytes, files } => take(desk, dir, bytes, files, &mut fruitless, &write),
        };
        if let Err(error) = done {
            let mut wanted = desk.lock();
            wanted.problems.push(error);
            (wanted.unwritten, wanted.reclaim) = (false, 0);
        }
    }
}

fn next(desk: &Desk) -> Next {
    let mut wanted = desk.lock();
    if std::mem::take(&mut wanted.unwritten) {
        Next::Bound(wanted.bound.clone())
    } else if wanted.reclaim > 0 {
        Next::Reclaim { bytes: wanted.reclaim.min(STEP_BYTES), files: wanted.files }
    } else {
        wanted.working = false;
        Next::Rest
    }
}

/// What a control group is charged now; 0 where it does not tell.
fn used(dir: &Path) -> u64 {
    read(&dir.join("memory.current")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What was ever taken from a control group, in bytes; `None` where the kernel does not tell.
fn stolen(dir: &Path) -> Option<u64> {
    let text = read(&dir.join("memory.stat")).ok()?;
    Some(value_of(&text, "pgsteal")?.saturating_mul(page_bytes()))
}

/// Writes a bound. Where the kernel took memory before it answered, that is counted, and not wanted once more.
fn bound(desk: &Desk, dir: &Path, text: &str) -> Result<(), LiveError> {
    let (before, begun) = (used(dir), Instant::now());
    write_bound(&dir.join("memory.high"), text)?;
    let time = begun.elapsed();
    if time >= TAKING_MIN {
        desk.lock().took(before.saturating_sub(used(dir)), time);
    }
    expect(desk, dir, text)
}

/// Takes one step's worth. A kernel that cannot take all of it says so, and has taken some.
fn take(
    desk: &Desk,
    dir: &Path,
    bytes: u64,
    files: bool,
    fruitless: &mut u32,
    write: impl Fn(&Path, &str) -> io::Result<()>,
) -> Result<(), LiveError> {
    let file = dir.join("memory.reclaim");
    if desk.lock().floor.is_some_and(|floor| used(dir) <= floor) {
        desk.lock().reclaim = 0;
        return Ok(());
    }
    let before = stolen(dir);
    let begun = Instant::now();
    let mut taken = bytes;
    let wanted = if files { format!("{bytes} {FILES_ALONE}") } else { bytes.to_string() };
    match write(&file, &wanted) {
        Ok(()) => *fruitless = 0,
        // A kernel that knows no such word, before Linux 6.10; or these pages are not to be had.
        Err(error) if files && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EAGAIN)) => {
            desk.lock().files = false;
            return Ok(());
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
            let more = stolen(dir).zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
            taken = more.min(bytes);
            *fruitless = if taken == 0 { *fruitless + 1 } else { 0 };
        }
        Err(source) => return Err(failed(&file, format!("write `{wanted}`"), source)),
    }
    let mut wanted = desk.lock();
    wanted.took(taken, begun.elapsed());
    if *fruitless >= FRUITLESS_MAX {
        *fruitless = 0;
        wanted.reclaim = 0;
    }
    Ok(())
}

/// Writes a bound. Since Linux 6.16 a file opened so only takes note of it; earlier kernels reclaim first.
fn write_bound(file: &Path, text: &str) -> Result<(), LiveError> {
    let written = write_without_waiting(file, text);
    written.map_err(|source| failed(file, format!("write `{text}`"), source))
}

/// Looks whether the bound that was just written is in force, if it is still the one that is wanted.
fn expect(desk: &Desk, dir: &Path, text: &str) -> Result<(), LiveError> {
    let file = dir.join("memory.high");
    let found = read(&file).map_err(|source| failed(&file, "read it back".to_owned(), source))?;
    let wanted = desk.lock();
    if found == text || wanted.bound != text || wanted.unwritten || wanted.shared {
        return Ok(());
    }
    Err(LiveError::NotInForce {
        path: file,
        wrote: text.to_owned(),
        read: found,
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
    fn the_bound_ordered_last_is_the_one_that_stays() {
        let dir = group();
        let mut pager = Pager::default();
        for round in 1..50 {
            pager.bound(dir.path(), &(round * 10).to_string(), true).unwrap();
            pager.bound(dir.path(), &(round * 1_000_000).to_string(), false).unwrap();
        }
        let desk = pager.desk(dir.path());
        eventually("the thread rests", || !desk.lock().working);
        assert_eq!(read(&dir.path().join("memory.high")).unwrap(), "49000000");
        assert_eq!(pager.take_problems().len(), 0);
    }

    /// 20 MiB in steps of 8: as much is counted as was taken, with the time it took.
    #[test]
    fn what_is_taken_is_counted() {
        let dir = group();
        let mut pager = Pager::default();
        assert_eq!(pager.taken(dir.path()), Taken::default());
        pager.reclaim(dir.path(), 20 << 20, false);
        eventually("all is taken", || pager.taken(dir.path()).bytes == 20 << 20);
        assert!(pager.taken(dir.path()).time > Duration::ZERO);
        assert_eq!(read(&dir.path().join("memory.reclaim")).unwrap(), (4 << 20).to_string());
    }

    /// Who was above its bound of 50 MiB and is no more owes nothing; who was not is taken from all the same, on trial.
    #[test]
    fn no_more_is_taken_than_is_beyond_the_bound() {
        let dir = group();
        let mut pager = Pager::default();
        let current = dir.path().join("memory.current");
        std::fs::write(&current, (40 << 20).to_string()).unwrap();
        pager.bound(dir.path(), &(50 << 20).to_string(), false).unwrap();
        pager.reclaim(dir.path(), 16 << 20, false);
        eventually("all is taken", || pager.taken(dir.path()).bytes == 16 << 20);
        let desk = pager.desk(dir.path());
        eventually("the thread rests", || !desk.lock().working);
        *desk.lock() =
            Wanted { reclaim: 100 << 20, floor: Some(50 << 20), working: true, ..Wanted::default() };
        work(&desk, dir.path());
        assert_eq!(desk.lock().taken, Taken::default());
        std::fs::write(&current, (60 << 20).to_string()).unwrap();
        *desk.lock() =
            Wanted { reclaim: 16 << 20, floor: Some(50 << 20), working: true, ..Wanted::default() };
        work(&desk, dir.path());
        assert_eq!(desk.lock().taken.bytes, 16 << 20);
    }

    /// Who is allowed more owes nothing, until it is told so anew.
    #[test]
    fn a_bound_that_grows_ends_a_debt() {
        let dir = group();
        let mut pager = Pager::default();
        let desk = pager.desk(dir.path());
        *desk.lock() = Wanted { reclaim: 100 << 20, working: true, ..Wanted::default() };
        pager.bound(dir.path(), "1000", false).unwrap();
        assert_eq!(desk.lock().reclaim, 0);
    }

    /// A kernel that took 30 of 40 MiB while a bound was written is asked for 10 more.
    #[test]
    fn what_a_bound_took_is_not_taken_again() {
        let mut wanted = Wanted { reclaim: 40 << 20, ..Wanted::default() };
        wanted.took(30 << 20, Duration::from_millis(5));
        assert_eq!((wanted.reclaim, wanted.taken.bytes), (10 << 20, 30 << 20));
    }

    /// A kernel that finds nothing to take is asked three times, and that is no problem; one that cannot take at all is asked
    /// once, and it is said. In between, what was taken counts.
    #[test]
    fn who_has_nothing_to_give_is_asked_three_times() {
        let refuse = |errnos: &'static [i32]| {
            let asked = std::cell::Cell::new(0);
            let desk = Desk::default();
            *desk.lock() = Wanted { reclaim: 100 << 20, working: true, ..Wanted::default() };
            work_by(&desk, Path::new("/none"), |_, _| {
                asked.set(asked.get() + 1);
                match errnos.get(asked.get() - 1).or(errnos.last()) {
                    Some(0) | None => Ok(()),
                    Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
                }
            });
            let wanted = desk.lock();
            assert!(wanted.reclaim == 0 && !wanted.working);
            (asked.get(), wanted.taken.bytes >> 20, wanted.problems.len())
        };
        assert_eq!(refuse(&[libc::EAGAIN]), (3, 0, 0));
        assert_eq!(refuse(&[libc::EAGAIN, libc::EINTR, 0, libc::EAGAIN]), (6, 8, 0));
        assert_eq!(refuse(&[0, libc::EOPNOTSUPP]), (2, 8, 1));
    }

    /// Of each 8 MiB that are asked for, the kernel has written 3 to swap by the time when it answers; then nothing is left.
    #[test]
    fn what_a_kernel_took_counts_where_it_could_not_take_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut pager = Pager::default();
        let desk = pager.desk(dir.path());
        *desk.lock() = Wanted { reclaim: 100 << 20, working: true, ..Wanted::default() };
        let asked = std::cell::Cell::new(0);
        let stat = |pages: u64| {
            std::fs::write(dir.path().join("memory.stat"), format!("anon 1\npgsteal {pages}\n")).unwrap();
        };
        stat(0);
        work_by(&desk, dir.path(), |_, _| {
            asked.set(asked.get() + 1);
            stat((3 << 20) / page_bytes() * u64::min(asked.get(), 4));
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        });
        assert_eq!((asked.get(), desk.lock().taken.bytes >> 20), (4 + 3, 4 * 3));
    }

    #[test]
    fn what_cannot_be_written_is_said_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut pager = Pager::default();
        pager.reclaim(dir.path(), 100 << 20, false);
        let desk = pager.desk(dir.path());
        eventually("the thread rests", || !desk.lock().working);
        let problems = pager.take_problems();
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].to_string().contains("memory.reclaim: cannot write `8388608`"),
            "{}",
            problems[0]
        );
    }
}
