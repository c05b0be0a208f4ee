//! Disks without control groups: what units have them do, and turns for units that exceed a limit.
//!
//! Problem: nothing holds a process to a rate. But what it had disks do is counted (/proc/PID/io), and a unit can be
//! stopped.
//!
//! Algorithm: what each unit's processes transferred is summed every [`FRESH_NS`], all disks together, since the count
//! is not by disk. A unit that is ordered a rate has credit for [`BURST_NS`] of it. What the unit transfers is taken
//! off, each way. Once the credit is used up, the unit is stopped until its rate has earned what is missing. A timer
//! sees to it that the unit goes on then.
//!
//! Cost: a process's count grows only while it runs. So its file is read when its CPU clock has moved since the last
//! reading, and a look at rest reads none.
//!
//! Properties: a parent's count shows a child's transfers again once the parent has waited for it; they count once. A
//! debt is at most [`DEBT_NS`] of a rate, and the rest is forgiven. So no unit stands still for longer.
//!
//! Limits: what is written counts as it goes into the cache. A daemon that may not look at a process (another user's)
//! does not see its count. A unit that is stopped does not compute either. So rates are for limits alone, and not to
//! hold units to shares.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::membership::is_within;
use commonhold_policy::{DiskFacts, DiskMeans, DiskUse};
use commonhold_policy::{MS, Time};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::LiveError;
use crate::host::clock;
use crate::observe::disk::devices::{self, Device, Weigher};
use crate::observe::files::Tree;
use crate::observe::process::{ProcessKey, Transferred};
use crate::observe::roster::Roster;

/// What can be enforced: priorities where a scheduler heeds them, and limits.
pub(super) const MEANS: DiskMeans = DiskMeans { caps: true, weights: true, shares: false, limits_only: true };

/// How old facts may be.
const FRESH_NS: Time = 80 * MS;
/// How often to look which disks there are, and what schedules them.
const DEVICES_NS: Time = 5_000 * MS;
/// Looking takes at most this part of a CPU.
const REST_TIMES: u64 = 20;
/// How much of its rate a unit may be ahead, and behind.
const BURST_NS: Time = 100 * MS;
const DEBT_NS: Time = 2_000 * MS;
/// How often who has a rate is looked at while it is not stopped.
const WATCH_NS: Time = 50 * MS;

const SECOND: i128 = 1_000_000_000;

/// What units have disks do, and their rates.
#[derive(Debug, Default)]
pub(super) struct Disks {
    devices: Vec<Device>,
    devices_at: Option<Time>,
    processes: BTreeMap<ProcessKey, Counted>,
    /// The CPU clocks of processes when their counts were read, or could not be.
    clocks: BTreeMap<ProcessKey, Option<u64>>,
    /// By unit, sub-units left out.
    used: Vec<Transferred>,
    at: Option<Time>,
    rest_until: Time,
    caps: BTreeMap<UnitId, [Bucket; 2]>,
    /// Without one, who is stopped goes on at the next look.
    timer: Option<OwnedFd>,
}

/// A process's counters at the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    parent: u32,
    last: Transferred,
    /// Counted of children that ended: its own count shows it again.
    owed: Transferred,
}

impl Counted {
    /// Takes the count as it is now; what is new in it.
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

/// A rate one way, in bytes per second, and what is left of it; less than nothing is a debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    rate: Option<u64>,
    /// Bytes.
    credit: i128,
}

impl Bucket {
    fn new(rate: Option<u64>) -> Bucket {
        let mut bucket = Bucket { rate, credit: 0 };
        bucket.pass(BURST_NS, 0);
        bucket
    }

    /// Time passes, and bytes.
    fn pass(&mut self, elapsed: Time, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let of = |ns: Time| i128::from(rate) * i128::from(ns) / SECOND;
        let credit = self.credit + of(elapsed) - i128::from(bytes);
        self.credit = credit.clamp(-of(DEBT_NS), of(BURST_NS));
    }

