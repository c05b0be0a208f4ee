//! What a scenario says, after its files were read: amounts in nanoseconds, bytes and millionths, references as indices.

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::Machine;
use commonhold_policy::rights::Change;

use crate::Time;

/// A contract, a machine and a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// What each unit holds, and the scheme.
    pub contract: Contract,
    /// The hardware and what its kernel costs.
    pub hardware: Hardware,
    /// What the jobs do.
    pub workload: Workload,
}

/// The simulated machine: facts that policies see, and what things cost on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// What policies see: CPUs, nodes, memory. Its disks are those of `disks`, in the same order.
    pub machine: Machine,
    /// How its kernel holds units to their memory.
    pub enforces: Enforces,
    /// What the kernel costs.
    pub kernel: KernelCosts,
    /// How far the memory of the nodes is; without it all is equally far.
    pub latency: Option<Latency>,
    /// Per-CPU cache, for what a migration costs; without it a migration is free.
    pub cache: Option<Cache>,
    /// By how much longer a task takes of whose working set nothing is in the last-level cache, in millionths. How large the
    /// caches are, the machine says; without that nobody shares one.
    pub last_cache_miss: u64,
    /// The memory bus; without it memory traffic never waits.
    pub bus: Option<Bus>,
    /// Contention among CPUs for kernel memory and spin locks; without it kernel work scales.
    pub contention: Option<Contention>,
    /// CPU time that interrupts take; without it they take none.
    pub interrupts: Option<Interrupts>,
    /// The disks.
    pub disks: Vec<Disk>,
}

/// How a simulated kernel holds units to their memory, and to their parts of disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforces {
    /// By allowances that are never exceeded but by force, with a pager for each unit, and disks that schedule by shares
    /// (seed 000, sections 3.2 and 3.3).
    Irix,
    /// As Linux does with control groups: bounds that slow down, protection, and one reclaim for the whole machine; rates
    /// and weights for disks.
    #[default]
    Linux,
}

impl Enforces {
    /// As `machine.toml` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Enforces::Irix => "irix",
            Enforces::Linux => "linux",
        }
    }
}

/// What a simulated kernel costs, and when it looks up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCosts {
    /// The clock tick, in ns; each CPU's ticks are staggered evenly over it. 0: no ticks.
    pub tick_ns: Time,
    /// Which task a CPU runs next.
    pub scheduler: Scheduler,
    /// How long a task runs before others get a turn, in ns.
    pub slice_ns: Time,
    /// What a switch to another task costs, in ns.
    pub switch_ns: Time,
    /// How long an inter-processor interrupt takes to arrive, in ns.
    pub ipi_ns: Time,
    /// How long a signal takes to arrive, in ns.
    pub signal_ns: Time,
    /// How long a disk's or a timer's interrupt takes to arrive in the mean, in ns; exponentially distributed.
    pub interrupt_ns: Time,
    /// CPU time of a page fault that needs no disk, in ns.
    pub fault_ns: Time,
    /// CPU time of setting up one disk request, in ns.
    pub request_ns: Time,
    /// CPU time of creating a process, in ns.
    pub fork_ns: Time,
    /// When a lent CPU goes back.
    pub call_back: CallBack,
    /// Size of a page frame, in bytes.
    pub frame_bytes: u64,
    /// Memory that the kernel keeps for itself, in bytes; charged to the `kernel` unit.
    pub memory_bytes: u64,
    /// Pages that one fault or one page-out moves at once.
    pub cluster_pages: u32,
    /// How often the memory policy redistributes, in ns.
    pub memory_period_ns: Time,
    /// How much memory may be lent.
    pub memory_loans: MemoryLoans,
    /// How many read-ahead requests are kept outstanding for a file that is read in sequence; 0: none.
    pub read_ahead: u32,
    /// How many write-behind requests are under way at once, at least 1.
    pub write_behind: u32,
    /// Size of a read-ahead or write-behind request, in sectors.
    pub request_sectors: u32,
    /// Dirty pages are written behind when they are more than this part of memory, in millionths.
    pub dirty_limit: u64,
    /// Dirty pages are written behind when they are this old, in ns.
    pub dirty_age_ns: Time,
}

