//! Units as groups of the kernel's `resctrl`, which counts and throttles their memory traffic.
//!
//! Terms: a *monitoring group* only counts; a *control group* of `resctrl` (no cgroup) counts and throttles.
//!
//! Algorithm: each outermost unit has a monitoring group. When a process of the unit or of a sub-unit
//! appears, its threads are moved into that group. The children of these threads are born in the group. When
//! a unit is throttled for the first time, a control group replaces its monitoring group. If gangs are chosen
//! by their cache occupancy, each job has a monitoring group as well ([`jobs`]).
//!
//! Properties: a process in another program's `resctrl` group stays in that group. Every group is in the
//! journal before it is made. The kernel moves the tasks of a removed group to the default group, so nothing
//! else must be undone. Counts never decrease.
//!
//! Limits: a processor has a limited number of groups (`num_rmids`); units without a group are not measured.
//! Sub-units are not measured separately. A thread that is born while its process is being moved may stay
//! behind until the next second.

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
const CHECK_NS: Time = 1_000_000_000;
/// The shortest interval between reads of the counts, in nanoseconds. Each read interrupts a CPU.
const READ_NS: Time = 10_000_000;
/// How many times a process's threads are listed while they are moved, because the process may start new
/// threads.
const ROUNDS: usize = 3;

/// The groups of a contract's units.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    /// `None`: the contract needs no groups, or the machine does not support them.
    filesystem: Option<Filesystem>,
    groups: BTreeMap<UnitId, Group>,
    /// The processes that were moved to a unit's group, and to our knowledge are still there.
    placed: BTreeMap<ProcessKey, UnitId>,
    /// Processes that could not be moved to a group. Each failure was reported, and the move is not tried
    /// again.
    refused: BTreeSet<ProcessKey>,
    /// The groups of jobs.
    jobs: JobGroups,
    /// Whether all groups of the processor are in use.
    is_full: bool,
    /// Whether it was reported that no group is left for jobs.
    has_reported_full: bool,
    /// When groups were last checked for missing processes; 0: check now.
    checked_at: Time,
    /// When the counts were last read; 0: never.
    read_at: Time,
}

/// The mounted `resctrl` file system, and what it supports.
#[derive(Debug, Clone)]
struct Filesystem {
    mount: Mount,
    /// The name of the file that counts a group's memory traffic; `None`: not supported.
    event: Option<&'static str>,
    /// How groups can be throttled; `None`: not supported.
    throttle: Option<Throttle>,
    /// Whether groups report their cache occupancy.
    occupancy: bool,
}

/// The group of a unit.
#[derive(Debug)]
struct Group {
    /// The group's folder, with its tasks and counts.
    dir: PathBuf,
    /// Whether it is a control group, which can be throttled, and not just a monitoring group.
    is_control_group: bool,
    meter: Meter,
    last: Option<BusUse>,
}

/// Whether a contract needs units' memory traffic: to choose gangs, or to account or throttle it.
fn is_wanted(contract: &Contract) -> bool {
    has_gangs(contract) || contract.asked_for().bus
}

impl Bus {
    /// If the contract needs groups, finds the `resctrl` file system, and mounts it if necessary and
    /// possible. `root` is `/`, or a folder that looks like it, in tests. A machine without support is no
    /// problem here, because `doctor` reports it.
    pub(crate) fn open(
        &mut self,
        root: &Path,
        contract: &Contract,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) {
        if self.filesystem.is_some() || !is_wanted(contract) {
            return;
        }
        let tree = Tree::new(root);
        let mut mount = mounted(&tree);
        if mount.is_none() && rustix::process::geteuid().is_root() && tree.exists(FOLDER) {
            let point = tree.path(FOLDER);
            let result =
                journal::record(journal, &[Entry::Mounted { point: point.clone() }]).and_then(|()| {
                    mounts::mount(SOURCE, "resctrl", &point)
                        .map_err(|source| failed(&point, "mount resctrl", source))
                });
            problems.extend(result.err());
            mount = mounted(&tree);
        }
        let Some(mount) = mount.filter(|mount| host::may_write(&mount.point.join("tasks"))) else { return };
        let throttle = throttle(&mount).ok();
        let event = event(&mount.point);
        let occupancy = counts_occupancy(&mount.point);
        if event.is_some() || throttle.is_some() || occupancy {
            self.filesystem = Some(Filesystem { mount, event, throttle, occupancy });
        }
    }

