//! Memory of units in control groups: use, and orders.
//!
//! Problem: bound each unit to the memory that it is allowed, protect its guarantee from the others, and find the memory that
//! it does not need.
//!
//! Algorithm, orders: guarantees become memory.min and memory.low, bounds memory.high, reclaim memory.reclaim
//! ([`pager`]).
//!
//! Algorithm, facts:
//! - memory.current, memory.stat, memory.events.local and memory.pressure of each unit, and /proc
//!   ([`machine`](crate::observe::memory::machine));
//! - cold pages, by multi-gen LRU generations ([`ages`](crate::observe::memory::ages));
//! - an estimate of pages charged to a unit and used by others ([`sharing`](crate::observe::memory::sharing));
//! - the memory that a unit's pages take in compressed swap ([`swap`](crate::observe::memory::swap)).
//!
//! In a container, the limits of its cgroup and of those above it bound what is divided
//! ([`around`](crate::observe::memory::around)). A lender that reaches its bound wakes the daemon
//! ([`alarms`](crate::observe::memory::alarms)).
//!
//! Properties: memory.max is never written, so no order here invokes the OOM killer. The original content of every file is
//! in the journal before the first write, so the caretaker lifts all bounds when the daemon dies. A failed write leaves the
//! unit as it was, and is reported.
//!
//! Limits: a page stays charged to the control group that first touched it. So memory that a process had before it joined
//! a unit is charged elsewhere, and a file that two units read is charged to the first reader.

mod pager;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use commonhold_contract::UnitId;
use commonhold_policy::Time;
use commonhold_policy::memory::EARLY_NS;
use commonhold_policy::plan::MemoryOrder;
use commonhold_policy::plan::MemoryPlan;
use commonhold_policy::{GroupId, MemoryFacts, MemoryMeans, UnitMemory};

use super::knob;
use crate::LiveError;
use crate::host;
use crate::observe::capability::{CgroupBase, means_at};
use crate::observe::knob::value_of;
use crate::observe::memory::ages::{Ages, Cold};
use crate::observe::memory::alarms::Alarms;
use crate::observe::memory::around::Around;
use crate::observe::memory::facts::{self, Charged, Group, Packing};
use crate::observe::memory::machine::{Machine, MachineMemory};
use crate::observe::memory::sharing::Sharing;
use crate::observe::memory::source::{Buffer, Source};
use crate::observe::memory::swap::Swaps;
use crate::undo::journal::{self, Entry, Journal};
pub(super) use pager::Pager;

/// Files kept open per unit: those of [`Files`]. Opening one for each sample would cost more than reading it.
pub(crate) const FILES_PER_UNIT: usize = 5;

/// The failed samples in a row after which memory is no longer enforced.
const BLIND_MAX: u32 = 5;

/// The control groups of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) unit: UnitId,
    /// The directory of the unit with its sub-units.
    pub(crate) dir: PathBuf,
    /// The directory of its own processes: `dir`, or a leaf in it.
    pub(crate) leaf: PathBuf,
    /// The enclosing unit.
    pub(crate) parent: Option<UnitId>,
}

/// The memory of all units.
#[derive(Debug)]
pub(crate) struct Memory {
    mount: PathBuf,
    base: PathBuf,
    top: PathBuf,
    means: MemoryMeans,
    units: BTreeMap<UnitId, Unit>,
    machine: Machine,
    swaps: Swaps,
    /// The cgroups above a delegated subtree. If they have limits, the units divide what these allow.
    around: Option<Around>,
    pager: Pager,
    alarms: Option<Alarms>,
    ages: Option<Ages>,
    sharing: Option<Sharing>,
    buffer: Buffer,
    /// When facts are due.
    due: Time,
    /// Failed samples in a row.
    blind: u32,
    /// Files whose original content the journal has.
    recorded: BTreeSet<PathBuf>,
    problems: Vec<LiveError>,
    /// The foreign control groups that units are held in.
    foreign: Vec<ForeignMemory>,
}

