//! The values of a scenario after its files were read: amounts in nanoseconds, bytes and millionths,
//! references as indices.

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::{CpuSet, Machine};
use commonhold_policy::rights::Change;

use crate::Time;

/// A contract, a machine and a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// What each unit is promised, and the scheme.
    pub contract: Contract,
    /// The hardware and the costs of its kernel.
    pub hardware: Hardware,
    /// The programs, files and jobs.
    pub workload: Workload,
}

/// The simulated machine: the facts that policies see, and the costs of events on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// The facts that policies see: CPUs, nodes, memory. It has the disks of the field `disks`, in the same
    /// order.
    pub machine: Machine,
    /// How the kernel limits units' use of memory and disks.
    pub enforces: Enforces,
    /// The costs of the kernel.
    pub kernel: KernelCosts,
    /// Latencies between nodes; `None`: all memory has the same latency.
    pub latency: Option<Latency>,
    /// The per-CPU cache, which a migrated task refills; `None`: a migration is free.
    pub cache: Option<Cache>,
    /// How much longer a task takes if none of its working set is in the last-level cache, in millionths.
    /// `machine` has the sizes of the caches; without them, tasks do not compete for cache.
    pub last_cache_miss: u64,
    /// The memory bus; `None`: memory traffic never waits.
    pub bus: Option<Bus>,
    /// Contention among CPUs for kernel memory and spin locks; `None`: kernel work scales linearly.
    pub contention: Option<Contention>,
    /// The CPU time that interrupts take; `None`: no time.
    pub interrupts: Option<Interrupts>,
    /// What disturbs a run; `None`: nothing does.
    pub disturbance: Option<Disturbance>,
    /// The disks, by index.
    pub disks: Vec<Disk>,
}

/// How a simulated kernel limits units' use of memory and disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforces {
    /// As the modified IRIX of seed 000 (sections 3.2 and 3.3): allowances that are exceeded only by force, a
    /// pager for each unit, and disks that schedule by shares.
    Irix,
    /// As Linux does with control groups: bounds that slow down, protection, and one reclaim for the whole
    /// machine; rates and weights for disks.
    #[default]
    Linux,
}

impl Enforces {
    /// Its name in `machine.toml`.
    pub const fn name(self) -> &'static str {
        match self {
            Enforces::Irix => "irix",
            Enforces::Linux => "linux",
        }
    }
}

/// The costs of a simulated kernel, the scheduler and the settings of its memory management.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCosts {
    /// The period of the clock tick, in ns; the CPUs' ticks are staggered evenly over the period. 0: no
    /// ticks.
    pub tick_ns: Time,
    /// The scheduler that decides which task a CPU runs next.
    pub scheduler: Scheduler,
    /// How long a task runs before others get a turn, in ns.
    pub slice_ns: Time,
    /// CPU time of a switch to another task, in ns.
    pub switch_ns: Time,
    /// How long an inter-processor interrupt takes to arrive, in ns; at most, if `ipi_delays_ns` has entries.
    pub ipi_ns: Time,
    /// How long inter-processor interrupts take to arrive, in ns: each takes one of these times, by chance.
    /// Empty: each takes `ipi_ns`. Machine files have no such key; a recording has them.
    pub ipi_delays_ns: Vec<Time>,
    /// The same for an interrupt to an idle CPU, which may have to leave a deep sleep; empty:
    /// `ipi_delays_ns`.
    pub idle_delays_ns: Vec<Time>,
    /// How long a signal takes to arrive, in ns.
    pub signal_ns: Time,
    /// How old the count of a job's use of the gangs' shared resource is when a policy reads it, in ns.
    pub counter_age_ns: Time,
    /// Mean time that a disk's or a timer's interrupt takes to arrive, in ns; exponentially distributed.
    pub interrupt_ns: Time,
    /// CPU time of a page fault that needs no disk, in ns.
    pub fault_ns: Time,
    /// CPU time of setting up one disk request, in ns.
    pub request_ns: Time,
    /// CPU time of creating a process, in ns.
    pub fork_ns: Time,
    /// When a lent CPU returns to its owner.
    pub call_back: CallBack,
    /// Size of a page frame, in bytes.
    pub frame_bytes: u64,
    /// Memory that the kernel uses, in bytes; charged to the `kernel` unit.
    pub memory_bytes: u64,
    /// Pages that one fault or one page-out moves at once.
    pub cluster_pages: u32,
    /// The period of the memory policy, in ns.
    pub memory_period_ns: Time,
    /// How much memory may be lent.
    pub memory_loans: MemoryLoans,
    /// How many read-ahead requests are kept outstanding for a file that is read in sequence; 0: none.
    pub read_ahead: u32,
    /// How many write-behind requests are under way at once, at least 1.
    pub write_behind: u32,
    /// Size of a read-ahead or write-behind request, in sectors.
    pub request_sectors: u32,
    /// The part of memory beyond which dirty pages are written behind, in millionths.
    pub dirty_limit: u64,
    /// The age from which a dirty page is written behind, in ns.
    pub dirty_age_ns: Time,
}

