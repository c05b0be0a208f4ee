//! Observations of one run: locks with their waiters and holders, wake-ups, interrupts, and disks.

use crate::states::State;

/// A place in a program, or in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Site {
    /// The function, or file and offset if it has no name.
    pub function: String,
    /// `main.c:41`, if there is debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// The kind of thing that threads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A lock of one thread at a time.
    Mutex,
    /// A lock of several readers, or of one writer.
    ReadWrite,
    /// A condition variable.
    Condition,
    /// A barrier: all threads wait for the last one.
    Barrier,
    /// A semaphore.
    Semaphore,
    /// A parked thread: another thread unparks it.
    Park,
    /// One of the kinds above; it is unknown which one.
    Futex,
    /// A lock on a file.
    File,
    /// In the kernel: a lock of one task at a time; waiting tasks sleep.
    KernelMutex,
    /// In the kernel: a lock of several readers, or of one writer; waiting tasks sleep.
    KernelReadWrite,
    /// In the kernel: a lock for which waiting tasks spin.
    KernelSpin,
    /// In the kernel: another lock.
    KernelOther,
}

impl Kind {
    /// Whether it is a lock, whose holder excludes other threads. Condition variables, barriers and the like
    /// have no holder.
    pub fn has_holder(self) -> bool {
        !matches!(self, Kind::Condition | Kind::Barrier | Kind::Semaphore | Kind::Park)
    }

    /// Whether it is a lock in the kernel.
    pub fn is_kernels(self) -> bool {
        matches!(self, Kind::KernelMutex | Kind::KernelReadWrite | Kind::KernelSpin | Kind::KernelOther)
    }
}

/// A lock, or another thing that threads waited for, in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its kind.
    pub kind: Kind,
    /// Its name, if it is a variable.
    pub name: Option<String>,
    /// The time that threads waited for it in ns, by call site.
    pub waits: Vec<(Site, u64)>,
    /// What its holders did during these waits.
    pub holds: Vec<Hold>,
}

impl Lock {
    /// The total time that threads waited for it.
    pub fn waited_ns(&self) -> u64 {
        self.waits.iter().map(|(_, ns)| ns).sum()
    }
}

/// What the holder of a lock does while other threads wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "what", content = "state")]
pub enum Holding {
    /// It is running or runnable.
    Runs,
    /// It waits, in this state.
    Waits(State),
    /// Unknown: the lock does not store its holder, or its holder changed at that moment.
    Unknown,
}

/// The holds of a lock, by threads of one name, while other threads waited for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// What the holder did.
    pub holding: Holding,
    /// The place in the program where the holder was, if known.
    pub site: Option<Site>,
    /// The holder's thread name.
    pub thread: String,
    /// The waiting time of other threads during these holds.
    pub ns: u64,
}

/// The wake-ups of threads of one name by one waker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// The name of the threads that waited.
    pub waiter: String,
    /// The place in the kernel where they waited.
    pub at: Option<Site>,
    /// The thread or interrupt that woke them.
    pub waker: Waker,
    /// The total time that they had waited when they were woken.
    pub waited_ns: u64,
}

/// What wakes a thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "who", content = "name")]
pub enum Waker {
    /// Threads of the program, of that name.
    Thread(String),
    /// Another program, of that name.
    Other(String),
    /// An interrupt: a device, a timer.
    Interrupt,
}

/// Interrupts on a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptTime {
    /// The CPU's number.
    pub cpu: u32,
    /// CPU time in interrupts and softirqs, as the kernel accounts it.
    pub ns: u64,
    /// Number of interrupts by source.
    pub sources: Vec<(String, u64)>,
}

/// I/O of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name for the disk.
    pub name: String,
    /// The mount points of its file systems.
    pub mounts: Vec<String>,
    /// Requests completed.
    pub requests: u64,
    /// Total time of these requests, from submission to completion.
    pub waited_ns: u64,
    /// The time during which at least one request was in flight.
    pub busy_ns: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// All observations of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// Locks.
    pub locks: Vec<Lock>,
    /// Wake-ups.
    pub wakes: Vec<Wake>,
    /// Interrupts, by CPU of the program.
    pub interrupts: Vec<InterruptTime>,
    /// Disks with I/O.
    pub disks: Vec<Disk>,
    /// Bytes that the program itself read from disks, and wrote to disks.
    pub io_bytes: Option<(u64, u64)>,
}
