//! The third question: who is to blame?
//!
//! Problem: to act on lock waits one must know which lock, where it is taken, and who holds it meanwhile. The lock with most waiting
//! need not be the one that the larger size made worse.
//!
//! Terms: a *waiter* waits for a lock that its *holder* has. The *call site* is the place in the program, not in a lock library, that
//! takes the lock.
//!
//! Algorithm: each run has waiting times by lock and call site ([`Observed`]). Locks of several runs and sizes are the same if they
//! have the same name. An unnamed lock, such as on the heap, has another address in every run and is identified by its call sites.
//! For each lock, the time waited per piece of work at the smallest size is subtracted from that at the largest. Locks are ordered
//! by that growth. Disks and interrupts are compared in the same way.
//!
//! The longest chain starts with the threads that waited longest. The next link is the thread group that woke them for most of that
//! time, until one was woken by an interrupt or by another program, or is in the chain already.
//!
//! Properties: the growth of a lock is the sum of the growth at its call sites.
//!
//! Limits: unnamed locks that are taken at the same call sites, such as one in each of many objects, are reported as one class, with
//! their number.

mod fewest;

use std::collections::{BTreeMap, BTreeSet};

pub use crate::observed::{Disk, Hold, Holding, InterruptTime, Kind, Lock, Observed, Site, Wake, Waker};
pub use fewest::{Found, fewest};

use crate::real;
use crate::study::{Run, Size, Study, Watched};

/// A call site's share of the waiting.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct At {
    /// The site.
    pub site: Site,
    /// Its part of the waiting for this lock.
    pub part: f64,
}

/// What holders did while others waited, and where.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Held {
    /// What they did.
    pub holding: Holding,
    /// Where they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Site>,
    /// The threads' name.
    pub thread: String,
    /// Its part of the waiting for this lock.
    pub part: f64,
}

/// A lock and its growth.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Culprit {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The largest number of such locks in a run.
    pub locks: u64,
    /// Seconds waited per piece of work at the smallest size.
    pub before_s: f64,
    /// The same at the largest.
    pub after_s: f64,
    /// Its part of the threads' lives at the largest size.
    pub part_of_lives: f64,
    /// Where it is waited for at the largest size, largest part first.
    pub taken: Vec<At>,
    /// What its holders do meanwhile, largest part first.
    pub held: Vec<Held>,
}

impl Culprit {
    /// Growth: additional seconds waited per piece of work.
    pub fn more_s(&self) -> f64 {
        self.after_s - self.before_s
    }
}

/// One step of the longest chain: `waiter` waited for `waker`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Link {
    /// The threads' name.
    pub waiter: String,
    /// Where they waited most, in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Site>,
    /// Who woke them.
    pub waker: Waker,
    /// Seconds waited per run.
    pub waited_s: f64,
    /// The part of all their waiting that this waker ended.
    pub part: f64,
}

/// Interrupts on the program's CPUs.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Interrupts {
    /// Seconds per piece of work at the smallest size, and at the largest.
    pub before_s: f64,
    /// See `before_s`.
    pub after_s: f64,
    /// By CPU at the largest size: the part of its time that they took.
    pub by_cpu: Vec<(u32, f64)>,
    /// Per second at the largest size, by source, most first.
    pub by_source: Vec<(String, f64)>,
}

/// A disk's use at the smallest and at the largest size.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DiskGrowth {
    /// The kernel's name for it.
    pub name: String,
    /// Where its file systems are mounted.
    pub mounts: Vec<String>,
    /// Utilisation at the smallest size and at the largest.
    pub busy: (f64, f64),
    /// How long a request took, in seconds.
    pub request_s: (f64, f64),
    /// Requests per piece of work.
    pub requests: (f64, f64),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Blame {
    /// The smallest size that was watched.
    pub from: u32,
    /// The largest.
    pub to: u32,
    /// The locks, those that grew most first.
    pub culprits: Vec<Culprit>,
    /// Who wakes whom at the largest size.
    pub chain: Vec<Link>,
    /// Interrupts, where they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<Interrupts>,
    /// Disks, the busiest first.
    pub disks: Vec<DiskGrowth>,
    /// Bytes that the program read from disks and wrote to them, per piece of work at the largest size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_bytes: Option<(f64, f64)>,
}