/// Memory of a foreign control group that a unit is held in.
#[derive(Debug)]
struct ForeignMemory {
    place: GroupId,
    unit: UnitId,
    dir: PathBuf,
    files: Files,
    /// Its counters when it became the unit's.
    since: Counts,
    /// What it was charged at the last sample.
    charged: Charged,
}

/// Counters of a control group since it was made.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    refused: u64,
    killed: u64,
    stalled_ns: u64,
    refaulted: u64,
    reclaimed: u64,
}

/// The memory of one unit.
#[derive(Debug)]
struct Unit {
    place: Place,
    /// `None` if its files cannot be read.
    files: Option<Files>,
    /// The orders in force; `None` is no bound.
    high: Option<u64>,
    min: u64,
    low: u64,
    own: u64,
}

#[derive(Debug)]
struct Files {
    group: Group,
    events: Source,
    pressure: Option<Source>,
}

impl Files {
    fn open(place: &Place) -> Result<Files, LiveError> {
        // Kernels without memory.events.local count events of sub-units as well.
        let events = Source::optional(&place.leaf.join("memory.events.local"));
        Ok(Files {
            group: Group::open(&place.dir)?,
            events: events.map_or_else(|| Source::open(&place.leaf.join("memory.events")), Ok)?,
            pressure: Source::optional(&place.leaf.join("memory.pressure")),
        })
    }

    /// The files of a group with everything below it.
    fn of_all(dir: &Path) -> Result<Files, LiveError> {
        Ok(Files {
            group: Group::open(dir)?,
            events: Source::open(&dir.join("memory.events"))?,
            pressure: Source::optional(&dir.join("memory.pressure")),
        })
    }

    fn counts(&self, charged: &Charged, buffer: &mut Buffer) -> Result<Counts, LiveError> {
        let events = self.events.read(buffer)?;
        let count = |key| value_of(events, key).unwrap_or(0);
        let (refused, killed) = (count("high"), count("oom_kill"));
        let stalled_ns = match &self.pressure {
            Some(pressure) => facts::stalled_ns(pressure.read(buffer)?),
            None => 0,
        };
        let (refaulted, reclaimed) = (charged.refaulted, charged.reclaimed);
        Ok(Counts { refused, killed, stalled_ns, refaulted, reclaimed })
    }
}

impl Counts {
    fn since(self, before: Counts) -> Counts {
        Counts {
            refused: self.refused.saturating_sub(before.refused),
            killed: self.killed.saturating_sub(before.killed),
            stalled_ns: self.stalled_ns.saturating_sub(before.stalled_ns),
            refaulted: self.refaulted.saturating_sub(before.refaulted),
            reclaimed: self.reclaimed.saturating_sub(before.reclaimed),
        }
    }
}

impl Memory {
    /// The memory of the units below `top`, where the memory controller is available.
    pub(crate) fn new(place: &CgroupBase, top: &Path) -> Result<Memory, LiveError> {
        let path = top.strip_prefix(&place.mount).map(|path| format!("/{}", path.display()));
        Ok(Memory {
            mount: place.mount.clone(),
            base: place.base.clone(),
            top: top.to_owned(),
            means: means_at(place, host::exists(&top.join("memory.reclaim"))),
            units: BTreeMap::new(),
            machine: Machine::open("/proc".as_ref())?,
            swaps: Swaps::open(),
            around: if place.delegated { Some(Around::open(&place.base, &place.mount)?) } else { None },
            pager: Pager::default(),
            alarms: Alarms::new(),
            ages: path.ok().and_then(Ages::begin),
            sharing: Sharing::begin(),
            buffer: Buffer::default(),
            due: 0,
            blind: 0,
            recorded: BTreeSet::new(),
            problems: Vec::new(),
            foreign: Vec::new(),
        })
    }

