//! Disks without control groups: measures units' use, and records which units are stopped for it.
//!
//! Problem: without control groups, the kernel does not limit a process's disk rate. But it counts the
//! process's transfers (/proc/PID/io), and the process can be stopped. The policy decides when to stop a
//! unit, by the unit's debt (`policy::disk::debt`).
//!
//! Algorithm: the transfers of each unit's processes are summed every [`FRESH_NS`], and at every scan while a
//! unit has a rate. All disks count as one, because the kernel does not count a process's transfers by disk.
//!
//! Cost: a process's count grows only while the process runs. So the file with the count is read only if the
//! process's CPU clock has moved since the last reading. A scan while no process runs reads no such file.
//!
//! Properties: transfers of ended children are counted once, although the kernel adds them to the parent's
//! count as well when the parent waits for the child.
//!
//! Limits: a write counts when it enters the cache. The counts of processes that the daemon may not examine
//! (another user's) are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::{DiskFacts, DiskMeans, DiskUse};
use commonhold_policy::{MS, Time};

use crate::LiveError;
use crate::host::clock;
use crate::observe::disk::devices::{self, Device, Weigher};
use crate::observe::files::Tree;
use crate::observe::process::{ProcessKey, Transferred};
use crate::observe::roster::Roster;

/// What this backend can enforce: rates, by stopping units; and weights, by priorities, if a disk's scheduler
/// honours them.
pub(super) const MEANS: DiskMeans = DiskMeans { caps: true, weights: true, shares: false, limits_only: true };

/// The interval of scans while no unit has a rate.
const FRESH_NS: Time = 80 * MS;
/// How often the disks and their schedulers are listed.
const DEVICES_NS: Time = 5_000 * MS;
/// Scans take at most one `REST_TIMES`th of a CPU.
const REST_TIMES: u64 = 100;
/// While a unit has a rate, scans take at most one `REST_TIMES_CAPPED`th of a CPU. That is more, because a
/// unit's rate is enforced only as exactly as scans are frequent.
const REST_TIMES_CAPPED: u64 = 20;

/// Units' disk use, and their rates.
#[derive(Debug, Default)]
pub(super) struct Disks {
    devices: Vec<Device>,
    devices_at: Option<Time>,
    processes: BTreeMap<ProcessKey, Counted>,
    /// The CPU clocks of processes at the last attempt to read their counts.
    clocks: BTreeMap<ProcessKey, Option<u64>>,
    /// The sum of transfers by unit, without sub-units.
    used: Vec<Transferred>,
    /// The time of the last scan.
    at: Option<Time>,
    /// No scan before this time, to limit their cost.
    rest_until: Time,
    /// Units with a rate.
    capped: BTreeSet<UnitId>,
    /// Units that are stopped to keep them to their rates.
    stopped: BTreeSet<UnitId>,
}

/// A process's counters at the last scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    parent: u32,
    last: Transferred,
    /// Transfers of ended children, which were counted while the children lived. The process's own count will
    /// include them again when the process has waited for the children.
    owed: Transferred,
}

impl Counted {
    /// Replaces the last count by `count`. Returns the growth that was not counted before.
    fn advance(&mut self, count: Transferred) -> Transferred {
        let uncounted = |count: u64, last: u64, owed: &mut u64| {
            let growth = count.saturating_sub(last);
            let counted_before = growth.min(*owed);
            *owed -= counted_before;
            growth - counted_before
        };
        let new = Transferred {
            read: uncounted(count.read, self.last.read, &mut self.owed.read),
            written: uncounted(count.written, self.last.written, &mut self.owed.written),
        };
        self.last = count;
        new
    }
}

