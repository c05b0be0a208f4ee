//! The names of what threads waited for.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_scale::blame::{Found, Hold, Holding, Kind, Lock, Site, fewest};
use commonhold_trace::{Address, Frame, Images, Names, is_plumbing};

use super::super::process::group;
use super::{Among, Files, Key, StackId, Style, Waits};

/// A stack with names.
struct Told {
    /// What the library's part of it waits for, if its functions say that.
    kind: Option<Kind>,
    /// The first function of the program.
    site: Option<Site>,
    /// The function of the file that this is in.
    function: Option<Address>,
    /// By call: its function, and the first of the program's functions there.
    calls: Vec<(Option<Address>, Option<Site>)>,
}

/// Names stacks as they are needed.
struct Teller<'a> {
    images: &'a Images,
    stacks: &'a [Vec<Address>],
    names: &'a mut Names,
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
        let mut told = Told { kind: None, site: None, function: None, calls: Vec::new() };
        let stack = self.stacks.get(id as usize).map_or(&[][..], Vec::as_slice);
        for (depth, address) in stack.iter().enumerate() {
            // A thread that sleeps is behind its system call.
            let frames = self.names.frames(self.images, *address, depth > 0);
            if told.site.is_none() {
                let library = frames.iter().take_while(|frame| is_plumbing(frame));
                told.kind = told.kind.or_else(|| library.clone().find_map(kind));
            }
            let site = frames.iter().find(|frame| !is_plumbing(frame)).map(site);
            let behind = Address { at: address.at.saturating_sub(u64::from(depth > 0)), ..*address };
            let function = self.names.function(self.images, behind);
            if let (None, Some(site)) = (&told.site, &site) {
                (told.site, told.function) = (Some(site.clone()), function);
            }
            told.calls.push((function, site));
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

fn site(frame: &Frame) -> Site {
    Site { function: frame.function.clone(), place: frame.place() }
}

/// What a function of a library of locks is for.
fn kind(frame: &Frame) -> Option<Kind> {
    let name = frame.function.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["barrier"]) {
        Some(Kind::Barrier)
    } else if has(&["cond_", "condvar", "condition"]) {
        Some(Kind::Condition)
    } else if has(&["rwlock", "shared_mutex"]) {
        Some(Kind::ReadWrite)
    } else if has(&["sem_", "semaphore"]) {
        Some(Kind::Semaphore)
    } else if has(&["mutex", "lll_lock"]) {
        Some(Kind::Mutex)
    } else if has(&["thread::park", "parker", "mpsc", "mpmc", "futexsleep"]) {
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

impl Waits {
    /// The locks that were waited for, all together for so long, and what is known of files. Locks in the kernel are left out
    /// if others tell of them.
    pub(crate) fn end(mut self, waited_ns: u64, kernels: bool) -> (Vec<Lock>, Files) {
        let mut names = std::mem::take(&mut self.files.names);
        let mut teller = Teller {
            images: &self.files.images,
            stacks: &self.stacks,
            names: &mut names,
            told: BTreeMap::new(),
        };
        let all: u64 = self.waits.values().sum();
        let scaled = |ns: u64| {
            let ns = u128::from(ns) * u128::from(waited_ns) / u128::from(all.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let mut locks: BTreeMap<&Key, Building> = BTreeMap::new();
        for ((key, stack), ns) in &self.waits {
            let lock = locks.entry(key).or_default();
            let told = stack.map(|stack| teller.told(stack));
            let site = told.and_then(|told| told.site.clone());
            *lock.waits.entry(site.unwrap_or_else(nowhere)).or_default() += scaled(*ns);
            *lock.kinds.entry(kind_of(key, told.and_then(|told| told.kind))).or_default() += ns;
            lock.functions.extend(told.and_then(|told| told.function));
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
        let locks = locks.map(|(key, lock)| lock.done(self.name(key, &mut teller))).collect();
        (locks, Files { names, ..self.files })
    }

    /// What a lock is called.
    fn name(&self, key: &Key, teller: &mut Teller) -> Option<String> {
        match key {
            Key::File(path) => Some(path.clone()),
            Key::Kernel => None,
            Key::Futex { pid, address, .. } => {
                let place = self.spaces.get(pid)?.space.data(*address, &self.files.images)?;
                teller.names.variable(&self.files.images, place)
            }
        }
    }
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

/// Of a stack that could not be read.
fn nowhere() -> Site {
    Site { function: "?".to_owned(), place: None }
}

fn kind_of(key: &Key, told: Option<Kind>) -> Kind {
    match key {
        Key::File(_) => Kind::File,
        Key::Kernel => Kind::KernelOther,
        // In a function that waits for a condition, this is how the mutex is taken again.
        Key::Futex { style: Style::Low | Style::Inherits, .. } => Kind::Mutex,
        Key::Futex { .. } => told.unwrap_or(Kind::Futex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_functions_of_libraries_are_for() {
        let of = |function: &str| {
            kind(&Frame { function: function.into(), source: None, module: "libc.so.6".into() })
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
        ] {
            assert_eq!(of(function), is, "{function}");
        }
        let low = Key::Futex { pid: 1, address: 8, style: Style::Low };
        assert_eq!(kind_of(&low, Some(Kind::Condition)), Kind::Mutex);
    }
}
