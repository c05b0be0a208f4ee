//! Which locks the threads of a program wait for, where, and what the locks' holders do meanwhile.
//!
//! Problem: the kernel tells of a thread that waits for a lock of its program only an address (of the futex).
//!
//! Algorithm: a thread that waits sleeps, so its stack stands still. A look copies it, and its calls are found in the copy
//! (`commonhold-trace`). Whether it slept on is checked after copying. Each look counts for the time since the look before.
//!
//! Who holds the lock: glibc writes the holder's number beside the word that is waited for, in mutexes and in locks for
//! readers and writers. Where a lock does not say it, the threads that may hold it are those in functions that take it, and
//! where a holder is, one of them is in every look (`commonhold_scale::blame::fewest`). What a holder does is its state. Where it is, is in its
//! stack: copied if it sleeps, and sampled by the kernel if it runs (`host::shot`). It must hold the lock still afterwards, or be
//! in a function that takes this lock.
//!
//! Names are found when the program has ended. Those of JIT code are in its perf map (`observe/perf_map.rs`).
//!
//! A futex in memory that processes share is known by its file and the place there: each process may have it at another address.
//! One that the program says is for its process alone (`FUTEX_PRIVATE_FLAG`) is known by its address.
//!
//! A goroutine of Go's that waits is on no thread. Its stack is copied from where Go keeps it (`waits/goroutines.rs`).
//!
//! Limits: locks that are waited for without a system call, by spinning, are not seen. How long a lock is held is not, either,
//! but in what part of the time that others wait.

use std::collections::{BTreeMap, HashMap};

use commonhold_scale::blame::Holding;
use commonhold_scale::states::{Seen, State};
use commonhold_trace::{CALL_MAX, Calls, ImageId, Images, Maker, Names, Registers, Shared, Space, Stack};

use super::perf_map::PerfMap;
use super::process::{Moment, ProcFs, Spot};
use crate::LiveError;
use crate::host::{clock, copy, shot};
use goroutines::{Parked, Tables};

mod goroutines;
mod told;

pub(crate) use told::Ended;
pub use told::Unnamed;

/// Stacks that a look copies, of threads that wait.
const COPIES_MAX: usize = 48;
/// What is copied of a stack at first, and at most.
const STACK_BYTES: usize = 8 << 10;
const STACK_BYTES_MAX: usize = 128 << 10;
/// Locks whose holders are looked for in a look.
const HELD_MAX: usize = 2;
/// Threads among which a holder is looked for, and how many of these may run.
const AMONG_MAX: usize = 8;
const RUNNING_MAX: usize = 2;
/// How often a thread is looked for that is elsewhere meanwhile.
const TRIES: usize = 2;
/// Between two readings of what is mapped in a process.
const LOOKS_BETWEEN_MAPS: u64 = 32;
/// Kept of a run.
const WAITS_MAX: usize = 50_000;
const AMONG_KEPT_MAX: usize = 20_000;
const SHARED_MAX: usize = 4096;
/// Processes whose JIT code is named.
const PERF_MAPS_MAX: usize = 256;

/// How a futex is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Style {
    /// As by a mutex of glibc's: the third word is the holder's number.
    Low,
    /// The first word has the holder's number.
    Inherits,
    /// As by anything else.
    Other,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Futex { pid: u32, address: u64, style: Style },
    Shared { place: Shared, style: Style },
    File(String),
    Kernel,
}

/// A futex, at the address that a process has it at.
#[derive(Clone, Copy)]
struct Futex {
    pid: u32,
    address: u64,
    style: Style,
    is_shared: bool,
}

