//! The scheduler's tables: the structures and constants that Rust and C share. The daemon and the scheduler
//! share the tables through the kernel's maps, the simulator and the scheduler through memory.
//!
//! This file is the only definition. `build.rs` generates the C header `tables.h` from it, comments included;
//! `intf.h` includes that header. For example, [`Unit`] is `struct dispatch_unit` in C, [`Recall::Now`] is
//! `DISPATCH_RECALL_NOW`, and [`UNITS_MAX`] is `DISPATCH_UNITS_MAX`. `build.rs` lists the C names of the
//! types.
//!
//! Constants are written with their type, as `1024_u32`: without it, the C constant would be a signed `int`.

// cbindgen leaves constants that are not `pub` out of the header.
#![allow(unreachable_pub)]

mod begin;
pub(crate) mod exec;
#[cfg(feature = "kernel")]
pub(crate) mod kernel;
pub(crate) mod native;
mod sums;

pub use begin::Near;
pub use sums::CallBacks;

/// In place of a number: no unit, no CPU, no group of CPUs, no gang.
pub const NOBODY: u32 = u32::MAX;
/// The unit of the kernel's own threads, which run on any CPU and before other tasks.
pub const KERNEL: u32 = 0_u32;
/// The unit of tasks that belong to no other unit.
pub const COMMON: u32 = 1_u32;
/// The maximum number of units of a machine.
pub const UNITS_MAX: u32 = 1024_u32;
/// CPU numbers are below this.
pub const CPUS_MAX: u32 = 4096_u32;
/// The maximum number of levels of the tree of units.
pub const DEPTH_MAX: u32 = 20_u32;
/// Units per block. Waiting tasks are also counted by block, so that a search skips blocks without any.
pub const WAITS_BLOCK: u32 = 32_u32;
/// Buckets of the histogram of call-back latencies: below 1.024 us, below 2.048 us, and so on, doubling; the
/// last is unbounded.
pub const LATENCIES: usize = 24;
/// The maximum number of gangs; a power of two: see `gates.h`.
pub const GANGS_MAX: u32 = 4096_u32;
/// Classes of sub-units: see `discipline/classes.h`.
pub const RANKS: usize = 4;
/// Size of the ring of intervals in which a higher class had a CPU: see [`Cpu`]; a power of two.
pub const STRETCHES: usize = 8;
/// Size of the ring of intervals in which units had a CPU: see `waits.h`; a power of two.
pub const INTERVALS: usize = 256;
/// Size of one half of a CPU's table of pairs of waiter and runner: see `waits.h`; a power of two.
pub const PAIRS: usize = 256;

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
/// A unit's tasks may run on CPUs that other units lend.
pub const BORROWS: u32 = 2_u32;
/// A flag of [`COMMON`] alone: every CPU alternates between the tasks of this unit and those of the CPU's
/// owner.
pub const ANYWHERE: u32 = 4_u32;

/// A unit's tasks may have seats: see `seats.h`.
pub const SEATS: u32 = 8_u32;

/// The rule by which a unit orders its own tasks and its sub-units: see `discipline/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub enum Discipline {
    /// Least CPU time over weight.
    #[default]
    Stride,
    /// At random, by weight.
    Lottery,
    /// Least decayed usage over weight, with a half-life of seconds.
    Entitlement,
    /// Least decayed usage over the square of the weight, with a half-life of minutes.
    Decay,
    /// First in, first out.
    Fifo,
    /// Round robin.
    Rr,
    /// Round robin with long turns.
    Batch,
    /// CPU time is credited at intervals; parties that used less than their credit go first.
    Job,
    /// Sub-units take turns on all CPUs at once.
    Gang,
    /// Sub-units have deadlines, of which a few may be missed.
    Dwcs,
    /// All tasks within the unit are equal, whatever sub-unit they are in.
    Smp,
    /// Sub-units of a higher class go first.
    Classes,
}

/// The number of disciplines. `intf.h` asserts that it equals the header's own count.
pub const DISCIPLINES: usize = 12;

/// What a runnable task waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Cause {
    /// For tasks of its own unit or, on a time-shared CPU, of any unit.
    Own,
    /// For a lent CPU that was called back for the task.
    Loan,
    /// For real-time, deadline or stop tasks, on the CPU that the task was on or the one that it then got.
    Higher,
}

/// The number of causes, asserted likewise.
pub const CAUSES: usize = 3;

