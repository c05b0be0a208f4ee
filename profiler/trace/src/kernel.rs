//! Traces the kernel's locks that a program waits for, and what wakes the program's threads. Uses BPF, which
//! needs root.
//!
//! [`Watcher::load`] loads the BPF program (`bpf/trace.bpf.c`). [`Watcher::begin`] clears earlier results and
//! starts tracing; [`Watcher::end`] stops. Only processes that this process starts, and their descendants,
//! are traced.

use std::collections::HashMap;
use std::io;
use std::process;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, PrintLevel};

pub use crate::symbols::Place;
use crate::symbols::Symbols;

/// Compiled by build.rs.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// Why kernel locks cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel rejects the program.
    #[error("the kernel rejects the program that traces its locks: {source:#}{log}")]
    Load {
        /// libbpf's error.
        source: libbpf_rs::Error,
        /// The last lines of the log of libbpf and the verifier.
        log: String,
    },
    /// A table or a tracepoint could not be used.
    #[error("cannot {what}: {source:#}")]
    Use {
        /// The operation, as a verb phrase.
        what: String,
        /// libbpf's error.
        source: libbpf_rs::Error,
    },
    /// The compiled program lacks a part, since the build was broken.
    #[error("what looks at the kernel's locks was built without {0}: build it again")]
    Part(&'static str),
    /// In a container, PIDs differ from those of the initial namespace.
    #[error("processes have other numbers here than the kernel's own: this is a container")]
    Container,
    /// The names of the kernel's functions could not be read.
    #[error("cannot read /proc/kallsyms: {0}")]
    Symbols(io::Error),
}

/// The kind of a lock in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// A lock of one task at a time; waiting tasks sleep.
    Mutex,
    /// A lock of several readers, or of one writer; waiting tasks sleep.
    ReadWrite,
    /// A lock for which waiting tasks spin.
    Spin,
    /// Another lock.
    Other,
}

/// What the holder of a lock did while other tasks waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// It slept.
    Sleeps,
    /// It was running or runnable.
    Runs,
    /// The holder is unknown.
    Unknown,
}

/// Waits for one lock at one call site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contention {
    /// The kind of the lock.
    pub kind: LockKind,
    /// Its name, if it is a variable of the kernel.
    pub name: Option<String>,
    /// The call site.
    pub at: Place,
    /// Total wait time.
    pub ns: u64,
    /// The holders: what they did, at which place, their thread name, and the wait time during these holds.
    pub holders: Vec<(Holder, Option<Place>, String, u64)>,
}

/// What wakes a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A thread of the program.
    Thread,
    /// Another program.
    Other,
    /// An interrupt.
    Interrupt,
}

/// Wake-ups between threads of two names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Woken {
    /// Name of the sleeping threads.
    pub waiter: String,
    /// The place in the kernel where they slept.
    pub at: Option<Place>,
    /// What woke them.
    pub who: Who,
    /// Name of the waker.
    pub waker: String,
    /// Total time asleep.
    pub ns: u64,
}

/// What was traced of a program.
#[derive(Debug, Default)]
pub struct Watched {
    /// Waits for locks.
    pub contentions: Vec<Contention>,
    /// Wake-ups.
    pub woken: Vec<Woken>,
    /// Events dropped because a table was full.
    pub lost: u64,
}

/// Traces the programs that this process starts.
pub struct Watcher {
    links: Vec<Link>,
    object: Object,
    symbols: Symbols,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("watches", &!self.links.is_empty()).finish_non_exhaustive()
    }
}

/// What libbpf logged while it loaded the program. It is global since libbpf takes a log function without a
/// context.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
const LOG_LINES: usize = 40;

fn log_line(_: PrintLevel, line: String) {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

fn last_lines() -> String {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).concat();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(LOG_LINES))
        .fold(String::new(), |text, line| text + "; " + line)
}

/// Inode of the initial PID namespace: `PROC_PID_INIT_INO`.
const OUTERMOST: &str = "pid:[4026531836]";

/// Sizes of keys and values, as in `bpf/trace.bpf.c`.
const LOCK_KEY: usize = 16;
const STACK_MAX: usize = 64;