/// The scheduler that decides at every switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The project's own.
    Commonhold,
    /// IRIX 5: priorities that degrade with use. Under the scheme `smp` only.
    IrixDecay,
    /// Linux 2.4: epochs. Under the scheme `smp` only.
    Linux24,
    /// Hurricane: each task has a CPU, which the policy's placement says. Under the scheme `smp` only.
    Hurricane,
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Scheduler; 4] =
        [Scheduler::Commonhold, Scheduler::IrixDecay, Scheduler::Linux24, Scheduler::Hurricane];

    /// As `machine.toml` and `commonhold sim --scheduler` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Scheduler::Commonhold => "commonhold",
            Scheduler::IrixDecay => "irix-decay",
            Scheduler::Linux24 => "linux-2.4",
            Scheduler::Hurricane => "hurricane",
        }
    }

    /// Whether it can hold a scheme: only ours knows units.
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
    /// At its next clock tick, or when it enters the kernel, whichever is first (seed 000, section 3.1).
    Entry,
    /// At once, by an inter-processor interrupt.
    Now,
}

/// How much memory a unit is lent that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLoans {
    /// No more than could be called back from it within the contract's `call-back-memory`, by what its pages are and how
    /// fast pages were written so far; what is called back is written at once. As on live machines.
    InTime,
    /// All that is idle, whatever it takes to call it back; what is called back is written as it is needed (seed 000,
    /// section 3.2, which has no bound).
    Any,
}

/// A CPU's cache, for the refill after a switch or a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// Bytes per CPU.
    pub bytes: u64,
    /// Bytes per line.
    pub line_bytes: u64,
    /// What fetching a line costs, in ns.
    pub miss_ns: Time,
}

/// What a bus transaction transfers where no cache says it.
pub(crate) const LINE_BYTES: u64 = 64;

impl Hardware {
    /// What a bus transaction transfers, in bytes.
    pub fn line_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(LINE_BYTES, |cache| cache.line_bytes)
    }
}

/// What loads from memory take that miss all caches (seed 001, table 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// From memory of the CPU's own node, in ns; at least 1.
    pub local_ns: Time,
    /// By the CPU's node, then by the memory's, in the machine's order, in ns; at least `local_ns`.
    pub between_ns: Vec<Vec<Time>>,
    /// Of such a load, the time that it has a node's memory, a socket's bus and the ring between sockets to itself, in
    /// ns; without it they carry any number at once.
    pub service: Option<Service>,
}

/// How long a load has each part of the way to itself, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// The memory of a node.
    pub module_ns: Time,
    /// The bus of a socket, which a load from another node crosses, and that of the other socket.
    pub bus_ns: Time,
    /// What joins the sockets.
    pub ring_ns: Time,
}

/// The memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
    /// Transactions that it carries in a millisecond.
    pub transactions_per_ms: u64,
}

/// Kernel work slows down with the number of CPUs that do it (seed 000, sections 3.4 and 4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    /// Part of kernel-intensive work that holds the one spin lock (memlock), in millionths.
    pub lock_demand: u64,
    /// What each further CPU in kernel-intensive work adds to its memory stall, in millionths of the work.
    pub stall: u64,
}

/// Interrupts, as the CPU time that they take from tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupts {
    /// So much of one CPU's time, in millionths.
    pub part: u64,
    /// Of this CPU; of all alike if not said.
    pub cpu: Option<u32>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its mechanics.
    pub model: DiskModel,
    /// How its queue is served; by the scheme if not said.
    pub order: Option<DiskOrder>,
    /// Whether a kernel that enforces as Linux does honours units' weights on it.
    pub weighs: bool,
    /// The bandwidth-difference threshold, in sectors (seed 000, section 3.3).
    pub threshold_sectors: u64,
    /// After this long, a unit's count of transferred sectors is halved, in ns (seed 000: 500 ms).
    pub half_life_ns: Time,
    /// Requests in a batch of YFQ, 1 or more (seed 004, section 5.4: 2).
    pub batch: u32,
}

