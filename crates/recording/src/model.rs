//! The content of a recording. Times are in nanoseconds since the recording began, unless a field says
//! otherwise.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a recording says of itself and of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the program that recorded.
    pub program: String,
    /// The kernel's release.
    pub kernel: String,
    /// When the recording began, in milliseconds since 1970.
    pub began_wall_ms: u64,
    /// The machine, as the text of a machine file.
    pub machine: String,
    /// The contract in force when the recording began, with the tickets of that moment.
    pub contract: String,
    /// The file from which the daemon read its contract.
    pub contract_file: String,
    /// The scheme in force: `isolate`, `quota` or `smp`.
    pub scheme: String,
    /// The active backend: `kernel`, `cgroup` or `user`.
    pub backend: String,
    /// How threads were observed.
    pub method: Method,
    /// The interval between two [`Sample`]s.
    pub sample_ns: u64,
}

/// How the activity of threads was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// Every switch, wake-up and fork, from the kernel's scheduler.
    Events,
    /// The threads' clocks, read from /proc at intervals of this length.
    Clocks {
        /// The interval.
        every_ns: u64,
    },
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Events => f.write_str("scheduler events"),
            Method::Clocks { every_ns } => write!(f, "threads' clocks, every {} ms", every_ns / 1_000_000),
        }
    }
}

/// A block of a recording, after the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Threads that were first seen.
    Threads(Vec<Thread>),
    /// Events in the order of time; they follow those of the blocks before.
    Events(Vec<TimedEvent>),
    /// What threads used in an interval; only with [`Method::Clocks`].
    Usage(Usage),
    /// The state of units, processes and disks.
    Sample(Sample),
    /// Another contract came into force: it was reloaded, or tickets changed.
    Contract(ContractChange),
    /// How a resource is held: at the first sample, and when it changed.
    Holding(HoldingChange),
    /// The end; the last block.
    End(End),
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number. The kernel reuses numbers, so a number may occur again after its thread has ended.
    pub tid: u32,
    /// The number of its process.
    pub pid: u32,
    /// Its name, as in /proc/PID/comm.
    pub name: String,
    /// The path of its unit; empty if it is in no unit.
    pub unit: String,
    /// When it was first seen; the thread may be older.
    pub seen_ns: u64,
}

/// An event, and when it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedEvent {
    /// The time of the event.
    pub at_ns: u64,
    /// The event.
    pub event: Event,
}

/// An event of the kernel. Threads are given by number; 0 is the idle task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A CPU switched from one thread to another.
    Switch {
        /// The CPU.
        cpu: u32,
        /// The thread that left the CPU.
        from: u32,
        /// Why it left.
        left: Left,
        /// The thread that runs next.
        to: u32,
    },
    /// A thread became runnable.
    Wake {
        /// The CPU that reported the wake-up: the waker's, or the CPU to which the thread was sent if the
        /// waker only queued the wake-up there.
        cpu: u32,
        /// The thread that was woken.
        thread: u32,
        /// The thread that ran on `cpu`: it woke the thread, or an interrupt did, which interrupted it.
        by: u32,
        /// Whether an interrupt woke the thread; also `true` if that is unknown.
        by_interrupt: bool,
    },
    /// A thread made another.
    Fork {
        /// The thread that called fork or clone.
        parent: u32,
        /// The new thread.
        child: u32,
    },
    /// A thread handed a request to a disk.
    Transfer {
        /// The thread.
        thread: u32,
        /// The device: major number times 2^20, plus minor number.
        device: u32,
        /// The first sector of 512 bytes.
        sector: u64,
        /// The length in bytes.
        bytes: u32,
        /// Whether it writes.
        write: bool,
    },
}

/// Why a thread left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// It is still runnable.
    Preempted,
    /// It sleeps, and a signal can wake it.
    Asleep,
    /// It sleeps, and no signal can wake it: it usually waits for a disk.
    Blocked,
    /// It has ended.
    Ended,
}

/// What threads used in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The end of the interval.
    pub at_ns: u64,
    /// Its length.
    pub over_ns: u64,
    /// The threads that ran or waited for a CPU.
    pub threads: Vec<ThreadUsage>,
}

/// What a thread used in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// Its number.
    pub tid: u32,
    /// CPU time.
    pub ran_ns: u64,
    /// The time for which it was runnable without a CPU.
    pub waited_ns: u64,
    /// How often it got a CPU.
    pub turns: u32,
}

/// The state of units, processes and disks at a time. Sums are since the daemon opened its accounts, or since
/// a process began; differences of two samples are what counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// The time of the sample.
    pub at_ns: u64,
    /// The units, from the daemon's accounts.
    pub units: Vec<UnitSample>,
    /// CPUs on loan, on average over the last second.
    pub loans: Vec<Loan>,
    /// Processes in units, at most as many as the recorder's limit.
    pub processes: Vec<ProcessSample>,
    /// Processes in units that were left out because of this limit or the daemon's, which lists 2,000 of a
    /// unit; and those some of whose threads were left out.
    pub processes_left_out: u32,
    /// Disks.
    pub disks: Vec<DiskSample>,
}

