//! The names of what threads waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use commonhold_scale::blame::{Found, Hold, Holding, Kind, Lock, Site, fewest};
use commonhold_trace::{Address, Calls, Frame, ImageId, Images, Maker, Names, is_plumbing};

use super::super::perf_map::PerfMap;
use super::super::process::group;
use super::{Among, Files, Key, Parked, StackId, Style, Waits};

/// Why a place is not named as a function of the program's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unnamed {
    /// The file, by its base name, has no symbols.
    Stripped(String),
    /// It is JIT code of the program of that name, and why no perf map names it.
    Jit(String, String),
    /// The program of that name interprets it.
    Interpreted(String),
    /// The stack could not be followed beyond that function.
    Torn(String),
    /// The stack was not copied: the thread had gone on, or it runs code of a file that is gone.
    Unread,
}

/// A stack with names.
struct Told {
    /// What the library's part of it waits for, if its functions say that.
    kind: Option<Kind>,
    /// The first function of the program.
    site: Option<Site>,
    /// The function of the file that this is in.
    function: Option<Address>,
    /// Shown in place of an unknown site, with the reason.
    instead: Site,
    unnamed: Option<Unnamed>,
    /// Go's scheduler has no goroutine to run.
    is_idle: bool,
    /// It is a goroutine that waits, and not one that could run.
    is_parked: bool,
    /// By call: its function, and the first of the program's functions there.
    calls: Vec<(Option<Address>, Option<Site>)>,
}

impl Told {
    fn shown(&self) -> Site {
        self.site.clone().unwrap_or_else(|| self.instead.clone())
    }
}

/// Names stacks as they are needed.
struct Teller<'a> {
    images: &'a Images,
    stacks: &'a [Calls],
    names: &'a mut Names,
    /// Why JIT code has no names.
    no_map: &'a BTreeMap<ImageId, String>,
    told: BTreeMap<StackId, Told>,
}

impl Teller<'_> {
    fn told(&mut self, id: StackId) -> &Told {
        if !self.told.contains_key(&id) {
            let told = self.tell(id);
            self.told.insert(id, told);
        }
        &self.told[&id]
    }

    fn tell(&mut self, id: StackId) -> Told {
        let mut told = Told {
            kind: None,
            site: None,
            function: None,
            instead: unread(),
            unnamed: None,
            is_idle: false,
            is_parked: false,
            calls: Vec::new(),
        };
        let empty = Calls::default();
        let stack = self.stacks.get(id as usize).unwrap_or(&empty);
        // The last function of a library that tells for what it waits, or that was made while the program ran.
        let (mut last, mut is_go, mut is_sure) = (None, false, false);
        for (depth, address) in stack.at.iter().enumerate() {
            // A thread that sleeps is behind its system call.
            let frames = self.names.frames(self.images, *address, depth > 0);
            if told.site.is_none() {
                for frame in frames.iter().take_while(|frame| is_plumbing(frame)) {
                    // What calls says more than what is called: a lock parks a thread, or waits for a condition.
                    let its = kind(frame);
                    told.kind = its.or(told.kind);
                    is_sure |= its.is_some() && is_javas(frame);
                    is_go |= frame.maker == Maker::Go;
                    told.is_parked |= depth == 0 && frame.function == GO_PARKS;
                    let is_made = frame.maker == Maker::Program && !frame.function.starts_with(ENTRY);
                    if last.is_none() || its.is_some() || is_made {
                        last = Some(frame.clone());
                    }
                }
            }
            let first = frames.iter().find(|frame| !is_plumbing(frame)).cloned();
            let site = first.as_ref().map(site);
            let behind = Address { at: address.at.saturating_sub(u64::from(depth > 0)), ..*address };
            let function = self.names.function(self.images, behind);
            if let (None, Some(site), Some(frame)) = (&told.site, &site, first) {
                (told.site, told.function) = (Some(site.clone()), function);
                if frame.is_unnamed {
                    told.unnamed = Some(unnamed(&frame, self.no_map.get(&address.image)));
                } else if frame.maker == Maker::Program && !is_sure {
                    // Its virtual machine waits for a condition, whatever the program waits for.
                    told.kind = None;
                }
            }
            told.calls.push((function, site));
        }
        if let (None, Some(last)) = (&told.site, last) {
            told.instead = site(&last);
            told.is_idle = is_go && told.kind == Some(Kind::Park);
            if last.maker == Maker::Program {
                told.unnamed = Some(Unnamed::Interpreted(last.module));
            } else if !stack.is_whole && !is_go {
                told.unnamed = Some(Unnamed::Torn(format!("{} ({})", last.function, last.module)));
            }
        }
        told
    }

    /// The first call on a stack that is in one of these functions.
    fn within(&mut self, id: StackId, functions: &BTreeSet<Address>) -> Option<Site> {
        let is_within = |function: &Option<Address>| function.is_some_and(|it| functions.contains(&it));
        let call = self.told(id).calls.iter().find(|(function, site)| is_within(function) && site.is_some());
        call.and_then(|(_, site)| site.clone())
    }

    /// What looks found of a lock that does not say who holds it: by look, the threads' places in functions that take it.
    fn found(&mut self, among: &[&Among], functions: &BTreeSet<Address>) -> Vec<Found<Holder>> {
        let one = |look: &&Among| {
            let mut found = Found { weight: look.ns, places: Vec::new(), is_whole: true };
            for thread in &look.threads {
                match thread.stack {
                    // Nobody knows where it is: it may hold the lock.
                    None => found.is_whole = false,
                    Some(stack) => {
                        // One that is in a function of locks still tries to take one, and spins.
                        let spins = self.told(stack).kind.is_some();
                        let site = self.within(stack, functions).filter(|_| !spins);
                        found
                            .places
                            .extend(site.map(|site| (thread.holding, Some(site), group(&thread.name))));
                    }
                }
            }
            found
        };
        among.iter().map(one).collect()
    }
}

