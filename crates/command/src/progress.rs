//! How far long work is, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Cells of the bar.
const WIDTH: usize = 30;

/// A bar on standard error, if that is a terminal; else nothing.
pub struct Progress {
    what: &'static str,
    of: usize,
    done: AtomicUsize,
    shown: bool,
}

impl Progress {
    /// A bar for so many pieces of work.
    pub fn new(what: &'static str, of: usize) -> Progress {
        let progress =
            Progress { what, of, done: AtomicUsize::new(0), shown: of > 1 && io::stderr().is_terminal() };
        progress.show(0);
        progress
    }

    /// One more is done.
    pub fn step(&self) {
        self.show(self.done.fetch_add(1, Ordering::Relaxed) + 1);
    }

    fn show(&self, done: usize) {
        if self.shown {
            draw(done as u64, self.of as u64, &format!("{done} of {} {}", self.of, self.what));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            wipe();
        }
    }
}

/// Shorter runs show no bar, which would only flicker.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the bar of one run is drawn anew.
const PERIOD: Duration = Duration::from_millis(200);

/// How far the virtual clock of one run is, on standard error from the first second on, if that is a terminal.
pub struct RunProgress {
    clock: Arc<AtomicU64>,
    /// Dropped, it ends the thread that draws.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// A bar for a run that ends at `horizon_ns` at the latest.
    pub fn new(horizon_ns: u64) -> RunProgress {
        let clock = Arc::new(AtomicU64::new(0));
        let mut progress = RunProgress { clock: Arc::clone(&clock), end: None, thread: None };
        if io::stderr().is_terminal() {
            let (end, ended) = mpsc::channel();
            progress.end = Some(end);
            progress.thread = Some(thread::spawn(move || watch(&clock, horizon_ns, &ended)));
        }
        progress
    }

    /// What the run shows its time on.
    pub fn clock(&self) -> &AtomicU64 {
        &self.clock
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Draws until the other end is gone.
fn watch(clock: &AtomicU64, horizon_ns: u64, ended: &Receiver<()>) {
    let mut pause = PATIENCE;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let now = clock.load(Ordering::Relaxed);
        let text = format!("{} of at most {} of virtual time", seconds(now), seconds(horizon_ns));
        draw(now, horizon_ns, &text);
        pause = PERIOD;
    }
    if pause == PERIOD {
        wipe();
    }
}

/// `12.3 s`.
fn seconds(ns: u64) -> String {
    let tenths = ns / 100_000_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

fn draw(done: u64, of: u64, text: &str) {
    let _ = write!(io::stderr(), "\r{} {text}\x1b[K", bar(done, of));
}

fn bar(done: u64, of: u64) -> String {
    let full = u128::from(done.min(of)) * WIDTH as u128 / u128::from(of.max(1));
    let full = usize::try_from(full).unwrap_or(WIDTH);
    "#".repeat(full) + &".".repeat(WIDTH - full)
}

fn wipe() {
    let _ = write!(io::stderr(), "\r\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_what_is_done() {
        assert_eq!(bar(0, 3_600), ".".repeat(WIDTH));
        assert_eq!(bar(u64::MAX / 2, u64::MAX), "#".repeat(14) + &".".repeat(16));
        assert_eq!(bar(7, 7), "#".repeat(WIDTH));
        // A run that is over before it began, and one beyond its end.
        assert_eq!((bar(0, 0), bar(9, 7)), (".".repeat(WIDTH), "#".repeat(WIDTH)));
        assert_eq!(seconds(12_345_678_901), "12.3 s");
    }
}
