//! What was seen of one run: locks with their waiters and holders, who woke whom, interrupts, and disks.

use crate::states::State;

/// A place in a program, or in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Site {
    /// The function; where nothing names it, its file and offset.
    pub function: String,
    /// `main.c:41`, where the program has debug information.
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
    /// A thread sleeps there until another one says that something has changed.
    Condition,
    /// All threads wait there for the last.
    Barrier,
    /// Units are taken, and given back.
    Semaphore,
    /// A thread sleeps until another one lets it go on.
    Park,
    /// Something of these; which, nothing tells.
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
    /// Whether a holder keeps others out. At a condition variable, a barrier and the like, there is none.
    pub fn has_holder(self) -> bool {
        !matches!(self, Kind::Condition | Kind::Barrier | Kind::Semaphore | Kind::Park)
    }

    /// Whether it is one of the kernel's.
    pub fn is_kernels(self) -> bool {
        matches!(self, Kind::KernelMutex | Kind::KernelReadWrite | Kind::KernelSpin | Kind::KernelOther)
    }
}

/// A lock of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What it is.
    pub kind: Kind,
    /// Its name, where it is a variable of its own.
    pub name: Option<String>,
    /// How long was waited for it, and at which call site.
    pub waits: Vec<(Site, u64)>,
    /// What its holder did meanwhile.
    pub holds: Vec<Hold>,
}

impl Lock {
    /// How long was waited for it.
    pub fn waited_ns(&self) -> u64 {
        self.waits.iter().map(|(_, ns)| ns).sum()
    }
}

/// What a holder does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "what", content = "state")]
pub enum Holding {
    /// It runs, or is ready to.
    Runs,
    /// It waits, for that.
    Waits(State),
    /// The lock does not say who holds it, or it changed hands at that moment.
    Unknown,
}

/// While others waited, a thread held the lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// What it did.
    pub holding: Holding,
    /// Where it was, as far as is known.
    pub site: Option<Site>,
    /// The thread's name.
    pub thread: String,
    /// For how much of the time that was waited for the lock.
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

/// What interrupts took of a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stolen {
    /// Its number.
    pub cpu: u32,
    /// CPU time in interrupts and in what they left to do, as the kernel counts it.
    pub ns: u64,
    /// How many there were, by source.
    pub sources: Vec<(String, u64)>,
}

/// What a disk did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name for it.
    pub name: String,
    /// Where its file systems are mounted.
    pub mounts: Vec<String>,
    /// Requests that it finished.
    pub requests: u64,
    /// How long these took, from being asked, all together.
    pub waited_ns: u64,
    /// How long it had any.
    pub busy_ns: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// What was seen of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// Locks.
    pub locks: Vec<Lock>,
    /// Who woke whom.
    pub wakes: Vec<Wake>,
    /// Interrupts, by the program's CPUs.
    pub stolen: Vec<Stolen>,
    /// Disks that did anything.
    pub disks: Vec<Disk>,
    /// Bytes that the program itself read from disks and wrote to them.
    pub io_bytes: Option<(u64, u64)>,
}
