//! A progress bar on standard error, if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use commonhold_report::figures::duration;

/// The width of the bar in characters.
const WIDTH: usize = 30;

/// A progress bar for a known number of steps. Any thread may count a step. The bar is wiped when the value
/// is dropped.
pub struct Progress {
    what: &'static str,
    steps: usize,
    done: AtomicUsize,
    is_shown: bool,
    begun: Instant,
}

/// The time left is shown after this time, since the first steps tell little.
const PATIENCE: Duration = Duration::from_secs(3);

impl Progress {
    /// Draws an empty bar for `steps` steps. For a single step there is no bar. `what` names the steps in the
    /// plural, as `runs` in `12 of 30 runs`.
    pub fn new(what: &'static str, steps: usize) -> Progress {
        let is_shown = steps > 1 && io::stderr().is_terminal();
        let progress = Progress { what, steps, done: AtomicUsize::new(0), is_shown, begun: Instant::now() };
        progress.show(0);
        progress
    }

    /// Counts a step as done.
    pub fn step(&self) {
        self.show(self.done.fetch_add(1, Ordering::Relaxed) + 1);
    }

    fn show(&self, done: usize) {
        if self.is_shown {
            let left = left(self.begun.elapsed(), done, self.steps).map(|left| format!(", {left} left"));
            let text = format!("{done} of {} {}{}", self.steps, self.what, left.unwrap_or_default());
            draw(done as u64, self.steps as u64, &text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            wipe();
        }
    }
}

/// The time that the remaining steps take at the pace of those done; `None` if it is too early to tell.
fn left(elapsed: Duration, done: usize, steps: usize) -> Option<String> {
    if elapsed < PATIENCE || done == 0 || done >= steps {
        return None;
    }
    let left_ns = elapsed.as_nanos() * (steps - done) as u128 / done as u128;
    Some(duration(u64::try_from(left_ns).unwrap_or(u64::MAX)))
}

/// Draws a bar for `done` of `whole` steps, followed by `text`, over the previous bar.
pub fn draw(done: u64, whole: u64, text: &str) {
    let _ = write!(io::stderr(), "\r{} {text}\x1b[K", bar(done, whole));
}

/// A bar that is as full as `done` of `whole`.
pub fn bar(done: u64, whole: u64) -> String {
    let full = u128::from(done.min(whole)) * WIDTH as u128 / u128::from(whole.max(1));
    let full = usize::try_from(full).unwrap_or(WIDTH);
    "#".repeat(full) + &".".repeat(WIDTH - full)
}

/// Clears the line that [`draw`] wrote.
pub fn wipe() {
    let _ = write!(io::stderr(), "\r\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace() {
        let after = |seconds, done| left(Duration::from_secs(seconds), done, 100);
        assert_eq!(after(60, 25).as_deref(), Some("180.0 s"));
        assert_eq!((after(2, 25), after(60, 0), after(60, 100)), (None, None, None));
    }

    #[test]
    fn a_bar_is_as_full_as_what_is_done() {
        assert_eq!(bar(0, 3_600), ".".repeat(WIDTH));
        assert_eq!(bar(u64::MAX / 2, u64::MAX), "#".repeat(14) + &".".repeat(16));
        assert_eq!(bar(7, 7), "#".repeat(WIDTH));
        // No steps at all, and more done than there were steps.
        assert_eq!((bar(0, 0), bar(9, 7)), (".".repeat(WIDTH), "#".repeat(WIDTH)));
    }
}
