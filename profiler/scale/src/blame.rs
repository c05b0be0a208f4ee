//! The third question: who is to blame?
//!
//! Problem: to act on lock waits one must know the lock, where in the program the lock is taken, and which
//! threads hold the lock while others wait. The lock with most waiting need not be the one that the larger
//! size made worse.
//!
//! Terms: a *waiter* waits for a lock that its *holder* has. The *call site* is the place in the program, not
//! in a lock library, that takes the lock.
//!
//! Algorithm: each run has waiting times by lock and call site ([`Observed`]). A named lock is identified
//! across runs and sizes by its name. An unnamed lock, such as on the heap, has another address in every run
//! and is identified by its call sites. For each lock, the time waited per piece of work at the smallest size
//! is subtracted from that at the largest size. Locks are ordered by that growth. Disks and interrupts are
//! compared in the same way.
//!
//! The wake chain starts with the threads (of one name) that waited longest for other threads of the program.
//! The next link is the threads that ended most of that waiting. The chain ends at threads that were woken by
//! an interrupt or by another program, or that are in the chain already.
//!
//! Properties: the growth of a lock is the sum of the growth at its call sites.
//!
//! Limits: unnamed locks that are taken at the same call sites, such as one in each of many objects, are
//! reported as one class, with their number.

mod fewest;

use std::collections::{BTreeMap, BTreeSet};

pub use crate::observed::{Disk, Hold, Holding, InterruptTime, Kind, Lock, Observed, Site, Wake, Waker};
pub use fewest::{HolderSample, fewest};

use crate::real;
use crate::study::{Run, Size, Study, Watched};

/// A call site's share of the waiting for a lock.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct At {
    /// The call site.
    pub site: Site,
    /// The fraction of the waiting for the lock that happened at this call site.
    pub part: f64,
}

/// What holders of a lock did while other threads waited, and where.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Held {
    /// What the holders did.
    pub holding: Holding,
    /// The place in the program where the holders were, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Site>,
    /// The holders' thread name.
    pub thread: String,
    /// The fraction of the waiting for the lock that happened during these holds.
    pub part: f64,
}

/// A lock, or another thing that threads wait for, and the growth of that waiting.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Culprit {
    /// Its kind.
    pub kind: Kind,
    /// Its name, if it is a variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The largest number of such locks in a run.
    pub locks: u64,
    /// Seconds waited per piece of work at the smallest size.
    pub before_s: f64,
    /// Seconds waited per piece of work at the largest size.
    pub after_s: f64,
    /// The waiting at the largest size as a fraction of the threads' lives.
    pub part_of_lives: f64,
    /// The call sites that wait at the largest size, the one with most waiting first.
    pub taken: Vec<At>,
    /// What the holders do during these waits, largest part first.
    pub held: Vec<Held>,
}

impl Culprit {
    /// The growth: additional seconds waited per piece of work.
    pub fn more_s(&self) -> f64 {
        self.after_s - self.before_s
    }
}

/// One link of the wake chain: `waiter` waited until `waker` woke it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Link {
    /// The name of the threads that waited.
    pub waiter: String,
    /// The place in the kernel where they waited most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Site>,
    /// The thread or interrupt that woke them.
    pub waker: Waker,
    /// Seconds waited per run until this waker.
    pub waited_s: f64,
    /// The fraction of all waiting of these threads that this waker ended.
    pub part: f64,
}

/// Interrupts on the program's CPUs.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Interrupts {
    /// CPU seconds per piece of work at the smallest size.
    pub before_s: f64,
    /// CPU seconds per piece of work at the largest size.
    pub after_s: f64,
    /// By CPU at the largest size: the fraction of the CPU's time that interrupts took.
    pub by_cpu: Vec<(u32, f64)>,
    /// Interrupts per second at the largest size, by source, the most frequent first.
    pub by_source: Vec<(String, f64)>,
}