/// The scheduler that decides at every switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The project's own, `dispatch`.
    Commonhold,
    /// IRIX 5: priorities that degrade with use. Under the scheme `smp` only.
    IrixDecay,
    /// Linux 2.4: epochs. Under the scheme `smp` only.
    Linux24,
    /// Hurricane: each task has a CPU of its own, which the policy's placement chooses. Under the scheme
    /// `smp` only.
    Hurricane,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Scheduler; 4] =
        [Scheduler::Commonhold, Scheduler::IrixDecay, Scheduler::Linux24, Scheduler::Hurricane];

    /// Its name in `machine.toml` and for `commonhold sim --scheduler`.
    pub const fn name(self) -> &'static str {
        match self {
            Scheduler::Commonhold => "commonhold",
            Scheduler::IrixDecay => "irix-decay",
            Scheduler::Linux24 => "linux-2.4",
            Scheduler::Hurricane => "hurricane",
        }
    }

    /// Whether the scheduler can hold a scheme. Baselines know no units, and so hold only `smp`.
    pub fn holds(self, scheme: Scheme) -> bool {
        self == Scheduler::Commonhold || scheme == Scheme::Smp
    }
}

impl core::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// When a CPU on loan goes back to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBack {
    /// At the borrower's next clock tick (seed 000, section 3.1).
    Tick,
    /// At the borrower's next clock tick or its next entry to the kernel, whichever is first (seed 000,
    /// section 3.1).
    Entry,
    /// At once, by an inter-processor interrupt.
    Now,
}

/// How much idle memory is lent to a unit that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLoans {
    /// As much as could be called back within the contract's `call-back-memory`, judged by the unit's pages
    /// and the measured rate of page writes. Called-back pages are written at once. As on live machines.
    InTime,
    /// All idle memory, however long a call-back takes. Called-back pages are written when the lender needs
    /// them (seed 000, section 3.2, which has no bound).
    Any,
}

/// A CPU's cache, which a task refills after a switch or a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// Bytes per CPU.
    pub bytes: u64,
    /// Bytes per line.
    pub line_bytes: u64,
    /// The time to fetch a line, in ns.
    pub miss_ns: Time,
}

/// Default size of a cache line, in bytes, for a machine without `cache`.
pub(crate) const LINE_BYTES: u64 = 64;

impl Hardware {
    /// The size of a bus transaction, in bytes: one cache line.
    pub fn line_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(LINE_BYTES, |cache| cache.line_bytes)
    }
}

/// Latencies of loads that miss all caches (seed 001, table 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// The latency of memory in the CPU's own node, in ns; at least 1.
    pub local_ns: Time,
    /// Latencies by the CPU's node, then by the memory's node, in the machine's order, in ns; at least
    /// `local_ns`.
    pub between_ns: Vec<Vec<Time>>,
    /// Service times, for loads that queue on their way; `None`: any number of loads pass at once.
    pub service: Option<Service>,
}

