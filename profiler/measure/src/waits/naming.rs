//! Resolves the names of locks and call sites when the run has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use commonhold_scale::blame::{Hold, HolderSample, Holding, Kind, Lock, Site, fewest};
use commonhold_trace::{Address, Calls, Frame, ImageId, Images, Maker, Names, is_plumbing};

use super::{Candidates, Files, Key, Parked, StackId, Style, Waits};
use crate::perf_map::PerfMap;
use crate::thread_sample::group;

/// Why a call site is not named as a function of the program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unnamed {
    /// The file of this base name has no symbols.
    Stripped(String),
    /// The code is JIT code of this program; and the reason why no perf map names it.
    Jit(String, String),
    /// The code is interpreted by this program.
    Interpreted(String),
    /// Unwinding stopped at this function.
    Torn(String),
    /// The stack was not copied: the thread was woken during the copy, or runs code of a deleted file.
    Unread,
}

/// A stack with names.
struct NamedStack {
    /// The kind of lock, if the library functions on top of the stack show it.
    kind: Option<Kind>,
    /// The call site: the innermost function of the program.
    site: Option<Site>,
    /// The start of that function.
    function: Option<Address>,
    /// The site to show if the call site is unknown.
    fallback: Site,
    unnamed: Option<Unnamed>,
    /// Whether it is a thread of Go's scheduler that has no goroutine to run.
    is_idle: bool,
    /// Whether it is a goroutine that is blocked, not one that is runnable.
    is_parked: bool,
    /// For each call: its function, and the innermost function of the program that is inlined there.
    calls: Vec<(Option<Address>, Option<Site>)>,
}

impl NamedStack {
    fn shown(&self) -> Site {
        self.site.clone().unwrap_or_else(|| self.fallback.clone())
    }
}

/// Names stacks on demand.
struct StackNamer<'a> {
    images: &'a Images,
    stacks: &'a [Calls],
    names: &'a mut Names,
    /// Why JIT code has no names, by its image.
    no_map: &'a BTreeMap<ImageId, String>,
    stacks_named: BTreeMap<StackId, NamedStack>,
}