/// A disk's use at the smallest and at the largest size.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DiskGrowth {
    /// The kernel's name for the disk.
    pub name: String,
    /// The mount points of its file systems.
    pub mounts: Vec<String>,
    /// The disk's utilisation at the smallest and at the largest size.
    pub busy: (f64, f64),
    /// The mean time of a request in seconds, at the smallest and at the largest size.
    pub request_s: (f64, f64),
    /// Requests per piece of work, at the smallest and at the largest size.
    pub requests: (f64, f64),
}

/// What threads waited for, compared between the smallest and the largest sampled size.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Blame {
    /// The smallest size that was watched.
    pub from: u32,
    /// The largest size that was watched.
    pub to: u32,
    /// The locks, those whose waiting grew most first.
    pub culprits: Vec<Culprit>,
    /// The wake chain at the largest size.
    pub chain: Vec<Link>,
    /// Interrupts, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<Interrupts>,
    /// Disks, the busiest first.
    pub disks: Vec<DiskGrowth>,
    /// Bytes that the program read from disks, and wrote to disks, per piece of work at the largest size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_bytes: Option<(f64, f64)>,
}

/// Compares the smallest and the largest sampled size; `None` if no size was sampled. With one size, locks
/// are ordered by their waiting time.
pub fn blame(study: &Study) -> Option<Blame> {
    let mut watched = study.measured().filter(|size| size.times().1 > 0);
    let first = watched.next()?;
    let last = watched.next_back().unwrap_or(first);
    let (before, after) = (Sum::of(first), Sum::of(last));
    let is_same_size = first.n == last.n;
    Some(Blame {
        from: first.n,
        to: last.n,
        culprits: culprits(if is_same_size { None } else { Some(&before) }, &after),
        chain: chain(&after),
        interrupts: interrupts(&before, &after),
        disks: disks(&before, &after),
        io_bytes: after.io_bytes.map(|(read, written)| (real(read) / after.work, real(written) / after.work)),
    })
}

/// Sums of the observations over the sampled runs of a size.
struct Sum {
    work: f64,
    wall_s: f64,
    runs: f64,
    lived_ns: u64,
    locks: Vec<Class>,
    wakes: Vec<Wake>,
    /// By CPU: the time that interrupts took in ns, and the number of interrupts by source.
    interrupts: BTreeMap<u32, (u64, BTreeMap<String, u64>)>,
    disks: BTreeMap<String, Disk>,
    io_bytes: Option<(u64, u64)>,
}

/// A class: locks that cannot be distinguished across runs, added up as one lock.
#[derive(Clone)]
struct Class {
    lock: Lock,
    /// The number of its locks in the run that is being added.
    count: u64,
    /// The largest number of its locks in any run.
    most: u64,
}

impl Class {
    /// The call site with most of the waiting.
    fn main_site(&self) -> Option<&Site> {
        self.lock.waits.iter().max_by_key(|(_, ns)| *ns).map(|(site, _)| site)
    }

    fn has_site(&self, site: Option<&Site>) -> bool {
        self.lock.waits.iter().any(|(known, _)| Some(known) == site)
    }

    /// Whether both may be the same class: they must have the same kind, and the same name or none. Without a
    /// name, one of the two must have the other's main call site among its own.
    fn matches(&self, other: &Class) -> bool {
        self.lock.kind == other.lock.kind
            && self.lock.name == other.lock.name
            && (self.lock.name.is_some()
                || self.has_site(other.main_site())
                || other.has_site(self.main_site()))
    }

    /// Adds the waits and holds of another lock.
    fn add(&mut self, lock: &Lock) {
        for (site, ns) in &lock.waits {
            match self.lock.waits.iter_mut().find(|(known, _)| known == site) {
                Some((_, sum)) => *sum += ns,
                None => self.lock.waits.push((site.clone(), *ns)),
            }
        }
        for hold in &lock.holds {
            let is_same = |known: &&mut Hold| {
                (&known.holding, &known.site, &known.thread) == (&hold.holding, &hold.site, &hold.thread)
            };
            match self.lock.holds.iter_mut().find(is_same) {
                Some(known) => known.ns += hold.ns,
                None => self.lock.holds.push(hold.clone()),
            }
        }
    }
}