/// Service times: how long a load occupies each resource on its way, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// The memory of a node.
    pub module_ns: Time,
    /// The bus of a socket. A load from another node occupies the bus of its own socket, and that of the
    /// other socket.
    pub bus_ns: Time,
    /// The ring between the sockets.
    pub ring_ns: Time,
}

/// The memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
    /// Capacity: transactions per millisecond.
    pub transactions_per_ms: u64,
    /// How many transactions a task that uses the whole bus has outstanding, at least 1; a task that uses a
    /// part of the bus has that part of them.
    pub streams: u32,
    /// How the capacity is divided.
    pub division: BusDivision,
}

impl Bus {
    /// The defaults of `[bus]`.
    pub const DEFAULT: Bus = Bus { transactions_per_ms: 400_000, streams: 4, division: BusDivision::Queue };
}

/// How a memory bus divides its capacity ([`crate::contention::Bus`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusDivision {
    /// Transactions queue, so that they slow each other down before the bus is full.
    Queue,
    /// Each task gets its rate, or an equal part of what is left.
    Even,
}

/// Kernel work slows down with the number of CPUs that do it (seed 000, sections 3.4 and 4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    /// Part of kernel-intensive work that holds the one spin lock (memlock), in millionths.
    pub lock_demand: u64,
    /// The memory stall that each further CPU in kernel-intensive work adds, in millionths of the work.
    pub stall: u64,
}

/// Interrupts, as the CPU time that they take from tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupts {
    /// The interrupts' CPU time, as a part of one CPU's time, in millionths.
    pub part: u64,
    /// The CPU that takes all interrupts; `None`: they are spread evenly over all CPUs.
    pub cpu: Option<u32>,
}

/// What disturbs every run on a real machine ([`crate::disturbance`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    /// The number of daemons: tasks in no unit that compute now and then.
    pub daemons: u32,
    /// The mean time for which a daemon sleeps, in ns; exponentially distributed.
    pub every_ns: Time,
    /// The mean CPU time for which it then computes, in ns; exponentially distributed.
    pub runs_ns: Time,
    /// Copies of jobs start later than the workload says, by a uniformly distributed time below this, in ns;
    /// 0: they start on time.
    pub starts_ns: Time,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its mechanics.
    pub model: DiskModel,
    /// How its queue is served; `None`: as `enforces` and the scheme imply.
    pub order: Option<DiskOrder>,
    /// Whether a kernel that enforces as Linux does honours units' weights on it.
    pub weighs: bool,
    /// How many requests the kernel hands to the disk, waiting there or in service; `None`: as many as the
    /// disk serves at once, or 32 if Linux's rates hold units.
    pub depth: Option<u32>,
    /// The bandwidth-difference threshold, in sectors (seed 000, section 3.3).
    pub threshold_sectors: u64,
    /// Half-life of a unit's count of transferred sectors, in ns (seed 000: 500 ms).
    pub half_life_ns: Time,
    /// Requests in a batch of YFQ, 1 or more (seed 004, section 5.4: 2).
    pub batch: u32,
    /// When YFQ chooses the next batch.
    pub batch_chosen: BatchChosen,
}

/// When YFQ chooses the next batch. Seed 004 does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchChosen {
    /// As soon as the last request of a batch has completed.
    AtCompletion,
    /// Once the process that waited for that request has had time to send the next.
    AfterResubmission,
}