impl Key {
    /// Whether these are one lock, however it is used.
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

/// A stack that was seen, by its number.
type StackId = u32;

/// A thread, in a look.
struct There {
    pid: u32,
    tid: u32,
    name: String,
    seen: Seen,
    key: Option<Key>,
}

/// A process's memory, as it was read.
struct Known {
    space: Space,
    comm: String,
    /// The look that read it first, and the last that did.
    since: u64,
    at_look: u64,
    /// The last stack that was followed did not come to its end: something may have been mapped since.
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
    /// It held the lock before and after it was looked where it is.
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

/// Threads one of which holds a lock.
struct Among {
    key: Key,
    ns: u64,
    threads: Vec<Candidate>,
}

/// What is known of a program's files: what is in them, and the names of what was met.
#[derive(Debug, Default)]
pub(crate) struct Files {
    images: Images,
    names: Names,
}

/// What threads wait for.
#[derive(Default)]
pub(crate) struct Waits {
    files: Files,
    spaces: BTreeMap<u32, Known>,
    /// Futexes that processes share: where one of these has it, and the file's path, if it has one.
    shared: BTreeMap<Shared, (u32, u64, String)>,
    /// Of processes that have JIT code.
    perf_maps: BTreeMap<ImageId, PerfMap>,
    stacks: Vec<Calls>,
    stack_ids: HashMap<Calls, StackId>,
    waits: BTreeMap<(Key, Option<StackId>), u64>,
    holds: BTreeMap<(Key, Hold), u64>,
    among: Vec<Among>,
    parked: Vec<Parked>,
    begun_ms: u64,
    looks: u64,
    passed_ns: u64,
    here: Vec<There>,
    waiting: usize,
    waiting_before: usize,
    buffer: Vec<u8>,
    /// This look read what is mapped in a process, which it does once or seldom.
    pub(crate) learned: bool,
    /// Why stacks could not be copied.
    pub(crate) no_stacks: Option<String>,
    /// Why threads that run could not be sampled.
    pub(crate) no_shots: Option<String>,
}

impl Waits {
    /// Nothing was waited for yet. Of files that were read in other runs, it is known what is in them.
    pub(crate) fn with(files: Files) -> Waits {
        Waits { files, begun_ms: clock::wall_ms(), ..Waits::default() }
    }

    /// A look begins; so long ago was the one before.
    pub(crate) fn begin(&mut self, passed_ns: u64) {
        self.looks += 1;
        self.passed_ns = passed_ns;
        self.here.clear();
        self.learned = false;
        self.waiting_before = std::mem::take(&mut self.waiting);
    }

    /// A look finds a thread. `polled`: the file whose lock it tries to get now and then.
    pub(crate) fn see(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        moment: &Moment,
        polled: Option<String>,
    ) -> Result<(), LiveError> {
        let (seen, spot) = (moment.look.seen, moment.spot);
        let mut there = There { pid, tid, name: moment.name.clone(), seen, key: None };
        if seen == Seen::Waits(State::Lock) {
            let key = match (polled, spot) {
                (Some(file), _) => Key::File(file),
                (None, Some(spot)) => self.key(procfs, pid, &moment.name, spot)?,
                (None, None) => Key::Kernel,
            };
            there.key = Some(key.clone());
            // Of many, every so manieth is looked at, and counts for the others.
            let every = self.waiting_before.div_ceil(COPIES_MAX).max(1);
            if (self.waiting + usize::try_from(self.looks).unwrap_or(0)).is_multiple_of(every) {
                let stack = match spot {
                    Some(spot) => self.asleep(procfs, pid, tid, &moment.name, spot)?,
                    None => None,
                };
                let ns = self.passed_ns.saturating_mul(every as u64);
                if self.waits.len() < WAITS_MAX || self.waits.contains_key(&(key.clone(), stack)) {
                    *self.waits.entry((key, stack)).or_default() += ns;
                }
            }
            self.waiting += 1;
        }
        self.here.push(there);
        Ok(())
    }