/// What had the CPU while a task waited for it, apart from other units: see `waits.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Holder {
    /// Tasks of its own unit.
    Own,
    /// Real-time, deadline or stop tasks.
    Higher,
    /// No task: the CPU was idle, or switched.
    Idle,
    /// Not known: the wait began before the CPU's recorded intervals, or the table of pairs was full.
    Unknown,
}

/// The number of holders, asserted likewise.
pub const HOLDERS: usize = 4;

/// Set before the scheduler starts, and constant from then on, except for `pairs_half`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rules {
    /// How long a task runs before the CPU chooses again, in ns.
    pub(crate) slice_ns: u64,
    /// A waking task preempts a running one that is ahead of it by more than this, in ns; 0: waking tasks
    /// never preempt.
    pub(crate) preempt_ns: u64,
    /// The size of the table of units: numbers are 0 to `units - 1`.
    pub(crate) units: u32,
    /// CPU numbers are below this.
    pub(crate) cpus: u32,
    /// [`Recall`].
    pub(crate) recall: u32,
    /// The half of [`Pairs`] that CPUs add to: 0 or 1. The loader reads and clears the other half.
    pub(crate) pairs_half: u32,
}

/// The state that a discipline keeps of one party: see `discipline/party.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Memory {
    mark: u64,
    at: u64,
}

/// The state that a discipline keeps of all its parties together. `handed`, `used` and `at` are those of
/// `discipline/job_currency.h`: the credit per weight handed out so far, the CPU time used in the current
/// interval, and when that interval began.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Order {
    handed: u64,
    used: u64,
    at: u64,
    /// The largest key with which a party was queued so far.
    last: u64,
}

/// Counters of a unit's deadlines, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Had {
    /// The unit got its budget in time.
    pub met: u64,
    /// The unit did not get its budget in time.
    pub missed: u64,
    /// Those missed deadlines that exceeded the number that a window tolerates.
    pub violated: u64,
}

/// A unit's demand under [`Discipline::Dwcs`], and how often it was met: see `discipline/dwcs.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Deadlines {
    /// The time from one deadline to the next, in ns; 0: the unit has no deadlines.
    period: u32,
    /// The CPU time wanted in each period, in ns; at most the period.
    budget: u32,
    /// Deadlines that may be missed in a window.
    misses: u16,
    /// Deadlines in a window.
    of: u16,
    unused: u32,
    /// The outcomes so far.
    pub had: Had,
}

/// One unit. `dispatch_set_unit` sets the first five fields, `credit`, the disciplines and the demand in
/// `deadlines`; the scheduler writes the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Unit {
    /// The unit that directly encloses this one, or [`NOBODY`] for an outermost unit.
    pub(crate) parent: u32,
    /// The outermost unit that encloses this one, or the unit itself. Outermost units own CPUs.
    pub(crate) top: u32,
    /// The number of units that enclose this one.
    pub(crate) depth: u32,
    /// Its share among its siblings, 1 to 10,000. A unit's own tasks together have a weight of 100 among its
    /// sub-units.
    pub weight: u32,
    /// [`LENDS`], [`BORROWS`], [`ANYWHERE`] and [`SEATS`].
    pub flags: u32,
    /// The number of its sub-units.
    pub(crate) below: u32,
    /// The number of its own tasks that run or wait.
    pub(crate) own_active: u32,
    /// The number of active parties within it: its active sub-units, and one for its own tasks if any of them
    /// is active.
    pub(crate) active: u32,
    /// Outermost units only: home CPUs that run tasks of other units now and were not called back yet.
    pub(crate) away: u32,
    /// CPUs that run tasks of the unit or of units within it.
    pub(crate) busy: u32,
    /// CPUs that run the unit's own tasks. Counted only while it has sub-units.
    own_busy: u32,
    /// [`Discipline`] by which it orders its own tasks and its sub-units.
    discipline: u16,
    /// [`Discipline`] of its parent, which orders this unit among its siblings.
    among: u16,
    /// Its index in the table of units.
    number: u32,
    /// The unit whose queue its own tasks wait in: the unit itself, or one that encloses it: see
    /// `discipline/smp.h`.
    orders: u32,
    /// The clock of its own tasks: the virtual time of the task that ran last. A waking task is placed
    /// relative to it.
    pub(crate) vtime: u64,
    /// When one of its own tasks last began to run.
    served: u64,
    /// The length of a slice, scaled to passes: over its weight.
    slice: u64,
    /// CPU time over weight, compared with its siblings': the smallest is next.
    pub(crate) pass: u64,
    /// The pass of its own tasks together, compared with its sub-units'.
    pub(crate) own_pass: u64,
    /// Outermost units only: CPU time used on other units' CPUs, over weight. The unit with the least
    /// `loan_pass - credit` borrows next.
    pub(crate) loan_pass: u64,
    /// Outermost units only: CPU time lent less CPU time borrowed, over weight.
    credit: u64,
    /// The clock of its sub-units and its own tasks: the pass of the one that ran last. A waking sub-unit is
    /// placed relative to it.
    pub(crate) frontier: u64,
    /// The longest recent wait of its tasks, in ns; decays: see `rescue.h`.
    slow_ns: u64,
    /// When `vtime` was last advanced with real time: see `let_clock_go_on` in `rescue.h`.
    clock_set: u64,
    /// The value of `vtime` at that moment.
    clock_was: u64,
    /// The number of its waiting tasks that were waiting already when [`Rescues::age`] last grew.
    old: u32,
    /// 1: when the age last grew, a task had been waiting since the previous time.
    overdue: u32,
    /// The state of the unit as a party among its siblings.
    memory: Memory,
    /// The state of its own tasks together, as a party among its sub-units.
    own_memory: Memory,
    /// Its demand by deadlines, and their outcomes.
    pub deadlines: Deadlines,
    /// The common state of its own tasks.
    tasks: Order,
    /// The common state of its sub-units and its own tasks together.
    subs: Order,
    /// A clock for each class of its sub-units: see `discipline/classes.h`.
    clocks: [u64; RANKS],
    /// The number of its lent CPUs that were called back.
    pub recalls: u64,
    /// The sum of the latencies of its call-backs, in ns: from the call to the first task of the unit that
    /// runs there.
    pub recall_ns: u64,
    /// The longest of these latencies, in ns.
    pub recall_ns_max: u64,
    /// The histogram of these latencies: see [`LATENCIES`].
    pub recall_classes: [u32; LATENCIES],
}

