//! The scheduler's tables as Rust sees them: the mirror of `intf.h` and `native/world.h`.

/// No unit, and no CPU.
pub const NOBODY: u32 = u32::MAX;
/// The unit of the kernel's own threads: runs anywhere, at once.
pub const KERNEL: u32 = 0;
/// Units that a machine can have.
pub const UNITS_MAX: u32 = 1024;
/// CPU numbers are below this.
pub const CPUS_MAX: u32 = 4096;

/// How a lent CPU is called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Recall {
    /// The borrower is interrupted.
    Now = 0,
    /// At the next tick.
    Tick = 1,
}

/// Its idle home CPUs may run tasks of other units.
pub const LENDS: u32 = 1;
/// Its tasks may run on CPUs that others lend.
pub const BORROWS: u32 = 2;

/// What holds for the whole machine.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rules {
    pub(crate) slice_ns: u64,
    pub(crate) units: u32,
    pub(crate) cpus: u32,
    pub(crate) pool: u32,
    pub(crate) recall: u32,
}

/// One unit.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Unit {
    pub(crate) vtime: u64,
    pub(crate) pass: u64,
    /// CPU time of its tasks, in ns.
    pub used_ns: u64,
    /// CPU time of others on its home CPUs, in ns.
    pub lent_ns: u64,
    /// CPU time of its tasks on others' home CPUs, in ns.
    pub borrowed_ns: u64,
    /// CPUs called back.
    pub recalls: u64,
    /// From the call to the first task of its own that ran there, summed, in ns.
    pub recall_ns: u64,
    /// The longest of them.
    pub recall_ns_max: u64,
    /// Its part of time-shared CPUs, 1 to 10,000.
    pub weight: u32,
    /// [`LENDS`] and [`BORROWS`].
    pub flags: u32,
    pub(crate) away: u32,
    pub(crate) busy: u32,
}

/// One CPU.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Cpu {
    pub(crate) since: u64,
    pub(crate) recalled: u64,
    pub(crate) owned: u64,
    pub(crate) home: u32,
    pub(crate) runs: u32,
}

/// What the scheduler keeps of a task.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Own {
    pub(crate) vtime: u64,
    pub(crate) unit: u32,
    unused: u32,
}

/// The kernel's side of a task.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Task {
    pub(crate) slice: u64,
    pub(crate) flags: u32,
    pub(crate) weight: u32,
    pub(crate) own: Own,
    pub(crate) id: u32,
    pub(crate) cpu: u32,
    pub(crate) nr_cpus_allowed: i32,
    unused: u32,
    pub(crate) allowed: *const u64,
}

impl Task {
    pub(crate) fn new(id: u32, unit: u32, cpus: u32) -> Self {
        Task {
            slice: 0,
            flags: 0,
            weight: 100,
            own: Own { unit, ..Own::default() },
            id,
            cpu: 0,
            nr_cpus_allowed: i32::try_from(cpus).unwrap_or(i32::MAX),
            unused: 0,
            allowed: core::ptr::null(),
        }
    }
}

/// One simulated machine's tables.
#[repr(C)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) now: u64,
    pub(crate) pass: u64,
    pub(crate) units: *mut Unit,
    pub(crate) cpus: *mut Cpu,
    pub(crate) idle: *mut u64,
    pub(crate) masks: *mut u64,
    pub(crate) queued: *mut u32,
    pub(crate) words: u32,
    pub(crate) idling: u32,
}

/// The argument of `dispatch_own`.
#[repr(C)]
pub(crate) struct Owned {
    pub(crate) cpu: u32,
    pub(crate) unit: u32,
}

const _: () = assert!(size_of::<Rules>() == 24);
const _: () = assert!(size_of::<Unit>() == 80);
const _: () = assert!(size_of::<Cpu>() == 32);
const _: () = assert!(size_of::<Own>() == 16);
const _: () = assert!(size_of::<Task>() == 56);
const _: () = assert!(size_of::<World>() == 88);
