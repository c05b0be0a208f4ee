//! Units as groups of the kernel's `resctrl`, which counts and throttles their memory traffic.
//!
//! Algorithm: each outermost unit has a monitoring group. If gangs are chosen by their cache occupancy, so has each of its jobs
//! ([`jobs`]). The threads of the unit's processes, including its sub-units', are moved there when they appear; their children
//! are born there. When a unit is throttled for the first time, it gets a control group instead.
//!
//! Properties: a process in another program's group stays there. Every group is in the journal before it is made. The kernel
//! moves the tasks of a removed group to the default group, so nothing else must be undone. Counts never decrease.
//!
//! Limits: a processor has a limited number of groups (`num_rmids`); units without one are not measured. An outermost unit is
//! measured as a whole. A thread that is started by one that is being moved may stay behind until the next second.

mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::tree;
use commonhold_policy::{BusUse, Throttle, Time, UnitFacts};

use crate::LiveError;
use crate::host::{self, mounts};
use crate::observe::bus::resctrl::{
    FOLDER, Meter, Mount, SOURCE, bandwidth_line, bandwidths, counts_occupancy, event, group_count,
    is_anothers, mounted, throttle,
};
use crate::observe::files::{Tree, plain};
use crate::observe::jobs::{has_gangs, report_interval_ns};
use crate::observe::process::{ProcFs, ProcessKey, is_alive};
use crate::observe::roster::Roster;
use crate::undo::journal::{self, Entry, Journal};

use jobs::JobGroups;

/// The prefix of our groups' names.
const OURS: &str = "commonhold-";
/// How often groups are checked for missing processes, in nanoseconds.
const STRAY_NS: Time = 1_000_000_000;
/// The shortest interval between reads of the counts, each of which interrupts a CPU.
const READ_NS: Time = 10_000_000;
/// How often a process's threads are listed while it is moved, because it may start new ones.
const ROUNDS: usize = 3;

/// The groups of a contract's units.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    place: Option<Filesystem>,
    groups: BTreeMap<UnitId, Group>,
    /// Each process's unit by its group, to this program's knowledge.
    placed: BTreeMap<ProcessKey, UnitId>,
    /// Processes that cannot be moved to a group: reported once.
    refused: BTreeSet<ProcessKey>,
    /// The groups of jobs.
    jobs: JobGroups,
    /// Whether all groups are in use, and whether that was reported for jobs.
    is_full: bool,
    has_reported_full: bool,
    placed_at: Time,
    read_at: Time,
}

/// The mounted file system, and what it supports.
#[derive(Debug, Clone)]
struct Filesystem {
    mount: Mount,
    event: Option<&'static str>,
    throttle: Option<Throttle>,
    /// Whether groups report their cache occupancy.
    occupancy: bool,
}

#[derive(Debug)]
struct Group {
    /// The folder with its tasks and counts.
    dir: PathBuf,
    /// Whether that is a control group.
    controls: bool,
    meter: Meter,
    last: Option<BusUse>,
}

/// Whether a contract needs units' memory traffic.
fn is_wanted(contract: &Contract) -> bool {
    has_gangs(contract) || contract.asked_for().bus
}

impl Bus {
    /// Finds the file system for a contract that needs it, and mounts it if it is not mounted. `root` is `/`, or a folder that
    /// looks like it. If the machine lacks support, that is no problem here: `doctor` reports it.
    pub(crate) fn open(
        &mut self,
        root: &Path,
        contract: &Contract,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) {
        if self.place.is_some() || !is_wanted(contract) {
            return;
        }
        let tree = Tree::new(root);
        let mut mount = mounted(&tree);
        if mount.is_none() && rustix::process::geteuid().is_root() && tree.exists(FOLDER) {
            let point = tree.path(FOLDER);
            let done = journal::record(journal, &[Entry::Mounted { point: point.clone() }]).and_then(|()| {
                mounts::mount(SOURCE, "resctrl", &point)
                    .map_err(|source| failed(&point, "mount resctrl", source))
            });
            problems.extend(done.err());
            mount = mounted(&tree);
        }
        let Some(mount) = mount.filter(|mount| host::may_write(&mount.point.join("tasks"))) else { return };
        let throttle = throttle(&mount).ok();
        let event = event(&mount.point);
        let occupancy = counts_occupancy(&mount.point);
        if event.is_some() || throttle.is_some() || occupancy {
            self.place = Some(Filesystem { mount, event, throttle, occupancy });
        }
    }

