//! Units held in control groups of other programs, where their processes are.
//!
//! Which groups these are, the roster says ([`Roster::places`](crate::observe::roster::Roster::places)). What holds there, the plan
//! says ([`PartOrder`]). Here, the groups' files are read and written.
//!
//! What a file said before it is written first is its manager's, and a bound on what is written: the policy sees it
//! ([`GroupBounds`]). It is in the journal, and comes back when the group is no place any more. What protects a group's memory
//! protects those around it, as much as all places in them together.
//!
//! Where the group is systemd's, systemd is told as well ([`properties`](super::properties)), and enables the controllers.
//! Elsewhere a controller that a group lacks is enabled in those around it.
//!
//! systemd writes what it is told a moment later, and all of a group's files with it. Take an owner that calls memory back:
//! its bound has grown again by then, and a kernel that is told the lower one takes the owner's pages before it answers. So of
//! memory systemd is told what has been at rest for five seconds. Before a bound grows beyond what systemd knows, it is told that
//! there is none. When it has written, the files are written anew. Of CPUs and weights, too, systemd knows what held a while ago
//! ([`properties`](super::properties)). So it is looked twice a second whether it has written that.
//!
//! A manager other than systemd is not asked: its groups' files are read every five seconds, and each before it is written. What is
//! in one, and was not written here, is the manager's from then on.
//!
//! A group may go, and another come to have its path, as when a service is restarted. It is told from the former by its number in
//! the file system. To the policy it is another place. systemd gives a unit's new group what it was told for the former one.
//!
//! Limits: a group's `cgroup.freeze` is never written.

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
use super::properties::Properties;
use crate::LiveError;
use crate::host;
use crate::observe::bounds;
use crate::observe::caps::CAP;
use crate::observe::knob::{Gauge, failed, read};
use crate::systemd::{Property, UNSET, Value, unit_of};
use crate::undo::journal::{Entry, Journal, record};

/// The controllers that are enabled for places.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "io", "memory"];

/// The file of a set of CPUs.
const CPUS: &str = "cpuset.cpus";
/// The file of a weight.
const WEIGHT: &str = "cpu.weight";
/// The file of a bound on memory.
const HIGH: &str = "memory.high";
/// Those of memory that are written here.
const MEMORY_FILES: [&str; 3] = [HIGH, "memory.low", "memory.min"];

/// For how long nothing of a place's memory is ordered anew before systemd is told.
const REST_NS: Time = 5_000 * MS;

/// So often it is looked for what a manager other than systemd has written.
const LOOK_NS: Time = 5_000 * MS;

/// So often it is looked whether systemd has written CPUs and weights over that it was not told yet.
const UNTOLD_LOOK_NS: Time = 500 * MS;

/// So many bounds are remembered that a thread was to write after the one that a file has.
const FORMER_HIGHS_MAX: usize = 64;

/// Reading and writing, in bytes per second.
type Rates = (Option<u64>, Option<u64>);

/// A place.
#[derive(Debug)]
struct Spot {
    id: GroupId,
    unit: UnitId,
    /// The unit's path: its name across reloads.
    path: String,
    /// The control group, as /proc shows its path.
    group: String,
    dir: PathBuf,
    /// The group's number in the file system; `None`: it had gone when it was found.
    inode: Option<u64>,
    /// The systemd unit whose group it is; `None`: another program's.
    systemds: Option<String>,
    /// Rates by disk.
    rates: BTreeMap<String, Rates>,
    /// cpu.stat, and what it said when the group became a place.
    usage: Option<(Gauge, u64)>,
    used_ns: u64,
    most: GroupBounds,
    /// What was written into cpu.max.
    cap: Option<String>,
    /// The bound on memory that was ordered last, and the one that systemd was told last.
    high: u64,
    told_high: u64,
    /// When something of its memory was ordered that systemd was not told yet.
    untold_since: Option<Time>,
    /// What systemd was told last is kept for it.
    told_kept: (u64, u64),
    /// What memory.high may say still, until a thread has written the lower bound that was ordered.
    former_highs: Vec<String>,
    /// memory.max, which is never written here.
    bound: Option<u64>,
    kept: (u64, u64),
    /// What its manager had in each file that was written.
    originals: BTreeMap<&'static str, String>,
    /// What each of them said after it was written last.
    written: BTreeMap<&'static str, String>,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    mount: PathBuf,
    last: u32,
    spots: Vec<Spot>,
    /// By unit, CPU time used in groups that were its places.
    carried: BTreeMap<String, u64>,
    /// Files whose first content the journal has.
    recorded: BTreeSet<PathBuf>,
    /// Groups around places, and what is kept for what is in them.
    around: BTreeMap<PathBuf, (u64, u64)>,
    /// When that changed, and systemd was not told yet.
    around_untold_since: Option<Time>,
    properties: Option<Properties>,
    looked_at: Time,
    untold_looked_at: Time,
    now: Time,
}