impl StackNamer<'_> {
    fn named(&mut self, id: StackId) -> &NamedStack {
        if !self.stacks_named.contains_key(&id) {
            let named = self.name(id);
            self.stacks_named.insert(id, named);
        }
        &self.stacks_named[&id]
    }

    fn name(&mut self, id: StackId) -> NamedStack {
        let mut named = NamedStack {
            kind: None,
            site: None,
            function: None,
            fallback: unread(),
            unnamed: None,
            is_idle: false,
            is_parked: false,
            calls: Vec::new(),
        };
        let empty = Calls::default();
        let stack = self.stacks.get(id as usize).unwrap_or(&empty);
        // `last`: the outermost library function that shows the kind of lock, or was compiled at run time.
        // `is_java_kind`: the kind is that of a Java lock, and not of a lock of the virtual machine.
        let (mut last, mut is_go, mut is_java_kind) = (None, false, false);
        for (depth, address) in stack.at.iter().enumerate() {
            // The innermost address is that after the system call; the others are return addresses.
            let frames = self.names.frames(self.images, *address, depth > 0);
            if named.site.is_none() {
                for frame in frames.iter().take_while(|frame| is_plumbing(frame)) {
                    // Callers determine the kind, not callees: a lock may be implemented by parking, or by a
                    // condition variable.
                    let kind_of_frame = kind(frame);
                    named.kind = kind_of_frame.or(named.kind);
                    is_java_kind |= kind_of_frame.is_some() && is_java_wait(frame);
                    is_go |= frame.maker == Maker::Go;
                    named.is_parked |= depth == 0 && frame.function == GO_PARKS;
                    let is_jit = frame.maker == Maker::Program && !frame.function.starts_with(ENTRY);
                    if last.is_none() || kind_of_frame.is_some() || is_jit {
                        last = Some(frame.clone());
                    }
                }
            }
            let first = frames.iter().find(|frame| !is_plumbing(frame)).cloned();
            let site = first.as_ref().map(site);
            let behind = Address { at: address.at.saturating_sub(u64::from(depth > 0)), ..*address };
            let function = self.names.function(self.images, behind);
            if let (None, Some(site), Some(frame)) = (&named.site, &site, first) {
                (named.site, named.function) = (Some(site.clone()), function);
                if frame.is_unnamed {
                    named.unnamed = Some(unnamed(&frame, self.no_map.get(&address.image)));
                } else if frame.maker == Maker::Program && !is_java_kind {
                    // A virtual machine uses a condition variable for all waits, so this does not show the
                    // kind of lock.
                    named.kind = None;
                }
            }
            named.calls.push((function, site));
        }
        if let (None, Some(last)) = (&named.site, last) {
            named.fallback = site(&last);
            named.is_idle = is_go && named.kind == Some(Kind::Park);
            if last.maker == Maker::Program {
                named.unnamed = Some(Unnamed::Interpreted(last.module));
            } else if !stack.is_whole && !is_go {
                named.unnamed = Some(Unnamed::Torn(format!("{} ({})", last.function, last.module)));
            }
        }
        named
    }

    /// The innermost call on a stack that is in one of these functions.
    fn within(&mut self, id: StackId, functions: &BTreeSet<Address>) -> Option<Site> {
        let is_within = |function: &Option<Address>| function.is_some_and(|it| functions.contains(&it));
        let call = self.named(id).calls.iter().find(|(function, site)| is_within(function) && site.is_some());
        call.and_then(|(_, site)| site.clone())
    }

    /// For a lock that does not store its holder: by sample, the call sites of threads inside `functions`,
    /// which take the lock.
    fn holder_samples(
        &mut self,
        samples: &[&Candidates],
        functions: &BTreeSet<Address>,
    ) -> Vec<HolderSample<Holder>> {
        let holder_sample = |candidates: &&Candidates| {
            let mut sample = HolderSample { weight: candidates.ns, places: Vec::new(), is_whole: true };
            for thread in &candidates.threads {
                match thread.stack {
                    // A thread with an unknown stack may hold the lock anywhere.
                    None => sample.is_whole = false,
                    Some(stack) => {
                        // A thread inside a lock function spins for a lock itself.
                        let spins = self.named(stack).kind.is_some();
                        let site = self.within(stack, functions).filter(|_| !spins);
                        let place = site.map(|site| (thread.holding, Some(site), group(&thread.name)));
                        sample.places.extend(place);
                    }
                }
            }
            sample
        };
        samples.iter().map(holder_sample).collect()
    }
}

/// The function in which a goroutine yields its thread to wait. A preempted one yields elsewhere.
const GO_PARKS: &str = "runtime.gopark";
/// The prefix of the stubs by which the JVM enters Java code.
const ENTRY: &str = "StubRoutines";

/// Whether a function shows what Java code waits for, and not only what the JVM waits for.
fn is_java_wait(frame: &Frame) -> bool {
    frame.maker == Maker::Program || frame.function.contains("ObjectMonitor::")
}

fn site(frame: &Frame) -> Site {
    Site { function: frame.function.clone(), place: frame.place() }
}

/// The kind of lock that a library function implements.
fn kind(frame: &Frame) -> Option<Kind> {
    let name = frame.function.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["barrier", "waitgroup"]) {
        Some(Kind::Barrier)
    } else if has(&[
        "cond_",
        "condvar",
        "condition",
        "(*cond)",
        "object.wait",
        "object;::wait",
        "objectmonitor::wait",
    ]) {
        Some(Kind::Condition)
    } else if has(&["rwlock", "rwmutex", "shared_mutex", "readwritelock"]) {
        Some(Kind::ReadWrite)
    } else if has(&["sem_", "semaphore"]) {
        Some(Kind::Semaphore)
    } else if has(&[
        "mutex",
        "lll_lock",
        "reentrantlock",
        "complete_monitor",
        "monitorenter",
        "objectmonitor::enter",
        "runtime.lock",
    ]) {
        Some(Kind::Mutex)
    } else if has(&["thread::park", "parker", "mpsc", "mpmc", "futexsleep", "runtime.findrunnable"]) {
        Some(Kind::Park)
    } else {
        None
    }
}

