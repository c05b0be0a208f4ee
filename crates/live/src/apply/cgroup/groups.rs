//! One cgroup per unit, with the orders in force on it.
//!
//! Orders reach a unit's sub-units unless these have orders of their own. The values that the kernel holds are
//! remembered, so that nothing is written twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::Time;

use super::claim::{Tree, empty, make, processes, remove};
use super::knob;
use super::layout::{Home, OWN, homes};
use super::memory::Place;
use super::order::{Cell, want_inner, writes};
use crate::LiveError;
use crate::observe::knob::{Gauge, failed, read, value_of};
use crate::undo::journal::Journal;

/// How long to wait for a unit's processes to stop. A process stops when it next runs on a CPU, which takes well under a
/// millisecond unless many others want that CPU, or it waits for a device.
const FREEZE_WAIT: Duration = Duration::from_millis(10);

/// After how long a unit that still has not stopped is reported, in nanoseconds.
const FREEZE_LATE_NS: Time = 1_000_000_000;

/// Files that are kept open for every unit: cpu.stat.
pub(super) const FILES_PER_UNIT: usize = 1;

/// Where an order lets processes run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Where {
    Anywhere,
    On(CpuSet),
}

/// The cgroup of one unit.
#[derive(Debug)]
struct Group {
    home: Home,
    /// The orders in force; `None` where there never was one, so that the encloser's counts.
    confined: Option<Where>,
    open: Option<bool>,
    /// The unit's own processes are a gang that is shut.
    shut: bool,
    /// What the kernel holds: cpuset.cpus of the directory and of the leaf `own`, cpu.weight, cpu.max.
    cpus: Option<CpuSet>,
    own_cpus: Option<CpuSet>,
    weight: Option<u32>,
    cap: Option<u64>,
    /// Whether that is what it holds: not after a write that went wrong, which may be in force.
    cap_is_sure: bool,
    /// Threads of the unit itself that wanted a CPU at the last look, or when it was stopped.
    runnable: u32,
    stopped: bool,
    /// Whether it is so: not after an order that went wrong, which may be in force.
    stopped_is_sure: bool,
    /// Since when it is to be stopped and is not yet.
    stopping: Option<Time>,
    /// cpu.stat of the unit's own processes, and what they used before that file began to count.
    /// `None` if the cgroup could not be made.
    usage: Option<Gauge>,
    carried_ns: u64,
    /// What it is to be, where that could not be made, or in part only.
    unfinished: Option<Home>,
    /// Whether the directory, and the leaf, were made: with what is written there since, they are not made anew.
    dir_made: bool,
    leaf_made: bool,
}

impl Group {
    /// A unit without cgroups yet and without orders.
    fn new(home: Home) -> Group {
        Group {
            home,
            confined: None,
            open: None,
            shut: false,
            cpus: None,
            own_cpus: None,
            weight: None,
            cap: None,
            cap_is_sure: true,
            runnable: 0,
            stopped: false,
            stopped_is_sure: true,
            stopping: None,
            usage: None,
            carried_ns: 0,
            unfinished: None,
            dir_made: false,
            leaf_made: false,
        }
    }

    /// Where the unit's own processes stand.
    fn leaf(&self) -> PathBuf {
        if self.home.inner { self.home.dir.join(OWN) } else { self.home.dir.clone() }
    }
}

/// The cgroups of a contract's units.
#[derive(Debug)]
pub(super) struct Groups {
    tree: Tree,
    list: Vec<Group>,
    /// By unit, the position in `list`; common parts have none.
    index: Vec<Option<usize>>,
    /// Directories of units that the contract has no more, innermost first.
    leaving: Vec<PathBuf>,
    /// Those of them that could not be removed.
    stuck: Vec<PathBuf>,
}

impl Groups {
    /// No unit yet.
    pub(super) fn new(tree: Tree) -> Groups {
        Groups { tree, list: Vec::new(), index: Vec::new(), leaving: Vec::new(), stuck: Vec::new() }
    }