/// Adds the locks of a run to the classes. Locks with most waiting are added first, so that unnamed locks are
/// matched by their most significant call sites.
fn add_locks(classes: &mut Vec<Class>, locks: &[Lock]) {
    let mut locks: Vec<&Lock> = locks.iter().filter(|lock| lock.waited_ns() > 0).collect();
    locks.sort_by_key(|lock| std::cmp::Reverse(lock.waited_ns()));
    for lock in locks {
        let new = Class { lock: lock.clone(), count: 1, most: 1 };
        match classes.iter_mut().find(|class| class.matches(&new)) {
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
            interrupts: BTreeMap::new(),
            disks: BTreeMap::new(),
            io_bytes: None,
        };
        for (_, watched) in watched {
            sum.add(&watched.observed);
        }
        sum
    }

    /// Adds the observations of one run.
    fn add(&mut self, observed: &Observed) {
        add_locks(&mut self.locks, &observed.locks);
        self.wakes.extend(observed.wakes.iter().cloned());
        for interrupts in &observed.interrupts {
            let (ns, sources) = self.interrupts.entry(interrupts.cpu).or_default();
            *ns += interrupts.ns;
            for (source, count) in &interrupts.sources {
                *sources.entry(source.clone()).or_default() += count;
            }
        }
        for disk in &observed.disks {
            match self.disks.get_mut(&disk.name) {
                None => drop(self.disks.insert(disk.name.clone(), disk.clone())),
                Some(sum) => {
                    sum.requests += disk.requests;
                    sum.waited_ns += disk.waited_ns;
                    sum.busy_ns += disk.busy_ns;
                    sum.bytes += disk.bytes;
                }
            }
        }
        if let Some((read, written)) = observed.io_bytes {
            let (before_read, before_written) = self.io_bytes.unwrap_or_default();
            self.io_bytes = Some((before_read + read, before_written + written));
        }
    }
}

fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

/// `numerator / denominator`; 0 if the denominator is 0.
fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

/// The locks of the largest size, those whose waiting grew most first. `before`: the smallest size; `None` if
/// there is only one size.
fn culprits(before: Option<&Sum>, after: &Sum) -> Vec<Culprit> {
    let mut culprits: Vec<Culprit> = after
        .locks
        .iter()
        .map(|class| {
            let waited = real(class.lock.waited_ns());
            let mut taken: Vec<At> = class
                .lock
                .waits
                .iter()
                .map(|(site, ns)| At { site: site.clone(), part: ratio(real(*ns), waited) })
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
                    part: ratio(real(hold.ns), real(held_ns)),
                })
                .collect();
            held.sort_by(|a, b| {
                b.part.total_cmp(&a.part).then_with(|| (&a.site, &a.thread).cmp(&(&b.site, &b.thread)))
            });
            let before_ns: u64 = before.map_or(0, |before| {
                let same = before.locks.iter().filter(|earlier| earlier.matches(class));
                same.map(|earlier| earlier.lock.waited_ns()).sum()
            });
            Culprit {
                kind: class.lock.kind,
                name: class.lock.name.clone(),
                locks: class.most,
                before_s: before.map_or(0.0, |before| seconds(before_ns) / before.work),
                after_s: seconds(class.lock.waited_ns()) / after.work,
                part_of_lives: ratio(waited, real(after.lived_ns)),
                taken,
                held,
            }
        })
        .collect();
    culprits.sort_by(|a, b| b.more_s().total_cmp(&a.more_s()));
    culprits
}

/// The maximum number of links of a wake chain.
const LINKS_MAX: usize = 8;

