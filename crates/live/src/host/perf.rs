//! Hardware counters (`perf_event_open(2)`): whether they are available, and counts of the events of threads.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use super::tamper::{About, Kind, pass};

/// The kernel's `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER3`, which kernels accept since Linux 3.7
/// (`include/uapi/linux/perf_event.h`). The C library does not define this structure.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of the kernel's header")]
pub struct Attributes {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub breakpoint_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock_id: i32,
}

const SIZE: u32 = 96;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);

/// `PERF_TYPE_HARDWARE`: the processor's generic events.
const HARDWARE: u32 = 0;

/// `PERF_COUNT_HW_CACHE_MISSES`: lines that last-level caches fetch over the bus.
const CACHE_MISSES: u64 = 3;

/// Bits of `flags`: disabled at first; excluding the kernel and hypervisors, which ordinary users may not
/// observe.
pub const DISABLED_USER_ONLY: u64 = 1 | 1 << 5 | 1 << 6;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// Bits of `flags`: including threads started later, but not other processes (since Linux 5.13); excluding
/// the kernel and hypervisors.
const INHERIT_THREADS_USER_ONLY: u64 = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 35;

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
    /// Page faults, which every machine counts: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`.
    #[cfg(test)]
    pub(crate) const FAULTS: Event = Event { kind: 1, config: 2 };
}

/// A counter for the events of a thread, and of threads that it starts later, in user mode.
#[derive(Debug)]
pub(crate) struct OfThread(OwnedFd);

impl OfThread {
    /// Starts counting. Errors are the kernel's: `ENOENT` if the processor has no such counter, `EINVAL` if
    /// the kernel is too old, `EACCES` if this user may not count, `ESRCH` if the thread has ended.
    pub(crate) fn open(event: Event, tid: u32) -> io::Result<OfThread> {
        pass(Kind::Open, About::Process(tid))?;
        let flags = INHERIT_THREADS_USER_ONLY;
        let Event { kind, config } = event;
        open(&Attributes { kind, config, flags, read_format: TIMES, ..Attributes::default() }, tid)
            .map(OfThread)
    }

    /// The count, extrapolated to the time for which the counter was enabled, since counters share the
    /// hardware by turns. `None` if the counter never ran, because its thread slept or no hardware counter
    /// was free: the count is then unknown, and not 0.
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
    let product = u128::from(count) * u128::from(enabled_ns);
    Some(u64::try_from(product.checked_div(u128::from(running_ns))?).unwrap_or(u64::MAX))
}

/// Checks that this process may count its own events of this kind. Errors are the kernel's: `ENOENT` if the
/// processor or the virtual machine has no counter for it, `EACCES` if `kernel.perf_event_paranoid` forbids
/// it.
pub(crate) fn counts_own(event: Event) -> io::Result<()> {
    let Event { kind, config } = event;
    let attributes = Attributes { kind, config, flags: DISABLED_USER_ONLY, ..Attributes::default() };
    open(&attributes, 0).map(drop)
}

/// Opens a counter for a process or thread, on any CPU; 0 is the calling thread.
pub fn open(attributes: &Attributes, pid: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes { size: SIZE, ..*attributes };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let (any_cpu, no_group) = (-1, -1);
    // SAFETY: the kernel reads `size` bytes from `attributes`, which is that large (asserted above), and
    // keeps no reference to them.
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

    #[test]
    fn counts_are_scaled_to_the_time_enabled() {
        assert_eq!((scaled(10, 300, 100), scaled(10, 100, 100)), (Some(30), Some(10)));
        assert_eq!((scaled(0, 100, 0), scaled(0, 100, 100)), (None, Some(0)), "no count is not a count of 0");
    }
}