/// A disk's mechanics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskModel {
    /// The HP 97560 (Ruemmler and Wilkes 1994), all times divided by `scale`.
    Hp97560 {
        /// 1 is the disk as built; seed 000, section 4.5, uses 2.
        scale: u32,
    },
    /// One request at a time, each with a fixed time and a transfer rate.
    Fixed {
        /// Per request, in ns.
        access_ns: Time,
        /// Per sector, in ns.
        sector_ns: Time,
        /// How many sectors it has.
        sectors: u64,
    },
    /// Several requests at a time, no mechanics.
    Ssd {
        /// Requests served side by side.
        channels: u32,
        /// Per read request, in ns.
        read_ns: Time,
        /// Per write request, in ns.
        write_ns: Time,
        /// Per sector, in ns.
        sector_ns: Time,
        /// How many sectors it has.
        sectors: u64,
    },
}

/// In which order a disk serves its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOrder {
    /// C-SCAN: by head position alone.
    Position,
    /// By the units' bandwidth alone.
    Isolation,
    /// By head position among the units that pass the fairness criterion (seed 000, section 3.3).
    Fair,
    /// The same with bounded batches and anticipation: what this project would run.
    Batched,
    /// As the block layer of Linux, which takes orders: by weight, within rates.
    Linux,
    /// By virtual finish times, in batches that are served by head position (seed 004, section 5.4).
    Yfq,
}

/// What the jobs do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// When the simulation ends at the latest.
    pub horizon_ns: Time,
    /// How often to note which job has which CPU, in ns; `None`: never.
    pub trace_ns: Option<Time>,
    /// Files, by index.
    pub files: Vec<File>,
    /// Locks, by index.
    pub locks: Vec<Lock>,
    /// Programs, by index.
    pub programs: Vec<Program>,
    /// Jobs, in the order of the file.
    pub jobs: Vec<Job>,
    /// Changes of rights, in the order in which they are made.
    pub changes: Vec<RightsChange>,
    /// Changes of rights that wait for a job.
    pub awaited: Vec<AwaitedChange>,
}

/// A change of rights at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RightsChange {
    /// When.
    pub at_ns: Time,
    /// What.
    pub change: Change,
}

/// A change of rights that is made when a job has come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedChange {
    /// Which, an index into the workload's jobs.
    pub job: u16,
    /// The number of its rounds after which the change comes, at least 1.
    pub rounds: u64,
    /// What.
    pub change: Change,
}

/// A file on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its disk; the job's if not said.
    pub disk: Option<u16>,
    /// One for the whole machine; else each job has its own.
    pub shared: bool,
    /// Contiguous pieces have this size, in bytes; 0: the whole file is one piece.
    pub fragment_bytes: u64,
    /// So much of it is in memory twice, in bytes: those who read it copy it into a cache of their own.
    pub buffer_bytes: u64,
}

/// A kernel lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Several readers may hold it at once.
    pub readers: bool,
    /// A task that waits lends its unit's CPUs to the holder (seed 000, section 3.4).
    pub inherit: bool,
    /// A task that waits does so on its CPU.
    pub spins: bool,
    /// How long its cache line takes from one CPU to another, in ns; only of a lock that spins.
    pub line_ns: Time,
}