/// The answer; `None` if no size was sampled. With one size, locks are ordered by their waiting time.
pub fn blame(study: &Study) -> Option<Blame> {
    let mut watched = study.measured().filter(|size| size.times().1 > 0);
    let first = watched.next()?;
    let last = watched.next_back().unwrap_or(first);
    let (before, after) = (Sum::of(first), Sum::of(last));
    let is_one = first.n == last.n;
    Some(Blame {
        from: first.n,
        to: last.n,
        culprits: culprits(if is_one { None } else { Some(&before) }, &after),
        chain: chain(&after),
        interrupts: interrupts(&before, &after),
        disks: disks(&before, &after),
        io_bytes: after.io_bytes.map(|(read, written)| (real(read) / after.work, real(written) / after.work)),
    })
}

/// Sums over the sampled runs of a size.
struct Sum {
    work: f64,
    wall_s: f64,
    runs: f64,
    lived_ns: u64,
    locks: Vec<Class>,
    wakes: Vec<Wake>,
    /// By CPU.
    stolen: BTreeMap<u32, (u64, BTreeMap<String, u64>)>,
    disks: BTreeMap<String, Disk>,
    io_bytes: Option<(u64, u64)>,
}

/// Locks that cannot be distinguished across runs.
#[derive(Clone)]
struct Class {
    lock: Lock,
    /// How many in the run that is being added, and the most in any run.
    count: u64,
    most: u64,
}

impl Class {
    /// The site with most of the waiting.
    fn main(&self) -> Option<&Site> {
        self.lock.waits.iter().max_by_key(|(_, ns)| *ns).map(|(site, _)| site)
    }

    fn has(&self, site: Option<&Site>) -> bool {
        self.lock.waits.iter().any(|(its, _)| Some(its) == site)
    }

    /// Whether both may be the same class.
    fn is(&self, other: &Class) -> bool {
        let (mine, its) = (&self.lock, &other.lock);
        mine.kind == its.kind
            && mine.name == its.name
            && (mine.name.is_some() || self.has(other.main()) || other.has(self.main()))
    }

    fn add(&mut self, lock: &Lock) {
        for (site, ns) in &lock.waits {
            match self.lock.waits.iter_mut().find(|(its, _)| its == site) {
                Some((_, sum)) => *sum += ns,
                None => self.lock.waits.push((site.clone(), *ns)),
            }
        }
        for hold in &lock.holds {
            let is_same = |its: &&mut Hold| {
                (&its.holding, &its.site, &its.thread) == (&hold.holding, &hold.site, &hold.thread)
            };
            match self.lock.holds.iter_mut().find(is_same) {
                Some(its) => its.ns += hold.ns,
                None => self.lock.holds.push(hold.clone()),
            }
        }
    }
}

/// Adds the locks of a run. Those with most waiting come first, so that unnamed locks are matched by their most significant call
/// sites.
fn add_locks(classes: &mut Vec<Class>, locks: &[Lock]) {
    let mut locks: Vec<&Lock> = locks.iter().filter(|lock| lock.waited_ns() > 0).collect();
    locks.sort_by_key(|lock| std::cmp::Reverse(lock.waited_ns()));
    for lock in locks {
        let new = Class { lock: lock.clone(), count: 1, most: 1 };
        match classes.iter_mut().find(|class| class.is(&new)) {
            Some(class) => {
                class.add(lock);
                class.count += 1;
                class.most = class.most.max(class.count);
            }
            None => classes.push(new),
        }
    }
    for class in classes {
        class.count = 0;
    }
}

