//! Finds the locks that the threads of a program wait for, the call sites, and what the holders do meanwhile.
//!
//! Problem: all that the kernel shows of a thread that waits for a lock in user space is the address of a
//! futex.
//!
//! Algorithm: the stack of a sleeping thread does not change. Each sample copies the stack and unwinds the
//! copy (`commonhold-trace`), after a check that the thread has not been woken. A sample counts for the time
//! since the previous sample.
//!
//! *Holders.* glibc stores the holder's TID next to the futex in mutexes and read-write locks. For other
//! locks the candidates are the threads inside functions that take the lock; the fewest call sites are chosen
//! such that every sample contains one of them (`commonhold_scale::blame::fewest`). What a holder does is its
//! state. Where the holder is comes from its stack: copied if the holder sleeps, sampled by the kernel if it
//! runs (`running_stack`). The stack counts only if the thread still holds the lock afterwards, or is in a
//! function that takes this lock.
//!
//! *Names* are resolved when the program has ended; those of JIT code are in its perf map (`perf_map`).
//!
//! *Identity.* A shared futex is identified by its file and offset, since its address may differ between
//! processes. A private one (`FUTEX_PRIVATE_FLAG`) is identified by its address.
//!
//! *Go.* A waiting goroutine is on no thread. Its stack is copied from where Go keeps it
//! (`waits/goroutines.rs`).
//!
//! Limits: spinning in user space is not detected. Hold times are not measured, only what holders do while
//! others wait.

use std::collections::{BTreeMap, HashMap};

use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_live::observe::process::ProcFs;
use commonhold_scale::blame::Holding;
use commonhold_scale::states::{Activity, State};
use commonhold_trace::{CALL_MAX, Calls, ImageId, Images, Maker, Names, Registers, Shared, Space, Stack};

use crate::perf_map::PerfMap;
use crate::thread_sample::{self, Blocked, ThreadSample};
use crate::{remote_memory, running_stack};
use goroutines::{Parked, Tables};

mod goroutines;
mod naming;

pub(crate) use naming::Ended;
pub use naming::Unnamed;

/// The maximum number of stacks of waiting threads that a sample copies.
const COPIES_MAX: usize = 48;
/// Bytes copied of a stack at first, and at most.
const STACK_BYTES: usize = 8 << 10;
const STACK_BYTES_MAX: usize = 128 << 10;
/// The maximum number of locks whose holders a sample searches for.
const HELD_MAX: usize = 2;
/// With more candidates for a holder, or more running ones, the holder is not searched for.
const CANDIDATES_MAX: usize = 8;
const RUNNING_MAX: usize = 2;
/// Attempts to get the stack of a thread that changes its state during the attempt.
const ATTEMPTS_MAX: usize = 2;
/// The maximum number of samples between two reads of the mappings of a process.
const SAMPLES_BETWEEN_MAPS: u64 = 32;
/// Bounds on what is kept of a run.
const WAITS_MAX: usize = 50_000;
const CANDIDATES_KEPT_MAX: usize = 20_000;
const SHARED_MAX: usize = 4096;
/// The maximum number of processes whose perf maps are read.
const PERF_MAPS_MAX: usize = 256;

/// The layout of the lock that a futex belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Style {
    /// A glibc mutex: the third word is the holder's TID.
    Low,
    /// A priority-inheriting mutex: the first word has the holder's TID.
    Inherits,
    /// Any other layout.
    Other,
}

/// Identifies what a thread waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Futex { pid: u32, address: u64, style: Style },
    Shared { place: Shared, style: Style },
    File(String),
    Kernel,
}

/// A futex at its address in a process.
#[derive(Clone, Copy)]
struct Futex {
    pid: u32,
    address: u64,
    style: Style,
    is_shared: bool,
}

impl Key {
    /// Whether both are the same lock, even if their styles differ.
    fn is_same(&self, other: &Key) -> bool {
        match (self, other) {
            (Key::Futex { pid, address, .. }, Key::Futex { pid: other, address: at, .. }) => {
                (pid, address) == (other, at)
            }
            (Key::Shared { place, .. }, Key::Shared { place: other, .. }) => place == other,
            _ => self == other,
        }
    }
}

