//! Units held in foreign groups: control groups of other managers, where the units' processes already are.
//!
//! The roster finds these groups ([`Roster::places`](crate::observe::roster::Roster::places)), and the plan has the orders for
//! them ([`PartOrder`]). This module reads and writes their files.
//!
//! Manager's values: the content of a file before the first write is its manager's setting, which bounds what may be written; the
//! policy sees it as [`GroupBounds`]. It is in the journal, and is restored when the group is no longer held. A group's memory
//! protection is added to its ancestors too (`around`).
//!
//! Groups of systemd: systemd gets the values as properties ([`properties`](super::properties)) and enables the controllers.
//! Elsewhere missing controllers are enabled in the ancestors.
//!
//! systemd applies a property a moment later, and rewrites all files of the group with the values that it knows. If an owner
//! calls memory back in between, systemd would lower the bound that has just grown, and the kernel would reclaim the owner's
//! pages. So systemd gets memory values only after they were stable for five seconds. Before a bound grows beyond systemd's
//! value, systemd is sent the manager's own bound. After systemd has written, the files are written again. Its CPUs and
//! weights may be stale as well, so those files are checked twice a second.
//!
//! Groups of other managers: their files are polled every five seconds, and read before each write. Content that was not
//! written here becomes the manager's value.
//!
//! A group may be removed and made again under the same path, as when a service restarts. The inode tells them apart, and the
//! policy gets a new [`GroupId`]. systemd applies the properties it has to the unit's new group.
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

/// The file of a set of CPUs.
const CPUS: &str = "cpuset.cpus";
/// The file of a weight.
const WEIGHT: &str = "cpu.weight";
/// The file of a bound on memory.
const HIGH: &str = "memory.high";
/// The memory files that are written here.
const MEMORY_FILES: [&str; 3] = [HIGH, "memory.low", "memory.min"];

/// How long a group's memory orders must be stable before systemd gets them.
const REST_NS: Time = 5_000 * MS;

/// How often to poll files for values of managers other than systemd.
const POLL_NS: Time = 5_000 * MS;

/// How often to check whether systemd has overwritten CPUs and weights with stale values.
const OVERWRITTEN_POLL_NS: Time = 500 * MS;

/// The most bounds remembered that memory.high may still show while a thread has a lower one to write.
const FORMER_HIGHS_MAX: usize = 64;

/// Reading and writing, in bytes per second.
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
    /// The directory's inode; `None` if it was gone when it was first looked up.
    inode: Option<u64>,
    /// The systemd unit that owns the group; `None` for another manager's.
    systemd_unit: Option<String>,
    /// Ordered rates by disk.
    rates: BTreeMap<String, Rates>,
    /// cpu.stat, and its count when the unit began to be held here.
    usage: Option<(Gauge, u64)>,
    used_ns: u64,
    /// Bounds that its manager has set.
    most: GroupBounds,
    /// The value written to cpu.max.
    cap: Option<String>,
    /// The memory bound ordered last, and the one sent to systemd last.
    high: u64,
    sent_high: u64,
    /// When its memory orders last changed, if systemd does not have them yet.
    unsent_since: Option<Time>,
    /// The memory protection (min, low) sent to systemd last.
    sent_kept: (u64, u64),
    /// Earlier bounds that memory.high may still show until a thread has written the ordered one.
    former_highs: Vec<String>,
    /// The manager's memory.max, which is never written here.
    memory_max: Option<u64>,
    /// The memory protection ordered (min, low).
    kept: (u64, u64),
    /// The manager's value of each file that was written.
    originals: BTreeMap<&'static str, String>,
    /// The content of each file after the last write.
    written: BTreeMap<&'static str, String>,
}