    /// The means for memory. None after [`BLIND_MAX`] failed samples, so that units are not kept to outdated bounds.
    pub(crate) fn means(&self) -> MemoryMeans {
        let alarms = self.alarms.is_some();
        if self.blind < BLIND_MAX { MemoryMeans { alarms, ..self.means } } else { MemoryMeans::NONE }
    }

    /// Follows the units' cgroups: forgets those that are gone, and moves bounds to new leaves.
    pub(crate) fn follow(&mut self, places: Vec<Place>, journal: &mut Journal) {
        let mut before: BTreeMap<PathBuf, Unit> = std::mem::take(&mut self.units)
            .into_values()
            .map(|unit| (unit.place.dir.clone(), unit))
            .collect();
        for place in places {
            let mut unit = before.remove(&place.dir).unwrap_or_else(|| Unit::new(place.clone()));
            if unit.place.leaf != place.leaf {
                self.move_bound(&mut unit, &place, journal);
            }
            unit.place = place;
            self.reopen(&mut unit);
            self.units.insert(unit.place.unit, unit);
        }
        for unit in before.into_values() {
            self.let_go(&unit.place.leaf);
        }
        if let Some(sharing) = &self.sharing {
            sharing.follow(self.units.values().map(|unit| unit.place.leaf.clone()).collect());
        }
        self.due = 0;
    }

    /// Follows the foreign groups that units are held in. One whose files cannot be opened has ended.
    pub(super) fn follow_foreign_groups<'a>(
        &mut self,
        places: impl Iterator<Item = (GroupId, UnitId, &'a Path)>,
    ) {
        let mut before: BTreeMap<GroupId, ForeignMemory> =
            std::mem::take(&mut self.foreign).into_iter().map(|group| (group.place, group)).collect();
        for (place, unit, dir) in places {
            let group = match before.remove(&place) {
                Some(group) => Some(ForeignMemory { unit, ..group }),
                None => self.hold(place, unit, dir).ok(),
            };
            self.foreign.extend(group);
        }
        for group in before.into_values() {
            self.pager.forget(&group.dir);
        }
        if let Some(ages) = &self.ages {
            ages.follow(self.foreign.iter().map(|group| self.named(&group.dir)));
        }
        self.due = 0;
    }

    fn hold(&mut self, place: GroupId, unit: UnitId, dir: &Path) -> Result<ForeignMemory, LiveError> {
        let files = Files::of_all(dir)?;
        let charged = files.group.read(&mut self.buffer)?;
        let since = files.counts(&charged, &mut self.buffer)?;
        Ok(ForeignMemory { place, unit, dir: dir.to_owned(), files, since, charged })
    }

    /// The threads that reclaim memory.
    pub(super) fn pager(&mut self) -> &mut Pager {
        &mut self.pager
    }

    /// What each foreign group was charged at the last sample, in bytes.
    pub(super) fn charged_in_foreign_groups(&self) -> BTreeMap<GroupId, u64> {
        self.foreign.iter().map(|group| (group.place, group.charged.current)).collect()
    }

    fn let_go(&mut self, leaf: &Path) {
        self.pager.forget(leaf);
        if let Some(alarms) = &mut self.alarms {
            alarms.forget(leaf);
        }
    }

    /// Moves a unit's bound with its processes into a new leaf.
    fn move_bound(&mut self, unit: &mut Unit, to: &Place, journal: &mut Journal) {
        let (from, high) = (unit.place.leaf.clone(), unit.high.take());
        if high.is_some() {
            let lifted = self.pager.bound(&from, "max", false);
            self.problems.extend(lifted.err());
            let bounded = self.put_bound(&to.leaf, high, false, journal);
            unit.high = high.filter(|_| bounded.is_ok());
            self.problems.extend(bounded.err());
        }
        self.let_go(&from);
    }

    fn reopen(&mut self, unit: &mut Unit) {
        if let Some(alarms) = &mut self.alarms {
            alarms.forget(&unit.place.leaf);
        }
        unit.files = match Files::open(&unit.place) {
            Ok(files) => Some(files),
            Err(error) => {
                self.problems.push(error);
                None
            }
        };
    }