    /// A look ends: who holds what is waited for?
    pub(crate) fn end_of_look(&mut self, procfs: &mut ProcFs) -> Result<(), LiveError> {
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

    /// Where the futex of a key can be read.
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

    /// Which of the threads that are here holds a lock, if the lock says so.
    fn owner(&self, futex: Futex) -> Option<usize> {
        let Futex { pid, address, style, is_shared } = futex;
        let mut words = [0; 20];
        let copied = copy::memory(pid, address, &mut words).ok()?;
        let word = |at: usize| {
            let bytes = words.get(at..at + 4).filter(|_| at + 4 <= copied)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        // `pthread_mutex_t` has the owner in its third word. In `pthread_rwlock_t` the writer is four words behind the third
        // word, and three behind the fourth: one waits at either. What is there in anything else is hardly the number of a
        // thread of the process.
        let at: &[usize] = match style {
            Style::Low => &[8],
            Style::Inherits => &[0],
            Style::Other => &[16, 12],
        };
        let of =
            |tid: u32| self.here.iter().position(|there| there.tid == tid && (is_shared || there.pid == pid));
        at.iter().filter_map(|at| word(*at)).find_map(|word| of(word & FUTEX_TID))
    }

    /// The thread that holds a lock is known.
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

    /// What a thread does now, and where it is. Since it was looked at it may have gone to sleep, or woken up; one that waits
    /// for this lock by now does not hold it.
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
            let Some(moment) = procfs.doing(pid, tid)? else { return Ok(None) };
            let stack = match (moment.look.seen, moment.spot) {
                (Seen::Ready, _) => {
                    holding = Holding::Runs;
                    self.running(procfs, pid, tid, &name)?
                }
                (Seen::Waits(state), spot) => {
                    holding = Holding::Waits(state);
                    let Some(spot) = spot else { continue };
                    if FUTEX_CALLS.contains(&spot.call) && self.key(procfs, pid, &name, spot)?.is_same(key) {
                        return Ok(None);
                    }
                    self.asleep(procfs, pid, tid, &name, spot)?
                }
            };
            if stack.is_some() {
                return Ok(Some((Candidate { name, holding, stack }, tid)));
            }
        }
        Ok(Some((Candidate { name, holding, stack: None }, tid)))
    }