/// Where a goroutine leaves its thread to wait. One that is to run again leaves it elsewhere.
const GO_PARKS: &str = "runtime.gopark";
/// By what Java's machine enters code of Java's.
const ENTRY: &str = "StubRoutines";

/// Whether a function knows for what Java's code waits, and not only its virtual machine.
fn is_javas(frame: &Frame) -> bool {
    frame.maker == Maker::Program || frame.function.contains("ObjectMonitor::")
}

fn site(frame: &Frame) -> Site {
    Site { function: frame.function.clone(), place: frame.place() }
}

/// What a function of a library of locks is for.
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

/// What a holder does, where, and its name.
type Holder = (Holding, Option<Site>, String);

/// A lock while it is put together.
#[derive(Default)]
struct Building {
    waits: BTreeMap<Site, u64>,
    kinds: BTreeMap<Kind, u64>,
    functions: BTreeSet<Address>,
    holds: BTreeMap<Holder, u64>,
}

/// What was seen of a program's locks in the end.
pub(crate) struct Ended {
    pub(crate) locks: Vec<Lock>,
    /// Why some of the places are not named.
    pub(crate) unnamed: BTreeSet<Unnamed>,
    /// What is known of files.
    pub(crate) files: Files,
}

/// A reason for less of all waiting is not worth a sentence.
const UNNAMED_MIN: u64 = 20;

/// Goroutines' waits for locks: by process, kind, and where, how long.
type Goroutines = BTreeMap<(u32, Kind, Site), u64>;

impl Waits {
    /// The locks that were waited for, all together for so long. Locks in the kernel are left out if others tell of them.
    pub(crate) fn end(mut self, waited_ns: u64, kernels: bool) -> Ended {
        let mut names = std::mem::take(&mut self.files.names);
        let no_map = self.read_perf_maps(&mut names);
        let mut teller = Teller {
            images: &self.files.images,
            stacks: &self.stacks,
            names: &mut names,
            no_map: &no_map,
            told: BTreeMap::new(),
        };
        let all: u64 = self.waits.values().sum();
        let scaled = |ns: u64| part(ns, waited_ns, all);
        // Threads of Go's that have nothing to run waited for the locks that goroutines wait for.
        let goroutines = goroutines(&self.parked, &mut teller);
        let idle = self.idle(&mut teller);
        let (mut locks, mut unnamed): (BTreeMap<&Key, Building>, BTreeMap<Unnamed, u64>) = Default::default();
        for ((key, stack), ns) in &self.waits {
            let told = stack.map(|stack| teller.told(stack));
            let ns = match (key, told) {
                (Key::Futex { pid, .. }, Some(told)) if told.is_idle => {
                    let idle = idle.get(pid).copied().unwrap_or(0);
                    ns - part(*ns, of_process(&goroutines, *pid).min(idle), idle)
                }
                _ => *ns,
            };
            let lock = locks.entry(key).or_default();
            *lock.waits.entry(told.map_or_else(unread, Told::shown)).or_default() += scaled(ns);
            *lock.kinds.entry(kind_of(key, told.and_then(|told| told.kind))).or_default() += ns;
            lock.functions.extend(told.and_then(|told| told.function));
            if let Some(why) = told.map_or(Some(Unnamed::Unread), |told| told.unnamed.clone()) {
                *unnamed.entry(why).or_default() += ns;
            }
        }
        for ((key, hold), ns) in &self.holds {
            let Some(lock) = locks.get_mut(key) else { continue };
            // One that let go meanwhile was seen where it is without the lock.
            let holder = if hold.is_sure {
                let site = hold.stack.and_then(|stack| {
                    let within = teller.within(stack, &lock.functions);
                    within.or_else(|| teller.told(stack).site.clone())
                });
                (hold.holding, site, group(&hold.name))
            } else {
                (Holding::Unknown, None, String::new())
            };
            *lock.holds.entry(holder).or_default() += scaled(*ns);
        }
        let mut among: BTreeMap<&Key, Vec<&Among>> = BTreeMap::new();
        self.among.iter().for_each(|look| among.entry(&look.key).or_default().push(look));
        for (key, looks) in among {
            let Some(lock) = locks.get_mut(key) else { continue };
            let found = teller.found(&looks, &lock.functions);
            for (look, holder) in looks.iter().zip(fewest(&found)) {
                let holder = holder.unwrap_or((Holding::Unknown, None, String::new()));
                *lock.holds.entry(holder).or_default() += scaled(look.ns);
            }
        }
        let is_told = |key: &Key| !(kernels && *key == Key::Kernel);
        let locks = locks.into_iter().filter(|(key, _)| is_told(key));
        let mut locks: Vec<Lock> = locks.map(|(key, lock)| lock.done(self.name(key, &mut teller))).collect();
        for ((pid, kind, site), ns) in &goroutines {
            let of_all = of_process(&goroutines, *pid);
            let ns = part(*ns, of_all.min(idle.get(pid).copied().unwrap_or(0)), of_all);
            locks.push(Lock {
                kind: *kind,
                name: None,
                waits: vec![(site.clone(), scaled(ns))],
                holds: Vec::new(),
            });
        }
        unnamed.retain(|_, ns| *ns >= all / UNNAMED_MIN);
        let unnamed = unnamed.into_keys().collect();
        Ended { locks, unnamed, files: Files { names, ..self.files } }
    }