    /// How long it takes until nothing is owed.
    fn debt_ns(self) -> Time {
        let rate = i128::from(self.rate.unwrap_or(0)).max(1);
        if self.credit >= 0 { 0 } else { Time::try_from(-self.credit * SECOND / rate).unwrap_or(0) }
    }
}

impl Disks {
    /// Nothing is known, and nobody has a rate.
    pub(super) fn new() -> Disks {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
        Disks { timer, ..Disks::default() }
    }

    /// Follows another contract: units that are gone have neither use nor rate.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.used.resize(contract.units.len(), Transferred::default());
        for unit in &contract.vacant {
            self.used[unit.index()] = Transferred::default();
        }
        self.caps.retain(|unit, _| contract.has(*unit));
    }

    /// The order of a rate each way, in bytes per second.
    pub(super) fn cap(&mut self, unit: UnitId, read: Option<u64>, write: Option<u64>) {
        if read.is_none() && write.is_none() {
            self.caps.remove(&unit);
            return;
        }
        // What it has, or owes, stays its own under another rate.
        let before = self.caps.get(&unit).copied();
        let mut buckets = [Bucket::new(read), Bucket::new(write)];
        for (bucket, before) in buckets.iter_mut().zip(before.into_iter().flatten()) {
            bucket.credit = bucket.credit.min(before.credit);
        }
        self.caps.insert(unit, buckets);
    }

    /// Whether a unit is to stand still now, by its own rate.
    pub(super) fn is_stopped(&self, unit: UnitId) -> bool {
        self.caps.get(&unit).is_some_and(|cap| cap.iter().any(|bucket| bucket.credit < 0))
    }

    /// Whether some disk's scheduler goes by priorities.
    pub(super) fn heeds_priorities(&self) -> bool {
        self.devices.iter().any(|device| device.weigher == Some(Weigher::Bfq))
    }

    /// A machine with one disk, which BFQ schedules or nothing does.
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

    /// Becomes readable when somebody's rate asks for a look.
    pub(super) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.timer.as_ref().map(AsFd::as_fd)
    }

    /// Makes the alarm quiet.
    pub(super) fn hear(&mut self) {
        if let Some(timer) = &self.timer {
            let _ = rustix::io::read(timer, &mut [0u8; 8]);
        }
    }

    /// Takes in what happened since the last look, if that is long enough ago.
    pub(super) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        let fresh = if self.caps.is_empty() { FRESH_NS } else { MS };
        let elapsed = self.at.map_or(0, |at| now.saturating_sub(at));
        if self.at.is_some() && (elapsed < fresh || now < self.rest_until) {
            return Ok(());
        }
        if self.devices_at.is_none_or(|at| now >= at.saturating_add(DEVICES_NS)) {
            self.devices = devices::read(&Tree::new(Path::new("/")), Path::new("/sys/fs/cgroup"));
            self.devices_at = Some(now);
        }
        let begun = clock::thread_cpu_ns();
        let new = self.count(contract.units.len(), roster)?;
        self.at = Some(now);
        for (unit, cap) in &mut self.caps {
            let within = contract.held().filter(|id| is_within(contract, *id, *unit));
            let bytes = within
                .filter_map(|id| new.get(id.index()))
                .fold([0, 0], |sum, new| [sum[0] + new.read, sum[1] + new.written]);
            cap[0].pass(elapsed, bytes[0]);
            cap[1].pass(elapsed, bytes[1]);
        }
        let took = clock::thread_cpu_ns().saturating_sub(begun);
        self.rest_until = now.saturating_add(took.saturating_mul(REST_TIMES));
        self.set_timer();
        Ok(())
    }

    /// What each unit transferred since the last look.
    fn count(&mut self, units: usize, roster: &mut Roster) -> Result<Vec<Transferred>, LiveError> {
        let mut new = vec![Transferred::default(); units];
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
                // A member's child was born here; what anybody else did before is not this unit's.
                let child = self.processes.keys().any(|known| known.pid == parent);
                let last = if child { Transferred::default() } else { now };
                self.processes.insert(key, Counted { parent, last, owed: Transferred::default() });
            }
            let grown = self.processes.get_mut(&key).map(|counted| counted.advance(now)).unwrap_or_default();
            if let (Some(new), Some(used)) = (new.get_mut(unit), self.used.get_mut(unit)) {
                (new.read, new.written) = (new.read + grown.read, new.written + grown.written);
                (used.read, used.written) = (used.read + grown.read, used.written + grown.written);
            }
        }
        Ok(new)
    }

    /// Who ended leaves what was counted of it to its parent, whose own count shows it again.
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

    /// Has the alarm ring when somebody may go on, or is to be looked at.
    fn set_timer(&self) {
        let Some(timer) = &self.timer else { return };
        let waits = self.caps.values().map(|cap| {
            let debt = cap.iter().map(|bucket| bucket.debt_ns()).max().unwrap_or(0);
            if debt > 0 { debt.max(MS) } else { WATCH_NS }
        });
        // No time at all is no alarm.
        let wait = i64::try_from(waits.min().unwrap_or(0)).unwrap_or(0);
        let value = Timespec { tv_sec: wait / 1_000_000_000, tv_nsec: wait % 1_000_000_000 };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Refused only for what is no timer, or no time.
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// The facts as the policy wants them: all disks are one, as far as their units are concerned.
    pub(super) fn facts(&self) -> Vec<DiskFacts> {
        let (Some(at), Some(first)) = (self.at, self.devices.first()) else { return Vec::new() };
        let single = self.devices.len() == 1;
        let units = self.used.iter().map(|used| DiskUse {
            read_bytes: used.read,
            written_bytes: used.written,
            ..DiskUse::default()
        });
        vec![DiskFacts {
            name: if single { first.name.clone() } else { "all".to_owned() },
            at,
            weighs: self.heeds_priorities(),
            bytes_per_s: first.model.filter(|_| single).map(|model| model.bytes_per_s()),
            device: None,
            units: units.collect(),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 10 MiB/s: of 5 MiB at once, all but the first is owed, and stands against time; more than two seconds' are not.
    #[test]
    fn what_is_too_much_is_waited_for() {
        let mut bucket = Bucket::new(Some(10 * MIB));
        bucket.pass(0, MIB);
        assert_eq!(bucket.debt_ns(), 0, "a burst is free");
        bucket.pass(0, 4 * MIB);
        assert_eq!(bucket.debt_ns(), 400 * MS);
        bucket.pass(300 * MS, 0);
        assert_eq!(bucket.debt_ns(), 100 * MS);
        bucket.pass(0, 1_000 * MIB);
        assert_eq!(bucket.debt_ns(), DEBT_NS);
        let mut free = Bucket::new(None);
        free.pass(0, 1_000 * MIB);
        assert_eq!(free.debt_ns(), 0);
    }

    /// A child was counted 5, ends, and shows in its parent's count: of the 8 that this grew by, 3 are new.
    #[test]
    fn what_a_child_did_counts_once() {
        let key = |pid| ProcessKey { pid, start: u64::from(pid) };
        let read = |read| Transferred { read, written: 0 };
        let of = |parent, last| Counted { parent, last: read(last), owed: Transferred::default() };
        let mut disks = Disks::default();
        disks.processes.insert(key(10), of(1, 100));
        disks.processes.insert(key(11), of(10, 5));
        disks.bequeath(&BTreeMap::from([(key(10), (0, 1))]));
        let parent = disks.processes.get_mut(&key(10)).map(|parent| parent.advance(read(108)));
        assert_eq!(parent, Some(read(3)));
        assert_eq!(disks.processes.len(), 1);
    }
}