    /// How units can be throttled.
    pub(crate) fn throttles(&self) -> Option<Throttle> {
        self.place.as_ref()?.throttle
    }

    /// Moves units' processes to their groups, and reads counts that are due. `came`: whether processes were born or changed
    /// their unit since the last call.
    pub(crate) fn follow(
        &mut self,
        now: Time,
        came: bool,
        contract: &Contract,
        roster: &mut Roster,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        if self.place.is_none() {
            return problems;
        }
        let checks = now >= self.placed_at.saturating_add(STRAY_NS) || self.placed_at == 0;
        if checks || came {
            self.make(contract, journal, &mut problems);
            self.place_all(contract, roster, checks, &mut problems);
        }
        if checks {
            self.placed_at = now.max(1);
        }
        let every = (report_interval_ns(contract) / 2).max(READ_NS);
        if now >= self.read_at.saturating_add(every) || self.read_at == 0 {
            self.read_at = now.max(1);
            self.read(now);
        }
        problems
    }

    /// Puts units' counts into their facts.
    pub(crate) fn tell(&self, facts: &mut [UnitFacts]) {
        for (unit, group) in &self.groups {
            if let Some(facts) = facts.get_mut(unit.index()) {
                facts.bus = group.last;
            }
        }
    }

    /// Follows another contract: removes the groups of units that are gone.
    pub(crate) fn follow_contract(&mut self, contract: &Contract) {
        let keeps = |unit: &UnitId| is_wanted(contract) && outermost(contract, *unit) == Some(*unit);
        let gone: Vec<UnitId> = self.groups.keys().filter(|unit| !keeps(unit)).copied().collect();
        for group in gone.iter().filter_map(|unit| self.groups.remove(unit)) {
            // If this fails, the caretaker removes it at the end.
            let _ = host::remove_dir(&group.dir);
        }
        self.placed.retain(|_, unit| !gone.contains(unit));
        (self.is_full, self.placed_at) = (false, 0);
    }

    /// Throttles a unit to this percentage; 100: not at all.
    pub(crate) fn order(
        &mut self,
        unit: UnitId,
        percent: u32,
        roster: &mut Roster,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some((place, means)) =
            self.place.clone().and_then(|place| Some((place.clone(), place.throttle?)))
        else {
            return Err(cannot(unit, "the processor cannot throttle a group"));
        };
        let point = &place.mount.point;
        let controls = self.groups.get(&unit).is_some_and(|group| group.controls);
        if !controls && percent >= 100 {
            return Ok(());
        }
        if !controls {
            let name = match self.groups.get(&unit).and_then(|group| group.dir.file_name()) {
                Some(name) => name.to_string_lossy().into_owned(),
                None => name_of(unit, ""),
            };
            let dir = point.join(name);
            make(&dir, journal)?;
            // Throttled before any process is in it.
            throttle_to(&dir, percent, means).inspect_err(|_| {
                let _ = host::remove_dir(&dir);
            })?;
            self.replace(unit, dir, place.event, roster)?;
            return Ok(());
        }
        self.groups.get(&unit).map_or(Ok(()), |group| throttle_to(&group.dir, percent, means))
    }

    /// Moves a unit's processes from its monitoring group to a control group.
    fn replace(
        &mut self,
        unit: UnitId,
        dir: PathBuf,
        event: Option<&str>,
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        let keys: Vec<ProcessKey> =
            self.placed.iter().filter(|(_, placed)| **placed == unit).map(|(key, _)| *key).collect();
        // Groups of jobs are inside the unit's: they are made anew there.
        self.leave_jobs(|_, owner, _| owner != unit);
        let mut result = Ok(());
        for key in keys {
            result = result.and(bring(key, &dir, roster.procfs()));
        }
        let mut meter = Meter::default();
        let mut last = None;
        if let Some(before) = self.groups.remove(&unit) {
            (meter, last) = (before.meter, before.last);
            if let Some(event) = event {
                meter.read(&before.dir, event);
            }
            meter.forget(&before.dir);
            let _ = host::remove_dir(&before.dir);
        }
        if let Some(event) = event {
            meter.read(&dir, event);
        }
        self.groups.insert(unit, Group { dir, controls: true, meter, last });
        // Processes that could not be moved are found missing.
        self.placed_at = 0;
        result
    }

