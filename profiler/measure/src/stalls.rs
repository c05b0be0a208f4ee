//! Counts the CPU cycles of a program, and those that were stalled, mostly on memory (`perf_event_open(2)`).

use std::io;
use std::os::fd::OwnedFd;

use commonhold_live::host::perf::{Attributes, open};

/// `PERF_TYPE_HARDWARE`: the processor's generic events.
const HARDWARE: u32 = 0;
/// `PERF_COUNT_HW_CPU_CYCLES`, and `PERF_COUNT_HW_STALLED_CYCLES_BACKEND`: cycles in which no instruction
/// could complete.
const CYCLES: u64 = 0;
const STALLED: u64 = 8;

/// Bits of `flags`: inherited by threads and processes started later; user mode only.
const INHERIT_USER_ONLY: u64 = 1 << 1 | 1 << 5 | 1 << 6;

/// Counts cycles and stalled cycles of a program in user mode.
#[derive(Debug)]
pub(crate) struct Stalls {
    cycles: OwnedFd,
    stalled: OwnedFd,
}

impl Stalls {
    /// Starts counting for a process that has just started; 0 is the calling thread. Errors are the kernel's:
    /// `ENOENT` if the processor or virtual machine has no such counter, `EACCES` if
    /// `kernel.perf_event_paranoid` forbids it.
    pub(crate) fn of(pid: u32) -> io::Result<Stalls> {
        Ok(Stalls { cycles: count(HARDWARE, CYCLES, pid)?, stalled: count(HARDWARE, STALLED, pid)? })
    }

    /// Stalled cycles and all cycles.
    pub(crate) fn read(&self) -> io::Result<(u64, u64)> {
        Ok((value(&self.stalled)?, value(&self.cycles)?))
    }
}

/// Opens a running counter.
fn count(kind: u32, config: u64, pid: u32) -> io::Result<OwnedFd> {
    open(&Attributes { kind, config, flags: INHERIT_USER_ONLY, ..Attributes::default() }, pid)
}

/// The value of a counter.
fn value(counter: &OwnedFd) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::io::read(counter, &mut bytes)?;
    if read == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Uses `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`, which every machine has.
    #[test]
    fn a_counter_has_what_threads_that_are_started_later_did() {
        let faults = match count(1, 2, 0) {
            Ok(faults) => faults,
            Err(error) => {
                // A sandbox may forbid them all.
                assert!(
                    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)),
                    "{error}"
                );
                return;
            }
        };
        let before = value(&faults).unwrap();
        let touch = || std::hint::black_box(vec![1u8; 8 << 20]).len();
        assert_eq!(std::thread::spawn(touch).join().unwrap(), 8 << 20);
        assert!(value(&faults).unwrap() > before, "{before}");
    }

    #[test]
    fn counters_that_are_not_there_are_an_answer() {
        match Stalls::of(0) {
            Ok(stalls) => {
                let (stalled, cycles) = stalls.read().unwrap();
                assert!(stalled <= cycles.saturating_mul(2), "{stalled} of {cycles}");
            }
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
