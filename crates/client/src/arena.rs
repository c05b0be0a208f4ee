//! The arena page that a process and the daemon share. The process writes into it how many bytes it
//! transferred over the memory bus (seed 003, section 4: the shared arena).
//!
//! The daemon makes the page, and sends a descriptor of it with the answer to
//! [`Call::Join`](crate::wire::Call::Join). `clients/c/commonhold_gang.h` declares the layout for C; a test
//! compares it with this one.
//!
//! A *sequence lock* protects the numbers that the process writes: [`Page::sequence`] is odd while the
//! process writes them. So the daemon never blocks, and never takes a half-written report for a whole one,
//! even if the process ends while it writes.
//!
//! A process that neither has hardware counters nor counts its transfers itself sets [`Page::unmeasured`].
//! Its 0 bytes then mean that its transfers are unknown, and not that it leaves the bus alone. Processes of
//! an older version leave this field 0, and daemons of an older version do not read it. So the field needed
//! no new version of the layout.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// [`Page::version`] in a page of this layout.
pub const VERSION: u64 = 1;

/// The value of [`Told::at_ns`] for a process that has left.
pub const LEFT: u64 = u64::MAX;

/// The length of the page, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The number of attempts after which a reader assumes that the writer is stuck or dead.
const TRIES: usize = 64;

/// The page. A page of zeros is valid, and empty.
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
    /// The sequence lock: odd while the process writes the fields below. The process writes it, and all
    /// fields below.
    pub sequence: AtomicU64,
    /// When `bytes` was read, by `CLOCK_MONOTONIC`.
    pub at_ns: AtomicU64,
    /// Bytes transferred since the process joined.
    pub bytes: AtomicU64,
    /// The number of the thread that writes the page, which does none of the process's work; 0 if it is
    /// unknown.
    pub writer: AtomicU64,
    /// If this is not 0, the process's transfers are unknown, and `bytes` does not measure them.
    pub unmeasured: AtomicU64,
    unused_too: [u64; 3],
}

/// A report of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// When `bytes` was read, by `CLOCK_MONOTONIC`. 0 means that the process has reported nothing yet,
    /// [`LEFT`] that it has left.
    pub at_ns: u64,
    /// Bytes transferred since the process joined.
    pub bytes: u64,
    /// Whether the process's transfers are unknown: `bytes` is then meaningless.
    pub unmeasured: bool,
}

impl Page {
    /// The process's latest report; `None` while the process writes a report, or if it ended while it wrote
    /// one.
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

    /// Writes a report. Only one thread of a process may call this at a time.
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
    fn a_report_is_never_read_torn() {
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
    fn a_report_that_was_cut_short_is_not_read_until_the_next_is_written() {
        let page = Page::default();
        page.tell(Told { at_ns: 1, bytes: 2, ..Told::default() });
        page.sequence.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(page.told(), None);
        let told = Told { at_ns: 3, bytes: 4, ..Told::default() };
        page.tell(told);
        assert_eq!(page.told(), Some(told));
    }
}