    /// The subtree they are in.
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Follows the contract: makes what is new, and remembers what is to go once its processes have left.
    ///
    /// Units are known by their path; what was ordered for a unit that stays, stays in force.
    pub(super) fn follow(&mut self, contract: &Contract, journal: &mut Journal, now: Time) -> Vec<LiveError> {
        let (homes, index) = homes(contract, &self.tree.top);
        let old = std::mem::take(&mut self.list).into_iter().map(|group| (group.home.unit.clone(), group));
        let mut old: BTreeMap<String, Group> = old.collect();
        let mut problems = Vec::new();
        self.index = index;
        for home in homes {
            let mut group = old.remove(&home.unit).unwrap_or_else(|| Group::new(home.clone()));
            // It is not to be removed any more.
            self.stuck.retain(|dir| *dir != home.dir);
            problems.extend(self.finish(&mut group, home, journal).err());
            self.list.push(group);
        }
        // A sub-unit's path sorts behind its encloser's.
        self.leaving.extend(old.into_values().rev().map(|group| group.home.dir));
        problems.extend(self.settle(now));
        problems
    }

    /// Tries once more to make what could not be made. Whether something was.
    pub(super) fn complete(&mut self, journal: &mut Journal, now: Time) -> bool {
        let mut made = false;
        for i in 0..self.list.len() {
            let Some(home) = self.list[i].unfinished.clone() else { continue };
            let mut group = std::mem::replace(&mut self.list[i], Group::new(home.clone()));
            // Why not was said the first time.
            made |= self.finish(&mut group, home, journal).is_ok();
            self.list[i] = group;
        }
        if made {
            // What is ordered and cannot be written now is ordered anew by who sees that it is not in force.
            let _ = self.settle(now);
        }
        made
    }

    /// Makes the cgroups of one unit what its place in the contract asks for, now or later.
    fn finish(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let made = self.adapt(group, home.clone(), journal);
        group.unfinished = made.is_err().then_some(home);
        made
    }

