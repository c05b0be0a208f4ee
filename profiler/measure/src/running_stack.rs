//! Samples the registers and the stack of a running thread.
//!
//! Problem: the registers of a thread on a CPU cannot be read from outside, and stopping it would disturb the
//! measurement.
//!
//! Algorithm: a perf event on the thread's task clock (`perf_event_open(2)`, `PERF_COUNT_SW_TASK_CLOCK`)
//! takes one sample after [`PERIOD_NS`] of CPU time, and is disabled then. The thread is neither stopped nor
//! signalled.
//!
//! Limits: x86-64 only. No sample is taken while the thread is in the kernel. It needs
//! `kernel.perf_event_paranoid` of 2 or less, and a container that allows the call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

use commonhold_live::host::perf::{self, Attributes, DISABLED_USER_ONLY};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A sample of a running thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StackSample {
    /// Instruction pointer, stack pointer and frame pointer.
    pub(crate) at: u64,
    pub(crate) stack: u64,
    pub(crate) frame: u64,
    /// The stack, from the stack pointer on.
    pub(crate) bytes: Vec<u8>,
}

const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
/// The CPU time until the sample. The kernel's minimum is 10 us.
const PERIOD_NS: u64 = 20_000;
/// `PERF_SAMPLE_REGS_USER`, `PERF_SAMPLE_STACK_USER`.
const SAMPLES: u64 = 1 << 12 | 1 << 13;
/// The registers of x86 to sample: frame pointer, stack pointer, instruction pointer, in this order.
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
const STACK_BYTES: u32 = 8192;
/// `PERF_EVENT_IOC_REFRESH`: enables the event for a number of samples.
const REFRESH: libc::c_ulong = 0x2402;
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

const PAGE: usize = 4096;
/// The control page, and a power of two of data pages.
const PAGES: usize = 1 + 4;
/// Offset of `data_head` in the control page.
const HEAD: usize = 1024;
/// How long to wait for the sample. The thread may have to wait for a CPU first.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 12_000_000 };

/// Samples a thread; `None` if it did not run in user mode within [`PATIENCE`].
pub(crate) fn sample(tid: u32) -> io::Result<Option<StackSample>> {
    if !cfg!(target_arch = "x86_64") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let clock = open(tid)?;
    let ring = Ring::of(&clock)?;
    // SAFETY: the call takes a number, and no memory.
    if unsafe { libc::ioctl(clock.as_raw_fd(), REFRESH as _, 1) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut waits = [PollFd::from_borrowed_fd(clock.as_fd(), PollFlags::IN)];
    match poll(&mut waits, Some(&PATIENCE)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    drop(clock);
    Ok(parse(&ring.records()))
}

fn open(tid: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: SOFTWARE,
        config: TASK_CLOCK,
        sample_period: PERIOD_NS,
        sample_type: SAMPLES,
        flags: DISABLED_USER_ONLY,
        wakeup_events: 1,
        sample_regs_user: REGISTERS,
        sample_stack_user: STACK_BYTES,
        ..Attributes::default()
    };
    perf::open(&attributes, tid)
}

/// The ring buffer that the kernel writes samples to.
struct Ring(*mut u64);

impl Ring {
    fn of(clock: &OwnedFd) -> io::Result<Ring> {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGES * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                clock.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Ring(at.cast())) }
    }

    /// The records written so far.
    fn records(&self) -> Vec<u8> {
        // SAFETY: both are within the mapping of `PAGES` pages, which lives as long as `self`. The kernel
        // moves the head after it has written, and writes nothing after the one sample that it was asked for.
        unsafe {
            let head = ptr::read_volatile(self.0.byte_add(HEAD));
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            let written = usize::try_from(head).unwrap_or(0).min((PAGES - 1) * PAGE);
            std::slice::from_raw_parts(self.0.byte_add(PAGE).cast::<u8>(), written).to_vec()
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), PAGES * PAGE) };
    }
}

/// Parses the first sample record: header, registers, stack.
fn parse(bytes: &[u8]) -> Option<StackSample> {
    let mut at = 0;
    loop {
        let word = |from: usize| Some(u64::from_ne_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let head = word(at)?;
        let kind = u32::try_from(head & u64::from(u32::MAX)).ok()?;
        let length = usize::try_from(head >> 48).ok().filter(|length| *length >= 8)?;
        if kind != SAMPLE {
            at += length;
            continue;
        }
        (word(at + 8)? == ABI_64).then_some(())?;
        let (frame, stack, code, size) = (word(at + 16)?, word(at + 24)?, word(at + 32)?, word(at + 40)?);
        let size = usize::try_from(size).ok()?;
        // The size of the copy is followed by the bytes, and then by the number of valid bytes.
        let valid = usize::try_from(word(at + 48 + size)?).ok()?.min(size);
        let bytes = bytes.get(at + 48..at + 48 + valid)?.to_vec();
        return Some(StackSample { at: code, stack, frame, bytes });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn records_are_read_as_the_kernel_writes_them() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let head = |kind: u64, length: u64| kind | length << 48;
        // One of another kind before it; 16 bytes asked for, 8 there.
        let bytes = words(&[head(2, 16), 0, head(9, 72), 2, 0xb, 0x5, 0x1, 16, 77, 0, 8]);
        let shot = StackSample { at: 1, stack: 5, frame: 11, bytes: 77u64.to_ne_bytes().to_vec() };
        assert_eq!(parse(&bytes), Some(shot));
        assert_eq!(parse(&bytes[..40]), None);
        assert_eq!(parse(&words(&[head(9, 0)])), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn a_thread_that_runs_is_in_its_code_and_one_that_sleeps_is_not() {
        let stop = AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        let tid = || u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        std::thread::scope(|scope| {
            let tell_asleep = tell.clone();
            scope.spawn(|| {
                tell.send(tid()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let spins = told.recv().unwrap();
            // A loaded machine may not let it run within the patience.
            let shot = (0..200).find_map(|_| sample(spins).transpose());
            stop.store(true, Ordering::Relaxed);
            match shot {
                None => panic!("no sample of a thread that runs in 200 times"),
                Some(Err(error)) => assert!(error.raw_os_error().is_some(), "{error}"),
                Some(Ok(shot)) => {
                    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                    let has = |line: &&str| {
                        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                        let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
                        (hex(start)..hex(end)).contains(&shot.at)
                    };
                    assert!(maps.lines().find(has).unwrap().contains("r-xp"), "{:x}", shot.at);
                    assert!(!shot.bytes.is_empty() && shot.stack != 0);
                    let sleeps = scope.spawn(move || {
                        tell_asleep.send(tid()).unwrap();
                        std::thread::sleep(std::time::Duration::from_millis(100));
                    });
                    let asleep = told.recv().unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    assert_eq!(sample(asleep).unwrap(), None);
                    sleeps.join().unwrap();
                }
            }
        });
    }
}
