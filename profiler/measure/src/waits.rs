//! Finds the locks that the threads of a program wait for, the call sites, and what the holders do meanwhile.
//!
//! Problem: all that the kernel shows of a thread that waits for a lock in user space is the address of a futex.
//!
//! Algorithm: the stack of a sleeping thread does not change. Each sample copies it and unwinds the copy (`commonhold-trace`), after
//! a check that the thread has not been woken. A sample counts for the time since the sample before.
//!
//! *Holders.* glibc stores the holder's TID next to the futex in mutexes and read-write locks. For other locks the candidates are
//! the threads inside functions that take the lock; a set of call sites is chosen of which every sample contains one
//! (`commonhold_scale::blame::fewest`). What a holder does is its state. Where it is comes from its stack: copied if it sleeps,
//! sampled by the kernel if it runs (`running_stack`). The stack counts only if the thread still holds the lock afterwards, or is in
//! a function that takes this lock.
//!
//! *Names* are resolved when the program has ended; those of JIT code are in its perf map (`perf_map`).
//!
//! *Identity.* A shared futex is identified by its file and offset, since its address may differ between processes. A private one
//! (`FUTEX_PRIVATE_FLAG`) is identified by its address.
//!
//! *Go.* A waiting goroutine is on no thread. Its stack is copied from where Go keeps it (`waits/goroutines.rs`).
//!
//! Limits: spinning in user space is not detected. Hold times are not measured, only what holders do while others wait.

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

/// Stacks of waiting threads copied in a sample.
const COPIES_MAX: usize = 48;
/// Bytes copied of a stack at first, and at most.
const STACK_BYTES: usize = 8 << 10;
const STACK_BYTES_MAX: usize = 128 << 10;
/// Locks whose holders are searched for in a sample.
const HELD_MAX: usize = 2;
/// Candidates for a holder, and how many of these may be running.
const AMONG_MAX: usize = 8;
const RUNNING_MAX: usize = 2;
/// Attempts to get the stack of a thread that changes state meanwhile.
const TRIES: usize = 2;
/// Most samples between two reads of the mappings of a process.
const SAMPLES_BETWEEN_MAPS: u64 = 32;
/// Bounds on what is kept of a run.
const WAITS_MAX: usize = 50_000;
const AMONG_KEPT_MAX: usize = 20_000;
const SHARED_MAX: usize = 4096;
/// Processes whose perf maps are read.
const PERF_MAPS_MAX: usize = 256;

/// The layout of the lock that a futex belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Style {
    /// A glibc mutex: the third word is the holder's TID.
    Low,
    /// A priority-inheriting mutex: the first word has the holder's TID.
    Inherits,
    /// Any other.
    Other,
}

/// Identifies what is waited for.
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
    /// Whether both are the same lock, whatever its style.
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
struct Present {
    pid: u32,
    tid: u32,
    name: String,
    activity: Activity,
    key: Option<Key>,
}

/// The memory layout of a process.
struct ProcessMemory {
    space: Space,
    comm: String,
    /// Numbers of the first and the last sample that read it.
    since: u64,
    read_at: u64,
    /// The last unwinding stopped early: something may have been mapped since.
    is_torn: bool,
    jit: Option<ImageId>,
    go: Option<Tables>,
}

/// What the holder of a lock did.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    holding: Holding,
    stack: Option<StackId>,
    name: String,
    /// It held the lock both before and after its stack was taken.
    is_sure: bool,
}

impl Hold {
    fn unknown() -> Hold {
        Hold { holding: Holding::Unknown, stack: None, name: String::new(), is_sure: false }
    }
}

/// A thread that may hold a lock.
struct Candidate {
    name: String,
    holding: Holding,
    stack: Option<StackId>,
}

/// Candidates for the holder of a lock, in one sample.
struct Among {
    key: Key,
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
    /// Shared futexes: the PID and address of one process that has it, and the path of the file (may be empty).
    shared: BTreeMap<Shared, (u32, u64, String)>,
    /// Perf maps of processes with JIT code.
    perf_maps: BTreeMap<ImageId, PerfMap>,
    stacks: Vec<Calls>,
    stack_ids: HashMap<Calls, StackId>,
    waits: BTreeMap<(Key, Option<StackId>), u64>,
    holds: BTreeMap<(Key, Hold), u64>,
    among: Vec<Among>,
    parked: Vec<Parked>,
    begun_ms: u64,
    samples: u64,
    passed_ns: u64,
    here: Vec<Present>,
    waiting: usize,
    waiting_before: usize,
    buffer: Vec<u8>,
    /// This sample read the mappings of a process, which most do not.
    pub(crate) learned: bool,
    /// Why stacks of sleeping threads could not be copied.
    pub(crate) no_stacks: Option<String>,
    /// Why stacks of running threads could not be sampled.
    pub(crate) no_shots: Option<String>,
}

