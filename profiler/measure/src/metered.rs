//! Aggregates the meter's records, of which there is one per thread and call site, into named locks.

use std::collections::BTreeMap;

use commonhold_scale::locks::{Counts, Cycle, Kind, Lock, Site};
use commonhold_trace::{Shared, Space};

use crate::meter::{About, Counted, OfLock, OfSite, Record};
use crate::symbols::Namer;

/// The maximum number of holders' call sites that are kept for a call site.
const HOLDERS_MAX: usize = 3;

/// The counters of a call site, and the time that threads waited there, by the holder's call site.
type SiteCounts<Name> = (Counts, BTreeMap<Name, u64>);

/// An address in a process: the process's number in the meter's tables, and the address.
type At = (usize, u64);

/// One lock, private to a process or shared.
#[derive(Default)]
struct Instance {
    class: u64,
    kind: u32,
    counts: Counts,
    /// The time of the first request.
    first: u64,
    /// The time of the last release.
    last: u64,
    /// Sum over threads of the time from the thread's first request to its last release.
    active: u64,
    /// The records of the threads that use the lock.
    uses: Vec<OfLock>,
    sites: BTreeMap<At, SiteCounts<At>>,
}

/// The locks by total wait time, descending.
pub(crate) fn locks(counted: &Counted, namer: &mut Namer) -> Vec<Lock> {
    let spaces: Vec<Space> = counted.maps.iter().map(|text| namer.space(text)).collect();
    let (mut instances, mut shared) = (BTreeMap::<At, Instance>::new(), BTreeMap::<Shared, At>::new());
    for record in &counted.records {
        // A shared lock is identified by its address in the first process that took it.
        let mut at = (record.process, record.lock);
        if let Some((place, _)) = spaces.get(record.process).and_then(|space| space.shared(record.lock)) {
            at = *shared.entry(place).or_insert(at);
        }
        instances.entry(at).or_default().add(record);
    }
    let mut classes: BTreeMap<u64, Vec<Keyed>> = BTreeMap::new();
    for (key, instance) in instances.iter().filter(|(_, instance)| instance.counts.total > 0) {
        classes.entry(instance.class).or_default().push((*key, instance));
    }
    let mut locks: Vec<Lock> =
        classes.into_iter().map(|(class, instances)| of_class(class, &instances, &spaces, namer)).collect();
    locks.sort_by_key(|lock| std::cmp::Reverse((lock.counts.wait_ns, lock.counts.hold_ns)));
    locks
}

/// A lock with its address.
type Keyed<'a> = (At, &'a Instance);

impl Instance {
    fn add(&mut self, record: &Record) {
        self.kind = record.kind;
        match record.about {
            About::Lock(of) => {
                self.class = self.class.max(record.class);
                if of.last > 0 {
                    self.first = if self.first == 0 { of.first } else { self.first.min(of.first) };
                    self.last = self.last.max(of.last);
                    self.active += of.last.saturating_sub(of.first);
                }
                self.uses.push(of);
            }
            About::Site(of) => {
                let counts = counts(&of);
                self.counts.add(&counts);
                self.sites.entry((record.process, record.site)).or_default().0.add(&counts);
            }
            About::Holder(wait) if record.holder != 0 => {
                let (site, holder) = ((record.process, record.site), (record.process, record.holder));
                *self.sites.entry(site).or_default().1.entry(holder).or_default() += wait;
            }
            About::Holder(_) => {}
        }
    }

    /// The time from the first request to the last release.
    fn span(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }

