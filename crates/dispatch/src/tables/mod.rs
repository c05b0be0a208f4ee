//! The scheduler's tables: what Rust and C share. The daemon and the scheduler share them through the kernel's maps, the
//! simulator and the scheduler through memory.
//!
//! For example, [`Unit`] is `struct dispatch_unit` in C, [`Recall::Now`] is `DISPATCH_RECALL_NOW`, and [`UNITS_MAX`] is
//! `DISPATCH_UNITS_MAX`. This is the one description of all of them. `build.rs` makes the header `tables.h` of it, which
//! `intf.h` includes, and has the list of the types' names in C. A comment here is the header's, too.
//!
//! `1024_u32` is unsigned in C as well; without its type it would be an `int` there.

// A constant that is not `pub` is left out of the header.
#![allow(unreachable_pub)]

mod begin;
pub(crate) mod exec;
#[cfg(feature = "kernel")]
pub(crate) mod kernel;
pub(crate) mod native;
mod sums;

pub use begin::Near;
pub use sums::CallBacks;

/// No unit, no CPU, no group of CPUs.
pub const NOBODY: u32 = u32::MAX;
/// The unit of the kernel's own threads: runs anywhere, at once.
pub const KERNEL: u32 = 0_u32;
/// The unit of tasks that belong to no other.
pub const COMMON: u32 = 1_u32;
/// Units that a machine can have.
pub const UNITS_MAX: u32 = 1024_u32;
/// CPU numbers are below this.
pub const CPUS_MAX: u32 = 4096_u32;
/// Levels of units within units.
pub const DEPTH_MAX: u32 = 20_u32;
/// Units in a block of those that are counted together.
pub const WAITS_BLOCK: u32 = 32_u32;
/// Classes of latencies: below 1.024 us, 2.048 us, and so on, doubling; the last has no end.
pub const LATENCIES: usize = 24;
/// Gangs that can be told apart; a power of two: see `gates.h`.
pub const GANGS_MAX: u32 = 4096_u32;
/// Classes of sub-units: see `discipline/classes.h`.
pub const RANKS: usize = 4;
/// Times in which a higher class had a CPU: see [`Cpu`]; a power of two.
pub const STRETCHES: usize = 8;

/// How a lent CPU is called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Recall {
    /// The borrower is interrupted.
    Now,
    /// At the next tick, within 10 ms.
    Tick,
}

/// A unit's idle home CPUs may run tasks of other units.
pub const LENDS: u32 = 1_u32;
/// A unit's tasks may run on CPUs that others lend.
pub const BORROWS: u32 = 2_u32;
/// Of [`COMMON`] alone: every CPU runs its tasks in turns with its owner's.
pub const ANYWHERE: u32 = 4_u32;

/// A unit's tasks may have seats: see `seats.h`.
pub const SEATS: u32 = 8_u32;

/// Who of a unit's own tasks and sub-units is next: see `discipline/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub enum Discipline {
    /// Least CPU time for its weight.
    #[default]
    Stride,
    /// At random, by weight.
    Lottery,
    /// Least decayed usage for its weight, over seconds.
    Entitlement,
    /// Least decayed usage for its weight's square, over minutes.
    Decay,
    /// First in, first out.
    Fifo,
    /// Round robin.
    Rr,
    /// Round robin with long turns.
    Batch,
    /// Time is handed out at intervals; who used less goes first.
    Job,
    /// Sub-units take turns on all CPUs at once.
    Gang,
    /// Sub-units have deadlines, of which a few may be missed.
    Dwcs,
    /// All tasks within it are equal, whatever sub-unit they are in.
    Smp,
    /// Sub-units of a higher class go first.
    Classes,
}

/// How many disciplines there are. The header's own count of them is compared with it when C is compiled.
pub const DISCIPLINES: usize = 12;

/// What a task that could run waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Cause {
    /// Tasks of its own unit, or another's on a CPU that is time-shared.
    Own,
    /// A CPU on loan that was called back for it.
    Loan,
    /// Real-time, deadline or stop tasks that had its CPU, or the one where it came to run.
    Higher,
}

/// How many causes there are; compared likewise.
pub const CAUSES: usize = 3;