impl Places {
    /// None yet, of a hierarchy that is mounted there.
    pub(super) fn new(mount: &Path) -> Places {
        Places {
            mount: mount.to_owned(),
            last: 0,
            spots: Vec::new(),
            carried: BTreeMap::new(),
            recorded: BTreeSet::new(),
            around: BTreeMap::new(),
            around_untold_since: None,
            properties: None,
            looked_at: 0,
            untold_looked_at: 0,
            now: 0,
        }
    }

    /// That systemd does not answer, for as long as it does not.
    pub(super) fn silence(&self) -> Option<&LiveError> {
        self.properties.as_ref().and_then(Properties::silence)
    }

    /// Begins to tell the machine's systemd.
    pub(super) fn tell_systemd(&mut self) -> Result<(), LiveError> {
        self.properties = Properties::begin()?;
        Ok(())
    }

    /// Hears what systemd says, and asks it for what is due.
    pub(super) fn look(
        &mut self,
        now: Time,
        mut pager: Option<&mut Pager>,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        self.now = now;
        let mut problems = Vec::new();
        let mut rewritten = BTreeSet::new();
        if now >= self.looked_at.saturating_add(LOOK_NS) {
            self.looked_at = now;
            for spot in &mut self.spots {
                if spot.has_what_was_told() {
                    rewritten.extend(spot.systemds.clone());
                }
                if spot.systemds.is_none() {
                    match spot.hear_manager(journal) {
                        Ok(lost) => problems.extend(spot.write_lost(&lost, pager.as_deref_mut())),
                        Err(error) => problems.push(error),
                    }
                } else {
                    spot.most.cap = spot.is_capped_by_others();
                    spot.bound = spot.bound_now();
                }
            }
        }
        if now >= self.untold_looked_at.saturating_add(UNTOLD_LOOK_NS) {
            self.untold_looked_at = now;
            if let Some(properties) = &mut self.properties {
                for spot in &self.spots {
                    if let (Some(unit), false) = (&spot.systemds, spot.untold(properties).is_empty()) {
                        properties.hasten(unit);
                        rewritten.insert(unit.clone());
                    }
                }
            }
        }
        self.tell_memory();
        let Some(properties) = &mut self.properties else { return problems };
        problems.extend(properties.look(now, journal));
        rewritten.extend(properties.take_rewritten());
        for unit in &rewritten {
            problems.extend(self.write_again(unit, pager.as_deref_mut()));
        }
        let Some(properties) = &self.properties else { return problems };
        for spot in &mut self.spots {
            if let Some(set) = spot.systemds.as_ref().and_then(|unit| properties.set_by_others(unit)) {
                let memory = [set.memory, spot.bound].into_iter().flatten().min();
                spot.most = GroupBounds { memory, cap: spot.most.cap, ..set };
            }
        }
        problems
    }