/// A unit's counters since the start; times in ns. In the kernel, a unit has one account for each CPU,
/// written by that CPU alone. In a simulated machine, it has one for all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Account {
    /// CPU time of its tasks on its home CPUs.
    pub home_ns: u64,
    /// CPU time of its tasks on CPUs that other units lent, and could call back.
    pub borrowed_ns: u64,
    /// CPU time of its tasks on other units' CPUs without a loan: tasks that run anywhere, or can run nowhere
    /// else. See `dispatch.bpf.c` on strays.
    pub visiting_ns: u64,
    /// CPU time of its tasks on time-shared CPUs, which have no owner.
    pub shared_ns: u64,
    /// CPU time of other units' tasks on its home CPUs that it lent.
    pub lent_ns: u64,
    /// CPU time of other units' tasks on its home CPUs without a loan.
    pub visited_ns: u64,
    /// How long its tasks waited before they were dispatched on this CPU, by [`Cause`].
    pub waited_ns: [u64; CAUSES],
    /// The part of these waits in which no other unit had the CPU, by [`Holder`]. The rest is in [`Pairs`].
    pub waited_for_ns: [u64; HOLDERS],
    /// Migrations of its tasks to this CPU from one with the same last-level cache.
    pub moved_cache: u64,
    /// Migrations from a CPU of the same NUMA node with another last-level cache.
    pub moved_node: u64,
    /// Migrations from another NUMA node.
    pub moved_far: u64,
    /// Times that a task was queued on another unit's CPU, since its affinity allows none of its unit's.
    pub strays: u64,
    /// Times that a task was dispatched.
    pub switches: u64,
    /// Times that a task was dispatched out of turn, after waiting for too long: see `rescue.h`.
    pub rescues: u64,
}

/// Whether a CPU's task is a rescue, that is, was taken out of turn since it had waited for too long: see
/// `rescue.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(dead_code)] // Rust uses only `Runs`; C uses all.
pub(crate) enum Rescue {
    None,
    /// The rescued task was moved to the CPU, and runs next.
    Taken,
    Runs,
}

/// The state of the rescues of late units: see `rescue.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rescues {
    /// When the next rescue, or the next search for late units, is due.
    at: u64,
    /// The unit whose task was rescued last.
    unit: u32,
    /// Rescues in a row of that unit's tasks.
    given: u32,
    /// When `age` last grew.
    aged: u64,
    /// The number of the current period of a few seconds. A wait that began in an earlier period is old.
    age: u32,
    unused: u32,
}