impl Sum {
    fn of(size: &Size) -> Sum {
        let watched: Vec<(&Run, &Watched)> =
            size.runs.iter().filter_map(|run| Some((run, run.watched.as_ref()?))).collect();
        let work: f64 = watched.iter().map(|(run, _)| run.work()).sum();
        let mut sum = Sum {
            work: if work > 0.0 { work } else { 1.0 },
            wall_s: watched.iter().map(|(run, _)| run.wall_s()).sum(),
            runs: real(watched.len() as u64).max(1.0),
            lived_ns: watched.iter().map(|(_, watched)| watched.times.sum()).sum(),
            locks: Vec::new(),
            wakes: Vec::new(),
            stolen: BTreeMap::new(),
            disks: BTreeMap::new(),
            io_bytes: None,
        };
        for (_, watched) in watched {
            sum.add(&watched.observed);
        }
        sum
    }

    fn add(&mut self, seen: &Observed) {
        add_locks(&mut self.locks, &seen.locks);
        self.wakes.extend(seen.wakes.iter().cloned());
        for stolen in &seen.interrupts {
            let (ns, sources) = self.stolen.entry(stolen.cpu).or_default();
            *ns += stolen.ns;
            for (source, count) in &stolen.sources {
                *sources.entry(source.clone()).or_default() += count;
            }
        }
        for disk in &seen.disks {
            match self.disks.get_mut(&disk.name) {
                None => drop(self.disks.insert(disk.name.clone(), disk.clone())),
                Some(its) => {
                    its.requests += disk.requests;
                    its.waited_ns += disk.waited_ns;
                    its.busy_ns += disk.busy_ns;
                    its.bytes += disk.bytes;
                }
            }
        }
        if let Some((read, written)) = seen.io_bytes {
            let (before_read, before_written) = self.io_bytes.unwrap_or_default();
            self.io_bytes = Some((before_read + read, before_written + written));
        }
    }
}

fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

/// `of / whole`; 0 if `whole` is 0.
fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

fn culprits(before: Option<&Sum>, after: &Sum) -> Vec<Culprit> {
    let mut found: Vec<Culprit> = after
        .locks
        .iter()
        .map(|class| {
            let waited = real(class.lock.waited_ns());
            let mut taken: Vec<At> = class
                .lock
                .waits
                .iter()
                .map(|(site, ns)| At { site: site.clone(), part: part(real(*ns), waited) })
                .collect();
            taken.sort_by(|a, b| b.part.total_cmp(&a.part).then_with(|| a.site.cmp(&b.site)));
            let held_ns: u64 = class.lock.holds.iter().map(|hold| hold.ns).sum();
            let mut held: Vec<Held> = class
                .lock
                .holds
                .iter()
                .map(|hold| Held {
                    holding: hold.holding,
                    site: hold.site.clone(),
                    thread: hold.thread.clone(),
                    part: part(real(hold.ns), real(held_ns)),
                })
                .collect();
            held.sort_by(|a, b| {
                b.part.total_cmp(&a.part).then_with(|| (&a.site, &a.thread).cmp(&(&b.site, &b.thread)))
            });
            let before_ns: u64 = before.map_or(0, |before| {
                before.locks.iter().filter(|its| its.is(class)).map(|its| its.lock.waited_ns()).sum()
            });
            Culprit {
                kind: class.lock.kind,
                name: class.lock.name.clone(),
                locks: class.most,
                before_s: before.map_or(0.0, |before| seconds(before_ns) / before.work),
                after_s: seconds(class.lock.waited_ns()) / after.work,
                part_of_lives: part(waited, real(after.lived_ns)),
                taken,
                held,
            }
        })
        .collect();
    found.sort_by(|a, b| b.more_s().total_cmp(&a.more_s()));
    found
}

/// Longest chain.
const LINKS_MAX: usize = 8;