impl Waits {
    /// Starts with no waits, and with the files that other runs parsed.
    pub(crate) fn with(files: Files) -> Waits {
        Waits { files, begun_ms: clock::wall_ms(), ..Waits::default() }
    }

    /// Starts a sample. `passed_ns`: the time since the one before.
    pub(crate) fn begin(&mut self, passed_ns: u64) {
        self.samples += 1;
        self.passed_ns = passed_ns;
        self.here.clear();
        self.learned = false;
        self.waiting_before = std::mem::take(&mut self.waiting);
    }

    /// Enters a thread into the sample. `polled`: the file whose lock it polls for.
    pub(crate) fn enter(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        sample: &ThreadSample,
        polled: Option<String>,
    ) -> Result<(), LiveError> {
        let (activity, blocked) = (sample.reading.activity, sample.blocked);
        let mut thread = Present { pid, tid, name: sample.name.clone(), activity, key: None };
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
                    Some(blocked) => self.asleep(procfs, pid, tid, &sample.name, blocked)?,
                    None => None,
                };
                let ns = self.passed_ns.saturating_mul(every as u64);
                if self.waits.len() < WAITS_MAX || self.waits.contains_key(&(key.clone(), stack)) {
                    *self.waits.entry((key, stack)).or_default() += ns;
                }
            }
            self.waiting += 1;
        }
        self.here.push(thread);
        Ok(())
    }

    /// Ends the sample: searches the holders of the locks with most waiting.
    pub(crate) fn end_of_sample(&mut self, procfs: &mut ProcFs) -> Result<(), LiveError> {
        let mut waited: BTreeMap<&Key, u64> = BTreeMap::new();
        for key in self.here.iter().filter_map(|there| there.key.as_ref()) {
            *waited.entry(key).or_default() += self.passed_ns;
        }
        let mut waited: Vec<(Key, u64)> = waited.into_iter().map(|(key, ns)| (key.clone(), ns)).collect();
        waited.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        for (key, ns) in waited.into_iter().take(HELD_MAX) {
            let Some(futex) = self.futex(&key) else { continue };
            match (self.owner(futex), futex.style) {
                (Some(at), _) => self.holder(procfs, &key, ns, at)?,
                (None, Style::Other) => self.among(procfs, &key, futex, ns)?,
                (None, _) => self.hold(&key, Hold::unknown(), ns),
            }
        }
        self.goroutines();
        Ok(())
    }

    /// Where the futex of a key can be read; `None` if it has none.
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

    fn hold(&mut self, key: &Key, hold: Hold, ns: u64) {
        *self.holds.entry((key.clone(), hold)).or_default() += ns;
    }

    /// The thread of this sample that holds a lock, if the lock stores its TID.
    fn owner(&self, futex: Futex) -> Option<usize> {
        let Futex { pid, address, style, is_shared } = futex;
        let mut words = [0; 20];
        let copied = remote_memory::copy(pid, address, &mut words).ok()?;
        let word = |at: usize| {
            let bytes = words.get(at..at + 4).filter(|_| at + 4 <= copied)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        // `pthread_mutex_t` has the owner in its third word. `pthread_rwlock_t` has the writer in its seventh, and threads wait at
        // its third or fourth word: 16 or 12 bytes before. In other locks these words are unlikely to be the TID of a thread of
        // the process.
        let at: &[usize] = match style {
            Style::Low => &[8],
            Style::Inherits => &[0],
            Style::Other => &[16, 12],
        };
        let of =
            |tid: u32| self.here.iter().position(|there| there.tid == tid && (is_shared || there.pid == pid));
        at.iter().filter_map(|at| word(*at)).find_map(|word| of(word & FUTEX_TID))
    }

    /// Records what the known holder of a lock does.
    fn holder(&mut self, procfs: &mut ProcFs, key: &Key, ns: u64, at: usize) -> Result<(), LiveError> {
        let Some((candidate, tid)) = self.candidate(procfs, key, at)? else {
            self.hold(key, Hold::unknown(), ns);
            return Ok(());
        };
        let still = self.futex(key).and_then(|futex| self.owner(futex)).and_then(|at| self.here.get(at));
        let still = still.map(|it| it.tid);
        let Candidate { name, holding, stack } = candidate;
        self.hold(key, Hold { holding, stack, name, is_sure: still == Some(tid) }, ns);
        Ok(())
    }

    /// What a thread does now, and its stack. It may have been woken or blocked since it was sampled. `None` if it is gone, or
    /// waits for this lock by now and so does not hold it.
    fn candidate(
        &mut self,
        procfs: &mut ProcFs,
        key: &Key,
        at: usize,
    ) -> Result<Option<(Candidate, u32)>, LiveError> {
        let Some(there) = self.here.get(at) else { return Ok(None) };
        let (pid, tid, name) = (there.pid, there.tid, there.name.clone());
        let mut holding = Holding::Unknown;
        for _ in 0..TRIES {
            let Some(sample) = thread_sample::sample(procfs, pid, tid)? else { return Ok(None) };
            let stack = match (sample.reading.activity, sample.blocked) {
                (Activity::Runnable, _) => {
                    holding = Holding::Runs;
                    self.running(procfs, pid, tid, &name)?
                }
                (Activity::Waiting(state), blocked) => {
                    holding = Holding::Waits(state);
                    let Some(blocked) = blocked else { continue };
                    if FUTEX_CALLS.contains(&blocked.call)
                        && self.key(procfs, pid, &name, blocked)?.is_same(key)
                    {
                        return Ok(None);
                    }
                    self.asleep(procfs, pid, tid, &name, blocked)?
                }
            };
            if stack.is_some() {
                return Ok(Some((Candidate { name, holding, stack }, tid)));
            }
        }
        Ok(Some((Candidate { name, holding, stack: None }, tid)))
    }

    /// The lock does not store its holder: records where all candidates are.
    fn among(&mut self, procfs: &mut ProcFs, key: &Key, futex: Futex, ns: u64) -> Result<(), LiveError> {
        let may_hold =
            |there: &Present| (futex.is_shared || there.pid == futex.pid) && there.key.as_ref() != Some(key);
        let others: Vec<usize> =
            (0..self.here.len()).filter(|at| self.here.get(*at).is_some_and(may_hold)).collect();
        let running = others
            .iter()
            .filter(|at| self.here.get(**at).is_some_and(|it| it.activity == Activity::Runnable))
            .count();
        if others.len() > AMONG_MAX || running > RUNNING_MAX || self.among.len() >= AMONG_KEPT_MAX {
            self.hold(key, Hold::unknown(), ns);
            return Ok(());
        }
        let mut threads = Vec::with_capacity(others.len());
        for at in others {
            threads.extend(self.candidate(procfs, key, at)?.map(|(candidate, _)| candidate));
        }
        self.among.push(Among { key: key.clone(), ns, threads });
        Ok(())
    }

    /// The stack of a sleeping thread; `None` if it was woken meanwhile.
    fn asleep(
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
            // Fewer than three calls fit into the copy: some function has a large frame.
            if calls.at.len() < 3 && copied == size && size < STACK_BYTES_MAX {
                size = STACK_BYTES_MAX;
                continue;
            }
            return Ok(self.intern(calls));
        }
    }

    /// The stack of a running thread; `None` if the kernel took no sample.
    fn running(
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

    /// Unwinds a stack of a process whose mappings were read.
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
        let main = self.here.iter().find(|it| it.pid == pid && it.tid == pid);
        // After execve(2) the mappings are others. The name mostly changes too.
        let is_same = |known: &&ProcessMemory| main.is_none_or(|it| it.name == known.comm);
        let old = self.spaces.get(&pid).filter(is_same);
        let must_read = old.is_none_or(|known| {
            // Most mappings are made at start-up.
            let wait = (known.read_at - known.since).clamp(1, SAMPLES_BETWEEN_MAPS);
            self.samples >= known.read_at + wait && (known.is_torn || !has(&known.space))
        });
        if !must_read {
            return Ok(());
        }
        let comm = main.map_or(comm, |it| it.name.as_str()).to_owned();
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

    /// Identifies what a blocked thread waits for.
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
            // The last waiter still exists when the holder is searched for.
            self.shared.insert(place, (pid, address, path.to_owned()));
        }
        Ok(has_room.then_some(place))
    }
}

/// `FUTEX_TID_MASK`.
const FUTEX_TID: u32 = 0x3fff_ffff;
/// `FUTEX_PRIVATE_FLAG`.
const FUTEX_PRIVATE: u64 = 128;
/// `futex_wait(2)`: its number is the same on all architectures, and its first argument is the address as well.
const FUTEX_WAIT: i64 = 455;
const FUTEX_CALLS: [i64; 2] = [libc::SYS_futex, FUTEX_WAIT];