    /// Follows which places there are; whether that changed.
    pub(super) fn follow(
        &mut self,
        contract: &Contract,
        places: &BTreeMap<String, UnitId>,
        disks: &mut Disks,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) -> bool {
        let before: Vec<GroupId> = self.spots.iter().map(|spot| spot.id).collect();
        // What a manager other than systemd made anew is as that manager wants it.
        let is_same =
            |spot: &Spot| places.contains_key(&spot.group) && (spot.systemds.is_some() || !spot.is_gone());
        let (stays, goes): (Vec<Spot>, Vec<Spot>) =
            std::mem::take(&mut self.spots).into_iter().partition(is_same);
        self.spots = stays;
        let (have_gone, kept_of_gone) = (!goes.is_empty(), goes.iter().any(|spot| spot.kept != (0, 0)));
        for spot in goes {
            *self.carried.entry(spot.path.clone()).or_default() += spot.used_ns;
            if let (Some(properties), Some(unit)) = (&mut self.properties, &spot.systemds) {
                properties.leave(unit);
            }
            problems.extend(self.give_back(spot, journal));
        }
        for number in 0..self.spots.len() {
            let unit = places[&self.spots[number].group];
            let spot = &mut self.spots[number];
            spot.unit = unit;
            let is_made_anew = spot.is_gone() && host::is_dir(&spot.dir);
            if is_made_anew {
                spot.has_what_systemd_gives();
            }
            if is_made_anew || spot.path != contract.unit(unit).path {
                problems.extend(self.begin_anew(number, &contract.unit(unit).path, disks, journal));
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
        let known: BTreeSet<&str> = self.spots.iter().map(|spot| spot.group.as_str()).collect();
        let new: Vec<(&String, &UnitId)> =
            places.iter().filter(|(group, _)| !known.contains(group.as_str())).collect();
        for (group, unit) in new {
            let dir = self.mount.join(group.trim_start_matches('/'));
            if !host::is_dir(&dir) {
                continue;
            }
            self.last += 1;
            let mut spot = Spot::new(GroupId(self.last), *unit, &contract.unit(*unit).path, group, dir);
            if self.properties.is_none() {
                spot.systemds = None;
            }
            match (&mut self.properties, &spot.systemds) {
                (Some(properties), Some(unit)) => properties.come(unit),
                _ => problems.extend(self.enable(&spot.dir, journal)),
            }
            self.spots.push(spot);
        }
        !before.iter().copied().eq(self.spots.iter().map(|spot| spot.id))
    }

    /// A place is another unit's from now on, as by a reload, or its group was made anew. What is written there stays until it is
    /// ordered anew, and what is not ordered for every place goes.
    fn begin_anew(
        &mut self,
        number: usize,
        path: &str,
        disks: &mut Disks,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let spot = &mut self.spots[number];
        *self.carried.entry(spot.path.clone()).or_default() += spot.used_ns;
        self.last += 1;
        (spot.id, spot.path) = (GroupId(self.last), path.to_owned());
        spot.begin_count();
        let (is_kept, is_capped) = (spot.kept != (0, 0), spot.cap.is_some());
        let is_confined = spot.originals.contains_key(CPUS);
        let rated: Vec<String> = spot.rates.keys().cloned().collect();
        let mut problems = Vec::new();
        if is_kept {
            problems.extend(self.guarantee(number, 0, 0, journal).err());
        }
        if is_capped {
            problems.extend(self.put(number, CAP, &knob::cpu_max(None), journal).err());
        }
        if is_confined {
            problems.extend(self.confine(number, None, journal).err());
        }
        for disk in &rated {
            problems.extend(self.transfer(number, disks, (disk, None, None), journal).err());
        }
        let spot = &mut self.spots[number];
        spot.rates.clear();
        if spot.is_gone() { Vec::new() } else { problems }
    }

    /// Enables controllers in the groups around one.
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

    /// What was used in the places of a unit, and in those that it had, in nanoseconds. Reads what the kernel counts.
    pub(super) fn used_ns(&mut self, unit: UnitId, path: &str) -> u64 {
        let carried = self.carried.get(path).copied().unwrap_or(0);
        let spots = self.spots.iter_mut().filter(|spot| spot.unit == unit);
        carried + spots.map(Spot::read_used).sum::<u64>()
    }

    /// The places: number, unit and directory.
    pub(super) fn all(&self) -> impl Iterator<Item = (GroupId, UnitId, &Path)> {
        self.spots.iter().map(|spot| (spot.id, spot.unit, spot.dir.as_path()))
    }

    /// Where the hierarchy is mounted.
    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    /// How many CPUs managers other than systemd have set in the control groups that units were made of.
    pub(super) fn given_cpus(&self, contract: &Contract) -> Vec<(UnitId, u32)> {
        let of = |spot: &Spot| {
            let is_units_own = contract.group_of(spot.unit) == Some(spot.group.as_str());
            let cpus = spot.most.cpus.as_ref().filter(|_| is_units_own && spot.systemds.is_none())?;
            Some((spot.unit, u32::try_from(cpus.len()).ok()?))
        };
        self.spots.iter().filter_map(of).collect()
    }

    /// A place with a cap of another program's, as /proc shows its path.
    pub(super) fn capped(&self) -> Option<&str> {
        self.spots.iter().find(|spot| spot.most.cap).map(|spot| spot.group.as_str())
    }

    /// Whether the cap of a place was written here.
    pub(super) fn has_capped(&self, dir: &Path, cap: &str) -> bool {
        self.spots.iter().any(|spot| spot.dir == dir && spot.cap.as_deref() == Some(cap))
    }

    /// What the policy is told of them. `memory` is what each was charged when memory was looked at last.
    pub(super) fn facts(
        &mut self,
        memory: &BTreeMap<GroupId, u64>,
        disks: &BTreeMap<GroupId, Vec<(String, DiskUse)>>,
    ) -> Vec<GroupFacts> {
        let facts = |spot: &mut Spot| GroupFacts {
            id: spot.id,
            path: spot.group.clone(),
            unit: spot.unit,
            used_ns: spot.used_ns,
            memory: memory.get(&spot.id).copied().unwrap_or(0),
            disks: disks.get(&spot.id).cloned().unwrap_or_default(),
            most: spot.most.clone(),
        };
        self.spots.iter_mut().map(facts).collect()
    }

    /// Carries out an order about a place.
    pub(super) fn carry_out(
        &mut self,
        order: &PartOrder,
        memory: Option<&mut Memory>,
        disks: &mut Disks,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let Some(number) = order.at().and_then(|at| self.spots.iter().position(|spot| spot.id == at)) else {
            // It has gone since it was seen.
            return Vec::new();
        };
        let done = match order {
            PartOrder::Confine { cpus, .. } => self.confine(number, cpus.clone(), journal),
            PartOrder::Weigh { weight, .. } => {
                self.tell(number, Property::CPUWeight, Value::Number(u64::from(*weight)));
                self.put(number, WEIGHT, &weight.to_string(), journal)
            }
            // systemd has no property in cpu.max's own measure.
            PartOrder::Cap { micro_cpus, .. } => self.put(number, CAP, &knob::cpu_max(*micro_cpus), journal),
            PartOrder::Allow { bytes, .. } => {
                let bytes = bytes.or(self.spots[number].most.memory).unwrap_or(UNSET);
                self.bound(number, bytes, memory.map(Memory::pager), journal)
            }
            PartOrder::Guarantee { min, low, .. } => self.guarantee(number, *min, *low, journal),
            PartOrder::Reclaim { bytes, files, .. } => {
                if let Some(memory) = memory {
                    memory.pager().reclaim(&self.spots[number].dir, *bytes, *files);
                }
                Ok(())
            }
            PartOrder::Transfer { disk, read, write, .. } => {
                self.transfer(number, disks, (disk, *read, *write), journal)
            }
        };
        match done {
            Err(_) if self.spots[number].is_gone() => Vec::new(),
            done => done.err().into_iter().collect(),
        }
    }

    /// Has a place run on these CPUs; `None`: on all that its manager allows.
    fn confine(
        &mut self,
        number: usize,
        cpus: Option<CpuSet>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let cpus = cpus.or_else(|| self.spots[number].most.cpus.clone()).unwrap_or_default();
        self.tell(number, Property::AllowedCPUs, Value::Cpus(cpus.clone()));
        self.put(number, CPUS, &cpus.to_string(), journal)
    }

    /// Bounds a place's memory. systemd writes into the file itself, later, and a kernel takes what is beyond a bound before it
    /// answers. So systemd is told a bound only when it has been at rest, and the place is within it ([`Self::tell_memory`]).
    /// Before a bound grows beyond the one that systemd knows, systemd is told that there is none.
    fn bound(
        &mut self,
        number: usize,
        bytes: u64,
        pager: Option<&mut Pager>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let text = bound_text(bytes);
        let is_there = self.remember(number, HIGH, journal)?;
        if is_there && self.is_bounded_anew(number, HIGH, journal)? {
            return Ok(());
        }
        let spot = &mut self.spots[number];
        let sinks = bytes < spot.high;
        (spot.high, spot.untold_since) = (bytes, Some(self.now));
        if !is_there {
            // It comes when systemd has been told.
            self.tell_high(number, bytes);
            return Ok(());
        }
        if bytes > self.spots[number].told_high {
            let most = self.spots[number].most.memory.unwrap_or(UNSET);
            self.tell_high(number, most);
        }
        let spot = &mut self.spots[number];
        match pager {
            Some(pager) if sinks => {
                pager.lower(&spot.dir, &text);
                let before = spot.written.insert(HIGH, text).or_else(|| spot.originals.get(HIGH).cloned());
                spot.former_highs.extend(before);
                let most = spot.former_highs.len().saturating_sub(FORMER_HIGHS_MAX);
                spot.former_highs.drain(..most);
                Ok(())
            }
            pager => {
                if let Some(pager) = pager {
                    pager.raised(&spot.dir, &text);
                }
                self.put(number, HIGH, &text, journal)
            }
        }
    }

    fn tell_high(&mut self, number: usize, bytes: u64) {
        self.spots[number].told_high = bytes;
        self.tell(number, Property::MemoryHigh, Value::Number(bytes));
    }

    /// Tells systemd what holds of memory where that has been at rest: a bound only where the place is within it.
    fn tell_memory(&mut self) {
        let now = self.now;
        let rests = |since: &Time| now >= since.saturating_add(REST_NS);
        let within = |dir: &Path, bytes: u64| {
            read(&dir.join("memory.current")).is_ok_and(|now| now.parse().is_ok_and(|now: u64| now <= bytes))
        };
        for number in 0..self.spots.len() {
            let spot = &mut self.spots[number];
            if !spot.untold_since.is_some_and(|since| rests(&since)) {
                continue;
            }
            let (high, kept) = (spot.high, spot.kept);
            if spot.keeps() && spot.told_kept != kept {
                spot.told_kept = kept;
                self.tell_kept(number, kept);
            }
            let spot = &mut self.spots[number];
            if spot.told_high == high || within(&spot.dir, high) {
                spot.untold_since = None;
                self.tell_high(number, high);
            }
        }
        if self.around_untold_since.take_if(|since| rests(since)).is_some() {
            self.tell_around();
        }
    }

    fn tell_kept(&mut self, number: usize, (min, low): (u64, u64)) {
        self.tell(number, Property::MemoryLow, Value::Number(low));
        self.tell(number, Property::MemoryMin, Value::Number(min));
    }

    /// systemd has written a unit's files, by what it was told last: they are to say what was ordered last.
    fn write_again(&mut self, unit: &str, pager: Option<&mut Pager>) -> Vec<LiveError> {
        let mut problems = Vec::new();
        problems.extend(self.write_around_again(unit));
        let Some(spot) = self.spots.iter().find(|spot| spot.systemds.as_deref() == Some(unit)) else {
            return problems;
        };
        if spot.keeps() {
            problems.extend(put_kept(&spot.dir, spot.kept.0, spot.kept.1).err());
        }
        if let Some(cap) = spot.lost_cap() {
            problems.extend(knob::put(&spot.dir.join(CAP), cap).err());
        }
        // CPUs that were called back since are not to be used until systemd has heard of that.
        for (file, ours) in self.properties.iter().flat_map(|properties| spot.untold(properties)) {
            let _ = host::write(&spot.dir.join(file), ours);
        }
        let ours = spot.written.get(HIGH).filter(|ours| spot.says(HIGH).as_ref() != Some(*ours));
        match (ours, pager) {
            (Some(ours), Some(pager)) if spot.high != UNSET => pager.lower(&spot.dir, ours),
            (Some(ours), _) => problems.extend(knob::put(&spot.dir.join(HIGH), ours).err()),
            _ => {}
        }
        // A group that has gone needs nothing.
        if spot.is_gone() { Vec::new() } else { problems }
    }

    /// Tells systemd, if the place is its own.
    fn tell(&mut self, number: usize, property: Property, value: Value) {
        if let (Some(properties), Some(unit)) = (&mut self.properties, &self.spots[number].systemds) {
            properties.want(unit, property, value);
        }
    }

    /// Writes a file of a place, whose manager's value is remembered.
    fn put(
        &mut self,
        number: usize,
        file: &'static str,
        value: &str,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        if !self.remember(number, file, journal)? || self.is_bounded_anew(number, file, journal)? {
            return Ok(());
        }
        let spot = &mut self.spots[number];
        if file == CAP {
            spot.cap = Some(value.to_owned());
        }
        let put = if file == CPUS && value.is_empty() {
            let all = knob::put_cpus(&spot.dir, None);
            all.map(|all| all.map_or_else(String::new, |cpus| cpus.to_string()))
        } else {
            knob::put(&spot.dir.join(file), value).map(|()| value.to_owned())
        };
        let written = match put {
            // systemd has written what it was told before. It is told this value, too.
            Err(LiveError::NotInForce { .. }) if spot.systemds.is_some() && file != CAP => value.to_owned(),
            put => put?,
        };
        spot.written.insert(file, written);
        Ok(())
    }

    /// Whether a manager other than systemd has set something by now that bounds what is to be written. Then the policy orders within
    /// that at its next step. Looks before a file is written that does not say what was written there last.
    fn is_bounded_anew(
        &mut self,
        number: usize,
        file: &'static str,
        journal: &mut Journal,
    ) -> Result<bool, LiveError> {
        let spot = &mut self.spots[number];
        if spot.systemds.is_some() || spot.has_ours(file) {
            return Ok(false);
        }
        let before = spot.most.clone();
        // What its manager took away without bounding anything by it is written again at the next look.
        spot.hear_manager(journal)?;
        let now = &spot.most;
        Ok(match file {
            CPUS => before.cpus != now.cpus,
            HIGH => before.memory != now.memory,
            WEIGHT => before.weight != now.weight,
            CAP => before.cap != now.cap,
            _ => before.kept != now.kept,
        })
    }

    /// Remembers what its manager has in a file, before it is written first. Not where the file comes only when systemd has
    /// been told: it enables the controller, and writes the file then.
    fn remember(
        &mut self,
        number: usize,
        file: &'static str,
        journal: &mut Journal,
    ) -> Result<bool, LiveError> {
        let spot = &mut self.spots[number];
        let path = spot.dir.join(file);
        if spot.systemds.is_some() && !host::exists(&path) {
            return Ok(false);
        }
        if !spot.originals.contains_key(file) {
            let original = read(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
            note(&mut self.recorded, &path, &original, journal)?;
            spot.originals.insert(file, original);
        }
        Ok(true)
    }

    /// A group is no place any more: what was written is as its manager had it, and need not be undone. What systemd was told,
    /// it takes back itself.
    fn give_back(&mut self, mut spot: Spot, journal: &mut Journal) -> Vec<LiveError> {
        let files: Vec<&str> = spot.originals.keys().copied().collect();
        let is_systemds = spot.systemds.is_some();
        if is_systemds {
            // A bound that systemd was not told yet, it cannot take back.
            let untold = spot.untold_since.is_some();
            spot.originals.retain(|file, _| *file == CAP || MEMORY_FILES.contains(file) && untold);
        }
        // A group that is gone took all with it.
        let is_gone = spot.is_gone();
        let put = |(file, original): (&&'static str, &String)| {
            let path = spot.dir.join(file);
            let written = if *file == CPUS && original.is_empty() {
                host::empty_cpus(&path).map(drop)
            } else {
                host::write(&path, original)
            };
            let source = written.err()?;
            Some((*file, failed(&path, format!("write back `{original}`"), source)))
        };
        let (lost, mut problems): (Vec<&str>, Vec<LiveError>) =
            if is_gone { (Vec::new(), Vec::new()) } else { spot.originals.iter().filter_map(put).unzip() };
        if spot.is_gone() {
            problems.clear();
        } else if is_systemds {
            return problems;
        }
        // What could not be written is written at the end; and so are rates, where the group is there still.
        let files = files.into_iter().filter(|file| !lost.contains(file)).chain(is_gone.then_some("io.max"));
        let left: Vec<PathBuf> = files.map(|file| spot.dir.join(file)).collect();
        self.recorded.retain(|path| !(left.contains(path) || is_gone && path.parent() == Some(&spot.dir)));
        let left: Vec<Entry> = left.into_iter().map(|path| Entry::KnobReleased { path }).collect();
        problems.extend(record(journal, &left).err());
        problems
    }

    /// Keeps memory for a place, and for it in those around it.
    fn guarantee(
        &mut self,
        number: usize,
        min: u64,
        low: u64,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let spot = &mut self.spots[number];
        (spot.kept, spot.untold_since) = ((min, low), Some(self.now));
        if spot.systemds.is_some() && !host::exists(&spot.dir.join("memory.low")) {
            // It comes when systemd has been told.
            self.tell_kept(number, (min, low));
        }
        self.put(number, "memory.low", &low.to_string(), journal)?;
        self.put(number, "memory.min", &min.to_string(), journal)?;
        self.keep_around(journal)
    }

    fn transfer(
        &mut self,
        number: usize,
        disks: &mut Disks,
        (disk, read, write): (&str, Option<u64>, Option<u64>),
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        self.spots[number].rates.insert(disk.to_owned(), (read, write));
        let rates = &self.spots[number].rates;
        let list = |of: fn(&Rates) -> Option<u64>| {
            Value::Devices(
                rates.iter().filter_map(|(disk, rates)| Some((format!("/dev/{disk}"), of(rates)?))).collect(),
            )
        };
        let (reads, writes) = (list(|rates| rates.0), list(|rates| rates.1));
        self.tell(number, Property::IOReadBandwidthMax, reads);
        self.tell(number, Property::IOWriteBandwidthMax, writes);
        let spot = &self.spots[number];
        let path = spot.dir.join("io.max");
        if spot.systemds.is_some() && !host::exists(&path) {
            return Ok(());
        }
        let device = disks.number(disk)?;
        let key = spot.dir.join(format!("io.max {device}"));
        if self.recorded.insert(key) {
            let text =
                host::read_to_string(&path).map_err(|source| failed(&path, "read it".to_owned(), source))?;
            let line = crate::observe::disk::stat::line_of(&text, &device);
            let original =
                line.map_or_else(|| format!("{device} rbps=max wbps=max"), |line| line.trim().to_owned());
            record(journal, &[Entry::Line { path, original, given: String::new() }])?;
        }
        disks.cap(&spot.dir, disk, read, write)
    }
}

/// Takes down what was in a file before it is written for the first time.
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

/// A control group's number in the file system. No other has it later.
fn inode_of(dir: &Path) -> Option<u64> {
    host::look(dir).ok().map(|found| found.ino())
}

/// A bound as the kernel's files have it.
fn bound_text(bytes: u64) -> String {
    if bytes == UNSET { "max".to_owned() } else { bytes.to_string() }
}

/// Writes what is kept for a group.
fn put_kept(dir: &Path, min: u64, low: u64) -> Result<(), LiveError> {
    knob::put(&dir.join("memory.low"), &low.to_string())?;
    knob::put(&dir.join("memory.min"), &min.to_string())
}

/// The systemd unit whose own control group this is.
fn systemds(mount: &Path, dir: &Path) -> Option<String> {
    let group = Path::new("/").join(dir.strip_prefix(mount).ok()?);
    unit_of(&group).filter(|found| found.is_its_own && found.user.is_none()).map(|found| found.unit)
}

impl Spot {
    fn new(id: GroupId, unit: UnitId, path: &str, group: &str, dir: PathBuf) -> Spot {
        let says = |file: &str| read(&dir.join(file)).ok();
        let most = bounds::by(says);
        let mut spot = Spot {
            id,
            unit,
            path: path.to_owned(),
            group: group.to_owned(),
            systemds: unit_of(Path::new(group))
                .filter(|found| found.is_its_own && found.user.is_none())
                .map(|found| found.unit),
            inode: inode_of(&dir),
            dir,
            rates: BTreeMap::new(),
            high: UNSET,
            told_high: UNSET,
            untold_since: None,
            told_kept: (0, 0),
            former_highs: Vec::new(),
            bound: None,
            usage: None,
            used_ns: 0,
            most,
            cap: None,
            kept: (0, 0),
            originals: BTreeMap::new(),
            written: BTreeMap::new(),
        };
        spot.begin_count();
        spot.bound = spot.bound_now();
        spot
    }

    /// Whether the group that it was has gone. Another may be there.
    fn is_gone(&self) -> bool {
        let now = inode_of(&self.dir);
        now.is_none() || now != self.inode
    }

    /// systemd has made the group anew. What it was told before holds there, and nothing else that was written.
    fn has_what_systemd_gives(&mut self) {
        self.inode = inode_of(&self.dir);
        (self.high, self.kept, self.untold_since) = (self.told_high, self.told_kept, None);
        self.cap = None;
        self.written.clear();
        self.former_highs.clear();
        self.most.cap = self.is_capped_by_others();
        self.bound = self.bound_now();
    }

    /// Counts CPU time from now on.
    fn begin_count(&mut self) {
        let usage = Gauge::open(&self.dir.join("cpu.stat")).ok();
        self.usage = usage.and_then(|gauge| gauge.value("usage_usec").ok().map(|since| (gauge, since)));
        self.used_ns = 0;
    }

    /// Whether systemd has read its files anew, and so has written what it was told last where something else holds.
    fn has_what_was_told(&self) -> bool {
        let says = |file: &str, text: &str| self.says(file).is_some_and(|now| now == text);
        let high = self.told_high != self.high && says(HIGH, &bound_text(self.told_high));
        let kept = self.keeps()
            && self.told_kept != self.kept
            && says("memory.low", &self.told_kept.1.to_string())
            && says("memory.min", &self.told_kept.0.to_string());
        high || kept || self.lost_cap().is_some()
    }

    /// The cap that was written, where nobody has one now. systemd is not told it, and so writes that there is none.
    fn lost_cap(&self) -> Option<&String> {
        let is_lost = |cap: &&String| {
            !self.most.cap && self.says(CAP).is_some_and(|now| now != **cap && now.starts_with("max"))
        };
        self.cap.as_ref().filter(is_lost)
    }

    /// What was written since systemd was told, and stands there no more.
    fn untold(&self, properties: &Properties) -> Vec<(&'static str, &str)> {
        let Some(unit) = &self.systemds else { return Vec::new() };
        let lost = |(file, property): (&'static str, Property)| {
            let ours = self.written.get(file).filter(|_| properties.wants(unit, property))?;
            (self.says(file).as_ref() != Some(ours)).then_some((file, ours.as_str()))
        };
        [(CPUS, Property::AllowedCPUs), (WEIGHT, Property::CPUWeight)].into_iter().filter_map(lost).collect()
    }

    /// Whether what is kept for it was written here. What an administrator keeps is left alone.
    fn keeps(&self) -> bool {
        self.written.contains_key("memory.low") && !self.most.kept
    }

    /// Whether a file says what was written there last, or will soon.
    fn has_ours(&self, file: &str) -> bool {
        let is_ours = |now: &String| {
            self.written.get(file) == Some(now) || file == HIGH && self.former_highs.contains(now)
        };
        self.says(file).is_some_and(|now| is_ours(&now))
    }

    /// Looks for what its manager has set: what a file says, if it is not what was written here. Which files say again what they said
    /// before anything was written here: that bounds nothing more than before.
    fn hear_manager(&mut self, journal: &mut Journal) -> Result<Vec<&'static str>, LiveError> {
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
                // A thread is about to write ours.
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
        let says = |file: &str| match self.originals.get(file) {
            Some(original) => Some(original.clone()),
            None => read(&self.dir.join(file)).ok(),
        };
        // Lines of io.max are written here, too.
        self.most = GroupBounds { rates, ..bounds::by(says) };
        Ok(lost)
    }

    /// Writes again what was lost in these files.
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

    /// What one of its files says; `None` where it cannot be read.
    fn says(&self, file: &str) -> Option<String> {
        read(&self.dir.join(file)).ok()
    }

    /// Its memory.max, which is its manager's.
    fn bound_now(&self) -> Option<u64> {
        read(&self.dir.join("memory.max")).ok()?.parse().ok()
    }

    /// Whether its cap on CPU time is its manager's. systemd has no property that says it in this file's measure.
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
