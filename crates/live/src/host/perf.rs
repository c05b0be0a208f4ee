//! Hardware counters (`perf_event_open(2)`): whether they are available, events of threads, and the part of a program's CPU time
//! during which the processor stalled.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use super::tamper::{About, Kind, pass};

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER3`, which kernels accept since Linux 3.7
/// (`include/uapi/linux/perf_event.h`). The C library does not define it.
#[repr(C)]
#[derive(Default)]
pub(super) struct Attributes {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    pub(super) sample_period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup_events: u32,
    pub(super) breakpoint_type: u32,
    pub(super) config1: u64,
    pub(super) config2: u64,
    pub(super) branch_sample_type: u64,
    pub(super) sample_regs_user: u64,
    pub(super) sample_stack_user: u32,
    pub(super) clock_id: i32,
}

const SIZE: u32 = 96;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);

/// `PERF_TYPE_HARDWARE`: the processor's generic events.
const HARDWARE: u32 = 0;

/// `PERF_COUNT_HW_CACHE_MISSES`: lines that last-level caches fetch over the bus.
const CACHE_MISSES: u64 = 3;

/// `PERF_COUNT_HW_INSTRUCTIONS`.
const INSTRUCTIONS: u64 = 1;

/// Bits of `flags`: disabled at first; excluding the kernel and hypervisors, which ordinary users may not observe.
pub(super) const DISABLED_USER_ONLY: u64 = 1 | 1 << 5 | 1 << 6;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// `PERF_COUNT_HW_CPU_CYCLES`, and `PERF_COUNT_HW_STALLED_CYCLES_BACKEND`: cycles in which no instruction could complete, mostly
/// waiting for memory.
const CYCLES: u64 = 0;
const STALLED: u64 = 8;

/// Bits of `flags`: including threads and processes started later; excluding the kernel and hypervisors.
const INHERIT_USER_ONLY: u64 = 1 << 1 | 1 << 5 | 1 << 6;

/// Counts stalled cycles and all cycles of a program, outside the kernel.
#[derive(Debug)]
pub(crate) struct Stalls {
    cycles: OwnedFd,
    stalled: OwnedFd,
}

impl Stalls {
    /// Starts counting for a process that has just started; 0 is the calling thread. Errors are the kernel's: `ENOENT` if the
    /// processor or the virtual machine has no such counter, `EACCES` if `kernel.perf_event_paranoid` forbids it.
    pub(crate) fn of(pid: u32) -> io::Result<Stalls> {
        Ok(Stalls { cycles: count(HARDWARE, CYCLES, pid)?, stalled: count(HARDWARE, STALLED, pid)? })
    }

    /// Stalled cycles, and all cycles.
    pub(crate) fn read(&self) -> io::Result<(u64, u64)> {
        Ok((value(&self.stalled)?, value(&self.cycles)?))
    }
}

/// Bits of `flags`: including threads started later, but not other processes (since Linux 5.13); excluding the kernel and
/// hypervisors.
const INHERIT_THREADS_USER_ONLY: u64 = INHERIT_USER_ONLY | 1 << 35;

/// Bits of `read_format`: the time enabled and the time running, which differ if counters share the hardware.
const TIMES: u64 = 1 | 1 << 1;

/// An event to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    kind: u32,
    config: u64,
}

impl Event {
    /// Lines that last-level caches fetch over the bus.
    pub(crate) const MISSES: Event = Event { kind: HARDWARE, config: CACHE_MISSES };
    /// Retired instructions: `PERF_COUNT_HW_INSTRUCTIONS`.
    pub(crate) const INSTRUCTIONS: Event = Event { kind: HARDWARE, config: INSTRUCTIONS };
    /// Page faults, which every machine counts: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`.
    #[cfg(test)]
    pub(crate) const FAULTS: Event = Event { kind: 1, config: 2 };
}

/// Counts events of a thread and of threads that it starts later, outside the kernel.
#[derive(Debug)]
pub(crate) struct OfThread(OwnedFd);

impl OfThread {
    /// Starts counting. Errors are the kernel's: `ENOENT` if the processor has no such counter, `EINVAL` if the kernel is too
    /// old, `EACCES` if this user may not count, `ESRCH` if the thread has ended.
    pub(crate) fn open(event: Event, tid: u32) -> io::Result<OfThread> {
        pass(Kind::Open, About::Process(tid))?;
        let flags = INHERIT_THREADS_USER_ONLY;
        let Event { kind, config } = event;
        open(&Attributes { kind, config, flags, read_format: TIMES, ..Attributes::default() }, tid)
            .map(OfThread)
    }

    /// The count, scaled to the time for which the counter was enabled. `None` if the counter never ran, because its thread slept
    /// or no hardware counter was free: the count is then unknown, and not 0.
    pub(crate) fn read(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 24];
        if rustix::io::read(&self.0, &mut bytes)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Ok(scaled(number(0), number(8), number(16)))
    }
}

/// Extrapolates a count from the time running to the time enabled; `None` if the counter never ran.
fn scaled(count: u64, enabled_ns: u64, running_ns: u64) -> Option<u64> {
    let whole = u128::from(count) * u128::from(enabled_ns);
    Some(u64::try_from(whole.checked_div(u128::from(running_ns))?).unwrap_or(u64::MAX))
}

/// Opens an enabled counter for a program.
fn count(kind: u32, config: u64, pid: u32) -> io::Result<OwnedFd> {
    pass(Kind::Open, About::Process(pid))?;
    open(&Attributes { kind, config, flags: INHERIT_USER_ONLY, ..Attributes::default() }, pid)
}

/// The value of a counter.
fn value(counter: &OwnedFd) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::io::read(counter, &mut bytes)?;
    if read == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Checks that this process may count its own events of this kind. Errors are the kernel's: `ENOENT` if the processor or the
/// virtual machine has no counter for it, `EACCES` if `kernel.perf_event_paranoid` forbids it.
pub(crate) fn counts_own(event: Event) -> io::Result<()> {
    let Event { kind, config } = event;
    let attributes = Attributes { kind, config, flags: DISABLED_USER_ONLY, ..Attributes::default() };
    open(&attributes, 0).map(drop)
}

/// Opens a counter for a process or thread, on any CPU; 0 is the calling thread.
pub(super) fn open(attributes: &Attributes, pid: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes { size: SIZE, ..*attributes };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let (any_cpu, no_group) = (-1, -1);
    // SAFETY: the kernel reads `size` bytes from `attributes`, which is that large (asserted above), and keeps no
    // reference to them.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, any_cpu, no_group, CLOSE_ON_EXEC)
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// With a counter that every machine has: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`.
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
    fn counts_are_scaled_to_the_time_enabled() {
        assert_eq!((scaled(10, 300, 100), scaled(10, 100, 100)), (Some(30), Some(10)));
        assert_eq!((scaled(0, 100, 0), scaled(0, 100, 100)), (None, Some(0)), "no count is not a count of 0");
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