/// All foreign groups that units are held in.
#[derive(Debug)]
pub(super) struct ForeignGroups {
    mount: PathBuf,
    last: u32,
    groups: Vec<ForeignGroup>,
    /// CPU time used in groups that are no longer held, by unit path.
    carried: BTreeMap<String, u64>,
    /// Files whose original content the journal has.
    recorded: BTreeSet<PathBuf>,
    /// Ancestors of foreign groups, and their memory protection (min, low).
    around: BTreeMap<PathBuf, (u64, u64)>,
    /// When that last changed, if systemd does not have it yet.
    around_unsent_since: Option<Time>,
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
            around: BTreeMap::new(),
            around_unsent_since: None,
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
        if now >= self.polled_at.saturating_add(POLL_NS) {
            self.polled_at = now;
            for group in &mut self.groups {
                if group.has_sent_values() {
                    rewritten.extend(group.systemd_unit.clone());
                }
                if group.systemd_unit.is_none() {
                    match group.poll_manager(journal) {
                        Ok(lost) => problems.extend(group.write_lost(&lost, pager.as_deref_mut())),
                        Err(error) => problems.push(error),
                    }
                } else {
                    group.most.cap = group.is_capped_by_others();
                    group.memory_max = group.read_memory_max();
                }
            }
        }
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
        let Some(properties) = &self.properties else { return problems };
        for group in &mut self.groups {
            if let Some(set) = group.systemd_unit.as_ref().and_then(|unit| properties.set_by_others(unit)) {
                let memory = [set.memory, group.memory_max].into_iter().flatten().min();
                group.most = GroupBounds { memory, cap: group.most.cap, ..set };
            }
        }
        problems
    }

    /// Follows the set of groups that units are held in. Whether it changed.
    pub(super) fn follow(
        &mut self,
        contract: &Contract,
        places: &BTreeMap<String, UnitId>,
        disks: &mut Disks,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) -> bool {
        let before: Vec<GroupId> = self.groups.iter().map(|group| group.id).collect();
        // A group that another manager made again has that manager's values: it is a new group here.
        let is_same = |group: &ForeignGroup| {
            places.contains_key(&group.cgroup) && (group.systemd_unit.is_some() || !group.is_gone())
        };
        let (stays, goes): (Vec<ForeignGroup>, Vec<ForeignGroup>) =
            std::mem::take(&mut self.groups).into_iter().partition(is_same);
        self.groups = stays;
        let (have_gone, kept_of_gone) = (!goes.is_empty(), goes.iter().any(|group| group.kept != (0, 0)));
        for group in goes {
            *self.carried.entry(group.path.clone()).or_default() += group.used_ns;
            if let (Some(properties), Some(unit)) = (&mut self.properties, &group.systemd_unit) {
                properties.leave(unit);
            }
            problems.extend(self.give_back(group, journal));
        }
        for index in 0..self.groups.len() {
            let unit = places[&self.groups[index].cgroup];
            let group = &mut self.groups[index];
            group.unit = unit;
            let is_made_anew = group.is_gone() && host::is_dir(&group.dir);
            if is_made_anew {
                group.reset_to_sent_values();
            }
            if is_made_anew || group.path != contract.unit(unit).path {
                problems.extend(self.begin_anew(index, &contract.unit(unit).path, disks, journal));
            }
        }
        if kept_of_gone {
            problems.extend(self.keep_around(journal).err());
        }
        if have_gone {
            let paths: BTreeSet<&str> =
                contract.held().map(|unit| contract.unit(unit).path.as_str()).collect();
            self.carried.retain(|path, _| paths.contains(path.as_str()));
        }
        let known: BTreeSet<&str> = self.groups.iter().map(|group| group.cgroup.as_str()).collect();
        let new: Vec<(&String, &UnitId)> =
            places.iter().filter(|(cgroup, _)| !known.contains(cgroup.as_str())).collect();
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
                (Some(properties), Some(unit)) => properties.come(unit),
                _ => problems.extend(self.enable(&group.dir, journal)),
            }
            self.groups.push(group);
        }
        !before.iter().copied().eq(self.groups.iter().map(|group| group.id))
    }

    /// Restarts a group that now holds another unit, as after a reload, or that systemd made again. CPU weight and memory bound
    /// stay until the next plan orders them; orders that a plan may omit are lifted.
    fn begin_anew(
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
        let (is_kept, is_capped) = (group.kept != (0, 0), group.cap.is_some());
        let is_confined = group.originals.contains_key(CPUS);
        let rated: Vec<String> = group.rates.keys().cloned().collect();
        let mut problems = Vec::new();
        if is_kept {
            problems.extend(self.guarantee(index, 0, 0, journal).err());
        }
        if is_capped {
            problems.extend(self.put(index, CAP, &knob::cpu_max(None), journal).err());
        }
        if is_confined {
            problems.extend(self.confine(index, None, journal).err());
        }
        for disk in &rated {
            problems.extend(self.transfer(index, disks, (disk, None, None), journal).err());
        }
        let group = &mut self.groups[index];
        group.rates.clear();
        if group.is_gone() { Vec::new() } else { problems }
    }

    /// Enables controllers in the ancestors of a group.
    fn enable(&mut self, dir: &Path, journal: &mut Journal) -> Vec<LiveError> {
        let above = dir.ancestors().skip(1).take_while(|above| above.starts_with(&self.mount));
        let mut above: Vec<&Path> = above.collect();
        above.reverse();
        let mut problems = Vec::new();
        for group in above {
            let file = group.join("cgroup.subtree_control");
            let words = |name: &str| -> Vec<String> {
                let text = read(&group.join(name)).unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            };
            let (there, on) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
            let lacks = |name: &&&str| {
                there.iter().any(|word| word == **name) && !on.iter().any(|word| word == **name)
            };
            let lacking: Vec<&&str> = CONTROLLERS.iter().filter(lacks).collect();
            if lacking.is_empty() {
                continue;
            }
            if self.recorded.insert(file.clone()) {
                let entry = Entry::Knob { path: file.clone(), original: on.join(" ") };
                if let Err(error) = record(journal, &[entry]) {
                    self.recorded.remove(&file);
                    return vec![error];
                }
            }
            for name in lacking {
                let enabled = host::write(&file, &format!("+{name}"));
                problems.extend(
                    enabled
                        .err()
                        .map(|source| failed(&file, format!("enable the {name} controller"), source)),
                );
            }
        }
        problems
    }

    /// CPU time of a unit in its present and former foreign groups, in nanoseconds. Reads cpu.stat.
    pub(super) fn used_ns(&mut self, unit: UnitId, path: &str) -> u64 {
        let carried = self.carried.get(path).copied().unwrap_or(0);
        let groups = self.groups.iter_mut().filter(|group| group.unit == unit);
        carried + groups.map(ForeignGroup::read_used).sum::<u64>()
    }

    /// The groups: id, unit and directory.
    pub(super) fn all(&self) -> impl Iterator<Item = (GroupId, UnitId, &Path)> {
        self.groups.iter().map(|group| (group.id, group.unit, group.dir.as_path()))
    }

    /// Where the hierarchy is mounted.
    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    /// The number of CPUs that managers other than systemd have set, for units that `each` made from a control group.
    pub(super) fn given_cpus(&self, contract: &Contract) -> Vec<(UnitId, u32)> {
        let given = |group: &ForeignGroup| {
            let is_units_own = contract.group_of(group.unit) == Some(group.cgroup.as_str());
            let cpus = group.most.cpus.as_ref().filter(|_| is_units_own && group.systemd_unit.is_none())?;
            Some((group.unit, u32::try_from(cpus.len()).ok()?))
        };
        self.groups.iter().filter_map(given).collect()
    }

    /// The path of a group whose manager has set a CPU cap, as /proc shows it.
    pub(super) fn capped(&self) -> Option<&str> {
        self.groups.iter().find(|group| group.most.cap).map(|group| group.cgroup.as_str())
    }

    /// Whether a group's CPU cap was written here.
    pub(super) fn has_capped(&self, dir: &Path, cap: &str) -> bool {
        self.groups.iter().any(|group| group.dir == dir && group.cap.as_deref() == Some(cap))
    }

    /// The facts for the policy. `memory` is what each group was charged at the last memory sample.
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
            most: group.most.clone(),
        };
        self.groups.iter_mut().map(facts).collect()
    }

    /// Carries out an order on a group.
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
        let done = match order {
            PartOrder::Confine { cpus, .. } => self.confine(index, cpus.clone(), journal),
            PartOrder::Weigh { weight, .. } => {
                self.set_property(index, Property::CPUWeight, Value::Number(u64::from(*weight)));
                self.put(index, WEIGHT, &weight.to_string(), journal)
            }
            // systemd has no property with the precision of cpu.max.
            PartOrder::Cap { micro_cpus, .. } => self.put(index, CAP, &knob::cpu_max(*micro_cpus), journal),
            PartOrder::Allow { bytes, .. } => {
                let bytes = bytes.or(self.groups[index].most.memory).unwrap_or(UNSET);
                self.bound(index, bytes, memory.map(Memory::pager), journal)
            }
            PartOrder::Guarantee { min, low, .. } => self.guarantee(index, *min, *low, journal),
            PartOrder::Reclaim { bytes, files, .. } => {
                if let Some(memory) = memory {
                    memory.pager().reclaim(&self.groups[index].dir, *bytes, *files);
                }
                Ok(())
            }
            PartOrder::Transfer { disk, read, write, .. } => {
                self.transfer(index, disks, (disk, *read, *write), journal)
            }
        };
        match done {
            Err(_) if self.groups[index].is_gone() => Vec::new(),
            done => done.err().into_iter().collect(),
        }
    }

    /// Confines a group to these CPUs; `None`: to those that its manager allows.
    fn confine(
        &mut self,
        index: usize,
        cpus: Option<CpuSet>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let cpus = cpus.or_else(|| self.groups[index].most.cpus.clone()).unwrap_or_default();
        self.set_property(index, Property::AllowedCPUs, Value::Cpus(cpus.clone()));
        self.put(index, CPUS, &cpus.to_string(), journal)
    }

    /// Bounds a group's memory. systemd later writes the bound that it knows, and the kernel reclaims what exceeds it. So
    /// systemd gets a bound only once it is stable and the group is within it ([`Self::send_memory`]). Before a bound grows
    /// beyond systemd's value, systemd is sent the manager's own.
    fn bound(
        &mut self,
        index: usize,
        bytes: u64,
        pager: Option<&mut Pager>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let text = bound_text(bytes);
        let is_there = self.remember(index, HIGH, journal)?;
        if is_there && self.manager_changed_bound(index, HIGH, journal)? {
            return Ok(());
        }
        let group = &mut self.groups[index];
        let sinks = bytes < group.high;
        (group.high, group.unsent_since) = (bytes, Some(self.now));
        if !is_there {
            // systemd creates the file when it gets the property.
            self.send_high(index, bytes);
            return Ok(());
        }
        if bytes > self.groups[index].sent_high {
            let most = self.groups[index].most.memory.unwrap_or(UNSET);
            self.send_high(index, most);
        }
        let group = &mut self.groups[index];
        match pager {
            Some(pager) if sinks => {
                pager.lower(&group.dir, &text);
                let before = group.written.insert(HIGH, text).or_else(|| group.originals.get(HIGH).cloned());
                group.former_highs.extend(before);
                let most = group.former_highs.len().saturating_sub(FORMER_HIGHS_MAX);
                group.former_highs.drain(..most);
                Ok(())
            }
            pager => {
                if let Some(pager) = pager {
                    pager.raised(&group.dir, &text);
                }
                self.put(index, HIGH, &text, journal)
            }
        }
    }

    fn send_high(&mut self, index: usize, bytes: u64) {
        self.groups[index].sent_high = bytes;
        self.set_property(index, Property::MemoryHigh, Value::Number(bytes));
    }

    /// Sends stable memory values to systemd; a bound only once the group is within it.
    fn send_memory(&mut self) {
        let now = self.now;
        let rests = |since: &Time| now >= since.saturating_add(REST_NS);
        let within = |dir: &Path, bytes: u64| {
            read(&dir.join("memory.current")).is_ok_and(|now| now.parse().is_ok_and(|now: u64| now <= bytes))
        };
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            if !group.unsent_since.is_some_and(|since| rests(&since)) {
                continue;
            }
            let (high, kept) = (group.high, group.kept);
            if group.keeps() && group.sent_kept != kept {
                group.sent_kept = kept;
                self.send_protection(index, kept);
            }
            let group = &mut self.groups[index];
            if group.sent_high == high || within(&group.dir, high) {
                group.unsent_since = None;
                self.send_high(index, high);
            }
        }
        if self.around_unsent_since.take_if(|since| rests(since)).is_some() {
            self.send_around();
        }
    }

    fn send_protection(&mut self, index: usize, (min, low): (u64, u64)) {
        self.set_property(index, Property::MemoryLow, Value::Number(low));
        self.set_property(index, Property::MemoryMin, Value::Number(min));
    }

    /// Writes the orders in force again after systemd has written a unit's files with values that may be stale.
    fn rewrite(&mut self, unit: &str, pager: Option<&mut Pager>) -> Vec<LiveError> {
        let mut problems = Vec::new();
        problems.extend(self.rewrite_around(unit));
        let Some(group) = self.groups.iter().find(|group| group.systemd_unit.as_deref() == Some(unit)) else {
            return problems;
        };
        if group.keeps() {
            problems.extend(put_kept(&group.dir, group.kept.0, group.kept.1).err());
        }
        if let Some(cap) = group.lost_cap() {
            problems.extend(knob::put(&group.dir.join(CAP), cap).err());
        }
        // CPUs that were called back must not be used while systemd has the former set.
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
        if group.is_gone() { Vec::new() } else { problems }
    }

    /// Sends a property to systemd, if systemd owns the group.
    fn set_property(&mut self, index: usize, property: Property, value: Value) {
        if let (Some(properties), Some(unit)) = (&mut self.properties, &self.groups[index].systemd_unit) {
            properties.want(unit, property, value);
        }
    }

    /// Writes a file of a group, and remembers its manager's value.
    fn put(
        &mut self,
        index: usize,
        file: &'static str,
        value: &str,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        if !self.remember(index, file, journal)? || self.manager_changed_bound(index, file, journal)? {
            return Ok(());
        }
        let group = &mut self.groups[index];
        if file == CAP {
            group.cap = Some(value.to_owned());
        }
        let put = if file == CPUS && value.is_empty() {
            let all = knob::put_cpus(&group.dir, None);
            all.map(|all| all.map_or_else(String::new, |cpus| cpus.to_string()))
        } else {
            knob::put(&group.dir.join(file), value).map(|()| value.to_owned())
        };
        let written = match put {
            // systemd has just written an earlier value. It gets this one too.
            Err(LiveError::NotInForce { .. }) if group.systemd_unit.is_some() && file != CAP => {
                value.to_owned()
            }
            put => put?,
        };
        group.written.insert(file, written);
        Ok(())
    }

    /// Whether a manager other than systemd has meanwhile set a value that bounds what is to be written. The policy then orders
    /// within that at its next step. Checked before each write to a file whose content is not the last one written here.
    fn manager_changed_bound(
        &mut self,
        index: usize,
        file: &'static str,
        journal: &mut Journal,
    ) -> Result<bool, LiveError> {
        let group = &mut self.groups[index];
        if group.systemd_unit.is_some() || group.has_ours(file) {
            return Ok(false);
        }
        let before = group.most.clone();
        // Files that the manager reset to its former value are rewritten at the next poll.
        group.poll_manager(journal)?;
        let now = &group.most;
        Ok(match file {
            CPUS => before.cpus != now.cpus,
            HIGH => before.memory != now.memory,
            WEIGHT => before.weight != now.weight,
            CAP => before.cap != now.cap,
            _ => before.kept != now.kept,
        })
    }

    /// Records the manager's value of a file before the first write. False if the file does not exist yet because systemd has
    /// to enable the controller, and will then write the property itself.
    fn remember(
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
            note(&mut self.recorded, &path, &original, journal)?;
            group.originals.insert(file, original);
        }
        Ok(true)
    }

    /// Restores the manager's values in a group that is no longer held, and removes its journal entries. systemd reverts its
    /// properties itself.
    fn give_back(&mut self, mut group: ForeignGroup, journal: &mut Journal) -> Vec<LiveError> {
        let files: Vec<&str> = group.originals.keys().copied().collect();
        let is_systemds = group.systemd_unit.is_some();
        if is_systemds {
            // systemd cannot revert values that it never got.
            let unsent = group.unsent_since.is_some();
            group.originals.retain(|file, _| *file == CAP || MEMORY_FILES.contains(file) && unsent);
        }
        // Nothing is left to restore in a group that has ended.
        let is_gone = group.is_gone();
        let put = |(file, original): (&&'static str, &String)| {
            let path = group.dir.join(file);
            let written = if *file == CPUS && original.is_empty() {
                host::empty_cpus(&path).map(drop)
            } else {
                host::write(&path, original)
            };
            let source = written.err()?;
            Some((*file, failed(&path, format!("write back `{original}`"), source)))
        };
        let (lost, mut problems): (Vec<&str>, Vec<LiveError>) =
            if is_gone { (Vec::new(), Vec::new()) } else { group.originals.iter().filter_map(put).unzip() };
        if group.is_gone() {
            problems.clear();
        } else if is_systemds {
            return problems;
        }
        // The caretaker restores what could not be written, and rates of a group that still exists.
        let files = files.into_iter().filter(|file| !lost.contains(file)).chain(is_gone.then_some("io.max"));
        let left: Vec<PathBuf> = files.map(|file| group.dir.join(file)).collect();
        self.recorded.retain(|path| !(left.contains(path) || is_gone && path.parent() == Some(&group.dir)));
        let left: Vec<Entry> = left.into_iter().map(|path| Entry::KnobReleased { path }).collect();
        problems.extend(record(journal, &left).err());
        problems
    }

    /// Protects a group's memory, and that of its ancestors accordingly.
    fn guarantee(
        &mut self,
        index: usize,
        min: u64,
        low: u64,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let group = &mut self.groups[index];
        (group.kept, group.unsent_since) = ((min, low), Some(self.now));
        if group.systemd_unit.is_some() && !host::exists(&group.dir.join("memory.low")) {
            // systemd creates the file when it gets the property.
            self.send_protection(index, (min, low));
        }
        self.put(index, "memory.low", &low.to_string(), journal)?;
        self.put(index, "memory.min", &min.to_string(), journal)?;
        self.keep_around(journal)
    }

    fn transfer(
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

/// Records a file's original content in the journal before the first write.
fn note(
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
    host::look(dir).ok().map(|found| found.ino())
}

/// A memory bound in the format of the control files.
fn bound_text(bytes: u64) -> String {
    if bytes == UNSET { "max".to_owned() } else { bytes.to_string() }
}

/// Writes a group's memory protection.
fn put_kept(dir: &Path, min: u64, low: u64) -> Result<(), LiveError> {
    knob::put(&dir.join("memory.low"), &low.to_string())?;
    knob::put(&dir.join("memory.min"), &min.to_string())
}

/// The systemd unit that owns a control group.
fn systemd_unit_of(mount: &Path, dir: &Path) -> Option<String> {
    let group = Path::new("/").join(dir.strip_prefix(mount).ok()?);
    unit_of(&group).filter(|found| found.is_its_own && found.user.is_none()).map(|found| found.unit)
}

impl ForeignGroup {
    fn new(id: GroupId, unit: UnitId, path: &str, cgroup: &str, dir: PathBuf) -> ForeignGroup {
        let content = |file: &str| read(&dir.join(file)).ok();
        let most = bounds::by(content);
        let mut group = ForeignGroup {
            id,
            unit,
            path: path.to_owned(),
            cgroup: cgroup.to_owned(),
            systemd_unit: unit_of(Path::new(cgroup))
                .filter(|found| found.is_its_own && found.user.is_none())
                .map(|found| found.unit),
            inode: inode_of(&dir),
            dir,
            rates: BTreeMap::new(),
            high: UNSET,
            sent_high: UNSET,
            unsent_since: None,
            sent_kept: (0, 0),
            former_highs: Vec::new(),
            memory_max: None,
            usage: None,
            used_ns: 0,
            most,
            cap: None,
            kept: (0, 0),
            originals: BTreeMap::new(),
            written: BTreeMap::new(),
        };
        group.begin_count();
        group.memory_max = group.read_memory_max();
        group
    }

    /// Whether the group has been removed. Another may have taken its path.
    fn is_gone(&self) -> bool {
        let now = inode_of(&self.dir);
        now.is_none() || now != self.inode
    }

    /// Resets the state after systemd has made the group again, with the properties that it knows.
    fn reset_to_sent_values(&mut self) {
        self.inode = inode_of(&self.dir);
        (self.high, self.kept, self.unsent_since) = (self.sent_high, self.sent_kept, None);
        self.cap = None;
        self.written.clear();
        self.former_highs.clear();
        self.most.cap = self.is_capped_by_others();
        self.memory_max = self.read_memory_max();
    }

    /// Starts to count CPU time.
    fn begin_count(&mut self) {
        let usage = Gauge::open(&self.dir.join("cpu.stat")).ok();
        self.usage = usage.and_then(|gauge| gauge.value("usage_usec").ok().map(|since| (gauge, since)));
        self.used_ns = 0;
    }

    /// Whether the files have the values last sent to systemd instead of those in force, as after a `daemon-reload`.
    fn has_sent_values(&self) -> bool {
        let shows = |file: &str, text: &str| self.content(file).is_some_and(|now| now == text);
        let high = self.sent_high != self.high && shows(HIGH, &bound_text(self.sent_high));
        let kept = self.keeps()
            && self.sent_kept != self.kept
            && shows("memory.low", &self.sent_kept.1.to_string())
            && shows("memory.min", &self.sent_kept.0.to_string());
        high || kept || self.lost_cap().is_some()
    }

    /// The CPU cap that was written here and is gone: systemd does not know it, and resets cpu.max.
    fn lost_cap(&self) -> Option<&String> {
        let is_lost = |cap: &&String| {
            !self.most.cap && self.content(CAP).is_some_and(|now| now != **cap && now.starts_with("max"))
        };
        self.cap.as_ref().filter(is_lost)
    }

    /// Values that were written here but not sent to systemd yet, and are no longer in the files.
    fn overwritten(&self, properties: &Properties) -> Vec<(&'static str, &str)> {
        let Some(unit) = &self.systemd_unit else { return Vec::new() };
        let lost = |(file, property): (&'static str, Property)| {
            let ours = self.written.get(file).filter(|_| properties.wants(unit, property))?;
            (self.content(file).as_ref() != Some(ours)).then_some((file, ours.as_str()))
        };
        [(CPUS, Property::AllowedCPUs), (WEIGHT, Property::CPUWeight)].into_iter().filter_map(lost).collect()
    }

    /// Whether its memory protection was written here, and no administrator has set it since.
    fn keeps(&self) -> bool {
        self.written.contains_key("memory.low") && !self.most.kept
    }

    /// Whether a file has the last value written here, or a thread is about to write it.
    fn has_ours(&self, file: &str) -> bool {
        let is_ours = |now: &String| {
            self.written.get(file) == Some(now) || file == HIGH && self.former_highs.contains(now)
        };
        self.content(file).is_some_and(|now| is_ours(&now))
    }

    /// Takes content that was not written here as the manager's value. Returns the files that the manager reset to its former
    /// value, which need to be written again.
    fn poll_manager(&mut self, journal: &mut Journal) -> Result<Vec<&'static str>, LiveError> {
        let mut lost = Vec::new();
        let files: Vec<&'static str> = self.originals.keys().copied().collect();
        for file in files {
            let path = self.dir.join(file);
            let Ok(now) = read(&path) else { continue };
            let written = self.written.get(file);
            if written == Some(&now) {
                if file == HIGH {
                    self.former_highs.clear();
                }
            } else if written.is_some() && file == HIGH && self.former_highs.contains(&now) {
                // A thread is about to write the ordered bound.
            } else if self.originals.get(file) == Some(&now) {
                lost.extend(written.map(|_| file));
            } else {
                let left = Entry::KnobReleased { path: path.clone() };
                record(journal, &[left, Entry::Knob { path, original: now.clone() }])?;
                self.written.remove(file);
                self.originals.insert(file, now);
            }
        }
        let rates = self.most.rates;
        let content = |file: &str| match self.originals.get(file) {
            Some(original) => Some(original.clone()),
            None => read(&self.dir.join(file)).ok(),
        };
        // io.max mixes lines written here with the manager's, so its rates are not read again.
        self.most = GroupBounds { rates, ..bounds::by(content) };
        Ok(lost)
    }

    /// Writes the orders in force into these files again.
    fn write_lost(&self, lost: &[&'static str], mut pager: Option<&mut Pager>) -> Vec<LiveError> {
        let mut problems = Vec::new();
        for file in lost {
            let Some(ours) = self.written.get(file) else { continue };
            match &mut pager {
                Some(pager) if *file == HIGH && self.high != UNSET => pager.lower(&self.dir, ours),
                _ => problems.extend(knob::put(&self.dir.join(file), ours).err()),
            }
        }
        if self.is_gone() { Vec::new() } else { problems }
    }

    /// The content of a file; `None` if it cannot be read.
    fn content(&self, file: &str) -> Option<String> {
        read(&self.dir.join(file)).ok()
    }

    /// The manager's memory.max; `None` if unlimited.
    fn read_memory_max(&self) -> Option<u64> {
        read(&self.dir.join("memory.max")).ok()?.parse().ok()
    }

    /// Whether its manager has set a CPU cap. systemd has no property with the precision of cpu.max.
    fn is_capped_by_others(&self) -> bool {
        let is_ours = |now: &String| self.cap.as_ref() == Some(now);
        read(&self.dir.join(CAP)).is_ok_and(|now| !now.starts_with("max") && !is_ours(&now))
    }

    fn read_used(&mut self) -> u64 {
        if let Some((gauge, since)) = &self.usage
            && let Ok(now) = gauge.value("usage_usec")
        {
            self.used_ns = self.used_ns.max(now.saturating_sub(*since).saturating_mul(1_000));
        }
        self.used_ns
    }
}

#[cfg(test)]
mod tests;
