//! How far long work is, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cells of the bar.
const WIDTH: usize = 30;

/// A bar on standard error, if that is a terminal; else nothing.
pub(crate) struct Progress {
    what: &'static str,
    of: usize,
    done: AtomicUsize,
    shown: bool,
}

impl Progress {
    /// A bar for so many pieces of work.
    pub(crate) fn new(what: &'static str, of: usize) -> Progress {
        let progress =
            Progress { what, of, done: AtomicUsize::new(0), shown: of > 1 && io::stderr().is_terminal() };
        progress.show(0);
        progress
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        self.show(self.done.fetch_add(1, Ordering::Relaxed) + 1);
    }

    fn show(&self, done: usize) {
        if self.shown {
            let full = WIDTH * done / self.of.max(1);
            let bar = "#".repeat(full) + &".".repeat(WIDTH - full);
            let _ = write!(io::stderr(), "\r{bar} {done} of {} {}", self.of, self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
