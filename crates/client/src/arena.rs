//! The page that a process and the daemon share: the process writes there what it transferred over the memory bus (seed 003,
//! section 4: the shared arena).
//!
//! `clients/c/commonhold_gang.h` has the same layout for C; a test compares them. The daemon makes the page, and sends its
//! descriptor with the answer to [`Call::Join`](crate::wire::Call::Join).
//!
//! A *sequence lock* protects the numbers of the process: it is odd while they are written. Whatever a process writes there,
//! a reader never blocks, and never reads a torn value.
//!
//! A process that has no counters, and counts nothing itself, sets [`Page::unmeasured`]. Its zero bytes then mean that its
//! transfers are unknown, not that it leaves the bus alone. An older process leaves the word zero, and an older daemon does
//! not read it, so the layout keeps its version.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// [`Page::version`] in a page of this layout.
pub const VERSION: u64 = 1;

/// [`Told::at_ns`] of a process that left.
pub const LEFT: u64 = u64::MAX;

/// How long the page is, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Attempts of a reader before it assumes that the writer is stuck or dead.
const TRIES: usize = 64;

/// The page. All zeros are an empty page.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Page {
    /// [`VERSION`]; the daemon writes it.
    pub version: AtomicU64,
    /// The interval at which the process should write, in nanoseconds; the daemon writes it.
    pub every_ns: AtomicU64,
    /// When the daemon last polled the page, by `CLOCK_MONOTONIC`; the daemon writes it.
    pub looked_at_ns: AtomicU64,
    unused: [u64; 5],
    /// The sequence lock, odd while the numbers below are written; the process writes it, and those.
    pub sequence: AtomicU64,
    /// When `bytes` was read, by `CLOCK_MONOTONIC`.
    pub at_ns: AtomicU64,
    /// Bytes transferred since the process joined.
    pub bytes: AtomicU64,
    /// The thread that writes, which is excluded from the process's work. 0: unknown.
    pub writer: AtomicU64,
    /// Not 0: `bytes` does not measure the process's transfers. The process writes it, within `sequence`.
    pub unmeasured: AtomicU64,
    unused_too: [u64; 3],
}

/// A report of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// When `bytes` was read, by `CLOCK_MONOTONIC`; 0: it has reported nothing yet; [`LEFT`]: it has left.
    pub at_ns: u64,
    /// Bytes that it transferred since it joined.
    pub bytes: u64,
    /// Its transfers are not measured: `bytes` is meaningless.
    pub unmeasured: bool,
}

impl Page {
    /// The process's latest report; `None` while it writes, or if it ended in the middle.
    pub fn told(&self) -> Option<Told> {
        for _ in 0..TRIES {
            let before = self.sequence.load(Ordering::Acquire);
            let told = Told {
                at_ns: self.at_ns.load(Ordering::Relaxed),
                bytes: self.bytes.load(Ordering::Relaxed),
                unmeasured: self.unmeasured.load(Ordering::Relaxed) != 0,
            };
            // The numbers must be read before the sequence is read again.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return Some(told);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Writes a report. A process has one writer.
    pub fn tell(&self, told: Told) {
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        // The numbers must be written after the sequence has become odd.
        fence(Ordering::Release);
        self.at_ns.store(told.at_ns, Ordering::Relaxed);
        self.bytes.store(told.bytes, Ordering::Relaxed);
        self.unmeasured.store(u64::from(told.unmeasured), Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_as_a_whole() {
        let page = Page::default();
        assert_eq!(page.told(), Some(Told::default()), "nothing yet");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=200_000 {
                    page.tell(Told { at_ns: n, bytes: n * 3, unmeasured: n % 2 == 1 });
                }
            });
            let mut last = 0;
            while last < 200_000 {
                let Some(told) = page.told() else { continue };
                let is_whole = told.bytes == told.at_ns * 3 && told.unmeasured == (told.at_ns % 2 == 1);
                assert!(is_whole && told.at_ns >= last, "{told:?} after {last}");
                last = told.at_ns;
            }
        });
    }

    #[test]
    fn who_ended_while_it_wrote_tells_nothing_until_somebody_writes_again() {
        let page = Page::default();
        page.tell(Told { at_ns: 1, bytes: 2, ..Told::default() });
        page.sequence.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(page.told(), None);
        let told = Told { at_ns: 3, bytes: 4, ..Told::default() };
        page.tell(told);
        assert_eq!(page.told(), Some(told));
    }
}
