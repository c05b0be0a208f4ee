//! Whether the processor's own counters can be read. `perf_event_open(2)` opens one counter, which is closed again at
//! once.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The first version of the kernel's `struct perf_event_attr`, 64 bytes, which every kernel accepts
/// (`include/uapi/linux/perf_event.h`, `PERF_ATTR_SIZE_VER0`). The C library has no definition of it.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const SIZE: u32 = 64;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);

/// `PERF_TYPE_HARDWARE`: the processor's generic events.
const HARDWARE: u32 = 0;

/// `PERF_COUNT_HW_CACHE_MISSES`: what last-level caches fetch over the bus.
const CACHE_MISSES: u64 = 3;

/// Bits of `flags`: not started; not counting in the kernel or a hypervisor, which ordinary users may not watch.
const DISABLED_USER_ONLY: u64 = 1 | 1 << 5 | 1 << 6;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// Whether this process may count its own cache misses. Errors are the kernel's: `ENOENT` when the processor, or the
/// virtual machine, has no counters, `EACCES` when kernel.`perf_event_paranoid` forbids it.
pub(crate) fn count_cache_misses() -> io::Result<()> {
    let attributes = Attributes {
        kind: HARDWARE,
        size: SIZE,
        config: CACHE_MISSES,
        flags: DISABLED_USER_ONLY,
        ..Attributes::default()
    };
    let (this_process, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: the kernel reads `size` bytes from `attributes`, which is that large (asserted above), and keeps no
    // reference to them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            this_process,
            any_cpu,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel just returned this descriptor to us, and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