/// Index into [`Waits::stacks`].
type StackId = u32;

/// A thread in the current sample.
struct SampledThread {
    pid: u32,
    tid: u32,
    name: String,
    activity: Activity,
    /// What it waits for, if it waits for a lock.
    key: Option<Key>,
}

/// The memory layout of a process.
struct ProcessMemory {
    space: Space,
    /// The process's name when the mappings were read.
    comm: String,
    /// The number of the first sample that read the mappings.
    since: u64,
    /// The number of the last sample that read the mappings.
    read_at: u64,
    /// The last unwinding stopped early: a file may have been mapped since.
    is_torn: bool,
    /// The image that stands for the process's JIT code, if it has any.
    jit: Option<ImageId>,
    /// Go's table of goroutines, if the process runs Go.
    go: Option<Tables>,
}

/// What the holder of a lock did.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    holding: Holding,
    stack: Option<StackId>,
    name: String,
    /// Whether it held the lock both before and after its stack was taken.
    is_confirmed: bool,
}

impl Hold {
    fn unknown() -> Hold {
        Hold { holding: Holding::Unknown, stack: None, name: String::new(), is_confirmed: false }
    }
}

/// A thread that may hold a lock.
struct Candidate {
    name: String,
    holding: Holding,
    stack: Option<StackId>,
}

/// All candidates for the holder of a lock, in one sample.
struct Candidates {
    key: Key,
    /// The waiting time that the sample counts for.
    ns: u64,
    threads: Vec<Candidate>,
}

/// Parsed files of a program, and the names found in them.
#[derive(Debug, Default)]
pub(crate) struct Files {
    images: Images,
    names: Names,
}

/// Collects the waits of a run.
#[derive(Default)]
pub(crate) struct Waits {
    files: Files,
    spaces: BTreeMap<u32, ProcessMemory>,
    /// Shared futexes: of each, the PID of one process that maps the futex, the address there, and the path
    /// of the file (may be empty).
    shared: BTreeMap<Shared, (u32, u64, String)>,
    /// Perf maps of processes with JIT code.
    perf_maps: BTreeMap<ImageId, PerfMap>,
    stacks: Vec<Calls>,
    stack_ids: HashMap<Calls, StackId>,
    waits: BTreeMap<(Key, Option<StackId>), u64>,
    holds: BTreeMap<(Key, Hold), u64>,
    candidates: Vec<Candidates>,
    parked: Vec<Parked>,
    begun_ms: u64,
    /// The number of samples so far.
    samples: u64,
    /// The time since the previous sample, which the current one counts for.
    elapsed_ns: u64,
    /// The threads of the current sample.
    threads: Vec<SampledThread>,
    /// The number of threads that wait for locks in the current sample, so far.
    waiting: usize,
    /// The number of threads that waited for locks in the previous sample.
    waiting_before: usize,
    buffer: Vec<u8>,
    /// The current sample read the mappings of a process, which most samples do not.
    pub(crate) learned: bool,
    /// Why stacks of sleeping threads could not be copied.
    pub(crate) no_stacks: Option<String>,
    /// Why stacks of running threads could not be sampled.
    pub(crate) no_shots: Option<String>,
}

impl Waits {
    /// Starts without waits, and with the files that earlier runs parsed.
    pub(crate) fn with(files: Files) -> Waits {
        Waits { files, begun_ms: clock::wall_ms(), ..Waits::default() }
    }

    /// Starts a sample. `elapsed_ns`: the time since the previous sample.
    pub(crate) fn begin(&mut self, elapsed_ns: u64) {
        self.samples += 1;
        self.elapsed_ns = elapsed_ns;
        self.threads.clear();
        self.learned = false;
        self.waiting_before = std::mem::take(&mut self.waiting);
    }