/// A disk's mechanics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskModel {
    /// The HP 97560 (Ruemmler and Wilkes 1994), all times divided by `scale`.
    Hp97560 {
        /// 1 is the disk as built; seed 000, section 4.5, uses 2.
        scale: u32,
    },
    /// One request at a time: a fixed access time, then the transfer.
    Fixed {
        /// Access time per request, in ns.
        access_ns: Time,
        /// Transfer time per sector, in ns.
        sector_ns: Time,
        /// Size of the disk, in sectors.
        sectors: u64,
    },
    /// Several requests at a time, no mechanics.
    Ssd {
        /// Requests served at a time.
        channels: u32,
        /// Fixed time per read request, in ns.
        read_ns: Time,
        /// Fixed time per write request, in ns.
        write_ns: Time,
        /// Transfer time per sector, in ns.
        sector_ns: Time,
        /// Size of the disk, in sectors.
        sectors: u64,
    },
}

/// The order in which a disk serves its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOrder {
    /// C-SCAN: by head position alone.
    Position,
    /// By the units' bandwidth alone.
    Isolation,
    /// By head position among the units that pass the fairness criterion (seed 000, section 3.3).
    Fair,
    /// As `Fair`, with bounded batches and anticipation: the order that this project proposes.
    Batched,
    /// As the block layer of Linux: by the weights and within the rates that the policy sets.
    Linux,
    /// By virtual finish times, in batches that are served by head position (seed 004, section 5.4).
    Yfq,
}

/// The files, locks, programs and jobs of a scenario, and the changes of rights during the simulation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// The latest time at which the simulation ends, in ns.
    pub horizon_ns: Time,
    /// The interval at which to record which job occupies each CPU, in ns; `None`: never.
    pub trace_ns: Option<Time>,
    /// Files, by index.
    pub files: Vec<File>,
    /// Locks, by index.
    pub locks: Vec<Lock>,
    /// Events, by index.
    pub events: Vec<Event>,
    /// Timers, by index.
    pub timers: Vec<Timer>,
    /// Programs, by index.
    pub programs: Vec<Program>,
    /// Jobs, in the order of the file.
    pub jobs: Vec<Job>,
    /// Changes of rights, in the order in which they are made.
    pub changes: Vec<RightsChange>,
    /// Changes of rights that wait for a job.
    pub awaited: Vec<AwaitedChange>,
    /// Which CPUs are online from when on, in order of time. Before the first entry, all CPUs are online.
    pub online: Vec<OnlineChange>,
}

/// CPUs go offline or come online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlineChange {
    /// The time of the change, in ns.
    pub at_ns: Time,
    /// The CPUs that are online from then on, at least one.
    pub online: CpuSet,
}

/// A change of rights at a fixed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RightsChange {
    /// The time of the change, in ns.
    pub at_ns: Time,
    /// The change.
    pub change: Change,
}

/// A change of rights that is made after a number of a job's rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedChange {
    /// The job, an index into the workload's jobs.
    pub job: u16,
    /// The number of rounds after which the change is made, at least 1.
    pub rounds: u64,
    /// The change.
    pub change: Change,
}

/// A file on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its disk; `None`: the disk of the job that uses the file.
    pub disk: Option<u16>,
    /// Whether all jobs share one file; else each job has a file of its own.
    pub shared: bool,
    /// The size of a contiguous piece, in bytes; 0: the whole file is one piece.
    pub fragment_bytes: u64,
    /// The free space on the disk between the file and the next, in bytes.
    pub gap_bytes: u64,
    /// The size of the cache into which processes copy what they read, in bytes: that much of the file is in
    /// memory twice.
    pub buffer_bytes: u64,
    /// The part of the file's pages that is read most often, in millionths; 0: all pages are read alike.
    pub hot: u32,
    /// The part of the random reads that go to the hot pages, in millionths.
    pub hot_reads: u32,
}

/// A kernel lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Whether several readers may hold the lock at once.
    pub readers: bool,
    /// Whether a waiting task lends its unit's CPUs to the holder (seed 000, section 3.4).
    pub inherit: bool,
    /// Whether a waiting task spins on its CPU; else it sleeps.
    pub spins: bool,
    /// Whether the last holder may take the lock again while its cache line is on its way to the next task;
    /// only for a lock that spins.
    pub unfair: bool,
    /// The time to move the lock's cache line from one CPU to another, in ns; only for a lock that spins.
    pub line_ns: Time,
}

