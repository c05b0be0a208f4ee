//! Disks without control groups: measures units' use, and stops units that are in debt.
//!
//! Problem: nothing limits a process's rate. But its transfers are counted (/proc/PID/io), and a unit can be stopped. The
//! policy decides when (`policy::disk::debt`).
//!
//! Algorithm: the transfers of each unit's processes are summed every [`FRESH_NS`], and at every scan while a unit has a rate.
//! All disks count together, because the kernel does not count them separately.
//!
//! Cost: a process's count grows only while it runs. So its file is read only if its CPU clock has moved since the last
//! reading, and a scan at rest reads none.
//!
//! Properties: a parent's count includes a child's transfers once the parent has waited for it; they are counted once.
//!
//! Limits: a write counts when it enters the cache. The counts of processes that the daemon may not examine (another user's)
//! are missing.

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

/// The means: priorities, if a scheduler honours them, and limits.
pub(super) const MEANS: DiskMeans = DiskMeans { caps: true, weights: true, shares: false, limits_only: true };

/// The largest age of facts.
const FRESH_NS: Time = 80 * MS;
/// How often the disks and their schedulers are listed.
const DEVICES_NS: Time = 5_000 * MS;
/// Scans take at most one `REST_TIMES`th of a CPU;
const REST_TIMES: u64 = 100;
/// while there are rates, this fraction, because stops are only as exact as scans are frequent.
const REST_TIMES_CAPPED: u64 = 20;

/// Units' disk use, and their rates.
#[derive(Debug, Default)]
pub(super) struct Disks {
    devices: Vec<Device>,
    devices_at: Option<Time>,
    processes: BTreeMap<ProcessKey, Counted>,
    /// The CPU clocks of processes when their counts were read, or could not be.
    clocks: BTreeMap<ProcessKey, Option<u64>>,
    /// By unit, without sub-units.
    used: Vec<Transferred>,
    at: Option<Time>,
    rest_until: Time,
    /// Units with a rate, and those that are stopped for theirs.
    capped: BTreeSet<UnitId>,
    stopped: BTreeSet<UnitId>,
}

/// A process's counters at the last scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    parent: u32,
    last: Transferred,
    /// Transfers of ended children that its own count will include again.
    owed: Transferred,
}

impl Counted {
    /// Takes in a new count; returns the new transfers.
    fn advance(&mut self, now: Transferred) -> Transferred {
        let one = |now: u64, last: u64, owed: &mut u64| {
            let grown = now.saturating_sub(last);
            let again = grown.min(*owed);
            *owed -= again;
            grown - again
        };
        let new = Transferred {
            read: one(now.read, self.last.read, &mut self.owed.read),
            written: one(now.written, self.last.written, &mut self.owed.written),
        };
        self.last = now;
        new
    }
}

impl Disks {
    /// Follows another contract: units that are gone have neither use nor rate.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.used.resize(contract.units.len(), Transferred::default());
        for unit in &contract.vacant {
            self.used[unit.index()] = Transferred::default();
        }
        self.capped.retain(|unit| contract.has(*unit));
        self.stopped.retain(|unit| contract.has(*unit));
    }

    /// Records a unit's rates, in bytes/s: facts are kept fresh from then on.
    pub(super) fn cap(&mut self, unit: UnitId, read: Option<u64>, write: Option<u64>) {
        if read.is_none() && write.is_none() {
            self.capped.remove(&unit);
        } else {
            self.capped.insert(unit);
        }
    }

    /// Records whether a unit is stopped.
    pub(super) fn stop(&mut self, unit: UnitId, stopped: bool) {
        if stopped {
            self.stopped.insert(unit);
        } else {
            self.stopped.remove(&unit);
        }
    }

    /// Whether a unit is stopped for its own rate.
    pub(super) fn is_stopped(&self, unit: UnitId) -> bool {
        self.stopped.contains(&unit)
    }

    /// Whether any disk's scheduler honours priorities.
    pub(super) fn honours_priorities(&self) -> bool {
        self.devices.iter().any(|device| device.weigher == Some(Weigher::Bfq))
    }

    /// A machine with one disk, scheduled by BFQ or not at all.
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

    /// Counts what happened since the last scan, if that is long enough ago.
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

    /// Takes in the list of devices. Rates were ordered for a disk by name: if the name has changed, they are dropped, and
    /// ordered again. A stopped unit stays stopped until an order continues it.
    fn set_devices(&mut self, devices: Vec<Device>) {
        let before = self.name().map(str::to_owned);
        self.devices = devices;
        if self.name().map(str::to_owned) != before {
            self.capped.clear();
        }
    }

    /// The name of all disks together; `None` if there is none.
    fn name(&self) -> Option<&str> {
        match self.devices.as_slice() {
            [] => None,
            [only] => Some(&only.name),
            _ => Some("all"),
        }
    }

    /// Adds what each unit transferred since the last scan.
    fn count(&mut self, units: usize, roster: &mut Roster) -> Result<(), LiveError> {
        self.used.resize(units, Transferred::default());
        let members = roster.members().filter(|member| !member.placement.unit.is_common());
        let members: BTreeMap<ProcessKey, (usize, u32)> =
            members.map(|member| (member.key, (member.placement.unit.index(), member.parent))).collect();
        self.bequeath(&members);
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
            let Some(now) = read else { continue };
            if !self.processes.contains_key(&key) {
                // A member's child was born in the unit; the earlier transfers of any other process were not made in it.
                let child = self.processes.keys().any(|known| known.pid == parent);
                let last = if child { Transferred::default() } else { now };
                self.processes.insert(key, Counted { parent, last, owed: Transferred::default() });
            }
            let grown = self.processes.get_mut(&key).map(|counted| counted.advance(now)).unwrap_or_default();
            if let Some(used) = self.used.get_mut(unit) {
                (used.read, used.written) = (used.read + grown.read, used.written + grown.written);
            }
        }
        Ok(())
    }

    /// An ended process's count goes to its parent, whose own count will include it again.
    fn bequeath(&mut self, members: &BTreeMap<ProcessKey, (usize, u32)>) {
        let gone: Vec<ProcessKey> =
            self.processes.keys().rev().filter(|key| !members.contains_key(key)).copied().collect();
        for key in gone {
            let Some(ended) = self.processes.remove(&key) else { continue };
            let heir = self.processes.iter_mut().find(|(key, _)| key.pid == ended.parent);
            if let Some((_, heir)) = heir {
                heir.owed.read += ended.last.read + ended.owed.read;
                heir.owed.written += ended.last.written + ended.owed.written;
            }
        }
    }

    /// The facts for the policy, with all disks as one.
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

    /// A child with a count of 5 ends, and its parent's count includes it: of the 8 that this grew by, 3 are new.
    #[test]
    fn a_childs_transfers_count_once() {
        let key = |pid| ProcessKey { pid, start: u64::from(pid) };
        let read = |read| Transferred { read, written: 0 };
        let counted = |parent, last| Counted { parent, last: read(last), owed: Transferred::default() };
        let mut disks = Disks::default();
        disks.processes.insert(key(10), counted(1, 100));
        disks.processes.insert(key(11), counted(10, 5));
        disks.bequeath(&BTreeMap::from([(key(10), (0, 1))]));
        let parent = disks.processes.get_mut(&key(10)).map(|parent| parent.advance(read(108)));
        assert_eq!(parent, Some(read(3)));
        assert_eq!(disks.processes.len(), 1);
    }

    /// Facts of a disk with a rate are read at every scan. The rate is dropped with the disk's name; a stop ends only by an
    /// order.
    #[test]
    fn a_rate_goes_with_its_disk() {
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
