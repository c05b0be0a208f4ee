//! One cgroup per unit, with the orders in force on it.
//!
//! A unit's order applies to its sub-units unless they have orders themselves. The values in the kernel are cached, so that
//! no value is written twice.

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

/// How long to wait for a unit's processes to freeze. A process freezes when it next runs on a CPU: well under a millisecond
/// unless that CPU is contended or the process waits for a device.
const FREEZE_WAIT: Duration = Duration::from_millis(10);

/// After how many nanoseconds a unit that has not frozen is reported.
const FREEZE_LATE_NS: Time = 1_000_000_000;

/// Files kept open per unit: cpu.stat.
pub(super) const FILES_PER_UNIT: usize = 1;

/// The CPUs on which an order lets processes run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedCpus {
    All,
    Only(CpuSet),
}

/// The cgroup of one unit.
#[derive(Debug)]
struct Group {
    home: Home,
    /// The orders in force; `None` if there never was one, so that the encloser's applies.
    confined: Option<AllowedCpus>,
    open: Option<bool>,
    /// The unit's own processes are a gang that is shut.
    shut: bool,
    /// The values in the kernel: cpuset.cpus of the directory and of the leaf `own`, cpu.weight, cpu.max.
    cpus: Option<CpuSet>,
    own_cpus: Option<CpuSet>,
    weight: Option<u32>,
    cap: Option<u64>,
    /// False after a failed write, which may still be in force.
    cap_is_sure: bool,
    /// The unit's own runnable threads at the last sample before it was stopped, if it is.
    runnable: u32,
    stopped: bool,
    /// False after a failed write, which may still be in force.
    stopped_is_sure: bool,
    /// When it was ordered to stop, if it has not frozen yet.
    stopping: Option<Time>,
    /// cpu.stat of the unit's own processes, and the CPU time before that file began to count. `None` if the cgroup could
    /// not be made.
    usage: Option<Gauge>,
    carried_ns: u64,
    /// The wanted layout, if it could not be made or only in part.
    unfinished: Option<Home>,
    /// Whether the directory and the leaf exist: making them again would lose what was written there since.
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

    /// The cgroup of the unit's own processes.
    fn leaf(&self) -> PathBuf {
        if self.home.inner { self.home.dir.join(OWN) } else { self.home.dir.clone() }
    }
}

/// The cgroups of a contract's units.
#[derive(Debug)]
pub(super) struct Groups {
    tree: Tree,
    list: Vec<Group>,
    /// The position in `list` by unit; the built-in units have none.
    index: Vec<Option<usize>>,
    /// Directories of units that have left the contract, innermost first.
    leaving: Vec<PathBuf>,
    /// Directories that could not be removed.
    stuck: Vec<PathBuf>,
}

impl Groups {
    /// No units yet.
    pub(super) fn new(tree: Tree) -> Groups {
        Groups { tree, list: Vec::new(), index: Vec::new(), leaving: Vec::new(), stuck: Vec::new() }
    }

    /// The subtree that has the units' cgroups.
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Follows the contract: makes cgroups for new units, and remembers those to remove once their processes have left.
    ///
    /// Units are identified by path. Orders on units that stay remain in force.
    pub(super) fn follow(&mut self, contract: &Contract, journal: &mut Journal, now: Time) -> Vec<LiveError> {
        let (homes, index) = homes(contract, &self.tree.top);
        let old = std::mem::take(&mut self.list).into_iter().map(|group| (group.home.unit.clone(), group));
        let mut old: BTreeMap<String, Group> = old.collect();
        let mut problems = Vec::new();
        self.index = index;
        for home in homes {
            let mut group = old.remove(&home.unit).unwrap_or_else(|| Group::new(home.clone()));
            // Needed again, so not to be removed.
            self.stuck.retain(|dir| *dir != home.dir);
            problems.extend(self.finish(&mut group, home, journal).err());
            self.list.push(group);
        }
        // A sub-unit's path sorts behind its encloser's.
        self.leaving.extend(old.into_values().rev().map(|group| group.home.dir));
        problems.extend(self.settle(now));
        problems
    }

    /// Retries cgroups that could not be made. Whether one was made.
    pub(super) fn complete(&mut self, journal: &mut Journal, now: Time) -> bool {
        let mut made = false;
        for i in 0..self.list.len() {
            let Some(home) = self.list[i].unfinished.clone() else { continue };
            let mut group = std::mem::replace(&mut self.list[i], Group::new(home.clone()));
            // The error was reported the first time.
            made |= self.finish(&mut group, home, journal).is_ok();
            self.list[i] = group;
        }
        if made {
            // A failed write here is retried with the next order or reload.
            let _ = self.settle(now);
        }
        made
    }