fn chain(sum: &Sum) -> Vec<Link> {
    // Waiting time by waiter, waker and place.
    let mut waits: BTreeMap<&str, BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>> = BTreeMap::new();
    for wake in &sum.wakes {
        let by_waker = waits.entry(wake.waiter.as_str()).or_default();
        *by_waker.entry(&wake.waker).or_default().entry(wake.at.as_ref()).or_default() += wake.waited_ns;
    }
    let of_waker = |by_site: &BTreeMap<Option<&Site>, u64>| by_site.values().sum::<u64>();
    let of_waiter = |by_waker: &BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>| -> u64 {
        by_waker.values().map(of_waker).sum()
    };
    // A chain starts with the threads that wait most for other threads of the program.
    let for_threads = |by_waker: &BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>| -> u64 {
        let threads = by_waker.iter().filter(|(waker, _)| matches!(waker, Waker::Thread(_)));
        threads.map(|(_, by_site)| of_waker(by_site)).sum()
    };
    let first = waits.iter().max_by_key(|(_, by)| (for_threads(by), of_waiter(by))).map(|(name, _)| *name);
    let (mut chain, mut seen, mut next) = (Vec::new(), BTreeSet::new(), first);
    while let Some(waiter) = next.take() {
        let Some(by_waker) = waits.get(waiter).filter(|_| seen.insert(waiter)) else { break };
        let Some((waker, by_site)) = by_waker.iter().max_by_key(|(_, by_site)| of_waker(by_site)) else {
            break;
        };
        let ns = of_waker(by_site);
        chain.push(Link {
            waiter: waiter.to_owned(),
            at: by_site.iter().max_by_key(|(_, ns)| **ns).and_then(|(site, _)| site.cloned()),
            waker: (*waker).clone(),
            waited_s: seconds(ns) / sum.runs,
            part: part(real(ns), real(of_waiter(by_waker))),
        });
        if let (Waker::Thread(name), true) = (waker, chain.len() < LINKS_MAX) {
            next = Some(name);
        }
    }
    chain
}

fn interrupts(before: &Sum, after: &Sum) -> Option<Interrupts> {
    if after.stolen.is_empty() {
        return None;
    }
    let per_work = |sum: &Sum| seconds(sum.stolen.values().map(|(ns, _)| ns).sum()) / sum.work;
    let mut sources: BTreeMap<&String, u64> = BTreeMap::new();
    for (source, count) in after.stolen.values().flat_map(|(_, sources)| sources) {
        *sources.entry(source).or_default() += count;
    }
    let mut by_source: Vec<(String, f64)> = sources
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(source, count)| (source.clone(), part(real(count), after.wall_s)))
        .collect();
    by_source.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some(Interrupts {
        before_s: per_work(before),
        after_s: per_work(after),
        by_cpu: after.stolen.iter().map(|(cpu, (ns, _))| (*cpu, part(seconds(*ns), after.wall_s))).collect(),
        by_source,
    })
}

fn disks(before: &Sum, after: &Sum) -> Vec<DiskGrowth> {
    let busy =
        |sum: &Sum, disk: Option<&Disk>| disk.map_or(0.0, |disk| part(seconds(disk.busy_ns), sum.wall_s));
    let each = |disk: Option<&Disk>| disk.map_or(0.0, |d| part(seconds(d.waited_ns), real(d.requests)));
    let requests = |sum: &Sum, disk: Option<&Disk>| disk.map_or(0.0, |disk| real(disk.requests) / sum.work);
    let mut found: Vec<DiskGrowth> = after
        .disks
        .iter()
        .map(|(name, disk)| {
            let (was, is) = (before.disks.get(name), Some(disk));
            DiskGrowth {
                name: name.clone(),
                mounts: disk.mounts.clone(),
                busy: (busy(before, was), busy(after, is)),
                request_s: (each(was), each(is)),
                requests: (requests(before, was), requests(after, is)),
            }
        })
        .collect();
    found.sort_by(|a, b| b.busy.1.total_cmp(&a.busy.1).then_with(|| a.name.cmp(&b.name)));
    found
}

#[cfg(test)]
#[path = "blame/tests.rs"]
mod tests;