/// What processes of any job wait for until another process signals it: a condition variable, or a
/// semaphore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// Whether a signal for which no process waits is kept for the next that waits, as by a semaphore; else
    /// it is lost, as by a condition variable.
    pub counts: bool,
}

/// A periodic timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timer {
    /// Its name.
    pub name: String,
    /// Whether all processes share one timer; else each has its own.
    pub shared: bool,
}

/// The steps and the memory use of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its working set of anonymous memory, in bytes.
    pub memory_bytes: u64,
    /// Whether the working set is resident when the process begins, if there is room, since the process was
    /// there before. Else it grows as the process touches it.
    pub resident: bool,
    /// The CPU time in which the process touches each page of its working set once, in ns.
    pub reuse_ns: Time,
    /// The cache lines that the process loads again after a migration, in bytes.
    pub hot_bytes: u64,
    /// The part of its CPU time that the process waits for memory while all its memory is in its own node, in
    /// millionths.
    pub stalled: u32,
    /// The part of its CPU time that the process waits for data of its job's other processes while all that
    /// data is in its own node, in millionths.
    pub shares: u32,
    /// The part of `shares` that is for data of the job's first process, in millionths. The rest is spread
    /// evenly over the other processes.
    pub of_first: u32,
    /// Whether each run of the program is a job of its own.
    pub is_job: bool,
    /// The steps, in order. The process ends after the last.
    pub ops: Vec<Op>,
}

/// A random amount, drawn anew for each use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// The mean: nanoseconds or bytes.
    pub mean: u64,
    /// The distribution around the mean.
    pub spread: Spread,
}

/// The distribution of an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Constant.
    None,
    /// Uniform within plus or minus this many millionths of the mean, at most 1,000,000.
    Uniform(u32),
    /// Exponentially distributed.
    Exponential,
}

impl Program {
    /// Whether the program has an endless loop, so that its process never ends by itself.
    pub fn runs_for_ever(&self) -> bool {
        let mut ops = self.ops.iter().enumerate();
        ops.any(|(index, op)| matches!(op, Op::Again { times: 0, .. }) && !is_timed(&self.ops, index))
    }
}

/// Whether the loop that ends with the [`Op::Again`] at `index` also ends after a time.
pub(crate) fn is_timed(ops: &[Op], index: usize) -> bool {
    index > 0 && matches!(ops[index - 1], Op::Over { .. })
}