/// What a holder does, its place in the program, and its thread group.
type Holder = (Holding, Option<Site>, String);

/// The sums of a lock.
#[derive(Default)]
struct LockSums {
    waits: BTreeMap<Site, u64>,
    /// Waiting time by the kind of lock that the stacks show.
    kinds: BTreeMap<Kind, u64>,
    /// The functions of the program that take the lock.
    functions: BTreeSet<Address>,
    holds: BTreeMap<Holder, u64>,
}

/// The locks that a run waited for.
pub(crate) struct Ended {
    pub(crate) locks: Vec<Lock>,
    /// Why some call sites have no name.
    pub(crate) unnamed: BTreeSet<Unnamed>,
    /// The parsed files, for the next run.
    pub(crate) files: Files,
}

/// Reasons that apply to less than 1/20 of all waiting are not reported.
const UNNAMED_MIN: u64 = 20;

/// Time that goroutines waited for locks, by process, kind and call site.
type Goroutines = BTreeMap<(u32, Kind, Site), u64>;

impl Waits {
    /// Resolves all names. `waited_ns`: the exact total time in
    /// [`State::Lock`](commonhold_scale::states::State::Lock), to which the sampled times are scaled.
    /// `kernel_traced`: locks in the kernel are left out.
    pub(crate) fn end(mut self, waited_ns: u64, kernel_traced: bool) -> Ended {
        let mut names = std::mem::take(&mut self.files.names);
        let no_map = self.read_perf_maps(&mut names);
        let mut namer = StackNamer {
            images: &self.files.images,
            stacks: &self.stacks,
            names: &mut names,
            no_map: &no_map,
            stacks_named: BTreeMap::new(),
        };
        let sampled_ns: u64 = self.waits.values().sum();
        let scaled = |ns: u64| scale(ns, waited_ns, sampled_ns);
        // Idle Go threads count as waiting for the locks that goroutines wait for.
        let goroutines = goroutines(&self.parked, &mut namer);
        let idle = self.idle(&mut namer);
        let (mut locks, mut unnamed): (BTreeMap<&Key, LockSums>, BTreeMap<Unnamed, u64>) = Default::default();
        for ((key, stack), ns) in &self.waits {
            let named = stack.map(|stack| namer.named(stack));
            let ns = match (key, named) {
                (Key::Futex { pid, .. }, Some(named)) if named.is_idle => {
                    let idle = idle.get(pid).copied().unwrap_or(0);
                    ns - scale(*ns, of_process(&goroutines, *pid).min(idle), idle)
                }
                _ => *ns,
            };
            let lock = locks.entry(key).or_default();
            *lock.waits.entry(named.map_or_else(unread, NamedStack::shown)).or_default() += scaled(ns);
            *lock.kinds.entry(kind_of(key, named.and_then(|named| named.kind))).or_default() += ns;
            lock.functions.extend(named.and_then(|named| named.function));
            if let Some(why) = named.map_or(Some(Unnamed::Unread), |named| named.unnamed.clone()) {
                *unnamed.entry(why).or_default() += ns;
            }
        }
        // Holders of locks that store them.
        for ((key, hold), ns) in &self.holds {
            let Some(lock) = locks.get_mut(key) else { continue };
            // If the holder released the lock before its stack was taken, the stack shows a place without the
            // lock.
            let holder = if hold.is_confirmed {
                let site = hold.stack.and_then(|stack| {
                    let within = namer.within(stack, &lock.functions);
                    within.or_else(|| namer.named(stack).site.clone())
                });
                (hold.holding, site, group(&hold.name))
            } else {
                (Holding::Unknown, None, String::new())
            };
            *lock.holds.entry(holder).or_default() += scaled(*ns);
        }
        // Holders of other locks, chosen among the candidates.
        let mut candidates: BTreeMap<&Key, Vec<&Candidates>> = BTreeMap::new();
        self.candidates.iter().for_each(|sample| candidates.entry(&sample.key).or_default().push(sample));
        for (key, samples) in candidates {
            let Some(lock) = locks.get_mut(key) else { continue };
            let holder_samples = namer.holder_samples(&samples, &lock.functions);
            for (sample, holder) in samples.iter().zip(fewest(&holder_samples)) {
                let holder = holder.unwrap_or((Holding::Unknown, None, String::new()));
                *lock.holds.entry(holder).or_default() += scaled(sample.ns);
            }
        }
        let is_included = |key: &Key| !(kernel_traced && *key == Key::Kernel);
        let locks = locks.into_iter().filter(|(key, _)| is_included(key));
        let mut locks: Vec<Lock> =
            locks.map(|(key, sums)| sums.into_lock(self.lock_name(key, &mut namer))).collect();
        for ((pid, kind, site), ns) in &goroutines {
            let process_ns = of_process(&goroutines, *pid);
            let ns = scale(*ns, process_ns.min(idle.get(pid).copied().unwrap_or(0)), process_ns);
            locks.push(Lock {
                kind: *kind,
                name: None,
                waits: vec![(site.clone(), scaled(ns))],
                holds: Vec::new(),
            });
        }
        unnamed.retain(|_, ns| *ns >= sampled_ns / UNNAMED_MIN);
        let unnamed = unnamed.into_keys().collect();
        Ended { locks, unnamed, files: Files { names, ..self.files } }
    }