    /// Adapts a unit's cgroups to the contract, or notes that this has to be retried.
    fn finish(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let made = self.adapt(group, home.clone(), journal);
        group.unfinished = made.is_err().then_some(home);
        made
    }

    /// Adapts a unit's cgroups to the contract.
    fn adapt(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let split = home.inner && !group.home.inner;
        // A unit that lost its last sub-unit keeps its leaf: moving all processes again would gain nothing.
        let inner = home.inner || group.home.inner;
        group.home = Home { inner, ..home };
        match &group.usage {
            None => self.create(group, journal),
            Some(_) if split => {
                let done = self.split(group, journal);
                // Its processes stay in the directory until they can move into the leaf.
                group.home.inner = done.is_ok();
                done
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes the cgroups of a new unit.
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

    /// Moves a unit's processes into a leaf when it gets its first sub-unit, because a cgroup cannot have both processes and
    /// children with controllers.
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
        // The directory's count includes the leaf's, which the leaf reports from now on.
        let in_leaf = usage.value("usage_usec")?;
        let so_far = group.usage.replace(usage).map_or(Ok(0), |gauge| gauge.value("usage_usec"))?;
        group.carried_ns += so_far.saturating_sub(in_leaf) * 1_000;
        Ok(())
    }

    /// The cgroup of a unit's own processes; `None` for the built-in units.
    pub(super) fn leaf(&self, unit: UnitId) -> Option<PathBuf> {
        self.at(unit).map(|i| self.list[i].leaf())
    }

    /// Whether the cgroup of a unit's own processes exists.
    pub(super) fn is_made(&self, unit: UnitId) -> bool {
        self.at(unit).is_some_and(|i| self.list[i].usage.is_some())
    }

    /// Where a unit's memory is charged; `None` for the built-in units and for a cgroup that could not be made.
    pub(super) fn charged(&self, unit: UnitId, parent: Option<UnitId>) -> Option<Place> {
        let group = &self.list[self.at(unit)?];
        group.usage.as_ref()?;
        Some(Place { unit, dir: group.home.dir.clone(), leaf: group.leaf(), parent })
    }

    /// The cgroup of a unit with its sub-units; `None` for the built-in units.
    pub(super) fn dir(&self, unit: UnitId) -> Option<&Path> {
        self.at(unit).map(|i| self.list[i].home.dir.as_path())
    }

    /// CPU time of a unit's own processes, exited ones included, since its cgroup was made, in nanoseconds.
    pub(super) fn used_ns(&self, unit: UnitId) -> Result<Option<u64>, LiveError> {
        let Some(i) = self.at(unit) else { return Ok(None) };
        let group = &self.list[i];
        let counted = group.usage.as_ref().map_or(Ok(0), |gauge| gauge.value("usage_usec"))?;
        Ok(Some(group.carried_ns + counted * 1_000))
    }

    /// Records a unit's runnable threads, and returns the number to report. Stopped threads are not runnable, so for a
    /// stopped unit that is the number from before it was stopped.
    pub(super) fn wanting(&mut self, unit: UnitId, runnable: u32) -> u32 {
        let Some(i) = self.at(unit) else { return runnable };
        let group = &mut self.list[i];
        if !group.stopped {
            group.runnable = runnable;
        }
        group.runnable
    }

    /// A process joined a unit. In a stopped unit it cannot show that it is runnable, so it is assumed to be.
    pub(super) fn came(&mut self, unit: UnitId) {
        if let Some(i) = self.at(unit).filter(|i| self.list[*i].stopped) {
            self.list[i].runnable = self.list[i].runnable.max(1);
        }
    }

    /// Removes the cgroups of units that have left the contract. `send_home` moves each process that is still there.
    pub(super) fn remove_leaving(
        &mut self,
        mut send_home: impl FnMut(u32, &Tree) -> Option<LiveError>,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for dir in std::mem::take(&mut self.leaving) {
            for leaf in [dir.join(OWN), dir.clone()] {
                problems.extend(
                    processes(&leaf).into_iter().flatten().filter_map(|pid| send_home(pid, &self.tree)),
                );
            }
            if let Err(error) = remove(&dir, &self.tree.outside) {
                problems.push(error);
                self.stuck.push(dir);
            }
        }
        problems
    }

    /// Retries removals that failed. The errors were reported the first time.
    pub(super) fn remove_stuck(&mut self) {
        let outside = &self.tree.outside;
        self.stuck.retain(|dir| remove(dir, outside).is_err());
    }

    /// Confines a unit to these CPUs; `None`: to those of its encloser.
    pub(super) fn confine(&mut self, unit: UnitId, cpus: Option<&CpuSet>) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].confined = Some(cpus.map_or(AllowedCpus::All, |cpus| AllowedCpus::Only(cpus.clone())));
        self.settle_cpus(self.outermost(i))
    }