    /// The lock does not say who holds it: where are all who may?
    fn among(&mut self, procfs: &mut ProcFs, key: &Key, futex: Futex, ns: u64) -> Result<(), LiveError> {
        let may_hold =
            |there: &There| (futex.is_shared || there.pid == futex.pid) && there.key.as_ref() != Some(key);
        let others: Vec<usize> =
            (0..self.here.len()).filter(|at| self.here.get(*at).is_some_and(may_hold)).collect();
        let running =
            others.iter().filter(|at| self.here.get(**at).is_some_and(|it| it.seen == Seen::Ready)).count();
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

    /// The stack of a thread that sleeps; none if it does not any more.
    fn asleep(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        tid: u32,
        comm: &str,
        spot: Spot,
    ) -> Result<Option<StackId>, LiveError> {
        let mut size = STACK_BYTES;
        loop {
            self.buffer.resize(size, 0);
            let copied = match copy::memory(pid, spot.stack, &mut self.buffer) {
                Ok(copied) => copied,
                Err(error) => {
                    // One that is gone has no stack, which is no news.
                    if error.raw_os_error() == Some(libc::EPERM) && self.no_stacks.is_none() {
                        self.no_stacks = Some(error.to_string());
                    }
                    return Ok(None);
                }
            };
            if procfs.spot(pid, tid)? != Some(spot) {
                return Ok(None);
            }
            let registers = Registers { at: spot.at, stack: spot.stack, frame: None };
            let bytes = std::mem::take(&mut self.buffer);
            let stack = Stack { from: spot.stack, bytes: &bytes[..copied] };
            let calls = self.unwind(procfs, pid, comm, stack, registers)?;
            self.buffer = bytes;
            // Too short a copy for as much as a call: a function has a large frame.
            if calls.at.len() < 3 && copied == size && size < STACK_BYTES_MAX {
                size = STACK_BYTES_MAX;
                continue;
            }
            return Ok(self.known(calls));
        }
    }

    /// The stack of a thread that runs; none if the kernel took no sample.
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
        match shot::of(tid) {
            Ok(None) => Ok(None),
            Ok(Some(shot)) => {
                let registers = Registers { at: shot.at, stack: shot.stack, frame: Some(shot.frame) };
                let stack = Stack { from: shot.stack, bytes: &shot.bytes };
                let calls = self.unwind(procfs, pid, comm, stack, registers)?;
                Ok(self.known(calls))
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => {
                self.no_shots = Some(error.to_string());
                Ok(None)
            }
        }
    }

    fn known(&mut self, calls: Calls) -> Option<StackId> {
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
        self.learn(procfs, pid, comm, |space| space.code(registers.at).is_some())?;
        Ok(self.calls(pid, stack, registers))
    }

    /// The calls on a stack of a process whose memory is known.
    fn calls(&mut self, pid: u32, stack: Stack, registers: Registers) -> Calls {
        let Some(known) = self.spaces.get_mut(&pid) else { return Calls::default() };
        let jit = |at: u64| {
            let mut code = [0; CALL_MAX];
            let copied = copy::memory(pid, at.checked_sub(CALL_MAX as u64)?, &mut code).ok()?;
            (copied == CALL_MAX).then_some(code)
        };
        let calls = self.files.images.unwind(&known.space, stack, registers, &jit);
        known.is_torn = !calls.is_whole;
        calls
    }

    /// Reads what is mapped in a process: once, and again now and then while it does not have what is looked for.
    fn learn(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        comm: &str,
        has: impl Fn(&Space) -> bool,
    ) -> Result<(), LiveError> {
        let main = self.here.iter().find(|it| it.pid == pid && it.tid == pid);
        // A program that a process executes takes the place of the one before, and mostly has another name.
        let is_same = |known: &&Known| main.is_none_or(|it| it.name == known.comm);
        let old = self.spaces.get(&pid).filter(is_same);
        let is_news = old.is_none_or(|known| {
            // A program maps most of what it needs as it begins.
            let wait = (known.at_look - known.since).clamp(1, LOOKS_BETWEEN_MAPS);
            self.looks >= known.at_look + wait && (known.is_torn || !has(&known.space))
        });
        if !is_news {
            return Ok(());
        }
        let comm = main.map_or(comm, |it| it.name.as_str()).to_owned();
        let (since, mut jit) = old.map_or((self.looks, None), |known| (known.since, known.jit));
        self.learned = true;
        let Some(maps) = procfs.maps(pid)? else { return Ok(()) };
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
        let known = Known { space, comm, since, at_look: self.looks, is_torn: false, jit, go };
        self.spaces.insert(pid, known);
        Ok(())
    }

    /// What a thread waits for, where it sleeps.
    fn key(&mut self, procfs: &mut ProcFs, pid: u32, comm: &str, spot: Spot) -> Result<Key, LiveError> {
        let [first, operation, value] = spot.arguments;
        Ok(match spot.call {
            libc::SYS_futex => {
                let style = match (operation & 127, value) {
                    // `FUTEX_WAIT`; 2 in a mutex: taken, and others wait.
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
            libc::SYS_flock | libc::SYS_fcntl => {
                Key::File(procfs.open_file(pid, first).unwrap_or_else(|| format!("descriptor {first}")))
            }
            FUTEX_WAIT => Key::Futex { pid, address: first, style: Style::Other },
            _ => Key::Kernel,
        })
    }

    /// Where a futex is, if it is in memory that other processes may share.
    fn shared(
        &mut self,
        procfs: &mut ProcFs,
        pid: u32,
        comm: &str,
        address: u64,
    ) -> Result<Option<Shared>, LiveError> {
        self.learn(procfs, pid, comm, |space| space.shared(address).is_some())?;
        let Some((place, path)) = self.spaces.get(&pid).and_then(|known| known.space.shared(address)) else {
            return Ok(None);
        };
        let has_room = self.shared.len() < SHARED_MAX || self.shared.contains_key(&place);
        if has_room {
            // The last to wait for it is there still, when its holder is looked for.
            self.shared.insert(place, (pid, address, path.to_owned()));
        }
        Ok(has_room.then_some(place))
    }
}

/// `FUTEX_TID_MASK`.
const FUTEX_TID: u32 = 0x3fff_ffff;
/// `FUTEX_PRIVATE_FLAG`.
const FUTEX_PRIVATE: u64 = 128;
/// `futex_wait(2)`, which has the same number everywhere, and the address first, too.
const FUTEX_WAIT: i64 = 455;
const FUTEX_CALLS: [i64; 2] = [libc::SYS_futex, FUTEX_WAIT];
