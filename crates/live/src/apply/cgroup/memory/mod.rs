//! Memory of units in control groups: use, and orders.
//!
//! Problem: keep each unit within the memory that it is allowed, protect its guarantee from other units, and
//! find memory that the unit does not need.
//!
//! Algorithm, orders: guarantees are written to memory.min and memory.low, bounds to memory.high, and orders
//! to reclaim to memory.reclaim ([`pager`]).
//!
//! Algorithm, facts:
//! - memory.current, memory.stat, memory.events.local and memory.pressure of each unit, and /proc
//!   ([`machine`](crate::observe::memory::machine));
//! - cold pages, by multi-gen LRU generations ([`ages`](crate::observe::memory::ages));
//! - an estimate of the pages that are charged to a unit and used by others
//!   ([`sharing`](crate::observe::memory::sharing));
//! - the memory that a unit's pages occupy in compressed swap ([`swap`](crate::observe::memory::swap)).
//!
//! In a container, the memory to divide is bounded by the limits of the container's cgroup and of its
//! ancestors ([`around`](crate::observe::memory::around)). A lender that reaches its bound wakes the daemon
//! ([`alarms`](crate::observe::memory::alarms)).
//!
//! Properties: memory.max is never written, so no order here invokes the OOM killer. The original content of
//! every file is in the journal before the first write, so the caretaker lifts all bounds when the daemon
//! dies. A failed write leaves the unit as it was, and is reported.
//!
//! Limits: a page stays charged to the control group that first touched it. So memory that a process had
//! before it joined a unit is charged elsewhere, and a file that two units read is charged to the first
//! reader.

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

/// The number of files kept open per unit: those of [`Files`]. To open them for each sample would cost more
/// than to read them.
pub(crate) const FILES_PER_UNIT: usize = 5;

/// The number of failed samples in a row after which memory is not enforced any more.
const FAILED_MAX: u32 = 5;

/// The directories of a unit's control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitDirs {
    pub(crate) unit: UnitId,
    /// The directory of the unit with its sub-units.
    pub(crate) dir: PathBuf,
    /// The directory of the unit's own processes: `dir`, or a leaf in it.
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
    /// What the kernel supports.
    means: MemoryMeans,
    units: BTreeMap<UnitId, Unit>,
    machine: Machine,
    swaps: Swaps,
    /// The cgroups above a delegated subtree, whose limits bound the memory to divide; `None` if the subtree
    /// is not delegated.
    around: Option<Around>,
    pager: Pager,
    alarms: Option<Alarms>,
    ages: Option<Ages>,
    sharing: Option<Sharing>,
    buffer: Buffer,
    /// When the policy needs the next facts.
    due: Time,
    /// The number of failed samples in a row.
    failed: u32,
    /// Files whose original content is in the journal.
    recorded: BTreeSet<PathBuf>,
    problems: Vec<LiveError>,
    /// The foreign control groups in which units are held.
    foreign: Vec<ForeignMemory>,
}

/// Memory of a foreign control group in which a unit is held.
#[derive(Debug)]
struct ForeignMemory {
    id: GroupId,
    unit: UnitId,
    dir: PathBuf,
    files: Files,
    /// The group's counters when the unit began to be held there. Earlier counts are not the unit's.
    baseline: Counts,
    /// The memory that the group was charged at the last sample.
    charged: Charged,
}

/// Counters of a control group since it was made.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// How often the group was throttled at its bound, memory.high.
    refused: u64,
    /// Processes that the OOM killer has killed.
    killed: u64,
    stalled_ns: u64,
    refaulted: u64,
    reclaimed: u64,
}

/// The memory of one unit, and the orders in force.
#[derive(Debug)]
struct Unit {
    dirs: UnitDirs,
    /// `None` if the files cannot be read.
    files: Option<Files>,
    /// The bound, memory.high; `None`: no bound.
    high: Option<u64>,
    /// The guarantee of the unit with its sub-units, memory.min.
    min: u64,
    /// The soft guarantee of the unit with its sub-units, memory.low.
    low: u64,
}

/// The open files of one control group, or of one unit's control groups.
#[derive(Debug)]
struct Files {
    group: Group,
    events: Source,
    pressure: Option<Source>,
}

impl Files {
    /// Opens a unit's files: the charge of the unit with its sub-units, and the events and pressure of its
    /// own processes.
    fn open(dirs: &UnitDirs) -> Result<Files, LiveError> {
        // A kernel without memory.events.local counts events of descendants as well.
        let events = Source::optional(&dirs.leaf.join("memory.events.local"));
        Ok(Files {
            group: Group::open(&dirs.dir)?,
            events: events.map_or_else(|| Source::open(&dirs.leaf.join("memory.events")), Ok)?,
            pressure: Source::optional(&dirs.leaf.join("memory.pressure")),
        })
    }