    /// Writes the CPU sets within a top-level unit that differ from the orders in force.
    fn settle_cpus(&mut self, root: usize) -> Vec<LiveError> {
        if !self.tree.has("cpuset") {
            return Vec::new();
        }
        let (cells, positions) = self.cells(root);
        let mut problems = Vec::new();
        for (cell, cpus) in writes(&cells) {
            let (i, own) = positions[cell];
            let group = &mut self.list[i];
            let dir = if own { group.home.dir.join(OWN) } else { group.home.dir.clone() };
            let now = match knob::put_cpus(&dir, cpus.as_ref()) {
                Ok(now) => now,
                Err(error) => {
                    problems.push(error);
                    // The write may be in force, or in part. An unreadable set never equals the wanted one, so it is
                    // written again.
                    let now = read(&dir.join("cpuset.cpus"));
                    now.map_or(Some(CpuSet::new()), |text| text.parse().ok().filter(|_| !text.is_empty()))
                }
            };
            *(if own { &mut group.own_cpus } else { &mut group.cpus }) = now;
        }
        problems
    }

    /// The CPU sets within a top-level unit. For each, the unit's position, and whether it is that of the leaf [`OWN`].
    fn cells(&self, root: usize) -> (Vec<Cell>, Vec<(usize, bool)>) {
        let (mut cells, mut positions) = (Vec::new(), Vec::new());
        let mut cell_of = vec![None; self.list.len()];
        for (i, group) in self.list.iter().enumerate().skip(root).filter(|(i, _)| self.outermost(*i) == root)
        {
            let parent = group.home.parent.and_then(|parent| cell_of[parent]);
            let wanted = match self.in_force(i, |group| group.confined.clone()) {
                Some(AllowedCpus::Only(cpus)) => Some(cpus),
                Some(AllowedCpus::All) | None => None,
            };
            cell_of[i] = Some(cells.len());
            let dir = cells.len();
            cells.push(Cell { parent, now: group.cpus.clone(), wanted: wanted.clone() });
            positions.push((i, false));
            if group.home.inner {
                cells.push(Cell { parent: Some(dir), now: group.own_cpus.clone(), wanted });
                positions.push((i, true));
            }
        }
        want_inner(&mut cells);
        (cells, positions)
    }

    /// Sets the weight of a unit among its siblings.
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

    /// Caps a unit, sub-units included, in millionths of a CPU; `None` removes the cap.
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

    /// Opens or closes a unit's gate: its processes run or stop.
    pub(super) fn gate(&mut self, unit: UnitId, open: bool, now: Time) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].open = Some(open);
        self.settle_gates(i, now)
    }

    /// Whether the processes of any unit are stopped.
    pub(super) fn any_stopped(&self) -> bool {
        self.list.iter().any(|group| group.stopped)
    }

    /// Freezes all stopped units again, since another program may have thawed them.
    pub(super) fn freeze_anew(&mut self, now: Time) -> Vec<LiveError> {
        for group in self.list.iter_mut().filter(|group| group.stopped) {
            group.stopped_is_sure = false;
        }
        self.settle_gates(0, now)
    }

    /// Sets the units whose own processes are a gang that is shut.
    pub(super) fn shut(&mut self, units: &BTreeSet<UnitId>, now: Time) -> Vec<LiveError> {
        let shut: BTreeSet<usize> = units.iter().filter_map(|unit| self.at(*unit)).collect();
        let mut changed = false;
        for (i, group) in self.list.iter_mut().enumerate() {
            changed |= group.shut != shut.contains(&i);
            group.shut = shut.contains(&i);
        }
        if changed { self.settle_gates(0, now) } else { Vec::new() }
    }

    /// Freezes and thaws units from position `root` on, by the orders in force.
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

    /// Reports units that do not freeze, once each.
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

    /// Applies the orders in force to units that were made after them.
    fn settle(&mut self, now: Time) -> Vec<LiveError> {
        let roots: Vec<usize> =
            (0..self.list.len()).filter(|i| self.list[*i].home.parent.is_none()).collect();
        let mut problems: Vec<LiveError> =
            roots.into_iter().flat_map(|root| self.settle_cpus(root)).collect();
        problems.extend(self.settle_gates(0, now));
        problems
    }

    /// The order on a unit, or else on the nearest unit around it.
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

/// Freezes or thaws a cgroup, and waits up to [`FREEZE_WAIT`]. Whether it took effect.
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

/// Whether every process of a cgroup is frozen.
fn is_frozen(dir: &Path) -> Result<bool, LiveError> {
    let file = dir.join("cgroup.events");
    let text = read(&file).map_err(|source| failed(&file, "read it".to_owned(), source))?;
    Ok(value_of(&text, "frozen") == Some(1))
}
