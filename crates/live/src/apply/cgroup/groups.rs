//! One cgroup per unit, with the orders in force on it.
//!
//! An order on a unit applies to its sub-units, too, unless these have orders of their own. A cgroup may be
//! made after an order was given, so the orders are remembered, and applied to cgroups that lack them. The
//! values in the kernel are cached, so that no value is written twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::Time;

use super::claim::{Tree, empty, make, processes, remove};
use super::knob;
use super::layout::{Home, OWN, homes};
use super::memory::UnitDirs;
use super::order::{Cell, set_inner_targets, writes};
use crate::LiveError;
use crate::observe::knob::{Gauge, failed, read, value_of};
use crate::undo::journal::Journal;

/// How long to wait for a unit's processes to freeze. A process freezes when it next runs on a CPU: well
/// under a millisecond unless that CPU is contended or the process waits for a device.
const FREEZE_WAIT: Duration = Duration::from_millis(10);

/// A unit that has not frozen after this time, in nanoseconds, is reported.
const FREEZE_LATE_NS: Time = 1_000_000_000;

/// The key in cpu.stat of the time for which a cap throttled a cgroup, in microseconds.
const THROTTLED: &str = "throttled_usec";

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
    /// The last order about CPUs. `None` if there was none so far; then the enclosing unit's order applies.
    confined: Option<AllowedCpus>,
    /// The last order about the gate. `None` if there was none so far; then the enclosing unit's order
    /// applies.
    open: Option<bool>,
    /// Whether the unit's own processes are a gang that is shut.
    shut: bool,
    /// The kernel's cpuset.cpus of the unit's directory; `None` if it is empty.
    cpus: Option<CpuSet>,
    /// The kernel's cpuset.cpus of the leaf [`OWN`]; `None` if it is empty.
    own_cpus: Option<CpuSet>,
    /// The kernel's cpu.weight; `None` if unknown.
    weight: Option<u32>,
    /// The kernel's cpu.max, in millionths of a CPU; `None`: no cap.
    cap: Option<u64>,
    /// Whether `cap` is certain. A write that failed may be in force nevertheless.
    is_cap_certain: bool,
    /// The number of the unit's own runnable threads at the last sample, or, if it is stopped, just before it
    /// was stopped.
    runnable: u32,
    /// Whether the unit's own processes are frozen, or freezing.
    stopped: bool,
    /// Whether `stopped` is certain. A write that failed may be in force nevertheless.
    is_stopped_certain: bool,
    /// When the unit was ordered to stop, if it has not frozen yet.
    stopping: Option<Time>,
    /// cpu.stat of the unit's own processes; `None` if the cgroup could not be made.
    usage: Option<Gauge>,
    /// The CPU time of the unit's own processes that `usage` does not count, because they were in another
    /// cgroup.
    carried_ns: u64,
    /// The layout that is still to be made, because an attempt failed as a whole or in part.
    unfinished: Option<Home>,
    /// Whether the directory exists. To make it again would lose its settings.
    dir_made: bool,
    /// Whether the leaf [`OWN`] exists.
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
            is_cap_certain: true,
            runnable: 0,
            stopped: false,
            is_stopped_certain: true,
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
    /// The position in `list` by unit; `None` for the built-in units.
    index: Vec<Option<usize>>,
    /// Directories to remove, because their units have left the contract; innermost first.
    leaving: Vec<PathBuf>,
    /// Directories whose removal failed, to be retried.
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

    /// Adopts a new contract: makes cgroups for new units. The cgroups of units that have left the contract
    /// stay until [`Groups::remove_leaving`]. A unit is the same in both contracts if it has the same path;
    /// orders on such units remain in force.
    pub(super) fn follow(&mut self, contract: &Contract, journal: &mut Journal, now: Time) -> Vec<LiveError> {
        let (homes, index) = homes(contract, &self.tree.top);
        let former = std::mem::take(&mut self.list);
        let mut former: BTreeMap<String, Group> =
            former.into_iter().map(|group| (group.home.unit.clone(), group)).collect();
        let mut problems = Vec::new();
        self.index = index;
        for home in homes {
            let mut group = former.remove(&home.unit).unwrap_or_else(|| Group::new(home.clone()));
            // A unit that left and came back needs its directory again.
            self.stuck.retain(|dir| *dir != home.dir);
            problems.extend(self.try_to_adapt(&mut group, home, journal).err());
            self.list.push(group);
        }
        // Reversed, since the path of a sub-unit sorts behind that of its parent.
        self.leaving.extend(former.into_values().rev().map(|group| group.home.dir));
        problems.extend(self.apply_orders(now));
        problems
    }

    /// Retries to make the cgroups that could not be made. Returns whether a unit's cgroups are complete now.
    pub(super) fn complete(&mut self, journal: &mut Journal, now: Time) -> bool {
        let mut made = false;
        for i in 0..self.list.len() {
            let Some(home) = self.list[i].unfinished.clone() else { continue };
            let mut group = std::mem::replace(&mut self.list[i], Group::new(home.clone()));
            // The error was reported the first time.
            made |= self.try_to_adapt(&mut group, home, journal).is_ok();
            self.list[i] = group;
        }
        if made {
            // A failed write here is retried with the next order or reload.
            let _ = self.apply_orders(now);
        }
        made
    }

    /// Adapts a unit's cgroups to the layout `home`. If this fails, notes that it has to be retried.
    fn try_to_adapt(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let result = self.adapt(group, home.clone(), journal);
        group.unfinished = result.is_err().then_some(home);
        result
    }

    /// Adapts a unit's cgroups to the layout `home`.
    fn adapt(&self, group: &mut Group, home: Home, journal: &mut Journal) -> Result<(), LiveError> {
        let needs_leaf = home.inner && !group.home.inner;
        // A unit that lost its last sub-unit keeps its leaf: to move all processes again would gain nothing.
        let inner = home.inner || group.home.inner;
        group.home = Home { inner, ..home };
        match &group.usage {
            None => self.create(group, journal),
            Some(_) if needs_leaf => {
                let result = self.split(group, journal);
                // After a failure, the unit's processes stay in the directory until they can move into the
                // leaf.
                group.home.inner = result.is_ok();
                result
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

    /// Moves a unit's processes into a leaf when it gets its first sub-unit, because a cgroup cannot have
    /// both processes and children with controllers.
    fn split(&self, group: &mut Group, journal: &mut Journal) -> Result<(), LiveError> {
        let leaf = group.leaf();
        make(&leaf, &group.home.dir, journal)?;
        // A stopped unit stays stopped: its processes move from one frozen cgroup to another.
        if group.stopped {
            freeze(&leaf, true)?;
        }
        empty(&group.home.dir, &leaf, |_| Ok(()))?;
        if group.stopped {
            freeze(&group.home.dir, false)?;
        }
        self.tree.open_up(&group.home.dir)?;
        let leaf_usage = Gauge::open(&leaf.join("cpu.stat"))?;
        // The directory's count includes the leaf's, so only the difference is carried over.
        let leaf_us = leaf_usage.value("usage_usec")?;
        let dir_us = group.usage.replace(leaf_usage).map_or(Ok(0), |gauge| gauge.value("usage_usec"))?;
        group.carried_ns += dir_us.saturating_sub(leaf_us) * 1_000;
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

    /// The cgroups to which a unit's memory is charged; `None` for the built-in units, and if the cgroup
    /// could not be made.
    pub(super) fn charged(&self, unit: UnitId, parent: Option<UnitId>) -> Option<UnitDirs> {
        let group = &self.list[self.at(unit)?];
        group.usage.as_ref()?;
        Some(UnitDirs { unit, dir: group.home.dir.clone(), leaf: group.leaf(), parent })
    }

    /// The cgroup of a unit with its sub-units; `None` for the built-in units.
    pub(super) fn dir(&self, unit: UnitId) -> Option<&Path> {
        self.at(unit).map(|i| self.list[i].home.dir.as_path())
    }

    /// CPU time of a unit's own processes since its cgroup was made, in nanoseconds, including that of exited
    /// processes; and the time for which the unit's cap throttled the unit, sub-units included, summed over
    /// CPUs. `None` for the built-in units.
    pub(super) fn used_and_limited_ns(&self, unit: UnitId) -> Result<Option<(u64, u64)>, LiveError> {
        let Some(i) = self.at(unit) else { return Ok(None) };
        let group = &self.list[i];
        let Some(usage) = &group.usage else { return Ok(Some((group.carried_ns, 0))) };
        let [used_us, mut limited_us] = usage.values(["usage_usec", THROTTLED])?;
        // The cap is in the directory that has the leaf.
        if group.home.inner && group.cap.is_some() {
            limited_us = Gauge::open(&group.home.dir.join("cpu.stat"))?.value(THROTTLED)?;
        }
        Ok(Some((group.carried_ns + used_us * 1_000, limited_us * 1_000)))
    }

    /// Whether a cap on CPU time is set on a unit's cgroup.
    pub(super) fn is_capped(&self, unit: UnitId) -> bool {
        self.at(unit).is_some_and(|i| self.list[i].cap.is_some())
    }

    /// Records the number of a unit's runnable threads, and returns the number to report. Stopped threads are
    /// not runnable, so for a stopped unit the number from before it was stopped is reported.
    pub(super) fn wanting(&mut self, unit: UnitId, runnable: u32) -> u32 {
        let Some(i) = self.at(unit) else { return runnable };
        let group = &mut self.list[i];
        if !group.stopped {
            group.runnable = runnable;
        }
        group.runnable
    }

    /// Notes that a process joined a unit. If the unit is stopped, the process cannot show that it is
    /// runnable, so the unit is assumed to have at least one runnable thread.
    pub(super) fn note_arrival(&mut self, unit: UnitId) {
        if let Some(i) = self.at(unit).filter(|i| self.list[*i].stopped) {
            self.list[i].runnable = self.list[i].runnable.max(1);
        }
    }

    /// Removes the cgroups of units that have left the contract. Calls `send_home` for each process that is
    /// still in such a cgroup, to move the process out.
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

    /// Retries the removals that failed. Their errors were reported the first time.
    pub(super) fn remove_stuck(&mut self) {
        let outside = &self.tree.outside;
        self.stuck.retain(|dir| remove(dir, outside).is_err());
    }

    /// Confines a unit to these CPUs; `None`: to the CPUs of the unit around it.
    pub(super) fn confine(&mut self, unit: UnitId, cpus: Option<&CpuSet>) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].confined = Some(cpus.map_or(AllowedCpus::All, |cpus| AllowedCpus::Only(cpus.clone())));
        self.apply_cpus(self.outermost(i))
    }

    /// Writes the CPU sets within an outermost unit, at position `root`, that differ from the orders in
    /// force.
    fn apply_cpus(&mut self, root: usize) -> Vec<LiveError> {
        if !self.tree.has("cpuset") {
            return Vec::new();
        }
        let (cells, positions) = self.cells(root);
        let mut problems = Vec::new();
        for (cell, cpus) in writes(&cells) {
            let (i, is_leaf) = positions[cell];
            let group = &mut self.list[i];
            let dir = if is_leaf { group.home.dir.join(OWN) } else { group.home.dir.clone() };
            let in_kernel = match knob::put_cpus(&dir, cpus.as_ref()) {
                Ok(in_kernel) => in_kernel,
                Err(error) => {
                    problems.push(error);
                    // The write may be in force as a whole or in part. A set that cannot be read counts as
                    // the empty set. Since no order is for the empty set, the next order differs and is
                    // written.
                    let text = read(&dir.join("cpuset.cpus"));
                    text.map_or(Some(CpuSet::new()), |text| text.parse().ok().filter(|_| !text.is_empty()))
                }
            };
            *(if is_leaf { &mut group.own_cpus } else { &mut group.cpus }) = in_kernel;
        }
        problems
    }

    /// The CPU sets within an outermost unit, at position `root`, as [`Cell`]s. For each cell, the position
    /// of the unit, and whether the cell is the leaf [`OWN`] of this unit.
    fn cells(&self, root: usize) -> (Vec<Cell>, Vec<(usize, bool)>) {
        let (mut cells, mut positions) = (Vec::new(), Vec::new());
        let mut cell_of = vec![None; self.list.len()];
        for (i, group) in self.list.iter().enumerate().skip(root).filter(|(i, _)| self.outermost(*i) == root)
        {
            let parent = group.home.parent.and_then(|parent| cell_of[parent]);
            let target = match self.in_force(i, |group| group.confined.clone()) {
                Some(AllowedCpus::Only(cpus)) => Some(cpus),
                Some(AllowedCpus::All) | None => None,
            };
            let dir_cell = cells.len();
            cell_of[i] = Some(dir_cell);
            cells.push(Cell { parent, current: group.cpus.clone(), target: target.clone() });
            positions.push((i, false));
            if group.home.inner {
                cells.push(Cell { parent: Some(dir_cell), current: group.own_cpus.clone(), target });
                positions.push((i, true));
            }
        }
        set_inner_targets(&mut cells);
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
        let result = knob::put(&group.home.dir.join("cpu.weight"), &weight.to_string());
        group.weight = result.is_ok().then_some(weight);
        result.err().into_iter().collect()
    }

    /// Caps a unit, sub-units included, in millionths of a CPU; `None` removes the cap.
    pub(super) fn cap(&mut self, unit: UnitId, micro_cpus: Option<u64>) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        let group = &mut self.list[i];
        if group.cap == micro_cpus && group.is_cap_certain {
            return Vec::new();
        }
        let result = knob::put(&group.home.dir.join("cpu.max"), &knob::cpu_max(micro_cpus));
        group.is_cap_certain = result.is_ok();
        if result.is_ok() {
            group.cap = micro_cpus;
        }
        result.err().into_iter().collect()
    }

    /// Opens or closes a unit's gate: the processes of the unit and its sub-units run or stop.
    pub(super) fn gate(&mut self, unit: UnitId, open: bool, now: Time) -> Vec<LiveError> {
        let Some(i) = self.at(unit) else { return Vec::new() };
        self.list[i].open = Some(open);
        self.apply_gates(i, now)
    }

    /// Whether the processes of any unit are stopped.
    pub(super) fn any_stopped(&self) -> bool {
        self.list.iter().any(|group| group.stopped)
    }

    /// Freezes all stopped units again, since another program may have thawed them.
    pub(super) fn freeze_anew(&mut self, now: Time) -> Vec<LiveError> {
        for group in self.list.iter_mut().filter(|group| group.stopped) {
            group.is_stopped_certain = false;
        }
        self.apply_gates(0, now)
    }

    /// Stops the own processes of exactly these units, because they are a gang that is shut. Other units that
    /// were stopped for that reason continue.
    pub(super) fn shut(&mut self, units: &BTreeSet<UnitId>, now: Time) -> Vec<LiveError> {
        let shut: BTreeSet<usize> = units.iter().filter_map(|unit| self.at(*unit)).collect();
        let mut changed = false;
        for (i, group) in self.list.iter_mut().enumerate() {
            changed |= group.shut != shut.contains(&i);
            group.shut = shut.contains(&i);
        }
        if changed { self.apply_gates(0, now) } else { Vec::new() }
    }

    /// Freezes and thaws the units from position `first` on, as ordered. Sub-units come after their parents
    /// in the list, so an order on a unit concerns only that unit and later ones.
    fn apply_gates(&mut self, first: usize, now: Time) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for i in first..self.list.len() {
            let open = self.in_force(i, |group| group.open).unwrap_or(true) && !self.list[i].shut;
            let group = &mut self.list[i];
            if open != group.stopped && group.is_stopped_certain {
                continue;
            }
            let result = freeze(&group.leaf(), !open);
            group.is_stopped_certain = result.is_ok();
            match result {
                Ok(in_effect) => {
                    group.stopped = !open;
                    group.stopping = (!in_effect && !open).then_some(now);
                }
                Err(error) => problems.push(error),
            }
        }
        problems
    }

    /// Returns an error for each unit that has not frozen in time, once.
    pub(super) fn find_unstopped(&mut self, now: Time) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for group in &mut self.list {
            let Some(since) = group.stopping else { continue };
            let leaf = group.leaf();
            let frozen = is_frozen(&leaf);
            let is_late = now >= since.saturating_add(FREEZE_LATE_NS);
            if is_late || !matches!(frozen, Ok(false)) {
                group.stopping = None;
            }
            match frozen {
                Err(error) => problems.push(error),
                Ok(false) if is_late => problems.push(LiveError::NotInForce {
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

    /// Applies the orders in force to cgroups that were made after the orders were given.
    fn apply_orders(&mut self, now: Time) -> Vec<LiveError> {
        let roots: Vec<usize> =
            (0..self.list.len()).filter(|i| self.list[*i].home.parent.is_none()).collect();
        let mut problems: Vec<LiveError> = roots.into_iter().flat_map(|root| self.apply_cpus(root)).collect();
        problems.extend(self.apply_gates(0, now));
        problems
    }

    /// The order in force on the unit at position `i`: its own, or else that of the nearest unit around it.
    fn in_force<T>(&self, mut i: usize, order_of: impl Fn(&Group) -> Option<T>) -> Option<T> {
        loop {
            match (order_of(&self.list[i]), self.list[i].home.parent) {
                (Some(order), _) => return Some(order),
                (None, Some(parent)) => i = parent,
                (None, None) => return None,
            }
        }
    }

    /// The position of the outermost unit around the unit at position `i`.
    fn outermost(&self, mut i: usize) -> usize {
        while let Some(parent) = self.list[i].home.parent {
            i = parent;
        }
        i
    }

    /// A unit's position in the list; `None` for the built-in units.
    fn at(&self, unit: UnitId) -> Option<usize> {
        self.index.get(unit.index()).copied().flatten()
    }
}

/// Freezes or thaws a cgroup, and waits up to [`FREEZE_WAIT`]. Returns whether this took effect by then.
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