    /// Reads the perf maps of JIT code on the stacks. Returns why names may be missing, by image.
    fn read_perf_maps(&self, names: &mut Names) -> BTreeMap<ImageId, String> {
        let mut wanted: BTreeMap<ImageId, BTreeSet<u64>> = BTreeMap::new();
        for (depth, address) in self.stacks.iter().flat_map(|calls| calls.at.iter().enumerate()) {
            if self.files.images.maker(address.image) == Maker::Program {
                let at = address.at.saturating_sub(u64::from(depth > 0));
                wanted.entry(address.image).or_default().insert(at);
            }
        }
        let mut reasons = BTreeMap::new();
        for (image, wanted) in wanted {
            let wanted: Vec<u64> = wanted.into_iter().collect();
            let reason = match self.perf_maps.get(&image).map(PerfMap::read) {
                Some(Ok(text)) => {
                    names.read_perf_map(image, &text, &wanted);
                    "its perf map does not have this code".to_owned()
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                    "it wrote no /tmp/perf-PID.map".to_owned()
                }
                Some(Err(error)) => format!("its /tmp/perf-PID.map cannot be used: {error}"),
                None => "its tree of files cannot be read".to_owned(),
            };
            reasons.insert(image, reason);
        }
        reasons
    }

    /// Sampled time in which Go threads were idle, by process.
    fn idle(&self, namer: &mut StackNamer) -> BTreeMap<u32, u64> {
        let mut idle = BTreeMap::new();
        for ((key, stack), ns) in &self.waits {
            if let (Key::Futex { pid, .. }, Some(stack)) = (key, stack)
                && namer.named(*stack).is_idle
            {
                *idle.entry(*pid).or_default() += ns;
            }
        }
        idle
    }

    /// The name of a lock: its file or its variable.
    fn lock_name(&self, key: &Key, namer: &mut StackNamer) -> Option<String> {
        match key {
            Key::File(path) => Some(path.clone()),
            Key::Kernel => None,
            Key::Shared { place, .. } => {
                let (_, _, path) = self.shared.get(place)?;
                place.name(path)
            }
            Key::Futex { pid, address, .. } => {
                let place = self.spaces.get(pid)?.space.data(*address, &self.files.images)?;
                namer.names.variable(&self.files.images, place)
            }
        }
    }
}