    /// Failures since the last call.
    pub(crate) fn take_problems(&mut self) -> Vec<LiveError> {
        self.problems.extend(self.pager.take_problems());
        std::mem::take(&mut self.problems)
    }

    /// A descriptor that becomes readable when a lender reaches its bound.
    pub(crate) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.alarms.as_ref().map(Alarms::fd)
    }

    /// Drains the alarm's descriptor, and makes memory facts due at the next turn.
    pub(crate) fn hear(&mut self) {
        if let Some(alarms) = &mut self.alarms {
            alarms.drain();
        }
    }

    /// Makes facts due at the next turn, because a unit has come that the last plan has no bound for.
    pub(crate) fn wake(&mut self) {
        self.due = 0;
    }

    /// The facts, if they are due within [`EARLY_NS`] or an alarm was raised; `None` if not due, or after a failure.
    pub(crate) fn observe(&mut self, now: Time, units: usize) -> Option<MemoryFacts> {
        let woken = self.alarms.as_mut().is_some_and(Alarms::take);
        if !woken && now.saturating_add(EARLY_NS) < self.due {
            return None;
        }
        match self.read(units) {
            Ok(facts) => {
                self.blind = 0;
                Some(facts)
            }
            Err(error) => {
                self.blind = self.blind.saturating_add(1);
                self.problems.push(error);
                None
            }
        }
    }

    fn read(&mut self, units: usize) -> Result<MemoryFacts, LiveError> {
        let machine = self.machine.read(&mut self.buffer)?;
        let above = self.around.as_ref().and_then(|_| facts::tightest_bound(&self.base, &self.mount));
        let bound = above.filter(|bound| *bound < machine.total);
        // Compressed swap takes the machine's memory, but counts against no cgroup's limit.
        let packing = match bound {
            None => self.swaps.read(machine, &mut self.buffer)?,
            Some(_) => Packing::default(),
        };
        let charged = self.charged(&packing)?;
        let top = |id: &UnitId| self.units.get(id).is_some_and(|unit| unit.place.parent.is_none());
        let ours = charged.iter().filter(|(id, _)| top(id)).map(|(_, charged)| *charged);
        let ours = ours.fold(Charged::default(), |sum, one| sum.with(&one));
        let mut facts = self.divide(machine, bound, ours)?;
        (facts.swap_next, facts.packed_permille) = (packing.next, packing.permille);
        facts.units = vec![UnitMemory::default(); units];
        for id in charged.keys() {
            if let Some(place) = facts.units.get_mut(id.index()) {
                *place = self.unit(*id, &charged)?;
            }
        }
        Ok(facts)
    }

    /// A control group's path as the kernel names it.
    fn named(&self, dir: &Path) -> String {
        format!("/{}", dir.strip_prefix(&self.mount).unwrap_or(dir).display())
    }

    /// What every unit is charged, sub-units included.
    fn charged(&mut self, packing: &Packing) -> Result<BTreeMap<UnitId, Charged>, LiveError> {
        let mut all = BTreeMap::new();
        for (id, unit) in &self.units {
            if let Some(files) = &unit.files {
                all.insert(*id, files.group.read(&mut self.buffer)?.packed(packing));
            }
        }
        for group in &mut self.foreign {
            // A group that has ended is charged nothing.
            let read = group.files.group.read(&mut self.buffer).unwrap_or_default();
            group.charged = Charged {
                refaulted: read.refaulted.saturating_sub(group.since.refaulted),
                reclaimed: read.reclaimed.saturating_sub(group.since.reclaimed),
                ..read.packed(packing)
            };
            let around = std::iter::successors(Some(group.unit), |unit| self.units.get(unit)?.place.parent);
            for unit in around {
                let sum = all.entry(unit).or_default();
                *sum = sum.with(&group.charged);
            }
        }
        Ok(all)
    }

    /// The memory to divide, and what is used outside the units. `bound` is a container's limit, `ours` what all units are
    /// charged.
    fn divide(
        &mut self,
        machine: MachineMemory,
        bound: Option<u64>,
        ours: Charged,
    ) -> Result<MemoryFacts, LiveError> {
        let (kernel, shared) = machine.common(&ours);
        let mut facts = MemoryFacts {
            total: machine.total,
            kernel,
            shared,
            swap_free: machine.swap_free,
            swap_next: 0,
            packed_permille: 0,
            units: Vec::new(),
        };
        if let Some(room) = self.around.as_ref().and_then(|_| facts::swap_room(&self.base, &self.mount)) {
            facts.swap_free = facts.swap_free.min(room);
        }
        if let (Some(around), Some(bound)) = (&self.around, bound) {
            let room = around.room(&ours, &mut self.buffer)?.unwrap_or(bound);
            // A shortage of the whole machine also limits the container.
            let left = facts.total.saturating_sub(kernel + shared).min(room);
            (facts.total, facts.kernel, facts.shared) = (bound, 0, bound - left.min(bound));
        }
        Ok(facts)
    }

    /// The facts of one unit without its sub-units.
    fn unit(&mut self, id: UnitId, charged: &BTreeMap<UnitId, Charged>) -> Result<UnitMemory, LiveError> {
        let inside: Vec<Charged> = self
            .units
            .iter()
            .filter(|(_, unit)| unit.place.parent == Some(id))
            .filter_map(|(sub, _)| charged.get(sub).copied())
            .collect();
        let whole = charged.get(&id).copied().unwrap_or_default();
        let own = whole.without(&inside);
        let Some(unit) = self.units.get(&id) else { return Ok(UnitMemory::default()) };
        let Some(files) = &unit.files else { return Ok(UnitMemory::default()) };
        let mut counts = files.counts(&own, &mut self.buffer)?;
        let mut cold_in_foreign_groups = Cold::default();
        let mut took = self.pager.taken(&unit.place.leaf);
        for group in self.foreign.iter().filter(|group| group.unit == id) {
            if let Ok(more) = group.files.counts(&group.charged, &mut self.buffer) {
                let more = more.since(group.since);
                counts.refused += more.refused;
                counts.killed += more.killed;
                counts.stalled_ns += more.stalled_ns;
            }
            let aged = self.ages.as_ref().and_then(|ages| ages.of_all(&self.named(&group.dir)));
            let cold = aged.unwrap_or(Cold { file: group.charged.inactive_file, anonymous: 0 });
            cold_in_foreign_groups = cold_in_foreign_groups.with(cold);
            took = took.with(self.pager.taken(&group.dir));
        }
        let Counts { refused, killed, stalled_ns, .. } = counts;
        let aged = self.ages.as_ref().and_then(|ages| ages.of(&self.named(&unit.place.leaf)));
        // Without generations, `own` already includes the foreign groups' inactive file pages.
        let cold = aged
            .map_or(Cold { file: own.inactive_file, anonymous: 0 }, |cold| cold.with(cold_in_foreign_groups));
        let taking_ns = u64::try_from(took.time.as_nanos()).unwrap_or(u64::MAX);
        let charged = own.current.saturating_sub(own.packed);
        let cold_anonymous = cold.anonymous.min(charged);
        let cold = (cold.file + cold_anonymous).min(charged);
        let for_others = self.sharing.as_ref().map_or(0, |sharing| sharing.of(&unit.place.leaf));
        let counts = UnitMemory { refused, killed, stalled_ns, taken: took.bytes, taking_ns, ..own.unit() };
        Ok(UnitMemory { cold, cold_anonymous, for_others: for_others.min(charged), ..counts })
    }

    /// Carries out an order on memory.
    pub(crate) fn carry_out(&mut self, order: &MemoryOrder, journal: &mut Journal) -> Vec<LiveError> {
        let done = match *order {
            MemoryOrder::Guarantee { unit, min, low, own } => self.guarantee(unit, [min, low, own], journal),
            MemoryOrder::Allow { unit, bytes } => self.allow(unit, bytes, journal),
            MemoryOrder::Reclaim { unit, bytes, files } => {
                if let Some(unit) = self.units.get(&unit) {
                    self.pager.reclaim(&unit.place.leaf, bytes, files);
                }
                Ok(())
            }
            MemoryOrder::Expose { .. } => Ok(()),
        };
        done.err().into_iter().collect()
    }

    fn allow(&mut self, id: UnitId, bytes: Option<u64>, journal: &mut Journal) -> Result<(), LiveError> {
        let Some(unit) = self.units.get(&id) else { return Ok(()) };
        let leaf = unit.place.leaf.clone();
        let sinks = bytes.unwrap_or(u64::MAX) < unit.high.unwrap_or(u64::MAX);
        self.put_bound(&leaf, bytes, sinks, journal)?;
        if let Some(unit) = self.units.get_mut(&id) {
            unit.high = bytes;
        }
        Ok(())
    }

    fn put_bound(
        &mut self,
        leaf: &Path,
        bytes: Option<u64>,
        sinks: bool,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        self.record(&leaf.join("memory.high"), "max", journal)?;
        let text = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        self.pager.bound(leaf, &text, sinks)
    }

    /// Protects memory: `min` and `low` of the unit with its sub-units, and `own`, the share of `low` for its own processes.
    fn guarantee(
        &mut self,
        id: UnitId,
        [min, low, own]: [u64; 3],
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(unit) = self.units.get_mut(&id) else { return Ok(()) };
        (unit.min, unit.low, unit.own) = (min, low, own);
        let place = unit.place.clone();
        let tops = || self.units.values().filter(|unit| unit.place.parent.is_none());
        let (all_min, all_low) = (tops().map(|unit| unit.min).sum(), tops().map(|unit| unit.low).sum());
        // The kernel protects a cgroup at most as much as its ancestors.
        let top = self.top.clone();
        self.put_guarantee(&top, all_min, all_low, journal)?;
        self.put_guarantee(&place.dir, min, low, journal)?;
        if place.leaf != place.dir {
            self.put_guarantee(&place.leaf, 0, own, journal)?;
        }
        Ok(())
    }

    fn put_guarantee(
        &mut self,
        dir: &Path,
        min: u64,
        low: u64,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        for (file, bytes) in [("memory.low", low), ("memory.min", min)] {
            let path = dir.join(file);
            self.record(&path, "0", journal)?;
            knob::put(&path, &bytes.to_string())?;
        }
        Ok(())
    }

    /// Records a file's original content before the first write.
    fn record(&mut self, path: &Path, original: &str, journal: &mut Journal) -> Result<(), LiveError> {
        if self.recorded.contains(path) {
            return Ok(());
        }
        let entry = Entry::Knob { path: path.to_owned(), original: original.to_owned() };
        journal::record(journal, &[entry])?;
        self.recorded.insert(path.to_owned());
        Ok(())
    }

    /// Takes from a plan when facts are due, and which units' alarms to watch.
    pub(crate) fn attend(&mut self, plan: Option<&MemoryPlan>) {
        let Some(plan) = plan else { return };
        self.due = plan.next;
        let Some(alarms) = &mut self.alarms else { return };
        for (id, unit) in &self.units {
            if let Some(files) = &unit.files {
                alarms.watch(&unit.place.leaf, &files.events, plan.watch.contains(id));
            }
        }
    }
}