    /// How units can be throttled; `None` if they cannot.
    pub(crate) fn throttles(&self) -> Option<Throttle> {
        self.filesystem.as_ref()?.throttle
    }

    /// Moves units' processes to their groups, and reads the counts, each no more often than necessary.
    /// `members_changed`: whether processes were born or changed their unit since the last call. Returns the
    /// errors.
    pub(crate) fn follow(
        &mut self,
        now: Time,
        members_changed: bool,
        contract: &Contract,
        roster: &mut Roster,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        if self.filesystem.is_none() {
            return problems;
        }
        let checks = now >= self.checked_at.saturating_add(CHECK_NS) || self.checked_at == 0;
        if checks || members_changed {
            self.make_missing_groups(contract, journal, &mut problems);
            self.place_all(contract, roster, checks, &mut problems);
        }
        if checks {
            self.checked_at = now.max(1);
        }
        let interval_ns = (report_interval_ns(contract) / 2).max(READ_NS);
        if now >= self.read_at.saturating_add(interval_ns) || self.read_at == 0 {
            self.read_at = now.max(1);
            self.read(now);
        }
        problems
    }

    /// Puts each unit's last count into the unit's facts.
    pub(crate) fn tell(&self, facts: &mut [UnitFacts]) {
        for (unit, group) in &self.groups {
            if let Some(facts) = facts.get_mut(unit.index()) {
                facts.bus = group.last;
            }
        }
    }

    /// Adopts another contract: removes the groups of units that need no group any more.
    pub(crate) fn follow_contract(&mut self, contract: &Contract) {
        let keeps = |unit: &UnitId| is_wanted(contract) && outermost(contract, *unit) == Some(*unit);
        let unneeded: Vec<UnitId> = self.groups.keys().filter(|unit| !keeps(unit)).copied().collect();
        for group in unneeded.iter().filter_map(|unit| self.groups.remove(unit)) {
            // If this fails, the caretaker removes the folder at the end.
            let _ = host::remove_dir(&group.dir);
        }
        self.placed.retain(|_, unit| !unneeded.contains(unit));
        (self.is_full, self.checked_at) = (false, 0);
    }

    /// Throttles a unit to this percentage of the bus; 100 ends the throttling.
    pub(crate) fn order(
        &mut self,
        unit: UnitId,
        percent: u32,
        roster: &mut Roster,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some((filesystem, means)) =
            self.filesystem.clone().and_then(|filesystem| Some((filesystem.clone(), filesystem.throttle?)))
        else {
            return Err(cannot(unit, "the processor cannot throttle a group"));
        };
        let point = &filesystem.mount.point;
        let has_control_group = self.groups.get(&unit).is_some_and(|group| group.is_control_group);
        if !has_control_group && percent >= 100 {
            return Ok(());
        }
        if !has_control_group {
            let name = match self.groups.get(&unit).and_then(|group| group.dir.file_name()) {
                Some(name) => name.to_string_lossy().into_owned(),
                None => name_of(unit, ""),
            };
            let dir = point.join(name);
            make_group(&dir, journal)?;
            // The group is throttled before any process is in it: so no process ever runs in it unthrottled.
            throttle_to(&dir, percent, means).inspect_err(|_| {
                let _ = host::remove_dir(&dir);
            })?;
            self.move_to_control_group(unit, dir, filesystem.event, roster)?;
            return Ok(());
        }
        self.groups.get(&unit).map_or(Ok(()), |group| throttle_to(&group.dir, percent, means))
    }