/// An entry of a table of sums: the key, and the time in ns.
type Entry = (Vec<u8>, u64);

/// The 64-bit word at an offset.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

/// The 32-bit word at an offset.
fn half(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

/// The thread name at an offset.
fn text(bytes: &[u8], at: usize) -> String {
    let bytes = bytes.get(at..at + 16).unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Watcher {
    /// Loads the program; tracing does not start yet.
    pub fn load() -> Result<Watcher, Error> {
        if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|space| space.as_os_str() != OUTERMOST) {
            return Err(Error::Container);
        }
        let load = || {
            let mut open = ObjectBuilder::default().open_memory(PROGRAM)?;
            for mut map in open.maps_mut() {
                if map.name().to_string_lossy().ends_with(".rodata")
                    && let Some(data) = map.initial_value_mut()
                    && let Some(maker) = data.get_mut(..4)
                {
                    maker.copy_from_slice(&process::id().to_ne_bytes());
                }
            }
            open.load()
        };
        LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let before = libbpf_rs::set_print(Some((PrintLevel::Warn, log_line)));
        let object = load();
        libbpf_rs::set_print(before);
        let object = object.map_err(|source| Error::Load { source, log: last_lines() })?;
        let symbols = Symbols::read().map_err(Error::Symbols)?;
        Ok(Watcher { links: Vec::new(), object, symbols })
    }

    /// Clears earlier results, and starts tracing.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.links.clear();
        for map in self.object.maps() {
            if matches!(map.map_type(), MapType::Hash | MapType::StackTrace) {
                let keys: Vec<Vec<u8>> = map.keys().collect();
                for key in keys {
                    let _ = map.delete(&key);
                }
            }
        }
        // Reset the nesting depth: the previous tracing may have stopped in the middle of an interrupt on
        // some CPU.
        let zeros = vec![vec![0; 4]; libbpf_rs::num_possible_cpus().unwrap_or(1)];
        let depth = self.map("depth", "the interrupt counter")?;
        let not_reset = |source| Error::Use { what: "reset the interrupt counter".to_owned(), source };
        depth.update_percpu(&0u32.to_ne_bytes(), &zeros, MapFlags::ANY).map_err(not_reset)?;
        let not_attached = |source| Error::Use { what: "look at the kernel's locks".to_owned(), source };
        // Attach the ends of interrupts before their beginnings: an end without a beginning is ignored, while
        // a beginning without its end would count for ever.
        for is_end in [true, false] {
            for program in self.object.progs_mut() {
                if program.name().to_string_lossy().starts_with("end_") == is_end {
                    self.links.push(program.attach().map_err(not_attached)?);
                }
            }
        }
        Ok(())
    }

    /// Stops tracing. Returns what was traced since `begin`.
    pub fn end(&mut self) -> Result<Watched, Error> {
        self.links.clear();
        let mut holders: HashMap<Vec<u8>, Vec<Entry>> = HashMap::new();
        for (key, ns) in self.sums("holds")? {
            holders.entry(key[..LOCK_KEY].to_vec()).or_default().push((key, ns));
        }
        let mut watched = Watched::default();
        for (key, ns) in self.sums("locks")? {
            let held = holders.remove(&key).unwrap_or_default();
            let stack = self.stack(half(&key, 8))?;
            let name =
                Some(word(&key, 0)).filter(|lock| *lock != 0).and_then(|lock| self.symbols.variable(lock));
            let mut contention = Contention {
                kind: kind(half(&key, 12)),
                name,
                at: self.symbols.place(&stack).unwrap_or_else(unread),
                ns,
                holders: Vec::new(),
            };
            for (key, ns) in held {
                let holder = match half(&key, LOCK_KEY + 4) {
                    0 => Holder::Sleeps,
                    1 => Holder::Runs,
                    _ => Holder::Unknown,
                };
                let stack = self.holder_stack(half(&key, LOCK_KEY))?;
                contention.holders.push((holder, self.symbols.place(&stack), text(&key, LOCK_KEY + 8), ns));
            }
            watched.contentions.push(contention);
        }
        for (key, ns) in self.sums("wakes")? {
            let who = match half(&key, 4) {
                0 => Who::Thread,
                1 => Who::Other,
                _ => Who::Interrupt,
            };
            let at = self.symbols.place(&self.stack(half(&key, 0))?);
            watched.woken.push(Woken { waiter: text(&key, 8), at, who, waker: text(&key, 24), ns });
        }
        let lost = self.map("lost", "the count of what was lost")?;
        let count = lost.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        watched.lost = count.map_or(0, |count| word(&count, 0));
        Ok(watched)
    }

    fn map(&self, name: &'static str, what: &'static str) -> Result<MapHandle, Error> {
        let map = self.object.maps().find(|map| map.name() == name).ok_or(Error::Part(what))?;
        MapHandle::try_from(&map).map_err(|source| Error::Use { what: format!("read {what}"), source })
    }

    /// The entries of a table of sums.
    fn sums(&self, name: &'static str) -> Result<Vec<Entry>, Error> {
        let map = self.map(name, "its sums")?;
        let keys: Vec<Vec<u8>> = map.keys().collect();
        let value = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
            Some((key, word(&value, 0)))
        };
        Ok(keys.into_iter().filter_map(value).collect())
    }

    fn stack(&self, id: u32) -> Result<Vec<u64>, Error> {
        let found = self.map("stacks", "its stacks")?.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        Ok(addresses(&found.unwrap_or_default(), STACK_MAX))
    }

    fn holder_stack(&self, id: u32) -> Result<Vec<u64>, Error> {
        let map = self.map("holder_stacks", "its stacks of holders")?;
        let found = map.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        Ok(addresses(&found.unwrap_or_default(), STACK_MAX))
    }
}

