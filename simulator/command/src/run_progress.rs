//! The progress of a single run in virtual time, on standard error if that is a terminal.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use commonhold_command::progress::{draw, wipe};

/// Shorter runs show no bar, which would only flicker.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two drawings of the bar.
const PERIOD: Duration = Duration::from_millis(200);

/// A progress bar that follows a run's virtual clock. Dropping this value wipes the bar.
pub(crate) struct RunProgress {
    clock: Arc<AtomicU64>,
    /// Dropping the sender ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// Starts a thread that draws the bar of a run that ends at `horizon_ns` at the latest.
    pub(crate) fn new(horizon_ns: u64) -> RunProgress {
        let clock = Arc::new(AtomicU64::new(0));
        let mut progress = RunProgress { clock: Arc::clone(&clock), end: None, thread: None };
        if io::stderr().is_terminal() {
            let (end, ended) = mpsc::channel();
            progress.end = Some(end);
            progress.thread = Some(thread::spawn(move || watch(&clock, horizon_ns, &ended)));
        }
        progress
    }

    /// The run stores its virtual time here, in ns.
    pub(crate) fn clock(&self) -> &AtomicU64 {
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

/// Draws until the sender of `ended` is dropped.
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

/// A time with one decimal: `12.3 s`.
fn seconds(ns: u64) -> String {
    let tenths = ns / 100_000_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_one_decimal() {
        assert_eq!(seconds(12_345_678_901), "12.3 s");
    }
}