/// Set before the scheduler starts, and constant from then on.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rules {
    /// How long a task runs before others get their turn, in ns.
    pub(crate) slice_ns: u64,
    /// A task that wakes interrupts one that had so much more than its part, in ns; 0: none.
    pub(crate) preempt_ns: u64,
    /// Units that may exist: 0 to `units - 1`.
    pub(crate) units: u32,
    /// CPU numbers are below this.
    pub(crate) cpus: u32,
    /// [`Recall`].
    pub(crate) recall: u32,
    pub(crate) unused: u32,
}

/// What a discipline remembers of one that it orders: see `discipline/party.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Memory {
    mark: u64,
    at: u64,
}

/// What a discipline keeps of all that it orders: see `discipline/job_currency.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Order {
    handed: u64,
    used: u64,
    at: u64,
    /// The largest key that one waits with, or did.
    last: u64,
}

/// What became of a unit's deadlines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Had {
    /// Those before which it had its budget.
    pub met: u64,
    /// Those before which it had not.
    pub missed: u64,
    /// Of these, those that were missed though no more might be.
    pub violated: u64,
}

/// What a unit wants under [`Discipline::Dwcs`], and how often it had that: see `discipline/dwcs.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Deadlines {
    /// In ns; 0: none.
    period: u32,
    /// In ns, no more than the period.
    budget: u32,
    /// Deadlines that may be missed in a window.
    misses: u16,
    /// Deadlines in a window.
    of: u16,
    unused: u32,
    /// What became of them.
    pub had: Had,
}

/// One unit. `dispatch_set_unit` sets the first five, `credit`, the disciplines and what it wants before its deadlines; the
/// scheduler writes the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Unit {
    /// The unit around it, or [`NOBODY`].
    pub(crate) parent: u32,
    /// The outermost unit around it, or itself: the one that owns CPUs.
    pub(crate) top: u32,
    /// Units around it.
    pub(crate) depth: u32,
    /// Its part among its siblings, 1 to 10,000; its own tasks have 100 among its sub-units.
    pub weight: u32,
    /// [`LENDS`], [`BORROWS`], [`ANYWHERE`] and [`SEATS`].
    pub flags: u32,
    /// Sub-units.
    pub(crate) below: u32,
    /// Tasks of its own that run or wait.
    pub(crate) own_active: u32,
    /// Of its own tasks (as one) and its sub-units, those that run or wait.
    pub(crate) active: u32,
    /// Of the outermost: home CPUs that run others' tasks now and are not called back.
    pub(crate) away: u32,
    /// CPUs that run its tasks or its sub-units'.
    pub(crate) busy: u32,
    /// CPUs that run its own tasks, since it has sub-units.
    own_busy: u32,
    /// [`Discipline`]: that of its own tasks and its sub-units.
    discipline: u16,
    /// And that of the unit around it, which orders this one.
    among: u16,
    /// Its own.
    number: u32,
    /// The unit among whose tasks its own are ordered: itself, or one around it: see `discipline/smp.h`.
    orders: u32,
    /// Its tasks' virtual time: that of the task that ran last. A task that wakes starts no earlier.
    pub(crate) vtime: u64,
    /// When a task of its own came to run last.
    served: u64,
    /// A slice, in the measure of its passes.
    slice: u64,
    /// CPU time over weight, among its siblings: the smallest is next.
    pub(crate) pass: u64,
    /// The same of its own tasks, among its sub-units.
    pub(crate) own_pass: u64,
    /// Of the outermost: CPU time on others' CPUs over weight. The smallest, less `credit`, borrows next.
    pub(crate) loan_pass: u64,
    /// Of the outermost: what it lent, less what it was lent, in the same measure.
    credit: u64,
    /// The pass of the sub-unit (or of its own tasks) that ran last. One that wakes starts no earlier.
    pub(crate) frontier: u64,
    /// How long its tasks wait of late, in ns: see `rescue.h`.
    slow_ns: u64,
    /// When the virtual time was last seen to go on with time: likewise.
    clock_set: u64,
    /// And what it was then.
    clock_was: u64,
    /// Of its waiting tasks, those that waited already when [`Rescues::age`] grew last.
    old: u32,
    /// 1: one of them had waited since the time before that.
    overdue: u32,
    /// Of it, among its siblings.
    memory: Memory,
    /// Of its own tasks, among its sub-units.
    own_memory: Memory,
    /// Its deadlines, and what became of them.
    pub deadlines: Deadlines,
    /// Of its own tasks.
    tasks: Order,
    /// Of its sub-units and its own tasks.
    subs: Order,
    /// Of its sub-units' classes: see `discipline/classes.h`.
    clocks: [u64; RANKS],
    /// CPUs called back.
    pub recalls: u64,
    /// From the call to the first task of its own that ran there, summed, in ns.
    pub recall_ns: u64,
    /// The longest of them.
    pub recall_ns_max: u64,
    /// How many of them took less than 1.024 us, 2.048 us, and so on, doubling; the last class has no end.
    pub recall_classes: [u32; LATENCIES],
}