/// The addresses of a stack, which ends with 0 or after `depth_max` words.
fn addresses(bytes: &[u8], depth_max: usize) -> Vec<u64> {
    let words = (0..depth_max.min(bytes.len() / 8)).map(|n| word(bytes, n * 8));
    words.take_while(|address| *address != 0).collect()
}

/// The place of a stack that could not be read.
fn unread() -> Place {
    Place { function: "unread stack".to_owned(), call: None }
}

/// The kind of a lock, from the flags of the tracepoint (`include/trace/events/lock.h`).
fn kind(flags: u32) -> LockKind {
    const SPIN: u32 = 1;
    const READ_WRITE: u32 = 2 | 4;
    const RT_OR_PERCPU: u32 = 8 | 16;
    const MUTEX: u32 = 32;
    if flags & MUTEX != 0 {
        LockKind::Mutex
    } else if flags & SPIN != 0 {
        LockKind::Spin
    } else if flags & READ_WRITE != 0 && flags & RT_OR_PERCPU == 0 {
        LockKind::ReadWrite
    } else if flags == 0 {
        // `queued_spin_lock_slowpath` passes SPIN; a plain semaphore passes nothing.
        LockKind::Other
    } else if flags & RT_OR_PERCPU != 0 {
        LockKind::ReadWrite
    } else {
        LockKind::Other
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn locks_by_their_flags() {
        let of = |flags: u32| kind(flags);
        assert_eq!(
            (of(32), of(33), of(1), of(3)),
            (LockKind::Mutex, LockKind::Mutex, LockKind::Spin, LockKind::Spin)
        );
        assert_eq!(
            (of(2), of(4), of(18), of(0)),
            (LockKind::ReadWrite, LockKind::ReadWrite, LockKind::ReadWrite, LockKind::Other)
        );
    }

    #[test]
    fn words_and_names_of_table_entries() {
        let bytes: Vec<u8> = [1u64, 2, 0, 4].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(addresses(&bytes, 64), [1, 2]);
        assert_eq!(addresses(&bytes, 1), [1]);
        assert_eq!(text(b"worker-3\0rest....", 0), "worker-3");
        assert_eq!((half(&bytes, 8), word(&bytes, 24), word(&bytes, 32)), (2, 4, 0));
    }
}