    /// Names the JIT code that was met. Of which there are no names, and why.
    fn read_perf_maps(&self, names: &mut Names) -> BTreeMap<ImageId, String> {
        let mut wanted: BTreeMap<ImageId, BTreeSet<u64>> = BTreeMap::new();
        for (depth, address) in self.stacks.iter().flat_map(|calls| calls.at.iter().enumerate()) {
            if self.files.images.maker(address.image) == Maker::Program {
                let at = address.at.saturating_sub(u64::from(depth > 0));
                wanted.entry(address.image).or_default().insert(at);
            }
        }
        let mut why = BTreeMap::new();
        for (image, wanted) in wanted {
            let wanted: Vec<u64> = wanted.into_iter().collect();
            let no_map = match self.perf_maps.get(&image).map(PerfMap::read) {
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
            why.insert(image, no_map);
        }
        why
    }

    /// By process: how long threads of Go's had nothing to run.
    fn idle(&self, teller: &mut Teller) -> BTreeMap<u32, u64> {
        let mut idle = BTreeMap::new();
        for ((key, stack), ns) in &self.waits {
            if let (Key::Futex { pid, .. }, Some(stack)) = (key, stack)
                && teller.told(*stack).is_idle
            {
                *idle.entry(*pid).or_default() += ns;
            }
        }
        idle
    }

    /// What a lock is called.
    fn name(&self, key: &Key, teller: &mut Teller) -> Option<String> {
        match key {
            Key::File(path) => Some(path.clone()),
            Key::Kernel => None,
            Key::Shared { place, .. } => {
                let (_, _, path) = self.shared.get(place)?;
                place.name(path)
            }
            Key::Futex { pid, address, .. } => {
                let place = self.spaces.get(pid)?.space.data(*address, &self.files.images)?;
                teller.names.variable(&self.files.images, place)
            }
        }
    }
}

/// A part of `ns`, as `of` is of `all`.
fn part(ns: u64, of: u64, all: u64) -> u64 {
    let part = u128::from(ns) * u128::from(of) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn of_process(goroutines: &Goroutines, pid: u32) -> u64 {
    goroutines.iter().filter(|((its, _, _), _)| *its == pid).map(|(_, ns)| ns).sum()
}

/// Time that goroutines waited for locks while threads had nothing to run.
fn goroutines(parked: &[Parked], teller: &mut Teller) -> Goroutines {
    let mut waits = Goroutines::new();
    for look in parked {
        let mut of_locks = Vec::new();
        for stack in &look.stacks {
            let told = teller.told(*stack);
            let kind = told.kind.filter(|kind| kind.has_holder() && told.is_parked);
            of_locks.extend(kind.zip(told.site.clone()));
        }
        let all = look.every.saturating_mul(of_locks.len() as u64);
        let each = part(look.ns.saturating_mul(look.every), look.threads.min(all), all);
        for (kind, site) in of_locks {
            *waits.entry((look.pid, kind, site)).or_default() += each;
        }
    }
    waits
}

impl Building {
    fn done(self, name: Option<String>) -> Lock {
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

/// Of a stack that was not copied.
fn unread() -> Site {
    Site { function: "unread stack".to_owned(), place: None }
}

fn unnamed(frame: &Frame, no_map: Option<&String>) -> Unnamed {
    match frame.maker {
        Maker::Program => Unnamed::Jit(frame.module.clone(), no_map.cloned().unwrap_or_default()),
        Maker::Compiler | Maker::Go => Unnamed::Stripped(frame.module.clone()),
    }
}

fn kind_of(key: &Key, told: Option<Kind>) -> Kind {
    match key {
        Key::File(_) => Kind::File,
        Key::Kernel => Kind::KernelOther,
        // In a function that waits for a condition, this is how the mutex is taken again.
        Key::Futex { style: Style::Low | Style::Inherits, .. }
        | Key::Shared { style: Style::Low | Style::Inherits, .. } => Kind::Mutex,
        Key::Futex { .. } | Key::Shared { .. } => told.unwrap_or(Kind::Futex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_functions_of_libraries_are_for() {
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