    /// Moves a unit's processes from its monitoring group, which is removed, to the control group in `dir`.
    /// The unit's count continues.
    fn move_to_control_group(
        &mut self,
        unit: UnitId,
        dir: PathBuf,
        event: Option<&str>,
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        let keys: Vec<ProcessKey> =
            self.placed.iter().filter(|(_, placed)| **placed == unit).map(|(key, _)| *key).collect();
        // The groups of the unit's jobs are outside of the control group. They are removed here, and made
        // again inside of it.
        self.remove_job_groups(|_, owner, _| owner != unit);
        let mut result = Ok(());
        for key in keys {
            result = result.and(move_threads(key, &dir, roster.procfs()));
        }
        let mut meter = Meter::default();
        let mut last = None;
        if let Some(former) = self.groups.remove(&unit) {
            (meter, last) = (former.meter, former.last);
            if let Some(event) = event {
                meter.read(&former.dir, event);
            }
            meter.forget(&former.dir);
            let _ = host::remove_dir(&former.dir);
        }
        if let Some(event) = event {
            meter.read(&dir, event);
        }
        self.groups.insert(unit, Group { dir, is_control_group: true, meter, last });
        // The next check finds the processes that could not be moved, and tries again.
        self.checked_at = 0;
        result
    }

    /// Makes a monitoring group for each outermost unit that has none, perhaps because another program
    /// removed it.
    fn make_missing_groups(
        &mut self,
        contract: &Contract,
        journal: &mut Journal,
        problems: &mut Vec<LiveError>,
    ) {
        let Some(filesystem) = self.filesystem.as_ref().filter(|filesystem| filesystem.event.is_some())
        else {
            return;
        };
        self.groups.retain(|_, group| host::exists(&group.dir));
        let lacks_group =
            |unit: &UnitId| contract.unit(*unit).parent.is_none() && !self.groups.contains_key(unit);
        let missing: Vec<UnitId> = contract.held().filter(lacks_group).collect();
        for unit in missing {
            if self.is_full {
                return;
            }
            let point = &filesystem.mount.point;
            let dir = point.join("mon_groups").join(name_of(unit, &contract.unit(unit).path));
            match make_group(&dir, journal) {
                Ok(()) => {
                    let group = Group { dir, is_control_group: false, meter: Meter::default(), last: None };
                    self.groups.insert(unit, group);
                    self.placed.retain(|_, placed| *placed != unit);
                }
                Err(LiveError::File { path, source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY)) =>
                {
                    self.is_full = true;
                    let all = group_count(point).map_or(String::new(), |all| format!(" of {all}"));
                    let what = format!("measure the memory traffic of unit {}", contract.unit(unit).path);
                    let remedy =
                        format!("; the processor has no group left{all}: later units are not measured");
                    problems.push(LiveError::File { path, what, source, remedy });
                }
                Err(error) => problems.push(error),
            }
        }
    }

