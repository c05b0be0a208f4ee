//! The backend's clock, the wall clock, and the CPU clocks of processes and threads.

use std::{fs, io};

use commonhold_policy::Time;

/// The machine's monotonic clock in nanoseconds: setting the time of day does not change it, and it stops
/// while the machine is suspended.
pub fn now() -> Time {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Converts a process's start, in clock ticks since boot, to the clock of [`now`]: the middle of that tick.
/// Ticks also count the time during which the machine was suspended, which is subtracted.
pub fn of_ticks(ticks: u64) -> Time {
    const TICK_NS: u64 = 10_000_000; // USER_HZ is 100 on every architecture that Linux still supports.
    let suspended = read(libc::CLOCK_BOOTTIME).unwrap_or(0).saturating_sub(now());
    ticks.saturating_mul(TICK_NS).saturating_add(TICK_NS / 2).saturating_sub(suspended)
}

/// Time since the machine booted in nanoseconds, including the time for which it was suspended.
pub fn since_boot() -> Time {
    read(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

/// Identifies this boot: a part of the kernel's identifier; 0 if that cannot be read.
pub fn boot() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Wall-clock time, in milliseconds since 1970. It may jump.
pub fn wall_ms() -> u64 {
    read(libc::CLOCK_REALTIME).unwrap_or(0) / 1_000_000
}

/// CPU time that this thread has used since its start, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// CPU time that a process has used since its start, in nanoseconds, including that of its ended threads.
/// `None` if there is no process with this pid. Any user may read the clock of any process
/// (kernel/time/posix-cpu-timers.c).
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let pid = libc::clockid_t::try_from(pid).ok()?;
    // CPUCLOCK_SCHED (2) in the low bits selects exact scheduler time instead of sampled ticks.
    read((!pid << 3) | 2).ok()
}

fn read(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the kernel to write one timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Ok(seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        let (time, thread, cpu) = (now(), thread_cpu_ns(), process_cpu_ns(std::process::id()).unwrap());
        let sum: u64 = (0..2_000_000).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        assert!(std::hint::black_box(sum) < u64::MAX);
        assert!(
            now() > time && thread_cpu_ns() > thread && process_cpu_ns(std::process::id()).unwrap() > cpu
        );
    }

    #[test]
    fn a_boot_has_a_number() {
        assert!(boot() != 0 && boot() == boot());
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_clock() {
        assert_eq!(process_cpu_ns(u32::MAX), None);
        // Far above any pid_max.
        assert_eq!(process_cpu_ns(0x0fff_ffff), None);
    }
}