/// An interval in which a higher class had a CPU, at least for most of the time.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Stretch {
    from: u64,
    to: u64,
    /// For how long within the interval the higher class had the CPU, in ns.
    had: u64,
}

/// An interval in which one unit had a CPU, switches between its tasks included: see `waits.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Interval {
    from: u64,
    until: u64,
    /// How long this unit had had the CPU before `from`, in ns: see [`Occupancy`].
    had: u64,
    /// How long all units together had had it before `from`, in ns.
    all: u64,
    /// The end of the unit's previous interval; 0 if it had none.
    before: u64,
    /// The unit, or the number of units for a higher class.
    unit: u32,
    unused: u32,
}

/// The latest intervals of one CPU: a ring.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct History {
    intervals: [Interval; INTERVALS],
    /// The number of intervals so far; modulo the ring's size, the index of the latest, whose `until` is out
    /// of date: [`Cpu`] has it.
    count: u32,
    unused: u32,
}

/// How long one unit had one CPU.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Occupancy {
    /// The sum of its intervals, in ns. Without the latest interval of the CPU.
    had: u64,
    /// The end of the last of these.
    until: u64,
}

/// The time for which tasks of one unit waited while tasks of another had the CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Pair {
    /// The waiting unit's number times 65,536, plus the number of the unit that had the CPU; 0: unused entry.
    pub(crate) key: u32,
    pub(crate) unused: u32,
    pub(crate) ns: u64,
}

/// Such times on one CPU: two hash tables with open addressing.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Pairs {
    /// The number of used entries in each half.
    pub(crate) used: [u32; 2],
    pub(crate) halves: [[Pair; PAIRS]; 2],
}

/// One CPU. The loader sets `cache`, `node` and `socket` before the start, `pool` whenever pools change, and
/// `home` by `dispatch_own`; the scheduler writes the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cpu {
    /// The time of the last charge of its task, or of its last change between busy and idle.
    pub(crate) since: u64,
    /// The time until which its CPU time is booked in the accounts.
    pub(crate) booked: u64,
    /// When the CPU was called back; 0: no call-back is pending.
    pub(crate) recalled: u64,
    /// When it was last called back in vain, for tasks that may not run on it; 0: never.
    pub(crate) in_vain: u64,
    /// The virtual time of its task at the last charge.
    pub(crate) vtime: u64,
    /// When it next checks whether a rescue is due: see `rescue.h`.
    looks_at: u64,
    /// When it next polls other CPUs' queues for stranded tasks: see `rescue.h`.
    seeks_at: u64,
    /// The latest intervals in which a higher class had it: a ring.
    higher: [Stretch; STRETCHES],
    /// When the latest interval in which one unit had it began: see `waits.h`.
    had_from: u64,
    /// The end of that interval; out of date while a task runs.
    had_until: u64,
    /// The unit that owns it; [`NOBODY`]: it is time-shared.
    pub(crate) home: u32,
    /// The unit whose queue its task came from, or [`NOBODY`].
    pub(crate) runs: u32,
    /// The number, below `2 * cpus`, of the group of CPUs that share its last-level cache; [`NOBODY`]: that
    /// group is the whole node.
    pub(crate) cache: u32,
    /// The number of the group of CPUs of its NUMA node; [`NOBODY`]: that group is the whole machine.
    pub(crate) node: u32,
    /// The class of tasks whose turn is next: see `enum turn` in `waking.h`.
    turn: u32,
    /// Tasks that wait in the queue of this CPU alone, or are about to.
    strays: u32,
    /// The number of polls since it fell idle.
    looks: u32,
    /// 1: its task borrows it.
    on_loan: u32,
    /// [`Rescue`].
    pub(crate) rescue: u32,
    /// 1: a task woken by a message will preempt its task, of the same unit, once that has run for a while.
    outranked: u32,
    /// The number of entries written to `higher` so far; modulo the ring's size, the index of the latest.
    stretches: u32,
    /// `enum dispatch_occupied`: the units whose count of busy CPUs includes this one.
    occupied: u32,
    /// The unit that its task belongs to and is charged to. Under `smp`, `runs` is a unit that encloses it.
    pub(crate) pays: u32,
    /// The number of the group of CPUs of its socket; [`NOBODY`]: that group is one node, or the whole
    /// machine.
    pub(crate) socket: u32,
    /// The number of its pool, or [`NOBODY`]: see `seats.h`.
    pub(crate) pool: u32,
    /// 1: its task belongs to a unit with seats, but has no seat in this CPU's pool.
    apart: u32,
    /// The pool of its task's seat if that is another pool than this CPU's, else [`NOBODY`].
    wanted: u32,
    /// The gang of its task, or [`NOBODY`]: see `gates.h`.
    gang: u32,
    /// The unit that had it in the latest interval, the number of units for a higher class, or [`NOBODY`].
    had_by: u32,
    unused: u32,
}

