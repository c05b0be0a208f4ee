//! What was observed of one run: locks with their waiters and holders, wake-ups, interrupts, and disks.

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

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One thread at a time.
    Mutex,
    /// Readers together, or one writer.
    ReadWrite,
    /// A condition variable.
    Condition,
    /// A barrier: all threads wait for the last one.
    Barrier,
    /// A semaphore.
    Semaphore,
    /// A parked thread: another thread unparks it.
    Park,
    /// One of the above, unknown which.
    Futex,
    /// A lock on a file.
    File,
    /// In the kernel: one task at a time, the others sleep.
    KernelMutex,
    /// In the kernel: readers together, or one writer, and the others sleep.
    KernelReadWrite,
    /// In the kernel: the others spin.
    KernelSpin,
    /// In the kernel: some other lock.
    KernelOther,
}

impl Kind {
    /// Whether it has a holder that excludes others. Condition variables, barriers and the like have none.
    pub fn has_holder(self) -> bool {
        !matches!(self, Kind::Condition | Kind::Barrier | Kind::Semaphore | Kind::Park)
    }

    /// Whether it is a lock in the kernel.
    pub fn is_kernels(self) -> bool {
        matches!(self, Kind::KernelMutex | Kind::KernelReadWrite | Kind::KernelSpin | Kind::KernelOther)
    }
}

/// A lock of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What it is.
    pub kind: Kind,
    /// Its name, if it is a variable.
    pub name: Option<String>,
    /// Time waited for it in ns, by call site.
    pub waits: Vec<(Site, u64)>,
    /// What its holders did meanwhile.
    pub holds: Vec<Hold>,
}

impl Lock {
    /// Total time waited for it.
    pub fn waited_ns(&self) -> u64 {
        self.waits.iter().map(|(_, ns)| ns).sum()
    }
}

/// What a holder does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "what", content = "state")]
pub enum Holding {
    /// It is running or runnable.
    Runs,
    /// It waits, in this state.
    Waits(State),
    /// The lock does not store its holder, or changed hands at that moment.
    Unknown,
}

/// A thread held the lock while others waited.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// What it did.
    pub holding: Holding,
    /// Where it was, if known.
    pub site: Option<Site>,
    /// The thread's name.
    pub thread: String,
    /// Waiting time of others during which it held the lock.
    pub ns: u64,
}

/// Threads of one name were woken by those of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// Who waited.
    pub waiter: String,
    /// Where in the kernel.
    pub at: Option<Site>,
    /// Who woke it.
    pub waker: Waker,
    /// How long it had waited.
    pub waited_ns: u64,
}

/// Who wakes a thread.
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
    /// Its number.
    pub cpu: u32,
    /// CPU time in interrupts and softirqs, as the kernel counts it.
    pub ns: u64,
    /// Number of interrupts by source.
    pub sources: Vec<(String, u64)>,
}

/// I/O of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name for it.
    pub name: String,
    /// Where its file systems are mounted.
    pub mounts: Vec<String>,
    /// Requests completed.
    pub requests: u64,
    /// Total time of these requests, from submission to completion.
    pub waited_ns: u64,
    /// Time with requests in flight.
    pub busy_ns: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// What was observed of one run.
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
    /// Bytes that the program itself read from disks and wrote to them.
    pub io_bytes: Option<(u64, u64)>,
}