    /// Makes missing groups.
    fn make(&mut self, contract: &Contract, journal: &mut Journal, problems: &mut Vec<LiveError>) {
        let Some(place) = self.place.as_ref().filter(|place| place.event.is_some()) else { return };
        // Also those that another program removed.
        self.groups.retain(|_, group| host::exists(&group.dir));
        let missing =
            |unit: &UnitId| contract.unit(*unit).parent.is_none() && !self.groups.contains_key(unit);
        let missing: Vec<UnitId> = contract.held().filter(missing).collect();
        for unit in missing {
            if self.is_full {
                return;
            }
            let dir = place.mount.point.join("mon_groups").join(name_of(unit, &contract.unit(unit).path));
            match make(&dir, journal) {
                Ok(()) => {
                    let group = Group { dir, controls: false, meter: Meter::default(), last: None };
                    self.groups.insert(unit, group);
                    self.placed.retain(|_, placed| *placed != unit);
                }
                Err(LiveError::File { path, source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY)) =>
                {
                    self.is_full = true;
                    let all =
                        group_count(&place.mount.point).map_or(String::new(), |all| format!(" of {all}"));
                    let what = format!("measure the memory traffic of unit {}", contract.unit(unit).path);
                    let remedy =
                        format!("; the processor has no group left{all}: later units are not measured");
                    problems.push(LiveError::File { path, what, source, remedy });
                }
                Err(error) => problems.push(error),
            }
        }
    }

    /// Moves processes to their units' groups, and those of no unit any more to the default group.
    fn place_all(
        &mut self,
        contract: &Contract,
        roster: &mut Roster,
        checks: bool,
        problems: &mut Vec<LiveError>,
    ) {
        let Some(place) = self.place.clone() else { return };
        if checks {
            self.find_missing();
        }
        let members: BTreeMap<ProcessKey, UnitId> = roster
            .members()
            .filter_map(|member| Some((member.key, outermost(contract, member.placement.unit)?)))
            .filter(|(_, unit)| self.groups.contains_key(unit))
            .collect();
        let alive: BTreeSet<ProcessKey> = roster.members().map(|member| member.key).collect();
        self.refused.retain(|key| members.contains_key(key));
        let former: Vec<ProcessKey> =
            self.placed.keys().filter(|key| !members.contains_key(key)).copied().collect();
        for key in former {
            self.placed.remove(&key);
            if alive.contains(&key) {
                problems.extend(bring(key, &place.mount.point, roster.procfs()).err());
            }
        }
        for (key, unit) in members {
            if self.placed.get(&key) == Some(&unit) || self.refused.contains(&key) {
                continue;
            }
            let groups = roster.procfs().path().join(key.pid.to_string()).join("cpu_resctrl_groups");
            let anothers = is_anothers(&host::read_to_string(&groups).unwrap_or_default(), OURS);
            let brought = match self.groups.get(&unit) {
                Some(group) if !anothers => bring(key, &group.dir, roster.procfs()),
                _ => Err(LiveError::Process {
                    pid: key.pid,
                    name: roster.member(key.pid).map_or_else(String::new, |member| member.comm.clone()),
                    what: "measure its memory traffic".to_owned(),
                    source: io::Error::other("it is in a resctrl group of another program"),
                    remedy: "; its memory traffic is unknown".to_owned(),
                }),
            };
            match brought {
                Ok(()) => {
                    self.placed.insert(key, unit);
                }
                Err(error) => {
                    self.refused.insert(key);
                    problems.push(error);
                }
            }
        }
    }

    /// Forgets the processes that are not in the group where they should be.
    fn find_missing(&mut self) {
        for (unit, group) in &self.groups {
            let Ok(tasks) = host::read_to_string(&group.dir.join("tasks")) else { continue };
            let inside: BTreeSet<u32> = tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
            let jobs = &self.jobs;
            self.placed.retain(|key, placed| {
                *placed != *unit || inside.contains(&key.pid) || !group.controls && jobs.has(*key)
            });
        }
    }

    fn read(&mut self, now: Time) {
        let Some(event) = self.place.as_ref().and_then(|place| place.event) else { return };
        for (unit, group) in &mut self.groups {
            group.meter.read(&group.dir, event);
            // A control group's count includes the groups inside it.
            if !group.controls {
                self.jobs.dirs(*unit).for_each(|dir| group.meter.read(dir, event));
            }
            group.last = group.meter.bytes().map(|bytes| BusUse { at: now, bytes });
        }
    }
}