    /// Moves processes to their units' groups, and processes that left all units to the default group. If
    /// `checks`, first reads which processes are in the groups, because another program may have moved
    /// processes out.
    fn place_all(
        &mut self,
        contract: &Contract,
        roster: &mut Roster,
        checks: bool,
        problems: &mut Vec<LiveError>,
    ) {
        let Some(filesystem) = self.filesystem.clone() else { return };
        if checks {
            self.forget_missing();
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
                problems.extend(move_threads(key, &filesystem.mount.point, roster.procfs()).err());
            }
        }
        for (key, unit) in members {
            if self.placed.get(&key) == Some(&unit) || self.refused.contains(&key) {
                continue;
            }
            let groups = roster.procfs().path().join(key.pid.to_string()).join("cpu_resctrl_groups");
            let is_anothers = is_anothers(&host::read_to_string(&groups).unwrap_or_default(), OURS);
            let moved = match self.groups.get(&unit) {
                Some(group) if !is_anothers => move_threads(key, &group.dir, roster.procfs()),
                _ => Err(LiveError::Process {
                    pid: key.pid,
                    name: roster.member(key.pid).map_or_else(String::new, |member| member.comm.clone()),
                    what: "measure its memory traffic".to_owned(),
                    source: io::Error::other("it is in a resctrl group of another program"),
                    remedy: "; its memory traffic is unknown".to_owned(),
                }),
            };
            match moved {
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

    /// Removes processes from `placed` that are not in their unit's group any more. Without a control group,
    /// a process in its job's group is in the group that it should be in, and not in its unit's group.
    fn forget_missing(&mut self) {
        for (unit, group) in &self.groups {
            let Ok(tasks) = host::read_to_string(&group.dir.join("tasks")) else { continue };
            let inside: BTreeSet<u32> = tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
            let jobs = &self.jobs;
            self.placed.retain(|key, placed| {
                *placed != *unit || inside.contains(&key.pid) || !group.is_control_group && jobs.has(*key)
            });
        }
    }

    /// Reads the counts of all units.
    fn read(&mut self, now: Time) {
        let Some(event) = self.filesystem.as_ref().and_then(|filesystem| filesystem.event) else { return };
        for (unit, group) in &mut self.groups {
            group.meter.read(&group.dir, event);
            // A control group's count includes the groups of jobs inside it; a monitoring group's does not.
            if !group.is_control_group {
                self.jobs.dirs(*unit).for_each(|dir| group.meter.read(dir, event));
            }
            group.last = group.meter.bytes().map(|bytes| BusUse { at: now, bytes });
        }
    }
}

/// The outermost unit around a unit, or the unit itself; `None` for the common units, and for units that are
/// not in the contract.
fn outermost(contract: &Contract, unit: UnitId) -> Option<UnitId> {
    (!unit.is_common() && contract.has(unit)).then(|| tree::outermost(contract, unit))
}

fn name_of(unit: UnitId, path: &str) -> String {
    format!("{OURS}{}-{}", unit.0, plain(path))
}

/// Makes a group, after recording it in the journal.
fn make_group(dir: &Path, journal: &mut Journal) -> Result<(), LiveError> {
    journal::record(journal, &[Entry::ResourceGroup { dir: dir.to_owned() }])?;
    host::make_dir(dir).map_err(|source| failed(dir, "make a group there", source))
}

/// Moves a process's threads to a group. Threads that end meanwhile are skipped.
///
/// The file `tasks` takes bare thread numbers, which the kernel may have reused for a thread of another
/// process by the time of the write. So each round lists the process's threads again. A number that was
/// written and is not listed any more may name such a foreign thread, which is moved to the default group.
fn move_threads(key: ProcessKey, dir: &Path, procfs: &mut ProcFs) -> Result<(), LiveError> {
    let tasks = dir.join("tasks");
    let (mut moved, mut tids) = (BTreeSet::new(), Vec::new());
    for _ in 0..ROUNDS {
        tids.clear();
        procfs.threads(key.pid, &mut tids)?;
        // The process is checked after the listing: if it still exists then, the listed threads are its own.
        if !is_alive(procfs, key)? {
            tids.clear();
        }
        let unlisted = moved.iter().filter(|tid| !tids.contains(*tid));
        unlisted.for_each(|tid| move_to_default(dir, *tid));
        let new: Vec<u32> = tids.iter().filter(|tid| moved.insert(**tid)).copied().collect();
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

/// Moves a thread that is in the group `dir` to the default group. Does nothing if no thread there has this
/// number.
fn move_to_default(dir: &Path, tid: u32) {
    let is_in_group = |dir: &Path| {
        let tasks = host::read_to_string(&dir.join("tasks")).unwrap_or_default();
        tasks.lines().any(|line| line.trim().parse() == Ok(tid))
    };
    // The default group is the file system's top folder.
    let default = dir.ancestors().filter(|dir| host::exists(&dir.join("tasks"))).last();
    if let Some(default) = default.filter(|_| is_in_group(dir)) {
        // If this is refused, the next check for missing processes moves the thread where it belongs.
        let _ = host::write(&default.join("tasks"), &tid.to_string());
    }
}

/// Throttles a control group to this percentage in all domains, rounded up to a value that the processor
/// supports. Reads the values back to verify them.
fn throttle_to(dir: &Path, percent: u32, means: Throttle) -> Result<(), LiveError> {
    let path = dir.join("schemata");
    let read = || host::read_to_string(&path).map_err(|source| failed(&path, "read it", source));
    let steps = percent.clamp(means.least, 100).saturating_sub(means.least).div_ceil(means.step);
    let percent = (means.least + steps * means.step).min(100);
    let line = bandwidth_line(&bandwidths(&read()?), percent);
    host::write(&path, &format!("{line}\n"))
        .map_err(|source| failed(&path, &format!("write {line}"), source))?;
    let in_force = bandwidths(&read()?);
    if !in_force.is_empty() && in_force.iter().all(|(_, value)| *value == u64::from(percent)) {
        return Ok(());
    }
    let read: Vec<String> = in_force.iter().map(|(domain, value)| format!("{domain}={value}")).collect();
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