/// A unit's accounts, with those of its sub-units.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnitSample {
    /// Its path.
    pub path: String,
    /// Its processes, without those of sub-units.
    pub processes: u32,
    /// Its entitlement now, in millionths of a CPU.
    pub entitled_micro_cpus: u64,
    /// Its home CPUs, such as `0-3,8`.
    pub owned: String,
    /// CPU time: entitled, used, lent, borrowed.
    pub entitled_ns: u64,
    /// CPU time used.
    pub used_ns: u64,
    /// CPU time of others on its home CPUs.
    pub lent_ns: u64,
    /// Its CPU time on others' home CPUs.
    pub borrowed_ns: u64,
    /// The time for which its threads were runnable without a CPU.
    pub waited_ns: u64,
    /// Call-backs of CPUs.
    pub call_backs: CallBacks,
    /// Its memory, if memory is controlled or counted.
    pub memory: Option<MemorySample>,
    /// Its transfers, if disks are counted.
    pub disk: Option<DiskUse>,
    /// Its waits, by resource and cause.
    pub waits: Vec<Wait>,
    /// The verdict on each resource: `cpu`, `kept`.
    pub verdicts: Vec<(String, String)>,
}

/// Call-backs of CPUs that a unit had lent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallBacks {
    /// Their number.
    pub count: u64,
    /// The sum of their lengths.
    pub sum_ns: u64,
    /// The longest since the accounts were opened.
    pub max_ns: u64,
    /// The histogram: upper bounds, ascending, each with the number of call-backs below it and not below the
    /// previous one. Empty if the backend does not count each call-back.
    pub classes: Vec<(u64, u64)>,
}

/// A unit's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemorySample {
    /// Its entitlement now, in bytes.
    pub entitled: u64,
    /// What it uses now, in bytes.
    pub used: u64,
    /// What it lends now, in bytes.
    pub lent: u64,
    /// What it borrows now, in bytes.
    pub borrowed: u64,
    /// Time that one of its processes was stalled for memory.
    pub stalled_ns: u64,
    /// Pages that were read again soon after they had been reclaimed, in bytes.
    pub refaulted: u64,
}

/// What a unit transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskUse {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Requests.
    pub requests: u64,
    /// Time that one of its processes was stalled for a disk.
    pub stalled_ns: u64,
}

/// Why a unit waited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// `cpu`, `memory`, `disk` or `bus`.
    pub resource: String,
    /// The cause, as in the daemon's protocol.
    pub cause: String,
    /// The unit that had the resource, if the cause is another unit.
    pub unit: Option<String>,
    /// The waiting time.
    pub ns: u64,
}

/// CPUs on loan from one unit to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// The unit that lends.
    pub lender: String,
    /// The unit that borrows.
    pub borrower: String,
    /// Millionths of a CPU.
    pub micro_cpus: u64,
}

/// A process: sums since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessSample {
    /// Its number.
    pub pid: u32,
    /// Resident memory of its own, in bytes: all of it but pages of files.
    pub anonymous: u64,
    /// Resident pages of files and of shared memory, in bytes.
    pub of_files: u64,
    /// Page faults.
    pub faults: u64,
    /// Page faults that needed a disk.
    pub major_faults: u64,
    /// Bytes read from disks, if the recorder may know.
    pub read: u64,
    /// Bytes that it had written to disks, if the recorder may know.
    pub written: u64,
}

/// A disk: sums since the machine started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskSample {
    /// Its name, such as `sda`.
    pub name: String,
    /// The device, as in [`Event::Transfer`].
    pub device: u32,
    /// Completed reads, and the bytes read.
    pub reads: (u64, u64),
    /// Completed writes, and the bytes written.
    pub writes: (u64, u64),
    /// Time that it was busy.
    pub busy_ns: u64,
}

/// Another contract came into force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractChange {
    /// When the recorder noticed it, at the next sample.
    pub at_ns: u64,
    /// The contract, with the tickets of that moment.
    pub text: String,
}

/// How a resource is held from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingChange {
    /// When the recorder noticed it, at the next sample.
    pub at_ns: u64,
    /// `cpu`, `memory`, `disk` or `bus`; or `jobs` or `gangs`.
    pub resource: String,
    /// Whether it is held, if only partly.
    pub is_held: bool,
    /// By what means, or why it is not held: a sentence without a subject.
    pub how: String,
}

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When it ended.
    pub at_ns: u64,
    /// Why it ended.
    pub why: Why,
    /// Events that the kernel could not hand over, because the recorder was too slow.
    pub lost: u64,
    /// Events that came too late to be put in order, and are left out.
    pub disordered: u64,
    /// CPU time that the recorder used.
    pub recorder_ns: u64,
    /// The interruptions of the daemon's accounts: for how long there was no daemon to ask.
    pub without_accounts_ns: u64,
}

/// Why a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The time given by `--for` was over.
    Time,
    /// The file reached the size given by `--size`.
    Size,
    /// A signal ended it.
    Told,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Time => "the time was over",
            Why::Size => "the file reached its limit",
            Why::Told => "a signal ended it",
        })
    }
}