/// The outermost encloser of a unit of the contract.
fn outermost(contract: &Contract, unit: UnitId) -> Option<UnitId> {
    (!unit.is_common() && contract.has(unit)).then(|| tree::outermost(contract, unit))
}

fn name_of(unit: UnitId, path: &str) -> String {
    format!("{OURS}{}-{}", unit.0, plain(path))
}

/// Makes a group, once it is in the journal.
fn make(dir: &Path, journal: &mut Journal) -> Result<(), LiveError> {
    journal::record(journal, &[Entry::ResourceGroup { dir: dir.to_owned() }])?;
    host::make_dir(dir).map_err(|source| failed(dir, "make a group there", source))
}

/// Moves a process's threads to a group. Threads that end meanwhile are skipped.
///
/// `tasks` takes bare thread numbers. Each is written only while the process has that thread, and checked in the next round:
/// the last round finds nothing new, and knows the current owners of the numbers. If another process's thread got a number
/// meanwhile, it is moved to the default group.
fn bring(key: ProcessKey, dir: &Path, procfs: &mut ProcFs) -> Result<(), LiveError> {
    let tasks = dir.join("tasks");
    let (mut brought, mut tids) = (BTreeSet::new(), Vec::new());
    for _ in 0..ROUNDS {
        tids.clear();
        procfs.threads(key.pid, &mut tids)?;
        // Checked after the listing: so the listed threads were this process's.
        if !is_alive(procfs, key)? {
            tids.clear();
        }
        let others = brought.iter().filter(|tid| !tids.contains(*tid));
        others.for_each(|tid| leave_to_default(dir, *tid));
        let new: Vec<u32> = tids.iter().filter(|tid| brought.insert(**tid)).copied().collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            match host::write(&tasks, &tid.to_string()) {
                Err(source) if source.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(failed(
                        &tasks,
                        &format!("put thread {tid} of process {} there", key.pid),
                        source,
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Moves a thread to the default group, because its number was reused when it was moved. An unused number is no error.
fn leave_to_default(dir: &Path, tid: u32) {
    let in_group = |dir: &Path| {
        let listed = host::read_to_string(&dir.join("tasks")).unwrap_or_default();
        listed.lines().any(|line| line.trim().parse() == Ok(tid))
    };
    let default = dir.ancestors().filter(|dir| host::exists(&dir.join("tasks"))).last();
    if let Some(default) = default.filter(|_| in_group(dir)) {
        // If this is refused, the next check for missing processes moves the thread where it belongs.
        let _ = host::write(&default.join("tasks"), &tid.to_string());
    }
}

/// Throttles a control group to this percentage in all domains, and verifies it.
fn throttle_to(dir: &Path, percent: u32, means: Throttle) -> Result<(), LiveError> {
    let path = dir.join("schemata");
    let read = || host::read_to_string(&path).map_err(|source| failed(&path, "read it", source));
    let steps = percent.clamp(means.least, 100).saturating_sub(means.least).div_ceil(means.step);
    let percent = (means.least + steps * means.step).min(100);
    let line = bandwidth_line(&bandwidths(&read()?), percent);
    host::write(&path, &format!("{line}\n"))
        .map_err(|source| failed(&path, &format!("write {line}"), source))?;
    let found = bandwidths(&read()?);
    if !found.is_empty() && found.iter().all(|(_, value)| *value == u64::from(percent)) {
        return Ok(());
    }
    let read: Vec<String> = found.iter().map(|(domain, value)| format!("{domain}={value}")).collect();
    Err(LiveError::NotInForce {
        path,
        wrote: line,
        read: format!("MB:{}", read.join(";")),
        remedy: String::new(),
    })
}

fn cannot(unit: UnitId, why: &str) -> LiveError {
    LiveError::Unavailable {
        what: format!("unit number {} cannot be throttled on the memory bus: {why}", unit.0),
        remedy: "see `commonhold doctor` for what it needs".to_owned(),
    }
}

fn failed(path: &Path, what: &str, source: io::Error) -> LiveError {
    let remedy = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => "; run as root",
        Some(libc::ENOSPC) => "; the processor has no group left: end other programs that use resctrl",
        Some(libc::EEXIST) => "; a daemon that was killed with its caretaker left it: remove it with rmdir",
        _ => "; see info/last_cmd_status where resctrl is mounted",
    };
    LiveError::File { path: path.to_owned(), what: what.to_owned(), source, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests;