/// The wake chain: see the head of this file.
fn chain(sum: &Sum) -> Vec<Link> {
    // Waiting time by waiter, waker and place.
    let mut waits: BTreeMap<&str, BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>> = BTreeMap::new();
    for wake in &sum.wakes {
        let by_waker = waits.entry(wake.waiter.as_str()).or_default();
        *by_waker.entry(&wake.waker).or_default().entry(wake.at.as_ref()).or_default() += wake.waited_ns;
    }
    let sum_of_sites = |by_site: &BTreeMap<Option<&Site>, u64>| by_site.values().sum::<u64>();
    let sum_of_wakers = |by_waker: &BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>| -> u64 {
        by_waker.values().map(sum_of_sites).sum()
    };
    // The chain starts with the threads that wait most for other threads of the program.
    let wait_for_threads = |by_waker: &BTreeMap<&Waker, BTreeMap<Option<&Site>, u64>>| -> u64 {
        let threads = by_waker.iter().filter(|(waker, _)| matches!(waker, Waker::Thread(_)));
        threads.map(|(_, by_site)| sum_of_sites(by_site)).sum()
    };
    let longest_wait = waits.iter().max_by_key(|(_, by)| (wait_for_threads(by), sum_of_wakers(by)));
    let first = longest_wait.map(|(name, _)| *name);
    let (mut chain, mut seen, mut next) = (Vec::new(), BTreeSet::new(), first);
    while let Some(waiter) = next.take() {
        let Some(by_waker) = waits.get(waiter).filter(|_| seen.insert(waiter)) else { break };
        let Some((waker, by_site)) = by_waker.iter().max_by_key(|(_, by_site)| sum_of_sites(by_site)) else {
            break;
        };
        let ns = sum_of_sites(by_site);
        chain.push(Link {
            waiter: waiter.to_owned(),
            at: by_site.iter().max_by_key(|(_, ns)| **ns).and_then(|(site, _)| site.cloned()),
            waker: (*waker).clone(),
            waited_s: seconds(ns) / sum.runs,
            part: ratio(real(ns), real(sum_of_wakers(by_waker))),
        });
        if let (Waker::Thread(name), true) = (waker, chain.len() < LINKS_MAX) {
            next = Some(name);
        }
    }
    chain
}

fn interrupts(before: &Sum, after: &Sum) -> Option<Interrupts> {
    if after.interrupts.is_empty() {
        return None;
    }
    let per_work = |sum: &Sum| seconds(sum.interrupts.values().map(|(ns, _)| ns).sum()) / sum.work;
    let mut sources: BTreeMap<&String, u64> = BTreeMap::new();
    for (source, count) in after.interrupts.values().flat_map(|(_, sources)| sources) {
        *sources.entry(source).or_default() += count;
    }
    let mut by_source: Vec<(String, f64)> = sources
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(source, count)| (source.clone(), ratio(real(count), after.wall_s)))
        .collect();
    by_source.sort_by(|a, b| b.1.total_cmp(&a.1));
    let by_cpu = after.interrupts.iter().map(|(cpu, (ns, _))| (*cpu, ratio(seconds(*ns), after.wall_s)));
    Some(Interrupts {
        before_s: per_work(before),
        after_s: per_work(after),
        by_cpu: by_cpu.collect(),
        by_source,
    })
}

fn disks(before: &Sum, after: &Sum) -> Vec<DiskGrowth> {
    let busy =
        |sum: &Sum, disk: Option<&Disk>| disk.map_or(0.0, |disk| ratio(seconds(disk.busy_ns), sum.wall_s));
    let request_s = |disk: Option<&Disk>| disk.map_or(0.0, |d| ratio(seconds(d.waited_ns), real(d.requests)));
    let requests = |sum: &Sum, disk: Option<&Disk>| disk.map_or(0.0, |disk| real(disk.requests) / sum.work);
    let mut disks: Vec<DiskGrowth> = after
        .disks
        .iter()
        .map(|(name, disk)| {
            let (disk_before, disk_after) = (before.disks.get(name), Some(disk));
            DiskGrowth {
                name: name.clone(),
                mounts: disk.mounts.clone(),
                busy: (busy(before, disk_before), busy(after, disk_after)),
                request_s: (request_s(disk_before), request_s(disk_after)),
                requests: (requests(before, disk_before), requests(after, disk_after)),
            }
        })
        .collect();
    disks.sort_by(|a, b| b.busy.1.total_cmp(&a.busy.1).then_with(|| a.name.cmp(&b.name)));
    disks
}

#[cfg(test)]
#[path = "blame/tests.rs"]
mod tests;
