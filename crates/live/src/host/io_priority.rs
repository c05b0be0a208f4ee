//! The I/O priority of one thread: a class and, in two classes, a level.
//!
//! Threads and processes inherit the priority of the thread that made them. Only some disk schedulers honour
//! it: BFQ honours classes and levels, mq-deadline only classes, other schedulers neither.
//!
//! Source: `ioprio_set(2)`; block/bfq-iosched.c (`bfq_ioprio_to_weight`).

use std::fmt;
use std::io;

use super::tamper::{About, Answer, Kind, ask, has_hook};

/// The position of the class in a priority, and the classes, from linux/ioprio.h.
const CLASS_SHIFT: u16 = 13;
const NONE: u16 = 0;
const REAL_TIME: u16 = 1;
const BEST_EFFORT: u16 = 2;
const IDLE: u16 = 3;
/// `IOPRIO_WHO_PROCESS`, which selects one thread.
const WHO_PROCESS: libc::c_int = 1;

/// Levels of the best-effort class; 0 is served first.
pub const LEVELS: u16 = 8;

/// A class and a level, as the kernel writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoPriority(u16);

impl IoPriority {
    /// No priority is set: the kernel derives it from the nice value.
    pub const UNSET: IoPriority = IoPriority(NONE);

    /// The best-effort class; `level` is clamped to less than [`LEVELS`].
    pub fn best_effort(level: u16) -> IoPriority {
        IoPriority(BEST_EFFORT << CLASS_SHIFT | level.min(LEVELS - 1))
    }

    /// From the kernel's number.
    pub fn from_number(number: u16) -> IoPriority {
        // Without a class, the level is meaningless, and cannot be set.
        if number >> CLASS_SHIFT == NONE { IoPriority::UNSET } else { IoPriority(number) }
    }

    /// The kernel's number.
    pub fn number(self) -> u16 {
        self.0
    }

    fn class(self) -> u16 {
        self.0 >> CLASS_SHIFT
    }

    /// The priority to set for a thread if this program orders `self` and the thread's owner chose `own`: the
    /// weaker of both. If the owner chose no priority, or the real-time class, the order counts.
    #[must_use]
    pub fn within(self, own: IoPriority) -> IoPriority {
        match own.class() {
            BEST_EFFORT | IDLE => self.max(own),
            _ => self,
        }
    }
}

impl fmt::Display for IoPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.0 & ((1 << CLASS_SHIFT) - 1);
        match self.class() {
            REAL_TIME => write!(f, "real-time {level}"),
            BEST_EFFORT => write!(f, "best-effort {level}"),
            IDLE => f.write_str("idle"),
            _ => f.write_str("none"),
        }
    }
}

/// The priority of a thread; 0 is the calling one. Errors are the kernel's: `ESRCH` if the thread has ended.
pub fn get(tid: u32) -> io::Result<IoPriority> {
    match ask(Kind::IoPriority, About::Process(tid), []) {
        Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(errno)),
        Answer::Falsify(number) => {
            let number = String::from_utf8_lossy(&number).trim().parse().map_err(io::Error::other)?;
            return Ok(IoPriority::from_number(number));
        }
        _ => {}
    }
    // SAFETY: the call takes and returns only numbers.
    let number = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(IoPriority::from_number(u16::try_from(number).unwrap_or(NONE)))
}

/// Sets the priority of a thread; 0 is the calling one. Errors are the kernel's: `ESRCH` if the thread has
/// ended, `EPERM` if it is another user's.
pub fn set(tid: u32, priority: IoPriority) -> io::Result<()> {
    if has_hook() {
        ask(Kind::SetIoPriority, About::Process(tid), priority.0.to_string()).passed()?;
    }
    // SAFETY: the call takes and returns only numbers.
    let status =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid, libc::c_int::from(priority.0)) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// [`set`] with the priority by reference, as [`Pinned::give`](super::Pinned::give) requires.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form of `Pinned::give`, for values of any size")]
pub(crate) fn set_to(tid: u32, priority: &IoPriority) -> io::Result<()> {
    set(tid, *priority)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_set_inherited_and_restored() {
        std::thread::spawn(|| {
            let original = get(0).unwrap();
            set(0, IoPriority::best_effort(6)).unwrap();
            assert_eq!(get(0).unwrap(), IoPriority::best_effort(6));
            let child = std::thread::spawn(|| get(0).unwrap()).join().unwrap();
            assert_eq!(child, IoPriority::best_effort(6), "it is inherited");
            set(0, original).unwrap();
            assert_eq!(get(0).unwrap(), original);
        })
        .join()
        .unwrap();
        assert_eq!(get(0x3fff_ffff).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_weaker_of_ordered_and_owners_priority_counts() {
        let (idle, real_time) = (IoPriority(IDLE << CLASS_SHIFT), IoPriority(REAL_TIME << CLASS_SHIFT | 2));
        let level = IoPriority::best_effort;
        for (ordered, own, given) in [
            (level(3), IoPriority::UNSET, level(3)),
            (level(3), level(5), level(5)),
            (level(3), level(1), level(3)),
            (level(3), idle, idle),
            (level(3), real_time, level(3)),
        ] {
            assert_eq!(ordered.within(own), given, "{ordered} and {own}");
        }
        let shown = [level(3), idle, real_time, IoPriority::UNSET].map(|priority| priority.to_string());
        assert_eq!(shown, ["best-effort 3", "idle", "real-time 2", "none"]);
        assert_eq!(IoPriority::from_number(4), IoPriority::UNSET, "a level without a class");
    }
}