/// A unit's account since the start; times in ns. In the kernel it has one for each CPU, which that CPU alone writes. In a
/// simulated machine it has one for all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Account {
    /// Its tasks on its own CPUs.
    pub home_ns: u64,
    /// Its tasks on CPUs of others, which lent them and could call them back.
    pub borrowed_ns: u64,
    /// Its tasks on CPUs of others where they had turns: those that run anywhere, or could run nowhere else. See
    /// `dispatch.bpf.c` on strays.
    pub visiting_ns: u64,
    /// Its tasks on CPUs without an owner.
    pub shared_ns: u64,
    /// Others' tasks on its own CPUs, which it lent.
    pub lent_ns: u64,
    /// Others' tasks on its own CPUs where they had turns.
    pub visited_ns: u64,
    /// What its tasks waited before they came to run here, by [`Cause`].
    pub waited_ns: [u64; CAUSES],
    /// Times that a task came to run here from a CPU with the same last-level cache.
    pub moved_cache: u64,
    /// Times that one came from another of the same NUMA node.
    pub moved_node: u64,
    /// Times that one came from farther.
    pub moved_far: u64,
    /// Times that one waited on a CPU of others since its affinity allows none of the unit's.
    pub strays: u64,
    /// Times that one began to run.
    pub switches: u64,
    /// Times that one began to run out of turn, after waiting for too long: see `rescue.h`.
    pub rescues: u64,
}

/// Whether a CPU has taken a task out of turn that had waited for too long: see `rescue.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(dead_code)] // The others are C's alone.
pub(crate) enum Rescue {
    None,
    /// It is about to run.
    Taken,
    Runs,
}

/// Whose tasks are rescued, and when: see `rescue.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rescues {
    /// When the next task is rescued, or looked for.
    at: u64,
    /// That of the last one.
    unit: u32,
    /// Tasks of that unit that were rescued in its turn.
    given: u32,
    /// When `age` grew last.
    aged: u64,
    /// Grows every few seconds, so that waits that began before can be told from others.
    age: u32,
    unused: u32,
}

/// A time in which a higher class had a CPU: all of it, or the greater part.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Stretch {
    from: u64,
    to: u64,
    /// The ns of it.
    had: u64,
}

/// One CPU. Its user sets `cache`, `node` and `socket` before the start, `pool` whenever pools change, and `home` by
/// `dispatch_own`; the scheduler writes the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cpu {
    /// Up to when its task was charged, or it idled.
    pub(crate) since: u64,
    /// Up to when its time stands in the accounts.
    pub(crate) booked: u64,
    /// When it was called back; 0: it is not.
    pub(crate) recalled: u64,
    /// When it was called back last for tasks that may not run on it, and so in vain; 0: never.
    pub(crate) in_vain: u64,
    /// Its task's virtual time when it was charged last.
    pub(crate) vtime: u64,
    /// When it looks for late tasks next,
    looks_at: u64,
    /// and for stranded ones: see `rescue.h`.
    seeks_at: u64,
    /// When a higher class had it of late, in a ring.
    higher: [Stretch; STRETCHES],
    /// The unit that owns it, or [`NOBODY`]: time-shared.
    pub(crate) home: u32,
    /// The unit whose task it runs, or [`NOBODY`].
    pub(crate) runs: u32,
    /// The group of CPUs that share its last-level cache, by a number of its own below `2 * cpus`; [`NOBODY`]: it is no
    /// smaller than the node.
    pub(crate) cache: u32,
    /// The group of those of its NUMA node, likewise; [`NOBODY`]: it is the whole machine.
    pub(crate) node: u32,
    /// Whose turn is next: see `dispatch.bpf.c`.
    turn: u32,
    /// Tasks that wait in its own queue, or are about to.
    strays: u32,
    /// How often it looked again since it fell idle.
    looks: u32,
    /// 1: its task borrows it.
    on_loan: u32,
    /// [`Rescue`].
    pub(crate) rescue: u32,
    /// 1: a message waits until its task, of the same unit, has run for a while.
    outranked: u32,
    /// When a higher class had it: times so far, the last of them at this place of the ring.
    stretches: u32,
    /// Among whose busy CPUs it is counted: `enum dispatch_occupied`.
    occupied: u32,
    /// The unit that its task belongs to; `runs` is the one that orders it.
    pub(crate) pays: u32,
    /// The group of those of its socket, likewise; [`NOBODY`]: it is one node, or the whole machine.
    pub(crate) socket: u32,
    /// The number of the pool that it is in, or [`NOBODY`]: see `seats.h`.
    pub(crate) pool: u32,
    /// 1: its task, of a unit with seats, has no seat in this pool.
    apart: u32,
    /// The pool in which it has its seat then, or [`NOBODY`].
    wanted: u32,
    /// The gang of its task, or [`NOBODY`]: see `gates.h`.
    gang: u32,
}