    /// Opens the files of a control group with its descendants.
    fn open_with_descendants(dir: &Path) -> Result<Files, LiveError> {
        Ok(Files {
            group: Group::open(dir)?,
            events: Source::open(&dir.join("memory.events"))?,
            pressure: Source::optional(&dir.join("memory.pressure")),
        })
    }

    /// Reads the counters, except for the counters of refaulted and reclaimed pages, which are copied from
    /// `charged`.
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
    fn since(self, baseline: Counts) -> Counts {
        Counts {
            refused: self.refused.saturating_sub(baseline.refused),
            killed: self.killed.saturating_sub(baseline.killed),
            stalled_ns: self.stalled_ns.saturating_sub(baseline.stalled_ns),
            refaulted: self.refaulted.saturating_sub(baseline.refaulted),
            reclaimed: self.reclaimed.saturating_sub(baseline.reclaimed),
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
            failed: 0,
            recorded: BTreeSet::new(),
            problems: Vec::new(),
            foreign: Vec::new(),
        })
    }

    /// What can be enforced: nothing after [`FAILED_MAX`] failed samples, so that units are not kept to
    /// outdated bounds.
    pub(crate) fn means(&self) -> MemoryMeans {
        let alarms = self.alarms.is_some();
        if self.failed < FAILED_MAX { MemoryMeans { alarms, ..self.means } } else { MemoryMeans::NONE }
    }

    /// Adopts the present cgroups of the units: forgets cgroups that were removed, and moves bounds to new
    /// leaves.
    pub(crate) fn follow(&mut self, units: Vec<UnitDirs>, journal: &mut Journal) {
        let mut former: BTreeMap<PathBuf, Unit> =
            std::mem::take(&mut self.units).into_values().map(|unit| (unit.dirs.dir.clone(), unit)).collect();
        for dirs in units {
            let mut unit = former.remove(&dirs.dir).unwrap_or_else(|| Unit::new(dirs.clone()));
            if unit.dirs.leaf != dirs.leaf {
                self.move_bound(&mut unit, &dirs, journal);
            }
            unit.dirs = dirs;
            self.reopen(&mut unit);
            self.units.insert(unit.dirs.unit, unit);
        }
        for unit in former.into_values() {
            self.forget(&unit.dirs.leaf);
        }
        if let Some(sharing) = &self.sharing {
            sharing.follow(self.units.values().map(|unit| unit.dirs.leaf.clone()).collect());
        }
        self.due = 0;
    }

    /// Follows the foreign groups in which units are held. A group whose files cannot be opened has ended,
    /// and is left out.
    pub(super) fn follow_foreign_groups<'a>(
        &mut self,
        groups: impl Iterator<Item = (GroupId, UnitId, &'a Path)>,
    ) {
        let mut former: BTreeMap<GroupId, ForeignMemory> =
            std::mem::take(&mut self.foreign).into_iter().map(|group| (group.id, group)).collect();
        for (id, unit, dir) in groups {
            let group = match former.remove(&id) {
                Some(group) => Some(ForeignMemory { unit, ..group }),
                None => self.open_foreign_group(id, unit, dir).ok(),
            };
            self.foreign.extend(group);
        }
        for group in former.into_values() {
            self.pager.forget(&group.dir);
        }
        if let Some(ages) = &self.ages {
            ages.follow(self.foreign.iter().map(|group| self.kernel_path(&group.dir)));
        }
        self.due = 0;
    }

    /// Opens the files of a foreign group, and reads the baseline of its counters.
    fn open_foreign_group(
        &mut self,
        id: GroupId,
        unit: UnitId,
        dir: &Path,
    ) -> Result<ForeignMemory, LiveError> {
        let files = Files::open_with_descendants(dir)?;
        let charged = files.group.read(&mut self.buffer)?;
        let baseline = files.counts(&charged, &mut self.buffer)?;
        Ok(ForeignMemory { id, unit, dir: dir.to_owned(), files, baseline, charged })
    }

    /// The threads that reclaim memory.
    pub(super) fn pager(&mut self) -> &mut Pager {
        &mut self.pager
    }

    /// The bytes that each foreign group was charged at the last sample.
    pub(super) fn charged_in_foreign_groups(&self) -> BTreeMap<GroupId, u64> {
        self.foreign.iter().map(|group| (group.id, group.charged.current)).collect()
    }

    /// Forgets a leaf's reclaim target and its alarm.
    fn forget(&mut self, leaf: &Path) {
        self.pager.forget(leaf);
        if let Some(alarms) = &mut self.alarms {
            alarms.forget(leaf);
        }
    }

    /// Moves a unit's bound from its present leaf to the leaf of `to`, since its processes were moved there.
    fn move_bound(&mut self, unit: &mut Unit, to: &UnitDirs, journal: &mut Journal) {
        let (from, high) = (unit.dirs.leaf.clone(), unit.high.take());
        if high.is_some() {
            let lifted = self.pager.bound(&from, "max", false);
            self.problems.extend(lifted.err());
            let bounded = self.put_bound(&to.leaf, high, false, journal);
            unit.high = high.filter(|_| bounded.is_ok());
            self.problems.extend(bounded.err());
        }
        self.forget(&from);
    }

    /// Opens a unit's files again, since its cgroups may have changed.
    fn reopen(&mut self, unit: &mut Unit) {
        if let Some(alarms) = &mut self.alarms {
            alarms.forget(&unit.dirs.leaf);
        }
        unit.files = match Files::open(&unit.dirs) {
            Ok(files) => Some(files),
            Err(error) => {
                self.problems.push(error);
                None
            }
        };
    }

    /// Takes the errors since the last call.
    pub(crate) fn take_problems(&mut self) -> Vec<LiveError> {
        self.problems.extend(self.pager.take_problems());
        std::mem::take(&mut self.problems)
    }

    /// A descriptor that becomes readable when a lender reaches its bound.
    pub(crate) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.alarms.as_ref().map(Alarms::fd)
    }

    /// Drains the alarm's descriptor, and makes memory facts due at the daemon's next iteration.
    pub(crate) fn drain_alarm(&mut self) {
        if let Some(alarms) = &mut self.alarms {
            alarms.drain();
        }
    }

    /// Makes facts due at the daemon's next iteration, because the last plan has no bound for some unit.
    pub(crate) fn make_due(&mut self) {
        self.due = 0;
    }

    /// Samples the facts, if they are due within [`EARLY_NS`] or an alarm was raised. `None` if they are not
    /// due, or if the sample failed. `units` is the number of units.
    pub(crate) fn observe(&mut self, now: Time, units: usize) -> Option<MemoryFacts> {
        let is_alarmed = self.alarms.as_mut().is_some_and(Alarms::take);
        if !is_alarmed && now.saturating_add(EARLY_NS) < self.due {
            return None;
        }
        match self.read(units) {
            Ok(facts) => {
                self.failed = 0;
                Some(facts)
            }
            Err(error) => {
                self.failed = self.failed.saturating_add(1);
                self.problems.push(error);
                None
            }
        }
    }

    fn read(&mut self, units: usize) -> Result<MemoryFacts, LiveError> {
        let machine = self.machine.read(&mut self.buffer)?;
        // The container's limit, if the daemon is in a container that has less memory than the machine.
        let tightest = self.around.as_ref().and_then(|_| facts::tightest_bound(&self.base, &self.mount));
        let bound = tightest.filter(|bound| *bound < machine.total);
        // Compressed swap takes the machine's memory, but counts against no cgroup's limit.
        let packing = match bound {
            None => self.swaps.read(machine, &mut self.buffer)?,
            Some(_) => Packing::default(),
        };
        let charged = self.charged(&packing)?;
        let is_outermost = |id: &UnitId| self.units.get(id).is_some_and(|unit| unit.dirs.parent.is_none());
        let charged_to_units = charged
            .iter()
            .filter(|(id, _)| is_outermost(id))
            .fold(Charged::default(), |sum, (_, charged)| sum.with(charged));
        let mut facts = self.divide(machine, bound, charged_to_units)?;
        (facts.swap_next, facts.packed_permille) = (packing.next, packing.permille);
        facts.units = vec![UnitMemory::default(); units];
        for id in charged.keys() {
            if let Some(facts_of_unit) = facts.units.get_mut(id.index()) {
                *facts_of_unit = self.unit(*id, &charged)?;
            }
        }
        Ok(facts)
    }

    /// A control group's path as the kernel names it.
    fn kernel_path(&self, dir: &Path) -> String {
        format!("/{}", dir.strip_prefix(&self.mount).unwrap_or(dir).display())
    }

    /// Reads the memory that every unit is charged, including its sub-units and its foreign groups.
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
                refaulted: read.refaulted.saturating_sub(group.baseline.refaulted),
                reclaimed: read.reclaimed.saturating_sub(group.baseline.reclaimed),
                ..read.packed(packing)
            };
            let unit_and_ancestors =
                std::iter::successors(Some(group.unit), |unit| self.units.get(unit)?.dirs.parent);
            for unit in unit_and_ancestors {
                let sum = all.entry(unit).or_default();
                *sum = sum.with(&group.charged);
            }
        }
        Ok(all)
    }

    /// The facts about the memory to divide: its amount, and the memory used outside of the units. `bound` is
    /// the limit of the container, if any. `charged_to_units` is the memory that all units together are
    /// charged. The result has no facts of single units yet.
    fn divide(
        &mut self,
        machine: MachineMemory,
        bound: Option<u64>,
        charged_to_units: Charged,
    ) -> Result<MemoryFacts, LiveError> {
        let (kernel, shared) = machine.common(&charged_to_units);
        let mut facts = MemoryFacts {
            total: machine.total,
            kernel,
            shared,
            swap_free: machine.swap_free,
            swap_next: 0,
            packed_permille: 0,
            units: Vec::new(),
        };
        if let Some(swap_room) = self.around.as_ref().and_then(|_| facts::swap_room(&self.base, &self.mount))
        {
            facts.swap_free = facts.swap_free.min(swap_room);
        }
        if let (Some(around), Some(bound)) = (&self.around, bound) {
            // Within the container, all memory that the units cannot use counts as shared.
            let room = around.room(&charged_to_units, &mut self.buffer)?.unwrap_or(bound);
            // The units can have no more than the whole machine has left for them, even if the container has
            // more room.
            let available = facts.total.saturating_sub(kernel + shared).min(room);
            (facts.total, facts.kernel, facts.shared) = (bound, 0, bound - available.min(bound));
        }
        Ok(facts)
    }

    /// The facts of one unit without its sub-units. `charged` has the memory that each unit is charged with
    /// its sub-units.
    fn unit(&mut self, id: UnitId, charged: &BTreeMap<UnitId, Charged>) -> Result<UnitMemory, LiveError> {
        let of_sub_units: Vec<Charged> = self
            .units
            .iter()
            .filter(|(_, unit)| unit.dirs.parent == Some(id))
            .filter_map(|(sub_unit, _)| charged.get(sub_unit).copied())
            .collect();
        let with_sub_units = charged.get(&id).copied().unwrap_or_default();
        let own = with_sub_units.without(&of_sub_units);
        let Some(unit) = self.units.get(&id) else { return Ok(UnitMemory::default()) };
        let Some(files) = &unit.files else { return Ok(UnitMemory::default()) };
        let mut counts = files.counts(&own, &mut self.buffer)?;
        let mut cold_in_foreign_groups = Cold::default();
        let mut taken = self.pager.taken(&unit.dirs.leaf);
        // Add the unit's foreign groups.
        for group in self.foreign.iter().filter(|group| group.unit == id) {
            if let Ok(in_group) = group.files.counts(&group.charged, &mut self.buffer) {
                let in_group = in_group.since(group.baseline);
                counts.refused += in_group.refused;
                counts.killed += in_group.killed;
                counts.stalled_ns += in_group.stalled_ns;
            }
            let aged = self.ages.as_ref().and_then(|ages| ages.of_all(&self.kernel_path(&group.dir)));
            let cold = aged.unwrap_or(Cold { file: group.charged.inactive_file, anonymous: 0 });
            cold_in_foreign_groups = cold_in_foreign_groups.with(cold);
            taken = taken.with(self.pager.taken(&group.dir));
        }
        let Counts { refused, killed, stalled_ns, .. } = counts;
        let aged = self.ages.as_ref().and_then(|ages| ages.of(&self.kernel_path(&unit.dirs.leaf)));
        // Without generations, inactive file pages count as cold; `own` already includes those of the foreign
        // groups.
        let cold = aged
            .map_or(Cold { file: own.inactive_file, anonymous: 0 }, |cold| cold.with(cold_in_foreign_groups));
        let taking_ns = u64::try_from(taken.time.as_nanos()).unwrap_or(u64::MAX);
        let charged = own.current.saturating_sub(own.packed);
        let cold_anonymous = cold.anonymous.min(charged);
        let cold = (cold.file + cold_anonymous).min(charged);
        let for_others = self.sharing.as_ref().map_or(0, |sharing| sharing.of(&unit.dirs.leaf));
        let counts = UnitMemory { refused, killed, stalled_ns, taken: taken.bytes, taking_ns, ..own.unit() };
        Ok(UnitMemory { cold, cold_anonymous, for_others: for_others.min(charged), ..counts })
    }

    /// Carries out an order on memory.
    pub(crate) fn carry_out(&mut self, order: &MemoryOrder, journal: &mut Journal) -> Vec<LiveError> {
        let result = match *order {
            MemoryOrder::Guarantee { unit, min, low, own } => self.guarantee(unit, [min, low, own], journal),
            MemoryOrder::Allow { unit, bytes } => self.allow(unit, bytes, journal),
            MemoryOrder::Reclaim { unit, bytes, files } => {
                if let Some(unit) = self.units.get(&unit) {
                    self.pager.reclaim(&unit.dirs.leaf, bytes, files);
                }
                Ok(())
            }
            MemoryOrder::Expose { .. } => Ok(()),
        };
        result.err().into_iter().collect()
    }

    /// Sets a unit's bound; `None` removes it.
    fn allow(&mut self, id: UnitId, bytes: Option<u64>, journal: &mut Journal) -> Result<(), LiveError> {
        let Some(unit) = self.units.get(&id) else { return Ok(()) };
        let leaf = unit.dirs.leaf.clone();
        let is_lowered = bytes.unwrap_or(u64::MAX) < unit.high.unwrap_or(u64::MAX);
        self.put_bound(&leaf, bytes, is_lowered, journal)?;
        if let Some(unit) = self.units.get_mut(&id) {
            unit.high = bytes;
        }
        Ok(())
    }

    fn put_bound(
        &mut self,
        leaf: &Path,
        bytes: Option<u64>,
        is_lowered: bool,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        self.record(&leaf.join("memory.high"), "max", journal)?;
        let text = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        self.pager.bound(leaf, &text, is_lowered)
    }

    /// Protects a unit's memory: `min` and `low` bytes of the unit with its sub-units. `own` is the part of
    /// `low` that protects the unit's own processes.
    fn guarantee(
        &mut self,
        id: UnitId,
        [min, low, own]: [u64; 3],
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(unit) = self.units.get_mut(&id) else { return Ok(()) };
        (unit.min, unit.low) = (min, low);
        let dirs = unit.dirs.clone();
        let outermost = || self.units.values().filter(|unit| unit.dirs.parent.is_none());
        let all_min = outermost().map(|unit| unit.min).sum();
        let all_low = outermost().map(|unit| unit.low).sum();
        // The kernel protects a cgroup at most as much as its ancestors, so the top gets the sum of all
        // units.
        let top = self.top.clone();
        self.put_guarantee(&top, all_min, all_low, journal)?;
        self.put_guarantee(&dirs.dir, min, low, journal)?;
        if dirs.leaf != dirs.dir {
            self.put_guarantee(&dirs.leaf, 0, own, journal)?;
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

    /// Records a file's original content in the journal, unless it is recorded already. Call this before the
    /// first write.
    fn record(&mut self, path: &Path, original: &str, journal: &mut Journal) -> Result<(), LiveError> {
        if self.recorded.contains(path) {
            return Ok(());
        }
        let entry = Entry::Knob { path: path.to_owned(), original: original.to_owned() };
        journal::record(journal, &[entry])?;
        self.recorded.insert(path.to_owned());
        Ok(())
    }

    /// Takes two things from a plan: when the next facts are due, and which units' alarms to watch.
    pub(crate) fn follow_plan(&mut self, plan: Option<&MemoryPlan>) {
        let Some(plan) = plan else { return };
        self.due = plan.next;
        let Some(alarms) = &mut self.alarms else { return };
        for (id, unit) in &self.units {
            if let Some(files) = &unit.files {
                alarms.watch(&unit.dirs.leaf, &files.events, plan.watch.contains(id));
            }
        }
    }
}

impl Unit {
    /// A unit without open files and without orders.
    fn new(dirs: UnitDirs) -> Unit {
        Unit { dirs, files: None, high: None, min: 0, low: 0 }
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
        for sample in 1..=FAILED_MAX {
            assert!(memory.means().bounds, "sample {sample}");
            assert_eq!(memory.observe(u64::from(sample) + 1, 2), None);
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

    /// The memory to divide and the part used by others, in MiB, on a machine with 10,000 MiB free and units
    /// below `base` that are charged 400 MiB, 50 of them file pages.
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

    /// In a container of 1,000 MiB others are charged 300, of which 200 are file pages that the kernel can
    /// drop.
    #[test]
    fn file_pages_of_others_in_a_container_count_as_free() {
        let dir = tempfile::tempdir().unwrap();
        bounded(dir.path(), [1_000, 700, 250]);
        assert_eq!(divided(dir.path(), dir.path()), (1_000, 100));
    }

    /// Outside the container of 1,000 MiB, others use 500 of the slice's 1,200: 700 are left. A slice as
    /// large as the machine does not count.
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