/// `ns * numerator / denominator`; saturates.
fn scale(ns: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The time that the goroutines of a process waited for locks.
fn of_process(goroutines: &Goroutines, pid: u32) -> u64 {
    goroutines.iter().filter(|((process, _, _), _)| *process == pid).map(|(_, ns)| ns).sum()
}

/// The time that goroutines waited for locks while threads were idle. Of one sample, as many goroutines count
/// as threads waited.
fn goroutines(parked: &[Parked], namer: &mut StackNamer) -> Goroutines {
    let mut waits = Goroutines::new();
    for sample in parked {
        let mut lock_waits = Vec::new();
        for stack in &sample.stacks {
            let named = namer.named(*stack);
            let kind = named.kind.filter(|kind| kind.has_holder() && named.is_parked);
            lock_waits.extend(kind.zip(named.site.clone()));
        }
        let goroutines = sample.every.saturating_mul(lock_waits.len() as u64);
        let ns_each =
            scale(sample.ns.saturating_mul(sample.every), sample.threads.min(goroutines), goroutines);
        for (kind, site) in lock_waits {
            *waits.entry((sample.pid, kind, site)).or_default() += ns_each;
        }
    }
    waits
}

impl LockSums {
    fn into_lock(self, name: Option<String>) -> Lock {
        let kind = self.kinds.iter().max_by_key(|(_, ns)| **ns).map_or(Kind::Futex, |(kind, _)| *kind);
        let holds = self.holds.into_iter().filter(|_| kind.has_holder());
        Lock {
            kind,
            name,
            waits: self.waits.into_iter().collect(),
            holds: holds.map(|((holding, site, thread), ns)| Hold { holding, site, thread, ns }).collect(),
        }
    }
}

/// The site of a stack that was not copied.
fn unread() -> Site {
    Site { function: "unread stack".to_owned(), place: None }
}

/// Why a function without a name has no name.
fn unnamed(frame: &Frame, no_map: Option<&String>) -> Unnamed {
    match frame.maker {
        Maker::Program => Unnamed::Jit(frame.module.clone(), no_map.cloned().unwrap_or_default()),
        Maker::Compiler | Maker::Go => Unnamed::Stripped(frame.module.clone()),
    }
}

/// The kind of a lock: from its futex if that shows the kind, else from the stack of a waiter.
fn kind_of(key: &Key, from_stack: Option<Kind>) -> Kind {
    match key {
        Key::File(_) => Kind::File,
        Key::Kernel => Kind::KernelOther,
        // The mutex counts even if the stack shows a condition variable: at the end of such a wait, the mutex
        // is retaken.
        Key::Futex { style: Style::Low | Style::Inherits, .. }
        | Key::Shared { style: Style::Low | Style::Inherits, .. } => Kind::Mutex,
        Key::Futex { .. } | Key::Shared { .. } => from_stack.unwrap_or(Kind::Futex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_functions_show_the_kind_of_lock() {
        let of = |function: &str| {
            kind(&Frame {
                function: function.into(),
                source: None,
                module: "libc.so.6".into(),
                maker: Maker::Compiler,
                is_unnamed: false,
            })
        };
        for (function, is) in [
            ("pthread_mutex_lock", Some(Kind::Mutex)),
            ("std::sys::sync::mutex::futex::Mutex::lock_contended", Some(Kind::Mutex)),
            ("pthread_rwlock_wrlock", Some(Kind::ReadWrite)),
            ("pthread_cond_wait", Some(Kind::Condition)),
            ("std::sys::sync::condvar::futex::Condvar::wait_optional_timeout", Some(Kind::Condition)),
            ("pthread_barrier_wait", Some(Kind::Barrier)),
            ("sem_wait", Some(Kind::Semaphore)),
            ("std::thread::park", Some(Kind::Park)),
            ("syscall", None),
            ("sync.(*RWMutex).RLock", Some(Kind::ReadWrite)),
            ("sync.(*Cond).Wait", Some(Kind::Condition)),
            ("sync.(*WaitGroup).Wait", Some(Kind::Barrier)),
            ("runtime.findRunnable", Some(Kind::Park)),
            ("runtime.lock2", Some(Kind::Mutex)),
            ("void java.util.concurrent.locks.ReentrantLock.lock()", Some(Kind::Mutex)),
            ("ObjectMonitor::enter(JavaThread*)", Some(Kind::Mutex)),
            ("ObjectMonitor::wait(long, bool, JavaThread*)", Some(Kind::Condition)),
        ] {
            assert_eq!(of(function), is, "{function}");
        }
        let low = Key::Futex { pid: 1, address: 8, style: Style::Low };
        assert_eq!(kind_of(&low, Some(Kind::Condition)), Kind::Mutex);
    }
}