impl Disks {
    /// Adopts another contract: forgets the use and the rates of units that are not in it.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.used.resize(contract.units.len(), Transferred::default());
        for unit in &contract.vacant {
            self.used[unit.index()] = Transferred::default();
        }
        self.capped.retain(|unit| contract.has(*unit));
        self.stopped.retain(|unit| contract.has(*unit));
    }

    /// Records whether a unit has a rate for reading or writing, in bytes/s. The policy enforces the rate;
    /// this backend only scans more often while any unit has a rate.
    pub(super) fn cap(&mut self, unit: UnitId, read: Option<u64>, write: Option<u64>) {
        if read.is_none() && write.is_none() {
            self.capped.remove(&unit);
        } else {
            self.capped.insert(unit);
        }
    }

    /// Records whether a unit is stopped to keep it to its rate.
    pub(super) fn stop(&mut self, unit: UnitId, stopped: bool) {
        if stopped {
            self.stopped.insert(unit);
        } else {
            self.stopped.remove(&unit);
        }
    }

    /// Whether a unit is stopped to keep it to its own rate.
    pub(super) fn is_stopped(&self, unit: UnitId) -> bool {
        self.stopped.contains(&unit)
    }

    /// Whether any disk's scheduler honours priorities.
    pub(super) fn honours_priorities(&self) -> bool {
        self.devices.iter().any(|device| device.weigher == Some(Weigher::Bfq))
    }

    /// Pretends that the machine has one disk, scheduled by BFQ or not at all.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, bfq: bool) {
        self.devices = vec![Device {
            name: "sda".to_owned(),
            number: "8:0".to_owned(),
            weigher: bfq.then_some(Weigher::Bfq),
            queues: true,
            ..Device::default()
        }];
        self.devices_at = Some(Time::MAX);
    }

    /// Scans the counts of all members, if the last scan was long enough ago.
    pub(super) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        let (fresh, rest) =
            if self.capped.is_empty() { (FRESH_NS, REST_TIMES) } else { (MS, REST_TIMES_CAPPED) };
        let elapsed = self.at.map_or(0, |at| now.saturating_sub(at));
        if self.at.is_some() && (elapsed < fresh || now < self.rest_until) {
            return Ok(());
        }
        if self.devices_at.is_none_or(|at| now >= at.saturating_add(DEVICES_NS)) {
            self.set_devices(devices::read(&Tree::new(Path::new("/")), Path::new("/sys/fs/cgroup")));
            self.devices_at = Some(now);
        }
        let begun = clock::thread_cpu_ns();
        self.count(contract.units.len(), roster)?;
        self.at = Some(now);
        let took = clock::thread_cpu_ns().saturating_sub(begun);
        self.rest_until = now.saturating_add(took.saturating_mul(rest));
        Ok(())
    }

    /// Replaces the list of devices. Rates are ordered for a disk by name. So if the name changes, the rates
    /// are dropped, and the policy orders them again. A stopped unit stays stopped until an order continues
    /// it.
    fn set_devices(&mut self, devices: Vec<Device>) {
        let former_name = self.name().map(str::to_owned);
        self.devices = devices;
        if self.name().map(str::to_owned) != former_name {
            self.capped.clear();
        }
    }

    /// The name for all disks together; `None` if the machine has no disk.
    fn name(&self) -> Option<&str> {
        match self.devices.as_slice() {
            [] => None,
            [only] => Some(&only.name),
            _ => Some("all"),
        }
    }

    /// Adds the transfers of all members since the last scan to their units' sums.
    fn count(&mut self, units: usize, roster: &mut Roster) -> Result<(), LiveError> {
        self.used.resize(units, Transferred::default());
        let members = roster.members().filter(|member| !member.placement.unit.is_common());
        let members: BTreeMap<ProcessKey, (usize, u32)> =
            members.map(|member| (member.key, (member.placement.unit.index(), member.parent))).collect();
        self.forget_ended(&members);
        self.clocks.retain(|key, _| members.contains_key(key));
        for (key, (unit, parent)) in members {
            if let Some(counted) = self.processes.get_mut(&key) {
                counted.parent = parent;
            }
            let clock = roster.clock(key.pid);
            if clock.is_some() && self.clocks.get(&key) == Some(&clock) {
                continue;
            }
            let read = roster.procfs().transferred(key.pid)?;
            self.clocks.insert(key, clock);
            let Some(count) = read else { continue };
            if !self.processes.contains_key(&key) {
                // The child of a member made all its transfers as a member, too. Any other new member may
                // have made some before it joined, so its count so far is ignored.
                let is_members_child = self.processes.keys().any(|known| known.pid == parent);
                let last = if is_members_child { Transferred::default() } else { count };
                self.processes.insert(key, Counted { parent, last, owed: Transferred::default() });
            }
            let new = self.processes.get_mut(&key).map(|counted| counted.advance(count)).unwrap_or_default();
            if let Some(used) = self.used.get_mut(unit) {
                (used.read, used.written) = (used.read + new.read, used.written + new.written);
            }
        }
        Ok(())
    }

    /// Forgets processes that are no members any more. Adds the count of such a process to its parent's
    /// `owed`, since that count is already in the unit's sum, and the parent's own count will include it when
    /// the parent has waited for the process.
    fn forget_ended(&mut self, members: &BTreeMap<ProcessKey, (usize, u32)>) {
        let ended: Vec<ProcessKey> =
            self.processes.keys().rev().filter(|key| !members.contains_key(key)).copied().collect();
        for key in ended {
            let Some(child) = self.processes.remove(&key) else { continue };
            let parent = self.processes.iter_mut().find(|(key, _)| key.pid == child.parent);
            if let Some((_, parent)) = parent {
                parent.owed.read += child.last.read + child.owed.read;
                parent.owed.written += child.last.written + child.owed.written;
            }
        }
    }

    /// The facts for the policy, which sees all disks as one disk; empty before the first scan, and on a
    /// machine without disks.
    pub(super) fn facts(&self) -> Vec<DiskFacts> {
        let (Some(at), Some(name)) = (self.at, self.name()) else { return Vec::new() };
        let model = match self.devices.as_slice() {
            [only] => only.model,
            _ => None,
        };
        let units = self.used.iter().map(|used| DiskUse {
            read_bytes: used.read,
            written_bytes: used.written,
            ..DiskUse::default()
        });
        vec![DiskFacts {
            name: name.to_owned(),
            at,
            weighs: self.honours_priorities(),
            bytes_per_s: model.map(|model| model.bytes_per_s()),
            device: None,
            units: units.collect(),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child with a count of 5 ends, and its parent's count includes the child's. The parent's count grows
    /// by 8, of which 3 are new.
    #[test]
    fn a_childs_transfers_count_once() {
        let key = |pid| ProcessKey { pid, start: u64::from(pid) };
        let read = |read| Transferred { read, written: 0 };
        let counted = |parent, last| Counted { parent, last: read(last), owed: Transferred::default() };
        let mut disks = Disks::default();
        disks.processes.insert(key(10), counted(1, 100));
        disks.processes.insert(key(11), counted(10, 5));
        disks.forget_ended(&BTreeMap::from([(key(10), (0, 1))]));
        let parent = disks.processes.get_mut(&key(10)).map(|parent| parent.advance(read(108)));
        assert_eq!(parent, Some(read(3)));
        assert_eq!(disks.processes.len(), 1);
    }

    /// A rate is dropped with the disk's name; a stop ends only by an order.
    #[test]
    fn a_rate_is_dropped_with_its_disk() {
        let device = |name: &str| Device { name: name.to_owned(), ..Device::default() };
        let unit = UnitId(2);
        for now in [vec![], vec![device("sdb")], vec![device("sda"), device("sdb")]] {
            let mut disks = Disks { devices: vec![device("sda")], at: Some(0), ..Disks::default() };
            disks.cap(unit, Some(1), None);
            disks.stop(unit, true);
            disks.set_devices(vec![device("sda")]);
            assert!(disks.capped.contains(&unit), "it is the same disk");
            disks.set_devices(now.clone());
            assert!(disks.capped.is_empty() && disks.is_stopped(unit), "{now:?}");
            let names: Vec<String> = disks.facts().into_iter().map(|facts| facts.name).collect();
            let name = match now.len() {
                0 => None,
                1 => Some("sdb".to_owned()),
                _ => Some("all".to_owned()),
            };
            assert_eq!(names, Vec::from_iter(name));
        }
    }
}