/// What put a task into its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(dead_code)] // As above.
pub(crate) enum By {
    /// Its control group.
    Cgroup,
    /// Its user or its groups, or the default unit where nothing matches.
    Rule,
    /// Its program, or its parent's: what it starts belongs there, too.
    Command,
    /// The daemon, which knows better than its control group.
    Daemon,
}

/// What the scheduler keeps of a task.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Own {
    /// CPU time that it has had over its weight, in its unit's measure.
    pub(crate) vtime: u64,
    /// When a program that it executed put it into its unit, in ns.
    placed_at: u64,
    /// Since when it waits.
    since: u64,
    /// Of it, among its unit's tasks.
    memory: Memory,
    /// The unit among whose tasks it is ordered: its own, or one around that: see `discipline/smp.h`.
    pub(crate) unit: u32,
    /// `enum dispatch_task_state`.
    state: u16,
    /// [`Cause`].
    cause: u8,
    /// [`By`].
    placed: u8,
    /// Where it ran last, or [`NOBODY`].
    cpu: u32,
    /// In which CPU's own queue it waits.
    at: u32,
    /// The unit that it has come to by executing a program, or [`NOBODY`].
    destined: u32,
    /// The unit that a `command:` rule had put its parent into when it was born, or [`NOBODY`].
    heir: u32,
    /// The unit of its control group.
    base: u32,
    /// Its own unit, whose accounts have its time.
    pub(crate) pays: u32,
    /// A CPU of the pool in which it has its seat, or [`NOBODY`]: see `seats.h`.
    pub(crate) seat: u32,
    /// The gang of its process, if it leads that, or [`NOBODY`]: see `gates.h`.
    pub(crate) gang: u32,
    /// Where there may be gangs, 1: it is among those that wait in its unit's queue.
    waits: u32,
    /// [`Rescues::age`] when it began to wait there.
    age: u32,
}

/// The argument of `dispatch_own`: a CPU and its owner from now on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Owned {
    pub(crate) cpu: u32,
    /// An outermost unit, or [`NOBODY`].
    pub(crate) unit: u32,
}

/// The argument of `dispatch_seat`: where a thread has its seat from now on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Seated {
    /// Its number, as the caller sees it.
    pub(crate) thread: u32,
    /// A CPU of the pool, or [`NOBODY`].
    pub(crate) cpu: u32,
}

/// The argument of `dispatch_join`: a process is of a gang from now on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Joined {
    /// Its number, as the caller sees it.
    pub(crate) process: u32,
    /// Or [`NOBODY`].
    pub(crate) gang: u32,
}

/// The argument of `dispatch_put`: the unit of a thread whose control group does not say it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Put {
    /// Its number, as the caller sees it.
    pub(crate) thread: u32,
    pub(crate) unit: u32,
}

/// The argument of `dispatch_turn`, which needs none.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Turned {
    pub(crate) unused: u32,
}

/// The argument of `dispatch_set_unit`: what a unit is from now on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Setting {
    pub(crate) unit: u32,
    pub(crate) parent: u32,
    pub(crate) weight: u32,
    pub(crate) flags: u32,
    /// Of an outermost unit: its credit among borrowers, CPU time lent less borrowed, in ms.
    pub(crate) credit_ms: i32,
    /// [`Discipline`].
    pub(crate) discipline: u32,
    /// This and the rest: see [`Deadlines`].
    pub(crate) period: u32,
    pub(crate) budget: u32,
    pub(crate) misses: u32,
    pub(crate) of: u32,
}