    /// Makes the cgroups of one unit what its place in the contract asks for.
    fn adapt(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let split = home.inner && !group.home.inner;
        // A unit that has no sub-units any more keeps its leaf: nothing is gained by moving everybody once more.
        let inner = home.inner || group.home.inner;
        group.home = Home { inner, ..home };
        match &group.usage {
            None => self.create(group, journal),
            Some(_) if split => {
                let done = self.split(group, journal);
                // Its processes stay beside its sub-units until they can step into the leaf.
                group.home.inner = done.is_ok();
                done
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes the cgroups of a unit that is new.
    fn create(&self, group: &mut Group, journal: &mut Journal) -> Result<(), LiveError> {
        if !group.dir_made {
            make(&group.home.dir, &self.tree.outside, journal)?;
            group.dir_made = true;
        }
        if group.home.inner {
            if !group.leaf_made {
                make(&group.leaf(), &self.tree.outside, journal)?;
                group.leaf_made = true;
            }
            self.tree.open_up(&group.home.dir)?;
        }
        group.usage = Some(Gauge::open(&group.leaf().join("cpu.stat"))?);
        Ok(())
    }

    /// A unit gets its first sub-unit: its processes step into a leaf of their own, because processes cannot stand
    /// beside cgroups with controllers.
    fn split(&self, group: &mut Group, journal: &mut Journal) -> Result<(), LiveError> {
        let own = group.leaf();
        make(&own, &group.home.dir, journal)?;
        if group.stopped {
            freeze(&own, true)?;
        }
        empty(&group.home.dir, &own, |_| Ok(()))?;
        if group.stopped {
            freeze(&group.home.dir, false)?;
        }
        self.tree.open_up(&group.home.dir)?;
        let usage = Gauge::open(&own.join("cpu.stat"))?;
        // The directory's count includes the new leaf's: what the leaf will report itself is not carried over.
        let in_leaf = usage.value("usage_usec")?;
        let so_far = group.usage.replace(usage).map_or(Ok(0), |gauge| gauge.value("usage_usec"))?;
        group.carried_ns += so_far.saturating_sub(in_leaf) * 1_000;
        Ok(())
    }

    /// Where a unit's own processes belong; `None` for the common parts.
    pub(super) fn leaf(&self, unit: UnitId) -> Option<PathBuf> {
        self.at(unit).map(|i| self.list[i].leaf())
    }

    /// Whether the cgroup of a unit's own processes could be made.
    pub(super) fn is_made(&self, unit: UnitId) -> bool {
        self.at(unit).is_some_and(|i| self.list[i].usage.is_some())
    }

    /// Where a unit's memory is charged; `None` for the common parts, and where the cgroup could not be made.
    pub(super) fn charged(&self, unit: UnitId, parent: Option<UnitId>) -> Option<Place> {
        let group = &self.list[self.at(unit)?];
        group.usage.as_ref()?;
        Some(Place { unit, dir: group.home.dir.clone(), leaf: group.leaf(), parent })
    }

    /// The cgroup of a unit with all that is in it; `None` for the common parts.
    pub(super) fn dir(&self, unit: UnitId) -> Option<&Path> {
        self.at(unit).map(|i| self.list[i].home.dir.as_path())
    }

    /// CPU time of a unit's own processes since its cgroup was made, those that exited included, in nanoseconds.
    pub(super) fn used_ns(&self, unit: UnitId) -> Result<Option<u64>, LiveError> {
        let Some(i) = self.at(unit) else { return Ok(None) };
        let group = &self.list[i];
        let counted = group.usage.as_ref().map_or(Ok(0), |gauge| gauge.value("usage_usec"))?;
        Ok(Some(group.carried_ns + counted * 1_000))
    }

    /// Takes note of how many of a unit's threads want a CPU, and returns what to believe: stopped processes look as if
    /// they slept, so for them it is what they wanted when they were stopped.
    pub(super) fn wanting(&mut self, unit: UnitId, runnable: u32) -> u32 {
        let Some(i) = self.at(unit) else { return runnable };
        let group = &mut self.list[i];
        if !group.stopped {
            group.runnable = runnable;
        }
        group.runnable
    }

    /// A process came to a unit: if that is stopped, it cannot show that it wants to run.
    pub(super) fn came(&mut self, unit: UnitId) {
        if let Some(i) = self.at(unit).filter(|i| self.list[*i].stopped) {
            self.list[i].runnable = self.list[i].runnable.max(1);
        }
    }

    /// Removes what belonged to units that are gone. `home` takes in the processes that are still there.
    pub(super) fn remove_leaving(
        &mut self,
        mut home: impl FnMut(u32, &Tree) -> Option<LiveError>,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for dir in std::mem::take(&mut self.leaving) {
            for leaf in [dir.join(OWN), dir.clone()] {
                problems
                    .extend(processes(&leaf).into_iter().flatten().filter_map(|pid| home(pid, &self.tree)));
            }
            if let Err(error) = remove(&dir, &self.tree.outside) {
                problems.push(error);
                self.stuck.push(dir);
            }
        }
        problems
    }

    /// Tries once more to remove what could not be removed. Why not was said the first time.
    pub(super) fn remove_stuck(&mut self) {
        let outside = &self.tree.outside;
        self.stuck.retain(|dir| remove(dir, outside).is_err());
    }

    /// The order that a unit's processes run on these CPUs.
    pub(super) fn confine(&mut self, unit: UnitId, cpus: Option<&CpuSet>) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].confined = Some(cpus.map_or(Where::Anywhere, |cpus| Where::On(cpus.clone())));
        self.settle_cpus(self.outermost(i))
    }

    /// Writes CPU sets until everything within a top-level unit has what is in force.
    fn settle_cpus(&mut self, root: usize) -> Vec<LiveError> {
        if !self.tree.has("cpuset") {
            return Vec::new();
        }
        let (cells, places) = self.cells(root);
        let mut problems = Vec::new();
        for (cell, cpus) in writes(&cells) {
            let (i, own) = places[cell];
            let group = &mut self.list[i];
            let dir = if own { group.home.dir.join(OWN) } else { group.home.dir.clone() };
            let now = match knob::put_cpus(&dir, cpus.as_ref()) {
                Ok(now) => now,
                Err(error) => {
                    problems.push(error);
                    // It may be in force all the same, or in part. Where even that cannot be seen, nothing is as wanted.
                    let now = read(&dir.join("cpuset.cpus"));
                    now.map_or(Some(CpuSet::new()), |text| text.parse().ok().filter(|_| !text.is_empty()))
                }
            };
            *(if own { &mut group.own_cpus } else { &mut group.cpus }) = now;
        }
        problems
    }

    /// The CPU sets within a top-level unit, and whose each is: the unit, and whether it is the leaf of its own.
    fn cells(&self, root: usize) -> (Vec<Cell>, Vec<(usize, bool)>) {
        let (mut cells, mut places) = (Vec::new(), Vec::new());
        let mut cell_of = vec![None; self.list.len()];
        for (i, group) in self.list.iter().enumerate().skip(root).filter(|(i, _)| self.outermost(*i) == root)
        {
            let parent = group.home.parent.and_then(|parent| cell_of[parent]);
            let wanted = match self.in_force(i, |group| group.confined.clone()) {
                Some(Where::On(cpus)) => Some(cpus),
                Some(Where::Anywhere) | None => None,
            };
            cell_of[i] = Some(cells.len());
            let dir = cells.len();
            cells.push(Cell { parent, now: group.cpus.clone(), wanted: wanted.clone() });
            places.push((i, false));
            if group.home.inner {
                cells.push(Cell { parent: Some(dir), now: group.own_cpus.clone(), wanted });
                places.push((i, true));
            }
        }
        want_inner(&mut cells);
        (cells, places)
    }

    /// The order of the weight of a unit against its siblings.
    pub(super) fn weigh(&mut self, unit: UnitId, weight: u32) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        let group = &mut self.list[i];
        let weight = weight.clamp(1, 10_000);
        if group.weight == Some(weight) {
            return Vec::new();
        }
        let put = knob::put(&group.home.dir.join("cpu.weight"), &weight.to_string());
        group.weight = put.is_ok().then_some(weight);
        put.err().into_iter().collect()
    }