    /// Enters a thread into the sample. `polled`: the file whose lock the thread polls for, if it does.
    pub(crate) fn enter(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        sample: &ThreadSample,
        polled: Option<String>,
    ) -> Result<(), LiveError> {
        let (activity, blocked) = (sample.reading.activity, sample.blocked);
        let mut thread = SampledThread { pid, tid, name: sample.name.clone(), activity, key: None };
        if activity == Activity::Waiting(State::Lock) {
            let key = match (polled, blocked) {
                (Some(file), _) => Key::File(file),
                (None, Some(blocked)) => self.key(procfs, pid, &sample.name, blocked)?,
                (None, None) => Key::Kernel,
            };
            thread.key = Some(key.clone());
            // Of many waiting threads, every n-th is examined and counts for n.
            let every = self.waiting_before.div_ceil(COPIES_MAX).max(1);
            if (self.waiting + usize::try_from(self.samples).unwrap_or(0)).is_multiple_of(every) {
                let stack = match blocked {
                    Some(blocked) => self.copy_sleeping_stack(procfs, pid, tid, &sample.name, blocked)?,
                    None => None,
                };
                let ns = self.elapsed_ns.saturating_mul(every as u64);
                if self.waits.len() < WAITS_MAX || self.waits.contains_key(&(key.clone(), stack)) {
                    *self.waits.entry((key, stack)).or_default() += ns;
                }
            }
            self.waiting += 1;
        }
        self.threads.push(thread);
        Ok(())
    }

    /// Ends the sample: searches for the holders of the locks with most waiting, and samples goroutines.
    pub(crate) fn end_of_sample(&mut self, procfs: &mut ProcFs) -> Result<(), LiveError> {
        let mut waited: BTreeMap<&Key, u64> = BTreeMap::new();
        for key in self.threads.iter().filter_map(|thread| thread.key.as_ref()) {
            *waited.entry(key).or_default() += self.elapsed_ns;
        }
        let mut waited: Vec<(Key, u64)> = waited.into_iter().map(|(key, ns)| (key.clone(), ns)).collect();
        waited.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        for (key, ns) in waited.into_iter().take(HELD_MAX) {
            let Some(futex) = self.futex(&key) else { continue };
            match (self.owner(futex), futex.style) {
                (Some(index), _) => self.record_owner(procfs, &key, ns, index)?,
                (None, Style::Other) => self.record_candidates(procfs, &key, futex, ns)?,
                (None, _) => self.add_hold(&key, Hold::unknown(), ns),
            }
        }
        self.sample_goroutines();
        Ok(())
    }

    /// The futex of a key; `None` if the key is no futex.
    fn futex(&self, key: &Key) -> Option<Futex> {
        match *key {
            Key::Futex { pid, address, style } => Some(Futex { pid, address, style, is_shared: false }),
            Key::Shared { place, style } => {
                let (pid, address, _) = self.shared.get(&place)?;
                let (pid, address) = (*pid, *address);
                Some(Futex { pid, address, style, is_shared: true })
            }
            Key::File(_) | Key::Kernel => None,
        }
    }

    fn add_hold(&mut self, key: &Key, hold: Hold, ns: u64) {
        *self.holds.entry((key.clone(), hold)).or_default() += ns;
    }