/// What a process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its working set of anonymous memory, in bytes.
    pub memory_bytes: u64,
    /// It comes back to each page of its working set once in so much of its CPU time, in ns.
    pub reuse_ns: Time,
    /// Lines that it would have in the cache again after a migration, in bytes.
    pub hot_bytes: u64,
    /// Part of its CPU time that it waits for memory, as long as that is all in its own node, in millionths.
    pub stalled: u32,
    /// Part of its CPU time that it waits for data of the other processes of its job, as long as that is all in its own node,
    /// in millionths.
    pub shares: u32,
    /// Part of that which is for data of the job's first process, in millionths; the rest is spread evenly over the others.
    pub of_first: u32,
    /// Each run of it is a job of its own.
    pub is_job: bool,
    /// The steps, in order. Ends where the vector ends.
    pub ops: Vec<Op>,
}

/// An amount, drawn anew each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// The mean: nanoseconds or bytes.
    pub mean: u64,
    /// How it varies.
    pub spread: Spread,
}

/// How an amount varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Not at all.
    None,
    /// Uniform within plus or minus this many millionths of the mean, at most 1,000,000.
    Uniform(u32),
    /// Exponentially distributed.
    Exponential,
}

impl Program {
    /// Whether it never ends by itself.
    pub fn runs_for_ever(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Again { times: 0, .. }))
    }
}

/// One step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Computes.
    Cpu {
        /// Time it takes alone on the machine, in ns.
        work: Amount,
        /// Part of it that is kernel work, in millionths.
        kernel: u32,
        /// Bus transactions per ms when alone.
        bus_per_ms: u32,
        /// What it comes back to in the last-level cache, in bytes.
        cache_bytes: u64,
        /// The part of a core that it uses when alone there, in millionths.
        core: u32,
    },
    /// Reads from a file, through the page cache; blocks while pages come from the disk.
    Read {
        /// Which.
        file: u16,
        /// How much, in bytes.
        bytes: Amount,
        /// Anywhere in the file; else where the process' last one ended.
        random: bool,
    },
    /// Writes to a file, into the page cache.
    Write {
        /// Which.
        file: u16,
        /// How much, in bytes.
        bytes: Amount,
        /// Anywhere in the file; else where the process' last one ended.
        random: bool,
        /// Waits until it is on the disk.
        sync: bool,
    },
    /// Writes the one sector that holds a file's metadata.
    Metadata {
        /// Whose.
        file: u16,
        /// Does not wait for it.
        delayed: bool,
    },
    /// Sleeps.
    Sleep {
        /// How long, in ns.
        span: Amount,
    },
    /// Runs another program several times, a number of them at a time, and waits until all have ended.
    Run {
        /// Which.
        program: u16,
        /// How many in all.
        times: u32,
        /// How many at once.
        at_once: u32,
        /// Goes on meanwhile; waits at the end of the program.
        beside: bool,
    },
    /// Waits until this many processes with the same parent have come here.
    Barrier {
        /// How many.
        parties: u32,
        /// Waits on the CPU, spinning.
        spin: bool,
    },
    /// Takes a lock.
    Acquire {
        /// Which.
        lock: u16,
        /// As a reader.
        read: bool,
    },
    /// Gives a lock back.
    Release {
        /// Which.
        lock: u16,
    },
    /// Goes back to an earlier step until the steps in between have run `times` times.
    Again {
        /// The first of them, an index into the program's ops.
        to: u32,
        /// How many times in all; 0: for ever.
        times: u32,
        /// Which of the process's loop counters counts; nesting depth, below [`LOOPS_MAX`].
        counter: u8,
    },
}

/// Loops nest no deeper.
pub const LOOPS_MAX: usize = 4;

/// A process that is started, with all that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The unit it belongs to.
    pub unit: UnitId,
    /// What it runs.
    pub program: u16,
    /// When it starts, in ns.
    pub start_ns: Time,
    /// How many copies are started.
    pub count: u32,
    /// Time between the starts of two of them, in ns.
    pub every_ns: Time,
    /// From the end of a sleep to the next, or to the end of the process, it is to be no longer, in ns.
    pub deadline_ns: Option<Time>,
    /// The disk of its files and its swap; the first if not said.
    pub disk: u16,
    /// Runs on and on: the simulation does not wait for it.
    pub background: bool,
}