    /// The order that a unit, sub-units included, uses no more than so many millionths of a CPU.
    pub(super) fn cap(&mut self, unit: UnitId, micro_cpus: Option<u64>) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        let group = &mut self.list[i];
        if group.cap == micro_cpus && group.cap_is_sure {
            return Vec::new();
        }
        let put = knob::put(&group.home.dir.join("cpu.max"), &knob::cpu_max(micro_cpus));
        group.cap_is_sure = put.is_ok();
        if put.is_ok() {
            group.cap = micro_cpus;
        }
        put.err().into_iter().collect()
    }

    /// The order that a unit's processes run, or stop.
    pub(super) fn gate(&mut self, unit: UnitId, open: bool, now: Time) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].open = Some(open);
        self.settle_gates(i, now)
    }

    /// Whether the processes of any unit are stopped.
    pub(super) fn any_stopped(&self) -> bool {
        self.list.iter().any(|group| group.stopped)
    }

    /// Freezes anew what is to be stopped: others may have thawed it.
    pub(super) fn freeze_anew(&mut self, now: Time) -> Vec<LiveError> {
        for group in self.list.iter_mut().filter(|group| group.stopped) {
            group.stopped_is_sure = false;
        }
        self.settle_gates(0, now)
    }

    /// The units whose own processes are gangs that are shut, and no others.
    pub(super) fn shut(&mut self, units: &BTreeSet<UnitId>, now: Time) -> Vec<LiveError> {
        let shut: BTreeSet<usize> = units.iter().filter_map(|unit| self.at(*unit)).collect();
        let mut changed = false;
        for (i, group) in self.list.iter_mut().enumerate() {
            changed |= group.shut != shut.contains(&i);
            group.shut = shut.contains(&i);
        }
        if changed { self.settle_gates(0, now) } else { Vec::new() }
    }

    /// Stops and continues until everything in a unit is as is in force.
    fn settle_gates(&mut self, root: usize, now: Time) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for i in root..self.list.len() {
            let open = self.in_force(i, |group| group.open).unwrap_or(true) && !self.list[i].shut;
            let group = &mut self.list[i];
            if open != group.stopped && group.stopped_is_sure {
                continue;
            }
            let frozen = freeze(&group.leaf(), !open);
            group.stopped_is_sure = frozen.is_ok();
            match frozen {
                Ok(done) => {
                    group.stopped = !open;
                    group.stopping = (!done && !open).then_some(now);
                }
                Err(error) => problems.push(error),
            }
        }
        problems
    }

    /// Reports units that do not stop, once each.
    pub(super) fn find_unstopped(&mut self, now: Time) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for group in &mut self.list {
            let Some(since) = group.stopping else { continue };
            let leaf = group.leaf();
            let frozen = is_frozen(&leaf);
            let late = now >= since.saturating_add(FREEZE_LATE_NS);
            if late || !matches!(frozen, Ok(false)) {
                group.stopping = None;
            }
            match frozen {
                Err(error) => problems.push(error),
                Ok(false) if late => problems.push(LiveError::NotInForce {
                    path: leaf.join("cgroup.events"),
                    wrote: "frozen 1".to_owned(),
                    read: "frozen 0".to_owned(),
                    remedy: "; a process of the unit waits for a device or a file server (state D in `ps -o \
                             pid,stat,wchan`) and stops when that answers: kill it if it never does"
                        .to_owned(),
                }),
                Ok(_) => {}
            }
        }
        problems
    }

    /// Gives units made since the last order what is in force around them.
    fn settle(&mut self, now: Time) -> Vec<LiveError> {
        let roots: Vec<usize> =
            (0..self.list.len()).filter(|i| self.list[*i].home.parent.is_none()).collect();
        let mut problems: Vec<LiveError> =
            roots.into_iter().flat_map(|root| self.settle_cpus(root)).collect();
        problems.extend(self.settle_gates(0, now));
        problems
    }

    /// What is ordered for a unit, or else for the nearest unit around it.
    fn in_force<T>(&self, mut i: usize, order: impl Fn(&Group) -> Option<T>) -> Option<T> {
        loop {
            match (order(&self.list[i]), self.list[i].home.parent) {
                (Some(found), _) => return Some(found),
                (None, Some(parent)) => i = parent,
                (None, None) => return None,
            }
        }
    }

    fn outermost(&self, mut i: usize) -> usize {
        while let Some(parent) = self.list[i].home.parent {
            i = parent;
        }
        i
    }

    fn at(&self, unit: UnitId) -> Option<usize> {
        self.index.get(unit.index()).copied().flatten()
    }
}

/// Stops or continues the processes of a cgroup, and waits a little. Whether they are as ordered by then.
fn freeze(dir: &Path, stop: bool) -> Result<bool, LiveError> {
    knob::put(&dir.join("cgroup.freeze"), if stop { "1" } else { "0" })?;
    let started = Instant::now();
    loop {
        if is_frozen(dir)? == stop {
            return Ok(true);
        }
        if started.elapsed() >= FREEZE_WAIT {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whether every process of a cgroup has stopped.
fn is_frozen(dir: &Path) -> Result<bool, LiveError> {
    let file = dir.join("cgroup.events");
    let text = read(&file).map_err(|source| failed(&file, "read it".to_owned(), source))?;
    Ok(value_of(&text, "frozen") == Some(1))
}