    /// The mean cycle of a thread; `None` if no cycle was sampled.
    fn cycle(&self) -> Option<Cycle> {
        let sum = |field: fn(&OfLock) -> u64| self.uses.iter().map(field).sum::<u64>();
        let samples = sum(|of| of.samples);
        let (span, taken) = (self.span(), self.counts.total);
        if samples == 0 || span == 0 || taken == 0 {
            return None;
        }
        // The means are over all cycles. The sampled cycles show how the means divide into CPU time, sleep
        // and queueing.
        let hold = real(self.counts.hold_ns) / real(taken);
        let gap = real(sum(|of| of.gap)) / real(sum(|of| of.gaps).max(1));
        let (hold_cpu, hold_sleep, hold_queue) =
            divide(hold, sum(|of| of.hold_wall), sum(|of| of.hold_cpu), sum(|of| of.hold_queue));
        let (gap_cpu, gap_sleep, gap_queue) =
            divide(gap, sum(|of| of.gap_wall), sum(|of| of.gap_cpu), sum(|of| of.gap_queue));
        Some(Cycle {
            threads: real(self.active) / real(span),
            span_s: real(span) / 1e9,
            taken,
            hold_cpu_s: hold_cpu / 1e9,
            hold_sleep_s: hold_sleep / 1e9,
            gap_cpu_s: gap_cpu / 1e9,
            gap_sleep_s: gap_sleep / 1e9,
            queue_s: (hold_queue + gap_queue) / 1e9,
            injected_s: real(sum(|of| of.injected)) / real(taken) / 1e9,
            samples,
        })
    }
}

/// Divides a mean into CPU time, sleep and time queued, in proportion to the samples.
fn divide(mean: f64, wall: u64, cpu: u64, queue: u64) -> (f64, f64, f64) {
    if wall == 0 {
        return (mean, 0.0, 0.0);
    }
    let cpu = cpu.min(wall);
    let queue = queue.min(wall - cpu);
    let share = |ns: u64| mean * real(ns) / real(wall);
    (share(cpu), share(wall - cpu - queue), share(queue))
}

/// Exact below a hundred days of nanoseconds.
#[allow(clippy::cast_precision_loss)]
fn real(n: u64) -> f64 {
    n as f64
}

fn counts(of: &OfSite) -> Counts {
    Counts {
        total: of.total,
        shared: of.shared,
        waited: of.waited,
        wait_ns: of.wait,
        wait_max_ns: of.wait_max,
        hold_ns: of.hold,
        hold_max_ns: of.hold_max,
        rejected: of.rejected,
        retaken: of.retaken,
    }
}

/// A class of locks, with names.
fn of_class(class: u64, instances: &[Keyed], spaces: &[Space], namer: &mut Namer) -> Lock {
    let empty = Space::default();
    let space_of = |process: usize| spaces.get(process).unwrap_or(&empty);
    let mut counts = Counts::default();
    let mut sites: BTreeMap<String, SiteCounts<String>> = BTreeMap::new();
    for (_, instance) in instances {
        counts.add(&instance.counts);
        for ((process, address), (of_site, holders)) in &instance.sites {
            let site = sites.entry(namer.place(space_of(*process), *address)).or_default();
            site.0.add(of_site);
            for ((process, holder), wait) in holders {
                *site.1.entry(namer.place(space_of(*process), *holder)).or_default() += wait;
            }
        }
    }
    let busiest = instances.iter().max_by_key(|(_, instance)| instance.counts.total);
    let (variable, utilisation, busiest_share, cycle, kind) =
        busiest.map_or((None, 0.0, 0.0, None, 1), |((process, address), instance)| {
            let space = space_of(*process);
            let in_file = || space.shared(*address).and_then(|(place, path)| place.name(path));
            let variable = namer.variable(space, *address).or_else(in_file);
            let utilisation = real(instance.counts.hold_ns) / real(instance.span().max(1));
            let share = real(instance.counts.total) / real(counts.total.max(1));
            (variable, utilisation, share, instance.cycle(), instance.kind)
        });
    let mut sites: Vec<Site> = sites.into_iter().map(site).collect();
    sites.sort_by_key(|site| std::cmp::Reverse((site.counts.wait_ns, site.counts.total)));
    Lock {
        class,
        kind: match kind {
            2 => Kind::Rwlock,
            3 => Kind::Spin,
            _ => Kind::Mutex,
        },
        is_variable: variable.is_some(),
        name: variable.or_else(|| Some(sites.first()?.name.clone())).unwrap_or_default(),
        locks: instances.len() as u64,
        counts,
        utilisation,
        busiest: busiest_share,
        sites,
        cycle,
    }
}

/// A call site with the holders' call sites that its threads waited longest for.
fn site((name, (counts, holders)): (String, SiteCounts<String>)) -> Site {
    let mut held_by: Vec<(String, u64)> = holders.into_iter().collect();
    held_by.sort_by_key(|(_, wait)| std::cmp::Reverse(*wait));
    held_by.truncate(HOLDERS_MAX);
    Site { name, counts, held_by }
}
