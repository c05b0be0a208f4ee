//! Bounds of the values in a machine and a workload. They ensure that no sum of virtual times overflows, and
//! that a typing error is reported rather than simulated for days.

use crate::Time;

/// Bytes of a disk's sector.
pub const SECTOR: u64 = 512;

const HOUR_NS: Time = 3_600_000_000_000;

/// The longest simulation: ten years. Virtual times stay below a fiftieth of what 64 bits hold.
pub(crate) const HORIZON_MAX_NS: Time = 10 * 365 * 24 * HOUR_NS;

/// The longest single step: a year. An exponential draw is below 45 times its mean (53 bits of randomness
/// make 2^-53 the smallest probability, whose logarithm is -37), so that a step that begins at the horizon
/// still ends within 64 bits.
pub(crate) const STEP_MAX_NS: Time = 365 * 24 * HOUR_NS;

const _: () = assert!(HORIZON_MAX_NS as u128 + 45 * STEP_MAX_NS as u128 <= u64::MAX as u128);

/// The longest time of a key in `[kernel]`: an hour.
pub(crate) const KERNEL_MAX_NS: Time = HOUR_NS;

/// The shortest clock tick and the shortest slice: each costs the simulator an event.
pub(crate) const TICK_MIN_NS: Time = 10_000;

/// The highest latency of local memory: a millisecond.
pub(crate) const LATENCY_MAX_NS: Time = 1_000_000;

/// The distance of a node from itself in the firmware's tables (ACPI SLIT, Linux's `LOCAL_DISTANCE`).
pub(crate) const DISTANCE_LOCAL: u64 = 10;

/// The largest distance in the firmware's tables; 255 means unreachable.
pub(crate) const DISTANCE_MAX: u64 = 254;

/// The longest time of a disk access: a minute.
pub(crate) const ACCESS_MAX_NS: Time = 60_000_000_000;

/// The largest file, disk or memory: 1 PiB. A thousand of them still add up within 64 bits.
pub(crate) const BYTES_MAX: u64 = 1 << 50;

/// The smallest disk: a MiB.
pub(crate) const DISK_BYTES_MIN: u64 = 1 << 20;

/// The smallest page frame: a sector, so that a page is whole sectors.
pub(crate) const FRAME_MIN: u64 = SECTOR;

/// The largest page frame: a GiB.
pub(crate) const FRAME_MAX: u64 = 1 << 30;

/// The slowest transfer rate of a disk, in bytes per second: half a second per sector.
pub(crate) const RATE_MIN: u64 = 1000;

/// The fastest transfer rate of a disk, in bytes per second: 8 ns per sector, which is rounded to within 6 %.
pub(crate) const RATE_MAX: u64 = 64_000_000_000;

/// The part of a disk that its files may take, in fifths. The rest is swap space.
pub(crate) const FILE_FIFTHS: u64 = 4;

/// The most copies of a job, and the most processes that one step runs at once.
pub(crate) const COUNT_MAX: u64 = 1_000_000;

/// The most runs of one step, and the most iterations of a loop.
pub(crate) const TIMES_MAX: u64 = 1_000_000_000;

/// The most tasks that may live at the same time.
pub const TASKS_MAX: u64 = 1_000_000;

/// The most disks: they are numbered in 16 bits, and each has tables of its own.
pub(crate) const DISKS_MAX: usize = 4096;

/// The most files: each program keeps the set of files that it uses, directly or through programs that it
/// runs.
pub(crate) const FILES_MAX: usize = 4096;

/// The most locks: each program keeps the set of locks that it takes, directly or through programs that it
/// runs.
pub(crate) const LOCKS_MAX: usize = 1024;

/// The most events, and the most timers.
pub(crate) const EVENTS_MAX: usize = 4096;

/// The shortest period of a timer.
pub(crate) const PERIOD_MIN_NS: Time = 1_000;

/// The most programs.
pub(crate) const PROGRAMS_MAX: usize = 1024;

/// The most jobs.
pub(crate) const JOBS_MAX: usize = 65_536;

/// The most changes of rights, and the most offers.
pub(crate) const CHANGES_MAX: usize = 65_536;

/// The deepest nesting of `do` lists, loops and locks together.
pub(crate) const NESTING_MAX: usize = 32;

/// The longest name, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 64;