impl Unit {
    fn new(place: Place) -> Unit {
        Unit { place, files: None, high: None, min: 0, low: 0, own: 0 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Memory is enforced through four failed samples, not after the fifth, and again once a sample succeeds.
    #[test]
    fn without_samples_memory_is_not_enforced() {
        let dir = tempfile::tempdir().unwrap();
        let place = CgroupBase {
            mount: dir.path().to_owned(),
            base: dir.path().to_owned(),
            controllers: ["memory".to_owned()].into(),
            delegated: false,
        };
        let mut memory = Memory::new(&place, &dir.path().join("top")).unwrap();
        assert!(memory.observe(1, 2).is_some_and(|facts| facts.total > 0));
        // A directory can be opened but not read.
        std::fs::create_dir(dir.path().join("meminfo")).unwrap();
        let machine = std::mem::replace(&mut memory.machine, Machine::open(dir.path()).unwrap());
        for look in 1..=BLIND_MAX {
            assert!(memory.means().bounds, "look {look}");
            assert_eq!(memory.observe(u64::from(look) + 1, 2), None);
        }
        assert_eq!(memory.means(), MemoryMeans::NONE);
        assert_eq!(memory.take_problems().len(), 5);
        memory.machine = machine;
        assert!(memory.observe(10, 2).is_some() && memory.means().bounds);
    }

    const MIB: u64 = 1 << 20;

    /// Makes a control group with a memory.max, a charge and, within the charge, file pages, in MiB.
    fn bounded(dir: &Path, [max, current, cached]: [u64; 3]) {
        std::fs::create_dir_all(dir).unwrap();
        let stat = format!("inactive_file {}\n", cached * MIB);
        std::fs::write(dir.join("memory.max"), format!("{}\n", max * MIB)).unwrap();
        std::fs::write(dir.join("memory.current"), format!("{}\n", current * MIB)).unwrap();
        std::fs::write(dir.join("memory.stat"), stat).unwrap();
    }

    /// The memory to divide and the part used by others, in MiB, on a machine with 10,000 MiB free and units below `base` that
    /// are charged 400 MiB, 50 of them file pages.
    fn divided(mount: &Path, base: &Path) -> (u64, u64) {
        let place = CgroupBase {
            mount: mount.to_owned(),
            base: base.to_owned(),
            controllers: ["memory".to_owned()].into(),
            delegated: true,
        };
        let mut memory = Memory::new(&place, &base.join("top")).unwrap();
        let machine = MachineMemory { total: 10_000 * MIB, free: 10_000 * MIB, ..MachineMemory::default() };
        let ours = Charged { current: 400 * MIB, cached: 50 * MIB, ..Charged::default() };
        let facts = memory.divide(machine, facts::tightest_bound(base, mount), ours).unwrap();
        assert_eq!(facts.kernel, 0);
        (facts.total / MIB, facts.shared / MIB)
    }

    /// In a container of 1,000 MiB others are charged 300, of which 200 are file pages that the kernel can drop.
    #[test]
    fn file_pages_of_others_in_a_container_count_as_free() {
        let dir = tempfile::tempdir().unwrap();
        bounded(dir.path(), [1_000, 700, 250]);
        assert_eq!(divided(dir.path(), dir.path()), (1_000, 100));
    }

    /// Outside the container of 1,000 MiB, others use 500 of the slice's 1,200: 700 are left. A slice as large as the machine
    /// does not count.
    #[test]
    fn memory_that_others_use_in_an_enclosing_slice_is_deducted() {
        let mount = tempfile::tempdir().unwrap();
        let (slice, base) = (mount.path().join("slice"), mount.path().join("slice/container"));
        bounded(&base, [1_000, 500, 50]);
        bounded(&slice, [1_200, 900, 50]);
        assert_eq!(divided(mount.path(), &base), (1_000, 300));
        bounded(&slice, [10_000, 900, 50]);
        assert_eq!(divided(mount.path(), &base), (1_000, 100));
        // If only the slice has a limit, that is divided.
        bounded(&slice, [1_200, 900, 50]);
        std::fs::write(base.join("memory.max"), "max\n").unwrap();
        assert_eq!(divided(mount.path(), &base), (1_200, 500));
        // A slice without a limit does not count.
        bounded(&base, [1_000, 500, 50]);
        std::fs::write(slice.join("memory.max"), "max\n").unwrap();
        assert_eq!(divided(mount.path(), &base), (1_000, 100));
    }
}
