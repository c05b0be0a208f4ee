//! Units held in foreign groups: control groups of other managers, where the units' processes already are.
//!
//! The roster finds these groups
//! ([`Roster::foreign_groups`](crate::observe::roster::Roster::foreign_groups)), and the plan has the orders
//! for them ([`PartOrder`]). This module reads and writes their files.
//!
//! Manager's values: the content of a file before our first write is the manager's setting. Our writes must
//! stay within it, so the policy sees it as [`GroupBounds`]. It is recorded in the journal, and restored when
//! no unit is held in the group any more. A group's memory protection is also added to the protection of each
//! of its ancestors (`around`).
//!
//! Groups of systemd: systemd gets our values as properties ([`systemd`](super::systemd)), and enables the
//! controllers. In groups of other managers, we enable missing controllers in the ancestors.
//!
//! systemd applies a property a moment later, and then rewrites all files of the group with the values that
//! it knows. This is a race with memory bounds: if an owner calls memory back in between, systemd lowers the
//! bound that has just grown, and the kernel reclaims the owner's pages. So systemd gets memory values only
//! after they were stable for five seconds. Before a bound grows beyond the value that systemd has, systemd
//! is sent the manager's own bound. After systemd has written the files, our values are written again. CPUs
//! and weights that systemd writes may be stale as well, so they are checked twice a second.
//!
//! Groups of other managers: their files are polled every five seconds, and read before each write. Content
//! that we did not write becomes the manager's value.
//!
//! A group may be removed and made again under the same path, as when a service restarts. The inode tells the
//! two groups apart, and the policy gets a new [`GroupId`] for the second one. systemd applies the properties
//! that it has to the new group.
//!
//! Limits: `cgroup.freeze` of a foreign group is never written.

mod around;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::plan::PartOrder;
use commonhold_policy::{DiskUse, GroupBounds, GroupFacts, GroupId, MS, Time};

use super::disk::Disks;
use super::knob;
use super::memory::{Memory, Pager};
use super::systemd::Properties;
use crate::LiveError;
use crate::host;
use crate::observe::bounds;
use crate::observe::caps::CAP;
use crate::observe::knob::{Gauge, failed, read};
use crate::systemd::{Property, UNSET, Value, unit_of};
use crate::undo::journal::{Entry, Journal, record};

/// The controllers to enable for foreign groups.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "io", "memory"];

/// The file with a group's CPU set.
const CPUS: &str = "cpuset.cpus";
/// The file with a group's CPU weight.
const WEIGHT: &str = "cpu.weight";
/// The file with a group's memory bound.
const HIGH: &str = "memory.high";
/// The memory files that are written here.
const MEMORY_FILES: [&str; 3] = [HIGH, "memory.low", "memory.min"];

/// How long a group's memory orders must be stable before systemd gets them.
const REST_NS: Time = 5_000 * MS;

/// How often to poll files for values of managers other than systemd.
const POLL_NS: Time = 5_000 * MS;

/// How often to check whether systemd has overwritten CPUs and weights with stale values.
const OVERWRITTEN_POLL_NS: Time = 500 * MS;

/// The maximum length of [`ForeignGroup::former_highs`].
const FORMER_HIGHS_MAX: usize = 64;

/// The rates for reading and for writing, in bytes per second.
type Rates = (Option<u64>, Option<u64>);

/// A control group of another manager that a unit is held in.
#[derive(Debug)]
struct ForeignGroup {
    id: GroupId,
    unit: UnitId,
    /// The unit's path, which identifies it across reloads.
    path: String,
    /// The control group's path, as /proc shows it.
    cgroup: String,
    dir: PathBuf,
    /// The directory's inode; `None` if the directory did not exist when it was first looked up.
    inode: Option<u64>,
    /// The systemd unit that owns the group; `None` if another manager owns the group.
    systemd_unit: Option<String>,
    /// Ordered rates by disk.
    rates: BTreeMap<String, Rates>,
    /// The file cpu.stat, and the CPU time in it, in microseconds, when the unit began to be held in the
    /// group.
    usage: Option<(Gauge, u64)>,
    /// CPU time used in the group since the unit began to be held there, at the last reading.
    used_ns: u64,
    /// The bounds that the group's manager has set.
    manager_bounds: GroupBounds,
    /// The value that we wrote to cpu.max.
    cap: Option<String>,
    /// The memory bound that was ordered last.
    high: u64,
    /// The memory bound that was sent to systemd last.
    sent_high: u64,
    /// When the memory orders last changed, if they have not been sent to systemd yet.
    unsent_since: Option<Time>,
    /// The memory protection (min, low) that was ordered last.
    protection: (u64, u64),
    /// The memory protection (min, low) that was sent to systemd last.
    sent_protection: (u64, u64),
    /// Earlier bounds of ours that memory.high may show until the pager's thread has written the ordered one.
    /// Without this list, they would seem to be values of the manager.
    former_highs: Vec<String>,
    /// The manager's memory.max, which we never write.
    memory_max: Option<u64>,
    /// The manager's value of each file that we wrote.
    originals: BTreeMap<&'static str, String>,
    /// The content of each file after our last write.
    written: BTreeMap<&'static str, String>,
}