    /// The index of the thread of this sample that holds a lock, if the lock stores its holder's TID.
    fn owner(&self, futex: Futex) -> Option<usize> {
        let Futex { pid, address, style, is_shared } = futex;
        let mut words = [0; 20];
        let copied = remote_memory::copy(pid, address, &mut words).ok()?;
        let word = |offset: usize| {
            let bytes = words.get(offset..offset + 4).filter(|_| offset + 4 <= copied)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        // `pthread_mutex_t` has the owner in its third word. `pthread_rwlock_t` has the writer in its seventh
        // word, and threads wait at its third or fourth word: the writer is 16 or 12 bytes behind the futex.
        // In other locks the words at these offsets are unlikely to be the TID of a thread of the process.
        let offsets: &[usize] = match style {
            Style::Low => &[8],
            Style::Inherits => &[0],
            Style::Other => &[16, 12],
        };
        let index_of = |tid: u32| {
            self.threads.iter().position(|thread| thread.tid == tid && (is_shared || thread.pid == pid))
        };
        offsets.iter().filter_map(|offset| word(*offset)).find_map(|word| index_of(word & FUTEX_TID))
    }

    /// Records what the holder of a lock does, which is the thread with this index.
    fn record_owner(
        &mut self,
        procfs: &mut ProcFs,
        key: &Key,
        ns: u64,
        index: usize,
    ) -> Result<(), LiveError> {
        let Some((candidate, tid)) = self.candidate(procfs, key, index)? else {
            self.add_hold(key, Hold::unknown(), ns);
            return Ok(());
        };
        let owner_after = self.futex(key).and_then(|futex| self.owner(futex));
        let tid_after = owner_after.and_then(|index| self.threads.get(index)).map(|thread| thread.tid);
        let Candidate { name, holding, stack } = candidate;
        self.add_hold(key, Hold { holding, stack, name, is_confirmed: tid_after == Some(tid) }, ns);
        Ok(())
    }

    /// What the thread with this index does now, with its stack and TID. It may have been woken or blocked
    /// since it was sampled. `None` if the thread is gone, or now waits for this lock and so does not hold
    /// it.
    fn candidate(
        &mut self,
        procfs: &mut ProcFs,
        key: &Key,
        index: usize,
    ) -> Result<Option<(Candidate, u32)>, LiveError> {
        let Some(thread) = self.threads.get(index) else { return Ok(None) };
        let (pid, tid, name) = (thread.pid, thread.tid, thread.name.clone());
        let mut holding = Holding::Unknown;
        for _ in 0..ATTEMPTS_MAX {
            let Some(sample) = thread_sample::sample(procfs, pid, tid)? else { return Ok(None) };
            let stack = match (sample.reading.activity, sample.blocked) {
                (Activity::Runnable, _) => {
                    holding = Holding::Runs;
                    self.sample_running_stack(procfs, pid, tid, &name)?
                }
                (Activity::Waiting(state), blocked) => {
                    holding = Holding::Waits(state);
                    let Some(blocked) = blocked else { continue };
                    if FUTEX_CALLS.contains(&blocked.call)
                        && self.key(procfs, pid, &name, blocked)?.is_same(key)
                    {
                        return Ok(None);
                    }
                    self.copy_sleeping_stack(procfs, pid, tid, &name, blocked)?
                }
            };
            if stack.is_some() {
                return Ok(Some((Candidate { name, holding, stack }, tid)));
            }
        }
        Ok(Some((Candidate { name, holding, stack: None }, tid)))
    }

    /// For a lock that does not store its holder: records where all threads are that may hold the lock.
    fn record_candidates(
        &mut self,
        procfs: &mut ProcFs,
        key: &Key,
        futex: Futex,
        ns: u64,
    ) -> Result<(), LiveError> {
        let may_hold = |thread: &SampledThread| {
            (futex.is_shared || thread.pid == futex.pid) && thread.key.as_ref() != Some(key)
        };
        let is_running = |thread: &SampledThread| thread.activity == Activity::Runnable;
        let indices: Vec<usize> =
            (0..self.threads.len()).filter(|index| self.threads.get(*index).is_some_and(may_hold)).collect();
        let running =
            indices.iter().filter(|index| self.threads.get(**index).is_some_and(is_running)).count();
        if indices.len() > CANDIDATES_MAX
            || running > RUNNING_MAX
            || self.candidates.len() >= CANDIDATES_KEPT_MAX
        {
            self.add_hold(key, Hold::unknown(), ns);
            return Ok(());
        }
        let mut threads = Vec::with_capacity(indices.len());
        for index in indices {
            threads.extend(self.candidate(procfs, key, index)?.map(|(candidate, _)| candidate));
        }
        self.candidates.push(Candidates { key: key.clone(), ns, threads });
        Ok(())
    }

    /// The stack of a sleeping thread; `None` if the stack cannot be copied, or the thread was woken during
    /// the copy.
    fn copy_sleeping_stack(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        comm: &str,
        blocked: Blocked,
    ) -> Result<Option<StackId>, LiveError> {
        let mut size = STACK_BYTES;
        loop {
            self.buffer.resize(size, 0);
            let copied = match remote_memory::copy(pid, blocked.stack, &mut self.buffer) {
                Ok(copied) => copied,
                Err(error) => {
                    // Other errors mean that the thread is gone.
                    if error.raw_os_error() == Some(libc::EPERM) && self.no_stacks.is_none() {
                        self.no_stacks = Some(error.to_string());
                    }
                    return Ok(None);
                }
            };
            if thread_sample::blocked(procfs, pid, tid)? != Some(blocked) {
                return Ok(None);
            }
            let registers = Registers { at: blocked.at, stack: blocked.stack, frame: None };
            let bytes = std::mem::take(&mut self.buffer);
            let stack = Stack { from: blocked.stack, bytes: &bytes[..copied] };
            let calls = self.unwind(procfs, pid, comm, stack, registers)?;
            self.buffer = bytes;
            // If fewer than three calls fit into the copy, some function has a large frame: copy more.
            if calls.at.len() < 3 && copied == size && size < STACK_BYTES_MAX {
                size = STACK_BYTES_MAX;
                continue;
            }
            return Ok(self.intern(calls));
        }
    }

    /// The stack of a running thread; `None` if the kernel took no sample.
    fn sample_running_stack(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        comm: &str,
    ) -> Result<Option<StackId>, LiveError> {
        if self.no_shots.is_some() {
            return Ok(None);
        }
        match running_stack::sample(tid) {
            Ok(None) => Ok(None),
            Ok(Some(sample)) => {
                let registers = Registers { at: sample.at, stack: sample.stack, frame: Some(sample.frame) };
                let stack = Stack { from: sample.stack, bytes: &sample.bytes };
                let calls = self.unwind(procfs, pid, comm, stack, registers)?;
                Ok(self.intern(calls))
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => {
                self.no_shots = Some(error.to_string());
                Ok(None)
            }
        }
    }

    /// The index of a stack in `stacks`, where equal stacks are kept once; `None` for an empty stack.
    fn intern(&mut self, calls: Calls) -> Option<StackId> {
        if calls.at.is_empty() {
            return None;
        }
        if let Some(id) = self.stack_ids.get(&calls) {
            return Some(*id);
        }
        let id = StackId::try_from(self.stacks.len()).ok()?;
        self.stacks.push(calls.clone());
        self.stack_ids.insert(calls, id);
        Some(id)
    }

    /// Unwinds a stack of a process, whose mappings are read first if needed.
    fn unwind(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        comm: &str,
        stack: Stack,
        registers: Registers,
    ) -> Result<Calls, LiveError> {
        self.read_mappings(procfs, pid, comm, |space| space.code(registers.at).is_some())?;
        Ok(self.calls(pid, stack, registers))
    }

    /// Unwinds a stack of a process whose mappings were read; empty if they were not.
    fn calls(&mut self, pid: u32, stack: Stack, registers: Registers) -> Calls {
        let Some(known) = self.spaces.get_mut(&pid) else { return Calls::default() };
        let jit = |at: u64| {
            let mut code = [0; CALL_MAX];
            let copied = remote_memory::copy(pid, at.checked_sub(CALL_MAX as u64)?, &mut code).ok()?;
            (copied == CALL_MAX).then_some(code)
        };
        let calls = self.files.images.unwind(&known.space, stack, registers, &jit);
        known.is_torn = !calls.is_whole;
        calls
    }

    /// Reads the mappings of a process, and re-reads them with back-off while they lack what `has` asks for.
    fn read_mappings(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        comm: &str,
        has: impl Fn(&Space) -> bool,
    ) -> Result<(), LiveError> {
        let main = self.threads.iter().find(|thread| thread.pid == pid && thread.tid == pid);
        // After execve(2) the process has other mappings, and usually another name.
        let is_same = |known: &&ProcessMemory| main.is_none_or(|thread| thread.name == known.comm);
        let old = self.spaces.get(&pid).filter(is_same);
        let must_read = old.is_none_or(|known| {
            // Back off: most mappings are made at start-up.
            let wait = (known.read_at - known.since).clamp(1, SAMPLES_BETWEEN_MAPS);
            self.samples >= known.read_at + wait && (known.is_torn || !has(&known.space))
        });
        if !must_read {
            return Ok(());
        }
        let comm = main.map_or(comm, |thread| thread.name.as_str()).to_owned();
        let (since, mut jit) = old.map_or((self.samples, None), |known| (known.since, known.jit));
        self.learned = true;
        let Some(maps) = thread_sample::maps(procfs, pid)? else { return Ok(()) };
        let Files { images, names } = &mut self.files;
        let mut space = Space::of(&maps, &format!("/proc/{pid}/root"), images);
        if space.has_jit() && jit.is_none() && self.perf_maps.len() < PERF_MAPS_MAX {
            jit = images.jit(&comm);
            let map = PerfMap::of(procfs, pid, self.begun_ms)?;
            self.perf_maps.extend(jit.zip(map));
        }
        space.set_jit(jit);
        let go = space.files().find(|(image, _)| images.maker(*image) == Maker::Go);
        let go = go.and_then(|(image, bias)| Tables::find(image, bias, images, names));
        let known = ProcessMemory { space, comm, since, read_at: self.samples, is_torn: false, jit, go };
        self.spaces.insert(pid, known);
        Ok(())
    }

    /// Identifies the lock that a blocked thread waits for.
    fn key(&mut self, procfs: &mut ProcFs, pid: u32, comm: &str, blocked: Blocked) -> Result<Key, LiveError> {
        let [first, operation, value] = blocked.arguments;
        Ok(match blocked.call {
            libc::SYS_futex => {
                let style = match (operation & 127, value) {
                    // `FUTEX_WAIT` on the value 2, which in a glibc mutex means locked with waiters.
                    (0, 2) => Style::Low,
                    (6 | 13, _) => Style::Inherits,
                    _ => Style::Other,
                };
                if operation & FUTEX_PRIVATE == 0
                    && let Some(place) = self.shared(procfs, pid, comm, first)?
                {
                    return Ok(Key::Shared { place, style });
                }
                Key::Futex { pid, address: first, style }
            }
            libc::SYS_flock | libc::SYS_fcntl => Key::File(
                thread_sample::open_file(procfs, pid, first).unwrap_or_else(|| format!("descriptor {first}")),
            ),
            FUTEX_WAIT => Key::Futex { pid, address: first, style: Style::Other },
            _ => Key::Kernel,
        })
    }

    /// The file and offset of a futex in a shared mapping; `None` if it is in no such mapping.
    fn shared(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        comm: &str,
        address: u64,
    ) -> Result<Option<Shared>, LiveError> {
        self.read_mappings(procfs, pid, comm, |space| space.shared(address).is_some())?;
        let Some((place, path)) = self.spaces.get(&pid).and_then(|known| known.space.shared(address)) else {
            return Ok(None);
        };
        let has_room = self.shared.len() < SHARED_MAX || self.shared.contains_key(&place);
        if has_room {
            // Keep the latest waiter's process: it still exists when the holder is searched for.
            self.shared.insert(place, (pid, address, path.to_owned()));
        }
        Ok(has_room.then_some(place))
    }
}

/// `FUTEX_TID_MASK`.
const FUTEX_TID: u32 = 0x3fff_ffff;
/// `FUTEX_PRIVATE_FLAG`.
const FUTEX_PRIVATE: u64 = 128;
/// `futex_wait(2)`: its number is the same on all architectures, and its first argument is the address as
/// well.
const FUTEX_WAIT: i64 = 455;
const FUTEX_CALLS: [i64; 2] = [libc::SYS_futex, FUTEX_WAIT];