/// One step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Computes.
    Cpu {
        /// The CPU time of the step alone on the machine, in ns.
        work: Amount,
        /// The part of the work that is kernel work, in millionths.
        kernel: u32,
        /// Bus transactions per ms, alone on the machine.
        bus_per_ms: u32,
        /// The working set in the last-level cache, in bytes.
        cache_bytes: u64,
        /// The part of a core that the step uses if alone on the core, in millionths.
        core: u32,
    },
    /// Reads from a file, through the page cache; blocks while pages come from the disk.
    Read {
        /// The file's index.
        file: u16,
        /// The size of the access, in bytes.
        bytes: Amount,
        /// Whether the access begins anywhere in the file; else it begins where the process's last access
        /// ended.
        random: bool,
        /// Whether every page comes from the disk, past the page cache.
        direct: bool,
    },
    /// Writes to a file, into the page cache.
    Write {
        /// The file's index.
        file: u16,
        /// The size of the access, in bytes.
        bytes: Amount,
        /// Whether the access begins anywhere in the file; else it begins where the process's last access
        /// ended.
        random: bool,
        /// Whether the step waits until the data is on the disk.
        sync: bool,
        /// Whether every page goes to the disk, past the page cache. The step waits for it.
        direct: bool,
    },
    /// Writes the one sector that holds a file's metadata.
    Metadata {
        /// The file's index.
        file: u16,
        /// Whether the process goes on before the sector is on the disk.
        delayed: bool,
    },
    /// Sleeps.
    Sleep {
        /// The time, in ns.
        span: Amount,
    },
    /// Stays on its CPU until this much time has passed, whether it had a CPU in that time or not.
    Busy {
        /// The time, in ns.
        span: Amount,
    },
    /// Sleeps to the timer's next release, one period after the last one. The first period begins when the
    /// process starts. If the release has passed, the process goes on at once.
    Timer {
        /// The timer's index.
        timer: u16,
        /// The period, in ns.
        period_ns: Time,
        /// Whether the next period begins with the missed release; else it begins now.
        catch_up: bool,
    },
    /// Waits for a signal of an event. With a lock, [`Op::Acquire`] of the same lock follows.
    Wait {
        /// The event's index.
        event: u16,
        /// The lock that the process releases as it begins to wait.
        lock: Option<u16>,
    },
    /// Wakes the process that has waited for an event the longest.
    Signal {
        /// The event's index.
        event: u16,
        /// Wakes all processes that wait for the event.
        all: bool,
    },
    /// Runs another program several times, a number of them at a time, and waits until all runs have ended.
    Run {
        /// The program's index.
        program: u32,
        /// The number of runs in all.
        times: u32,
        /// The number of runs at a time.
        at_once: u32,
        /// Whether the process goes on with the next step; it then waits for the runs at the end of its
        /// program.
        beside: bool,
    },
    /// Waits until this number of processes with the same parent have come to the barrier.
    Barrier {
        /// The number of processes.
        parties: u32,
        /// The event at which processes of any parent meet.
        event: Option<u16>,
        /// For how long a waiting process spins on its CPU before it sleeps, in ns; [`Time::MAX`]: it never
        /// sleeps.
        spin_ns: Time,
    },
    /// Takes a lock.
    Acquire {
        /// The lock's index.
        lock: u16,
        /// As a reader.
        read: bool,
    },
    /// Releases a lock.
    Release {
        /// The lock's index.
        lock: u16,
    },
    /// Ends a loop: jumps back to the loop's first step until the steps have run `times` times.
    Again {
        /// The loop's first step, an index into the program's ops.
        to: u32,
        /// The number of iterations in all; 0: endless.
        times: u32,
        /// The process's loop counter for this loop: the loop's nesting depth, below [`LOOPS_MAX`].
        counter: u8,
    },
    /// Begins a loop that ends after a time: the time counts from here.
    Begin {
        /// The loop's counter.
        counter: u8,
    },
    /// Ends such a loop if the time has passed: skips the loop's [`Op::Again`], which is the next op.
    Over {
        /// The loop's counter.
        counter: u8,
        /// The time, in ns.
        span_ns: Time,
    },
    /// Takes the next piece of the job's work, at the beginning and at the end of the steps of a piece: goes
    /// on at `to`, or at `past` if no piece is left. All processes of a job take pieces from one supply.
    Piece {
        /// The number of pieces in all.
        pieces: u32,
        /// The piece's first step, an index into the program's ops.
        to: u32,
        /// The first step after the piece.
        past: u32,
    },
}

/// The deepest nesting of loops.
pub const LOOPS_MAX: usize = 4;

/// A process that a scenario starts, with all processes that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The unit of its processes.
    pub unit: UnitId,
    /// The index of the program that it runs.
    pub program: u32,
    /// When the first copy starts, in ns.
    pub start_ns: Time,
    /// The number of copies.
    pub count: u32,
    /// Time between the starts of two copies, in ns.
    pub every_ns: Time,
    /// Deadline after each sleep: time within which a process should sleep again or end, in ns. Counted, not
    /// enforced.
    pub deadline_ns: Option<Time>,
    /// The disk of its files and its swap; the machine's first disk by default.
    pub disk: u16,
    /// Whether the simulation may end before the job.
    pub background: bool,
}