/// All foreign groups that units are held in.
#[derive(Debug)]
pub(super) struct ForeignGroups {
    mount: PathBuf,
    /// The last [`GroupId`] that was given to a group.
    last: u32,
    groups: Vec<ForeignGroup>,
    /// CPU time that units used in groups in which they are not held any more, by unit path.
    carried: BTreeMap<String, u64>,
    /// Files whose original content is in the journal.
    recorded: BTreeSet<PathBuf>,
    /// Ancestors of foreign groups, and the memory protection (min, low) that we give them.
    ancestors: BTreeMap<PathBuf, (u64, u64)>,
    /// When the protection of ancestors last changed, if it has not been sent to systemd yet.
    ancestors_unsent_since: Option<Time>,
    /// `None` if the machine has no systemd.
    properties: Option<Properties>,
    polled_at: Time,
    overwritten_polled_at: Time,
    now: Time,
}

impl ForeignGroups {
    /// No groups yet, in a hierarchy mounted at `mount`.
    pub(super) fn new(mount: &Path) -> ForeignGroups {
        ForeignGroups {
            mount: mount.to_owned(),
            last: 0,
            groups: Vec::new(),
            carried: BTreeMap::new(),
            recorded: BTreeSet::new(),
            ancestors: BTreeMap::new(),
            ancestors_unsent_since: None,
            properties: None,
            polled_at: 0,
            overwritten_polled_at: 0,
            now: 0,
        }
    }

    /// The standing problem while systemd does not answer.
    pub(super) fn silence(&self) -> Option<&LiveError> {
        self.properties.as_ref().and_then(Properties::silence)
    }

    /// Connects to the machine's systemd, if there is one.
    pub(super) fn connect_systemd(&mut self) -> Result<(), LiveError> {
        self.properties = Properties::begin()?;
        Ok(())
    }

    /// Takes systemd's replies, polls managers' values, and sends requests that are due.
    pub(super) fn poll(
        &mut self,
        now: Time,
        mut pager: Option<&mut Pager>,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        self.now = now;
        let mut problems = Vec::new();
        let mut rewritten = BTreeSet::new();
        // Find values that managers have set, and groups whose files a `daemon-reload` has rewritten.
        if now >= self.polled_at.saturating_add(POLL_NS) {
            self.polled_at = now;
            for group in &mut self.groups {
                if group.has_sent_values() {
                    rewritten.extend(group.systemd_unit.clone());
                }
                if group.systemd_unit.is_none() {
                    match group.poll_manager(journal) {
                        Ok(reset) => problems.extend(group.write_again(&reset, pager.as_deref_mut())),
                        Err(error) => problems.push(error),
                    }
                } else {
                    group.manager_bounds.cap = group.is_capped_by_others();
                    group.memory_max = group.read_memory_max();
                }
            }
        }
        // Find groups in which systemd has overwritten CPUs or weights.
        if now >= self.overwritten_polled_at.saturating_add(OVERWRITTEN_POLL_NS) {
            self.overwritten_polled_at = now;
            if let Some(properties) = &mut self.properties {
                for group in &self.groups {
                    if let (Some(unit), false) =
                        (&group.systemd_unit, group.overwritten(properties).is_empty())
                    {
                        properties.hasten(unit);
                        rewritten.insert(unit.clone());
                    }
                }
            }
        }
        self.send_memory();
        let Some(properties) = &mut self.properties else { return problems };
        problems.extend(properties.poll(now, journal));
        rewritten.extend(properties.take_rewritten());
        for unit in &rewritten {
            problems.extend(self.rewrite(unit, pager.as_deref_mut()));
        }
        // Take over the bounds that administrators have set in systemd.
        let Some(properties) = &self.properties else { return problems };
        for group in &mut self.groups {
            if let Some(set) = group.systemd_unit.as_ref().and_then(|unit| properties.set_by_others(unit)) {
                let memory = [set.memory, group.memory_max].into_iter().flatten().min();
                group.manager_bounds = GroupBounds { memory, cap: group.manager_bounds.cap, ..set };
            }
        }
        problems
    }