/// What determined a task's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(dead_code)] // C uses all.
pub(crate) enum By {
    /// Its control group.
    Cgroup,
    /// Its user or its groups, or the default unit if no rule matches.
    Rule,
    /// Its program or that of its parent. Processes that the task starts inherit the unit.
    Command,
    /// The daemon, which has set another unit than that of the task's control group.
    Daemon,
}

/// The scheduler's state of one task.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Own {
    /// Its virtual time: CPU time over weight, comparable with its unit's clock. Its key under other
    /// disciplines than stride.
    pub(crate) vtime: u64,
    /// When it was last placed in a unit because it executed a program, in ns.
    placed_at: u64,
    /// When its current wait began; 0: it does not wait.
    pub(crate) since: u64,
    /// Its state as a party among its unit's tasks.
    memory: Memory,
    /// The unit whose queue it waits in: its own unit, or one that encloses it: see `discipline/smp.h`.
    pub(crate) unit: u32,
    /// `enum dispatch_task_state`.
    state: u16,
    /// [`Cause`].
    cause: u8,
    /// [`By`].
    placed: u8,
    /// The CPU on which it ran last, or [`NOBODY`].
    cpu: u32,
    /// The CPU in whose own queue it waits. Valid only with `DISPATCH_AT_CPU` in `state`.
    at: u32,
    /// A unit that it moves to when it next wakes or stops, chosen when it executed a program or by the
    /// daemon; or [`NOBODY`].
    destined: u32,
    /// The unit of its parent at its birth, if a `command:` rule had chosen that unit; else [`NOBODY`].
    heir: u32,
    /// The unit of its control group, or the one that the daemon set instead.
    base: u32,
    /// The unit that it belongs to, and that is charged for its CPU time.
    pub(crate) pays: u32,
    /// A CPU of the pool in which it has its seat, or [`NOBODY`]: see `seats.h`.
    pub(crate) seat: u32,
    /// The gang of its process, kept by the process's first thread; or [`NOBODY`]: see `gates.h`.
    pub(crate) gang: u32,
    /// Used in place of `DISPATCH_WAITS` in `state` where there may be gangs; 1: it is counted as waiting in
    /// its unit's queue.
    waits: u32,
    /// The value of [`Rescues::age`] when it began to wait there.
    age: u32,
}

/// The argument of `dispatch_own`: a CPU and its new owner.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Owned {
    pub(crate) cpu: u32,
    /// An outermost unit, or [`NOBODY`].
    pub(crate) unit: u32,
}

/// The argument of `dispatch_seat`: a thread and its new seat.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Seated {
    /// The thread's number in the caller's PID namespace.
    pub(crate) thread: u32,
    /// A CPU of the pool, or [`NOBODY`] for no seat.
    pub(crate) cpu: u32,
}

/// The argument of `dispatch_join`: a process and its new gang.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Joined {
    /// The process's number in the caller's PID namespace.
    pub(crate) process: u32,
    /// The gang's number, or [`NOBODY`] for no gang.
    pub(crate) gang: u32,
}

/// The argument of `dispatch_put_thread`: a thread, and its unit if that is not the unit of its control
/// group.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Put {
    /// The thread's number in the caller's PID namespace.
    pub(crate) thread: u32,
    pub(crate) unit: u32,
}

/// The argument of `dispatch_turn`. The program reads nothing from it, but a BPF program of this type has to
/// have one.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code))]
pub(crate) struct Turned {
    pub(crate) unused: u32,
}

/// The argument of `dispatch_set_unit`: a unit and its new rules.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Setting {
    pub(crate) unit: u32,
    pub(crate) parent: u32,
    pub(crate) weight: u32,
    pub(crate) flags: u32,
    /// Outermost units only: the credit among borrowers, CPU time lent less CPU time borrowed, in ms.
    pub(crate) credit_ms: i32,
    /// [`Discipline`].
    pub(crate) discipline: u32,
    /// This field and the following ones: see [`Deadlines`].
    pub(crate) period: u32,
    pub(crate) budget: u32,
    pub(crate) misses: u32,
    pub(crate) of: u32,
}