    /// Adopts the present set of groups in which units are held: `unit_by_group` has the unit of each group,
    /// by the group's path. Adds errors to `problems`. Returns whether the set changed.
    pub(super) fn follow(
        &mut self,
        contract: &Contract,
        unit_by_group: &BTreeMap<String, UnitId>,
        disks: &mut Disks,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) -> bool {
        let before: Vec<GroupId> = self.groups.iter().map(|group| group.id).collect();
        // If a manager other than systemd made a group again, the group has the manager's values, and is a
        // new group to us.
        let stays = |group: &ForeignGroup| {
            unit_by_group.contains_key(&group.cgroup)
                && (group.systemd_unit.is_some() || !group.was_removed())
        };
        let (staying, leaving): (Vec<ForeignGroup>, Vec<ForeignGroup>) =
            std::mem::take(&mut self.groups).into_iter().partition(stays);
        self.groups = staying;
        let any_left = !leaving.is_empty();
        let any_protected_left = leaving.iter().any(|group| group.protection != (0, 0));
        for group in leaving {
            *self.carried.entry(group.path.clone()).or_default() += group.used_ns;
            if let (Some(properties), Some(unit)) = (&mut self.properties, &group.systemd_unit) {
                properties.end_holding(unit);
            }
            problems.extend(self.restore(group, journal));
        }
        for index in 0..self.groups.len() {
            let unit = unit_by_group[&self.groups[index].cgroup];
            let group = &mut self.groups[index];
            group.unit = unit;
            let is_made_anew = group.was_removed() && host::is_dir(&group.dir);
            if is_made_anew {
                group.reset_to_sent_values();
            }
            if is_made_anew || group.path != contract.unit(unit).path {
                problems.extend(self.restart(index, &contract.unit(unit).path, disks, journal));
            }
        }
        if any_protected_left {
            problems.extend(self.protect_ancestors(journal).err());
        }
        if any_left {
            let paths: BTreeSet<&str> =
                contract.held().map(|unit| contract.unit(unit).path.as_str()).collect();
            self.carried.retain(|path, _| paths.contains(path.as_str()));
        }
        let known: BTreeSet<&str> = self.groups.iter().map(|group| group.cgroup.as_str()).collect();
        let new: Vec<(&String, &UnitId)> =
            unit_by_group.iter().filter(|(cgroup, _)| !known.contains(cgroup.as_str())).collect();
        for (cgroup, unit) in new {
            let dir = self.mount.join(cgroup.trim_start_matches('/'));
            if !host::is_dir(&dir) {
                continue;
            }
            self.last += 1;
            let mut group =
                ForeignGroup::new(GroupId(self.last), *unit, &contract.unit(*unit).path, cgroup, dir);
            if self.properties.is_none() {
                group.systemd_unit = None;
            }
            match (&mut self.properties, &group.systemd_unit) {
                (Some(properties), Some(unit)) => properties.begin_holding(unit),
                _ => problems.extend(self.enable(&group.dir, journal)),
            }
            self.groups.push(group);
        }
        !before.iter().copied().eq(self.groups.iter().map(|group| group.id))
    }

    /// Restarts the record of a group, because another unit is held in the group now (after a reload), or
    /// because systemd has made the group again. CPU weight and memory bound stay in force until the next
    /// plan, which always has orders for both. Orders that a plan may omit are lifted.
    fn restart(
        &mut self,
        index: usize,
        path: &str,
        disks: &mut Disks,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let group = &mut self.groups[index];
        *self.carried.entry(group.path.clone()).or_default() += group.used_ns;
        self.last += 1;
        (group.id, group.path) = (GroupId(self.last), path.to_owned());
        group.begin_count();
        let (is_protected, is_capped) = (group.protection != (0, 0), group.cap.is_some());
        let is_confined = group.originals.contains_key(CPUS);
        let disks_with_rates: Vec<String> = group.rates.keys().cloned().collect();
        let mut problems = Vec::new();
        if is_protected {
            problems.extend(self.protect(index, 0, 0, journal).err());
        }
        if is_capped {
            problems.extend(self.put(index, CAP, &knob::cpu_max(None), journal).err());
        }
        if is_confined {
            problems.extend(self.confine(index, None, journal).err());
        }
        for disk in &disks_with_rates {
            problems.extend(self.set_rates(index, disks, (disk, None, None), journal).err());
        }
        let group = &mut self.groups[index];
        group.rates.clear();
        if group.was_removed() { Vec::new() } else { problems }
    }

    /// Enables the missing controllers in the ancestors of a group, outermost first.
    fn enable(&mut self, dir: &Path, journal: &mut Journal) -> Vec<LiveError> {
        let ancestors = dir.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(&self.mount));
        let mut ancestors: Vec<&Path> = ancestors.collect();
        ancestors.reverse();
        let mut problems = Vec::new();
        for group in ancestors {
            let file = group.join("cgroup.subtree_control");
            let words = |name: &str| -> Vec<String> {
                let text = read(&group.join(name)).unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            };
            let (available, enabled) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
            let is_missing = |name: &&&str| {
                available.iter().any(|word| word == **name) && !enabled.iter().any(|word| word == **name)
            };
            let missing: Vec<&&str> = CONTROLLERS.iter().filter(is_missing).collect();
            if missing.is_empty() {
                continue;
            }
            if self.recorded.insert(file.clone()) {
                let entry = Entry::Knob { path: file.clone(), original: enabled.join(" ") };
                if let Err(error) = record(journal, &[entry]) {
                    self.recorded.remove(&file);
                    return vec![error];
                }
            }
            for name in missing {
                let result = host::write(&file, &format!("+{name}"));
                problems.extend(
                    result.err().map(|source| failed(&file, format!("enable the {name} controller"), source)),
                );
            }
        }
        problems
    }

    /// CPU time that a unit has used in all foreign groups in which it is or was held, in nanoseconds. Reads
    /// cpu.stat.
    pub(super) fn used_ns(&mut self, unit: UnitId, path: &str) -> u64 {
        let carried = self.carried.get(path).copied().unwrap_or(0);
        let groups = self.groups.iter_mut().filter(|group| group.unit == unit);
        carried + groups.map(ForeignGroup::read_used).sum::<u64>()
    }

    /// The groups in which units are held, each with its unit and its directory.
    pub(super) fn all(&self) -> impl Iterator<Item = (GroupId, UnitId, &Path)> {
        self.groups.iter().map(|group| (group.id, group.unit, group.dir.as_path()))
    }

    /// The directory where the control groups are mounted.
    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    /// The number of CPUs that a manager other than systemd has set in a group, for each unit that `each`
    /// made from such a group.
    pub(super) fn given_cpus(&self, contract: &Contract) -> Vec<(UnitId, u32)> {
        let given_to_unit = |group: &ForeignGroup| {
            let is_units_own = contract.group_of(group.unit) == Some(group.cgroup.as_str());
            let cpus = group
                .manager_bounds
                .cpus
                .as_ref()
                .filter(|_| is_units_own && group.systemd_unit.is_none())?;
            Some((group.unit, u32::try_from(cpus.len()).ok()?))
        };
        self.groups.iter().filter_map(given_to_unit).collect()
    }

    /// The path of a group whose manager has set a CPU cap, as /proc shows it.
    pub(super) fn capped(&self) -> Option<&str> {
        self.groups.iter().find(|group| group.manager_bounds.cap).map(|group| group.cgroup.as_str())
    }

    /// Whether `cap` is the CPU cap that we wrote last in this group.
    pub(super) fn has_capped(&self, dir: &Path, cap: &str) -> bool {
        self.groups.iter().any(|group| group.dir == dir && group.cap.as_deref() == Some(cap))
    }

    /// The facts for the policy. `memory` has the bytes that each group was charged at the last memory
    /// sample, `disks` the use of each disk in each group.
    pub(super) fn facts(
        &mut self,
        memory: &BTreeMap<GroupId, u64>,
        disks: &BTreeMap<GroupId, Vec<(String, DiskUse)>>,
    ) -> Vec<GroupFacts> {
        let facts = |group: &mut ForeignGroup| GroupFacts {
            id: group.id,
            path: group.cgroup.clone(),
            unit: group.unit,
            used_ns: group.used_ns,
            memory: memory.get(&group.id).copied().unwrap_or(0),
            disks: disks.get(&group.id).cloned().unwrap_or_default(),
            most: group.manager_bounds.clone(),
        };
        self.groups.iter_mut().map(facts).collect()
    }

    /// Carries out an order on a group. Returns the errors, unless the group has ended.
    pub(super) fn carry_out(
        &mut self,
        order: &PartOrder,
        memory: Option<&mut Memory>,
        disks: &mut Disks,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let Some(index) = order.at().and_then(|at| self.groups.iter().position(|group| group.id == at))
        else {
            // The group has ended since it was observed.
            return Vec::new();
        };
        let result = match order {
            PartOrder::Confine { cpus, .. } => self.confine(index, cpus.clone(), journal),
            PartOrder::Weigh { weight, .. } => {
                self.set_property(index, Property::CPUWeight, Value::Number(u64::from(*weight)));
                self.put(index, WEIGHT, &weight.to_string(), journal)
            }
            // systemd has no property with the precision of cpu.max.
            PartOrder::Cap { micro_cpus, .. } => self.put(index, CAP, &knob::cpu_max(*micro_cpus), journal),
            PartOrder::Allow { bytes, .. } => {
                let bytes = bytes.or(self.groups[index].manager_bounds.memory).unwrap_or(UNSET);
                self.bound(index, bytes, memory.map(Memory::pager), journal)
            }
            PartOrder::Guarantee { min, low, .. } => self.protect(index, *min, *low, journal),
            PartOrder::Reclaim { bytes, files, .. } => {
                if let Some(memory) = memory {
                    memory.pager().reclaim(&self.groups[index].dir, *bytes, *files);
                }
                Ok(())
            }
            PartOrder::Transfer { disk, read, write, .. } => {
                self.set_rates(index, disks, (disk, *read, *write), journal)
            }
        };
        match result {
            Err(_) if self.groups[index].was_removed() => Vec::new(),
            result => result.err().into_iter().collect(),
        }
    }

    /// Confines a group to these CPUs; `None`: to all CPUs that its manager allows.
    fn confine(
        &mut self,
        index: usize,
        cpus: Option<CpuSet>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let cpus = cpus.or_else(|| self.groups[index].manager_bounds.cpus.clone()).unwrap_or_default();
        self.set_property(index, Property::AllowedCPUs, Value::Cpus(cpus.clone()));
        self.put(index, CPUS, &cpus.to_string(), journal)
    }

    /// Bounds a group's memory.
    ///
    /// systemd later writes the bound that it knows, and the kernel then reclaims memory beyond it. So
    /// systemd gets a bound only when the bound is stable and the group's memory is within it
    /// ([`Self::send_memory`]). Before a bound grows beyond the value that systemd has, systemd is sent the
    /// manager's own bound.
    fn bound(
        &mut self,
        index: usize,
        bytes: u64,
        pager: Option<&mut Pager>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let text = bound_text(bytes);
        let exists = self.record_manager_value(index, HIGH, journal)?;
        if exists && self.manager_changed_value(index, HIGH, journal)? {
            return Ok(());
        }
        let group = &mut self.groups[index];
        let is_lowered = bytes < group.high;
        (group.high, group.unsent_since) = (bytes, Some(self.now));
        if !exists {
            // systemd creates the file when it gets the property.
            self.send_high(index, bytes);
            return Ok(());
        }
        if bytes > self.groups[index].sent_high {
            let manager_bound = self.groups[index].manager_bounds.memory.unwrap_or(UNSET);
            self.send_high(index, manager_bound);
        }
        let group = &mut self.groups[index];
        match pager {
            // A write that lowers the bound blocks while the kernel reclaims, so the pager's thread makes it.
            Some(pager) if is_lowered => {
                pager.lower(&group.dir, &text);
                let former = group.written.insert(HIGH, text).or_else(|| group.originals.get(HIGH).cloned());
                group.former_highs.extend(former);
                let surplus = group.former_highs.len().saturating_sub(FORMER_HIGHS_MAX);
                group.former_highs.drain(..surplus);
                Ok(())
            }
            pager => {
                if let Some(pager) = pager {
                    pager.note_raised(&group.dir, &text);
                }
                self.put(index, HIGH, &text, journal)
            }
        }
    }

    /// Sends a memory bound to systemd, if systemd owns the group.
    fn send_high(&mut self, index: usize, bytes: u64) {
        self.groups[index].sent_high = bytes;
        self.set_property(index, Property::MemoryHigh, Value::Number(bytes));
    }

    /// Sends the memory values that are stable to systemd; a bound only when the group's memory is within it.
    fn send_memory(&mut self) {
        let now = self.now;
        let is_stable = |since: &Time| now >= since.saturating_add(REST_NS);
        let is_within = |dir: &Path, bytes: u64| {
            let current = read(&dir.join("memory.current"));
            current.is_ok_and(|text| text.parse().is_ok_and(|current: u64| current <= bytes))
        };
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            if !group.unsent_since.is_some_and(|since| is_stable(&since)) {
                continue;
            }
            let (high, protection) = (group.high, group.protection);
            if group.has_our_protection() && group.sent_protection != protection {
                group.sent_protection = protection;
                self.send_protection(index, protection);
            }
            let group = &mut self.groups[index];
            if group.sent_high == high || is_within(&group.dir, high) {
                group.unsent_since = None;
                self.send_high(index, high);
            }
        }
        if self.ancestors_unsent_since.take_if(|since| is_stable(since)).is_some() {
            self.send_ancestors();
        }
    }

    fn send_protection(&mut self, index: usize, (min, low): (u64, u64)) {
        self.set_property(index, Property::MemoryLow, Value::Number(low));
        self.set_property(index, Property::MemoryMin, Value::Number(min));
    }

    /// Writes our values into the files of a systemd unit again, because systemd has written values that may
    /// be stale.
    fn rewrite(&mut self, unit: &str, pager: Option<&mut Pager>) -> Vec<LiveError> {
        let mut problems = Vec::new();
        problems.extend(self.rewrite_ancestor(unit));
        let Some(group) = self.groups.iter().find(|group| group.systemd_unit.as_deref() == Some(unit)) else {
            return problems;
        };
        if group.has_our_protection() {
            problems.extend(put_protection(&group.dir, group.protection.0, group.protection.1).err());
        }
        if let Some(cap) = group.lost_cap() {
            problems.extend(knob::put(&group.dir.join(CAP), cap).err());
        }
        // The group must not use CPUs that were called back, even if systemd still has the former set.
        for (file, ours) in self.properties.iter().flat_map(|properties| group.overwritten(properties)) {
            let _ = host::write(&group.dir.join(file), ours);
        }
        let ours = group.written.get(HIGH).filter(|ours| group.content(HIGH).as_ref() != Some(*ours));
        match (ours, pager) {
            (Some(ours), Some(pager)) if group.high != UNSET => pager.lower(&group.dir, ours),
            (Some(ours), _) => problems.extend(knob::put(&group.dir.join(HIGH), ours).err()),
            _ => {}
        }
        // The group may have ended meanwhile.
        if group.was_removed() { Vec::new() } else { problems }
    }

    /// Makes a value of a property wanted, so that it is sent to systemd, if systemd owns the group.
    fn set_property(&mut self, index: usize, property: Property, value: Value) {
        if let (Some(properties), Some(unit)) = (&mut self.properties, &self.groups[index].systemd_unit) {
            properties.want(unit, property, value);
        }
    }

    /// Writes a file of a group, after recording the manager's value. Does not write if the file does not
    /// exist yet, or if the manager has just set another bound.
    fn put(
        &mut self,
        index: usize,
        file: &'static str,
        value: &str,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        if !self.record_manager_value(index, file, journal)?
            || self.manager_changed_value(index, file, journal)?
        {
            return Ok(());
        }
        let group = &mut self.groups[index];
        if file == CAP {
            group.cap = Some(value.to_owned());
        }
        let result = if file == CPUS && value.is_empty() {
            let content = knob::put_cpus(&group.dir, None);
            content.map(|cpus| cpus.map_or_else(String::new, |cpus| cpus.to_string()))
        } else {
            knob::put(&group.dir.join(file), value).map(|()| value.to_owned())
        };
        let written = match result {
            // systemd has just written an earlier value. It will get this value as a property, too.
            Err(LiveError::NotInForce { .. }) if group.systemd_unit.is_some() && file != CAP => {
                value.to_owned()
            }
            result => result?,
        };
        group.written.insert(file, written);
        Ok(())
    }

    /// Whether a manager other than systemd has just changed its value of a file that is about to be written.
    /// Then the caller does not write the file, and the policy's next plan orders a value within the
    /// manager's new one. The manager's values are read only if the file's content is not ours.
    fn manager_changed_value(
        &mut self,
        index: usize,
        file: &'static str,
        journal: &mut Journal,
    ) -> Result<bool, LiveError> {
        let group = &mut self.groups[index];
        if group.systemd_unit.is_some() || group.shows_our_value(file) {
            return Ok(false);
        }
        let former = group.manager_bounds.clone();
        // Files that the manager reset to its former value are rewritten at the next poll.
        group.poll_manager(journal)?;
        let present = &group.manager_bounds;
        Ok(match file {
            CPUS => former.cpus != present.cpus,
            HIGH => former.memory != present.memory,
            WEIGHT => former.weight != present.weight,
            CAP => former.cap != present.cap,
            _ => former.kept != present.kept,
        })
    }

    /// Records the manager's value of a file before our first write. Returns whether the file exists. In a
    /// group of systemd, a file may not exist yet, because systemd has still to enable the controller.
    /// systemd then writes our value itself, from the property.
    fn record_manager_value(
        &mut self,
        index: usize,
        file: &'static str,
        journal: &mut Journal,
    ) -> Result<bool, LiveError> {
        let group = &mut self.groups[index];
        let path = group.dir.join(file);
        if group.systemd_unit.is_some() && !host::exists(&path) {
            return Ok(false);
        }
        if !group.originals.contains_key(file) {
            let original = read(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
            record_original(&mut self.recorded, &path, &original, journal)?;
            group.originals.insert(file, original);
        }
        Ok(true)
    }

    /// Restores the manager's values in a group in which no unit is held any more, and ends the group's
    /// journal entries. Values that systemd got as properties are restored by [`Properties::end_holding`].
    fn restore(&mut self, mut group: ForeignGroup, journal: &mut Journal) -> Vec<LiveError> {
        let files: Vec<&str> = group.originals.keys().copied().collect();
        let is_systemds = group.systemd_unit.is_some();
        if is_systemds {
            // Values that systemd never got must be restored here.
            let unsent = group.unsent_since.is_some();
            group.originals.retain(|file, _| *file == CAP || MEMORY_FILES.contains(file) && unsent);
        }
        // There is nothing to restore in a group that has ended.
        let was_removed = group.was_removed();
        let write_back = |(file, original): (&&'static str, &String)| {
            let path = group.dir.join(file);
            let written = if *file == CPUS && original.is_empty() {
                host::empty_cpus(&path).map(drop)
            } else {
                host::write(&path, original)
            };
            let source = written.err()?;
            Some((*file, failed(&path, format!("write back `{original}`"), source)))
        };
        let (not_restored, mut problems): (Vec<&str>, Vec<LiveError>) = match was_removed {
            true => (Vec::new(), Vec::new()),
            false => group.originals.iter().filter_map(write_back).unzip(),
        };
        if group.was_removed() {
            problems.clear();
        } else if is_systemds {
            return problems;
        }
        // The entries of files that could not be restored stay in the journal, for the caretaker. So do the
        // rates of a group that still exists.
        let files = files.into_iter().filter(|file| !not_restored.contains(file));
        let files = files.chain(was_removed.then_some("io.max"));
        let released: Vec<PathBuf> = files.map(|file| group.dir.join(file)).collect();
        self.recorded
            .retain(|path| !(released.contains(path) || was_removed && path.parent() == Some(&group.dir)));
        let entries: Vec<Entry> = released.into_iter().map(|path| Entry::KnobReleased { path }).collect();
        problems.extend(record(journal, &entries).err());
        problems
    }

    /// Protects a group's memory, and adds that protection to the protection of its ancestors.
    fn protect(&mut self, index: usize, min: u64, low: u64, journal: &mut Journal) -> Result<(), LiveError> {
        let group = &mut self.groups[index];
        (group.protection, group.unsent_since) = ((min, low), Some(self.now));
        if group.systemd_unit.is_some() && !host::exists(&group.dir.join("memory.low")) {
            // systemd creates the file when it gets the property.
            self.send_protection(index, (min, low));
        }
        self.put(index, "memory.low", &low.to_string(), journal)?;
        self.put(index, "memory.min", &min.to_string(), journal)?;
        self.protect_ancestors(journal)
    }

    /// Limits a group's transfers to and from a disk, in bytes per second; `None` removes a limit.
    fn set_rates(
        &mut self,
        index: usize,
        disks: &mut Disks,
        (disk, read, write): (&str, Option<u64>, Option<u64>),
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        self.groups[index].rates.insert(disk.to_owned(), (read, write));
        let rates = &self.groups[index].rates;
        let devices = |rate: fn(&Rates) -> Option<u64>| {
            Value::Devices(
                rates
                    .iter()
                    .filter_map(|(disk, rates)| Some((format!("/dev/{disk}"), rate(rates)?)))
                    .collect(),
            )
        };
        let (reads, writes) = (devices(|rates| rates.0), devices(|rates| rates.1));
        self.set_property(index, Property::IOReadBandwidthMax, reads);
        self.set_property(index, Property::IOWriteBandwidthMax, writes);
        let group = &self.groups[index];
        let path = group.dir.join("io.max");
        if group.systemd_unit.is_some() && !host::exists(&path) {
            return Ok(());
        }
        let device = disks.number(disk)?;
        let key = group.dir.join(format!("io.max {device}"));
        if self.recorded.insert(key) {
            let text =
                host::read_to_string(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
            let line = crate::observe::disk::stat::line_of(&text, &device);
            let original =
                line.map_or_else(|| format!("{device} rbps=max wbps=max"), |line| line.trim().to_owned());
            record(journal, &[Entry::Line { path, original, given: String::new() }])?;
        }
        disks.cap(&group.dir, disk, read, write)
    }
}

/// Records a file's original content in the journal, unless it is recorded already. Call this before the
/// first write.
fn record_original(
    recorded: &mut BTreeSet<PathBuf>,
    path: &Path,
    original: &str,
    journal: &mut Journal,
) -> Result<(), LiveError> {
    if recorded.contains(path) {
        return Ok(());
    }
    record(journal, &[Entry::Knob { path: path.to_owned(), original: original.to_owned() }])?;
    recorded.insert(path.to_owned());
    Ok(())
}

/// The inode of a control group's directory, which cgroupfs never reuses.
fn inode_of(dir: &Path) -> Option<u64> {
    host::look(dir).ok().map(|metadata| metadata.ino())
}

/// A memory bound in the format of the control files.
fn bound_text(bytes: u64) -> String {
    if bytes == UNSET { "max".to_owned() } else { bytes.to_string() }
}

/// Writes a group's memory protection, in bytes.
fn put_protection(dir: &Path, min: u64, low: u64) -> Result<(), LiveError> {
    knob::put(&dir.join("memory.low"), &low.to_string())?;
    knob::put(&dir.join("memory.min"), &min.to_string())
}

/// The systemd unit that owns a control group; `None` if the system's systemd does not own the group.
fn systemd_unit_of(mount: &Path, dir: &Path) -> Option<String> {
    let group = Path::new("/").join(dir.strip_prefix(mount).ok()?);
    unit_of(&group).filter(|owner| owner.is_its_own && owner.user.is_none()).map(|owner| owner.unit)
}

impl ForeignGroup {
    fn new(id: GroupId, unit: UnitId, path: &str, cgroup: &str, dir: PathBuf) -> ForeignGroup {
        let content = |file: &str| read(&dir.join(file)).ok();
        let manager_bounds = bounds::by(content);
        let mut group = ForeignGroup {
            id,
            unit,
            path: path.to_owned(),
            cgroup: cgroup.to_owned(),
            systemd_unit: unit_of(Path::new(cgroup))
                .filter(|owner| owner.is_its_own && owner.user.is_none())
                .map(|owner| owner.unit),
            inode: inode_of(&dir),
            dir,
            rates: BTreeMap::new(),
            high: UNSET,
            sent_high: UNSET,
            unsent_since: None,
            sent_protection: (0, 0),
            former_highs: Vec::new(),
            memory_max: None,
            usage: None,
            used_ns: 0,
            manager_bounds,
            cap: None,
            protection: (0, 0),
            originals: BTreeMap::new(),
            written: BTreeMap::new(),
        };
        group.begin_count();
        group.memory_max = group.read_memory_max();
        group
    }

    /// Whether the group was removed. Another group may have the same path now.
    fn was_removed(&self) -> bool {
        let inode = inode_of(&self.dir);
        inode.is_none() || inode != self.inode
    }

    /// Resets the record because systemd has made the group again: the new group has the properties that
    /// systemd knows.
    fn reset_to_sent_values(&mut self) {
        self.inode = inode_of(&self.dir);
        (self.high, self.protection, self.unsent_since) = (self.sent_high, self.sent_protection, None);
        self.cap = None;
        self.written.clear();
        self.former_highs.clear();
        self.manager_bounds.cap = self.is_capped_by_others();
        self.memory_max = self.read_memory_max();
    }

    /// Starts to count CPU time from zero.
    fn begin_count(&mut self) {
        let usage = Gauge::open(&self.dir.join("cpu.stat")).ok();
        self.usage = usage.and_then(|gauge| gauge.value("usage_usec").ok().map(|start_us| (gauge, start_us)));
        self.used_ns = 0;
    }

    /// Whether systemd has written the files, as it does after a `daemon-reload`: the memory files have the
    /// values that were last sent to systemd instead of those ordered since, or our CPU cap is gone.
    fn has_sent_values(&self) -> bool {
        let shows = |file: &str, text: &str| self.content(file).is_some_and(|content| content == text);
        let has_sent_high = self.sent_high != self.high && shows(HIGH, &bound_text(self.sent_high));
        let has_sent_protection = self.has_our_protection()
            && self.sent_protection != self.protection
            && shows("memory.low", &self.sent_protection.1.to_string())
            && shows("memory.min", &self.sent_protection.0.to_string());
        has_sent_high || has_sent_protection || self.lost_cap().is_some()
    }

    /// Our CPU cap, if it is not in cpu.max any more: systemd does not know the cap, and resets cpu.max.
    fn lost_cap(&self) -> Option<&String> {
        let is_lost = |cap: &&String| {
            let is_reset = |content: &String| content != *cap && content.starts_with("max");
            !self.manager_bounds.cap && self.content(CAP).as_ref().is_some_and(is_reset)
        };
        self.cap.as_ref().filter(is_lost)
    }

    /// The CPUs and weight that we wrote and systemd has overwritten, because they have not been sent to
    /// systemd yet. Each is a file and our value.
    fn overwritten(&self, properties: &Properties) -> Vec<(&'static str, &str)> {
        let Some(unit) = &self.systemd_unit else { return Vec::new() };
        let overwritten = |(file, property): (&'static str, Property)| {
            let ours = self.written.get(file).filter(|_| properties.wants(unit, property))?;
            (self.content(file).as_ref() != Some(ours)).then_some((file, ours.as_str()))
        };
        let files = [(CPUS, Property::AllowedCPUs), (WEIGHT, Property::CPUWeight)];
        files.into_iter().filter_map(overwritten).collect()
    }

    /// Whether the group's memory protection is ours: we wrote it, and no administrator has set protection
    /// since.
    fn has_our_protection(&self) -> bool {
        self.written.contains_key("memory.low") && !self.manager_bounds.kept
    }

    /// Whether a file has our last value, or an earlier bound of ours which the pager's thread is about to
    /// replace.
    fn shows_our_value(&self, file: &str) -> bool {
        let is_ours = |content: &String| {
            self.written.get(file) == Some(content) || file == HIGH && self.former_highs.contains(content)
        };
        self.content(file).is_some_and(|content| is_ours(&content))
    }

    /// Reads the files that we wrote. Content that we did not write becomes the manager's value. Returns the
    /// files that the manager reset to its former value, into which our values must be written again.
    fn poll_manager(&mut self, journal: &mut Journal) -> Result<Vec<&'static str>, LiveError> {
        let mut reset = Vec::new();
        let files: Vec<&'static str> = self.originals.keys().copied().collect();
        for file in files {
            let path = self.dir.join(file);
            let Ok(content) = read(&path) else { continue };
            let written = self.written.get(file);
            if written == Some(&content) {
                if file == HIGH {
                    self.former_highs.clear();
                }
            } else if written.is_some() && file == HIGH && self.former_highs.contains(&content) {
                // The pager's thread is about to write the ordered bound.
            } else if self.originals.get(file) == Some(&content) {
                reset.extend(written.map(|_| file));
            } else {
                let released = Entry::KnobReleased { path: path.clone() };
                record(journal, &[released, Entry::Knob { path, original: content.clone() }])?;
                self.written.remove(file);
                self.originals.insert(file, content);
            }
        }
        let rates = self.manager_bounds.rates;
        let content = |file: &str| match self.originals.get(file) {
            Some(original) => Some(original.clone()),
            None => read(&self.dir.join(file)).ok(),
        };
        // io.max mixes our lines with the manager's, so the manager's rates are not read again.
        self.manager_bounds = GroupBounds { rates, ..bounds::by(content) };
        Ok(reset)
    }

    /// Writes our values into these files again.
    fn write_again(&self, files: &[&'static str], mut pager: Option<&mut Pager>) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for file in files {
            let Some(ours) = self.written.get(file) else { continue };
            match &mut pager {
                Some(pager) if *file == HIGH && self.high != UNSET => pager.lower(&self.dir, ours),
                _ => problems.extend(knob::put(&self.dir.join(file), ours).err()),
            }
        }
        if self.was_removed() { Vec::new() } else { problems }
    }

    /// The content of a file; `None` if it cannot be read.
    fn content(&self, file: &str) -> Option<String> {
        read(&self.dir.join(file)).ok()
    }

    /// The manager's memory.max; `None` if unlimited.
    fn read_memory_max(&self) -> Option<u64> {
        read(&self.dir.join("memory.max")).ok()?.parse().ok()
    }

    /// Whether the group's manager has set a CPU cap. Our caps are only in the file, even in systemd's
    /// groups, because systemd has no property with the precision of cpu.max. So any other cap in the file is
    /// the manager's.
    fn is_capped_by_others(&self) -> bool {
        let is_ours = |content: &String| self.cap.as_ref() == Some(content);
        read(&self.dir.join(CAP)).is_ok_and(|content| !content.starts_with("max") && !is_ours(&content))
    }

    /// Reads the CPU time that was used since the unit began to be held in the group, in nanoseconds. The
    /// result never decreases.
    fn read_used(&mut self) -> u64 {
        if let Some((gauge, start_us)) = &self.usage
            && let Ok(total_us) = gauge.value("usage_usec")
        {
            self.used_ns = self.used_ns.max(total_us.saturating_sub(*start_us).saturating_mul(1_000));
        }
        self.used_ns
    }
}

#[cfg(test)]
mod tests;
